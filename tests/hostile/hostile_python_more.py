"""More functions that read Python state, and what changes that state between two calls.

Each makes a function and a change; where the change is of the whole process, the function has an
attribute ``undo``.
"""

# ruff: noqa: B006, B018, B019, B024, B039, B905, E731, F401, F841, RUF012
# ruff: noqa: RUF015, RUF017, SIM905, UP030
from __future__ import annotations

import abc
import array
import builtins
import collections
import contextlib
import contextvars
import ctypes
import dataclasses
import decimal
import enum
import functools
import importlib
import inspect
import io
import itertools
import json
import operator
import os
import pickle
import struct
import sys
import threading
import types
import typing
import weakref
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import nn

CASES = {}
NS = types.SimpleNamespace


def case(make):
    CASES[make.__name__] = make
    return make


def made_module(name, **names):
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    return module


# ---- objects, their __dict__ and their classes


@case
def dict_of_object_replaced():
    class C:
        pass

    c = C()
    c.v = 2.0
    return (lambda x: x * c.v), lambda: setattr(c, "__dict__", {"v": 5.0})


@case
def dict_of_object_replaced_deep():
    class C:
        pass

    c = NS(inner=C())
    c.inner.v = 2.0
    return (lambda x: x * vars(c.inner)["v"]), lambda: setattr(c.inner, "__dict__", {"v": 5.0})


@case
def dict_of_object_swapped_with_another():
    class C:
        def __init__(s, v):
            s.v = v

        def __call__(s, x):
            return x * s.v

    a, b = C(2.0), C(5.0)

    def change():
        a.__dict__, b.__dict__ = b.__dict__, a.__dict__

    return (lambda x: a(x) + 10 * b(x)), change


@case
def attribute_deleted_another_added():
    class C:
        v = 7.0

    c = C()
    c.v, c.w = 2.0, 3.0

    def change():
        del c.v
        c.u = 1.0

    return (lambda x: x * c.v), change


@case
def instance_attribute_hides_nothing_then_deleted():
    class B:
        v = 3.0

    class C(B):
        v = 2.0

    return (lambda x: x * C().v), lambda: delattr(C, "v")


@case
def class_of_instance_read_by_type():
    class A:
        v = 2.0

    class B:
        v = 5.0

    a = A()
    return (lambda x: x * type(a).v), lambda: setattr(a, "__class__", B)


@case
def class_of_instance_read_by_dunder():
    class A:
        v = 2.0

    class B:
        v = 5.0

    a = A()
    return (lambda x: x * a.__class__.v), lambda: setattr(a, "__class__", B)


@case
def bases_changed():
    class A:
        v = 2.0

    class B:
        v = 5.0

    class C(A):
        pass

    c = C()
    return (lambda x: x * c.v), lambda: setattr(C, "__bases__", (B,))


@case
def bases_reordered():
    class A:
        def k(s):
            return 2.0

    class B:
        def k(s):
            return 5.0

    class C(A, B):
        def __call__(s, x):
            return x * s.k()

    return C(), lambda: setattr(C, "__bases__", (B, A))


@case
def bases_changed_under_super():
    class A:
        def k(s):
            return 2.0

    class B:
        def k(s):
            return 5.0

    class C(A):
        def k(s):
            return super().k() + 1

    c = C()
    return (lambda x: x * c.k()), lambda: setattr(C, "__bases__", (B,))


@case
def bases_read():
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    return (lambda x: x * len(C.__bases__)), lambda: setattr(C, "__bases__", (A, B))


@case
def mro_read():
    class A:
        pass

    class B(A):
        pass

    class C(A):
        pass

    return (lambda x: x * len(C.__mro__)), lambda: setattr(C, "__bases__", (B,))


@case
def class_name():
    class C:
        pass

    return (lambda x: x * len(C.__name__)), lambda: setattr(C, "__name__", "Longer")


@case
def class_qualname():
    class C:
        pass

    return (lambda x: x * len(C.__qualname__)), lambda: setattr(C, "__qualname__", "C")


@case
def class_module():
    class C:
        pass

    C.__module__ = "one"
    return (lambda x: x * len(C.__module__)), lambda: setattr(C, "__module__", "three")


@case
def class_doc():
    class C:
        pass

    C.__doc__ = "2"
    return (lambda x: x * float(C.__doc__)), lambda: setattr(C, "__doc__", "3")


@case
def subclasses_counted():
    class A:
        pass

    keep = []
    return (
        (lambda x: x * (1 + len(A.__subclasses__()))),
        lambda: keep.append(type("B", (A,), {})),
    )


@case
def issubclass_after_bases():
    class A:
        pass

    class B:
        pass

    class C(B):
        pass

    return (lambda x: x * 2 if issubclass(C, A) else x * 3), lambda: setattr(C, "__bases__", (A,))


@case
def abc_registered():
    class A(abc.ABC):
        pass

    class C:
        pass

    c = C()
    return (lambda x: x * 2 if isinstance(c, A) else x * 3), lambda: A.register(C)


@case
def protocol_isinstance():
    @typing.runtime_checkable
    class Scaled(typing.Protocol):
        scale: float

    c = NS()
    return (lambda x: x * 2 if isinstance(c, Scaled) else x * 3), lambda: setattr(c, "scale", 1.0)


@case
def instancecheck_of_metaclass():
    class M(type):
        def __instancecheck__(cls, o):
            return o in cls.members

    class C(metaclass=M):
        members = [1]

    return (lambda x: x * 2 if isinstance(5, C) else x * 3), lambda: C.members.append(5)


@case
def instancecheck_added():
    class M(type):
        pass

    class C(metaclass=M):
        pass

    return (
        (lambda x: x * 2 if isinstance(5, C) else x * 3),
        lambda: setattr(M, "__instancecheck__", lambda cls, o: True),
    )


@case
def metaclass_call():
    class M(type):
        def __call__(cls, *args):
            o = super().__call__(*args)
            o.v = cls.registry["v"]
            return o

    class C(metaclass=M):
        registry = {"v": 2.0}

    return (lambda x: x * C().v), lambda: C.registry.__setitem__("v", 5.0)


@case
def metaclass_call_added():
    class M(type):
        pass

    class C(metaclass=M):
        v = 2.0

    return (lambda x: x * C().v), lambda: setattr(M, "__call__", lambda cls: NS(v=5.0))


@case
def metaclass_getattr():
    class M(type):
        values = {"alpha": 2.0}

        def __getattr__(cls, name):
            return cls.values[name]

    class C(metaclass=M):
        pass

    return (lambda x: x * C.alpha), lambda: M.values.__setitem__("alpha", 5.0)


@case
def metaclass_getattr_hidden():
    class M(type):
        def __getattr__(cls, name):
            return 2.0

    class C(metaclass=M):
        pass

    return (lambda x: x * C.alpha), lambda: setattr(C, "alpha", 5.0)


@case
def metaclass_iter_and_len():
    class M(type):
        def __iter__(cls):
            return iter(cls.items)

        def __len__(cls):
            return len(cls.items)

    class C(metaclass=M):
        items = [1.0, 2.0]

    return (lambda x: x * sum(C) + len(C)), lambda: C.items.append(5.0)


@case
def class_getitem():
    class C:
        table = {"a": 2.0}

        def __class_getitem__(cls, key):
            return cls.table[key]

    return (lambda x: x * C["a"]), lambda: C.table.__setitem__("a", 5.0)


@case
def generic_class():
    T = typing.TypeVar("T")

    class C(typing.Generic[T]):
        v = 2.0

        def k(s):
            return s.v

    alias = C[int]
    return (lambda x: x * alias().k()), lambda: setattr(C, "v", 5.0)


@case
def mixin():
    class Mixin:
        def k(s):
            return s.factor * 2

    class C(Mixin):
        factor = 2.0

    c = C()
    return (lambda x: x * c.k()), lambda: setattr(Mixin, "factor2", 1) or setattr(C, "factor", 5.0)


@case
def mixin_in_front_gets_method():
    class Front:
        pass

    class Base:
        def k(s):
            return 2.0

    class C(Front, Base):
        pass

    c = C()
    return (lambda x: x * c.k()), lambda: setattr(Front, "k", lambda s: 5.0)


@case
def init_subclass_registry():
    class B:
        registry = []

        def __init_subclass__(cls):
            B.registry.append(cls)

    class C(B):
        v = 2.0

    return (lambda x: x * sum(c.v for c in B.registry)), lambda: type("D", (B,), {"v": 3.0})


@case
def set_name_descriptor():
    class D:
        def __set_name__(s, owner, name):
            s.name = "_" + name

        def __get__(s, o, t):
            return getattr(o, s.name)

    class C:
        z = D()

        def __init__(s):
            s._z, s._y = 2.0, 5.0

    c = C()
    return (lambda x: x * c.z), lambda: setattr(vars(C)["z"], "name", "_y")


@case
def descriptor_gets_get():
    class D:
        def __float__(s):
            return 2.0

    class C:
        z = D()

    c = C()
    return (lambda x: x * float(c.z)), lambda: setattr(D, "__get__", lambda s, o, t: 5.0)


@case
def descriptor_gets_set():
    class D:
        def __get__(s, o, t):
            return 2.0

    class C:
        z = D()

    c = C()
    c.__dict__["z"] = 5.0
    return (lambda x: x * c.z), lambda: setattr(D, "__set__", lambda s, o, v: None)


@case
def attrs_like():
    class Field:
        def __init__(s, default):
            s.default = default

        def __set_name__(s, owner, name):
            s.name = name

        def __get__(s, o, t=None):
            if o is None:
                return s
            return o.__dict__.get(s.name, s.default)

        def __set__(s, o, v):
            o.__dict__[s.name] = v

    class C:
        v = Field(2.0)

    c = C()
    return (lambda x: x * c.v), lambda: setattr(C.v, "default", 5.0)


@case
def property_replaced():
    class C:
        @property
        def v(s):
            return 2.0

    c = C()
    return (lambda x: x * c.v), lambda: setattr(C, "v", property(lambda s: 5.0))


@case
def property_subclass():
    class Prop(property):
        pass

    k = 2.0

    def get(s):
        return k

    def change():
        nonlocal k
        k = 5.0

    C = type("C", (), {"v": Prop(get)})
    c = C()
    return (lambda x: x * c.v), change


@case
def cached_property_deleted_by_class():
    class C:
        @functools.cached_property
        def p(s):
            return 2.0

    c = C()
    c.p

    def change():
        C.p = property(lambda s: 5.0)

    return (lambda x: x * c.p), change


@case
def dataclass_slots():
    @dataclasses.dataclass(slots=True)
    class C:
        v: float = 2.0

    c = C()
    return (lambda x: x * c.v), lambda: setattr(c, "v", 5.0)


@case
def dataclass_frozen():
    @dataclasses.dataclass(frozen=True)
    class C:
        v: float = 2.0

    c = C()
    return (lambda x: x * c.v), lambda: object.__setattr__(c, "v", 5.0)


@case
def dataclass_frozen_slots():
    @dataclasses.dataclass(frozen=True, slots=True)
    class C:
        v: float = 2.0

    c = C()
    return (lambda x: x * hash(c) % 97), lambda: object.__setattr__(c, "v", 5.0)


@case
def dataclass_kw_only_default():
    @dataclasses.dataclass(kw_only=True)
    class C:
        v: float = 2.0

    return (lambda x: x * C().v), lambda: C.__init__.__kwdefaults__.__setitem__("v", 5.0)


@case
def dataclass_default_factory():
    source = [2.0]

    @dataclasses.dataclass
    class C:
        v: list = dataclasses.field(default_factory=lambda: list(source))

    return (lambda x: x * C().v[0]), lambda: source.__setitem__(0, 5.0)


@case
def dataclass_eq_of_lists():
    @dataclasses.dataclass
    class C:
        v: list

    a, b = C([1.0]), C([1.0])
    return (lambda x: x * 2 if a == b else x * 3), lambda: a.v.append(1.0)


@case
def dataclass_order():
    @dataclasses.dataclass(order=True)
    class C:
        v: float

    a, b = C(1.0), C(2.0)
    return (lambda x: x * max(a, b).v), lambda: setattr(a, "v", 5.0)


@case
def dataclass_repr():
    @dataclasses.dataclass
    class C:
        v: list

    c = C([1.0])
    return (lambda x: x * len(repr(c))), lambda: c.v.append(1.0)


@case
def dataclass_fields_metadata():
    meta = {"k": 2.0}

    @dataclasses.dataclass
    class C:
        v: float = dataclasses.field(default=1.0, metadata=meta)

    return (
        (lambda x: x * dataclasses.fields(C)[0].metadata["k"]),
        lambda: meta.__setitem__("k", 5.0),
    )


@case
def dataclass_replace_and_astuple():
    @dataclasses.dataclass
    class C:
        v: float = 2.0
        w: list = dataclasses.field(default_factory=lambda: [1.0])

    c = C()
    return (
        (lambda x: x * dataclasses.astuple(dataclasses.replace(c, v=3.0))[1][0]),
        lambda: c.w.__setitem__(0, 5.0),
    )


@case
def namedtuple_default():
    class P(typing.NamedTuple):
        a: float = 2.0

    return (lambda x: x * P().a), lambda: setattr(P.__new__, "__defaults__", (5.0,))


@case
def namedtuple_property():
    class P(collections.namedtuple("P", "a")):
        __slots__ = ()
        bias = 1.0

        @property
        def b(s):
            return s.a + s.bias

    p = P(2.0)
    return (lambda x: x * p.b), lambda: setattr(P, "bias", 5.0)


@case
def namedtuple_of_list():
    P = collections.namedtuple("P", "a b")
    p = P([2.0], {"k": 1.0})
    return (lambda x: x * sum(p.a) + p.b["k"]), lambda: p.a.append(5.0)


@case
def namedtuple_str_of_list():
    P = collections.namedtuple("P", "a")
    p = P([2.0])
    return (lambda x: x * len(str(p))), lambda: p.a.append(5.0)


@case
def enum_member_attribute():
    class E(enum.Enum):
        A = 1
        ALIAS = 1

    E.A.weight = 2.0
    return (lambda x: x * E.ALIAS.weight), lambda: setattr(E.A, "weight", 5.0)


@case
def enum_value_changed():
    class E(enum.Enum):
        A = 2.0

    return (lambda x: x * E.A.value), lambda: setattr(E.A, "_value_", 5.0)


@case
def enum_iterated():
    class E(enum.Enum):
        A = 1.0
        B = 2.0

    return (lambda x: x * sum(e.value for e in E)), lambda: E._member_names_.pop()


@case
def enum_by_name():
    class E(enum.Enum):
        A = 1.0
        B = 2.0

    c = NS(name="A")
    return (lambda x: x * E[c.name].value), lambda: setattr(c, "name", "B")


@case
def flags_tested():
    class E(enum.Flag):
        A = 1
        B = 2

    c = NS(mode=E.A)
    return (lambda x: x * 2 if E.B in c.mode else x * 3), lambda: setattr(c, "mode", E.A | E.B)


@case
def int_enum_in_list():
    class E(enum.IntEnum):
        A = 1
        B = 2

    modes = [E.A]
    return (lambda x: x * modes[0]), lambda: modes.__setitem__(0, E.B)


# ---- dunders


@case
def dunder_is_lambda():
    class C:
        __len__ = lambda s: 2

    c = C()
    return (lambda x: x * len(c)), lambda: setattr(C, "__len__", lambda s: 5)


@case
def dunder_is_alias():
    class C:
        def add(s, o):
            return o * 2

        __add__ = add
        __radd__ = add

    c = C()
    return (lambda x: 1.0 + c + x), lambda: setattr(C, "__radd__", lambda s, o: o * 5)


@case
def dunder_decorated():
    def deco(f):
        @functools.wraps(f)
        def inner(*args):
            return f(*args)

        return inner

    class C:
        @deco
        def __getitem__(s, k):
            return 2.0

    c = C()
    return (lambda x: x * c["k"]), lambda: setattr(C, "__getitem__", lambda s, k: 5.0)


@case
def bool_added():
    class C:
        pass

    c = C()
    return (lambda x: x * 2 if c else x * 3), lambda: setattr(C, "__bool__", lambda s: False)


@case
def bool_added_beside_len():
    class C:
        def __len__(s):
            return 1

    c = C()
    return (lambda x: x * 2 if c else x * 3), lambda: setattr(C, "__bool__", lambda s: False)


@case
def not_of_object():
    class C:
        pass

    c = C()
    return (lambda x: x * (1 + (not c))), lambda: setattr(C, "__bool__", lambda s: False)


@case
def eq_added():
    class C:
        pass

    a, b = C(), C()
    return (lambda x: x * 2 if a == b else x * 3), lambda: setattr(C, "__eq__", lambda s, o: True)


@case
def eq_in_list():
    class C:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

    items, probe = [C(1), C(2)], C(3)
    return (lambda x: x * 2 if probe in items else x * 3), lambda: setattr(items[0], "v", 3)


@case
def hash_and_eq_as_key():
    class K:
        def __init__(s, v):
            s.v = v

        def __hash__(s):
            return hash(s.v)

        def __eq__(s, o):
            return s.v == o.v

    table = {K(1): 2.0, K(2): 5.0}
    probe = K(1)
    return (lambda x: x * table[probe]), lambda: setattr(probe, "v", 2)


@case
def contains_added_beside_iter():
    class C:
        def __iter__(s):
            return iter([1])

    c = C()
    return (
        (lambda x: x * 2 if 5 in c else x * 3),
        lambda: setattr(C, "__contains__", lambda s, k: True),
    )


@case
def str_added_beside_repr():
    class C:
        def __repr__(s):
            return "2"

    c = C()
    return (lambda x: x * float(str(c))), lambda: setattr(C, "__str__", lambda s: "5")


@case
def format_added():
    class C:
        def __str__(s):
            return "2"

    c = C()
    return (lambda x: x * float(f"{c}")), lambda: setattr(C, "__format__", lambda s, spec: "5")


@case
def format_reads():
    class C:
        digits = {"d": 2}

        def __format__(s, spec):
            return str(s.digits[spec])

    c = C()
    return (lambda x: x * float(f"{c:d}")), lambda: C.digits.__setitem__("d", 5)


@case
def index_reads():
    class C:
        v = 0

        def __index__(s):
            return s.v

    c, values = C(), (2.0, 5.0)
    return (lambda x: x * values[c]), lambda: setattr(c, "v", 1)


@case
def init_added():
    class C:
        v = 2.0

    return (
        (lambda x: x * C().v),
        lambda: setattr(C, "__init__", lambda s: s.__dict__.__setitem__("v", 5.0)),
    )


@case
def new_added():
    class C:
        v = 2.0

    return (lambda x: x * C().v), lambda: setattr(C, "__new__", lambda cls: NS(v=5.0))


@case
def missing_added():
    class D(dict):
        pass

    d = D()

    def f(x):
        try:
            return x * d["k"]
        except KeyError:
            return x * 2

    return f, lambda: setattr(D, "__missing__", lambda s, k: 5.0)


@case
def getitem_of_dict_subclass_added():
    class D(dict):
        pass

    d = D(k=2.0)
    return (lambda x: x * d["k"]), lambda: setattr(D, "__getitem__", lambda s, k: 5.0)


@case
def len_of_list_subclass_added():
    class L(list):
        pass

    s = L([1])
    return (lambda x: x * len(s)), lambda: setattr(L, "__len__", lambda s: 5)


@case
def iter_of_list_subclass_added():
    class L(list):
        pass

    s = L([1.0])
    return (lambda x: x * sum(v for v in s)), lambda: setattr(L, "__iter__", lambda s: iter([5.0]))


@case
def float_of_float_subclass():
    class V(float):
        pass

    c = NS(v=V(2.0))
    return (lambda x: x * float(c.v)), lambda: setattr(V, "__float__", lambda s: 5.0)


@case
def attribute_of_float_subclass():
    class V(float):
        pass

    v = V(2.0)
    v.extra = 1.0
    return (lambda x: x * v * v.extra), lambda: setattr(v, "extra", 5.0)


@case
def attribute_of_str_subclass():
    class S(str):
        pass

    s = S("ab")
    s.scale = 2.0
    table = {s: 1.0}
    return (lambda x: x * sum(k.scale for k in table)), lambda: setattr(s, "scale", 5.0)


@case
def attribute_of_tuple_subclass():
    class T(tuple):
        pass

    t = T((1.0, 2.0))
    t.scale = 2.0
    return (lambda x: x * t[0] * t.scale), lambda: setattr(t, "scale", 5.0)


@case
def getattr_added():
    class C:
        pass

    c = C()
    return (
        (lambda x: x * getattr(c, "v", 2.0)),
        lambda: setattr(C, "__getattr__", lambda s, n: 5.0),
    )


@case
def getattribute_added():
    class C:
        v = 2.0

    c = C()
    return (lambda x: x * c.v), lambda: setattr(C, "__getattribute__", lambda s, n: 5.0)


@case
def call_replaced_on_class():
    class C:
        def __call__(s, x):
            return x * 2

    c = C()
    return (lambda x: c(x)), lambda: setattr(C, "__call__", lambda s, x: x * 5)


@case
def call_is_instance_of_another():
    class Inner:
        v = 2.0

        def __call__(s, x):
            return x * s.v

    class C:
        __call__ = Inner()

    c = C()
    return (lambda x: c(x)), lambda: setattr(Inner, "v", 5.0)


@case
def comparison_sorted_objects():
    class C:
        def __init__(s, v):
            s.v = v

        def __lt__(s, o):
            return s.v < o.v

    items = [C(1.0), C(2.0)]
    return (lambda x: x * sorted(items)[0].v), lambda: setattr(items[0], "v", 7.0)


@case
def round_and_trunc():
    class C:
        v = 2

        def __round__(s, n=None):
            return s.v

        def __trunc__(s):
            return s.v + 1

    c = C()
    return (lambda x: x * round(c)), lambda: setattr(C, "v", 5)


@case
def matmul_of_object():
    class C:
        v = 2.0

        def __rmatmul__(s, o):
            return o * s.v

    c = C()
    return (lambda x: x * (3.0 @ c)), lambda: setattr(c, "v", 5.0)


@case
def bytes_and_fspath():
    class C:
        v = "/a"

        def __fspath__(s):
            return s.v

    c = C()
    return (lambda x: x * len(os.fspath(c))), lambda: setattr(c, "v", "/abc")


@case
def dir_of_object():
    class C:
        def __init__(s):
            s.a = 1

    c = C()
    return (lambda x: x * len([n for n in dir(c) if n[0] != "_"])), lambda: setattr(c, "b", 1)


@case
def dir_of_class():
    class C:
        a = 1

    c = C()
    return (lambda x: x * len([n for n in dir(c) if n[0] != "_"])), lambda: setattr(C, "b", 1)


@case
def callable_asked():
    class C:
        pass

    c = C()
    return (
        (lambda x: x * 2 if callable(c) else x * 3),
        lambda: setattr(C, "__call__", lambda s: None),
    )


@case
def reversed_of_object():
    class C:
        def __init__(s):
            s.v = [1.0, 2.0]

        def __len__(s):
            return len(s.v)

        def __getitem__(s, n):
            return s.v[n]

    c = C()

    def f(x):
        for v in reversed(c):
            x = x * v + 1
        return x

    return f, lambda: c.v.append(3.0)


# ---- functions


@case
def defaults_of_nested_helper():
    def inner(v=[1.0], *, w={"k": 2.0}):
        return v[0] * w["k"]

    def outer(x, fn=inner):
        return x * fn()

    return (lambda x: outer(x)), lambda: inner.__kwdefaults__["w"].__setitem__("k", 5.0)


@case
def kwdefaults_replaced():
    def h(x, *, w=2.0):
        return x * w

    return (lambda x: h(x)), lambda: setattr(h, "__kwdefaults__", {"w": 5.0})


@case
def defaults_removed():
    def h(x, w=2.0):
        return x * w

    def f(x):
        try:
            return h(x)
        except TypeError:
            return x * 5

    return f, lambda: setattr(h, "__defaults__", None)


@case
def defaults_read():
    def h(w=2.0):
        return w

    return (lambda x: x * h.__defaults__[0]), lambda: setattr(h, "__defaults__", (5.0,))


@case
def name_of_function():
    def h():
        pass

    return (lambda x: x * len(h.__name__)), lambda: setattr(h, "__name__", "longer")


@case
def doc_of_function():
    def h():
        pass

    h.__doc__ = "2"
    return (lambda x: x * float(h.__doc__)), lambda: setattr(h, "__doc__", "5")


@case
def annotations_of_function():
    def h(a: 2.0):
        pass

    h.__annotations__["a"] = 2.0
    return (
        (lambda x: x * h.__annotations__["a"]),
        lambda: h.__annotations__.__setitem__("a", 5.0),
    )


@case
def annotations_of_function_replaced():
    def h(a):
        pass

    h.__annotations__ = {"a": 2.0}
    return (lambda x: x * h.__annotations__["a"]), lambda: setattr(h, "__annotations__", {"a": 5.0})


@case
def annotations_of_class():
    class C:
        pass

    C.__annotations__ = {"a": 2.0}
    return (lambda x: x * C.__annotations__["a"]), lambda: C.__annotations__.__setitem__("a", 5.0)


@case
def wrapped_read():
    def one():
        return 2.0

    def two():
        return 5.0

    @functools.wraps(one)
    def h():
        return 1.0

    return (lambda x: x * h.__wrapped__()), lambda: setattr(h, "__wrapped__", two)


@case
def attribute_of_method():
    class C:
        def m(s):
            return s.m.scale

        m.scale = 2.0

    c = C()
    return (lambda x: x * c.m()), lambda: setattr(C.m, "scale", 5.0)


@case
def dict_of_function():
    def h():
        pass

    h.v = 2.0
    return (lambda x: x * sum(vars(h).values())), lambda: setattr(h, "w", 5.0)


@case
def hasattr_of_function():
    def h():
        pass

    return (lambda x: x * 2 if hasattr(h, "mark") else x * 3), lambda: setattr(h, "mark", 1)


@case
def signature_of_function():
    def h(a, b=2.0):
        pass

    return (
        (lambda x: x * inspect.signature(h).parameters["b"].default),
        lambda: setattr(h, "__defaults__", (5.0,)),
    )


@case
def code_of_function_read():
    def h(a):
        pass

    return (
        (lambda x: x * h.__code__.co_argcount),
        lambda: setattr(h, "__code__", (lambda a, b: None).__code__),
    )


@case
def closure_read():
    k = 2.0

    def h():
        return k

    def change():
        nonlocal k
        k = 5.0

    return (lambda x: x * h.__closure__[0].cell_contents), change


@case
def cell_contents_set():
    k = 2.0

    def h():
        return k

    cell = h.__closure__[0]
    return (lambda x: x * h()), lambda: setattr(cell, "cell_contents", 5.0)


@case
def cell_of_two_levels():
    k = 2.0

    def outer(x):
        def inner():
            return k

        return x * inner()

    def change():
        nonlocal k
        k = 5.0

    return outer, change


@case
def cell_of_three_levels():
    k = 2.0

    def outer(x):
        def middle():
            return (lambda: k)()

        return x * middle()

    def change():
        nonlocal k
        k = 5.0

    return outer, change


@case
def cell_in_generator_expression():
    k = 2.0

    def change():
        nonlocal k
        k = 5.0

    return (lambda x: x * sum(v * k for v in (1.0, 2.0))), change


@case
def cell_in_comprehensions():
    k = 2.0

    def change():
        nonlocal k
        k = 5.0

    return (lambda x: x * sum({n: k for n in range(2)}.values()) + sum([k for _ in (1,)])), change


@case
def cell_in_sort_key():
    sign = 1.0

    def change():
        nonlocal sign
        sign = -1.0

    return (lambda x: x * sorted([1.0, 2.0], key=lambda v: v * sign)[0]), change


@case
def cell_in_class_body():
    k = 2.0

    def f(x):
        class C:
            v = k

        return x * C.v

    def change():
        nonlocal k
        k = 5.0

    return f, change


@case
def cell_in_default_of_inner():
    k = 2.0

    def f(x):
        def inner(v=k):
            return v

        return x * inner()

    def change():
        nonlocal k
        k = 5.0

    return f, change


@case
def cell_unbound_then_bound():
    def f(x):
        try:
            return x * late
        except NameError:
            return x * 2

    def change():
        nonlocal late
        late = 5.0

    late = 1.0
    del late
    return f, change


@case
def global_unbound_then_bound():
    ns = {}
    code = "def f(x):\n try:\n  return x*late\n except NameError:\n  return x*2\n"
    exec(code, ns)
    return ns["f"], lambda: ns.__setitem__("late", 5.0)


@case
def global_hides_builtin_in_genexpr():
    ns = {}
    exec("def f(x): return x*sum(abs(v) for v in (-1.0, 2.0))", ns)
    return ns["f"], lambda: ns.__setitem__("abs", lambda v: v)


@case
def builtin_replaced():
    old = builtins.abs
    f = lambda x: x * abs(-2.0)
    f.undo = lambda: setattr(builtins, "abs", old)
    return f, lambda: setattr(builtins, "abs", lambda v: old(v) + 1)


@case
def partial_of_partial():
    kw = {"w": 2.0}
    inner = functools.partial(lambda x, v, w: x * v * w, v=1.0)
    outer = functools.partial(inner, **kw)
    return (lambda x: outer(x)), lambda: outer.keywords.__setitem__("w", 5.0)


@case
def partial_set_state():
    p = functools.partial(lambda w, x: x * w, 2.0)
    return (
        (lambda x: p(x)),
        lambda: p.__setstate__((lambda w, x: x * w, (5.0,), {}, {})),
    )


@case
def partial_of_getattr():
    c = NS(v=2.0)
    p = functools.partial(getattr, c, "v")
    return (lambda x: x * p()), lambda: setattr(c, "v", 5.0)


@case
def partial_of_bound_method():
    class C:
        v = 2.0

        def m(s, x, n):
            return x * s.v * n

    c = C()
    p = functools.partial(c.m, n=1)
    return (lambda x: p(x)), lambda: setattr(c, "v", 5.0)


@case
def partial_attribute():
    p = functools.partial(int)
    p.scale = 2.0
    return (lambda x: x * p.scale), lambda: setattr(p, "scale", 5.0)


@case
def partialmethod_():
    class C:
        def m(s, x, n):
            return x * n * s.v

        v = 1.0
        twice = functools.partialmethod(m, n=2)

    c = C()
    return (lambda x: c.twice(x)), lambda: vars(C)["twice"].keywords.__setitem__("n", 5)


@case
def singledispatch_of_state():
    @functools.singledispatch
    def h(o):
        return 2.0

    class K:
        pass

    k = K()
    return (lambda x: x * h(k)), lambda: h.register(K, lambda o: 5.0)


@case
def singledispatch_replaced():
    @functools.singledispatch
    def h(o):
        return 1.0

    h.register(int, lambda o: 2.0)
    return (lambda x: x * h(3)), lambda: h.register(int, lambda o: 5.0)


@case
def singledispatchmethod_():
    class C:
        @functools.singledispatchmethod
        def m(s, o):
            return 1.0

        @m.register(int)
        def _(s, o):
            return s.v

    c = C()
    c.v = 2.0
    return (lambda x: x * c.m(3)), lambda: setattr(c, "v", 5.0)


@case
def lru_cache_of_method():
    class C:
        v = 2.0

        @functools.lru_cache(maxsize=8)
        def m(s, n):
            return s.v * n

    c = C()

    def change():
        C.v = 5.0
        C.m.cache_clear()

    return (lambda x: x * c.m(2)), change


@case
def lru_cache_of_object():
    @functools.cache
    def config():
        return NS(v=2.0)

    return (lambda x: x * config().v), lambda: setattr(config(), "v", 5.0)


@case
def total_ordering():
    @functools.total_ordering
    class C:
        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            return s.v == o.v

        def __lt__(s, o):
            return s.v < o.v

    a, b = C(1.0), C(2.0)
    return (lambda x: x * 2 if a >= b else x * 3), lambda: setattr(a, "v", 5.0)


@case
def cmp_to_key_():
    order = {"sign": 1}
    values = [3.0, 5.0]

    def compare(a, b):
        return order["sign"] * (a - b)

    return (
        (lambda x: x * sorted(values, key=functools.cmp_to_key(compare))[0]),
        lambda: order.__setitem__("sign", -1),
    )


@case
def coroutine_driven():
    c = NS(v=2.0)

    async def h():
        return c.v

    def f(x):
        try:
            h().send(None)
        except StopIteration as stop:
            return x * stop.value

    return f, lambda: setattr(c, "v", 5.0)


@case
def yield_from():
    s = [1.0, 2.0]

    def inner():
        yield from s

    def outer():
        got = yield from inner()
        yield len(s)

    return (lambda x: x * sum(outer())), lambda: s.append(5.0)


@case
def generator_takes_state():
    c = NS(v=2.0)

    def g():
        got = yield
        yield got * c.v

    def f(x):
        it = g()
        next(it)
        return x * it.send(3.0)

    return f, lambda: setattr(c, "v", 5.0)


@case
def generator_frame_read():
    def g(v):
        yield v

    it = g(2.0)
    other = g(5.0)
    c = NS(it=it)
    return (lambda x: x * c.it.gi_frame.f_locals["v"]), lambda: setattr(c, "it", other)


@case
def decorator_stack():
    gains = [2.0, 3.0]

    def gain(n):
        def deco(f):
            @functools.wraps(f)
            def inner(*args, **kwargs):
                return f(*args, **kwargs) * gains[n]

            return inner

        return deco

    @gain(0)
    @gain(1)
    def h(x):
        return x + 1

    return h, lambda: gains.__setitem__(1, 5.0)


@case
def decorator_class():
    class Deco:
        scale = 2.0

        def __init__(s, f):
            s.f = f

        def __call__(s, x):
            return s.f(x) * s.scale

    h = Deco(lambda x: x + 1)
    return (lambda x: h(x)), lambda: setattr(h, "f", lambda x: x + 2)


@case
def contextmanager_decorated():
    c = NS(v=2.0)

    @contextlib.contextmanager
    def scaled():
        yield c.v

    def f(x):
        with scaled() as v:
            return x * v

    return f, lambda: setattr(c, "v", 5.0)


@case
def exit_reads():
    c = NS(swallow=True)

    class M:
        def __enter__(s):
            return s

        def __exit__(s, kind, error, tb):
            return c.swallow

    m = M()

    def f(x):
        try:
            with m:
                raise KeyError("k")
            return x * 2
        except KeyError:
            return x * 3

    return f, lambda: setattr(c, "swallow", False)


@case
def exit_stack():
    values = [1.0, 2.0]

    def f(x):
        with contextlib.ExitStack() as stack:
            got = [stack.enter_context(contextlib.nullcontext(v)) for v in values]
        return x * sum(got)

    return f, lambda: values.append(5.0)


@case
def suppress_classes():
    errors = [KeyError, ValueError]

    def f(x):
        try:
            with contextlib.suppress(*errors):
                raise ValueError
            return x * 2
        except ValueError:
            return x * 3

    return f, lambda: errors.pop()


@case
def except_tuple_of_state():
    c = NS(errors=(KeyError,))

    def f(x):
        try:
            try:
                raise ValueError
            except c.errors:
                return x * 2
        except ValueError:
            return x * 3

    return f, lambda: setattr(c, "errors", (KeyError, ValueError))


@case
def exception_args():
    error = ValueError(2.0)
    return (lambda x: x * error.args[0]), lambda: setattr(error, "args", (5.0,))


@case
def exception_cause():
    error = ValueError()
    error.__cause__ = None
    return (
        (lambda x: x * 2 if error.__cause__ is None else x * 3),
        lambda: setattr(error, "__cause__", KeyError()),
    )


@case
def stop_iteration_value():
    error = StopIteration(2.0)
    return (lambda x: x * error.value), lambda: setattr(error, "value", 5.0)


@case
def exception_class_bases():
    class A(Exception):
        pass

    class B(A):
        pass

    class D(Exception):
        pass

    def f(x):
        try:
            raise B
        except A:
            return x * 2
        except D:
            return x * 3

    return f, lambda: setattr(B, "__bases__", (D,))


@case
def star_args_of_attributes():
    c = NS(a=(1.0, 2.0), k={"n": 1.0})

    def h(x, a, b, n):
        return x * a - b + n

    return (lambda x: h(x, *c.a, **c.k)), lambda: c.k.__setitem__("n", 5.0)


@case
def star_of_two_lists():
    a, b = [1.0], [2.0]

    def h(*values):
        return sum(values)

    return (lambda x: x * h(*a, *b)), lambda: b.append(5.0)


@case
def star_in_display():
    a, d = [1.0], {"k": 1.0}
    return (lambda x: x * len([*a, 1.0]) + len({**d, "z": 2.0})), lambda: d.__setitem__("w", 1.0)


@case
def zip_star_of_display():
    a, b = [1.0, 2.0], [3.0, 4.0]
    return (
        (lambda x: x * sum(p * q for p, q in zip(*[a, b]))),
        lambda: b.__setitem__(0, 5.0),
    )


@case
def walrus_in_comprehension():
    c = NS(v=[1.0, 2.0])

    def f(x):
        if any((last := v) > 1.5 for v in c.v):
            return x * last
        return x

    return f, lambda: c.v.__setitem__(1, 5.0)


# ---- containers


@case
def deque_ends():
    s = collections.deque([1.0, 2.0])
    return (lambda x: x * s[-1] + len(s)), lambda: s.appendleft(5.0)


@case
def deque_truth():
    s = collections.deque()
    return (lambda x: x * 2 if s else x * 3), lambda: s.append(1)


@case
def userlist_slice():
    s = collections.UserList([1.0, 2.0])
    return (lambda x: x * sum(s[:1])), lambda: s.data.__setitem__(0, 5.0)


@case
def userstring():
    s = collections.UserString("2")
    return (lambda x: x * float(str(s))), lambda: setattr(s, "data", "5")


@case
def userdict_data_replaced():
    s = collections.UserDict(a=1.0)
    return (lambda x: x * s["a"]), lambda: setattr(s, "data", {"a": 5.0})


@case
def chainmap_new_front():
    s = collections.ChainMap({"a": 1.0}, {"b": 2.0})
    return (lambda x: x * s.get("b")), lambda: s.maps.insert(0, {"b": 5.0})


@case
def chainmap_iterated():
    s = collections.ChainMap({"a": 1.0}, {"b": 2.0})
    return (lambda x: x * sum(s.values())), lambda: s.maps[1].__setitem__("c", 5.0)


@case
def counter_most_common():
    s = collections.Counter("aabb")
    return (lambda x: x * (ord(s.most_common(1)[0][0]) - 90)), lambda: s.update("b")


@case
def counter_total():
    s = collections.Counter("aabb")
    return (lambda x: x * s.total() + (s + s)["a"]), lambda: s.update("a")


@case
def ordered_dict_reversed():
    s = collections.OrderedDict(a=1.0, b=2.0)
    return (lambda x: x * s[next(reversed(s))]), lambda: s.move_to_end("a")


@case
def ordered_dict_compared():
    s = collections.OrderedDict(a=1.0, b=2.0)
    t = collections.OrderedDict(a=1.0, b=2.0)
    return (lambda x: x * 2 if s == t else x * 3), lambda: s.move_to_end("a")


@case
def ordered_dict_subclass_attribute():
    class D(collections.OrderedDict):
        pass

    s = D(a=1.0)
    s.scale = 2.0
    return (lambda x: x * s["a"] * s.scale), lambda: setattr(s, "scale", 5.0)


@case
def default_factory_read():
    s = collections.defaultdict(lambda: 2.0)
    return (lambda x: x * s.default_factory()), lambda: setattr(s, "default_factory", lambda: 5.0)


@case
def held_values_view():
    d = {"a": 1.0}
    view = d.values()
    return (lambda x: x * sum(view)), lambda: d.__setitem__("b", 5.0)


@case
def held_keys_view_contains():
    d = {"a": 1.0}
    view = d.keys()
    return (lambda x: x * 2 if "b" in view else x * 3), lambda: d.__setitem__("b", 5.0)


@case
def held_items_view_iterated():
    d = {"a": 1.0}
    view = d.items()
    return (lambda x: x * sum(v for _, v in view)), lambda: d.__setitem__("a", 5.0)


@case
def held_view_length():
    d = {"a": 1.0}
    view = d.keys()
    return (lambda x: x * len(view)), lambda: d.__setitem__("b", 5.0)


@case
def held_view_and_set():
    d = {"a": 1.0}
    view = d.keys()
    return (lambda x: x * (1 + len(view & {"b"}))), lambda: d.__setitem__("b", 5.0)


@case
def mappingproxy_length():
    d = {"a": 1.0}
    p = types.MappingProxyType(d)
    return (lambda x: x * len(p)), lambda: d.__setitem__("b", 5.0)


@case
def mappingproxy_truth():
    d = {}
    p = types.MappingProxyType(d)
    return (lambda x: x * 2 if p else x * 3), lambda: d.__setitem__("b", 5.0)


@case
def mappingproxy_contains():
    d = {}
    p = types.MappingProxyType(d)
    return (lambda x: x * 2 if "b" in p else x * 3), lambda: d.__setitem__("b", 5.0)


@case
def mappingproxy_get():
    d = {"a": 1.0}
    p = types.MappingProxyType(d)
    return (lambda x: x * p.get("a") + p.get("b", 1.0)), lambda: d.__setitem__("b", 5.0)


@case
def mappingproxy_values():
    d = {"a": 1.0}
    p = types.MappingProxyType(d)
    return (lambda x: x * sum(p.values())), lambda: d.__setitem__("b", 5.0)


@case
def mappingproxy_of_userdict():
    d = collections.UserDict(a=1.0)
    p = types.MappingProxyType(d)
    return (lambda x: x * p["a"]), lambda: d.__setitem__("a", 5.0)


@case
def bytearray_length():
    b = bytearray(b"ab")
    return (lambda x: x * len(b)), lambda: b.append(5)


@case
def bytearray_truth():
    b = bytearray()
    return (lambda x: x * 2 if b else x * 3), lambda: b.append(5)


@case
def bytearray_iterated():
    b = bytearray(b"ab")
    return (lambda x: x * sum(v for v in b)), lambda: b.append(5)


@case
def bytearray_contains():
    b = bytearray(b"ab")
    return (lambda x: x * 2 if 5 in b else x * 3), lambda: b.append(5)


@case
def bytearray_decoded():
    b = bytearray(b"2")
    return (lambda x: x * float(b.decode())), lambda: b.append(ord("5"))


@case
def bytearray_formatted():
    b = bytearray(b"2")
    return (lambda x: x * len(f"{b}")), lambda: b.append(ord("5"))


@case
def bytearray_compared():
    b = bytearray(b"ab")
    return (lambda x: x * 2 if b == b"ab" else x * 3), lambda: b.append(5)


@case
def bytearray_sliced():
    b = bytearray(b"ab")
    return (lambda x: x * sum(b[:1])), lambda: b.__setitem__(0, 5)


@case
def memoryview_item():
    b = bytearray(b"ab")
    view = memoryview(b)
    return (lambda x: x * view[0]), lambda: b.__setitem__(0, 5)


@case
def memoryview_tolist():
    b = bytearray(b"ab")
    view = memoryview(b)
    return (lambda x: x * sum(view.tolist())), lambda: b.__setitem__(0, 5)


@case
def memoryview_cast():
    b = bytearray(struct.pack("2d", 1.0, 2.0))
    view = memoryview(b).cast("d")
    return (lambda x: x * view[1]), lambda: view.__setitem__(1, 5.0)


@case
def struct_unpacked():
    b = bytearray(struct.pack("d", 2.0))
    return (lambda x: x * struct.unpack_from("d", b)[0]), lambda: struct.pack_into("d", b, 0, 5.0)


@case
def int_from_bytes():
    b = bytearray(b"\x02")
    return (lambda x: x * int.from_bytes(b, "big")), lambda: b.__setitem__(0, 5)


@case
def bytesio_value():
    b = io.BytesIO(b"2")

    def change():
        b.seek(0)
        b.write(b"5")

    return (lambda x: x * float(b.getvalue())), change


@case
def stringio_value():
    b = io.StringIO("2")

    def change():
        b.seek(0)
        b.write("5")

    return (lambda x: x * float(b.getvalue())), change


@case
def array_item():
    a = array.array("d", [1.0, 2.0])
    return (lambda x: x * a[1]), lambda: a.__setitem__(1, 5.0)


@case
def array_length():
    a = array.array("d", [1.0, 2.0])
    return (lambda x: x * len(a)), lambda: a.append(5.0)


@case
def array_truth():
    a = array.array("d")
    return (lambda x: x * 2 if a else x * 3), lambda: a.append(5.0)


@case
def array_iterated():
    a = array.array("d", [1.0, 2.0])
    return (lambda x: x * sum(v for v in a)), lambda: a.append(5.0)


@case
def array_in_attribute_unpacked():
    c = NS(a=array.array("d", [1.0, 2.0]))

    def f(x):
        p, q = c.a
        return x * p - q

    return f, lambda: c.a.__setitem__(1, 5.0)


@case
def ctypes_array():
    a = (ctypes.c_double * 2)(1.0, 2.0)
    return (lambda x: x * a[1]), lambda: a.__setitem__(1, 5.0)


@case
def ctypes_structure():
    class S(ctypes.Structure):
        _fields_ = [("v", ctypes.c_double)]

    s = S(2.0)
    return (lambda x: x * s.v), lambda: setattr(s, "v", 5.0)


@case
def ctypes_value():
    v = ctypes.c_int(2)
    return (lambda x: x * v.value), lambda: setattr(v, "value", 5)


@case
def ctypes_pointer():
    v = ctypes.c_double(2.0)
    p = ctypes.pointer(v)
    return (lambda x: x * p.contents.value), lambda: setattr(v, "value", 5.0)


@case
def numpy_length_and_slice():
    import numpy as np

    a = np.array([1.0, 2.0])
    return (lambda x: x * float(a[:1].sum()) + len(a)), lambda: a.__setitem__(0, 5.0)


@case
def numpy_record():
    import numpy as np

    a = np.zeros(1, dtype=[("v", "f8")])
    a["v"] = 2.0
    return (lambda x: x * float(a["v"][0])), lambda: a["v"].__setitem__(0, 5.0)


@case
def numpy_in_tuple():
    import numpy as np

    c = NS(t=(np.array([2.0]), "k"))
    return (lambda x: x * float(c.t[0].item())), lambda: c.t[0].__setitem__(0, 5.0)


@case
def numpy_shape():
    import numpy as np

    a = np.zeros((2, 3))
    return (lambda x: x * a.shape[0]), lambda: setattr(a, "shape", (3, 2))


@case
def numpy_view_of_array():
    import numpy as np

    a = np.array([1.0, 2.0, 3.0])
    view = a[1:]
    return (lambda x: x * float(view[0])), lambda: a.__setitem__(1, 5.0)


@case
def numpy_from_tensor():
    w = torch.tensor([2.0, 3.0], device="cpu")
    a = w.numpy()
    return (lambda x: x * float(a[0])), lambda: w.fill_(5.0)


@case
def set_of_objects():
    class C:
        def __init__(s, v):
            s.v = v

    items = {C(1.0), C(2.0)}
    return (lambda x: x * sum(c.v for c in items)), lambda: setattr(next(iter(items)), "v", 7.0)


@case
def set_operations():
    a, b = {1, 2}, {2, 3}
    return (lambda x: x * len(a & b)), lambda: b.add(1)


@case
def set_is_disjoint():
    a, b = {1, 2}, [3]
    return (lambda x: x * 2 if a.isdisjoint(b) else x * 3), lambda: b.append(1)


@case
def frozenset_of_objects():
    class C:
        v = 2.0

    c = C()
    items = frozenset([c])
    return (lambda x: x * sum(o.v for o in items)), lambda: setattr(c, "v", 5.0)


@case
def tuple_in_tuple_of_dicts():
    t = ((({"k": 2.0},),),)
    return (lambda x: x * t[0][0][0]["k"]), lambda: t[0][0][0].__setitem__("k", 5.0)


@case
def nested_content_deep():
    d = {"a": {"b": {"c": {"d": [1.0]}}}}
    other = {"a": {"b": {"c": {"d": [1.0]}}}}
    return (lambda x: x * 2 if d == other else x * 3), lambda: d["a"]["b"]["c"]["d"].append(2.0)


@case
def list_of_lists_compared():
    a = [[[1.0]], [[2.0]]]
    return (lambda x: x * 2 if a == [[[1.0]], [[2.0]]] else x * 3), lambda: a[1][0].append(1.0)


@case
def nested_content_formatted():
    a = [[[[[1.0]]]]]
    return (lambda x: x * len(str(a))), lambda: a[0][0][0][0].append(2.0)


@case
def content_in_f_string():
    a = [1.0]
    return (lambda x: x * len(f"{a}")), lambda: a.append(2.0)


@case
def namespace_in_f_string():
    c = NS(a=1)
    return (lambda x: x * len(f"{c}")), lambda: setattr(c, "b", 2)


@case
def percent_with_tuple():
    a = [1.0]
    return (lambda x: x * len("%s %d" % (a, 1))), lambda: a.append(2.0)  # noqa: UP031


@case
def percent_with_dict():
    d = {"k": 2}
    return (lambda x: x * float("%(k)d" % d)), lambda: d.__setitem__("k", 5)  # noqa: UP031


@case
def format_map_():
    d = {"k": 2}
    return (lambda x: x * float("{k}".format_map(d))), lambda: d.__setitem__("k", 5)


@case
def format_attribute():
    c = NS(v=2)
    return (lambda x: x * float("{0.v}".format(c))), lambda: setattr(c, "v", 5)  # noqa: UP032


@case
def format_attribute_nested():
    c = NS(inner=NS(v=2))
    text = "{c.inner.v}"
    return (lambda x: x * float(text.format(c=c))), lambda: setattr(c.inner, "v", 5)


@case
def format_attribute_of_class():
    class C:
        v = 2

    c, text = C(), "{0.v}"
    return (lambda x: x * float(text.format(c))), lambda: setattr(C, "v", 5)


@case
def format_item():
    d, text = {"a": [1, 2]}, "{0[a][1]}"
    return (lambda x: x * float(text.format(d))), lambda: d["a"].__setitem__(1, 5)


@case
def tuples_of_lists_compared():
    a, b = [1.0], [1.0]
    return (lambda x: x * 2 if (a, 1) == ([1.0], 1) else x * 3), lambda: a.append(1.0)


@case
def sum_of_lists():
    a, b = [1.0], [2.0]
    return (lambda x: x * len(sum([a, b], []))), lambda: b.append(5.0)


@case
def max_of_lists():
    a, b = [1.0], [2.0]
    return (lambda x: x * max([a, b])[0]), lambda: a.__setitem__(0, 5.0)


@case
def chain_from_iterable():
    a, b = [1.0], [2.0]
    return (lambda x: x * sum(itertools.chain.from_iterable([a, b]))), lambda: b.append(5.0)


@case
def lists_in_dict_display():
    a = [1.0]
    return (lambda x: x * len(str({"k": a}))), lambda: a.append(5.0)


@case
def namespaces_compared():
    a, b = NS(v=1), NS(v=1)
    return (lambda x: x * 2 if a == b else x * 3), lambda: setattr(a, "v", 5)


@case
def namespace_repr():
    a = NS(v=[1])
    return (lambda x: x * len(repr(a))), lambda: a.v.append(5)


@case
def weak_value_dictionary():
    class C:
        def __init__(s, v):
            s.v = v

    a, b = C(2.0), C(5.0)
    d = weakref.WeakValueDictionary(k=a)
    c = NS(keep=(a, b))
    return (lambda x: x * d["k"].v), lambda: d.__setitem__("k", c.keep[1])


@case
def weak_key_dictionary():
    class C:
        pass

    a = C()
    d = weakref.WeakKeyDictionary({a: 2.0})
    return (lambda x: x * d[a]), lambda: d.__setitem__(a, 5.0)


@case
def weak_set():
    class C:
        v = 2.0

    a, b = C(), C()
    s = weakref.WeakSet([a])
    return (lambda x: x * sum(o.v for o in s)), lambda: s.add(b)


@case
def weak_proxy():
    class C:
        v = 2.0

    c = C()
    p = weakref.proxy(c)
    return (lambda x: x * p.v), lambda: setattr(c, "v", 5.0)


@case
def weak_method():
    class C:
        v = 2.0

        def m(s):
            return s.v

    c = C()
    m = weakref.WeakMethod(c.m)
    return (lambda x: x * m()()), lambda: setattr(c, "v", 5.0)


@case
def weak_reference_dies():
    class C:
        pass

    keep = [C()]
    r = weakref.ref(keep[0])
    return (lambda x: x * 2 if r() is None else x * 3), lambda: keep.clear()


# ---- C functions that read


@case
def sorted_by_attrgetter():
    items = [NS(v=1.0, w=2.0), NS(v=3.0, w=4.0)]
    return (
        (lambda x: x * sorted(items, key=operator.attrgetter("v"))[0].w),
        lambda: setattr(items[0], "v", 9.0),
    )


@case
def map_attrgetter():
    items = [NS(v=1.0), NS(v=3.0)]
    return (
        (lambda x: x * sum(map(operator.attrgetter("v"), items))),
        lambda: setattr(items[0], "v", 9.0),
    )


@case
def max_by_attrgetter_of_slots():
    class C:
        __slots__ = ("v", "w")

        def __init__(s, v, w):
            s.v, s.w = v, w

    items, key = (C(1.0, 2.0), C(3.0, 4.0)), operator.attrgetter("v")
    return (lambda x: x * max(items, key=key).w), lambda: setattr(items[0], "v", 9.0)


@case
def map_getattr():
    items = [NS(v=1.0), NS(v=3.0)]
    return (
        (lambda x: x * sum(map(getattr, items, itertools.repeat("v")))),
        lambda: setattr(items[0], "v", 9.0),
    )


@case
def reduce_getattr():
    c = NS(a=NS(b=2.0))
    return (lambda x: x * functools.reduce(getattr, ("a", "b"), c)), lambda: setattr(c.a, "b", 5.0)


@case
def reduce_getitem():
    c = {"a": {"b": {"c": {"d": {"e": 2.0}}}}}
    return (
        (lambda x: x * functools.reduce(operator.getitem, "abcde", c)),
        lambda: c["a"]["b"]["c"]["d"].__setitem__("e", 5.0),
    )


@case
def map_bound_getitem():
    d = {"a": 1.0, "b": 2.0}
    return (lambda x: x * sum(map(d.__getitem__, ("a", "b")))), lambda: d.__setitem__("a", 5.0)


@case
def map_bound_get_stored():
    d = {"a": 1.0, "b": 2.0}
    get = d.get
    return (lambda x: x * sum(map(get, ("a", "b")))), lambda: d.__setitem__("a", 5.0)


@case
def bound_get_stored():
    d = {"a": 1.0}
    get = d.get
    return (lambda x: x * get("a")), lambda: d.__setitem__("a", 5.0)


@case
def bound_count_stored():
    s = [1.0]
    count = s.count
    return (lambda x: x * (1 + count(5.0))), lambda: s.append(5.0)


@case
def bound_len_stored():
    s = [1.0]
    length = s.__len__
    return (lambda x: x * length()), lambda: s.append(5.0)


@case
def map_len():
    lists = [[1], [1, 2]]
    return (lambda x: x * sum(map(len, lists))), lambda: lists[0].append(5)


@case
def map_vars():
    items = [NS(v=1.0), NS(v=3.0)]
    return (
        (lambda x: x * sum(d["v"] for d in map(vars, items))),
        lambda: setattr(items[0], "v", 9.0),
    )


@case
def filter_none():
    values = [0.0, 1.0]
    return (lambda x: x * len(list(filter(None, values)))), lambda: values.__setitem__(0, 5.0)


@case
def filter_by_bound_contains():
    allowed = {1, 2}
    return (
        (lambda x: x * len(list(filter(allowed.__contains__, (1, 2, 3))))),
        lambda: allowed.add(3),
    )


@case
def max_by_dict_get():
    d = {"a": 1.0, "bb": 2.0}
    return (lambda x: x * len(max(d, key=d.get))), lambda: d.__setitem__("a", 5.0)


@case
def attrgetter_of_class_attribute():
    class C:
        v = 2.0

    c, get = C(), operator.attrgetter("v", "__class__")
    return (lambda x: x * get(c)[0]), lambda: setattr(C, "v", 5.0)


@case
def itemgetter_of_many():
    d, get = {"a": 1.0, "b": [2.0]}, operator.itemgetter("a", "b")
    return (lambda x: x * get(d)[1][0]), lambda: d["b"].__setitem__(0, 5.0)


@case
def itemgetter_of_slice():
    s, get = [1.0, 2.0], operator.itemgetter(slice(1))
    return (lambda x: x * get(s)[0]), lambda: s.__setitem__(0, 5.0)


@case
def methodcaller_of_dict():
    d, get = {"a": 2.0}, operator.methodcaller("get", "a")
    return (lambda x: x * get(d)), lambda: d.__setitem__("a", 5.0)


@case
def operator_functions():
    s = [1.0, 2.0]
    return (
        (lambda x: x * operator.getitem(s, 0) + operator.countOf(s, 5.0)),
        lambda: s.append(5.0),
    )


@case
def operator_truth():
    s = []
    return (lambda x: x * 2 if operator.truth(s) else x * 3), lambda: s.append(5.0)


@case
def operator_length_hint():
    s = [1]
    return (lambda x: x * operator.length_hint(s)), lambda: s.append(5.0)


@case
def math_of_lists():
    import math

    a, b = [1.0, 2.0], [3.0, 4.0]
    return (lambda x: x * math.dist(a, b) + math.fsum(a)), lambda: b.__setitem__(0, 9.0)


@case
def math_prod_of_generator():
    import math

    c = [NS(v=1.0), NS(v=2.0)]
    return (lambda x: x * math.prod(o.v for o in c)), lambda: setattr(c[1], "v", 5.0)


@case
def itertools_accumulate():
    s = [1.0, 2.0]
    return (lambda x: x * list(itertools.accumulate(s))[-1]), lambda: s.append(5.0)


@case
def itertools_starmap():
    s = [(1.0, 2.0), (3.0, 4.0)]
    return (
        (lambda x: x * sum(itertools.starmap(operator.mul, s))),
        lambda: s.__setitem__(0, (9.0, 9.0)),
    )


@case
def itertools_compress_islice():
    s, mask = [1.0, 2.0], [1, 0]
    return (
        (lambda x: x * sum(itertools.compress(itertools.islice(s, 2), mask))),
        lambda: mask.__setitem__(1, 1),
    )


@case
def itertools_groupby():
    s = ["a", "a", "b"]
    return (lambda x: x * len(list(itertools.groupby(s)))), lambda: s.append("a")


@case
def itertools_product():
    s, t = [1.0, 2.0], [3.0]
    return (lambda x: x * sum(a * b for a, b in itertools.product(s, t))), lambda: t.append(5.0)


@case
def bisect_():
    import bisect

    s = [1.0, 2.0]
    return (lambda x: x * (1 + bisect.bisect(s, 1.5))), lambda: s.insert(0, 0.5)


@case
def heapq_():
    import heapq

    s = [3.0, 4.0]
    return (lambda x: x * heapq.nsmallest(1, s)[0]), lambda: s.append(1.0)


@case
def statistics_():
    import statistics

    s = [3.0, 4.0]
    return (lambda x: x * statistics.fmean(s)), lambda: s.append(1.0)


@case
def enumerate_reversed():
    s = [1.0, 2.0]

    def f(x):
        for n, v in enumerate(reversed(s), start=1):
            x = x * v + n
        return x

    return f, lambda: s.insert(0, 5.0)


@case
def iter_with_sentinel():
    s = NS(v=[1.0, 2.0, -1.0])

    def f(x):
        it = iter(s.v)
        for v in iter(lambda: next(it), -1.0):
            x = x * v
        return x

    return f, lambda: s.v.insert(0, 5.0)


@case
def min_with_default():
    s = []
    return (lambda x: x * min(s, default=2.0)), lambda: s.append(5.0)


@case
def all_of_generator():
    flags = {"a": True, "b": True}
    return (
        (lambda x: x * 2 if all(flags[k] for k in "ab") else x * 3),
        lambda: flags.update(b=False),
    )


@case
def pickle_roundtrip():
    d = {"a": [1.0, {"k": 2.0}]}
    return (
        (lambda x: x * pickle.loads(pickle.dumps(d))["a"][1]["k"]),
        lambda: d["a"][1].__setitem__("k", 5.0),
    )


@case
def copy_of_slots():
    import copy

    class C:
        __slots__ = ("v",)

    c = C()
    c.v = 2.0
    return (lambda x: x * copy.copy(c).v), lambda: setattr(c, "v", 5.0)


@case
def deepcopy_of_objects():
    import copy

    c = NS(inner=NS(v=[2.0]))
    return (lambda x: x * copy.deepcopy(c).inner.v[0]), lambda: c.inner.v.__setitem__(0, 5.0)


@case
def json_with_default():
    c = NS(v=NS(w=2.0))
    return (
        (lambda x: x * json.loads(json.dumps(c, default=vars))["v"]["w"]),
        lambda: setattr(c.v, "w", 5.0),
    )


@case
def json_deep():
    c = {"a": [[[[{"k": 2.0}]]]]}
    return (
        (lambda x: x * json.loads(json.dumps(c))["a"][0][0][0][0]["k"]),
        lambda: c["a"][0][0][0][0].__setitem__("k", 5.0),
    )


@case
def literal_eval_():
    import ast

    c = NS(text="[2.0]")
    return (lambda x: x * ast.literal_eval(c.text)[0]), lambda: setattr(c, "text", "[5.0]")


@case
def string_template():
    import string

    t = string.Template("$k")
    return (lambda x: x * float(t.substitute(k=2))), lambda: setattr(t, "template", "${k}5")


@case
def regular_expression():
    import re

    c = NS(p=re.compile("a"))
    return (lambda x: x * 2 if c.p.match("b") else x * 3), lambda: setattr(c, "p", re.compile("b"))


@case
def regular_expression_with_function():
    import re

    d = {"k": "2"}
    return (
        (lambda x: x * float(re.sub("[a-z]", lambda m: d[m.group()], "k0"))),
        lambda: d.__setitem__("k", "5"),
    )


@case
def config_parser():
    import configparser

    c = configparser.ConfigParser()
    c.read_dict({"a": {"v": "2.0"}})
    return (lambda x: x * c.getfloat("a", "v")), lambda: c.set("a", "v", "5.0")


@case
def argparse_namespace():
    import argparse

    c = argparse.Namespace(v=2.0)
    return (lambda x: x * (c.v if "v" in c else 1.0)), lambda: setattr(c, "v", 5.0)


@case
def queue_size():
    import queue

    q = queue.SimpleQueue()
    return (lambda x: x * (1 + q.qsize())), lambda: q.put(1)


@case
def hash_of_bytes():
    import zlib

    b = bytearray(b"ab")
    return (lambda x: x * (1 + zlib.crc32(b) % 97)), lambda: b.append(5)


@case
def datetime_and_path():
    import datetime
    import pathlib

    c = NS(d=datetime.date(2020, 1, 2), p=pathlib.Path("/a/b"))
    return (
        (lambda x: x * c.d.day + len(c.p.name)),
        lambda: setattr(c, "d", datetime.date(2020, 1, 5)),
    )


@case
def fraction_and_decimal():
    c = NS(f=Fraction(1, 2), d=decimal.Decimal("2"))
    return (lambda x: x * float(c.f) + float(c.d)), lambda: setattr(c, "d", decimal.Decimal("5"))


@case
def decimal_precision():
    context = decimal.getcontext()
    old = context.prec
    f = lambda x: x * float(decimal.Decimal(1) / decimal.Decimal(3)) * 1e3
    f.undo = lambda: setattr(context, "prec", old)
    return f, lambda: setattr(context, "prec", 2)


# ---- match


@case
def match_class_attribute():
    c = NS(kind="a", v=2.0)

    def f(x):
        match c:
            case types.SimpleNamespace(kind="a", v=v):
                return x * v
            case _:
                return x * 7

    return f, lambda: setattr(c, "v", 5.0)


@case
def match_class_positional():
    @dataclasses.dataclass
    class P:
        a: float
        b: float

    p = P(1.0, 2.0)

    def f(x):
        match p:
            case P(1.0, b):
                return x * b
            case P(a, b):
                return x * a * b * 10

    return f, lambda: setattr(p, "b", 5.0)


@case
def match_args_changed():
    class P:
        __match_args__ = ("a",)

        def __init__(s):
            s.a, s.b = 2.0, 5.0

    p = P()

    def f(x):
        match p:
            case P(v):
                return x * v
        return x

    return f, lambda: setattr(P, "__match_args__", ("b",))


@case
def match_class_of_subject():
    class A:
        pass

    class B:
        pass

    c = NS(o=A())

    def f(x):
        match c.o:
            case A():
                return x * 2
            case B():
                return x * 3

    return f, lambda: setattr(c.o, "__class__", B)


@case
def match_sequence_star():
    s = ["go", 1.0, 2.0]

    def f(x):
        match s:
            case ["go", *rest]:
                return x * sum(rest)
            case _:
                return x

    return f, lambda: s.append(5.0)


@case
def match_mapping_rest():
    d = {"kind": "a", "v": {"w": 2.0}}

    def f(x):
        match d:
            case {"kind": "a", "v": {"w": w}, **rest}:
                return x * w + len(rest)
            case _:
                return x

    return f, lambda: d.__setitem__("z", 5.0)


@case
def match_nested_list():
    d = {"v": [1.0, [2.0]]}

    def f(x):
        match d:
            case {"v": [a, [b]]}:
                return x * a * b
            case _:
                return x

    return f, lambda: d["v"][1].__setitem__(0, 5.0)


@case
def match_value_pattern():
    class K:
        A = "a"

    c = NS(kind="a")

    def f(x):
        match c.kind:
            case K.A:
                return x * 2
            case _:
                return x * 3

    return f, lambda: setattr(K, "A", "b")


@case
def match_guard():
    c = NS(limit=1.0)

    def f(x):
        match 2.0:
            case v if v > c.limit:
                return x * v
            case _:
                return x * 3

    return f, lambda: setattr(c, "limit", 5.0)


# ---- values


@case
def minus_zero():
    c = NS(v=0.0)
    return (lambda x: torch.copysign(x, torch.full_like(x, c.v))), lambda: setattr(c, "v", -0.0)


@case
def minus_zero_in_list():
    s = [0.0]
    return (lambda x: torch.copysign(x, torch.full_like(x, s[0]))), lambda: s.__setitem__(0, -0.0)


@case
def minus_zero_in_tuple():
    c = NS(t=(0.0, 1.0))
    return (
        (lambda x: torch.copysign(x, torch.full_like(x, c.t[0]))),
        lambda: setattr(c, "t", (-0.0, 1.0)),
    )


@case
def minus_zero_complex():
    c = NS(v=complex(0.0, 0.0))
    return (
        (lambda x: torch.copysign(x, torch.full_like(x, c.v.imag))),
        lambda: setattr(c, "v", complex(0.0, -0.0)),
    )


@case
def minus_zero_in_slot():
    class C:
        __slots__ = ("v",)

    c = C()
    c.v = 0.0
    return (lambda x: torch.copysign(x, torch.full_like(x, c.v))), lambda: setattr(c, "v", -0.0)


@case
def minus_zero_in_bytes():
    b = array.array("d", [0.0])
    return (lambda x: torch.copysign(x, torch.full_like(x, b[0]))), lambda: b.__setitem__(0, -0.0)


@case
def minus_zero_in_context_variable():
    v = contextvars.ContextVar("mz", default=0.0)
    return (lambda x: torch.copysign(x, torch.full_like(x, v.get()))), lambda: v.set(-0.0)


@case
def true_in_place_of_one():
    c = NS(v=1)
    return (lambda x: x * 2 if c.v is True else x * 3), lambda: setattr(c, "v", True)


@case
def one_float_in_place_of_int():
    s = {"n": 1}
    return (
        (lambda x: x * 2 if isinstance(s["n"], int) else x * 3),
        lambda: s.__setitem__("n", 1.0),
    )


@case
def true_in_set():
    s = {1}

    def change():
        s.clear()
        s.add(True)

    return (lambda x: x * len(str(next(iter(s))))), change


@case
def true_as_key():
    d = {1: 2.0}

    def change():
        d.clear()
        d[True] = 2.0

    return (lambda x: x * len("".join(map(str, d)))), change


@case
def float_key_in_place_of_int():
    d = {1: 2.0}

    def change():
        del d[1]
        d[1.0] = 2.0

    return (lambda x: x * sum(len(repr(k)) for k in d)), change


@case
def nan_swapped():
    c = NS(v=float("nan"))
    return (lambda x: x * 2 if c.v != c.v else x * 3), lambda: setattr(c, "v", 1.0)


@case
def infinity():
    c = NS(limit=float("inf"))
    return (lambda x: x.clamp(max=c.limit)), lambda: setattr(c, "limit", -1.0)


@case
def big_int():
    c = NS(v=10**30)
    return (lambda x: x * (c.v % 97)), lambda: setattr(c, "v", 10**30 + 1)


@case
def str_of_state():
    c = NS(v="ab")
    return (lambda x: x * len(c.v.upper().split("B"))), lambda: setattr(c, "v", "abb")


@case
def bytes_of_state():
    c = NS(v=b"\x02")
    return (lambda x: x * c.v[0]), lambda: setattr(c, "v", b"\x05")


@case
def none_and_ellipsis():
    c = NS(v=None)
    return (lambda x: x * 2 if c.v is ... else x * 3), lambda: setattr(c, "v", ...)


@case
def slice_of_state():
    c = NS(v=slice(0, 1))
    return (lambda x: x[:, c.v]), lambda: setattr(c, "v", slice(0, 3))


@case
def range_of_state():
    c = NS(v=range(2))
    return (lambda x: x * sum(c.v)), lambda: setattr(c, "v", range(4))


@case
def identity_of_objects():
    class C:
        pass

    a, b = C(), C()
    c = NS(o=a)
    return (lambda x: x * 2 if c.o is a else x * 3), lambda: setattr(c, "o", b)


@case
def dtype_and_device_values():
    c = NS(dtype=torch.float32)
    return (lambda x: x.to(c.dtype) / 3), lambda: setattr(c, "dtype", torch.float64)


# ---- modules and the process


@case
def sys_modules_swapped():
    made_module("hm_swap", k=2.0)
    other = types.ModuleType("hm_swap")
    other.k = 5.0

    def f(x):
        import hm_swap

        return x * hm_swap.k

    return f, lambda: sys.modules.__setitem__("hm_swap", other)


@case
def sys_modules_swapped_from_import():
    made_module("hm_swap2", k=2.0)
    other = types.ModuleType("hm_swap2")
    other.k = 5.0

    def f(x):
        from hm_swap2 import k

        return x * k

    return f, lambda: sys.modules.__setitem__("hm_swap2", other)


@case
def sys_modules_swapped_importlib():
    made_module("hm_swap3", k=2.0)
    other = types.ModuleType("hm_swap3")
    other.k = 5.0
    return (
        (lambda x: x * importlib.import_module("hm_swap3").k),
        lambda: sys.modules.__setitem__("hm_swap3", other),
    )


@case
def sys_modules_swapped_by_key():
    made_module("hm_swap4", k=2.0)
    other = types.ModuleType("hm_swap4")
    other.k = 5.0
    return (
        (lambda x: x * sys.modules["hm_swap4"].k),
        lambda: sys.modules.__setitem__("hm_swap4", other),
    )


@case
def sys_modules_contains():
    sys.modules.pop("hm_late", None)
    f = lambda x: x * 2 if "hm_late" in sys.modules else x * 3
    f.undo = lambda: sys.modules.pop("hm_late", None)
    return f, lambda: made_module("hm_late")


@case
def import_fails_then_works():
    sys.modules.pop("hm_late2", None)

    def f(x):
        try:
            import hm_late2
        except ImportError:
            return x * 2
        return x * 3

    f.undo = lambda: sys.modules.pop("hm_late2", None)
    return f, lambda: made_module("hm_late2")


@case
def dunder_import():
    m = made_module("hm_dunder", k=2.0)
    return (lambda x: x * __import__("hm_dunder").k), lambda: setattr(m, "k", 5.0)


@case
def submodule_imported():
    package = made_module("hm_pkg", __path__=[])
    package.sub = made_module("hm_pkg.sub", k=2.0)

    def f(x):
        import hm_pkg.sub

        return x * hm_pkg.sub.k

    return f, lambda: setattr(package, "sub", NS(k=5.0))


@case
def submodule_imported_as():
    package = made_module("hm_pkg2", __path__=[])
    package.sub = made_module("hm_pkg2.sub", k=2.0)

    def f(x):
        import hm_pkg2.sub as s

        return x * s.k

    return f, lambda: setattr(package, "sub", NS(k=5.0))


@case
def module_getattr():
    m = made_module("hm_getattr", values={"k": 2.0})
    exec("def __getattr__(name): return values[name]", vars(m))
    return (lambda x: x * m.k), lambda: m.values.__setitem__("k", 5.0)


@case
def module_getattr_hidden():
    m = made_module("hm_getattr2")
    exec("def __getattr__(name): return 2.0", vars(m))
    return (lambda x: x * m.k), lambda: setattr(m, "k", 5.0)


@case
def module_class_changed():
    m = made_module("hm_class", k=2.0)

    class M(types.ModuleType):
        @property
        def k(s):
            return 5.0

    return (lambda x: x * m.k), lambda: setattr(m, "__class__", M)


@case
def module_name():
    m = made_module("hm_name")
    return (lambda x: x * len(m.__name__)), lambda: setattr(m, "__name__", "longer_name")


@case
def module_vars_iterated():
    m = made_module("hm_vars", va=1.0, vb=2.0)
    return (
        (lambda x: x * sum(v for k, v in vars(m).items() if k[0] == "v")),
        lambda: setattr(m, "vc", 5.0),
    )


@case
def module_function_monkeypatched():
    m = made_module("hm_fn")
    exec("def g(x): return x * 2\ndef f(x): return g(x)", vars(m))
    return (lambda x: m.f(x)), lambda: setattr(m, "g", lambda x: x * 5)


@case
def module_reloaded():
    m = made_module("hm_reload")
    source = "K = {}\nclass C:\n    k = K\ndef f(x): return x * C.k"
    exec(source.format(2.0), vars(m))
    return (lambda x: m.f(x)), lambda: exec(source.format(5.0), vars(m))


@case
def globals_iterated():
    ns = {"va": 1.0, "vb": 2.0}
    exec("def f(x): return x*sum(v for k, v in globals().items() if k[0] == 'v')", ns)
    return ns["f"], lambda: ns.__setitem__("vc", 5.0)


@case
def globals_of_another_function():
    ns = {"k": 2.0}
    exec("def h(): pass", ns)
    h = ns["h"]
    return (lambda x: x * h.__globals__["k"]), lambda: ns.__setitem__("k", 5.0)


@case
def locals_of_closure():
    k = 2.0

    def f(x):
        k
        return x * locals()["k"]

    def change():
        nonlocal k
        k = 5.0

    return f, change


@case
def eval_with_namespace():
    ns = {"k": 2.0}
    return (lambda x: x * eval("k * 2", ns)), lambda: ns.__setitem__("k", 5.0)


@case
def exec_of_stored_source():
    c = NS(source="v = 2.0")

    def f(x):
        ns = {}
        exec(c.source, ns)
        return x * ns["v"]

    return f, lambda: setattr(c, "source", "v = 5.0")


@case
def eval_of_compiled_code():
    c = NS(code=compile("2.0", "a", "eval"))
    return (lambda x: x * eval(c.code)), lambda: setattr(c, "code", compile("5.0", "a", "eval"))


@case
def class_made_of_state():
    ns = {"v": 2.0}
    return (lambda x: x * type("T", (), ns).v), lambda: ns.__setitem__("v", 5.0)


@case
def class_made_with_state_as_base():
    class A:
        v = 2.0

    def f(x):
        class T(A):
            pass

        return x * T.v

    return f, lambda: setattr(A, "v", 5.0)


@case
def builtins_asked():
    f = lambda x: x * 2 if hasattr(builtins, "hm_extra") else x * 3
    f.undo = lambda: vars(builtins).pop("hm_extra", None)
    return f, lambda: setattr(builtins, "hm_extra", 1)


@case
def sys_attribute():
    sys.hm_value = 2.0
    return (lambda x: x * sys.hm_value), lambda: setattr(sys, "hm_value", 5.0)


@case
def sys_argv():
    f = lambda x: x * len(sys.argv)
    f.undo = lambda: sys.argv.remove("--hm")
    return f, lambda: sys.argv.append("--hm")


@case
def environ_iterated():
    f = lambda x: x * (1 + sum(k.startswith("HM_IT") for k in os.environ))
    f.undo = lambda: os.environ.pop("HM_IT", None)
    return f, lambda: os.environ.__setitem__("HM_IT", "1")


@case
def environ_contains():
    f = lambda x: x * 2 if "HM_IN" in os.environ else x * 3
    f.undo = lambda: os.environ.pop("HM_IN", None)
    return f, lambda: os.environ.__setitem__("HM_IN", "1")


@case
def environ_bytes():
    os.environ["HM_B"] = "2"
    return (
        (lambda x: x * float(os.environb[b"HM_B"])),
        lambda: os.environ.__setitem__("HM_B", "5"),
    )


@case
def environ_expanded():
    os.environ["HM_X"] = "2"
    return (
        (lambda x: x * float(os.path.expandvars("$HM_X"))),
        lambda: os.environ.__setitem__("HM_X", "5"),
    )


@case
def thread_name():
    thread = threading.current_thread()
    old = thread.name
    f = lambda x: x * len(threading.current_thread().name)
    f.undo = lambda: setattr(thread, "name", old)
    return f, lambda: setattr(thread, "name", "another name of it")


@case
def logger_level():
    import logging

    logger = logging.getLogger("hm")
    logger.setLevel(10)
    return (lambda x: x * logger.level), lambda: logger.setLevel(20)


@case
def context_run():
    v = contextvars.ContextVar("hm")
    context = contextvars.copy_context()
    context.run(v.set, 2.0)
    return (lambda x: x * context.run(v.get)), lambda: context.run(v.set, 5.0)


@case
def context_item():
    v = contextvars.ContextVar("hm2")
    context = contextvars.copy_context()
    context.run(v.set, 2.0)
    return (lambda x: x * context[v]), lambda: context.run(v.set, 5.0)


@case
def context_variable_of_list():
    v = contextvars.ContextVar("hm3", default=[2.0])
    return (lambda x: x * v.get()[0]), lambda: v.get().__setitem__(0, 5.0)


@case
def context_variable_unset():
    v = contextvars.ContextVar("hm4")

    def f(x):
        try:
            return x * v.get()
        except LookupError:
            return x * 2

    return f, lambda: v.set(5.0)


@case
def context_variable_in_copied_context():
    v = contextvars.ContextVar("hm5", default=2.0)
    return (lambda x: x * contextvars.copy_context().run(v.get)), lambda: v.set(5.0)


@case
def thread_local_dict():
    local = threading.local()
    local.v = 2.0
    return (lambda x: x * sum(vars(local).values())), lambda: setattr(local, "w", 5.0)


@case
def thread_local_hasattr():
    local = threading.local()
    return (lambda x: x * 2 if hasattr(local, "w") else x * 3), lambda: setattr(local, "w", 5.0)


@case
def thread_local_object():
    local = threading.local()
    local.c = NS(v=2.0)
    return (lambda x: x * local.c.v), lambda: setattr(local.c, "v", 5.0)


@case
def frame_of_caller():
    def h():
        return sys._getframe(1).f_locals["v"]

    c = NS(v=2.0)

    def f(x):
        v = c.v
        return x * h()

    return f, lambda: setattr(c, "v", 5.0)


# ---- torch: modules


class Scale(nn.Module):
    def __init__(self, k=2.0):
        super().__init__()
        self.k = k

    def forward(self, x):
        return x * self.k


@case
def pre_hook_with_kwargs():
    m = Scale()
    k = {"k": 1.0}
    m.register_forward_pre_hook(lambda mod, a, kw: ((a[0] * k["k"],), kw), with_kwargs=True)
    return (lambda x: m(x)), lambda: k.__setitem__("k", 5.0)


@case
def pre_hook_added_to_child():
    m = nn.Sequential(nn.Sequential(Scale()))
    return m, lambda: m[0][0].register_forward_pre_hook(lambda mod, a: (a[0] * 5,))


@case
def hook_removed():
    m = Scale()
    handle = m.register_forward_hook(lambda mod, a, out: out * 5)
    return (lambda x: m(x)), handle.remove


@case
def hooks_reordered():
    m = Scale()
    first = m.register_forward_hook(lambda mod, a, out: out * 5)
    m.register_forward_hook(lambda mod, a, out: out + 1)
    return (lambda x: m(x)), lambda: m._forward_hooks.move_to_end(first.id)


@case
def hook_prepended():
    m = Scale()
    m.register_forward_hook(lambda mod, a, out: out * 5)
    return (
        (lambda x: m(x)),
        lambda: m.register_forward_hook(lambda mod, a, out: out + 1, prepend=True),
    )


@case
def global_pre_hook():
    m = nn.Sequential(Scale())
    handles = []

    def change():
        register = torch.nn.modules.module.register_module_forward_pre_hook
        handles.append(register(lambda mod, a: (a[0] * 2,)))

    f = lambda x: m(x)
    f.undo = lambda: [h.remove() for h in handles]
    return f, change


@case
def hook_dict_replaced():
    m = Scale()
    hooks = collections.OrderedDict({7: lambda mod, a, out: out * 5})
    return (lambda x: m(x)), lambda: setattr(m, "_forward_hooks", hooks)


@case
def call_of_module_replaced():
    class M(nn.Module):
        def forward(s, x):
            return x * 2

    m = M()
    return (lambda x: m(x)), lambda: setattr(M, "__call__", lambda s, x: x * 5)


@case
def call_impl_of_instance_replaced():
    m = Scale()
    return (lambda x: m(x)), lambda: setattr(m, "_call_impl", lambda x: x * 5)


@case
def forward_of_instance_bound():
    m = Scale()
    return (
        nn.Sequential(m, nn.Identity()),
        lambda: setattr(m, "forward", types.MethodType(lambda s, x: x * s.k * 5, m)),
    )


@case
def class_of_module_changed():
    class M(Scale):
        def forward(s, x):
            return x * s.k * 5

    m = nn.Sequential(Scale())
    return m, lambda: setattr(m[0], "__class__", M)


@case
def module_dict_replaced():
    m = Scale()
    other = Scale(5.0)
    return (lambda x: m(x)), lambda: setattr(m, "__dict__", dict(other.__dict__))


@case
def modules_of_module_replaced():
    m = nn.Sequential(Scale())
    return m, lambda: setattr(m, "_modules", {"0": Scale(5.0)})


@case
def parameters_of_module_replaced():
    m = nn.Linear(4, 4)
    new = {"weight": nn.Parameter(torch.ones(4, 4)), "bias": m.bias}
    return (lambda x: m(x)), lambda: setattr(m, "_parameters", new)


@case
def sequential_insert():
    m = nn.Sequential(Scale(), nn.ReLU())
    return m, lambda: m.insert(0, Scale(-1.0))


@case
def sequential_pop():
    m = nn.Sequential(Scale(), nn.ReLU())
    return m, lambda: m.pop(1)


@case
def sequential_deleted():
    m = nn.Sequential(Scale(), Scale(), nn.ReLU())
    return m, lambda: m.__delitem__(slice(1, 3))


@case
def sequential_reordered():
    m = nn.Sequential(collections.OrderedDict(a=Scale(-1.0), b=nn.ReLU()))
    return m, lambda: m._modules.__setitem__("a", m._modules.pop("a"))


@case
def sequential_indexed():
    m = nn.Sequential(Scale(2.0), Scale(5.0), Scale(7.0))
    return (lambda x: m[-1](m[0:1](x))), lambda: m.__setitem__(-1, Scale(3.0))


@case
def modulelist_reversed():
    m = nn.ModuleList([Scale(-1.0), nn.ReLU()])

    def f(x):
        for layer in reversed(m):
            x = layer(x)
        return x

    return f, lambda: m.extend([Scale(5.0)])


@case
def modulelist_slice_and_len():
    m = nn.ModuleList([Scale(2.0), Scale(3.0)])

    def f(x):
        for n, layer in enumerate(m[1:]):
            x = layer(x) + n
        return x * len(m)

    return f, lambda: m.insert(0, Scale(5.0))


@case
def modulelist_deleted():
    m = nn.ModuleList([Scale(2.0), Scale(3.0)])
    return (lambda x: m[0](x)), lambda: m.__delitem__(0)


@case
def moduledict_iterated():
    m = nn.ModuleDict({"a": Scale(2.0), "b": Scale(3.0)})

    def f(x):
        for name, layer in m.items():
            x = layer(x) + len(name)
        return x

    return f, lambda: m.update({"ccc": Scale(5.0)})


@case
def moduledict_contains():
    m = nn.ModuleDict({"a": Scale(2.0)})
    return (lambda x: m["b"](x) if "b" in m else m["a"](x)), lambda: m.add_module("b", Scale(5.0))


@case
def moduledict_popped():
    m = nn.ModuleDict({"a": Scale(2.0), "b": Scale(3.0)})
    return (lambda x: next(iter(m.values()))(x)), lambda: m.pop("a")


@case
def parameterlist_item():
    p = nn.ParameterList([torch.ones(4), torch.ones(4)])
    return (lambda x: x * p[-1]), lambda: p.__setitem__(1, nn.Parameter(torch.zeros(4)))


@case
def parameterlist_append():
    p = nn.ParameterList([torch.ones(4)])
    return (lambda x: x * sum(w for w in p)), lambda: p.append(nn.Parameter(torch.ones(4)))


@case
def parameterlist_of_numbers():
    p = nn.ParameterList([2.0, torch.ones(4)])
    return (lambda x: x * p[0]), lambda: p.__setitem__(0, 5.0)


@case
def parameterdict_item():
    p = nn.ParameterDict({"a": torch.ones(4)})
    return (lambda x: x * p["a"]), lambda: p.__setitem__("a", nn.Parameter(torch.zeros(4)))


@case
def parameterdict_iterated():
    p = nn.ParameterDict({"a": torch.ones(4)})
    return (
        (lambda x: x * sum(p.values())),
        lambda: p.__setitem__("b", nn.Parameter(torch.ones(4))),
    )


@case
def parameterdict_get_default():
    p = nn.ParameterDict({"a": torch.ones(4)})
    return (lambda x: x * p.get("b", p["a"])), lambda: p.update({"b": torch.zeros(4)})


@case
def buffer_registered_again():
    m = nn.Module()
    m.register_buffer("b", torch.ones(4), persistent=False)
    return (lambda x: x * m.b), lambda: m.register_buffer("b", torch.zeros(4))


@case
def buffers_summed():
    m = nn.Sequential(nn.BatchNorm1d(4)).eval()
    return (
        (lambda x: x * sum(b.float().sum() for b in m.buffers())),
        lambda: m.register_buffer("extra", torch.ones(4)),
    )


@case
def buffer_persistence():
    m = nn.Module()
    m.register_buffer("b", torch.ones(4))
    return (
        (lambda x: x * (1 + len(m.state_dict()))),
        lambda: m._non_persistent_buffers_set.add("b"),
    )


@case
def parameter_becomes_none():
    m = nn.Linear(4, 4)
    return (lambda x: m(x)), lambda: setattr(m, "bias", None)


@case
def parameter_tied():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    return (lambda x: b(a(x))), lambda: setattr(b, "weight", a.weight)


@case
def parameter_untied():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight
    return (
        (lambda x: a(x) if b.weight is a.weight else b(x)),
        lambda: setattr(b, "weight", nn.Parameter(torch.ones(4, 4))),
    )


@case
def parameter_data_replaced():
    m = nn.Linear(4, 4)
    return (lambda x: m(x)), lambda: setattr(m.weight, "data", torch.ones(4, 4))


@case
def parameter_data_transposed():
    m = nn.Linear(4, 4)
    return (lambda x: m(x)), lambda: setattr(m.weight, "data", m.weight.data.t())


@case
def parameter_of_another_dtype():
    m = nn.Linear(4, 4)
    return (
        (lambda x: m(x.to(next(m.parameters()).dtype)).float()),
        lambda: m.to(torch.bfloat16),
    )


@case
def state_dict_loaded_by_assignment():
    m = nn.Linear(4, 4)
    new = {"weight": torch.ones(4, 4), "bias": torch.zeros(4)}
    return (lambda x: m(x)), lambda: m.load_state_dict(new, assign=True)


@case
def state_dict_read():
    m = nn.Linear(4, 4)
    return (
        (lambda x: x @ m.state_dict()["weight"]),
        lambda: setattr(m, "weight", nn.Parameter(torch.ones(4, 4))),
    )


@case
def named_parameters_read():
    m = nn.Sequential(nn.Linear(4, 4))
    return (
        (lambda x: x * sum(p.sum() for n, p in m.named_parameters() if n.endswith("weight"))),
        lambda: m.append(nn.Linear(4, 4)),
    )


@case
def requires_grad_counted():
    m = nn.Linear(4, 4)
    return (
        (lambda x: x * (1 + sum(p.requires_grad for p in m.parameters()))),
        lambda: m.requires_grad_(False),
    )


@case
def children_and_modules():
    m = nn.Sequential(Scale(), nn.Sequential(Scale()))
    return (
        (lambda x: x * len(list(m.children())) + len(list(m.modules()))),
        lambda: m[1].append(Scale()),
    )


@case
def modules_by_class():
    m = nn.Sequential(Scale(), nn.ReLU())
    return (
        (lambda x: x * (1 + sum(isinstance(s, Scale) for _, s in m.named_modules()))),
        lambda: m.__setitem__(1, Scale()),
    )


@case
def submodule_by_path():
    m = nn.Sequential(nn.Sequential(Scale()))
    return (lambda x: m.get_submodule("0.0")(x)), lambda: m[0].__setitem__(0, Scale(5.0))


@case
def parameter_by_path():
    m = nn.Sequential(nn.Linear(4, 4))
    return (
        (lambda x: x @ m.get_parameter("0.weight")),
        lambda: setattr(m[0], "weight", nn.Parameter(torch.ones(4, 4))),
    )


@case
def applied_to_modules():
    m = nn.Sequential(Scale(2.0), Scale(3.0))

    def f(x):
        got = []
        m.apply(lambda s: got.append(getattr(s, "k", 0.0)))
        return x * sum(got)

    return f, lambda: setattr(m[0], "k", 5.0)


@case
def repr_of_module():
    m = nn.Sequential(nn.LeakyReLU(0.5))
    return (lambda x: x * len(repr(m))), lambda: setattr(m[0], "negative_slope", 0.123456)


@case
def child_to_train():
    class M(nn.Module):
        def forward(s, x):
            return x * 2 if s.training else x * 3

    m = nn.Sequential(nn.Sequential(M())).eval()
    return m, lambda: m[0].train()


@case
def training_of_all_children():
    m = nn.Sequential(Scale(), nn.Sequential(Scale())).eval()
    return (
        (lambda x: x * (1 + sum(s.training for s in m.modules()))),
        lambda: m[1].train(),
    )


@case
def dropout_to_train_with_p_one():
    m = nn.Sequential(nn.Dropout(1.0)).eval()
    return m, lambda: m.train()


@case
def dropout_rate_in_train():
    m = nn.Dropout(0.0)
    return (lambda x: m(x)), lambda: setattr(m, "p", 1.0)


@case
def batch_norm_running_mean_removed():
    m = nn.BatchNorm1d(4).eval()

    def change():
        m.running_mean = m.running_var = None

    return (lambda x: m(x)), change


@case
def batch_norm_buffer_replaced():
    m = nn.BatchNorm1d(4).eval()
    return (lambda x: m(x)), lambda: setattr(m, "running_mean", torch.ones(4))


@case
def layer_norm_eps():
    m = nn.LayerNorm(4)
    return (lambda x: m(x)), lambda: setattr(m, "eps", 0.5)


@case
def activation_settings():
    m = nn.Sequential(nn.GELU(), nn.Softmax(dim=-1))
    return m, lambda: setattr(m[0], "approximate", "tanh")


@case
def conv_padding():
    m = nn.Conv1d(2, 2, 3, padding=1)
    return (lambda x: m(x)), lambda: setattr(m, "padding", (2,))


@case
def flatten_dims():
    m = nn.Flatten(0)
    return (lambda x: m(x)), lambda: setattr(m, "start_dim", 1)


@case
def gru_weight_replaced():
    m = nn.GRU(4, 4)
    return (
        (lambda x: m(x)[0]),
        lambda: setattr(m, "weight_ih_l0", nn.Parameter(torch.ones(12, 4))),
    )


@case
def rnn_flat_weights_replaced():
    m = nn.RNN(4, 4)
    return (
        (lambda x: m(x)[0]),
        lambda: m._flat_weights.__setitem__(0, nn.Parameter(torch.ones(4, 4))),
    )


@case
def embedding_weight_replaced():
    m = nn.Embedding(3, 4)
    index = torch.tensor([0, 2])
    return (
        (lambda x: x + m(index)),
        lambda: setattr(m, "weight", nn.Parameter(torch.ones(3, 4))),
    )


@case
def attention_function_replaced():
    m = nn.MultiheadAttention(4, 2, dropout=0.0)
    old = F.scaled_dot_product_attention
    f = lambda x: m(x, x, x, need_weights=False)[0]
    f.undo = lambda: setattr(F, "scaled_dot_product_attention", old)
    return f, lambda: setattr(F, "scaled_dot_product_attention", lambda q, k, v, *a: v * 5)


@case
def attention_heads():
    m = nn.MultiheadAttention(4, 2, dropout=0.0)

    def change():
        m.num_heads, m.head_dim = 1, 4

    return (lambda x: m(x, x, x, need_weights=False)[0]), change


@case
def functional_of_module_replaced():
    m = nn.Sequential(nn.GELU())
    old = F.gelu
    f = lambda x: m(x)
    f.undo = lambda: setattr(F, "gelu", old)
    return f, lambda: setattr(F, "gelu", lambda x, approximate: x * 5)


@case
def functional_inside_functional_replaced():
    old = F.softplus
    f = lambda x: F.mish(x) + F.softplus(x)
    f.undo = lambda: setattr(F, "softplus", old)
    return f, lambda: setattr(F, "softplus", lambda x: x * 5)


@case
def forward_of_torch_class_replaced():
    old = nn.ReLU.forward
    m = nn.Sequential(nn.ReLU())
    f = lambda x: m(x)
    f.undo = lambda: setattr(nn.ReLU, "forward", old)
    return f, lambda: setattr(nn.ReLU, "forward", lambda s, x: x * 5)


@case
def method_of_tensor_replaced():
    f = lambda x: x.relu()
    f.undo = lambda: delattr(torch.Tensor, "relu") if "relu" in vars(torch.Tensor) else None
    return f, lambda: setattr(torch.Tensor, "relu", lambda s: s * 5)


@case
def method_of_tensor_of_ours():
    torch.Tensor.hm_twice = lambda s: s * 2
    f = lambda x: x.hm_twice()
    f.undo = lambda: vars(torch.Tensor) and delattr(torch.Tensor, "hm_twice")
    return f, lambda: setattr(torch.Tensor, "hm_twice", lambda s: s * 5)


@case
def attribute_of_tensor_class_added():
    f = lambda x: x * 2 if hasattr(torch.Tensor, "hm_mark") else x * 3
    f.undo = lambda: "hm_mark" in vars(torch.Tensor) and delattr(torch.Tensor, "hm_mark")
    return f, lambda: setattr(torch.Tensor, "hm_mark", 1)


@case
def attribute_of_module_class_added():
    m = nn.ReLU()
    f = lambda x: m(x) * getattr(m, "hm_gain", 2.0)
    f.undo = lambda: "hm_gain" in vars(nn.Module) and delattr(nn.Module, "hm_gain")
    return f, lambda: setattr(nn.Module, "hm_gain", 5.0)


@case
def parametrization_state():
    from torch.nn.utils import parametrize

    m = nn.Linear(4, 4)
    parametrize.register_parametrization(m, "weight", Scale(2.0))
    return (lambda x: m(x)), lambda: setattr(m.parametrizations.weight[0], "k", 5.0)


@case
def parametrization_added():
    from torch.nn.utils import parametrize

    m = nn.Linear(4, 4)
    return (
        (lambda x: m(x)),
        lambda: parametrize.register_parametrization(m, "weight", Scale(2.0)),
    )


@case
def parametrization_appended():
    from torch.nn.utils import parametrize

    m = nn.Linear(4, 4)
    parametrize.register_parametrization(m, "weight", Scale(2.0))
    return (
        (lambda x: m(x)),
        lambda: parametrize.register_parametrization(m, "weight", Scale(3.0)),
    )


@case
def parametrization_removed():
    from torch.nn.utils import parametrize

    m = nn.Linear(4, 4)
    parametrize.register_parametrization(m, "weight", Scale(2.0))
    return (
        (lambda x: m(x)),
        lambda: parametrize.remove_parametrizations(m, "weight", leave_parametrized=False),
    )


@case
def weight_norm_of_today():
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    return (
        (lambda x: m(x)),
        lambda: setattr(
            m.parametrizations.weight, "original0", nn.Parameter(torch.full((4, 1), 5.0))
        ),
    )


@case
def spectral_norm_in_eval():
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval()
    return (
        (lambda x: m(x)),
        lambda: setattr(m.parametrizations.weight[0], "_u", torch.ones(4) / 2),
    )


@case
def parameters_to_vector_():
    m = nn.Linear(4, 4)
    return (
        (lambda x: x * nn.utils.parameters_to_vector(m.parameters()).sum()),
        lambda: m.register_parameter("extra", nn.Parameter(torch.ones(3))),
    )


@case
def functional_call_():
    m = nn.Linear(4, 4)
    params = {"weight": torch.ones(4, 4), "bias": torch.zeros(4)}
    return (
        (lambda x: torch.func.functional_call(m, params, (x,))),
        lambda: params.__setitem__("bias", torch.ones(4)),
    )


@case
def vmap_of_state():
    c = NS(v=2.0)
    return (lambda x: torch.vmap(lambda r: r * c.v)(x)), lambda: setattr(c, "v", 5.0)


@case
def vmap_in_dims():
    c = NS(dims=(0, None))
    w = torch.randn(2, 4)
    return (
        (lambda x: torch.vmap(lambda a, b: (a * b).sum(), in_dims=c.dims)(x, w)),
        lambda: setattr(c, "dims", (0, 0)),
    )


@case
def autograd_function_state():
    class Fn(torch.autograd.Function):
        k = 2.0

        @staticmethod
        def forward(ctx, x):
            return x * Fn.k

    return (lambda x: Fn.apply(x)), lambda: setattr(Fn, "k", 5.0)


@case
def autograd_function_forward_replaced():
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    return (
        (lambda x: Fn.apply(x)),
        lambda: setattr(Fn, "forward", staticmethod(lambda ctx, x: x * 5)),
    )


@case
def torch_function_mode():
    class Mode(torch.overrides.TorchFunctionMode):
        k = 2.0

        def __torch_function__(s, fn, kinds, args=(), kwargs=None):
            result = fn(*args, **(kwargs or {}))
            return result * s.k if fn is torch.relu else result

    mode = Mode()

    def f(x):
        with mode:
            return torch.relu(x)

    return f, lambda: setattr(mode, "k", 5.0)


@case
def fx_module_changed():
    g = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))

    def change():
        for node in g.graph.nodes:
            if node.op == "call_module":
                node.op, node.target = "call_function", torch.tanh
        g.recompile()

    return (lambda x: g(x)), change


@case
def fx_module_attribute():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.w = nn.Parameter(torch.ones(4))

        def forward(s, x):
            return x * s.w

    g = torch.fx.symbolic_trace(M())
    return (lambda x: g(x)), lambda: setattr(g, "w", nn.Parameter(torch.zeros(4)))


@case
def distribution_parameters():
    d = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
    return (lambda x: d.log_prob(x)), lambda: setattr(d, "loc", torch.ones(4))


# ---- torch: tensors


@case
def tensor_attribute_deleted():
    w = torch.ones(4)
    w.scale = 2.0
    return (lambda x: x * getattr(w, "scale", 5.0)), lambda: delattr(w, "scale")


@case
def tensor_attribute_added():
    w = torch.ones(4)
    return (lambda x: x * 2 if hasattr(w, "mark") else x * 3), lambda: setattr(w, "mark", 1)


@case
def tensor_vars():
    w = torch.ones(4)
    w.a = 2.0
    return (lambda x: x * sum(vars(w).values())), lambda: setattr(w, "b", 5.0)


@case
def tensor_attribute_of_attribute():
    m = nn.Linear(4, 4)
    m.weight.quant = NS(scale=2.0)
    return (lambda x: m(x) * m.weight.quant.scale), lambda: setattr(m.weight.quant, "scale", 5.0)


@case
def tensor_grad_replaced():
    w = torch.ones(4)
    w.grad = torch.ones(4)
    return (lambda x: x * w.grad), lambda: setattr(w, "grad", torch.zeros(4))


@case
def tensor_grad_shape():
    w = torch.ones(4)
    w.grad = torch.ones(4)
    return (lambda x: x * (w.grad is None) + x * 2), lambda: setattr(w, "grad", None)


@case
def tensor_is_leaf():
    w = torch.ones(4, requires_grad=True)

    def change():
        with torch.enable_grad():
            w.data = w.data
            w.requires_grad_(False)
            v = torch.ones(4, requires_grad=True)
            w.mul_(v)

    return (lambda x: x * 2 if w.is_leaf else x * 3), change


@case
def tensor_class_changed():
    class T(torch.Tensor):
        pass

    w = torch.ones(4)
    return (lambda x: x * 2 if type(w) is torch.Tensor else x * 3), lambda: setattr(
        w, "__class__", T
    )


@case
def tensor_conjugated():
    w = torch.randn(4, dtype=torch.complex64)
    return (lambda x: torch.view_as_real(x * w)), lambda: setattr(w, "data", w.data.conj())


@case
def tensor_negative_bit():
    w = torch.randn(4)
    return (lambda x: x * w), lambda: setattr(w, "data", torch._neg_view(w.data))


@case
def tensors_swapped():
    a, b = torch.ones(4), torch.zeros(4)
    return (lambda x: x * a), lambda: torch.utils.swap_tensors(a, b)


# STALE: change() raises, torch refuses: gfxgraph holds a weak reference to the tensor
@case
def tensor_attributes_swapped():
    a, b = torch.ones(4), torch.ones(4)
    a.scale, b.scale = 2.0, 5.0
    return (lambda x: x * a * a.scale), lambda: torch.utils.swap_tensors(a, b)


@case
def tensor_set_to_another():
    w = torch.ones(4)
    return (lambda x: x * w), lambda: w.set_(torch.zeros(4))


@case
def tensor_view_of_same_address():
    base = torch.arange(8.0)
    c = NS(w=base[:4])
    return (lambda x: x * c.w), lambda: setattr(c, "w", base[:8:2])


@case
def tensor_view_with_offset():
    base = torch.arange(8.0)
    w = base[:4]
    return (lambda x: x * w), lambda: setattr(w, "data", base[4:])


@case
def tensor_expanded():
    w = torch.arange(4.0)
    return (lambda x: x * w), lambda: setattr(w, "data", w.data[1:2].expand(4))


@case
def tensor_dtype_viewed():
    w = torch.ones(4)
    return (lambda x: x * w.float()), lambda: setattr(w, "data", w.data.view(torch.int32))


@case
def tensor_transposed_in_place():
    w = torch.randn(4, 4)
    return (lambda x: x @ w), lambda: w.t_()


@case
def tensor_list_reordered():
    ws = [torch.ones(4), torch.zeros(4)]
    return (lambda x: torch.stack(ws).mul(x[0])), lambda: ws.reverse()


@case
def tensor_storage_bytes():
    w = torch.ones(4)
    return (
        (lambda x: x * w.untyped_storage().nbytes()),
        lambda: w.untyped_storage().resize_(64),
    )


@case
def tensor_backward_hooks():
    w = torch.ones(4, requires_grad=True)
    return (
        (lambda x: x * 2 if w._backward_hooks is None else x * 3),
        lambda: w.register_hook(lambda g: g),
    )


@case
def tensor_in_dict_of_lists():
    c = {"cache": [(torch.ones(4), torch.ones(4))]}
    return (
        (lambda x: x * sum(k * v for k, v in c["cache"])),
        lambda: c["cache"].append((torch.ones(4), torch.ones(4))),
    )


@case
def size_of_tensor_in_attribute():
    c = NS(mask=torch.ones(2, 4))
    return (
        (lambda x: x[:, : c.mask.size(-1)] * c.mask.numel()),
        lambda: setattr(c, "mask", torch.ones(2, 3)),
    )


# ---- torch: settings


@case
def default_dtype_of_new_tensors():
    f = lambda x: x + torch.ones(4, device=x.device)
    f.undo = lambda: torch.set_default_dtype(torch.float32)
    return f, lambda: torch.set_default_dtype(torch.float64)


@case
def number_of_threads():
    old = torch.get_num_threads()
    f = lambda x: x * torch.get_num_threads()
    f.undo = lambda: torch.set_num_threads(old)
    return f, lambda: torch.set_num_threads(old + 1)


@case
def mkldnn_flag():
    f = lambda x: x * 2 if torch.backends.mkldnn.enabled else x * 3
    f.undo = lambda: torch._C._set_mkldnn_enabled(True)
    return f, lambda: torch._C._set_mkldnn_enabled(False)


@case
def flash_flag():
    f = lambda x: x * 2 if torch.backends.cuda.flash_sdp_enabled() else x * 3
    f.undo = lambda: torch.backends.cuda.enable_flash_sdp(True)
    return f, lambda: torch.backends.cuda.enable_flash_sdp(False)


@case
def cudnn_benchmark_flag():
    old = torch.backends.cudnn.benchmark
    f = lambda x: x * 2 if torch.backends.cudnn.benchmark else x * 3
    f.undo = lambda: setattr(torch.backends.cudnn, "benchmark", old)
    return f, lambda: setattr(torch.backends.cudnn, "benchmark", not old)


@case
def mkldnn_deterministic_flag():
    f = lambda x: x * 2 if torch.backends.mkldnn.deterministic else x * 3
    f.undo = lambda: torch._C._set_mkldnn_deterministic(False)
    return f, lambda: torch._C._set_mkldnn_deterministic(True)


@case
def precision_of_mkldnn():
    f = lambda x: x * 2 if torch.backends.mkldnn.matmul.fp32_precision == "none" else x * 3
    f.undo = lambda: torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")
    return f, lambda: torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16")


@case
def precision_of_all():
    f = lambda x: x * 2 if torch.backends.fp32_precision == "none" else x * 3
    f.undo = lambda: torch._C._set_fp32_precision_setter("generic", "all", "none")
    return f, lambda: torch._C._set_fp32_precision_setter("generic", "all", "ieee")


@case
def quantized_engine():
    old = torch.backends.quantized.engine
    other = next(one for one in torch.backends.quantized.supported_engines if one != old)
    f = lambda x: x * 2 if torch.backends.quantized.engine == old else x * 3
    f.undo = lambda: setattr(torch.backends.quantized, "engine", old)
    return f, lambda: setattr(torch.backends.quantized, "engine", other)


@case
def cache_of_autocast():
    f = lambda x: x * 2 if torch.is_autocast_cache_enabled() else x * 3
    f.undo = lambda: torch.set_autocast_cache_enabled(True)
    return f, lambda: torch.set_autocast_cache_enabled(False)


@case
def invariants_of_sparse_tensors():
    check = torch.sparse.check_sparse_tensor_invariants
    f = lambda x: x * 2 if torch.sparse.check_sparse_tensor_invariants.is_enabled() else x * 3
    f.undo = check.disable
    return f, check.enable


@case
def sharing_strategy():
    old = torch.multiprocessing.get_sharing_strategy()
    f = lambda x: x * 2 if torch.multiprocessing.get_sharing_strategy() == old else x * 3
    f.undo = lambda: torch.multiprocessing.set_sharing_strategy(old)
    return f, lambda: torch.multiprocessing.set_sharing_strategy("file_system")


@case
def preferred_blas_library():
    preferred = torch.backends.cuda.preferred_blas_library
    f = lambda x: x * 2 if str(torch.backends.cuda.preferred_blas_library())[-2:] == "as" else x * 3
    f.undo = lambda: preferred("default")
    return f, lambda: preferred("cublaslt" if torch.backends.cuda.is_built() else "ck")


@case
def fastpath_flag():
    f = lambda x: x * 2 if torch.backends.mha.get_fastpath_enabled() else x * 3
    f.undo = lambda: torch.backends.mha.set_fastpath_enabled(True)
    return f, lambda: torch.backends.mha.set_fastpath_enabled(False)


@case
def opt_einsum_flag():
    old = torch.backends.opt_einsum.enabled
    f = lambda x: x * 2 if torch.backends.opt_einsum.enabled else x * 3
    f.undo = lambda: setattr(torch.backends.opt_einsum, "enabled", old)
    return f, lambda: setattr(torch.backends.opt_einsum, "enabled", not old)


@case
def deterministic_flag():
    f = lambda x: x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3
    f.undo = lambda: torch.use_deterministic_algorithms(False)
    return f, lambda: torch.use_deterministic_algorithms(True)


@case
def fill_uninitialized_flag():
    flag = torch.utils.deterministic
    f = lambda x: x * 2 if torch.utils.deterministic.fill_uninitialized_memory else x * 3
    f.undo = lambda: setattr(flag, "fill_uninitialized_memory", True)
    return f, lambda: setattr(flag, "fill_uninitialized_memory", False)


@case
def matmul_precision():
    old = torch.get_float32_matmul_precision()
    f = lambda x: x * len(torch.get_float32_matmul_precision())
    f.undo = lambda: torch.set_float32_matmul_precision(old)
    return f, lambda: torch.set_float32_matmul_precision("high")


@case
def autocast_state():
    f = lambda x: x * 2 if torch.is_autocast_enabled("cpu") else x * 3
    f.undo = lambda: torch.set_autocast_enabled("cpu", False)
    return f, lambda: torch.set_autocast_enabled("cpu", True)


@case
def autocast_dtype():
    old = torch.get_autocast_dtype("cpu")
    f = lambda x: x * 2 if torch.get_autocast_dtype("cpu") == old else x * 3
    f.undo = lambda: torch.set_autocast_dtype("cpu", old)
    return f, lambda: torch.set_autocast_dtype("cpu", torch.float16)


@case
def autocast_inside_with_state():
    c = NS(dtype=torch.bfloat16, on=False)
    m = nn.Linear(4, 4)

    def f(x):
        with torch.autocast("cpu", dtype=c.dtype, enabled=c.on):
            return m(x).float()

    return f, lambda: setattr(c, "on", True)


@case
def autocast_object_held():
    kind = torch.get_default_device().type
    cast = torch.autocast(kind, dtype=torch.bfloat16, enabled=False)
    m = nn.Linear(4, 4)

    def f(x):
        with cast:
            return m(x).float()

    return f, lambda: setattr(cast, "_enabled", True)


@case
def inference_mode_state():
    mode = torch.inference_mode()
    f = lambda x: x * 2 if torch.is_inference_mode_enabled() else x * 3
    entered = []

    def change():
        mode.__enter__()
        entered.append(1)

    f.undo = lambda: mode.__exit__(None, None, None) if entered else None
    return f, change


@case
def grad_mode_state():
    f = lambda x: x * 2 if torch.is_grad_enabled() else x * 3
    f.undo = lambda: torch._C._set_grad_enabled(False)
    return f, lambda: torch._C._set_grad_enabled(True)


@case
def anomaly_flag():
    f = lambda x: x * 2 if torch.is_anomaly_enabled() else x * 3
    f.undo = lambda: torch.set_anomaly_enabled(False)
    return f, lambda: torch.set_anomaly_enabled(True)


@case
def warn_always_flag():
    f = lambda x: x * 2 if torch.is_warn_always_enabled() else x * 3
    f.undo = lambda: torch.set_warn_always(False)
    return f, lambda: torch.set_warn_always(True)


@case
def initial_seed():
    f = lambda x: x * (torch.initial_seed() % 7)
    f.undo = lambda: torch.manual_seed(0)
    torch.manual_seed(1)
    return f, lambda: torch.manual_seed(3)


@case
def print_options():
    old = torch._tensor_str.PRINT_OPTS.precision
    f = lambda x: x * torch._tensor_str.PRINT_OPTS.precision
    f.undo = lambda: torch.set_printoptions(precision=old)
    return f, lambda: torch.set_printoptions(precision=old + 2)


@case
def future_flag():
    flags = torch.__future__
    f = lambda x: x * 2 if flags.get_swap_module_params_on_conversion() else x * 3
    f.undo = lambda: flags.set_swap_module_params_on_conversion(False)
    return f, lambda: flags.set_swap_module_params_on_conversion(True)


# STALE: change() raises, torch refuses: gfxgraph holds a weak reference to the tensor
@case
def parameters_swapped_on_conversion():
    m = nn.Linear(4, 4)
    m.weight.scale = 2.0
    flags = torch.__future__

    def change():
        old = flags.get_swap_module_params_on_conversion()
        flags.set_swap_module_params_on_conversion(True)
        try:
            m.to(torch.bfloat16)
        finally:
            flags.set_swap_module_params_on_conversion(old)

    return (
        (lambda x: m(x.to(m.weight.dtype)).float() * getattr(m.weight, "scale", 3.0)),
        change,
    )


@case
def object_without_init_made():
    class C:
        v = 2.0

        def k(s):
            return s.v

    return (lambda x: x * C().k()), lambda: setattr(C, "v", 5.0)


@case
def object_without_init_made_attribute():
    class C:
        v = 2.0

    return (lambda x: x * C().v), lambda: setattr(C, "v", 5.0)


# ---- attributes of what is not a plain name: an expression, or what C code gives


class Box:
    def __init__(self, v, w=0.0):
        self.v, self.w = v, w


@case
def attribute_of_conditional():
    a, b, c = Box(2.0), Box(3.0), NS(flag=True)
    return (lambda x: x * (a if c.flag else b).v), lambda: setattr(a, "v", 5.0)


@case
def attribute_of_or():
    a, c = Box(2.0), NS(o=None)
    return (lambda x: x * (c.o or a).v), lambda: setattr(a, "v", 5.0)


@case
def attribute_of_and():
    a, c = Box(2.0), NS(o=Box(1.0))
    return (lambda x: x * (c.o and a).v), lambda: setattr(a, "v", 5.0)


@case
def item_of_conditional():
    a, b, c = {"v": 2.0}, {"v": 3.0}, NS(flag=True)
    return (lambda x: x * (a if c.flag else b)["v"]), lambda: a.__setitem__("v", 5.0)


@case
def item_of_or():
    a, c = [2.0], NS(o=None)
    return (lambda x: x * (c.o or a)[0]), lambda: a.__setitem__(0, 5.0)


@case
def iterated_conditional():
    a, b, c = [1.0, 2.0], [3.0], NS(flag=True)
    return (lambda x: x * sum(v for v in (a if c.flag else b))), lambda: a.append(5.0)


@case
def length_of_conditional():
    a, b, c = [1.0, 2.0], [3.0], NS(flag=True)
    return (lambda x: x * len(a if c.flag else b)), lambda: a.append(5.0)


@case
def contains_in_conditional():
    a, b, c = {"k": 1}, {}, NS(flag=True)
    return (
        (lambda x: x * 2 if "z" in (a if c.flag else b) else x * 3),
        lambda: a.__setitem__("z", 5.0),
    )


@case
def attribute_of_list_display_item():
    a, b, c = Box(2.0), Box(3.0), NS(n=0)
    return (lambda x: x * [a, b][c.n].v), lambda: setattr(a, "v", 5.0)


@case
def attribute_of_tuple_display_item():
    a, b = Box(2.0), Box(3.0)
    return (lambda x: x * (a, b)[-1].v), lambda: setattr(b, "v", 5.0)


@case
def attribute_of_dict_display_item():
    a, c = Box(2.0), NS(k="a")
    return (lambda x: x * {"a": a}[c.k].v), lambda: setattr(a, "v", 5.0)


@case
def attribute_of_slice_item():
    items = [Box(2.0), Box(3.0)]
    return (lambda x: x * items[:1][0].v), lambda: setattr(items[0], "v", 5.0)


@case
def attribute_of_sum_of_lists_item():
    a, b = [Box(2.0)], [Box(3.0)]
    return (lambda x: x * (a + b)[1].v), lambda: setattr(b[0], "v", 5.0)


@case
def attribute_of_max_by_key():
    items = [Box(2.0, 1.0), Box(3.0, 2.0)]
    return (lambda x: x * max(items, key=lambda o: o.v).w), lambda: setattr(items[1], "w", 5.0)


@case
def attribute_of_next_of_iter():
    items = [Box(2.0), Box(3.0)]
    return (lambda x: x * next(iter(items)).v), lambda: setattr(items[0], "v", 5.0)


@case
def attribute_of_next_of_values():
    d = {"a": Box(2.0)}
    return (lambda x: x * next(iter(d.values())).v), lambda: setattr(d["a"], "v", 5.0)


@case
def attribute_of_list_of():
    items = (Box(2.0), Box(3.0))
    return (lambda x: x * list(items)[0].v), lambda: setattr(items[0], "v", 5.0)


@case
def attribute_of_dict_zip():
    names, items = ["a", "b"], [Box(2.0), Box(3.0)]
    return (lambda x: x * dict(zip(names, items))["a"].v), lambda: setattr(items[0], "v", 5.0)


@case
def attribute_of_copied_list_item():
    items = [Box(2.0)]
    return (lambda x: x * items.copy()[0].v), lambda: setattr(items[0], "v", 5.0)


@case
def attribute_of_setdefault():
    d = {"a": Box(2.0)}
    return (lambda x: x * d.setdefault("a", None).v), lambda: setattr(d["a"], "v", 5.0)


@case
def attribute_of_unbound_get():
    d = {"a": Box(2.0)}
    return (lambda x: x * dict.get(d, "a").v), lambda: setattr(d["a"], "v", 5.0)


@case
def attribute_of_operator_getitem():
    items = [Box(2.0)]
    return (lambda x: x * operator.getitem(items, 0).v), lambda: setattr(items[0], "v", 5.0)


@case
def attribute_of_itemgetter():
    d, get = {"a": Box(2.0)}, operator.itemgetter("a")
    return (lambda x: x * get(d).v), lambda: setattr(d["a"], "v", 5.0)


@case
def attribute_of_attrgetter():
    c, get = NS(o=Box(2.0)), operator.attrgetter("o")
    return (lambda x: x * get(c).v), lambda: setattr(c.o, "v", 5.0)


@case
def attribute_at_tuple_key():
    d = {(1, 2): Box(2.0)}
    return (lambda x: x * d[(1, 2)].v), lambda: setattr(d[(1, 2)], "v", 5.0)


@case
def attribute_at_dtype_key():
    d = {torch.float32: Box(2.0)}
    return (lambda x: x * d[x.dtype].v), lambda: setattr(d[torch.float32], "v", 5.0)


@case
def attribute_at_type_key():
    d = {torch.Tensor: Box(2.0)}
    return (lambda x: x * d[type(x)].v), lambda: setattr(d[torch.Tensor], "v", 5.0)


@case
def attribute_at_enum_key():
    E = enum.Enum("E", "A B")
    d = {E.A: Box(2.0)}
    return (lambda x: x * d.get(E.A).v), lambda: setattr(d[E.A], "v", 5.0)


@case
def attribute_at_computed_key():
    d, c = {"k1": Box(2.0)}, NS(n=1)
    return (lambda x: x * d[f"k{c.n}"].v), lambda: setattr(d["k1"], "v", 5.0)


@case
def attribute_at_computed_index():
    items, c = [Box(1.0), Box(2.0)], NS(n=0)
    return (lambda x: x * items[c.n + 1].v), lambda: setattr(items[1], "v", 5.0)


@case
def attribute_in_namedtuple():
    P = collections.namedtuple("P", "a b")
    p = P(Box(2.0), 1.0)
    return (lambda x: x * p.a.v), lambda: setattr(p.a, "v", 5.0)


@case
def attribute_in_namedtuple_by_index():
    P = collections.namedtuple("P", "a b")
    p = P(Box(2.0), 1.0)
    return (lambda x: x * p[0].v), lambda: setattr(p.a, "v", 5.0)


@case
def attribute_in_simple_queue_like_deque():
    q = collections.deque([Box(2.0)])
    return (lambda x: x * q[-1].v), lambda: setattr(q[0], "v", 5.0)


@case
def attribute_of_cached_result():
    @functools.cache
    def made(n):
        return Box(2.0)

    box = made(1)
    return (lambda x: x * made(1).v), lambda: setattr(box, "v", 5.0)


@case
def attribute_of_context_variable():
    v = contextvars.ContextVar("hm6")
    v.set(Box(2.0))
    return (lambda x: x * v.get().v), lambda: setattr(v.get(), "v", 5.0)


@case
def attribute_of_context_variable_default():
    v = contextvars.ContextVar("hm7", default=Box(2.0))
    return (lambda x: x * v.get().v), lambda: setattr(v.get(), "v", 5.0)


@case
def attribute_of_partial_result():
    box = Box(2.0)
    p = functools.partial(dict.get, {"k": box})
    return (lambda x: x * p("k").v), lambda: setattr(box, "v", 5.0)


@case
def attribute_of_exception_value():
    box = Box(2.0)

    def f(x):
        try:
            raise ValueError(box)
        except ValueError as error:
            return x * error.args[0].v

    return f, lambda: setattr(box, "v", 5.0)


@case
def attribute_of_sys_modules_get():
    m = made_module("hm_get", v=2.0)
    return (lambda x: x * sys.modules.get("hm_get").v), lambda: setattr(m, "v", 5.0)


@case
def attribute_of_globals_get():
    ns = {"box": Box(2.0)}
    exec("def f(x): return x*globals().get('box').v", ns)
    return ns["f"], lambda: setattr(ns["box"], "v", 5.0)


@case
def attribute_of_stack_top():
    stack = [Box(2.0)]
    return (lambda x: x * (stack or [None])[-1].v), lambda: stack.append(Box(5.0))


@case
def method_of_conditional():
    class C:
        v = 2.0

        def k(s):
            return s.v

    a, b, c = C(), C(), NS(flag=True)
    return (lambda x: x * (a if c.flag else b).k()), lambda: setattr(a, "k", lambda: 5.0)


@case
def class_attribute_of_conditional():
    class C:
        v = 2.0

    a, c = C(), NS(o=None)
    return (lambda x: x * (c.o or a).v), lambda: setattr(C, "v", 5.0)


@case
def getattr_of_f_string():
    c, n = NS(v1=2.0), NS(n=1)
    return (lambda x: x * getattr(c, f"v{n.n}")), lambda: setattr(c, "v1", 5.0)


@case
def getattr_of_joined_name():
    c, n = NS(v1=2.0), NS(suffix="1")
    return (lambda x: x * getattr(c, "v" + n.suffix)), lambda: setattr(c, "v1", 5.0)


@case
def getattr_of_numbered_names():
    c = NS(v0=1.0, v1=2.0)
    return (
        (lambda x: x * sum(getattr(c, "v" + str(n)) for n in range(2))),
        lambda: setattr(c, "v1", 5.0),
    )


@case
def getattr_of_formatted_default():
    c = Box(1.0)
    return (
        (lambda x: x * getattr(c, "late_%d" % 1, 2.0)),  # noqa: UP031
        lambda: setattr(c, "late_1", 5.0),
    )


@case
def hasattr_of_f_string():
    c, n = Box(1.0), NS(n=1)
    return (
        (lambda x: x * 2 if hasattr(c, f"late{n.n}") else x * 3),
        lambda: setattr(c, "late1", 5.0),
    )


@case
def getattr_of_class_by_computed_name():
    class C:
        mode_a = 2.0

    n = NS(mode="A")
    return (lambda x: x * getattr(C, "mode_" + n.mode.lower())), lambda: setattr(C, "mode_a", 5.0)


@case
def getattr_of_module_by_computed_name():
    m = made_module("hm_computed", mode_a=2.0)
    n = NS(mode="A")
    return (lambda x: x * getattr(m, "mode_" + n.mode.lower())), lambda: setattr(m, "mode_a", 5.0)


@case
def getattr_of_nn_module_by_number():
    m = nn.Module()
    m.gain_0 = 2.0
    return (lambda x: x * getattr(m, f"gain_{len(x.shape) - 2}")), lambda: setattr(m, "gain_0", 5.0)


@case
def attrgetter_made_in_the_call():
    c = NS(a=Box(2.0))
    return (lambda x: x * operator.attrgetter("a.v")(c)), lambda: setattr(c.a, "v", 5.0)


@case
def attrgetter_made_in_a_sort():
    items = [Box(1.0, 2.0), Box(3.0, 4.0)]
    return (
        (lambda x: x * min(items, key=operator.attrgetter("v")).w),
        lambda: setattr(items[0], "v", 9.0),
    )


@case
def map_attrgetter_of_slots():
    class C:
        __slots__ = ("v",)

        def __init__(s, v):
            s.v = v

    items, get = [C(1.0), C(2.0)], operator.attrgetter("v")
    return (lambda x: x * sum(map(get, items))), lambda: setattr(items[0], "v", 5.0)


@case
def map_attrgetter_of_class_attribute():
    class C:
        v = 2.0

    items, get = [C(), C()], operator.attrgetter("v")
    return (lambda x: x * sum(map(get, items))), lambda: setattr(C, "v", 5.0)


@case
def map_getattr_of_class_attribute():
    class C:
        v = 2.0

    items = [C(), C()]
    return (lambda x: x * sum(map(getattr, items, ("v", "v")))), lambda: setattr(C, "v", 5.0)


@case
def reduce_getattr_of_three():
    c = NS(a=NS(b=NS(d=NS(e=2.0))))
    return (
        (lambda x: x * functools.reduce(getattr, "a.b.d.e".split("."), c)),
        lambda: setattr(c.a.b.d, "e", 5.0),
    )


@case
def format_attribute_of_four():
    c, text = NS(a=NS(b=NS(d=NS(e=2)))), "{0.a.b.d.e}"
    return (lambda x: x * float(text.format(c))), lambda: setattr(c.a.b.d, "e", 5)


@case
def pickled_deep_objects():
    c = NS(a=NS(b=NS(d=NS(e=2.0))))
    return (lambda x: x * pickle.loads(pickle.dumps(c)).a.b.d.e), lambda: setattr(c.a.b.d, "e", 5.0)


@case
def json_deeper():
    c = {"a": {"a": {"a": {"a": {"a": {"a": {"a": [2.0]}}}}}}}
    inner = c["a"]["a"]["a"]["a"]["a"]["a"]["a"]
    return (lambda x: x * len(json.dumps(c))), lambda: inner.append(5.0)


@case
def compared_deeper():
    inner = [2.0]
    c, d = [[[[[[[inner]]]]]]], [[[[[[[[2.0]]]]]]]]
    return (lambda x: x * 2 if c == d else x * 3), lambda: inner.append(5.0)


@case
def namespaces_compared_deeper():
    a, b = NS(v=NS(v=[1])), NS(v=NS(v=[1]))
    return (lambda x: x * 2 if a == b else x * 3), lambda: a.v.v.append(5)


@case
def namespace_repr_deeper():
    a = NS(v=NS(v=NS(v=[1])))
    return (lambda x: x * len(repr(a))), lambda: a.v.v.v.append(5)


# ---- the same with slots, which no walk through the attributes of objects finds


class SBox:
    __slots__ = ("v", "w")

    def __init__(self, v, w=0.0):
        self.v, self.w = v, w


# STALE (Python 3.11)
@case
def slots_attribute_of_conditional():
    a, b, c = SBox(2.0), SBox(3.0), NS(flag=True)
    return (lambda x: x * (a if c.flag else b).v), lambda: setattr(a, "v", 5.0)


@case
def slots_attribute_of_or():
    a, c = SBox(2.0), NS(o=None)
    return (lambda x: x * (c.o or a).v), lambda: setattr(a, "v", 5.0)


@case
def slots_attribute_of_and():
    a, c = SBox(2.0), NS(o=SBox(1.0))
    return (lambda x: x * (c.o and a).v), lambda: setattr(a, "v", 5.0)


@case
def slots_attribute_of_list_display_item():
    a, b, c = SBox(2.0), SBox(3.0), NS(n=0)
    return (lambda x: x * [a, b][c.n].v), lambda: setattr(a, "v", 5.0)


@case
def slots_attribute_of_tuple_display_item():
    a, b = SBox(2.0), SBox(3.0)
    return (lambda x: x * (a, b)[-1].v), lambda: setattr(b, "v", 5.0)


@case
def slots_attribute_of_dict_display_item():
    a, c = SBox(2.0), NS(k="a")
    return (lambda x: x * {"a": a}[c.k].v), lambda: setattr(a, "v", 5.0)


@case
def slots_attribute_of_slice_item():
    items = [SBox(2.0), SBox(3.0)]
    return (lambda x: x * items[:1][0].v), lambda: setattr(items[0], "v", 5.0)


@case
def slots_attribute_of_sum_of_lists_item():
    a, b = [SBox(2.0)], [SBox(3.0)]
    return (lambda x: x * (a + b)[1].v), lambda: setattr(b[0], "v", 5.0)


@case
def slots_attribute_of_max_by_key():
    items = [SBox(2.0, 1.0), SBox(3.0, 2.0)]
    return (lambda x: x * max(items, key=lambda o: o.v).w), lambda: setattr(items[1], "w", 5.0)


@case
def slots_attribute_of_next_of_iter():
    items = [SBox(2.0), SBox(3.0)]
    return (lambda x: x * next(iter(items)).v), lambda: setattr(items[0], "v", 5.0)


@case
def slots_attribute_of_next_of_values():
    d = {"a": SBox(2.0)}
    return (lambda x: x * next(iter(d.values())).v), lambda: setattr(d["a"], "v", 5.0)


@case
def slots_attribute_of_list_of():
    items = (SBox(2.0), SBox(3.0))
    return (lambda x: x * list(items)[0].v), lambda: setattr(items[0], "v", 5.0)


@case
def slots_attribute_of_dict_zip():
    names, items = ["a", "b"], [SBox(2.0), SBox(3.0)]
    return (lambda x: x * dict(zip(names, items))["a"].v), lambda: setattr(items[0], "v", 5.0)


@case
def slots_attribute_of_copied_list_item():
    items = [SBox(2.0)]
    return (lambda x: x * items.copy()[0].v), lambda: setattr(items[0], "v", 5.0)


@case
def slots_attribute_of_setdefault():
    d = {"a": SBox(2.0)}
    return (lambda x: x * d.setdefault("a", None).v), lambda: setattr(d["a"], "v", 5.0)


@case
def slots_attribute_of_unbound_get():
    d = {"a": SBox(2.0)}
    return (lambda x: x * dict.get(d, "a").v), lambda: setattr(d["a"], "v", 5.0)


@case
def slots_attribute_of_operator_getitem():
    items = [SBox(2.0)]
    return (lambda x: x * operator.getitem(items, 0).v), lambda: setattr(items[0], "v", 5.0)


@case
def slots_attribute_of_itemgetter():
    d, get = {"a": SBox(2.0)}, operator.itemgetter("a")
    return (lambda x: x * get(d).v), lambda: setattr(d["a"], "v", 5.0)


@case
def slots_attribute_of_attrgetter():
    c, get = NS(o=SBox(2.0)), operator.attrgetter("o")
    return (lambda x: x * get(c).v), lambda: setattr(c.o, "v", 5.0)


@case
def slots_attribute_at_tuple_key():
    d = {(1, 2): SBox(2.0)}
    return (lambda x: x * d[(1, 2)].v), lambda: setattr(d[(1, 2)], "v", 5.0)


@case
def slots_attribute_at_dtype_key():
    d = {torch.float32: SBox(2.0)}
    return (lambda x: x * d[x.dtype].v), lambda: setattr(d[torch.float32], "v", 5.0)


@case
def slots_attribute_at_type_key():
    d = {torch.Tensor: SBox(2.0)}
    return (lambda x: x * d[type(x)].v), lambda: setattr(d[torch.Tensor], "v", 5.0)


@case
def slots_attribute_at_enum_key():
    E = enum.Enum("E", "A B")
    d = {E.A: SBox(2.0)}
    return (lambda x: x * d.get(E.A).v), lambda: setattr(d[E.A], "v", 5.0)


@case
def slots_attribute_at_computed_key():
    d, c = {"k1": SBox(2.0)}, NS(n=1)
    return (lambda x: x * d[f"k{c.n}"].v), lambda: setattr(d["k1"], "v", 5.0)


@case
def slots_attribute_at_computed_index():
    items, c = [SBox(1.0), SBox(2.0)], NS(n=0)
    return (lambda x: x * items[c.n + 1].v), lambda: setattr(items[1], "v", 5.0)


@case
def slots_attribute_in_namedtuple():
    P = collections.namedtuple("P", "a b")
    p = P(SBox(2.0), 1.0)
    return (lambda x: x * p.a.v), lambda: setattr(p.a, "v", 5.0)


@case
def slots_attribute_in_namedtuple_by_index():
    P = collections.namedtuple("P", "a b")
    p = P(SBox(2.0), 1.0)
    return (lambda x: x * p[0].v), lambda: setattr(p.a, "v", 5.0)


@case
def slots_attribute_in_simple_queue_like_deque():
    q = collections.deque([SBox(2.0)])
    return (lambda x: x * q[-1].v), lambda: setattr(q[0], "v", 5.0)


@case
def slots_attribute_of_cached_result():
    @functools.cache
    def made(n):
        return SBox(2.0)

    box = made(1)
    return (lambda x: x * made(1).v), lambda: setattr(box, "v", 5.0)


@case
def slots_attribute_of_context_variable():
    v = contextvars.ContextVar("hm6s")
    v.set(SBox(2.0))
    return (lambda x: x * v.get().v), lambda: setattr(v.get(), "v", 5.0)


@case
def slots_attribute_of_context_variable_default():
    v = contextvars.ContextVar("hm7s", default=SBox(2.0))
    return (lambda x: x * v.get().v), lambda: setattr(v.get(), "v", 5.0)


@case
def slots_attribute_of_partial_result():
    box = SBox(2.0)
    p = functools.partial(dict.get, {"k": box})
    return (lambda x: x * p("k").v), lambda: setattr(box, "v", 5.0)


@case
def slots_attribute_of_exception_value():
    box = SBox(2.0)

    def f(x):
        try:
            raise ValueError(box)
        except ValueError as error:
            return x * error.args[0].v

    return f, lambda: setattr(box, "v", 5.0)


@case
def slots_attribute_of_globals_get():
    ns = {"box": SBox(2.0)}
    exec("def f(x): return x*globals().get('box').v", ns)
    return ns["f"], lambda: setattr(ns["box"], "v", 5.0)


@case
def slots_attribute_of_stack_top():
    stack = [SBox(2.0)]
    return (lambda x: x * (stack or [None])[-1].v), lambda: stack.append(SBox(5.0))


@case
def slots_attrgetter_made_in_a_sort():
    items = [SBox(1.0, 2.0), SBox(3.0, 4.0)]
    return (
        (lambda x: x * min(items, key=operator.attrgetter("v")).w),
        lambda: setattr(items[0], "v", 9.0),
    )


# ---- class attributes that are no numbers, read from what is not a plain name


@case
def text_of_class_of_conditional():
    class C:
        kind = "relu"

    a, b, c = C(), Box(1.0), NS(flag=True)
    return (
        (lambda x: getattr(torch, (a if c.flag else b).kind)(x)),
        lambda: setattr(C, "kind", "tanh"),
    )


@case
def list_of_class_of_conditional():
    class C:
        values = [2.0]

    a, c = C(), NS(o=None)
    return (lambda x: x * (c.o or a).values[0]), lambda: C.values.__setitem__(0, 5.0)


@case
def object_of_class_made_in_the_call():
    class C:
        box = Box(2.0)

    return (lambda x: x * C().box.v), lambda: setattr(C.box, "v", 5.0)


@case
def text_of_class_of_item():
    class C:
        kind = "relu"

    items, c = [C()], NS(n=0)
    return (
        (lambda x: getattr(torch, [*items][c.n].kind)(x)),
        lambda: setattr(C, "kind", "tanh"),
    )


@case
def text_of_class_of_max():
    class C:
        kind = "relu"

        def __init__(s, v):
            s.v = v

    items = [C(1.0), C(2.0)]
    return (
        (lambda x: getattr(torch, max(items, key=lambda o: o.v).kind)(x)),
        lambda: setattr(C, "kind", "tanh"),
    )


@case
def flag_of_class_of_next():
    class C:
        on = None

    items = [C()]
    return (
        (lambda x: x * 2 if next(iter(items)).on else x * 3),
        lambda: setattr(C, "on", "yes"),
    )


@case
def text_of_class_at_computed_index():
    class C:
        kind = "relu"

    items, c = [None, C()], NS(n=0)
    return (
        (lambda x: getattr(torch, items[c.n + 1].kind)(x)),
        lambda: setattr(C, "kind", "tanh"),
    )


@case
def text_of_class_at_dtype_key():
    class C:
        kind = "relu"

    d = {torch.float32: C()}
    return (
        (lambda x: getattr(torch, d[x.dtype].kind)(x)),
        lambda: setattr(C, "kind", "tanh"),
    )


@case
def module_of_conditional():
    m, c = made_module("hm_cond", v=2.0), NS(o=None)
    return (lambda x: x * (c.o or m).v), lambda: setattr(m, "v", 5.0)


@case
def module_in_list_display():
    m, c = made_module("hm_disp", v=2.0), NS(n=0)
    return (lambda x: x * [m, c][c.n].v), lambda: setattr(m, "v", 5.0)


@case
def class_in_list_display():
    class C:
        v = (2.0,)

    c = NS(n=0)
    return (lambda x: x * [C, c][c.n].v[0]), lambda: setattr(C, "v", (5.0,))


@case
def class_at_computed_key():
    class C:
        v = (2.0,)

    d, c = {"k1": C}, NS(n=1)
    return (lambda x: x * d[f"k{c.n}"].v[0]), lambda: setattr(C, "v", (5.0,))


@case
def class_by_type_of_conditional():
    class C:
        v = (2.0,)

    a, c = C(), NS(o=None)
    return (lambda x: x * type(c.o or a).v[0]), lambda: setattr(C, "v", (5.0,))


@case
def deep_slots():
    a = SBox(SBox(SBox(2.0)))
    return (lambda x: x * a.v.v.v), lambda: setattr(a.v.v, "v", 5.0)


@case
def deep_slots_by_attrgetter():
    a, get = SBox(SBox(SBox(2.0))), operator.attrgetter("v.v.v")
    return (lambda x: x * get(a)), lambda: setattr(a.v.v, "v", 5.0)


@case
def deep_slots_by_reduce():
    a = SBox(SBox(SBox(2.0)))
    return (lambda x: x * functools.reduce(getattr, "vvv", a)), lambda: setattr(a.v.v, "v", 5.0)


@case
def slots_by_f_string_name():
    a, c = SBox(2.0), NS(name="V")
    return (lambda x: x * getattr(a, c.name.lower())), lambda: setattr(a, "v", 5.0)


@case
def slots_by_format():
    a, text = SBox(2), "{0.v}"
    return (lambda x: x * float(text.format(a))), lambda: setattr(a, "v", 5)


@case
def slots_pickled():
    a = SBox([2.0])
    return (lambda x: x * pickle.loads(pickle.dumps(a)).v[0]), lambda: setattr(a, "v", [5.0])


@case
def slots_matched():
    a = SBox(2.0, "k")

    def f(x):
        match a:
            case SBox(v=v, w="k"):
                return x * v
        return x * 9

    return f, lambda: setattr(a, "v", 5.0)


@case
def class_attribute_matched():
    class C:
        kind = "a"

    c = C()

    def f(x):
        match c:
            case C(kind="a"):
                return x * 2
            case _:
                return x * 3

    return f, lambda: setattr(C, "kind", "b")


@case
def text_of_class_in_format():
    class C:
        v = "2"

    c, text = C(), "{0.v}"
    return (lambda x: x * float(text.format(c))), lambda: setattr(C, "v", "5")


@case
def text_of_class_by_map_attrgetter():
    class C:
        v = "2"

    items, get = [C()], operator.attrgetter("v")
    return (lambda x: x * float("".join(map(get, items)))), lambda: setattr(C, "v", "5")


@case
def text_of_class_by_partial_getattr():
    class C:
        v = "2"

    get = functools.partial(getattr, C())
    return (lambda x: x * float(get("v"))), lambda: setattr(C, "v", "5")


@case
def text_of_class_by_computed_name():
    class C:
        v1 = "2"

    c, n = C(), NS(n=1)
    return (lambda x: x * float(getattr(c, f"v{n.n}"))), lambda: setattr(C, "v1", "5")


@case
def text_of_class_by_vars():
    class C:
        v = "2"

    return (lambda x: x * float(vars(C)["v"])), lambda: setattr(C, "v", "5")


@case
def texts_of_class_by_vars_iterated():
    class C:
        v1 = "2"
        v2 = "3"

    return (
        (lambda x: x * sum(float(v) for k, v in vars(C).items() if k[0] == "v")),
        lambda: setattr(C, "v3", "5"),
    )


@case
def text_of_class_by_getattr_static():
    class C:
        v = "2"

    c = C()
    return (lambda x: x * float(inspect.getattr_static(c, "v"))), lambda: setattr(C, "v", "5")


@case
def method_replaced_and_mapped():
    class C:
        def k(s):
            return 2.0

    items = [C()]
    call = operator.methodcaller("k")
    return (lambda x: x * sum(map(call, items))), lambda: setattr(C, "k", lambda s: 5.0)


@case
def method_replaced_under_conditional():
    class C:
        def k(s):
            return 2.0

    a, c = C(), NS(o=None)
    return (lambda x: x * (c.o or a).k()), lambda: setattr(C, "k", lambda s: 5.0)


@case
def method_with_another_name_under_conditional():
    class C:
        k = lambda s: 2.0

    a, c = C(), NS(o=None)
    return (lambda x: x * (c.o or a).k()), lambda: setattr(C, "k", lambda s: 5.0)


@case
def method_with_another_name_mapped():
    class C:
        k = lambda s: 2.0

    items, call = [C()], operator.methodcaller("k")
    return (lambda x: x * sum(map(call, items))), lambda: setattr(C, "k", lambda s: 5.0)


@case
def property_with_another_name_mapped():
    class C:
        k = property(lambda s: 2.0)

    items, get = [C()], operator.attrgetter("k")
    return (lambda x: x * sum(map(get, items))), lambda: setattr(C, "k", property(lambda s: 5.0))


@case
def defaults_of_function_under_conditional():
    def h(v=2.0):
        return v

    c = NS(o=None)
    return (lambda x: x * (c.o or h)()), lambda: setattr(h, "__defaults__", (5.0,))


@case
def code_of_function_mapped():
    def h(v):
        return v * 2

    values = (1.0, 2.0)
    return (
        (lambda x: x * sum(map(h, values))),
        lambda: setattr(h, "__code__", (lambda v: v * 5).__code__),
    )


@case
def function_attribute_under_conditional():
    def h():
        pass

    h.v, c = 2.0, NS(o=None)
    return (lambda x: x * (c.o or h).v), lambda: setattr(h, "v", 5.0)
