"""Random numbers that a call draws on the host, of the CPU's generator, are drawn in each replay.

On the emulated device the CPU is the device, so only a real one has such numbers.
"""

from __future__ import annotations

import pytest
import torch

import gfxgraph

pytestmark = pytest.mark.gpu

_KEPT = torch.zeros(4)


def _branch(x):
    return x * 2 if torch.rand(()) > 0.5 else x - 1


def _in_place(x):
    return x + _KEPT.uniform_().to(x.device)


def _loop(x):
    for _ in range(3):
        x = x * torch.randn(4).to(x.device) + torch.rand(4, device=x.device)
    return x


_DRAWS = {
    "rand": lambda x: x + torch.rand(4).to(x.device),
    "randint": lambda x: x * torch.randint(1, 9, (1,)).to(x.device),
    "a number": lambda x: x * torch.randint(1, 4, (1,)).item(),
    "randperm": lambda x: x[torch.randperm(4).to(x.device)],
    "index on the host": lambda x: x[torch.randint(0, 4, (4,))],
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((4,), 0.5)).to(x.device),
    "dropout": lambda x: x * torch.nn.functional.dropout(torch.ones(4)).to(x.device),
    "in place": _in_place,
    "a branch": _branch,
    "both generators": _loop,
    "computed on": lambda x: x + (torch.rand(4) * 2 + 1).sum().to(x.device),
    "only advanced": lambda x: (torch.rand(3), x * 2)[1],
    "returned": lambda x: (torch.rand(3), x * 2),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", _DRAWS)
def test_the_host_draws_in_each_call(name, mode):
    function = _DRAWS[name]

    def world(call):
        torch.manual_seed(5)
        _KEPT.zero_()
        found = []
        for value in range(12):
            with mode():
                result = call(torch.arange(4.0, device="cuda") + value)
            results = result if isinstance(result, tuple) else (result,)
            found.append(
                (
                    [r.tolist() for r in results],
                    _KEPT.tolist(),
                    torch.get_rng_state().tolist(),
                    torch.cuda.get_rng_state().tolist(),
                )
            )
        return found

    graph = gfxgraph.graphed(function)
    assert world(graph) == world(function)
    assert graph.stats().replays > 0


@torch.no_grad()
def test_a_generator_of_the_program_on_the_host_is_drawn_from_eagerly():
    generator = torch.Generator().manual_seed(1)
    graph = gfxgraph.graphed(lambda x: x + torch.rand(4, generator=generator).to(x.device))
    twin = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.ones(4, device="cuda")
        torch.testing.assert_close(graph(x), x + torch.rand(4, generator=twin).to(x.device))
    assert graph.stats().replays == 0


@torch.no_grad()
def test_calls_of_other_sizes_draw_as_many_numbers_as_eagerly():
    def function(x):
        return x * torch.rand(x.shape[0], 1).to(x.device)

    def world(call):
        torch.manual_seed(7)
        found = []
        for size in (3, 5, 4, 7, 3, 8, 5, 4, 6, 2, 3, 5):
            found.append(call(torch.ones(size, 2, device="cuda")).tolist())
            found.append(torch.get_rng_state().tolist())
        return found

    assert world(gfxgraph.graphed(function, buckets=[4, 8])) == world(function)
    assert world(gfxgraph.graphed(function)) == world(function)
