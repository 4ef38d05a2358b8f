"""Makes the engines' own modules importable in a child on a machine without a GPU."""

from __future__ import annotations

import functools
import importlib
import os
from types import SimpleNamespace
from typing import Any

import torch

import gfxgraph
from tests.serving.stubs import stub

__all__ = ["decode_runner", "sglang", "vllm", "vllm_manager"]


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether they are equal but for rounding: processors may sum up a padded batch otherwise."""
    return torch.allclose(got, expected, rtol=0.0, atol=1e-4)


class Server(torch.nn.Module):
    """A model, its static input, and the eager path that an engine has for it."""

    def __init__(self, refused: Any = ()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4, device="cuda")
        self.static = torch.zeros(16, 4, device="cuda")
        self.refused = set(refused)
        self.then: Any = lambda out: out

    @torch.no_grad()
    def forward(self, size: int) -> torch.Tensor:
        out = self.then(self.linear(self.static[:size]))
        if size in self.refused:  # no graph can hold it
            return out * float(out.sum().item() ** 0)
        return out

    @torch.no_grad()
    def expected(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def sglang(emulated: bool = True) -> None:
    if emulated:
        gfxgraph.enable(emulate=True)
    importlib.import_module("torch._inductor.compile_fx")  # before triton is stubbed
    stub(
        *("triton", "IPython", "aiohttp", "torchvision", "compressed_tensors", "gguf"),
        *("sentencepiece", "tvm_ffi", "httpx", "fastapi", "uvicorn", "uvloop"),
    )


def decode_runner(
    model: Server, sizes: list[int], cls: Any = None, backend: str = "full", **more: Any
) -> Any:
    """A runner of SGLang with SGLang's own backend and ``can_run_graph``."""
    from sglang.srt.mem_cache import memory_pool
    from sglang.srt.model_executor import runner_backend
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

    name = {"full": "FullCudaGraphBackend", "breakable": "BreakableCudaGraphBackend"}[backend]
    module = getattr(runner_backend, f"{backend}_cuda_graph_backend")
    module.get_parallel = lambda: SimpleNamespace(tp_group=SimpleNamespace(barrier=lambda: None))
    cls = cls or DecodeCudaGraphRunner
    runner = cls.__new__(cls)
    state = {
        "model_runner": SimpleNamespace(
            model=model,
            spec_algorithm=SimpleNamespace(
                is_ngram=lambda: "ngram" in more, is_none=lambda: "ngram" not in more
            ),
            **{"lora_manager": more.get("lora"), "hisparse_coordinator": None},
            **{"canary_manager": None, "capture_head_hooks": [], "capture_tail_hooks": []},
            req_to_token_pool=_of(memory_pool, "ReqToTokenPool"),
            token_to_kv_pool=_of(memory_pool, more.get("pool", "MHATokenToKVPool")),
        ),
        "device_module": torch.cuda,
        "captured_req_width": more.get("ngram", 1),
        "capture_bs": sizes,
        "max_bs": max(sizes),
        "ragged_verify_mode": False,
        "require_mlp_tp_gather": False,
        "require_mlp_sync": False,
        "enable_pdmux": False,
        "record_nolora_graph": False,
        "attention_graph_variants": None,
        "disable_padding": False,
        "is_encoder_decoder": False,
        "enable_two_batch_overlap": False,
        "is_dllm": False,
        "use_ngram_embedding": False,
    }
    vars(runner).update(state)
    runner.backend = getattr(module, name)(runner)
    return runner


def _of(module: Any, name: str) -> Any:
    cls = getattr(module, name)
    return cls.__new__(cls)


def capture_all(runner: Any, model: Server) -> None:
    """As ``DecodeCudaGraphRunner`` does: the largest size first."""
    from sglang.srt.model_executor.runner.shape_key import ShapeKey

    with runner.backend.capture_session(torch.cuda.Stream()):
        for size in reversed(runner.capture_bs):
            runner.backend.capture_one(ShapeKey(size), lambda size=size: model(size))


def step(runner: Any, model: Server, rows: int) -> tuple[bool, str]:
    """A step as ``ModelRunner._forward_raw`` chooses it: whether it is right, and how it ran."""
    from sglang.srt.model_executor.runner.shape_key import ShapeKey

    x = torch.randn(rows, 4, device="cuda")
    width = runner.captured_req_width
    batch = SimpleNamespace(
        replace_embeds=None, spec_info=None, batch_size=rows, input_ids=torch.zeros(rows * width)
    )
    if runner.can_run_graph(batch):
        size = runner._pad_to_bucket(rows, runner.capture_bs)
        model.static[:rows].copy_(x)
        runner.raw_num_token = rows
        out, how = runner.backend.replay(ShapeKey(size), batch)[:rows], "graph"
    else:
        out, how = model.expected(x), "eager"
    return close(out, model.expected(x)), how


def vllm() -> None:
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    gfxgraph.enable(emulate=True)
    stub(
        *("aiohttp", "openai_harmony", "uvloop", "xgrammar", "httpx", "opentelemetry"),
        "llguidance",
    )


@functools.cache
def _vllm_names() -> None:
    from vllm.platforms import current_platform

    type(current_platform).graph_pool_handle = classmethod(
        lambda cls: torch.cuda.graph_pool_handle()
    )
    library = torch.library.Library("_C", "FRAGMENT")
    library.define("weak_ref_tensor(Tensor x) -> Tensor")
    library.impl("weak_ref_tensor", lambda x: x, "CompositeExplicitAutograd")
    _kept.append(library)


_kept: list[Any] = []


def vllm_manager(sizes: list[int], **config: Any) -> Any:
    """vLLM's ``ModelCudaGraphManager`` with a size a graph."""
    from vllm.v1.worker.gpu import cudagraph_utils as module

    _vllm_names()
    module.graph_capture = lambda device: torch.cuda.stream(torch.cuda.Stream())
    module.is_global_first_rank = lambda: False
    manager = module.ModelCudaGraphManager.__new__(module.ModelCudaGraphManager)
    full = module.CUDAGraphMode.FULL
    descs = [module.BatchExecutionDescriptor(full, size, size) for size in sizes]
    candidates: dict[Any, list[Any]] = {}
    for rows in range(1, max(sizes) + 1):
        candidates[rows, 0] = [next(d for d in descs if d.num_tokens >= rows)]
    vars(manager).update(
        device=torch.device("cuda"),
        ubatch_runner=None,
        vllm_config=_vllm_config(**config),
        graphs={},
        pool=torch.cuda.graph_pool_handle(),
        use_breakable_cg=False,
        _capture_descs={full: sorted(descs, key=lambda d: -d.num_tokens)},
        _candidates=candidates,
        _graphs_captured=False,
        _max_full_descs_to_capture=None,
        _capture_mem_samples=None,
        _lora_dispatch_map={},
        _max_lora_case=0,
        is_last_pp_rank=True,
        use_aux_hidden_state_outputs=False,
        hidden_states=None,
    )
    return manager


def _vllm_config(**more: Any) -> SimpleNamespace:
    """What the classes under test ask of a ``VllmConfig``."""
    config = {
        "use_cumem_cudagraph_pool": False,
        "model_config": SimpleNamespace(
            **{"has_inner_state": more.pop("state", False), "is_hybrid": False},
            **{"is_encoder_decoder": False, "enable_sleep_mode": False},
            is_multimodal_model=more.pop("multimodal", False),
        ),
        "parallel_config": SimpleNamespace(
            **{"enable_eplb": False, "use_ubatching": False, "data_parallel_size": 1},
            **{"use_sequence_parallel_moe": False, "is_moe_model": False},
        ),
        "cache_config": SimpleNamespace(kv_sharing_fast_prefill=False),
        "attention_config": SimpleNamespace(hisparse_config=None),
        "compilation_config": SimpleNamespace(fast_moe_cold_start=False, static_forward_context={}),
        "speculative_config": None,
        "kv_transfer_config": None,
        "lora_config": None,
    }
    return SimpleNamespace(**config | more)


def capture_manager(manager: Any, model: Server) -> None:
    """As ``ModelCudaGraphManager.capture`` does: every size stores in the same tensor."""
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    def create_forward_fn(desc: Any, warmup: bool) -> Any:
        def forward(mode: Any) -> None:
            out = model(desc.num_tokens)
            if manager.hidden_states is None:
                manager.hidden_states = torch.empty_like(out)
            manager.hidden_states[: desc.num_tokens] = out

        return forward

    CudaGraphManager.capture(manager, create_forward_fn)


@torch.inference_mode()  # as the steps of vLLM
def step_of_manager(manager: Any, model: Server, rows: int) -> tuple[bool, str]:
    x = torch.randn(rows, 4, device="cuda")
    desc = manager.dispatch(rows, rows, 1, 0)
    if desc.cg_mode.name == "FULL":
        model.static[:rows].copy_(x)
        out, how = manager.run_fullgraph(desc)[:rows], "graph"
    else:
        out, how = model.expected(x), "eager"
    return close(out, model.expected(x)), how


def vllm_runner(model: Server, sizes: list[int], **more: Any) -> Any:
    """The older runner, with vLLM's wrapper and dispatcher; ``_dummy_run`` is the test's."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper
    from vllm.config import CUDAGraphMode
    from vllm.forward_context import BatchDescriptor, override_forward_context
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
    from vllm.v1.worker import gpu_model_runner as module

    _vllm_names()
    module.is_global_first_rank = lambda: False
    lora = more.pop("lora_config", None)  # the dispatcher would make other sizes
    config = _vllm_config(
        compilation_config=SimpleNamespace(
            cudagraph_num_of_warmups=1,
            cudagraph_mode=CUDAGraphMode.FULL,
            max_cudagraph_capture_size=max(sizes),
            cudagraph_capture_sizes=sizes,
            compile_sizes=[],
            is_attention_compiled_piecewise=lambda: False,
            **{"fast_moe_cold_start": False, "static_forward_context": {}},
        ),
        num_speculative_tokens=0,
        scheduler_config=SimpleNamespace(max_num_seqs=max(sizes)),
        **more,
    )
    runner = module.GPUModelRunner.__new__(module.GPUModelRunner)
    runner.compilation_config = config.compilation_config
    runner.vllm_config, runner.lora_config = config, None
    runner.parallel_config = config.parallel_config
    runner.maybe_remove_all_loras = lambda config: None
    runner.model = CUDAGraphWrapper(model, config, runtime_mode=CUDAGraphMode.FULL)
    runner.cudagraph_dispatcher = CudagraphDispatcher(config)
    runner.cudagraph_dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL)
    config.lora_config = lora

    def run(size: int, mode: Any) -> Any:
        descs = [d for d in runner.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.FULL]]
        desc = next((d for d in descs if d.num_tokens == size), BatchDescriptor(size))
        context = SimpleNamespace(batch_descriptor=desc, cudagraph_runtime_mode=mode)
        with override_forward_context(context):
            return runner.model(size)

    def dummy_run(size: int, cudagraph_runtime_mode: Any, **more: Any) -> None:
        run(size, cudagraph_runtime_mode)

    runner._dummy_run, runner.run = dummy_run, run
    return runner


def capture_runner(runner: Any) -> None:
    from vllm.compilation import cuda_graph
    from vllm.compilation.monitor import set_cudagraph_capturing_enabled

    cuda_graph.current_stream = torch.cuda.current_stream  # vLLM takes this platform for a CPU's
    set_cudagraph_capturing_enabled(True)
    with torch.cuda.stream(torch.cuda.Stream()):
        for mode, descs in runner.cudagraph_dispatcher.get_capture_descs():
            runner._capture_cudagraphs(descs, mode)
    set_cudagraph_capturing_enabled(False)


@torch.inference_mode()
def step_of_runner(runner: Any, model: Server, rows: int) -> tuple[bool, str]:
    x = torch.randn(rows, 4, device="cuda")
    mode, desc = runner.cudagraph_dispatcher.dispatch(rows)
    model.static[:rows].copy_(x)
    out = runner.run(desc.num_tokens, mode)[:rows]
    return close(out, model.expected(x)), "graph" if mode.name == "FULL" else "eager"
