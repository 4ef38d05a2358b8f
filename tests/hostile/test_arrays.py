"""Arrays of NumPy that a call writes to or reads: subclasses, records, names of fields."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch

import gfxgraph


class Odd(np.ndarray):
    """Nobody but the program asks for its attributes."""

    def __getattribute__(self, name):
        assert sys._getframe(1).f_globals["__name__"].partition(".")[0] != "gfxgraph"
        return super().__getattribute__(name)


def masked():
    return np.ma.array([1.0, 2.0], mask=[True, False], fill_value=9.0)


def fields():
    return np.array([(2.0, 5.0)], dtype=[("a", "f4"), ("b", "f4")])


def nested():
    return np.array([((2.0, 5.0),)], dtype=[("p", [("a", "f4"), ("b", "f4")])])


def record():
    return fields()[0].copy()


def held(array):
    if isinstance(array, np.poly1d):
        return array.c.tolist()
    if isinstance(array, np.dtype):
        return array.names
    if isinstance(array, np.ma.MaskedArray):
        return array.data.tolist(), array.mask.tolist(), float(array.fill_value)
    base = array.base.tolist() if type(array.base) is np.ndarray else None
    return array.tolist(), base, array.dtype.names, array.flags.writeable


def add(array):
    array[0] += 1


def add_to_field(array):
    array["a"] += 1


def add_to_memory(array):
    array.data[0] += 1


def add_to_base(array):
    array.base[0] += 1


def turn_names(array):
    array.dtype.names = array.dtype.names[::-1]


def turn_own_names(dtype):
    dtype.names = dtype.names[::-1]


# How the array is made, and what each call does to it.
WRITES = {
    "a subclass": (lambda: np.ones(3).view(Odd), add),
    "the memory of a masked array": (masked, add_to_memory),
    "a matrix": (lambda: np.ones((1, 2)).view(np.matrix), add),
    "an array of records": (lambda: fields().view(np.recarray), add_to_field),
    "a record": (record, add_to_field),
    "the array behind a view": (lambda: np.zeros(3)[1:], add_to_base),
    "the array in an object of NumPy": (lambda: np.poly1d([1.0, 2.0]), add),
}


def calls(make, use, wrap, change=lambda array: None):
    array = make()
    # In an object: what a closure holds may be an argument to somebody.
    world = types.SimpleNamespace(array=array)

    def function(x):
        found = use(world.array)
        return x * 2 if found is None else x * found

    called, found = wrap(function), []
    for n in range(6):
        if n == 3:
            change(array)
        try:
            result = called(torch.ones(1)).item()
        except ValueError as error:
            result = str(error)
        found.append((result, held(array)))
    return found, called


def same(*given):
    found, function = calls(*given[:2], gfxgraph.graphed, *given[2:])
    assert found == calls(*given[:2], lambda function: function, *given[2:])[0]
    return function.stats()


@pytest.mark.parametrize("name", WRITES)
def test_a_call_writes_once(name):
    same(*WRITES[name])


def set_mask(array):
    array.mask = [True, False]


def set_items_of_mask(array):
    array.mask[:] = [True, False]


def set_fill_value(array):
    array.fill_value = 9.0


def set_memory(array):
    array.data[0] = 1.0


def other_mask(array):
    array.mask = [False, True]


def other_fill_value(array):
    array.fill_value = 3.0


def set_names(array):
    array.dtype.names = ("a", "b")


def names_inside(array):
    array.dtype["p"].names = ("b", "a")


def only_read(array):
    array.setflags(write=False)


# What each call writes, which is there already, and what somebody changes later.
AGAIN = {
    "a mask": (masked, set_mask, other_mask),
    "items of a mask": (masked, set_items_of_mask, other_mask),
    "a fill value": (masked, set_fill_value, other_fill_value),
    "the memory of a masked array": (masked, set_memory, add_to_memory),
    "names of fields": (fields, set_names, turn_names),
    "an array that is closed": (
        lambda: np.ones(3),
        lambda array: array.__setitem__(0, 1.0),
        only_read,
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_write_of_what_is_there_is_a_write(name):
    same(*AGAIN[name])


# What each call reads, and what somebody changes later.
READS = {
    "a field": (fields, lambda array: float(array["a"][0]), turn_names),
    "a field inside": (nested, lambda array: float(array["p"]["a"][0]), names_inside),
    "names of a dtype": (
        lambda: np.dtype([("a", "f4"), ("bb", "f4")]),
        lambda dtype: len(dtype.names[0]),
        turn_own_names,
    ),
    "the memory of a masked array": (
        masked,
        lambda array: float(array.data[0]),
        add_to_memory,
    ),
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_is_watched(name):
    stats = same(*READS[name])
    assert (stats.captures, stats.replays) == (2, 4)  # and none of it keeps a function eager
