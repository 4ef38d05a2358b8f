"""``BridgedCUDAGraph.capture``: a ``with`` block as one graph, or its call as a graph per size."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..call.buckets.padding import cut
from ..call.buckets.pool import ShapeBucketPool
from ..call.buckets.sizes import Buckets, Dims, argument_names
from ..call.replay import builder
from ..call.signature import Spec, flatten
from ..device import current_device, index_of
from ..errors import ArgumentError, CaptureError, one_line
from ..graph.locks import CAPTURING, LOCK, no_garbage_collection
from ..graph.native import NativeGraph
from ..graph.rollback import run_and_roll_back
from ..interpose.dynamo import opaque
from ..interpose.interrupts import held_back, interrupt_in, own_handlers
from ..interpose.source import Source, name_of, users_line, users_line_of
from ..record.collectives import refused
from ..record.effects import storage_key, tensors_in
from ..record.explain import explain
from ..record.side_effects import side_effects
from ..stats import tally
from .observe import ObservedCalls
from .validated import ValidatedBlock

__all__ = ["CallAgain", "as_graphs_of_sizes", "as_one_graph"]

_BATCH = "batch"
# How many sizes keep their arguments, which are views of the static inputs.
_MAX_SIZES = 1024

_Plan = Sequence[Mapping[int, str]]  # for each tensor of the arguments: dimension -> name
_Modes = Callable[[], AbstractContextManager[None]]


@contextmanager
def as_one_graph(
    graph: NativeGraph, model_fn: Callable[..., Any] | None, **options: Any
) -> Iterator[None]:
    """Capture the block, on a stream of its own.

    Where the capture fails in ``model_fn``, its call is made eagerly at each replay.
    """
    calls = None if model_fn is None else ObservedCalls(model_fn)
    device = current_device()
    index = index_of(device)
    modes = _modes_of_now()
    effects: list[tuple[str, str, Source]] = []

    def tell(rule: str, what: str) -> bool:
        if calls is not None and calls.is_inside:
            effects.append((rule, what, users_line()))
        return False

    with held_back():
        try:
            with (
                LOCK,
                no_garbage_collection(),
                device.on_stream(device.capture_stream(index), index),
            ):
                device.clear_library_workspaces()
                graph.capture_begin(**options)
                try:
                    seen = nullcontext() if calls is None else side_effects(tell, perform=True)
                    # Where the function is known, it can run eagerly instead.
                    alone = (
                        nullcontext() if calls is None else refused(when=lambda: calls.is_inside)
                    )
                    with alone, calls or nullcontext(), seen, own_handlers():
                        yield
                except BaseException:
                    graph.reset()  # ends the capture, while its stream is the current one
                    raise
                graph.capture_end()
                device.clear_library_workspaces()
            if effects:
                graph.reset()
                raise explain(*effects[0])
        except RuntimeError as error:
            if calls is None or not calls.is_all_there_was or interrupt_in(error):
                raise
            why = _why(error)
            inputs = list(tensors_in((calls.args, calls.kwargs)))
            try:
                with CAPTURING, modes():
                    run_and_roll_back(calls.fn, calls.args, calls.kwargs, inputs, device)
            except CaptureError as found:  # all other errors are the caller's own
                if found.rule == "collective":
                    why = _why(found)
            graph.stand_in = CallAgain(calls, _eagerly(calls.fn, why), modes, because=why)
        else:
            if calls is not None and calls.count == 1:
                graph.static_output = calls.result
                ValidatedBlock(graph, calls, modes, functools.partial(_give_up, calls, modes))


@contextmanager
def as_graphs_of_sizes(
    graph: NativeGraph, model_fn: Callable[..., Any], pool: ShapeBucketPool, dims: Dims | None
) -> Iterator[None]:
    """Run the block eagerly; then capture its call of ``model_fn`` for each size."""
    calls = ObservedCalls(model_fn)
    with calls:
        yield
    if calls.count != 1:
        raise ArgumentError(
            f"the with block called model_fn, {calls.fn!r}, {calls.count} times: expected one "
            "call, on this thread, of the very object that is model_fn."
        )
    leaves, spec = flatten((calls.args, calls.kwargs))
    names = list(argument_names(calls.fn, spec))
    plan, modes = Buckets(pool.buckets, dims).plan(leaves, names), _modes_of_now()
    answer: Callable[..., Any] = pool
    why = ""
    with held_back():
        try:
            with modes():
                pool.capture(*calls.args, **calls.kwargs)
        except RuntimeError as error:
            if interrupt_in(error):
                raise
            # It ran in the block, so the sizes are at fault, or another capture is underway.
            pool.reset()
            why = _why(error)
            answer = _eagerly(calls.fn, why)
    graph.stand_in = CallAgain(calls, answer, modes, plan, why)
    # At once, not at the next garbage collection.
    weakref.finalize(graph.stand_in, pool.reset).atexit = False


class CallAgain:
    """Repeats the call of a ``with`` block, in place of a graph.

    Args:
        calls: the call.
        answer: the callable that answers.
        modes: enters the modes to call it in.
        plan: which dimensions of its arguments are dynamic; ``None``: no sizes can be asked for.
        because: why there is no graph.

    Attributes:
        answer: the callable that answers.
        because: why there is no graph; ``""``: there is.
    """

    def __init__(
        self,
        calls: ObservedCalls,
        answer: Callable[..., Any],
        modes: _Modes,
        plan: _Plan | None = None,
        because: str = "",
    ) -> None:
        self.answer, self.because = answer, because
        self._args, self._kwargs, self._modes = calls.args, calls.kwargs, modes
        inputs = set(map(storage_key, tensors_in((calls.args, calls.kwargs))))
        self._outputs, _ = flatten(calls.result)
        self._are_inputs = [storage_key(output) in inputs for output in self._outputs]
        self._sizes: dict[str, int] = {}
        if plan is not None:
            leaves, spec = flatten((calls.args, calls.kwargs))
            for leaf, dims in zip(leaves, plan, strict=True):
                self._sizes.update({name: leaf.shape[dim] for dim, name in dims.items()})
            self._cut = functools.lru_cache(_MAX_SIZES)(
                functools.partial(_cut_arguments, leaves, spec, plan, tuple(self._sizes))
            )

    @opaque
    def __call__(self, batch_size: int | None, sizes: dict[str, int]) -> Any:
        """The body of :meth:`BridgedCUDAGraph.replay`."""
        if batch_size is not None:
            if _BATCH in sizes:
                raise ArgumentError("replay(batch_size=, batch=): expected one of them.")
            sizes = {**sizes, _BATCH: batch_size}
        for name, size in sizes.items():
            self._check(name, size)
        with self._modes():
            if sizes:
                asked = tuple(sizes.get(name, held) for name, held in self._sizes.items())
                args, kwargs = self._cut(asked)
                result = self.answer(*args, **kwargs)
            else:
                result = self.answer(*self._args, **self._kwargs)
                self._update(result)
            if any(self._are_inputs):  # else the caller's next input would change this result
                result = pytree.tree_map_only(torch.Tensor, torch.clone, result)
        return result

    def _check(self, name: str, size: Any) -> None:
        asked = f"replay({'batch_size' if name == _BATCH else name}={size!r})"
        if not self._sizes:
            raise ArgumentError(f"{asked}: it takes sizes after capture(dynamic_shapes=True).")
        if name not in self._sizes:
            raise ArgumentError(
                f"{asked}: {name!r} is no dynamic dimension; expected {', '.join(self._sizes)}."
            )
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ArgumentError(f"{asked}: expected a whole number from 0.")
        if size > self._sizes[name]:
            raise ArgumentError(
                f"{asked}: the static input holds {self._sizes[name]}. Capture with one that holds "
                f"{size}."
            )

    def _update(self, result: Any) -> None:
        """Copy the result to the static output."""
        if not self._outputs:
            return
        new, _ = flatten(result)
        got, expected = ([tuple(t.shape) for t in tensors] for tensors in (new, self._outputs))
        if got != expected:
            raise CaptureError(
                f"the result has tensors of shapes {got}, the static output {expected}: expected "
                "the same. After capture(dynamic_shapes=True) ask for a size, such as "
                "replay(batch_size=4), and take what it returns."
            )
        with torch.no_grad():
            for output, value, is_input in zip(self._outputs, new, self._are_inputs, strict=True):
                if not is_input:
                    output.copy_(value)


def _cut_arguments(
    leaves: Sequence[torch.Tensor],
    spec: Spec,
    plan: _Plan,
    names: Sequence[str],
    sizes: Sequence[int],
) -> Any:
    by_name = dict(zip(names, sizes, strict=True))
    return builder(spec, [cut(t, dims, by_name) for t, dims in zip(leaves, plan, strict=True)])()


def _why(error: RuntimeError) -> str:
    """Why a capture failed."""
    where = users_line_of(error)
    place = "" if where.file is None else f"{where}: "
    return f"capture failed: {place}{one_line(error)}"


def _give_up(calls: ObservedCalls, modes: _Modes, reason: str) -> CallAgain:
    """A replacement that runs the call of the block eagerly from now on."""
    again = _eagerly(calls.fn, reason, fails_now=False)
    return CallAgain(calls, again, modes, because=reason)


def _eagerly(fn: Callable[..., Any], reason: str, fails_now: bool = True) -> Callable[..., Any]:
    """``fn``; each call counts as a fallback because of ``reason``, as does the failed capture."""
    count = functools.partial(tally.fallback, name_of(fn), reason)

    def eagerly(*args: Any, **kwargs: Any) -> Any:
        count()
        return fn(*args, **kwargs)

    if fails_now:
        count()
    return eagerly


def _modes_of_now() -> _Modes:
    """Remember the modes of the capture, which a graph keeps; it never keeps autograd."""
    kind = current_device().type

    def now() -> tuple[Any, ...]:
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
        )

    _, inference, autocast, dtype = now()
    wanted = (False, inference, autocast, dtype)

    @contextmanager
    def entered() -> Iterator[None]:
        with (
            torch.inference_mode(inference),
            torch.no_grad(),
            torch.autocast(kind, dtype=dtype, enabled=autocast),
        ):
            yield

    return lambda: nullcontext() if now() == wanted else entered()
