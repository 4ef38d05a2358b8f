"""Functions that read what objects keep in C, and what changes that between two calls.

Each makes a function and a change; where the change is of the whole process, the function has an
attribute ``undo``. Those in ``EAGER`` read what nobody can see: they must stay eager.
"""

# ruff: noqa: B024, E731
from __future__ import annotations

import abc
import array
import collections
import collections.abc
import contextvars
import ctypes
import datetime
import decimal
import functools
import gc
import hashlib
import io
import itertools
import json
import locale
import logging
import mmap
import numbers
import operator
import os
import pickle
import queue
import random
import re
import signal
import struct
import sys
import threading
import time
import types
import typing
import warnings
import weakref
import zlib

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


# ---- buffers


@case
def array_by_index():
    a = array.array("d", [2.0, 3.0])
    return (lambda x: x * (1 + a.index(3.0))), lambda: a.insert(0, 9.0)


@case
def array_type_code_in_holder():
    held = {"a": array.array("d", [2.0])}
    return (lambda x: x * held["a"].tolist()[0]), lambda: held["a"].__setitem__(0, 5.0)


@case
def array_buffer_info():
    a = array.array("d", [2.0])
    return (lambda x: x * a.buffer_info()[1]), lambda: a.extend([1.0] * 50)


@case
def memoryview_read_only():
    data = bytearray(b"ab")
    view = memoryview(data).toreadonly()
    return (lambda x: x * view[0]), lambda: data.__setitem__(0, 5)


@case
def memoryview_with_steps():
    data = bytearray(b"abcdef")
    view = memoryview(data)[::2]
    return (lambda x: x * view.tolist()[1]), lambda: data.__setitem__(2, 5)


@case
def memoryview_base():
    data = bytearray(b"ab")
    view = memoryview(data)
    return (lambda x: x * view.obj[1]), lambda: data.__setitem__(1, 5)


@eager
def bytearray_too_large():
    data = bytearray(2 << 20)
    return (lambda x: x * (1 + data[5])), lambda: data.__setitem__(5, 4)


@case
def bytearray_by_find():
    data = bytearray(b"abc")
    return (lambda x: x * (1 + data.find(b"c"))), lambda: data.insert(0, 7)


@case
def bytearray_through_int():
    data = bytearray(b"2")
    return (lambda x: x * float(data)), lambda: data.__setitem__(0, ord("5"))


@case
def map_of_memory():
    held = mmap.mmap(-1, 16)
    held[0] = 2
    return (lambda x: x * held[0]), lambda: held.__setitem__(0, 5)


@case
def map_of_memory_by_find():
    held = mmap.mmap(-1, 16)
    held[3] = 7
    return (lambda x: x * held.find(b"\x07")), lambda: held.__setitem__(1, 7)


@case
def struct_unpack_from():
    data = bytearray(struct.pack("d", 2.0))
    return (lambda x: x * struct.unpack_from("d", data)[0]), lambda: struct.pack_into(
        "d", data, 0, 5.0
    )


@case
def struct_compiled():
    data, form = bytearray(struct.pack("d", 2.0)), struct.Struct("d")
    return (lambda x: x * form.unpack(data)[0]), lambda: form.pack_into(data, 0, 5.0)


@case
def int_from_buffer():
    data = bytearray(b"\x02\x00")
    return (lambda x: x * int.from_bytes(data, "little")), lambda: data.__setitem__(0, 5)


@case
def stringio_position():
    text = io.StringIO("abc")
    return (lambda x: x * (1 + text.tell())), lambda: text.seek(2)


@case
def bytesio_view_of_buffer():
    held = io.BytesIO(b"2")

    def change():
        held.seek(0)
        held.write(b"5")

    return (lambda x: x * held.getbuffer()[0]), change


@eager
def bytesio_of_a_class():
    class Held(io.BytesIO):
        def value(self):
            return float(self.getvalue())

    held = Held(b"2")

    def change():
        held.seek(0)
        held.write(b"5")

    return (lambda x: x * held.value()), change


@case
def bytesio_closed():
    held = io.BytesIO(b"2")
    return (lambda x: x * 2 if held.closed else x * 3), held.close


@case
def bytesio_method_held():
    held = io.BytesIO(b"2")
    read = held.getvalue

    def change():
        held.seek(0)
        held.write(b"5")

    return (lambda x: x * float(read())), change


@case
def bytesio_method_by_map():
    held = io.StringIO("2")

    def change():
        held.seek(0)
        held.write("5")

    call = lambda f: f()
    return (lambda x: x * float(next(map(call, [held.getvalue])))), change


@case
def file_position():
    file = open(os.devnull, "rb+")  # noqa: SIM115
    f = lambda x: x * (2 if file.closed else 3)
    return f, file.close


# ---- iterators and pieces of the standard library


@case
def iterator_asked_for_its_length():
    held = iter([1, 2, 3])
    return (lambda x: x * (1 + operator.length_hint(held))), lambda: next(held)


@case
def counter_shown():
    count = itertools.count(2)
    return (lambda x: x * len(repr(count))), lambda: [next(count) for _ in range(2000)]


@case
def match_of_bytes():
    data = bytearray(b"2a")
    match = re.match(rb"\d", data)
    return (lambda x: x * float(match.group())), lambda: data.__setitem__(0, ord("5"))


@case
def counter_in_c():
    held = collections.Counter("aab")
    return (lambda x: x * held.most_common(1)[0][1]), lambda: held.update("aaa")


@case
def default_factory():
    held = collections.defaultdict(lambda: 2.0)

    def f(x):
        value = held["k"]
        del held["k"]
        return x * value

    return f, lambda: setattr(held, "default_factory", lambda: 5.0)


@case
def default_factory_is_none():
    held = collections.defaultdict(int)
    return (lambda x: x * 2 if held.default_factory else x * 3), lambda: setattr(
        held, "default_factory", None
    )


@case
def partial_keywords():
    p = functools.partial(lambda x, w: x * w, w=2.0)
    return (lambda x: p(x)), lambda: p.keywords.__setitem__("w", 5.0)


@case
def partial_bound_anew_by_map():
    p = functools.partial(operator.mul, 2.0)
    return (lambda x: x * next(map(p, [1.0]))), lambda: p.__setstate__(
        (operator.mul, (5.0,), {}, {})
    )


@case
def partial_function_read():
    p = functools.partial(operator.mul, 2.0)
    return (lambda x: x * p.args[0]), lambda: p.__setstate__((operator.mul, (5.0,), {}, {}))


@case
def partial_of_a_class():
    class P(functools.partial):
        pass

    p = P(operator.mul, 2.0)
    return (lambda x: p(x)), lambda: p.__setstate__((operator.mul, (5.0,), {}, {}))


@case
def weak_values():
    class C:
        pass

    kept = [C(), C()]
    held = weakref.WeakValueDictionary(enumerate(kept))
    return (lambda x: x * (1 + len(held))), kept.clear


@eager
def weak_references_counted():
    class C:
        pass

    item, kept = C(), []
    return (lambda x: x * (1 + weakref.getweakrefcount(item))), lambda: kept.append(
        weakref.ref(item)
    )


@case
def namespace_shown():
    held = NS(v=2)
    return (lambda x: x * len(repr(held))), lambda: setattr(held, "v", 5000)


@case
def namespace_compared():
    held, other = NS(v=2), NS(v=2)
    return (lambda x: x * 2 if held == other else x * 3), lambda: setattr(other, "v", 5)


@case
def namespace_formatted():
    held = NS(v=2)
    return (lambda x: x * len(f"{held}")), lambda: setattr(held, "v", 5000)


@case
def property_of_getter():
    class C:
        v = property(operator.attrgetter("w"))

    c = C()
    c.w = 2.0
    return (lambda x: x * c.v), lambda: setattr(c, "w", 5.0)


@case
def property_of_partial():
    class C:
        v = property(functools.partial(getattr, NS(w=2.0)))

    held = NS(w=2.0)
    C.v = property(lambda self: held.w)
    return (lambda x: x * C().v), lambda: setattr(held, "w", 5.0)


@case
def time_zone_of_a_class():
    class Zone(datetime.tzinfo):
        hours = 2

        def utcoffset(self, when):
            return datetime.timedelta(hours=self.hours)

    when = datetime.datetime(2020, 1, 1, tzinfo=Zone())
    return (lambda x: x * (1 + when.utcoffset().seconds / 3600)), lambda: setattr(Zone, "hours", 5)


@case
def hash_object():
    held = hashlib.sha256(b"a")
    return (lambda x: x * held.digest()[0]), lambda: held.update(b"b")


@case
def hash_object_name():
    held = [hashlib.sha256(b"a")]
    return (lambda x: x * len(held[0].hexdigest()[:2].strip("0"))), lambda: held.__setitem__(
        0, hashlib.md5(b"a")
    )


@eager
def compressor():
    held = zlib.compressobj()
    return (lambda x: x * len(held.copy().flush())), lambda: held.compress(os.urandom(5000))


@case
def decompressor():
    held = zlib.decompressobj()
    data = zlib.compress(b"abc") + b"rest"
    return (lambda x: x * (1 + len(held.unused_data))), lambda: held.decompress(data)


@case
def queue_empty():
    held = queue.SimpleQueue()
    return (lambda x: x * 2 if held.empty() else x * 3), lambda: held.put(1)


@case
def queue_full():
    held = queue.Queue(maxsize=1)
    return (lambda x: x * 2 if held.full() else x * 3), lambda: held.put(1)


@case
def lock_locked():
    lock = threading.Lock()
    return (lambda x: x * 2 if lock.locked() else x * 3), lock.acquire


@case
def lock_tried():
    lock = threading.Lock()

    def f(x):
        if not lock.acquire(blocking=False):
            return x * 2
        lock.release()
        return x * 3

    return f, lock.acquire


@eager
def lock_shown():
    lock = threading.RLock()
    return (lambda x: x * 2 if lock._is_owned() else x * 3), lock.acquire


@case
def random_state():
    held = random.Random(1)
    return (lambda x: x * (held.getstate()[1][0] % 97)), lambda: held.seed(2)


@case
def random_state_of_numpy():
    held = np.random.default_rng(1)
    return (lambda x: x * (held.bit_generator.state["state"]["state"] % 97)), held.random


@eager
def random_state_of_numpy_legacy():
    held = np.random.RandomState(1)
    return (lambda x: x * int(held.get_state()[1][5] % 97)), lambda: held.seed(2)


# ---- NumPy


@case
def numpy_strides():
    a = np.zeros((2, 3))
    return (lambda x: x * a.strides[0]), lambda: setattr(a, "shape", (3, 2))


@case
def numpy_writeable():
    a = np.zeros(2)
    return (lambda x: x * 2 if a.flags.writeable else x * 3), lambda: a.setflags(write=False)


@case
def numpy_dtype_set():
    a = np.zeros(2)
    return (lambda x: x * a.dtype.itemsize), lambda: setattr(a, "dtype", np.float32)


@case
def numpy_read_only_view():
    a = np.array([2.0, 3.0])
    view = a[:]
    view.setflags(write=False)
    return (lambda x: x * float(view[0])), lambda: a.__setitem__(0, 5.0)


@eager
def numpy_of_objects():
    a = np.array([NS(v=2.0), None], dtype=object)
    return (lambda x: x * a[0].v), lambda: setattr(a[0], "v", 5.0)


@eager
def numpy_large():
    a = np.zeros(1 << 18)
    return (lambda x: x * (1 + float(a[77]))), lambda: a.__setitem__(77, 5.0)


@case
def numpy_large_length():
    a = np.zeros((1 << 18, 1))
    return (lambda x: x * a.shape[1]), lambda: setattr(a, "shape", (1 << 9, 1 << 9))


@case
def numpy_masked():
    a = np.ma.masked_array([2.0, 3.0], mask=[False, False])
    return (lambda x: x * float(a.sum())), lambda: a.__setitem__(1, np.ma.masked)


@case
def numpy_matrix():
    class A(np.ndarray):
        pass

    a = np.array([2.0, 3.0]).view(A)
    return (lambda x: x * float(a.max())), lambda: a.__setitem__(0, 5.0)


@case
def numpy_record_scalar():
    a = np.zeros(1, dtype=[("v", "f8")])[0]
    a["v"] = 2.0
    return (lambda x: x * float(a["v"])), lambda: a.__setitem__("v", 5.0)


@case
def numpy_record_array():
    a = np.rec.array([(2.0,)], dtype=[("v", "f8")])
    return (lambda x: x * float(a.v[0])), lambda: a.__setitem__(0, (5.0,))


@case
def numpy_time():
    a = np.array(["2020-01-02"], dtype="M8[D]")
    return (lambda x: x * int(a.astype(int)[0] % 97)), lambda: a.__setitem__(
        0, np.datetime64("2020-01-05")
    )


@case
def numpy_errors():
    old = np.geterr()
    f = lambda x: x * len(np.geterr()["over"])
    f.undo = lambda: np.seterr(**old)
    return f, lambda: np.seterr(over="ignore")


@case
def numpy_errors_raised():
    old = np.geterr()

    def f(x):
        try:
            return x * 2 if np.isinf(np.float64(1.0) / np.float64(0.0)) else x
        except FloatingPointError:
            return x * 3

    f.undo = lambda: np.seterr(**old)
    np.seterr(divide="ignore")
    return f, lambda: np.seterr(divide="raise")


@case
def numpy_options_of_printing():
    old = np.get_printoptions()
    f = lambda x: x * np.get_printoptions()["precision"]
    f.undo = lambda: np.set_printoptions(**old)
    return f, lambda: np.set_printoptions(precision=3)


@case
def numpy_flat():
    a = np.array([2.0, 3.0])
    return (lambda x: x * float(a.flat[1])), lambda: a.__setitem__(1, 5.0)


@case
def numpy_interface():
    a = np.zeros((2, 3))
    return (lambda x: x * a.__array_interface__["shape"][0]), lambda: setattr(a, "shape", (3, 2))


# ---- ctypes


@case
def ctypes_array():
    a = (ctypes.c_double * 2)(2.0, 3.0)
    return (lambda x: x * a[1]), lambda: a.__setitem__(1, 5.0)


@case
def ctypes_nested_structure():
    class Inner(ctypes.Structure):
        _fields_ = [("v", ctypes.c_int)]

    class Outer(ctypes.Structure):
        _fields_ = [("inner", Inner)]

    s = Outer(Inner(2))
    return (lambda x: x * s.inner.v), lambda: setattr(s.inner, "v", 5)


@case
def ctypes_union():
    class U(ctypes.Union):
        _fields_ = [("a", ctypes.c_int32), ("b", ctypes.c_int16)]

    u = U(2)
    return (lambda x: x * u.b), lambda: setattr(u, "a", 5)


@case
def ctypes_bits():
    class B(ctypes.Structure):
        _fields_ = [("a", ctypes.c_int, 4), ("b", ctypes.c_int, 4)]

    b = B(2, 3)
    return (lambda x: x * getattr(b, "b")), lambda: setattr(b, "b", 5)  # noqa: B009


@eager
def ctypes_pointer_by_index():
    v = (ctypes.c_double * 2)(2.0, 3.0)
    p = ctypes.cast(v, ctypes.POINTER(ctypes.c_double))
    return (lambda x: x * p[1]), lambda: v.__setitem__(1, 5.0)


@case
def ctypes_text():
    held = ctypes.c_char_p(b"ab")
    return (lambda x: x * len(held.value)), lambda: setattr(held, "value", b"abcde")


@case
def ctypes_text_buffer():
    held = ctypes.create_string_buffer(b"ab", 16)
    return (lambda x: x * len(held.value)), lambda: setattr(held, "value", b"abcde")


def _array_made_by(package, of, length):
    """The class of an array names the module whose code has made it first in this process."""
    (cls,) = types.FunctionType(_times.__code__, {"__name__": package})(of, length)
    assert cls.__module__ == package
    return cls()


def _times(of, length):
    return (of * length,)


@case
def ctypes_text_whose_class_torch_made():
    held = _array_made_by("torch.cuda", ctypes.c_char, 1201)
    held.value = b"ab"
    return (lambda x: x * len(held.value)), lambda: setattr(held, "value", b"abcde")


@case
def ctypes_text_whose_class_gfxgraph_made():
    held = _array_made_by("gfxgraph.graph.places", ctypes.c_char, 1202)
    held.value = b"ab"
    return (lambda x: x * len(held.value)), lambda: setattr(held, "value", b"abcde")


@case
def ctypes_array_whose_class_gfxgraph_made():
    held = _array_made_by("gfxgraph.graph.places", ctypes.c_float, 1203)
    held[3] = 2.0
    return (lambda x: x * held[3]), lambda: held.__setitem__(3, 5.0)


@case
def ctypes_object():
    held = ctypes.py_object(2.0)
    return (lambda x: x * held.value), lambda: setattr(held, "value", 5.0)


# ---- decimals


@case
def decimal_context_attribute():
    context = decimal.Context(prec=2)
    return (lambda x: x * context.prec), lambda: setattr(context, "prec", 5)


@case
def decimal_context_used():
    context = decimal.Context(prec=2)
    one, three = decimal.Decimal(1), decimal.Decimal(3)
    return (lambda x: x * float(context.divide(one, three))), lambda: setattr(context, "prec", 5)


@case
def decimal_of_the_caller():
    one, three = decimal.Decimal(1), decimal.Decimal(3)
    context = decimal.getcontext()
    old = context.prec
    f = lambda x: x * float(one / three)
    f.undo = lambda: setattr(context, "prec", old)
    return f, lambda: setattr(context, "prec", 3)


@case
def decimal_rounding():
    context = decimal.getcontext()
    old = context.rounding
    f = lambda x: x * float(decimal.Decimal("2.5").quantize(decimal.Decimal(1)))
    f.undo = lambda: setattr(context, "rounding", old)
    return f, lambda: setattr(context, "rounding", decimal.ROUND_UP)


@case
def decimal_context_replaced():
    old = decimal.getcontext()
    f = lambda x: x * decimal.getcontext().prec
    f.undo = lambda: decimal.setcontext(old)
    return f, lambda: decimal.setcontext(decimal.Context(prec=3))


# ---- exceptions


@case
def exception_shown():
    error = ValueError("ab")
    return (lambda x: x * len(str(error))), lambda: setattr(error, "args", ("abcde",))


@case
def exception_formatted():
    error = ValueError("ab")
    return (lambda x: x * len(f"{error!r}")), lambda: setattr(error, "args", ("abcde",))


@case
def exception_args_hold():
    error = ValueError([2.0])
    return (lambda x: x * error.args[0][0]), lambda: error.args[0].__setitem__(0, 5.0)


@case
def exception_notes():
    error = ValueError()
    error.__notes__ = ["a"]
    return (lambda x: x * len(error.__notes__)), lambda: error.__notes__.append("b")


@case
def exception_context():
    error = ValueError()
    return (lambda x: x * 2 if error.__context__ is None else x * 3), lambda: setattr(
        error, "__context__", KeyError()
    )


@case
def exception_suppresses():
    error = ValueError()
    return (lambda x: x * 2 if error.__suppress_context__ else x * 3), lambda: setattr(
        error, "__suppress_context__", True
    )


@case
def exception_number():
    error = OSError(2, "ab")
    return (lambda x: x * error.errno), lambda: setattr(error, "errno", 5)


@case
def exception_raised_again():
    error = ValueError(2.0)

    def f(x):
        try:
            raise error
        except ValueError as caught:
            return x * caught.args[0]

    return f, lambda: setattr(error, "args", (5.0,))


@case
def exception_classes_in_a_tuple():
    class A(Exception):
        pass

    class D(Exception):
        pass

    kinds = NS(caught=(A, D))

    def f(x):
        try:
            raise A
        except kinds.caught:
            return x * 2
        except Exception:
            return x * 3

    return f, lambda: setattr(kinds, "caught", (D,))


# ---- classes and functions


@case
def subclasses_of_subclasses():
    class A:
        pass

    class B(A):
        pass

    keep = []

    def deep(cls):
        return 1 + sum(map(deep, cls.__subclasses__()))

    return (lambda x: x * deep(A)), lambda: keep.append(type("C", (B,), {}))


@case
def subclasses_by_type():
    class A:
        pass

    keep = []
    return (lambda x: x * (1 + len(type.__subclasses__(A)))), lambda: keep.append(
        type("B", (A,), {})
    )


@case
def subclasses_by_another_name():
    class A:
        pass

    keep, ask = [], A.__subclasses__
    return (lambda x: x * (1 + len(ask()))), lambda: keep.append(type("B", (A,), {}))


@eager
def context_run_by_its_class():
    v = contextvars.ContextVar("in_c_5")
    context = contextvars.copy_context()
    context.run(v.set, 2.0)
    run = contextvars.Context.run
    return (lambda x: x * run(context, v.get)), lambda: context.run(v.set, 5.0)


@case
def lock_locked_by_its_class():
    lock = threading.Lock()
    locked = type(lock).locked
    return (lambda x: x * 2 if locked(lock) else x * 3), lock.acquire


@case
def lock_method_held():
    lock = threading.Lock()
    ask = NS(locked=lock.locked)
    return (lambda x: x * 2 if ask.locked() else x * 3), lock.acquire


@case
def bytesio_by_its_class():
    held = io.BytesIO(b"2")

    def change():
        held.seek(0)
        held.write(b"5")

    return (lambda x: x * float(io.BytesIO.getvalue(held))), change


@eager
def compressor_in_a_dict():
    held = {"c": zlib.compressobj()}
    return (lambda x: x * len(held["c"].copy().flush())), lambda: held["c"].compress(
        os.urandom(5000)
    )


@eager
def compressor_by_getattr():
    held = NS(c=zlib.compressobj())
    ask = lambda name: getattr(getattr(held, "c"), name)().flush()  # noqa: B009
    return (lambda x: x * len(ask("copy"))), lambda: held.c.compress(os.urandom(5000))


@eager
def compressor_by_methodcaller():
    held = zlib.compressobj()
    ask = operator.methodcaller("copy")
    return (lambda x: x * len(ask(held).flush())), lambda: held.compress(os.urandom(5000))


@case
def scanner_of_a_pattern():
    scanner = re.compile("a").scanner("aaa")
    return (lambda x: x * (1 + len(scanner.pattern.pattern))), scanner.match


@case
def class_base():
    class A:
        v = 2.0

    class B:
        v = 5.0

    class C(A):
        pass

    return (lambda x: x * C.__base__.v), lambda: setattr(C, "__bases__", (B,))


@case
def class_order():
    class A:
        v = 2.0

    class B:
        v = 5.0

    class C(A):
        pass

    return (lambda x: x * C.mro()[1].v), lambda: setattr(C, "__bases__", (B,))


@case
def class_annotations():
    class A:
        a: int

    return (lambda x: x * len(A.__annotations__)), lambda: A.__annotations__.update(b=int)


@case
def class_hints():
    class A:
        a: int

    return (lambda x: x * len(typing.get_type_hints(A))), lambda: A.__annotations__.update(b=int)


@case
def class_without_annotations():
    class A:
        pass

    return (lambda x: x * (1 + len(A.__annotations__))), lambda: setattr(
        A, "__annotations__", {"b": int}
    )


@case
def class_is_abstract():
    class A:
        pass

    get = lambda cls: getattr(cls, "__abstractmethods__", ())
    return (lambda x: x * (1 + len(get(A)))), lambda: setattr(
        A, "__abstractmethods__", frozenset("a")
    )


@case
def class_doc():
    class A:
        """ab"""

    return (lambda x: x * len(A.__doc__)), lambda: setattr(A, "__doc__", "abcde")


@case
def function_name():
    def helper():
        pass

    return (lambda x: x * len(helper.__name__)), lambda: setattr(helper, "__name__", "ab")


@case
def function_module():
    def helper():
        pass

    return (lambda x: x * len(helper.__module__)), lambda: setattr(helper, "__module__", "ab")


@case
def function_dict():
    def helper():
        pass

    helper.v = 2.0
    return (lambda x: x * helper.__dict__["v"]), lambda: setattr(helper, "v", 5.0)


@case
def function_dict_asked():
    def helper():
        pass

    return (lambda x: x * 2 if "v" in helper.__dict__ else x * 3), lambda: setattr(helper, "v", 5)


@case
def function_annotations():
    def helper(a: int):
        pass

    return (lambda x: x * len(helper.__annotations__)), lambda: helper.__annotations__.clear()


@case
def cell_bound_in_an_inner_function():
    late = 1.0

    def f(x):
        def inner():
            return late

        try:
            return x * inner()
        except NameError:
            return x * 2

    def change():
        nonlocal late
        late = 5.0

    def unbind():
        nonlocal late
        del late

    unbind()
    return f, change


@case
def special_method_in_a_cell():
    def deco(f):
        def inner(*args):
            return f(*args)

        return inner

    class C:
        @deco
        def __add__(self, other):
            return other * 2.0

    c = C()
    return (lambda x: c + x), lambda: setattr(C, "__add__", lambda self, other: other * 5.0)


@case
def special_method_of_another_name_in_a_cell():
    def double(self, other):
        return other * 2.0

    def deco(f):
        return lambda *args: f(*args)

    class C:
        __add__ = deco(double)

    c = C()
    return (lambda x: c + x), lambda: setattr(C, "__add__", lambda self, other: other * 5.0)


@case
def cell_unbound_later():
    late = 2.0

    def f(x):
        try:
            return x * late
        except NameError:
            return x * 3

    def change():
        nonlocal late
        del late

    return f, change


@case
def cell_of_one_of_two():
    def make():
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

    (one, change), (other, _) = make(), make()
    return (lambda x: one(x) + other(x)), change


@case
def cell_contents_by_name():
    late = 1.0

    def inner():
        return late

    def change():
        nonlocal late
        late = 5.0

    cell = inner.__closure__[0]
    return (lambda x: x * cell.cell_contents), change


# ---- the interpreter and the process


@case
def context_by_get():
    v = contextvars.ContextVar("in_c_1")
    context = contextvars.copy_context()
    context.run(v.set, 2.0)
    return (lambda x: x * context.get(v, 1.0)), lambda: context.run(v.set, 5.0)


@case
def context_length():
    v = contextvars.ContextVar("in_c_2")
    context = contextvars.copy_context()
    return (lambda x: x * (1 + len(context))), lambda: context.run(v.set, 5.0)


@eager
def context_that_runs_a_function():
    v = contextvars.ContextVar("in_c_3", default=1.0)
    context = contextvars.copy_context()
    context.run(v.set, 2.0)

    def inner(x):
        return x * v.get()

    return (lambda x: context.run(inner, x)), lambda: context.run(v.set, 5.0)


@case
def context_copied_and_asked():
    v = contextvars.ContextVar("in_c_4", default=0)
    v.set(2.0)
    return (lambda x: x * contextvars.copy_context()[v]), lambda: v.set(5.0)


@case
def thread_name_asked():
    thread = threading.current_thread()
    old = thread.name
    f = lambda x: x * len(thread.name)
    f.undo = lambda: setattr(thread, "name", old)
    return f, lambda: setattr(thread, "name", "another name")


@eager
def thread_name_by_method():
    thread = threading.current_thread()
    old = thread.name
    f = lambda x: x * len(threading.current_thread().getName())
    f.undo = lambda: setattr(thread, "name", old)
    return f, lambda: setattr(thread, "name", "another name")


@eager
def threads_counted():
    go = threading.Event()
    f = lambda x: x * threading.active_count()
    f.undo = go.set
    return f, lambda: threading.Thread(target=go.wait, daemon=True).start()


@eager
def thread_is_alive():
    go = threading.Event()
    thread = threading.Thread(target=go.wait, daemon=True)
    f = lambda x: x * 2 if thread.is_alive() else x * 3
    f.undo = go.set
    return f, thread.start


@case
def event_set():
    event = threading.Event()
    return (lambda x: x * 2 if event.is_set() else x * 3), event.set


@case
def collector_threshold():
    old = gc.get_threshold()
    f = lambda x: x * gc.get_threshold()[1]
    f.undo = lambda: gc.set_threshold(*old)
    return f, lambda: gc.set_threshold(old[0], 5, old[2])


@eager
def collector_is_on():
    f = lambda x: x * 2 if gc.isenabled() else x * 3
    f.undo = gc.enable
    return f, gc.disable


@case
def limit_of_recursion():
    old = sys.getrecursionlimit()
    f = lambda x: x * (sys.getrecursionlimit() % 97)
    f.undo = lambda: sys.setrecursionlimit(old)
    return f, lambda: sys.setrecursionlimit(old + 5)


@case
def limit_of_digits():
    if not hasattr(sys, "get_int_max_str_digits"):
        return limit_of_recursion()
    old = sys.get_int_max_str_digits()
    f = lambda x: x * (sys.get_int_max_str_digits() % 97)
    f.undo = lambda: sys.set_int_max_str_digits(old)
    return f, lambda: sys.set_int_max_str_digits(old + 5)


@case
def signal_handler():
    old = signal.getsignal(signal.SIGUSR1)
    f = lambda x: x * 2 if signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN else x * 3
    f.undo = lambda: signal.signal(signal.SIGUSR1, old)
    return f, lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@case
def filters_of_warnings():
    old = warnings.filters[:]
    f = lambda x: x * (1 + len(warnings.filters))
    f.undo = lambda: warnings.filters.__setitem__(slice(None), old)
    return f, lambda: warnings.filters.insert(0, ("ignore", None, UserWarning, None, 12345))


@eager
def locale_conventions():
    old = locale.setlocale(locale.LC_NUMERIC)
    f = lambda x: x * len(locale.setlocale(locale.LC_NUMERIC))
    f.undo = lambda: locale.setlocale(locale.LC_NUMERIC, old)
    return f, lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8" if old == "C" else "C")


@case
def environment_copied():
    f = lambda x: x * len(dict(os.environ).get("GFX_IN_C", ""))
    f.undo = lambda: os.environ.pop("GFX_IN_C", None)
    os.environ["GFX_IN_C"] = "ab"
    return f, lambda: os.environ.__setitem__("GFX_IN_C", "abcde")


@case
def environment_in_bytes():
    f = lambda x: x * len(os.environb.get(b"GFX_IN_C2", b"a"))
    f.undo = lambda: os.environ.pop("GFX_IN_C2", None)
    return f, lambda: os.environ.__setitem__("GFX_IN_C2", "abcde")


@case
def modules_counted():
    f = lambda x: x * 2 if "gfx_in_c" in sys.modules else x * 3
    f.undo = lambda: sys.modules.pop("gfx_in_c", None)
    return f, lambda: sys.modules.__setitem__("gfx_in_c", types.ModuleType("gfx_in_c"))


@case
def logger_takes():
    logger = logging.getLogger("gfx_in_c")
    logger.setLevel(30)
    return (lambda x: x * 2 if logger.isEnabledFor(20) else x * 3), lambda: logger.setLevel(10)


@case
def logger_takes_by_the_level_above():
    above, logger = logging.getLogger("gfx_in_c2"), logging.getLogger("gfx_in_c2.a")
    above.setLevel(30)
    return (lambda x: x * logger.getEffectiveLevel()), lambda: above.setLevel(10)


@eager
def time_zone_of_the_process():
    old = os.environ.get("TZ")
    when = (2020, 1, 1, 12, 0, 0, 0, 0, 0)

    def undo():
        os.environ.pop("TZ", None) if old is None else os.environ.__setitem__("TZ", old)
        time.tzset()

    def change():
        os.environ["TZ"] = "EST+05EDT"
        time.tzset()

    f = lambda x: x * (1 + time.mktime(when) // 3600 % 24)
    f.undo = undo
    return f, change


@eager
def local_time_of_the_process():
    old = os.environ.get("TZ")

    def undo():
        os.environ.pop("TZ", None) if old is None else os.environ.__setitem__("TZ", old)
        time.tzset()

    def change():
        os.environ["TZ"] = "EST+05EDT"
        time.tzset()

    f = lambda x: x * (1 + datetime.datetime.fromtimestamp(0).hour)
    f.undo = undo
    return f, change


# ---- classes


def registers(is_one):
    """Whether an object is of an abstract class, before and after its class is registered."""

    class Abstract(abc.ABC):
        pass

    class Plain:
        pass

    item = Plain()
    f = lambda x: x * 2 if is_one(Abstract, item) else x * 3
    return f, lambda: Abstract.register(Plain)


@case
def isinstance_of_a_union_of_abstract_classes():
    return registers(lambda cls, item: isinstance(item, cls | int))


@case
def isinstance_of_a_typing_union():
    return registers(lambda cls, item: isinstance(item, typing.Union[cls, int]))  # noqa: UP007


@case
def isinstance_of_tuples_in_tuples():
    return registers(lambda cls, item: isinstance(item, (int, (cls, str))))


@case
def issubclass_of_tuples_in_tuples():
    return registers(lambda cls, item: issubclass(type(item), (int, (cls, str))))


@case
def issubclass_of_a_union():
    return registers(lambda cls, item: issubclass(type(item), cls | int))


def registers_with(abstract, asked=None):
    class Plain:
        pass

    item, asked = Plain(), abstract if asked is None else asked
    f = lambda x: x * 2 if isinstance(item, asked) else x * 3
    return f, lambda: abstract.register(Plain)


@case
def a_number_of_the_standard_library():
    return registers_with(numbers.Number)


@case
def a_sequence_of_the_standard_library():
    return registers_with(collections.abc.Sequence)


@case
def a_mapping_of_typing():
    return registers_with(collections.abc.Mapping, typing.Mapping)


@case
def singledispatch_by_an_abstract_class():
    class Abstract(abc.ABC):
        pass

    class Plain:
        pass

    item, found = Plain(), functools.singledispatch(lambda item: 2.0)
    found.register(Abstract, lambda item: 3.0)
    return (lambda x: x * found(item)), lambda: Abstract.register(Plain)


@case
def abstract_methods_of_a_class_that_is_made():
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def method(self):
            pass

    def f(x):
        try:
            Abstract()
        except TypeError:
            return x
        return x * 2

    return f, lambda: setattr(Abstract, "__abstractmethods__", frozenset())


def by_a_hook(ask):
    class Abstract(abc.ABC):
        name = "go"

        @classmethod
        def __subclasshook__(cls, other):
            return hasattr(other, cls.name)

    item = type("Item", (), {"go": 1})()

    def change():
        Abstract.name = "stop"
        abc._reset_caches(Abstract)

    return (lambda x: x * (2.0 if ask(item, Abstract) else 3.0)), change


@case
def a_hook_of_an_abstract_class_that_answers_anew():
    return by_a_hook(isinstance)


@case
def a_hook_of_an_abstract_class_that_is_asked_for_a_class():
    return by_a_hook(lambda item, cls: issubclass(type(item), (int, cls)))


def equal_at_last(look):
    class Key:
        def __hash__(self):
            return 1

    key = Key()
    change = lambda: setattr(Key, "__eq__", lambda self, other: True)
    return (lambda x: x * look(key)), change


@case
def a_key_that_gets_eq_in_get():
    held = {1: 2.0}
    return equal_at_last(lambda key: held.get(key, 3.0))


@case
def a_key_that_gets_eq_in_a_set():
    return equal_at_last(lambda key: 2.0 if key in {1} else 3.0)


@case
def super_that_was_kept():
    class Base:
        scale = 2.0

    class Derived(Base):
        scale = 9.0

    kept = super(Derived, Derived())
    return (lambda x: x * kept.scale), lambda: setattr(Base, "scale", 3.0)


# ---- torch.utils.data and torch.optim


@case
def a_subset_of_a_dataset():
    items = torch.utils.data.Subset([1.0, 2.0, 3.0], [0, 1])
    return (lambda x: x * items[0]), lambda: items.indices.__setitem__(0, 2)


@case
def the_length_of_a_concatenated_dataset():
    items = torch.utils.data.ConcatDataset([[1.0], [2.0, 3.0]])
    return (lambda x: x * items[len(items) - 1]), lambda: items.datasets[1].__setitem__(1, 5.0)


@case
def the_rate_in_the_state_of_an_optimizer():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=2.0)
    f = lambda x: x * optimizer.state_dict()["param_groups"][0]["lr"]
    return f, lambda: optimizer.param_groups[0].__setitem__("lr", 5.0)


# ---- texts


def in_text(write, item, name="__qualname__", named=None):
    """The length of a text decides, and the name gets longer."""
    named = item if named is None else named
    change = lambda: type.__setattr__(named, name, "A" * 40)
    return (lambda x: x * len(write(item))), change


def a_class():
    return type("A", (), {})


for text, write in {
    "str": str,
    "f_string": lambda cls: f"{cls}",
    "percent": lambda cls: "%s" % cls,  # noqa: UP031
    "percent_of_a_tuple": lambda cls: "%s%r" % (cls, 1),  # noqa: UP031
    "bytes": lambda cls: b"%a" % cls,
    "format": "{}".format,
    "format_of_a_part": lambda cls: format(cls, ""),
    "repr_in_map": lambda cls: "".join(map(repr, [cls])),
    "repr_in_map_of_a_generator": lambda cls: "".join(map(repr, (part for part in [cls]))),
    "repr_of_an_instance": lambda cls: repr(cls()),
    "repr_of_object": lambda cls: object.__repr__(cls()),
    "a_partial": functools.partial(repr),
    "a_generic_alias": lambda cls: str(list[cls]),
    "a_union": lambda cls: str(cls | int),
    "an_optional": lambda cls: str(typing.Optional[cls]),  # noqa: UP045
    "an_error": lambda cls: str(ValueError(cls)),
    "a_namespace": lambda cls: repr(NS(a=cls)),
    "json": lambda cls: json.dumps([[[[[cls]]]]], default=str),
    "a_method": lambda cls: repr(types.MethodType(len, cls())),
}.items():
    CASES[f"the_name_of_a_class_in_{text}"] = functools.partial(
        lambda write: in_text(write, a_class()), write
    )


@case
def the_module_of_a_class_in_a_text():
    return in_text(str, a_class(), "__module__")


@case
def the_name_of_a_class_of_errors_in_a_text():
    error = type("E", (Exception,), {})
    return in_text(lambda cls: repr(error("a")), error, "__name__")


@case
def the_name_of_a_class_of_containers_in_a_text():
    kind = type("D", (collections.deque,), {})
    held = {"a": [[[[kind([1])]]]]}
    return in_text(lambda cls: str(held), kind, "__name__")


@case
def the_name_of_a_class_that_is_pickled():
    def f(x):
        return x * len(pickle.dumps(Pickled()))

    def undo():
        Pickled.__qualname__ = "Pickled"

    def change():
        globals()["A" * 40] = Pickled
        Pickled.__qualname__ = "A" * 40

    f.undo = undo
    return f, change


class Pickled:
    pass


@case
def the_name_of_a_function_in_a_text():
    def named():
        pass

    held = functools.partial(named)
    return (lambda x: x * len(repr(held))), lambda: setattr(named, "__qualname__", "A" * 40)


@case
def the_name_of_a_module_in_a_text():
    module = types.ModuleType("a")
    return (lambda x: x * len(f"{module}")), lambda: setattr(module, "__name__", "A" * 40)


@case
def how_numpy_writes_a_number():
    held, old = [np.float64(0.5)], np.get_printoptions()
    f = lambda x: x * len(repr(held))
    f.undo = lambda: np.set_printoptions(**old)
    return f, lambda: np.set_printoptions(**{**old, "legacy": "1.13" if old["legacy"] else "1.25"})


def how_torch_writes(write, **options):
    f = lambda x: x * len(write())
    f.undo = lambda: torch.set_printoptions(profile="default")
    return f, lambda: torch.set_printoptions(**options)


@case
def how_torch_writes_a_tensor():
    held = [torch.tensor([1 / 3], device="cpu")]
    return how_torch_writes(lambda: f"{held}", precision=8)


@case
def how_torch_writes_a_long_tensor_of_the_call():
    return how_torch_writes(lambda: repr(torch.arange(50, device="cpu")), threshold=5)


# ---- containers in containers


def deep(read):
    inner = {1}
    held = [{"a": [[(inner,)]]}]
    return (lambda x: x * read(held, [{"a": [[({1},)]]}])), lambda: inner.add(2)


for text, read in {
    "str": lambda held, other: len(str(held)),
    "equal": lambda held, other: 2 + (held == other),
    "in": lambda held, other: 2 + (other in [held]),
    "count": lambda held, other: 2 + held.count(other[0]),
    "eq_of_a_list": lambda held, other: 2 + held.__eq__(other),
    "an_operator_in_map": lambda held, other: 2 + sum(map(operator.eq, held, other)),
    "a_comparison_in_max": lambda held, other: 2 + (max((held[0]["a"], 1), (other[0]["a"], 0))[1]),
}.items():
    CASES[f"a_set_deep_in_containers_by_{text}"] = functools.partial(deep, read)


@case
def a_set_in_a_list_that_holds_itself():
    held = [{1}]
    held.append(held)
    return (lambda x: x * len(str(held))), lambda: held[0].add(2)
