"""What a function may ask a tensor for beside its data, and what that has to do with a graph.

A static input has the shape and the data of its argument, but not its place: its address, the rest
of its storage, what it is a view of, how often it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from ..device.capture_rules import HOST_READ_FUNCTIONS
from ..interpose.source import asked_by_the_user

__all__ = [
    "ARRAYS",
    "ASKED",
    "BESIDE_LOOK",
    "GRADS",
    "POINTERS",
    "REBINDS",
    "TELLS_APART",
    "TENSORS_OF_ARRAYS",
    "Dependence",
    "of_argument",
    "of_outside",
]

Dependence: TypeAlias = Literal["layout", "views", "place", "sharing"]
"""The property of an argument that a call depends on: its strides (``layout``), whether a view is
possible (``views``), or its place in its storage (``place``), which a static input does not
share."""


def _is_host_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _requires_grad(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad


class _Question(NamedTuple):
    """A question about an argument; ``matters`` says of which tensors the answer may differ."""

    how: Dependence
    what: str
    matters: Callable[[torch.Tensor], bool] = lambda tensor: True


def _attribute(name: str) -> Any:
    return vars(torch._C.TensorBase)[name]


_DATA_PTR: Any = torch.Tensor.data_ptr
_EXPORTS: dict[object, str] = {torch.Tensor.__dlpack__: "Tensor.__dlpack__()"}
_VERSION: Any = _attribute("_version").__get__
_GRAD, _DATA = _attribute("grad"), _attribute("data")

POINTERS: dict[object, str] = {
    _DATA_PTR: "Tensor.data_ptr()",
    torch.Tensor.__cuda_array_interface__.__get__: "Tensor.__cuda_array_interface__",
    torch.Tensor.untyped_storage: "Tensor.untyped_storage()",
    torch.Tensor.storage: "Tensor.storage()",
    **_EXPORTS,
}
"""Calls that give the address of a tensor away."""

_MAKE_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)
ARRAYS = {call: HOST_READ_FUNCTIONS[call] for call in _MAKE_ARRAYS}
"""Calls that give an array on the memory of a tensor."""

TENSORS_OF_ARRAYS: dict[object, str] = {
    torch.as_tensor: "torch.as_tensor()",
    torch.asarray: "torch.asarray()",
    torch.from_numpy: "torch.from_numpy()",
}
"""Calls that make a tensor on the memory of an array."""

GRADS = frozenset({_GRAD.__get__, _attribute("_grad").__get__})
"""Calls that give the gradient that a tensor holds."""

REBINDS: dict[object, tuple[bool, str]] = {
    _GRAD.__set__: (True, "Tensor.grad = ..."),
    _attribute("_grad").__set__: (True, "Tensor._grad = ..."),
    torch.Tensor.share_memory_: (True, "Tensor.share_memory_()"),
    _DATA.__set__: (False, "Tensor.data = ..."),
    torch.Tensor.register_hook: (True, "Tensor.register_hook()"),
    torch.Tensor.register_post_accumulate_grad_hook: (
        True,
        "Tensor.register_post_accumulate_grad_hook()",
    ),
}
"""Calls that bind something of a tensor anew: whether always, or only if the tensor lives on."""

_LAYOUT: dict[object, _Question] = {
    torch.Tensor.stride: _Question("layout", "Tensor.stride()"),
    torch.Tensor.is_contiguous: _Question("layout", "Tensor.is_contiguous()"),
    torch.Tensor.dim_order: _Question("layout", "Tensor.dim_order()"),
    _DATA_PTR: _Question("layout", "Tensor.data_ptr()"),
    torch.Tensor.untyped_storage: _Question("place", "Tensor.untyped_storage()"),
    torch.Tensor.storage: _Question("place", "Tensor.storage()"),
    torch.Tensor.contiguous: _Question("views", "Tensor.contiguous()"),
    torch.Tensor.ravel: _Question("views", "Tensor.ravel()"),
    torch.ravel: _Question("views", "torch.ravel()"),
    torch.Tensor.view: _Question("views", "Tensor.view()"),
    torch.Tensor.view_as: _Question("views", "Tensor.view_as()"),
    torch.Tensor.unflatten: _Question("views", "Tensor.unflatten()"),
    torch.unflatten: _Question("views", "torch.unflatten()"),
    torch.view_as_real: _Question("views", "torch.view_as_real()"),
    torch.view_as_complex: _Question("views", "torch.view_as_complex()"),
    # Copies of tensors that share memory share it as well.
    torch.Tensor.__deepcopy__: _Question("sharing", "Tensor.__deepcopy__()"),
    torch.Tensor.storage_offset: _Question("place", "Tensor.storage_offset()"),
    torch.Tensor.is_inference: _Question("place", "Tensor.is_inference()"),
    torch.is_inference: _Question("place", "torch.is_inference()"),
    _attribute("_cdata").__get__: _Question("place", "Tensor._cdata"),
    torch.Tensor.is_set_to: _Question("place", "Tensor.is_set_to()"),
    torch.Tensor.is_shared: _Question("place", "Tensor.is_shared()", _is_host_memory),
    torch.Tensor.is_pinned: _Question("place", "Tensor.is_pinned()", _is_host_memory),
    torch.Tensor._is_view: _Question("place", "Tensor._is_view()"),
    _attribute("_base").__get__: _Question("place", "Tensor._base"),
    _VERSION: _Question("place", "Tensor._version"),
    _attribute("is_leaf").__get__: _Question("place", "Tensor.is_leaf", _requires_grad),
    _attribute("grad_fn").__get__: _Question("place", "Tensor.grad_fn", _requires_grad),
    **{call: _Question("place", "Tensor.grad") for call in GRADS},
    **{call: _Question("place", what, _is_host_memory) for call, what in _EXPORTS.items()},
}

_FROM = "of a tensor from outside"

BESIDE_LOOK = frozenset(
    {
        *REBINDS,
        *(
            call
            for call, question in _LAYOUT.items()
            if question.how == "place"
            and question.what.rpartition(".")[2] not in ("storage_offset()", "is_inference()")
        ),
        *POINTERS,
        *GRADS,
    }
)
"""Those whose answer may differ between tensors of the same shape, strides and kind."""

TELLS_APART = frozenset(
    (
        torch.Tensor._is_view,
        torch.Tensor.is_set_to,
        torch.Tensor.is_conj,
        torch.Tensor.is_neg,
        torch.Tensor.storage_offset,
        *(_attribute(name).__get__ for name in ("_base", "_version", "is_leaf")),
    )
)
"""Calls that tell a tensor from another one with the same data, dtype, shape and strides."""

ASKED = frozenset({*REBINDS, *_LAYOUT})
"""All calls that ask a tensor for something beside its data, or bind that anew."""


def of_argument(func: object, tensor: torch.Tensor) -> tuple[Dependence, str] | None:
    """What a call asks an argument for that its static input may answer in another way."""
    question = _LAYOUT.get(func)
    if question is None or not question.matters(tensor):
        return None
    # A library hands the address on to a kernel; other code may act upon it.
    if func is _DATA_PTR and asked_by_the_user():
        return "place", question.what
    return question.how, question.what


def of_outside(func: object, tensor: torch.Tensor) -> tuple[str, str, str] | None:
    """What a call asks a tensor from outside for that no guard watches: rule, name, why."""
    if func == _VERSION:
        return ("outside-read", f"Tensor._version {_FROM}", "") if asked_by_the_user(True) else None
    if not _is_host_memory(tensor):
        return None
    if func is torch.Tensor.is_shared:
        return "outside-read", f"Tensor.is_shared() {_FROM}", ""
    if func in _EXPORTS or (func is _DATA_PTR and asked_by_the_user()):
        return "side-effect", f"{POINTERS[func]} {_FROM}", "Whoever has it may write there."
    return None
