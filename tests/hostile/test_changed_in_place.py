"""What code in C asks, and what ``__init__`` of an object in C changes, between two calls."""

from __future__ import annotations

import types
import warnings

import numpy as np
import pytest
import torch

import gfxgraph

ZERO = np.array([0.0])


class Truncated:
    def __trunc__(self):
        return 2

    def __float__(self):
        return Number(2.0)


class Number(float):
    pass


def or_3(do, error):
    def fn(x):
        try:
            do(x)
        except error:
            return x * 3
        return x * 2

    return fn


def divided():
    return or_3(lambda x: ZERO / ZERO, FloatingPointError), lambda: np.seterr(all="raise")


def divided_numbers():
    box = types.SimpleNamespace(number=np.float64(0))
    fn = or_3(lambda x: box.number / box.number, FloatingPointError)
    return fn, lambda: np.seterr(all="raise")


def divided_with_its_own_setting():
    box = types.SimpleNamespace(errors=np.errstate)

    def divide(x):
        with box.errors(all="ignore"):
            ZERO / ZERO
        ZERO / ZERO

    return or_3(divide, FloatingPointError), lambda: np.seterr(all="raise")


def summed():
    box = types.SimpleNamespace(big=np.array([1e308, 1e308]))
    return or_3(lambda x: box.big.sum(), FloatingPointError), lambda: np.seterr(all="raise")


def divided_with_a_callback():
    def fail(*given):
        raise KeyError

    def change():
        np.seterrcall(fail)
        np.seterr(all="call")

    return or_3(lambda x: ZERO / ZERO, KeyError), change


def warned_of_by_numpy():
    np.seterr(all="warn")
    fn = or_3(lambda x: ZERO / ZERO, RuntimeWarning)
    return fn, lambda: warnings.simplefilter("error")


def warned_of_by_a_conversion():
    held = Truncated()
    return or_3(lambda x: float(held), DeprecationWarning), lambda: warnings.simplefilter("error")


def warned_of_by_eval():
    fn = or_3(lambda x: eval(r"'\d'"), SyntaxError)
    return fn, lambda: warnings.simplefilter("error")


CASES = {
    make.__name__: make
    for make in (
        *(divided, divided_numbers, divided_with_its_own_setting, summed),
        *(divided_with_a_callback, warned_of_by_numpy, warned_of_by_a_conversion),
        *(warned_of_by_eval,),
    )
}


@pytest.fixture(autouse=True)
def settings_as_before():
    call = np.geterrcall()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        np.seterrcall(call)


def after_each_call(make, wrap, x):
    fn, change = make()
    called, found = wrap(fn), []
    with np.errstate(), warnings.catch_warnings():
        for n in range(6):
            if n == 4:
                change()
            found.append(called(x).tolist())
    return found, called


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_what_is_changed_in_place_is_never_stale(device, name):
    x = torch.ones(1, device=device)
    eager, _ = after_each_call(CASES[name], lambda fn: fn, x)
    assert eager[3] != eager[4]
    found, _ = after_each_call(CASES[name], gfxgraph.graphed, x)
    assert found == eager


@torch.no_grad()
def test_what_is_set_and_put_back_between_calls_keeps_the_graph(device):
    graph, x = gfxgraph.graphed(lambda x: (ZERO + ZERO, x * 2)[1]), torch.ones(1, device=device)
    for _ in range(6):
        graph(x)
        np.seterr(**np.seterr(all="raise"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph(x)
    assert graph.stats().captures == 1
    assert graph.stats().replays >= 10
