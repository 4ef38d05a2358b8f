"""Runs code that says ``device="cuda"`` without using a GPU.

A :class:`SimulatedTensor` says that it is on ``cuda:0``, also to autocast, autograd and the
composite operators of torch. It computes on a CPU tensor inside it, or on a meta tensor if only
shapes are known. Tensors are on the host or on the device as on a machine with a GPU.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import overrides

from ..device.base import empty_as
from ..device.operators import outside_of_modes
from ..errors import DeviceError

if TYPE_CHECKING:
    from .world import SimulatedCuda

__all__ = [
    "CPU",
    "DEVICE",
    "META",
    "SimulatedTensor",
    "attributes_of",
    "data_for",
    "inside",
    "local",
    "set_data",
    "shape_of",
    "storage_of",
    "text_of",
]

DEVICE = torch.device("cuda", 0)
CPU, META = torch.device("cpu"), torch.device("meta")
set_data: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def inside(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that has the data of ``tensor``."""
    return tensor.inside if isinstance(tensor, SimulatedTensor) else tensor


def storage_of(tensor: torch.Tensor) -> Any:
    """The storage of ``tensor``; for one of the device, what its world shows."""
    storage = inside(tensor).untyped_storage()
    if local.world is None or not isinstance(tensor, SimulatedTensor):
        return storage
    return local.world.storage(storage)


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that the program gave to ``tensor``, and whether it is a parameter."""
    return {name: value for name, value in vars(tensor).items() if name != "inside"}


class SimulatedTensor(torch.Tensor):
    """A tensor that says it is on ``cuda:0``.

    Attributes:
        inside: the tensor that has its data, on the CPU; or a meta tensor, which has none.
        host_class: the class that it would have on the host.
    """

    inside: torch.Tensor
    host_class: type = torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor, requires_grad: bool = False) -> SimulatedTensor:
        """Wrap ``inner`` in a tensor that says it is on the device."""
        if inner.layout is not torch.strided:
            raise DeviceError(
                f"A tensor of layout {inner.layout} cannot be on a simulated device; dense ones "
                "can (torch.strided)."
            )
        tensor: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
            requires_grad=requires_grad,
        )
        # So C++ resolves these flags before it calls us, or its kernel handles them.
        torch._C._set_conj(tensor, inner.is_conj())
        torch._C._set_neg(tensor, inner.is_neg())
        tensor.inside = inner
        if local.world is not None:
            local.world.made.append(weakref.ref(tensor))
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        from .operation import Call  # which imports this module

        return Call(func, args, kwargs or {}, local.world).run()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory of the tensor inside."""
        if overrides.has_torch_function_unary(self):
            return overrides.handle_torch_function(torch.Tensor.untyped_storage, (self,), self)
        storage: torch.UntypedStorage = storage_of(self)
        return storage

    def tolist(self) -> Any:
        """The values."""
        return self.cpu().tolist()

    def __copy__(self) -> SimulatedTensor:
        """Another tensor on the same memory."""
        with outside_of_modes():
            inner = self.inside.detach()
        again = SimulatedTensor.__new__(type(self), inner, self.requires_grad)
        again.__dict__.update(attributes_of(self))
        return again

    def __deepcopy__(self, memo: dict[Any, Any]) -> SimulatedTensor:
        """A copy; tensors that share memory still do where ``memo`` is the same."""
        if id(self) in memo:
            found: SimulatedTensor = memo[id(self)]
            return found
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        inner = self.inside
        if inner.is_meta:
            inner = inner.clone()
        else:
            from .storages import DeviceStorage  # which imports this module

            with outside_of_modes():
                storage: Any = DeviceStorage(of=inner.untyped_storage())
            storage = copy.deepcopy(storage, memo)
            with outside_of_modes():
                place = inner.storage_offset(), inner.size(), inner.stride()
                inner = torch.empty(0, dtype=inner.dtype, device=CPU).set_(storage.inside, *place)
                inner = inner.conj() if self.is_conj() else inner
                inner = torch._neg_view(inner) if self.is_neg() else inner
        again = SimulatedTensor.__new__(type(self), inner, self.requires_grad)
        again.__dict__.update(copy.deepcopy(attributes_of(self), memo))
        memo[id(self)] = again
        return again

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save it as a tensor of the host: a file must not depend on this package."""
        if local.world is not None:
            local.world.before_reading("Saving a tensor")
        return self.to_host().__reduce_ex__(protocol)

    def to_host(self) -> torch.Tensor:
        """A tensor of the host on the same memory."""
        cls: Any = self.host_class
        if isinstance(self, torch.nn.Parameter) and cls is torch.Tensor:
            cls = torch.nn.Parameter
        on_host = self.inside.detach()
        if cls is not torch.Tensor:
            on_host = torch.Tensor._make_subclass(cls, on_host)
        on_host.__dict__.update({k: v for k, v in attributes_of(self).items() if k != "_is_param"})
        return on_host.requires_grad_(self.requires_grad)

    def record_stream(self, stream: Any) -> None:
        """Do nothing: streams do not reuse its memory."""

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        if overrides.has_torch_function_unary(self):
            function: Any = torch.Tensor.__repr__
            return overrides.handle_torch_function(function, (self,), self)
        return text_of(self)


class _Local(threading.local):
    world: SimulatedCuda | None = None
    #: Gives the tensors inside of those of the device that a world finds at its beginning.
    existing: Callable[[], list[torch.Tensor]] = staticmethod(list)


local = _Local()


def text_of(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
    """``repr()`` of a :class:`SimulatedTensor`."""
    if local.world is not None:
        local.world.before_reading("Printing a tensor")
    with outside_of_modes():
        text = repr(inside(tensor))
    return f"{text[:-1].replace(', device=' + repr('meta'), '')}, device='{DEVICE}')"


def shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like ``tensor``, without data."""
    return empty_as(tensor, META)


def data_for(tensor: torch.Tensor, every_other: bool) -> torch.Tensor:
    """Zeros for a tensor that has only a shape; with ``every_other``, ones and zeros in turn."""
    if not tensor.is_meta:
        return tensor
    data = empty_as(tensor, CPU).zero_()
    if every_other and tensor.numel():
        data.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 2 == 0)
    return data
