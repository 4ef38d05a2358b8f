"""Runs that nobody asked for, and the way back from them.

A capture, a bucket that is judged and a block that is compared all run the user's function once
more. What such a run changes outside is put back: memory, Python objects, random generators.
"""

from __future__ import annotations

import contextvars
import gc
import logging
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..device import Device, index_of
from ..errors import CaptureError, let_go
from ..interpose.dynamo import Uncompiled
from ..record.collectives import refused
from ..record.effects import KnownTensors, UndoLog, Unexpected, storage_key
from ..record.explain import some
from ..record.recorder import Recorder, Recording
from ..record.side_effects import no_side_effects, side_effects
from ..stats import log
from . import raw
from .captured import CapturedGraph
from .containers import Container
from .host_state import HostState
from .locks import LOCK, inside_gfxgraph, is_only_thread
from .reads import Reads
from .repeats import modes
from .state import PythonState
from .stores import Stores
from .torch_settings import MODES, SETTINGS, Setting

__all__ = ["Modes", "Snapshot", "only_computes", "run_and_roll_back"]


@dataclass
class Snapshot:
    """The state that runs of ours start from, and the way back to it.

    Attributes:
        memory: the regions outside that runs have written, with what they held before. It fills
            while runs are recorded.
        python: what Python objects held.
        host: where random generators were, and all else that a run advances.
        on_stream: enters the stream of the runs.
    """

    memory: UndoLog
    python: PythonState
    host: HostState
    on_stream: Callable[[], AbstractContextManager[Any]] = nullcontext

    @classmethod
    def take(
        cls,
        device: Device,
        index: int,
        roots: dict[str, object],
        on_stream: Callable[[], AbstractContextManager[Any]] = nullcontext,
        python: PythonState | None = None,
    ) -> Snapshot:
        """The state of now.

        Args:
            device: the device whose generators a replay advances.
            index: which one of its kind.
            roots: the Python objects that the function reaches, by name.
            on_stream: enters the stream of the runs. Default: the current one.
            python: that of the Python objects, where it is known. Default: it is taken anew.
        """
        if python is None:
            python = PythonState(roots, stores=Stores())
        host = HostState(device, index, python.stateful, python.stores)
        memory = UndoLog()
        assert python.stores is not None
        if not python.stores.decide:  # else another thread may set them
            memory.gradients.keep(tensor for _, tensor in python.tensors())
        return cls(memory, python, host, on_stream)

    def rewind(self) -> None:
        """Put back memory and generators, for the next run. Python objects stay as they are."""
        # On the stream of the runs, which saved the values: their memory is used again there.
        with self.on_stream():
            self.memory.undo()
        self.host.rewind()

    def restore(self) -> None:
        """Put everything back."""
        self.rewind()
        self.python.restore()


def run_and_roll_back(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: Sequence[torch.Tensor],
    device: Device,
    template: CapturedGraph | None = None,
    look: Callable[[UndoLog, Recording], None] = lambda written, recording: None,
) -> tuple[Any, bool]:
    """Run ``function``, and take back what that did outside.

    The caller holds :data:`CAPTURING`.

    Args:
        function: what to run.
        args: its arguments.
        kwargs: its keyword arguments.
        inputs: the tensors among them.
        device: where it runs.
        template: what was captured of it, for whatever sizes. If that only computes, there should
            be nothing to take back, and the run is faster. Default: nothing was.
        look: called after the run, before anything is taken back, with the regions that it wrote
            and with its recording; not where ``template`` made it faster.

    Returns:
        The result, and whether random numbers of torch were drawn.

    Raises:
        CaptureError: it does something outside of torch, and the run ended before that; or it
            rebinds something in Python.
    """
    index = index_of(device, inputs)
    # Beside another thread it has to be seen what the run stores in Python.
    is_alone = is_only_thread()
    if template is not None and template.plain and is_alone:
        handled = sys.exc_info()[1]
        try:
            with only_computes(template, device, index, inputs):
                result = function(*args, **kwargs)
            return result, False
        except Unexpected as surprise:
            log(logging.DEBUG, "not_alike", because=str(surprise))
            let_go(surprise, handled)
    # The state of the capture knows what the function has executed.
    like = None if template is None else template.state
    roots: dict[str, object] = {"the function": function}
    python = PythonState(roots, stores=Stores(), like=like)
    before = Snapshot.take(device, index, roots, python=python)
    objects = before.python.closed if is_alone else ()
    closed = [Container(path, item) for path, item in objects]
    before.host.one_shots.refuse("and is tried with arguments that nobody called it with")

    def recorder() -> Recorder:
        return Recorder(
            device.type,
            inputs,
            before.memory,
            keep_values=True,
            generators=before.host,
            is_tried=True,
        )

    @contextmanager
    def watched(recorder: Recorder, stores: Stores | None) -> Iterator[None]:
        reads = Reads({"the function": function}, inputs, stores=stores)
        with (
            inside_gfxgraph(),
            no_side_effects(),
            refused(),
            recorder.watching(),
            nullcontext() if stores is None else reads.recording(),
        ):
            yield

    first, stores = recorder(), before.python.stores
    assert stores is not None
    modes = Modes()
    try:
        with modes, watched(first, None if is_alone else stores):
            result = function(*args, **kwargs)
            # It may be memory that is put back now.
            result = pytree.tree_map_only(torch.Tensor, torch.clone, result)
            look(before.memory, first.recording)
        rebound = before.python.replaced()
        if not rebound and before.python.changes():
            # It has filled a cache, or each call adds something: then so does the next.
            again, new = Stores(), before.python.changed_items() or ()
            filled = before.python.changed()
            try:
                with watched(recorder(), again):
                    function(*args, **kwargs)
            finally:
                stores.add(again)
            rebound = [
                name
                for name, value in before.python.changed().items()
                if value is not filled.get(name, raw.MISSING)
            ]
            # Or it stores the same: only a cache is filled once.
            rebound += [container.name(key) for container, key in new if again.has(container, key)]
        rebound += [container.name(key) for container in closed for key in container.changes()]
        if rebound:
            raise CaptureError(
                f"calls with other arguments rebind {some(rebound)} to something else, which a "
                "replay would not do. Keep such state in a tensor that is written in place "
                "(copy_, add_), or outside."
            )
        settings = [*modes.changed, *before.host.changed()]
        if settings:
            raise CaptureError(
                f"calls with other arguments change {some(settings)}, which a replay would not "
                "do. Set it outside of the function."
            )
        return result, before.host.draws()
    finally:
        with LOCK:
            before.restore()
            for container in closed:
                container.restore()


class Modes:
    """Puts back what is in force on this thread.

    Attributes:
        changed: names of what was not as it was before, at the end.
    """

    def __init__(self) -> None:
        self.changed: list[str] = []

    def __enter__(self) -> Modes:
        self._before = [(mode, mode.read()) for mode in MODES]
        return self

    def __exit__(self, *error: object) -> None:
        for mode, value in self._before:
            if mode.read() != value:
                mode.write(value)
                self.changed.append(mode.name)


class Around:
    """Finds what a ``no_graph`` function sees in the recorded run and would not see in a replay.

    Args:
        python: the state of Python before the run.

    Attributes:
        reads: what the run has read; ``None``: that is not recorded.
    """

    def __init__(self, python: PythonState) -> None:
        self._python = python
        self.reads: Reads | None = None
        self._settings = [(one, one.read()) for one in (*SETTINGS, *MODES) if not _is_entered(one)]
        self._context, self._modes = _context(), [*modes()]
        self._other_modes = False
        self._given: list[tuple[str, Any, list[Any]]] = []
        self._why = ""

    def met(self) -> None:
        """Note whether other modes of torch are on."""
        now = [*modes()]
        is_same = len(now) == len(self._modes) and all(map(operator.is_, now, self._modes))
        self._other_modes |= not is_same

    def begins(self, what: str, given: Any) -> None:
        """Note what has changed until the function ``what`` runs, and what it is given."""
        names = [*self._python.changes(), *(self.reads.changes() if self.reads else [])]
        names += [one.name for one, value in self._settings if one.read() != value]
        now = _context()
        others = [
            one for one in {*now, *self._context} if now.get(one) is not self._context.get(one)
        ]
        names += [f"the context variable {one.name}" for one in others]
        names += ["which modes of torch are on"] if self._other_modes else []
        made = [leaf for leaf in pytree.tree_leaves(given) if self._is_made(leaf)]
        if names:
            self._why = self._why or (
                f"{what}, which is marked no_graph, runs in the middle of a call that changes "
                f"something: {some(list(dict.fromkeys(names)))}. A replay would change it only "
                "after that, or not at all. Give the function what it needs as an argument."
            )
        elif made:
            self._why = self._why or (
                f"{what}, which is marked no_graph, is given a {type(made[0]).__qualname__} that "
                "the call makes: it would get the same one in each replay. Give it tensors, "
                "numbers, lists and dicts."
            )

    def _is_made(self, leaf: Any) -> bool:
        if isinstance(leaf, torch.Tensor) or hasattr(type(leaf), "value_on_host"):
            return False
        is_made = self.reads is not None and gc.is_tracked(leaf) and self.reads.is_made(leaf)
        return is_made or hasattr(type(leaf), "__next__")

    def ends(self, what: str, result: Any) -> None:
        """Note what containers the function ``what`` has given."""

        def is_noted(node: Any) -> bool:
            if raw.is_a(node, *_CONTAINERS):
                self._given.append((what, node, raw.contents(node)))
            return False

        pytree.tree_leaves(result, is_leaf=is_noted)

    def refuse(self) -> None:
        """Raise if a replay would not be the same.

        Raises:
            CaptureError: it would not.
        """
        for what, container, before in self._given:
            now = raw.contents(container)
            pairs = zip(now, before, strict=False)
            if len(now) != len(before) or not all(a[1] is b[1] for a, b in pairs):
                self._why = self._why or (
                    f"the call changes the {type(container).__name__} that {what}, which is marked "
                    "no_graph, gives: a replay would not. Let the function return a tuple."
                )
        if self._why:
            raise CaptureError(self._why)


_CONTAINERS = (list, dict, set, deque)


def _context() -> dict[contextvars.ContextVar[Any], Any]:
    return dict(contextvars.copy_context().items())


def _is_entered(setting: Setting) -> bool:
    """Whether each replay enters it around a ``no_graph`` function."""
    return "grad_enabled" in setting.name or "autocast" in setting.name


@contextmanager
def only_computes(
    template: CapturedGraph,
    device: Device,
    index: int,
    inputs: Sequence[torch.Tensor],
) -> Iterator[None]:
    """Let a function run that only computed when ``template`` was captured, and see that it does.

    Args:
        template: what was captured of it.
        device: where it runs.
        index: which one of its kind.
        inputs: what it may read beside what ``template`` reads.

    Raises:
        Unexpected: something is not as it was, or the run did more; that is taken back.
    """
    state = None if template.state is None else template.state.again()

    def changed() -> bool:
        return not template.guard.holds() or bool(state and state.changes())

    if state is None or not template.guard.holds():
        raise Unexpected("something that the function reaches is another object now")
    mode = KnownTensors((*map(storage_key, inputs), *template.outside))
    host = HostState(device, index, state.stateful, state.stores)
    more: list[str] = []
    uncompiled = Uncompiled()

    def effect(rule: str, what: str) -> bool:
        more.append(f"does something outside of torch ({what})")
        return True

    modes = Modes()
    with inside_gfxgraph(), side_effects(effect), uncompiled, refused() as issued:
        try:
            with modes, mode:
                yield
        finally:
            if modes.changed:
                more.append("leaves another mode")
            if uncompiled.asked:
                more.append("calls what is to be compiled")
            if issued.groups:
                more.append("issues a collective")
            if host.has_moved():
                if host.moved_of_host() or not template.draws_random_numbers:
                    more.append("draws random numbers")
                host.rewind()
            if changed():
                state.restore()  # it was the same before
                more.append("rebinds something")
    if more:
        raise Unexpected(f"the function {', '.join(more)}")
