"""Runs code that says ``device="cuda"`` where there is no GPU, or where it is not to be touched.

A :class:`PretendTensor` says that it is on ``cuda:0``, also to autocast, to autograd and to the
composite operators of torch, and computes on a CPU tensor inside it; where only shapes are known,
on a meta tensor. What is on the host and what is on the device is as on a machine with a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import overrides
from torch._ops import OpOverload
from torch.utils import _python_dispatch as dispatch_stack

from ..device.base import generator_state
from ..device.operator_table import Call, refusal
from ..device.operators import is_view, outside_of_modes, written_tensors
from ..device.overrides import HiddenFunctionMode, ThreadDispatchMode
from ..dynamo import Uncompiled
from ..errors import DeviceError
from .effects import storage_key
from .pretend_cuda import FakeDevice, Observer, attached, attention, listening
from .watch import lifting_of_host_data

__all__ = ["Observer", "Pretend", "PretendTensor", "listening"]

_DEVICE = torch.device("cuda", 0)
_CPU, _META = torch.device("cpu"), torch.device("meta")
_set_data: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def _inside(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.inside if isinstance(tensor, PretendTensor) else tensor


class PretendTensor(torch.Tensor):
    """A tensor that says it is on ``cuda:0``.

    Attributes:
        inside: the tensor that has its data, on the CPU; or a meta tensor, which has none.
    """

    inside: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor, requires_grad: bool = False) -> PretendTensor:
        """``inner`` in a tensor that says it is on the device."""
        if inner.layout is not torch.strided:
            raise DeviceError(
                f"A tensor of layout {inner.layout} cannot be pretended to be on a device; dense "
                "ones can (torch.strided)."
            )
        tensor: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=_DEVICE,
            requires_grad=requires_grad,
        )
        # Then C++ resolves these before it comes to us, or its kernel takes them as they are.
        torch._C._set_conj(tensor, inner.is_conj())
        torch._C._set_neg(tensor, inner.is_neg())
        tensor.inside = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _Call(func, args, kwargs or {}, _local.world).run()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory of what is inside."""
        if overrides.has_torch_function_unary(self):
            return overrides.handle_torch_function(torch.Tensor.untyped_storage, (self,), self)
        return self.inside.untyped_storage()

    def record_stream(self, stream: Any) -> None:
        """Its memory is not given to others by streams."""

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        if overrides.has_torch_function_unary(self):
            function: Any = torch.Tensor.__repr__
            return overrides.handle_torch_function(function, (self,), self)
        return _text(self)


class _Local(threading.local):
    world: Pretend | None = None


_local = _Local()


class Pretend:
    """While it is entered, the calling thread is on a machine with one GPU.

    Results are ordinary where they are on the host, and :class:`PretendTensor` where they would be
    on the device. On exit everything is as before: torch's functions, the generators, what
    :meth:`adopt` has replaced, and the data of tensors from outside that were written.

    Args:
        observer: told of the calls that matter to a capture, and of values that were made up.
        capturing: what ``torch.cuda.is_current_stream_capturing()`` says.
        host_tensors: where tensors on the CPU belong that :meth:`adopt` finds and that are no
            parameters or buffers: ``"host"``, or ``"device"``. ``None``: on the host if a
            parameter or an argument is on a device (or meta), which shows that the program tells
            them apart; else on the device.

    Raises:
        DeviceError: it is entered inside another one.
    """

    def __init__(
        self,
        observer: Observer | None = None,
        *,
        capturing: bool = True,
        host_tensors: Literal["host", "device"] | None = None,
    ) -> None:
        self._observer = observer if observer is not None else lambda kind, what, detail: None
        self._capturing = capturing
        self._host_tensors = host_tensors
        self._exit = contextlib.ExitStack()

    @property
    def current_stream(self) -> Any:
        """The stream that is current. The first one stands for that of a capture."""
        return self.device.current_stream

    def is_assumed(self, tensor: torch.Tensor) -> bool:
        """Whether :meth:`adopt` put it on the device without being told so."""
        return storage_key(tensor) in self._assumed

    def off_stream(self) -> str | None:
        """The rule by which work on the current stream is left out of a capture, if it is."""
        return self.device.off_stream()

    def __enter__(self) -> Pretend:
        if _local.world is not None:
            raise DeviceError("Pretend is entered inside another one on the same thread.")
        self.device = FakeDevice(self._observer, self._capturing)
        self._wrapped: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._borrowed: dict[int, torch.UntypedStorage] = {}
        self._saved: dict[int, torch.UntypedStorage] = {}
        self._pinned: dict[int, torch.UntypedStorage] = {}
        self._unknown: dict[int, torch.UntypedStorage] = {}
        self._assumed: set[int] = set()
        self._told_apart = False
        with contextlib.ExitStack() as stack:
            _lend_device_guard()
            stack.callback(
                torch.default_generator.set_state, generator_state(torch.default_generator)
            )
            stack.callback(self._put_data_back)
            stack.enter_context(lifting_of_host_data())
            stack.enter_context(attached(self.device))
            stack.enter_context(Uncompiled())
            stack.enter_context(_FunctionMode(self))
            self.mode = stack.enter_context(_DispatchMode(self))
            stack.callback(setattr, _local, "world", None)
            _local.world = self
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._exit.__exit__(*exc_info)

    def wrap(self, tree: Any) -> Any:
        """``tree`` with its tensors on the pretended device.

        Tensors on the CPU are not copied; tensors of a real device are. One object gives one
        object, and tensors that share memory still do.
        """
        with outside_of_modes():
            return pytree.tree_map_only(torch.Tensor, self._wrap, tree)

    def adopt(self, *objects: Any) -> None:
        """Put what ``objects`` reach on the pretended device, until exit.

        That is: parameters and buffers of modules; other tensors in closures, globals, defaults,
        attributes, lists and dicts, by ``host_tensors``. Arguments that are containers of tensors
        are better given to :meth:`wrap`, before.
        """
        places = list(_places(objects))
        tensors = [(t, p.is_state) for p in places for v in p.values() for t in _tensors(v)]
        self._told_apart |= any(own and t.device.type != "cpu" for t, own in tensors)
        by_default = "host" if self._told_apart else "device"
        on_host = (self._host_tensors or by_default) == "host"

        def swap(is_state: bool, tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type == "cpu" and on_host and not is_state:
                self._borrow(tensor)
                return tensor
            if tensor.device.type == "cpu" and not is_state:
                self._assumed.add(storage_key(tensor))
            return self._wrap(tensor)

        with outside_of_modes():
            for place in places:
                self._exit.callback(place.restore)
                for key, value in place.items():
                    if any(True for _ in _tensors(value)):
                        place.put(key, _swapped(value, functools.partial(swap, place.is_state)))

    # What operations ask for.

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is in memory of the host that was asked to be pinned."""
        return storage_key(tensor) in self._pinned

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Say that the memory of ``tensor`` is pinned."""
        self._pinned[storage_key(tensor)] = tensor.untyped_storage()
        return tensor

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether something of which only the shape is known was written into ``tensor``."""
        return bool(self._unknown) and storage_key(tensor) in self._unknown

    def note_writes(self, tensors: Iterable[torch.Tensor], unknown: bool) -> None:
        """``tensors`` are about to be written; keep the data of those from outside.

        Args:
            tensors: some that have data.
            unknown: only the shape is known of what is written.
        """
        for tensor in tensors:
            key, storage = storage_key(tensor), tensor.untyped_storage()
            if unknown:
                self._unknown[key] = storage
            elif key in self._borrowed and key not in self._saved:
                self._saved[key] = storage.clone()

    def assume(self, what: object, value: Any) -> None:
        """Report a value that was made up."""
        self._observer("assumed", str(what), value)

    def _wrap(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, PretendTensor):
            return tensor
        known = self._wrapped.get(id(tensor))
        if known is None:
            known = self._wrapped[id(tensor)] = tensor, self._wrap_new(tensor)
        return known[1]

    def _wrap_new(self, tensor: torch.Tensor) -> torch.Tensor:
        self._told_apart |= tensor.device.type != "cpu"
        if dispatch_stack.is_traceable_wrapper_subclass(tensor):
            return dispatch_stack.transform_subclass(tensor, lambda name, part: self._wrap(part))
        if tensor.layout is not torch.strided:
            return tensor
        self._borrow(tensor)
        with torch.inference_mode(tensor.is_inference()):
            inner = self._on_cpu(tensor.detach())
            wrapper = PretendTensor(inner, tensor.requires_grad)
        wrapper.__dict__.update(vars(tensor))
        if isinstance(tensor, torch.nn.Parameter):
            wrapper._is_param = True
        return wrapper

    def _on_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type in ("cpu", "meta"):
            return tensor
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._copies:
            self._copies[key] = storage, storage.cpu()
        copy = torch.empty(0, dtype=tensor.dtype)
        return copy.set_(
            self._copies[key][1], tensor.storage_offset(), tensor.size(), tensor.stride()
        )

    def _borrow(self, tensor: torch.Tensor) -> None:
        if tensor.layout is torch.strided and tensor.device.type == "cpu":
            self._borrowed.setdefault(storage_key(tensor), tensor.untyped_storage())

    def _put_data_back(self) -> None:
        for key, saved in self._saved.items():
            storage = self._borrowed[key]
            if storage.nbytes() != saved.nbytes():
                storage.resize_(saved.nbytes())
            storage.copy_(saved)


# One operation.


class _Call:
    """One call of an operator, on tensors of the host and of the pretended device."""

    def __init__(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], world: Pretend | None
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
        if isinstance(self.op, OpOverload) and _is_composite(self.op):
            return self._in_parts()
        with outside_of_modes():
            special = _SPECIAL.get(self.name)
            result = NotImplemented if special is None else special(self, *self.args, **self.kwargs)
            return self._compute() if result is NotImplemented else result

    def _in_parts(self) -> Any:
        """In inference mode these arrive whole; torch's own kernel takes them to pieces."""
        if self.world is None:
            return self.op.decompose(*self.args, **self.kwargs)
        dispatch_stack._push_mode(self.world.mode)
        try:
            return self.op.decompose(*self.args, **self.kwargs)
        finally:
            dispatch_stack._pop_mode(torch._C._TorchDispatchModeKey.FAKE)

    def _compute(self) -> Any:
        leaves, tree = pytree.tree_flatten((self.args, self.kwargs))
        ours = [v for v in leaves if isinstance(v, PretendTensor)]
        asked = next((v for v in leaves if isinstance(v, torch.device)), None)
        on_device = bool(ours) if asked is None else asked.type == "cuda"
        if ours and self.name not in _MIX:
            self._refuse_host_tensors(leaves)
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
            if isinstance(value, PretendTensor):
                _follow(value, inner)

        # In inference mode a view of an ordinary tensor is an ordinary one.
        ordinary = is_shown and not ours[0].is_inference()

        def outer(tensor: torch.Tensor) -> torch.Tensor:
            if on_device:
                with torch.inference_mode(False) if ordinary else contextlib.nullcontext():
                    return PretendTensor(tensor)
            return self.world.pin(tensor) if pin and self.world is not None else tensor

        if self.name in _SECOND_ON_HOST:
            return outer(result[0]), *result[1:]
        return _translated(result, inners, leaves, outer)

    def _inner(self, value: Any, is_meta: bool, on_device: bool) -> Any:
        """What the operator is really given for the argument ``value``."""
        if isinstance(value, torch.Tensor):
            is_ours = isinstance(value, PretendTensor)
            tensor = value.inside if isinstance(value, PretendTensor) else value
            convert = is_meta and not tensor.is_meta and (is_ours or self.name not in _READ_ON_HOST)
            return _shape_of(tensor) if convert else tensor
        if isinstance(value, torch.device) and value.type == "cuda":
            return _META if is_meta else _CPU
        if isinstance(value, torch.Generator):
            return self._generator(value, on_device)
        return value

    def _refuse_host_tensors(self, leaves: list[Any]) -> None:
        """As CUDA does; a number in a tensor passes for a number."""
        for value in leaves:
            if (
                isinstance(value, torch.Tensor)
                and value.dim()
                and value.device.type == "cpu"
                and not isinstance(value, PretendTensor)
            ):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, cuda:0 and cpu! (when checking the arguments of {self.op})"
                )

    def _generator(self, generator: torch.Generator, on_device: bool) -> torch.Generator:
        if self.world is None:
            return generator
        key: int = generator._cdata  # type: ignore[attr-defined]
        generators = self.world.device.generators
        if generator.device.type == "cuda" and key not in generators:
            return self.world.device.on_cpu(generator)
        is_default = key == torch.default_generator._cdata  # type: ignore[attr-defined]
        if (key in generators) != on_device and not is_default:
            here, there = ("cuda", "cpu") if on_device else ("cpu", "cuda")
            raise RuntimeError(f"Expected a '{here}' device type for generator but found '{there}'")
        return generator

    def _on_cpu(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if isinstance(self.op, OpOverload) and self.op.namespace not in _TORCHS_OWN:
                with _Inside(self.op, self.world):
                    return self.op.redispatch(_CPU_KERNEL, *args, **kwargs)
            return self.op(*args, **kwargs)
        except RuntimeError as error:  # or NotImplementedError, which is one
            if not _is_missing_kernel(error):
                raise
            missing = error
        twin = _TWINS.get(self.name) or _decomposition(self.op)
        if twin is not None:
            with contextlib.suppress(NotImplementedError):
                return twin(*args, **kwargs)
        return self._zeros(args, kwargs, missing)

    def _zeros(self, args: tuple[Any, ...], kwargs: dict[str, Any], missing: Exception) -> Any:
        """Zeros of the shape that a kernel which only CUDA has would give."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        shapes = [_shape_of(v) if isinstance(v, torch.Tensor) else v for v in leaves]
        shapes = [_META if isinstance(v, torch.device) else v for v in shapes]
        args, kwargs = pytree.tree_unflatten(shapes, tree)
        try:
            result = self.op(*args, **kwargs)
        except NotImplementedError:
            raise DeviceError(
                f"{self.op} has no kernel for the CPU, on which the device is pretended, and no "
                "fake implementation that tells the shape of its result. Give it one "
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
                f"{self.op} has no fake implementation, and its arguments are too large to be made "
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
        return isinstance(value, PretendTensor) and (
            value.inside.is_meta or (self.world is not None and self.world.is_unknown(value))
        )

    def assume(self, value: Any) -> None:
        """Report that ``value`` was made up."""
        if self.world is not None:
            self.world.assume(self.op, value)


class _Inside(ThreadDispatchMode):
    """Sees what an operator that is written in Python does inside."""

    def __init__(self, op: OpOverload, world: Pretend | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._op = op
        self._world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.item.default:  # arrives whole
            func = torch.ops.aten._local_scalar_dense.default
        call = Call(func, args, kwargs or {}, on_host=lambda tensor: False)
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


def _follow(wrapper: PretendTensor, inner: torch.Tensor) -> None:
    """Give ``wrapper`` the shape that an operation has given to what is inside."""
    now = wrapper.inside
    if inner.is_meta and not now.is_meta and inner.shape != now.shape:
        wrapper.inside = now = inner  # a result of unknown values does not fit in here
    if (
        wrapper.shape != now.shape
        or wrapper.stride() != now.stride()
        or wrapper.storage_offset() != now.storage_offset()
        or wrapper.dtype != now.dtype
    ):
        _set_data(wrapper, PretendTensor(now))


_MADE_UP_BYTES = 64 << 20


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=_META)


def _data_for(tensor: torch.Tensor, every_other: bool) -> torch.Tensor:
    """Zeros for a tensor that has only a shape; or in turn true and false, one and zero."""
    if not tensor.is_meta:
        return tensor
    data = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).zero_()
    if every_other and tensor.numel():
        data.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 2 == 0)
    return data


def _is_missing_kernel(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


def _decomposition(op: Any) -> Callable[..., Any] | None:
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)


# Operators that need more than unpacking their arguments.


def _item(call: _Call, tensor: torch.Tensor) -> Any:
    if not call.is_unknown(tensor):
        return NotImplemented
    value = torch.ones((), dtype=tensor.dtype).item()
    call.assume(value)
    return value


def _truth(call: _Call, *args: Any, **kwargs: Any) -> Any:
    """``torch.equal`` and the like."""
    if not any(map(call.is_unknown, args)):
        return NotImplemented
    call.assume(True)
    return True


def _to_copy(call: _Call, tensor: torch.Tensor, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or device.type != "cpu" or not call.is_unknown(tensor):
        return NotImplemented
    kwargs.pop("non_blocking", None)
    result = torch.ones_like(_inside(tensor), **kwargs)
    call.assume(result)
    return result


def _copy(call: _Call, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    if isinstance(to, PretendTensor) or not call.is_unknown(source):
        return NotImplemented
    if call.world is not None:
        call.world.note_writes([to], False)
    call.assume(to.fill_(1))
    return to


def _index(call: _Call, tensor: torch.Tensor, indices: list[Any], *rest: Any) -> Any:
    """Masks of unknown values take every other element."""
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if not masks or not any(map(call.is_unknown, (tensor, *indices))):
        return NotImplemented
    found: list[Any] = []
    for index in indices:
        if all(index is not mask for mask in masks):
            found.append(index)
            continue
        mask = _shape_of(index) if call.is_unknown(index) else _inside(index)
        if mask.is_meta:
            call.assume(mask)
        for positions in _data_for(mask, True).nonzero().unbind(1):
            found.append(PretendTensor(_shape_of(positions)))
    return _Call(call.op, (tensor, found, *rest), {}, call.world).run()


def _pin_memory(call: _Call, tensor: torch.Tensor, device: Any = None) -> Any:
    if call.world is None:
        return NotImplemented
    if isinstance(tensor, PretendTensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return call.world.pin(tensor.clone())


def _is_pinned(call: _Call, tensor: torch.Tensor, device: Any = None) -> Any:
    return call.world is not None and call.world.is_pinned(tensor)


def _softmax(call: _Call, tensor: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    """Only CUDA has a kernel that casts on the way."""
    if not half_to_float:
        return NotImplemented
    wide = _Call(torch.ops.aten._to_copy.default, (tensor,), {"dtype": torch.float}, call.world)
    return _Call(call.op, (wide.run(), dim, False), {}, call.world).run()


def _flatten_weights(call: _Call, weights: list[torch.Tensor], *args: Any) -> torch.Tensor:
    """cuDNN likes weights to be one piece of memory; they compute the same as they are."""
    return PretendTensor(torch.empty(0, dtype=weights[0].dtype))


_SPECIAL: dict[str, Callable[..., Any]] = {
    "aten::_local_scalar_dense": _item,
    "aten::equal": _truth,
    "aten::allclose": _truth,
    "aten::_to_copy": _to_copy,
    "aten::copy_": _copy,
    "aten::index": _index,
    "aten::_unsafe_index": _index,
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


def _lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    keep, forget, new, out = gates.chunk(4, 1)
    keep, forget, new, out = keep.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    cell = forget * cell + keep * new
    return out * cell.tanh(), cell, torch.cat([keep, forget, new, out], 1)


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    given = input_gates if input_bias is None else input_gates + input_bias
    kept = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (r, z, n), (r_kept, z_kept, n_kept) = given.chunk(3, 1), kept.chunk(3, 1)
    r, z = (r + r_kept).sigmoid(), (z + z_kept).sigmoid()
    n = (n + r * n_kept).tanh()
    return n + z * (hidden - n), torch.cat([r, z, n, hidden, n_kept], 1)


def _cudnn_grid_sampler(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return torch.grid_sampler_2d(image, grid, 0, 0, True)


# Kernels that only CUDA has, on the CPU.
_TWINS: dict[str, Callable[..., Any]] = {
    "aten::_use_cudnn_ctc_loss": lambda *args: False,
    "aten::_use_miopen_ctc_loss": lambda *args: False,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::cudnn_grid_sampler": _cudnn_grid_sampler,
}


@functools.cache
def _is_composite(op: OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op._name, "CompositeImplicitAutograd")


# The modes.


class _DispatchMode(ThreadDispatchMode):
    """Below all other modes, whenever they are entered; C++ takes it for that of fake tensors.

    Therefore C++ does not start CUDA where it meets ``device="cuda"``.
    """

    supports_higher_order_operators = True

    def __init__(self, world: Pretend) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self._world = world

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _Call(func, args, kwargs or {}, self._world).run()


class _FunctionMode(HiddenFunctionMode):
    """Answers what does not reach the dispatcher."""

    def __init__(self, world: Pretend) -> None:
        super().__init__()
        self._world = world

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if func in _TAKES_INDEX and len(args) > 1 and type(args[1]) is int:
            args = (args[0], torch.device("cuda", args[1]), *args[2:])
        ours = _FUNCTIONS.get(func)
        if ours is None or (func in _OF_OURS and not isinstance(args[0], PretendTensor)):
            return func(*args, **kwargs)
        return ours(*args, **kwargs)


def _text(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
    with outside_of_modes():
        text = repr(_inside(tensor))
    return f"{text[:-1].replace(', device=' + repr('meta'), '')}, device='{_DEVICE}')"


def _format(tensor: torch.Tensor, spec: str) -> str:
    return object.__format__(tensor, spec) if tensor.dim() else format(tensor.item(), spec)


def _no_numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    raise TypeError(
        f"can't convert {_DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first."
    )


def _address(tensor: torch.Tensor) -> int:
    """That of the data; what has none gets one that is only its own."""
    inner = _inside(tensor)
    if inner.is_meta and inner.numel():
        return storage_key(inner) + int(inner.storage_offset()) * inner.element_size()
    return inner.data_ptr()


def _change_data(tensor: Any, data: torch.Tensor) -> None:
    """``tensor.data = data``: torch changes what its C++ object holds, and we what is inside."""
    if isinstance(data, PretendTensor):
        if isinstance(tensor, torch.nn.Parameter):  # Module.cuda() moves it
            tensor._is_param = True
        tensor.__class__ = PretendTensor
        tensor.inside = data.inside
    _set_data(tensor, data)


def _recurrent(packet: Any, *args: Any) -> Any:
    """cuDNN looks at the addresses of the weights; the decomposition does not."""
    packed = isinstance(args[1], torch.Tensor) and isinstance(args[3], (list, tuple))
    overload: OpOverload = packet.data if packed else packet.input
    result = overload.decompose(*args)
    if packet is not torch.ops.aten.lstm:
        return result
    # In torch 2.11 the decomposition leaves a dimension of 1 in them.
    states = zip(result[1:], args[2 if packed else 1], strict=True)
    return (result[0], *(state.reshape(given.shape) for state, given in states))


_OF_OURS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__repr__: _text,
    torch.Tensor.__format__: _format,
    torch.Tensor.__array__: _no_numpy,
    torch.Tensor.numpy: _no_numpy,
    torch.Tensor.tolist: lambda tensor: tensor.cpu().tolist(),
    torch.Tensor.data_ptr: _address,
    torch.Tensor.untyped_storage: lambda tensor: _inside(tensor).untyped_storage(),
}
"""Functions of a :class:`PretendTensor`."""

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **_OF_OURS,
    _set_data: _change_data,
    F.scaled_dot_product_attention: attention,
    torch.lstm: functools.partial(_recurrent, torch.ops.aten.lstm),
    torch.gru: functools.partial(_recurrent, torch.ops.aten.gru),
    torch.rnn_tanh: functools.partial(_recurrent, torch.ops.aten.rnn_tanh),
    torch.rnn_relu: functools.partial(_recurrent, torch.ops.aten.rnn_relu),
}

# An index alone means a device of the accelerator that torch was built for, if it was for one.
_TAKES_INDEX = frozenset({torch.Tensor.to, torch.Tensor.cuda})


@functools.cache
def _lend_device_guard() -> None:
    """Let C++ switch to the device, and do nothing.

    torch's own way, ``_ensureCUDADeviceGuardSet``, exists from 2.10 on, does nothing for a CPU
    build, and its guard goes with the thread that asked for it first (2.10 and 2.11). Ours is the
    guard of the CPU, which does nothing, except that it says: the type is CUDA, the device is 0.
    """
    if getattr(torch._C, "_cuda_getDeviceCount", int)():
        return  # a real device has a guard
    suffix = {"darwin": "dylib"}.get(sys.platform, "so")
    library = Path(torch.__file__).parent / "lib" / f"libc10.{suffix}"
    try:
        guards = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(library)), _GUARDS)
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"No device can be pretended with this build of torch: {error}."
        ) from error
    # A device is two bytes, the type (CUDA is 1) and the index: as a number 1, as is the type.
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
    methods = (ctypes.c_void_p * 64)()
    ctypes.memmove(methods, ctypes.c_void_p.from_address(guards[0] or 0).value or 0, 64 * 8)
    methods[:3] = [ctypes.cast(answer, ctypes.c_void_p).value] * 3  # type, exchange, get
    guard = ctypes.c_void_p(ctypes.addressof(methods))
    _lent.append((guard, methods, answer))  # for good: C++ may ask at any time
    guards[1] = ctypes.addressof(guard)


_lent: list[object] = []
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"


# What a function reaches.

# Enough for a model of thousands of modules.
_MAX_OBJECTS = 200_000
# A longer container is data, not structure.
_MAX_ITEMS = 4096
# How far tensors are looked for in objects that are no modules.
_MAX_DEPTH = 4
_LEAVES = (int, float, bool, str, bytes, complex, type(None), torch.Tensor, torch.dtype, type)
# Objects and functions of these packages hold nothing of the function's own.
_CLOSED = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "triton"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_MISSING: Any = object()


class _Place:
    """Something that holds objects, and what it held at first.

    Args:
        item: a dict, list, deque, closure cell or ``functools.partial``, or any object where
            ``names`` are its attributes.
        names: those that count; ``None``: all.
        is_state: it holds parameters or buffers.
    """

    def __init__(
        self, item: Any, names: tuple[str, ...] | None = None, *, is_state: bool = False
    ) -> None:
        self.item = item
        self.names = names
        self.is_state = is_state
        self.held = self._read()
        # Methods of the base class: a subclass may refuse them.
        self._dict: Any = OrderedDict if isinstance(item, OrderedDict) else dict

    def items(self) -> list[tuple[Any, Any]]:
        """Pairs of a key and what was held there at first."""
        return list(self.held.items())

    def values(self) -> list[Any]:
        """What was held at first."""
        return list(self.held.values())

    def put(self, key: Any, value: Any) -> None:
        """Hold ``value`` at ``key``."""
        if isinstance(self.item, types.CellType):
            self.item.cell_contents = value
        elif isinstance(self.item, dict):
            self._dict.__setitem__(self.item, key, value)
        elif isinstance(self.item, functools.partial):
            partial: Any = self.item
            partial.__setstate__((partial.func, value, partial.keywords, vars(partial)))
        elif self.names is not None:
            setattr(self.item, key, value)
        else:
            self.item[key] = value

    def restore(self) -> None:
        """Hold what was held at first."""
        now = self._read()
        if list(now) != list(self.held) and self.names is None:
            if isinstance(self.item, types.CellType):
                del self.item.cell_contents
            elif isinstance(self.item, dict):
                self._dict.clear(self.item)
                self._dict.update(self.item, self.held)
            else:
                self.item.clear()
                self.item.extend(self.held.values())
            return
        for key, value in self.held.items():
            if now.get(key, _MISSING) is not value:
                self.put(key, value)

    def _read(self) -> dict[Any, Any]:
        item = self.item
        if isinstance(item, types.CellType):
            try:
                return {0: item.cell_contents}
            except ValueError:  # a variable that is not bound yet
                return {}
        if isinstance(item, functools.partial):
            return {"args": item.args}
        if isinstance(item, dict):
            return {k: item[k] for k in (item if self.names is None else self.names) if k in item}
        if self.names is not None:
            return {name: getattr(item, name) for name in self.names if hasattr(item, name)}
        return dict(enumerate(item))


def _places(objects: tuple[Any, ...]) -> Iterator[_Place]:
    """All that holds tensors, and that ``objects`` reach."""
    packages = {_package(part) for item in objects for part in (item, *_parts_of_root(item))}
    walk = _Walk(packages - _CLOSED)
    todo = deque((item, 0) for item in objects)
    seen: dict[int, Any] = {}
    placed: dict[int, _Place] = {}
    while todo and len(seen) < _MAX_OBJECTS:
        item, depth = todo.popleft()
        if isinstance(item, _LEAVES) or id(item) in seen or depth > _MAX_DEPTH:
            continue
        seen[id(item)] = item
        deeper = 0 if isinstance(item, torch.nn.Module) else depth + 1
        for found in walk.open(item):
            if not isinstance(found, _Place):
                todo.append((found, deeper))
            elif found.names is not None or placed.setdefault(id(found.item), found) is found:
                yield found
                todo.extend((value, deeper) for value in found.values())


def _parts_of_root(item: Any) -> tuple[Any, ...]:
    owner = getattr(item, "__self__", None)
    return type(item), owner, type(owner), getattr(item, "func", None)


class _Walk:
    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def open(self, item: Any) -> Iterator[Any]:
        """The places in ``item``, and objects to go on with that are in none."""
        if isinstance(item, types.MethodType):
            yield from (item.__func__, item.__self__)
        elif isinstance(item, functools.partial):
            yield from (item.func, _Place(item), _Place(item.keywords))
        elif isinstance(item, types.FunctionType):
            yield from self._open_function(item)
        elif isinstance(item, torch.nn.Module):
            yield from self._open_module(item)
        elif isinstance(item, (dict, list, deque, tuple)):
            yield from self._open_container(item)
        elif _package(type(item)) not in _CLOSED or type(item) is types.SimpleNamespace:
            yield from self._open_object(item)

    def _open_container(self, item: Any) -> Iterator[Any]:
        if len(item) > _MAX_ITEMS:
            return
        if isinstance(item, tuple):
            yield from item
        else:
            yield _Place(item)
        if isinstance(getattr(item, "__dict__", None), dict):  # of a subclass
            yield _Place(vars(item))

    def _open_function(self, function: Any) -> Iterator[Any]:
        if _package(function) not in self._packages:
            return
        yield _Place(function, ("__defaults__",))
        yield from (function.__kwdefaults__, vars(function))
        yield from (_Place(cell) for cell in function.__closure__ or ())
        space = function.__globals__
        names = (name for name in sorted(_names(function.__code__)) if name in space)
        yield _Place(
            space,
            tuple(name for name in names if not isinstance(space[name], (types.ModuleType, type))),
        )

    def _open_module(self, module: torch.nn.Module) -> Iterator[Any]:
        attributes = vars(module)
        for name in ("_parameters", "_buffers"):
            yield _Place(attributes.get(name, {}), is_state=True)
        yield _Place(attributes.get("_modules", {}))
        yield from (hook for name in _HOOKS for hook in attributes.get(name, {}).values())
        yield from self._open_object(module)

    def _open_object(self, item: Any) -> Iterator[Any]:
        attributes = getattr(item, "__dict__", None)
        if isinstance(attributes, dict):
            yield _Place(attributes)
        for cls in type(item).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            slots = (slots,) if isinstance(slots, str) else tuple(slots)
            if slots and _package(cls) not in _CLOSED:
                yield _Place(item, tuple(name for name in slots if not name.startswith("__")))
            if _package(cls) in self._packages:
                tensors = [n for n, v in vars(cls).items() if isinstance(v, torch.Tensor)]
                yield _Place(cls, tuple(tensors))
                yield from (vars(cls).get(name) for name in ("forward", "__call__"))


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function and the functions in it look up."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _package(item: Any) -> str:
    return str(getattr(item, "__module__", None) or "").partition(".")[0]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensor that ``value`` is, or those of a tuple, which is not changed in place."""
    if isinstance(value, torch.Tensor):
        if not isinstance(value, PretendTensor):
            yield value
    elif isinstance(value, tuple) and len(value) <= _MAX_ITEMS:
        yield from itertools.chain.from_iterable(map(_tensors, value))


def _swapped(value: Any, swap: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return swap(value)
    if not any(True for _ in _tensors(value)):
        return value
    items = (_swapped(item, swap) for item in value)
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
