"""Describes a machine as far as graphs care: this one, or a different one from a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from ..device import current_device
from ..errors import ArgumentError

__all__ = ["VARIABLES", "Platform", "read_platform", "this_platform"]

VARIABLES = (
    "AMD_LOG_LEVEL",
    "AMD_SERIALIZE_COPY",
    "AMD_SERIALIZE_KERNEL",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "DEBUG_HIP_GRAPH_BATCH_SIZE",
    "DEBUG_HIP_GRAPH_DOT_PRINT",
    "DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING",
    "GFXGRAPH",
    "GFXGRAPH_LAZY",
    "GFXGRAPH_RELEASE_BELOW",
    "GFXGRAPH_VALIDATE_EVERY",
    "GFXGRAPH_VRAM_CAP",
    "GPU_MAX_HW_QUEUES",
    "HGB_LOG_FORMAT",
    "HGB_LOG_LEVEL",
    "HIP_CACHE_ENABLED",
    "HIP_FORCE_DEV_KERNARG",
    "HIP_GRAPH_ENABLED",
    "HIP_LAUNCH_BLOCKING",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_ROCM_ARCH",
    "ROCR_VISIBLE_DEVICES",
    "SGLANG_DISABLE_GFXGRAPH",
    "SGLANG_RDNA2_KERNELS",
)
"""The environment variables that a :class:`Platform` carries; no other is read or shown."""

_VENDORS = ("nvidia", "amd", "emulated")
_LISTS = ("built_for", "device_files")
_BYTES = ("memory_total", "memory_free")
_ARCHITECTURES = {
    "amd": (re.compile(r"gfx[0-9a-f]{3,}(-generic)?"), "'gfx942', as rocminfo shows it"),
    "nvidia": (re.compile(r"sm_\d+[af]?"), "'sm_90'"),
}
_DEVICE_FILES = ("/dev/kfd", "/dev/nvidiactl", "/dev/dxg")  # AMD, NVIDIA, WSL


@dataclass(frozen=True)
class Platform:
    """A machine. ``None``: not known; an empty string, tuple or mapping: there is none.

    Attributes:
        vendor: ``"nvidia"``, ``"amd"``, or ``"emulated"`` where torch can use no GPU.
        name: the name that the driver gives.
        arch: the architecture as the runtime reports it: ``"sm_90"``, ``"gfx1030"``.
        hardware_arch: the architecture as the kernel driver reports it, whatever the overrides
            (AMD only).
        driver: version of the driver.
        rocm: version of ROCm, as precisely as it is known: ``"7.2.4"`` or ``"7.2"``; empty: torch
            is not built for it.
        cuda: version of CUDA that torch was built with; empty: it is not built for it.
        torch: version of torch.
        triton: version of Triton; empty: not installed.
        vllm: version of vLLM; empty: not installed.
        bindings: version of cuda-bindings, or of rocm-bindings-hip; empty: not installed.
        built_for: architectures that torch has code for.
        device_files: files in which a driver shows a GPU, whether torch can use it or not.
        memory_total: bytes.
        memory_free: bytes.
        environment: the variables of :data:`VARIABLES` that are set.
    """

    vendor: Literal["nvidia", "amd", "emulated"]
    name: str = ""
    arch: str = ""
    hardware_arch: str | None = None
    driver: str | None = None
    rocm: str | None = None
    cuda: str | None = None
    torch: str | None = None
    triton: str | None = None
    vllm: str | None = None
    bindings: str | None = None
    built_for: tuple[str, ...] | None = None
    device_files: tuple[str, ...] | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    environment: Mapping[str, str] | None = None

    @property
    def variables(self) -> Mapping[str, str]:
        """Those of ``environment`` that are known to be set."""
        return self.environment or {}

    @property
    def has_amd(self) -> bool:
        """Whether torch uses an AMD GPU, or may fail to use one that is there."""
        if self.vendor == "emulated":
            return bool(self.rocm) or "/dev/kfd" in (self.device_files or ())
        return self.vendor == "amd"

    def to_dict(self) -> dict[str, Any]:
        """The platform as JSON values, for :meth:`from_dict`."""
        found = asdict(self)
        return found | {name: list(found[name]) for name in _LISTS if found[name] is not None}

    @classmethod
    def from_dict(cls, given: Any) -> Platform:
        """Make a platform from JSON values. All but ``vendor`` may be left out.

        Raises:
            ArgumentError: an entry is missing, unknown, or not of its kind.
        """
        if not isinstance(given, dict):
            raise ArgumentError(f"A platform is an object of JSON, not {type(given).__name__}.")
        known = [one.name for one in fields(cls)]
        for name, value in given.items():
            if name not in known:
                raise ArgumentError(
                    f"A platform has no entry {name!r}. It takes {', '.join(known)}."
                )
            if (takes := _refusal(name, value)) is not None:
                raise ArgumentError(f"{name} of a platform is {value!r}, expected {takes}.")
        if "vendor" not in given:
            raise ArgumentError(f"A platform needs a vendor: {', '.join(_VENDORS)}.")
        lists = {name: tuple(given[name]) for name in _LISTS if given.get(name) is not None}
        return cls(**given | lists | _architectures(given))


def read_platform(path: Path) -> Platform:
    """The platform in a JSON file, or in what ``gfxgraph doctor --json`` wrote on that machine.

    Raises:
        ArgumentError: the file cannot be read, is not JSON, or holds no platform.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ArgumentError(f"{path} cannot be read as JSON: it is nested too deep.") from error
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path} cannot be read as JSON: {error}.") from error
    if isinstance(given, dict) and "platform" in given:
        given = given["platform"]
        if given is None:
            raise ArgumentError(
                f"{path}: its platform is null, since gfxgraph doctor could not query that "
                "machine; its findings say why. Write down what you know of it: vendor, arch, "
                "rocm ..."
            )
    try:
        return Platform.from_dict(given)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from error


def this_platform(environ: Mapping[str, str] = os.environ) -> Platform:
    """This machine, with the first GPU that is visible.

    Args:
        environ: where the variables are read, default the process's environment.

    Raises:
        DeviceError: the device does not answer.
    """
    facts = current_device().facts(0)
    bindings = {"nvidia": "cuda-bindings", "amd": "rocm-bindings-hip"}.get(facts.vendor)
    return Platform(
        vendor=facts.vendor,
        name=facts.name,
        arch=facts.arch,
        hardware_arch=None if facts.vendor == "nvidia" else _hardware_arch(),
        driver=facts.driver,
        rocm=_rocm_version(),
        cuda=torch.version.cuda or "",
        torch=facts.torch,
        triton=_installed("triton", "pytorch-triton-rocm", "triton-rocm"),
        vllm=_installed("vllm"),
        bindings=_installed(bindings) if bindings else None,
        built_for=() if facts.vendor == "emulated" else tuple(torch.cuda.get_arch_list()),
        device_files=tuple(one for one in _DEVICE_FILES if Path(one).exists()),
        memory_total=facts.memory_total,
        memory_free=facts.memory_free,
        environment={name: environ[name] for name in VARIABLES if name in environ},
    )


def _architectures(given: dict[str, Any]) -> dict[str, str]:
    """The architectures of a platform, without features (``gfx942:sramecc+:xnack-``).

    Known issues are looked up by them, so a name of a card (``MI300X``) would find none.

    Raises:
        ArgumentError: one is none of its vendor's.
    """
    found = {}
    for name, vendor in (("arch", given["vendor"]), ("hardware_arch", "amd")):
        arch = (given.get(name) or "").split(":")[0]
        form, example = _ARCHITECTURES.get(vendor, (None, ""))
        if arch and form is not None and form.fullmatch(arch) is None:
            raise ArgumentError(
                f"{name} of a platform is {given[name]!r}, expected an architecture, such as "
                f"{example}. The name of a card goes into 'name'."
            )
        if arch:
            found[name] = arch
    return found


def _refusal(name: str, value: Any) -> str | None:
    """The values that entry ``name`` takes, if ``value`` is not one of them."""
    if name == "vendor":
        ok, takes = value in _VENDORS, f"one of {', '.join(_VENDORS)}"
    elif name in ("name", "arch"):
        ok, takes = isinstance(value, str), "a string"
    elif value is None:
        return None
    elif name in _LISTS:
        ok = isinstance(value, list) and all(isinstance(v, str) for v in value)
        takes = "a list of strings, or null"
    elif name in _BYTES:
        ok, takes = type(value) is int and value >= 0, "a number of bytes, or null"
    elif name == "environment":
        ok = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        takes = "an object of strings, or null"
    else:
        ok, takes = isinstance(value, str), "a string, or null"
    return None if ok else takes


def _installed(*names: str) -> str:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _rocm_version(root: Path = Path("/")) -> str:
    """The most precise version of ROCm that agrees with the one of torch's HIP.

    ``torch.version.hip`` is ``7.2.26015-fc0010cf6a``: the third number counts builds and says
    nothing of the patch level. The others are there or not: ``torch.version.rocm`` (newer torch),
    what a wheel carries after the plus sign, the packages of ROCm, and, where torch brings no
    runtime of its own, the file of the system's ROCm.
    """
    hip = torch.version.hip
    if hip is None:
        return ""
    minor = ".".join(hip.split(".")[:2])
    local = re.search(r"\+rocm([\d.]*\d)", torch.__version__)
    candidates = [getattr(torch.version, "rocm", None), local[1] if local else None]
    candidates.append(_installed("rocm-sdk-core", "rocm"))
    own = Path(torch.__file__).parent / "lib"
    if not any(own.glob("libamdhip64*")):
        candidates.append(_text(root / "opt/rocm/.info/version"))  # 7.2.0-43
    numbers = (re.match(r"[\d.]*\d", one or "") for one in candidates)
    agreeing = [n[0] for n in numbers if n and n[0].split(".")[:2] == minor.split(".")]
    return max([minor, *agreeing], key=lambda version: version.count("."))


def _hardware_arch(root: Path = Path("/")) -> str | None:
    """The architecture of the GPUs that the kernel reports; ``None``: none, or they differ.

    The driver gives ``gfx_target_version 100301`` for gfx1031: two digits each for minor version
    and stepping, both hexadecimal in the name.
    """
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    numbers = (re.search(r"^gfx_target_version (\d+)$", _text(node) or "", re.M) for node in nodes)
    found = {int(number[1]) for number in numbers if number} - {0}  # 0: a CPU
    if len(found) != 1:
        return None
    rest, stepping = divmod(found.pop(), 100)
    return f"gfx{rest // 100}{rest % 100:x}{stepping:x}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
