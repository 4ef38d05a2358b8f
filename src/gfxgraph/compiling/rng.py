"""Let Dynamo compile a new frame while a stream is captured.

Dynamo and AOTAutograd save the state of the GPU's generator before they trace a frame and put it
back afterwards. While a stream captures, torch refuses to read that state (*Cannot call
CUDAGeneratorImpl::current_seed during CUDA graph capture*) and to set it
(``aten/src/ATen/cuda/CUDAGeneratorImpl.cpp``), so the compilation fails.

Nothing draws from that generator while a frame is traced, so both can be left out. The code that
saves it moves from version to version. ``preserve_global_state`` of ``torch._dynamo.convert_frame``
decorates a nested function up to torch 2.8; from 2.9 on it decorates ``trace_frame``, once, when
the module is imported, so that replacing the decorator does nothing. ``preserve_rng_state`` of
``torch._dynamo.utils`` does it again for AOTAutograd and Inductor, which import it by name. All of
them look up ``torch.cuda.get_rng_state`` and ``torch.cuda.set_rng_state`` when they run (read in
the sources of 2.6, 2.7, 2.8, 2.9, 2.10, 2.11, 2.12, 2.13 and 2.15), so we replace those two, and
everything else stays preserved.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._guards import CompileContext

from ..forking import new_lock
from ..interpose.dynamo import frames_compiled
from ..interpose.patch import Undoable, intercept
from ..interpose.source import users_line
from ..stats import log, tally

__all__ = ["RngGuard", "guard_rng", "on_compile_in_capture", "tell_if_compiled"]

# Stands for a state that was not saved; a real one has 16 bytes.
_NOT_SAVED = torch.empty(0, dtype=torch.uint8)

_lock = new_lock()
_guards: set[RngGuard] = set()
_reported: weakref.WeakSet[CompileContext] = weakref.WeakSet()
_logged: set[str] = set()


class RngGuard(Undoable):
    """A claim on the guard, which holds while there is a claim.

    A context manager: leaving it is :meth:`undo`.
    """

    def __init__(self) -> None:
        self._claims = [
            intercept(torch.cuda, name, _guarded, everywhere=True, lasts=True)
            for name in ("get_rng_state", "set_rng_state")
        ]
        _guards.add(self)

    def undo(self) -> None:
        """Give the claim back; the last one puts torch's own functions back.

        Does nothing the second time.
        """
        _guards.discard(self)
        for claim in self._claims:
            claim.undo()


def guard_rng() -> RngGuard:
    """Let torch compile a new frame inside a stream capture.

    While the current stream captures, compiling leaves out the saving and restoring of the GPU's
    random state, which torch refuses there. Everything else is saved and restored as before, and
    outside of captures and of compilations nothing changes. A compilation inside a capture is
    counted and logged (:func:`on_compile_in_capture`), since it is better to warm up first: the
    first launch of Inductor's kernels (loading, tuning) may still be forbidden.

    It may be called any number of times, from any thread. Sources: the module's docstring.

    Returns:
        A claim: ``guard_rng().undo()``, or ``with guard_rng(): ...``.
    """
    return RngGuard()


def on_compile_in_capture(where: str) -> None:
    """Count a compilation inside a stream capture, and log it when first met at this place.

    :func:`guard_rng` calls it; call it where you notice a compilation by other means.

    Args:
        where: the function that was compiled, or the line that called it.
    """
    tally.add("compiles_in_capture")
    with _lock:
        first = where not in _logged
        _logged.add(where)
    if first:
        advice = "call the function with such arguments once before the capture (warm up first)"
        log(logging.WARNING, "compiled_inside_a_capture", where=where, advice=advice)


def tell_if_compiled(since: int, where: Callable[[], str]) -> None:
    """Count a compilation in a capture that began when :func:`frames_compiled` was ``since``.

    Where the guard is in force, it counts them itself.
    """
    if frames_compiled() > since and not _guards:
        on_compile_in_capture(where())


def _guarded(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    compilation = CompileContext.try_get()
    if compilation is not None:
        if torch.cuda.is_current_stream_capturing():
            _report(compilation)
            return _NOT_SAVED
        # The capture that was underway when nothing was saved has been ended by a failure.
        if args and isinstance(args[0], torch.Tensor) and args[0].numel() == 0:
            return None
    return original(*args, **kwargs)


def _report(compilation: CompileContext) -> None:
    """Once for each compilation, which asks several times."""
    with _lock:
        if compilation in _reported:
            return
        _reported.add(compilation)
    on_compile_in_capture(str(users_line()))
