"""Both runners of vLLM with a cache of live requests, for children.

vLLM's own: the captures and their dummy runs, the buffers and tables that these reset, the choice
of a graph, the replay, and ``execute_model`` up to where it finds nothing to run. The model, its
attention, and how a step prepares its inputs are the test's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.serving import children

__all__ = ["LiveV1", "LiveV2"]

ROWS, LENGTH, LAYER = 8, 8, "layer"  # requests, and tokens of a block: each request has one
_NOTHING = SimpleNamespace(
    **{"total_num_scheduled_tokens": 0, "finished_req_ids": set(), "encoder_input_updates": {}},
    aux_output_connector_metadata=None,
)


class Model(torch.nn.Module):
    """Stores a key for each token, and adds up those of its request."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(32, 4, device="cuda")
        self.linear = torch.nn.Linear(4, 4, device="cuda")
        # Block 0 is vLLM's null block. The last row is for what a kernel does not store.
        self.cache = torch.zeros((ROWS + 1) * LENGTH + 1, 4, device="cuda")
        self.refused: set[int] = set()
        self.broken: set[int] = set()
        self.ran: list[int] = []

    def forward(self, input_ids: Any, positions: Any, **more: Any) -> torch.Tensor:
        from vllm.forward_context import get_forward_context

        context, size = get_forward_context(), len(input_ids)
        self.ran.append(size)
        if size in self.broken:
            raise RuntimeError("no kernel for this size")
        slots, attention = context.slot_mapping[LAYER], context.attn_metadata[LAYER]
        x = self.embed(input_ids) + positions[:, None]
        # As reshape_and_cache: what has the place -1 is skipped.
        self.cache[torch.where(slots < 0, len(self.cache) - 1, slots)] = self.linear(x)
        within = torch.arange(LENGTH, device="cuda")
        places = attention.block_table[:size, :1].long() * LENGTH + within
        seen = within < attention.seq_lens[:size, None]
        out = (self.cache[places] * seen[..., None]).sum(1) + x
        return out * float(out.sum().item() ** 0) if size in self.refused else out


class _Live:
    """As many requests as are asked for; ``step(rows)`` decodes a token of each."""

    def __init__(self, refused: Any = ()) -> None:
        self.model = Model()
        self.model.refused = set(refused)
        self.lengths = [1] * ROWS

    @torch.inference_mode()
    def step(self, rows: int) -> tuple[bool, str]:
        """Whether the result and the cache are right, and how the step ran."""
        at = torch.tensor([self.lengths[r] for r in range(rows)], device="cuda")
        ids = torch.randint(32, (rows,), device="cuda")
        slots = (torch.arange(rows, device="cuda") + 1) * LENGTH + at
        expected, cache = self._expected(ids, at, slots)
        self.owner.execute_model(_NOTHING)  # what is done between two steps
        out, how = self.run(rows, ids, at, slots)
        for r in range(rows):
            self.lengths[r] = self.lengths[r] % (LENGTH - 1) + 1
        same = children.close(out, expected) and children.close(self.cache(), cache)
        return same, how

    def cache(self) -> torch.Tensor:
        """All that is of a request."""
        return self.model.cache[LENGTH:-1].clone()

    @torch.inference_mode()
    def give_to_others(self) -> None:
        """As if all places were given to other requests, which have stored there."""
        self.model.cache[LENGTH:-1].normal_()

    def _expected(self, ids: Any, at: Any, slots: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cache, broken = self.model.cache.clone(), self.model.broken
        self.model.broken = set()
        tables = torch.arange(1, ROWS + 1, device="cuda")[: len(ids), None]
        with self.context(tables, at + 1, slots):
            found = self.model(ids, at), self.cache()
        self.model.cache.copy_(cache)
        self.model.broken = broken
        self.model.ran.pop()
        return found

    def context(self, tables: Any, lengths: Any, slots: Any, mode: str = "NONE", desc=None) -> Any:
        from vllm.config import CUDAGraphMode
        from vllm.forward_context import override_forward_context

        return override_forward_context(
            SimpleNamespace(
                attn_metadata={LAYER: SimpleNamespace(block_table=tables, seq_lens=lengths)},
                slot_mapping={LAYER: slots},
                batch_descriptor=desc,
                cudagraph_runtime_mode=CUDAGraphMode[mode],
            )
        )


_GROUPS = SimpleNamespace(
    kv_cache_groups=[SimpleNamespace(layer_names=[LAYER], kv_cache_spec=None)], num_blocks=ROWS + 1
)


class LiveV2(_Live):
    """``ModelCudaGraphManager``, as ``GPUModelRunner.capture_model`` uses it."""

    def __init__(self, sizes: list[int], refused: Any = (), **config: Any) -> None:
        super().__init__(refused)
        from vllm.config import CUDAGraphMode
        from vllm.v1.worker.gpu import model_runner
        from vllm.v1.worker.gpu.block_table import BlockTables
        from vllm.v1.worker.gpu.input_batch import InputBuffers

        profile = config.pop("profile", None)
        self.holder = self.manager = manager = children.vllm_manager(sizes, **config)
        vars(manager).update(
            **{"max_num_reqs": ROWS, "is_first_pp_rank": True, "aux_hidden_states": []},
            cudagraph_mode=CUDAGraphMode.FULL,
            breakable_cg_runner=None,
        )
        self.buffers = InputBuffers(ROWS, ROWS, torch.device("cuda"))
        self.tables = BlockTables.__new__(BlockTables)
        vars(self.tables).update(
            **{"cp_size": 1, "_num_dirty_rows": 0, "block_sizes": [LENGTH]},
            input_block_tables=[torch.zeros(ROWS, 1, dtype=torch.int32, device="cuda")],
            slot_mappings=torch.zeros(1, ROWS, dtype=torch.int64, device="cuda"),
        )
        state = SimpleNamespace(prepare_dummy_inputs=lambda reqs, tokens: {})
        state.prepare_attn = lambda batch, mode, tables, *args, **more: {
            LAYER: SimpleNamespace(block_table=tables[0], seq_lens=batch.seq_lens)
        }
        self.owner = model_runner.GPUModelRunner.__new__(model_runner.GPUModelRunner)
        nothing = lambda *args: None  # noqa: E731
        vars(self.owner).update(
            **{"execute_model_state": None, "cudagraph_manager": manager, "encoder_cache": None},
            **{"aux_output_connector": None, "block_tables": SimpleNamespace()},
            **dict.fromkeys(("update_pp_decode_requests", "finish_requests"), nothing),
            **dict.fromkeys(("free_states", "add_requests", "update_requests"), nothing),
            _merge_ec_connector_no_forward=nothing,
            kv_connector=SimpleNamespace(no_forward=nothing),
        )
        self.owner.block_tables.apply_staged_writes = lambda: None
        manager._max_full_descs_to_capture = profile
        self.state = state
        self.capture()

    def capture(self) -> None:
        self.manager.capture(
            *(self.model, self.state, self.buffers, None, self.tables, [], _GROUPS),
        )

    def capture_again(self) -> None:
        """As vLLM does for elastic expert parallelism."""
        self.manager.release_graphs()
        self.capture()

    def graphs(self) -> list[Any]:
        return list(self.manager.graphs.values())

    def write_to_requests(self) -> None:
        """Take away what keeps a dummy run from the places of requests."""
        type(self.tables).get_dummy_slot_mappings = lambda self, n: self.slot_mappings[:, :n]

    def run(self, rows: int, ids: Any, at: Any, slots: Any) -> tuple[torch.Tensor, str]:
        """As ``execute_model`` prepares and runs a step."""
        desc = self.manager.dispatch(rows, rows, 1, 0)
        buffers, tables = self.buffers, self.tables
        buffers.input_ids[:rows], buffers.positions[:rows] = ids, at
        buffers.seq_lens.zero_()
        buffers.seq_lens[:rows] = at + 1
        tables.slot_mappings.fill_(-1)
        tables.slot_mappings[0, :rows] = slots
        tables.input_block_tables[0].zero_()
        tables.input_block_tables[0][:rows, 0] = torch.arange(1, rows + 1, device="cuda")
        if desc.cg_mode.name == "FULL":
            return self.manager.run_fullgraph(desc)[:rows], "graph"
        size = desc.num_tokens
        assert size == rows, "an eager step is not padded"
        with self.context(
            *(tables.input_block_tables[0], buffers.seq_lens, tables.slot_mappings[0, :size])
        ):
            return self.model(buffers.input_ids[:size], buffers.positions[:size]), "eager"


class LiveV1(_Live):
    """``GPUModelRunner`` and its own dummy run."""

    def __init__(self, sizes: list[int], refused: Any = (), **config: Any) -> None:
        super().__init__(refused)
        from vllm.compilation import monitor
        from vllm.v1.worker import gpu_model_runner as module
        from vllm.v1.worker.block_table import MultiGroupBlockTable
        from vllm.v1.worker.gpu_model_runner import CpuGpuBuffer

        module.graph_capture = lambda device: torch.cuda.stream(torch.cuda.Stream())
        module.get_pp_group = lambda: SimpleNamespace(is_first_rank=True)
        runner = children.vllm_runner(self.model, sizes, **config)
        del runner._dummy_run
        cuda = torch.device("cuda")
        numbers = {"dtype": torch.int32, "device": cuda, "pin_memory": False}
        watched = SimpleNamespace(cudagraph_metrics=False, enable_layerwise_nvtx_tracing=False)
        runner.vllm_config.observability_config = watched
        runner.vllm_config.model_config.multimodal_config = None
        runner.parallel_config.cp_kv_cache_interleave_size = 1
        runner.parallel_config.num_ubatches = 1
        runner.parallel_config.distributed_executor_backend = None
        tables = MultiGroupBlockTable(ROWS, ROWS, False, cuda, [LENGTH], [1])
        for row in range(ROWS):
            tables.append_row(([row + 1],), row)
        vars(runner).update(
            **{"device": cuda, "uniform_decode_query_len": 1, "max_num_tokens": ROWS},
            **{"dcp_world_size": 1, "prepare_inputs_event": None, "is_pooling_model": False},
            **{"supports_mm_inputs": False, "enable_prompt_embeds": False, "uses_mrope": False},
            **{"use_aux_hidden_state_outputs": False, "speculative_config": None},
            **{"execute_model_state": None, "kv_cache_config": _GROUPS, "lookback_token_ids": None},
            scheduler_config=runner.vllm_config.scheduler_config,
            model_config=runner.vllm_config.model_config,
            arange_np=np.arange(ROWS + 1, dtype=np.int64),
            input_batch=SimpleNamespace(block_table=tables, lora_id_to_lora_request={}),
            optimistic_seq_lens_cpu=torch.zeros(ROWS, dtype=torch.int32),
            seq_lens=torch.zeros(ROWS, dtype=torch.int32, device=cuda),
            positions=torch.zeros(ROWS, dtype=torch.int64, device=cuda),
            is_padding=torch.zeros(ROWS, dtype=torch.bool, device=cuda),
            query_start_loc=CpuGpuBuffer(ROWS + 1, **numbers),
            query_pos=CpuGpuBuffer(ROWS, **numbers),
            input_ids=CpuGpuBuffer(ROWS, **numbers),
            _build_attention_metadata=self._metadata,
            _update_states=lambda output: None,
        )
        self.holder = self.owner = self.runner = runner
        children.capture_runner(runner)
        assert not monitor.cudagraph_capturing_enabled

    def capture_again(self) -> None:
        """As vLLM does for elastic expert parallelism; its sizes are those of a start."""
        from vllm.config import CUDAGraphMode

        self.runner.model.concrete_cudagraph_entries = {}
        self.runner.cudagraph_dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL)
        children.capture_runner(self.runner)

    def _metadata(self, **more: Any) -> Any:
        table = self.runner.input_batch.block_table[0].get_device_tensor(ROWS)
        return {LAYER: SimpleNamespace(block_table=table, seq_lens=self.runner.seq_lens)}, None

    def graphs(self) -> list[Any]:
        return [e.cudagraph for e in self.runner.model.concrete_cudagraph_entries.values()]

    def write_to_requests(self) -> None:
        """Take away what keeps a dummy run from the places of requests."""
        real = self.runner._get_slot_mappings

        def copies(**more: Any) -> Any:
            groups, layers = real(**more)
            return {group: mapping.clone() for group, mapping in groups.items()}, layers

        self.runner._get_slot_mappings = copies

    def run(self, rows: int, ids: Any, at: Any, slots: Any) -> tuple[torch.Tensor, str]:
        """As ``execute_model`` prepares and runs a step."""
        runner = self.runner
        runner.input_batch.block_table.commit_block_table(rows)
        runner.input_ids.gpu[:rows], runner.positions[:rows] = ids, at
        runner.seq_lens.zero_()
        runner.seq_lens[:rows] = at + 1
        mode, desc = runner.cudagraph_dispatcher.dispatch(rows)
        size = desc.num_tokens
        mapping = runner.input_batch.block_table[0].slot_mapping.gpu
        mapping[:rows] = slots
        mapping[rows:].fill_(-1)
        assert mode.name == "FULL" or size == rows, "an eager step is not padded"
        metadata = self._metadata()[0][LAYER]
        with self.context(
            *(metadata.block_table, metadata.seq_lens, mapping[:size], mode.name, desc)
        ):
            out = runner.model(
                input_ids=runner.input_ids.gpu[:size], positions=runner.positions[:size]
            )
        return out[:rows], "graph" if mode.name == "FULL" else "eager"
