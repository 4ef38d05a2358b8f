"""The entries of one callable: which one is tried first, which are kept, when one is released."""

from __future__ import annotations

import functools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from ..forking import in_child, new_lock
from ..graph.locks import when_free
from ..record.explain import some
from ..stats import log, tally
from . import timing, validation
from .budget import register
from .entry import Entry, Refusal
from .replay import NO_MATCH, FastPath
from .signature import Spec, objects_in, without_objects
from .stats import Counts
from .thrash import WORTH_IT, Thrash

__all__ = ["Entries", "all_graphs", "is_aside"]

# A call looks at so many of the keys met last before it works out its own key.
_TRIED = 8

# So many counts of tries are remembered.
_MAX_COUNTED = 1024


# So many graphs of one key are kept that hold no longer, and may hold again.
_MOST_ASIDE = 8


class _Aside(int):
    """The end of the key of a graph that was set aside."""


def is_aside(key: Any) -> bool:
    """Whether a graph is kept under this key that holds no longer, and may hold again."""
    return type(key) is tuple and bool(key) and type(key[-1]) is _Aside


def all_graphs() -> list[Entry]:
    """The graphs of all callables of the process."""
    return [entry for entries in _all_entries() for entry in entries.graphs().values()]


def _all_entries() -> list[Entries]:
    return [holder for holder in validation.holders() if isinstance(holder, Entries)]


def _go_on() -> None:
    """Nobody captures in a child of ``fork()``."""
    for entries in _all_entries():
        if entries.is_paused:
            entries.pause(False)


in_child(_go_on)


class Entries:
    """The entries of one callable by key, with its counts and reasons.

    Args:
        name: what reasons and reports call the callable.
        max_graphs: how many entries to keep.
        new_thrash: makes what decides whether captures still pay.
        order_changed: a method, called under :attr:`lock` when other entries are to be tried first.
            It is held weakly: its owner holds this object.

    Attributes:
        lock: held to change anything here. Its holder does not wait for the lock of all replays.
        order: the entries met last, the newest first.
        counts: see :class:`~gfxgraph.call.stats.Counts`.
        logged: reasons that are in the log already.
        is_paused: no fast path is to be taken, since a capture is alone.
        closed: why no call is captured any more.
        autograd: whether autograd was seen to take part inside of calls.
        keep_after: graphs that were met later than this are not released for room.
    """

    def __init__(
        self,
        name: str,
        max_graphs: int,
        new_thrash: Callable[[], Thrash],
        order_changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.lock = new_lock()
        self.order: tuple[Entry | Refusal, ...] = ()
        self.counts = Counts()
        self.logged: set[str] = set()
        self.is_paused = False
        self.closed = ""
        self.autograd = False
        self.keep_after: float = float("inf")
        self.thrash = new_thrash()
        self._new_thrash = new_thrash
        self._max_graphs = max_graphs
        self._order_changed = weakref.WeakMethod(order_changed)
        self._by_key: dict[Any, Entry | Refusal] = {}
        self._tries: dict[int | str, int] = {}
        #: Keys of which an object is gone.
        self._gone: deque[Any] = deque()
        #: Graphs that are no longer kept, and are not released yet.
        self._dropped: deque[Entry] = deque()
        self._clock = 0
        register(self)
        validation.register(self)
        timing.register(self)

    def get(self, key: Any) -> Entry | Refusal | None:
        """The entry of a key, stale or not."""
        return self._by_key.get(key)

    def all(self) -> list[Entry | Refusal]:
        """All entries, the least recently used first."""
        with self.lock:
            return sorted(self._by_key.values(), key=lambda entry: entry.used)

    def graphs(self) -> dict[Any, Entry]:
        """Those that have a graph, by key."""
        with self.lock:
            return {key: e for key, e in self._by_key.items() if isinstance(e, Entry)}

    def known(self, key: Any) -> tuple[Entry | Refusal | None, list[str]]:
        """The entry of a key; if it is stale, ``None``, and what was changed in vain."""
        with self.lock:
            while self._gone:  # before another object is taken for one whose number it has
                dead = self._gone.popleft()
                if isinstance(self._by_key.get(dead), Refusal):
                    self.drop(dead)
            entry = self._by_key.get(key)
            changes = entry.stale() if isinstance(entry, Entry) else []
            if isinstance(entry, Entry) and changes:
                replays = self._set_aside(key, entry)
                entry = self._bring_back(key)
                if entry is None:
                    self.counts.recaptures += 1
                    self.counts.changed.update(changes)
                    log(logging.INFO, "captured_again", changed=some(changes))
                if entry is not None or replays >= WORTH_IT:
                    changes = []
            elif entry is not None:
                self.promote(entry)
        self.release_dropped()
        return entry, changes

    def _set_aside(self, key: Any, entry: Entry) -> int:
        """Forget a stale graph, or keep it where it may hold again; how often it was replayed.

        A name or a flag that the program switches to and fro has few values.
        """
        if not entry.may_hold_again():
            return self.drop(key)
        asides = sorted(self._asides(key), key=lambda aside: self._by_key[aside].used)
        for oldest in asides[: 1 - _MOST_ASIDE]:
            self.drop(oldest)
        self._clock += 1
        aside = (*key, _Aside(self._clock))
        self._by_key[aside] = self._by_key.pop(key)
        self._set_order(tuple(e for e in self.order if e is not entry))
        entry.set_aside()
        return entry.replays

    def _bring_back(self, key: Any) -> Entry | None:
        """The graph of a key that was set aside and holds now; ``None``: there is none."""
        for aside in self._asides(key):
            entry = self._by_key[aside]
            assert isinstance(entry, Entry)
            if not entry.holds():
                if not entry.may_hold_again():
                    self.drop(aside)
                continue
            self._by_key[key] = self._by_key.pop(aside)
            entry.bring_back()
            self._time(entry)
            self.promote(entry)
            return entry
        return None

    def _asides(self, key: Any) -> list[Any]:
        """The keys of the graphs that were set aside for others of ``key``."""
        return [known for known in self._by_key if is_aside(known) and known[:-1] == key]

    def keep(self, key: Any, entry: Entry | Refusal) -> None:
        """Keep an entry and try it first; the least recently used ones make room."""
        while len(self._by_key) >= self._max_graphs:
            oldest = min(self._by_key, key=lambda key: self._by_key[key].used)
            is_graph = isinstance(self._by_key[oldest], Entry)
            replays = self.drop(oldest)
            if is_graph:
                self.counts.evictions += 1
                self.thrash.released(replays)
        if isinstance(entry, Entry):
            self._time(entry)
        self._by_key[key] = entry
        self.promote(entry)

    def keep_refusal(
        self, key: Any, spec: Spec, refusal: Refusal, fast_path: Callable[[Spec], FastPath]
    ) -> None:
        """Keep it as long as the objects among the arguments live, which it does not hold.

        ``fast_path`` makes the fast path that recognises calls with arguments of a spec.
        """
        gone, objects = self._gone, objects_in(spec)
        try:
            spec, weak = without_objects(spec), (without_objects(key[0]), *key[1:])
            refusal.objects = [weakref.ref(o, lambda _: gone.append(weak)) for o in objects]
            key = weak
        except TypeError:  # a class without weak references; not more than graphs are kept
            pass
        refusal.fast_path = fast_path(spec)
        self.keep(key, refusal)

    def prove(self, entry: Entry, fast_path: FastPath) -> None:
        """Let an unproven entry, which was compared now, answer calls by its fast path."""
        with self.lock:
            entry.unproven = False
            entry.answer_by(fast_path)
            self._time(entry)
            self.promote(entry)

    def replace(self, key: Any, tree: Entry, entry: Entry) -> bool:
        """Keep ``entry`` in the place of ``tree``; ``False``: that was released meanwhile."""
        with self.lock:
            if self._by_key.get(key) is not tree:
                return False
            del self._by_key[key]
            self._set_order(tuple(e for e in self.order if e is not tree))
            self.keep(key, entry)
            return True

    # Which ones are tried first.

    def promote(self, entry: Entry | Refusal) -> None:
        """Try ``entry`` first from now on."""
        with self.lock:
            self.move_to_front(entry)
            self._set_order(self.order)

    def move_to_front(self, entry: Entry | Refusal) -> None:
        """Change :attr:`order` alone: the caller holds the lock, and tells the dispatcher."""
        self._clock += 1
        entry.used = self._clock
        self.order = (entry, *(e for e in self.order if e is not entry))[:_TRIED]

    def tick(self) -> int:
        """The number of what happens now."""
        with self.lock:
            self._clock += 1
            return self._clock

    def pause(self, is_paused: bool) -> None:
        """Take no fast path, or take them again."""
        with self.lock:
            self.is_paused = is_paused
            self._set_order(self.order)

    def validation_changed(self) -> None:
        """Comparing was turned on or off."""
        with self.lock:
            self._set_order(self.order)

    def timing_changed(self) -> None:
        """Timing was turned on or off."""
        with self.lock:
            for entry in self.graphs().values():
                self._time(entry)
            self._set_order(self.order)

    def _time(self, entry: Entry) -> None:
        entry.answer_by(timing.timed(self.name, entry.fast_path, NO_MATCH))

    def _set_order(self, order: tuple[Entry | Refusal, ...]) -> None:
        self.order = order
        changed = self._order_changed()
        if changed is not None:
            changed()

    # How they go.

    def drop(self, key: Any) -> int:
        """Forget a key; how often its graph was replayed.

        The caller holds the lock, and calls :meth:`release_dropped` when it no longer does.
        """
        entry = self._by_key.pop(key)
        self._set_order(tuple(e for e in self.order if e is not entry))
        if not isinstance(entry, Entry):
            return 0
        self._dropped.append(entry)
        return entry.replays

    def release_dropped(self) -> None:
        """Release the graphs of keys that were dropped."""
        # Not under our lock: this waits for LOCK, whose holder may be waiting for ours. While a
        # thread captures, a finalizer, or the function itself, may ask any callable for anything.
        while self._dropped:
            try:
                entry = self._dropped.popleft()
            except IndexError:  # another thread took the last
                return
            when_free(functools.partial(self._release, entry))

    def _release(self, entry: Entry) -> None:
        replays = entry.release()
        with self.lock:
            self.counts.released_replays += replays

    def release_unused(self, all_or_none: bool) -> int:
        """Release the graphs that were never replayed, or are set aside.

        Args:
            all_or_none: only if none was.

        Returns:
            How many.
        """
        with self.lock:
            graphs = self.graphs()
            unused = [
                key
                for key, entry in graphs.items()
                if (is_aside(key) or not entry.replays) and entry.used <= self.keep_after
            ]
            if all_or_none and len(unused) < len(graphs):
                return 0
            for key in unused:
                self.drop(key)
            self.counts.evictions += len(unused)
        self.release_dropped()
        return len(unused)

    def release_groups(self) -> None:
        """Release the graphs that hold collectives: a group of theirs is destroyed."""
        with self.lock:
            for key, entry in self.graphs().items():
                if entry.captured and entry.captured.groups:
                    why = "a process group is shut down whose collective it holds"
                    log(logging.INFO, "graph_released", function=self.name, because=why)
                    self.drop(key)
        self.release_dropped()

    def drop_all(self) -> None:
        """Forget all keys; see :meth:`drop`."""
        with self.lock:
            for key in list(self._by_key):
                self.drop(key)

    def drop_by_identity(self, classes: Collection[type]) -> None:
        """Drop the graphs of single objects of these classes, which are taken apart by now."""
        with self.lock:
            for key in self.graphs():
                if any(type(item) is cls for item in objects_in(key[0]) for cls in classes):
                    self.drop(key)
            self.thrash = self._new_thrash()
            self._tries.clear()
        self.release_dropped()

    def drop_unused(self, kind: str) -> None:
        """Drop the graphs of a kind that each object would have its own of."""
        with self.lock:
            for key, entry in self.graphs().items():
                if entry.key == kind and not entry.replays:
                    self.drop(key)
        self.release_dropped()

    def empty(self) -> list[Entry]:
        """Forget everything; gives the graphs, for the caller to release."""
        with self.lock:
            graphs = list(self.graphs().values())
            self._by_key.clear()
            self._set_order(())
            self._tries.clear()
            self.thrash = self._new_thrash()
            self.closed = ""
            self.autograd = False
            self.counts = Counts()
            return graphs

    # What is counted, and what is known of calls without a graph.

    def postponed(self, key: Any, spec: Spec) -> str | None:
        """Why a call without a graph should not be captured now, but only counted."""
        with self.lock:
            is_full = len(self._by_key) >= self._max_graphs
            full = self._by_key.values() if is_full else ()
            return self.thrash.postpones(key, spec, self.tick(), full)

    def count_fallback(self, reason: str, calls: int = 1) -> None:
        """Count calls that ran eagerly although nobody asked for that."""
        with self.lock:
            self.counts.fallbacks[reason] += calls
        tally.fallback(self.name, reason, calls)

    def count_eager_call(self) -> None:
        """Count a call that ran eagerly."""
        with self.lock:
            self.counts.eager_calls += 1

    def is_new(self, reason: str) -> bool:
        """Whether a reason is not in the log yet; from now on it is."""
        with self.lock:
            is_new = reason not in self.logged
            self.logged.add(reason)
            return is_new

    def replays(self) -> int:
        """How many calls replays have answered."""
        with self.lock:
            of_graphs = sum(entry.replays for entry in self.graphs().values())
            return self.counts.released_replays + of_graphs

    def tries(self, what: int | str) -> int:
        """How often :meth:`count_try` was called for it."""
        return self._tries.get(what, 0)

    def count_try(self, what: int | str) -> int:
        """Count a try; how often that was done."""
        with self.lock:
            self._tries[what] = self._tries.get(what, 0) + 1
            count = self._tries[what]
            if len(self._tries) > _MAX_COUNTED:  # the oldest gets some tries more
                del self._tries[next(iter(self._tries))]
            return count
