"""Arguments that are one object, or one that the function knows; and what hides in an argument.

A case is a function and what makes its argument out of a tensor, the number of the call and a
value. For the value 2 something is another object, or is there; the contents are the same.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
import time
import types
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from tests.hostile.hostile_arguments import Case, Plain


@dataclasses.dataclass
class Tree:
    x: torch.Tensor
    a: Any
    b: Any


@dataclasses.dataclass(eq=False)
class Marked:
    x: torch.Tensor
    scale: int = 2


@dataclasses.dataclass
class Holder:
    request: Any

    mask = property(operator.attrgetter("request.mask"))


class Slotted:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class OverSlots(Slotted):
    x: torch.Tensor


class Watching:
    def __init__(self, request: Any, out: list[bool]) -> None:
        self.request, self.out = request, out

    def __del__(self) -> None:
        self.out.append(hasattr(self.request, "mask"))


class SharedDict:
    def __init__(self, base: Any) -> None:
        self.__dict__ = base.__dict__


class Registered:
    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.w = x, None


_pytree.register_pytree_node(Registered, lambda r: ([r.x], None), lambda xs, _: Registered(xs[0]))

KNOWN_LIST, KNOWN_DICT, KNOWN_OBJECT = [1], {"k": 1}, Plain(mode=2)
KNOWN_TENSOR, KNOWN_TUPLE, KNOWN_RECORD = torch.ones(4), ("auto",), Marked(torch.ones(1))
SCORES = {KNOWN_RECORD: 5}


def twins(make):
    """Two places of a dict that hold one object, or two that are equal."""

    def made(x, n, v):
        one = make()
        return {"x": x, "a": one, "b": one if v == 2 else make(), "n": n}

    return made


def known(item, make):
    """An object that the function knows, or one like it."""
    return lambda x, n, v: {"x": x, "a": item if v == 2 else make(), "n": n}


def optional(**held):
    """A request that has more attributes, or has not."""
    return lambda x, n, v: Plain(x=x, n=n, **(held if v == 2 else {}))


@contextlib.contextmanager
def lent(holder, name, value) -> Iterator[None]:
    before, holder[name] = holder[name], value
    try:
        yield
    finally:
        holder[name] = before


def lends_a_list(b):
    b["a"].append(5)
    y = b["x"] * len(b["b"])
    b["a"].pop()
    return y


def lends_a_dict(b):
    with lent(b["a"], "k", 9):
        return b["x"] * b["b"]["k"]


def lends_attributes(b):
    b["a"].k = 9
    y = b["x"] * b["b"].k
    b["a"].k = 1
    return y


def lends_what_it_knows(b):
    KNOWN_LIST.append(1)
    y = b["x"] * len(b["a"])
    KNOWN_LIST.pop()
    return y


def lends_its_object(b):
    KNOWN_OBJECT.mode = 5
    y = b["x"] * b["a"].mode
    KNOWN_OBJECT.mode = 2
    return y


def lends_its_argument(b):
    with lent(b["a"], "k", 7):
        return b["x"] * KNOWN_DICT["k"]


def copies(t):
    made = copy.deepcopy(t)
    made.a["k"] = 7
    return t.x * made.b["k"]


def groups(b):
    return b["x"] * len({id(item): 1 for item in (b["a"], b["b"])})


def asks_a_finalizer(r):
    out: list[bool] = []
    Watching(r, out)
    return r.x * (2 if out[0] else 3)


def asks_on_a_tensor(r):
    t = r.x * 1
    t.request = r
    found = any(map(hasattr, map(operator.attrgetter("request"), [t]), ["mask"]))
    return t * (2 if found else 3)


def with_attribute(item, name, value, there):
    if there:
        object.__setattr__(item, name, value)
    return item


def mapping(value_of):
    def made(x, n, v):
        data = UserDict(x=x)
        data.note = value_of(v)
        return data

    return made


def over_slots(x, n, v):
    return with_attribute(OverSlots(x), "hidden", 2, v == 2)


def registered(x, n, v):
    return with_attribute(Registered(x), "w", x, v == 2)


CASES: dict[str, Case] = {
    "is, of two lists": (lambda b: b["x"] * (2 if b["a"] is b["b"] else 3), twins(list)),
    "is, of two dicts": (lambda b: b["x"] * (2 if b["a"] is b["b"] else 3), twins(dict)),
    "is, of two namespaces": (
        lambda b: b["x"] * (2 if b["a"] is b["b"] else 3),
        twins(lambda: types.SimpleNamespace(k=1)),
    ),
    "is, of a list that is known": (
        lambda b: b["x"] * (2 if b["a"] is KNOWN_LIST else 3),
        known(KNOWN_LIST, lambda: [1]),
    ),
    "is, of a tuple that is known": (
        lambda b: b["x"] * (2 if b["a"] is KNOWN_TUPLE else 3),
        known(KNOWN_TUPLE, lambda: tuple(["auto"])),
    ),
    "is, of a tensor that is known": (
        lambda b: b["x"] * (2 if b["a"] is KNOWN_TENSOR else 3),
        known(KNOWN_TENSOR, lambda: torch.ones(4)),
    ),
    "a tensor in a set": (
        lambda b: b["x"] * (2 if b["a"] in {KNOWN_TENSOR} else 3),
        known(KNOWN_TENSOR, lambda: torch.ones(4)),
    ),
    "the hash of a record": (
        lambda b: b["x"] * SCORES.get(b["a"], 2),
        known(KNOWN_RECORD, lambda: Marked(torch.ones(1))),
    ),
    "grouped by id": (groups, twins(dict)),
    "lent: a list": (lends_a_list, twins(lambda: [0])),
    "lent: a dict": (lends_a_dict, twins(lambda: {"k": 1})),
    "lent: attributes": (lends_attributes, twins(lambda: types.SimpleNamespace(k=1))),
    "lent: a list that is known": (lends_what_it_knows, known(KNOWN_LIST, lambda: [1])),
    "lent: an object that is known": (
        lends_its_object,
        known(KNOWN_OBJECT, lambda: Plain(mode=2)),
    ),
    "lent: an argument that is known": (
        lends_its_argument,
        known(KNOWN_DICT, lambda: {"k": 1}),
    ),
    "copied with what it shares": (
        copies,
        lambda x, n, v: Tree(x, one := {"k": 1}, one if v == 2 else {"k": 1}),
    ),
    "a property in C, of a holder": (
        lambda w: w.request.x * getattr(w, "mask", 3),
        lambda x, n, v: Holder(optional(mask=2.0)(x, n, v)),
    ),
    "a finalizer": (asks_a_finalizer, optional(mask=1)),
    "an attribute of a tensor that C reads": (asks_on_a_tensor, optional(mask=1)),
    "one dict of attributes": (
        lambda r: r.x * getattr(SharedDict(r), "mask", 3),
        optional(mask=2.0),
    ),
    "an attribute of a tensor": (
        lambda x: x * getattr(x, "scale", 3),
        lambda x, n, v: with_attribute(x, "scale", 2, v == 2),
    ),
    "a mark on a tensor": (
        lambda x: x * (2 if hasattr(x, "_scale") else 3),
        lambda x, n, v: with_attribute(x, "_scale", 2, v == 2),
    ),
    "the attributes of a tensor": (
        lambda b: b["x"] * (1 + len(vars(b["x"]))),
        lambda x, n, v: {"x": with_attribute(x, "_scale", 2, v == 2)},
    ),
    "an attribute of a mapping": (
        lambda d: d["x"] * (2 if getattr(d, "note", None) else 3),
        mapping(lambda v: [v] if v == 2 else []),
    ),
    "an attribute of a mapping that is there": (
        lambda d: d["x"] * (3 if d.note is None else 2),
        mapping(lambda v: [v] if v == 2 else None),
    ),
    "a slot of a base": (lambda r: r.x * getattr(r, "hidden", 3), over_slots),
    "what a registration leaves out": (lambda r: r.x * (3 if r.w is None else 2), registered),
    "what a structure hides": (
        lambda b: b["x"] * (b["t"].tm_gmtoff or 3),
        lambda x, n, v: {
            "x": x,
            "t": time.struct_time((*range(9),), {"tm_gmtoff": 7200} if v == 2 else {}),
        },
    ),
    "the unit of a time": (
        lambda b: b["x"] * float(b["t"] / np.timedelta64(1, "s")),
        lambda x, n, v: {"x": x, "t": np.timedelta64(1, "h" if v == 2 else "s")},
    ),
    "a very large number": (
        lambda b: b["x"] * (b["k"] % 7),
        lambda x, n, v: {"x": x, "k": 10**5000 + v},
    ),
}
