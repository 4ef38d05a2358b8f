"""The leaves of a tree of arguments by name: ``x``, ``batch["ids"]``, ``past[0][1]``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

from ..graph.lift import Lifting
from ..interpose.signatures import signature_of
from .signature import Const, Spec

__all__ = ["named", "named_arguments", "structure"]


def named_arguments(fn: Callable[..., Any], spec: Spec) -> Iterator[tuple[str, Const | None]]:
    """Each leaf of a call in order, by the name of its parameter in ``fn``.

    Args:
        fn: the function that is called.
        spec: of ``(args, kwargs)``.
    """
    if isinstance(fn, Lifting):
        entry, *of_call = spec[3][0][3]
        for slot, child in zip(fn.lift.read, entry[3], strict=True):
            yield from named(child, slot.path)
        yield from named_arguments(fn.__wrapped__, ("sequence", tuple, None, tuple(of_call)))
        return
    args, kwargs = spec[3]
    for name, child in zip(_parameters(fn, len(args[3])), args[3], strict=True):
        yield from named(child, name)
    for name, child in zip(kwargs[2], kwargs[3], strict=True):
        yield from named(child, name)


def named(spec: Spec, name: str) -> Iterator[tuple[str, Const | None]]:
    """Each leaf of ``spec`` by the expression that gives it: ``out["logits"][0]``.

    A tensor has ``None``, what is none its constant. A list and a tuple are named alike, as are the
    kinds of dict.
    """
    kind = spec[0]
    if kind == "again":
        return
    if kind in ("tensor", "const"):
        yield name, (spec[1] if kind == "const" else None)
        return
    cls, keys, children = spec[1:4]
    if kind == "namedtuple":
        parts = [f".{field}" for field in cls._fields]
    elif kind in ("dataclass", "namespace", "slice"):
        parts = [f".{field}" for field in keys]
    elif kind == "object":
        parts = [f"[{key!r}]" for key in keys[0]] + [f".{key}" for key in (*keys[1], *keys[2])]
    elif kind == "read" and spec[4][0] != "dict":
        parts = [f".{key}" for key in keys]
    elif kind in ("dict", "mapping", "fields", "read"):
        parts = [f"[{json.dumps(k) if type(k) is str else repr(k)}]" for k in keys]
    else:
        parts = [f"[{n}]" for n in range(len(children))]
    for part, child in zip(parts, children, strict=True):
        yield from named(child, name + part)


def structure(spec: Spec) -> str:
    """The containers of ``spec`` by their classes: ``list[tensor, dict[tensor]]``."""
    if spec[0] in ("tensor", "const", "again"):
        return "tensor" if spec[0] == "tensor" else "value"
    return f"{spec[1].__qualname__}[{', '.join(map(structure, spec[3]))}]"


def _parameters(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of ``count`` positional arguments."""
    signature = signature_of(fn)
    parameters = [] if signature is None else signature.parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in kinds][:count]
    rest = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "args")
    return names + [f"{rest}[{n}]" for n in range(count - len(names))]
