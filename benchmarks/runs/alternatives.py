"""What a user would pick instead of a graph of gfxgraph, on six models, in one run.

``PYTHONPATH=src python3 -m benchmarks.runs.alternatives [--out FILE] [--commit C] [--models M ...]
[--ways W ...] [--seconds S] [--limit S] [--timing S] [--published FOLDER] [--tiny]``. Each way of
calling a model has a process of its own, which makes the model with the same weights. They are made
ready one after the other, so that each has the machine for itself; one that takes longer than
``--limit`` is ended. Then they make calls in turn. The file is written after each of them, and what
it already holds of other models stays if device, torch and commit are the same. Compiled code is
kept in an empty folder for each way; only max-autotune and its variant without graphs share one.
Without a GPU graphs are emulated, what needs CUDA says so, and times mean nothing. ``--tiny``
leaves out what compiles, unless it is named.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import itertools
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lib import by_hand
from benchmarks.lib.models import SIX
from benchmarks.lib.processes import quiet, start_context
from benchmarks.lib.report import about, arguments, earlier, failure, shortened, write
from benchmarks.lib.timing import timed

Call = Callable[..., Any]
Given = tuple[Tensor, ...]

ON_GPU = torch.cuda.is_available()
synchronize: Callable[[], object] = torch.cuda.synchronize if ON_GPU else lambda: None
FIRST_CALLS = 3
STARTS_WITHIN = 120.0
_SECONDS_OF_A_BATCH, _MOST_CALLS = 0.02, 50


# The ways. Each imports what it needs itself: one must not find this project's gfxgraph loaded.


def eager(model: nn.Module, args: Given) -> Call:
    """The model as it is."""
    return model


def graphed(model: nn.Module, args: Given) -> Call:
    """gfxgraph.graphed(model)."""
    import gfxgraph

    return gfxgraph.graphed(model)


def graphed_compiled(model: nn.Module, args: Given) -> Call:
    """gfxgraph.graphed(model, compile=True)."""
    import gfxgraph

    return gfxgraph.graphed(model, compile=True)


def hand_made(model: nn.Module, args: Given) -> Call:
    """torch.cuda.graph: copy to static inputs, replay, clone the result."""
    graph, static, out = by_hand.captured(model, args)

    def call(*args: Tensor) -> Tensor:
        for kept, given in zip(static, args, strict=True):
            kept.copy_(given)
        graph.replay()
        return out.clone()

    return call


def graphed_callables(model: nn.Module, args: Given) -> Call:
    """torch.cuda.make_graphed_callables; the next call overwrites its result."""
    made: Call = torch.cuda.make_graphed_callables(lambda *args: model(*args), args)
    return made


def compiled(mode: str) -> Callable[[nn.Module, Given], Call]:
    """torch.compile in a mode; with graphs, the next call overwrites its result."""

    def make(model: nn.Module, args: Given) -> Call:
        made = torch.compile(model, mode=mode, dynamic=False)
        if mode not in ("reduce-overhead", "max-autotune"):
            return made

        def step(*args: Tensor) -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return made(*args)

        return step

    return make


def aot_inductor(model: nn.Module, args: Given) -> Call:
    """torch.export, and the package that AOTInductor makes of it."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.pt2")
        made: Call = aoti_load_package(
            aoti_compile_and_package(torch.export.export(model, args), package_path=path)
        )
    return made


def tensorrt(model: nn.Module, args: Given) -> Call:
    """torch_tensorrt.compile."""
    import torch_tensorrt  # type: ignore[import-not-found]

    dtypes = {next(model.parameters()).dtype, torch.float32}
    return torch_tensorrt.compile(model, ir="dynamo", inputs=args, enabled_precisions=dtypes)


def onnx_runtime(model: nn.Module, args: Given) -> Call:
    """torch.onnx.export, and onnxruntime with memory of torch's."""
    import onnxruntime  # type: ignore[import-not-found]

    where = args[0].device.type
    out = torch.empty_like(model(*args), memory_format=torch.contiguous_format)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, args, path, dynamo=True)
        provider = "CUDAExecutionProvider" if where == "cuda" else "CPUExecutionProvider"
        session = onnxruntime.InferenceSession(path, providers=[provider])
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"this onnxruntime has no {provider}")
    kinds = {torch.float32: "float32", torch.float16: "float16", torch.int64: "int64"}

    def call(*args: Tensor) -> Tensor:
        import numpy as np

        binding = session.io_binding()
        for node, given in zip(session.get_inputs(), args, strict=True):
            given = given.contiguous()
            kind = np.dtype(kinds[given.dtype])
            shape, place = tuple(given.shape), given.data_ptr()
            binding.bind_input(node.name, where, 0, kind, shape, place)
        (node,) = session.get_outputs()
        kind, place = np.dtype(kinds[out.dtype]), out.data_ptr()
        binding.bind_output(node.name, where, 0, kind, tuple(out.shape), place)
        synchronize()  # it runs on a stream of its own
        session.run_with_iobinding(binding)
        return out.clone()

    return call


def published(model: nn.Module, args: Given) -> Call:
    """The pool of one bucket of the package gfxgraph of others, which takes a single tensor."""
    import hipgraph_bridge

    if not hasattr(hipgraph_bridge, "_C"):  # it is this project's own
        raise ModuleNotFoundError("the published package is not here; see --published")
    if len(args) != 1:
        raise TypeError(f"its pool takes one tensor, and the model {len(args)}")
    pool = hipgraph_bridge.ShapeBucketPool(model, [len(args[0])])
    pool(*args)
    if not pool.captured_buckets:
        raise RuntimeError("its pool captured no graph")
    return pool


MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
WAYS: dict[str, Callable[[nn.Module, Given], Call]] = {
    "eager": eager,
    "gfxgraph": graphed,
    "torch.cuda.graph": hand_made,
    "make_graphed_callables": graphed_callables,
    "published gfxGRAPH": published,
    "gfxgraph, compile=True": graphed_compiled,
    "torch.compile": compiled("default"),
    **{f"torch.compile, {mode}": compiled(mode) for mode in MODES[1:]},
    "AOTInductor": aot_inductor,
    "torch-tensorrt": tensorrt,
    "onnxruntime": onnx_runtime,
}
"""In the order in which they are made ready; what takes long comes late."""
NEEDS_CUDA = {
    "torch.cuda.graph",
    "make_graphed_callables",
    "published gfxGRAPH",
    *(f"torch.compile, {mode}" for mode in MODES[1:]),
}
_INDUCTOR = "torch._inductor.compile_fx"
NEEDS: dict[str, tuple[str, ...]] = {
    way: (_INDUCTOR,) for way in WAYS if "compile" in way or way == "AOTInductor"
}
NEEDS |= {
    "torch-tensorrt": ("torch_tensorrt",),
    "onnxruntime": ("onnxruntime",),
    "published gfxGRAPH": ("hipgraph_bridge",),
    "gfxgraph": ("gfxgraph.call.graphed",),
    "gfxgraph, compile=True": (_INDUCTOR, "gfxgraph.call.graphed"),
}
"""What is imported beforehand."""


# What the process of a way does.


@torch.no_grad()
def work(
    connection: Connection, crash: Path, model: str, way: str, tiny: bool, folder: str, path: str
) -> None:
    """Make a model, then do what is asked: make it ready, and batches of calls.

    ``crash`` is where Python writes what it did when a signal ended it.
    """
    quiet()
    faulthandler.enable(open(crash, "w", encoding="utf-8"))  # noqa: SIM115
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    if way == "published gfxGRAPH" and path:
        sys.path.insert(0, path)
    if not ON_GPU:
        torch.set_num_threads(1)
    try:
        for name in ("torch._dynamo", *NEEDS.get(way, ())):
            importlib.import_module(name)  # it is no part of a first call
        torch.manual_seed(0)
        module, inputs = SIX[model](tiny)
        given = [inputs() for _ in range(FIRST_CALLS)]
        expected = [module(*args).clone() for args in given]
        connection.send({})
        connection.recv()
        call, found = ready(WAYS[way], module, given, expected)
        connection.send(found)
    except Exception as error:  # the table says what became of each
        connection.send(failure(error))
        return
    while batch := connection.recv():
        connection.send(times(lambda: call(*given[0]), batch))


def ready(
    make: Callable[[nn.Module, Given], Call],
    module: nn.Module,
    given: list[Given],
    expected: list[Tensor],
) -> tuple[Call, dict[str, Any]]:
    """The call, and what its first ones took and gave."""
    before = free()
    reserved = torch.cuda.memory_reserved() if ON_GPU else 0
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()

    def first() -> tuple[Call, list[Tensor]]:
        call = make(module, given[0])
        return call, [call(*given[0]).clone()]

    (call, results), seconds = timed(first)
    others, more = timed(lambda: [call(*args).clone() for args in given[1:]])
    found: dict[str, Any] = {
        "first call s": round(seconds, 4),
        f"first {FIRST_CALLS} calls s": round(seconds + more, 4),
    }
    if ON_GPU:
        found["peak MiB"] = round((torch.cuda.max_memory_reserved() - reserved) / 2**20, 1)
    pairs = list(zip(results + others, expected, strict=True))
    found["bit for bit"] = all(torch.equal(got, other) for got, other in pairs)
    found["largest difference"] = max(float((a.double() - b).abs().max()) for a, b in pairs)
    found["largest magnitude"] = round(max(float(other.abs().max()) for other in expected), 3)
    for _ in range(10):  # a way may still choose what is faster
        call(*given[0])
    if hasattr(call, "stats") and hasattr(call, "__wrapped__"):
        stats = call.stats()
        found["replays"] = stats.replays
        found["not compiled"] = [shortened(why) for why in stats.not_compiled.values()]
        found["why eager"] = [shortened(why) for why in stats.fallbacks]
    del results, others, pairs
    if ON_GPU:
        found["held MiB"] = round((before - free()) / 2**20, 1)
    return call, found


def free() -> int:
    """Bytes that the device has left, whoever holds the others."""
    if not ON_GPU:
        return 0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def times(call: Callable[[], Any], batch: int) -> tuple[list[float], list[float]]:
    """Microseconds of calls until they return, and until the device is done."""
    host, total = [], []
    call()
    for _ in range(batch):
        synchronize()
        start = time.perf_counter_ns()
        call()
        middle = time.perf_counter_ns()
        synchronize()
        end = time.perf_counter_ns()
        host.append((middle - start) / 1000)
        total.append((end - start) / 1000)
    return host, total


# What asks them.


class Other:
    """The process of a way."""

    def __init__(self, context: Any, crash: Path, *item: Any) -> None:
        self._ours, theirs = context.Pipe()
        self._crash = crash
        self._process = context.Process(target=work, args=(theirs, crash, *item))
        self._process.start()
        theirs.close()

    def answer(self, seconds: float, to: Any = None) -> Any:
        """What it sends, or a row with why it sends nothing more; then it has ended."""
        try:
            if to is not None:
                self._ours.send(to)
            if self._ours.poll(max(0.0, seconds)):
                return self._ours.recv()
            why = f"ended after {seconds:.0f} s" if seconds > 0 else "no time was left"
        except (EOFError, OSError):
            self._process.join(5)
            why = f"its process ended with status {self._process.exitcode}{self._where()}"
        self.end()
        return {"error": why}

    def _where(self) -> str:
        text = self._crash.read_text(encoding="utf-8") if self._crash.exists() else ""
        lines = re.findall(r'File "(.+)", line (\d+) in (.+)', text.partition("Current thread")[2])
        return f" in {lines[0][2]}, {shortened(lines[0][0])}:{lines[0][1]}" if lines else ""

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.join(5)
        self._ours.close()


def measured(
    model: str, ways: list[str], options: Any, seconds: float, keep: Callable[[Any], None]
) -> None:
    """The rows of a model; ``keep`` is given them whenever there are more."""
    rows: dict[str, dict[str, Any]] = {}
    others: dict[str, Other] = {}
    context = start_context("forkserver")
    if not ON_GPU:  # with a GPU nothing is imported before the fork that might start its driver
        context.set_forkserver_preload(["torch._dynamo", "gfxgraph.call.graphed", "transformers"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            for way in ways:
                if way in NEEDS_CUDA and not ON_GPU:
                    rows[way] = {"error": "needs a GPU"}
                    continue
                kind = "max-autotune" if "max-autotune" in way else way
                cache = str(Path(folder) / str(list(WAYS).index(way) if kind == way else kind))
                path = str(options.published or "")
                crash = Path(folder) / f"{len(others)}.crash"
                others[way] = Other(context, crash, model, way, options.tiny, cache, path)
            for way, other in list(others.items()):
                if "error" in (found := other.answer(STARTS_WITHIN)):
                    rows[way] = found
                    del others[way]
            until, complete = time.monotonic() + seconds, True
            for way, other in list(others.items()):
                left = until - time.monotonic() - options.timing
                found = other.answer(min(options.limit, left), to=True)
                rows[way] = found
                print(model, way, json.dumps(found), flush=True)
                if "error" in found:
                    complete &= time.monotonic() + options.timing < until
                    del others[way]
                keep({"ways": rows})
            for way, more in in_turn(others, options.timing).items():
                rows[way] |= more
            keep({"ways": {way: rows[way] for way in ways}, "complete": complete})
        finally:
            for other in others.values():
                other.end()


def in_turn(others: dict[str, Other], seconds: float) -> dict[str, dict[str, Any]]:
    """What calls of each take, round after round."""
    from gfxgraph.measure.timing import MIN_ROUNDS, Samples, speedup

    samples = {way: Samples() for way in others}
    rows: dict[str, dict[str, Any]] = {}
    often: dict[str, int] = {}
    start, rounds = time.monotonic(), 0
    while time.monotonic() - start < seconds or rounds <= MIN_ROUNDS:
        for way in [way for way in others if way not in rows]:
            answer = others[way].answer(60.0, to=often.get(way, 2))
            if isinstance(answer, dict):
                rows[way] = answer
                continue
            host, total = answer
            if way in often:
                samples[way].host.append(host)
                samples[way].total.append(total)
            enough = _SECONDS_OF_A_BATCH / (min(total) / 1e6 + 1e-9)
            often.setdefault(way, min(_MOST_CALLS, max(1, round(enough))))
        rounds += 1
    for way, found in samples.items():
        if way in rows:
            continue
        total, host = (sorted(itertools.chain(*part)) for part in (found.total, found.host))
        rows[way] = {
            "ms": round(statistics.median(total) / 1000, 4),
            "fastest tenth ms": round(total[len(total) // 20] / 1000, 4),
            "host us": round(statistics.median(host), 2),
            "calls": len(total),
        }
        if "eager" in samples and "error" not in rows.get("eager", {}):
            ratio = speedup(samples["eager"], found)
            rows[way]["times faster"] = [ratio.median, ratio.low, ratio.high]
    return rows


def main() -> None:
    """The command."""
    parser = arguments(__doc__, "alternatives.json" if ON_GPU else None)
    parser.add_argument("--models", nargs="*", choices=SIX, help="default: those not there yet")
    parser.add_argument("--ways", nargs="*", choices=WAYS, help="tiny: those that do not compile")
    parser.add_argument("--seconds", type=float, help="for all models; 540, tiny 50")
    parser.add_argument("--limit", type=float, default=75.0, help="of making a way ready, s")
    parser.add_argument("--timing", type=float, help="of calls of a model in turn, s; 12, tiny 1")
    parser.add_argument("--published", type=Path, help="the unpacked package of the same name")
    parser.add_argument("--tiny", action="store_true", help="small models; times mean nothing")
    options = parser.parse_args()
    if options.out is None:
        parser.error("--out: without a GPU it must be named, since times mean nothing")
    options.seconds = options.seconds or (50.0 if options.tiny else 540.0)
    options.timing = options.timing or (1.0 if options.tiny else 12.0)
    quick = [way for way in WAYS if not options.tiny or _INDUCTOR not in NEEDS.get(way, ())]
    options.ways = options.ways or quick
    until = time.monotonic() + options.seconds
    found = about(
        "alternatives" + " --tiny" * options.tiny,
        options.commit,
        *("timm", "transformers", "triton", "torch-tensorrt", "onnxruntime"),
    )
    found |= {"limit s": options.limit, "models": earlier(options.out, found).get("models", {})}
    there = found["models"]
    models = options.models or [name for name in SIX if not there.get(name, {}).get("complete")]
    for n, model in enumerate(models):

        def keep(part: dict[str, Any], model: str = model) -> None:
            there[model] = {"what": SIX[model].__doc__, **part}
            write(options.out, found)

        share = (until - time.monotonic()) / (len(models) - n)
        measured(model, options.ways, options, share, keep)
        print(model, json.dumps(there[model], indent=1), flush=True)


if __name__ == "__main__":
    main()
