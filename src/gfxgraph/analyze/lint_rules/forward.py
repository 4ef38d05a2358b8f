"""Rules about functions that run for each request: they should not wait for the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from ..report import Severity
from .captures import captures
from .flow import Effect, Flow, Found
from .gates import is_training_only, words
from .reach import graphed_functions
from .source import Function, LintRule, Mark, Source
from .torch_names import PER_REQUEST

__all__ = ["RULES"]

# Others of this kind make a whole answer, a sequence or a batch of actions.
_ANSWERS = {"__call__", "decode", "generate", "predict", "sample"}
_ACTS = {"predict_action_chunk", "sample_actions", "select_action"}
_NOT_INFERENCE = re.compile(
    r"loss|criterion|train|metric|matcher|discriminator|assigner|augment|dataset|collat|callback|"
    r"tokeni[sz]|(?<!attn)(?<!attention)(?<!logits)processor|processing|transform(?!er)|reader|"
    r"writer|visuali[sz]|optimi[sz]er|evaluator|benchmark|parser|export|onnx|tensorrt|openvino|coreml|backend|"
    r"negativesampler|"
    r"feature_?extract(?:or|ion)(?!\w)|^test|^conftest|^convert_",
    re.IGNORECASE,
)
_RUNTIMES = re.compile(r"onnx|tensorrt|openvino|coreml|backend$", re.IGNORECASE)
_NOT_INFERENCE_NAME = re.compile(
    r"(?:^|\.)(?:tests?|testing|loss(?:es)?|metrics?|train\w*|augment\w*|transforms?|data|datasets?|"
    r"\w*_loss(?:es)?|conftest|conver(?:t_\w+|sion)|tensorrt|test_\w+|tokeni[sz]\w*|processing_\w+|"
    r"(?:image|video)_processing_\w+|feature_extraction_\w+|benchmarks?|export\w*|onnx\w*|optim\w*|"
    r"callbacks?|evaluat\w+|trainers?|solutions|solvers|scripts|loggers?|vis\w*)(?:\.|$)"
)
_EFFECTS: dict[Effect, str] = {
    "sync": "sync-in-forward",
    "read": "sync-in-forward",
    "branch": "branch-in-forward",
    "shape": "data-shape-in-forward",
    "hidden": "hidden-sync-in-forward",
    "data": "host-data-in-forward",
}


def _found(source: Source) -> list[tuple[str, Mark]]:
    """All that is found in functions that run for each request, with the rule."""
    if "forward" not in source.memo:
        source.memo["forward"] = list(_follow(source)) if "torch" in source.text else []
    found: list[tuple[str, Mark]] = source.memo["forward"]
    return found


def _follow(source: Source) -> Iterator[tuple[str, Mark]]:
    flow = Flow(source)
    graphs = re.search(r"cuda\.graph|capture_begin|graphed", source.text)
    blocks = [capture.body for capture in captures(source)] if graphs else []
    for block in blocks:
        flow.block(block, source.owner(block[0]))
    for function in graphed_functions(source) if graphs else ():
        flow.function(function, source.owner(function))
    for function, owner in _answering(source):
        flow.function(function, owner)
    captured = {statement for block in blocks for statement in block}
    said: set[tuple[str, int]] = set()
    for one in flow.found.values():
        place = (_EFFECTS[one.effect], one.node.lineno)
        if place in said:  # once a line is enough
            continue
        said.add(place)
        severity = _severity(one, captured=one.root in captured)
        yield _EFFECTS[one.effect], Mark(one.node, one.what, severity)


def _answering(source: Source) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    if _NOT_INFERENCE_NAME.search(source.name):
        return
    for one in source.tree.body:
        if isinstance(one, Function) and one.name in _ANSWERS and not is_training_only(one):
            yield one, None
    for cls in source.classes.values():
        family = source.family(cls)
        bases = [ast.unparse(base) for one in family for base in one.bases]
        if any(_NOT_INFERENCE.search(one.name) for one in family):
            continue
        if any(_RUNTIMES.search(base) for base in bases):
            continue
        acts = any(source.function(name, cls) for name in _ACTS)
        for one in cls.body:
            if isinstance(one, Function) and _answers(source, one, cls, acts=acts):
                yield one, cls


def _answers(source: Source, function: Function, cls: ast.ClassDef, *, acts: bool) -> bool:
    """Whether a method runs in inference, on the device."""
    name = function.name
    if is_training_only(function) or _is_for_the_host(function):
        return False
    if name == "forward" and acts:  # which then is the loss
        return not any("loss" in word.lower() for one in function.body for word in words(one))
    if name in PER_REQUEST:
        return bool(cls.bases) or acts
    if name not in _ANSWERS:
        return False
    spec = function.args
    tensors = any(
        one.annotation is not None and "Tensor" in ast.unparse(one.annotation)
        for one in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    )
    if name in ("generate", "predict") and "torch" in words(function):
        return True
    return tensors or source.is_module(cls)


def _is_for_the_host(function: Function) -> bool:
    """Whether it gives text or arrays, and so has to wait."""
    returns = "" if function.returns is None else ast.unparse(function.returns)
    returns = re.sub(r"[Dd]ict\[str", "", returns)
    return bool(re.search(r"\bstr\b|ndarray", returns)) and "Tensor" not in returns


def _severity(one: Found, *, captured: bool) -> Severity:
    """In a capture it fails; else what folds into a graph, or may be of the host, is a note."""
    if captured:
        return "error" if one.certain else "warning"
    if one.effect == "data" or not one.certain:
        return "note"
    return "warning"


def _check(rule: str) -> Callable[[Source], Iterator[Mark]]:
    def check(source: Source) -> Iterator[Mark]:
        return (mark for name, mark in _found(source) if name == rule)

    return check


_WORDS = frozenset(
    {f"def {name}" for name in PER_REQUEST | _ANSWERS} | {"capture_begin", "cuda.graph", "graphed"}
)
_HEAD = "import torch\n\nclass Policy(torch.nn.Module):\n"


def _rule(
    name: str, title: str, severity: Severity, why: str, remedy: str, bad: str, good: str
) -> LintRule:
    return LintRule(
        name, title, severity, why, remedy, _HEAD + bad, _HEAD + good, _WORDS, _check(name)
    )


RULES = (
    _rule(
        "sync-in-forward",
        "a function that runs for each request waits for the device",
        "warning",
        "A capture forbids it. In eager execution the device idles while the host catches up.",
        "Move it to the caller, after the call, or keep the value in a tensor (torch.where "
        "for a branch).",
        bad="""\
    def forward(self, x):
        y = self.layer(x)
        torch.cuda.synchronize()
        return y
""",
        good="""\
    def forward(self, x):
        return self.layer(x)

def timed(policy, x):
    y = policy(x)
    torch.cuda.synchronize()
    return y
""",
    ),
    _rule(
        "branch-in-forward",
        "a tensor decides in Python what runs",
        "warning",
        "Python asks the device for the value and waits. A graph holds one path: each other value "
        "needs a graph of its own, or runs eagerly.",
        "Compute both and choose on the device: torch.where(condition, a, b). For a check of the "
        "inputs, do it once, before the calls.",
        bad="""\
    def forward(self, x: torch.Tensor):
        if x.isnan().any():
            x = x.nan_to_num()
        return self.layer(x)
""",
        good="""\
    def forward(self, x: torch.Tensor):
        return self.layer(x.nan_to_num())
""",
    ),
    _rule(
        "data-shape-in-forward",
        "the shape of a tensor depends on data",
        "warning",
        "The host has to read how many elements there are. A graph has fixed shapes.",
        "Use a form of fixed shape: torch.where or masked_fill for a mask, topk for nonzero, "
        "repeat_interleave(..., output_size=n).",
        bad="""\
    def forward(self, x: torch.Tensor):
        return x[x > 0].mean()
""",
        good="""\
    def forward(self, x: torch.Tensor):
        valid = x > 0
        return x.where(valid, 0).sum() / valid.sum()
""",
    ),
    _rule(
        "hidden-sync-in-forward",
        "an operator waits for the device inside",
        "warning",
        "The operator reads an error code or a size from the device, which a capture forbids.",
        "Use a form that does not wait, such as torch.linalg.inv_ex, solve_ex or cholesky_ex, or "
        "compute it once, outside of the calls.",
        bad="""\
    def forward(self, x: torch.Tensor):
        return torch.linalg.inv(x @ x.mT) @ x
""",
        good="""\
    def forward(self, x: torch.Tensor):
        return torch.linalg.inv_ex(x @ x.mT).inverse @ x
""",
    ),
    _rule(
        "host-data-in-forward",
        "each call copies the same data from the host to the device",
        "note",
        "torch.cuda.graph forbids copies from pageable memory, and gfxgraph.graphed makes such "
        "data a constant of the graph. In eager execution each call waits for the copy.",
        "Make it once (register_buffer in __init__), or on the device: torch.arange(n, "
        "device=x.device), torch.full.",
        bad="""\
    def forward(self, x: torch.Tensor):
        return x * torch.tensor([0.5, 2.0], device=x.device)
""",
        good="""\
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5, 2.0]))

    def forward(self, x: torch.Tensor):
        return x * self.scale
""",
    ),
)
