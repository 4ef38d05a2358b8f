"""One capture of the emulated device: its modes refuse or record every operation."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import CaptureError, CaptureForbidden
from ..forking import in_child, new_lock
from ..interpose.cuda_calls import IS_CAPTURING, torch_place
from ..interpose.dynamo import step_aside, step_back
from ..interpose.interrupts import held_back
from ..interpose.patch import intercept
from . import capture_rules as rules
from .base import Body, Decision, generator_id
from .emulated_memory import MemoryPool
from .emulated_shapes import ShapeInference
from .operator_table import Call, copies_host_scalar, refusal
from .operators import (
    ALLOCATIONS,
    generator_in,
    is_composite,
    is_view,
    outside_of_modes,
    returned_argument,
    run_composite,
    written_tensors,
)
from .overrides import (
    MODE_STACKS,
    HiddenFunctionMode,
    are_spread,
    hidden_modes,
    remove_modes,
)

__all__ = ["Capture", "Choice", "HeldCall", "Operation", "current_capture", "forget_closed", "run"]

# The device has one stream: whatever thread replays, graphs run one after the other.
_stream = new_lock()


def run(operations: list[Operation]) -> None:
    """Execute recorded operations, whatever modes, autocast and grad mode are in force."""
    # On a GPU this is one call of C, which no signal handler interrupts.
    with held_back(), _stream, outside_of_modes(), torch.autocast("cpu", enabled=False):
        for operation in operations:
            operation.run()


def current_capture() -> Capture | None:
    """The capture underway on this thread."""
    capture = _thread.capture
    return capture if capture is not None and capture.is_open else None


def forget_closed() -> None:
    """Remove the modes of ended captures that could not be removed at their end."""
    _remove_modes(lambda capture: not capture.is_open)


class Choice(NamedTuple):
    """Stands for an operator in an :class:`Operation` that is a conditional node.

    Attributes:
        decision: what it decides by; its value is the argument of the operation.
        bodies: the operations of each body.
        goes_on: of a ``"while"``, the value after a turn.
    """

    decision: Decision
    bodies: list[list[Operation]]
    goes_on: torch.Tensor | None

    def __call__(self, value: torch.Tensor) -> None:
        """Run the bodies as the value says."""
        kind, limit = self.decision.kind, self.decision.limit
        if kind == "while":
            turns = itertools.count() if limit is None else range(limit)
            for _ in turns:
                if not value:
                    break
                self._run(0)
                assert self.goes_on is not None
                value = self.goes_on
        else:
            self._run(int(value) if kind == "switch" else int(not value))

    def _run(self, body: int) -> None:
        for operation in self.bodies[body] if 0 <= body < len(self.bodies) else ():
            operation.run()

    def __str__(self) -> str:
        return f"conditional {self.decision.kind}"


class HeldCall(NamedTuple):
    """Stands for an operator in an :class:`Operation` that is another call.

    Attributes:
        call: the function.
        op: the operator that it is, if it is one. Of other calls nobody uses the result.
    """

    call: Callable[..., Any]
    op: OpOverload | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        result = self.call(*args, **kwargs)
        return None if self.op is None else result

    def __str__(self) -> str:
        return str(getattr(self.call, "name", self.call))


class Operation(NamedTuple):
    """One recorded call, with internal tensors for arguments.

    ``targets`` holds, for each leaf of the result, the fixed tensor to copy it to, or ``None``
    where the call itself writes it or where it is no tensor. ``after`` has the positions of the
    operations that it waits for.
    """

    op: OpOverload | Choice | HeldCall
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: list[torch.Tensor | None]
    after: tuple[int, ...]

    def run(self) -> None:
        """Execute the call on the fixed memory."""
        result = self.op(*self.args, **self.kwargs)
        for target, value in zip(self.targets, pytree.tree_leaves(result), strict=True):
            if target is None or value is None:
                continue
            if target.shape != value.shape:
                raise CaptureError(
                    f"{self.op} gave a tensor of shape {tuple(value.shape)} on replay, where its "
                    f"fake implementation had said {tuple(target.shape)}."
                )
            target.copy_(value)


class Capture:
    """One capture underway on one thread, and what it has recorded so far.

    Its modes, on torch's mode stacks, refer to it. It does not refer to them, so no reference cycle
    keeps memory alive after its last user.
    """

    def __init__(self, pool: MemoryPool, generators: frozenset[int]) -> None:
        self.pool = pool
        #: Of what is captured now, the graph or a body in it; and of the graph itself.
        self.operations: list[Operation] = []
        self.own = self.operations
        self.thread = threading.get_ident()
        self.is_open = False
        self._generators = generators | {generator_id(torch.default_generator)}
        self._failure: str | None = None
        self._shapes = ShapeInference()
        # Tensors that are on the host also where there is a GPU, by storage.
        self._on_host: dict[int, torch.UntypedStorage] = {}

    def open(self) -> None:
        """Begin to see the operations of this thread."""
        forget_closed()
        self.is_open = True
        _thread.capture = self
        self._see()

    def check_end(self) -> None:
        """Raise where the capture may not end now; here it always may."""

    def newest(self) -> tuple[int, ...]:
        """The operations that the next one waits for: here the last one."""
        return (len(self.operations) - 1,) if self.operations else ()

    def add(self, operation: Operation) -> None:
        """Put an operation at the end."""
        self.operations.append(operation)

    def decide(self, decision: Decision, bodies: Sequence[Body]) -> None:
        """Record a conditional node."""
        parts, gave = zip(*map(self.of_body, bodies), strict=True)
        with outside_of_modes():
            value = self._internal(decision.value)
        choice = Choice(decision._replace(value=value), list(parts), gave[0])
        self.add(Operation(choice, (value,), {}, [None], self.newest()))

    def hold(
        self,
        call: Callable[..., Any],
        op: OpOverload | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call that is no operation; see ``EmulatedDevice.hold_call``."""
        with outside_of_modes():
            if op is not None:
                result = self.record(op, args, kwargs)
                self.operations[-1] = self.operations[-1]._replace(op=HeldCall(call, op))
                return result
            args, kwargs = self._internals(args, kwargs)
            self.add(Operation(HeldCall(call, None), args, kwargs, [None], self.newest()))
            return None

    def of_body(self, body: Body) -> tuple[list[Operation], torch.Tensor | None]:
        """The operations of ``body``, which are no operations of this list, and what it gives."""
        before, self.operations = self.operations, []
        try:
            value = body()
            with outside_of_modes():
                return self.operations, None if value is None else self._internal(value)
        finally:
            self.operations = before

    def _see(self) -> None:
        self._replaced = _host_calls_replaced()
        self._replaced.enter_context(hidden_modes())
        step_aside()
        (_, _, push_function), (_, _, push_dispatch) = MODE_STACKS
        push_function(_FunctionMode(self))
        # Not through __enter__: the flags it sets are of the process, not of the thread.
        mode = _DispatchMode(self)
        _thread.modes.append(mode)
        push_dispatch(mode)

    def close(self) -> None:
        """Stop seeing them; called on another thread, leave modes that do nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self._look_away()
        if threading.get_ident() == self.thread:
            _thread.capture = None
            _remove_modes(lambda capture: capture is self)

    def _look_away(self) -> None:
        self._replaced.close()
        step_back()

    def fail(self, error: CaptureForbidden) -> NoReturn:
        """Invalidate the capture because of ``error``, and raise it."""
        # The text, not the error: its traceback would keep every tensor of the capture alive.
        self._failure = self._failure or str(error)
        try:
            raise error
        finally:
            del error  # it would refer to this frame, which refers to it

    def check_valid(self, what: object) -> None:
        """Raise if an earlier operation was refused."""
        if self._failure is not None:
            raise CaptureForbidden(
                f"{what}: operation failed due to a previous error during capture. "
                f"The first error was: {self._failure}"
            ) from CaptureForbidden(self._failure)

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` would be on the host also where there is a GPU."""
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._on_host

    def check_call(self, func: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse calls that only a function mode can see."""
        read = rules.HOST_READ_FUNCTIONS.get(func)
        if read is not None and not (args[0].is_meta or self.on_host(args[0])):
            self.check_valid(read)
            self.fail(rules.HOST_READ.error(read))
        copy = rules.is_host_copy(func, args, kwargs, self.on_host)
        if copy is not None:
            self.check_valid(copy)
            self.fail(rules.HOST_COPY.error(copy))

    def record(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one operation, and return tensors like its results."""
        self.check_valid(op)
        flat, spec = pytree.tree_flatten((args, kwargs))
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        for tensor in tensors:
            self._check_kind(op, tensor)

        name = op._schema.name
        if name == "aten::lift_fresh" and (args[0].dim() == 0 or args[0].numel() == 0):
            return self.keep_on_host(op(*args, **kwargs))
        if tensors and all(map(self.on_host, tensors)):
            return self.keep_on_host(op(*args, **kwargs))
        self._check_permitted(op, args, kwargs, tensors)

        if name == "aten::resize_":
            shape = torch.empty(args[1], device="meta")
            return self._resize(args[0], shape.size(), shape.stride())
        if is_view(op) or torch.Tag.inplace_view in op.tags or not _has_tensors(op):
            return op(*args, **kwargs)

        try:
            results, resized = self._shapes.of(op, flat, spec)
        except CaptureForbidden as error:
            self.fail(error)
        for tensor, shadow in resized:
            self._resize(tensor, shadow.size(), shadow.stride())
        returned, targets = self._lend_results(op, results, args, kwargs)
        # A graph holds no allocations: what a replay does not write keeps what the last one left.
        if name not in ALLOCATIONS:
            if not tensors:
                kwargs = _with_dtype(op, kwargs, returned)
            args, kwargs = self._internals(args, kwargs)
            self.add(Operation(op, args, kwargs, targets, self.newest()))
        return returned

    def _check_kind(self, op: OpOverload, tensor: torch.Tensor, is_result: bool = False) -> None:
        if not is_result and type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            kind = f"of type {type(tensor).__module__}.{type(tensor).__qualname__}"
        elif tensor.is_nested:
            kind = "that is nested"
        elif tensor.layout is not torch.strided:
            kind = f"of layout {tensor.layout}"
        elif tensor.device.type != "cpu":
            kind = f"on device {tensor.device}"
        else:
            return
        self.fail(rules.TENSOR_KIND.error(f"{op} with a tensor {kind}"))

    def _check_permitted(
        self,
        op: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> None:
        """Refuse operations on the device that CUDA refuses."""
        name = op._schema.name
        call = Call(op, args, kwargs, self.on_host)
        why = refusal(call)
        if why is not None:
            self.fail(rules.operator_error(call, why))
        if name == "aten::lift_fresh":
            self.fail(rules.HOST_COPY.error("Making a tensor of host data"))
        if any(map(self.on_host, written_tensors(op, args, kwargs))):
            self.fail(rules.HOST_READ.error(f"{op} into a host tensor"))
        copied = copies_host_scalar(call)
        if any(self.on_host(t) for t in tensors if copied or t.dim()):
            self.fail(rules.HOST_COPY.error(f"{op} with a host tensor"))
        generator = generator_in(args, kwargs)
        if generator is not None and generator_id(generator) not in self._generators:
            self.fail(rules.GENERATOR.error(op))

    def keep_on_host(self, result: Any) -> Any:
        """Note that the tensors of ``result`` are on the host; returns it."""
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._on_host[storage._cdata] = storage
        return result

    def _lend_results(
        self, op: OpOverload, results: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[torch.Tensor | None]]:
        """The results of ``op`` for the user, and for each leaf where a replay has to copy it."""
        targets: list[torch.Tensor | None] = []

        def lend(shadow: Any) -> Any:
            if not isinstance(shadow, torch.Tensor):
                targets.append(None)
                return shadow
            self._check_kind(op, shadow, is_result=True)
            tensor = self._lend(shadow.size(), shadow.stride(), shadow.dtype)
            targets.append(self._internal(tensor))
            return tensor

        count = len(op._schema.returns)
        if count == 0:
            return None, [None]
        returned = []
        for position, result in enumerate(results if count > 1 else (results,)):
            written = returned_argument(op, position, args, kwargs)
            if written is None:
                returned.append(pytree.tree_map(lend, result))
            else:
                returned.append(written)
                targets += [None] * len(pytree.tree_leaves(written))
        return (tuple(returned) if count > 1 else returned[0]), targets

    def _lend(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        # Poison is written at once, and another graph of the pool may be running on that memory.
        with _stream:
            return self.pool.lend(size, stride, dtype)

    def _resize(self, tensor: torch.Tensor, size: Any, stride: Any) -> torch.Tensor:
        """``tensor.resize_(size)``, with memory of the pool where it has to grow."""
        shape = torch.empty_strided(size, stride, dtype=tensor.dtype, device="meta")
        storage, offset = tensor.untyped_storage(), tensor.storage_offset()
        if offset * tensor.dtype.itemsize + shape.untyped_storage().nbytes() > storage.nbytes():
            storage, offset = self._lend(size, stride, tensor.dtype).untyped_storage(), 0
        return tensor.set_(storage, offset, size, stride)

    def _internals(self, args: Any, kwargs: Any) -> Any:
        """The arguments of an operation. A tensor that comes twice is one: a kernel may ask."""
        made: dict[int, torch.Tensor] = {}

        def internal(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = self._internal(tensor)
            return made[id(tensor)]

        return pytree.tree_map_only(torch.Tensor, internal, (args, kwargs))

    def _internal(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that a replay uses for ``tensor``: the same memory, whatever becomes of it."""
        if self.on_host(tensor):
            return tensor.clone()  # passed by value
        twin = self.pool.internal(tensor)
        return tensor.detach() if twin is None else twin


class _FunctionMode(HiddenFunctionMode):
    """Sees calls that do not reach the dispatcher on CPU tensors."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self.capture = capture

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.capture.is_open:
            self.capture.check_call(func, args, kwargs)
            func = rules.AS_ON_CUDA.get(func, func)
        else:
            # A capture that ends inside of a call leaves this mode: torch had taken it off for the
            # call, and puts it back. Those of earlier captures lie below. Each would be a level of
            # Python's stack.
            forget_closed()
        return func(*args, **kwargs)


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Records every operation instead of running it."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.capture = capture

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.capture.is_open:
            return func(*args, **kwargs)
        if types and are_spread(types):
            return NotImplemented
        if is_composite(func):
            return run_composite(func, args, kwargs, self)
        with outside_of_modes():
            return self.capture.record(func, args, kwargs)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.capture: Capture | None = None
        # Dispatch modes on this thread's stack. torch up to 2.10 frees a mode when anybody pops it
        # that only the stack refers to, and then returns it.
        self.modes: list[_DispatchMode] = []


_thread = _Thread()


def _host_calls_replaced() -> ExitStack:
    """Make torch's own functions answer as they would during a capture on a GPU.

    It replaces them for all threads, since any thread may end a capture, by closing the result.
    Threads that do not capture get the original behaviour.
    """
    handlers: dict[str, Callable[..., Any]] = dict.fromkeys(IS_CAPTURING, _is_capturing)
    for path, rule in rules.REFUSED_CALLS.items():
        handlers[path] = partial(_refuse, rule, f"{path}()")
    with ExitStack() as stack:
        for path, handler in handlers.items():
            place = torch_place(path)
            if place is not None:
                stack.enter_context(intercept(*place, handler, everywhere=True))
        return stack.pop_all()


def _is_capturing(original: Callable[[], bool]) -> bool:
    return current_capture() is not None or original()


def _refuse(rule: rules.Rule, call: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    capture = current_capture()
    if capture is not None:
        capture.fail(rule.error(call))
    return original(*args, **kwargs)


def _remove_modes(which: Callable[[Capture], bool]) -> None:
    """Take modes of captures off this thread's stacks, also from under the modes of others."""
    kinds = (_FunctionMode, _DispatchMode)
    for mode in remove_modes(lambda mode: isinstance(mode, kinds) and which(mode.capture)):
        if mode in _thread.modes:
            _thread.modes.remove(mode)


def _forget() -> None:
    """End the capture in a child of fork()."""
    capture, _thread.capture = _thread.capture, None
    if capture is not None:
        capture.is_open = False
    forget_closed()


in_child(_forget)


@cache
def _has_tensors(op: OpOverload) -> bool:
    """Whether ``op`` takes or gives tensors; host code, such as the profiler's, does neither."""
    return any("Tensor" in str(v.type) for v in (*op._schema.arguments, *op._schema.returns))


def _with_dtype(op: OpOverload, kwargs: dict[str, Any], returned: Any) -> dict[str, Any]:
    """A dtype left out means torch's default of the moment; a replay may come under another."""
    takes_dtype = any(argument.name == "dtype" for argument in op._schema.arguments)
    if takes_dtype and kwargs.get("dtype") is None and isinstance(returned, torch.Tensor):
        return {**kwargs, "dtype": returned.dtype}
    return kwargs
