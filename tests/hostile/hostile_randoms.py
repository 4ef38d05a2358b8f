"""Functions that draw random numbers, from wherever."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from tests.hostile.hostile_twins import DEVICE

try:
    import numpy
except ImportError:  # torch does not need it
    numpy = None  # type: ignore[assignment]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator(device=DEVICE).manual_seed(seed)


def _of(state: Any, fn: Any) -> Any:
    return lambda: (lambda s: ((lambda *a: fn(s, *a)), s))(state())


def _g() -> Any:
    return SimpleNamespace(g=_generator())


def _saved(s: Any, x: Any) -> Any:
    before = torch.get_rng_state()
    y = torch.rand(3) if DEVICE == "cpu" else torch.rand(3, device=DEVICE)
    torch.set_rng_state(before)
    return x + y.to(DEVICE)


def _forked(s: Any, x: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        y = torch.rand(3, device=DEVICE)
    return x + y + torch.rand(3, device=DEVICE)


def _own_saved(s: Any, x: Any) -> Any:
    before = s.g.get_state()
    y = torch.rand(3, generator=s.g, device=DEVICE)
    s.g.set_state(before)
    return x + y + torch.rand(3, generator=s.g, device=DEVICE)


def _own_seeded(s: Any, x: Any) -> Any:
    s.g.manual_seed(5)
    return x + torch.rand(3, generator=s.g, device=DEVICE)


def _branch(s: Any, x: Any) -> Any:
    y = torch.randn(3, generator=s.g, device=DEVICE)
    return y + x if x.sum() > 0 else y - x


def _branch_after(s: Any, x: Any) -> Any:
    if x.sum() > 0:
        return x + torch.randn(3, generator=s.g, device=DEVICE)
    return x


def _branch_on_random(s: Any, x: Any) -> Any:
    return x + 1 if torch.rand((), device=DEVICE) > 0.5 else x - 1


def _branch_on_own(s: Any, x: Any) -> Any:
    return x + 1 if torch.rand((), generator=s.g, device=DEVICE) > 0.5 else x - 1


def _loop(s: Any, x: Any) -> Any:
    for _ in range(int(x.abs().sum()) % 3):
        x = x + torch.rand(3, generator=s.g, device=DEVICE)
    return x


class _Holder:
    shared = None

    def __init__(self) -> None:
        self.inner = SimpleNamespace(g=_generator(4))


class _Slots:
    __slots__ = ("g",)

    def __init__(self) -> None:
        self.g = _generator(9)


def _class_attribute() -> Any:
    class Holder:
        g = _generator(8)

    return (lambda x: x + torch.rand(3, generator=Holder.g, device=DEVICE)), SimpleNamespace(
        g=Holder.g
    )


def _slots() -> Any:
    holder = _Slots()
    return (lambda x: x + torch.rand(3, generator=holder.g, device=DEVICE)), SimpleNamespace(
        g=holder.g
    )


def _default() -> Any:
    g = _generator(2)

    def fn(x: Any, g: Any = g) -> Any:
        return x + torch.rand(3, generator=g, device=DEVICE)

    return fn, SimpleNamespace(g=g)


def _module() -> Any:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.g = _generator(6)

        def forward(self, x: Any) -> Any:
            return x + torch.rand(3, generator=self.g, device=DEVICE)

    net = Net()
    return net, SimpleNamespace(g=net.g)


def _generator_function() -> Any:
    def numbers() -> Any:
        n = 0
        while True:
            n += 1
            yield n

    source = numbers()
    return (lambda x: x + next(source)), None


def _loop_over_generator() -> Any:
    source = iter(range(10**6))

    def fn(x: Any) -> Any:
        for n in source:
            if n % 2:
                return x + n
        return x

    return fn, None


def _iterator(make: Any) -> Any:
    def made() -> Any:
        source = make()
        return (lambda x: x + float(next(source))), None

    return made


STATEFUL: dict[str, Any] = {
    "an own generator": _of(_g, lambda s, x: x + torch.rand(3, generator=s.g, device=DEVICE)),
    "an own generator twice": _of(
        _g,
        lambda s, x: (
            torch.rand(3, generator=s.g, device=DEVICE)
            - torch.rand(3, generator=s.g, device=DEVICE)
            + x
        ),
    ),
    "an own generator in place": _of(_g, lambda s, x: x.uniform_(generator=s.g)),
    "an own and the default generator": _of(
        _g,
        lambda s, x: torch.rand(3, device=DEVICE) + torch.rand(3, generator=s.g, device=DEVICE) + x,
    ),
    "two own generators": _of(
        lambda: SimpleNamespace(a=_generator(1), b=_generator(2)),
        lambda s, x: (
            torch.rand(3, generator=s.a, device=DEVICE)
            - torch.rand(3, generator=s.b, device=DEVICE)
            + x
        ),
    ),
    "an own generator and a branch": _of(_g, _branch),
    "an own generator behind a branch": _of(_g, _branch_after),
    "the default generator and a branch": _of(
        _g, lambda s, x: torch.randn(3, device=DEVICE) + (x if x.sum() > 0 else -x)
    ),
    "a branch on a random number": _of(_g, _branch_on_random),
    "a branch on an own random number": _of(_g, _branch_on_own),
    "an own generator in a loop": _of(_g, _loop),
    "a generator in a list": _of(
        lambda: SimpleNamespace(gs=[_generator()]),
        lambda s, x: x + torch.rand(3, generator=s.gs[0], device=DEVICE),
    ),
    "a generator in an inner object": _of(
        _Holder, lambda s, x: x + torch.rand(3, generator=s.inner.g, device=DEVICE)
    ),
    "a generator of a class": _class_attribute,
    "a generator in slots": _slots,
    "a generator as default argument": _default,
    "a generator of a module": _module,
    "a generator that is seeded inside": _of(_g, _own_seeded),
    "a generator that is saved and restored": _of(_g, _own_saved),
    "the default generator saved and restored": _of(_g, _saved),
    "a forked default generator": _of(_g, _forked),
    "a seed in each call": _of(
        _g, lambda s, x: (torch.manual_seed(7), x + torch.rand(3, device=DEVICE))[1]
    ),
    "initial_seed": _of(_g, lambda s, x: x + s.g.initial_seed()),
    "dropout": _of(_g, lambda s, x: F.dropout(x, 0.5)),
    "alpha dropout": _of(_g, lambda s, x: F.alpha_dropout(x, 0.5, True)),
    "rrelu": _of(_g, lambda s, x: F.rrelu(x, training=True)),
    "gumbel softmax": _of(_g, lambda s, x: F.gumbel_softmax(x)),
    "multinomial": _of(_g, lambda s, x: torch.multinomial(x.softmax(-1), 2, generator=s.g)),
    "randperm": _of(_g, lambda s, x: x[torch.randperm(x.shape[0], generator=s.g, device=DEVICE)]),
    "bernoulli": _of(_g, lambda s, x: torch.bernoulli(x.sigmoid(), generator=s.g)),
    "normal of a tensor": _of(_g, lambda s, x: torch.normal(x, 1.0)),
    "exponential": _of(_g, lambda s, x: x.exponential_()),
    "a sample of a distribution": _of(
        _g, lambda s, x: torch.distributions.Normal(x, 1.0, validate_args=False).sample()
    ),
    "attention with dropout": _of(
        _g, lambda s, x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5)
    ),
    "random.random": _of(_g, lambda s, x: x + random.random()),
    "random.choice": _of(_g, lambda s, x: x + random.choice([1, 2, 3])),
    "random.shuffle": _of(_g, lambda s, x: (lambda a: (random.shuffle(a), x + a[0])[1])([1, 2, 3])),
    "an own random.Random": _of(
        lambda: SimpleNamespace(r=random.Random(3)), lambda s, x: x + s.r.random()
    ),
    "itertools.count": _iterator(itertools.count),
    "a cycle": _iterator(lambda: itertools.cycle([1, 2, 3])),
    "a list iterator": _iterator(lambda: iter(list(range(100)))),
    "a dict iterator": _iterator(lambda: iter(dict.fromkeys(range(100)))),
    "a zip": _iterator(lambda: map(sum, zip(range(100), range(100), strict=False))),
    "an enumerate": _iterator(lambda: map(sum, enumerate(range(100)))),
    "a chain": _iterator(lambda: itertools.chain([1], range(100))),
    "a reversed list": _iterator(lambda: reversed(list(range(100)))),
    "a filter": _iterator(lambda: filter(None, range(100))),
    "a generator expression": _iterator(lambda: (n * n for n in range(100))),
    "a generator function": _generator_function,
    "a for loop over an iterator": _loop_over_generator,
}

if numpy is not None:
    STATEFUL |= {
        "numpy's global generator": _of(_g, lambda s, x: x + numpy.random.rand()),
        "numpy's default_rng": _of(
            lambda: SimpleNamespace(r=numpy.random.default_rng(3)), lambda s, x: x + s.r.random()
        ),
        "numpy's RandomState": _of(
            lambda: SimpleNamespace(r=numpy.random.RandomState(3)), lambda s, x: x + s.r.rand()
        ),
        "numpy noise as a tensor": _of(
            lambda: SimpleNamespace(r=numpy.random.default_rng(3)),
            lambda s, x: x + torch.from_numpy(s.r.random(3)).to(DEVICE).float(),
        ),
        "numpy's global generator behind a branch": _of(
            _g, lambda s, x: x + numpy.random.rand() if x.sum() > 0 else x
        ),
    }
