"""Functions that read objects which they reach in unusual ways, and what changes these objects.

A graph watches what the recording of a run has seen being read, and no more. Each of ``CASES``
makes a function and a change that an eager call notices. Each of ``UNREAD`` makes a function and
a change that it does not notice: the graph has to stay.
"""

# ruff: noqa: B009, B024, B039, B905, F841, RUF005, RUF012, RUF015, RUF017, UP030, UP031, UP032, UP034
from __future__ import annotations

import abc
import array
import bisect
import collections
import contextlib
import contextvars
import copy
import ctypes
import dataclasses
import enum
import functools
import gc
import heapq
import inspect
import itertools
import json
import logging
import marshal
import math
import operator
import pickle
import pprint
import queue
import random
import reprlib
import statistics
import string
import struct
import sys
import textwrap
import threading
import types
import typing
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import sympy  # noqa: F401  # torch imports it in a first capture, and it registers with copyreg
import torch
from torch import nn
from torch.utils import _pytree as pytree

CASES = {}
EAGER = []
UNREAD = {}
NS = types.SimpleNamespace


class Plain:
    """An object that has the attributes which it is given."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("__weakref__", "inner", "n")

    def __init__(self, n, inner=None):
        self.n, self.inner = n, inner


@dataclasses.dataclass
class Data:
    n: float = 2.0
    items: list = dataclasses.field(default_factory=lambda: [1.0])
    inner: object = None


@dataclasses.dataclass(order=True)
class Ordered:
    n: float = 2.0
    items: list = dataclasses.field(default_factory=list)


class Number:
    """Compared and shown by code in Python."""

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == getattr(other, "n", other)

    def __hash__(self):
        return 1

    def __lt__(self, other):
        return self.n < other.n

    def __repr__(self):
        return "N" * int(self.n)

    def __float__(self):
        return float(self.n)

    def __index__(self):
        return int(self.n)

    def __len__(self):
        return int(self.n)

    def __add__(self, other):
        return self.n + other

    __radd__ = __add__


class Module(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return x * 2


def case(make):
    CASES[make.__name__] = make
    return make


def eager(make):
    """What it reads nobody can see, so that it must not be a graph."""
    EAGER.append(make.__name__)
    return case(make)


def unread(make):
    UNREAD[make.__name__] = make
    return make


def gives(get, change):
    """Multiplies by what ``get`` gives."""
    return (lambda x: x * get()), change


def tells(get, change):
    """Multiplies by the length of the text of what ``get`` gives."""
    return (lambda x: x * len(str(get()))), change


def sets(item, name, value=5.0):
    return lambda: object.__setattr__(item, name, value)


def puts(container, key, value=5.0):
    return lambda: operator.setitem(container, key, value)


# ---- copies


def _copies(how):
    """Cases of one way to copy: of an attribute, a list in it, and an object in that."""

    def of_an_attribute():
        c = Plain(n=2.0)
        return gives(lambda: how(c).n, sets(c, "n"))

    def of_a_list():
        c = Plain(items=[2.0])
        return gives(lambda: how(c).items[0], puts(c.items, 0))

    def of_an_object():
        c = Plain(inner=Plain(inner=Plain(inner=Plain(inner=Plain(n=2.0)))))
        return gives(lambda: how(c).inner.inner.inner.inner.n, sets(c.inner.inner.inner.inner, "n"))

    def of_a_slot():
        c = Slotted(2.0, Slotted(2.0))
        return gives(lambda: how(c).inner.n, sets(c.inner, "n"))

    def of_a_new_attribute():
        c = Plain()
        return gives(lambda: getattr(how(c), "n", 2.0), sets(c, "n"))

    def of_data():
        c = Data(inner=Data())
        return gives(lambda: how(c).inner.items[0], puts(c.inner.items, 0))

    return [of_an_attribute, of_a_list, of_an_object, of_a_slot, of_a_new_attribute, of_data]


for _name, _how in {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickled": lambda item: pickle.loads(pickle.dumps(item)),
    "pickled_old": lambda item: pickle.loads(pickle.dumps(item, 2)),
}.items():
    for _make in _copies(_how):
        CASES[f"{_name}_{_make.__name__}"] = _make


@case
def copy_of_a_module():
    c = Module(n=2.0)
    return gives(lambda: copy.copy(c).n, sets(c, "n"))


@case
def deepcopy_of_a_module():
    c = Module(inner=Module(n=2.0))
    return gives(lambda: copy.deepcopy(c).inner.n, sets(c.inner, "n"))


@case
def copy_of_a_module_and_its_list():
    c = Module(items=[2.0])
    return gives(lambda: copy.copy(c).items[0], puts(c.items, 0))


@case
def pickled_module():
    c = Module(inner=Module(n="a"))
    return gives(lambda: len(pickle.dumps(c)), lambda: setattr(c.inner, "n", "abc"))


@case
def reduced_by_hand():
    c = Plain(n=2.0)
    return gives(lambda: c.__reduce_ex__(4)[2]["n"], sets(c, "n"))


@case
def reduced_module_by_hand():
    c = Module(n=2.0)
    return gives(lambda: c.__reduce_ex__(4)[2]["n"], sets(c, "n"))


@case
def reduced_old():
    c = Plain(n=2.0)
    return gives(lambda: object.__reduce__(c)[2]["n"] if c.__reduce__()[2:] else 7, sets(c, "n"))


@case
def state_by_hand():
    c = Plain(n=2.0)
    get = getattr(object, "__getstate__", lambda item: item.__reduce_ex__(4)[2])
    return gives(lambda: get(c)["n"], sets(c, "n"))


@case
def copied_dict_of_attributes():
    c = Plain(n=2.0)
    return gives(lambda: dict(vars(c))["n"], sets(c, "n"))


@case
def copied_dict_by_stars():
    c = Plain(n=2.0)
    return gives(lambda: {**vars(c)}["n"], sets(c, "n"))


@case
def attributes_put_into_another():
    c = Plain(n=2.0)

    def get():
        other = Plain()
        vars(other).update(vars(c))
        return other.n

    return gives(get, sets(c, "n"))


@case
def attributes_shared_with_another():
    c = Plain(n=2.0)

    def get():
        other = Plain()
        other.__dict__ = c.__dict__
        return other.n

    return gives(get, sets(c, "n"))


@case
def dataclass_as_dict():
    c = Data(inner=Data())
    return gives(lambda: dataclasses.asdict(c)["inner"]["items"][0], puts(c.inner.items, 0))


@case
def dataclass_as_tuple():
    c = Data(inner=[{"a": Data()}])
    return gives(lambda: dataclasses.astuple(c)[2][0]["a"][0], sets(c.inner[0]["a"], "n"))


@case
def dataclass_replaced():
    c = Data()
    return gives(lambda: dataclasses.replace(c, items=[]).n, sets(c, "n"))


# ---- comparisons


@case
def dataclasses_equal():
    a, b = Data(items=[[1.0]]), Data(items=[[1.0]])
    return gives(lambda: 2 + (a == b), lambda: a.items[0].append(1.0))


@case
def dataclasses_ordered():
    a, b = Ordered(items=[[1.0]]), Ordered(items=[[2.0]])
    return gives(lambda: 2 + (a < b), puts(a.items[0], 0))


@case
def dataclasses_sorted():
    a, b = Ordered(1.0), Ordered(2.0)
    return gives(lambda: sorted([a, b])[0].n, sets(a, "n"))


@case
def greatest_dataclass():
    a, b = Ordered(1.0), Ordered(2.0)
    return gives(lambda: max(a, b).n, sets(a, "n"))


@case
def equality_in_python_of_items():
    a, b = [[[Number(1)]]], [[[Number(1)]]]
    return gives(lambda: 2 + (a == b), sets(a[0][0][0], "n"))


@case
def deep_dicts_equal():
    a, b = ({"a": {"b": {"c": {"d": {"e": 1.0}}}}} for _ in "ab")
    return gives(lambda: 2 + (a == b), puts(a["a"]["b"]["c"]["d"], "e"))


@case
def deep_dicts_unequal():
    a, b = ({"a": ({"b": [({"e": 1.0},)]},)} for _ in "ab")
    return gives(lambda: 2 + (a != b), puts(a["a"][0]["b"][0][0], "e"))


@case
def lists_ordered_deep():
    a = [[[[[1.0]]]]]
    return gives(lambda: 2 + (a < [[[[[2.0]]]]]), puts(a[0][0][0][0], 0))


@case
def a_nested_list_in_a_list():
    a = [[[[1.0]]], [[[2.0]]]]
    return gives(lambda: 2 + ([[[2.0]]] in a), puts(a[1][0][0], 0))


@case
def a_changing_item_in_a_list():
    a = [[[1.0]]]
    return gives(lambda: 2 + (a in [[[[1.0]]], 3]), puts(a[0][0], 0))


@case
def a_nested_list_in_values():
    a = {"k": [[[1.0]]]}
    return gives(lambda: 2 + ([[[1.0]]] in a.values()), puts(a["k"][0][0], 0))


@case
def an_item_among_items():
    a = {"k": [[1.0]]}
    return gives(lambda: 2 + (("k", [[1.0]]) in a.items()), puts(a["k"][0], 0))


@case
def index_of_a_nested_list():
    a = [[[[1.0]]], [[[2.0]]]]
    return gives(
        lambda: 2 + a.index([[[2.0]]]), lambda: (a.append([[[2.0]]]), puts(a[1][0][0], 0)())
    )


@case
def count_of_a_nested_list():
    a = [[[[1.0]]]]
    return gives(lambda: 2 + a.count([[[1.0]]]), puts(a[0][0][0], 0))


@case
def count_in_a_made_list():
    a = [[[1.0]]]
    return gives(lambda: 2 + [a, 3].count([[[1.0]]]), puts(a[0][0], 0))


@case
def count_in_a_made_tuple():
    a = [[[1.0]]]
    return gives(lambda: 2 + (a, 3).count([[[1.0]]]), puts(a[0][0], 0))


@case
def index_of_what_changes():
    a = [[[1.0]]]
    return gives(lambda: 2 + [[[[1.0]]], [[[5.0]]]].index(a), puts(a[0][0], 0))


@case
def position_by_operator():
    a = [[[[1.0]]], [[[5.0]]]]
    return gives(lambda: 2 + operator.countOf(a, [[[5.0]]]), puts(a[0][0][0], 0))


@case
def contains_by_operator():
    a = [[[[1.0]]]]
    return gives(lambda: 2 + operator.contains(a, [[[1.0]]]), puts(a[0][0][0], 0))


@case
def equality_by_operator():
    a = [[[[1.0]]]]
    return gives(lambda: 2 + operator.eq(a, [[[[1.0]]]]), puts(a[0][0][0], 0))


@case
def equality_by_method():
    a = [[[[1.0]]]]
    return gives(lambda: 2 + a.__eq__([[[[1.0]]]]), puts(a[0][0][0], 0))


@case
def equality_by_method_of_the_class():
    a = [[[[1.0]]]]
    return gives(lambda: 2 + list.__eq__(a, [[[[1.0]]]]), puts(a[0][0][0], 0))


@case
def equality_by_method_of_another():
    a = [[[[1.0]]]]
    return gives(lambda: 2 + [[[[1.0]]]].__eq__(a), puts(a[0][0][0], 0))


@case
def equality_by_kept_method():
    a = [[[[1.0]]]]
    same = a.__eq__
    return gives(lambda: 2 + same([[[[1.0]]]]), puts(a[0][0][0], 0))


@case
def equality_by_partial():
    a = [[[[1.0]]]]
    same = functools.partial(operator.eq, a)
    return gives(lambda: 2 + same([[[[1.0]]]]), puts(a[0][0][0], 0))


@case
def equality_mapped():
    a = [[[[1.0]]]]
    return gives(lambda: 2 + sum(map(operator.eq, [a], [[[[[1.0]]]]])), puts(a[0][0][0], 0))


@case
def equality_mapped_by_partial():
    a = [[[[1.0]]]]
    same = functools.partial(operator.eq, a)
    return gives(lambda: 2 + sum(map(same, [[[[[1.0]]]]])), puts(a[0][0][0], 0))


@case
def equality_of_deques():
    a, b = (collections.deque([[[1.0]]]) for _ in "ab")
    return gives(lambda: 2 + (a == b), puts(a[0][0], 0))


@case
def equality_of_user_dicts():
    a, b = (collections.UserDict(k=[[1.0]]) for _ in "ab")
    return gives(lambda: 2 + (a == b), puts(a["k"][0], 0))


@case
def equality_of_chain_maps():
    a = {"k": [[1.0]]}
    return gives(lambda: 2 + (collections.ChainMap({}, a) == {"k": [[1.0]]}), puts(a["k"][0], 0))


@case
def equality_of_namespaces_of_objects():
    a = NS(v=NS(v=NS(v=NS(v=1.0))))
    return gives(lambda: 2 + (a == NS(v=NS(v=NS(v=NS(v=1.0))))), lambda: setattr(a.v.v.v, "v", 5.0))


@case
def equality_of_attributes():
    a, b = Plain(n=[[1.0]]), Plain(n=[[1.0]])
    return gives(lambda: 2 + (vars(a) == vars(b)), puts(a.n[0], 0))


@case
def equality_of_named_tuples():
    kind = collections.namedtuple("kind", "a b")
    a = kind([[1.0]], 2)
    return gives(lambda: 2 + (a == kind([[1.0]], 2)), puts(a.a[0], 0))


@case
def bisected():
    a = [[[1.0]], [[3.0]]]
    return gives(lambda: 2 + bisect.bisect(a, [[2.0]]), puts(a[0][0], 0))


@case
def greatest_list():
    a = [[[1.0]], [[3.0]]]
    return gives(lambda: max(a)[0][0], puts(a[0][0], 0))


@case
def sorted_lists():
    a = [[[[1.0]]], [[[3.0]]]]
    return gives(lambda: sorted(a)[0][0][0][0], puts(a[0][0][0], 0))


@case
def largest_of_a_heap():
    a = [[[[1.0]]], [[[3.0]]]]
    return gives(lambda: heapq.nlargest(1, a)[0][0][0][0], puts(a[0][0][0], 0))


@case
def grouped_by_equal_lists():
    a = [[[1.0]], [[1.0]]]
    return gives(lambda: 2 + len(list(itertools.groupby(a))), puts(a[0][0], 0))


# ---- texts


@case
def text_of_a_dataclass():
    c = Data(inner=[Data()])
    return tells(lambda: c, sets(c.inner[0], "n", 12345.0))


@case
def text_of_deep_items():
    c = {"a": [[[[Number(1)]]]]}
    return tells(lambda: c, sets(c["a"][0][0][0][0], "n", 4))


@case
def text_of_a_deque():
    c = collections.deque([[[[1.0]]]])
    return tells(lambda: c, lambda: c[0][0][0].append(2))


@case
def text_of_a_default_dict():
    c = collections.defaultdict(list, a=[[[1.0]]])
    return tells(lambda: c, lambda: c["a"][0][0].append(2))


@case
def text_of_a_counter():
    c = collections.Counter("abca")
    return tells(lambda: c, puts(c, "zz", 100))


@case
def text_of_an_ordered_dict():
    c = collections.OrderedDict(a=[[[[1.0]]]])
    return tells(lambda: c, lambda: c["a"][0][0][0].append(2))


@case
def text_of_a_partial():
    c = [[[[1.0]]]]
    p = functools.partial(max, c)
    return tells(lambda: p, lambda: c[0][0][0].append(2))


@case
def text_of_a_proxy():
    c = {"a": [[[[1.0]]]]}
    p = types.MappingProxyType(c)
    return tells(lambda: p, lambda: c["a"][0][0][0].append(2))


@case
def text_of_values():
    c = {"a": [[[[1.0]]]]}
    return tells(lambda: c.values(), lambda: c["a"][0][0][0].append(2))


@case
def text_of_a_namespace():
    c = NS(a=NS(a=[[1.0]]))
    return tells(lambda: c, lambda: c.a.a[0].append(2))


@case
def text_of_an_error():
    c = ValueError([[[[1.0]]]])
    return tells(lambda: c, lambda: c.args[0][0][0][0].append(2))


@case
def text_pretty():
    c = {"a": [[[[1.0]]]]}
    return gives(lambda: len(pprint.pformat(c)), lambda: c["a"][0][0][0].append(2))


@case
def text_short():
    c = [[[[1.0]]]]
    return gives(lambda: len(reprlib.repr(c)), lambda: c[0][0][0].append(2))


@case
def text_by_percent():
    c = {"a": [[[[1.0]]]]}
    return gives(lambda: len("%(a)s" % c), lambda: c["a"][0][0][0].append(2))


@case
def text_by_percent_of_a_tuple():
    c = [[[[1.0]]]]
    return gives(lambda: len("%r" % (c,)), lambda: c[0][0][0].append(2))


@case
def format_of_deep_attributes():
    c = Plain(a=Plain(b=Plain(n=2)))
    return gives(lambda: len("{0.a.b.n}".format(c)), sets(c.a.b, "n", 12345))


@case
def format_of_attributes_of_items():
    c = {"k": [Plain(a=Plain(n=2))]}
    return gives(lambda: len("{c[k][0].a.n}".format(c=c)), sets(c["k"][0].a, "n", 12345))


@case
def format_of_items_of_attributes():
    c = Plain(a=Plain(items={"k": {"j": 2}}))
    return gives(lambda: len("{.a.items[k][j]}".format(c)), puts(c.a.items["k"], "j", 12345))


@case
def format_of_a_width():
    c = Plain(a=Plain(n=2))
    return gives(lambda: len("{0:{1.a.n}}".format(3, c)), sets(c.a, "n", 7))


@case
def format_of_a_map():
    c = {"k": Plain(a=Plain(n=2))}
    return gives(lambda: len("{k.a.n}".format_map(c)), sets(c["k"].a, "n", 12345))


@case
def format_by_a_kept_method():
    c = Plain(a=Plain(n=2))
    text = "{0.a.n}".format
    return gives(lambda: len(text(c)), sets(c.a, "n", 12345))


@case
def format_mapped():
    c = Plain(a=Plain(n=2))
    return gives(lambda: len("".join(map("{0.a.n}".format, [c]))), sets(c.a, "n", 12345))


@case
def format_of_a_formatter():
    c = Plain(a=Plain(n=2))
    return gives(lambda: len(string.Formatter().format("{0.a.n}", c)), sets(c.a, "n", 12345))


@case
def text_by_template():
    c = {"k": 2}
    return gives(lambda: len(string.Template("$k").substitute(c)), puts(c, "k", 12345))


@case
def text_with_equal_sign():
    c = [[[[1.0]]]]
    return gives(lambda: len(f"{c=!r:>3}"), lambda: c[0][0][0].append(2))


@case
def text_joined():
    c = ["a", "b"]
    return gives(lambda: len("".join(c)), puts(c, 0, "abcde"))


@case
def text_translated():
    c = {97: "b"}
    return gives(lambda: len("aa".translate(c)), puts(c, 97, "bbbb"))


@case
def text_starts_with_a_kept_one():
    c = Plain(names=("a",))
    return gives(lambda: 2 + "abc".startswith(c.names), sets(c, "names", ("z",)))


@case
def json_of_attributes():
    c = Plain(a=[[[[{"k": 1}]]]])
    return gives(lambda: len(json.dumps(vars(c))), puts(c.a[0][0][0][0], "k", 12345))


@case
def json_with_default():
    c = Plain(a=Plain(a=Plain(n=1)))
    return gives(lambda: len(json.dumps(c, default=vars)), sets(c.a.a, "n", 12345))


@case
def json_with_default_in_python():
    c = [Plain(a=[Plain(n=1)])]
    return gives(
        lambda: len(json.dumps(c, default=lambda item: item.__dict__)), sets(c[0].a[0], "n", 12345)
    )


@case
def json_indented():
    c = {"a": [[[[{"k": 1}]]]]}
    return gives(lambda: len(json.dumps(c, indent=1)), puts(c["a"][0][0][0][0], "k", 12345))


@case
def json_decoded_with_hook():
    c = Plain(n=2.0)
    return gives(lambda: json.loads("{}", object_hook=lambda d: c.n), sets(c, "n"))


@case
def marshalled():
    c = {"a": [[[[{"k": 1}]]]]}
    return gives(lambda: len(marshal.dumps(c)), puts(c["a"][0][0][0][0], "k", "abcdef"))


@case
def packed():
    c = [1.0, 2.0]
    return gives(lambda: struct.unpack("2d", struct.pack("2d", *c))[0], puts(c, 0))


@case
def bytes_of_a_list():
    c = [1, 2]
    return gives(lambda: bytes(c)[0], puts(c, 0, 7))


@case
def array_of_a_list():
    c = [1.0, 2.0]
    return gives(lambda: array.array("d", c)[0], puts(c, 0))


# ---- what code in Python gives to code in C


@case
def sorted_by_a_key_that_gives_a_list():
    c = {1: [[1.0]], 2: [[2.0]]}
    return gives(lambda: sorted([1, 2], key=lambda k: c[k])[0], puts(c[1][0], 0))


@case
def greatest_by_a_key_that_gives_an_attribute():
    a, b = Plain(n=[1.0]), Plain(n=[2.0])
    return gives(lambda: 2 + (max([a, b], key=lambda o: o.n) is a), puts(a.n, 0))


@case
def grouped_by_a_key_that_gives_a_list():
    c = [[1.0], [1.0]]
    return gives(lambda: 2 + len(list(itertools.groupby([0, 1], lambda k: c[k]))), puts(c[0], 0))


@case
def filtered_by_a_list():
    c = {1: [], 2: [3]}
    return gives(lambda: 2 + len(list(filter(lambda k: c[k], [1, 2]))), lambda: c[1].append(1))


@case
def any_of_lists():
    c = {1: [], 2: []}
    return gives(lambda: 2 + any(c[k] for k in [1, 2]), lambda: c[1].append(1))


@case
def any_of_attributes():
    c = [Plain(items=[]), Plain(items=[])]
    return gives(lambda: 2 + any(o.items for o in c), lambda: c[1].items.append(1))


@case
def sum_of_lists():
    c = {1: [2.0], 2: [3.0]}
    return gives(lambda: sum((c[k] for k in [1, 2]), [])[0], puts(c[1], 0))


@case
def sum_of_lists_mapped():
    c = {1: [2.0], 2: [3.0]}
    return gives(lambda: sum(map(lambda k: c[k], [1, 2]), [])[0], puts(c[1], 0))


@case
def dict_of_pairs():
    c = {1: ["k", 2.0]}
    return gives(lambda: dict(c[k] for k in [1])["k"], puts(c[1], 1))


@case
def lengths_of_what_a_generator_gives():
    c = {1: [2.0]}
    return gives(lambda: sum(map(len, (c[k] for k in [1]))), lambda: c[1].append(1))


@case
def lengths_of_what_a_map_gives():
    c = {1: [2.0]}
    return gives(lambda: sum(map(len, map(lambda k: c[k], [1]))), lambda: c[1].append(1))


@case
def equality_of_what_a_generator_gives():
    c = {1: [2.0]}
    return gives(lambda: 2 + ([2.0] in (c[k] for k in [1])), puts(c[1], 0))


@case
def attribute_of_what_a_generator_gives():
    c = {1: Plain(n=2.0)}
    return gives(lambda: sum(map(operator.attrgetter("n"), [c[k] for k in [1]])), sets(c[1], "n"))


@case
def equality_that_gives_a_list():
    class E:
        def __eq__(self, other):
            return self.answer

        answer = []

    c = E()
    return gives(lambda: 2 + bool(c == 1), lambda: E.answer.append(1))


@case
def contains_by_equality_that_gives_a_list():
    class E:
        __hash__ = None

        def __eq__(self, other):
            return answer

    answer = []
    c = [E()]
    return gives(lambda: 2 + (1 in c), lambda: answer.append(1))


@case
def reduced_by_a_function():
    c = {"a": {"b": [2.0]}}
    return gives(lambda: functools.reduce(lambda d, k: d[k], "ab", c)[0], puts(c["a"]["b"], 0))


@case
def missing_that_gives_state():
    kept = [2.0]

    class D(dict):
        def __missing__(self, key):
            return kept

    c = D()
    return gives(lambda: c["k"][0], puts(kept, 0))


@case
def default_factory_that_gives_state():
    kept = [2.0]
    return gives(lambda: collections.defaultdict(lambda: kept)["k"][0], puts(kept, 0))


@case
def iterator_that_gives_state():
    kept = [[2.0]]

    class C:
        def __iter__(self):
            return iter(kept)

    c = C()
    return gives(lambda: next(iter(c))[0], puts(kept[0], 0))


@case
def substituted_by_a_function():
    import re

    kept = Plain(names={"a": "b"})
    return gives(
        lambda: len(re.sub("a", lambda m: kept.names[m[0]], "aa")), puts(kept.names, "a", "bbb")
    )


@case
def getattr_in_python_that_gives_state():
    kept = {"items": [2.0]}

    class C:
        def __getattr__(self, name):
            return kept[name]

    c = C()
    return gives(
        lambda: sum(map(operator.itemgetter(0), [getattr(c, "items")])), puts(kept["items"], 0)
    )


@case
def attributes_in_python_by_attrgetter():
    kept = {"items": [2.0]}

    class C:
        def __getattr__(self, name):
            return kept[name]

    return gives(
        lambda: sum(map(len, map(operator.attrgetter("items"), [C()]))),
        lambda: kept["items"].append(1),
    )


@eager
def property_in_c_over_one_in_python():
    class C:
        def __init__(self):
            self.kept = Plain(n=2.0)

        inner = property(lambda self: self.kept)
        n = property(operator.attrgetter("inner.n"))

    c = C()
    return gives(lambda: c.n, sets(c.kept, "n"))


@case
def property_that_is_an_attrgetter_deep():
    class C:
        n = property(operator.attrgetter("a.b.n"))

    c = C()
    c.a = Plain(b=Plain(n=2.0))
    return gives(lambda: c.n, sets(c.a.b, "n"))


@case
def property_that_is_a_partial():
    class C:
        n = property(functools.partial(getattr, Plain(n=2.0)))

    c = Plain(n=2.0)
    get = functools.partial(getattr, c, "n")
    return gives(get, sets(c, "n"))


@case
def property_that_is_vars():
    class C:
        own = property(vars)

    c = C()
    c.n = 2.0
    return gives(lambda: c.own["n"], sets(c, "n"))


# ---- names given to code in C


@case
def getattr_mapped_over_objects():
    c = [Plain(a=Plain(n=2.0))]
    return gives(lambda: list(map(getattr, c, ["a"]))[0].n, sets(c[0].a, "n"))


@case
def getattr_by_partial():
    c = Plain(n=2.0)
    get = functools.partial(getattr, c)
    return gives(lambda: get("n"), sets(c, "n"))


@case
def getattr_by_partial_mapped():
    c = Plain(n=2.0)
    get = functools.partial(getattr, c)
    return gives(lambda: sum(map(get, ["n"])), sets(c, "n"))


@case
def getattr_by_partial_in_a_partial_mapped():
    c = Plain(n=2.0)
    get = functools.partial(functools.partial(getattr), c)
    return gives(lambda: sum(map(get, ["n"])), sets(c, "n"))


@case
def getattr_of_modules_by_partial_mapped():
    c = Module(n=2.0)
    get = functools.partial(getattr, c)
    return gives(lambda: sum(map(get, ["n"])), sets(c, "n"))


@case
def attrgetters_in_a_row():
    c = [Plain(b=Plain(a=2.0))]
    return gives(
        lambda: sum(map(operator.attrgetter("a"), map(operator.attrgetter("b"), c))),
        sets(c[0].b, "a"),
    )


@case
def attrgetters_in_a_row_over_modules():
    c = [Module(b=Module(a=2.0))]
    c[0].b = None
    inner = Module(a=2.0)
    object.__setattr__(c[0], "b", inner)
    return gives(
        lambda: sum(map(operator.attrgetter("a"), map(operator.attrgetter("b"), c))),
        sets(inner, "a"),
    )


@case
def attrgetters_in_a_row_over_classes():
    class A:
        class B:
            n = 2.0

    return gives(
        lambda: sum(map(operator.attrgetter("n"), map(operator.attrgetter("B"), [A]))),
        lambda: setattr(A.B, "n", 5.0),
    )


@case
def attrgetters_in_a_row_over_slots():
    c = [Slotted(1.0, Slotted(2.0))]
    return gives(
        lambda: sum(map(operator.attrgetter("n"), map(operator.attrgetter("inner"), c))),
        sets(c[0].inner, "n"),
    )


@case
def itemgetter_then_attrgetter():
    c = [{"k": Plain(a=2.0)}]
    return gives(
        lambda: sum(map(operator.attrgetter("a"), map(operator.itemgetter("k"), c))),
        sets(c[0]["k"], "a"),
    )


@case
def attrgetter_then_methodcaller():
    c = [Plain(d={"k": 2.0})]
    return gives(
        lambda: sum(map(operator.methodcaller("get", "k"), map(operator.attrgetter("d"), c))),
        puts(c[0].d, "k"),
    )


@case
def attrgetter_kept_in_an_object():
    c = Plain(get=operator.attrgetter("a.n"), a=Plain(n=2.0))
    return gives(lambda: c.get(c), sets(c.a, "n"))


@case
def attrgetter_as_key():
    a, b = Plain(s=Plain(n=1.0)), Plain(s=Plain(n=2.0))
    return gives(
        lambda: 2 + (sorted([a, b], key=operator.attrgetter("s.n"))[0] is a), sets(a.s, "n")
    )


@case
def starmapped_getattr():
    c = Plain(n=2.0)
    return gives(lambda: sum(itertools.starmap(getattr, [(c, "n")])), sets(c, "n"))


@case
def starmapped_getitem():
    c = {"k": [2.0]}
    return gives(lambda: sum(itertools.starmap(operator.getitem, [(c["k"], 0)])), puts(c["k"], 0))


@case
def hasattr_filtered():
    c = [Plain(), Plain()]
    return gives(lambda: 2 + sum(map(hasattr, c, ["n", "n"])), sets(c[1], "n"))


@case
def vars_mapped():
    c = [Plain(n=2.0)]
    return gives(lambda: sum(d["n"] for d in map(vars, c)), sets(c[0], "n"))


@case
def vars_mapped_deep():
    c = [Plain(inner=Plain(n=2.0))]
    return gives(
        lambda: sum(d["n"] for d in map(vars, map(operator.itemgetter("inner"), map(vars, c)))),
        sets(c[0].inner, "n"),
    )


@case
def reduced_getattr():
    c = Plain(a=Plain(b=Plain(n=2.0)))
    return gives(lambda: functools.reduce(getattr, ["a", "b", "n"], c), sets(c.a.b, "n"))


@case
def reduced_getitem_deep():
    c = {"a": {"a": {"a": {"a": {"a": {"a": 2.0}}}}}}
    last = c["a"]["a"]["a"]["a"]["a"]
    return gives(lambda: functools.reduce(operator.getitem, "aaaaaa", c), puts(last, "a"))


@case
def dict_get_mapped():
    c = {"k": 2.0}
    return gives(lambda: sum(map(c.get, ["k"])), puts(c, "k"))


@case
def dict_get_of_the_class_mapped():
    c = {"k": 2.0}
    return gives(lambda: sum(map(dict.get, [c], ["k"])), puts(c, "k"))


@case
def dict_get_kept_in_a_list():
    c = {"k": 2.0}
    kept = [c.get]
    return gives(lambda: kept[0]("k"), puts(c, "k"))


@case
def dict_getitem_kept():
    c = {"k": 2.0}
    get = c.__getitem__
    return gives(lambda: get("k"), puts(c, "k"))


@case
def dict_contains_kept():
    c = {"k": 2.0}
    has = c.__contains__
    return gives(lambda: 2 + has("j"), puts(c, "j"))


@case
def dict_contains_filtered():
    c = {"k": 2.0}
    return gives(lambda: 2 + len(list(filter(c.__contains__, "jk"))), puts(c, "j"))


@case
def list_getitem_mapped():
    c = [2.0, 3.0]
    return gives(lambda: sum(map(c.__getitem__, [0])), puts(c, 0))


@case
def list_pop_of_a_copy():
    c = [2.0, 3.0]
    return gives(lambda: c.copy().pop(), puts(c, 1))


@case
def views_kept():
    c = {"k": 2.0}
    values = c.values()
    return gives(lambda: sum(values), puts(c, "k"))


@case
def items_view_kept():
    c = {"k": 2.0}
    items = c.items()
    return gives(lambda: dict(items)["k"], puts(c, "k"))


@case
def keys_view_kept():
    c = {"k": 2.0}
    keys = c.keys()
    return gives(lambda: 2 + len(keys), puts(c, "j"))


@case
def keys_view_intersected():
    c = {"k": 2.0}
    keys = c.keys()
    return gives(lambda: 2 + len(keys & {"j"}), puts(c, "j"))


@case
def proxy_kept():
    c = {"k": 2.0}
    proxy = types.MappingProxyType(c)
    return gives(lambda: proxy["k"], puts(c, "k"))


@case
def proxy_kept_and_copied():
    c = {"k": 2.0}
    proxy = types.MappingProxyType(c)
    return gives(lambda: proxy.copy()["k"], puts(c, "k"))


@case
def proxy_get_kept():
    c = {"k": 2.0}
    get = types.MappingProxyType(c).get
    return gives(lambda: get("k"), puts(c, "k"))


@case
def cached_dict():
    get = functools.lru_cache(lambda k: {"n": 2.0})
    c = get("k")
    return gives(lambda: get("k")["n"], puts(c, "n"))


@case
def cached_dict_without_limit():
    get = functools.cache(lambda k: {"n": 2.0})
    c = get("k")
    return gives(lambda: get("k")["n"], puts(c, "n"))


@case
def cached_object():
    get = functools.cache(lambda k: Plain(n=2.0))
    c = get("k")
    return gives(lambda: get("k").n, sets(c, "n"))


@case
def cached_in_a_list_mapped():
    get = functools.cache(lambda k: [2.0])
    c = get("k")
    return gives(lambda: sum(map(len, map(get, ["k"]))), lambda: c.append(1))


@case
def cached_property_in_the_object():
    class C:
        @functools.cached_property
        def own(self):
            return {"n": 2.0}

    c = C()
    kept = c.own
    return gives(lambda: c.own["n"], puts(kept, "n"))


@case
def context_variable_with_a_dict():
    var = contextvars.ContextVar("var", default={"n": 2.0})
    kept = var.get()
    return gives(lambda: var.get()["n"], puts(kept, "n"))


@case
def context_variable_with_an_object():
    var = contextvars.ContextVar("var", default=Plain(n=2.0))
    kept = var.get()
    return gives(lambda: copy.copy(var.get()).n, sets(kept, "n"))


@case
def weak_reference_copied():
    c = Plain(n=2.0)
    ref = weakref.ref(c)
    return gives(lambda: copy.copy(ref()).n, sets(c, "n"))


@case
def weak_value():
    c = Plain(n=2.0)
    kept = weakref.WeakValueDictionary(k=c)
    return gives(lambda: copy.copy(kept["k"]).n, sets(c, "n"))


@case
def weak_key():
    c = Number(1)
    kept = weakref.WeakKeyDictionary({c: {"n": 2.0}})
    return gives(lambda: kept[c]["n"], puts(kept[c], "n"))


@case
def default_argument():
    kept = {"n": 2.0}

    def get(own=kept):
        return own["n"]

    return gives(get, puts(kept, "n"))


@case
def keyword_default_argument():
    kept = {"n": [2.0]}

    def get(*, own=kept):
        return own["n"][0]

    return gives(get, puts(kept["n"], 0))


@case
def attribute_of_a_function():
    def get():
        return vars(get)["own"]["n"]

    get.own = {"n": 2.0}
    return gives(get, puts(get.own, "n"))


@case
def keywords_of_a_partial():
    kept = {"n": 2.0}
    get = functools.partial(lambda own: own["n"], own=kept)
    return gives(get, puts(kept, "n"))


@case
def arguments_by_star():
    kept = [2.0]
    return gives(lambda: max(*kept, 0.0), puts(kept, 0))


@case
def keywords_by_stars():
    kept = {"key": abs}
    return gives(lambda: max([-3.0, 2.0], **kept), puts(kept, "key", None))


@case
def variables_of_a_frame():
    kept = {"n": 2.0}

    def get():
        own = kept
        return locals()["own"]["n"]

    return gives(get, puts(kept, "n"))


@case
def variables_in_eval():
    c = Plain(n=2.0)
    return gives(lambda: eval("n * 1", {}, vars(c)), sets(c, "n"))


@case
def variables_in_eval_of_a_chain():
    c = {"n": 2.0}
    return gives(lambda: eval("n * 1", {}, collections.ChainMap({}, c)), puts(c, "n"))


@case
def variables_in_exec():
    c = {"n": 2.0}

    def get():
        space = {"c": c}
        exec("m = c['n']", space)
        return space["m"]

    return gives(get, puts(c, "n"))


@case
def class_body_reads_an_object():
    c = Plain(n=2.0)

    def get():
        class C:
            m = c.n

        return C.m

    return gives(get, sets(c, "n"))


@case
def class_body_reads_a_variable():
    n = 2.0

    def get():
        class C:
            m = n

            class D:
                k = n

        return C.D.k

    def change():
        nonlocal n
        n = 5.0

    return gives(get, change)


@case
def class_made_with_attributes():
    c = {"n": 2.0}
    return gives(lambda: type("C", (), c).n, puts(c, "n"))


@case
def class_made_by_types():
    c = {"n": 2.0}
    return gives(lambda: types.new_class("C", (), {}, lambda ns: ns.update(c)).n, puts(c, "n"))


@case
def named_tuple_from_a_dict():
    kind = collections.namedtuple("kind", "n")
    c = {"n": 2.0}
    return gives(lambda: kind(**c).n, puts(c, "n"))


@case
def dataclass_from_attributes():
    c = Plain(n=2.0)
    return gives(lambda: Data(**vars(c)).n, sets(c, "n"))


@case
def namespace_from_attributes():
    c = Plain(n=2.0)
    return gives(lambda: NS(**vars(c)).n, sets(c, "n"))


@case
def protocol_of_data():
    @typing.runtime_checkable
    class P(typing.Protocol):
        n: float

    c = Plain()
    return gives(lambda: 2 + isinstance(c, P), sets(c, "n"))


@case
def protocol_of_data_matched():
    @typing.runtime_checkable
    class P(typing.Protocol):
        n: float

    c = Plain()

    def get():
        match c:
            case P():
                return 2.0
        return 3.0

    return gives(get, sets(c, "n"))


@case
def protocol_of_two():
    @typing.runtime_checkable
    class P(typing.Protocol):
        n: float

        def go(self): ...

    c = Plain(n=2.0)
    return gives(lambda: 2 + isinstance(c, (int, P)), sets(c, "go", lambda: 0))


@case
def protocol_mapped():
    @typing.runtime_checkable
    class P(typing.Protocol):
        n: float

    c = [Plain()]
    return gives(lambda: 2 + sum(map(isinstance, c, [P])), sets(c[0], "n"))


@case
def subclass_hook():
    kept = Plain(names=[])

    class A(abc.ABC):
        @classmethod
        def __subclasshook__(cls, other):
            return NotImplemented

        @property
        def n(self):
            return len(kept.names)

    class B(A):
        pass

    b = B()
    return gives(lambda: 2 + b.n, lambda: kept.names.append(1))


@case
def attributes_by_inspect():
    c = Plain(n=2.0)
    return gives(lambda: dict(inspect.getmembers(c))["n"], sets(c, "n"))


@case
def attribute_by_inspect():
    c = Plain(n=2.0)
    return gives(lambda: inspect.getattr_static(c, "n"), sets(c, "n"))


@case
def closure_by_inspect():
    n = 2.0

    def f():
        return n

    def change():
        nonlocal n
        n = 5.0

    return gives(lambda: inspect.getclosurevars(f).nonlocals["n"], change)


@case
def cell_by_hand():
    n = 2.0

    def f():
        return n

    def change():
        nonlocal n
        n = 5.0

    return gives(lambda: f.__closure__[0].cell_contents, change)


@case
def cells_compared():
    n = 2.0

    def f():
        return n

    def change():
        nonlocal n
        n = 5.0

    return gives(lambda: 2 + (f.__closure__[0] == types.CellType(2.0)), change)


@case
def function_made_of_cells():
    n = 2.0

    def f():
        return n

    def change():
        nonlocal n
        n = 5.0

    return gives(lambda: types.FunctionType(f.__code__, {}, "g", None, f.__closure__)(), change)


# ---- C code of Python


@case
def product_of_a_list():
    c = Plain(items=[2.0, 3.0])
    return gives(lambda: math.prod(c.items), puts(c.items, 0))


@case
def sum_of_floats():
    c = [Number(2)]
    return gives(lambda: math.fsum(c), sets(c[0], "n", 5))


@case
def distance():
    c = [2.0, 3.0]
    return gives(lambda: math.dist(c, [0.0, 0.0]), puts(c, 0))


@case
def mean():
    c = Plain(items=[2.0, 3.0])
    return gives(lambda: statistics.mean(c.items), puts(c.items, 0))


@case
def chained():
    c = [[2.0], [3.0]]
    return gives(lambda: sum(itertools.chain(*c)), puts(c[0], 0))


@case
def chained_from_iterable():
    c = [[2.0], [3.0]]
    return gives(lambda: sum(itertools.chain.from_iterable(c)), puts(c[0], 0))


@case
def chained_from_attributes():
    c = [Plain(items=[2.0])]
    return gives(
        lambda: sum(itertools.chain.from_iterable(o.items for o in c)), puts(c[0].items, 0)
    )


@case
def accumulated():
    c = [2.0, 3.0]
    return gives(lambda: list(itertools.accumulate(c))[-1], puts(c, 0))


@case
def permuted():
    c = [[2.0], [3.0]]
    return gives(lambda: list(itertools.permutations(c))[0][0][0], puts(c[0], 0))


@case
def compressed_by_lists():
    c = [[], [1]]
    return gives(lambda: 2 + len(list(itertools.compress("ab", c))), lambda: c[0].append(1))


@case
def zipped():
    c = [[2.0]]
    return gives(lambda: dict(zip("a", c))["a"][0], puts(c[0], 0))


@case
def zipped_and_compared():
    c = [[2.0]]
    return gives(lambda: 2 + (([2.0], 1) in zip(c, [1])), puts(c[0], 0))


@case
def enumerated_and_sorted():
    c = [[2.0], [3.0]]
    return gives(lambda: max(zip(c, itertools.count()))[1] + 2, puts(c[0], 0))


@case
def reversed_and_compared():
    c = [[1.0], [2.0]]
    return gives(lambda: 2 + (list(reversed(c)) == [[2.0], [1.0]]), puts(c[0], 0))


@case
def sliced_and_compared():
    c = [[1.0], [2.0]]
    return gives(lambda: 2 + (c[:1] == [[1.0]]), puts(c[0], 0))


@case
def added_and_compared():
    c = [[1.0], [2.0]]
    return gives(lambda: 2 + ([] + c == [[1.0], [2.0]]), puts(c[0], 0))


@case
def repeated_and_compared():
    c = [[1.0]]
    return gives(lambda: 2 + (c * 2 == [[1.0], [1.0]]), puts(c[0], 0))


@case
def put_into_a_list_and_compared():
    c = [[1.0]]

    def get():
        made = []
        made.append(c)
        return 2 + (made == [[[1.0]]])

    return gives(get, puts(c[0], 0))


@case
def put_into_an_object_and_compared():
    c = [[1.0]]
    return gives(lambda: 2 + (NS(c=c) == NS(c=[[1.0]])), puts(c[0], 0))


@case
def put_into_a_dict_and_shown():
    c = [[1.0]]
    return gives(lambda: len(str({"c": c})), lambda: c[0].append(2.0))


@case
def put_into_a_tuple_and_sorted():
    c = [[1.0]]
    return gives(lambda: 2 + sorted([(0, c), (0, [[2.0]])])[0][1][0][0], puts(c[0], 0))


@case
def put_into_a_set_of_objects():
    a, b = Number(1), Number(2)
    return gives(lambda: 2 + len({a, b}), sets(a, "n", 2))


@case
def looked_up_by_an_object():
    a = Number(1)
    return gives(lambda: {Number(1): 2.0}.get(a, 7.0), sets(a, "n", 2))


@case
def looked_up_among_objects():
    a = {Number(1): 2.0}
    key = next(iter(a))
    return gives(lambda: a.get(Number(1), 7.0), sets(key, "n", 2))


@case
def removed_from_a_copy():
    c = [[[1.0]], [[2.0]]]

    def get():
        made = c.copy()
        made.remove([[2.0]])
        return made[0][0][0]

    return gives(get, lambda: (puts(c[0][0], 0, 2.0)(), puts(c[1][0], 0, 7.0)()))


@case
def unpacked_deep():
    c = Plain(items=[[2.0, [3.0]]])

    def get():
        ((a, [b]),) = c.items
        return a + b

    return gives(get, puts(c.items[0][1], 0))


@case
def matched_mapping():
    c = {"a": {"b": [2.0]}}

    def get():
        match c:
            case {"a": {"b": [n]}}:
                return n
        return 7.0

    return gives(get, puts(c["a"]["b"], 0))


@case
def matched_value():
    c = [[[1.0]]]
    kept = Plain(v=[[[1.0]]])

    def get():
        match c:
            case kept.v:
                return 2.0
        return 7.0

    return gives(get, puts(c[0][0], 0))


@case
def matched_class():
    c = Plain(n=2.0)

    def get():
        match c:
            case Plain(n=n):
                return n
        return 7.0

    return gives(get, sets(c, "n"))


@case
def index_by_a_nested_list():
    c = [[[0], [1]]]
    return (lambda x: x[torch.tensor(c).flatten()], puts(c[0][0], 0, 1))


@case
def index_by_an_object():
    c = Plain(at=Number(1))
    return (lambda x: x[c.at], sets(c.at, "n", 0))


# ---- torch


@case
def tensor_of_deep_lists():
    c = [[[[[2.0]]]]]
    return (lambda x: x * torch.tensor(c).sum()), puts(c[0][0][0][0], 0)


@case
def tensor_of_an_attribute():
    c = Plain(a=Plain(items=[2.0]))
    return (lambda x: x * torch.tensor(c.a.items)), puts(c.a.items, 0)


@case
def array_of_deep_lists():
    c = [[[[[2.0]]]]]
    return gives(lambda: float(np.array(c).sum()), puts(c[0][0][0][0], 0))


@case
def array_by_interface_of_an_attribute():
    class C:
        pass

    c = C()
    c.__array_interface__ = np.array([2.0]).__array_interface__
    c.kept = np.array([2.0])
    other = np.array([5.0])
    c.__array_interface__ = dict(c.kept.__array_interface__)

    def change():
        c.kept[0] = 5.0

    return gives(lambda: float(np.asarray(Plain(n=c.kept).n)[0]), change)


@case
def tree_mapped():
    c = {"a": [({"b": 2.0},)]}
    return gives(lambda: pytree.tree_leaves(c)[0], puts(c["a"][0][0], "b"))


@case
def tree_mapped_over_registered_objects():
    class Node:
        def __init__(self, kids):
            self.kids = kids

    pytree.register_pytree_node(Node, lambda n: (n.kids, None), lambda kids, _: Node(kids))
    c = {"a": Node([{"b": 2.0}])}
    return gives(lambda: pytree.tree_leaves(c)[0], puts(c["a"].kids[0], "b"))


@case
def tree_mapped_over_data():
    @dataclasses.dataclass
    class D:
        n: float
        items: list

    pytree.register_dataclass(D)
    c = {"a": D(2.0, [3.0])}
    return gives(lambda: sum(pytree.tree_leaves(c)), lambda: setattr(c["a"], "n", 5.0))


@case
def tree_mapped_over_data_in_a_list():
    @dataclasses.dataclass
    class D:
        n: float
        items: list

    pytree.register_dataclass(D)
    c = {"a": D(2.0, [{"k": 3.0}])}
    return gives(lambda: sum(pytree.tree_leaves(c)), puts(c["a"].items[0], "k"))


@case
def tree_flattened_twice():
    c = [[[[[[2.0]]]]]]
    return gives(
        lambda: pytree.tree_map(lambda n: n + 1, c)[0][0][0][0][0][0], puts(c[0][0][0][0][0], 0)
    )


@case
def stacked_from_attributes():
    c = Plain(ws=[torch.ones(4), torch.ones(4)])
    return (lambda x: x * torch.stack(c.ws).sum(0)), lambda: puts(c.ws, 0, torch.ones(4) * 5)()


@case
def stacked_from_a_dict():
    c = {"a": torch.ones(4), "b": torch.ones(4)}
    return (lambda x: x * torch.stack(list(c.values())).sum(0)), lambda: puts(
        c, "a", torch.ones(4) * 5
    )()


@case
def weight_in_a_slot():
    c = Slotted(torch.ones(4))
    return (lambda x: x * c.n), lambda: setattr(c, "n", torch.ones(4) * 5)


@case
def weight_by_attrgetter():
    c = Plain(a=Plain(w=torch.ones(4)))
    get = operator.attrgetter("a.w")
    return (lambda x: x * get(c)), lambda: setattr(c.a, "w", torch.ones(4) * 5)


@case
def weight_by_a_partial():
    c = Plain(w=torch.ones(4))
    scale = functools.partial(torch.mul, c.w)
    kept = [scale]
    return (lambda x: kept[0](x)), lambda: puts(kept, 0, functools.partial(torch.mul, c.w * 5))()


@case
def weights_mapped():
    c = [Plain(w=torch.ones(4))]
    return (
        (lambda x: x * sum(map(operator.attrgetter("w"), c))),
        lambda: setattr(c[0], "w", torch.ones(4) * 5),
    )


@case
def weights_of_copied_modules():
    c = Plain(layer=nn.Linear(4, 4))
    return (
        (lambda x: copy.copy(c).layer(x)),
        lambda: setattr(c, "layer", nn.Linear(4, 4)),
    )


@case
def functional_call():
    c = Plain(layer=nn.Linear(4, 4), own={"weight": torch.ones(4, 4)})
    return (
        (lambda x: torch.func.functional_call(c.layer, c.own, (x,))),
        puts(c.own, "weight", torch.ones(4, 4) * 5),
    )


@case
def shape_of_an_attribute():
    c = Plain(a=Plain(shape=[4, 2]))
    return (lambda x: x.reshape(c.a.shape)), lambda: puts(c.a, "x", 0) if 0 else c.a.shape.reverse()


@case
def dims_of_an_attribute():
    c = Plain(dims=[0])
    return (lambda x: x.sum(c.dims)), lambda: c.dims.append(1)


@case
def split_by_an_attribute():
    c = Plain(sizes=[1, 3])
    return (lambda x: torch.split(x, c.sizes, 1)[0]), lambda: c.sizes.reverse()


@case
def padding_of_an_attribute():
    c = Plain(pads=[1, 1])
    return (lambda x: nn.functional.pad(x, c.pads)), puts(c.pads, 0, 3)


@case
def equation_of_an_attribute():
    c = Plain(ops=[torch.ones(4), torch.ones(4)])
    return (
        (lambda x: torch.einsum("bi,i,i->b", x, *c.ops)),
        lambda: puts(c.ops, 1, torch.ones(4) * 5)(),
    )


@case
def keywords_of_an_operator():
    c = Plain(kw={"dim": 0})
    return (lambda x: torch.softmax(x, **c.kw)), puts(c.kw, "dim", 1)


@case
def checkpointed_with_an_object():
    from torch.utils.checkpoint import checkpoint

    c = Plain(n=2.0)
    return (
        (lambda x: checkpoint(lambda x, c: x * c.n, x, c, use_reentrant=False)),
        sets(c, "n"),
    )


@case
def mapped_by_vmap():
    c = Plain(n=2.0)
    return (lambda x: torch.vmap(lambda row: row * c.n)(x)), sets(c, "n")


@case
def mapped_by_vmap_over_a_dict():
    c = {"w": torch.ones(2)}
    return (
        (lambda x: torch.vmap(lambda row, d: row * d["w"])(x, c)),
        puts(c, "w", torch.ones(2) * 5),
    )


@case
def autograd_function_with_an_object():
    c = Plain(n=2.0)

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, c):
            ctx.c = c
            return x * ctx.c.n

    return (lambda x: F.apply(x, c)), sets(c, "n")


@case
def result_with_an_object():
    c = Plain(n=2.0)
    return (lambda x: (x * 2, copy.copy(c).n)), sets(c, "n")


# ---- objects of Python that hold others


@case
def user_dict():
    c = collections.UserDict(k=Plain(n=2.0))
    return gives(lambda: copy.copy(c)["k"].n, sets(c["k"], "n"))


@case
def user_list():
    c = collections.UserList([2.0])
    return gives(lambda: sum(c), puts(c.data, 0))


@case
def user_string():
    c = collections.UserString("a")
    return gives(lambda: len(c * 2), sets(c, "data", "abcde"))


@case
def chain_map():
    c = {"k": 2.0}
    m = collections.ChainMap({}, c)
    return gives(lambda: m["k"], puts(c, "k"))


@case
def counter():
    c = collections.Counter(a=2)
    return gives(lambda: c.most_common(1)[0][1], puts(c, "b", 7))


@case
def counters_added():
    c = collections.Counter(a=2)
    return gives(lambda: (c + c)["a"], puts(c, "a", 7))


@case
def counter_of_state():
    c = ["a", "a"]
    return gives(lambda: collections.Counter(c)["a"], puts(c, 0, "b"))


@case
def enum_with_state():
    class E(enum.Enum):
        A = {"n": 2.0}

    return gives(lambda: E.A.value["n"], lambda: puts(E.A.value, "n")())


@case
def exit_stack():
    c = Plain(n=[])

    def get():
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: None)
            return 2 + len(c.n)

    return gives(get, lambda: c.n.append(1))


@case
def null_context_of_an_object():
    c = Plain(n=2.0)

    def get():
        with contextlib.nullcontext(c) as own:
            return vars(own)["n"]

    return gives(get, sets(c, "n"))


@case
def context_manager_that_yields_state():
    c = {"n": [2.0]}

    @contextlib.contextmanager
    def manager():
        yield c["n"]

    def get():
        with manager() as own:
            return own[0]

    return gives(get, puts(c["n"], 0))


@case
def thread_local():
    c = threading.local()
    c.own = {"n": 2.0}
    return gives(lambda: vars(c)["own"]["n"], puts(c.own, "n"))


@case
def thread_with_state():
    class T(threading.Thread):
        def __init__(self):
            super().__init__()
            self.n = 2.0

    c = T()
    c._stderr = None  # the stream of a test would be state
    return gives(lambda: copy.copy(c.n), sets(c, "n"))


@case
def name_of_a_thread():
    class T(threading.Thread):
        pass

    c = T(name="a")
    c._stderr = None
    return gives(lambda: len(c.name), lambda: setattr(c, "name", "abcde"))


@case
def event_of_a_subclass():
    class E(threading.Event):
        pass

    c = E()
    return gives(lambda: 2 + c.is_set(), c.set)


@case
def queue_of_a_subclass():
    class Q(queue.Queue):
        pass

    c = Q()
    return gives(lambda: 2 + c.qsize(), lambda: c.queue.append(1))


@case
def filter_of_a_logger():
    class F(logging.Filter):
        pass

    c = F("a")
    record = logging.LogRecord("b", 1, "", 1, "", (), None)
    return gives(lambda: 2 + bool(c.filter(record)), lambda: c.__init__("b"))


@case
def formatter_of_a_logger():
    class F(logging.Formatter):
        pass

    c = F("%(message)s")
    record = logging.LogRecord("b", 1, "", 1, "m", (), None)
    return gives(lambda: 2 + len(c.format(record)), lambda: c.__init__("%(message)s %(message)s"))


@case
def generic_class():
    t = typing.TypeVar("t")

    class G(typing.Generic[t]):
        pass

    c = G()
    c.n = 2.0
    return gives(lambda: copy.copy(c).n, sets(c, "n"))


@case
def typed_dict():
    class D(typing.TypedDict):
        n: float

    c = D(n=2.0)
    return gives(lambda: D(**c)["n"], puts(c, "n"))


@case
def error_with_attributes():
    c = ValueError("a")
    c.n = 2.0

    def get():
        try:
            raise c
        except ValueError as error:
            return vars(error)["n"]

    return gives(get, lambda: setattr(c, "n", 5.0))


@case
def error_arguments_deep():
    c = ValueError([{"k": 2.0}])
    return gives(lambda: c.args[0][0]["k"], puts(c.args[0][0], "k"))


@case
def slots_by_hand():
    c = Slotted(2.0)
    get = Slotted.n.__get__
    return gives(lambda: get(c), sets(c, "n"))


@case
def slots_mapped():
    c = [Slotted(2.0)]
    return gives(lambda: sum(map(Slotted.n.__get__, c)), sets(c[0], "n"))


@case
def getattribute_by_hand():
    c = Plain(n=2.0)
    return gives(lambda: object.__getattribute__(c, "n"), sets(c, "n"))


@case
def getattribute_mapped():
    c = Plain(n=2.0)
    return gives(lambda: sum(map(object.__getattribute__, [c], ["n"])), sets(c, "n"))


@case
def getattribute_kept():
    c = Plain(n=2.0)
    get = c.__getattribute__
    return gives(lambda: get("n"), sets(c, "n"))


@case
def dict_by_its_descriptor():
    c = Plain(n=2.0)
    get = Plain.__dict__["__dict__"].__get__
    return gives(lambda: get(c)["n"], sets(c, "n"))


@case
def dict_by_its_descriptor_mapped():
    c = Plain(n=2.0)
    get = Plain.__dict__["__dict__"].__get__
    return gives(lambda: sum(d["n"] for d in map(get, [c])), sets(c, "n"))


@case
def method_by_hand():
    c = Plain(n=2.0)
    get = types.MethodType(lambda self: self.n, c)
    return gives(get, sets(c, "n"))


@case
def method_in_c_bound_to_an_object():
    c = Plain(n=2.0)
    get = types.MethodType(getattr, c)
    return gives(lambda: get("n"), sets(c, "n"))


@case
def method_in_c_bound_to_an_object_mapped():
    c = Plain(n=2.0)
    get = types.MethodType(getattr, c)
    return gives(lambda: sum(map(get, ["n"])), sets(c, "n"))


@case
def method_in_c_bound_to_a_module_mapped():
    c = Module(n=2.0)
    get = types.MethodType(getattr, c)
    return gives(lambda: sum(map(get, ["n"])), sets(c, "n"))


@case
def methodcaller_of_an_attribute():
    c = Plain(d={"k": 2.0})
    get = operator.methodcaller("get", "k")
    return gives(lambda: get(c.d), puts(c.d, "k"))


@case
def variable_bound_while_it_is_used():
    c = {"k": 2.0}

    def get():
        own = c
        return dict.get(own, ("k", (own := {}))[0])

    return gives(get, puts(c, "k"))


@case
def variable_bound_while_it_is_compared():
    c = [[[1.0]]]

    def get():
        own = c
        return 2 + (own == [(own := [[1.0]])])

    return gives(get, puts(c[0][0], 0))


@case
def variable_bound_while_it_is_indexed():
    c = {"k": 2.0}

    def get():
        own = c
        return own[("k", (own := {}))[0]]

    return gives(get, puts(c, "k"))


@case
def variable_bound_in_a_comprehension():
    c = Plain(n=2.0)

    def get():
        own = c
        return getattr(own, ["n" for own in [1]][0])

    return gives(get, sets(c, "n"))


@case
def variable_bound_in_a_loop_of_a_comprehension():
    c = Plain(n=2.0)

    def get():
        own = c
        return getattr(own, [(own := name) for name in ["m", "n"]][1])

    return gives(get, sets(c, "n"))


@case
def variable_bound_while_it_is_shown():
    c = [[[1.0]]]

    def get():
        own = c
        return len(repr(own) + repr((own := 3)))

    return gives(get, lambda: c[0][0].append(2.0))


@case
def variable_bound_while_it_is_sorted():
    c = [3.0, 2.0]

    def get():
        own = c
        return sorted(own, key=(own := abs))[0]

    return gives(get, puts(c, 1, 1.0))


@eager
def on_another_thread():
    c = Plain(n=2.0)

    def get():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: c.n).result()

    return gives(get, sets(c, "n"))


@eager
def on_a_thread_that_was_there():
    c, pool = Plain(n=2.0), ThreadPoolExecutor(1)
    pool.submit(int).result()
    fn, change = gives(lambda: pool.submit(lambda: c.n).result(), sets(c, "n"))
    fn.undo = pool.shutdown
    return fn, change


@case
def in_a_coroutine():
    c = Plain(n=2.0)

    async def get():
        return c.n

    def run():
        made = get()
        try:
            made.send(None)
        except StopIteration as stop:
            return stop.value

    return gives(run, sets(c, "n"))


@case
def by_ctypes():
    c = Plain(n=2.0)
    box = ctypes.py_object(c)
    return gives(lambda: box.value.n, sets(c, "n"))


@case
def by_ctypes_address():
    c = Plain(n=2.0)
    at = id(c)
    return gives(lambda: ctypes.cast(at, ctypes.py_object).value.n, sets(c, "n"))


@case
def by_the_api_of_python():
    c = Plain(n=2.0)
    get = ctypes.pythonapi.PyObject_GetAttrString
    get.restype, get.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_char_p)
    return gives(lambda: get(c, b"n"), sets(c, "n"))


@eager
def in_an_array_of_objects():
    c = np.array([Plain(n=2.0)], dtype=object)
    return gives(lambda: c[0].n, sets(c[0], "n"))


@case
def finalizer_reads():
    c = Plain(n=2.0)

    class F:
        def __del__(self):
            seen[0] = c.n

    seen = [0.0]

    def get():
        F()
        return seen[0]

    return gives(get, sets(c, "n"))


@case
def shuffled_with_a_seed():
    c = [[1.0], [2.0], [3.0]]
    return gives(lambda: random.Random(0).sample(c, 1)[0][0] + 1, lambda: [puts(i, 0)() for i in c])


@case
def wrapped_text():
    c = Plain(words=["a", "b"])
    return gives(lambda: len(textwrap.fill(" ".join(c.words))), puts(c.words, 0, "abcdef"))


@case
def reduced_getattr_over_a_property():
    class C:
        a = property(lambda self: kept)

    kept = Plain(n=2.0)
    c = C()
    return gives(lambda: functools.reduce(getattr, ["a", "n"], c), sets(kept, "n"))


@case
def attrgetters_over_a_property():
    class C:
        a = property(lambda self: kept)

    kept, c = Plain(n=2.0), [C()]
    return gives(
        lambda: sum(map(operator.attrgetter("n"), map(operator.attrgetter("a"), c))),
        sets(kept, "n"),
    )


@case
def attrgetters_over_a_generator_of_modules():
    kept = {1: Module(n=2.0)}
    return gives(
        lambda: sum(map(operator.attrgetter("n"), list(kept[k] for k in [1]))), sets(kept[1], "n")
    )


@case
def attrgetters_over_a_function_that_gives_modules():
    kept = {1: Module(n=2.0)}
    return gives(
        lambda: sum(map(operator.attrgetter("n"), map(lambda k: kept[k], [1]))), sets(kept[1], "n")
    )


@case
def lengths_in_a_loop_over_what_a_generator_gives():
    kept = {1: [2.0]}

    def get():
        total = 0
        for n in map(len, (kept[k] for k in [1])):
            total += n
        return total

    return gives(get, lambda: kept[1].append(1))


@case
def lengths_unpacked_from_what_a_generator_gives():
    kept = {1: [2.0]}

    def get():
        (n,) = map(len, (kept[k] for k in [1]))
        return n

    return gives(get, lambda: kept[1].append(1))


@case
def lengths_by_yield_from():
    kept = {1: [2.0]}

    def made():
        yield from map(len, (kept[k] for k in [1]))

    return gives(lambda: next(made()), lambda: kept[1].append(1))


@case
def lengths_in_a_list_of_what_a_function_gives():
    kept = {1: [2.0]}
    return gives(lambda: [*map(len, map(lambda k: kept[k], [1]))][0], lambda: kept[1].append(1))


@case
def lengths_next():
    kept = {1: [2.0]}
    return gives(lambda: next(map(len, (kept[k] for k in [1]))), lambda: kept[1].append(1))


@case
def lengths_listed():
    kept = {1: [2.0]}
    return gives(lambda: list(map(len, (kept[k] for k in [1])))[0], lambda: kept[1].append(1))


@case
def cached_objects_compared():
    get = functools.lru_cache(lambda k: [[2.0]])
    c = get("k")
    return gives(lambda: 2 + (get("k") == [[2.0]]), puts(c[0], 0))


@case
def method_in_c_bound_to_a_dict():
    c = {"k": 2.0}
    get = types.MethodType(dict.get, c)
    return gives(lambda: get("k"), puts(c, "k"))


@case
def set_in_deep_lists():
    c = [[[[[{1}]]]]]
    return gives(lambda: len(str(c)), lambda: c[0][0][0][0][0].add(22222))


@case
def dispatched_on_a_class():
    @functools.singledispatch
    def scale(item):
        return 2.0

    return gives(lambda: scale(1), lambda: scale.register(int)(lambda item: 5.0))


@case
def dispatched_method_reads_an_object():
    class C:
        @functools.singledispatchmethod
        def scale(self, item):
            return self.items[0]

    c = C()
    c.items = [2.0]
    return gives(lambda: c.scale(1), puts(c.items, 0))


@case
def item_of_a_registry_by_class():
    c = {int: [2.0], float: [3.0]}
    return gives(lambda: c[(1).__class__][0], puts(c[int], 0))


@case
def item_at_a_tuple():
    c = {(1, 2): [2.0]}
    return gives(lambda: c[1, 2][0], puts(c, (1, 2), [5.0]))


@case
def item_at_an_enum():
    class E(enum.Enum):
        A = 1

    c = {E.A: 2.0}
    return gives(lambda: c[E.A], puts(c, E.A))


@case
def attribute_of_a_module_of_python():
    module = types.ModuleType("made_for_a_test")
    module.own = Plain(n=2.0)
    return gives(lambda: module.own.n, sets(module.own, "n"))


@case
def module_that_gives_attributes_by_code():
    module = types.ModuleType("made_for_a_test")
    kept = {"n": 2.0}
    module.__getattr__ = kept.__getitem__
    return gives(lambda: module.n, puts(kept, "n"))


@case
def object_that_gives_attributes_by_a_dict():
    class C:
        pass

    kept = {"n": 2.0}
    C.__getattr__ = staticmethod(kept.__getitem__)
    return gives(lambda: C().n, puts(kept, "n"))


@case
def subclass_of_a_dict_with_attributes():
    class D(dict):
        __getattr__ = dict.__getitem__

    c = D(a=D(n=2.0))
    return gives(lambda: c.a.n, puts(c["a"], "n"))


@case
def subclass_of_a_dict_that_gives_another():
    class D(dict):
        def __getitem__(self, key):
            return super().__getitem__(key)[0]

    c = D(k=[2.0])
    return gives(lambda: c["k"], puts(c["k"] if 0 else dict.get(c, "k"), 0))


@case
def subclass_of_a_list_with_an_attribute():
    class L(list):
        pass

    c = L([1.0])
    c.n = 2.0
    return gives(lambda: copy.copy(c).n, sets(c, "n"))


@case
def subclass_of_a_tuple_with_an_attribute():
    class T(tuple):
        pass

    c = T([1.0])
    c.n = [2.0]
    return gives(lambda: vars(c)["n"][0], puts(c.n, 0))


@case
def subclass_of_a_number_with_an_attribute():
    class F(float):
        def __mul__(self, other):
            return self.n * other

        __rmul__ = __mul__

    c = F(1.0)
    c.n = 2.0
    return gives(lambda: c * 1.0, sets(c, "n"))


@case
def subclass_of_a_deque_with_an_attribute():
    class Q(collections.deque):
        def __len__(self):
            return self.n

    c = Q()
    c.n = 2
    return gives(lambda: len(c), sets(c, "n", 5))


@case
def dispatch_mode_reads_an_object():
    from torch.utils._python_dispatch import TorchDispatchMode

    c = Plain(n=2.0)

    class M(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * c.n if func is torch.ops.aten.relu.default else out

    def fn(x):
        with M():
            return torch.relu(x)

    return fn, sets(c, "n")


@case
def function_mode_reads_itself():
    from torch.overrides import TorchFunctionMode

    class M(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out * self.n if func is torch.relu else out

    mode = M()
    mode.n = 2.0

    def fn(x):
        with mode:
            return torch.relu(x)

    return fn, sets(mode, "n")


@case
def hook_reads_an_object():
    c = Plain(items=[2.0])
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, args, out: out * c.items[0])
    return layer, puts(c.items, 0)


@case
def hook_before_reads_an_object():
    c = {"k": [2.0]}
    layer = nn.Linear(4, 4)
    layer.register_forward_pre_hook(lambda module, args: (args[0] * c["k"][0],))
    return layer, puts(c["k"], 0)


@case
def parametrized_by_an_object():
    c = Plain(items=[2.0])
    layer = nn.Linear(4, 4)

    class P(nn.Module):
        def forward(self, w):
            return w * c.items[0]

    nn.utils.parametrize.register_parametrization(layer, "weight", P())
    return layer, puts(c.items, 0)


@case
def compiled_by_the_program():
    c = Plain(items=[2.0], inner=Plain(n=1.0))
    run = torch.compile(lambda x: x * c.items[0] * c.inner.n, backend="eager")
    return (lambda x: run(x)), sets(c.inner, "n")


@case
def list_of_modules_by_hand():
    c = Plain(layers=[nn.Linear(4, 4), nn.Linear(4, 4)])

    def fn(x):
        for layer in c.layers:
            x = layer(x)
        return x

    return fn, lambda: c.layers.pop()


@case
def dict_of_modules_by_hand():
    c = Plain(layers={"a": nn.Linear(4, 4)})
    return (lambda x: c.layers["a"](x)), puts(c.layers, "a", nn.Linear(4, 4))


@case
def config_of_a_module_deep():
    c = Module(config={"a": [{"scale": 2.0}]})
    return (lambda x: x * c.config["a"][0]["scale"]), puts(c.config["a"][0], "scale")


@case
def config_of_a_module_given_to_c():
    c = Module(config={"a": [{"scale": 2}]})
    return (lambda x: x * len(json.dumps(c.config))), puts(c.config["a"][0], "scale", 12345)


@case
def config_of_a_module_in_a_dataclass():
    c = Module(config=Data(items=[{"scale": 2.0}]))
    return (
        (lambda x: x * dataclasses.asdict(c.config)["items"][0]["scale"]),
        puts(c.config.items[0], "scale"),
    )


@case
def extra_state_of_a_module():
    c = Module(n=2.0)
    type(c).get_extra_state = lambda self: {"n": self.n}

    def fn(x):
        return x * c.state_dict()["_extra_state"]["n"]

    return fn, sets(c, "n")


@case
def object_that_has_the_length_of_a_list():
    class C:
        pass

    kept = [1]
    C.__len__ = staticmethod(kept.__len__)
    c = C()
    return gives(lambda: len(c), lambda: kept.append(1))


@case
def object_that_is_true_if_a_list_has_items():
    class C:
        pass

    kept = []
    C.__len__ = staticmethod(kept.__len__)
    c = C()
    return gives(lambda: 2.0 if c else 5.0, lambda: kept.append(1))


@case
def object_that_contains_what_a_list_contains():
    class C:
        pass

    kept = [[1]]
    C.__contains__ = staticmethod(kept.__contains__)
    c = C()
    return gives(lambda: 2 + ([2] in c), lambda: kept[0].append(3) or kept.append([2]))


@case
def object_that_gives_items_of_a_list():
    class C:
        pass

    kept = [2.0]
    C.__getitem__ = staticmethod(kept.__getitem__)
    c = C()
    return gives(lambda: c[0], puts(kept, 0))


@case
def object_that_is_called_as_a_dict_is_asked():
    class C:
        pass

    kept = {"n": 2.0}
    C.__call__ = staticmethod(kept.get)
    c = C()
    return gives(lambda: c("n"), puts(kept, "n"))


@case
def object_that_iterates_over_a_list():
    class C:
        pass

    kept = [2.0]
    C.__iter__ = staticmethod(kept.__iter__)
    c = C()
    return gives(lambda: sum(c), puts(kept, 0))


@case
def object_that_adds_what_a_list_holds():
    class C:
        pass

    kept = {1: 2.0}
    C.__add__ = staticmethod(kept.get)
    c = C()
    return gives(lambda: c + 1, puts(kept, 1))


@case
def property_that_asks_a_dict():
    class C:
        pass

    kept, c = {}, C()
    kept[c] = 2.0
    C.n = property(kept.get)
    return gives(lambda: c.n, puts(kept, c))


@case
def callback_of_a_dict_in_sorted():
    kept = {"a": [1.0], "b": [2.0]}
    return gives(lambda: 2 + "ab".index(sorted("ba", key=kept.get)[0]), puts(kept["a"], 0))


@case
def sum_of_a_long_list():
    c = [1.0] * 5000
    return gives(lambda: sum(c), puts(c, 0))


@case
def values_of_a_long_dict():
    c = dict.fromkeys(range(5000), 1.0)
    return gives(lambda: sum(c.values()), puts(c, 0))


@case
def item_of_a_long_set():
    c = set(range(5000))
    return gives(lambda: 2 + (-1 in c), lambda: (c.discard(0), c.add(-1)))


@case
def list_in_a_long_list():
    c = [[1.0] for _ in range(5000)]
    return gives(lambda: 2 + (c == [[1.0]] * 5000), puts(c[7], 0))


@eager
def sum_of_a_longer_list():
    c = [1.0] * 70_000
    return gives(lambda: sum(c), puts(c, 0))


@case
def item_of_a_longer_list():
    c = [1.0] * 70_000
    return gives(lambda: c[7] + len(c), puts(c, 7))


# ---- what is reached, and not read: the graph has to stay


def adds(item, name="n"):
    """Another number each time."""
    return lambda: setattr(item, name, getattr(item, name, 0) + 1)


@unread
def counter_of_an_object():
    c = Plain(scale=2.0, n=0)
    return (lambda x: x * c.scale), adds(c)


@unread
def counter_of_self():
    class C:
        scale = 2.0

        def run(self, x):
            return x * self.scale

    c = C()
    return c.run, adds(c)


@unread
def counter_of_a_callable():
    class C:
        def __init__(self):
            self.scale, self.calls = 2.0, 0

        def __call__(self, x):
            return x * self.scale

    c = C()
    return c, adds(c, "calls")


@unread
def counter_in_a_slot():
    class C:
        __slots__ = ("__weakref__", "n", "scale")

    c = C()
    c.scale, c.n = 2.0, 0
    return (lambda x: x * c.scale), adds(c)


@unread
def counter_of_a_module():
    c = Module(scale=2.0, n=0)
    return (lambda x: c(x) * c.scale), adds(c)


@unread
def counter_of_an_abstract_class():
    class A(abc.ABC):
        @abc.abstractmethod
        def run(self, x): ...

    class C(A):
        def run(self, x):
            return x * 2

    c = C()
    return c.run, adds(c)


@unread
def counter_of_a_generic_class():
    class C(typing.Generic[typing.TypeVar("T")]):
        def run(self, x):
            return x * 2

    c = C()
    return c.run, adds(c)


@unread
def counter_of_a_class():
    class C:
        n = 0
        scale = 2.0

    return (lambda x: x * C.scale), adds(C)


@unread
def counter_of_a_dataclass():
    c = Data()
    c.calls = 0
    return (lambda x: x * c.n), adds(c, "calls")


@unread
def counter_of_a_function():
    def fn(x):
        return x * 2

    return fn, adds(fn, "calls")


@unread
def counter_in_a_closure():
    n, scale = 0, 2.0

    def fn(x):
        return x * scale if x is not None else n

    def change():
        nonlocal n
        n += 1

    return fn, change


@unread
def counter_of_what_an_attribute_holds():
    c = Plain(inner=Plain(scale=2.0, n=0))
    return (lambda x: x * c.inner.scale), adds(c.inner)


@unread
def counter_of_an_item():
    c = {"a": Plain(scale=2.0, n=0)}
    return (lambda x: x * c["a"].scale), adds(c["a"])


@unread
def counter_of_items_in_a_loop():
    c = [Plain(scale=2.0, n=0), Plain(scale=3.0, n=0)]

    def fn(x):
        for item in c:
            x = x * item.scale
        return x

    return fn, adds(c[1])


@unread
def counter_beside_a_method():
    class C:
        def scaled(self, x):
            return x * self.scale

    c = C()
    c.scale, c.n = 2.0, 0
    return (lambda x: c.scaled(x)), adds(c)


@unread
def counter_beside_a_property():
    class C:
        n = 0

        @property
        def scale(self):
            return self.own * 2

    c = C()
    c.own = 2.0
    return (lambda x: x * c.scale), adds(c)


@unread
def counter_of_an_object_that_is_passed_on():
    class Call:
        def __init__(self, owner):
            self.owner = owner

        def run(self, x):
            return x * self.owner.scale

    c = Plain(scale=2.0, n=0)
    return (lambda x: Call(c).run(x)), adds(c)


@unread
def counter_of_an_object_in_a_partial():
    c = Plain(scale=2.0, n=0)
    run = functools.partial(lambda c, x: x * c.scale, c)
    return (lambda x: run(x)), adds(c)


@unread
def counter_of_an_object_in_a_made_partial():
    c = Plain(scale=2.0, n=0)
    return (lambda x: functools.partial(lambda c, x: x * c.scale, c)(x)), adds(c)


@unread
def counter_of_an_object_in_made_containers():
    c = Plain(scale=2.0, n=0)

    def fn(x):
        kept = []
        kept.append(c)
        named = {"c": c}
        pairs = list(zip(kept, [named]))
        return x * pairs[0][0].scale * pairs[0][1]["c"].scale * sum(o.scale for o in kept)

    return fn, adds(c)


@unread
def counter_of_an_object_that_is_asked_for_its_class():
    c = Plain(scale=2.0, n=0)

    def fn(x):
        if (
            isinstance(c, Plain)
            and hasattr(c, "scale")
            and type(c) is Plain
            and callable(c.__init__)
        ):
            return x * getattr(c, "scale")
        return x

    return fn, adds(c)


@unread
def list_beside_an_attribute():
    c = Plain(scale=2.0, seen=[])
    return (lambda x: x * c.scale), lambda: c.seen.append(1)


@unread
def list_of_tensors_beside_an_attribute():
    c = Plain(scale=2.0, seen=[])
    return (lambda x: x * c.scale), lambda: c.seen.append(torch.ones(2))


@unread
def list_of_which_one_item_is_read():
    c = [2.0]
    return (lambda x: x * c[0]), lambda: c.append(1)


@unread
def list_in_a_closure_that_another_function_reads():
    kept = []

    def other():
        return kept

    def fn(x):
        return x * 2 if other else x

    return fn, lambda: kept.append(1)


@unread
def key_of_a_dict():
    c = {"scale": 2.0}
    return (lambda x: x * c["scale"]), lambda: c.update({"n": c.get("n", 0) + 1})


@unread
def new_key_of_a_dict():
    c = {"scale": 2.0}
    return (lambda x: x * c["scale"] * c.get("other", 1.0)), lambda: c.update({len(c): 1})


@unread
def key_of_a_dict_of_dicts():
    c = {"a": {"scale": 2.0}, "b": {"n": 0}}
    return (lambda x: x * c["a"]["scale"]), lambda: c["b"].update({"n": c["b"]["n"] + 1})


@unread
def key_of_a_cache():
    c = {}

    def fn(x):
        return x * 2 if c.get("k") is None else x

    return fn, lambda: c.update({f"k{len(c)}": torch.ones(2)})


@unread
def key_of_the_attributes():
    c = Plain(scale=2.0)
    return (lambda x: x * c.scale), lambda: vars(c).update({f"k{len(vars(c))}": 1})


@unread
def tensor_of_an_object():
    c = Plain(w=torch.ones(4), last=None)
    return (lambda x: x * c.w), lambda: setattr(c, "last", torch.ones(4))


@unread
def another_name_of_a_tensor():
    c = Plain(w=torch.ones(4), best=None)
    c.best = c.w
    return (lambda x: x * c.w), lambda: setattr(c, "best", torch.ones(4))


@unread
def results_that_are_kept():
    class Wrapper:
        def __init__(self):
            self.layer = nn.Linear(4, 4)
            self.results, self.last = [], None

        def run(self, x):
            return self.layer(x)

    c = Wrapper()

    def change():
        c.last = torch.ones(2, 4)
        c.results.append(c.last)

    return c.run, change


@unread
def optimizer_beside_a_module():
    c = Plain(layer=nn.Linear(4, 4), step=0, losses=[])

    def change():
        c.step += 1
        c.losses.append(float(c.step))

    return (lambda x: c.layer(x)), change


@unread
def server_with_statistics():
    class Server:
        def __init__(self):
            self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.stats = {"calls": 0, "times": collections.deque(maxlen=3)}
            self.queue = collections.OrderedDict()

        def answer(self, x):
            return self.model(x)

    c = Server()

    def change():
        c.stats["calls"] += 1
        c.stats["times"].append(0.1)
        c.queue[c.stats["calls"]] = "request"

    return c.answer, change


@unread
def attribute_of_a_child():
    c = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return c, adds(c[1], "calls")


@unread
def context_variable_beside():
    kept = [contextvars.ContextVar("kept", default=0), 2.0]
    return (lambda x: x * kept[1]), lambda: kept[0].set(kept[0].get() + 1)


@unread
def global_counter():
    def fn(x):
        return x * 2 if _COUNTS is not None else x

    return fn, lambda: _COUNTS.update(n=_COUNTS["n"] + 1)


_COUNTS = {"n": 0}


@unread
def buffer_of_a_module():
    c = nn.BatchNorm1d(4).eval()

    def change():
        c.num_batches_tracked = c.num_batches_tracked + 1

    return c, change


@unread
def buffer_of_a_module_that_only_others_read():
    c = Module(scale=2.0)
    c.register_buffer("seen", torch.zeros(1))

    def change():
        c.seen = c.seen + 1

    return (lambda x: c(x) * c.scale), change


# ---- the class of an object, which operations ask for by themselves


class Low:
    """Its special methods give 2, and those of :class:`High` give 5."""

    gives = 2

    def __len__(self):
        return self.gives

    __index__ = __int__ = __hash__ = __round__ = __floor__ = __length_hint__ = __len__

    def __float__(self):
        return float(self.gives)

    __call__ = __neg__ = __abs__ = __next__ = __enter__ = __float__

    def __add__(self, other):
        return float(self.gives)

    __radd__ = __iadd__ = __matmul__ = __getitem__ = __add__

    def __exit__(self, *error):
        return False

    def __bool__(self):
        return self.gives > 2

    def __eq__(self, other):
        return self.gives > 2

    __lt__ = __contains__ = __eq__

    def __iter__(self):
        return iter(range(self.gives))

    __reversed__ = __iter__

    def __dir__(self):
        return ["name"] * self.gives

    def __str__(self):
        return "n" * self.gives

    __repr__ = __fspath__ = __str__

    def __format__(self, spec):
        return "n" * self.gives

    def __bytes__(self):
        return b"n" * self.gives


class High(Low):
    gives = 5


def _entered(item):
    with item as value:
        return value


def _plus(item):
    item += 1
    return item


_BY_CLASS = {
    "sum": lambda item: item + 1,
    "sum_from_the_right": lambda item: 1 + item,
    "augmented": _plus,
    "product": lambda item: item @ 1,
    "length": len,
    "truth": lambda item: 5.0 if item else 2.0,
    "or": lambda item: (item and 5.0) or 2.0,
    "number": float,
    "minus": lambda item: -item,
    "rounded": round,
    "floor": math.floor,
    "hash": hash,
    "called": lambda item: item(),
    "item": lambda item: item[0],
    "iterated": lambda item: sum(1 for _ in item),
    "unpacked": lambda item: len([*item]),
    "given": lambda item: (lambda *given: len(given))(*item),
    "reversed": lambda item: len(list(reversed(item))),
    "next": next,
    "equal": lambda item: 1 + (item == 1),
    "less": lambda item: 1 + (item < 1 < 3),
    "contains": lambda item: 1 + (3 in item),
    "in_a_list": lambda item: 1 + (7 in [item]),
    "index": lambda item: [1, 2, 3, 4, 5, 6][item],
    "slice": lambda item: len([1, 2, 3, 4, 5, 6][:item]),
    "text": lambda item: len(f"{item}"),
    "representation": lambda item: len(f"{item!r}"),
    "percent": lambda item: len("%s" % item),
    "bytes": lambda item: len(bytes(item)),
    "entered": _entered,
    "dir": lambda item: len(dir(item)),
    "hint": operator.length_hint,
    "mapped": lambda item: sum(map(float, [item])),
    "all": lambda item: 1 + all([item]),
    "reduced": lambda item: functools.reduce(operator.add, [item, 1]),
    "packed": lambda item: struct.unpack("d", struct.pack("d", item))[0],
    "super": lambda item: super(Low, item).__self_class__.gives,
    "type_in_c": lambda item: next(map(type, [item])).gives,
    "type_by_operator": lambda item: operator.call(type, item).gives,
    "isinstance_in_c": lambda item: 1 + next(map(isinstance, [item], [High])),
    "checked": lambda item: 1 + len(list(filter(High.__instancecheck__, [item]))),
    "descriptor": lambda item: vars(object)["__class__"].__get__(item).gives,
}
if sys.version_info < (3, 11):
    del _BY_CLASS["type_by_operator"]


def _other_class(get):
    def of_an_object():
        c = Low()
        return gives(lambda: get(c), sets(c, "__class__", High))

    def of_the_last_object():
        items = [Low(), Low(), Low()]

        def times(x, item):
            return x * get(item)

        def fn(x):
            for item in items:
                x = times(x, item)
            return x

        return fn, sets(items[2], "__class__", High)

    return of_an_object, of_the_last_object


for _name, _get in _BY_CLASS.items():
    for _make in _other_class(_get):
        CASES[f"other_class_{_name}_{_make.__name__}"] = _make


@case
def class_of_a_module_gets_a_call():
    class Layer(Module):
        pass

    c = Layer()
    return (lambda x: c(x)), lambda: setattr(Layer, "__call__", lambda self, x: x * 9)


# ---- names and slots that code in C reads of modules and classes


class SlotOfModule(Module):
    __slots__ = ("slot",)


def _read_in_c(how):
    """Cases of one way to read the attribute ``n``: of a module, a class and a Python module."""

    def of_a_module():
        c = Module(n=2.0)
        return gives(lambda: how(c), sets(c, "n"))

    def of_a_child():
        c = Module(inner=Module(n=2.0))
        return gives(lambda: how(c.inner), sets(c.inner, "n"))

    def of_a_python_module():
        c = types.ModuleType("some_python_module")
        c.n = 2.0
        return gives(lambda: how(c), lambda: setattr(c, "n", 5.0))

    return of_a_module, of_a_child, of_a_python_module


for _name, _how in {
    "methodcaller": lambda item: operator.methodcaller("__getattribute__", "n")(item),
    "mapped_methodcaller": lambda item: next(
        map(operator.methodcaller("__getattribute__", "n"), [item])
    ),
    "mapped": lambda item: next(map(item.__getattribute__, ["n"])),
    "mapped_of_object": lambda item: next(map(object.__getattribute__, [item], ["n"])),
}.items():
    for _make in _read_in_c(_how):
        CASES[f"in_c_{_name}_{_make.__name__}"] = _make


@case
def sorted_by_attributes_of_a_module():
    c = Module(a=2.0, b=3.0)
    return gives(lambda: 1 + (sorted("ab", key=c.__getattribute__)[0] == "a"), sets(c, "a"))


@case
def slot_of_a_module_by_its_descriptor():
    c = SlotOfModule()
    object.__setattr__(c, "slot", 2.0)
    return gives(lambda: SlotOfModule.__dict__["slot"].__get__(c), sets(c, "slot"))


@case
def mapped_slot_of_a_module_by_its_descriptor():
    c = SlotOfModule()
    object.__setattr__(c, "slot", 2.0)
    get = SlotOfModule.__dict__["slot"].__get__
    return gives(lambda: next(map(get, [c])), sets(c, "slot"))


@case
def name_of_a_class_by_its_descriptor():
    class Named:
        pass

    get = vars(type)["__name__"].__get__
    return gives(lambda: len(get(Named)), lambda: setattr(Named, "__name__", "N"))


@case
def defaults_of_a_function_by_their_descriptor():
    def helper(n=2.0):
        return n

    get = vars(types.FunctionType)["__defaults__"].__get__
    return gives(lambda: get(helper)[0], lambda: setattr(helper, "__defaults__", (5.0,)))


# ---- functions in C that a class has in the place of a method, and those that C code calls


def _with(**members):
    return type("With", (), members)()


@case
def property_that_calls_a_method_by_name():
    class Layer(Module):
        scale = property(operator.methodcaller("__getattribute__", "n"))

    c = Layer(n=2.0)
    return gives(lambda: c.scale, sets(c, "n"))


@case
def property_that_is_the_slot_of_a_module():
    class Layer(SlotOfModule):
        scale = property(SlotOfModule.__dict__["slot"].__get__)

    c = Layer()
    object.__setattr__(c, "slot", 2.0)
    return gives(lambda: c.scale, sets(c, "slot"))


@case
def cached_property_by_attrgetter():
    class Cached:
        module = Module(n=2.0)
        scale = functools.cached_property(operator.attrgetter("module.n"))

    return gives(lambda: Cached().scale, sets(Cached.module, "n"))


@case
def default_factory_that_reads_a_module():
    c = Module(n=2.0)
    held = collections.defaultdict(functools.partial(getattr, c, "n"))

    def get():
        value = held["key"]
        del held["key"]
        return value

    return gives(get, sets(c, "n"))


@case
def item_of_a_class_by_a_dict():
    held = {"n": 2.0}

    class Table:
        __class_getitem__ = held.get

    return gives(lambda: Table["n"], puts(held, "n"))


@case
def attribute_by_those_of_another_object():
    c = Plain(n=2.0)
    item = _with(__getattr__=c.__getattribute__)
    return gives(lambda: item.n, sets(c, "n"))


@case
def all_attributes_are_those_of_another_object():
    c = Plain(n=2.0)
    item = _with(__getattribute__=c.__getattribute__)
    return gives(lambda: item.n, sets(c, "n"))


@eager
def attribute_by_those_of_a_module():
    c = Module(n=2.0)
    item = _with(__getattr__=functools.partial(getattr, c))
    return gives(lambda: item.n, sets(c, "n"))


@eager
def item_by_the_attributes_of_a_module():
    c = Module(n=2.0)
    item = _with(__getitem__=c.__getattribute__)
    return gives(lambda: item["n"], sets(c, "n"))


@eager
def called_as_an_attrgetter():
    c = Module(n=2.0)
    get = _with(__call__=operator.attrgetter("n"))
    return gives(lambda: get(c), sets(c, "n"))


@case
def names_that_are_letters():
    c = Module(a=2.0, b=3.0)
    return gives(lambda: sum(map(getattr, [c, c], "ab")), sets(c, "b"))


@case
def names_that_are_keys():
    c, names = Module(a=2.0, b=3.0), {"a": "b"}
    return gives(lambda: sum(map(c.__getattribute__, names)), sets(c, "a"))


@case
def names_of_a_class_of_texts():
    class Name(str):
        pass

    c, names = Module(n=2.0), [Name("n"), "training"]
    return gives(lambda: next(map(getattr, [c], names)), sets(c, "n"))


@eager
def names_that_code_in_c_makes():
    c, names = Module(n=2.0), ["N"]
    return gives(lambda: sum(map(getattr, [c], map(str.lower, names))), sets(c, "n"))


@case
def mapped_vars_of_a_python_module():
    c = types.ModuleType("some_python_module")
    c.n = 2.0
    return gives(lambda: next(map(vars, [c]))["n"], lambda: setattr(c, "n", 5.0))


@case
def mapped_names_of_a_python_module():
    c = types.ModuleType("some_python_module")
    return gives(lambda: len(next(map(dir, [c]))), lambda: setattr(c, "n", 5.0))


@case
def mapped_names_of_a_class():
    class Named:
        pass

    return gives(lambda: len(next(map(dir, [Named]))), lambda: setattr(Named, "n", 5.0))


def _bases():
    class One:
        pass

    class Two:
        pass

    class Derived(Two):
        pass

    return One, Derived, lambda: setattr(Derived, "__bases__", (One,))


@case
def mapped_issubclass():
    cls, derived, change = _bases()
    return gives(lambda: 1 + next(map(issubclass, [derived], [cls])), change)


@case
def filtered_by_a_check_of_subclasses():
    cls, derived, change = _bases()
    return gives(lambda: 1 + len(list(filter(cls.__subclasscheck__, [derived]))), change)


@case
def mapped_order_of_bases():
    cls, derived, change = _bases()
    return gives(lambda: 1 + (cls in next(map(type.mro, [derived]))), change)


# ---- what a metaclass gets later


def _gets_later(name, method):
    def make():
        class Meta(type):
            pass

        def get():
            class Made(metaclass=Meta):
                n = 2.0

            return getattr(Made, "later", Made.n)

        return gives(get, lambda: setattr(Meta, name, method))

    return make


def _new(meta, name, bases, space):
    return type.__new__(meta, name, bases, {**space, "n": 5.0})


for _name, _method in {
    "__prepare__": classmethod(lambda meta, name, bases: {"later": 5.0}),
    "__new__": _new,
    "__init__": lambda cls, *given: setattr(cls, "n", 5.0),
}.items():
    CASES[f"metaclass_gets{_name}"] = _gets_later(_name, _method)


@case
def keyword_default_of_a_function_with_the_same_code():
    def helper():
        def function(*, n=2.0):
            return n

        return function

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = [helper()]

        def forward(self, x):
            return x * self.held[0]()

    c = nn.Sequential(Layer(), Layer(), Layer())
    return c, puts(c[2].held[0].__kwdefaults__, "n")


# ---- what stands in a slice, an error, a view


_SLICED = {
    "a_tuple": lambda at: len((1, 2, 3, 4, 5, 6)[at]),
    "a_list": lambda at: len([1, 2, 3, 4, 5, 6][at]),
    "a_text": lambda at: len("abcdef"[at]),
    "a_range": lambda at: len(range(6)[at]),
    "by_operator": lambda at: len(operator.getitem((1, 2, 3, 4, 5, 6), at)),
    "asked": lambda at: at.indices(6)[1],
    "shown": lambda at: len(str(at)),
    "compared": lambda at: 1 + (at == slice(None, 5)),
}


def _slice_changes(get):
    def make():
        item = Low()
        at = slice(None, item)
        return gives(lambda: get(at), sets(item, "__class__", High))

    return make


for _name, _get in _SLICED.items():
    CASES[f"slice_of_{_name}"] = _slice_changes(_get)


@case
def slice_of_a_tensor():
    item, w = Low(), torch.arange(6.0)
    at = slice(None, item)
    return (lambda x: x * w[at].sum()), sets(item, "__class__", High)


@case
def slice_that_counts_a_list():
    counted = [1]
    at = slice(_with(__index__=counted.__len__))
    return gives(lambda: len([1, 2, 3][at]), lambda: counted.append(1))


@case
def index_of_a_tuple():
    item, held = Low(), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    return gives(lambda: held[item], sets(item, "__class__", High))


def _error_changes(cls, given, name, value):
    def make():
        error = cls(*given)
        return tells(lambda: error, sets(error, name, value))

    return make


for _cls, _given, _name, _value in [
    (OSError, (2, "text"), "filename", "name"),
    (OSError, (2, "text"), "strerror", "another text"),
    (UnicodeDecodeError, ("utf8", b"a", 0, 1, "reason"), "reason", "another reason"),
    (ImportError, ("text",), "msg", "another text"),
    (SyntaxError, ("text", ("name", 1, 1, "line")), "lineno", 12345),
]:
    CASES[f"{_name}_of_{_cls.__name__}"] = _error_changes(_cls, _given, _name, _value)


@case
def default_of_a_context_variable_in_its_text():
    held = [1]
    c = contextvars.ContextVar("variable", default=held)
    return tells(lambda: repr(c).partition(" at ")[0], lambda: held.append(22))


@case
def default_factory_in_a_text():
    c = collections.defaultdict(int)
    return tells(lambda: c, lambda: setattr(c, "default_factory", None))


@case
def mapping_behind_a_view():
    held = {"n": 2.0}
    c = held.keys()
    return gives(lambda: c.mapping["n"], puts(held, "n"))


# ---- what the collector does not track, in objects that are no places


def _untracked(make, get):
    def of_a_dict():
        held = {"n": 2.0}
        c = make(held)
        gc.collect()  # it does not track tuples of such dicts afterwards
        return gives(lambda: get(c)["n"], puts(held, "n"))

    def of_bytes():
        held = bytearray(b"\x02")
        c = make(held)
        return gives(lambda: get(c)[0], puts(held, 0, 5))

    return of_a_dict, of_bytes


def _with_default(held):
    def helper(held=held):
        return held

    return helper


def _token(held):
    variable = contextvars.ContextVar("variable")
    variable.set(held)
    return variable.set(None)


for _name, _make, _get in [
    ("slice", slice, lambda c: c.stop),
    ("alias", lambda held: list[held], lambda c: c.__args__[0]),
    ("arguments", lambda held: types.GenericAlias(list, (held,)), lambda c: typing.get_args(c)[0]),
    ("default", _with_default, lambda c: c.__defaults__[0]),
    ("token", _token, lambda c: c.old_value),
    ("error", ValueError, lambda c: c.args[0]),
    ("stop", StopIteration, lambda c: c.value),
    ("nested", lambda held: (((held,),),), lambda c: c[0][0][0]),
]:
    for _case in _untracked(_make, _get):
        CASES[f"untracked_{_name}_{_case.__name__}"] = _case


@case
def retained_gradient():
    w = torch.ones(4, requires_grad=True)
    with torch.enable_grad():
        c = w * 1
    return gives(lambda: 1 + c.retains_grad, c.retain_grad)


@case
def settings_of_dynamo():
    config = torch._dynamo.config
    before = config.recompile_limit

    def fn(x):
        return x * config.recompile_limit

    fn.undo = lambda: setattr(config, "recompile_limit", before)
    return fn, lambda: setattr(config, "recompile_limit", before + 3)


@unread
def class_of_an_object_beside():
    c = [Low(), Low(), 2.0]

    def change():
        c[0].__class__ = High if type(c[0]) is Low else Low

    return (lambda x: x * c[2] if c[1] is not None else x), change
