"""``enable(validate=True)`` for ``BridgedCUDAGraph.capture(model_fn=)``: one graph of a block.

No run of such a graph was recorded, so its writes are unknown. Here the function runs first and is
rolled back, and then the graph is replayed.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from ..call import validation
from ..call.signature import flatten
from ..device import current_device, generator_state, index_of
from ..errors import ArgumentError, CaptureError
from ..graph.compare import difference, rounding
from ..graph.locks import LOCK, turn_if_free
from ..graph.native import NO_SIZES, NativeGraph
from ..graph.rollback import run_and_roll_back
from ..interpose.source import name_of
from ..record.effects import UndoLog, tensors_in
from ..record.recorder import Recording
from ..stats import log, tally
from .observe import ObservedCalls

__all__ = ["ValidatedBlock"]


class ValidatedBlock:
    """Answers the replays of a graph while replays are compared.

    Args:
        graph: the graph; held weakly, and keeps this in its ``block``.
        calls: the call that the block made.
        modes: enters the modes of the capture.
        give_up: called with the reason if the graph was wrong; returns a replacement that answers
            replays.
    """

    def __init__(
        self,
        graph: NativeGraph,
        calls: ObservedCalls,
        modes: Callable[[], AbstractContextManager[None]],
        give_up: Callable[[str], Callable[[int | None, dict[str, int]], Any]],
    ) -> None:
        self._graph = weakref.ref(graph)
        self._fn, self._args, self._kwargs = calls.fn, calls.args, calls.kwargs
        self._result, self._modes, self._give_up = calls.result, modes, give_up
        self._compared_at: int | None = None
        graph.block = self
        validation.register(self)
        self.validation_changed()

    def validation_changed(self) -> None:
        """Take the place of the graph, or give it back."""
        graph = self._graph()
        if graph is not None and graph.stand_in in (None, self._answer):
            graph.stand_in = self._answer if validation.every() else None

    def _answer(self, batch_size: int | None, sizes: dict[str, int]) -> Any:
        graph = self._graph()
        assert graph is not None  # it is being replayed
        if batch_size is not None or sizes:
            raise ArgumentError(NO_SIZES)
        found = None
        if validation.is_due(graph.counter.total(), self._compared_at) and self._is_comparable():
            with turn_if_free(all_leave=False) as is_ours, ExitStack() as turns:
                # While another thread captures, a later replay is compared instead.
                if is_ours and validation.take(turns, LOCK):
                    found = self._compare(graph)
                else:
                    self._replay(graph)
        else:
            self._replay(graph)
        if found is None:
            return graph.static_output
        reason = f"a later replay differs from eager execution in {found}"
        tally.add("validation_failures")
        name = name_of(self._fn)
        log(logging.WARNING, "validation_failed", function=name, because=reason, so="runs eagerly")
        graph.stand_in = self._give_up(reason)
        return graph.stand_in(None, {})

    def _replay(self, graph: NativeGraph) -> None:
        graph.stand_in = None
        try:
            graph.replay()
        finally:
            graph.stand_in = self._answer

    def _is_comparable(self) -> bool:
        """Whether the arguments are the caller's own, and not made inside the block."""
        graph, device = self._graph(), current_device()
        return graph is not None and not any(
            graph.holds(tensor)
            for tensor in tensors_in((self._args, self._kwargs))
            if tensor.device.type == device.type
        )

    def _compare(self, graph: NativeGraph) -> str | None:
        """Run the function, roll back, replay, and compare; then undo the replay."""
        device, written = current_device(), UndoLog()
        inputs = list(tensors_in((self._args, self._kwargs)))
        generator = device.default_generator(index_of(device, inputs))
        before = generator_state(generator)
        after: list[torch.Tensor] = []
        slack, compiles = 0.0, False

        def look(log: UndoLog, recording: Recording) -> None:
            nonlocal written, slack, compiles
            written, compiles = log, recording.compiles
            if compiles:  # it ran eagerly
                slack = rounding(recording.dtypes, device)
            after[:] = [*(region.clone() for region in log.regions()), generator_state(generator)]

        try:
            with self._modes():
                result, draws = run_and_roll_back(
                    self._fn, self._args, self._kwargs, inputs, device, look=look
                )
        except CaptureError as error:
            if error.rule != "collective":
                raise
            return f"that it now issues a collective: {error}"
        self._replay(graph)
        self._compared_at = graph.counter.total()
        with torch.no_grad():
            outputs, spec = flatten(self._result)
            expected, expected_spec = flatten(result)
            found = "the structure of its result" if spec != expected_spec else None
            found = found or validation.differs(outputs, expected, True, slack)
            for region, value in zip(written.regions(), after, strict=False):
                differs = difference(region, value, True, slack)
                if found is None and differs is not None:
                    found = f"a tensor of shape {tuple(region.shape)} that it writes: {differs}"
        same = compiles or not draws or torch.equal(generator_state(generator), after[-1])
        if found is None and not same:
            found = "the state of the random generator"
        if found is not None:
            written.undo()
            generator.set_state(before)
            graph.counter.replays -= 1
        return found
