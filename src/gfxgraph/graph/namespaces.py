"""A copy of the variables of torch and Python, and of objects of their classes, before a run.

What their code does is not looked at. A context manager of theirs may set a variable for as long as
it lasts, and a tracer of theirs replaces methods of ``torch.nn.Module`` meanwhile. A method of
theirs may count in its object. The first that is seen of such a variable may be a read inside.
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
from .containers import Container
from .places import Content, Item, Length, Place

__all__ = ["Namespaces"]

_CLASSES = (torch.nn.Module, torch.nn.Parameter, torch.Tensor)
_COUNTING = (torch.utils.hooks.RemovableHandle,)


class Namespaces:
    """The variables of those modules, and the attributes of some classes, as they are now.

    Args:
        objects: how containers are reached that belong to objects of closed classes, and these.
    """

    def __init__(self, objects: Iterable[tuple[str, Any]] = ()) -> None:
        #: By the container: it, and what it holds.
        self._held: dict[int, tuple[Any, Mapping[Any, Any]]] = {}
        for name, module in sys.modules.copy().items():
            if name.partition(".")[0] in CLOSED and raw.is_a(module, types.ModuleType):
                space = raw.attributes(module) or {}
                self._held[address(space)] = space, space.copy()
        for cls in _CLASSES:
            self._held[address(cls)] = cls, raw.namespace(cls).copy()
        counting = ((raw.name_of(cls), cls) for cls in _COUNTING)
        found = (Container(path, item) for path, item in (*objects, *counting))
        self._objects = {address(container.item): container for container in found}

    def settle(self, places: dict[Any, Place]) -> None:
        """Take what stood there before for the value of places.

        In a module, where it stands there again: else its code has kept something there. In an
        object, also where it does not: then the run has changed that.
        """
        known = self._objects.keys() | self._held.keys()
        for place in list(places.values()):
            if isinstance(place, Item):
                if address(place.container) in known:
                    self._settle_item(place)
            elif isinstance(place, Content):
                before = self._objects.get(address(place.container.item))
                if before is not None:
                    place.held_all_before(before.held)
            elif isinstance(place, Length):
                before = self._objects.get(address(place.container))
                if before is not None and before.changes():
                    content = Content(place.path, before)
                    content.where = place.where
                    places.setdefault(content.identity, content)

    def add_changed(self, places: dict[Any, Place]) -> None:
        """Add what the run has changed in objects of closed classes and nobody has read there."""
        for container in self._objects.values():
            if ("content", address(container.item)) in places or raw.is_a(container.item, type):
                continue
            for key in container.changes():
                place: Place
                if raw.is_a(container.item, dict) and raw.is_scalar(key):
                    place = Item(container.name(key), container.item, key, raw.MISSING)
                    self._settle_item(place)
                else:
                    place = Content(container.path, container)
                places.setdefault(place.identity, place)

    def _settle_item(self, place: Item) -> None:
        before = self._objects.get(address(place.container))
        if before is not None:
            held = (value for key, value in before.held if raw.token(key) == place.identity[-1])
            place.value = next(held, raw.MISSING)
        elif address(place.container) in self._held:
            _, space = self._held[address(place.container)]
            value = space.get(place.key, raw.MISSING)
            if place.value is not value and place.read() is value:
                place.value = value
