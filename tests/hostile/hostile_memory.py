"""Functions that write in place, return views, and are given tensors that share memory or have odd layouts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from tests.hostile.hostile_twins import DEVICE, t

# Functions of two matrices of one shape; each runs with every arrangement below.
FUNCTIONS: dict[str, Any] = {
    "adds into the first": lambda x, y: x.add_(y),
    "adds into the second and returns the first": lambda x, y: (y.add_(1), x)[1],
    "writes the first, reads the second": lambda x, y: (x.zero_(), y + 0)[1],
    "reads the second before it writes the first": lambda x, y: (y + 0, x.mul_(2))[0],
    "swaps the two": lambda x, y: (x.copy_(y), y.copy_(x)),
    "writes a row": lambda x, y: x[0].copy_(y[1]),
    "writes a column by index": lambda x, y: x.index_fill_(
        1, torch.tensor([0], device=DEVICE), 2.0
    ),
    "writes through a view": lambda x, y: (x.view_as(x)[1:].mul_(3), x + y)[1],
    "writes through a transposed view": lambda x, y: (x.t()[0].fill_(7), x * y)[1],
    "writes through a diagonal": lambda x, y: (x[:3].diagonal().add_(1), x + y)[1],
    "writes through unbind": lambda x, y: (
        [row.add_(i) for i, row in enumerate(x.unbind())],
        x + y,
    )[1],
    "writes through chunk": lambda x, y: (x.chunk(2)[1].zero_(), x - y)[1],
    "writes through split of a copy": lambda x, y: (x.clone().split(2)[0].zero_(), x + y)[1],
    "writes with a mask": lambda x, y: x.masked_fill_(y > 0, 1.5),
    "writes where a mask of itself holds": lambda x, y: (x.__setitem__(x > 0, 0.0), x + y)[1],
    "writes by masked_scatter": lambda x, y: x.masked_scatter_(x > 0, y.clone()),
    "writes by put": lambda x, y: x.put_(
        torch.tensor([0, 2], device=DEVICE), y.flatten()[:2].clone()
    ),
    "writes by scatter": lambda x, y: x.scatter_(1, (y > 0).long(), 9.0),
    "accumulates by index": lambda x, y: x.index_add_(
        0, torch.tensor([1, 1], device=DEVICE), y[:2].clone()
    ),
    "uses out= on a new tensor": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
    "uses out= on the first": lambda x, y: torch.mul(x.clone(), y, out=x),
    "copies onto itself": lambda x, y: (x.copy_(x), x + y)[1],
    "copies a flipped self": lambda x, y: (x.copy_(x.flip(0)), x + y)[1],
    "copies a rolled self by rows": lambda x, y: (x[1:].copy_(x[:-1].clone()), x + y)[1],
    "returns the first itself": lambda x, y: x,
    "returns both themselves": lambda x, y: (y, x),
    "returns a view of the first": lambda x, y: x[1:],
    "returns the transposed first": lambda x, y: x.t(),
    "returns a view of a result twice": lambda x, y: (lambda r: (r, r.t(), r[0]))(x + y),
    "returns one result twice": lambda x, y: (lambda r: [r, r])(x * y),
    "returns a result that it writes afterwards": lambda x, y: (lambda r: (r, r.add_(1)))(x - y),
    "returns an expanded result": lambda x, y: (x + y).sum().expand(3),
    "returns a slice with a step": lambda x, y: (x + y)[::2, 1:],
    "returns a non-contiguous result": lambda x, y: (x + y).t(),
    "returns an empty tensor": lambda x, y: (x + y)[:0],
    "returns a number tensor": lambda x, y: (x + y).sum(),
    "returns a mask": lambda x, y: x > y,
    "returns indices": lambda x, y: (x + y).argsort(-1, stable=True),
    "returns a complex tensor": lambda x, y: torch.complex(x, y),
    "returns a conjugate view": lambda x, y: torch.complex(x, y).conj(),
    "returns the imaginary part": lambda x, y: torch.complex(x, y).imag,
    "returns a detached alias": lambda x, y: x.detach(),
    "returns data": lambda x, y: x.data,
    "writes data": lambda x, y: (x.data.add_(1), x + y)[1],
    "resizes a local": lambda x, y: (x + y).resize_(2, 3),
    "sets a local": lambda x, y: torch.empty(0, device=DEVICE).set_(x + y),
    "squeezes a local in place": lambda x, y: (x + y)[:1].clone().squeeze_(0),
    "transposes a local in place": lambda x, y: (x + y).t_(),
    "makes an as_strided view": lambda x, y: (x + y).as_strided((2, 2), (3, 1), 1),
    "unfolds": lambda x, y: (x + y).unfold(0, 2, 1),
    "views as another dtype": lambda x, y: (x + y).view(torch.int32),
    "counts with an in-place loop": lambda x, y: [x.add_(0.25) for _ in range(3)][-1] + y,
    "in-place relu then dropout in eval": lambda x, y: F.dropout(F.relu_(x), 0.5, False) + y,
    "foreach add": lambda x, y: torch._foreach_add([x, y], 1.0),
    "foreach add in place": lambda x, y: (torch._foreach_add_([x], [y.clone()]), x)[1],
    "cat of the same": lambda x, y: torch.cat([x, x, y]),
    "stack of views": lambda x, y: torch.stack([x[0], y[1], x[0]]),
    "broadcast of a row": lambda x, y: torch.broadcast_tensors(x[:1], y)[0],
    "meshgrid": lambda x, y: torch.meshgrid(x[:, 0], y[0], indexing="ij"),
    "empty filled by copy": lambda x, y: torch.empty_like(x).copy_(y),
    "new tensors of the argument": lambda x, y: x.new_full((2,), 3.0) + y[0, :2],
    "cumsum in place": lambda x, y: x.cumsum_(0) + y,
    "sort of views": lambda x, y: (x + y)[:, 1].sort(stable=True),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "where with numbers": lambda x, y: torch.where(x > y, 1.0, y),
}


def _same(n: int) -> Any:
    x = t(n, 4, 3)
    return x, x


def _view(n: int) -> Any:
    x = t(n, 4, 3)
    return x, x[:]


def _overlap(n: int) -> Any:
    x = t(n, 6, 3)
    return x[:4], x[2:]


def _halves(n: int) -> Any:
    x = t(n, 8, 3)
    return x[:4], x[4:]


def _columns(n: int) -> Any:
    x = t(n, 4, 6)
    return x[:, ::2], x[:, 1::2]


#: Arrangement of two 4x3 matrices -> call number -> arguments.
ARRANGEMENTS: dict[str, Any] = {
    "apart": lambda n: (t(n, 4, 3), t(n + 50, 4, 3)),
    "the same tensor": _same,
    "a view of the other": _view,
    "overlapping": _overlap,
    "halves of one": _halves,
    "columns of one": _columns,
    "transposed": lambda n: (t(n, 3, 4).t(), t(n + 50, 4, 3)),
    "with an offset": lambda n: (t(n, 6, 3)[2:], t(n + 50, 4, 3)),
    "one row expanded": lambda n: (t(n, 4, 3), t(n + 50, 1, 3).expand(4, 3)),
    "changing layouts": lambda n: (t(n, 3, 4).t() if n % 2 else t(n, 4, 3), t(n + 50, 4, 3)),
    "changing aliases": lambda n: _same(n) if n % 2 else (t(n, 4, 3), t(n + 50, 4, 3)),
}

#: Functions of one tensor that look at its layout.
LAYOUTS: dict[str, Any] = {
    "the stride": lambda x: x + x.stride(0),
    "all strides": lambda x: x * sum(x.stride()),
    "contiguity": lambda x: x * (2 if x.is_contiguous() else 3),
    "the offset": lambda x: x + x.storage_offset(),
    "whether it is a view": lambda x: x + float(x._is_view()),
    "the size of the storage": lambda x: x + x.untyped_storage().nbytes(),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)).clone(),
    "view, else reshape": lambda x: _view_or(x),
    "strides of a result": lambda x: torch.empty_like(x).stride()[0] + x,
    "strides of zeros_like": lambda x: x + torch.zeros_like(x).stride(-1),
    "strides of a sum": lambda x: x + (x + 1).stride(0),
    "dim order": lambda x: x + float(x.dim_order()[0]) if hasattr(x, "dim_order") else x,
    "ravel keeps memory": lambda x: (x.ravel().add_(1), x)[1],
    "reshape keeps memory": lambda x: (x.reshape(-1).mul_(2), x)[1],
    "flatten keeps memory": lambda x: (x.flatten()[0].fill_(9), x + 0)[1],
    "contiguous keeps memory": lambda x: (x.contiguous().add_(1), x + 0)[1],
    "strides of clone": lambda x: x.clone(),
    "a relu keeps strides": lambda x: x.relu(),
    "element size": lambda x: x * x.element_size(),
    "is pinned": lambda x: x + float(x.device.type == "cpu" and x.is_pinned()) * 0,
    "the address": lambda x: x * (2 if x.data_ptr() % 64 == 0 else 3),
    "the address of a part": lambda x: x * (2 if x[1:].data_ptr() % 64 == 0 else 3),
    "the address of its storage": lambda x: x * (2 if x.storage().data_ptr() == _at(x) else 3),
    "is shared": lambda x: x * (2 if x.is_shared() else 3),
    "the times of writing": lambda x: x + x._version,
    "nonzero bytes": lambda x: x + x.nbytes,
}


def _at(x: torch.Tensor) -> int:
    return x.data_ptr()


def _view_or(x: torch.Tensor) -> torch.Tensor:
    try:
        return x.view(-1) + 1
    except RuntimeError:
        return x.reshape(-1) + 2


def _shared(x: torch.Tensor, share: bool) -> torch.Tensor:
    return x.share_memory_() if share else x


def _written(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x.add_(0)
    return x


def _swap(n: int, *layouts: Any) -> Any:
    return layouts[n % len(layouts)]


#: Layouts that follow one another in the calls.
LAYOUT_CALLS: dict[str, Any] = {
    "dense then sliced": lambda n: (t(n, 4, 3) if n < 3 else t(n, 4, 6)[:, ::2],),
    "sliced then dense": lambda n: (t(n, 4, 6)[:, :3] if n < 3 else t(n, 4, 3),),
    "transposed then dense": lambda n: (t(n, 3, 4).t() if n < 3 else t(n, 4, 3),),
    "offsets": lambda n: (t(0, 12, 3)[n : n + 4],),
    "expanded then dense": lambda n: (t(n, 1, 3).expand(4, 3) if n < 3 else t(n, 4, 3),),
    "dense then shared": lambda n: (_shared(t(n, 4, 3), n > 2),),
    "written often": lambda n: (_written(t(n, 4, 3), n),),
    "alternating": lambda n: (_swap(n, t(n, 4, 3), t(n, 3, 4).t(), t(n, 4, 6)[:, ::2]),),
}


class Caches:
    """State that is written in place; each makes a function of one matrix."""

    @staticmethod
    def a_ring_buffer() -> Any:
        s = SimpleNamespace(
            ring=torch.zeros(3, 3, device=DEVICE),
            at=torch.zeros(1, dtype=torch.long, device=DEVICE),
        )

        def fn(x: Any) -> Any:
            s.ring.index_copy_(0, s.at, x[:1])
            s.at.add_(1).remainder_(3)
            return s.ring.sum(0)

        return fn, s

    @staticmethod
    def a_running_mean() -> Any:
        s = SimpleNamespace(mean=torch.zeros(3, device=DEVICE))

        def fn(x: Any) -> Any:
            s.mean.lerp_(x.mean(0), 0.5)
            return x - s.mean

        return fn, s

    @staticmethod
    def a_cache_that_is_returned() -> Any:
        s = SimpleNamespace(cache=torch.zeros(4, 3, device=DEVICE))
        return lambda x: s.cache.add_(x), s

    @staticmethod
    def a_view_of_a_cache_that_is_returned() -> Any:
        s = SimpleNamespace(cache=torch.zeros(4, 3, device=DEVICE))
        return lambda x: s.cache.add_(x)[1:], s

    @staticmethod
    def batch_norm_in_training() -> Any:
        s = torch.nn.BatchNorm1d(3).to(DEVICE)
        return lambda x: s(x), s

    @staticmethod
    def batch_norm_in_a_list() -> Any:
        s = SimpleNamespace(norms=[torch.nn.BatchNorm1d(3, momentum=None).to(DEVICE)])
        return lambda x: s.norms[0](x), s

    @staticmethod
    def a_counter_on_the_device() -> Any:
        s = SimpleNamespace(n=torch.zeros((), device=DEVICE))

        def fn(x: Any) -> Any:
            s.n += 1
            return x * s.n

        return fn, s

    @staticmethod
    def two_views_of_one_cache() -> Any:
        cache = torch.zeros(4, 3, device=DEVICE)
        s = SimpleNamespace(a=cache[:2], b=cache[1:3], all=cache)

        def fn(x: Any) -> Any:
            s.a.add_(x[:2])
            s.b.mul_(2)
            return s.all.clone()

        return fn, s

    @staticmethod
    def a_cache_that_is_written_twice() -> Any:
        s = SimpleNamespace(cache=torch.zeros(3, device=DEVICE))

        def fn(x: Any) -> Any:
            s.cache.copy_(x[0])
            y = s.cache + 1
            s.cache.copy_(x[1])
            return y + s.cache

        return fn, s

    @staticmethod
    def a_cache_of_the_arguments() -> Any:
        s = SimpleNamespace(seen={})

        def fn(x: Any) -> Any:
            if "x" not in s.seen:
                s.seen["x"] = x.clone()
            return x + s.seen["x"]

        return fn, s

    @staticmethod
    def a_kept_argument() -> Any:
        s = SimpleNamespace(kept=None)

        def fn(x: Any) -> Any:
            y = x if s.kept is None else x + s.kept
            s.kept = x
            return y + 0

        return fn, s

    @staticmethod
    def a_kept_result() -> Any:
        s = SimpleNamespace(kept=torch.zeros(4, 3, device=DEVICE))

        def fn(x: Any) -> Any:
            s.kept = x + s.kept
            return s.kept

        return fn, s

    @staticmethod
    def a_list_of_results() -> Any:
        s = SimpleNamespace(kept=[])

        def fn(x: Any) -> Any:
            s.kept.append(x.sum())
            return torch.stack(s.kept).sum() + x

        return fn, s

    @staticmethod
    def a_grown_cache() -> Any:
        s = SimpleNamespace(cache=torch.zeros(0, 3, device=DEVICE))

        def fn(x: Any) -> Any:
            s.cache = torch.cat([s.cache, x[:1]])
            return s.cache.sum(0)

        return fn, s

    @staticmethod
    def a_cache_resized_in_place() -> Any:
        s = SimpleNamespace(cache=torch.zeros(2, 3, device=DEVICE))

        def fn(x: Any) -> Any:
            if s.cache.shape[0] < 4:
                s.cache.resize_(4, 3).zero_()
            s.cache.add_(x)
            return s.cache.sum(0)

        return fn, s

    @staticmethod
    def a_swapped_pair() -> Any:
        s = SimpleNamespace(a=torch.zeros(4, 3, device=DEVICE), b=torch.ones(4, 3, device=DEVICE))

        def fn(x: Any) -> Any:
            s.a, s.b = s.b, s.a
            return x + s.a * 2 + s.b

        return fn, s

    @staticmethod
    def a_flag_on_the_host() -> Any:
        s = SimpleNamespace(ready=torch.zeros(1))

        def fn(x: Any) -> Any:
            if not s.ready.item():
                s.ready.fill_(1)
                return x
            return x * 2

        return fn, s

    @staticmethod
    def a_counter_on_the_host() -> Any:
        s = SimpleNamespace(n=torch.zeros(1))

        def fn(x: Any) -> Any:
            s.n.add_(1)
            return x * float(s.n)

        return fn, s
