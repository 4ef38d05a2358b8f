"""``check``: what would become of a function in a graph, found out without a GPU."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..errors import ArgumentError
from ..record.effects import UndoLog
from ..record.pretend import Pretend, PretendTensor
from ..record.recorder import Note, Recorder, Recording
from ..record.report import Hazard, Report
from ..record.rules import RULES, Effect
from ..record.source import Source, users_line, users_line_of
from .state import PythonState
from .suitable import describe, unsuitable

__all__ = ["check"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def check(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Run ``fn`` as on a GPU, without one, and report what a graph would make of it.

    Tensors among the arguments, and parameters and buffers that ``fn`` reaches, are taken to be on
    a pretended ``cuda:0`` whose work the CPU does; on the meta device there is no work at all, and
    values that are read are made up. ``fn`` is run twice, under ``torch.no_grad()``, as
    :func:`~gfxgraph.graphed` runs it: what it writes and rebinds is taken back.

    Args:
        fn: the function, module or method. It may say ``device="cuda"``, ``.cuda()`` and
            ``torch.cuda.synchronize()``.
        *args: its arguments; tensors may be on the CPU, on meta or on a GPU.
        **kwargs: its keyword arguments.

    Returns:
        The report: ``report.verdict`` and ``report.hazards``.

    Raises:
        ArgumentError: ``fn`` is not callable.
        DeviceError: an operator has neither a meta implementation nor data to run on.
    """
    if not callable(fn):
        raise ArgumentError(f"check() takes a function, a module or a method, not {fn!r}.")
    run = _Check(fn, args, kwargs)
    run.twice()
    return run.report


class _Check:
    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._fn, self._args, self._kwargs = fn, args, kwargs
        self._extra: list[tuple[Note, Effect | None]] = []
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        self.report = Report(
            name, device="cuda (pretended, computed on the CPU)", torch=torch.__version__
        )

    def twice(self) -> None:
        """The first run tells what changes from call to call; the second is reported."""
        given = pytree.tree_leaves((self._args, self._kwargs))
        for reason in filter(None, (unsuitable(t) for t in given if isinstance(t, torch.Tensor))):
            self._add("argument", reason, Source())
        if self._extra:
            return self._tell(Recording())
        python_random = random.getstate()
        moving: set[int] = set()
        with Pretend(self._observe) as world, torch.no_grad():
            args, kwargs = world.wrap((self._args, self._kwargs))
            roots: dict[str, object] = {"the function": self._fn}
            as_it_was = PythonState(roots)
            world.adopt(self._fn)
            inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            try:
                for _ in range(2):
                    self._extra.clear()
                    self._streams: tuple[set[Any], dict[Any, Source]] = (set(), {})
                    before = PythonState(roots)
                    recorder = Recorder(
                        "cuda",
                        inputs,
                        UndoLog(),
                        keep_values=False,
                        moving=moving,
                    )
                    try:
                        with self._prints(), self._threads(), recorder.watching():
                            result = self._fn(*args, **kwargs)
                    except Exception as error:
                        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                        self._tell(recorder.recording)
                        self._hazard("raises", what, users_line_of(error), 1, False, "eager")
                        return
                    moving = {key for key, _ in recorder.recording.writes}
                for name in before.changes():
                    self._add("python-state", name, Source())
            finally:
                as_it_was.restore()
            self._look_at(result)
        if random.getstate() != python_random:
            random.setstate(python_random)
            self._add("python-random", "random", Source())
        for where in self._streams[1].values():
            self._add("side-stream", "a stream that is not joined", where)
        self._tell(recorder.recording)

    def _tell(self, recording: Recording) -> None:
        """Hazards in the order of the run: points, then what was noted."""
        for event in recording.events:
            rule = RULES[event.point.rule]
            effect: Effect = "folds" if event.folds else rule.tainted
            self._hazard(rule.id, event.point.what, event.where, 1, not event.folds, effect)
        for note, count in recording.notes.items():
            self._hazard(note.rule, note.what, note.where, count, False, None)
        for note, effect_of_note in self._extra:
            self._hazard(note.rule, note.what, note.where, 1, False, effect_of_note)
        self.report.operations = recording.operations

    def _hazard(
        self,
        rule: str,
        what: str,
        where: Source,
        count: int,
        tainted: bool,
        effect: Effect | None,
    ) -> None:
        entry = RULES[rule]
        effect = effect or entry.effect
        for known in self.report.hazards:
            if (known.rule, known.what, known.file, known.line) == (
                rule,
                what,
                where.file,
                where.line,
            ):
                known.count += count
                known.tainted |= tainted
                return
        severity = {"captures": "note", "eager": "error"}.get(effect, "warning")
        self.report.hazards.append(
            Hazard(
                rule,
                severity,  # type: ignore[arg-type]
                effect,
                what,
                where.file,
                where.line,
                where.text,
                count,
                tainted,
                entry.why,
                entry.remedy,
            )
        )

    def _add(self, rule: str, what: str, where: Source) -> None:
        self._extra.append((Note(rule, what, where), None))

    def _observe(self, kind: str, what: str, detail: Any) -> None:
        forked, open_streams = self._streams
        where = users_line()
        if kind in ("synchronize", "seed", "default-stream"):
            self._add(kind, what, where)
        elif kind == "fork":
            forked.add(detail[0])
            open_streams[detail[0]] = where
        elif kind == "join":
            open_streams.pop(detail[1], None)

    def _look_at(self, result: Any) -> None:
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                reason = unsuitable(leaf, (torch.Tensor, torch.nn.Parameter, PretendTensor))
            elif isinstance(leaf, _PLAIN) or hasattr(leaf, "__dataclass_fields__"):
                reason = None
            else:
                reason = f"is a {describe(leaf)}"
            if reason is not None:
                self._add("result", reason, Source())

    @contextmanager
    def _prints(self) -> Iterator[None]:
        before = sys.stdout
        sys.stdout = _Heard(lambda: self._add("print", "print()", users_line()))
        try:
            yield
        finally:
            sys.stdout = before

    @contextmanager
    def _threads(self) -> Iterator[None]:
        original, ours = threading.Thread.start, threading.get_ident()

        def start(thread: threading.Thread) -> None:
            if threading.get_ident() == ours:
                self._add("thread", f"thread {thread.name}", users_line())
            original(thread)

        replaced: Any = threading.Thread
        replaced.start = start
        try:
            yield
        finally:
            replaced.start = original


class _Heard:
    """Stands in for ``sys.stdout``: the user did not ask for what a checked function prints."""

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard = heard

    def write(self, text: str) -> int:
        if text.strip():
            self._heard()
        return len(text)

    def flush(self) -> None:
        pass
