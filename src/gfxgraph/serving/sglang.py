"""SGLang: a size whose capture fails is answered by SGLang's own eager path.

Read in SGLang 0.5.23. The hooks are registered with SGLang's own registry, which applies them.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .graphs import EngineGraphs, label, replays_of

__all__ = ["install"]

_BACKENDS = "sglang.srt.model_executor.runner_backend"
_TARGETS = (
    f"{_BACKENDS}.full_cuda_graph_backend.FullCudaGraphBackend.capture_one",
    f"{_BACKENDS}.breakable_cuda_graph_backend.BreakableCudaGraphBackend.capture_one",
)
# Runners that pad a batch to one of `capture_bs`, and whose callers run eagerly where
# `can_run_graph` says no. Others (prefill, several layers of drafts) keep SGLang's behaviour: an
# error ends the start.
_KNOWN = {
    "DecodeCudaGraphRunner",
    "EAGLEDraftCudaGraphRunner",
    "EAGLEDraftExtendCudaGraphRunner",
    "FrozenKVMTPCudaGraphRunner",
}
_EAGER_SIZES = "_gfxgraph_eager_sizes"


def install() -> None:
    """Register the hooks, if they are not."""
    module = import_module("sglang.srt.plugins.hook_registry")
    registry, around = module.HookRegistry, module.HookType.AROUND
    for target in _TARGETS:
        if all(hook is not _capture_one for _, hook, _ in registry._hooks.get(target, ())):
            registry.register(target, _capture_one, around)


def _capture_one(
    original: Callable[..., None], backend: Any, shape_key: Any, *args: Any, **kwargs: Any
) -> None:
    runner = backend._cuda_graph_runner
    graphs = EngineGraphs.of(backend, "SGLang", type(runner).__name__)
    graphs.watch(getattr(getattr(runner, "model_runner", None), "model", None))
    # What is remembered must not keep the backend.
    held, outputs, weakly = backend._graphs, backend._outputs, weakref.ref(runner)

    def drop() -> None:
        alive = weakly()
        if alive is not None:
            run_eagerly(alive, shape_key.size)  # first: nobody asks for the graph afterwards
        held.pop(shape_key, None)
        outputs.pop(shape_key, None)

    with graphs.capturing(
        label(shape_key),
        pool=lambda: backend._pool,
        keep=lambda: (
            type(runner).__name__ in _KNOWN and not getattr(runner, "ragged_verify_mode", False)
        ),
        counted=lambda: replays_of(held.get(shape_key)),
        release=drop,
        give_up=drop,
    ):
        original(backend, shape_key, *args, **kwargs)


def run_eagerly(runner: Any, size: int) -> None:
    """Let ``runner.can_run_graph`` say no to batches that are padded to ``size``.

    With padding SGLang asks only whether a batch is at most the largest size.
    """
    sizes = vars(runner).get(_EAGER_SIZES)
    if sizes is None:
        sizes = set()
        setattr(runner, _EAGER_SIZES, sizes)
        # Of this runner alone: several classes have a method of their own, and a runner whose
        # sizes were all captured pays nothing.
        runner.can_run_graph = _Guard(runner, sizes, runner.can_run_graph)
    sizes.add(size)


class _Guard:
    def __init__(self, runner: Any, sizes: set[int], asked: Callable[[Any], Any]) -> None:
        self._buckets, self._sizes, self._asked = runner.capture_bs, sizes, asked

    def __call__(self, forward_batch: Any) -> Any:
        at = bisect_left(self._buckets, forward_batch.batch_size)
        if at < len(self._buckets) and self._buckets[at] in self._sizes:
            return False
        return self._asked(forward_batch)
