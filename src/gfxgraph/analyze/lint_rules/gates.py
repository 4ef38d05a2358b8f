"""Which branches run in inference on a GPU, as far as the words of a condition say."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from types import MappingProxyType

from .source import blocks, children

__all__ = ["NOT_DEVICE", "is_training_only", "sides", "words"]

_TRAINING = re.compile(
    r"(?:^|_)(?:training|is_train|train|is_training|trainable|compute_loss|return_loss|calc_loss|"
    r"with_loss|losses?|backprop|grad_enabled|is_grad_enabled|requires_grad)$|^TRAIN"
)
_TARGETS = re.compile(
    r"^(?:labels?|targets?|gts?|y_true|ground_truth|gt_\w+|\w+_gt|\w*(?<!class_)(?<!point_)labels|"
    r"num_items_in_batch|start_positions|end_positions|bool_masked_pos|return_loss)$"
)
_EXPORT = re.compile(
    r"^_?(?:is_tracing|is_scripting|is_in_onnx_export|is_exporting|export\w*|exporting|"
    r"tracing|onnx\w*|is_torchdynamo_compiling|is_dynamo_compiling|is_compiling|is_torch_fx_proxy|"
    r"is_jit_tracing|jit|fx)$"
)
_RUNTIMES = re.compile(
    r"^(?:engine|trt|tensorrt|openvino|xml|coreml|saved_model|pb|tflite|edgetpu|paddle|ncnn|mnn|"
    r"rknn|imx|executorch|axelera|triton_server|dnn|tfjs|ort|session|mlx|tf|jax)$"
)
_ASIDE = re.compile(
    r"(?:^|_)(?:debug\w*|verbose|isEnabledFor|profil\w*|visuali[sz]e\w*|viz|log_\w+|streamer|"
    r"are_deterministic_algorithms_enabled|check_nan|sanity\w*|validate_args)$"
)
_OUTPUT = re.compile(r"^(?:np|numpy|pil|return_numpy|convert_to_numpy|to_numpy|as_numpy|to_list)$")
NOT_DEVICE = re.compile(
    r"(?:^|_)(?:mps|npu|xpu|xla|tpu|hpu|mlu|musa|neuron|ipu|gaudi)(?:$|_)|is_mps|is_npu"
)
"""Words of devices that have no graphs of CUDA or HIP."""
_INFERENCE = re.compile(r"^(?:inference|is_inference|inference_mode|eval_mode|deploy)$")


def words(node: ast.AST) -> set[str]:
    """The names, attributes and strings in an expression."""
    found: set[str] = set()
    todo = [node]
    while todo:
        one = todo.pop()
        match one:
            case ast.Name(id=name):
                found.add(name)
            case ast.Attribute(attr=name):
                found.add(name)
            case ast.Constant(value=str(name)):
                found.add(name)
        todo += children(one)
    return found


def sides(
    test: ast.expr, flags: Mapping[str, tuple[bool, bool]] = MappingProxyType({})
) -> tuple[bool, bool]:
    """Whether the body runs in inference on a GPU, and whether the code without it does.

    Args:
        test: the condition.
        flags: the same about variables that were set to a condition.
    """
    match test:
        case ast.Name(id=name) if name in flags:
            return flags[name]
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            body, other = sides(inner, flags)
            return other, body
        case ast.BoolOp(op=ast.And(), values=values):
            found = [sides(one, flags) for one in values]
            return all(body for body, _ in found), any(other for _, other in found)
        case ast.BoolOp(op=ast.Or(), values=values):
            found = [sides(one, flags) for one in values]
            return any(body for body, _ in found), all(other for _, other in found)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _of_comparison(left, op, right)
        case ast.NamedExpr(value=value):
            return sides(value, flags)
    return _of_words(words(test))


def _of_comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> tuple[bool, bool]:
    same = isinstance(op, (ast.Eq, ast.Is, ast.In))
    found = words(left) | words(right)
    about = found - {"type", "device"}
    if "cuda" in about and isinstance(op, (ast.Eq, ast.In, ast.NotEq, ast.NotIn)):
        body = True, False
    elif "cpu" in about or any(map(NOT_DEVICE.search, about)):
        body = False, True
    elif isinstance(right, ast.Constant) and right.value in (None, False):
        body = _of_words(found)  # of "is not None", which is as the name alone
        same = not same
    else:
        body = _of_words(found)
    return body if same else (body[1], body[0])


def _of_words(found: set[str]) -> tuple[bool, bool]:
    if any("capturing" in word for word in found):
        return False, False  # the author knows
    if any(map(_INFERENCE.search, found)) or "is_cuda" in found:
        return True, False
    skipped = (_TRAINING, _TARGETS, _EXPORT, _RUNTIMES, _ASIDE, _OUTPUT, NOT_DEVICE)
    if any(pattern.search(word) for word in found for pattern in skipped) or "is_cpu" in found:
        return False, True
    return True, True


_LOSS = re.compile(r"loss", re.IGNORECASE)
_REQUIRED = re.compile(r"^(?:labels?|targets?|gts?|y_true|ground_truth|gt_\w+|\w+_gt)$")


def is_training_only(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is given what a model should have said, or gives a loss."""
    given = function.args
    required = [*given.posonlyargs, *given.args]
    required = required[: len(required) - len(given.defaults)]
    if any(_REQUIRED.match(one.arg) for one in required):
        return True
    returned: list[ast.expr] = []
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            returned.append(node.value)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            todo += blocks(node)
    gives = [_gives_loss(value) for value in returned if not isinstance(value, ast.Call)]
    return bool(gives) and all(gives)


def _gives_loss(value: ast.expr) -> bool:
    items = value.elts if isinstance(value, ast.Tuple) else [value]
    names = (getattr(one, "id", "") or getattr(one, "attr", "") for one in items)
    return any(_LOSS.search(name) for name in names)
