"""The options of ``graphed``: one checked object for all that belongs to a callable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from torch import distributed as dist

from ..errors import ArgumentError
from ..graph.compare import Tolerance
from .buckets.padding import Padding
from .buckets.sizes import Buckets, Dims, Larger, OutDims, Rows
from .compiled import Compile

__all__ = ["Branching", "CompileOptions", "GraphedOptions", "Options"]


Branching: TypeAlias = Literal["auto", "device", "off"]
BRANCHING: tuple[Branching, ...] = get_args(Branching)


class PlainOptions(TypedDict, total=False):
    """The options of :func:`~gfxgraph.graphed` that :func:`~gfxgraph.compile` takes too."""

    warmup: int
    outputs: Literal["own", "view"]
    verify: Tolerance
    fallback: Literal["eager", "raise"]
    max_graphs: int
    branching: Branching
    collectives: Literal["split", "inside", "refuse"]
    group: Any
    buckets: Sequence[int] | Mapping[str, Sequence[int]] | None
    dims: Dims | None
    pad: Padding | Mapping[str, Padding]
    larger: Larger
    out_dims: OutDims | None
    rows: Rows
    inputs: Sequence[str]


class GraphedOptions(PlainOptions, total=False):
    """The options of :func:`~gfxgraph.graphed`."""

    compile: bool | str | Mapping[str, Any] | Compile


class CompileOptions(PlainOptions, total=False):
    """The options of :func:`~gfxgraph.compile`."""

    mode: str | None
    measure: bool


@dataclass(frozen=True)
class Options:
    """See :func:`~gfxgraph.call.graphed.graphed`."""

    warmup: int = 2
    outputs: Literal["own", "view"] = "own"
    verify: Tolerance = True
    fallback: Literal["eager", "raise"] = "eager"
    max_graphs: int = 32
    branching: Branching = "auto"
    collectives: Literal["split", "inside", "refuse"] = "split"
    buckets: Buckets | None = None
    compile: Compile | None = None
    inputs: tuple[str, ...] = ()
    group: Any = None
    given_to: str = field(default="graphed", compare=False)  # what messages call it

    def __post_init__(self) -> None:
        def number(name: str) -> bool:
            value = getattr(self, name)
            return isinstance(value, int) and not isinstance(value, bool) and value >= 1

        tolerance = isinstance(self.verify, bool) or (
            isinstance(self.verify, (int, float)) and 0 <= self.verify < float("inf")
        )
        is_inside = self.collectives == "inside"
        named = all(isinstance(name, str) for name in self.inputs)
        for name, fits, takes in (
            ("inputs", named, "names of parameters"),
            ("warmup", number("warmup"), "a whole number from 1"),
            ("outputs", self.outputs in ("own", "view"), "'own' or 'view'"),
            ("verify", tolerance, "True, False or a tolerance from 0"),
            ("fallback", self.fallback in ("eager", "raise"), "'eager' or 'raise'"),
            ("max_graphs", number("max_graphs"), "a whole number from 1"),
            ("branching", self.branching in BRANCHING, "'auto', 'device' or 'off'"),
            (
                "collectives",
                self.collectives in ("split", "inside", "refuse"),
                "'split', 'inside' or 'refuse'",
            ),
            (
                "group",
                self.group is None or (is_inside and _is_group(self.group)),
                'a torch.distributed.ProcessGroup that this rank is in, with collectives="inside"',
            ),
        ):
            if not fits:
                raise ArgumentError(
                    f"{self.given_to}({name}={getattr(self, name)!r}): expected {takes}."
                )


def _is_group(value: Any) -> bool:
    return dist.is_available() and isinstance(value, dist.ProcessGroup)
