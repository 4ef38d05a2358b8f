"""Late captures, and releases under pressure, with the engines' own captures and a live cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BEGIN = """
import json, gc, weakref
from tests.serving.children import *
from tests.serving import children
"""
VLLM = (
    BEGIN
    + """
vllm()
from vllm.plugins import load_general_plugins
load_general_plugins()
from tests.serving.live_vllm import LiveV1, LiveV2
from vllm.compilation import monitor
"""
)
SGLANG = (
    BEGIN
    + """
sglang()
from sglang.srt.plugins import load_plugins
load_plugins()
# Not in a function: one of the modules keeps the frames that import it.
import sglang.srt.model_executor.model_runner
from tests.serving.live_sglang import Live
gc.freeze()  # each capture collects, and SGLang has imported much
"""
)
SERVE = """
import gfxgraph
from gfxgraph.serving import sizes
from gfxgraph.serving.between import BETWEEN
BEFORE
live = LIVE([1, 2, 4, 8], MORE)
found = {"start": {size_of(s): s.state for s in sizes()}, "ran": list(live.model.ran)}
def steps(*several):
    return [live.step(rows) for rows in several]
"""
SIZE = """
def size_of(size):
    names = dict(part.split("=") for part in size.size.split() if "=" in part)
    return int(names.get("num_tokens") or names["size"])
"""
END = """
found["sizes"] = {size_of(s): vars(s) for s in sizes()}
found["stats"] = gfxgraph.stats()
print(json.dumps(found))
"""
LAZY = {"GFXGRAPH": "1", "GFXGRAPH_LAZY": "60"}
ALL = {8: "captured", 4: "captured", 2: "captured", 1: "captured"}


@pytest.fixture(params=["v2", pytest.param("v1", marks=pytest.mark.full), "sglang"])
def engine(request):
    """Starts a server of sizes 1, 2, 4 and 8, and runs code in its process."""
    begin, live = {
        "v2": (VLLM, "LiveV2"),
        "v1": (VLLM, "LiveV1"),
        "sglang": (SGLANG, "Live"),
    }[request.param]
    run = request.getfixturevalue("sglang" if request.param == "sglang" else "vllm")

    def start(then: str, more: str = "", before: str = "", **variables: str) -> dict:
        code = SERVE.replace("LIVE", live).replace("MORE", more).replace("BEFORE", before)
        return run(f"{begin}{SIZE}{code}\n{then}\n{END}", **variables or LAZY)

    return SimpleNamespace(start=start, name=request.param)


def states(found: dict) -> dict[int, str]:
    return {int(size): state["state"] for size, state in found["sizes"].items()}


def right(found: dict) -> bool:
    """Whether each step had its result, and the cache of the requests what only it has stored."""
    return all(ok for ok, _ in found["steps"])


def how(found: dict) -> list[str]:
    return [way for _, way in found["steps"]]


def test_without_the_variables_all_sizes_are_captured_at_start(engine):
    found = engine.start("found['steps'] = steps(3, 1, 8, 2)", GFXGRAPH="1")
    assert right(found) and how(found) == ["graph"] * 4 and states(found) == ALL
    assert "lazy" not in found["stderr"] and "release" not in found["stderr"]


def test_a_size_is_captured_once_a_batch_has_needed_it_and_the_cache_is_untouched(engine):
    found = engine.start("found['steps'] = steps(3, 3, 4, 8, 1, 2, 1, 2, 3, 8)")
    assert found["start"] == {"8": "captured", "4": "waiting", "2": "waiting", "1": "waiting"}
    assert set(found["ran"]) == {8} and right(found) and states(found) == ALL
    assert how(found) == ["eager", *["graph"] * 3, "eager", "eager", *["graph"] * 4]
    assert found["sizes"]["4"]["replays"] == 3 and found["stats"]["fallback_count"] == 0
    assert "lazy_seconds=60" in found["stderr"] and "not_lazy" not in found["stderr"]


@pytest.mark.parametrize("kept_off", [True, False])
def test_a_late_capture_writes_to_no_place_that_steps_before_it_were_given(engine, kept_off):
    then = "found['steps'] = steps(8, 3)\nlive.give_to_others()\n"
    taken_away = "" if kept_off else "live.write_to_requests()\n"
    found = engine.start(f"{then}{taken_away}found['steps'] += steps(3)")
    # Without what the engine does for it, this test would see the dummy run.
    assert found["steps"] == [[True, "graph"], [True, "eager"], [kept_off, "graph"]]


def test_a_smaller_batch_runs_eagerly_and_unpadded_until_its_own_size_is_captured(engine):
    found = engine.start("found['steps'] = steps(3)\nfound['last'] = live.model.ran[-1]")
    assert right(found) and how(found) == ["eager"] and found["last"] == 3
    assert found["sizes"]["4"]["reason"] == "no batch has needed it"


def test_once_the_budget_is_spent_nothing_is_captured_and_it_is_said_once(engine):
    then = "found['steps'] = steps(3, 3, 1, 1, 2, 2, 8)"
    found = engine.start(then, GFXGRAPH="1", GFXGRAPH_LAZY="0.000001")
    assert right(found)
    assert how(found) == ["eager", "graph", "eager", "eager", "eager", "eager", "graph"]
    assert states(found) == {8: "captured", 4: "captured", 2: "waiting", 1: "waiting"}
    assert found["sizes"]["1"]["reason"] == "the 1e-06 seconds of GFXGRAPH_LAZY are spent"
    assert found["stderr"].count("lazy_budget_spent") == 1 and "without_graph=2" in found["stderr"]


def test_a_late_capture_that_fails_makes_its_size_eager_and_the_others_are_captured(engine):
    found = engine.start("found['steps'] = steps(3, 3, 4, 1, 1, 8)", more="refused={4}")
    assert right(found)
    assert how(found) == ["eager", "eager", "eager", "eager", "graph", "graph"]
    assert states(found) == {8: "captured", 4: "failed", 2: "waiting", 1: "captured"}
    assert "item" in found["sizes"]["4"]["reason"]
    assert found["stats"]["fallback_count"] == found["stats"]["capture_failures"] == 1
    assert found["stderr"].count("its capture failed") == 1


def test_an_eager_run_of_a_late_capture_that_fails_does_not_end_the_server(engine):
    then = "found['steps'] = [*steps(3), (live.model.broken.add(4), True), *steps(3, 3, 1, 1)]"
    found = engine.start(then)
    del found["steps"][1]
    assert right(found) and how(found) == ["eager"] * 4 + ["graph"]
    assert states(found)[4] == "failed" and "no kernel" in found["sizes"]["4"]["reason"]


def test_late_sizes_are_compared_too_where_that_is_asked_for(engine):
    then = "found['steps'] = steps(3, 3, 4, 1, 1)"
    found = engine.start(then, **LAZY, GFXGRAPH_VALIDATE_EVERY="1")
    assert right(found) and how(found) == ["eager", "graph", "graph", "eager", "graph"]
    assert found["sizes"]["4"]["compared"] == 2 and found["sizes"]["1"]["compared"] == 1
    assert found["stats"]["validation_failures"] == 0 and "not_compared" not in found["stderr"]


@pytest.mark.parametrize("failed", ["", "refused={4}"])
def test_the_switch_of_vllm_is_put_back_also_when_the_capture_fails(engine, failed):
    if engine.name != "v1":
        pytest.skip("this engine has no switch for its full graphs")
    then = """
seen, real = [], monitor.validate_cudagraph_capturing_enabled
from vllm.compilation import cuda_graph
def validate():
    seen.append(monitor.cudagraph_capturing_enabled)
    real()
cuda_graph.validate_cudagraph_capturing_enabled = validate
found["steps"] = steps(3, 3)
found["switch"] = [seen, monitor.cudagraph_capturing_enabled]
"""
    found = engine.start(then, more=failed)
    assert right(found) and found["switch"] == [[True], False]


def test_a_profile_of_memory_captures_what_it_would(engine):
    if engine.name != "v2":
        pytest.skip("the others profile in another function, or not")
    found = engine.start("", more="profile=2")
    assert found["start"] == {"8": "captured", "4": "captured"}


REFUSED = {
    "v2": [
        ("state=True", "a model whose steps advance a state"),
        ("speculative_config=1", "speculative decoding"),
        ("multimodal=True", "several modalities"),
        ("lora_config=1", "LoRA"),
    ],
    "sglang": [
        ("role='decode'", "prefill and decode on two servers"),
        ("kv='MLATokenToKVPool'", "a cache MLATokenToKVPool"),
    ],
}
REFUSED["v1"] = REFUSED["v2"][2:]


@pytest.mark.parametrize("at", range(5))
def test_where_it_is_not_shown_to_be_safe_all_sizes_are_captured_at_start(engine, at):
    before = ""
    if at == 4:
        module = "sglang" if engine.name == "sglang" else "vllm"
        before = f"import gfxgraph.serving.{module} as ours\nours.several_ranks = lambda: True"
        more, why = "", "several ranks"
    elif at < len(REFUSED[engine.name]):
        more, why = REFUSED[engine.name][at]
    else:
        pytest.skip("no more reasons for this engine")
    found = engine.start("found['steps'] = steps(3, 1)", more=more, before=before)
    assert right(found) and how(found) == ["graph", "graph"] and states(found) == ALL
    assert found["stderr"].count("not_lazy") == 1 and f"because={why!r}" in found["stderr"]


# ---- releases under pressure

PRESSURE = """
BETWEEN.look_at = 1e18
found["steps"] = steps(2)
graphs = [weakref.ref(graph) for graph in live.graphs()]
BETWEEN.look_at = 0
found["steps"] += steps(1, 2, 3, 8)
gc.collect()
found["alive"] = sum(graph() is not None for graph in graphs)
"""


def test_when_memory_is_short_graphs_that_were_never_replayed_are_dropped(engine):
    found = engine.start(PRESSURE, GFXGRAPH="1", GFXGRAPH_RELEASE_BELOW="1e9")
    assert right(found) and how(found) == ["graph", "eager", "graph", "eager", "eager"]
    assert states(found) == {8: "eager", 4: "eager", 2: "captured", 1: "eager"}
    assert found["alive"] == 1 and found["stderr"].count("gfxgraph WARNING released") == 1
    assert "sizes=3" in found["stderr"] and "below_mib=1000000000" in found["stderr"]


def test_while_memory_is_not_short_nothing_is_released(engine):
    found = engine.start(PRESSURE, GFXGRAPH="1", GFXGRAPH_RELEASE_BELOW="0.001")
    assert right(found) and how(found) == ["graph"] * 5 and states(found) == ALL
    assert found["alive"] == 4 and "gfxgraph WARNING released" not in found["stderr"]


def test_the_free_memory_is_looked_at_about_once_a_second(engine):
    then = """
from gfxgraph.serving import between
looks, real = [], between._release
between._release = lambda: (looks.append(between.monotonic()), real())
found["steps"] = steps(*[2] * 20)
found["looks"] = looks
"""
    found = engine.start(then, GFXGRAPH="1", GFXGRAPH_RELEASE_BELOW="0.001")
    gaps = [b - a for a, b in zip(found["looks"], found["looks"][1:], strict=False)]
    assert right(found) and found["looks"] and all(gap >= 1 for gap in gaps)
