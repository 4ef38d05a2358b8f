"""What a probe runs on, and how it proves what it says: by values that are equal."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import torch

from ...device import current_device
from ...errors import DeviceError, one_line
from .cuda import Cuda

__all__ = ["PROBES", "Absent", "Here", "Probe", "Unprobed", "Wrong", "probe"]


class Absent(Exception):
    """The machine does not have it; the message says why."""


class Unprobed(Exception):
    """Whether the machine has it cannot be told here; the message says what is missing."""


class Wrong(Exception):
    """A graph gave other values than it had to."""


class Here:
    """This machine, for one probe.

    Attributes:
        saw: a sentence for each comparison that held.
        functions: names of functions of HIP's runtime that the capability needs.
    """

    def __init__(self, functions: tuple[str, ...] = ()) -> None:
        self.saw: list[str] = []
        self.functions = functions

    @property
    def gfxgraph(self) -> Any:
        """The package as its users import it: a probe is a program of theirs."""
        return sys.modules["gfxgraph"]

    @property
    def device(self) -> str:
        """Where tensors go: ``"cuda"``, or ``"cpu"`` where graphs are emulated."""
        return current_device().type

    @cached_property
    def cuda(self) -> Cuda:
        """The CUDA driver.

        Raises:
            Absent: there is no GPU, or HIP's runtime lacks a function.
            Unprobed: it is HIP, or cuda-bindings is not installed.
        """
        if self.device == "cpu":
            raise Absent("there is no GPU here, and the emulated device has no driver")
        if torch.version.hip:
            self._ask_hip()
        try:
            return Cuda()
        except ImportError as error:
            major = (torch.version.cuda or "12").split(".")[0]
            raise Unprobed(
                f"the driver is asked with cuda-bindings, which is not installed: pip install "
                f"cuda-bindings~={major}.0"
            ) from error

    def _ask_hip(self) -> None:
        """Raise what is known of HIP: a function that its library lacks is certain, no more."""
        library = None
        for name in ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"):
            with suppress(OSError):  # only the one that torch has loaded; no second copy
                library = library or ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        if library is None:
            raise Unprobed("torch has loaded no libamdhip64 that could be asked")
        missing = [name for name in self.functions if not hasattr(library, name)]
        if not self.functions or missing:
            what = ", ".join(missing) or "such a function"
            raise Absent(f"HIP's runtime that torch has loaded lacks {what}")
        names = ", ".join(self.functions)
        raise Unprobed(f"HIP's runtime has {names}; no probe of it exists for HIP")

    @contextmanager
    def a_gpu(self) -> Iterator[None]:
        """Code that says ``cuda`` runs: on the GPU, or on the emulated device.

        Raises:
            Absent: there is no GPU, and this build of torch cannot emulate one.
        """
        if self.device == "cuda":
            yield
            return
        try:
            self.gfxgraph.enable(emulate=True)
        except DeviceError as error:
            raise Absent(one_line(error)) from error
        try:
            yield
        except DeviceError as error:  # what the emulated device has not
            raise Absent(one_line(error)) from error
        finally:
            self.gfxgraph.disable()

    def equal(self, what: str, got: Any, expected: Any) -> None:
        """Prove that ``what`` is as expected.

        Args:
            what: begins the sentence that the report shows, such as ``"three launches give"``.
            got: a tensor, or plain data.
            expected: the same. Numbers of tensors may differ by 1e-4 of their size.

        Raises:
            Wrong: they differ.
        """
        got, expected = _plain(got), _plain(expected)
        if not _alike(got, expected):
            raise Wrong(f"{what} {_short(got)}, expected {_short(expected)}")
        self.saw.append(f"{what} {_short(got)}")

    def refused(
        self, what: str, call: Callable[[], Any], errors: type[BaseException] = RuntimeError
    ) -> None:
        """Prove that a call raises.

        Args:
            what: begins the sentence, such as ``"a read on the host in a capture is"``.
            call: the call.
            errors: what it may raise; default ``RuntimeError``.

        Raises:
            Wrong: it does not raise.
        """
        try:
            call()
        except errors:
            self.saw.append(f"{what} refused")
            return
        raise Wrong(f"{what} not refused")


Probe = Callable[[Here], None]
PROBES: dict[str, Probe] = {}
"""Name -> probe, filled by :func:`probe`."""


def probe(function: Probe) -> Probe:
    """Enter a function under its name."""
    PROBES[function.__name__] = function
    return function


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    return list(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return bool(abs(a - b) <= 1e-4 * max(1.0, abs(a), abs(b)))
    return type(a) is type(b) and bool(a == b)


def _short(value: Any) -> str:
    if isinstance(value, list):
        some = ", ".join(map(_short, value[:4]))
        return f"[{some}, ...]" if len(value) > 4 else f"[{some}]"
    return f"{value:.5g}" if isinstance(value, float) else str(value)[:60]
