"""A captured function: one graph, or a tree of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..interpose.source import Source
from ..record.exchanges import Collective
from .guard import Guard
from .lowering import Lowering
from .moved import Rebinding
from .segments import Graft, Segment
from .state import PythonState

__all__ = ["CapturedGraph"]


@dataclass
class CapturedGraph:
    """A function as one graph, or as a tree of them, ready to be replayed.

    Attributes:
        root: the first graph.
        last: the end of the path that was captured now.
        written: storage key -> a tensor on it, for all storages from outside that replays write,
            static inputs among them.
        outside: storage key -> a tensor on it, for all that the graphs use from outside, without
            the static inputs. Holding them keeps their memory.
        saved: regions that a call may have written when its data turns out to take a path that
            was not captured, or when the host raises an error between two graphs.
        saves_generator: whether it may have drawn random numbers by then.
        generators: the user's own generators that it draws from.
        calls_user: whether a function of the user's runs between two graphs.
        reached: storage keys of the tensors that such functions reach without being given them;
            ``None``: any argument may be one.
        guard: watches what the graphs rely on.
        pool_bytes: bytes by which the memory pool grew.
        draws_random_numbers: whether a run advances a generator.
        report: what was folded and where the host takes over, a sentence each.
        peak_bytes: bytes of the device that eager execution took at most for what it makes.
        sample: the outputs of the first replay, if there was one.
        state: what Python held then, if the function only computes, from tensors, constants of the
            host and random numbers: other sizes can be captured after this one.
        plain: whether it only computes from tensors: nothing was folded, written, drawn, or worth a
            note.
        compiled: whether what it holds is compiled code.
        code: compiled code that it uses, kept for as long as it lives.
        not_compiled: why code that the function has compiled is in the graph uncompiled.
        asks_layout: whether what it does depends on how its arguments lie in memory.
        asks_sharing: whether it depends on which of its tensors share memory.
        launch_ns: nanoseconds in which the host launched a replay; 0: not timed.
        regions: what replays write outside, but for the static inputs; in the order of the first
            writes, and one may be part of another.
        groups: names of the process groups whose collectives it holds, or runs between graphs.
        collectives: those of several ranks that it holds: all ranks replay it together, or none.
        stored: numbers of objects outside that may be no arguments: a run stores to them, or stores
            to its arguments and reads them.
        slack: by how much replays may differ from eager execution, in any dtype: compiled code
            rounds at other places.
        time_call: calls eagerly or replays, from the state that the capture found. It puts that
            state back, and gives the seconds until the device was done. ``None`` where that was
            not asked for.
        forced: operators at which its graphs end, because a capture failed at them. Each further
            path ends its graphs there, too.
        graft: where a new path belongs in its tree; put there by whoever keeps it.
        returned_again: numbers of the outputs that were the very same objects in an earlier run.
            Other outputs on memory from outside are made anew in each call.
        locks: locks of the program that a call takes and releases; so does a replay.
        autograd: whether autograd takes part inside.
        differentiates: whether backward passes run inside.
        rebinding: the inputs that it can read where the caller has them; ``None``: there are none.
        decided_at: where the device decides first how the call goes on; ``None``: nowhere.
        lowering: the statements at which the device decides, also on each further path.
        could_be_lowered: whether the device could decide in a new tree of graphs.
        measured: how long calls take where the device decides, and how long where the host does;
            empty: that was not measured.
    """

    root: Segment
    last: Segment
    written: dict[int, torch.Tensor]
    outside: dict[int, torch.Tensor]
    saved: list[torch.Tensor]
    saves_generator: bool
    generators: tuple[torch.Generator, ...]
    calls_user: bool
    guard: Guard
    pool_bytes: int
    draws_random_numbers: bool
    report: list[str]
    peak_bytes: int = 0
    state: PythonState | None = None
    plain: bool = False
    sample: list[torch.Tensor] = dataclasses.field(default_factory=list)
    compiled: bool = False
    code: list[object] = dataclasses.field(default_factory=list)
    not_compiled: str = ""
    launch_ns: int = 0
    regions: list[torch.Tensor] = dataclasses.field(default_factory=list)
    groups: frozenset[str] = frozenset()
    collectives: tuple[Collective, ...] = ()
    stored: frozenset[int] = frozenset()
    slack: float = 0.0
    time_call: Callable[[Literal["eager", "replay"]], float] | None = None
    asks_layout: bool = False
    asks_sharing: bool = False
    forced: frozenset[str] = frozenset()
    graft: Graft | None = None
    reached: frozenset[int] | None = frozenset()
    returned_again: frozenset[int] = frozenset()
    locks: tuple[Any, ...] = ()
    autograd: bool = False
    differentiates: bool = False
    rebinding: Rebinding | None = None
    decided_at: Source | None = None
    lowering: Lowering | None = None
    could_be_lowered: bool = False
    measured: str = ""

    def release(self) -> None:
        """Let go of all graphs; the caller holds LOCK."""
        self.root.reset()
        if self.graft is not None:
            self.graft.child.reset()

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors that the function returned while it was captured."""
        return self.last.outputs or []

    def with_path(self, path: CapturedGraph) -> CapturedGraph:
        """This tree with ``path``, whose guard watches already what both rely on.

        The graphs of ``path`` become part of the tree once its graft is attached.
        """
        return dataclasses.replace(
            path,
            written=self.written | path.written,
            outside=self.outside | path.outside,
            saved=self.saved + path.saved,
            saves_generator=self.saves_generator or path.saves_generator,
            generators=tuple(dict.fromkeys((*self.generators, *path.generators))),
            calls_user=self.calls_user or path.calls_user,
            reached=None
            if self.reached is None or path.reached is None
            else self.reached | path.reached,
            decided_at=self.decided_at or path.decided_at,
            pool_bytes=self.pool_bytes + path.pool_bytes,
            report=list(dict.fromkeys(self.report + path.report)),
            regions=self.regions + path.regions,
            groups=self.groups | path.groups,
            stored=self.stored | path.stored,
            autograd=self.autograd or path.autograd,
            differentiates=self.differentiates or path.differentiates,
            state=None,
            plain=False,
            rebinding=None,
            measured=self.measured,
        )
