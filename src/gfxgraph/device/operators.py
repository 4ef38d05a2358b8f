"""Reads from its schema how an operator treats its arguments, and runs it below all modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _python_dispatch as dispatch_stack
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "ALLOCATIONS",
    "draws_in",
    "generator_in",
    "is_composite",
    "is_in_python",
    "is_view",
    "may_write",
    "outside_of_modes",
    "returned_argument",
    "run_composite",
    "run_in_python",
    "written_tensors",
]

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Without a look at whether the mode is one of torch's own, which is slow in Python.
_push_mode, _pop_mode = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack

# Operators of batch normalisation whose schema hides that they update the running statistics:
# argument positions of (running_mean, running_var, training).
_SILENT_WRITES = {
    "aten::native_batch_norm": (3, 4, 5),
    "aten::cudnn_batch_norm": (3, 4, 5),
    "aten::miopen_batch_norm": (3, 4, 5),
    "aten::_batch_norm_impl_index": (3, 4, 5),
    "aten::batch_norm": (3, 4, 5),
}


ALLOCATIONS = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    )
)
"""Operators whose result is memory that nobody has written."""


def draws_in(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call of ``op`` takes random numbers from a generator.

    The tags of attention and of recurrent layers say that it may, whatever their dropout. Without
    any, and out of training, it does not.
    """
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    if op.namespace != "aten":  # nobody knows what another library means by a name
        return True
    for position, name, default in _switches(op):
        given = args[position] if position < len(args) else kwargs.get(name, default)
        if given is not None and given == 0:
            return False
    return True


def generator_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator that an operator is given: by name or, as ``poisson`` is, by position."""
    for item in (*kwargs.values(), *args):
        if isinstance(item, torch._C.Generator):
            return item
    return None


@cache
def _switches(op: OpOverload) -> list[tuple[int, str, Any]]:
    """Position, name and default of the arguments without which ``op`` draws nothing."""
    return [
        (position, argument.name, argument.default_value)
        for position, argument in enumerate(op._schema.arguments)
        if argument.name in ("dropout_p", "dropout", "train", "training")
    ]


def is_in_python(op: Any) -> bool:
    """Whether ``op`` is one of the program's that :mod:`torch.library` runs in Python."""
    if not isinstance(op, OpOverload) or op.namespace in _OF_TORCH:
        return False
    made: Any = vars(torch.library).get("_impls", ())  # "library/operator/kind of device"
    name = op._schema.name.replace("::", "/")
    return any(
        f"{way}/{key}" in made for way in (name, f"{name}.{op._overloadname}") for key in _BACKENDS
    )


def run_in_python(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    mode: TorchDispatchMode,
) -> Any:
    """Run an operator that :func:`is_in_python`, with ``mode`` on what it calls.

    ``tensors``: those among the arguments. Of a subclass, which has a say in it, ``mode`` sees
    nothing.
    """
    key = _KERNELS.get(tensors[0].device.type) if tensors else None
    if key is None or any(type(tensor) not in _PLAIN for tensor in tensors):
        return op(*args, **kwargs)
    with mode:
        return op.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_KERNELS = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}
_OF_TORCH = frozenset({"aten", "prims", "prim", "inductor", "c10d", "_c10d_functional", "fsdp"})
_BACKENDS = ("CPU", "CUDA", "CompositeExplicitAutograd")


@cache
def _written_arguments(op: OpOverload) -> tuple[tuple[int, str], ...]:
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def is_view(op: OpOverload) -> bool:
    """Whether ``op`` only makes new views of its arguments, and so touches no data."""
    returns = op._schema.returns
    return (
        bool(returns)
        and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        and not _written_arguments(op)
    )


@cache
def is_composite(op: OpOverload) -> bool:
    """Whether torch takes ``op`` to pieces; in inference mode modes get it in one piece."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op._name, "CompositeImplicitAutograd")


def run_composite(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], mode: TorchDispatchMode
) -> Any:
    """Take ``op`` to pieces as eager execution does; the pieces reach ``mode``, which met ``op``.

    ``op.decompose`` would take a decomposition in Python where there is one. Those are slower, and
    run other operators: an LSTM in single steps instead of the one that cuDNN runs.
    """
    _push_mode(mode)
    try:
        return op._op_dk(_COMPOSITE, *args, **kwargs)
    finally:
        _pop_mode(None)


@cache
def may_write(op: OpOverload) -> bool:
    """Whether there are arguments for which :func:`written_tensors` gives tensors."""
    return bool(_written_arguments(op)) or op._schema.name in _SILENT_WRITES


def written_tensors(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """The tensors among the arguments that ``op`` writes to."""
    for position, name in _written_arguments(op):
        value = args[position] if position < len(args) else kwargs.get(name)
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (v for v in value if isinstance(v, torch.Tensor))
    silent = _SILENT_WRITES.get(op._schema.name)
    if silent and len(args) > silent[2] and args[silent[2]]:
        yield from (args[p] for p in silent[:2] if isinstance(args[p], torch.Tensor))


@cache
def _returned_arguments(op: OpOverload) -> tuple[tuple[int, str] | None, ...]:
    def source(alias_info: Any) -> tuple[int, str] | None:
        if alias_info is None or not alias_info.is_write:
            return None
        for position, argument in enumerate(op._schema.arguments):
            if argument.alias_info and argument.alias_info.before_set & alias_info.before_set:
                return position, argument.name
        return None

    return tuple(source(r.alias_info) for r in op._schema.returns)


def returned_argument(
    op: OpOverload, result: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The argument that ``op`` writes to and returns as result number ``result``, if any."""
    source = _returned_arguments(op)[result]
    if source is None:
        return None
    position, name = source
    return args[position] if position < len(args) else kwargs.get(name)


@contextmanager
def outside_of_modes() -> Iterator[None]:
    """Run on plain tensors: no mode sees it, autograd takes no part, and writes are silent."""
    with (
        dispatch_stack._disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch._C._AutoDispatchBelowADInplaceOrView(),
    ):
        yield
