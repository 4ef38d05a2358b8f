"""Runs functions that the user has compiled, for a recording and for a capture.

**Under a dispatch mode** Dynamo does not run what it compiled. It also marks the code object to be
skipped for good: every later call of the function silently runs uncompiled (``CatchErrorsWrapper``
of ``torch._dynamo.convert_frame`` returns the default ``ConvertFrameReturn``, which applies to the
code; measured with torch 2.11 and 2.13). So we hide a run under a mode of ours from Dynamo:
:class:`Uncompiled`.

**In a capture** the kernels of Inductor can be recorded, but not the CUDA graphs that it replays
(``mode="reduce-overhead"``, ``"max-autotune"``): :func:`without_graphs_of_inductor`.

Both replace one attribute of torch while somebody is inside, read in torch 2.8 to 2.15.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ..forking import in_child
from .modules import loaded
from .opaque import opaque
from .patch import Claim, find, intercept, substitute

__all__ = [
    "Uncompiled",
    "compiled_code",
    "frames_compiled",
    "hides",
    "is_compiled",
    "is_guard",
    "is_installed",
    "opaque",
    "step_aside",
    "step_back",
    "without_graphs_of_inductor",
]


class _Local(threading.local):
    inside: Uncompiled | None = None


_local = _Local()


class _Stance:
    """Stands for the stance of ``torch.compiler.set_stance``, which is the same for all threads.

    Compiled functions ask it at each call. Threads inside :class:`Uncompiled` or under a dispatch
    mode get ``"force_eager"``, with which Dynamo does not look at the call.
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
    """Keep Dynamo away from calls under a dispatch mode until the matching :func:`step_back`.

    For modes that another thread may have to remove.
    """
    place = find("torch._dynamo.eval_frame:_stance")
    if place is None:  # not loaded: nothing is compiled so far
        _aside.append(None)
    else:
        claim = substitute(*place, _stance, everywhere=True)
        _stance.original = claim.original
        _aside.insert(0, claim)


def step_back() -> None:
    """Undo one :func:`step_aside`."""
    claim = _aside.pop() if _aside else None  # none: a child of fork() has forgotten it
    if claim is not None:
        claim.undo()


def _keep_own() -> None:
    """In a child of ``fork()`` the other threads are not there to step back."""
    _aside[:] = [claim for claim in _aside if claim is not None and claim.survives_fork()]


in_child(_keep_own)


class Uncompiled:
    """Inside, this thread runs compiled functions uncompiled, and Dynamo does not notice.

    Attributes:
        asked: whether a compiled function was called inside.
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


def hides() -> Uncompiled | None:
    """What hides this run from Dynamo; ``None``: nothing does."""
    return _local.inside


@contextmanager
def without_graphs_of_inductor() -> Iterator[None]:
    """In this thread, code of Inductor runs its kernels without its own CUDA graphs."""
    place = find("torch._inductor.cudagraph_trees:CUDAGraphTreeManager._run")
    with nullcontext() if place is None else intercept(*place, _without_graph):
        yield


def frames_compiled() -> int:
    """How many frames Dynamo has looked at in this process."""
    dynamo = loaded("torch._dynamo.utils")
    return 0 if dynamo is None else int(sum(dynamo.counters["frames"].values()))


# How Dynamo names what it puts among the global variables of a module that it compiles code of:
# `unique_id` of torch._dynamo.bytecode_transformation, `install_global_by_id` and `install_resume`
# of its output_graph, `get_safe_global_name` of its utils, `import_source` of symbolic_convert.
_BY_COUNT = re.compile(
    r"__(?:compiled_fn|builtins_dict__|gen_rand_values|warnings_warn_wrapper|resume_at_\d+"
    r"|comprehension_.+_at_\d+)_\d+(?:_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})?"
)
_BY_ID = re.compile(r".*?_\d{9,}_c(?:\d+|None)")
_ENDS = frozenset("0123456789e")
_IMPORTED = "__import_"
# What it notes in the attributes of a tensor outside that it compiles code for (`mark_static_input`
# of its variables/builder.py).
_OF_TENSORS = "_dynamo_static_input_type"


def is_installed(name: str, value: Any = None) -> bool:
    """Whether Dynamo has put this into a module, where its code asks for it, or on a tensor.

    It is there once for all that was compiled, and goes with that. So no run of ours may take it
    out, or put it back.

    Args:
        name: of a global variable, or of an attribute.
        value: what it is.
    """
    if name == _OF_TENSORS:
        return True
    if name[:2] != "__" and (name[-1:] not in _ENDS or "_c" not in name):
        return False  # most names
    if name.startswith(_IMPORTED):
        is_one = name[len(_IMPORTED) :].replace("_dot_", ".") in sys.modules
    elif name.startswith("__torch_") and type(value) in _NAMED:
        # `setup_globally_cached` of its codegen: of torch, and named as that is.
        is_one = name == "__" + _NO_NAME.sub("_", f"{value.__module__}.{value.__name__}")
    else:
        is_one = bool(_BY_COUNT.fullmatch(name) or _BY_ID.fullmatch(name))
    return is_one and loaded("torch._dynamo.output_graph") is not None


def is_guard(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Whether it is code that Dynamo has made to ask for what it guards (`build_guard_function`).

    Args:
        code: of a function.
        space: its global variables: what it guards may be among those of a module of the program.
    """
    is_made = code.co_name == "guard" and code.co_filename == "<string>"
    return is_made and space.keys() <= {"G", "__builtins__"} and type(space.get("G")) is dict


def is_compiled(code: types.CodeType) -> bool:
    """Whether Dynamo or Inductor made it: its lines are not those of the function."""
    dynamo = loaded("torch._dynamo.convert_frame")
    if dynamo is not None and code in dynamo.output_codes:
        return True
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")  # Inductor sets it if nobody has
    return folder is not None and code.co_filename.startswith(folder)


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]+")


def compiled_code() -> list[object]:
    """All living code that Dynamo made. Holding it keeps its kernels and constants.

    Otherwise ``torch.compiler.reset()`` frees what a graph uses.
    """
    dynamo = loaded("torch._dynamo.convert_frame")
    alive = [] if dynamo is None else [code() for code in dynamo.output_codes.seen]
    return [code for code in alive if code is not None]
