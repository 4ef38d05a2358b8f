"""Environment variables: which to set on a platform and why, and which are set without effect.

The runtime reads them once, when it starts, so they have to be set before the program starts. Which
ones the HIP runtime reads is known from its table of flags.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from ..device.known_issues import Range, issues_of, within
from ..device.platform import Platform

__all__ = [
    "SHELLS",
    "Remark",
    "Shell",
    "Variable",
    "as_gfx1030",
    "recommended",
    "remarks",
    "script",
    "slowing",
]

Shell = Literal["sh", "fish", "powershell"]
SHELLS: tuple[Shell, ...] = get_args(Shell)

_CUDA = (
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables"
)
_FLAGS = "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html"
# Official wheels of torch have no code for these. Their instruction set is that of gfx1030.
_RDNA2 = ("gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036")
_BEFORE_7_14 = Range(before="7.14")


@dataclass(frozen=True)
class Variable:
    """A variable to set.

    Attributes:
        name: its name.
        value: what to set it to.
        reason: the problem that it avoids.
        source: link to the report.
        certain: whether the platform needs it; ``False`` where a version is known only in part.
        set_to: its present value, ``None`` if it is not set.
    """

    name: str
    value: str
    reason: str
    source: str
    certain: bool
    set_to: str | None


@dataclass(frozen=True)
class Remark:
    """A variable that is set without effect, or at a price.

    Attributes:
        name: its name.
        value: its value.
        text: its real effect.
        source: link to the source of that.
    """

    name: str
    value: str
    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.name} is set to {self.value!r}. {self.text}"


def recommended(platform: Platform) -> list[Variable]:
    """The variables to set on ``platform``, each with a reason and a source."""
    variables = platform.variables
    found = [
        Variable(name, value, one.symptom, one.links[0], not match.unknown, variables.get(name))
        for match in issues_of(platform)
        for one in [match.issue]
        for name, value in one.variables.items()
    ]
    override = as_gfx1030(platform)
    if override is not None and within(platform.rocm or "", _BEFORE_7_14) is not False:
        found.append(override)
    return found


def as_gfx1030(platform: Platform) -> Variable | None:
    """The variable that makes the runtime take an RDNA2 GPU for a gfx1030, where that may help.

    From ROCm 7.14 on it is not recommended.
    """
    arch, built_for = platform.hardware_arch or platform.arch, platform.built_for
    if platform.vendor != "amd" or arch not in _RDNA2:
        return None
    if built_for is not None and (arch in built_for or "gfx1030" not in built_for):
        return None
    lacks = "No official wheel of torch has" if built_for is None else "This torch has no"
    return Variable(
        "HSA_OVERRIDE_GFX_VERSION",
        "10.3.0",
        f"{lacks} code for {arch}; its instruction set is that of gfx1030 (not an official "
        "workaround; one user reports that programs do not start with it from ROCm 7.14 on).",
        "https://github.com/ROCm/Tensile/issues/1907",
        built_for is not None and within(platform.rocm or "", _BEFORE_7_14) is True,
        platform.variables.get("HSA_OVERRIDE_GFX_VERSION"),
    )


def remarks(platform: Platform) -> list[Remark]:
    """The variables that are set on ``platform`` without effect."""
    return [
        Remark(name, platform.variables[name], text, source)
        for name, text, source in _no_effect(platform)
        if platform.variables.get(name, "") != ""
    ]


def slowing(platform: Platform) -> list[Remark]:
    """The variables for debugging that are set on ``platform`` and slow every program."""
    return [
        Remark(name, platform.variables[name], text, source)
        for name, text, source in _for_debugging(platform)
        if platform.variables.get(name, "") not in ("", "0")
    ]


def script(platform: Platform, shell: Shell = "sh") -> str:
    """Shell lines that set the recommended variables; all other lines are comments.

    >>> eval "$(gfxgraph env)"                    # sh, bash, zsh
    >>> gfxgraph env --shell fish | source
    >>> gfxgraph env --shell powershell | Out-String | Invoke-Expression
    """
    lines = []
    for one in recommended(platform):
        if one.set_to not in (None, one.value):
            lines.append(f"# replaces {one.name}={one.set_to!r}:")
        maybe = "" if one.certain else "Perhaps needed (the version is known only in part): "
        lines.append(f"{_assignment(one, shell)}  # {maybe}{one.reason} {one.source}")
    if not lines:
        lines.append(f"# Nothing to set: no known issue of {_called(platform)} is avoided by it.")
    lines += [f"# {one}" for one in remarks(platform) + slowing(platform)]
    return "\n".join(" ".join(line.splitlines()) for line in lines)


def _assignment(one: Variable, shell: Shell) -> str:
    if shell == "sh":
        return f"export {one.name}={shlex.quote(one.value)}"
    if shell == "fish":
        value = one.value.replace("\\", "\\\\").replace("'", "\\'")
        return f"set -gx {one.name} '{value}'"
    value = one.value.replace("'", "''")
    return f"$env:{one.name} = '{value}'"


def _no_effect(platform: Platform) -> Iterator[tuple[str, str, str]]:
    for name in ("HIP_CACHE_ENABLED", "HIP_GRAPH_ENABLED"):
        yield name, "Nothing reads it: it is not among the flags of the HIP runtime.", _FLAGS
    yield (
        "PYTORCH_ROCM_ARCH",
        "It counts when torch or an extension is compiled; it has no effect on an installed wheel.",
        "https://github.com/pytorch/pytorch/pull/61706",
    )
    if not platform.has_amd:
        for name in platform.variables:
            if name.startswith(("AMD_", "DEBUG_HIP_", "HSA_", "PYTORCH_HIP_")) or name in (
                "HIP_LAUNCH_BLOCKING",
                "HIP_FORCE_DEV_KERNARG",
                "GPU_MAX_HW_QUEUES",
            ):
                yield name, "Only ROCm reads it, and no AMD GPU is used here.", _FLAGS
    elif platform.variables.get("AMD_SERIALIZE_KERNEL", "0") != "0":
        yield (
            "AMD_SERIALIZE_KERNEL",
            "It does not serialize the replay of a graph; it only slows eager execution. To find "
            "the replay that fails: gfxgraph.enable(debug=True).",
            _FLAGS,
        )


def _for_debugging(platform: Platform) -> Iterator[tuple[str, str, str]]:
    blocking = (
        "Each kernel launch waits for the device. That slows eager execution, so a graph looks "
        "better than it is. Kernels inside a replay are not launched alone. To find the replay "
        "that fails: gfxgraph.enable(debug=True)."
    )
    if platform.vendor == "nvidia":
        yield "CUDA_LAUNCH_BLOCKING", blocking, _CUDA
    if not platform.has_amd:
        return
    yield "HIP_LAUNCH_BLOCKING", blocking, _FLAGS
    yield (
        "AMD_LOG_LEVEL",
        "The HIP runtime writes a log, from level 3 on a line for each call. That slows eager "
        "execution, which makes many calls, more than a replay, which is one call: measure "
        "without it.",
        _FLAGS,
    )
    yield (
        "AMD_SERIALIZE_COPY",
        "Copies wait for earlier work or for the device: the copies of inputs to a graph as well "
        "as those of eager execution.",
        _FLAGS,
    )
    yield "DEBUG_HIP_GRAPH_DOT_PRINT", "The HIP runtime writes a file for each graph.", _FLAGS


def _called(platform: Platform) -> str:
    if platform.vendor == "emulated":
        return "a machine without a GPU"
    version = f"ROCm {platform.rocm}" if platform.vendor == "amd" else f"CUDA {platform.cuda}"
    return f"{platform.arch or platform.vendor} with {version}"
