"""Runs a function eagerly and graphed, and compares all that a caller can see."""

from __future__ import annotations

import math
import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

import gfxgraph

DEVICE = gfxgraph.device_type()
CALLS = 5

Made = tuple[Callable[..., Any], Any]
"""The function, and its state (any tree of objects) for the comparison."""


@dataclass
class Shown:
    """A state that a function shows."""

    show: Callable[[], Any]


def t(n: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on the device whose values depend on the number of the call alone."""
    numbers = torch.Generator().manual_seed(1000 + n)
    made = torch.randint(-8, 9, shape, generator=numbers) * 0.25
    return made.to(dtype).to(DEVICE)


def one(n: int) -> tuple[Any, ...]:
    """Arguments: a matrix."""
    return (t(n, 4, 3),)


def two(n: int) -> tuple[Any, ...]:
    """Arguments: two matrices."""
    return t(n, 4, 3), t(n + 50, 4, 3)


def generators() -> list[Any]:
    """The states of all default generators."""
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    states: list[Any] = [random.getstate(), numpy and numpy.get_state(), torch.get_rng_state()]
    if DEVICE == "cuda":
        states.append(torch.cuda.get_rng_state())
    return states


def set_generators(states: list[Any]) -> None:
    """Put them back."""
    random.setstate(states[0])
    if states[1]:
        sys.modules["numpy"].random.set_state(states[1])
    torch.set_rng_state(states[2])
    if len(states) > 3:
        torch.cuda.set_rng_state(states[3])


def seen(value: Any) -> Any:
    """What a caller sees of a value now: types, numbers, copies of tensors."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return "sparse", seen(value.to_dense())
        return value.dtype, tuple(value.shape), str(value.device.type), value.detach().clone()
    if isinstance(value, Shown):
        return seen(value.show())
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, (str, bytes, int, float, complex, type(None), torch.dtype, torch.device)):
        return type(value), value
    if isinstance(value, dict):
        return type(value), [(key, seen(item)) for key, item in dict.items(value)]
    if isinstance(value, (tuple, list)) or type(value).__name__ in ("deque", "OrderedDict"):
        return type(value).__name__, [seen(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [seen(getattr(value, f.name, None)) for f in fields(value)]
    if isinstance(value, BaseException):
        return type(value)
    if isinstance(value, types.SimpleNamespace):
        return {key: seen(item) for key, item in vars(value).items()}
    if type(value).__module__ == "numpy":
        return str(value.dtype), value.tolist()
    return type(value).__name__, {
        key: seen(item)
        for key, item in getattr(value, "__dict__", {}).items()
        if not key.startswith("_") and not callable(item)
    }


def differs(a: Any, b: Any) -> bool:
    """Whether two views differ; floats by more than rounding."""
    if type(a).__module__ == "numpy" and hasattr(a, "tolist"):  # the state of NumPy's generator
        return bool(a.tolist() != b.tolist())
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return True
        if a.dtype.is_floating_point or a.dtype.is_complex:
            return not torch.allclose(a, b, 1e-4, 1e-4, equal_nan=True)
        return not torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return not isinstance(b, (tuple, list)) or len(a) != len(b) or any(map(differs, a, b))
    if isinstance(a, dict):
        return (
            not isinstance(b, dict) or a.keys() != b.keys() or any(differs(a[k], b[k]) for k in a)
        )
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return False
    return bool(a != b)


def called(fn: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result as a caller sees it, or the type of what was raised."""
    try:
        return seen(fn(*args, **kwargs))
    except Exception as error:
        return "raised", type(error).__name__


def silent_differences(
    make: Callable[[], Made],
    arguments: Callable[[int], Any],
    wrap: Callable[[Any], Any] = gfxgraph.graphed,
    calls: int = CALLS,
    between: Callable[[Any, int], None] = lambda state, n: None,
    mode: Callable[[], Any] = torch.no_grad,
) -> list[str]:
    """Where graphed and eager differ over some calls.

    Args:
        make: makes the function and its state anew.
        arguments: call number -> positional arguments, or (positional, keyword) arguments.
        wrap: makes the graphed callable.
        calls: how many.
        between: what the caller does to the state before each call.
        mode: the grad mode of the calls.
    """
    random.seed(0)
    torch.manual_seed(0)
    (eager, eager_state), (plain, state) = make(), make()
    graphed, found = wrap(plain), []

    def split(n: int) -> tuple[Any, dict[str, Any]]:
        given = arguments(n)
        if len(given) == 2 and isinstance(given[1], dict) and isinstance(given[0], tuple):
            return given
        return given, {}

    for n in range(calls):
        before = generators()
        args, kwargs = split(n)
        between(eager_state, n)
        with mode():
            expected = called(eager, args, kwargs), seen(args), seen(kwargs)
        expected = *expected, seen(eager_state), generators()
        set_generators(before)
        args, kwargs = split(n)
        between(state, n)
        with mode():
            got = called(graphed, args, kwargs), seen(args), seen(kwargs)
        got = *got, seen(state), generators()
        for what, ours, theirs in zip(
            ("result", "arguments", "keyword arguments", "state", "generators"),
            got,
            expected,
            strict=True,
        ):
            if differs(ours, theirs):
                found.append(f"call {n}: {what}: {ours} instead of {theirs}"[:400])
        if found:
            break
    return found
