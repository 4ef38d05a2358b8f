"""What servers go through, for children: each gives what was seen, for a test to look at.

A server is a ``Live`` of ``live_vllm`` or ``live_sglang``; ``start(**more)`` starts one that has
sizes 1, 2, 4 and 8.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import gfxgraph
from gfxgraph.serving.between import BETWEEN
from gfxgraph.serving.graphs import EngineGraphs
from tests.serving import children

__all__ = ["all_of"]

Start = Callable[..., Any]


def all_of(live: Any) -> dict[str, Any]:
    """What was seen in each of the histories, or the error that one ended with."""
    found: dict[str, Any] = {}
    gc.freeze()  # each capture collects, and an engine has imported much
    for history in (
        *(two_servers, late_failure_of_one_of_two, dropped, dropped_while_sizes_wait),
        *(rebound_and_bound_back, captured_again, failed_and_captured_again),
        *(captured_again_after_the_budget, captured_again_while_sizes_wait, interrupted),
        *(late_and_short_of_memory, pieces),
    ):
        BETWEEN.lazy = BETWEEN.spent = BETWEEN.release_below = 0.0
        EngineGraphs.compare_every = 0
        try:
            found[history.__name__] = history(lambda **more: live([1, 2, 4, 8], **more))
        except Exception as error:
            found[history.__name__] = f"{type(error).__name__}: {error}"
        gc.collect()
    return found


def states(live: Any) -> list[str]:
    """Those of sizes 8, 4, 2 and 1."""
    return [size.state for size in EngineGraphs.known(live.holder).sizes()]


def steps(live: Any, *several: int) -> list[str]:
    done = [live.step(rows) for rows in several]
    return [how if right else f"{how}, and wrong" for right, how in done]


def rebind(live: Any) -> torch.nn.Parameter:
    """Give the model another weight, and return the first."""
    first = live.model.linear.weight
    live.model.linear.weight = torch.nn.Parameter(first.detach() + 1)
    return first


def two_servers(start: Start) -> Any:
    EngineGraphs.compare_every = 1
    one, other = start(), start()
    before = steps(one, 3), steps(other, 3)
    rebind(one)
    found = {"before": before, "steps": [steps(one, 3, 3), steps(other, 3, 3)]}
    found["states"] = states(one), states(other)
    known = [EngineGraphs.known(live.holder) for live in (one, other)]
    found["compared"] = [[size.compared for size in each.sizes()] for each in known]
    found["released"] = len(known[0].release_unused())
    found["after"] = steps(one, 8, 1), steps(other, 8, 3, 2, 1)
    found["replays"] = [size.replays for size in known[1].sizes()]
    return found


def late_failure_of_one_of_two(start: Start) -> Any:
    BETWEEN.lazy = 60.0
    one, other = start(), start(refused={4})
    before = steps(one, 3, 3), steps(other, 3, 3)
    return {"steps": [*before, steps(one, 3)], "states": [states(one), states(other)]}


def dropped(start: Start) -> Any:
    live = start()
    found = {"steps": steps(live, 3)}
    holder = weakref.ref(live.holder)
    del live
    gc.collect()
    return found | {"lives": holder() is not None, "sizes": len(gfxgraph.serving.sizes())}


def dropped_while_sizes_wait(start: Start) -> Any:
    BETWEEN.lazy = 60.0
    EngineGraphs.compare_every = 1
    live = start()
    found = {"steps": steps(live, 3, 3, 1)}
    holder = weakref.ref(live.holder)
    del live
    gc.collect()
    return found | {"lives": holder() is not None, "sizes": len(gfxgraph.serving.sizes())}


def rebound_and_bound_back(start: Start) -> Any:
    BETWEEN.lazy = 60.0
    live = start()
    steps(live, 3)
    first = rebind(live)
    found = {"late": steps(live, 3)}
    live.model.linear.weight = first
    return found | {"then": steps(live, 3), "stale": EngineGraphs.known(live.holder).stale()}


def captured_again(start: Start) -> Any:
    live = start()
    rebind(live)
    health = [gfxgraph.health_check()["ok"]]
    live.capture_again()
    return {"health": [*health, gfxgraph.health_check()["ok"]], "steps": steps(live, 3, 1, 2, 8)}


def failed_and_captured_again(start: Start) -> Any:
    live = start(refused={4, 2})
    found = {"before": steps(live, 3, 2, 8)}
    live.model.refused = {2}
    live.capture_again()
    return found | {"after": steps(live, 3, 2, 8), "states": states(live)}


def captured_again_after_the_budget(start: Start) -> Any:
    BETWEEN.lazy = 1e-9
    live = start()
    found = {"before": [*steps(live, 1, 3, 1), *states(live)]}
    live.capture_again()
    return found | {"after": steps(live, 3, 1, 2, 8), "states": states(live)}


def captured_again_while_sizes_wait(start: Start) -> Any:
    BETWEEN.lazy = 60.0
    live = start()
    steps(live, 3, 3, 1)
    live.capture_again()
    return {"states": states(live), "steps": steps(live, 3, 3, 1, 1, 2, 8)}


def interrupted(start: Start) -> Any:
    BETWEEN.lazy = 60.0
    live = start()
    found = {"before": steps(live, 3)}
    forward = live.model.forward

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise KeyboardInterrupt
        return forward(*args, **kwargs)

    live.model.forward = interrupt
    try:
        live.step(3)
        found["went on"] = False
    except KeyboardInterrupt:
        found["went on"] = True
    del live.model.forward
    graphs = len(live.graphs())
    return found | {"states": states(live), "graphs": graphs, "after": steps(live, 3, 3, 1, 1, 8)}


def late_and_short_of_memory(start: Start) -> Any:
    BETWEEN.lazy, BETWEEN.release_below = 60.0, 1e30
    live = start()
    BETWEEN.look_at = 1e18
    found = {"before": steps(live, 8, 3)}
    BETWEEN.look_at = 0.0
    return found | {"after": steps(live, 3, 3), "states": states(live)}


def pieces(start: Start) -> Any:
    """Of vLLM's V1: a model in two pieces, another such one, and a third with a drafter."""
    if not hasattr(start().holder, "cudagraph_dispatcher"):
        return None
    first, other, drafts = (PiecesV1(drafter) for drafter in (False, False, True))
    found: dict[str, Any] = {"replays": []}
    for server in (other, drafts):
        server.run(4)
        sizes = EngineGraphs.known(server.runner).sizes()
        found["replays"].append([size.replays for size in sizes])
    gone = [len(EngineGraphs.known(s.runner).release_unused()) for s in (other, drafts)]
    return found | {
        "gone": gone,
        "graphs": [server.graphs() for server in (first, other, drafts)],
        "dispatched": [server.dispatched() for server in (first, other, drafts)],
    }


class PiecesV1:
    """A V1 runner with vLLM's wrappers of pieces, and its dispatcher; of sizes 8 and 4."""

    def __init__(self, drafter: bool) -> None:
        from vllm.compilation.cuda_graph import CUDAGraphWrapper
        from vllm.config import CUDAGraphMode
        from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

        self.mode = mode = CUDAGraphMode.PIECEWISE
        model = children.Server()
        self.runner = runner = children.vllm_runner(model, [4, 8])
        config = runner.vllm_config
        config.compilation_config.cudagraph_mode = mode
        config.compilation_config.is_attention_compiled_piecewise = lambda: True

        def dispatcher() -> Any:
            made = CudagraphDispatcher(config)
            made.initialize_cudagraph_keys(mode)
            return made

        self.wrappers = [CUDAGraphWrapper(model, config, mode) for _ in range(2 + drafter)]
        runner.model, runner._dummy_run = model, self.run
        self.dispatchers = [dispatcher() for _ in range(1 + drafter)]
        runner.cudagraph_dispatcher = self.dispatchers[0]
        if drafter:
            runner.drafter = SimpleNamespace(cudagraph_dispatcher=self.dispatchers[1])
        children.capture_runner(runner)

    def run(self, rows: int, cudagraph_runtime_mode: Any = None, **more: Any) -> None:
        from vllm.forward_context import override_forward_context

        mode, desc = self.runner.cudagraph_dispatcher.dispatch(rows)
        chosen = mode if cudagraph_runtime_mode is None else cudagraph_runtime_mode
        context = SimpleNamespace(batch_descriptor=desc, cudagraph_runtime_mode=chosen)
        with override_forward_context(context):
            for wrapper in self.wrappers:
                wrapper(rows)

    def graphs(self) -> list[int]:
        """How many each wrapper has."""
        return [len(wrapper.concrete_cudagraph_entries) for wrapper in self.wrappers]

    def dispatched(self) -> list[int]:
        """How many sizes each dispatcher may choose."""
        return [len(each.cudagraph_keys[self.mode]) for each in self.dispatchers]
