"""SGLang: a size whose capture fails is answered by SGLang's own eager path.

Read in SGLang 0.5.23. The hooks are registered with SGLang's own registry, which applies them.
"""

from __future__ import annotations

import functools
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from .between import BETWEEN, between_steps
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
_DECODE = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
_STEP = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
_EAGER_SIZES = "_gfxgraph_eager_sizes"
# A step that runs again writes the same keys and values to the same places of these; other pools
# hold states that each step advances.
_POOLS = {
    *("MHATokenToKVPool", "MHATokenToKVPoolFP4", "MHATokenToKVPoolMXFP8"),
    *("MLATokenToKVPool", "MLATokenToKVPoolFP4", "PageMajorMHATokenToKVPool", "SWAKVPool"),
}
# A capture writes to place 0 of this one, which no request has.
_POOLS_OF_PLACES = {"MHATokenToKVPool"}
# On the backend itself: they refer to it.
_FORWARDS = "_gfxgraph_forwards"


def install(compare_every: int = 0) -> None:
    """Register the hooks, if they are not.

    Args:
        compare_every: compare the first replay of each size and every so many-th one with eager
            execution. Default 0: none.
    """
    EngineGraphs.compare_every = compare_every
    hooks: list[tuple[str, Callable[..., Any]]] = [
        (f"{_FULL}.capture_one", _capture_one),
        (f"{_BREAKABLE}.capture_one", _capture_one),
    ]
    if compare_every:
        hooks.append((f"{_FULL}.replay", _replay))
    if BETWEEN.lazy:
        hooks.append((f"{_DECODE}._capture_one_stream", _capture_stream))
    if BETWEEN.is_asked_for:
        hooks.append((_STEP, _step))
    around = import_module("sglang.srt.plugins.hook_registry").HookType.AROUND
    registry = _registry()
    for target, ours in hooks:
        if all(hook is not ours for _, hook, _ in registry._hooks.get(target, ())):
            registry.register(target, ours, around)


def _registry() -> Any:
    return import_module("sglang.srt.plugins.hook_registry").HookRegistry


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
            run_eagerly(alive, shape_key)  # first: nobody asks for the graph afterwards
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
    if shape_key in held:
        _run_as_graph(runner, shape_key)
    if graphs.compare_every and shape_key in held:
        forward = kwargs["forward_fn"] if "forward_fn" in kwargs else args[0]
        vars(backend).setdefault(_FORWARDS, {})[shape_key] = forward
        graphs.leave_out(label(shape_key), _cannot_compare(backend, shape_key))


def _capture_stream(original: Callable[..., None], runner: Any, *args: Any, **kwargs: Any) -> None:
    """``DecodeCudaGraphRunner._capture_one_stream``: the sizes that do not wait."""
    sizes: list[int] = runner.capture_bs
    graphs = EngineGraphs.of(runner.backend, "SGLang", type(runner).__name__)
    late = sizes[:-1] if BETWEEN.captures else []
    why = _cannot_wait(runner) if late else ""
    if why:
        graphs.capture_at_start(why)
        late = []
    # The largest comes first, and makes the pool.
    with _only(runner, sizes[len(late) :]):
        original(runner, *args, **kwargs)
    weakly = weakref.ref(runner)

    def drop(runner: Any, key: Any) -> None:
        runner.backend._graphs.pop(key, None)
        runner.backend._outputs.pop(key, None)

    def capture(key: Any) -> None:
        alive = weakly()
        assert alive is not None  # its own step asks for this
        mode = import_module("sglang.srt.model_executor.runner_utils.capture_mode")
        try:
            with mode.model_capture_mode(), _only(alive, [key.size]):
                alive.capture()  # it also resets what its dummy run reads
        except BaseException:
            run_eagerly(alive, key)
            drop(alive, key)
            raise

    for size in reversed(late):
        key = runner._make_graph_key(size)
        run_eagerly(runner, key, wanted=functools.partial(graphs.want, label(key)))
        drop(runner, key)  # one of before, where SGLang captures again
        graphs.wait(label(key), functools.partial(capture, key))


@contextmanager
def _only(runner: Any, sizes: list[int]) -> Iterator[None]:
    """In the block, these are the sizes that ``runner`` captures."""
    before, runner.capture_bs = runner.capture_bs, sizes
    try:
        yield
    finally:
        runner.capture_bs = before


def _step(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """``ModelRunner.forward``."""
    if runner.spec_algorithm.is_none():
        between_steps(getattr(runner.decode_cuda_graph_runner, "backend", None))
    elif BETWEEN.release_below:  # a step may have chosen its graph before
        BETWEEN.release_no_more("SGLang with speculative decoding")
    return original(runner, *args, **kwargs)


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
    return _first_reason(
        lambda: (
            _unsafe(runner, _POOLS)
            | {"variants of a size": label(shape_key) != f"size={shape_key.size}"}
        )
    )


def _cannot_wait(runner: Any) -> str:
    """Why nothing is captured while requests are served; empty: it may be.

    The dummy run of a capture writes to the place 0 of the cache, which no request is given: SGLang
    resets the static inputs that name places before it.
    """
    server: Any = getattr(runner.model_runner, "server_args", None)
    return _first_reason(
        lambda: (
            _unsafe(runner, _POOLS_OF_PLACES)
            | {
                "variants of a size": runner.record_nolora_graph
                or runner.attention_graph_variants is not None,
                "streams that share the device": runner.enable_pdmux,
                "graphs without padding": runner.disable_padding,
                "an encoder and a decoder": runner.is_encoder_decoder,
                "torch.compile": runner.enable_torch_compile,
                "a profile of captures": runner.enable_profile_cuda_graph,
                "the memory saver": runner.backend._memory_saver_adapter.enabled,
                "prefill and decode on two servers": server.disaggregation_mode != "null",
                "no hook of its steps": _STEP not in _registry()._patched,
            }
        )
    )


def _first_reason(reasons: Callable[[], dict[str, Any]]) -> str:
    try:
        return next((why for why, holds in reasons().items() if holds), "")
    except AttributeError as error:
        return f"SGLang is another one than 0.5.23: {error}"


def _unsafe(runner: Any, pools: set[str]) -> dict[str, Any]:
    """What may keep more from step to step than keys and values at places that steps are given."""
    model, backend = runner.model_runner, type(runner.backend).__name__
    cache = type(model.token_to_kv_pool).__name__
    return {
        f"a backend {backend}": backend != "FullCudaGraphBackend",
        f"a runner {type(runner).__name__}": type(runner).__name__ != "DecodeCudaGraphRunner",
        "several ranks": several_ranks(),
        "speculative decoding": not model.spec_algorithm.is_none(),
        "LoRA": model.lora_manager is not None,
        "a diffusion language model": runner.is_dllm,
        "two batches at once": runner.enable_two_batch_overlap,
        "embeddings of n-grams": runner.use_ngram_embedding,
        "hooks in a capture": bool(model.capture_head_hooks or model.capture_tail_hooks),
        "a cache that is partly on the host": model.hisparse_coordinator is not None,
        "canaries": model.canary_manager is not None,
        "states of requests": type(model.req_to_token_pool).__name__ != "ReqToTokenPool",
        f"a cache {cache}": cache not in pools,
    }


def run_eagerly(runner: Any, shape_key: Any, wanted: Callable[[], None] | None = None) -> None:
    """Let ``runner.can_run_graph`` say no to batches that are padded to the size of ``shape_key``.

    With padding SGLang asks only whether a batch is at most the largest size.

    Args:
        runner: a runner of SGLang.
        shape_key: what has no graph; a size may have several variants.
        wanted: is called at each batch that its graph could have answered.
    """
    sizes = vars(runner).get(_EAGER_SIZES)
    if sizes is None:
        sizes = {}
        setattr(runner, _EAGER_SIZES, sizes)
        # Of this runner alone: several classes have a method of their own, and a runner whose
        # sizes were all captured pays nothing.
        runner.can_run_graph = _Guard(runner, sizes, runner.can_run_graph)
    sizes.setdefault(shape_key.size, {})[shape_key] = wanted


def _run_as_graph(runner: Any, shape_key: Any) -> None:
    """Undo :func:`run_eagerly`: there is a graph of it now."""
    sizes = vars(runner).get(_EAGER_SIZES, {})
    variants = sizes.get(shape_key.size, {})
    variants.pop(shape_key, None)
    if not variants:
        sizes.pop(shape_key.size, None)


class _Guard:
    def __init__(
        self,
        runner: Any,
        sizes: dict[int, dict[Any, Callable[[], None] | None]],
        asked: Callable[[Any], Any],
    ) -> None:
        self._runner, self._sizes, self._asked = runner, sizes, asked

    def __call__(self, forward_batch: Any) -> Any:
        buckets = self._runner.capture_bs
        at = bisect_left(buckets, forward_batch.batch_size)
        if at < len(buckets) and buckets[at] in self._sizes:
            wanted = [each for each in self._sizes[buckets[at]].values() if each is not None]
            if wanted and self._asked(forward_batch):
                wanted[0]()  # sizes that wait have no variants
            return False
        return self._asked(forward_batch)
