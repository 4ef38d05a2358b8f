"""Graphs that hold collectives: all ranks capture and replay them together, or none does.

NCCL takes a collective in a graph for another one than the same collective outside: the launch of
such a graph is itself a collective. So before each call all ranks of the group say what they would
do with it, and do it only if all would do the same (``agreement.py``):

- all have a graph from the same capture, and all that it relies on is as it was: all replay;
- none has one: all run eagerly, and then capture in step. They go on from each step together: when
  all have recorded the same collectives, when all have captured, and when all keep the graph;
- anything else: all run this call eagerly, and forget what graph they have for it.

Where the ranks differ in what they record, or a graph cannot hold it whole, graphs are cut at
collectives from then on, which needs no agreement. Where a rank fails or is silent, all run eagerly
from then on, and say which rank it was.
"""

from __future__ import annotations

import collections
import hashlib
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import distributed as dist

from .. import settings
from ..device import current_device
from ..errors import CaptureError, one_line
from ..forking import new_lock
from ..record.collectives import number_sent
from ..record.exchanges import Collective
from ..record.recorder import Recording
from ..stats import log
from .agreement import Agreement, Verdict
from .entry import Entry

__all__ = ["Together", "begin"]

Mode = Literal["inside", "split", "eager"]

# So often in a row the ranks may differ in what they would do with a call.
_MOST_DIFFERENCES = 8
_RECORDED, _BREAKS = "recorded:", "recorded:breaks"


class Together:
    """What this rank and the others have agreed on for one callable.

    Args:
        name: of the callable.
        agreement: of the ranks of its group.
        end: a method that releases graphs which hold collectives; called when ``mode`` changes. It
            is held weakly: its owner holds this object.

    Attributes:
        mode: what becomes of collectives now; see the module.
        why: why that is not ``"inside"``.
        lock: held from what a rank says to what it does.
        captures: how many all ranks have made together.
    """

    def __init__(self, name: str, agreement: Agreement, end: Callable[[], None]) -> None:
        self._release = weakref.WeakMethod(end)
        self.mode: Mode = "inside"
        self.why = ""
        self.lock = new_lock()
        self.captures = 0
        self._name, self._agreement = name, agreement
        self._differences = 0
        #: Whether a no was said, or learned, in the capture under way, and whether there was one.
        self._is_over = self._has_made = False

    # A call.

    def decide(self, word: str, detail: Sequence[str] = ()) -> bool:
        """Whether all ranks would do with a call what this one would.

        Args:
            word: what it would do.
            detail: why.
        """
        verdict = self._agreement.decide(word, detail)
        if verdict.agreed:
            self._differences = 0
            return True
        self.why = verdict.why
        self._differences += 1
        if verdict.silent:
            self._end("eager", verdict.why)
        elif self._differences >= _MOST_DIFFERENCES:
            times = f"the ranks differed in {_MOST_DIFFERENCES} calls in a row"
            self._end("eager", f"{times}: {verdict.why}")
        return False

    # A capture.

    def begins(self) -> None:
        """A call without a graph is about to run, on all ranks."""
        self._is_over = self._has_made = False

    def ended(self) -> None:
        """The call is over: where no capture came of it, the other ranks are told."""
        if self.mode == "inside" and not self._has_made:
            self._tell("made no capture", ["its call raised, or came beside a capture"])

    def make(
        self, make: Callable[[], Exception | None], kept: Callable[[], Entry | None]
    ) -> Exception | None:
        """Make a graph, if all ranks do.

        Args:
            make: makes it; gives why there is none.
            kept: the graph that it has made.

        Returns:
            Why there is none; ``None`` if there is one.
        """
        self._is_over, self._has_made = False, True
        try:
            error = make()
        except BaseException as raised:
            self._tell("cannot capture", [one_line(raised)])
            raise
        entry = kept() if error is None else None
        if entry is None:
            if not self._is_over:
                why = "no graph came of it" if error is None else one_line(error)
                self._tell("cannot capture", [why])
            return error
        verdict = self._agreement.decide("keeps its graph")
        if verdict.agreed:
            self.captures += 1
            entry.number = self.captures
            return None
        self._end("eager", verdict.why)
        return CaptureError(verdict.why)

    def agree(self, recording: Recording | None) -> None:
        """Wait until all ranks have come as far in a capture; see ``CaptureOptions``.

        Raises:
            CaptureError: one has not.
        """
        if recording is None:
            verdict = self._agreement.decide("has captured")
        elif (where := self._where_cut(recording)) is not None:
            verdict = self._agreement.decide(_BREAKS, [where])
            if verdict.agreed:
                verdict = Verdict(False, f"graphs are cut anyway at {where}", alike=True)
        else:
            verdict = self._agreement.decide(*_sequence(recording.collectives))
        if not verdict.agreed:
            self._is_over = True
            self._end("split" if verdict.alike else "eager", verdict.why)
            raise CaptureError(self.why, transient=self.mode == "split")

    def _where_cut(self, recording: Recording) -> str | None:
        """Where no graph could hold a recording whole, on this rank or any other."""
        if recording.breaks():
            event = recording.breaks()[0]
            return f"{event.where}: {event.point.what}"
        stranger = _strangers(recording.collectives, self._agreement.ranks)
        return None if stranger is None else f"{stranger.where}: {stranger}, of other ranks"

    def _tell(self, what: str, detail: Sequence[str]) -> None:
        self._is_over = True
        verdict = self._agreement.decide(what, detail)
        # Where all say so it is nobody's fault.
        why = f"each rank {what}: {detail[0]}" if verdict.agreed else verdict.why
        self._end("split" if verdict.agreed else "eager", why)

    def _end(self, mode: Mode, why: str) -> None:
        self.mode, self.why = mode, why
        log(logging.WARNING, "ranks_disagree", function=self._name, because=why, so=mode)
        release = self._release()
        if release is not None:
            release()


def _sequence(collectives: Sequence[Collective]) -> tuple[str, list[str]]:
    """A word for a sequence of collectives, and its lines.

    Ranks have different groups, as in a mesh: which are the same is what has to be the same.
    """
    groups = {group: n for n, group in enumerate(dict.fromkeys(c.group for c in collectives))}
    kinds = repr([(groups[c.group], c.ranks, *c.kind) for c in collectives])
    digest = hashlib.sha256(kinds.encode()).hexdigest()[:16]
    return f"{_RECORDED}{digest}", [f"{c} at {c.where}" for c in collectives]


#: How many callables have begun under a name.
_begun: collections.Counter[str] = collections.Counter()


def begin(
    name: str, found: Sequence[Collective], end: Callable[[], None], group: Any = None
) -> Together | str:
    """Begin to decide about a callable together with the other ranks, after its first call.

    The ranks meet under the number of collectives that their group has issued so far: after the
    same call it is the same on all, whatever they call the function, and did before. (Gloo, which
    graphs hold on the emulated device alone, also counts what two ranks send to each other.)

    Args:
        name: of the callable.
        found: the collectives of its first call; none, where a rank of ``group`` sends nothing.
        end: see :class:`Together`.
        group: the ranks that call it. Default: the group of its collectives.

    Returns:
        The decisions; a text: why graphs cannot hold these collectives.
    """
    groups = {each: _group_of(each) for each in sorted({c.group for c in found})}
    gone = [each for each, its_group in groups.items() if its_group is None]
    if gone:
        return f"after the call there is no group {gone[0]!r}: made or destroyed in it, or before"
    if group is None and len(groups) > 1:
        return (
            f"the collectives are of several groups ({', '.join(groups)}): give the one whose "
            "ranks call the function together (group=)"
        )
    group = group or next(iter(groups.values()))
    device = current_device()
    try:
        ranks = dist.get_process_group_ranks(group)
    except KeyError:
        return "the group that was given (group=) was destroyed: give one that exists"
    for its_group in groups.values() if device.kind != "emulated" else ():
        backend = its_group._get_backend(torch.device(device.type)).name()
        if backend.lower() not in ("nccl", "rccl"):
            return f"graphs can hold collectives of NCCL and RCCL, not of {backend}"
    try:
        number, *_ = map(number_sent, (group, *groups.values()))  # a capture asks each of them
    except RuntimeError as error:
        return f"the group does not count its collectives: {one_line(error)}"
    meeting = f"{group.group_name}/{number}"
    _begun[meeting] += 1
    patience = settings.from_environment().ranks_timeout
    store = _c10d()._get_default_store()
    agreement = Agreement(f"{meeting}/{_begun[meeting]}", ranks, dist.get_rank(), store, patience)
    return Together(name, agreement, end)


def _strangers(collectives: Sequence[Collective], ranks: Sequence[int]) -> Collective | None:
    """The first collective of a group with other ranks than those that agree."""
    for collective in collectives:
        group = _group_of(collective.group)
        if group is None or not set(dist.get_process_group_ranks(group)) <= set(ranks):
            return collective
    return None


def _group_of(name: str) -> Any:
    """The group of a name; ``None``: there is none (any more)."""
    try:
        return _c10d()._resolve_process_group(name)
    except RuntimeError:
        return None


def _c10d() -> Any:
    return dist.distributed_c10d
