"""What ``check`` says of Python: what a graph would watch there, and what becomes of writes."""

from __future__ import annotations

import collections
import inspect
import itertools
import sys
import types

import pytest
import torch

import gfxgraph
from tests.helpers.devices import HAS_GPU
from tests.hostile import hostile_writes

_MARKS = itertools.count()


class Model:
    """Each ``f_...`` writes something in each call."""

    def __init__(self, device="cpu"):
        self.scale, self.calls, self.turn, self.mark = 2.0, 0, 0, f"_last_{next(_MARKS)}"
        self.state = self.older = self.oldest = None
        self.table = {"calls": 0}
        self.seen = []
        self.pair = [torch.zeros(3, device=device), torch.zeros(3, device=device)]
        self.queue = collections.deque(maxlen=2)

    def f_counts(self, x):
        self.calls += 1
        return x * self.scale

    def f_counts_in_a_dict(self, x):
        self.table["calls"] = self.table.get("calls", 0) + 1
        return x * 2

    def f_uses_the_count(self, x):
        self.calls += 1
        return x * self.calls

    def f_takes_turns(self, x):
        self.turn = (self.turn + 1) % 3
        return x * self.turn

    def f_flips(self, x):
        self.turn = not self.turn
        return x * 2 if self.turn else x * 3

    def f_keeps_the_last(self, x):
        self.state = x * 2
        return self.state + 1

    def f_keeps_the_argument(self, x):
        self.state = x
        return x * 2

    def f_keeps_a_view_of_the_argument(self, x):
        self.state = x[1:]
        return x * 2

    def f_keeps_the_size(self, x):
        self.size = tuple(x.shape)
        return x * 2

    def f_recurs(self, x):
        self.state = x if self.state is None else self.state * 0.5 + x
        return self.state * 2

    def f_keeps_two(self, x):
        a, b = self.pair
        self.pair = [a + x, b - x]
        return a * b

    def f_shifts(self, x):
        self.oldest, self.older = self.older, x
        return x if self.oldest is None else x + self.oldest

    def f_fills_a_queue(self, x):
        self.queue.append(x * 2)
        return self.queue[0] + 1

    def f_grows_a_list(self, x):
        self.seen.append(x)
        return x * 2

    def f_grows_a_tensor(self, x):
        self.state = x if self.state is None else torch.cat([self.state, x])
        return self.state.sum(0)

    def f_keeps_an_object(self, x):
        self.last = object()
        return x * 2

    def f_keeps_a_record(self, x):
        self.last = types.SimpleNamespace(x=x * 2, n=1)
        return x * 2

    def f_swaps_records(self, x):
        if not hasattr(self, "one"):
            self.one, self.other = types.SimpleNamespace(n=1), types.SimpleNamespace(n=2)
        self.one, self.other = self.other, self.one
        return x * self.one.n

    def f_binds_a_global(self, x):
        globals()[self.mark] = x * 2
        return x * 3


WRITES = [name for name in vars(Model) if name.startswith("f_")]
STORED = {
    "f_counts": {"stored-counter"},
    "f_counts_in_a_dict": {"stored-counter"},
    "f_takes_turns": {"stored-value"},
    "f_flips": {"stored-value"},
    "f_keeps_the_last": {"stored-tensor"},
    "f_keeps_the_argument": {"stored-tensor"},
    "f_keeps_the_size": {"stored-value"},
    "f_recurs": {"stored-tensor"},
    "f_keeps_two": {"stored-tensor"},
    "f_shifts": {"stored-tensor"},
    "f_fills_a_queue": {"stored-tensor"},
    "f_keeps_a_record": {"stored-tensor"},
    "f_binds_a_global": {"stored-tensor"},
}


def replays_of(function, device, calls=14):
    graph = gfxgraph.graphed(function)
    with torch.no_grad():
        for n in range(calls):
            graph(torch.full((3,), float(n), device=device))
    return graph.stats().replays


@pytest.mark.parametrize("name", WRITES)
def test_what_check_says_of_a_write_is_what_graphed_does(device, name):
    report = gfxgraph.check(getattr(Model(), name), torch.ones(3))
    assert (report.verdict != "eager") == (replays_of(getattr(Model(device), name), device) > 3)
    assert {hazard.rule for hazard in report.hazards} == STORED.get(name, {"python-state"})
    for hazard in report.hazards:
        assert hazard.file == __file__
        assert hazard.line in _lines_of(Model.__dict__[name])


def _lines_of(function):
    lines, first = inspect.getsourcelines(function)
    return range(first, first + len(lines))


def _line_of(source):
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.strip() == source)


@pytest.mark.parametrize("name", WRITES)
def test_all_that_check_has_changed_in_python_is_put_back(name):
    model = Model()
    before = dict(vars(model))
    gfxgraph.check(getattr(model, name), torch.ones(3))
    assert vars(model).keys() == before.keys()
    assert model.mark not in globals()
    for key, value in vars(model).items():
        if not isinstance(value, (list, collections.deque)):
            assert value == before[key]
    assert not model.queue and not model.seen and len(model.pair) == 2
    assert all(type(tensor) is torch.Tensor for tensor in model.pair)


# Functions of which check says something else than graphed, by why.
_DISAGREE = {
    "the data decides": (
        "best_so_far branch_then_state_read_on_host int_tensor_counter_read item_read_by_repr "
        "counts_only_in_a_branch_of_data_and_is_read_in_another list_from_tolist "
        "value_read_becomes_key "
        "value_read_becomes_list_position value_read_becomes_state writes_in_a_data_loop"
    ),
    "which object an argument is": "kept_input_compared_by_identity same_input_each_time",
    "a later call differs": "result_type_alternates ring_buffer_in_list training_flag_toggled",
    "not seen in a simulated world": "getattribute_override no_graph_part_writes",
    "a graph for each of a few states": (
        "counter_as_dict_key_modulo counter_is_equal_by_chance ordered_dict_lru finally_writes "
        "item_read_by_singledispatch_h previous_input_written"
    ),
    "no such tensors on the simulated device": "sparse_tensor_stored",
}
_KNOWN = {name: why for why, names in _DISAGREE.items() for name in names.split()}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(HAS_GPU, reason="the functions make tensors on the host")
@pytest.mark.parametrize("name", sorted(hostile_writes.CASES.keys() - _KNOWN.keys()))
def test_so_it_is_for_hostile_functions(name):
    function, *_ = hostile_writes.CASES[name]()
    report = gfxgraph.check(function, torch.ones(2, 4))
    if any(hazard.rule == "raises" for hazard in report.hazards):
        return  # it makes tensors on the host: an error on a GPU, and not on the emulated device
    function, *_ = hostile_writes.CASES[name]()
    graph = gfxgraph.graphed(function)
    with torch.no_grad():
        for n in range(14):
            x = torch.randn(2, 4, generator=torch.Generator().manual_seed(n))
            hostile_writes.outcome(graph, x)
    is_graph = graph.stats().replays > 5
    assert (report.verdict != "eager") == is_graph, (report.hazards, graph.stats().fallbacks)


CFG = {"scale": 2.0, "name": "a"}


def reads_settings(x):
    return x * CFG["scale"] if CFG["name"] == "a" else x


def test_what_a_graph_would_watch_is_named_with_its_value_and_the_line_that_reads_it():
    report = gfxgraph.check(reads_settings, torch.ones(3))
    found = {place.name: place for place in report.watched}
    assert found["CFG['scale']"].value == "2.0" and found["CFG['name']"].value == "'a'"
    source = 'return x * CFG["scale"] if CFG["name"] == "a" else x'
    assert found["CFG['scale']"].line == _line_of(source)
    assert found["CFG['scale']"].file == __file__
    assert "CFG['scale'] = 2.0" in str(report).replace("\n  ", " ")
    assert "CFG[&#x27;scale&#x27;] = 2.0" in report._repr_html_()
    assert report.to_dict()["watched"][0].keys() == {"name", "value", "file", "line"}


def test_what_the_function_writes_is_not_watched():
    report = gfxgraph.check(Model().f_counts, torch.ones(3))
    names = {place.name for place in report.watched}
    assert "Model.f_counts.scale" in names and "Model.f_counts.calls" not in names


def test_it_says_so_if_nobody_can_see_what_is_read():
    if sys.version_info >= (3, 12):
        taken = [n for n in range(6) if sys.monitoring.get_tool(n) is None]
        for n in taken:
            sys.monitoring.use_tool_id(n, "a debugger")
    else:
        sys.settrace(lambda frame, event, value: None)
    try:
        report = gfxgraph.check(reads_settings, torch.ones(3))
    finally:
        if sys.version_info >= (3, 12):
            for n in taken:
                sys.monitoring.free_tool_id(n)
        else:
            sys.settrace(None)
    assert report.verdict == "captures" and not report.watched
    assert report.unwatched in str(report).replace("\n  ", " ") and report.unwatched
