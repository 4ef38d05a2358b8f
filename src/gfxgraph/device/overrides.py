"""Function modes of ours, which eager execution does not have, and hiding them from torch.

``torch.nn`` takes its fast paths (fused encoder layers, nested tensors where there is padding)
only where ``torch.overrides.has_torch_function`` says that nobody overrides torch's functions. A
function mode overrides all of them, so a run that we watch would be another program.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode

from ..dynamo import Replaced

__all__ = ["HiddenFunctionMode", "hide_modes", "show_modes"]


class HiddenFunctionMode(TorchFunctionMode):
    """A function mode that torch's own code does not notice between the two functions below."""


_original = overrides.has_torch_function


def _has_torch_function(args: Any) -> bool:
    found: bool = _original(args)
    return found and (
        any(map(_has_own, args))
        or not all(
            isinstance(torch._C._get_function_stack_at(n), HiddenFunctionMode)
            for n in range(torch._C._len_torch_function_stack())
        )
    )


def _has_own(value: object) -> bool:
    cls, disabled = type(value), torch._C._disabled_torch_function_impl
    known = cls is torch.Tensor or cls is torch.nn.Parameter
    return not known and getattr(cls, "__torch_function__", disabled) is not disabled


_replaced = Replaced("torch.overrides", "has_torch_function", _has_torch_function)
hide_modes, show_modes = _replaced.enter, _replaced.leave
