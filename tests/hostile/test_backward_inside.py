"""Backward passes inside of a graphed function: gradients, hooks, and what is active around."""

from __future__ import annotations

import contextlib
from collections import OrderedDict

import pytest
import torch

import gfxgraph


def weight(value=1.0):
    return torch.full((1,), float(value), requires_grad=True)


def value(tensor):
    return None if tensor is None else tensor.tolist()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def nothing(n):
    pass


# Each makes a function, what happens between calls, and what can be seen of the state.


def step_and_zero_grad(make):
    w = weight()
    optimizer = make([w])

    def fn(x):
        with torch.enable_grad():
            loss = (w * w * x).sum()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return fn, nothing, lambda: (value(w), value(w.grad))


def sgd():
    return step_and_zero_grad(lambda params: torch.optim.SGD(params, lr=0.1))


def adam():
    return step_and_zero_grad(lambda params: torch.optim.Adam(params, lr=0.1))


def zero_grad_first():
    w = weight()
    optimizer = torch.optim.SGD([w], lr=0.1)

    def fn(x):
        optimizer.zero_grad()
        with torch.enable_grad():
            (w * w * x).sum().backward()
        optimizer.step()
        return x * 2

    return fn, nothing, lambda: (value(w), value(w.grad))


def sets_to_none():
    w = weight()

    def fn(x):
        with torch.enable_grad():
            (w * x).sum().backward()
        w.grad = None
        return x * 2

    return fn, nothing, lambda: value(w.grad)


def sets_what_was_there_to_none():
    fn, _, state = sets_to_none()
    kept = []

    def gradient(n):
        if n == 0:
            w = fn.__closure__[0].cell_contents
            w.grad = torch.ones(1)
            kept.append(w.grad)

    return fn, gradient, lambda: (state(), value(kept[0]))


def swaps_two():
    w, v = weight(), weight()

    def fn(x):
        with torch.enable_grad():
            (w * x + v * 2 * x).sum().backward()
        w.grad, v.grad = v.grad, w.grad
        return x * 2

    return fn, nothing, lambda: (value(w.grad), value(v.grad))


def rebinds_the_data_of_a_gradient():
    w = weight()
    w.grad = torch.zeros(1)

    def fn(x):
        with torch.enable_grad():
            (w * x).sum().backward()
        w.grad.data = w.grad.data * 0.5
        return x * 2

    return fn, nothing, lambda: value(w.grad)


def gradients_with_a_graph():
    w = weight()
    kept = []

    def fn(x):
        with torch.enable_grad():
            (w * w * x).sum().backward(create_graph=True)
        return x * 2

    def between(n):
        if n == 3:
            kept.append(w.grad)
        if n == 4:
            w.grad = None

    return fn, between, lambda: (value(w.grad), [value(grad) for grad in kept])


def through_a_graph_from_outside():
    w = weight()
    hidden = w * 3
    hidden.retain_grad()

    def fn(x):
        with torch.enable_grad():
            (hidden * x).sum().backward(retain_graph=True)
        return x * 2

    def between(n):
        if n == 3:
            hidden.register_hook(lambda grad: grad * 2)

    return fn, between, lambda: (value(w.grad), value(hidden.grad))


EAGER = [
    *(sgd, adam, zero_grad_first, sets_to_none, sets_what_was_there_to_none, swaps_two),
    *(rebinds_the_data_of_a_gradient, gradients_with_a_graph, through_a_graph_from_outside),
]


def run(make, wrap, around=lambda n: contextlib.nullcontext(), count=8):
    fn, between, state = make()
    fast = wrap(fn)
    found = []
    for n in range(count):
        between(n)
        try:
            with torch.no_grad(), around(n):
                result = value(fast(torch.full((1,), 1.0 + n % 2)))
        except RuntimeError as error:
            result = str(error)
        found.append((result, state()))
    return found, fast


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("make", EAGER, ids=lambda make: make.__name__)
def test_runs_of_a_capture_leave_no_gradient_behind(make):
    expected, _ = run(make, lambda fn: fn)
    got, fast = run(make, gfxgraph.graphed)
    assert got == expected
    assert not fast.stats().replays and fast.stats().fallbacks


def test_a_gradient_is_the_same_object_after_a_capture():
    w = weight()
    w.grad = before = torch.ones(1)
    log = []

    def fn(x):
        with torch.enable_grad():
            (w * x).sum().backward()
        log.append(1)
        w.grad = None
        return x * 2

    fast = gfxgraph.graphed(fn)
    with torch.no_grad():
        fast(torch.ones(1))
    assert w.grad is None and log == [1] and before.tolist() == [2.0]


def of_an_argument(x):
    with torch.enable_grad():
        y = (x * x).sum()
        y.backward()
    return y.detach()


def of_a_view_of_an_argument(x):
    with torch.enable_grad():
        y = (x.view(-1) * 2).sum()
        torch.autograd.backward(y)
    return y.detach()


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("fn", [of_an_argument, of_a_view_of_an_argument])
def test_gradients_of_arguments_are_those_of_each_call(fn, grad_mode):
    def calls(fn):
        kept = weight()
        inputs = [*map(weight, range(4)), kept, kept, kept]
        with grad_mode():
            results = [fn(x).tolist() for x in inputs]
        return results, [value(x.grad) for x in inputs]

    fast = gfxgraph.graphed(fn)
    assert calls(fast) == calls(fn)
    (reason,) = fast.stats().fallbacks
    assert "Tensor.grad of an argument" in reason and "torch.autograd.grad" in reason


def test_gradients_that_a_call_gives_back_are_a_graph():
    w = torch.ones(3)

    def of_the_input(x):
        return torch.autograd.grad((x.sin() * w).sum(), x)[0]

    def of_a_leaf_of_the_call(x):
        with torch.enable_grad():
            p = w.detach().requires_grad_()
            (x * p * p).sum().backward()
        return p.grad * 1

    def with_func(x):
        return torch.func.grad(lambda v: (v * v * w).sum())(x)

    for fn, needs_grad in (
        (of_the_input, True),
        (of_a_leaf_of_the_call, False),
        (with_func, False),
    ):
        fast = gfxgraph.graphed(fn)
        for n in range(4):
            x = torch.full((3,), 1.0 + n, requires_grad=needs_grad)
            torch.testing.assert_close(fast(x), fn(x))
            assert x.grad is None
        assert fast.stats().replays == 3


def has_a_hook(w):
    x = weight(2.0)
    x.register_hook(lambda grad: grad * 10)
    return x


def was_recorded(w):
    with torch.enable_grad():
        return w * 2


def was_recorded_and_has_a_hook(w):
    x = was_recorded(w)
    x.register_hook(lambda grad: grad * 10)
    return x


@pytest.mark.parametrize("other", [has_a_hook, was_recorded, was_recorded_and_has_a_hook])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("of_weight", [True, False])
def test_hooks_and_histories_of_arguments_matter_to_a_backward_pass(other, first, of_weight):
    def calls(wrap):
        w = weight()

        def fn(x):
            with torch.enable_grad():
                loss = (x * x).sum() + w.sum() * 0
                return torch.autograd.grad(loss, w if of_weight else x)[0]

        fast, plain = wrap(fn), [weight(2.0) for _ in range(3)]
        others = [other(w) for _ in range(3)]
        with torch.no_grad():
            inputs = [*others, *plain] if first else [*plain, *others, *plain]
            return [value(fast(x)) for x in inputs]

    assert calls(gfxgraph.graphed) == calls(lambda fn: fn)


# Hooks come and go between calls, before the fourth and the sixth.


def by_autograd_grad(w, x):
    return torch.autograd.grad((w * x).sin().sum(), w)[0]


def by_backward(w, x):
    (w * x).sin().sum().backward()
    return w.grad * 1


def by_a_function_of_autograd(w, x):
    return torch.autograd.grad(Square.apply(w).sum(), w)[0] * x


def by_chosen_inputs(w, x):
    torch.autograd.backward((w * x).sum(), inputs=[w])
    return w.grad * 1


def added(w, log):
    return nothing, lambda: w.register_hook(lambda grad: grad * 3).remove


def removed(w, log):
    handle = w.register_hook(lambda grad: grad * 3)
    return handle.remove, lambda: nothing


def replaced(w, log):
    handle = w.register_hook(lambda grad: grad * 3)

    def other():
        handle.remove()
        return w.register_hook(lambda grad: grad * 7).remove

    return None, other


def counting(w, log):
    return None, lambda: w.register_hook(lambda grad: log.append(1)).remove


def after_accumulation(w, log):
    def hook(leaf):
        leaf.grad.mul_(2)

    return None, lambda: w.register_post_accumulate_grad_hook(hook).remove


def of_several(w, log):
    def hook(grads):
        log.append(len(grads))

    return None, lambda: torch.autograd.graph.register_multi_grad_hook([w], hook).remove


def put_there(w, log):
    def put():
        w._backward_hooks = OrderedDict({7: lambda grad: grad * 3})
        return lambda: setattr(w, "_backward_hooks", None)

    return None, put


HOOKS = [added, removed, replaced, counting, after_accumulation, of_several, put_there]
WAYS = [by_autograd_grad, by_backward, by_a_function_of_autograd, by_chosen_inputs]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_hooks_of_leaves_may_come_and_go_between_calls(way, hook):
    def make():
        w, log = weight(), []
        before, begin = hook(w, log)
        ends = []

        def fn(x):
            with torch.enable_grad():
                return way(w, x)

        def between(n):
            if n == 3:
                if before not in (None, nothing):
                    before()
                ends.append(begin())
            if n == 5 and ends[0] is not nothing:
                ends[0]()

        return fn, between, lambda: (value(w.grad), list(log))

    expected, _ = run(make, lambda fn: fn)
    got, fast = run(make, gfxgraph.graphed)
    assert got == expected
    assert fast.stats().replays > 0
    assert "the hooks of w" in fast.stats().changed


def of_a_module_full(lin):
    return lin.register_full_backward_hook(lambda module, into, out: (into[0] * 3,))


def of_a_module_before(lin):
    return lin.register_full_backward_pre_hook(lambda module, out: (out[0] * 3,))


def of_all_modules_full(lin):
    register = torch.nn.modules.module.register_module_full_backward_hook
    return register(lambda module, into, out: (into[0] * 3,))


def of_all_modules_before(lin):
    register = torch.nn.modules.module.register_module_full_backward_pre_hook
    return register(lambda module, out: (out[0] * 3,))


OF_MODULES = [of_a_module_full, of_a_module_before, of_all_modules_full, of_all_modules_before]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("register", OF_MODULES, ids=lambda register: register.__name__)
def test_backward_hooks_of_modules_may_come_and_go_between_calls(register, is_first):
    def make():
        lin = torch.nn.Linear(1, 1)
        with torch.no_grad():
            lin.weight.fill_(2.0)
        handles = []

        def fn(x):
            with torch.enable_grad():
                x = x.clone().requires_grad_()
                return torch.autograd.grad(lin(x).sum(), x)[0]

        def between(n):
            if n == (0 if is_first else 3):
                handles.append(register(lin))
            if n == 5:
                handles.pop().remove()

        return fn, between, lambda: None

    expected, _ = run(make, lambda fn: fn)
    got, fast = run(make, gfxgraph.graphed)
    assert got == expected
    assert fast.stats().replays > 0


def loses_its_values(w, x):
    return torch.autograd.grad((w * x * 0).sqrt().mul(0).sum(), w)[0]


def only_records(w, x):
    return (w * x).sin().detach()


def takes_no_part(w, x):
    with torch.no_grad():
        return (w * x).sin()


@pytest.mark.filterwarnings("ignore:Error detected in")
@pytest.mark.parametrize("when", [(3, 4), (0, 1), range(8)], ids=str)
@pytest.mark.parametrize("fn", [by_autograd_grad, loses_its_values, only_records, takes_no_part])
@pytest.mark.parametrize("what", ["anomalies", "saved tensors", "no saved tensors"])
def test_what_is_active_around_a_call_reaches_the_autograd_inside(what, fn, when):
    def make():
        w = weight()

        def graphed(x):
            with torch.enable_grad():
                return fn(w, x)

        return graphed, nothing, lambda: list(log)

    def around(n):
        if n not in when:
            return contextlib.nullcontext()
        if what == "anomalies":
            return torch.autograd.set_detect_anomaly(True)
        if what == "no saved tensors":
            return torch.autograd.graph.disable_saved_tensors_hooks("not now")
        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 2)

    def pack(tensor):
        log.append(1)
        return tensor

    log = []
    expected, _ = run(make, lambda fn: fn, around)
    log = []
    got, fast = run(make, gfxgraph.graphed, around)
    assert repr(got) == repr(expected)
    stats = fast.stats()
    if fn is takes_no_part:
        assert stats.replays == 7 and not stats.fallbacks
    elif what != "no saved tensors":
        raises = any(isinstance(result, str) for result, _ in expected)
        named = any("and autograd takes part inside" in reason for reason in stats.fallbacks)
        assert named or (raises and 0 in when)  # of a call that raises no graph is tried
        assert (stats.replays > 0) == (len(when) < 8)
        assert stats.captures == (len(when) < 8)
