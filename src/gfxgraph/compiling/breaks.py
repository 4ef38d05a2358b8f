"""Finds where torch.compile breaks a function into regions, why, and what each region holds."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..device.operators import is_view
from ..device.overrides import ThreadDispatchMode
from ..errors import ArgumentError
from ..interpose.signatures import require_fit
from ..interpose.source import is_users_file, name_of
from ..tables import Shown, as_json, counted
from .log import AFTER_BREAK, Compilation, listening

__all__ = ["Break", "BreakReport", "Region", "graph_breaks"]


@dataclass(frozen=True)
class Region:
    """A part of the function that torch.compile takes as one graph.

    Attributes:
        function: the function that it is part of; of torch's own functions, such as
            ``Sequential.forward``, the one that called them.
        file: its file.
        line: where it begins: the function's first line, or, after a break, the line of the break;
            of torch's own functions the line that called them.
        operations: how many operations Dynamo put into its graph.
        calls: how often it ran in the call.
        launches: operations of each run that launch work on the device when run eagerly: all
            that torch dispatches but views. Inductor fuses them to fewer.
    """

    function: str
    file: str
    line: int
    operations: int
    calls: int = 0
    launches: int = 0


@dataclass(frozen=True)
class Break:
    """A graph break: a place where Dynamo goes back to Python.

    Attributes:
        file: the user's file; ``""`` where torch does not say.
        line: the line in it, from 1; 0 where torch does not say.
        function: the function that it is in.
        source: the text of the line.
        reason: why, in one sentence of torch's.
        explanation: torch's explanation, ``""`` if it has none. A branch that depends on data gets
            one of ours, since torch often has none.
        hints: torch's advice, or ours.
    """

    file: str
    line: int
    function: str
    source: str
    reason: str
    explanation: str = ""
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class BreakReport(Shown):
    """The result of :func:`graph_breaks`; ``print`` shows it as text.

    Attributes:
        name: the function.
        regions: the regions, in the order in which they were compiled.
        breaks: the breaks, each place and reason once.
        skipped: functions that Dynamo gave up as a whole, so that they run eagerly. A break inside
            a loop or a ``with`` block does that.
        launches: operations of the whole call that launch work on the device when run eagerly.
    """

    name: str
    regions: tuple[Region, ...]
    breaks: tuple[Break, ...]
    skipped: int
    launches: int

    @property
    def outside(self) -> int:
        """Those of :attr:`launches` that are in no region, and stay eager."""
        return max(0, self.launches - sum(r.calls * r.launches for r in self.regions))

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON: the attributes above, and ``outside``.

        Args:
            path: a file to write it to as well. Default none.
        """
        return as_json({**asdict(self), "outside": self.outside}, path)

    def _printed(self) -> list[str]:
        lines = [
            f"{self.name}: {counted(len(self.breaks), 'graph break')}, "
            f"{counted(len(self.regions), 'region')}; of {counted(self.launches, 'launch')} "
            f"of the eager call, {self.outside} in no region"
        ]
        if self.skipped:
            lines.append(f"  {counted(self.skipped, 'function')} not compiled at all")
        for number, region in enumerate(self.regions, 1):
            times = f", run {region.calls} times" if region.calls != 1 else ""
            lines.append(
                f"  region {number}: {region.file}:{region.line}, in {region.function}: "
                f"{counted(region.operations, 'operation')}, "
                f"{counted(region.launches, 'launch')}{times}"
            )
        for one in self.breaks:
            place = f"{one.file}:{one.line}, in {one.function}: {one.source}"
            lines.append(f"  break: {place if one.file else 'place not known'}")
            lines.append(f"    {one.reason}")
            lines += [f"    {text}" for text in (one.explanation, *one.hints) if text]
        return lines


def graph_breaks(model: Callable[..., Any], *args: Any, **kwargs: Any) -> BreakReport:
    """Where ``torch.compile`` would break ``model`` into regions for these arguments, and why.

    Runs the function twice: once eagerly, and once in the regions that Dynamo makes of it. No code
    is generated, so it needs no compiler and no GPU. The function's writes (a cache, a counter)
    happen twice.

    It calls ``torch._dynamo.reset()`` before and after, as :func:`torch._dynamo.explain` does:
    functions that this process has compiled are compiled again at their next call.

    Args:
        model: the function or module, not compiled yet. Of a callable from :func:`gfxgraph.graphed`
            or :func:`gfxgraph.compile` it takes the function inside.
        args: its arguments.
        kwargs: its keyword arguments.

    Raises:
        ArgumentError: ``model`` cannot be called, does not take these arguments, or is compiled
            already.
        Exception: whatever the function raises.
    """
    if not callable(model) or isinstance(model, type):
        raise ArgumentError(
            f"graph_breaks({model!r}): expected a function or a module, not {type(model).__name__}."
        )
    while hasattr(model, "__wrapped__") and _is_opaque(model):
        model = model.__wrapped__
    if (
        hasattr(model, "_torchdynamo_orig_callable")
        or hasattr(model, "_orig_mod")
        or getattr(model, "_compiled_call_impl", None) is not None  # module.compile()
    ):
        raise ArgumentError(
            f"graph_breaks({name_of(model)}): it is compiled already; pass the function that was "
            "compiled."
        )
    require_fit(model, args, kwargs, f"graph_breaks({name_of(model)})")
    from torch._dynamo.utils import counters, get_compilation_metrics, graph_break_reasons

    with _Launches() as eager:
        model(*args, **kwargs)
    torch._dynamo.reset()
    try:
        frames = counters["frames"]["total"] - counters["frames"]["ok"]
        metrics = get_compilation_metrics()
        regions = _regions(model, args, kwargs)
        skipped = counters["frames"]["total"] - counters["frames"]["ok"] - frames
        if torch.__version__ < "2.11":  # counts a break in a loop as ok; it has no guards
            before = set(map(id, metrics))
            found = [one for one in get_compilation_metrics() if id(one) not in before]
            skipped += sum(one.fail_type is None and one.guard_count is None for one in found)
        breaks = [_break(reason.reason, reason.user_stack) for reason in graph_break_reasons]
        if skipped:
            # Dynamo keeps no reason for these. Asked for one graph, it names the first.
            torch._dynamo.reset()
            breaks += _first_break(model, args, kwargs)
    finally:
        torch._dynamo.reset()
    return BreakReport(
        name_of(model), regions, tuple(dict.fromkeys(breaks)), skipped, eager.launches
    )


def _is_opaque(model: Any) -> bool:
    """Whether Dynamo always breaks at ``model``: it is one of our callables."""
    return bool(getattr(type(model).__call__, "_torchdynamo_disable", False))


class _Launches(ThreadDispatchMode):
    """Counts the operations that launch work."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_view(func):
            self.launches += 1
        return func(*args, **(kwargs or {}))


def _regions(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Region, ...]:
    regions: list[Region] = []
    thread = threading.get_ident()
    compiling = False

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        nonlocal compiling
        compiling, place = True, len(regions)

        def run(*values: Any) -> Any:
            with _Launches() as counter:
                result = module(*values)
            before = regions[place]
            regions[place] = replace(before, calls=before.calls + 1, launches=counter.launches)
            return result

        return run

    def compiled(one: Compilation) -> None:
        nonlocal compiling
        if compiling and threading.get_ident() == thread:
            compiling = False
            count = sum(one.operations.values())
            regions.append(Region(one.function, one.file, one.line, count))

    with listening(compiled):
        torch.compile(model, backend=backend)(*args, **kwargs)
    return tuple(regions)


def _first_break(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Break]:
    try:
        torch.compile(model, backend="eager", fullgraph=True)(*args, **kwargs)
    except torch._dynamo.exc.Unsupported as error:
        return [_break(str(error), getattr(error, "real_stack", None) or [])]
    return []


def _break(text: str, stack: Any) -> Break:
    frame = _innermost(stack)
    first, *more = (line.strip() for line in text.splitlines() if line.strip())
    if first == _BRANCHING[0] or first.startswith("generic_jump "):
        # Dynamo reports it in two ways, one of them without an explanation.
        first, *more = _BRANCHING
    said: dict[str, list[str]] = {"Explanation": [], "Hint": []}
    for line in more:
        what, colon, rest = line.partition(": ")
        if colon and what in said:
            said[what].append(rest)
    return Break(
        file=frame.filename if frame else "",
        line=(frame.lineno or 0) if frame else 0,
        function=AFTER_BREAK.sub(r"\g<function>", frame.name) if frame else "",
        source=(frame.line or "") if frame else "",
        reason=first,
        explanation=" ".join(said["Explanation"]),
        hints=tuple(said["Hint"]),
    )


_BRANCHING = (
    "Data-dependent branching",
    "Explanation: The next step depends on the values of a tensor, as in `if x.sum() > 0:`. "
    "Dynamo does not know them, so it compiles the code before and after separately.",
    "Hint: Compute both sides and choose with `torch.where`, where both are cheap.",
    "Hint: Use `torch.cond` to express dynamic control flow.",
    "Hint: Decide by something known without the data, such as a shape or a Python argument.",
)


def _innermost(stack: list[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """The user's innermost frame, else the innermost one."""
    users = [frame for frame in stack if is_users_file(frame.filename)]
    return (users or list(stack) or [None])[-1]  # type: ignore[list-item]
