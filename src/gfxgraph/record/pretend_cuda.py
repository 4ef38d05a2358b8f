"""What a function asks of ``torch.cuda``: listened in on, or answered with no device behind it.

Functions of torch are replaced while somebody listens anywhere, and put back after the last; a
thread on which nobody listens gets the original behaviour all the time.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

__all__ = [
    "Answer",
    "DeviceProperties",
    "FakeDevice",
    "Observer",
    "PretendEvent",
    "PretendGenerator",
    "PretendGraph",
    "PretendStream",
    "attached",
    "attention",
    "listening",
]


class Answer(NamedTuple):
    """What the caller gets in place of what the original would give."""

    value: Any


Observer = Callable[[str, str, Any], object]
"""Called with the kind of a call, its name and a detail.

What it gives: ``True`` means not to call the original; an :class:`Answer` means that, too, and what
the caller gets.

| kind | detail |
| --- | --- |
| ``"synchronize"`` | the stream or event that is waited for, or ``None``: the device |
| ``"query"`` | the stream or event that is asked whether it is done, or when it was |
| ``"seed"`` | the arguments |
| ``"generator"`` | ``None``: a generator of the device is made |
| ``"stream"`` | the stream that becomes the current one |
| ``"default-stream"`` | the default stream, which becomes the current one; ``"stream"`` follows |
| ``"fork"`` | (waiting, waited for): the waiting stream comes to the others |
| ``"join"`` | (waiting, waited for): the waiting stream is the first one, or was forked before |
| ``"hidden-sync"`` | ``None``: an operator of the user's, or a check of torch's, reads the device |
| ``"capture"`` | the arguments of what begins or replays a capture of the function's own |
| ``"assumed"`` | the value that was made up where only the shape of the data is known |
"""

# Call -> (kind, what it gives where the original is not called).
_HEARD: dict[str, tuple[str, Any]] = {
    "torch.cuda.synchronize": ("synchronize", None),
    "torch._C._cuda_synchronize": ("synchronize", None),
    "torch.cpu.synchronize": ("synchronize", None),
    "torch.accelerator.synchronize": ("synchronize", None),
    "torch.cuda.Stream.synchronize": ("synchronize", None),
    "torch.cuda.Stream.query": ("query", True),
    "torch.cuda.Event.synchronize": ("synchronize", None),
    "torch.cuda.Event.query": ("query", True),
    "torch.cuda.Event.elapsed_time": ("query", 0.0),
    "torch.cpu.Event.synchronize": ("synchronize", None),
    "torch.cpu.Event.query": ("query", True),
    **dict.fromkeys(
        (
            f"torch.{module}{name}"
            for module in ("", "random.", "cuda.", "cuda.random.")
            for name in (
                "manual_seed",
                "manual_seed_all",
                "seed",
                "seed_all",
                "set_rng_state",
                "set_rng_state_all",
                "get_rng_state",
                "get_rng_state_all",
                "initial_seed",
            )
        ),
        ("seed", None),
    ),
    "torch.cuda.set_stream": ("stream", None),
    "torch.accelerator.set_stream": ("stream", None),
    "torch.cuda.Stream.__enter__": ("stream", None),
    "torch.cuda.Stream.__exit__": ("stream", None),
    "torch.cuda.Stream.wait_stream": ("wait", None),
    "torch.cuda.Stream.wait_event": ("wait", None),
    "torch.cuda.Event.wait": ("wait", None),
    "torch.cuda.Stream.record_event": ("record", None),
    "torch.cuda.Event.record": ("record", None),
    "torch.cuda.CUDAGraph.capture_begin": ("capture", None),
    "torch.cuda.CUDAGraph.replay": ("capture", None),
}

# What torch.cuda.is_current_stream_capturing() looks up when called: replaced here, the function
# answers also those who imported it by name.
_IS_CAPTURING = (
    "torch._C._cuda_isCurrentStreamCapturing",
    "torch.cuda.graphs._cuda_isCurrentStreamCapturing",
)


class _Local(threading.local):
    listener: _Listener | None = None


_local = _Local()


@contextmanager
def listening(observer: Observer, *, answer_capturing: bool = False) -> Iterator[None]:
    """Tell ``observer`` of the calls of this thread that matter to a capture.

    Args:
        observer: see :data:`Observer`. Where it gives ``True``, the original is not called.
        answer_capturing: ``torch.cuda.is_current_stream_capturing()`` says yes.
    """
    origin = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
    with attached(_Listener(observer, origin, answer_capturing)):
        yield


@contextmanager
def attached(listener: _Listener) -> Iterator[None]:
    """``listener`` takes the calls of this thread."""
    before = _local.listener
    with _replaced_for_all, listener.replaced:
        _local.listener = listener
        try:
            yield
        finally:
            _local.listener = before


class _Replaced:
    """Attributes of torch, replaced while somebody is inside.

    Args:
        paths: where they are; those that this version of torch does not have are left out.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._users = 0
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._lock = threading.RLock()  # the garbage collector may bring us here again

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                for path in self._paths:
                    self._replace(path)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            while self._undo:
                owner, name, original, replacement = self._undo.pop()
                # Who replaced ours in the meantime calls it, and gets the original behaviour.
                if vars(owner).get(name) is replacement:
                    if original is _MISSING:
                        delattr(owner, name)
                    else:
                        setattr(owner, name, original)

    def _replace(self, path: str) -> None:
        *parents, name = path.split(".")[1:]
        owner: Any = torch
        for parent in parents:
            owner = getattr(owner, parent, None)
        original = getattr(owner, name, _MISSING)
        if owner is None or (original is _MISSING and not path.startswith(_MAY_BE_MADE)):
            return
        replacement: Any = _replacement(path, original)
        if name == "__new__":
            replacement = staticmethod(replacement)
        self._undo.append((owner, name, vars(owner).get(name, _MISSING), replacement))
        setattr(owner, name, replacement)


_MISSING: Any = object()
# Python functions of torch.cuda that were imported by name end here; a CPU build has no such names.
_MAY_BE_MADE = "torch._C._cuda_"


def _replacement(path: str, original: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        listener = _local.listener
        if listener is not None:
            return listener.call(path, original, args, kwargs)
        if original is _MISSING:
            raise AttributeError(f"this build of torch has no {path}")
        return original(*args, **kwargs)

    call.is_taken = lambda: _local.listener is not None  # type: ignore[attr-defined]
    if path in _CLASSES:
        return _StandIn(original.__name__, (), {"original": original, "make": staticmethod(call)})
    return functools.update_wrapper(call, original) if callable(original) else call


class _StandIn(type):
    """Stands where a class is looked up; what it constructs depends on the thread."""

    original: type
    make: Callable[..., Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)


# Classes in C, whose constructors cannot be replaced.
_CLASSES = ("torch.Generator", "torch.Stream", "torch.Event")


class _Listener:
    """Reports the calls of one thread, and lets them through.

    Args:
        observer: who is told.
        origin: the stream that is current at the beginning; ``None``: not known.
        capturing: whether a capture is said to be underway.
    """

    replaced = _Replaced(_IS_CAPTURING)

    def __init__(self, observer: Observer, origin: Any, capturing: bool) -> None:
        self.observer = observer
        self._capturing = capturing
        self._origin = 0 if origin is None else origin.stream_id
        self._members = {self._origin}  # streams that a capture begun on the first one takes in
        self._recorded: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._inside = False

    def call(self, path: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``original(*args, **kwargs)`` of this thread, which is found at ``path``."""
        if self._inside or path not in self.heard:
            return self.perform(path, original, args, kwargs)
        kind, unless_called = self.heard[path]
        self._inside = True  # what torch and the observer call in turn is not the function's doing
        try:
            given = (*args, *kwargs.values())
            if kind not in ("record", "stream"):
                answer = self._report(kind, path, given)
                if answer:
                    return answer.value if isinstance(answer, Answer) else unless_called
            if kind == "stream" and not path.endswith("__exit__"):
                if given[0] is None:
                    return None
                if self._enter(path, given[0]):
                    return unless_called
            result = self.perform(path, original, args, kwargs)
            if path.endswith("__exit__"):
                self._enter(path, torch.cuda.current_stream())
            if kind == "record":
                self._remember(path, given, result)
            return result
        finally:
            self._inside = False

    @property
    def heard(self) -> dict[str, tuple[str, Any]]:
        """The calls that are reported."""
        return _HEARD

    def perform(
        self, path: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do what the call asks for."""
        if self._capturing and path in _IS_CAPTURING:
            self.observer("capturing", "torch.cuda.is_current_stream_capturing()", ())
            return True
        return original(*args, **kwargs)

    def _report(self, kind: str, path: str, given: tuple[Any, ...]) -> Any:
        detail: Any = given
        if kind in ("synchronize", "query"):
            detail = given[0] if _is_method(path) else None
        elif kind == "wait":
            detail = self._wait(path, given)
            kind = "join" if detail[0].stream_id in self._members else "fork"
            if detail[1] is not None and detail[1].stream_id in self._members:
                self._members.add(detail[0].stream_id)
        answer = self.observer(kind, f"{path}()", detail)
        return answer if answer is True or isinstance(answer, Answer) else None

    def _wait(self, path: str, given: tuple[Any, ...]) -> tuple[Any, Any]:
        """The stream that waits, and the one that it waits for."""
        if path.endswith("wait_stream"):
            return given[0], given[1]
        if path.endswith("wait_event"):
            return given[0], self._recorded.get(given[1])
        stream = given[1] if len(given) > 1 else None
        return stream or torch.cuda.current_stream(), self._recorded.get(given[0])

    def _remember(self, path: str, given: tuple[Any, ...], result: Any) -> None:
        if path.endswith("record_event"):
            self._recorded[result] = given[0]
        else:
            stream = given[1] if len(given) > 1 else None
            self._recorded[given[0]] = stream or torch.cuda.current_stream()

    def _enter(self, path: str, stream: Any) -> bool:
        dropped = False
        if stream.stream_id == _DEFAULT != self._origin:
            dropped = self.observer("default-stream", f"{path}()", stream) is True
        return (self.observer("stream", f"{path}()", stream) is True) or dropped


_DEFAULT, _FIRST = 0, 1  # ids of streams

_replaced_for_all = _Replaced(_HEARD)


def _is_method(path: str) -> bool:
    return path.split(".")[-2][:1].isupper()


# What is answered where there is no device.


@dataclass(frozen=True)
class DeviceProperties:
    """The properties of the device that is not there, as of an H100."""

    name: str = "pretended CUDA device"
    major: int = 9
    minor: int = 0
    total_memory: int = 80 << 30
    multi_processor_count: int = 132
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    L2_cache_size: int = 50 << 20
    is_integrated: bool = False
    is_multi_gpu_board: bool = False


class PretendStream:
    """A stream with no device behind it; for ``isinstance`` a ``torch.cuda.Stream``.

    What it does goes through the methods of ``torch.cuda.Stream``, where it is heard.
    """

    device = torch.device("cuda", 0)
    device_index = 0
    device_type = 1

    def __init__(self, stream_id: int, priority: int = 0) -> None:
        self.stream_id = self.cuda_stream = self.native_handle = stream_id
        self.priority = priority
        self._before: list[Any] = []

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return torch.cuda.Stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.cuda.Stream) and self.stream_id == other.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.stream_id:#x} (pretended)>"

    def __enter__(self) -> Any:
        self._before.append(torch.cuda.current_stream())
        torch.cuda.set_stream(self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *exc_info: object) -> None:
        torch.cuda.set_stream(self._before.pop())

    def wait_stream(self, stream: Any) -> None:
        """All further work on this stream waits for ``stream``."""
        _Stream.wait_stream(self, stream)

    def wait_event(self, event: Any) -> None:
        """All further work on this stream waits for ``event``."""
        _Stream.wait_event(self, event)

    def record_event(self, event: Any = None) -> Any:
        """Record ``event``, or a new one, and give it."""
        return _Stream.record_event(self, event)

    def synchronize(self) -> None:
        """Wait until the work is done."""
        _Stream.synchronize(self)

    def query(self) -> bool:
        """Whether the work is done."""
        return bool(_Stream.query(self))

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, -5


class PretendEvent:
    """An event with no device behind it; for ``isinstance`` a ``torch.cuda.Event``."""

    device = torch.device("cuda", 0)
    cuda_event = event_id = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return torch.cuda.Event

    def record(self, stream: Any = None) -> None:
        """Record it on ``stream``, by default the current one."""
        _Event.record(self, stream)

    def wait(self, stream: Any = None) -> None:
        """All further work on ``stream``, by default the current one, waits for it."""
        _Event.wait(self, stream)

    def synchronize(self) -> None:
        """Wait for it."""
        _Event.synchronize(self)

    def query(self) -> bool:
        """Whether the work before it is done."""
        return bool(_Event.query(self))

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds until ``end_event``."""
        return float(_Event.elapsed_time(self, end_event))


class PretendGraph:
    """A graph that captures nothing: what is done while it captures is done at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return torch.cuda.CUDAGraph

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        """A capture begins."""
        _Graph.capture_begin(self, *args, **kwargs)

    def replay(self) -> None:
        """Nothing was captured, so nothing happens."""
        _Graph.replay(self)

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to do."""

    capture_end = reset = instantiate = enable_debug_mode = debug_dump = _nothing
    register_generator_state = _nothing

    def pool(self) -> tuple[int, int]:
        """The id of its memory pool."""
        return 0, 1


class PretendGenerator(torch.Generator):
    """A generator of the CPU that says it is one of the device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it pretends to be."""
        return torch.device("cuda", 0)

    def manual_seed(self, seed: int) -> PretendGenerator:
        """Set the seed."""
        _observe("seed", "torch.Generator.manual_seed()", (self, seed))
        super().manual_seed(seed)
        return self

    def seed(self) -> int:
        """Take a seed from the system."""
        _observe("seed", "torch.Generator.seed()", (self,))
        return super().seed()

    def set_state(self, state: torch.Tensor) -> PretendGenerator:
        """Set the state."""
        _observe("seed", "torch.Generator.set_state()", (self, state))
        super().set_state(state)
        return self


# Their methods take objects of ours while they are replaced.
_Stream: Any = torch.cuda.Stream
_Event: Any = torch.cuda.Event
_Graph: Any = torch.cuda.CUDAGraph


def _observe(kind: str, what: str, detail: Any) -> None:
    if _local.listener is not None:
        _local.listener.observer(kind, what, detail)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``scaled_dot_product_attention``, but for its choice among fused kernels.

    In a CUDA build the choice asks the device; what this calls is made of simple operators.
    """
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        added = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = added.masked_fill_(attn_mask.logical_not(), float("-inf"))
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )[0]
    return result


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _left_aligned(*args: Any, **kwargs: Any) -> bool:
    """Reads the mask; the answer here is the one that needs no nested tensor."""
    _observe("hidden-sync", "torch._nested_tensor_from_mask_left_aligned()", None)
    return False


_PROPERTIES = DeviceProperties()
_NOTHING = _always(None)

_CONSTANT_ANSWERS: dict[str, Callable[..., Any]] = {
    "torch.cuda.is_available": _always(True),
    "torch.cuda.is_initialized": _always(True),
    "torch.cuda.init": _NOTHING,
    "torch.cuda._lazy_init": _NOTHING,
    "torch.cuda.device_count": _always(1),
    "torch.cuda.current_device": _always(0),
    "torch.cuda.set_device": _NOTHING,
    "torch.cuda._exchange_device": _always(0),
    "torch.cuda._maybe_exchange_device": _always(0),
    "torch.cuda.get_device_name": _always(_PROPERTIES.name),
    "torch.cuda.get_device_capability": _always((_PROPERTIES.major, _PROPERTIES.minor)),
    "torch.cuda.get_device_properties": _always(_PROPERTIES),
    "torch.cuda.get_arch_list": _always([f"sm_{_PROPERTIES.major}{_PROPERTIES.minor}"]),
    "torch.cuda.can_device_access_peer": _always(False),
    "torch.cuda.is_bf16_supported": _always(True),
    "torch.cuda.is_tf32_supported": _always(True),
    "torch.cuda.get_sync_debug_mode": _always(0),
    "torch.cuda.set_sync_debug_mode": _NOTHING,
    "torch.cuda.graph_pool_handle": _always((0, 1)),
    "torch.cuda.ipc_collect": _NOTHING,
    "torch.cuda.graph.__exit__": _NOTHING,
    "torch.cuda.nvtx.range_push": _always(0),
    "torch.cuda.nvtx.range_pop": _always(0),
    "torch.cuda.nvtx.range_start": _always(0),
    "torch.cuda.nvtx.range_end": _NOTHING,
    "torch.cuda.nvtx.mark": _NOTHING,
    # Called by other functions of torch that way, where a function mode does not see it.
    "torch.nn.functional.scaled_dot_product_attention": attention,
    # TransformerEncoder asks before it makes a nested tensor of what is not padded.
    "torch._nested_tensor_from_mask_left_aligned": _left_aligned,
    "torch.overrides.has_torch_function": _always(False),  # by which it gives up its fast path
    "torch.accelerator.is_available": _always(True),
    "torch.accelerator.current_accelerator": _always(torch.device("cuda")),
    "torch.accelerator.device_count": _always(1),
    "torch.accelerator.current_device_index": _always(0),
    "torch.accelerator.current_device_idx": _always(0),
    "torch.accelerator.set_device_index": _NOTHING,
    "torch.accelerator.set_device_idx": _NOTHING,
    "torch._C._accelerator_exchangeDevice": _always(0),
    "torch._C._accelerator_maybeExchangeDevice": _always(0),
    "torch._C._cuda_getDevice": _always(0),
    "torch._C._cuda_setDevice": _NOTHING,
    "torch._C._cuda_emptyCache": _NOTHING,
    "torch._C._cuda_getDefaultStream": _always((_DEFAULT, 0, 1)),
    **{
        f"torch.{module}.{name}": _always(answer)
        for module in ("cuda", "cuda.memory", "accelerator", "accelerator.memory")
        for name, answer in {
            "mem_get_info": (_PROPERTIES.total_memory, _PROPERTIES.total_memory),
            "get_memory_info": (_PROPERTIES.total_memory, _PROPERTIES.total_memory),
            "memory_stats": {},
            "memory_allocated": 0,
            "max_memory_allocated": 0,
            "memory_reserved": 0,
            "max_memory_reserved": 0,
            "memory_summary": "",
            "memory_snapshot": [],
            "empty_cache": None,
            "reset_peak_memory_stats": None,
            "reset_accumulated_memory_stats": None,
            "reset_max_memory_allocated": None,
            "set_per_process_memory_fraction": None,
        }.items()
    },
}


class FakeDevice(_Listener):
    """Answers the calls of one thread as a machine with one GPU would, and reports them.

    Args:
        observer: who is told.
        capturing: what ``torch.cuda.is_current_stream_capturing()`` says.

    Attributes:
        current_stream: the stream that is current.
        generators: the generators of the device, by what identifies them in C++.
    """

    def __init__(self, observer: Observer, capturing: bool) -> None:
        # The first stream stands for that of a capture, which is never the default one.
        self._streams = {n: PretendStream(n) for n in (_DEFAULT, _FIRST)}
        self.current_stream: Any = self._streams[_FIRST]
        super().__init__(observer, self.current_stream, capturing)
        self.generators: dict[int, torch.Generator] = {}
        self._new_id = itertools.count(_FIRST + 1)
        self._answers = {path: getattr(self, name) for path, name in _ANSWERS.items()}

    @property
    def heard(self) -> dict[str, tuple[str, Any]]:
        """The calls that are reported."""
        return _HEARD_WITHOUT_DEVICE

    def perform(
        self, path: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer."""
        if path in _IS_CAPTURING:
            return self._capturing
        if path in _CLASSES:
            return self._construct(path, original, args, kwargs)
        answer = self._answers.get(path) or _CONSTANT_ANSWERS.get(path)
        if answer is not None:
            return answer(*args, **kwargs)
        if path.startswith(("torch.cuda.", "torch._C.", "torch.accelerator.")):
            return self.heard[path][1]
        return original(*args, **kwargs)

    def _construct(
        self, path: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        device = kwargs.get("device", args[0] if args else None)
        if path == "torch.Generator":
            if device is None or torch.device(device).type != "cuda":
                return original(*args, **kwargs)
            return self._new_generator()
        if device is not None and torch.device(device).type != "cuda":
            return original(*args, **kwargs)
        return PretendEvent() if path == "torch.Event" else self._new_stream(None)

    def off_stream(self) -> str | None:
        """The rule by which work on the current stream is left out of a capture, if it is."""
        stream = self.current_stream.stream_id
        if stream in self._members:
            return None
        return "default-stream" if stream == _DEFAULT else "side-stream"

    def _new_generator(self) -> torch.Generator:
        _observe("generator", "torch.Generator()", None)
        generator = PretendGenerator()
        self.generators[generator._cdata] = generator  # type: ignore[attr-defined]
        return generator

    def on_cpu(self, generator: torch.Generator) -> torch.Generator:
        """The generator of the CPU that stands for one of a real device."""
        key: int = generator._cdata  # type: ignore[attr-defined]
        if key not in self.generators:
            self.generators[key] = torch.Generator().manual_seed(generator.initial_seed())
        return self.generators[key]

    def _new_stream(self, cls: Any, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        stream_id = kwargs.get("stream_id")  # of one that is there
        if stream_id is None:
            stream_id = next(self._new_id)
        return self._streams.setdefault(stream_id, PretendStream(stream_id, priority))

    def _new_event(self, cls: Any, *args: Any, **kwargs: Any) -> Any:
        return PretendEvent()

    def _new_graph(self, cls: Any, *args: Any, **kwargs: Any) -> Any:
        return PretendGraph()

    def _current(self, device: Any = None) -> Any:
        return self.current_stream

    def _default(self, device: Any = None) -> Any:
        return self._streams[_DEFAULT]

    def _set(self, stream: Any) -> None:
        self.current_stream = stream

    def _set_by_id(self, stream_id: int, **kwargs: Any) -> None:
        self.current_stream = self._streams[stream_id]

    def _current_by_id(self, device: Any = None) -> tuple[int, int, int]:
        return self.current_stream.stream_id, 0, 1

    def _enter_real(self, stream: Any) -> Any:
        self._before = self.current_stream
        self.current_stream = stream
        return stream

    def _exit_real(self, *exc_info: Any) -> None:
        self.current_stream = self._before

    def _record_event(self, stream: Any, event: Any = None) -> Any:
        return PretendEvent() if event is None else event

    def _graph_init(self, graph: Any, cuda_graph: Any, *args: Any, **kwargs: Any) -> None:
        graph.cuda_graph = cuda_graph

    def _graphed(self, callables: Any, *args: Any, **kwargs: Any) -> Any:
        return callables

    def _seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(int(seed))

    def _seed_anew(self) -> None:
        torch.default_generator.seed()

    def _seed_of_start(self) -> int:
        return torch.default_generator.initial_seed()

    def _rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.default_generator.get_state()

    def _rng_states(self) -> list[torch.Tensor]:
        return [torch.default_generator.get_state()]

    def _set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.default_generator.set_state(state)

    def _set_rng_states(self, states: Iterable[torch.Tensor]) -> None:
        for state in states:
            torch.default_generator.set_state(state)


_ANSWERS: dict[str, str] = {
    "torch.cuda.current_stream": "_current",
    "torch.cuda.default_stream": "_default",
    "torch.cuda.set_stream": "_set",
    "torch.accelerator.current_stream": "_current",
    "torch.accelerator.set_stream": "_set",
    "torch._C._cuda_setStream": "_set_by_id",
    "torch._C._cuda_getCurrentStream": "_current_by_id",
    "torch.cuda.Stream.__new__": "_new_stream",
    "torch.cuda.Event.__new__": "_new_event",
    "torch.cuda.CUDAGraph.__new__": "_new_graph",
    "torch.cuda.Stream.__enter__": "_enter_real",
    "torch.cuda.Stream.__exit__": "_exit_real",
    "torch.cuda.Stream.record_event": "_record_event",
    "torch.cuda.graph.__init__": "_graph_init",
    "torch.cuda.make_graphed_callables": "_graphed",
    **{
        f"torch.{module}.{name}": answer
        for module in ("cuda", "cuda.random")
        for name, answer in {
            "manual_seed": "_seed_all",
            "manual_seed_all": "_seed_all",
            "seed": "_seed_anew",
            "seed_all": "_seed_anew",
            "initial_seed": "_seed_of_start",
            "get_rng_state": "_rng_state",
            "get_rng_state_all": "_rng_states",
            "set_rng_state": "_set_rng_state",
            "set_rng_state_all": "_set_rng_states",
        }.items()
    },
}

_HEARD_WITHOUT_DEVICE = {
    **{path: heard for path, heard in _HEARD.items() if not path.startswith("torch.cpu.")},
    "torch.cuda.graph.__enter__": ("capture", None),
    "torch.cuda.make_graphed_callables": ("capture", None),
}

FakeDevice.replaced = _Replaced(
    {*_IS_CAPTURING, *_CLASSES, *_CONSTANT_ANSWERS, *_ANSWERS, *_HEARD_WITHOUT_DEVICE} - {*_HEARD}
)
