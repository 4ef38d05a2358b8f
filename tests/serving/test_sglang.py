"""The plugin with SGLang's own loader, registry, backends and runners."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BEGIN = """
import json, sys
from tests.serving.children import *
from tests.serving import children
sglang()
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
import torch
"""
SERVE = (
    BEGIN
    + """
import gfxgraph
from gfxgraph.serving import release_unused, sizes
# Not in a function: one of the modules keeps the frames that import it.
import sglang.srt.model_executor.runner.decode_cuda_graph_runner
model = children.Server(refused=REFUSED)
runner = decode_runner(model, [1, 2, 4, 8], **MORE)
children.capture_all(runner, model)
steps = {rows: children.step(runner, model, rows) for rows in ROWS}
found = {"steps": steps, "sizes": [vars(size) for size in sizes()], "stats": gfxgraph.stats()}
"""
)
TARGETS = [
    "sglang.srt.model_executor.runner_backend.breakable_cuda_graph_backend."
    "BreakableCudaGraphBackend.capture_one",
    "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend."
    "FullCudaGraphBackend.capture_one",
]


def serve(
    refused: str = "()", more: str = "{}", then: str = "", rows: str = "(1, 2, 3, 4, 7, 8, 9)"
) -> str:
    text = SERVE.replace("REFUSED", refused).replace("MORE", more).replace("ROWS", rows)
    return f"{text}\n{then}\nprint(json.dumps(found))"


def right(found: dict) -> bool:
    return all(ok for ok, _ in found["steps"].values())


def how(found: dict) -> list[str]:
    return [how for _, how in found["steps"].values()]


@pytest.mark.parametrize(
    ("variables", "active"),
    [
        ({}, False),
        ({"GFXGRAPH": "0"}, False),
        ({"GFXGRAPH": "1"}, True),
        ({"SGLANG_RDNA2_KERNELS": "1"}, True),
        ({"GFXGRAPH": "1", "SGLANG_DISABLE_GFXGRAPH": "1"}, False),
        ({"SGLANG_RDNA2_KERNELS": "1", "SGLANG_DISABLE_GFXGRAPH": "1"}, False),
        ({"GFXGRAPH": "1", "SGLANG_PLUGINS": "another"}, False),
    ],
)
def test_the_loader_runs_the_entry_point_and_a_variable_decides(sglang, variables, active):
    found = sglang(
        BEGIN
        + """
import logging
print(json.dumps({
    "patched": sorted(HookRegistry._patched),
    "loaded": [m for m in sys.modules if m.startswith("gfxgraph.serving.")],
    "graph": torch.cuda.CUDAGraph.__module__,
}))""",
        **variables,
    )
    assert found["patched"] == (TARGETS if active else [])
    if not active:
        assert set(found["loaded"]) <= {"gfxgraph.serving.plugin"}
    assert found["stderr"].count("serving engine='SGLang'") == int(active)
    assert ("SGLANG_DISABLE_GFXGRAPH=1" in found["stderr"]) or not active


def test_a_malformed_variable_is_named_and_the_server_starts_without_the_plugin(sglang):
    found = sglang(
        BEGIN.replace("sglang()", "sglang(emulated=False)")
        + "print(json.dumps({'patched': sorted(HookRegistry._patched)}))",
        SGLANG_RDNA2_KERNELS="1",
        GFXGRAPH_VRAM_CAP="80",
    )
    assert not found["patched"]
    assert "SettingError: GFXGRAPH_VRAM_CAP='80'" in found["stderr"]


def test_loading_again_adds_no_second_hook_and_no_second_line(sglang):
    found = sglang(
        BEGIN
        + """
import sglang.srt.plugins as plugins
from gfxgraph.serving.plugin import sglang as entry
entry()
plugins._plugins_loaded = False
load_plugins()
print(json.dumps({"hooks": [len(hooks) for hooks in HookRegistry._hooks.values()]}))""",
        GFXGRAPH="1",
    )
    assert found["hooks"] == [1, 1]
    assert found["stderr"].count("serving engine='SGLang'") == 1


@pytest.mark.parametrize("backend", ["full", "breakable"])
def test_all_sizes_are_graphs_and_their_replays_are_counted(sglang, backend):
    found = sglang(serve(more=str({"backend": backend})), GFXGRAPH="1")
    assert right(found) and how(found) == ["graph"] * 6 + ["eager"]
    assert [(s["size"], s["state"], s["replays"]) for s in found["sizes"]] == [
        ("size=8", "captured", 2),
        ("size=4", "captured", 2),
        ("size=2", "captured", 1),
        ("size=1", "captured", 1),
    ]
    assert all(s["runner"].startswith(("Decode", "Break")) for s in found["sizes"])


@pytest.mark.parametrize("backend", ["full", "breakable"])
def test_a_size_that_fails_is_eager_and_the_others_replay(sglang, backend):
    found = sglang(serve("{4}", str({"backend": backend})), GFXGRAPH="1")
    assert right(found)
    assert how(found) == ["graph", "graph", "eager", "eager", "graph", "graph", "eager"]
    (failed,) = (s for s in found["sizes"] if s["state"] == "failed")
    assert failed["size"] == "size=4" and "item" in failed["reason"]
    assert found["stats"]["fallback_count"] == 1
    assert found["stats"]["capture_failures"] == 1
    assert found["stderr"].count("its capture failed") == 1


def test_with_ngrams_where_every_capture_fails_the_server_answers(sglang):
    found = sglang(serve("{1, 2, 4, 8}", str({"ngram": 4})), GFXGRAPH="1")
    assert right(found) and set(how(found)) == {"eager"}
    assert {s["state"] for s in found["sizes"]} == {"failed"} and len(found["sizes"]) == 4
    assert found["stats"]["fallback_count"] == 4 and found["stats"]["capture_count"] == 0


def test_without_the_plugin_a_failed_capture_ends_the_start(sglang):
    with pytest.raises(AssertionError, match="is not permitted while a graph is being captured"):
        sglang(serve("{4}"), GFXGRAPH="1", SGLANG_PLUGINS="another")


def test_a_draft_runner_with_its_own_can_run_graph_is_guarded(sglang):
    code = serve(
        "{4}",
        "{'cls': EAGLEDraftCudaGraphRunner}",
    ).replace(
        "import gfxgraph\n",
        "import gfxgraph\nfrom sglang.srt.speculative.eagle_draft_cuda_graph_runner import "
        "EAGLEDraftCudaGraphRunner\n",
        1,
    )
    found = sglang(code, GFXGRAPH="1")
    assert right(found)
    assert how(found) == ["graph", "graph", "eager", "eager", "graph", "graph", "eager"]


def test_a_runner_whose_padding_is_not_known_keeps_the_error(sglang):
    code = serve("{4}", "{'cls': Another}").replace(
        "import gfxgraph\n",
        "import gfxgraph\nfrom sglang.srt.model_executor.runner.decode_cuda_graph_runner import "
        "DecodeCudaGraphRunner\nclass Another(DecodeCudaGraphRunner): pass\n",
        1,
    )
    with pytest.raises(AssertionError, match="is not permitted while a graph is being captured"):
        sglang(code, GFXGRAPH="1")


def test_an_error_of_the_eager_runs_is_the_engines(sglang):
    code = serve().replace(
        "children.capture_all",
        "model.linear = torch.nn.Linear(5, 4, device='cuda')\nchildren.capture_all",
        1,
    )
    with pytest.raises(AssertionError, match="shapes cannot be multiplied"):
        sglang(code, GFXGRAPH="1")


def test_sizes_that_were_never_replayed_are_released_and_run_eagerly(sglang):
    then = """
model = children.Server()
runner = decode_runner(model, [1, 2, 4, 8])
children.capture_all(runner, model)
children.step(runner, model, 2)
released = [size.size for size in release_unused() if size.runner]
found["released"] = released
found["steps"] = {rows: children.step(runner, model, rows) for rows in (1, 2, 3, 8)}
"""
    found = sglang(serve(then=then), GFXGRAPH="1")
    assert right(found) and how(found) == ["eager", "graph", "eager", "eager"]
    assert found["released"] == ["size=8", "size=4", "size=1"]


def test_what_is_known_of_a_backend_goes_with_it(sglang):
    then = """
import gc
del runner
gc.collect()
found["sizes"] = [vars(size) for size in sizes()]
"""
    assert not sglang(serve("{4}", then=then), GFXGRAPH="1")["sizes"]


def test_health_finds_weights_that_were_rebound_and_not_those_loaded_in_place(sglang):
    then = """
with torch.no_grad():
    model.linear.weight.copy_(torch.randn(4, 4))
in_place = gfxgraph.health_check()
found["in place"] = [in_place["ok"], children.step(runner, model, 8)]
old = model.linear.weight.data
model.linear.weight.data = torch.randn(4, 4)
rebound = gfxgraph.health_check()
found["rebound"] = [rebound["ok"], rebound["details"]]
"""
    found = sglang(serve(then=then), GFXGRAPH="1")
    assert found["in place"] == [True, [True, "graph"]]
    ok, details = found["rebound"]
    assert not ok and "linear.weight" in details and "SGLang (DecodeCudaGraphRunner)" in details


def test_captures_of_the_engine_are_thread_local(sglang):
    then = """
from gfxgraph.graph import native
base, seen = native._Base.capture_begin, []
def capture_begin(self, *args, **kwargs):
    seen.append(kwargs["capture_error_mode"])
    return base(self, *args, **kwargs)
native._Base.capture_begin = capture_begin
children.capture_all(decode_runner(model, [3]), model)
gfxgraph.disable(); gfxgraph.enable(emulate=True)
children.capture_all(decode_runner(model, [3]), model)
found["modes"] = seen
"""
    assert sglang(serve(then=then), GFXGRAPH="1")["modes"] == ["thread_local", "global"]


EVERY = {"GFXGRAPH": "1", "GFXGRAPH_VALIDATE_EVERY": "1"}
LATER = """
found["later"] = {rows: children.step(runner, model, rows) for rows in (1, 2, 3, 4, 7, 8, 9)}
found["sizes"] = [vars(size) for size in sizes()]
found["stats"] = gfxgraph.stats()
"""


def compared(found: dict) -> list[int]:
    return [size["compared"] for size in found["sizes"]]


def test_replays_are_compared_only_where_the_variable_asks_for_it(sglang):
    look = "found = {'patched': sorted(HookRegistry._patched)}"
    for variables, asked in (
        ({"GFXGRAPH": "1"}, 0),
        ({"GFXGRAPH": "debug"}, 0),
        ({"GFXGRAPH": "validate"}, 100),
        ({"SGLANG_RDNA2_KERNELS": "1", "GFXGRAPH_VALIDATE_EVERY": "7"}, 7),
    ):
        found = sglang(f"{BEGIN}\n{look}\nprint(json.dumps(found))", **variables)
        replay = TARGETS[1].replace("capture_one", "replay")
        assert found["patched"] == [*TARGETS, replay] if asked else TARGETS
        assert (f"compared_every={asked}" in found["stderr"]) == bool(asked)


def test_right_replays_are_compared_and_stay(sglang):
    found = sglang(serve(then=LATER), **EVERY)
    assert right(found) and how(found) == ["graph"] * 6 + ["eager"]
    assert compared(found) == [4, 4, 2, 2] and found["stats"]["validation_failures"] == 0
    assert found["stats"]["fallback_count"] == 0 and "not_compared" not in found["stderr"]


def test_the_first_replay_of_a_size_and_every_nth_are_compared(sglang):
    more = "for _ in range(5): children.step(runner, model, 8)\n"
    found = sglang(serve(then=more + LATER), **EVERY | {"GFXGRAPH_VALIDATE_EVERY": "3"})
    # 8: steps 1, 3, 6 and 9 of 9; 4: 1 and 3 of 4; the others: 1 of 2.
    assert compared(found) == [4, 2, 1, 1]


REBOUND = """
model.linear.weight.data = torch.randn(4, 4, device="cuda")
"""


def test_a_wrong_replay_is_found_and_the_step_gets_the_result_of_eager_execution(sglang):
    found = sglang(serve(then=REBOUND + LATER), **EVERY)
    assert all(ok for ok, _ in found["later"].values())
    # The first step of each size finds it; then the size runs eagerly.
    hows = [how for _, how in found["later"].values()]
    assert hows == ["graph", "graph", "graph", "eager", "graph", "eager", "eager"]
    assert {s["state"] for s in found["sizes"]} == {"failed"}
    assert all("replay differed from eager" in s["reason"] for s in found["sizes"])
    assert found["stats"]["validation_failures"] == found["stats"]["fallback_count"] == 4
    assert found["stderr"].count("a replay differed from eager execution") == 4


def test_without_the_variable_the_same_replay_is_wrong(sglang):
    found = sglang(serve(then=REBOUND + LATER), GFXGRAPH="1")
    assert not any(ok for ok, how in found["later"].values() if how == "graph")


def test_rows_of_padding_may_differ(sglang):
    # Of 3 rows that are padded to 4, the last is noise, another one in each run.
    noise = """
model.padding = torch.zeros(16, 1, device="cuda")
model.then = lambda out: out + torch.rand_like(out) * model.padding[: len(out)]
children.capture_all
"""
    steps = """
found["later"] = []
for rows in (3, 7, 3, 7):
    model.padding.zero_()
    model.padding[rows:] = 1
    found["later"].append(children.step(runner, model, rows))
found["sizes"] = [vars(size) for size in sizes()]
"""
    code = serve(then=steps).replace("children.capture_all", noise.strip(), 1)
    found = sglang(code, **EVERY)
    assert found["later"] == [[True, "graph"]] * 4 and compared(found) == [4, 4, 1, 1]


def test_a_model_whose_runs_differ_is_not_compared_and_the_replay_answers(sglang):
    then = """
from sglang.srt.model_executor.runner.shape_key import ShapeKey
runner.raw_num_token, before = 8, float(state)
out = runner.backend.replay(ShapeKey(8), None)
found["of which run"] = float((out - model.linear(model.static[:8])).mean()) - before
found["sizes"] = [vars(size) for size in sizes()]
"""
    state = """
state = torch.zeros(1, device="cuda")
model.then = lambda out: out + state.add_(1)
children.capture_all
"""
    code = serve(then=then, rows="()").replace("children.capture_all", state.strip(), 1)
    found = sglang(code, **EVERY)
    assert found["of which run"] == pytest.approx(1, abs=1e-4)  # the replay came first
    assert "two eager runs of one step give different" in found["sizes"][0]["not_compared"]
    assert compared(found) == [0] * 4


def test_where_the_eager_run_fails_the_replay_answers(sglang):
    broken = """
def broken(out):
    raise torch.OutOfMemoryError("no memory is left")
model.then = broken
"""
    found = sglang(serve(then=broken + LATER), **EVERY)
    assert all(ok for ok, _ in found["later"].values())
    assert {s["not_compared"] for s in found["sizes"]} == {
        "its eager run failed: OutOfMemoryError: no memory is left"
    }
    assert found["stderr"].count("not_compared") == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("{'lora': object()}", "LoRA"),
        ("{'ngram': 4}", "speculative decoding"),
        ("{'pool': 'HybridLinearKVPool'}", "a cache HybridLinearKVPool"),
        ("{'backend': 'breakable'}", "a backend BreakableCudaGraphBackend"),
    ],
)
def test_what_must_not_run_twice_is_not_compared(sglang, more, why):
    found = sglang(serve(more=more, then=LATER), **EVERY)
    assert all(ok for ok, _ in found["later"].values())
    assert {s["not_compared"] for s in found["sizes"]} == {why}
    assert compared(found) == [0] * 4 and found["stderr"].count("not_compared") == 1


def test_a_runner_without_the_attributes_of_this_version_is_not_compared(sglang):
    code = serve(then=LATER).replace(
        "children.capture_all", "del runner.is_dllm\nchildren.capture_all", 1
    )
    found = sglang(code, **EVERY)
    assert all(ok for ok, _ in found["later"].values())
    assert all(s["not_compared"].startswith("SGLang is another one") for s in found["sizes"])


def test_what_is_kept_for_comparisons_goes_with_the_backend(sglang):
    then = """
import gc
del runner
gc.collect()
found["sizes"] = [vars(size) for size in sizes()]
"""
    assert not sglang(serve(then=then), **EVERY)["sizes"]
