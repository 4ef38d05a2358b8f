"""The checks of ``gfxgraph doctor``: each takes a platform and yields findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .. import settings
from ..device.known_issues import Range, issues_of, within
from ..device.platform import Platform
from ..errors import SettingError
from .environment import as_gfx1030, recommended, remarks, slowing

__all__ = ["CHECKS", "Finding", "Level"]

Level = Literal["error", "warning", "info", "ok"]

_FLAGS = "https://pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf"
_TAKES = {"expandable_segments": "True|False", "max_split_size_mb": r"\d.*"}
_ZEROS = "https://github.com/ROCm/legacy-rocm-build/issues/6603"
_IGNORED = "https://github.com/pytorch/pytorch/issues/183387"
_MAJORS = "https://github.com/ROCm/rocm-systems/pull/5686"


@dataclass(frozen=True)
class Finding:
    """The finding of a check.

    Attributes:
        check: the name of the check, which :func:`~gfxgraph.doctor.doctor.diagnose` fills in.
        level: ``"error"``: graphs may be wrong or fail; ``"warning"``: they may in some uses, or a
            setting has no effect; ``"info"``: good to know; ``"ok"``: nothing is wrong.
        text: the finding.
        remedy: what to do; ``""``: nothing.
        sources: links to its sources.
        certain: ``False`` if the platform is not known precisely enough to be sure.
        id: id of the known issue; ``""``: it is none.
    """

    check: str = field(default="", kw_only=True)
    level: Level
    text: str
    remedy: str = ""
    sources: tuple[str, ...] = ()
    certain: bool = True
    id: str = ""


def _device(platform: Platform) -> Iterator[Finding]:
    if platform.vendor != "emulated":
        yield from _code_for(platform)
        return
    found = ", ".join(platform.device_files or ())
    if platform.device_files is None:
        yield Finding(
            "info",
            "torch can use no GPU there. Whether a driver shows one is not known.",
            "Run gfxgraph doctor --json there to find out.",
            certain=False,
        )
    elif not found:
        yield Finding(
            "info",
            "There is no GPU here. Checked: versions, settings, and whether the emulated device "
            "works. Not checked: driver, known issues of a GPU, whether a real graph works.",
            "gfxgraph doctor --platform FILE checks another machine; FILE is the output of "
            "gfxgraph doctor --json there.",
        )
    elif platform.rocm == platform.cuda == "":
        yield Finding(
            "warning",
            f"A driver shows a GPU ({found}), but this torch ({platform.torch}) is built for the "
            "CPU alone: graphs are emulated.",
            "Install a torch built for CUDA or ROCm.",
        )
    else:
        name = "HSA_OVERRIDE_GFX_VERSION"
        override = platform.variables.get(name)
        may_be = ""
        if platform.rocm and override:
            may_be = f"{name}={override} may be the cause: try without it. "
        yield Finding(
            "warning",
            f"A driver shows a GPU ({found}), but torch cannot use it: graphs are emulated.",
            f"{may_be}See CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, "
            "whether the user may open these files (for AMD, groups render and video), and whether "
            "the driver is new enough for this torch.",
        )


def _code_for(platform: Platform) -> Iterator[Finding]:
    """Whether torch has code for the GPU; an older one of the same major number runs on NVIDIA."""
    arch, built_for = platform.arch, platform.built_for
    override = as_gfx1030(platform) if platform.hardware_arch in (None, arch) else None
    helps = ""
    if override is not None and override.set_to != override.value:
        helps = f" Or set {override.name}={override.value}: {override.reason}"
    if built_for is None and override is not None and helps:
        yield Finding(
            "warning",
            f"It is not known which GPUs this torch was built for; no official wheel has code for "
            f"{arch}.",
            f"Install a torch that is built for this GPU.{helps}",
            (override.source,),
            certain=False,
        )
    if not arch or not built_for:
        return
    fits = arch in built_for
    if platform.vendor == "nvidia" and (number := re.fullmatch(r"sm_(\d+)(\d)", arch)):
        for one in built_for:
            code = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", one)
            if code and int(code[2] + code[3]) <= int(number[1] + number[2]):
                fits |= code[1] == "compute" or code[2] == number[1]
    if not fits:
        yield Finding(
            "error",
            f"This torch has no code for {arch}; it was built for {', '.join(built_for)}.",
            f"Install a torch that is built for this GPU.{helps}",
        )


def _memory(platform: Platform) -> Iterator[Finding]:
    total, free = platform.memory_total, platform.memory_free
    if not total or free is None:
        return
    try:
        cap = settings.from_environment(platform.variables).vram_cap
    except SettingError:
        return  # a finding of _settings
    used = 1 - free / total
    whose = "the host" if platform.vendor == "emulated" else "the device"
    text = (
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of {whose} are free, {used:.0%} are in "
        f"use; captures may fill {cap:.0%}"
    )
    if platform.vendor == "emulated":
        yield Finding("ok", f"{text} (emulated graphs count their pools alone).")
    elif used >= cap:
        yield Finding(
            "warning",
            f"{text}: nothing will be captured.",
            "Free memory of other processes, or raise GFXGRAPH_VRAM_CAP.",
        )
    elif used >= cap - 0.1:
        yield Finding("info", f"{text}: there is room for {(cap - used) * total / 2**30:.1f} GiB.")
    else:
        yield Finding("ok", f"{text}.")


def _allocator(platform: Platform) -> Iterator[Finding]:
    # The first that is set counts, also one that is set to nothing (run with torch 2.13).
    order = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]
    for_rocm = platform.has_amd and not platform.cuda
    if for_rocm:
        order.insert(1, "PYTORCH_HIP_ALLOC_CONF")
    found = [name for name in order if name in platform.variables]
    if not found:
        return
    first, value = found[0], platform.variables[found[0]]
    chosen = _options(value)
    yield from _malformed(first, value)
    others = [name for name in found[1:] if _options(platform.variables[name]) != chosen]
    if others:
        yield Finding(
            "warning",
            f"torch reads {first}={value!r} alone; it ignores {' and '.join(others)}, set to "
            "something else.",
            "Set one of them.",
            (_FLAGS,),
        )
    version = platform.torch
    if first == "PYTORCH_ALLOC_CONF" and version and within(version, Range(before="2.10")):
        yield Finding(
            "warning",
            f"torch {version} may not read PYTORCH_ALLOC_CONF (reported for 2.9.1).",
            "Use PYTORCH_CUDA_ALLOC_CONF with this torch.",
            (_IGNORED,),
        )
    if for_rocm and chosen.get("expandable_segments", "").lower() == "true":
        yield from _expandable(platform, first, chosen)


def _malformed(name: str, value: str) -> Iterator[Finding]:
    """Whether torch can read what ``name`` is set to."""
    malformed = [
        f"{option}:{entry}" if entry else option
        for option, entry in _options(value).items()
        if not re.fullmatch(_TAKES.get(option, r"\[[^][]*\]|[^][:=;]+"), entry)
    ]
    if malformed:
        yield Finding(
            "error",
            f"{name}={value!r} is malformed at {', '.join(map(repr, malformed))}; torch raises "
            "where it reads it.",
            "Write name:value, several with commas between, such as "
            "max_split_size_mb:128,garbage_collection_threshold:0.8 or expandable_segments:True.",
            (_FLAGS,),
        )


def _expandable(platform: Platform, name: str, chosen: Mapping[str, str]) -> Iterator[Finding]:
    """What ROCm makes of the expandable segments that ``name`` asks for."""
    if platform.rocm and within(platform.rocm, Range(before="7.0")):
        yield Finding(
            "warning",
            f"expandable_segments in {name} has no effect below ROCm 7; here is {platform.rocm}.",
            "Take it out, or use ROCm 7.",
            (_FLAGS,),
        )
    elif "max_split_size_mb" in chosen:
        zeros = any(match.issue.links[0] == _ZEROS for match in issues_of(platform))
        where = "was reported here" if zeros else "was reported for gfx1100 and gfx1201 on 7.14"
        yield Finding(
            "error" if zeros else "warning",
            f"{name} sets max_split_size_mb and expandable_segments together. That tensors then "
            f"read as zeros {where}.",
            "Keep one of them.",
            (_ZEROS,),
        )


def _override(platform: Platform) -> Iterator[Finding]:
    name = "HSA_OVERRIDE_GFX_VERSION"
    text = platform.variables.get(name, "")
    match = re.fullmatch(r"(\d+)\.(\d+)\.([0-9a-f]+)", text)
    if not platform.has_amd or match is None:
        return
    asked = f"gfx{match[1]}{int(match[2]):x}{match[3]}"
    real = platform.hardware_arch
    if real is None:
        yield Finding(
            "info",
            f"{name}={text} makes the runtime take the GPU for {asked}; the real architecture is "
            "not known.",
            certain=False,
        )
    elif asked == real:
        # _environment says where another value is needed.
        if not any(one.name == name and one.value != text for one in recommended(platform)):
            yield Finding("info", f"{name}={text} matches the GPU, and is not needed.")
    elif real[:-2] != asked[:-2]:
        yield Finding(
            "error",
            f"{name}={text} makes the runtime take a {real} for a {asked}, whose code it cannot "
            "run. Newer runtimes refuse it.",
            f"unset {name}",
            (_MAJORS,),
        )
    else:
        yield Finding(
            "info",
            f"{name}={text} makes the runtime take this {real} for a {asked}: the known issues of "
            "both apply.",
        )
    if platform.rocm and within(platform.rocm, Range("7.14")):
        yield Finding(
            "warning",
            f"{name} is set; one user reports that programs do not start with it from ROCm 7.14 "
            "on.",
            f"If they do not, unset {name}.",
        )


def _settings(platform: Platform) -> Iterator[Finding]:
    try:
        found = settings.from_environment(platform.variables)
    except SettingError as error:
        yield Finding("error", str(error), "gfxgraph raises it where it needs that.")
        return
    if found.disabled:
        yield Finding("info", "SGLANG_DISABLE_GFXGRAPH=1: enable() does nothing.")


def _environment(platform: Platform) -> Iterator[Finding]:
    for remark in remarks(platform):
        remedy = f"unset {remark.name}"
        yield Finding("warning", str(remark), remedy, (remark.source,))
    for remark in slowing(platform):
        # Levels 1 and 2 of the log are errors and warnings.
        harmless = remark.name == "AMD_LOG_LEVEL" and remark.value in ("1", "2")
        level: Level = "info" if harmless else "warning"
        yield Finding(level, str(remark), f"unset {remark.name}", (remark.source,))
    # Variables that avoid a known issue are in the finding of that issue. Code for the GPU is a
    # finding of _code_for.
    avoiding = {name for match in issues_of(platform) for name in match.issue.variables}
    if platform.built_for is None:
        avoiding.add("HSA_OVERRIDE_GFX_VERSION")
    for one in recommended(platform):
        if one.set_to != one.value and one.name not in avoiding:
            now = "not known to be set" if platform.environment is None else "not set"
            now = now if one.set_to is None else f"set to {one.set_to!r}"
            yield Finding(
                "warning" if one.certain else "info",
                f"{one.name} is {now}. {one.reason}",
                f"{one.name}={one.value}: {_by_run(one.set_to)}; gfxgraph env prints it.",
                (one.source,),
                one.certain,
            )


def _packages(platform: Platform) -> Iterator[Finding]:
    if platform.vendor == "nvidia" and platform.bindings == "":
        yield Finding(
            "info",
            "cuda-bindings is not installed: captures run on streams of torch's pool, which other "
            "code may use too, and the nodes of graphs are not known.",
            "pip install cuda-bindings cuda-core",
        )
    if platform.vendor != "emulated" and platform.triton == "":
        text = "Triton is not installed: torch.compile cannot make kernels. Graphs need none."
        yield Finding("info", text)


def _libraries(platform: Platform) -> Iterator[Finding]:
    if platform.vendor == "emulated":
        return
    measured = "measured on NVIDIA, torch 2.11"
    yield Finding(
        "info",
        "Libraries create handles and workspaces at first use, which a capture forbids: without a "
        f"warm-up, captures of fft, conv2d and matmul under autocast fail ({measured}). "
        "linalg.inv, solve, svd, eigh and cholesky fail even after a warm-up.",
        "graphed warms up, and runs the latter between two graphs. Before captures of your own, "
        "warm up on the stream of the capture.",
        certain=platform.vendor == "nvidia",
    )


def _known(platform: Platform) -> Iterator[Finding]:
    for match in issues_of(platform):
        issue, level = match.issue, match.issue.severity
        text = issue.symptom
        if match.unknown:
            # An issue that may not apply at all is no reason to fail.
            level = "warning" if level == "error" else level
            text += f" Not certain: {'; '.join(match.unknown)}."
        if issue.variables and issue.variables.items() <= platform.variables.items():
            level = "info"
            text += " Avoided here: "
            text += " ".join(f"{name}={value}" for name, value in issue.variables.items())
            text += " is set."
        remedy = issue.workaround
        for name, value in issue.variables.items():
            now = platform.variables.get(name)
            if now != value:
                remedy += f" {name}: {_by_run(now)}."
        yield Finding(level, text, remedy, issue.links, not match.unknown, issue.id)


def _by_run(set_to: str | None) -> str:
    """How ``gfxgraph run`` handles a variable that should have another value."""
    if set_to is None:
        return "gfxgraph run sets it"
    return f"it is set to {set_to!r}, which gfxgraph run leaves"


def _options(text: str) -> Mapping[str, str]:
    """``a:1,b:[2:3,>:4]`` as a dictionary."""
    parts = re.split(r",(?![^\[]*\])", text.replace(" ", ""))
    return {name: value for name, _, value in (part.partition(":") for part in parts) if name}


CHECKS: Mapping[str, Callable[[Platform], Iterator[Finding]]] = {
    "settings": _settings,
    "device": _device,
    "override": _override,
    "memory": _memory,
    "allocator": _allocator,
    "environment": _environment,
    "packages": _packages,
    "libraries": _libraries,
    "known issue": _known,
}
