"""Which tensors from outside a captured graph reads, and whether they are still there."""

from __future__ import annotations

from collections.abc import Callable

from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import DeadTensorError
from ..record.effects import OutsideTensors

__all__ = ["InputLiveness"]


class InputLiveness:
    """Weak references to what a capture reads from outside; custom kernels are not seen."""

    def __init__(self) -> None:
        self._seen = OutsideTensors()
        self._held: list[tuple[str, StorageWeakRef, int]] = []

    def start(self) -> None:
        """Watch this thread from now on."""
        self._seen.__enter__()

    def stop(self, in_pool: Callable[[int], bool]) -> None:
        """Watch no longer, and let go of the tensors.

        Args:
            in_pool: says of an address whether it belongs to the graph's own memory pool, which
                holds its memory whether or not a tensor does.
        """
        self._seen.__exit__(None, None, None)
        for tensor in self._seen.found.values():
            name = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if not in_pool(address):
                self._held.append((name, StorageWeakRef(storage), address))
        self._seen = OutsideTensors()

    def freed(self) -> list[str]:
        """Those that are gone: dtype, shape and address of each."""
        return [f"{name} at {address:#x}" for name, ref, address in self._held if ref.expired()]

    def check(self) -> None:
        """Raise if one of them is gone.

        Raises:
            DeadTensorError: its memory may hold something else by now.
        """
        gone = self.freed()
        if gone:
            raise DeadTensorError(
                f"the graph reads {len(gone)} tensor(s) that were freed after the capture: "
                f"{'; '.join(gone[:5])}. Keep every tensor that a captured function uses alive as "
                "long as the graph, or capture again."
            )
