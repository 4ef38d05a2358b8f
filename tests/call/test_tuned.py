"""``compile="tuned"``: settings are searched, compared, timed, remembered, and searched no more."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.call.identity import surroundings_of
from gfxgraph.compiling.tuning import (
    Tried,
    Tuned,
    candidates,
    remember,
    remembered,
    search,
    timed_without_gaps,
)
from gfxgraph.errors import ArgumentError
from tests.helpers.devices import HAS_GPU
from tests.helpers.models import net
from tests.helpers.processes import printed

pytestmark = pytest.mark.usefixtures("fresh_compiler", "no_grad", "remembering")


@pytest.fixture(autouse=True)
def interruptible():
    """Also where whoever started the tests has told them to ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def remembering(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def files(folder: Path) -> list[Path]:
    return sorted((folder / "gfxgraph").glob("*.json"))


class Compiler:
    """A backend: its code is slow, but not with the setting ``fast``; others do not work.

    Args:
        fast: the setting.
        interrupts: the setting at which the user presses Ctrl-C.
        refuses: a setting that does not work.
    """

    def __init__(self, fast="aggressive_fusion", interrupts=None, refuses="max_autotune_gemm"):
        self.given, self._refuses = [], refuses
        self._fast, self._interrupts = fast, interrupts

    def __call__(self, graph, example_inputs, options=None):
        self.given.append(dict(options or {}))
        if self._interrupts in self.given[-1]:
            signal.raise_signal(signal.SIGINT)
        if self._refuses in self.given[-1]:
            raise RuntimeError("no kernel fits")
        is_fast, is_wrong = self._fast in self.given[-1], "epilogue_fusion" in self.given[-1]

        def run(*args):
            if not is_fast:
                time.sleep(0.005)
            return tuple(out + is_wrong for out in graph.forward(*args))

        return run


on_cpu = pytest.mark.skipif(HAS_GPU, reason="its settings are those of the emulated device")


def tuned(fn, backend, seconds=600.0, **options):
    how = {"mode": "tuned", "seconds": seconds, "backend": backend}
    return gfxgraph.graphed(fn, compile=how, **options)


def outcomes(graph) -> dict[str, str]:
    (row,) = graph.stats().graphs
    return {name: one.outcome for one in row.tuned.tried for name in one.settings}


# ---- the search


def sought(gains, changes, found=None, room=99):
    """What a search finds, tries and saves, if settings make a call so many times as fast."""
    found, asked, saved = Tuned() if found is None else found, [], []

    def attempt(settings):
        asked.append(settings)
        gain = gains.get(tuple(sorted(set(settings) - set(found.settings))), 1.0)
        return Tried(settings, "kept" if gain > 1 else "no faster", 1.0, gain)

    search(found, changes, attempt, lambda: len(asked) < room, lambda: saved.append(str(found)))
    return found, asked, saved


def test_it_goes_from_setting_to_setting_and_tries_the_others_again_on_what_was_kept():
    a, b, c = {"a": 1}, {"b": 1}, {"c": 1}
    found, asked, saved = sought({("b",): 2.0}, [a, b, c])
    assert asked == [a, b, b | c, a | b] and found.settings == b
    assert [row.outcome for row in found.tried] == ["no faster", "kept", "no faster", "no faster"]
    assert len(saved) == 8 and "begun" in saved[0] and "begun" not in saved[-1]
    assert "2.00 times as fast, 4 tried" in found.lines()[0]


def test_it_ends_where_time_does_and_goes_on_there():
    changes = [{"a": 1}, {"b": 1}, {"c": 1}]
    found, asked, _ = sought({}, changes, room=2)
    assert asked == changes[:2]
    _, asked, _ = sought({}, changes, found)
    assert asked == changes[2:]


def test_settings_that_ended_a_process_are_not_tried_again_and_those_interrupted_are():
    found = Tuned(tried=[Tried({"a": 1}, "begun")])

    def interrupted(settings):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(found, [{"a": 1}, {"b": 1}], interrupted, lambda: True, lambda: None)
    assert [row.settings for row in found.tried] == [{"a": 1}]


def test_functions_of_the_same_code_around_other_models_are_told_apart():
    def around(model, rows=2):
        cache = torch.zeros(rows)
        return lambda x: model(x) + cache

    small, alike, large = (surroundings_of(around(nn.Linear(8, n))) for n in (2, 2, 4))
    assert small == alike and small != large
    assert small != surroundings_of(around(nn.Linear(8, 2), rows=4))


def test_only_settings_of_this_torch_that_the_user_has_not_set_are_tried(device):
    known = torch._inductor.config.get_config_copy()
    assert all(change.keys() <= known.keys() for change in candidates())
    assert not any("cudagraph" in name for change in candidates() for name in change)
    assert not any("epilogue_fusion" in change for change in candidates(["epilogue_fusion"]))


# ---- what becomes of a call


@on_cpu
def test_what_is_faster_and_equal_is_kept_and_the_rest_named(remembering):
    model, backend = net("cpu"), Compiler()
    graph = tuned(model, backend)
    for _ in range(3):
        x = torch.randn(4, 8)
        torch.testing.assert_close(graph(x), model(x))
    (row,) = graph.stats().graphs
    found = row.tuned
    assert found.settings == {"aggressive_fusion": True} and found.source == "searched"
    assert row.compiled and graph.stats().captures == 1 and graph.stats().compile_s > 0
    why = {name: one.why for one in found.tried for name in one.settings}
    assert "no kernel fits" in why["max_autotune_gemm"]
    assert "differs from eager execution in output 0" in why["epilogue_fusion"]
    assert backend.given[0] == {} and {"aggressive_fusion": True} in backend.given
    assert "aggressive_fusion=True (searched)" in str(graph.stats())
    json.dumps(graph.stats().to_dict())

    again = Compiler()
    other = tuned(model, again)
    torch.testing.assert_close(other(x), model(x))
    assert again.given == [{"aggressive_fusion": True}], "compiled once, and nothing searched"
    assert other.stats().graphs[0].tuned.source == "disk"
    assert outcomes(other) == outcomes(graph)


@on_cpu
def test_another_weight_is_no_new_search_and_no_new_compilation():
    model, backend = net("cpu"), Compiler()
    graph, x = tuned(model, backend), torch.randn(4, 8)
    graph(x)
    count = len(backend.given)
    model[0].weight = nn.Parameter(torch.randn(16, 8))
    for _ in range(2):
        torch.testing.assert_close(graph(x), model(x))
    assert graph.stats().recaptures == 1 and len(backend.given) == count


@on_cpu
def test_one_search_is_for_all_buckets():
    model, backend = net("cpu"), Compiler()
    graph = tuned(model, backend, buckets=[4, 8])
    for size in (3, 7, 4):
        x = torch.randn(size, 8)
        torch.testing.assert_close(graph(x), model(x))
    first, second = graph.stats().graphs
    assert first.tuned is second.tuned and backend.given.count({"aggressive_fusion": True}) == 1


@on_cpu
def test_once_the_seconds_are_spent_other_kinds_of_calls_get_what_was_found_last(remembering):
    model, backend = net("cpu"), Compiler()
    graph = tuned(model, backend)
    graph(torch.randn(4, 8))
    count, graph._dispatcher.builder.compiled.spent = len(backend.given), 600.0
    graph(torch.randn(5, 8))
    assert backend.given[count:] == [{"aggressive_fusion": True}]
    (second,) = (row.tuned for row in graph.stats().graphs if "5" in row.key)
    assert second.source == "another kind" and not second.tried and len(files(remembering)) == 1


@on_cpu
def test_without_seconds_nothing_is_searched(remembering):
    backend = Compiler()
    graph = tuned(net("cpu"), backend, seconds=0)
    graph(torch.randn(4, 8))
    assert backend.given == [{}] and not files(remembering)


@on_cpu
def test_an_interrupt_leaves_what_was_found_before_it():
    model, x = net("cpu"), torch.randn(4, 8)
    backend = Compiler("max_fusion_size", interrupts="aggressive_fusion")
    graph = tuned(model, backend)
    with pytest.raises(KeyboardInterrupt):
        graph(x)
    assert not graph.stats().graphs
    count = len(backend.given)
    for _ in range(2):
        torch.testing.assert_close(graph(x), model(x))
    assert len(backend.given) == count + 1, "the next call compiles, and searches no more"
    assert outcomes(graph) == dict.fromkeys(("max_autotune_gemm", "epilogue_fusion"), "dropped")

    later = Compiler()  # as in another process
    graph = tuned(model, later)
    torch.testing.assert_close(graph(x), model(x))
    assert later.given == [{}, {"aggressive_fusion": True}]
    assert graph.stats().graphs[0].tuned.settings == {"aggressive_fusion": True}


@on_cpu
@pytest.mark.parametrize("late", ["an error", "Ctrl-C"])
def test_what_ends_a_timed_call_leaves_nothing_of_it_in_what_the_function_writes(late):
    def backend(graph, example_inputs, options=None):
        calls = 0

        def run(*args):
            nonlocal calls
            calls += 1
            result = graph.forward(*args)
            if options and calls > 10:
                if late == "an error":
                    raise RuntimeError("late")
                signal.raise_signal(signal.SIGINT)
            return result

        return run

    seen, x = torch.zeros(4), torch.ones(4)
    graph = tuned(lambda x: seen.add_(x) * 2, backend)
    with pytest.raises(KeyboardInterrupt) if late == "Ctrl-C" else nullcontext():
        assert graph(x).tolist() == [2.0] * 4
    for count in range(1, 4):
        assert seen.tolist() == [count] * 4
        assert graph(x).tolist() == [2.0 * count + 2.0] * 4
    assert set(outcomes(graph).values()) == ({"dropped"} if late == "an error" else set())


@on_cpu
def test_no_candidate_begins_if_timing_it_would_take_longer_than_what_is_left():
    given = []

    def slow(graph, example_inputs, options=None):
        given.append(options)
        return lambda *args: (time.sleep(0.1), graph.forward(*args))[1]

    graph = tuned(torch.sin, slow, seconds=2.5)
    graph(torch.randn(4))
    assert given == [None] and not graph.stats().graphs[0].tuned.tried


@on_cpu
def test_settings_on_disk_that_work_no_more_gain_nothing_in_the_report():
    model, x = net("cpu"), torch.randn(4, 8)
    tuned(model, Compiler())(x)
    graph = tuned(model, Compiler(refuses="aggressive_fusion"))
    torch.testing.assert_close(graph(x), model(x))
    found = graph.stats().graphs[0].tuned
    assert "as by default (disk): 1.00 times as fast" in found.lines()[0]
    assert outcomes(graph)["aggressive_fusion"] == "dropped"
    assert "aggressive_fusion=True not used: torch.compile failed" in found.problems[0]


DAMAGED = {
    "no JSON": lambda text: text[: len(text) // 2],
    "a deep list": lambda text: "[" * 100_000,
    "another function": lambda text: text.replace('"code": "1"', '"code": "2"'),
    "another format": lambda text: text.replace("gfxgraph tuned", "gfxgraph recipes"),
    "a setting that nobody searches": lambda text: text.replace("epilogue_fusion", "use_fast_math"),
    "another kind of value": lambda text: text.replace("2.5", '"fast"'),
    "a number without bounds": lambda text: text.replace("7.0", "1" + "0" * 400),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_or_foreign_file_is_named_and_not_used(remembering, caplog, how):
    facts = {"code": "1"}
    row = Tried({"epilogue_fusion": False}, "kept", 2.5, 5.0)
    remember(facts, Tuned(row.settings, [row], 7.0))
    assert remembered(facts) == Tuned(row.settings, [row], 7.0, "disk")
    (file,) = files(remembering)
    text = file.read_text()
    file.write_text(DAMAGED[how](text))
    assert file.read_text() != text
    with caplog.at_level(logging.WARNING, "gfxgraph"):
        found = remembered(facts)
    assert [record.event for record in caplog.records] == ["tuned_file_not_used"]
    assert found.settings == {} and not found.tried and found.seconds == 0
    (problem,) = found.problems
    assert str(file) in problem and "searched anew" in problem


@on_cpu
def test_where_nothing_can_be_written_it_works_and_says_so(remembering):
    (remembering / "gfxgraph").write_text("no folder")
    graph = tuned(torch.sin, Compiler())
    x = torch.randn(4)
    torch.testing.assert_close(graph(x), torch.sin(x))
    problems = graph.stats().graphs[0].tuned.problems
    assert any("was not written, so the next process searches anew" in one for one in problems)
    assert graph.stats().graphs[0].tuned.settings == {"aggressive_fusion": True}


@on_cpu
@pytest.mark.parametrize("level", ["warn", "error"])
def test_on_a_terminal_a_bar_says_what_is_tried_unless_the_log_is_quiet(monkeypatch, level):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    logger = logging.getLogger("gfxgraph")
    monkeypatch.setattr(logger, "level", {"warn": logging.WARNING, "error": logging.ERROR}[level])
    logger.manager._clear_cache()
    graph = tuned(torch.sin, Compiler())
    graph(torch.randn(4))
    logger.manager._clear_cache()
    assert ("aggressive_fusion=True" in terminal.getvalue()) == (level == "warn")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"compile": {"mode": "tuned", "seconds": -1}}, "seconds=-1: expected a number of seconds"),
        ({"compile": {"mode": "tuned", "seconds": True}}, "seconds=True: expected"),
        ({"compile": {"mode": "tuned", "seconds": 10**400}}, "expected a number of seconds"),
        ({"compile": {"mode": "default", "seconds": 1}}, 'torch.compile says.*adds mode="tuned"'),
        ({"compile": "tuned", "verify": False}, "verify=False.: expected True or a tolerance"),
        ({"mode": "tuned", "measure": False}, "a search measures"),
        ({"compile": {"mode": "tuned", "options": {"triton.cudagraphs": True}}}, "cudagraphs"),
    ],
    ids=str,
)
def test_an_option_of_the_wrong_kind_is_refused(options, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        (gfxgraph.graphed if "compile" in options else gfxgraph.compile)(torch.sin, **options)


# ---- with Inductor


IN_A_PROCESS = """
import torch, gfxgraph
def f(x):
    return (x.sin() * 2 + x).sum(-1)
graph = gfxgraph.graphed(f, compile="tuned")
x = torch.randn(8, 64, device=gfxgraph.device_type())
with gfxgraph.compile_log() as log:
    for _ in range(3):
        torch.testing.assert_close(graph(x), f(x))
(row,) = graph.stats().graphs
print(row.tuned.source, len(log.compilations), len(row.tuned.tried), row.tuned.settings)
"""


@pytest.mark.long
@pytest.mark.skipif(
    not HAS_GPU and shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="Inductor needs a C++ compiler on a machine without a GPU",
)
def test_the_next_process_reads_what_inductor_was_found_to_do_best(remembering):
    here = {"TORCHINDUCTOR_CACHE_DIR": str(remembering)}
    source, compiled, tried, settings = printed(IN_A_PROCESS, **here).split(" ", 3)
    assert source == "searched" and int(compiled) > int(tried) >= len(candidates())
    (file,) = files(remembering)
    before = file.read_bytes()
    assert printed(IN_A_PROCESS, **here) == f"disk 1 {tried} {settings}"
    assert file.read_bytes() == before


@pytest.mark.gpu
def test_on_a_gpu_replays_of_graphs_are_timed_and_the_fastest_kept():
    layers = [nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 512)]
    model = nn.Sequential(*layers).cuda().bfloat16().eval()
    graph = gfxgraph.graphed(model, compile={"mode": "tuned", "seconds": 30}, fallback="raise")
    for _ in range(4):
        x = torch.randn(1, 512, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(graph(x), model(x), rtol=4e-2, atol=4e-2)
    (row,) = graph.stats().graphs
    assert row.tuned.tried and all(one.outcome != "begun" for one in row.tuned.tried)
    assert all(one.us for one in row.tuned.tried if one.outcome != "dropped")
    assert len(graph.stats().graphs) == 1 and graph.stats().captures == 1


@pytest.mark.gpu
def test_on_a_gpu_inductor_clears_more_than_the_cache_before_what_it_times():
    from torch._inductor.runtime.benchmarking import benchmarker

    size = torch.cuda.get_device_properties(0).L2_cache_size
    with timed_without_gaps(), timed_without_gaps():
        free, _ = torch.cuda.mem_get_info(0)
        assert size < benchmarker.L2_cache_size <= 8 * size or free < 8 * size
    assert benchmarker.L2_cache_size == size
