"""How functions that the user has compiled are run for a recording and for a capture.

**Under a dispatch mode** Dynamo does not run what it compiled. It also marks the code object to be
skipped, for good: from then on everybody who calls the function gets it uncompiled, without a word
(``CatchErrorsWrapper`` of ``torch._dynamo.convert_frame`` returns the default
``ConvertFrameReturn``, which applies to the code; measured with torch 2.11 and 2.13). So a run
under a mode of ours is hidden from Dynamo: :class:`Uncompiled`.

**In a capture** what Inductor compiled can be recorded, but not the graphs that it makes of it
(``mode="reduce-overhead"``, ``"max-autotune"``), which are replayed:
:func:`without_graphs_of_inductor`.

Both replace one attribute of torch while somebody is inside, read in torch 2.8 to 2.15.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from .modules import loaded
from .opaque import opaque
from .patch import Claim, find, intercept, substitute

__all__ = [
    "Uncompiled",
    "compiled_code",
    "frames_compiled",
    "opaque",
    "step_aside",
    "step_back",
    "without_graphs_of_inductor",
]


class _Local(threading.local):
    inside: Uncompiled | None = None


_local = _Local()


class _Stance:
    """Stands for what ``torch.compiler.set_stance`` has set, which is the same for all threads.

    Compiled functions ask it at each call. Threads that are inside of :class:`Uncompiled`, or under
    a dispatch mode, are told ``"force_eager"``: then Dynamo does not look at the call.
    """

    original: Any = None

    @property
    def stance(self) -> Any:
        if _local.inside is not None or torch._C._len_torch_dispatch_stack():
            return "force_eager"
        return self.original.stance

    @property
    def skip_guard_eval_unsafe(self) -> Any:
        # Asked where something that is to be compiled is called, and nowhere else.
        if _local.inside is not None:
            _local.inside.asked = True
        return self.original.skip_guard_eval_unsafe

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


_stance = _Stance()
_aside: list[Claim | None] = []


def step_aside() -> None:
    """Let Dynamo look at nothing under a dispatch mode, until :func:`step_back` is called as often.

    For who pushes a mode that another thread may have to remove.
    """
    place = find("torch._dynamo.eval_frame:_stance")
    if place is None:  # not loaded: nothing is compiled so far
        _aside.append(None)
    else:
        claim = substitute(*place, _stance, everywhere=True)
        _stance.original = claim.original
        _aside.insert(0, claim)


def step_back() -> None:
    """Take one :func:`step_aside` back."""
    claim = _aside.pop()
    if claim is not None:
        claim.undo()


class Uncompiled:
    """Inside, this thread runs what is to be compiled as it is, and Dynamo does not notice.

    Attributes:
        asked: whether something was called meanwhile that is to be compiled.
    """

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Uncompiled:
        self._outer, _local.inside = _local.inside, self
        step_aside()
        # The frames of a caller that is being compiled itself would be looked at.
        self._looking = loaded("torch._dynamo.eval_frame") is not None
        if self._looking:
            self._callback = torch._C._dynamo.eval_frame.set_eval_frame(None)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._looking:
            torch._C._dynamo.eval_frame.set_eval_frame(self._callback)
        step_back()
        _local.inside = self._outer
        if self._outer is not None:
            self._outer.asked |= self.asked


def _without_graph(run: Any, manager: Any, new_inputs: Any, function_id: Any) -> Any:
    return manager.ids_to_funcs[function_id].model(new_inputs)


@contextmanager
def without_graphs_of_inductor() -> Iterator[None]:
    """In this thread, what Inductor compiled runs without the graphs that it makes of it."""
    place = find("torch._inductor.cudagraph_trees:CUDAGraphTreeManager._run")
    with nullcontext() if place is None else intercept(*place, _without_graph):
        yield


def frames_compiled() -> int:
    """How many frames Dynamo has looked at in this process."""
    dynamo = loaded("torch._dynamo.utils")
    return 0 if dynamo is None else int(sum(dynamo.counters["frames"].values()))


def compiled_code() -> list[object]:
    """All code that Dynamo made and that is alive. Holding it keeps its kernels and constants.

    Otherwise ``torch.compiler.reset()`` frees what a graph uses.
    """
    dynamo = loaded("torch._dynamo.convert_frame")
    alive = [] if dynamo is None else [code() for code in dynamo.output_codes.seen]
    return [code for code in alive if code is not None]
