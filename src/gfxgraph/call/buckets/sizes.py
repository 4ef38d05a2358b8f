"""Which sizes there are graphs for, and a call cut or padded to one of them."""

from __future__ import annotations

import inspect
import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import torch

from ...errors import ArgumentError
from ...interpose.signatures import signature_of
from ..key import Call
from ..replay import builder
from ..signature import Spec
from ..static_inputs import first_of_each
from .padding import Padding, as_indices, check_padding, cut, is_mask, laid_out, pad_to, piece

__all__ = [
    "Buckets",
    "Dims",
    "Larger",
    "OutDims",
    "Rows",
    "SizedCall",
    "argument_names",
]

Dims: TypeAlias = Mapping[str, Mapping[int, str]]
OutDims: TypeAlias = Sequence[Mapping[int, str]]
Larger: TypeAlias = Literal["eager", "split", "error"]
Rows: TypeAlias = Literal["judge", "independent"]

_BATCH = "batch"
# Each bucket is a graph, and a combination of buckets too.
_MAX_BUCKETS = 4096


class Buckets:
    """Which sizes there are graphs for, and how a call gets to one of them.

    The arguments are those of :class:`~gfxgraph.ShapeBucketPool`; ``sizes`` are its ``buckets``.

    Raises:
        ArgumentError: one of them holds what it does not take.
    """

    def __init__(
        self,
        sizes: Sequence[int] | Mapping[str, Sequence[int]],
        dims: Dims | None = None,
        pad: Padding | Mapping[str, Padding] = "auto",
        larger: Larger = "eager",
        out_dims: OutDims | None = None,
        rows: Rows = "judge",
    ) -> None:
        if rows not in ("judge", "independent"):
            raise ArgumentError(f"rows={rows!r}: expected 'judge' or 'independent'.")
        self.rows = rows
        if larger not in ("eager", "split", "error"):
            raise ArgumentError(f"larger={larger!r}: expected 'eager', 'split' or 'error'.")
        self.sizes = _checked_buckets(sizes)
        self.dims = None if dims is None else _checked_dims(dims, self.sizes)
        for padding in pad.values() if isinstance(pad, Mapping) else [pad]:
            check_padding(padding)
        if dims is None and tuple(self.sizes) != (_BATCH,):
            raise ArgumentError(
                f"buckets for {', '.join(map(repr, self.sizes))}: say which dimensions of the "
                'arguments these are, such as dims={"input_ids": {0: "batch", 1: "seq"}}.'
            )
        self.pad = pad
        self.larger = larger
        self.out_dims = None if out_dims is None else _checked_out_dims(out_dims)
        unknown = {n for dims in self.out_dims or () for n in dims.values()} - self.sizes.keys()
        if unknown:
            raise ArgumentError(
                f"out_dims name {sorted(unknown)}, but buckets are for {sorted(self.sizes)}."
            )

    def of_arguments(self, fn: Any) -> Buckets:
        """These, after a look whether ``fn`` has the arguments that they name.

        Raises:
            ArgumentError: it has not.
        """
        signature = signature_of(fn)
        if signature is None:
            return self
        parameters = signature.parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            return self
        padded = self.pad if isinstance(self.pad, Mapping) else {}
        for option, names in (("dims", self.dims or {}), ("pad", padded)):
            unknown = [name for name in names if name not in parameters]
            if unknown:
                raise ArgumentError(
                    f"{option} names the argument {unknown[0]!r}, which the function does not "
                    f"have: expected {', '.join(map(repr, parameters)) or 'none'}."
                )
        return self

    def pad_of(self, argument: str) -> Padding:
        """The padding of this argument."""
        return self.pad.get(argument, "auto") if isinstance(self.pad, Mapping) else self.pad

    def plan(self, leaves: Sequence[torch.Tensor], names: Sequence[str]) -> list[Mapping[int, str]]:
        """For each tensor, in the argument of that name, its dynamic dimensions."""
        if self.dims is None:
            return [{0: _BATCH} if leaf.dim() else {} for leaf in leaves]
        return [self.dims.get(name, {}) for name in names]

    def fitting(self, name: str, size: int) -> int | None:
        """The smallest bucket for such a size."""
        sizes = self.sizes[name]
        position = bisect_left(sizes, size)
        return sizes[position] if position < len(sizes) else None

    def of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The smallest buckets for such sizes; where there is none, the size."""
        return {name: self.fitting(name, size) or size for name, size in sizes.items()}

    def choices(self, names: Iterable[str]) -> list[dict[str, int]]:
        """All combinations, the largest first."""
        names = list(names)
        found = sorted(itertools.product(*map(self.sizes.__getitem__, names)), reverse=True)
        found.sort(key=math.prod, reverse=True)
        return [dict(zip(names, sizes, strict=True)) for sizes in found]

    def in_order(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Sizes in the order of the dimensions; 1 for one that a call does not have."""
        return tuple(sizes.get(name, 1) for name in self.sizes)

    def computed(self, name: str, size: int) -> int:
        """The size that is computed for a size."""
        largest = self.sizes[name][-1]
        if size <= largest:
            return self.fitting(name, size) or size
        if self.larger != "split":
            return size
        whole, rest = divmod(size, largest)
        return whole * largest + (self.fitting(name, rest) or 0 if rest else 0)


@dataclass
class SizedCall(Call):
    """A call whose tensors have dynamic dimensions; see :class:`~gfxgraph.call.key.Call`.

    Attributes:
        names: for each tensor the name of its argument.
        labels: for each tensor its key in the argument, or the name of that.
        plan: for each tensor its dynamic dimensions.
        sizes: of these, by name.
        shapes: what tells it from calls of other sizes at a glance; ``None``: nothing does.
    """

    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    plan: list[Mapping[int, str]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    shapes: Any = None

    @staticmethod
    def of(call: Call, buckets: Buckets, shapes: Any = None) -> SizedCall:
        """A call with its sizes.

        Raises:
            ArgumentError: no argument has a dynamic dimension, or they disagree on its size.
        """
        arguments = list(_arguments(call.fn, call.spec))
        names = list(argument_names(call.fn, call.spec))
        plan = buckets.plan(call.leaves, names)
        return SizedCall(
            **vars(call),
            names=names,
            labels=[key for name, child in arguments for key in _labels(child, name)],
            plan=plan,
            sizes=_sizes(names, plan, call.leaves, is_named=buckets.dims is not None),
            shapes=shapes,
        )

    def with_tensors(self, leaves: list[torch.Tensor], sizes: dict[str, int]) -> SizedCall:
        """The same call with other tensors, which the function cannot tell from these.

        One argument that comes twice is one tensor again, a parameter is a parameter, and what
        requires grad does so.
        """
        alike = list(map(_alike, self.leaves, leaves))
        leaves = [alike[n] for n in first_of_each(self.leaves)]
        args, kwargs = builder(self.spec, leaves)()
        return replace(self, args=args, kwargs=kwargs, leaves=leaves, sizes=sizes)

    def piece(self, name: str, start: int, length: int) -> SizedCall:
        """Some of its rows, along the dimensions of that name."""
        pairs = zip(self.leaves, self.plan, strict=True)
        leaves = [piece(leaf, dims, name, start, length) for leaf, dims in pairs]
        return replace(self.with_tensors(leaves, {**self.sizes, name: length}), shapes=None)

    def pieces(self, name: str, step: int) -> list[SizedCall]:
        """All of its rows, at most ``step`` in each piece."""
        whole = self.sizes[name]
        return [self.piece(name, at, min(step, whole - at)) for at in range(0, whole, step)]

    def resized(self, sizes: dict[str, int], buckets: Buckets) -> SizedCall:
        """The same call with as many rows, cut or padded."""
        leaves, is_cut = [], any(sizes[n] < size for n, size in self.sizes.items())
        for n, (dims, leaf) in enumerate(zip(self.plan, self.leaves, strict=True)):
            fitted = cut(leaf, dims, {n: min(s, self.sizes[n]) for n, s in sizes.items()})
            for dim, name in dims.items():
                fitted = pad_to(fitted, dim, sizes[name], buckets.pad_of(self.names[n]))
            if is_cut and not is_mask(self.labels[n], leaf):
                fitted = as_indices(leaf, fitted, self.sizes, sizes)
            # All sizes get the same layout, or they would be calls of different kinds.
            leaves.append(laid_out(fitted, leaf, dims))
        return self.with_tensors(leaves, sizes)


def _alike(given: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """``made``, as a parameter and with gradient where ``given`` is so."""
    if type(given) is torch.nn.Parameter is not type(made):
        return torch.nn.Parameter(made, given.requires_grad)
    may_require_grad = torch.is_inference_mode_enabled() or not made.is_inference()
    if given.requires_grad and not made.requires_grad and may_require_grad:
        return made.detach().requires_grad_()
    return made


def _checked_buckets(
    buckets: Sequence[int] | Mapping[str, Sequence[int]],
) -> dict[str, list[int]]:
    by_name = dict(buckets) if isinstance(buckets, Mapping) else {_BATCH: buckets}
    if not by_name:
        raise ArgumentError("buckets={}: expected sizes for at least one dimension.")
    for name, sizes in by_name.items():
        if not isinstance(name, str):
            raise ArgumentError(
                f"buckets={{{name!r}: ...}}: expected the name of a dimension, a string such as "
                "'batch'."
            )
        if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable):
            raise ArgumentError(f"buckets of {name!r}: expected a list of sizes, not {sizes!r}.")
        sizes = by_name[name] = list(sizes)
        if not sizes:
            raise ArgumentError(f"buckets of {name!r}: the list is empty; expected sizes.")
        for size in sizes:
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size < 2**31:
                raise ArgumentError(
                    f"buckets of {name!r}: {size!r} is no size; expected whole numbers from 1."
                )
        if sizes != sorted(set(sizes)):
            raise ArgumentError(
                f"buckets of {name!r}: {sizes} is not in ascending order without repetitions; "
                f"expected {sorted(set(sizes))}."
            )
    count = math.prod(map(len, by_name.values()))
    if count > _MAX_BUCKETS:
        raise ArgumentError(
            f"{count} combinations of buckets, at most {_MAX_BUCKETS} are taken: each is a graph."
        )
    return {name: list(sizes) for name, sizes in by_name.items()}


def _checked_out_dims(out_dims: Any) -> list[dict[int, str]]:
    is_list = isinstance(out_dims, Iterable) and not isinstance(out_dims, (str, bytes, Mapping))
    found = list(out_dims) if is_list else []
    if not is_list or not all(map(_are_dims, found)):
        raise ArgumentError(
            f"out_dims={out_dims!r}: expected for each tensor of the result, in order, a mapping "
            'from dimension to name, such as [{0: "batch"}].'
        )
    return [dict(dims) for dims in found]


def _are_dims(given: object) -> bool:
    """Whether it maps dimensions to names."""
    return isinstance(given, Mapping) and all(
        isinstance(dim, int) and not isinstance(dim, bool) and isinstance(name, str)
        for dim, name in given.items()
    )


def _checked_dims(dims: Any, buckets: Mapping[str, Sequence[int]]) -> Dims:
    if not isinstance(dims, Mapping) or not all(
        isinstance(argument, str) and _are_dims(of_argument)
        for argument, of_argument in dims.items()
    ):
        raise ArgumentError(
            f"dims={dims!r}: expected argument name -> dimension -> name of the size, such as "
            '{"x": {0: "batch"}}.'
        )
    named = {name for of_argument in dims.values() for name in of_argument.values()}
    if named != set(buckets):
        raise ArgumentError(
            f"dims name {sorted(named)}, buckets {sorted(buckets)}: expected the same names."
        )
    return dict(dims)


def _sizes(
    names: list[str],
    plan: list[Mapping[int, str]],
    leaves: list[torch.Tensor],
    is_named: bool,
) -> dict[str, int]:
    found: dict[str, tuple[int, str]] = {}
    for argument, dims, leaf in zip(names, plan, leaves, strict=True):
        for dim, name in dims.items():
            if not -leaf.dim() <= dim < leaf.dim():
                raise ArgumentError(
                    f"{argument} has {leaf.dim()} dimensions, but its dimension {dim} is to be "
                    f"{name!r}."
                )
            size = leaf.shape[dim]
            if name in found and found[name][0] != size:
                other_size, other = found[name]
                raise ArgumentError(
                    f"{name!r} is {size} in {argument} and {other_size} in {other}: expected "
                    "one size. Say which dimensions are dynamic with dims=."
                )
            found[name] = size, argument
    if not found:
        raise ArgumentError(
            "no argument has a dynamic dimension: expected a tensor with a batch dimension"
            f"{' named in dims' if is_named else ''}, got {len(leaves)} "
            "tensors."
        )
    return {name: size for name, (size, _) in found.items()}


def argument_names(fn: Any, spec: Spec) -> Iterator[str]:
    """For each tensor the name of the argument that it is in."""
    for name, child in _arguments(fn, spec):
        yield from itertools.repeat(name, len(list(_labels(child, name))))


def _arguments(fn: Any, spec: Spec) -> Iterator[tuple[str, Spec]]:
    known = _parameters(fn)
    args, kwargs = spec[3]
    for position, child in enumerate(args[3]):
        yield (known[min(position, len(known) - 1)] if known else str(position)), child
    for name, child in zip(kwargs[2], kwargs[3], strict=True):
        yield str(name), child


def _parameters(fn: Any) -> list[str]:
    signature = signature_of(fn)
    if signature is None:  # its arguments have no names
        return []
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return [p.name for p in signature.parameters.values() if p.kind in positional]


def _labels(spec: Spec, name: str) -> Iterator[str]:
    """For each tensor its key in the innermost dict, or the name of its argument."""
    if spec[0] == "tensor":
        yield name
    elif spec[0] not in ("const", "again"):
        children = spec[3]
        keys = spec[2] if isinstance(spec[2], tuple) and len(spec[2]) == len(children) else ()
        for n, child in enumerate(children):
            key = keys[n] if keys else None
            yield from _labels(child, key if isinstance(key, str) else name)
