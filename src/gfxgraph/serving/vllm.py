"""vLLM: a size whose capture fails is taken from those that its dispatchers choose from.

Read in vLLM 0.33.0. vLLM has no hooks, so two of its methods are replaced when their modules are
imported: importing these here would cost each process of the server seconds.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from ..interpose.modules import loaded
from ..interpose.patch import Claim, intercept
from .graphs import EngineGraphs, label, replays_of

__all__ = ["install"]

_claims: dict[str, Claim] = {}


def install() -> None:
    """Replace the methods where their modules are loaded, else once they are."""
    later = {}
    for name, (owner, method, handler) in _METHODS.items():
        module = loaded(name)
        if module is None:
            later[name] = (owner, method, handler)
        else:
            _replace(module, owner, method, handler)
    if later and not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _replace(module: ModuleType, owner: str, method: str, handler: Callable[..., Any]) -> None:
    if module.__name__ not in _claims:
        _claims[module.__name__] = intercept(
            getattr(module, owner), method, handler, everywhere=True, lasts=True
        )


class _WhenImported(importlib.abc.MetaPathFinder):
    """Lets others find a module, and replaces its method after it was executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _METHODS:
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
        _replace(module, *_METHODS[module.__name__])


def _capture_all(
    original: Callable[..., None],
    manager: Any,
    create_forward_fn: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """``CudaGraphManager.capture``, begun again without each size that fails.

    vLLM asks ``create_forward_fn(size, warmup=True)`` when it begins with a size.
    """
    graphs = EngineGraphs.of(manager, "vLLM", type(manager).__name__)
    outside = _outer_arguments(create_forward_fn)
    graphs.watch(next((one for one in outside if isinstance(one, torch.nn.Module)), None))
    wanted: dict[Any, list[Any]] = manager._capture_descs
    held: dict[Any, Any] = manager.graphs
    candidates: dict[Any, list[Any]] = manager._candidates
    done: list[Any] = []
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
                    counted=lambda: _replays(held, desc),
                    release=lambda: _drop(held, candidates, desc),
                    give_up=lambda: _drop(held, candidates, desc),
                )
            )
        return create_forward_fn(desc, **options)

    try:
        while True:
            with stack:
                original(manager, begin, *args, **kwargs)
                return
            manager._capture_descs = {
                mode: [desc for desc in descs if desc not in done] for mode, descs in wanted.items()
            }
    finally:
        manager._capture_descs = wanted


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


def _capture_of_runner(
    original: Callable[..., None], runner: Any, desc: Any, *args: Any, **kwargs: Any
) -> None:
    """``GPUModelRunner._warmup_and_capture`` of the older runner: one size."""
    mode = kwargs["cudagraph_runtime_mode"] if "cudagraph_runtime_mode" in kwargs else args[0]
    graphs = EngineGraphs.of(runner, "vLLM", type(runner).__name__)
    model: Any = getattr(runner, "model", None)
    graphs.watch(model.unwrap() if hasattr(model, "unwrap") else model)
    keys: set[Any] = runner.cudagraph_dispatcher.cudagraph_keys[mode]

    def drop() -> None:
        keys.discard(desc)  # first: it is dispatched no more
        for wrapper in _wrappers(mode):
            wrapper.concrete_cudagraph_entries.pop(desc, None)

    def counted() -> int | None:
        found = [wrapper.concrete_cudagraph_entries.get(desc) for wrapper in _wrappers(mode)]
        return _most(entry for entry in found if entry is not None)

    with graphs.capturing(
        f"{mode.name} {label(desc)}",
        pool=lambda: next((wrapper.graph_pool for wrapper in _wrappers(mode)), None),
        # A drafter has sizes of its own, and microbatches graphs of their own.
        keep=lambda: (
            getattr(getattr(runner, "drafter", None), "cudagraph_dispatcher", None) is None
            and not runner.parallel_config.use_ubatching
        ),
        counted=counted,
        release=drop,
        give_up=drop,
    ):
        original(runner, desc, *args, **kwargs)


def _replays(held: dict[Any, Any], desc: Any) -> int | None:
    """Of a size of ``CudaGraphManager``: its graph, or the pieces that wrappers hold."""
    if desc in held:
        return replays_of(held[desc])
    return _most(
        entry
        for wrapper in _wrappers(desc.cg_mode)
        for key, entry in wrapper.concrete_cudagraph_entries.items()
        if (key.num_tokens, key.num_active_loras) == (desc.num_tokens, desc.num_active_loras)
    )


def _most(entries: Iterator[Any]) -> int | None:
    found = [replays_of(entry.cudagraph) for entry in entries]
    return max((count for count in found if count is not None), default=None)


def _wrappers(mode: Any) -> list[Any]:
    module = loaded("vllm.compilation.cuda_graph")
    every = () if module is None else list(module.CUDAGraphWrapper._all_instances)
    return [wrapper for wrapper in every if wrapper.runtime_mode == mode]


_METHODS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "vllm.v1.worker.gpu.cudagraph_utils": ("CudaGraphManager", "capture", _capture_all),
    "vllm.v1.worker.gpu_model_runner": (
        "GPUModelRunner",
        "_warmup_and_capture",
        _capture_of_runner,
    ),
}
