"""Finds out the shapes that an operator would return, without running it on data."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload

from ..forking import new_lock
from ..interpose.interrupts import interrupt_in
from ..interpose.patch import override
from . import capture_rules as rules
from .base import empty_as, generator_state

__all__ = ["ShapeInference"]

Resized = list[tuple[torch.Tensor, torch.Tensor]]


class ShapeInference:
    """Runs operators on fake tensors, or on zeros where an operator does not take fake tensors."""

    def __init__(self) -> None:
        # Heavy, and only needed to capture.
        from torch._subclasses.fake_tensor import FakeTensorMode

        self._mode = FakeTensorMode()

    def of(self, op: OpOverload, flat: list[Any], spec: Any) -> tuple[Any, Resized]:
        """Tensors with the shapes, strides and dtypes of the results of ``op``.

        Args:
            op: the operator.
            flat: the leaves of its ``(args, kwargs)``.
            spec: their tree.

        Returns:
            The results, and the ``out=`` arguments that the operator would resize, each with a
            tensor of the shape that it would get.

        Raises:
            CaptureForbidden: the shapes depend on data, or cannot be found out.
        """
        if op._schema.name in _WRONG_FAKES:
            return _on_zeros(op, flat, spec, None)
        results, resized = self._on_fakes(op, flat, spec)
        # Only the operator itself knows the strides that it will give to an out= tensor.
        return _on_zeros(op, flat, spec, None) if resized else (results, resized)

    def _on_fakes(self, op: OpOverload, flat: list[Any], spec: Any) -> tuple[Any, Resized]:
        from torch._subclasses import fake_tensor

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            return fake_tensor.FakeTensor(self._mode, empty_as(tensor, "meta"), tensor.device)

        with _one_at_a_time():
            shadows = [fake(v) if isinstance(v, torch.Tensor) else v for v in flat]
            args, kwargs = pytree.tree_unflatten(shadows, spec)
            try:
                results = self._mode.__torch_dispatch__(op, (), args, kwargs)
            except fake_tensor.DynamicOutputShapeException:
                raise rules.DATA_DEPENDENT_SHAPE.error(op) from None
            except fake_tensor.DataDependentOutputException:
                raise rules.HOST_READ.error(op) from None
            except Exception as error:
                if interrupt_in(error):
                    raise
                return _on_zeros(op, flat, spec, error)
        return results, _resized(flat, shadows)


def _on_zeros(
    op: OpOverload, flat: list[Any], spec: Any, fake_error: Exception | None
) -> tuple[Any, Resized]:
    """Run ``op`` itself on clones; if it fails too, raise its own error."""
    shadows = [empty_as(v, v.device).zero_() if isinstance(v, torch.Tensor) else v for v in flat]
    args, kwargs = pytree.tree_unflatten(shadows, spec)
    random_state = generator_state(torch.default_generator)
    try:
        return op(*args, **kwargs), _resized(flat, shadows)
    except Exception as error:
        if interrupt_in(error):
            raise
        if fake_error is not None and _is_missing_fake(fake_error):
            raise rules.NOT_RUNNABLE.error(f"{op} ({error})") from error
        raise error from None
    finally:
        torch.default_generator.set_state(random_state)


def _resized(arguments: list[Any], after: list[Any]) -> Resized:
    """The tensors of ``arguments`` whose shape differs in ``after``, each with its new shape."""
    return [
        (old, new)
        for old, new in zip(arguments, after, strict=True)
        if isinstance(old, torch.Tensor) and old.shape != new.shape
    ]


# Their fake implementation gives other shapes than the operator: a workspace, for instance.
_WRONG_FAKES = frozenset({"aten::mkldnn_rnn_layer"})


_fake_lock = new_lock()
_fake_log = logging.getLogger("torch._subclasses.fake_tensor")


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """One thread at a time: fake tensors keep state in globals of torch.

    Their log is silenced, since it prints a traceback for each error that we answer ourselves.
    """
    with _fake_lock, override(_fake_log, "disabled", True):
        yield


def _is_missing_fake(error: Exception) -> bool:
    from torch._subclasses import fake_tensor

    missing = (
        NotImplementedError,
        fake_tensor.UnsupportedOperatorException,
        fake_tensor.UnsupportedFakeTensorException,
    )
    return isinstance(error, missing) or "no fake impl" in str(error)
