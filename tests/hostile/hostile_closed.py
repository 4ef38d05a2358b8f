"""Functions that read Python state through code that is not looked at, and what changes that state.

Code in C and closed code of Python, torch and NumPy ask for signatures, annotations, levels, special
methods and registries. Each case makes a function and a change; where the change is of the whole
process, the function has an attribute ``undo``. Those in ``EAGER`` read what nobody can see: they
must stay eager.
"""

# ruff: noqa: B007, B009, B018, B024, E731, F841, RUF059, UP030, UP031, UP032
from __future__ import annotations

import abc
import argparse
import bisect
import codecs
import collections
import collections.abc
import configparser
import contextlib
import contextvars
import copy
import copyreg
import csv
import dataclasses
import decimal
import enum
import fractions
import functools
import heapq
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import itertools
import json
import linecache
import logging
import numbers
import operator
import os
import pickle
import statistics
import string
import sys
import types
import typing
import warnings
import weakref

import numpy as np
import torch

CASES = {}
EAGER = []
NS = types.SimpleNamespace


def case(make):
    CASES[make.__name__] = make
    return make


def eager(make):
    EAGER.append(make.__name__)
    return case(make)


def gives(get, change, undo=None):
    """Multiplies by what ``get`` gives."""

    def fn(x):
        return x * get()

    if undo is not None:
        fn.undo = undo
    return fn, change


def raises(get, change):
    """The same for what raises before the change, or after it."""

    def fn(x):
        try:
            return x * get()
        except (TypeError, ValueError, AttributeError, KeyError, LookupError):
            return x * 7

    return fn, change


def in_module(source, **names):
    """A module made of ``source``."""
    module = types.ModuleType("made_of_source")
    vars(module).update(names)
    exec(source, vars(module))
    return module


# ---- inspect


def _plain(a, b=1):
    return a


def _wrapping(inner):
    @functools.wraps(inner)
    def outer(*args):
        return inner(*args)

    return outer


@case
def signature_by_wrapped():
    f = _wrapping(lambda a, b: 0)
    return gives(
        lambda: len(inspect.signature(f).parameters),
        lambda: setattr(f, "__wrapped__", lambda a, b, c: 0),
    )


@case
def signature_without_wrapped():
    f = _wrapping(lambda a, b: 0)
    return gives(lambda: len(inspect.signature(f).parameters), lambda: delattr(f, "__wrapped__"))


@case
def signature_by_signature():
    f = lambda a, b: 0
    return gives(
        lambda: len(inspect.signature(f).parameters),
        lambda: setattr(f, "__signature__", inspect.signature(lambda a: 0)),
    )


@case
def signature_by_text():
    f = lambda a, b: 0
    return gives(
        lambda: len(str(inspect.signature(f))), lambda: setattr(f, "__defaults__", (1234567,))
    )


@case
def signature_of_an_object():
    class C:
        def __call__(self, a, b):
            return 0

    c = C()

    def change():
        C.__call__ = lambda self, a: 0

    return gives(lambda: len(inspect.signature(c).parameters), change)


@case
def signature_of_a_class():
    class C:
        def __init__(self, a, b):
            pass

    def change():
        C.__init__ = lambda self, a: None

    return gives(lambda: len(inspect.signature(C).parameters), change)


@case
def signature_of_a_class_that_gets_new():
    class C:
        pass

    def change():
        C.__init__ = lambda self, a, b, c: None

    return gives(lambda: len(inspect.signature(C).parameters), change)


@case
def signature_of_a_method():
    class C:
        def go(self, a, b):
            pass

    c = C()

    def other(self, a):
        pass

    return gives(lambda: len(inspect.signature(c.go).parameters), lambda: setattr(C, "go", other))


@case
def signature_of_the_code():
    f = lambda a, b: 0
    return gives(
        lambda: len(inspect.signature(f).parameters),
        lambda: setattr(f, "__code__", (lambda a: 0).__code__),
    )


@case
def signature_of_a_partial():
    f = functools.partial(lambda a, b: 0, 1)
    return gives(
        lambda: len(inspect.signature(f).parameters),
        lambda: f.__setstate__((lambda a, b, c: 0, (), {}, {})),
    )


@case
def signature_of_forward():
    m = torch.nn.Linear(4, 4)

    def forward(x, mask=None, more=None):
        return x

    return gives(
        lambda: len(inspect.signature(m.forward).parameters), lambda: setattr(m, "forward", forward)
    )


@case
def signature_kept_in_the_function():
    f = lambda a, b: 0
    f.__signature__ = inspect.signature(f)
    return gives(
        lambda: len(inspect.signature(f).parameters),
        lambda: setattr(f, "__signature__", inspect.signature(lambda: 0)),
    )


@case
def signature_with_annotations():
    def f(a: int):
        return a

    return gives(
        lambda: 1 + (inspect.signature(f).parameters["a"].annotation == "str"),
        lambda: f.__annotations__.update(a="str"),
    )


@case
def members():
    class C:
        a = 1

    return gives(lambda: len(inspect.getmembers(C)), lambda: setattr(C, "b", 2))


@case
def members_of_an_object():
    n = NS(a=1)
    return gives(lambda: len(inspect.getmembers(n)), lambda: setattr(n, "b", 2))


@case
def members_by_value():
    class C:
        a = 1

    c = C()
    return gives(
        lambda: sum(v for k, v in inspect.getmembers(c) if k == "a"), lambda: setattr(C, "a", 5)
    )


@case
def members_of_a_base():
    class B:
        a = 1

    class C(B):
        pass

    return gives(
        lambda: sum(v for k, v in inspect.getmembers(C) if k == "a"), lambda: setattr(B, "a", 5)
    )


@case
def members_of_a_module():
    m = in_module("a = 1")
    return gives(
        lambda: len(inspect.getmembers(m, inspect.isfunction)) + 1, lambda: setattr(m, "f", _plain)
    )


@case
def static_attribute():
    class C:
        a = 1

    c = C()
    return gives(lambda: inspect.getattr_static(c, "a"), lambda: setattr(c, "a", 5))


@case
def static_attribute_of_a_base():
    class B:
        a = 1

    class C(B):
        pass

    c = C()
    return gives(lambda: inspect.getattr_static(c, "a"), lambda: setattr(B, "a", 5))


@case
def static_attribute_of_a_class():
    class B:
        a = 1

    class C(B):
        pass

    return gives(lambda: inspect.getattr_static(C, "a"), lambda: setattr(C, "a", 5))


@case
def static_attribute_with_default():
    class C:
        pass

    c = C()
    return gives(lambda: inspect.getattr_static(c, "a", 2), lambda: setattr(C, "a", 5))


@case
def unwrapped():
    f = _wrapping(_plain)
    return gives(
        lambda: inspect.unwrap(f).__code__.co_argcount,
        lambda: setattr(f, "__wrapped__", lambda a, b, c, d: 0),
    )


@case
def is_abstract():
    class A(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    def change():
        A.__abstractmethods__ = frozenset()

    return gives(lambda: 1 + inspect.isabstract(A), change)


@case
def documentation():
    class C:
        """Ab."""

    def change():
        C.__doc__ = "Abcd."

    return gives(lambda: len(inspect.getdoc(C)), change)


@case
def documentation_of_a_method():
    class B:
        def f(self):
            """Ab."""

    return gives(lambda: len(inspect.getdoc(B().f)), lambda: setattr(B.f, "__doc__", "Abcd."))


@case
def is_a_generator_function():
    f = lambda: 0
    return gives(
        lambda: 1 + inspect.isgeneratorfunction(f), lambda: setattr(f, "__code__", _gen.__code__)
    )


def _gen():
    yield 1


@case
def full_arguments():
    f = lambda a, b: 0
    return gives(
        lambda: len(inspect.getfullargspec(f).args),
        lambda: setattr(f, "__code__", (lambda a: 0).__code__),
    )


@case
def bound_arguments():
    f = lambda a, b=2: 0

    def get():
        bound = inspect.signature(f).bind(1)
        bound.apply_defaults()
        return bound.arguments["b"]

    return gives(get, lambda: setattr(f, "__defaults__", (5,)))


@case
def closure_variables():
    k = 2

    def f():
        return k

    def change():
        nonlocal k
        k = 5

    return gives(lambda: inspect.getclosurevars(f).nonlocals["k"], change)


@case
def the_order_of_bases():
    class A:
        pass

    class B(A):
        pass

    class C(A):
        pass

    def change():
        C.__bases__ = (B,)

    return gives(lambda: len(inspect.getmro(C)), change)


@case
def members_of_an_object_with_a_property():
    class C:
        @property
        def a(self):
            return self._a

    c = C()
    c._a = 2
    return gives(lambda: dict(inspect.getmembers(c))["a"], lambda: setattr(c, "_a", 5))


# ---- annotations, dataclasses


@case
def hints_of_a_function():
    def f(a: int, b: int):
        return a

    return gives(lambda: len(typing.get_type_hints(f)), lambda: f.__annotations__.update(c=int))


@case
def hints_of_a_function_replaced():
    def f(a: int, b: int):
        return a

    return gives(
        lambda: len(typing.get_type_hints(f)), lambda: setattr(f, "__annotations__", {"a": int})
    )


@case
def hints_of_a_wrapped_function():
    def f(a: int, b: int):
        return a

    g = _wrapping(f)
    g.__annotations__ = {"a": "K"}
    f.__globals__["K"] = int
    return gives(
        lambda: 1 + (typing.get_type_hints(g)["a"] is str),
        lambda: f.__globals__.update(K=str),
        lambda: f.__globals__.pop("K"),
    )


@case
def hints_of_a_module():
    m = in_module("a: int = 1")
    return gives(lambda: len(typing.get_type_hints(m)), lambda: m.__annotations__.update(b=int))


@case
def hints_of_a_class_with_names():
    m = in_module("K = int\nclass C:\n    a: 'K' = 1\nC.__module__ = 'made_for_hints'")
    sys.modules["made_for_hints"] = m
    return gives(
        lambda: 1 + (typing.get_type_hints(m.C)["a"] is str),
        lambda: setattr(m, "K", str),
        lambda: sys.modules.pop("made_for_hints"),
    )


@case
def hints_of_a_base():
    class B:
        a: int

    class C(B):
        b: int

    return gives(lambda: len(typing.get_type_hints(C)), lambda: B.__annotations__.update(c="int"))


@case
def hints_of_a_method():
    class C:
        def f(self, a: int):
            pass

    return gives(
        lambda: len(typing.get_type_hints(C().f)), lambda: C.f.__annotations__.update(b="int")
    )


@case
def annotations_of_a_function():
    def f(a: int):
        pass

    return gives(lambda: len(f.__annotations__), lambda: f.__annotations__.update(b=int))


@case
def annotations_by_inspect():
    def f(a: int):
        pass

    return gives(lambda: len(inspect.get_annotations(f)), lambda: f.__annotations__.update(b=int))


@case
def annotations_of_a_class_by_inspect():
    class C:
        a: int

    return gives(lambda: len(inspect.get_annotations(C)), lambda: C.__annotations__.update(b=int))


@case
def annotations_of_a_module():
    m = in_module("a: int = 1")
    return gives(lambda: len(m.__annotations__), lambda: m.__annotations__.update(b=int))


@case
def type_parameters():
    T = typing.TypeVar("T")

    class C(typing.Generic[T]):
        pass

    class D(C[int]):
        pass

    return gives(
        lambda: (
            len(typing.get_args(D.__orig_bases__[0]))
            + (typing.get_args(D.__orig_bases__[0])[0] is str)
        ),
        lambda: setattr(D, "__orig_bases__", (C[str],)),
    )


@dataclasses.dataclass
class _Data:
    a: int = 1
    b: int = 2


def _data():
    return dataclasses.make_dataclass("Data", [("a", int, 1), ("b", int, 2)])


@case
def fields():
    D = _data()
    return gives(
        lambda: len(dataclasses.fields(D)),
        lambda: D.__dataclass_fields__.pop("b"),
    )


@case
def fields_of_an_object_replaced():
    D = _data()
    d = D()
    return gives(
        lambda: len(dataclasses.fields(d)),
        lambda: setattr(
            D, "__dataclass_fields__", dict(itertools.islice(D.__dataclass_fields__.items(), 1))
        ),
    )


@case
def as_dict():
    D = _data()
    d = D()
    return gives(lambda: dataclasses.asdict(d)["b"], lambda: setattr(d, "b", 5))


@case
def as_dict_of_fewer_fields():
    D = _data()
    d = D()
    return gives(lambda: len(dataclasses.asdict(d)), lambda: D.__dataclass_fields__.pop("b"))


@case
def as_tuple_nested():
    D = _data()
    d = D(a=D(), b=2)
    return gives(lambda: sum(dataclasses.astuple(d)[0]), lambda: setattr(d.a, "b", 5))


@case
def replaced_data():
    D = _data()
    d = D()
    return gives(lambda: dataclasses.replace(d, a=3).b, lambda: setattr(d, "b", 5))


@case
def default_of_a_field():
    D = _data()

    def change():
        D.__dataclass_fields__["b"].default = 5

    return gives(lambda: dataclasses.fields(D)[1].default, change)


@case
def metadata_of_a_field():
    D = dataclasses.make_dataclass(
        "D", [("a", int, dataclasses.field(default=1, metadata={"k": 2}))]
    )

    def change():
        D.__dataclass_fields__["a"].metadata = types.MappingProxyType({"k": 5})

    return gives(lambda: dataclasses.fields(D)[0].metadata["k"], change)


@case
def is_data():
    class C:
        pass

    return gives(
        lambda: 1 + dataclasses.is_dataclass(C), lambda: setattr(C, "__dataclass_fields__", {})
    )


@case
def data_compared_later():
    D = _data()
    one, other = D(), D()
    return gives(lambda: 1 + (one == other), lambda: setattr(D, "__eq__", lambda a, b: False))


# ---- logging


def _logger(name):
    logger = logging.getLogger(f"closed.{name}")
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    logger.handlers[:] = [logging.NullHandler()]
    return logger


@case
def level_by_attribute():
    logger = _logger("a")
    return gives(lambda: logger.level, lambda: logger.setLevel(logging.INFO))


@case
def level_enabled():
    logger = _logger("b")
    return gives(
        lambda: 1 + logger.isEnabledFor(logging.INFO), lambda: logger.setLevel(logging.INFO)
    )


@case
def level_by_a_kept_method():
    asked = _logger("b2").isEnabledFor
    return gives(
        lambda: 1 + asked(logging.INFO), lambda: logging.getLogger("closed.b2").setLevel(20)
    )


@case
def level_by_map():
    logger = _logger("b3")
    return gives(
        lambda: 1 + sum(map(logger.isEnabledFor, [logging.INFO])), lambda: logger.setLevel(20)
    )


@case
def level_in_the_class():
    logger = _logger("b4")
    return gives(
        lambda: 1 + logging.Logger.isEnabledFor(logger, logging.INFO), lambda: logger.setLevel(20)
    )


@case
def level_of_an_adapter():
    logger = _logger("b5")
    adapter = logging.LoggerAdapter(logger, {})
    return gives(lambda: 1 + adapter.isEnabledFor(logging.INFO), lambda: logger.setLevel(20))


@case
def level_of_an_adapter_effective():
    logger = _logger("b6")
    adapter = logging.LoggerAdapter(logger, {})
    return gives(lambda: adapter.getEffectiveLevel(), lambda: logger.setLevel(20))


@case
def level_of_a_parent():
    logger = _logger("c")
    child = logging.getLogger("closed.c.d")
    return gives(lambda: child.getEffectiveLevel(), lambda: logger.setLevel(logging.INFO))


@case
def level_disabled():
    logger = _logger("e")
    return gives(
        lambda: 1 + logger.isEnabledFor(logging.ERROR),
        lambda: logging.disable(logging.CRITICAL),
        lambda: logging.disable(logging.NOTSET),
    )


@case
def level_name():
    logging.addLevelName(35, "ABC")
    return gives(
        lambda: len(logging.getLevelName(35)),
        lambda: logging.addLevelName(35, "ABCDE"),
        lambda: (
            logging._levelToName.pop(35),
            logging._nameToLevel.clear(),
            logging._nameToLevel.update({n: v for v, n in logging._levelToName.items()}),
        ),
    )


@case
def level_by_name():
    logging.addLevelName(36, "XYZ")
    return gives(
        lambda: logging.getLevelName("XYZ"),
        lambda: logging._nameToLevel.update(XYZ=37),
        lambda: (logging._nameToLevel.pop("XYZ"), logging._levelToName.pop(36)),
    )


@case
def number_of_handlers():
    logger = _logger("f")
    return gives(lambda: len(logger.handlers), lambda: logger.addHandler(logging.NullHandler()))


@case
def has_handlers():
    logger = _logger("g")
    return gives(lambda: 1 + logger.hasHandlers(), lambda: logger.handlers.clear())


@case
def logger_by_name():
    logger = _logger("h")
    return gives(lambda: logging.getLogger("closed.h").level, lambda: logger.setLevel(logging.INFO))


@case
def logger_replaced():
    _logger("h2")
    other = logging.Logger("other", 10)
    old = logging.root.manager.loggerDict["closed.h2"]
    return gives(
        lambda: logging.getLogger("closed.h2").level,
        lambda: logging.root.manager.loggerDict.update({"closed.h2": other}),
        lambda: logging.root.manager.loggerDict.update({"closed.h2": old}),
    )


class _Refusing(logging.Handler):
    def emit(self, record):
        raise KeyError


def _logged(name, level):
    """A logger, and what logs to it at ``level``."""
    logger = _logger(name)

    def get():
        logger.log(level, "ab")
        return 2

    return logger, get


@case
def level_of_what_is_logged():
    logger, get = _logged("i", logging.INFO)
    logger.handlers[:] = [_Refusing()]
    return raises(get, lambda: logger.setLevel(logging.INFO))


@case
def handlers_of_what_is_logged():
    logger, get = _logged("j", logging.ERROR)
    return raises(get, lambda: logger.addHandler(_Refusing()))


@case
def filters_of_what_is_logged():
    logger, get = _logged("k", logging.ERROR)
    logger.addFilter(lambda record: False)
    logger.handlers[:] = [_Refusing()]
    return raises(get, lambda: logger.filters.clear())


# ---- linecache, importlib


@case
def line_of_a_cache():
    linecache.cache["closed-1"] = (3, None, ["ab\n"], "closed-1")
    return gives(
        lambda: len(linecache.getline("closed-1", 1)),
        lambda: linecache.cache.update({"closed-1": (3, None, ["abcd\n"], "closed-1")}),
        lambda: linecache.cache.pop("closed-1"),
    )


@case
def lines_of_a_cache_changed():
    linecache.cache["closed-2"] = (3, None, ["ab\n"], "closed-2")
    return gives(
        lambda: len(linecache.getlines("closed-2")),
        lambda: linecache.cache["closed-2"][2].append("cd\n"),
        lambda: linecache.cache.pop("closed-2"),
    )


@case
def a_spec_of_a_module_that_comes():
    def change():
        module = types.ModuleType("closed_module_1")
        module.__spec__ = importlib.util.spec_from_loader("closed_module_1", loader=None)
        sys.modules["closed_module_1"] = module

    return gives(
        lambda: 1 + (importlib.util.find_spec("closed_module_1") is not None),
        change,
        lambda: sys.modules.pop("closed_module_1", None),
    )


@case
def a_spec_that_is_replaced():
    module = types.ModuleType("closed_module_2")
    module.__spec__ = importlib.util.spec_from_loader("closed_module_2", loader=None, origin="ab")
    sys.modules["closed_module_2"] = module

    def change():
        module.__spec__ = importlib.util.spec_from_loader("closed_module_2", None, origin="abcd")

    return gives(
        lambda: len(importlib.util.find_spec("closed_module_2").origin),
        change,
        lambda: sys.modules.pop("closed_module_2", None),
    )


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "closed_module_3":
            return importlib.util.spec_from_loader(name, loader=None)
        return None


@case
def a_finder_that_comes():
    finder = _Finder()
    return gives(
        lambda: 1 + (importlib.util.find_spec("closed_module_3") is not None),
        lambda: sys.meta_path.insert(0, finder),
        lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None,
    )


@case
def a_module_that_is_imported():
    old = types.ModuleType("closed_module_4")
    old.k = 2
    sys.modules["closed_module_4"] = old
    new = types.ModuleType("closed_module_4")
    new.k = 5
    return gives(
        lambda: importlib.import_module("closed_module_4").k,
        lambda: sys.modules.update(closed_module_4=new),
        lambda: sys.modules.pop("closed_module_4", None),
    )


@case
def a_module_by_import_function():
    old = types.ModuleType("closed_module_5")
    old.k = 2
    sys.modules["closed_module_5"] = old
    new = types.ModuleType("closed_module_5")
    new.k = 5
    return gives(
        lambda: __import__("closed_module_5").k,
        lambda: sys.modules.update(closed_module_5=new),
        lambda: sys.modules.pop("closed_module_5", None),
    )


@case
def a_module_that_is_relative():
    package, old = types.ModuleType("closed_package"), types.ModuleType("closed_package.a")
    old.k, package.__path__ = 2, []
    sys.modules["closed_package"], sys.modules["closed_package.a"] = package, old
    new = types.ModuleType("closed_package.a")
    new.k = 5
    return gives(
        lambda: importlib.import_module(".a", "closed_package").k,
        lambda: sys.modules.update({"closed_package.a": new}),
        lambda: [sys.modules.pop(n, None) for n in ("closed_package", "closed_package.a")],
    )


@case
def a_module_that_does_not_exist_yet():
    def get():
        try:
            importlib.import_module("closed_module_6")
        except ImportError:
            return 2
        return 5

    return gives(
        get,
        lambda: sys.modules.update(closed_module_6=types.ModuleType("closed_module_6")),
        lambda: sys.modules.pop("closed_module_6", None),
    )


@case
def a_module_in_the_table():
    return gives(
        lambda: 1 + ("closed_module_7" in sys.modules),
        lambda: sys.modules.update(closed_module_7=types.ModuleType("closed_module_7")),
        lambda: sys.modules.pop("closed_module_7", None),
    )


@case
def how_many_modules():
    return gives(
        lambda: 1 + len([n for n in sys.modules if n.startswith("closed_module_8")]),
        lambda: sys.modules.update(closed_module_8=types.ModuleType("closed_module_8")),
        lambda: sys.modules.pop("closed_module_8", None),
    )


@case
def a_module_by_get():
    return gives(
        lambda: 1 + (sys.modules.get("closed_module_9") is not None),
        lambda: sys.modules.update(closed_module_9=types.ModuleType("closed_module_9")),
        lambda: sys.modules.pop("closed_module_9", None),
    )


@case
def a_version():
    old = importlib.metadata.version
    version = importlib.metadata.distribution("filelock").version
    assert version
    return gives(
        lambda: len(importlib.metadata.version("filelock")),
        lambda: setattr(importlib.metadata, "version", lambda name: "1"),
        lambda: setattr(importlib.metadata, "version", old),
    )


@case
def a_parent_that_gets_the_module():
    package, inner = types.ModuleType("closed_package2"), types.ModuleType("closed_package2.a")
    package.__path__ = []
    inner.k, package.a = 2, inner
    sys.modules["closed_package2"], sys.modules["closed_package2.a"] = package, inner

    def get():
        import closed_package2.a

        return closed_package2.a.k

    def change():
        package.a = NS(k=5)

    return gives(
        get,
        change,
        lambda: [sys.modules.pop(n, None) for n in ("closed_package2", "closed_package2.a")],
    )


# ---- exec and eval


def _star(names, **options):
    module = types.ModuleType("closed_star")
    vars(module).update(names)
    sys.modules["closed_star"] = module

    def get():
        space = {}
        exec("from closed_star import *", space)
        return space["k"]

    return module, get


@case
def star_import_of_a_name():
    module, get = _star({"k": 2})
    return gives(get, lambda: setattr(module, "k", 5), lambda: sys.modules.pop("closed_star"))


@case
def star_import_of_more_names():
    module, _ = _star({"k": 2})

    def get():
        space = {}
        exec("from closed_star import *", space)
        return len(space)

    return gives(get, lambda: setattr(module, "j", 5), lambda: sys.modules.pop("closed_star"))


@case
def star_import_by_all():
    module, _ = _star({"k": 2, "j": 2, "__all__": ["k"]})

    def get():
        space = {}
        exec("from closed_star import *", space)
        return len(space)

    return gives(get, lambda: module.__all__.append("j"), lambda: sys.modules.pop("closed_star"))


@case
def star_import_by_all_of_a_name():
    module, get = _star({"k": 2, "__all__": ["k"]})
    return gives(get, lambda: setattr(module, "k", 5), lambda: sys.modules.pop("closed_star"))


@case
def star_import_that_gets_all():
    module, _ = _star({"k": 2, "j": 2})

    def get():
        space = {}
        exec("from closed_star import *", space)
        return len(space)

    return gives(
        get, lambda: setattr(module, "__all__", ["k"]), lambda: sys.modules.pop("closed_star")
    )


@case
def eval_with_globals():
    space = {"k": 2}
    return gives(lambda: eval("k * 2", space), lambda: space.update(k=5))


@case
def eval_with_locals():
    space = {"k": 2}
    return gives(lambda: eval("k * 2", {}, space), lambda: space.update(k=5))


@case
def eval_with_locals_that_get_a_name():
    space = {}
    return gives(lambda: eval("k * 2", {"k": 2}, space), lambda: space.update(k=5))


@case
def eval_with_locals_of_a_class():
    class D(dict):
        pass

    space = D(k=2)
    return gives(lambda: eval("k * 2", {}, space), lambda: space.update(k=5))


@case
def eval_with_a_mapping():
    class M:
        def __init__(self):
            self.k = 2

        def __getitem__(self, name):
            if name == "k":
                return self.k
            raise KeyError(name)

    space = M()
    return gives(lambda: eval("k * 2", {}, space), lambda: setattr(space, "k", 5))


@case
def eval_with_a_chain():
    one, other = {}, {"k": 2}
    chain = collections.ChainMap(one, other)
    return gives(lambda: eval("k * 2", {}, chain), lambda: one.update(k=5))


@case
def eval_of_code():
    holder = NS(code=compile("k * 2", "", "eval"))
    return gives(
        lambda: eval(holder.code, {"k": 2}),
        lambda: setattr(holder, "code", compile("k * 5", "", "eval")),
    )


@case
def exec_with_locals():
    space = {"k": 2}

    def get():
        exec("r = k * 2", {}, space)
        return space["r"]

    return gives(get, lambda: space.update(k=5))


@case
def exec_in_a_module():
    m = in_module("k = 2")

    def get():
        out = {}
        exec("r = k * 2", vars(m), out)
        return out["r"]

    return gives(get, lambda: setattr(m, "k", 5))


@case
def exec_that_defines_a_function():
    space = {"k": 2}

    def get():
        out = {}
        exec("def g(): return k", space, out)
        return out["g"]()

    return gives(get, lambda: space.update(k=5))


@case
def eval_with_builtins():
    space = {"__builtins__": {"len": len, "k": 2}}
    return gives(lambda: eval("k", space), lambda: space["__builtins__"].update(k=5))


@case
def eval_of_a_text():
    holder = {"text": "1 + 1"}
    return gives(lambda: eval(holder["text"]), lambda: holder.update(text="2 + 3"))


@case
def eval_mapped():
    space = {"k": 2}
    return gives(lambda: sum(map(eval, ["k"], [space])), lambda: space.update(k=5))


# ---- special methods that a class gets later


@case
def gets_class_getitem():
    class C:
        pass

    return raises(
        lambda: C[1], lambda: setattr(C, "__class_getitem__", classmethod(lambda cls, k: 5))
    )


@case
def gets_class_getitem_in_a_base():
    class B:
        pass

    class C(B):
        __class_getitem__ = classmethod(len and (lambda cls, k: 2))

    def change():
        C.__class_getitem__ = classmethod(lambda cls, k: 5)

    return gives(lambda: C[1], change)


@case
def class_getitem_of_c_code():
    class C:
        __class_getitem__ = classmethod(types.GenericAlias)

    def change():
        C.__class_getitem__ = classmethod(lambda cls, k: (5, 5, 5))

    return gives(lambda: len(typing.get_args(C[int])) + 1, change)


@case
def gets_init_subclass():
    class B:
        k = 2

    def get():
        class C(B):
            pass

        return C.k

    def refuse(cls):
        raise TypeError

    return raises(get, lambda: setattr(B, "__init_subclass__", classmethod(refuse)))


@case
def gets_init_subclass_by_type():
    class B:
        k = 2

    def refuse(cls):
        raise TypeError

    return raises(
        lambda: type("C", (B,), {}).k, lambda: setattr(B, "__init_subclass__", classmethod(refuse))
    )


@case
def gets_init_subclass_by_new_class():
    class B:
        k = 2

    def refuse(cls):
        raise TypeError

    return raises(
        lambda: types.new_class("C", (B,)).k,
        lambda: setattr(B, "__init_subclass__", classmethod(refuse)),
    )


@case
def gets_set_name():
    class P:
        pass

    p = P()
    p.k = 2

    def get():
        class C:
            a = p

        return p.k

    def change():
        P.__set_name__ = lambda self, cls, name: setattr(self, "k", 5)

    return gives(get, change)


@case
def gets_set_name_by_type():
    class P:
        pass

    def get():
        p = P()
        type("C", (), {"a": p})
        return getattr(p, "k", 2)

    def change():
        P.__set_name__ = lambda self, cls, name: setattr(self, "k", 5)

    return gives(get, change)


@case
def gets_set_name_of_what_is_made():
    class P:
        pass

    def get():
        class C:
            a = P()

        return getattr(C.a, "k", 2)

    def change():
        P.__set_name__ = lambda self, cls, name: setattr(self, "k", 5)

    return gives(get, change)


@case
def metaclass_gets_prepare():
    class M(type):
        pass

    class B(metaclass=M):
        k = 2

    def get():
        class C(B):
            pass

        return C.k

    def change():
        M.__prepare__ = classmethod(lambda cls, name, bases: {"k": 5})

    return gives(get, change)


@case
def metaclass_gets_new():
    class M(type):
        pass

    class B(metaclass=M):
        k = 2

    def get():
        class C(B):
            pass

        return C.k

    def change():
        M.__new__ = lambda cls, name, bases, space: type.__new__(
            cls, name, bases, {**space, "k": 5}
        )

    return gives(get, change)


@case
def metaclass_gets_call():
    class M(type):
        pass

    class C(metaclass=M):
        k = 2

    def change():
        M.__call__ = lambda cls: NS(k=5)

    return gives(lambda: C().k, change)


@case
def gets_mro_entries():
    class Base:
        k = 2

    class P:
        def __mro_entries__(self, bases):
            return (Base,)

    p = P()

    class Other:
        k = 5

    def get():
        class C(p):
            pass

        return C.k

    def change():
        P.__mro_entries__ = lambda self, bases: (Other,)

    return gives(get, change)


class _Items:
    def __iter__(self):
        return iter((("k", 2),))

    def __getitem__(self, key):
        return 5


@case
def gets_keys_for_a_dict():
    class C(_Items):
        pass

    c = C()
    return gives(lambda: dict(c)["k"], lambda: setattr(C, "keys", lambda self: ["k"]))


@case
def gets_keys_in_the_object():
    class C(_Items):
        pass

    c = C()
    return gives(lambda: dict(c)["k"], lambda: setattr(c, "keys", lambda: ["k"]))


@case
def gets_keys_for_an_update():
    class C(_Items):
        pass

    c = C()

    def get():
        d = {}
        d.update(c)
        return d["k"]

    return gives(get, lambda: setattr(C, "keys", lambda self: ["k"]))


@case
def gets_keys_for_an_update_of_what_is_made():
    class C(_Items):
        pass

    def get():
        return dict(C())["k"]

    return gives(get, lambda: setattr(C, "keys", lambda self: ["k"]))


@case
def gets_keys_for_keywords():
    class C(_Items):
        pass

    c = C()
    return raises(lambda: dict(**c)["k"], lambda: setattr(C, "keys", lambda self: ["k"]))


@case
def gets_keys_for_a_display():
    class C(_Items):
        pass

    c = C()
    return raises(lambda: {**c}["k"], lambda: setattr(C, "keys", lambda self: ["k"]))


@case
def keys_of_a_class_of_dicts():
    class D(dict):
        pass

    d = D(k=2)

    def change():
        D.keys = lambda self: ["k"]
        D.__getitem__ = lambda self, key: 5
        D.__iter__ = lambda self: iter(["k"])

    return gives(lambda: dict(d)["k"], change)


@case
def gets_eq_for_a_set():
    class K:
        def __hash__(self):
            return 1

    k = K()

    def change():
        K.__eq__ = lambda self, other: True
        K.__hash__ = lambda self: 1

    return gives(lambda: len({k, 1}), change)


@case
def gets_eq_for_a_set_of_both():
    class K:
        def __hash__(self):
            return 1

    k, j = K(), K()
    return gives(
        lambda: len({k, j}), lambda: type.__setattr__(K, "__eq__", lambda self, other: True)
    )


@case
def gets_eq_for_a_dict():
    class K:
        def __hash__(self):
            return 1

    k, j = K(), K()
    return gives(
        lambda: len({k: 1, j: 2}), lambda: type.__setattr__(K, "__eq__", lambda self, other: True)
    )


@case
def gets_eq_for_a_comprehension():
    class K:
        def __hash__(self):
            return 1

    ks = [K(), K()]
    return gives(
        lambda: len({k for k in ks}),
        lambda: type.__setattr__(K, "__eq__", lambda self, other: True),
    )


@case
def gets_eq_for_a_dict_comprehension():
    class K:
        def __hash__(self):
            return 1

    ks = [K(), K()]
    return gives(
        lambda: len({k: 1 for k in ks}),
        lambda: type.__setattr__(K, "__eq__", lambda self, other: True),
    )


@case
def gets_eq_for_what_is_made():
    class K:
        def __hash__(self):
            return 1

    return gives(
        lambda: len({K(), K()}), lambda: type.__setattr__(K, "__eq__", lambda self, other: True)
    )


@case
def gets_eq_for_what_is_made_and_put():
    class K:
        def __hash__(self):
            return 1

    def get():
        s = set()
        s.add(K())
        s.add(K())
        return len(s)

    return gives(get, lambda: type.__setattr__(K, "__eq__", lambda self, other: True))


@case
def gets_eq_for_what_is_made_as_key():
    class K:
        def __hash__(self):
            return 1

    def get():
        d = {}
        d[K()] = 1
        d[K()] = 1
        return len(d)

    return gives(get, lambda: type.__setattr__(K, "__eq__", lambda self, other: True))


@case
def gets_eq_for_what_is_made_and_compared():
    class K:
        pass

    return gives(
        lambda: 1 + (K() == K()), lambda: type.__setattr__(K, "__eq__", lambda self, other: True)
    )


@case
def gets_bool_of_what_is_made():
    class K:
        pass

    return gives(lambda: 2 if K() else 5, lambda: setattr(K, "__bool__", lambda self: False))


@case
def gets_len_of_what_is_made():
    class K:
        pass

    return gives(lambda: 2 if K() else 5, lambda: setattr(K, "__len__", lambda self: 0))


@case
def gets_bool_by_not():
    class K:
        pass

    k = K()
    return gives(lambda: 1 + (not k), lambda: setattr(K, "__bool__", lambda self: False))


@case
def gets_bool_by_bool():
    class K:
        pass

    k = K()
    return gives(lambda: 1 + bool(k), lambda: setattr(K, "__bool__", lambda self: False))


@case
def gets_bool_by_any():
    class K:
        pass

    ks = [K()]
    return gives(lambda: 1 + any(ks), lambda: setattr(K, "__bool__", lambda self: False))


@case
def gets_bool_by_filter():
    class K:
        pass

    ks = [K(), K()]
    return gives(
        lambda: 1 + len(list(filter(None, ks))), lambda: setattr(K, "__bool__", lambda self: False)
    )


@case
def gets_contains():
    class K:
        def __iter__(self):
            return iter((1, 2))

    k = K()
    return gives(lambda: 1 + (1 in k), lambda: setattr(K, "__contains__", lambda self, v: False))


@case
def gets_contains_of_what_is_made():
    class K:
        def __iter__(self):
            return iter((1, 2))

    return gives(lambda: 1 + (1 in K()), lambda: setattr(K, "__contains__", lambda self, v: False))


@case
def gets_iter():
    class K:
        def __getitem__(self, n):
            if n > 1:
                raise IndexError
            return 2

    k = K()
    return gives(lambda: sum(k), lambda: setattr(K, "__iter__", lambda self: iter((5,))))


@case
def gets_iter_of_what_is_made():
    class K:
        def __getitem__(self, n):
            if n > 1:
                raise IndexError
            return 2

    def get():
        total = 0
        for v in K():
            total += v
        return total

    return gives(get, lambda: setattr(K, "__iter__", lambda self: iter((5,))))


@case
def gets_iter_unpacked():
    class K:
        def __getitem__(self, n):
            if n > 1:
                raise IndexError
            return 2

    k = K()

    def get():
        a, b = k
        return a + b

    return gives(get, lambda: setattr(K, "__iter__", lambda self: iter((5, 6))))


@case
def gets_index_of_an_object():
    class K:
        pass

    k, items = K(), [2, 3, 5]
    return raises(lambda: items[k], lambda: setattr(K, "__index__", lambda self: 2))


@case
def gets_index_in_a_slice():
    class K:
        pass

    k, items = K(), [2, 3, 5]
    return raises(lambda: len(items[k:]), lambda: setattr(K, "__index__", lambda self: 2))


@case
def gets_index_in_a_range():
    class K:
        pass

    k = K()
    return raises(lambda: len(range(k)), lambda: setattr(K, "__index__", lambda self: 2))


@case
def gets_index_on_a_tensor():
    class K:
        pass

    k = K()

    def fn(x):
        try:
            return x[k] * 1.0
        except (TypeError, IndexError):
            return x * 7

    return fn, lambda: setattr(K, "__index__", lambda self: 1)


@case
def gets_float():
    class K:
        def __index__(self):
            return 2

    k = K()
    return gives(lambda: float(k), lambda: setattr(K, "__float__", lambda self: 5.0))


@case
def gets_float_of_what_is_made():
    class K:
        def __index__(self):
            return 2

    return gives(lambda: float(K()), lambda: setattr(K, "__float__", lambda self: 5.0))


@case
def gets_float_for_math():
    import math

    class K:
        def __index__(self):
            return 4

    k = K()
    return gives(lambda: math.sqrt(k), lambda: setattr(K, "__float__", lambda self: 9.0))


@case
def gets_float_for_torch():
    class K:
        def __index__(self):
            return 4

    k = K()

    def fn(x):
        return x * torch.full((), float(k), device=x.device)

    return fn, lambda: setattr(K, "__float__", lambda self: 9.0)


@case
def gets_int():
    class K:
        def __index__(self):
            return 2

    k = K()
    return gives(lambda: int(k), lambda: setattr(K, "__int__", lambda self: 5))


@case
def gets_neg():
    class K(float):
        pass

    k = K(2.0)
    return gives(lambda: float(-k), lambda: setattr(K, "__neg__", lambda self: 5.0))


@case
def gets_invert():
    class K(int):
        pass

    k = K(2)
    return gives(lambda: int(~k), lambda: setattr(K, "__invert__", lambda self: 5))


@case
def gets_pos():
    class K(int):
        pass

    k = K(2)
    return gives(lambda: int(+k), lambda: setattr(K, "__pos__", lambda self: 5))


@case
def gets_neg_of_what_is_made():
    class K(float):
        pass

    return gives(lambda: float(-K(2.0)), lambda: setattr(K, "__neg__", lambda self: 5.0))


@case
def gets_mul():
    class K(float):
        pass

    k = K(2.0)
    return gives(lambda: float(k * 2), lambda: setattr(K, "__mul__", lambda self, other: 5.0))


@case
def gets_mul_of_what_is_made():
    class K(float):
        pass

    return gives(lambda: float(K(2.0) * 2), lambda: setattr(K, "__mul__", lambda s, o: 5.0))


@case
def gets_rmul_with_a_tensor():
    class K(float):
        pass

    k = K(2.0)

    def fn(x):
        return x + k * 1

    return fn, lambda: setattr(K, "__mul__", lambda self, other: 5.0)


@case
def gets_abs():
    class K(float):
        pass

    k = K(-2.0)
    return gives(lambda: abs(k), lambda: setattr(K, "__abs__", lambda self: 5.0))


@case
def gets_round():
    class K(float):
        pass

    k = K(2.25)
    return gives(lambda: round(k, 1), lambda: setattr(K, "__round__", lambda self, n=0: 5.0))


@case
def gets_getattr():
    class K:
        pass

    k = K()
    return gives(
        lambda: getattr(k, "a", 2), lambda: setattr(K, "__getattr__", lambda self, name: 5)
    )


@case
def gets_getattr_of_what_is_made():
    class K:
        pass

    return gives(
        lambda: getattr(K(), "a", 2), lambda: setattr(K, "__getattr__", lambda self, name: 5)
    )


@case
def gets_getattr_by_hasattr():
    class K:
        pass

    ks = [K()]
    return gives(
        lambda: 1 + sum(map(hasattr, ks, ["a"])),
        lambda: setattr(K, "__getattr__", lambda self, name: 5),
    )


@case
def gets_getattr_by_attrgetter():
    class K:
        pass

    k, get = K(), operator.attrgetter("a")
    return raises(lambda: get(k), lambda: setattr(K, "__getattr__", lambda self, name: 5))


@case
def module_gets_getattr():
    m = in_module("a = 1")
    return gives(lambda: getattr(m, "b", 2), lambda: setattr(m, "__getattr__", lambda name: 5))


@case
def gets_getattribute():
    class K:
        a = 2

    k = K()
    return gives(lambda: k.a, lambda: setattr(K, "__getattribute__", lambda self, name: 5))


@case
def gets_missing():
    class D(dict):
        pass

    d = D()
    return raises(lambda: d["k"], lambda: setattr(D, "__missing__", lambda self, key: 5))


@case
def gets_missing_of_what_is_made():
    class D(dict):
        pass

    return raises(lambda: D()["k"], lambda: setattr(D, "__missing__", lambda self, key: 5))


@case
def gets_missing_in_a_format():
    class D(dict):
        pass

    d = D()
    return raises(
        lambda: len("{k}".format_map(d)), lambda: setattr(D, "__missing__", lambda s, k: "abcde")
    )


@case
def gets_getitem_in_a_format():
    class D(dict):
        pass

    d = D(k="ab")
    return gives(lambda: len("%(k)s" % d), lambda: setattr(D, "__getitem__", lambda s, k: "abcde"))


@case
def gets_format():
    class K:
        def __str__(self):
            return "ab"

    k = K()
    return gives(lambda: len(f"{k}"), lambda: setattr(K, "__format__", lambda self, spec: "abcde"))


@case
def gets_format_of_what_is_made():
    class K:
        def __str__(self):
            return "ab"

    return gives(
        lambda: len(f"{K()}"), lambda: setattr(K, "__format__", lambda self, spec: "abcde")
    )


@case
def gets_format_by_format():
    class K:
        def __str__(self):
            return "ab"

    k = K()
    return gives(
        lambda: len("{}".format(k)), lambda: setattr(K, "__format__", lambda self, spec: "abcde")
    )


@case
def gets_str():
    class K:
        def __repr__(self):
            return "ab"

    k = K()
    return gives(lambda: len(str(k)), lambda: setattr(K, "__str__", lambda self: "abcde"))


@case
def gets_str_by_percent():
    class K:
        def __repr__(self):
            return "ab"

    k = K()
    return gives(lambda: len("%s" % k), lambda: setattr(K, "__str__", lambda self: "abcde"))


@case
def gets_str_of_what_is_made():
    class K:
        def __repr__(self):
            return "ab"

    return gives(lambda: len(str(K())), lambda: setattr(K, "__str__", lambda self: "abcde"))


@case
def gets_repr_in_a_list():
    class K(str):
        pass

    ks = [K("ab")]
    return gives(lambda: len(repr(ks)), lambda: setattr(K, "__repr__", lambda self: "abcde"))


@case
def gets_reversed():
    class K:
        def __len__(self):
            return 2

        def __getitem__(self, n):
            return 2

    k = K()
    return gives(
        lambda: sum(reversed(k)), lambda: setattr(K, "__reversed__", lambda self: iter((5,)))
    )


@case
def gets_lt_by_sorted():
    class K(int):
        pass

    ks = [K(2), K(5)]
    return gives(
        lambda: int(sorted(ks)[0]),
        lambda: setattr(K, "__lt__", lambda self, other: int(self) > int(other)),
    )


@case
def gets_lt_by_min():
    class K(int):
        pass

    ks = [K(2), K(5)]
    return gives(
        lambda: int(min(*ks)),
        lambda: setattr(K, "__lt__", lambda self, other: int(self) > int(other)),
    )


@case
def gets_eq_by_index():
    class K:
        pass

    k, j = K(), K()
    ks = [k, j]
    return gives(lambda: 1 + ks.index(j), lambda: type.__setattr__(K, "__eq__", lambda s, o: True))


@case
def gets_eq_in_a_tuple():
    class K:
        pass

    one, other = (K(), 1), (K(), 1)
    return gives(
        lambda: 1 + (one == other), lambda: type.__setattr__(K, "__eq__", lambda s, o: True)
    )


@case
def gets_eq_in_a_tuple_of_what_is_made():
    class K:
        pass

    return gives(
        lambda: 1 + ((K(), 1) == (K(), 1)),
        lambda: type.__setattr__(K, "__eq__", lambda s, o: True),
    )


@case
def gets_enter_and_exit():
    class K:
        pass

    k = K()

    def get():
        with k as v:
            return v

    def change():
        K.__enter__ = lambda self: 5
        K.__exit__ = lambda self, *error: None

    return raises(get, change)


@case
def gets_hash():
    class K:
        pass

    k = K()
    return gives(lambda: 1 + (hash(k) == 1), lambda: setattr(K, "__hash__", lambda self: 1))


@case
def gets_dir():
    class K:
        pass

    k = K()
    return gives(lambda: len(dir(k)), lambda: setattr(K, "__dir__", lambda self: ["a"]))


@case
def gets_fspath():
    class K:
        pass

    k = K()
    return raises(lambda: len(os.fspath(k)), lambda: setattr(K, "__fspath__", lambda self: "abc"))


@case
def gets_get_as_a_descriptor():
    class P:
        k = 2

    class C:
        a = P()

    c = C()
    return gives(lambda: c.a.k, lambda: setattr(P, "__get__", lambda self, o, t: NS(k=5)))


@case
def gets_get_as_a_descriptor_in_a_class():
    class P:
        k = 2

    class C:
        a = P()

    return gives(lambda: C.a.k, lambda: setattr(P, "__get__", lambda self, o, t: NS(k=5)))


@case
def gets_get_as_a_descriptor_of_what_is_made():
    class P:
        k = 2

    class C:
        a = P()

    return gives(lambda: C().a.k, lambda: setattr(P, "__get__", lambda self, o, t: NS(k=5)))


@case
def gets_instancecheck():
    class M(type):
        pass

    class C(metaclass=M):
        pass

    return gives(
        lambda: 1 + isinstance(1, C), lambda: setattr(M, "__instancecheck__", lambda cls, o: True)
    )


@case
def gets_match_args():
    class P:
        a, b = 2, 5
        __match_args__ = ("a",)

    p = P()

    def get():
        match p:
            case P(v):
                return v
        return 0

    return gives(get, lambda: setattr(P, "__match_args__", ("b",)))


@case
def gets_torch_function():
    class K:
        def __float__(self):
            return 2.0

    k = K()

    def fn(x):
        try:
            return torch.add(x, k)
        except TypeError:
            return x * 7

    def change():
        K.__torch_function__ = classmethod(
            lambda cls, func, types, args=(), kwargs=None: args[0] * 5
        )

    return fn, change


@case
def gets_array_interface():
    class K:
        def __len__(self):
            return 2

        def __getitem__(self, n):
            if n > 1:
                raise IndexError
            return 2.0

    k = K()

    def change():
        K.__array__ = lambda self, dtype=None, copy=None: np.array([5.0, 5.0])

    return gives(lambda: float(np.asarray(k)[0]), change)


@case
def gets_length_hint():
    class K:
        def __iter__(self):
            return iter((1, 2))

    k = K()
    return gives(
        lambda: 1 + operator.length_hint(k), lambda: setattr(K, "__length_hint__", lambda self: 5)
    )


@case
def gets_set_name_that_writes_elsewhere():
    class P:
        pass

    p, n = P(), NS(k=2)

    def get():
        class C:
            a = p

        return n.k

    def change():
        P.__set_name__ = lambda self, cls, name: setattr(n, "k", 5)

    return gives(get, change)


@case
def set_that_is_added_to_another():
    s = {1}

    def get():
        found = set()
        found.update(s)
        return len(found)

    return gives(get, lambda: s.add(5))


@case
def metaclass_gets_getattr():
    class M(type):
        pass

    class C(metaclass=M):
        pass

    return gives(lambda: getattr(C, "a", 2), lambda: setattr(M, "__getattr__", lambda cls, name: 5))


@case
def metaclass_gets_bool():
    class M(type):
        pass

    class C(metaclass=M):
        pass

    return gives(lambda: 2 if C else 5, lambda: setattr(M, "__bool__", lambda cls: False))


@case
def gets_delattr_of_what_is_made():
    class C:
        a = 5

    def get():
        c = C()
        c.a = 2
        del c.a
        return c.a

    return gives(get, lambda: setattr(C, "__delattr__", lambda self, name: None))


# ---- who is registered, where C code asks


def _abstract():
    class A(abc.ABC):
        pass

    class C:
        pass

    return A, C


@case
def registered_by_map():
    A, C = _abstract()
    items = [C()]
    return gives(lambda: 1 + sum(map(isinstance, items, [A])), lambda: A.register(C))


@case
def registered_by_repeat():
    A, C = _abstract()
    items = [C(), C()]
    return gives(
        lambda: 1 + sum(map(isinstance, items, itertools.repeat(A))), lambda: A.register(C)
    )


@case
def registered_by_filter():
    A, C = _abstract()
    items = [C()]
    return gives(lambda: 1 + len(list(filter(A.__instancecheck__, items))), lambda: A.register(C))


@case
def registered_by_sorted():
    A, C = _abstract()
    c = C()
    items = [(1, A), (c, A)]
    return gives(
        lambda: 1 + (sorted(items, key=lambda p: not isinstance(*p))[0][0] is c),
        lambda: A.register(C),
    )


@case
def registered_by_a_partial():
    A, C = _abstract()
    asked = functools.partial(isinstance, C())
    return gives(lambda: 1 + asked(A), lambda: A.register(C))


@case
def registered_by_a_mapped_partial():
    A, C = _abstract()
    asked = functools.partial(isinstance, C())
    return gives(lambda: 1 + sum(map(asked, [A])), lambda: A.register(C))


@case
def registered_by_reduce():
    A, C = _abstract()
    return gives(lambda: 1 + functools.reduce(isinstance, [C(), A]), lambda: A.register(C))


@case
def registered_by_instancecheck():
    A, C = _abstract()
    c = C()
    return gives(lambda: 1 + A.__instancecheck__(c), lambda: A.register(C))


@case
def registered_by_subclasscheck():
    A, C = _abstract()
    return gives(lambda: 1 + A.__subclasscheck__(C), lambda: A.register(C))


@case
def registered_by_issubclass_mapped():
    A, C = _abstract()
    return gives(lambda: 1 + sum(map(issubclass, [C], [A])), lambda: A.register(C))


@case
def registered_by_the_metaclass():
    A, C = _abstract()
    c = C()
    return gives(lambda: 1 + abc.ABCMeta.__instancecheck__(A, c), lambda: A.register(C))


@case
def registered_by_starmap():
    A, C = _abstract()
    c = C()
    return gives(lambda: 1 + sum(itertools.starmap(isinstance, [(c, A)])), lambda: A.register(C))


@case
def registered_by_spread():
    A, C = _abstract()
    pair = (C(), A)
    return gives(lambda: 1 + isinstance(*pair), lambda: A.register(C))


@case
def registered_by_methodcaller():
    A, C = _abstract()
    asked = operator.methodcaller("__instancecheck__", C())
    return gives(lambda: 1 + asked(A), lambda: A.register(C))


@case
def registered_in_an_except():
    A, C = _abstract()

    class E(Exception):
        pass

    class Any(abc.ABC):
        pass

    e = E()
    return gives(lambda: 1 + any(isinstance(e, kind) for kind in [Any]), lambda: Any.register(E))


@case
def registered_for_dispatch():
    A, C = _abstract()
    c = C()

    @functools.singledispatch
    def go(item):
        return 2

    go.register(A, lambda item: 5)
    return gives(lambda: go(c), lambda: A.register(C))


@case
def registered_for_dispatch_mapped():
    A, C = _abstract()
    items = [C()]

    @functools.singledispatch
    def go(item):
        return 2

    go.register(A, lambda item: 5)
    return gives(lambda: sum(map(go, items)), lambda: A.register(C))


@case
def dispatch_that_gets_a_function():
    class C:
        pass

    c = C()

    @functools.singledispatch
    def go(item):
        return 2

    return gives(lambda: go(c), lambda: go.register(C, lambda item: 5))


@case
def matches_a_sequence():
    class C:
        def __len__(self):
            return 2

        def __getitem__(self, n):
            return 5

    c = C()

    def get():
        match c:
            case [a, b]:
                return a
        return 2

    return gives(get, lambda: collections.abc.Sequence.register(C))


@case
def matches_a_sequence_of_what_is_made():
    class C:
        def __len__(self):
            return 2

        def __getitem__(self, n):
            return 5

    def get():
        match C():
            case [a, b]:
                return a
        return 2

    return gives(get, lambda: collections.abc.Sequence.register(C))


@case
def matches_a_mapping():
    class C:
        def get(self, key, default=None):
            return 5

        def keys(self):
            return ["k"]

        def __getitem__(self, key):
            return 5

    c = C()

    def get():
        match c:
            case {"k": v}:
                return v
        return 2

    return gives(get, lambda: collections.abc.Mapping.register(C))


@case
def matches_a_class_that_is_registered():
    A, C = _abstract()
    c = C()

    def get():
        match c:
            case A():
                return 5
        return 2

    return gives(get, lambda: A.register(C))


@case
def matches_in_a_list():
    class C:
        def __len__(self):
            return 1

        def __getitem__(self, n):
            return 5

    cs = [C()]

    def get():
        match cs:
            case [[a]]:
                return a
        return 2

    return gives(get, lambda: collections.abc.Sequence.register(C))


@case
def matches_by_get():
    class C(dict):
        pass

    c = C(k=2)

    def get():
        match c:
            case {"k": v}:
                return v
        return 7

    return gives(get, lambda: setattr(C, "get", lambda self, key, default=None: 5))


@case
def registered_as_a_number():
    class C:
        pass

    c = C()
    return gives(lambda: 1 + isinstance(c, numbers.Real), lambda: numbers.Real.register(C))


# ---- generators and coroutines


def _counting():
    for n in range(100):  # noqa: UP028
        yield n


@eager
def frame_of_a_generator():
    g = _counting()
    next(g), next(g)
    return gives(lambda: g.gi_frame.f_locals["n"], lambda: [next(g) for _ in range(4)])


@eager
def line_of_a_generator():
    def count():
        yield 1
        yield 2

    g = count()
    next(g)
    return gives(lambda: g.gi_frame.f_lineno, lambda: next(g))


@eager
def last_instruction_of_a_generator():
    def count():
        yield 1
        yield 2

    g = count()
    next(g)
    return gives(lambda: g.gi_frame.f_lasti, lambda: next(g))


@eager
def a_generator_that_ends():
    g = (n for n in range(1))
    return gives(lambda: 1 + (g.gi_frame is None), lambda: list(g))


@eager
def state_of_a_generator():
    g = (n for n in range(1))
    return gives(lambda: len(inspect.getgeneratorstate(g)), lambda: list(g))


@eager
def locals_of_a_generator():
    g = _counting()
    next(g), next(g)
    return gives(lambda: inspect.getgeneratorlocals(g)["n"], lambda: [next(g) for _ in range(4)])


@eager
def a_frame_that_is_kept():
    g = _counting()
    next(g), next(g)
    frame = g.gi_frame
    return gives(lambda: frame.f_locals["n"], lambda: [next(g) for _ in range(4)])


@eager
def what_a_generator_waits_for():
    def inner():
        yield 1

    def outer():
        yield 1
        yield from inner()

    g = outer()
    next(g)
    return gives(lambda: 1 + (g.gi_yieldfrom is None), lambda: next(g))


@eager
def frame_of_a_coroutine():
    @types.coroutine
    def wait():
        yield

    async def count():
        for n in range(100):
            await wait()

    c = count()
    c.send(None), c.send(None)
    return gives(lambda: c.cr_frame.f_locals["n"], lambda: [c.send(None) for _ in range(4)])


@eager
def frame_of_an_async_generator():
    async def count():
        for n in range(100):
            yield n

    def advance(agen):
        with contextlib.suppress(StopIteration):
            agen.__anext__().send(None)

    c = count()
    advance(c), advance(c)
    return gives(lambda: c.ag_frame.f_locals["n"], lambda: [advance(c) for _ in range(4)])


@eager
def frame_of_a_generator_by_getattr():
    g = _counting()
    next(g), next(g)
    return gives(
        lambda: getattr(getattr(g, "gi_frame"), "f_locals")["n"],
        lambda: [next(g) for _ in range(4)],
    )


@eager
def frame_of_a_generator_by_attrgetter():
    g = _counting()
    next(g), next(g)
    get = operator.attrgetter("gi_frame.f_locals")
    return gives(lambda: get(g)["n"], lambda: [next(g) for _ in range(4)])


# ---- objects of torch and NumPy that are written in Python


class _Two(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1


def _traced():
    return torch.fx.symbolic_trace(_Two())


def _edit(gm):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.sigmoid


@case
def graph_module_recompiled():
    gm = _traced()

    def change():
        _edit(gm)
        gm.recompile()

    return (lambda x: gm(x)), change


@case
def graph_module_with_another_graph():
    gm, other = _traced(), _traced()
    _edit(other)
    return (lambda x: gm(x)), lambda: setattr(gm, "graph", other.graph)


@case
def graph_module_by_forward():
    gm = _traced()

    def change():
        _edit(gm)
        gm.recompile()

    return (lambda x: gm.forward(x)), change


@case
def graph_module_inside():
    gm = _traced()
    m = torch.nn.Sequential(gm, torch.nn.ReLU())

    def change():
        _edit(gm)
        gm.recompile()

    return (lambda x: m(x)), change


@case
def graph_module_itself():
    gm = _traced()

    def change():
        _edit(gm)
        gm.recompile()

    return gm, change


@case
def graph_that_is_interpreted():
    gm = _traced()
    return (lambda x: torch.fx.Interpreter(gm).run(x)), lambda: _edit(gm)


@eager
def graph_that_is_interpreted_with_kept_interpreter():
    gm = _traced()
    interpreter = torch.fx.Interpreter(gm)
    return (lambda x: interpreter.run(x)), lambda: _edit(gm)


@case
def graph_that_is_counted():
    gm = _traced()

    def change():
        with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
            gm.graph.call_function(torch.relu, (1,))

    return gives(lambda: len(gm.graph.nodes), change)


@case
def graph_that_is_gone_through():
    gm = _traced()
    return gives(lambda: 1 + sum(n.target is torch.relu for n in gm.graph.nodes), lambda: _edit(gm))


@case
def graph_that_gets_a_node():
    gm = _traced()

    def change():
        relu = list(gm.graph.nodes)[1]
        with gm.graph.inserting_after(relu):
            new = gm.graph.call_function(torch.sigmoid, (relu,))
        relu.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)

    return (lambda x: torch.fx.Interpreter(gm).run(x)), change


@case
def graph_that_gets_a_node_and_is_gone_through():
    gm = _traced()

    def change():
        with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
            gm.graph.call_function(torch.relu, (1,))

    return gives(lambda: sum(1 for n in gm.graph.nodes), change)


@case
def graph_whose_nodes_are_in_another_order():
    gm = _traced()

    def change():
        nodes = list(gm.graph.nodes)
        nodes[0].append(nodes[2])

    return gives(
        lambda: (
            [n.op for n in gm.graph.nodes].index("call_function")
            + [n.name for n in gm.graph.nodes].index("add")
        ),
        change,
    )


@case
def graph_that_is_printed():
    gm = _traced()
    return gives(lambda: len(str(gm.graph)), lambda: _edit(gm))


@case
def graph_with_other_arguments():
    gm = _traced()

    def change():
        nodes = list(gm.graph.nodes)
        nodes[2].args = (nodes[2].args[0], 5)
        gm.recompile()

    return (lambda x: gm(x)), change


@case
def graph_interpreted_with_other_arguments():
    gm = _traced()

    def change():
        nodes = list(gm.graph.nodes)
        nodes[2].args = (nodes[2].args[0], 5)

    return (lambda x: torch.fx.Interpreter(gm).run(x)), change


def _registers(fn_of):
    class P:
        def __init__(self, a, b):
            self.a, self.b = a, b

    p = P(2.0, 5.0)

    def change():
        torch.utils._pytree.register_pytree_node(
            P, lambda p: ([p.a, p.b], None), lambda parts, _: P(*parts)
        )

    return gives(
        fn_of(p),
        change,
        lambda: (
            torch.utils._pytree._deregister_pytree_node(P)
            if P in torch.utils._pytree.SUPPORTED_NODES
            else None
        ),
    )


@case
def tree_leaves():
    return _registers(lambda p: lambda: len(torch.utils._pytree.tree_leaves([p, 1])))


@case
def tree_flattened():
    return _registers(lambda p: lambda: len(torch.utils._pytree.tree_flatten((p, 1))[0]))


@case
def tree_mapped():
    def of(p):
        return lambda: torch.utils._pytree.tree_map(
            lambda v: v if isinstance(v, float) else 2.0, [p]
        )[0].__class__.__name__.__len__()

    return _registers(of)


@case
def tree_of_a_plain_object():
    class P:
        def __init__(self):
            self.a = 2

    p = P()
    flat = torch.utils._pytree
    flat.register_pytree_node(P, lambda p: ([p.a], None), lambda parts, _: P())
    return gives(
        lambda: flat.tree_leaves([p])[0],
        lambda: setattr(p, "a", 5),
        lambda: flat._deregister_pytree_node(P),
    )


@case
def tree_flattened_in_another_way():
    class P:
        a, b = 2, 5

    p = P()
    flat = torch.utils._pytree
    flat.register_pytree_node(P, lambda p: ([p.a], None), lambda parts, _: P())

    def change():
        flat._deregister_pytree_node(P)
        flat.register_pytree_node(P, lambda p: ([p.b], None), lambda parts, _: P())

    return gives(lambda: flat.tree_leaves([p])[0], change, lambda: flat._deregister_pytree_node(P))


@case
def polynomial():
    p = np.polynomial.Polynomial([1.0, 2.0])
    return gives(lambda: float(p(2.0)), lambda: setattr(p, "coef", np.array([5.0, 5.0])))


@case
def polynomial_in_place():
    p = np.polynomial.Polynomial([1.0, 2.0])
    return gives(lambda: float(p(2.0)), lambda: p.coef.__setitem__(0, 5.0))


@case
def polynomial_domain():
    p = np.polynomial.Chebyshev([1.0, 2.0])
    return gives(lambda: float(p(0.5)), lambda: p.domain.__setitem__(0, -3.0))


@case
def polynomial_by_method():
    p = np.polynomial.Polynomial([1.0, 2.0, 3.0])
    return gives(lambda: float(p.deriv()(1.0)), lambda: p.coef.__setitem__(1, 5.0))


@case
def polynomial_by_operator():
    p = np.polynomial.Polynomial([1.0, 2.0, 3.0])
    return gives(lambda: float((p * 2).coef[1]), lambda: p.coef.__setitem__(1, 5.0))


@case
def polynomial_degree():
    p = np.polynomial.Polynomial([1.0, 2.0, 3.0])
    return gives(lambda: p.degree(), lambda: setattr(p, "coef", np.array([1.0, 2.0])))


@case
def polynomial_given():
    p = np.polynomial.Polynomial([1.0, 2.0, 3.0])
    c = p.coef
    return gives(
        lambda: float(np.polynomial.polynomial.polyval(2.0, c)), lambda: c.__setitem__(1, 5.0)
    )


@case
def polynomial_of_one_dimension():
    p = np.poly1d([1.0, 2.0])
    return gives(lambda: float(p(2.0)), lambda: p.coeffs.__setitem__(0, 5.0))


@case
def polynomial_of_one_dimension_given():
    p = np.poly1d([1.0, 2.0])
    return gives(lambda: float(np.polyval(p, 2.0)), lambda: p.coeffs.__setitem__(0, 5.0))


@case
def vectorized():
    v = np.vectorize(lambda a: a * 2)
    return gives(
        lambda: float(v(np.array([1.0]))[0]), lambda: setattr(v, "pyfunc", lambda a: a * 5)
    )


@case
def vectorized_types():
    v = np.vectorize(lambda a: a * 2.5, otypes=[float])
    return gives(lambda: float(v(np.array([1.0]))[0]), lambda: setattr(v, "otypes", "i"))


@case
def masked_array():
    a = np.ma.array([1.0, 2.0], mask=[False, False])
    return gives(lambda: float(a.sum()), lambda: a.__setmask__([True, False]))


@case
def masked_array_fill():
    a = np.ma.array([1.0, 2.0], mask=[True, False], fill_value=3.0)
    return gives(lambda: float(a.filled().sum()), lambda: a.set_fill_value(9.0))


@case
def array_class_with_attributes():
    class A(np.ndarray):
        pass

    a = np.array([1.0, 2.0]).view(A)
    a.k = 2.0
    return gives(lambda: float(a.k), lambda: setattr(a, "k", 5.0))


@case
def array_printing():
    a = np.array([1.23456789])
    return gives(
        lambda: len(str(a)),
        lambda: np.set_printoptions(precision=3),
        lambda: np.set_printoptions(precision=8),
    )


# ---- registries in C


@case
def errors_of_codecs():
    codecs.register_error("closed-1", lambda e: ("ab", e.end))
    return gives(
        lambda: len("é".encode("ascii", "closed-1")),
        lambda: codecs.register_error("closed-1", lambda e: ("abcde", e.end)),
    )


@case
def errors_of_codecs_by_decode():
    codecs.register_error("closed-2", lambda e: ("ab", e.end))
    return gives(
        lambda: len(b"\xff".decode("ascii", errors="closed-2")),
        lambda: codecs.register_error("closed-2", lambda e: ("abcde", e.end)),
    )


@eager
def errors_of_codecs_that_come():
    return raises(
        lambda: len("é".encode("ascii", "closed-3")),
        lambda: codecs.register_error("closed-3", lambda e: ("abcde", e.end)),
    )


@case
def errors_of_codecs_by_str():
    codecs.register_error("closed-4", lambda e: ("ab", e.end))
    return gives(
        lambda: len(str(b"\xff", "ascii", "closed-4")),
        lambda: codecs.register_error("closed-4", lambda e: ("abcde", e.end)),
    )


@case
def errors_of_codecs_by_bytes():
    codecs.register_error("closed-5", lambda e: ("ab", e.end))
    return gives(
        lambda: len(bytes("é", "ascii", errors="closed-5")),
        lambda: codecs.register_error("closed-5", lambda e: ("abcde", e.end)),
    )


@case
def errors_of_codecs_by_function():
    codecs.register_error("closed-6", lambda e: ("ab", e.end))
    return gives(
        lambda: len(codecs.encode("é", "ascii", "closed-6")),
        lambda: codecs.register_error("closed-6", lambda e: ("abcde", e.end)),
    )


@case
def errors_of_codecs_looked_up():
    codecs.register_error("closed-7", lambda e: ("ab", e.end))
    return gives(
        lambda: len(codecs.lookup_error("closed-7")(NS(end=1))[0]),
        lambda: codecs.register_error("closed-7", lambda e: ("abcde", e.end)),
    )


@case
def errors_of_codecs_by_method_of_the_class():
    codecs.register_error("closed-8", lambda e: ("ab", e.end))
    return gives(
        lambda: len(str.encode("é", "ascii", "closed-8")),
        lambda: codecs.register_error("closed-8", lambda e: ("abcde", e.end)),
    )


@case
def errors_of_codecs_by_an_encoder():
    codecs.register_error("closed-9", lambda e: ("ab", e.end))
    return gives(
        lambda: len(codecs.getencoder("ascii")("é", "closed-9")[0]),
        lambda: codecs.register_error("closed-9", lambda e: ("abcde", e.end)),
    )


def _codec(name, text):
    def search(asked):
        if asked != name:
            return None
        return codecs.CodecInfo(
            lambda s, e="strict": (text.encode(), len(s)),
            lambda b, e="strict": (text, len(b)),
            name=name,
        )

    return search


@eager
def a_codec_of_the_program():
    one, other = _codec("closed_a", "ab"), _codec("closed_a", "abcde")
    codecs.register(one)
    now = [one]

    def change():
        codecs.unregister(now.pop())
        codecs.register(other)
        now.append(other)

    return gives(lambda: len("x".encode("closed_a")), change, lambda: codecs.unregister(now.pop()))


@eager
def a_codec_that_comes():
    other = _codec("closed_b", "abcde")
    now = []

    def change():
        codecs.register(other)
        now.append(other)

    return (
        *raises(lambda: len("x".encode("closed_b")), change)[:1],
        change,
    )


@case
def dialect_of_csv():
    csv.register_dialect("closed-1", delimiter=";")
    return gives(
        lambda: len(next(csv.reader(["a;b,c,d"], "closed-1"))),
        lambda: csv.register_dialect("closed-1", delimiter=","),
        lambda: csv.unregister_dialect("closed-1"),
    )


@case
def dialect_of_csv_by_keyword():
    csv.register_dialect("closed-2", delimiter=";")
    return gives(
        lambda: len(next(csv.reader(["a;b,c,d"], dialect="closed-2"))),
        lambda: csv.register_dialect("closed-2", delimiter=","),
        lambda: csv.unregister_dialect("closed-2"),
    )


@case
def dialect_of_csv_looked_up():
    csv.register_dialect("closed-3", delimiter=";")
    return gives(
        lambda: ord(csv.get_dialect("closed-3").delimiter),
        lambda: csv.register_dialect("closed-3", delimiter=","),
        lambda: csv.unregister_dialect("closed-3"),
    )


@case
def dialects_of_csv():
    return gives(
        lambda: len(csv.list_dialects()),
        lambda: csv.register_dialect("closed-4", delimiter=","),
        lambda: csv.unregister_dialect("closed-4") if "closed-4" in csv.list_dialects() else None,
    )


@case
def dialect_of_csv_for_dicts():
    csv.register_dialect("closed-5", delimiter=";")
    return gives(
        lambda: len(next(csv.DictReader(["a;b,c,d", "1;2,3,4"], dialect="closed-5"))),
        lambda: csv.register_dialect("closed-5", delimiter=","),
        lambda: csv.unregister_dialect("closed-5"),
    )


@case
def dialect_of_csv_as_a_class():
    class D(csv.excel):
        delimiter = ";"

    return gives(
        lambda: len(next(csv.reader(["a;b,c,d"], D))), lambda: setattr(D, "delimiter", ",")
    )


@case
def dialect_of_csv_as_an_object():
    class D(csv.excel):
        delimiter = ";"

    d = D()
    return gives(
        lambda: len(next(csv.reader(["a;b,c,d"], dialect=d))), lambda: setattr(d, "delimiter", ",")
    )


@case
def limit_of_csv():
    old = csv.field_size_limit()
    return gives(
        lambda: csv.field_size_limit() / old,
        lambda: csv.field_size_limit(old * 2),
        lambda: csv.field_size_limit(old),
    )


def _pickled():
    class P:
        pass

    P.__qualname__ = "_PickledClass"
    globals()["_PickledClass"] = P
    return P


@case
def reducer_of_copyreg():
    P = _pickled()
    p = P()
    return gives(
        lambda: len(pickle.dumps(p)),
        lambda: copyreg.pickle(P, lambda p: (list, ("abcdefgh",))),
        lambda: copyreg.dispatch_table.pop(P, None),
    )


@case
def reducer_of_copyreg_for_a_copy():
    P = _pickled()
    p = P()
    p.k = 2
    return gives(
        lambda: copy.copy(p).k,
        lambda: copyreg.pickle(P, lambda p: (NS, (), {"k": 5})),
        lambda: copyreg.dispatch_table.pop(P, None),
    )


@case
def pickled_attribute():
    P = _pickled()
    p = P()
    p.k = "a"
    return gives(lambda: len(pickle.dumps(p)), lambda: setattr(p, "k", "abcde"))


@case
def pickled_attribute_in_a_list():
    P = _pickled()
    p = P()
    p.k = "a"
    ps = [p]
    return gives(lambda: len(pickle.dumps(ps)), lambda: setattr(p, "k", "abcde"))


@case
def pickled_attribute_deep():
    p = NS(k="a")
    ps = [[[[[[NS(p=p)]]]]]]
    return gives(lambda: len(pickle.dumps(ps)), lambda: setattr(p, "k", "abcde"))


@case
def pickled_with_reduce():
    P = _pickled()
    p = P()
    return gives(
        lambda: len(pickle.dumps(p)),
        lambda: setattr(P, "__reduce__", lambda self: (list, ("abcdefgh",))),
    )


@case
def pickled_with_getstate():
    P = _pickled()
    p = P()
    p.k = "a"
    return gives(
        lambda: len(pickle.dumps(p)), lambda: setattr(P, "__getstate__", lambda self: {"k": "abcd"})
    )


@case
def unpickled_by_name():
    P = _pickled()
    P.k = 2
    data = pickle.dumps(P())

    def change():
        Q = _pickled()
        Q.k = 5

    return gives(lambda: pickle.loads(data).k, change)


@case
def unpickled_by_name_of_a_module():
    m = types.ModuleType("closed_pickles")
    sys.modules["closed_pickles"] = m
    m.k = lambda: 2
    data = b"cclosed_pickles\nk\n)R."
    return gives(
        lambda: pickle.loads(data),
        lambda: setattr(m, "k", lambda: 5),
        lambda: sys.modules.pop("closed_pickles"),
    )


# ---- their brothers


@case
def attrgetter_of_a_dotted_name():
    n = NS(a=NS(b=2))
    get = operator.attrgetter("a.b")
    return gives(lambda: get(n), lambda: setattr(n.a, "b", 5))


@case
def attrgetter_of_a_class():
    class C:
        a = 2

    get = operator.attrgetter("a")
    return gives(lambda: sum(map(get, [C])), lambda: setattr(C, "a", 5))


@case
def itemgetter_of_a_slice():
    items = [1, 2, 3]
    get = operator.itemgetter(slice(0, 2))
    return gives(lambda: sum(get(items)), lambda: items.__setitem__(0, 5))


@case
def itemgetter_of_a_mapping():
    d = collections.UserDict(k=2)
    get = operator.itemgetter("k")
    return gives(lambda: get(d), lambda: d.update(k=5))


@case
def methodcaller_with_arguments():
    n = {"k": 2}
    get = operator.methodcaller("get", "k")
    return gives(lambda: get(n), lambda: n.update(k=5))


@case
def methodcaller_of_a_class():
    class C:
        @classmethod
        def k(cls):
            return 2

    get = operator.methodcaller("k")

    def change():
        C.k = classmethod(lambda cls: 5)

    return gives(lambda: get(C), change)


@case
def user_dict():
    d = collections.UserDict(k=2)
    return gives(lambda: d["k"], lambda: d.data.update(k=5))


@case
def user_dict_that_gets_missing():
    class D(collections.UserDict):
        pass

    d = D()
    return raises(lambda: d["k"], lambda: setattr(D, "__missing__", lambda self, key: 5))


@case
def user_list():
    items = collections.UserList([2])
    return gives(lambda: items[0], lambda: items.data.__setitem__(0, 5))


@case
def user_list_sum():
    items = collections.UserList([2])
    return gives(lambda: sum(items), lambda: items.data.append(5))


@case
def user_string():
    s = collections.UserString("ab")
    return gives(lambda: len(s.upper()), lambda: setattr(s, "data", "abcde"))


@case
def chain_map():
    one, other = {}, {"k": 2}
    chain = collections.ChainMap(one, other)
    return gives(lambda: chain["k"], lambda: one.update(k=5))


@case
def chain_map_that_gets_a_map():
    chain = collections.ChainMap({"k": 2})
    return gives(lambda: chain["k"], lambda: chain.maps.insert(0, {"k": 5}))


@case
def chain_map_as_a_dict():
    one, other = {}, {"k": 2}
    chain = collections.ChainMap(one, other)
    return gives(lambda: dict(chain)["k"], lambda: one.update(k=5))


@case
def counter():
    c = collections.Counter("aab")
    return gives(lambda: c.most_common(1)[0][1], lambda: c.update("bbbb"))


@case
def counter_of_nothing():
    c = collections.Counter()
    return gives(lambda: 2 + c["k"], lambda: c.update(k=3))


@case
def counter_total():
    c = collections.Counter("aab")
    return gives(lambda: c.total(), lambda: c.update("bbbb"))


@case
def default_factory():
    d = collections.defaultdict(lambda: 2)
    return gives(
        lambda: dict(d).get("k") or d.default_factory(),
        lambda: setattr(d, "default_factory", lambda: 5),
    )


@case
def default_factory_of_a_missing_key():
    holder = NS(d=collections.defaultdict(lambda: 2))

    def get():
        d = holder.d.copy()
        return d["k"]

    return gives(get, lambda: setattr(holder.d, "default_factory", lambda: 5))


@case
def ordered_dict_moved():
    d = collections.OrderedDict(a=2, b=5)
    return gives(lambda: next(iter(d.values())), lambda: d.move_to_end("a"))


@case
def named_tuple_field():
    P = collections.namedtuple("P", "a b")
    p = P(2, 5)
    return gives(lambda: p.a, lambda: setattr(P, "a", property(lambda self: self[1])))


@case
def named_tuple_replaced():
    P = collections.namedtuple("P", "a b")
    p = P(2, 5)
    return gives(lambda: len(p._asdict()), lambda: setattr(P, "_fields", ("a",)))


@case
def mapping_proxy():
    d = {"k": 2}
    proxy = types.MappingProxyType(d)
    return gives(lambda: sum(proxy.values()), lambda: d.update(j=5))


@case
def mapping_proxy_of_an_object():
    d = collections.UserDict(k=2)
    proxy = types.MappingProxyType(d)
    return gives(lambda: proxy["k"], lambda: d.update(k=5))


@case
def mapping_proxy_copied():
    d = {"k": 2}
    proxy = types.MappingProxyType(d)
    return gives(lambda: proxy.copy()["k"], lambda: d.update(k=5))


@case
def mapping_proxy_united():
    d = {"k": 2}
    proxy = types.MappingProxyType(d)
    return gives(lambda: (proxy | {})["k"], lambda: d.update(k=5))


class _Weak:
    pass


@case
def weak_values():
    w = _Weak()
    w.k = 2
    d = weakref.WeakValueDictionary(a=w)
    other = _Weak()
    other.k = 5

    def fn(x):
        return x * d["a"].k

    fn.kept = w, other
    return fn, lambda: d.update(a=other)


@case
def weak_keys():
    w = _Weak()
    d = weakref.WeakKeyDictionary({w: 2})
    return gives(lambda: d[w], lambda: d.update({w: 5}))


@case
def weak_set():
    a, b = _Weak(), _Weak()
    s = weakref.WeakSet([a])
    return gives(lambda: len(s), lambda: s.add(b))


@case
def weak_set_membership():
    a, b = _Weak(), _Weak()
    s = weakref.WeakSet([a])
    return gives(lambda: 1 + (b in s), lambda: s.add(b))


@case
def cached_property_replaced():
    class C:
        @functools.cached_property
        def a(self):
            return self.k

    c = C()
    c.k = 2

    def change():
        c.k = 5
        del c.a

    c.a
    return gives(lambda: c.a, change)


@case
def cached_property_function():
    class C:
        @functools.cached_property
        def a(self):
            return 2

    def change():
        vars(C)["a"].func = lambda self: 5

    return gives(lambda: C().a, change)


@case
def partial_method():
    class C:
        def go(self, k):
            return k

        two = functools.partialmethod(go, 2)

    c = C()

    def change():
        vars(C)["two"].args = (5,)

    return gives(lambda: c.two(), change)


@case
def partial_method_keywords():
    class C:
        def go(self, k):
            return k

        two = functools.partialmethod(go, k=2)

    c = C()

    return gives(lambda: c.two(), lambda: vars(C)["two"].keywords.update(k=5))


@case
def single_dispatch_method():
    class C:
        @functools.singledispatchmethod
        def go(self, item):
            return 2

    c = C()

    def change():
        C.go.register(int, lambda self, item: 5)

    return gives(lambda: c.go(1), change)


@case
def total_ordering():
    @functools.total_ordering
    class C:
        def __lt__(self, other):
            return True

    a, b = C(), C()
    return gives(lambda: 1 + (a > b), lambda: setattr(C, "__lt__", lambda self, other: False))


class _Colors(enum.Enum):
    RED = 2
    BLUE = 5


@case
def enum_value():
    C = enum.Enum("C", {"A": 2, "B": 5})
    return gives(lambda: C.A.value, lambda: setattr(C.A, "_value_", 5))


@case
def enum_by_value():
    C = enum.Enum("C", {"A": 2, "B": 5})
    return gives(
        lambda: C(2).value,
        lambda: C._value2member_map_.update({2: C.B}),
    )


@case
def enum_by_name():
    C = enum.Enum("C", {"A": 2, "B": 5})
    return gives(lambda: C["A"].value, lambda: C._member_map_.update(A=C.B))


@case
def enum_members():
    C = enum.Enum("C", {"A": 2, "B": 5})
    return gives(lambda: len(list(C)), lambda: C._member_names_.pop())


@case
def enum_members_by_dict():
    C = enum.Enum("C", {"A": 2, "B": 5})
    return gives(lambda: C.__members__["A"].value, lambda: C._member_map_.update(A=C.B))


@case
def enum_missing():
    C = enum.Enum("C", {"A": 2, "B": 5})

    def change():
        C._missing_ = classmethod(lambda cls, value: cls.B)

    return raises(lambda: C(7).value, change)


@case
def enum_in_a_format():
    C = enum.Enum("C", {"A": 2})
    return gives(lambda: len(f"{C.A}"), lambda: setattr(C, "__str__", lambda self: "abcdefgh"))


@case
def enum_that_is_an_int():
    C = enum.IntEnum("C", {"A": 2, "B": 5})
    return gives(lambda: C.A + 1, lambda: setattr(C, "__add__", lambda self, other: 5))


@case
def enum_flags():
    C = enum.Flag("C", {"A": 1, "B": 2})
    both = C.A | C.B
    return gives(lambda: 1 + (C.B in both), lambda: setattr(both, "_value_", 1))


@case
def formatter():
    class F(string.Formatter):
        pass

    f = F()
    return gives(
        lambda: len(f.format("{a}", a="ab")),
        lambda: setattr(F, "get_value", lambda self, key, args, kw: "abcde"),
    )


@case
def formatter_of_attributes():
    n = NS(a=NS(b="ab"))
    return gives(
        lambda: len(string.Formatter().format("{0.a.b}", n)), lambda: setattr(n.a, "b", "abcde")
    )


@case
def format_of_attributes():
    n = NS(a=NS(b="ab"))
    return gives(lambda: len("{0.a.b}".format(n)), lambda: setattr(n.a, "b", "abcde"))


@case
def format_of_attributes_of_an_object():
    class C:
        pass

    c = C()
    c.a = C()
    c.a.b = "ab"
    return gives(lambda: len("{0.a.b}".format(c)), lambda: setattr(c.a, "b", "abcde"))


@case
def format_of_items():
    n = {"a": {"b": ["ab"]}}
    return gives(lambda: len("{0[a][b][0]}".format(n)), lambda: n["a"]["b"].__setitem__(0, "abcde"))


@case
def format_of_deep_items():
    n = {"a": {"b": {"c": {"d": {"e": ["ab"]}}}}}
    return gives(
        lambda: len("{0[a][b][c][d][e][0]}".format(n)),
        lambda: n["a"]["b"]["c"]["d"]["e"].__setitem__(0, "abcde"),
    )


@case
def format_map_of_a_user_dict():
    d = collections.UserDict(k="ab")
    return gives(lambda: len("{k}".format_map(d)), lambda: d.update(k="abcde"))


@case
def template():
    t = string.Template("$a")
    return gives(lambda: len(t.substitute(a="ab")), lambda: setattr(t, "template", "$a$a"))


@case
def template_identifiers():
    t = string.Template("$a $b")
    d = {"a": "x", "b": "y"}
    return gives(lambda: len(t.substitute(d)), lambda: d.update(a="abcde"))


@case
def decimal_context():
    a = decimal.Decimal(1)
    return gives(
        lambda: len(str(a / 3)),
        lambda: setattr(decimal.getcontext(), "prec", 5),
        lambda: setattr(decimal.getcontext(), "prec", 28),
    )


@case
def decimal_of_what_is_made():
    return gives(
        lambda: len(str(decimal.Decimal(1) / 3)),
        lambda: setattr(decimal.getcontext(), "prec", 5),
        lambda: setattr(decimal.getcontext(), "prec", 28),
    )


@case
def decimal_of_fractions():
    n = NS(a=decimal.Decimal(1), b=decimal.Decimal(3))
    return gives(
        lambda: float(functools.reduce(operator.truediv, [n.a, n.b])) * 3,
        lambda: setattr(decimal.getcontext(), "prec", 2),
        lambda: setattr(decimal.getcontext(), "prec", 28),
    )


@case
def decimal_local_context():
    def get():
        with decimal.localcontext() as context:
            return context.prec

    return gives(
        get,
        lambda: setattr(decimal.getcontext(), "prec", 5),
        lambda: setattr(decimal.getcontext(), "prec", 28),
    )


@case
def fraction():
    f = fractions.Fraction(2, 1)
    return gives(lambda: float(f + 1), lambda: setattr(f, "_numerator", 5))


@case
def warning_that_becomes_an_error():
    old = warnings.filters[:]

    def get():
        try:
            warnings.warn("closed", RuntimeWarning, stacklevel=1)
        except RuntimeWarning:
            return 5
        return 2

    def fn(x):
        return x * get()

    warnings.filterwarnings("ignore", "closed")

    def undo():
        warnings.filters[:] = old
        warnings._filters_mutated()

    fn.undo = undo
    return fn, lambda: warnings.filterwarnings("error", "closed")


@case
def warnings_that_are_recorded():
    old = warnings.filters[:]

    def fn(x):
        with warnings.catch_warnings(record=True) as met:
            warnings.warn("closed", RuntimeWarning, stacklevel=1)
        return x * (2 + len(met))

    warnings.filterwarnings("ignore", "closed")

    def undo():
        warnings.filters[:] = old
        warnings._filters_mutated()

    fn.undo = undo
    return fn, lambda: warnings.filterwarnings("always", "closed")


@case
def json_default():
    class E(json.JSONEncoder):
        def default(self, item):
            return "ab"

    n = NS()
    return gives(
        lambda: len(json.dumps(n, cls=E)), lambda: setattr(E, "default", lambda self, item: "abcde")
    )


@case
def json_default_as_a_function():
    n = NS(f=lambda item: "ab")
    o = object()
    return gives(
        lambda: len(json.dumps(o, default=n.f)), lambda: setattr(n, "f", lambda item: "abcde")
    )


@case
def json_encoder_kept():
    e = json.JSONEncoder()
    return gives(lambda: len(e.encode({"b": 1, "a": [1, 2]})), lambda: setattr(e, "indent", 4))


@case
def json_hook_of_a_decoder():
    d = json.JSONDecoder(object_hook=lambda o: 2)

    def change():
        d.object_hook = lambda o: 5
        d.scan_once = json.scanner.py_make_scanner(d)

    return gives(lambda: d.decode('{"a": 1}'), change)


@case
def json_of_a_nested_list():
    items = [[[[[[1]]]]]]
    return gives(lambda: len(json.dumps(items)), lambda: items[0][0][0][0][0].append(5))


@case
def text_of_a_nested_list():
    items = [[[[[[1]]]]]]
    return gives(lambda: len(str(items)), lambda: items[0][0][0][0][0].append(5))


@case
def equality_of_nested_lists():
    one, other = [[[[[[1]]]]]], [[[[[[1]]]]]]
    return gives(lambda: 1 + (one == other), lambda: one[0][0][0][0][0].append(5))


@case
def hash_of_a_tuple_of_objects():
    class K:
        v = 1

        def __hash__(self):
            return self.v

    k = K()
    t = (k, 1)
    return gives(lambda: 1 + (hash(t) == hash((1, 1))), lambda: setattr(k, "v", 2))


@case
def config_parser():
    c = configparser.ConfigParser()
    c.read_string("[a]\nk = 2\n")
    return gives(lambda: c.getint("a", "k"), lambda: c.set("a", "k", "5"))


@case
def config_parser_default():
    c = configparser.ConfigParser()
    c.read_string("[DEFAULT]\nk = 2\n[a]\n")
    return gives(lambda: c["a"].getint("k"), lambda: c["DEFAULT"].__setitem__("k", "5"))


@case
def config_parser_converters():
    c = configparser.ConfigParser(converters={"two": lambda v: 2})
    c.read_string("[a]\nk = 2\n")
    return gives(lambda: c.gettwo("a", "k"), lambda: c.converters.__setitem__("two", lambda v: 5))


@case
def argument_default():
    p = argparse.ArgumentParser()
    p.add_argument("--k", type=int, default=2)
    return gives(lambda: p.parse_args([]).k, lambda: p.set_defaults(k=5))


@case
def argument_that_comes():
    p = argparse.ArgumentParser()
    p.add_argument("--k", type=int, default=2)
    return gives(
        lambda: len(vars(p.parse_args([]))), lambda: p.add_argument("--j", type=int, default=5)
    )


@case
def argument_of_the_process():
    p = argparse.ArgumentParser()
    p.add_argument("--k", type=int, default=2)
    old = sys.argv
    sys.argv = ["x"]
    return gives(
        lambda: p.parse_args().k,
        lambda: setattr(sys, "argv", ["x", "--k", "5"]),
        lambda: setattr(sys, "argv", old),
    )


@case
def environment():
    os.environ["CLOSED_1"] = "2"
    return gives(
        lambda: int(os.environ["CLOSED_1"]),
        lambda: os.environ.update(CLOSED_1="5"),
        lambda: os.environ.pop("CLOSED_1"),
    )


@case
def environment_by_getenv():
    return gives(
        lambda: int(os.getenv("CLOSED_2", "2")),
        lambda: os.environ.update(CLOSED_2="5"),
        lambda: os.environ.pop("CLOSED_2", None),
    )


@case
def environment_as_bytes():
    os.environ["CLOSED_3"] = "2"
    return gives(
        lambda: int(os.environb[b"CLOSED_3"]),
        lambda: os.environ.update(CLOSED_3="5"),
        lambda: os.environ.pop("CLOSED_3"),
    )


@case
def environment_copied():
    os.environ["CLOSED_4"] = "2"
    return gives(
        lambda: int(dict(os.environ)["CLOSED_4"]),
        lambda: os.environ.update(CLOSED_4="5"),
        lambda: os.environ.pop("CLOSED_4"),
    )


@case
def environment_expanded():
    os.environ["CLOSED_5"] = "ab"
    return gives(
        lambda: len(os.path.expandvars("$CLOSED_5")),
        lambda: os.environ.update(CLOSED_5="abcde"),
        lambda: os.environ.pop("CLOSED_5"),
    )


_variable = contextvars.ContextVar("closed", default=2)


@case
def context_variable():
    return gives(_variable.get, lambda: _variable.set(5), lambda: _variable.set(2))


@case
def context_variable_mapped():
    return gives(
        lambda: sum(map(contextvars.ContextVar.get, [_variable])),
        lambda: _variable.set(5),
        lambda: _variable.set(2),
    )


@case
def statistics_of_a_distribution():
    d = statistics.NormalDist(2.0, 1.0)
    return gives(lambda: d.mean, lambda: setattr(d, "_mu", 5.0))


@case
def statistics_by_cdf():
    d = statistics.NormalDist(2.0, 1.0)
    return gives(lambda: d.cdf(2.5), lambda: setattr(d, "_sigma", 5.0))


@case
def bisected_objects():
    class K:
        def __init__(self, v):
            self.v = v

        def __lt__(self, other):
            return self.v < other.v

    ks = [K(1), K(2), K(3)]
    k = K(2.5)
    return gives(
        lambda: 1 + bisect.bisect(ks, k), lambda: setattr(ks[0], "v", 9) or setattr(k, "v", 0)
    )


@case
def bisected_by_key():
    items = [NS(v=1), NS(v=2)]
    return gives(
        lambda: 1 + bisect.bisect(items, 1.5, key=operator.attrgetter("v")),
        lambda: setattr(items[0], "v", 9),
    )


@case
def bisected_objects_that_get_lt():
    class K(int):
        pass

    ks = [K(1), K(2), K(3)]
    return gives(
        lambda: 1 + bisect.bisect(ks, 2), lambda: setattr(K, "__gt__", lambda self, other: True)
    )


@case
def heap_of_objects():
    class K:
        def __init__(self, v):
            self.v = v

        def __lt__(self, other):
            return self.v < other.v

    ks = [K(1), K(2)]
    return gives(lambda: heapq.nsmallest(1, ks)[0].v, lambda: setattr(ks[0], "v", 9))


@case
def heap_by_key():
    items = [NS(v=1), NS(v=2)]
    return gives(
        lambda: heapq.nlargest(1, items, key=operator.attrgetter("v"))[0].v,
        lambda: setattr(items[0], "v", 9),
    )


@case
def copied_with_copy():
    class C:
        k = 2

    c = C()

    def change():
        C.__copy__ = lambda self: NS(k=5)

    return gives(lambda: copy.copy(c).k, change)


@case
def copied_with_deepcopy():
    class C:
        k = 2

    c = C()

    def change():
        C.__deepcopy__ = lambda self, memo: NS(k=5)

    return gives(lambda: copy.deepcopy([c])[0].k, change)


@case
def copied_deeply():
    d = {"a": [NS(k=2)]}
    return gives(lambda: copy.deepcopy(d)["a"][0].k, lambda: setattr(d["a"][0], "k", 5))


@case
def copied_with_reduce():
    class C:
        pass

    c = C()
    c.k = 2

    def change():
        C.__reduce_ex__ = lambda self, protocol: (NS, (), {"k": 5})

    return gives(lambda: copy.copy(c).k, change)


@case
def copied_with_getstate():
    class C:
        pass

    c = C()
    c.k = 2
    return gives(lambda: copy.copy(c).k, lambda: setattr(C, "__getstate__", lambda self: {"k": 5}))


@case
def copied_with_setstate():
    class C:
        pass

    c = C()
    c.k = 2

    def change():
        C.__setstate__ = lambda self, state: setattr(self, "k", 5)

    return gives(lambda: copy.copy(c).k, change)


@case
def copied_slots():
    class C:
        __slots__ = ("k",)

    c = C()
    c.k = 2
    return gives(lambda: copy.copy(c).k, lambda: setattr(c, "k", 5))


@case
def exit_stack():
    @contextlib.contextmanager
    def manager():
        yield n.k

    n = NS(k=2)

    def get():
        with contextlib.ExitStack() as stack:
            return stack.enter_context(manager())

    return gives(get, lambda: setattr(n, "k", 5))


@case
def exit_stack_with_a_class():
    class M:
        def __enter__(self):
            return 2

        def __exit__(self, *error):
            return None

    m = M()

    def get():
        with contextlib.ExitStack() as stack:
            return stack.enter_context(m)

    return gives(get, lambda: setattr(M, "__enter__", lambda self: 5))


@case
def null_context():
    c = contextlib.nullcontext(2)

    def get():
        with c as v:
            return v

    return gives(get, lambda: setattr(c, "enter_result", 5))


@case
def suppressed():
    s = contextlib.suppress(KeyError)

    def get():
        try:
            with s:
                raise ValueError
        except ValueError:
            return 2
        return 5

    return gives(get, lambda: setattr(s, "_exceptions", (ValueError,)))


@case
def redirected():
    out = io.StringIO()
    return gives(lambda: 1 + len(out.getvalue()), lambda: out.write("abcd"))


@case
def callable_object_sorted():
    class K:
        s = 1

        def __call__(self, v):
            return self.s * v

    k = K()
    return gives(lambda: sorted([2, 5], key=k)[0], lambda: setattr(k, "s", -1))


@case
def reduced_by_operator():
    class K(float):
        pass

    ks = [K(2.0), K(3.0)]
    return gives(
        lambda: float(functools.reduce(operator.mul, ks)),
        lambda: setattr(K, "__mul__", lambda self, other: 5.0),
    )


@case
def accumulated():
    ks = [2, 3]
    return gives(lambda: list(itertools.accumulate(ks))[-1], lambda: ks.append(5))


@case
def grouped():
    items = [NS(k=1), NS(k=1)]
    return gives(
        lambda: len(list(itertools.groupby(items, operator.attrgetter("k")))),
        lambda: setattr(items[0], "k", 5),
    )


@case
def generic_alias_arguments():
    class C:
        k = 2

    alias = list[C]
    return gives(lambda: alias.__args__[0].k, lambda: setattr(C, "k", 5))


@case
def new_type():
    N = typing.NewType("N", int)
    return gives(lambda: len(N.__name__), lambda: setattr(N, "__name__", "abcde"))


@case
def type_variable_bound():
    class C:
        k = 2

    T = typing.TypeVar("T", bound=C)
    return gives(lambda: T.__bound__.k, lambda: setattr(C, "k", 5))


@case
def runtime_protocol():
    @typing.runtime_checkable
    class P(typing.Protocol):
        def go(self): ...

    class C:
        pass

    c = C()
    return gives(lambda: 1 + isinstance(c, P), lambda: setattr(c, "go", lambda: 0))


@case
def runtime_protocol_of_the_class():
    @typing.runtime_checkable
    class P(typing.Protocol):
        def go(self): ...

    class C:
        pass

    c = C()
    return gives(lambda: 1 + isinstance(c, P), lambda: setattr(C, "go", lambda self: 0))


@case
def runtime_protocol_mapped():
    @typing.runtime_checkable
    class P(typing.Protocol):
        def go(self): ...

    class C:
        pass

    cs = [C()]
    return gives(lambda: 1 + sum(map(isinstance, cs, [P])), lambda: setattr(cs[0], "go", lambda: 0))


@case
def abstract_container_callable():
    class C:
        pass

    c = C()
    return gives(lambda: 1 + callable(c), lambda: setattr(C, "__call__", lambda self: 2))


@case
def a_dynamic_attribute():
    class C:
        @types.DynamicClassAttribute
        def a(self):
            return self.k

    c = C()
    c.k = 2
    return gives(lambda: c.a, lambda: setattr(c, "k", 5))


@case
def pretty_text():
    import pprint

    items = {"a": [1, 2]}
    return gives(lambda: len(pprint.pformat(items)), lambda: items["a"].append(55555))


@case
def text_wrapper():
    import textwrap

    w = textwrap.TextWrapper(width=20)
    return gives(lambda: len(w.wrap("ab cd ef gh ij kl mn op")), lambda: setattr(w, "width", 5))


@case
def uuid_by_name():
    import uuid

    n = uuid.UUID(int=5)
    return gives(lambda: n.int, lambda: object.__setattr__(n, "int", 7))


@case
def pure_path():
    import pathlib

    p = pathlib.PurePosixPath("/a/bc")
    n = NS(p=p)
    return gives(lambda: len(n.p.name), lambda: setattr(n, "p", pathlib.PurePosixPath("/a/bcdef")))


@case
def ip_address():
    import ipaddress

    a = ipaddress.IPv4Address(5)
    return gives(lambda: int(a), lambda: setattr(a, "_ip", 7))


@case
def html_entities():
    import html.entities

    return gives(
        lambda: html.entities.name2codepoint.get("closed", 2),
        lambda: html.entities.name2codepoint.update(closed=5),
        lambda: html.entities.name2codepoint.pop("closed", None),
    )


@case
def priority_queue():
    import queue

    q = queue.PriorityQueue()
    q.put(5)
    return gives(lambda: 1 + q.qsize(), lambda: q.put(2))


@case
def difference_of_texts():
    import difflib

    m = difflib.SequenceMatcher(None, "abcd", "bcde")
    return gives(lambda: m.ratio(), lambda: m.set_seq2("zzzz"))


@case
def topological():
    import graphlib

    g = {"a": {"b"}}
    return gives(
        lambda: len(list(graphlib.TopologicalSorter(g).static_order())),
        lambda: g.update(c={"a"}),
    )


@eager
def syntax_tree():
    import ast

    tree = ast.parse("1 + 2", mode="eval")
    return gives(
        lambda: sum(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)),
        lambda: setattr(tree.body.left, "value", 5),
    )


@eager
def syntax_tree_as_text():
    import ast

    tree = ast.parse("1 + 2", mode="eval")
    return gives(lambda: len(ast.dump(tree)), lambda: setattr(tree.body.left, "value", 55555))


@eager
def syntax_tree_as_source():
    import ast

    tree = ast.parse("1 + 2", mode="eval")
    return gives(lambda: len(ast.unparse(tree)), lambda: setattr(tree.body.left, "value", 55555))


@eager
def syntax_tree_compiled():
    import ast

    tree = ast.parse("1 + 2", mode="eval")
    return gives(
        lambda: eval(compile(tree, "", "eval")), lambda: setattr(tree.body.left, "value", 5)
    )


@eager
def syntax_tree_by_a_visitor():
    import ast

    class V(ast.NodeVisitor):
        def __init__(self):
            self.n = 0

        def visit_Constant(self, node):
            self.n += node.value

    tree = ast.parse("1 + 2", mode="eval")

    def get():
        v = V()
        v.visit(tree)
        return v.n

    return gives(get, lambda: setattr(tree.body.left, "value", 5))


@case
def bytecode_of_a_function():
    import dis

    f = lambda: 1
    return gives(
        lambda: len(list(dis.get_instructions(f))),
        lambda: setattr(f, "__code__", (lambda: len("ab") + 2).__code__),
    )


@case
def traceback_of_an_error():
    import traceback

    error = ValueError("ab")
    return gives(
        lambda: len(traceback.format_exception_only(type(error), error)[0]),
        lambda: setattr(error, "args", ("abcde",)),
    )


@case
def a_replaced_argument_of_an_error():
    error = ValueError("ab")
    return gives(lambda: len(str(error)), lambda: setattr(error, "args", ("abcde",)))


@case
def notes_of_an_error():
    import traceback

    error = ValueError("ab")
    error.__notes__ = ["x"]
    return gives(
        lambda: len("".join(traceback.format_exception_only(error))),
        lambda: error.__notes__.append("abcde"),
    )


@case
def a_thread_local_of_a_library():
    import threading

    event = threading.Event()
    return gives(lambda: 1 + event.is_set(), event.set)


@case
def a_semaphore():
    import threading

    s = threading.Semaphore(3)
    return gives(lambda: s._value, s.acquire)


@case
def a_regular_expression_with_a_function():
    import re

    n = NS(k="ab")
    return gives(lambda: len(re.sub("x", lambda m: n.k, "xx")), lambda: setattr(n, "k", "abcde"))


@case
def a_pattern_that_is_replaced():
    import re

    n = NS(p=re.compile("x"))
    return gives(lambda: 1 + len(n.p.findall("xxy")), lambda: setattr(n, "p", re.compile("[xy]")))


@case
def a_namespace_of_types():
    n = types.SimpleNamespace(a=1)
    return gives(lambda: len(repr(n)), lambda: setattr(n, "bcde", 1))


@case
def a_finished_future():
    import concurrent.futures

    f = concurrent.futures.Future()
    f.set_result(2)
    return gives(lambda: f.result(), lambda: setattr(f, "_result", 5))


@case
def a_mocked_function():
    import unittest.mock

    m = unittest.mock.Mock(return_value=2)
    return gives(lambda: m.return_value, lambda: setattr(m, "return_value", 5))
