"""A call on its way to a graph: the key that it asks for, and the graph that is to be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from .entry import Entry
from .key import Call
from .replay import NO_MATCH

__all__ = ["Request", "Wanted"]


@dataclass
class Request:
    """A call, and the key of the graph that would answer it.

    Attributes:
        call: as the caller made it.
        fitted: as a graph takes it: the same, or padded to a bucket.
        key: of ``fitted``.
        unproven: nobody has called so: the arguments are made, by a recipe.
    """

    call: Call
    fitted: Call
    key: Any
    unproven: bool = False


WhyUnlike: TypeAlias = Callable[[Call, Entry], str]
"""Says why a call may do something that the graph of other sizes does not; ``""``: it does not."""


@dataclass
class Wanted:
    """A graph to make.

    Attributes:
        call: a call that it is for, as a graph takes it.
        key: of that call.
        changes: what was rebound since a graph of this key was captured, which was never replayed.
        result: what the caller's own call gave; NO_MATCH: there was none, or it was another one.
        called: whether a call ran eagerly, also where its result is not given.
        extends: the tree of graphs of this key that gets another path.
        found: what arguments held before the call wrote to them, by place.
        judge: raises where the graph is not to be kept; it is given what records further calls
            (:meth:`~gfxgraph.call.builder.Builder.why_unlike`). Default: every one is kept.
        unproven: the arguments are made, by a recipe: the first call that finds the graph is
            compared with it, and a failure says nothing about calls.
    """

    call: Call
    key: Any
    changes: list[str]
    result: Any = NO_MATCH
    called: bool = False
    extends: Entry | None = None
    found: Mapping[int, torch.Tensor] = field(default_factory=dict)
    judge: Callable[[Entry, WhyUnlike], None] = lambda entry, why_unlike: None
    unproven: bool = False

    @property
    def is_answered(self) -> bool:
        """Whether a caller has the result of an eager call."""
        return self.called or self.result is not NO_MATCH

    @property
    def is_on_trial(self) -> bool:
        """Whether it shows if captures pay: a call asked for it, and there was no graph before."""
        return self.extends is None and not self.changes and self.is_answered
