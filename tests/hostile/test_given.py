"""What a call writes to its arguments is after each replay what eager execution leaves there.

Each case makes a function twice: one is graphed and one stays eager. They are given the same object in
each call, a new one in each call, one that is changed between the calls, or two in turn. After each of
six calls results, arguments and visible state are the same: values, types, order, which are one object,
and which tensors share memory.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import gfxgraph
from tests.helpers.sampled import sampled
from tests.hostile.hostile_given import CASES, WAYS, compare

# Why these stay eager: docs/internals/effects.md.
EAGER = frozenset(
    (
        "view_of_the_argument",
        "view_of_what_was_there",
        "keys_that_are_tuples",
        "a_class_of_dicts",
        "puts_an_argument_into_itself",
        "slots",
        "a_dataclass_with_slots",
        "a_setattr_of_the_program",
        "a_cycle_of_objects",
        "a_destructor",
        "a_module_as_argument",
        "replaces_the_dict",
        "compares_which_object_it_is",
        "an_argument_that_is_state",
        "an_argument_in_a_global_list",
        "puts_a_global_into_an_argument",
        "puts_a_new_function_into_an_argument",
        "what_it_keeps_requires_grad",
        "numpy_arrays",
        "writes_to_the_argument_of_the_call_before",
        "keeps_a_container_in_a_deque",
        "writes_what_is_there_already_by_setattr",
        "a_set_in_an_argument",
        "another_class_afterwards",
        "a_number_of_a_no_graph_function",
        "a_list_of_a_no_graph_function",
        "what_a_no_graph_function_gives",
        "a_global_number",
        "a_random_number_of_python",
        "a_number_of_an_iterator",
        "a_bound_method_and_a_partial",
    )
)
# The data takes another path in each call.
NEVER_AGAIN = frozenset(("a_number_that_is_read",))
# Eager where each call is given a new object; check() is given one.
BY_OBJECT = frozenset(
    (
        "another_class_afterwards",
        "a_set_in_an_argument",
        "writes_what_is_there_already_by_setattr",
    )
)
# check() does not see that it writes to a container of its state that was an argument before.
NOT_SEEN = frozenset(("writes_to_the_argument_of_the_call_before",))
PAIRS = list(itertools.product(CASES, WAYS))


@pytest.mark.parametrize("pair", sampled(PAIRS, 12, of_long=23))
def test_what_a_call_writes_to_its_arguments_is_what_eager_execution_leaves(device, pair):
    name, way = pair
    found, graph = compare(name, way, device=device)
    replays = graph.stats().replays
    graph.reset()
    assert found is None
    assert way != "new" or name in EAGER | NEVER_AGAIN or replays


@pytest.mark.parametrize("name", sampled(CASES, 12, of_long=23))
def test_check_says_of_each_whether_it_is_a_graph(name):
    fn, make, *_ = CASES[name]()
    report = gfxgraph.check(fn, make(), torch.randn(2, 4))
    is_graph = name not in EAGER or name in BY_OBJECT | NOT_SEEN
    assert (report.verdict != "eager") == is_graph, report.hazards
