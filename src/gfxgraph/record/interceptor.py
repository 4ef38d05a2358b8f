"""Intercepts a run of a function: every operation, and every point that a capture cannot pass.

An :class:`Interceptor` is a function mode and a dispatch mode on one thread. It follows
*provenance* from storage to storage: which outside tensors a tensor's data depends on. Subclasses
decide what happens at each point. :class:`~gfxgraph.record.recorder.Recorder` runs it and remembers
the result. The tracer of a capture puts the remembered result in its place.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..device import capture_rules
from ..device.operator_table import Call, copies_host_scalar, may_refuse, refusal
from ..device.operators import (
    ALLOCATIONS,
    draws_in,
    generator_in,
    is_composite,
    is_in_python,
    is_view,
    may_write,
    run_composite,
    run_in_python,
    written_tensors,
)
from ..device.overrides import (
    MODE_STACKS,
    HiddenFunctionMode,
    UnwrappedDispatchMode,
    WithoutModes,
    are_spread,
    hidden_modes,
    remove_modes,
)
from ..forking import in_child
from ..interpose.codes import address
from ..interpose.cuda_calls import Answer
from ..interpose.dynamo import Uncompiled
from ..interpose.interrupts import let_in, waiting
from ..interpose.patch import Claim, find, intercept, override
from ..interpose.source import asked_by_the_user
from .below import (
    CALLS_BELOW,
    NUMBERS,
    READS_BELOW,
    READS_ITEMS,
    read_below,
)
from .effects import tensors_in
from .exchanges import Collective, TakesPart
from .handed import Hands
from .journal import perform
from .provenance import NO_ROOTS, Provenance, ProvenanceMap
from .questions import (
    ARRAYS,
    ASKED,
    BESIDE_LOOK,
    GRADS,
    POINTERS,
    REBINDS,
    TELLS_APART,
    TENSORS_OF_ARRAYS,
    Dependence,
    of_argument,
    of_outside,
)
from .storages import calls_of_storages

__all__ = [
    "Interceptor",
    "Point",
    "current_interceptor",
    "is_looked_away_from",
    "lifting_of_host_data",
]


_READS = {"aten::_local_scalar_dense": "Tensor.item()", "aten::equal": "torch.equal()"}
_OVERWRITES = frozenset({"aten::copy_", "aten::fill_", "aten::zero_"})
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::_copy_from"})
_MOVES = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})
_RESIZES = frozenset({"inductor::resize_storage_bytes_", "fsdp::set_"})
_PYTHON = torch._C.DispatchKey.Python
_LIFT = torch.ops.aten.lift_fresh.default
# Higher-order operators that read data to choose what they run, unseen by any mode.
_DECISIONS = frozenset({"cond", "while_loop", "while_loop_stack_output"})
_AS_STRIDED = torch.ops.aten.as_strided.default
_INDEXING = frozenset(
    f"aten::{name}"
    for name in (
        "_index_put_impl_",
        "_unsafe_index",
        "_unsafe_index_put",
        "index",
        "index_put",
        "index_put_",
    )
)


class _Local(threading.local):
    interceptor: Interceptor | None = None


_local = _Local()


def current_interceptor() -> Interceptor | None:
    """The interceptor of this thread, while it sees a function run."""
    found = _local.interceptor
    return found if found is not None and not found.quiet else None


def is_looked_away_from() -> bool:
    """Whether this thread is in what an interceptor takes for one point, and does not look into."""
    found = _local.interceptor
    return found is not None and bool(found.quiet)


class Point(NamedTuple):
    """A point that a capture cannot pass.

    Attributes:
        rule: id in the catalogue.
        what: the API or the operator.
        kind: ``"read"``: it gives a Python value; ``"constant"``: it copies a host tensor to the
            device; ``"call"``: an operation that a capture cannot hold.
        depends: the tensors that its outcome depends on.
    """

    rule: str
    what: str
    kind: Literal["read", "constant", "call"]
    depends: tuple[torch.Tensor, ...]


class Interceptor:
    """See the module.

    Args:
        device_type: what ``tensor.device.type`` is on the device.
        inputs: the tensors that hold the arguments.
        varying: storage keys of outside tensors that change from call to call.
        forced: operators (``"aten::foo.bar"``) at which a capture has failed.
        follows: whether to follow provenance. Without, all data counts as the same in each call,
            which is right for a run that repeats one without breaks.
        only: see operations only in the calls of torch's functions with these numbers. Default: in
            all.

    Attributes:
        call: the number of the current call of a torch function; ``None``: outside of one.
        calls: how many there were.
        modes: the function mode and the dispatch mode; empty: not watching.
        data_reads: how often the function has learned something that depends on data.
    """

    def __init__(
        self,
        device_type: str,
        inputs: Iterable[torch.Tensor],
        varying: Iterable[int] = (),
        forced: Iterable[str] = (),
        follows: bool = True,
        only: frozenset[int] | None = None,
    ) -> None:
        self.call: int | None = None
        self.data_reads = 0
        self.calls = 0
        self._follows = follows
        self._only = only
        self.device_type = device_type
        self.emulated = device_type == "cpu"
        self.quiet = 0
        #: Names of memory that nobody has written to, see :class:`Hands`.
        self.undefined: set[int] = set()
        self.handling = 0  # whether we handle an operation, with our dispatch mode off the stack
        self.modes: tuple[TorchFunctionMode, TorchDispatchMode] | tuple[()] = ()
        self._uncompiled = Uncompiled()
        self.forced = frozenset(forced)
        self.provenance = provenance = ProvenanceMap(device_type, inputs, varying)
        # Looked up for each operation.
        self.name, self.inputs = provenance.name, provenance.inputs
        self.inside, self.outside = provenance.inside, provenance.outside
        # On the emulated device: also what would be on the host where there is a GPU.
        self.elsewhere = provenance.name.elsewhere

    # For subclasses.

    def operation(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
    ) -> Any:
        """Run an operation that a capture can hold; ``tensors``: those among its arguments."""
        raise NotImplementedError

    def event(
        self,
        point: Point,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Handle a point that a capture cannot pass, and return the result of the call.

        For a constant, ``args`` is the host tensor and the result is the tensor on the device.
        """
        raise NotImplementedError

    def wrote(self, tensor: torch.Tensor) -> None:
        """An outside tensor is about to be written."""

    def made(self, key: int, tensor: torch.Tensor) -> None:
        """An operation returned this tensor, on new memory with the name ``key``."""

    def met(self, rule: str, what: str, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Something worth a note happened."""

    def will_draw(self, generator: torch.Generator | None) -> None:
        """An operation may be about to draw from ``generator``; ``None``: from a default one."""

    def drew(self, repeats: bool) -> None:
        """The operation has run; ``repeats``: the host repeats it in each replay."""

    def called_compiled(self) -> None:
        """A compiled function was called; it ran uncompiled."""

    def takes_part(self, collective: Collective) -> None:
        """The run takes part in a collective."""

    def refuse(self, rule: str, what: str, more: str = "") -> None:
        """The run is about to do what no replay would do."""

    def moves(self, tensor: torch.Tensor, what: str) -> None:
        """A tensor on memory from outside is about to get another shape, or other memory."""

    def lend(self, array: Any, what: str) -> Any:
        """The function gets an array on memory from outside; gives the array that it gets."""
        return array

    def takes(self, array: Any, what: str) -> None:
        """The function is about to make a tensor on the memory of ``array``."""

    def reads_on_host(self, tensors: Iterable[torch.Tensor]) -> None:
        """The host has read these, which are in its memory; a graph uses what came out."""

    def tells_apart(self, tensor: Any) -> None:
        """The function asks what tells a tensor from a copy of it."""

    def holds(self, tensor: torch.Tensor, name: str, value: Any) -> None:
        """The function has asked an outside tensor for a tensor that it holds."""

    def laid_out(self, how: Dependence, what: str) -> None:
        """A call depends on how an argument lies in memory."""

    # For the modes.

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Intercept the calls of this thread."""
        before, _local.interceptor = _local.interceptor, self
        self.modes = modes = (_FunctionMode(self), _DispatchMode(self))
        self._uncompiled = Uncompiled()
        try:
            with (
                self._uncompiled,
                hidden_modes(),
                lifting_of_host_data(),
                modes[0],
                nullcontext() if self._only else modes[1],
                _launches_of_triton(self),
                calls_of_storages(self._of_a_storage),
            ):
                yield
        finally:
            if self._uncompiled.asked:
                self.called_compiled()
            self.modes = ()  # they hold us, and we hold tensors
            _local.interceptor = before

    def to_top(self) -> None:
        """Put our modes above those of a capture of the emulated device."""
        for mode in remove_modes(lambda mode: mode in self.modes):
            _, _, push = MODE_STACKS[self.modes.index(mode)]
            push(mode)

    def quietly(self) -> AbstractContextManager[None]:
        """Ignore calls inside: they are part of one point."""
        return _Quietly(self)

    def unseen(self) -> AbstractContextManager[None]:
        """Inside, no mode is there."""
        return _Unseen(self)

    def user_call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function that is marked to run eagerly."""
        name = getattr(fn, "__qualname__", repr(fn))
        hands = None
        if self.undefined:
            with self.quietly():
                keys = list(map(self.name, tensors_in(args, kwargs)))
            hands = self._hands(keys)
            self.undefined.difference_update(keys)
        once = functools.partial(perform, fn, hands)
        result = self.event(Point("no-graph", f"{name}()", "call", ()), once, args, kwargs)
        self._made_by_host((args, kwargs), result)
        return result

    def exchange(
        self, fn: TakesPart, collective: Collective, args: Any, kwargs: Any, is_held: bool
    ) -> Any:
        """Take part in a collective.

        Args:
            fn: does so.
            collective: what it is to the user.
            args: its arguments.
            kwargs: its keyword arguments.
            is_held: whether a graph will hold it. If not, it runs eagerly between two graphs.
        """
        with self.quietly():
            given, written = tensors_in(args, kwargs), fn.written(args, kwargs)
            keys = list(map(self.name, given))
            hands = self._hands(keys)
            for key, tensor in zip(keys, given, strict=True):
                if key not in self.inside:
                    self.provenance.see(key, tensor)
            for tensor in written:
                if self.name(tensor) not in self.inside:
                    self.wrote(tensor)
                self.undefined.discard(self.name(tensor))
        self.takes_part(collective)
        once = functools.partial(perform, fn, hands)
        if is_held:
            with self.quietly():
                result = once(*args, **kwargs)
        else:
            point = Point("collective", collective.name, "call", ())
            result = self.event(point, once, args, kwargs)
        self._made_by_host(written, result)
        return result

    def _hands(self, keys: Sequence[int]) -> Hands:
        """Say which tensors of a call nobody has written to. A capture says more."""
        return Hands(undefined=frozenset(n for n, key in enumerate(keys) if key in self.undefined))

    def _made_by_host(self, given: Any, result: Any) -> None:
        """The host may have written to ``given``, and has made ``result``."""
        with self.quietly():  # our own calls are none of the function's
            for tensor in tensors_in(given, result):
                self.provenance.mark(self.name(tensor), None)
            self.inside.update(map(self.name, tensors_in(result)))

    def observe(self, kind: str, what: str, detail: Any) -> object:
        """Handle a host call that is no operation; an :data:`Observer`."""
        if self.quiet:
            return None
        if kind == "synchronize":  # in a graph there is nothing to wait for
            self.met(kind, what)
            return True
        if kind == "seed":
            result = self.event(Point(kind, what, "call", ()), _named(what), detail, {})
            self._made_by_host((), result)
            return Answer(result)
        return None

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a call that the function mode saw."""
        self.calls = call = self.calls + 1
        before, self.call = self.call, call
        try:
            if self._only is not None and self.modes:
                if call not in self._only:
                    return func(*args, **kwargs)
                with self.modes[1]:
                    return self.function(func, args, kwargs)
            if func in TELLS_APART and args and not (self.quiet or self.handling):
                self.tells_apart(args[0])
            if func in _SPECIAL:
                return self.function(func, args, kwargs)
            return func(*args, **kwargs)
        finally:
            self.call = before

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle one of those in which operations are seen."""
        if self.quiet or func not in _SPECIAL:
            return func(*args, **kwargs)
        if self.emulated:
            func = capture_rules.AS_ON_CUDA.get(func, func)
        if func in READS_ITEMS:
            args, kwargs = self._read_items(func, args, kwargs)
        if not args or not isinstance(args[0], torch.Tensor):
            if args and func in TENSORS_OF_ARRAYS:
                self.takes(args[0], TENSORS_OF_ARRAYS[func])
            return self._copying_call(func, args, kwargs)
        tensor = args[0]
        if func in NUMBERS and torch._C._dispatch_tls_is_dispatch_key_excluded(_PYTHON):
            # torch.FloatTensor([tensor]): C++ keeps the operations from all modes.
            kind = type(func(tensor))
            return kind(self._read(torch.Tensor.tolist, (tensor,), {}))
        if func in READS_BELOW:
            args, kwargs = self._read_below(func, args, kwargs)
        elif func in CALLS_BELOW:
            return self._call_below(func, args, kwargs)
        if func in ASKED and not self.handling:  # or it is our code that asks
            self.data_reads += func in BESIDE_LOOK
            self._asked(func, tensor)
        pointer = POINTERS.get(func)
        if pointer is not None and not (self.handling and func is torch.Tensor.untyped_storage):
            self.expose([tensor], pointer)
        if func in GRADS and self.name(tensor) not in self.inside:
            value = func(*args, **kwargs)
            self.holds(tensor, "grad", value)
            return value
        if func in ARRAYS and tensor.device.type == "cpu" and self.name(tensor) not in self.inside:
            return self.lend(self._read(func, args, kwargs), ARRAYS[func])
        return self._read(func, args, kwargs)

    def _read_below(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Read first what a function would read unseen; gives its arguments with that."""
        found = read_below(func, args, kwargs)
        if found is None:
            return args, kwargs
        where, tensor = found
        values: Any = self._read(torch.Tensor.tolist, (tensor,), {})
        if not (self.on_device(tensor) or self.may_vary([tensor])):
            return args, kwargs
        if "split" not in READS_BELOW[func]:
            with self.unseen():
                values = torch.tensor(values, dtype=tensor.dtype)
        if isinstance(where, str):
            kept = {name: value for name, value in kwargs.items() if name != where}
            return args, {**kept, "indices": values}
        return (*args[:where], values, *args[where + 1 :]), kwargs

    def _read_items(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with numbers for the tensors in lists, which the call would read unseen."""
        lists = [v for v in (*args, *kwargs.values()) if isinstance(v, (list, tuple))]
        if not tensors_in(lists):
            return args, kwargs
        with self.unseen():
            dtype = func(*args, **kwargs).dtype

        def read(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return list(map(read, value))
            if isinstance(value, torch.Tensor):
                return self._read(torch.Tensor.tolist, (value,), {})
            return value

        def read_lists(value: Any) -> Any:
            return read(value) if isinstance(value, (list, tuple)) else value

        args = tuple(map(read_lists, args))
        kwargs = {name: read_lists(value) for name, value in kwargs.items()}
        return args, kwargs if func is torch.Tensor.new else {**kwargs, "dtype": dtype}

    def _call_below(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = tuple(tensors_in(args, kwargs))
        self.data_reads += 1
        if not self.may_vary(tensors) and not any(map(self.on_device, tensors)):
            return func(*args, **kwargs)
        point = Point("host-read", CALLS_BELOW[func], "call", tensors)
        return self._event_with_flow(point, func, args, kwargs)

    def _asked(self, func: Any, tensor: torch.Tensor) -> None:
        """Note what a call asks of a tensor beside its data, or binds anew there."""
        key = self.name(tensor)
        if key in self.inside:
            return
        if func in REBINDS:
            refuses, what = REBINDS[func]
            if refuses:
                self.refuse("side-effect", what)
            self.moves(tensor, what)
        if key in self.inputs:
            depends = of_argument(func, tensor)
            if depends is not None:
                self.laid_out(*depends)
        else:
            asked = of_outside(func, tensor)
            if asked is not None:
                self.refuse(*asked)

    def _read(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a call that may read the device, or copy host data there."""
        name = capture_rules.HOST_READ_FUNCTIONS.get(func)
        if name is None:
            return self._copying_call(func, args, kwargs)
        self.data_reads += 1
        tensor = args[0]
        on_device = self.on_device(tensor)
        if func is torch.Tensor.cpu:
            if on_device and self.emulated:
                point = Point("host-read", name, "call", (tensor,))
                return self._event_with_flow(point, torch.Tensor.clone, args, {})
        elif (on_device and (self.emulated or func not in ARRAYS)) or (  # which raise
            not on_device and self.may_vary([tensor])
        ):
            return self.event(Point("host-read", name, "read", (tensor,)), func, args, kwargs)
        if not on_device:
            self.reads_on_host([tensor])
        return func(*args, **kwargs)

    def dispatch(
        self, func: Any, op: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Handle an operation that the dispatch mode saw; ``op``: facts about ``func``."""
        if op.end and not kwargs:
            tensors = [value for value in args[: op.end] if isinstance(value, torch.Tensor)]
        else:
            tensors = tensors_in(args, kwargs)
        written = list(written_tensors(func, args, kwargs)) if op.writes else []
        keys = list(map(self.name, tensors))
        sources = NO_ROOTS
        if self._follows:
            inside, outside = self.inside, self.outside
            if func is _LIFT:  # torch.tensor(2.0): made in this run
                inside.add(keys[0])
            for key, tensor in zip(keys, tensors):  # noqa: B905 - of one length
                if key not in inside and key not in outside:
                    self.provenance.see(key, tensor)
            for tensor in written:
                if self.name(tensor) not in inside:
                    self.wrote(tensor)
            # By position: in `t.copy_(t)` the tensor that is written is also the one that is read.
            sources = self.provenance.joined(keys[1:] if op.overwrites else keys)
        if self.undefined and not op.is_view:
            self.undefined.difference_update(keys)
        if op.is_odd and not self.quiet:
            self._note(func, op, args, kwargs, tensors)
        elsewhere = self.elsewhere
        if elsewhere.isdisjoint(keys):
            host = []
        else:
            host = [t for key, t in zip(keys, tensors, strict=True) if key in elsewhere]
        # Attention without dropout draws nothing.
        may_draw = op.may_draw and (not op.draws or draws_in(func, args, kwargs))
        if may_draw:
            self.will_draw(generator_in(args, kwargs))
        point = None
        if op.decides and not self.quiet:
            # Nobody sees what its branches reach beside their arguments.
            point, sources = Point("host-read", f"torch.{func.name()}()", "call", (*tensors,)), None
            self.data_reads += 1
        # For most operators, the devices of their tensors decide whether a capture can hold them.
        if (host or not op.plain or op.name in self.forced) and op.is_known and not self.quiet:
            point = self._point(func, args, kwargs, tensors, host, written)
        if point is None:
            if self.quiet or (
                len(host) == len(tensors) if tensors else not self._makes_device_tensor(kwargs)
            ):
                result = func(*args, **kwargs)
            else:
                result = self.operation(func, args, kwargs, tensors)
            # Of set_() the result is where the memory is that it was given.
            moved = op.moves and bool(host) and self.name(tensors[0]) not in elsewhere
            if host and len(host) == len(tensors) and not moved:
                self._keep_on_host(result)
        elif point.kind == "constant":
            args, kwargs = self._with_constants(point, func, args, kwargs)
            if func is _LIFT:
                result = args[0]
            elif func._schema.name == "aten::_to_copy":
                result = args[0].to(kwargs.get("dtype") or args[0].dtype)
            else:
                result = self.operation(func, args, kwargs, tensors_in(args, kwargs))
        else:
            result = self.event(point, func, args, kwargs)
        if may_draw:
            self.drew(bool(self.quiet) or (point is not None and point.kind == "call"))
        if func is _LIFT and not self.quiet and args[0].dim() == 0:
            self._keep_on_host(result)
        if op.allocates:
            self.undefined.update(map(self.name, tensors_in(result)))
        if self._follows:
            if op.draws and may_draw:
                self.met("random", str(func))
            self._flow(func, op, sources, keys, written, result)
        if host and point is None and not self.quiet and not self.emulated:
            self._flow_on_host(tensors, result)
            # What goes to the device without a point, a graph copies itself from pinned memory.
            goes = op.copies and any(map(self.on_device, tensors_in(result)))
            if not goes and not op.is_view:
                self.reads_on_host(host)
        return result

    def _note(
        self,
        func: OpOverload,
        op: _Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> None:
        """Note what is special about an operator."""
        if self._follows and op.moves and self.name(tensors[0]) not in self.inside:
            self.moves(tensors[0], str(func))
        if self._follows and op.asks_layout:
            self._ask_layout(func, args, kwargs, tensors)
        if op.nested:
            self.met("nested-tensor", str(func))
        if op.resizes:
            self.refuse("side-effect", str(func))

    def expose(self, tensors: Iterable[torch.Tensor], what: str) -> None:
        """From now on, a kernel that torch does not know may read and write these."""
        tensors = list(tensors)
        self.met("unknown-kernel", what, tensors)
        for tensor in tensors:
            key = self.name(tensor)
            self.undefined.discard(key)
            self.provenance.see(key, tensor)
            self.provenance.expose(key)

    def _of_a_storage(self, name: str, storage: torch.UntypedStorage) -> None:
        if self.quiet or self.handling:
            return
        if name == "data_ptr":
            is_ours = storage._cdata in self.inside
            if is_ours or storage.device.type != "cpu" or not asked_by_the_user():
                return
        self.refuse("side-effect", f"UntypedStorage.{name}()")

    def _ask_layout(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> None:
        """Note operators that depend on more of an argument than its elements."""
        given = [t for t in tensors if self.name(t) in self.inputs]
        if not given or self.quiet:
            return
        how: Dependence = "layout"
        if func is _AS_STRIDED:
            offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
            # A static input does not get the memory between the elements.
            if offset is not None or not given[0].is_contiguous():
                how = "place"
        self.laid_out(how, str(func))

    # Devices and provenance.

    def on_device(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is, or would be, on the device."""
        if tensor.device.type != self.device_type:
            return False
        return not (self.emulated and self.elsewhere and self.name(tensor) in self.elsewhere)

    def is_outside(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is on memory that is no argument's, and that the run has not made."""
        key = self.name(tensor)
        return key not in self.inside and key not in self.inputs

    def roots(self, tensors: Iterable[torch.Tensor]) -> Provenance:
        """The provenance of the data of ``tensors``."""
        return self.provenance.joined(map(self.name, tensors))

    def may_vary(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether the data of ``tensors`` may be other data in the next call."""
        return self._follows and self.roots(tensors) is None

    def _flow(
        self,
        func: Any,
        op: _Operator,
        roots: Provenance,
        keys: list[int],
        written: list[torch.Tensor],
        result: Any,
    ) -> None:
        if op.draws or op.allocates:  # memory: until an operation that we know has written it
            roots = None
        if op.sets_memory:
            # It writes no data: `written` lies in other memory now, which the run may have met.
            for tensor in written:
                self.provenance.see(self.name(tensor), tensor)
            return
        for tensor in written:
            self.provenance.write(tensor, roots, op.overwrites)
        for tensor in (result,) if isinstance(result, torch.Tensor) else tensors_in(result):
            key = self.name(tensor)
            if key in keys:
                continue
            if op.is_view and keys and keys[0] not in self.inside:
                # A part of a tensor that the run has not made: the values of a sparse one, or what
                # lies inside a subclass.
                self.provenance.see(key, tensor)
            elif self.provenance.give(key, roots):
                self.made(key, tensor)

    def _flow_on_host(self, tensors: list[torch.Tensor], result: Any) -> None:
        """A result on the host for which nobody waited does not depend on data of the device."""
        results = [t for t in tensors_in(result) if not self.on_device(t)]
        if results and any(map(self.on_device, tensors)):
            roots = self.roots(t for t in tensors if not self.on_device(t))
            for tensor in results:
                self.provenance.mark(self.name(tensor), roots)

    def _event_with_flow(
        self, point: Point, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Handle a point whose result is made of the data that it depends on."""
        result = self.event(point, func, args, kwargs)
        self._flow_to(result, self.roots(point.depends))
        return result

    def _flow_to(self, result: Any, roots: Provenance) -> None:
        for tensor in tensors_in(result):
            key = self.name(tensor)
            self.provenance.mark(key, roots)
            self.inside.add(key)
            if self.emulated:
                self.elsewhere.discard(key)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operator; if it is written in Python, see what tensors it uses inside."""
        known = _operators.get(address(func))
        if known is None or not known.is_in_python or not self._follows:
            return func(*args, **kwargs)
        return run_in_python(func, args, kwargs, tensors_in(args, kwargs), _InsideOperator(self))

    def uses(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator that is written in Python calls ``func``."""
        for tensor in tensors_in(args, kwargs):
            self.provenance.see(self.name(tensor), tensor)
        for tensor in written_tensors(func, args, kwargs) if isinstance(func, OpOverload) else ():
            if self.name(tensor) not in self.inside:
                self.wrote(tensor)

    # Which points there are.

    def _point(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        host: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> Point | None:
        name = func._schema.name
        everything = tuple(tensors)
        if name in _READS:
            self.data_reads += 1
            if len(host) < len(tensors):
                reads = self._refused(func, args, kwargs) is not None
            else:
                reads = self.may_vary(tensors)
            return Point("host-read", _READS[name], "read", everything) if reads else None
        if self.emulated and func is _LIFT:
            lifts = args[0].dim() > 0 and args[0].numel() > 0
            return Point("host-constant", "data of the host", "constant", ()) if lifts else None
        if is_view(func) or torch.Tag.inplace_view in func.tags:
            return None
        to_device = self._makes_device_tensor(kwargs)
        on_host = len(host) == len(tensors) and not to_device
        if on_host and draws(func) and _is_of_cpu(kwargs) and generator_in(args, kwargs) is None:
            # The host repeats it, from the default generator of the CPU, as in eager execution.
            return Point("host-compute", str(func), "call", everything)
        if tensors and len(host) == len(tensors):
            if name == "aten::_to_copy" and to_device:
                if not (self.emulated or any(t.numel() for t in host)):
                    return None  # there is nothing to copy
                return self._host_constant(f"{func} of a host tensor", host)
            if self.may_vary(tensors) or any(self.name(t) in self.outside for t in written):
                return Point("host-compute", str(func), "call", everything)
            return None
        if name in _COPIES and (
            any(not self.on_device(t) for t in written) or (kwargs.get("device") and not to_device)
        ):
            return Point("host-read", f"{func} to the host", "call", everything)
        # Few operators copy a host operand to the device. Others take it by value, need it on the
        # host, or raise.
        numbers = copies_host_scalar(Call(func, args, kwargs, self._on_host))
        tensors_too = self.emulated or name in _INDEXING or name in _COPIES
        if not self.may_vary(host):
            host = [t for t in host if t.numel() and (tensors_too if t.dim() else numbers)]
        if host:
            return self._host_constant(f"{func} of a host tensor", host)
        rule = self._refused(func, args, kwargs)
        return None if rule is None else Point(rule, str(func), "call", everything)

    def _host_constant(self, what: str, host: Iterable[torch.Tensor]) -> Point:
        kind: Literal["call", "constant"] = "call" if self.may_vary(host) else "constant"
        return Point("host-constant", what, kind, tuple(host))

    def _refused(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """The rule by which a capture refuses ``func``; ``None``: it does not."""
        if func._name in self.forced:
            return "forbidden-call"
        return refusal(Call(func, args, kwargs, self._on_host))

    def _on_host(self, tensor: torch.Tensor) -> bool:
        return not self.on_device(tensor)

    def _makes_device_tensor(self, kwargs: dict[str, Any]) -> bool:
        device = kwargs.get("device")
        if device is None:
            return self.emulated
        return torch.device(device).type == self.device_type

    # Constants.

    def _with_constants(
        self, point: Point, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``args`` and ``kwargs`` with each host tensor replaced by a constant on the device."""
        if func._schema.name == "aten::_to_copy" or func is _LIFT:
            device = kwargs.get("device")
            return (self._constant(point, args[0], device), *args[1:]), {
                k: v for k, v in kwargs.items() if k != "device"
            }
        device = next(t.device for t in tensors_in(args, kwargs) if self.on_device(t))

        def replace(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                if any(item is t for t in point.depends):
                    return self._constant(point, item, device)
                return item
            if isinstance(item, (tuple, list)):
                return type(item)(map(replace, item))
            return item

        return replace(args), {k: replace(v) for k, v in kwargs.items()}

    def _constant(self, point: Point, host: torch.Tensor, device: Any) -> torch.Tensor:
        run: Callable[..., torch.Tensor] = functools.partial(_to_device, device=device)
        constant: torch.Tensor = self.event(point, run, (host,), {})
        self._flow_to(constant, self.roots([host]))
        return constant

    def _copying_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that may copy host data to the device."""
        copy = self.emulated and capture_rules.is_host_copy(func, args, kwargs, self._on_host)
        if not copy:
            return func(*args, **kwargs)
        host = tensors_in(args, kwargs)
        if func is torch.Tensor.new_tensor:
            host = host[1:]
        return self._event_with_flow(self._host_constant(copy, host), func, args, kwargs)

    def _keep_on_host(self, result: Any) -> None:
        if self.emulated:
            self.elsewhere.update(map(self.name, tensors_in(result)))


# Calls of these functions of torch matter beside their operations.
_SPECIAL = frozenset(
    (
        *NUMBERS,
        *READS_BELOW,
        *READS_ITEMS,
        *CALLS_BELOW,
        *ASKED,
        *POINTERS,
        *GRADS,
        *ARRAYS,
        *TENSORS_OF_ARRAYS,
        *capture_rules.HOST_READ_FUNCTIONS,
        *capture_rules.HOST_COPIES,
        *capture_rules.AS_ON_CUDA,
    )
)


class _Quietly(AbstractContextManager[None]):
    """See :meth:`Interceptor.quietly`; a class as :class:`WithoutModes` is."""

    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor

    def __enter__(self) -> None:
        self._interceptor.quiet += 1

    def __exit__(self, *error: object) -> None:
        self._interceptor.quiet -= 1


class _Unseen(WithoutModes):
    """See :meth:`Interceptor.unseen`."""

    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor

    def __enter__(self) -> None:
        self._interceptor.quiet += 1
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._interceptor.quiet -= 1


class _FunctionMode(HiddenFunctionMode):
    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()
        self._interceptor = interceptor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if waiting:
            let_in(sys._getframe(1))
        return self._interceptor.called(func, args, kwargs or {})


class _InsideOperator(UnwrappedDispatchMode):
    """Sees the operations inside an operator of the program's, whose schema may leave them out."""

    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._interceptor = interceptor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        interceptor = self._interceptor
        interceptor.uses(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            key = interceptor.name(tensor)
            if key not in interceptor.outside and key not in interceptor.inputs:
                interceptor.inside.add(key)
        return result


class _DispatchMode(UnwrappedDispatchMode):
    # Operators such as flex_attention pass through whole.
    supports_higher_order_operators = True

    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._interceptor = interceptor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and are_spread(types):
            return NotImplemented
        op = _operators.get(address(func)) or _operator(func)
        if op.composite:
            return run_composite(func, args, kwargs or {}, self)
        if waiting:
            let_in(sys._getframe(1))
        interceptor = self._interceptor
        interceptor.handling += 1
        try:
            return interceptor.dispatch(func, op, args, kwargs or {})
        finally:
            interceptor.handling -= 1


def _named(call: str) -> Callable[..., Any]:
    """The function that is found at ``torch.manual_seed()`` when it is called."""
    *path, name = call.removesuffix("()").split(".")[1:]

    def function(*args: Any) -> Any:
        return getattr(functools.reduce(getattr, path, torch), name)(*args)

    return function


def draws(func: Any) -> bool:
    """Whether an operator takes random numbers from a generator."""
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def _is_of_cpu(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is None or torch.device(device).type == "cpu"


class _Operator:
    """Facts about an operator that each call needs. These here hold for a higher-order one."""

    is_known = is_in_python = composite = is_view = is_odd = False
    overwrites = writes = copies = False
    draws = allocates = moves = sets_memory = asks_layout = nested = resizes = False
    may_draw = plain = True
    name, end = "", 0

    def __init__(self, func: Any) -> None:
        self.func = func  # alive, so that its address stays its own
        #: Reads data to choose what it runs.
        self.decides = isinstance(func, HigherOrderOperator) and func.name() in _DECISIONS


class _KnownOperator(_Operator):
    is_known = True

    def __init__(self, func: OpOverload) -> None:
        super().__init__(func)
        name = func._schema.name
        self.name, self.composite, self.is_view = func._name, is_composite(func), is_view(func)
        self.is_in_python = is_in_python(func)
        self.allocates = name in ALLOCATIONS
        self.nested = name.startswith("aten::_nested_") and not name.endswith("_left_aligned")
        # Operators of other libraries may depend on strides and addresses.
        self.asks_layout = func is _AS_STRIDED or func.namespace not in ("aten", "prims")
        self.draws = draws(func)
        #: Also operators whose tags do not say so: with a generator, or of another library.
        self.may_draw = (
            self.draws
            or not name.startswith(("aten::", "prim"))
            or "dropout" in name
            or any("Generator" in str(argument.type) for argument in func._schema.arguments)
        )
        #: Gives its first argument another shape or other memory.
        self.moves = name in _MOVES or torch.Tag.inplace_view in func.tags
        self.sets_memory = name == "aten::set_"
        self.resizes = name in _RESIZES
        self.is_odd = self.asks_layout or self.nested or self.moves or self.resizes
        self.overwrites, self.copies = name in _OVERWRITES, name in _COPIES
        self.writes = may_write(func)
        self.end = _end_of_tensors(func)
        #: A capture can hold it wherever all its tensors are on the device.
        self.plain = func is not _LIFT and (
            self.is_view
            or torch.Tag.inplace_view in func.tags
            or not (self.draws or name in _READS or self.copies or may_refuse(func))
        )


def _end_of_tensors(func: OpOverload) -> int:
    """How many of its first arguments may be tensors; 0: there may be some in lists, or by name."""
    end = 0
    for position, argument in enumerate(func._schema.arguments):
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]") and not argument.kwarg_only:
            end = position + 1
        elif not _WITHOUT_TENSORS.fullmatch(kind):
            return 0
    return end


_WITHOUT_TENSORS = re.compile(
    r"(Optional\[|List\[)*(int|float|bool|complex|number|str|Device|Generator)\]*"
)

# By address: an operator is hashed in Python.
_operators: dict[int, _Operator] = {}


def _operator(func: Any) -> _Operator:
    made = _KnownOperator(func) if isinstance(func, OpOverload) else _Operator(func)
    return _operators.setdefault(address(func), made)


def _to_device(host: torch.Tensor, device: Any) -> torch.Tensor:
    """A copy of ``host`` on ``device``; on the emulated device there is only one memory."""
    return host.clone() if device is None else host.to(device, copy=True)


def lifting_of_host_data() -> Claim:
    """Split ``torch.tensor(x, device="cuda")`` into a host tensor and a copy to the device."""
    flag, put = torch._C._only_lift_cpu_tensors, torch._C._set_only_lift_cpu_tensors
    return override(torch._C, "_only_lift_cpu_tensors", True, get=flag, put=put)


def _launches_of_triton(interceptor: Interceptor) -> AbstractContextManager[Any]:
    """See the tensors that Triton kernels get; torch does not know such kernels."""
    place = find("triton.runtime.jit:JITFunction.run")
    if place is None:  # not loaded, so no kernel was launched yet
        return nullcontext()

    def run(original: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        interceptor.expose(tensors_in(args, kwargs), f"Triton kernel {kernel.__name__}")
        return original(kernel, *args, **kwargs)

    return intercept(*place, run)


def _forget() -> None:
    """Stop in a child of fork(), whose only thread may have been intercepted."""
    torch._C._set_only_lift_cpu_tensors(False)
    if _local.interceptor is not None:
        _local.interceptor = None
        remove_modes(lambda mode: isinstance(mode, (_FunctionMode, _DispatchMode)))


in_child(_forget)
