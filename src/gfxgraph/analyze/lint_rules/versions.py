"""Rules about code that some versions of torch or some devices do not run as it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .captures import captures
from .reach import reached_calls
from .source import LintRule, Mark, Source, short

__all__ = ["RULES"]

_ROCM = re.compile(r"rocm|version\.hip|\bis_hip\b|\bHIP_\w|\bHSA_\w|\bgfx(?:9|1[012])\w{2}\b", re.I)
_MODES = {"max-autotune", "reduce-overhead"}
_OPTION = "triton.cudagraphs"
_COMPILE = frozenset({"torch.compile", "torch._dynamo.optimize"})
_COLLECTIVES = re.compile(
    r"^torch\.distributed\.(?:\w+\.)*(?:all_gather\w*|all_reduce\w*|all_to_all\w*|barrier|"
    r"broadcast\w*|gather|reduce|reduce_scatter\w*|scatter|send|recv|isend|irecv)$"
)
_DEAD = "preserve_global_state"
_CONVERT_FRAME = "torch._dynamo.convert_frame"


# ---------------------------------------------------------------------- cudagraphs-on-rocm


def _cudagraphs(source: Source) -> Iterator[Mark]:
    if not _ROCM.search(source.text):
        return
    for call in source.calls(_COMPILE):
        given = {key.arg: key.value for key in call.keywords}
        mode = given.get("mode")
        on = isinstance(mode, ast.Constant) and mode.value in _MODES
        if (on or _turns_on(given.get("options"))) and not _is_for_cuda(source, call):
            yield Mark(call, f"{short(call)} makes graphs of its own")
    for assignment in source.nodes(ast.Assign):
        for target in assignment.targets:
            text = ast.unparse(target)
            on = text.endswith(_OPTION) and _is_true(assignment.value)
            if on and not _is_for_cuda(source, target):
                yield Mark(target, f"{text} is turned on")


def _turns_on(options: ast.expr | None) -> bool:
    return isinstance(options, ast.Dict) and any(
        isinstance(key, ast.Constant) and key.value == _OPTION and _is_true(value)
        for key, value in zip(options.keys, options.values, strict=True)
    )


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_for_cuda(source: Source, node: ast.AST) -> bool:
    """Whether it is in the branch of a condition that runs where there is no HIP."""
    for outer in source.ancestors(node):
        if isinstance(outer, ast.If | ast.IfExp):
            asked = ast.unparse(outer.test)
            if re.search(r"hip|rocm", asked):
                then = outer.body if isinstance(outer, ast.If) else [outer.body]
                is_then = any(node in ast.walk(part) for part in then)
                return is_then == bool(_NO_HIP.search(asked))
    return False


_NO_HIP = re.compile(
    r"\bnot [\w.]*(?:hip|rocm)|(?:hip|rocm)\w*(?:\(\))? (?:is None|== None|!=)|!= \W(?:hip|rocm)"
)


# ---------------------------------------------------------------------- collective-in-capture


def _collectives(source: Source) -> Iterator[Mark]:
    blocks = captures(source) if "distributed" in source.text else []
    statements = [statement for capture in blocks for statement in capture.body]
    inside = {
        call: tree
        for call, tree, _ in reached_calls(source, statements)
        if _COLLECTIVES.match(source.dotted(call.func))
    }
    spans = [(capture.first, capture.last) for capture in blocks]
    warm = any(
        _COLLECTIVES.match(source.dotted(call.func))
        for call in source.nodes(ast.Call)
        if call not in inside and not any(a <= call.lineno <= b for a, b in spans)
    )
    for call in inside:
        yield Mark(call, f"{short(call)} in a capture", "note" if warm else None)


# ---------------------------------------------------------------------- dead-patch


def _dead_patches(source: Source) -> Iterator[Mark]:
    for assignment in source.nodes(ast.Assign):
        for target in assignment.targets:
            dead = isinstance(target, ast.Attribute) and target.attr == _DEAD and target.value
            if dead and source.dotted(dead) == _CONVERT_FRAME:
                yield Mark(target, f"{short(target)} is replaced")
    for call in source.nodes(ast.Call):
        given = [one.value for one in call.args if isinstance(one, ast.Constant)]
        named = f"{_CONVERT_FRAME}.{_DEAD}" in given
        of_module = bool(call.args) and source.dotted(call.args[0]) == _CONVERT_FRAME
        replaces = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if named or (of_module and _DEAD in given and replaces != "getattr"):
            yield Mark(call, f"{short(call)} replaces {_DEAD}")


RULES = (
    LintRule(
        id="cudagraphs-on-rocm",
        title="torch.compile makes graphs of its own, in code for ROCm",
        severity="warning",
        why='mode="reduce-overhead", "max-autotune" and triton.cudagraphs capture by themselves, '
        "and another capture cannot hold that. On ROCm, training was reported to go worse with it "
        "(pytorch#187715: torch 2.10, ROCm 7.0, MI300X).",
        remedy='Compile with mode="default", and let one owner capture: gfxgraph.graphed, or '
        "torch.cuda.graph around the compiled call.",
        bad="import torch\n\nassert torch.version.hip\n\n"
        'def fast(model):\n    return torch.compile(model, mode="reduce-overhead")\n',
        good="import torch\n\nimport gfxgraph\n\nassert torch.version.hip\n\n"
        "def fast(model):\n    return gfxgraph.graphed(torch.compile(model))\n",
        words=frozenset({"max-autotune", "reduce-overhead", "triton.cudagraphs"}),
        check=_cudagraphs,
    ),
    LintRule(
        id="collective-in-capture",
        title="a capture holds a collective of torch.distributed",
        severity="warning",
        why="The first collective of a process makes its communicator, which a capture forbids. If "
        "one rank cannot capture, its later collectives pair up with those of a replay. "
        "destroy_process_group() hangs while such a graph exists.",
        remedy="Call the collective once before the capture, let all ranks capture the same, and "
        "delete the graph before destroy_process_group(). gfxgraph.graphed asks all ranks first.",
        bad="""\
import torch
import torch.distributed as dist

def capture(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
    return graph
""",
        good="""\
import torch
import torch.distributed as dist

def capture(x):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    dist.all_reduce(y)
    return graph
""",
        words=frozenset({"capture_begin", "cuda.graph"}),
        check=_collectives,
    ),
    LintRule(
        id="dead-patch",
        title="a function of torch is replaced that torch does not call any more",
        severity="warning",
        why="From torch 2.9 on, Dynamo binds its guard of the random state when torch is imported. "
        "Replacing convert_frame.preserve_global_state then has no effect: compiling inside a "
        "capture fails as without it.",
        remedy="Compile everything before the capture, or use gfxgraph.guard_rng().",
        bad="import torch._dynamo.convert_frame\n\n"
        "torch._dynamo.convert_frame.preserve_global_state = lambda fn: fn\n",
        good="import gfxgraph\n\ngfxgraph.guard_rng()\n",
        words=frozenset({_DEAD}),
        check=_dead_patches,
    ),
)
