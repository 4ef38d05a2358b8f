"""Run any PyTorch inference function as a CUDA or HIP graph.

>>> import gfxgraph
>>> @gfxgraph.graphed
... def step(x):
...     return x.relu() * 2
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import errors, settings
from .forking import new_lock
from .stats import Stats, tally

if TYPE_CHECKING:
    from . import metrics as metrics
    from .analyze.check import check as check
    from .analyze.report import CheckReport as CheckReport
    from .analyze.report import Hazard as Hazard
    from .analyze.report import Report as Report
    from .bridge.enable import disable as disable
    from .bridge.enable import enable as enable
    from .bridge.enable import health_check as health_check
    from .bridge.enable import is_enabled as is_enabled
    from .bridge.graph import BridgedCUDAGraph as BridgedCUDAGraph
    from .call.branches import ConditionalGraph as ConditionalGraph
    from .call.buckets.pool import PoolStats as PoolStats
    from .call.buckets.pool import ShapeBucketPool as ShapeBucketPool
    from .call.buckets.traffic import suggest_buckets as suggest_buckets
    from .call.graphed import Graphed as Graphed
    from .call.graphed import GraphedStats as GraphedStats
    from .call.graphed import compile as compile
    from .call.graphed import graphed as graphed
    from .compiling.breaks import BreakReport as BreakReport
    from .compiling.breaks import graph_breaks as graph_breaks
    from .compiling.inductor import InductorSettings as InductorSettings
    from .compiling.inductor import inductor_settings as inductor_settings
    from .compiling.log import CompileLog as CompileLog
    from .compiling.log import compile_log as compile_log
    from .compiling.rng import guard_rng as guard_rng
    from .compiling.vendor import vendor_op as vendor_op
    from .device import DeviceFacts as DeviceFacts
    from .graph.composition import Composition as Composition
    from .graph.composition import compose as compose
    from .graph.control_flow import cond as cond
    from .graph.control_flow import switch as switch
    from .graph.control_flow import while_loop as while_loop
    from .graph.native import GraphUpdate as GraphUpdate
    from .inspecting.inspect import inspect as inspect
    from .inspecting.report import InspectReport as InspectReport
    from .measure.bench import bench as bench
    from .measure.experiments.experiment import experiment as experiment
    from .measure.experiments.report import ExperimentReport as ExperimentReport
    from .measure.report import BenchReport as BenchReport
    from .measure.trace import trace as trace
    from .measure.trace_report import TraceReport as TraceReport
    from .probing.parity import parity as parity
    from .probing.report import ParityReport as ParityReport
    from .recipes.load import load_recipes as load_recipes
    from .recipes.report import RecipeReport as RecipeReport
    from .recipes.save import save_recipes as save_recipes
    from .record.no_graph import no_graph as no_graph
    from .reporting.report import ReportPage as ReportPage
    from .reporting.report import report as report
    from .verifying.report import VerifyReport as VerifyReport
    from .verifying.verify import verify as verify

__version__ = "0.1.0"

_OLDEST_TORCH = "2.8"  # as in pyproject.toml

# Looked up on first use: the kind of device decides the base of the graph class, and asking for the
# device starts the driver, which importing a library should not do.
_LAZY = {
    "BenchReport": "measure.report",
    "BreakReport": "compiling.breaks",
    "BridgedCUDAGraph": "bridge.graph",
    "CompileLog": "compiling.log",
    "Composition": "graph.composition",
    "ConditionalGraph": "call.branches",
    "DeviceFacts": "device",
    "ExperimentReport": "measure.experiments.report",
    "GraphUpdate": "graph.native",
    "Graphed": "call.graphed",
    "GraphedStats": "call.graphed",
    "Hazard": "analyze.report",
    "InductorSettings": "compiling.inductor",
    "InspectReport": "inspecting.report",
    "ParityReport": "probing.report",
    "PoolStats": "call.buckets.pool",
    "RecipeReport": "recipes.report",
    "Report": "analyze.report",
    "ReportPage": "reporting.report",
    "CheckReport": "analyze.report",
    "ShapeBucketPool": "call.buckets.pool",
    "TraceReport": "measure.trace_report",
    "VerifyReport": "verifying.report",
    "bench": "measure.bench",
    "check": "analyze.check",
    "compile": "call.graphed",
    "compile_log": "compiling.log",
    "cond": "graph.control_flow",
    "compose": "graph.composition",
    "disable": "bridge.enable",
    "enable": "bridge.enable",
    "experiment": "measure.experiments.experiment",
    "graph_breaks": "compiling.breaks",
    "graphed": "call.graphed",
    "guard_rng": "compiling.rng",
    "health_check": "bridge.enable",
    "inductor_settings": "compiling.inductor",
    "inspect": "inspecting.inspect",
    "is_enabled": "bridge.enable",
    "load_recipes": "recipes.load",
    "metrics": "metrics",  # the module itself
    "no_graph": "record.no_graph",
    "parity": "probing.parity",
    "report": "reporting.report",
    "save_recipes": "recipes.save",
    "switch": "graph.control_flow",
    "suggest_buckets": "call.buckets.traffic",
    "trace": "measure.trace",
    "vendor_op": "compiling.vendor",
    "verify": "verifying.verify",
    "while_loop": "graph.control_flow",
}

# Threads that import modules of one package at once may get a _DeadlockError from Python.
_importing = new_lock()

__all__ = [
    "BenchReport",
    "BreakReport",
    "BridgedCUDAGraph",
    "CheckReport",
    "CompileLog",
    "Composition",
    "ConditionalGraph",
    "DeviceFacts",
    "ExperimentReport",
    "GraphUpdate",
    "Graphed",
    "GraphedStats",
    "Hazard",
    "InductorSettings",
    "InspectReport",
    "ParityReport",
    "PoolStats",
    "RecipeReport",
    "Report",
    "ReportPage",
    "ShapeBucketPool",
    "Stats",
    "TraceReport",
    "VerifyReport",
    "__version__",
    "bench",
    "check",
    "compile",
    "compile_log",
    "compose",
    "cond",
    "device_facts",
    "device_type",
    "disable",
    "enable",
    "errors",
    "experiment",
    "graph_breaks",
    "graphed",
    "guard_rng",
    "health_check",
    "inductor_settings",
    "inspect",
    "is_enabled",
    "load_recipes",
    "metrics",
    "no_graph",
    "parity",
    "report",
    "save_recipes",
    "settings",
    "stats",
    "suggest_buckets",
    "switch",
    "trace",
    "vendor_op",
    "verify",
    "while_loop",
]


def stats() -> Stats:
    """Counts of captures, replays, fallbacks and failures in this process.

    Printed, it is a sentence, and a line for each key.
    """
    return tally.snapshot()


def device_type() -> str:
    """``"cuda"`` on a GPU (NVIDIA or AMD), ``"cpu"`` where graphs are emulated."""
    from .device import current_device

    return current_device().type


def device_facts(index: int = 0) -> DeviceFacts:
    """The facts about the device of graphs: vendor, name, architecture, versions, memory.

    Args:
        index: which GPU, where there are several. Default 0.

    Raises:
        ArgumentError: ``index`` is no number of a device.
        DeviceError: the device does not answer.
    """
    import torch

    from .device import current_device

    device = current_device()
    last = max(0, torch.cuda.device_count() - 1) if device.type == "cuda" else 0
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index <= last:
        raise errors.ArgumentError(
            f"device_facts({index!r}): expected the number of a device, from 0 to {last}."
        )
    return device.facts(index)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    with _importing:
        module = import_module(f"{__name__}.{_LAZY[name]}")
        value = module if _LAZY[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _is_command() -> bool:
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # so it reads until the module is found
        program = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    return Path(program).name in ("gfxgraph", "gfxgraph.exe")


def _refuse_older_torch() -> None:
    import torch

    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or [*map(int, found.groups())] >= [*map(int, _OLDEST_TORCH.split("."))]:
        return
    raise errors.TorchVersionError(
        f"gfxgraph needs torch {_OLDEST_TORCH} or newer, and finds {torch.__version__} in "
        f"{Path(torch.__file__).parent}: install a newer torch."
    )


def _start() -> None:
    """Do what the environment asks for.

    Raises:
        SettingError: a variable is malformed.
        TorchVersionError: torch is too old.
    """
    _refuse_older_torch()
    mode = settings.mode()  # the other variables are read where they are used
    # The command itself describes the machine as it is.
    emulate = settings.emulate() and not _is_command()
    if mode != "off" or emulate:
        from .bridge.enable import enable, is_emulation_needed

        enable(
            debug=mode == "debug",
            validate=mode == "validate",
            emulate=emulate and is_emulation_needed(),
        )


# The command line starts it for the commands that need torch, whose import takes seconds, and it
# reports a malformed variable: doctor must run with one too.
if not _is_command():
    _start()
