"""What each instruction of a code object reads, and from where.

A symbolic stack over the bytecode of CPython 3.10 to 3.14 (the table of instructions stands in
the documentation of :mod:`dis`). It says once for each code object, for example, that the
instruction at offset 24 reads the attribute ``scale`` of what the instruction at offset 14 has
made. :mod:`~gfxgraph.graph.reads` asks for that when the instruction is about to run.

What is not known is lost, and never shifted: an instruction that is not in the tables empties the
stack.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..interpose.codes import per_code
from ..interpose.frames import ENDS, depths, handlers, instructions_of

__all__ = ["Code", "Operand", "Step", "read"]

Operand: TypeAlias = "tuple[Any, ...] | None"
"""Where a value comes from: ``("local", name)``, ``("const", value)``, ``("made", offset)``, a
``super()`` of the method itself as ``("super", None)``, one with arguments as ``("super", (cls,
of))``; ``None``: it is not known. Of what a step
takes from the stack, ``("local", name, slot)``, ``("made", offset, slot)`` and ``("slot", slot)``
say where it lies; of two slots, in the first one that holds anything."""
Step: TypeAlias = tuple[Any, ...]
"""What an instruction reads: its kind, and its operands.

=============================  ==================================================================
``("global", name)``           a global variable
``("cell", name)``             a variable of a function around it
``("attribute", base, name)``  an attribute
``("unset", base, name)``      an attribute that is deleted
``("forget", kind, name)``     a global variable, or one in a cell, that is deleted
``("item", base, key)``        an item
``("contains", base, key)``    whether a container has an item
``("content", *bases)``        all that containers hold
``("operation", *bases)``      the same, and what is in there, by code in C
``("text", base)``             the same, and a text of it is written
``("augmented", *bases)``      like ``operation``, and the first of these may be changed
``("shape", item)``            whether it is a sequence or a mapping, and all that it holds
``("star", module)``           all names that a module exports
``("length", base)``           whether a container is empty
``("call", fn, args, names)``  a call; the last arguments are the keywords ``names``
``("spread", fn, args, kw)``   a call with ``*args`` or ``**kw``
``("enter", manager)``          a ``with`` statement
``("caught", error, cls)``     whether an exception is of a class
``("match", on, cls, names, n)``  a pattern of a class, with ``n`` positional parts
``("builtin", name)``           a function that Python itself calls, as ``class`` does
``("import", name, of, level)``  an imported module, with what is imported from it, and the dots
``("from", module, name)``        what is imported from a module
``("counting", *step)``        the same as ``step``, whose value is only advanced and put back
``("store", *step)``           a store where ``step`` reads; ``advance``: it puts that back
=============================  ==================================================================
"""

_PY = sys.version_info[:2]
_NULL = ("null", None)


class Code(NamedTuple):
    """What a code object reads.

    Attributes:
        steps: offset of an instruction -> what it reads.
        starts: offset inside an instruction -> offset at which it starts.
    """

    steps: dict[int, Step]
    starts: dict[int, int]


@per_code
def read(code: types.CodeType) -> Code:
    """What the instructions of ``code`` read."""
    return _Reader(code).run()


class _Reader:
    """Goes through one code object once, in the order of its instructions."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.stack: list[Operand] = []
        self.steps: dict[int, Step] = {}
        # Of forward jumps: target -> the stack that it finds.
        self.landing: dict[int, list[Operand]] = {}
        # Where exceptions are handled the stack is not known.
        self.handlers = {entry.target for entry in handlers(code)}
        self.keywords: tuple[str, ...] = ()
        # Offsets whose values stand on the stack twice.
        self.copied: set[int] = set()
        self.depths = depths(code)
        #: How much lies on the stack; ``None``: the instruction is never reached.
        self.depth: int | None = 0

    def run(self) -> Code:
        starts: dict[int, int] = {}
        instructions = instructions_of(self.code)
        ends = [step.offset for step in instructions[1:]] + [len(self.code.co_code)]
        goes_on = True
        for step, end in zip(instructions, ends, strict=True):
            starts.update(
                dict.fromkeys(range(step.offset, max(end, step.offset + 2), 2), step.offset)
            )
            self._arrive(step.offset, goes_on)
            self.depth = self.depths.get(step.offset)
            known = _KNOWN.get(step.opname)
            if known is not None:
                known(self, step)
            elif step.opname in _EFFECTS:
                pops, pushes = _EFFECTS[step.opname]
                self.pop(pops if pops >= 0 else (step.arg or 0) - pops - 1)
                self.stack += [None] * pushes
            else:
                self.stack.clear()
            goes_on = step.opname not in ENDS
        return Code(self.steps, starts)

    def _arrive(self, offset: int, goes_on: bool) -> None:
        if offset in self.handlers:
            self.stack.clear()
        elif offset in self.landing:
            other = self.landing.pop(offset)
            if goes_on:  # from above the target, too: keep what both agree in
                depth = min(len(other), len(self.stack))
                ours, theirs = (s[len(s) - depth :] for s in (self.stack, other))
                self.stack[:] = [a if a == b else None for a, b in zip(ours, theirs, strict=True)]
            else:
                self.stack[:] = other
        elif not goes_on:
            self.stack.clear()

    # The stack.

    def push(self, *operands: Operand) -> None:
        for operand in operands:
            if operand is not None and operand[0] == "slot":
                operand = None
            elif operand is not None and operand[0] in _ON_STACK:
                operand = operand[:2]
            self.stack.append(operand)

    def pop(self, count: int) -> list[Operand]:
        """The topmost ``count`` operands, the deepest first, each with its slot."""
        found = []
        for _ in range(count):
            found.append(self.peek(1))
            if self.stack:
                self.stack.pop()
            if self.depth is not None:
                self.depth -= 1
        return found[::-1]

    def peek(self, nth: int) -> Operand:
        """The ``nth`` operand from the top, with its slot."""
        operand = self.stack[-nth] if nth <= len(self.stack) else None
        if operand is not None and operand[0] == "sum":
            operand = None
        if operand is _NULL or self.depth is None or self.depth < nth:
            return operand
        if operand is None:
            return "slot", self.depth - nth
        return (*operand, self.depth - nth) if operand[0] in _ON_STACK else operand

    def made(self, at: int, *step: Any) -> None:
        """The instruction at ``at`` reads ``step``, and pushes what it finds."""
        self.steps[at] = step
        self.push(("made", at))

    def jump(self, target: int) -> None:
        """The code may jump forward to ``target``. The jump does not change the stack."""
        self.landing.setdefault(target, self.stack[:])

    def stores(self, nth: int, *target: Any) -> str:
        """The ``nth`` operand from the top is about to be stored where ``target`` reads.

        If it is what was read there and a constant, and went nowhere else, that only counts.
        """
        operand = self.stack[-nth] if 0 < nth <= len(self.stack) else None
        if operand is None or operand[0] != "sum" or operand[1] in self.copied:
            return "store"
        step = self.steps[operand[1]]
        # Of other kinds are calls, whose parts are no operands.
        is_alike = step[0] == target[0] and len(step) == len(target)
        if is_alike and list(map(self._origin, step)) == list(map(self._origin, target)):
            self.steps[operand[1]] = ("counting", *step)
            return "advance"
        return "store"

    def _origin(self, part: Any) -> Any:
        """An operand, or the variable that gave it: nothing stores there meanwhile."""
        if type(part) is not tuple or part[0] != "made":
            return part[:2] if type(part) is tuple else part
        step = self.steps[part[1]]
        return step if step[0] in ("cell", "global") else part[:2]

    # Instructions.

    def constant(self, step: dis.Instruction) -> None:
        self.push(("const", step.argval))

    def local(self, step: dis.Instruction) -> None:
        names = step.argval if type(step.argval) is tuple else (step.argval,)
        for name in names:
            self.push(("local", name))

    def store_local(self, step: dis.Instruction) -> None:
        self.pop(len(step.argval) if type(step.argval) is tuple else 1)

    def store_and_load(self, step: dis.Instruction) -> None:
        self.pop(1)
        self.push(("local", step.argval[1]))

    def cell(self, step: dis.Instruction) -> None:
        if step.opname == "LOAD_FROM_DICT_OR_DEREF":
            self.pop(1)
        self.made(step.offset, "cell", step.argval)

    def global_(self, step: dis.Instruction) -> None:
        if step.opname == "LOAD_FROM_DICT_OR_GLOBALS":
            self.pop(1)
        with_null = step.opname == "LOAD_GLOBAL" and _PY >= (3, 11) and (step.arg or 0) & 1
        if with_null and _PY < (3, 13):
            self.push(_NULL)
        self.made(step.offset, "global", step.argval)
        if with_null and _PY >= (3, 13):
            self.push(_NULL)

    def store_variable(self, step: dis.Instruction) -> None:
        kind = "global" if step.opname.endswith("GLOBAL") else "cell"
        if step.opname.startswith("DELETE"):
            self.steps[step.offset] = ("forget", kind, step.argval)
        else:
            self._written(step, 0, kind, kind, step.argval)

    def _written(
        self, step: dis.Instruction, operands: int, kind: str, unset: str, *names: str
    ) -> None:
        """A store to what the topmost ``operands`` and ``names`` say; ``unset``: a deletion."""
        target = (*map(self.peek, range(operands, 0, -1)), *names)
        is_store = step.opname.startswith("STORE")
        how = (self.stores(operands + 1, kind, *target), kind) if is_store else (unset,)
        self.pop(operands + is_store)
        self.steps[step.offset] = (*how, *target)

    def null(self, step: dis.Instruction) -> None:
        self.push(_NULL)

    def attribute(self, step: dis.Instruction) -> None:
        is_of_super = step.opname == "LOAD_SUPER_ATTR"
        *super_of, base = self.pop(3 if is_of_super else 1)
        if is_of_super:  # the second bit tells super(cls, base) from super()
            base = ("super", (super_of[1], base) if (step.arg or 0) & 2 else None)
        self.made(step.offset, "attribute", base, step.argval)
        if step.opname == "LOAD_METHOD" or (_PY >= (3, 12) and (step.arg or 0) & 1):
            self.push(_NULL)

    def store_attribute(self, step: dis.Instruction) -> None:
        self._written(step, 1, "attribute", "unset", step.argval)

    def matched_class(self, step: dis.Instruction) -> None:
        subject, cls, names = self.pop(3)
        self.steps[step.offset] = ("match", subject, cls, names, step.arg or 0)
        self.push(None)
        if _PY < (3, 11):
            self.push(None)  # and whether it matched

    def imported(self, step: dis.Instruction) -> None:
        level, names = self.pop(2)
        self.made(step.offset, "import", step.argval, names, level)

    def imported_from(self, step: dis.Instruction) -> None:
        self.made(step.offset, "from", self.peek(1), step.argval)

    def built_class(self, step: dis.Instruction) -> None:
        self.steps[step.offset] = ("builtin", "__build_class__")
        self.push(None)

    def item(self, step: dis.Instruction) -> None:
        self.made(step.offset, "item", *self.pop(2))

    def store_item(self, step: dis.Instruction) -> None:
        self._written(step, 2, "item", "delete")

    def slice(self, step: dis.Instruction) -> None:
        *value, base, start, end = self.pop(4 if step.opname == "STORE_SLICE" else 3)
        bounds = filter(_is_open, (start, end))
        self.steps[step.offset] = ("augmented" if value else "content", base, *value, *bounds)
        if step.opname == "BINARY_SLICE":
            self.push(None)

    def contains(self, step: dis.Instruction) -> None:
        key, base = self.pop(2)
        self.steps[step.offset] = ("contains", base, key)
        self.push(None)

    def identity(self, step: dis.Instruction) -> None:
        self.steps[step.offset] = ("is", *self.pop(2))
        self.push(None)

    def operation(self, step: dis.Instruction) -> None:
        if step.argrepr == "[]" and step.opname == "BINARY_OP":  # from Python 3.14 on
            self.item(step)
            return
        left, right = self.pop(2)
        is_augmented = step.opname.startswith("INPLACE") or (
            step.opname == "BINARY_OP" and step.argrepr.endswith("=")
        )
        self.steps[step.offset] = ("augmented" if is_augmented else "operation", left, right)
        is_made = left is not None and left[0] == "made"
        is_number = right is not None and right[0] == "const" and type(right[1]) is int
        is_sum = step.argrepr in _SUMS or step.opname in _SUMS
        self.stack.append(("sum", left[1]) if left and is_made and is_number and is_sum else None)

    def formatted(self, step: dis.Instruction) -> None:
        has_spec = step.opname == "FORMAT_WITH_SPEC"
        if step.opname == "FORMAT_VALUE":
            has_spec = bool((step.arg or 0) & 4)
        self.steps[step.offset] = ("text", self.pop(2 if has_spec else 1)[0])
        self.push(None)

    def iterated(self, step: dis.Instruction) -> None:
        """All of the topmost container is read, by an iterator or by what is built from it."""
        self.steps[step.offset] = ("content", *self.pop(1))
        if step.opname in _BUILT:
            self.push(None)

    def matched(self, step: dis.Instruction) -> None:
        """A pattern looks into a container, which stays where it is."""
        depth = 2 if step.opname == "MATCH_KEYS" else 1
        asks_class = step.opname in ("MATCH_MAPPING", "MATCH_SEQUENCE")
        self.steps[step.offset] = ("shape" if asks_class else "content", self.peek(depth))
        self.push(None)
        if step.opname == "MATCH_KEYS" and _PY < (3, 11):
            self.push(None)  # and whether all keys were there

    def unpacked(self, step: dis.Instruction) -> None:
        self.steps[step.offset] = ("content", *self.pop(1))
        arg = step.arg or 0
        is_star = step.opname == "UNPACK_EX"
        self.stack += [None] * ((arg & 0xFF) + 1 + (arg >> 8) if is_star else arg)

    def next_item(self, step: dis.Instruction) -> None:
        # At the end the iterator is gone, or, from Python 3.12 on, something lies on it.
        at_end = self.stack[:-1] if _PY < (3, 12) else [*self.stack, None]
        self.landing.setdefault(step.argval, at_end)
        self.push(None)

    def end_for(self, step: dis.Instruction) -> None:
        self.pop(2 if _PY == (3, 12) else 1)

    def truth(self, step: dis.Instruction) -> None:
        (base,) = self.pop(1)
        self.steps[step.offset] = ("length", base)
        # What TO_BOOL leaves is not what it was asked of.
        self.push(None)

    def branch(self, step: dis.Instruction) -> None:
        """A jump that pops what it decides by."""
        (base,) = self.pop(1)
        if "NONE" not in step.opname:
            self.steps[step.offset] = ("length", base)
        self.go(step)

    def branch_or_keep(self, step: dis.Instruction) -> None:
        self.steps[step.offset] = ("length", self.peek(1))
        self.jump(step.argval)
        self.pop(1)

    def branch_on_error(self, step: dis.Instruction) -> None:
        self.steps[step.offset] = ("caught", *self.pop(2))
        self.jump(step.argval)

    def go(self, step: dis.Instruction) -> None:
        if step.argval > step.offset:
            self.jump(step.argval)

    def keyword_names(self, step: dis.Instruction) -> None:
        # On Python 3.11 argval is the operand itself.
        self.keywords = self.code.co_consts[step.arg or 0]

    def call(self, step: dis.Instruction) -> None:
        names, self.keywords = self.keywords, ()
        if step.opname in ("CALL_KW", "CALL_FUNCTION_KW"):
            (given,) = self.pop(1)
            names = given[1] if given is not None and given[0] == "const" else ()
        args = self.pop(step.arg or 0)
        fn = self._called(1 if step.opname in ("CALL_FUNCTION", "CALL_FUNCTION_KW") else 2)
        self.made(step.offset, "call", fn, tuple(args), tuple(names))

    def call_spread(self, step: dis.Instruction) -> None:
        has_keywords = _PY >= (3, 14) or (step.arg or 0) & 1
        keywords = self.pop(1)[0] if has_keywords else None
        (args,) = self.pop(1)
        fn = self._called(1 if _PY < (3, 11) else 2)
        self.made(step.offset, "spread", fn, args, None if keywords is _NULL else keywords)

    def _called(self, slots: int) -> Operand:
        """The function of a call; beside it is a NULL where it is no method."""
        both = self.pop(slots)
        found = [operand for operand in both if operand is not _NULL]
        if slots == 2 and both[0] is not _NULL and _PY < (3, 13) and self.depth is not None:
            # In the first one lies NULL if what a name gave is no method.
            known = found[0] if len(found) == 1 and found[0] is not None else None
            of = known[:2] if known is not None and known[0] in _ON_STACK else ("slot",)
            return (*of, self.depth, self.depth + 1)
        return found[0] if found else None

    def copy(self, step: dis.Instruction) -> None:
        copied = {"DUP_TOP": (1,), "DUP_TOP_TWO": (2, 1)}.get(step.opname, (step.arg or 0,))
        operands = list(map(self.peek, copied))
        for nth in copied:
            operand = self.stack[-nth] if nth <= len(self.stack) else None
            if operand is not None and operand[0] in ("made", "sum"):
                self.copied.add(operand[1])
        self.push(*operands)

    def reorder(self, step: dis.Instruction) -> None:
        depth = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}.get(step.opname, step.arg or 0)
        if depth > len(self.stack):
            self.stack.clear()
        elif step.opname == "SWAP":
            self.stack[-1], self.stack[-depth] = self.stack[-depth], self.stack[-1]
        else:
            self.stack.insert(len(self.stack) - depth, self.stack.pop())

    def entered(self, step: dis.Instruction) -> None:
        """A ``with`` statement, which calls ``__enter__`` of what is on top."""
        if step.opname == "BEFORE_WITH" or "enter" in step.argrepr:
            self.steps[step.offset] = ("enter", *self.pop(1))
        self.stack.clear()

    def caught(self, step: dis.Instruction) -> None:
        """``except`` asks for the class of an exception; what it asks of stays where it is."""
        self.steps[step.offset] = ("caught", self.peek(2), self.peek(1))
        if step.opname == "CHECK_EXC_MATCH":
            self.pop(1)
            self.push(None)
        else:
            self.stack.clear()

    def setup(self, step: dis.Instruction) -> None:
        """Python 3.10 has blocks in place of a table of handlers."""
        self.handlers.add(step.argval)
        if step.opname == "SETUP_WITH":
            self.steps[step.offset] = ("enter", *self.pop(1))
            self.push(None, None)

    def built_dict(self, step: dis.Instruction) -> None:
        self._hashed(step, self.pop(2 * (step.arg or 0))[::2])
        self.push(None)

    def built_set(self, step: dis.Instruction) -> None:
        self._hashed(step, self.pop(step.arg or 0))
        self.push(None)

    def added(self, step: dis.Instruction) -> None:
        """An item of a comprehension."""
        self._hashed(step, self.pop(2 if step.opname == "MAP_ADD" else 1)[:1])

    def _hashed(self, step: dis.Instruction, keys: list[Operand]) -> None:
        """Keys are asked for their hash, and compared."""
        keys = list(filter(_is_open, keys))
        if keys:
            self.steps[step.offset] = ("operation", *keys)

    def built_slice(self, step: dis.Instruction) -> None:
        bounds = list(filter(_is_open, self.pop(step.arg or 0)))
        if bounds:
            self.steps[step.offset] = ("content", *bounds)
        self.push(None)

    def unary(self, step: dis.Instruction) -> None:
        self.steps[step.offset] = ("operation", *self.pop(1))
        self.push(None)

    def star(self, step: dis.Instruction) -> None:
        self.steps[step.offset] = ("star", *self.pop(1))

    def intrinsic(self, step: dis.Instruction) -> None:
        if step.argrepr == "INTRINSIC_IMPORT_STAR":
            self.star(step)
        elif step.argrepr == "INTRINSIC_UNARY_POSITIVE":
            self.unary(step)
            return
        else:
            self.pop(1)
        self.push(None)

    def made_function(self, step: dis.Instruction) -> None:
        parts = bin(step.arg or 0).count("1") if _PY < (3, 13) else 0
        self.pop(parts + (2 if _PY < (3, 11) else 1))
        self.push(None)


def _is_open(operand: Operand) -> bool:
    return operand is None or operand[0] != "const"


_ON_STACK = ("made", "local")
_HOW = ("BINARY", "INPLACE")
_SUMS = ("+", "-", "+=", "-=", *(f"{how}_{what}" for how in _HOW for what in ("ADD", "SUBTRACT")))
_BUILT = ("LIST_TO_TUPLE", "GET_ITER", "GET_YIELD_FROM_ITER")
_Known: TypeAlias = Callable[[_Reader, dis.Instruction], None]
_T = TypeVar("_T")


def _table(*rows: tuple[_T, str]) -> dict[str, _T]:
    return {name: known for known, names in rows for name in names.split()}


_KNOWN: dict[str, _Known] = _table(
    (_Reader.constant, "LOAD_CONST LOAD_SMALL_INT"),
    (
        _Reader.local,
        "LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_BORROW LOAD_FAST_LOAD_FAST "
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
    ),
    (_Reader.store_local, "STORE_FAST STORE_FAST_MAYBE_NULL STORE_FAST_STORE_FAST"),
    (_Reader.store_and_load, "STORE_FAST_LOAD_FAST"),
    (_Reader.cell, "LOAD_DEREF LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF"),
    (_Reader.global_, "LOAD_GLOBAL LOAD_NAME LOAD_FROM_DICT_OR_GLOBALS"),
    (_Reader.store_variable, "STORE_DEREF DELETE_DEREF STORE_GLOBAL DELETE_GLOBAL"),
    (_Reader.null, "PUSH_NULL"),
    (_Reader.attribute, "LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR"),
    (_Reader.store_attribute, "STORE_ATTR DELETE_ATTR"),
    (_Reader.imported, "IMPORT_NAME"),
    (_Reader.imported_from, "IMPORT_FROM"),
    (_Reader.built_class, "LOAD_BUILD_CLASS"),
    (_Reader.item, "BINARY_SUBSCR"),
    (_Reader.store_item, "STORE_SUBSCR DELETE_SUBSCR"),
    (_Reader.slice, "BINARY_SLICE STORE_SLICE"),
    (_Reader.contains, "CONTAINS_OP"),
    (_Reader.identity, "IS_OP"),
    (
        _Reader.operation,
        "BINARY_OP COMPARE_OP BINARY_MATRIX_MULTIPLY INPLACE_MATRIX_MULTIPLY BINARY_POWER "
        "BINARY_MULTIPLY BINARY_MODULO BINARY_ADD BINARY_SUBTRACT BINARY_FLOOR_DIVIDE "
        "BINARY_TRUE_DIVIDE INPLACE_FLOOR_DIVIDE INPLACE_TRUE_DIVIDE INPLACE_ADD "
        "INPLACE_SUBTRACT INPLACE_MULTIPLY INPLACE_MODULO BINARY_LSHIFT BINARY_RSHIFT BINARY_AND "
        "BINARY_XOR BINARY_OR INPLACE_POWER INPLACE_LSHIFT INPLACE_RSHIFT INPLACE_AND INPLACE_XOR "
        "INPLACE_OR",
    ),
    (_Reader.formatted, "FORMAT_SIMPLE FORMAT_WITH_SPEC FORMAT_VALUE CONVERT_VALUE"),
    (
        _Reader.iterated,
        "GET_ITER GET_YIELD_FROM_ITER LIST_TO_TUPLE LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE",
    ),
    (_Reader.matched, "MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE GET_LEN"),
    (_Reader.matched_class, "MATCH_CLASS"),
    (_Reader.unpacked, "UNPACK_SEQUENCE UNPACK_EX"),
    (_Reader.next_item, "FOR_ITER"),
    (_Reader.end_for, "END_FOR"),
    (_Reader.truth, "TO_BOOL UNARY_NOT"),
    (
        _Reader.branch,
        "POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE "
        "POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_NONE "
        "POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_TRUE "
        "POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE",
    ),
    (_Reader.branch_or_keep, "JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP"),
    (_Reader.branch_on_error, "JUMP_IF_NOT_EXC_MATCH"),
    (_Reader.caught, "CHECK_EXC_MATCH CHECK_EG_MATCH"),
    (_Reader.entered, "BEFORE_WITH LOAD_SPECIAL"),
    (
        _Reader.go,
        "JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP_ABSOLUTE JUMP "
        "JUMP_NO_INTERRUPT",
    ),
    (_Reader.keyword_names, "KW_NAMES"),
    (_Reader.call, "CALL CALL_KW CALL_FUNCTION CALL_FUNCTION_KW CALL_METHOD"),
    (_Reader.call_spread, "CALL_FUNCTION_EX"),
    (_Reader.copy, "COPY DUP_TOP DUP_TOP_TWO"),
    (_Reader.reorder, "SWAP ROT_TWO ROT_THREE ROT_FOUR ROT_N"),
    (_Reader.setup, "SETUP_FINALLY SETUP_WITH SETUP_CLEANUP"),
    (_Reader.built_dict, "BUILD_MAP"),
    (_Reader.built_set, "BUILD_SET"),
    (_Reader.added, "SET_ADD MAP_ADD"),
    (_Reader.built_slice, "BUILD_SLICE"),
    (_Reader.unary, "UNARY_POSITIVE UNARY_NEGATIVE UNARY_INVERT"),
    (_Reader.star, "IMPORT_STAR"),
    (_Reader.intrinsic, "CALL_INTRINSIC_1"),
    (_Reader.made_function, "MAKE_FUNCTION"),
)


# Pops and pushes of instructions that read nothing; -1 - n pops: n more than the argument.
_EFFECTS = _table(
    (
        (0, 0),
        "RESUME NOP CACHE PRECALL COPY_FREE_VARS MAKE_CELL EXTENDED_ARG NOT_TAKEN POP_BLOCK "
        "DELETE_FAST SETUP_ANNOTATIONS",
    ),
    ((1, 0), "POP_TOP POP_ITER STORE_NAME GEN_START LIST_APPEND"),
    (
        (0, 1),
        "RETURN_GENERATOR LOAD_ASSERTION_ERROR LOAD_COMMON_CONSTANT LOAD_LOCALS LOAD_CLOSURE",
    ),
    ((1, 1), "YIELD_VALUE"),
    ((2, 1), "CALL_INTRINSIC_2 SET_FUNCTION_ATTRIBUTE"),
    ((-1, 1), "BUILD_TUPLE BUILD_LIST BUILD_STRING"),
    ((-2, 1), "BUILD_CONST_KEY_MAP"),
)
