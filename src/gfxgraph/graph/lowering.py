"""Lets the device decide where Python's own ``if`` and ``while`` read data.

A recording has told where a function reads values to decide by. Its statements there are rewritten
(``rewriting.py``) into ``cond`` and ``while_loop``, whose bodies become conditional nodes, and the
function is recorded once more. What is then captured has to give what the statements give, so each
of them, a *site*, has to be proven while that recording runs:

- Its bodies only compute: no operation in them writes to memory from before. What else no body can
  hold, a trial finds out, as for ``cond`` that is called by hand.
- All its ways have run before, in calls that were captured as they ran: a trial runs the Python of
  both branches, and code that the program has not run yet may do anything.
- What a site gives lies in new memory, while a statement may leave a name bound to what it was
  bound to before. So nothing after it may be able to tell: nobody writes to either memory, and the
  results of the function do not show which one they lie in.

Where a site fails, it stays a statement, and the host decides there.
"""

from __future__ import annotations

import dataclasses
import gc
import operator
import threading
import types
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree

from ..device.operators import outside_of_modes
from ..errors import ArgumentError, CaptureError
from ..interpose.codes import address
from ..interpose.source import Source
from ..record.effects import tensors_in
from ..record.interceptor import current_interceptor
from ..record.recorder import Event, Recorder
from .control_flow import Choice, Loop, decide, flag, is_on_device
from .rewriting import Rewritten
from .sites import Site

__all__ = ["Lowering", "OutgrownError", "SiteError", "Ways"]


class SiteError(CaptureError):
    """A site stays a statement."""


class OutgrownError(CaptureError):
    """A tree of graphs holds a site for which the device cannot decide on a new path."""


@dataclass
class Ways:
    """What is known of the sites of a callable.

    Attributes:
        measures: whether the device decides only where that was measured to be faster.
        ran: code, number of the site, and which way: those that calls have taken and that a graph
            has held.
        stuck: code and number of sites that no graph can hold.
    """

    measures: bool = False
    ran: set[tuple[types.CodeType, int, int]] = field(default_factory=set)
    stuck: set[tuple[types.CodeType, int]] = field(default_factory=set)


class _Active(threading.local):
    lowering: Lowering | None = None
    #: Whether statements note which way they take, and run as they were written.
    notes = False


_active = _Active()


class Lowering:
    """The sites of a callable at which the device decides.

    Args:
        events: where a recording has read values of the device.
        ways: what is known of the sites.

    Attributes:
        ran: the ways that were noted, see :class:`Ways`.
        why: for each site that stays a statement, where it is and why.
    """

    def __init__(self, events: Iterable[Event], ways: Ways) -> None:
        self.why: dict[str, str] = {}
        self.ran: set[tuple[types.CodeType, int, int]] = set()
        self._ways = ways
        self._sites: list[_Chosen] = []
        self._failed: tuple[_Chosen, str] | None = None
        #: Names of what sites gave in this run, and may have been there before.
        self._given: dict[int, _Given] = {}
        self._codes: dict[types.CodeType, Rewritten | str] = {}
        self._functions: list[tuple[types.FunctionType, types.CodeType, types.CodeType]] = []
        for event in events:
            self._meet(event)
        self._compile()

    @property
    def is_empty(self) -> bool:
        """Whether there is no site."""
        return not self._functions

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Inside, this thread notes which ways the statements take."""
        before, _active.notes = _active.notes, True
        try:
            with self.on():
                yield
        finally:
            _active.notes = before

    def drop_unknown(self) -> None:
        """Give up the sites whose ways have not all been taken, or that are known to be stuck."""
        for one in list(self._sites):
            if one not in self._sites:
                continue
            code, site = one.rewritten.code, one.site
            needed = (0, 1) if site.kind == "if" else (1,)
            if (code, site.number) in self._ways.stuck:
                self._drop(one, "it was tried before")
            elif not {(code, site.number, way) for way in needed} <= self._ways.ran | self.ran:
                # Where this is inside of another one, the host would have to decide in a body.
                for other in [o for o in self._sites if o.rewritten is one.rewritten]:
                    if other is one or other.site.number in site.within:
                        self._drop(other, "no call has gone each way so far")
        self._compile()

    def _meet(self, event: Event) -> None:
        if event.at is None or event.point.kind != "read":
            return
        code, instruction = event.at
        rewritten = self._codes.get(code)
        if rewritten is None:
            try:
                rewritten = Rewritten(code)
            except CaptureError as error:
                rewritten = str(error)
            self._codes[code] = rewritten
        if isinstance(rewritten, str):
            self.why[str(event.where)] = rewritten
            return
        site = rewritten.site_at(instruction)
        if site is None:
            self.why[str(event.where)] = "it is no test of an `if` or a loop"
        elif site.why:
            self.why[str(event.where)] = site.why
        else:  # this run may not have met those inside of it
            for found in (site, *rewritten.inside(site)):
                if not any((one.rewritten, one.site) == (rewritten, found) for one in self._sites):
                    where = dataclasses.replace(event.where, line=found.line)
                    self._sites.append(_Chosen(rewritten, found, where))

    def _compile(self) -> None:
        """Make the code of the sites that are left."""
        self._functions = []
        for code, rewritten in self._codes.items():
            chosen = [one for one in self._sites if one.rewritten is rewritten]
            if isinstance(rewritten, str) or not chosen:
                continue
            functions = [
                found
                for found in gc.get_referrers(code)
                if type(found) is types.FunctionType and found.__code__ is code
            ]
            if not functions:
                for one in chosen:
                    self._drop(one, "its function is made anew in each call")
                continue
            numbers = {one.site.number: one for one in chosen}
            helpers = {name: _bound(helper, numbers) for name, helper in _HELPERS.items()}
            try:
                new = rewritten.compiled(numbers, helpers)
            except CaptureError as error:
                for one in chosen:
                    self._drop(one, str(error))
                continue
            self._functions += [(function, code, new) for function in functions]

    def _drop(self, one: _Chosen, why: str) -> None:
        self._sites.remove(one)
        self.why[str(one.where)] = why

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, this thread runs the sites as calls; other threads run them as statements."""
        before, _active.lowering = _active.lowering, self
        self._given.clear()
        swapped = []
        try:
            for function, old, new in self._functions:
                if function.__code__ is old:
                    function.__code__ = new
                    swapped.append((function, old, new))
            yield
        finally:
            for function, old, new in swapped:
                if function.__code__ is new:
                    function.__code__ = old
            _active.lowering = before

    def functions(self) -> set[int]:
        """The addresses of the functions that run other code inside of :meth:`on`."""
        return {address(function) for function, _, _ in self._functions}

    def fails(self, one: _Chosen, why: str) -> SiteError:
        """Remember that a site cannot be lowered; the function may catch the error."""
        self._failed = self._failed or (one, why)
        return SiteError(f"{one.where}: {why}")

    def require_untold(
        self,
        outputs: Sequence[torch.Tensor],
        name: Callable[[Any], int],
        theirs: Container[int] | None,
    ) -> None:
        """Raise if the results of the function tell what a site gave from what was there before.

        Args:
            outputs: its results, and what it stores.
            name: gives the name of a tensor's memory.
            theirs: names of memory from outside, other than that of arguments: a call gets copies
                of all else. ``None``: it may store what it gets.

        Raises:
            SiteError: they do.
        """
        names = list(map(name, outputs))
        given = [self._given.get(found) for found in names]
        for n, mine in enumerate(given):
            if mine is None:
                continue
            same = theirs is None or any(old in theirs for old in mine.old)
            for m, other in enumerate(given):
                if outputs[m] is not outputs[n] and other is mine:
                    same |= not mine.distinct
                elif outputs[m] is not outputs[n]:
                    others = {names[m]} if other is None else other.old | {names[m]}
                    same |= not others.isdisjoint(mine.old | {names[n]})
            if same:
                raise self.fails(mine.site, "its function returns what it gives, or stores it")

    def note(self, given: _Given, names: set[int]) -> None:
        """Remember the ``names`` of what a site gave in this run."""
        for old in list(given.old):
            if old in self._given:
                given.old |= self._given[old].old
        self._given |= dict.fromkeys(names, given)

    def learn(self) -> bool:
        """Give up the site that has failed; whether one has."""
        if self._failed is None:
            return False
        one, why = self._failed
        self._failed = None
        if one in self._sites:
            self._ways.stuck.add((one.rewritten.code, one.site.number))
            self._drop(one, why)
        self._compile()
        return True


@dataclass
class _Given:
    """What a site gave, where the statement may give something else.

    Attributes:
        site: the site.
        old: names of memory from before that the statement may give.
        distinct: whether it gives different memory for each name.
    """

    site: _Chosen
    old: set[int]
    distinct: bool


class _Chosen:
    """A site at which the device decides."""

    def __init__(self, rewritten: Rewritten, site: Site, where: Source) -> None:
        self.rewritten, self.site, self.where = rewritten, site, where

    def error(self, why: str) -> SiteError:
        lowering = _active.lowering
        assert lowering is not None
        return lowering.fails(self, why)


def _bound(helper: Callable[..., Any], sites: _Sites) -> Callable[..., Any]:
    return lambda *args: helper(sites, *args)


_Sites: TypeAlias = "dict[int, _Chosen]"

# What rewritten code calls; ``number`` is that of the site.


def _lowers(sites: _Sites, number: int) -> bool:
    return _active.lowering is not None and not _active.notes and number in sites


def _ran(sites: _Sites, number: int, way: int) -> None:
    if _active.notes and _active.lowering is not None:
        _active.lowering.ran.add((sites[number].rewritten.code, number, way))


def _choose(
    sites: _Sites,
    number: int,
    test: Any,
    yes: Callable[..., Any],
    no: Callable[..., Any],
    given: tuple[Any, ...],
) -> Any:
    """What ``yes`` gives, or ``no``."""
    one = sites[number]
    if _tensor(test) is None:
        return yes(*given) if test else no(*given)
    gave = _Gave(one)

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda: gave.watch(function, given)

    choice = Choice("if", "if", _flag(one, test), (watched(yes), watched(no)), ())
    choice.roots = yes, no
    result = _decided(one, choice)
    gave.protect(one, result, ())
    return result


def _loop(
    sites: _Sites,
    number: int,
    goes_on: Callable[..., Any],
    turn: Callable[..., Any],
    names: tuple[str, ...],
    carry: tuple[Any, ...],
    ends: bool,
    limit: int | None,
) -> tuple[Any, ...]:
    """The names after a loop."""
    one = sites[number]
    for name, value in zip(names, carry, strict=True):
        if type(value) is not torch.Tensor or not _is_on_device(value):
            kind = _described(value)
            raise one.error(
                f"{name} is {kind}, and only plain tensors of the device are carried on"
            )
        _require_plain(one, value)
    gave, count, device = _Gave(one), len(carry), carry[0].device
    state = list(carry)
    if ends:  # whether its last turn goes on
        state.append(torch.ones((), dtype=torch.bool, device=device))  # only cond_fn reads it

    def cond_fn(*state: Any) -> torch.Tensor:
        test = goes_on(*state[:count])
        if ends and test is True:  # `while True`, and `for`
            return state[count]  # type: ignore[no-any-return]
        value = _flag(one, test)
        return value.logical_and(state[count]) if ends else value

    def body_fn(*state: Any) -> tuple[Any, ...]:
        new, goes = gave.watch(lambda: turn(*state[:count]), ())
        for old, tensor in zip(state, new, strict=False):
            if isinstance(tensor, torch.Tensor) and tensor.stride() != old.stride():
                raise one.error(f"strides change from {old.stride()} to {tensor.stride()}")
        more = [_flag(one, goes)] if ends else []
        return (*new, *more)

    spec = pytree.tree_structure(tuple(state))
    what = Loop(cond_fn, body_fn, state, spec, limit, asked=len(state) - count)
    what.roots = goes_on, turn
    result = _decided(one, what)
    new = tuple(result[:count])
    gave.protect(one, new, carry)
    return new


def _both(sites: _Sites, number: int, left: Callable[[], Any], right: Callable[[], Any]) -> Any:
    """``left() and right()``, of which only the truth matters."""
    first = left()
    value = _tensor(first)
    if value is None:
        return right() if first else first
    return _nested(sites[number], value, right, lambda: value)


def _either(sites: _Sites, number: int, left: Callable[[], Any], right: Callable[[], Any]) -> Any:
    """``left() or right()``, of which only the truth matters."""
    first = left()
    value = _tensor(first)
    if value is None:
        return first or right()
    return _nested(sites[number], value, lambda: value, right)


def _nested(
    one: _Chosen, value: torch.Tensor, yes: Callable[[], Any], no: Callable[[], Any]
) -> torch.Tensor:
    def as_flag(give: Callable[[], Any]) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            test = give()
            found = _tensor(test)
            if found is None:
                return torch.full((), bool(test), device=value.device)
            return _flag(one, found)

        return run

    choice = Choice("if", "if", _flag(one, value), (as_flag(yes), as_flag(no)), ())
    choice.roots = yes, no
    result: torch.Tensor = _decided(one, choice)
    return result


def _negated(sites: _Sites, number: int, test: Any) -> Any:
    return (not test) if _tensor(test) is None else _flag(sites[number], test).logical_not()


def _compared(sites: _Sites, number: int, word: str, left: Any, right: Any) -> Any:
    """A comparison of numbers that may still be on the device."""
    compare = getattr(operator, word)
    if not isinstance(left, _Late) and not isinstance(right, _Late):
        return compare(left, right)
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        raise sites[number].error("it compares a number with a tensor")
    sides = [side.value if isinstance(side, _Late) else side for side in (left, right)]
    kinds = set(map(_kind, sides))
    # Python compares as exactly as these: a double holds each such int.
    if float in kinds and all(
        _kind(s) is float or (type(s) in (int, bool) and abs(s) <= 2**53) for s in sides
    ):
        dtype = torch.float64
    elif kinds <= {int, bool} and all(
        isinstance(s, torch.Tensor) or -_MOST <= s < _MOST for s in sides
    ):
        dtype = torch.int64
    else:
        raise sites[number].error("it compares numbers of several types")
    return compare(*(s.to(dtype) if isinstance(s, torch.Tensor) else s for s in sides))


_MOST = 2**63


def _kind(value: Any) -> type:
    if not isinstance(value, torch.Tensor):
        return type(value)
    return float if value.is_floating_point() else int


class _Late:
    """A number that is still on the device."""

    def __init__(self, one: _Chosen, value: torch.Tensor) -> None:
        if value.numel() != 1 or value.dtype.is_complex or value.dtype is torch.uint64:
            raise one.error(f"it reads a number of {value.dtype}, shape {tuple(value.shape)}")
        self.value = value.detach().reshape(())


def _item(sites: _Sites, number: int, value: Any) -> Any:
    """``value.item()``."""
    on_device = type(value) in _TENSORS and _is_on_device(value)
    return _Late(sites[number], value) if on_device else value.item()


def _called(sites: _Sites, number: int, function: Any, value: Any) -> Any:
    """``function(value)``, for ``float``, ``int`` and ``bool``."""
    if type(value) in _TENSORS and _is_on_device(value):
        if function is bool:
            return value
        kind = bool if value.dtype is torch.bool else _kind(value)
        if function is kind:
            return _Late(sites[number], value)
    return function(value)


_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _decided(one: _Chosen, what: Choice | Loop) -> Any:
    try:
        return decide(what, must=True)
    except SiteError:
        raise
    except (ArgumentError, CaptureError) as error:
        raise one.error(str(error)) from error


def _flag(one: _Chosen, test: Any) -> torch.Tensor:
    value = _tensor(test)
    if value is None:
        raise one.error(f"its test is {_described(test)}")
    try:
        return flag("its test", value)
    except ArgumentError as error:
        raise one.error(str(error)) from error


def _tensor(test: Any) -> torch.Tensor | None:
    """The value of a test, if it is on the device."""
    if isinstance(test, _Late):
        return test.value
    return test if type(test) in _TENSORS and _is_on_device(test) else None


def _is_on_device(tensor: torch.Tensor) -> bool:
    interceptor = current_interceptor()
    if interceptor is None:
        return is_on_device(tensor)
    with interceptor.unseen():
        return interceptor.on_device(tensor)


def _turns(
    sites: _Sites, number: int, function: Any, first: Any, most: Any, step: int, reaches: bool
) -> int:
    """How many turns a loop makes at most that counts from ``first`` on."""
    if function not in (None, range) or type(first) is not int or type(most) is not int:
        raise sites[number].error("it does not count its turns in plain numbers")
    turns = max(0, -(-(most + reaches - first) // step))
    if turns >= 2**31:
        raise sites[number].error("it may make more turns than a node counts")
    return turns


def _require_plain(one: _Chosen, tensor: torch.Tensor) -> None:
    """Raise if a copy is more or less than the tensor was."""
    if type(tensor) is not torch.Tensor or tensor.__dict__:
        raise one.error(f"it gives a {type(tensor).__name__} that a copy is not")
    if tensor.requires_grad:
        raise one.error("it gives a tensor that requires a gradient")
    interceptor = current_interceptor()
    with outside_of_modes() if interceptor is None else interceptor.unseen():
        dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    if not dense:
        raise one.error(f"it gives a tensor with gaps, of strides {tensor.stride()}")


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor on {value.device}"
    return f"{value!r:.40} ({type(value).__name__})"


class _Gave:
    """What the bodies of a site give, on trial.

    Args:
        one: the site.

    Attributes:
        old: names of the memory from before that they give.
        distinct: whether each tensor lies in memory of its own.
    """

    def __init__(self, one: _Chosen) -> None:
        self._one = one
        self.old: set[int] = set()
        self.distinct = True

    def watch(self, function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """Call a body."""
        recorder = current_interceptor()
        if not isinstance(recorder, Recorder) or not recorder.is_on_trial:
            return function(*given)
        with recorder.only_computing() as made:
            result = function(*given)
        with recorder.unseen():
            names = [recorder.name(tensor) for tensor in tensors_in(result)]
            for tensor in tensors_in(result):
                _require_plain(self._one, tensor)
        self.old |= set(names) - made
        self.distinct &= len(set(names)) == len(names)
        return result

    def protect(self, one: _Chosen, result: Any, before: tuple[Any, ...]) -> None:
        """See that nothing from here on can tell the result from what a statement gives.

        Args:
            one: the site.
            result: what it gave.
            before: of a loop, what it gives without a turn.
        """
        recorder = current_interceptor()
        if not isinstance(recorder, Recorder):
            return
        if self.distinct and not self.old and not before:
            return
        if one.rewritten.compares:
            raise one.error("its function compares objects with `is`")
        with recorder.unseen():
            gave = {recorder.name(tensor) for tensor in tensors_in(result)}
            first = [recorder.name(tensor) for tensor in before]
        distinct = self.distinct and len(set(first)) == len(first)
        given = _Given(one, self.old | set(first), distinct)
        lowering = _active.lowering
        assert lowering is not None
        lowering.note(given, gave)
        recorder.protect(gave | given.old, lambda: one.error(_WRITES))


_WRITES = "what it gives, or what was there before, is written to or told apart later"


_HELPERS: dict[str, Callable[..., Any]] = {
    "lowers": _lowers,
    "loop": _loop,
    "turns": _turns,
    "choose": _choose,
    "ran": _ran,
    "both": _both,
    "either": _either,
    "negated": _negated,
    "compared": _compared,
    "item": _item,
    "called": _called,
}
