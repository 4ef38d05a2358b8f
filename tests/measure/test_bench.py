"""``bench`` measures what a graph gains, and says when it cannot."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import gfxgraph
from gfxgraph.cli import app
from gfxgraph.errors import ArgumentError
from gfxgraph.measure.report import BenchReport
from gfxgraph.measure.timing import Percentiles, median_interval

pytestmark = pytest.mark.usefixtures("one_thread")


def layers(device, count=3, width=16):
    torch.manual_seed(0)
    parts = [nn.Linear(width, width) for _ in range(count)]
    return nn.Sequential(*parts).to(device).eval(), torch.randn(4, width, device=device)


def measured(device, **options):
    model, x = layers(device)
    return gfxgraph.bench(model, x, **{"ways": ["graph"], "seconds": 0.2, **options})


def test_each_way_is_a_row_with_times_and_a_speedup_against_eager(device):
    report = measured(device)
    assert [way.name for way in report.ways] == ["eager", "graph"]
    for way in report.ways:
        assert way.status == "ok" and way.calls > 0 and way.relative_error == 0.0
        assert 0 < way.host_us.p50 <= way.end_to_end_us.p50 <= way.end_to_end_us.p99
        assert way.speedup.low <= way.speedup.median <= way.speedup.high
        assert way.ready_s >= way.first_call_s > 0
    eager = report["eager"].speedup
    assert (eager.low, eager.median, eager.high) == (1, 1, 1)
    assert report.arguments == (f"input=float32{[4, 16]}",)


def test_without_a_gpu_the_verdict_says_that_times_mean_nothing():
    if gfxgraph.device_type() == "cuda":
        pytest.skip("there is a GPU")
    report = measured("cpu")
    assert report.emulated and "say nothing of a GPU" in report.verdict
    assert report["graph"].activity is None and report["graph"].idle is None


def test_ways_that_need_a_gpu_say_so_without_one():
    if gfxgraph.device_type() == "cuda":
        pytest.skip("there is a GPU")
    report = measured("cpu", ways=["reduce-overhead", "make_graphed_callables"])
    assert {way.name: (way.status, way.note) for way in report.ways[1:]} == {
        "reduce-overhead": ("raises", "it needs a GPU"),
        "make_graphed_callables": ("raises", "it needs a GPU"),
    }


def test_a_function_that_has_no_graph_is_told_with_the_reason(device):
    def act(x):
        return x + random.random()

    report = gfxgraph.bench(act, torch.ones(3, device=device), ways=["graph"], seconds=0.1)
    row = report["graph"]
    assert row.status == "eager" and "draws" in row.note and row.speedup is None
    assert row.note in str(report).replace("\n  ", " ")


class Recurrent(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.register_buffer("h", torch.zeros(4, device=device))
        self.steps = 0

    def forward(self, x):
        self.h += x
        self.steps += 1
        return self.h * 2


def test_what_the_function_changes_is_put_back(device):
    model = Recurrent(device)
    x = torch.ones(4, device=device)
    random.seed(3)
    before = torch.random.get_rng_state(), random.getstate()
    report = gfxgraph.bench(model, x, ways=["graph"], seconds=0.1)
    assert report.changes_state and report["graph"].status == "ok"
    assert model.h.tolist() == [0] * 4 and model.steps == 0
    assert x.tolist() == [1] * 4
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()


def test_arguments_that_it_writes_are_copies(device):
    def scaled(x):
        return x.mul_(2)

    x = torch.ones(3, device=device)
    report = gfxgraph.bench(scaled, x, ways=["graph"], seconds=0.1)
    assert x.tolist() == [1, 1, 1] and report.changes_state
    assert report["graph"].status == "ok"


def test_an_error_of_the_function_is_its_callers(device):
    def fails(x):
        raise KeyError("no such weight")

    with pytest.raises(KeyError, match="no such weight"):
        gfxgraph.bench(fails, torch.ones(3, device=device))


def test_a_graphed_function_is_the_way_graph_with_its_own_options(device):
    model, x = layers(device)
    mine = gfxgraph.graphed(model, outputs="view")
    report = gfxgraph.bench(mine, x, ways=["graph"], seconds=0.1)
    assert report["graph"].status == "ok" and report["eager"].status == "ok"
    assert mine.stats().captures == 1  # and it still has its graph


def test_calls_of_many_sizes_compare_graphs_buckets_and_eager(device):
    model, _ = layers(device)
    sizes = [1, 4, 4, 9, 4, 12, 1, 30]
    traffic = [(torch.randn(n, 16, device=device),) for n in sizes]
    report = gfxgraph.bench(model, traffic[1][0], ways=["graph"], seconds=0.1, traffic=traffic)
    rows = {row.name: row for row in report.traffic}
    assert list(rows) == ["eager", "graph", "buckets"]
    assert all(row.status == "ok" for row in rows.values())
    assert rows["graph"].captures == 5  # one for each size
    assert rows["buckets"].captures <= 4 and rows["buckets"].padding > 0
    assert rows["eager"].padding == 0
    assert "many sizes" in str(report)


@pytest.mark.parametrize(
    ("traffic", "words"),
    [
        ([], "there are no calls"),
        ("abc", "expected tuples"),
        ([torch.ones(2, 16)], "expected a tuple"),
        ([(torch.ones(2, 16),), (torch.ones(2, 16),)], "all have one"),
        ([(torch.ones(2, 16),), (torch.ones(3, 4, 16),)], "numbers of dimensions"),
        ([(torch.ones(2, 16),), (torch.ones(3, 8),)], "two dimensions that change"),
    ],
)
def test_traffic_that_cannot_be_compared_is_refused_before_any_work(traffic, words):
    model, x = layers("cpu")
    with pytest.raises(ArgumentError, match=words):
        gfxgraph.bench(model, x, traffic=traffic)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ways": ["fast"]}, "'fast' is no way; expected some of eager, graph"),
        ({"ways": "graph"}, "expected names"),
        ({"ways": 3}, "expected names"),
        ({"seconds": 0}, "above 0"),
        ({"seconds": math.nan}, "above 0"),
        ({"seconds": True}, "above 0"),
        ({"kwargs": {1: 2}}, "keyword arguments"),
    ],
)
def test_wrong_options_are_named(options, words):
    model, x = layers("cpu")
    with pytest.raises(ArgumentError, match=words):
        gfxgraph.bench(model, x, **options)


def test_wrong_functions_and_arguments_are_named():
    model, _ = layers("cpu")
    with pytest.raises(ArgumentError, match="no tensor among the arguments"):
        gfxgraph.bench(lambda n: n, 3)
    with pytest.raises(ArgumentError, match="meta device"):
        gfxgraph.bench(model, torch.ones(2, 16, device="meta"))
    with pytest.raises(ArgumentError, match=r"bench\(fn\)"):
        gfxgraph.bench(3, torch.ones(2))
    with pytest.raises(ArgumentError, match="Sequential"):
        gfxgraph.bench(model)


def test_a_report_is_the_same_after_json(device, tmp_path):
    model, _ = layers(device)
    traffic = [(torch.randn(n, 16, device=device),) for n in (1, 4, 2)]
    report = gfxgraph.bench(model, *traffic[0], ways=["graph"], seconds=0.1, traffic=traffic)
    report.to_json(tmp_path / "bench.json")
    again = BenchReport.from_json(tmp_path / "bench.json")
    assert again == report and again.verdict == report.verdict
    data = json.loads((tmp_path / "bench.json").read_text())
    assert data["schema"] == "gfxgraph.bench/1" and data["verdict"] == report.verdict


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("[1]", "whose schema is"),
        ('{"schema": "other/1"}', "not 'other/1'"),
        ('{"schema": "gfxgraph.bench/1", "ways": [3]}', "damaged"),
        ('{"schema": "gfxgraph.bench/1", "ways": []}', "damaged"),
    ],
)
def test_a_foreign_file_is_no_report(tmp_path, text, words):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        BenchReport.from_json(path)
    with pytest.raises(ArgumentError, match="cannot be read"):
        BenchReport.from_json(tmp_path / "missing.json")


def test_the_interval_of_a_median_holds_it_in_95_of_100_cases():
    draws = random.Random(1)
    inside = 0
    for _ in range(1000):
        found = median_interval([draws.lognormvariate(0, 1) for _ in range(25)])
        inside += found.low <= 1 <= found.high
    assert inside >= 940
    few = median_interval([3.0, 1.0, 2.0])
    assert (few.low, few.median, few.high) == (1, 2, 3)


def test_percentiles_are_values_that_were_seen():
    found = Percentiles.of([float(n) for n in range(1, 101)])
    assert (found.p50, found.p95, found.p99) == (50, 95, 99)
    assert Percentiles.of([7.0]) == Percentiles(7, 7, 7)


MODULE = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
def fails(x):
    raise ValueError("a weight is missing")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "benched.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_command_prints_a_table_writes_json_and_compares(folder):
    usual = ("benched:model", "float32[N,8]", "--way", "graph", "--seconds", "0.1")
    found = run(*usual, "--shapes", "N=2:3,1,5", "--calls", "8", "--out", "new.json")
    assert found.exit_code == 0, found.output
    assert "many sizes" in found.stdout and "graph" in found.stdout
    assert len(BenchReport.from_json("new.json").traffic) == 3
    usual = ("benched:model", "float32[2,8]", "--way", "graph", "--seconds", "0.1")
    found = run(*usual, "--compare", "new.json")
    assert found.exit_code == 0 and "after / before" in found.stdout
    found = run(*usual, "--json")
    assert json.loads(found.stdout)["schema"] == "gfxgraph.bench/1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["benched:fails", "float32[2,8]"], "a weight is missing"),
        (["benched:gone", "float32[2,8]"], "cannot be loaded"),
        (["benched:model", "float32[2,8]", "--way", "fast"], "'fast' is no way"),
        (["benched:model", "float32[2,8]", "--seconds", "-1"], "above 0"),
        (["benched:model", "float32[2,8]", "--compare", "gone.json"], "gone.json"),
        (["benched:model", "float32[2,8]", "--out", "no/such/folder.json"], "no folder"),
        (["benched:model", "float32[2,8]", "--shapes", "N=1,2"], "no size of an argument"),
        (["benched:model", "float32[N,8]", "--shapes", "N=1"], "at least two sizes"),
        (["benched:model", "float32[N,8]", "--shapes", "N=1:0,2:0"], "at least two sizes"),
        (["benched:model", "float32[N,8]", "--shapes", "N=-1,2"], "at least two sizes"),
        (["benched:model", "input=float32[N,8]", "--shapes", "N=1,2"], "positional"),
    ],
)
def test_the_command_ends_with_status_2_and_says_what_was_wrong(folder, arguments, words):
    found = run(*arguments)
    assert found.exit_code == 2 and words in found.output
    assert "Traceback" not in found.output


@pytest.mark.gpu
def test_busy_time_and_idle_share_agree_with_the_profilers_kernels():
    model, x = layers("cuda", count=24, width=512)
    report = gfxgraph.bench(model, x, ways=["graph"], seconds=2)
    for way in report.ways:
        seen = way.activity
        assert seen.kernels >= 24
        assert seen.busy_us == pytest.approx(seen.kernels_us, rel=0.03)  # one stream
        assert way.idle == pytest.approx(1 - seen.busy_us / way.end_to_end_us.p50, abs=1e-3)
    assert report["graph"].activity.launches < report["eager"].activity.launches
    assert "worth it" in report.verdict and "idle" in report.verdict


@pytest.mark.gpu
def test_every_way_runs_on_a_gpu():
    model, x = layers("cuda")
    every = ["graph", "compile", "reduce-overhead", "compile+graph", "make_graphed_callables"]
    report = gfxgraph.bench(model, x, ways=every, seconds=1)
    assert {way.name: way.status for way in report.ways} == dict.fromkeys(["eager", *every], "ok")
    assert report["graph"].held_bytes > 0
    assert next(model.parameters()).requires_grad  # and forward is the module's own
    assert "forward" not in vars(model)
