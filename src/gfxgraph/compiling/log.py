"""What torch compiled: how long it took, what went in, how many kernels came out.

Every backend of ``torch.compile`` is called from ``OutputGraph.call_user_compiler`` (read in the
sources of torch 2.6 to 2.15), for first compilations, recompilations and what follows a graph break
alike. That method is replaced while somebody listens. What is compiled and the keys of torch's
caches do not see it: neither the graph nor the backend nor a setting is changed.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch._guards import CompileContext

__all__ = ["Compilation", "CompileLog", "compile_log", "listening"]


@dataclass(frozen=True)
class Compilation:
    """One graph that a backend of ``torch.compile`` was given.

    Attributes:
        id: torch's number of the compilation: ``"2/1"`` is the first recompilation of the third
            frame that it met; what follows a graph break is a frame of its own.
        function: the function that the graph is part of.
        file: its file.
        line: where the graph begins, from 1: the function's first line, or, after a graph break,
            the line of the break.
        backend: the name of the backend, such as ``"inductor"``.
        seconds: host time in the backend. Tracing by Dynamo, before it, is not part of it.
        nodes: nodes of the FX graph, placeholders and output included.
        operations: name of an operation -> how often it is in the graph. Operations as Dynamo
            sees them, before they are taken to pieces.
        kernels: kernels that Inductor generated (Triton, C++); calls of libraries are not counted.
            ``None`` for other backends.
        cached: whether the code came from a cache of Inductor or AOTAutograd; ``None`` for other
            backends.
        error: what the backend raised, ``None`` where it did not.
    """

    id: str
    function: str
    file: str
    line: int
    backend: str
    seconds: float
    nodes: int
    operations: dict[str, int]
    kernels: int | None
    cached: bool | None
    error: str | None


class CompileLog:
    """What was compiled, in the order in which it was done; grows while the block is open."""

    def __init__(self) -> None:
        self._compilations: list[Compilation] = []

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        """All of them so far, of all threads."""
        return tuple(self._compilations)

    @property
    def seconds(self) -> float:
        """The sum of their times."""
        return sum(c.seconds for c in self._compilations)

    def to_json(self, path: str | Path | None = None) -> str:
        """The log as JSON: ``{"torch": ..., "seconds": ..., "compilations": [...]}``.

        Args:
            path: a file to write it to as well. Default none.
        """
        data = {
            "torch": torch.__version__,
            "seconds": self.seconds,
            "compilations": [asdict(c) for c in self._compilations],
        }
        text = json.dumps(data, indent=2)
        if path is not None:
            Path(path).write_text(f"{text}\n", encoding="utf-8")
        return text

    def __rich__(self) -> Table:
        compilations = self.compilations
        seconds = sum(c.seconds for c in compilations)
        title = f"{len(compilations)} compiled in {seconds:.2f} s, torch {torch.__version__}"
        table = Table(title=title)
        for heading in ("id", "seconds", "nodes", "kernels", "cache", "where", "operations"):
            numbers = heading in ("seconds", "nodes", "kernels")
            table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
        for one in compilations:
            frequent = Counter(one.operations).most_common(4)
            table.add_row(
                one.id,
                f"{one.seconds:.3f}",
                str(one.nodes),
                "-" if one.kernels is None else str(one.kernels),
                {None: "-", True: "hit", False: "miss"}[one.cached],
                f"{one.function} ({one.file}:{one.line})",
                one.error or ", ".join(f"{count} {name}" for name, count in frequent),
            )
        return table


@contextmanager
def compile_log() -> Iterator[CompileLog]:
    """Log each graph that torch compiles in the block, in whatever thread.

    .. code-block:: python

        with gfxgraph.compile_log() as log:
            compiled(x)
        rich.print(log)
        log.to_json("compilations.json")

    Compilations, recompilations, and each graph of a function that breaks into several, of any
    backend. A backward graph that is compiled later, when it is first needed, is not seen. Nothing
    is added to torch when no block is open.
    """
    log = CompileLog()
    with listening(log._compilations.append):
        yield log


Listener = Callable[[Compilation], object]

_lock = threading.Lock()
_listeners: list[Listener] = []
_original: Any = None


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener`` after each compilation, in the thread that compiled."""
    _listen(listener)
    try:
        yield
    finally:
        _stop(listener)


def _listen(listener: Listener) -> None:
    from torch._dynamo.output_graph import OutputGraph

    global _original
    with _lock:
        if not _listeners:
            _original = OutputGraph.call_user_compiler
            OutputGraph.call_user_compiler = _told(_original)  # type: ignore[method-assign]
        _listeners.append(listener)


def _stop(listener: Listener) -> None:
    from torch._dynamo.output_graph import OutputGraph

    with _lock:
        _listeners.remove(listener)
        if not _listeners:
            OutputGraph.call_user_compiler = _original  # type: ignore[method-assign]


def _told(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_user_compiler(output: Any, module: torch.fx.GraphModule, *rest: Any) -> Any:
        described = _describe(output, module)
        kernels, hits = _kernels(), _cache_hits()
        start, error = time.perf_counter(), None
        try:
            return original(output, module, *rest)
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            seconds = time.perf_counter() - start
            inductor = described["backend"] == "inductor"
            compilation = Compilation(
                **described,
                seconds=seconds,
                kernels=_kernels() - kernels if inductor else None,
                cached=_cache_hits() > hits if inductor else None,
                error=error,
            )
            for listener in (*_listeners,):
                listener(compilation)

    return call_user_compiler


_NOT_THE_USERS = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/")
_AFTER_BREAK = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)")


def _describe(output: Any, module: torch.fx.GraphModule) -> dict[str, Any]:
    """What is known before the backend runs, which may change the graph."""
    code = output.root_tx.f_code
    if code.co_filename.startswith(_NOT_THE_USERS):
        # torch's own call of a module of its own, or that of call/compiled.py: of the variable fn.
        called = output.root_tx.f_locals.get("fn")
        code = getattr(getattr(called, "forward", called), "__code__", code)
    function, line = code.co_name, code.co_firstlineno
    resumed = _AFTER_BREAK.fullmatch(function)
    if resumed:
        function, line = resumed["function"], int(resumed["line"])
    backend = output.compiler_fn
    for attribute in ("_compiler_name", "compiler_name", "__name__"):
        name = getattr(backend, attribute, None)
        if isinstance(name, str):
            break
    return {
        "id": str(CompileContext.current_compile_id()),
        "function": function,
        "file": code.co_filename,
        "line": line,
        "backend": name if isinstance(name, str) else type(backend).__name__,
        "nodes": len(module.graph.nodes),
        "operations": _operations(module),
    }


def _operations(module: torch.fx.GraphModule) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for node in module.graph.nodes:
        if node.op == "call_function":
            target: Any = node.target
            counts[str(getattr(target, "__name__", target))] += 1
        elif node.op == "call_method":
            counts[str(node.target)] += 1
        elif node.op == "call_module":
            counts[type(module.get_submodule(str(node.target))).__name__] += 1
    return dict(counts.most_common())


def _kernels() -> int:
    """How many kernels Inductor has generated in this process; Dynamo compiles one at a time."""
    metrics = sys.modules.get("torch._inductor.metrics")
    return metrics.generated_kernel_count if metrics else 0


def _cache_hits() -> int:
    from torch._dynamo.utils import counters

    return int(
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )
