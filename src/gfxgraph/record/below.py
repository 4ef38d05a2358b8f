"""Functions of torch that read data on the host below all modes: no operation shows that.

Their code in C++ takes the address of a tensor and reads there. All others that need a number ask
for ``item()``, which is an operation. We tried each ATen operator with data that changes.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "CALLS_BELOW",
    "NUMBERS",
    "READS_BELOW",
    "READS_ITEMS",
    "read_below",
]


def _ways(*names: str) -> dict[object, str]:
    """The functions, the methods and the operators of these names, with what messages say."""
    found: dict[object, str] = {}
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        overloads = [] if packet is None else [getattr(packet, o) for o in packet.overloads()]
        owners = (torch, torch.Tensor)
        ways = (*(getattr(owner, name, None) for owner in owners), packet, *overloads)
        found.update((way, f"torch.{name}()") for way in ways if way is not None)
    return found


#: A tensor of theirs decides what they do, as a list of numbers would.
READS_BELOW = _ways("tensor_split", "gru", "lstm", "rnn_relu", "rnn_tanh")

#: They also give what no operation has made.
CALLS_BELOW = _ways(
    "_pad_packed_sequence", "choose_qparams_optimized", "fbgemm_linear_quantize_weight"
)


#: They give a number; an operation shows it, unless older constructors call them.
NUMBERS = frozenset(
    getattr(torch.Tensor, f"__{name}__") for name in ("float", "int", "index", "complex")
)

#: They make a tensor of a list, and read the tensors in it.
READS_ITEMS: frozenset[object] = frozenset(
    (
        torch.tensor,
        torch.as_tensor,
        torch.asarray,
        torch.Tensor.new_tensor,
        torch.Tensor.new,
    )
)


def read_below(
    func: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int | str, torch.Tensor] | None:
    """The argument that a call of :data:`READS_BELOW` reads: where it is, and the tensor."""
    if "tensor_split" in READS_BELOW[func]:
        name = "tensor_indices_or_sections"
        where: int | str = 1 if len(args) > 1 else name if name in kwargs else "indices"
        found = args[1] if len(args) > 1 else kwargs.get(str(where))
    else:  # the sizes of a packed sequence; otherwise the second is a state, the third weights
        where, found = 1, args[1] if len(args) > 2 else None
        if "lstm" not in READS_BELOW[func] and found is not None:
            found = found if isinstance(args[2], torch.Tensor) else None
    if not isinstance(found, torch.Tensor) or not found.dim():
        return None
    return where, found
