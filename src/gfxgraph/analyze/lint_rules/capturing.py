"""Rules about code that captures graphs with torch's own API."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from ...record.rules import RULES as HAZARDS
from .captures import Capture, captures
from .reach import graphed_functions, reached_calls
from .source import Function, LintRule, Mark, Source, assigned, short

__all__ = ["RULES"]

_BUILTIN = frozenset(dir(builtins))
_ENTER_STREAM = {"torch.cuda.StreamContext", "torch.cuda.set_stream", "torch.cuda.stream"}
_DISTRIBUTED = {
    "torch.distributed",
    "torch.distributed._functional_collectives",
    "torch.distributed.distributed_c10d",
}
_COLLECTIVES = frozenset(
    (
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_tensor",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "batch_isend_irecv",
        "broadcast",
        "gather",
        "irecv",
        "isend",
        "recv",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "send",
    )
)
_DEFAULT_STREAM = "torch.cuda.default_stream"


# ---------------------------------------------------------------------- replay-without-input-copy


def _rebound_inputs(source: Source) -> Iterator[Mark]:
    blocks = captures(source)
    for capture in blocks:
        scope = source.scope(capture.call)
        inputs = _inputs(source, capture)
        yield from _rebound(source, capture, inputs, scope, blocks, after=capture.last)
        owner = source.owner(capture.call)
        kept = {name for name in inputs if name.startswith("self.")}
        if owner and kept and capture.graph.startswith("self."):
            for other in owner.body:
                if isinstance(other, Function) and other is not scope:
                    yield from _rebound(source, capture, kept, other, blocks)


def _rebound(
    source: Source,
    capture: Capture,
    inputs: set[str],
    scope: ast.AST,
    blocks: list[Capture],
    after: int = 0,
) -> Iterator[Mark]:
    """The statements of a function that rebind an input and replay the graph after that."""
    inside = [node for node in ast.walk(scope) if source.scope(node) is scope]
    calls = [(node.lineno, ast.unparse(node.func)) for node in inside if isinstance(node, ast.Call)]
    replays = [line for line, name in calls if name == f"{capture.graph}.replay"]
    again = getattr(source.scope(capture.call), "name", "")
    captured = [line for line, name in calls if name in (again, f"self.{again}")]
    captured += [block.first for block in blocks]
    for node in inside:
        if not isinstance(node, ast.stmt):
            continue
        names = {ast.unparse(target) for target in assigned(node)} & inputs
        if not names or node.lineno <= after or not _binds_new_tensor(node, names):
            continue
        end = node.lineno if isinstance(node, ast.For) else node.end_lineno or node.lineno
        replay = min((line for line in replays if line > end), default=None)
        if replay and not any(node.lineno <= line <= replay for line in captured):
            name = min(names)
            what = f"{name} is rebound; {capture.graph}.replay() reads the tensor that {name} "
            yield Mark(node, f"{what}was at capture")


def _inputs(source: Source, capture: Capture) -> set[str]:
    """The variables and attributes of ``self`` that the block reads and does not bind, as text."""
    read: set[str] = set()
    bound: set[str] = set()
    for node in _walk(capture):
        bound |= {ast.unparse(target) for target in assigned(node)}
        if _is_variable(source, node) and not _is_called(source, node):
            read.add(ast.unparse(node))
    return read - bound


def _is_variable(source: Source, node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name != "self" and not source.dotted(node) and name not in _BUILTIN
        case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Load()):
            return True
    return False


def _is_called(source: Source, node: ast.AST) -> bool:
    parent = source.parent(node)
    return isinstance(parent, ast.Call) and parent.func is node


def _binds_new_tensor(node: ast.AST, names: set[str]) -> bool:
    """Whether a new tensor is bound: not by ``x = None``, and not by ``x = x.copy_(y)``."""
    if isinstance(node, ast.AugAssign):
        return False  # x += y writes a tensor in place
    value = getattr(node, "value", None)
    match value:
        case ast.Constant():
            return False
        case ast.Call(func=ast.Attribute(attr=attr, value=receiver)) if attr.endswith("_"):
            return ast.unparse(receiver) not in names
    return True


# ---------------------------------------------------------------------- capture-without-warmup


def _cold_captures(source: Source) -> Iterator[Mark]:
    lines = source.text.split("\n")
    blocks = captures(source)
    for capture in blocks:
        scope = source.scope(capture.call)
        called = _called(source, capture)
        place = source.owner(capture.call) or scope
        text = "\n".join(
            lines[getattr(place, "lineno", 1) - 1 : getattr(place, "end_lineno", None)]
        )
        if not called or "warm" in text.lower() or source.is_test(capture.call):
            continue
        before = _touched(
            node for node in ast.walk(scope) if getattr(node, "lineno", 0) < capture.first
        )
        if before.isdisjoint(called):
            # A caller that passes it, or calls it elsewhere in the file, may warm it up.
            known = called[0] in _parameters(scope) | _touched(_uncaptured(source, blocks))
            what = f"{called[0]} is captured without a call before"
            yield Mark(capture.call, what, "note" if known else None)


def _touched(nodes: Iterable[ast.AST]) -> set[str]:
    """The callables that are called, or passed to a call, as text."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            found |= {_without_forward(node.func), *map(ast.unparse, node.args)}
    return found


def _uncaptured(source: Source, blocks: list[Capture]) -> Iterator[ast.Call]:
    for call in source.nodes(ast.Call):
        if not any(block.first <= call.lineno <= block.last for block in blocks):
            yield call


def _parameters(scope: ast.AST) -> set[str]:
    if not isinstance(scope, Function):
        return set()
    return {node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)}


def _called(source: Source, capture: Capture) -> list[str]:
    """The functions and modules that are called in the block, as text; none of torch's own."""
    found = []
    for node in _walk(capture):
        match node:
            case ast.Call(func=ast.Name(id=name) as function):
                own = not source.dotted(function).startswith("torch.")
                named = name not in _BUILTIN and not name[:1].isupper()
                wanted = own and named
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self" | "cls"))):
                wanted = True
            case ast.Call(func=ast.Attribute(attr="forward")):
                wanted = True
            case _:
                continue
        if wanted and not isinstance(source.parent(node), ast.withitem):
            found.append(_without_forward(node.func))
    return found


def _without_forward(function: ast.expr) -> str:
    return ast.unparse(function).removesuffix(".forward")


# ---------------------------------------------------------------------- default-stream-in-capture


def _default_streams(source: Source) -> Iterator[Mark]:
    defaults = {
        ast.unparse(target)
        for node in source.nodes(ast.Assign)
        if isinstance(node.value, ast.Call) and source.dotted(node.value.func) == _DEFAULT_STREAM
        for target in node.targets
    }
    blocks = [statement for capture in captures(source) for statement in capture.body]
    for call, _, _ in reached_calls(source, [*blocks, *graphed_functions(source)]):
        if source.dotted(call.func) in _ENTER_STREAM and any(
            _is_default(source, one, defaults) for one in call.args
        ):
            yield Mark(call, f"{short(call)} in a capture")


def _is_default(source: Source, stream: ast.expr, defaults: set[str]) -> bool:
    if isinstance(stream, ast.Call):
        return source.dotted(stream.func) == _DEFAULT_STREAM
    return ast.unparse(stream) in defaults


# ---------------------------------------------------------------------- collective-in-capture


def _collectives(source: Source) -> Iterator[Mark]:
    blocks = [statement for capture in captures(source) for statement in capture.body]
    for call, _, _ in reached_calls(source, blocks):
        module, _, name = source.dotted(call.func).rpartition(".")
        if module in _DISTRIBUTED and name in _COLLECTIVES:
            yield Mark(call, f"{short(call)} in a capture")


def _walk(capture: Capture) -> Iterator[ast.AST]:
    for statement in capture.body:
        yield from ast.walk(statement)


_WORDS = frozenset({"CUDAGraph", "capture_begin", "cuda.graph", "graphed"})
_WARM = """\
import torch

def capture(model, x):
    with torch.cuda.stream(torch.cuda.Stream()):
        model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
"""

RULES = (
    LintRule(
        id="replay-without-input-copy",
        title="an input of a graph is rebound to a new tensor before a replay",
        severity="error",
        why="A graph reads the memory that its input had at capture. Rebinding the name to "
        "another tensor does not change that memory: the replay computes with the old values.",
        remedy="Write into the static input: static_input.copy_(x), then graph.replay().",
        bad=_WARM
        + "        y = model(x)\n    x = torch.ones(4)\n    graph.replay()\n    return y\n",
        good=_WARM
        + "        y = model(x)\n    x.copy_(torch.ones(4))\n    graph.replay()\n    return y\n",
        words=_WORDS,
        check=_rebound_inputs,
    ),
    LintRule(
        id="capture-without-warmup",
        title="a function is captured without a call before it",
        severity="warning",
        why="Libraries create handles and workspaces at their first call (cuBLAS, cuDNN, cuFFT, "
        "Triton's compiler), which a capture forbids.",
        remedy="Warm up: call it a few times before the capture, on a side stream; "
        "gfxgraph.graphed does so.",
        bad="""\
import torch

def capture(x):
    model = torch.nn.Linear(4, 4).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    return graph, y
""",
        good=_WARM + "        y = model(x)\n    return graph, y\n",
        words=_WORDS,
        check=_cold_captures,
    ),
    LintRule(
        id="default-stream-in-capture",
        title="captured code puts work on the default stream",
        severity="error",
        why=HAZARDS["default-stream"].why,
        remedy=HAZARDS["default-stream"].remedy,
        bad=_WARM
        + "        with torch.cuda.stream(torch.cuda.default_stream()):\n            y = model(x)\n"
        + "    return graph, y\n",
        good=_WARM + "        y = model(x)\n    return graph, y\n",
        words=_WORDS,
        check=_default_streams,
    ),
    LintRule(
        id="collective-in-capture",
        title="a capture by hand holds a collective",
        severity="warning",
        why="All ranks have to capture it in the same order and to replay that graph in the same "
        "calls, or none of them. A rank that cannot capture, or runs eagerly once, leaves the "
        "others waiting, and its collectives pair up with the wrong ones.",
        remedy="Let gfxgraph.graphed cut the graph there, which it does by itself, or let all "
        'ranks agree: collectives="inside".',
        bad="import torch.distributed as dist\n"
        + _WARM
        + "        y = model(x)\n        dist.all_reduce(y)\n    return graph, y\n",
        good=_WARM + "        y = model(x)\n    return graph, y\n",
        words=_WORDS,
        check=_collectives,
    ),
)
