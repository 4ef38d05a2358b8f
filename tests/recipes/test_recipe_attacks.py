"""Recipes of functions that are not plain, and starts at which something is in the way."""

from __future__ import annotations

import collections
import enum
import functools
import json
import os
import sys
import threading

import pytest
import torch

import gfxgraph
from gfxgraph.errors import RecipeError
from tests.helpers.models import rows
from tests.helpers.sampled import sampled
from tests.helpers.threads import on_threads

pytestmark = pytest.mark.usefixtures("no_grad", "one_thread")


def captures():
    return gfxgraph.stats()["capture_count"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recipes.json"


def restarted(path, make, use):
    """A service that was used, saved and made anew; and the reports of both."""
    service = make()
    for _ in range(2):
        use(service)
    saved = gfxgraph.save_recipes(path)
    del service
    service = make()
    return service, saved, gfxgraph.load_recipes(path)


def writes_its_argument(x):
    x.add_(1)
    return x * 2


def fills_a_list(x, out):
    out.append(x * 2)
    return x


def asks_strides(x):
    return x * x.stride(0)


class Scaled:
    """Called as it is."""

    scale = 4

    def __call__(self, x):
        return x * self.scale

    @classmethod
    def of_class(cls, x):
        return x * cls.scale


FUNCTIONS = {
    "writes its argument": (writes_its_argument, lambda x: (x,)),
    "stores in an argument": (fills_a_list, lambda x: (x, [])),
    "gives its argument back": (lambda x: x, lambda x: (x,)),
    "a transposed argument": (asks_strides, lambda x: (x.t(),)),
    "a slice": (lambda x: x + 1, lambda x: (x[:, ::2],)),
    "an expanded argument": (lambda x: x + 1, lambda x: (x[:1].expand(3, 8),)),
    "nothing in it": (lambda x: x + 1, lambda x: (x[:0],)),
    "indices": (lambda x, n: x[n], lambda x: (x, torch.tensor([1, 0], device=x.device))),
    "probabilities": (lambda x: torch.multinomial(x.abs(), 2), lambda x: (x,)),
    "dropout": (lambda x: torch.nn.functional.dropout(x, 0.5, True), lambda x: (x,)),
    "a view of an inference tensor": (
        lambda x: x[:1],
        lambda x: (torch.inference_mode()(x.clone)(),),
    ),
    "a dict of which a part is read": (
        lambda batch: batch["x"] * batch["more"]["scale"],
        lambda x: ({"x": x, "text": "hello", "more": {"scale": 2.0, "unused": x[0]}},),
    ),
    "an ordered dict": (
        lambda batch: batch[3] * batch[True],
        lambda x: (collections.OrderedDict({3: x, True: x + 1}),),
    ),
    "a partial": (functools.partial(torch.mul, other=3.0), lambda x: (x,)),
    "a function in C": (torch.relu, lambda x: (x,)),
    "an object": (Scaled(), lambda x: (x,)),
    "a class method": (Scaled.of_class, lambda x: (x,)),
}


@pytest.mark.parametrize("name", sampled(FUNCTIONS, 3))
def test_a_start_with_recipes_captures_all_and_answers_as_eager_does(device, path, name):
    fn, arguments = FUNCTIONS[name]

    def use(service):
        service(*arguments(rows(device, 3)))

    service, saved, loaded = restarted(path, lambda: gfxgraph.graphed(fn), use)
    assert len(saved.saved) == len(loaded.captured) == 1, f"{saved}\n{loaded}"
    before = captures()
    for seed in range(1, 4):
        given, expected_given = (arguments(rows(device, 3, seed=seed)) for _ in range(2))
        torch.manual_seed(seed)
        got = service(*given)
        torch.manual_seed(seed)
        torch.testing.assert_close(got, fn(*expected_given))
        assert str(given) == str(expected_given)
    assert captures() == before
    assert service.stats().replays == 3 and service.stats().eager_calls == 0


class Kind(enum.Enum):
    """No plain value."""

    ONE = 1


Pair = collections.namedtuple("Pair", "a b")

NOT_PLAIN = {
    "an enum": (lambda x: (x, Kind.ONE), "Kind: no plain data"),
    "a named tuple": (lambda x: (Pair(x, 1),), "Pair: no plain data"),
    "one tensor twice": (lambda x: (x, x), "share memory"),
    "one list twice": (lambda x: ([x],) * 2, "one container twice"),
    "a parameter": (
        lambda x: (torch.nn.Parameter(x, requires_grad=False),),
        "is a Parameter",
    ),
    "a conjugate": (lambda x: (x.to(torch.complex64).conj(),), "a conjugate or negative view"),
    "a long text": (lambda x: (x, "a" * 20_000), "more than 10000 characters"),
}


@pytest.mark.parametrize(("arguments", "reason"), NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_cannot_be_written_down_is_told(device, path, arguments, reason):
    service = gfxgraph.graphed(lambda first, second=None: torch.zeros(1, device=device))
    for _ in range(2):
        service(*arguments(rows(device, 3)))
    (row,) = gfxgraph.save_recipes(path).skipped
    assert reason in row.reason
    assert json.loads(path.read_text())["functions"] == []


def test_a_function_that_calls_a_no_graph_function_is_not_saved(device, path):
    on_the_host = gfxgraph.no_graph(lambda x: x)
    service = gfxgraph.graphed(lambda x: on_the_host(x * 2) + 1)
    for _ in range(2):
        service(rows(device, 2))
    assert service.stats().captures
    assert "no_graph functions" in gfxgraph.save_recipes(path).skipped[0].reason


def test_an_effect_that_code_has_got_since_is_not_had_at_the_start(device, path):
    target = path.with_name("effect")
    writes = []

    def fn(x):
        if writes:
            target.write_text("done")
        return x * 2

    service = gfxgraph.graphed(fn)
    for _ in range(2):
        service(rows(device, 2))
    gfxgraph.save_recipes(path)
    service.reset()
    writes.append(1)
    assert not gfxgraph.load_recipes(path).captured
    assert not target.exists()
    service(rows(device, 2))
    assert target.exists()


class Decoder(torch.nn.Module):
    """Its cache and its position move with each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))
        self.register_buffer("cache", torch.zeros(8, 8))

    def forward(self, x):
        self.cache.index_copy_(0, self.position, x)
        self.position.add_(1)
        return self.cache.sum() + self.position


def test_buffers_that_calls_advance_stay_where_they_were(device, path):
    def use(service):
        service(rows(device, 1))

    def make():
        return gfxgraph.graphed(Decoder().to(device).eval())

    service, _, loaded = restarted(path, make, use)
    assert len(loaded.captured) == 1
    assert not service.position.any() and not service.cache.any()
    eager, before = Decoder().to(device).eval(), captures()
    for n in range(5):
        x = rows(device, 1, seed=n)
        torch.testing.assert_close(service(x), eager(x))
    assert torch.equal(service.cache, eager.cache) and int(service.position) == 5
    assert captures() == before


def test_an_error_of_the_first_request_is_the_callers_and_the_graph_stays(device, path):
    broken = []

    def fn(x):
        if broken:
            raise KeyError("mine")
        return x * 2

    def use(service):
        service(rows(device, 2))

    service, _, loaded = restarted(path, lambda: gfxgraph.graphed(fn), use)
    assert len(loaded.captured) == 1
    broken.append(1)
    with pytest.raises(KeyError, match="mine"):
        service(rows(device, 2))
    broken.clear()
    for seed in range(3):
        x = rows(device, 2, seed=seed)
        assert torch.equal(service(x), x * 2)


def test_a_weight_that_was_replaced_after_the_start_is_the_one_that_counts(device, path):
    model = torch.nn.Linear(8, 4).to(device).eval()

    def use(service):
        service(rows(device, 2))

    service, _, loaded = restarted(path, lambda: gfxgraph.graphed(model), use)
    assert len(loaded.captured) == 1
    model.weight = torch.nn.Parameter(torch.randn(4, 8, device=device))
    for seed in range(3):
        x = rows(device, 2, seed=seed)
        torch.testing.assert_close(service(x), model(x))


def test_many_threads_send_the_first_requests(device, path):
    model = torch.nn.Linear(8, 4).to(device).eval()

    def use(service):
        for size in (1, 2, 3, 4):
            service(rows(device, size))

    def make():
        return gfxgraph.ShapeBucketPool(model, buckets=[2, 4])

    pool, _, loaded = restarted(path, make, use)
    assert len(loaded.captured) == 2
    before = captures()

    def serve(number):
        with torch.no_grad():
            for seed in range(20):
                x = rows(device, 1 + (number + seed) % 4, seed=seed)
                torch.testing.assert_close(pool(x), model(x))

    on_threads(serve, range(6))
    assert captures() == before


@pytest.mark.long
def test_threads_that_load_at_once_capture_each_recipe_once(device, path):
    def use(service):
        for size in range(1, 7):
            service(rows(device, size))

    service, _, _ = restarted(path, lambda: gfxgraph.graphed(lambda x: x * 2), use)
    service.reset()
    reports = []
    on_threads(lambda _: reports.append(gfxgraph.load_recipes(path)), range(4))
    assert sum(len(report.captured) for report in reports) == 6
    assert service.stats().captures == 6


def test_an_interrupt_ends_the_start_and_leaves_nothing_behind(device, path):
    interrupts = []

    def fn(x):
        if interrupts:
            raise KeyboardInterrupt
        return x * 2

    service = gfxgraph.graphed(fn)
    for _ in range(2):
        service(rows(device, 2))
    gfxgraph.save_recipes(path)
    service.reset()
    interrupts.append(1)
    with pytest.raises(KeyboardInterrupt):
        gfxgraph.load_recipes(path)
    interrupts.clear()
    assert len(gfxgraph.load_recipes(path).captured) == 1


def test_several_instances_of_a_class_get_the_graphs_of_their_number(device, path):
    class Layer(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        @gfxgraph.graphed
        def forward(self, x):
            return x * self.factor

    layers = [Layer(n).eval() for n in range(3)]
    for n, layer in enumerate(layers):
        for _ in range(2 + n):
            layer(rows(device, n + 1))
    assert len(gfxgraph.save_recipes(path).saved) == 3
    layers[0].cycle = layers[0]  # dead, and still in memory: it takes no part
    del layers, layer
    layers = [Layer(n).eval() for n in range(2)]
    report = gfxgraph.load_recipes(path)
    assert len(report.captured) == 2
    assert "there is no number" in report.skipped[0].reason
    for n, layer in enumerate(layers):
        assert torch.equal(layer(rows(device, n + 1)), rows(device, n + 1) * n)


def test_branches_of_a_conditional_graph_are_captured_too(device, path):
    def make():
        graph = gfxgraph.ConditionalGraph()
        return graph.add_branch("double", torch.neg).add_branch("half", torch.abs)

    def use(graph):
        graph.run("double", rows(device, 2))
        graph.run("half", rows(device, 2))

    graph, _, loaded = restarted(path, make, use)
    assert len(loaded.captured) == 2
    before = captures()
    assert torch.equal(graph.run("half", rows(device, 2)), rows(device, 2).abs())
    assert torch.equal(graph.run("double", rows(device, 2)), -rows(device, 2))
    assert captures() == before


def test_a_start_inside_of_an_error_handler_says_that_it_is_none(device, path):
    service = gfxgraph.graphed(lambda x: x * 2)
    for _ in range(2):
        service(rows(device, 2))
    gfxgraph.save_recipes(path)
    service.reset()
    try:
        raise ValueError
    except ValueError:
        report = gfxgraph.load_recipes(path)
    assert "while an error is handled" in report.skipped[0].reason


def test_a_start_without_stderr_shows_no_bar(device, path, monkeypatch):
    service = gfxgraph.graphed(lambda x: x * 2)
    for _ in range(2):
        service(rows(device, 2))
    gfxgraph.save_recipes(path)
    for stream in (None, open(os.devnull, "w")):  # noqa: SIM115
        if stream is not None:
            stream.close()
        service.reset()
        monkeypatch.setattr(sys, "stderr", stream)
        assert len(gfxgraph.load_recipes(path).captured) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a terminal of POSIX")
@pytest.mark.parametrize("progress", [True, False])
def test_there_is_a_progress_bar_on_a_terminal(device, path, monkeypatch, progress):
    service = gfxgraph.graphed(lambda x: x * 2)
    for _ in range(2):
        service(rows(device, 2))
    gfxgraph.save_recipes(path)
    service.reset()
    ours, theirs = os.openpty()
    with open(theirs, "w", closefd=False) as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        gfxgraph.load_recipes(path, progress=progress)
    os.write(theirs, b"end")
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    os.close(theirs)
    assert ("capturing recipes" in shown) is progress


def test_a_device_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RecipeError, match="no regular file"):
        gfxgraph.save_recipes(pipe)
    assert pipe.is_fifo()


@pytest.mark.long
def test_threads_that_fill_tuples_are_not_disturbed_by_a_load(device, path):
    class Layer(torch.nn.Module):
        @gfxgraph.graphed
        def forward(self, x):
            return x * 2

    layer = Layer().eval()
    for _ in range(2):
        layer(rows(device, 1))
    gfxgraph.save_recipes(path)
    over, raised, filled = threading.Event(), [], []

    def fill():
        while not over.is_set():
            try:
                tuple(n for n in range(3000))
            except SystemError as error:
                raised.append(error)
            filled.append(None)

    threads = [threading.Thread(target=fill) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            gfxgraph.load_recipes(path, progress=False)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert filled and not raised
