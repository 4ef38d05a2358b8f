"""``NativeGraph``: torch's graph class with safe clean-up, counting and a log."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

import torch

from .. import settings
from ..compiling.rng import tell_if_compiled
from ..device import Device, PoolHandle, current_device, generator_state, index_of
from ..device.emulated import EmulatedGraph
from ..device.nodes import Node
from ..errors import ArgumentError, CaptureError, DeviceError, MemoryCapError, MissingPackageError
from ..interpose.dynamo import frames_compiled
from ..interpose.source import Source, users_line
from ..record import collectives
from ..stats import BY_HAND, log, tally
from .lines import LinesOfNodes
from .liveness import InputLiveness
from .locks import is_inside_gfxgraph

__all__ = ["NO_SIZES", "GraphUpdate", "NativeGraph", "when_no_capture"]

if TYPE_CHECKING:
    _Base: Any = object
elif current_device().type == "cuda":
    _Base = torch.cuda.CUDAGraph
elif torch.version.cuda or torch.version.hip:
    # A GPU build with no GPU: torch's class cannot even be constructed there.
    _Base = EmulatedGraph
else:
    # In a CPU build torch's class is a placeholder; keep isinstance() true all the same.
    _Base = type("_Emulated", (EmulatedGraph, torch.cuda.CUDAGraph), {})

# torch's own replay() is a Python function around this one.
_launch: Any = getattr(getattr(torch._C, "_CUDAGraph", None), "replay", None)
if not TYPE_CHECKING and (_launch is None or issubclass(_Base, EmulatedGraph)):
    _launch = _Base.replay

_MODES = ("global", "thread_local", "relaxed")

# After so many replays one is timed, and the first one.
_TIMED = 61

NO_SIZES = (
    "replay() takes sizes only after capture(dynamic_shapes=True, buckets=..., model_fn=...); this "
    "graph has one size."
)

# Graphs that nobody uses any more and whose capture failed, kept to the end: torch's allocator of
# pinned memory still holds a filter that points into them (seen on torch 2.11), and nothing in
# Python can take it back.
_failed: list[NativeGraph] = []

# An empty graph for each pool of a caller's into which a capture failed: a pool that no graph uses
# any more cannot be used again, and a server captures into its pool for as long as it runs.
_keepers: dict[tuple[int, PoolHandle], Any] = {}

# Graphs that were dropped during a capture: to destroy one there would invalidate the capture.
_dropped: list[NativeGraph] = []
# And what else waits for the end of captures.
_later: list[Callable[[], None]] = []

# Graphs whose capture is under way.
_capturing: weakref.WeakSet[NativeGraph] = weakref.WeakSet()


class GraphUpdate(NamedTuple):
    """What became of an executable that should do something else from now on.

    Attributes:
        result: ``"updated"``: it was changed in place; ``"rebuilt"``: another one does it.
        reason: why it was not changed in place, as the driver says it; else ``""``.
    """

    result: Literal["updated", "rebuilt"]
    reason: str


class NativeGraph(_Base):  # type: ignore[misc]
    """A CUDA or HIP graph; on a machine without a GPU, an emulated one.

    A subclass of :class:`torch.cuda.CUDAGraph` with the same methods and the same errors, and with
    three additions: a failed capture leaves the process able to capture and to draw random numbers
    again; a graph that is dropped in the middle of its capture ends the capture first (on HIP the
    process would abort); and captures and replays are counted in :func:`gfxgraph.stats`.
    ``BridgedCUDAGraph``, which users get, also captures in one ``with`` block.

    Args:
        keep_graph: see ``BridgedCUDAGraph``. Default ``False``.
    """

    # Set by enable(): wait for the device after each replay, so that an error names the replay
    # that made it; and check the liveness of inputs also where the caller did not ask for it.
    synchronize_replays = False
    check_liveness = False
    # And keep of each capture its nodes, and the line that made each.
    keeps_nodes = False
    # Set by the plugins for servers: what asks for "global" gets "thread_local". In a server other
    # threads query events (the watchdog of NCCL) and allocate while a graph is captured, which
    # would end a capture in mode "global".
    global_is_thread_local = False
    #: How many captures were begun in this process.
    begun = 0
    #: Graphs that know what they read from outside.
    watched: ClassVar[weakref.WeakSet[NativeGraph]] = weakref.WeakSet()

    def __init__(self, keep_graph: bool = False) -> None:
        if not isinstance(keep_graph, bool):
            raise ArgumentError(
                f"{type(self).__name__}(keep_graph={keep_graph!r}): expected True or False."
            )
        super().__init__(keep_graph)
        self._keep_graph = keep_graph
        self._capture_stream: Any = None
        self._capture_index = 0
        self._capture_pool: PoolHandle | None = None
        self._capture_thread = 0
        #: The memory of the bodies of conditional nodes, and what gives it back.
        self._pool_of_bodies: PoolHandle | None = None
        self._release_bodies: Callable[[], object] = lambda: None
        self._registered: list[torch.Generator] = []
        self._compiled_before = 0
        #: Whether a failed capture releases the pool: a pool that nobody uses cannot be used
        #: again, so one that the caller brought stays his.
        self.owns_pool = False
        self._liveness: InputLiveness | None = None
        self._is_captured = False
        #: How many captures it has held, and updates.
        self.captures = 0
        #: Whether its replays draw random numbers; ``None``: there was none yet. Only known with
        #: ``keep_graph=True``.
        self.draws: bool | None = None
        # What it replays since an update, and how many captures that one had held.
        self._source: tuple[NativeGraph, int] | None = None
        self._has_failed = False
        #: What finds the lines of the nodes of the capture under way, and what it has found.
        self._tracing: LinesOfNodes | None = None
        self._nodes: list[Node] | None = None
        self._lines: list[Source] = []
        #: Why the nodes of a capture could not be kept.
        self._no_nodes = ""
        #: Whether nobody will replay it: it is only to be seen if it can be captured.
        self.is_trial = False
        #: Set by whoever ends a capture whose body has raised: what it holds is a part of the body.
        self.body_raised = False
        #: The error that ended a body of a conditional node in it, which holds a part of that now.
        self.holds_part_of = ""
        #: What the capture under way issued, and what ends looking at that.
        self._issued = collectives.Issued()
        self._look_away: Callable[[], None] = lambda: None
        # The next three are for BridgedCUDAGraph.capture().
        self._stand_in: Callable[[int | None, dict[str, int]], Any] | None = None
        #: What a replay of the graph returns.
        self.static_output: Any = None
        #: Compares replays with eager execution, where that is asked for.
        self.block: Any = None
        self.counter = tally.replay_counter()

    def __reduce__(self) -> Any:
        # A copy is a new graph, which holds no capture yet.
        return type(self), (self._keep_graph,)

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let the capture draw from ``generator``, besides the default one of the device.

        Raises:
            ArgumentError: it is no generator of torch.
        """
        if not isinstance(generator, torch.Generator):
            raise ArgumentError(
                f"register_generator_state({generator!r}): expected a torch.Generator of the "
                "device."
            )
        super().register_generator_state(generator)
        self._registered.append(generator)

    def capture_begin(
        self,
        pool: PoolHandle | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin to capture the work of the current stream, which may not be the default stream.

        Args:
            pool: memory pool to share, from ``torch.cuda.graph_pool_handle()`` or another graph's
                :meth:`pool`. Default: a pool of its own.
            capture_error_mode: ``"global"`` (default) refuses unsafe calls in every thread,
                ``"thread_local"`` in this one, ``"relaxed"`` in none.
            check_input_liveness: remember the tensors from outside that the capture uses, without
                keeping them alive, and refuse to replay once one of them is gone. Default
                ``False``. Works on every torch, also where torch itself has no such argument.

        Raises:
            ArgumentError: ``capture_error_mode`` is none of the three.
            CaptureError: the current stream is capturing already, or the graph holds a capture.
            MemoryCapError: ``GFXGRAPH_VRAM_CAP`` is set, and the device holds as much already. What
                the capture itself takes is not known before it ends. Without the variable nothing
                is refused: who captures by hand often fills the device on purpose.
        """
        if capture_error_mode not in _MODES:
            raise ArgumentError(
                f"capture_error_mode={capture_error_mode!r}: expected one of {', '.join(_MODES)}."
            )
        self.check_that_it_may_begin()
        device = current_device()
        NativeGraph.begun += 1
        if capture_error_mode == "global" and self.global_is_thread_local:
            capture_error_mode = "thread_local"
        if not is_inside_gfxgraph():  # our own captures have made room before
            self._check_memory(device)
        # A pool of our own making, where torch would make a private one: its name is needed to
        # release it when the capture fails.
        handle = cast(PoolHandle, getattr(pool, "id", pool)) or device.pool_handle()
        index = index_of(device)
        stream = device.current_stream(index)
        try:
            super().capture_begin(pool=handle, capture_error_mode=capture_error_mode)
        except RuntimeError:
            device.recover_generator(index, self._registered)
            raise
        self._capture_stream, self._capture_index, self._capture_pool = stream, index, handle
        self._capture_thread = threading.get_ident()
        _capturing.add(self)
        try:
            self._compiled_before = frames_compiled()
            # On the emulated device a replay would send nothing.
            self._issued = collectives.Issued(lambda: device.kind == "emulated")
            self._look_away = collectives.observe(self._issued)
            self.owns_pool = pool is None
            self._liveness, self.body_raised, self.holds_part_of = None, False, ""
            # Our own captures keep alive what they read.
            if check_input_liveness or (self.check_liveness and not is_inside_gfxgraph()):
                self._liveness = InputLiveness()
                self._liveness.start()
            self._nodes, self._lines, self._no_nodes = None, [], ""
            if self.keeps_nodes:
                self._trace_lines(device, index)
            self._log(logging.DEBUG, "capture_begin", pool=handle, mode=capture_error_mode)
        except BaseException:  # nobody else knows yet that a capture has begun
            self._abandon()
            raise

    def capture_end(self) -> None:
        """End the capture, on the stream on which it began.

        After a body that raised (``with torch.cuda.graph(...)``, while gfxgraph is enabled) the
        graph holds nothing, the capture counts as failed, and that error goes on.

        Raises:
            RuntimeError: as torch raises it: the capture was invalidated, or has unjoined work.
                The allocator, the generator and the streams are as before the capture then.
        """
        stream, device = self._capture_stream, current_device()
        if stream is None or device.current_stream(self._capture_index) != stream:
            super().capture_end()  # raises, and leaves a capture on the other stream as it is
            return
        if self._liveness is not None:
            pools = [pool for pool in (self._capture_pool, self._pool_of_bodies) if pool]
            self._liveness.stop(lambda a: any(device.in_pool(pool, a) for pool in pools))
        self._capture_stream = None
        if self._tracing is not None:
            self._keep_nodes(self._tracing)
        self._look_away()
        self._look_away = lambda: None
        if not is_inside_gfxgraph():  # our own captures know what they capture
            tell_if_compiled(self._compiled_before, lambda: str(users_line()))
        try:
            super().capture_end()
        except BaseException as error:
            self._clean_up(device, stream)
            self._ended()
            if not self.is_trial:
                _count_failure(str(error).partition("\n")[0])
            if self.body_raised and isinstance(error, Exception):
                return  # the first error goes on
            raise
        self._ended()
        stopped = None if self._issued.stopped is None else self._issued.stopped.error()
        if self.holds_part_of:
            stopped = stopped or CaptureError(
                "capture_end(): an error ended a body of a conditional node, of which the graph "
                f"holds a part: {self.holds_part_of}"
            )
        if stopped is not None:  # the block may have gone on without it
            if not self.is_trial:
                _count_failure(str(stopped).partition("\n")[0])
            super().reset()
            if self.body_raised:
                return
            raise stopped
        if self.body_raised:
            _count_failure("the body raised")
            super().reset()
            return
        self._is_captured, self.draws = True, None
        self.captures += 1
        if self._liveness is not None:
            NativeGraph.watched.add(self)
        if self._issued.groups and not is_inside_gfxgraph():
            collectives.release_with_groups(self._release_with_group, self._issued.groups)
        if self.is_trial:
            return
        tally.add("capture_count")
        if not is_inside_gfxgraph():
            tally.captured(BY_HAND)
        self._log(logging.DEBUG, "capture_end", pool=self._capture_pool)

    @staticmethod
    def capturing_here() -> NativeGraph | None:
        """The graph into which this thread captures; ``None``: none of these."""
        here = threading.get_ident()
        return next((g for g in list(_capturing) if g._capture_thread == here), None)

    def pool_of_bodies(self) -> PoolHandle:
        """The memory pool for the bodies of its conditional nodes; it lives with the graph."""
        if self._pool_of_bodies is None:
            device, index = current_device(), self._capture_index
            self._pool_of_bodies = pool = device.held_pool(index)
            release = weakref.finalize(self, device.release_pool, pool, index)
            release.atexit = False
            self._release_bodies = release
        return self._pool_of_bodies

    def bytes_of_bodies(self) -> int:
        """Bytes of the memory of :meth:`pool_of_bodies`."""
        pool = self._pool_of_bodies
        return 0 if pool is None else current_device().pool_bytes(pool)

    def _trace_lines(self, device: Device, index: int) -> None:
        """Begin to find the lines of nodes."""
        try:
            nodes = device.nodes_of_capture(self, index)
            tracing = LinesOfNodes(nodes, of_calls=is_inside_gfxgraph())
            tracing.begin()
            self._tracing = tracing
        except (DeviceError, MissingPackageError) as error:
            self._without_nodes(error)

    def _keep_nodes(self, tracing: LinesOfNodes) -> None:
        """Keep the nodes of the capture that ends, before torch destroys the graph of the driver.

        That is instantiated, and only its nodes tell what it does.
        """
        self._tracing = None
        try:
            self._nodes = tracing.end()
            self._lines = tracing.of(self._nodes)
        except DeviceError as error:
            self._without_nodes(error)

    def _without_nodes(self, error: Exception) -> None:
        self._no_nodes = str(error)
        log(logging.DEBUG, "nodes_not_kept", because=self._no_nodes)

    def described(self) -> tuple[list[Node], list[Source]]:
        """The nodes of the graph, and of each the user's line, without a file where unknown.

        Raises:
            CaptureError: it holds no capture, or its nodes were not kept.
            DeviceError: the driver does not tell.
            MissingPackageError: what asks the driver is not installed.
        """
        if not self._is_captured:
            raise CaptureError(
                "this graph holds no capture: nothing was captured yet, the capture failed, or it "
                "was released by reset()."
            )
        if self._source is not None:
            return self.origin.described()
        if self._keep_graph:  # somebody may have changed it meanwhile
            nodes = current_device().nodes(self)
            return nodes, self._lines if nodes == self._nodes else [Source()] * len(nodes)
        if self._nodes is not None:
            return self._nodes, self._lines
        if self._no_nodes:
            raise CaptureError(f"the nodes of this graph could not be read: {self._no_nodes}")
        raise CaptureError(
            "this graph was captured without keeping its nodes. Before the capture, call "
            "gfxgraph.enable(debug=True) or set GFXGRAPH=debug; a graphed function captures again "
            "after its reset(). A graph that you make yourself also keeps them with "
            "keep_graph=True."
        )

    def _ended(self) -> None:
        """Destroy what was dropped meanwhile, if this was the only capture."""
        _capturing.discard(self)
        if not _capturing:
            _dropped.clear()
            while _later:
                _later.pop()()

    def _clean_up(self, device: Device, stream: Any) -> None:
        """Undo what ``capture_begin`` began, where torch has not ended it."""
        pool, index = cast(PoolHandle, self._capture_pool), self._capture_index
        if not device.begin_empty_capture(stream):
            device.end_allocation(pool, index, self.owns_pool)
            device.recover_generator(index, self._registered)
            self._has_failed = True
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            try:
                super().capture_end()
            except RuntimeError as error:  # what raised came after torch's clean-up
                self._log(logging.DEBUG, "capture_was_cleaned_up", error=str(error))
            if not self.owns_pool and (index, pool) not in _keepers:
                keeper = _Base()
                _Base.capture_begin(keeper, pool=pool, capture_error_mode="thread_local")
                _Base.capture_end(keeper)
                _keepers[index, pool] = keeper
        super().reset()

    def check_that_it_may_begin(self) -> None:
        """Raise where no capture may begin.

        Raises:
            CaptureError: the current stream is capturing already, or the graph holds a capture.
        """
        # While a run is recorded, the function is told that it is in a capture; not what tries one.
        if not self.is_trial and current_device().is_capturing():
            # torch finds out only after it has begun to redirect the allocator.
            raise CaptureError(
                "a capture cannot begin while the current stream is already capturing: end that "
                "capture first, or run the function without its own graph inside it."
            )
        if self._is_captured or self.stand_in is not None:
            raise CaptureError(
                "this graph already holds a capture: make a new graph, or call reset() first."
            )

    @staticmethod
    def _check_memory(device: Device) -> None:
        cap = settings.explicit_vram_cap()
        if cap is None:
            return
        index = index_of(device)
        used, total = device.memory(index)
        used -= device.cached(index)
        if used >= cap * total:
            raise MemoryCapError(
                f"{used >> 20} MiB of the device's {total >> 20} MiB are in use, and "
                f"GFXGRAPH_VRAM_CAP={cap:g} allows less: no capture was begun. Free memory, raise "
                "the variable or unset it."
            )

    def replay(self, batch_size: int | None = None, **sizes: int) -> Any:
        """Launch the captured work on the current stream.

        Args:
            batch_size: after ``capture(dynamic_shapes=True)``: how many rows of the static inputs
                to take, those at the beginning. Default: all, and what comes out is also copied
                into the static output.
            **sizes: the same for other dynamic dimensions, by the names that ``dims`` gives them.

        Returns:
            ``None`` after :meth:`capture_begin` or a :meth:`capture` without ``model_fn``. After
            one with ``model_fn`` what ``model_fn`` gives: the static output itself, which the next
            replay overwrites; with ``dynamic_shapes``, and where it runs eagerly because the
            capture failed, tensors of their own.

        Raises:
            ArgumentError: a size is no whole number from 0 to that of the static inputs, or there
                is no such dynamic dimension.
            CaptureError: the static output cannot hold what came out.
            DeadTensorError: a tensor that the graph reads is gone; only after
                ``capture_begin(check_input_liveness=True)``.
            RuntimeError: as torch raises it: nothing was captured, or a capture is under way.
        """
        # Every name that is looked up here shows beside the launch of a small graph.
        counter = self.counter
        if not counter.left or batch_size is not None or sizes:
            return self._replay_checked(batch_size, sizes)
        _launch(self)
        counter.left -= 1
        return None

    def _replay_checked(self, batch_size: int | None, sizes: dict[str, int]) -> Any:
        """A replay with all that may be asked for, and timed."""
        if self.stand_in is not None:
            return self.stand_in(batch_size, sizes)
        if batch_size is not None or sizes:
            raise ArgumentError(NO_SIZES)
        self.check_inputs()
        unknown = self._keep_graph and self.draws is None and not current_device().is_capturing()
        drawn = self._drawn() if unknown else ()
        start, counter = time.perf_counter_ns(), self.counter
        _launch(self)
        counter.ns += time.perf_counter_ns() - start
        if unknown:
            self.draws = self._drawn() != drawn
        counter.timed += 1
        counter.replays += 1
        if self.synchronize_replays:
            current_device().synchronize(self._capture_index)
        elif self._liveness is self.static_output is self._source is None:
            counter.allow(_TIMED)
        return self.static_output

    def instantiate(self) -> None:
        """Make an executable of the graph; one that is there already is replaced.

        Raises:
            CaptureError: it replays another capture since :meth:`update`.
            RuntimeError: as torch raises it: nothing was captured, or the graph is not kept.
        """
        if self._source is not None:
            raise CaptureError(
                "instantiate() would bring back what this graph did before update(): call "
                "instantiate() of the other graph, and update() again."
            )
        super().instantiate()

    def _drawn(self) -> tuple[Any, ...]:
        """Where the generators are of which it may draw."""
        default = current_device().default_generator(self._capture_index)
        return tuple(generator_state(g).tolist() for g in (default, *self._registered))

    @property
    def origin(self) -> NativeGraph:
        """The graph whose capture it replays: itself, or what it was updated from."""
        return self if self._source is None else self._source[0].origin

    def check_inputs(self) -> None:
        """Raise where memory that its replay needs is gone, as far as that is known.

        Raises:
            CaptureError: see :meth:`check_that_it_is_there`.
            DeadTensorError: a tensor that it reads is gone.
        """
        if self._liveness is not None:
            self._liveness.check()
        self.check_that_it_is_there()

    def check_that_it_is_there(self) -> None:
        """Raise where what it replays is gone.

        Raises:
            CaptureError: after an update, the other graph was released or captured again.
        """
        if self._source is not None:
            _require_capture(*self._source)

    def is_kept(self) -> bool:
        """Whether it holds a capture whose graph is kept (``keep_graph=True``)."""
        return self._keep_graph and self._is_captured

    @property
    def index(self) -> int:
        """The number of the device of its capture."""
        return self._capture_index

    def update(self, other: NativeGraph) -> GraphUpdate:
        """From now on replay what ``other`` has captured.

        Both keep their graphs (``keep_graph=True``). The executable of this graph is changed in
        place where the driver can: the nodes are the same, and only what they work on differs, such
        as a weight that was rebound. Otherwise replays go to the executable of ``other``. Replays
        are equal either way. It is also not changed in place

        - on HIP and on the emulated device;
        - if one of the two draws random numbers, which torch prepares for one capture alone, or was
          never replayed, so that this is not known;
        - if one holds a collective, or was captured with ``capture(model_fn=)``, whose replays can
          be compared with eager execution.

        This graph holds ``other``, whose memory it uses; its own memory stays until :meth:`reset`.
        The static output is that of ``other``. Replays that are running are not disturbed.
        ``raw_cuda_graph()`` and :meth:`pool` stay those of its own capture.

        Args:
            other: a graph on the same device that holds a capture.

        Returns:
            ``"updated"`` or ``"rebuilt"``, and in that case the reason.

        Raises:
            ArgumentError: ``other`` is no such graph, or is this one.
            CaptureError: one of the two holds no capture, or its graph is not kept.
        """
        if not isinstance(other, NativeGraph) or other.origin is self:
            raise ArgumentError(f"update({other!r}): expected another BridgedCUDAGraph.")
        for which, graph in (("this", self), ("the other", other)):
            if not graph.is_kept():
                raise CaptureError(
                    f"update(): {which} graph holds no capture of which the graph is kept: capture "
                    "into BridgedCUDAGraph(keep_graph=True)."
                )
        if self.index != other.index:
            raise ArgumentError(
                f"update(): this graph is on GPU {self.index}, the other one on {other.index}: "
                "expected the same."
            )
        other = other.origin
        why = self._not_in_place(other)
        if not why:
            try:
                executables = current_device().executables()
                why = executables.update(self.raw_cuda_graph_exec(), other.raw_cuda_graph())
            except (DeviceError, MissingPackageError) as error:
                why = str(error)
        self.block, self._source = None, (other, other.captures)
        self._liveness, self.static_output = other._liveness, other.static_output
        self.captures += 1
        self.stand_in = _replay_of(other, other.captures) if why else None
        log(logging.DEBUG, "graph_updated", in_place=not why, because=why)
        return GraphUpdate("rebuilt" if why else "updated", why)

    def _not_in_place(self, other: NativeGraph) -> str:
        """Why the executable may not be changed to do what ``other`` does; ``""``: it may."""
        for which, graph in (("this", self), ("the other", other)):
            if why := graph.only_for_itself():
                return f"{which} graph {why}"
        return ""

    def only_for_itself(self) -> str:
        """Why nothing but its own executable may do what it does; ``""``: another one may."""
        if self.block is not None:
            return "has replays that can be compared with eager execution"
        if self._issued.groups:
            return "holds a collective, and is released with the process group"
        if self.draws is None:
            return "was never replayed, so it may draw random numbers"
        return "draws random numbers" if self.draws else ""

    @property
    def stand_in(self) -> Callable[[int | None, dict[str, int]], Any] | None:
        """What answers a replay in place of the graph, given ``batch_size`` and other sizes."""
        return self._stand_in

    @stand_in.setter
    def stand_in(self, answer: Callable[[int | None, dict[str, int]], Any] | None) -> None:
        self._stand_in = answer
        self.counter.allow(0)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` lives in the graph's memory pool."""
        if self._source is not None:
            return self.origin.holds(tensor)
        if self._capture_pool is None:
            return False
        address, segments = tensor.data_ptr(), current_device().pool_segments(self._capture_pool)
        return any(start <= address < start + size for start, size in segments)

    def freed_inputs(self) -> list[str]:
        """Tensors that the graph reads and that were freed; none where its inputs are not known."""
        return [] if self._liveness is None else self._liveness.freed()

    @property
    def launch(self) -> Callable[[], None]:
        """:meth:`replay` without its counting and checks, for a caller that does its own."""
        return cast(Callable[[], None], _launch.__get__(self))

    def reset(self) -> None:
        """Drop the graph; a capture that is under way is ended first."""
        self._abandon()
        self._is_captured = False
        self._source = self.draws = None
        self.stand_in = self.static_output = self.block = self._liveness = None
        self._nodes, self._lines = None, []
        super().reset()
        self._release_bodies()
        self._pool_of_bodies = None

    def _release_with_group(self) -> None:
        """A group whose collectives it holds is destroyed."""
        why = "a process group is shut down whose collective it holds"
        log(logging.WARNING, "graph_released", because=why)
        self.reset()

    def _log(self, level: int, event: str, **facts: Any) -> None:
        """Log, but not in the middle of a recorded run, which would take that for its own."""
        if not self.is_trial:
            log(level, event, **facts)

    def _abandon(self) -> None:
        """End a capture whose graph nobody wants any more."""
        if self._capture_stream is None:
            return
        pool, why = self._capture_pool, ""
        with current_device().set_stream(self._capture_stream):
            try:
                self.capture_end()
            except RuntimeError as error:  # capture_end() has cleaned up
                why = str(error)
        # Not before: a handler of the log that raises would leave the capture open.
        self._log(logging.INFO, "capture_abandoned", pool=pool)
        if why:
            self._log(logging.DEBUG, "abandoned_capture_was_invalid", error=why)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "counter", None) is None:  # the constructor raised
            return
        # Once Python clears its modules, the names that the rest needs may be None.
        if not is_finalizing():
            self._abandon()
            tally.retire(self.counter)
            if self._has_failed:
                NativeGraph.reset(self)
                _failed.append(self)
            elif _capturing:
                _dropped.append(self)
        finalizer = getattr(super(), "__del__", None)
        if finalizer is not None:
            finalizer()


def when_no_capture(act: Callable[[], None]) -> None:
    """Call ``act`` now, or after the captures that are under way."""
    if _capturing:
        _later.append(act)
    else:
        act()


def _require_capture(graph: NativeGraph, captures: int) -> None:
    """Raise where ``graph`` no longer holds what it held when it had held ``captures``."""
    if not graph.is_kept() or graph.captures != captures:
        raise CaptureError(
            "the graph that this one was updated from was released, captured again or updated "
            "since, and its memory with it: update this graph again."
        )


def _replay_of(graph: NativeGraph, captures: int) -> Callable[[int | None, dict[str, int]], Any]:
    """What replays ``graph`` in place of another one, which it does not hold."""

    def answer(batch_size: int | None, sizes: dict[str, int]) -> Any:
        _require_capture(graph, captures)
        return graph.replay(batch_size, **sizes)

    return answer


def _count_failure(why: str) -> None:
    tally.add("capture_failures")
    if not is_inside_gfxgraph():
        tally.not_captured(BY_HAND)
    log(logging.INFO, "capture_failed", error=why)


@atexit.register
def _end_captures() -> None:
    """While all names are still there: HIP aborts if a graph is dropped during its capture."""
    for graph in list(_capturing):
        graph._abandon()
