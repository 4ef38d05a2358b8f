"""All errors of gfxgraph, under one base class.

A message names the value, the expectation and the remedy. If torch or the driver raised first, that
error is ``__cause__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .troubleshooting import section_of

__all__ = [
    "ArgumentError",
    "CaptureError",
    "CaptureForbidden",
    "CompileError",
    "DeadTensorError",
    "DeviceError",
    "GfxGraphError",
    "MemoryCapError",
    "MissingPackageError",
    "RecipeError",
    "ServerError",
    "SettingError",
    "TorchVersionError",
    "VerificationError",
    "first_paragraph",
    "let_go",
    "one_line",
]


class GfxGraphError(Exception):
    """Base class of all errors of gfxgraph."""

    @property
    def see(self) -> str:
        """The section of the docs that explains it, ``"troubleshooting.md#memory"``; or empty."""
        section = section_of(_text(self))
        return f"troubleshooting.md#{section}" if section else ""


class SettingError(GfxGraphError, ValueError):
    """An environment variable is malformed."""


class TorchVersionError(GfxGraphError, ImportError):
    """The torch that is installed is older than the oldest one that gfxgraph works with."""


class ArgumentError(GfxGraphError, TypeError):
    """An argument of a function of gfxgraph is wrong."""


class MissingPackageError(GfxGraphError, ImportError):
    """A package that is not installed is needed; the message has the command that installs it."""


class RecipeError(GfxGraphError, ValueError):
    """A file of recipes cannot be read or written, or holds what no file of ours does."""


class ServerError(GfxGraphError, OSError):
    """A server cannot listen at its address."""


class DeviceError(GfxGraphError, RuntimeError):
    """The device is not there, or does not answer."""


class CaptureError(GfxGraphError, RuntimeError):
    """A function could not be captured as a graph; ``__cause__`` holds the first error.

    Attributes:
        transient: it may work at the next call.
        rule: id of the hazard rule that explains it, where one does.
        operation: the API or the operator that caused it.
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

    @property
    def see(self) -> str:
        """The rule that explains it, ``"rules.md#print"``, or the section as for other errors."""
        return f"rules.md#{self.rule}" if self.rule else super().see


class DeadTensorError(GfxGraphError, RuntimeError):
    """A tensor that a captured graph reads from outside has lost its memory."""


class VerificationError(CaptureError):
    """A replay differs from eager execution."""


class CompileError(CaptureError):
    """A function could not be compiled, or its compiled code cannot be in a graph."""


class MemoryCapError(CaptureError):
    """A graph was not captured, since it would exceed the memory limit."""


if TYPE_CHECKING:

    class CaptureForbidden(GfxGraphError, RuntimeError):
        """The emulated device refused a call that CUDA forbids during stream capture.

        Also an instance of ``torch.AcceleratorError``, which torch raises on a GPU in the same
        place, so that code which handles the one handles the other.
        """


def __getattr__(name: str) -> Any:
    # Made when it is first asked for: its base is torch's, which linting does without.
    if name != "CaptureForbidden":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch

    # Older versions of torch, which lack it, are refused on import.
    base: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
    docs = "The emulated device refused a call that CUDA forbids during stream capture."
    made = type(name, (GfxGraphError, base), {"__doc__": docs, "__module__": __name__})
    return globals().setdefault(name, made)  # threads may ask at once


def one_line(error: BaseException) -> str:
    """Class and first line of an error."""
    text = _text(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def let_go(error: BaseException, handled: BaseException | None) -> None:
    """Drop the frames through which ``error`` came, where nobody gets to see it.

    They hold what they worked with, tensors too. Where a context manager has replaced the error,
    they hold the error as well, so that all of it would stay until a garbage collection.

    Args:
        error: what was caught; what has led to it loses its frames as well.
        handled: what was handled around all this, which is the program's:
            ``sys.exc_info()[1]`` of before.
    """
    todo: list[BaseException | None] = [error]
    seen = {id(None), id(handled)}
    for found in todo:  # which grows meanwhile
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            BaseException.with_traceback(found, None)  # which a frozen class cannot forbid
            todo += [found.__cause__, found.__context__]


def first_paragraph(error: BaseException, length: int | None = None) -> str:
    """Class and first paragraph of an error, on one line, cut to ``length`` characters of text.

    The first line of Dynamo's errors does not say what happened; what follows the first paragraph
    is about how to debug the compiler.
    """
    text = " ".join(_text(error).strip().partition("\n\n")[0].split())
    return f"{type(error).__name__}: {text[:length]}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:  # the program's own class
        return f"str() of it raises {type(another).__name__}"
