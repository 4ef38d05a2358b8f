"""Provenance of data: what it depends on, followed from storage to storage through a run."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TypeAlias

import torch

from .effects import StorageNames

__all__ = ["NO_ROOTS", "Provenance", "ProvenanceMap"]

Provenance: TypeAlias = "frozenset[int] | None"
"""What data depends on: the storage keys of tensors from outside. ``None``: on what may change from
call to call, such as an argument, random numbers, or a kernel that torch does not know."""

NO_ROOTS: Provenance = frozenset()


class ProvenanceMap:
    """The memory that a run touches, and the provenance of its data.

    Args:
        device_type: what ``tensor.device.type`` is on the device.
        inputs: the tensors that hold the arguments.
        varying: storage keys of tensors from outside that change from call to call.

    Attributes:
        name: names the memory of a tensor.
        inputs: names of the arguments' memory.
        inside: names of what the run has made.
        outside: name -> an alias, for all memory from outside that was met.
        originals: the tensors themselves; the aliases in ``outside`` do not share their versions.
    """

    def __init__(
        self, device_type: str, inputs: Iterable[torch.Tensor], varying: Iterable[int]
    ) -> None:
        self.name = StorageNames(device_type)
        self.inputs = {self.name(t) for t in inputs}
        self.inside: set[int] = set()
        self.outside: dict[int, torch.Tensor] = {}
        self.originals: dict[int, weakref.ref[torch.Tensor]] = {}
        self._varying = frozenset(varying)
        self._roots: dict[int, Provenance] = dict.fromkeys(self.inputs)
        self._exposed: set[int] = set()

    def joined(self, keys: Iterable[int]) -> Provenance:
        """The provenance of data that is made of the data in ``keys``."""
        joined = NO_ROOTS
        for key in keys:
            try:
                roots = self._roots[key]
            except KeyError:
                if key in self.inside:
                    continue
                roots = self._at_first(key)
            if roots is None:
                return None
            if roots:
                joined = joined | roots if joined else roots
        return joined

    def see(self, key: int, tensor: torch.Tensor) -> None:
        """``tensor`` is used; if it is on memory from outside that was not met before, keep it."""
        if key not in self.inside and key not in self.outside:
            self.outside[key] = tensor.detach()
            self.originals[key] = weakref.ref(tensor)
            self._roots.setdefault(key, self._at_first(key))

    def mark(self, key: int, roots: Provenance) -> None:
        """The data in ``key`` depends on ``roots`` and nothing else."""
        self._roots[key] = roots

    def expose(self, key: int) -> None:
        """A kernel that nobody sees may write to ``key`` from now on."""
        self._exposed.add(key)
        self._roots[key] = None

    def is_exposed(self, key: int) -> bool:
        """Whether a kernel that nobody sees may write to ``key``."""
        return key in self._exposed

    def write(self, tensor: torch.Tensor, roots: Provenance, overwrites: bool) -> None:
        """Data that depends on ``roots`` was written to ``tensor``.

        Args:
            tensor: what was written.
            roots: what that depends on.
            overwrites: whether no element keeps what it held.
        """
        key = self.name(tensor)
        whole = overwrites and key in self.inside and key not in self._exposed
        if whole and _fills_its_storage(tensor):
            self._roots[key] = roots
        elif roots is None:
            self._roots[key] = None
        else:
            before = self.joined((key,))
            self._roots[key] = None if before is None else roots | before

    def give(self, key: int, roots: Provenance) -> bool:
        """An operation gave ``key``, with data that depends on ``roots``; whether it made it."""
        self._roots[key] = roots
        self._exposed.discard(key)
        if key in self.outside:
            return False
        self.inside.add(key)
        return True

    def _at_first(self, key: int) -> Provenance:
        """The provenance of memory from outside before anything was written to it."""
        return None if key in self._varying else frozenset((key,))


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor:
        return False
    # Each element has a place of its own: an expanded tensor may have as many as its storage.
    is_dense = torch._debug_has_internal_overlap(tensor) == 0
    size = tensor.numel() * tensor.element_size()
    return is_dense and size == tensor.untyped_storage().nbytes()
