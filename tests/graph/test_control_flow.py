"""``cond``, ``switch`` and ``while_loop`` give what the host would give, decided by the device."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

import gfxgraph
from gfxgraph.errors import ArgumentError, CaptureError


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def values(device, n):
    torch.manual_seed(n)
    return torch.randn(8, device=device) * (n + 1)


def same_in_each_call(fn, make, calls=10):
    """Call ``fn`` and its graph with equal arguments; gives the statistics of the graph."""
    graph = gfxgraph.graphed(fn)
    for n in range(calls):
        args = make(n)
        torch.manual_seed(n)
        expected = fn(*args)
        torch.manual_seed(n)
        torch.testing.assert_close(graph(*args), expected, rtol=0, atol=0)
    return graph.stats()


def left():
    """The current stream is current again afterwards: where a capture fails, torch's context does
    not come back to it."""
    return torch.cuda.stream(torch.cuda.current_stream())


def captured_by_hand(device, fn):
    """A graph of ``fn``, which has run before, and what it gave in the capture."""
    graph = gfxgraph.BridgedCUDAGraph()
    fn()
    if device == "cuda":
        torch.cuda.synchronize()
        with left(), torch.cuda.graph(graph):
            return graph, fn()
    graph.capture_begin()
    try:
        return graph, fn()
    finally:
        graph.capture_end()


def is_one_graph(stats):
    reports = [row.report for row in stats.graphs]
    return stats.captures == 1 and stats.replays and not stats.fallbacks and reports == [[]]


def test_cond_is_one_graph_and_takes_both_branches(device):
    def fn(x):
        return gfxgraph.cond(x.sum() > 0, lambda x: x * 2, lambda x: (x - 1).relu(), x)

    assert is_one_graph(same_in_each_call(fn, lambda n: (values(device, n),)))


def test_switch_is_one_graph_and_clamps_its_index(device):
    def fn(x, index):
        return gfxgraph.switch(index, [lambda x: x + 1, lambda x: x * 3, torch.sin], x)

    make = lambda n: (values(device, n), torch.tensor(n % 6 - 2, device=device))  # noqa: E731
    assert is_one_graph(same_in_each_call(fn, make))


def test_a_loop_makes_as_many_turns_as_the_data_say(device):
    def fn(x):
        def go_on(x, turns):
            return x.norm() > 1.0

        def body(x, turns):
            return x * 0.9, turns + 1

        return gfxgraph.while_loop(go_on, body, x, torch.zeros((), device=x.device))

    assert is_one_graph(same_in_each_call(fn, lambda n: (values(device, n),)))


def test_a_loop_of_no_turn_gives_copies_of_its_carry(device):
    def fn(x):
        (y,) = gfxgraph.while_loop(lambda x: x.sum() > 1e9, lambda x: x.add_(1), x)
        return y.add_(1)

    x = values(device, 1)
    graph = gfxgraph.graphed(fn)
    for _ in range(4):
        before = x.clone()
        torch.testing.assert_close(graph(x), before + 1)
        torch.testing.assert_close(x, before)


def test_a_carry_may_change_places_and_has_a_limit_of_turns(device):
    def fn(a, b):
        def body(a, b):
            return b, a + b

        return gfxgraph.while_loop(lambda a, b: a.sum() < 100, body, a, b, max_turns=7)

    make = lambda n: (values(device, n).abs() / 10, values(device, n + 1).abs() / 10)  # noqa: E731
    assert is_one_graph(same_in_each_call(fn, make))


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_more_turns_than_the_limit(device, limit):
    def fn(x):
        return gfxgraph.while_loop(lambda x: x.sum() < 1e9, lambda x: x + 1, x, max_turns=limit)

    graph = gfxgraph.graphed(fn)
    for n in range(4):
        x = values(device, n)
        torch.testing.assert_close(graph(x), (x + 1 if limit == 1 else fn(x)[0],))
        torch.testing.assert_close(fn(x)[0], x + limit)


def test_decisions_inside_of_decisions(device):
    def fn(x):
        def body(x):
            def inner(y):
                (z,) = gfxgraph.while_loop(lambda z: z.abs().sum() > 20, lambda z: z * 0.7, y)
                return z * 0.9

            return gfxgraph.cond(x.sum() > 0, inner, lambda y: y * 0.8 + 0.01, x)

        (y,) = gfxgraph.while_loop(lambda x: x.abs().max() > 1, body, x, max_turns=50)
        return y + 1

    assert is_one_graph(same_in_each_call(fn, lambda n: (values(device, n),)))


def test_bodies_that_call_a_model_and_allocate(device):
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    model.to(device)

    def fn(x):
        go_on = lambda x: x.norm() > 0.5  # noqa: E731
        return gfxgraph.while_loop(go_on, lambda x: model(x) * 0.9, x, max_turns=20)[0]

    assert is_one_graph(same_in_each_call(fn, lambda n: (values(device, n),)))


def test_stats_count_the_memory_of_bodies(device):
    def fn(x):
        def body(x):
            wide = x[:, None].expand(-1, 1 << 18).contiguous()  # 8 MiB
            return wide.mean(1) * 0.5

        return gfxgraph.while_loop(lambda x: x.norm() > 1, body, x, max_turns=3)[0]

    stats = same_in_each_call(fn, lambda n: (values(device, n),), calls=3)
    assert stats.pool_bytes >= 8 << 20 and stats.graphs[0].pool_bytes >= 8 << 20


def test_a_weight_of_the_branch_not_taken_is_watched(device):
    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))

        def forward(self, x):
            return gfxgraph.cond(x.sum() > 0, lambda: x * self.high, lambda: x * self.low)

    gate = Gate().to(device)
    graph = gfxgraph.graphed(gate)
    x = torch.ones(8, device=device)
    for _ in range(3):
        graph(x)
    gate.low = torch.nn.Parameter(torch.full((8,), 5.0, device=device))
    torch.testing.assert_close(graph(-x), gate(-x))
    torch.testing.assert_close(graph(-x), torch.full((8,), -5.0, device=device))


def test_a_body_may_write_to_a_tensor_from_outside(device):
    cache = torch.zeros(4, 8, device=device)

    def fn(x, row):
        def write(x):
            cache.index_copy_(0, row.reshape(1), x[None])
            return cache.sum(0)

        return gfxgraph.cond(x.sum() > 0, write, lambda x: x - cache[0], x)

    graph = gfxgraph.graphed(fn)
    for n in range(10):
        args = values(device, n), torch.tensor(n % 4, device=device)
        before = cache.clone()
        expected, after = fn(*args), cache.clone()
        cache.copy_(before)
        torch.testing.assert_close((graph(*args), cache), (expected, after), rtol=0, atol=0)
    assert is_one_graph(graph.stats())


def test_the_branch_not_taken_does_not_run(device):
    table = torch.arange(4.0, device=device)

    def fn(n):
        def row(n):
            return table.index_select(0, n)

        return gfxgraph.cond(n < 4, row, lambda n: row(n - n), n)

    make = lambda n: (torch.tensor([n * 3 % 8], device=device),)  # noqa: E731
    assert is_one_graph(same_in_each_call(fn, make))


def test_what_the_branch_not_taken_would_keep_in_a_memo_is_not_kept(device):
    @functools.cache
    def table(size):
        return torch.arange(float(size), device=device)

    def fn(x):
        return gfxgraph.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * table(8), x)

    graph = gfxgraph.graphed(fn)
    for sign in (1, 1, -1, 1, -1, -1):
        x = torch.full((8,), float(sign), device=device)
        torch.testing.assert_close(graph(x), x + 1 if sign > 0 else -torch.arange(8.0).to(device))
    torch.testing.assert_close(table(8), torch.arange(8.0, device=device))


def random_branch(x):
    return gfxgraph.cond(x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x * 1, x)


def branch_that_reads(x):
    return gfxgraph.cond(x.sum() > 0, lambda x: x * (2 if x[0] > 0 else 3), lambda x: x * 1, x)


def branches_of_two_shapes(x):
    return gfxgraph.cond(x.sum() > 0, lambda x: x[:4], lambda x: x, x)


def loop_that_appends(x):
    seen = []

    def body(x):
        seen.append(x)
        return x * 0.5

    (y,) = gfxgraph.while_loop(lambda x: x.norm() > 1, body, x, max_turns=3)
    return y * len(seen)


def loop_that_counts(x):
    turns = 0

    def body(x):
        nonlocal turns
        turns += 1
        return x * 0.5

    (y,) = gfxgraph.while_loop(lambda x: x.norm() > 1, body, x, max_turns=3)
    return y * turns


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (random_branch, "random numbers"),
        (branch_that_reads, "Tensor"),
        (branches_of_two_shapes, "differ in tensor 0"),
        (loop_that_appends, "in Python"),
        (loop_that_counts, "in Python"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_no_body_can_hold_is_decided_by_the_host_and_said(device, fn, why):
    stats = same_in_each_call(fn, lambda n: (values(device, n),), calls=16)
    assert stats.replays and not stats.fallbacks
    lines = [line for row in stats.graphs for line in row.report if "the host decides" in line]
    assert lines and all(why in line for line in lines)


@pytest.mark.long
def test_torchs_own_functions_are_taken_over(device):
    from torch import _higher_order_ops as operators

    def fn(x):
        y = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
        go_on, body = (lambda y: y.norm() > 1), (lambda y: (y * 0.9,))
        (y,) = operators.while_loop(go_on, body, (y,))
        return y

    def nested(x):
        def body(y, turns):
            return torch.cond(y.sum() > 0, lambda y: y * 0.9, lambda y: y + 0.01, (y,)), turns + 1

        repeat = getattr(torch, "while_loop", operators.while_loop)
        turns = torch.zeros((), device=x.device)
        return repeat(lambda y, n: (y.norm() > 1) & (n < 9), body, (x, turns))

    for function in (fn, nested):
        assert is_one_graph(same_in_each_call(function, lambda n: (values(device, n),)))


def test_torchs_own_functions_run_between_graphs_if_they_were_imported_by_name(device):
    from torch import cond

    def fn(x):
        return cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x + 1,)) * 3

    stats = same_in_each_call(fn, lambda n: (values(device, n),))
    if torch.__version__ < "2.11" and stats.fallbacks:  # cond() runs under no dispatch mode
        (reason,) = stats.fallbacks
        assert "no rule registered" in reason
        return
    assert stats.replays and not stats.fallbacks
    assert any("torch.cond(), between two graphs" in line for line in stats.graphs[0].report)


def test_results_share_no_memory_with_arguments(device):
    def fn(x, y):
        return gfxgraph.cond(x.sum() > 0, lambda: x, lambda: y)

    graph = gfxgraph.graphed(fn)
    for call in (fn, graph, graph, graph):
        x, y = values(device, 1), values(device, 2)
        got = call(x, y)
        expected, before = got.clone(), (x.clone(), y.clone())
        got.add_(1)
        torch.testing.assert_close((x, y), before)
        x.zero_()
        torch.testing.assert_close(got, expected + 1)


def test_gradients_flow_where_the_host_decides(device):
    x = torch.ones(3, device=device, requires_grad=True)
    with torch.enable_grad():
        (y,) = gfxgraph.while_loop(lambda y: y.sum() < 20, lambda y: y * 2, x)
        gfxgraph.cond(y.sum() > 0, lambda y: y * 3, lambda y: y, y).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 24.0))


def test_a_capture_by_hand_holds_the_decisions(device):
    def fn(x):
        (y,) = gfxgraph.while_loop(lambda x: x.norm() > 1, lambda x: x * 0.9, x)
        return gfxgraph.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 1, y)

    x = values(device, 3)
    graph, out = captured_by_hand(device, lambda: fn(x))
    for n in range(6):
        x.copy_(values(device, n))
        graph.replay()
        torch.testing.assert_close(out, fn(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "turn",
    [
        lambda a, b, c: (a.mul_(0.5), c, b),
        lambda a, b, c: (a * 0.5, b, b),
        lambda a, b, c: (a.mul_(0.5), a, a.flip(0)),
        lambda a, b, c: (a * 0.5, b.add_(1), b[:].neg()),
        lambda a, b, c: (a * 0.5, c[:], c),
    ],
    ids=["in place and swapped", "one twice", "itself thrice", "in place and read", "a view"],
)
def test_a_carry_that_is_given_back_is_right_wherever_it_is_put(device, turn):
    def fn(a, b, c):
        return gfxgraph.while_loop(lambda a, *_: a.norm() > 1, turn, a, b, c, max_turns=9)

    stats = same_in_each_call(
        fn, lambda n: tuple(values(device, n + more) for more in range(3)), calls=4
    )
    assert is_one_graph(stats)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_draws_in_a_body_only_with_dropout(device, dropout):
    def fn(x):
        def body(x):
            heads = x.view(1, 1, 4, 2)
            attention = torch.nn.functional.scaled_dot_product_attention
            return attention(heads, heads, heads, dropout_p=dropout).reshape(8) * 0.5

        (y,) = gfxgraph.while_loop(lambda x: x.norm() > 1, body, x, max_turns=3)
        return y

    stats = same_in_each_call(fn, lambda n: (values(device, n),), calls=4)
    assert is_one_graph(stats) == (not dropout)


def test_without_branching_the_reason_says_why_the_host_decides(device):
    graph = gfxgraph.graphed(loop_that_counts, branching="off")
    for n in range(2):
        graph(values(device, n + 3))
    (reason,) = graph.stats().refused.values()
    assert "the host decides while_loop(): it changes" in reason and "Tensor.item()" in reason


def attention(y, dropout):
    heads = y.view(1, 1, 4, 2)
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(heads, heads, heads, dropout_p=dropout).reshape(8)


def decisions(body):
    """Ways to put ``body`` into one of a conditional node."""

    def nested(x):
        return gfxgraph.cond(x.sum() > 0, lambda y: decisions(body)[0](y), torch.neg, x)

    return [
        lambda x: gfxgraph.while_loop(torch.any, body, x, max_turns=3)[0],
        lambda x: gfxgraph.cond(x.sum() > 0, torch.neg, body, x),
        lambda x: gfxgraph.switch((x.sum() > 0).int(), [torch.neg, torch.abs, body], x),
        nested,
    ]


@pytest.mark.parametrize("which", range(4), ids=["while_loop", "cond", "switch", "nested"])
@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
def test_no_body_of_a_capture_by_hand_draws_random_numbers(device, which, inference):
    x = values(device, 3)
    drawing = [
        lambda y: y + torch.rand_like(y),
        lambda y: torch.nn.functional.dropout(y),
        lambda y: y.clone().bernoulli_(0.5),
        lambda y: torch.randperm(8, device=y.device).float(),
        lambda y: attention(y, 0.5),
    ]
    with torch.inference_mode(inference):
        for body in drawing:
            fn = decisions(body)[which]
            with pytest.raises(CaptureError, match="draws random numbers, and no body"):
                captured_by_hand(device, functools.partial(fn, x))

        # The process can capture and draw as before.
        for body in (
            lambda y: attention(y, 0.0),
            lambda y: torch.dropout(y, 0.5, False),
            lambda y: torch.rrelu(y, 0.1, 0.3, False),
        ):
            fn = decisions(body)[which]
            graph, out = captured_by_hand(device, functools.partial(fn, x))
            graph.replay()
            torch.testing.assert_close(out, fn(x), rtol=0, atol=0)
        graph, out = captured_by_hand(device, functools.partial(torch.rand_like, x))
        torch.manual_seed(3)
        graph.replay()
        torch.manual_seed(3)
        torch.testing.assert_close(out, torch.rand_like(x), rtol=0, atol=0)


def test_no_graph_holds_a_part_of_a_body(device):
    x, graph = values(device, 3), gfxgraph.BridgedCUDAGraph()

    def fails(y):
        y.add_(1)
        raise ValueError("in the middle")

    def fn():
        try:
            return gfxgraph.cond(x.sum() > 0, fails, torch.neg, x)
        except ValueError:
            return x + 1

    with pytest.raises(CaptureError, match="a part: ValueError: in the middle"):
        if device == "cuda":
            with left(), torch.cuda.graph(graph):
                fn()
        else:
            graph.capture_begin()
            fn()
            graph.capture_end()
    graph, out = captured_by_hand(device, lambda: x * 2)
    graph.replay()
    torch.testing.assert_close(out, x * 2)


@pytest.mark.gpu
def test_bodies_that_run_at_the_same_time_share_no_memory():
    """Each turn makes large tensors, and frees them for the next."""
    graph, other = gfxgraph.BridgedCUDAGraph(), torch.cuda.Stream()
    x, y = (torch.randn(512, 512, device="cuda") for _ in range(2))

    def turns(z):
        def body(z, n):
            a = z.sin()
            b = a * 2 - a
            return z * 0.5 + b @ (z / z.norm()), n - 1

        count = torch.full((), 20, device="cuda")
        return gfxgraph.while_loop(lambda z, n: n > 0, body, z, count)[0]

    def both():
        other.wait_stream(torch.cuda.current_stream())
        first = turns(x)
        with torch.cuda.stream(other):
            second = turns(y)
        torch.cuda.current_stream().wait_stream(other)
        return first, second

    both()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = both()
    for _ in range(30):
        x.normal_()
        y.normal_()
        torch.cuda.synchronize()
        graph.replay()
        for result, z in zip(results, (x, y), strict=True):
            torch.testing.assert_close(result, turns(z))


def test_casts_of_weights_in_a_branch_are_not_used_outside_of_it(device):
    layer = torch.nn.Linear(8, 8).to(device)

    def fn(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            y = gfxgraph.cond(x.sum() > 0, lambda: layer(x), lambda: x.bfloat16())
            return layer(y)

    x = values(device, 3)
    graph, out = captured_by_hand(device, lambda: fn(x))
    for sign in (-1, 1, -1):  # the first replay runs the branch without the layer
        x.copy_(values(device, 2).abs() * sign)
        graph.replay()
        torch.testing.assert_close(out, fn(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gfxgraph.cond(x, abs, abs, x), "pred is a tensor of dtype .* one element"),
        (lambda x: gfxgraph.cond("yes", abs, abs, x), "pred is 'yes'"),
        (lambda x: gfxgraph.cond(True, lambda x: 3, abs, x), "a result is 3 .*expected tensors"),
        (lambda x: gfxgraph.cond(True, None, abs, x), "one of its functions is None"),
        (lambda x: gfxgraph.switch(0, [], x), "at least one function"),
        (lambda x: gfxgraph.switch(x.sum(), [abs], x), "integer tensor of one element"),
        (lambda x: gfxgraph.while_loop(lambda x: True, abs, x), "cond_fn gives is True"),
        (lambda x: gfxgraph.while_loop(lambda x, n: n < 3, abs, x, 0), "carry is 0"),
        (lambda x: gfxgraph.while_loop(torch.any, lambda x: x[:2], x), r"float32\[8\].*\[2\]"),
        (lambda x: gfxgraph.while_loop(torch.any, lambda x: x.double(), x), "float64"),
        (lambda x: gfxgraph.while_loop(torch.any, lambda x: (x, x), x), "differ in structure"),
        (lambda x: gfxgraph.while_loop(torch.any, abs, x, max_turns=-1), "max_turns=-1"),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["eager", "graphed"])
def test_bad_arguments_are_told(device, call, message, inside):
    with pytest.raises(ArgumentError, match=message):
        (gfxgraph.graphed(call) if inside else call)(torch.ones(8, device=device))


def test_a_trial_leaves_iterators_where_they_are(device):
    def numbers():
        yield from range(1, 100)

    for make in (itertools.count, numbers, lambda: iter([2.0] * 9 + [3.0] * 90)):
        results = []
        for wrap in (lambda fn: fn, gfxgraph.graphed):
            it = make()

            def fn(x, it=it):
                return gfxgraph.cond(x.sum() > 0, lambda x: x * next(it), lambda x: x - 1, x)

            call = wrap(fn)
            results.append([call(values(device, n)).clone() for n in range(16)])
        torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_trial_leaves_settings_where_they_are(device):
    def fn(x):
        def branch(x):
            torch.set_default_dtype(torch.float64)
            return x * 2

        y = gfxgraph.cond(x.sum() > 0, branch, lambda x: x - 1, x)
        zeros = torch.zeros(2, device=x.device)
        torch.set_default_dtype(torch.float32)
        return y, zeros

    stats = same_in_each_call(fn, lambda n: (values(device, n),))
    assert any("the host decides" in line for row in stats.graphs for line in row.report)


def test_a_branch_not_taken_neither_exits_nor_records_gradients(device):
    def exits(x):
        raise SystemExit(3)

    def records(x):
        torch.set_grad_enabled(True)
        return x * 2

    for branch in (exits, records):

        def fn(x, branch=branch):
            return gfxgraph.cond(x.sum() > 1e9, branch, lambda x: x - 1, x)

        graph = gfxgraph.graphed(fn)
        for n in range(4):
            x = values(device, n)
            torch.testing.assert_close(graph(x), x - 1, rtol=0, atol=0)
            assert not torch.is_grad_enabled()
