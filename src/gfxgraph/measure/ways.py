"""The ways of calling a function that ``bench`` compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..call.graphed import Graphed, graphed
from ..call.stats import GraphedStats
from ..device import current_device
from ..errors import ArgumentError

__all__ = [
    "WAYS",
    "Way",
    "compiled_for",
    "default_ways",
    "is_graphed",
    "stats_of",
    "unwrapped",
    "way_of",
]

Function = Callable[..., Any]

# What torch.compile sets on what it returns, which hands it on to the module of the caller.
_MARK = "_is_torch_compile"


@dataclass(frozen=True)
class Way:
    """One way of calling a function.

    Attributes:
        name: its name on the command line and in reports.
        what: one line about it.
        slack: how many times the usual tolerance its results may differ from eager's.
        needs_gpu: whether it does nothing of its own without a GPU.
        usual: whether it is measured unless other ways are asked for.
    """

    name: str
    what: str
    slack: float = 1.0
    needs_gpu: bool = False
    usual: bool = True

    def make(self, fn: Function, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Function:
        """``fn``, called this way.

        Args:
            fn: the function. For ``"graph"`` one that is graphed already is used as it is.
            given: arguments for the ways that need some beforehand.

        Raises:
            ArgumentError: this way does not take such a function.
            Exception: any error of torch, such as that of a capture.
        """
        eager = unwrapped(fn)
        match self.name:
            case "eager":
                return eager
            case "graph":
                return fn if is_graphed(fn) else graphed(eager)
            case "compile+graph":
                return graphed(eager, compile=True)
            case "make_graphed_callables":
                return _make_graphed_callables(eager, *given)
            case "compile":
                return _compiled(eager, "default")
        return _compiled(eager, self.name)


_ALL = (
    Way("eager", "the function as it is"),
    Way("graph", "gfxgraph.graphed(fn)"),
    Way("compile", "torch.compile(fn)", slack=4),
    Way("reduce-overhead", 'torch.compile(fn, mode="reduce-overhead")', slack=4, needs_gpu=True),
    Way("compile+graph", "gfxgraph.graphed(fn, compile=True)", slack=4),
    Way("make_graphed_callables", "torch.cuda.make_graphed_callables(fn, args)", needs_gpu=True),
    Way("max-autotune", 'torch.compile(fn, mode="max-autotune")', 4, needs_gpu=True, usual=False),
)

WAYS = {way.name: way for way in _ALL}
"""Name -> way, in the order of the report."""


def default_ways() -> list[Way]:
    """All that are quick to make; without a GPU, where no more can be seen, eager and graph."""
    if current_device().kind == "emulated":
        return [WAYS["eager"], WAYS["graph"]]
    return [way for way in _ALL if way.usual]


def unwrapped(fn: Function) -> Function:
    """``fn``, or the function that was graphed to make it."""
    while is_graphed(fn):
        fn = fn.__wrapped__  # type: ignore[attr-defined]
    return fn


def is_graphed(fn: Function) -> bool:
    """Whether it is a graphed function, or a graphed method of an object."""
    return type(fn).__module__ == Graphed.__module__


def stats_of(fn: Function) -> GraphedStats | None:
    """The counts of a graphed function; ``None`` of another."""
    return fn.stats() if is_graphed(fn) else None  # type: ignore[attr-defined]


def way_of(name: object, what: str = "bench") -> Way:
    """The way with this name.

    Raises:
        ArgumentError: there is none; the message names the function ``what``.
    """
    if not isinstance(name, str) or name not in WAYS:
        raise ArgumentError(
            f"{what}(ways=): {name!r} is no way; expected some of {', '.join(WAYS)}."
        )
    return WAYS[name]


def compiled_for(fn: Function, *, dynamic: bool, **options: Any) -> Function:
    """``torch.compile(fn)``, which draws eager's random numbers and leaves no mark on a module."""
    known = set(vars(fn)) if isinstance(fn, torch.nn.Module) else {_MARK}
    # With numbers of its own nobody could compare the two.
    compiled = torch.compile(fn, options={**options, "fallback_random": True}, dynamic=dynamic)
    if _MARK not in known:
        vars(fn).pop(_MARK, None)
    return compiled


def _compiled(fn: Function, mode: str) -> Function:
    options = dict(torch._inductor.list_mode_options(mode)) if mode != "default" else {}
    compiled = compiled_for(fn, dynamic=False, **options)
    if mode == "default":
        return compiled

    def step(*args: Any, **kwargs: Any) -> Any:
        # The result of the last call may be overwritten, as in a loop over steps.
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*args, **kwargs)

    return step


def _make_graphed_callables(
    fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Function:
    if kwargs or not all(isinstance(arg, torch.Tensor) for arg in args):
        raise ArgumentError("it takes positional tensors only")

    def call(*args: torch.Tensor) -> Any:  # torch would replace the forward of a module for good
        return fn(*args)

    made: Function = torch.cuda.make_graphed_callables(call, args)
    return made
