"""What an experiment is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...call.graphed import Graphed, graphed
from ...interpose.source import name_of
from ..bench import Progress
from ..ways import unwrapped

__all__ = ["Function", "Subject"]

Function = Callable[..., Any]


@dataclass(frozen=True)
class Subject:
    """A function with arguments, and the options of an experiment.

    Attributes:
        fn: the function; ``None``: the experiment has functions of its own.
        args: its positional arguments.
        kwargs: its keyword arguments.
        traffic: the positional arguments of calls of several sizes; ``None``: none were given.
        ways: names of the ways to compare; ``None``: the usual ones.
        seconds: how long to time calls.
        ranks: how many processes.
        progress: told what is being done, and which share of it is over.
    """

    fn: Function | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    traffic: Iterable[tuple[Any, ...]] | None
    ways: Iterable[str] | None
    seconds: float
    ranks: int
    progress: Progress

    @property
    def eager(self) -> Function:
        """The function without our graphs."""
        assert self.fn is not None  # who asks runs one
        return unwrapped(self.fn)

    @property
    def name(self) -> str:
        """The name of the function."""
        return name_of(self.eager)

    def graphed(self, **options: Any) -> Graphed[..., Any]:
        """A graphed one with graphs of its own, so that those of the user's stay as they are."""
        return graphed(self.eager, **options)
