"""``compose``: captured graphs as the nodes of one graph."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import torch

from ..device import current_device
from ..errors import ArgumentError, CaptureError, DeviceError, MissingPackageError
from ..stats import log, tally
from .native import GraphUpdate, NativeGraph, when_no_capture

__all__ = ["Composition", "compose"]


def compose(
    graphs: Mapping[str, NativeGraph], after: Mapping[str, Iterable[str]] | None = None
) -> Composition:
    """Put captured graphs into one graph, which is launched at once.

    >>> whole = gfxgraph.compose({"vision": a, "action": b}, after={"action": ["vision"]})
    >>> whole.replay()
    >>> whole.replace("action", c)

    Graphs that do not wait for each other may run at the same time. Whoever reads what another one
    writes has to come after it.

    Args:
        graphs: a name for each; all captured into ``BridgedCUDAGraph(keep_graph=True)``, on one
            device.
        after: of a name, the names of those that it waits for. Default: nobody waits.

    Raises:
        ArgumentError: there is no graph; a name is unknown; graphs wait for each other in a circle,
            are on different devices or occur twice, or share a memory pool without an order.
        CaptureError: a graph holds no capture, or was made without ``keep_graph=True``.
    """
    return Composition(graphs, after or {})


class Composition:
    """What :func:`gfxgraph.compose` gives: several graphs that are replayed as one.

    Where that cannot be, its graphs are replayed one after the other, with equal results:
    ``in_turn`` says why. So it is on HIP and on the emulated device, if one of the graphs draws
    random numbers, holds a collective or was captured with ``capture(model_fn=)``, and for the
    first replay of a graph, which shows whether it draws.

    Attributes:
        in_turn: why the last replay was one after the other; ``""``: it was one launch.
    """

    def __init__(
        self, graphs: Mapping[str, NativeGraph], after: Mapping[str, Iterable[str]]
    ) -> None:
        if not isinstance(graphs, Mapping) or not graphs:
            raise ArgumentError(f"compose({graphs!r}): expected names with graphs.")
        self._after = _checked_order(graphs, after)
        for name, graph in graphs.items():
            self._check(name, graph)
        self._graphs = {name: graphs[name] for name in self._after}  # in the order of replays
        self._check_pools(self._graphs)
        self._captures = {name: graph.captures for name, graph in graphs.items()}
        self._index = next(iter(graphs.values())).index
        self._executable = 0
        self._refused = ""  # why the driver cannot make one graph of these
        self._nodes: dict[str, int] = {}
        self._destroy: Callable[[], Any] = lambda: None
        self._counter = tally.replay_counter()
        weakref.finalize(self, tally.retire, self._counter).atexit = False
        self.in_turn = "it was not replayed yet"

    @property
    def graphs(self) -> dict[str, NativeGraph]:
        """The graphs by name, each after those that it waits for."""
        return dict(self._graphs)

    @property
    def after(self) -> dict[str, tuple[str, ...]]:
        """Of each name, those that it waits for."""
        return dict(self._after)

    def replay(self) -> None:
        """Launch all graphs on the current stream.

        Raises:
            CaptureError: the stream captures; or a graph was released, captured again or updated
                since it was put in.
            DeadTensorError: as ``replay()`` of one of the graphs.
            DeviceError: the driver refuses the launch.
        """
        self._check_graphs()
        if not self._executable:
            self.in_turn = self._why_in_turn() or self._refused or self._build()
        if self.in_turn:
            for graph in self._graphs.values():
                graph.replay()
            return
        device = current_device()
        if device.is_capturing():
            raise CaptureError("replay() of a composition was called during a capture.")
        with torch.cuda.device(self._index):
            stream = device.stream_id(self._index)
            device.executables().launch(self._executable, stream)
        self._counter.replays += 1
        if NativeGraph.synchronize_replays:
            device.synchronize(self._index)

    def replace(self, name: str, graph: NativeGraph) -> GraphUpdate:
        """Put another graph in the place of one, without building the others again if possible.

        The driver can, if the nodes are the same and only what they work on differs. Otherwise the
        whole is built again at the next replay.

        Args:
            name: whose place.
            graph: as for :func:`gfxgraph.compose`. What reads results of the old one has to read
                those of this one: they may lie elsewhere.

        Returns:
            ``"updated"`` or ``"rebuilt"``, and in that case why.

        Raises:
            ArgumentError: the name is unknown, or the graph does not go with the others.
            CaptureError: the graph holds no capture, or was made without ``keep_graph=True``.
        """
        if name not in self._graphs:
            raise ArgumentError(
                f"replace({name!r}): unknown; expected one of {', '.join(self._graphs)}."
            )
        self._check(name, graph)
        if graph.index != self._index:
            raise ArgumentError(
                f"replace({name!r}): it is on GPU {graph.index}, the others on {self._index}."
            )
        graphs = {**self._graphs, name: graph}
        self._check_pools(graphs)
        self._graphs, self._captures[name] = graphs, graph.captures
        why = self._why_in_turn() or self._refused
        if not why and not self._executable:
            why = "it was not one graph yet"
        if not why:
            try:
                raw = graph.origin.raw_cuda_graph()
                current_device().executables().replace(self._executable, self._nodes[name], raw)
            except DeviceError as error:
                why = str(error)
        if why:
            self._drop()
        log(logging.DEBUG, "graph_replaced", name=name, in_place=not why, because=why)
        return GraphUpdate("rebuilt" if why else "updated", why)

    def reset(self) -> None:
        """Free what the driver holds of the whole; the graphs stay, and so does this."""
        self._drop()

    def _check(self, name: str, graph: Any) -> None:
        if not isinstance(graph, NativeGraph):
            raise ArgumentError(f"compose(): {name!r} is {graph!r}: expected a BridgedCUDAGraph.")
        if not graph.is_kept():
            raise CaptureError(
                f"compose(): {name!r} holds no capture of which the graph is kept: it was "
                "released, or not captured into BridgedCUDAGraph(keep_graph=True)."
            )
        graph.check_that_it_is_there()

    def _check_graphs(self) -> None:
        for name, graph in self._graphs.items():
            if not graph.is_kept() or graph.captures != self._captures[name]:
                raise CaptureError(
                    f"{name!r} of a composition was released, captured again or updated since: "
                    f"replace({name!r}, graph) puts in what holds now."
                )
            if self._executable:
                graph.check_inputs()

    def _check_pools(self, graphs: Mapping[str, NativeGraph]) -> None:
        """Refuse graphs that would use the same memory at the same time."""
        if len({graph.index for graph in graphs.values()}) > 1:
            where = ", ".join(f"{name!r} on {graph.index}" for name, graph in graphs.items())
            raise ArgumentError(f"compose(): the graphs are on several GPUs: {where}.")
        before: dict[str, set[str]] = {}
        for name, earlier in self._after.items():
            before[name] = {*earlier}.union(*(before[one] for one in earlier))
            for other in before.keys() - before[name] - {name}:
                if graphs[other].origin.pool() == graphs[name].origin.pool():
                    raise ArgumentError(
                        f"compose(): {other!r} and {name!r} use one memory pool, so they may not "
                        f"run at the same time: say after={{{name!r}: [{other!r}]}}, or capture "
                        "each into a pool of its own."
                    )

    def _why_in_turn(self) -> str:
        for name, graph in self._graphs.items():
            if why := graph.origin.only_for_itself():
                return f"{name!r} {why}"
        return ""

    def _build(self) -> str:
        """Make one graph of all; why the driver cannot, or ``""``."""
        positions = {name: n for n, name in enumerate(self._graphs)}
        try:
            executables = current_device().executables()
            whole, nodes, self._executable = executables.compose(
                [graph.origin.raw_cuda_graph() for graph in self._graphs.values()],
                [[positions[one] for one in earlier] for earlier in self._after.values()],
            )
        except (DeviceError, MissingPackageError) as error:
            self._refused = str(error)
            return self._refused
        self._nodes = dict(zip(self._graphs, nodes, strict=True))
        destroy, executable = executables.destroy, self._executable
        self._destroy = weakref.finalize(self, when_no_capture, lambda: destroy(whole, executable))
        self._destroy.atexit = False
        return ""

    def _drop(self) -> None:
        self._executable, self._refused, self.in_turn = 0, "", "it was not replayed yet"
        self._destroy()


def _checked_order(
    graphs: Mapping[str, Any], after: Mapping[str, Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    """Of each name those that it waits for, in an order in which nobody comes too early."""
    seen: dict[int, str] = {}
    for name, graph in graphs.items():
        if id(graph) in seen:
            raise ArgumentError(
                f"compose(): {seen[id(graph)]!r} and {name!r} are the same graph: expected each "
                "once."
            )
        seen[id(graph)] = name
    waits_for = {name: tuple(dict.fromkeys(after.get(name, ()))) for name in graphs}
    unknown = [*(after.keys() - graphs.keys())]
    unknown += [one for earlier in waits_for.values() for one in earlier if one not in graphs]
    if unknown:
        raise ArgumentError(
            f"compose(after=): {unknown[0]!r} is no graph; expected one of {', '.join(graphs)}."
        )
    try:
        order = list(TopologicalSorter(waits_for).static_order())
    except CycleError as error:
        circle = " waits for ".join(map(repr, reversed(error.args[1])))
        raise ArgumentError(f"compose(after=): {circle}: expected no circle.") from error
    return {name: waits_for[name] for name in order}
