"""Marks functions of ours that Dynamo must not look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

__all__ = ["opaque"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def opaque(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Mark a function: Dynamo breaks the graph at calls of it, and does not trace into it."""
    frames: Any = torch._C._dynamo.eval_frame
    marked: Any = function
    marked._torchdynamo_disable = True
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(marked.__code__, frames._FrameExecStrategy(skip, skip))
    return function
