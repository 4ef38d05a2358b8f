"""The plugin with vLLM's own loader, managers, dispatchers and wrappers."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BEGIN = """
import json, sys
from tests.serving.children import *
from tests.serving import children
vllm()
import torch
from vllm.plugins import load_general_plugins
load_general_plugins()
"""
MANAGER = (
    BEGIN
    + """
import gfxgraph
from gfxgraph.serving import release_unused, sizes
model = children.Server(refused=REFUSED)
manager = vllm_manager([1, 2, 4, 8])
children.capture_manager(manager, model)
step = lambda rows: children.step_of_manager(manager, model, rows)
"""
)
RUNNER = (
    BEGIN
    + """
import gfxgraph
from gfxgraph.serving import release_unused, sizes
model = children.Server(refused=REFUSED)
runner = children.vllm_runner(model, [1, 2, 4, 8])
children.capture_runner(runner)
step = lambda rows: children.step_of_runner(runner, model, rows)
"""
)
STEPS = """
steps = {rows: step(rows) for rows in (1, 2, 3, 4, 7, 8)}
found = {"steps": steps, "sizes": [vars(size) for size in sizes()], "stats": gfxgraph.stats()}
"""
BOTH = pytest.mark.parametrize("kind", [MANAGER, RUNNER], ids=["v2", "v1"])


def serve(kind: str, refused: str = "()", then: str = "") -> str:
    return f"{kind.replace('REFUSED', refused)}{STEPS}\n{then}\nprint(json.dumps(found))"


def right(found: dict) -> bool:
    return all(ok for ok, _ in found["steps"].values())


def how(found: dict) -> list[str]:
    return [how for _, how in found["steps"].values()]


@pytest.mark.parametrize(
    ("variables", "active"),
    [
        ({}, False),
        ({"GFXGRAPH": "1"}, True),
        ({"SGLANG_RDNA2_KERNELS": "1"}, False),
        ({"GFXGRAPH": "1", "SGLANG_DISABLE_GFXGRAPH": "1"}, False),
        ({"GFXGRAPH": "1", "VLLM_PLUGINS": "another"}, False),
    ],
)
def test_the_loader_runs_the_entry_point_and_a_variable_decides(vllm, variables, active):
    found = vllm(
        BEGIN
        + """
early = [m for m in sys.modules if m == "vllm.v1.worker.gpu.cudagraph_utils"]
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
print(json.dumps({
    "early": early,
    "loaded": [m for m in sys.modules if m.startswith("gfxgraph.serving.")],
    "wrapped": hasattr(CudaGraphManager.capture, "_gfxgraph")
        or "patch" in CudaGraphManager.capture.__code__.co_filename,
}))""",
        **variables,
    )
    assert found["wrapped"] == active and not found["early"]
    if not active:
        assert set(found["loaded"]) <= {"gfxgraph.serving.plugin"}
    assert found["stderr"].count("serving engine='vLLM'") == int(active)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"GFXGRAPH": "yes"}, "SettingError: GFXGRAPH='yes': this variable takes"),
        ({"GFXGRAPH": "1", "GFXGRAPH_VRAM_CAP": "80"}, "SettingError: GFXGRAPH_VRAM_CAP='80'"),
    ],
)
def test_a_malformed_variable_is_named_and_the_server_starts_without_the_plugin(
    vllm, variables, said
):
    found = vllm(
        """
import json, torch
from vllm.plugins import load_general_plugins
load_general_plugins()
print(json.dumps({"graph": torch.cuda.CUDAGraph.__module__}))""",
        **variables,
    )
    assert found["graph"].startswith("torch.")
    assert "Failed to load plugin gfxgraph" in found["stderr"] and said in found["stderr"]


def test_loading_again_replaces_nothing_twice_and_tells_nothing_twice(vllm):
    found = vllm(
        MANAGER.replace("REFUSED", "{4}").replace(
            "load_general_plugins()\n",
            "load_general_plugins()\nimport vllm.plugins as plugins\n"
            "plugins.plugins_loaded = False\nload_general_plugins()\n"
            "from gfxgraph.serving.plugin import vllm as entry\nentry()\n",
        )
        + "entry()\n"
        + STEPS
        + "print(json.dumps(found))",
        GFXGRAPH="1",
    )
    assert right(found) and found["stats"]["fallback_count"] == 1
    assert found["stderr"].count("serving engine='vLLM'") == 1


@BOTH
def test_all_sizes_are_graphs_and_their_replays_are_counted(vllm, kind):
    found = vllm(serve(kind), GFXGRAPH="1")
    assert right(found) and how(found) == ["graph"] * 6
    assert [s["replays"] for s in found["sizes"]] == [2, 2, 1, 1]
    assert {s["state"] for s in found["sizes"]} == {"captured"}
    assert "num_tokens=8" in found["sizes"][0]["size"]


@BOTH
def test_a_size_that_fails_is_eager_and_the_others_replay(vllm, kind):
    found = vllm(serve(kind, "{4}"), GFXGRAPH="1")
    assert right(found)
    assert how(found) == ["graph", "graph", "eager", "eager", "graph", "graph"]
    (failed,) = (s for s in found["sizes"] if s["state"] == "failed")
    assert "num_tokens=4" in failed["size"] and "item" in failed["reason"]
    assert found["stats"]["fallback_count"] == found["stats"]["capture_failures"] == 1
    assert found["stderr"].count("its capture failed") == 1


@BOTH
@pytest.mark.parametrize("refused", ["{8}", "{1}", "{1, 2, 4, 8}"])
def test_whichever_sizes_fail_the_server_answers(vllm, kind, refused):
    found = vllm(serve(kind, refused), GFXGRAPH="1")
    assert right(found)
    sizes = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8, 8: 8}
    assert how(found) == ["eager" if s in eval(refused) else "graph" for s in sizes.values()]


@BOTH
def test_without_the_plugin_a_failed_capture_ends_the_start(vllm, kind):
    with pytest.raises(AssertionError, match="is not permitted while a graph is being captured"):
        vllm(serve(kind, "{4}"), GFXGRAPH="1", VLLM_PLUGINS="another")


@BOTH
def test_sizes_that_were_never_replayed_are_released_and_run_eagerly(vllm, kind):
    steps = STEPS.replace("(1, 2, 3, 4, 7, 8)", "(2,)", 1)
    code = (
        kind.replace("REFUSED", "()")
        + steps
        + """
found["released"] = [size.size for size in release_unused()]
found["steps"] = {rows: step(rows) for rows in (1, 2, 3, 8)}
print(json.dumps(found))"""
    )
    found = vllm(code, GFXGRAPH="1")
    assert right(found) and how(found) == ["eager", "graph", "eager", "eager"]
    assert len(found["released"]) == 3


@BOTH
def test_health_finds_weights_that_were_rebound(vllm, kind):
    then = """
found["before"] = gfxgraph.health_check()["ok"]
old = model.linear.weight.data
model.linear.weight.data = torch.randn(4, 4)
found["rebound"] = gfxgraph.health_check()
"""
    found = vllm(serve(kind, then=then), GFXGRAPH="1")
    assert found["before"] and not found["rebound"]["ok"]
    assert "linear.weight" in found["rebound"]["details"]


EVERY = {"GFXGRAPH": "1", "GFXGRAPH_VALIDATE_EVERY": "1"}
LATER = """
found["later"] = {rows: step(rows) for rows in (1, 2, 3, 4, 7, 8)}
found["sizes"] = [vars(size) for size in sizes()]
found["stats"] = gfxgraph.stats()
"""


def compared(found: dict) -> list[int]:
    return [size["compared"] for size in found["sizes"]]


@BOTH
def test_replays_are_compared_only_where_the_variable_asks_for_it(vllm, kind):
    found = vllm(serve(kind, then=LATER), GFXGRAPH="1")
    assert compared(found) == [0] * 4 and "compared" not in found["stderr"]


@BOTH
def test_right_replays_are_compared_and_stay(vllm, kind):
    found = vllm(serve(kind, then=LATER), **EVERY)
    assert right(found) and how(found) == ["graph"] * 6
    assert compared(found) == [4, 4, 2, 2] and found["stats"]["validation_failures"] == 0
    assert found["stats"]["fallback_count"] == 0 and "not_compared" not in found["stderr"]
    assert "compared_every=1" in found["stderr"]


@BOTH
def test_a_wrong_replay_is_found_and_the_step_gets_the_result_of_eager_execution(vllm, kind):
    rebound = "model.linear.weight.data = torch.randn(4, 4, device='cuda')\n"
    found = vllm(serve(kind, then=rebound + LATER), **EVERY)
    assert all(ok for ok, _ in found["later"].values())
    assert {s["state"] for s in found["sizes"]} == {"failed"}
    assert all("replay differed from eager" in s["reason"] for s in found["sizes"])
    assert found["stats"]["validation_failures"] == 4
    without = vllm(serve(kind, then=rebound + LATER), GFXGRAPH="1")
    assert not any(ok for ok, _ in without["later"].values())


@BOTH
def test_rows_of_padding_may_differ(vllm, kind):
    noise = (
        "model.padding = torch.zeros(16, 1, device='cuda')\n"
        "model.then = lambda out: out + torch.rand_like(out) * model.padding[: len(out)]\n"
    )
    steps = """
found["later"] = []
for rows in (3, 7, 3, 7):
    model.padding.zero_()
    model.padding[rows:] = 1
    found["later"].append(step(rows))
found["sizes"] = [vars(size) for size in sizes()]
"""
    code = serve(kind, then=steps)
    for capture in ("children.capture_manager", "children.capture_runner"):
        code = code.replace(capture, noise + capture, 1)
    found = vllm(code, **EVERY)
    assert found["later"] == [[True, "graph"]] * 4 and compared(found) == [4, 4, 1, 1]


@BOTH
def test_a_model_whose_runs_differ_is_not_compared_and_the_replay_answers(vllm, kind):
    advances = (
        "state = torch.zeros(1, device='cuda')\nmodel.then = lambda out: out + state.add_(1)\n"
    )
    code = serve(kind, then="found['sizes'] = [vars(size) for size in sizes()]")
    for capture in ("children.capture_manager", "children.capture_runner"):
        code = code.replace(capture, advances + capture, 1)
    found = vllm(code, **EVERY)
    assert all("two eager runs" in s["not_compared"] for s in found["sizes"])
    assert compared(found) == [0] * 4 and found["stats"]["validation_failures"] == 0


@BOTH
def test_where_the_eager_run_fails_the_replay_answers(vllm, kind):
    broken = """
def broken(out):
    raise torch.OutOfMemoryError("no memory is left")
model.then = broken
"""
    found = vllm(serve(kind, then=broken + LATER), **EVERY)
    assert all(ok for ok, _ in found["later"].values())
    assert {s["not_compared"] for s in found["sizes"]} == {
        "its eager run failed: OutOfMemoryError: no memory is left"
    }


@BOTH
@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("state=True", "a model whose steps advance a state"),
        ("speculative_config=1", "speculative decoding"),
        ("lora_config=1", "LoRA"),
        ("kv_transfer_config=1", "a transfer of the key-value cache"),
    ],
)
def test_what_must_not_run_twice_is_not_compared(vllm, kind, config, why):
    found = vllm(
        serve(kind.replace("[1, 2, 4, 8])", f"[1, 2, 4, 8], {config})"), then=LATER), **EVERY
    )
    assert all(ok for ok, _ in found["later"].values())
    assert {s["not_compared"] for s in found["sizes"]} == {why}
    assert found["stderr"].count("not_compared") == 1
