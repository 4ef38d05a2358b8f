"""Functions that write to what they are given: objects, dicts, lists and deques among the arguments.

Each case makes ``fn, make`` or ``fn, make, between`` or ``fn, make, between, look``: the function of
an object and a tensor, what makes the object, what changes it between calls (given the object and the
number of the call), and what shows other state that is visible.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import itertools
import random
from collections import OrderedDict, UserDict, defaultdict, deque
from types import SimpleNamespace as Namespace
from typing import Any

import torch
from torch import nn

from tests.hostile.hostile_writes import Difference, Eager, Pairs, _memory, compare_aliasing

CASES = {}
WAYS = ("same", "new", "changed", "two")


def given(make):
    assert make.__name__ not in CASES, make.__name__
    CASES[make.__name__] = make
    return make


def zeros():
    return torch.zeros(2, 4)


class Plain:
    """An object that is nothing but its attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


# ---- attributes


@given
def recurrent():
    def step(state, x):
        state.h = torch.tanh(x + state.h)
        state.n += 1
        return state.h * 2

    def between(state, n):
        if n == 3:
            state.h = torch.ones(2, 4)
        if n == 4:
            state.n = 100

    return step, lambda: Namespace(h=zeros(), n=0), between


@given
def recurrent_of_a_class():
    def step(state, x):
        state.h = torch.tanh(x + state.h)
        state.n += 1
        return state.h

    return step, lambda: Plain(h=zeros(), n=0)


@given
def result_is_what_is_kept():
    def step(state, x):
        state.h = state.h + x
        return state.h

    return step, lambda: Plain(h=zeros())


@given
def keeps_the_argument():
    def step(state, x):
        state.last = x
        return x + 1

    return step, lambda: Plain(last=None)


@given
def keeps_the_argument_and_returns_it():
    def step(state, x):
        state.last = x
        return x

    return step, lambda: Plain(last=None)


@given
def swaps():
    def step(state, x):
        state.a, state.b = state.b, state.a
        return x + state.a

    return step, lambda: Plain(a=zeros(), b=zeros() + 1)


@given
def shifts():
    def step(state, x):
        state.c = state.b
        state.b = state.a
        state.a = x * 2
        return state.c + x

    return step, lambda: Plain(a=zeros(), b=zeros() + 1, c=zeros() + 2)


@given
def one_tensor_in_two_places():
    def step(state, x):
        state.a = state.b = x * 2
        return x + 1

    def between(state, n):
        if n > 2:
            state.a.add_(1)

    return step, lambda: Plain(a=zeros(), b=zeros()), between


@given
def views_of_a_result():
    def step(state, x):
        r = x * 2
        state.row, state.turned = r[0], r.t()
        return r

    def between(state, n):
        if n > 2 and state.row is not None:
            state.row.fill_(n)

    return step, lambda: Plain(row=None, turned=None), between


@given
def view_of_the_argument():
    def step(state, x):
        state.row = x[0]
        return x + 1

    return step, lambda: Plain(row=None)


@given
def view_of_what_was_there():
    def step(state, x):
        state.flat = state.h.view(-1)
        return x + state.h

    return step, lambda: Plain(h=zeros(), flat=None)


@given
def writes_in_place_and_rebinds():
    def step(state, x):
        state.h.add_(x)
        state.h = state.h * 2
        return state.h + 1

    return step, lambda: Plain(h=zeros())


@given
def writes_in_place_and_branches():
    def step(state, x):
        state.cache.add_(x)
        y = state.cache * 2 if state.cache.sum() > 0 else state.cache * 3
        x.add_(y)
        state.h = y + state.h
        return state.h + x

    return step, lambda: Plain(cache=zeros(), h=zeros())


@given
def a_cache_and_a_recurrent_state():
    def step(state, x):
        state.cache[state.at % 3].copy_(x[0])
        state.h = torch.tanh(state.h + state.cache.sum(0))
        state.at = (state.at + 1) % 2
        return state.h.clone()

    return step, lambda: Plain(cache=zeros(), h=zeros(), at=0)


@given
def appends_what_it_has_written_in_place():
    def step(state, x):
        state.h.mul_(0.5)
        state.seen = [*state.seen[-1:], state.h + x]
        return state.seen[0] * 1

    return step, lambda: Plain(h=zeros() + 1, seen=[zeros()])


@given
def writes_in_place_and_draws():
    def step(state, x):
        state.h.add_(torch.rand_like(state.h))
        state.noise = torch.rand_like(x)
        return x + state.noise

    return step, lambda: Plain(h=zeros(), noise=None)


@given
def writes_in_place_what_it_keeps():
    def step(state, x):
        state.last = x
        x.mul_(2)
        return x + 1

    return step, lambda: Plain(last=None)


@given
def plain_values():
    def step(state, x):
        state.flag, state.text, state.number, state.nothing = True, "seen", 2.5, None
        return x * state.number

    def between(state, n):
        state.flag, state.text, state.number, state.nothing = False, "", 0.0, n

    return step, lambda: Plain(flag=False, text="", number=0.0, nothing=0), between


@given
def writes_what_is_there_already():
    def step(state, x):
        state.done = True
        return x * 2

    def between(state, n):
        state.done = n % 2 == 0

    return step, lambda: Plain(done=True, other=1), between


@given
def writes_what_is_there_already_by_update():
    def step(d, x):
        d.update(done=True)
        return x * 2

    def between(d, n):
        d["done"] = n % 2 == 0

    return step, lambda: {"done": True, "other": 1}, between


@given
def writes_what_is_there_already_by_vars():
    def step(state, x):
        vars(state)["done"] = True
        return x * 2

    def between(state, n):
        state.done = n % 2 == 0

    return step, lambda: Plain(done=True, other=1), between


@given
def writes_what_is_there_already_by_setattr():
    def step(state, x):
        setattr(state, "do" + "ne", True)
        object.__setattr__(state, "more", 1)
        return x * 2

    def between(state, n):
        state.done, state.more = n % 2 == 0, n

    return step, lambda: Plain(done=True, more=1, other=1), between


@given
def deletes():
    def step(state, x):
        if hasattr(state, "h"):
            del state.h
            return x * 2
        state.h = x * 3
        return x

    return step, lambda: Plain(h=zeros(), other=1)


@given
def makes_attributes():
    def step(state, x):
        if not hasattr(state, "h"):
            state.h = x * 1
        state.h = state.h + x
        return state.h

    return step, lambda: Plain(other=1)


@given
def none_then_tensor():
    def step(state, x):
        state.h = x if state.h is None else state.h + x
        return state.h * 2

    def between(state, n):
        if n == 3:
            state.h = None

    return step, lambda: Plain(h=None), between


# ---- numbers


@given
def counts_by_two_numbers():
    def step(state, x):
        state.n += 1
        state.m = state.m - 3
        return x * 2

    def between(state, n):
        state.n += 10

    return step, lambda: Plain(n=0, m=5), between


@given
def counts_and_uses_the_number():
    def step(state, x):
        state.n += 1
        return x * state.n

    return step, lambda: Plain(n=0)


@given
def counts_and_returns_the_number():
    def step(state, x):
        state.n += 1
        return x, state.n

    return step, lambda: Plain(n=0)


@given
def counts_and_keeps_the_number_elsewhere():
    def step(state, x):
        state.before = state.n
        state.n += 1
        return x * 2

    return step, lambda: Plain(n=0, before=0)


@given
def counts_in_a_cycle():
    def step(state, x):
        state.i = (state.i + 1) % 2
        return x * 2 if state.i else x * 3

    return step, lambda: Plain(i=0)


@given
def counts_until_a_limit():
    def step(state, x):
        state.n += 1
        return x * 2 if state.n < 3 else x * 3

    return step, lambda: Plain(n=0)


@given
def counts_items():
    def step(d, x):
        d["n"] += 1
        return x * 2

    def between(d, n):
        if n == 4:
            d["n"] = 1.5
        if n == 5:
            d["n"] = True

    return step, lambda: {"n": 0, "k": "v"}, between


@given
def counts_a_bool():
    def step(state, x):
        state.n += 1
        return x * 2

    return step, lambda: Plain(n=True)


@given
def counts_what_code_in_c_reads():
    def step(d, x):
        d["n"] += 1
        return x * sum(v for v in d.values())

    return step, lambda: {"n": 0, "m": 1}


@given
def counts_twice():
    def step(state, x):
        for _ in range(3):
            state.n += 2
        return x * 2

    return step, lambda: Namespace(n=0)


@given
def counts_down_to_nothing():
    def step(state, x):
        state.n -= 1
        if not state.n:
            state.n = 3
        return x * 2

    return step, lambda: Plain(n=3)


@given
def counts_in_a_list():
    def step(counts, x):
        counts[0] += 1
        return x * 2

    return step, lambda: [0, 1]


# ---- dicts


@given
def fills_a_dict():
    def step(out, x):
        out["logits"] = x * 2
        out["x"] = x
        return out["logits"] + 1

    return step, dict


@given
def fills_and_returns_a_dict():
    def step(out, x):
        out["logits"] = x * 2
        return out

    return step, dict


@given
def normalizes_in_place():
    def step(batch, x):
        batch["x"] = (batch["x"].to(torch.float32) - 1) / 2
        batch["mask"] = batch["x"] > 0
        return x * 2

    def between(batch, n):
        batch["x"] = torch.ones(2, 4, dtype=torch.int64) * n

    return step, lambda: {"x": torch.ones(2, 4, dtype=torch.int64), "task": "pick"}, between


@given
def moves_to_where_it_is():
    def step(batch, x):
        for key in list(batch):
            batch[key] = batch[key].to(x.device)
        return batch["x"] + x

    return step, lambda: {"x": zeros(), "y": zeros() + 1}


@given
def pops():
    def step(batch, x):
        y = batch.pop("y", None)
        return x if y is None else x + y

    return step, lambda: {"x": zeros(), "y": zeros() + 1, "z": 1}


@given
def sets_defaults():
    def step(batch, x):
        batch.setdefault("y", x * 2)
        batch.setdefault("n", 3)
        return batch["y"] + x

    return step, lambda: {"x": zeros()}


@given
def updates():
    def step(batch, x):
        batch.update({"a": x * 2, "b": 1}, c="text")
        return x

    return step, lambda: {"b": 0, "x": zeros()}


@given
def merges():
    def step(batch, x):
        batch |= {"a": x * 2}
        return batch

    return step, lambda: {"x": zeros()}


@given
def clears():
    def step(batch, x):
        y = batch.get("x", x)
        batch.clear()
        return x + y

    return step, lambda: {"x": zeros(), "k": 1}


@given
def renames_a_key():
    def step(batch, x):
        if "a" in batch:
            batch["b"] = batch.pop("a")
        else:
            batch["a"] = batch.pop("b")
        return x * 2

    return step, lambda: {"a": zeros(), "k": 1}


@given
def moves_a_key_to_the_end():
    def step(batch, x):
        batch["a"] = batch.pop("a")
        return x * 2

    return step, lambda: {"a": zeros(), "b": 1, "c": zeros()}


@given
def moves_to_the_end_of_an_ordered_dict():
    def step(batch, x):
        batch.move_to_end("b", last=False)
        batch["new"] = x * 2
        return x * 2

    return step, lambda: OrderedDict(a=zeros(), b=1, c=zeros())


@given
def moves_what_is_not_read():
    def step(batch, x):
        batch["note"] = batch.pop("note")
        return x * 2

    def between(batch, n):
        batch["note"] = f"call {n}"

    return step, lambda: {"note": "", "b": 1}, between


@given
def keys_that_are_equal():
    def step(d, x):
        d[1] = x * 2
        return x

    return step, lambda: {True: zeros(), 2: 1}


class Kind(enum.Enum):
    A = 1
    B = 2


@given
def keys_that_are_enums():
    def step(d, x):
        d[Kind.B] = d[Kind.A] + x
        return d[Kind.B]

    return step, lambda: {Kind.A: zeros()}


@given
def keys_that_are_tuples():
    def step(d, x):
        d["a", 1] = x * 2
        return x

    return step, dict


@given
def a_default_dict():
    def step(d, x):
        d["new"].append(x * 2)
        return x

    return step, lambda: defaultdict(list)


@given
def a_user_dict():
    def step(d, x):
        d["new"] = d["x"] + x
        return d["new"]

    return step, lambda: UserDict(x=zeros())


@given
def a_user_dict_with_attributes():
    def step(d, x):
        d["new"] = x + 1
        d.note = "seen"
        return x

    def make():
        d = UserDict(x=zeros())
        d.note, d.extra = "", object()
        return d

    return step, make


class Output(OrderedDict):
    """Attributes are items, as in a ModelOutput."""

    def __setattr__(self, name, value):
        self[name] = value
        super().__setattr__(name, value)


@given
def a_class_of_dicts():
    def step(out, x):
        out["y"] = x * 2
        return x

    return step, lambda: Output(x=zeros())


@given
def an_inner_dict():
    def step(batch, x):
        batch["observation"]["state"] = batch["observation"]["state"] + x
        batch["observation"]["new"] = {"made": x * 2, "list": [x, 1]}
        return batch["observation"]["new"]["made"]

    return step, lambda: {"observation": {"state": zeros()}, "other": [1, {"k": zeros()}]}


# ---- lists and deques


@given
def appends():
    def step(out, x):
        y = x * 2
        out.append(y)
        out.append(x)
        return y

    return step, list


@given
def appends_to_what_is_there():
    def step(out, x):
        out.append(x * len(out))
        return out[-1]

    return step, lambda: [zeros(), 1]


@given
def extends_and_slices():
    def step(out, x):
        out.extend([x, x * 2])
        out[:1] = []
        out += [3]
        return x + 1

    return step, lambda: [zeros(), 1]


@given
def sets_an_item():
    def step(out, x):
        out[0] = out[0] + x
        out[1] = x
        return out[0]

    return step, lambda: [zeros(), None, "text"]


@given
def pops_and_inserts():
    def step(out, x):
        last = out.pop()
        out.insert(0, x * 2)
        return last + x

    return step, lambda: [zeros(), zeros() + 1, zeros() + 2]


@given
def reverses():
    def step(out, x):
        out.reverse()
        return out[0] + x

    return step, lambda: [zeros(), zeros() + 1]


@given
def sorts():
    def step(numbers, x):
        numbers.sort()
        return x * numbers[0]

    return step, lambda: [3, 1, 2]


@given
def clears_a_list():
    def step(out, x):
        out.clear()
        out.append(x + 1)
        return x

    return step, lambda: [zeros(), zeros()]


@given
def appends_to_a_deque():
    def step(queue, x):
        queue.append(x * 2)
        return torch.stack(list(queue)).sum(0)

    return step, lambda: deque([zeros(), zeros() + 1], maxlen=2)


@given
def appends_left_and_rotates():
    def step(queue, x):
        queue.appendleft(x * 2)
        queue.rotate(1)
        queue.pop()
        return queue[0] + x

    return step, lambda: deque([zeros(), zeros() + 1])


@given
def a_tuple_of_lists():
    def step(parts, x):
        parts[0].append(x + 1)
        parts[1]["k"] = x + 2
        return x

    return step, lambda: ([], {})


# ---- which are one


@given
def the_same_object_twice():
    def step(pair, x):
        pair[0].h = pair[1].h + x
        pair[1].last = x
        return pair[0].h

    def make():
        state = Namespace(h=zeros(), last=None)
        return state, state

    return step, make


@given
def the_same_list_in_two_places():
    def step(d, x):
        d["a"].append(x * 2)
        return x * len(d["b"])

    def make():
        both = []
        return {"a": both, "b": both}

    return step, make


@given
def puts_one_argument_into_another():
    def step(d, x):
        d["b"]["a"] = d["a"]
        d["tensors"] = [d["a"], x]
        return x * 2

    return step, lambda: {"a": {"k": zeros()}, "b": {}}


@given
def puts_an_argument_into_itself():
    def step(state, x):
        state.me = state
        return x * 2

    return step, lambda: Namespace(me=None, h=zeros())


@given
def takes_an_inner_one_out():
    def step(d, x):
        inner = d.pop("inner", None)
        if inner is None:
            return x
        inner["h"] = inner["h"] + x
        d["kept"] = inner
        return inner["h"]

    return step, lambda: {"inner": {"h": zeros()}, "kept": None}


@given
def changes_what_it_takes_out():
    def step(d, x):
        inner = d.pop("inner", None)
        if inner is not None:
            inner["h"] = inner["h"] + x
        return x * 2

    def make():
        inner = {"h": zeros()}
        return {"inner": inner, "other": [inner]}

    return step, make


@given
def returns_an_inner_one():
    def step(d, x):
        d["inner"]["h"] = x * 2
        return d["inner"], x

    return step, lambda: {"inner": {"h": zeros()}}


@given
def returns_without_writing():
    def step(d, x):
        return {"y": d["h"] + x, "inner": d["inner"], "h": d["h"]}

    return step, lambda: {"inner": {"k": zeros()}, "h": zeros()}


@given
def a_made_container_in_two_places():
    def step(d, x):
        made = {"y": x * 2}
        d["a"] = d["b"] = made
        return made

    return step, dict


@given
def a_made_object():
    def step(d, x):
        d["made"] = Plain(y=x * 2, of=d["of"])
        return d["made"].y

    return step, lambda: {"of": [zeros()]}


@given
def a_tuple_that_is_moved():
    def step(d, x):
        d["b"] = d["a"]
        return x * 2

    return step, lambda: {"a": (zeros(), 1), "b": None}


# ---- objects of other kinds


@dataclasses.dataclass
class Record:
    h: Any
    n: int = 0
    items: list = dataclasses.field(default_factory=list)


@given
def a_dataclass():
    def step(record, x):
        record.h = record.h + x
        record.n += 1
        return record.h

    return step, lambda: Record(zeros())


@given
def a_dataclass_with_a_list():
    def step(record, x):
        record.items.append(x * 2)
        return x

    return step, lambda: Record(zeros())


@dataclasses.dataclass(frozen=True)
class Frozen:
    h: Any


@given
def a_frozen_dataclass():
    def step(record, x):
        object.__setattr__(record, "h", record.h + x)
        return record.h

    return step, lambda: Frozen(zeros())


class InSlots:
    __slots__ = ("h", "n")

    def __init__(self):
        self.h, self.n = zeros(), 0


@given
def slots():
    def step(state, x):
        state.h = state.h + x
        state.n += 1
        return state.h

    return step, InSlots


@dataclasses.dataclass
class RecordInSlots:
    __slots__ = ("h",)
    h: Any


@given
def a_dataclass_with_slots():
    def step(record, x):
        record.h = record.h + x
        return record.h

    return step, lambda: RecordInSlots(zeros())


class WithProperty:
    def __init__(self):
        self._h, self.asked, self.set = zeros(), 0, 0

    @property
    def h(self):
        self.asked += 1
        return self._h

    @h.setter
    def h(self, value):
        self.set += 1
        self._h = value * 1


@given
def a_property():
    def step(state, x):
        state.h = state.h + x
        return state.h

    return step, WithProperty


class WithSetattr:
    def __init__(self):
        object.__setattr__(self, "log", [])
        self.h = zeros()

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)


@given
def a_setattr_of_the_program():
    def step(state, x):
        state.h = state.h + x
        return state.h

    def between(state, n):
        state.log.clear()

    return step, WithSetattr, between


class WithGetattr:
    def __init__(self):
        self.held = {"h": zeros()}

    def __getattr__(self, name):
        try:
            return self.__dict__["held"][name]
        except KeyError:
            raise AttributeError(name) from None


@given
def a_getattr_of_the_program():
    def step(state, x):
        state.held["h"] = state.h + x
        return state.h

    return step, WithGetattr


class Layer:
    def __init__(self):
        self.keys = self.values = None

    def update(self, x):
        self.keys = x if self.keys is None else torch.cat([self.keys, x])
        self.values = x * 2 if self.values is None else torch.cat([self.values, x * 2])
        return self.keys, self.values


class Cache:
    def __init__(self):
        self.layers = []
        self.seen = 0

    def update(self, n, x):
        while len(self.layers) <= n:
            self.layers.append(Layer())
        return self.layers[n].update(x)


@given
def a_cache():
    def step(cache, x):
        for n in range(2):
            keys, values = cache.update(n, x)
            x = x + keys.sum(0) - values.mean(0)
        cache.seen += len(x)
        return x, cache

    return step, Cache


@given
def a_parent_and_a_child():
    def step(node, x):
        node.child.h = node.child.h + x
        node.child.parent.total = node.child.h.sum()
        return node.total * x

    def make():
        node = Plain(total=zeros(), child=Plain(h=zeros()))
        node.child.parent = Plain(total=None)
        return node

    return step, make


@given
def a_cycle_of_objects():
    def step(node, x):
        node.child.h = node.child.h + x
        return node.child.parent.child.h

    def make():
        node = Plain(child=Plain(h=zeros()))
        node.child.parent = node
        return node

    return step, make


class WithDel(Plain):
    def __del__(self):
        pass


@given
def a_destructor():
    def step(state, x):
        state.h = state.h + x
        return state.h

    return step, lambda: WithDel(h=zeros())


class ClassDefault:
    h = 0.0


@given
def a_default_of_the_class():
    def step(state, x):
        state.h = state.h * 0.5 + x
        return state.h

    return step, ClassDefault


@given
def a_module_as_argument():
    def step(module, x):
        module.h = module(x)
        return module.h * 2

    return step, lambda: nn.Linear(4, 4)


@given
def another_class_afterwards():
    def step(state, x):
        state.__class__ = Layer
        return x * 2

    return step, lambda: Plain(h=zeros())


@given
def replaces_the_dict():
    def step(state, x):
        state.__dict__ = {"h": x * 2}
        return x

    return step, lambda: Plain(h=zeros())


@given
def compares_which_object_it_is():
    known = Plain(h=zeros())

    def step(state, x):
        state.h = state.h + x
        return x * 2 if state is known else x * 3

    def between(state, n):
        known.h = zeros()

    return step, lambda: known, between


# ---- also state of the program


@given
def state_of_its_own_too():
    kept = Plain(h=zeros(), n=0, last=None)

    def step(state, x):
        kept.h = kept.h + x
        kept.n += 1
        state.h = state.h + kept.h
        state.n += 1
        return state.h

    return step, lambda: Plain(h=zeros(), n=0), None, lambda: kept


@given
def keeps_an_argument_for_itself():
    kept = Plain(last=None)

    def step(state, x):
        kept.last = state
        state.h = state.h + x
        return state.h

    return step, lambda: Plain(h=zeros()), None, lambda: kept


@given
def keeps_one_tensor_in_both():
    kept = Plain(last=None)

    def step(state, x):
        kept.last = state.h = state.h + x
        kept.given = x
        state.given = x
        return state.h

    return step, lambda: Plain(h=zeros(), given=None), None, lambda: kept


@given
def an_argument_that_is_state():
    kept = {"h": zeros()}

    def step(d, x):
        d["h"] = d["h"] + x
        return kept["h"] * 2

    return step, lambda: kept, None, lambda: kept


@given
def now_and_then_an_argument_that_is_state():
    kept = {"h": zeros()}
    made = [{"h": zeros() + 1} for _ in range(20)]

    def step(d, x):
        d["h"] = d["h"] + x
        return kept["h"] * 2

    calls = iter([*made[:3], kept, *made[3:], kept])
    return step, lambda: next(calls), None, lambda: kept


@given
def an_argument_in_a_global_list():
    known = []

    def step(d, x):
        d["h"] = d["h"] + x
        return x + sum(len(item) for item in known)

    def make():
        made = {"h": zeros()}
        known.append(made)
        return made

    return step, make, None, lambda: known


@given
def puts_a_global_into_an_argument():
    config = {"k": 1}

    def step(d, x):
        d["config"] = config
        return x * config["k"]

    def between(d, n):
        config["k"] = n

    return step, dict, between, lambda: config


@given
def puts_a_weight_into_an_argument():
    weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def step(d, x):
        d["w"] = weight
        return x * weight

    return step, dict, None, lambda: weight


@given
def puts_a_function_into_an_argument():
    def helper(x):
        return x * 2

    def step(d, x):
        d["f"] = helper
        return helper(x)

    return step, dict


@given
def puts_a_new_function_into_an_argument():
    def step(d, x):
        d["f"] = lambda y: y * 2
        return x

    return step, dict


@given
def reads_the_argument_of_the_call_before():
    kept = Plain(last=None)

    def step(d, x):
        before, kept.last = kept.last, d
        return x if before is None else x + before["h"]

    return step, lambda: {"h": zeros() + 1}, None, lambda: kept


@given
def writes_to_the_argument_of_the_call_before():
    kept = Plain(last=None)

    def step(d, x):
        if kept.last is not None:
            kept.last["h"] = x * 2
        kept.last = d
        return x + d["h"]

    return step, lambda: {"h": zeros() + 1}, None, lambda: kept


@given
def keeps_a_container_and_returns_what_is_in_it():
    kept = Plain(last=None)

    def step(d, x):
        kept.last = d["inner"]
        return d["h"], x, x * 2, d["inner"]

    return step, lambda: {"h": zeros() + 1, "inner": [zeros()]}, None, lambda: kept


@given
def keeps_a_container_in_a_made_one():
    kept = Plain(last=None)

    def step(d, x):
        kept.last = {"of": d, "y": x * 2}
        return kept.last["y"]

    return step, lambda: {"h": zeros() + 1}, None, lambda: kept


@given
def keeps_a_container_in_a_deque():
    kept = deque([None, None], maxlen=2)

    def step(d, x):
        kept.append(d)
        return x * 2

    return step, lambda: {"h": zeros() + 1}, None, lambda: kept


# ---- other ways of going


@given
def raises_after_a_write():
    def step(state, x):
        state.h = state.h + x
        if state.fails:
            raise ValueError("as asked")
        return state.h

    def between(state, n):
        state.fails = n in (1, 4)

    return step, lambda: Plain(h=zeros(), fails=False), between


@given
def writes_on_one_path_only():
    def step(d, x):
        if x.sum() > 0:
            d["positive"] = x * 2
        else:
            d["negative"] = x * 3
            d["n"] = 1
        return x + 1

    return step, dict


@given
def writes_on_one_path_to_what_is_kept():
    def step(state, x):
        state.h = state.h + x
        if state.h.sum() > 0:
            state.h = state.h * 0.5
            state.resets += 1
        return state.h

    return step, lambda: Plain(h=zeros(), resets=0)


@given
def writes_by_a_flag():
    def step(d, x):
        if d["flag"]:
            d["y"] = x * 2
        return x

    def between(d, n):
        d["flag"] = n % 2 == 0

    return step, lambda: {"flag": True}, between


@given
def writes_in_a_loop_over_the_items():
    def step(batch, x):
        for key, value in batch.items():
            if isinstance(value, torch.Tensor):
                batch[key] = value * 2
        return x

    return step, lambda: {"a": zeros() + 1, "b": "text", "c": zeros() + 2}


@given
def writes_by_comprehension():
    def step(batch, x):
        made = {k: v * 2 for k, v in batch.items() if isinstance(v, torch.Tensor)}
        batch.update(made)
        return made

    return step, lambda: {"a": zeros() + 1, "b": "text"}


@given
def writes_by_reduce():
    def step(out, x):
        functools.reduce(lambda acc, y: out.append(acc) or acc + y, [x, x * 2, x * 3])
        return x

    return step, list


@given
def writes_in_a_helper():
    def helper(d, **more):
        d.update(more)
        d["n"] = len(d)

    def step(d, x):
        helper(d, y=x * 2)
        return d["y"]

    return step, dict


@given
def writes_to_a_copy():
    def step(d, x):
        d = dict(d)
        d["y"] = x * 2
        return d

    return step, lambda: {"x": zeros()}


@given
def writes_to_a_deep_copy():
    def step(d, x):
        d = copy.deepcopy(d)
        d["inner"]["h"] += x
        return d["inner"]["h"]

    return step, lambda: {"inner": {"h": zeros()}}


@given
def writes_and_takes_back():
    def step(state, x):
        before, state.training = state.training, False
        result = x * 2 if state.training else x * 3
        state.training = before
        return result

    def between(state, n):
        state.training = n % 2 == 0

    return step, lambda: Plain(training=True), between


@given
def draws_random_numbers():
    def step(state, x):
        state.noise = torch.rand_like(x)
        return x + state.noise

    return step, lambda: Plain(noise=None)


@given
def what_it_keeps_requires_grad():
    def step(state, x):
        with torch.enable_grad():
            state.h = (state.w * 2).sum() * x
        return x * 2

    return step, lambda: Plain(w=torch.ones(4, requires_grad=True), h=None)


@given
def what_it_is_given_requires_grad():
    def step(state, x):
        state.last = state.w
        state.h = state.w * x
        return x * 2

    return step, lambda: Plain(w=torch.ones(4, requires_grad=True), h=None, last=None)


@given
def numpy_arrays():
    def step(d, x):
        d["array"] = torch.ones(3).numpy()
        return x * 2

    return step, dict


@given
def a_set_in_an_argument():
    def step(state, x):
        state.names.add("x")
        return x * 2

    return step, lambda: Plain(names=set())


@given
def a_long_text_that_nobody_reads():
    def step(batch, x):
        batch["x"] = batch["x"] * 2
        return x

    def between(batch, n):
        batch["text"] = f"call {n}"

    return step, lambda: {"text": "", "x": zeros() + 1}, between


@given
def a_tensor_that_nobody_reads():
    def step(batch, x):
        batch["last"] = batch["x"]
        return x + batch["x"]

    def between(batch, n):
        batch["first"] = torch.zeros(n)

    return step, lambda: {"first": zeros(), "x": zeros() + 1}, between


@given
def named_tuples_and_slices():
    Pair = collections.namedtuple("Pair", "a, b")

    def step(d, x):
        d["pair"] = Pair(x, x * 2)
        d["range"], d["slice"] = range(3), slice(1, 2)
        return d["pair"].b

    return step, dict


# ---- values from elsewhere


@given
def a_number_that_is_read():
    def step(state, x):
        state.n += int((x > 0).sum())
        state.last = float(x.sum()) > 0
        return x * 2

    return step, lambda: Plain(n=0, last=None)


@given
def a_number_of_a_no_graph_function():
    import gfxgraph

    numbers = itertools.count()

    @gfxgraph.no_graph
    def note(d):
        d["n"] = next(numbers)

    def step(d, x):
        y = x * 2
        note(d)
        return y + 1

    return step, lambda: {"n": 0}


@given
def a_list_of_a_no_graph_function():
    import gfxgraph

    numbers = itertools.count()

    @gfxgraph.no_graph
    def note(y, log):
        log.append(next(numbers))
        return y * 1

    def step(log, x):
        return note(x * 2, log) + 1

    return step, list


@given
def what_a_no_graph_function_gives():
    import gfxgraph

    numbers = itertools.count()

    @gfxgraph.no_graph
    def number(y):
        return next(numbers)

    def step(d, x):
        y = x * 2
        d["n"] = number(y)
        return y + 1

    return step, dict


@given
def a_random_number_of_python():
    def step(d, x):
        d["r"] = random.random()
        return x * 2

    return step, dict


@given
def a_number_of_an_iterator():
    numbers = itertools.count()

    def step(d, x):
        d["n"] = next(numbers)
        return x * 2

    return step, dict


@given
def the_number_of_an_object():
    def step(d, x):
        d["n"] = id(d) == d.get("n", 0)
        return x * 2

    return step, dict


@given
def a_global_number():
    space = {"n": 0}

    def step(d, x):
        space["n"] += 1
        d["n"] = space["n"] > 3
        return x * 2

    return step, dict, None, lambda: space


@given
def the_length_of_another_argument():
    def step(pair, x):
        pair[0]["n"] = len(pair[1])
        pair[1].append(x + 1)
        return x * 2

    return step, lambda: ({}, [])


@given
def a_text_of_another_place():
    def step(d, x):
        d["b"] = d["a"] + "!"
        return x * 2

    def between(d, n):
        d["a"] = f"call {n % 3}"

    return step, lambda: {"a": "", "b": ""}, between


@given
def a_shape():
    def step(d, x):
        d["shape"] = x.shape
        d["device"], d["dtype"] = x.device, x.dtype
        return x * 2

    return step, dict


@given
def a_bound_method_and_a_partial():
    def step(d, x):
        d["append"] = d["list"].append
        d["partial"] = functools.partial(torch.add, 1)
        return x * 2

    return step, lambda: {"list": []}


@given
def a_counter_that_is_compared():
    def step(state, x):
        state.n += 1
        state.is_first = state.n == 1
        return x * 2

    return step, lambda: Plain(n=0, is_first=None)


@given
def a_counter_in_two_objects():
    def step(pair, x):
        pair[0].n += 1
        pair[1].n = pair[0].n
        return x * 2

    return step, lambda: (Plain(n=0), Plain(n=0))


@given
def a_counter_of_one_object_in_two_places():
    def step(pair, x):
        pair[0].n += 1
        pair[1].n += 1
        return x * 2

    def make():
        state = Plain(n=0)
        return state, state

    return step, make


@given
def a_counter_that_goes():
    def step(state, x):
        state.n += 1
        del state.n
        return x * 2

    return step, lambda: Plain(n=0)


@given
def a_counter_that_is_printed_into_a_text():
    def step(state, x):
        state.n += 1
        state.text = f"{state.n}"
        return x * 2

    return step, lambda: Plain(n=0, text="")


@given
def a_counter_that_is_an_index():
    def step(state, x):
        y = state.buffer[state.n]
        state.n += 1
        return x + y

    return step, lambda: Plain(n=0, buffer=torch.arange(9.0))


@given
def a_counter_by_another_number():
    def step(state, x):
        state.n += state.by
        return x * 2

    def between(state, n):
        state.by = n % 2

    return step, lambda: Plain(n=0, by=1), between


@given
def a_counter_on_one_path():
    def step(state, x):
        if x.sum() > 0:
            state.n += 1
        return x * 2

    return step, lambda: Plain(n=0)


@given
def an_int_in_place_of_another_one():
    def step(state, x):
        state.n = 7
        return x * 2

    def between(state, n):
        state.n = n

    return step, lambda: Plain(n=0), between


@given
def the_length_of_what_is_given():
    def step(state, x):
        state.n = state.n + len(state.items)
        state.items.append(1)
        return x * 2

    return step, lambda: Plain(n=0, items=[])


def outcome(fn, *args):
    try:
        return "returned", fn(*args)
    except Exception as error:
        return "raised", error


def _tensors_in(item, found, seen):
    if id(item) in seen or len(seen) > 1000:
        return
    seen[id(item)] = item
    if isinstance(item, torch.Tensor):
        found.add(_memory(item))
    elif isinstance(item, dict):
        for part in [*item.values(), *getattr(item, "__dict__", {}).values()]:
            _tensors_in(part, found, seen)
    elif isinstance(item, (list, tuple, deque)):
        for part in list(item):
            _tensors_in(part, found, seen)
    elif hasattr(item, "__dict__") and not isinstance(item, type):
        for part in list(vars(item).values()):
            _tensors_in(part, found, seen)


def compare(name, way, calls=6, wrap=None, device="cpu"):
    """The first difference, or ``None``; the graphed callable."""
    import gfxgraph

    worlds = []
    for _ in range(2):
        torch.manual_seed(0)
        with torch.device(device):
            worlds.append([*CASES[name](), None, None][:4])
    (eager, *ours), (plain, *theirs) = worlds
    graph = (wrap or gfxgraph.graphed)(plain)
    history, kept, known = [], [[], []], []
    for n in range(calls):
        made = torch.randn(2, 4, generator=torch.Generator().manual_seed(100 + n)).to(device)
        done = []
        for number, (fn, (make, between, look)) in enumerate(((eager, ours), (graph, theirs))):
            torch.manual_seed(500 + n)
            with torch.device(device), torch.no_grad():
                if way == "new" or len(kept[number]) < 1 + (way == "two"):
                    kept[number].append(make())
                item = kept[number][n % 2 if way == "two" else -1]
                if way == "changed" and n and between is not None:
                    between(item, n)
                torch.manual_seed(500 + n)
                random.seed(n)
                x = made.clone()
                before = set()
                _tensors_in((item, x), before, {})
                how, result = outcome(fn, item, x)
                if how == "raised" and fn is graph and done[0][1] != "raised":
                    raise result
                state = None if look is None else look()
                done.append((x, how, result, item, state, before))
        (x, how, result, item, state, before), (x_, how_, result_, item_, state_, _) = done
        try:
            if how != how_:
                raise Difference(f"{how_} {result_!r} instead of {how} {result!r}")
            walker = Pairs()
            walker.walk("x", x, x_)
            if how == "raised":
                if repr(result) != repr(result_):
                    raise Difference(f"raised {result_!r} instead of {result!r}")
            else:
                walker.walk("result", result, result_)
            walker.walk("given", item, item_)
            walker.walk("state", state, state_)
            stored = set()
            _tensors_in((item, state), stored, {})
            # A result that is an argument, or a view of one, is a copy.
            now = [
                p
                for p in walker.found
                if not (
                    p[0].startswith("result")
                    and isinstance(p[1], torch.Tensor)
                    and _memory(p[1]) in before | {m for h in known for m in h}
                )
            ]
            compare_aliasing([*history, *now])
            history += [(f"call {n} {p[0]}", *p[1:]) for p in now]
            again = Pairs()
            for p in history:
                if isinstance(p[1], torch.Tensor) and p[1].layout is torch.strided:
                    again._tensor(p[0] + " by now", p[1], p[2])
            known.append(before)
        except Difference as found:
            return f"call {n}: {found}", graph
    return None, graph


def main():
    import logging
    import sys
    import warnings

    warnings.simplefilter("ignore")
    logging.getLogger("gfxgraph").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    names = [a for a in sys.argv[1:] if not a.startswith("-")] or list(CASES)
    wrap = Eager if "--eager" in sys.argv else None
    for name in names:
        shown = []
        for way in WAYS:
            try:
                found, graph = compare(name, way, wrap=wrap)
                stats = graph.stats()
                shown.append(f"{way} {stats.replays}" + (f" DIFFERS {found}" if found else ""))
                if "-v" in sys.argv:
                    print(stats)
            except Exception as error:
                shown.append(f"{way} HARNESS {error!r}")
        print(f"{name}: {'; '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
