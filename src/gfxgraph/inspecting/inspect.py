"""``inspect``: the nodes of a graph, and the line that made each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import MethodType
from typing import Any

import torch

from ..bridge.blocks import CallAgain
from ..call.branches import ConditionalGraph
from ..call.buckets.pool import ShapeBucketPool
from ..call.dispatch import Dispatcher, owners
from ..call.entry import Entry, Refusal
from ..call.graphed import answering
from ..call.suitable import describe
from ..device import current_device, index_of
from ..device.emulated import EmulatedGraph
from ..errors import ArgumentError, CaptureError, GfxGraphError, one_line
from ..graph.composition import Composition
from ..graph.locks import LOCK, is_inside_gfxgraph
from ..graph.native import NativeGraph
from ..graph.segments import Segment
from ..interpose.source import Source, name_of
from .model import InspectedGraph, graph_of
from .report import InspectReport

__all__ = ["inspect"]


def inspect(graph: Any, /, *args: Any, **kwargs: Any) -> InspectReport:
    """The nodes of a graph: types, kernels, dependencies, branches, and the line that made each.

    On a GPU the driver tells the nodes. It only does so during a capture, and of graphs that keep
    them: call ``gfxgraph.enable(debug=True)``, or set ``GFXGRAPH=debug``, before the capture. A
    graph that you make yourself also keeps them with ``keep_graph=True``, but not the lines. On the
    emulated device the nodes are the operators that its capture has recorded.

    >>> gfxgraph.enable(debug=True)
    >>> step(x)
    >>> report = gfxgraph.inspect(step, x)
    >>> print(report)
    >>> report.to_html("step.html")
    >>> print(report.diff(gfxgraph.inspect(other_step, x)))

    Args:
        graph: what :func:`gfxgraph.graphed` gives, also a method of one instance; a
            :class:`gfxgraph.ShapeBucketPool`, a :class:`gfxgraph.ConditionalGraph`, a
            :class:`gfxgraph.BridgedCUDAGraph`, a :class:`gfxgraph.Composition`, or a
            ``torch.cuda.CUDAGraph`` that was captured with ``keep_graph=True``.
        *args: of something that is called: arguments, to inspect the graph that answers such a call
            under the present grad mode, or else under ``no_grad`` or ``inference_mode``. Nothing
            is run. Default: all graphs that it holds.
        **kwargs: keyword arguments, likewise.

    Returns:
        The report. It holds no memory of the device, and stays as it is when the graph changes.

    Raises:
        ArgumentError: ``graph`` is no such thing, or arguments were given where nothing is called.
        CaptureError: there is no graph: nothing was captured yet, such calls run eagerly (the
            message says why), it was released, or its nodes were not kept; or this was called
            inside of a graphed function.
        DeviceError: the driver does not tell.
        MissingPackageError: cuda-bindings is not installed.
    """
    if is_inside_gfxgraph():
        raise CaptureError(
            "inspect() was called inside of a graphed function, of whose graph it would be no "
            "part: call it before or after."
        )
    device = current_device()
    if type(graph) is MethodType and answering(graph.__func__) is not None:  # a class method
        graph, args = graph.__func__, (graph.__self__, *args) if args or kwargs else ()
    if _is_called(graph):
        name, found = _name(graph), list(_graphs_of_calls(graph, args, kwargs))
    elif args or kwargs:
        raise ArgumentError(
            f"inspect({describe(graph)}, ...): arguments choose a graph of something that is "
            "called with them; a single graph is inspected without."
        )
    else:
        name, found = "graph", _graphs_of(graph)
    return InspectReport(
        name=name,
        device=device.facts(index_of(device)).name,
        emulated=device.kind == "emulated",
        torch=torch.__version__,
        gfxgraph=sys.modules["gfxgraph"].__version__,
        graphs=tuple(found),
    )


def _is_called(graph: Any) -> bool:
    return answering(graph) is not None or isinstance(graph, (ShapeBucketPool, ConditionalGraph))


def _name(graph: Any) -> str:
    found = answering(graph)
    return name_of(graph) if found is None else found[1].name


def _functions_of(
    graph: Any, args: tuple[Any, ...]
) -> tuple[list[tuple[Callable[..., Any], Dispatcher]], tuple[Any, ...]]:
    """What it calls, what answers such calls, and the arguments of those."""
    found = answering(graph)
    if found is None:
        return [_with_function(graph, d) for d, owner in owners() if owner is graph], args
    fn, dispatcher = found
    # A graphed method has a dispatcher for each instance.
    methods = [(other, owner) for other, owner in owners() if other.method is graph]
    of_first = [one for one in methods if args and one[1] is args[0]]
    if of_first:  # Policy.act(policy, x)
        methods, args = of_first, args[1:]
    if methods and not dispatcher.has_calls:
        return [(fn.__get__(owner), other) for other, owner in methods], args
    return [found], args


def _with_function(graph: Any, dispatcher: Dispatcher) -> tuple[Callable[..., Any], Dispatcher]:
    if isinstance(graph, ConditionalGraph):
        fn = graph.function_of(dispatcher)
        assert fn is not None  # it owns the dispatcher
        return fn, dispatcher
    return graph.model_fn, dispatcher


def _graphs_of_calls(
    graph: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[InspectedGraph]:
    """The graphs of something that is called."""
    chooses = bool(args or kwargs)
    functions, args = _functions_of(graph, args)
    if chooses and (args or kwargs or len(functions) > 1):
        if len(functions) > 1:
            raise ArgumentError(
                f"inspect({describe(graph)}, ...): it has several functions; inspect it without "
                "arguments."
            )
        (fn, dispatcher), *_ = functions
        entries = [(dispatcher.name, _entry_for(dispatcher, fn, args, kwargs))]
    else:
        entries = [(d.name, entry) for _, d in functions for entry in _entries(d)]
        if not entries:
            raise CaptureError(_nothing(graph, [d for _, d in functions]))
    for name, entry in entries:
        yield from _of_entry(f"{name}({entry.key})", entry)


def _entries(dispatcher: Dispatcher) -> list[Entry]:
    return [entry for entry in dispatcher.kept() if isinstance(entry, Entry)]


def _nothing(graph: Any, dispatchers: list[Dispatcher]) -> str:
    """Why there is no graph."""
    name = _name(graph)
    for dispatcher in dispatchers:
        for entry in dispatcher.kept():
            if isinstance(entry, Refusal):
                return f"{name} has no graph: calls with {entry.key} run eagerly: {entry.reason}"
        for reason in dispatcher.stats().fallbacks:
            return f"{name} has no graph: its calls run eagerly: {reason}"
    return f"{name} has no graph: nothing was captured yet, or it was released. Call it first."


def _entry_for(
    dispatcher: Dispatcher, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Entry:
    """The entry that answers a call with these arguments."""
    reasons = []
    for mode in (nullcontext, torch.no_grad, torch.inference_mode):
        with mode():
            found = dispatcher.kept_for(fn, args, kwargs)
        if isinstance(found, Entry):
            return found
        reasons.append(found)
    refusal = next((reason for reason in reasons if isinstance(reason, Refusal)), None)
    if refusal is not None:
        raise CaptureError(
            f"{dispatcher.name} has no graph for these arguments: calls with {refusal.key} run "
            f"eagerly: {refusal.reason}"
        )
    for reason in dispatcher.stats().fallbacks:
        raise CaptureError(
            f"{dispatcher.name} has no graph for these arguments: {reasons[0]}. Of its calls some "
            f"ran eagerly: {reason}"
        )
    raise CaptureError(
        f"{dispatcher.name} has no graph for these arguments: {reasons[0]}. Call it with them "
        "first."
    )


def _of_entry(name: str, entry: Entry) -> Iterator[InspectedGraph]:
    """The graphs of one kind of calls: one, or a tree where its data decides."""
    found = []
    with LOCK:  # no longer than needed: replays wait
        captured = entry.captured
        if captured is None:
            raise CaptureError(f"{name}: its graph was released meanwhile. Call it again first.")
        for segment in _in_order(captured.root):
            if segment.graph is not None:
                try:
                    found.append((*segment.graph.described(), _note(segment)))
                except CaptureError as error:
                    raise CaptureError(f"{name}: {error}") from error
    if not found:
        raise CaptureError(f"{name} has no graph: its calls give the device no work.")
    for number, described in enumerate(found, 1):
        which = f", graph {number} of {len(found)}" if len(found) > 1 else ""
        yield graph_of(name + which, *described)


def _in_order(root: Segment) -> Iterator[Segment]:
    yield root
    for child in root.children.values():
        yield from _in_order(child)


def _note(segment: Segment) -> str:
    step = segment.step
    return "" if step is None else f"After it the host goes on: {step.point.what} at {step.where}"


def _graphs_of(graph: Any) -> list[InspectedGraph]:
    """The graphs behind one object that stands for a graph."""
    if isinstance(graph, Composition):
        return [graph_of(name, *one.described()) for name, one in graph.graphs.items()]
    if isinstance(graph, NativeGraph):
        stand_in = graph.stand_in
        if isinstance(stand_in, CallAgain):
            if stand_in.because:
                raise CaptureError(
                    f"this graph was not captured, and its replays run eagerly: {stand_in.because}"
                )
            return list(_graphs_of_calls(stand_in.answer, (), {}))
        return [graph_of("graph", *graph.described())]
    if isinstance(graph, (torch.cuda.CUDAGraph, EmulatedGraph)):
        try:
            nodes = current_device().nodes(graph)
        except GfxGraphError:
            raise
        except RuntimeError as error:
            raise CaptureError(
                f"the nodes of this graph cannot be read: {one_line(error)}. Capture it into "
                "torch.cuda.CUDAGraph(keep_graph=True)."
            ) from error
        return [graph_of("graph", nodes, [Source()] * len(nodes))]
    advice = ""
    if callable(graph):
        advice = " Wrap it with gfxgraph.graphed() and call that; then inspect what graphed() gave."
    raise ArgumentError(
        f"inspect({describe(graph)}): expected what gfxgraph.graphed() gives, a ShapeBucketPool, a "
        f"ConditionalGraph, a BridgedCUDAGraph or a torch.cuda.CUDAGraph.{advice}"
    )
