"""Transforms of torch around a graphed function: eager, right, counted, whatever came before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import gfxgraph
from tests.helpers.sampled import sampled


def sines(*tensors: torch.Tensor) -> torch.Tensor:
    return sum(t.sin() for t in tensors)


def with_grad(x: torch.Tensor) -> torch.Tensor:
    return x.clone().requires_grad_()


def duals(f: Any, args: list[torch.Tensor]) -> Any:
    with forward_ad.dual_level():
        return tuple(
            forward_ad.unpack_dual(f(*(forward_ad.make_dual(a, torch.ones_like(a)) for a in args)))
        )


def one_dual(f: Any, args: list[torch.Tensor]) -> Any:
    with forward_ad.dual_level():
        first = forward_ad.make_dual(args[0], torch.ones_like(args[0]))
        return tuple(forward_ad.unpack_dual(f(first, *args[1:])))


def grad_of(f: Any, args: list[torch.Tensor]) -> Any:
    xs = list(map(with_grad, args))
    return torch.autograd.grad(f(*xs).sum(), xs)


def saved_tensors(f: Any, args: list[torch.Tensor]) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        return grad_of(f, args)


def checkpointed(reentrant: bool) -> Any:
    return lambda f, args: (
        grad_of(lambda *xs: checkpoint(f, *xs, use_reentrant=reentrant), args)
        if not reentrant
        else backward_of(f, args)
    )


def backward_of(f: Any, args: list[torch.Tensor]) -> Any:
    xs = list(map(with_grad, args))
    checkpoint(f, *xs, use_reentrant=True).sum().backward()
    return [x.grad for x in xs]


def counted(f: Any, args: list[torch.Tensor]) -> Any:
    with FlopCounterMode(display=False) as mode:
        f(*args)
    return mode.get_total_flops()


def traced(f: Any, args: list[torch.Tensor]) -> Any:
    program = torch.jit.trace(lambda *xs: f(*xs) * 2, tuple(args), check_trace=False)
    return program(*(a + 1 for a in args))


def functional(f: Any, args: list[torch.Tensor]) -> Any:
    return make_fx(lambda *xs: f(*xs) * 2)(*args)(*(a + 1 for a in args))


def exported(f: Any, args: list[torch.Tensor]) -> Any:
    class Module(torch.nn.Module):
        def forward(self, *xs: torch.Tensor) -> torch.Tensor:
            return f(*xs) * 2

    program = torch.export.export(Module(), tuple(args), strict=False).module()
    return program(*(a + 1 for a in args))


def pushed_forward(f: Any, args: list[torch.Tensor]) -> Any:
    return torch.func.jvp(f, tuple(args), tuple(map(torch.ones_like, args)))


AROUND = {
    "dual numbers": (duals, "forward-mode AD"),
    "one dual number": (one_dual, "forward-mode AD"),
    "jvp": (pushed_forward, "torch.func"),
    "vjp": (lambda f, args: torch.func.vjp(f, *args)[1](torch.ones_like(args[0])), "torch.func"),
    "grad": (lambda f, args: torch.func.grad(lambda *xs: f(*xs).sum())(*args), "torch.func"),
    "vmap": (lambda f, args: torch.vmap(f)(*args), "torch.func"),
    "vmap of something else": (
        lambda f, args: torch.vmap(lambda v: v + f(*args))(torch.zeros_like(args[0])),
        "torch.func",
    ),
    "jacrev": (lambda f, args: torch.func.jacrev(f)(*args), "torch.func"),
    "jacfwd": (lambda f, args: torch.func.jacfwd(f)(*args), "torch.func"),
    "hessian": (lambda f, args: torch.func.hessian(lambda *xs: f(*xs).sum())(*args), "torch.func"),
    "linearize": (
        lambda f, args: torch.func.linearize(f, *args)[1](*map(torch.ones_like, args)),
        "",
    ),
    "autograd": (grad_of, "requires grad"),
    "saved tensors": (saved_tensors, "requires grad"),
    "checkpoint": (checkpointed(False), "requires grad"),
    "checkpoint, reentrant": (checkpointed(True), "requires grad"),
    "FLOPs": (counted, "TorchDispatchMode"),
    "make_fx": (functional, "TorchDispatchMode"),
    "jit.trace": (traced, "torch.jit.trace"),
    "export": (exported, "TorchDispatchMode"),
}


# From 16 tensors on, a replay copies below autograd.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", sampled(AROUND, 3, of_long=5))
def test_a_transform_gives_what_it_gives_in_eager(device, name, before, count):
    use, reason = AROUND[name]
    if count == 20 and name in ("hessian", "linearize"):
        pytest.skip("takes long, and takes the way of the others")
    args = [torch.randn(3, 3, device=device) for _ in range(count)]
    graph = gfxgraph.graphed(sines)
    for _ in range(before):
        torch.testing.assert_close(graph(*args), sines(*args))
    given = _pytree.tree_leaves(use(graph, args))
    expected = _pytree.tree_leaves(use(sines, args))
    assert len(given) == len(expected)
    for ours, theirs in zip(given, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert any(reason in known for known in graph.stats().fallbacks)
    torch.testing.assert_close(graph(*args), sines(*args))


def test_a_transform_with_no_argument_is_seen_too(device):
    x = torch.ones(3, device=device)
    graph = gfxgraph.graphed(lambda: x * 2)
    for _ in range(2):
        graph()
    torch.vmap(lambda v: v + graph())(torch.zeros(2, 3, device=device))
    assert any("torch.func" in reason for reason in graph.stats().fallbacks)


@pytest.mark.parametrize("inside", [True, False])
def test_fake_and_meta_tensors_run_eagerly(device, inside):
    from torch._subclasses import FakeTensorMode

    graph = gfxgraph.graphed(sines)
    x = torch.ones(3, device=device)
    for _ in range(2):
        graph(x)
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    if inside:
        with mode:
            assert graph(fake).shape == x.shape
    else:
        assert graph(fake).shape == x.shape
    assert graph(x.to("meta")).is_meta
    assert len(graph.stats().fallbacks) == 2


def test_a_function_that_branches_leaves_dual_numbers_to_eager(device):
    def f(x):
        return x * 2 if x.sum() > 0 else x * 3

    graph = gfxgraph.graphed(f)
    x = torch.ones(3, device=device)
    for _ in range(2):
        graph(x)
    assert graph.stats().replays == 1
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert forward_ad.unpack_dual(graph(dual)).tangent.tolist() == [2, 2, 2]
