"""What Python state the executed code of a run has read, as places that a guard can watch.

While a run is recorded, each instruction is looked at when it is about to run: which variable,
attribute, item or content does it read (:mod:`~gfxgraph.graph.bytecode`), and does that belong to
an object that was there before the run? Then it is a place, and the value that stands in it is
part of what the graph was captured for. Nothing is asked of an object but by the base classes in
C, so no code of the program runs (:mod:`~gfxgraph.graph.raw`).
"""

from __future__ import annotations

import abc
import builtins
import contextlib
import contextvars
import copyreg
import dis
import functools
import gc
import importlib
import inspect
import itertools
import operator
import re
import string
import sys
import threading
import types
import typing
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import CaptureError, one_line
from ..interpose.codes import address
from ..interpose.frames import NOTHING, Stack, depths, places_of, variables_of
from ..interpose.interrupts import interrupt_in, is_stand_in
from ..interpose.source import CLOSED, users_line
from ..record.again import Begun, Passages
from ..record.answers import Answers, Size
from ..record.explain import explain, some
from ..record.interceptor import current_interceptor
from ..record.side_effects import Acting
from . import bytecode, heard, in_c, raw, registries
from .age import Since
from .alike import Alike
from .containers import Container, item_at, owner_of
from .guard import REGISTRIES
from .imports import is_import
from .lift import Counted, Slot, lift_among, slots_of
from .listening import OPEN_IN_TORCH, end_listening, hear_again, is_closed, listening
from .locks import no_garbage_collection
from .lookups import (
    C_FUNCTIONS,
    CHANGING,
    DEEP,
    DESCRIPTORS,
    HOLLOW,
    LEAVES,
    MAX_ITEMS,
    MAX_NESTED,
    MISSING,
    MODULE,
    NOT_PLAIN,
    UNKNOWN,
    Super,
    behind,
    each_class,
    inside,
    is_bound_getter,
    is_iterator_in_c,
    package_of,
    readers_among,
)
from .namespaces import Namespaces
from .places import Content, Item, Live, Parts, Referent, TypeOf
from .repeats import Key, Seen
from .stand_ins import (
    asks_openly,
    calls_unseen,
    has_size,
    is_harmless,
    is_plain,
    is_seen_by_modes,
    may_tell_apart,
    tells_apart,
)
from .static_objects import StaticObjects
from .stores import Stores
from .torch_settings import OTHERS

__all__ = ["Reads"]

_OURS = __name__.partition(".")[0]
# What of ours looks on while a function runs.
_WATCHING = tuple(
    f"{_OURS}.{room}"
    for room in (
        "record.",
        "interpose.",
        "device.",
        "simulate.",
        "compiling.",
        "graph.",
        "call.signature",
        "forking",
        "stats",
    )
)


_RESULT: Any = object()
# What a mode of ours calls for the function.
_FOR_FUNCTION = (*OPEN_IN_TORCH, "torch._tensor_str")
# What of ours calls the function.
_CALLING = (f"{_OURS}.call.", f"{_OURS}.analyze.")


def _codes(found: Iterable[Any]) -> dict[int, types.CodeType]:
    """Those of what is a function in Python."""
    return {address(f.__code__): f.__code__ for f in found if type(f) is types.FunctionType}


def _codes_of_module(*names: str) -> dict[int, types.CodeType]:
    return _codes(map(raw.namespace(MODULE).get, names))


_CALL_OF_MODULE = _codes_of_module("_wrapped_call_impl")
# By name: torch's own part in a call of a module, and what is called whenever an object goes.
_QUIET_CODES = (
    _codes_of_module("__init__", "_call_impl", "__setattr__", "__delattr__")
    | _codes(
        part
        for name, member in vars(weakref.finalize).items()
        if name not in ("alive", "detach", "peek")  # which ask whether an object lives
        for part in (member, getattr(member, "fget", None), getattr(member, "fset", None))
    )
    | {
        address(const): const
        for weak in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
        for const in weak.__init__.__code__.co_consts
        if type(const) is types.CodeType
    }
)
_PASSING = _codes_of_module("_wrapped_call_impl", "_call_impl")
_GETATTR_OF_MODULE = _codes_of_module("__getattr__")
_MODULES_IN_MODULE = _codes_of_module("named_modules")
# Of `@contextmanager`: what torch makes with it and uses itself holds nothing of the program's.
_CONTEXT_MANAGERS = _codes(
    vars(cls).get(name)
    for cls in contextlib._GeneratorContextManager.__mro__
    for name in ("__init__", "__enter__", "__exit__")
) | _codes([no_garbage_collection])  # the function around each of them


# From Python 3.11 on.
_exception = getattr(sys, "exception", sys.exc_info)


# A function that is looked at as one of the program is.
_OF_PROBE: dict[str, Any] = {"__name__": "probe"}
exec(compile("def probe(): pass", "<gfxgraph>", "exec"), _OF_PROBE)
_probe: Callable[[], None] = _OF_PROBE["probe"]


class Reaches(Protocol):
    """State in Python that is put back without what was read."""

    def reaches(self, item: Any, key: Any) -> bool: ...


_ACQUIRING = ("acquire", "acquire_lock")
_GIVING_BACK = ("__enter__", "release", "release_lock")  # who enters one leaves it


class Reads(Alike):
    """The places that the recorded run has read.

    Args:
        roots: name -> object: the function, and objects among its arguments.
        fresh, given: see :class:`~gfxgraph.graph.lookups.Lookups`. Default: nothing.
        stores: notes where the run stores something. Default: nobody asks.

    Attributes:
        failed: why not all was seen; ``""``: it was.
        refusal: the same, if it reads what nobody can see; it says where.
        hears_all: whether instructions that read nothing matter as well now.
        left_out: a frame that runs as one did before; nothing in it is looked at.
        is_doubtful: whether frames may have been left out that did something else.
        locks: by address, the names and the locks from outside that the run takes and releases.
        passages: what the operations of frames do; ``None``: all operations are seen.
        closed: how containers are reached that belong to objects whose code nobody looks at, and
            these.
        older: where objects are that were there before the run, as far as somebody else knows.
        handled: which code of the function has caught which errors.
        answers: what torch tells the run, with sizes kept back; ``None``: they are not.
        stops: whether to end the run by the refusal, before the instruction that it is about:
            nobody could put back what that does to an object in C.
    """

    stops = False

    def __init__(
        self,
        roots: dict[str, object],
        fresh: Sequence[object] = (),
        given: StaticObjects | None = None,
        outside: Callable[[], int] | None = None,
        stores: Stores | None = None,
    ) -> None:
        super().__init__(fresh, StaticObjects() if given is None else given, outside, stores)
        self.failed = ""
        self.refusal: CaptureError | None = None
        self._is_final = self._is_told = self._is_importing = False
        self.locks: dict[int, tuple[str, Any]] = {}
        self._acquired: set[int] = set()
        self.hears_all = self.is_doubtful = self._is_unlike = False
        self.handled: list[tuple[types.CodeType, type]] = []
        self.answers: Answers | None = None
        self.passages: Passages | None = None
        # By the address of code, whether a frame of it has done much.
        self._large: dict[int, bool] = {}
        self._frames: dict[int, _Frame] = {}
        # The code of all frames that have begun, in order, but for closed code.
        self._started: list[types.CodeType] = []
        self.left_out: types.FrameType | None = None
        self._now: _Frame | None = None
        self._collecting: _Frame | None = None
        # Frames of generators that code in C writes texts of.
        self._written: set[int] = set()
        self._stack = Stack()
        self._acting = Acting()
        self.closed: Collection[tuple[str, Any]] = ()
        self.older: Collection[int] = ()
        # By the address of the globals, and the name.
        self._named: dict[tuple[int, str], Any] = {}
        # As the program has set them; the run may set others meanwhile.
        self._filters: Live
        self._loud_filters: Live
        # By the address of the globals of a caller, which are kept: see _who_is().
        self._callers: dict[int, tuple[bool | None, Any]] = {}
        self.roots = roots

    def importing(self, load: Callable[..., Any], name: str, *args: Any, **options: Any) -> Any:
        """In place of ``__import__``, which is ``load``: what a new module does is not looked at.

        It takes a hundred times as long otherwise. For runs that no graph is made of.
        """
        if self._is_importing or name in sys.modules:
            return load(name, *args, **options)
        self._is_importing = True
        self._repeats.doubts += 1
        try:
            return load(name, *args, **options)
        finally:
            self._is_importing = False

    def recording(self) -> AbstractContextManager[None]:
        """See what this thread reads inside."""
        return _Recording(self, self._recording())

    @contextmanager
    def _recording(self) -> Iterator[None]:
        settings = itertools.chain(*OTHERS.values(), in_c.errors_of_numpy())
        self._settings_before = {name: get() for name, get in settings}
        for name, root in self.roots.items():
            self._know(root, name)
        self._call_of_root(next(iter(self.roots.values()), None))
        before: Namespaces | None = None
        try:
            if not self._stack.is_known:
                self._refuse("gfxgraph does not know where this Python keeps variables")
            # Callbacks of a collection are not what the function does.
            with no_garbage_collection():
                before = Namespaces(self.closed)
                lift = lift_among(list(self.roots.values()))
                written = () if lift is None else lift.slots.values()
                older = {address(owner_of(slot.container)) for slot in written}
                self._since = Since(older.union(self.older, [address(MISSING)]))
                self._filters = Live("warnings.filters", ("warnings",), registries.filters)
                self._loud_filters = Live(
                    "warnings.filters", ("warnings in C",), registries.loud_filters
                )
                with listening(self):
                    _probe()
                    if not self._is_told:
                        self.failed = self.failed or (
                            "the call comes from a callback of a debugger or profiler, in which "
                            "Python reports no events"
                        )
                    yield
                if self.left_out is not None:
                    self.failed = self.failed or "Python has not told of the end of a function"
        finally:
            self.stores.is_complete &= not self.failed or self._is_final
            for place in reversed(self._set_in_c.values()):
                if place.put_back():
                    what = f"each call sets {place.path}"
                    self.refusal = self.refusal or explain("python-state", what, place.where)
            self._set_in_c.clear()
            self._read_order()
            read = [place.held for place in self.places.values() if isinstance(place, Content)]
            self.stores.meet(value for _, value in itertools.chain.from_iterable(read))
            self.stores.meet(value for value, _ in self._known.values())
            if before is not None:
                before.settle(self.places)
                before.add_changed(self.places)
            if self.passages is not None:
                self.passages.look_again()
            left_out = self._repeats.left_out()
            self.is_doubtful = self._is_unlike or any(map(self._has_changed_unseen, left_out))
            # Nothing of the run's own is to live on.
            since, self._since = self._since, None
            self._repeats.stop()
            for part in (
                self._read_whole,
                self._frames,
                self._known,
                self._functions,
                self._types,
                self._spaces,
                self._ways,
                self._members,
                self._methods_in_c,
                self._callees,
                self._named,
                self._callers,
                self._sets,
                self._before,
                self._written,
                self._started,
            ):
                part.clear()
            self._now = self.left_out = None
            if since is not None:
                since.end()

    def _read_order(self) -> None:
        """A key that a run takes out of a dict and stores again becomes the last one. If that does
        not change the dict, the key was the last one before: the run depends on the order."""
        for at in self._taken_from:
            content, _ = self._before.get(at, (None, None))
            if content is None or not raw.is_a(content.container.item, dict):
                continue
            if ("content", at) not in self.places and not content.container.changes():
                self._read_new(("content", at), content)

    def _call_of_root(self, function: Any) -> None:
        """What decides which code a call of the function runs: no instruction that we see asks."""
        while raw.is_a(function, functools.partial) or package_of(type(function)) == _OURS:
            if not raw.is_a(function, functools.partial):
                function = (raw.attributes(function) or {}).get("__wrapped__")
                continue
            self._place_of_parts(function)
            function = raw.namespace(functools.partial)["func"].__get__(function)
        self._class_asked(function)

    def _has_changed_unseen(self, place: Any) -> bool:
        """Whether a place holds something else, though no instruction has stored it there."""
        if place.holds():
            return False
        within = [getattr(place, name, None) for name in ("container", "own", "space")]
        return self._stored.isdisjoint(map(address, within))

    def require_seen(self) -> None:
        """Raise if not all that the run reads is, or was, seen.

        Raises:
            CaptureError: it is not.
        """
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if self.failed:
            raise CaptureError(
                f"what it reads in Python could not be seen, so a later change could not be seen "
                f"either: {self.failed}",
                transient=not self._is_final,
            )

    def settle(self) -> None:
        """Forget what looked on: its replacements are gone, and what was there before is back."""
        known: dict[int, bool] = {}  # by class; of functions it depends on the module
        for key, place in self.places.items():
            if not isinstance(place, Item):
                continue
            kind = type(place.value)
            is_ours = known.get(address(kind))
            if is_ours is None:
                is_ours = _is_ours(place.value)
                if kind is not types.FunctionType:
                    known[address(kind)] = is_ours
            if is_ours:
                self.places[key] = Item.of(place.path, place.container, place.key)

    def changes(self) -> list[str]:
        """Names of places that hold something else by now."""
        of_hooks = (c.name(key) for c in self.no_hooks.values() for key in c.changes())
        return [name for place in self.places.values() for name in place.changes()] + [*of_hooks]

    def changed_by_others(self) -> list[str]:
        """Those of :meth:`changes` that another thread has changed, and no run."""
        of_others = (place for place in self.places.values() if not self.stores.touch(place))
        return [name for place in of_others for name in place.changes()]

    def put_back(self, python: Reaches) -> tuple[list[str], list[Slot]]:
        """Put back what the run has changed and ``python`` does not know.

        Returns:
            Names of it, and the places over which the function may be lifted; none: it cannot be.
        """
        changed = [
            place
            for place in self.places.values()
            if isinstance(place, (Item, Content, TypeOf, Parts))
            and not place.holds()
            and self.stores.touch(place)
            and not (
                (isinstance(place, Item) and python.reaches(place.container, place.key))
                or (isinstance(place, Content) and python.reaches(place.container.item, None))
            )
        ]
        names = [name for place in changed for name in place.changes()]
        items: list[tuple[Container, Any]] = []
        for place in changed:
            if isinstance(place, Content):
                items += [(place.container, key) for key in place.container.changes()]
            place.put_back()
            if isinstance(place, Item):
                items.append((place.as_it_was(), place.key))
        is_all = all(isinstance(place, (Item, Content)) for place in changed)
        slots = self.slots([items]) if is_all else []
        paths = {place.identity: place.path for place in changed}
        for slot in slots:
            slot.path = paths.get(slot.identity, slot.path)
        return names, slots

    def renew(self, functions: set[int]) -> None:
        """Hold to the code that functions have now, by address: they had other code in the run."""
        for place in self.places.values():
            if isinstance(place, Parts) and address(place.function) in functions:
                place.renew()

    def slots(self, changed: Iterable[list[tuple[Container, Any]] | None]) -> list[Slot]:
        """The places that a run has changed, as far as graphs can store them again.

        Args:
            changed: containers as they were before the run, with the keys; ``None``: more than
                these has changed.
        """
        found: list[tuple[Container, Any]] = []
        for part in changed:
            if part is None:
                return []
            found += part
        return slots_of(found, self.places, self._taken_from) or []

    def where(self, of_program: bool = False) -> tuple[str, int]:
        """File and line of the code that reads now; ``("", 0)``: none does.

        ``of_program``: of what has called torch, where that is code of torch.
        """
        return ("", 0) if self._now is None else self._now.where(of_program)

    # Frames.

    def is_quiet(self, code: types.CodeType) -> bool:
        """Whether it never matters that ``code`` ends."""
        at = address(code)
        return at in _QUIET_CODES or at in _CALL_OF_MODULE or at in _GETATTR_OF_MODULE

    def pass_over(self, frame: types.FrameType) -> None:
        """A frame begins inside of one that is left out."""
        self._started.append(frame.f_code)

    def enter(self, frame: types.FrameType) -> bool:
        """``frame`` begins to run; gives whether its instructions matter."""
        code = frame.f_code
        self._started.append(code)
        at = address(code)
        if code is _probe.__code__:
            self._is_told = True
            return False
        if at in _QUIET_CODES or self._collecting is not None or self._is_importing:
            return False
        if not code.co_flags & inspect.CO_OPTIMIZED and address(frame.f_back) not in self._frames:
            return False  # the body of a module; that of a class and what eval() runs matter
        name = str(frame.f_globals.get("__name__", ""))
        if is_closed(name) and not self._is_called_by_seen(frame, name):
            return False
        if self._is_for_us(frame):
            return False
        try:
            if is_closed(name):
                self._hear(frame, name)
                return self._is_looked_at(frame, name) and self._look_at(frame)
            if at in _CONTEXT_MANAGERS and self._is_of_closed(frame):
                return False
            if at in _CALL_OF_MODULE:
                (module,) = self._arguments(frame, "self")
                if self._is_state(module):
                    self._call_of_module(module)
                return False
            if at in _GETATTR_OF_MODULE:
                self._child_of_module(*self._arguments(frame, "self", "name"))
                return False
            if at in _MODULES_IN_MODULE:
                module, *_ = self._arguments(frame, "self")
                if self._is_state(module):
                    self._modules_of(module)
                    return False
            return self._look_at(frame)
        except Exception as error:
            if interrupt_in(error):
                raise
            self._fail(error)
        return True

    def _look_at(self, frame: types.FrameType) -> bool:
        """``frame`` is one of the program's; gives whether it may read anything new."""
        known = self._frames[address(frame)] = _Frame(frame)
        for function in self._functions_with(frame.f_code):  # also where several have this code
            self._place_of_parts(function)
            if function.__kwdefaults__:  # of another one, where the frame is left out
                self._know(function.__kwdefaults__, self._path(function))
                self._content(function.__kwdefaults__, 0, self._path(function))
                self._common.add(address(function.__kwdefaults__))
        if not self.hears_all:
            known.key = key = self._repeats.begin(frame, self._stack, self)
            if key is not None:
                known.begun = self._passage(known, key)
                seen = self._repeats.repeated(key)
                if seen is not None or self._is_alike(key):
                    known.key = None
                    self.left_out = frame
                    self._look_away(known, seen)
                    return False
        self._begin(frame)
        return True

    def _passage(self, known: _Frame, key: Key) -> Begun | None:
        """A frame with this key begins; ``None``: what its operations do will have to be seen."""
        passages, begun = self.passages, None
        if passages is not None:
            known.operations, known.since = passages.operations, len(self._started)
            # Settings decide which kernels run. Who may set any has them in the key.
            is_settled = self.asks_settings or not self.stores.sets_settings
            if is_settled and self._large.get(address(known.frame.f_code), True):
                begun = passages.begin(key.tensors)
        key.tensors.clear()  # nothing of ours is to keep them
        return begun

    def _look_away(self, known: _Frame, seen: Seen | None) -> None:
        """A frame is left out. Where it is known what its operations do, they are not seen."""
        if self.passages is None or known.begun is None or seen is None or seen.done is None:
            return
        if self.passages.does_it_again(known.begun, seen.done[0]):
            known.again = seen
            self.passages.look_away()

    def _look_again(self, known: _Frame, value: object) -> None:
        """The end of a frame whose operations were not seen."""
        if known.again is None or self.passages is None:
            return
        self.passages.look_again()
        assert known.begun is not None and known.again.done is not None
        done, outcome, started = known.again.done
        now = self._repeats.outcome(known.frame, value, self._stack, self)
        # Python may run other code as well that no instruction calls, such as what hears that an
        # object has gone. That was not looked at.
        began = self._started[known.since :]
        is_same = began == started or Counter(began) <= Counter(started)
        is_same = is_same and now is not None and now[0] == outcome
        if now is None or not (is_same and self.passages.did_it_again(known.begun, done, now[1])):
            self._is_unlike = True

    def _end(self, known: _Frame, value: object) -> None:
        """The end of a frame that was looked at."""
        if known.key is None:
            return
        seen, passages, begun = self._repeats.end(known.key), self.passages, known.begun
        if passages is None:
            return
        at, is_large = address(known.frame.f_code), passages.is_large(known.operations)
        self._large[at] = is_large or self._large.get(at, False)
        if is_large and seen is not None and begun is not None and passages.only_computed(begun):
            now = self._repeats.outcome(known.frame, value, self._stack, self)
            done = None if now is None else passages.done(begun, now[1])
            if now is not None and done is not None:
                seen.done = done, now[0], self._started[known.since :]

    def _is_called_by_seen(self, frame: types.FrameType, name: str) -> bool:
        """Whether code that is looked at has called a frame of closed code, or what of the same
        package calls it, a mode of ours between them."""
        caller, package = frame.f_back, name.partition(".")[0]
        while caller is not None and not self.sees(caller):
            of = str(caller.f_globals.get("__name__", "")).partition(".")[0]
            if of != package and of != _OURS:
                return False
            caller = caller.f_back
        return caller is not None

    def _is_looked_at(self, frame: types.FrameType, name: str) -> bool:
        is_part = frame.f_code.co_name.startswith("<") and self.sees(frame.f_back)
        return is_part or heard.is_looked_at(name, frame.f_code)

    def _hear(self, frame: types.FrameType, name: str) -> None:
        """Note what closed code asks for that the program can change."""
        if name == "abc":
            self._registered_classes()
        question = heard.asked(frame, name)
        if question is not None:
            self._live(*question)
        for path, table in heard.tables(name, frame.f_code):
            self._content(self._know(table, path), 0)

    def _is_for_us(self, frame: types.FrameType) -> bool:
        """Whether code of torch or of Python runs since what looks on has called it."""
        if str(frame.f_globals.get("__name__", "")).startswith(_FOR_FUNCTION):
            return False  # called by a mode of ours for the function
        caller: types.FrameType | None = frame
        while caller is not None:
            space = caller.f_globals
            known = self._callers.get(address(space))
            if known is None:
                name = str(space.get("__name__", ""))
                known = self._callers[address(space)] = _who_is(name), space
            if known[0] is not None:
                return known[0]
            caller = caller.f_back
        return False

    def _arguments(self, frame: types.FrameType, *names: str) -> list[Any]:
        """The first arguments of a frame that begins."""
        words = self._stack.words(frame)
        if words is None:
            return [frame.f_locals[name] for name in names]
        return [self._stack.value(words, at) for at in range(len(names))]

    def _is_of_closed(self, frame: types.FrameType) -> bool:
        """Whether closed code uses a context manager of closed code, of which ``frame`` is part."""
        user: types.FrameType | None = frame
        while user is not None and address(user.f_code) in _CONTEXT_MANAGERS:
            user = user.f_back
        if user is None or not is_closed(str(user.f_globals.get("__name__", ""))):
            return False
        variables = frame.f_locals
        function = variables.get("func")
        if type(function) is types.FunctionType:
            return is_closed(str(function.__globals__.get("__name__", "")))
        return "self" in variables and not self._is_state(variables["self"])

    def sees(self, frame: types.FrameType | None) -> bool:
        """Whether the instructions of ``frame`` are looked at."""
        known = self._frames.get(address(frame))
        return known is not None and known.frame is frame

    def instruction(self, frame: types.FrameType, offset: int) -> bool:
        """The instruction at ``offset`` is about to run; see :class:`~.listening.Listener`."""
        known = self._frames.get(address(frame))
        if known is None or known.frame is not frame:
            return False
        if known is self._collecting:
            self._collect(None)
        step = known.steps.get(offset)
        if step is None:
            return False
        try:
            self._now = known
            value = _STEPS[step[0]](self, known, *step[1:])
            # A global variable is a place from now on, and its value lies on the stack.
            is_settled = (
                step[0] == "global"
                and bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
                and type(value) is not Counted
            )
            if value is UNKNOWN or is_settled:
                known.made.pop(offset, None)
            else:
                known.made[offset] = value
        except Exception as error:
            if interrupt_in(error):
                raise
            self._fail(error)
            return False
        if self.stops and self.refusal is not None:
            self.stops = False
            raise self.refusal
        return is_settled and value is not UNKNOWN

    def leave(self, frame: types.FrameType, value: object) -> None:
        """``frame`` returns or yields ``value``.

        Nothing is raised here: the frame may be one that puts something back.
        """
        try:
            self._leave(frame, value)
        except Exception as error:
            if interrupt_in(error):
                raise
            self._fail(error)

    def _leave(self, frame: types.FrameType, value: object) -> None:
        was_seen = self.sees(frame)
        if was_seen:
            if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                self._leave_space(frame)
            ended = self._frames.pop(address(frame))
            if ended is self._collecting:
                self._collect(None)
            if frame is self.left_out:
                self.left_out = None
                self._look_again(ended, value)
            else:
                self._end(ended, value)
        caller = frame.f_back
        known = None if caller is None else self._frames.get(address(caller))
        if known is not None and known.frame is not caller:
            known = None
        if was_seen:
            # A reference to the ended frame would keep its variables. One of them may be a guard
            # of torch's, which restores the excluded dispatch keys when it is released.
            self._now = known
        if value is None:
            return
        if address(frame) in self._written:
            self._write(value)
        if address(type(value)) not in HOLLOW:
            taker = self._taker(frame)
            if was_seen and taker is _RESULT:
                self._content(value, DEEP, "the result")
            elif taker is None:  # code in C, which may compare it, or that is not looked at
                self._hand_out(value)
                if was_seen:
                    self._everything(value)
                    self._content(value, DEEP)
                if known is not None and known.readers:
                    self._refuse(self._by_readers([*known.readers, value]))

    def _leave_space(self, frame: types.FrameType) -> None:
        """The body of a class has run, or what "exec()" runs."""
        if frame.f_locals is not frame.f_globals:
            self._class_made((), inside(frame.f_locals))

    def _taker(self, inner: types.FrameType) -> Any:
        """Who gets a value: the frame that is looked at, or :data:`_RESULT`: who has called the
        function; ``None``: nobody looks at what takes it.

        The call of a module passes on what ``forward`` returns.
        """
        caller = inner.f_back
        while caller is not None and address(caller.f_code) in _PASSING:
            caller = caller.f_back
        if caller is None:
            return None
        if str(caller.f_globals.get("__name__", "")).startswith(_CALLING):
            return _RESULT
        known = self._frames.get(address(caller))
        if address(inner.f_code) in _PASSING:
            return known or caller  # it was asked when that returned
        is_known = known is not None and known.frame is caller
        return (
            known if known is not None and is_known and _takes(known, inner, self._stack) else None
        )

    def _collect(self, frame: _Frame | None) -> None:
        """Finalizers run until the next instruction of ``frame``; ``None``: they are done."""
        self._collecting, self.hears_all = frame, frame is not None
        self._repeats.doubts += 1

    def _fail(self, error: Exception) -> None:
        self.failed = self.failed or one_line(error)

    def _refuse(self, what: str) -> None:
        """Say what of the program's own code cannot be seen."""
        if what and not self.failed:
            self.failed, self._is_final = what, True

    def _hidden(self, what: str) -> None:
        if not self.failed:
            self.refusal = explain("hidden-state", what, users_line())
            self.failed, self._is_final = f"{what}, in C", True

    def _begin(self, frame: types.FrameType) -> None:
        code = frame.f_code
        functions = self._functions_with(code)
        is_special = code.co_name.startswith("__")  # also where a decorator holds it
        if is_special or not functions:
            # Who is called through C, as operators and `for` do, is found in its class.
            cls = type(_first_argument(frame))
            if (address(cls), address(code)) not in self._callees:
                self._callees[address(cls), address(code)] = cls, code
                for name in _names_in(cls, code) or (code.co_name,):
                    self._lookup(cls, name)
        for function in functions or self._functions_with(code):
            self._place_of_parts(function)
            for part in (function.__defaults__, function.__kwdefaults__):
                if part:
                    self._know(part, self._path(function))
                    self._content(part, 1, self._path(function))

    # Steps: what an instruction reads, and the value that it makes.

    def _value(self, frame: _Frame, operand: bytecode.Operand) -> Any:
        if operand is None:
            return UNKNOWN
        kind, what = operand[0], operand[1]
        if kind == "local":
            # What lies on the stack is taken, also if something else was bound meanwhile.
            value = self._on_stack(frame, operand[2:])
            return self._variable_of(frame, what) if value is UNKNOWN else value
        if kind == "const":
            return what
        if kind == "made":
            value = frame.made.get(what, UNKNOWN)
            return self._on_stack(frame, operand[2:]) if value is UNKNOWN else value
        if kind == "slot":
            return self._on_stack(frame, operand[1:])
        if kind == "super":
            args = [] if what is None else [self._value(frame, part) for part in what]
            return self._super(frame, args)
        return UNKNOWN

    def _variable_of(self, frame: _Frame, name: str, is_shared: bool = False) -> Any:
        """The value of a variable; ``is_shared``: by functions, so that it lies in a cell."""
        at = frame.places.get(name)
        words = None if at is None else self._words(frame)
        if words is None or at is None:
            return frame.frame.f_locals.get(name, UNKNOWN)
        value = self._stack.value(words, at)
        if is_shared and type(value) is types.CellType:
            value = item_at(value, 0)
        return UNKNOWN if value is NOTHING or value is MISSING else value

    def _on_stack(self, frame: _Frame, slots: tuple[int, ...]) -> Any:
        """Give the value of the first slot that has one, such as a result of C code."""
        words = self._words(frame) if slots else None
        if words is not None:
            for slot in slots:
                value = self._stack.value(words, frame.bottom + slot)
                if value is not NOTHING:
                    return value
        return UNKNOWN

    def _words(self, frame: _Frame) -> Any:
        if frame.words is None:
            frame.words = self._stack.words(frame.frame)
        return frame.words

    def _global(self, frame: _Frame, name: str) -> Any:
        space = frame.frame.f_globals
        if not frame.frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            own = frame.frame.f_locals
            if own is not space:
                value = self._item_of(own, name)
                if value is not UNKNOWN or not raw.is_a(own, dict):
                    return value
        at = address(space), name
        known = self._named.get(at, UNKNOWN)
        if not self._counting and dict.get(space, name, MISSING) is known:
            return known
        self._common.add(address(space))
        value = self._read(space, name, name)
        if value is MISSING:
            self._common.add(address(frame.frame.f_builtins))
            value = self._read(frame.frame.f_builtins, name, name)
        elif not self._counting:
            self._named[at] = value
        return self._or_unknown(self._is_for_all(value))

    def _cell(self, frame: _Frame, name: str) -> Any:
        value = self._variable_of(frame, name, is_shared=True)
        code = frame.frame.f_code
        if name not in code.co_freevars:
            return value
        cell = self._variable_of(frame, name)
        if type(cell) is types.CellType and cell is not value:
            self._variable_around(name, cell)
        elif code.co_flags & inspect.CO_OPTIMIZED:  # that of the body of a class is read before
            functions = self._functions_with(code)
            if not functions:  # such as a comprehension, where it is not known how frames lie
                self._refuse(f"{name}, a variable of a function around")
            for function in functions:
                cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
                held = item_at(cell, 0)
                if held is value or (held is MISSING and value is UNKNOWN):
                    self._common.add(address(cell))
                    self._is_for_all(self._read(cell, 0, name))
        return value

    def _variable_around(self, name: str, cell: types.CellType) -> None:
        """A variable is read that functions share."""
        if not self._is_made(cell):  # also where a function that the run makes reads it
            self._known.setdefault(address(cell), (cell, name))
            self._common.add(address(cell))
            self._is_for_all(self._read(cell, 0, name))

    def _attribute_step(self, frame: _Frame, base: bytecode.Operand, name: str) -> Any:
        item = self._value(frame, base)
        if item is UNKNOWN:
            self._given.hand_out_all()
            return UNKNOWN
        if self.answers is not None and may_tell_apart(item, name):
            self._ask_sizes([item])
        value = self._attribute(item, name)
        if item in self._given and not _is_called_at_once(frame.frame):
            self._hand_out_owner(value)
        return value

    def _hand_out_owner(self, value: Any) -> None:
        """A method in C that is kept reads its owner wherever it is called."""
        if raw.is_a(value, types.BuiltinFunctionType, types.MethodWrapperType):
            self._hand_out(value.__self__)

    def _unset(self, frame: _Frame, base: bytecode.Operand, name: str) -> Any:
        item = behind(self._value(frame, base), name)
        if item is not UNKNOWN:
            self._lookup(type(item), "__delattr__")
        return self._delattr(frame, [item, name])

    def _store(self, frame: _Frame, kind: str, *operands: Any) -> Any:
        """What is stored somewhere was not read there: what asks for it later asks for that."""
        known = len(self.places)
        item = self._value(frame, operands[0]) if kind in ("attribute", "item") else None
        if kind == "attribute":
            item = behind(item, operands[-1])
            if raw.is_a(item, torch.Tensor):  # what shows on another name of it
                _tell_apart([item])
        if kind == "item":
            self._keep_as_it_was(item)
        _STEPS[kind](self, frame, *operands)
        self._is_stored(item)
        if self._given and kind == "item" and not raw.is_a(item, torch.Tensor):
            is_slice = type(self._value(frame, operands[1])) is slice
            if is_slice or not raw.is_a(item, dict, list):
                self._given.hand_out_all()  # nobody looks at what is stored there
        if kind == "attribute":
            self._note_line(item, operands[-1])
        elif kind == "item":
            self._note_line(item, self._value(frame, operands[1]))
        elif kind == "global":
            self._note_line(frame.frame.f_globals, operands[-1])
        elif kind == "cell":
            self._note_line(self._variable_of(frame, operands[-1]))
        if kind == "attribute" and (item is UNKNOWN or raw.is_a(item, type)):
            self._forget_lookups()
        elif kind == "global":
            self._repeats.stop()
        elif kind not in ("attribute", "item") and not _is_own_variable(frame, kind, operands[-1]):
            self._repeats.doubts += 1
        if kind in ("attribute", "item") and not self._stores_plainly(item, kind):
            return UNKNOWN
        key = self._value(frame, operands[1]) if kind == "item" else operands[-1]
        self._mark_stored(known, item, key, kind)
        if kind == "attribute" and raw.is_a(item, MODULE) and self._is_state(item):
            # What is a parameter by now is stored elsewhere, or not at all.
            own = raw.attributes(item) or {}
            for name in REGISTRIES:
                registry: Any = own.get(name)
                if raw.is_a(registry, dict) and not dict.__contains__(registry, key):
                    self._read(registry, key, f"{self._path(item)}.{key}")
        return UNKNOWN

    def _forget(self, frame: _Frame, kind: str, name: str) -> Any:
        is_global = kind == "global"
        self._note_line(frame.frame.f_globals if is_global else self._variable_of(frame, name))
        self._repeats.doubts += 1
        if is_global:
            self._repeats.stop()
        _STEPS[kind](self, frame, name)
        return UNKNOWN

    def _count(self, frame: _Frame, *step: Any) -> Any:
        """A constant is added to what is read, and the sum is stored there."""
        self._counting = self._has_counted = True
        self._repeats.doubts += 1
        try:
            return _STEPS[step[0]](self, frame, *step[1:])
        finally:
            self._counting = False

    def _advance(self, frame: _Frame, *step: Any) -> Any:
        return self._count(frame, "store", *step)

    def _mark_stored(self, known: int, item: Any, key: Any, kind: str) -> None:
        for identity in itertools.islice(reversed(self.places), len(self.places) - known):
            place = self.places[identity]
            if kind == "cell":
                place.stored = isinstance(place, Item) and type(place.container) is types.CellType
            elif kind == "global" or not raw.is_a(item, type):
                is_there = isinstance(place, Live) or (
                    isinstance(place, Item) and not raw.is_a(place.container, type)
                )
                place.stored = is_there and identity[-1] in (key, raw.token(key))
            else:
                place.stored = identity == ("item", address(item), raw.token(key))

    def _item(self, frame: _Frame, base: bytecode.Operand, key: bytecode.Operand) -> Any:
        item, at = self._value(frame, base), self._value(frame, key)
        if (
            self.answers is not None
            and not raw.is_a(item, tuple, list, dict, str, torch.Tensor)
            and type(self._lookup(type(item), "__getitem__")) is not types.FunctionType
        ):
            self._ask_sizes([at], of_tensors=True)
        self._hand_out(at)
        if item is UNKNOWN:
            self._given.hand_out_all()
            return UNKNOWN
        self._meets(item, at)
        return self._item_of(item, at)

    def _delete(self, frame: _Frame, base: bytecode.Operand, key: bytecode.Operand) -> Any:
        self._taken_from.add(address(self._value(frame, base)))
        self._keep_as_it_was(self._value(frame, base))
        self._note_line(self._value(frame, base), self._value(frame, key))
        self._repeats.doubts += 1
        return self._item(frame, base, key)

    def _contains(self, frame: _Frame, base: bytecode.Operand, key: bytecode.Operand) -> Any:
        item, at = self._value(frame, base), self._value(frame, key)
        if self.answers is not None and not raw.is_a(item, tuple, list, dict, set, frozenset):
            self._ask_sizes([at])
        if raw.is_a(at, torch.Tensor):
            _tell_apart([at])
        self._meets(item, at)
        self._hand_out(at, *(() if raw.is_a(item, dict) else (item,)))
        self._special(at)
        if type(at) is float and at != at:
            self._refuse("which object a NaN is, which equals no other")
        if raw.is_a(item, dict) and at is not UNKNOWN and raw.is_scalar(at):
            if self._is_state(item):
                self._read(item, at, f"{self._path(item)}[{raw.written_as(at)}]")
        else:
            self._content(at, DEEP)
            self._content(item, DEEP)
        return UNKNOWN

    def _is(self, frame: _Frame, *both: bytecode.Operand) -> Any:
        """A counter is a number to who compares it with other objects than ``None``."""
        values = [self._value(frame, operand) for operand in both]
        self._ask_sizes(values)
        is_asked = any(value in self._given or raw.is_a(value, *CHANGING) for value in values)
        if is_asked and not any(value is None for value in values):
            self._given.hand_out_all()  # which of the arguments are one is in no key
        one, other = values
        if all(value is UNKNOWN or raw.is_a(value, torch.Tensor) for value in values):
            _tell_apart(values)
        # What a library asks, as copy.deepcopy() does, is whether it got the same back.
        if _is_one_by_chance(one, other) and not frame.is_of_library():
            self._refuse("whether equal values are one object (`is`). Compare them with `==`")
        if self._is_of_call(other):
            one, other = other, one
        is_like = type(one) is type(other) and not self._is_of_call(other)
        if is_like and self._is_of_call(one) and self._is_state(other):
            self._refuse_identity()
        # One tuple that comes twice is two in a static call.
        if one is not other and type(one) is tuple and all(map(self._is_of_call, values)):
            self._refuse_identity()
        for value in values:
            if type(value) is Counted and not any(other is None for other in values):
                value.use()
        return UNKNOWN

    def _are_one(self, *values: Any) -> None:
        """It is asked which tensors these are, or which share memory."""
        interceptor = current_interceptor()
        if interceptor is not None and all(raw.is_a(value, torch.Tensor) for value in values):
            interceptor.laid_out("sharing", "whether two tensors are one")
        self._meets(list(values[:1]), *values[1:])

    def _meets(self, container: Any, *others: Any) -> None:
        """Refuse if a collection is compared with one of these, and one of both is or holds a
        static input, the other one a tensor from outside: by which objects they are, or by hashes,
        which are places in memory."""
        if not raw.is_a(container, *_COLLECTIONS):
            return
        given: set[int] = set()
        known: set[int] = set()
        for n, item in enumerate((*others, container)):
            if n == len(others) and not given and not known:
                return  # it may be large
            for tensor in _tensors_within(item):
                if address(tensor) in self._fresh:
                    given.add(n)
                elif self._is_state(tensor):
                    known.add(n)
        if any(given - {n} for n in known):
            self._refuse_identity()

    def _refuse_identity(self) -> None:
        what = "asks which object an argument is, and a static input is another"
        self._given.refuse(what, self.where())

    def _is_of_call(self, item: Any) -> bool:
        """Whether it is a tensor, an object or a container among the static arguments."""
        return address(item) in self._fresh or self._given.is_container(item)

    def _content_step(self, frame: _Frame, *bases: bytecode.Operand, depth: int = 1) -> Any:
        for base in bases:
            item = self._value(frame, base)
            if address(type(item)) not in HOLLOW:
                self._content(item, depth)
        return UNKNOWN

    def _operation(self, frame: _Frame, *bases: bytecode.Operand) -> Any:
        values = [self._value(frame, base) for base in bases]
        if any(raw.is_a(value, set, frozenset) for value in values):
            self._meets(*values)
        if self.answers is not None and not is_plain(values):
            self._ask_sizes(values, of_tensors=True)
        self._hand_out(*values)
        if raw.is_a(values[0], str, bytes):  # "%s" % item
            self._write(*values)
        return self._content_step(frame, *bases, depth=DEEP)

    def _text(self, frame: _Frame, base: bytecode.Operand) -> Any:
        item = self._value(frame, base)
        self._hand_out(item)
        self._write(item)
        return UNKNOWN

    def _augmented(self, frame: _Frame, *bases: bytecode.Operand) -> Any:
        item = self._value(frame, bases[0])
        if raw.is_a(item, *CHANGING):
            self._keep_as_it_was(item)
            self._note_line(item)
        return self._operation(frame, *bases)

    def _length(self, frame: _Frame, base: bytecode.Operand) -> Any:
        return self._len(frame, [self._value(frame, base)])

    def _builtin(self, frame: _Frame, name: str) -> Any:
        space = frame.frame.f_builtins
        self._common.add(address(space))
        self._read(space, name, name)
        return UNKNOWN

    def _import(
        self, frame: _Frame, name: str, names: bytecode.Operand, level: bytecode.Operand
    ) -> Any:
        self._builtin(frame, "__import__")
        found, dots = self._value(frame, names), self._value(frame, level)
        package = self._package(frame.frame.f_globals) if dots else MISSING
        return self._or_unknown(self._imported(name, found or (), package, dots))

    def _from(self, frame: _Frame, module: bytecode.Operand, name: str) -> Any:
        item = self._value(frame, module)
        return UNKNOWN if item is UNKNOWN else self._imported_from(item, name)

    def _match(
        self,
        frame: _Frame,
        on: bytecode.Operand,
        of: bytecode.Operand,
        names: bytecode.Operand,
        count: int,
    ) -> Any:
        item, cls = self._value(frame, on), self._value(frame, of)
        if item is UNKNOWN or not raw.is_a(cls, type):
            return UNKNOWN
        self._isinstance(frame, [item, cls])
        by_place = self._attribute_of_class(cls, "__match_args__") if count else ()
        by_name = names[1] if names is not None and names[0] == "const" else ()
        if raw.is_a(item, cls):
            for name in (*(by_place if type(by_place) is tuple else ())[:count], *by_name):
                self._attribute(item, name)
        elif type(cls) is not type:  # which may take it for one all the same
            self._hand_out(item)
        return UNKNOWN

    def _shape(self, frame: _Frame, on: bytecode.Operand) -> Any:
        """A pattern of a sequence or a mapping, which other classes can be registered as."""
        item = self._value(frame, on)
        self._class_asked(item)
        if item is not UNKNOWN and raw.is_mutable(type(item)):
            self._registered_classes()
        return self._content_step(frame, on)

    def _star(self, frame: _Frame, module: bytecode.Operand) -> Any:
        item = self._value(frame, module)
        if not raw.is_a(item, types.ModuleType):
            return UNKNOWN
        names = self._attribute(item, "__all__")
        self._content(names, 1)
        own = raw.attributes(item) or {}
        if names is UNKNOWN:
            self._content(self._know(own, self._path(item)), 0)
        for name in inside(names):
            if raw.is_scalar(name):
                self._attribute(item, name)
        return UNKNOWN

    def _enter(self, frame: _Frame, manager: bytecode.Operand) -> Any:
        item = self._value(frame, manager)
        self._note_lock(item, "__enter__")
        self._place_of_class(item)
        if item is UNKNOWN or raw.is_a(item, *NOT_PLAIN) or not self._is_state(item):
            return UNKNOWN
        for name in ("__enter__", "__exit__"):
            found = self._lookup(type(item), name)
            if type(found) is types.FunctionType and is_closed(_module_of(found)):
                self._closed_reads(item, found, MAX_NESTED)
        return UNKNOWN

    def _caught(self, frame: _Frame, error: bytecode.Operand, cls: bytecode.Operand) -> Any:
        raised = self._value(frame, error)
        if raised is not UNKNOWN:
            self._place_of_bases(raised if raw.is_a(raised, type) else type(raised))
        self._content(self._value(frame, cls), 1)
        return UNKNOWN

    def _spread(
        self,
        frame: _Frame,
        fn: bytecode.Operand,
        args: bytecode.Operand,
        keywords: bytecode.Operand,
    ) -> Any:
        given = [self._value(frame, operand) for operand in (args, keywords)]
        for item in given:
            self._content(item, 1)
        function = self._value(frame, fn)
        frame.used(fn, args, keywords)
        called = self._called_in_python(function, type(function))
        is_plain = type(given[0]) in (tuple, list) and type(given[1]) in (dict, type(UNKNOWN))
        if not is_plain or (called is not None and is_closed(_module_of(called))):
            self._hand_out(*(item for item in given if item is not UNKNOWN))
        positional = list(given[0]) if type(given[0]) in (tuple, list) else []
        has_keywords = given[1] is not UNKNOWN and bool(type(given[1]) is not dict or given[1])
        by_name = given[1].values() if type(given[1]) is dict else ()
        return self._called(frame, function, positional, has_keywords, [*positional, *by_name])

    def _call(
        self,
        frame: _Frame,
        fn: bytecode.Operand,
        args: tuple[bytecode.Operand, ...],
        names: tuple[str, ...],
    ) -> Any:
        function = self._value(frame, fn)
        given = [self._value(frame, operand) for operand in args]
        frame.used(fn, *args)
        positional = given[: len(given) - len(names)]
        return self._called(frame, function, positional, bool(names), given)

    def _called(
        self,
        frame: _Frame,
        function: Any,
        positional: list[Any],
        has_keywords: bool,
        given: Sequence[Any] = (),
    ) -> Any:
        kind = type(function)
        if self.answers is not None and not _hands_on(function):
            self._tells_unseen(function, given or positional)
        if function is UNKNOWN:
            self._hand_out(*given)
            for item in given:
                self._content(item, DEEP)
            return UNKNOWN
        frame.calls = None
        if kind is types.FunctionType:
            frame.calls = function.__code__
            if function is importlib.import_module:
                return self._module_called(given or positional)
            if is_import(function):
                return self._import_called(given or positional, has_keywords)
            self._run_by_name(function, given)
            self._asked_in_python(function, given)
            if is_closed(str(function.__globals__.get("__name__", ""))):
                self._hand_out(*given)
                self._may_be_written(given)
                if any(map(is_import, given)):  # as tree_map(__import__, names)
                    self._refuse(f"which modules {function.__name__}() imports")
                for item in given:
                    self._acting.meet(item)
            return UNKNOWN
        if kind is functools.partial:
            if self._is_state(function):
                self._place_of_parts(function)
            own = raw.namespace(functools.partial)
            inner, before = (own[part].__get__(function) for part in ("func", "args"))
            given = [*before, *given]
            self._acting.meet(inner, has_keywords or bool(function.keywords))
            return self._called(frame, inner, [*before, *positional], has_keywords, given)
        if kind is types.MethodType and (
            type(function.__func__) is functools._lru_cache_wrapper
            or address(type(function.__func__)) in _IN_C
        ):
            owner = function.__self__
            given = [owner, *(given if len(given) >= len(positional) else positional)]
            return self._called(frame, function.__func__, [owner, *positional], has_keywords, given)
        if kind is types.MethodType and in_c.is_function(function.__func__):
            method = str(function.__func__.__name__)
            self._asked_of(function.__self__, method, given, has_keywords)
        if kind is types.MethodType and type(function.__func__) is types.FunctionType:
            self._method_called(function, given)
            frame.calls = function.__func__.__code__
            return UNKNOWN
        if address(kind) in _IN_C and function.__name__ in _TO_NUMPY:
            self._calculates()  # with what it gives, maybe
        for item in given:  # id(), operator.is_() and their like do not ask a number
            of_torch = type(item) is Counted and frame.is_of_torch()
            if type(item) is Counted and address(function) not in _STORING and not of_torch:
                item.use()
        if is_import(function):
            return self._import_called(given or positional, has_keywords)
        if function is gc.collect and self._since is not None:  # finalizers run in it
            self._since.look()
            self._collect(frame)
            hear_again()
        # inspect.unwrap() looks for cycles by id().
        if address(function) in _BY_ITSELF and (function is not id or not frame.is_of_inspect()):
            self._repeats.doubts += 1
        if address(function) in _COMPARING_TWO:
            self._meets(*(given or positional))
        elif address(function) in _TELLING_ONE:
            self._are_one(*(given or positional))
        is_place = address(function) in _BY_PLACE and not frame.is_of_library()
        if is_place and any(address(t) in self._fresh for t in _tensors_within(tuple(given))):
            self._refuse_identity()
        if address(function) in _IDENTITY:
            _tell_apart(given or positional)
        elif address(function) in _STORING:
            _tell_apart((given or positional)[:1])
        if function is exec or function is eval:  # which may set global variables
            self._repeats.stop()
        if address(function) in _PASSING_ON and given and type(given[0]) is types.GeneratorType:
            frame.calls = given[0].gi_code
        is_builtin = raw.is_a(function, types.BuiltinFunctionType)
        if is_builtin and self._asked(function, given, has_keywords):
            return UNKNOWN
        if kind is types.MethodDescriptorType and positional and positional[0] is not UNKNOWN:
            owner, *others = given or positional
            self._looked_up(function, owner, others)
            if self._asked_of(owner, function.__name__, others, has_keywords):
                return UNKNOWN
        if function is type and positional and "_stands_in" in raw.namespace(type(positional[0])):
            self._given.refuse("asks for the type of a number that is an input", self.where())
        known = _DOORS.get(address(function)) if not has_keywords else None
        if known is not None:
            return known(self, frame, positional)
        all_given = given if len(given) >= len(positional) else positional
        return self._called_in_c(frame, function, positional, all_given)

    def _asked(self, function: Any, given: Sequence[Any], has_keywords: bool) -> bool:
        """A function in C may ask for what the process has, or an object has in C.

        Returns:
            Whether it does just that.
        """
        name = f"{function.__name__}()"
        self._looked_up(function, function.__self__, given)
        if in_c.names_a_function(function, in_c.HIDDEN):
            self._hidden(f"what {function.__module__.lstrip('_')}.{name} gives")
            return True
        if in_c.names_a_function(function, in_c.ASKED):
            # A signal is an enum.
            plain = [int.__index__(item) if raw.is_a(item, int) else item for item in given]
            asked = _Asked(function, plain)
            is_plain = not has_keywords and all(map(raw.is_scalar, plain))
            # A stand-in is found only while we capture.
            if not is_plain or is_stand_in(asked()):
                self._hidden(f"what {function.__module__.lstrip('_')}.{name} gives")
            else:
                self._live(("asked", address(function), *plain), asked, name)
            return True
        if function is contextvars.copy_context:
            self._live(("context",), lambda: tuple(contextvars.copy_context().items()), name)
            return True
        return self._asked_of(function.__self__, function.__name__, given, has_keywords)

    def _looked_up(self, function: Any, owner: Any, given: Sequence[Any]) -> None:
        """Code in C may look up what it is given the name of."""
        for key, read, path in registries.looked_up(function, owner, given):
            if read is None:
                self._hidden(path)
            else:
                self._live(key, read, path)
        if registries.warns_in_c(function, given):
            self._may_warn()
        module = registries.module_of(function)
        if module == "_csv":
            for item in given:
                for name in registries.DIALECT if raw.is_a(item, type) else ():
                    self._attribute(item, name)
        elif module == "_warnings" and function.__name__.startswith("warn"):
            self._asks_filters(self._filters)
        elif module == "_pickle" and function.__name__ == "loads":
            self._unpickled(given)
        elif module == "_pickle":
            table = self._know(copyreg.dispatch_table, "copyreg.dispatch_table")
            self._content(table, 0)
            self._everything(*given, is_pickled=True)
        elif function is builtins.__build_class__:
            self._class_made(given[2:])
            if type(given[0]) is types.FunctionType:  # the body of the class, which finds no cells
                names = given[0].__code__.co_freevars
                for name, cell in zip(names, given[0].__closure__ or (), strict=True):
                    self._variable_around(name, cell)

    def _may_warn(self) -> None:
        self._asks_filters(self._loud_filters)

    def _asks_filters(self, filters: Live) -> None:
        place = self._place(filters.identity, lambda: filters)
        self._repeats.doubts += not place.holds()  # the run has set others

    def _unpickled(self, given: Sequence[Any]) -> None:
        """Objects are made from a pickle: of classes that it names."""
        names = [name for data in given[:1] for name in registries.names_in_pickle(data)]
        for module in filter(sys.modules.__contains__, names):
            if module.partition(".")[0] in CLOSED:
                continue
            found = self._read(sys.modules, module, f"sys.modules[{module!r}]")
            for name in names if raw.is_a(found, types.ModuleType) else ():
                if name in found.__dict__:
                    cls = self._attribute(found, name)
                    if raw.is_a(cls, type):
                        self._special_of(cls)

    def _class_made(self, bases: Iterable[Any], values: Iterable[Any] = ()) -> None:
        """A class is about to be made, which calls what its bases and its attributes may get."""
        for base in bases:
            self._special(base)  # it has a metaclass, or is one
            if raw.is_a(base, type):
                self._lookup(base, "__init_subclass__")
                is_metaclass = any(part is type for part in raw.mro(base))
                metaclass = base if is_metaclass else type(base)
                for part in _MAKING:
                    self._run_by_name_of(self._lookup(metaclass, part))
        for value in values:
            self._special(value)  # it may get a ``__set_name__``

    def _asked_of(self, owner: Any, method: str, given: Sequence[Any], has_keywords: bool) -> bool:
        """The same, where a method in C asks an object."""
        name = f"{method}()"
        if method in _COMPARING:
            self._meets(owner, *given)
        elif method == "is_set_to" and raw.is_a(owner, torch.Tensor):
            self._are_one(owner, *given)
        self._note_lock(owner, method)
        if method == "__subclasses__" and raw.is_a(owner, type):
            path = f"{raw.name_of(owner)}.{name}"
            self._live(("subclasses", address(owner)), in_c.subclasses_of(owner), path)
            return True
        if method in _OF_COPIES and not raw.is_a(owner, type):
            self._own_attributes(owner)
            self._attributes(owner)
        if method == "mro" and raw.is_a(owner, type):
            self._place_of_bases(owner)
        read = in_c.state_of_generator(owner, method)
        if read is not None and self._is_state(owner):
            self._live(("state", address(owner)), read, f"{self._path(owner)}.{name}")
        elif in_c.is_lock(owner):
            self._of_lock(owner, method, given, has_keywords)
        elif in_c.asks_for_local_time(owner, method, given, has_keywords):
            self._hidden(f"the local time of the system, by {name}")
        elif type(owner) is contextvars.Context and name == "run()" and self._is_state(owner):
            self._hidden(f"what stands in a context: {self._path(owner)}.{name}")
        return False

    def _note_lock(self, lock: Any, method: str) -> None:
        """Note a lock that the run takes, and releases again."""
        if lock is UNKNOWN or method not in (*_ACQUIRING, *_GIVING_BACK):
            return
        if self._now is not None and self._now.is_of_library():  # around what is its own
            return
        if not (in_c.is_lock(lock) or raw.is_a(lock, threading.Condition)):
            return
        if method in _ACQUIRING:
            self._acquired.add(address(lock))
        elif (method == "__enter__" or address(lock) in self._acquired) and self._is_state(lock):
            self.locks[address(lock)] = self._path(lock), lock

    def not_held(self, stores: bool, breaks: bool) -> str:
        """Why a replay could not hold the locks that the run takes; ``""``: it can, from its
        beginning to its end.

        Args:
            stores: whether the run stores something in Python, beside its arguments. What it stores
                is read before a replay, and stored after it.
            breaks: whether the host decides how it goes on. Functions of the program may run there,
                and on a way that was not captured the run itself.
        """
        if not self.locks or not (stores or breaks):
            return ""
        what, remedy = "its course depends on its data, or it calls what is marked no_graph", ""
        if stores:
            what = "stores something in Python"
            remedy = ", or keep such state in a tensor that is written in place (copy_, add_)"
        return (
            f"each call takes {some(sorted(name for name, _ in self.locks.values()))}, and {what}; "
            "a replay could not hold that as long as the call does, and other threads would see "
            f"what is half done. Take the lock around the call{remedy}."
        )

    def _of_lock(self, lock: Any, name: str, given: Sequence[Any], has_keywords: bool) -> None:
        waits = name not in ("acquire", "acquire_lock") or not (given or has_keywords)
        if (name in in_c.OF_LOCKS and waits) or not self._is_state(lock):
            return
        if name in (*in_c.OF_LOCKS, "locked") and hasattr(type(lock), "locked"):
            self._live(("lock", address(lock)), lock.locked, f"{self._path(lock)}.locked()")
        else:
            self._hidden(f"who has a lock: {self._path(lock)}.{name}()")

    def _asked_in_python(self, function: types.FunctionType, given: Sequence[Any]) -> None:
        """A function in Python whose code is not looked at may ask for what the process has."""
        getter = in_c.asked_in_python(function)
        if getter is not None:
            name = f"{_module_of(function)}.{function.__name__}()"
            self._live(("asked", address(function)), getter, name)
        if function is typing.get_type_hints and given and raw.is_a(given[0], type):
            for base in raw.mro(given[0]):
                if raw.is_mutable(base) and package_of(base) not in CLOSED:
                    self._read(base, "__annotations__", f"{raw.name_of(base)}.__annotations__")
                    self._content(raw.namespace(base).get("__annotations__"), 0)

    def _method_called(self, method: Any, given: Sequence[Any]) -> None:
        """A method in Python is about to be called."""
        cls = method.__self__
        self._note_lock(cls, method.__name__)
        if is_closed(_module_of(method.__func__)):
            self._may_be_written(given)
            if raw.is_a(cls, WeakIdKeyDictionary):
                self._meets(list(dict.__iter__(cls.data)), *given)
            self._closed_reads(cls, method.__func__, MAX_NESTED)
            self._content(cls, 1)
        if method.__func__.__globals__.get("__name__") == "threading":  # Event.is_set()
            self._attributes(cls)
        of_autograd = raw.is_a(cls, type) and any(
            base is torch.autograd.Function for base in raw.mro(cls)
        )
        if of_autograd and method.__name__ == "apply":  # in C, which calls these
            for part in ("forward", "setup_context"):
                self._lookup(cls, part)
        self._run_by_name(method.__func__, given)

    def _called_in_c(
        self, frame: _Frame, function: Any, positional: list[Any], all_given: Sequence[Any]
    ) -> Any:
        """What is no function in Python is about to be called: in C, an object, or a class."""
        kind = type(function)
        owner: Any = getattr(function, "__self__", None) if address(kind) in _IN_C else None
        self._met_by_writer(function, owner, all_given)
        is_function = address(kind) in _IN_C or in_c.is_function(function)
        if not is_function and not raw.is_a(function, type):
            # What is called is an object, and not a function that others have made in C.
            self._content(function, 0)
        by_name = raw.is_a(function, operator.attrgetter, operator.itemgetter)
        # A list, a dict or an object that gets one more item asks nothing.
        is_put = type(owner) is list and function.__name__ in ("append", "insert")
        if kind is types.MethodWrapperType and owner not in self._given:  # as super() gives it
            is_item = function.__name__ == "__setitem__" and raw.is_a(owner, dict)
            is_named = bool(positional) and type(positional[0]) is str
            is_put = is_named and (is_item or function.__name__ == "__setattr__")
        called = self._called_in_python(function, kind)
        if called is not None:
            frame.calls = called.__code__
        elif type(owner) is types.GeneratorType:  # its send(), say
            frame.calls = owner.gi_code
        is_unseen = called is None or is_closed(_module_of(called))
        if is_unseen and not by_name and address(function) not in _CARRIERS and not is_put:
            is_asked = raw.is_a(owner, dict) and function.__name__ in _BY_KEY
            keys = _only_keys(function, owner, positional) if called is None else None
            is_asked |= keys is not None
            self._hand_out(*(all_given if keys is None else keys), *(() if is_asked else (owner,)))
        if address(kind) in _IN_C and function.__name__ in _MOVING:
            self._note_line(owner if raw.is_a(owner, torch.Tensor) else (positional or [None])[0])
        for item in (function, owner, *positional[:1]):
            if raw.is_a(item, *DESCRIPTORS) and self._is_state(item):
                self._descriptor(item)  # it is called, or its `__get__()`
        if raw.is_a(function, *_SLOTS) and function.__name__ == "__init__":
            self._initialized(owner if kind is types.MethodWrapperType else (*positional, None)[0])
        if raw.is_a(function, *_SLOTS) and function.__name__ in _SETTERS:
            is_bound = kind is types.MethodWrapperType
            target, *named = [owner, *positional] if is_bound else (positional or [UNKNOWN])
            self._note_line(target, named[0] if named else None)
            if target is UNKNOWN or raw.is_a(target, type):
                if target is not UNKNOWN and named and type(named[0]) is str:
                    self._attribute(target, named[0])
                self._forget_lookups()
            self._repeats.doubts += not self._is_of_run(target)
            if self._is_everywhere(target):
                self._repeats.stop()
        if raw.is_a(function, *_SLOTS) and function.__name__ == "__hash__":
            self._repeats.doubts += 1
        if (
            kind is types.WrapperDescriptorType
            and function.__name__ == "__getattribute__"
            and len(positional) > 1
            and positional[0] is not UNKNOWN
            and type(positional[1]) is str
        ):
            return self._attribute(positional[0], positional[1], generic=True)
        if type(owner) is str and function.__name__ in ("format", "format_map"):
            self._formatted(owner, all_given, has_name=function.__name__ == "format_map")
        if owner is not None and raw.is_a(owner, *CHANGING):
            return self._method_of_container(owner, function.__name__, positional)
        if raw.is_a(function, type):
            self._looked_up(function, None, all_given)
            if len(positional) == 3 and type in raw.mro(function):
                self._class_made(*map(inside, positional[1:]))
        if raw.is_a(function, type) and raw.is_mutable(function):
            for part in ("__new__", "__init__"):
                self._run_by_name_of(self._lookup(function, part))
            if raw.is_a(function, abc.ABCMeta):
                self._lookup(function, "__abstractmethods__")
        if raw.is_a(owner, contextvars.ContextVar):
            return self._variable(owner, function.__name__)
        if (
            kind is types.MethodWrapperType
            and function.__name__ in ("__getattribute__", *_SETTERS)
            and positional
            and type(positional[0]) is str
        ):
            value = self._attribute(owner, positional[0], generic=True)
            return value if function.__name__ == "__getattribute__" else UNKNOWN
        if is_bound_getter(function) and positional and positional[0] is not UNKNOWN:
            return self._by_getter(owner, positional[0])
        items = [item for item in (owner, *all_given) if address(type(item)) not in HOLLOW]
        if not items and address(kind) in _IN_C:
            return UNKNOWN
        return self._given_to_c(frame, function, owner, items, positional, all_given)

    def _may_be_written(self, items: Iterable[Any]) -> None:
        """Code in Python that is not looked at may write to containers that it is given, or call
        their methods, as ``tree_map(found.append, tree)`` does."""
        todo = list(items)
        self.stores.meet_whole(todo)
        seen: set[int] = set()
        for item in todo:  # which grows meanwhile
            if address(item) in seen or address(type(item)) in HOLLOW:
                continue
            seen.add(address(item))
            if len(seen) > MAX_ITEMS:
                self.stores.is_complete = False
                return
            owner = getattr(item, "__self__", None) if address(type(item)) in _IN_C else item
            is_method = owner is not item and not raw.is_a(owner, types.ModuleType, type(None))
            if is_method or (raw.is_a(owner, *CHANGING) and self._is_state(owner)):
                self._note_line(owner)
            is_partial = type(item) is functools.partial
            todo += gc.get_referents(item) if is_partial else inside(item)

    def _met_by_writer(self, function: Any, owner: Any, given: Sequence[Any]) -> None:
        """Code in C may write what it is given in a text, or have others do so."""
        held = () if raw.is_a(function, type) else gc.get_referents(function)
        if any(map(in_c.writes, (function, *given, *held))):
            self._write(owner, *given)
            generators = (item for item in given if type(item) is types.GeneratorType)
            self._written.update(address(item.gi_frame) for item in generators)

    def _given_to_c(
        self,
        frame: _Frame,
        function: Any,
        owner: Any,
        items: list[Any],
        positional: list[Any],
        all_given: Sequence[Any],
    ) -> Any:
        """``items`` are given to code that nobody looks at, which may read and write them."""
        kind = type(function)
        if not (self.stores.was_alone or in_c.only_reads(function)):
            self.stores.meet_whole(items)
        for item in () if in_c.only_reads(function) else items:
            is_method = address(type(item)) in _IN_C  # as in map(found.append, names)
            self._note_line(getattr(item, "__self__", item) if is_method else item)
        if any(type(item) is dict and self._is_everywhere(item) for item in items):
            self._repeats.stop()  # as dict.__setitem__(globals(), ...)
        is_call = kind is types.MethodWrapperType and function.__name__ == "__call__"
        is_of_python = type(self._lookup(kind, "__call__")) is types.FunctionType
        if is_call:
            self._acting.meet(owner)
        elif address(kind) in _IN_C or (raw.is_a(function, type) and not raw.is_mutable(function)):
            for item in items:
                self._acting.meet(item)
        if kind is operator.methodcaller and positional and positional[0] is not UNKNOWN:
            self._values_by(function, positional[0], [])
            self._acting.meet_method(positional[0], function.__reduce__()[1][0])
        reference = owner if is_call else function
        if raw.is_a(reference, weakref.ref) and (is_call or not is_of_python):
            key, path = ("weak", address(reference)), self._path(reference)
            if self._is_made(reference):  # it goes with the run
                return self._held(Referent(path, reference).read(), path)
            place = self._place(key, lambda: Referent(path, reference))
            return self._held(place.read(), path)  # type: ignore[attr-defined]
        if raw.is_a(function, operator.attrgetter, operator.itemgetter):
            if positional and positional[0] is not UNKNOWN and self._is_state(positional[0]):
                self._getter(function, positional[0])
            return UNKNOWN
        if kind is functools._lru_cache_wrapper and self._is_state(function):
            # It may answer without running: then what it keeps is what was read.
            self._cached(function)
            return UNKNOWN
        for item in () if is_of_python or self._only_makes(function) else items:
            if address(function) not in _HOLDING:
                self._attributes(item)
            self._content(item, DEEP)
        is_object = not is_of_python and not raw.is_a(function, type, *C_FUNCTIONS)
        called = [*items, *(gc.get_referents(function) if is_object else ())]
        if any(_may_read(item) for item in called if item is not owner):
            # As map(attrgetter("scale"), items), or with key=id.
            self._repeats.doubts += 1
            self._everything(*all_given)
            self._refuse(self._by_readers(all_given))
            found = self._gather(all_given)
            frame.readers += readers_among(found)
            if any(map(is_import, found)):
                self._imports_by_name(found)
            for cls in found:  # as map(isinstance, items, classes)
                if raw.is_a(cls, type):
                    self._place_of_bases(cls)
                    self._class_checked(cls)
        return UNKNOWN

    def _only_makes(self, cls: Any) -> bool:
        """Whether it is a class whose instances only code in Python looks into what it is given
        for."""
        if not (raw.is_a(cls, type) and raw.is_mutable(cls)):
            return False
        found = [(part, self._lookup(cls, part)) for part in ("__new__", "__init__")]
        made = [(part, f.__func__ if type(f) is staticmethod else f) for part, f in found]
        own = raw.namespace(object)
        return all(type(f) is types.FunctionType or f is own[part] for part, f in made)

    def _formatted(self, text: str, given: Sequence[Any], has_name: bool) -> None:
        """Note what ``text.format()`` reads of its arguments; which is which does not matter."""
        for first, ways in _fields(text):
            is_named = any(name for name, _ in ways)
            if is_named and any(item is UNKNOWN or raw.is_a(item, *NOT_PLAIN) for item in given):
                self._refuse(f"{text!r}.format(), which reads attributes")
                return
            for item in given:
                value = self._item_of(item, first) if has_name and item is not UNKNOWN else item
                for name, key in ways:
                    if value is not UNKNOWN and name:
                        value = self._attribute(value, name)
                    elif value is not UNKNOWN:
                        value = self._item_of(value, int(key) if key.isdigit() else key)
                self._content(value, DEEP)

    def _called_in_python(self, function: Any, kind: Any) -> types.FunctionType | None:
        """The function in Python that a call runs, if it is one."""
        if kind is types.FunctionType:
            found = function
        elif kind is types.MethodType:
            found = function.__func__
        elif raw.is_a(function, MODULE):
            found = self._lookup(kind, "forward")
        elif kind is type and raw.is_mutable(function):
            found = self._lookup(function, "__init__")
        else:
            found = self._lookup(kind, "__call__")
        return found if type(found) is types.FunctionType else None

    # C functions that read by name.

    def _getattr(self, frame: _Frame, args: list[Any], generic: bool = False) -> Any:
        if len(args) < 2 or args[0] is UNKNOWN or not raw.is_a(args[1], str):
            self._given.hand_out_all()
            return UNKNOWN
        value = self._attribute(args[0], str.__str__(args[1]), generic)
        self._hand_out_owner(value)
        return value

    def _hasattr(self, frame: _Frame, args: list[Any]) -> Any:
        self._getattr(frame, args)
        return UNKNOWN

    @staticmethod
    def _behind(args: list[Any]) -> list[Any]:
        """The arguments of ``setattr`` and the like, with the object that gets the attribute."""
        return args if len(args) < 2 else [behind(args[0], args[1]), *args[1:]]

    def _delattr(self, frame: _Frame, args: list[Any]) -> Any:
        args = self._behind(args)
        if args and args[0] is not UNKNOWN:
            own = None if raw.is_a(args[0], type) else raw.attributes(args[0])
            if own is not None and self._is_state(args[0]):
                self._know(own, self._path(args[0]))  # the collector may not
            self._keep_as_it_was(own)
            self._taken_from.add(address(args[0] if own is None else own))
            self._note_line(args[0], args[1] if len(args) > 1 and type(args[1]) is str else None)
        return self._rebound(frame, args)

    def _rebound(self, frame: _Frame, args: list[Any]) -> Any:
        self._getattr(frame, args)
        if args and (args[0] is UNKNOWN or raw.is_a(args[0], type)):
            self._forget_lookups()
        elif args and not self._is_of_run(args[0]):
            self._repeats.doubts += 1
        return UNKNOWN

    def _setattr(self, frame: _Frame, args: list[Any]) -> Any:
        known = len(self.places)
        args = self._behind(args)
        self._rebound(frame, args)
        if args:
            self._is_stored(args[0])
            self._note_line(args[0], args[1] if len(args) > 1 else None)
        if len(args) > 1 and self._stores_plainly(args[0], "attribute"):
            self._mark_stored(known, args[0], args[1], "attribute")
        return UNKNOWN

    def _vars(self, frame: _Frame, args: list[Any]) -> Any:
        if not args or args[0] is UNKNOWN:
            return UNKNOWN
        if raw.is_a(args[0], types.ModuleType):
            return self._attribute_of_space(args[0], "__dict__")
        if raw.is_a(args[0], type):
            return self._attribute_of_class(args[0], "__dict__")
        self._isinstance(frame, args)
        if address(args[0]) in self._fresh:
            self._attribute_of_input(args[0], "__dict__")
        own = raw.attributes(args[0])
        if own is None:
            return UNKNOWN
        return self._dict_of_attributes(args[0], own) if self._is_state(args[0]) else own

    def _dir(self, frame: _Frame, args: list[Any]) -> Any:
        item = args[0] if args else UNKNOWN
        if raw.is_a(item, types.ModuleType):
            own = raw.attributes(item) or {}
            self._know(own, self._path(item))
            self._content(own, 0)
        elif item is not UNKNOWN:
            for cls in raw.mro(item if raw.is_a(item, type) else type(item)):
                if raw.is_mutable(cls) and package_of(cls) not in CLOSED:
                    self._content_of(cls, raw.name_of(cls))
            self._place_of_class(item)
            self._attributes(item)
        return UNKNOWN

    def _type(self, frame: _Frame, args: list[Any]) -> Any:
        if len(args) != 1 or args[0] is UNKNOWN:
            self._hand_out(*args)  # a class is made
            if len(args) == 3:
                self._class_made(*map(inside, args[1:]))
                self._content(args[2], 0)
            return UNKNOWN
        self._isinstance(frame, args)
        return type(args[0])

    def _isinstance(self, frame: _Frame, args: list[Any]) -> Any:
        item = args[0] if args else UNKNOWN
        if type(item) is Counted and not frame.is_of_torch():
            item.use()
        self._class_asked(item, args[1] if len(args) > 1 else ())
        if self.answers is not None and any(map(tells_apart, each_class(tuple(args[1:])))):
            self._ask_sizes([item])
        return UNKNOWN

    def _ask_sizes(self, items: Iterable[Any], of_tensors: bool = False) -> None:
        """These are asked for what a size that is kept back answers in another way.

        ``of_tensors``: or a tensor may be asked for its size unseen.
        """
        kinds = (Size, torch.Tensor) if of_tensors else (Size,)
        if self.answers is not None and any(raw.is_a(item, *kinds) for item in items):
            self.answers.give_up()

    def _tells_unseen(self, function: Any, given: Sequence[Any]) -> None:
        """Give up if the called function may reveal a size that no answer shows."""
        assert self.answers is not None
        called = self._called_in_python(function, type(function))
        if called is not None:
            module = _module_of(called)
            # The program's code is looked at, and that of torch takes stand-ins of its own.
            is_unseen = is_closed(module) and not module.startswith("torch.")
            tells = is_unseen and any(map(has_size, given))
        else:
            tells = calls_unseen(function, given)
            if is_seen_by_modes(function):
                tells |= any(map(has_size, given)) and not asks_openly(function)
            else:
                tells |= not all(map(is_harmless, given))
        if tells:
            self.answers.give_up()

    def _issubclass(self, frame: _Frame, args: list[Any]) -> Any:
        if len(args) == 2 and raw.is_a(args[0], type):
            self._place_of_bases(args[0])
            for cls in each_class(args[1]):
                self._class_checked(cls)
                self._hook_asked(cls, args[0])
        return UNKNOWN

    def _callable(self, frame: _Frame, args: list[Any]) -> Any:
        if args and args[0] is not UNKNOWN:
            self._lookup(type(args[0]), "__call__")
        return UNKNOWN

    def _len(self, frame: _Frame, args: list[Any]) -> Any:
        item = args[0] if args else UNKNOWN
        if item is UNKNOWN or address(type(item)) in LEAVES or raw.is_a(item, tuple, torch.Tensor):
            return UNKNOWN
        if not raw.is_a(item, *CHANGING):
            self._content(item, 0)
        elif self._is_state(item):
            self._special(item)
            self._length_of(item)
        return UNKNOWN

    def _super(self, frame: _Frame, args: list[Any]) -> Any:
        if not args:
            return self._super_of(frame)
        if len(args) == 2 and raw.is_a(args[0], type) and args[1] is not UNKNOWN:
            return Super(args[0], args[1])
        return UNKNOWN

    def _super_of(self, frame: _Frame) -> Any:
        code = frame.frame.f_code
        if not code.co_argcount:
            return UNKNOWN
        first = self._variable_of(frame, code.co_varnames[0], is_shared=True)
        cls = self._variable_of(frame, "__class__", is_shared=True)
        return UNKNOWN if first is UNKNOWN or cls is UNKNOWN else Super(cls, first)

    def _globals(self, frame: _Frame, args: list[Any]) -> Any:
        return self._know(frame.frame.f_globals, "globals()")


def _tensors_within(item: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors in a container, or among its keys."""
    if raw.is_a(item, weakref.ref):
        item = weakref.ref.__call__(item)
    if raw.is_a(item, torch.Tensor):
        yield item
    cls = next((cls for cls in _COLLECTIONS if raw.is_a(item, cls)), None)
    if cls is not None and depth < _DEEPEST:
        for part in cls.__iter__(item):
            yield from _tensors_within(part, depth + 1)


_COLLECTIONS: tuple[Any, ...] = (tuple, list, dict, set, frozenset, deque)
_DEEPEST = 3
# Methods of these by which elements are compared.
_COMPARING = frozenset(
    (
        *("get", "setdefault", "pop", "index", "count", "remove", "isdisjoint", "issubset"),
        *("issuperset", "intersection", "difference", "union", "symmetric_difference", "discard"),
        *("__getitem__", "__contains__", "__eq__", "__ne__", "__and__", "__or__", "__sub__"),
        *("__xor__", "__le__", "__ge__", "__lt__", "__gt__", "__rand__", "__ror__", "__rsub__"),
    )
)
_COMPARING_TWO = frozenset(
    map(
        address,
        (
            *(operator.contains, operator.getitem, operator.countOf, operator.indexOf),
            *(operator.and_, operator.or_, operator.sub),
        ),
    )
)
_TELLING_ONE = frozenset(
    map(
        address,
        (operator.is_, operator.is_not, getattr(torch._C, "_is_alias_of", operator.is_)),
    )
)


def _tell_apart(values: Iterable[Any]) -> None:
    """Note that the run asks which tensors these are."""
    interceptor = current_interceptor()
    if interceptor is not None:
        for value in values:
            interceptor.tells_apart(value)


_IDENTITY = frozenset(map(address, (id, operator.is_, operator.is_not)))
_BY_PLACE = frozenset(map(address, (id, hash)))
# What tells one object, or one caller, from another that is alike.
_BY_ITSELF = frozenset(map(address, (id, hash, sys._getframe, sys.exc_info, _exception)))
_IN_C = frozenset(map(address, C_FUNCTIONS))
# They read all attributes of an object, also of a module.
_OF_COPIES = ("__reduce_ex__", "__reduce__", "__getstate__", "__copy__", "__dir__")
_SLOTS = (types.MethodWrapperType, types.WrapperDescriptorType)
_SETTERS = ("__setattr__", "__delattr__")
# They give a tensor other memory, another shape or another `requires_grad`.
_MOVING = frozenset(
    (
        *("set_", "set_data", "resize_", "resize_as_", "requires_grad_", "detach_", "as_strided_"),
        *("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"),
    )
)
_TO_NUMPY = ("numpy", "__array__")
_STORING = frozenset(map(address, (setattr, object.__setattr__)))
_BY_KEY = ("get", "__getitem__", "__contains__", "setdefault", "pop", "keys", "values", "items")
# Of a metaclass: what makes a class.
_MAKING = ("__prepare__", "__call__", "__new__", "__init__")
# They only pass on what they are given.
_CARRIERS = frozenset(map(address, (enumerate, zip, reversed, iter, next, list, tuple)))
# They only pass on what a generator gives.
_PASSING_ON = frozenset(map(address, (next, list, tuple)))
# They keep what they are given, and ask it for no attribute.
_HOLDING = _CARRIERS | set(
    map(
        address,
        (map, filter, functools.partial, types.MethodType, weakref.ref, set, frozenset, id, hash),
    )
)


class _Asked:
    """Asks a function in C once more; what it raises is an answer too."""

    def __init__(self, function: Any, given: Sequence[Any]) -> None:
        self._function, self._given = function, tuple(given)

    def __call__(self) -> Any:
        try:
            return self._function(*self._given)
        except Exception:
            return MISSING


def _module_of(function: types.FunctionType) -> str:
    return str(function.__globals__.get("__name__", ""))


class _Recording(AbstractContextManager[None]):
    """Ends in our code: that of ``contextlib`` would be taken for the program's.

    The reads hear nothing of what ends here. An error that they raise there would leave the block
    as it is, and them listening.
    """

    def __init__(self, reads: Reads, inner: AbstractContextManager[None]) -> None:
        self._reads, self._inner = reads, inner

    def __enter__(self) -> None:
        try:
            self._inner.__enter__()
        except BaseException:
            end_listening(self._reads)
            raise

    def __exit__(self, *error: Any) -> None:
        end_listening(self._reads)
        self._inner.__exit__(*error)


class _Frame:
    """A frame that is looked at."""

    __slots__ = (
        "again",
        "begun",
        "bottom",
        "calls",
        "frame",
        "key",
        "made",
        "operations",
        "places",
        "readers",
        "since",
        "starts",
        "steps",
        "words",
    )

    def __init__(self, frame: types.FrameType) -> None:
        self.frame = frame
        self.steps, self.starts = bytecode.read(frame.f_code)
        #: Where its variables lie, and the number of the first slot of its stack among them.
        self.words: Any = None
        self.places, self.bottom = places_of(frame.f_code), variables_of(frame.f_code)
        #: Offset -> what the instruction there has made last.
        self.made: dict[int, Any] = {}
        #: The code that it calls, where that is known.
        self.calls: types.CodeType | None = None
        #: What it has given to code in C that reads attributes or items for it, and their names.
        self.readers: list[Any] = []
        #: See :class:`~gfxgraph.graph.repeats.Repeats`.
        self.key: Key | None = None
        #: See :class:`~gfxgraph.record.again.Passages`.
        self.begun: Begun | None = None
        self.operations = 0
        #: How many frames had begun before it.
        self.since = 0
        #: The frame that it repeats, where its operations are not looked at.
        self.again: Seen | None = None

    def used(self, *operands: bytecode.Operand) -> None:
        """Nothing of ours is to hold what a call takes: who else does is asked elsewhere."""
        for operand in operands:
            if operand is not None and operand[0] == "made":
                self.made.pop(operand[1], None)

    def is_of_torch(self) -> bool:
        """Whether it is of torch, which asks what is set as the attribute of a module."""
        return _is_of_torch(self.frame)

    def is_of_library(self) -> bool:
        """Whether it runs code of Python's own library, of torch, or of progress bars."""
        return str(self.frame.f_globals.get("__name__", "")).partition(".")[0] in CLOSED

    def is_of_inspect(self) -> bool:
        """Whether it is of :mod:`inspect`."""
        return self.frame.f_globals is vars(inspect)

    def where(self, of_program: bool = False) -> tuple[str, int]:
        frame = self.frame
        while of_program and _is_of_torch(frame) and frame.f_back is not None:
            frame = frame.f_back
        return frame.f_code.co_filename, frame.f_lineno or 0


def _is_own_variable(frame: _Frame, kind: str, name: str) -> bool:
    """Whether it is a variable of this call, which functions that it makes share.

    Who is given one of these has what it holds in the key.
    """
    code = frame.frame.f_code
    is_own = name in code.co_cellvars and name not in code.co_freevars
    return kind == "cell" and is_own and bool(code.co_flags & inspect.CO_OPTIMIZED)


def _hands_on(function: Any) -> bool:
    """Whether it calls a function in C, or any at all, which is asked about then."""
    is_method = type(function) is types.MethodType
    is_in_c = is_method and type(function.__func__) is not types.FunctionType
    return is_in_c or type(function) is functools.partial


def _is_of_torch(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("torch.")


# What reads attributes or items for C code that it is given to.
_READERS = (
    *(operator.attrgetter, operator.methodcaller, functools.partial),
    *(functools._lru_cache_wrapper, *C_FUNCTIONS),
)


def _may_read(item: Any) -> bool:
    is_method = type(item) is types.MethodType
    return raw.is_a(item.__func__ if is_method else item, *_READERS)


_DOORS: dict[int, Callable[..., Any]] = {
    address(getattr): Reads._getattr,
    address(hasattr): Reads._hasattr,
    address(setattr): Reads._setattr,
    address(delattr): Reads._delattr,
    address(vars): Reads._vars,
    address(dir): Reads._dir,
    address(type): Reads._type,
    address(isinstance): Reads._isinstance,
    address(issubclass): Reads._issubclass,
    address(callable): Reads._callable,
    address(len): Reads._len,
    address(super): Reads._super,
    address(globals): Reads._globals,
    address(abc.get_cache_token): lambda reads, frame, args: reads._registered_classes(),
    address(object.__getattribute__): functools.partial(Reads._getattr, generic=True),
}
_STEPS: dict[str, Callable[..., Any]] = {
    "global": Reads._global,
    "cell": Reads._cell,
    "attribute": Reads._attribute_step,
    "forget": Reads._forget,
    "unset": Reads._unset,
    "item": Reads._item,
    "contains": Reads._contains,
    "content": Reads._content_step,
    "augmented": Reads._augmented,
    "operation": Reads._operation,
    "text": Reads._text,
    "length": Reads._length,
    "call": Reads._call,
    "spread": Reads._spread,
    "import": Reads._import,
    "from": Reads._from,
    "builtin": Reads._builtin,
    "match": Reads._match,
    "shape": Reads._shape,
    "star": Reads._star,
    "enter": Reads._enter,
    "caught": Reads._caught,
    "store": Reads._store,
    "counting": Reads._count,
    "advance": Reads._advance,
    "is": Reads._is,
    "delete": Reads._delete,
}


def _is_ours(value: Any) -> bool:
    if type(value) is types.FunctionType:
        return str(value.__globals__.get("__name__", "")).startswith(f"{_OURS}.")
    if value is MISSING or raw.is_a(value, torch.Tensor):  # a simulated one is the program's
        return False
    return package_of(type(value)) == _OURS


def _is_one_by_chance(one: Any, other: Any) -> bool:
    """Whether two values are equal, and equal ones may be one object or two."""
    kind = type(one)
    if kind is not type(other) or kind not in (str, int, float, bytes, complex):
        return False
    if kind is int and -5 <= one <= 256:  # Python has one object of each of these
        return False
    return bool(one == other or (one != one and other != other))


def _first_argument(frame: types.FrameType) -> Any:
    """The first argument of a frame that begins; ``None``: it has none."""
    code = frame.f_code
    if code.co_argcount:
        return frame.f_locals.get(code.co_varnames[0])
    if code.co_flags & inspect.CO_VARARGS:
        given = frame.f_locals.get(code.co_varnames[code.co_kwonlyargcount])
        return given[0] if type(given) is tuple and given else None
    return None


def _names_in(cls: type, code: types.CodeType) -> list[str]:
    """The names by which a class made by the program knows functions with this code."""
    names = []
    for base in raw.mro(cls) if raw.is_mutable(cls) and package_of(cls) not in CLOSED else ():
        for name, value in list(raw.namespace(base).items()) if raw.is_mutable(base) else ():
            parts = [value]
            if raw.is_a(value, property):
                own = raw.namespace(property)
                parts = [own[part].__get__(value) for part in ("fget", "fset", "fdel")]
            elif type(value) in (staticmethod, classmethod):
                parts = [value.__func__]
            if any(type(p) is types.FunctionType and p.__code__ is code for p in parts):
                names.append(str(name))
    return names


# Instructions that take what a frame in Python gives, if nothing in C comes between the two; and
# how deep what runs it lies on the stack.
_TAKING = {
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "BINARY_SUBSCR"), 0),
    **dict.fromkeys(("FOR_ITER", "LIST_EXTEND", "UNPACK_SEQUENCE", "UNPACK_EX"), 1),
    "SEND": 2,
}


def _is_called_at_once(frame: types.FrameType) -> bool:
    """Whether the attribute that is loaded now is a method that the next call takes."""
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    return name == "LOAD_METHOD" or (
        name == "LOAD_ATTR" and sys.version_info >= (3, 12) and bool(code[at + 1] & 1)
    )


def _takes(known: _Frame, inner: types.FrameType, stack: Stack) -> bool:
    """Whether the caller gets just what ``inner`` returns or yields, with no code in C between."""
    code, at = known.frame.f_code, known.frame.f_lasti
    while at > 0 and dis.opname[code.co_code[at]] == "CACHE":  # of the instruction before
        at -= 2
    name = dis.opname[code.co_code[at]]
    if name.startswith(("CALL", "PRECALL")):
        return known.calls is inner.f_code
    nth = _TAKING.get(name)
    if not nth:
        return nth is not None and inner.f_code.co_name != "__eq__"  # of a key
    runs = stack.at(known.frame, depths(code).get(at, 0) - nth)
    if type(runs) in (types.GeneratorType, types.CoroutineType):
        return _code_of(runs) is inner.f_code
    return not is_iterator_in_c(runs)


def _code_of(
    generator: types.GeneratorType[Any, Any, Any] | types.CoroutineType[Any, Any, Any],
) -> types.CodeType:
    if isinstance(generator, types.CoroutineType):
        return generator.cr_code
    return generator.gi_code


def _only_keys(function: Any, owner: Any, positional: Sequence[Any]) -> list[Any] | None:
    """The keys of the dict that a call in C makes, which asks for nothing else; ``None``: it is no
    such call."""
    is_init = type(function) is types.MethodWrapperType and function.__name__ == "__init__"
    is_class = raw.is_a(function, type) and any(base is dict for base in raw.mro(function))
    if not is_class and not (is_init and raw.is_a(owner, dict)):
        return None
    keys: list[Any] = []
    for item in positional:
        is_view = raw.is_a(item, type({}.items()))
        inner = gc.get_referents(item)[0] if is_view else item
        if not (raw.is_a(inner, dict) if is_view else type(inner) in (dict, OrderedDict)):
            return None
        keys += dict.__iter__(inner)
    return keys


def _fields(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """What ``text.format()`` asks for: the name of an argument, and the attributes and items that
    it reads from there on, each as the one or the other."""
    for _, field, spec, _ in string.Formatter().parse(text):
        if field is not None:
            first = field.partition(".")[0].partition("[")[0]
            yield first, re.findall(r"\.([^.[]+)|\[([^]]+)\]", field)
            yield from _fields(spec or "")


def _who_is(module: str) -> bool | None:
    """Whether a module of that name looks on while the function runs; ``None``: who calls it says
    that."""
    if module.startswith(_WATCHING):
        return True
    # The code that makes a named tuple has a module of its own.
    if module.partition(".")[0] not in CLOSED and not module.startswith("namedtuple_"):
        return False
    return None
