"""Where runs store something in Python, which tells it from what other threads do meanwhile."""

from __future__ import annotations

import gc
import os
import types
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from ..interpose.codes import address
from . import raw
from .containers import Container, owner_of
from .guard import REGISTRIES
from .locks import is_only_thread
from .places import Item, Place
from .saved_state import held_in_c

__all__ = ["Stores"]


class Stores:
    """Where the recorded runs of one capture have stored something.

    What a run changes is found by comparing containers before and after it, which misses nothing.
    Where another thread is alive, that may have changed them too: there only what was seen to be
    stored counts as the run's own. All else stays as the other thread left it.

    Attributes:
        sets_settings: whether runs may have set settings of torch, which all threads share.
        is_complete: whether all that was stored was seen. If not, every change counts as the run's
            own: that it has stored something is certain, and that another thread has is not.
        was_alone: whether no other thread was alive when the first run began. If so, nobody notes
            what runs meet, and all may be theirs.
        when_met: by the address of an object, what to do once a run meets it.
    """

    def __init__(self) -> None:
        self.sets_settings, self.is_complete = False, True
        self.when_met: dict[int, Callable[[], None]] = {}
        self.was_alone = is_only_thread()
        #: Where something was stored first: by the container, and by the key, ``None``: any key.
        self._lines: dict[int, dict[Any, tuple[str, int]]] = {}
        # By the container: what methods have put into a list or deque; those out of which they have
        # taken something; and those of which more was changed, or nobody knows what.
        self._put: dict[int, list[Any]] = {}
        self._taken: set[int] = set()
        self._changed: set[int] = set()
        # Addresses of what runs have met; empty: no run has told. Of those in the second, runs may
        # have met all that they lead to.
        self._met: set[int] = set()
        self._met_whole: set[int] = set()
        self._may_meet_all = False

    def meet(self, items: Iterable[Any]) -> None:
        """A run has met these objects; each attribute or variable of one is another item."""
        if not self.was_alone:
            _add_all(self._met, items, parts=True)

    def meet_whole(self, items: Iterable[Any]) -> None:
        """A run may have met all that these objects lead to."""
        if not self.was_alone:
            _add_all(self._met_whole, items, parts=False)

    def meet_all(self) -> None:
        """A run may have met any object."""
        self._may_meet_all = True

    def may_advance(self, item: Any) -> bool:
        """Whether runs may have changed what an object holds in C."""
        if not self.decide or self._may_meet_all or not self._met:
            return True
        return address(item) in self._met or address(item) in self._met_whole

    def note(self, container: Any, key: Any, line: tuple[str, int]) -> None:
        """Something is stored in a container or an object, at ``line``.

        Args:
            container: where.
            key: at which key or under which name; ``None``: at some.
            line: file and line.
        """
        self._mark(container, key, line)
        self._changed.add(address(container))

    def note_method(
        self, container: Any, name: str, given: list[Any], line: tuple[str, int]
    ) -> None:
        """A method of a dict, list, deque or set is called, which may change it."""
        has_key = raw.is_a(container, dict) and name in _AT_KEY and bool(given)
        may_be_there = has_key and name == "setdefault" and raw.is_scalar(given[0])
        if may_be_there and dict.__contains__(container, given[0]):
            return
        self._mark(container, given[0] if has_key else None, line)
        put = self._put.setdefault(address(container), [])
        if name in _ADDING:
            put += given
        elif name in _ADDING_ALL:
            put += (value for part in given if raw.is_a(part, *_PARTS) for value in _values(part))
        elif name in _TAKING:
            self._taken.add(address(container))
        else:
            self._changed.add(address(container))

    def _mark(self, container: Any, key: Any, line: tuple[str, int]) -> None:
        own = raw.attributes(container)
        places = [container] if own is None else [container, own]
        if raw.is_a(container, torch.nn.Module):  # which puts some of its attributes elsewhere
            places += [own[name] for name in REGISTRIES if own and name in own]
        for item in places:
            self._lines.setdefault(address(item), {}).setdefault(_name(item, key), line)

    def without_run(self, container: Container) -> raw.Pairs | None:
        """What a list or deque would hold if there had been no run; ``None``: what it held before.

        Where the run only adds or takes, what another thread has put in meanwhile stays there. What
        that has taken out stays away, unless the run takes something as well.
        """
        item = container.item
        is_plain = raw.is_a(item, list, deque) and address(item) not in self._changed
        # What is added to a deque that is full takes something out.
        is_plain = is_plain and not (raw.is_a(item, deque) and _MAXLEN.__get__(item) is not None)
        if not is_plain or not self.decide:
            return None
        now = [value for _, value in container.read()]
        held = [value for _, value in container.held]
        left = Counter(map(address, now))
        if address(item) not in self._taken:
            held = [value for value in held if _take(left, value)]
        else:
            left -= Counter(map(address, held))
        left -= Counter(map(address, self._put.get(address(item), ())))
        added = [value for value in reversed(now) if _take(left, value)]
        return list(enumerate([*held, *reversed(added)]))

    def lines(self, changed: Iterable[tuple[Container, Any]]) -> list[str]:
        """Where the runs have stored what has changed, as far as that is known."""
        found: dict[str, None] = {}
        for container, key in changed:
            at = self._line(owner_of(container.item), key)
            if at is not None and at[0]:
                found[f"{os.path.basename(at[0])}:{at[1]}"] = None
        return list(found)

    @property
    def decide(self) -> bool:
        """Whether only what was seen to be stored counts as the run's own."""
        return self.is_complete and not (self.was_alone and is_only_thread())

    def own(self, container: Container, keys: Collection[Any]) -> list[Any]:
        """Those of the keys that runs may have changed."""
        if not keys or not self.decide:
            return list(keys)
        return [key for key in keys if self._line(owner_of(container.item), key) is not None]

    def has(self, container: Container, key: Any) -> bool:
        """Whether runs may have stored something there, and be it what was there before."""
        return not self.is_complete or self._line(owner_of(container.item), key) is not None

    def add(self, more: Stores) -> None:
        """Add the stores that ``more`` has noted."""
        self.sets_settings |= more.sets_settings
        self.is_complete &= more.is_complete
        for at, lines in more._lines.items():
            self._lines[at] = lines | self._lines.get(at, {})
        for at, put in more._put.items():
            self._put.setdefault(at, []).extend(put)
        self._taken |= more._taken
        self._changed |= more._changed

    def touch(self, place: Place) -> bool:
        """Whether runs may have changed what is read there."""
        if not self.decide:
            return True
        if isinstance(place, Item):
            return self._line(owner_of(place.container), place.key) is not None
        return any(part in self._lines for part in place.identity[1:2])

    def touch_tensor(self, tensor: torch.Tensor) -> bool:
        """Whether runs may have given a tensor other memory, or another ``requires_grad``."""
        return not self.decide or address(tensor) in self._lines

    def _line(self, item: Any, key: Any) -> tuple[str, int] | None:
        known = self._lines.get(address(item), {})
        return known.get(_name(item, key)) or known.get(None)


# Who asks for what these hold is seen.
_NOT_FOLLOWED = (
    *(type, types.ModuleType, types.FunctionType, types.MethodType, types.CodeType),
    *(types.FrameType, types.CellType, torch.Tensor),
)
_WITH_ITEMS = (dict, list, set, deque)


def _add_all(found: set[int], items: Iterable[Any], parts: bool) -> None:
    """Add the addresses of ``items`` and of all that they hold.

    ``parts``: but for attributes.
    """
    todo = list(items)
    own = {address(raw.attributes(item)) for item in todo} if parts else set()
    while todo:
        item = todo.pop()
        at = address(item)
        if at in found or raw.is_a(item, *_NOT_FOLLOWED):
            continue
        found.add(at)
        if at in own:
            continue
        todo += held_in_c(item)
        if not (parts and raw.is_mutable(type(item))):
            todo += gc.get_referents(item)
        elif raw.is_a(item, *_WITH_ITEMS):
            todo += (value for _, value in raw.contents(item))


_MAXLEN: Any = raw.namespace(deque)["maxlen"]
_AT_KEY = ("setdefault", "pop", "__setitem__", "__delitem__")
_ADDING = ("append", "appendleft", "insert", "add")
_ADDING_ALL = ("extend", "extendleft", "update", "__iadd__")
_TAKING = ("pop", "popleft", "remove", "clear")
_PARTS = (list, set, deque)


def _values(item: Any) -> list[Any]:
    return [value for _, value in raw.contents(item)]


def _take(left: Counter[int], value: Any) -> bool:
    """Whether there is one more of these, which is taken."""
    is_left = left[address(value)] > 0
    left[address(value)] -= is_left
    return is_left


def _name(container: Any, key: Any) -> Any:
    """What stands for a key: the same for keys that a dict takes for one; ``None``: any."""
    if key is None or not raw.is_scalar(key) or raw.is_a(container, list):
        return None  # the place in a list depends on what else is put in
    return raw.token(int(key) if type(key) in (bool, float) and key == key // 1 else key)
