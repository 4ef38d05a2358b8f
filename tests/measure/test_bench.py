"""``bench`` measures what a graph gains, and says when it cannot."""

from __future__ import annotations

import dataclasses
import gc
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
from gfxgraph.measure.report import BenchReport, WayReport
from gfxgraph.measure.timing import (
    Interval,
    Percentiles,
    Samples,
    in_turn,
    median_interval,
    speedup,
)

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


def step_into_cache(device):
    """A decoder's step: its cache has room for few calls, and the position is on the device."""
    cache, position = torch.zeros(12, 4, device=device), torch.zeros(1, dtype=int, device=device)

    def step(x):
        cache.index_copy_(0, position, x)
        position.add_(1)
        return cache.sum(0)

    return step, cache


def test_a_cache_with_room_for_few_calls_is_not_overrun(device):
    step, cache = step_into_cache(device)
    report = gfxgraph.bench(step, torch.ones(1, 4, device=device), ways=["graph"], seconds=0.01)
    assert report["graph"].status == "ok" and report["graph"].calls > 12
    assert not cache.any()
    traffic = [(torch.ones(1, n, device=device),) for n in (2, 3) * 7]
    seen = torch.zeros(1, device=device)

    def index(x):
        cache.index_copy_(0, seen.long(), x.sum().expand(1, 4))
        seen.add_(1)
        return x * 2

    report = gfxgraph.bench(index, *traffic[0], ways=[], seconds=0.01, traffic=traffic)
    assert report.traffic[0].status == "ok" and not seen.any()


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(0, 4)

    def forward(self, x):
        self.seen = torch.cat([self.seen, x])
        return self.seen.sum(0)


def test_calls_of_a_kind_of_their_own_each_are_no_times_of_a_graph():
    report = gfxgraph.bench(Grows(), torch.ones(1, 4), ways=["graph"], seconds=0.01)
    row = report["graph"]
    assert row.status == "eager" and row.speedup is None and not row.calls
    assert "dimension 0 of Grows.seen differs in every call" in row.note


def test_a_list_that_the_function_appends_to_is_as_given_in_each_call(device):
    def act(x, outputs):
        outputs.append(x * 2)
        return x + len(outputs)

    outputs, mine = [], gfxgraph.graphed(act)
    report = gfxgraph.bench(
        mine, torch.ones(2, device=device), outputs, ways=["graph"], seconds=0.01
    )
    assert report.changes_state and outputs == []
    assert report["graph"].status == "ok" and mine.stats().captures == 1


def test_a_state_object_whose_graph_needs_more_than_three_calls_has_one(device):
    def act(state, x):
        state.y = state.x * 2 + x
        state.x.add_(1)
        return state.y

    x = torch.ones(2, device=device)
    report = gfxgraph.bench(act, State(x), x, ways=["graph"], seconds=0.01)
    assert report["graph"].status == "ok"
    assert x.tolist() == [1, 1]


class State:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    "make", [torch.Tensor.to_sparse, lambda x: torch.nested.nested_tensor([x], layout=torch.jagged)]
)
def test_a_tensor_that_cannot_be_compared_is_refused(make):
    with pytest.raises(ArgumentError, match=r"layout|nested"):
        gfxgraph.bench(lambda x: x * 2, make(torch.ones(2, 2)), seconds=0.01)


def test_a_function_whose_own_calls_differ_is_measured_and_says_so(device):
    given = iter(range(1, 10**6))

    def act(x):
        return x * next(given)

    row = gfxgraph.bench(act, torch.ones(2, device=device), ways=[], seconds=0.01)["eager"]
    assert row.status == "ok" and row.speedup
    assert "its own calls differ" in row.note and "advances given" in row.note


class Tables(nn.Module):
    """Makes a table for each size when it first comes, as models do for positions."""

    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.arange(4.0, device=x.device)
        return x * self.tables[len(x)]


def test_what_a_first_call_makes_for_all_others_is_made_once(device):
    model = Tables()
    traffic = [(torch.ones(n, 4, device=device),) for n in (1, 2, 1, 2)]
    report = gfxgraph.bench(model, *traffic[0], ways=["graph"], seconds=0.01, traffic=traffic)
    assert report["graph"].status == "ok" and not report["graph"].note
    assert report.traffic[1].captures == 2 and report.traffic[1].eager_calls == 0
    assert model.tables == {}


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


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @gfxgraph.graphed
    def act(self, x):
        return self.layer(x)


def test_a_decorated_method_is_the_way_graph_and_eager_is_without_it(device):
    policy = Policy().to(device)
    x = torch.ones(2, 4, device=device)
    report = gfxgraph.bench(policy.act, x, ways=["graph"], seconds=0.01)
    assert report["graph"].status == "ok"
    replays = policy.act.stats().replays
    assert replays >= report["graph"].calls
    gfxgraph.bench(policy.act, x, ways=[], seconds=0.01)
    assert policy.act.stats().replays == replays  # eager has made none


def test_a_pool_is_refused_since_it_has_no_eager_function(device):
    pool = gfxgraph.ShapeBucketPool(model_fn=lambda x: x * 2, buckets=[4])
    with pytest.raises(ArgumentError, match="not a pool"):
        gfxgraph.bench(pool, torch.ones(2, 4, device=device))


@dataclasses.dataclass
class Sums:
    x: torch.Tensor
    count: int = 0


def test_a_dataclass_that_the_function_writes_is_as_given_in_each_call(device):
    def act(sums):
        sums.x = sums.x + 1
        sums.count += 1
        return sums.x * sums.count

    sums = Sums(torch.ones(2, device=device))
    report = gfxgraph.bench(act, sums, ways=["graph"], seconds=0.01)
    assert report.changes_state and report["graph"].status == "ok"
    assert sums.count == 0 and sums.x.tolist() == [1, 1]


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
        ([(torch.ones(2, 16),), (torch.ones(0, 16),)], "size 0"),
        ([(torch.ones(2, 16),), (torch.ones(3, 16).half(),)], "various dtypes"),
        ([(torch.ones(2, 16),), (torch.ones(3, 16, device="meta"),)], "meta device"),
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
        ({"progress": 3}, "expected a function"),
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
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_foreign_file_is_no_report(tmp_path, text, words):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        BenchReport.from_json(path)
    with pytest.raises(ArgumentError, match="cannot be read"):
        BenchReport.from_json(tmp_path / "missing.json")


@pytest.mark.parametrize("number", [0, "12", None, math.nan, -1.0])
def test_a_report_with_a_time_that_is_none_is_damaged(tmp_path, number):
    way = WayReport("eager", "ok", end_to_end_us=Percentiles(1, 1, 1), speedup=Interval(1, 1, 1))
    report = BenchReport("act", (), "a device", True, "2.13", "0.1", 1.0, False, (way,))
    data = report.to_dict()
    data["ways"][0]["end_to_end_us"]["p50"] = number
    (tmp_path / "old.json").write_text(json.dumps(data))
    with pytest.raises(ArgumentError, match="damaged"):
        BenchReport.from_json(tmp_path / "old.json")


def test_a_way_that_is_faster_by_a_little_is_not_called_slower_than_eager():
    ways = [
        WayReport(name, "ok", end_to_end_us=Percentiles(us, us, us), speedup=gain)
        for name, us, gain in (
            ("eager", 100.0, Interval(1, 1, 1)),
            ("compile", 96.0, Interval(1.04, 1.02, 1.06)),
        )
    ]
    report = BenchReport("act", (), "a GPU", False, "2.13", "0.1", 1.0, False, tuple(ways))
    assert report.fastest.name == "compile"
    assert "compile is 1.04 times as fast" in report.verdict


def test_the_interval_of_a_median_holds_it_in_95_of_100_cases():
    draws = random.Random(1)
    inside = 0
    for _ in range(1000):
        found = median_interval([draws.lognormvariate(0, 1) for _ in range(25)])
        inside += found.low <= 1 <= found.high
    assert inside >= 940
    few = median_interval([3.0, 1.0, 2.0])
    assert (few.low, few.median, few.high) == (1, 2, 3)


def test_a_speedup_is_that_of_calls_that_the_machine_disturbs_least():
    """Here it makes a share of the calls twice as long; eager takes 2 of what the way takes."""
    draws = random.Random(1)

    def calls(us: float, disturbed: float) -> list[float]:
        slow = [2.0 if draws.random() < disturbed else 1.0 for _ in range(40)]
        return [us * how * draws.uniform(1.0, 1.02) for how in slow]

    for disturbed in (0.0, 0.5, 0.8):
        eager = Samples(total=[calls(200.0, disturbed) for _ in range(20)])
        ours = Samples(total=[calls(100.0, 0.1) for _ in range(20)])
        found = speedup(eager, ours)
        assert 1.98 < found.low <= found.median <= found.high < 2.02
        assert speedup(ours, ours) == Interval(1, 1, 1)


def test_a_speedup_of_few_calls_is_that_of_their_faster_half():
    eager, ours = (Samples(total=[[us, 2 * us, 9 * us]]) for us in (4.0, 1.0))
    assert speedup(eager, ours) == Interval(4, 4, 4)


def test_the_interval_of_a_speedup_holds_it_in_95_of_100_cases():
    draws = random.Random(1)

    def measured(us: float) -> Samples:
        return Samples(
            total=[
                [us * draws.uniform(1, 1.1) * how for _ in range(8)]
                for how in (draws.uniform(1, 1.3) for _ in range(60))
            ]
        )

    inside = [
        found.low <= 2 <= found.high
        for found in (speedup(measured(200.0), measured(100.0)) for _ in range(60))
    ]
    assert sum(inside) >= 54


def test_it_is_measured_up_to_three_times_as_long_until_it_is_precise():
    for needed in (1, 2, 5):
        asked = []

        def is_precise(samples, asked=asked, needed=needed):
            asked.append(len(samples["one"].total))
            return len(asked) >= needed

        in_turn({"one": lambda: None}, lambda: None, 1e-9, is_precise=is_precise)
        assert len(asked) == min(needed, 2)
        assert asked == sorted(asked)


def test_a_speedup_compares_calls_with_those_of_the_same_step():
    """A step that is short, such as the first with a cache, does not stand for the others."""
    eager = Samples(total=[[1.0, 100.0] * 10] * 10)
    ours = Samples(total=[[1.0, 50.0] * 10] * 10)
    assert round(speedup(eager, ours, steps=2).median, 3) == round(101 / 51, 3)


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


@pytest.mark.long
def test_the_command_prints_a_table_writes_json_and_compares(folder):
    usual = ("benched:model", "float32[N,8]", "--way", "graph", "--seconds", "0.1")
    found = run(*usual, "--shapes", "N=2:3,1,5", "--calls", "8", "--out", "new.json")
    assert found.exit_code == 0, found.output
    assert "many sizes" in found.stdout and "graph" in found.stdout
    assert len(BenchReport.from_json("new.json").traffic) == 3
    usual = ("benched:model", "float32[2,8]", "--way", "graph", "--seconds", "0.1")
    found = run(*usual, "--compare", "new.json")
    assert found.exit_code == 0 and "after / before" in found.stdout
    assert "The older report is of Sequential(input=float32[2, 8])" not in found.stdout
    found = run("benched:model", "float32[3,8]", *usual[2:], "--json", "--compare", "new.json")
    data = json.loads(found.stdout)
    assert data["schema"] == "gfxgraph.bench/1"
    assert [change["name"] for change in data["changes"]] == ["eager", "graph"]


def test_what_was_measured_is_printed_even_if_it_cannot_be_kept_or_compared(folder):
    usual = ("benched:model", "--way", "eager", "--seconds", "0.01")
    assert run(*usual, "float32[2,8]", "--out", "old.json").exit_code == 0
    found = run(*usual, "float32[3,8]", "--compare", "old.json", "--out", "/dev/full")
    assert found.exit_code == 2 and "cannot be written" in found.stderr
    assert "after / before" in found.stdout
    assert "The older report is of Sequential(input=float32[2, 8])" in found.stdout


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
        (["benched:model", "float32[N,8]", "--shapes", "N=1,2:0"], "at least two sizes"),
        (["benched:model", "float32[N,8]", "--shapes", f"N=1:{'9' * 400},2"], "at least two"),
        (["benched:model", "float32[N,8]", "--shapes", "N=1:99999,2", "--calls", "2"], "more --"),
        (["benched:model", "float32[2,8]", "--calls", "5"], "--shapes too"),
        (["benched:model", "float32[2,8]", "--out", "."], "is a folder"),
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


def _graphs():
    return sum(issubclass(type(item), torch.cuda.CUDAGraph) for item in gc.get_objects())


@pytest.mark.gpu
def test_every_way_runs_on_a_gpu():
    model, x = layers("cuda")
    every = ["graph", "compile", "reduce-overhead", "compile+graph", "make_graphed_callables"]
    report = gfxgraph.bench(model, x, ways=every, seconds=1)
    left = _graphs()
    gc.collect()
    assert _graphs() == left  # else they would go in the middle of somebody's capture
    assert {way.name: way.status for way in report.ways} == dict.fromkeys(["eager", *every], "ok")
    assert report["graph"].held_bytes > 0
    assert next(model.parameters()).requires_grad  # and forward is the module's own
    assert "forward" not in vars(model)
