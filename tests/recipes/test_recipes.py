"""``save_recipes`` and ``load_recipes``: the graphs of a service are there before its requests."""

from __future__ import annotations

import random
import threading

import pytest
import torch

import gfxgraph
from gfxgraph.errors import ArgumentError
from tests.helpers.models import net, rows

pytestmark = pytest.mark.usefixtures("no_grad", "one_thread")


def captures():
    return gfxgraph.stats()["capture_count"]


def scaled(x, scale=2.0, *, mode="double"):
    return x * scale if mode == "double" else x


def start(fn=scaled, **options):
    """What a service does when it starts: it makes its callable anew."""
    return gfxgraph.graphed(fn, **options)


def saved(path, fn=scaled, calls=(), **options):
    """A service ran, saved its recipes and ended."""
    service = start(fn, **options)
    for args in calls:
        service(*args)
    report = gfxgraph.save_recipes(path)
    del service
    return report


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recipes.json"


def of_sizes(device, *sizes):
    return [(rows(device, size),) for size in sizes]


def test_no_request_captures_after_a_start_with_recipes(device, path):
    sizes = list(range(1, 17))
    model = net(device)
    saved(path, model, of_sizes(device, *sizes, *sizes))
    service = start(model)
    before = captures()
    report = gfxgraph.load_recipes(path)
    assert len(report.captured) == captures() - before == 16
    before = captures()
    for n in range(1000):
        x = rows(device, sizes[n % 16], seed=n)
        torch.testing.assert_close(service(x), model(x))
    assert captures() == before
    assert service.stats().replays == 1000
    assert not service.stats().fallbacks


def test_the_most_used_recipe_is_captured_first(device, path):
    saved(path, calls=of_sizes(device, 1, 1, 2, 2, 2, 2, 3, 3, 3))
    service = start()
    report = gfxgraph.load_recipes(path)
    assert [row.key.split(",")[0] for row in report.captured] == [
        "float32[2",
        "float32[3",
        "float32[1",
    ]
    assert [row.replays for row in report.rows] == [3, 2, 1]
    assert service.stats().captures == 3


def test_a_file_that_is_not_there_captures_nothing_and_says_so(path):
    report = gfxgraph.load_recipes(path)
    assert report.rows == []
    assert str(path) in report.reason
    assert "there is no file" in str(report)


def test_plain_arguments_come_back_as_they_were(device, path):
    def fn(x, pairs, *, where=None, **more):
        return x * pairs[0][1] * more["factor"]

    arguments = {"where": slice(1, None), "factor": -0.0, "name": "ä\ud800", "kind": torch.float16}
    call = [(1, 2.5), {"a": 3, 4: 1j}]
    service = start(fn)
    for _ in range(2):
        service(rows(device, 2), call, **arguments)
    assert len(gfxgraph.save_recipes(path).saved) == 1
    del service
    service = start(fn)
    assert len(gfxgraph.load_recipes(path).captured) == 1
    before = captures()
    for _ in range(2):
        service(rows(device, 2), call, **arguments)
    assert captures() == before and service.stats().replays == 2


class Config:
    """No plain data."""


def test_arguments_that_are_no_plain_data_are_not_saved_and_the_report_says_why(device, path):
    config = Config()
    service = start(lambda x, config: x * 2)
    service(rows(device, 2), config)
    report = gfxgraph.save_recipes(path)
    assert not report.saved
    assert "Config: no plain data" in report.skipped[0].reason
    assert "Config" in str(report)
    del service


def test_a_call_that_takes_another_path_than_the_made_one_is_captured_afresh(device, path):
    def fn(x):
        return x + 1 if x.sum() > 0 else x - 1

    negative = -torch.ones(4, device=device)
    saved(path, fn, [(negative,), (negative,)])
    service = start(fn)
    assert len(gfxgraph.load_recipes(path).captured) == 1
    for _ in range(3):
        assert torch.equal(service(negative), negative - 1)
    assert service.stats().recaptures == 1
    assert torch.equal(service(-negative), -negative + 1)


def test_a_graph_that_differs_from_the_first_real_call_answers_none(device, path):
    """Python decides by something that no guard of a graph sees: what another process has left."""
    state = {"factor": 2.0}

    def fn(x):
        return hidden(x)

    @torch.library.custom_op("recipes_test::hidden", mutates_args=())
    def hidden(x: torch.Tensor) -> torch.Tensor:
        return x * state["factor"]

    hidden.register_fake(torch.empty_like)
    x = rows(device, 3)
    saved(path, fn, [(x,), (x,)])
    service = start(fn)
    gfxgraph.load_recipes(path)
    state["factor"] = 3.0
    for _ in range(3):
        assert torch.equal(service(x), fn(x))


def test_what_a_function_writes_draws_or_changes_is_as_before_after_a_start(device, path):
    seen = torch.zeros(4, device=device)

    def writes(x):
        seen.add_(x.sum(0))
        return seen + torch.rand_like(x)

    x = torch.ones(2, 4, device=device)
    saved(path, writes, [(x,), (x,)])
    service = start(writes)
    seen.zero_()
    states = torch.get_rng_state(), random.getstate()
    on_device = torch.cuda.get_rng_state() if device == "cuda" else None
    assert len(gfxgraph.load_recipes(path).captured) == 1
    assert not seen.any()
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    if on_device is not None:
        assert torch.equal(on_device, torch.cuda.get_rng_state())
    before = captures()
    for n in range(1, 4):
        generator = torch.random.fork_rng()
        with generator:
            drawn = torch.rand_like(x)
        assert torch.equal(service(x), seen + drawn)
        assert torch.equal(seen, torch.full_like(seen, 2.0 * n))
    assert captures() == before


class Counter:
    """A service with state in Python."""

    def __init__(self):
        self.calls = 0
        self.cache = None

    def counting(self, x):
        self.calls += 1
        return x * 2

    def caching(self, x):
        if self.cache is None:
            self.cache = x.new_ones(())
        return x * self.cache


def test_calls_that_write_in_python_are_left_to_real_calls(device, path):
    counter = Counter()
    service = start(counter.counting)
    for _ in range(4):
        service(rows(device, 2))
    report = gfxgraph.save_recipes(path)
    assert not report.saved and "calls write in Python" in report.skipped[-1].reason
    del service


def test_a_cache_that_the_first_call_fills_is_still_empty_after_a_start(device, path):
    before = Counter()
    saved(path, before.caching, [(rows(device, 2),)] * 3)
    counter = Counter()
    service = start(counter.caching)
    report = gfxgraph.load_recipes(path)
    assert counter.cache is None
    assert "cache" in report.skipped[0].reason
    for _ in range(4):
        assert torch.equal(service(rows(device, 2)), rows(device, 2))
    assert service.stats().replays


class Model(torch.nn.Module):
    """A graphed method."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    @gfxgraph.graphed
    def forward(self, x, mask):
        return self.layer(x) * mask


def test_a_graphed_method_is_captured_for_an_instance_that_was_never_called(device, path):
    mask = torch.tensor([True] * 4 + [False] * 4, device=device)
    model = Model().to(device).eval()
    for _ in range(3):
        model(rows(device, 2), mask)
    assert len(gfxgraph.save_recipes(path).saved) == 1
    del model
    model = Model().to(device).eval()
    report = gfxgraph.load_recipes(path)
    assert len(report.captured) == 1, report
    before = captures()
    for _ in range(3):
        model(rows(device, 2), mask)
    assert captures() == before and model.forward.stats().replays == 3


def test_a_pool_of_buckets_is_there_before_the_first_request(device, path):
    model = net(device)
    pool = gfxgraph.ShapeBucketPool(model, buckets=[2, 4, 8])
    for size in (1, 2, 3, 4, 5, 8) * 2:
        pool(rows(device, size))
    assert len(gfxgraph.save_recipes(path).saved) == 3
    del pool
    pool = gfxgraph.ShapeBucketPool(model, buckets=[2, 4, 8])
    assert len(gfxgraph.load_recipes(path).captured) == 3
    before = captures()
    for n in range(50):
        x = rows(device, 1 + n % 8, seed=n)
        torch.testing.assert_close(pool(x), model(x))
    assert captures() == before
    assert not pool.stats().fallbacks


def test_a_pool_whose_rows_influence_each_other_is_judged_again_by_real_calls(device, path):
    weights = {"mix": 0.0}
    table = torch.randn(16, 4, device=device)

    def fn(ids):
        found = table[ids]
        return found - weights["mix"] * found.mean(0)

    def ids(size, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(16, (size,), generator=generator).to(device)

    pool = gfxgraph.ShapeBucketPool(fn, buckets=[4, 8])
    for size in (3, 4, 7, 8):
        pool(ids(size))
    gfxgraph.save_recipes(path)
    del pool
    weights["mix"] = 1.0
    pool = gfxgraph.ShapeBucketPool(fn, buckets=[4, 8])
    gfxgraph.load_recipes(path)
    for n in range(20):
        x = ids(1 + n % 8, seed=n)
        torch.testing.assert_close(pool(x), fn(x))


def test_numbers_that_are_inputs_are_captured_once(device, path):
    def fn(x, t):
        return x * t

    saved(path, fn, [(rows(device, 2), 0.5), (rows(device, 2), 0.7)], inputs=["t"])
    service = start(fn, inputs=["t"])
    assert len(gfxgraph.load_recipes(path).captured) == 1
    before = captures()
    for t in (0.1, 2.0, -3.5):
        torch.testing.assert_close(service(rows(device, 2), t), rows(device, 2) * t)
    assert captures() == before


MODES = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast(gfxgraph.device_type(), dtype=torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_recipe_is_captured_in_the_modes_of_its_calls(device, path, mode):
    model = net(device).requires_grad_(False)
    service = start(model)
    with MODES[mode]():
        x = rows(device, 2)
        for _ in range(2):
            service(x)
    assert len(gfxgraph.save_recipes(path).saved) == 1
    del service
    service = start(model)
    report = gfxgraph.load_recipes(path)
    assert len(report.captured) == 1, report
    before = captures()
    with MODES[mode]():
        for _ in range(3):
            torch.testing.assert_close(service(x), model(x))
            assert service(x).is_inference() == model(x).is_inference()
    assert captures() == before


def test_a_module_in_training_mode_is_not_captured_for_one_in_eval_mode(device, path):
    model = net(device)
    saved(path, model, of_sizes(device, 2, 2))
    service = start(model.train())
    report = gfxgraph.load_recipes(path)
    assert "modes of torch" in report.skipped[0].reason
    del service


@pytest.mark.long
def test_other_code_options_or_parameters_make_recipes_invalid_and_the_report_says_which(
    device, path
):
    def fn(x):
        return x * 2

    def other(x):
        return x * 3

    other.__qualname__ = fn.__qualname__
    saved(path, fn, of_sizes(device, 2, 2))
    for made, reason in (
        (lambda: start(other), "the code of the function"),
        (lambda: start(fn, warmup=3), "the option warmup was 2, and is 3"),
        (lambda: start(scaled), "there is no graphed callable"),
    ):
        service = made()
        report = gfxgraph.load_recipes(path)
        assert reason in report.skipped[0].reason
        assert not service.stats().captures
        del service
    model = torch.nn.Linear(8, 4).to(device).eval()
    saved(path, model, of_sizes(device, 2, 2))
    service = start(torch.nn.Linear(8, 5).to(device).eval())
    assert "the parameters have other" in gfxgraph.load_recipes(path).skipped[0].reason
    del service


def test_another_version_makes_recipes_invalid(device, path):
    saved(path, calls=of_sizes(device, 2, 2))
    path.write_text(path.read_text().replace(f'"torch": "{torch.__version__}"', '"torch": "1.0"'))
    service = start()
    report = gfxgraph.load_recipes(path)
    assert report.skipped[0].reason == f"torch was 1.0, and is {torch.__version__}"
    assert not service.stats().captures


def test_budgets_leave_out_what_does_not_fit_and_calls_capture_it_later(device, path):
    saved(path, calls=of_sizes(device, 4, 4, 4, 2, 2))
    service = start()
    report = gfxgraph.load_recipes(path, seconds=0)
    assert {row.reason for row in report.rows} == {"the budget of 0 seconds is spent"}
    report = gfxgraph.load_recipes(path, max_bytes=1)
    assert all("does not fit into the budget of 1 B" in row.reason for row in report.rows)
    assert not service.stats().captures
    service(*of_sizes(device, 4)[0])
    assert service.stats().captures == 1


def test_what_is_there_already_is_not_captured_twice(device, path):
    saved(path, calls=of_sizes(device, 2, 2))
    service = start()
    assert len(gfxgraph.load_recipes(path).captured) == 1
    again = gfxgraph.load_recipes(path)
    assert "known already" in again.skipped[0].reason
    assert service.stats().captures == 1


def test_saving_loading_and_saving_again_keeps_the_same_recipes(device, path):
    saved(path, calls=of_sizes(device, 2, 2, 3))
    service = start()
    gfxgraph.load_recipes(path)
    for _ in range(3):
        service(rows(device, 3))
    first = {row.key for row in gfxgraph.save_recipes(path).saved}
    del service
    service = start()
    assert {row.key for row in gfxgraph.load_recipes(path).captured} == first
    assert [row.replays for row in gfxgraph.save_recipes(path).saved] == [0, 0]
    assert service.stats().replays == 0


def test_max_graphs_is_not_exceeded(device, path):
    saved(path, calls=of_sizes(device, 1, 2, 3, 4), max_graphs=4)
    service = start(max_graphs=4)
    service(rows(device, 5))
    report = gfxgraph.load_recipes(path)
    assert len(report.captured) == 3
    assert "max_graphs=4" in report.skipped[0].reason
    assert service.stats().evictions == 0


def test_a_function_that_raises_for_made_arguments_is_captured_by_a_real_call(device, path):
    def fn(x, n):
        if not bool((x != 0.5).any()):
            raise ValueError("all the same")
        return x * n

    x = rows(device, 3)
    saved(path, fn, [(x, 2), (x, 2), (x, 2)])
    service = start(fn)
    report = gfxgraph.load_recipes(path)
    assert "all the same" in report.skipped[0].reason
    assert not service.stats().refused
    for _ in range(3):
        assert torch.equal(service(x, 2), x * 2)


def test_recipes_are_loaded_while_another_thread_serves(device, path):
    model = net(device)
    sizes = list(range(1, 9))
    saved(path, model, of_sizes(device, *sizes, *sizes))
    service, stop, wrong = start(model), threading.Event(), []

    def serve():
        n = 0
        while not stop.is_set():
            n += 1
            x = rows(device, sizes[n % 8], seed=n)
            with torch.no_grad():
                if not torch.allclose(service(x), model(x), atol=1e-5):
                    wrong.append(n)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        report = gfxgraph.load_recipes(path)
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert len(report.rows) == 8
    assert service.stats().captures == 8


@pytest.mark.parametrize(
    "arguments",
    [
        {"seconds": -1},
        {"seconds": float("nan")},
        {"seconds": "3"},
        {"seconds": True},
        {"max_bytes": 1.5},
        {"max_bytes": -1},
        {"progress": None},
    ],
)
def test_wrong_arguments_are_refused(path, arguments):
    with pytest.raises(ArgumentError, match="expected"):
        gfxgraph.load_recipes(path, **arguments)


@pytest.mark.parametrize("wrong", [None, 3, b"x", "", "a\0b"])
def test_a_wrong_path_is_refused(wrong):
    for call in (gfxgraph.save_recipes, gfxgraph.load_recipes):
        with pytest.raises(ArgumentError, match="expected the path of a file"):
            call(wrong)


def test_a_call_of_which_a_part_is_read_may_take_another_path_too(device, path):
    def fn(batch):
        x = batch["x"]
        return x + 1 if x.sum() > 0 else x - 1

    def batch(sign):
        return {"x": sign * torch.ones(4, device=device), "text": "hello", "more": [1, 2]}

    saved(path, fn, [(batch(1),), (batch(1),)])
    service = start(fn)
    assert len(gfxgraph.load_recipes(path).captured) == 1
    for sign in (-1, 1, -1, 1):
        assert torch.equal(service(batch(sign)), fn(batch(sign)))
    assert service.stats().recaptures == 1 and not service.stats().fallbacks
