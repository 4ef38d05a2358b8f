"""Whether padding leaves alone the rows that are kept: judged by inputs made for that purpose.

Two kinds of evidence. *Sizes*: the function runs on inputs of several sizes, alone and with other
rows in the place of the padding, and has to give the same. *Reach*: a run is followed operation by
operation (:mod:`~gfxgraph.record.reach`), and data of the padding must not reach an element that is
kept. The second finds what a comparison may not see (a mean that counts above a threshold only),
the first what is no question of data (a function that asks for its size). *Numbers*: two sizes that
take the same operators have to give them the same numbers, so a size that only counts above a
threshold is found as well. What weights of zeros hide, other values in their place show
(:mod:`~gfxgraph.record.other_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from ...device.asserts import OutOfRange
from ...device.operators import outside_of_modes
from ...errors import CaptureError, one_line
from ...graph.compare import Tolerance, difference
from ...interpose.interrupts import interrupt_in
from ...record.explain import some
from ...record.numbers import Numbers
from ...record.other_weights import KnownWeight, OtherWeights
from ...record.reach import Reach, Weight
from ..signature import Spec, flatten
from .made import Kind, made_like, poisoned, probes
from .padding import as_indices, cut, dim_of, is_mask, laid_out, padding_value
from .sizes import Buckets, SizedCall

__all__ = ["Judge", "Ran", "Runner", "carried_by", "pieces_differ", "tells_apart"]

Carried: TypeAlias = Sequence[Mapping[int, str]]
"""For each tensor of the result, which dimension carries which size."""

_KINDS: tuple[Kind, ...] = ("signed", "positive", "given", "within")

# The bucket that is judged, where that is enough for the function.
_JUDGED = 8
# Elements of an argument without a size up to which it gets other values.
_MAX_OTHER = 1 << 24
_ASK = 'If padding does no harm all the same, say so with rows="independent".'


@dataclass
class Ran:
    """The result and the writes of a run that was rolled back.

    Attributes:
        tensors: of its result.
        spec: the rest of its result.
        writes: what it left in memory from outside.
        draws: whether it drew random numbers.
    """

    tensors: list[torch.Tensor]
    spec: Spec
    writes: list[torch.Tensor]
    draws: bool = False


Runner: TypeAlias = Callable[[Callable[..., Any], SizedCall], Ran]
"""Runs a function on a call, and takes back what that did outside."""


@dataclass
class Judge:
    """Finds out whether padding can reach what calls keep, for all sizes up to a bucket.

    Args:
        fn: the function.
        call: a call of any size: what its arguments are like.
        bucket: the sizes to pad to.
        buckets: what to pad with.
        carried: which dimensions of the result carry which size.
        run: see :data:`Runner`.
        tolerance: how far two runs may be apart.
        gates: by storage: tensors from outside whose values keep rows apart.
    """

    fn: Callable[..., Any]
    call: SizedCall
    bucket: dict[str, int]
    buckets: Buckets
    carried: Carried
    run: Runner
    tolerance: Tolerance
    _last_error: str = field(default="no made input gives a number", init=False)
    _by_number: str | None = field(default=None, init=False)
    _has_others: bool = field(default=False, init=False)
    _known_weights: dict[int, KnownWeight] = field(default_factory=dict)
    _weights: dict[int, Weight] = field(default_factory=dict)
    gates: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def small(self) -> dict[str, int]:
        """The sizes that are judged: what a function does with rows is no question of many."""
        return {name: min(size, _JUDGED) for name, size in self.bucket.items()}

    def __call__(self) -> None:
        """Judge.

        Raises:
            CaptureError: padding can reach what is kept, or nobody can say. The text names the
                operation and the line where rows meet.
        """
        if all(size == 1 for size in self.bucket.values()):  # nothing is ever padded
            return
        by_size, evidence = self._by_sizes_of(self.small)
        if not evidence and self.small != self.bucket:  # they may be too small for it
            by_size, evidence = self._by_sizes_of(self.bucket)
        self._raise(by_size, evidence, self._by_reach() or self._by_number)

    def at(self, sizes: dict[str, int]) -> None:
        """Judge calls of these sizes alone, and only by size and by number.

        Raises:
            CaptureError: likewise.
        """
        by_size, evidence = self._by_sizes_of(self.bucket, [sizes])
        self._raise(by_size, evidence, self._by_number)

    def _raise(self, by_size: str | None, evidence: bool, where: str | None) -> None:
        if by_size or where:
            place = f" ({where})" if by_size and where else where or ""
            raise CaptureError(f"{by_size or 'rows influence each other: '}{place}. {_ASK}")
        if not evidence:
            raise CaptureError(
                f"whether rows influence each other cannot be judged: {self._last_error}. {_ASK}"
            )

    # By size.

    def _by_sizes_of(
        self, bucket: dict[str, int], only: Sequence[dict[str, int]] = ()
    ) -> tuple[str | None, bool]:
        """The difference that padding makes, and whether anything could be compared.

        ``only``: the sizes to compare with the bucket. Default: a choice, with more kinds of rows.
        """
        judge = replace(self, bucket=bucket)
        for kind in _KINDS:  # a logarithm has nothing to say of negative numbers
            for others in ("all", "floats", "none"):  # a function may want zeros where it has them
                by_size, evidence = judge._by_size(kind, others, only)
                if by_size or evidence or not judge._has_others:
                    break
            if by_size or evidence:
                break
        self._last_error, self._by_number = judge._last_error, self._by_number or judge._by_number
        return by_size, evidence

    def _by_size(
        self, kind: Kind, which: str, only: Sequence[dict[str, int]]
    ) -> tuple[str | None, bool]:
        full = made_like(self.call, self.bucket, self.buckets, kind)
        of_full, evidence, is_poisoned = None, False, bool(only)
        for sizes in only or probes(self.bucket):
            part, filled = self._around(full, sizes, kind)
            expected = self._try(part, which)
            if expected is None:
                continue
            is_full = all(a is b for a, b in zip(filled.leaves, full.leaves, strict=True))
            got = of_full if is_full and of_full is not None else self._try(filled, which)
            of_full = got if is_full else of_full
            if got is None and self._was_out_of_range:  # the other rows are none that it takes
                return None, False
            others = [got]
            if not is_poisoned and max(sizes.values()) > 1:
                larger = self._try(poisoned(filled, sizes), which)
                others += [] if larger is None and self._was_out_of_range else [larger]
                is_poisoned = True
            for other in others:
                if other is None:
                    return f"padding from {sizes} to {self.bucket} raises {self._last_error}", True
                found = self.difference(expected[0], other[0], sizes)
                if found:
                    return found, True
            if got is not None:
                self._note_numbers(expected[1].difference(got[1]), sizes)
            if _says_something(expected[0].tensors):
                evidence = True
        return None, evidence

    def _try(self, call: SizedCall, which: str) -> tuple[Ran, Numbers] | None:
        """Run the function on a made call, with other values for ``which`` weights."""
        numbers = Numbers(_data(call))
        for n, (leaf, dims) in enumerate(zip(call.leaves, call.plan, strict=True)):
            if not dims:  # it may be anything in another call; there is no room for two caches
                is_small = leaf.numel() <= _MAX_OTHER
                self._known_weights[id(leaf)] = KnownWeight(leaf, is_small, -1 - n)
        others = OtherWeights(_data(call), self._known_weights, which == "floats")
        modes = (numbers,) if which == "none" else (others, numbers)
        try:
            return self.run(_under(self.fn, *modes), call), numbers
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # made inputs may be none that it takes
            if interrupt_in(error):
                raise
            self._last_error = one_line(error)
            return None
        finally:
            self._has_others |= others.any

    @property
    def _was_out_of_range(self) -> bool:
        """Whether that was the last error. Of a run that was recorded there is but a text."""
        return OutOfRange.__name__ in self._last_error

    def _note_numbers(self, place: str | None, sizes: dict[str, int]) -> None:
        if place and self._by_number is None:
            of = some([repr(name) for name, size in self.bucket.items() if sizes[name] != size])
            self._by_number = f"a number that depends on the size of {of} goes into {place}"

    def _around(
        self, full: SizedCall, sizes: dict[str, int], kind: Kind
    ) -> tuple[SizedCall, SizedCall]:
        """A call of these sizes, and one that has other rows in the place of padding.

        Masks are padded as calls are: what they say of the padding is the choice of ``pad``.
        """
        part = made_like(self.call, sizes, self.buckets, kind, sum(sizes.values()) % 2 == 1)
        padded = part.resized(self.bucket, self.buckets) if self._has_masks() else part
        parts, filled = list(part.leaves), list(padded.leaves)
        for n, (leaf, dims) in enumerate(zip(full.leaves, full.plan, strict=True)):
            if is_mask(full.labels[n], leaf):
                continue
            corner = cut(leaf, dims, sizes)
            fits = as_indices(self.call.leaves[n], corner, self.call.sizes, sizes)
            parts[n] = laid_out(fits, leaf, dims) if dims else fits
            filled[n] = leaf
            if fits is not corner:
                filled[n] = leaf.clone()
                cut(filled[n], dims, sizes).copy_(fits)
        return full.with_tensors(parts, sizes), full.with_tensors(filled, self.bucket)

    def difference(self, expected: Ran, got: Ran, sizes: dict[str, int]) -> str | None:
        """The difference between a run and a padded run, cut to ``sizes``."""
        if expected.spec != got.spec:
            return "the structure or a plain value of the result depends on the size"
        if expected.draws != got.draws:
            return "whether it draws random numbers depends on the size"
        if [t.shape for t in expected.writes] != [t.shape for t in got.writes]:
            return f"where it writes outside depends on the size ({sizes}, {self.bucket})"
        for a, b in zip(expected.writes, got.writes, strict=True):
            different = difference(b, a, self.tolerance)
            if different:
                return (
                    f"padding from {sizes} to {self.bucket} changes what it writes outside: "
                    "rows influence each other"
                )
        for n, (a, b, dims) in enumerate(
            zip(expected.tensors, got.tensors, self.carried, strict=True)
        ):
            if b.dim() != a.dim() or any(b.shape[d] != self.bucket[x] for d, x in dims.items()):
                return f"the shape of output {n} does not follow the size"
            different = difference(cut(b, dims, sizes), a, self.tolerance)
            if different:
                return (
                    f"padding from {sizes} to {self.bucket} changes the rows asked for (output "
                    f"{n}: {different}): rows influence each other, or pad= has to be another value"
                )
        return None

    # By reach.

    def _by_reach(self) -> str | None:
        """Where data of the padding reaches what is kept."""
        for name, size in self.bucket.items():
            if size == 1:
                continue
            # One row that is kept meets all others, and one row of padding too.
            found = self._reached(name, 1) or self._reached(name, -1)
            if found:
                return found
        return None

    def _reached(self, name: str, kept: int) -> str | None:
        """Where data of the padding reaches ``kept`` rows, by the first inputs that are taken."""
        error: Exception | None = None
        for kind in ("signed", "within"):
            for bucket in (self.small, self.bucket):
                try:
                    return self._followed(bucket, name, kept, kind)
                except Exception as raised:  # made inputs may be none that it takes
                    if interrupt_in(raised):
                        raise
                    error = error or raised
        return f"cannot be followed: {type(error).__name__}: {error}"

    def _followed(self, bucket: dict[str, int], name: str, count: int, kind: Kind) -> str | None:
        ending, kept = count > 0, {**bucket, name: count % bucket[name]}
        call = made_like(self.call, bucket, self.buckets, kind)
        part = made_like(self.call, kept, self.buckets, kind, ending)
        masks = part.resized(bucket, self.buckets).leaves if self._has_masks() else call.leaves
        leaves = [
            mask if is_mask(label, leaf) else self._within(n, leaf, kept)
            for n, (label, leaf, mask) in enumerate(
                zip(call.labels, call.leaves, masks, strict=True)
            )
        ]
        plan, carried, masked = call.plan, self.carried, self._is_masked(name)
        trusted = {n for n in range(len(plan)) if self._hides_padding(n)}
        fn, explains = self.fn, False

        def followed(*args: Any, **kwargs: Any) -> str | None:
            mode = Reach(self._weights, explains, bucket[name] if masked else None)
            given, _ = flatten((args, kwargs))
            with outside_of_modes():
                for n, (leaf, dims) in enumerate(zip(given, plan, strict=True)):
                    if n in trusted:
                        mode.trust(leaf)
                        continue
                    around = torch.ones(leaf.shape, dtype=torch.bool, device=leaf.device)
                    cut(around, dims, kept).fill_(False)
                    mode.mark(leaf, around if name in dims.values() else None, not dims)
            with mode:
                result = fn(*args, **kwargs)
            self.gates.update(mode.gates)
            with outside_of_modes():
                if mode.written_outside is not None:
                    return f"data of the padding is written outside by {mode.written_outside}"
                if masked and mode.misled is not None:
                    return f"an index may lead to the padding along {name!r} by {mode.misled}"
                for n, (out, dims) in enumerate(zip(flatten(result)[0], carried, strict=True)):
                    mask = mode.reached(out)
                    if mask is None or masked or not bool(cut(mask, dims, kept).any()):
                        continue
                    return (
                        f"data of the padding along {name!r} reaches output {n} by "
                        f"{mode.place(out)}"
                    )
            return None

        call = call.with_tensors(leaves, bucket)
        found: str | None = self.run(followed, call).spec[1].value
        if found is not None:  # once more, since it takes longer to say where
            explains = True
            found = self.run(followed, call).spec[1].value or found
        return found

    def _within(self, n: int, leaf: torch.Tensor, kept: dict[str, int]) -> torch.Tensor:
        """Places and lengths that lie in what is kept; a length of at least one stays so."""
        given = self.call.leaves[n]
        fits = as_indices(given, leaf, self.call.sizes, kept)
        if fits is leaf:
            return leaf
        return fits.clamp(min=min(int(given.amin()), *kept.values()))

    def _has_masks(self) -> bool:
        return any(map(is_mask, self.call.labels, self.call.leaves))

    def _is_masked(self, name: str) -> bool:
        """Whether a mask says of the padding along a dimension that it does not count."""
        return any(
            self._hides_padding(n, dim)
            for n, dims in enumerate(self.call.plan)
            for dim, of_dim in dims.items()
            if of_dim == name
        )

    def _hides_padding(self, n: int, dim: int | None = None) -> bool:
        """Whether an argument is a mask that is padded with a number, along ``dim`` or any."""
        call = self.call
        dims = call.plan[n] if dim is None else (dim,)
        pad = self.buckets.pad_of(call.names[n])
        is_one = is_mask(call.labels[n], call.leaves[n])
        return is_one and any(padding_value(pad, d) is not None for d in dims)


def _data(call: SizedCall) -> list[torch.Tensor]:
    """The arguments of a call that carry a size; those of one size are weights for the judge."""
    return [t for t, dims in zip(call.leaves, call.plan, strict=True) if dims]


def _under(fn: Callable[..., Any], *modes: AbstractContextManager[Any]) -> Callable[..., Any]:
    """``fn``, called under modes; the last one sees what it does first."""

    def under(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            return fn(*args, **kwargs)

    return under


def pieces_differ(
    fn: Callable[..., Any],
    whole: SizedCall,
    name: str,
    step: int,
    carried: Carried,
    run: Runner,
    tolerance: Tolerance,
) -> str | None:
    """Why a call is not answered in pieces of ``step`` rows; ``None``: it can be."""

    known: dict[int, KnownWeight] = {}

    def ran(call: SizedCall) -> tuple[Ran, Numbers]:
        numbers = Numbers(_data(call))
        return run(_under(fn, OtherWeights(_data(call), known), numbers), call), numbers

    expected, numbers = ran(whole)
    if expected.writes:
        return "the function writes to memory from outside, once for each piece"
    parts = []
    for piece in whole.pieces(name, step):
        part, of_part = ran(piece)
        place = numbers.difference(of_part)
        if place:
            return f"a number that depends on the size of {name!r} goes into {place}"
        parts.append(part)
    if any(part.spec != expected.spec for part in parts):
        return "the structure or a plain value of the result depends on the size"
    for n, (tensor, dims) in enumerate(zip(expected.tensors, carried, strict=True)):
        dim = dim_of(dims, name)
        tensors = [part.tensors[n] for part in parts]
        for got in tensors if dim is None else [torch.cat(tensors, dim)]:
            different = difference(got, tensor, tolerance)
            if different:
                return f"output {n} in pieces is not that of the whole: {different}"
    return None


def carried_by(
    position: int,
    shape: Sequence[int],
    sizes: Mapping[str, int],
    shape_of_bucket: Sequence[int],
    bucket: Mapping[str, int],
) -> dict[int, str]:
    """Which dimensions of an output carry which size, seen in two shapes of it.

    Raises:
        CaptureError: one that differs carries none.
    """
    carried: dict[int, str] = {}
    if len(shape) != len(shape_of_bucket):
        raise CaptureError(
            f"output {position} has {len(shape)} dimensions for {dict(sizes)} and "
            f"{len(shape_of_bucket)} for {dict(bucket)}"
        )
    for dim, (size, larger) in enumerate(zip(shape, shape_of_bucket, strict=True)):
        names = [n for n, s in sizes.items() if (s, bucket[n]) == (size, larger)]
        if size != larger and not names:
            raise CaptureError(
                f"dimension {dim} of output {position} is {size} for {dict(sizes)} and {larger} "
                f"for {dict(bucket)}: it is no dynamic dimension"
            )
        if size != larger:
            carried[dim] = names[0]
    return carried


def tells_apart(sizes: Mapping[str, int], bucket: Mapping[str, int]) -> bool:
    """Whether a dimension that differs between the two shows which one it is."""
    pairs = [(size, bucket[name]) for name, size in sizes.items()]
    return len(set(pairs)) == len(pairs) and all(a != b for a, b in pairs)


def _says_something(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there is a number to compare; NaN everywhere is none."""
    floats = [t for t in tensors if t.is_floating_point() or t.is_complex()]
    return not floats or any(bool(t.isfinite().any()) for t in floats)
