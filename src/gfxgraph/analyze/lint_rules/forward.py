"""The rule about functions that run for each request: they should not wait for the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..report import Severity
from .captures import captures
from .reach import graphed_functions, reached_calls
from .source import LintRule, Mark, Source, short
from .torch_names import PER_REQUEST, TRAINING

__all__ = ["RULES"]

_READS = {"cpu", "item", "numpy", "tolist"}
_FACTORIES = {"arange", "full", "ones", "rand", "randint", "randn", "randperm", "tensor", "zeros"}
_NO_GRAPHS = re.compile(r"\b(?:hpu|mps|npu|xpu)\b")


def _waits(source: Source) -> Iterator[Mark]:
    if "torch" not in source.text:
        return
    blocks = {statement for capture in captures(source) for statement in capture.body}
    methods = [
        one
        for one in source.functions
        if one.name in PER_REQUEST and _is_of_inference(source.parent(one))
    ]
    roots = [*blocks, *graphed_functions(source), *methods]
    for call, tree, root in reached_calls(source, roots):
        if _waits_for_device(source, call):
            what = f"{short(call)} in {_where(tree, root)}"
            yield Mark(call, what, _severity(call, captured=root in blocks))


def _is_of_inference(owner: ast.AST) -> bool:
    return isinstance(owner, ast.ClassDef) and not TRAINING.search(owner.name)


def _waits_for_device(source: Source, call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(attr="synchronize"):
            own = source.dotted(call.func).partition(".")[0] in ("", "torch")
            return own and not _NO_GRAPHS.search(ast.unparse(call.func))
        case ast.Attribute(value=receiver):
            return _is_read(call) and not _on_host(source, receiver)
    return False


def _is_read(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(attr="to"):
            return _is_to_cpu(call)
        case ast.Attribute(attr=attr):
            return attr in _READS and not call.args
    return False


def _is_to_cpu(call: ast.Call) -> bool:
    """``x.to("cpu")``, unless it does not wait."""
    given = [*call.args, *(key.value for key in call.keywords)]
    if any(key.arg == "non_blocking" for key in call.keywords):
        return False
    return any(
        ast.unparse(one) in ("'cpu'", "torch.device('cpu')", "torch.device(device='cpu')")
        for one in given
    )


def _on_host(source: Source, receiver: ast.expr) -> bool:
    """Whether it is a module, or holds data of the host: NumPy's, made there, or read before."""
    if source.dotted(receiver) or "_cpu" in ast.unparse(receiver):
        return True
    if isinstance(receiver, ast.Name):
        value = source.last_value(receiver.id, receiver)
        return isinstance(value, ast.Call) and _gives_host_data(source, value)
    return any(
        _gives_host_data(source, node) for node in ast.walk(receiver) if isinstance(node, ast.Call)
    )


def _gives_host_data(source: Source, call: ast.Call) -> bool:
    name = source.dotted(call.func)
    made = name.startswith("torch.") and name.removeprefix("torch.") in _FACTORIES
    placed = any(key.arg in ("device", None) for key in call.keywords)
    return _is_read(call) or name.startswith("numpy.") or (made and not placed)


def _severity(call: ast.Call, *, captured: bool) -> Severity:
    """A read is less than a wait: the tensor may be one of the host."""
    waits = isinstance(call.func, ast.Attribute) and call.func.attr == "synchronize"
    if captured:
        return "error" if waits else "warning"
    return "warning" if waits else "note"


def _where(tree: ast.AST, root: ast.AST) -> str:
    start = getattr(root, "name", "a capture")
    name = getattr(tree, "name", start)
    return start if tree is root else f"{name}, which {start} calls"


RULES = (
    LintRule(
        id="sync-in-forward",
        title="a function that runs for each request waits for the device",
        severity="warning",
        why="A capture forbids it. In eager execution the device idles while the host catches up.",
        remedy="Move it to the caller, after the call, or keep the value in a tensor (torch.where "
        "for a branch).",
        bad="""\
import torch

class Policy(torch.nn.Module):
    def forward(self, x):
        y = self.layer(x)
        torch.cuda.synchronize()
        return y
""",
        good="""\
import torch

class Policy(torch.nn.Module):
    def forward(self, x):
        return self.layer(x)

def timed(policy, x):
    y = policy(x)
    torch.cuda.synchronize()
    return y
""",
        words=re.compile(r"\.(?:synchronize|item|cpu|tolist|numpy)\(|[\"']cpu[\"']"),
        check=_waits,
    ),
)
