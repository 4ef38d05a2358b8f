"""What the data of an expression is: on the device, on the host, or plain Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

__all__ = [
    "FACTORIES",
    "FACTS",
    "FROM_DATA",
    "HIDDEN",
    "HOST",
    "MASKS",
    "NOTHING",
    "PARTS",
    "PYTHON",
    "READS",
    "SHAPES",
    "TENSOR",
    "TORCH_ONLY",
    "UNKNOWN",
    "Value",
    "merged",
    "of_annotation",
]

Kind: TypeAlias = Literal["tensor", "host", "python", "unknown", "nothing"]


@dataclass(frozen=True)
class Value:
    """What is known of an expression.

    Attributes:
        kind: ``"tensor"``: a tensor where the inputs of the model are; ``"host"``: a tensor or an
            array on the host; ``"python"``: a number, text or shape; ``"nothing"``: ``None``.
        mask: it holds truth values.
        many: a tuple or list of such values.
    """

    kind: Kind = "unknown"
    mask: bool = False
    many: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor on the device."""
        return self.kind == "tensor" and not self.many

    @property
    def is_host(self) -> bool:
        """Whether it is one tensor or array on the host."""
        return self.kind == "host" and not self.many

    @property
    def one(self) -> Value:
        """One of its items."""
        return replace(self, many=False)

    @property
    def several(self) -> Value:
        """A tuple of such values."""
        return replace(self, many=True)


UNKNOWN, TENSOR, HOST = Value(), Value("tensor"), Value("host")
PYTHON, NOTHING = Value("python"), Value("nothing")


def merged(values: Iterable[Value]) -> Value:
    """What a name holds that may hold any of these; ``None`` beside a value is not counted."""
    found = {value for value in values if value.kind != "nothing"}
    if len(found) == 1:
        return found.pop()
    if (
        found
        and all(value.kind == "tensor" for value in found)
        and len({v.many for v in found}) < 2
    ):
        return replace(found.pop(), mask=False)
    return UNKNOWN if found else NOTHING


_TENSOR = re.compile(r"\b(?:\w*Tensor)\b")
_SEVERAL = re.compile(r"\b(?:[Ll]ist|[Tt]uple|Sequence|Iterable)\[")
_OTHER = re.compile(
    r"\b(?:int|float|bool|str|ndarray|Image|[Dd]ict|Mapping|Callable|Any|BlockMask|Cache|Tensor[A-Z]\w*)\b"
)
_PLAIN = re.compile(r"(?:Optional\[)?(?:int|float|bool|str|bytes)\b[\]| None]*$")


def of_annotation(annotation: ast.expr | None) -> Value:
    """The value that an annotation promises."""
    if annotation is None:
        return UNKNOWN
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    if not isinstance(text, str):
        return NOTHING if text is None else UNKNOWN
    text = re.sub(r"\"[^\"]*\"|'[^']*'", "", text)  # the axes of jaxtyping
    if _PLAIN.match(text):
        return PYTHON
    if "ndarray" in text and not _TENSOR.search(text):
        return HOST
    if _TENSOR.search(text) and not _OTHER.search(text):
        return TENSOR.several if _SEVERAL.search(text) else TENSOR
    return UNKNOWN


READS = {"cpu", "item", "numpy", "tolist"}
"""Methods of tensors that wait for the device and give its data to the host."""

FACTORIES = {
    "BoolTensor", "FloatTensor", "IntTensor", "LongTensor", "Tensor", "arange", "as_tensor",
    "asarray", "bartlett_window", "blackman_window", "empty", "empty_strided", "eye",
    "from_dlpack", "from_numpy", "frombuffer", "full", "hamming_window", "hann_window",
    "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm", "scalar_tensor",
    "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip
"""Functions of torch that make a tensor on the host unless they are given a device."""

FROM_DATA = {"as_tensor", "asarray", "scalar_tensor", "tensor"}
"""Those of them that copy data of the host."""

SHAPES = {
    "argwhere", "masked_select", "nonzero", "unique", "unique_consecutive", "unique_dim",
}  # fmt: skip
"""Functions and methods whose result has a shape that depends on data."""

HIDDEN = {
    "allclose", "bincount", "cholesky", "ctc_loss", "eig", "eigh", "eigvals", "eigvalsh", "equal",
    "inv", "inverse", "lstsq", "matrix_exp", "matrix_rank", "pinv", "pinverse", "solve", "svd",
    "svdvals",
}  # fmt: skip
"""Those that wait for the device inside (``docs/operators.md``)."""

MASKS = {
    "all", "any", "bool", "eq", "ge", "gt", "isclose", "isfinite", "isin", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "le", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "ne", "signbit",
}  # fmt: skip
"""Those that give truth values."""

FACTS = {
    "__class__", "__len__", "data_ptr", "device", "dim", "dtype", "element_size", "get_device",
    "grad_fn", "is_complex", "is_contiguous", "is_cpu", "is_cuda", "is_floating_point", "is_leaf",
    "is_meta", "is_quantized", "is_sparse", "itemsize", "layout", "names", "nbytes", "ndim",
    "ndimension", "nelement", "numel", "requires_grad", "shape", "size", "storage_offset",
    "stride", "type_", "untyped_storage",
}  # fmt: skip
"""Attributes and methods of tensors that the host knows without asking the device."""

PARTS = {
    "chunk", "max", "min", "mode", "sort", "split", "tensor_split", "topk", "unbind",
    "unsafe_chunk", "unsafe_split",
}  # fmt: skip
"""Those that may give several tensors."""

TORCH_ONLY = {
    "bfloat16", "chunk", "contiguous", "cuda", "detach", "device", "expand", "expand_as", "float",
    "gather", "half", "index_select", "is_cuda", "log_softmax", "long", "mT", "masked_fill",
    "masked_fill_", "masked_select", "narrow", "new_empty", "new_full", "new_ones", "new_tensor",
    "new_zeros", "numel", "permute", "repeat_interleave", "scatter", "scatter_", "sigmoid",
    "softmax", "to", "type_as", "unbind", "unfold", "unsqueeze", "unsqueeze_", "view", "view_as",
}  # fmt: skip
"""Attributes that show that a name holds a tensor of torch."""
