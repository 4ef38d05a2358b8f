"""How functions that the user has compiled are run for a recording and for a capture.

**Under a dispatch mode** Dynamo does not run what it compiled. It also marks the code object to be
skipped, for good: from then on everybody who calls the function gets it uncompiled, without a word
(``CatchErrorsWrapper`` of ``torch._dynamo.convert_frame`` returns the default
``ConvertFrameReturn``, which applies to the code; measured with torch 2.11 and 2.13). So a run
under a mode of ours is hidden from Dynamo: :class:`Uncompiled`.

**In a capture** what Inductor compiled can be recorded, but not the graphs that it makes of it
(``mode="reduce-overhead"``, ``"max-autotune"``), which are replayed:
:func:`without_graphs_of_inductor`.

Both replace one attribute of torch while somebody is inside, read in torch 2.8 to 2.15, and answer
other threads as torch does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch

__all__ = [
    "Replaced",
    "Uncompiled",
    "compiled_code",
    "frames_compiled",
    "opaque",
    "step_aside",
    "step_back",
    "without_graphs_of_inductor",
]


_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Local(threading.local):
    inside: Uncompiled | None = None
    without_graphs = False


_local = _Local()


class Replaced:
    """An attribute of one of torch's modules, or of a class in it, while it has users.

    Args:
        module: a module; while that is not loaded, or has no such thing, nothing is replaced.
        path: where in it.
        ours: what takes its place.

    Attributes:
        original: what was there.
    """

    def __init__(self, module: str, path: str, ours: Any) -> None:
        self.original: Any = None
        self._module, (*self._owner, self._name) = module, path.split(".")
        self._ours = ours
        self._users = 0
        self._lock = threading.RLock()  # the garbage collector may bring us here again

    def enter(self) -> None:
        """One user more; also looks again for what was not there before."""
        with self._lock:
            self._users += 1
            owner = self._found()
            if owner is not None and vars(owner)[self._name] is not self._ours:
                self.original = vars(owner)[self._name]
                setattr(owner, self._name, self._ours)

    def leave(self) -> None:
        """One user less; the last one puts back what was there."""
        with self._lock:
            self._users -= 1
            owner = self._found()
            if owner is not None and vars(owner)[self._name] is self._ours and not self._users:
                setattr(owner, self._name, self.original)

    def _found(self) -> Any:
        owner: Any = sys.modules.get(self._module)
        for name in self._owner:
            owner = None if owner is None else getattr(owner, name, None)
        return owner if owner is not None and self._name in vars(owner) else None


class _Stance:
    """Stands for what ``torch.compiler.set_stance`` has set, which is the same for all threads.

    Compiled functions ask it at each call. Threads that are inside of :class:`Uncompiled`, or under
    a dispatch mode, are told ``"force_eager"``: then Dynamo does not look at the call.
    """

    @property
    def stance(self) -> Any:
        if _local.inside is not None or torch._C._len_torch_dispatch_stack():
            return "force_eager"
        return _stance.original.stance

    @property
    def skip_guard_eval_unsafe(self) -> Any:
        # Asked where something that is to be compiled is called, and nowhere else.
        if _local.inside is not None:
            _local.inside.asked = True
        return _stance.original.skip_guard_eval_unsafe

    def __getattr__(self, name: str) -> Any:
        return getattr(_stance.original, name)


_stance = Replaced("torch._dynamo.eval_frame", "_stance", _Stance())

step_aside, step_back = _stance.enter, _stance.leave
"""For who pushes a dispatch mode that another thread may have to remove."""


class Uncompiled:
    """Inside, this thread runs what is to be compiled as it is, and Dynamo does not notice.

    Attributes:
        asked: whether something was called meanwhile that is to be compiled.
    """

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Uncompiled:
        self._outer, _local.inside = _local.inside, self
        _stance.enter()
        # The frames of a caller that is being compiled itself would be looked at.
        self._looking = "torch._dynamo.eval_frame" in sys.modules
        if self._looking:
            self._callback = torch._C._dynamo.eval_frame.set_eval_frame(None)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._looking:
            torch._C._dynamo.eval_frame.set_eval_frame(self._callback)
        _stance.leave()
        _local.inside = self._outer
        if self._outer is not None:
            self._outer.asked |= self.asked


def _run(manager: Any, new_inputs: Any, function_id: Any) -> Any:
    if _local.without_graphs:
        return manager.ids_to_funcs[function_id].model(new_inputs)
    return _trees.original(manager, new_inputs, function_id)


_trees = Replaced("torch._inductor.cudagraph_trees", "CUDAGraphTreeManager._run", _run)


@contextmanager
def without_graphs_of_inductor() -> Iterator[None]:
    """In this thread, what Inductor compiled runs without the graphs that it makes of it."""
    before, _local.without_graphs = _local.without_graphs, True
    _trees.enter()
    try:
        yield
    finally:
        _trees.leave()
        _local.without_graphs = before


def opaque(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Mark a function: Dynamo breaks the graph at calls of it, and looks at nothing in there."""
    frames: Any = torch._C._dynamo.eval_frame
    marked: Any = function
    marked._torchdynamo_disable = True
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(marked.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def frames_compiled() -> int:
    """How many frames Dynamo has looked at in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(sum(dynamo.counters["frames"].values()))


def compiled_code() -> list[object]:
    """All code that Dynamo made and that is alive. Holding it keeps its kernels and constants.

    Otherwise ``torch.compiler.reset()`` frees what a graph uses.
    """
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    alive = [] if dynamo is None else [code() for code in dynamo.output_codes.seen]
    return [code for code in alive if code is not None]
