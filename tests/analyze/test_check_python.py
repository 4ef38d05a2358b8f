"""What ``check`` says of Python: what a graph would watch there, and what becomes of writes."""

from __future__ import annotations

import builtins
import collections
import functools
import inspect
import itertools
import sys
import threading
import types

import pytest
import torch

import gfxgraph
from gfxgraph.graph.reads import Reads
from gfxgraph.interpose.patch import intercept
from tests.helpers.devices import HAS_GPU
from tests.helpers.sampled import sampled
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


def test_a_call_that_takes_from_a_queue_is_one_finding():
    queue = collections.deque()

    def act(x):
        if not queue:
            queue.extend((x * 2).unbind())
        return queue.popleft()

    report = gfxgraph.check(act, torch.ones(5))
    (moved,) = report.hazards
    assert moved.rule == "no-work" and moved.source == "return queue.popleft()"
    assert report.in_words == "runs eagerly because the call gives the device no work"
    assert moved.remedy.startswith("Graph the function that computes what the queue holds")


class Child(Model):
    """Its methods are those of its base."""


def test_places_of_a_bound_method_are_named_after_its_object(device):
    report = gfxgraph.check(Child().f_counts, torch.ones(3))
    assert [hazard.what for hazard in report.hazards] == ["Child.calls"]
    assert "Child.scale" in [place.name for place in report.watched]
    graph = gfxgraph.graphed(Child(device).f_counts)
    with torch.no_grad():
        for _ in range(2):
            graph(torch.ones(3, device=device))
    assert graph.stats().stored == ["Child.calls"]


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
    "which object an argument is": (
        "item_read_by_id_h kept_input_compared_by_identity late_id_by_data same_input_each_time"
    ),
    "a later call differs": (
        "result_type_alternates ring_buffer_in_list stop_flag_after_count training_flag_toggled"
    ),
    "not seen in a simulated world": "getattribute_override no_graph_part_writes",
    "a graph for each of a few states": (
        "counter_as_dict_key_modulo counter_is_equal_by_chance ordered_dict_lru finally_writes "
        "item_read_by_singledispatch_h previous_input_written"
    ),
    "no such tensors on the simulated device": "sparse_tensor_stored",
    "it stores a parameter that it makes": (
        "parameter_made_anew_without_grad parameter_stored_in_list"
    ),
}
_KNOWN = {name: why for why, names in _DISAGREE.items() for name in names.split()}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(HAS_GPU, reason="the functions make tensors on the host")
@pytest.mark.parametrize(
    "name", sampled(sorted(hostile_writes.CASES.keys() - _KNOWN.keys()), 40, of_long=17)
)
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
    assert "Model.scale" in names and "Model.calls" not in names


class Stepping:
    scale, calls = 2.0, 0

    def __call__(self, x):
        self.calls += 1
        return x * self.scale


def test_nor_is_what_its_class_has_under_that_name():
    watched = gfxgraph.check(Stepping(), torch.ones(3)).watched
    assert ("Stepping.scale", "2.0") in {(place.name, place.value) for place in watched}
    assert "Stepping.calls" not in {place.name for place in watched}


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


@functools.lru_cache(maxsize=8)
def _cached(model, size):
    return model.pair[0].repeat(size)


def test_no_simulated_tensor_stays_where_nobody_puts_anything_back():
    model, local = Model(), threading.local()

    def f(x):
        if not hasattr(local, "made"):
            local.made = model.pair[0] + 1
        return x * local.made + _cached(model, 1)

    x = torch.ones(3)
    assert gfxgraph.check(f, x).verdict == "captures"
    assert type(_cached(model, 1)) is torch.Tensor
    assert torch.equal(f(x), torch.ones(3))
    assert type(local.made) is torch.Tensor


def test_what_a_thread_keeps_for_itself_is_put_back():
    local = threading.local()

    def f(x):
        local.state = getattr(local, "state", 0) + x
        return local.state

    gfxgraph.check(f, torch.ones(3))
    assert not hasattr(local, "state")


_STACK = []


def _pushes(x):
    _STACK.append(1)
    y = x * len(_STACK)
    _STACK.pop()
    return y


def test_what_is_read_and_put_back_within_the_call_is_no_hazard(device):
    report = gfxgraph.check(_pushes, torch.ones(3))
    assert report.verdict == "captures" and not report.hazards
    assert replays_of(_pushes, device)


class Evaluates(torch.nn.Module):
    def forward(self, x):
        self.eval()
        return x * 2


def _leaves_grad_on(x):
    torch.set_grad_enabled(True)
    return x * 2


@pytest.mark.parametrize("make", [Evaluates, lambda: _leaves_grad_on], ids=["eval", "grad"])
def test_modes_that_a_call_leaves_changed_are_named(make):
    module, grad = make(), torch.is_grad_enabled()
    report = gfxgraph.check(module, torch.ones(3))
    assert report.verdict == "eager" and "train() or eval()" in report.hazards[-1].what
    assert torch.is_grad_enabled() == grad and getattr(module, "training", True)


def test_a_parameter_is_an_argument_like_any_other():
    assert gfxgraph.check(lambda x: x * 2, torch.nn.Parameter(torch.ones(3))).verdict == "captures"


def test_another_thread_that_is_alive_changes_nothing():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        report = gfxgraph.check(Model().f_keeps_the_last, torch.ones(3))
    finally:
        done.set()
        thread.join()
    assert [hazard.rule for hazard in report.hazards] == ["stored-tensor"]


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError


def test_an_error_that_cannot_be_written_is_reported():
    def f(x):
        raise Wordless

    (hazard,) = gfxgraph.check(f, torch.ones(3)).hazards
    assert hazard.rule == "raises" and "Wordless" in hazard.what


def test_an_error_of_ours_is_named_by_what_it_is_about():
    held = torch.zeros(3)

    def f(x):
        held.data = x * 2
        return held + 1

    (hazard,) = gfxgraph.check(f, torch.ones(3)).hazards
    assert hazard.rule == "side-effect" and hazard.source == "held.data = x * 2"


HUGE, FLAG, COUNTS = 10**5000, False, collections.defaultdict(int)


def _reads_and_sets(x):
    global FLAG
    y = x if FLAG else x * 2
    FLAG = True
    COUNTS["calls"] += 1
    return y * (HUGE % 7)


def test_the_values_that_are_shown_are_those_of_now():
    report = gfxgraph.check(_reads_and_sets, torch.ones(3))
    found = {place.name: place.value for place in report.watched}
    assert found["HUGE"] == "" and found["FLAG"] == "False"
    assert not any("calls" in name for name in found)
    assert FLAG is False and not COUNTS


def test_what_a_module_does_as_it_is_imported_is_not_looked_at(tmp_path, monkeypatch):
    text = "SETTING = {'a': 1}\ndef read():\n    return SETTING['a']\nread()\n"
    (tmp_path / "module_that_is_new.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def f():
        import module_that_is_new

        return module_that_is_new.read

    reads = Reads({"f": f})
    with intercept(builtins, "__import__", reads.importing), reads.recording():
        read = f()
    assert reads.places and not any("SETTING" in p.path for p in reads.places.values())
    with intercept(builtins, "__import__", reads.importing), reads.recording():
        read()
    assert any("SETTING" in place.path for place in reads.places.values())
