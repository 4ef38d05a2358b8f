"""Functions that read their arguments in ways that no instruction of theirs shows.

A case is a function and what makes its argument out of the number of the call and a value; the
result depends on the value alone, or on a tensor that is made of the number.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import operator
import pickle
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Case = tuple[Callable[[Any], torch.Tensor], Callable[[torch.Tensor, int, int], Any]]


class Plain:
    """Nothing but its attributes."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Field(str, enum.Enum):
    SCALE = "scale"


class InC(Plain):
    scale = property(operator.attrgetter("_scale"))


@typing.runtime_checkable
class HasScale(typing.Protocol):
    scale: int


class Answers(Plain):
    """Its special methods give C code what it holds."""

    def __contains__(self, key: object) -> Any:
        return self.held["inner"]

    def __reduce__(self) -> Any:
        return dict, (self.held["inner"],)


KNOWN = Plain(x=torch.ones(4))
SCORES = {KNOWN: 5.0}


def plain(x, n, v):
    return Plain(x=x, number=n, scale=v)


def namespace(x, n, v):
    inner = types.SimpleNamespace(scale=v)
    return types.SimpleNamespace(x=x, number=n, scale=v, inner=inner, held={"q": v})


def named(x, n, v):
    return {"x": x, "number": n, "inner": {f"k{v}": 1}}


def deep(x, n, v):
    return {"x": x, "number": n, "inner": {"a": {"b": {"c": v}}}}


def counted(x, n, v):
    return {"x": x, "number": n, "inner": {str(k): 1 for k in range(v - 1)}}


def one_of(x, n, v):
    vars(KNOWN)["x"] = x
    return [KNOWN if v == 2 else Plain(x=x, number=n)]


def with_a_slot(x, n, v):
    return Both({"k": v}, x)


@dataclasses.dataclass(slots=True)
class InSlot:
    p: Any


@dataclasses.dataclass
class Both(InSlot):
    x: Any = None


def of_made(request):
    made = Plain(request=request)
    return operator.attrgetter("request.x")(made) * operator.attrgetter("request.scale")(made)


def updated(request):
    made: Any = Plain()
    vars(made).update(vars(request))
    return made.x * made.scale


def shared(request):
    made: Any = Plain()
    made.__dict__ = request.__dict__
    return made.x * made.scale


def matched(request):
    match request:
        case HasScale(scale=1):
            return request.x * 2
        case _:
            return request.x * 5


def pickled(request):
    made = Plain(inner=request.inner)
    return request.x * pickle.loads(pickle.dumps(made)).inner.scale


def written(request):
    made = types.SimpleNamespace(held=request.held)
    return request.x * (2 if f"{made}" == "namespace(held={'q': 1})" else 3)


def equal(request):
    made = types.SimpleNamespace(held=request.held)
    return request.x * (2 if made == types.SimpleNamespace(held={"q": 1}) else 3)


def of_an_error(request):
    error = ValueError()
    error.args = (request.held,)
    return request.x * (2 if str(error) == "{'q': 1}" else 3)


def of_cells(request):
    held = request.held
    cells = (lambda: held).__closure__
    return request.x * (2 if cells == (lambda held: lambda: held)({"q": 1}).__closure__ else 3)


def dumped(request):
    made = types.SimpleNamespace(held=request.held)
    return request.x * (2 if json.dumps(made, default=vars) == '{"held": {"q": 1}}' else 3)


def in_an_array(request):
    array = np.empty(1, dtype=object)
    array[0] = request.held
    return request.x * (2 if str(array) == "[{'q': 1}]" else 3)


def extended(batch):
    names: list[str] = []
    names.extend(batch["inner"])
    return batch["x"] * (2 if names == ["k1"] else 3)


def assigned(batch):
    names: list[str] = []
    names[:] = batch["inner"]
    return batch["x"] * (2 if names == ["k1"] else 3)


def answered(batch, ask):
    return batch["x"] * (2 if ask(Answers(held=batch)) else 3)


CASES: dict[str, Case] = {
    "attrgetter of what the call has made": (of_made, plain),
    "itemgetter over a generator": (
        lambda r: r.x * sum(map(operator.itemgetter("q"), (getattr(r, k) for k in ("held",)))),
        namespace,
    ),
    "attributes that are copied": (updated, plain),
    "attributes that are shared": (shared, plain),
    "a name that is an enum": (lambda r: r.x * getattr(r, Field.SCALE), plain),
    "whether there is such a name": (
        lambda r: r.x * (2 if hasattr(r, Field.SCALE) else 3),
        lambda x, n, v: Plain(x=x, number=n, **({"scale": 1} if v == 2 else {})),
    ),
    "a property in C": (lambda r: r.x * r.scale, lambda x, n, v: InC(x=x, number=n, _scale=v)),
    "a protocol": (
        lambda r: r.x * (2 if isinstance(r, HasScale) else 3),
        lambda x, n, v: Plain(x=x, number=n, **({"scale": 1} if v == 2 else {})),
    ),
    "a pattern of a protocol": (matched, plain),
    "any": (lambda b: b["x"] * (2 if any(b[k] for k in ("inner",)) else 3), counted),
    "filter": (lambda b: b["x"] * (2 if [*filter(lambda k: b[k], ["inner"])] else 3), counted),
    "len of what is yielded": (
        lambda b: b["x"] * (2 + sum(map(len, (b[k] for k in ("inner",))))),
        counted,
    ),
    "in a generator": (
        lambda r: r.x * (2 if {"q": 1} in (getattr(r, k) for k in ("held",)) else 3),
        namespace,
    ),
    "repr of what is yielded": (
        lambda r: r.x * (2 if "q': 1" in "".join(map(repr, (v for v in [r.held]))) else 3),
        namespace,
    ),
    "keys of groups": (
        lambda r: r.x * len([*itertools.groupby((0, 1), key=lambda i: (r.held, {"q": 1})[i])]),
        namespace,
    ),
    "isdisjoint of a generator": (
        lambda rs: rs[0].x + ({KNOWN}.isdisjoint(r for r in rs)),
        one_of,
    ),
    "get over a generator": (
        lambda rs: rs[0].x + next(map(SCORES.get, (r for r in rs), (1.0,))),
        one_of,
    ),
    "known to a generator": (lambda rs: rs[0].x + (KNOWN in (r for r in rs)), one_of),
    "keys of a dict that is made": (
        lambda rs: rs[0].x + ({r: 1 for r in rs} == {KNOWN: 1}),
        one_of,
    ),
    "spread from a generator": (lambda rs: rs[0].x + [KNOWN].count(*(r for r in rs)), one_of),
    "spread from values": (
        lambda b: b["x"] * (2 if repr(*b["inner"].values()) == "{'b': {'c': 1}}" else 3),
        deep,
    ),
    "names that are zipped": (
        lambda b: (
            b["x"] * (2 if [*zip(*(b[k] for k in ("inner",)), strict=True)] == [("k1",)] else 3)
        ),
        named,
    ),
    "pickled": (pickled, namespace),
    "written into a text": (written, namespace),
    "equal to another": (equal, namespace),
    "the text of an error": (of_an_error, namespace),
    "cells": (of_cells, namespace),
    "dumped": (dumped, namespace),
    "in an array": (in_an_array, namespace),
    "__eq__ of a dict": (
        lambda b: b["x"] * (2 if b["inner"].__eq__({"a": {"b": {"c": 1}}}) else 3),
        deep,
    ),
    "__repr__ of a dict": (
        lambda b: b["x"] * (2 if b["inner"].__repr__() == "{'a': {'b': {'c': 1}}}" else 3),
        deep,
    ),
    "extend": (extended, named),
    "a slice that is assigned": (assigned, named),
    "map of vars": (
        lambda rs: rs[0].x * sum(held["scale"] for held in map(vars, (r for r in rs))),
        lambda x, n, v: [plain(x, n, v)],
    ),
    "__contains__ that answers C": (lambda b: answered(b, lambda h: "inner" in h), counted),
    "__reduce__ that answers C": (
        lambda b: answered(b, lambda h: pickle.loads(pickle.dumps(h))),
        counted,
    ),
    "a field in a slot": (lambda r: r.x * r.p["k"], with_a_slot),
}
