"""Functions that write Python state in each call, and functions that return objects of any class.

Each case makes ``fn, look`` or ``fn, look, between``: the function of one tensor, what shows the state
that is visible, and what changes it from outside before call number ``n``. What ``between`` returns,
if it is a tensor, is the argument of that call.
"""

# ruff: noqa: B006, B010, B904, B905, E741, E742, F841, RUF012, RUF015, RUF023, RUF059, SIM102, SIM910
# ruff: noqa: UP030, UP031, UP032, UP033
from __future__ import annotations

import array
import bisect
import collections
import contextlib
import contextvars
import copy
import ctypes
import dataclasses
import decimal
import enum
import fractions
import functools
import gc
import heapq
import inspect
import itertools
import json
import logging
import math
import numbers
import operator
import os
import pickle
import random
import re
import struct
import sys
import threading
import time
import types
import typing
import weakref
import zlib
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

CASES = {}
_numbers = itertools.count()
_wraps = [lambda fn: fn]
_made = []  # graphed callables beside the one of the case


def case(make):
    assert make.__name__ not in CASES, make.__name__
    CASES[make.__name__] = make
    return make


def space(text):
    """A module of its own for each twin."""
    made = types.ModuleType("effects_of_one_twin")
    made.__dict__.update(torch=torch, F=F, nn=nn)
    exec(compile(inspect.cleandoc(text), "<effects>", "exec"), made.__dict__)
    return made


def also(fn):
    """Another callable that is graphed in the one world, and eager in the other."""
    made = _wraps[-1](fn)
    _made.append(made)
    return made


# ---- attributes that are set


@case
def keeps_result():
    class M(nn.Module):
        def forward(self, x):
            self.x = x * 2
            return self.x

    m = M()
    return m, lambda: (m.x,)


@case
def keeps_result_on_plain_object():
    class M:
        def __call__(self, x):
            self.x = x * 2
            return self.x

    m = M()
    return m, lambda: m


@case
def keeps_input():
    class M(nn.Module):
        def forward(self, x):
            self.last = x
            return x + 1

    m = M()
    return m, lambda: m


@case
def keeps_input_edited_outside():
    class M(nn.Module):
        def forward(self, x):
            r = x * 1 if not hasattr(self, "last") else x + self.last
            self.last = x
            return r

    m = M()

    def between(n):
        if n in (3, 5, 6):
            m.last.mul_(3)

    return m, lambda: m, between


@case
def keeps_view_of_input():
    class M(nn.Module):
        def forward(self, x):
            self.row = x[0]
            self.t = x.t()
            return x + 1

    m = M()
    return m, lambda: m


@case
def keeps_view_of_result():
    class M(nn.Module):
        def forward(self, x):
            r = x * 2
            self.row, self.t, self.flat = r[0], r.t(), r.view(-1)
            return r

    m = M()

    def between(n):
        if n > 2:
            m.row.fill_(n)

    return m, lambda: m, between


@case
def keeps_two_views_not_base():
    class M(nn.Module):
        def forward(self, x):
            self.a, self.b = (x * 2).chunk(2)
            return self.a + self.b

    m = M()
    return m, lambda: m


@case
def keeps_same_twice():
    class M(nn.Module):
        def forward(self, x):
            self.a = self.b = x * 2
            return x + 1

    m = M()

    def between(n):
        if n > 2:
            m.a.add_(1)

    return m, lambda: m, between


@case
def keeps_clone_and_itself():
    class M(nn.Module):
        def forward(self, x):
            h = x.tanh()
            self.a, self.b, self.c = h, h.clone(), h.detach()
            return h

    m = M()
    return m, lambda: m


@case
def recurrent():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.h = torch.zeros(2, 4)

        def forward(self, x):
            self.h = torch.tanh(self.lin(x) + self.h)
            return self.h

    m = M()

    def between(n):
        if n == 4:
            m.h = torch.ones(2, 4)
        if n == 6:
            m.h = torch.ones(1, 4)

    return m, lambda: m, between


@case
def recurrent_edited_in_place_outside():
    class M(nn.Module):
        h = torch.zeros(2, 4)

        def forward(self, x):
            self.h = self.h * 0.5 + x
            return self.h * 1

    m = M()

    def between(n):
        if n:
            m.h.add_(1)

    return m, lambda: m, between


@case
def recurrent_reset_to_other_dtype():
    class M:
        h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h * 0.5 + x.to(self.h.dtype)
            return self.h

    m = M()

    def between(n):
        if n == 4:
            m.h = m.h.double()
        if n == 6:
            m.h = 1.0 * m.h.float()

    return m, lambda: m, between


@case
def recurrent_set_to_float_outside():
    class M:
        h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h * 0.5 + x
            return self.h + 1

    m = M()

    def between(n):
        if n == 4:
            m.h = 2.0
        if n == 6:
            m.h = torch.tensor(1.5)

    return m, lambda: m, between


@case
def recurrent_class_default_then_deleted():
    class M:
        h = 0.0

        def __call__(self, x):
            self.h = self.h * 0.5 + x
            return self.h + 1

    m = M()

    def between(n):
        if n in (3, 6):
            del m.h

    return m, lambda: m, between


@case
def none_then_tensor():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = None

        def forward(self, x):
            if self.h is None:
                self.h = torch.zeros_like(x)
            self.h = self.h + x
            return self.h

    m = M()

    def between(n):
        if n in (3, 6):
            m.h = None

    return m, lambda: m, between


@case
def read_only_by_is_none():
    class M(nn.Module):
        h = None

        def forward(self, x):
            first = self.h is None
            self.h = x * 2
            return x * (1 if first else 3)

    m = M()

    def between(n):
        if n in (3, 6):
            m.h = None

    return m, lambda: m, between


@case
def read_only_by_is_none_from_c():
    class M:
        h = None

        def __call__(self, x):
            first = operator.is_(self.h, None)
            self.h = x * 2
            return x * (1 if first else 3)

    m = M()

    def between(n):
        if n in (3, 6):
            m.h = None

    return m, lambda: m, between


@case
def read_only_by_type():
    class M:
        h = None

        def __call__(self, x):
            k = type(self.h).__name__
            self.h = x * 2
            self.kind = k
            return x * len(k)

    m = M()

    def between(n):
        if n in (3, 6):
            m.h = None

    return m, lambda: m, between


@case
def read_only_by_class_attribute():
    class M:
        h = None

        def __call__(self, x):
            k = self.h.__class__
            self.h = x * 2
            return x * len(k.__name__)

    m = M()

    def between(n):
        if n in (3, 6):
            m.h = 3

    return m, lambda: m, between


@case
def read_only_by_isinstance():
    class M:
        h = None

        def __call__(self, x):
            is_t = isinstance(self.h, torch.Tensor)
            self.h = x * 2
            return x * (2 if is_t else 5)

    m = M()

    def between(n):
        if n in (3, 6):
            m.h = 3

    return m, lambda: m, between


@case
def read_only_by_hasattr():
    class M(nn.Module):
        def forward(self, x):
            has = hasattr(self, "h")
            self.h = x * 2
            return x * (2 if has else 5)

    m = M()

    def between(n):
        if n in (3, 6):
            del m.h

    return m, lambda: m, between


@case
def read_by_getattr_default():
    class M(nn.Module):
        def forward(self, x):
            h = getattr(self, "h", None)
            self.h = x * 2 if h is None else h + x
            return self.h

    m = M()

    def between(n):
        if n in (3, 6):
            del m.h

    return m, lambda: m, between


@case
def try_except_attribute_error():
    class M:
        def __call__(self, x):
            try:
                self.h = self.h + x
            except AttributeError:
                self.h = x * 1
            return self.h * 2

    m = M()

    def between(n):
        if n in (3, 6):
            del m.h

    return m, lambda: m, between


@case
def read_by_vars_in():
    class M:
        def __call__(self, x):
            f = 2 if "h" in vars(self) else 3
            self.h = x * f
            return self.h

    m = M()

    def between(n):
        if n in (3, 6):
            del m.h

    return m, lambda: m, between


@case
def deleted_then_set():
    class M:
        def __init__(self):
            self.a, self.b = torch.zeros(2, 4), 1

        def __call__(self, x):
            old = self.a
            del self.a
            self.a = old + x
            return self.a

    m = M()
    return m, lambda: m


@case
def set_then_deleted():
    class M:
        def __call__(self, x):
            self.tmp = x * 2
            r = self.tmp + 1
            del self.tmp
            return r

    m = M()

    def between(n):
        if n == 4:
            m.tmp = 7

    return m, lambda: m, between


@case
def set_then_deleted_over_a_default():
    class M(nn.Module):
        tmp = 5

        def forward(self, x):
            k = self.tmp
            self.tmp = x * 2
            r = self.tmp + k
            del self.tmp
            return r

    m = M()

    def between(n):
        if n == 4:
            type(m).tmp = 7

    return m, lambda: (vars(m), type(m).tmp), between


@case
def attribute_order_changes():
    class M:
        def __init__(self):
            self.a, self.b, self.c = 1, 2, 3

        def __call__(self, x):
            del self.a
            self.a = x * 2
            return self.a

    m = M()
    return m, lambda: list(vars(m))


@case
def attribute_order_by_turns():
    class M:
        def __init__(self):
            self.a, self.b = torch.zeros(2, 4), torch.ones(2, 4)

        def __call__(self, x):
            first = next(iter(vars(self)))
            old = vars(self).pop(first)
            setattr(self, first, old + x)
            return x * (2 if first == "a" else 3)

    m = M()
    return m, lambda: m


@case
def swaps_two():
    class M:
        def __init__(self):
            self.a, self.b = torch.zeros(2, 4), torch.ones(2, 4)

        def __call__(self, x):
            self.a, self.b = self.b, self.a
            return x + self.a

    m = M()
    return m, lambda: m


@case
def swaps_two_one_replaced():
    class M:
        def __init__(self):
            self.a, self.b = torch.zeros(2, 4), torch.ones(2, 4)

        def __call__(self, x):
            self.a, self.b = self.b, self.a + x
            return x + self.a

    m = M()
    return m, lambda: m


@case
def swaps_that_are_one_tensor():
    class M:
        def __init__(self):
            self.a = self.b = torch.zeros(2, 4)

        def __call__(self, x):
            self.a, self.b = self.b, self.a
            return x + self.a

    m = M()

    def between(n):
        if n == 3:
            m.b = torch.ones(2, 4)
        if n == 5:
            m.b = m.a
        if n == 6:
            m.b = m.a[:]

    return m, lambda: m, between


@case
def entry_aliases_change():
    class M:
        def __init__(self):
            self.a, self.b = torch.zeros(2, 4), torch.ones(2, 4)

        def __call__(self, x):
            self.a.add_(1)
            r = self.a + self.b * x
            self.a, self.b = self.a, self.b * 1
            return r

    m = M()

    def between(n):
        if n == 3:
            m.b = m.a
        if n == 5:
            m.b = m.a.view(-1).view(2, 4)
        if n == 7:
            m.b = m.a.clone()

    return m, lambda: m, between


@case
def shifts_history_of_three():
    class M:
        a = b = c = None

        def __call__(self, x):
            self.c, self.b, self.a = self.b, self.a, x * 2
            r = self.a
            for h in (self.b, self.c):
                if h is not None:
                    r = r + h
            return r

    m = M()
    return m, lambda: m


@case
def returns_old_state():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            old = self.h
            self.h = old + x
            return old

    m = M()
    return m, lambda: m


@case
def returns_old_and_new_state():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = torch.zeros(2, 4)

        def forward(self, x):
            old, self.h = self.h, self.h + x
            self.prev = old
            return {"old": old, "new": self.h, "row": self.h[0]}

    m = M()
    return m, lambda: m


@case
def keeps_view_of_old_state():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.row = self.h[0]
            self.h = self.h + x
            return x + self.row

    m = M()
    return m, lambda: m


@case
def keeps_transpose_of_old_state():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 2)

        def __call__(self, x):
            self.h = self.h.t()
            self.h.add_(x[:, :2])
            return x[:, :2] * self.h

    m = M()
    return m, lambda: m


@case
def in_place_then_rebound():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h.add_(x)
            self.old = self.h
            self.h = self.h * 0.5
            return self.h

    m = M()
    return m, lambda: m


@case
def rebound_then_in_place():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h + x
            self.h[0] = 1.0
            self.h.mul_(2)
            return self.h[1]

    m = M()
    return m, lambda: m


@case
def augmented_assignment_of_tensor():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h += x
            return self.h * 2

    m = M()

    def between(n):
        if n == 4:
            m.h = torch.ones(2, 4)

    return m, lambda: m, between


@case
def augmented_assignment_of_fresh_tensor():
    class M:
        def __call__(self, x):
            self.h = x * 2
            self.h += 1
            self.h -= x
            return self.h

    m = M()
    return m, lambda: m


@case
def grows_by_cat():
    class M:
        def __init__(self):
            self.h = torch.zeros(0, 4)

        def __call__(self, x):
            self.h = torch.cat([self.h, x])
            return self.h.sum(0)

    m = M()

    def between(n):
        if n == 5:
            m.h = m.h[:2]

    return m, lambda: m, between


@case
def grows_by_cat_up_to_a_window():
    class M:
        h = None

        def __call__(self, x):
            self.h = x if self.h is None else torch.cat([self.h, x])[-4:]
            return self.h.mean(0)

    m = M()
    return m, lambda: m


@case
def stores_other_dtypes():
    class M:
        def __call__(self, x):
            self.half, self.long, self.bool = x.half(), (x * 10).long(), x > 0
            self.double, self.c = x.double(), x.to(torch.complex64)
            return self.long.float() + self.half.float()

    m = M()
    return m, lambda: m


@case
def stores_scalar_tensors_and_empty_ones():
    class M:
        def __call__(self, x):
            self.s, self.e, self.z = x.sum(), x[:0] * 2, torch.zeros(())
            return x * self.s

    m = M()
    return m, lambda: m


@case
def stores_non_contiguous():
    class M:
        def __call__(self, x):
            self.h = (x * 2).t()
            self.e = x.sum().expand(3)
            self.s = (x * 3)[:, ::2]
            return self.h @ x

    m = M()
    return m, lambda: m


@case
def stores_a_constant_tensor():
    class M:
        def __call__(self, x):
            self.c = torch.ones(2, 4)
            self.d = torch.tensor([1.0, 2.0])
            return x + self.c

    m = M()

    def between(n):
        if n > 2:
            m.c.add_(5)

    return m, lambda: m, between


@case
def stores_an_outside_tensor():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 4))
            self.register_buffer("b", torch.zeros(2, 4))

        def forward(self, x):
            self.used = self.w
            self.used_b = self.b
            self.view = self.w[0]
            self.data = self.w.data
            return x * self.used

    m = M()
    return m, lambda: m


@case
def stores_on_tensor_object():
    t = torch.ones(4)

    def fn(x):
        t.tag = x * 2
        t.n = getattr(t, "n", 0) + 1
        return x * t

    return fn, lambda: t


@case
def stores_attribute_on_result():
    def fn(x):
        r = x * 2
        r.tag = "hello"
        r.aux = x + 1
        return r

    return fn, lambda: ()


@case
def stores_attribute_on_input():
    class M:
        def __call__(self, x):
            x.seen = True
            self.x = x
            return x * 2

    m = M()
    return m, lambda: m


@case
def stores_parameter_anew():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            self.w = nn.Parameter(self.w + 1)
            return x * self.w

    m = M()
    return m, lambda: m


@case
def parameter_data_rebound():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            self.w.data = self.w.data * 0.5 + x.mean(0)
            return x * self.w

    m = M()
    return m, lambda: m


@case
def stores_requires_grad_flags():
    class M:
        def __call__(self, x):
            self.h = (x * 2).requires_grad_(True)
            self.p = nn.Parameter(x * 3)
            return x + 1

    m = M()
    return m, lambda: m


@case
def buffer_rebound():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("n", torch.tensor(0))
            self.register_buffer("opt", None)

        def forward(self, x):
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            self.n = self.n + 1
            self.opt = x * 1
            return x - self.mean

    m = M()

    def between(n):
        if n == 4:
            m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()})
        if n == 6:
            m.mean = None
            m.mean = torch.ones(4)

    return m, lambda: m, between


@case
def buffer_registered_in_the_call():
    class M(nn.Module):
        def forward(self, x):
            if "acc" not in self._buffers:
                self.register_buffer("acc", torch.zeros(4))
            self.acc = self.acc + x.sum(0)
            return self.acc

    m = M()

    def between(n):
        if n == 4:
            del m.acc

    return m, lambda: m, between


@case
def buffer_registered_each_call():
    class M(nn.Module):
        def forward(self, x):
            self.register_buffer("acc", x * 2, persistent=False)
            return self.acc + 1

    m = M()
    return m, lambda: m


@case
def buffer_and_plain_attribute_are_one():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(2, 4))

        def forward(self, x):
            self.b = self.b + x
            self.plain = self.b
            self.__dict__["hidden"] = self.b
            return self.b

    m = M()
    return m, lambda: m


@case
def batch_norm_in_training():
    m = nn.Sequential(nn.BatchNorm1d(4), nn.Tanh())
    return m, lambda: m


@case
def batch_norm_like_with_rebinding():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("var", torch.ones(4))
            self.steps = 0

        def forward(self, x):
            if self.training:
                self.steps += 1
                k = 1.0 / self.steps
                self.mean = (1 - k) * self.mean + k * x.mean(0)
                self.var = (1 - k) * self.var + k * x.var(0)
            return (x - self.mean) / (self.var + 1e-5).sqrt()

    m = M()

    def between(n):
        if n == 5:
            m.eval()

    return m, lambda: m, between


@case
def dropout_with_state():
    class M(nn.Module):
        h = None

        def forward(self, x):
            y = F.dropout(x, 0.5, True)
            self.h = y if self.h is None else self.h + y
            self.mask = y != 0
            return self.h

    m = M()
    return m, lambda: m


@case
def ema():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.avg, self.decay = None, 0.9

        def forward(self, x):
            self.avg = x if self.avg is None else self.decay * self.avg + (1 - self.decay) * x
            return x - self.avg

    m = M()

    def between(n):
        if n == 5:
            m.decay = 0.5

    return m, lambda: m, between


@case
def momentum_that_depends_on_steps():
    class M:
        def __init__(self):
            self.avg, self.t = torch.zeros(2, 4), 0

        def __call__(self, x):
            self.t += 1
            self.avg = 0.9 * self.avg + 0.1 * x
            return self.avg / (1 - 0.9**self.t)

    m = M()
    return m, lambda: m


# ---- counters


@case
def counter_unused():
    class M(nn.Module):
        n = 0

        def forward(self, x):
            self.n += 1
            return x * 2

    m = M()

    def between(n):
        if n == 4:
            m.n = 100
        if n == 6:
            m.n = 2**70

    return m, lambda: m, between


@case
def counter_set_to_str_outside():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0

        def forward(self, x):
            self.before = x * 2
            self.n += 1
            self.after = x * 3
            return x * 2

    m = M()

    def between(n):
        if n == 4:
            m.n = "a"
        if n == 6:
            m.n = 3

    return m, lambda: m, between


@case
def counter_becomes_float_bool_tensor_numpy():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x * 2

    m = M()

    def between(n):
        if n == 3:
            m.n = 1.5
        if n == 4:
            m.n = True
        if n == 5:
            m.n = torch.tensor(3)
        if n == 6:
            m.n = np.int64(4)
        if n == 7:
            m.n = 0

    return m, lambda: m, between


@case
def counter_deleted_outside():
    class M:
        def __init__(self):
            self.n = 0

        def __call__(self, x):
            self.n += 1
            return x * 2

    m = M()

    def between(n):
        if n == 4:
            del m.n
        if n == 6:
            m.n = 1

    return m, lambda: m, between


@case
def counter_bool():
    class M:
        on = False

        def __call__(self, x):
            self.on = not self.on
            return x * (2 if self.on else 3)

    m = M()

    def between(n):
        if n == 5:
            m.on = not m.on

    return m, lambda: m, between


@case
def counter_bool_starts():
    class M:
        n = False

        def __call__(self, x):
            self.n += 1
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_float():
    class M:
        n = 0.0

        def __call__(self, x):
            self.n += 0.5
            return x * self.n

    m = M()
    return m, lambda: m


@case
def counter_float_unused():
    class M:
        n = 0.0

        def __call__(self, x):
            self.n += 0.1
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_down():
    class M:
        n = 6

        def __call__(self, x):
            self.n -= 1
            return x * 2 if self.n > 2 else x * 3

    m = M()
    return m, lambda: m


@case
def counter_down_unused():
    class M:
        n = 6

        def __call__(self, x):
            self.n = self.n - 1
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_from_the_left():
    class M:
        n, k = 6, 10

        def __call__(self, x):
            self.n = 1 + self.n
            self.k = 100 - self.k
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_by_two():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 2
            self.n -= 1
            self.n += 3
            return x + 1

    m = M()
    return m, lambda: m


@case
def counter_by_size():
    class M:
        n = 0

        def __call__(self, x):
            self.n += x.shape[0]
            return x + 1

    m = M()

    def between(n):
        if n in (4, 6):
            return torch.ones(3, 4)

    return m, lambda: m, between


@case
def counter_by_configured_step():
    class M:
        n, step = 0, 1

        def __call__(self, x):
            self.n += self.step
            return x + 1

    m = M()

    def between(n):
        if n in (4, 6):
            m.step += 1

    return m, lambda: m, between


@case
def counter_by_data():
    class M:
        n = 0

        def __call__(self, x):
            self.n += int((x > 0).sum())
            return x + 1

    m = M()
    return m, lambda: m


@case
def counter_if_data():
    class M:
        n = k = 0

        def __call__(self, x):
            self.k += 1
            if x.sum() > 0:
                self.n += 1
            return x + 1

    m = M()
    return m, lambda: m


@case
def counter_multiplied():
    class M:
        n = 1

        def __call__(self, x):
            self.n *= 2
            return x + 1

    m = M()
    return m, lambda: m


@case
def counter_is_equal_by_chance():
    class M:
        n, k = 1, 0

        def __call__(self, x):
            self.n = self.n * 2 if self.k < 2 else self.n + 2
            self.k = min(self.k + 1, 3)
            return x + 1

    m = M()
    return m, lambda: m


@case
def counter_in_comparison():
    class M:
        n = 0

        def __call__(self, x):
            self.n = self.n + 1
            return x * (self.n > 0)

    m = M()

    def between(n):
        if n == 4:
            m.n = -5

    return m, lambda: m, between


@case
def counter_as_factor():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x * self.n

    m = M()
    return m, lambda: m


@case
def counter_in_full():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x + torch.full((2, 4), self.n)

    m = M()
    return m, lambda: m


@case
def counter_in_torch_tensor():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x + torch.tensor(self.n) + torch.tensor([float(self.n)])

    m = M()
    return m, lambda: m


@case
def counter_as_seed():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            torch.manual_seed(self.n)
            return x + torch.randn(2, 4)

    m = M()
    return m, lambda: m


@case
def counter_as_index():
    class M:
        def __init__(self):
            self.n, self.table = 0, torch.arange(16.0).view(16, 1)

        def __call__(self, x):
            r = x + self.table[self.n]
            self.n += 1
            return r

    m = M()
    return m, lambda: m


@case
def counter_as_list_index():
    class M:
        def __init__(self):
            self.n, self.table = 0, [1.0, 2.0, 3.0]

        def __call__(self, x):
            self.n = (self.n + 1) % 3
            return x + self.table[self.n]

    m = M()

    def between(n):
        if n == 6:
            m.table[:] = [5.0, 6.0, 7.0]

    return m, lambda: m, between


@case
def counter_in_range():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            for i in range(self.n):
                x = x + i
            return x

    m = M()
    return m, lambda: m


@case
def counter_in_format():
    class M:
        n, text = 0, ""

        def __call__(self, x):
            self.n += 1
            self.text = f"step {self.n}"
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_in_percent_format_and_log():
    class M:
        def __init__(self):
            self.n, self.log = 0, []

        def __call__(self, x):
            self.n += 1
            self.log.append("%d: %s" % (self.n, tuple(x.shape)))
            return x * 2

    m = M()

    def between(n):
        if n == 4:
            m.log = []
        if n == 6:
            m.log.clear()

    return m, lambda: m, between


@case
def counter_as_bool():
    class M:
        n = 2

        def __call__(self, x):
            if self.n:
                self.n -= 1
                return x * 2
            return x * 3

    m = M()
    return m, lambda: m


@case
def counter_isinstance():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x * (2 if isinstance(self.n, int) else 3)

    m = M()

    def between(n):
        if n == 4:
            m.n = 1.5

    return m, lambda: m, between


@case
def counter_type_is_asked():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x * (2 if type(self.n) is int else 3)

    m = M()
    return m, lambda: m


@case
def counter_class_is_asked():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x * (2 if self.n.__class__ is int else 3)

    m = M()
    return m, lambda: m


@case
def counter_matched():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            match self.n:
                case int():
                    return x * 2
                case _:
                    return x * 3

    m = M()
    return m, lambda: m


@case
def counter_is_none():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x * (2 if self.n is not None else 3)

    m = M()

    def between(n):
        if n == 4:
            m.n = 17

    return m, lambda: m, between


@case
def counter_identity_with_constant():
    class M:
        n = 0
        mark = 3

        def __call__(self, x):
            self.n += 1
            return x * (2 if operator.is_(self.n, M.mark) else 3)

    m = M()
    return m, lambda: m


@case
def counter_swallowed_type_error():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            try:
                k = self.n % 2
            except Exception:
                k = 7
            return x * (k + 1)

    m = M()
    return m, lambda: m


@case
def counter_callable_or_has_attributes():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            a = callable(self.n)
            b = hasattr(self.n, "bit_length")
            c = hasattr(self.n, "by")
            return x * (1 + 2 * a + 4 * b + 8 * c)

    m = M()
    return m, lambda: m


@case
def counter_copied_to_other_attribute():
    class M:
        n, prev = 0, -1

        def __call__(self, x):
            self.prev = self.n
            self.n += 1
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_returned():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x * 2, self.n

    m = M()
    return m, lambda: m


@case
def counter_returned_in_object():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            return SimpleNamespace(y=x * 2, step=self.n)

    m = M()
    return m, lambda: m


@case
def counter_appended():
    class M:
        def __init__(self):
            self.n, self.log = 0, []

        def __call__(self, x):
            self.n += 1
            self.log.append(self.n)
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_in_tuple_and_dict():
    class M:
        n, t, d = 0, None, None

        def __call__(self, x):
            self.n += 1
            self.t = (self.n, x * 2)
            self.d = {"n": self.n}
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_as_dict_key():
    class M:
        def __init__(self):
            self.n, self.d = 0, {}

        def __call__(self, x):
            self.n += 1
            self.d[self.n] = x * 2
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_as_dict_key_modulo():
    class M:
        def __init__(self):
            self.n, self.d = 0, {}

        def __call__(self, x):
            self.n = (self.n + 1) % 2
            old = self.d.get(self.n)
            self.d[self.n] = x * 2
            return x if old is None else x + old

    m = M()

    def between(n):
        if n == 5:
            m.d.clear()

    return m, lambda: m, between


@case
def counter_stored_on_tensor():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            r = x * 2
            r.step = self.n
            self.r = r
            return r

    m = M()
    return m, lambda: m


@case
def counter_passed_through_python():
    class M:
        n = 0

        def tick(self, n):
            return n + 1

        def __call__(self, x):
            self.n = self.tick(self.n)
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_by_operator_module():
    class M:
        n = 0

        def __call__(self, x):
            self.n = operator.iadd(self.n, 1)
            self.k = sum([1, 2], self.n) if hasattr(self, "k") else 0
            return x * 2

    m = M()
    return m, lambda: m


@case
def counters_that_add_up():
    class M:
        a = b = c = 0

        def __call__(self, x):
            self.a += 1
            self.b += self.a
            self.c = self.a + self.b
            return x * 2

    m = M()
    return m, lambda: m


@case
def counters_swap():
    class M:
        a, b = 0, 10

        def __call__(self, x):
            self.a, self.b = self.b + 1, self.a + 1
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_assigned_to_itself():
    class M:
        a = 5

        def __call__(self, x):
            self.a = self.a
            self.h = x * 2
            return x * 2

    m = M()

    def between(n):
        if n == 4:
            m.a = 7
        if n == 6:
            m.a = torch.ones(2)

    return m, lambda: m, between


@case
def counter_reset_in_the_call():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            if self.n == 3:
                self.n = 0
                return x * 0
            return x * 2

    m = M()
    return m, lambda: m


@case
def counter_warm_up_phase():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            if self.n <= 3:
                return x * 0.1 * self.n
            return x

    m = M()
    return m, lambda: m


@case
def counter_saturates():
    class M:
        n, h = 0, None

        def __call__(self, x):
            self.n = min(self.n + 1, 3)
            self.h = x * self.n
            return self.h

    m = M()
    return m, lambda: m


@case
def counter_by_turns():
    class M:
        step = 0

        def __call__(self, x):
            self.step += 1
            if self.step % 2:
                self.even = x * 2
            else:
                self.odd = x * 3
            return x

    m = M()
    return m, lambda: m


@case
def state_machine_of_three():
    class M:
        i = 0

        def __call__(self, x):
            self.i = (self.i + 1) % 3
            return (x.sin(), x.cos(), x.tanh())[self.i]

    m = M()

    def between(n):
        if n == 5:
            m.i = 0

    return m, lambda: m, between


@case
def state_machine_of_strings():
    class M:
        at = "a"

        def __call__(self, x):
            self.at = {"a": "b", "b": "c", "c": "a"}[self.at]
            return x * {"a": 1, "b": 2, "c": 3}[self.at]

    m = M()
    return m, lambda: m


@case
def state_machine_of_enum():
    class At(enum.Enum):
        A = 1
        B = 2

    class M:
        at = At.A

        def __call__(self, x):
            self.at = At.B if self.at is At.A else At.A
            return x * self.at.value

    m = M()
    return m, lambda: m


@case
def state_machine_of_methods():
    class M:
        def __init__(self):
            self.next = self.one

        def one(self, x):
            self.next = self.two
            return x * 2

        def two(self, x):
            self.next = self.one
            return x * 3

        def __call__(self, x):
            return self.next(x)

    m = M()
    return m, lambda: m.next.__name__


@case
def counter_in_nonlocal():
    n = 0
    last = None

    def fn(x):
        nonlocal n, last
        n += 1
        last = x * 2
        return last

    return fn, lambda: (n, last)


@case
def counter_global():
    mod = space(
        """
        n = 0
        last = None
        def fn(x):
            global n, last
            n += 1
            old = last
            last = x * 2
            return last if old is None else last + old
        """
    )

    def between(n):
        if n == 4:
            mod.last = None
        if n == 6:
            mod.n = -1

    return mod.fn, lambda: (mod.n, mod.last), between


@case
def global_deleted_and_set():
    mod = space(
        """
        h = torch.zeros(2, 4)
        z = 1
        def fn(x):
            global h
            old = h
            del h
            h = old + x
            return h * z
        """
    )
    return mod.fn, lambda: (mod.h, [k for k in vars(mod) if k in "hz"])


@case
def global_by_globals():
    mod = space(
        """
        def fn(x):
            g = globals()
            g["h"] = g.get("h", 0) + x
            g["n"] = g.setdefault("n", 5) + 1
            return h * 2
        """
    )
    return mod.fn, lambda: (mod.h, mod.n)


@case
def counter_class_attribute():
    class M:
        n, last = 0, None

        def __call__(self, x):
            M.n += 1
            type(self).last = x * 2
            return x * 2

    m = M()
    return m, lambda: (M.n, M.last, vars(m))


@case
def classmethod_writes():
    class M(nn.Module):
        total = torch.zeros(2, 4)
        calls = 0

        @classmethod
        def note(cls, y):
            cls.total = cls.total + y
            cls.calls += 1
            return cls.total

        def forward(self, x):
            return self.note(x) * 2

    class N(M):
        pass

    m = N()

    def between(n):
        if n == 5:
            N.total = torch.ones(2, 4)

    return m, lambda: [(c.__dict__.get("total"), c.__dict__.get("calls")) for c in (M, N)], between


@case
def class_level_dict_by_id():
    class M(nn.Module):
        cache = {}

        def forward(self, x):
            key = id(self)
            M.cache[key] = M.cache.get(key, 0) + x
            return M.cache[key]

    m = M()
    return m, lambda: list(M.cache.values())


@case
def slots():
    class M:
        __slots__ = ("h", "n")

        def __init__(self):
            self.h, self.n = torch.zeros(2, 4), 0

        def __call__(self, x):
            self.n += 1
            self.h = self.h + x
            return self.h

    m = M()

    def between(n):
        if n == 4:
            m.h = torch.ones(2, 4)
        if n == 6:
            m.n = "x"
            m.n = 5

    return m, lambda: m, between


@case
def slots_empty_at_first():
    class M:
        __slots__ = ("h",)

        def __call__(self, x):
            try:
                self.h = self.h + x
            except AttributeError:
                self.h = x * 1
            return self.h

    m = M()

    def between(n):
        if n == 4:
            del m.h

    return m, lambda: m, between


@case
def slots_cleared_in_each_call():
    class M:
        __slots__ = ("h", "__dict__")

        def __call__(self, x):
            self.h = x * 2
            self.d = self.h
            r = self.h + 1
            del self.h
            return r

    m = M()
    return m, lambda: m


@case
def property_with_setter():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self._h, self.sets = torch.zeros(2, 4), 0

        @property
        def h(self):
            return self._h

        @h.setter
        def h(self, value):
            self.sets += 1
            self._h = value * 2

        def forward(self, x):
            self.h = self.h * 0.1 + x
            return self.h

    m = M()
    return m, lambda: m


@case
def setattr_override():
    class M:
        def __init__(self):
            object.__setattr__(self, "log", [])
            self.h = torch.zeros(2, 4)

        def __setattr__(self, name, value):
            self.log.append(name)
            object.__setattr__(self, name, value)

        def __call__(self, x):
            self.h = self.h + x
            return self.h

    m = M()
    return m, lambda: m


@case
def getattribute_override():
    class M:
        def __init__(self):
            self.d = {}

        def __getattribute__(self, name):
            d = object.__getattribute__(self, "d") if name != "d" else {}
            d[name] = d.get(name, 0) + 1
            return object.__getattribute__(self, name)

        def __call__(self, x):
            self.h = x * 2
            return self.h

    m = M()
    return m, lambda: dict(object.__getattribute__(m, "d"))


@case
def getattr_fallback_computes():
    class M:
        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            value = torch.full((4,), float(len(name)))
            setattr(self, name, value)
            return value

        def __call__(self, x):
            return x * self.abc

    m = M()

    def between(n):
        if n in (3, 6):
            del m.abc

    return m, lambda: m, between


@case
def descriptor_set_in_dict():
    class D:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, obj, owner=None):
            return obj.__dict__.get(self.name, 1.0)

        def __set__(self, obj, value):
            obj.__dict__[self.name] = value

    class M:
        h = D()

        def __call__(self, x):
            self.h = self.h * x
            return self.h

    m = M()
    return m, lambda: vars(m)


@case
def cached_property():
    class M:
        n = 0

        @functools.cached_property
        def w(self):
            self.n += 1
            return torch.ones(4) * self.n

        def __call__(self, x):
            return x * self.w

    m = M()

    def between(n):
        if n in (3, 5):
            del m.w

    return m, lambda: m, between


@case
def cached_property_dropped_in_each_call():
    class M:
        n = 0

        @functools.cached_property
        def w(self):
            return torch.ones(4) + 1

        def __call__(self, x):
            r = x * self.w
            del self.w
            self.last = r
            return r

    m = M()
    return m, lambda: m


@case
def vars_update():
    class M:
        def __call__(self, x):
            vars(self).update(a=x * 2, n=getattr(self, "n", 0) + 1)
            self.__dict__["b"] = self.a
            return self.a

    m = M()
    return m, lambda: m


@case
def dict_replaced():
    class M:
        h = 0

        def __call__(self, x):
            self.__dict__ = {"h": self.h + x}
            return self.h

    m = M()
    return m, lambda: m


@case
def class_of_object_changes():
    class A:
        def __call__(self, x):
            self.__class__ = B
            return x * 2

    class B:
        def __call__(self, x):
            self.__class__ = A
            return x * 3

    m = A()

    def fn(x):
        return m.__call__(x)

    return fn, lambda: type(m).__name__


@case
def object_setattr():
    @dataclasses.dataclass(frozen=True)
    class S:
        h: typing.Any
        n: int

    s = S(torch.zeros(2, 4), 0)

    def fn(x):
        object.__setattr__(s, "h", s.h + x)
        object.__setattr__(s, "n", s.n + 1)
        return s.h

    return fn, lambda: s


@case
def setattr_by_computed_name():
    class M:
        n = 0

        def __call__(self, x):
            for name in ("a", "b"):
                setattr(self, "h_" + name, x * len(vars(self)))
            return self.h_a + self.h_b

    m = M()
    return m, lambda: m


@case
def setattr_by_name_with_counter():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            setattr(self, f"h{self.n % 3}", x * 2)
            return x

    m = M()
    return m, lambda: m


# ---- hooks, decorators, functions


@case
def forward_hook_saves_activations():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    acts = {}
    for i, layer in enumerate(m):
        layer.register_forward_hook(lambda mod, a, out, i=i: acts.__setitem__(f"l{i}", out))
    return m, lambda: acts


@case
def forward_hook_saves_inputs_and_outputs():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    acts = {}

    def hook(mod, args, out):
        acts[type(mod).__name__] = (args, out)

    for layer in m:
        layer.register_forward_hook(hook)

    def between(n):
        if n == 5:
            acts.clear()

    return m, lambda: acts, between


@case
def forward_hook_appends():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    acts = []
    m[0].register_forward_hook(lambda mod, a, out: acts.append(out))

    def between(n):
        if n % 2:
            acts.clear()

    return m, lambda: acts, between


@case
def forward_hook_on_module_attribute():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def hook(mod, a, out):
        mod.out = out
        mod.calls = getattr(mod, "calls", 0) + 1

    m[0].register_forward_hook(hook)
    m[1].register_forward_pre_hook(lambda mod, a: setattr(mod, "inp", a[0]))
    return m, lambda: m


@case
def hook_registered_and_removed_in_the_call():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            got = []
            handle = self.lin.register_forward_hook(lambda mod, a, out: got.append(out))
            try:
                self.lin(x)
            finally:
                handle.remove()
            self.act = got[0]
            return self.act

    m = M()
    return m, lambda: m


@case
def decorator_counts_and_keeps():
    def kept(fn):
        @functools.wraps(fn)
        def inner(x):
            inner.calls += 1
            inner.last = fn(x)
            return inner.last

        inner.calls = 0
        return inner

    @kept
    def fn(x):
        return x * 2

    return fn, lambda: (fn.calls, fn.last)


@case
def partial_with_state():
    state = {"h": 0.0}

    def step(st, k, x):
        st["h"] = st["h"] * k + x
        return st["h"]

    return functools.partial(step, state, 0.5), lambda: state


@case
def bound_method_of_other_object():
    class Acc:
        def __init__(self):
            self.total = torch.zeros(2, 4)
            self.n = 0

        def add(self, x):
            self.total, self.n = self.total + x, self.n + 1
            return self.total

    a = Acc()
    return a.add, lambda: a


@case
def nested_functions_with_nonlocal():
    h, n = torch.zeros(2, 4), 0

    def step(x):
        def inner(y):
            nonlocal h, n
            h = h + y
            n += 1

        inner(x)
        inner(x * 2)
        return h

    return step, lambda: (h, n)


@case
def closure_cell_deleted():
    h = torch.zeros(2, 4)

    def fn(x):
        nonlocal h
        try:
            r = h + x
            del h
        except NameError:
            r = x * 3
            h = r
        return r

    def look():
        try:
            return h
        except NameError:
            return "none"

    return fn, look


@case
def default_argument_list():
    def fn(x, kept=[], n=[0]):
        kept[:] = [x * 2]
        n[0] += 1
        return kept[0] + 1

    return fn, lambda: (fn.__defaults__, fn.__kwdefaults__)


@case
def function_defaults_replaced():
    def fn(x, k=1.0):
        fn.__defaults__ = (k + 1.0,)
        return x * k

    return fn, lambda: fn.__defaults__


@case
def lru_cache_inside():
    calls = []

    @functools.lru_cache(maxsize=None)
    def table(n):
        calls.append(n)
        return torch.arange(float(n))

    def fn(x):
        return x + table(x.shape[1])

    def between(n):
        if n in (3, 6):
            table.cache_clear()

    return fn, lambda: (calls, table.cache_info().currsize), between


@case
def lru_cache_by_counter():
    class M:
        n = 0

        def __init__(self):
            self.table = functools.lru_cache(4)(lambda n: torch.full((4,), float(n)))

        def __call__(self, x):
            self.n = (self.n + 1) % 2
            return x + self.table(self.n)

    m = M()
    return m, lambda: (m.n, m.table.cache_info())


@case
def filled_once_then_hit():
    class M:
        def __init__(self):
            self.cache = {}

        def __call__(self, x):
            key = tuple(x.shape)
            if key not in self.cache:
                self.cache[key] = torch.arange(float(x.shape[1]))
            return x + self.cache[key]

    m = M()

    def between(n):
        if n == 3:
            m.cache.clear()
        if n == 5:
            return torch.ones(3, 4)
        if n == 7:
            m.cache[(2, 4)] = torch.zeros(4)

    return m, lambda: m, between


@case
def filled_once_with_input():
    class M:
        ref = None

        def __call__(self, x):
            if self.ref is None:
                self.ref = x
            return x - self.ref

    m = M()

    def between(n):
        if n == 4:
            m.ref = None
        if n == 6:
            m.ref.zero_()

    return m, lambda: m, between


@case
def kv_cache_grows():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.k, self.v = [], []

        def forward(self, x):
            self.k.append(x * 2)
            self.v.append(x * 3)
            k, v = torch.cat(self.k), torch.cat(self.v)
            return (x @ k.t()).softmax(-1) @ v

    m = M()

    def between(n):
        if n == 5:
            m.k.clear(), m.v.clear()

    return m, lambda: m, between


@case
def kv_cache_as_tuple():
    class M(nn.Module):
        past = None

        def forward(self, x):
            k, v = x * 2, x * 3
            if self.past is not None:
                k, v = torch.cat([self.past[0], k])[-4:], torch.cat([self.past[1], v])[-4:]
            self.past = (k, v)
            return (x @ k.t()).softmax(-1) @ v, self.past

    m = M()

    def between(n):
        if n == 6:
            m.past = None

    return m, lambda: m, between


@case
def static_cache_written_by_position():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache, self.pos = torch.zeros(16, 4), 0

        def forward(self, x):
            self.cache[self.pos : self.pos + 2] = x
            self.pos += 2
            return self.cache[: self.pos].sum(0)

    m = M()

    def between(n):
        if n == 5:
            m.pos = 0

    return m, lambda: m, between


# ---- containers


@case
def ring_buffer_in_list():
    class M:
        def __init__(self):
            self.buf, self.i = [torch.zeros(2, 4)] * 4, 0

        def __call__(self, x):
            self.buf[self.i] = x
            self.i = (self.i + 1) % 4
            return sum(self.buf)

    m = M()
    return m, lambda: m


@case
def ring_buffer_of_results():
    class M:
        def __init__(self):
            self.buf, self.i = [None] * 3, 0

        def __call__(self, x):
            old = self.buf[self.i]
            self.buf[self.i] = x * 2
            self.i = (self.i + 1) % 3
            return x if old is None else x + old

    m = M()

    def between(n):
        if n == 5:
            m.buf[:] = [None] * 3

    return m, lambda: m, between


@case
def deque_with_maxlen():
    class M:
        def __init__(self):
            self.q = collections.deque(maxlen=3)

        def __call__(self, x):
            self.q.append(x * 2)
            return torch.stack(list(self.q)).mean(0)

    m = M()

    def between(n):
        if n == 6:
            m.q.clear()

    return m, lambda: m, between


@case
def deque_with_maxlen_full():
    q = collections.deque([torch.zeros(2, 4)] * 3, maxlen=3)

    def fn(x):
        q.append(x)
        return q[0] + q[1] + q[2]

    return fn, lambda: q


@case
def deque_with_maxlen_unread():
    q = collections.deque(maxlen=2)

    def fn(x):
        q.append(x * 2)
        return x + 1

    return fn, lambda: q


@case
def deque_rotates():
    q = collections.deque([torch.full((2, 4), float(i)) for i in range(3)])

    def fn(x):
        q.rotate(1)
        return x + q[0]

    return fn, lambda: q


@case
def deque_maxlen_replaced_outside():
    class M:
        def __init__(self):
            self.q = collections.deque([0.0] * 3, maxlen=3)

        def __call__(self, x):
            self.q.append(x * 2)
            return x + self.q[-1]

    m = M()

    def between(n):
        if n == 4:
            m.q = collections.deque(m.q, maxlen=2)
        if n == 6:
            m.q = list(m.q)

    return m, lambda: m, between


@case
def queue_append_and_popleft():
    q = collections.deque([torch.zeros(2, 4), torch.ones(2, 4)])

    def fn(x):
        q.append(x * 2)
        return x + q.popleft()

    def between(n):
        if n == 5:
            q.append(torch.ones(2, 4))

    return fn, lambda: q, between


@case
def queue_append_and_pop_to_empty():
    q = []

    def fn(x):
        q.append(x * 2)
        q.append(x * 3)
        r = q.pop() + 1
        q.pop()
        return r

    def between(n):
        if n == 4:
            q.append("never read")

    return fn, lambda: q, between


@case
def list_grows_unread():
    hist = []

    def fn(x):
        hist.append(x * 2)
        return x + 1

    def between(n):
        if n == 5:
            hist.clear()

    return fn, lambda: hist, between


@case
def list_grows_with_input():
    hist = []

    def fn(x):
        hist.append(x)
        return x + 1

    return fn, lambda: hist


@case
def list_length_is_read():
    hist = []

    def fn(x):
        hist.append(x * 2)
        return x * len(hist)

    return fn, lambda: hist


@case
def list_of_numbers_grows():
    hist = []

    def fn(x):
        hist.append(tuple(x.shape))
        hist.append(1.5)
        return x * 2

    return fn, lambda: hist


@case
def list_summed():
    hist = []

    def fn(x):
        hist.append(x)
        if len(hist) > 3:
            del hist[0]
        return sum(hist)

    return fn, lambda: hist


@case
def list_replaced_each_call():
    class M:
        outs = ()

        def __call__(self, x):
            self.outs = [x * 2, x * 3]
            return self.outs

    m = M()

    def between(n):
        if n > 3:
            m.outs.append(1)

    return m, lambda: m, between


@case
def list_cleared_and_filled():
    outs = []

    def fn(x):
        outs.clear()
        for i in range(3):
            outs.append(x * i)
        return outs[-1]

    def between(n):
        if n == 4:
            outs.append("other")
        if n == 6:
            outs.clear()

    return fn, lambda: outs, between


@case
def list_returned_that_is_state():
    class M:
        def __init__(self):
            self.outs = [None]

        def __call__(self, x):
            self.outs[0] = x * 2
            return self.outs

    m = M()
    return m, lambda: m


@case
def list_insert_at_front():
    hist = [torch.zeros(2, 4)]

    def fn(x):
        hist.insert(0, x * 2)
        hist.pop()
        return hist[0] + 1

    return fn, lambda: hist


@case
def list_insert_grows():
    hist = []

    def fn(x):
        hist.insert(0, x * 2)
        return hist[-1] + 1

    return fn, lambda: hist


@case
def list_augmented():
    class M:
        def __init__(self):
            self.hist = []

        def __call__(self, x):
            self.hist += [x * 2]
            self.hist = self.hist[-2:]
            return self.hist[0]

    m = M()
    return m, lambda: m


@case
def list_augmented_keeps_identity():
    class M:
        def __init__(self):
            self.hist = []
            self.other = self.hist

        def __call__(self, x):
            self.hist += [x * 2]
            return x + 1

    m = M()
    return m, lambda: m


@case
def list_slice_assignment():
    hist = [torch.zeros(2, 4)] * 4

    def fn(x):
        hist[1:3] = [x, x * 2]
        hist[:1] = []
        hist.extend([x * 3])
        return hist[0] + hist[-1]

    return fn, lambda: hist


@case
def list_del_first():
    hist = [torch.zeros(2, 4)] * 12

    def fn(x):
        del hist[0]
        return x + hist[0]

    return fn, lambda: hist


@case
def list_sorted_and_reversed():
    hist = [3, 1, 2]

    def fn(x):
        hist.append(len(hist))
        hist.sort(reverse=bool(len(hist) % 2))
        return x * hist[0]

    return fn, lambda: hist


@case
def list_sorted_by_key_of_tensors():
    hist = [(2, torch.zeros(2, 4)), (1, torch.ones(2, 4))]

    def fn(x):
        hist.sort(key=lambda p: p[0])
        k, t = hist[0]
        hist[0] = (k + 2, t + x)
        return t

    return fn, lambda: hist


@case
def list_reverse():
    hist = [torch.zeros(2, 4), torch.ones(2, 4), 5]

    def fn(x):
        hist.reverse()
        return x * 2

    return fn, lambda: hist


@case
def list_item_rotates():
    hist = [torch.full((2, 4), float(i)) for i in range(3)]

    def fn(x):
        hist.append(hist.pop(0))
        return x + hist[0]

    return fn, lambda: hist


@case
def list_edited_in_place_items():
    hist = [torch.zeros(2, 4), torch.zeros(2, 4)]

    def fn(x):
        hist[0].add_(x)
        hist[1] = hist[0] * 2
        return hist[1]

    return fn, lambda: hist


@case
def list_contains_itself():
    hist = [None, None]

    def fn(x):
        hist[0] = x * 2
        hist[1] = hist
        return x + 1

    return fn, lambda: hist[0]


@case
def list_remove_and_index():
    hist = ["a", "b", "c"]

    def fn(x):
        k = hist[0]
        hist.remove(k)
        hist.append(k)
        return x * (1 + hist.index("a"))

    return fn, lambda: hist


@case
def heap_queue():
    heap = []
    n = itertools.count()

    def fn(x):
        heapq.heappush(heap, (-len(heap), x * 2))
        if len(heap) > 3:
            heapq.heappop(heap)
        return x + 1

    return fn, lambda: heap


@case
def bisect_insort():
    seen = []

    def fn(x):
        bisect.insort(seen, -len(seen))
        return x * (1 + len(seen))

    return fn, lambda: seen


@case
def tuple_grown_by_add():
    class M:
        hist = ()

        def __call__(self, x):
            self.hist += (x * 2,)
            return self.hist[0] + self.hist[-1]

    m = M()

    def between(n):
        if n == 5:
            m.hist = ()

    return m, lambda: m, between


@case
def tuple_of_two_windows():
    class M:
        hist = (None, None)

        def __call__(self, x):
            self.hist = (self.hist[1], x * 2)
            return self.hist[1] if self.hist[0] is None else self.hist[0] + self.hist[1]

    m = M()
    return m, lambda: m


@case
def lstm_state_tuple():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.state = nn.LSTMCell(4, 4), None

        def forward(self, x):
            self.state = self.cell(x, self.state)
            return self.state[0]

    m = M()

    def between(n):
        if n == 4:
            m.state = None
        if n == 6:
            m.state = [torch.zeros(2, 4), torch.ones(2, 4)]

    return m, lambda: m, between


@case
def gru_hidden_returned_and_kept():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.h = nn.GRU(4, 4), None

        def forward(self, x):
            y, self.h = self.gru(x[:, None], self.h)
            return y, self.h

    m = M()
    return m, lambda: m


@case
def dict_items_set():
    d = {}

    def fn(x):
        d["a"] = x * 2
        d["b"] = d["a"]
        return d["a"]

    def between(n):
        if n == 4:
            d.clear()
        if n == 6:
            d["z"] = 1

    return fn, lambda: d, between


@case
def dict_returned_that_is_state():
    class M:
        def __init__(self):
            self.cache = {}

        def __call__(self, x):
            self.cache["h"] = self.cache.get("h", 0) + x
            return self.cache

    m = M()

    def between(n):
        if n == 5:
            m.cache = {}

    return m, lambda: m, between


@case
def dict_get_setdefault_pop_update():
    d = {"n": 0}

    def fn(x):
        h = d.get("h", None)
        base = d.setdefault("base", torch.ones(2, 4))
        tmp = d.pop("tmp", 1.0)
        d.update(h=x * 2 if h is None else h + x, tmp=2.0)
        d["n"] += 1
        return d["h"] * tmp + base

    def between(n):
        if n == 4:
            d.pop("h")
        if n == 6:
            d.pop("tmp")
            d.pop("base")

    return fn, lambda: d, between


@case
def dict_key_moves_to_end():
    d = {"a": torch.zeros(2, 4), "b": torch.ones(2, 4), "c": 3}

    def fn(x):
        v = d.pop("a")
        d["a"] = v + x
        return d["a"]

    return fn, lambda: d


@case
def dict_keys_rotate():
    d = {"a": 1.0, "b": 2.0, "c": 3.0}

    def fn(x):
        k = next(iter(d))
        d[k] = d.pop(k)
        return x * d[k]

    return fn, lambda: d


@case
def dict_order_of_new_keys_by_turns():
    d = {}

    def fn(x):
        if "z" in d:
            d.clear()
            d["a"], d["z2"] = x, x * 2
        else:
            d.clear()
            d["z2"], d["z"], d["a"] = x * 3, x, x * 2
        return x + 1

    return fn, lambda: d


@case
def dict_order_of_insertion():
    class M:
        def __init__(self):
            self.d = {}

        def __call__(self, x):
            self.d.clear()
            self.d["b"] = x * 2
            self.d["a"] = x * 3
            self.d["c"] = 1
            return x + 1

    m = M()

    def between(n):
        if n == 3:
            m.d.clear()
        if n == 4:
            m.d = {"a": 1, "b": 2}
        if n == 6:
            m.d = {"c": 1, "q": 5, "a": 1, "b": 2}

    return m, lambda: m, between


@case
def dict_grows():
    d = {}

    def fn(x):
        d[f"k{len(d)}"] = x * 2
        return x + 1

    return fn, lambda: d


@case
def dict_sorted_keys():
    d = {"b": torch.zeros(2, 4), "a": torch.ones(2, 4)}

    def fn(x):
        for k in sorted(d):
            d[k] = d[k] + x
        return torch.stack([d[k] for k in d]).sum(0)

    def between(n):
        if n == 5:
            d["c"] = torch.ones(2, 4)

    return fn, lambda: d, between


@case
def dict_iterated_while_writing():
    d = {"a": torch.zeros(2, 4), "b": torch.ones(2, 4)}

    def fn(x):
        for k, v in d.items():
            d[k] = v + x
        return sum(d.values())

    return fn, lambda: d


@case
def dict_changes_size_while_iterated():
    d = {"a": torch.zeros(2, 4)}

    def fn(x):
        y = x * 2
        d["a"] = y
        for k in d:
            d[k + "x"] = y
        return y

    return fn, lambda: d


@case
def dict_copied_and_replaced():
    class M:
        def __init__(self):
            self.d = {"h": torch.zeros(2, 4), "n": 0}

        def __call__(self, x):
            self.d = {**self.d, "h": self.d["h"] + x, "n": self.d["n"] + 1}
            return self.d["h"]

    m = M()
    return m, lambda: m


@case
def dict_copied_by_c():
    class M:
        def __init__(self):
            self.d = {"h": torch.zeros(2, 4)}

        def __call__(self, x):
            before = self.d.copy()
            self.d["h"] = x * 2
            self.before = before
            return x + 1

    m = M()
    return m, lambda: m


@case
def vars_copied_by_c():
    class M:
        h = n = 0

        def __call__(self, x):
            self.snap = dict(self.__dict__, snap=None)
            self.h = x * 2
            self.n += 1
            return x + 1

    m = M()
    return m, lambda: m


@case
def object_copied_by_copy():
    class S:
        pass

    class M:
        def __init__(self):
            self.s = S()
            self.s.h, self.s.n = torch.zeros(2, 4), 0

        def __call__(self, x):
            self.prev = copy.copy(self.s)
            self.s.h = self.s.h + x
            self.s.n += 1
            return self.s.h

    m = M()
    return m, lambda: m


@case
def object_deepcopied_in_the_call():
    class M:
        def __init__(self):
            self.s = SimpleNamespace(h=torch.zeros(2, 4), n=0)

        def __call__(self, x):
            s = copy.deepcopy(self.s)
            s.h, s.n = s.h + x, s.n + 1
            self.s = s
            return s.h

    m = M()
    return m, lambda: m


@case
def dict_compared():
    d = {"n": 0}

    def fn(x):
        same = d == {"n": 1}
        d["n"] = (d["n"] + 1) % 3
        return x * (2 if same else 3)

    return fn, lambda: d


@case
def dict_pickled():
    class M:
        def __init__(self):
            self.n, self.d, self.size = 0, {"k": 0}, 0

        def __call__(self, x):
            self.n += 1
            self.d["k"] += 1
            self.size = json.dumps(self.d) + pickle.loads(pickle.dumps(f"{len(vars(self))}"))
            return x * 2

    m = M()
    return m, lambda: m


@case
def dict_values_listed():
    d = {"a": 1, "b": 1}

    def fn(x):
        total = sum(list(d.values()))
        d["a"] += 1
        return x * 2 if total < 5 else x * 3

    return fn, lambda: d


@case
def dict_with_tensor_keys():
    d = {}

    def fn(x):
        d.clear()
        r = x * 2
        d[r] = 1
        return r

    return fn, lambda: (list(d), list(d.values()))


@case
def dict_with_odd_keys():
    d = {}

    def fn(x):
        d[None], d[1], d[(1, 2)], d[torch.float32], d[2.5] = x, x * 2, x * 3, x * 4, x * 5
        return d[(1, 2)]

    return fn, lambda: d


@case
def dict_with_equal_keys():
    d = {1: None}

    def fn(x):
        d[True] = x * 2
        d[1.0] = x * 3
        return x

    return fn, lambda: d


@case
def nested_dict_of_lists():
    d = {"a": {"l": [torch.zeros(2, 4), {"n": 0}]}}

    def fn(x):
        inner = d["a"]["l"]
        inner[0] = inner[0] + x
        inner[1]["n"] += 1
        inner[1]["last"] = x
        return inner[0]

    def between(n):
        if n == 4:
            d["a"]["l"] = [torch.ones(2, 4), {"n": 7}]
        if n == 6:
            d["a"] = {"l": [torch.ones(2, 4), {"n": 7}]}

    return fn, lambda: d, between


@case
def nested_dict_replaced():
    class M:
        d = None

        def __call__(self, x):
            h = 0 if self.d is None else self.d["a"]["l"][0]
            self.d = {"a": {"l": [h + x, (x, "s", None)]}, "n": [1, [2, x.shape]]}
            return self.d["a"]["l"][0]

    m = M()

    def between(n):
        if n == 4:
            m.d["a"]["l"].append(5)
        if n == 6:
            m.d = None

    return m, lambda: m, between


@case
def ordered_dict_moved():
    d = collections.OrderedDict(a=torch.zeros(2, 4), b=torch.ones(2, 4))

    def fn(x):
        d.move_to_end("a")
        d["a"] = d["a"] + x
        return d["a"]

    def between(n):
        if n == 4:
            d.move_to_end("b")

    return fn, lambda: d, between


@case
def ordered_dict_lru():
    d = collections.OrderedDict()

    class M:
        n = 0

        def __call__(self, x):
            self.n = (self.n + 1) % 3
            d[self.n] = x * 2
            d.move_to_end(self.n)
            if len(d) > 2:
                d.popitem(last=False)
            return x + 1

    m = M()
    return m, lambda: (m.n, d)


@case
def ordered_dict_popitem():
    d = collections.OrderedDict((i, torch.full((2, 4), float(i))) for i in range(12))

    def fn(x):
        k, v = d.popitem(last=False)
        return x + v

    return fn, lambda: d


@case
def defaultdict_of_lists():
    d = collections.defaultdict(list)

    def fn(x):
        d["a"].append(x * 2)
        d["b"]
        return x + 1

    def between(n):
        if n == 4:
            d.clear()

    return fn, lambda: d, between


@case
def defaultdict_of_ints():
    d = collections.defaultdict(int)

    def fn(x):
        d["a"] += 1
        d[tuple(x.shape)] += 2
        return x + 1

    def between(n):
        if n == 4:
            d.clear()

    return fn, lambda: d, between


@case
def counter_of_collections():
    d = collections.Counter()

    def fn(x):
        d["a"] += 1
        d.update(["b", "c", "b"])
        return x * (1 + d["never"])

    return fn, lambda: d


@case
def counter_of_collections_read():
    d = collections.Counter()

    def fn(x):
        d["ab"[len(d) % 2]] += 1
        return x * d["a"]

    return fn, lambda: (d, d.most_common())


@case
def chain_map():
    base, top = {"a": 1.0}, {}
    d = collections.ChainMap(top, base)

    def fn(x):
        d["a"] = d["a"] + 1.0
        d["h"] = x * 2
        return x * d["a"]

    def between(n):
        if n == 4:
            top.clear()

    return fn, lambda: (base, top), between


@case
def user_dict():
    d = collections.UserDict()

    def fn(x):
        d["h"] = d.get("h", 0) + x
        return d["h"]

    return fn, lambda: d.data


@case
def dict_subclass_with_setitem():
    class D(dict):
        sets = 0

        def __setitem__(self, k, v):
            self.sets += 1
            super().__setitem__(k, v)

    d = D()

    def fn(x):
        d["h"] = x * 2
        return d["h"]

    return fn, lambda: d


@case
def dict_subclass_with_missing():
    class D(dict):
        def __missing__(self, k):
            self[k] = torch.full((4,), float(len(k)))
            return self[k]

    d = D()

    def fn(x):
        r = x + d["abc"]
        d["h"] = r
        return r

    def between(n):
        if n == 4:
            d.clear()

    return fn, lambda: d, between


@case
def list_subclass():
    class L(list):
        def append(self, v):
            self.n = getattr(self, "n", 0) + 1
            super().append(v)

    l = L()

    def fn(x):
        l.append(x * 2)
        return x + 1

    return fn, lambda: (l, l.n)


@case
def set_grows():
    s = set()

    def fn(x):
        s.add(len(s))
        return x * 2

    return fn, lambda: s


@case
def set_same_each_call():
    s = set()

    def fn(x):
        s.add(tuple(x.shape))
        return x * 2

    def between(n):
        if n in (3, 6):
            s.clear()

    return fn, lambda: s, between


@case
def set_of_tensors():
    s = set()

    def fn(x):
        r = x * 2
        s.clear()
        s.add(r)
        return r

    return fn, lambda: list(s)


@case
def set_attribute_replaced():
    class M:
        s = frozenset()

        def __call__(self, x):
            self.s = self.s | {len(self.s) % 3}
            self.t = {1, 2}
            return x * len(self.s)

    m = M()
    return m, lambda: m


@case
def bytearray_state():
    b = bytearray(4)

    def fn(x):
        b[0] += 1
        b.append(7)
        return x * 2

    return fn, lambda: b


@case
def bytes_attribute():
    class M:
        b = b""

        def __call__(self, x):
            self.b = (self.b + b"x")[-3:]
            return x * (1 + len(self.b))

    m = M()
    return m, lambda: m


@case
def numpy_array_stored():
    class M:
        a = None

        def __call__(self, x):
            self.a = (x * 2).numpy()
            return x + 1

    m = M()
    return m, lambda: m


@case
def numpy_array_written():
    a = np.zeros(3)

    def fn(x):
        a[0] += 1
        return x * 2

    return fn, lambda: a


@case
def numpy_array_shares_with_tensor():
    a = np.zeros((2, 4), dtype=np.float32)
    t = torch.from_numpy(a)

    class M:
        def __call__(self, x):
            t.add_(x)
            self.h = t * 2
            self.t = t
            return self.h

    m = M()
    return m, lambda: (a, t, m)


@case
def floats_from_item():
    class M:
        avg = 0.0

        def __call__(self, x):
            self.last = x.sum().item()
            self.avg = 0.9 * self.avg + 0.1 * self.last
            return x * 2

    m = M()
    return m, lambda: m


@case
def floats_from_item_returned_and_listed():
    hist = []

    def fn(x):
        loss = x.pow(2).mean()
        hist.append(float(loss))
        return loss, max(hist)

    return fn, lambda: hist


@case
def best_so_far():
    class M:
        best, best_x = float("-inf"), None

        def __call__(self, x):
            s = x.sum().item()
            if s > self.best:
                self.best, self.best_x = s, x
            return self.best_x + 1

    m = M()
    return m, lambda: m


@case
def list_from_tolist():
    class M:
        rows = None

        def __call__(self, x):
            self.rows = (x * 10).long().tolist()
            return x * 2

    m = M()
    return m, lambda: m


@case
def strings_from_shapes():
    class M:
        text = ""

        def __call__(self, x):
            self.text = f"{tuple(x.shape)} {x.dtype} {x.device} {x.numel()}"
            self.shape, self.dtype, self.device = x.shape, x.dtype, x.device
            return x * 2

    m = M()

    def between(n):
        if n == 5:
            return torch.ones(3, 4)

    return m, lambda: m, between


@case
def branch_writes():
    class M:
        a = b = None

        def __call__(self, x):
            if x.sum() > 0:
                self.a = x * 2
                return self.a
            self.b = x * 3
            return self.b

    m = M()
    return m, lambda: m


@case
def branch_writes_hidden_state():
    class M:
        def __init__(self):
            self.h, self.hits = torch.zeros(2, 4), 0

        def __call__(self, x):
            if x[0, 0] > 0:
                self.h = self.h + x
                self.hits += 1
            return self.h * 2

    m = M()
    return m, lambda: m


@case
def branch_on_state():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h + x
            if self.h.abs().amax() > 2:
                self.h = torch.zeros(2, 4)
            return self.h

    m = M()
    return m, lambda: m


@case
def branch_before_writes_after():
    class M:
        def __init__(self):
            self.log = []

        def __call__(self, x):
            self.log.append("in")
            y = x * 2 if x.sum() > 0 else x * 3
            self.log.append("out")
            self.y = y
            return y

    m = M()
    return m, lambda: m


@case
def writes_in_a_data_loop():
    class M:
        n = 0

        def __call__(self, x):
            self.n = 0
            while x.abs().amax() > 0.5:
                x = x * 0.5
                self.n += 1
            self.out = x
            return x

    m = M()
    return m, lambda: m


# ---- objects


@case
def namespace_mutated():
    s = SimpleNamespace(h=torch.zeros(2, 4), n=0)

    def fn(x):
        s.h = s.h + x
        s.n += 1
        s.last = x
        return s.h

    def between(n):
        if n == 4:
            s.__init__(h=torch.ones(2, 4), n=0)
        if n == 6:
            s.other = "not read"

    return fn, lambda: s, between


@case
def namespace_replaced():
    class M:
        def __init__(self):
            self.s = SimpleNamespace(h=torch.zeros(2, 4), n=0)

        def __call__(self, x):
            self.s = SimpleNamespace(h=self.s.h + x, n=self.s.n + 1)
            return self.s.h

    m = M()

    def between(n):
        if n == 4:
            m.s.h = torch.ones(2, 4)
        if n == 6:
            m.s = SimpleNamespace(h=torch.ones(2, 4), n=0, extra=1)

    return m, lambda: m, between


@case
def namespace_replaced_without_counter():
    class M:
        def __init__(self):
            self.s = SimpleNamespace(h=torch.zeros(2, 4), tag="a")

        def __call__(self, x):
            old = self.s
            self.s = SimpleNamespace(h=old.h + x, tag=old.tag)
            return self.s.h

    m = M()

    def between(n):
        if n == 4:
            m.s.tag = "b"
        if n == 6:
            m.s = SimpleNamespace(tag="c", h=torch.zeros(2, 4))

    return m, lambda: m, between


@case
def dataclass_mutated():
    @dataclasses.dataclass
    class S:
        h: typing.Any
        n: int = 0

    s = S(torch.zeros(2, 4))

    def fn(x):
        s.h = s.h + x
        s.n += 1
        return s

    return fn, lambda: s


@case
def dataclass_replaced():
    @dataclasses.dataclass(frozen=True)
    class S:
        h: typing.Any
        tag: str = "t"

    class M:
        s = S(torch.zeros(2, 4))

        def __call__(self, x):
            self.s = dataclasses.replace(self.s, h=self.s.h + x)
            return self.s

    m = M()

    def between(n):
        if n == 4:
            m.s = S(torch.ones(2, 4), "u")

    return m, lambda: m, between


@case
def dataclass_with_post_init_replaced():
    made = []

    @dataclasses.dataclass
    class S:
        h: typing.Any

        def __post_init__(self):
            made.append(1)
            self.twice = self.h * 2

    class M:
        s = None

        def __call__(self, x):
            self.s = S(x + 1)
            return self.s.twice

    m = M()
    return m, lambda: (m, made)


@case
def dataclass_asdict():
    @dataclasses.dataclass
    class S:
        h: typing.Any
        n: int = 0

    s = S(torch.zeros(2, 4))
    kept = {}

    def fn(x):
        kept.update(dataclasses.asdict(s))
        s.h = x * 2
        s.n += 1
        return s.h

    return fn, lambda: (s, kept)


@case
def named_tuple_state():
    class S(typing.NamedTuple):
        h: typing.Any
        n: int

    class M:
        s = S(torch.zeros(2, 4), 0)

        def __call__(self, x):
            self.s = self.s._replace(h=self.s.h + x, n=(self.s.n + 1) % 2)
            return self.s

    m = M()
    return m, lambda: m


@case
def own_object_replaced():
    class S:
        def __init__(self, h, prev=None):
            self.h = h
            self.n = 0 if prev is None else (prev.n + 1) % 2

    class M:
        def __init__(self):
            self.s = S(torch.zeros(2, 4))

        def __call__(self, x):
            self.s = S(self.s.h + x, self.s)
            return self.s.h

    m = M()
    return m, lambda: m


@case
def own_object_with_class_counter():
    class S:
        made = 0

        def __init__(self, h):
            S.made += 1
            self.h = h

    class M:
        def __call__(self, x):
            self.s = S(x * 2)
            return self.s.h

    m = M()
    return m, lambda: (m, S.made)


@case
def own_object_with_finalizer():
    gone = []

    class S:
        def __init__(self, h):
            self.h = h

        def __del__(self):
            gone.append(1)

    class M:
        s = None

        def __call__(self, x):
            self.s = S(x * 2)
            return self.s.h

    m = M()
    return m, lambda: (m, len(gone))


@case
def own_object_in_weak_set():
    alive = weakref.WeakSet()

    class S:
        def __init__(self, h):
            self.h = h
            alive.add(self)

    class M:
        s = None

        def __call__(self, x):
            self.s = S(x * 2)
            return self.s.h

    m = M()
    return m, lambda: (m, len(alive))


@case
def own_object_linked_to_previous():
    class S:
        def __init__(self, h, prev):
            self.h, self.prev = h, prev

    class M:
        s = None

        def __call__(self, x):
            self.s = S(x * 2, self.s)
            return self.s.h

    m = M()
    return m, lambda: m


@case
def own_object_linked_to_owner():
    class S:
        pass

    class M:
        s = None

        def __call__(self, x):
            s = S()
            s.owner, s.h, s.me = self, x * 2, s
            self.s = s
            return s.h

    m = M()
    return m, lambda: m


@case
def object_with_slots_replaced():
    class S:
        __slots__ = ("h", "unset")

        def __init__(self, h):
            self.h = h

    class M:
        def __init__(self):
            self.s = S(torch.zeros(2, 4))

        def __call__(self, x):
            self.s = S(self.s.h + x)
            return self.s.h

    m = M()

    def between(n):
        if n == 5:
            m.s.unset = 3

    return m, lambda: m, between


@case
def object_with_odd_equality():
    class S:
        def __init__(self, h):
            self.h = h

        def __eq__(self, other):
            return True

        __hash__ = None

    class M:
        s = S(0)

        def __call__(self, x):
            self.s = S(x * 2)
            return self.s.h

    m = M()
    return m, lambda: m


@case
def two_modules_share_state():
    shared = SimpleNamespace(h=torch.zeros(2, 4), log=[])

    class M(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k, self.shared = k, shared

        def forward(self, x):
            self.shared.h = self.shared.h * 0.5 + x * self.k
            self.shared.last = self.shared.h
            return self.shared.h

    m = nn.Sequential(M(1.0), M(2.0))

    def between(n):
        if n == 4:
            m[1].shared.h = torch.ones(2, 4)
        if n == 6:
            m[1].shared = SimpleNamespace(h=torch.ones(2, 4), log=[])

    return m, lambda: (m, shared), between


@case
def one_module_twice_in_a_call():
    class C(nn.Module):
        h = 0

        def forward(self, x):
            self.h = self.h * 0.5 + x
            return self.h

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = C()

        def forward(self, x):
            return self.c(self.c(x)), self.c.h

    m = M()
    return m, lambda: m


@case
def state_passed_between_modules():
    class A(nn.Module):
        def forward(self, x):
            self.out = x * 2
            return self.out

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = A(), A()

        def forward(self, x):
            self.a(x)
            return self.b(self.a.out) + self.a.out

    m = M()
    return m, lambda: m


@case
def submodule_replaced_in_the_call():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Tanh()

        def forward(self, x):
            r = self.a(x)
            self.a, self.b = self.b, self.a
            return r

    m = M()
    return m, lambda: m


@case
def training_flag_toggled():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.d = nn.Dropout(0.5)

        def forward(self, x):
            self.train(not self.training)
            return self.d(x)

    m = M()
    return m, lambda: m


@case
def result_is_namespace():
    def fn(x):
        y = x * 2
        return SimpleNamespace(y=y, again=y, row=y[0], n=1, name="a")

    return fn, lambda: ()


@case
def result_is_own_object():
    class Out:
        kind = "out"

        def __init__(self, y):
            self.y, self.items, self.d = y, [y, y + 1], {"k": (y, None)}

        @property
        def twice(self):
            return self.y * 2

    return (lambda x: Out(x * 2)), lambda: ()


@case
def result_is_own_object_counted():
    class Out:
        made = 0

        def __init__(self, y):
            type(self).made += 1
            self.y, self.number = y, type(self).made

    return (lambda x: Out(x * 2)), lambda: Out.made


@case
def result_is_cyclic_object():
    class Out:
        pass

    def fn(x):
        o = Out()
        o.y, o.me, o.l = x * 2, o, []
        o.l.append(o)
        return o

    return fn, lambda: ()


@case
def result_is_nested_dataclass():
    @dataclasses.dataclass
    class In:
        a: typing.Any

    @dataclasses.dataclass
    class Out:
        i: typing.Any
        rest: typing.Any = dataclasses.field(default_factory=list)

    def fn(x):
        i = In(x * 2)
        return Out(i, [i, In(i.a), x.shape])

    return fn, lambda: ()


@case
def result_is_singleton_mutated():
    class Out:
        pass

    out = Out()

    def fn(x):
        out.y = x * 2
        out.n = getattr(out, "n", 0) + 1
        return out

    return fn, lambda: out


@case
def result_is_the_module():
    class M(nn.Module):
        def forward(self, x):
            self.y = x * 2
            return self

    m = M()
    return m, lambda: m


@case
def result_is_input_in_object():
    def fn(x):
        return SimpleNamespace(x=x, y=x * 2)

    return fn, lambda: ()


@case
def result_object_is_state():
    class M:
        def __call__(self, x):
            self.out = SimpleNamespace(y=x * 2)
            self.outs = [self.out]
            return self.out

    m = M()

    def between(n):
        if n > 2:
            m.out.y.zero_()
            m.out.z = 1

    return m, lambda: m, between


@case
def result_object_holds_state_container():
    class M:
        def __init__(self):
            self.cache = {"h": torch.zeros(2, 4)}

        def __call__(self, x):
            self.cache["h"] = self.cache["h"] + x
            return SimpleNamespace(y=x * 2, cache=self.cache, owner=self)

    m = M()
    return m, lambda: m


@case
def result_is_exception_object():
    def fn(x):
        e = ValueError("a", x * 2)
        e.y = x * 3
        return e

    return fn, lambda: ()


@case
def result_is_defaultdict_and_counter():
    def fn(x):
        d = collections.defaultdict(list)
        d["a"].append(x * 2)
        return d, collections.Counter("aab"), collections.OrderedDict(b=x * 3, a=x)

    return fn, lambda: ()


@case
def result_is_set_of_objects():
    class Out:
        def __init__(self, y):
            self.y = y

    return (lambda x: ({Out(x * 2)}, {1, 2}, frozenset([3]))), lambda: ()


@case
def result_is_dict_subclass_with_attributes():
    class D(dict):
        pass

    def fn(x):
        d = D(y=x * 2)
        d.extra = x * 3
        return d

    return fn, lambda: ()


@case
def result_is_function_or_class():
    def fn(x):
        y = x * 2

        def later():
            return y

        return later, type("T", (), {"y": 1}), len

    return fn, lambda: ()


@case
def result_is_generator():
    def fn(x):
        y = x * 2
        return (y + i for i in range(3))

    return (lambda x: list(fn(x))), lambda: ()


@case
def result_is_bare_generator():
    class M:
        last = None

        def gen(self, x):
            for i in range(2):
                self.last = x * i
                yield self.last

        def __call__(self, x):
            return self.gen(x)

    m = M()
    return m, lambda: m


@case
def result_is_custom_new():
    class Out:
        pool = []

        def __new__(cls, y):
            o = cls.pool[0] if cls.pool else object.__new__(cls)
            cls.pool[:] = [o]
            return o

        def __init__(self, y):
            self.y = y

    return (lambda x: Out(x * 2)), lambda: Out.pool


@case
def result_is_model_output_with_cache():
    class Cache:
        def __init__(self):
            self.k = []

        def update(self, k):
            self.k.append(k)
            return torch.cat(self.k)[-2:]

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = Cache()

        def forward(self, x):
            y = self.cache.update(x * 2)
            return SimpleNamespace(logits=y, past=self.cache)

    m = M()
    return m, lambda: m


@case
def result_none_only_state():
    class M:
        h = 0

        def __call__(self, x):
            self.h = self.h + x

    m = M()
    return m, lambda: m


@case
def result_plain_number():
    class M:
        h = 0

        def __call__(self, x):
            self.h = self.h + x
            return 5

    m = M()
    return m, lambda: m


# ---- exceptions


@case
def raises_every_fourth_call():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            self.a = x * 2
            if self.n % 4 == 0:
                raise ValueError(f"call {self.n}")
            self.b = x * 3
            return self.b

    m = M()
    return m, lambda: m


@case
def raises_every_third_caught():
    class M:
        n, errors = 0, 0

        def step(self, x):
            self.a = x * 2
            if self.n % 3 == 0:
                raise ValueError
            self.b = x * 3

        def __call__(self, x):
            self.n += 1
            try:
                self.step(x)
            except ValueError:
                self.errors += 1
            return self.a

    m = M()
    return m, lambda: m


@case
def raises_on_data_after_writes():
    class M:
        def __init__(self):
            self.h, self.log = torch.zeros(2, 4), []

        def __call__(self, x):
            self.h = self.h + x
            self.log.append(1)
            if x.sum() > 0:
                raise RuntimeError("positive")
            self.done = self.h
            return self.h

    m = M()
    return m, lambda: m


@case
def raises_for_bad_state_after_writes():
    class M:
        def __init__(self):
            self.h, self.n = torch.zeros(2, 4), 0

        def __call__(self, x):
            self.n += 1
            self.last = x
            self.h = self.h + x
            return self.h * 2

    m = M()

    def between(n):
        if n == 4:
            m.h = torch.zeros(3, 3)
        if n == 5:
            m.h = "text"
        if n == 6:
            m.h = torch.zeros(2, 4)

    return m, lambda: m, between


@case
def raises_for_bad_input_after_writes():
    class M:
        def __init__(self):
            self.h, self.log = torch.zeros(2, 4), []

        def __call__(self, x):
            self.log.append(tuple(x.shape))
            self.last = x
            self.h = self.h + x
            return self.h * 2

    m = M()

    def between(n):
        if n in (3, 5):
            return torch.ones(3, 3)

    return m, lambda: m, between


@case
def finally_writes():
    class M:
        n, depth = 0, 0

        def __call__(self, x):
            self.depth += 1
            try:
                self.n = (self.n + 1) % 3
                if self.n == 0:
                    raise KeyError("k")
                return x * 2
            finally:
                self.depth -= 1
                self.ended = True

    m = M()
    return m, lambda: m


@case
def context_manager_restores():
    class M:
        mode = "a"

        @contextlib.contextmanager
        def set_mode(self, mode):
            old, self.mode = self.mode, mode
            try:
                yield
            finally:
                self.mode = old

        def __call__(self, x):
            with self.set_mode("b"):
                y = x * len(self.mode)
            self.y = y
            return y

    m = M()
    return m, lambda: m


@case
def key_error_caught_then_filled():
    d = {}

    def fn(x):
        try:
            h = d["h"]
        except KeyError:
            h = d["h"] = torch.zeros(2, 4)
        d["h"] = h + x
        return d["h"]

    def between(n):
        if n in (3, 6):
            del d["h"]

    return fn, lambda: d, between


@case
def exception_object_stored():
    class M:
        err = None

        def __call__(self, x):
            try:
                raise ValueError("e")
            except ValueError as e:
                self.err = e
            return x * 2

    m = M()
    return m, lambda: (type(m.err), m.err.args)


# ---- other places


@case
def context_variable():
    var = contextvars.ContextVar("v", default=None)

    def fn(x):
        old = var.get()
        var.set(x * 2)
        return x if old is None else x + old

    def between(n):
        if n == 4:
            var.set(None)

    return fn, lambda: var.get(), between


@case
def environment():
    name = f"EFFECTS_{next(_numbers)}"

    def fn(x):
        os.environ[name] = str(int(os.environ.get(name, "0")) + 1)
        return x * 2

    return fn, lambda: os.environ.get(name)


@case
def environment_same_value():
    name = f"EFFECTS_{next(_numbers)}"

    def fn(x):
        os.environ[name] = "1"
        return x * 2

    def between(n):
        if n in (3, 6):
            os.environ.pop(name, None)

    return fn, lambda: os.environ.get(name), between


@case
def thread_local():
    local = threading.local()

    def fn(x):
        local.h = getattr(local, "h", 0) + x
        return local.h

    return fn, lambda: local.h


@case
def thread_watches():
    class M:
        def __init__(self):
            self.h, self.n = torch.zeros(2, 4), 0

        def __call__(self, x):
            self.n += 1
            self.h = x * 2
            self.h = self.h + 1
            return self.h

    m, seen, stop = M(), set(), threading.Event()

    def watch():
        end = time.monotonic() + 10
        while not stop.is_set() and time.monotonic() < end:
            seen.update({type(m.h).__name__, type(m.n).__name__})
            time.sleep(0.0002)

    thread = threading.Thread(target=watch, daemon=True)

    def between(n):
        if n == 0:
            thread.start()
        if n == 7:
            stop.set()
            thread.join()

    return m, lambda: (m, sorted(seen - {"Tensor", "int"})), between


@case
def called_from_other_thread():
    class M:
        h, n = 0, 0

        def __call__(self, x):
            self.n += 1
            self.h = self.h + x
            return self.h

    m = M()

    def between(n):
        if n in (3, 5):
            t = threading.Thread(target=lambda: m(torch.ones(2, 4)))
            t.start(), t.join()

    return m, lambda: m, between


@case
def weak_reference_to_result():
    class M:
        ref = None

        def __call__(self, x):
            alive = self.ref is not None and self.ref() is not None
            r = x * 2
            self.ref = weakref.ref(r)
            return r if not alive else r + 1

    m = M()
    return m, lambda: m


@case
def weak_key_dictionary():
    class K:
        pass

    k, d = K(), weakref.WeakKeyDictionary()

    def fn(x):
        d[k] = d.get(k, 0) + x
        return d[k]

    return fn, lambda: list(d.values())


@case
def weak_value_dictionary():
    d = weakref.WeakValueDictionary()

    def fn(x):
        r = x * 2
        d["r"] = r
        return r

    return fn, lambda: sorted(d)


@case
def generator_stored():
    class M:
        def __call__(self, x):
            self.gen = (i for i in range(3))
            self.h = x * 2
            return self.h

    m = M()
    return m, lambda: (m.h, list(m.gen))


@case
def generator_advanced():
    def numbers():
        n = 0
        while True:
            n += 1
            yield n

    gen = numbers()

    def fn(x):
        return x * next(gen)

    return fn, lambda: gen.gi_frame.f_locals["n"]


@case
def generator_with_tensor_state_sent():
    def acc():
        h = 0
        while True:
            x = yield h
            h = h + x

    gen = acc()
    next(gen)

    def fn(x):
        return gen.send(x)

    return fn, lambda: gen.gi_frame.f_locals["h"]


@case
def iterator_advanced():
    it = itertools.cycle([1.0, 2.0, 3.0])
    count = itertools.count()

    def fn(x):
        next(count)
        return x * next(it)

    return fn, lambda: repr(count)


@case
def python_random_advanced():
    rng = random.Random(1)

    class M:
        def __call__(self, x):
            self.k = rng.random()
            return x * self.k

    m = M()
    return m, lambda: (m, rng.random.__self__.getstate()[1][-1])


@case
def torch_generator_advanced():
    gen = torch.Generator().manual_seed(3)

    class M:
        def __call__(self, x):
            self.noise = torch.randn(2, 4, generator=gen)
            return x + self.noise

    m = M()
    return m, lambda: (m, gen.get_state())


@case
def sys_modules_written():
    name = f"effects_made_{next(_numbers)}"
    sys.modules[name] = types.ModuleType(name)

    def fn(x):
        sys.modules[name].h = x * 2
        return x + 1

    return fn, lambda: sys.modules[name].h


@case
def module_attribute_of_other_module():
    mod = space("n = 0\nh = None")

    def fn(x):
        mod.n += 1
        mod.h = x if mod.h is None else mod.h + x
        return mod.h

    def between(n):
        if n == 4:
            mod.h = None

    return fn, lambda: (mod.n, mod.h), between


@case
def default_dtype_toggled():
    class M:
        n = 0

        def __call__(self, x):
            old = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                self.z = torch.zeros(2)
            finally:
                torch.set_default_dtype(old)
            return x * 2

    m = M()
    return m, lambda: (m, torch.get_default_dtype())


# ---- from outside


@case
def other_method_reads_between():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.h, self.n, self.log = torch.zeros(2, 4), 0, []

        def forward(self, x):
            self.n += 1
            self.h = self.h + x
            self.log.append(self.h)
            return self.h

        def flush(self):
            self.total, self.log = sum(self.log), []
            return self.total / self.n

    m, kept = M(), []

    def between(n):
        if n in (2, 5, 7):
            kept.append(m.flush())

    return m, lambda: (m, kept), between


@case
def deep_copied_between():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.h, self.n = nn.Linear(4, 4), None, 0

        def forward(self, x):
            self.n += 1
            self.h = x if self.h is None else self.lin(self.h) + x
            return self.h

    m, copies = M(), []

    def between(n):
        if n in (2, 5):
            copies.append(copy.deepcopy(m))
            copies[-1](torch.ones(2, 4))

    return m, lambda: (m, copies), between


@case
def called_eagerly_between():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.h, self.n = torch.zeros(2, 4), 0

        def forward(self, x):
            self.n += 1
            self.h = self.h * 0.5 + x
            return self.h

    m = M()

    def between(n):
        if n in (2, 4, 5):
            m(torch.ones(2, 4))

    return m, lambda: m, between


@case
def state_given_as_input():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h + x * 2
            return self.h

    m = M()

    def between(n):
        if n in (3, 4, 6):
            return m.h

    return m, lambda: m, between


@case
def view_of_state_given_as_input():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.last = x
            self.h = self.h + x * 2
            return self.h

    m = M()

    def between(n):
        if n in (3, 4, 6):
            return m.h.view(4, 2).view(2, 4)

    return m, lambda: m, between


@case
def state_given_as_input_and_written():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h.add_(1)
            y = x * 2
            self.h = self.h + y
            return y

    m = M()

    def between(n):
        if n in (3, 4, 6):
            return m.h

    return m, lambda: m, between


@case
def input_written_and_kept():
    class M:
        def __call__(self, x):
            x.add_(1)
            self.last = x
            return x * 2

    m = M()
    return m, lambda: m


@case
def previous_input_written():
    class M:
        last = None

        def __call__(self, x):
            if self.last is not None:
                self.last.add_(1)
            self.last = x
            return x * 2

    m = M()
    return m, lambda: m


@case
def same_input_each_time():
    class M:
        last = None

        def __call__(self, x):
            same = self.last is x
            self.last = x
            return x * (2 if same else 3)

    m = M()
    one = torch.ones(2, 4)

    def between(n):
        return one if n != 5 else None

    return m, lambda: m, between


@case
def kept_input_compared_by_identity():
    class M:
        key = val = None

        def __call__(self, x):
            if self.key is not x:
                self.key, self.val = x, x * 2
            return self.val + 1

    m = M()
    one = torch.ones(2, 4)

    def between(n):
        if n == 3:
            one.add_(1)
        return one if n not in (5, 6) else None

    return m, lambda: m, between


@case
def shapes_alternate():
    class M:
        h = None

        def __call__(self, x):
            if self.h is None or self.h.shape != x.shape:
                self.h = torch.zeros_like(x)
            self.h = self.h + x
            return self.h

    m = M()

    def between(n):
        if n % 3 == 2:
            return torch.ones(3, 4)

    return m, lambda: m, between


@case
def input_dtype_changes():
    class M:
        h = 0.0

        def __call__(self, x):
            self.h = self.h + x
            return self.h

    m = M()

    def between(n):
        if n in (3, 4):
            return torch.ones(2, 4, dtype=torch.float64)

    return m, lambda: m, between


@case
def never_read_values_put_outside():
    class M:
        def __init__(self):
            self.h = None

        def __call__(self, x):
            self.h = x * 2
            return x + 1

    m = M()

    def between(n):
        m.h = [None, 3, "s", torch.zeros(1), m, [1], object, float("nan")][n % 8]

    return m, lambda: m, between


@case
def read_value_becomes_odd_outside():
    class M:
        def __init__(self):
            self.h = 1.0

        def __call__(self, x):
            self.h, old = x * 2, self.h
            return x + (1 if old is None else 2)

    m = M()

    def between(n):
        m.h = [None, 3, "s", torch.zeros(1), m, [1], object, float("nan")][n % 8]

    return m, lambda: m, between


@case
def list_swapped_outside():
    class M:
        def __init__(self):
            self.l = [torch.zeros(2, 4)]

        def __call__(self, x):
            self.l[0] = self.l[0] + x
            return self.l[0]

    m = M()
    kept = [m.l]

    def between(n):
        if n in (3, 6):
            m.l = [torch.ones(2, 4)]
            kept.append(m.l)

    return m, lambda: (m, kept), between


@case
def list_lengthened_outside():
    l = [torch.zeros(2, 4)]

    def fn(x):
        l[0] = l[0] + x
        return l[0]

    def between(n):
        if n == 3:
            l.append("unread")
        if n == 5:
            l.insert(0, torch.ones(2, 4))
        if n == 7:
            l[:] = []

    return fn, lambda: l, between


@case
def state_made_a_view_outside():
    base = torch.zeros(4, 4)

    class M:
        def __init__(self):
            self.h = base[:2]

        def __call__(self, x):
            self.h.add_(x)
            self.h = self.h * 1
            return self.h

    m = M()

    def between(n):
        if n in (3, 4, 6):
            m.h = base[n % 3 : n % 3 + 2]

    return m, lambda: (m, base), between


@case
def state_made_inference_or_grad_outside():
    class M:
        h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h + x
            return self.h * 2

    m = M()

    def between(n):
        if n == 3:
            m.h = nn.Parameter(m.h)
        if n == 5:
            m.h = m.h.detach().clone().requires_grad_(True)
        if n == 6:
            m.h = m.h.t().contiguous().t()

    return m, lambda: m, between


@case
def state_nan_and_inf():
    class M:
        n, m = float("nan"), 0.0

        def __call__(self, x):
            self.n = self.n + 1
            self.m = -self.m
            self.h = x * 2
            return self.h

    m = M()
    return m, lambda: (m.h, str(m.n), str(m.m))


@case
def minus_zero_and_true_set_outside():
    class M:
        k = 0.0

        def __call__(self, x):
            k = self.k
            self.k = k
            self.h = torch.full((2,), 1.0).copysign(torch.tensor(float(k)))
            return x * 2, type(k).__name__

    m = M()

    def between(n):
        m.k = [0.0, 0.0, 0.0, -0.0, 0, False, 0.0, 1][n % 8]

    return m, lambda: m, between


@case
def flag_set_to_same_value():
    class M:
        ready = True

        def __call__(self, x):
            r = x * (2 if self.ready else 3)
            self.ready = True
            return r

    m = M()

    def between(n):
        if n in (3, 6):
            m.ready = False

    return m, lambda: m, between


@case
def constants_written_each_call():
    class M:
        def __call__(self, x):
            self.a, self.b, self.c, self.d = 1, "s", None, (1, 2)
            return x * 2

    m = M()

    def between(n):
        if n == 3:
            m.a = 5
        if n == 4:
            m.b = x = torch.ones(2)
        if n == 5:
            del m.c
        if n == 6:
            vars(m).clear()

    return m, lambda: m, between


@case
def written_twice_and_read_between():
    class M:
        h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = x * 2
            y = self.h + 1
            self.h = y * 3
            z = self.h
            self.h = None
            return z

    m = M()
    return m, lambda: m


@case
def written_and_put_back():
    class M:
        h = torch.zeros(2, 4)

        def __call__(self, x):
            old = self.h
            self.h = x * 2
            y = self.h + old
            self.h = old
            return y

    m = M()

    def between(n):
        if n == 4:
            m.h = torch.ones(2, 4)

    return m, lambda: m, between


@case
def many_places():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            for i in range(30):
                setattr(self, f"h{i}", torch.zeros(2, 4))

        def forward(self, x):
            for i in range(30):
                setattr(self, f"h{i}", getattr(self, f"h{i}") + x * i)
            return self.h3 + self.h29

    m = M()
    return m, lambda: m


@case
def places_found_one_after_another():
    class M:
        k = 0

        def __call__(self, x):
            self.k = min(self.k + 1, 5)
            for i in range(self.k):
                setattr(self, f"h{i}", getattr(self, f"h{i}", 0) + x)
            return self.h0

    m = M()
    return m, lambda: m


@case
def state_in_two_instances():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def step(self, x):
            self.h = self.h + x
            return self.h

    a, b = M(), M()
    turn = [0]

    def fn(x):
        turn[0] = 1 - turn[0]
        return (a, b)[turn[0]].step(x)

    return fn, lambda: (a, b, turn)


@case
def graph_inside_of_numbers():
    class M:
        lr = 0.1

        def __call__(self, x):
            self.lr = self.lr * 0.5
            self.w = x * self.lr
            return self.w

    m = M()
    return m, lambda: m


@case
def optimizer_like():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))
            self.state = {}

        def forward(self, x):
            s = self.state.setdefault(self.w, {"step": 0, "m": torch.zeros(4)})
            s["step"] += 1
            s["m"] = 0.9 * s["m"] + 0.1 * x.mean(0)
            self.w.sub_(0.1 * s["m"])
            return x * self.w

    m = M()
    return m, lambda: (m.w, list(m.state.values()), list(m.state))


@case
def optimizer_of_torch():
    w = nn.Parameter(torch.ones(4))
    opt = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def fn(x):
        w.grad = x.mean(0)
        opt.step()
        return x * w

    return fn, lambda: (w, w.grad, list(opt.state.values()))


@case
def spectral_norm_like():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))
            self.register_buffer("u", torch.ones(4))

        def forward(self, x):
            v = F.normalize(self.w.t() @ self.u, dim=0)
            self.u = F.normalize(self.w @ v, dim=0)
            self.sigma = torch.dot(self.u, self.w @ v)
            return x @ (self.w / self.sigma)

    m = M()
    return m, lambda: m


@case
def rotary_cache():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.max_len, self.cos = 0, None

        def forward(self, x):
            if x.shape[0] > self.max_len:
                self.max_len = x.shape[0]
                self.cos = torch.arange(float(self.max_len)).cos()[:, None]
            return x * self.cos[: x.shape[0]]

    m = M()

    def between(n):
        if n in (3, 6):
            return torch.ones(3, 4)
        if n == 5:
            m.max_len, m.cos = 0, None

    return m, lambda: m, between


@case
def aux_losses_collected():
    class Layer(nn.Module):
        def __init__(self, losses):
            super().__init__()
            self.lin, self.losses = nn.Linear(4, 4), losses

        def forward(self, x):
            y = self.lin(x)
            self.losses.append(y.pow(2).mean())
            return y

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.losses = []
            self.layers = nn.ModuleList([Layer(self.losses) for _ in range(2)])

        def forward(self, x):
            self.losses.clear()
            for layer in self.layers:
                x = layer(x)
            return x, sum(self.losses), self.losses

    m = M()
    return m, lambda: m


@case
def stop_flag_after_count():
    class M:
        n, done = 0, False

        def __call__(self, x):
            if self.done:
                return None
            self.n += 1
            self.done = self.n >= 5
            return x * 2

    m = M()

    def between(n):
        if n == 7:
            m.n, m.done = 0, False

    return m, lambda: m, between


@case
def result_type_alternates():
    class M:
        n = 0

        def __call__(self, x):
            self.n = (self.n + 1) % 2
            self.h = x * 2
            return (self.h, 1) if self.n else {"h": self.h}

    m = M()
    return m, lambda: m


@case
def stored_type_alternates():
    class M:
        h = None

        def __call__(self, x):
            self.h = x * 2 if self.h is None else None
            return x + 1

    m = M()
    return m, lambda: m


@case
def state_shape_alternates():
    class M:
        h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = (self.h + 1).t()
            return x @ self.h if self.h.shape[0] == 4 else x + self.h

    m = M()
    return m, lambda: m


@case
def writes_by_exec_and_eval():
    d = {"h": torch.zeros(2, 4), "n": 0}
    code = compile("h = h + x\nn = n + 1", "<effects>", "exec")

    def fn(x):
        d["x"] = x
        exec(code, d)
        return eval("h * 2", d)

    return fn, lambda: {k: v for k, v in d.items() if k != "__builtins__"}


@case
def writes_by_map_and_reduce():
    out = []

    def fn(x):
        list(map(out.append, [x, x * 2]))
        del out[:-2]
        return functools.reduce(operator.add, out)

    return fn, lambda: out


@case
def writes_in_comprehension_and_walrus():
    class M:
        h = 0

        def __call__(self, x):
            [setattr(self, n, x * i) for i, n in enumerate(("a", "b"))]
            if (y := self.b + 1) is not None:
                self.h = y
            return y

    m = M()
    return m, lambda: m


@case
def writes_by_operator_setitem():
    d, l = {}, [0]

    def fn(x):
        operator.setitem(d, "a", x * 2)
        operator.setitem(l, 0, d["a"])
        operator.setitem(d, "n", operator.add(d.get("n", 0), 1))
        return l[0]

    return fn, lambda: (d, l)


@case
def writes_with_exit_stack():
    log = []

    class M:
        def __call__(self, x):
            with contextlib.ExitStack() as stack:
                stack.callback(log.append, "end")
                self.h = x * 2
                log[:] = []
            return self.h

    m = M()
    return m, lambda: (m, log)


@case
def metaclass_with_setattr():
    class Meta(type):
        sets = 0

        def __setattr__(cls, name, value):
            if name != "sets":
                Meta.sets += 1
            type.__setattr__(cls, name, value)

    class C(metaclass=Meta):
        h = 0

    def fn(x):
        C.h = x * 2
        return C.h

    return fn, lambda: (C.h, Meta.sets)


@case
def class_attribute_shadowed_in_each_call():
    class M:
        h = torch.ones(2, 4)

        def __call__(self, x):
            r = self.h + x
            self.h = r
            M.h = r * 2
            del self.h
            return r

    m = M()
    return m, lambda: (M.h, vars(m))


@case
def abc_register_or_type_attributes():
    class C:
        pass

    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            setattr(C, f"m{self.n % 2}", staticmethod(lambda y: y * 2))
            return C.__dict__[f"m{self.n % 2}"].__func__(x)

    m = M()
    return m, lambda: (m.n, sorted(k for k in vars(C) if k[0] == "m"))


@case
def tensor_subclass_stored():
    class T(torch.Tensor):
        pass

    class M:
        def __call__(self, x):
            self.h = (x * 2).as_subclass(T)
            self.h.note = "a"
            return x + 1

    m = M()
    return m, lambda: m


@case
def sparse_tensor_stored():
    class M:
        def __call__(self, x):
            self.h = x.relu().to_sparse()
            return x + 1

    m = M()
    return m, lambda: m.h.to_dense()


@case
def tensor_list_stored_and_stacked():
    class M:
        def __init__(self):
            self.parts = [torch.zeros(4)] * 2

        def __call__(self, x):
            self.parts = [p + r for p, r in zip(self.parts, x.unbind())]
            self.parts[0] += 1
            return torch.stack(self.parts)

    m = M()
    return m, lambda: m


@case
def views_of_one_base_as_state():
    class M:
        def __init__(self):
            base = torch.zeros(4, 4)
            self.a, self.b = base[:2], base[1:3]

        def __call__(self, x):
            self.a.add_(x)
            r = self.b * 2
            base = torch.cat([self.a, self.b])
            self.a, self.b = base[:2], base[1:3]
            return r

    m = M()
    return m, lambda: m


@case
def state_kept_in_a_module_list():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.register_buffer("h", torch.zeros(2, 4), persistent=False)

        def forward(self, x):
            self.h = torch.tanh(self.lin(x) + self.h)
            return self.h

    m = nn.Sequential(Cell(), Cell(), Cell())

    def between(n):
        if n == 4:
            for c in m:
                c.h = torch.zeros(2, 4)
        if n == 6:
            m[1].h = m[0].h

    return m, lambda: m, between


@case
def parameter_list_and_dict_items():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.ParameterDict({"a": nn.Parameter(torch.ones(4))})

        def forward(self, x):
            self.p["a"] = nn.Parameter(self.p["a"] * 0.5)
            return x * self.p["a"]

    m = M()
    return m, lambda: m


@case
def int_tensor_counter():
    class M:
        def __init__(self):
            self.n = torch.tensor(0)

        def __call__(self, x):
            self.n = self.n + 1
            return x * self.n

    m = M()
    return m, lambda: m


@case
def int_tensor_counter_read():
    class M:
        def __init__(self):
            self.n = torch.tensor(0)

        def __call__(self, x):
            self.n = self.n + 1
            if int(self.n) % 2:
                self.odd = x * 2
            return x * 2

    m = M()
    return m, lambda: m


@case
def timestamps():
    class M:
        count = 0

        def __call__(self, x):
            self.t = type(time.perf_counter()).__name__
            self.count += 1
            self.h = x * 2
            return x * 2

    m = M()
    return m, lambda: m


@case
def interned_result_text():
    class M:
        last_shape = None

        def __call__(self, x):
            changed = self.last_shape != x.shape
            self.last_shape = x.shape
            return x * (2 if changed else 3)

    m = M()

    def between(n):
        if n in (3, 6):
            return torch.ones(3, 4)

    return m, lambda: m, between


@case
def size_object_and_slices_stored():
    class M:
        def __call__(self, x):
            self.s, self.r, self.e = slice(0, 2), range(3), ...
            self.size, self.st = x.size(), x.stride()
            return x[self.s]

    m = M()
    return m, lambda: (repr(m.s), repr(m.r), m.size, m.st)


@case
def function_stored():
    class M:
        def __call__(self, x):
            y = x * 2
            self.f = lambda z: z + y
            return self.f(x)

    m = M()
    return m, lambda: m.f(torch.ones(2, 4))


@case
def partial_stored():
    class M:
        def __call__(self, x):
            self.f = functools.partial(torch.add, x * 2)
            return self.f(x)

    m = M()
    return m, lambda: m.f(torch.ones(2, 4))


@case
def bound_method_stored():
    class M:
        def get(self):
            return self.h

        def __call__(self, x):
            self.h = x * 2
            self.f = self.get
            return self.f() + 1

    m = M()
    return m, lambda: m.f()


@case
def module_stored():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.current = None

        def forward(self, x):
            object.__setattr__(self, "current", self.a)
            self.y = self.current(x)
            return self.y

    m = M()
    return m, lambda: (m.y, m.current is m.a)


@case
def new_module_made_in_each_call():
    class M(nn.Module):
        def forward(self, x):
            self.act = nn.Tanh()
            self.p = nn.Linear(4, 4)
            return self.act(self.p(x))

    m = M()
    return m, lambda: m


@case
def lazily_built_submodule():
    class M(nn.Module):
        lin = None

        def forward(self, x):
            if self.lin is None:
                self.lin = nn.Linear(x.shape[1], 4)
            self.h = self.lin(x)
            return self.h

    m = M()

    def between(n):
        if n == 4:
            m.lin = None

    return m, lambda: m, between


@case
def lock_is_held():
    class M:
        def __init__(self):
            self.lock, self.h = threading.Lock(), 0

        def __call__(self, x):
            with self.lock:
                self.h = self.h + x
            return self.h

    m = M()
    return m, lambda: (m.h, m.lock.locked())


@case
def recursion_writes_depth():
    class M:
        depth = deepest = 0

        def __call__(self, x):
            self.depth += 1
            self.deepest = max(self.deepest, self.depth)
            r = x * 2 if self.depth == 3 else self.__call__(x) + 1
            self.depth -= 1
            return r

    m = M()
    return m, lambda: m


@case
def graphed_inside_graphed_state():
    class M:
        h, n = 0, 0

        def inner(self, x):
            self.h = self.h + x
            return self.h

        def __call__(self, x):
            self.n += 1
            return self.inner(x) + self.inner(x * 2)

    m = M()
    return m, lambda: m


@case
def cross_call_result_edited_by_caller():
    class M:
        h = None

        def __call__(self, x):
            self.h = x * 2 if self.h is None else self.h * 0.5 + x
            return self.h

    m = M()

    def between(n):
        if n > 1:
            m.h[0] = 9.0
            m.h.unsqueeze_(0).squeeze_(0)

    return m, lambda: m, between


@case
def set_data_of_state_outside():
    class M:
        h = torch.zeros(2, 4)

        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h + x
            return self.h * 2

    m = M()

    def between(n):
        if n == 4:
            m.h.data = torch.ones(2, 4)
        if n == 6:
            m.h.resize_(1, 4)

    return m, lambda: m, between


# ---- identity of containers and objects that are kept and given


@case
def result_dict_is_state():
    class M:
        def __call__(self, x):
            self.out = {"y": x * 2}
            return self.out

    m = M()

    def between(n):
        if n > 2:
            m.out["later"] = 1

    return m, lambda: m, between


@case
def result_holds_state_list():
    class M:
        def __call__(self, x):
            self.outs = [x * 2]
            return {"outs": self.outs, "again": (self.outs, 1)}

    m = M()
    return m, lambda: m


@case
def result_is_stored_dataclass():
    @dataclasses.dataclass
    class S:
        h: typing.Any

    class M:
        def __call__(self, x):
            self.out = S(x * 2)
            return self.out

    m = M()
    return m, lambda: m


@case
def result_is_stored_named_tuple():
    class S(typing.NamedTuple):
        h: typing.Any

    class M:
        def __call__(self, x):
            self.out = S(x * 2)
            return self.out

    m = M()
    return m, lambda: m


@case
def result_is_stored_ordered_dict_or_deque():
    class M:
        def __call__(self, x):
            self.a = collections.OrderedDict(y=x * 2)
            self.b = collections.deque([x * 3], maxlen=2)
            return self.a, self.b

    m = M()
    return m, lambda: m


@case
def stored_list_in_two_places():
    class M:
        def __call__(self, x):
            self.a = self.b = [x * 2]
            self.c = {"l": self.a}
            return x + 1

    m = M()

    def between(n):
        if n > 2:
            m.a.append(n)

    return m, lambda: m, between


@case
def stored_tensor_in_many_places():
    class M:
        def __init__(self):
            self.l, self.d = [None], {}

        def __call__(self, x):
            h = x * 2
            self.h, self.l[0], self.d["h"] = h, h, h
            self.n = {"x": h, "y": [h, (h,)]}
            self.s = SimpleNamespace(h=h)
            return [h, {"h": h}]

    m = M()

    def between(n):
        if n > 2:
            m.h.add_(1)

    return m, lambda: m, between


@case
def double_buffer_of_lists():
    class M:
        def __init__(self):
            self.cur, self.nxt = [torch.zeros(2, 4)], [torch.ones(2, 4)]

        def __call__(self, x):
            self.cur, self.nxt = self.nxt, self.cur
            self.cur[0] = self.cur[0] + x
            return self.cur[0]

    m = M()
    kept = [m.cur, m.nxt]
    return m, lambda: (m, kept)


@case
def double_buffer_of_dicts():
    class M:
        def __init__(self):
            self.cur, self.nxt = {"h": torch.zeros(2, 4)}, {"h": torch.ones(2, 4)}

        def __call__(self, x):
            self.cur, self.nxt = self.nxt, self.cur
            self.cur["h"] = self.cur["h"] + x
            return self.cur["h"]

    m = M()
    kept = [m.cur, m.nxt]
    return m, lambda: (m, kept)


@case
def double_buffer_of_objects():
    class S:
        def __init__(self, h):
            self.h = h

    class M:
        def __init__(self):
            self.cur, self.nxt = S(torch.zeros(2, 4)), S(torch.ones(2, 4))

        def __call__(self, x):
            self.cur, self.nxt = self.nxt, self.cur
            self.cur.h = self.cur.h + x
            return self.cur.h

    m = M()
    kept = [m.cur, m.nxt]
    return m, lambda: (m, kept)


@case
def double_buffer_of_namespaces_only_swapped():
    class M:
        def __init__(self):
            self.cur = SimpleNamespace(h=torch.zeros(2, 4))
            self.nxt = SimpleNamespace(h=torch.ones(2, 4))

        def __call__(self, x):
            self.cur, self.nxt = self.nxt, self.cur
            return self.cur.h + x

    m = M()
    kept = [m.cur, m.nxt]
    return m, lambda: (m, kept)


@case
def double_buffer_of_lists_only_swapped():
    class M:
        def __init__(self):
            self.cur, self.nxt = [torch.zeros(2, 4)], [torch.ones(2, 4)]

        def __call__(self, x):
            self.cur, self.nxt = self.nxt, self.cur
            return self.cur[0] + x

    m = M()
    kept = [m.cur, m.nxt]
    return m, lambda: (m, kept)


@case
def list_put_back_as_it_was():
    class M:
        def __init__(self):
            self.l = [torch.zeros(2, 4)]

        def __call__(self, x):
            old, self.l = self.l, []
            self.h = old[0] + x
            self.l = old
            return self.h

    m = M()
    kept = [m.l]
    return m, lambda: (m, kept)


@case
def list_moved_to_other_attribute():
    class M:
        def __init__(self):
            self.new, self.old = [], None

        def __call__(self, x):
            self.old, self.new = self.new, [x * 2]
            return x + 1

    m, kept = M(), []

    def between(n):
        kept.append(m.new)

    return m, lambda: (m, kept), between


@case
def dict_moved_to_other_attribute():
    class M:
        def __init__(self):
            self.new, self.old = {"h": torch.zeros(2, 4)}, None

        def __call__(self, x):
            self.old, self.new = self.new, {"h": self.new["h"] + x}
            return self.new["h"]

    m, kept = M(), []

    def between(n):
        kept.append(m.new)

    return m, lambda: (m, kept), between


@case
def namespace_moved_to_other_attribute():
    class M:
        def __init__(self):
            self.new, self.old = SimpleNamespace(h=torch.zeros(2, 4)), None

        def __call__(self, x):
            self.old, self.new = self.new, SimpleNamespace(h=self.new.h + x)
            return self.new.h

    m, kept = M(), []

    def between(n):
        kept.append(m.new)

    return m, lambda: (m, kept), between


@case
def tuple_of_old_and_new():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            old, self.h = self.h, self.h + x
            self.pair = (old, self.h, {"old": old}, x)
            return x + 1

    m = M()
    return m, lambda: m


@case
def state_list_holds_old_state():
    class M:
        def __init__(self):
            self.h, self.l = torch.zeros(2, 4), [None, None]

        def __call__(self, x):
            self.l[1], self.l[0] = self.l[0], self.h
            self.h = self.h + x
            return self.h

    m = M()
    return m, lambda: m


@case
def state_and_weight_are_one_tensor():
    class M:
        def __init__(self):
            self.w, self.h = torch.ones(2, 4), torch.zeros(2, 4)

        def __call__(self, x):
            self.w.add_(1)
            r = self.h * x
            self.h = self.h * 1
            return r

    m = M()

    def between(n):
        if n in (3, 4):
            m.h = m.w
        if n in (5, 6):
            m.h = m.w.view(-1).view(2, 4)

    return m, lambda: m, between


@case
def weight_read_and_state_written_in_place():
    class M:
        def __init__(self):
            self.w, self.h = torch.ones(2, 4), torch.zeros(2, 4)

        def __call__(self, x):
            self.h.add_(x)
            r = self.w * x
            self.h = self.h * 1
            return r

    m = M()

    def between(n):
        if n in (3, 4):
            m.h = m.w
        if n in (5, 6):
            m.h = m.w[:]

    return m, lambda: m, between


@case
def module_weight_shared_with_state():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.h = nn.Linear(4, 4), torch.zeros(4, 4)

        def forward(self, x):
            self.h.mul_(0.5)
            y = self.lin(x)
            self.h = self.h + 1
            return y

    m = M()

    def between(n):
        if n in (3, 4, 6):
            m.h = m.lin.weight.data

    return m, lambda: m, between


@case
def stores_outside_buffer():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(2, 4))

        def forward(self, x):
            self.b.add_(x)
            self.used = self.b
            return x * 2

    m = M()

    def between(n):
        if n == 4:
            m.used.zero_()
        if n == 6:
            m.b = torch.ones(2, 4)

    return m, lambda: m, between


@case
def stores_view_of_outside_buffer():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(2, 4))

        def forward(self, x):
            self.b.add_(x)
            self.row = self.b[0]
            return x * 2

    m = M()

    def between(n):
        if n == 4:
            m.row.zero_()

    return m, lambda: m, between


@case
def stores_one_of_a_table():
    class M:
        def __init__(self):
            self.table, self.i = [torch.full((2, 4), float(i)) for i in range(3)], 0

        def __call__(self, x):
            self.i = (self.i + 1) % 3
            self.cur = self.table[self.i]
            return x + self.cur

    m = M()

    def between(n):
        if n > 3:
            m.cur.add_(10)

    return m, lambda: m, between


@case
def stores_parameter_itself():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))
            self.last = [None]

        def forward(self, x):
            self.last[0] = self.w
            return x * self.w

    m = M()
    return m, lambda: m


@case
def result_object_holds_weight():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.ones(4))

        def forward(self, x):
            return SimpleNamespace(y=x * self.w, w=self.w)

    m = M()

    def between(n):
        m.w.add_(1)

    return m, lambda: m, between


@case
def result_tuple_holds_weight():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.ones(4))

        def forward(self, x):
            return x * self.w, self.w

    m = M()

    def between(n):
        m.w.add_(1)

    return m, lambda: m, between


@case
def result_is_view_of_written_buffer():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(4, 4))

        def forward(self, x):
            self.b[:2] = x
            self.n = getattr(self, "n", 0) + 1
            return self.b[:2]

    m = M()
    return m, lambda: m


@case
def result_old_state_and_its_view():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            old = self.h
            self.h = old + x
            return SimpleNamespace(old=old, row=old[0], new=self.h, view=self.h[0])

    m = M()
    return m, lambda: m


@case
def result_is_state_unchanged():
    class M:
        def __init__(self):
            self.h, self.g = torch.zeros(2, 4), torch.zeros(2, 4)

        def __call__(self, x):
            self.g = self.g + x
            return self.h

    m = M()

    def between(n):
        if n > 2:
            m.h.add_(1)

    return m, lambda: m, between


@case
def results_share_memory():
    def fn(x):
        y = x * 2
        return y[0], y[1], y, y.t()

    return fn, lambda: ()


@case
def stored_results_of_chunk():
    d = {}

    def fn(x):
        d["q"], d["k"], d["v"], d["rest"] = (x * 2).unbind(1)
        return d["q"]

    def between(n):
        if n > 2:
            d["q"].add_(1)

    return fn, lambda: d, between


@case
def stored_expand_and_its_source():
    class M:
        def __call__(self, x):
            self.s = x.sum()
            self.e = self.s.expand(3)
            self.u = self.s.unsqueeze(0)
            return x + 1

    m = M()

    def between(n):
        if n > 2:
            m.s.add_(1)

    return m, lambda: m, between


@case
def stored_real_and_imaginary_parts():
    class M:
        def __call__(self, x):
            self.c = torch.complex(x * 2, x * 3)
            self.re = self.c.real
            self.bits = (x * 2).view(torch.int32)
            return x + 1

    m = M()
    return m, lambda: m


# ---- order


@case
def attributes_set_in_other_order_than_at_first():
    class M:
        def __init__(self):
            self.a, self.b = None, None

        def __call__(self, x):
            self.b = x * 2
            self.a = x * 3
            return x

    m = M()

    def between(n):
        if n in (4, 6):
            vars(m).clear()

    return m, lambda: m, between


@case
def attributes_deleted_one_by_one():
    class M:
        def __call__(self, x):
            self.c = x * 2
            self.b = x * 3
            self.a = 1
            return x

    m = M()

    def between(n):
        if n == 3:
            del m.c
        if n == 4:
            del m.b
            m.z = 5
        if n == 5:
            del m.c, m.a
        if n == 6:
            del m.z, m.b, m.a

    return m, lambda: m, between


@case
def dict_order_when_cleared_outside():
    d = {"a": 1, "b": 2, "c": 3}

    def fn(x):
        d["c"], d["a"], d["b"] = x, x * 2, x * 3
        return x + 1

    def between(n):
        if n in (4, 6):
            d.clear()

    return fn, lambda: d, between


@case
def dict_order_in_two_branches():
    d = {}

    class M:
        flip = False

        def __call__(self, x):
            self.flip = not self.flip
            for k in "ab" if self.flip else "ba":
                d[k] = x * ord(k)
            return x + 1

    m = M()

    def between(n):
        if n > 2:
            d.clear()

    return m, lambda: (m, d), between


@case
def pop_and_set_with_order_changed_outside():
    d = {"a": torch.zeros(2, 4), "b": 1, "c": 2}

    def fn(x):
        v = d.pop("a")
        d["a"] = v + x
        return d["a"]

    def between(n):
        if n in (4, 6):
            d["b"] = d.pop("b")

    return fn, lambda: d, between


@case
def del_and_set_with_attribute_added_outside():
    class M:
        def __init__(self):
            self.a = torch.zeros(2, 4)

        def __call__(self, x):
            old = self.a
            del self.a
            self.a = old + x
            return self.a

    m = M()

    def between(n):
        if n in (4, 6):
            setattr(m, f"unread{n}", n)

    return m, lambda: m, between


@case
def ordered_dict_set_with_order_changed_outside():
    d = collections.OrderedDict(a=torch.zeros(2, 4), b=1)

    def fn(x):
        v = d.pop("a")
        d["a"] = v + x
        return v

    def between(n):
        if n in (4, 6):
            d.move_to_end("b")

    return fn, lambda: d, between


@case
def global_order():
    mod = space(
        """
        def fn(x):
            global b, a
            b = x * 2
            a = x * 3
            return a
        """
    )

    def between(n):
        if n == 4:
            del mod.a, mod.b

    return mod.fn, lambda: [k for k in vars(mod) if k in "ab"], between


# ---- what is patched from outside


@case
def property_put_over_attribute():
    class M:
        def __call__(self, x):
            self.h = x * 2
            return x + 1

    m = M()

    def between(n):
        if n == 4:
            M.h = property(lambda s: s._h, lambda s, v: s.__dict__.__setitem__("_h", v * 2))
        if n == 6:
            del M.h

    return m, lambda: vars(m), between


@case
def setattr_put_on_class():
    log = []

    class M:
        def __call__(self, x):
            self.h = x * 2
            return x + 1

    m = M()

    def between(n):
        if n == 4:
            M.__setattr__ = lambda s, k, v: (log.append(k), object.__setattr__(s, k, v))[1]

    return m, lambda: (m, log), between


@case
def setattr_put_on_base_class():
    log = []

    class B:
        pass

    class M(B):
        def __call__(self, x):
            self.h = x * 2
            return x + 1

    m = M()

    def between(n):
        if n == 4:
            B.__setattr__ = lambda s, k, v: (log.append(k), object.__setattr__(s, k, v))[1]

    return m, lambda: (m, log), between


@case
def class_replaced_by_one_with_setattr():
    log = []

    class M:
        def __call__(self, x):
            self.h = x * 2
            return x + 1

    class N(M):
        def __setattr__(self, k, v):
            log.append(k)
            super().__setattr__(k, v)

    m = M()

    def between(n):
        if n == 4:
            m.__class__ = N

    return (lambda x: m.__call__(x)), lambda: (m, log), between


@case
def setitem_put_on_dict_subclass():
    log = []

    class D(dict):
        pass

    d = D()

    def fn(x):
        d["h"] = x * 2
        return x + 1

    def between(n):
        if n == 4:
            D.__setitem__ = lambda s, k, v: (log.append(k), dict.__setitem__(s, k, v))[1]

    return fn, lambda: (d, log), between


@case
def append_put_on_list_subclass():
    log = []

    class L(list):
        pass

    l = L([0])

    def fn(x):
        l.clear()
        l.append(x * 2)
        return x + 1

    def between(n):
        if n == 4:
            L.append = lambda s, v: (log.append(1), list.append(s, v))[1]

    return fn, lambda: (l, log), between


@case
def getattr_put_on_class():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h + x
            return self.h

    m = M()

    def between(n):
        if n == 4:
            del m.h
            M.__getattr__ = lambda s, k: torch.ones(2, 4)

    return m, lambda: m, between


@case
def forward_replaced_on_instance():
    class M(nn.Module):
        h = 0

        def forward(self, x):
            self.h = self.h + x
            return self.h

    m = M()

    def between(n):
        if n == 4:
            m.forward = lambda x: setattr(m, "h", x * 5)
        if n == 6:
            del m.forward

    return m, lambda: m.h, between


@case
def hook_that_writes_added_outside():
    class M(nn.Module):
        h = 0

        def forward(self, x):
            self.h = self.h + x
            return self.h

    m, outs, handles = M(), {}, []

    def between(n):
        if n == 4:
            handles.append(m.register_forward_hook(lambda s, a, o: outs.update(o=o, n=len(outs))))
        if n == 6:
            handles.pop().remove()

    return m, lambda: (m.h, outs), between


@case
def parameter_made_of_attribute_name():
    class M(nn.Module):
        def forward(self, x):
            self.h = x * 2
            return x + 1

    m = M()

    def between(n):
        if n == 3:
            del m.h
            m.register_buffer("h", torch.zeros(1))
        if n == 5:
            del m.h
        if n == 6:
            del m.h
            m.h = nn.Parameter(torch.ones(1))

    return m, lambda: m, between


@case
def module_attribute_becomes_module():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = None

        def forward(self, x):
            self.h = x * 2
            return x + 1

    m = M()

    def between(n):
        if n == 4:
            m.h = nn.Tanh()
        if n == 6:
            del m.h

    return m, lambda: m, between


@case
def global_deleted_outside():
    mod = space(
        """
        n = 0
        h = 1
        def fn(x):
            global n, last
            n += 1
            last = x * h
            return last
        """
    )

    def between(n):
        if n == 4:
            del mod.n
        if n == 5:
            mod.n = 3
            del mod.last
        if n == 6:
            del mod.h

    return mod.fn, lambda: {k: vars(mod)[k] for k in ("n", "last", "h") if k in vars(mod)}, between


@case
def global_shadows_builtin():
    mod = space(
        """
        def fn(x):
            global max
            k = max(1, 2)
            max = lambda a, b: a + b + k
            return x * k
        """
    )

    def between(n):
        if n in (3, 5):
            vars(mod).pop("max", None)

    return mod.fn, lambda: "max" in vars(mod), between


@case
def counter_class_default_after_delete():
    class M:
        n = 5

        def __call__(self, x):
            self.n += 1
            return x + 1

    m = M()

    def between(n):
        if n in (3, 4):
            del m.n
        if n == 5:
            M.n = 50
        if n == 6:
            del m.n

    return m, lambda: m, between


@case
def counter_step_becomes_odd():
    class M:
        n, step = 0, 1

        def __call__(self, x):
            self.n += self.step
            return x + 1

    m = M()

    def between(n):
        m.step = [1, 1, 1, 1.5, True, -2, torch.tensor(1), 1][n % 8]
        if n > 4:
            m.n = 0

    return m, lambda: m, between


@case
def equal_values_of_other_types_in_tuples():
    class M:
        cfg = (1, 2.0)

        def __call__(self, x):
            k = self.cfg
            self.cfg = (*k,)
            self.text = ",".join(type(v).__name__ for v in k)
            return x * k[0]

    m = M()

    def between(n):
        m.cfg = [(1, 2.0), (1, 2.0), (1, 2.0), (True, 2), (1.0, 2), (1, 2), (1, 2.0), (1, True)][
            n % 8
        ]

    return m, lambda: m, between


@case
def equal_values_of_other_types_in_dicts():
    class M:
        cfg = None

        def __call__(self, x):
            k = self.cfg
            self.cfg = dict(k)
            self.text = repr(k)
            return x * 2

    m = M()

    def between(n):
        m.cfg = [{1: 0}, {1: 0}, {1: 0}, {True: 0}, {1: False}, {1.0: 0}, {1: -0.0}, {1: 0}][n % 8]

    return m, lambda: m, between


@case
def text_subclass_in_state():
    class T(str):
        pass

    class M:
        tag = "a"

        def __call__(self, x):
            k = type(self.tag).__name__
            self.tag = self.tag + ""
            self.kind = k
            return x * 2

    m = M()

    def between(n):
        m.tag = T("a") if n in (3, 4, 6) else "a"

    return m, lambda: (m.kind, type(m.tag).__name__), between


# ---- odd keys


def _odd_key(name, key, other=None):
    def make():
        d = {}

        def fn(x):
            d[key] = d.get(key, 0) + x
            d["n"] = d.get("n", 0) + 1
            return d[key]

        def between(n):
            if n == 4:
                d.clear()
            if n == 6 and other is not None:
                d.clear()
                d[other] = torch.ones(2, 4)

        return fn, lambda: (list(map(repr, d)), list(d.values())), between

    make.__name__ = f"dict_key_{name}"
    case(make)


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    def __repr__(self):
        return "boo("


for _name_, *_key_ in (
    ("infinity", float("inf")),
    ("minus_infinity", float("-inf")),
    ("zero", 0.0, -0.0),
    ("minus_zero", -0.0, 0),
    ("one", 1, True),
    ("true", True, 1.0),
    ("none", None),
    ("complex", 1j),
    ("complex_with_minus_zero", complex(-0.0, -1.0)),
    ("bytes", b"\n'\""),
    ("text_with_quotes", "a'\"\n\\ü\ud800"),
    ("ellipsis", ...),
    ("dtype", torch.float32),
    ("enum", Colour.RED),
    ("int_enum", Level.LOW, 1),
    ("text_subclass", Text("k"), "k"),
    ("tuple", (1, "a")),
    ("type", int),
    ("function", len),
    ("empty_text", ""),
    ("keyword", "class"),
    ("underscores", "__class__"),
):
    _odd_key(_name_, *_key_)


# ---- reads in C of what is written


class _Twice:
    pass


@functools.singledispatch
def _kind(item):
    return 1


@_kind.register
def _(item: int):
    return 2


@_kind.register
def _(item: torch.Tensor):
    return 3


@_kind.register
def _(item: type(None)):
    return 4


def _tries(of):
    def read(d):
        try:
            return of(d)
        except (TypeError, KeyError, ValueError, AttributeError, RuntimeError) as error:
            return len(type(error).__name__)

    return read


_READS = {
    "repr": lambda d: len(repr(d["h"])) % 50,
    "str_of_all": lambda d: len(str(d).split(":")),
    "percent": lambda d: len("%(n)d" % d) + int("%(n)d" % d),
    "format": lambda d: int("{n}".format(**d)),
    "format_map": lambda d: int("{n}".format_map(d)),
    "pickle": _tries(lambda d: len(pickle.dumps(d["n"]))),
    "pickle_all": _tries(lambda d: len(pickle.dumps({**d, "h": 0}))),
    "json": _tries(lambda d: len(json.dumps(d["n"]))),
    "copy": lambda d: copy.copy(d["n"]),
    "deepcopy": lambda d: copy.deepcopy(d["n"]),
    "singledispatch_n": lambda d: _kind(d["n"]),
    "singledispatch_h": lambda d: _kind(d["h"]),
    "weakref": _tries(lambda d: len(weakref.ref(d["n"]).__class__.__name__)),
    "weakref_h": _tries(lambda d: weakref.ref(d["h"])() is d["h"]),
    "getsizeof": lambda d: sys.getsizeof(d["n"]),
    "is_dataclass": lambda d: dataclasses.is_dataclass(d["n"]),
    "dir": lambda d: "bit_length" in dir(d["n"]),
    "dir_h": lambda d: "stride" in dir(d["h"]),
    "getattr_static": lambda d: inspect.getattr_static(d["n"], "bit_length", 5) == 5,
    "hasattr_by": lambda d: hasattr(d["n"], "by") + 2 * hasattr(d["n"], "__dict__"),
    "hasattr_h": lambda d: hasattr(d["h"], "shape"),
    "getattr_default": lambda d: getattr(d["n"], "real", 100),
    "callable": lambda d: callable(d["n"]) + 1,
    "isinstance": lambda d: isinstance(d["n"], (int, float)),
    "isinstance_h": lambda d: isinstance(d["h"], torch.Tensor),
    "issubclass": lambda d: issubclass(type(d["n"]), int),
    "is_tensor": lambda d: torch.is_tensor(d["h"]),
    "is_none": lambda d: d["h"] is None,
    "is_none_by_operator": lambda d: operator.is_(d["h"], None),
    "is_small_number": lambda d: d["n"] is _SMALL[0],
    "is_small_number_by_operator": lambda d: operator.is_(d["n"], _SMALL[0]),
    "id": lambda d: id(d["n"]) == id(_SMALL[0]),
    "id_h": lambda d: id(d["h"]) == id(None),
    "values_listed": lambda d: [v is None for v in d.values()].index(False),
    "values_counted": lambda d: sum(map(_is_none, d.values())),
    "items_sorted": lambda d: sorted((k, type(v).__name__) for k, v in d.items())[0][1] == "Tensor",
    "filter": lambda d: len(list(filter(_is_none, d.values()))),
    "filter_true": _tries(lambda d: len(list(filter(None, [d["n"] - 4, 1])))),
    "any": _tries(lambda d: any([d["n"] > 4])),
    "in_list": lambda d: 5 in [d["n"]],
    "in_values": _tries(lambda d: 5 in [v for k, v in d.items() if k == "n"]),
    "count": lambda d: [d["n"], 3].count(5),
    "index": _tries(lambda d: [1, 2, 3, 4, 5].index(d["n"])),
    "equality_of_dicts": _tries(lambda d: {"n": d["n"]} == {"n": 5}),
    "equality_of_tuples": lambda d: (d["n"],) == (5,),
    "equality_with_none": lambda d: d["n"] == None,  # noqa: E711
    "difference": lambda d: d["n"] != 5,
    "tuple_order": lambda d: (d["n"], 0) < (5, 1),
    "max": lambda d: max(d["n"], 3),
    "max_of_one": lambda d: max([d["n"]]) > 4,
    "min": lambda d: min(4, d["n"]),
    "sorted": lambda d: sorted([5, d["n"]])[0],
    "hash": lambda d: hash(d["n"]),
    "set": lambda d: len({d["n"], 5}),
    "dict_key": lambda d: {5: 7}.get(d["n"], 1),
    "dict_key_in": lambda d: d["n"] in {5: 1},
    "bool": lambda d: 2 if d["n"] else 3,
    "not": lambda d: 2 if not d["n"] else 3,
    "or": lambda d: d["n"] or 7,
    "int": lambda d: int(d["n"]),
    "float": lambda d: float(d["n"]),
    "round": lambda d: round(d["n"], 1),
    "abs": lambda d: abs(d["n"]),
    "index_of_tuple": lambda d: tuple(range(50))[d["n"]],
    "slice": lambda d: len(list(range(50))[: d["n"]]),
    "islice": lambda d: len(list(itertools.islice(range(50), d["n"]))),
    "repeat": lambda d: len([0] * d["n"]),
    "repeat_text": lambda d: len("a" * d["n"]),
    "range": lambda d: len(range(d["n"])),
    "bit_length": lambda d: d["n"].bit_length(),
    "bytes": lambda d: len(bytes(d["n"])),
    "chr": lambda d: ord(chr(d["n"])),
    "divmod": lambda d: divmod(d["n"], 3)[1],
    "pow": lambda d: pow(2, d["n"]),
    "sum": lambda d: sum([d["n"], 1]),
    "sum_of_two": lambda d: d["n"] + d["n"],
    "difference_of_itself": lambda d: 1 + (d["n"] - d["n"]),
    "plus": lambda d: d["n"] + 1,
    "minus_from": lambda d: 10 - d["n"],
    "numpy": lambda d: int(np.array([d["n"]]).sum()),
    "numpy_object": lambda d: int(np.asarray(d["n"]).dtype == object),
    "tensor": lambda d: torch.tensor(d["n"]),
    "as_tensor": lambda d: torch.as_tensor([d["n"]]),
    "full": lambda d: torch.full((), d["n"]),
    "arange": lambda d: torch.arange(d["n"]).sum(),
    "alpha": lambda d: torch.add(torch.ones(()), 1, alpha=d["n"]),
    "tensor_times": lambda d: torch.ones(()) * d["n"],
    "times_tensor": lambda d: d["n"] * torch.ones(()),
    "tensor_compare": lambda d: (torch.ones(()) * 5 == d["n"]) + 1,
    "tensor_fill": lambda d: torch.zeros(()).fill_(d["n"]),
    "tensor_setitem": lambda d: _set(torch.zeros(2), d["n"])[0],
    "tensor_index": lambda d: torch.arange(50.0)[d["n"]],
    "tensor_clamp": lambda d: torch.full((), 6.0).clamp(max=d["n"]),
    "tensor_pow": lambda d: torch.full((), 1.5) ** d["n"],
    "tensor_new": lambda d: torch.zeros(()).new_tensor(d["n"]),
    "tensor_shape": lambda d: torch.zeros(d["n"]).numel(),
    "tensor_view": lambda d: torch.zeros(2).expand(d["n"], 2).shape[0],
    "where": lambda d: torch.where(torch.ones((), dtype=torch.bool), d["n"], 0.0),
    "interpolate": lambda d: F.interpolate(torch.ones(1, 1, 2), scale_factor=1 + d["n"]).numel(),
    "seed": lambda d: torch.randn((), generator=torch.Generator().manual_seed(d["n"])),
    "walrus": lambda d: n if (n := d["n"]) else 3,
    "unpack": lambda d: [*d.values()][list(d).index("n")],
    "star_arguments": lambda d: (lambda n, **k: n)(**d),
    "attrgetter": lambda d: operator.attrgetter("real")(d["n"]),
    "itemgetter": lambda d: operator.itemgetter("n")(d),
    "copy_of_dict": lambda d: dict(d)["n"],
    "merged": lambda d: (d | {"z": 1})["n"],
    "reversed": lambda d: list(reversed(d.values()))[-1] is None,
    "zip": lambda d: next(iter(zip(d.values(), [1])))[0] is None,
    "popped_and_put": lambda d: d.setdefault("n", d.pop("n")),
    "view_and": lambda d: len(d.keys() & {"n", "h"}),
    "items_in": lambda d: ("h", None) in d.items() if d["h"] is None else 7,
    "try_iter": _tries(lambda d: iter(d["n"]) and 1),
    "suppress": lambda d: _suppressed(d["n"]),
    "print": lambda d: print(d["n"], file=_NOWHERE) or 1,
    "log": lambda d: _LOG.debug("%s", d["n"]) or 1,
    "f_string_type": lambda d: len(f"{type(d['n'])}{type(d['h'])}"),
    "match_class": lambda d: _matched(d["n"]),
    "match_value": lambda d: _matched_value(d["n"]),
    "thread": lambda d: _in_thread(d, "n"),
    "thread_h": lambda d: _in_thread(d, "h") is None,
    "heap": lambda d: heapq.nsmallest(1, [d["n"], 5])[0],
    "bisect": lambda d: bisect.bisect([1, 2, 3, 4, 5, 6], d["n"]),
    "deque_maxlen": lambda d: collections.deque(range(50), maxlen=d["n"])[0],
    "lru_cache": lambda d: _cached(d["n"]),
    "partial": lambda d: functools.partial(operator.mul, d["n"])(2),
    "reduce": lambda d: functools.reduce(operator.mul, [d["n"], 2]),
    "map": lambda d: next(map(float, [d["n"]])),
    "accumulate": lambda d: list(itertools.accumulate([1, d["n"]]))[-1],
    "generator": lambda d: sum(v for v in (d["n"], 1)),
    "eval": lambda d: eval("n", {}, d),
    "exec": lambda d: _executed(d),
    "subscript_get": lambda d: dict.__getitem__(d, "n"),
    "namespace": lambda d: SimpleNamespace(**d).n,
    "namespaces_equal": lambda d: SimpleNamespace(n=d["n"]) == SimpleNamespace(n=5),
    "string_join": lambda d: len("".join(map(str, [d["n"]]))) + d["n"],
    "sorted_key": lambda d: sorted([1, 2], key=lambda v: -v * d["n"])[0],
    "enumerate": lambda d: next(enumerate("a", d["n"]))[0],
    "complex": lambda d: complex(d["n"]).real,
    "hex": lambda d: int(hex(d["n"]), 16),
    "math": lambda d: math.sqrt(d["n"]),
    "math_isclose": lambda d: math.isclose(d["n"], 5),
    "decimal": lambda d: float(decimal.Decimal(d["n"])),
    "fraction": lambda d: float(fractions.Fraction(d["n"])),
    "random": lambda d: random.Random(d["n"]).random(),
    "ctypes": lambda d: ctypes.c_int(d["n"]).value,
    "struct": lambda d: struct.pack("i", d["n"])[0],
    "array": lambda d: array.array("i", [d["n"]])[0],
    "bytearray": lambda d: bytearray([d["n"]])[0],
    "numbers": lambda d: isinstance(d["n"], numbers.Integral) + 1,
    "index_protocol": lambda d: operator.index(d["n"]),
    "truth": lambda d: operator.truth(d["n"]) + 1,
    "contains": lambda d: operator.contains([5], d["n"]) + 1,
    "exception_argument": lambda d: _raised(d["n"]),
    "tree_map": lambda d: torch.utils._pytree.tree_leaves({"n": d["n"]})[0],
    "tree_map_type": lambda d: len(torch.utils._pytree.tree_leaves((d["n"], [d["h"]]))),
    "module_setattr": lambda d: _on_module(d["n"]),
    "buffer": _tries(lambda d: memoryview(d["n"]) and 1),
    "await": _tries(lambda d: d["n"].__await__ and 1),
    "doc": lambda d: len(d["n"].__doc__ or "") % 7,
    "class_name": lambda d: len(d["n"].__class__.__name__),
    "class_name_h": lambda d: len(d["h"].__class__.__name__),
    "type_name": lambda d: len(type(d["n"]).__name__),
    "vars": _tries(lambda d: len(vars(d["n"]))),
    "super_method": lambda d: int.__add__(d["n"], 0),
    "object_method": lambda d: object.__eq__(d["n"], 5) is NotImplemented,
    "object_repr": lambda d: "int" in object.__repr__(d["n"]),
    "object_sizeof": lambda d: object.__sizeof__(d["n"]),
    "reduce_ex": lambda d: len(d["n"].__reduce_ex__(2)),
    "type_in": lambda d: type(d["n"]) in (int, float),
    "type_in_dict": lambda d: {int: 2, float: 3}.get(type(d["n"]), 4),
    "type_mapped": lambda d: next(map(type, [d["n"]])) is int,
    "type_mapped_h": lambda d: next(map(type, [d["h"]])) is torch.Tensor,
    "isinstance_mapped": lambda d: next(map(isinstance, [d["n"]], [int])),
    "isinstance_partial": lambda d: functools.partial(isinstance, d["n"])(int),
    "isinstance_filtered": lambda d: len([v for v in d.values() if isinstance(v, int)]),
    "isinstance_in_any": lambda d: any(isinstance(v, torch.Tensor) for v in d.values()),
    "is_in_all": lambda d: all(v is not None for v in d.values()),
    "gc_referents": lambda d: sum(v is None for v in gc.get_referents(d)),
}
_READS_OF_ATTRIBUTES = {
    "repr_dataclass": lambda s: len(repr(s)) % 50,
    "equal_dataclass": _tries(lambda s: s == _State(5, None)),
    "asdict": lambda s: dataclasses.asdict(s)["n"],
    "astuple": lambda s: dataclasses.astuple(s)[0],
    "replace": lambda s: dataclasses.replace(s).n,
    "copy": lambda s: copy.copy(s).n,
    "copy_h": lambda s: copy.copy(s).h is None,
    "deepcopy": lambda s: copy.deepcopy(s).n,
    "vars": lambda s: vars(s)["n"],
    "vars_values": lambda s: [*vars(s).values()][0],
    "attrgetter": lambda s: operator.attrgetter("n")(s),
    "attrgetter_h": lambda s: operator.attrgetter("h")(s) is None,
    "getattribute": lambda s: object.__getattribute__(s, "n"),
    "getattribute_h": lambda s: object.__getattribute__(s, "h") is None,
    "getattr_static": lambda s: inspect.getattr_static(s, "n"),
    "getstate": lambda s: s.__getstate__()["n"],
    "reduce": lambda s: s.__reduce_ex__(2)[2]["n"],
    "members": lambda s: dict(inspect.getmembers(s))["n"],
    "dir": lambda s: len([k for k in dir(s) if not k.startswith("_")]),
    "getattr_of_name": lambda s: getattr(s, "".join(["n"])),
    "hasattr_h": lambda s: hasattr(s, "h") and s.h is None,
    "map_getattr": lambda s: next(map(getattr, [s], ["n"])),
    "map_getattr_h": lambda s: next(map(getattr, [s], ["h"])) is None,
    "partial_getattr": lambda s: functools.partial(getattr, s)("n"),
    "methodcaller": lambda s: operator.methodcaller("__getattribute__", "n")(s),
    "match": lambda s: _matched_state(s),
    "dict_of": lambda s: dict(s.__dict__)["n"],
    "mapping_proxy": lambda s: types.MappingProxyType(s.__dict__)["n"],
    "chain_map": lambda s: collections.ChainMap(s.__dict__)["n"],
    "format": lambda s: int(f"{s.n}"),
    "format_attribute": lambda s: int("{0.n}".format(s)),
    "sorted_by": lambda s: sorted([s, s], key=operator.attrgetter("n"))[0].n,
    "json": lambda s: json.loads(json.dumps({"n": vars(s)["n"]}))["n"],
    "gc_referents": lambda s: sum(v is None for v in gc.get_referents(s.__dict__)),
    "weak_proxy": lambda s: weakref.proxy(s).n,
    "property": lambda s: s.twice,
    "slot_wrapper": lambda s: type(s).__getattribute__(s, "n"),
}


def _read_of_item(name, read):
    def make():
        d = {"h": None, "n": 0}

        def fn(x):
            k = read(d)
            d["n"] += 1
            d["h"] = x * 2
            return x * k

        def between(n):
            if n in (4, 5, 7):
                d["h"] = None
            if n == 6:
                d["n"] = 4

        return fn, lambda: d, between

    make.__name__ = f"item_read_by_{name}"
    case(make)


def _read_of_attribute(name, read):
    def make():
        s = _State(0, None)

        def fn(x):
            k = read(s)
            s.n += 1
            s.h = x * 2
            return x * k

        def between(n):
            if n in (4, 5, 7):
                s.h = None
            if n == 6:
                s.n = 4

        return fn, lambda: s, between

    make.__name__ = f"attribute_read_by_{name}"
    case(make)


@dataclasses.dataclass
class _State:
    n: typing.Any
    h: typing.Any

    @property
    def twice(self):
        return 2 if self.h is None else 3


_SMALL = [5]
_LOG = logging.getLogger("effects")


class _Nowhere:
    def write(self, text):
        pass


_NOWHERE = _Nowhere()


def _is_none(item):
    return item is None


def _set(t, value):
    t[0] = value
    return t


def _suppressed(n):
    k = 9
    with contextlib.suppress(Exception):
        k = n * 1
    return k


def _matched(n):
    match n:
        case bool():
            return 1
        case int():
            return 2
        case _:
            return 3


def _matched_value(n):
    match n:
        case 5:
            return 2
        case _:
            return 3


def _matched_state(s):
    match s:
        case _State(n=_, h=None):
            return 2
        case _State(n=5):
            return 3
        case _:
            return 4


def _in_thread(d, key):
    out = []
    t = threading.Thread(target=lambda: out.append(d[key]))
    t.start()
    t.join()
    return out[0]


@functools.lru_cache(maxsize=None)
def _cached(n):
    return n * 2


def _executed(d):
    space = {"d": d}
    exec("k = d['n'] + 0", space)
    return space["k"]


def _raised(n):
    try:
        raise ValueError(n)
    except ValueError as error:
        return error.args[0]


def _on_module(n):
    m = nn.Module()
    m.n = n
    return 2 if isinstance(m.n, int) else 3


for _name_, _read_ in _READS.items():
    _read_of_item(_name_, _read_)
for _name_, _read_ in _READS_OF_ATTRIBUTES.items():
    _read_of_attribute(_name_, _read_)


# ---- several graphed callables over one state


@case
def two_graphed_methods_share_state():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.h, self.n = torch.zeros(2, 4), 0

        def encode(self, x):
            self.h = self.h * 0.5 + x
            self.n += 1
            return self.h

        def decode(self, x):
            return x + self.h * 2

    m = M()
    a, b, kept = also(m.encode), also(m.decode), []

    def between(n):
        kept[:] = [b(torch.ones(2, 4))]
        if n > 4:
            kept.append(b(torch.ones(2, 4)))

    return a, lambda: (m, kept), between


@case
def graphed_inside_graphed_that_writes():
    class M:
        def __init__(self):
            self.h, self.n = torch.zeros(2, 4), 0
            self.inner = also(self.step)

        def step(self, x):
            self.h = self.h + x
            return self.h

        def __call__(self, x):
            self.n += 1
            self.last = x
            return self.inner(x) + self.inner(x * 2)

    m = M()
    return m, lambda: (m.h, m.n, m.last)


@case
def same_function_graphed_twice():
    class M:
        def __init__(self):
            self.h, self.n = torch.zeros(2, 4), 0

        def __call__(self, x):
            self.n += 1
            self.h = self.h + x
            return self.h

    m = M()
    other = also(m)

    def between(n):
        if n in (2, 3, 5, 6):
            other(torch.ones(2, 4))

    return m, lambda: m, between


@case
def graphed_called_by_other_thread():
    class M:
        def __init__(self):
            self.h, self.n = torch.zeros(2, 4), 0

        def __call__(self, x):
            self.n += 1
            self.h = self.h + x
            return self.h

    m = M()
    other = also(m)

    def between(n):
        def work():
            with torch.no_grad():
                other(torch.ones(2, 4))

        if n > 1:
            t = threading.Thread(target=work)
            t.start(), t.join()

    return m, lambda: m, between


@case
def graphed_copy_of_module():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.h, self.n = nn.Linear(4, 4), torch.zeros(2, 4), 0

        def forward(self, x):
            self.n += 1
            self.h = self.lin(x) + self.h
            return self.h

    m, copies = M(), []

    def between(n):
        if n == 4:
            c = copy.deepcopy(m)
            copies.append((c, also(c)))
        if n > 4:
            copies[0][1](torch.ones(2, 4) * n)

    return m, lambda: (m, [c for c, _ in copies]), between


@case
def under_inference_mode_by_turns():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h + x
            return self.h

    m = M()
    other = also(m)

    def between(n):
        if n in (3, 5):
            with torch.inference_mode():
                other(torch.ones(2, 4))
        if n in (4, 7):
            m.h = m.h.clone()

    return m, lambda: m, between


@case
def two_arguments_kept():
    class M:
        def __call__(self, x, y=None, *, z=None):
            self.x, self.y, self.z = x, y, z
            self.r = x if y is None else x + y
            return self.r + 1

    m = M()
    other = also(m)

    def between(n):
        a, b = torch.ones(2, 4) * n, torch.ones(2, 4)
        if n > 1:
            other(a, a if n % 2 else b, z=b)
            m.before = (m.x is a, m.y is a, m.y is b, m.z is b)

    return m, lambda: m, between


@case
def containers_given_are_kept():
    class M:
        def __call__(self, batch, opts=None):
            self.batch, self.opts = batch, opts
            return batch["x"] + batch["l"][0]

    m = M()
    other, kept = also(m), []

    def between(n):
        batch = {"x": torch.ones(2, 4) * n, "l": [torch.ones(2, 4), 1]}
        opts = SimpleNamespace(a=1)
        r = other(batch, opts)
        kept[:] = [r, m.batch is batch, m.batch["l"] is batch["l"], m.opts is opts, m.batch]

    return (lambda x: x + 1), lambda: (m, kept), between


@case
def containers_given_are_written():
    def step(batch):
        batch["y"] = batch["x"] * 2
        batch["l"].append(batch["x"] * 3)
        batch["n"] = batch.get("n", 0) + 1
        return batch["y"] + 1

    other, kept = also(step), []

    def between(n):
        batch = {"x": torch.ones(2, 4) * n, "l": [1]}
        kept[:] = [other(batch), batch]

    return (lambda x: x + 1), lambda: kept, between


@case
def container_given_each_time():
    def step(state, x):
        state["h"] = state["h"] + x
        state["n"] += 1
        return state["h"] + 1

    other, kept = also(step), []
    state = {"h": torch.zeros(2, 4), "n": 0}

    def between(n):
        kept[:] = [other(state, torch.ones(2, 4) * n)]

    return (lambda x: x + 1), lambda: (state, kept), between


@case
def object_given_each_time():
    def step(state, x):
        state.h = state.h + x
        state.n += 1
        return state.h + 1

    other, kept = also(step), []
    state = SimpleNamespace(h=torch.zeros(2, 4), n=0)

    def between(n):
        kept[:] = [other(state, torch.ones(2, 4) * n)]

    return (lambda x: x + 1), lambda: (state, kept), between


@case
def objects_given_by_turns():
    def step(state, x):
        state.h = state.h + x
        return state.h + 1

    other, kept = also(step), []
    states = [SimpleNamespace(h=torch.zeros(2, 4)) for _ in range(2)]

    def between(n):
        kept[:] = [other(states[n % 2], torch.ones(2, 4) * n)]

    return (lambda x: x + 1), lambda: (states, kept), between


@case
def cache_object_given():
    class Cache:
        def __init__(self):
            self.k, self.seen = None, 0

        def update(self, k):
            self.k = k if self.k is None else torch.cat([self.k, k])[-4:]
            self.seen += k.shape[0]
            return self.k

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x, cache):
            k = cache.update(self.lin(x))
            return SimpleNamespace(logits=x @ k.t(), cache=cache)

    model, caches, kept = Model(), [Cache()], []
    other = also(model)

    def between(n):
        if n == 5:
            caches.append(Cache())
        kept[:] = [other(torch.ones(2, 4) * n, caches[-1])]

    return (lambda x: x + 1), lambda: (caches, kept), between


@case
def method_graphed_where_it_is_defined():
    class M(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.h, self.n, self.k = torch.zeros(2, 4), 0, k

        def step(self, x):
            self.n += 1
            self.h = self.h + x * self.k
            return self.h

    M.step = also(M.step)
    a, b, kept = M(1.0), M(2.0), []

    def between(n):
        kept[:] = [a.step(torch.ones(2, 4) * n), b.step(torch.ones(2, 4))]

    return (lambda x: x + 1), lambda: (a, b, kept), between


@case
def graphed_then_instance_is_dropped():
    class M:
        made = 0

        def __init__(self):
            M.made += 1
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h = self.h + x
            return self.h

        def __del__(self):
            M.made -= 1

    kept = []

    def between(n):
        m = M()
        g = also(m)
        for i in range(4):
            kept[:] = [g(torch.ones(2, 4) * i)]

    return (lambda x: x + 1), lambda: kept, between


# ---- more courses


@case
def caught_exception_of_placeholder():
    class M:
        def __init__(self):
            self.h = None

        def __call__(self, x):
            try:
                k = self.h.sum() * 0 + 2
            except Exception:
                k = 3
            self.h = x * 2
            return x * k

    m = M()

    def between(n):
        if n in (3, 6):
            m.h = None

    return m, lambda: m, between


@case
def caught_base_exception():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            try:
                k = [1, 2, 3][self.n]
            except BaseException:
                k = 9
            return x * k

    m = M()
    return m, lambda: m


@case
def reads_only_in_a_branch_of_state():
    class M:
        def __init__(self):
            self.h, self.use = torch.zeros(2, 4), False

        def __call__(self, x):
            r = x + self.h if self.use else x + 1
            self.h = x * 2
            return r

    m = M()

    def between(n):
        m.use = n in (3, 5, 6)

    return m, lambda: m, between


@case
def reads_only_in_a_branch_of_data():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            r = x + self.h if x.sum() > 0 else x + 1
            self.h = x * 2
            return r

    m = M()
    return m, lambda: m


@case
def counts_only_in_a_branch_of_data_and_is_read_in_another():
    class M:
        n = 0

        def __call__(self, x):
            if x.sum() > 0:
                self.n += 1
                return x * 2
            return x * self.n

    m = M()
    return m, lambda: m


@case
def written_in_one_branch_of_configuration():
    class M:
        def __init__(self):
            self.keep, self.h, self.g = False, None, None

        def __call__(self, x):
            y = x * 2
            if self.keep:
                self.h = y
            else:
                self.g = y
            return y

    m = M()

    def between(n):
        m.keep = n in (3, 4, 6)

    return m, lambda: m, between


@case
def written_after_first_read_only_sometimes():
    class M:
        mode = 0

        def __init__(self):
            self.h = torch.ones(2, 4)

        def __call__(self, x):
            if self.mode == 1:
                self.h = x * 2
            r = self.h + x
            self.h = r * 0.5
            return r

    m = M()

    def between(n):
        m.mode = int(n in (3, 4, 6))

    return m, lambda: m, between


@case
def no_graph_part_writes():
    class M:
        h, n = 0, 0

        def __call__(self, x):
            y = x * 2
            note(y)
            return y + 1

    m = M()
    import gfxgraph

    @gfxgraph.no_graph
    def note(y):
        m.h = m.h + y
        m.n += 1

    return m, lambda: m


@case
def no_graph_part_reads_what_is_written():
    class M:
        def __init__(self):
            self.h, self.n, self.log = torch.zeros(2, 4), 0, []

        def __call__(self, x):
            self.n += 1
            self.h = self.h + x
            note()
            self.h = self.h * 2
            return self.h

    m = M()
    import gfxgraph

    @gfxgraph.no_graph
    def note():
        m.log.append((m.n, m.h))

    return m, lambda: m


@case
def branch_then_state_read_on_host():
    class M:
        def __init__(self):
            self.h, self.n = torch.zeros(2, 4), 0

        def __call__(self, x):
            self.n += 1
            self.h = self.h * 0.5 + x
            if (self.h > 0).all():
                self.h = -self.h
            self.top = self.h.amax().item()
            return self.h

    m = M()
    return m, lambda: m


@case
def value_read_becomes_key():
    class M:
        def __init__(self):
            self.d = {}

        def __call__(self, x):
            k = int((x > 0).sum()) % 2
            self.d[k] = x * 2
            return x + k

    m = M()
    return m, lambda: m


@case
def value_read_becomes_list_position():
    l = [None, None, None]

    def fn(x):
        k = int((x > 0).sum()) % 3
        l[k] = x * 2
        return x + k

    return fn, lambda: l


@case
def value_read_becomes_state():
    class M:
        k = 0

        def __call__(self, x):
            r = x * (1 + self.k)
            self.k = int((x > 0).sum()) % 2
            return r

    m = M()
    return m, lambda: m


@case
def early_return_on_data_leaves_state():
    class M:
        def __init__(self):
            self.h, self.skipped = torch.zeros(2, 4), 0

        def __call__(self, x):
            if x.sum() < 0:
                self.skipped += 1
                return self.h
            self.h = self.h + x
            return self.h

    m = M()
    return m, lambda: m


@case
def raises_on_data_sometimes_after_graphs():
    class M:
        h, n = 0, 0

        def __call__(self, x):
            self.h = x * 2
            if x[0, 0] > 0.5:
                self.n = 1
                raise ValueError("big")
            self.n = 2
            return self.h

    m = M()
    return m, lambda: m


@case
def random_draws_are_kept():
    class M:
        def __call__(self, x):
            self.noise = torch.randn_like(x)
            self.keep = torch.bernoulli(torch.full((2, 4), 0.5))
            return x + self.noise * self.keep

    m = M()
    return m, lambda: m


@case
def state_on_closure_of_hook_of_child():
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    prev = [None]

    def hook(mod, args, out):
        mixed = out if prev[0] is None else out + prev[0]
        prev[0] = out
        return mixed

    m[1].register_forward_hook(hook)

    def between(n):
        if n == 5:
            prev[0] = None

    return m, lambda: prev, between


@case
def running_stats_in_floats_and_tensors():
    class M:
        def __init__(self):
            self.mean, self.count, self.m2 = torch.zeros(4), 0, torch.zeros(4)

        def __call__(self, x):
            self.count += x.shape[0]
            delta = x.mean(0) - self.mean
            self.mean = self.mean + delta / self.count
            self.m2 = self.m2 + delta * (x.mean(0) - self.mean)
            return (x - self.mean) / (self.m2 / max(self.count - 1, 1) + 1e-5).sqrt()

    m = M()
    return m, lambda: m


@case
def state_through_a_weak_proxy():
    class S:
        h = 0

    class M:
        def __init__(self):
            self.s = S()
            self.p = weakref.proxy(self.s)

        def __call__(self, x):
            self.p.h = self.p.h + x
            return self.p.h

    m = M()
    return m, lambda: vars(m.s)


@case
def state_through_a_weak_reference():
    class S:
        h = 0

    class M:
        def __init__(self):
            self.s = S()
            self.r = weakref.ref(self.s)

        def __call__(self, x):
            s = self.r()
            s.h = s.h + x
            return s.h

    m = M()
    return m, lambda: vars(m.s)


@case
def state_in_mapping_proxy_and_view():
    d = {"h": torch.zeros(2, 4), "n": 0}
    view, values = types.MappingProxyType(d), d.values()

    def fn(x):
        d["h"] = view["h"] + x
        d["n"] = view["n"] + 1
        return list(values)[0] * 2

    return fn, lambda: d


@case
def state_by_object_dict_reference():
    class M:
        pass

    m = M()
    m.h = torch.zeros(2, 4)
    d = vars(m)

    def fn(x):
        d["h"] = m.h + x
        return m.h

    def between(n):
        if n == 4:
            m.h = torch.ones(2, 4)
        if n == 6:
            m.__dict__ = {"h": torch.ones(2, 4)}

    return fn, lambda: (m, d), between


@case
def state_in_type_by_mapping():
    class C:
        h = 0

    def fn(x):
        C.h = C.__dict__["h"] + x
        return vars(C)["h"] * 2

    return fn, lambda: C.h


@case
def slots_and_dict_and_inheritance():
    class A:
        __slots__ = ("h",)

    class B(A):
        pass

    m = B()
    m.h, m.g = torch.zeros(2, 4), torch.zeros(2, 4)

    def fn(x):
        m.g = m.h
        m.h = m.h + x
        return m.h + m.g

    return fn, lambda: (m.h, m.g)


@case
def slots_written_only():
    class A:
        __slots__ = ("h", "k")

    m = A()

    def fn(x):
        m.h = x * 2
        m.k = 1
        return x + 1

    def between(n):
        if n == 4:
            del m.h
            m.k = 7

    return fn, lambda: m, between


@case
def name_mangled_and_odd_attribute_names():
    class M:
        def __init__(self):
            self.__h = torch.zeros(2, 4)

        def __call__(self, x):
            self.__h = self.__h + x
            setattr(self, "not a name", x * 2)
            setattr(self, "", 1)
            setattr(self, "ünï", self.__h)
            return self.__h

    m = M()
    return m, lambda: m


@case
def huge_numbers():
    class M:
        n, k = 2**62, -(2**63)

        def __call__(self, x):
            self.n += 2**62
            self.k -= 1
            return x + 1

    m = M()
    return m, lambda: m


@case
def counter_reaches_limit_of_comparison_in_hook():
    m = nn.Sequential(nn.Tanh(), nn.Tanh())
    seen = {"n": 0}

    def hook(mod, args, out):
        seen["n"] += 1

    def late(mod, args, out):
        if seen["n"] >= 5:
            return out * 0

    m[0].register_forward_hook(hook)
    m[1].register_forward_hook(late)
    return m, lambda: seen


@case
def two_counters_one_read():
    class M:
        a = b = 0

        def __call__(self, x):
            self.a += 1
            self.b = (self.b + 1) % 2
            return x * (self.b + 1)

    m = M()

    def between(n):
        if n == 5:
            m.a = 0.5
        if n == 6:
            m.a = 1
        if n == 7:
            m.b = 0

    return m, lambda: m, between


@case
def counter_first_read_after_many_calls():
    class M:
        n, log = 0, False

        def __call__(self, x):
            self.n += 1
            if self.log:
                return x * self.n
            return x

    m = M()

    def between(n):
        m.log = n in (4, 5, 7)

    return m, lambda: m, between


@case
def unread_place_first_read_after_many_calls():
    class M:
        h, use = None, False

        def __call__(self, x):
            k = "none" if self.use and self.h is None else "other"
            self.h = x * 2
            return x * len(k)

    m = M()

    def between(n):
        m.use = n in (4, 5, 7)
        if n in (5, 6):
            m.h = None

    return m, lambda: m, between


@case
def state_is_the_previous_result_object():
    class Out:
        def __init__(self, y, prev):
            self.y, self.prev = y, prev

    class M:
        last = None

        def __call__(self, x):
            prev = None if self.last is None else self.last.y
            self.last = Out(x if prev is None else x + prev, prev)
            return self.last

    m = M()

    def between(n):
        if n == 5:
            m.last.y = torch.ones(2, 4)

    return m, lambda: m, between


@case
def object_with_setattr_is_made():
    log = []

    class Out:
        def __setattr__(self, k, v):
            log.append(k)
            object.__setattr__(self, k, v)

    def fn(x):
        del log[:]
        o = Out()
        o.y = x * 2
        return o

    return fn, lambda: log


@case
def object_of_metaclass_that_counts():
    class Meta(type):
        made = 0

        def __call__(cls, *args):
            Meta.made += 1
            return super().__call__(*args)

    class Out(metaclass=Meta):
        def __init__(self, y):
            self.y = y

    return (lambda x: Out(x * 2)), lambda: Meta.made


@case
def object_with_number_of_instance():
    numbers = itertools.count()

    class Out:
        def __init__(self, y):
            self.y, self.id = y, next(numbers)

    return (lambda x: Out(x * 2)), lambda: repr(numbers)


@case
def object_class_changed_between():
    class A:
        def __init__(self, y):
            self.y = y

    class B(A):
        pass

    holder = SimpleNamespace(cls=A)

    def fn(x):
        return holder.cls(x * 2)

    def between(n):
        if n == 4:
            holder.cls = B
        if n == 6:
            A.__init__ = lambda self, y: self.__dict__.update(z=y)

    return fn, lambda: (), between


@case
def object_slots_with_unset_and_order():
    class Out:
        __slots__ = ("a", "b", "__dict__")

        def __init__(self, y):
            self.z, self.b, self.c = 1, y, (y, y)

    return (lambda x: Out(x * 2)), lambda: ()


@case
def object_int_and_str_subclasses():
    class I(int):
        pass

    class S(str):
        pass

    def fn(x):
        i = I(5)
        i.y = x * 2
        return SimpleNamespace(i=i, s=S("a"), y=x * 3)

    return fn, lambda: ()


@case
def object_with_mutable_default_shared():
    class Out:
        shared = []

        def __init__(self, y):
            self.y, self.l = y, Out.shared

    return (lambda x: Out(x * 2)), lambda: Out.shared


@case
def object_returned_twice_over_calls():
    class M:
        out = None

        def __call__(self, x):
            if self.out is None:
                self.out = SimpleNamespace(y=None, k=0)
            self.out.y = x * 2
            return self.out

    m = M()

    def between(n):
        if n == 5:
            m.out = None

    return m, lambda: m, between


@case
def exception_text_with_counter():
    class M:
        n = 0

        def __call__(self, x):
            self.n += 1
            if x.shape[0] == 3:
                raise ValueError(f"call {self.n}")
            return x * 2

    m = M()

    def between(n):
        if n in (4, 6):
            return torch.ones(3, 4)

    return m, lambda: m, between


@case
def exception_after_in_place_writes():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            self.h.add_(1)
            self.k = x * 2
            if x.shape[0] == 3:
                raise ValueError("three")
            return self.h + x

    m = M()

    def between(n):
        if n in (4, 6):
            return torch.ones(3, 4)

    return m, lambda: m, between


@case
def keyboard_like_exception_in_hook():
    class Stop(BaseException):
        pass

    class M:
        n, h = 0, None

        def step(self, x):
            self.n = (self.n + 1) % 3
            self.h = x * 2
            if self.n == 2:
                raise Stop
            return x * 3

        def __call__(self, x):
            try:
                return self.step(x)
            except Stop:
                return self.h

    m = M()
    return m, lambda: m


@case
def restores_state_after_use():
    class M:
        def __init__(self):
            self.h = torch.zeros(2, 4)

        def __call__(self, x):
            saved = dict(vars(self))
            self.h = self.h + x
            self.tmp = x * 2
            r = self.h + self.tmp
            vars(self).clear()
            vars(self).update(saved)
            return r

    m = M()

    def between(n):
        if n == 4:
            m.h = torch.ones(2, 4)
        if n == 6:
            m.extra = 1

    return m, lambda: m, between


@case
def temporarily_patched_method():
    class M:
        def act(self, x):
            return x * 2

        def __call__(self, x):
            self.act = lambda y: y * 3
            try:
                self.last = self.act(x)
            finally:
                del self.act
            return self.last + self.act(x)

    m = M()
    return m, lambda: m


@case
def wide_state_of_lists_of_dicts():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [{"k": torch.zeros(2, 4), "v": None, "n": 0} for _ in range(4)]

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                layer["k"] = layer["k"] * 0.5 + x
                layer["v"] = layer["k"] if i % 2 else x
                layer["n"] += 1
                x = x + layer["v"]
            return x

    m = M()

    def between(n):
        if n == 4:
            m.layers[1]["k"] = torch.ones(2, 4)
        if n == 6:
            m.layers.reverse()
        if n == 7:
            m.layers.append({"k": torch.zeros(2, 4), "v": None, "n": 0})

    return m, lambda: m, between


@case
def same_dict_in_two_lists():
    d = {"h": torch.zeros(2, 4)}
    a, b = [d], [d]

    def fn(x):
        a[0]["h"] = a[0]["h"] + x
        b[0]["h"] = b[0]["h"] * 2
        return a[0]["h"]

    def between(n):
        if n == 4:
            b[0] = {"h": torch.ones(2, 4)}
        if n == 6:
            b[0] = a[0]

    return fn, lambda: (a, b), between


@case
def objects_by_turns_in_ring():
    class M:
        def __init__(self):
            self.ring, self.i = [SimpleNamespace(h=None) for _ in range(2)], 0

        def __call__(self, x):
            s = self.ring[self.i]
            s.h = x * 2 if s.h is None else s.h + x
            self.i = (self.i + 1) % 2
            return s.h

    m = M()

    def between(n):
        if n == 6:
            m.ring[0] = SimpleNamespace(h=None)

    return m, lambda: m, between


@case
def rotated_objects_are_written():
    q = collections.deque(
        [SimpleNamespace(h=torch.zeros(2, 4)), SimpleNamespace(h=torch.ones(2, 4))]
    )

    def fn(x):
        q.rotate(1)
        q[0].h = q[0].h + x
        return q[0].h

    return fn, lambda: q


@case
def pointer_to_one_of_two_objects():
    class M:
        def __init__(self):
            self.a, self.b = (
                SimpleNamespace(h=torch.zeros(2, 4)),
                SimpleNamespace(h=torch.ones(2, 4)),
            )
            self.cur = self.a

        def __call__(self, x):
            self.cur.h = self.cur.h + x
            return self.cur.h

    m = M()

    def between(n):
        if n in (3, 6):
            m.cur = m.b
        if n == 5:
            m.cur = m.a

    return m, lambda: m, between


@case
def pointer_advanced_in_the_call():
    class M:
        def __init__(self):
            self.a, self.b = (
                SimpleNamespace(h=torch.zeros(2, 4)),
                SimpleNamespace(h=torch.ones(2, 4)),
            )
            self.a.next, self.b.next = self.b, self.a
            self.cur = self.a

        def __call__(self, x):
            self.cur.h = self.cur.h + x
            r = self.cur.h
            self.cur = self.cur.next
            return r

    m = M()
    return m, lambda: m


# ---- questions that are first asked after many calls

_LATE = {
    "is_none": lambda m: m.h is None,
    "is_not_none": lambda m: m.h is not None,
    "is_by_operator": lambda m: operator.is_(m.h, None),
    "isinstance": lambda m: isinstance(m.h, torch.Tensor),
    "type": lambda m: type(m.h) is torch.Tensor,
    "class": lambda m: m.h.__class__ is torch.Tensor,
    "is_tensor": lambda m: torch.is_tensor(m.h),
    "vars": lambda m: vars(m)["h"] is None,
    "values": lambda m: None in [v for v in vars(m).values() if not isinstance(v, torch.Tensor)],
    "getattr": lambda m: getattr(m, "h", 1) is None,
    "identity": lambda m: m.h is m.g,
    "callable": lambda m: callable(m.h),
    "in": lambda m: any(v is m.h for v in (None, 1)),
    "match": lambda m: _matched(m.h) == 3,
    "id": lambda m: id(m.h) == id(None),
}


def _late(name, read):
    class M:
        def __init__(self):
            self.h, self.g, self.use = None, None, False

    def by_configuration():
        m = M()

        def fn(x):
            k = 2 if m.use and read(m) else 3
            m.h = x * 2
            return x * k

        def between(n):
            m.use = n in (3, 4, 5, 7)
            if n in (4, 7):
                m.h = None

        return fn, lambda: m, between

    def by_data():
        m = M()

        def fn(x):
            k = 2 if x[0, 0] > 0 and read(m) else 3
            m.h = x * 2
            return x * k

        def between(n):
            if n in (4, 7):
                m.h = None
            return torch.full((2, 4), 1.0 if n in (3, 4, 5, 7) else -1.0)

        return fn, lambda: m, between

    for made in (by_configuration, by_data):
        made.__name__ = f"late_{name}_{made.__name__}"
        case(made)


for _name_, _read_ in _LATE.items():
    _late(_name_, _read_)


# ---- what objects hold in C, and kinds of tensors


@case
def state_negated_view():
    m = SimpleNamespace(h=None)

    def fn(x):
        c = (x * (1 + 2j)).conj()
        m.h = c.imag
        return m.h + 1

    return fn, lambda: m


@case
def result_is_a_negated_view():
    def fn(x):
        return torch._neg_view(x * 2)

    return fn, lambda: None


@case
def parameter_made_anew_without_grad():
    m = nn.Module()
    m.w = nn.Parameter(torch.ones(4))

    def fn(x):
        m.w = nn.Parameter(m.w + x[0], requires_grad=False)
        return x * m.w

    return fn, lambda: m


@case
def result_is_parameter():
    m = SimpleNamespace(n=0)

    def fn(x):
        return nn.Parameter(x * 2, requires_grad=False)

    return fn, lambda: m


@case
def parameter_stored_in_list():
    m = SimpleNamespace(l=[nn.Parameter(torch.zeros(2, 4), requires_grad=False)])

    def fn(x):
        m.l[0] = nn.Parameter(m.l[0] * 0.5 + x, requires_grad=False)
        return m.l[0] * 2

    return fn, lambda: m


@case
def parameter_in_namespace_result():
    def fn(x):
        p = nn.Parameter(x * 2, requires_grad=False)
        return SimpleNamespace(p=p, d=p.data, q=[p])

    return fn, lambda: None


@case
def default_dict_factory_replaced():
    m = SimpleNamespace(d=collections.defaultdict(list))

    def fn(x):
        m.d.default_factory = dict if m.d.default_factory is list else list
        return x * 2

    return fn, lambda: m


@case
def default_dict_factory_set_to_none():
    d = collections.defaultdict(list)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        d.default_factory = None if d.default_factory else list
        m.h = m.h + x
        return m.h * (2 if d.default_factory else 3)

    return fn, lambda: (m, d)


@case
def default_dict_factory_made_in_the_call():
    d = collections.defaultdict(lambda: 1)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        k = d["a"]
        d.clear()
        d.default_factory = lambda: 3 - k
        m.h = m.h + x * k
        return m.h * 2

    return fn, lambda: (m, d.default_factory())


@case
def old_exception_gets_arguments():
    e = ValueError(1)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        e.args = (e.args[0] + 1,)
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m, e.args)


@case
def old_exception_gets_a_cause():
    e = ValueError(1)
    m = SimpleNamespace(h=torch.zeros(2, 4), k=KeyError(2))

    def fn(x):
        e.__cause__ = None if e.__cause__ is m.k else m.k
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m, e.__cause__ is m.k, e.__suppress_context__)


@case
def old_exception_gets_a_note():
    e = ValueError(1)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        e.add_note("n")
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m, e.__notes__)


@case
def old_exception_raised_and_caught():
    e = ValueError(1)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        try:
            raise e
        except ValueError as f:
            m.same = f is e
        m.h = m.h + x
        return m.h * 2

    def look():
        n, t = 0, e.__traceback__
        while t:
            n, t = n + 1, t.tb_next
        return m, n

    return fn, look


@case
def old_exception_raised_while_another_is_handled():
    e = ValueError(1)
    m = SimpleNamespace(h=torch.zeros(2, 4), n=0)

    def fn(x):
        m.n += 1
        try:
            try:
                raise KeyError(m.n % 2)
            except KeyError:
                raise e
        except ValueError:
            pass
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m, e.__context__.args)


@case
def text_of_a_function_written():
    def g():
        "a"

    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        g.__doc__ = "b" if g.__doc__ == "a" else "a"
        m.h = m.h + x
        return m.h * (2 if g.__doc__ == "a" else 3)

    return fn, lambda: (m, g.__doc__)


@case
def module_of_a_function_written():
    def g(x):
        return x * 2

    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        g.__module__ = "b" if g.__module__ == "a" else "a"
        g.__kwdefaults__ = {"k": len(g.__module__)}
        m.h = m.h + x
        return m.h * 1

    return fn, lambda: (m, g.__module__, g.__kwdefaults__)


@case
def bases_of_a_class_swapped():
    class A:
        k = 2

    class B:
        k = 3

    class C(A):
        pass

    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        C.__bases__ = (B,) if C.k == 2 else (A,)
        m.h = m.h + x
        return m.h * C.k

    return fn, lambda: (m, C.k)


@case
def name_of_a_class_written():
    class A:
        pass

    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        A.__name__ = "B" if A.__name__ == "A" else "A"
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m, A.__name__)


@case
def memoryview_released_and_made_anew():
    b = bytearray(4)
    m = SimpleNamespace(h=torch.zeros(2, 4), v=memoryview(b))

    def fn(x):
        m.v.release()
        m.v = memoryview(b)
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m.h, len(m.v))


@case
def decimal_context_written():
    c = decimal.Context(prec=5)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        c.prec = 11 - c.prec
        m.h = m.h + x
        return m.h * float(c.divide(1, 3))

    return fn, lambda: (m, c.prec)


@case
def decimal_flags_set():
    c = decimal.Context(prec=5)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        c.divide(1, 3)
        m.h = m.h + x
        return m.h * 2

    def between(n):
        if n == 3:
            c.clear_flags()

    return fn, lambda: (m, c.flags[decimal.Inexact]), between


@case
def numpy_flags_written():
    a = np.zeros(3)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        a.flags.writeable = not a.flags.writeable
        m.h = m.h + x
        return m.h * (2 if a.flags.writeable else 3)

    return fn, lambda: (m, a.flags.writeable)


@case
def numpy_shape_written():
    a = np.zeros(4)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        a.shape = (2, 2) if a.ndim == 1 else (4,)
        m.h = m.h + x
        return m.h * a.ndim

    return fn, lambda: (m, a.shape)


@case
def numpy_array_resized():
    a = np.zeros(4)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        a.resize(len(a) + 1, refcheck=False)
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m, a.shape)


@case
def numpy_objects_written():
    a = np.empty(2, dtype=object)
    a[0] = torch.zeros(2, 4)
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        a[0] = a[0] + x
        a[1] = "b" if a[1] == "a" else "a"
        return a[0] * 2

    return fn, lambda: (a[0], a[1])


@case
def lock_left_held():
    l = threading.Lock()
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        if l.locked():
            l.release()
        else:
            l.acquire()
        m.h = m.h + x
        return m.h * (2 if l.locked() else 3)

    return fn, lambda: (m, l.locked())


@case
def lock_taken_once_more_in_each_call():
    l = threading.RLock()
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        l.acquire()
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (
        m.h,
        l._recursion_count()
        if hasattr(l, "_recursion_count")
        else repr(l).split("count=")[1].split(" ")[0],
    )


@case
def scanner_goes_on():
    s = re.compile("a").scanner("aaaaaaaaaaaaaaaaaaa")
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        k = s.match()
        m.h = m.h + x * k.start()
        return m.h * 2

    return fn, lambda: m.h


@case
def context_written_by_run():
    v = contextvars.ContextVar("v", default=0)
    c = contextvars.copy_context()
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        c.run(v.set, 3 if c.get(v) != 3 else 4)
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m, c.get(v))


@case
def context_entered_and_written():
    v = contextvars.ContextVar("v")
    v.set(1)
    c = contextvars.copy_context()
    m = SimpleNamespace(h=torch.zeros(2, 4))

    def inner(x):
        v.set(v.get() + 1)
        m.h = m.h + x
        return v.get()

    def fn(x):
        k = c.run(inner, x)
        return x * k

    return fn, lambda: (m, c[v], v.get())


@case
def hook_of_a_weight_replaced():
    w = nn.Parameter(torch.ones(4))
    m = SimpleNamespace(h=torch.zeros(2, 4), hd=None)

    def fn(x):
        if m.hd is not None:
            m.hd.remove()
        m.hd = w.register_hook(lambda g: g * 2)
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m.h, len(w._backward_hooks))


@case
def compressor_goes_on():
    packer, m = zlib.compressobj(), SimpleNamespace(h=torch.zeros(2, 4))

    def fn(x):
        packer.compress(b"a")
        m.h = m.h + x
        return m.h * 2

    return fn, lambda: (m, packer.copy().flush())


@case
def attribute_of_a_module_taken_out_and_set():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = torch.zeros(2, 4)

        def forward(s, x):
            old = s.a
            del s.a
            s.a = old + x
            return s.a * 1

    m = M()

    def between(n):
        if n in (3, 5):
            setattr(m, f"u{n}", n)

    return m, lambda: m, between


@case
def attribute_of_a_class_taken_out_and_set():
    class M:
        a = torch.zeros(2, 4)

    def fn(x):
        old = M.a
        del M.a
        M.a = old + x
        return M.a * 1

    def between(n):
        if n in (3, 5):
            setattr(M, f"u{n}", n)

    return fn, lambda: [k for k in vars(M) if not k.startswith("__")], between


@case
def two_dicts_cleared_by_turns():
    d, e = {}, {}

    def fn(x):
        d["b"] = x
        e["q"] = x
        d["a"] = x * 2
        e["p"] = x * 3
        return x + 1

    def between(n):
        if n == 3:
            d.clear()
        if n == 4:
            e.clear()
        if n == 5:
            d.pop("a")
            e.pop("q")

    return fn, lambda: (d, e), between


@case
def attributes_of_a_module_missing_by_turns():
    class M(nn.Module):
        def forward(s, x):
            s.b = x
            s.a = x * 2
            return x + 1

    m = M()

    def between(n):
        if n == 3:
            del m.a, m.b
        if n == 4:
            del m.a
        if n == 5:
            del m.b

    return m, lambda: m, between


@case
def error_of_a_compressor_swallowed():
    c = zlib.compressobj()
    m = SimpleNamespace(h=torch.zeros(2, 4), errors=0, done=0)

    def fn(x):
        m.h = m.h + x
        try:
            c.compress(b"a")
        except Exception:
            m.errors += 1
        m.done += 1
        return m.h * 2

    return fn, lambda: (m, c.copy().flush())


# ---- the harness

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)
_BY_TYPE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.GeneratorType,
    types.ModuleType,
    type(threading.Lock()),
    contextvars.ContextVar,
    functools.partial,
    itertools.count,
    slice,
    range,
    type(...),
)


class Difference(Exception):
    pass


def _name(item):
    return f"{type(item).__module__}.{type(item).__qualname__}"


class Pairs:
    """Walks two worlds side by side; what has an identity is noted."""

    def __init__(self):
        self.found = []  # path, ours, theirs
        self._met = set()

    def walk(self, path, a, b):
        if _name(a) != _name(b):
            raise Difference(f"{path}: type {_name(b)} instead of {_name(a)}")
        if isinstance(a, type):
            if a.__qualname__ != b.__qualname__:
                raise Difference(f"{path}: {b} instead of {a}")
            return
        if isinstance(a, _PLAIN):
            self._plain(path, a, b)
            return
        if isinstance(a, _BY_TYPE):
            return
        self.found.append((path, a, b))
        if (id(a), id(b)) in self._met:
            return
        if isinstance(a, (tuple, frozenset)) and all(isinstance(v, _PLAIN) for v in a):
            self.found.pop()  # it has no identity that somebody could rely on
        self._met.add((id(a), id(b)))
        if isinstance(a, torch.Tensor):
            self._tensor(path, a, b)
        elif isinstance(a, np.ndarray):
            if a.dtype != b.dtype or a.shape != b.shape or not np.allclose(a, b, equal_nan=True):
                raise Difference(f"{path}: {b} instead of {a}")
        elif isinstance(a, (bytearray, np.generic)):
            if a != b:
                raise Difference(f"{path}: {b} instead of {a}")
        elif isinstance(a, dict):
            self._keys(path, list(a), list(b))
            if isinstance(a, collections.defaultdict):
                self.walk(f"{path}.default_factory", a.default_factory, b.default_factory)
            for (k, v), w in zip(a.items(), b.values(), strict=True):
                self.walk(f"{path}[{_short(k)}]", v, w)
        elif isinstance(a, (list, tuple, collections.deque)):
            if len(a) != len(b):
                raise Difference(f"{path}: length {len(b)} instead of {len(a)}")
            if isinstance(a, collections.deque) and a.maxlen != b.maxlen:
                raise Difference(f"{path}: maxlen {b.maxlen} instead of {a.maxlen}")
            for i, (v, w) in enumerate(zip(a, b, strict=True)):
                self.walk(f"{path}[{i}]", v, w)
        elif isinstance(a, (set, frozenset)):
            if all(isinstance(v, (*_PLAIN, tuple)) for v in a):
                if a != b:
                    raise Difference(f"{path}: {b} instead of {a}")
            elif len(a) != len(b):
                raise Difference(f"{path}: length {len(b)} instead of {len(a)}")
            elif len(a) == 1:
                self.walk(f"{path}.one", next(iter(a)), next(iter(b)))
        elif isinstance(a, weakref.ref):
            self.walk(f"{path}()", a(), b())
            return
        elif isinstance(a, BaseException):
            self.walk(f"{path}.args", a.args, b.args)
        self._attributes(path, a, b)

    def _plain(self, path, a, b):
        if isinstance(a, enum.Enum):
            a, b = a.name, b.name
        if isinstance(a, float):
            same = a == b or (a != a and b != b) or abs(a - b) <= 1e-5 * (1 + abs(a))
        else:
            same = a == b
        if not same:
            raise Difference(f"{path}: {b!r} instead of {a!r}")

    def _keys(self, path, a, b):
        plain = all(isinstance(k, (*_PLAIN, tuple)) for k in a)
        if len(a) != len(b) or (plain and (a != b or list(map(type, a)) != list(map(type, b)))):
            raise Difference(f"{path}: keys {_short(b)} instead of {_short(a)}")

    def _tensor(self, path, a, b):
        for what in ("dtype", "shape", "requires_grad", "device", "layout", "is_leaf"):
            if getattr(a, what) != getattr(b, what):
                raise Difference(f"{path}: {what} {getattr(b, what)} instead of {getattr(a, what)}")
        if a.layout is torch.strided and a.stride() != b.stride():
            raise Difference(f"{path}: stride {b.stride()} instead of {a.stride()}")
        for what in ("is_inference", "is_conj", "is_neg"):
            if getattr(a, what)() != getattr(b, what)():
                raise Difference(f"{path}: {what}() is {getattr(b, what)()}")
        with torch.no_grad():
            try:
                torch.testing.assert_close(
                    b.detach().as_subclass(torch.Tensor),
                    a.detach().as_subclass(torch.Tensor),
                    equal_nan=True,
                )
            except AssertionError:
                raise Difference(f"{path}: values {b.tolist()} instead of {a.tolist()}") from None

    def _attributes(self, path, a, b):
        ours, theirs = getattr(a, "__dict__", None), getattr(b, "__dict__", None)
        if isinstance(ours, dict):
            left, right = (
                {
                    k: v
                    for k, v in d.items()
                    if not (isinstance(a, nn.Module) and "hook" in k)
                    and not str(k).startswith("__gfxgraph_")
                    and not k.startswith("__gfxgraph_")
                }
                for d in (ours, theirs)
            )
            if list(left) != list(right):
                raise Difference(f"{path}: attributes {list(right)} instead of {list(left)}")
            for k in left:
                self.walk(f"{path}.{k}", left[k], right[k])
        for cls in type(a).__mro__:
            for k, v in list(vars(cls).items()):
                if type(v) is types.MemberDescriptorType and cls.__module__ == __name__:
                    self._slot(f"{path}.{k}", v, vars(_twin(b, cls))[k], a, b)

    def _slot(self, path, ours, theirs, a, b):
        missing = object()

        def get(slot, item):
            try:
                return slot.__get__(item)
            except AttributeError:
                return missing

        v, w = get(ours, a), get(theirs, b)
        if (v is missing) != (w is missing):
            raise Difference(f"{path}: {w!r} instead of {v!r}")
        if v is not missing:
            self.walk(path, v, w)


def _twin(item, cls):
    return next(c for c in type(item).__mro__ if c.__qualname__ == cls.__qualname__)


def _short(item):
    return repr(item)[:120]


def _memory(item):
    if isinstance(item, np.ndarray):
        while isinstance(item.base, np.ndarray):
            item = item.base
        return item.__array_interface__["data"][0] if item.size else None
    if isinstance(item, torch.Tensor) and item.layout is torch.strided and item.numel():
        return item.untyped_storage().data_ptr()
    return None


def compare_aliasing(found):
    """Which are one object, and which share memory, has to be the same in both worlds."""
    for what, of in (("is", id), ("shares memory with", _memory)):
        first, second = {}, {}
        for n, (path, a, b) in enumerate(found):
            if what == "is" and isinstance(a, np.generic):
                continue
            keys = of(a), of(b)
            if None in keys:
                continue
            at, bt = first.setdefault(keys[0], n), second.setdefault(keys[1], n)
            if at != bt:
                ours, theirs = (
                    f"{what} {found[k][0]}" if k != n else f"{what} nothing before"
                    for k in (at, bt)
                )
                raise Difference(f"{path} {theirs} instead of: {ours}")


@contextlib.contextmanager
def _wrapping(wrap):
    _wraps.append(wrap)
    try:
        yield
    finally:
        _wraps.pop()


def outcome(fn, x):
    try:
        return "returned", fn(x)
    except Exception as error:
        return "raised", error


class Eager:
    """In place of a graph, to look at the harness itself."""

    def __init__(self, fn):
        self.fn = fn

    def __call__(self, *args, **kwargs):
        return self.fn(*args, **kwargs)

    def __get__(self, owner, cls=None):
        return self if owner is None else types.MethodType(self.fn, owner)

    def stats(self):
        return SimpleNamespace(replays=0)


def compare(name, calls=8, hold=True, wrap=None, device="cpu"):
    """The first difference, or ``None``; the graphed callable."""
    import gfxgraph

    torch.manual_seed(0)
    with torch.device(device):
        eager, *ours = CASES[name]()
    torch.manual_seed(0)
    with torch.device(device), _wrapping(wrap or gfxgraph.graphed):
        plain, *theirs = CASES[name]()
    graph = (wrap or gfxgraph.graphed)(plain)
    look, between = ours[0], (ours[1] if len(ours) > 1 else lambda n: None)
    look_, between_ = theirs[0], (theirs[1] if len(theirs) > 1 else lambda n: None)
    held, history, aliasing = [], [], None
    for n in range(calls):
        made = torch.randn(2, 4, generator=torch.Generator().manual_seed(100 + n)).to(device)
        with torch.no_grad():
            worlds = []
            for fn, before, show in ((eager, between, look), (graph, between_, look_)):
                torch.manual_seed(500 + n)
                random.seed(n)
                try:
                    how = (wrap or gfxgraph.graphed) if fn is graph else _wraps[0]
                    with torch.device(device), _wrapping(how):
                        given = before(n)
                except Exception as error:
                    given = error
                x = given if isinstance(given, torch.Tensor) else made.clone()
                how, result = outcome(fn, x)
                if how == "raised" and fn is graph and worlds[0][1] != "raised":
                    return f"call {n}: raised {result!r}", graph
                rng = torch.get_rng_state(), random.getstate()[1][:3]
                try:
                    state = show()
                except Exception as error:
                    state = error
                worlds.append((x, how, result, state, rng, given))
        (x, how, result, state, rng, given), (x_, how_, result_, state_, rng_, given_) = worlds
        del worlds
        try:
            if isinstance(given, Exception) or isinstance(given_, Exception):
                if repr(given) != repr(given_):
                    raise Difference(f"between: {given_!r} instead of {given!r}")
            if how != how_:
                raise Difference(f"{how_} {_short(result_)} instead of {how} {_short(result)}")
            walker = Pairs()
            walker.walk("x", x, x_)
            if how == "raised":
                if type(result).__name__ != type(result_).__name__ or str(result) != str(result_):
                    raise Difference(f"raised {result_!r} instead of {result!r}")
            else:
                walker.walk("result", result, result_)
            walker.walk("state", state, state_)
            if not torch.equal(rng[0], rng_[0]) or rng[1] != rng_[1]:
                raise Difference("random generators")
            given_memory = {_memory(p[1]) for p in [*history, *walker.found] if p[0][-1:] == "x"}
            now = [
                p
                for p in walker.found
                if not (p[0].startswith("result") and _memory(p[1]) in given_memory - {None})
            ]
            if aliasing is None:
                try:
                    compare_aliasing([*history, *now])
                except Difference as found:
                    aliasing = f"call {n}: {found}"  # are values different later?
            if hold:
                history += [(f"call {n} {p[0]}", *p[1:]) for p in now]
                again = Pairs()
                for p in history:
                    if isinstance(p[1], torch.Tensor) and p[1].layout is torch.strided:
                        again._tensor(p[0] + " by now", p[1], p[2])
        except Difference as found:
            return " -- and before, ".join(filter(None, (f"call {n}: {found}", aliasing))), graph
        if hold:
            held.append((x, result, state, x_, result_, state_))
        del x, result, state, x_, result_, state_, walker, now, given, given_
    return aliasing, graph


def main():
    import warnings

    warnings.simplefilter("ignore")
    logging.getLogger("gfxgraph").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    args = sys.argv[1:]
    hold = "--drop" not in args
    verbose = "-v" in args
    calls = next((int(a[8:]) for a in args if a.startswith("--calls=")), 8)
    names = [a for a in args if not a.startswith("-")] or list(CASES)
    differing, without = [], []
    for name in names:
        began = time.monotonic()
        _made.clear()
        try:
            found, graph = compare(name, calls, hold, Eager if "--eager" in args else None)
            stats = graph.stats()
            others = [g.stats().replays for g in _made if hasattr(g, "stats")]
            # Where the function of a case is only there to call the others, they count.
            replays = sum(others) if others else stats.replays
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            import traceback

            frame = traceback.extract_tb(error.__traceback__)[-1]
            found, replays, stats = (
                f"HARNESS {error!r} at {frame.filename}:{frame.lineno}",
                -1,
                None,
            )
        if found:
            differing.append(name)
        if not replays:
            without.append(name)
        print(
            f"{'DIFFERS' if found else 'same   '} {name}: {replays} replays "
            f"({time.monotonic() - began:.1f} s){' -- ' + found[:600] if found else ''}",
            flush=True,
        )
        if verbose and stats is not None:
            for shown in [g.stats() for g in _made if hasattr(g, "stats")] or [stats]:
                print(shown, flush=True)
    print(f"{len(names)} cases, {len(differing)} differ: {differing}")
    print(f"{len(names) - len(without)} with replays, {len(without)} without: {without}")


if __name__ == "__main__":
    main()
