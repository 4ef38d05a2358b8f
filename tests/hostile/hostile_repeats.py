"""Functions in which frames run again, or run as others did, and yet read something else.

Each makes a function and the changes that come after it was captured, one by one. Most are layers
of one class, equal in all but one thing, so that what the first one has read is asked of the others
and their instructions are not looked at. Whatever one of them reads on another way, a later change
of it must not be missed.
"""

# ruff: noqa: E731
from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import decimal
import enum
import functools
import gc
import inspect
import itertools
import json
import operator
import random
import sys
import threading
import types
import warnings
import weakref

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CASES = {}
NS = types.SimpleNamespace


def case(make):
    CASES[make.__name__] = make
    return make


class Box:
    """A plain object."""

    def __init__(self, **own):
        self.__dict__.update(own)


def stack(forward, *owns, **members):
    """Layers of one class, each with numbers and what it has beside them."""
    cls = type("Layer", (nn.Module,), {"forward": forward, **members})
    layers = []
    for own in owns:
        layer = cls()
        for name, value in {"a": 2.0, "b": 3.0, **own}.items():
            setattr(layer, name, value)
        layers.append(layer)
    return layers


def through(layers):
    def fn(x):
        # When the first one runs first, it is not yet known that its cells are state.
        for layer in (layers[0], *layers):
            x = layer(x)
        return x

    return fn


def to(item, name, value):
    return lambda: setattr(item, name, value)


def numbers(*items):
    """Change each number of each of these."""
    return [to(item, name, value) for item in items for name, value in (("a", 5.0), ("b", 7.0))]


def choosing(asks):
    """A forward that takes one way or the other."""

    def forward(self, x):
        return x * self.a if asks(self) else x * self.b

    return forward


def layered(asks, *owns, **members):
    layers = stack(choosing(asks), *owns, **members)
    return through(layers), numbers(*layers)


# ---- variables that functions share, which the frame that made them binds again


def _bound_again(forward):
    def make():
        layers = stack(forward, {}, {}, {}, {"a": 4.0})
        return through(layers), numbers(*layers)

    CASES[forward.__name__] = make


@_bound_again
def variable_between_two_questions(self, x):
    at = "a"

    def asks():
        return getattr(self, at)

    x = x * asks()
    at = "b"
    return x * asks()


def _times(asks, x):
    return x * asks()


@_bound_again
def variable_of_a_closure_that_is_given(self, x):
    at = "a"

    def asks():
        return getattr(self, at)

    x = _times(asks, x)
    at = "b"
    x = _times(asks, x)
    at = "a"
    return _times(asks, x)


@_bound_again
def variable_of_a_closure_in_a_list(self, x):
    at, kept = "a", []
    kept.append(lambda: getattr(self, at))

    def last(kept, x):
        return x * kept[-1]()

    x = last(kept, x)
    at = "b"
    return last(kept, x)


@_bound_again
def variable_of_a_generator(self, x):
    at = "a"
    asked = (getattr(self, at) for _ in "12")
    x = x * next(asked)
    at = "b"
    return x * next(asked)


@_bound_again
def variable_that_an_inner_function_binds(self, x):
    at = "a"

    def turn():
        nonlocal at
        at = "b" if at == "a" else "a"

    def asks():
        return getattr(self, at)

    for _ in "123":
        x = _times(asks, x)
        turn()
    return x


@_bound_again
def variable_of_a_method_that_is_made(self, x):
    at = "a"

    class Asks:
        def __call__(self):
            return getattr(layer, at)

    layer, asks = self, Asks()
    x = _times(asks, x)
    at = "b"
    return _times(asks, x)


@_bound_again
def variable_that_holds_another_layer(self, x):
    other = self

    def asks():
        return other.a

    x = _times(asks, x)
    other = known_layers[0]
    return _times(asks, x)


known_layers = [Box(a=1.5)]


# ---- what belongs to functions


def _with_a_function(forward, *changes):
    def make():
        def helper(x, *, k: float = 2.0):
            return x * k

        helper.k = 3.0
        layers = stack(functools.partialmethod(forward, helper), {}, {}, {})
        return through(layers), [
            *numbers(*layers),
            to(helper, "k", 5.0),
            lambda: setattr(helper, "__dict__", {"k": 6.0}),
            lambda: helper.__kwdefaults__.update(k=7.0),
            to(helper, "__kwdefaults__", {"k": 8.0}),
            lambda: helper.__annotations__.update(k=int),
            to(helper, "__code__", (lambda x, *, k: x + k).__code__),
        ]

    CASES[forward.__name__] = make


def _asked(function, x):
    return x * function.k + len(inspect.signature(function).parameters)


@_with_a_function
def function_is_called(self, helper, x):
    return helper(x) * self.a


@_with_a_function
def function_is_asked(self, helper, x):
    return _asked(helper, x) * self.a


@_with_a_function
def function_is_asked_for_its_signature(self, helper, x):
    found = inspect.signature(helper).parameters["k"]
    return x * self.a * found.default * (2 if found.annotation in (int, "int") else 1)


@_with_a_function
def function_is_asked_for_its_attributes(self, helper, x):
    return x * self.a * vars(helper)["k"] * helper.__kwdefaults__["k"]


# ---- layers that differ in one thing


def _function(**own):
    def function():
        return None

    vars(function).update(own)
    return function


def _keyword(number):
    def function(*, k=number):
        return k

    return function


SAME = [Box(), Box()]
DIFFERENT = {
    "a_flag": (lambda s: s.flag, True, False),
    "int_for_bool": (lambda s: s.flag is True, True, 1),
    "none_for_number": (lambda s: s.flag is None, None, 0),
    "zero_signs": (lambda s: str(s.flag) == "0.0", 0.0, -0.0),
    "nan": (lambda s: s.flag == s.flag, 1.0, float("nan")),
    "float_for_int": (lambda s: type(s.flag) is int, 1, 1.0),
    "bytes_for_text": (lambda s: isinstance(s.flag, str), "a", b"a"),
    "length_of_list": (lambda s: len(s.flag) == 2, [1, 2], [1, 2, 3]),
    "truth_of_list": (lambda s: bool(s.flag), [1], []),
    "truth_of_dict": (lambda s: not s.flag, {}, {1: 1}),
    "last_of_list": (lambda s: s.flag[-1] == 2, [1, 2], [1, 2, 3]),
    "past_the_end": (lambda s: _at(s.flag, 2) is None, [1, 2], [1, 2, 3]),
    "sum_of_list": (lambda s: sum(s.flag) == 3, [1, 2], [2, 2]),
    "largest": (lambda s: max(s.flag, key=lambda n: -n) == 1, [1, 2], [3, 2]),
    "sorted": (lambda s: sorted(s.flag)[0] == 1, [2, 1], [2, 3]),
    "set": (lambda s: 1 in s.flag, {1}, {2}),
    "frozenset": (lambda s: 1 in s.flag, frozenset({1}), frozenset({2})),
    "tuple": (lambda s: s.flag == (1, (2, 3)), (1, (2, 3)), (1, (2, 4))),
    "deque": (lambda s: s.flag[0] == 1, collections.deque([1]), collections.deque([2])),
    "order_of_dict": (lambda s: next(iter(s.flag)) == 1, {1: 0, 2: 0}, {2: 0, 1: 0}),
    "last_of_ordered_dict": (
        lambda s: next(reversed(s.flag)) == 2,
        collections.OrderedDict({1: 0, 2: 0}),
        collections.OrderedDict({2: 0, 1: 0}),
    ),
    "keys_that_are_objects": (lambda s: SAME[0] in s.flag, {SAME[0]: 1}, {SAME[1]: 1}),
    "key_of_dict": (lambda s: "k" in s.flag, {"k": 1}, {"l": 1}),
    "get_of_dict": (lambda s: s.flag.get("k", 1) == 1, {}, {"k": 2}),
    "match_of_dict": (lambda s: _matched(s.flag), {"k": 1}, {"k": 2}),
    "range": (lambda s: 5 in s.flag, range(9), range(3)),
    "slice": (lambda s: len([1, 2, 3][s.flag]) == 2, slice(2), slice(3)),
    "namedtuple": (
        lambda s: s.flag.x == 1,
        collections.namedtuple("P", "x")(1),
        collections.namedtuple("P", "x")(2),
    ),
    "functions_in_c": (
        lambda s: s.flag.relu.__name__ == "relu",
        torch._VF,
        NS(relu=torch._VF.tanh),
    ),
    "functions_in_c_of_all": (
        lambda s: torch._VF.relu.__name__ == s.flag.relu.__name__,
        torch._VF,
        NS(relu=torch._VF.tanh),
    ),
    "functions_in_c_later": (
        lambda s: s.flag.relu.__name__ == torch._VF.relu.__name__ == "relu",
        torch._VF,
        NS(relu=torch._VF.tanh),
    ),
    "signature": (
        lambda s: len(inspect.signature(s.flag).parameters) == 1,
        lambda x: x,
        lambda x, y: x,
    ),
    "attribute_of_a_function": (lambda s: s.flag.k == 1, _function(k=1), _function(k=2)),
    "default_of_a_function": (
        lambda s: s.flag.__kwdefaults__["k"] == 1,
        _keyword(1),
        _keyword(2),
    ),
    "default_in_a_call": (lambda s: s.flag() == 1, _keyword(1), _keyword(2)),
    "class": (lambda s: isinstance(s.flag, Box), Box(), NS()),
    "box_attribute": (lambda s: s.flag.x == 1, Box(x=1), Box(x=2)),
    "box_in_box": (lambda s: s.flag.x.y == 1, Box(x=Box(y=1)), Box(x=Box(y=2))),
    "absent": (lambda s: hasattr(s.flag, "x"), Box(x=1), Box()),
    "absent_by_default": (lambda s: getattr(s.flag, "x", 1) == 1, Box(), Box(x=2)),
    "namespace": (lambda s: s.flag.x == 1, NS(x=1), NS(x=2)),
    "vars": (lambda s: len(vars(s.flag)) == 1, Box(x=1), Box(x=1, y=2)),
    "dir": (lambda s: "y" in dir(s.flag), Box(x=1, y=2), Box(x=1)),
    "copy": (lambda s: copy.copy(s.flag).x == 1, Box(x=1), Box(x=2)),
    "deepcopy": (lambda s: copy.deepcopy(s.flag)["x"][0] == 1, {"x": [1]}, {"x": [2]}),
    "json": (lambda s: json.dumps(s.flag) == "[[1]]", [[1]], [[2]]),
    "repr": (lambda s: repr(s.flag) == "[[1]]", [[1]], [[2]]),
    "formatted": (lambda s: f"{s.flag}" == "[[1]]", [[1]], [[2]]),
    "attrgetter": (lambda s: operator.attrgetter("flag.x")(s) == 1, Box(x=1), Box(x=2)),
    "itemgetter": (lambda s: operator.itemgetter(0)(s.flag) == 1, [1], [2]),
    "map_of_getter": (
        lambda s: sum(map(operator.attrgetter("x"), s.flag)) == 1,
        [Box(x=1)],
        [Box(x=2)],
    ),
    "chained": (lambda s: sum(itertools.chain(*s.flag)) == 1, [[1], [0]], [[1], [1]]),
    "partial_keyword": (
        lambda s: s.flag() == 1,
        functools.partial(dict(k=1).get, "k"),
        functools.partial(dict(k=2).get, "k"),
    ),
    "partial_of_function": (
        lambda s: s.flag() == 1,
        functools.partial(lambda k: k, k=1),
        functools.partial(lambda k: k, k=2),
    ),
    "partial_other_keyword": (
        lambda s: s.flag() == 1,
        functools.partial(_either := (lambda k=1, j=1: k + 2 * j - 2), k=1),
        functools.partial(_either, j=2),
    ),
    "partial_arguments": (
        lambda s: s.flag() == 1,
        functools.partial(_first := (lambda *n: n[0]), 1),
        functools.partial(_first, 2),
    ),
    "function": (lambda s: s.flag() == 1, lambda: 1, lambda: 2),
    "default": (lambda s: s.flag() == 1, lambda n=1: n, lambda n=2: n),
    "closure": (lambda s: s.flag() == 1, (lambda n: lambda: n)(1), (lambda n: lambda: n)(2)),
    "weak": (lambda s: s.flag() is SAME[1], weakref.ref(SAME[1]), weakref.ref(SAME[0])),
    "dtype": (lambda s: s.flag is torch.float32, torch.float32, torch.float64),
    "device": (lambda s: s.flag.type == "cpu", torch.device("cpu"), torch.device("meta")),
    "size": (lambda s: s.flag[0] == 1, torch.Size([1]), torch.Size([2])),
    "tensor_dtype": (
        lambda s: s.flag.dtype is torch.float32,
        torch.zeros(2),
        torch.zeros(2, dtype=torch.float64),
    ),
    "tensor_shape": (lambda s: s.flag.shape[0] == 2, torch.zeros(2), torch.zeros(3)),
    "tensor_strides": (
        lambda s: s.flag.stride(0) == 2,
        torch.zeros(2, 2),
        torch.zeros(2, 2).t(),
    ),
    "tensor_requires_grad": (
        lambda s: s.flag.requires_grad,
        torch.zeros(2, requires_grad=True),
        torch.zeros(2),
    ),
    "tensor_dimensions": (lambda s: s.flag.dim() == 1, torch.zeros(1), torch.zeros(1, 1)),
    "tensor_for_none": (lambda s: s.flag is None, None, torch.zeros(1)),
    "parameter_for_tensor": (
        lambda s: isinstance(s.flag.x, nn.Parameter),
        Box(x=nn.Parameter(torch.zeros(1))),
        Box(x=torch.zeros(1, requires_grad=True)),
    ),
    "module_class": (lambda s: isinstance(s.flag, nn.ReLU), nn.ReLU(), nn.GELU()),
    "modules_length": (
        lambda s: len(s.flag) == 1,
        nn.ModuleList([nn.ReLU()]),
        nn.ModuleList([nn.ReLU(), nn.ReLU()]),
    ),
    "modules_names": (
        lambda s: "x" in s.flag,
        nn.ModuleDict({"x": nn.ReLU()}),
        nn.ModuleDict({"y": nn.ReLU()}),
    ),
    "modules_class": (
        lambda s: isinstance(s.flag[0], nn.ReLU),
        nn.ModuleList([nn.ReLU()]),
        nn.ModuleList([nn.GELU()]),
    ),
    "training": (lambda s: s.flag.training, nn.ReLU(), nn.ReLU().eval()),
    "in_features": (lambda s: s.flag.in_features == 2, nn.Linear(2, 2), nn.Linear(3, 2)),
    "no_bias": (lambda s: s.flag.bias is None, nn.Linear(2, 2, bias=False), nn.Linear(2, 2)),
    "defaultdict": (
        lambda s: s.flag["x"] == 0,
        collections.defaultdict(int),
        collections.defaultdict(lambda: 1),
    ),
    "enum": (lambda s: s.flag is Kind.ONE, None, None),
    "lock": (lambda s: s.flag.locked(), threading.Lock(), threading.Lock()),
    "subclass_of_dict": (lambda s: s.flag.x == 1, None, None),
    "subclass_of_list": (lambda s: s.flag[0] == 1, None, None),
    "property": (lambda s: s.flag.x == 1, None, None),
    "slots": (lambda s: s.flag.x == 1, None, None),
    "data_class": (lambda s: s.flag.x == 1, None, None),
    "equality": (lambda s: s.flag == 1, None, None),
    "truth": (lambda s: bool(s.flag), None, None),
    "length": (lambda s: len(s.flag) == 1, None, None),
    "iterator": (lambda s: list(s.flag) == [1], None, None),
    "getattr": (lambda s: s.flag.anything == 1, None, None),
    "call": (lambda s: s.flag() == 1, None, None),
    "index": (lambda s: [0, 1][s.flag] == 1, None, None),
    "contains": (lambda s: 1 in s.flag, None, None),
    "hash": (lambda s: {1: 2}.get(s.flag) == 2, None, None),
    "context": (lambda s: _entered(s.flag) == 1, None, None),
}


def _at(items, at):
    try:
        return items[at]
    except IndexError:
        return None


def _matched(item):
    match item:
        case {"k": 1}:
            return True
    return False


def _entered(manager):
    with manager as value:
        return value


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Dict(dict):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


class List(list):
    pass


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


@dataclasses.dataclass
class Data:
    x: int


class Odd:
    """All that can be asked of it asks for one number."""

    def __init__(self, n):
        self.n = n

    x = property(lambda self: self.n)
    __eq__ = lambda self, other: self.n == other
    __hash__ = lambda self: hash(self.n)
    __bool__ = lambda self: self.n == 1
    __len__ = lambda self: self.n
    __iter__ = lambda self: iter([self.n])
    __call__ = lambda self: self.n
    __index__ = lambda self: self.n % 2
    __contains__ = lambda self, n: n == self.n
    __getattr__ = lambda self, name: self.__dict__["n"]
    __enter__ = lambda self: self.n
    __exit__ = lambda self, *error: None


for _name, _make in {
    "enum": Kind,
    "subclass_of_dict": lambda n: Dict(x=n),
    "subclass_of_list": lambda n: List([n]),
    "slots": Slotted,
    "data_class": Data,
    **dict.fromkeys(
        [
            "property",
            "equality",
            "truth",
            "length",
            "iterator",
            "getattr",
            "call",
            "index",
            "contains",
            "hash",
            "context",
        ],
        Odd,
    ),
}.items():
    DIFFERENT[_name] = DIFFERENT[_name][0], _make(1), _make(2)
DIFFERENT["lock"][2].acquire()


def _differing(asks, one, other):
    return lambda: layered(asks, {"flag": one}, {"flag": one}, {"flag": other}, {"flag": other})


def _swapped(asks, one, other):
    """The layers are alike at first; later one of them gets what differs."""

    def make():
        layers = stack(choosing(asks), *[{"flag": one} for _ in range(3)])
        layers[2].b = 4.0
        return through(layers), [to(layers[1], "flag", other), to(layers[2], "flag", other)]

    return make


def _copied(asks, one, other):
    """Each layer has what it asks for its own; later one of them gets what differs."""

    def make():
        try:
            flags = [copy.deepcopy(one) for _ in range(3)]
        except TypeError:
            flags = [one] * 3
        layers = stack(choosing(asks), *[{"flag": flag} for flag in flags])
        return through(layers), [
            to(layers[2], "flag", other),
            lambda: _become(layers[1].flag, other),
            *numbers(*layers),
        ]

    return make


def _become(item, other):
    """Let it hold what the other one holds."""
    if isinstance(item, (list, collections.deque)):
        item.clear(), item.extend(other)
    elif isinstance(item, (dict, set)):
        item.clear(), item.update(other)
    elif isinstance(item, Slotted):
        item.x = other.x
    elif isinstance(item, nn.ModuleList):
        item._modules.clear(), item._modules.update(other._modules)
    elif hasattr(item, "__dict__") and type(item) is type(other):
        vars(item).clear(), vars(item).update(vars(other))


for _name, _case in DIFFERENT.items():
    CASES[f"layers_differ_in_{_name}"] = _differing(*_case)
    CASES[f"layers_get_another_{_name}"] = _swapped(*_case)
    CASES[f"layers_with_their_own_{_name}"] = _copied(*_case)


# ---- which object it is


@case
def two_names_of_one_object():
    p, q = Box(), Box()
    return layered(lambda s: s.p is s.q, {"p": p, "q": q}, {"p": q, "q": q})


@case
def two_names_of_one_module():
    p, q = nn.ReLU(), nn.ReLU()
    return layered(lambda s: s.p is s.q, {"p": p, "q": q}, {"p": q, "q": q})


@case
def two_names_of_one_weight():
    p, q = (nn.Parameter(torch.ones(4)) for _ in range(2))
    return layered(lambda s: s.p is s.q, {"p": p, "q": q}, {"p": q, "q": q}, {"p": p, "q": p})


@case
def tied_in_the_second():
    return layered(
        lambda s: s.p is s.q, {"p": Box(), "q": Box()}, dict.fromkeys("pq", Box()), {"p": 1, "q": 2}
    )


@case
def in_a_list_of_all():
    special = []
    fn, changes = layered(lambda s: s in special, {}, {}, {})
    special.append(inspect.getclosurevars(fn).nonlocals["layers"][0])
    return fn, changes


def _special(asks, make=lambda layer: layer):
    """The first layer is known by another way."""

    def case():
        known = Box(first=None)
        layers = stack(choosing(lambda s: asks(s, s.known)), *({"known": known} for _ in "123"))
        known.first = make(layers[0])
        return through(layers), numbers(*layers)

    return case


CASES["is_the_first"] = _special(lambda s, known: s is known.first)
CASES["is_the_first_by_operator"] = _special(lambda s, known: operator.is_(s, known.first))
CASES["in_a_tuple"] = _special(lambda s, known: s is known.first[0], lambda s: (s,))
CASES["in_tuples"] = _special(lambda s, known: s in known.first[0], lambda s: ((s,),))
CASES["equals_a_tuple"] = _special(lambda s, known: (s, 1) == known.first, lambda s: (s, 1))
CASES["in_a_list"] = _special(lambda s, known: s is known.first[0], lambda s: [s])
CASES["in_lists"] = _special(lambda s, known: [s] in known.first, lambda s: [[s]])
CASES["in_a_set"] = _special(lambda s, known: s in known.first, lambda s: {s})
CASES["in_sets_that_meet"] = _special(lambda s, known: {s} & known.first, lambda s: {s})
CASES["in_a_frozenset"] = _special(lambda s, known: s in known.first, lambda s: frozenset([s]))
CASES["in_a_deque"] = _special(lambda s, known: s in known.first, lambda s: collections.deque([s]))
CASES["key_of_a_dict"] = _special(lambda s, known: s in known.first, lambda s: {s: 1})
CASES["value_of_a_dict"] = _special(lambda s, known: s in known.first.values(), lambda s: {1: s})
CASES["in_a_weak_set"] = _special(lambda s, known: s in known.first, lambda s: weakref.WeakSet([s]))
CASES["in_a_weak_dict"] = _special(
    lambda s, known: s in known.first, lambda s: weakref.WeakKeyDictionary({s: 1})
)
CASES["value_of_a_weak_dict"] = _special(
    lambda s, known: known.first["k"] is s, lambda s: weakref.WeakValueDictionary({"k": s})
)
CASES["by_a_weak_reference"] = _special(lambda s, known: known.first() is s, weakref.ref)
CASES["by_its_number"] = _special(lambda s, known: id(s) == known.first, id)
CASES["by_a_dict_of_numbers"] = _special(
    lambda s, known: id(s) in known.first, lambda s: {id(s): 1}
)
CASES["by_its_hash"] = _special(lambda s, known: hash(s) in known.first, lambda s: [hash(s)])
CASES["by_a_list_index"] = _special(lambda s, known: known.first.count(s), lambda s: [s])
CASES["by_its_method"] = _special(lambda s, known: known.first.__self__ is s, lambda s: s.forward)
CASES["by_an_equal_method"] = _special(
    lambda s, known: known.first == s.forward, lambda s: s.forward
)
CASES["by_its_dict"] = _special(lambda s, known: vars(s) is known.first, vars)
CASES["by_a_partial"] = _special(
    lambda s, known: known.first.args[0] is s, lambda s: functools.partial(print, s)
)
CASES["by_a_simple_namespace"] = _special(lambda s, known: known.first.k is s, lambda s: NS(k=s))
CASES["by_a_box"] = _special(lambda s, known: known.first.k is s, lambda s: Box(k=s))
CASES["by_a_slot"] = _special(lambda s, known: known.first.x is s, Slotted)
CASES["by_a_named_tuple"] = _special(
    lambda s, known: known.first.x is s, lambda s: collections.namedtuple("P", "x")(s)
)
CASES["by_an_iterator"] = _special(lambda s, known: s in list(known.first), lambda s: (s,))


@case
def first_of_all_is_a_global_variable():
    space = {"__name__": "usr_first", "FIRST": None}
    exec(
        "def fn(x, layers):\n    y = 0 if FIRST is None else x\n    for l in layers:\n"
        "        y = y * l.a if l is None else step(l, y)\n    return y\n"
        "def step(l, y):\n    return y * l.a if l is FIRST else y * l.b\n",
        space,
    )
    boxes = [Box(a=2.0, b=3.0) for _ in range(3)]
    space["FIRST"] = boxes[0]
    return (lambda x: space["fn"](x, boxes)), numbers(*boxes)


@case
def first_of_all_is_in_the_class():
    fn, changes = layered(lambda s: s is type(s).first, {}, {}, {})
    layers = inspect.getclosurevars(fn).nonlocals["layers"]
    type(layers[0]).first = layers[0]
    return fn, changes


@case
def first_of_all_is_in_a_tuple_of_the_class():
    fn, changes = layered(lambda s: s is s.first[0], {}, {}, {})
    layers = inspect.getclosurevars(fn).nonlocals["layers"]
    type(layers[0]).first = (layers[0],)
    return fn, changes


@case
def first_of_all_is_a_default():
    def forward(self, x, first=Box()):
        return x * self.a if self is first else x * self.b

    layers = stack(forward, {}, {})
    forward.__defaults__ = (layers[0],)
    return through(layers), numbers(*layers)


@case
def parent_knows_the_first():
    layers = stack(choosing(lambda s: s.parent[0].first[0] is s), {}, {}, {})
    parent = Box(first=[layers[0]])
    for layer in layers:
        layer.parent = (parent,)
    return through(layers), numbers(*layers)


@case
def neighbour_is_the_same():
    layers = stack(choosing(lambda s: s.next[0].next[0] is s), {}, {}, {})
    for layer, other in zip(layers, (1, 0, 2), strict=True):
        layer.next = [layers[other]]
    return through(layers), numbers(*layers)


@case
def child_knows_another_parent():
    layers = stack(choosing(lambda s: s.child.parent[0] is s), *({"child": Box()} for _ in "123"))
    for layer, parent in zip(layers, (0, 0, 2), strict=True):
        layer.child.parent = [layers[parent]]
    return through(layers), numbers(*layers)


@case
def numbers_by_object():
    scales = {}
    layers = stack(lambda self, x: x * scales[self].a, {}, {}, {})
    for layer in layers:
        scales[layer] = Box(a=2.0)
    return through(layers), [to(scales[layer], "a", 5.0) for layer in layers]


@case
def numbers_by_number_of_object():
    scales = {}
    layers = stack(lambda self, x: x * scales[id(self)], {}, {}, {})
    for layer in layers:
        scales[id(layer)] = 2.0
    return through(layers), [lambda n=n: scales.update({id(layers[n]): 5.0}) for n in range(3)]


@case
def numbers_by_hash_of_object():
    scales = {}
    layers = stack(lambda self, x: x * scales[self.__hash__()], {}, {}, {})
    for layer in layers:
        scales[hash(layer)] = 2.0
    return through(layers), [lambda n=n: scales.update({hash(layers[n]): 5.0}) for n in range(3)]


@case
def numbers_by_text_of_object():
    scales = {}
    boxes = [Box(a=2.0) for _ in range(3)]
    layers = stack(lambda self, x: x * scales[repr(self.box)], *({"box": box} for box in boxes))
    for layer in layers:
        scales[repr(layer.box)] = 2.0
    return through(layers), [lambda n=n: scales.update({repr(boxes[n]): 5.0}) for n in range(3)]


@case
def numbers_by_weight():
    scales = {}
    layers = stack(
        lambda self, x: x * scales[self.w].a, *({"w": nn.Parameter(torch.ones(2))} for _ in "123")
    )
    for layer in layers:
        scales[layer.w] = Box(a=2.0)
    return through(layers), [to(scales[layer.w], "a", 5.0) for layer in layers]


@case
def numbers_by_weak_object():
    scales = weakref.WeakKeyDictionary()
    layers = stack(lambda self, x: x * scales[self].a, {}, {}, {})
    for layer in layers:
        scales[layer] = Box(a=2.0)
    return through(layers), [to(scales[layer], "a", 5.0) for layer in layers]


@case
def numbers_by_name():
    scales = {"x": Box(a=2.0), "y": Box(a=2.0)}
    layers = stack(
        lambda self, x: x * scales[self.name].a, {"name": "x"}, {"name": "y"}, {"name": "x"}
    )
    return through(layers), [
        to(scales["x"], "a", 5.0),
        to(scales["y"], "a", 5.0),
        to(layers[2], "name", "y"),
    ]


@case
def numbers_by_position():
    scales = [2.0, 2.0, 2.0]
    layers = stack(lambda self, x: x * scales[self.n], {"n": 0}, {"n": 1}, {"n": -1})
    return through(layers), [lambda n=n: scales.__setitem__(n, 5.0) for n in range(3)]


@case
def kept_by_a_cache():
    def forward(self, x):
        return x * self.scale()

    layers = stack(forward, {}, {}, {}, scale=functools.lru_cache(lambda self: self.a))
    cls = type(layers[0])

    def again(n):
        layers[n].a = 5.0
        cls.scale.cache_clear()

    return through(layers), [functools.partial(again, n) for n in range(3)]


@case
def kept_by_a_cache_of_the_first():
    fn, changes = kept_by_a_cache()
    layers = inspect.getclosurevars(fn).nonlocals["layers"]
    layers[0].scale()
    return fn, changes


@case
def kept_by_a_cached_property():
    scale = functools.cached_property(lambda self: Box(n=self.a))
    scale.__set_name__(None, "scale")
    layers = stack(lambda self, x: x * self.scale.n, {}, {}, {}, scale=scale)
    layers[0].scale  # noqa: B018
    return through(layers), [
        to(layers[2], "a", 5.0),
        lambda: delattr(layers[2], "scale"),
        lambda: setattr(layers[1].scale, "n", 7.0),
    ]


# ---- weights


def _weights(asks, *made):
    return layered(
        asks, *({"w": nn.Parameter(one) if isinstance(one, torch.Tensor) else one} for one in made)
    )


@case
def weight_gets_an_attribute():
    fn, changes = _weights(lambda s: hasattr(s.w, "tag"), *(torch.ones(2) for _ in "123"))
    layers = inspect.getclosurevars(fn).nonlocals["layers"]
    return fn, [
        lambda: setattr(layers[1].w, "tag", 1),
        lambda: setattr(layers[2].w, "tag", 1),
        *changes,
    ]


@case
def weight_has_an_attribute():
    fn, changes = _weights(lambda s: getattr(s.w, "tag", 0), *(torch.ones(2) for _ in "123"))
    layers = inspect.getclosurevars(fn).nonlocals["layers"]
    layers[1].w.tag = 1
    return fn, [*changes, lambda: setattr(layers[1].w, "tag", 0)]


@case
def weight_has_a_gradient():
    fn, changes = _weights(lambda s: s.w.grad is None, *(torch.ones(2) for _ in "123"))
    layers = inspect.getclosurevars(fn).nonlocals["layers"]
    layers[1].w.grad = torch.ones(2)
    return fn, [*changes, lambda: setattr(layers[2].w, "grad", torch.ones(2))]


@case
def weight_is_frozen():
    fn, changes = _weights(lambda s: s.w.requires_grad, *(torch.ones(2) for _ in "123"))
    layers = inspect.getclosurevars(fn).nonlocals["layers"]
    layers[1].w.requires_grad_(False)
    return fn, [*changes, lambda: layers[2].w.requires_grad_(False)]


@case
def weight_is_replaced():
    layers = stack(lambda self, x: x * self.w, *({"w": nn.Parameter(torch.ones(4))} for _ in "123"))
    return through(layers), [
        to(layer, "w", nn.Parameter(torch.full((4,), 3.0))) for layer in layers
    ]


@case
def weight_gets_other_data():
    layers = stack(
        lambda self, x: x * self.w.sum(), *({"w": nn.Parameter(torch.ones(4))} for _ in "123")
    )
    return through(layers), [
        lambda w=layer.w: setattr(w, "data", torch.ones(5)) for layer in layers
    ]


@case
def weight_in_a_registry_is_replaced():
    layers = stack(lambda self, x: x * self.w, *({"w": nn.Parameter(torch.ones(4))} for _ in "123"))
    return through(layers), [
        lambda own=layer._parameters: own.update(w=nn.Parameter(torch.full((4,), 3.0)))
        for layer in layers
    ]


@case
def weights_are_views_of_one():
    whole = torch.ones(2, 4)
    layers = stack(
        choosing(lambda s: s.w._base is whole),
        {"w": whole[0]},
        {"w": torch.ones(4)},
        {"w": whole[1]},
    )
    return through(layers), numbers(*layers)


@case
def weight_is_set_to_another_in_the_middle():
    w = torch.ones(4)
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if w.requires_grad else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        w.requires_grad_(True)
        y = y + go(x)
        w.requires_grad_(False)
        return y

    return fn, numbers(box)


@case
def weight_of_a_box_changes_in_the_middle():
    box = Box(a=2.0, b=3.0, w=torch.ones(4))

    def go(box, x):
        return x * box.a if box.w.dim() == 2 else x * box.b

    def fn(x):
        y = go(box, x)
        box.w.unsqueeze_(0)
        y = y + go(box, x)
        box.w.squeeze_(0)
        return y

    return fn, numbers(box)


@case
def input_changes_its_shape_in_the_middle():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if x.dim() == 3 else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        x.unsqueeze_(0)
        y = y + go(x)[0]
        x.squeeze_(0)
        return y

    return fn, numbers(box)


# ---- modules and classes


@case
def later_layer_gets_a_forward_of_its_own():
    layers = stack(choosing(lambda s: True), {}, {}, {})
    return through(layers), [
        to(layers[2], "forward", lambda x: x * 9),
        to(layers[1], "forward", lambda x: x * 7),
    ]


@case
def later_layer_has_a_forward_of_its_own():
    layers = stack(choosing(lambda s: True), {}, {}, {})
    own = Box(a=3.0)
    layers[1].forward = lambda x: x * own.a
    return through(layers), [to(own, "a", 5.0), *numbers(*layers)]


@case
def later_layer_gets_another_class():
    layers = stack(choosing(lambda s: True), {}, {}, {})
    other = type("Other", (type(layers[0]),), {"forward": lambda self, x: x * self.b})
    return through(layers), [
        to(layers[1], "__class__", other),
        to(layers[2], "__class__", other),
        *numbers(*layers),
    ]


@case
def layers_of_a_subclass():
    layers = stack(choosing(lambda s: s.which), {}, {}, which=True)
    other = type("Other", (type(layers[0]),), {"which": property(lambda self: self.c)})
    more = other()
    more.a, more.b, more.c = 2.0, 3.0, False
    return through([*layers, more]), [*numbers(*layers, more), to(more, "c", True)]


@case
def class_is_patched():
    layers = stack(choosing(lambda s: s.which()), {}, {}, which=lambda self: True)
    return through(layers), [to(type(layers[0]), "which", lambda self: False), *numbers(*layers)]


@case
def method_of_one_is_patched():
    layers = stack(choosing(lambda s: s.which()), {}, {}, {}, which=lambda self: True)
    return through(layers), [
        to(layers[1], "which", lambda: False),
        to(layers[2], "which", lambda: False),
        *numbers(*layers),
    ]


@case
def attribute_hides_that_of_the_class():
    layers = stack(choosing(lambda s: s.which), {}, {}, {}, which=True)
    return through(layers), [
        to(layers[1], "which", False),
        to(layers[2], "which", False),
        *numbers(*layers),
    ]


@case
def attribute_hides_a_child():
    layers = stack(lambda self, x: self.act(x), *({"act": nn.ReLU()} for _ in "123"))
    return through(layers), [
        lambda n=n: layers[n].__dict__.__setitem__("act", torch.neg) for n in (2, 1, 0)
    ]


@case
def hook_of_a_later_layer():
    layers = stack(choosing(lambda s: True), {}, {}, {})
    return through(layers), [
        lambda: layers[2].register_forward_hook(lambda m, i, o: o + 1),
        lambda: layers[1].register_forward_pre_hook(lambda m, i: (i[0] + 1,)),
        lambda: layers[0].register_forward_hook(lambda m, i, o: o + 2),
    ]


@case
def hook_of_a_child_of_a_later_layer():
    layers = stack(lambda self, x: self.act(x), *({"act": nn.ReLU()} for _ in "123"))
    return through(layers), [
        lambda: layers[2].act.register_forward_hook(lambda m, i, o: o + 1),
        lambda: layers[1].act.register_forward_pre_hook(lambda m, i: (i[0] + 1,)),
    ]


@case
def hook_of_one_layer_reads():
    layers = stack(choosing(lambda s: True), {}, {}, {})
    own = Box(a=1.0)
    layers[1].register_forward_hook(lambda m, i, o: o * own.a)
    return through(layers), [to(own, "a", 5.0), *numbers(*layers)]


@case
def hooks_of_all_layers_read():
    layers = stack(choosing(lambda s: True), {}, {}, {})
    boxes = [Box(a=1.0) for _ in layers]
    for layer, box in zip(layers, boxes, strict=True):
        layer.register_forward_hook(functools.partial(lambda box, m, i, o: o * box.a, box))
    return through(layers), [to(box, "a", 5.0) for box in boxes]


@case
def hook_in_the_middle():
    (layer,) = stack(choosing(lambda s: True), {})
    box = Box(a=3.0)

    def fn(x):
        y = layer(x)
        handle = layer.register_forward_hook(lambda m, i, o: o * box.a)
        y = y + layer(x)
        handle.remove()
        return y + layer(x)

    return fn, [to(box, "a", 5.0), *numbers(layer)]


@case
def hook_of_all_modules_in_the_middle():
    (layer,) = stack(choosing(lambda s: True), {})
    box = Box(a=3.0)

    def fn(x):
        y = layer(x)
        handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o * box.a)
        try:
            y = y + layer(x)
        finally:
            handle.remove()
        return y + layer(x)

    return fn, [to(box, "a", 5.0), *numbers(layer)]


@case
def swapped_weights():
    layer = nn.Linear(4, 4)
    scale = Box(a=2.0)
    others = [{"weight": torch.eye(4), "bias": torch.ones(4)} for _ in range(2)]

    def fn(x):
        y = layer(x)
        for other in others:
            y = y + torch.func.functional_call(layer, other, (x * scale.a,))
        return y + layer(x)

    return fn, [
        to(scale, "a", 5.0),
        lambda: others[1].update(weight=torch.eye(4) * 2),
        to(layer, "bias", nn.Parameter(torch.zeros(4))),
    ]


@case
def parametrized_layer():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = 2.0

        def forward(self, w):
            return w * self.a

    layers = [nn.Linear(4, 4) for _ in range(3)]
    scales = [Scale() for _ in layers]
    for layer, scale in zip(layers, scales, strict=True):
        nn.utils.parametrize.register_parametrization(layer, "weight", scale)
    return through(layers), [to(scale, "a", 0.5) for scale in scales]


@case
def registry_in_the_middle():
    (layer,) = stack(lambda self, x: self.act(x), {"act": nn.ReLU()})
    (other,) = stack(lambda self, x: x * self.a, {})

    def fn(x):
        y = layer(x)
        kept = layer._modules["act"]
        layer._modules["act"] = other
        y = y + layer(x)
        layer._modules["act"] = kept
        return y + layer(x)

    return fn, numbers(other)


@case
def sequence_of_sequences():
    layers = [
        nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Dropout(0.5))).eval()
        for _ in "123"
    ]
    return through(layers), [
        lambda: layers[2].insert(0, nn.ReLU()),
        lambda: layers[1][1].append(nn.Linear(4, 4)),
        lambda: layers[1][1].__setitem__(0, nn.GELU()),
        lambda: layers[0].__delitem__(1),
    ]


@case
def norms_of_layers():
    layers = [nn.LayerNorm(4) for _ in "123"]
    return through(layers), [
        to(layers[1], "eps", 0.5),
        to(layers[2], "normalized_shape", (4,)),
        to(layers[2], "weight", None),
    ]


@case
def batch_norms():
    layers = [nn.BatchNorm1d(4).eval() for _ in "123"]
    return through(layers), [lambda: layers[1].running_mean.fill_(1.0), to(layers[2], "eps", 1.0)]


# ---- frames that run again


class Mode(TorchFunctionMode):
    def __init__(self, scale):
        self.scale = scale

    def __torch_function__(self, func, kinds, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        return found * self.scale.a if func is torch.sin else found


@case
def modes_of_functions():
    scales = [Box(a=2.0, b=0), Box(a=2.0, b=0)]
    modes = [Mode(scale) for scale in scales]

    def go(x):
        return torch.sin(x)

    def fn(x):
        go(x), go(x)
        for mode in modes:
            with mode:
                x = go(x)
        return x

    return fn, [to(scale, "a", 5.0) for scale in scales]


@case
def modes_of_functions_made_in_the_call():
    scales = [Box(a=2.0), Box(a=2.0)]

    def go(x):
        return torch.sin(x)

    def fn(x):
        go(x), go(x)
        for scale in scales:
            with Mode(scale):
                x = go(x)
        return x

    return fn, [to(scale, "a", 5.0) for scale in scales]


class Seen(TorchDispatchMode):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        return found * self.scale.a if func is torch.ops.aten.sin.default else found


@case
def modes_of_operators():
    scales = [Box(a=2.0), Box(a=2.0)]
    modes = [Seen(scale) for scale in scales]

    def go(x):
        return torch.sin(x)

    def fn(x):
        go(x), go(x)
        for mode in modes:
            with mode:
                x = go(x)
        return x

    return fn, [to(scale, "a", 5.0) for scale in scales]


@case
def settings_of_torch():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if torch.get_num_threads() == 3 else x * box.b

    def fn(x):
        go(x), go(x)
        y, n = go(x), torch.get_num_threads()
        torch.set_num_threads(3)
        y = y + go(x)
        torch.set_num_threads(n)
        return y

    return fn, numbers(box)


@case
def settings_of_backends():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if torch.are_deterministic_algorithms_enabled() else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        torch.use_deterministic_algorithms(True)
        y = y + go(x)
        torch.use_deterministic_algorithms(False)
        return y

    return fn, numbers(box)


@case
def default_dtype():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if torch.get_default_dtype() is torch.float64 else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        torch.set_default_dtype(torch.float64)
        y = y + go(x)
        torch.set_default_dtype(torch.float32)
        return y

    return fn, numbers(box)


@case
def dtype_of_autocast():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if torch.get_autocast_dtype("cpu") is torch.float16 else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                y = y + go(x)
        return y

    return fn, numbers(box)


@case
def autocast_is_on():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if torch.is_autocast_enabled("cpu") else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        with torch.autocast("cpu"):
            return y + go(x)

    return fn, numbers(box)


@case
def grad_mode():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if torch.is_grad_enabled() else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        with torch.enable_grad():
            y = y + go(x)
        return y.detach()

    return fn, numbers(box)


@case
def inference_mode():
    box = Box(a=2.0, b=3.0)

    def go(n):
        return box.a if torch.is_inference_mode_enabled() else box.b

    def fn(x):
        go(1), go(1)
        n = go(1)
        with torch.inference_mode():
            n += go(1)
        return x * n

    return fn, numbers(box)


@case
def default_device():
    box = Box(a=2.0, b=3.0)

    def go(n):
        return box.a if torch.zeros(1).device.type == "meta" else box.b

    def fn(x):
        go(1), go(1)
        n = go(1)
        with torch.device("meta"):
            n += go(1)
        with torch.device("cpu"):
            n += go(1)
        return x * n

    return fn, numbers(box)


VARIABLE = contextvars.ContextVar("VARIABLE", default=0)


@case
def context_variable():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if VARIABLE.get() else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        token = VARIABLE.set(1)
        y = y + go(x)
        VARIABLE.reset(token)
        return y + go(x)

    return fn, numbers(box)


@case
def decimal_context():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if len(str(decimal.Decimal(1) / 3)) > 9 else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        with decimal.localcontext() as context:
            context.prec = 4
            y = y + go(x)
        return y

    return fn, numbers(box)


@case
def variable_of_a_thread():
    local, box = threading.local(), Box(a=2.0, b=3.0)
    local.on = False

    def go(x):
        return x * box.a if local.on else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        local.on = True
        y = y + go(x)
        local.on = False
        return y

    return fn, numbers(box)


def _switched(on, off, source="FLAG"):
    """A flag is on in the middle of the run, and off again at its end."""

    def make():
        space = {"__name__": "usr_switched", "FLAG": 0, "box": Box(a=2.0, b=3.0), "sys": sys}
        space["module"] = types.ModuleType("usr_module")
        space["module"].__dict__.update(FLAG=0)
        space["held"], space["cls"] = {"FLAG": 0}, type("Cls", (), {"FLAG": 0})
        space["item"], space["gc"] = space["cls"](), gc
        exec(
            f"def peek(): return {source}\n"
            f"def go(x): return x * box.a if {source} else x * box.b\n"
            "def fn(x):\n"
            f"    peek()\n    y = go(x)\n    y = y + go(x)\n    {on}\n"
            f"    y = y + go(x)\n    {off}\n    return y + go(x)\n",
            space,
        )
        return space["fn"], numbers(space["box"])

    return make


for _name, _case in {
    "globals_item": ("globals()['FLAG'] = 1", "globals()['FLAG'] = 0"),
    "globals_update": ("globals().update(FLAG=1)", "globals().update(FLAG=0)"),
    "exec_in_globals": ("exec('FLAG = 1', globals())", "exec('FLAG = 0', globals())"),
    "dict_setitem": ("dict.__setitem__(globals(), 'FLAG', 1)", "dict.update(globals(), FLAG=0)"),
    "module": ("module.FLAG = 1", "module.FLAG = 0", "module.FLAG"),
    "module_setattr": ("setattr(module, 'FLAG', 1)", "setattr(module, 'FLAG', 0)", "module.FLAG"),
    "module_in_c": (
        "module.__setattr__('FLAG', 1)",
        "module.__setattr__('FLAG', 0)",
        "module.FLAG",
    ),
    "module_dict": ("vars(module)['FLAG'] = 1", "vars(module).update(FLAG=0)", "module.FLAG"),
    "class": ("cls.FLAG = 1", "cls.FLAG = 0", "cls.FLAG"),
    "class_of_item": ("cls.FLAG = 1", "cls.FLAG = 0", "item.FLAG"),
    "class_in_c": (
        "type.__setattr__(cls, 'FLAG', 1)",
        "type.__setattr__(cls, 'FLAG', 0)",
        "item.FLAG",
    ),
    "item": ("item.FLAG = 1", "del item.FLAG", "item.FLAG"),
    "item_dict": ("vars(item).update(FLAG=1)", "vars(item).clear()", "item.FLAG"),
    "dict": ("held['FLAG'] = 1", "held['FLAG'] = 0", "held['FLAG']"),
    "dict_in_c": ("dict.__setitem__(held, 'FLAG', 1)", "dict.update(held, FLAG=0)", "held['FLAG']"),
    "dict_get": ("held.update(MORE=1)", "held.pop('MORE')", "held.get('MORE')"),
    "dict_length": ("held.setdefault('MORE', 1)", "del held['MORE']", "len(held) > 1"),
    "dict_union": ("h = held; h |= {'MORE': 1}", "held.pop('MORE')", "len(held) > 1"),
    "attribute_of_function": ("peek.on = 1", "del peek.on", "hasattr(peek, 'on')"),
    "default_of_function": (
        "peek.__defaults__ = (1,)",
        "peek.__defaults__ = None",
        "peek.__defaults__",
    ),
    "name_of_function": ("peek.__name__ = 'p'", "peek.__name__ = 'peek'", "peek.__name__ == 'p'"),
    "modules": (
        "sys.modules['usr_x'] = module",
        "del sys.modules['usr_x']",
        "'usr_x' in sys.modules",
    ),
    "garbage": ("gc.disable()", "gc.enable()", "gc.isenabled()"),
    "recursion": (
        "sys.setrecursionlimit(3210)",
        "sys.setrecursionlimit(1000)",
        "sys.getrecursionlimit() == 3210",
    ),
}.items():
    CASES[f"switched_{_name}"] = _switched(*_case)


@case
def switched_nonlocal():
    box, flag = Box(a=2.0, b=3.0), False

    def go(x):
        return x * box.a if flag else x * box.b

    def fn(x):
        nonlocal flag
        go(x), go(x)
        y = go(x)
        flag = True
        y = y + go(x)
        flag = False
        return y + go(x)

    return fn, numbers(box)


@case
def switched_cell_contents():
    box, flag = Box(a=2.0, b=3.0), False

    def go(x):
        return x * box.a if flag else x * box.b

    cell = go.__closure__[go.__code__.co_freevars.index("flag")]

    def fn(x):
        go(x), go(x)
        y = go(x)
        cell.cell_contents = True
        y = y + go(x)
        cell.cell_contents = False
        return y + go(x)

    return fn, numbers(box)


def _made(asks, *items):
    """One function looks at something that each call makes, and that differs."""

    def make():
        box = Box(a=2.0, b=3.0)

        def go(x, item):
            return x * box.a if asks(item) else x * box.b

        def fn(x):
            for item in (items[0], items[0], *items):
                x = go(x, item(x))
            return x

        return fn, numbers(box)

    return make


def _written(x):
    found = x.clone()
    return found.add_(0)


def _with(item, **own):
    vars(item).update(own)
    return item


def _named_function(name):
    def inner():
        return 1

    inner.__name__ = name
    return inner


def _appended(items, item):
    items.append(item)
    return items


for _name, _case in {
    "version": (lambda t: t._version > 0, lambda x: x.clone(), _written),
    "view": (
        lambda t: t._is_view(),
        lambda x: x.clone(),
        lambda x: x.clone().view(-1).view(x.shape),
    ),
    "base": (lambda t: t._base is not None, lambda x: x.clone(), lambda x: x.clone()[:]),
    "storage": (
        lambda t: t.untyped_storage().nbytes() > 40,
        lambda x: x.clone(),
        lambda x: torch.cat([x, x])[: len(x)],
    ),
    "offset": (
        lambda t: t.storage_offset() > 0,
        lambda x: x.clone(),
        lambda x: torch.cat([x, x])[len(x) :],
    ),
    "strides": (lambda t: t.stride(0) == 1, lambda x: x.clone(), lambda x: x.t().clone().t()),
    "contiguous": (lambda t: t.is_contiguous(), lambda x: x.clone(), lambda x: x.t().clone().t()),
    "dtype_of_tensor": (
        lambda t: t.dtype is torch.float64,
        lambda x: x.clone(),
        lambda x: x.double(),
    ),
    "shape": (lambda t: t.shape[0] == 1, lambda x: x.clone(), lambda x: x[:1]),
    "leaf": (lambda t: t.is_leaf, lambda x: x.clone(), lambda x: x.clone().requires_grad_()),
    "attribute_of_tensor": (
        lambda t: hasattr(t, "tag"),
        lambda x: x.clone(),
        lambda x: _with(x.clone(), tag=1),
    ),
    "conjugate": (
        lambda t: t.is_conj(),
        lambda x: x.to(torch.complex64),
        lambda x: x.to(torch.complex64).conj(),
    ),
    "data": (
        lambda t: t.sum().item() > 5,
        lambda x: torch.zeros(2),
        lambda x: torch.ones(9)[:2] * 9,
    ),
    "list": (lambda i: i[0] == 1, lambda x: [2], lambda x: [1]),
    "tensor_in_list": (lambda i: i[0].dim() == 1, lambda x: [x.clone()], lambda x: [x[0]]),
    "same_in_list": (
        lambda i: i[0] is i[1],
        lambda x: [x.clone(), x.clone()],
        lambda x: [x.clone()] * 2,
    ),
    "longer_list": (lambda i: len(i) == 1, lambda x: [2, 3], lambda x: [1]),
    "dict": (lambda i: "k" in i, lambda x: {"l": 1}, lambda x: {"k": 1}),
    "dict_order": (
        lambda i: next(iter(i)) == "k",
        lambda x: {"l": 1, "k": 1},
        lambda x: {"k": 1, "l": 1},
    ),
    "ordered_dict": (
        lambda i: next(iter(i)) == "k",
        lambda x: collections.OrderedDict(l=1, k=1),
        lambda x: collections.OrderedDict(k=1, l=1),
    ),
    "box": (lambda i: i.n == 1, lambda x: Box(n=2), lambda x: Box(n=1)),
    "box_without": (lambda i: hasattr(i, "n"), lambda x: Box(m=1), lambda x: Box(n=1)),
    "box_class": (lambda i: type(i) is Data, lambda x: Box(x=1), lambda x: Data(x=1)),
    "slots": (lambda i: i.x == 1, lambda x: Slotted(2), lambda x: Slotted(1)),
    "data_class": (lambda i: i.x == 1, lambda x: Data(2), lambda x: Data(1)),
    "odd_truth": (bool, lambda x: Odd(2), lambda x: Odd(1)),
    "odd_length": (lambda i: len(i) == 1, lambda x: Odd(2), lambda x: Odd(1)),
    "odd_attribute": (lambda i: i.any == 1, lambda x: Odd(2), lambda x: Odd(1)),
    "deque": (
        lambda i: i[0] == 1,
        lambda x: collections.deque([2]),
        lambda x: collections.deque([1]),
    ),
    "set": (lambda i: 1 in i, lambda x: {2}, lambda x: {1}),
    "iterator": (lambda i: next(i) == 1, lambda x: iter([2]), lambda x: iter([1])),
    "generator": (lambda i: next(i) == 1, lambda x: (n for n in [2]), lambda x: (n for n in [1])),
    "partial": (
        lambda i: i() == 1,
        lambda x: functools.partial(max, 2, 0),
        lambda x: functools.partial(max, 1, 0),
    ),
    "lambda": (
        lambda i: i() == 1,
        lambda x: (lambda n: lambda: n)(2),
        lambda x: (lambda n: lambda: n)(1),
    ),
    "lambda_default": (lambda i: i() == 1, lambda x: lambda n=2: n, lambda x: lambda n=1: n),
    "lambda_of_text": (
        lambda i: i() == 1,
        lambda x: eval("lambda: 2"),
        lambda x: eval("lambda: 1"),
    ),
    "name_of_function": (
        lambda i: i.__name__ == "one",
        lambda x: _named_function("two"),
        lambda x: _named_function("one"),
    ),
    "qualified_name": (
        lambda i: i.__qualname__ == "one",
        lambda x: _named_function("two"),
        lambda x: _qualified(_named_function("two"), "one"),
    ),
    "doc_of_function": (
        lambda i: i.__doc__ == "one",
        lambda x: _named_function("two"),
        lambda x: _documented(_named_function("two"), "one"),
    ),
    "attribute_of_function": (
        lambda i: hasattr(i, "on"),
        lambda x: _named_function("f"),
        lambda x: _with(_named_function("f"), on=1),
    ),
    "method": (lambda i: i() == 1, lambda x: Odd(2).__call__, lambda x: Odd(1).__call__),
    "method_in_c": (lambda i: i(0) == 1, lambda x: [2].__getitem__, lambda x: [1].__getitem__),
    "class": (
        lambda i: i.n == 1,
        lambda x: type("A", (), {"n": 2}),
        lambda x: type("A", (), {"n": 1}),
    ),
    "instance_of_class": (
        lambda i: i.n == 1,
        lambda x: type("A", (), {"n": 2})(),
        lambda x: type("A", (), {"n": 1})(),
    ),
    "module": (
        lambda i: i.n == 1,
        lambda x: _with(nn.ReLU(), n=2),
        lambda x: _with(nn.ReLU(), n=1),
    ),
    "exception": (lambda i: i.args == (1,), lambda x: ValueError(2), lambda x: ValueError(1)),
    "tuple": (lambda i: i[1] == 1, lambda x: (x, 2), lambda x: (x, 1)),
    "size": (lambda i: i[0] == 1, lambda x: x.shape, lambda x: x[:1].shape),
    "int_for_bool": (lambda i: i is True, lambda x: 1, lambda x: True),
    "signs_of_zero": (lambda i: str(i) == "-0.0", lambda x: 0.0, lambda x: -0.0),
    "nested": (
        lambda i: i.a[0]["k"].n == 1,
        lambda x: Box(a=[{"k": Box(n=2)}]),
        lambda x: Box(a=[{"k": Box(n=1)}]),
    ),
    "cycle": (
        lambda i: i[0][1] == 1,
        lambda x: (lambda i: _appended(_appended(i, i), 2))([]),
        lambda x: (lambda i: _appended(_appended(i, i), 1))([]),
    ),
    "counter": (
        lambda i: i["k"] == 1,
        lambda x: collections.Counter(k=2),
        lambda x: collections.Counter(k=1),
    ),
    "mode": (
        lambda i: VARIABLE in i,
        lambda x: {},
        lambda x: contextvars.copy_context() and {VARIABLE: 1},
    ),
}.items():
    CASES[f"made_{_name}"] = _made(*_case)


def _qualified(function, name):
    function.__qualname__ = name
    return function


def _documented(function, text):
    function.__doc__ = text
    return function


@case
def object_changes_between():
    box = Box(a=2.0, b=3.0)

    def go(x, item):
        return x * box.a if item.n > 1 else x * box.b

    def fn(x):
        item = Box(n=0)
        for _ in range(4):
            x = go(x, item)
            item.n += 1
        return x

    return fn, numbers(box)


@case
def by_the_number_of_the_iteration():
    scales = [Box(a=1.5) for _ in range(4)]

    def go(x, n):
        return x * scales[n].a

    def fn(x):
        for n in range(4):
            x = go(x, n)
        return x

    return fn, [to(scale, "a", 5.0) for scale in scales]


@case
def by_an_iterator():
    scales = [Box(a=1.5) for _ in range(4)]

    def go(x, scale):
        return x * next(scale).a

    def fn(x):
        found = iter(scales)
        for _ in range(4):
            x = go(x, found)
        return x

    return fn, [to(scale, "a", 5.0) for scale in scales]


@case
def by_a_counter_around():
    scales = [Box(a=1.5) for _ in range(4)]

    def fn(x):
        n = 0

        def go(x):
            nonlocal n
            n += 1
            return x * scales[n - 1].a

        for _ in range(4):
            x = go(x)
        return x

    return fn, [to(scale, "a", 5.0) for scale in scales]


@case
def by_a_list_that_is_emptied():
    scales = [Box(a=1.5) for _ in range(4)]

    def go(x, left):
        return x * left.pop().a

    def fn(x):
        left = list(scales)
        while left:
            x = go(x, left)
        return x

    return fn, [to(scale, "a", 5.0) for scale in scales]


@case
def by_recursion():
    scales = [Box(a=1.5) for _ in range(4)]

    def go(x, n):
        return go(x * scales[n].a, n - 1) if n >= 0 else x

    return (lambda x: go(go(x, 3), 3)), [to(scale, "a", 5.0) for scale in scales]


@case
def by_generators():
    scales = [Box(a=1.5) for _ in range(4)]

    def steps(found):
        for scale in found:
            yield scale.a

    def go(x, found):
        for a in steps(found):
            x = x * a
        return x

    return (lambda x: go(go(x, scales[:2]), scales[2:])), [to(s, "a", 5.0) for s in scales]


@case
def by_keyword_order():
    box = Box(a=2.0, b=3.0)

    def go(x, **flags):
        return x * box.a if next(iter(flags)) == "p" else x * box.b

    return (lambda x: go(go(x, q=1, p=1), p=1, q=1)), numbers(box)


@case
def by_the_frame_that_calls():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if sys._getframe(1).f_code.co_name == "second" else x * box.b

    def first(x):
        return go(x)

    def second(x):
        return go(x)

    return (lambda x: second(first(first(x)))), numbers(box)


@case
def by_the_variables_of_the_frame_that_calls():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if inspect.currentframe().f_back.f_locals["n"] == 2 else x * box.b

    def fn(x):
        for n in range(3):  # noqa: B007  the other one finds it here
            x = go(x)
        return x

    return fn, numbers(box)


@case
def by_the_stack():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if inspect.stack()[1].function == "second" else x * box.b

    def first(x):
        return go(x)

    def second(x):
        return go(x)

    return (lambda x: second(first(first(x)))), numbers(box)


@case
def by_the_exception_that_is_handled():
    box = Box(a=2.0, b=3.0)

    def go(x):
        return x * box.a if sys.exc_info()[0] else x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        try:
            raise KeyError
        except KeyError:
            return y + go(x)

    return fn, numbers(box)


@case
def by_what_is_raised_again():
    box = Box(a=2.0, b=3.0)

    def go(x):
        try:
            raise
        except KeyError:
            return x * box.a
        except RuntimeError:
            return x * box.b

    def fn(x):
        go(x), go(x)
        y = go(x)
        try:
            raise KeyError
        except KeyError:
            return y + go(x)

    return fn, numbers(box)


@case
def raised_in_a_later_layer():
    def forward(self, x):
        try:
            return x * self.table["k"]
        except KeyError:
            return x * self.b

    layers = stack(forward, {"table": {}}, {"table": {}}, {"table": {"k": 2.0}})
    return through(layers), [
        *numbers(*layers),
        lambda: layers[1].table.update(k=7.0),
        lambda: layers[2].table.clear(),
    ]


@case
def raised_through_layers():
    def forward(self, x):
        if self.flag:
            raise KeyError(self.a)
        return x * self.b

    layers = stack(forward, {"flag": True}, {"flag": True}, {"flag": False})

    def fn(x):
        for layer in layers:
            try:
                x = layer(x)
            except KeyError as error:
                x = x * error.args[0]
        return x

    return fn, [*numbers(*layers), to(layers[1], "flag", False)]


@case
def left_by_return_or_break():
    def forward(self, x):
        for child in self.children_:
            x = x * child.a
            if child.last:
                break
        return x

    def chain(*lasts):
        return {"children_": [Box(a=2.0, last=last) for last in lasts]}

    layers = stack(
        forward, chain(False, True, False), chain(False, True, False), chain(False, False, True)
    )
    boxes = [box for layer in layers for box in layer.children_]
    return through(layers), [*(to(box, "a", 5.0) for box in boxes), to(boxes[4], "last", False)]


@case
def matched_by_class():
    def forward(self, x):
        match self.item:
            case Data(x=1):
                return x * self.a
            case Data():
                return x * self.b
        return x

    layers = stack(forward, {"item": Data(1)}, {"item": Data(1)}, {"item": Data(2)})
    return through(layers), [*numbers(*layers), lambda: setattr(layers[1].item, "x", 2)]


@case
def finalizer_in_the_second():
    log, scale = Box(n=1.0), Box(a=3.0)

    class Ends:
        def __del__(self):
            log.n = scale.a

    def go(item, x):
        del item
        return x + 1

    def fn(x):
        kept = Ends()
        y = go(kept, x)
        y = go(Ends(), y)
        y = y * log.n
        kept = None
        log.n = 1.0
        return y

    return fn, [to(scale, "a", 5.0)]


@case
def finalizer_of_a_weak_reference():
    log, scale = Box(n=1.0), Box(a=3.0)

    def ends():
        log.n = scale.a

    def go(item, x):
        del item
        return x + 1

    def fn(x):
        kept = Box()
        weakref.finalize(kept, ends).atexit = False
        y = go(kept, x)
        other = Box()
        weakref.finalize(other, ends).atexit = False
        held = [other]
        other = None
        y = go(held.pop(), y)
        y = y * log.n
        kept = None
        log.n = 1.0
        return y

    return fn, [to(scale, "a", 5.0)]


@case
def collected_in_the_second():
    log, scale = Box(n=1.0), Box(a=3.0)

    class Ends:
        def __del__(self):
            log.n = scale.a

    def go(x):
        gc.collect()
        return x + 1

    def fn(x):
        go(x), go(x)
        y = go(x)
        cycle = Ends()
        cycle.me = cycle
        del cycle
        y = go(y) * log.n
        log.n = 1.0
        return y

    return fn, [to(scale, "a", 5.0)]


# ---- functions


def _function(code, space, *defaults):
    return types.FunctionType(code, space, "other", defaults)


@case
def default_of_another_function_with_this_code():
    space = {"__name__": "usr_functions"}
    exec("def one(x, s=2.0): return x * s\ndef fn(x): return other(one(x))", space)
    other = space["other"] = _function(space["one"].__code__, space, 2.0)
    return space["fn"], [
        to(other, "__defaults__", (5.0,)),
        to(space["one"], "__defaults__", (7.0,)),
        to(other, "__code__", (lambda x, s: x * 9).__code__),
    ]


@case
def code_of_another_function_with_this_code():
    def one(x):
        return x * 2

    def two(x):
        return x * 3

    functions = [one, types.FunctionType(one.__code__, one.__globals__)]

    def fn(x):
        for function in functions:
            x = function(x)
        return x

    return fn, [to(functions[1], "__code__", two.__code__), to(one, "__code__", two.__code__)]


@case
def methods_with_one_code():
    def go(self, x, s=2.0):
        return x * s

    one = type("One", (), {"go": go})
    other = type("Two", (), {"go": types.FunctionType(go.__code__, go.__globals__, "go", (2.0,))})
    items = one(), other()

    def fn(x):
        for item in items:
            x = item.go(x)
        return x

    return fn, [to(other.go, "__defaults__", (5.0,)), to(one, "go", lambda self, x: x * 9)]


@case
def keyword_defaults_of_copies():
    def go(x, *, s=2.0):
        return x * s

    functions = []
    for _ in range(3):
        functions.append(types.FunctionType(go.__code__, go.__globals__))
        functions[-1].__kwdefaults__ = {"s": 2.0}

    def fn(x):
        for function in functions:
            x = function(x)
        return x

    return fn, [lambda f=f: f.__kwdefaults__.update(s=5.0) for f in functions] + [
        to(functions[1], "__kwdefaults__", {"s": 7.0})
    ]


@case
def closures_of_a_factory():
    def make(n):
        return lambda x: x * n

    functions = [make(2.0) for _ in range(3)]

    def fn(x):
        for function in functions:
            x = function(x)
        return x

    return fn, [lambda f=f: setattr(f.__closure__[0], "cell_contents", 5.0) for f in functions]


@case
def functions_of_layers():
    def make(n):
        return lambda x: x * n.a

    boxes = [Box(a=2.0) for _ in range(3)]
    layers = stack(lambda self, x: self.run(x), *({"run": make(box)} for box in boxes))
    return through(layers), [to(box, "a", 5.0) for box in boxes]


@case
def functions_made_of_texts():
    space = {"__name__": "usr_texts", "box": Box(a=2.0, b=3.0)}

    def call(run, x):
        return run(x)

    def fn(x):
        for text in ("x + 1", "x * box.a", "x * box.b", "x + box.a"):
            x = call(eval(f"lambda x: {text}", space), x)
        return x

    return fn, numbers(space["box"])


@case
def methods_kept_by_layers():
    boxes = [Odd(2) for _ in range(3)]
    layers = stack(lambda self, x: x * self.run(), *({"run": box.__call__} for box in boxes))
    return through(layers), [to(box, "n", 5) for box in boxes]


@case
def partials_kept_by_layers():
    boxes = [Box(a=2.0) for _ in range(3)]
    layers = stack(
        lambda self, x: self.run(x=x),
        *({"run": functools.partial(lambda box, x: x * box.a, box)} for box in boxes),
    )
    return through(layers), [
        *(to(box, "a", 5.0) for box in boxes),
        to(layers[1], "run", functools.partial(lambda box, x: x * 9, boxes[1])),
    ]


@case
def decorated_methods():
    def twice(function):
        @functools.wraps(function)
        def wrapper(self, x):
            return function(self, x) * self.b

        return wrapper

    layers = stack(twice(lambda self, x: x * self.a), {}, {}, {})
    return through(layers), numbers(*layers)


@case
def class_methods_and_static_methods():
    layers = stack(
        lambda self, x: self.made(x) * self.fixed(self.b),
        {},
        {},
        {},
        made=classmethod(lambda cls, x: x * cls.scale),
        fixed=staticmethod(lambda b: b),
        scale=2.0,
    )
    return through(layers), [to(type(layers[0]), "scale", 5.0), *numbers(*layers)]


@case
def super_of_layers():
    class Base(nn.Module):
        def forward(self, x):
            return x * self.a

    class Derived(Base):
        def forward(self, x):
            return super().forward(x) * self.b

    layers = [Derived() for _ in "123"]
    for layer in layers:
        layer.a, layer.b = 2.0, 3.0
    return through(layers), [*numbers(*layers), to(Base, "forward", lambda self, x: x + self.a)]


@case
def getattr_of_layers():
    layers = stack(
        lambda self, x: x * self.anything,
        {},
        {},
        {},
        __getattr__=lambda self, name: self.__dict__["a"],
    )
    return through(layers), [*numbers(*layers), to(layers[2], "anything", 9.0)]


@case
def descriptors_of_layers():
    class Asks:
        def __get__(self, item, cls):
            return item.a

    layers = stack(lambda self, x: x * self.scale, {}, {}, {}, scale=Asks())
    return through(layers), [
        *numbers(*layers),
        lambda: layers[2].__dict__.update(scale=9.0),
        to(type(layers[0]), "scale", 3.0),
    ]


@case
def boxes_in_one_function():
    boxes = [Box(a=2.0, b=Box(c=[1.0, {"k": 2.0}])) for _ in range(4)]

    def go(box, x):
        return x * box.a * box.b.c[1]["k"]

    def fn(x):
        for box in boxes:
            x = go(box, x)
        return x

    return fn, [
        to(boxes[3], "a", 5.0),
        lambda: boxes[2].b.c[1].update(k=7.0),
        lambda: boxes[1].b.c.__setitem__(1, {"k": 7.0}),
        to(boxes[2], "b", Box(c=[1.0, {"k": 1.0}])),
    ]


@case
def pairs_of_boxes():
    boxes = [Box(a=2.0) for _ in range(4)]

    def go(one, other, x):
        return x * one.a if one is other else x * other.a

    def fn(x):
        for one, other in itertools.product(boxes, repeat=2):
            x = go(one, other, x)
        return x / 1e6

    return fn, [to(box, "a", 1.5) for box in boxes]


@case
def dicts_of_layers():
    tables = [{"a": 2.0, "b": {"c": 3.0}} for _ in range(3)]

    def go(table, x):
        for value in table.values():
            x = x * value["c"] if isinstance(value, dict) else x * value
        return x

    def fn(x):
        for table in tables:
            x = go(table, x)
        return x

    return fn, [
        lambda: tables[2].update(a=5.0),
        lambda: tables[1]["b"].update(c=5.0),
        lambda: tables[2].update(d=4.0),
        lambda: tables[1].pop("a"),
    ]


@case
def config_of_one_and_of_all():
    shared = Box(a=2.0)
    layers = stack(
        lambda self, x: x * self.config.a,
        {"config": shared},
        {"config": Box(a=2.0)},
        {"config": shared},
    )
    return through(layers), [
        to(layers[1].config, "a", 5.0),
        to(shared, "a", 7.0),
        to(layers[2], "config", Box(a=9.0)),
    ]


@case
def config_of_the_model_and_a_copy():
    model = Box(config=Box(a=2.0))
    layers = stack(
        lambda self, x: x * self.config.a * model.config.a,
        {"config": model.config},
        {"config": copy.copy(model.config)},
        {"config": copy.copy(model.config)},
    )
    return through(layers), [
        to(model.config, "a", 5.0),
        to(layers[1].config, "a", 7.0),
        to(layers[2].config, "a", 9.0),
        to(model, "config", Box(a=1.0)),
    ]


@case
def warnings_are_asked():
    layers = stack(choosing(lambda s: not warnings.filters), {}, {}, {})
    return through(layers), numbers(*layers)


@case
def nested_layers_that_are_shared():
    inner = stack(choosing(lambda s: s.flag), {"flag": True}, {"flag": True}, {"flag": False})
    outer = stack(
        lambda self, x: self.one(self.two(x)),
        *({"one": inner[n], "two": inner[m]} for n, m in ((0, 1), (0, 2), (1, 1), (2, 0))),
    )
    return through(outer), [*numbers(*inner), to(outer[3], "two", inner[2])]


@case
def random_numbers_of_the_host():
    layers = stack(choosing(lambda s: random.random() < 0.5), {}, {}, {})

    def fn(x):
        random.seed(4)
        for layer in layers:
            x = layer(x)
        return x

    return fn, numbers(*layers)


# ---- what is asked of signatures, of `__dict__`, of all modules, and of the same thing again


class Gated:
    def __call__(self, x, gate=2.0):
        return x * gate


class Plainer:
    def __call__(self, x, scale=3.0):
        return x * scale


def _signed(asks, *owns, changes=()):
    """Layers whose forward asks for the signature of what they hold."""

    def forward(self, x):
        return x * self.a if asks(self) else x * self.b

    layers = stack(forward, *owns)
    return through(layers), [*numbers(*layers), *(lambda f=f: f(layers) for f in changes)]


def _has_gate(layer):
    return "gate" in inspect.signature(layer.proc.__call__).parameters


@case
def signature_of_what_a_layer_holds():
    def replace(n):
        return lambda layers: setattr(layers[n], "proc", Plainer())

    owns = [{"proc": Gated()} for _ in range(3)]
    return _signed(_has_gate, *owns, changes=[replace(2), replace(1), replace(0)])


@case
def signature_of_one_class_that_gets_another_method():
    kind = type("Kind", (), {"__call__": lambda self, x, gate=2.0: x})
    owns = [{"proc": kind()} for _ in range(3)]

    def replace(layers):
        kind.__call__ = lambda self, x, other=2.0: x

    return _signed(_has_gate, *owns, changes=[replace])


@case
def signature_that_is_given_to_a_function():
    kind = type("Kind", (), {"__call__": lambda self, x, gate=2.0: x})
    owns = [{"proc": kind()} for _ in range(3)]

    def give(layers):
        kind.__call__.__signature__ = inspect.signature(lambda self, x, other: x)

    return _signed(_has_gate, *owns, changes=[give])


def _functions(*defaults):
    def made(default):
        def function(x, k=default):
            return x

        return function

    return [{"fn": made(default)} for default in defaults]


@case
def default_in_a_signature():
    def change(n):
        return lambda layers: setattr(layers[n].fn, "__defaults__", (9,))

    return _signed(
        lambda s: inspect.signature(s.fn).parameters["k"].default == 1,
        *_functions(1, 1, 1),
        changes=[change(2), change(1), change(0)],
    )


@case
def default_in_a_signature_of_one_layer():
    return _signed(
        lambda s: inspect.signature(s.fn).parameters["k"].default == 1, *_functions(1, 2, 1)
    )


@case
def annotation_in_a_signature():
    def change(layers):
        layers[2].fn.__annotations__["x"] = int

    return _signed(
        lambda s: inspect.signature(s.fn).parameters["x"].annotation is inspect.Parameter.empty,
        *_functions(1, 1, 1),
        changes=[change],
    )


@case
def signature_of_what_a_function_wraps():
    def wrap(layers):
        layers[1].fn.__wrapped__ = lambda x, other: x

    return _signed(
        lambda s: "k" in inspect.signature(s.fn).parameters, *_functions(1, 1, 1), changes=[wrap]
    )


@case
def signature_of_a_partial():
    def replace(layers):
        layers[2].fn = functools.partial(layers[2].fn.func, k=5)

    owns = [{"fn": functools.partial(own["fn"], k=1)} for own in _functions(1, 1, 1)]
    return _signed(
        lambda s: inspect.signature(s.fn).parameters["k"].default == 1, *owns, changes=[replace]
    )


@case
def number_of_parameters():
    def change(layers):
        layers[1].fn = lambda x: x

    return _signed(
        lambda s: len(inspect.signature(s.fn).parameters) == 2,
        *_functions(1, 1, 1),
        changes=[change],
    )


@case
def whether_it_is_a_method_or_a_function():
    owns = [{"fn": function} for function in (abs, Gated().__call__, lambda x: x)]
    return _signed(lambda s: inspect.ismethod(s.fn), *owns)


@case
def attribute_that_is_got_statically():
    def change(layers):
        layers[2].flag = 0

    return _signed(
        lambda s: inspect.getattr_static(s, "flag") == 1,
        *({"flag": 1} for _ in range(3)),
        changes=[change],
    )


@case
def item_of_its_own_dict():
    layers = stack(lambda self, x: x * self.__dict__["a"], {}, {}, {})
    return through(layers), [
        *numbers(*layers),
        lambda: object.__setattr__(layers[2], "__dict__", {**layers[2].__dict__, "a": 9.0}),
        lambda: layers[1].__dict__.update(a=4.0),
    ]


@case
def name_that_comes_into_its_own_dict():
    def forward(self, x):
        return x * self.a if "extra" in self.__dict__ else x * self.b

    layers = stack(forward, {}, {"extra": 1}, {})
    return through(layers), [
        *numbers(*layers),
        to(layers[2], "extra", 1),
        to(layers[0], "extra", 1),
        lambda: delattr(layers[1], "extra"),
    ]


@case
def names_of_a_config_by_getattr():
    """As in diffusers, where a name that a model lacks may be one of its configuration."""

    def missing(self, name):
        if "config" in self.__dict__ and name in self.__dict__["config"]:
            return self.__dict__["config"][name]
        return nn.Module.__getattr__(self, name)

    owns = [{"config": {"scale": 2.0}} for _ in range(3)]
    layers = stack(lambda self, x: x * self.scale, *owns, __getattr__=missing)
    return through(layers), [
        *(lambda n=n: layers[n].config.update(scale=7.0) for n in (2, 1, 0)),
        to(layers[2], "config", {"scale": 5.0}),
        to(layers[1], "scale", 6.0),
    ]


@case
def own_dict_is_that_of_another():
    first, second = Box(a=2.0), Box(a=2.0)
    layers = stack(lambda self, x: x * self.box.__dict__["a"], {"box": first}, {"box": second})
    return through(layers), [
        to(first, "a", 5.0),
        to(second, "a", 5.0),
        lambda: setattr(second, "__dict__", {"a": 8.0}),
    ]


def _same_again(reads):
    """Each layer reads all of one thing, and of one of its own."""
    known = {"list": [1, {"deep": [2.0]}], "box": Box(n=3.0)}

    def forward(self, x):
        return x * reads(known) * reads(self.own)

    owns = [{"own": {"list": [1, {"deep": [2.0]}], "box": Box(n=3.0)}} for _ in range(3)]
    layers = stack(forward, *owns)
    everything = [known, *(layer.own for layer in layers)]
    return through(layers), [
        *(lambda k=k: k["list"][1]["deep"].append(4.0) for k in everything),
        *(lambda k=k: k["list"][1].update(deep=[5.0]) for k in everything),
        *(lambda k=k: setattr(k["box"], "n", 7.0) for k in everything),
        *(lambda k=k: k.update(more=[]) for k in everything),
    ]


def _length_as_json(known):
    return len(json.dumps(known, default=lambda box: box.n))


def _sum_of_copy(known):
    copied = copy.deepcopy(known)
    return sum(copied["list"][1]["deep"]) + copied["box"].n + len(copied)


CASES["json_of_the_same_again"] = lambda: _same_again(_length_as_json)
CASES["copy_of_the_same_again"] = lambda: _same_again(_sum_of_copy)
CASES["repr_of_the_same_again"] = lambda: _same_again(
    lambda known: len(repr((known["list"], known["box"].n, len(known))))
)
CASES["comparison_of_the_same_again"] = lambda: _same_again(
    lambda known: 2.0 if known["list"] == [1, {"deep": [2.0]}] else 3.0 + known["box"].n
)


@case
def copied_first_by_the_function_and_then_by_its_layers():
    known = {"deep": [[2.0]]}
    layers = stack(lambda self, x: x * copy.deepcopy(known)["deep"][0][0], {}, {})

    def fn(x):
        return through(layers)(x * copy.deepcopy(known)["deep"][0][0])

    return fn, [
        lambda: known["deep"][0].__setitem__(0, 3.0),
        lambda: known["deep"].__setitem__(0, [5.0]),
        lambda: known.update(deep=[[7.0]]),
    ]


def _with_children(asks, *kinds):
    """Layers that ask all the modules below them."""
    owns = [{"inner": nn.Sequential(nn.Sequential(kind()))} for kind in kinds]
    layers = stack(choosing(asks), *owns)
    inner = [layer.inner for layer in layers]
    return through(layers), [
        *numbers(*layers),
        *(lambda one=one: one[0].append(nn.ReLU()) for one in inner),
        *(lambda one=one: one[0].__setitem__(0, nn.Tanh()) for one in inner),
        *(lambda one=one: one._modules.update({"0": None}) for one in inner),
        *(lambda one=one: one._modules.pop("0") for one in inner),
        *(lambda one=one: one.__dict__.update(_modules={"x": nn.ReLU()}) for one in inner),
        *(lambda one=one: setattr(one, "named_modules", lambda *given: iter(())) for one in inner),
    ]


_ABOUT_MODULES = {
    "count_of_modules": lambda s: len(list(s.modules())) == 4,
    "count_of_named_modules": lambda s: sum(1 for _ in s.named_modules()) == 4,
    "names_of_modules": lambda s: any(name == "inner.0.0" for name, _ in s.named_modules()),
    "kind_of_a_module": lambda s: any(type(m) is nn.ReLU for m in s.modules()),
    "first_module_of_a_kind": lambda s: (
        next((m for m in s.modules() if type(m) is nn.ReLU), None) is None
    ),
    "names_without_duplicates": lambda s: len(dict(s.named_modules(remove_duplicate=False))) == 4,
    "memo_of_modules": lambda s: len(list(s.named_modules(memo={s.inner}))) == 1,
    "flags_of_modules": lambda s: all(not m.training or m.training for m in s.modules()),
}
for _name, _asks in _ABOUT_MODULES.items():
    CASES[_name] = lambda asks=_asks: _with_children(asks, nn.ReLU, nn.Tanh, nn.ReLU)
    CASES[f"{_name}_alike"] = lambda asks=_asks: _with_children(asks, nn.ReLU, nn.ReLU, nn.ReLU)


@case
def flag_of_a_module_far_below():
    owns = [{"inner": nn.Sequential(nn.Sequential(nn.ReLU()))} for _ in range(3)]
    layers = stack(choosing(lambda s: all(m.training for m in s.modules())), *owns)
    return through(layers), [
        *numbers(*layers),
        *(lambda one=one: setattr(one.inner[0][0], "training", False) for one in layers),
    ]


@case
def class_that_gets_its_own_named_modules():
    kind = type("Kind", (nn.Sequential,), {})
    owns = [{"inner": kind(nn.ReLU())} for _ in range(3)]
    layers = stack(choosing(lambda s: len(list(s.modules())) == 3), *owns)

    def override():
        kind.named_modules = lambda self, *given, **named: iter([("", self)])

    return through(layers), [*numbers(*layers), override]


@case
def class_that_gets_its_own_hash():
    kind = type("Kind", (nn.ReLU,), {})
    owns = [{"one": kind(), "two": kind()} for _ in range(3)]
    layers = stack(choosing(lambda s: len(list(s.modules())) == 3), *owns)

    def override():
        kind.__eq__, kind.__hash__ = lambda self, other: True, lambda self: 1

    return through(layers), [*numbers(*layers), override]


@case
def dtype_of_the_first_parameter():
    owns = [{"inner": nn.Linear(2, 2)} for _ in range(3)]
    layers = stack(choosing(lambda s: next(s.parameters()).dtype is torch.float32), *owns)
    return through(layers), [
        *numbers(*layers),
        *(lambda one=one: one.inner.double() for one in layers),
        *(lambda one=one: setattr(one, "inner", nn.Linear(2, 2).double()) for one in layers),
    ]


# ---- arguments


def _arguments(asks):
    """Objects among the arguments: new ones in each call, with other numbers."""

    def make():
        def go(x, item):
            return asks(x, item)

        def fn(x, items):
            for item in items:
                x = go(x, item)
            return x

        return fn, []

    return make


ARGUMENTS = {
    "attribute": lambda x, item: x * item.a,
    "of_the_last_only": lambda x, item: x * item.a if item.b == 2 else x,
    "all_attributes": lambda x, item: x * sum(v for v in vars(item).values() if v),
    "by_getattr": lambda x, item: x * getattr(item, "a", 1.0),
    "by_default": lambda x, item: x * getattr(item, "c", 1.0),
    "by_a_box_around": lambda x, item: _scaled(x, Box(item=item)),
    "by_a_lambda": lambda x, item: _called(x, lambda: item.a),
    "by_a_list": lambda x, item: _indexed(x, [item]),
    "by_a_method": lambda x, item: x * item.get(),
}


def _scaled(x, box):
    return x * box.item.a


def _called(x, get):
    return x * get()


def _indexed(x, items):
    return x * items[0].a


class Options:
    def __init__(self, a, b, c=None):
        self.a, self.b = a, b
        if c is not None:
            self.c = c

    def get(self):
        return self.a


def arguments_of(n):
    """Three objects; which number is another one depends on the call."""
    made = [Options(2.0, k) for k in range(3)]
    if n % 4:
        made[n % 4 - 1].a = float(n)
    if n % 3 == 2:
        made[1].c = 4.0
    return made


# ---- effects: a function, and the state that it changes


EFFECTS = {}


def effect(make):
    EFFECTS[make.__name__] = make
    return make


def _writes(write, *owns, show=("n", "log")):
    """Layers that all write, or only one of them does."""

    def forward(self, x):
        write(self)
        return x * self.n if hasattr(self, "n") else x

    def make():
        layers = stack(forward, *copy.deepcopy(owns))
        state = [vars(layer) for layer in layers]
        shown = lambda: [[own.get(name) for name in show] for own in state]
        return through(layers), shown, layers

    return make


def _count(self):
    self.n += 1


def _count_if(self):
    if self.on:
        self.n += 1


def _log(self):
    self.log.append(self.n)


def _log_in_c(self):
    list.append(self.log, 1)


def _log_iadd(self):
    log = self.log
    log += [1]


def _log_extended(self):
    operator.iadd(self.log, [1])


def _log_dict(self):
    self.log[len(self.log)] = 1


def _log_dict_in_c(self):
    dict.__setitem__(self.log, len(self.log), 1)


def _set_in_c(self):
    object.__setattr__(self, "n", self.n + 1)


def _popped(self):
    if self.log:
        self.n = self.log.pop()


def _sorted(self):
    self.log.sort()
    self.n = self.log[0]


def _update(self):
    vars(self).update(n=self.n + 1)


def _deleted(self):
    if hasattr(self, "log"):
        del self.log


for _name, _case in {
    "count": (_count, {"n": 0}, {"n": 0}, {"n": 0}),
    "count_of_one": (_count_if, {"n": 1, "on": False}, {"n": 1, "on": False}, {"n": 1, "on": True}),
    "log": (_log, {"n": 1, "log": []}, {"n": 1, "log": []}),
    "log_in_c": (_log_in_c, {"log": []}, {"log": []}, {"log": []}),
    "log_iadd": (_log_iadd, {"log": []}, {"log": []}, {"log": []}),
    "log_extended": (_log_extended, {"log": []}, {"log": []}, {"log": []}),
    "log_dict": (_log_dict, {"log": {}}, {"log": {}}, {"log": {}}),
    "log_dict_in_c": (_log_dict_in_c, {"log": {}}, {"log": {}}, {"log": {}}),
    "set_in_c": (_set_in_c, {"n": 0}, {"n": 0}, {"n": 0}),
    "popped": (_popped, {"n": 1, "log": [1, 2]}, {"n": 1, "log": [1, 2]}, {"n": 1, "log": []}),
    "sorted": (_sorted, {"n": 1, "log": [2, 1]}, {"n": 1, "log": [2, 1]}, {"n": 1, "log": [1, 3]}),
    "updated": (_update, {"n": 1}, {"n": 1}, {"n": 1}),
    "deleted": (_deleted, {"n": 1, "log": 1}, {"n": 1, "log": 1}, {"n": 1}),
}.items():
    EFFECTS[f"writes_{_name}"] = _writes(*_case)


@effect
def written_and_read_by_the_next():
    def forward(self, x):
        if self.box.n > 2:
            return x * self.a
        self.box.n = self.box.n + 1
        return x * self.b

    box = Box(n=0)
    layers = stack(forward, *({"box": box} for _ in range(5)))
    fn = through(layers)

    def run(x):
        box.n = 0
        return fn(x)

    return run, lambda: [box.n], layers


@effect
def written_in_c_and_read_by_the_next():
    def forward(self, x):
        if len(self.log) > 2:
            return x * self.a
        list.append(self.log, 1)
        return x * self.b

    log = []
    layers = stack(forward, *({"log": log} for _ in range(5)))
    fn = through(layers)

    def run(x):
        log.clear()
        return fn(x)

    return run, lambda: [list(log)], layers


@effect
def output_is_kept_by_each():
    def forward(self, x):
        self.last = x * self.a
        return self.last

    layers = stack(forward, {}, {}, {})
    return (
        through(layers),
        lambda: [layer.last for layer in layers if hasattr(layer, "last")],
        layers,
    )


@effect
def output_is_kept_in_a_list_of_all():
    outs = []

    def forward(self, x):
        x = x * self.a
        outs.append(x)
        return x

    layers = stack(forward, {}, {}, {})
    fn = through(layers)

    def run(x):
        outs.clear()
        return fn(x)

    return run, lambda: list(outs), layers


@effect
def buffer_is_written_by_each():
    def forward(self, x):
        self.w.add_(x.mean(0))
        return x + self.w

    layers = stack(forward, *({"w": torch.zeros(4)} for _ in "123"))
    return through(layers), lambda: [layer.w for layer in layers], layers


@effect
def counter_in_the_class():
    def forward(self, x):
        type(self).n += 1
        return x * self.a

    layers = stack(forward, {}, {}, {}, n=0)
    return through(layers), lambda: [type(layers[0]).n], layers


@effect
def counter_of_the_iteration():
    counter = itertools.count()

    def forward(self, x):
        return x * (next(counter) % 5)

    layers = stack(forward, {}, {}, {})
    return through(layers), lambda: [repr(counter)], layers


@effect
def layer_is_frozen_when_it_ran():
    def forward(self, x):
        if self.training:
            self.eval()
            return x * self.a
        return x * self.b

    layers = stack(forward, {}, {}, {})
    return through(layers), lambda: [layer.training for layer in layers], layers


@effect
def stack_of_contexts():
    log = []

    @contextlib.contextmanager
    def within(layer):
        log.append(layer.a)
        try:
            yield
        finally:
            log.pop()

    def forward(self, x):
        with within(self):
            return x * log[-1]

    layers = stack(forward, {}, {}, {})
    return through(layers), lambda: list(log), layers
