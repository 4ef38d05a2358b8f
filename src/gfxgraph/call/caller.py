"""The arguments of a call while ``no_graph`` functions run between the graphs that answer it.

Graphs read and write static inputs, such a function the arguments themselves: it is given them, or
reaches them otherwise. So before it runs, the arguments hold what the graph before it has written,
and afterwards the static inputs hold what the function has written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..record.effects import storage_key
from ..record.handed import Origin
from .held import at

__all__ = ["CallersArguments"]


class CallersArguments:
    """See :class:`~gfxgraph.record.handed.Caller`.

    Args:
        static_inputs: of the graphs.
        leaves: the tensors of the call.
        arguments: its positional and its keyword arguments.
        copy: fills the static inputs from the tensors of the call.
        reached: storage keys of the tensors that such functions reach otherwise; ``None``: perhaps
            of all.

    Attributes:
        copies: see there.
        fits: whether the arguments are as large as the static inputs.
    """

    def __init__(
        self,
        static_inputs: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        arguments: tuple[Any, ...],
        copy: Callable[[Sequence[torch.Tensor]], None],
        reached: frozenset[int] | None,
    ) -> None:
        self.copies: dict[int, torch.Tensor] = {}
        self._leaves, self._arguments, self._copy = leaves, arguments, copy
        self._reached = reached
        self._statics = static_inputs
        # A padded call has no arguments of the size of the static inputs: copies have to do.
        self.fits = all(
            leaf.shape == static.shape and leaf.dtype == static.dtype
            for leaf, static in zip(leaves, static_inputs, strict=True)
        )
        self._numbers = {id(static): n for n, static in enumerate(static_inputs)}
        self._versions = list(map(_version, leaves))
        #: By number, what a tensor held before the call, if it holds something else now.
        self._before: dict[int, torch.Tensor] = {}

    def find(self, origin: Origin, fixed: Any) -> Any:
        """See there."""
        kind, what = origin
        if kind == "outside":
            return what
        if kind == "alias":
            return what.detach()
        if not self.fits:
            return None
        if kind == "container":
            return at(self._arguments, what)
        leaf = self._leaves[self._numbers[id(what)]]
        if kind == "input":
            return leaf
        if leaf.stride() != what.stride() or leaf.dtype != fixed.dtype:
            return None
        offset = leaf.storage_offset() + fixed.storage_offset() - what.storage_offset()
        return leaf.detach().as_strided(fixed.shape, fixed.stride(), offset)

    def fixed(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """See there."""
        pairs = zip(self._leaves, self._statics, strict=True)
        found = (static for leaf, static in pairs if leaf is tensor)
        return next(found, None) if self.fits else None

    def write_back(self, written: Sequence[torch.Tensor]) -> None:
        """See there."""
        for static in written if self.fits else ():
            n = self._numbers[id(static)]
            leaf = self._leaves[n]
            if leaf is static:
                continue
            if n not in self._before:
                self._before[n] = leaf.clone()
            with torch.no_grad():
                leaf.copy_(static)
            self._versions[n] = _version(leaf)

    def read_again(
        self, given: Sequence[torch.Tensor] | None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """See there."""
        changed = [n for n in self._may_have_changed(given) if self._has_changed(n)]
        for n in changed:
            self._before.setdefault(n, self._statics[n].clone())
        if changed:
            with torch.no_grad():
                self._copy(self._leaves)
        return [(self._leaves[n], self._leaves[n].clone()) for n in changed]

    def _may_have_changed(self, given: Sequence[torch.Tensor] | None) -> list[int]:
        """The numbers of those that the function may have written to.

        Versions show most writes, but none through ``.data``, an array or a kernel of others.
        """
        numbers, keys = [], None
        for n, leaf in enumerate(self._leaves if self.fits else ()):
            if leaf is self._statics[n]:
                continue
            version = _version(leaf)
            if version == self._versions[n] and given is not None and self._reached is not None:
                keys = keys or self._reached | set(map(storage_key, given))
                if storage_key(leaf) not in keys:
                    continue
            numbers.append(n)
        return numbers

    def _has_changed(self, n: int) -> bool:
        """Whether it holds something else; on a device that is not asked, which would wait."""
        leaf, static = self._leaves[n], self._statics[n]
        version, self._versions[n] = self._versions[n], _version(leaf)
        if version != self._versions[n] or leaf.device.type != "cpu":
            return True
        return leaf.device != static.device or not torch.equal(leaf, static)

    def put_back(self) -> None:
        """Let the arguments hold what they held before the call."""
        with torch.no_grad():
            for n, value in self._before.items():
                self._leaves[n].copy_(value)


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
