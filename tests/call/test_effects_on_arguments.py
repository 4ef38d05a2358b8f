"""What a call writes to its arguments is stored there again after each replay."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from types import SimpleNamespace

import pytest
import torch

import gfxgraph


class State:
    def __init__(self, device):
        self.h = torch.zeros(2, device=device)
        self.n = 0
        self.last = None


def step(state, x):
    state.h = torch.tanh(x + state.h)
    state.n += 1
    state.last = x
    return state.h * 2


def of_call(device, n):
    return torch.full((2,), float(n), device=device)


def replays(graph):
    return graph.stats().replays


@pytest.mark.parametrize("kind", ("class", "namespace"))
@torch.no_grad()
def test_state_that_is_passed_in_is_what_eager_execution_leaves_there(device, kind):
    def made():
        state = State(device)
        return state if kind == "class" else SimpleNamespace(**vars(state))

    graph, state, twin = gfxgraph.graphed(step), made(), made()
    for n in range(8):
        x = of_call(device, n)
        assert torch.equal(graph(state, x), step(twin, x))
        assert torch.equal(state.h, twin.h) and state.n == twin.n and state.last is x
    stats = graph.stats()
    assert stats.captures <= 2 and stats.replays >= 5 and not stats.fallbacks
    assert set(stats.stored) == {"argument 0.h", "argument 0.n", "argument 0.last"}


@torch.no_grad()
def test_a_new_object_in_each_call_is_no_new_key(device):
    graph = gfxgraph.graphed(step)
    for n in range(8):
        state, twin, x = State(device), State(device), of_call(device, n)
        state.n = twin.n = n * 10
        assert torch.equal(graph(state, x), step(twin, x))
        assert torch.equal(state.h, twin.h) and state.n == twin.n and state.last is x
    assert graph.stats().captures == 1 and replays(graph) >= 5


@torch.no_grad()
def test_only_the_object_of_this_call_is_written(device):
    graph, states = gfxgraph.graphed(step), [State(device) for _ in range(6)]
    for n, state in enumerate(states):
        graph(state, of_call(device, n))
        assert [other.n for other in states] == [1] * (n + 1) + [0] * (5 - n)
    assert len({id(state.h) for state in states}) == 6
    assert len({state.h.data_ptr() for state in states}) == 6


@torch.no_grad()
def test_a_dict_that_is_filled_holds_the_very_tensors_of_the_result(device):
    def fill(out, x):
        out["logits"] = x * 2
        out["x"] = x
        return out["logits"]

    graph = gfxgraph.graphed(fill)
    for n in range(5):
        out, x = {}, of_call(device, n)
        result = graph(out, x)
        assert list(out) == ["logits", "x"] and out["logits"] is result and out["x"] is x
        assert torch.equal(result, x * 2)
    assert replays(graph) == 4 and graph.stats().stored == [
        "argument 0['logits']",
        "argument 0['x']",
    ]


@torch.no_grad()
def test_what_is_filled_may_be_a_keyword_argument_and_may_be_returned(device):
    def fill(x, *, out):
        out["y"] = x * 2
        return out

    graph = gfxgraph.graphed(fill)
    for n in range(5):
        out = {"n": 1}
        assert graph(of_call(device, n), out=out) is out
        assert out["n"] == 1 and torch.equal(out["y"], of_call(device, 2 * n))
    assert replays(graph) == 4 and graph.stats().stored == ["argument out['y']"]


@torch.no_grad()
def test_a_list_that_is_given_empty_is_filled(device):
    def collect(outputs, x):
        for layer in range(3):
            x = x + layer
            outputs.append(x)
        return x

    graph = gfxgraph.graphed(collect)
    for n in range(5):
        outputs = []
        assert graph(outputs, of_call(device, n)) is outputs[-1]
        assert [float(t[0]) for t in outputs] == [n, n + 1, n + 3]
    assert replays(graph) == 4 and graph.stats().stored == ["argument 0"]


@torch.no_grad()
def test_a_list_that_grows_in_each_call_stops_being_captured(device):
    def collect(outputs, x):
        outputs.append(x * 2)
        return x

    graph, outputs = gfxgraph.graphed(collect), []
    for n in range(20):
        graph(outputs, of_call(device, n))
        assert len(outputs) == n + 1
    assert graph.stats().captures <= 9 and graph.stats().thrashing


@torch.no_grad()
def test_a_deque_forgets_what_is_too_much(device):
    def push(queue, x):
        queue.append(x * 2)
        return torch.stack(tuple(queue)).sum(0)

    graph = gfxgraph.graphed(push)
    queue, twin = (deque([of_call(device, 0)] * 2, maxlen=2) for _ in range(2))
    for n in range(8):
        assert torch.equal(graph(queue, of_call(device, n)), push(twin, of_call(device, n)))
        assert all(map(torch.equal, queue, twin)) and queue.maxlen == 2
    assert replays(graph) >= 4


@torch.no_grad()
def test_preprocessing_in_place_is_a_graph(device):
    def prepare(batch):
        batch["image"] = (batch["image"].float() / 255 - 0.5) / 0.5
        batch["state"] = batch["state"].to(batch["image"].device)
        batch.setdefault("pad", batch["state"] > 0)
        task = batch.pop("task")
        return {**batch, "has_task": bool(task)}

    def made(n):
        image = torch.full((3, 2), n, dtype=torch.uint8, device=device)
        return {"image": image, "task": "pick", "state": of_call(device, n)}

    graph = gfxgraph.graphed(prepare)
    for n in range(5):
        batch, twin = made(n), made(n)
        state = batch["state"]
        result, expected = graph(batch), prepare(twin)
        assert list(batch) == list(twin) and list(result) == list(expected)
        assert all(torch.equal(batch[key], twin[key]) for key in twin)
        assert batch["state"] is state and result["pad"] is batch["pad"]
    assert replays(graph) == 4


@torch.no_grad()
def test_a_number_that_is_used_is_part_of_the_key(device):
    def scaled(state, x):
        state.n = (state.n + 1) % 2
        return x * (state.n + 1)

    graph, state, twin = gfxgraph.graphed(scaled), State(device), State(device)
    for n in range(8):
        assert torch.equal(graph(state, of_call(device, n)), scaled(twin, of_call(device, n)))
        assert state.n == twin.n
    assert graph.stats().captures <= 3 and replays(graph) >= 4


@torch.no_grad()
def test_a_counter_that_is_no_whole_number_runs_eagerly(device):
    graph, state = gfxgraph.graphed(step), State(device)
    for n in range(4):
        graph(state, of_call(device, n))
    state.n = 0.5
    graph(state, of_call(device, 9))
    assert state.n == 1.5 and "no whole number" in str(graph.stats().fallbacks)


@torch.no_grad()
def test_an_exception_leaves_what_eager_execution_leaves(device):
    def fails(state, x):
        state.h = x * 2
        if state.n:
            raise ValueError("asked for")
        return x

    graph, state = gfxgraph.graphed(fails), State(device)
    for n in range(6):
        state.n, x = int(n % 2), of_call(device, n)
        if state.n:
            with pytest.raises(ValueError, match="asked for"):
                graph(state, x)
        else:
            graph(state, x)
        assert torch.equal(state.h, x * 2)


@torch.no_grad()
def test_an_argument_that_the_function_knows_itself_runs_eagerly(device):
    known = {"h": of_call(device, 1)}

    def fn(d, x):
        d["h"] = d["h"] + x
        return known["h"] * 2

    graph = gfxgraph.graphed(fn)
    for n in range(6):
        graph({"h": of_call(device, 0)}, of_call(device, n))
    assert replays(graph) >= 4
    assert torch.equal(graph(known, of_call(device, 1)), of_call(device, 4))
    assert torch.equal(known["h"], of_call(device, 2))


@torch.no_grad()
def test_state_of_a_module_and_of_an_argument_are_one_tensor_where_they_were(device):
    class Model(torch.nn.Module):
        def forward(self, state, x):
            self.last = state.h = state.h + x
            state.n += 1
            return state.h

    model = Model()
    graph = gfxgraph.graphed(model)
    for n in range(6):
        state = SimpleNamespace(h=of_call(device, n), n=n)
        assert graph(state, of_call(device, 1)) is state.h is model.last
        assert torch.equal(state.h, of_call(device, n + 1)) and state.n == n + 1
    assert replays(graph) >= 3
    last, *given = graph.stats().stored
    assert last.endswith("Model.last") and given == ["argument 0.h", "argument 0.n"]


@torch.no_grad()
def test_where_the_data_branches_each_path_stores_its_own(device):
    def fn(out, x):
        if x.sum() > 0:
            out["positive"] = x * 2
        else:
            out["negative"] = x * 3
        return x + 1

    graph = gfxgraph.graphed(fn)
    for n in range(10):
        out, x = {}, of_call(device, n % 2 or -1)
        graph(out, x)
        assert list(out) == ["positive" if n % 2 else "negative"]
        assert torch.equal(*out.values(), x * (2 if n % 2 else 3))
    assert replays(graph) >= 6
    assert set(graph.stats().stored) == {"argument 0['positive']", "argument 0['negative']"}


@pytest.mark.parametrize(
    "options",
    ({"outputs": "view"}, {"buckets": [1, 2, 4]}),
    ids=("views", "buckets"),
)
@torch.no_grad()
def test_where_a_replay_cannot_store_it_the_call_is_eager_and_says_so(device, options):
    def fill(x, out):
        out["y"] = x * 2
        return x + 1

    graph = gfxgraph.graphed(fill, **options)
    for n in range(4):
        out = {}
        graph(of_call(device, n), out)
        assert torch.equal(out["y"], of_call(device, 2 * n))
    assert not replays(graph)
    assert "changes a container that it is given" in str(graph.stats().fallbacks)


@pytest.mark.parametrize("fails", (False, True))
@torch.no_grad()
def test_no_object_of_a_caller_is_kept(device, fails):
    def fn(state, x):
        state.h = state.h + x
        if fails:
            state.made = object()
        return state

    graph, known = gfxgraph.graphed(fn), []
    for n in range(5):
        state = State(device)
        known.append(weakref.ref(state))
        graph(state, of_call(device, n))
        del state
    gc.collect()
    assert [ref() for ref in known] == [None] * 5
    assert bool(replays(graph)) != fails


@torch.no_grad()
def test_a_replay_that_is_compared_stores_once(device):
    gfxgraph.enable(validate=True)
    try:
        graph, state, twin = gfxgraph.graphed(step), State(device), State(device)
        for n in range(8):
            x = of_call(device, n)
            result = graph(state, x)
            assert torch.equal(result, step(twin, x))
            assert torch.equal(state.h, twin.h) and state.n == twin.n and state.last is x
        assert replays(graph) >= 4 and not gfxgraph.stats()["validation_failures"]
    finally:
        gfxgraph.disable()


@torch.no_grad()
def test_threads_fill_their_own_arguments(device):
    def fill(out, x):
        out["y"] = x * 2
        out["x"] = x
        return out["y"]

    graph, wrong = gfxgraph.graphed(fill), []
    graph({}, of_call(device, 0))

    def run(first):
        with torch.no_grad():
            for n in range(first, first + 200):
                out, x = {}, of_call(device, n)
                result = graph(out, x)
                if out["y"] is not result or out["x"] is not x or float(result[0]) != 2 * n:
                    wrong.append(n)

    threads = [threading.Thread(target=run, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and replays(graph) > 100


def test_check_names_what_is_stored_and_where():
    def fill(state, out, x):
        state.h = state.h + x
        state.n += 1
        out["y"] = state.h
        out["note"] = "seen"
        return x

    report = gfxgraph.check(fill, State("cpu"), {}, torch.ones(2))
    assert report.verdict == "captures"
    first = fill.__code__.co_firstlineno
    assert {(h.rule, h.what, h.line - first) for h in report.hazards} == {
        ("stored-tensor", "argument 0.h", 1),
        ("stored-counter", "argument 0.n", 2),
        ("stored-tensor", "argument 1['y']", 3),
        ("stored-value", "argument 1['note']", 4),
    }


@pytest.mark.parametrize("each", ("new", "same"))
@torch.no_grad()
def test_a_cache_of_transformers_is_filled(device, each):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=50,
        )
    )
    model = model.eval().to(device)

    def run(ids, cache):
        return model(input_ids=ids, past_key_values=cache, use_cache=True)

    graph = gfxgraph.graphed(run)
    caches = [transformers.DynamicCache() for _ in range(2)]
    for n in range(5):
        if each == "new":
            caches = [transformers.DynamicCache() for _ in range(2)]
        ids = torch.full((1, 3), n, device=device)
        result, expected = graph(ids, caches[0]), run(ids, caches[1])
        assert torch.allclose(result.logits, expected.logits, atol=1e-5)
        assert result.past_key_values is caches[0]
        for ours, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
            assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
            assert list(vars(ours)) == list(vars(theirs))
    assert each == "same" or replays(graph) >= 3


class Window:
    """A cache whose place for the next item a tensor knows, and whose end a number."""

    def __init__(self, device: str) -> None:
        self.items = torch.zeros(4, device=device)
        self.place, self.count = torch.zeros(1, dtype=torch.int64, device=device), 0


def slide(window: Window, x: torch.Tensor) -> torch.Tensor:
    is_full = window.count >= len(window.items)
    window.count += 1
    if is_full:
        window.items.copy_(torch.cat([window.items[1:], x]))
    else:
        window.items.index_copy_(0, window.place, x)
        window.place.add_(1)
    return window.items * 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_our_runs_never_meet_a_tensor_of_after_the_call_with_a_number_of_before_it(device, mode):
    graph = gfxgraph.graphed(slide)
    with mode():  # the tensors of inference mode do not count what is written to them
        ours, eager = Window(device), Window(device)
        for n in range(9):
            x = torch.full((1,), float(n), device=device)
            assert torch.equal(graph(ours, x), slide(eager, x))
            assert ours.count == eager.count and torch.equal(ours.place, eager.place)
    stats = graph.stats()
    assert stats.captures and not stats.fallbacks  # each count is a kind of its own


def turn(state, x):
    state.items.copy_(state.items.roll(1))  # the same bytes, elsewhere
    state.place = state.items[0] + x
    return state.place * 2


def test_bytes_that_only_move_in_an_argument_are_written_to_it(device):
    graph = gfxgraph.graphed(turn)
    with torch.inference_mode():
        ours, eager = Window(device), Window(device)
        ours.items.copy_(torch.arange(float(ours.items.numel()), device=device))
        eager.items.copy_(ours.items)
        for n in range(6):
            x = torch.full((1,), float(n), device=device)
            assert torch.equal(graph(ours, x), turn(eager, x))
            assert torch.equal(ours.items, eager.items) and torch.equal(ours.place, eager.place)
    stats = graph.stats()
    assert stats.replays and not stats.fallbacks
