"""``enable(emulate=True)``: the whole process is on a machine with one emulated GPU.

Device tensors are those of :mod:`.tensor`, as in ``check``. Here operations also go into graphs:
what is issued while the current stream captures is recorded by a capture of the emulated device.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.utils import _python_dispatch as dispatch_stack

from ..device import capture_rules as rules
from ..device import current_device
from ..device.emulated import new_capture
from ..device.emulated_capture import Capture, current_capture
from ..device.emulated_memory import MemoryPool
from ..device.operator_table import Call as TableCall
from ..device.operator_table import capture_behaviour, refusal
from ..device.operators import ALLOCATIONS, is_view, written_tensors
from ..device.overrides import MODE_STACKS, remove_modes
from ..errors import CaptureForbidden, DeviceError
from ..graph.locks import is_inside_gfxgraph
from ..interpose.dynamo import Uncompiled, step_aside, step_back
from ..interpose.patch import find, intercept, override
from ..record.effects import storage_key
from ..record.interceptor import lifting_of_host_data
from .backend import allocating, lend_kernels, refuse_of_cpu
from .device_guard import lend_device_guard
from .device_use import check_device, forget_use, use_device
from .emulated_streams import (
    DEFAULT,
    DeviceCapture,
    Event,
    Stream,
    capture_of,
    default_stream,
    set_stream,
    stream_now,
)
from .emulated_torch import replacements
from .legacy_types import of_device
from .methods import METHODS
from .operation import Call, has_cpu_kernel
from .special import INDEX_WRITES
from .storages import DeviceStorage
from .subclasses import swapped
from .tensor import SimulatedTensor, inside, local, set_data
from .torch_cuda import FakeDevice, SimulatedGenerator
from .world import DispatchMode, FunctionMode, SimulatedCuda

__all__ = ["Emulation", "refuse_on_a_gpu"]

_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::copy", "aten::_copy_from"})
_NO_KERNEL = rules.Rule(
    "it has no kernel for the CPU, which emulates the device",
    "Run this part on a GPU, or give the operator a CPU kernel",
)
_PAGEABLE = rules.Rule(
    "it copies between the device and pageable memory of the host, which must be pinned for that",
    "Use pinned memory (tensor.pin_memory()) and non_blocking=True, make the tensor before the "
    "capture or on the device (torch.full, zeros, arange), or copy outside of the capture",
)
_WAITS = rules.Rule("it waits for the copy", "Pass non_blocking=True")
_OFF_STREAM = rules.Rule(
    "the current stream is not part of the capture",
    "Let it wait first, stream.wait_stream(torch.cuda.current_stream()), and join it at the end",
)


def refuse_on_a_gpu() -> None:
    """Raise where there is a GPU.

    Raises:
        DeviceError: this machine has one.
    """
    if current_device().type != "cpu":
        raise DeviceError(
            "Emulation is not needed: this machine has a GPU that torch can use. Leave out "
            "emulate=True, --emulate and GFXGRAPH_EMULATE; to emulate here all the same, hide the "
            "GPU (CUDA_VISIBLE_DEVICES='')."
        )


class Emulation(SimulatedCuda):
    """One emulated GPU for all threads, from :meth:`begin` to :meth:`end`."""

    def __init__(self) -> None:
        super().__init__(capturing=False)
        self.made: Any = _Living()
        self._pinned = {}
        self._unknown = {}
        self._borrowed = {}
        self.device = FakeDevice(self._observer, False)
        self._functions = _FunctionMode(self)
        self.mode = _DispatchMode(self)
        self.is_active = False

    def begin(self) -> None:
        """Begin; threads that run already do not see the device.

        Raises:
            DeviceError: there is a GPU, or this build of torch cannot emulate one.
        """
        refuse_on_a_gpu()
        lend_device_guard()
        self._began = threading.current_thread()
        self._is_aside = False
        self._contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        with contextlib.ExitStack() as stack:
            stack.enter_context(Uncompiled())
            stack.enter_context(lifting_of_host_data())
            for path, value in replacements(self.made.bytes).items():
                place = find(path.replace(".", ":", 1))
                if place is not None:
                    stack.enter_context(override(*place, value, lasts=True))
            stack.enter_context(
                intercept(torch, "Generator", self._new_generator, everywhere=True, lasts=True)
            )
            methods: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
                (torch, "compile", self._compile),
                (torch.cuda.StreamContext, "__enter__", self._enter_context),
                (torch.cuda.device, "__enter__", self._enter_context),
            )
            for owner, name, handler in (*METHODS, *methods):
                stack.enter_context(intercept(owner, name, handler, everywhere=True, lasts=True))
            for name, ours in (("Stream", Stream), ("Event", Event)):
                made = functools.partial(self._new_stream_or_event, ours)
                stack.enter_context(intercept(torch, name, made, everywhere=True, lasts=True))
            stack.enter_context(
                intercept(
                    threading.Thread,
                    "_bootstrap_inner",
                    self._run_thread,
                    everywhere=True,
                    lasts=True,
                )
            )
            stack.callback(self._end_contexts)
            stack.callback(lend_kernels()._destroy)
            new_capture.append(_capture)
            stack.callback(new_capture.remove, _capture)
            self.is_active = True
            stack.callback(setattr, self, "is_active", False)
            stack.enter_context(self._on_this_thread())
            self._exit = stack.pop_all()

    def end(self) -> None:
        """Put everything back. Tensors of the device live on, and so do graphs."""
        self._exit.close()
        set_stream(default_stream())
        forget_use()

    def _compile(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Keep Dynamo away also if it was not loaded before: else it would miss compiled code."""
        if not self._is_aside:
            import torch._dynamo.eval_frame  # noqa: F401

            self._is_aside = True
            step_aside()
        return original(*args, **kwargs)

    def _enter_context(self, original: Callable[..., Any], context: Any) -> Any:
        self._contexts.add(context)
        return original(context)

    def _end_contexts(self) -> None:
        """Let contexts that end after the emulation do nothing: torch would ask the device."""
        if self._is_aside:
            step_back()
        for context in self._contexts:
            context.stream, context.prev_idx = None, -1

    def check_end(self) -> None:
        """Raise where the emulation may not end.

        Raises:
            DeviceError: this thread captures, or another one has begun the emulation and lives.
        """
        # Nobody but a thread itself can take modes off its stacks.
        if self._began is not threading.current_thread() and self._began.is_alive():
            raise DeviceError(
                "disable() was called on another thread than enable(emulate=True): call it on "
                f"that one, {self._began.name!r}."
            )
        if isinstance(current_capture(), DeviceCapture):
            raise DeviceError(
                "disable() was called inside of a capture of the emulated device: call it after it."
            )

    @contextlib.contextmanager
    def _on_this_thread(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def _off_this_thread(self) -> Iterator[None]:
        self._leave()
        try:
            yield
        finally:
            self._enter()

    def _enter(self) -> None:
        _push_below(self._functions)
        self.mode.__enter__()
        local.world = self

    def _leave(self) -> None:
        local.world = None
        # The program may have put modes of its own above ours.
        if self.mode in dispatch_stack._get_current_dispatch_mode_stack():
            dispatch_stack._pop_mode(torch._C._TorchDispatchModeKey.FAKE)
            step_back()
        remove_modes(lambda mode: mode is self._functions)

    def _run_thread(self, original: Callable[..., Any], *args: Any) -> Any:
        with self._on_this_thread():
            return original(*args)

    def _new_generator(self, original: Callable[..., Any], device: Any = "cpu") -> Any:
        if torch.device(device).type != "cuda":
            return original(device)
        check_device(device)
        generator = SimulatedGenerator()
        self.device.generators[int(generator._cdata)] = generator  # type: ignore[attr-defined]
        return generator

    @staticmethod
    def _new_stream_or_event(
        ours: Any, original: Callable[..., Any], device: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        given = torch.device("cuda", device) if isinstance(device, int) else device
        if given is not None and torch.device(given).type != "cuda":
            return original(device, *args, **kwargs)
        check_device(given)
        return ours(*args, **kwargs)

    @contextlib.contextmanager
    def suspended(self, tree: Any) -> Iterator[Any]:
        """Leave the emulated device on this thread."""
        before, local.existing = local.existing, self.made.tensors
        try:
            with self._off_this_thread():
                yield pytree.tree_map_only(SimulatedTensor, inside, tree)
        finally:
            local.existing = before

    # For operations.

    def storage(self, storage: torch.UntypedStorage) -> Any:
        """A storage that says that it is on the device."""
        return DeviceStorage(of=storage)

    @property
    def records(self) -> bool:
        """Whether the current stream captures."""
        return capture_of(stream_now()) is not None

    def before(self, call: Call) -> None:
        """Refuse what a GPU would refuse now."""
        leaves = pytree.tree_leaves((call.args, call.kwargs))
        asked = [v for v in leaves if isinstance(v, torch.device) and v.type == "cuda"]
        for device in asked:
            check_device(device)
        if not asked and not any(isinstance(v, SimulatedTensor) for v in leaves):
            return  # the device has no part in it
        use_device()
        refuse_of_cpu(call)
        capture = capture_of(stream_now())
        if capture is None:
            self._outside_of(call)
            return
        capture.check_valid(call.op)
        if not isinstance(call.op, OpOverload):
            return
        rule = self._rule(call)
        if rule is not None:
            capture.fail(rule if isinstance(rule, CaptureForbidden) else rule.error(call.op))
        # What only looks at memory, or only takes some, is no work.
        if is_view(call.op) or torch.Tag.inplace_view in call.op.tags or call.name in ALLOCATIONS:
            return
        written = written_tensors(call.op, call.args, call.kwargs)
        capture.issue(
            [inside(v) for v in leaves if isinstance(v, SimulatedTensor)],
            [inside(v) for v in written],
        )

    def before_reading(self, what: str) -> None:
        """Refuse a read on the host that is no operation, while this thread captures."""
        use_device()
        capture = current_capture()
        if capture is not None:
            capture.fail(rules.HOST_READ.error(what))

    def execute(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator of torch on the tensors inside, or record it."""
        capture = capture_of(stream_now())
        leaves = pytree.tree_leaves((call.args, call.kwargs))
        on_device = any(
            isinstance(v, SimulatedTensor) or (isinstance(v, torch.device) and v.type == "cuda")
            for v in leaves
        )
        if capture is None or not on_device or not isinstance(call.op, OpOverload):
            return allocating(call.op, *args, **kwargs)
        if not has_cpu_kernel(call.op):
            capture.fail(_NO_KERNEL.error(call.op))
        for value in leaves:
            on_host = isinstance(value, torch.Tensor) and self._on_host(value)
            if on_host and value.numel() and not self.is_pinned(value):
                capture.keep_on_host(value)
        result = capture.record(call.op, args, kwargs)
        given = {storage_key(inside(v)) for v in leaves if isinstance(v, torch.Tensor)}
        made = {storage_key(v) for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor)}
        capture.wrote(made - given)
        return result

    def assume(self, what: object, value: Any) -> NoReturn:
        """Refuse to make values up.

        Raises:
            DeviceError: always.
        """
        raise DeviceError(
            f"{what} has no kernel for the CPU, which emulates the device: its result is not "
            "known. Run this part on a GPU, or give the operator a CPU kernel."
        )

    @staticmethod
    def _on_host(tensor: torch.Tensor) -> bool:
        return not isinstance(tensor, SimulatedTensor)

    def _outside_of(self, call: Call) -> None:
        """Work outside of captures, perhaps while this thread captures another stream."""
        capture = current_capture()
        if not isinstance(capture, DeviceCapture):
            return
        if stream_now().stream_id != DEFAULT:
            capture.fail(_OFF_STREAM.error(call.op))
        warnings.warn(
            f"{call.op} runs on the default stream during a capture: it runs now, once, and is "
            "not in the graph, as on a GPU. Issue it on the stream of the capture.",
            stacklevel=2,
        )

    def _rule(self, call: Call) -> rules.Rule | CaptureForbidden | None:
        """What refuses ``call`` during a capture."""
        if call.name in _COPIES:
            return self._rule_of_copy(call)
        table = TableCall(call.op, call.args, call.kwargs, self._on_host)
        why = refusal(table)
        if why is not None:
            return rules.operator_error(table, why)
        if self._reads_for_the_host(call):
            return rules.HOST_READ
        if capture_behaviour(table) == "copies from the host":
            return _PAGEABLE
        return None

    def _reads_for_the_host(self, call: Call) -> bool:
        """Whether a tensor of the host is indexed or filled by tensors of the device."""
        return call.name in INDEX_WRITES and self._on_host(call.args[0])

    def _rule_of_copy(self, call: Call) -> rules.Rule | None:
        tensors = [v for v in call.args if isinstance(v, torch.Tensor)]
        source, asked = tensors[-1], call.kwargs.get("device")
        if len(tensors) > 1:
            to_host = self._on_host(tensors[0])
        else:
            to_host = self._on_host(source) if asked is None else asked.type == "cpu"
        if self._on_host(source) == to_host or not source.numel():
            return None
        at_once = bool(call.args[2] if len(call.args) > 2 else call.kwargs.get("non_blocking"))
        # A copy to the host that does not wait makes pinned memory.
        makes_pinned = len(tensors) == 1 and to_host and at_once
        if not makes_pinned and not self.is_pinned(tensors[0] if to_host else source):
            return _PAGEABLE
        return None if at_once else _WAITS


def _capture(pool: MemoryPool, generators: frozenset[int]) -> Capture:
    """Captures of gfxgraph itself are of tensors on the CPU, as without emulation."""
    return (Capture if is_inside_gfxgraph() else DeviceCapture)(pool, generators)


def _push_below(mode: FunctionMode) -> None:
    """Enter ``mode`` below the modes of the program, which come off the stack from its top.

    The device of ``torch.set_default_device`` has to stay the lowest.
    """
    _, pop, push = MODE_STACKS[0]
    above = [pop() for _ in range(torch._C._len_torch_function_stack())]
    lowest = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if above and above[-1] is lowest:
        push(above.pop())
    push(mode)
    while above:
        push(above.pop())


class _Living:
    """The living tensors of the device, for statistics of memory."""

    def __init__(self) -> None:
        self._found: dict[int, Callable[[], torch.Tensor | None]] = {}

    def append(self, reference: Callable[[], SimulatedTensor | None]) -> None:
        """Remember a tensor while it lives: the one inside, since what is referenced weakly cannot
        be swapped, and moving a module swaps its parameters."""
        tensor = reference()
        if tensor is not None:
            inner = weakref.ref(tensor.inside, lambda dead: self._found.pop(id(dead), None))
            self._found[id(inner)] = inner

    def bytes(self) -> int:
        """Bytes of the memory of all of them."""
        storages = (tensor.untyped_storage() for tensor in self.tensors())
        return sum({storage._cdata: storage.nbytes() for storage in storages}.values())

    def tensors(self) -> list[torch.Tensor]:
        """The tensors inside of them."""
        found = (reference() for reference in list(self._found.values()))
        return [tensor for tensor in found if tensor is not None]


class _DispatchMode(DispatchMode):
    """Does nothing on threads that outlive the emulation."""

    no_graph_because = (
        "called under enable(emulate=True), which emulates graphs that are captured by hand"
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.world.is_active:  # type: ignore[attr-defined]
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class _FunctionMode(FunctionMode):
    """Does nothing on threads that outlive the emulation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.world.is_active:  # type: ignore[attr-defined]
            return func(*args, **(kwargs or {}))
        if func is torch.device and args and type(args[0]) is int:
            args = ("cuda", *args)
        if func is torch.Tensor.type and len(args) > 1:
            dtype = of_device(args[1])
            if dtype is not None:
                given = {"non_blocking": any(args[2:]), **(kwargs or {})}
                return args[0].to("cuda", dtype, **given)
        if func == set_data and swapped(*args):
            return None
        return super().__torch_function__(func, types, args, kwargs)
