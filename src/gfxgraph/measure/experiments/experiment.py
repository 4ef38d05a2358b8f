"""``experiment``: the six experiments by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...call.signature import Const
from ...device import current_device
from ...errors import ArgumentError
from ..bench import Progress, check_options, checked, chosen_ways
from . import allocations, functions, lengths, modes, ranks, smoke, streams
from .report import ExperimentReport, Outcome
from .subject import Function, Subject

__all__ = ["EXPERIMENTS", "Experiment", "experiment"]

_MOST_RANKS = 64


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        name: its name.
        question: what it asks, in one line.
        run: runs it.
        on_gpu: what a GPU shows.
        emulated: what the emulated device can show, and what it cannot.
        own: whether it has functions of its own: the built-in blocks are not given to it.
    """

    name: str
    question: str
    run: Callable[[Subject], Outcome]
    on_gpu: str
    emulated: str
    own: bool = False


_ALL = (
    Experiment(
        "smoke",
        "are replays of one graph alike and right, and do they leave earlier results alone?",
        smoke.run,
        "On this GPU everything is shown.",
        "No GPU: the graph is emulated. It shows the logic of capture and replay; that kernels "
        "give the same bits each time only a GPU shows.",
    ),
    Experiment(
        "modes",
        "which way of calling is fastest, and how steady is each?",
        modes.run,
        "On this GPU everything is shown; the times are of this machine.",
        "No GPU: the graph is emulated. It shows that the ways agree with eager; the times say "
        "nothing of a GPU, and ways that need one are left out.",
    ),
    Experiment(
        "lengths",
        "what do calls of various lengths cost, padded to one length, to a few, or not at all?",
        lengths.run,
        "On this GPU everything is shown; the times are of this machine.",
        "No GPU: the graphs are emulated. It shows captures, padding and right results; the times "
        "say nothing of a GPU.",
    ),
    Experiment(
        "allocations",
        "does a replay allocate memory, and which operations allocate in eager execution?",
        allocations.run,
        "On this GPU the counters of torch's allocator show all; driver calls are new segments "
        "(cudaMalloc).",
        "No GPU: new storages are counted. It shows which operations make memory and whether "
        "results are new; workspaces inside of kernels and calls of the driver only a GPU shows.",
    ),
    Experiment(
        "streams",
        "do side streams that fork and join become parallel branches, and is a wrong fork found?",
        streams.run,
        "On this GPU everything is shown. The GPU refuses no race: a result that is used too early "
        "is found from the order of the operations.",
        "No GPU: streams are emulated. It shows what a capture refuses and the branches; whether "
        "they overlap only a GPU shows.",
        own=True,
    ),
    Experiment(
        "ranks",
        "do several ranks use graphs with collectives, and leave nobody waiting?",
        ranks.run,
        "On this machine the ranks are processes of one host; with fewer GPUs than ranks they "
        "share them, and what they exchange goes through the host.",
        "No GPU: the graphs of each process are emulated, and the ranks exchange through the host. "
        "It shows the protocol; collectives of GPUs it does not.",
        own=True,
    ),
)

EXPERIMENTS = {one.name: one for one in _ALL}
"""Name -> experiment, in their order."""

Name = Literal["smoke", "modes", "lengths", "allocations", "streams", "ranks"]


def experiment(
    name: Name,
    fn: Function | None = None,
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    traffic: Iterable[tuple[Any, ...]] | None = None,
    ways: Iterable[str] | None = None,
    seconds: float = 5.0,
    ranks: int = 2,
    progress: Progress = lambda what, share: None,
) -> ExperimentReport:
    """Run an experiment on a function, and say whether what one expects of graphs holds.

    >>> print(gfxgraph.experiment("smoke", model, x))
    >>> gfxgraph.experiment("streams").holds
    True

    What the function changes outside is put back, except by ``"streams"`` and ``"ranks"``.
    Everything runs under ``torch.no_grad()``, on copies of the arguments.

    Args:
        name: ``"smoke"``, ``"modes"``, ``"lengths"``, ``"allocations"``, ``"streams"`` or
            ``"ranks"``; docs/experiments.md has what each does.
        fn: the function, module or method. Default: a few small transformer blocks; ``"streams"``
            and ``"ranks"`` have functions of their own.
        *args: its arguments, with at least one tensor (here or in ``kwargs``).
        kwargs: keyword arguments of ``fn``.
        traffic: for ``"lengths"``: the positional arguments of calls that differ in one size, in
            the order in which they come. With it ``args`` may be left out.
        ways: for ``"modes"``: what to measure beside eager, as for :func:`gfxgraph.bench`; for
            ``"lengths"`` ``("compile",)`` adds ``torch.compile(fn, dynamic=True)``.
        seconds: how long to time calls. Default 5.
        ranks: for ``"ranks"``: how many processes, from 2. Default 2.
        progress: called with what is being done and with the share that is over.

    Returns:
        The report: ``report.holds``, ``report.conclusion``, ``report.rows``; printed, it is a
        table.

    Raises:
        ArgumentError: there is no such experiment, or an argument is not of the kind that is taken.
        CaptureError: ``fn`` issues a collective in a group of several ranks; nothing was sent.
        DeviceError: the processes of ``"ranks"`` cannot be started.
        Exception: any error of ``fn`` itself.
    """
    if not isinstance(name, str) or name not in EXPERIMENTS:
        raise ArgumentError(
            f"experiment({Const(name)!r}): there is none of this name; expected one of "
            f"{', '.join(EXPERIMENTS)}."
        )
    chosen = EXPERIMENTS[name]
    what = f"experiment({name!r})"
    check_options("experiment", seconds, kwargs, progress)
    whole = isinstance(ranks, int) and not isinstance(ranks, bool)
    if not whole or not 2 <= ranks <= _MOST_RANKS:
        raise ArgumentError(
            f"{what}: ranks={Const(ranks)!r}: expected a whole number from 2 to {_MOST_RANKS}."
        )
    if isinstance(ways, Iterable) and not isinstance(ways, str):
        ways = [*ways]
    chosen_ways("experiment", ways)  # before any work
    if traffic is not None and name != "lengths":
        raise ArgumentError(f"{what}: only 'lengths' takes traffic=.")
    if ways is not None and name not in ("modes", "lengths"):
        raise ArgumentError(f"{what}: only 'modes' and 'lengths' take ways=.")
    device = current_device()
    if fn is None:
        if args or kwargs or traffic is not None:
            raise ArgumentError(f"{what}: expected a function before its arguments.")
        if not chosen.own:
            fn, x = functions.blocks(device.type)
            args = (x,)
            traffic = functions.calls_of_lengths(device.type) if name == "lengths" else None
    else:
        traffic = None if traffic is None else _tuples(what, traffic)
        checked(
            "experiment", fn, args or (traffic[0] if traffic else ()), seconds, kwargs, progress
        )
    subject = Subject(fn, args, kwargs or {}, traffic, ways, seconds, ranks, progress)
    outcome = chosen.run(subject)
    shows = chosen.emulated if device.kind == "emulated" else chosen.on_gpu
    function = "functions of its own" if fn is None else subject.name
    return ExperimentReport.of(name, chosen.question, function, shows, outcome)


def _tuples(what: str, traffic: Any) -> list[tuple[Any, ...]]:
    """The calls, read once; whether each is one is asked where they are measured."""
    try:
        calls = list(traffic)
    except TypeError as error:
        raise ArgumentError(f"{what}: traffic={Const(traffic)!r}: expected tuples.") from error
    if not calls or not all(isinstance(call, tuple) for call in calls):
        raise ArgumentError(f"{what}: traffic=: expected a tuple of arguments for each call.")
    return calls
