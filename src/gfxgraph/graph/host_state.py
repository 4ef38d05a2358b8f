"""Random generators, iterators and buffers of the host that a run may advance.

A replay advances the generators of the device, as eager execution does. Everything else stands
still in a replay, so a function that advances it in each call cannot be a graph. Runs that nobody
asked for (warm-up, capture, the first replay) have to leave all of it as it was: what can be saved
is saved and put back; what cannot (an iterator) must not have moved in the caller's own run, or
the function does not run again.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..device import Device
from ..errors import CaptureError
from ..interpose.codes import address
from . import raw
from .locks import is_only_thread
from .one_shots import Found, OneShots, numpy_random
from .python_settings import PYTHON_SETTINGS
from .saved_state import RANDOM, SETTING, TORCH, Kind, kind_of, perturb
from .stores import Stores
from .torch_settings import SETTINGS

__all__ = ["HostState", "default_generators"]

_Generator: type = torch._C.Generator
_DRAWS = "draws from", "Draw", "number"
_WRITES = "writes to", "Write", "value"


class _Source:
    """Something with a state, and the state to go back to.

    Attributes:
        is_shared: whether it belongs to nobody: another thread may advance it as well.
    """

    def __init__(self, path: str, item: Any, kind: Kind, is_shared: bool) -> None:
        self.path, self.item, self.kind, self.is_shared = path, item, kind, is_shared
        self.saved = self.now()

    def now(self) -> Any:
        return self.kind.read(self.item)

    def is_at(self, state: Any) -> bool:
        now = self.now()
        if isinstance(state, torch.Tensor):
            return torch.equal(now, state)
        return bool(now == state)

    def has_moved(self) -> bool:
        return not self.is_at(self.saved)

    def rewind(self) -> None:
        if self.has_moved():
            self.kind.write(self.item, self.saved)

    def is_of_others(self, stores: Stores | None) -> bool:
        """Whether only another thread, and no run that ``stores`` knows, can have changed it."""
        if stores is None:
            return False
        if self.kind is SETTING:
            return not self.item.of_thread and stores.decide and not stores.sets_settings
        return self.is_seen and not stores.may_advance(self.item)

    @property
    def is_seen(self) -> bool:
        """Whether a recorded run shows who changes it."""
        draws = self.kind.draws and self.kind is not TORCH
        return self.kind.is_data or (draws and not self.is_shared)

    def error(self) -> CaptureError:
        """Why no graph can hold what advances it."""
        others = "" if is_only_thread() else " (or another thread does meanwhile)"
        what = (
            f"changes {self.path}{others}, which holds for the whole process and which a replay "
            "would not change. Set it outside of the function."
        )
        if self.kind is not SETTING:
            path = f"{self.path}, a {self.kind.what}" if self.path[0].islower() else self.path
            does, do, number = _DRAWS if self.kind.draws else _WRITES
            what = (
                f"{does} {path}, which a replay would not do. {do} outside of the function and "
                f"pass the {number}."
            )
        return CaptureError(f"each call {what}", transient=self.is_shared)


def _still_sources(found: Found) -> list[_Source]:
    """State that no replay advances: of the whole process, and of the objects in ``found``."""
    settings = (*SETTINGS, *PYTHON_SETTINGS)
    sources = [_Source(setting.name, setting, SETTING, True) for setting in settings]
    hidden = getattr(random.getstate, "__self__", None)
    if type(hidden) is random.Random:
        sources.append(_Source("Python's random module", hidden, RANDOM, True))
    numpy = numpy_random()
    if numpy is not None:
        everybodys = getattr(numpy.get_state, "__self__", None)
        kind = kind_of(everybodys)
        if kind is not None:
            sources.append(_Source("NumPy's global generator", everybodys, kind, True))
    known = {address(source.item) for source in sources}
    for path, item in found:
        if address(item) not in known and not raw.is_a(item, _Generator):
            known.add(address(item))
            kind = kind_of(item)
            if kind is not None:
                sources.append(_Source(path, item, kind, False))
    return sources


def _perturb(source: _Source, expected: dict[_Source, Any]) -> None:
    expected[source] = perturb(source.item, source.kind)


class Stood:
    """A snapshot of the state that no replay advances, to see later whether a run advanced it."""

    def __init__(self, found: Found = ()) -> None:
        self._sources = sorted(_still_sources(found), key=lambda source: source.is_shared)
        self._is_alone = is_only_thread()

    def error(self, stores: Stores | None = None) -> CaptureError | None:
        """Why a function that has run meanwhile cannot be captured; ``None``: nothing moved.

        ``stores``: what another run has met, which tells about what another thread may have moved.
        Default: only what this thread must have moved counts.
        """
        for source in self._sources:
            is_told = self._is_alone or not source.is_seen
            may_be_own = stores is None or not (is_told or source.is_of_others(stores))
            if may_be_own and (is_told or stores is not None) and source.has_moved():
                return source.error()
        return None


def default_generators(device: Device, index: int) -> list[torch.Generator]:
    """The default generator of the device, and that of the host where it is another."""
    own = device.default_generator(index)
    return [own] if own is torch.default_generator else [own, torch.default_generator]


class HostState:
    """The states of all random generators and buffers that a run may advance, and the way back.

    Args:
        device: the device whose generators a replay advances.
        index: which one of its kind.
        found: what the function reaches.
        stores: where runs were seen to store something. Settings that another thread has changed
            meanwhile are then left alone. Default: a run has changed all that has changed.

    Attributes:
        one_shots: what cannot be put back.
    """

    def __init__(
        self, device: Device, index: int, found: Found = (), stores: Stores | None = None
    ) -> None:
        self._device, self._stores = device, stores
        self._drawn: dict[int, _Source] = {}  # a replay advances them, too
        self._of_host: dict[int, _Source] = {}  # torch's, of which no replay draws
        self.one_shots = OneShots(found)
        self._after: dict[int, torch.Tensor] = {}
        self._used: dict[int, torch.Generator] = {}
        self._states_met: list[torch.Tensor] = []
        self._is_copy = False
        self._reason: CaptureError | None = None
        self._still = _still_sources(found)
        own, *others = default_generators(device, index)
        self._defaults = frozenset({own._cdata, torch.default_generator._cdata})  # type: ignore[attr-defined]
        self._add("the default generator", own)
        for generator in others:
            self._add("the default generator of the CPU", generator)
        for path, item in found:
            if raw.is_a(item, _Generator):
                self._add(path, item)

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The user's own generators of the device."""
        return tuple(
            source.item for key, source in self._drawn.items() if key not in self._defaults
        )

    @property
    def used(self) -> tuple[torch.Generator, ...]:
        """Those of the user's own generators that recorded runs drew from."""
        return tuple(
            g for key, g in self._used.items() if key in self._drawn.keys() - self._defaults
        )

    def rewind(self) -> None:
        """Put back what was advanced."""
        for source in self._all():
            self._rewind(source)
        self.one_shots.rewind()

    def _rewind(self, source: _Source) -> None:
        if not source.is_of_others(self._stores):
            source.rewind()

    def draws(self) -> bool:
        """Whether a generator of torch was advanced since."""
        return any(source.has_moved() for source in self._of_torch().values())

    def has_moved(self) -> bool:
        """Whether anything was advanced since."""
        return any(source.has_moved() for source in self._all())

    def moved_of_host(self) -> bool:
        """Whether anything was advanced since that no replay advances."""
        return any(source.has_moved() for source in (*self._still, *self._of_host.values()))

    def moved(self) -> dict[str, bool]:
        """State that was advanced since, and that no replay advances.

        Returns:
            name -> whether random numbers come from it.
        """
        found = {source.path: source.kind.draws for source in self._still if source.has_moved()}
        return {**found, **self.one_shots.moved()}

    def changed(self) -> list[str]:
        """Names of what no replay advances, and this thread has."""
        alone = is_only_thread()

        def is_own(source: _Source) -> bool:
            is_shared = source.is_shared and source.kind is not SETTING
            return alone or not (is_shared or source.is_of_others(self._stores))

        return [s.path for s in self._still if is_own(s) and s.has_moved()]

    def states(self) -> dict[int, torch.Tensor]:
        """Where torch's generators are now."""
        return {key: source.now() for key, source in self._of_torch().items()}

    def elsewhere(self, expected: dict[int, torch.Tensor]) -> str | None:
        """The first of torch's generators that is not where it should be."""
        sources = self._of_torch()
        for key, state in expected.items():
            if not sources[key].is_at(state):
                return sources[key].path
        return None

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """A run in which nothing may be advanced but generators of the device.

        Raises:
            CaptureError: something was; it is put back where that can be.
        """
        # From another state than the last call left behind: who seeds in each call shows, too.
        # What another thread may draw from waits until the run meets it.
        stores = self._stores
        expected: dict[_Source, Any] = {}
        for source in self._still:
            change = functools.partial(_perturb, source, expected)
            if stores is not None and stores.decide and source.is_seen and source.kind.draws:
                expected[source] = source.saved
                stores.when_met[address(source.item)] = change
            else:
                change()
        try:
            yield
        finally:
            if stores is not None:
                stores.when_met.clear()
            moved = [s for s, state in expected.items() if not s.is_at(state)]
            for source in self._still:
                self._rewind(source)
        for source in moved:
            self._refuse_moved(source)
        self.one_shots.check_unmoved()

    def check_still(self) -> None:
        """Raise if anything was advanced but generators of the device.

        Raises:
            CaptureError: something was.
        """
        for source in self._still:
            if source.has_moved():
                self._refuse_moved(source)
        self.one_shots.check_unmoved()

    def _refuse_moved(self, source: _Source) -> None:
        if not source.is_of_others(self._stores):
            raise source.error()
        if source.kind is SETTING:
            raise CaptureError(
                f"another thread has changed {source.path} meanwhile, which holds for the whole "
                "process.",
                transient=True,
            )

    # What a recording tells of.

    def begin(self) -> None:
        """A run that is recorded begins."""
        self._reason = None
        self._is_copy = False
        self._after = {key: source.now() for key, source in self._of_torch().items()}
        self._states_met = list(self._after.values())

    def will_draw(self, generator: torch.Generator | None = None) -> None:
        """An operation may be about to draw from ``generator``, or from a default one."""
        if generator is not None:
            self._add("a torch.Generator that it uses", generator)
            self._used[generator._cdata] = generator  # type: ignore[attr-defined]
        for key, source in self._moved():
            self._reason = self._reason or CaptureError(
                f"each call sets the state of {source.path} (manual_seed or set_state), which a "
                "replay would not do, or another thread draws from it meanwhile. Set it outside of "
                "the function, or pass a generator.",
                transient=source.is_shared,
            )
            self._after[key] = source.now()

    def drew(self, repeats: bool) -> None:
        """An operation has drawn, or the host has done something.

        Args:
            repeats: whether each replay does that as well, whatever generator it was.
        """
        for key, source in self._moved():
            if not repeats and key in self._of_host:
                self._reason = self._reason or source.error()
            self._after[key] = state = source.now()
            self._states_met.append(state)

    def end(self) -> None:
        """A run that was recorded has ended.

        Raises:
            CaptureError: it used a generator in a way that a replay does not repeat.
        """
        self.will_draw()
        self._after, self._states_met = {}, []
        if self._reason is not None:
            raise self._reason
        if self._is_copy:
            raise CaptureError(
                "it draws from a generator at the state of another one. A replay makes and copies "
                "no generator. Make it once, outside of the function, or draw before the call and "
                "pass the numbers.",
                transient=True,  # both may have been given the same seed
            )

    def _of_torch(self) -> dict[int, _Source]:
        return self._drawn | self._of_host

    def _all(self) -> list[_Source]:
        return [*self._still, *self._of_torch().values()]

    def _moved(self) -> list[tuple[int, _Source]]:
        after, sources = self._after, self._of_torch().items()
        return [(k, s) for k, s in sources if k in after and not s.is_at(after[k])]

    def _add(self, path: str, generator: torch.Generator) -> None:
        key: int = generator._cdata  # type: ignore[attr-defined]
        group = self._drawn if generator.device.type == self._device.type else self._of_host
        if key not in group:
            group[key] = source = _Source(path, generator, TORCH, key in self._defaults)
            if self._after:
                self._after[key] = source.saved
                # Made in the call, it would be taken for the same in each; a copy of another one's
                # state is not.
                if any(torch.equal(source.saved, s) for s in self._states_met):
                    self._is_copy = True
