"""SGLang: a size whose capture fails is answered by SGLang's own eager path.

Read in SGLang 0.5.23. The hooks are registered with SGLang's own registry, which applies them.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .graphs import EngineGraphs, label, replays_of, several_ranks

__all__ = ["install"]

_BACKENDS = "sglang.srt.model_executor.runner_backend"
_FULL = f"{_BACKENDS}.full_cuda_graph_backend.FullCudaGraphBackend"
_BREAKABLE = f"{_BACKENDS}.breakable_cuda_graph_backend.BreakableCudaGraphBackend"
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
# A step that runs again writes the same keys and values to the same places of these; other pools
# hold states that each step advances.
_POOLS = {
    *("MHATokenToKVPool", "MHATokenToKVPoolFP4", "MHATokenToKVPoolMXFP8"),
    *("MLATokenToKVPool", "MLATokenToKVPoolFP4", "PageMajorMHATokenToKVPool", "SWAKVPool"),
}
# On the backend itself: they refer to it.
_FORWARDS = "_gfxgraph_forwards"


def install(compare_every: int = 0) -> None:
    """Register the hooks, if they are not.

    Args:
        compare_every: compare the first replay of each size and every so many-th one with eager
            execution. Default 0: none.
    """
    EngineGraphs.compare_every = compare_every
    hooks = [(f"{_FULL}.capture_one", _capture_one), (f"{_BREAKABLE}.capture_one", _capture_one)]
    if compare_every:
        hooks.append((f"{_FULL}.replay", _replay))
    module = import_module("sglang.srt.plugins.hook_registry")
    registry, around = module.HookRegistry, module.HookType.AROUND
    for target, ours in hooks:
        if all(hook is not ours for _, hook, _ in registry._hooks.get(target, ())):
            registry.register(target, ours, around)


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
    if graphs.compare_every and shape_key in held:
        forward = kwargs["forward_fn"] if "forward_fn" in kwargs else args[0]
        vars(backend).setdefault(_FORWARDS, {})[shape_key] = forward
        graphs.leave_out(label(shape_key), _cannot_compare(backend, shape_key))


def _replay(
    original: Callable[..., Any], backend: Any, shape_key: Any, *args: Any, **kwargs: Any
) -> Any:
    """``FullCudaGraphBackend.replay``."""
    runner = backend._cuda_graph_runner
    forward = vars(backend).get(_FORWARDS, {}).get(shape_key)
    if forward is None:
        return original(backend, shape_key, *args, **kwargs)
    capture_mode = import_module("sglang.srt.model_executor.runner_utils.capture_mode")

    def run() -> Any:
        with capture_mode.model_capture_mode():  # as the runs before the capture
            return forward()

    return EngineGraphs.of(backend, "SGLang", type(runner).__name__).answer(
        label(shape_key),
        replay=lambda: original(backend, shape_key, *args, **kwargs),
        run=run,
        rows=runner.raw_num_token,
    )


def _cannot_compare(backend: Any, shape_key: Any) -> str:
    """Why a step of this size must not run twice; empty: it may."""
    runner = backend._cuda_graph_runner
    try:
        model = runner.model_runner
        cache = type(model.token_to_kv_pool).__name__
        found = {
            f"a backend {type(backend).__name__}": type(backend).__name__ != "FullCudaGraphBackend",
            f"a runner {type(runner).__name__}": type(runner).__name__ != "DecodeCudaGraphRunner",
            "several ranks": several_ranks(),
            "speculative decoding": not model.spec_algorithm.is_none(),
            "LoRA": model.lora_manager is not None,
            "variants of a size": label(shape_key) != f"size={shape_key.size}",
            "a diffusion language model": runner.is_dllm,
            "two batches at once": runner.enable_two_batch_overlap,
            "embeddings of n-grams": runner.use_ngram_embedding,
            "hooks in a capture": bool(model.capture_head_hooks or model.capture_tail_hooks),
            "a cache that is partly on the host": model.hisparse_coordinator is not None,
            "canaries": model.canary_manager is not None,
            "states of requests": type(model.req_to_token_pool).__name__ != "ReqToTokenPool",
            f"a cache {cache}": cache not in _POOLS,
        }
    except AttributeError as error:
        return f"SGLang is another one than 0.5.23: {error}"
    return next((why for why, holds in found.items() if holds), "")


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
