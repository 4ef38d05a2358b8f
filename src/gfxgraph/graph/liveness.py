"""Which tensors from outside a captured graph reads, and whether they are still there."""

from __future__ import annotations

from torch.multiprocessing.reductions import StorageWeakRef

from ..errors import DeadTensorError
from ..record.effects import Effects, UndoLog

__all__ = ["InputLiveness"]


class InputLiveness:
    """Weak references to what a capture reads from outside; custom kernels are not seen."""

    def __init__(self) -> None:
        self._effects = Effects(UndoLog(), keep_values=False)
        self._held: list[tuple[str, StorageWeakRef, int]] = []

    def start(self) -> None:
        """Watch this thread from now on."""
        self._effects.__enter__()

    def stop(self) -> None:
        """Watch no longer, and let go of the tensors."""
        self._effects.__exit__(None, None, None)
        for tensor in self._effects.outside.values():
            name = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            storage = tensor.untyped_storage()
            self._held.append((name, StorageWeakRef(storage), storage.data_ptr()))
        self._effects = Effects(UndoLog(), keep_values=False)

    def check(self) -> None:
        """Raise if one of them is gone.

        Raises:
            DeadTensorError: its memory may hold something else by now.
        """
        gone = [f"{name} at {address:#x}" for name, ref, address in self._held if ref.expired()]
        if gone:
            raise DeadTensorError(
                f"the graph reads {len(gone)} tensor(s) that were freed after the capture: "
                f"{'; '.join(gone[:5])}. Keep every tensor that a captured function uses alive as "
                "long as the graph, or capture again."
            )
