"""Runs code that says ``device="cuda"`` without using a GPU.

A :class:`SimulatedTensor` says that it is on ``cuda:0``, also to autocast, autograd and the
composite operators of torch. It computes on a CPU tensor inside it, or on a meta tensor if only
shapes are known. Tensors are on the host or on the device as on a machine with a GPU.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import overrides
from torch._ops import OpOverload
from torch.utils import _python_dispatch as dispatch_stack

from ..device.base import empty_as, generator_id
from ..device.operator_table import Call as TableCall
from ..device.operator_table import refusal
from ..device.operators import is_composite, is_view, outside_of_modes, written_tensors
from ..device.overrides import ThreadDispatchMode
from ..errors import DeviceError
from .cuda_kernels import KERNELS, attention

if TYPE_CHECKING:
    from .world import SimulatedCuda

__all__ = [
    "DEVICE",
    "INDEX_WRITES",
    "Call",
    "SimulatedTensor",
    "attributes_of",
    "has_cpu_kernel",
    "inside",
    "local",
    "set_data",
    "storage_of",
    "text_of",
]

DEVICE = torch.device("cuda", 0)
_CPU, _META = torch.device("cpu"), torch.device("meta")
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
            storage: Any = copy.deepcopy(storage_of(self), memo)
            with outside_of_modes():
                place = inner.storage_offset(), inner.size(), inner.stride()
                inner = torch.empty(0, dtype=inner.dtype, device=_CPU).set_(
                    getattr(storage, "inside", storage), *place
                )
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


# One operation.


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
            special = _SPECIAL.get(self.name)
            result = NotImplemented if special is None else special(self, *self.args, **self.kwargs)
            return self._compute() if result is NotImplemented else result

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
        if ours and self.name not in _MIX:
            self._refuse_host_tensors(leaves)
        if ours and self.name in _INDEXING | INDEX_WRITES:
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

        if self.name in _SECOND_ON_HOST:
            return outer(result[0]), *result[1:]
        return _translated(result, inners, leaves, outer)

    def _inner(self, value: Any, is_meta: bool, on_device: bool) -> Any:
        """The value that the operator really gets for the argument ``value``."""
        if isinstance(value, torch.Tensor):
            tensor, is_ours = inside(value), isinstance(value, SimulatedTensor)
            convert = is_meta and not tensor.is_meta and (is_ours or self.name not in _READ_ON_HOST)
            return _shape_of(tensor) if convert else tensor
        if isinstance(value, torch.device) and value.type == "cuda":
            return _META if is_meta else _CPU
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
        shapes = [_shape_of(v) if isinstance(v, torch.Tensor) else v for v in leaves]
        shapes = [_META if isinstance(v, torch.device) else v for v in shapes]
        args, kwargs = pytree.tree_unflatten(shapes, tree)
        try:
            result = self.op(*args, **kwargs)
        except NotImplementedError:
            raise DeviceError(
                f"{self.op} has no kernel for the CPU, which simulates the device, and no fake "
                "implementation that gives the shape of its result. Give it one "
                "(torch.library.register_fake)."
            ) from missing
        result = _translated(result, shapes, leaves, lambda shape: _data_for(shape, False))
        self.assume(result)
        return result

    def _on_meta(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dynamic = torch.Tag.dynamic_output_shape in getattr(self.op, "tags", ())
        if not dynamic or self.name in _INDEXING:
            with contextlib.suppress(NotImplementedError):
                return self.op(*args, **kwargs)
        leaves, tree = pytree.tree_flatten((args, kwargs))
        size = sum(v.numel() * v.element_size() for v in leaves if isinstance(v, torch.Tensor))
        if size > _MADE_UP_BYTES:
            raise DeviceError(
                f"{self.op} has no fake implementation, and its arguments are too large to make "
                f"up ({size >> 20} MiB). Give it one (torch.library.register_fake), or weights."
            )
        data = [_data_for(v, dynamic) if isinstance(v, torch.Tensor) else v for v in leaves]
        data = [_CPU if isinstance(v, torch.device) else v for v in data]
        args, kwargs = pytree.tree_unflatten(data, tree)
        result = self._on_cpu(args, kwargs)
        if dynamic or not all(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(result)):
            self.assume(result)
        return _translated(result, data, leaves, _shape_of)

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
        wrapper.shape != now.shape
        or wrapper.stride() != now.stride()
        or wrapper.storage_offset() != now.storage_offset()
        or wrapper.dtype != now.dtype
    ):
        set_data(wrapper, SimulatedTensor(now))


_MADE_UP_BYTES = 64 << 20


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return empty_as(tensor, _META)


def _data_for(tensor: torch.Tensor, every_other: bool) -> torch.Tensor:
    """Zeros for a tensor that has only a shape; with ``every_other``, ones and zeros in turn."""
    if not tensor.is_meta:
        return tensor
    data = empty_as(tensor, _CPU).zero_()
    if every_other and tensor.numel():
        data.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 2 == 0)
    return data


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


# Operators that need more than unpacking their arguments.


def _item(call: Call, tensor: torch.Tensor) -> Any:
    if not call.is_unknown(tensor):
        return NotImplemented
    value = torch.ones((), dtype=tensor.dtype).item()
    call.assume(value)
    return value


def _truth(call: Call, *args: Any, **kwargs: Any) -> Any:
    """``torch.equal`` and the like."""
    if not any(map(call.is_unknown, args)):
        return NotImplemented
    call.assume(True)
    return True


def _to_copy(call: Call, tensor: torch.Tensor, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or device.type != "cpu" or not call.is_unknown(tensor):
        return NotImplemented
    kwargs.pop("non_blocking", None)
    result = torch.ones_like(inside(tensor), **kwargs)
    call.assume(result)
    return result


def _copy(call: Call, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    if isinstance(to, SimulatedTensor) or not call.is_unknown(source):
        return NotImplemented
    if call.world is not None:
        call.world.note_writes([to], False)
    call.assume(to.fill_(1))
    return to


def _index(call: Call, tensor: torch.Tensor, indices: list[Any], *rest: Any) -> Any:
    """Masks of unknown values take every other element."""
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if not masks or not any(map(call.is_unknown, (tensor, *indices))):
        return NotImplemented
    found: list[Any] = []
    for index in indices:
        if all(index is not mask for mask in masks):
            found.append(index)
            continue
        mask = _shape_of(index) if call.is_unknown(index) else inside(index)
        if mask.is_meta:
            call.assume(mask)
        for positions in _data_for(mask, True).nonzero().unbind(1):
            found.append(SimulatedTensor(_shape_of(positions)))
    return Call(call.op, (tensor, found, *rest), {}, call.world).run()


def _pin_memory(call: Call, tensor: torch.Tensor, device: Any = None) -> Any:
    if call.world is None:
        return NotImplemented
    if isinstance(tensor, SimulatedTensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return call.world.pin(tensor.clone())


def _is_pinned(call: Call, tensor: torch.Tensor, device: Any = None) -> Any:
    return call.world is not None and call.world.is_pinned(tensor)


def _softmax(call: Call, tensor: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    """Cast first: only CUDA has a kernel that casts on the way."""
    if not half_to_float:
        return NotImplemented
    wide = Call(torch.ops.aten._to_copy.default, (tensor,), {"dtype": torch.float}, call.world)
    return Call(call.op, (wide.run(), dim, False), {}, call.world).run()


def _flatten_weights(call: Call, weights: list[torch.Tensor], *args: Any) -> torch.Tensor:
    """Do nothing: cuDNN prefers weights in one piece of memory, but computes the same without."""
    return SimulatedTensor(torch.empty(0, dtype=weights[0].dtype))


def _pack(call: Call, tensor: torch.Tensor, lengths: torch.Tensor, *args: Any) -> Any:
    if not isinstance(lengths, SimulatedTensor):
        return NotImplemented
    raise RuntimeError(
        "'lengths' argument should be a 1D CPU int64 tensor, but got "
        f"{lengths.dim()}D cuda:0 {lengths.type().rpartition('.')[2].removesuffix('Tensor')} tensor"
    )


_SPECIAL: dict[str, Callable[..., Any]] = {
    "aten::_local_scalar_dense": _item,
    "aten::equal": _truth,
    "aten::allclose": _truth,
    "aten::_to_copy": _to_copy,
    "aten::copy_": _copy,
    "aten::index": _index,
    "aten::_unsafe_index": _index,
    "aten::_pack_padded_sequence": _pack,
    "aten::_pin_memory": _pin_memory,
    "aten::_cudnn_rnn_flatten_weight": _flatten_weights,
    "aten::is_pinned": _is_pinned,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
}

# Operators that take tensors of the host beside those of the device.
_MIX = frozenset(
    f"aten::{name}"
    for name in (
        "_copy_from",
        "_copy_from_and_resize",
        "_use_cudnn_ctc_loss",
        "_use_miopen_ctc_loss",
        "_ctc_loss",
        "_foreach_copy_",
        "_index_put_impl_",
        "_pack_padded_sequence",
        "_to_copy",
        "_unsafe_index",
        "_unsafe_index_put",
        "copy",
        "copy_",
        "index",
        "index_put",
        "index_put_",
        "tensor_split",
    )
)

# Those among them that need the values there.
_READ_ON_HOST = frozenset({"aten::_ctc_loss", "aten::_pack_padded_sequence"})

# Operators whose second result is on the host.
_SECOND_ON_HOST = frozenset({"aten::_pack_padded_sequence"})

_INDEXING = frozenset({"aten::index", "aten::_unsafe_index"})

INDEX_WRITES = frozenset(
    f"aten::{name}" for name in ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
)
"""Operators that write through indices; torch moves those to the tensor that is written."""
