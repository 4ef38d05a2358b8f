"""``enable()``: gives code that uses torch's graph classes ours; and ``health_check()``."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

import torch

from .. import settings
from ..call import validation
from ..compiling.rng import RngGuard, guard_rng
from ..device import current_device
from ..errors import ArgumentError, GfxGraphError
from ..forking import new_lock
from ..graph.locks import inside_gfxgraph
from ..graph.native import NativeGraph
from ..interpose.patch import Claim, override
from ..stats import configure_log, log, tally
from ..tables import Printed
from .graph import BridgedCUDAGraph

if TYPE_CHECKING:
    from ..simulate.emulation import Emulation

__all__ = [
    "HealthCheck",
    "disable",
    "enable",
    "graph_checks",
    "health_check",
    "is_emulation_needed",
    "is_enabled",
]

_lock = new_lock()
_claims: list[Claim | RngGuard] = []
_emulations: list[Emulation] = []


def enable(
    debug: bool = False,
    validate: bool = False,
    validate_every: int | None = None,
    emulate: bool = False,
) -> None:
    """Give code that uses ``torch.cuda.CUDAGraph`` our class from now on.

    ``torch.cuda.graph``, ``torch.cuda.make_graphed_callables`` and
    ``torch.compile(mode="reduce-overhead")`` work as before and are counted in
    :func:`gfxgraph.stats`. Names that were imported before (``from torch.cuda import CUDAGraph``)
    stay torch's own, so call this first. Call it again to change the options. On ROCm
    :func:`gfxgraph.guard_rng` is in force as well (tested under a simulated platform; no AMD GPU
    was used).

    Args:
        debug: log every capture, and wait for the device after every replay, so that an error
            names the replay that made it. Captures also keep their nodes and the line that made
            each, for :func:`gfxgraph.inspect`; they take longer. Default ``False``.
        validate: compare replays with eager execution where the function is known:
            :func:`gfxgraph.graphed`, :class:`gfxgraph.ShapeBucketPool`,
            :class:`gfxgraph.ConditionalGraph`, ``BridgedCUDAGraph.capture(model_fn=)``. A replay
            that differs is counted (``validation_failures``) and logged, and the call returns the
            result of eager execution; ``fallback="raise"`` raises :class:`VerificationError`. The
            graph is dropped and captured again; if the new one differs too, such calls run eagerly
            from then on. Graphs that exist already are compared as well. The function of a
            ``capture_begin()`` is not known, so nothing is compared; such a graph is refused once a
            tensor that it reads is gone, as with ``capture_begin(check_input_liveness=True)``.
            Default ``False``.
        validate_every: with ``validate``, compare the first replay of each graph and every
            ``validate_every``-th one, at least 1. Default: ``GFXGRAPH_VALIDATE_EVERY``, else 100.
        emulate: let code that says ``cuda`` run on an emulated GPU until :func:`disable`, for this
            thread and for those that start later; see docs/emulate.md. Once on, it stays on at
            further calls. Default ``False``.

    With ``SGLANG_DISABLE_GFXGRAPH=1`` in the environment it does nothing.

    Raises:
        ArgumentError: ``debug``, ``validate`` or ``emulate`` is no bool, or ``validate_every`` no
            whole number from 1.
        DeviceError: ``emulate`` on a machine with a GPU, where it is not needed.
        SettingError: a variable in the environment is malformed.
    """
    for name, value in (("debug", debug), ("validate", validate), ("emulate", emulate)):
        if not isinstance(value, bool):
            raise ArgumentError(f"enable({name}={value!r}): expected True or False.")
    environment = settings.from_environment()
    every = environment.validate_every if validate_every is None else validate_every
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ArgumentError(f"enable(validate_every={every!r}): expected a whole number from 1.")
    debug = debug and not environment.disabled
    configure_log(logging.DEBUG if debug else environment.log_level)
    if environment.disabled:
        log(logging.WARNING, "not_enabled", because="SGLANG_DISABLE_GFXGRAPH=1")
        return
    with _lock:
        if emulate and not _emulations:
            from ..simulate.emulation import Emulation  # only those who ask for it load it

            emulation = Emulation()
            emulation.begin()
            _emulations.append(emulation)
        NativeGraph.synchronize_replays = NativeGraph.keeps_nodes = debug
        NativeGraph.check_liveness = validate
        tally.check_replays()
        if not _claims:
            classes = {"CUDAGraph": BridgedCUDAGraph, "graph": _graph_context()}
            for place in (torch.cuda, torch.cuda.graphs):
                for name, ours in classes.items():
                    _claims.append(override(place, name, ours, lasts=True))
            tally.enabled_at = time.time()
            if current_device().kind == "hip":
                _claims.append(guard_rng())
        validation.compare_every(every if validate else 0)
    log(logging.INFO, "enabled", device=current_device().kind, debug=debug, validate=validate)


def is_emulation_needed() -> bool:
    """Whether this machine has no GPU; where it has one, the log says that it is used."""
    needed = current_device().type == "cpu"
    if not needed:
        log(logging.WARNING, "not_emulated", because="this machine has a GPU that torch can use")
    return needed


def disable() -> None:
    """Put torch's own names back. Does nothing when not enabled; graphs that exist live on.

    After ``enable(debug=True)`` the level of the log is that of ``HGB_LOG_LEVEL`` again.

    Raises:
        DeviceError: under ``enable(emulate=True)``, inside of a capture, or on another thread.
        SettingError: ``HGB_LOG_LEVEL`` has become malformed since ``enable(debug=True)``.
    """
    with _lock:
        debugged = NativeGraph.keeps_nodes
        for emulation in _emulations:
            emulation.check_end()
        while _claims:
            _claims.pop().undo()
        while _emulations:
            _emulations.pop().end()
        NativeGraph.synchronize_replays = NativeGraph.check_liveness = False
        NativeGraph.keeps_nodes = False
        tally.check_replays()
        NativeGraph.global_is_thread_local = False
        validation.compare_every(0)
        tally.enabled_at = None
    if debugged:
        configure_log()


def is_enabled() -> bool:
    """Whether :func:`enable` is in force."""
    return bool(_claims)


def _graph_context() -> Any:
    original: Any = torch.cuda.graph

    class graph(original):  # type: ignore[misc]
        """A ``torch.cuda.graph`` that leaves the capture stream also where the capture fails."""

        def __enter__(self) -> None:
            try:
                super().__enter__()
            except BaseException:
                if self.stream_ctx.src_prev_stream is not None:  # it was entered
                    self.stream_ctx.__exit__(None, None, None)
                raise

        def __exit__(self, *args: Any) -> None:
            if isinstance(self.cuda_graph, NativeGraph):
                self.cuda_graph.body_raised = args[0] is not None
            try:
                super().__exit__(*args)
            except BaseException:
                self.stream_ctx.__exit__(*args)
                raise

    graph.__qualname__, graph.__module__ = original.__qualname__, original.__module__
    return graph


class HealthCheck(TypedDict):
    """The result of :func:`health_check`.

    Attributes:
        ok: a graph was captured and its replay gave the right result, and of the graphs that exist
            none is known to read what it should not.
        gpu: name of the device.
        arch: its architecture, such as ``"sm_90"`` or ``"gfx1030"``; ``"emulated"`` without a GPU.
        rocm: version of ROCm that torch was built for, or ``None``.
        tier: what answers for graphs: ``"driver"``, the driver itself beside torch; ``"torch"``,
            torch alone; ``"emulated"``, the emulated device.
        native_bridge: a binding of the driver is loaded and answers a call now: cuda-bindings, or
            on ROCm libamdhip64 itself. Where it is ``False``, graphs run as well; what only the
            driver can do is missing, such as telling the nodes of a graph.
        vram_total_mb: memory of the device in MiB (of the host when emulated).
        vram_free_mb: free memory of the device in MiB.
        details: the finding, or the error. Also what is known to be wrong with graphs of this
            process: they read memory that was freed (of graphs that were captured with
            ``check_input_liveness=True``, or under ``enable(validate=True)``), or weights that are
            elsewhere by now (of the graphs of vLLM and SGLang, while the plugin is active).
    """

    ok: bool
    gpu: str
    arch: str
    rocm: str | None
    tier: Literal["driver", "torch", "emulated"]
    native_bridge: bool
    vram_total_mb: int
    vram_free_mb: int
    details: str


def health_check() -> HealthCheck:
    """Capture a small graph, replay it twice with other input, and compare with eager.

    Also ask the graphs that exist whether what they read is still there.

    Printed, it shows a line for each key.
    """
    device = current_device()
    tier = device.tier
    report = HealthCheck(
        ok=False,
        gpu="",
        arch="emulated" if tier == "emulated" else "",
        rocm=torch.version.hip,
        tier=tier,
        native_bridge=tier == "driver",
        vram_total_mb=0,
        vram_free_mb=0,
        details="",
    )
    try:
        facts = device.facts()
        report["gpu"] = facts.name
        report["arch"] = report["arch"] or facts.arch
        report["vram_total_mb"] = facts.memory_total >> 20
        report["vram_free_mb"] = facts.memory_free >> 20
        # Under emulation its tensors on the CPU stand for device tensors only inside.
        mode = inside_gfxgraph() if _emulations else contextlib.nullcontext()
        with torch.inference_mode(False), torch.no_grad(), mode:
            wrong = _try_graph()
        stale = [sentence for check in graph_checks for sentence in check()]
        report["ok"] = wrong is None and not stale
        report["details"] = "; ".join(
            [wrong or f"captured and replayed on {facts.vendor} {facts.arch}", *stale]
        )
    except (RuntimeError, GfxGraphError) as error:
        report["details"] = f"{type(error).__name__}: {error}"
    return cast(HealthCheck, Printed(report))


def _freed_inputs() -> list[str]:
    found = []
    for graph in list(NativeGraph.watched):
        freed = graph.freed_inputs()
        if freed:
            found.append(
                f"a graph reads {len(freed)} tensor(s) that were freed after its capture "
                f"({'; '.join(freed[:3])}): capture it again"
            )
    return found


#: Each gives a sentence for each graph of this process that reads what it should not.
graph_checks: list[Callable[[], list[str]]] = [_freed_inputs]


def _try_graph() -> str | None:
    device = current_device()
    static = torch.arange(256, dtype=torch.float32, device=device.type)
    stream = device.new_stream(0)
    graph = BridgedCUDAGraph()
    with device.on_stream(stream, 0):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            output = static * 2 + 1
        finally:
            graph.capture_end()
    for scale in (1.0, 3.0):
        fresh = torch.arange(256, dtype=torch.float32, device=device.type) * scale
        static.copy_(fresh)
        graph.replay()
        device.synchronize(0)
        if not torch.equal(output, fresh * 2 + 1):
            return "a replay gave a wrong result"
    return None
