"""Settings of Inductor and Dynamo for compiled code that we then capture in a graph."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import torch
from rich.table import Table

from ..errors import ArgumentError
from ..interpose.modules import import_whole
from ..interpose.patch import override
from ..stats import log
from ..tables import Shown
from .log import as_text

__all__ = ["InductorSettings", "Setting", "inductor_settings"]

Part = Literal["inductor", "dynamo"]


@dataclass(frozen=True)
class Setting:
    """One setting, a row of :attr:`InductorSettings.rows`.

    Attributes:
        part: ``"inductor"`` (``torch._inductor.config``) or ``"dynamo"``
            (``torch._dynamo.config``).
        name: its name there, such as ``"triton.cudagraphs"``.
        value: its value inside the context.
        found: its value without the context; ``None`` where this torch does not have it.
        known: whether this torch has it. One that it does not have is left out.
        why: why it has this value.
        source: where that can be read.
    """

    part: Part
    name: str
    value: object
    found: object
    known: bool
    why: str
    source: str


_CONFIG = "torch/_inductor/config.py"


@dataclass(frozen=True)
class _Advice:
    names: tuple[str, ...]  # the newest first; this torch has one of them
    value: object
    why: str
    source: str = _CONFIG
    part: Part = "inductor"


_ISSUE = "github.com/pytorch/pytorch/issues"
_ADVICE = (
    _Advice(
        ("max_autotune",),
        False,
        "Benchmarking kernels at compile time costs minutes, synchronises the device and takes "
        "memory; a graph already removes the launch cost, which is most of what small kernels "
        "gain.",
        f"{_CONFIG}; docs/compile.md of gfxgraph",
    ),
    _Advice(
        ("max_autotune_gemm_backends",),
        "ATEN",
        "Matrix products stay with cuBLAS, hipBLASLt or rocBLAS. Counts only where "
        "max_autotune is switched on.",
    ),
    _Advice(
        ("coordinate_descent_tuning",),
        False,
        "Tunes each kernel by timing its first launch; in a capture nothing runs.",
        f"{_CONFIG}, torch/_inductor/runtime/triton_heuristics.py",
    ),
    _Advice(
        ("epilogue_fusion",),
        True,
        "Pointwise operations join the Triton template before them, where there is one.",
    ),
    _Advice(
        ("pattern_matcher",),
        True,
        "Known groups of operations, such as attention, are replaced by better ones.",
    ),
    _Advice(
        ("aggressive_fusion",),
        False,
        "Would fuse kernels that share no reads, to save launches, which a graph has already "
        "made cheap.",
    ),
    _Advice(
        ("triton.cudagraphs",),
        False,
        "Our graph holds the whole call. Inductor would make one for each region, with copies of "
        "its inputs.",
        f"{_CONFIG}; {_ISSUE}/187715",
    ),
    _Advice(
        ("triton.cudagraph_trees",),
        False,
        "Trees keep memory pools of their own and clear library workspaces that other graphs "
        "point at.",
        "torch/_inductor/cudagraph_trees.py; docs/internals/memory.md of gfxgraph",
    ),
    _Advice(
        ("memory_planning",),
        False,
        "The graph's memory pool already reuses free memory for the next tensor.",
    ),
    _Advice(
        ("reorder_for_locality",),
        True,
        "Moves operations next to what they read.",
    ),
    _Advice(
        # torch keeps the older name as another way to say it.
        ("recompile_limit", "cache_size_limit"),
        128,
        "A function that meets many shapes is compiled for each; after 8, torch's default, it runs "
        "eagerly.",
        "torch/_dynamo/config.py",
        "dynamo",
    ),
)

# Why and source of what the user sets.
_ASKED = ("You asked for it.", "inductor_settings()")


class InductorSettings(Shown):
    """Settings that hold inside a ``with`` block; made by :func:`inductor_settings`.

    It may be entered again inside itself, and by several threads at once.

    Attributes:
        rows: the settings, in the order in which they are recommended, then the user's own.
    """

    def __init__(self, rows: tuple[Setting, ...]) -> None:
        self.rows = rows
        # Per thread, and per task of asyncio.
        self._entered: ContextVar[tuple[ExitStack, ...]] = ContextVar("entered", default=())

    def __enter__(self) -> InductorSettings:
        with ExitStack() as stack:
            for part in ("inductor", "dynamo"):
                values = {r.name: r.value for r in self.rows if r.part == part and r.known}
                stack.enter_context(_patched(_config(part), values))
            self._entered.set((*self._entered.get(), stack.pop_all()))
        return self

    def __exit__(self, *exc_info: object) -> None:
        *outer, stack = self._entered.get()
        self._entered.set(tuple(outer))
        stack.close()

    def _printed(self) -> list[str]:
        return [as_text(self.__rich__())]

    def __rich__(self) -> Table:
        table = Table(title=f"Inductor and Dynamo, torch {torch.__version__} (CUDA and ROCm alike)")
        for heading in ("setting", "value", "without", "why", "source"):
            table.add_column(heading, overflow="fold")
        for row in self.rows:
            found = repr(row.found) if row.known else "not in this torch"
            table.add_row(f"{row.part}: {row.name}", repr(row.value), found, row.why, row.source)
        return table


def inductor_settings(**overrides: Any) -> InductorSettings:
    """The settings that we recommend for code that is captured in a graph afterwards.

    .. code-block:: python

        compiled = torch.compile(model)
        with gfxgraph.inductor_settings():
            compiled(x)  # torch.compile compiles in the first call, so make it in here

    They hold for the thread in the block, and end with it. Up to torch 2.11 its settings are the
    same for all threads: there, other threads see them as long as one thread is in a block. All of
    them are for CUDA and ROCm alike; no AMD GPU was available to measure them on.

    Args:
        overrides: other values, by torch's names: those of the table, and any other of
            ``torch._inductor.config``. ``inductor_settings(max_autotune=True)``; a name with a dot
            as in ``inductor_settings(**{"triton.cudagraphs": True})``.

    Returns:
        A context manager. Its ``rows`` give for each setting the value, the reason, the source, and
        whether this torch has it; ``print`` shows them as a table. A setting that this torch lacks
        is left out, and logged once.

    Raises:
        ArgumentError: torch has no setting of that name, or it takes another type.
    """
    rows: list[Setting] = []
    for advice in _ADVICE:
        config = _config(advice.part)
        name = next((name for name in advice.names if hasattr(config, name)), advice.names[0])
        known = hasattr(config, name)
        found = getattr(config, name) if known else None
        value, why, source = advice.value, advice.why, advice.source
        given_as = [given for given in advice.names if given in overrides]
        if len(given_as) > 1:
            raise ArgumentError(
                f"inductor_settings({', '.join(f'{n}={overrides[n]!r}' for n in given_as)}): two "
                "names of one setting; give one of them."
            )
        for given in given_as:
            value, why, source = overrides.pop(given), *_ASKED
            _check_type(given, value, advice.value)
        if not known:
            _warn_once(advice.part, name)
        rows.append(Setting(advice.part, name, value, found, known, why, source))
    config = _config("inductor")
    for name, value in overrides.items():
        if name not in config.get_config_copy():  # a module has other attributes as well
            raise _unknown(name, rows)
        found = getattr(config, name)
        _check_type(name, value, found)
        rows.append(Setting("inductor", name, value, found, True, *_ASKED))
    return InductorSettings(tuple(rows))


def _config(part: Part) -> Any:
    # Importing these takes seconds, which somebody who does not compile need not wait for.
    return import_whole(f"torch._{part}.config")


def _check_type(name: str, value: object, example: object) -> None:
    expected: tuple[type, ...] = (type(example),)
    if isinstance(example, float):
        expected = (float, int)
    if example is not None and value is not None and type(value) not in expected:
        raise ArgumentError(
            f"inductor_settings({name}={value!r}): expected {expected[0].__name__}, such as "
            f"{example!r}, not {type(value).__name__}."
        )


def _unknown(name: str, rows: list[Setting]) -> ArgumentError:
    names = {*(row.name for row in rows), *_config("inductor").get_config_copy()}
    close = get_close_matches(name, sorted(names), n=3)
    if hasattr(_config("dynamo"), name):
        advice = f"torch._dynamo.config has it: use torch._dynamo.config.patch({name}=...)."
    elif close:
        advice = f"Did you mean {' or '.join(map(repr, close))}?"
    else:
        advice = "torch._inductor.config lists all settings."
    return ArgumentError(
        f"inductor_settings({name}=...): torch._inductor.config of torch {torch.__version__} has "
        f"no such setting. {advice}"
    )


@functools.cache
def _warn_once(part: Part, name: str) -> None:
    log(logging.WARNING, "unknown_setting", part=part, setting=name, torch=torch.__version__)


def _patched(config: Any, values: dict[str, object]) -> Any:
    """``config`` with these values, in torch's own way where that is per thread."""
    if _is_per_thread(config):
        return config.patch(values)
    return _overridden(config, values)


@contextmanager
def _overridden(config: Any, values: dict[str, object]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in values.items():
            get = functools.partial(getattr, config, name)
            put = functools.partial(setattr, config, name)
            stack.enter_context(override(config, name, value, get=get, put=put))
        yield


def _is_per_thread(config: Any) -> bool:
    """Whether a thread sees only its own changes, which is so from torch 2.12 on."""
    entries = getattr(config, "_config", {})
    return any(isinstance(getattr(e, "user_override", 0), ContextVar) for e in entries.values())
