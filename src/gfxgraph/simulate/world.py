"""Simulates a machine with one GPU, without using one."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.utils import _python_dispatch as dispatch_stack

from ..device.base import generator_state
from ..device.operators import outside_of_modes
from ..device.overrides import HiddenFunctionMode, ThreadDispatchMode
from ..errors import DeviceError, one_line
from ..interpose.cuda_calls import Observer, attached
from ..interpose.dynamo import Uncompiled
from ..record.effects import storage_key
from ..record.interceptor import lifting_of_host_data
from ..stats import log
from .cuda_kernels import attention, lowered
from .device_guard import lend_device_guard
from .operation import Call
from .reachable import places, swapped, tensors_of
from .subclasses import device_tensor
from .tensor import DEVICE, SimulatedTensor, inside, local, set_data, storage_of, text_of
from .torch_cuda import FakeDevice

__all__ = ["DispatchMode", "FunctionMode", "SimulatedCuda"]


class SimulatedCuda:
    """While it is entered, the calling thread is on a machine with one GPU.

    Host tensors are ordinary; device tensors are of class :class:`SimulatedTensor`. On exit
    everything is as before: torch's functions, the generators, the tensors that :meth:`adopt` has
    replaced, and the data of outside tensors that were written.

    Args:
        observer: gets the calls that matter to a capture, and the values that were made up.
        capturing: the result of ``torch.cuda.is_current_stream_capturing()``.
        host_tensors: where tensors on the CPU belong that :meth:`adopt` finds and that are no
            parameters or buffers: ``"host"``, or ``"device"``. ``None``: on the host if a parameter
            or an argument is on a device (or meta), since the program then distinguishes the two;
            else on the device.

    Raises:
        DeviceError: it is entered inside another instance.
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
        #: Its tensors, as weak references.
        self.made: list[Callable[[], SimulatedTensor | None]] = []

    @property
    def current_stream(self) -> Any:
        """The current stream. The first one stands for that of a capture."""
        return self.device.current_stream

    def is_assumed(self, tensor: torch.Tensor) -> bool:
        """Whether :meth:`adopt` put it on the device by assumption."""
        return storage_key(tensor) in self._assumed

    def off_stream(self) -> str | None:
        """The rule that keeps the current stream out of a capture; ``None``: none does."""
        return self.device.off_stream()

    def __enter__(self) -> SimulatedCuda:
        if local.world is not None:
            raise DeviceError("SimulatedCuda is already entered on this thread.")
        self.device = FakeDevice(self._observer, self._capturing)
        self._wrapped: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._borrowed: dict[int, torch.UntypedStorage] = {}
        self._saved: dict[int, torch.UntypedStorage] = {}
        self._pinned: dict[int, torch.UntypedStorage] = {}
        self._unknown: dict[int, torch.UntypedStorage] = {}
        self._assumed: set[int] = set()
        self._distinguishes_host = False
        with contextlib.ExitStack() as stack:
            lend_device_guard()
            stack.callback(
                torch.default_generator.set_state, generator_state(torch.default_generator)
            )
            stack.callback(self._put_data_back)
            stack.enter_context(lifting_of_host_data())
            stack.enter_context(attached(self.device))
            stack.enter_context(Uncompiled())
            stack.enter_context(FunctionMode(self))
            self.mode = stack.enter_context(DispatchMode(self))
            stack.callback(setattr, local, "world", None)
            local.world = self
            for tensor in local.existing():
                self._borrow(tensor)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._exit.__exit__(*exc_info)

    def dissolve(self) -> None:
        """Make ordinary tensors of those that still live after the exit.

        The program has kept them where nobody puts anything back, such as in a ``lru_cache``.
        """
        kept = [tensor for tensor in (made() for made in self.made) if tensor is not None]
        self.made.clear()  # what is referenced weakly cannot be swapped
        for tensor in kept:
            try:
                torch.utils.swap_tensors(tensor, tensor.inside.detach())
            except RuntimeError as error:  # code in C++ holds it too
                log(logging.DEBUG, "stays_simulated", because=one_line(error))

    def wrap(self, tree: Any) -> Any:
        """``tree`` with its tensors on the simulated device.

        Tensors on the CPU are not copied; tensors of a real device are. The same object always
        gives the same result, and tensors that share memory still do.
        """
        with outside_of_modes():
            return pytree.tree_map_only(torch.Tensor, self._wrap, tree)

    def adopt(self, *objects: Any) -> None:
        """Put the tensors that ``objects`` reach on the simulated device, until exit.

        That is: parameters and buffers of modules; other tensors in closures, globals, defaults,
        attributes, lists and dicts, by ``host_tensors``. Pass arguments that are containers of
        tensors to :meth:`wrap` first.
        """
        found = list(places(objects))
        tensors = [(t, p.is_state) for p in found for _, v in p.held for t in tensors_of(v)]
        self._distinguishes_host |= any(own and t.device.type != "cpu" for t, own in tensors)
        by_default = "host" if self._distinguishes_host else "device"
        on_host = (self._host_tensors or by_default) == "host"

        def swap(is_state: bool, tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type == "cpu" and on_host and not is_state:
                self._borrow(tensor)
                return tensor
            if tensor.device.type == "cpu" and not is_state:
                self._assumed.add(storage_key(tensor))
            return self._wrap(tensor)

        with outside_of_modes():
            for place in found:
                self._exit.callback(place.restore)
                for key, value in place.held:
                    if any(True for _ in tensors_of(value)):
                        place.put(key, swapped(value, functools.partial(swap, place.is_state)))

    # For operations.

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is in host memory that the program has pinned."""
        return storage_key(tensor) in self._pinned

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Mark the memory of ``tensor`` as pinned."""
        self._pinned[storage_key(tensor)] = tensor.untyped_storage()
        return tensor

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether values of which only the shape is known were written into ``tensor``."""
        return bool(self._unknown) and storage_key(tensor) in self._unknown

    def note_writes(self, tensors: Iterable[torch.Tensor], unknown: bool) -> None:
        """Save the data of outside tensors that are about to be written.

        Args:
            tensors: tensors with data.
            unknown: the written values are not known, only their shape.
        """
        for tensor in tensors:
            key, storage = storage_key(tensor), tensor.untyped_storage()
            if unknown:
                self._unknown[key] = storage
            elif key in self._borrowed and key not in self._saved:
                self._saved[key] = storage.clone()

    @contextlib.contextmanager
    def suspended(self, tree: Any) -> Iterator[Any]:
        """Let :class:`SimulatedCuda` be entered inside, where that is possible.

        It yields ``tree``, with tensors that can be taken there.
        """
        yield tree

    def storage(self, storage: torch.UntypedStorage) -> Any:
        """The storage that a tensor of the device gives, for one in host memory."""
        return storage

    @property
    def records(self) -> bool:
        """Whether :meth:`execute` records operations for a graph."""
        return False

    def before(self, call: Call) -> None:
        """Look at an operation that is about to run; here there is nothing to refuse."""

    def before_reading(self, what: str) -> None:
        """Look at a read on the host that is no operation; here there is nothing to refuse."""

    def execute(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator of torch on the tensors inside."""
        return call.op(*args, **kwargs)

    def assume(self, what: object, value: Any) -> None:
        """Report a value that was made up."""
        self._observer("assumed", str(what), value)

    def _wrap(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, SimulatedTensor):
            return tensor
        known = self._wrapped.get(id(tensor))
        if known is None:
            known = self._wrapped[id(tensor)] = tensor, self._wrap_new(tensor)
        return known[1]

    def _wrap_new(self, tensor: torch.Tensor) -> torch.Tensor:
        self._distinguishes_host |= tensor.device.type != "cpu"
        if dispatch_stack.is_traceable_wrapper_subclass(tensor):
            # A DTensor also names its mesh among its parts.
            return dispatch_stack.transform_subclass(
                tensor,
                lambda name, part: self._wrap(part) if isinstance(part, torch.Tensor) else part,
            )
        if tensor.layout is not torch.strided:
            return tensor
        self._borrow(tensor)
        with torch.inference_mode(tensor.is_inference()):
            inner = self._on_cpu(tensor.detach())
            wrapper = device_tensor(type(tensor), inner, tensor.requires_grad)
        wrapper.__dict__.update(vars(tensor))
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


class DispatchMode(ThreadDispatchMode):
    """A mode below all others, whenever they are entered; C++ takes it for that of fake tensors.

    So C++ does not start CUDA at ``device="cuda"``.
    """

    supports_higher_order_operators = True

    def __init__(self, world: SimulatedCuda) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.world = world

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Call(func, args, kwargs or {}, self.world).run()


class FunctionMode(HiddenFunctionMode):
    """Answers calls that do not reach the dispatcher."""

    def __init__(self, world: SimulatedCuda) -> None:
        super().__init__()
        self.world = world

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        if func in _TAKES_INDEX and len(args) > 1 and type(args[1]) is int:
            args = (args[0], torch.device("cuda", args[1]), *args[2:])
        ours = _FUNCTIONS.get(func)
        if ours is None or (func in _OF_OURS and not isinstance(args[0], SimulatedTensor)):
            return func(*args, **kwargs)
        return ours(*args, **kwargs)


def _format(tensor: torch.Tensor, spec: str) -> str:
    return object.__format__(tensor, spec) if tensor.dim() else format(tensor.item(), spec)


def _numpy(tensor: torch.Tensor, *args: Any, force: bool = False, **kwargs: Any) -> Any:
    if force:
        return tensor.detach().cpu().resolve_conj().resolve_neg().numpy()
    raise TypeError(
        f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first."
    )


def _address(tensor: torch.Tensor) -> int:
    """The address of the data; a tensor without data gets one of its own."""
    inner = inside(tensor)
    if inner.is_meta and inner.numel():
        return storage_key(inner) + int(inner.storage_offset()) * inner.element_size()
    return inner.data_ptr()


def _change_data(tensor: Any, data: torch.Tensor) -> None:
    """``tensor.data = data``: torch changes the C++ object, and we change the tensor inside."""
    if isinstance(data, SimulatedTensor):
        if isinstance(tensor, torch.nn.Parameter):  # Module.cuda() moves it
            tensor._is_param = True
        if not isinstance(tensor, SimulatedTensor):
            tensor.__class__ = SimulatedTensor
        tensor.inside = data.inside
    set_data(tensor, data)


def _recurrent(packet: Any, *args: Any) -> Any:
    """Decompose: cuDNN would look at the addresses of the weights."""
    args = lowered(args)
    packed = isinstance(args[1], torch.Tensor) and isinstance(args[3], (list, tuple))
    overload: OpOverload = packet.data if packed else packet.input
    with torch.autocast("cuda", enabled=False):
        result = overload.decompose(*args)
    if packet is not torch.ops.aten.lstm:
        return result
    # In torch 2.11 the decomposition leaves a dimension of 1 in them.
    states = zip(result[1:], args[2 if packed else 1], strict=True)
    return (result[0], *(state.reshape(given.shape) for state, given in states))


def _ctc_loss(
    function: Any, log_probs: Any, targets: Any, inputs: Any, lengths: Any, *args: Any, **kw: Any
) -> Any:
    """With lengths as numbers: for subclasses of tensors C++ would use them on the device."""
    inputs, lengths = (v.tolist() if isinstance(v, torch.Tensor) else v for v in (inputs, lengths))
    return function(log_probs, targets, inputs, lengths, *args, **kw)


_OF_OURS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__repr__: text_of,
    torch.Tensor.__format__: _format,
    torch.Tensor.__array__: _numpy,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.tolist: lambda tensor: tensor.cpu().tolist(),
    torch.Tensor.data_ptr: _address,
    torch.Tensor.untyped_storage: storage_of,
}
"""Functions of a :class:`SimulatedTensor`."""

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **_OF_OURS,
    set_data: _change_data,
    F.scaled_dot_product_attention: attention,
    F.ctc_loss: functools.partial(_ctc_loss, F.ctc_loss),
    torch.ctc_loss: functools.partial(_ctc_loss, torch.ctc_loss),
    torch.lstm: functools.partial(_recurrent, torch.ops.aten.lstm),
    torch.gru: functools.partial(_recurrent, torch.ops.aten.gru),
    torch.rnn_tanh: functools.partial(_recurrent, torch.ops.aten.rnn_tanh),
    torch.rnn_relu: functools.partial(_recurrent, torch.ops.aten.rnn_relu),
}

# An index alone means a device of the accelerator that torch was built for, if any.
_TAKES_INDEX = frozenset({torch.Tensor.to, torch.Tensor.cuda})
