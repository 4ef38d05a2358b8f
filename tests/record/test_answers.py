"""Sizes that are kept back from a function: what a stand-in answers, and what is noted."""

from __future__ import annotations

import copy
import json
import math
import operator
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gfxgraph.record import answers as room
from gfxgraph.record.answers import Answers, Size
from gfxgraph.record.effects import Unexpected


@pytest.fixture(autouse=True)
def no_kernels_of_the_program(monkeypatch):
    """Another test may have used vmap, for which torch registers kernels in Python then."""
    monkeypatch.setattr(room, "_OF_TORCHS", room._kernels_in_python())


NUMBERS = st.integers(-9, 9)
BINARY = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.and_, operator.or_, operator.xor, divmod, max, min, math.gcd),
)
UNARY = (
    *(operator.neg, operator.pos, abs, operator.invert, bool, int, float, complex, hash, str, repr),
    *(round, math.floor, math.ceil, math.trunc, operator.index, "{:>4}".format, "%d".__mod__),
    *(copy.deepcopy, copy.copy, lambda n: n.bit_length(), lambda n: n.real),
    *(lambda n: [0, 1] * n, lambda n: list(range(n)), lambda n: "ab"[n % 2 :], lambda n: n in {3}),
    *(lambda n: {n: 1}, lambda n: (n, 2) == (3, 2), lambda n: sum([n, n]), lambda n: n / 2.5),
    *(lambda n: 2.5 * n, lambda n: n > 2.5, lambda n: isinstance(n, int), lambda n: n.__class__),
)


def outcome(compute, *numbers):
    try:
        found = compute(*numbers)
    except (ArithmeticError, ValueError, TypeError) as error:
        return type(error)
    return found if not isinstance(found, Size) else int(found)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(BINARY), NUMBERS, NUMBERS, st.sampled_from(["left", "right", "both"]))
def test_a_stand_in_computes_and_compares_as_the_number_does(compute, one, other, which):
    answers = Answers()
    left = Size(one, answers) if which != "right" else one
    right = Size(other, answers) if which != "left" else other
    expected = outcome(compute, one, other)
    assert outcome(compute, left, right) == expected
    assert type(outcome(compute, left, right)) is type(expected)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(UNARY), NUMBERS)
def test_a_stand_in_alone_answers_as_the_number_does(compute, number):
    assert outcome(compute, Size(number, Answers())) == outcome(compute, number)


def test_what_only_hands_a_size_on_has_learned_nothing():
    def told(rows):
        x, answers = torch.ones(rows, 4), Answers()
        with answers:
            n, width = x.shape
            y = x.view(n * 2, width // 2).reshape(*x.shape[:-1], -1)[: n - 1]
            y = torch.zeros(n, 3) + y.new_ones((n, 1)).expand(n, 3)
            torch.arange(n)
            x.split(2, dim=1)
        assert answers.are_all
        assert not answers.of_sizes
        return answers.told

    assert told(3) == told(7) == told(2)


TELLING = {
    "compared": lambda n: n > 3,
    "counted": lambda n: list(range(n)),
    "printed": lambda n: f"{n}",
    "a key": lambda n: {n: 1},
    "true": lambda n: [n - 3 and 1],
    "an index": lambda n: [0, 1, 2, 3, 4, 5, 6, 7][n],
    "a float": lambda n: n / 2,
    "a root": lambda n: math.sqrt(n),
    "repeated": lambda n: [0] * n,
    "compared as a shape": lambda n: (n, 4) == (3, 4),
    "pickled": pickle.dumps,
    "in a text": "%d".__mod__,
}


@pytest.mark.parametrize("name", TELLING)
def test_code_that_learns_something_of_a_size_is_told_something_else(name):
    def told(rows, expected=None):
        answers = Answers(expected)
        with answers:
            TELLING[name](torch.ones(rows, 4).shape[0])
        return answers.told

    assert told(3) != told(5)
    with pytest.raises(Unexpected):
        told(5, told(3))


def test_a_size_that_is_no_answer_ends_the_run_before_the_code_can_act_on_it():
    acted = []

    def function(x):
        if x.shape[0] == 3:
            acted.append(x)

    expected = Answers()
    with expected:
        function(torch.ones(5, 4))
    with pytest.raises(Unexpected), Answers(expected.told):
        function(torch.ones(3, 4))
    assert not acted


def test_an_error_of_torch_is_no_answer():
    answers = Answers()
    with answers, pytest.raises(RuntimeError):
        torch.ones(3, 4).view(5, -1)
    assert not answers.are_all


def test_a_stand_in_is_none_for_code_that_asks_what_torch_traces_with():
    answers = Answers()
    size = Size(3, answers)
    with pytest.raises(AttributeError):
        size.node  # noqa: B018
    assert not answers.are_all
    with pytest.raises(TypeError):
        json.dumps(size)  # code in C that wants an int, which a recorded run notices
