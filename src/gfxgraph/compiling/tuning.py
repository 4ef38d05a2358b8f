"""Searches settings of Inductor for code that a graph holds, and remembers what was found on disk.

Who compiles and measures is handed in. A file holds what was found for one function and one kind of
calls: a process that finds it compiles once, with the settings in it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch

from ..device import current_device, index_of
from ..interpose.modules import import_whole
from ..interpose.patch import override
from ..stats import log
from ..tables import write_text

__all__ = [
    "Outcome",
    "Settings",
    "Tried",
    "Tuned",
    "candidates",
    "described",
    "frozen",
    "remember",
    "remembered",
    "search",
    "timed_without_gaps",
    "versions",
]

Settings: TypeAlias = "dict[str, bool | int | str]"
Outcome: TypeAlias = Literal["kept", "no faster", "dropped", "begun"]

_FORMAT, _VERSION = "gfxgraph tuned", 1
_MAX_FILE = 1 << 20

_GEMM = "max_autotune_gemm"
_BACKENDS = "max_autotune_gemm_backends"
# What promises most for what it costs comes first. All give what eager execution gives but for
# rounding. What folds weights into the code ("freezing"), takes other mathematics ("use_fast_math")
# or has graphs of Inductor's own is not among them. Nor are "triton.cooperative_reductions": their
# blocks wait for each other, and torch 2.8 launches them without a promise that all of them run.
_FOR_GPUS: tuple[Settings, ...] = (
    {"coordinate_descent_tuning": True},  # also makes products with one row reductions
    {"combo_kernels": True},  # those of one row, of one input, in one launch
    {_GEMM: True},
    {"max_autotune_pointwise": True},
    {"triton.multi_kernel": 1},
    {"split_reductions": False},
    {"coordinate_descent_check_all_directions": True},
    {_GEMM: True, _BACKENDS: "TRITON"},
    {_GEMM: True, "triton.enable_persistent_tma_matmul": True},
    {"triton.persistent_reductions": False},
    {"epilogue_fusion": False},
    {"aggressive_fusion": True},
)
_FOR_CPUS: tuple[Settings, ...] = (
    {_GEMM: True},
    {"epilogue_fusion": False},
    {"aggressive_fusion": True},
)


@dataclass(frozen=True)
class Tried:
    """Settings that a search has tried.

    Attributes:
        settings: of Inductor, beside those that the user gave.
        outcome: ``"kept"``: faster than what was kept before; ``"no faster"``; ``"dropped"``: they
            do not compile, cannot be captured, or give something else than eager execution;
            ``"begun"``: the process ended while it tried them.
        us: microseconds of a call; ``None``: it was not timed.
        before_us: those of what was kept before, in the same rounds.
        why: why they were dropped.
    """

    settings: Settings
    outcome: Outcome
    us: float | None = None
    before_us: float | None = None
    why: str = ""

    def __str__(self) -> str:
        what = described(self.settings)
        if self.us is None or self.before_us is None:
            return f"{what}: {self.outcome}{self.why and f': {self.why}'}"
        return f"{what}: {self.outcome}: {self.us:.1f} us a call, {self.before_us:.1f} us before"


@dataclass
class Tuned:
    """The result of a search for one kind of calls.

    Attributes:
        settings: of Inductor, the fastest; beside those that the user gave.
        tried: what was tried, in this order.
        seconds: that the search took, in all processes.
        source: ``"searched"`` by this process, or found on ``"disk"``; ``"another kind"``: this
            kind of calls was not searched for, since the seconds were spent.
        problems: why a file was not read or written.
    """

    settings: Settings = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    seconds: float = 0.0
    source: Literal["searched", "disk", "another kind"] = "searched"
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report in words."""
        gain = math.prod(
            row.before_us / row.us
            for row in self.tried
            if row.outcome == "kept" and row.us and row.before_us
        )
        dropped = sum(row.outcome == "dropped" for row in self.tried)
        return [
            f"{described(self.settings)} ({self.source}): {gain:.2f} times as fast, "
            f"{len(self.tried)} tried in {self.seconds:.0f} s, {dropped} dropped",
            *map(str, self.tried),
            *self.problems,
        ]


def described(settings: Settings) -> str:
    """Settings as text."""
    return ", ".join(f"{name}={value!r}" for name, value in settings.items()) or "as by default"


def frozen(settings: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    """Settings that can be a key."""
    return frozenset(settings.items())


def candidates(given: Collection[str] = ()) -> list[Settings]:
    """What a search tries on this device, as changes of the settings.

    Args:
        given: names of settings that the user has set. These stay.
    """
    known = import_whole("torch._inductor.config").get_config_copy()
    return [
        one
        for one in _every()
        if one.keys() <= known.keys()
        and one.keys().isdisjoint(given)
        and any(known[name] != value for name, value in one.items())  # else they hold already
    ]


def _every() -> tuple[Settings, ...]:
    return _FOR_GPUS if current_device().type == "cuda" else _FOR_CPUS


def search(
    found: Tuned,
    changes: Iterable[Settings],
    attempt: Callable[[Settings], Tried],
    may_go_on: Callable[[], bool],
    save: Callable[[], None],
) -> None:
    """Change one setting after the other, and keep what is faster, until no change is.

    A change that was dropped once is not tried again on top of others.

    Args:
        found: where to begin, and where to write what is found. What it has tried before is not
            tried again.
        changes: see :func:`candidates`.
        attempt: tries settings. An error ends the search, and these can be tried again.
        may_go_on: whether there is time for one more.
        save: called before and after each attempt: one that ends the process is not made again.
    """
    changes = list(changes)
    done = {frozen(row.settings) for row in found.tried} | {frozen(found.settings)}
    before: Settings | None = None
    while before != found.settings:
        before = found.settings
        for change in changes:
            settings = found.settings | change
            news = frozen(settings) - frozen(found.settings)
            if frozen(settings) in done or any(one <= news for one in _hopeless(found.tried)):
                continue
            if not may_go_on():
                return
            done.add(frozen(settings))
            found.tried.append(Tried(settings, "begun"))
            save()
            try:
                row = attempt(settings)
            except BaseException:
                found.tried.pop()
                raise
            found.source = "searched"
            found.tried[-1] = row
            if row.outcome == "kept":
                found.settings = settings
            save()


def _hopeless(rows: Iterable[Tried]) -> Iterator[frozenset[tuple[str, Any]]]:
    """The changes that did not work, and will not on top of others either."""
    kept: frozenset[tuple[str, Any]] = frozenset()
    for row in rows:
        if row.outcome in ("dropped", "begun"):
            yield frozen(row.settings) - kept
        elif row.outcome == "kept":
            kept = frozen(row.settings)


# How Inductor times.

# Meant to take longer than the launch of a kernel from a slow host. Other factors were not tried.
_CLEARED = 8


def timed_without_gaps() -> AbstractContextManager[Any]:
    """Let Inductor time the kernels inside, and not the host that launches them.

    Before each launch that it times, Inductor clears as many bytes as the L2 cache has, 63 MB on an
    H200. If the host takes longer to launch the kernel, the device waits in the middle of what is
    measured. In here Inductor clears eight times as many bytes, but no more than a quarter of the
    free memory. docs/compile.md says what was measured.

    Torch has no setting for this. Where it keeps that number elsewhere, nothing changes, which is
    logged once.
    """
    device = current_device()
    if device.kind == "emulated":
        return nullcontext()
    timer = import_whole("torch._inductor.runtime.benchmarking").benchmarker
    if not hasattr(type(timer), "L2_cache_size"):
        _say_not_changed()
        return nullcontext()
    index = index_of(device)
    size = torch.cuda.get_device_properties(index).L2_cache_size
    in_use, total = device.memory(index)
    return override(timer, "L2_cache_size", max(size, min(_CLEARED * size, (total - in_use) // 4)))


@functools.cache
def _say_not_changed() -> None:
    why = "Inductor has no L2_cache_size here"
    log(logging.INFO, "kernels_timed_as_by_default", because=why, torch=torch.__version__)


# The file.


def remembered(facts: Mapping[str, str]) -> Tuned | None:
    """What was found before for these facts; ``None``: nothing, or the file cannot be used.

    A file that cannot be used is logged.

    Args:
        facts: all that the choice depends on.
    """
    path = _path(facts)
    try:
        with path.open(encoding="utf-8") as file:
            return _taken_apart(file.read(_MAX_FILE), facts)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        why = f"{path} was not used, so settings are searched anew: {error}"
        log(logging.WARNING, "tuned_file_not_used", path=str(path), because=str(error))
        return Tuned(problems=[why])


def remember(facts: Mapping[str, str], found: Tuned) -> None:
    """Write down what was found; where that cannot be, it is logged, once for each reason."""
    path = _path(facts)
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "facts": dict(facts),
        "settings": found.settings,
        "seconds": round(found.seconds, 3),
        "tried": [asdict(row) for row in found.tried],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        why = f"{path} was not written, so the next process searches anew: {error}"
        if why not in found.problems:
            found.problems.append(why)
            log(logging.WARNING, "tuned_file_not_written", path=str(path), because=str(error))


def versions() -> dict[str, str]:
    """The versions of what generates code, beside torch."""
    try:
        triton = import_whole("triton").__version__
    except ImportError:
        triton = "none"
    return {"triton": triton, "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}


def _path(facts: Mapping[str, str]) -> Path:
    # Beside the code that Inductor keeps: who keeps the one between two starts keeps the other.
    folder = import_whole("torch._inductor.runtime.cache_dir_utils").cache_dir()
    name = hashlib.sha256(json.dumps(sorted(facts.items())).encode()).hexdigest()[:32]
    return Path(folder) / "gfxgraph" / f"{name}.json"


def _taken_apart(text: str, facts: Mapping[str, str]) -> Tuned:
    """What a file holds, which may be anything.

    Raises:
        ValueError: it is no file of ours, or not for these facts.
    """
    data = json.loads(text)
    if type(data) is not dict or (data.get("format"), data.get("version")) != (_FORMAT, _VERSION):
        raise ValueError(f"it has no format {_FORMAT!r} of version {_VERSION}")
    if data.get("facts") != dict(facts):
        raise ValueError("it is for another function, device or version")
    seconds: Any = data.get("seconds")
    rows = data.get("tried")
    if not _is_number(seconds) or type(rows) is not list:
        raise ValueError("it lacks the seconds, or what was tried")
    return Tuned(_checked(data.get("settings")), [_row(row) for row in rows], seconds, "disk")


def _row(data: Any) -> Tried:
    names = {one.name for one in fields(Tried)}
    if type(data) is not dict or data.keys() != names:
        raise ValueError("a row of what was tried has other fields")
    row = Tried(**(data | {"settings": _checked(data["settings"])}))
    times = all(us is None or _is_number(us) for us in (row.us, row.before_us))
    if not times or row.outcome not in get_args(Outcome) or type(row.why) is not str:
        raise ValueError("a row of what was tried holds another kind of value")
    return row


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max


def _checked(settings: Any) -> Settings:
    """Settings that a search can have tried here, and no others."""
    if type(settings) is not dict:
        raise ValueError("its settings are no object")
    known = {(name, type(v), v) for one in _every() for name, v in one.items()}
    for name, value in settings.items():
        if type(value) not in (bool, int, str) or (name, type(value), value) not in known:
            raise ValueError(f"{name[:60]}={str(value)[:60]!r} is no setting that is searched")
    return settings
