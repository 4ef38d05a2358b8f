"""Unmodified functions that read the device or bring host data to it become graphs."""

from __future__ import annotations

import ctypes
import sysconfig
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.errors import ArgumentError, CaptureError


def agree(graph, fn, *calls):
    """Each call gives what eager gives; afterwards the statistics of the graph."""
    for args in calls:
        expected, got = fn(*args), graph(*args)
        torch.testing.assert_close(got, expected)
    return graph.stats()


def numbers(device, count, *shape):
    generator = torch.Generator().manual_seed(count)
    return [(torch.randn(*shape, generator=generator).to(device),) for _ in range(count)]


# ---- what does not depend on the inputs is folded


@torch.no_grad()
def test_a_loop_driven_by_a_device_tensor_captures_unmodified(device):
    def integrate(x):
        dt = torch.tensor(-0.25, device=x.device)
        t = torch.tensor(1.0, device=x.device)
        while t >= -dt / 2:
            x = x + dt * torch.tanh(x) * t
            t += dt
        return x

    graph = gfxgraph.graphed(integrate, branching="off")
    stats = agree(graph, integrate, *numbers(device, 4, 4, 8))
    assert stats.captures == 1 and stats.replays == 3 and not stats.fallbacks
    assert any("folded" in line for line in stats.graphs[0].report)


@torch.no_grad()
def test_each_replay_starts_from_the_folded_constant(device):
    def accumulate(x):
        total = torch.tensor([1.0, 2.0], device=x.device)
        total += x
        total *= 2
        return total

    stats = agree(gfxgraph.graphed(accumulate), accumulate, *numbers(device, 4, 2))
    assert stats.captures == 1 and stats.replays == 3


@torch.no_grad()
@pytest.mark.parametrize("index", [[0, 2], ([0, 1], [2, 3])], ids=str)
def test_indexing_with_python_lists_captures(device, index):
    def pick(x):
        return x[index] * 2

    stats = agree(gfxgraph.graphed(pick, branching="off"), pick, *numbers(device, 4, 4, 8))
    assert stats.captures == 1 and stats.replays == 3 and not stats.fallbacks


@torch.no_grad()
def test_a_value_read_from_a_buffer_is_read_again_when_the_buffer_was_written(device):
    limit = torch.tensor(2, device=device)

    def scaled(x):
        for _ in range(int(limit)):
            x = x * 2
        return x

    graph = gfxgraph.graphed(scaled, branching="off")
    agree(graph, scaled, *numbers(device, 3, 4))
    limit.fill_(3)
    agree(graph, scaled, *numbers(device, 3, 4))


@torch.no_grad()
def test_a_buffer_that_another_graph_writes_is_noticed(device):
    steps = torch.tensor(1, device=device)
    advance = gfxgraph.graphed(lambda x: steps.add_(1) + x)

    def scaled(x):
        return x * 2 if int(steps) > 2 else x

    graph = gfxgraph.graphed(scaled)
    x = torch.ones(2, device=device)
    for _ in range(6):
        advance(x)
        assert torch.equal(graph(x), scaled(x)), int(steps)


@torch.no_grad()
def test_what_a_hidden_path_brings_from_the_inputs_is_not_folded(device):
    secret = {}

    def hidden(x):  # no operation leads from x to the number: it goes through Python
        secret["n"] = torch.full((), float(len(set(x.cpu().flatten().tolist()))), device=x.device)
        return x * secret.pop("n")

    graph = gfxgraph.graphed(hidden)
    for x in (torch.zeros(4, device=device), torch.arange(4.0, device=device)) * 2:
        assert torch.equal(graph(x), hidden(x))


@torch.no_grad()
def test_a_number_of_the_clock_is_not_folded(device):
    ticks = iter(range(1000))

    def clock(x):
        return x + torch.tensor([float(next(ticks))] * 2, device=x.device)

    graph = gfxgraph.graphed(clock)
    x = torch.zeros(2, device=device)
    values = [float(graph(x)[0]) for _ in range(4)]
    assert values == sorted(set(values)), "each call has a later time"
    assert graph.stats().replays == 0 and graph.stats().fallbacks


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory of the host only")
@torch.no_grad()
def test_a_constant_that_came_from_the_inputs_unseen_is_not_folded(device):
    # A package hands addresses on; our own code may act upon them.
    package: dict[str, Any] = {}
    file = f"{sysconfig.get_path('purelib')}/extension.py"
    exec(compile("def address(x): return x.data_ptr()", file, "exec"), package)

    def peeks(x):
        values = (ctypes.c_float * x.numel()).from_address(package["address"](x))
        return x * 0 + torch.tensor([sum(values)], device=device)

    graph = gfxgraph.graphed(peeks)
    for x in (torch.ones(4), torch.arange(4.0), torch.ones(4) * 3):
        assert torch.equal(graph(x), peeks(x))
    assert "another value came" in next(iter(graph.stats().fallbacks))


# ---- what depends on them becomes a branch


@torch.no_grad()
def test_a_branch_on_data_takes_the_path_of_the_data(device):
    def branch(x):
        y = x.mean(1)
        return y.exp() if y.sum() > 0 else -y[:2]

    graph = gfxgraph.graphed(branch)
    stats = agree(graph, branch, *numbers(device, 20, 4, 8))
    assert stats.captures == 2 and stats.replays == 18 and not stats.fallbacks
    assert stats.graphs[0].paths == 2


@torch.no_grad()
def test_a_function_that_asks_an_argument_before_it_does_anything(device):
    def choose(flag, x):
        return x * 2 if flag else x - 1

    graph, x = gfxgraph.graphed(choose), torch.arange(3.0, device=device)
    flags = [torch.tensor(value, device=device) for value in (True, False)]
    for flag in flags * 3:
        assert torch.equal(graph(flag, x), choose(flag, x))
    assert graph.stats().replays >= 3 and not graph.stats().fallbacks


@torch.no_grad()
def test_a_decoder_that_stops_on_a_condition_shares_its_steps(device):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)

    def decode(x):
        tokens = []
        for _ in range(6):
            x = torch.softmax(net(x) * 3, -1)
            tokens.append(x.argmax(-1))
            if (tokens[-1] > 4).all():
                break
        return torch.stack(tokens)

    graph = gfxgraph.graphed(decode)
    calls = [(x[0],) for x in numbers(device, 40, 1, 2, 8)]
    lengths = {len(decode(*call)) for call in calls}
    stats = agree(graph, decode, *calls, *calls)
    assert len(lengths) > 1, "the data makes it stop at different steps"
    assert stats.graphs[0].paths == len(lengths) and stats.replays >= 40 + 40 - len(lengths)


@torch.no_grad()
def test_branching_off_leaves_it_eager_and_names_the_line(device):
    def branch(x):
        return x * 2 if x.sum() > 0 else x

    graph = gfxgraph.graphed(branch, branching="off")
    stats = agree(graph, branch, *numbers(device, 3, 4))
    (reason,) = stats.fallbacks
    assert stats.replays == 0
    assert "if x.sum() > 0" in reason and __file__ in reason and "torch.where" in reason
    with pytest.raises(CaptureError) as caught:
        gfxgraph.graphed(branch, branching="off", fallback="raise")(torch.ones(4, device=device))
    line = branch.__code__.co_firstlineno + 1
    assert (caught.value.rule, caught.value.file, caught.value.line) == (
        "host-read",
        __file__,
        line,
    )


@torch.no_grad()
def test_state_written_before_a_new_path_is_found_is_not_written_twice(device):
    for_graph, for_eager = (torch.zeros((), device=device) for _ in range(2))

    def stepped(count, x):
        count.add_(1)
        y = x * count
        if x.sum() > 0:
            count.add_(10)
        return y + count

    graph = gfxgraph.graphed(lambda x: stepped(for_graph, x))
    for (x,) in numbers(device, 12, 4):
        torch.testing.assert_close(graph(x), stepped(for_eager, x))
        assert for_graph == for_eager
    assert graph.stats().replays == 10


@torch.no_grad()
def test_random_numbers_before_a_branch_are_those_of_eager(device):
    def noisy(x):
        y = x + torch.rand_like(x)
        return y + torch.rand_like(x) if x.sum() > 0 else y

    graph = gfxgraph.graphed(noisy)
    calls = numbers(device, 12, 4)
    torch.manual_seed(3)
    got = [graph(*call) for call in calls]
    torch.manual_seed(3)
    torch.testing.assert_close(got, [noisy(*call) for call in calls])
    assert graph.stats().replays == 10


@torch.no_grad()
def test_data_dependent_shapes_run_between_two_graphs(device):
    def selected(x):
        y = (x * 2)[x > 0]
        return y.sum() + y.numel()

    graph = gfxgraph.graphed(selected)
    stats = agree(graph, selected, *numbers(device, 30, 5))
    assert stats.replays >= 20 and not stats.fallbacks and stats.graphs[0].paths <= 6


@torch.no_grad()
def test_an_operator_that_reads_the_device_runs_between_two_graphs(device):
    def solved(x):
        return torch.linalg.inv(x @ x.mT + torch.eye(4, device=x.device)).sum(0) * 2

    graph = gfxgraph.graphed(solved)
    stats = agree(graph, solved, *numbers(device, 5, 4, 4))
    assert stats.captures == 1 and stats.replays == 4 and not stats.fallbacks


@torch.no_grad()
def test_a_result_that_goes_to_the_host_is_new_in_each_call(device):
    def to_host(x):
        return (x * 2).cpu()

    graph = gfxgraph.graphed(to_host)
    first, second = (graph(*call) for call in numbers(device, 2, 4))
    third = graph(torch.ones(4, device=device))
    assert first.device.type == "cpu" and torch.equal(third, torch.full((4,), 2.0))
    assert not torch.equal(second, third)


@torch.no_grad()
def test_a_value_that_is_always_another_one_ends_in_eager(device):
    def scaled(x):
        return x * float(x.sum())

    graph = gfxgraph.graphed(scaled)
    stats = agree(graph, scaled, *numbers(device, 30, 4))
    (reason,) = stats.fallbacks
    assert "differs in every call" in reason and "float(x.sum())" in reason
    assert stats.captures <= 10


@pytest.fixture
def positives():
    """An operator of a library, whose shape depends on data: no table has its name."""
    with torch.library._scoped_library("gfxgraph_test", "FRAGMENT") as library:
        library.define("positives(Tensor x) -> Tensor")
        library.impl("positives", lambda x: x[x > 0], "CompositeExplicitAutograd")

        @torch.library.register_fake("gfxgraph_test::positives", lib=library)
        def _(x):
            return x.new_empty(torch.library.get_ctx().new_dynamic_size())

        yield torch.ops.gfxgraph_test.positives


@torch.no_grad()
def test_further_paths_end_their_graphs_at_the_operator_that_failed_in_the_first(device, positives):
    def kept(x):
        return positives(x * 2) + 1

    graph = gfxgraph.graphed(kept)
    calls = [(torch.arange(-n, 8.0 - n, device=device),) for n in (1, 2, 3, 1, 2, 3)]
    stats = agree(graph, kept, *calls)
    assert stats.captures == stats.replays == 3 and not stats.fallbacks
    assert stats.graphs[0].paths == 3


@torch.no_grad()
def test_the_shape_that_differs_is_named_not_the_first_read(device):
    def kept(x):
        if x.isfinite().all():
            x = x + 1
        return x[x > 1]

    graph = gfxgraph.graphed(kept)
    calls = [(torch.arange(-n, 30.0 - n, device=device),) for n in range(20)]
    (reason,) = agree(graph, kept, *calls).fallbacks
    assert "the shape of what" in reason and "return x[x > 1]" in reason
    assert "graphed(model.backbone.forward)" in reason


@torch.no_grad()
@pytest.mark.long
def test_the_number_of_paths_is_bounded(device):
    def counted(x, n):
        return x * int(n.sum())

    graph = gfxgraph.graphed(counted)
    x = torch.ones(2, device=device)
    calls = [(x, torch.tensor([n], device=device)) for n in range(80) for _ in range(3)]
    stats = agree(graph, counted, *calls)
    assert stats.graphs[0].paths == 64
    (reason,) = stats.fallbacks
    assert "more than 64 paths" in reason


# ---- no_graph


@torch.no_grad()
def test_a_function_marked_no_graph_runs_in_every_call_between_two_graphs(device):
    seen = []

    @gfxgraph.no_graph
    def callback(y, scale):
        seen.append(float(y.sum()))
        return y * scale

    def fn(x):
        return callback(x + 1, 3) - 1

    graph = gfxgraph.graphed(fn)
    calls = numbers(device, 4, 4)
    graph(*calls[0])
    seen.clear()
    for (x,) in calls:
        torch.testing.assert_close(graph(x), (x + 1) * 3 - 1)
    assert seen == [float((x + 1).sum()) for (x,) in calls]
    assert graph.stats().captures == 1 and not graph.stats().fallbacks


def test_no_graph_outside_of_a_graph_is_the_function_itself():
    @gfxgraph.no_graph
    def double(x):
        """Twice x."""
        return x * 2

    assert double(3) == 6 and double.__doc__ == "Twice x."
    with pytest.raises(ArgumentError, match="no_graph"):
        gfxgraph.no_graph(3)


# ---- nothing is left behind


@torch.no_grad()
def test_after_reset_a_branching_function_starts_anew(device):
    def branch(x):
        return x * 2 if x.sum() > 0 else x - 1

    graph = gfxgraph.graphed(branch)
    agree(graph, branch, *numbers(device, 6, 4))
    graph.reset()
    stats = agree(graph, branch, *numbers(device, 6, 4))
    assert stats.captures == 2


@torch.no_grad()
def test_a_weight_that_was_replaced_is_noticed_on_every_path(device):
    net = nn.Linear(4, 4).to(device)

    def branch(x):
        y = net(x)
        return y * 2 if x.sum() > 0 else net(y)

    graph = gfxgraph.graphed(branch)
    calls = numbers(device, 8, 2, 4)
    agree(graph, branch, *calls)
    net.weight = nn.Parameter(torch.randn(4, 4, device=device))
    agree(graph, branch, *calls)


@torch.inference_mode()
def test_under_inference_mode_the_same_holds(device):
    def branch(x):
        scale = torch.tensor([2.0, 3.0], device=x.device)
        y = x * scale
        return y if y.sum() > 0 else y[[1, 0]]

    stats = agree(gfxgraph.graphed(branch), branch, *numbers(device, 10, 2))
    assert stats.captures == 2 and stats.replays == 8


# ---- which path is captured


@torch.no_grad()
def test_a_path_that_random_numbers_decide_is_the_one_that_is_captured(device):
    def wander(x):
        steps = 0
        while steps < 8 and torch.rand((), device=x.device) > 0.3:
            x, steps = x + 1, steps + 1
        return x

    graph, x = gfxgraph.graphed(wander), torch.zeros(2, device=device)
    lengths = set()
    for seed in [*range(8), *range(8)]:
        torch.manual_seed(seed)
        expected = wander(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(graph(x), expected)
        lengths.add(float(expected[0]))
    stats = graph.stats()
    assert stats.captures == len(lengths) and stats.replays == 16 - len(lengths)
    assert not stats.fallbacks


@torch.no_grad()
def test_a_path_that_a_counter_of_the_device_decides_is_the_one_that_is_captured(device):
    position = torch.zeros((), dtype=torch.int64, device=device)

    def every_third(x):
        y = x * 2 if position % 3 == 0 else x + 1
        position.add_(1)
        return y

    graph = gfxgraph.graphed(every_third)
    for n, (x,) in enumerate(numbers(device, 12, 4)):
        torch.testing.assert_close(graph(x), x * 2 if n % 3 == 0 else x + 1)
    assert int(position) == 12
    stats = graph.stats()
    assert stats.captures == 2 and stats.replays == 10 and not stats.fallbacks


@torch.no_grad()
def test_twenty_lengths_by_turns_become_twenty_paths(device):
    def count_down(x):
        x = x.clone()
        for _ in range(32):
            x.sub_(1)  # so the device cannot decide when it ends
            if (x <= 0).all():
                break
        return x

    graph = gfxgraph.graphed(count_down)
    lengths = [torch.full((4,), float(n), device=device) for n in range(1, 21)]
    stats = agree(graph, count_down, *((x,) for x in lengths + lengths))
    assert stats.captures == 20 and stats.replays == 20 and not stats.fallbacks


# ---- calls of the host that are no operations


@torch.no_grad()
def test_waiting_for_the_device_is_left_out_of_the_graph(device):
    wait = getattr(torch, gfxgraph.device_type()).synchronize

    def waits(x):
        y = x * 2
        wait()
        return y + 1

    stats = agree(gfxgraph.graphed(waits), waits, *numbers(device, 3, 4))
    assert stats.captures == 1 and stats.replays == 2 and not stats.fallbacks


@torch.no_grad()
def test_a_seed_is_set_in_each_call_between_two_graphs(device):
    def noisy(x):
        y = torch.rand_like(x)
        torch.manual_seed(7)
        return y * 0 + x + torch.rand_like(x)

    graph = gfxgraph.graphed(noisy)
    stats = agree(graph, noisy, *numbers(device, 4, 4))
    assert stats.captures == 1 and stats.replays == 3 and not stats.fallbacks
    before = torch.rand(4, device=device)
    graph(before)
    after = torch.rand(4, device=device)
    noisy(before)
    torch.testing.assert_close(torch.rand(4, device=device), after)


@torch.no_grad()
def test_drawing_from_a_generator_that_was_seeded_on_the_spot_is_right(device):
    def noise(x):
        return x + torch.randn(x.shape, device=x.device, generator=seeded(5, x.device))

    def seeded(seed, where):
        return torch.Generator(where).manual_seed(seed)

    agree(gfxgraph.graphed(noise), noise, *numbers(device, 4, 4))


@torch.no_grad()
def test_a_function_that_starts_a_thread_stays_eager(device):
    total = torch.zeros((), device=device)

    def counted(x):
        worker = threading.Thread(target=total.add_, args=(1,))
        worker.start()
        worker.join()
        return x * 2

    graph = gfxgraph.graphed(counted)
    stats = agree(graph, counted, *numbers(device, 3, 4))
    assert float(total) == 6.0 and stats.captures == 0
    (reason,) = stats.fallbacks
    assert "Thread.start()" in reason and "test_folding.py" in reason


@torch.no_grad()
def test_a_schedule_made_of_an_array_is_constant(device):
    table = torch.linspace(0, 1, 10)  # of the host, as those of diffusers' schedulers

    def denoise(x):
        for t in torch.from_numpy(np.arange(9, -1, -3)):
            before = t - 3
            scale = table[t] + (table[before] if before >= 0 else 1.0)
            x = x * scale
        return x

    fast = gfxgraph.graphed(denoise)
    for seed in range(3):
        x = torch.randn(4, generator=torch.Generator().manual_seed(seed)).to(device)
        torch.testing.assert_close(fast(x), denoise(x))
    (row,) = fast.stats().graphs
    assert row.paths == 1 and fast.stats().captures == 1 and not fast.stats().fallbacks
    assert gfxgraph.check(denoise, torch.randn(4)).verdict == "captures"


@pytest.mark.parametrize("write", [lambda t: t.copy_(t), lambda t: t.copy_(t.view(-1).view_as(t))])
def test_a_tensor_that_is_copied_onto_itself_still_depends_on_the_arguments(device, write):
    def fn(x):
        y = -x
        write(y)
        return x.sin() if y.sum() > 0 else x.cos()

    graphed = gfxgraph.graphed(fn)
    for sign in (1.0, 1.0, -1.0, -1.0, 1.0):
        x = torch.full((3,), sign, device=device)
        assert torch.equal(graphed(x), fn(x))


# ---- a constant that was written over part of the memory hides nothing of the rest


def _expanded(rows):
    return rows.amax(-1, keepdim=True).expand(3, 3)[0]


def _windows(rows):
    return rows[:, 0].clone().as_strided((1, 3), (3, 0))


def _spread(rows):
    return rows[0].clone().as_strided((3,), (0,))


@pytest.mark.parametrize("part", [_expanded, _windows, _spread])
@torch.no_grad()
def test_a_constant_over_elements_that_share_a_place_is_not_all_of_the_memory(device, part):
    def decide(rows):
        first = part(rows)
        first.fill_(0.5)
        all_of_it = torch.as_strided(first, (3,), (1,))
        return rows * 2 if all_of_it.amax() > 0.75 else rows * 3

    low = torch.full((3, 3), 0.25, device=device)
    high = torch.full((3, 3), 2.0, device=device)
    agree(gfxgraph.graphed(decide), decide, (low,), (low,), (high,), (low,), (high,))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def forward(self, x):
        return self.inner(x) * torch.tensor(2.0, device=x.device)


@torch.no_grad()
def test_constants_beside_parameters_are_captured_at_the_first_attempt(device, caplog):
    net = Scaled().to(device)
    graph = gfxgraph.graphed(net)
    with caplog.at_level("DEBUG", "gfxgraph"):
        stats = agree(graph, net, *numbers(device, 3, 2, 4))
    assert (stats.captures, stats.fallbacks) == (1, {})
    assert not [record for record in caplog.records if "captured_again" in record.getMessage()]
