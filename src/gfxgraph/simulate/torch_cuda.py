"""``torch.cuda`` with no device behind it: one GPU, streams, events, graphs and generators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch

from ..device.base import generator_id, generator_state
from ..interpose.cuda_calls import (
    CLASSES,
    DEFAULT,
    IS_CAPTURING,
    OBSERVED,
    Listener,
    Observer,
    observe,
)
from .cuda_kernels import attention

__all__ = [
    "CONSTANT_ANSWERS",
    "SEEDING",
    "DeviceProperties",
    "FakeDevice",
    "SimulatedEvent",
    "SimulatedGenerator",
    "SimulatedGraph",
    "SimulatedStream",
]

_FIRST = 1  # id of the first stream that is not the default one


# Answers without a device.


@dataclass(frozen=True)
class DeviceProperties:
    """The properties of the simulated device, as of an H100."""

    name: str = "simulated CUDA device"
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
    max_threads_per_block: int = 1024
    L2_cache_size: int = 50 << 20
    clock_rate: int = 1_980_000
    memory_clock_rate: int = 2_619_000
    memory_bus_width: int = 5120
    pci_domain_id: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    uuid: str = "00000000-0000-0000-0000-000000000000"
    gcnArchName: str = "simulated CUDA device"
    is_integrated: bool = False
    is_multi_gpu_board: bool = False


def _method_of(cls: Any, name: str) -> Callable[..., Any]:
    """A method of torch's class, looked up at each call: while it is observed, it takes ours."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(cls, name)(self, *args, **kwargs)

    return method


class _Simulated:
    """Stands in for an object of ``torch.cuda`` without a device; ``isinstance`` accepts it."""

    _stands_for: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return getattr(torch.cuda, self._stands_for)


class SimulatedStream(_Simulated):
    """A stream. Its methods call those of ``torch.cuda.Stream``, which are observed."""

    _stands_for = "Stream"
    device = torch.device("cuda", 0)
    device_index = 0
    device_type = 1

    def __init__(self, stream_id: int, priority: int = 0) -> None:
        self.stream_id = self.cuda_stream = self.native_handle = stream_id
        self.priority = priority
        self._before: list[Any] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.cuda.Stream) and self.stream_id == other.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.stream_id:#x} (simulated)>"

    def __enter__(self) -> Any:
        self._before.append(torch.cuda.current_stream())
        torch.cuda.set_stream(self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *exc_info: object) -> None:
        torch.cuda.set_stream(self._before.pop())

    wait_stream, wait_event, record_event, synchronize, query = (
        _method_of(torch.cuda.Stream, name)
        for name in ("wait_stream", "wait_event", "record_event", "synchronize", "query")
    )

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, -5


class SimulatedEvent(_Simulated):
    """An event."""

    _stands_for = "Event"
    device = torch.device("cuda", 0)
    cuda_event = event_id = 1

    record, wait, synchronize, query, elapsed_time = (
        _method_of(torch.cuda.Event, name)
        for name in ("record", "wait", "synchronize", "query", "elapsed_time")
    )


class SimulatedGraph(_Simulated):
    """A graph that captures nothing: work in its capture runs at once."""

    _stands_for = "CUDAGraph"

    capture_begin, replay = (
        _method_of(torch.cuda.CUDAGraph, name) for name in ("capture_begin", "replay")
    )

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to do."""

    capture_end = reset = instantiate = enable_debug_mode = debug_dump = _nothing
    register_generator_state = _nothing

    def pool(self) -> tuple[int, int]:
        """The id of its memory pool."""
        return 0, 1


class SimulatedGenerator(torch.Generator):
    """A generator of the CPU that says it is one of the device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The simulated device."""
        return torch.device("cuda", 0)

    def manual_seed(self, seed: int, /) -> SimulatedGenerator:
        """Set the seed."""
        observe("seed", "torch.Generator.manual_seed()", (self, seed))
        super().manual_seed(seed)
        return self

    def seed(self) -> int:
        """Take a seed from the system."""
        observe("seed", "torch.Generator.seed()", (self,))
        return super().seed()

    def set_state(self, state: torch.Tensor, /) -> SimulatedGenerator:
        """Set the state."""
        observe("seed", "torch.Generator.set_state()", (self, state))
        super().set_state(state)
        return self


_GENERATORS: WeakValueDictionary[int, torch.Generator] = WeakValueDictionary()


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _left_aligned(*args: Any, **kwargs: Any) -> bool:
    """Report the read of the mask; answer so that no nested tensor is needed."""
    observe("hidden-sync", "torch._nested_tensor_from_mask_left_aligned()", None)
    return False


_PROPERTIES = DeviceProperties()
_NOTHING = _always(None)

CONSTANT_ANSWERS: dict[str, Callable[..., Any]] = {
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
    # Other functions of torch call it so, where a function mode does not see it.
    "torch.nn.functional.scaled_dot_product_attention": attention,
    # TransformerEncoder asks this before it makes a nested tensor.
    "torch._nested_tensor_from_mask_left_aligned": _left_aligned,
    "torch.overrides.has_torch_function": _always(False),  # so that it gives up its fast path
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
    "torch._C._cuda_getDefaultStream": _always((DEFAULT, 0, 1)),
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


class FakeDevice(Listener):
    """Answers the calls of one thread as a machine with one GPU would, and reports them.

    Args:
        observer: see :data:`~gfxgraph.interpose.cuda_calls.Observer`.
        capturing: the result of ``torch.cuda.is_current_stream_capturing()``.

    Attributes:
        current_stream: the current stream.
        generators: the generators of the device, by their C++ ids.
    """

    observed: ClassVar = {
        **{path: call for path, call in OBSERVED.items() if not path.startswith("torch.cpu.")},
        "torch.cuda.graph.__enter__": ("capture", None),
        "torch.cuda.make_graphed_callables": ("capture", None),
    }

    def __init__(self, observer: Observer, capturing: bool) -> None:
        # The first stream stands for that of a capture, which is never the default one.
        self.streams = {n: SimulatedStream(n) for n in (DEFAULT, _FIRST)}
        self.current_stream: Any = self.streams[_FIRST]
        super().__init__(observer, self.current_stream, capturing)
        # With those of a world before, in which a program was loaded.
        self.generators: dict[int, torch.Generator] = dict(_GENERATORS)
        self._new_id = itertools.count(_FIRST + 1)

    def perform(
        self, path: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer."""
        if path in IS_CAPTURING:
            return self._capturing
        if path in CLASSES:
            return self._construct(path, original, args, kwargs)
        if path in _ANSWERS:
            return _ANSWERS[path](self, *args, **kwargs)
        if path in CONSTANT_ANSWERS:
            return CONSTANT_ANSWERS[path](*args, **kwargs)
        if path.startswith(("torch.cuda.", "torch._C.", "torch.accelerator.")):
            return self.observed[path][1]
        return original(*args, **kwargs)

    def _construct(
        self, path: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        device = kwargs.get("device", args[0] if args else None)
        if path == "torch.Generator":
            if device is None or torch.device(device).type != "cuda":
                return original(*args, **kwargs)
            observe("generator", "torch.Generator()", None)
            generator = SimulatedGenerator()
            self.generators[generator_id(generator)] = generator
            _GENERATORS[generator_id(generator)] = generator
            return generator
        if device is not None and torch.device(device).type != "cuda":
            return original(*args, **kwargs)
        return SimulatedEvent() if path == "torch.Event" else self.new_stream(None)

    def off_stream(self) -> str | None:
        """The rule that keeps the current stream out of a capture; ``None``: none does."""
        stream = self.current_stream.stream_id
        if stream in self._members:
            return None
        return "default-stream" if stream == DEFAULT else "side-stream"

    def on_cpu(self, generator: torch.Generator) -> torch.Generator:
        """The generator of the CPU that stands for one of a real device."""
        key = generator_id(generator)
        if key not in self.generators:
            self.generators[key] = torch.Generator().manual_seed(generator.initial_seed())
        return self.generators[key]

    def new_stream(self, cls: Any, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        """``torch.cuda.Stream.__new__``."""
        stream_id = kwargs.get("stream_id")  # of one that is there
        if stream_id is None:
            stream_id = next(self._new_id)
        return self.streams.setdefault(stream_id, SimulatedStream(stream_id, priority))

    def set_stream(self, stream: Any) -> None:
        """Make ``stream`` the current one."""
        self.current_stream = stream

    def set_stream_by_id(self, stream_id: int, **kwargs: Any) -> None:
        """Make the stream with this id the current one."""
        self.current_stream = self.streams[stream_id]

    def enter_stream(self, stream: Any) -> Any:
        """``torch.cuda.Stream.__enter__`` of a real stream."""
        self._before, self.current_stream = self.current_stream, stream
        return stream

    def exit_stream(self, *exc_info: Any) -> None:
        """``torch.cuda.Stream.__exit__`` of it."""
        self.current_stream = self._before


def _manual_seed(gpu: FakeDevice, seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def _seed(gpu: FakeDevice) -> None:
    torch.default_generator.seed()


def _set_rng_state(gpu: FakeDevice, state: torch.Tensor, device: Any = None) -> None:
    torch.default_generator.set_state(state)


def _set_rng_states(gpu: FakeDevice, states: Iterable[torch.Tensor]) -> None:
    for state in states:
        torch.default_generator.set_state(state)


SEEDING: dict[str, Callable[..., Any]] = {
    "manual_seed": _manual_seed,
    "manual_seed_all": _manual_seed,
    "seed": _seed,
    "seed_all": _seed,
    "initial_seed": lambda gpu: torch.default_generator.initial_seed(),
    "get_rng_state": lambda gpu, device=None: generator_state(torch.default_generator),
    "get_rng_state_all": lambda gpu: [generator_state(torch.default_generator)],
    "set_rng_state": _set_rng_state,
    "set_rng_state_all": _set_rng_states,
}

# Called with the device before the arguments.
_ANSWERS: dict[str, Callable[..., Any]] = {
    "torch.cuda.current_stream": lambda gpu, device=None: gpu.current_stream,
    "torch.cuda.default_stream": lambda gpu, device=None: gpu.streams[DEFAULT],
    "torch.cuda.set_stream": FakeDevice.set_stream,
    "torch.accelerator.current_stream": lambda gpu, device=None: gpu.current_stream,
    "torch.accelerator.set_stream": FakeDevice.set_stream,
    "torch._C._cuda_setStream": FakeDevice.set_stream_by_id,
    "torch._C._cuda_getCurrentStream": lambda gpu, device=None: (
        gpu.current_stream.stream_id,
        0,
        1,
    ),
    "torch.cuda.Stream.__new__": FakeDevice.new_stream,
    "torch.cuda.Event.__new__": lambda gpu, cls, *args, **kwargs: SimulatedEvent(),
    "torch.cuda.CUDAGraph.__new__": lambda gpu, cls, *args, **kwargs: SimulatedGraph(),
    "torch.cuda.Stream.__enter__": FakeDevice.enter_stream,
    "torch.cuda.Stream.__exit__": FakeDevice.exit_stream,
    "torch.cuda.Stream.record_event": lambda gpu, stream, event=None: (
        SimulatedEvent() if event is None else event
    ),
    "torch.cuda.graph.__init__": lambda gpu, graph, cuda_graph, *args, **kwargs: setattr(
        graph, "cuda_graph", cuda_graph
    ),
    "torch.cuda.make_graphed_callables": lambda gpu, callables, *args, **kwargs: callables,
    **{
        f"torch.{module}.{name}": answer
        for module in ("cuda", "cuda.random")
        for name, answer in SEEDING.items()
    },
}

FakeDevice.more = frozenset(
    {*IS_CAPTURING, *CLASSES, *CONSTANT_ANSWERS, *_ANSWERS, *FakeDevice.observed} - {*OBSERVED}
)
