"""The emulated device: graphs on a machine that has no GPU.

Tensors in host memory stand for device tensors. A graph is the list of operations that a dispatch
mode saw between ``capture_begin`` and ``capture_end``; a replay runs them again on the same
addresses. As on a GPU nothing executes during the capture: its tensors hold poison until the first
replay, and calls that CUDA refuses during a capture are refused.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

from ..errors import ArgumentError, CaptureError, DeviceError
from . import capture_rules as rules
from .base import Body, Decision, DeviceFacts, Executables, PoolHandle, generator_id
from .emulated_capture import (
    Capture,
    Choice,
    HeldCall,
    Operation,
    current_capture,
    forget_closed,
    run,
)
from .emulated_memory import MemoryPool, bytes_of_all_pools, new_handle, pool_of
from .nodes import Binder, Node, Parameters, Place
from .operators import written_tensors

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EmulatedDevice", "EmulatedGraph", "new_capture"]

#: What makes the captures of this process; empty: :class:`Capture`. Code that emulates
#: ``torch.cuda`` puts its own here.
new_capture: list[Callable[[MemoryPool, frozenset[int]], Capture]] = []

_ERROR_MODES = ("global", "thread_local", "relaxed")


class EmulatedGraph:
    """A graph of the emulated device, with the low-level surface of ``torch.cuda.CUDAGraph``.

    Args:
        keep_graph: accepted as by ``torch.cuda.CUDAGraph``. There is nothing to instantiate here.
            It only decides whether :meth:`instantiate` may be called and whether the graph can be
            dumped.

    Attributes:
        replays: how many replays of all such graphs there were.
    """

    replays = 0
    _capture: Capture | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Bypass torch's class, a possible second base, which raises in a CPU build."""
        return object.__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = keep_graph
        self._debug = False
        self._generators: set[int] = set()
        self._pool: MemoryPool | None = None
        self._operations: list[Operation] = []

    def capture_begin(
        self, pool: PoolHandle | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Begin to record the operations of this thread.

        Args:
            pool: handle of a memory pool to share with other graphs, from
                ``EmulatedDevice.pool_handle()`` or from another graph's :meth:`pool`. Graphs that
                share a pool may overwrite each other's intermediates and dropped outputs.
            capture_error_mode: ``"global"``, ``"thread_local"`` or ``"relaxed"``. All mean the same
                here, since no other thread can disturb a capture.

        Raises:
            CaptureError: the graph holds a capture already, this thread is capturing already, or
                the error mode is none of the three.
        """
        if capture_error_mode not in _ERROR_MODES:
            raise CaptureError(
                f"Unknown capture_error_mode {capture_error_mode!r}: expected 'global', "
                "'thread_local' or 'relaxed'."
            )
        if self._capture is not None or current_capture() is not None:
            raise CaptureError(
                "capture_begin() was called while a capture is underway on this thread or into "
                "this graph; call capture_end() first."
            )
        if self._pool is not None:
            raise CaptureError(
                "This graph already holds a capture. Make a new graph, or call reset() first."
            )
        memory, generators = pool_of(_checked_handle(pool)), frozenset(self._generators)
        capture = (new_capture[-1] if new_capture else Capture)(memory, generators)
        self._capture = capture
        capture.open()

    def capture_end(self) -> None:
        """End recording; the graph can be replayed from now on.

        Raises:
            CaptureForbidden: an operation during the capture was refused. The graph holds nothing
                then, and the thread can capture again.
            CaptureError: no capture is underway, or another thread began it.
        """
        capture = self._capture
        if capture is None:
            raise CaptureError("capture_end() was called without a preceding capture_begin().")
        if capture.thread != threading.get_ident():
            raise CaptureError("capture_end() has to run on the thread that began the capture.")
        try:
            capture.check_end()
        finally:
            self._capture = None
            capture.close()
        capture.check_valid("capture_end()")
        if not capture.operations:
            warnings.warn(
                "The graph is empty: nothing was computed on this thread during the capture.",
                stacklevel=2,
            )
        self._pool = capture.pool
        self._operations = capture.operations

    def replay(self) -> None:
        """Run the recorded operations, on the addresses of the capture.

        Raises:
            CaptureError: there was no successful capture, or this thread is capturing.
        """
        if self._pool is None:
            raise CaptureError("replay() was called without a preceding successful capture.")
        if current_capture() is not None:
            raise CaptureError("replay() was called while a capture is underway on this thread.")
        EmulatedGraph.replays += 1
        run(self._operations)

    def reset(self) -> None:
        """Drop the recorded operations and the hold on the memory pool; end a capture underway."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.close()
        self._pool = None
        self._operations = []

    def pool(self) -> PoolHandle:
        """The handle of the memory pool of the recorded work.

        Raises:
            CaptureError: there was no successful capture.
        """
        if self._pool is None:
            raise CaptureError("pool() was called without a preceding successful capture.")
        return self._pool.handle

    def instantiate(self) -> None:
        """Nothing to do here; raises where ``torch.cuda.CUDAGraph`` would."""
        if self._pool is None:
            raise CaptureError("instantiate() was called without a preceding successful capture.")
        if not self._keep_graph:
            raise CaptureError("instantiate() may only be called of a graph with keep_graph=True.")

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let the next capture draw from ``generator`` as well as from the default one."""
        self._generators.add(generator_id(generator))

    def raw_cuda_graph(self) -> int:
        """Always raises: there is no CUDA graph here."""
        raise DeviceError("raw_cuda_graph(): there is no CUDA graph on the emulated device.")

    def raw_cuda_graph_exec(self) -> int:
        """Always raises: there is no CUDA graph here."""
        raise DeviceError("raw_cuda_graph_exec(): there is no CUDA graph on the emulated device.")

    def enable_debug_mode(self) -> None:
        """Keep the recorded operations for :meth:`debug_dump`."""
        self._debug = True

    def debug_dump(self, debug_path: str) -> None:
        """Write the recorded operations to ``debug_path``, in Graphviz's DOT language."""
        if self._pool is None:
            raise CaptureError("debug_dump() was called without a preceding successful capture.")
        if not (self._debug or self._keep_graph):
            warnings.warn("Call enable_debug_mode() before the capture to dump it.", stacklevel=2)
            return
        with open(debug_path, "w", encoding="utf-8") as file:
            file.write(_dot(self._operations))

    def nodes(self) -> list[Node]:
        """A node for each operation that it holds."""
        return list(map(_node, self._operations))

    def __del__(self) -> None:
        if self._capture is not None:
            self._capture.close()


class _NodesOfCapture:
    """See :class:`~gfxgraph.device.nodes.NodesOfCapture`."""

    # It does not hold the graph, which ends its capture when nobody holds it.
    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def count(self) -> int:
        return len(self._capture.own)

    def newest(self) -> Sequence[int]:
        return [position + 1 for position in self._capture.newest()]

    def read(self) -> list[Node]:
        return list(map(_node, self._capture.own))


_streams = itertools.count(1)


class EmulatedDevice:
    """The processor, standing for a device; see :class:`gfxgraph.device.base.Device`."""

    kind: Literal["cuda", "hip", "emulated"] = "emulated"
    tier: Literal["driver", "torch", "emulated"] = "emulated"
    type: str = "cpu"

    def index(self, device: torch.device) -> int:
        """Always 0."""
        return 0

    def facts(self, index: int = 0) -> DeviceFacts:
        """The facts about the processor, and the memory of this machine."""
        return DeviceFacts(
            vendor="emulated",
            name=_processor_name(),
            arch=platform.machine(),
            driver=None,
            runtime=None,
            torch=torch.__version__,
            memory_total=_memory("SC_PHYS_PAGES"),
            memory_free=_memory("SC_AVPHYS_PAGES"),
        )

    def pool_handle(self) -> PoolHandle:
        """A new memory pool to capture into."""
        return new_handle()

    def pool_bytes(self, pool: PoolHandle) -> int:
        """Bytes that ``pool`` holds, in use or free; 0 where no graph uses it."""
        return pool_of(pool).bytes()

    def free_pool_bytes(self, pool: PoolHandle) -> int:
        """Bytes of blocks that no tensor of the user's holds."""
        return pool_of(pool).free_bytes()

    def in_pool(self, pool: PoolHandle, address: int) -> bool:
        """Not asked for: an emulated graph itself holds on to what it reads."""
        return False

    def pool_segments(self, pool: PoolHandle) -> list[tuple[int, int]]:
        """The blocks of ``pool``."""
        return pool_of(pool).segments()

    def non_owning_alias(self, pool: PoolHandle, tensor: torch.Tensor) -> torch.Tensor:
        """An alias of ``tensor`` that does not hold its block."""
        twin = pool_of(pool).internal(tensor)
        return tensor if twin is None else twin

    def memory(self, index: int = 0) -> tuple[int, int]:
        """Bytes of all memory pools, and the memory of this machine."""
        return bytes_of_all_pools(), _memory("SC_PHYS_PAGES")

    def allocated(self, index: int = 0) -> int:
        """0: only pools count."""
        return 0

    def cached(self, index: int = 0) -> int:
        """0: nothing is kept."""
        return 0

    def release_cached_memory(self) -> None:
        """Nothing is kept."""

    def is_capturing(self) -> bool:
        """Whether this thread is capturing."""
        return current_capture() is not None

    def hold_call(
        self,
        call: Callable[..., Any],
        op: OpOverload | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record it; each replay calls it."""
        capture = current_capture()
        if capture is None:
            raise CaptureError("a call can be held by a capture that is under way alone.")
        return capture.hold(call, op, args, kwargs)

    def synchronize(self, index: int = 0) -> None:
        """Nothing to wait for; refused during a capture."""
        capture = current_capture()
        if capture is not None:
            capture.fail(rules.SYNCHRONISATION.error("synchronize()"))

    def stream_id(self, index: int = 0) -> int:
        """0, the stream that cannot capture; 1 while this thread captures."""
        return 0 if current_capture() is None else 1

    def copy_bytes(self, index: int, size: int) -> None:
        """There is none: what is launched in a capture has to be seen."""

    def copy_together(self, index: int, places: Sequence[tuple[int, int]]) -> None:
        """There is none."""

    def launcher(self, index: int, graph: Any) -> None:
        """There is no driver."""

    def new_stream(self, index: int = 0) -> Hashable:
        """A token; work runs at once, whatever the stream."""
        return next(_streams)

    def capture_stream(self, index: int = 0, purpose: str = "capture") -> Hashable:
        """Always 0: work runs at once."""
        return 0

    def current_stream(self, index: int = 0) -> Hashable:
        """Always 0."""
        return 0

    def set_stream(self, stream: Any) -> AbstractContextManager[None]:
        """Changes nothing."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def on_stream(self, stream: Any, index: int = 0) -> Iterator[None]:
        """Work runs at once; nothing of a capture stays behind."""
        try:
            yield
        finally:
            if current_capture() is None:
                forget_closed()

    def wait_stream_id(self, index: int, earlier: int) -> None:
        """Nothing to wait for."""

    def record_use(self, tensors: list[torch.Tensor], index: int, stream: int) -> None:
        """Nothing is in flight here."""

    def default_generator(self, index: int = 0) -> torch.Generator:
        """The generator of the processor."""
        return torch.default_generator

    def clear_library_workspaces(self) -> None:
        """There are none."""

    def begin_empty_capture(self, stream: Any) -> bool:
        """A failed capture leaves nothing behind here."""
        return False

    def executables(self) -> Executables:
        """Always raises: there are none."""
        raise DeviceError("the emulated device has no executables.")

    def nodes(self, graph: Any) -> list[Node]:
        """The operations of an emulated graph."""
        of_emulated: EmulatedGraph = graph
        return of_emulated.nodes()

    def nodes_of_capture(self, graph: Any, index: int = 0) -> _NodesOfCapture:
        """Those of the capture into an emulated graph."""
        capture = graph._capture
        assert capture is not None  # it has just begun
        return _NodesOfCapture(capture)

    def no_conditionals(self, index: int) -> str:
        """Empty: emulated graphs have them."""
        return ""

    def prepare_libraries(self, index: int) -> None:
        """There are none."""

    def add_conditional(
        self,
        index: int,
        decision: Decision,
        bodies: Sequence[Body],
        pool: PoolHandle,
    ) -> None:
        """See :class:`~gfxgraph.device.base.Device`; memory comes from the pool of the capture."""
        capture = current_capture()
        if capture is None:
            raise CaptureError("a conditional node needs a capture that is under way.")
        capture.decide(decision, bodies)

    def held_pool(self, index: int) -> PoolHandle:
        """See :meth:`release_pool`."""
        return new_handle()

    def release_pool(self, pool: PoolHandle, index: int) -> None:
        """Nothing is in it."""

    @property
    def binds_inputs(self) -> bool:
        """Operations hold their tensors, not addresses."""
        return False

    def parameters(self, graph: Any) -> list[Parameters]:
        """Never asked."""
        raise DeviceError("the emulated device has no kernels.")

    def binder(self, graph: Any, nodes: Sequence[Parameters], places: Sequence[Place]) -> Binder:
        """Never asked."""
        raise DeviceError("the emulated device has no kernels.")

    def end_allocation(self, pool: PoolHandle, index: int, release: bool) -> None:
        """A failed capture leaves nothing behind here."""

    def recover_generator(self, index: int, others: Sequence[torch.Generator] = ()) -> None:
        """A failed capture leaves nothing behind here."""


def _checked_handle(pool: PoolHandle | None) -> PoolHandle:
    if pool is None:
        return new_handle()
    if not (isinstance(pool, tuple) and len(pool) == 2 and all(isinstance(n, int) for n in pool)):
        raise ArgumentError(
            f"pool is {pool!r}: expected a handle from pool_handle() or another graph's pool()."
        )
    return pool


def _dot(operations: list[Operation]) -> str:
    """The operations in DOT; edges lead from the last writer of a memory to its users."""
    lines = ["digraph graph_of_operations {", "  node [shape=box];"]
    last_writer: dict[int, int] = {}
    for number, operation in enumerate(operations):
        shapes = ", ".join(str(tuple(t.shape)) for t in operation.targets if t is not None)
        lines.append(f'  n{number} [label="{number}: {operation.op}\\n{shapes}"];')
        used = pytree.tree_leaves((operation.args, operation.kwargs, operation.targets))
        places = {_place(t) for t in used if isinstance(t, torch.Tensor)}
        for writer in sorted({last_writer[p] for p in places if p in last_writer}):
            lines.append(f"  n{writer} -> n{number};")
        for tensor in (*(t for t in operation.targets if t is not None), *_written(operation)):
            last_writer[_place(tensor)] = number
    return "\n".join([*lines, "}", ""])


def _written(operation: Operation) -> list[torch.Tensor]:
    """The tensors among its arguments that an operation writes to, or may write to."""
    op, args, kwargs = operation.op, operation.args, operation.kwargs
    if isinstance(op, Choice):
        return []
    if not isinstance(op, HeldCall):
        return list(written_tensors(op, args, kwargs))
    if op.op is not None:
        return list(written_tensors(op.op, args, kwargs))
    return [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]


def _node(operation: Operation) -> Node:
    if isinstance(operation.op, Choice):
        bodies = [
            Node(f"body {number}", "", (), {}, tuple(map(_node, body)))
            for number, body in enumerate(operation.op.bodies)
        ]
        kind = operation.op.decision.kind
        return Node("conditional", "", operation.after, {"kind": kind}, tuple(bodies))
    targets = [target for target in operation.targets if target is not None]
    shapes = [_described(tensor) for tensor in targets or _written(operation)]
    name = str(operation.op) if isinstance(operation.op, HeldCall) else operation.op.name()
    return Node("operator", name, operation.after, {"results": shapes})


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory(pages: str) -> int:
    """Bytes of memory by sysconf's name for it; all of it, or 0, where that name is not known."""
    known = getattr(os, "sysconf_names", {})
    for name in (pages, "SC_PHYS_PAGES"):
        if name in known:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    return 0
