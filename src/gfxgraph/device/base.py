"""The interface of a device: a graph primitive, streams, a generator, memory, facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch._ops import OpOverload

from .nodes import Binder, Node, NodesOfCapture, Parameters, Place

__all__ = [
    "Body",
    "Decision",
    "Device",
    "DeviceFacts",
    "PoolHandle",
    "empty_as",
    "generator_id",
    "generator_state",
]

PoolHandle = tuple[int, int]
"""The name of a memory pool, as ``torch.cuda.graph_pool_handle()`` returns it."""


def generator_id(generator: torch.Generator) -> int:
    """An id that all Python objects of one generator share."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def generator_state(generator: torch.Generator) -> torch.Tensor:
    """The state of ``generator``, for its ``set_state``.

    ``get_state`` makes a Python object while it holds the lock of the generator. Up to Python 3.11
    that may begin a garbage collection, whose finalizers let other threads run; if one of them asks
    the same generator, it waits for the lock without releasing the interpreter: a deadlock. A clone
    has a lock of its own, and making one begins no collection.
    """
    return generator.clone_state().get_state()


def empty_as(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """New memory with the shape, the strides and the dtype of ``tensor``."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


@dataclass(frozen=True)
class DeviceFacts:
    """The facts about a device.

    Attributes:
        vendor: ``"nvidia"``, ``"amd"`` or ``"emulated"``.
        name: the name that the driver gives.
        arch: ``"sm_90"``, ``"gfx1030"``, or the processor's architecture when emulated.
        driver: version of the driver, ``None`` where it cannot be read.
        runtime: version of the CUDA or HIP runtime that torch was built with, ``None`` if none.
        torch: version of torch.
        memory_total: bytes.
        memory_free: bytes.
    """

    vendor: Literal["nvidia", "amd", "emulated"]
    name: str
    arch: str
    driver: str | None
    runtime: str | None
    torch: str
    memory_total: int
    memory_free: int


Body: TypeAlias = "Callable[[], torch.Tensor | None]"
"""Does what a body of a conditional node does. That of a ``"while"`` gives the value of the next
turn, like that of its :class:`Decision`; others give ``None``."""


class Decision(NamedTuple):
    """What a conditional node decides by.

    Attributes:
        kind: ``"if"``: run the first body if ``value`` is true, else the second one, if there is
            one; ``"while"``: repeat the body; ``"switch"``: run the body with this number.
        value: one element on the device, of dtype bool; of a ``"switch"`` int32.
        limit: how many turns a ``"while"`` makes at most. Default: any number.
    """

    kind: Literal["if", "switch", "while"]
    value: torch.Tensor
    limit: int | None = None


class Executables(Protocol):
    """Changes executables of graphs. Graphs, nodes, executables and streams are handles.

    All raise DeviceError where the driver refuses.
    """

    def update(self, executable: int, graph: int) -> str:
        """Let ``executable`` do what ``graph`` does; ``""``, or why the driver cannot."""

    def compose(
        self, graphs: Sequence[int], after: Sequence[Sequence[int]]
    ) -> tuple[int, list[int], int]:
        """A graph with ``graphs`` as its nodes, these nodes, and its executable.

        Args:
            graphs: each is copied; it may be changed or destroyed later.
            after: of each, the positions of earlier ones that it waits for.
        """

    def replace(self, executable: int, node: int, graph: int) -> None:
        """Let ``node`` of what :meth:`compose` gave do what ``graph`` does."""

    def launch(self, executable: int, stream: int) -> None:
        """Launch it on a stream of the current device."""

    def destroy(self, graph: int, executable: int) -> None:
        """Destroy both."""


class Device(Protocol):
    """One kind of device. Stateless; an index picks the device where there are several."""

    @property
    def kind(self) -> Literal["cuda", "hip", "emulated"]:
        """Which of the three."""

    @property
    def tier(self) -> Literal["driver", "torch", "emulated"]:
        """What answers for graphs now.

        ``"driver"``: beside torch also the driver itself, through a binding that is loaded;
        ``"torch"``: torch's graphs alone; ``"emulated"``: the emulated device.
        """

    @property
    def type(self) -> str:
        """``tensor.device.type`` on this device: ``"cuda"`` or ``"cpu"``."""

    def index(self, device: torch.device) -> int:
        """The index that ``device`` means here."""

    def facts(self, index: int = 0) -> DeviceFacts:
        """The facts about device ``index``.

        Raises:
            DeviceError: the device does not answer.
        """

    def pool_handle(self) -> PoolHandle:
        """A new memory pool to capture into."""

    def pool_bytes(self, pool: PoolHandle) -> int:
        """Bytes of device memory that ``pool`` holds."""

    def free_pool_bytes(self, pool: PoolHandle) -> int:
        """Bytes of them that the next capture may use."""

    def in_pool(self, pool: PoolHandle, address: int) -> bool:
        """Whether the memory at ``address`` belongs to ``pool``."""

    def pool_segments(self, pool: PoolHandle) -> list[tuple[int, int]]:
        """Address and bytes of each piece of memory that ``pool`` holds."""

    def non_owning_alias(self, pool: PoolHandle, tensor: torch.Tensor) -> torch.Tensor:
        """An alias of a tensor in ``pool`` that does not keep its memory from being reused."""

    def memory(self, index: int) -> tuple[int, int]:
        """Bytes of device ``index`` in use by any process, and its total."""

    def allocated(self, index: int) -> int:
        """Bytes of device ``index`` that tensors hold and :meth:`memory` counts."""

    def cached(self, index: int) -> int:
        """Bytes of device ``index`` that the allocator keeps for later tensors, not for graphs."""

    def release_cached_memory(self) -> None:
        """Give unused memory of the allocator back to the driver."""

    def is_capturing(self) -> bool:
        """Whether the current stream of this thread is capturing."""

    def hold_call(
        self,
        call: Callable[..., Any],
        op: OpOverload | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Let the capture under way hold a call, which takes part in a collective.

        Args:
            call: the function.
            op: the operator that it is, if it is one.
            args: its arguments.
            kwargs: its keyword arguments.

        Returns:
            Its result; ``None`` on the emulated device, if it is no operator.
        """

    def synchronize(self, index: int) -> None:
        """Wait for all work on device ``index``."""

    @property
    def stream_id(self) -> Callable[[int], int]:
        """A fast function: the current stream of a device. 0 is the stream that cannot capture."""

    def copy_bytes(self, index: int, size: int) -> Callable[[int, int, int], int] | None:
        """A fast function that copies within device ``index``; ``None``: there is no such one.

        Args:
            index: the device; it need not be the current one.
            size: how many bytes.

        The function takes the address to copy to, the one to copy from, and what ``stream_id``
        gives. It gives 0; another number: nothing was copied.
        """

    def copy_together(
        self, index: int, places: Sequence[tuple[int, int]]
    ) -> Callable[..., int] | None:
        """A fast function that copies to several places of device ``index``; ``None``: there is
        none.

        Args:
            index: of the device. If another device is current, the function may copy nothing.
            places: for each its address and how many bytes.

        The function takes what ``stream_id`` gives, and as many addresses to copy from. It gives 0;
        another number: nothing was copied.
        """

    def launcher(self, index: int, graph: Any) -> tuple[Callable[[int], bool], int, int] | None:
        """How to launch a graph on device ``index`` without torch.

        Gives a function of a stream that says whether device ``index`` is current and the stream is
        idle; the address of the function that launches graphs; and the handle of the graph.
        ``None``: torch has to launch it. Streams are what ``stream_id`` gives. The function that
        launches takes the handle and a stream, and gives 0; another number: nothing was launched.
        """

    def new_stream(self, index: int) -> Any:
        """A stream of torch's pool; other code may get the same one."""

    def capture_stream(self, index: int, purpose: str = "capture") -> Any:
        """The stream for ``purpose`` in this process; no other code gets it."""

    def current_stream(self, index: int) -> Any:
        """The current stream of device ``index``."""

    def set_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Make ``stream`` the current one, without waiting for anything."""

    def on_stream(self, stream: Any, index: int) -> AbstractContextManager[None]:
        """Run on ``stream`` after the work of the current stream, which then waits for it."""

    def wait_stream_id(self, index: int, earlier: int) -> None:
        """Make the current stream wait for all work so far on the stream ``earlier``."""

    def record_use(self, tensors: list[torch.Tensor], index: int, stream: int) -> None:
        """Keep the memory of ``tensors`` from others until the stream with this id is done."""

    def default_generator(self, index: int) -> torch.Generator:
        """The default generator itself."""

    def clear_library_workspaces(self) -> None:
        """Free the workspaces of math libraries, so that each pool gets its own."""

    def begin_empty_capture(self, stream: Any) -> bool:
        """Begin a capture of nothing on ``stream``, after a ``capture_end`` that raised.

        With it the graph can end its capture once more, and torch then cleans up what it left: the
        allocators of device and pinned memory, and the generators.

        Returns:
            Whether it has begun. ``False``: there is nothing to clean up, or no way to begin it.
        """

    def executables(self) -> Executables:
        """What changes executables of graphs, and puts graphs into one.

        Raises:
            DeviceError: there is nothing that does here; the message says why.
            MissingPackageError: what asks the driver is not installed.
        """

    def nodes(self, graph: Any) -> list[Node]:
        """The nodes of a ``torch.cuda.CUDAGraph`` that was made with ``keep_graph=True``.

        Raises:
            DeviceError: the driver does not tell.
            MissingPackageError: what asks the driver is not installed.
        """

    def nodes_of_capture(self, graph: Any, index: int) -> NodesOfCapture:
        """Those of the capture into ``graph``, which has begun on the current stream.

        Raises:
            DeviceError: the driver does not tell.
            MissingPackageError: what asks the driver is not installed.
        """

    def no_conditionals(self, index: int) -> str:
        """Why captures on device ``index`` take no :meth:`add_conditional`; empty: they do."""

    def prepare_libraries(self, index: int) -> None:
        """Make what math libraries make at their first use, which a capture would refuse."""

    def add_conditional(
        self,
        index: int,
        decision: Decision,
        bodies: Sequence[Body],
        pool: PoolHandle,
    ) -> None:
        """Put a decision into the capture of the current stream.

        Args:
            index: of the device.
            decision: what it decides by. A body may write to its value, which is read before.
            bodies: each is called once, and what it does becomes a body of the node.
            pool: of :meth:`held_pool`, where the memory comes from that they allocate.

        Raises:
            CaptureError: a body holds what no body of a conditional node can.
            DeviceError: the driver refuses.
        """

    def held_pool(self, index: int) -> PoolHandle:
        """A new memory pool, which keeps its memory until :meth:`release_pool`."""

    def release_pool(self, pool: PoolHandle, index: int) -> None:
        """Give back what :meth:`held_pool` gave."""

    @property
    def binds_inputs(self) -> bool:
        """Whether graphs may be let read their inputs elsewhere, with the next two."""

    def parameters(self, graph: Any) -> list[Parameters]:
        """What the nodes of a ``torch.cuda.CUDAGraph`` with ``keep_graph=True`` were given.

        Raises:
            DeviceError: the driver does not tell.
            MissingPackageError: what asks the driver is not installed.
        """

    def binder(self, graph: Any, nodes: Sequence[Parameters], places: Sequence[Place]) -> Binder:
        """Changes the inputs of such a graph, which was launched before.

        Args:
            graph: the graph.
            nodes: what :meth:`parameters` gives of it.
            places: where addresses in inputs are in there.

        Raises:
            DeviceError: the driver does not tell.
        """

    def end_allocation(self, pool: PoolHandle, index: int, release: bool) -> None:
        """Stop a failed capture from allocating from ``pool``; with ``release`` free its memory."""

    def recover_generator(self, index: int, others: Sequence[torch.Generator] = ()) -> None:
        """Make the default generator and ``others`` usable again after a failed capture."""
