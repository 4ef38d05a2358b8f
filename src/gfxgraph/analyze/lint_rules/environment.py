"""Rules about environment variables. They also read shell scripts, see :mod:`.reading`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .source import LintRule, Mark, Source

__all__ = ["RULES"]

_ALLOCATOR = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}
_INERT = {"HIP_CACHE_ENABLED", "HIP_GRAPH_ENABLED"}
# PyTorch's allocator variables are not among them: torch reads those when it first allocates.
_READ_AT_START = {
    "AMD_LOG_LEVEL",
    "AMD_SERIALIZE_COPY",
    "AMD_SERIALIZE_KERNEL",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "DEBUG_HIP_GRAPH_BATCH_SIZE",
    "DEBUG_HIP_GRAPH_DOT_PRINT",
    "DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING",
    "GPU_MAX_HW_QUEUES",
    "HIP_FORCE_DEV_KERNARG",
    "HIP_LAUNCH_BLOCKING",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "ROCR_VISIBLE_DEVICES",
}
_SETTERS = {"putenv", "setdefault", "setenv"}


@dataclass(frozen=True)
class _Setting:
    """A variable that is given a value, at ``node``."""

    name: str
    value: ast.expr
    node: ast.expr
    of_process: bool  # not that of a child, or of a test


def _settings(source: Source) -> Iterator[_Setting]:
    for assignment in source.nodes(ast.Assign):
        for target in assignment.targets:
            match target:
                case ast.Subscript(value=mapping, slice=ast.Constant(value=str(name))):
                    if _is_environment(mapping):
                        own = source.dotted(mapping) == "os.environ"
                        yield _Setting(name, assignment.value, target, own)
    for call in source.nodes(ast.Call):
        match call:
            case ast.Call(
                func=ast.Attribute(attr=attr) as function,
                args=[ast.Constant(value=str(name)), value, *_],
            ) if attr in _SETTERS:
                own = source.dotted(function) in {"os.environ.setdefault", "os.putenv"}
                yield _Setting(name, value, call, own)
            case ast.Call(func=ast.Attribute(value=mapping, attr="update")) if _is_environment(
                mapping
            ):
                for name, value in _items(call):
                    yield _Setting(name, value, value, source.dotted(mapping) == "os.environ")


def _items(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The variables that ``mapping.update({"A": a}, B=b)`` sets."""
    for given in call.args:
        if isinstance(given, ast.Dict):
            for key, value in zip(given.keys, given.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value
    for keyword in call.keywords:
        if keyword.arg:
            yield keyword.arg, keyword.value


def _is_environment(mapping: ast.expr) -> bool:
    """Whether it is an environment, such as ``os.environ``, ``env`` or ``self.child_env``."""
    return "env" in ast.unparse(mapping).rpartition(".")[2].lower()


def _conflicts(source: Source) -> Iterator[Mark]:
    for setting in _settings(source):
        if setting.name in _ALLOCATOR:
            constants = (node for node in ast.walk(setting.value) if isinstance(node, ast.Constant))
            text = "".join(one.value for one in constants if isinstance(one.value, str))
            expandable = re.search(r"expandable_segments(?!\s*:\s*[Ff]alse)", text)
            if expandable and "max_split_size_mb" in text:
                yield Mark(setting.node, f"{setting.name} sets both")


def _inert(source: Source) -> Iterator[Mark]:
    for setting in _settings(source):
        if setting.name in _INERT:
            yield Mark(setting.node, f"{setting.name} is set")


def _too_late(source: Source) -> Iterator[Mark]:
    order = list(_module_level(source.tree))
    position = {statement: index for index, statement in enumerate(order)}
    imports = [position[one] for one in order if _imports_torch(one)]
    starts = [position[one] for one in order if _starts_device(source, one)]
    if not imports:
        return
    for setting in _settings(source):
        if not setting.of_process or setting.name not in _READ_AT_START:
            continue
        at = position.get(source.statement(setting.node), -1)
        if any(start < at for start in starts):
            yield Mark(setting.node, f"{setting.name} is set after the device was used", "warning")
        elif at > imports[0]:
            yield Mark(setting.node, f"{setting.name} is set after torch was imported")


def _module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run on import, in order."""
    todo = list(reversed(tree.body))
    while todo:
        statement = todo.pop()
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With | ast.For | ast.While):
            if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
                continue
            inner = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt)]
            todo += reversed(inner)


def _imports_torch(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] == "torch" for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] == "torch"
    return False


def _starts_device(source: Source, statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr):
        return False
    for node in ast.walk(statement):
        match node:
            case ast.Call(func=ast.Attribute(attr="cuda")):
                return True
            case ast.Call() if source.dotted(node.func).startswith("torch.cuda."):
                return True
            case ast.keyword(arg="device", value=ast.Constant(value=str(device))):
                if device.startswith("cuda"):
                    return True
    return False


_WORDS = frozenset(_ALLOCATOR | _INERT | _READ_AT_START)

RULES = (
    LintRule(
        id="alloc-conf-conflict",
        title="max_split_size_mb and expandable_segments are set together",
        severity="warning",
        why="On ROCm the two together were reported to give tensors of zeros (ROCm issue "
        "legacy-rocm-build#6603: gfx1201, gfx1100).",
        remedy="Keep one of them: expandable_segments:True, or max_split_size_mb.",
        bad="import os\n\n"
        'os.environ["PYTORCH_HIP_ALLOC_CONF"] = "expandable_segments:True,max_split_size_mb:128"\n',
        good='import os\n\nos.environ["PYTORCH_HIP_ALLOC_CONF"] = "expandable_segments:True"\n',
        words=_WORDS,
        check=_conflicts,
    ),
    LintRule(
        id="inert-variable",
        title="an environment variable that nothing reads is set",
        severity="warning",
        why="Neither HIP nor PyTorch reads HIP_CACHE_ENABLED or HIP_GRAPH_ENABLED: setting them "
        "has no effect.",
        remedy="Remove the line. torch.cuda.graph or gfxgraph.graphed makes graphs.",
        bad='import os\n\nos.environ["HIP_GRAPH_ENABLED"] = "1"\n',
        good='import os\n\nos.environ["AMD_LOG_LEVEL"] = "1"\n',
        words=_WORDS,
        check=_inert,
    ),
    LintRule(
        id="env-after-torch",
        title="a runtime variable is set after torch is imported",
        severity="note",
        why="The HIP or CUDA runtime reads it once, at the first use of the device, and ignores a "
        "later value.",
        remedy="Set it before torch is imported, or in the shell that starts Python.",
        bad='import os\n\nimport torch\n\nos.environ["HIP_LAUNCH_BLOCKING"] = "1"\n',
        good='import os\n\nos.environ["HIP_LAUNCH_BLOCKING"] = "1"\n\nimport torch\n',
        words=_WORDS,
        check=_too_late,
    ),
)
