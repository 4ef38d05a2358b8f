"""``compile="tuned"``: graphs of one function with other settings of Inductor, timed in turn."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, Protocol

import torch

from ..compiling.tuning import (
    Settings,
    Tried,
    Tuned,
    candidates,
    described,
    frozen,
    remember,
    remembered,
    search,
    versions,
)
from ..device import current_device, index_of
from ..errors import CaptureError, GfxGraphError, first_paragraph
from ..interpose.interrupts import interrupt_in, let_in
from ..stats import log, logger
from ..tables import progress_bar
from .compiled import Compile, Compiled
from .entry import Entry
from .identity import code_of, environment, parameters_of, surroundings_of
from .key import Call, describe_key

__all__ = ["TunedCode", "in_turn", "tuned"]

# Calls of each way that come before those that are timed.
_ROUNDS_OF_WARMTH = 5

# Calls of two graphs that are timed to compare them: at most, and once they took so many seconds.
_MOST_ROUNDS, _LEAST_ROUNDS, _SECONDS = 40, 9, 3.0
# How many times as fast settings have to be.
_GAIN = 1.01


class Capture(Protocol):
    """Captures compiled code."""

    def __call__(self, code: Compiled) -> Entry: ...


class TunedCode(Compiled):
    """The compiled code of one callable, with the settings that a search has found.

    Attributes:
        spent: seconds of searches for all kinds of calls, also by earlier processes.
        interrupted: whether the user has interrupted one, and does not want to wait for another.
        found: what was found, by the facts that it depends on.
        codes: the compiled code that graphs hold, by its settings.
        last: the settings that were found last.
    """

    def __init__(self, how: Compile, dynamic: bool) -> None:
        super().__init__(how, dynamic)
        self.spent = 0.0
        self.interrupted = False
        self.found: dict[frozenset[tuple[str, str]], Tuned] = {}
        self.codes: dict[frozenset[tuple[str, object]], Compiled] = {}
        self.last: Settings = {}

    def known(self, facts: dict[str, str]) -> Tuned:
        """What was found for these facts: by this process, by an earlier one, or nothing yet."""
        found = self.found.get(frozen(facts))
        if found is None:
            found = remembered(facts) or Tuned()
            if found.source != "disk":
                found.settings = dict(self.last)
            self.spent += found.seconds
            self.found[frozen(facts)] = found
        return found

    def captured(self, capture: Capture, settings: Settings) -> Entry:
        """A graph of the code with these settings; once more where that may work now."""
        one = self.codes.get(frozen(settings)) or self.with_settings(settings)
        before = one.seconds
        try:
            try:
                entry = capture(one)
            except CaptureError as error:
                if not error.transient:
                    raise
                entry = capture(one)  # it is compiled by now
        finally:
            self.seconds += one.seconds - before
        entry.keeps = one
        return entry

    def keep(self, entry: Entry, found: Tuned) -> None:
        """Compile no more for ``entry``, and begin there with other kinds of calls."""
        assert isinstance(entry.keeps, Compiled)
        self.codes[frozen(found.settings)] = entry.keeps
        self.kinds = sum(one.kinds for one in self.codes.values())
        self.last = found.settings
        entry.tuned = found


def tuned(capture: Capture, code: TunedCode, call: Call, name: str) -> Entry:
    """A graph of the code with the fastest settings that are known, or found now.

    Of an error, and of an interrupt, nothing is left but what was found before it.

    Args:
        capture: captures compiled code, and compares it with eager execution.
        code: of the callable.
        call: a call that the graph is for.
        name: of the callable.

    Raises:
        Exception: see :func:`~gfxgraph.graph.capture.capture`; with no settings there is a graph.
    """
    assert code.how.seconds is not None
    seconds, facts = code.how.seconds, _facts(call, code)
    found = code.known(facts)
    before, began = found.seconds, time.monotonic()
    try:
        best = _first(capture, code, found)
    except BaseException as error:
        code.interrupted |= _is_interrupt(error)
        raise
    # So long takes one more, at least.
    least = time.monotonic() - began
    began = time.monotonic()

    def spend() -> float:
        now = time.monotonic() - began
        code.spent += before + now - found.seconds
        found.seconds = before + now
        return now

    def attempt(settings: Settings) -> Tried:
        nonlocal best
        show(f"{name}: {described(settings)}", spend())
        row, entry = _tried(capture, code, settings, best)
        if entry is not None:
            best.release()
            best = entry
        log(logging.INFO, "tried", function=name, what=str(row))
        return row

    def may_go_on() -> bool:
        let_in()  # who has interrupted code of ours, which goes on to its end
        spend()
        return not code.interrupted and code.spent + least <= seconds

    def save() -> None:
        spend()
        remember(facts, found)

    try:
        if code.spent + least <= seconds:  # it is also timed, beside the best
            least += 2 * (_ROUNDS_OF_WARMTH + _LEAST_ROUNDS) * _timer(best)()
        left = seconds - code.spent
        with progress_bar(max(0.0, left), logger.isEnabledFor(logging.WARNING)) as show:
            search(found, candidates(code.how.given), attempt, may_go_on, save)
    except BaseException as error:
        best.release()
        code.interrupted |= _is_interrupt(error)
        save()
        raise
    if found.source == "searched" and not found.tried and found.settings:
        found.source = "another kind"
    code.keep(best, found)
    log(logging.INFO, "tuned", function=name, key=best.key, what=found.lines()[0])
    return best


def _facts(call: Call, code: TunedCode) -> dict[str, str]:
    """All that the choice of settings depends on."""
    device = current_device()
    autocast = torch.is_autocast_enabled(device.type)
    # With buckets one compilation, and so one choice, is for all sizes.
    kind = "any size" if code.dynamic else describe_key(call.leaves, call.spec)
    facts = {
        **environment(index_of(device, call.leaves)),
        **versions(),
        "code": code_of(call.fn),
        "parameters": parameters_of(call.fn),
        "surroundings": surroundings_of(call.fn),
        "arguments": repr(sorted(code.how.arguments.items())),
        "call": kind,
        "autocast": str(torch.get_autocast_dtype(device.type)) if autocast else "off",
        "float32": torch.get_float32_matmul_precision(),
    }
    return {name: _in_file(text) for name, text in facts.items()}


def _in_file(text: str) -> str:
    text = _ADDRESS.sub("", text)  # addresses differ between processes
    return text if len(text) < _LONG else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


_ADDRESS, _LONG = re.compile(r" at 0x[0-9a-f]+"), 200


def _first(capture: Capture, code: TunedCode, found: Tuned) -> Entry:
    """A graph with the settings that are known, or with none where these do not work any more."""
    try:
        return code.captured(capture, found.settings)
    except Exception as error:
        if not found.settings or interrupt_in(error) or getattr(error, "transient", False):
            raise
        why = f"{described(found.settings)} not used: {_in_short(error)}"
    entry = code.captured(capture, {})
    found.problems.append(why)
    found.settings = {}
    # They gain nothing any more, and are not tried again on top of others.
    found.tried = [
        replace(row, outcome="dropped", why="later not used, see below")
        if row.outcome == "kept"
        else row
        for row in found.tried
    ]
    return entry


def _tried(
    capture: Capture, code: TunedCode, settings: Settings, best: Entry
) -> tuple[Tried, Entry | None]:
    """Try these settings. Gives the outcome, and the graph if it is faster than ``best``."""
    entry = None
    try:
        entry = code.captured(capture, settings)
        us, before_us, is_faster = _compared(entry, best)
    except BaseException as error:
        if entry is not None:
            entry.release()
        if _is_interrupt(error):
            raise
        assert isinstance(error, Exception)
        return Tried(settings, "dropped", why=_in_short(error)), None
    if not is_faster:
        entry.release()
        return Tried(settings, "no faster", us, before_us), None
    return Tried(settings, "kept", us, before_us), entry


def _is_interrupt(error: BaseException) -> bool:
    return not isinstance(error, Exception) or interrupt_in(error) is not None


def _in_short(error: Exception) -> str:
    return str(error)[:300] if isinstance(error, GfxGraphError) else first_paragraph(error, 300)


def _compared(entry: Entry, best: Entry) -> tuple[float, float, bool]:
    """Microseconds of a call of each, and whether the first is faster beyond noise.

    It has to win so many rounds that a fair coin would fall three standard deviations from its
    mean.
    """
    ways = [_timer(entry), _timer(best)]
    rounds = in_turn(ways, _MOST_ROUNDS, _LEAST_ROUNDS, _SECONDS)
    wins = sum(new < old for new, old in rounds)
    us, before_us = (_undisturbed_us(seconds) for seconds in zip(*rounds, strict=True))
    is_sure = wins >= len(rounds) / 2 + 1.5 * math.sqrt(len(rounds))
    return us, before_us, is_sure and us * _GAIN <= before_us


def _timer(entry: Entry) -> Callable[[], float]:
    """Makes a call, and says how many seconds it took.

    On the emulated device, where graphs hold the uncompiled function, the compiled code is run.
    """
    how: Literal["eager", "replay"] = "eager" if current_device().kind == "emulated" else "replay"
    assert entry.captured is not None and entry.captured.time_call is not None
    return partial(entry.captured.time_call, how)


def _undisturbed_us(seconds: Sequence[float]) -> float:
    """The median of the fastest tenth: what else a machine does only ever adds time to a call."""
    fastest = sorted(seconds)[: max(1, len(seconds) // 10)]
    return 1e6 * statistics.median(fastest)


def in_turn(
    ways: Sequence[Callable[[], float]], most: int, least: int = 1, seconds: float = math.inf
) -> list[tuple[float, ...]]:
    """Seconds of a call of each way, a round after the other, since the device's clock may change.

    Args:
        ways: each makes a call, and says how long it took.
        most: so many rounds, after some that only warm the device up.
        least: so many rounds also where they take longer than ``seconds`` in all.
        seconds: see ``least``.
    """
    for _ in range(_ROUNDS_OF_WARMTH):
        for way in ways:
            way()
    rounds: list[tuple[float, ...]] = []
    began = time.monotonic()
    while len(rounds) < most and (len(rounds) < least or time.monotonic() - began < seconds):
        rounds.append(tuple(way() for way in ways))
    return rounds
