"""Every error that gfxgraph raises, under one base class.

A message says what came in, what was expected and what to do. Where torch or the driver raised
first, that error is kept as ``__cause__``.
"""

from __future__ import annotations

import torch

__all__ = [
    "ArgumentError",
    "CaptureError",
    "CaptureForbidden",
    "CompileError",
    "DeadTensorError",
    "DeviceError",
    "GfxGraphError",
    "MemoryCapError",
    "SettingError",
    "TorchVersionError",
    "VerificationError",
    "one_line",
]


class GfxGraphError(Exception):
    """Base class of all errors of gfxgraph."""


class SettingError(GfxGraphError, ValueError):
    """An environment variable holds a value that it does not take."""


class TorchVersionError(GfxGraphError, ImportError):
    """The torch that is installed is older than the oldest one that gfxgraph works with."""


class ArgumentError(GfxGraphError, TypeError):
    """An argument of one of our functions is not of the kind that it takes."""


class DeviceError(GfxGraphError, RuntimeError):
    """The device is not there, or does not answer."""


class CaptureError(GfxGraphError, RuntimeError):
    """A function could not be captured as a graph; ``__cause__`` holds the first error.

    Attributes:
        transient: it may work at the next call.
        rule: id of the hazard rule that explains it, where one does.
        operation: the API or the operator that is the reason.
        file: the user's file.
        line: the line in it, from 1; 0 where it is not known.
        remedy: the code to write instead.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient
        self.rule: str | None = None
        self.operation: str | None = None
        self.file: str | None = None
        self.line = 0
        self.remedy = ""


class DeadTensorError(GfxGraphError, RuntimeError):
    """A tensor that a captured graph reads from outside has lost its memory."""


class VerificationError(CaptureError):
    """A replay did not give what eager execution gives."""


class CompileError(CaptureError):
    """A function could not be compiled, or what is compiled of it cannot be in a graph."""


class MemoryCapError(CaptureError):
    """A graph was not captured, since it would take more memory than is allowed."""


# What torch raises where CUDA refuses a call. An older torch, which has no such class, is refused
# with an error of this file.
_AcceleratorError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)


class CaptureForbidden(GfxGraphError, _AcceleratorError):  # type: ignore[misc, valid-type]
    """What CUDA forbids during stream capture was attempted on the emulated device.

    Also an instance of ``torch.AcceleratorError``, which torch raises on a GPU in the same place,
    so that code which handles the one handles the other.
    """


def one_line(error: BaseException) -> str:
    """Class and first line of an error."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
