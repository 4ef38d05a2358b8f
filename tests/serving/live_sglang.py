"""A decode server of SGLang with a cache of live requests, for children.

SGLang's own: the capture with its buffers, registry and dummy batch, the cache, the choice of a
graph, and ``ModelRunner.forward``. The model, its attention, and what chooses between a graph and
the eager path are the test's.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch

from tests.serving import children

__all__ = ["Live", "Model"]

ROWS, LENGTH = 8, 8  # requests, and the most tokens of one


class Model(torch.nn.Module):
    """Stores a key and a value for each token, and adds up those of its request."""

    shared_experts_config = None

    def __init__(self, pool: Any, table: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(32, 4, device="cuda")
        self.linear = torch.nn.Linear(4, 4, device="cuda")
        self.pool, self.table = pool, table
        self.refused: set[int] = set()
        self.broken: set[int] = set()
        self.ran: list[int] = []

    @torch.no_grad()
    def forward(self, input_ids: Any, positions: Any, batch: Any, **more: Any) -> torch.Tensor:
        size = len(input_ids)
        self.ran.append(size)
        if size in self.broken:
            raise RuntimeError("no kernel for this size")
        x = self.embed(input_ids) + positions[:, None]
        key, value = self.pool.k_buffer[0], self.pool.v_buffer[0]
        key[batch.out_cache_loc] = x[:, None]
        value[batch.out_cache_loc] = self.linear(x)[:, None]
        places = self.table[batch.req_pool_indices]
        seen = torch.arange(LENGTH, device="cuda") < batch.seq_lens[:, None]
        out = ((key[places] * value[places])[:, :, 0] * seen[..., None]).sum(1) + x
        return out * float(out.sum().item() ** 0) if size in self.refused else out


class Live:
    """The runner, and as many requests as are asked for; ``step(rows)`` decodes a token of each."""

    def __init__(
        self, sizes: list[int], refused: Any = (), kv: str = "", role: str = "null", **more: Any
    ) -> None:
        from sglang.srt.mem_cache import memory_pool
        from sglang.srt.model_executor import cuda_graph_buffer_registry, model_runner
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
        from sglang.srt.model_executor.runner import decode_cuda_graph_runner as decode
        from sglang.srt.model_executor.runner_utils.buffers import DecodeInputBuffers
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        _answers(decode, model_runner)
        self.pool = memory_pool.MHATokenToKVPool(
            *(ROWS * LENGTH, 1, torch.float32, 1, 4, 1, "cuda", False)
        )
        # Request r has the places from 1 + 8 r: 0 is for what is not of a request.
        table = torch.arange(1, 1 + ROWS * LENGTH, device="cuda").view(ROWS, LENGTH)
        self.model = Model(self.pool, table)
        self.model.refused = set(refused)
        self.lengths = [1] * ROWS
        runner = children.decode_runner(self.model, sizes, **more)
        most = max(sizes)
        buffers = DecodeInputBuffers.create(
            **{"device": "cuda", "max_bs": most, "max_num_token": most, "hidden_size": 4},
            next_token_logits_buffer=torch.zeros(most, 4, device="cuda"),
            **{"dtype": torch.float32, "num_dp_ranks": 1, "pp_size": 1, "seq_len_fill_value": 1},
            **{"is_encoder_decoder": False, "require_mlp_tp_gather": False},
            **{"encoder_len_fill_value": 0, "num_tokens_per_req": 1},
            **{"cache_loc_dtype": torch.int64, "enable_mamba_track": False},
        )
        registry = cuda_graph_buffer_registry.build_decode_registry(
            **{"device": "cuda", "max_bs": most, "max_num_token": most, "seq_len_fill_value": 1},
            **{"cache_loc_dtype": torch.int64, "source": buffers},
        )
        vars(runner).update(_RUNNER, buffers=buffers, buffer_registry=registry)
        runner.attn_backend = SimpleNamespace(
            init_forward_metadata_out_graph=lambda batch, in_capture=False: None,
            init_forward_metadata_in_graph=lambda batch: None,
        )
        vars(runner.model_runner).update(
            _MODEL_RUNNER,
            token_to_kv_pool=children._of(memory_pool, kv) if kv else self.pool,
            model=self.model,
            server_args=SimpleNamespace(disaggregation_mode=role),
        )
        runner.capture_hidden_mode = CaptureHiddenMode.NULL
        runner.capture_forward_mode = ForwardMode.DECODE
        if "ngram" not in more:
            runner.model_runner.spec_algorithm = SpeculativeAlgorithm.NONE
        self.runner, self.holder = runner, runner.backend
        owner = model_runner.ModelRunner.__new__(model_runner.ModelRunner)
        owner.__dict__.update(
            _OWNER, spec_algorithm=runner.model_runner.spec_algorithm, model=self.model
        )
        owner.decode_cuda_graph_runner = runner
        owner._forward_raw = self._forward_raw
        self.owner = owner
        self.capture_again()

    def capture_again(self) -> None:
        from sglang.srt.model_executor.runner import decode_cuda_graph_runner as module

        with module.model_capture_mode():
            self.runner.capture()

    def step(self, rows: int) -> tuple[bool, str]:
        """Whether the result and the cache are right, and how the step ran."""
        at = [self.lengths[r] for r in range(rows)]
        cuda = {"device": "cuda"}
        batch = SimpleNamespace(
            **{"batch_size": rows, "replace_embeds": None, "spec_info": None},
            input_ids=torch.randint(32, (rows,), **cuda),
            positions=torch.tensor(at, **cuda),
            seq_lens=torch.tensor(at, **cuda) + 1,
            seq_lens_cpu=torch.tensor(at) + 1,
            req_pool_indices=torch.arange(rows, **cuda),
            out_cache_loc=torch.tensor([1 + LENGTH * r + at[r] for r in range(rows)], **cuda),
            apply_deprecated_skip_attn_backend_init=lambda skip: None,
            **{
                "forward_mode": self.runner.capture_forward_mode,
                "mrope_positions": None,
                "global_num_tokens_cpu": None,
            },
        )
        expected, cache = self._expected(batch)
        out = self.owner.forward(batch).logits_output
        for r in range(rows):
            self.lengths[r] = self.lengths[r] % (LENGTH - 1) + 1
        same = children.close(out, expected) and children.close(self.cache(), cache)
        return same, self.how

    def graphs(self) -> list[Any]:
        return list(self.runner.backend._graphs.values())

    def write_to_requests(self) -> None:
        """Take away what keeps a dummy run from the places of requests."""
        self.runner.buffers.reset_index_buffers = lambda: None

    def cache(self) -> torch.Tensor:
        """All that is of a request."""
        return torch.stack([self.pool.k_buffer[0][1:], self.pool.v_buffer[0][1:]]).clone()

    def give_to_others(self) -> None:
        """As if all places were given to other requests, which have stored there."""
        self.pool.k_buffer[0][1:].normal_()
        self.pool.v_buffer[0][1:].normal_()

    def _expected(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = (buffer[0].clone() for buffer in (self.pool.k_buffer, self.pool.v_buffer))
        broken, self.model.broken = self.model.broken, set()
        out, cache = self.model(batch.input_ids, batch.positions, batch), self.cache()
        self.model.ran.pop()
        self.model.broken = broken
        self.pool.k_buffer[0].copy_(key)
        self.pool.v_buffer[0].copy_(value)
        return out, cache

    def _forward_raw(self, batch: Any, *args: Any) -> Any:
        runner, rows = self.runner, batch.batch_size
        if runner.can_run_graph(batch):
            size = runner._pad_to_bucket(rows, runner.capture_bs)
            runner.buffer_registry.fill_from(
                batch,
                **{"raw_bs": rows, "padded_bs": size},
                **{"raw_num_tokens": rows, "padded_num_tokens": size},
            )
            runner.raw_num_token = rows
            key = runner._make_graph_key(size)
            out, self.how = runner.backend.replay(key, batch)[:rows], "graph"
        else:
            out, self.how = self.model(batch.input_ids, batch.positions, batch), "eager"
        return SimpleNamespace(logits_output=out, can_run_graph=self.how == "graph")


_RUNNER = {
    **{"device": "cuda", "enable_torch_compile": False, "enable_profile_cuda_graph": False},
    **{"enable_prefill_cp": False, "require_attn_tp_gather": False, "num_dp_ranks": 1},
    **{"compile_bs": [], "seq_len_fill_value": 1, "pp_size": 1, "speculative_algorithm": None},
    **{"dllm_uses_input_embeds": False, "_metadata_prep_fork_resolved": True},
    "in_graph_metadata_prep_done": None,
    "deepep_adapter": SimpleNamespace(capture=lambda is_extend_in_batch: None),
    "tbo_plugin": SimpleNamespace(capture_one_batch_size=lambda batch, num_tokens: None),
}
_MODEL_RUNNER = {
    **{"device": "cuda", "gpu_id": 0, "_kernel_warmed_up": True, "is_draft_worker": False},
    "attn_tp_sequence_sharded": lambda tokens: False,
    "kv_index_translator": SimpleNamespace(bind_runner_slots=lambda batch: None),
}
_OWNER = {
    **{"forward_pass_id": 0, "msprobe_debugger": None, "gpu_id": 0, "is_draft_worker": False},
    **{"canary_manager": None, "enable_elastic_ep": False, "eplb_manager": None},
}


def _answers(decode: Any, model_runner: Any) -> None:
    """What the configuration of a server would say."""
    from sglang.kernels.ops.memory import small_copy
    from sglang.srt.model_executor.runner import base_runner
    from sglang.srt.model_executor.runner_utils import buffers

    # With the other value SGLang unfreezes what this child has frozen, and each capture takes long.
    graph = SimpleNamespace(debug_cuda_graph=False, enable_cudagraph_gc=True)
    moe = SimpleNamespace(elastic_ep_backend=None)
    group = SimpleNamespace(tp_rank=0, dp_size=1, tp_group=None)
    for module in (decode, model_runner, base_runner):
        module.get_parallel = lambda: group
        module.get_exec = lambda: SimpleNamespace(graph=graph, moe=moe)
        module.get_schedule = lambda: SimpleNamespace(disable_overlap_schedule=True)
        module.get_model = lambda: SimpleNamespace(override=lambda **more: contextlib.nullcontext())

    @contextlib.contextmanager
    def graph_capture(stream: Any) -> Any:
        with torch.cuda.stream(stream):
            yield SimpleNamespace(stream=stream)

    decode.graph_capture = graph_capture
    decode.get_or_create_global_graph_capture_stream = torch.cuda.Stream
    small_copy.try_small_copy = lambda to, of: False  # a kernel of Triton
    for module in (decode, buffers):
        module.enable_num_token_non_padded = lambda: False
