"""Logs what torch compiles: host time, graph nodes, kernels.

Every backend of ``torch.compile`` is called from ``OutputGraph.call_user_compiler`` (read in the
sources of torch 2.8 to 2.15), for first compilations, recompilations and what follows a graph break
alike. Inductor compiles a backward graph when it is first needed, in ``_compile_fx_inner``. Every
graph that it made or found in a cache, with the count of its kernels, passes
``CompiledFxGraph.post_compile``. We replace these three while somebody listens. The replacements
change neither the graph nor the backend nor a setting, so the keys of torch's caches stay the same.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from rich.console import Console
from rich.table import Table
from torch._guards import CompileContext, TracingContext

from ..forking import new_lock
from ..interpose.modules import import_whole
from ..interpose.patch import Claim, find, intercept
from ..interpose.source import Source, is_the_users, is_users_file, users_line
from ..tables import Shown, as_json

__all__ = ["Compilation", "CompileLog", "as_text", "compile_log", "listening"]


@dataclass(frozen=True)
class Compilation:
    """One graph that a backend of ``torch.compile`` was given.

    Attributes:
        id: torch's number of the compilation: ``"2/1"`` is the first recompilation of the third
            frame that it met; the code after a graph break is a frame of its own.
        function: the function that the graph is part of; of torch's own functions, such as
            ``Sequential.forward``, the one that called them.
        file: its file.
        line: where the graph begins, from 1: the function's first line, or, after a graph break,
            the line of the break; of torch's own functions the line that called them.
        backend: the name of the backend, such as ``"inductor"``.
        backward: whether it is Inductor's backward graph of a function; ``id``, ``function``,
            ``file`` and ``line`` are those of its forward graph, or ``""`` and 0 where that was
            compiled before the block.
        seconds: host time in the backend. Tracing by Dynamo, before it, is not part of it. 0 for a
            backward graph that a cache gave together with its forward graph, whose time has both.
        nodes: nodes of the FX graph, placeholders and output included; 0 for a backward graph that
            came with its forward graph, as there is none then.
        operations: name of an operation -> how often it is in the graph. Operations as Dynamo
            sees them, before they are taken to pieces; in a backward graph those of ATen.
        kernels: kernels of Inductor in the code (Triton, C++), generated now or found in a cache;
            calls of libraries are not counted. ``None`` for other backends.
        cached: whether the code came from a cache of Inductor or AOTAutograd; ``None`` for other
            backends.
        error: what the backend raised, ``None`` where it did not.
    """

    id: str
    function: str
    file: str
    line: int
    backend: str
    backward: bool
    seconds: float
    nodes: int
    operations: dict[str, int]
    kernels: int | None
    cached: bool | None
    error: str | None


class CompileLog(Shown):
    """The compilations in their order; grows while the block is open.

    ``print`` shows it as a table, ``rich.print`` in colours.
    """

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
        return as_json(data, path)

    def _printed(self) -> list[str]:
        return [as_text(self.__rich__())]

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
            where = f"{one.function} ({one.file}:{one.line})" if one.file else "place not known"
            table.add_row(
                one.id,
                f"{one.seconds:.3f}",
                str(one.nodes),
                "-" if one.kernels is None else str(one.kernels),
                {None: "-", True: "hit", False: "miss"}[one.cached],
                f"backward of {where}" if one.backward else where,
                one.error or ", ".join(f"{count} {name}" for name, count in frequent),
            )
        return table


def as_text(table: Table) -> str:
    """The table without colours, as wide as the terminal, or 160 columns where there is none."""
    console = Console(file=io.StringIO(), width=None if sys.stdout.isatty() else 160)
    with console.capture() as text:
        console.print(table)
    return text.get().rstrip()


@contextlib.contextmanager
def compile_log() -> Iterator[CompileLog]:
    """Log each graph that torch compiles in the block, in whatever thread.

    .. code-block:: python

        with gfxgraph.compile_log() as log:
            compiled(x)
        print(log)
        log.to_json("compilations.json")

    The log holds compilations, recompilations, and each graph of a function that breaks into
    several, of any backend. With Inductor it also holds backward graphs, which are compiled when
    they are first needed. Nothing is added to torch when no block is open.
    """
    log = CompileLog()
    with listening(log._compilations.append):
        yield log


Listener = Callable[[Compilation], object]

_lock = new_lock()
_listeners: list[Listener] = []
_claims: dict[str, Claim] = {}


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener`` after each compilation, in the thread that compiled."""
    import_whole("torch._dynamo.output_graph")  # so that there is something to replace
    with _lock:
        _listeners.append(listener)
        _intercept_what_is_loaded()
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
            while _claims and not _listeners:
                _claims.popitem()[1].undo()


def _intercept_what_is_loaded() -> None:
    with _lock:
        for path, handler in _HANDLERS.items() if _listeners else ():
            place = None if path in _claims else find(path)
            if place is not None:
                _claims[path] = intercept(*place, handler, everywhere=True, lasts=True)


@dataclass
class _Made:
    """The graphs that Inductor has made in a compilation so far.

    Attributes:
        kernels: whether it is a backward graph -> kernels in it.
        backward: the facts of a backward graph that was compiled, not taken from a cache.
    """

    kernels: dict[bool, int] = field(default_factory=dict)
    backward: dict[str, Any] = field(default_factory=dict)


class _Local(threading.local):
    under_way: _Made | None = None


_local = _Local()
# The facts of a forward graph, by the context that AOTAutograd keeps for its backward graph.
_described: WeakKeyDictionary[TracingContext, dict[str, Any]] = WeakKeyDictionary()


def _call_user_compiler(
    compiler: Any, output: Any, module: torch.fx.GraphModule, *rest: Any
) -> Any:
    described = _describe(output, module)
    context = TracingContext.try_get()
    if context is not None:
        _described[context] = described
    inductor = described["backend"] == "inductor"
    if inductor:
        import_whole("torch._inductor.compile_fx")  # replace in it what could not be before

        _intercept_what_is_loaded()
    outer, made = _local.under_way, _Made()
    _local.under_way = made
    hits, start, error = _cache_hits(), time.perf_counter(), None
    try:
        return compiler(output, module, *rest)
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        seconds = time.perf_counter() - start - made.backward.get("seconds", 0.0)
        _local.under_way = outer
        cached = _cache_hits() > hits
        _notify(
            Compilation(
                **described,
                backward=False,
                seconds=seconds,
                kernels=made.kernels.get(False, 0) if inductor else None,
                cached=cached if inductor else None,
                error=error,
            )
        )
        if made.backward or True in made.kernels:
            _notify_backward(described, made, cached)


def _compile_fx_inner(inner: Any, module: torch.fx.GraphModule, *rest: Any, **kwargs: Any) -> Any:
    if not kwargs.get("is_backward"):
        return inner(module, *rest, **kwargs)
    outer = _local.under_way
    made = _local.under_way = outer or _Made()
    made.backward = {"nodes": len(module.graph.nodes), "operations": _operations(module)}
    hits, start, error = _cache_hits(), time.perf_counter(), None
    try:
        return inner(module, *rest, **kwargs)
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        made.backward.update(seconds=time.perf_counter() - start, error=error)
        _local.under_way = outer
        if outer is None:
            context = TracingContext.try_get()
            known = None if context is None else _described.get(context)
            _notify_backward(known or _NOT_KNOWN, made, _cache_hits() > hits)


def _post_compile(post_compile: Any, graph: Any, *rest: Any, **kwargs: Any) -> Any:
    made = _local.under_way
    if made is not None:
        backward = bool(graph.fx_kwargs.get("is_backward"))
        kernels = made.kernels.get(backward, 0) + graph.metrics_deltas.generated_kernel_count
        made.kernels[backward] = kernels
    return post_compile(graph, *rest, **kwargs)


_HANDLERS: dict[str, Callable[..., Any]] = {
    "torch._dynamo.output_graph:OutputGraph.call_user_compiler": _call_user_compiler,
    "torch._inductor.compile_fx:_compile_fx_inner": _compile_fx_inner,
    "torch._inductor.output_code:CompiledFxGraph.post_compile": _post_compile,
}

_NOT_KNOWN = {"function": "", "file": "", "line": 0, "backend": "inductor"}


def _notify_backward(forward: dict[str, Any], made: _Made, cached: bool) -> None:
    _notify(
        Compilation(
            **{
                "id": str(CompileContext.current_compile_id()),
                **forward,
                **{"seconds": 0.0, "nodes": 0, "operations": {}, "error": None},
                **made.backward,
            },
            backward=True,
            kernels=made.kernels.get(True, 0),
            cached=cached,
        )
    )


def _notify(compilation: Compilation) -> None:
    for listener in (*_listeners,):
        listener(compilation)


AFTER_BREAK = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)")
"""Dynamo's name for the rest of a function after a graph break."""


def _describe(output: Any, module: torch.fx.GraphModule) -> dict[str, Any]:
    """The facts to collect before the backend runs, since it may change the graph."""
    code = output.root_tx.f_code
    if not is_the_users(code):
        # torch's own call of a module of its own, or that of call/compiled.py: of the variable fn.
        called = output.root_tx.f_locals.get("fn")
        code = getattr(getattr(called, "forward", called), "__code__", code)
    file, function, line = code.co_filename, code.co_name, code.co_firstlineno
    resumed = AFTER_BREAK.fullmatch(function)
    if resumed:
        function, line = resumed["function"], int(resumed["line"])
    caller = Source() if is_users_file(file) else users_line()
    if caller.file is not None:
        file, line = caller.file, caller.line
        function = AFTER_BREAK.sub(r"\g<function>", caller.function)
    backend = output.compiler_fn
    attributes = ("_compiler_name", "compiler_name", "__name__")
    names = (getattr(backend, attribute, None) for attribute in attributes)
    return {
        "id": str(CompileContext.current_compile_id()),
        "function": function,
        "file": file,
        "line": line,
        "backend": next((n for n in names if isinstance(n, str)), type(backend).__name__),
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


def _cache_hits() -> int:
    counters = import_whole("torch._dynamo.utils").counters
    return int(
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )
