"""Random generators are where eager execution leaves them, whatever a function does with them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import gfxgraph

pytestmark = pytest.mark.filterwarnings("ignore")

DEVICE = gfxgraph.device_type()

_LIBRARY = torch.library.Library("gfxgraph_generators", "DEF")
_LIBRARY.define("noise(Tensor x) -> Tensor")
_LIBRARY.impl("noise", lambda x: x + torch.rand_like(x), "CompositeExplicitAutograd")


def attention(x):
    return functional.scaled_dot_product_attention(x, x, x)


def default_generator():
    return torch.cuda.default_generators[0] if DEVICE == "cuda" else torch.default_generator


def own():
    return torch.Generator(DEVICE).manual_seed(1)


def seeded_around_attention():
    g = own()

    def fn(x):
        g.manual_seed(2)
        y = attention(x)
        g.manual_seed(1)
        return y

    return fn, g


def seeded_and_not_asked():
    g = own()

    def fn(x):
        g.manual_seed(1)
        return x * 2

    return fn, g


def seeded_as_the_caller_seeds():
    g = own()

    def fn(x):
        g.manual_seed(1)
        return x + torch.rand(x.shape, generator=g, device=x.device)

    return fn, g


def put_back_as_it_was():
    g, state = own(), own().get_state()

    def fn(x):
        g.set_state(state)
        return x + torch.rand(x.shape, generator=g, device=x.device)

    return fn, g


def the_default_one_around_attention():
    g = default_generator()

    def fn(x):
        g.manual_seed(7)
        y = attention(x)
        g.manual_seed(1)
        return functional.dropout(y, 0.5)

    return fn, g


def the_default_one_as_the_caller_seeds():
    g = default_generator()

    def fn(x):
        g.manual_seed(1)
        return functional.dropout(x, 0.5)

    return fn, g


def made_in_the_call_and_given_by_position():
    def fn(x):
        g = torch.Generator(DEVICE)
        g.manual_seed(3)
        return torch.poisson(x.abs(), g)

    return fn, default_generator()


def made_in_the_call_and_given_by_name():
    def fn(x):
        g = torch.Generator(DEVICE)
        g.manual_seed(3)
        return torch.binomial(x.abs().round(), torch.full_like(x, 0.5), generator=g)

    return fn, default_generator()


SEEDING = (
    seeded_around_attention,
    seeded_and_not_asked,
    seeded_as_the_caller_seeds,
    put_back_as_it_was,
    the_default_one_around_attention,
    the_default_one_as_the_caller_seeds,
    made_in_the_call_and_given_by_position,
    made_in_the_call_and_given_by_name,
)


def results_of(make, wrap, calls=6):
    """Results and states after each call; at first the caller seeds as the function may do."""
    fn, g = make()
    fn, found = wrap(fn), []
    for n in range(calls):
        g.manual_seed(1 if n < 3 else 5)
        x = torch.arange(32.0, device=DEVICE).view(1, 1, 4, 8) / 8 + n
        with torch.no_grad():
            found += [fn(x).clone(), g.get_state().clone()]
    return found


@pytest.mark.parametrize("make", SEEDING)
def test_a_function_that_seeds_a_generator_gives_what_eager_gives(device, make):
    for ours, eager in zip(
        results_of(make, gfxgraph.graphed), results_of(make, lambda fn: fn), strict=True
    ):
        assert torch.equal(ours, eager)


def test_the_reason_says_where_to_seed(device):
    fn, _ = seeded_and_not_asked()
    graph = gfxgraph.graphed(fn)
    graph(torch.ones(2, device=device))
    (reason,) = graph.stats().fallbacks
    assert "Generator.manual_seed()" in reason and "Seed before the call" in reason


def of_a_fork(x):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        y = attention(x)
        return y * 2 if y.sum() > 0 else y


def of_a_fork_without_attention(x):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return x * 3 if x.sum() > 0 else x + 1


def of_an_operator_without_a_tag(x):
    y = torch.ops.gfxgraph_generators.noise(attention(x))
    return y * 2 if x.sum() > 0 else y


def of_a_seed_that_depends_on_the_last(x):
    torch.manual_seed(torch.initial_seed() + 1)
    y = attention(x)
    return y * 2 if y.sum() > 0 else y


_known = own()


def of_a_generator_given_by_position(x):
    y = torch.poisson(x.abs(), _known)
    return y * 2 if x.sum() > 0 else y


@pytest.mark.parametrize(
    "fn",
    [
        of_a_fork,
        of_a_fork_without_attention,
        of_an_operator_without_a_tag,
        of_a_seed_that_depends_on_the_last,
        of_a_generator_given_by_position,
    ],
)
def test_a_path_that_is_new_begins_with_the_random_numbers_of_its_call(device, fn):
    runs = []
    for run in (fn, gfxgraph.graphed(fn)):
        torch.manual_seed(1)
        _known.manual_seed(1)
        found = []
        for sign in (-1, -1, -1, 1, 1, -1):
            x = sign * (torch.arange(32.0, device=DEVICE).view(1, 1, 4, 8) / 8 + 0.1)
            with torch.no_grad():
                found += [run(x).clone(), default_generator().get_state(), _known.get_state()]
        runs.append(found)
    for eager, ours in zip(*runs, strict=True):
        assert torch.equal(ours, eager)
