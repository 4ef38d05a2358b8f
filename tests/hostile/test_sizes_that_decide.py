"""Functions with buckets that do something else for one size, and tell nobody so.

Their graphs are made for other sizes, and most sizes are not recorded (see *Most sizes need no
recorded run* in docs/internals/buckets.md).
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import datetime
import decimal
import functools
import itertools
import json
import operator
import struct
import subprocess
import sys
import types
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gfxgraph

pytestmark = pytest.mark.filterwarnings("ignore")

# The flag is set at the 0.
SIZES = (4, 2, 1, 3, 3, 0, 3, 4, 3, 8, 6, 3, 2)


def rows(size: int) -> torch.Tensor:
    return torch.randn(size, 4).to(gfxgraph.device_type())


def raises(call: Any, *args: Any) -> bool:
    try:
        call(*args)
    except Exception:
        return True
    return False


def suppressed(call: Any, *args: Any) -> bool:
    with contextlib.suppress(Exception):
        call(*args)
        return False
    return True


class Three:
    def __index__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return other.__class__ is int and int(other) == 3  # type: ignore[call-overload]

    __hash__ = None  # type: ignore[assignment]


def matched(n: Any) -> bool:
    match n:
        case 3:
            return True
        case int():
            return False
    return False


# Whether a size is 3, or whether it is one at all; both are so only for an `int` of 3.
IS_THREE = {
    "==": lambda x: x.shape[0] == 3,
    "of an intermediate": lambda x: (x + 1).T.shape[1] == 3,
    "numel": lambda x: x.numel() == 12,
    "len": lambda x: len(x) == 3,
    "size()": lambda x: x.size(0) == 3,
    "shape": lambda x: x.shape == (3, 4),
    "in": lambda x: x.shape[0] in (3, 9),
    "in a set": lambda x: x.shape[0] in {3, 9},
    "in a range": lambda x: x.shape[0] in range(3, 4),
    "a key": lambda x: {3: True}.get(x.shape[0], False),
    "an index": lambda x: [False] * 3 + [True] + [False] * 9 and x.shape[0] - 3 == 0,
    "counting": lambda x: sum(1 for _ in range(x.shape[0])) == 3,
    "iterated": lambda x: sum(1 for _ in x) == 3,
    "unbind": lambda x: len(x.unbind(0)) == 3,
    "chunk": lambda x: len(x.chunk(3)) == 3 and x.chunk(3)[0].shape[0] == 1,
    "text": lambda x: f"{x.shape[0]}" == "3",
    "%d": lambda x: "%d".__mod__(x.shape[0]) == "3",
    "str of the shape": lambda x: str(tuple(x.shape)) == "(3, 4)",
    "id": lambda x: id(x.shape[0]) == id(3),
    "is": lambda x: operator.is_(x.shape[0], 3),
    "type": lambda x: type(x.shape[0]) is int and x.shape[0] == 3,
    "map(type)": lambda x: next(map(type, x.shape)) is int and x.shape[0] == 3,
    "groupby(type)": lambda x: next(itertools.groupby(x.shape, type))[0] is int and len(x) == 3,
    "isinstance SymInt": lambda x: not isinstance(x.shape[0], torch.SymInt) and len(x) == 3,
    "a method of int": lambda x: (3).__eq__(x.shape[0]) is True,
    "int.__eq__": lambda x: int.__eq__(3, x.shape[0]) is True,
    "a method of float": lambda x: (3.0).__eq__(x.shape[0]) is True,
    "bit_length": lambda x: (x.shape[0] - 3).bit_length() == 0,
    "hash": lambda x: hash(x.shape[0]) == 3,
    "json": lambda x: not raises(json.dumps, x.shape[0]) and len(x) == 3,
    "json in a with": lambda x: not suppressed(json.dumps, x.shape[0]) and len(x) == 3,
    "c_int": lambda x: not raises(ctypes.c_int, x.shape[0]) and len(x) == 3,
    "Decimal": lambda x: not raises(decimal.Decimal, x.shape[0]) and len(x) == 3,
    "timedelta": lambda x: not raises(datetime.timedelta, x.shape[0]) and len(x) == 3,
    "struct": lambda x: struct.pack("i", x.shape[0])[0] == 3,
    "numpy dtype": lambda x: np.asarray(x.shape).dtype == np.int64 and len(x) == 3,
    "numpy bytes": lambda x: np.asarray(x.shape).tobytes() == np.array((3, 4)).tobytes(),
    "numpy sum": lambda x: type(np.sum(x.shape)) is np.int64 and len(x) == 3,
    "numpy scalar": lambda x: type(np.int64(1) + x.shape[0]) is np.int64 and len(x) == 3,
    "numpy zeros": lambda x: np.zeros(x.shape[0]).size == 3,
    "stride of a part": lambda x: x.T.contiguous().stride(0) == 3,
    "contiguous": lambda x: x[:, :1].expand(-1, 1).contiguous() is not None and len(x) == 3,
    "view fails": lambda x: raises(x.view, 6, 2) is False,
    "view fails in a with": lambda x: suppressed(x.view, 6, 2) is False,
    "reduce": lambda x: functools.reduce(operator.mul, x.shape) == 12,
    "partial": lambda x: functools.partial(operator.eq, 3)(x.shape[0]),
    "sorted": lambda x: sorted([x.shape[0], 3.5, 2.5])[1] == 3,
    "max": lambda x: max(x.shape[0], 2) == 3,
    "matched": lambda x: matched(x.shape[0]),
    "its own ==": lambda x: Three() == x.shape[0],
    "a slice of a list": lambda x: [1, 2, 3, 4][: x.shape[0]] == [1, 2, 3],
    "a deep copy": lambda x: len(x) == 3 and x.shape[0] + 0 == 3,
    "hasattr": lambda x: not hasattr(x.shape[0], "node") and len(x) == 3,
    "vars": lambda x: raises(vars, x.shape[0]) and len(x) == 3,
    "map(type) of an iterator": lambda x: next(map(type, iter(x.shape))) is int and len(x) == 3,
    "numpy.float64": lambda x: type(np.float64(3.5) < x.shape[0] + 9) is np.bool_ and len(x) == 3,
    "object.__eq__": lambda x: object.__eq__(x.shape[0], 3) is NotImplemented and len(x) == 3,
    "an item in C": lambda x: Types()[x.shape[0]] is int and len(x) == 3,
    "an abstract class": lambda x: not isinstance(x.shape[0], Symbolic) and len(x) == 3,
    "an extension": lambda x: torch._C._non_sym_sizes(x)[0] == 3,
    "map of an extension": lambda x: next(map(torch._C._non_sym_sizes, [x]))[0] == 3,
    "an item by an extension": lambda x: Sizes()[x][0] == 3,
    "a dispatch mode": lambda x: _rows_in_a_mode(x) == 3,
    "a backward pass": lambda x: _rows_in_backward(x) == 3,
    "without functions": lambda x: _without_modes(x) == 3,
    "DLPack": lambda x: np.from_dlpack(x.cpu()).shape[0] == 3,
    "broadcast_shapes": lambda x: torch.broadcast_shapes(x.shape, (1, 4))[0] == 3,
    "sym_max": lambda x: torch.sym_max(x.shape[0], 2) == 3,
}


class Types:
    __getitem__ = staticmethod(type)


class Sizes:
    __getitem__ = staticmethod(torch._C._non_sym_sizes)


class Symbolic(abc.ABC):  # noqa: B024  others are registered with it
    pass


Symbolic.register(torch.SymInt)


def _rows_in_a_mode(x: torch.Tensor) -> int:
    met = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            met.append(args[0].shape[0])
            return func(*args, **(kwargs or {}))

    with Mode():
        x + 1
    return met[0]


def _rows_in_backward(x: torch.Tensor) -> int:
    met = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            return w * 1

        @staticmethod
        def backward(ctx, gradient):
            met.append(gradient.shape[0])
            return gradient

    with torch.inference_mode(False), torch.enable_grad():
        w = x.clone().requires_grad_()
        torch.autograd.grad(Noted.apply(w).sum(), w)
    return met[0]


def _without_modes(x: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return x.shape[0]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if n % 3 else [])
        for n, name in enumerate(IS_THREE)
    ],
)
def test_what_calls_of_one_size_read_is_seen(device, name):
    held = SimpleNamespace(flag=False)

    def function(x):
        return x * (3.0 if IS_THREE[name](x) and held.flag else 2.0)

    fast = gfxgraph.graphed(function, buckets=[4, 8])
    with torch.inference_mode():
        for size in SIZES:
            held.flag |= not size
            if size:
                x = rows(size)
                torch.testing.assert_close(fast(x), function(x))


def _made_a_class(held: Any) -> None:
    class Base:
        def __init_subclass__(cls) -> None:
            held.log.append(1)

    types.new_class("K", (Base,))


LEFT = {
    "globals": lambda held: globals().__setitem__("_LEFT", globals().get("_LEFT", 0) + 1),
    "exec": lambda held: exec("log.append(1)", {"log": held.log}),
    "a class": _made_a_class,
    "a mock": lambda held: held.mock(1),
    "a large list": lambda held: held.large.append(0),
    "an array on a tensor": lambda held: held.array.__setitem__(0, held.array[0] + 1),
    "a cache": lambda held: held.cached(3, len(held.log)),
    "an attribute": lambda held: setattr(held, "count", held.count + 1),
    "code": lambda held: setattr(held.helper, "__code__", (lambda: 5).__code__),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_calls_of_one_size_leave_is_left_once(device, name):
    def function():
        on_tensor = torch.zeros(3)
        held = SimpleNamespace(
            log=[], large=[0] * 5000, array=on_tensor.numpy(), tensor=on_tensor, count=0
        )
        held.mock, held.helper = mock.Mock(), lambda: 1
        held.cached = functools.lru_cache(None)(lambda *args: args)
        globals()["_LEFT"] = 0

        def call(x):
            if x.shape[0] == 3:
                LEFT[name](held)
            return x * 2

        def left() -> Any:
            info = held.cached.cache_info()
            return (
                *(held.log, len(held.large), held.array.tolist(), held.count, held.helper()),
                *(held.mock.call_count, info.currsize, globals()["_LEFT"]),
            )

        return call, left

    def found(is_fast: bool) -> list[Any]:
        call, left = function()
        if is_fast:
            call = gfxgraph.graphed(call, buckets=[4, 8])
        states = []
        with torch.inference_mode():
            for size in (4, 2, 1, 8, 3, 3, 4, 3, 2):
                x = rows(size)
                torch.testing.assert_close(call(x), x * 2)
                states.append(repr(left()))
        return states

    assert found(True) == found(False)


def test_a_cache_never_keeps_a_stand_in(device):
    cached = functools.lru_cache(None)(lambda n, k: n + k)

    def function(x):
        return x * 2 if x.shape[0] != 3 else x * cached(x.shape[0], 1)

    fast = gfxgraph.graphed(function, buckets=[4, 8])
    with torch.inference_mode():
        for size in (4, 2, 1, 8, 3, 3):
            fast(rows(size))
    assert type(cached(3, 1)) is int


NOTHING_DECIDED = """
import contextvars
import torch
import gfxgraph
from gfxgraph.graph.session import CaptureSession

recorded, record = [], CaptureSession.record

def noted(self, with_reads=True, answers=None):
    recorded.append(with_reads)
    return record(self, with_reads, answers)

CaptureSession.record = noted
device = gfxgraph.device_type()
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device).eval()
settings = contextvars.ContextVar("settings", default=None)

def within_settings(x):
    token = settings.set({"floats": any(kind == x.dtype for kind in (torch.float32, torch.half))})
    try:
        return model(x)
    finally:
        settings.reset(token)

fast = gfxgraph.graphed(FUNCTION, buckets=[2, 4, 8])
with torch.inference_mode():
    fast(torch.randn(3, 5, 8, device=device))
    first = len(recorded)
    for size in range(1, 9):
        x = torch.randn(size, 5, 8, device=device)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
print(fast.stats().captures, recorded[first:])
"""


@pytest.mark.parametrize("function", ["model", "within_settings"])
def test_sizes_that_decide_nothing_are_not_recorded(device, function):
    # A process of its own: here another test may have left a thread, or a kernel in Python.
    code = NOTHING_DECIDED.replace("FUNCTION", function)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    # The captures of two more buckets.
    assert (ran.stdout.strip(), ran.returncode) == ("3 [False, False]", 0), ran.stderr
