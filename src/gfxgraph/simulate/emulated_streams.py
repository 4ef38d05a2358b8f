"""Streams and events of the emulated ``torch.cuda``, and which of them are in a capture.

Outside of captures all work runs at once, in the order in which it is issued. In a capture the
order is what CUDA makes of it: the rules are those of "CUDA Graphs, cross-stream dependencies" in
the CUDA C++ Programming Guide, and of the ``cudaErrorStreamCapture...`` codes of its runtime API.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..device.base import Body, Decision
from ..device.capture_rules import SYNCHRONISATION
from ..device.emulated_capture import Capture, Operation, current_capture
from ..device.emulated_memory import MemoryPool
from ..errors import ArgumentError, CaptureError, CaptureForbidden, DeviceError
from ..forking import in_child
from .device_use import check_device, use_device
from .races import Clock, Uses
from .tensor import inside

__all__ = [
    "DEFAULT",
    "DeviceCapture",
    "Event",
    "Stream",
    "capture_of",
    "current_stream",
    "default_stream",
    "refuse_waiting",
    "set_stream",
    "stream_now",
]

DEFAULT = 0
_DEVICE = torch.device("cuda", 0)
_new_id = itertools.count(1)


class _Local(threading.local):
    stream: Stream | None = None


_local = _Local()
_members: dict[int, DeviceCapture] = {}  # id of a stream -> the open capture that it is in
in_child(lambda: _members.clear())


class _Emulated:
    """Base of streams and events.

    For ``isinstance`` they are also of torch's classes: that of ``torch``, and that of
    ``torch.cuda``, which code may have fetched before.
    """

    _kind: str

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return _torchs_classes[self._kind]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"cannot pickle '{self._kind}' object")


_torchs_classes: dict[str, Any] = {
    "Stream": type("Stream", (torch.cuda.Stream, torch.Stream), {}),
    "Event": type("Event", (torch.cuda.Event, torch.Event), {}),
}


class Stream(_Emulated):
    """Stands for ``torch.cuda.Stream``.

    Args:
        device: the device, ``None``, 0 or ``"cuda"``.
        priority: kept, and of no effect.
        stream_id: the id of a stream that exists.
    """

    _kind = "Stream"
    device = _DEVICE
    device_index = 0
    device_type = 1

    def __new__(cls, *args: Any, **kwargs: Any) -> Stream:
        """Defined here, so that ``check`` can replace it for a while."""
        return object.__new__(cls)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        check_device(device)
        if kwargs.get("stream_id") != DEFAULT:
            use_device()
        known = kwargs.get("stream_id")
        self.stream_id = next(_new_id) if known is None else int(known)
        self.priority = priority
        self._before: list[Stream] = []

    @property
    def cuda_stream(self) -> int:
        """The id, in place of a pointer."""
        return self.stream_id

    native_handle = _as_parameter_ = cuda_stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, -5

    def __eq__(self, other: object) -> bool:
        return type(other) is Stream and self.stream_id == other.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.stream_id:#x} (emulated)>"

    def __enter__(self) -> Stream:
        self._before.append(stream_now())
        set_stream(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        set_stream(self._before.pop())

    def wait_stream(self, stream: Stream) -> None:
        """Let later work of this stream wait for the work that ``stream`` has so far."""
        self.wait_event(_checked(stream, Stream).record_event())

    def wait_event(self, event: Event) -> None:
        """Let later work of this stream wait for ``event``."""
        _checked(event, Event).wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event``, or a new one, on this stream."""
        event = Event() if event is None else _checked(event, Event)
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait for all work of this stream: it is done already."""
        refuse_waiting("torch.cuda.Stream.synchronize()")

    def query(self) -> bool:
        """Whether all work of this stream is done."""
        refuse_waiting("torch.cuda.Stream.query()")
        return True


class Event(_Emulated):
    """Stands for ``torch.cuda.Event``.

    Args:
        enable_timing: whether :meth:`elapsed_time` may be asked. Default ``False``.
        blocking: of no effect.
        interprocess: of no effect.
        external: of no effect.
    """

    _kind = "Event"
    device = _DEVICE

    def __new__(cls, *args: Any, **kwargs: Any) -> Event:
        """As that of :class:`Stream`."""
        return object.__new__(cls)

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        self._timed = enable_timing
        self._time: float | None = None
        self._capture: DeviceCapture | None = None
        self._clock: Clock = {}

    @property
    def cuda_event(self) -> int:
        """A number that no other living event has."""
        return id(self)

    event_id = _as_parameter_ = cuda_event

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {id(self):#x} (emulated)>"

    def record(self, stream: Stream | None = None) -> None:
        """Stand for the work that ``stream``, default the current one, has so far."""
        use_device()
        stream = stream_now() if stream is None else _checked(stream, Stream)
        self._time = time.perf_counter()
        self._capture = capture_of(stream)
        self._clock = {} if self._capture is None else dict(self._capture.clocks[stream.stream_id])

    def wait(self, stream: Stream | None = None) -> None:
        """Let later work of ``stream``, default the current one, wait for this event."""
        stream = stream_now() if stream is None else _checked(stream, Stream)
        if self._time is None:
            return  # never recorded: CUDA does not wait
        capture = capture_of(stream)
        if self._capture is not None and not self._capture.is_open:
            if capture is None:
                self._check_outside()
            else:
                capture.fail(_error(_ISOLATION))
        if self._capture is not None:
            self._capture.join(stream, capture, self._clock)
        elif capture is not None:
            capture.fail(_error(_ISOLATION))

    def synchronize(self) -> None:
        """Wait for the work before this event: it is done already."""
        refuse_waiting("torch.cuda.Event.synchronize()")
        self._check_outside()

    def query(self) -> bool:
        """Whether the work before this event is done."""
        refuse_waiting("torch.cuda.Event.query()")
        self._check_outside()
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between the two records.

        Raises:
            ValueError: an event was made without ``enable_timing=True``, or was not recorded.
        """
        refuse_waiting("torch.cuda.Event.elapsed_time()")
        other: Event = _checked(end_event, Event)
        if not (self._timed and other._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or other._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self._check_outside()
        other._check_outside()
        return (other._time - self._time) * 1e3

    def ipc_handle(self) -> bytes:
        """Always raises."""
        raise DeviceError("Event.ipc_handle(): the emulated device is of one process only.")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        """Always raises."""
        raise DeviceError("Event.from_ipc_handle(): the emulated device is of one process only.")

    def _check_outside(self) -> None:
        """Raise where the event was last recorded in a capture: it has no time outside of it."""
        if self._capture is not None:
            raise _error(
                "invalid argument: this event was recorded during a capture, so it stands for a "
                "place in that graph. Record it again outside of captures"
            )


class DeviceCapture(Capture):
    """A capture of the work on a stream, and on those that were forked from it.

    It sees operations through the emulation's own modes.

    Attributes:
        clocks: of each stream that is in it, what comes before its next operation.
    """

    def __init__(self, pool: MemoryPool, generators: frozenset[int]) -> None:
        super().__init__(pool, generators)
        self.origin = stream_now()
        if self.origin.stream_id == DEFAULT:
            raise CaptureError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.) Use torch.cuda.graph(), or "
                "with torch.cuda.stream(torch.cuda.Stream()):."
            )
        if capture_of(self.origin) is not None:
            raise CaptureError("The current stream is capturing already: end that capture first.")
        self.clocks: dict[int, Clock] = {self.origin.stream_id: {}}
        self._uses = Uses()
        #: Of each stream its operations: which one of the stream, and which of the capture.
        self._positions: dict[int, list[tuple[int, int]]] = {}
        #: Of each operation, what comes before the next one of its stream.
        self._before: list[Clock] = []

    def check_end(self) -> None:
        """Raise where a stream was not joined, or where another one is current.

        Raises:
            CaptureError: another stream than that of the beginning is current.
            CaptureForbidden: a stream that was forked has work for which it does not wait.
        """
        here = stream_now()
        if here != self.origin:
            raise CaptureError(
                f"Capture must end on the same stream it began on: {self.origin}; the current one "
                f"is {here}."
            )
        clock = self.clocks[here.stream_id]
        for stream, own in self.clocks.items():
            if stream != here.stream_id and own.get(stream, 0) > clock.get(stream, 0):
                self.check_valid("capture_end()")
                raise _error(
                    f"capturing stream has unjoined work: stream {stream:#x} was forked from the "
                    "capture and has work for which the capture does not wait. Call "
                    "wait_stream() of it before the end"
                )

    def join(self, stream: Stream, other: DeviceCapture | None, clock: Clock) -> None:
        """Let ``stream`` wait for work of this capture; it becomes a part of it."""
        if other is not None and other is not self:
            other.fail(_error("the wait would merge two captures"))
        if stream.stream_id == DEFAULT:
            self.fail(
                _error(
                    "operation would make the legacy stream depend on a capturing stream. Let a "
                    "torch.cuda.Stream() wait, not the default stream"
                )
            )
        own = self.clocks.setdefault(stream.stream_id, {})
        for name, count in clock.items():
            own[name] = max(own.get(name, 0), count)
        _members[stream.stream_id] = self

    def issue(self, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor]) -> None:
        """Note an operation of the current stream on these tensors.

        Raises:
            CaptureForbidden: another stream uses that memory, and neither waits for the other.
        """
        stream = stream_now().stream_id
        clock = self.clocks[stream]
        other = self._uses.conflict(stream, clock, reads, writes)
        if other is not None:
            self.fail(
                _error(
                    f"stream {stream:#x} uses a tensor that stream {other:#x} uses or "
                    "writes in this capture, without waiting for it. A GPU does not refuse "
                    "this: its replays race. Call wait_stream() first"
                )
            )
        clock[stream] = clock.get(stream, 0) + 1

    def newest(self) -> tuple[int, ...]:
        """The last operations that the current stream waits for, its own among them."""
        clock = self.clocks.get(stream_now().stream_id, {})
        found = []
        for stream, count in clock.items():
            positions = self._positions.get(stream, [])
            last = bisect_right(positions, (count, len(self.operations)))
            if last:
                found.append((positions[last - 1], stream))

        def is_before(count: int, stream: int, other: int) -> bool:
            return self._before[other].get(stream, 0) >= count

        return tuple(
            sorted(
                position
                for (count, position), stream in found
                if not any(o != position and is_before(count, stream, o) for (_, o), _ in found)
            )
        )

    def add(self, operation: Operation) -> None:
        """Put an operation at the end, and note what comes before it."""
        stream = stream_now().stream_id
        clock = dict(self.clocks[stream])
        self._positions.setdefault(stream, []).append((clock.get(stream, 0), len(self.operations)))
        self._before.append(clock)
        super().add(operation)

    def decide(self, decision: Decision, bodies: Sequence[Body]) -> None:
        """Record a conditional node, which reads the memory behind its tensor."""
        value = inside(decision.value)
        self.issue([value], [])
        super().decide(decision._replace(value=value), bodies)

    def of_body(self, body: Body) -> tuple[list[Operation], torch.Tensor | None]:
        """The operations of ``body``, whose positions are their own, and what it gives."""
        before = self._positions, self._before
        self._positions, self._before = {}, []

        def issued() -> torch.Tensor | None:
            value = body()
            if value is None:
                return None
            self.issue([inside(value)], [])
            return inside(value)

        try:
            return super().of_body(issued)
        finally:
            self._positions, self._before = before

    def wrote(self, keys: Iterable[int]) -> None:
        """Note what the operation of :meth:`issue` has made, by keys of storages."""
        stream = stream_now().stream_id
        for key in keys:
            self._uses.made(key, stream, self.clocks[stream].get(stream, 0))

    def _see(self) -> None:
        _members[self.origin.stream_id] = self

    def _look_away(self) -> None:
        for stream in self.clocks:
            if _members.get(stream) is self:
                del _members[stream]


_ISOLATION = (
    "dependency created on uncaptured work in another stream: the event was recorded outside of "
    "this capture. Wait for it before the capture begins"
)


def _error(what: str) -> CaptureForbidden:
    return CaptureForbidden(f"CUDA error: {what}.")


def _checked(value: Any, cls: type[Any]) -> Any:
    if not issubclass(type(value), cls):
        raise ArgumentError(f"{value!r}: expected a torch.cuda.{cls.__name__}.")
    return value


_default = Stream(stream_id=DEFAULT)


def stream_now() -> Stream:
    """The current stream of this thread."""
    return _local.stream or _default


def current_stream(device: Any = None) -> Stream:
    """``torch.cuda.current_stream()``, which uses the device."""
    check_device(device)
    use_device()
    return stream_now()


def default_stream(device: Any = None) -> Stream:
    """The default stream, which cannot capture."""
    check_device(device)
    return _default


def set_stream(stream: Stream | None) -> None:
    """Make ``stream`` the current one of this thread; ``None`` changes nothing."""
    if stream is not None:
        _local.stream = _checked(stream, Stream)


def capture_of(stream: Stream) -> DeviceCapture | None:
    """The open capture that ``stream`` is in."""
    return _members.get(stream.stream_id)


def refuse_waiting(call: str) -> None:
    """Raise during a capture of this thread, and invalidate it."""
    use_device()
    capture = current_capture()
    if capture is not None:
        capture.fail(SYNCHRONISATION.error(call))
