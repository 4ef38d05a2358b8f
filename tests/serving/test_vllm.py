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
outputs = children.capture_manager(manager, model)
step = lambda rows: children.step_of_manager(manager, model, outputs, rows)
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
