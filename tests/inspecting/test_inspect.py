"""``inspect`` lists the nodes of graphs, with the line that made each, and never a wrong one."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import linecache
import sys
import weakref

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.device import current_device
from gfxgraph.errors import ArgumentError, CaptureError
from gfxgraph.graph.lines import LinesOfNodes
from tests.helpers.command import importable
from tests.helpers.devices import region

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture(autouse=True)
def kept_nodes():
    gfxgraph.enable(debug=True)


def line_of(text):
    """The numbers of the lines of this file that end in a comment with these words."""
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    return [n for n, line in enumerate(lines, 1) if line.endswith(f"# {text}")]


def lines(report):
    """The lines of all nodes, each once, in their order."""
    return list(dict.fromkeys(node.line for graph in report for node in graph))


def called(fn, *args):
    step = gfxgraph.graphed(fn)
    step(*args)
    return step


def test_each_node_has_the_line_that_made_it(device):
    def act(x):
        y = x * 2  # twice
        return y.relu() + 1  # more

    report = gfxgraph.inspect(called(act, torch.ones(4, device=device)))
    assert len(report) == 1 and lines(report) == line_of("twice") + line_of("more")
    for node in report[0]:
        assert node.file == __file__ and node.function == "act" and node.source


def test_nodes_of_modules_belong_to_the_line_of_the_user_that_calls_torch(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            y = self.layers(x)  # layers
            return y - 1  # minus

    report = gfxgraph.inspect(called(Net().to(device), torch.ones(2, 4, device=device)))
    assert lines(report) == line_of("layers") + line_of("minus")


def test_nodes_belong_to_the_innermost_line_and_then_to_the_callers_again(device):
    def inner(x):
        return x.sin()  # inner

    def outer(x):
        y = inner(x) * 3  # outer
        return y.cos()  # last

    report = gfxgraph.inspect(called(outer, torch.ones(4, device=device)))
    assert lines(report) == [*line_of("inner"), *line_of("outer"), *line_of("last")]


def test_later_graphs_of_a_call_have_the_lines_of_functions_that_run_already(device):
    def scaled(x):
        y = x * 2  # doubled
        if y.sum().item() > 0:
            y = y + 1  # added in it
        return y.exp()  # end of it

    def outer(x):
        for _ in range(2):
            x = scaled(x)
        return x.relu()  # last of all

    def caller():
        return called(outer, torch.ones(4, device=device))  # nobody's

    first, *_, last = gfxgraph.inspect(caller())
    marks = "doubled", "added in it", "end of it", "last of all"
    doubled, more, end, after = (line_of(text)[0] for text in marks)
    assert doubled in {node.line for node in first}
    assert {node.line for node in last} == {more, end, after}


def test_a_generator_goes_on_in_the_middle_of_its_line(device):
    def parts(x):
        factor = (yield x.sin()) * x.cos()  # first
        yield factor.exp()  # second

    def act(x):
        steps = parts(x)
        return next(steps) + steps.send(x * 2)  # sent

    report = gfxgraph.inspect(called(act, torch.ones(4, device=device)))
    names = [(node.name, node.line) for node in report[0] if report.emulated]
    first, second, sent = (line_of(text)[0] for text in ("first", "second", "sent"))
    assert not report.emulated or names == [
        ("aten::sin", first),
        ("aten::mul.Tensor", sent),
        ("aten::cos", first),
        ("aten::mul.Tensor", first),
        ("aten::exp", second),
        ("aten::add.Tensor", sent),
    ]
    assert set(lines(report)) <= {first, second, sent}


def test_an_error_that_is_caught_shifts_no_line(device):
    def fails(x):
        x.sin()  # before
        raise ValueError

    def act(x):
        try:
            fails(x)
        except ValueError:
            x = x.cos()  # handled
        return x + 1  # end

    report = gfxgraph.inspect(called(act, torch.ones(4, device=device)))
    assert lines(report) == [*line_of("before"), *line_of("handled"), *line_of("end")]


def test_where_the_function_sets_a_trace_function_no_line_is_told(device):
    def act(x):
        y = x * 2
        sys.settrace(None)
        return y + 1

    graph = gfxgraph.BridgedCUDAGraph()
    x = torch.ones(4, device=device)
    before = sys.gettrace()
    with region(graph):
        act(x)
    sys.settrace(before)
    report = gfxgraph.inspect(graph)
    assert len(report[0]) >= 2 and lines(report) == [0] and report[0].lines == {}


@pytest.mark.parametrize("other", [None, lambda *event: None])
def test_where_a_trace_function_was_set_for_a_while_no_line_is_told(device, other):
    def inner(x):
        return x.cos() + 3

    graph, x = gfxgraph.BridgedCUDAGraph(), torch.ones(4, device=device)
    original = sys.settrace
    with region(graph):
        y = x * 2
        before = sys.gettrace()
        sys.settrace(other)
        y = inner(y)
        sys.settrace(before)
        y.sin()
    assert sys.settrace is original
    report = gfxgraph.inspect(graph)
    assert len(report[0]) >= 4 and report[0].lines == {}


def test_what_traced_before_traces_again_after_the_capture(device):
    seen = []

    def trace(frame, event, value):
        seen.append(event)

    graph = gfxgraph.BridgedCUDAGraph()
    x = torch.ones(4, device=device)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with region(graph):
            x * 2  # traced
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert lines(gfxgraph.inspect(graph)) == line_of("traced")
    frame = sys._getframe()
    assert frame.f_trace is None or before is not None


class CountedNodes:
    """Stands for a driver whose capture has as many nodes as a list has items."""

    def __init__(self, order=None):
        self.made, self.order, self.current = [], order, None

    def count(self):
        return len(self.made)

    def newest(self):
        return [] if not self.made else [self.current or self.made[-1]]

    def read(self):
        handles = self.order or self.made
        return [gfxgraph.device.nodes.Node("kernel", "", (), {}, (), h) for h in handles]


def noted(nodes, fn):
    found = LinesOfNodes(nodes)
    found.begin()
    fn()
    return [source.line for source in found.of(found.end())]


def test_lines_are_known_while_the_driver_lists_nodes_as_they_were_made():
    nodes = CountedNodes()

    def make():
        nodes.made.append(7)  # seventh
        nodes.made.extend((8, 9))  # two more

    assert noted(nodes, make) == [*line_of("seventh"), *line_of("two more") * 2]


def test_no_line_is_told_where_the_driver_lists_nodes_in_another_order():
    nodes = CountedNodes(order=[8, 7])

    def make():
        nodes.made.append(7)
        nodes.made.append(8)

    assert noted(nodes, make) == [0, 0]


def test_no_line_is_told_of_nodes_on_a_stream_that_is_not_current():
    nodes = CountedNodes()

    def make():
        nodes.made.append(7)  # the current one
        nodes.current = 7
        nodes.made.append(8)
        nodes.current = None
        nodes.made.append(9)  # current again

    assert noted(nodes, make) == [*line_of("the current one"), 0, *line_of("current again")]


def test_work_in_turn_is_one_branch(device):
    def act(x):
        for _ in range(5):
            x = x.sin()
        return x

    (graph,) = gfxgraph.inspect(called(act, torch.ones(4, device=device)))
    assert graph.branches == 1 and graph.depth == len(graph)
    assert [node.after for node in graph] == [(), *((n.id,) for n in graph.nodes[:-1])]
    assert graph.before[graph.nodes[0].id] == (graph.nodes[1].id,)


def test_streams_that_fork_and_join_are_branches():
    if current_device().type != "cuda":
        if torch.version.cuda or torch.version.hip:
            pytest.skip("this build of torch cannot emulate a GPU")
        gfxgraph.enable(debug=True, emulate=True)
    x = torch.ones(4, device="cuda")
    side = torch.cuda.Stream()
    (x * 2).sin().cos().exp() + x  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2  # fork
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a = y.sin()  # on the side
            a = a.cos()  # on the side
        b = y.exp()  # here
        torch.cuda.current_stream().wait_stream(side)
        a + b  # joined
    (graph,) = gfxgraph.inspect(graph)
    assert [node.after for node in graph] == [(), ("0",), ("1",), ("0",), ("2", "3")]
    assert [node.branch for node in graph] == [0, 0, 0, 1, 0]
    assert (graph.branches, graph.depth) == (2, 4)
    words = ("fork", "on the side", "here", "joined")
    fork, first, second, here, joined = (n for text in words for n in line_of(text))
    assert [node.line for node in graph] == [fork, first, second, here, joined]


# What can be inspected.


def test_arguments_choose_the_graph_of_a_call(device):
    step = gfxgraph.graphed(lambda x: x * 2 + 1)
    small, large = torch.ones(2, device=device), torch.ones(3, device=device)
    step(small), step(large)
    assert [graph.name for graph in gfxgraph.inspect(step)] == [
        "test_arguments_choose_the_graph_of_a_call.<locals>.<lambda>(float32[2])",
        "test_arguments_choose_the_graph_of_a_call.<locals>.<lambda>(float32[3])",
    ]
    assert [graph.name[-11:] for graph in gfxgraph.inspect(step, large)] == ["(float32[3])"[-11:]]


def test_arguments_find_a_graph_of_another_grad_mode(device):
    step = gfxgraph.graphed(lambda x: x * 2)
    x = torch.ones(2, device=device)
    with torch.inference_mode():
        step(x)
    with torch.enable_grad():
        assert len(gfxgraph.inspect(step, x)) == 1


def test_inspecting_changes_no_count_and_holds_no_graph(device):
    step = called(lambda x: x * 2, torch.ones(2, device=device))
    before = step.stats()
    report = gfxgraph.inspect(step, torch.ones(2, device=device))
    assert step.stats() == before
    step.reset()
    assert len(report[0]) >= 1
    with pytest.raises(CaptureError, match="has no graph: nothing was captured yet"):
        gfxgraph.inspect(step)


def test_a_method_is_inspected_of_one_instance_or_of_all(device):
    class Policy:
        def __init__(self, scale):
            self.scale = scale

        @gfxgraph.graphed
        def act(self, x):
            return x * self.scale

    policies = [Policy(2), Policy(3)]
    x = torch.ones(2, device=device)
    for policy in policies:
        policy.act(x)
    assert len(gfxgraph.inspect(policies[0].act)) == 1
    assert len(gfxgraph.inspect(policies[0].act, x)) == 1
    assert len(gfxgraph.inspect(Policy.act)) == 2


def test_a_function_whose_course_depends_on_data_has_several_graphs(device):
    def act(x):
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    report = gfxgraph.inspect(called(act, torch.ones(4, device=device)))
    assert [graph.name[-12:] for graph in report] == ["graph 1 of 2", "graph 2 of 2"]
    assert "item()" in report[0].note and report[1].note == ""


def test_a_function_that_writes_in_python_is_inspected_as_others(device):
    class Counts:
        calls = 0

        def act(self, x):
            self.calls += 1
            return x * 2

    step, x = gfxgraph.graphed(Counts().act), torch.ones(2, device=device)
    for _ in range(3):
        step(x)
    assert step.stats().replays > 0
    assert len(gfxgraph.inspect(step)) == 1 and len(gfxgraph.inspect(step, x)) == 1


def test_pools_and_conditional_graphs_give_all_of_theirs(device):
    pool = gfxgraph.ShapeBucketPool(lambda x: x * 2, [2, 4])
    pool(torch.ones(2, 3, device=device)), pool(torch.ones(4, 3, device=device))
    assert len(gfxgraph.inspect(pool)) == 2
    assert "[4,3]" in gfxgraph.inspect(pool, torch.ones(3, 3, device=device))[0].name
    branches = gfxgraph.ConditionalGraph().add_branch("a", torch.sin).add_branch("b", torch.cos)
    branches.capture(torch.ones(2, device=device))
    assert {graph.name[0] for graph in gfxgraph.inspect(branches)} == {"a", "b"}
    with pytest.raises(ArgumentError, match="several functions"):
        gfxgraph.inspect(branches, torch.ones(2, device=device))


def test_a_graph_of_the_bridge_has_the_lines_of_its_block(device):
    graph, x = gfxgraph.BridgedCUDAGraph(), torch.ones(4, device=device)
    model = nn.Linear(4, 4).to(device)
    model(x)
    with graph.capture():
        y = model(x)  # in the block
        y.relu()  # in the block
    assert lines(gfxgraph.inspect(graph)) == line_of("in the block")


def test_a_graph_of_many_sizes_gives_a_graph_for_each(device):
    graph, static = gfxgraph.BridgedCUDAGraph(), torch.ones(4, 3, device=device)
    model = nn.Linear(3, 3).to(device)
    with graph.capture(dynamic_shapes=True, buckets=[2, 4], model_fn=model):
        model(static)
    assert len(gfxgraph.inspect(graph)) == 2


def test_numbers_as_inputs_choose_the_same_graph(device):
    step = gfxgraph.graphed(lambda x, scale: x * scale, inputs=["scale"])
    x = torch.ones(2, device=device)
    for scale in (1.0, 2.0):
        step(x, scale)
    assert len(gfxgraph.inspect(step, x, 7.0)) == 1


def test_class_methods_and_methods_given_their_instance_are_found(device):
    class Policy:
        scale = 2

        @classmethod
        @gfxgraph.graphed
        def of_class(cls, x):
            return x * cls.scale

        @gfxgraph.graphed
        def act(self, x):
            return x * self.scale

    policies, x = [Policy(), Policy()], torch.ones(2, device=device)
    Policy.of_class(x), policies[0].act(x), policies[1].act(x)
    assert len(gfxgraph.inspect(Policy.of_class)) == 1
    assert len(gfxgraph.inspect(Policy.of_class, x)) == 1
    assert len(gfxgraph.inspect(Policy.act, policies[1], x)) == 1


def test_a_line_has_the_text_that_it_had_when_it_was_captured(device, tmp_path, monkeypatch):
    text = "def act(x):\n    y = x.sin()\n    return y + 1\n"
    importable(tmp_path, monkeypatch, "edited_later", text)
    monkeypatch.syspath_prepend(tmp_path)
    path, x = tmp_path / "edited_later.py", torch.ones(4, device=device)
    linecache.getline(str(path), 1)
    path.write_text(f"# a line more\n{text}")
    step = called(importlib.import_module("edited_later").act, x)
    path.write_text(text)
    linecache.checkcache()  # as each traceback does that is printed
    sources = {node.line: node.source for node in gfxgraph.inspect(step)[0]}
    assert sources == {3: "y = x.sin()", 4: "return y + 1"}


def test_a_module_without_a_line_of_the_user_has_none(device):
    report = gfxgraph.inspect(called(nn.Linear(4, 4).to(device), torch.ones(2, 4, device=device)))
    assert len(report[0]) >= 1 and lines(report) == [0]


def test_code_that_is_compiled_counts_for_the_line_that_calls_it(fresh_compiler):
    nodes = CountedNodes()
    of_torch = "def run_of(graph):\n  def run(*args):\n    made.append(1 + len(made))\n"
    names = {"made": nodes.made}
    file = f"{torch.__path__[0]}/made_by_a_test.py"
    exec(compile(f"{of_torch}    return graph(*args)\n  return run\n", file, "exec"), names)

    @functools.partial(torch.compile, backend=lambda graph, inputs: names["run_of"](graph))
    def compiled(x):
        return x.sin() + 1

    def act():
        compiled(torch.ones(3))  # compiled here

    act()
    nodes.made.clear()
    assert noted(nodes, act) == line_of("compiled here")


def test_our_log_during_a_capture_is_no_effect_of_the_function(device, caplog):
    # Handlers such as that of caplog write to a file, here one in memory.
    pool = gfxgraph.ShapeBucketPool(lambda x: x * 2, [2, 4])
    with caplog.at_level("DEBUG", logger="gfxgraph"):
        pool(torch.ones(2, 3, device=device)), pool(torch.ones(4, 3, device=device))
    assert pool.stats().captures == 2 and not pool.stats().fallbacks
    assert not [record for record in caplog.records if "not_alike" in record.getMessage()]


def test_what_was_looked_at_is_let_go_of_without_the_garbage_collector(device):
    graph, x = gfxgraph.BridgedCUDAGraph(), torch.ones(2, device=device)
    gc.disable()
    try:
        with region(graph):
            x * 2
            looked_at = weakref.ref(graph._tracing._nodes)
        assert looked_at() is None
    finally:
        gc.enable()


# Errors.


def test_it_is_refused_inside_of_a_graphed_function(device):
    step, x = called(lambda x: x * 2, torch.ones(2, device=device)), torch.ones(2, device=device)

    @gfxgraph.graphed
    def inspects(x):
        gfxgraph.inspect(step)
        return x

    with pytest.raises(CaptureError, match="inside of a graphed function"):
        inspects(x)


def test_sizes_without_a_graph_are_refused(device):
    pool = gfxgraph.ShapeBucketPool(lambda x: x * 2, [2, 4])
    pool(torch.ones(2, 3, device=device))
    with pytest.raises(ArgumentError, match="the size 0"):
        gfxgraph.inspect(pool, torch.ones(0, 3, device=device))
    with pytest.raises(ArgumentError, match="no argument has a dynamic dimension"):
        gfxgraph.inspect(pool, torch.tensor(1.0, device=device))
    with pytest.raises(CaptureError, match="no call with such arguments was captured"):
        gfxgraph.inspect(pool, torch.ones(9, 3, device=device))


def test_a_graph_that_is_dropped_in_its_capture_leaves_no_trace_function_behind(device):
    graph, x = gfxgraph.BridgedCUDAGraph(), torch.ones(2, device=device)
    kind, before = current_device(), sys.gettrace()
    with kind.on_stream(kind.new_stream(0), 0):
        graph.capture_begin()
        x * 2
        del graph
    assert sys.gettrace() is before and sys._getframe().f_trace is None


def test_a_function_that_runs_eagerly_says_why(device):
    step = gfxgraph.graphed(lambda x: x * 2, branching="off")
    reads = gfxgraph.graphed(lambda x: x * x.sum().item(), branching="off")
    x = torch.ones(2, device=device)
    reads(x)
    for args in ((), (x,)):
        with pytest.raises(CaptureError, match=r"run eagerly: .*host-read|run eagerly: .*item"):
            gfxgraph.inspect(reads, *args)
    with pytest.raises(CaptureError, match="Call it first"):
        gfxgraph.inspect(step)
    with pytest.raises(CaptureError, match="Call it with them first"):
        gfxgraph.inspect(step, x)


def test_a_graph_that_kept_no_nodes_says_how_to_keep_them(device):
    gfxgraph.disable()
    x = torch.ones(2, device=device)
    step = called(lambda x: x * 2, x)
    with pytest.raises(CaptureError, match=r"enable\(debug=True\).*keep_graph=True"):
        gfxgraph.inspect(step)
    graph = gfxgraph.BridgedCUDAGraph(keep_graph=True)
    with region(graph):
        x * 2
    assert lines(gfxgraph.inspect(graph)) == [0]


@pytest.mark.parametrize("kept", [False, True])
def test_a_graph_that_was_reset_or_never_captured_says_so(device, kept):
    graph, x = gfxgraph.BridgedCUDAGraph(keep_graph=kept), torch.ones(2, device=device)
    with pytest.raises(CaptureError, match="holds no capture"):
        gfxgraph.inspect(graph)
    with region(graph):
        x * 2
    gfxgraph.inspect(graph)
    graph.reset()
    with pytest.raises(CaptureError, match="holds no capture"):
        gfxgraph.inspect(graph)


def test_a_block_whose_capture_failed_says_why(device):
    graph, x = gfxgraph.BridgedCUDAGraph(), torch.ones(2, device=device)

    def reads(x):
        return x * x.sum().item()

    with graph.capture(model_fn=reads):
        reads(x)
    with pytest.raises(CaptureError, match="was not captured, and its replays run eagerly"):
        gfxgraph.inspect(graph)


@pytest.mark.parametrize(
    "item", [3, None, "graph", torch.ones(2), nn.Linear(2, 2), len, functools.partial(len, [])]
)
def test_any_other_object_is_refused(item):
    with pytest.raises(ArgumentError, match=r"expected what gfxgraph\.graphed"):
        gfxgraph.inspect(item)


def test_a_single_graph_takes_no_arguments(device):
    graph, x = gfxgraph.BridgedCUDAGraph(), torch.ones(2, device=device)
    with region(graph):
        x * 2
    with pytest.raises(ArgumentError, match="a single graph is inspected without"):
        gfxgraph.inspect(graph, x)


def test_a_capture_that_fails_leaves_no_trace_function_behind(device):
    graph, x = gfxgraph.BridgedCUDAGraph(), torch.ones(2, device=device)
    before = sys.gettrace()
    with pytest.raises(RuntimeError), region(graph):
        x.sum().item()
    assert sys.gettrace() is before and sys._getframe().f_trace is None
