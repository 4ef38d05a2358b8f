"""What the modules of torch and of Python held before a run.

What their code does is not looked at. A context manager of theirs may set a variable for as long as
it lasts, and a tracer of theirs replaces methods of ``torch.nn.Module`` meanwhile. The first that
is seen of such a variable may be a read inside.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..interpose.codes import address
from ..interpose.source import CLOSED
from . import raw
from .places import Item, Place

__all__ = ["Namespaces"]

_CLASSES = (torch.nn.Module, torch.nn.Parameter, torch.Tensor)


class Namespaces:
    """The variables of those modules, and the attributes of some classes, as they are now."""

    def __init__(self) -> None:
        #: By the container: it, and what it holds.
        self._held: dict[int, tuple[Any, Mapping[Any, Any]]] = {}
        for name, module in sys.modules.copy().items():
            if name.partition(".")[0] in CLOSED and raw.is_a(module, types.ModuleType):
                space = raw.attributes(module) or {}
                self._held[address(space)] = space, space.copy()
        for cls in _CLASSES:
            self._held[address(cls)] = cls, raw.namespace(cls).copy()

    def settle(self, places: Iterable[Place]) -> None:
        """Take what stood there before for the value of places where it stands again."""
        for place in places:
            if isinstance(place, Item) and address(place.container) in self._held:
                _, held = self._held[address(place.container)]
                before = held.get(place.key, raw.MISSING)
                if place.value is not before and place.read() is before:
                    place.value = before
