"""Arguments and results of every kind, and keys that nearly are equal."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from typing import Any, NamedTuple

import torch

from tests.hostile.hostile_twins import DEVICE, t


class Pair(NamedTuple):
    a: Any
    b: Any


class PairWithState(Pair):
    pass


@dataclasses.dataclass
class Data:
    a: Any
    b: Any = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any = 2.0


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = 2.0


@dataclasses.dataclass
class Checked:
    a: Any
    b: Any = 2.0

    def __post_init__(self) -> None:
        self.b = self.b * 2


@dataclasses.dataclass
class Equal:
    a: Any
    b: Any = 2.0

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Tagged(int):
    tag = 1.0


class Text(str):
    tag = 1.0


class Half(float):
    def __mul__(self, other: Any) -> Any:
        return other * (float(self) / 2)

    __rmul__ = __mul__


class Doubling(dict):
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) * 2


class Lying(list):
    def __len__(self) -> int:
        return 1


class Reversed(list):
    def __iter__(self) -> Any:
        return reversed(list(list.__iter__(self)))


class Request:
    def __init__(self, x: Any, scale: float = 2.0) -> None:
        self.x, self.scale = x, scale


def tagged(value: int, tag: float) -> Tagged:
    made = Tagged(value)
    made.tag = tag
    return made


def text(value: str, tag: float) -> Text:
    made = Text(value)
    made.tag = tag
    return made


def swap(n: int, *values: Any) -> Any:
    """One of the values after the other."""
    return values[n % len(values)]


def _mul(x: Any, k: Any) -> Any:
    return x * k


#: name -> (function, call number -> arguments)
KEYS: dict[str, Any] = {
    "1 and True": (lambda x, k: x + (2 if k is True else 3), lambda n: (t(n, 3), swap(n, 1, True))),
    "1 and 1.0": (
        lambda x, k: x + (2 if isinstance(k, float) else 3),
        lambda n: (t(n, 3), swap(n, 1, 1.0)),
    ),
    "0.0 and -0.0": (
        lambda x, k: (
            x + torch.copysign(torch.ones(3, device=DEVICE), torch.tensor(k, device=DEVICE))
        ),
        lambda n: (t(n, 3), swap(n, 0.0, -0.0)),
    ),
    "0 and False": (
        lambda x, k: x + (2 if k is False else 3),
        lambda n: (t(n, 3), swap(n, 0, False)),
    ),
    "nan": (_mul, lambda n: (t(n, 3), swap(n, float("nan"), 1.0))),
    "inf": (_mul, lambda n: (t(n, 3), swap(n, float("inf"), -float("inf")))),
    "complex": (_mul, lambda n: (t(n, 3), swap(n, 1 + 2j, 1 - 2j))),
    "complex signed zero": (
        lambda x, k: x + str(k).count("-"),
        lambda n: (t(n, 3), swap(n, complex(0.0, 0.0), complex(-0.0, -0.0))),
    ),
    "None and 0": (lambda x, k: x + (5 if k is None else k), lambda n: (t(n, 3), swap(n, None, 0))),
    "strings": (lambda x, k: x + len(k), lambda n: (t(n, 3), swap(n, "a", "bb"))),
    "str and bytes": (
        lambda x, k: x + len(k) + isinstance(k, str),
        lambda n: (t(n, 3), swap(n, "a", b"a")),
    ),
    "bytearrays": (lambda x, k: x + k[0], lambda n: (t(n, 3), bytearray([n]))),
    "enums": (lambda x, k: x * k.value, lambda n: (t(n, 3), swap(n, Color.RED, Color.BLUE))),
    "an int enum and an int": (
        lambda x, k: x + isinstance(k, Number),
        lambda n: (t(n, 3), swap(n, Number.ONE, 1)),
    ),
    "a tagged int": (lambda x, k: x * k.tag, lambda n: (t(n, 3), tagged(1, 1.0 + n))),
    "a tagged str": (lambda x, k: x * k.tag, lambda n: (t(n, 3), text("a", 1.0 + n))),
    "a float with its own multiplication": (
        lambda x, k: k * x,
        lambda n: (t(n, 3), swap(n, Half(2.0), 2.0)),
    ),
    "dtypes": (lambda x, k: x.to(k), lambda n: (t(n, 3), swap(n, torch.float64, torch.float16))),
    "devices": (lambda x, k: x.to(k), lambda n: (t(n, 3), torch.device(DEVICE))),
    "sizes and tuples": (
        lambda x, k: x + isinstance(k, torch.Size),
        lambda n: (t(n, 3), swap(n, torch.Size([3]), (3,))),
    ),
    "slices": (lambda x, k: x[k], lambda n: (t(n, 6), swap(n, slice(0, 2), slice(1, 3)))),
    "slices with True": (
        lambda x, k: x[k] + (k.start is True),
        lambda n: (t(n, 6), swap(n, slice(1, 3), slice(True, 3))),
    ),
    "ranges": (lambda x, k: x + sum(k), lambda n: (t(n, 3), swap(n, range(3), range(4)))),
    "equal ranges": (
        lambda x, k: x + k.stop,
        lambda n: (t(n, 3), swap(n, range(0, 3, 2), range(0, 4, 2))),
    ),
    "ellipsis": (lambda x, k: x[k], lambda n: (t(n, 3), ...)),
    "frozensets": (
        lambda x, k: x + len(k),
        lambda n: (t(n, 3), swap(n, frozenset({1}), frozenset({1, 2}))),
    ),
    "sets": (lambda x, k: x + len(k), lambda n: (t(n, 3), swap(n, {1}, {1, 2}))),
    "types": (lambda x, k: x + isinstance(1, k), lambda n: (t(n, 3), swap(n, int, float))),
    "functions": (lambda x, k: k(x), lambda n: (t(n, 3), swap(n, torch.sin, torch.cos))),
    "lambdas": (lambda x, k: k(x), lambda n: (t(n, 3), lambda v: v + n)),
    "ints": (_mul, lambda n: (t(n, 3), n % 2)),
    "floats": (_mul, lambda n: (t(n, 3), 0.5 * (n % 2))),
    "large ints": (_mul, lambda n: (t(n, 3), 2**40 + n % 2)),
    "dict keys 1 and True": (
        lambda d: d[1] + (5 if True in map(lambda k: k is True, d) else 0),
        lambda n: (swap(n, {1: t(n, 3)}, {True: t(n, 3)}),),
    ),
    "dict keys 1 and an enum": (
        lambda d: d[1] + (5 if any(isinstance(k, Number) for k in d) else 0),
        lambda n: (swap(n, {1: t(n, 3)}, {Number.ONE: t(n, 3)}),),
    ),
    "dict keys and a str subclass": (
        lambda d: d["a"] + sum(getattr(k, "tag", 0) for k in d),
        lambda n: (swap(n, {"a": t(n, 3)}, {text("a", 3.0): t(n, 3)}),),
    ),
    "dict order": (
        lambda d: next(iter(d.values())) * 2 + sum(d.values()),
        lambda n: (
            dict(swap(n, [("a", t(1, 3)), ("b", t(2, 3))], [("b", t(2, 3)), ("a", t(1, 3))])),
        ),
    ),
    "dicts of other lengths": (
        lambda d: sum(d.values()),
        lambda n: ({str(k): t(k, 3) for k in range(1 + n % 2)},),
    ),
    "lists of other lengths": (lambda v: sum(v), lambda n: ([t(k, 3) for k in range(1 + n % 2)],)),
    "list or tuple": (
        lambda v: v[0] + isinstance(v, list),
        lambda n: (swap(n, [t(n, 3)], (t(n, 3),)),),
    ),
    "optional tensors": (
        lambda x, y: x if y is None else x + y,
        lambda n: (t(n, 3), swap(n, None, t(n + 9, 3))),
    ),
    "a tensor or a number": (
        _mul,
        lambda n: (t(n, 3), swap(n, 2.0, torch.tensor(3.0, device=DEVICE))),
    ),
    "a host scalar tensor": (_mul, lambda n: (t(n, 3), torch.tensor(1.0 + n))),
    "keyword or positional": (
        lambda x, k=1.0: x * k,
        lambda n: swap(n, ((t(n, 3),), {"k": 2.0}), (t(n, 3), 3.0)),
    ),
    "keyword order": (
        lambda **kw: next(iter(kw.values())) * 2 + list(kw.values())[1],
        lambda n: (
            (),
            dict(swap(n, [("a", t(1, 3)), ("b", t(2, 3))], [("b", t(2, 3)), ("a", t(1, 3))])),
        ),
    ),
    "other dtypes": (
        lambda x: x * 2,
        lambda n: (t(n, 3, dtype=swap(n, torch.float32, torch.float64, torch.int64)),),
    ),
    "other shapes": (lambda x: x.sum(0), lambda n: (t(n, 2 + n % 2, 3),)),
    "requires grad": (
        lambda x: x + float(x.requires_grad),
        lambda n: (t(n, 3).requires_grad_(bool(n % 2)),),
    ),
    "parameters": (
        lambda x: x + isinstance(x, torch.nn.Parameter),
        lambda n: (swap(n, t(n, 3), torch.nn.Parameter(t(n, 3), requires_grad=False)),),
    ),
    "inference tensors": (
        lambda x: x + float(x.is_inference()),
        lambda n: (swap(n, t(n, 3), _inference(n)),),
    ),
    "a dim of size one": (
        lambda x, y: x + y,
        lambda n: (t(n, 4, 3), swap(n, t(n, 1, 3), t(n, 4, 1))),
    ),
    "empty tensors": (lambda x: x.sum() + x.shape[0], lambda n: (swap(n, t(n, 0, 3), t(n, 2, 3)),)),
    "scalars of shape ()": (lambda x: x * 2, lambda n: (swap(n, t(n), t(n, 1)),)),
    "negative views": (
        lambda x: x * 2,
        lambda n: (swap(n, torch.complex(t(n, 3), t(n, 3)).conj().imag, t(n, 3)),),
    ),
    "conjugate views": (
        lambda x: x * 2,
        lambda n: (
            swap(n, torch.complex(t(n, 3), t(n, 3)).conj(), torch.complex(t(n, 3), t(n, 3))),
        ),
    ),
}


def _inference(n: int) -> torch.Tensor:
    with torch.inference_mode():
        return t(n, 3) + 0


#: name -> (function, call number -> arguments)
CONTAINERS: dict[str, Any] = {
    "a list": (lambda v: v[0] + v[1], lambda n: ([t(n, 3), t(n + 9, 3)],)),
    "a tuple": (lambda v: (v[1], v[0] * 2), lambda n: ((t(n, 3), t(n + 9, 3)),)),
    "a nested dict": (
        lambda d: {"r": [d["a"]["b"] * d["c"][0]]},
        lambda n: ({"a": {"b": t(n, 3)}, "c": [t(n + 9, 3)]},),
    ),
    "an OrderedDict": (
        lambda d: collections.OrderedDict(r=d["a"] * 2),
        lambda n: (collections.OrderedDict(a=t(n, 3)),),
    ),
    "a defaultdict": (lambda d: d["a"] * 2, lambda n: (collections.defaultdict(int, a=t(n, 3)),)),
    "a defaultdict that makes": (
        lambda d: (d["b"], d["a"] * 2)[1],
        lambda n: (collections.defaultdict(int, a=t(n, 3)),),
    ),
    "a Counter": (
        lambda x, c: x * c["a"],
        lambda n: (t(n, 3), collections.Counter("ab" + "a" * (n % 2))),
    ),
    "a deque": (lambda d: d[0] + d[-1], lambda n: (collections.deque([t(n, 3), t(n + 9, 3)]),)),
    "a ChainMap": (
        lambda d: d["a"] + d["b"],
        lambda n: (collections.ChainMap({"a": t(n, 3)}, {"b": t(n + 9, 3)}),),
    ),
    "a UserDict": (lambda d: d["a"] * 2, lambda n: (collections.UserDict(a=t(n, 3)),)),
    "a namespace": (
        lambda s: s.x * s.k,
        lambda n: (types.SimpleNamespace(x=t(n, 3), k=2.0 + n % 2),),
    ),
    "a named tuple": (lambda p: Pair(p.a * 2, p.b), lambda n: (Pair(t(n, 3), 1 + n % 2),)),
    "a named tuple's subclass": (
        lambda p: p.a * p.b,
        lambda n: (PairWithState(t(n, 3), 1 + n % 2),),
    ),
    "a dataclass": (lambda d: Data(d.a * d.b, d.b), lambda n: (Data(t(n, 3), 1.0 + n % 2),)),
    "a frozen dataclass": (lambda d: d.a * d.b, lambda n: (Frozen(t(n, 3), 1.0 + n % 2),)),
    "a dataclass with slots": (lambda d: d.a * d.b, lambda n: (Slotted(t(n, 3), 1.0 + n % 2),)),
    "a dataclass that changes its fields": (
        lambda d: Checked(d.a * d.b, 1.0),
        lambda n: (Checked(t(n, 3), 1.0 + n % 2),),
    ),
    "a dataclass equal to all": (lambda d: d.a * d.b, lambda n: (Equal(t(n, 3), 1.0 + n % 2),)),
    "a list of dataclasses": (
        lambda v: v[0].a + v[1].a,
        lambda n: ([Data(t(n, 3)), Data(t(n + 9, 3))],),
    ),
    "a request object": (lambda r: r.x * r.scale, lambda n: (Request(t(n, 3), 1.0 + n),)),
    "one request object": (lambda r: r.x * r.scale, lambda n, r=Request(t(0, 3)): (r,)),
    "a dict with its own getitem": (lambda d: d["a"] * 2, lambda n: (Doubling(a=t(n, 3)),)),
    "a list that lies about its length": (
        lambda v: v[1] + len(v),
        lambda n: (Lying([t(n, 3), t(n + 9, 3)]),),
    ),
    "a list iterated in reverse": (
        lambda v: next(iter(v)) * 2,
        lambda n: (Reversed([t(n, 3), t(n + 9, 3)]),),
    ),
    "a mapping proxy": (lambda d: d["a"] * 2, lambda n: (types.MappingProxyType({"a": t(n, 3)}),)),
    "dict values": (lambda v: sum(v), lambda n: ({"a": t(n, 3), "b": t(n + 9, 3)}.values(),)),
    "a generator": (lambda v: sum(v), lambda n: ((t(k + n, 3) for k in range(2)),)),
    "an iterator": (lambda v: next(v) * 2, lambda n: (iter([t(n, 3), t(n + 9, 3)]),)),
    "a zip": (
        lambda v: sum(a * b for a, b in v),
        lambda n: (zip([t(n, 3)], [t(n + 9, 3)], strict=False),),
    ),
    "a cell": (lambda f: f() * 2, lambda n: ((lambda x: lambda: x)(t(n, 3)),)),
    "a partial": (lambda f: f(2), lambda n: (__import__("functools").partial(torch.mul, t(n, 3)),)),
    "a bound method": (lambda f: f(1), lambda n: (t(n, 3).add,)),
    "a module as argument": (
        lambda m, x: m(x),
        lambda n, m=torch.nn.Linear(3, 3).to(DEVICE): (m, t(n, 3)),
    ),
    "a fresh module as argument": (lambda m, x: m(x), lambda n: (_linear(n), t(n, 3))),
    "a dtype in a dict": (
        lambda d: d["x"].to(d["to"]),
        lambda n: ({"x": t(n, 3), "to": torch.float64},),
    ),
    "a list that is appended to": (
        lambda v, x: (v.append(x * 2), v[0] + x)[1],
        lambda n: ([t(n, 3)], t(n + 9, 3)),
    ),
    "a list that is sorted": (
        lambda v: (v.sort(key=lambda x: x.shape[0]), v[0] * 2)[1],
        lambda n: ([t(n, 3), t(n, 2)],),
    ),
    "a dict that gets a key": (
        lambda d: (d.__setitem__("b", d["a"] * 2), d["a"] + 1)[1],
        lambda n: ({"a": t(n, 3)},),
    ),
    "a dict that loses a key": (lambda d: d.pop("a") * 2, lambda n: ({"a": t(n, 3), "b": 1},)),
    "a namespace that is written": (
        lambda s: (setattr(s, "y", s.x * 2), s.x + 1)[1],
        lambda n: (types.SimpleNamespace(x=t(n, 3)),),
    ),
    "a dataclass that is written": (
        lambda d: (setattr(d, "b", 5.0), d.a * d.b)[1],
        lambda n: (Data(t(n, 3)),),
    ),
    "an object that is written": (
        lambda r: (setattr(r, "scale", r.scale + 1), r.x * r.scale)[1],
        lambda n: (Request(t(n, 3)),),
    ),
    "the argument list returned": (lambda v: v, lambda n: ([t(n, 3)],)),
    "a result with None": (lambda x: (x * 2, None, [None]), lambda n: (t(n, 3),)),
    "a result with text": (lambda x: {"r": x * 2, "s": "a"}, lambda n: (t(n, 3),)),
    "a set result": (lambda x: {1, 2}, lambda n: (t(n, 3),)),
    "an empty result": (lambda x: (), lambda n: (t(n, 3),)),
    "None result": (lambda x: x.add_(1) and None if False else None, lambda n: (t(n, 3),)),
    "a size result": (lambda x: (x * 2).shape, lambda n: (t(n, 3),)),
    "torch.max result": (lambda x: torch.max(x, 0), lambda n: (t(n, 4, 3),)),
    "torch.topk result": (lambda x: x.topk(2), lambda n: (t(n, 4, 3),)),
    "a generator result": (lambda x: (r for r in (x, x * 2)), lambda n: (t(n, 3),)),
    "a lambda result": (lambda x: (lambda: x)(), lambda n: (t(n, 3),)),
    "a numpy result": (lambda x: (x * 2).cpu().numpy(), lambda n: (t(n, 3),)),
    "a sparse result": (lambda x: (x * 2).to_sparse(), lambda n: (t(n, 3),)),
    "a sparse argument": (lambda x: x.to_dense() * 2, lambda n: (t(n, 3, 3).to_sparse(),)),
    "a quantized result": (
        lambda x: torch.quantize_per_tensor(x.cpu(), 0.5, 0, torch.qint8).dequantize(),
        lambda n: (t(n, 3),),
    ),
    "a host tensor argument": (
        lambda x, h: x + h.to(DEVICE),
        lambda n: (t(n, 3), t(n + 9, 3).cpu()),
    ),
    "a host index argument": (lambda x, i: x[i], lambda n: (t(n, 4), torch.tensor([0, n % 4]))),
    "a numpy argument": (lambda x, a: x + float(a[0]), lambda n: (t(n, 3), t(n, 2).cpu().numpy())),
    "a numpy scalar": (lambda x, a: x * float(a), lambda n: (t(n, 3), t(n, 2).cpu().numpy()[0])),
    "a deep list": (lambda v: _deep(v), lambda n: (_wrapped(t(n, 3), 60),)),
    "many tensors": (lambda *v: sum(v), lambda n: tuple(t(n + k, 3) for k in range(40))),
}


def _linear(n: int) -> torch.nn.Module:
    made = torch.nn.Linear(3, 3).to(DEVICE)
    with torch.no_grad():
        made.weight.copy_(t(n, 3, 3))
        made.bias.copy_(t(n + 1, 3))
    return made


def _wrapped(value: Any, depth: int) -> Any:
    return value if not depth else [_wrapped(value, depth - 1)]


def _deep(value: Any) -> Any:
    while isinstance(value, list):
        value = value[0]
    return value * 2
