"""Makes a vendor's function an operator of torch, so that Dynamo does not break at it."""

from __future__ import annotations

import functools
import inspect
import logging
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Number, Real
from typing import Any

import torch

from ..errors import ArgumentError
from ..forking import new_lock
from ..stats import log

__all__ = ["vendor_op"]

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_OWN_NAME = re.compile(r"^\s*[\w:.]+(?=\()")  # of a schema, which may have one in torch


_lock = new_lock()
# By its name: what an operator was made of, and the operator.
_registered: dict[str, tuple[dict[str, object], Callable[..., Any]]] = {}


def vendor_op(
    fn: Callable[..., Any],
    *,
    name: str,
    fake: Callable[..., Any] | None = None,
    mutates: Iterable[str] = (),
    schema: str | None = None,
) -> Callable[..., Any]:
    """An operator of torch that calls ``fn``; call it in place of ``fn``.

    Dynamo cannot trace a function that calls a compiled extension, and breaks the graph there. It
    does not trace into an operator.

    .. code-block:: python

        attention = gfxgraph.vendor_op(vendor.attention, name="vendor::attention")

    Args:
        fn: the function: it takes and returns what an operator can (tensors, numbers, strings,
            dtypes, devices, lists of them), says so in type hints, and returns new tensors, none
            that shares memory with an argument. For inference: it gets no gradient.
        name: ``"namespace::name"``, which must be free in this process.
        fake: a function of the same arguments that returns empty tensors as ``fn`` would: shapes,
            dtypes, strides, device. By default we assume that ``fn`` returns nothing, or one tensor
            like its first tensor argument (as ``torch.empty_like`` makes it). The assumption is
            logged, and compared with the real result in each call.
        mutates: names of the tensor arguments that ``fn`` writes to; not needed with a ``schema``
            that marks them. A write by torch to another argument is found in the call, except with
            inference tensors. A write past torch is not found.
        schema: torch's own notation, for a function without type hints:
            ``"(Tensor q, Tensor(a!) out, float scale=1.0) -> Tensor"``. A name before it is
            ignored.

    Returns:
        The operator; with the same arguments again, the same operator.

    Raises:
        ArgumentError: the name has no namespace or is taken, hints are missing or of a kind that
            an operator cannot take, it returns nothing and ``mutates`` is empty, or no ``fake`` is
            given and none can be inferred. From calls of the operator: ``fn`` wrote to an argument
            that ``mutates`` does not name, or a result shares memory with an argument or another
            result, or is not what the hints, the schema or the inferred ``fake`` say.

    Source: ``torch.library.custom_op`` and ``torch.library.infer_schema``, which do the work.
    """
    if not callable(fn):
        raise ArgumentError(f"vendor_op: expected a function, not {type(fn).__name__}.")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(
            f"vendor_op(name={name!r}): expected 'namespace::name', such as "
            f"'vendor::{getattr(fn, '__name__', 'attention')}'."
        )
    if fake is not None and not callable(fake):
        raise ArgumentError(f"vendor_op(fake=...): expected a function, not {type(fake).__name__}.")
    try:
        written = frozenset((mutates,) if isinstance(mutates, str) else mutates)
    except TypeError as error:
        raise ArgumentError(
            f"vendor_op(mutates={mutates!r}): expected names of arguments, such as ('out',)."
        ) from error
    with _lock:
        asked: dict[str, object] = dict(fn=fn, fake=fake, mutates=written, schema=schema)
        if name in _registered:
            known, op = _registered[name]
            if known == asked:
                return op
            raise ArgumentError(f"vendor_op(name={name!r}): {_differs(known, asked)}")
        namespace, _, short = name.partition("::")
        if hasattr(getattr(torch.ops, namespace), short):
            raise ArgumentError(
                f"vendor_op(name={name!r}): torch has an operator of that name already, which is "
                "not ours. Choose another name."
            )
        op = _register(fn, name, fake, written, schema)
        _registered[name] = asked, op
    return op


def _register(
    fn: Callable[..., Any],
    name: str,
    fake: Callable[..., Any] | None,
    mutates: frozenset[str],
    schema: str | None,
) -> Callable[..., Any]:
    if schema is None:
        text = _schema_of_hints(fn, name, frozenset())
        _refuse_unknown(name, mutates, _parsed(name, text))
        text = _schema_of_hints(fn, name, mutates)
    else:
        text = _OWN_NAME.sub("", str(schema))
    parsed = _parsed(name, text)
    _refuse_unknown(name, mutates, parsed)
    if mutates and mutates != _written(parsed):
        raise ArgumentError(
            f"vendor_op(name={name!r}): mutates={sorted(mutates)} but the schema {text!r} marks "
            f"{sorted(_written(parsed))}. Mark written arguments with (a!), (b!) in the schema, "
            "and leave out mutates=."
        )
    if not parsed.returns and not _written(parsed):
        raise ArgumentError(
            f"vendor_op(name={name!r}): it returns nothing and writes nothing, so compiled code "
            "would leave it out. Name the arguments that it writes in mutates=, or return a new "
            "tensor."
        )
    inferred = _inferred(parsed, name) if fake is None else None

    @functools.wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = _bound(parsed, args, kwargs)
        with _no_other_writes(name, given, _written(parsed)):
            result = fn(*args, **kwargs)
        _refuse_aliases(name, given, result)
        if inferred is not None:
            _refuse_another(name, inferred, given, result)
        else:
            _refuse_kinds(parsed, result)
        return result

    try:
        op = torch.library.custom_op(name, checked, mutates_args=_written(parsed), schema=text)
    except (RuntimeError, ValueError) as error:
        raise ArgumentError(f"vendor_op(name={name!r}): {error}") from error
    if fake is not None:
        op.register_fake(fake)
    else:

        @op.register_fake
        def _(*args: Any, **kwargs: Any) -> torch.Tensor | None:
            return torch.empty_like(_bound(parsed, args, kwargs)[inferred]) if inferred else None

    return op


def _parsed(name: str, text: str) -> Any:
    try:
        return torch._C.parse_schema(f"{name}{text}")
    except RuntimeError as error:
        raise ArgumentError(
            f"vendor_op(name={name!r}): schema {text!r}: {error}\n"
            "Expected torch's form, such as '(Tensor q, float scale=1.0) -> Tensor'."
        ) from error


def _refuse_unknown(name: str, mutates: frozenset[str], schema: Any) -> None:
    tensors = [a.name for a in schema.arguments if "Tensor" in str(a.type)]
    unknown = sorted(map(str, mutates.difference(tensors)))
    if unknown:
        raise ArgumentError(
            f"vendor_op(name={name!r}): mutates= names {', '.join(map(repr, unknown))}, but can "
            f"name only its tensor arguments: {', '.join(map(repr, tensors)) or 'it has none'}."
        )


def _schema_of_hints(fn: Callable[..., Any], name: str, mutates: frozenset[str]) -> str:
    advice = "Add type hints, wrap it in a function that has them, or give schema=."
    try:
        signature = inspect.signature(fn)
        hints = typing.get_type_hints(fn.func if isinstance(fn, functools.partial) else fn)
    except (TypeError, ValueError, NameError) as error:
        raise ArgumentError(
            f"vendor_op(name={name!r}): the type hints of {fn!r} cannot be read: "
            f"{str(error).rstrip('.')}. {advice}"
        ) from error

    def prototype() -> None:
        """Has the hints as types; torch before 2.8 cannot resolve all that are strings."""

    parameters = [
        parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    returns = hints.get("return", signature.return_annotation)
    if returns is type(None):
        returns = None
    prototype.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=returns
    )
    try:
        return torch.library.infer_schema(prototype, mutates_args=mutates)
    except ValueError as error:
        raise ArgumentError(f"vendor_op(name={name!r}): {error}. {advice}") from error


def _inferred(schema: Any, name: str) -> str:
    """The argument that the only result is like; ``""`` where there is no result."""
    if not schema.returns:
        return ""
    tensors = [argument.name for argument in schema.arguments if str(argument.type) == "Tensor"]
    if [str(result.type) for result in schema.returns] != ["Tensor"] or not tensors:
        raise ArgumentError(
            f"vendor_op(name={name!r}): its result cannot be inferred from {schema}. Give fake=, "
            "a function of the same arguments that returns empty tensors like the results."
        )
    log(logging.WARNING, "fake_inferred", operator=name, result=f"empty_like({tensors[0]})")
    return str(tensors[0])


def _written(schema: Any) -> frozenset[str]:
    """The arguments that the schema marks as written to."""
    return frozenset(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)


@contextmanager
def _no_other_writes(name: str, given: dict[str, Any], written: frozenset[str]) -> Iterator[None]:
    """Raise where the function writes to an argument that is not among ``written``."""
    # Views of one tensor share their version, so leave out tensors that share memory with a written
    # one.
    storages = {t.untyped_storage()._cdata for w in written for t in _tensors(given.get(w))}
    before = [
        (argument, tensor, tensor._version)
        for argument, value in given.items()
        for tensor in _tensors(value)
        if not tensor.is_inference() and tensor.untyped_storage()._cdata not in storages
    ]
    # In compiled code and in operators that write, torch does not count otherwise.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        yield
    for argument, tensor, version in before:
        if tensor._version != version:
            raise ArgumentError(
                f"{name} wrote to its argument {argument!r}, which mutates= does not name: "
                f"compiled code would be wrong. Give mutates={sorted({*written, argument})!r}, or "
                "write to a clone."
            )


def _bound(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The values of the schema's arguments by name; those left at their default are left out."""
    names = [argument.name for argument in schema.arguments]
    left = {name: kwargs[name] for name in names[len(args) :] if name in kwargs}
    return dict(zip(names, args, strict=False)) | left


def _refuse_aliases(name: str, given: dict[str, Any], result: Any) -> None:
    owners: dict[int, str] = {}
    for argument, value in given.items():
        for tensor in _tensors(value):
            owners[tensor.untyped_storage()._cdata] = f"its argument {argument!r}"
    for tensor in _tensors(result):
        storage = tensor.untyped_storage()._cdata
        if storage in owners:
            raise ArgumentError(
                f"{name}: a result shares memory with {owners[storage]}, which an operator must "
                "not. Return a clone; if the function writes to an argument, name it in mutates= "
                "and return nothing."
            )
        owners[storage] = "another result"


def _refuse_another(name: str, inferred: str, given: dict[str, Any], result: Any) -> None:
    """Compare the results with those that the inferred fake announced."""
    if not inferred:
        expected, came = "None", "None" if result is None else f"{type(result).__name__}"
    else:
        # The strides of empty_like, without allocating on the device.
        first = given[inferred]
        meta = torch.empty_like(first, device="meta")
        expected = _described(meta, first.device)
        came = (
            _described(result, result.device)
            if isinstance(result, torch.Tensor)
            else type(result).__name__
        )
    if came != expected:
        raise ArgumentError(
            f"{name} returned {came}, but without fake= it was taken to return {expected}"
            f"{f', like its argument {inferred!r}' if inferred else ''}. Give fake=, a function of "
            "the same arguments that returns an empty tensor like the result."
        )


_KINDS: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "List[Tensor]": (list, tuple),
    "int": Integral,
    "float": Real,
    "number": Number,
}


def _refuse_kinds(schema: Any, result: Any) -> None:
    """Compare the results with the schema; torch's own errors there come from C++."""
    kinds = [str(returned.type) for returned in schema.returns]
    classes = [_KINDS.get(kind, object) for kind in kinds]
    if len(kinds) > 1:
        right = isinstance(result, (list, tuple)) and len(result) == len(kinds)
        right = right and all(map(isinstance, result, classes))
    else:
        right = isinstance(result, classes[0]) if classes else result is None
    if not right:
        came = type(result).__name__
        if isinstance(result, (list, tuple)):
            came += f" of {', '.join(type(one).__name__ for one in result) or 'nothing'}"
        raise ArgumentError(
            f"{schema.name} returned {came}, but its type hints or its schema say "
            f"{', '.join(kinds) or 'nothing'}. Correct one or the other."
        )


def _described(tensor: torch.Tensor, device: torch.device) -> str:
    return f"{tensor.dtype}{[*tensor.shape]} with strides {[*tensor.stride()]} on {device}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _differs(known: dict[str, object], asked: dict[str, object]) -> str:
    what = [
        f"{part}={known[part]!r}, now {part}={new!r}"
        for part, new in asked.items()
        if known[part] != new
    ]
    return f"registered before with {'; '.join(what)}. Choose another name."
