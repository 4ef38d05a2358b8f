"""Tells which storages a call has written, and whether one holds what it held."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable

import torch

from ..device.overrides import WithoutModes
from ..errors import CaptureError
from . import raw

__all__ = ["Memory", "SameBytes", "checksum"]

_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
# Words of which one sum is made at a time: a few times their size is needed meanwhile.
_SUMMED = 1 << 21


class Memory:
    """The memory of ``tensors``, by storages: a write through any tensor on it is seen.

    A storage looks the same whatever lies on it: an expanded tensor, a quantized one, one of
    inference mode. Versions do not tell of what NumPy, ``.data`` and kernels of others write.

    Args:
        tensors: names and tensors, of any layout and class.

    Attributes:
        hidden: names of tensors whose memory nobody can look into, or put back.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.hidden: list[str] = []
        self._tensors = list(tensors)
        self._storages: list[list[int]] = []
        self._bytes: dict[int, tuple[str, torch.Tensor, object]] = {}
        with WithoutModes(), torch.no_grad():
            for name, tensor in self._tensors:
                storages = _storages_of(tensor)
                if storages is None:
                    self.hidden.append(name)
                self._storages.append([storage._cdata for storage in storages or ()])
                for storage in storages or ():
                    if storage._cdata not in self._bytes:
                        data = _bytes_of(storage)
                        self._bytes[storage._cdata] = name, data, checksum(data)

    def of(self, numbers: Collection[int]) -> list[torch.Tensor]:
        """The bytes of the storages that have these numbers."""
        return [data for number, (_, data, _) in self._bytes.items() if number in numbers]

    def written(self) -> dict[int, str]:
        """Numbers of the storages that were written since, each with the name of a tensor on it."""
        found = {}
        with WithoutModes(), torch.no_grad():
            for (name, tensor), before in zip(self._tensors, self._storages, strict=True):
                if [storage._cdata for storage in _storages_of(tensor) or ()] != before:
                    self.hidden.append(name)  # it lies elsewhere
            for number, (name, data, total) in self._bytes.items():
                if data.untyped_storage().nbytes() != data.numel():
                    self.hidden.append(name)  # it was resized, and cannot be put back
                elif checksum(data) != total:
                    found[number] = name
        return found


class SameBytes:
    """Whether the memory of a tensor holds what it held when this was made.

    Versions do not tell: not of writes through ``.data``, NumPy, a storage, DLPack or kernels of
    others.

    Args:
        name: of the tensor, for the error.
        tensor: all of its storages are compared.

    Attributes:
        waits: whether the answer waits for a device, as reading the values there does.

    Raises:
        CaptureError: nobody can tell what its storages are.
    """

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        with WithoutModes():
            storages = _storages_of(tensor)
            if storages is None:
                raise CaptureError(
                    f"the host reads values of {name}, a {type(tensor).__name__}, and nobody can "
                    "see whether they change. Read them outside of the function."
                )
            now = list(map(_bytes_of, storages))
            self._parts = [
                (storage, storage.data_ptr(), data, data.clone())
                for storage, data in zip(storages, now, strict=True)
            ]
        self.waits = any(data.device.type != "cpu" for data in now)
        self._texts = [
            (at, ctypes.string_at(at, saved.numel()))
            for _, at, _, saved in self._parts
            if not self.waits and saved.numel() <= _SHORT
        ]

    def hold(self) -> bool:
        """Ask."""
        if any(
            storage.data_ptr() != at or storage.nbytes() != saved.numel()
            for storage, at, _, saved in self._parts
        ):
            return False
        if len(self._texts) == len(self._parts):
            return all(ctypes.string_at(at, len(text)) == text for at, text in self._texts)
        with WithoutModes():
            return all(torch.equal(data, saved) for _, _, data, saved in self._parts)


# Bytes up to which Python compares them faster than torch does.
_SHORT = 1 << 16


def _storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage] | None:
    """The storages of a tensor: of a sparse one those of its parts, of a subclass without any those
    of the tensors that are its attributes. ``None``: nobody can tell."""
    found: list[torch.UntypedStorage] = []
    todo = [tensor]
    while todo:
        item = todo.pop()
        if item.device.type == "meta":
            continue
        if type(item).__torch_dispatch__ is not _NO_DISPATCH:
            parts = [p for p in (raw.attributes(item) or {}).values() if raw.is_a(p, torch.Tensor)]
            if not parts:
                return None
            todo += parts
        elif item.layout is torch.sparse_coo:
            todo += [item._indices(), item._values()]
        elif item.layout in (torch.sparse_csr, torch.sparse_bsr):
            todo += [item.crow_indices(), item.col_indices(), item.values()]
        elif item.layout in (torch.sparse_csc, torch.sparse_bsc):
            todo += [item.ccol_indices(), item.row_indices(), item.values()]
        elif item.layout is torch.strided:
            found.append(item.untyped_storage())
        else:
            return None
    return found


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    data = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return data.set_(storage, 0, (storage.nbytes(),), (1,))


def checksum(data: torch.Tensor) -> object:
    """A sum in which each word of ``data`` has a weight of its own: words that only move change it
    as well. Something that equals nothing where there is no room to make it.

    Args:
        data: bytes, in one dimension and one piece of memory.
    """
    try:
        return _checksum(data)
    except torch.OutOfMemoryError:
        return object()


def _checksum(data: torch.Tensor) -> object:
    whole = data.numel() // 8 * 8 if data.data_ptr() % 8 == 0 else 0
    sums = [torch.zeros((), dtype=torch.int64, device=data.device)]
    for words in (data[:whole].view(torch.int64), data[whole:]):
        for start in range(0, words.numel(), _SUMMED):
            part = words[start : start + _SUMMED]
            weights = torch.arange(start, start + part.numel(), device=data.device)
            for factor in (0x5851F42D4C957F2D, 0x14057B7EF767814F):  # odd, so that no byte is lost
                weights = (weights ^ (weights >> 29)).mul_(factor).add_(1)
            sums.append((weights.bitwise_or_(1)).mul_(part).sum())
    return data.numel(), int(torch.stack(sums).sum())
