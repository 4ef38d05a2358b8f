"""Storages of the tensors of the emulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..device.operators import outside_of_modes
from ..errors import DeviceError
from .tensor import DEVICE, SimulatedTensor, inside

__all__ = [
    "DeviceStorage",
    "copy_storage",
    "new_storage",
    "refuse_to_share",
    "set_storage",
    "share_with_torch",
]

_Base: Any = torch.storage._StorageBase
_OTHER = (
    'Attempted to set the storage of a tensor on device "{}" to a storage on different device '
    '"{}".  This is no longer allowed; the devices must match.'
)


class DeviceStorage(_Base):  # type: ignore[misc]
    """Stands for an ``UntypedStorage`` of the device.

    What reads or writes its data does so in operations on its bytes, so that a capture records or
    refuses it. The rest is that of the storage in host memory.

    Args:
        size: bytes of a new one.
        device: the device.
        of: the storage that has the data; in place of ``size``.
    """

    device = DEVICE
    is_cuda = True

    def __init__(
        self, size: int = 0, *, device: Any = None, of: torch.UntypedStorage | None = None
    ) -> None:
        if of is None:
            made = torch.empty(size, dtype=torch.uint8, device=DEVICE)
            of = inside(made).untyped_storage()
        self.inside = of

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return torch.UntypedStorage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)

    @property
    def _cdata(self) -> int:
        return int(self.inside._cdata)

    @property
    def bytes(self) -> torch.Tensor:
        """Its memory as a tensor of the device."""
        with outside_of_modes():
            return SimulatedTensor(_bytes_of(self.inside))

    def __len__(self) -> int:
        return self.inside.nbytes()

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return DeviceStorage(of=self.inside[at])
        return self.bytes[at].item()

    def __setitem__(self, at: Any, value: Any) -> None:
        self.bytes[at] = value

    def __eq__(self, other: object) -> bool:
        return type(other) is DeviceStorage and other._cdata == self._cdata

    def __hash__(self) -> int:
        return hash(self._cdata)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.cpu().__reduce_ex__(protocol)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + len(self)

    def fill_(self, value: Any) -> DeviceStorage:
        """Set all bytes."""
        self.bytes.fill_(value)
        return self

    def copy_(self, source: Any, non_blocking: bool | None = None) -> DeviceStorage:
        """Copy the bytes of ``source``, a storage of the host or of the device."""
        self.bytes.copy_(_as_bytes(source), non_blocking=bool(non_blocking))
        return self

    def clone(self) -> DeviceStorage:
        """A copy on the device."""
        made = self.bytes.clone()
        with outside_of_modes():
            return DeviceStorage(of=inside(made).untyped_storage())

    def cpu(self) -> Any:
        """A copy on the host."""
        return self.bytes.cpu().untyped_storage()

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:
        """It, or a copy on the host."""
        if torch.device(device).type == "cuda":
            return self
        return self.bytes.to(device, non_blocking=non_blocking).untyped_storage()

    def tolist(self) -> list[int]:
        """Its bytes."""
        return list(self.bytes.tolist())

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def nbytes(self) -> int:
        """Its size."""
        return self.inside.nbytes()

    size = nbytes

    def element_size(self) -> int:
        """1."""
        return 1

    def data_ptr(self) -> int:
        """The address."""
        return self.inside.data_ptr()

    def resize_(self, size: int) -> DeviceStorage:
        """Change its size."""
        self.inside.resize_(size)
        return self

    def resizable(self) -> bool:
        """Whether :meth:`resize_` is possible."""
        return self.inside.resizable()

    def new(self) -> DeviceStorage:
        """An empty one."""
        return DeviceStorage()

    def is_shared(self) -> bool:
        """As torch says of all memory of a device."""
        return True

    def share_memory_(self) -> DeviceStorage:
        """Nothing to do."""
        return self

    def is_pinned(self, device: Any = "cuda") -> bool:
        """Memory of the host may be."""
        return False

    def pin_memory(self, device: Any = "cuda") -> Any:
        """Refuse, as torch does.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"cannot pin 'torch.storage.UntypedStorage' on {DEVICE}")

    def _weak_ref(self) -> Any:
        return self.inside._weak_ref()

    def _unsupported(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("The emulated device cannot share memory with other processes.")

    _share_cuda_ = _share_fd_cpu_ = _share_filename_cpu_ = _unsupported


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _as_bytes(storage: Any) -> torch.Tensor:
    found = getattr(storage, "_untyped_storage", storage)
    if type(found) is DeviceStorage:
        return found.bytes
    with outside_of_modes():
        return _bytes_of(found)


def new_storage(original: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.UntypedStorage(size, device="cuda")``, which torch's C++ would make."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "cuda":
        return original(cls, *args, **kwargs)
    given = args[0] if args else kwargs.get("size", 0)
    if isinstance(given, int):
        return DeviceStorage(given)
    values = torch.tensor(list(given), dtype=torch.uint8)
    return DeviceStorage(len(values)).copy_(values.untyped_storage())


def copy_storage(original: Callable[..., Any], to: Any, source: Any, *args: Any, **kw: Any) -> Any:
    """``copy_`` of a storage of the host."""
    if type(source) is not DeviceStorage:
        return original(to, source, *args, **kw)
    _as_bytes(to).copy_(source.bytes)
    return to


def set_storage(
    original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """``Tensor.set_``: storages must be on the device of the tensor."""
    source: Any = args[0] if args else kwargs.get("source")
    storage: Any = getattr(source, "_untyped_storage", source)
    is_ours = type(storage) is DeviceStorage
    if not (is_ours or isinstance(storage, torch.UntypedStorage)):
        return original(tensor, *args, **kwargs)
    here = isinstance(tensor, SimulatedTensor)
    if here != is_ours:
        raise RuntimeError(_OTHER.format(tensor.device, storage.device))
    given = storage.inside if is_ours else storage
    kwargs.pop("source", None)
    if not args[1:] and not kwargs:
        return original(tensor, given, 0, (given.nbytes() // tensor.element_size(),), (1,))
    return original(tensor, given, *args[1:], **kwargs)


def share_with_torch(
    original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """``torch.from_dlpack``: a tensor on the same memory, or a copy of it."""
    if not isinstance(tensor, SimulatedTensor):
        found: torch.Tensor = original(tensor, *args, **kwargs)
        return found
    shared = tensor.detach()
    if kwargs.get("device") is not None:
        shared = shared.to(kwargs["device"])
    return shared.clone() if kwargs.get("copy") else shared


def refuse_to_share(original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.__dlpack__``.

    Raises:
        DeviceError: for a tensor of the emulated device.
    """
    if not isinstance(tensor, SimulatedTensor):
        return original(tensor, *args, **kwargs)
    raise DeviceError(
        "Memory of the emulated device cannot be given to other libraries (DLPack): they would "
        "take it for that of a GPU. Use tensor.cpu()."
    )
