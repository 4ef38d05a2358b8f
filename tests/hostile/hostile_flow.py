"""Functions whose course depends on data, that raise, and that catch."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import Any

import torch

from tests.hostile.hostile_twins import DEVICE


def _while(x: Any) -> Any:
    while x.abs().amax() > 0.5:
        x = x * 0.5
    return x


def _for(x: Any) -> Any:
    for _ in range(int((x > 0).sum()) % 4):
        x = x + 1
    return x


def _nested(x: Any) -> Any:
    if x.sum() > 0:
        if x[0].sum() > 0:
            return x + 1
        return x + 2
    return x + 3


def _elif(x: Any) -> Any:
    s = x.sum().item()
    if s > 2:
        return x + 1
    elif s > -2:
        return x * 2
    return x - 1


def _early(x: Any) -> Any:
    for row in x:
        if row.sum() > 1:
            return row + 0
    return x.sum(0)


def _raises_sometimes(x: Any) -> Any:
    if x.sum() > 0:
        raise ValueError("positive")
    return x + 1


def _raises_after_a_write(x: Any) -> Any:
    x.add_(1)
    if x.sum() > 12:
        raise ValueError("positive")
    return x * 2


def _catches(x: Any) -> Any:
    try:
        if x.sum() > 0:
            raise KeyError
        return x
    except KeyError:
        return x * 2


def _finally(x: Any) -> Any:
    y = x + 1
    try:
        if y.sum() > 12:
            raise KeyError
        y = y * 2
    except KeyError:
        y = y * 3
    finally:
        y.add_(1)
    return y


def _catches_everything(x: Any) -> Any:
    try:
        return x + float(x.sum())
    except BaseException:
        return x


def _catches_a_torch_error(x: Any) -> Any:
    try:
        return x @ x
    except RuntimeError:
        return x @ x.t()


def _assert(x: Any) -> Any:
    assert x.sum() < 4, "too large"
    return x + 1


def _suppress(x: Any) -> Any:
    with contextlib.suppress(ZeroDivisionError):
        return x / (0 if x.sum() > 0 and 1 // 0 else 1)
    return x + 7


def _recursive(x: Any, depth: int = 3) -> Any:
    if depth == 0 or x.sum() > 3:
        return x
    return _recursive(x + 0.5, depth - 1)


def _mask(x: Any) -> Any:
    return x[x > 0].sum() + x


def _mask_result(x: Any) -> Any:
    return x[x > 0]


def _nonzero(x: Any) -> Any:
    return torch.nonzero(x > 0)


def _unique(x: Any) -> Any:
    return x.round().unique()


def _item_as_number(x: Any) -> Any:
    return x * x.sum().item()


def _number_result(x: Any) -> Any:
    return x + 1, int((x > 0).sum())


def _float_result(x: Any) -> Any:
    return x.mean().item()


def _list_result(x: Any) -> Any:
    return x.flatten()[:3].tolist()


def _bool_result(x: Any) -> Any:
    return bool(x.sum() > 0)


def _slice_by_data(x: Any) -> Any:
    return x[: int((x[:, 0] > 0).sum())]


def _shape_by_data(x: Any) -> Any:
    return torch.zeros(int((x > 0).sum()) % 3 + 1, device=DEVICE)


def _index_by_data(x: Any) -> Any:
    return x[int(x.sum(1).argmax())]


def _dict_by_data(x: Any) -> Any:
    return {True: x + 1, False: x - 1}[bool(x.sum() > 0)]


def _function_by_data(x: Any) -> Any:
    return (torch.sin, torch.cos)[int(x.sum() > 0)](x)


def _string_by_data(x: Any) -> Any:
    return "up" if x.sum() > 0 else "down"


def _sorted_by_data(x: Any) -> Any:
    return torch.stack(sorted(x, key=lambda row: float(row.sum())))


def _max_of_list(x: Any) -> Any:
    return max(x.sum(1))


def _any(x: Any) -> Any:
    return x + 1 if any(x[:, 0] > 1) else x


def _in(x: Any) -> Any:
    return x + 1 if 0.25 in x else x


def _tensor_equality(x: Any) -> Any:
    return x if torch.equal(x, x.abs()) else -x


def _allclose(x: Any) -> Any:
    return x if torch.allclose(x, x.abs()) else -x


def _numpy(x: Any) -> Any:
    return x + float(x.cpu().numpy().max())


def _print_free_format(x: Any) -> Any:
    return x, f"{x.sum().item():.2f}"


def _copy_branch(x: Any) -> Any:
    y = -x
    y.copy_(y)
    return x.sin() if y.sum() > 0 else x.cos()


def _self_assign_branch(x: Any) -> Any:
    y = -x
    y[:] = y[:]
    return x.sin() if y.sum() > 0 else x.cos()


def _zero_then_add(x: Any) -> Any:
    y = torch.zeros_like(x)
    y.add_(x)
    return x.sin() if y.sum() > 0 else x.cos()


def _empty_then_out(x: Any) -> Any:
    y = torch.empty_like(x)
    torch.neg(x, out=y)
    return x.sin() if y.sum() > 0 else x.cos()


def _foreach_branch(x: Any) -> Any:
    (y,) = torch._foreach_neg([x])
    return x.sin() if y.sum() > 0 else x.cos()


def _foreach_copy_branch(x: Any) -> Any:
    y = torch.zeros_like(x)
    torch._foreach_copy_([y], [x])
    return x.sin() if y.sum() > 0 else x.cos()


def _set_branch(x: Any) -> Any:
    y = torch.zeros_like(x)
    y.data = x
    return x.sin() if y.sum() > 0 else x.cos()


def _view_branch(x: Any) -> Any:
    y = torch.zeros(2, 4, 3, device=DEVICE)
    y[1].copy_(x)
    return x.sin() if y[1].sum() > 0 else x.cos()


def _scatter_branch(x: Any) -> Any:
    y = torch.zeros(4, device=DEVICE).index_copy_(0, torch.arange(4, device=DEVICE), x[:, 0])
    return x.sin() if y.sum() > 0 else x.cos()


def _mask_of_mask(x: Any) -> Any:
    flag = torch.zeros((), dtype=torch.bool, device=DEVICE)
    flag |= (x > 0).all()
    return x.sin() if flag else x.cos()


def _where_branch(x: Any) -> Any:
    y = torch.where(x.sum() > 0, 1.0, -1.0)
    return x.sin() if y > 0 else x.cos()


def _shape_only(x: Any) -> Any:
    return x + x.shape[0] if x.numel() > 3 else x


def _constant_condition(x: Any) -> Any:
    limit = torch.tensor(3.0, device=DEVICE)
    while limit > 0:
        x = x + limit
        limit = limit - 1
    return x


def _cond(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))


def _generator_inside(x: Any) -> Any:
    return sum(row for row in (r * 2 for r in x))


def _reduce(x: Any) -> Any:
    return functools.reduce(torch.add, list(x))


def _checkpointed(x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda a: a.sin() * 2, x, use_reentrant=False)


def _inner_grad_mode(x: Any) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(y.square().sum(), y)
    return g


def _inner_inference(x: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
    return y.clone()


def _autocast(x: Any) -> Any:
    with torch.autocast(DEVICE, torch.bfloat16):
        return (x @ x.t()).float()


def _default_dtype(x: Any) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(3, device=DEVICE) + x
    finally:
        torch.set_default_dtype(before)


def _vmap(x: Any) -> Any:
    return torch.vmap(lambda row: row / row.abs().sum().clamp(min=1))(x)


def _jvp(x: Any) -> Any:
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))


def _func_grad(x: Any) -> Any:
    return torch.func.grad(lambda a: (a * a).sum())(x)


PURE: dict[str, Any] = {
    name.lstrip("_").replace("_", " "): value
    for name, value in list(globals().items())
    if name.startswith("_")
    and not name.startswith("__")
    and callable(value)
    and getattr(value, "__module__", "") == __name__
}


def _writes_then_branches() -> Any:
    s = SimpleNamespace(n=torch.zeros((), device=DEVICE))

    def fn(x: Any) -> Any:
        s.n.add_(1)
        return x + s.n if x.sum() > 0 else x - s.n

    return fn, s


def _branches_on_state() -> Any:
    s = SimpleNamespace(n=torch.zeros((), device=DEVICE))

    def fn(x: Any) -> Any:
        s.n.add_(1)
        return x + 1 if s.n % 2 > 0 else x - 1

    return fn, s


def _raises_after_state() -> Any:
    s = SimpleNamespace(n=torch.zeros((), device=DEVICE))

    def fn(x: Any) -> Any:
        s.n.add_(1)
        if x.sum() > 0:
            raise ValueError
        s.n.mul_(2)
        return x + s.n

    return fn, s


def _raises_in_the_third_call() -> Any:
    s = SimpleNamespace(n=0)

    def fn(x: Any) -> Any:
        s.n += 1
        if s.n == 3:
            raise ValueError
        return x + s.n

    return fn, s


def _raises_in_the_first_call() -> Any:
    s = SimpleNamespace(n=0)

    def fn(x: Any) -> Any:
        s.n += 1
        if s.n == 1:
            raise ValueError
        return x * 2

    return fn, s


def _stops_iteration() -> Any:
    s = SimpleNamespace(left=[3, 2, 1])

    def fn(x: Any) -> Any:
        return x + s.left.pop()

    return fn, s


def _counts_its_branches() -> Any:
    s = SimpleNamespace(up=torch.zeros((), device=DEVICE), down=torch.zeros((), device=DEVICE))

    def fn(x: Any) -> Any:
        (s.up if x.sum() > 0 else s.down).add_(1)
        return x + s.up - s.down

    return fn, s


def _memo() -> Any:
    s = SimpleNamespace(memo={})

    def fn(x: Any) -> Any:
        key = int((x > 0).sum()) % 3
        if key not in s.memo:
            s.memo[key] = torch.full((3,), float(key), device=DEVICE)
        return x + s.memo[key]

    return fn, s


def _lru_cache() -> Any:
    calls = SimpleNamespace(n=0)

    @functools.lru_cache
    def table(n: int) -> Any:
        calls.n += 1
        return torch.full((3,), float(n), device=DEVICE)

    return (lambda x: x + table(int((x > 0).sum()) % 3)), calls


def _patience() -> Any:
    s = SimpleNamespace(best=float("inf"), bad=0)

    def fn(x: Any) -> Any:
        loss = float(x.abs().sum())
        if loss < s.best:
            s.best, s.bad = loss, 0
        else:
            s.bad += 1
        return x + s.bad

    return fn, s


STATEFUL: dict[str, Any] = {
    name.lstrip("_").replace("_", " "): value
    for name, value in list(globals().items())
    if name in (
        "_writes_then_branches", "_branches_on_state", "_raises_after_state", "_raises_in_the_third_call",
        "_raises_in_the_first_call", "_stops_iteration", "_counts_its_branches", "_memo", "_lru_cache",
        "_patience",
    )
}  # fmt: skip
