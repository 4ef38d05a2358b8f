"""Settings of Python, NumPy and of texts that a function may change, and that no replay changes.

Not the filters of warnings and the limit of recursion: libraries and other threads change them at
any time, when they are imported or compile.
"""

from __future__ import annotations

from typing import Any

from torch import _tensor_str

from ..interpose.modules import loaded
from .heard import options_of_numpy, options_of_torch
from .torch_settings import Setting

__all__ = ["PYTHON_SETTINGS"]

# Not the flags: each inexact operation sets one.
_OF_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimal() -> Any:
    module = loaded("decimal")
    if module is None:
        return None
    context = module.getcontext()
    traps = tuple(sorted((signal.__name__, bool(on)) for signal, on in context.traps.items()))
    return tuple(getattr(context, name) for name in _OF_DECIMAL), traps


def _set_decimal(value: Any) -> None:
    module = loaded("decimal")
    if value is None or module is None:
        return
    context, traps = module.getcontext(), dict(value[1])
    for name, number in zip(_OF_DECIMAL, value[0], strict=True):
        setattr(context, name, number)
    for signal in context.traps:
        context.traps[signal] = traps[signal.__name__]


def _numpy() -> Any:
    numpy = loaded("numpy")
    return None if numpy is None else tuple(sorted(numpy.geterr().items()))


def _set_numpy(value: Any) -> None:
    numpy = loaded("numpy")
    if value is not None and numpy is not None:
        numpy.seterr(**dict(value))


def _options_of_numpy() -> Any:
    return None if loaded("numpy") is None else options_of_numpy()


def _set_options_of_numpy(value: Any) -> None:
    numpy = loaded("numpy")
    if value is not None and numpy is not None:
        numpy.set_printoptions(**dict(value))


def _set_options_of_torch(value: Any) -> None:
    vars(_tensor_str.PRINT_OPTS).update(value)


PYTHON_SETTINGS = [
    Setting("decimal.getcontext()", _decimal, _set_decimal, of_thread=True),
    Setting("numpy.seterr()", _numpy, _set_numpy, of_thread=True),
    Setting("numpy.set_printoptions()", _options_of_numpy, _set_options_of_numpy, of_thread=True),
    Setting("torch.set_printoptions()", options_of_torch, _set_options_of_torch),
]
