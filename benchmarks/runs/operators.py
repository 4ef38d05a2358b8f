"""Which operators of PyTorch a stream capture takes, measured one sample at a time.

``PYTHONPATH=src python3 -m benchmarks.runs.operators --out operators.jsonl.gz`` on a GPU. Every
operator of torch's own test database (``op_db``) is run with the samples of that database, in
float32 and int64, under ``torch.no_grad()``:

1. eagerly, under a dispatch mode that lists the ATen operators that reach the dispatcher;
2. in a stream capture, with nothing else around it;
3. captured: the graph is replayed with other data and compared with eager. Failed: it is captured
   again under a mode that names the ATen operator that raised, and run eagerly with torch's
   synchronization check on, which tells a read of the device from other reasons.

Library handles, FFT plans and compiled kernels are made when they are first used, so the first
sample of an operator is captured also before its first eager run, and a list of families is
captured in fresh processes. Samples are split by a hash: 70 of 100 are ``measured`` and make the
table that ``gfxgraph.check`` uses (``benchmarks.runs.operator_table``), 30 are ``held out``
and say how good it is. Workers are processes of their own, because a device assert or a hang ends
a process; the parent goes on after the sample that did it.

One line of JSON a result: ``kind`` is ``meta``, ``cold``, ``sample``, ``task`` or ``end``.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import re
import shutil
import sys
import time
import types
import unittest
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.lib.processes import fresh_processes, one_line, quiet, start_context

DTYPES = {"float32": torch.float32, "int64": torch.int64}
SILENCE_S = 20.0  # without a word from a worker that has begun a sample: it hangs
START_S = 120.0
TASK_S = 8.0  # for one operator and dtype: a few have a thousand samples
MOST_CRASHES = 5  # of one operator and dtype, then the rest of its samples is left out
HELD_OUT = 30  # of 100 samples

# Their results are whatever was in the memory: only shapes are compared.
UNINITIALISED = re.compile(r"^aten\.(new_)?empty|^aten\.resize")
READS = re.compile(r"^aten\.(_local_scalar_dense|equal|item|is_nonzero)\.")


# --- one sample -----------------------------------------------------------------------------------


def describe(value: Any, device: str) -> str:
    """``value`` in a few characters: ``float32[3, 4]``, ``cpu:int64[]``, ``[2, None]``."""
    if isinstance(value, torch.Tensor):
        where = "" if value.device.type == device else f"{value.device.type}:"
        layout = "" if value.layout == torch.strided else f" {str(value.layout)[6:]}"
        strides = ""
        if not layout and not value.is_nested and not value.is_contiguous():
            strides = f" strides {list(value.stride())}"
        shape = "nested" if value.is_nested else list(value.shape)
        return f"{where}{str(value.dtype)[6:]}{shape}{strides}{layout}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(describe(v, device) for v in value[:8])
        return f"[{inside}{', ...' if len(value) > 8 else ''}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe(v, device)}" for k, v in value.items()) + "}"
    if isinstance(value, torch.dtype):
        return str(value)[6:]
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:60]


def call_text(args: Sequence[Any], kwargs: dict[str, Any], device: str) -> str:
    """The arguments of a call, as :func:`describe` writes them."""
    parts = [describe(a, device) for a in args]
    parts += [f"{k}={describe(v, device)}" for k, v in kwargs.items()]
    return ", ".join(parts)[:400]


class Trace(TorchDispatchMode):
    """Lists the ATen operators that reach the dispatcher, and notes the first one that raises.

    Args:
        device: the device type that is not named in the texts.
        broken: asked after each operator: has it broken the capture without raising?
    """

    def __init__(self, device: str, broken: Callable[[], bool] | None = None) -> None:
        super().__init__()
        self.calls: dict[str, None] = {}
        self.raised: dict[str, Any] | None = None
        self._device = device
        self._broken = broken

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        text = f"{func}({call_text(args, kwargs, self._device)})"
        if len(self.calls) < 40:
            self.calls[text[:300]] = None
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self._note(func, text, args, kwargs, one_line(error))
            raise
        if self.raised is None and self._broken is not None and self._broken():
            self._note(func, text, args, kwargs, "invalidates the capture without an error")
        return result

    def _note(self, func: Any, text: str, args: Any, kwargs: Any, error: str) -> None:
        if self.raised is None:
            tensors = [t for t in pytree.tree_leaves((args, kwargs)) if is_tensor(t)]
            on_host = [self._device != "cpu" and t.device.type == "cpu" for t in tensors]
            to_host = self._device != "cpu" and str(kwargs.get("device", "")).startswith("cpu")
            self.raised = {
                "op": str(func),
                "call": text[:400],
                "error": error,
                "host_operand": any(on_host),
                # a copy to the host, or into a tensor of the host
                "to_host": to_host or (".copy_." in str(func) and on_host[0]),
            }

    def __enter__(self) -> Trace:
        # torch.tensor(x, device="cuda") copies below the modes; with this it is a _to_copy.
        self._lift = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        torch._C._set_only_lift_cpu_tensors(self._lift)


def is_tensor(value: object) -> bool:
    """For filters."""
    return isinstance(value, torch.Tensor)


class Bench:
    """The device, seen from a worker: captures, replays, generator states.

    ``device`` is ``"cuda"``, or ``"cpu"`` for a dry run on the emulated device.
    """

    def __init__(self, device: str) -> None:
        from gfxgraph import BridgedCUDAGraph
        from gfxgraph.device import current_device
        from gfxgraph.graph.compare import difference

        self.type = device
        self.difference = difference
        self.device = current_device()
        self.generator = self.device.default_generator(0)
        self.graph_class = BridgedCUDAGraph
        if self.device.type != device:
            raise SystemExit(f"--device {device}, but the device of this machine is otherwise")
        self.stream = self.device.capture_stream(0)
        self.broken = _broken_capture() if device == "cuda" else None

    def synchronize(self) -> None:
        """Wait for the device; raises when it is beyond use."""
        self.device.synchronize(0)

    def alive(self) -> bool:
        """Whether the device still answers: a failed assertion on it ends the process's context."""
        try:
            self.synchronize()
        except Exception:
            return False
        return True

    def capture(
        self, call: Callable[[], Any], watch: AbstractContextManager[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """The graph of ``call`` and its results; raises what the capture raised."""
        graph = self.graph_class()
        gc.disable()
        try:
            # thread_local: what other processes and threads do is no business of this capture.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                with watch or nullcontext():
                    results = leaves(call())
            except BaseException:
                graph.reset()  # ends the capture
                raise
            graph.capture_end()
        finally:
            gc.enable()
        return graph, results

    def refusal(
        self, call: Callable[[], Any], watch: AbstractContextManager[Any] | None = None
    ) -> str | None:
        """Why ``call`` cannot be captured; ``None`` if it can."""
        try:
            self.capture(call, watch)[0].reset()
        except Exception as error:
            return one_line(error)
        return None

    def synchronizing_operator(self, call: Callable[[], Any]) -> str | None:
        """The ATen operator at which an eager run waits for the device, as far as torch knows."""
        if self.type != "cuda":
            return None
        trace = Trace(self.type)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with trace:
                call()
        except Exception as error:
            if "synchronizing" not in str(error):
                return None
            return trace.raised["op"] if trace.raised else "(outside of an operator)"
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return None


def _broken_capture() -> Callable[[], bool] | None:
    """Asks CUDA whether the current stream's capture is invalid; torch's own question hides it."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        return None
    invalidated = runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusInvalidated

    def broken() -> bool:
        answer = runtime.cudaStreamIsCapturing(torch.cuda.current_stream().cuda_stream)
        return bool(answer[1] == invalidated)

    return broken


def leaves(value: Any) -> list[Any]:
    """The tensors and numbers of a result."""
    return [v for v in pytree.tree_leaves(value) if isinstance(v, (torch.Tensor, bool, int, float))]


class Inputs:
    """The tensors of a sample, which can be put back and given other data."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.original = [t.clone() for t in tensors]
        self._versions = [t._version for t in tensors]

    def restore(self) -> None:
        """Undo writes of the operator."""
        for n, (tensor, original) in enumerate(zip(self.tensors, self.original, strict=True)):
            if tensor._version != self._versions[n]:
                tensor.copy_(original)
                self._versions[n] = tensor._version

    def write(self, data: list[torch.Tensor]) -> None:
        """Give the tensors other data; their addresses stay."""
        for n, (tensor, values) in enumerate(zip(self.tensors, data, strict=True)):
            tensor.copy_(values)
            self._versions[n] = tensor._version


def measure(
    bench: Bench,
    call: Callable[[], Any],
    tensors: list[torch.Tensor],
    others: list[torch.Tensor] | None,
    cold: bool,
) -> dict[str, Any]:
    """What capture does with ``call``.

    Args:
        bench: the device.
        call: the operator on its sample.
        tensors: the tensors of the sample.
        others: other data for them, or ``None``.
        cold: capture before the first eager run too.
    """
    found: dict[str, Any] = {}
    inputs = Inputs(tensors)
    if cold:
        found["cold"] = bench.refusal(call) or "captures"
        inputs.restore()
    state = bench.generator.get_state()
    trace = Trace(bench.type)
    try:
        with trace:
            eager = leaves(call())
        bench.synchronize()
    except Exception as error:
        return {**found, "outcome": "not run", "error": one_line(error), "trace": [*trace.calls]}
    found["trace"] = [*trace.calls]
    found["random"] = not torch.equal(bench.generator.get_state(), state)
    inputs.restore()
    try:
        graph, results = bench.capture(call)
    except Exception as error:
        found["error"] = one_line(error)
    else:
        found["outcome"], found["note"] = "captures", ""
        try:
            different = _replay(bench, graph, results, call, inputs, others, state, trace)
            if different:
                found["outcome"], found["note"] = "replay differs", different
        finally:
            graph.reset()
        if found.get("cold", "captures") != "captures":
            found["outcome"] = "needs warm-up"
        return found
    del eager
    inputs.restore()
    blame = Trace(bench.type, bench.broken)
    found["again"] = bench.refusal(call, blame)
    found["blame"] = blame.raised
    inputs.restore()
    found["sync"] = bench.synchronizing_operator(call)
    found["outcome"] = failure_class(found)
    return found


def failure_class(found: dict[str, Any]) -> str:
    """Why a capture failed, from what was found out about it."""
    blame = found["blame"]
    if blame is None:
        return "reads the device" if found["sync"] else "fails"
    if READS.match(blame["op"]) or blame["to_host"]:
        return "reads the device"
    if blame["host_operand"]:
        return "copies from the host"
    # An operator that copies inside, with all operands on the device, fetches something.
    if found["sync"] or "Cannot copy between CPU and CUDA" in blame["error"]:
        return "reads the device"
    return "fails"


def _replay(
    bench: Bench,
    graph: Any,
    results: list[Any],
    call: Callable[[], Any],
    inputs: Inputs,
    others: list[torch.Tensor] | None,
    state: torch.Tensor,
    trace: Trace,
) -> str | None:
    """How a replay differs from eager, on other data if there is some."""
    uninitialised = any(UNINITIALISED.match(c) for c in list(trace.calls)[-1:])

    def eager(data: list[torch.Tensor]) -> list[Any]:
        inputs.write(data)
        bench.generator.set_state(state)
        return _copies(leaves(call()))

    data = inputs.original
    try:
        expected = eager(data)
        if others is not None:
            expected, data = eager(others), others
    except Exception:  # the other data is not valid, or the sample cannot be written
        if data is others:
            return None
        data = inputs.original
        try:
            expected = eager(data)
        except Exception as error:
            return None if "single memory location" in str(error) else f"second run: {error}"[:200]
    inputs.write(data)
    bench.generator.set_state(state)
    graph.replay()
    got = _copies(results)
    different = _difference(bench, got, expected, shapes=uninitialised)
    if different and not _difference(bench, eager(data), expected, shapes=False):
        return different
    return None  # equal, or eager differs from itself


def _copies(values: list[Any]) -> list[Any]:
    return [v.clone() if isinstance(v, torch.Tensor) else v for v in values]


def _difference(bench: Bench, got: list[Any], expected: list[Any], shapes: bool) -> str | None:
    if len(got) != len(expected):
        return f"{len(got)} results, expected {len(expected)}"
    for a, b in zip(got, expected, strict=True):
        if not isinstance(b, torch.Tensor):
            found = None if a == b or b != b else f"{a}, expected {b}"
        elif shapes:
            found = None if a.shape == b.shape else f"shape {a.shape}, expected {b.shape}"
        else:
            if b.layout != torch.strided:
                a, b = a.to_dense(), b.to_dense()
            found = bench.difference(a, b, True)
        if found:
            return found
    return None


# --- the samples of an operator -------------------------------------------------------------------


def operators() -> list[Any]:
    """torch's database of operators with sample inputs."""
    if importlib.util.find_spec("expecttest") is None:
        # torch's test utilities derive a class from it, of which nothing is used here.
        stub: Any = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def samples(op: Any, dtype: torch.dtype, device: str, seed: int) -> list[Any]:
    """All samples of ``op``; another ``seed`` gives the same samples with other data."""
    torch.manual_seed(seed)
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(seed)
    return list(op.sample_inputs_func(op, device, dtype, False))


def sample_text(sample: Any, device: str) -> str:
    """What identifies a sample, but for its data."""
    return call_text((sample.input, *sample.args), sample.kwargs, device)


def sample_tensors(sample: Any) -> list[torch.Tensor]:
    """The tensors of a sample, in order."""
    return [
        t for t in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if is_tensor(t)
    ]


def order(name: str, dtype: str, count: int, most: int) -> list[int]:
    """Which of ``count`` samples are taken, and in what order: the first, then by their hash."""
    first, rest = range(count)[:1], range(count)[1:]
    return [*first, *sorted(rest, key=lambda n: _hash(name, dtype, n))][:most]


def split(name: str, dtype: str, index: int) -> str:
    """Whether a sample makes the table or tests it."""
    return "held out" if _hash(name, dtype, index) % 100 < HELD_OUT else "measured"


def _hash(*key: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:6], "big")


@dataclass
class Task:
    """The samples of one operator in one dtype.

    Attributes:
        op: position in the database.
        name: of the operator and its variant.
        dtype: name of the dtype.
        start: how many samples are done.
        cold: whether the first sample is captured before it is run.
        crashes: how many of its samples ended a worker.
    """

    op: int
    name: str
    dtype: str
    start: int = 0
    cold: bool = True
    crashes: int = 0


def run_task(
    bench: Bench, op: Any, task: Task, most: int, say: Callable[..., None]
) -> Iterator[dict[str, Any]]:
    """Measure the samples of ``task``; ``say("begin", n)`` before each."""
    began = time.monotonic()
    with torch.no_grad():
        taken = samples(op, DTYPES[task.dtype], bench.type, seed=0)
        others = samples(op, DTYPES[task.dtype], bench.type, seed=1)
        bench.synchronize()
        chosen = order(task.name, task.dtype, len(taken), most)
        for position in range(task.start, len(chosen)):
            if time.monotonic() - began > TASK_S:
                yield {"kind": "task", "op": task.name, "dtype": task.dtype, "left": position}
                return
            index = chosen[position]
            sample = taken[index]
            text = sample_text(sample, bench.type)
            # Said before it is run: what ends the process is then known.
            say("begin", position, index, text)
            same = index < len(others) and sample_text(others[index], bench.type) == text
            start = time.perf_counter()
            cold = task.cold and position == 0
            try:
                found = measure(
                    bench,
                    lambda sample=sample: op(sample.input, *sample.args, **sample.kwargs),
                    sample_tensors(sample),
                    sample_tensors(others[index]) if same else None,
                    cold,
                )
            except Exception as error:  # such as a sample that cannot be put back
                found = {"outcome": "not measured", "error": one_line(error)}
            if cold and found["outcome"] == "not run" and found["error"] != found["cold"]:
                # The failed capture may have broken a library that it was the first to use.
                say("retry", position)
            yield {
                **_identity(task, index, text),
                "host": [
                    n for n, t in enumerate(sample_tensors(sample)) if t.device.type != bench.type
                ],
                **found,
                "ms": round((time.perf_counter() - start) * 1000, 1),
            }


def _identity(task: Task, index: int, text: str) -> dict[str, Any]:
    return {
        "kind": "sample",
        "op": task.name,
        "dtype": task.dtype,
        "index": index,
        "split": split(task.name, task.dtype, index),
        "sample": text,
    }


# --- workers --------------------------------------------------------------------------------------


def worker(connection: Connection, device: str, most: int) -> None:
    """Measure the tasks that come through ``connection`` until ``None`` comes."""
    quiet()

    def say(*message: Any) -> None:
        connection.send(message)
        if message[0] == "retry":
            os._exit(4)

    database = operators()
    bench = Bench(device)
    with bench.device.set_stream(bench.stream):
        bench.synchronize()
        say("ready")
        while (task := connection.recv()) is not None:
            try:
                for result in run_task(bench, database[task.op], task, most, say):
                    if not bench.alive():
                        # A failed assertion on the device: this process can do nothing more.
                        say("result", {**result, "outcome": "crash"})
                        os._exit(3)
                    say("result", result)
            except Exception as error:
                broken = {"outcome": "not run", "error": one_line(error)}
                say("result", {**_identity(task, -1, ""), **broken})
                if not bench.alive():
                    os._exit(3)
            if device == "cuda":
                torch.cuda.empty_cache()
            say("end")
    os._exit(0)  # without the destructors of failed graphs


@dataclass
class Slot:
    """A worker, seen from the parent."""

    process: Any
    connection: Connection
    task: Task | None = None
    begun: tuple[int, int, str] | None = None
    ready: bool = False
    heard: float = 0.0


class Workers:
    """Runs tasks in workers, and goes on after the sample that ends one."""

    def __init__(self, context: Any, count: int, device: str, most: int) -> None:
        self._context = context
        self._count = count
        self._arguments = (device, most)
        self._slots: list[Slot] = []
        self._lost_starts = 0

    def run(self, tasks: Iterable[Task], deadline: float) -> Iterator[dict[str, Any]]:
        """The results as they come; tasks that are not done at the ``deadline`` are named."""
        pending = deque(tasks)
        while pending or any(s.task for s in self._slots):
            if time.monotonic() > deadline or self._lost_starts > 2 * self._count:
                break
            while len(self._slots) < min(self._count, len(pending)):
                self._slots.append(self._start())
            for slot in list(self._slots):
                if slot.ready and slot.task is None and pending:
                    slot.task, slot.begun = pending.popleft(), None
                    slot.heard = time.monotonic()
                    slot.connection.send(slot.task)
            for connection in wait([s.connection for s in self._slots], timeout=0.5):
                slot = next(s for s in self._slots if s.connection is connection)
                try:
                    message = slot.connection.recv()
                except (EOFError, OSError):
                    yield from self._lost(slot, "crash", pending)
                    continue
                yield from self._heard(slot, message)
            for slot in list(self._slots):
                limit = SILENCE_S if slot.ready else START_S
                if (slot.task or not slot.ready) and time.monotonic() - slot.heard > limit:
                    yield from self._lost(slot, "hang", pending)
        for task in [*pending, *(s.task for s in self._slots if s.task)]:
            yield {"kind": "task", "op": task.name, "dtype": task.dtype, "left": task.start}
        for slot in self._slots:
            slot.process.kill()
        for slot in self._slots:
            slot.process.join(5)

    def _start(self) -> Slot:
        ours, theirs = multiprocessing.Pipe()
        process = self._context.Process(target=worker, args=(theirs, *self._arguments), daemon=True)
        process.start()
        theirs.close()
        return Slot(process, ours, heard=time.monotonic())

    def _heard(self, slot: Slot, message: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
        slot.heard = time.monotonic()
        match message:
            case ("ready",):
                slot.ready = True
            case ("begin", position, index, text):
                slot.begun = (position, index, text)
            case ("retry", position):
                assert slot.task is not None
                slot.task.start, slot.task.cold, slot.begun = position, False, None
            case ("result", result):
                if slot.begun is not None and slot.task is not None:
                    slot.task.start = slot.begun[0] + 1
                slot.begun = None
                yield result
            case ("end",):
                slot.task = None

    def _lost(self, slot: Slot, how: str, pending: deque[Task]) -> Iterator[dict[str, Any]]:
        """A worker is dead or has to die; its task goes back for the samples that are left."""
        slot.process.kill()
        slot.process.join(5)
        slot.connection.close()
        self._slots.remove(slot)
        task = slot.task
        if task is None:
            if not slot.ready:
                self._lost_starts += 1
                yield {"kind": "task", "op": "(start of a worker)", "outcome": how}
            return
        task.crashes += 1
        if slot.begun is not None:
            task.start, index, text = slot.begun
            task.start += 1
            yield {**_identity(task, index, text), "outcome": how}
        if task.crashes < MOST_CRASHES:
            pending.append(task)
        else:
            yield {"kind": "task", "op": task.name, "dtype": task.dtype, "left": task.start}


# --- families in fresh processes ------------------------------------------------------------------


def families(device: str) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Calls that may make something lazily: a library handle, a plan, a compiled kernel."""
    import torch.nn.functional as F

    def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    half, bf16 = torch.float16, torch.bfloat16

    def unary(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32):
        def make() -> Callable[[], Any]:
            tensors = [r(*s, dtype=dtype) for s in shapes]
            return lambda: fn(*tensors)

        return make

    def module(build: Callable[[], torch.nn.Module], *shape: int):
        def make() -> Callable[[], Any]:
            m, x = build().to(device).eval(), r(*shape)
            return lambda: m(x)

        return make

    def autocast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.autocast(a.device.type, dtype=bf16):
            return a @ b

    def spd(x: torch.Tensor) -> torch.Tensor:
        return x @ x.mT + 8 * torch.eye(8, device=x.device)

    def prepared(fn: Callable[..., Any], *parts: Callable[[], torch.Tensor]):
        def make() -> Callable[[], Any]:
            tensors = [p() for p in parts]
            return lambda: fn(*tensors)

        return make

    sdpa = F.scaled_dot_product_attention
    qkv = ((2, 4, 16, 32),) * 3
    m8 = (8, 8)
    return {
        "fft.fft": unary(torch.fft.fft, (4, 64)),
        "fft.rfft2": unary(torch.fft.rfft2, (4, 32, 32)),
        "fft.irfft": unary(lambda x: torch.fft.irfft(torch.complex(x, x)), (4, 33)),
        "stft": unary(lambda x: torch.stft(x, 32, return_complex=True), (2, 256)),
        "conv1d": unary(F.conv1d, (2, 4, 32), (8, 4, 3)),
        "conv2d": unary(F.conv2d, (2, 4, 16, 16), (8, 4, 3, 3)),
        "conv2d half": unary(F.conv2d, (2, 8, 16, 16), (8, 8, 3, 3), dtype=half),
        "conv2d depthwise": unary(
            lambda x, w: F.conv2d(x, w, groups=4), (2, 4, 16, 16), (4, 1, 3, 3)
        ),
        "conv3d": unary(F.conv3d, (2, 4, 8, 8, 8), (8, 4, 3, 3, 3)),
        "conv_transpose2d": unary(F.conv_transpose2d, (2, 4, 16, 16), (4, 8, 3, 3)),
        "mm": unary(torch.mm, (16, 32), (32, 16)),
        "mm half": unary(torch.mm, (16, 32), (32, 16), dtype=half),
        "addmm": unary(torch.addmm, (16,), (8, 32), (32, 16)),
        "linear": unary(F.linear, (8, 32), (16, 32), (16,)),
        "linear gelu bf16": unary(
            lambda x, w, b: F.gelu(F.linear(x, w, b)), (8, 32), (16, 32), (16,), dtype=bf16
        ),
        "bmm": unary(torch.bmm, (4, 8, 16), (4, 16, 8)),
        "baddbmm": unary(torch.baddbmm, (4, 8, 8), (4, 8, 16), (4, 16, 8)),
        "mv": unary(torch.mv, (16, 32), (32,)),
        "dot": unary(torch.dot, (32,), (32,)),
        "einsum": unary(lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 8, 8), (2, 8, 8)),
        "autocast matmul": unary(autocast, (16, 32), (32, 16)),
        "_int_mm": unary(
            lambda a, b: torch._int_mm(a.to(torch.int8), b.to(torch.int8)), (32, 32), (32, 32)
        ),
        "lstm": module(lambda: _first(torch.nn.LSTM(8, 16, batch_first=True)), 2, 5, 8),
        "gru": module(lambda: _first(torch.nn.GRU(8, 16, batch_first=True)), 2, 5, 8),
        "rnn": module(lambda: _first(torch.nn.RNN(8, 16, batch_first=True)), 2, 5, 8),
        "sdpa float32": unary(sdpa, *qkv),
        "sdpa half": unary(sdpa, *qkv, dtype=half),
        "sdpa bf16 causal": unary(lambda q, k, v: sdpa(q, k, v, is_causal=True), *qkv, dtype=bf16),
        "sdpa mask": unary(lambda q, k, v, m: sdpa(q, k, v, m), *qkv, (16, 16)),
        "multi_head_attention": module(lambda: _attention(), 2, 6, 32),
        "cholesky_ex": prepared(torch.linalg.cholesky_ex, lambda: spd(r(*m8))),
        "inv_ex": prepared(torch.linalg.inv_ex, lambda: spd(r(*m8))),
        "solve_ex": prepared(torch.linalg.solve_ex, lambda: spd(r(*m8)), lambda: r(8, 2)),
        "solve_triangular": prepared(
            lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
            lambda: spd(r(*m8)).triu(),
            lambda: r(8, 2),
        ),
        "qr": unary(torch.linalg.qr, m8),
        "lu_factor_ex": unary(torch.linalg.lu_factor_ex, m8),
        "det": unary(torch.linalg.det, m8),
        "cholesky_solve": prepared(
            torch.cholesky_solve, lambda: r(8, 2), lambda: spd(r(*m8)).tril()
        ),
        "batch_norm": module(lambda: torch.nn.BatchNorm2d(4), 2, 4, 8, 8),
        "batch_norm training": prepared(
            lambda x: F.batch_norm(x, None, None, training=True), lambda: r(2, 4, 8, 8)
        ),
        "layer_norm": unary(lambda x: F.layer_norm(x, (32,)), (4, 32)),
        "group_norm": unary(lambda x: F.group_norm(x, 2), (2, 4, 8, 8)),
        "sort": unary(torch.sort, (4, 5000)),
        "cumsum": unary(lambda x: x.cumsum(0), (5000,)),
        "topk": unary(lambda x: x.topk(5), (4, 5000)),
        "multinomial": unary(lambda x: torch.multinomial(x.abs(), 3), (4, 32)),
        "grid_sample": unary(
            lambda x, g: F.grid_sample(x, g, align_corners=False), (2, 3, 8, 8), (2, 4, 4, 2)
        ),
        "interpolate": unary(lambda x: F.interpolate(x, scale_factor=2.0), (2, 3, 8, 8)),
        "special.airy_ai": unary(torch.special.airy_ai, (8,)),
        "special.bessel_j0": unary(torch.special.bessel_j0, (8,)),
        "gcd": unary(lambda x: torch.gcd(x.long(), x.long()), (8,)),
        "lgamma": unary(torch.lgamma, (8,)),
        "complex multiplication": unary(lambda x: torch.complex(x, x) * torch.complex(x, x), (8,)),
        "cdist": unary(torch.cdist, (40, 8), (40, 8)),
        "embedding_bag": prepared(
            lambda i, w: F.embedding_bag(i, w),
            lambda: torch.randint(10, (4, 3), device=device),
            lambda: r(10, 8),
        ),
        "sparse mm": prepared(
            torch.sparse.mm, lambda: torch.eye(8, device=device).to_sparse(), lambda: r(*m8)
        ),
        "ctc_loss": prepared(
            lambda x: F.ctc_loss(
                x.log_softmax(2), torch.tensor([[1, 2], [1, 3]]), (10, 10), (2, 2)
            ),
            lambda: r(10, 2, 8),
        ),
    }


def _first(recurrent: torch.nn.Module) -> torch.nn.Module:
    recurrent.flatten_parameters()  # type: ignore[operator]
    return recurrent


def _attention() -> torch.nn.Module:
    return torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)


def cold_case(connection: Connection, name: str, device: str) -> None:
    """Capture a family in this process, which has used no library before, and then once more."""
    quiet()
    found: dict[str, Any] = {"kind": "cold", "family": name}
    try:
        bench = Bench(device)
        with torch.no_grad(), bench.device.set_stream(bench.stream):
            call = families(device)[name]()
            bench.synchronize()
            blame = Trace(device, bench.broken)
            found["cold"] = bench.refusal(call, blame) or "captures"
            found["blame"] = blame.raised
            call()
            bench.synchronize()
            found["warm"] = bench.refusal(call) or "captures"
    except Exception as error:
        found["error"] = one_line(error)
    connection.send(found)
    os._exit(0)


# --- the parent -----------------------------------------------------------------------------------


def about(device: str) -> dict[str, Any]:
    """What it was measured on; asked in a child, because asking starts the driver."""
    name = torch.cuda.get_device_name() if device == "cuda" else "emulated device"
    return {
        "kind": "meta",
        "device": name,
        "torch": torch.__version__,
        "runtime": torch.version.cuda or torch.version.hip,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def inventory(connection: Connection, device: str, only: str) -> None:
    """Send what there is to measure, and on what; or why nothing can be measured."""
    try:
        bench = Bench(device)
        with bench.device.set_stream(bench.stream):
            bench.capture(lambda: torch.zeros(4, device=device))[0].replay()
            bench.synchronize()
    except Exception as error:
        connection.send(one_line(error))
        os._exit(1)
    tasks = []
    for number, op in enumerate(operators()):
        for name, dtype in DTYPES.items():
            if dtype in op.supported_dtypes(device) and re.search(only, op.full_name):
                tasks.append(Task(number, op.full_name, name))
    connection.send((about(device), tasks))
    os._exit(0)


@contextmanager
def sink(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Writes each result as a line at once, and compresses the file at the end."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    path.parent.mkdir(parents=True, exist_ok=True)
    with plain.open("w", encoding="utf-8") as file:

        def write(result: dict[str, Any]) -> None:
            file.write(json.dumps(result, separators=(",", ":")) + "\n")
            file.flush()

        yield write
    if plain != path:
        with plain.open("rb") as source, gzip.open(path, "wb") as target:
            shutil.copyfileobj(source, target)
        plain.unlink()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("operators.jsonl.gz"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--most", type=int, default=40, help="samples of an operator and dtype")
    parser.add_argument("--seconds", type=float, default=215, help="for everything")
    parser.add_argument("--only", default="", help="regular expression for operators")
    parser.add_argument("--start-method", choices=("forkserver", "spawn"), default="forkserver")
    options = parser.parse_args()

    start = time.monotonic()
    context = start_context(options.start_method)
    ((_, answer),) = fresh_processes(
        context, inventory, [(options.device, options.only)], 1, START_S
    )
    if isinstance(answer, str):
        print(f"nothing can be measured here: {answer}", file=sys.stderr)
        return 1
    meta, tasks = answer
    # The heaviest first would need to be known; spread them, so that no worker has all of a family.
    tasks.sort(key=lambda t: (t.dtype != "float32", _hash(t.name)))
    counts: Counter[str] = Counter()
    with sink(options.out) as write:
        write({**meta, "operators": len({t.name for t in tasks}), "tasks": len(tasks)})
        print(f"{meta['device']}, torch {meta['torch']}: {len(tasks)} operators and dtypes")
        if not options.only:
            names = [(name, options.device) for name in families("meta")]
            for item, answer in fresh_processes(context, cold_case, names, options.workers, 25):
                lost = {"kind": "cold", "family": item[0], "error": answer}
                write(lost if isinstance(answer, str) else answer)
                if time.monotonic() - start > options.seconds / 3:
                    break  # the samples matter more
            print(f"{time.monotonic() - start:.0f} s: {len(names)} families in fresh processes")
        workers = Workers(context, options.workers, options.device, options.most)
        for result in workers.run(tasks, start + options.seconds):
            write(result)
            kind = result["kind"]
            counts[result.get("outcome", "cut short") if kind == "sample" else "cut short"] += 1
            if sum(counts.values()) % 1000 == 0:
                print(f"{time.monotonic() - start:.0f} s: {sum(counts.values())} samples")
        seconds = round(time.monotonic() - start, 1)
        write({"kind": "end", "seconds": seconds, "counts": dict(counts)})
    print(f"{seconds} s: " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
