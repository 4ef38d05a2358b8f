"""``trace`` shows what host and device do in a call, each way, and from which line."""

from __future__ import annotations

import functools
import json
import os
import random
import select
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import _profiler_enabled

import gfxgraph
from gfxgraph.errors import ArgumentError
from gfxgraph.interpose.source import Source
from gfxgraph.measure.chrome import require_writable, write
from gfxgraph.measure.kineto import CALL, MARK, RETURNS, calls_in
from gfxgraph.measure.lines import Operation, Recorded, lines_of, recorded
from gfxgraph.measure.report import WayReport
from gfxgraph.measure.timing import Percentiles
from gfxgraph.measure.trace import _activity, _gaps, _Known, _timeline, _Way
from gfxgraph.measure.trace_report import TraceReport
from tests.helpers.command import gfxgraph_command, importable

pytestmark = pytest.mark.usefixtures("one_thread")

HERE = Path(__file__).name


class TwoLayers(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        y = self.first(x)
        y = torch.relu(y)
        return self.second(y)


FIRST = TwoLayers.forward.__code__.co_firstlineno + 1


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A report of two layers, and the file of its trace."""
    device = gfxgraph.device_type()
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    x = torch.randn(4, 16, device=device)
    return gfxgraph.trace(TwoLayers().to(device).eval(), x, seconds=0.01, chrome=path), path


# The events of Kineto, by hand. Microseconds; the names of categories and arguments are Kineto's.


def host(category, name, start, us, thread=7, **args):
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start}
    return {**event, "dur": us, "args": args}


def on_device(category, name, start, us, correlation, stream=7, **args):
    args = {"device": 0, "stream": stream, "correlation": correlation, **args}
    event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start}
    return {**event, "dur": us, "args": args}


def call(start, us, returns):
    return [
        host("user_annotation", CALL, start, us),
        host("user_annotation", RETURNS, start, returns),
    ]


def launch(start, correlation, name="cudaLaunchKernel"):
    return host("cuda_runtime", name, start, 2, correlation=correlation)


EAGER = [
    *call(100, 100, 40),
    launch(110, 1),
    launch(120, 2),
    launch(130, 3, "cudaMemcpyAsync"),
    on_device("kernel", "gemm", 120, 20, 1),
    on_device("kernel", "relu", 130, 20, 2, stream=8),  # beside the other for 10 us
    on_device("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 160, 10, 3, bytes=64),
    # None of these is work of the device.
    on_device("gpu_user_annotation", CALL, 100, 100, 4),
    host("cuda_runtime", "cudaStreamSynchronize", 140, 60, correlation=5),
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
]


def test_time_in_which_kernels_run_side_by_side_is_busy_once():
    (one,) = calls_in(EAGER)
    assert (one.start_us, one.returns_us, one.end_us) == (100, 140, 200)
    assert one.busy() == [(120, 150), (160, 170)]
    assert sum(work.us for work in one.work) == 50
    assert one.launches == 3 and one.graph_launches == 0


def test_gaps_are_times_in_which_no_stream_works():
    gaps = _gaps(calls_in(EAGER))
    assert (gaps.count, gaps.median_us, gaps.total_us, gaps.longest_us) == (1, 10, 10, 10)
    assert gaps.before_us == 20


@pytest.mark.parametrize(
    ("name", "direction", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "pageable"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", "pinned"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", ""),
        ("Memcpy PtoP (Device -> Device)", "PtoP", ""),
        ("Memcpy HtoD (Host -> Device)", "HtoD", ""),  # ROCm
        ("CopyHostToDevice", "HtoD", ""),
        ("CopyDeviceToHost", "DtoH", ""),
        ("Memcpy", "", ""),
    ],
)
def test_a_copy_has_a_direction(name, direction, memory):
    (one,) = calls_in(
        [*call(0, 99, 9), launch(1, 1), on_device("gpu_memcpy", name, 5, 2, 1, bytes=8)]
    )
    (work,) = one.work
    assert (work.direction, work.memory, work.bytes) == (direction, memory, 8)


GRAPH = [
    *call(1000, 60, 10),
    launch(1001, 20, "cudaMemcpyAsync"),
    launch(1003, 21, "cudaGraphLaunch"),
    on_device("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 1005, 1, 20, bytes=64),
    on_device("kernel", "gemm", 1010, 20, 21),
    on_device("kernel", "relu", 1031, 5, 21),
    on_device("kernel", "gemm", 1037, 20, 21),
    # Of the next call, whose own range is not in this trace.
    launch(1090, 22, "cudaGraphLaunch"),
    on_device("kernel", "gemm", 1095, 20, 22),
]


def test_all_kernels_of_a_graph_have_one_launch():
    (one,) = calls_in(GRAPH)
    assert (one.launches, one.graph_launches) == (2, 1)
    assert [(work.name, work.in_graph) for work in one.work[1:]] == [
        ("gemm", True),
        ("relu", True),
        ("gemm", True),
    ]
    assert not one.work[0].in_graph  # the copy of an argument


def test_events_of_hip_are_read_alike():
    (one,) = calls_in(
        [
            *call(0, 90, 10),
            host("cuda_runtime", "hipMemcpyWithStream", 1, 2, correlation=1, size="2560"),
            launch(4, 2, "hipGraphLaunch"),
            launch(8, 3, "hipExtModuleLaunchKernel"),
            on_device("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 5, 2, 1),
            on_device("kernel", "Cijk_gemm", 10, 5, 2),
            on_device("kernel", "norm", 16, 5, 3),
        ]
    )
    assert (one.launches, one.graph_launches) == (3, 1)
    assert [work.in_graph for work in one.work] == [False, True, False]
    assert one.work[0].bytes == 2560


def test_work_that_began_after_the_call_returned_is_the_calls():
    (one,) = calls_in(GRAPH)
    assert all(work.start_us > one.returns_us for work in one.work[2:])


def test_a_kernel_belongs_to_the_operation_around_its_launch():
    (one,) = calls_in(
        [
            *call(0, 99, 50),
            host("user_annotation", f"{MARK}4", 10, 10),
            host("cpu_op", "aten::addmm", 11, 8, **{"External id": 70}),
            host("cpu_op", "aten::expand", 12, 1, **{"External id": 71}),
            launch(14, 1),
            launch(30, 2),  # outside of any operation
            host("user_annotation", f"{MARK}5", 40, 5, thread=8),
            launch(41, 3),  # at the time of an operation of another thread
            on_device("kernel", "gemm", 20, 5, 1, **{"External id": 70}),
            on_device("kernel", "mine", 35, 5, 2),
            on_device("kernel", "other", 45, 5, 3),
        ]
    )
    assert [(work.name, work.mark) for work in one.work] == [
        ("gemm", 4),
        ("mine", None),
        ("other", None),
    ]
    assert one.operators == [(4, "aten::addmm", 8)]


def marked(*names_and_lines, streams=(7,)):
    """What a recorded run ran: its kernels, with their lines."""
    (one,) = calls_in(
        [
            *call(0, 1000, 900),
            *(launch(n + 1, n) for n in range(len(names_and_lines))),
            *(
                on_device(
                    "gpu_memcpy" if name.startswith("Memcpy") else "kernel",
                    name,
                    10 * n + 10,
                    5,
                    n,
                    stream=streams[n % len(streams)],
                )
                for n, (name, _) in enumerate(names_and_lines)
            ),
        ]
    )
    lines = [None if line is None else Source("m.py", line, "act") for _, line in names_and_lines]
    return list(zip(one.work, lines, strict=True))


def in_graph(*names):
    (one,) = calls_in(
        [
            *call(0, 1000, 900),
            launch(1, 1, "cudaGraphLaunch"),
            *(
                on_device(
                    "gpu_memcpy" if name.startswith("Memcpy") else "kernel",
                    name,
                    10 * n + 10,
                    5,
                    1,
                )
                for n, name in enumerate(names)
            ),
        ]
    )
    return one.work


def numbers(lines):
    return [line and line.line for line in lines]


def test_equal_kernels_in_equal_order_have_the_same_lines():
    known = marked(("gemm", 3), ("relu", 4), ("gemm", 5))
    assert numbers(lines_of(in_graph("gemm", "relu", "gemm"), known)) == [3, 4, 5]


def test_where_the_kernels_differ_no_line_is_guessed():
    known = marked(("gemm", 3), ("relu", 4), ("gemm", 5))
    assert numbers(lines_of(in_graph("gemm", "gemm"), known)) == [None, None]
    assert numbers(lines_of(in_graph("gemm", "gemm", "relu"), known)) == [None, None, 4]
    assert numbers(lines_of(in_graph("gemm", "relu", "relu"), known)) == [None, None, None]
    assert numbers(lines_of(in_graph("fused"), known)) == [None]


def test_a_constant_that_a_graph_does_not_copy_costs_no_kernel_its_line():
    known = marked(("Memcpy HtoD", 2), ("gemm", 3), ("gemm", 5), ("Memcpy DtoD", 6))
    found = in_graph("gemm", "gemm", "Memcpy DtoD")
    assert numbers(lines_of(found, known)) == [3, 5, 6]


def test_kernels_of_two_streams_come_in_any_order_in_a_graph():
    known = marked(("gemm", 3), ("relu", 4), ("gemm", 5), ("norm", 6), streams=(7, 8))
    found = in_graph("gemm", "relu", "gemm", "norm")
    assert numbers(lines_of(found, known)) == [None, 4, None, 6]


def test_a_kernel_without_an_operation_has_no_line():
    known = marked(("gemm", 3), ("mine", None))
    assert numbers(lines_of(in_graph("gemm", "mine"), known)) == [3, None]


def test_kernels_of_one_stream_that_overlap_are_on_tracks_of_their_own(tmp_path):
    events = [
        *call(0, 99, 9),
        launch(1, 1),
        launch(3, 2, "cudaGraphLaunch"),
        on_device("kernel", "first", 10, 20, 1),
        on_device("kernel", "second", 25, 20, 2),  # it began before the first had ended
        on_device("kernel", "third", 45.001, 5, 2),
    ]
    calls = calls_in(events)
    line = Source("m.py", 3, "act")
    write(tmp_path / "t.json", {"eager": (events, calls)}, {id(calls[0].work[0].event): line}, {})
    found = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    titles = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    at = {e["name"]: titles[e["tid"]] for e in found if e.get("cat") == "kernel"}
    stream = "GPU 0, stream 7"
    assert at == {"first": stream, "second": f"{stream} (2)", "third": stream}
    (first,) = (e for e in found if e["name"] == "first")
    assert first["args"]["line"] == "m.py:3, in act"
    arrows = [(e["ph"], e["id"] & 0xFF, e["ts"]) for e in found if e["name"] == "launch"]
    assert arrows == [("s", 1, 1), ("f", 1, 10), ("s", 2, 3), ("f", 2, 25)]


def test_a_long_timeline_is_joined_where_gaps_are_shortest():
    kernels = [
        on_device("kernel", f"k{n}", 10 + 10 * n + (5 if n % 2 else 0), 4, 1) for n in range(5000)
    ]
    (one,) = calls_in([*call(0, 60_000, 10), launch(1, 1, "cudaGraphLaunch"), *kernels])
    spans = _timeline(one)
    assert 1 <= len(spans) <= 2000
    assert sum(span.count for span in spans) == 5000
    assert spans[0].start_us == 10
    assert spans[-1].start_us + spans[-1].us == 10 + 10 * 4999 + 5 + 4
    few = _timeline(calls_in(EAGER)[0])
    assert [(s.start_us, s.us, s.stream, s.kind) for s in few] == [
        (20, 20, "GPU 0, stream 7", "kernel"),
        (30, 20, "GPU 0, stream 8", "kernel"),
        (60, 10, "GPU 0, stream 7", "copy"),
    ]


def rows(eager, graph):
    """The rows of a report on these events."""
    operations = [Operation("aten.mm", Source("m.py", n, "act"), True) for n in (3, 4)]
    known = Recorded(operations, *eager, asks_capturing=False)
    found = []
    for name, calls in (("eager", eager), ("graph", graph)):
        seen = _activity(calls)
        times = Percentiles(80, 90, 95)
        idle = 1 - seen.busy_us / times.p50
        row = WayReport(name, "ok", end_to_end_us=times, host_us=times, activity=seen, idle=idle)
        found.append(_Way(row, calls, _Known(known, known)).report(None))
    return found


def report_of(*ways):
    versions = {"torch": "2.11.0", "gfxgraph": "0.1.0", "python": "3.12.1"}
    about = {"device": "GPU", "emulated": False, "seconds": 2.0, "changes_state": False}
    rest = {"speedup": 1.5, "operators": (), "operations": 2}
    return TraceReport("act", ("x=float32[4]",), **about, **versions, ways=ways, **rest)


OF_TWO_LINES = [
    *call(0, 90, 50),
    host("user_annotation", f"{MARK}0", 1, 5),
    launch(2, 1),
    host("user_annotation", f"{MARK}1", 10, 5),
    launch(12, 2),
    on_device("kernel", "gemm", 5, 30, 1),
    on_device("kernel", "relu", 40, 10, 2),
]


def test_a_row_has_busy_time_idle_share_gaps_and_hot_kernels_with_lines():
    replay = [
        *call(0, 60, 10),
        launch(1, 1, "cudaMemcpyAsync"),
        launch(3, 2, "cudaGraphLaunch"),
        on_device("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 4, 2, 1, bytes=64),
        on_device("kernel", "gemm", 10, 30, 2),
        on_device("kernel", "relu", 41, 10, 2),
    ]
    eager, graph = rows(calls_in(OF_TWO_LINES), calls_in(replay))
    assert (eager.busy_us, eager.kernels_us, eager.traced_us) == (40, 40, 90)
    assert (eager.idle, eager.traced_idle) == (0.5, pytest.approx(5 / 9, abs=1e-4))
    assert (eager.launches, eager.graph_launches) == (2, 0)
    assert (eager.gaps.count, eager.gaps.total_us, eager.gaps.before_us) == (1, 5, 5)
    assert (graph.busy_us, graph.launches, graph.graph_launches) == (42, 2, 1)
    assert (graph.gaps.count, graph.gaps.total_us, graph.gaps.before_us) == (2, 5, 4)
    hot = [(one.name, one.calls, one.total_us, one.where.line) for one in graph.hot]
    assert hot == [("gemm", 1, 30, 3), ("relu", 1, 10, 4)]
    assert [one.in_graph for one in (*eager.hot, *graph.hot)] == [False, False, True, True]
    assert eager.hot[0].share == 0.75 and eager.lines == graph.lines == ""
    (copies,) = graph.copies
    assert (copies.direction, copies.bytes, copies.total_us, copies.in_graph) == (
        "DtoD",
        64,
        2,
        False,
    )
    assert copies.where is None
    text = str(report_of(eager, graph))
    assert "Eager: 2 launches, and the device is idle for 50% of a call." in text
    assert "With the graph: 2 launches" in text and "1.50 times as fast" in text
    assert "gemm" in text and "m.py:3" in text


def test_both_ways_are_rows_and_each_operator_has_its_line(traced):
    report, _ = traced
    assert [(way.name, way.status) for way in report.ways] == [("eager", "ok"), ("graph", "ok")]
    assert all(way.calls == 3 and way.end_to_end_us.p50 > 0 for way in report.ways)
    launching = {(one.where.line, one.name) for one in report.operators if one.launches}
    assert launching == {
        (FIRST, "aten.addmm.default"),
        (FIRST + 1, "aten.relu.default"),
        (FIRST + 2, "aten.addmm.default"),
    }
    assert report.operations == 3
    assert report["graph"].graph_launches == 1
    assert {Path(one.where.file).name for one in report.operators} == {HERE}


def test_the_line_that_calls_trace_is_none_of_a_function_that_is_all_torchs(device):
    layer = nn.Linear(4, 4).to(device)
    call = functools.partial(layer, torch.ones(2, 4, device=device))
    found = recorded(call, lambda: None, lambda: None, device, device == "cuda", True)
    assert "aten.addmm.default" in {one.name for one in found.operations}
    assert {one.where for one in found.operations} == {Source()}


def test_the_file_for_perfetto_has_a_process_for_each_way_on_one_axis(traced):
    _, path = traced
    data = json.loads(path.read_text())
    events = data["traceEvents"]
    names = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    assert names == {1: "eager", 2: "graph"}
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} <= {"M", "X", "s", "f"}
    for event in spans:
        assert event["name"] and event["ts"] >= 0 and event["dur"] >= 0
        assert (event["pid"], event["tid"]) in threads
    for process in (1, 2):
        calls = [e["ts"] for e in spans if e["pid"] == process and e["name"] == CALL]
        assert len(calls) == 3 and min(calls) == 0
    assert data["otherData"]["function"] == "TwoLayers"


def test_a_report_is_the_same_after_json(traced, tmp_path):
    report, _ = traced
    report.to_json(tmp_path / "trace.json")
    assert TraceReport.from_json(tmp_path / "trace.json") == report
    data = json.loads((tmp_path / "trace.json").read_text())
    assert data["schema"] == "gfxgraph.trace/1" and data["verdict"] == report.verdict
    line = data["operators"][0]["where"]
    assert "y" in line["text"] and line["line"] in range(FIRST, FIRST + 3)


def test_a_line_keeps_the_text_that_it_had_in_the_run(traced, tmp_path):
    report, _ = traced
    data = json.loads(report.to_json())
    data["operators"][0]["where"]["text"] = "as it was on another machine"
    (tmp_path / "trace.json").write_text(json.dumps(data))
    again = TraceReport.from_json(tmp_path / "trace.json")
    assert again.operators[0].where.text == "as it was on another machine"
    assert json.loads(again.to_json()) == data


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (["operators", 0, "host_us"], "x"),
        (["operators", 0, "where", "line"], None),
        (["ways", 0, "end_to_end_us", "p50"], [1]),
        (["ways", 1, "status"], "good"),
        (["arguments", 0], 3),
        (["commands"], ["nsys"]),
        (["emulated"], 1),
    ],
)
def test_a_report_with_a_value_of_another_type_is_damaged(traced, tmp_path, place, wrong):
    report, _ = traced
    data = json.loads(report.to_json())
    *path, last = place
    functools.reduce(lambda part, key: part[key], path, data)[last] = wrong
    (tmp_path / "trace.json").write_text(json.dumps(data))
    with pytest.raises(ArgumentError, match="damaged"):
        TraceReport.from_json(tmp_path / "trace.json")


@pytest.mark.parametrize("path", [3, "a\0b", ["a"]])
def test_what_is_no_path_is_refused(traced, path):
    report, _ = traced
    with pytest.raises(ArgumentError, match="cannot be written"):
        report.to_json(path)
    with pytest.raises(ArgumentError, match="cannot be read"):
        TraceReport.from_json(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("[1]", "whose schema is"),
        ('{"schema": "gfxgraph.bench/1"}', "not 'gfxgraph.bench/1'"),
        ('{"schema": "gfxgraph.trace/1", "ways": [3]}', "damaged"),
        ('{"schema": "gfxgraph.trace/1", "arguments": [], "ways": []}', "damaged"),
    ],
)
def test_a_foreign_file_is_no_report(tmp_path, text, words):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        TraceReport.from_json(path)


def test_without_a_gpu_nothing_is_said_of_a_device(traced):
    if gfxgraph.device_type() == "cuda":
        pytest.skip("there is a GPU")
    report, _ = traced
    assert "No GPU here" in report.verdict and "3 operators" in report.verdict
    for way in report.ways:
        nothing = (way.busy_us, way.kernels_us, way.idle, way.launches, way.gaps)
        assert nothing == (None,) * 5
        assert way.hot == way.copies == way.timeline == ()


def test_a_function_without_a_graph_is_traced_eagerly_and_told_why(device, tmp_path):
    def act(x):
        print("called", file=sys.stderr)
        return x.relu()

    path = tmp_path / "trace.json"
    report = gfxgraph.trace(act, torch.ones(3, device=device), seconds=0.01, chrome=path)
    assert report["graph"].status == "eager" and "no graph" in report.verdict
    assert report["eager"].calls == 3 and report["graph"].calls == 0
    names = [e["args"]["name"] for e in json.loads(path.read_text())["traceEvents"][:1]]
    assert names == ["eager"]


@pytest.mark.parametrize(
    ("act", "launches"),
    [(lambda x: x + 1 if x.sum().item() > 0 else x - 1, 2), (lambda x: None, 0)],
)
def test_each_graph_of_a_call_is_a_launch(act, launches, device):
    report = gfxgraph.trace(act, torch.ones(3, device=device), seconds=0.01)
    assert report["graph"].graph_launches == launches
    if report.emulated:
        assert f"A replay is {launches} launches." in report.verdict


def test_traced_calls_draw_the_same_numbers_so_that_all_take_one_course(device, capsys):
    def act(x):
        drawn = random.random(), torch.rand(1).item()
        if _profiler_enabled():
            print(drawn, file=sys.stderr)
        return x * 2 if drawn[0] < 0.5 else x * 3

    before = random.getstate(), torch.get_rng_state()
    gfxgraph.trace(act, torch.ones(3, device=device), seconds=0.01)
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("(0.")]
    assert len(printed) >= 4 and len(set(printed)) == 1
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])


def test_what_the_function_changes_is_put_back(device):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("h", torch.zeros(4, device=device))
            self.steps = 0

        def forward(self, x):
            self.h += x
            self.steps += 1
            return self.h.mul(2)

    model, x = Recurrent(), torch.ones(4, device=device)
    report = gfxgraph.trace(model, x, seconds=0.01)
    assert report.changes_state and report["eager"].calls == 3
    assert model.steps == 0 and model.h.tolist() == [0] * 4 and x.tolist() == [1] * 4


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_under_the_profiler_is_the_callers_and_no_profiler_stays_on(device, error):
    def fails(x):
        if _profiler_enabled():
            raise error
        return x * 2

    with pytest.raises(error):
        gfxgraph.trace(fails, torch.ones(3, device=device), seconds=0.01)
    assert not _profiler_enabled()


def test_a_function_that_raises_at_its_second_call_is_told_as_its_own_error(device):
    def once(x, calls=[]):  # noqa: B006
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("a second call")
        return x * 2

    with pytest.raises(ValueError, match="a second call"):
        gfxgraph.trace(once, torch.ones(3, device=device), seconds=0.01)
    assert not _profiler_enabled()


def test_a_function_with_a_profiler_of_its_own_is_told(device):
    def act(x):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            return x * 2

    with pytest.raises(ArgumentError, match="a torch profiler of its own"):
        gfxgraph.trace(act, torch.ones(3, device=device), seconds=0.01)
    assert not _profiler_enabled()


def test_inside_of_another_profiler_it_says_so(device):
    x = torch.ones(3, device=device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as mine:
        with pytest.raises(ArgumentError, match="running already"):
            gfxgraph.trace(torch.relu, x, seconds=0.01)
        x.sin()
    assert "aten::sin" in {event.name() for event in mine.profiler.kineto_results.events()}


@pytest.mark.parametrize("chrome", ["no/such/folder.json", ".", "", 3, "a\0b"])
def test_a_file_that_cannot_be_written_is_refused_before_any_work(chrome):
    def never(x):
        raise AssertionError("called")

    with pytest.raises(ArgumentError, match="cannot be written"):
        gfxgraph.trace(never, torch.ones(2), chrome=chrome)


def test_a_relative_path_is_that_of_the_folder_at_the_call(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()

    def moves(x):
        os.chdir(tmp_path / "other")
        return x + 1

    gfxgraph.trace(moves, torch.ones(2, device=device), seconds=0.01, chrome="trace.json")
    assert (tmp_path / "trace.json").exists()


def test_looking_whether_a_file_can_be_written_keeps_links_and_ends_no_pipe(tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "later.json")
    require_writable(link, "--out")
    assert link.is_symlink() and not link.exists()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        require_writable(pipe, "--out")
        events = select.poll()
        events.register(reader)
        assert events.poll(0) == []  # nobody has written and gone
    finally:
        os.close(reader)


def test_an_error_leaves_the_file_as_it_was(device, tmp_path):
    def fails(x):
        raise ValueError("a weight is missing")

    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        with pytest.raises(ValueError, match="a weight"):
            gfxgraph.trace(fails, torch.ones(2, device=device), chrome=tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_wrong_arguments_are_named():
    with pytest.raises(ArgumentError, match=r"trace\(fn\)"):
        gfxgraph.trace(3, torch.ones(2))
    with pytest.raises(ArgumentError, match=r"trace\(seconds="):
        gfxgraph.trace(torch.relu, torch.ones(2), seconds=0)
    with pytest.raises(ArgumentError, match=r"trace\(.*no tensor among"):
        gfxgraph.trace(lambda n: n, 3)


MODULE = """
import torch
def act(x):
    print("a line of its own")
    return torch.relu(x) + 1
def pure(x):
    return torch.relu(x) + 1
def leaves(x):
    raise SystemExit(7)
def fails(x):
    raise ValueError("a weight is missing")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch, "traced_here", MODULE)
    return tmp_path


def test_the_command_prints_tables_writes_both_files_and_names_further_tools(folder):
    usual = ("traced_here:pure", "float32[2,8]", "--seconds", "0.01")
    found = gfxgraph_command("trace", *usual, "--out", "report.json", "--chrome", "trace.json")
    assert found.exit_code == 0, found.output
    assert "traced_here.py:7" in found.stdout
    for tool in ("nsys profile", "rocprofv3"):
        (line,) = (line for line in found.stdout.splitlines() if line.strip().startswith(tool))
        assert "traced_here:pure 'float32[2,8]' --mark" in line
    assert TraceReport.from_json("report.json").commands.keys() == {"nsys", "rocprofv3"}
    assert json.loads(Path("trace.json").read_text())["traceEvents"]


def test_json_is_all_that_is_on_standard_output(folder):
    found = gfxgraph_command(
        "trace", "traced_here:act", "float32[2,8]", "--seconds", "0.01", "--json"
    )
    assert json.loads(found.stdout)["schema"] == "gfxgraph.trace/1"
    assert "a line of its own" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["traced_here:fails", "float32[2,8]"], "a weight is missing"),
        (["traced_here:leaves", "float32[2,8]"], "raises SystemExit: 7"),
        (["traced_here:gone", "float32[2,8]"], "cannot be loaded"),
        (["traced_here:pure", "float32[2,8]", "--seconds", "-1"], "above 0"),
        (["traced_here:pure", "float32[2,8]", "--out", "no/folder.json"], "--out"),
        (["traced_here:pure", "float32[2,8]", "--chrome", "no/folder.json"], "cannot be written"),
        (["traced_here:pure", "float32[2,8]", "--make", "traced_here:x"], "not both"),
        (["traced_here:pure", "x", "--out", "a.json", "--chrome", "./a.json"], "the same file"),
        (["traced_here:pure", "float32[2]", "--mark", "--chrome", "a.json"], "nothing is traced"),
    ],
)
def test_the_command_ends_with_status_2_and_says_what_was_wrong(folder, arguments, words):
    found = gfxgraph_command("trace", *arguments)
    assert found.exit_code == 2 and words in found.output
    assert "Traceback" not in found.output


def test_marks_need_a_gpu():
    if gfxgraph.device_type() == "cuda":
        pytest.skip("there is a GPU")
    with pytest.raises(ArgumentError, match="no GPU"):
        gfxgraph.trace(torch.relu, torch.ones(2), mark=True)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A report of two wide layers on a GPU, and the file of its trace."""
    path = tmp_path_factory.mktemp("large") / "trace.json"
    model, x = TwoLayers(1024).cuda().eval(), torch.randn(256, 1024, device="cuda")
    return gfxgraph.trace(model, x, seconds=0.5, chrome=path), path


@pytest.mark.gpu
def test_busy_time_and_idle_share_agree_with_the_profilers_kernels(large):
    report, path = large
    for process, way in enumerate(report.ways, 1):
        sums = [
            event["dur"]
            for event in json.loads(path.read_text())["traceEvents"]
            if event["pid"] == process
            and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        ]
        assert way.kernels_us == pytest.approx(sum(sums) / 3, rel=0.001)
        assert way.busy_us == pytest.approx(way.kernels_us, rel=0.03)  # one stream
        idle = max(0, 1 - way.busy_us / way.end_to_end_us.p50)
        assert way.idle == pytest.approx(idle, abs=1e-3)
        assert way.traced_idle == pytest.approx(1 - way.busy_us / way.traced_us, abs=1e-3)
        assert sum(span.us for span in way.timeline) == pytest.approx(way.busy_us, rel=0.5)
    assert report["graph"].launches < report["eager"].launches
    assert report["graph"].graph_launches == 1 and report["eager"].graph_launches == 0


@pytest.mark.gpu
def test_bench_and_trace_see_the_same_work(large):
    model, x = TwoLayers(1024).cuda().eval(), torch.randn(256, 1024, device="cuda")
    bench = gfxgraph.bench(model, x, ways=["graph"], seconds=0.5)
    for way in bench.ways:
        traced = large[0][way.name]
        assert traced.kernels == way.activity.kernels
        assert traced.launches == way.activity.launches
        assert traced.busy_us == pytest.approx(way.activity.busy_us, rel=0.5)


@pytest.mark.gpu
def test_each_kernel_has_its_line_in_eager_and_in_the_graph(large):
    report, _ = large
    layers = {FIRST: 0, FIRST + 1: 0, FIRST + 2: 0}
    for way in report.ways:
        assert way.lines == ""
        inside = [one for one in way.hot if one.in_graph or way.name == "eager"]
        assert {one.where.line for one in inside} == layers.keys()
        for one in inside:
            assert Path(one.where.file).name == HERE
            assert (one.where.line == FIRST + 1) == ("elementwise" in one.name)
    assert all(one.in_graph for one in report["graph"].hot if one.where)


@pytest.mark.gpu
def test_the_file_for_perfetto_has_kernels_with_lines_in_both_processes(large):
    _, path = large
    events = json.loads(path.read_text())["traceEvents"]
    for process in (1, 2):
        kernels = [e for e in events if e["pid"] == process and e.get("cat") == "kernel"]
        assert any(f"{HERE}:{FIRST}," in e["args"].get("line", "") for e in kernels)
    assert any("GraphLaunch" in event["name"] for event in events if event["pid"] == 2)


@pytest.mark.gpu
def test_copies_between_host_and_device_have_bytes_and_lines():
    def act(x):
        y = x.cpu()
        return y.to(x.device) + 1

    line = act.__code__.co_firstlineno + 1
    report = gfxgraph.trace(act, torch.randn(1000, device="cuda"), seconds=0.01)
    found = {(c.direction, c.where.line, c.bytes) for c in report["eager"].copies if c.where}
    assert {("DtoH", line, 4000), ("HtoD", line + 1, 4000)} <= found


@pytest.mark.gpu
def test_the_graph_of_a_function_that_asks_for_a_capture_has_the_lines_that_were_captured():
    def act(x):
        if torch.cuda.is_current_stream_capturing():
            return x + x
        return x * 2

    line = act.__code__.co_firstlineno
    report = gfxgraph.trace(act, torch.randn(1000, device="cuda"), seconds=0.01)
    lines = {way.name: {one.where.line for one in way.hot if one.where} for way in report.ways}
    assert lines == {"eager": {line + 3}, "graph": {line + 2}}


@pytest.mark.gpu
def test_marked_calls_are_made_without_a_profiler():
    report = gfxgraph.trace(torch.relu, torch.randn(8, device="cuda"), seconds=0.01, mark=True)
    assert report["graph"].status == "ok" and report["graph"].calls == 0
    assert "in ranges for another profiler" in str(report)
