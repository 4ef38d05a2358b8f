"""Tensors of the device that are also of a class of the program, such as one of parameters.

A tensor of ``class P(nn.Parameter)`` on the device is of a class made here, which derives from
``P`` and from :class:`SimulatedTensor`. So it has the methods of both, those of ``P`` first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..errors import DeviceError
from .tensor import SimulatedTensor, attributes_of

__all__ = ["device_tensor", "make_parameter", "make_subclass", "swapped", "use_subclass"]

_FUNCTION = "__torch_function__"
_PLAIN = (torch.Tensor, torch.nn.Parameter, SimulatedTensor)


def device_tensor(cls: type, inner: torch.Tensor, requires_grad: bool = False) -> SimulatedTensor:
    """A tensor of the device that is a ``cls``, a class of tensors of the host."""
    if cls in _PLAIN:
        tensor = SimulatedTensor(inner, requires_grad)
        if cls is torch.nn.Parameter:
            tensor._is_param = True
        return tensor
    return SimulatedTensor.__new__(_on_device(cls), inner, requires_grad)


@functools.cache
def _on_device(cls: Any) -> Any:
    if issubclass(cls, SimulatedTensor):
        return cls

    def call(_: Any, *args: Any, **kwargs: Any) -> Any:
        return cls(*args, **kwargs)  # as in type(tensor)(data)

    kind = type(f"{type(cls).__name__}OnDevice", (type(cls),), {"__call__": call})
    names: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "host_class": cls,
        "__reduce_ex__": SimulatedTensor.__reduce_ex__,
    }
    if hasattr(cls, "cls_to_become"):
        names["__class__"] = property(type, _become)
    made: Any = kind(cls.__name__, (cls, SimulatedTensor), names)
    # That of torch's tensors keeps the class, and that of its parameters does not. Set afterwards:
    # torch disables it in a new class with a __torch_dispatch__.
    made.__torch_function__ = next(vars(c)[_FUNCTION] for c in cls.__mro__ if _FUNCTION in vars(c))
    return made


def _become(tensor: SimulatedTensor, cls: type) -> None:
    """``tensor.__class__ = cls``, as lazy parameters do when their shape is known."""
    plain = cls in _PLAIN
    _set_class(tensor, SimulatedTensor if plain else _on_device(cls))
    if cls is torch.nn.Parameter:
        tensor._is_param = True


_set_class: Any = vars(object)["__class__"].__set__


def make_parameter(
    original: Callable[..., Any], cls: Any, data: Any = None, requires_grad: bool = True
) -> Any:
    """``nn.Parameter.__new__``, which gives up the class for tensors that are not torch's own."""
    if type(data) is SimulatedTensor and cls is not torch.nn.Parameter:
        return device_tensor(cls, data.detach().inside, requires_grad)  # type: ignore[attr-defined]
    return original(cls, data, requires_grad)


def make_subclass(
    original: Callable[..., Any], cls: Any, data: Any, require_grad: bool = False, **kwargs: Any
) -> Any:
    """``Tensor._make_subclass``."""
    if isinstance(data, SimulatedTensor):
        return device_tensor(cls, data.detach().inside, require_grad)  # type: ignore[attr-defined]
    return original(cls, data, require_grad, **kwargs)


def use_subclass(original: Callable[..., Any], tensor: Any, cls: Any) -> Any:
    """``Tensor.as_subclass``."""
    if not isinstance(tensor, SimulatedTensor):
        return original(tensor, cls)
    if cls is torch.Tensor:
        cls = SimulatedTensor
    return device_tensor(cls, tensor.inside, tensor.requires_grad)


def swapped(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    """Move ``tensor`` to the device of ``data``, or back; whether that was to be done.

    A tensor whose data alone is put on the device is not one of ours for C++.
    """
    if isinstance(tensor, SimulatedTensor) == isinstance(data, SimulatedTensor):
        return False
    new: torch.Tensor
    if isinstance(data, SimulatedTensor):
        new = device_tensor(type(tensor), data.inside, tensor.requires_grad)
        new.__dict__.update(vars(tensor))
    else:
        held = SimulatedTensor.__new__(type(tensor), data.detach(), tensor.requires_grad)
        held.__dict__.update(attributes_of(tensor))
        new = held.to_host()
        del held
    try:
        torch.utils.swap_tensors(tensor, new)
    except RuntimeError as error:
        raise DeviceError(
            "The data of this tensor cannot be moved between the host and the emulated device: "
            f"something else refers to it, such as TorchScript, a view or an optimizer ({error}). "
            "Move it before that, or make a new tensor with .to()."
        ) from error
    return True
