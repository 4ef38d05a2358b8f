"""State on the graphed function itself, and gradients to which a call adds."""

from __future__ import annotations

import copy

import pytest
import torch

import gfxgraph


def reads(wrap):
    @wrap
    def fn(x):
        return x * fn.factor

    fn.factor = 2

    def between(n):
        if n == 3:
            fn.factor = 10
        if n == 5:
            del fn.factor

    return fn, between, lambda: vars(fn_of(fn)).get("factor")


def counts(wrap):
    @wrap
    def fn(x):
        fn.calls += 1
        return x * 2

    fn.calls = 0
    return fn, None, lambda: fn.calls


def keeps_its_result(wrap):
    @wrap
    def fn(x):
        fn.last = x * 2
        return fn.last + 1

    return fn, None, lambda: fn.last.tolist()


def reads_that_of_another(wrap):
    @wrap
    def other(x):
        return x

    @wrap
    def fn(x):
        return other(x) * other.factor

    other.factor = 2.0

    def between(n):
        other.factor = 2.0 + n // 2

    return fn, between, lambda: other.factor


def sets_by_name(wrap):
    @wrap
    def fn(x):
        setattr(fn, "calls", getattr(fn, "calls", 0) + 1)  # noqa: B010
        return x * (2 if hasattr(fn, "marked") else 3)

    def between(n):
        if n == 2:
            fn.marked = True
        if n == 4:
            del fn.marked

    return fn, between, lambda: fn.calls


def deletes(wrap):
    @wrap
    def fn(x):
        if hasattr(fn, "once"):
            del fn.once
            return x * 5
        return x * 2

    def between(n):
        if n in (0, 3):
            fn.once = True

    return fn, between, lambda: hasattr(fn, "once")


def of_an_object(wrap):
    class Scale:
        factor = 2

        def __call__(self, x):
            return x * self.factor

    fn = wrap(Scale())

    def between(n):
        fn.factor = n // 2

    return fn, between, lambda: fn.factor


def fn_of(fn):
    return getattr(fn, "__wrapped__", fn)


CASES = [
    *(reads, counts, keeps_its_result, reads_that_of_another, sets_by_name, deletes),
    of_an_object,
]


def run(make, wrap):
    fn, between, state = make(wrap)
    found = []
    for n in range(6):
        if between:
            between(n)
        try:
            result = fn(torch.full((2,), n + 1.0)).tolist()
        except AttributeError as error:
            result = str(error)
        found.append((result, state()))
    return found, fn


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_attributes_of_a_graphed_function_are_state_as_any_other(make):
    expected, _ = run(make, lambda fn: fn)
    got, fast = run(make, gfxgraph.graphed)
    assert got == expected
    assert (fast.stats().replays > 0) == (make is not deletes)


def test_a_graphed_function_has_the_attributes_that_are_set_on_it_and_its_own():
    def fn(x):
        return x

    fast = gfxgraph.graphed(fn)
    fast.mine = 3
    fast.__name__ = "another"
    assert fn.mine == 3 and fast.__name__ == "another" and fn.__name__ == "fn"
    del fast.mine
    assert not hasattr(fn, "mine") and not hasattr(fast, "mine")
    assert copy.copy(fast)(torch.ones(1)) == 1
    with pytest.raises(AttributeError):
        gfxgraph.graphed(torch.ones(1).add).mine = 3


def of_a_module(lin, x):
    lin(x).sum().backward()


def of_chosen_inputs(lin, x):
    (lin.weight * x).sum().backward(inputs=[lin.weight])


def of_a_cell(lin, x):
    torch.autograd.backward((lin.weight * x).sum())


def to_none(lin, n, kept):
    if n == 3:
        lin.zero_grad(set_to_none=True)


def to_none_each_time(lin, n, kept):
    lin.zero_grad(set_to_none=True)


def to_zero(lin, n, kept):
    lin.zero_grad(set_to_none=False)


def to_another(lin, n, kept):
    if n in (2, 4):
        kept.append(lin.weight.grad)
        lin.weight.grad = torch.full_like(lin.weight, 100.0)


def by_data(lin, n, kept):
    if n in (2, 4):
        lin.weight.grad.data = torch.full_like(lin.weight, 100.0)


@pytest.mark.parametrize("change", [to_none, to_none_each_time, to_zero, to_another, by_data])
@pytest.mark.parametrize("backward", [of_a_module, of_chosen_inputs, of_a_cell])
def test_gradients_to_which_a_call_adds_may_change_between_calls(backward, change):
    def calls(wrap):
        torch.manual_seed(0)
        lin, kept, found = torch.nn.Linear(3, 3), [], []

        def fn(x):
            with torch.enable_grad():
                backward(lin, x)
            return x * 2

        fast = wrap(fn)
        for n in range(6):
            change(lin, n, kept)
            with torch.no_grad():
                found.append(fast(torch.full((3,), n + 1.0)).tolist())
            grads = (lin.weight.grad, lin.bias.grad, *kept)
            found.append([None if grad is None else grad.tolist() for grad in grads])
        return found

    assert calls(gfxgraph.graphed) == calls(lambda fn: fn)


def test_an_attribute_that_the_program_sets_of_a_pool_is_watched():
    pool = gfxgraph.ShapeBucketPool(model_fn=lambda x: x, buckets=[4])
    pool.factor = 2.0
    fast = gfxgraph.graphed(lambda x: x * pool.factor)
    for n in range(6):
        pool.factor = 2.0 + n // 2
        assert fast(torch.ones(3)).tolist() == [2.0 + n // 2] * 3
    assert fast.stats().replays == 3
