"""What a graph rests on is proven in each call: values, order, callers, and what hides its writes."""

from __future__ import annotations

import asyncio
import collections
import inspect
import itertools
import math
import struct
import sys
import threading
import traceback
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.weak import WeakIdKeyDictionary

import gfxgraph
from tests.helpers.sampled import sampled
from tests.hostile.hostile_no_graph import eq

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("no_grad"),
]


def compare(make: Any, x: torch.Tensor, calls: int = 7) -> Any:
    """Call an eager and a graphed function side by side; gives the graphed one.

    ``make`` gives a function, what changes between the calls (given their number), and what there
    is to see.
    """
    eager, change, see = make(lambda fn: fn)
    graphed, change_ours, see_ours = make(gfxgraph.graphed)
    for n in range(calls):
        change(n)
        change_ours(n)
        given, ours = x.clone(), x.clone()
        expected, found = eager(given), graphed(ours)
        assert eq(found, expected), (n, found, expected)
        assert eq(ours, given), (n, ours, given)
        assert eq(see_ours(), see()), (n, see_ours(), see())
    return graphed


# ---- values that were folded


def through_data(t):
    t.data.mul_(3)


def through_a_storage(t):
    t.untyped_storage().copy_((t * 3).untyped_storage())


ALIASES = WeakIdKeyDictionary()


def through_an_alias_made_before(t):
    if t not in ALIASES:
        ALIASES[t] = t.data
    ALIASES[t].mul_(3)


def through_an_array(t):
    t.numpy()[...] *= 3


def through_dlpack(t):
    torch.utils.dlpack.from_dlpack(t.detach()).mul_(3)


READS = {
    "item": lambda x, t: x * t.sum().item(),
    "float": lambda x, t: x * float(t[0]),
    "branch": lambda x, t: x * 2 if t[0] > 3 else x * 3,
    "tolist": lambda x, t: x * t.tolist()[1],
    "data": lambda x, t: x * t.data[0].item(),
    "length": lambda x, t: x + torch.arange(int(t[0]), device=x.device).sum(),
    "nonzero": lambda x, t: x * len((t > 3).nonzero()),
}


@pytest.mark.parametrize(
    "write",
    [
        through_data,
        through_a_storage,
        through_an_alias_made_before,
        through_an_array,
        through_dlpack,
    ],
)
@pytest.mark.parametrize("read", sampled(READS, 2))
def test_a_value_that_was_folded_is_noticed_whatever_writes_it(device, read, write):
    if device != "cpu" and write is through_an_array:
        pytest.skip("an array is on the host")

    def make(wrap):
        t = torch.tensor([2.0, 1.0], device=device)
        if write is through_an_alias_made_before:
            write(t)
            t.div_(3)
        return wrap(lambda x: READS[read](x, t)), lambda n: n == 4 and write(t), t.tolist

    assert compare(make, torch.ones(2, device=device)).stats().replays >= 3


@pytest.mark.parametrize(("size", "is_compared"), [(2, True), (1 << 18 | 1, False)])
def test_a_value_in_more_than_a_mebibyte_is_read_in_each_call_and_not_compared(
    device, size, is_compared
):
    def make(wrap):
        table = torch.ones(size, device=device)

        def change(n):
            table.data[0] = float(n > 3)

        return wrap(lambda x: x * table[0].item()), change, table.sum

    graph = compare(make, torch.ones(2, device=device))
    (guard,) = graph._dispatcher.guards()
    assert graph.stats().replays and bool(guard.watched_values()) is is_compared


LISTS = {
    "tensor": lambda x, a, b: x * torch.tensor([a, b], device=x.device),
    "nested": lambda x, a, b: x * torch.tensor([[a, b], [b, a]], device=x.device),
    "as_tensor": lambda x, a, b: x * torch.as_tensor([a, b], device=x.device),
    "asarray": lambda x, a, b: x * torch.asarray((a, b), device=x.device),
    "new": lambda x, a, b: x * x.new([a, b]),
    "new_tensor": lambda x, a, b: x * x.new_tensor([a, b]),
    "Tensor": lambda x, a, b: x * torch.Tensor([a, b]).to(x.device),
    "FloatTensor": lambda x, a, b: x * torch.FloatTensor([a, b]).to(x.device),
    "of double": lambda x, a, b: x * torch.tensor([a.double(), b], device=x.device),
    "of an argument": lambda x, a, b: x * torch.tensor([x[0], a], device=x.device),
    "array": lambda x, a, b: x * float(np.array([float(a), float(b)]).sum()),
    "clamp": lambda x, a, b: x.clamp(*torch.tensor([a, b]).to(x.device)),
}


@pytest.mark.parametrize("own", [False, True], ids=["caller writes", "function writes"])
@pytest.mark.parametrize("name", sampled(LISTS, 3))
def test_tensors_in_a_list_of_which_a_tensor_is_made_are_read(device, name, own):
    def make(wrap):
        a, b = torch.tensor(0.25, device=device), torch.tensor(2.0, device=device)

        def fn(x):
            y = LISTS[name](x, a, b)
            if own:
                a.add_(0.5)
            return y

        return wrap(fn), lambda n: n == 4 and b.fill_(3.0), lambda: (a.item(), b.item())

    compare(make, torch.tensor([0.5, 4.0], device=device))


STORAGES = {
    "storage()[0]": lambda x, t: x * float(t.storage()[0]),
    "storage().tolist()": lambda x, t: x * float(t.storage().tolist()[0]),
    "untyped_storage()[2]": lambda x, t: x * float(t.untyped_storage()[2]),
    "set_": lambda x, t: x * torch.tensor([]).set_(t.untyped_storage())[0].item(),
    "set_ of an empty one": lambda x, t: x * torch.empty(0).set_(t.untyped_storage())[0].item(),
    "FloatTensor": lambda x, t: x * torch.FloatTensor(t.storage())[0],
}


@pytest.mark.parametrize("name", STORAGES)
def test_data_that_is_read_through_a_storage_is_read(name):
    def make(wrap):
        t = torch.tensor([2.0])
        return wrap(lambda x: STORAGES[name](x, t)), lambda n: n == 4 and t.fill_(5.0), t.tolist

    compare(make, torch.ones(2))


@pytest.mark.parametrize("part", ["real", "imag"])
def test_a_path_of_a_complex_number_is_one_of_its_bits(device, part):
    fn = lambda z: z.real * 0 + math.copysign(1.0, getattr(z[0].item(), part))  # noqa: E731
    graphed = gfxgraph.graphed(fn)
    for sign in (1.0, 1.0, -1.0, -1.0, 1.0):
        z = torch.tensor([complex(0.0 * sign, 0.0 * sign)], device=device)
        assert torch.equal(graphed(z), fn(z))


def test_two_nans_of_other_bits_are_two_paths(device):
    fn = lambda v: torch.zeros(1, device=v.device) + struct.pack("d", v[0].item())[5]  # noqa: E731
    graphed = gfxgraph.graphed(fn)
    for bits in (0x7FF8000000000000, 0x7FF8000000000000, 0x7FF8AB0000000000):
        v = torch.tensor([bits], device=device).view(torch.float64)
        assert torch.equal(graphed(v), fn(v))


# ---- dicts of plain values, which the collector does not track


STATES = {
    "counter": ({"scale": 2.0, "calls": 0}, lambda x, s: x * s["scale"]),
    "missing": ({"calls": 0}, lambda x, s: x * s.get("scale", 1.0)),
    "contains": ({"calls": 0}, lambda x, s: x * (3 if "scale" in s else 1)),
    "items": (
        {"scale": 2.0, "calls": 0},
        lambda x, s: x * sum(v for k, v in s.items() if k != "calls"),
    ),
    "UserDict": (collections.UserDict(scale=2.0, calls=0), lambda x, s: x * s["scale"]),
    "nested": ({"inner": {"scale": 2.0}, "calls": 0}, lambda x, s: x * s["inner"]["scale"]),
}
ADVANCES = {
    "counts": lambda s: s.__setitem__("calls", s["calls"] + 1),
    "stores": lambda s: s.__setitem__("calls", "seen"),
}


@pytest.mark.parametrize("held_by", ["closure", "module", "global of a class"])
@pytest.mark.parametrize("advance", ADVANCES)
@pytest.mark.parametrize("name", sampled(STATES, 2))
def test_a_dict_of_plain_values_is_watched_though_a_call_writes_to_it(
    device, name, advance, held_by
):
    def make(wrap):
        state, read = STATES[name]
        state = state.copy() if name != "nested" else {"inner": {"scale": 2.0}, "calls": 0}
        count = advance == "counts"

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.state = state

            def forward(self, x):
                if count:
                    self.state["calls"] += 1
                else:
                    self.state["calls"] = "seen"
                return read(x, self.state)

        class Held:
            kept = state

        def fn(x):
            found = state if held_by == "closure" else Held.kept
            if count:
                found["calls"] += 1
            else:
                found["calls"] = "seen"
            return read(x, found)

        def change(n):
            if n == 4:
                (state["inner"] if name == "nested" else state)["scale"] = 5.0

        return wrap(Module() if held_by == "module" else fn), change, lambda: dict(state)

    compare(make, torch.ones(2, device=device))


# ---- sets


SETS: dict[str, Any] = {
    "pop and add": ({0, 8, 16}, lambda s, x: (lambda v: (s.add(v), x * v)[1])(s.pop())),
    "pop": (set(range(30)), lambda s, x: x * s.pop()),
    "add": ({0}, lambda s, x: (s.add(len(s)), x * len(s))[1]),
    "loop": ({0, 8}, lambda s, x: x * sum(v * (i + 1) for i, v in enumerate(s))),
    "next": ({0, 8}, lambda s, x: x * next(iter(s))),
    "contains": ({0, 8}, lambda s, x: x * (2 if 8 in s else 3)),
    "discard and add": ({0, 8}, lambda s, x: (s.discard(0), s.add(0), x * next(iter(s)))[2]),
    "clear and update": ({0, 8}, lambda s, x: (s.clear(), s.update((8, 0)), x * next(iter(s)))[2]),
    "sorted": ({0, 8}, lambda s, x: x * sorted(s)[1]),
    "seen": ({0}, lambda s, x: (s.add(5), x * 2)[1]),
}
TURNS: dict[str, Any] = {
    "none": lambda s, n: None,
    "refilled": lambda s, n: n >= 3 and (s.clear(), s.update((8, 0) if n % 2 else (0, 8))),
    "popped": lambda s, n: n == 3 and s.add(s.pop()),
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("name", SETS)
def test_a_set_gives_its_items_in_the_order_of_eager(device, name, turn):
    def make(wrap):
        start, fn = SETS[name]
        items = set(start)
        return wrap(lambda x: fn(items, x)), lambda n: TURNS[turn](items, n), lambda: list(items)

    compare(make, torch.ones(2, device=device))


def test_a_set_that_only_the_first_call_changes_keeps_no_call_from_a_graph(device):
    seen = set()

    @gfxgraph.graphed
    def fn(x):
        seen.add("warned")
        return x * 2

    for _ in range(5):
        fn(torch.ones(2, device=device))
    assert fn.stats().replays == 3


# ---- callers


def bare_raise(x):
    try:
        raise
    except ValueError:
        return x * 5
    except RuntimeError:
        return x * 2


def context(x):
    try:
        {}["a"]
    except KeyError as error:
        return x * (2.0 if error.__context__ is None else 5.0)


HANDLED = {
    "exc_info": lambda x: x * (2.0 if sys.exc_info()[1] is None else 5.0),
    "format_exc": lambda x: x * (5.0 if "ValueError" in traceback.format_exc() else 2.0),
    "bare raise": bare_raise,
    "context": context,
}


@pytest.mark.parametrize("name", HANDLED)
def test_the_error_that_a_caller_handles_is_seen(device, name):
    graphed, x = gfxgraph.graphed(HANDLED[name]), torch.ones(2, device=device)
    for n in range(6):
        if n in (1, 4):
            try:
                raise ValueError
            except ValueError:
                assert torch.equal(graphed(x), HANDLED[name](x))
        else:
            assert torch.equal(graphed(x), HANDLED[name](x))
    assert any("while an error is handled" in reason for reason in graphed.stats().fallbacks)


def of_a_frame(x):
    frame = sys._getframe()
    while "user_scale" not in frame.f_locals:
        frame = frame.f_back
    return x * frame.f_locals["user_scale"]


def of_the_frame_above(x):
    names = []
    frame = inspect.currentframe()
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return x * (2.0 if "first" in names else 5.0)


CALLERS = {
    "f_locals": of_a_frame,
    "f_back": of_the_frame_above,
    "stack": lambda x: x * (2.0 if any(s.function == "first" for s in inspect.stack(0)) else 5.0),
    "traceback": lambda x: (
        x * (2.0 if any(s.name == "first" for s in traceback.extract_stack()) else 5.0)
    ),
}


@pytest.mark.parametrize("name", CALLERS)
def test_what_a_function_finds_in_the_frames_of_its_callers_is_no_constant(device, name):
    graphed, x = gfxgraph.graphed(CALLERS[name]), torch.ones(2, device=device)

    def first(fn, user_scale):
        return fn(x)

    def second(fn, user_scale):
        return fn(x)

    for n, call in enumerate([first, first, first, second, second, first]):
        assert torch.equal(call(graphed, n + 1.0), call(CALLERS[name], n + 1.0)), n


def test_a_function_may_look_at_its_own_frames(device):
    def helper():
        return sys._getframe(0).f_code.co_name

    @gfxgraph.graphed
    def fn(x):
        return x * len(helper())

    for _ in range(3):
        assert fn(torch.ones(2, device=device))[0] == 6
    assert fn.stats().replays == 2


# ---- writes that no version and no schema tells of


def by_data(t):
    t.data.add_(1.0)


def by_array(t):
    t.numpy()[0] += 1.0


def in_place(t):
    t.add_(1.0)


def by_alias(t):
    t.detach().mul_(2)


# What is given, one after the other, to the function between the graphs.
GIVEN = {
    "the argument": lambda x, y, buffer: [x],
    "an intermediate": lambda x, y, buffer: [y],
    "a view": lambda x, y, buffer: [x[:1]],
    "a buffer": lambda x, y, buffer: [buffer],
    "one tensor twice": lambda x, y, buffer: [x, y, x],
}


@pytest.mark.parametrize("every", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("given", GIVEN.values(), ids=list(GIVEN))
@pytest.mark.parametrize("write", [by_data, by_array, in_place, by_alias])
def test_a_function_between_graphs_may_write_in_ways_that_no_version_counts(
    device, write, given, every
):
    if device != "cpu" and write is by_array:
        pytest.skip("an array is on the host")

    def make(wrap):
        count = itertools.count(1)

        def side(t):
            if next(count) % every == 0:
                write(t)

        buffer = torch.ones(2, device=device)
        side = side if wrap is not gfxgraph.graphed else gfxgraph.no_graph(side)

        def fn(x):
            y = x * 2
            z = y + 1
            for one in given(x, y, buffer):
                side(one)
                z = z + x * 3
            return x + y + z + buffer

        return wrap(fn), lambda n: None, lambda: buffer.clone()

    compare(make, torch.ones(2, device=device))


def stored_in(holder, y):
    holder.append(y)
    holder[:-1] = []
    return y * 0


# How a call uses an intermediate that the function between the graphs has been given.
USES = {
    "an operation": lambda x, y, holder, second: y + 1,
    "a view that is returned": lambda x, y, holder, second: y.view(-1)[:2],
    "the tensor that is returned": lambda x, y, holder, second: y,
    "what it is part of": lambda x, y, holder, second: y._base * 2 if y._base is not None else y,
    "a read": lambda x, y, holder, second: x * y.sum().item(),
    "a branch": lambda x, y, holder, second: x + 1 if y.sum() > 4 else x * 3,
    "only one of the ways": lambda x, y, holder, second: x + y if x.sum() > 2 else x,
    "another such function": lambda x, y, holder, second: second(y),
    "an operation on it in place": lambda x, y, holder, second: y.mul_(2).sum(),
    "an object": lambda x, y, holder, second: stored_in(holder, y),
    "an operation after a read": lambda x, y, holder, second: x * x.sum().item() + y,
    "the same memory": lambda x, y, holder, second: torch.empty_like(y).set_(y.detach()) + 1,
}


@pytest.mark.parametrize("is_part", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("since", sampled([0, 4], 2))
@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_what_a_function_between_graphs_writes_to_an_intermediate_is_what_the_call_uses(
    device, use, since, is_part
):
    def make(wrap):
        holder, number = [], itertools.count()

        def side(t):
            if next(number) >= since:
                by_data(t)

        def second(t):
            return t * 3

        if wrap is gfxgraph.graphed:
            side, second = gfxgraph.no_graph(side), gfxgraph.no_graph(second)
        sign = torch.ones(2, device=device)

        def fn(x):
            y = x * 2
            y = y[:2] if is_part else y
            side(y)
            return use(x * sign, y, holder, second)

        def change(n):
            sign.copy_(torch.tensor([1.0, 1.0] if n % 3 else [0.5, 0.5]))

        return wrap(fn), change, lambda: list(holder)

    compare(make, torch.ones(2, device=device), calls=9)


def test_what_a_function_leaves_in_its_arguments_is_copied_back_only_if_the_call_uses_it(device):
    attend = gfxgraph.no_graph(lambda q, k, v: q + k * v)

    def copies(is_used):
        @gfxgraph.graphed
        def layer(x):
            q, k, v = torch.cat([x, x + 1, x + 2]).view(3, 1, 4).unbind()
            y = attend(q, k, v)
            return y + q if is_used else y + x

        for _ in range(4):
            layer(torch.ones(4, device=device))
        before = layer.stats().replays
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            layer(torch.ones(4, device=device))
        assert layer.stats().replays == before + 1
        return sum(event.count for event in seen.key_averages() if event.key == "aten::copy_")

    # Of q, k and v, which share memory: to where they were.
    assert copies(is_used=True) - copies(is_used=False) == 3


def test_a_function_between_graphs_may_be_given_and_give_tensors_that_wrap_others(device):
    pair = TwoTensor(torch.ones(2, device=device), torch.ones(2, device=device))
    inner = gfxgraph.no_graph(lambda x, both: (x + both.a, both))

    def make(wrap):
        return wrap(lambda x: inner(x * 2, pair)[0] * 3), lambda n: None, lambda: None

    assert compare(make, torch.ones(2, device=device)).stats().replays


def by_custom_op(name, body):
    op = torch.library.custom_op(name, mutates_args=())(body)
    op.register_fake(torch.empty_like)
    return op


def by_library(name, body, made=[]):  # noqa: B006
    space, _, own = name.partition("::")
    library = torch.library.Library(space, "FRAGMENT")
    library.define(f"{own}(Tensor x) -> Tensor")
    for kind in ("CPU", "CUDA"):
        library.impl(own, body, kind)
    torch.library.register_fake(name, torch.empty_like, lib=library)
    made.append(library)  # alive, or the operator goes
    return getattr(getattr(torch.ops, space), own)


@pytest.mark.parametrize("define", [by_custom_op, by_library])
@pytest.mark.parametrize("reads", [False, True], ids=["only counts", "is read as well"])
def test_an_operator_in_python_may_write_what_its_schema_leaves_out(device, reads, define):
    def make(wrap):
        seen = torch.zeros((), device=device)

        def body(x: torch.Tensor) -> torch.Tensor:
            seen.add_(1)
            return x * 2

        name = f"proven::{define.__name__}_{reads}_{wrap is gfxgraph.graphed}"
        op = define(name, body)

        def fn(x):
            return op(x) + seen if reads else op(x)

        return wrap(fn), lambda n: None, seen.item

    assert compare(make, torch.ones(2, device=device)).stats().replays


GIVES = {
    "itself": lambda t: t,
    "view": lambda t: t[:1],
    "alias": lambda t: t.detach(),
    "alias by an array": lambda t: torch.from_numpy(t.numpy()),
}


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("name", GIVES)
def test_a_function_between_graphs_may_give_its_argument_now_and_a_copy_then(device, name, always):
    if device != "cpu" and "array" in name:
        pytest.skip("an array is on the host")

    def make(wrap):
        def give(t):
            given = GIVES[name](t)
            return given if always or t.sum() > 4 else given.clone()

        give = give if wrap is not gfxgraph.graphed else gfxgraph.no_graph(give)

        def fn(x):
            y = x * 2
            z = give(y)
            z.add_(1)
            return y * 1, z * 1

        return wrap(fn), lambda n: None, lambda: None

    def varied(wrap):
        fn, change, see = make(wrap)
        count = itertools.count()
        return lambda x: fn(x * (0.5 + next(count) % 3)), change, see

    compare(varied, torch.ones(2, device=device))


def swaps(a, b, n):
    return (b, a) if n % 2 else (a, b)


TIES = {
    "one or the other": lambda a, b, n: b if n % 2 else a,
    "now its argument, then a new one": lambda a, b, n: a * 2 if n > 2 else a,
    "both, in another order": lambda a, b, n: sum(
        x * (i + 1) for i, x in enumerate(gfxgraph.no_graph(swaps)(a, b, n))
    ),
}


@pytest.mark.parametrize("name", TIES)
def test_which_argument_a_function_between_graphs_gives_is_asked_each_time(device, name):
    def make(wrap):
        count = itertools.count()

        def pick(a, b):
            return TIES[name](a, b, next(count))

        pick = pick if wrap is not gfxgraph.graphed else gfxgraph.no_graph(pick)

        def fn(x):
            a, b = x * 2, x * 3
            return pick(a, b) + a

        return wrap(fn), lambda n: None, lambda: None

    compare(make, torch.ones(2, device=device))


def sets_an_attribute(t, data):
    t.scale = 3.0


def writes_to_bytes(t, data):
    data[0][0] = 3


def writes_to_an_array(t, data):
    data[1][0] = 3


def gives_it_other_memory(t, data):
    t.data = t * 3


@pytest.mark.parametrize(
    "change", [sets_an_attribute, writes_to_bytes, writes_to_an_array, gives_it_other_memory]
)
def test_a_function_between_graphs_may_change_what_it_is_given_in_some_calls(device, change):
    def make(wrap):
        count = itertools.count()

        def side(t, data):
            if next(count) == 3:
                change(t, data)

        side = side if wrap is not gfxgraph.graphed else gfxgraph.no_graph(side)

        def fn(x):
            y = x * 2
            view = y[:1]
            data = bytearray([1]), np.ones(1, dtype=np.int64)
            side(y, data)
            return y * getattr(y, "scale", 1.0) * data[0][0] * int(data[1][0]) + view

        return wrap(fn), lambda n: None, lambda: None

    compare(make, torch.ones(2, device=device))


def test_how_many_threads_there_are_is_no_constant(device):
    fn = lambda x: x * len(threading.enumerate()) * threading.active_count()  # noqa: E731
    graphed, x = gfxgraph.graphed(fn), torch.ones(2, device=device)
    for n in range(6):
        done = threading.Event()
        other = threading.Thread(target=done.wait)
        if n == 4:
            other.start()
        assert torch.equal(graphed(x), fn(x)), n
        done.set()
        if n == 4:
            other.join()


def test_whether_a_loop_of_asyncio_runs_is_no_constant(device):
    def fn(x):
        return x * (2.0 if asyncio._get_running_loop() else 3.0)

    graphed, x = gfxgraph.graphed(fn), torch.ones(2, device=device)

    async def called():
        return graphed(x), fn(x)

    for n in range(6):
        found, expected = asyncio.run(called()) if n in (3, 5) else (graphed(x), fn(x))
        assert torch.equal(found, expected), n
