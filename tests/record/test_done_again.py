"""Operations of frames that run again are not looked at, and what they do is known all the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.record.again import Passages

pytestmark = pytest.mark.filterwarnings("ignore")

TIMES = 70  # two operations each: enough to be left out


def work(x, *others):
    """A frame with many operations."""
    for _ in range(TIMES):
        x = x * 0.99 + 0.01
    for other in others:
        x = x + other
    return x


class Block(nn.Module):
    """The same with a weight and a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)
        self.register_buffer("kept", torch.zeros(2, 4))

    def forward(self, x):
        return work(x @ self.weight) + self.kept


def adds_to_it(x):
    """Writes in place to what it is given."""
    for _ in range(TIMES):
        x.mul_(0.99).add_(0.01)


def adds_to_first(x, y):
    """Writes to the memory of its first argument."""
    adds_to_it(x)
    return y * 1.0


def fills(x, cache):
    """Leaves in a list what it has made."""
    for _ in range(TIMES):
        x = x * 0.99 + 0.01
    cache.append(x * 2)
    return x


def draws(x):
    """Draws a random number among its operations."""
    return work(x) + torch.rand_like(x)


def large(x):
    return bool(x.sum() > 0)


def steps(device):
    block = Block().to(device)

    def fn(x):
        for _ in range(4):
            x = block(x)
        return x

    return fn


def a_constant_and_then_an_input(device):
    constant = torch.full((2, 4), 0.5, device=device)

    def fn(x):
        first = work(constant * 1.0)
        second = work(x * 1.0)
        return second + 1 if large(second) else second - first

    return fn


def an_input_and_then_a_constant(device):
    constant = torch.full((2, 4), 0.5, device=device)

    def fn(x):
        first = work(x * 1.0)
        second = work(constant * 1.0)
        return first + 1 if large(second) else first - 1

    return fn


def of_two_arguments_that_share_memory_only_later(device):
    def fn(x):
        apart, other = x * 1.0, torch.full_like(x, 0.5)
        adds_to_first(apart, other)
        one = torch.full_like(x, 0.5)
        adds_to_first(one, one[:])
        both = torch.full_like(x, 0.5) + x
        shown = both[:]
        adds_to_first(both, shown)
        return shown + 1 if large(shown) else shown - 1

    return fn


def a_copy_and_then_the_memory_of_a_weight(device):
    weight = torch.full((2, 4), 0.5, device=device)

    def fn(x):
        adds_to_it(weight.clone()[:])
        adds_to_it(weight[:])
        return x + weight

    fn.shown = weight
    return fn


def a_buffer_that_is_written_in_between(device):
    block = Block().to(device)

    def fn(x):
        constant = torch.full_like(x, 0.5)
        before = block(constant * 1.0)
        block.kept.copy_(x)
        after = block(constant * 1.0)
        return after + before if large(after) else after - before

    fn.shown = block.kept
    return fn


def what_it_leaves_in_a_list(device):
    def fn(x):
        found = []
        for _ in range(3):
            cache = []
            x = fills(x, cache)
            found.append(cache[0])
        return torch.stack(found).sum(0) + x

    return fn


def three_times(step):
    def fn(x):
        for _ in range(3):
            x = step(x)
        return x

    return fn


def random_numbers(device):
    return three_times(draws)


def attends(x, dropout):
    """Attention among its operations."""
    x = work(x)
    heads = x.view(1, 1, 2, 4)
    return x + nn.functional.scaled_dot_product_attention(
        heads, heads, heads, dropout_p=dropout
    ).view(2, 4)


def attention_without_dropout(device):
    return three_times(lambda x: attends(x, 0.0))


def attention_with_dropout(device):
    return three_times(lambda x: attends(x, 0.5))


@torch.library.custom_op(
    "gfxgraph_tests::noisy", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def noisy(x: torch.Tensor, dropout: float) -> torch.Tensor:
    """What is called ``dropout`` says nothing of whether it draws."""
    return x * (1 - dropout) + torch.rand_like(x)


@noisy.register_fake
def _(x, dropout):
    return torch.empty_like(x)


def adds_noise(x):
    return work(x) + noisy(x, 0.0)


def an_operator_of_another_library_that_draws(device):
    return three_times(adds_noise)


def other_settings(device):
    kind = torch.device(device).type

    def fn(x):
        w = torch.ones(4, 4, device=x.device)

        def product(x):
            return work(x @ w)

        with torch.autocast(kind, dtype=torch.bfloat16):
            one = product(x)
        with torch.autocast(kind, dtype=torch.float16):
            two = product(x)
        return one.float() + two.float()

    return fn


CASES = {
    case.__name__: case
    for case in (
        steps,
        a_constant_and_then_an_input,
        an_input_and_then_a_constant,
        of_two_arguments_that_share_memory_only_later,
        a_copy_and_then_the_memory_of_a_weight,
        a_buffer_that_is_written_in_between,
        what_it_leaves_in_a_list,
        random_numbers,
        attention_without_dropout,
        attention_with_dropout,
        an_operator_of_another_library_that_draws,
        other_settings,
    )
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_function_whose_frames_run_again_gives_what_eager_gives(device, name):
    torch.manual_seed(0)
    eager = CASES[name](device)
    torch.manual_seed(0)
    ours = CASES[name](device)
    graph = gfxgraph.graphed(ours)
    for n, sign in enumerate((1, -1, 1, 1, -1, -1)):
        x = torch.full((2, 4), 0.1 * n + 5, device=device) * sign
        torch.manual_seed(n)
        expected = eager(x.clone())
        torch.manual_seed(n)
        torch.testing.assert_close(graph(x.clone()), expected, msg=f"call {n}")
        if hasattr(ours, "shown"):
            torch.testing.assert_close(ours.shown, eager.shown, msg=f"after call {n}")


@pytest.fixture
def looked_away(monkeypatch):
    """How often nobody looked."""
    found = []
    look_away = Passages.look_away
    monkeypatch.setattr(Passages, "look_away", lambda self: (found.append(1), look_away(self))[1])
    return found


@pytest.mark.parametrize("name", ["steps", "what_it_leaves_in_a_list", "attention_without_dropout"])
@torch.no_grad()
def test_steps_are_looked_at_once(device, name, looked_away):
    fn = CASES[name](device)
    graph = gfxgraph.graphed(fn)
    for n in range(3):
        x = torch.full((2, 4), float(n), device=device)
        torch.testing.assert_close(graph(x), fn(x))
    assert looked_away and graph.stats().replays == 2


@pytest.mark.parametrize(
    "name",
    [
        "random_numbers",
        "attention_with_dropout",
        "an_operator_of_another_library_that_draws",
        "other_settings",
    ],
)
@torch.no_grad()
def test_what_not_only_computes_is_looked_at_each_time(device, name, looked_away):
    gfxgraph.graphed(CASES[name](device))(torch.ones(2, 4, device=device))
    assert not looked_away
