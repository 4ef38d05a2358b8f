"""Random programs, each run eagerly and graphed side by side.

A seed makes a program: the source of a function (branches, loops, views, in-place writes, random
numbers, generators, state that it rebinds), its arguments, and what its caller does between the calls.
Both worlds get their own copy of everything. After each call the results, the arguments, the state
and every random generator must be equal::

    python tests/fuzz/programs.py --seed 0 --count 20000 --processes 12 --json programs.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import gfxgraph

__all__ = ["Outcome", "Program", "generate", "run"]

_CALLS = 6
_TOLERANCE = 1e-4

# {a}, {b}: float tensors of one shape; {c}: a number; {n}: a small whole number; {dev}: the device.
_UNARY = """
{a}.relu() | {a}.abs() | -{a} | {a}.sin() | {a}.exp().clamp(max=8) | {a}.tanh() | {a}.sigmoid()
{a}.round() | {a}.sign() | {a}.square().clamp(max=8) | F.softmax({a}, -1) | F.gelu({a}) | {a} + {c}
{a} * {c} | {a} - {c} | {a}.cumsum(-1).clamp(-8, 8) | {a}.flip(-1) | {a}.roll(1, -1) | {a}.clone()
{a}.sort(-1).values | {a}.sort(0, descending=True)[0] | {a}.detach() | {a}.contiguous()
{a}.double().float() | {a}.half().float() | {a}.to(torch.bfloat16).float() | ({a} > {c}).float()
{a}.masked_fill({a} > {c}, 0.5) | {a}.triu() | {a}.nan_to_num() | F.layer_norm({a}, {a}.shape[-1:])
torch.zeros_like({a}) | torch.ones_like({a}) * {c} | torch.full_like({a}, {c}) | {a}.new_zeros({a}.shape)
torch.empty_like({a}).fill_({c}) | {a}.long().float() | torch.floor({a}) | {a}.pow(2).clamp(max=8)
F.hardtanh({a}) | torch.special.expit({a}) | {a}.unsqueeze(0).squeeze(0) | {a}.reshape(-1).view({a}.shape)
{a}.argsort(-1).float() | {a}.view({a}.shape).add(1) | {a} * torch.tensor({c}, device={dev})
{a} + torch.arange({a}.shape[-1], device={dev}) | {a} / {a}.abs().amax().clamp(min=1)
{a} - {a}.mean(-1, keepdim=True) | {a}.index_select(-1, torch.tensor([0, 1, 1], device={dev}))
{a}.gather(-1, {a}.argmax(-1, keepdim=True)).expand_as({a}) | {a}[..., [2, 0, 1]] | {a}.softmax(0)
torch.where({a} > 0, {a}, {a} * {c}) | {a}.amax(-1, keepdim=True).expand_as({a}) | {a}.logsumexp(-1, True) * {a}
"""
_BINARY = """
{a} + {b} | {a} - {b} | ({a} * {b}).clamp(-8, 8) | torch.maximum({a}, {b}) | {a} / ({b}.abs() + 1)
torch.lerp({a}, {b}, 0.25) | torch.where({a} > {b}, {a}, {b}) | torch.addcmul({a}, {b}, {b}).clamp(-8, 8)
({a} @ {b}.transpose(-1, -2)).sum(-1, keepdim=True).clamp(-4, 4) + {a} | torch.stack([{a}, {b}]).sum(0)
torch.cat([{a}, {b}])[:{a}.shape[0]] | torch.cat([{a}, {b}], -1)[..., ::2][..., :{a}.shape[-1]]
torch.atan2({a}, {b}) | torch.fmod({a}, {b}.abs() + 1) | torch.hypot({a}, {b}) | ({a} >= {b}).float() + {a}
"""
_RANDOM = """
torch.rand_like({a}) | torch.randn_like({a}) | F.dropout({a}, 0.5) | torch.bernoulli({a}.sigmoid())
torch.randn({a}.shape, device={dev}) | torch.rand({a}.shape, device={dev}) + {a}
torch.randn({a}.shape, generator=own, device={dev}) | torch.rand({a}.shape, generator=own, device={dev})
torch.randint(0, 3, {a}.shape, device={dev}).float() | torch.normal({a}, 0.5) if {dev} != "x" else {a}
torch.rand({a}.shape, generator=state.own, device={dev}) * {a}
torch.empty_like({a}).uniform_(generator=own) | torch.randperm({a}.shape[-1], device={dev}).float() + {a}
"""
# Statements that write to {a}, which may be an argument, state or a view.
_IN_PLACE = """
{a}.add_({b}).clamp_(-8, 8) | {a}.mul_(0.5) | {a}.copy_({b}) | {a}.zero_() | {a}.fill_({c}) | {a}.relu_()
{a}[0] = {c} | {a}[..., 0] = {c} | {a}[{a} > {c}] = 0.5 | {a}.clamp_(-2, 2) | {a}.masked_fill_({b} > 1, 0.0)
{a} += 1 | {a}[..., 1:] *= 0.5 | torch.add({a}, {b}, out={a}) ; {a}.clamp_(-8, 8) | {a}.t().mul_(0.5)
{a}.index_add_(0, torch.tensor([0], device={dev}), {b}[:1].clone()).clamp_(-8, 8) | {a}[:1].copy_({b}[-1:])
{a}.view(-1)[0] = {c} | {a}[0].fill_({c}) | {a}.neg_() | {a}.sub_({b}.mean()) | {a}[1:] = {b}[:-1].clone() | {a}.tanh_()
{a}.normal_() | {a}.uniform_(generator=own) | {a}.bernoulli_(0.5)
"""
# What comes out of the device to the host.
_HOST = """
{v} = {a}.sum().item() ; {r} = {b} * min(max({v}, -2), 2)
{v} = int(({a} > {c}).sum()) ; {r} = {b} + {v}
{r} = {b} + {a}[{a} > {c}].sum().clamp(-8, 8)
{r} = {b} * torch.nonzero({a} > {c}).shape[0]
{r} = {b} + float({a}.flatten().tolist()[0] > {c})
{r} = {b} + {a}.round().unique().numel()
{v} = bool(({a} > {c}).any()) ; {r} = {b} if {v} else {b} * 2
{r} = {b} + torch.tensor([{c}, 1.0, 2.0], device={dev})
{r} = {b} * (2 if {a}.is_contiguous() else 3)
{r} = {b} + {a}.stride(0) * 0.25 + {a}.storage_offset()
{r} = {b} * {a}.shape[0] + {a}.dim()
{v} = {a}[: int(({a} > {c}).sum()) % 3 + 1] ; {r} = {b} + {v}.sum().clamp(-4, 4)
{v} = torch.equal({a}, {b}) ; {r} = {b} + ({v} is True)
{v} = {a}.cpu().numpy() ; {r} = {b} + float({v}.sum() > {c})
{v} = [t.sum() for t in {a}] ; {r} = {b} + max({v}).clamp(-4, 4)
"""
# What Python does beside; most of it keeps a function from being a graph.
_PYTHON = """
state.count += 1
state.items.append(1) ; {r} = {a} + len(state.items) % 3
state.last = {a}
state.last = {a}.sum().clamp(-8, 8) ; {r} = {a} + state.last
{r} = {a} * state.scale
{r} = {a} + state.table["k"]
state.table["k"] = state.table["k"] % 3 + 1
{r} = {a} + random.random()
{r} = {a} + state.python_random.randint(0, 3)
{r} = {a} + next(state.numbers) % 3
{r} = helper({a}, {c})
{r} = {a} + state.kept
state.kept.add_(1).remainder_(4)
state.position.add_(1).remainder_(3) ; {r} = {a} + state.position
state.cache[:, :1].copy_({a}.sum().clamp(-4, 4).expand_as(state.cache[:, :1])) ; {r} = {a} + state.cache.sum().clamp(-4, 4)
{r} = {a} + (0.5 if torch.is_grad_enabled() else 0.25)
{r} = (lambda t: t * state.scale)({a})
{r} = {a} if state.kept is None else {a} - state.kept.sum()
"""
# What it writes in Python, and graphs store again.
_EFFECTS = """
state.hidden = state.hidden * 0.5 + {a}.sum().clamp(-4, 4) ; {r} = {a} + state.hidden
state.hidden = {a}.mean() - state.hidden
state.queue.append({a}.mean().clamp(-4, 4)) ; {r} = {a} + torch.stack(list(state.queue)).sum()
state.queue.append({a})
state.first, state.second = state.second, {a}.amax().clamp(-4, 4) ; {r} = {a} + state.first
state.turn = (state.turn + 1) % 3 ; {r} = {a} * (state.turn + 1) * 0.5
state.turn = (state.turn + 1) % 2
state.count += 2
Kept.seen = {a}.sum().clamp(-4, 4) ; {r} = {b} * 0.5 + Kept.seen
Kept.total += 1
Kept.total -= 1 ; {r} = {a}.abs()
state.slot.value = {a} * 0.5
{r} = {a} + state.slot.value.sum().clamp(-4, 4) ; state.slot.value = {r}
state.pair = ({a}, {b}) ; {r} = state.pair[0] + 1
state.last = {a}[:1]
state.last = x
state.last = state.hidden
state.parts["a"], state.parts["b"] = {a}.sum(), state.parts["a"] ; {r} = {a} + state.parts["b"].clamp(-4, 4)
state.parts["new"] = {a}.amin()
{r} = {a} + (0 if state.last is None else 1)
{r} = {a} + len(state.queue) * 0.25
{r} = {a} * (1 if state.turn else 2)
state.note = SimpleNamespace(value={a}, size={a}.shape[0])
state.note = Box({a}, state.hidden) ; {r} = state.note.one.abs()
del state.gone ; state.gone = {a}.sum()
state.recent[state.turn % 2] = {a}.mean() ; {r} = {a} + state.recent[0].clamp(-4, 4)
state.recent = [state.recent[1], {a}.mean().clamp(-4, 4)] ; {r} = {a} + state.recent[0]
tick() ; {r} = {a} + 1
"""

_PRELUDE = """
import random
import torch
import torch.nn.functional as F
from collections import deque
from types import SimpleNamespace


def make(dev, seed):
    own = torch.Generator(device=dev).manual_seed(seed)
    state = SimpleNamespace(
        count=0, items=[], last=None, scale=2.0, table={"k": 1.0},
        kept=torch.ones(3, device=dev), position=torch.zeros((), device=dev),
        cache=torch.zeros(2, 3, device=dev), python_random=random.Random(seed),
        numbers=iter(range(10**9)), own=torch.Generator(device=dev).manual_seed(seed + 1),
        hidden=torch.zeros((), device=dev), queue=deque(maxlen=2), first=torch.zeros((), device=dev),
        second=torch.ones((), device=dev), turn=0, pair=None, note=None, gone=None,
        parts={"a": torch.zeros((), device=dev), "b": torch.ones((), device=dev)},
        recent=[torch.zeros((), device=dev), torch.ones((), device=dev)],
    )

    class Box:
        def __init__(self, one, two):
            self.one, self.two = one, two

    class Kept:
        seen, total = None, 0

    class Slotted:
        __slots__ = ("value",)

    ticks = 0

    def tick():
        nonlocal ticks
        ticks += 1

    state.kept_class, state.ticks = Kept, lambda: ticks
    state.slot = Slotted()
    state.slot.value = torch.zeros(2, 3, device=dev)

    def helper(t, c):
        if t.shape[-1] > 2:
            t = t * state.scale
        return t + c

"""


def _options(table: str) -> list[str]:
    return [part.strip() for part in table.replace("\n", "|").split("|") if part.strip()]


_TABLES = {
    kind: _options(table)
    for kind, table in {
        "unary": _UNARY,
        "binary": _BINARY,
        "random": _RANDOM,
        "in_place": _IN_PLACE,
    }.items()
} | {
    kind: [line for line in table.strip().splitlines()]
    for kind, table in {"host": _HOST, "python": _PYTHON, "effects": _EFFECTS}.items()
}

_LAYOUTS = ("dense", "transposed", "sliced", "expanded", "offset", "channels")
_ALIASES = ("none",) * 9 + ("same", "view", "row")
_WAYS = ("graphed", "graphed", "graphed", "unverified", "view", "straight", "module", "method")
_POOLS = ("pool", "buckets", "conditional", "captured")


@dataclass
class Program:
    """A program made from a seed.

    Attributes:
        seed: what it was made from.
        source: defines ``make(dev, seed)``, which gives the function and its state.
        way: how it is graphed.
        alias: what the second argument shares with the first.
        layout: of the first argument.
        calls: what happens at each call.
    """

    seed: int
    source: str
    way: str
    alias: str
    layout: str
    calls: list[dict[str, Any]]


@dataclass
class Outcome:
    """What running a program showed; ``wrong`` is empty where both worlds agreed."""

    seed: int
    wrong: str = ""
    replays: int = 0
    captures: int = 0
    reasons: list[str] = field(default_factory=list)
    way: str = ""


class _Writer:
    """Writes the lines of one function."""

    def __init__(
        self, chance: random.Random, wild: float, random_numbers: bool, effects: float
    ) -> None:
        self.chance = chance
        self.lines: list[str] = []
        self.tensors = ["x", "y"]
        self._names = 0
        self._wild = wild
        self._random = random_numbers
        self._effects = effects

    def new(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def pick(self) -> str:
        # Mostly what was made last, so that programs are deep.
        if self.chance.random() < 0.6:
            return self.tensors[-1]
        return self.chance.choice(self.tensors)

    def fill(self, template: str, result: str) -> str:
        return template.format(
            a=self.pick(),
            b=self.pick(),
            c=self.chance.choice((-1.0, 0.0, 0.25, 0.5, 1.0, 1.5)),
            n=self.chance.randint(1, 3),
            dev="dev",
            r=result,
            v=self.new(),
        )

    def line(self, depth: int, text: str) -> None:
        for part in text.split(" ; "):
            self.lines.append("    " * (depth + 2) + part)

    def block(self, depth: int, length: int) -> None:
        for _ in range(length):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        chance = self.chance.random()
        if chance < 0.08 and depth < 2:
            self.control(depth)
        elif chance < 0.08 + 0.10 * self._wild:
            self.assign(depth, "host", prefix=False)
        elif chance < 0.08 + 0.18 * self._wild:
            self.assign(depth, "python", prefix=False)
        elif chance < 0.08 + 0.18 * self._wild + 0.10 * self._effects:
            self.assign(depth, "effects", prefix=False)
        elif chance < 0.40:
            template = self.chance.choice(_TABLES["in_place"])
            if ("normal_" in template or "bernoulli" in template or "uniform" in template) and (
                not self._random
            ):
                return
            self.line(depth, self.fill(template, "_"))
        elif chance < 0.48 and self._random:
            self.assign(depth, "random")
        elif chance < 0.55:
            self.view(depth)
        else:
            self.assign(depth, self.chance.choice(("unary", "unary", "binary")))

    def assign(self, depth: int, kind: str, prefix: bool = True) -> None:
        # Inside of a branch names that exist are given again, or later lines would not find them.
        known = [t for t in self.tensors if t not in ("x", "y")]
        name = self.new() if not depth or not known else self.chance.choice(known)
        template = self.chance.choice(_TABLES[kind])
        if not prefix and "{r}" not in template:
            self.line(depth, self.fill(template, name))
            return
        text = self.fill(template, name)
        self.line(depth, f"{name} = {text}" if prefix else text)
        if not depth:
            self.tensors.append(name)

    def view(self, depth: int) -> None:
        if depth:
            return
        name, source = self.new(), self.pick()
        how = self.chance.choice(
            (
                "{s}",
                "{s}.view_as({s})",
                "{s}[:]",
                "{s}.transpose(-1, -2).transpose(-1, -2)",
                "{s}.detach()",
                "{s}.narrow(0, 0, {s}.shape[0])",
                "{s}.unsqueeze(0)[0]",
                "{s}.expand_as({s})",
            )
        )
        self.line(depth, f"{name} = {how.format(s=source)}")
        self.tensors.append(name)

    def control(self, depth: int) -> None:
        kind, source = self.chance.random(), self.pick()
        limit = self.chance.choice((-1.0, 0.0, 0.5, 1.0))
        if kind < 0.5:
            self.line(depth, f"if {source}.sum() > {limit}:")
            self.inner(depth)
            if self.chance.random() < 0.6:
                self.line(depth, "else:")
                self.inner(depth)
        elif kind < 0.65:
            turns, name = self.new(), self.new()
            self.line(depth, f"{turns}, {name} = 0, {source}.abs() + 1")
            self.line(depth, f"while {name}.amax() > 1.5 and {turns} < 3:")
            self.line(depth + 1, f"{turns} += 1 ; {name} = {name} * 0.5")
            self.inner(depth)
            if not depth:
                self.tensors.append(name)
        elif kind < 0.8:
            self.line(depth, f"for _ in range(int({source}.abs().sum()) % 3):")
            self.inner(depth)
        elif kind < 0.9:
            self.line(depth, f"for _ in range({self.chance.randint(1, 3)}):")
            self.inner(depth)
        else:
            self.line(depth, "try:")
            self.inner(depth)
            self.line(depth + 1, f"if {source}.sum() > {limit}: raise KeyError('k')")
            self.line(depth, "except KeyError:")
            self.inner(depth)

    def inner(self, depth: int) -> None:
        before = len(self.lines)
        self.block(depth + 1, self.chance.randint(1, 2))
        if len(self.lines) == before:
            self.line(depth + 1, "pass")

    def result(self) -> str:
        made = [t for t in self.tensors if t not in ("x", "y")] or ["(x + 1)"]
        a, b = made[-1], self.chance.choice(made)
        kinds = [
            a, a, a, f"({a}, {b})", f"[{a}, {b}]", f"{{'out': {a}, 'n': {b}.shape[0]}}",
            f"({a}, {a})", f"({a}, {a}.view({a}.shape))", f"({a}, None, 3)", f"({a}, x)",
            f"SimpleNamespace(a={a}).a", f"({a}, state.kept)", f"({a}, ({b}, {{'k': {b}.sum()}}))",
            f"{a}.transpose(-1, -2)", f"{a}[..., :1]", f"{a}.expand(2, *{a}.shape)",
            f"({a}, state.count)", f"({a}, float(y.shape[0]))", f"torch.return_types.max(({a}, {b}))",
        ]  # fmt: skip
        if self._effects:
            kinds += [f"Box({a}, {b})", f"({a}, state.hidden)", f"SimpleNamespace(a={a}, b={b})"]
        return self.chance.choice(kinds)


def generate(seed: int, pools: bool = True) -> Program:
    """The program of a seed, the same in each process."""
    chance = random.Random(seed)
    wild, random_numbers = chance.choice((0.0, 0.3, 1.0)), chance.random() < 0.4
    # From numbers of their own: programs without effects are what they were.
    effects = random.Random(f"{seed} effects").choice((0.0, 0.0, 1.0))
    writer = _Writer(chance, wild, random_numbers, effects)
    writer.block(0, chance.randint(2, 9))
    body = "\n".join(writer.lines)
    prelude = _PRELUDE
    if "state.numbers" not in body:  # what reaches an iterator is not run on other inputs
        prelude = prelude.replace("iter(range(10**9))", "range(3)")
    source = (
        f"{prelude}    def fn(x, y):\n{body}\n        return {writer.result()}\n\n"
        "    return fn, state, own\n"
    )
    way = chance.choice(_POOLS if pools and chance.random() < 0.15 else _WAYS)
    calls = []
    for _ in range(_CALLS):
        calls.append(
            {
                "values": chance.randrange(2**31),
                "scale": chance.choice((1.0, 1.0, 2.0, 0.0)),
                "rows": 2 if chance.random() < 0.9 else 4,
                "mode": chance.choice(("no_grad",) * 6 + ("inference", "grad")),
                "before": chance.choice(
                    ("nothing",) * 6 + ("scale", "kept", "kept_in_place", "seed")
                )
                if chance.random() < 0.5
                else "nothing",
            }
        )
        if way in _POOLS:
            calls[-1]["rows"] = chance.choice((1, 2, 3, 4, 5, 8))
    if chance.random() < 0.5:  # the same arguments' kind throughout, so that it settles
        for call in calls:
            call["mode"] = "no_grad"
            call["rows"] = call["rows"] if way in _POOLS else 2
    layout = chance.choice(_LAYOUTS) if chance.random() < 0.3 else "dense"
    return Program(seed, source, way, chance.choice(_ALIASES), layout, calls)


def _arguments(program: Program, call: dict[str, Any], device: str) -> list[torch.Tensor]:
    values = torch.Generator().manual_seed(call["values"])
    rows = call["rows"]

    def numbers(*shape: int) -> torch.Tensor:
        made = torch.randint(-8, 9, shape, generator=values) * (0.25 * call["scale"])
        return made.to(device)

    layout = program.layout
    if layout == "transposed":
        x = numbers(3, rows).t()
    elif layout == "sliced":
        x = numbers(rows, 6)[:, ::2]
    elif layout == "expanded":
        x = numbers(1, 3).expand(rows, 3)
    elif layout == "offset":
        x = numbers(rows + 2, 3)[2:]
    elif layout == "channels":
        x = numbers(3, rows, 1).permute(1, 0, 2)[..., 0]
    else:
        x = numbers(rows, 3)
    if program.alias == "same":
        return [x, x]
    if program.alias == "view":
        return [x, x[:]]
    if program.alias == "row":
        return [x, x[:1].expand(rows, 3)]
    return [x, numbers(rows, 3)]


class _World:
    """One instance of a program, called eagerly or through graphs."""

    def __init__(self, program: Program, device: str, wrap: Callable[[Any, str], Any]) -> None:
        space: dict[str, Any] = {"__name__": __name__}
        exec(compile(program.source, f"<program {program.seed}>", "exec"), space)
        self.fn, self.state, self.own = space["make"](device, program.seed % 2**31)
        self.call = wrap(self.fn, program.way)

    def visible(self) -> dict[str, Any]:
        state = self.state
        return {
            "count": state.count,
            "items": list(state.items),
            "last": state.last,
            "kept": state.kept,
            "position": state.position,
            "cache": state.cache,
            "table": dict(state.table),
            "python_random": state.python_random.getstate(),
            "numbers": repr(state.numbers.__reduce__()[1:]),
            "own": self.own.get_state(),
            "state.own": state.own.get_state(),
            "attributes": list(vars(state)),
            "hidden": state.hidden,
            "queue": list(state.queue),
            "pairs": [state.first, state.second, state.pair, state.turn, state.gone],
            "parts": dict(state.parts),
            "recent": list(state.recent),
            "note": state.note,
            "elsewhere": [state.kept_class.seen, state.kept_class.total, state.ticks()],
            "slot": state.slot.value,
            "same": [state.last is state.hidden, state.note is None],
        }


def _eager(fn: Any, way: str) -> Any:
    return fn


def _graphed(fn: Any, way: str) -> Any:
    if way == "unverified":
        return gfxgraph.graphed(fn, verify=False)
    if way == "view":
        return gfxgraph.graphed(fn, outputs="view")
    if way == "straight":
        return gfxgraph.graphed(fn, branching="off")
    if way == "module":
        return gfxgraph.graphed(_Module(fn))
    if way == "method":
        return _Owner(fn).method
    if way == "pool":
        return gfxgraph.ShapeBucketPool(fn, buckets=[2, 4, 8])
    if way == "buckets":
        return gfxgraph.graphed(fn, buckets=[4, 8])
    if way == "conditional":
        graph = gfxgraph.ConditionalGraph().add_branch("a", fn)
        return _Conditional(graph)
    return gfxgraph.graphed(fn)


class _Module(torch.nn.Module):
    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Any, y: Any) -> Any:
        return self.fn(x, y)


class _Owner:
    def __init__(self, fn: Any) -> None:
        self.fn = fn

    @gfxgraph.graphed
    def method(self, x: Any, y: Any) -> Any:
        return self.fn(x, y)


class _Conditional:
    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __call__(self, x: Any, y: Any) -> Any:
        return self.graph.run("a", x, y)


def _mode(name: str) -> Any:
    return {
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "grad": contextlib.nullcontext,
    }[name]()


def _prepare(world: _World, call: dict[str, Any], device: str) -> None:
    state, before = world.state, call["before"]
    if before == "scale":
        state.scale = call["values"] % 3 + 1.0
    elif before == "kept":
        state.kept = torch.full((3,), float(call["values"] % 4), device=device)
    elif before == "kept_in_place":
        state.kept.fill_(float(call["values"] % 5))
    elif before == "seed":
        world.own.manual_seed(call["values"])


def _randomness(device: str) -> list[Any]:
    states: list[Any] = [random.getstate(), torch.get_rng_state()]
    if device == "cuda":
        states.append(torch.cuda.get_rng_state())
    return states


def _set_randomness(states: list[Any]) -> None:
    random.setstate(states[0])
    torch.set_rng_state(states[1])
    if len(states) > 2:
        torch.cuda.set_rng_state(states[2])


def _snapshot(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple) and hasattr(value, "n_sequence_fields"):
        return tuple(map(_snapshot, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_snapshot, value))
    if isinstance(value, dict):
        return {key: _snapshot(item) for key, item in value.items()}
    if hasattr(value, "__dict__"):  # of a class of the program
        return {"of": type(value).__name__} | _snapshot(vars(value))
    return value


def _difference(a: Any, b: Any, path: str) -> str:
    """Where two trees differ; empty where they do not."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
            return f"{path}: {a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
        if a.dtype.is_floating_point:
            same = torch.allclose(a, b, _TOLERANCE, _TOLERANCE, equal_nan=True)
        else:
            same = torch.equal(a, b)
        return "" if same else f"{path}: {a.flatten()[:6].tolist()} != {b.flatten()[:6].tolist()}"
    if all(hasattr(item, "__dict__") for item in (a, b)):  # each world has classes of its own
        a, b = ({"of": type(item).__name__} | vars(item) for item in (a, b))
    if type(a) is not type(b):
        return f"{path}: {type(a).__name__} against {type(b).__name__}"
    if isinstance(a, (tuple, list)):
        if len(a) != len(b):
            return f"{path}: length {len(a)} against {len(b)}"
        found = (
            _difference(x, y, f"{path}[{n}]") for n, (x, y) in enumerate(zip(a, b, strict=True))
        )
        return next(filter(None, found), "")
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return f"{path}: keys {list(a)} against {list(b)}"
        return next(filter(None, (_difference(a[k], b[k], f"{path}[{k!r}]") for k in a)), "")
    if isinstance(a, float) and math.isnan(a) and math.isnan(b):
        return ""
    return "" if a == b else f"{path}: {a!r} != {b!r}"


def _one_call(world: _World, program: Program, call: dict[str, Any], device: str, mode: str) -> Any:
    arguments = _arguments(program, call, device)
    _prepare(world, call, device)
    with _mode(mode):
        try:
            result: Any = _snapshot(world.call(*arguments))
        except Exception as error:
            result = f"raised {type(error).__name__}"
    return result, [a.detach().clone() for a in arguments]


def run(program: Program, device: str | None = None) -> Outcome:
    """Run a program in both worlds.

    Args:
        program: what to run.
        device: ``"cuda"`` or ``"cpu"``; default: where graphs run here.
    """
    device = device or gfxgraph.device_type()
    outcome = Outcome(program.seed, way=program.way)
    random.seed(program.seed)
    torch.manual_seed(program.seed % 2**31)
    eager = _World(program, device, _eager)
    graphed = _World(program, device, _graphed)
    for number, call in enumerate(program.calls):
        before = _randomness(device)
        mode = call["mode"]
        if mode == "grad" and program.way in ("pool", "conditional"):
            mode = "no_grad"  # they call the function so where no argument requires grad
        expected, arguments = _one_call(eager, program, call, device, mode)
        after = _randomness(device)
        _set_randomness(before)
        got, given = _one_call(graphed, program, call, device, call["mode"])
        found = (
            _difference(got, expected, f"call {number}: result")
            or _difference(given, arguments, f"call {number}: arguments")
            or _difference(graphed.visible(), eager.visible(), f"call {number}: state")
            or _difference(_randomness(device), after, f"call {number}: randomness")
        )
        if found:
            outcome.wrong = found
            break
    stats = getattr(getattr(graphed.call, "graph", graphed.call), "stats", None)
    if stats is not None:
        known = stats()
        rows = known.values() if isinstance(known, dict) else [known]
        outcome.captures = sum(row.captures for row in rows)
        outcome.replays = sum(row.replays for row in rows)
        outcome.reasons = [r for row in rows for r in (*row.fallbacks, *row.refused.values())]
    return outcome


def shrink(program: Program, device: str | None = None) -> Program:
    """A shorter program that goes wrong as well."""
    lines = program.source.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("    def fn(")) + 1
    number = first
    while number < len(lines) - 2:
        rest = [*lines[:number], *lines[number + 1 :]]
        candidate = Program(**{**asdict(program), "source": "\n".join(rest) + "\n"})
        try:
            wrong = run(candidate, device).wrong
        except Exception:
            wrong = ""
        if wrong and "raised" not in wrong:
            lines = rest
        else:
            number += 1
    return Program(**{**asdict(program), "source": "\n".join(lines) + "\n"})


def _run_seed(seed: int) -> Outcome:
    try:
        return run(generate(seed))
    except Exception:
        return Outcome(seed, wrong="the harness failed: " + traceback.format_exc())


def _quiet() -> None:
    torch.set_num_threads(1)
    logging.getLogger("gfxgraph").setLevel(logging.CRITICAL)
    import warnings

    warnings.simplefilter("ignore")


def outcomes(first: int, count: int, seconds: float, processes: int) -> Iterator[Outcome]:
    """Run programs of consecutive seeds, until as many are done or the time is over."""
    end = time.monotonic() + seconds
    seeds = range(first, first + count)
    if processes == 1:
        _quiet()
        for seed in seeds:
            if time.monotonic() > end:
                return
            yield _run_seed(seed)
        return
    with multiprocessing.get_context("spawn").Pool(
        processes, _quiet, maxtasksperchild=500
    ) as workers:
        for outcome in workers.imap_unordered(_run_seed, seeds, chunksize=8):
            yield outcome
            if time.monotonic() > end:
                workers.terminate()
                return


def main() -> int:
    """Run programs and print what differed; exit status 1 if anything did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=20_000, help="how many programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the totals there")
    parser.add_argument("--show", action="store_true", help="print the program of --seed, run it")
    parser.add_argument("--shrink", action="store_true", help="shorten programs that go wrong")
    arguments = parser.parse_args()
    if arguments.show:
        _quiet()
        program = generate(arguments.seed)
        if arguments.shrink:
            program = shrink(program)
        print(program.source[len(_PRELUDE) :])
        print(program.way, program.alias, program.layout, *program.calls, sep="\n")
        print(run(program))
        return 0
    start, wrong = time.monotonic(), []
    totals: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for outcome in outcomes(
        arguments.seed, arguments.count, arguments.seconds, arguments.processes
    ):
        totals["programs"] += 1
        totals["replays"] += outcome.replays
        totals["captures"] += outcome.captures
        totals["programs with a replay"] += bool(outcome.replays)
        reasons.update(reason.partition(":")[0][:60] for reason in outcome.reasons)
        if outcome.wrong:
            wrong.append(asdict(outcome))
            print(f"seed {outcome.seed} ({outcome.way}): {outcome.wrong}", flush=True)
            if arguments.shrink:
                print(shrink(generate(outcome.seed)).source[len(_PRELUDE) :], flush=True)
    report = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "emulated",
        "torch": torch.__version__,
        "seed": arguments.seed,
        **totals,
        "wrong": len(wrong),
        "seconds": round(time.monotonic() - start, 1),
        "reasons": dict(reasons.most_common(40)),
        "differences": wrong[:50],
    }
    print(json.dumps({k: v for k, v in report.items() if k != "differences"}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
