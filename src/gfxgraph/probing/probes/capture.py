"""Captures of streams: what a driver lets a program do in them."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ...errors import DeviceError
from .cuda import Cuda
from .driver import _ints
from .here import Here, probe


@probe
def fork_join(here: Here) -> None:
    """Work that is forked to another stream, and joined, is in the graph."""
    with here.a_gpu():
        x = torch.zeros(4, device="cuda")
        made, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.graph(made):
            main = torch.cuda.current_stream()
            y = x + 1
            side.wait_stream(main)
            with torch.cuda.stream(side):
                z = y * 10
            w = y * 2
            main.wait_stream(side)
            out = z + w
        x.fill_(2)
        made.replay()
        here.equal("a replay gives", out, [36.0] * 4)


def _allowed(cuda: Cuda, mode: str) -> list[bool]:
    """Whether this thread, and another one, may allocate while a capture is under way."""

    def allocate(answers: list[bool]) -> None:
        try:
            cuda("cuCtxSetCurrent", cuda.context)
            cuda("cuMemFree", cuda("cuMemAlloc", 1 << 20))
            answers.append(True)
        except DeviceError:
            answers.append(False)

    found: list[bool] = []
    for other in (False, True):
        stream = cuda.stream()
        cuda.begin(stream, mode)
        if other:
            thread = threading.Thread(target=allocate, args=(found,))
            thread.start()
            thread.join()
        else:
            allocate(found)
        try:
            cuda.end(stream)
        except DeviceError:
            assert not found[-1]  # what was refused has ended the capture
    return found


_WHO = "this thread and another one may allocate:"


@probe
def mode_global(here: Here) -> None:
    """No thread may make an unsafe call."""
    here.equal(_WHO, _allowed(here.cuda, "GLOBAL"), [False, False])


@probe
def mode_thread_local(here: Here) -> None:
    """The capturing thread may not make an unsafe call, others may."""
    here.equal(_WHO, _allowed(here.cuda, "THREAD_LOCAL"), [False, True])


@probe
def mode_relaxed(here: Here) -> None:
    """All threads may make such calls."""
    here.equal(_WHO, _allowed(here.cuda, "RELAXED"), [True, True])


@probe
def exchange_mode(here: Here) -> None:
    """A thread makes an unsafe call on purpose, and goes back."""
    cuda, stream = here.cuda, here.cuda.stream()
    cuda.begin(stream, "GLOBAL")
    cuda("cuThreadExchangeStreamCaptureMode", cuda.mode("RELAXED"))
    memory = cuda("cuMemAlloc", 1 << 20)
    before = cuda("cuThreadExchangeStreamCaptureMode", cuda.mode("GLOBAL"))
    cuda.end(stream)
    cuda("cuMemFree", memory)
    here.equal("the mode that comes back:", int(before), int(cuda.mode("RELAXED")))


@probe
def capture_to_graph(here: Here) -> None:
    """A capture goes on in a graph that exists."""
    cuda, p, stream = here.cuda, _ints(0), here.cuda.stream()
    made = cuda.graph()
    node = cuda.kernel(made, [], "add", p, 1)
    mode = cuda.mode("RELAXED")
    cuda("cuStreamBeginCaptureToGraph", stream, made, [node], None, 1, mode)
    cuda.launch_kernel(stream, "scale", p, 10)
    same = cuda.end(stream)
    here.equal("it ends in the same graph:", int(same) == int(made), True)
    cuda.run(cuda.executable(made))
    here.equal("node, then captured kernel, gives", p, [10])


def _info(cuda: Cuda, stream: Any) -> tuple[Any, list[Any]]:
    """The graph of a capture, and what its next node would wait for."""
    _, _, made, nodes, *_, count = cuda("cuStreamGetCaptureInfo", stream)
    return made, list(nodes or ())[: int(count)]


@probe
def capture_info(here: Here) -> None:
    """A program asks for the graph of a capture, and for what comes last in it."""
    cuda, p, stream = here.cuda, _ints(0), here.cuda.stream()
    status = int(cuda("cuStreamIsCapturing", stream))
    cuda.begin(stream)
    cuda.launch_kernel(stream, "add", p, 1)
    here.equal("status before and in it:", [status, int(cuda("cuStreamIsCapturing", stream))],
               [0, 1])  # fmt: skip
    made, last = _info(cuda, stream)
    here.equal("what comes last:", [int(cuda("cuGraphNodeGetType", one)) for one in last], [0])
    same = cuda.end(stream)
    here.equal("its graph is the one that comes out:", int(made) == int(same), True)


@probe
def update_dependencies(here: Here) -> None:
    """A node that is added by hand is part of a capture."""
    cuda, p, stream = here.cuda, _ints(0), here.cuda.stream()
    cuda.begin(stream)
    cuda.launch_kernel(stream, "add", p, 1)
    made, last = _info(cuda, stream)
    node = cuda.kernel(made, last, "scale", p, 10)
    cuda("cuStreamUpdateCaptureDependencies", stream, [node], None, 1, 1)  # 1: instead of those
    cuda.launch_kernel(stream, "add", p, 1)
    cuda.run(cuda.executable(cuda.end(stream)))
    here.equal("captured, by hand, captured gives", p, [11])


@probe
def nested_capture(here: Here) -> None:
    """A capture begins while another one is under way, and they stay apart."""
    cuda, p, q = here.cuda, _ints(0), _ints(0)
    outer, inner = cuda.stream(), cuda.stream()
    cuda.begin(outer)
    cuda.launch_kernel(outer, "add", p, 1)
    cuda.begin(inner)
    cuda.launch_kernel(inner, "add", q, 5)
    within = cuda.end(inner)
    cuda.launch_kernel(outer, "add", p, 1)
    around = cuda.end(outer)
    cuda.run(cuda.executable(around))
    here.equal("the outer graph alone gives", [p, q], [[2], [0]])
    cuda.run(cuda.executable(within))
    here.equal("then the inner one gives", [p, q], [[2], [5]])


@probe
def external_events(here: Here) -> None:
    """Work outside of a graph waits for a point in the middle of it."""
    cuda, p, out = here.cuda, _ints(0), _ints(0)
    stream, other = cuda.stream(), cuda.stream()
    event = cuda("cuEventCreate", 0)
    cuda.begin(stream)
    cuda.launch_kernel(stream, "slow_set", p, 5)
    cuda("cuEventRecordWithFlags", event, stream, 1)  # external
    cuda.launch_kernel(stream, "slow_set", p, 6)
    executable = cuda.executable(cuda.end(stream))
    cuda("cuGraphLaunch", executable, stream)
    cuda("cuStreamWaitEvent", other, event, 0)
    cuda("cuMemcpyDtoDAsync", out.data_ptr(), p.data_ptr(), 4, other)
    torch.cuda.synchronize()
    here.equal("between two slow kernels the other stream reads", out, [5])
    here.equal("and at the end there is", p, [6])


@probe
def recovery_of_captures(here: Here) -> None:
    """What a capture cannot hold is refused, and a new capture works."""
    with here.a_gpu():
        x = torch.ones(4, device="cuda")

        def forbidden() -> None:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                (x * 2).sum().item()

        here.refused("a read on the host in a capture is", forbidden)
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            y = x * 3
        made.replay()
        here.equal("a new capture replays", y, [3.0] * 4)
