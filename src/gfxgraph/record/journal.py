"""Repeats the results of ``no_graph`` functions, so that further runs need not call them again.

Such a function may count, send or write, so it runs once in each call of the user's: in the
caller's own run, and in each replay. Warm-up, capture and the first replay repeat its result.
The same goes for what takes part in a collective (``exchanges.py``).
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree

from ..device import generator_state
from ..device.overrides import WithoutModes
from ..errors import CaptureError
from .effects import Same, StorageNames, storage_key, tensors_in
from .exchanges import DONE, Exchange, Progress
from .handed import Caller, Hands, Plain, hand_out, is_size
from .mutations import Mutations

__all__ = [
    "Effects",
    "Journal",
    "Judge",
    "Look",
    "Place",
    "inside_no_graph",
    "inside_transform",
    "interrupting",
    "is_remembering",
    "is_repeating",
    "perform",
]

Judge = Callable[[torch.Tensor, torch.Tensor], "str | None"]
"""Describes how a tensor differs from the one that it should equal; ``None``: it does not."""

Place: TypeAlias = tuple[str, Any, Any]
"""The name of something that was rebound, the object that holds it, and the key in there."""


@dataclass(frozen=True)
class Effects:
    """What a call did to Python objects.

    Attributes:
        given: names of what it changed in its arguments.
        places: what else it rebound.
        keeps: storage key -> name, of the tensors that the function reaches after the call.
        kept: storage keys of those that it reached before.
    """

    given: Sequence[str] = ()
    places: Sequence[Place] = ()
    keeps: Mapping[int, str] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()


Look: TypeAlias = Callable[[Callable[..., Any], Any, Any], Callable[[], Effects]]
"""Looks at a function and its arguments before a call; what it gives tells the effects after it."""


class Spoilt(Exception):
    """A replay cannot go on: a function has changed what the graphs rely on."""


@dataclass
class _Handed:
    """A tensor that a call gave, or was given, and that others can reach too."""

    name: str
    reference: weakref.ref[torch.Tensor]
    version: int | None
    value: torch.Tensor
    #: Where it is known that others reach it.
    tensor: torch.Tensor | None = None

    def share(self) -> None:
        """Others reach it."""
        self.tensor = self.reference()

    def is_rewritten(self) -> bool:
        """Whether others reach it, and somebody has written to it since."""
        tensor = self.tensor
        if tensor is None:
            return False
        if self.version is not None:
            return _version(tensor) != self.version
        return not torch.equal(tensor, self.value)


@dataclass
class _Call:
    """One call: its tensors before, those that it may have written, and its result.

    ``own`` are the tensors of a replay; where the result is one of them, a repetition returns that
    of the next call. ``states`` are the generators after it. ``gives_views``: it returned a view of
    an argument. ``error``: it raised this instead of returning. ``others``: arguments of the
    graphed function to which it has written, and what it left there. ``unseen``: whether it did so
    in the caller's own run, without being given them. ``moved``: which of its tensors it has given
    other memory, and ``laid_out`` another shape: sizes, strides and by how much the first element
    has moved. ``undefined``: which of them nobody had written to (``torch.empty``).
    """

    fn: Callable[..., Any]
    given: list[torch.Tensor]
    written: dict[int, torch.Tensor]
    result: Any
    own: list[torch.Tensor] | None
    states: list[tuple[torch.Generator, torch.Tensor]]
    gives_views: bool = False
    error: Exception | None = None
    effects: Effects = field(default_factory=Effects)
    mutations: Mutations | None = None
    others: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    unseen: bool = False
    moved: frozenset[int] = frozenset()
    laid_out: Mapping[int, tuple[Any, Any, int]] = field(default_factory=dict)
    undefined: frozenset[int] = frozenset()
    #: Of an exchange that goes on, the tensors that it writes to, until they are in ``written``.
    under_way: Mapping[int, torch.Tensor] = field(default_factory=dict)

    @property
    def is_exchange(self) -> bool:
        """Whether it took part in a collective."""
        return isinstance(self.fn, Exchange)

    def settle(self) -> None:
        """The exchange is over: keep what it has written."""
        if self.under_way:
            with _unseen():
                self.written = {n: _copy(tensor) for n, tensor in self.under_way.items()}
            self.under_way = {}

    def preserve(self, tensors: list[torch.Tensor]) -> None:
        """Keep what it has left in ``tensors``, which will be overwritten."""
        for position, value in self.written.items():
            if any(value is tensor for tensor in tensors):
                self.written[position] = _copy(value)

    def give(self, given: list[torch.Tensor], args: Any = ()) -> Any:
        """Repeat the effects of the call on ``given`` and the generators, and return its result.

        Args:
            given: the tensors of this call.
            args: all its arguments: containers among them get what they got in the call.
        """
        for generator, state in self.states:
            generator.set_state(state)
        for position, value in self.written.items():
            if position in self.moved:
                given[position].data = value.clone()
                continue
            if position in self.laid_out:
                sizes, strides, by = self.laid_out[position]
                tensor = given[position]
                with torch.no_grad():
                    tensor.as_strided_(sizes, strides, tensor.storage_offset() + by).copy_(value)
                continue
            with _unseen():
                # What was in a buffer before something was received there may be anything. So may
                # what was in one that nobody had written to.
                is_known = not self.is_exchange and position not in self.undefined
                same = is_known and bool(self.given)
                same = same and torch.equal(self.given[position], value)
            if not same:
                with torch.no_grad():
                    given[position].copy_(value)
        for tensor, value in self.others:
            with torch.no_grad():
                tensor.copy_(value)

        def hand_out(value: Any) -> Any:
            if isinstance(value, Same):
                return given[value.position]
            if not isinstance(value, torch.Tensor):
                return value
            if self.own is None:  # it is given to several runs
                return value.clone()
            same = Same.of(value, self.own)
            return _view_like(value, self.own, given) if same is None else given[same.position]

        if self.mutations is not None:
            self.mutations.repeat(
                args, lambda tree: pytree.tree_map(hand_out, tree, is_leaf=is_size)
            )
        if self.error is not None:
            raise self.error
        return pytree.tree_map(hand_out, self.result, is_leaf=is_size)


class _Local(threading.local):
    journal: Journal | None = None
    offered: Journal | None = None
    done: deque[_Call] | None = None
    inside = False


_local = _Local()


def is_repeating() -> bool:
    """Whether this thread repeats calls, and makes none."""
    return _local.journal is not None and _local.journal._left is not None


def is_remembering() -> bool:
    """Whether this thread remembers the calls that it makes, or goes on after some."""
    return _local.journal is not None or bool(_local.done)


class Journal:
    """The calls of one run, in order.

    Args:
        generators: generators from which both the calls and the rest of the run may draw.
        look: looks at what the calls do to Python objects. Default: nobody does.
        disturbed: of a replay, names of what the graphs rely on and is no longer as it was.
        caller: of a replay, the arguments of its call. Default: it is the caller's own run.
        leaves: of the caller's own run, the tensors among its arguments.

    Attributes:
        spoilt: why a replay could not go on; "" if it could.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator] = (),
        look: Look | None = None,
        disturbed: Callable[[], Sequence[str]] = lambda: (),
        caller: Caller | None = None,
        leaves: Sequence[torch.Tensor] = (),
    ) -> None:
        self.spoilt = ""
        self._reached: set[int] = set()
        #: Storage key -> function, of results that the function keeps.
        self._kept: dict[int, str] = {}
        self._returned = ""
        self._caller, self._leaves = caller, leaves
        self._look: Look = look or (lambda fn, args, kwargs: Effects)
        self._disturbed = disturbed
        self._storages = StorageNames()
        self._handed: list[tuple[int, _Handed]] = []
        self._rewritten: list[str] = []
        self._transformed = self._unkept = ""
        self._generators = tuple(generators)
        self._calls: list[_Call] = []
        self._left: deque[_Call] | None = None
        self._last_given: list[list[torch.Tensor]] = []
        self._expected: list[list[torch.Tensor]] = []
        self._is_complete = False
        self._judge: Judge | None = None

    @classmethod
    def of_the_call(cls, look: Look | None = None) -> Journal:
        """The journal of the caller's own run; an empty one if there was none."""
        return _local.offered or cls(look=look)

    @property
    def reached(self) -> frozenset[int] | None:
        """Storage keys of what the functions reach without being given it; ``None``: they reach
        an argument in this way, and another one in the next call."""
        of_call = map(storage_key, self._leaves)
        return frozenset(self._reached) if self._reached.isdisjoint(of_call) else None

    @contextmanager
    def offered(self) -> Iterator[None]:
        """Captures inside repeat the calls."""
        before, _local.offered = _local.offered, self
        try:
            yield
        finally:
            _local.offered = before

    @contextmanager
    def playing(self, judge: Judge | None = None) -> Iterator[None]:
        """Remember the calls of the first run inside; repeat them in all further runs.

        Args:
            judge: compares the arguments of a repeated call with those of the run before; ``None``:
                no comparison.

        Raises:
            CaptureError: other functions are called, or with other tensors.
        """
        before, _local.journal = _local.journal, self
        self._left = deque(self._calls) if self._is_complete else None
        self._judge = judge
        if self._last_given:  # a capture calls nothing
            self._expected, self._last_given = self._last_given, []
        try:
            yield
            if not self._is_complete:
                with _unseen():
                    self._rewritten = [h.name for _, h in self._handed if h.is_rewritten()]
                self._handed.clear()
            self._is_complete = True
        finally:
            _local.journal = before
            self._judge = None

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """The run inside begins with calls that were already made: they are not made again."""
        before, _local.done = _local.done, deque(self._calls)
        try:
            yield
        finally:
            _local.done = before

    def repeated(
        self, fn: Callable[..., Any], given: list[torch.Tensor], undefined: frozenset[int]
    ) -> Any:
        """The result of ``fn`` in the first run; ``undefined``: see :class:`Hands`."""
        assert self._left is not None
        name = _name(fn)
        if not self._left or not _is_same(self._left[0].fn, fn):
            raise CaptureError(
                f"{name} is called in another order than in the call before, and may run only "
                "once in each call.",
                transient=True,
            )
        call = self._left.popleft()
        call.undefined |= undefined
        if call.gives_views:
            raise CaptureError(
                f"{name} returns a view of its argument; a write to it would be lost. Let it "
                "return the argument itself, or a copy."
            )
        number = len(self._last_given)
        expected = self._expected[number] if number < len(self._expected) else call.given
        with _unseen():
            for n, (tensor, before) in enumerate(zip(given, expected, strict=False)):
                how: str | None = None
                if tensor.shape != before.shape or tensor.dtype != before.dtype:
                    how = f"its shape is {tuple(tensor.shape)}, it was {tuple(before.shape)}"
                elif self._judge is not None and n not in call.undefined:
                    how = self._judge(tensor, before)
                if how is not None or len(given) != len(expected):
                    raise CaptureError(
                        f"{name} is given another tensor than in the run before ({how}), and may "
                        "run only once in each call.",
                        transient=True,
                    )
            self._last_given.append([_copy(tensor) for tensor in given])
        return call.give(given)

    def refuse(self, reaches: Callable[[Any, Any], bool]) -> None:
        """Raise if a call did what a replay would not repeat for the rest of the function.

        Args:
            reaches: whether the rest of the function may read a key of an object.

        Raises:
            CaptureError: it did. Perhaps in the first call only.
        """
        if self._transformed:
            raise CaptureError(
                f"{self._transformed} is called in torch.vmap or another transform of torch.func, "
                "where no graph can be cut. Call it outside of the transform."
            )
        if self._unkept:
            raise CaptureError(
                f"there was no memory to keep what came out of {self._unkept} for the runs of a "
                "capture, which send nothing. Free some, or let gfxgraph refuse collectives "
                '(collectives="refuse").',
                transient=True,
            )
        for call in self._calls:
            if call.under_way:
                raise CaptureError(
                    f"{_name(call.fn)} still goes on when the call ends, and nothing was waited "
                    "for. Wait for it (wait()) before the function returns."
                )
            effects = call.effects
            shared = [name for name, item, key in effects.places if reaches(item, key)]
            for names, whose in (
                (effects.given, "in its arguments"),
                (shared, "which the rest of the function can read"),
            ):
                if names:
                    raise CaptureError(
                        f"{_name(call.fn)} changes {', '.join(sorted(names)[:3])} in Python, "
                        f"{whose}: a replay of what follows would not see it. Let it return the "
                        "value.",
                        transient=True,
                    )
            if call.unseen:
                raise CaptureError(
                    f"{_name(call.fn)} writes to a tensor among the arguments of the graphed "
                    "function, which it is not given itself: a graph would not see that. Pass the "
                    "tensor to it."
                )
        if self._returned:
            raise CaptureError(self._returned)
        for name in self._rewritten:
            raise CaptureError(
                f"{name} gives out or keeps a tensor that somebody writes to later in the same "
                "call; graphs have copies of it, and would not see that. Let it return or keep a "
                "copy (clone())."
            )

    def note_result(self, result: Any) -> None:
        """The caller's own run has given this."""
        keys = map(storage_key, tensors_in(result))
        name = next((self._kept[key] for key in keys if key in self._kept), "")
        self._returned = name and _KEEPS.format(name)

    def keep(self, returned: Sequence[tuple[int, int]]) -> bool:
        """Whether, in a replay, somebody else has a tensor that a function gave, and that the call
        returns: then the call has to give that one, and no copy.

        Args:
            returned: of such tensors the number of the call, and that among the tensors it gave.
        """
        given = [list(tensors_in(call.result)) for call in self._calls] if returned else []
        for call, number in returned:
            if _is_shared(given[call], number, [t for part in given for t in part]):
                self.spoilt = _KEEPS.format(_name(self._calls[call].fn))
                return True
        return False

    def note_transform(self, fn: Callable[..., Any]) -> None:
        """A function was called inside of a transform of torch.func."""
        self._transformed = self._transformed or _name(fn)

    def ran(self, fn: Callable[..., Any], hands: Hands, args: Any, kwargs: Any) -> Any:
        """Run ``fn``, and remember its result and the tensors that it may have written."""
        if isinstance(fn, Exchange):
            return self._exchanged(fn, hands, args, kwargs)
        if self._caller is not None:
            return self._ran_in_replay(fn, hands, args, kwargs, self._caller)
        given = list(tensors_in(args, kwargs))
        with _unseen():
            before = list(map(_copy, given))
            look = self._look(fn, args, kwargs)
            is_rewritten = self._watch_others(given)
        error, result = _outcome(fn, args, kwargs, given)

        def keep(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return Same.of(value, given) or _copy(value)

        with _unseen():
            effects = look()
            self._reached |= effects.keeps.keys() | effects.kept
            after = dict(enumerate(map(_copy, given)))
            self._last_given.append(before)
            kept = pytree.tree_map(keep, result, is_leaf=is_size)
            new = [t for t in tensors_in(result) if Same.of(t, given) is None]
            views = _share_memory(new, given)
            call = _Call(fn, before, after, kept, None, self._states(), views, error, effects)
            call.unseen = is_rewritten()
            self._calls.append(call)
            self._hand(fn, effects, given, new)
        if error is not None:
            raise error
        return result

    def _exchanged(self, fn: Exchange, hands: Hands, args: Any, kwargs: Any) -> Any:
        """Take part in a collective, in the very memory of the run, and remember what came out.

        In a replay the arguments are always the same.
        """
        is_replay = self._caller is not None
        before: list[torch.Tensor] = []
        if is_replay and hands.exchanged is not None:
            given, written = hands.exchanged
        else:
            given, written, before = self._looked_at(fn, args, kwargs, is_replay)
            if is_replay:
                hands.exchanged = given, written
        call = _Call(fn, before, {}, None, None, [])
        self._calls.append(call)
        try:
            result = _run(fn, args, {**kwargs, **hands.progress}, given)
        except Exception as error:  # repeated by a run that goes on after it
            call.error = error
            raise
        call.under_way = written
        if isinstance(result, Progress) and result.is_open:
            call.result = result
            result.when_done(functools.partial(self._settle, call))
        else:
            self._settle(call, result, given)
        return result

    def _settle(self, call: _Call, result: Any = None, given: Sequence[torch.Tensor] = ()) -> None:
        """Keep what came out of an exchange that is over, to which ``given`` was given."""

        def keep(tensor: torch.Tensor) -> Any:
            same = Same.of(tensor, given)
            # In a replay the graphs copy what is new to memory of their own.
            is_new = self._caller is not None and not call.written
            return same or (tensor if is_new else _copy(tensor))

        try:
            call.settle()
            if result is None or result is DONE:
                call.result = call.result or result  # a Progress stays
                return
            with _unseen():
                if isinstance(result, torch.Tensor):
                    call.result = keep(result)
                else:
                    call.result = pytree.tree_map_only(torch.Tensor, keep, result, is_leaf=is_size)
        except torch.OutOfMemoryError as error:
            # A run that goes on after it raises that, since it has not what came out.
            call.error = error
            if self._caller is not None:
                raise
            self._unkept = _name(call.fn)

    def _looked_at(
        self, fn: Exchange, args: Any, kwargs: Any, is_replay: bool
    ) -> tuple[list[torch.Tensor], dict[int, torch.Tensor], list[torch.Tensor]]:
        """The tensors that an exchange is given; those that it writes to, by number; copies."""
        before: list[torch.Tensor] = []
        with _unseen():
            given = list(tensors_in(args, kwargs))
            if not is_replay:
                try:
                    before = list(map(_copy, given))
                except torch.OutOfMemoryError:  # the call itself may well have room
                    self._unkept = _name(fn)
            numbers = {id(tensor): n for n, tensor in enumerate(given)}
            written = {numbers[id(tensor)]: tensor for tensor in fn.written(args, kwargs)}
        if not is_replay:
            self._last_given.append(before)
        return given, written, before

    def _hand(
        self,
        fn: Callable[..., Any],
        effects: Effects,
        given: list[torch.Tensor],
        new: list[torch.Tensor],
    ) -> None:
        """Remember the tensors that the rest of the function has, and others too."""
        self._kept |= {k: _name(fn) for k in map(storage_key, new) if k in effects.keeps}
        keys = list(map(self._storages, new))
        for tensor, key in zip(new, keys, strict=True):
            handed = _handed(fn, tensor)
            same = [other for key_of_other, other in self._handed if key_of_other == key]
            if storage_key(tensor) in effects.keeps or keys.count(key) > 1 or same:
                for one in (handed, *same):
                    one.share()
            self._handed.append((key, handed))
        for tensor in given:
            if storage_key(tensor) in effects.keeps.keys() - effects.kept:
                handed = _handed(fn, tensor)
                handed.share()
                self._handed.append((self._storages(tensor), handed))

    def _watch_others(self, given: list[torch.Tensor]) -> Callable[[], bool]:
        """Whether arguments that are not among ``given`` have been written to since."""
        keys = set(map(storage_key, given))
        others = [leaf for leaf in self._leaves if storage_key(leaf) not in keys]
        before = [_copy(t) if t.is_inference() else _version(t) for t in others]

        def is_rewritten() -> bool:
            return not all(
                torch.equal(leaf, was) if isinstance(was, torch.Tensor) else _version(leaf) == was
                for leaf, was in zip(others, before, strict=True)
            )

        return is_rewritten

    def _ran_in_replay(
        self, fn: Callable[..., Any], hands: Hands, args: Any, kwargs: Any, caller: Caller
    ) -> Any:
        """Run ``fn`` between two graphs, doing as little as possible beside.

        Raises:
            Spoilt: it changed what the next graph relies on.
        """
        caller.write_back(hands.written)
        plain = hands.plain_arguments(args, kwargs)
        if plain:
            return self._ran_plainly(fn, hands, plain, caller)
        self._preserve(tensors_in(args, kwargs), caller)
        with torch.no_grad():
            (args, kwargs), pairs = hand_out((args, kwargs), hands, caller)
        own = list(tensors_in(args, kwargs))
        versions = list(map(_version, own))
        mutations, memory = Mutations((args, kwargs)), list(map(storage_key, own))
        layouts = list(map(_layout, own))
        error, result = _outcome(fn, args, kwargs, own)
        copies = {id(tensor): fixed for tensor, fixed in pairs if id(fixed) in caller.copies}
        changed = {}
        for position, tensor in enumerate(own):
            # A write through `.data` is seen by no version, and has to come out of a copy too.
            if versions[position] is None or _version(tensor) != versions[position]:
                changed[position] = _copy(tensor)
            elif id(tensor) in copies:
                # Nothing of ours writes to a copy of what the graphs use no more.
                fixed = id(copies[id(tensor)])
                is_needed = fixed in hands.needed or fixed in hands.origins
                changed[position] = _copy(tensor) if is_needed else tensor
        is_given = not any(origin.kind == "container" for origin in hands.origins.values())
        others = caller.read_again(own if is_given else None)
        for position in changed:
            static = copies.get(id(own[position]))
            if static is not None and changed[position] is not own[position]:
                with torch.no_grad():
                    static.copy_(own[position])
                if id(static) in hands.origins:
                    caller.write_back([hands.origins[id(static)].what])
        moved = frozenset(n for n, t in enumerate(own) if storage_key(t) != memory[n])
        laid_out = _changed_layouts(own, layouts, moved)
        changed |= {n: _copy(own[n]) for n in (*moved, *laid_out)}
        call = _Call(
            *(fn, [], changed, result, own, self._states()),
            error=error,
            others=others,
            moved=moved,
            laid_out=laid_out,
        )
        new = [t for t in tensors_in(result) if Same.of(t, own) is None]
        self._check(
            call,
            mutations if mutations.happened() else None,
            lambda: _share_memory(new, own),
        )

        def exchange(tensor: torch.Tensor) -> torch.Tensor:
            found = next((fixed for handed, fixed in pairs if handed is tensor), None)
            found = caller.fixed(tensor) if found is None else found
            return tensor if found is None else found

        return pytree.tree_map_only(torch.Tensor, exchange, result, is_leaf=is_size)

    def _ran_plainly(
        self, fn: Callable[..., Any], hands: Hands, plain: Plain, caller: Caller
    ) -> Any:
        """The same for a function that is given nothing but copies, and no container."""
        self._preserve(plain.fixed, caller)
        with torch.no_grad():
            own = plain.copies(caller)
        args, kwargs = plain.filled(own)
        layouts, places = list(map(_layout, own)), [tensor.data_ptr() for tensor in own]
        error, result = _outcome(fn, args, kwargs, own)
        moved = frozenset(n for n, at in enumerate(places) if _moved(own[n], at, layouts[n]))
        laid_out = _changed_layouts(own, layouts, moved)
        others = caller.read_again(own)
        if hands.needed:
            with torch.no_grad():
                for tensor, fixed in zip(own, plain.fixed, strict=True):
                    if id(fixed) in hands.needed:
                        fixed.copy_(tensor)
        call = _Call(
            *(fn, [], dict(enumerate(own)), result, own, self._states()),
            error=error,
            others=others,
            moved=moved,
            laid_out=laid_out,
        )
        is_one = isinstance(result, torch.Tensor)
        given = [result] if is_one else tensors_in(result)
        new = [t for t in given if all(t is not other for other in own)]

        def shares() -> bool:
            found = (e for e in map(_extent, new) if e is not None)
            reach = zip(places, plain.extents, strict=True)
            ours = [(at - before, at + after) for at, (before, after) in reach]
            return any(a < d and c < b for a, b in found for c, d in ours)

        has_attributes = any(map(vars, own))
        self._check(
            call,
            Mutations((args, kwargs), were_empty=True) if has_attributes else None,
            shares,
        )
        fixed_of = {id(t): fixed for t, fixed in zip(own, plain.fixed, strict=True)}

        def exchange(tensor: torch.Tensor) -> torch.Tensor:
            found = fixed_of.get(id(tensor))
            found = caller.fixed(tensor) if found is None else found
            return tensor if found is None else found

        return (
            exchange(result)
            if is_one
            else pytree.tree_map_only(torch.Tensor, exchange, result, is_leaf=is_size)
        )

    def _preserve(self, fixed: list[torch.Tensor], caller: Caller) -> None:
        """Keep what earlier functions have left in copies that are filled anew now."""
        known = caller.copies
        reused = [known[id(tensor)] for tensor in fixed if id(tensor) in known]
        for call in self._calls if reused else ():
            call.preserve(reused)

    def _check(self, call: _Call, mutations: Mutations | None, shares: Callable[[], bool]) -> None:
        """Remember a call in a replay, and raise its error, or that the replay cannot go on.

        Args:
            call: the call.
            mutations: what it has done to containers that it was given, if anything.
            shares: whether a tensor that it gave lies on the memory of an argument.

        Raises:
            Spoilt: the graphs after it cannot run.
        """
        self._calls.append(call)
        names: Sequence[str] = ()
        if mutations is not None:
            mutations.take_back()
            call.mutations, names = mutations, ("its arguments",)
        names = names or self._disturbed()
        if names:
            self.spoilt = (
                f"{_name(call.fn)} has changed {', '.join(names[:3])} in Python, which the graph "
                "after it relies on. Let it return the value."
            )
        elif call.moved or call.laid_out:
            self.spoilt = (
                f"{_name(call.fn)} gives an argument another shape or other memory, which it has "
                "not done before."
            )
        elif shares():
            self.spoilt = (
                f"{_name(call.fn)} gives a tensor on the memory of an argument, which it has not "
                "done before. Let it give a copy (clone())."
            )
        if call.error is not None:
            raise call.error
        if self.spoilt:
            raise Spoilt(self.spoilt)

    def _states(self) -> list[tuple[torch.Generator, torch.Tensor]]:
        return [(generator, generator_state(generator)) for generator in self._generators]


_KEEPS = (
    "{} keeps a tensor that it gives, and the call returns it; a replay would return a copy. Let "
    "it keep or give a copy (clone())."
)


def _is_shared(tensors: list[torch.Tensor], number: int, others: list[torch.Tensor]) -> bool:
    """Whether more refers to a tensor, or its memory, than the result and these two lists."""
    references = sys.getrefcount(tensors[number])
    tensor = tensors[number]
    mine = sum(tensor is other for other in others)
    if tensor.layout is not torch.strided:
        return references > _ALONE[0] + 3 * mine - 1
    key = storage_key(tensor)
    views = {id(other) for other in others if storage_key(other) == key}
    return references > _ALONE[0] + 3 * mine - 1 or _uses(tensor) > _ALONE[1] + len(views) - 1


def _uses(tensor: torch.Tensor) -> int:
    """How many tensors have its memory."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _alone() -> tuple[int, int]:
    tensors = [torch.empty(0, device="cpu")]
    references = sys.getrefcount(tensors[0])
    return references, _uses(tensors[0])


_ALONE = _alone()


def inside_no_graph() -> bool:
    """Whether this thread runs a ``no_graph`` function."""
    return _local.inside


_Layout: TypeAlias = "tuple[torch.Size, tuple[int, ...], int] | None"


def _layout(tensor: torch.Tensor) -> _Layout:
    if tensor.layout is not torch.strided:
        return None
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


def _changed_layouts(
    tensors: list[torch.Tensor], before: list[_Layout], moved: frozenset[int]
) -> dict[int, tuple[Any, Any, int]]:
    """See ``_Call.laid_out``."""
    return {
        n: (tensor.shape, tensor.stride(), int(tensor.storage_offset()) - was[2])
        for n, (tensor, was) in enumerate(zip(tensors, before, strict=True))
        if was is not None and n not in moved and _layout(tensor) != was
    }


def _moved(tensor: torch.Tensor, place: int, before: _Layout) -> bool:
    """Whether a tensor that was at ``place`` has other memory now."""
    at = tensor.data_ptr()
    if at == place:
        return False
    size, offset = tensor.element_size(), before[2] if before is not None else 0
    return at - tensor.storage_offset() * size != place - offset * size


def _share_memory(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether tensors of two lists share memory, be it by way of an array."""
    if not {*map(storage_key, some)}.isdisjoint(map(storage_key, others)):
        return True
    ours, theirs = ([s for s in map(_extent, part) if s is not None] for part in (some, others))
    return any(a < d and c < b for a, b in ours for c, d in theirs)


def _view_like(
    value: torch.Tensor, own: list[torch.Tensor], given: list[torch.Tensor]
) -> torch.Tensor:
    """The same view of a tensor of ``given`` as ``value`` is of one of ``own``, if it is a view."""
    for one, other in zip(own, given, strict=False):
        alike = value.dtype == one.dtype == other.dtype and one.stride() == other.stride()
        alike = alike and one.shape == other.shape and _extent(value) is not None
        if alike and _share_memory([value], [one]):
            steps = (value.data_ptr() - one.data_ptr()) // value.element_size()
            offset = other.storage_offset() + steps
            return other.detach().as_strided(value.shape, value.stride(), offset)
    return value


def _extent(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Where the storage of a tensor begins and ends; ``None``: it has no memory of its own."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not is_plain or tensor.layout is not torch.strided or tensor.is_meta:
        return None
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def inside_transform() -> bool:
    """Whether this thread is in ``torch.vmap`` or the like, whose tensors have no memory."""
    return torch._C._functorch.peek_interpreter_stack() is not None


_NO_HANDS = Hands()


def perform(
    fn: Callable[..., Any], hands: Hands | None = None, /, *args: Any, **kwargs: Any
) -> Any:
    """Call a ``no_graph`` function, or return its earlier result if this run repeats one.

    ``hands``: what the arguments stand for, where these are those of a capture.
    """
    journal = _local.journal
    if _local.inside or (journal is None and not _local.done):
        return fn(*_with_values(args), **_with_values(kwargs))
    if inside_transform():
        if journal is not None:
            journal.note_transform(fn)
        return fn(*_with_values(args), **_with_values(kwargs))
    if journal is None:
        return _run(fn, args, kwargs, list(tensors_in(args, kwargs)))
    if journal._left is not None:
        undefined = frozenset() if hands is None else hands.undefined
        return journal.repeated(fn, list(tensors_in(args, kwargs)), undefined)
    return journal.ran(fn, hands or _NO_HANDS, args, kwargs)


def _with_values(item: Any) -> Any:
    """``item`` with numbers in the place of what stands for numbers on the device: a function that
    keeps one would find the value of a later call in it."""
    cls = type(item)
    if cls is tuple or cls is list:
        parts = list(map(_with_values, item))
        is_same = all(map(operator.is_, parts, item))
        return item if is_same else cls(parts)
    if cls is dict:
        values = list(map(_with_values, item.values()))
        is_same = all(map(operator.is_, values, item.values()))
        return item if is_same else dict(zip(item, values, strict=True))
    read = getattr(cls, "value_on_host", None)
    return item if read is None else read(item)


@contextmanager
def interrupting() -> Iterator[None]:
    """The calls inside are no part of the run that goes on around: no journal is told of them."""
    before = _local.journal, _local.done
    _local.journal = _local.done = None
    try:
        yield
    finally:
        _local.journal, _local.done = before


def _outcome(
    fn: Callable[..., Any], args: Any, kwargs: Any, given: list[torch.Tensor]
) -> tuple[Exception | None, Any]:
    """The error that ``fn`` raised, or ``None``; and its result."""
    try:
        return None, _run(fn, args, kwargs, given)
    except Exception as error:  # raised again by the caller
        return error, None


def _run(fn: Callable[..., Any], args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
    if _local.done:
        if _is_same(_local.done[0].fn, fn):
            call = _local.done.popleft()
            result = call.give(given, (args, kwargs))
            if isinstance(result, Progress):
                own = list(call.under_way.values())
                return result.again(own, [given[n] for n in call.under_way])
            return result
        _local.done.clear()
    _local.inside = True
    try:
        return fn(*_with_values(args), **_with_values(kwargs))
    finally:
        _local.inside = False


class _unseen(WithoutModes):
    """Hide our own operations on tensors: they are none of the function's."""

    def __enter__(self) -> None:
        super().__enter__()
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(self._grad)
        super().__exit__(*error)


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    return one is other or (isinstance(one, Exchange) and one == other)


def _name(fn: Callable[..., Any]) -> str:
    """The name of the function in messages."""
    if isinstance(fn, Exchange):
        return f"{fn.name}, which sends something to other ranks,"
    return f"{getattr(fn, '__qualname__', 'a no_graph function')}(), which is marked no_graph,"


def _handed(fn: Callable[..., Any], tensor: torch.Tensor) -> _Handed:
    return _Handed(_name(fn), weakref.ref(tensor), _version(tensor), _copy(tensor))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
