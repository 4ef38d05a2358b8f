"""vLLM: a size whose capture fails is taken from those that its dispatchers choose from.

Read in vLLM 0.33.0. vLLM has no hooks, so some of its methods are replaced when their modules are
imported: importing these here would cost each process of the server seconds.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from ..interpose.modules import loaded
from ..interpose.patch import Claim, intercept
from .between import BETWEEN, between_steps
from .graphs import EngineGraphs, label, replays_of, several_ranks

__all__ = ["install"]

_claims: dict[tuple[str, str, str], Claim] = {}


def install(compare_every: int = 0) -> None:
    """Replace the methods where their modules are loaded, else once they are.

    Args:
        compare_every: compare the first replay of each size and every so many-th one with eager
            execution. Default 0: none.
    """
    EngineGraphs.compare_every = compare_every
    modules = {name: loaded(name) for name, *_ in _methods()}
    for module in filter(None, modules.values()):
        _replace(module)
    is_there = any(isinstance(finder, _WhenImported) for finder in sys.meta_path)
    if None in modules.values() and not is_there:
        sys.meta_path.insert(0, _WhenImported())


def _replace(module: ModuleType) -> None:
    for name, owner, method, handler in _methods():
        place = name, owner, method
        if name == module.__name__ and place not in _claims:
            _claims[place] = intercept(
                getattr(module, owner), method, handler, everywhere=True, lasts=True
            )


# A wrapper, and its key of a graph.
_Entry = tuple["weakref.ref[Any]", Any]
_PIECES = "graphs of pieces of a step"
# On a manager itself: they refer to it.
_FORWARDS = "_gfxgraph_forwards"
_CANDIDATES = "_gfxgraph_candidates"  # as vLLM has made them: all its sizes
# On what dispatches: the same holds.
_WAITING = "_gfxgraph_waiting"
_ROWS = "_gfxgraph_rows"  # by size: how many tokens were not padding when it was chosen last
# Of a wrapper: whose graphs it holds, and the _ROWS of what dispatches to it.
_compared: weakref.WeakKeyDictionary[Any, tuple[EngineGraphs, dict[Any, int]]] = (
    weakref.WeakKeyDictionary()
)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Lets others find a module, and replaces its method after it was executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if all(name != of for of, *_ in _methods()):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ThenReplace(spec.loader)
                return spec
        return None


class _ThenReplace(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:  # get_source and the like
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _replace(module)


def _capture_all(
    original: Callable[..., None],
    manager: Any,
    create_forward_fn: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """``CudaGraphManager.capture``, of the sizes that do not wait."""
    graphs = EngineGraphs.of(manager, "vLLM", type(manager).__name__)
    outside = _outer_arguments(create_forward_fn)
    graphs.watch(next((one for one in outside if isinstance(one, torch.nn.Module)), None))
    every: dict[Any, list[Any]] = manager._capture_descs
    candidates: dict[Any, list[Any]] = manager._candidates
    vars(manager).setdefault(_CANDIDATES, {key: tuple(c) for key, c in candidates.items()})

    def capture(descs: dict[Any, list[Any]]) -> None:
        _capture_sizes(original, manager, graphs, descs, create_forward_fn, *args, **kwargs)

    def late(desc: Any) -> None:
        try:
            capture({desc.cg_mode: [desc]})
        except BaseException:
            _drop(manager.graphs, candidates, desc)
            raise
        finally:
            waiting.descs.discard(desc)

    waiting = _Waiting(lambda desc: graphs.want(label(desc)), late)
    # A profile of memory captures some sizes and throws them away.
    if BETWEEN.captures and manager._max_full_descs_to_capture is None:
        for mode, descs in every.items():
            waiting.descs.update(_smaller(graphs, mode, descs, manager.vllm_config))
    setattr(manager, _WAITING, waiting)
    capture({m: [d for d in descs if d not in waiting.descs] for m, descs in every.items()})
    for descs in every.values():
        for desc in descs:
            if desc in waiting.descs:
                graphs.wait(label(desc), waiting.captures(desc))


def _capture_sizes(
    original: Callable[..., None],
    manager: Any,
    graphs: EngineGraphs,
    wanted: dict[Any, list[Any]],
    create_forward_fn: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """``CudaGraphManager.capture`` of some sizes, begun again without each one that fails.

    vLLM asks ``create_forward_fn(size, warmup=True)`` when it begins with a size.
    """
    every: dict[Any, list[Any]] = manager._capture_descs
    held: dict[Any, Any] = manager.graphs
    candidates: dict[Any, list[Any]] = manager._candidates
    done: list[Any] = []
    pieces: dict[Any, list[_Entry]] = {}
    stack = ExitStack()

    def begin(desc: Any, **options: Any) -> Any:
        if options["warmup"]:
            stack.close()  # the size before is done
            done.append(desc)
            stack.enter_context(
                graphs.capturing(
                    label(desc),
                    pool=lambda: manager.pool,
                    keep=lambda: True,
                    counted=lambda: (
                        replays_of(held[desc]) if desc in held else _most(pieces.get(desc, ()))
                    ),
                    release=lambda: _drop(held, candidates, desc),
                    give_up=lambda: _drop(held, candidates, desc),
                )
            )
            pieces[desc] = stack.enter_context(_added())
        forward = create_forward_fn(desc, **options)
        if not options["warmup"] and graphs.compare_every:
            vars(manager).setdefault(_FORWARDS, {})[desc] = forward
        return forward

    try:
        while True:
            manager._capture_descs = {
                mode: [desc for desc in descs if desc not in done] for mode, descs in wanted.items()
            }
            with stack:
                original(manager, begin, *args, **kwargs)
                stack.close()  # the last size is done
                for desc in done:
                    if graphs.state(label(desc)) == "captured":
                        _offer(manager, desc)
                if graphs.compare_every:
                    why = _cannot_compare(type(manager).__name__, manager.vllm_config)
                    for desc in done:
                        graphs.leave_out(label(desc), why or ("" if desc in held else _PIECES))
                return
    finally:
        manager._capture_descs = every


class _Waiting:
    """Sizes that a dispatcher may choose and that have no graph yet. It is on that dispatcher.

    Args:
        want: is called with one that a batch needs.
        capture: captures one.
    """

    def __init__(self, want: Callable[[Any], None], capture: Callable[[Any], None]) -> None:
        self.descs: set[Any] = set()
        self.want, self.capture = want, capture

    def captures(self, desc: Any) -> Callable[[], None]:
        """Captures ``desc``; it does not keep the runner, to which ``capture`` refers."""
        weakly = weakref.ref(self)

        def capture() -> None:
            alive = weakly()
            assert alive is not None  # it has asked for this
            alive.capture(desc)

        return capture

    @contextmanager
    def hidden(self, dispatcher: Any, desc: Any, tokens: int) -> Iterator[None]:
        """In the block, the dispatcher does not choose them for so many tokens."""
        if hasattr(dispatcher, "_candidates"):  # CudaGraphManager
            several: list[Any] = dispatcher._candidates[tokens, desc.num_active_loras]
            before = several[:]
            several[:] = [other for other in several if other not in self.descs]
            try:
                yield
            finally:
                several[:] = before
        else:  # CudagraphDispatcher
            for keys in dispatcher.cudagraph_keys.values():
                if desc in keys:
                    keys -= self.descs
                    try:
                        yield
                    finally:
                        keys |= self.descs
                    return


def _smaller(graphs: EngineGraphs, mode: Any, descs: list[Any], config: Any) -> list[Any]:
    """The sizes that may wait: all but the largest, which comes first and makes the pool."""
    why = _PIECES if mode.name != "FULL" else _cannot_wait(graphs.runner, config)
    if why and len(descs) > 1:
        graphs.capture_at_start(why)
    return [] if why else descs[1:]


def _outer_arguments(function: Callable[..., Any]) -> Iterator[Any]:
    """What a nested function refers to, such as the model."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned
            continue


def _drop(held: dict[Any, Any], candidates: dict[Any, list[Any]], desc: Any) -> None:
    for several in candidates.values():  # first: it is dispatched no more
        while desc in several:
            several.remove(desc)
    held.pop(desc, None)


def _offer(manager: Any, desc: Any) -> None:
    """Let ``desc``, which has a graph, be dispatched again, at its place among the others."""
    for key, every in vars(manager)[_CANDIDATES].items():
        several: list[Any] = manager._candidates[key]
        if desc in every and desc not in several:
            several[:] = [other for other in every if other == desc or other in several]


def _capture_of_runner(
    original: Callable[..., None], runner: Any, desc: Any, *args: Any, **kwargs: Any
) -> None:
    """``GPUModelRunner._warmup_and_capture`` of the older runner: one size."""
    mode = kwargs["cudagraph_runtime_mode"] if "cudagraph_runtime_mode" in kwargs else args[0]
    graphs = EngineGraphs.of(runner, "vLLM", type(runner).__name__)
    model: Any = getattr(runner, "model", None)
    graphs.watch(model.unwrap() if hasattr(model, "unwrap") else model)

    dispatcher = runner.cudagraph_dispatcher
    has_drafter = hasattr(getattr(runner, "drafter", None), "cudagraph_dispatcher")
    # What is remembered must not keep the runner.
    keys: set[Any] = dispatcher.cudagraph_keys[mode]

    def drop() -> None:
        keys.discard(desc)  # first: it is dispatched no more
        _remove(added)

    waiting: _Waiting | None = vars(dispatcher).get(_WAITING)
    if waiting is not None and mode.name == "FULL":
        waiting.descs.discard(desc)  # the dummy run of the capture asks the dispatcher
    with (
        graphs.capturing(
            f"{mode.name} {label(desc)}",
            pool=lambda: next((wrapper.graph_pool for wrapper in _wrappers()), None),
            # A drafter has sizes of its own, and microbatches graphs of their own.
            keep=lambda: not has_drafter and not runner.parallel_config.use_ubatching,
            counted=lambda: _most(added),
            # The dummy run of a size also captures the pieces of the drafter.
            release=None if has_drafter and mode.name != "FULL" else drop,
            give_up=drop,
        ),
        _added() as added,
    ):
        original(runner, desc, *args, **kwargs)
    if graphs.compare_every:
        why = _cannot_compare(type(runner).__name__, runner.vllm_config)
        graphs.leave_out(
            f"{mode.name} {label(desc)}", why or ("" if mode.name == "FULL" else _PIECES)
        )
        if mode.name == "FULL":
            rows = vars(dispatcher).setdefault(_ROWS, {})
            wrappers = [weakly() for weakly, _ in added]
            _compared.update({w: (graphs, rows) for w in wrappers if w is not None})


def _capture_of_mode(
    original: Callable[..., None],
    runner: Any,
    batch_descriptors: list[Any],
    cudagraph_runtime_mode: Any,
    profiler: Any = None,
) -> None:
    """``GPUModelRunner._capture_cudagraphs`` of the older runner: the sizes that do not wait."""
    mode, dispatcher = cudagraph_runtime_mode, runner.cudagraph_dispatcher
    graphs = EngineGraphs.of(runner, "vLLM", type(runner).__name__)
    late: list[Any] = []
    if BETWEEN.captures:
        late = _smaller(graphs, mode, batch_descriptors, runner.vllm_config)
        # Where vLLM captures again, it keeps the graphs that it has.
        late = [desc for desc in late if not graphs.has_graph(f"{mode.name} {label(desc)}")]
    original(runner, [desc for desc in batch_descriptors if desc not in late], mode, profiler)
    if not late:
        return

    def capture(desc: Any) -> None:
        waiting.descs.discard(desc)
        added: list[_Entry] = []
        try:
            with (
                _added() as added,
                _captures_enabled(),
                import_module(_RUNNER).graph_capture(runner.device),
            ):
                original(runner, [desc], mode)
        except BaseException:
            dispatcher.cudagraph_keys[mode].discard(desc)
            _remove(added)
            raise

    waiting = _Waiting(lambda desc: graphs.want(f"{mode.name} {label(desc)}"), capture)
    waiting.descs.update(late)
    setattr(dispatcher, _WAITING, waiting)
    for desc in late:
        graphs.wait(f"{mode.name} {label(desc)}", waiting.captures(desc))


@contextmanager
def _captures_enabled() -> Iterator[None]:
    """vLLM's switch, which is off after the start, is on in the block."""
    monitor = import_module("vllm.compilation.monitor")
    before = monitor.cudagraph_capturing_enabled
    monitor.set_cudagraph_capturing_enabled(True)
    try:
        yield
    finally:
        monitor.set_cudagraph_capturing_enabled(before)


def _step(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """``GPUModelRunner.execute_model`` of both runners."""
    # A step is in two calls: this and sample_tokens, which ends with the state taken.
    if runner.execute_model_state is None and not kwargs.get("dummy_run"):
        between_steps(getattr(runner, "cudagraph_manager", runner))
    return original(runner, *args, **kwargs)


def _dispatched(original: Callable[..., Any], dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
    """``dispatch`` of both: the size that it chooses, for how many tokens; none that waits."""
    found = original(dispatcher, *args, **kwargs)
    desc, at = (found[1], 0) if isinstance(found, tuple) else (found, 1)
    tokens: int = kwargs["num_tokens"] if "num_tokens" in kwargs else args[at]
    waiting: _Waiting | None = vars(dispatcher).get(_WAITING)
    if waiting is not None and desc in waiting.descs:
        waiting.want(desc)
        with waiting.hidden(dispatcher, desc, tokens):
            found = original(dispatcher, *args, **kwargs)
        desc = found[1] if isinstance(found, tuple) else found
    if EngineGraphs.compare_every:
        vars(dispatcher).setdefault(_ROWS, {})[desc] = tokens
    return found


def _run_full(original: Callable[..., Any], manager: Any, desc: Any) -> Any:
    """``ModelCudaGraphManager.run_fullgraph``; it and eager execution store in the same tensors."""
    forward = vars(manager).get(_FORWARDS, {}).get(desc)
    if forward is None:
        return original(manager, desc)
    result: Any = None

    def replay() -> Any:
        nonlocal result
        result = original(manager, desc)
        return result

    def run() -> Any:
        forward(type(desc.cg_mode).NONE)
        return result

    graphs = EngineGraphs.of(manager, "vLLM", type(manager).__name__)
    return graphs.answer(label(desc), replay, run, vars(manager).get(_ROWS, {}).get(desc))


def _call_of_wrapper(original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    """``CUDAGraphWrapper.__call__`` of the older runner."""
    found = _compared.get(wrapper)
    module = loaded("vllm.forward_context")
    if found is None or module is None or not module.is_forward_context_available():
        return original(wrapper, *args, **kwargs)
    context = module.get_forward_context()
    mode, desc = context.cudagraph_runtime_mode, context.batch_descriptor
    entry = wrapper.concrete_cudagraph_entries.get(desc)
    if mode != wrapper.runtime_mode or entry is None or entry.cudagraph is None:
        return original(wrapper, *args, **kwargs)
    graphs, rows = found
    return graphs.answer(
        f"{mode.name} {label(desc)}",
        replay=lambda: original(wrapper, *args, **kwargs),
        run=lambda: wrapper.runnable(*args, **kwargs),
        rows=rows.get(desc),
    )


def _cannot_compare(owner: str, config: Any) -> str:
    """Why a step must not run twice; empty: it may."""
    return _first_reason(lambda: _unsafe(owner, config))


def _cannot_wait(owner: str, config: Any) -> str:
    """Why nothing is captured while requests are served; empty: it may be.

    The dummy run of a capture writes no key and no value: the places that it is given are -1, which
    the kernels of attention layers skip. What else keeps something from step to step is refused.
    """
    return _first_reason(
        lambda: (
            _unsafe(owner, config)
            | {
                "data parallel ranks": config.parallel_config.data_parallel_size > 1,
                "a model whose steps advance a state": config.model_config.has_inner_state
                or config.model_config.is_hybrid,
                "an encoder and a decoder": config.model_config.is_encoder_decoder,
                "several modalities": config.model_config.is_multimodal_model,
                "sleep mode": config.model_config.enable_sleep_mode,
                "fast prefill with shared caches": config.cache_config.kv_sharing_fast_prefill,
                "a cache on the host": config.attention_config.hisparse_config is not None,
            }
        )
    )


def _first_reason(reasons: Callable[[], dict[str, Any]]) -> str:
    try:
        return next((why for why, holds in reasons().items() if holds), "")
    except AttributeError as error:
        return f"vLLM is another one than 0.33.0: {error}"


def _unsafe(owner: str, config: Any) -> dict[str, Any]:
    """What may keep more from step to step than keys and values at places that steps are given."""
    offloader = loaded("vllm.model_executor.offloader.base")
    return {
        f"graphs of {owner}": owner not in {"ModelCudaGraphManager", "GPUModelRunner"},
        "several ranks": several_ranks(),
        "a model whose steps advance a state": config.model_config.has_inner_state,
        "speculative decoding": config.speculative_config is not None,
        "LoRA": config.lora_config is not None,
        "a transfer of the key-value cache": config.kv_transfer_config is not None,
        "counts of experts": config.parallel_config.enable_eplb,
        "microbatches": config.parallel_config.use_ubatching,
        "weights on the host": offloader is not None
        and type(offloader.get_offloader()).__name__ != "NoopOffloader",
    }


@contextmanager
def _added() -> Iterator[list[_Entry]]:
    """The graphs that the block adds to wrappers, once it has ended.

    A wrapper does not say to which runner it belongs. Those that get a graph while a runner
    captures were called by it.
    """
    before = {(id(wrapper), key): graph for wrapper, key, graph in _graphs_of_wrappers()}
    added: list[_Entry] = []
    try:
        yield added
    finally:
        for wrapper, key, graph in _graphs_of_wrappers():
            if before.get((id(wrapper), key), added) is not graph:
                added.append((weakref.ref(wrapper), key))


def _graphs_of_wrappers() -> Iterator[tuple[Any, Any, Any]]:
    for wrapper in _wrappers():
        for key, entry in wrapper.concrete_cudagraph_entries.items():
            yield wrapper, key, entry.cudagraph


def _most(added: Sequence[_Entry]) -> int | None:
    """The replays of the one that was replayed most."""
    entries = (
        wrapper.concrete_cudagraph_entries.get(key)
        for wrapper, key in ((weakly(), key) for weakly, key in added)
        if wrapper is not None
    )
    found = [replays_of(entry.cudagraph) for entry in entries if entry is not None]
    return max((count for count in found if count is not None), default=None)


def _remove(added: Sequence[_Entry]) -> None:
    for weakly, key in added:
        wrapper = weakly()
        if wrapper is not None:
            wrapper.concrete_cudagraph_entries.pop(key, None)


def _wrappers() -> list[Any]:
    """Those of the process; they share a pool."""
    module = loaded("vllm.compilation.cuda_graph")
    return [] if module is None else list(module.CUDAGraphWrapper._all_instances)


_UTILS, _WRAPPER = "vllm.v1.worker.gpu.cudagraph_utils", "vllm.compilation.cuda_graph"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_CAPTURES = (
    (_UTILS, "CudaGraphManager", "capture", _capture_all),
    (_RUNNER, "GPUModelRunner", "_warmup_and_capture", _capture_of_runner),
)
_DISPATCHES = (
    (_UTILS, "CudaGraphManager", "dispatch", _dispatched),
    ("vllm.v1.cudagraph_dispatcher", "CudagraphDispatcher", "dispatch", _dispatched),
)
_LATE = ((_RUNNER, "GPUModelRunner", "_capture_cudagraphs", _capture_of_mode),)
_STEPS = (
    (_RUNNER, "GPUModelRunner", "execute_model", _step),
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "execute_model", _step),
)
_REPLAYS = (
    (_UTILS, "ModelCudaGraphManager", "run_fullgraph", _run_full),
    (_WRAPPER, "CUDAGraphWrapper", "__call__", _call_of_wrapper),
)


def _methods() -> tuple[tuple[str, str, str, Callable[..., Any]], ...]:
    """Those to replace; all but the captures are called in each step."""
    lazy, compared = bool(BETWEEN.lazy), bool(EngineGraphs.compare_every)
    return (
        *_CAPTURES,
        *(_DISPATCHES if lazy or compared else ()),
        *(_REPLAYS if compared else ()),
        *(_LATE if lazy else ()),
        *(_STEPS if BETWEEN.is_asked_for else ()),
    )
