"""Reads values from the stack of a running frame, for which Python has no interface.

The stack of CPython is an array of pointers behind the variables of a frame. Its place in a frame
is looked up once, in a frame whose variables are known; where that finds nothing, no value is
given. How much lies there when an instruction begins is what the compiler has counted
(:func:`dis.stack_effect`).
"""

from __future__ import annotations

import ctypes
import dis
import functools
import gc
import inspect
import itertools
import sys
import sysconfig
import types
from typing import Any, NamedTuple

from .codes import address, per_code

__all__ = [
    "ENDS",
    "NOTHING",
    "Stack",
    "depths",
    "handlers",
    "instructions_of",
    "let_go_of_unpacked",
    "places_of",
    "variables_of",
]

NOTHING: Any = type("_Nothing", (), {})()
"""There is no value, or it is not known where."""

_WORD = ctypes.sizeof(ctypes.c_void_p)
_TAGS = 3  # from Python 3.14 on the lowest bits of a pointer may say something
# Words of a frame that are searched for its variables: no more than a frame of the probe has.
_SEARCHED = 48 if sys.version_info < (3, 11) else 16


class _Layout(NamedTuple):
    """Offsets: of the inner frame in a frame (``None``: it is the same), of the frame in the inner
    one (to see that this is one), and of the variables in there."""

    inner: int | None
    back: int | None
    variables: int


class Stack:
    """Reads the stack of frames of this thread."""

    def __init__(self) -> None:
        self._layout = _layout()
        self._word = ctypes.c_void_p()
        self._object = ctypes.py_object.from_buffer(self._word)
        self._arrays: dict[int, Any] = {}  # by where they begin

    @property
    def is_known(self) -> bool:
        """Whether this Python keeps its stack in a place that was found."""
        return self._layout is not None

    def words(self, frame: types.FrameType) -> Any:
        """The variables of a frame and the stack behind them, as long as it runs; ``None``: they
        were not found."""
        layout = self._layout
        if layout is None:
            return None
        at = start = address(frame) << 4  # as id() gives it, which calls all audit hooks
        if layout.inner is not None and layout.back is not None:
            start = self._array(start + layout.inner)[0] or 0
            if not start or self._array(start + layout.back)[0] != at:
                return None
        return self._array(start + layout.variables)

    def at(self, frame: types.FrameType, slot: int) -> Any:
        """The value in a slot of the stack of ``frame``, counted from the bottom."""
        words = self.words(frame)
        return NOTHING if words is None else self.value(words, variables_of(frame.f_code) + slot)

    def value(self, words: Any, at: int) -> Any:
        """The value that lies there; :data:`NOTHING`."""
        word = words[at]
        if not word or word & _TAGS:
            if not word:
                return NOTHING
            if word & _TAGS == _TAGS or not word & ~_TAGS:
                return NOTHING
            word &= ~_TAGS
        self._word.value = word
        return self._object.value

    def _array(self, start: int) -> Any:
        array = self._arrays.get(start)
        if array is None:
            if len(self._arrays) > _MAX_ARRAYS:
                self._arrays.clear()
            array = self._arrays[start] = _Words.from_address(start)
        return array


def let_go_of_unpacked(frame: types.FrameType, first: object = NOTHING) -> None:
    """Make it safe to raise from a hook that is told of a call which ``frame`` is about to make.

    In ``f(*values)`` CPython 3.12 and 3.13 make a tuple of ``values`` and release ``values``, but
    leave the pointer to them on the stack. An error from the hook releases them a second time, and
    the process crashes when their memory is used. So the pointer is taken from the stack. The
    tuple is not found again: CPython never releases it, nor the arguments in it.

    Args:
        frame: the one that calls, as the hook was told.
        first: the first argument of the call, where the hook knows it.
    """
    if not (3, 12) <= sys.version_info[:2] < (3, 14):
        return
    code, offset = frame.f_code, frame.f_lasti
    if code.co_code[offset] != dis.opmap["CALL_FUNCTION_EX"] or offset not in depths(code):
        return
    stack, variables = Stack(), variables_of(code)
    words = stack.words(frame)
    if words is None:
        return
    has_keywords = code.co_code[offset + 1] & 1
    at = variables + depths(code)[offset] - 1 - has_keywords
    # What lies there may be freed: nothing of it is read before it is known to live.
    if any(words[n] == words[at] for n in range(variables)):
        is_a_tuple = type(stack.value(words, at)) is tuple
    else:
        is_a_tuple = any(
            type(item) is tuple and id(item) == words[at] and item[0] is first
            for item in (() if first is NOTHING else gc.get_referrers(first))
        )
    if not is_a_tuple:
        words[at] = id(())  # which is never freed


_MAX_ARRAYS = 4096
_Words = ctypes.c_void_p * (1 << 20)  # longer than any frame: nothing is read but what is asked for


@per_code
def variables_of(code: types.CodeType) -> int:
    """How many slots the variables take."""
    if sys.version_info < (3, 11):
        return code.co_nlocals + len(code.co_cellvars) + len(code.co_freevars)
    return len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)


@per_code
def places_of(code: types.CodeType) -> dict[str, int]:
    """Where the variables lie; those that another function shares lie in a cell.

    Not asked of ``frame.f_locals``, which runs through all of them, and which crashes Python 3.13
    in a comprehension whose variable is named as one that is shared.
    """
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    if sys.version_info < (3, 11):  # there all cells lie behind the other variables
        found = {name: at for at, name in enumerate(code.co_varnames)}
        shared = enumerate((*code.co_cellvars, *code.co_freevars), code.co_nlocals)
        return found | {name: at for at, name in shared}
    names = [*code.co_varnames, *(n for n in code.co_cellvars if n not in code.co_varnames)]
    return {name: at for at, name in enumerate([*names, *code.co_freevars])}


@functools.lru_cache(maxsize=1)
def _layout() -> _Layout | None:
    is_tried = (3, 10) <= sys.version_info[:2] <= (3, 14)
    has_lock = not sysconfig.get_config_var("Py_GIL_DISABLED")  # without, objects begin elsewhere
    if sys.implementation.name != "cpython" or not is_tried or not has_lock:
        return None

    def probe(first: object, second: object, third: object) -> _Layout | None:
        # Not in a variable: the frame would hold itself, and its callers with what they work with.
        mine, hashed = id(sys._getframe()), address(sys._getframe()) << 4
        wanted = [id(first), id(second), id(third)]

        def words(address: int) -> list[int]:
            read = (ctypes.c_void_p * _SEARCHED).from_address(address)
            return [(word or 0) for word in read]

        def found(held: list[int]) -> int | None:
            plain = [word & ~_TAGS for word in held]
            places = (n for n in range(_SEARCHED - 3) if plain[n : n + 3] == wanted)
            return next((_WORD * n for n in places), None)

        if sys.version_info < (3, 11):
            at = found(words(mine))
            is_known = at is not None and mine == hashed
            return _Layout(None, None, at) if is_known and at is not None else None
        # After the frame before it comes a pointer to the inner one.
        inner = 3 * _WORD
        held = words(words(mine)[3])
        at = found(held)
        if at is None or mine not in held or mine != hashed:
            return None
        return _Layout(inner, _WORD * held.index(mine), at)

    return probe(object(), object(), object())


_decoded: tuple[types.CodeType | None, list[dis.Instruction]] = None, []


def instructions_of(code: types.CodeType) -> list[dis.Instruction]:
    """The instructions of ``code``. Those asked for last are kept: to decode them takes longest of
    all that is done once for each code."""
    global _decoded
    last, found = _decoded
    if last is not code:
        found = list(dis.get_instructions(code))
        _decoded = code, found
    return found


@per_code
def depths(code: types.CodeType) -> dict[int, int]:
    """Offset of each instruction that can be reached -> what lies on the stack when it begins."""
    instructions = instructions_of(code)
    following = {a.offset: b.offset for a, b in itertools.pairwise(instructions)}
    by_offset = {step.offset: step for step in instructions}
    found: dict[int, int] = {}
    # Before Python 3.13 no instruction counts what is sent into a generator that begins.
    is_sent = sys.version_info < (3, 13) and bool(code.co_flags & _GENERATORS)
    todo = [(instructions[0].offset, int(is_sent))]
    todo += [(entry.target, entry.depth + 1 + bool(entry.lasti)) for entry in handlers(code)]
    while todo:
        at, depth = todo.pop()
        while at in by_offset and at not in found:
            found[at] = depth
            step = by_offset[at]
            if step.opcode in _JUMPS:
                todo.append((step.argval, depth + _effect(step, jump=True)))
            if step.opname in ENDS:
                break
            depth += _effect(step, jump=False)
            at = following.get(at, -1)
    return found


def handlers(code: types.CodeType) -> list[Any]:
    """The table of what handles exceptions; Python 3.10 has blocks in its place."""
    parse: Any = getattr(dis, "_parse_exception_table", None)
    return [] if parse is None else parse(code)


def _effect(step: dis.Instruction, jump: bool) -> int:
    """By how much an instruction changes the stack."""
    if step.opname == "PRECALL":  # Python 3.11 counts what the CALL after it takes
        return 0
    arg = step.arg if step.opcode >= dis.HAVE_ARGUMENT else None
    effect = dis.stack_effect(step.opcode, arg, jump=jump)
    return effect - (arg or 0) if _CALL_COUNTS_ONE and step.opname == "CALL" else effect


_CALL_COUNTS_ONE = "PRECALL" in dis.opmap
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
ENDS = frozenset(
    (
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
        "JUMP_ABSOLUTE",
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
    )
)
"""Instructions after which the next one is not reached from here."""
