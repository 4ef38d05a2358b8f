"""Frames that run again just as they ran before, and so read nothing new.

A policy that integrates a flow runs the same layers in each of its ten steps. What a frame in
Python reads is decided by its code, by what it is given, and by what it reads on its way. So it is
looked at once: when its code runs again with the same arguments, and each place that it has read
holds what it held, its instructions are left out. The frames that it calls are asked again, each
for itself.

*The same* is an object that was there before the run, or something that the run has made and that
is made alike: a tensor of the same shape, a tuple or a plain object with the same in it. What
cannot be compared like that has no key, and is looked at each time. So is a frame in which
something happened that its key does not tell: see :attr:`Repeats.doubts`.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch

from ..interpose.codes import address, arguments_of, per_code
from ..interpose.frames import NOTHING, Stack, places_of, variables_of
from ..record.again import Done
from ..record.answers import Size
from . import in_c, raw

__all__ = [
    "LIKE_OTHERS",
    "Key",
    "Known",
    "Outcome",
    "Place",
    "Plain",
    "Repeats",
    "Seen",
    "look_of",
    "modes",
]

_MAX_PARTS, _MAX_DEPTH = 1024, 8
_NOT_PLAIN_CODE = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)
# Compared by value.
_PLAIN = frozenset(map(address, (int, bool, str, bytes, type(None), type(Ellipsis), torch.device)))
LIKE_OTHERS = (torch.Tensor, torch.nn.Parameter, dict, list, OrderedDict)
"""Classes whose objects can have the same role as others, beside those of plain objects."""
_MAX_KINDS, _MAX_FAILURES = 4, 8
_UNBOUND = "no value is bound to a variable"
# Each of these is one object in a process, which lives as long.
_SINGLE = frozenset(map(address, (torch.dtype, torch.layout, torch.memory_format)))


class Place(Protocol):
    """Something that a frame has read.

    Attributes:
        number: how many places were known before it.
    """

    number: int

    def holds(self) -> bool:
        """Whether it holds what it held."""


class Known(Protocol):
    """Tells what is state from what the run has made.

    Attributes:
        places: all that was read.
    """

    places: dict[Any, Any]

    def is_the_same(self, item: Any) -> bool:
        """Whether only ``item`` itself is the same as ``item``."""

    def is_given(self, item: Any) -> bool:
        """Whether ``item`` comes from the call: what is asked of it is noted."""

    def settings(self) -> tuple[Any, ...]:
        """What the settings are that may have been asked for."""

    def is_made(self, item: Any) -> bool:
        """Whether the run has made ``item``, or the collector knows nothing of it."""


class Plain(NamedTuple):
    """A class whose objects hold attributes and nothing else, or also the items of a dict."""

    attributes: Callable[[Any], Any]
    is_dict: bool


class _NoKey(Exception):
    """Nobody can tell whether something is the same."""


class Key(NamedTuple):
    """What decides what a frame will do.

    Attributes:
        parts: equal for two frames that begin in the same way, but for their objects.
        objects: those among what the frame was given that were there before the run, and in whose
            place others may stand.
        same: those in whose place none may stand.
        tensors: those that the run has made.
        doubts: what was not known when the frame began.
        places: how many places were known then.
        read: how often something had been read.
    """

    parts: tuple[Any, ...]
    objects: list[Any]
    same: list[Any]
    tensors: list[torch.Tensor]
    doubts: int
    places: int
    read: int

    @property
    def by(self) -> tuple[int, ...]:
        """What tells frames with equal parts from each other."""
        return tuple(map(address, self.objects))


class Outcome(NamedTuple):
    """The result and the variables of a frame that has ended.

    Attributes:
        parts: equal for two frames that end in the same way, but for the objects.
        objects: addresses of those that were there before the run.
    """

    parts: list[Any]
    objects: list[int]


class Seen:
    """A frame that has ended: what it has read, and the frames in it that have keys as well.

    Attributes:
        parts: these.
        objects, same: those of its key.
        number: as that of a :class:`Place`.
        is_explained: whether it was seen how it got each object; ``None``: nobody has asked.
        done: what it has done, what was found at its end, and which code began in it;
            ``None``: more than is known.
    """

    def __init__(self, parts: Iterable[Place], key: Key) -> None:
        self.parts, self.number = tuple(parts), key.places
        self.objects, self.same = key.objects, key.same
        self.is_explained: bool | None = None
        self._places: tuple[Place, ...] | None = None
        self.done: tuple[Done, Outcome, list[types.CodeType]] | None = None

    def holds(self) -> bool:
        """See :class:`Place`."""
        for part in self.parts:  # noqa: SIM110  all() takes longer
            if not part.holds():
                return False
        return True

    def places(self) -> tuple[Place, ...]:
        """All that was read in it, in order, each place once."""
        if self._places is None:
            found: dict[Place, None] = {}
            for part in self.parts:
                found.update(dict.fromkeys(part.places() if isinstance(part, Seen) else (part,)))
            self._places = tuple(found)
        return self._places


class _Alike:
    """The frames that began in the same way, but for their objects.

    Attributes:
        seen: by their objects.
        looked_at: those that were looked at themselves, the one first that was like others last.
        failures: how many more were like none of these than like one of them.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[int, ...], Seen] = {}
        self.looked_at: list[Seen] = []
        self.failures = 0


class Repeats:
    """The frames of a run that have been looked at.

    Args:
        outside: a number that differs once the run has learned what no argument of a frame tells,
            such as the data of a tensor. ``None``: each frame is looked at.

    Attributes:
        read: what was read, in this order; a frame that was left out has read what it read before.
        doubts: how often something happened that would not be seen in a frame that is left out:
            something was stored where others find it, or a finalizer ran.
    """

    def __init__(self, outside: Callable[[], int] | None) -> None:
        self._outside = outside
        self._seen: dict[Any, _Alike] = {}
        self._kinds: dict[int, tuple[type, Plain | None]] = {}
        self.read: list[Place] = []
        self.doubts = 0
        self._used: set[Seen] = set()
        # Code and namespaces whose numbers stand in keys.
        self._alive: dict[int, Any] = {}

    def stop(self) -> None:
        """From now on each frame is looked at: what all of them find has changed."""
        self._outside = None
        for held in (self._seen, self._used, self._kinds, self.read, self._alive):
            held.clear()

    def left_out(self) -> set[Place]:
        """What the frames that were left out have read when they were looked at."""
        return {place for seen in self._used for place in seen.places()}

    def _now(self) -> int:
        return self.doubts + (0 if self._outside is None else self._outside())

    def begin(self, frame: types.FrameType, stack: Stack, known: Known) -> Key | None:
        """What decides what a frame that begins will do; ``None``: that is not known."""
        if self._outside is None or _has_hooks_of_autograd(True):
            return None
        code = frame.f_code
        slots = _given_to(code)
        words = None if slots is None else stack.words(frame)
        if words is None or slots is None:
            return None
        parts = _Parts(known, self)
        try:
            # A mode that is on must not be asked for the shape of a tensor.
            with torch._C.DisableTorchFunction():
                for at in slots:
                    parts.add(stack.value(words, at))
                for mode in modes():
                    parts.add(mode)
                for setting in known.settings():
                    parts.add(setting)
        except _NoKey:
            return None
        around = (
            address(code),
            address(frame.f_globals),
            address(frame.f_builtins),
            torch.is_grad_enabled(),
            torch._C._dispatch_tls_local_include_set().raw_repr(),
            torch._C._dispatch_tls_local_exclude_set().raw_repr(),
            torch.get_default_dtype(),
        )
        self._alive[address(code)] = code, frame.f_globals
        return Key(
            (*around, *parts.found),
            parts.objects,
            parts.same,
            parts.tensors,
            self._now(),
            len(known.places),
            len(self.read),
        )

    def repeated(self, key: Key) -> Seen | None:
        """The frame that one with this key repeats: it reads nothing new, nor do those in it."""
        alike = self._seen.get(key.parts)
        seen = None if alike is None else alike.seen.get(key.by)
        if seen is None or not seen.holds():
            return None
        self._used.add(seen)
        self.read.append(seen)
        return seen

    def is_alike(self, key: Key, asked: Callable[[Seen], bool]) -> bool:
        """Whether a frame reads what another one has read that began in the same way.

        Args:
            key: that of the frame.
            asked: asks of its objects what was read of others; gives whether the answers are
                alike.
        """
        alike = self._seen.get(key.parts)
        if alike is None or not key.objects or alike.failures > _MAX_FAILURES:
            return False
        for at, seen in enumerate(alike.looked_at):
            if asked(seen):
                alike.looked_at.insert(0, alike.looked_at.pop(at))
                alike.failures -= 1
                self.end(key, was_left_out=True)
                return True
        alike.failures += 1
        return False

    def end(self, key: Key, was_left_out: bool = False) -> Seen | None:
        """The frame with this key has ended, or is left out after all that it reads was asked.

        Gives it if it can be repeated.
        """
        if self._outside is None or self._now() != key.doubts:
            return None
        seen = Seen(dict.fromkeys(self.read[key.read :]), key)
        # What was first read in it holds what it held.
        if not all(part.number >= key.places or part.holds() for part in seen.parts):
            return None
        alike = self._seen.setdefault(key.parts, _Alike())
        alike.seen[key.by] = seen
        self.read[key.read :] = [seen]
        if was_left_out:
            self._used.add(seen)
        else:
            alike.looked_at = [seen, *alike.looked_at[: _MAX_KINDS - 1]]
        return seen

    def outcome(
        self, frame: types.FrameType, value: Any, stack: Stack, known: Known
    ) -> tuple[Outcome, list[torch.Tensor]] | None:
        """What a frame that ends gives and what its variables hold, and the tensors in there that
        the run has made; ``None``: that is not known."""
        words = stack.words(frame)
        if words is None:
            return None
        parts = _Parts(known, self)
        try:
            with torch._C.DisableTorchFunction():
                parts.add(value)
                for at in range(variables_of(frame.f_code)):
                    item = stack.value(words, at)
                    parts.add(_UNBOUND if item is NOTHING else item)
        except _NoKey:
            return None
        return Outcome(parts.found, list(map(address, parts.objects))), parts.tensors

    def keep(self, function: types.FunctionType) -> None:
        """The numbers of what ``function`` runs are to stay its own."""
        code = function.__code__
        self._alive[address(code)] = code, function.__globals__

    def plain(self, item: Any, cls: type, known: Known) -> Plain | None:
        """What objects of the class of ``item`` hold; ``None``: that is not known."""
        found = self._kinds.get(address(cls))
        if found is None:
            found = self._kinds[address(cls)] = cls, None
            base = in_c.base_in_c(cls)
            get = raw.getter_of_attributes_of(cls)
            if (
                get is not None
                and raw.is_mutable(cls)
                and base in (None, dict, OrderedDict)
                and raw.has_usual_attributes(cls)
                and not known.is_made(cls)
                and not raw.slots(item)
                # Nobody knows in which frame it ends.
                and not any("__del__" in raw.namespace(base) for base in raw.mro(cls))
            ):
                found = self._kinds[address(cls)] = cls, Plain(get, base is not None)
        return found[1]


@per_code
def _given_to(code: types.CodeType) -> list[int] | None:
    """Where the arguments of a function and the variables of functions around it lie; ``None``:
    that is not known."""
    if not code.co_flags & inspect.CO_OPTIMIZED or code.co_flags & _NOT_PLAIN_CODE:
        return None
    if not all(arguments_of("RAISE_VARARGS", code)):
        return None  # what it raises again may be what is handled around it
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    places = places_of(code)
    names = (*code.co_varnames[:count], *code.co_freevars)
    return [places[name] for name in names] if all(name in places for name in names) else None


class _Parts:
    """Makes the key of one frame."""

    def __init__(self, known: Known, repeats: Repeats) -> None:
        self._known, self._repeats = known, repeats
        self._numbers: dict[int, int] = {}
        self.found: list[Any] = []
        self.objects: list[Any] = []
        self.same: list[Any] = []
        self.tensors: list[torch.Tensor] = []

    def add(self, item: Any, depth: int = 0) -> None:
        """Add what is equal for two objects that are the same; it says itself where it ends."""
        add = self.found.append
        cls = type(item)
        kind = address(cls)
        add(kind)
        if kind in _PLAIN:
            return add(item)
        if cls is float or cls is complex:
            return add(repr(item))
        at = address(item)
        if kind in _SINGLE or cls is Size:  # what code learns of it is seen where it does
            return add(at if kind in _SINGLE else None)
        if item is NOTHING:
            raise _NoKey
        is_state = self._known.is_the_same(item)
        if is_state and not self._is_one_of_a_kind(item, cls):
            self.same.append(item)
            return self.found.extend((_ITSELF, at))
        number = self._numbers.get(at)
        if number is not None:  # which of the arguments are one object matters as well
            return self.found.extend((_AGAIN, number))
        self._numbers[at] = len(self._numbers)
        if is_state:
            add(_OLD)
            return self.objects.append(item)
        add(_NEW)
        if len(self._numbers) > _MAX_PARTS or depth > _MAX_DEPTH:
            raise _NoKey
        if raw.has_weak_references(item):
            raise _NoKey  # one of them may be told of its end
        if cls is torch.Tensor:
            return self._add_tensor(item)
        if cls is tuple or cls is torch.Size:
            return self._add_all(tuple.__iter__(item), depth)
        if cls is slice:
            return self._add_all((item.start, item.stop, item.step), depth)
        if not self._known.is_made(item):
            raise _NoKey
        return self._add_all(self._inside(item, cls), depth)

    def _add_all(self, parts: Iterable[Any], depth: int) -> None:
        at = len(self.found)
        self.found.append(0)
        count = 0
        for count, part in enumerate(parts, 1):  # noqa: B007
            self.add(part, depth + 1)
        self.found[at] = count

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        look = look_of(tensor)
        if look is None or tensor.requires_grad or not self._known.is_made(tensor):
            raise _NoKey
        base = tensor._base
        if base is not None and raw.has_weak_references(base) and self._known.is_made(base):
            raise _NoKey  # it may end with its view
        if tensor.grad is not None:
            raise _NoKey
        self.found.extend(look)
        self.tensors.append(tensor)

    def _is_one_of_a_kind(self, item: Any, cls: type) -> bool:
        """Whether another object could have the same role."""
        is_plain = cls in LIKE_OTHERS or self._repeats.plain(item, cls, self._known) is not None
        return is_plain and not self._known.is_given(item)

    def _inside(self, item: Any, cls: type) -> Iterable[Any]:
        """The parts of an object that the run has made."""
        if cls is list:
            return list.__iter__(item)
        if cls is dict or cls is OrderedDict:
            return itertools.chain.from_iterable(raw.contents(item))
        if cls is types.MethodType:
            return item.__func__, item.__self__
        if cls is types.CellType:
            return _held_by(item)
        if cls is types.FunctionType:
            if getattr(item, "__annotate__", None) is not None:  # Python 3.14: to ask would run it
                raise _NoKey
            parts = (item.__closure__, item.__defaults__, item.__kwdefaults__, item.__dict__)
            hints = item.__annotations__, getattr(item, "__type_params__", ())
            self._repeats.keep(item)
            runs = address(item.__code__), address(item.__globals__)
            names = item.__name__, item.__qualname__, item.__module__, item.__doc__
            return *runs, *parts, *hints, *names
        plain = self._repeats.plain(item, cls, self._known)
        if plain is None:
            raise _NoKey
        own: dict[Any, Any] = plain.attributes(item)
        if not all(type(name) is str for name in own):
            raise _NoKey
        held = raw.contents(item) if plain.is_dict else ()
        return itertools.chain((len(own),), own, own.values(), *held)


# Ways to be the same: only itself; one that was met before; an object that was there before the
# run; one that the run has made.
_ITSELF, _AGAIN, _OLD, _NEW = "itself", "again", "old", "new"


def look_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """What a function can ask of a tensor beside its data; ``None``: there is more."""
    if tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided:
        return None
    if _attributes_of(tensor) or (_has_names is not None and _has_names(tensor)):
        return None
    return (
        tensor.dtype,
        tensor.device,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    )


# They run where autograd saves a tensor, and may read and write anything.
_has_hooks_of_autograd: Any = torch._C._autograd._top_saved_tensors_default_hooks


def modes() -> Iterator[Any]:
    """What is told of each function of torch and of each operator; ours are always there."""
    in_c: Any = torch._C
    for count, at in (
        (in_c._len_torch_function_stack, in_c._get_function_stack_at),
        (in_c._len_torch_dispatch_stack, in_c._get_dispatch_stack_at),
    ):
        for mode in map(at, range(count())):
            if not raw.module_of(type(mode)).startswith(_OURS):
                yield mode


_OURS = f"{__name__.partition('.')[0]}."
_attributes_of: Any = raw.getter_of_attributes_of(torch.Tensor)
_has_names: Any = getattr(torch.Tensor, "has_names", None)  # torch 2.13 knows no names


def _held_by(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty
        return ()
