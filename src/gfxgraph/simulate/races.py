"""Finds work of two streams of a capture on the same bytes without an order between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from ..record.effects import storage_key

__all__ = ["Clock", "Uses"]

Clock = dict[int, int]
"""For each stream of a capture, how many of its operations come before."""

# Regions of more elements are taken for what lies between their first and their last byte.
_MOST_COMPARED = 1 << 20

# Where there are more uses of a memory, only those of the very same bytes are replaced.
_MOST_REPLACED = 64


class _Region(NamedTuple):
    """The bytes of a view in its memory."""

    start: int
    end: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def is_solid(self) -> bool:
        """Whether it has all bytes from the first to the last."""
        count = 1
        for size in self.sizes:
            count *= size
        return count * self.itemsize == self.end - self.start

    def covers(self, other: _Region) -> bool:
        """Whether it surely has all bytes of ``other``."""
        inside = self.start <= other.start and other.end <= self.end
        return self == other or (inside and self.is_solid)

    def meets(self, other: _Region) -> bool:
        """Whether the two have a byte in common."""
        if self.end <= other.start or other.end <= self.start:
            return False
        if self.is_solid and other.is_solid:
            return True
        start = min(self.start, other.start)
        length = max(self.end, other.end) - start
        if length > _MOST_COMPARED:
            return True
        return bool((self._mask(start, length) & other._mask(start, length)).any())

    def _mask(self, start: int, length: int) -> torch.Tensor:
        mask = torch.zeros(length, dtype=torch.bool, device="cpu")
        strides = [stride * self.itemsize for stride in self.strides]
        shape = (*self.sizes, self.itemsize)
        mask.as_strided(shape, (*strides, 1), self.start - start).fill_(True)
        return mask


def _region(tensor: torch.Tensor) -> _Region:
    itemsize = tensor.element_size()
    pairs = [
        (size, abs(step)) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step
    ]
    start = int(tensor.storage_offset()) * itemsize
    if not tensor.numel():
        return _Region(start, start, (0,), (1,), itemsize)
    last = sum((size - 1) * step for size, step in pairs)
    sizes, steps = tuple(size for size, _ in pairs), tuple(step for _, step in pairs)
    return _Region(start, start + (last + 1) * itemsize, sizes, steps, itemsize)


class _Use(NamedTuple):
    region: _Region
    stream: int
    writes: bool


class Uses:
    """The uses of memory in a capture so far."""

    def __init__(self) -> None:
        # Of each storage: the use -> how many operations its stream had with it.
        self._found: dict[int, dict[_Use, int]] = {}

    def conflict(
        self,
        stream: int,
        clock: Clock,
        reads: Iterable[torch.Tensor],
        writes: Iterable[torch.Tensor],
    ) -> int | None:
        """Note an operation of ``stream``, the next after ``clock``.

        Returns:
            Another stream that uses a byte of it and for which ``stream`` does not wait.
        """
        now = clock.get(stream, 0) + 1
        uses = [(storage_key(t), _Use(_region(t), stream, True)) for t in writes]
        uses = [*((storage_key(t), _Use(_region(t), stream, False)) for t in reads), *uses]
        for key, new in uses:
            for use, count in self._found.get(key, {}).items():
                unordered = use.stream != stream and clock.get(use.stream, 0) < count
                if unordered and (new.writes or use.writes) and new.region.meets(use.region):
                    return use.stream
        for key, new in uses:
            self._add(key, new, now)
        return None

    def made(self, key: int, stream: int, count: int) -> None:
        """Note that an operation of ``stream`` has made the memory ``key``."""
        everything = _Region(0, 1 << 62, (1 << 62,), (1,), 1)
        self._found[key] = {_Use(everything, stream, True): count}

    def _add(self, key: int, new: _Use, now: int) -> None:
        """Add a use, in place of those that it stands for."""
        found = self._found.setdefault(key, {})
        if len(found) <= _MOST_REPLACED:
            for use in list(found):
                if new.region.covers(use.region) and (
                    new.writes or (use.stream == new.stream and not use.writes)
                ):
                    del found[use]
        found[new] = now
