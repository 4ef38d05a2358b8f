"""One operation on tensors of the host and of the simulated device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.utils import _python_dispatch as dispatch_stack

from ..device.base import generator_id
from ..device.operator_table import Call as TableCall
from ..device.operator_table import refusal
from ..device.operators import is_composite, is_view, outside_of_modes, written_tensors
from ..device.overrides import ThreadDispatchMode
from ..errors import DeviceError
from .cuda_kernels import KERNELS, attention
from .special import INDEX_WRITES, INDEXING, MIX, READ_ON_HOST, SECOND_ON_HOST, SPECIAL
from .tensor import CPU, META, SimulatedTensor, data_for, inside, set_data, shape_of

if TYPE_CHECKING:
    from .world import SimulatedCuda

__all__ = ["Call", "has_cpu_kernel"]


class Call:
    """One call of an operator, on tensors of the host and of the simulated device."""

    def __init__(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], world: SimulatedCuda | None
    ) -> None:
        self.op = op
        self.args = args
        self.kwargs = kwargs
        self.world = world
        self.name: str = op._schema.name if isinstance(op, OpOverload) else str(op)

    def run(self) -> Any:
        """Compute it."""
        if self.name == "aten::scaled_dot_product_attention":
            return attention(*self.args, **self.kwargs)
        if isinstance(self.op, OpOverload) and is_composite(self.op):
            return self._in_parts(self.op.decompose)
        # A graph records the parts: a replay finds no kernel for the whole.
        if self.world is not None and self.world.records and not has_cpu_kernel(self.op):
            twin = KERNELS.get(self.name) or _decomposition(self.op)
            if twin is not None:
                return self._in_parts(twin)
        with outside_of_modes():
            if self.world is not None:
                self.world.before(self)
            special = SPECIAL.get(self.name)
            result = NotImplemented if special is None else special(self, *self.args, **self.kwargs)
            return self._compute() if result is NotImplemented else result

    def other(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of another operator in the same place."""
        return Call(op, args, kwargs, self.world).run()

    def _in_parts(self, function: Callable[..., Any]) -> Any:
        """Decompose an operator that arrives whole, as in inference mode."""
        if self.world is None:
            return function(*self.args, **self.kwargs)
        dispatch_stack._push_mode(self.world.mode)
        try:
            return function(*self.args, **self.kwargs)
        finally:
            dispatch_stack._pop_mode(torch._C._TorchDispatchModeKey.FAKE)

    def _compute(self) -> Any:
        leaves, tree = pytree.tree_flatten((self.args, self.kwargs))
        ours = [v for v in leaves if isinstance(v, SimulatedTensor)]
        asked = next((v for v in leaves if isinstance(v, torch.device)), None)
        on_device = bool(ours) if asked is None else asked.type == "cuda"
        if ours and self.name not in MIX:
            self._refuse_host_tensors(leaves)
        if ours and self.name in INDEXING | INDEX_WRITES:
            self._refuse_indices()
            on_device = isinstance(self.args[0], SimulatedTensor)
        has_schema = isinstance(self.op, OpOverload)
        # A view shows the memory itself, whatever is in it.
        is_shown = bool(ours) and has_schema and is_view(self.op)
        is_meta = any(t.inside.is_meta if is_shown else self.is_unknown(t) for t in ours)
        if self.world is not None and has_schema:
            self.world.note_writes(written_tensors(self.op, self.args, self.kwargs), is_meta)

        inners = [self._inner(value, is_meta, on_device) for value in leaves]
        args, kwargs = pytree.tree_unflatten(inners, tree)
        pin = bool(kwargs.get("pin_memory"))
        if pin:
            kwargs["pin_memory"] = False
        result = self._on_meta(args, kwargs) if is_meta else self._on_cpu(args, kwargs)
        for inner, value in zip(inners, leaves, strict=True):
            if isinstance(value, SimulatedTensor):
                _follow(value, inner)

        # In inference mode a view of an ordinary tensor is an ordinary one.
        ordinary = is_shown and not ours[0].is_inference()

        def outer(tensor: torch.Tensor) -> torch.Tensor:
            if on_device:
                with torch.inference_mode(False) if ordinary else contextlib.nullcontext():
                    return SimulatedTensor(tensor)
            return self.world.pin(tensor) if pin and self.world is not None else tensor

        if self.name in SECOND_ON_HOST:
            return outer(result[0]), *result[1:]
        return _translated(result, inners, leaves, outer)

    def _inner(self, value: Any, is_meta: bool, on_device: bool) -> Any:
        """The value that the operator really gets for the argument ``value``."""
        if isinstance(value, torch.Tensor):
            tensor, is_ours = inside(value), isinstance(value, SimulatedTensor)
            convert = is_meta and not tensor.is_meta and (is_ours or self.name not in READ_ON_HOST)
            return shape_of(tensor) if convert else tensor
        if isinstance(value, torch.device) and value.type == "cuda":
            return META if is_meta else CPU
        if isinstance(value, torch.Generator):
            return self._generator(value, on_device)
        return value

    def _refuse_host_tensors(self, leaves: list[Any]) -> None:
        """Raise as CUDA does; a 0-dim tensor passes for a number."""
        for value in leaves:
            if (
                isinstance(value, torch.Tensor)
                and value.dim()
                and value.device.type == "cpu"
                and not isinstance(value, SimulatedTensor)
            ):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, cuda:0 and cpu! (when checking the arguments of {self.op})"
                )

    def _refuse_indices(self) -> None:
        """Raise as torch does: an index may be on the host, or where the indexed tensor is."""
        here = isinstance(self.args[0], SimulatedTensor)
        if self.name in INDEX_WRITES:
            values = self.args[2]
            if values.dim() and isinstance(values, SimulatedTensor) != here:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, cuda:0 and cpu! (when checking the arguments of {self.op})"
                )
        elif not here:
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            )

    def _generator(self, generator: torch.Generator, on_device: bool) -> torch.Generator:
        if self.world is None:
            return generator
        key = generator_id(generator)
        generators = self.world.device.generators
        if generator.device.type == "cuda" and key not in generators:
            return self.world.device.on_cpu(generator)
        is_default = key == generator_id(torch.default_generator)
        if (key in generators) != on_device and not is_default:
            here, there = ("cuda", "cpu") if on_device else ("cpu", "cuda")
            raise RuntimeError(f"Expected a '{here}' device type for generator but found '{there}'")
        return generator

    def _on_cpu(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            records = self.world is not None and self.world.records
            own = isinstance(self.op, OpOverload) and self.op.namespace not in _TORCHS_OWN
            if own and not records:
                with _Inside(self.op, self.world):
                    return self.op.redispatch(_CPU_KERNEL, *args, **kwargs)
            if self.world is not None:
                return self.world.execute(self, args, kwargs)
            return self.op(*args, **kwargs)
        except RuntimeError as error:  # or NotImplementedError, which is one
            if not _is_missing_kernel(error):
                raise
            missing = error
        twin = KERNELS.get(self.name) or _decomposition(self.op)
        if twin is not None:
            with contextlib.suppress(NotImplementedError):
                return twin(*args, **kwargs)
        return self._zeros(args, kwargs, missing)

    def _zeros(self, args: tuple[Any, ...], kwargs: dict[str, Any], missing: Exception) -> Any:
        """Zeros in the shape of the result of a kernel that only CUDA has."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        shapes = [shape_of(v) if isinstance(v, torch.Tensor) else v for v in leaves]
        shapes = [META if isinstance(v, torch.device) else v for v in shapes]
        args, kwargs = pytree.tree_unflatten(shapes, tree)
        try:
            result = self.op(*args, **kwargs)
        except NotImplementedError:
            raise DeviceError(
                f"{self.op} has no kernel for the CPU, which simulates the device, and no fake "
                "implementation that gives the shape of its result. Give it one "
                "(torch.library.register_fake)."
            ) from missing
        result = _translated(result, shapes, leaves, lambda shape: data_for(shape, False))
        self.assume(result)
        return result

    def _on_meta(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dynamic = torch.Tag.dynamic_output_shape in getattr(self.op, "tags", ())
        if not dynamic or self.name in INDEXING:
            with contextlib.suppress(NotImplementedError):
                return self.op(*args, **kwargs)
        leaves, tree = pytree.tree_flatten((args, kwargs))
        size = sum(v.numel() * v.element_size() for v in leaves if isinstance(v, torch.Tensor))
        if size > _MADE_UP_BYTES:
            raise DeviceError(
                f"{self.op} has no fake implementation, and its arguments are too large to make "
                f"up ({size >> 20} MiB). Give it one (torch.library.register_fake), or weights."
            )
        data = [data_for(v, dynamic) if isinstance(v, torch.Tensor) else v for v in leaves]
        data = [CPU if isinstance(v, torch.device) else v for v in data]
        args, kwargs = pytree.tree_unflatten(data, tree)
        result = self._on_cpu(args, kwargs)
        if dynamic or not all(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(result)):
            self.assume(result)
        return _translated(result, data, leaves, shape_of)

    def is_unknown(self, value: Any) -> bool:
        """Whether only the shape of ``value`` is known."""
        return isinstance(value, SimulatedTensor) and (
            value.inside.is_meta or (self.world is not None and self.world.is_unknown(value))
        )

    def assume(self, value: Any) -> None:
        """Report that ``value`` was made up."""
        if self.world is not None:
            self.world.assume(self.op, value)


class _Inside(ThreadDispatchMode):
    """Sees the operations inside an operator that is written in Python."""

    def __init__(self, op: OpOverload, world: SimulatedCuda | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._op = op
        self._world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.item.default:  # arrives whole
            func = torch.ops.aten._local_scalar_dense.default
        call = TableCall(func, args, kwargs or {}, on_host=lambda tensor: False)
        if self._world is not None and refusal(call) is not None:
            self._world.device.observer("hidden-sync", f"{self._op}, by {func}", None)
        return func(*args, **(kwargs or {}))


_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_TORCHS_OWN = ("aten", "prims", "prim", "quantized", "mkldnn")


def _translated(
    result: Any, before: list[Any], after: list[Any], other: Callable[[torch.Tensor], torch.Tensor]
) -> Any:
    """``result`` with the tensors of ``before`` replaced by those of ``after``; else ``other``."""
    known = {id(b): a for b, a in zip(before, after, strict=True)}

    def translate(tensor: torch.Tensor) -> torch.Tensor:
        return known[id(tensor)] if id(tensor) in known else other(tensor)

    return pytree.tree_map_only(torch.Tensor, translate, result)


def _follow(wrapper: SimulatedTensor, inner: torch.Tensor) -> None:
    """Give ``wrapper`` the new shape of the tensor inside."""
    now = wrapper.inside
    if inner.is_meta and not now.is_meta and inner.shape != now.shape:
        wrapper.inside = now = inner  # a result of unknown values does not fit in here
    if (
        torch.Tensor.size(wrapper) != now.shape  # a lazy parameter hides its shape
        or wrapper.stride() != now.stride()
        or wrapper.storage_offset() != now.storage_offset()
        or wrapper.dtype != now.dtype
    ):
        set_data(wrapper, SimulatedTensor(now))


_MADE_UP_BYTES = 64 << 20


def has_cpu_kernel(op: Any) -> bool:
    """Whether the CPU can run ``op``; other than operators of torch, it can."""
    if not isinstance(op, OpOverload):
        return True
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(op.name(), "CPU")


def _is_missing_kernel(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


def _decomposition(op: Any) -> Callable[..., Any] | None:
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)
