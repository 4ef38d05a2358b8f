"""``verify`` changes each place that a graph watches, and sees whether the graph notices."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import json
import sys
import threading
import time
import types

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph import BridgedCUDAGraph, verify
from gfxgraph.graph import places as kinds_of_places
from gfxgraph.graph.guard import Guard
from gfxgraph.graph.torch_settings import SETTINGS
from gfxgraph.verifying import candidate as experiments
from gfxgraph.verifying.places import change_each
from tests.helpers.devices import region


@pytest.fixture
def x(device):
    return torch.randn(4, 8, device=device)


def found(result):
    return {cause.kind: cause.what for cause in (*result.causes, *result.cautions)}


def right(fn, x):
    """Verify what is right, and give the counts."""
    report = verify(fn, x)
    assert report.ok and report.graph.captured and not found(report.graph), str(report)
    places = report.graph.places
    assert places.noticed == places.changed > 0 and places.not_run == 0
    return places


class Slotted:
    __slots__ = ("absent", "scale", "shift")

    def __init__(self, x):
        self.scale, self.shift = 2.0, torch.ones_like(x)

    def __call__(self, x):
        return (x * self.scale + self.shift) * (2 if hasattr(self, "absent") else 1)


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float = 2.0
    on: bool = True
    sizes: dict = dataclasses.field(default_factory=lambda: {"a": 3})


class Mode(enum.Enum):
    ADD = 1
    MUL = 2


class Base:
    factor = 3

    def apply(self, x):
        return x * self.factor


class Holder(Base):
    def __init__(self, x):
        self.config, self.mode = Config(), Mode.ADD
        self.items, self.queue = [1.0, 2.0], collections.deque([1.0], maxlen=1)
        self.ordered = collections.OrderedDict(a=1.0, b=2.0)
        self.nothing, self.empty = None, {}
        self._hidden = 1.5

    @property
    def hidden(self):
        return self._hidden

    def __call__(self, x):
        x = self.apply(x) * self.config.scale * self.hidden + self.config.sizes["a"]
        for name, value in self.ordered.items():
            x = x + value * len(name)
        if self.config.on and self.mode is Mode.ADD and self.nothing is None and not self.empty:
            x = x + sum(self.items) + sum(self.queue) + len(self.items)
        return helper(x)


def helper(x, shift=1.0, *, factor=2):
    return x * factor + shift


def state_of(holder):
    """What ``holder`` and its classes hold, as objects."""
    spaces = [vars(holder), vars(Holder), vars(Base), vars(Config), vars(Mode), globals()]
    spaces += [holder.empty, holder.ordered, vars(holder.config), holder.config.sizes]
    listed = [holder.items, holder.queue]
    kept = [*(list(space.items()) for space in spaces), *map(list, listed)]
    parts = helper.__code__, helper.__defaults__, helper.__kwdefaults__, type(holder)
    return [[*spaces[6:], *listed], kept, parts]


def same(before, after):
    """Whether both hold the same objects in the same order."""
    if isinstance(before, (list, tuple)) and type(before) is type(after):
        return len(before) == len(after) and all(map(same, before, after))
    return before is after


def test_each_kind_of_place_is_changed_noticed_and_put_back(device, x):
    holder = Holder(x)
    before, own = state_of(holder), vars(holder)
    places = right(holder, x)
    assert places.changed > 30 and places.also_run >= 7
    assert same(state_of(holder), before) and vars(holder) is own


def test_slots_weights_and_hooks_are_changed_and_put_back(device, x):
    slotted = Slotted(x)
    shift, scale = slotted.shift, slotted.scale
    assert right(slotted, x).also_run >= 2
    assert slotted.shift is shift and slotted.scale is scale and not hasattr(slotted, "absent")
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)).to(device).eval()
    net[1].weight = net[0].weight  # tied
    kept = {n: (p, p.data_ptr(), p.shape, p._version) for n, p in net.named_parameters()}
    values = {name: value.clone() for name, value in net.state_dict().items()}
    assert right(net, x).changed > 20
    for name, (weight, address, shape, version) in kept.items():
        now = net.get_parameter(name)
        assert now is weight and now.requires_grad and now.is_leaf
        assert (now.data_ptr(), now.shape) == (address, shape) and now._version >= version
        assert torch.equal(now, values[name])
    assert not any(module._forward_hooks for module in net.modules())


def test_settings_of_torch_are_changed_and_are_as_before(device, x):
    getter = getattr(torch._C, "_get_fp32_precision_getter", lambda *of: None)
    pairs = [(kind, op) for kind in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn")]

    def settings():
        return [s.read() for s in SETTINGS], [getter(*pair) for pair in pairs]

    before = settings()
    right(nn.Conv1d(4, 4, 3).to(device).eval(), x)
    assert settings() == before


# What only a graph that is wrong can show.


@pytest.mark.parametrize("kind", ["Item", "Content", "Length", "TypeOf", "Parts", "Live"])
def test_a_guard_that_leaves_out_a_kind_of_places_is_found(device, x, monkeypatch, kind):
    holder, slotted = Holder(x), Slotted(x)
    assert verify(lambda x: slotted(holder(x)), x).ok
    cls = getattr(kinds_of_places, kind)
    with monkeypatch.context() as patch:
        patch.setattr(cls, "term", lambda place, bind: "True")  # so it is not in the predicate
        patch.setattr(cls, "words", lambda place: None)
        patch.setattr(cls, "inside", None)
        report = verify(lambda x: slotted(holder(x)), x)
    assert not report.ok and report.graph.captured
    assert report.graph.places.noticed < report.graph.places.changed
    what = ", ".join(cause.what for cause in report.graph.causes)
    # What a walk from the function finds was read by no line.
    assert "holder" in what if kind == "Length" else "(read in test_places.py:" in what
    assert "but it would not follow a later change" in str(report)


def test_a_guard_that_does_not_know_a_place_at_all_is_found_by_its_results(device, x, monkeypatch):
    watch = Guard.watch

    def forgets(guard, place):
        if not place.path.endswith("_hidden"):
            watch(guard, place)

    monkeypatch.setattr(Guard, "watch", forgets)
    report = verify(Holder(x), x)
    assert (
        not report.ok and "_hidden (read in test_places.py:" in found(report.graph)["value-later"]
    )


def test_memory_that_a_guard_does_not_ask_for_is_found(device, x, monkeypatch):
    net = nn.Linear(8, 8).to(device)
    fast = gfxgraph.graphed(net)
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(kinds_of_places.Whereabouts, "term", lambda place, bind: "True")
        patch.setattr(kinds_of_places.Whereabouts, "words", lambda place: None)
        fast(x)
    assert "weight" in found(verify(fast, x).graph)["unnoticed"]


def test_a_wrapper_around_a_graph_that_has_fixed_a_value_is_found(device, x):
    options = {"scale": 2.0}
    scale = options["scale"]
    inner = gfxgraph.graphed(lambda x: x * scale)
    report = verify(lambda x: x * options["scale"], x, candidate=lambda x: inner(x))
    assert not report.ok and list(found(report.graph)) == ["value-later"]
    assert "options['scale'] (read in test_places.py:" in found(report.graph)["value-later"]
    assert "," not in found(report.graph)["value-later"]  # not what only the wrapper reads
    inner = gfxgraph.graphed(lambda x: x * options["scale"])
    assert verify(lambda x: x * options["scale"], x, candidate=lambda x: inner(x)).ok


def test_a_graph_by_hand_is_warned_of_the_values_that_it_has_fixed(device, x):
    options, static, graph = {"scale": 2.0, "name": "a"}, x.clone(), BridgedCUDAGraph()

    def scaled(x):
        return x * options["scale"] if options["name"] else x

    scaled(static)
    with region(graph):
        out = scaled(static)

    def by_hand(x):
        static.copy_(x)
        graph.replay()
        return out.clone()

    report = verify(scaled, x, candidate=by_hand)
    assert report.ok and report.graph.places.changed == 0
    assert "scale" in found(report.graph)["fixed-later"] and options == {"scale": 2.0, "name": "a"}
    assert not found(verify(scaled, x, candidate=lambda x: scaled(x)).graph)


def test_an_exception_after_a_change_is_one_on_both_sides(device, x):
    rows = {"n": 4}

    def fails(x):
        if rows["n"] != 4:
            raise KeyError(rows["n"])
        return x * 2

    assert right(fails, x).also_run == 1 and rows == {"n": 4}


def test_a_number_that_keeps_a_loop_from_ending_is_not_run(device, x):
    end = {"n": 4}

    def loops(x):
        n = 0
        while n != end["n"]:
            x, n = x + 1, n + 2
        return x

    report = verify(loops, x)
    assert report.ok and end == {"n": 4}
    assert (report.graph.places.also_run, report.graph.places.not_run) == (0, 1)
    assert "(left out: 1 call)" in str(report)


# What it leaves alone.


def test_memory_that_a_function_writes_only_with_another_value_is_put_back(device, x):
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to(device).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert right(net, x).also_run >= 8  # among them `training` of the norm
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_what_a_function_stores_only_with_another_value_is_taken_away(device, x):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.shows, self.seen = False, {"a": 1}

        def forward(self, x):
            if self.shows:
                self.shown = x
                self.seen["b"] = x
            return x * 2 * self.seen["a"]

    net = Net()
    before = list(vars(net).items()), list(net.seen.items())
    assert right(net, x).also_run >= 2
    assert same((list(vars(net).items()), list(net.seen.items())), before)


def test_no_code_of_the_program_runs_for_a_change(device, x):
    calls = []

    def counts(name):
        base = getattr(object, name, None) or (lambda self, *args: 1)

        def method(self, *args):
            calls.append(name)
            return base(self, *args)

        return method

    names = ("__eq__", "__ne__", "__repr__", "__str__", "__setattr__", "__delattr__", "__bool__")
    names += ("__len__", "__getattribute__", "__init_subclass__", "__reduce_ex__", "__del__")

    class Meta(type):
        def __setattr__(cls, name, value):
            calls.append("type")
            type.__setattr__(cls, name, value)

    space = {name: counts(name) for name in names if name != "__init_subclass__"}
    space["__hash__"] = lambda self: calls.append("__hash__") or 7
    space["__init_subclass__"] = classmethod(lambda cls: calls.append("__init_subclass__"))
    touchy = Meta("Touchy", (), space)
    one, other = touchy(), touchy()
    keyed = {one: 1.0, other: 2.0, "k": 3.0}
    del keyed[other]  # a copy would ask the others for their hash
    given = [one, keyed]
    object.__setattr__(one, "v", 2.0)
    touchy.scale = 2.0

    def reads(x):
        _, options = given
        return x * touchy.scale * options["k"] + len(options) + len(given)

    with torch.no_grad():
        fast = gfxgraph.graphed(reads)
        fast(x)
        fast(x)
    calls.clear()
    result = change_each(fast._dispatcher.guards(), [], 10.0)
    assert calls == [] and result.changed == result.noticed > 5 and not result.stuck
    assert given == [one, keyed] and next(iter(keyed)) is one


def test_the_old_graph_answers_afterwards(device, x):
    holder = Holder(x)
    fast = gfxgraph.graphed(holder)
    with torch.no_grad():
        fast(x)
        fast(x)
        entry = next(iter(fast._dispatcher.entries.graphs().values()))
        result = change_each(fast._dispatcher.guards(), [], 10.0)
        fast(x)
    assert result.changed == result.noticed and not result.stuck and not result.unnoticed
    assert fast.stats().recaptures == 0
    assert list(fast._dispatcher.entries.graphs().values()) == [entry]


def test_a_graph_that_is_made_again_for_nothing_is_said(device, x, monkeypatch):
    change = experiments.change_each
    fast = gfxgraph.graphed(Holder(x))

    def forgets(guards, others, seconds):
        result = change(guards, others, seconds)
        fast.reset()
        return result

    monkeypatch.setattr(experiments, "change_each", forgets)
    report = verify(fast, x)
    assert report.ok and "captured-again" in found(report.graph)


@pytest.mark.long
def test_a_class_is_known_by_its_dict_after_gc_freeze_too(device, x):
    """Servers freeze what they have loaded; nobody may write to the dict behind a class."""

    class Options:
        scale = 2.0

    def fn(x):
        return x * vars(Options)["scale"] + Options.scale

    counted = []
    for begins in (gc.collect, gc.freeze):
        begins()
        try:
            counted.append(verify(fn, x).graph.places)
        finally:
            gc.unfreeze()
    assert counted[0] == counted[1] and counted[0].changed > 0


def test_an_interrupt_while_a_place_is_changed_puts_it_back(device, x, monkeypatch):
    holder = Holder(x)
    fast = gfxgraph.graphed(holder)
    with torch.no_grad():
        fast(x)
    before = state_of(holder)
    asked = iter(range(10**6))

    def interrupted(guard):
        if next(asked) > 20:
            raise KeyboardInterrupt
        return True

    (guard,) = fast._dispatcher.guards()
    monkeypatch.setattr("gfxgraph.verifying.places._asked", interrupted)
    for _ in range(40):
        with pytest.raises(KeyboardInterrupt):
            change_each([guard], [], 10.0)
    assert same(state_of(holder), before) and guard.places_hold()


def test_where_there_is_no_time_places_are_left_and_counted(device, x, monkeypatch):
    monkeypatch.setattr(experiments, "_SECONDS", 0.0)
    monkeypatch.setattr(experiments, "_SECONDS_OF_RUNS", 0.0)
    report = verify(Holder(x), x)
    places = report.graph.places
    assert report.ok and places.changed <= 1 and places.unchanged > 30
    assert places.also_run == 0 and places.not_run >= 7


def test_other_threads_get_right_results_meanwhile(device, x):
    holder = Holder(x)
    fast = gfxgraph.graphed(holder)
    with torch.no_grad():
        expected = holder(x)
        fast(x)
    wrong, stop = [], threading.Event()

    def replays():
        with torch.no_grad():
            while not stop.is_set():
                if not torch.allclose(fast(x), expected):
                    wrong.append(True)

    thread = threading.Thread(target=replays)
    thread.start()
    try:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            change_each(fast._dispatcher.guards(), [], 0.2)
    finally:
        stop.set()
        thread.join()
    assert not wrong and fast.stats().recaptures == 0


def test_a_module_of_ones_own_and_its_globals(device, x, monkeypatch):
    module = types.ModuleType("places_subject")
    exec("A, B = 2.0, None\ndef f(x):\n    return x * A if B is None else x", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = list(vars(module).items())
    assert right(lambda x: module.f(x) + module.A, x).also_run >= 1
    assert same(list(vars(module).items()), before)


def test_compiled_code_is_not_compiled_again_for_each_value(device, x):
    fast = gfxgraph.graphed(Holder(x), compile={"backend": "aot_eager"})
    places = verify(fast, x).graph.places
    assert places.changed == places.noticed > 30 and places.also_run == 0


def test_the_counts_are_in_the_report_and_its_data(device, x):
    report = verify(Holder(x), x)
    data = json.loads(json.dumps(report.to_dict()))["graph"]["places"]
    assert data["changed"] == data["noticed"] > 30 and data["also_run"] >= 7
    text = f"It noticed {data['noticed']} of {data['changed']} changes to what it watches; "
    assert text in str(report)


def test_a_value_with_which_eager_reads_what_nobody_wrote_accuses_no_graph(device):
    lstm = nn.LSTM(3, 1).to(device)  # with another hidden_size, torch reads behind its tensors
    with torch.no_grad():
        for _ in range(2):
            right(lstm, torch.randn(5, 3, device=device))
