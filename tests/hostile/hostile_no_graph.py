"""``no_graph`` functions that look at which objects they are given, and reach arguments themselves."""

from __future__ import annotations

from collections import deque, namedtuple
from typing import Any

import torch

import gfxgraph

CASES: dict[str, Any] = {}
"""Each makes a function, its arguments by the number of the call, and what there is to see."""

EAGER = {
    "note_new_object": "asks which object",
    "write_global_W": "which it is not given itself",
    "branch_on_arg_written": "which it is not given itself",
    "bumped_by_thread_of_call": "which it is not given itself",
    "given_and_graph_write": "gives out or keeps",
    "returns_own_buffer": "gives out or keeps",
    "returns_arg": "is given another tensor",
    "data_set": "argument 0.data",
    "two_args_same_tensor": "share memory",
    "two_args_view": "share memory",
    "returns_its_buffer_as_result": "keeps a tensor that it gives",
    "returns_what_it_keeps": "keeps a tensor that it gives",
    "h_in_method_with_self": "changes argument 0.log",
    "dict_unread_part": "",
}
"""Those without replays, and part of the reason."""

P = namedtuple("P", "a b")


def case(make: Any) -> Any:
    CASES[make.__name__] = make
    return make


def eq(a: Any, b: Any) -> bool:
    """Whether two views are equal."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(eq(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(eq, a, b))
    return bool(type(a) is type(b) and a == b)


def same(kept, *objs):
    return [[k is o for o in objs] for k in kept]


@case
def note_x():
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * 2
        note(x)
        return y + 1

    return (
        fn,
        lambda n: (torch.ones(3) * n,),
        lambda a, r: (same(kept, a[0]), [k.clone() for k in kept]),
    )


@case
def note_x_then_caller_writes():
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * 2
        note(x)
        return y + 1

    def look(a, r):
        a[0].add_(100)
        return [k.clone() for k in kept]

    return (fn, lambda n: (torch.ones(3) * n,), look)


@case
def note_dict():
    kept = []

    @gfxgraph.no_graph
    def note(d):
        kept.append(d)

    def fn(d):
        y = d["x"] * 2
        note(d)
        return y + 1

    return (
        fn,
        lambda n: ({"x": torch.ones(3) * n},),
        lambda a, r: (
            same(kept, a[0]),
            [k["x"] is a[0]["x"] for k in kept],
            [k["x"].clone() for k in kept],
        ),
    )


@case
def note_inner_list():
    kept = []

    @gfxgraph.no_graph
    def note(d, other):
        kept.append(d)

    def fn(d):
        y = d["x"][0] * 2
        note(d["x"], [d])
        return y + 1

    return (
        fn,
        lambda n: ({"x": [torch.ones(3) * n]},),
        lambda a, r: (same(kept, a[0]["x"]), [k[0].clone() for k in kept]),
    )


class Object:
    def __init__(self, x):
        self.x = x
        self.tag = "a"


@case
def note_new_object():
    kept = []

    @gfxgraph.no_graph
    def note(o):
        kept.append(o)

    def fn(o):
        y = o.x * 2
        note(o)
        return y + 1

    return (
        fn,
        lambda n: (Object(torch.ones(3) * n),),
        lambda a, r: (same(kept, a[0]), [k.x.clone() for k in kept]),
    )


@case
def note_kwargs():
    kept = []

    @gfxgraph.no_graph
    def note(**k):
        kept.append(k["d"])

    def fn(d):
        y = d["x"] * 2
        note(d=d)
        return y + 1

    return (fn, lambda n: ({"x": torch.ones(3) * n},), lambda a, r: same(kept, a[0]))


@case
def note_dict_and_own_container():
    kept = []

    @gfxgraph.no_graph
    def note(pair):
        kept.extend(pair)

    def fn(d, x):
        y = d["x"] * 2
        note([d, y, x])
        return y + 1

    return (
        fn,
        lambda n: ({"x": torch.ones(3) * n}, torch.ones(2) * n),
        lambda a, r: (same(kept, a[0], a[1]),),
    )


@case
def write_global_W():
    W = torch.zeros(3)

    @gfxgraph.no_graph
    def bump():
        W.add_(1)

    def fn(x):
        y = x * 2
        bump()
        return y + x

    return (fn, lambda n: (W,), lambda a, r: W.clone())


@case
def read_global_W_after_write():
    W = torch.zeros(3)
    log = []

    @gfxgraph.no_graph
    def peek():
        log.append(W.clone())

    def fn(x):
        x.add_(1)
        peek()
        x.add_(1)
        return x * 2

    return (fn, lambda n: (W,), lambda a, r: ([held.clone() for held in log], W.clone()))


@case
def peek_returns_number():
    W = torch.zeros(3)

    @gfxgraph.no_graph
    def peek():
        return W.sum()

    def fn(x, z):
        x.add_(z)
        return x * 2 + peek()

    return (fn, lambda n: (W, torch.ones(3) * n), lambda a, r: W.clone())


@case
def write_given_W_also_global():
    W = torch.zeros(3)
    seen = []

    @gfxgraph.no_graph
    def bump(w):
        w.add_(1)
        seen.append(W.clone())

    def fn(x):
        y = x * 2
        bump(x)
        return y + x

    return (fn, lambda n: (W,), lambda a, r: (W.clone(), [s.clone() for s in seen]))


@case
def given_and_graph_write():
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)
        x.add_(1)

    def fn(x):
        x.mul_(2)
        note(x)
        x.mul_(3)
        return x + 0

    return (
        fn,
        lambda n: (torch.ones(3) * n,),
        lambda a, r: (same(kept, a[0]), [k.clone() for k in kept], a[0].clone()),
    )


@case
def weight_given():
    w = torch.ones(3)
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * w
        note(w)
        return y + 1

    return (
        fn,
        lambda n: (torch.ones(3) * n,),
        lambda a, r: (same(kept, w), [k.clone() for k in kept]),
    )


@case
def weight_given_written():
    w = torch.ones(3)
    seen = []

    @gfxgraph.no_graph
    def bump(t):
        t.add_(1)
        seen.append(w.clone())

    def fn(x):
        y = x * w
        bump(w)
        return y + w

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: (w.clone(), [s.clone() for s in seen]))


@case
def param_given():
    lin = torch.nn.Linear(3, 3)
    torch.manual_seed(0)
    torch.nn.init.normal_(lin.weight)
    torch.nn.init.normal_(lin.bias)
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append((type(x), x.requires_grad, x is lin.weight))

    def fn(x):
        y = lin(x)
        note(lin.weight)
        return y + 1

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: list(kept))


@case
def module_given():
    lin = torch.nn.Linear(3, 3)
    torch.manual_seed(0)
    torch.nn.init.normal_(lin.weight)
    torch.nn.init.normal_(lin.bias)
    kept = []

    @gfxgraph.no_graph
    def note(m):
        kept.append(m is lin)

    def fn(x):
        y = lin(x)
        note(lin)
        return y + 1

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: list(kept))


@case
def weight_view_given():
    w = torch.ones(3)
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * w
        note(w[:2])
        return y + 1

    def look(a, r):
        w.add_(1)
        return [k.clone() for k in kept]

    return (fn, lambda n: (torch.ones(3) * n,), look)


@case
def view_given():
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * 2
        note(x[1:])
        return y + 1

    def look(a, r):
        a[0].add_(1)
        return [k.clone() for k in kept]

    return (fn, lambda n: (torch.ones(3) * n,), look)


@case
def transposed_arg():
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * 2
        note(x.t())
        return y + 1

    def look(a, r):
        a[0].add_(1)
        return [(k.clone(), k.stride()) for k in kept]

    return (fn, lambda n: ((torch.arange(6.0).view(2, 3) * n).t(),), look)


@case
def detached_arg():
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * 2
        note(x.detach())
        return y + 1

    def look(a, r):
        a[0].add_(1)
        return (same(kept, a[0]), [k.clone() for k in kept])

    return (fn, lambda n: (torch.ones(3) * n,), look)


@case
def two_that_share():
    kept = []

    @gfxgraph.no_graph
    def note(x, v):
        kept.append((x, v))

    def fn(x):
        y = x * 2
        note(y, y[:1])
        return y + 1

    return (
        fn,
        lambda n: (torch.ones(3) * n,),
        lambda a, r: [(k.clone(), v.clone(), k.data_ptr() == v.data_ptr()) for k, v in kept],
    )


@case
def two_that_share_of_arg():
    kept = []

    @gfxgraph.no_graph
    def note(x, v):
        kept.append((x, v))

    def fn(x):
        y = x * 2
        note(x, x[:1])
        return y + 1

    return (
        fn,
        lambda n: (torch.ones(3) * n,),
        lambda a, r: [
            (k.clone(), v.clone(), k.data_ptr() == v.data_ptr(), k is a[0]) for k, v in kept
        ],
    )


@case
def same_twice():
    kept = []

    @gfxgraph.no_graph
    def note(x, v):
        kept.append((x, v))

    def fn(x):
        y = x * 2
        note(y, y)
        return y + 1

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: [(k.clone(), v is k) for k, v in kept])


@case
def intermediate_twice():
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * 2
        note(y)
        z = y + 1
        note(y)
        return z + 1

    return (
        fn,
        lambda n: (torch.ones(3) * n,),
        lambda a, r: (
            [k.clone() for k in kept],
            [kept[i] is kept[i + 1] for i in range(0, len(kept), 2)],
        ),
    )


@case
def intermediate_written_by_h_then_graph():

    @gfxgraph.no_graph
    def bump(x):
        x.add_(1)

    def fn(x):
        y = x * 2
        v = y[:1]
        bump(y)
        return y + v

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: 0)


@case
def view_written_by_h():

    @gfxgraph.no_graph
    def bump(x):
        x.add_(1)

    def fn(x):
        y = x * 2
        bump(y[:1])
        bump(x[1:])
        return y + x

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: a[0].clone())


@case
def returns_arg():

    @gfxgraph.no_graph
    def h(x):
        return x

    def fn(x):
        y = h(x)
        y.add_(1)
        return y * 2

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: a[0].clone())


@case
def returns_own_buffer():
    b = torch.zeros(3)

    @gfxgraph.no_graph
    def h(x):
        return b.copy_(x)

    def fn(x):
        y = h(x * 2)
        y.add_(1)
        return y * 2

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: b.clone())


@case
def arg_reached_by_other_arg():
    box = [None]

    @gfxgraph.no_graph
    def h(y):
        return y + box[0].sum()

    def fn(x):
        x.add_(1)
        return h(x * 2)

    def args(n):
        box[0] = torch.ones(3) * n
        return (box[0],)

    return (fn, args, lambda a, r: a[0].clone())


@case
def branch_on_arg_written():
    W = torch.zeros(3)

    @gfxgraph.no_graph
    def bump():
        W.add_(1)

    def fn(x):
        bump()
        if x.sum() > 12:
            return x * 2
        return x * 3

    return (fn, lambda n: (W,), lambda a, r: W.clone())


@case
def new_path_after_bump():
    W = torch.zeros(3)
    calls = []

    @gfxgraph.no_graph
    def bump(w, z):
        calls.append(1)
        W.add_(1)
        w.mul_(2)
        return None

    def fn(x, z):
        y = x * 1
        bump(x, z)
        if z.sum() > 12:
            return x * 2 + y
        return x * 3 + y

    return (fn, lambda n: (W, torch.ones(3) * n), lambda a, r: (W.clone(), len(calls)))


@case
def expanded_arg():
    kept = []

    @gfxgraph.no_graph
    def note(x):
        kept.append(x)

    def fn(x):
        y = x * 2
        note(x)
        return y + 1

    return (
        fn,
        lambda n: ((torch.ones(1) * n).expand(3),),
        lambda a, r: (same(kept, a[0]), [k.clone() for k in kept]),
    )


@case
def bumped_by_thread_of_call():
    W = torch.zeros(3)

    @gfxgraph.no_graph
    def h(x):
        W.copy_(x * 5)

    def fn(x, w):
        h(x * 2)
        return w * 2

    return (fn, lambda n: (torch.ones(3) * n, W), lambda a, r: W.clone())


@case
def data_set():
    @gfxgraph.no_graph
    def h(x):
        x.data = x.data * 2

    def fn(x):
        y = x + 1
        h(x)
        return y + x

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: a[0].clone())


@case
def h_mutates_dict_late():
    calls = []

    @gfxgraph.no_graph
    def h(d):
        calls.append(1)
        if len(calls) == 5:
            d["late"] = 1

    def fn(d):
        y = d["x"] * 2
        h(d)
        return y + len(d)

    return (fn, lambda n: ({"x": torch.ones(3) * n},), lambda a, r: list(a[0]))


@case
def h_reads_attr_of_tensor():

    @gfxgraph.no_graph
    def h(x):
        return getattr(x, "tag", None)

    def fn(x):
        y = x * 2
        t = h(x)
        return y + (1 if t else 0)

    def args(n):
        x = torch.ones(3) * n
        if n % 2:
            x.tag = 1
        return (x,)

    return (fn, args, lambda a, r: 0)


@case
def dict_unread_part():

    @gfxgraph.no_graph
    def h(d):
        return d["z"].sum()

    def fn(d):
        y = d["x"] * 2
        return y + h(d)

    return (fn, lambda n: ({"x": torch.ones(3) * n, "z": torch.ones(n) * n},), lambda a, r: 0)


@case
def late_write_to_given():
    calls = []

    @gfxgraph.no_graph
    def h(x):
        calls.append(1)
        if len(calls) > 4:
            x.add_(10)

    def fn(x):
        y = x * 2
        h(x)
        return y + x

    return (fn, lambda n: (torch.ones(3) * n,), lambda a, r: a[0].clone())


@case
def late_write_to_closure():
    calls = []
    box = [None]

    @gfxgraph.no_graph
    def h():
        calls.append(1)
        if len(calls) > 4:
            box[0].add_(10)

    def fn(x):
        y = x * 2
        h()
        return y + x

    def args(n):
        box[0] = torch.ones(3) * n
        return (box[0],)

    return (fn, args, lambda a, r: a[0].clone())


@case
def late_write_then_new_path():
    calls = []
    W = torch.ones(3)

    @gfxgraph.no_graph
    def h(x):
        calls.append(1)
        if len(calls) > 3:
            W.add_(10)

    def fn(w, x):
        a = w * 1
        w.mul_(2)
        h(x)
        b = w * 1
        w.add_(1)
        h(x)
        if x.sum() > 15:
            return a + b + w
        return a + b - w

    def args(n):
        if n == 1:
            return (torch.ones(3), torch.ones(3) * n)
        return (W, torch.ones(3) * n)

    return (fn, args, lambda a, r: (a[0].clone(), W.clone(), len(calls)))


@case
def late_mutation_of_dict_then_rerun():
    calls = []

    @gfxgraph.no_graph
    def h(d, y):
        calls.append(len(d))
        if len(calls) == 4:
            d["late"] = y
            d["x"].add_(1)

    def fn(d):
        y = d["x"] * len(d)
        h(d, y)
        return y + len(d) + d["x"]

    return (
        fn,
        lambda n: ({"x": torch.ones(3) * n},),
        lambda a, r: (
            {k: 0 for k in a[0]},
            a[0]["x"].clone(),
            calls[:],
            [v.clone() for v in a[0].values()],
        ),
    )


@case
def raises_late_after_write():
    calls = []

    @gfxgraph.no_graph
    def h(d):
        calls.append(1)
        d["x"].add_(1)
        if len(calls) % 3 == 0:
            raise ValueError

    def fn(d):
        y = d["x"] * 2
        d["x"].mul_(3)
        try:
            h(d)
        except ValueError:
            return y + d["x"] + 100
        return y + d["x"]

    return (fn, lambda n: ({"x": torch.ones(3) * n},), lambda a, r: (a[0]["x"].clone(), len(calls)))


@case
def two_args_same_tensor():
    kept = []

    @gfxgraph.no_graph
    def h(a, b):
        kept.append(a is b)
        a.add_(1)

    def fn(a, b):
        y = a + b
        h(a, b)
        return y + b

    def args(n):
        x = torch.ones(3) * n
        return (x, x)

    return (fn, args, lambda a, r: (kept[:], a[0].clone()))


@case
def two_args_view():

    @gfxgraph.no_graph
    def h(a):
        a.add_(1)

    def fn(a, b):
        y = a.sum() + b
        h(a)
        return y + b

    def args(n):
        x = torch.ones(3) * n
        return (x, x[1:])

    return (fn, args, lambda a, r: a[0].clone())


@case
def namedtuple_arg():
    kept = []

    @gfxgraph.no_graph
    def h(p):
        kept.append(p)

    def fn(p):
        y = p.a * 2
        h(p)
        h((p, y))
        return y

    return (
        fn,
        lambda n: (P(torch.ones(2) * n, [torch.ones(2) * n]),),
        lambda a, r: ([k is a[0] for k in kept[0::2]], [k[0] is a[0] for k in kept[1::2]]),
    )


@case
def deque_arg():
    kept = []

    @gfxgraph.no_graph
    def h(p):
        kept.append(p)

    def fn(p):
        y = p[0] * 2
        h(p)
        return y

    return (
        fn,
        lambda n: (deque([torch.ones(2) * n]),),
        lambda a, r: ([k is a[0] for k in kept], [k[0].clone() for k in kept]),
    )


@case
def result_holds_given_container():

    @gfxgraph.no_graph
    def h(d):
        return {"again": d, "n": 1}

    def fn(d):
        y = d["x"] * 2
        e = h(d)
        return y + e["again"]["x"] + e["n"]

    return (fn, lambda n: ({"x": torch.ones(3) * n},), lambda a, r: 0)


@case
def slice_written_by_graph_and_h():
    cache = torch.zeros(4, 3)
    seen = []

    @gfxgraph.no_graph
    def h(row):
        seen.append((cache.clone(), row.clone()))
        row.mul_(2)

    def fn(c, x):
        c[0].copy_(x)
        h(c[0])
        c[1].copy_(c[0] + 1)
        h(c[1])
        return c.sum(0)

    return (
        fn,
        lambda n: (cache, torch.ones(3) * n),
        lambda a, r: (cache.clone(), [list(s) for s in seen]),
    )


@case
def float64_view_of_arg():
    kept = []

    @gfxgraph.no_graph
    def h(v):
        kept.append(v.clone())
        v.zero_()

    def fn(x):
        y = x * 2
        h(x.view(torch.int32))
        return y + x

    return (
        fn,
        lambda n: (torch.ones(4) * n,),
        lambda a, r: ([k.clone() for k in kept], a[0].clone()),
    )


@case
def h_in_method_with_self():

    class M:
        def __init__(self):
            self.w = torch.ones(3)
            self.log = []

        @gfxgraph.no_graph
        def note(self, x):
            self.log.append(x)

        def __call__(self, x):
            y = x * self.w
            self.note(x)
            return y

    m = M()
    return (m, lambda n: (torch.ones(3) * n,), lambda a, r: [k is a[0] for k in m.log])


@case
def returns_its_buffer_as_result():
    buffer, results = torch.zeros(3), []

    @gfxgraph.no_graph
    def h(x):
        return buffer.copy_(x)

    def fn(x):
        return h(x * 2)

    def look(a, r):
        results.append(r)
        return [result.clone() for result in results]

    return fn, lambda n: (torch.ones(3) * n,), look


@case
def returns_what_it_keeps():
    kept = []

    @gfxgraph.no_graph
    def h(x):
        kept.append(x + 1)
        return kept[-1]

    def fn(x):
        return h(x * 2)

    def look(a, r):
        r.add_(5)
        return [held.clone() for held in kept]

    return fn, lambda n: (torch.ones(3) * n,), look
