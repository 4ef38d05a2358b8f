"""Experiment ``streams``: work that is forked to side streams, made right and wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree

from ...bridge.graph import BridgedCUDAGraph
from ...device import current_device
from ...errors import ArgumentError, DeviceError, GfxGraphError, first_paragraph, one_line
from ...graph.native import NativeGraph
from ...inspecting.inspect import inspect
from ...interpose.interrupts import interrupt_in
from ...interpose.source import is_raised_by_code, name_of, users_line_of
from ...simulate.emulation import Emulation
from ...verifying.inputs import on_device
from ..activity import activity
from ..agreement import alike
from ..timing import in_turn, speedup
from . import functions
from .order import disorder_in
from .report import Outcome
from .subject import Function, Subject

__all__ = ["a_gpu", "run"]

_WRONG = {
    "no wait before": functions.not_forked,
    "no join after": functions.not_joined,
    "used too early": functions.used_too_early,
}


@contextmanager
def a_gpu() -> Iterator[None]:
    """Streams to fork: those of the GPU, or emulated ones; captures keep their nodes.

    Raises:
        DeviceError: there is no GPU, and this build of torch cannot emulate one.
    """
    emulation = None
    if current_device().type == "cpu" and not torch.cuda.is_available():
        emulation = Emulation()
        emulation.begin()
    before, NativeGraph.keeps_nodes = NativeGraph.keeps_nodes, True
    try:
        yield
    finally:
        NativeGraph.keeps_nodes = before
        if emulation is not None:
            emulation.end()


def run(subject: Subject) -> Outcome:
    """Run the built-in cases, or the user's function."""
    with ExitStack() as stack:
        try:
            stack.enter_context(a_gpu())
        except DeviceError as error:
            return Outcome((), f"There are no streams here: {str(error).rstrip('.')}.", None)
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=_gpus()))
        return _of_ours(subject) if subject.fn is None else _of_users(subject)


def _gpus() -> list[int]:
    return list(range(torch.cuda.device_count())) if current_device().type == "cuda" else []


def _of_ours(subject: Subject) -> Outcome:
    on_gpu = current_device().type == "cuda"
    rows, width = (128, 512) if on_gpu else (4, 8)
    x = torch.randn(rows, width, device="cuda")
    args = (x, torch.randn(width, width, device="cuda") / width**0.5)
    serial = _case("in turn", functions.in_turn, args)
    subject.progress("forked", 0.2)
    right = _case("fork and join", functions.forked, args)
    cases = [serial, right]
    for n, (name, fn) in enumerate(_WRONG.items()):
        subject.progress(name, 0.4 + n / 10)
        cases.append(_case(name, fn, args))
    shown = tuple(case.row() for case in cases)
    notes = tuple(note for case in cases for note in case.notes)
    unseen = [case.name for case in cases[2:] if not case.found and case.graph is not None]
    if unseen:
        return Outcome(shown, f"Nothing was found where there is {unseen[0]}.", False, notes)
    if right.found or right.graph is None or not right.equal:
        return Outcome(shown, "A fork that is joined gives no right graph.", False, notes)
    if right.no_nodes:
        return Outcome(shown, f"The branches are not known: {right.no_nodes}.", None, notes)
    if not right.branches > serial.branches:
        return Outcome(shown, "A fork that is joined has no branches in the graph.", False, notes)
    words = (
        f"A fork that is joined becomes a graph of {right.branches} branches that equals eager, "
        "and each wrong one is refused or found"
    )
    if not on_gpu:
        return Outcome(shown, f"{words}.", True, notes)
    subject.progress("overlap", 0.8)
    times = in_turn(
        {"serial": serial.graph.replay, "forked": right.graph.replay},
        torch.cuda.synchronize,
        min(subject.seconds, 3.0),
    )
    gain = speedup(times["serial"], times["forked"])
    overlap = right.row()["overlap"]
    shared = "" if overlap is None else f"; {overlap:.0%} of its kernel time overlaps"
    return Outcome(
        shown,
        f"{words}; it is {gain.median:.2f} times as fast as in turn ({gain.low:.2f} to "
        f"{gain.high:.2f}){shared}.",
        True,
        notes,
    )


def _of_users(subject: Subject) -> Outcome:
    fn = subject.eager
    owner = fn if isinstance(fn, torch.nn.Module) else getattr(fn, "__self__", None)
    args, kwargs = subject.args, dict(subject.kwargs)
    if current_device().type == "cpu":
        args, kwargs = on_device((args, kwargs), "cuda")
    if isinstance(owner, torch.nn.Module) and current_device().type == "cpu":
        try:  # the user's own stays on the host
            moved = on_device(copy.deepcopy(owner), "cuda")
        except (RuntimeError, TypeError) as error:
            raise ArgumentError(
                f"experiment('streams'): {subject.name} cannot be copied to the emulated device: "
                f"{one_line(error)}"
            ) from error
        fn = moved if owner is fn else getattr(moved, fn.__name__)
    case = _case(subject.name, fn, args, kwargs)
    rows = (case.row(),)
    if case.found:
        words = f"{subject.name} is not ordered: {case.found[0]}."
        return Outcome(rows, words, False, case.notes)
    if case.graph is None:
        words = f"{subject.name} cannot be captured in one graph: {case.why}."
        return Outcome(rows, words, False, case.notes)
    if case.equal is None:
        words = f"{subject.name} changes what it reads, so its graph cannot be compared with eager."
        return Outcome(rows, words, None, case.notes)
    if not case.equal:
        return Outcome(rows, "The graph gives something else than eager.", False, case.notes)
    if case.no_nodes:
        return Outcome(rows, f"The branches are not known: {case.no_nodes}.", None, case.notes)
    if case.branches < 2:
        words = f"{subject.name} forks nothing: its graph has one branch."
        return Outcome(rows, words, None, case.notes)
    words = f"{subject.name} becomes a graph of {case.branches} branches that equals eager."
    return Outcome(rows, words, True, case.notes)


class _Case:
    """What became of one function.

    Attributes:
        found: what is not ordered in it, with the line.
        graph: its graph; ``None``: the capture failed.
        why: why it did.
        equal: whether a replay gives what eager gives; ``None``: two eager calls differ already.
        nodes, branches, depth: of the graph.
        no_nodes: why they are not known.
        busy_us, kernels_us: of the graph on a GPU, see
            :class:`~gfxgraph.measure.activity.Activity`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[str] = []
        self.graph: Any = None
        self.why = self.no_nodes = ""
        self.equal: bool | None = None
        self.nodes = self.branches = self.depth = 0
        self.busy_us: float | None = None
        self.kernels_us: float | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the report."""
        refused = [f"{self.name}: the capture is refused: {self.why}."] if self.why else []
        unknown = [f"{self.name}: its nodes are not known: {self.no_nodes}."] * bool(self.no_nodes)
        return (*(f"{self.name}: {one}." for one in self.found), *refused, *unknown)

    def row(self) -> dict[str, Any]:
        """The row of the report."""
        busy, total = self.busy_us, self.kernels_us
        return {
            "case": self.name,
            "found": len(self.found),
            "captured": self.graph is not None,
            "equal": self.equal if self.graph is not None and not self.found else None,
            "nodes": self.nodes or None,
            "branches": self.branches or None,
            "chain": self.depth or None,
            "busy_us": busy,
            "kernels_us": total,
            "overlap": round(1 - busy / total, 4) if busy and total else None,
        }


def _case(
    name: str, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> _Case:
    """Run it once, look at the order, capture it, and compare a replay."""
    case = _Case(name)
    given, at_first = (
        pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs or {})) for _ in range(2)
    )

    def call() -> Any:
        return fn(*given[0], **given[1])

    try:
        found = disorder_in(call)
    except Exception as error:
        if interrupt_in(error) or not is_raised_by_code(error):
            raise
        if name not in _WRONG and current_device().type == "cpu":
            raise ArgumentError(
                f"experiment('streams'): {name_of(fn)} raises on the emulated device: "
                f"{one_line(error)} ({users_line_of(error)}). What it uses has to be an argument, "
                "a part of a module, or made on cuda; docs/emulate.md has what is not emulated."
            ) from error
        raise
    case.found = [f"{one.what}, {one.where}" for one in found]
    torch.cuda.synchronize()
    try:
        case.graph, out = _captured(call)
    except (GfxGraphError, RuntimeError) as error:
        if interrupt_in(error):
            raise
        text = first_paragraph(error)  # of a refused capture the first refusal
        case.why = (text.partition("The first error was: ")[2] or text).rstrip(".")
        return case
    try:
        (graph,) = inspect(case.graph)
        case.nodes, case.branches, case.depth = len(graph), graph.branches, graph.depth
    except GfxGraphError as error:  # such as where cuda-bindings is not installed
        case.no_nodes = str(error).rstrip(".")
    _put_back(given, at_first)
    torch.manual_seed(0)
    case.graph.replay()
    torch.cuda.synchronize()
    got = pytree.tree_map_only(torch.Tensor, torch.clone, out)
    right = []
    for _ in range(2):
        _put_back(given, at_first)
        torch.manual_seed(0)
        right.append(pytree.tree_map_only(torch.Tensor, torch.clone, call()))
    case.equal = alike(got, right[0]) if alike(*right) else None
    if current_device().type == "cuda":
        seen = activity(case.graph.replay, torch.cuda.synchronize)
        if seen is not None:
            case.busy_us, case.kernels_us = seen.busy_us, seen.kernels_us
    return case


def _captured(call: Callable[[], Any]) -> tuple[Any, Any]:
    """A graph of ``call``, and its static outputs.

    Raises:
        RuntimeError: the device refuses.
    """
    graph = BridgedCUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()  # libraries set themselves up
        torch.cuda.synchronize()
        graph.capture_begin()
        try:
            out = call()
        finally:
            graph.capture_end()
    return graph, out


def _put_back(given: Any, values: Any) -> None:
    for leaf, value in zip(pytree.tree_leaves(given), pytree.tree_leaves(values), strict=True):
        if isinstance(leaf, torch.Tensor):
            leaf.copy_(value)
