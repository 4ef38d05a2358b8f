"""Functions that branch by data, for ``test_lowering.py``."""

# ruff: noqa: SIM108, B007, E731  (written as users write)

from __future__ import annotations

import torch

WEIGHT = torch.zeros(8)
OTHER = torch.ones(8) * 5
STATE = {"turns": 0, "last": None}
FITS = []
STAYS = []


def fits(function):
    """In one graph, the device decides."""
    FITS.append(function)
    return function


def stays(why):
    """The host decides somewhere, and this is a part of the reason."""

    def note(function):
        STAYS.append((function, why))
        return function

    return note


@fits
def swap(x):
    a, b = x * 1, x + 1
    while a.sum() < 50:
        a, b = b, a.abs() + b.abs()
    return a + b


@fits
def swap_and_return(x):
    a, b = x, x + 1
    while a.sum() < 50:
        a, b = b, a.abs() + b.abs()
    return a


@fits
def may_return_its_argument(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    return y


@fits
def view(x):
    y = x * 1
    if x.sum() > 0:
        y = y[::2].repeat_interleave(2)
    else:
        y = y.view(2, 4).t().reshape(8)
    return y + 1


@fits
def break_last(x):
    y = x * 1
    for i in range(20):
        y = y * 1.2 + 0.01
        if y.abs().sum() > 20:
            break
    return y + 0


@fits
def while_true(x):
    y = x * 1
    while True:
        if y.abs().sum() > 20:
            break
        y = y * 1.2 + 0.01
    return y + 0


@fits
def while_true_last(x):
    y = x * 1
    while True:
        y = y * 1.2 + 0.01
        if not (y.abs().sum() < 20):
            break
    return y + 0


@fits
def or_else(x):
    y = x * 1
    while y.sum() < 3 or y.max() < 2:
        y = y + 0.5
    return y + 0


@fits
def and_not(x):
    y = x * 1
    if not (y.sum() < 0) and not y.max() > 1:
        y = y * 4
    return y + 0


@fits
def mixed(x, flag=True):
    y = x * 1
    if flag and y.sum() > 0:
        y = y * 4
    return y + 0


@fits
def of_nan(x):
    y = x / x.abs().sum()
    if y.sum() == y.sum():
        y = y * 2
    else:
        y = torch.zeros_like(y)
    return y + 0


@fits
def int_item(x):
    n = (x > 0).sum()
    if int(n) > 3:
        x = x * 2
    return x + n


@fits
def item_eq(x):
    if x.max().item() == x.sum().item():
        y = x * 2
    else:
        y = x - 1
    return y + 0


@fits
def double_edge(x):
    t = torch.full((), 0.1, device=x.device) * (1 - (x.sum() > 0) * 0.5)
    if t.item() > 0.1:
        y = x * 2
    else:
        y = x - 1
    return y + 0


@fits
def comp(x):
    y = x * 1
    ws = [1.0, 2.0]
    while y.sum() < 5:
        y = y + sum([w * (y * 0 + 0.1) for w in ws])
    return y + 0


@fits
def unbound(x):
    y = x * 1
    while y.sum() < 5:
        t = y * 0.5
        y = y + 1 + t.abs()
    return y + 0


@fits
def unbound_after(x):
    y = x * 1
    t = y
    while y.sum() < 5:
        t = y * 0.5
        y = y + 1 + t.abs()
    return y + t


@fits
def nested(x):
    y = x * 1
    while y.sum() < 30:
        z = y
        while z.sum() < 12:
            z = z + 1
        if z.max() > 4:
            z = z * 1.1
        y = z + 1
    return y + 0


@fits
def nested_keep(x):
    y = x * 1
    n = 0
    while y.sum() < 30 and n < 7:
        if y.max() > 2:
            y = y * 2
        n += 1
        y = y + 1
    return y


@fits
def with_inside(x):
    y = x * 1
    while y.sum() < 5:
        with torch.no_grad():
            y = y + 1
    return y + 0


@fits
def chain(x):
    s = x.sum()
    if s > 3:
        y = x * 2
    elif s > 0:
        y = x * 3
    elif s > -3:
        y = x * 4
    else:
        y = x * 5
    return y


@fits
def elif_ret(x):
    s = x.sum()
    if s > 3:
        return x * 2
    if s > 0:
        return x * 3
    elif s > -3:
        return x * 4
    return x * 5


@fits
def ifexp_nested(x):
    return (x * 2 if x.sum() > 0 else x * 3) + (x if x.max() > 1 else -x)


@fits
def twice(x):
    y = x * 1
    for k in (1, 2, 3):
        if y.sum() > k:
            y = y * 0.5
    return y + 0


@fits
def view_write_later_safe(x):
    y = x * 1
    if x.sum() > 0:
        y = y * 2
    w = y * 1
    w.add_(100)
    return w


@fits
def tuple_ret(x):
    if x.sum() > 0:
        return x * 2, x + 1
    return x - 1, x * 3


@fits
def tuple_ret_alias(x):
    if x.sum() > 0:
        return x * 2, x
    return x - 1, x * 3


@fits
def outer(x):
    y = WEIGHT
    if x.sum() > 0:
        y = OTHER
    return y * x


@fits
def counted(x):
    n = 0
    while x.sum() < 20 and n < 30:
        x = x.abs() * 1.1 + 0.1
        n += 2
    return x


@fits
def bool_called(x):
    if bool(x.sum() > 0):
        return x * 2
    return x - 2


@fits
def ints(x):
    n = (x > 0).sum()
    while n.item() < 20 and int(n) != 3:
        n = n * 2 + 1
    return x + n


@fits
def floats(x):
    third = torch.full((), 1.0, device=x.device) / (3 + (x.sum() > 0) * 1.0)
    y = x * 1
    if third.item() > 1 / 3:  # as doubles, which float32 cannot tell apart
        y = y * 2
    return y + 0


@fits
def float_with_int(x):
    large = x.sum() * 0 + 2.0**24  # float32 has no 2**24 + 1
    if large.item() < 2**24 + 1 and not x.sum().item() <= 1:
        y = x * 2
    else:
        y = x - 1
    return y + 0


@fits
def out_in_list(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    return [y, {"k": y}]


@stays("is written to or told apart")
def alias_write_after(x):
    y = x + 0
    z = y
    if x.sum() > 0:
        y = y * 2
    y.add_(1)
    return z * 1 + y


@stays("may write to memory from before")
def alias_write_before(x):
    y = x + 0
    z = y
    while y.sum() < 5:
        z.add_(1)
        y = y * 1.5 + 0.1
        if z.sum() > 1e6:
            break
    return y + z


@stays("is written to or told apart")
def inplace_input(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    y.mul_(3)
    return y + 1


@stays("may write to memory from before")
def augassign(x):
    y = x * 1
    while y.sum() < 5:
        y += 1
    return y * 2


@stays("changes out")
def appended(x):
    out = []
    while x.sum() < 5:
        x = x + 1
        out.append(x)
    return torch.stack(out).sum(0) if out else x * 1


@stays("tensors of the device are carried on")
def attr(x):
    c = 0
    while x.sum() < 5 and c < 3:
        x = x + 1
        c += 1
    return x * c


@stays("returns what it gives")
def ret_same(x):
    if x.sum() > 0:
        y = x * 2
        return y, y
    return x - 1, x * 3


@stays("differ in tensor 0")
def shape(x):
    if x.sum() > 0:
        y = x[:4] * 2
    else:
        y = x * 3
    return y + 0


@stays("differ in tensor 0")
def dtype(x):
    y = x * 1
    if x.sum() > 0:
        y = y.double()
    return y * 2


@stays("returns what it gives")
def outer_returned(x):
    y = WEIGHT
    if x.sum() > 0:
        y = OTHER
    return y


@stays("is written to or told apart")
def outer_written(x):
    y = WEIGHT
    if x.sum() > 0:
        y = OTHER
    z = x * 1
    y.add_(0)
    return y + z


@stays("`break` inside")
def break_mid(x):
    y = x * 1
    for _ in range(20):
        y = y * 1.2
        if y.abs().sum() > 20:
            break
        y = y + 0.1
    return y + 0


@stays("`break` inside")
def break_i(x):
    y = x * 1
    for i in range(20):
        y = y * 1.2 + 0.01
        if y.abs().sum() > 20:
            break
    return y + i


@stays("numbers of several types")
def float_mixed(x):
    if x.sum().long().item() > 1.5:
        y = x * 2
    else:
        y = x - 1
    return y + 0


@stays("draws random numbers")
def rand(x):
    y = x * 1
    if y.sum() > 0:
        y = y + torch.rand(8, device=x.device)
    return y + 0


@stays("`raise` inside")
def raises(x):
    if x.sum() > 1e9:
        raise ValueError("x")
    return x * 2


@stays("Tensor.item()")
def item_in_body(x):
    y = x * 1
    while y.sum() < 5:
        y = y + 1 + float(y.sum() > 3) * 0
    return y + 0


@stays("a function inside uses")
def lambdas(x):
    f = lambda: y
    y = x * 1
    while y.sum() < 5:
        y = y + 1
    return f() + 0


@stays("compares objects with `is`")
def compares(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    return x + 1 if y is x else x - 1


@stays("of a host tensor")
def subscript(x):
    y = x * 1
    if x.sum() > 0:
        y[0] = 7
        y = y * 1
    return y + 0


@stays("it has an `else`")
def else_loop(x):
    y = x * 1
    while y.sum() < 5:
        y = y + 1
    else:
        y = y * 2
    return y


@stays("tensors of the device are carried on")
def dict(x):
    d = {"a": x * 1}
    while d["a"].sum() < 5:
        d = {"a": d["a"] + 1}
    return d["a"] + 0


@stays("differ in tensor 0")
def cat(x):
    y = x * 1
    while y.sum() < 5 and y.numel() < 100:
        y = torch.cat([y, y.abs()])
    return y.sum()


@stays("expected tensors")
def param(x, k=2):
    y = x * k
    if y.sum() > 0:
        k = y.max()
        y = y * k
    return y + 0


@stays("expected tensors")
def name_types(x):
    s = 1.0
    if x.sum() > 0:
        s = 2.0
    return x * s


@stays("expected tensors")
def none(x):
    e = None
    if x.sum() > 0:
        e = x * 2
    return x if e is None else e


@stays("is written to or told apart")
def view_write_later(x):
    y = x * 1
    v = y[:4]
    if x.sum() > 0:
        y = y * 2
    v.add_(100)
    return y + 0


@stays("is written to or told apart")
def two_names(x):
    y = x * 1
    if x.sum() > 0:
        a = b = y * 2
    else:
        a, b = y * 3, y * 4
    a.add_(1)
    return a + b


@stays("")
def stored(x):
    y = x
    if x.sum() > 0:
        y = x * 2
    STATE["last"] = y
    return y + 0


@stays("changes STATE")
def counts_in_python(x):
    y = x * 1
    while y.sum() < 5:
        y = y + 1
        STATE["turns"] += 1
    return y + 0


@stays("may write to memory")
def closure_write(x):
    y = x * 1
    acc = torch.zeros(8, device=x.device)
    while y.sum() < 5:
        y = y + 1
        acc.add_(y)
    return y + acc


@stays("may write to memory")
def out_kw(x):
    y = x * 1
    acc = torch.zeros(8, device=x.device)
    while y.sum() < 5:
        y = y + 1
        torch.add(acc, y, out=acc)
    return y + acc


@stays("which may advance it")
def iterates(x):
    it = iter([1.0, 2.0, 3.0, 4.0] * 100)
    y = x * 1
    while y.sum() < 50:
        y = y + next(it)
    return y + 0


@stays("n is 0 (int)")
def outer_loop_counts_on(x):
    n = 0
    for k in (1, 2):
        while x.norm() > k and n < 3:
            x = x * 0.9
            n += 1
    return x + 0


@stays("plain tensors of the device")
def carries_a_parameter(x):
    w = torch.nn.Parameter(torch.ones_like(x), requires_grad=False)
    while (w * x).sum() > 1:
        w = w * 0.9
    return x + isinstance(w, torch.nn.Parameter)


@stays("with gaps")
def asks_if_it_has_gaps(x):
    y = torch.stack([x, x], 1)
    if x.sum() > 0:
        z = y[:, 0]
    else:
        z = y[:, 1]
    return z.is_contiguous() + x


@stays("strides change")
def strides_change(x):
    y = x.view(2, 4)
    while y.norm() > 1:
        y = y.t().contiguous().t() * 0.5
    return y.is_contiguous() + x


@stays("compares a number with a tensor")
def number_and_tensor(x):
    t = torch.full((), 0.1, device=x.device)
    if (t.double() + (x.sum() > 0) * 1.0).item() > 0 * x.sum() + t:
        y = x * 2
    else:
        y = x * 3
    return y + 0
