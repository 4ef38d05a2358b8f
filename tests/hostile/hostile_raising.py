"""Functions that catch errors of operators, which no operator raises in the first calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import gfxgraph
from tests.hostile.hostile_twins import DEVICE

BAD = (3, 5)
"""The calls with a matrix and numbers for which the operators raise."""


def arguments(n: int) -> Any:
    """A matrix with an inverse, and numbers of rows; but for the bad calls."""
    is_bad = n in BAD
    m = torch.eye(3, device=DEVICE) * (0.0 if is_bad else n + 1.0)
    return m, torch.tensor([0, 7 if is_bad else 1], device=DEVICE)


@gfxgraph.no_graph
def _host(m: Any) -> Any:
    if not m.any():
        raise ValueError("all are zero")
    return m * 2


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "cholesky": lambda m, i: torch.linalg.cholesky(m),
    "inv": lambda m, i: torch.linalg.inv(m),
    "solve": lambda m, i: torch.linalg.solve(m, torch.ones_like(m)),
    "no_graph": lambda m, i: _host(m),
}
# On a GPU these end the process: nobody can catch that.
if DEVICE == "cpu":
    OPERATORS |= {
        "multinomial": lambda m, i: torch.multinomial(m.sum(0), 1).float(),
        "index": lambda m, i: m[i],
        "gather": lambda m, i: m.gather(0, i[:, None]),
        "embedding": lambda m, i: torch.nn.functional.embedding(i, m),
        "cross_entropy": lambda m, i: torch.nn.functional.cross_entropy(m[:2], i),
        "assert_async": lambda m, i: (torch._assert_async(m.sum() > 0), m * 2)[1],
        "division": lambda m, i: (m.sum().long() // m.sum().long()).float(),
    }


class _Module(torch.nn.Module):
    """torch has a try of its own around the call of a module with hooks."""

    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op
        self.register_forward_hook(lambda module, args, result: result + 1)

    def forward(self, m: Any, i: Any) -> Any:
        return self.op(m, i)


def _except(op: Any, m: Any, i: Any) -> Any:
    try:
        return op(m, i).sum()
    except Exception:
        return m.sum() - 1


def _named(op: Any, m: Any, i: Any) -> Any:
    try:
        y = op(m, i)
    except (RuntimeError, IndexError, ValueError) as error:
        return m.sum() - len(type(error).__name__)
    else:
        return y.sum()


def _suppress(op: Any, m: Any, i: Any) -> Any:
    y = m * 3
    with contextlib.suppress(Exception):
        y = op(m, i)
    return y.sum()


def _finally(op: Any, m: Any, i: Any) -> Any:
    y = m * 3
    try:
        y = op(m, i)
    finally:
        return y.sum()  # noqa: B012 - it swallows the error


def _another(op: Any, m: Any, i: Any) -> Any:
    try:
        return _Module(op)(m, i).sum()
    except Exception as error:
        raise KeyError from error


def _nobody(op: Any, m: Any, i: Any) -> Any:
    return op(m, i).sum()


CATCHES = {f.__name__[1:]: f for f in (_except, _named, _suppress, _finally, _another, _nobody)}


def making(op: str, how: str, writes: bool) -> Callable[[], Any]:
    """Makes a function that catches the errors of an operator, or writes before it as well."""

    def make() -> Any:
        before, given = torch.zeros(3, 3, device=DEVICE), []
        module = _Module(OPERATORS[op]) if how == "except" else OPERATORS[op]

        @gfxgraph.no_graph
        def note(m: Any) -> None:
            given.append(float(m.sum()))

        def fn(m: Any, i: Any) -> Any:
            if not writes:
                return CATCHES[how](module, m, i)
            before.add_(m)
            m.mul_(2)
            drawn = torch.rand((), device=DEVICE)
            if how == "named":
                note(drawn)
            y = CATCHES[how](module, m, i)
            before.add_(y)
            return y + drawn + torch.rand((), device=DEVICE)

        return fn, SimpleNamespace(before=before, given=given)

    return make
