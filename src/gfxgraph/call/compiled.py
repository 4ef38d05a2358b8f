"""A function through ``torch.compile``, so that what is compiled can become part of a graph."""

from __future__ import annotations

import functools
import sys
import time
import types
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..compiling.inductor import inductor_settings
from ..compiling.tuning import Settings, timed_without_gaps
from ..device import current_device
from ..errors import ArgumentError, CompileError, first_paragraph
from ..interpose.interrupts import interrupt_in
from ..interpose.modules import import_whole
from ..record.interceptor import current_interceptor

__all__ = ["Compile", "Compiled"]

_CUDAGRAPHS = "triton.cudagraphs"

# The limit of recursion that Inductor sets, if it is lower.
_DEPTH_OF_INDUCTOR = 2000

# Seconds that a search may take by default.
_SECONDS = 600.0


@dataclass(frozen=True)
class Compile:
    """How to compile, checked; made by :meth:`of`.

    Attributes:
        arguments: of ``torch.compile``, as the user gave them.
        measure: whether to keep compiled code only where its graph is faster than the graph of the
            function as it is.
        recommended: whether to compile with :func:`gfxgraph.inductor_settings`.
        seconds: how long to search for faster settings of Inductor; ``None``: do not.
    """

    arguments: Mapping[str, Any]
    measure: bool = False
    recommended: bool = False
    seconds: float | None = None

    @staticmethod
    def of(given: object, measure: bool = False, recommended: bool = False) -> Compile | None:
        """The checked value of ``graphed(compile=)``; ``None``: do not compile.

        Raises:
            ArgumentError: ``torch.compile`` does not take it, or it asks for graphs of Inductor's.
        """
        if isinstance(given, Compile) or given is False:
            return given or None
        if given is True:
            given = {}
        if isinstance(given, str):
            given = {"mode": given}
        seconds = None
        if isinstance(given, Mapping) and given.get("mode") == "tuned":
            given, seconds = _without_seconds(given)
            measure = True
        # torch.compile would take an empty mode for the default.
        if (
            not isinstance(given, Mapping)
            or not all(isinstance(name, str) for name in given)
            or given.get("mode") == ""
        ):
            raise ArgumentError(
                f'compile={given!r}: expected True, False, a mode of torch.compile, "tuned", or '
                "keyword arguments of torch.compile as a dict."
            )
        how = Compile(dict(given), measure, recommended, seconds)
        how._refuse_graphs_inside()
        try:
            torch.compile(_call, **{**how.arguments, "options": how._options()})
        except Exception as error:  # whatever torch raises for what it does not take
            ours = ""
            if given.keys() & {"mode", "seconds"}:
                ours = ' gfxgraph adds mode="tuned", and seconds= beside it.'
            raise ArgumentError(f"compile={given!r}: torch.compile says: {error}.{ours}") from error
        return how

    def with_settings(self, settings: Settings) -> Compile:
        """The same with these settings of Inductor, beside those that the user gave."""
        return replace(self, arguments={**self.arguments, "options": settings | self.given})

    @property
    def given(self) -> dict[str, Any]:
        """The settings of Inductor that the user gave."""
        return self._options() or {}

    def backend(self) -> Callable[..., Any]:
        """The backend: it makes code of an FX graph and its example inputs."""
        arguments = self.arguments
        name = arguments.get("backend") or "inductor"
        make: Callable[..., Any] = import_whole("torch._dynamo").lookup_backend(name)
        if name != "inductor":
            extra = {k: arguments[k] for k in ("mode", "options") if arguments.get(k)}
            return functools.partial(make, **extra)
        mode = arguments.get("mode")
        of_mode = {}
        if mode:
            inductor = import_whole("torch._inductor")
            of_mode = inductor.list_mode_options(mode, arguments.get("dynamic"))
        # Random numbers as in eager execution, or nobody could compare the two.
        patches = {"fallback_random": True, **of_mode, **(self._options() or {})}
        # Our graph is captured around the compiled code: it may hold none of Inductor's.
        patches[_CUDAGRAPHS] = False
        if self.seconds is not None:  # no table for each product whose kernel is chosen
            patches.setdefault("autotune_num_choices_displayed", 0)
        return functools.partial(make, config_patches=patches)

    def _options(self) -> dict[str, Any] | None:
        """A copy, since torch takes things out of it."""
        options = self.arguments.get("options")
        if not isinstance(options, Mapping):
            return options
        return {str(name).replace("-", "_"): value for name, value in options.items()}

    def _refuse_graphs_inside(self) -> None:
        options = self.arguments.get("options")
        if not isinstance(options, Mapping | None):
            raise ArgumentError(
                f"compile: options={options!r}: expected a dict of settings of Inductor."
            )
        why = (
            "asks Inductor for graphs of its own, and a graph cannot be replayed inside of the "
            "capture of ours, which holds the whole call."
        )
        mode, backend = self.arguments.get("mode"), self.arguments.get("backend")
        if mode == "reduce-overhead":
            raise ArgumentError(
                f'compile: mode={mode!r} {why} That is all that this mode adds: use mode="default".'
            )
        if backend == "cudagraphs":
            raise ArgumentError(f'compile: backend="cudagraphs" {why} Use "aot_eager".')
        if (self._options() or {}).get(_CUDAGRAPHS):
            raise ArgumentError(f'compile: options={{"{_CUDAGRAPHS}": True}} {why} Leave it out.')


def _without_seconds(given: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """The arguments of ``torch.compile`` beside ``mode="tuned"``, and the seconds of the search.

    Raises:
        ArgumentError: these are none.
    """
    seconds = given.get("seconds", _SECONDS)
    if type(seconds) not in (int, float) or not 0 <= seconds <= sys.float_info.max:
        raise ArgumentError(f"compile: seconds={seconds!r}: expected a number of seconds from 0.")
    return {k: v for k, v in given.items() if k not in ("mode", "seconds")}, float(seconds)


class Compiled:
    """The compiled code of one callable.

    Args:
        how: see there.
        dynamic: ``dynamic`` of ``torch.compile`` where ``how`` does not say.

    Attributes:
        seconds: that runs took in which something was compiled, or tried to be.
        kinds: number of these runs that succeeded.
        regions: compiled pieces of the function. Graphs use what these hold (constants, kernels),
            also after ``torch.compiler.reset()``, so they live as long as this.
        how: see there.
        dynamic: see there.
        measure: see there.
    """

    def __init__(self, how: Compile, dynamic: bool) -> None:
        self.how = how
        self.measure = how.measure
        self.seconds = 0.0
        self.kinds = 0
        self.regions: list[Any] = []
        self.dynamic = dynamic
        self._run: Callable[..., Any] | None = None
        self._is_inductor = (how.arguments.get("backend") or "inductor") == "inductor"
        # Inductor raises it for good when it first compiles. A function that asks for it, as
        # inspect.signature does, would be seen to change what it reads.
        if self._is_inductor:
            sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEPTH_OF_INDUCTOR))

    def with_settings(self, settings: Settings) -> Compiled:
        """The code that is compiled with other settings of Inductor."""
        return Compiled(self.how.with_settings(settings), self.dynamic)

    def of(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs ``fn`` compiled, and uncompiled under dispatch modes.

        Under a mode Dynamo would step aside by itself. Recordings are made under one, and the
        captures of the emulated device: they see the operations of ``fn`` as it is.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            device = current_device()
            if not torch._C._len_torch_dispatch_stack():
                return self._call(fn, args, kwargs)
            # A run that is recorded is told that it captures.
            captures = device.is_capturing() and current_interceptor() is None
            if captures and device.kind != "emulated":
                raise CompileError(
                    "the capture runs under a TorchDispatchMode (GFXGRAPH=validate is one), and "
                    "compiled code does not run under one"
                )
            return fn(*args, **kwargs)

        return run

    def _call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = current_device()
        if device.is_capturing():  # an error is that of the capture
            with self._settings(), _room_for_kinds():
                return self._compiled()(fn, args, kwargs)
        before, start = len(self.regions), time.perf_counter()
        try:
            with self._settings(), _room_for_kinds(), self._timed():
                result = self._compiled()(fn, args, kwargs)
        except Exception as error:
            self.seconds += time.perf_counter() - start
            if interrupt_in(error):
                raise
            raise CompileError(f"torch.compile failed: {first_paragraph(error, 300)}") from error
        if len(self.regions) > before:
            self.seconds += time.perf_counter() - start
            self.kinds += 1
        if not self.regions:
            raise CompileError(
                "torch.compile made nothing of it: it computes nothing that can be compiled, or "
                "Dynamo is off (TORCH_COMPILE_DISABLE, suppress_errors)"
            )
        return result

    def _settings(self) -> AbstractContextManager[Any]:
        # The same in the capture: what Dynamo made is for the settings it was made with.
        return inductor_settings() if self.how.recommended else nullcontext()

    def _timed(self) -> AbstractContextManager[Any]:
        return timed_without_gaps() if self._is_inductor else nullcontext()

    def _compiled(self) -> Callable[..., Any]:
        if self._run is None:
            rest = {k: v for k, v in self.how.arguments.items() if k not in ("mode", "options")}
            rest = {"dynamic": self.dynamic, **rest, "backend": _keeping(self)}
            # Dynamo keeps what it compiled with the code object, and counts it there: each callable
            # has its own. The function is an argument, so that nothing here keeps it alive.
            own = types.FunctionType(_call.__code__.replace(), _call.__globals__, "graphed")
            self._run = torch.compile(own, **rest)
        return self._run


def _call(fn: Any, args: Any, kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def _keeping(compiled: Compiled) -> Callable[..., Any]:
    """The backend, which lets ``compiled`` keep what it makes; torch keeps backends for ever."""
    make, keeper = compiled.how.backend(), weakref.ref(compiled)

    def backend(graph: Any, example_inputs: Any) -> Any:
        made = make(graph, example_inputs)
        owner = keeper()
        if owner is not None:
            owner.regions.append(made)
        return made

    named = compiled.how.arguments.get("backend") or "inductor"
    backend.__name__ = getattr(named, "__name__", str(named))  # for logs
    return backend


def _room_for_kinds() -> AbstractContextManager[Any]:
    """Let Dynamo compile a function for more kinds of calls than the 8 that it does by default."""
    config: Any = torch._dynamo.config
    limit = max(config.recompile_limit, config.accumulated_recompile_limit)
    patch: AbstractContextManager[Any] = config.patch(recompile_limit=limit)
    return patch
