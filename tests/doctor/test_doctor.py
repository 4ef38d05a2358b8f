"""``gfxgraph doctor`` finds what is wrong with a machine, and does not fall over it."""

from __future__ import annotations

import functools
import json
import re
import sys
from dataclasses import replace

import pytest

from gfxgraph.device import current_device
from gfxgraph.device.platform import Platform, this_platform
from gfxgraph.doctor.checks import CHECKS
from gfxgraph.doctor.doctor import diagnose
from gfxgraph.doctor.probe import Probe, probe
from gfxgraph.doctor.view import show
from tests.helpers import command
from tests.helpers.command import gfxgraph_command
from tests.helpers.processes import python

GIB = 2**30
AMD = Platform(
    "amd",
    name="AMD Instinct MI300X",
    arch="gfx942",
    hardware_arch="gfx942",
    driver="6.12.12",
    rocm="7.14.0",
    cuda="",
    torch="2.11.0+rocm7.14.0",
    triton="3.7.0",
    vllm="",
    bindings="0.1",
    built_for=("gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"),
    memory_total=192 * GIB,
    memory_free=190 * GIB,
)
NVIDIA = Platform(
    "nvidia",
    name="NVIDIA H200",
    arch="sm_90",
    driver="580.159.03",
    cuda="13.0",
    torch="2.11.0+cu130",
    triton="3.6.0",
    bindings="13.3.0",
    built_for=("sm_75", "sm_90", "sm_100", "compute_120"),
    memory_total=140 * GIB,
    memory_free=139 * GIB,
)

NONE = Platform(
    "emulated",
    arch="x86_64",
    rocm="",
    cuda="",
    torch="2.13.0+cpu",
    triton="",
    vllm="",
    built_for=(),
    device_files=(),
    environment={},
)


def findings(platform, check, **entries):
    platform = replace(platform, **entries)
    return [one for one in diagnose(platform).findings if one.check == check]


def levels(platform, check, **entries):
    return [one.level for one in findings(platform, check, **entries)]


def text(platform, check, **entries):
    return " ".join(one.text for one in findings(platform, check, **entries))


# Whole machines.


@pytest.mark.parametrize(
    ("platform", "status"),
    [
        (NONE, 0),
        (NVIDIA, 0),
        (AMD, 0),
        (replace(AMD, rocm="7.2"), 1),  # whether the errors are here is not certain
        (Platform("amd"), 1),
        (Platform("nvidia"), 0),
    ],
)
def test_the_status_is_that_of_the_worst_finding(platform, status):
    diagnosis = diagnose(platform)
    assert diagnosis.status == status, diagnosis.findings
    worst = {0: {"ok", "info"}, 1: {"warning"}, 2: {"error"}}[status]
    assert diagnosis.findings[0].level in worst


EVERYWHERE = {"pt#131782", "TheRock#4476"}
BEFORE_7_14 = EVERYWHERE | {"pt#155684"}
RDNA2 = {"llama-cpp-turboquant#297"}
RDNA3 = {"vllm#35485"}


@pytest.mark.parametrize(
    ("arch", "rocm", "issues", "status"),
    [
        ("gfx1030", "6.4.3", BEFORE_7_14 | RDNA2, 1),
        ("gfx1030", "7.0.2", BEFORE_7_14 | RDNA2 | {"hip#3876"}, 1),
        ("gfx1030", "7.2.1", BEFORE_7_14 | RDNA2, 1),
        ("gfx1030", "7.14.0", EVERYWHERE | RDNA2, 0),
        # AMD.built_for has no gfx1031: an error on all four.
        ("gfx1031", "6.4.3", BEFORE_7_14 | {"pt#193668"}, 2),
        ("gfx1031", "7.0.2", BEFORE_7_14 | {"pt#193668", "hip#3876"}, 2),
        ("gfx1031", "7.2.1", BEFORE_7_14 | {"pt#193668"}, 2),
        ("gfx1031", "7.14.0", EVERYWHERE, 2),
        ("gfx1100", "6.4.3", BEFORE_7_14 | RDNA3, 1),
        ("gfx1100", "7.0.2", BEFORE_7_14 | RDNA3 | {"hip#3876", "rs#10021"}, 1),
        ("gfx1100", "7.2.1", BEFORE_7_14 | RDNA3 | {"rs#10021"}, 1),
        ("gfx1100", "7.14.0", EVERYWHERE | RDNA3 | {"rs#10021", "legacy-rocm-build#6603"}, 1),
        ("gfx942", "6.4.3", BEFORE_7_14 | {"pt#155720"}, 1),
        ("gfx942", "7.0.2", BEFORE_7_14 | {"pt#155720", "hip#3876"}, 1),
        ("gfx942", "7.2.1", BEFORE_7_14 | {"clr#279", "warp#1957"}, 2),
        ("gfx942", "7.14.0", EVERYWHERE, 0),
    ],
)
def test_each_amd_machine_gets_its_known_issues_and_status(arch, rocm, issues, status):
    diagnosis = diagnose(replace(AMD, arch=arch, hardware_arch=arch, rocm=rocm))
    assert {one.id for one in diagnosis.findings if one.id} == issues
    assert diagnosis.status == status


def test_a_check_that_raises_is_a_finding_and_the_others_go_on():
    def broken(platform):
        raise OSError("no such device")

    diagnosis = diagnose(AMD, checks={"broken": broken, "memory": CHECKS["memory"]})
    assert [one.check for one in diagnosis.findings] == ["broken", "memory"]
    assert "OSError: no such device" in diagnosis.findings[0].text
    assert diagnosis.status == 1


# Known issues.


def test_an_issue_that_may_be_here_is_no_error_and_says_what_is_not_known():
    (one,) = [f for f in findings(AMD, "known issue", rocm="7.2") if f.id == "clr#279"]
    assert one.level == "warning" and not one.certain
    assert "ROCm is known only as 7.2 (affected: from 7.2.0 before 7.2.4)" in one.text


def test_an_issue_that_a_variable_avoids_is_an_error_until_it_is_set():
    def of_6888(**environment):
        found = findings(AMD, "known issue", rocm="7.2.4", environment=environment)
        return next(one for one in found if one.id == "rs#6888")

    assert of_6888().level == "error"
    assert of_6888(DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING="1").level == "error"
    avoided = of_6888(DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING="0")
    assert avoided.level == "info" and "Avoided here" in avoided.text
    assert "gfxgraph run sets it" in of_6888().remedy
    other = of_6888(DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING="1").remedy
    assert "it is set to '1', which gfxgraph run leaves" in other and "sets it" not in other
    assert "gfxgraph run" not in avoided.remedy


# Memory.


@pytest.mark.parametrize(
    ("free", "environment", "level"),
    [
        (100, {}, "ok"),
        (25, {}, "info"),
        (20, {}, "warning"),
        (5, {}, "warning"),
        (5, {"GFXGRAPH_VRAM_CAP": "1.0"}, "info"),
        (95, {"GFXGRAPH_VRAM_CAP": "0.0"}, "warning"),
    ],
)
def test_memory_in_use_is_held_against_the_cap(free, environment, level):
    entries = {"memory_total": 100 * GIB, "memory_free": free * GIB, "environment": environment}
    assert levels(NVIDIA, "memory", **entries) == [level]


def test_without_numbers_nothing_is_said_of_memory():
    assert levels(NVIDIA, "memory", memory_total=None) == []


# The allocator.

BOTH = "expandable_segments:True,max_split_size_mb:128"


def allocator(platform=AMD, /, rocm="7.14.0", **environment):
    return findings(platform, "allocator", environment=environment, rocm=rocm)


@pytest.mark.parametrize(
    ("platform", "environment", "read"),
    [
        (AMD, ("CUDA", "HIP", ""), "PYTORCH_CUDA_ALLOC_CONF"),
        (AMD, ("HIP", ""), "PYTORCH_HIP_ALLOC_CONF"),
        (NVIDIA, ("CUDA", "HIP", ""), "PYTORCH_CUDA_ALLOC_CONF"),
    ],
)
def test_of_two_that_disagree_the_one_that_is_read_is_named(platform, environment, read):
    names = [f"PYTORCH_{one}_ALLOC_CONF".replace("__", "_") for one in environment]
    values = {name: f"max_split_size_mb:{64 + at}" for at, name in enumerate(names)}
    (one,) = allocator(platform, **values)
    assert one.level == "warning" and f"torch reads {read}=" in one.text
    assert names[-1] in one.text
    assert ("PYTORCH_HIP" in one.text) == (platform is AMD)


def test_two_that_agree_are_no_conflict():
    assert not allocator(
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64, garbage_collection_threshold:0.8",
        PYTORCH_ALLOC_CONF="garbage_collection_threshold:0.8,max_split_size_mb:64",
    )


def test_one_that_is_set_to_nothing_hides_the_next():
    (one,) = allocator(PYTORCH_CUDA_ALLOC_CONF="", PYTORCH_HIP_ALLOC_CONF="max_split_size_mb:64")
    assert "PYTORCH_CUDA_ALLOC_CONF='' alone" in one.text


@pytest.mark.parametrize(
    ("arch", "rocm", "level"),
    [
        ("gfx1100", "7.14.0", "error"),
        ("gfx1201", "7.14.0", "error"),
        ("gfx1100", "7.2.1", "warning"),
        ("gfx942", "7.14.0", "warning"),
    ],
)
def test_split_sizes_and_expandable_segments_are_not_to_be_combined(arch, rocm, level):
    platform = replace(AMD, arch=arch, hardware_arch=arch)
    (one,) = allocator(platform, rocm=rocm, PYTORCH_HIP_ALLOC_CONF=BOTH)
    assert one.level == level and "together" in one.text


def test_each_alone_is_fine_and_both_are_on_nvidia():
    for one in BOTH.split(","):
        assert not allocator(PYTORCH_HIP_ALLOC_CONF=one)
    assert not allocator(PYTORCH_HIP_ALLOC_CONF=BOTH.replace("True", "False"))
    assert not allocator(NVIDIA, PYTORCH_CUDA_ALLOC_CONF=BOTH)


def test_expandable_segments_are_off_below_rocm_7():
    (one,) = allocator(rocm="6.4.3", PYTORCH_ALLOC_CONF="expandable_segments:True")
    assert one.level == "warning" and "no effect below ROCm 7" in one.text
    assert not allocator(rocm="7.0", PYTORCH_ALLOC_CONF="expandable_segments:True")


@pytest.mark.parametrize(
    ("value", "malformed"),
    [
        ("max_split_size_mb=64;foo", "'max_split_size_mb=64;foo'"),
        ("garbage_collection_threshold:0.8,expandable_segments", "'expandable_segments'"),
        ("expandable_segments:true", "'expandable_segments:true'"),
        ("max_split_size_mb:abc", "'max_split_size_mb:abc'"),
    ],
)
def test_a_malformed_value_is_an_error_at_its_entry(value, malformed):
    (one,) = allocator(NVIDIA, PYTORCH_CUDA_ALLOC_CONF=value)
    assert one.level == "error" and f"malformed at {malformed};" in one.text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "max_split_size_mb:64,",
        "max_split_size_mb: 64 , expandable_segments:True",
        "roundup_power2_divisions:[256:1,512:2,>:4]",
        "backend:native",
    ],
)
def test_what_torch_takes_is_not_malformed(value):
    assert not allocator(NVIDIA, PYTORCH_CUDA_ALLOC_CONF=value)


def test_older_torch_may_not_read_the_new_name():
    old = replace(NVIDIA, torch="2.9.1+cu128")
    (one,) = allocator(old, PYTORCH_ALLOC_CONF="expandable_segments:True")
    assert "2.9.1" in one.text and "PYTORCH_CUDA_ALLOC_CONF" in one.remedy
    assert not allocator(old, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


# The architecture and its override.


@pytest.mark.parametrize(
    ("real", "value", "rocm", "found"),
    [
        ("gfx1031", "10.3.0", "7.2.1", ["info"]),
        ("gfx1030", "10.3.0", "7.2.1", ["info"]),
        ("gfx1100", "10.3.0", "7.2.1", ["error"]),
        ("gfx90a", "10.3.0", "7.2.1", ["error"]),
        ("gfx90a", "9.0.a", "7.2.1", ["info"]),
        (None, "10.3.0", "7.2.1", ["info"]),
        ("gfx1031", "10.3.0", "7.14.0", ["warning", "info"]),
        ("gfx1031", "", "7.14.0", []),
    ],
)
def test_an_override_is_held_against_the_hardware(real, value, rocm, found):
    environment = {"HSA_OVERRIDE_GFX_VERSION": value}
    entries = {"hardware_arch": real, "rocm": rocm, "environment": environment}
    assert levels(AMD, "override", **entries) == found


def test_an_override_is_not_said_to_be_unneeded_where_another_is_recommended():
    environment = {"HSA_OVERRIDE_GFX_VERSION": "10.3.1"}
    entries = {"rocm": "7.2.1", "hardware_arch": "gfx1031", "environment": environment}
    assert levels(AMD, "override", **entries) == []
    assert levels(AMD, "environment", **entries) == ["warning"]
    built = (*AMD.built_for, "gfx1031")
    assert levels(AMD, "override", built_for=built, **entries) == ["info"]


def test_an_override_on_nvidia_is_only_said_to_have_no_effect():
    environment = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    assert levels(NVIDIA, "override", environment=environment) == []
    assert "Only ROCm reads it" in text(NVIDIA, "environment", environment=environment)


@pytest.mark.parametrize(
    ("platform", "arch", "found"),
    [
        (AMD, "gfx1100", []),
        (AMD, "gfx1031", ["error"]),
        (NVIDIA, "sm_90", []),
        (NVIDIA, "sm_86", []),
        (NVIDIA, "sm_103", []),
        (NVIDIA, "sm_121", []),
        (NVIDIA, "sm_70", ["error"]),
        (NVIDIA, "", []),
    ],
)
def test_torch_has_to_have_code_for_the_gpu(platform, arch, found):
    built = (*platform.built_for, "sm_80")
    assert levels(platform, "device", arch=arch, built_for=built) == found


def test_triton_that_refuses_rdna2_is_found():
    def ids(arch, triton):
        found = findings(AMD, "known issue", arch=arch, hardware_arch=arch, triton=triton)
        return {one.id for one in found}

    for arch in ("gfx1030", "gfx1031"):
        assert "triton-rdna2" in ids(arch, "3.9.0")
        assert "triton-rdna2" not in ids(arch, "3.8.0")


# Other settings.


def test_a_malformed_setting_is_an_error():
    environment = {"GFXGRAPH_VRAM_CAP": "80%"}
    (one,) = findings(NVIDIA, "settings", environment=environment)
    assert one.level == "error" and "GFXGRAPH_VRAM_CAP='80%'" in one.text
    assert levels(NVIDIA, "memory", environment=environment) == []


def test_gfxgraph_that_is_switched_off_is_said():
    environment = {"SGLANG_DISABLE_GFXGRAPH": "1"}
    assert levels(NVIDIA, "settings", environment=environment) == ["info"]


def test_a_variable_without_effect_is_a_warning_with_a_remedy():
    (one,) = findings(AMD, "environment", environment={"HIP_GRAPH_ENABLED": "1"})
    assert one.level == "warning" and one.remedy == "unset HIP_GRAPH_ENABLED"


def test_what_avoids_a_known_issue_is_said_once():
    assert "DEBUG_HIP" not in text(AMD, "environment", rocm="7.2.4")
    assert "HSA_OVERRIDE" in text(AMD, "environment", rocm="7.2.4", hardware_arch="gfx1031")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "gfxgraph run sets it"),
        ({"HSA_OVERRIDE_GFX_VERSION": "10.3.1"}, "set to '10.3.1', which gfxgraph run leaves"),
    ],
)
def test_run_is_said_to_set_only_what_it_sets(environment, said):
    entries = {"rocm": "7.2.1", "hardware_arch": "gfx1031", "environment": environment}
    (one,) = findings(AMD, "environment", **entries)
    assert said in one.remedy


def test_missing_packages_are_said_where_they_matter():
    missing = {"bindings": "", "triton": ""}
    assert levels(NVIDIA, "packages", **missing) == ["info", "info"]
    assert levels(NONE, "packages", **missing) == []


# What a platform file leaves out is not known.


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "emulated"])
def test_what_is_left_out_is_not_said_to_be_missing(vendor, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"vendor": vendor}))
    out = " ".join(doctor("--platform", path).stdout.split())
    for claim in ("not installed", "not set", "no driver", "There is no GPU", "CPU alone"):
        assert claim not in out
    assert "Triton not known" in out


@pytest.mark.parametrize("entries", [{}, {"triton": None, "bindings": None, "built_for": None}])
def test_null_is_not_known_either(entries):
    platform = Platform.from_dict({"vendor": "nvidia"} | entries)
    assert levels(platform, "packages") == []
    assert "bindings  cuda-bindings not known" in shown(diagnose(platform))


def test_an_empty_string_says_that_it_is_not_installed():
    platform = Platform.from_dict({"vendor": "nvidia", "triton": "", "bindings": ""})
    assert levels(platform, "packages") == ["info", "info"]
    assert "bindings  cuda-bindings not installed" in shown(diagnose(platform))


def test_this_machine_says_of_all_packages_whether_they_are_installed():
    found = this_platform()
    for name in ("triton", "vllm", "cuda", "rocm", "built_for", "device_files", "environment"):
        assert getattr(found, name) is not None, name
    assert Platform.from_dict(found.to_dict()) == found


def test_a_platform_that_is_written_and_read_is_the_same():
    for platform in (AMD, NVIDIA, NONE, BAD, Platform("amd"), Platform("emulated")):
        assert Platform.from_dict(json.loads(json.dumps(platform.to_dict()))) == platform


def test_a_version_that_is_left_out_leaves_an_issue_of_it_open():
    found = findings(AMD, "known issue", arch="gfx1030", triton=None)
    (one,) = [finding for finding in found if finding.id == "triton-rdna2"]
    assert not one.certain and "the version of Triton is not known" in one.text


def test_a_machine_whose_torch_is_not_known_is_not_said_to_have_one_for_the_cpu():
    (one,) = findings(Platform("emulated", device_files=("/dev/kfd",)), "device")
    assert "CPU alone" not in one.text and "torch cannot use it" in one.text


# GPUs that no official wheel has code for.


@pytest.mark.parametrize("arch", [f"gfx103{n}" for n in range(1, 7)])
@pytest.mark.parametrize("rocm", [None, "6.4.3", "7.2", "7.14.0"])
def test_rdna2_without_code_is_told_of_the_override_and_its_caveat(arch, rocm):
    (one,) = findings(Platform("amd", arch=arch, rocm=rocm), "device")
    assert (one.level, one.certain) == ("warning", False)
    assert f"no official wheel has code for {arch}" in one.text
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0" in one.remedy
    assert "not an official workaround" in one.remedy and "7.14" in one.remedy
    assert levels(Platform("amd", arch=arch, rocm=rocm), "environment") == []  # said once


@pytest.mark.parametrize("rocm", ["6.4.3", "7.14.0"])
def test_where_torch_is_known_to_lack_it_the_error_says_the_same(rocm):
    (one,) = findings(AMD, "device", arch="gfx1031", hardware_arch="gfx1031", rocm=rocm)
    assert one.level == "error" and "HSA_OVERRIDE_GFX_VERSION=10.3.0" in one.remedy


@pytest.mark.parametrize(
    "entries",
    [
        {"arch": "gfx1030"},
        {"arch": "gfx1100"},
        {"arch": ""},
        {"arch": "gfx1031", "built_for": ("gfx1030", "gfx1031")},
        {"arch": "gfx1030", "hardware_arch": "gfx1031"},  # the override is in force
        {"arch": "gfx1031", "environment": {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}},
    ],
)
def test_where_there_is_code_or_the_override_it_is_not(entries):
    assert findings(Platform("amd", **entries), "device") == []


# Variables for debugging.


@pytest.mark.parametrize(
    ("platform", "name", "value", "level"),
    [
        (AMD, "HIP_LAUNCH_BLOCKING", "1", "warning"),
        (AMD, "AMD_LOG_LEVEL", "4", "warning"),
        (AMD, "AMD_LOG_LEVEL", "1", "info"),
        (AMD, "AMD_SERIALIZE_KERNEL", "3", "warning"),
        (AMD, "AMD_SERIALIZE_COPY", "3", "warning"),
        (AMD, "DEBUG_HIP_GRAPH_DOT_PRINT", "1", "warning"),
        (NVIDIA, "CUDA_LAUNCH_BLOCKING", "1", "warning"),
    ],
)
def test_a_variable_that_slows_everything_is_found(platform, name, value, level):
    (one,) = findings(platform, "environment", environment={name: value})
    assert (one.level, one.remedy) == (level, f"unset {name}")
    assert one.text.startswith(f"{name} is set to '{value}'. ")
    assert findings(platform, "environment", environment={name: "0"}) == []
    assert findings(platform, "environment", environment={name: ""}) == []


def test_what_libraries_need_is_said_on_a_gpu():
    assert "fft, conv2d" in text(NVIDIA, "libraries")
    assert [one.certain for one in findings(AMD, "libraries")] == [False]  # measured on NVIDIA
    assert findings(NONE, "libraries") == []


def test_every_source_can_be_opened_from_anywhere():
    for platform in (AMD, NVIDIA, NONE, BAD):
        for one in diagnose(platform).findings:
            assert all(source.startswith("https://") for source in one.sources)


# No GPU.


def test_without_a_gpu_it_says_what_can_be_told_and_what_not():
    (one,) = findings(NONE, "device")
    assert one.level == "info" and "Checked:" in one.text and "Not checked:" in one.text
    assert "--platform FILE" in one.remedy


def test_a_gpu_that_torch_does_not_use_is_a_warning():
    (one,) = findings(NONE, "device", device_files=("/dev/kfd",))
    assert one.level == "warning" and "/dev/kfd" in one.text and "CPU alone" in one.text
    (one,) = findings(NONE, "device", device_files=("/dev/kfd",), rocm="7.2")
    assert "torch cannot use it" in one.text and "groups render and video" in one.remedy


def test_an_override_may_be_why_torch_cannot_use_the_gpu():
    hidden = replace(
        NONE,
        rocm="7.2",
        device_files=("/dev/kfd",),
        hardware_arch="gfx1031",
        environment={"HSA_OVERRIDE_GFX_VERSION": "11.0.0", "PYTORCH_HIP_ALLOC_CONF": BOTH},
    )
    (one,) = findings(hidden, "device")
    assert one.remedy.startswith("HSA_OVERRIDE_GFX_VERSION=11.0.0 may be the cause")
    assert levels(hidden, "override") == ["error"]  # of another major number
    assert levels(hidden, "environment") == []
    assert "together" in text(hidden, "allocator")
    both = hidden.environment | {"PYTORCH_ALLOC_CONF": ""}
    assert "torch reads PYTORCH_HIP" in text(hidden, "allocator", environment=both)
    assert "hardware  gfx1031" in shown(diagnose(hidden))


# The health check, in a process of its own.

HEALTH = {
    "ok": True,
    "tier": "driver",
    "native_bridge": True,
    "details": "captured and replayed on nvidia sm_90",
}


def child(code, timeout=60):
    lines = f"platform, health = {json.dumps(NVIDIA.to_dict())!r}, {json.dumps(HEALTH)!r}\n"
    return probe([sys.executable, "-c", lines + code], timeout)


def of_health(answer):
    (one,) = [one for one in diagnose(None, answer).findings if one.check == "health"]
    return one


@pytest.mark.long
def test_this_machine_is_asked_and_captures_a_graph(device):
    answer = probe()
    assert answer.problem is None and answer.health["ok"]
    assert answer.health["tier"] == current_device().tier
    assert of_health(answer).level == "ok"
    assert ("emulated device" in of_health(answer).text) == (current_device().kind == "emulated")


def test_it_is_said_that_only_torch_answers():
    alone = {**HEALTH, "tier": "torch", "native_bridge": False}
    said = of_health(Probe(NVIDIA, alone, None))
    assert said.level == "ok" and "The driver itself was not reached" in said.text
    assert "not reached" not in of_health(Probe(NVIDIA, HEALTH, None)).text


def test_other_output_does_not_disturb():
    answer = child("print('loading', platform, '{}', '{', 3, sep='\\n'); print(health)")
    assert answer == Probe(NVIDIA, HEALTH, None)


def test_a_driver_that_crashes_is_a_finding():
    answer = child("import os; print(platform, flush=True); os.abort()")
    assert answer.platform == NVIDIA
    one = of_health(answer)
    assert one.level == "error" and "captures a small graph ended by SIGABRT" in one.text
    assert diagnose(None, answer).status == 2


def test_a_machine_that_does_not_say_what_it_is_is_a_finding():
    answer = child("raise OSError('no driver')")
    assert answer.platform is None
    one = of_health(answer)
    assert "looks at the device ended by status 1: OSError: no driver." in one.text
    assert [f.check for f in diagnose(None, answer).findings] == ["health"]
    assert "no driver" in shown(diagnose(None, answer))


def test_a_driver_that_hangs_is_a_finding():
    answer = child("print(platform, flush=True); import time; time.sleep(60)", timeout=1)
    assert answer.platform == NVIDIA and "did not answer for 1 s" in of_health(answer).text


def test_a_crash_at_the_end_is_a_finding():
    one = of_health(child("import os; print(platform, health, sep='\\n', flush=True); os.abort()"))
    assert one.level == "error" and "worked, and then its process ended by SIGABRT" in one.text


def test_a_graph_that_gives_a_wrong_result_is_an_error():
    health = HEALTH | {"ok": False, "details": "a replay gave a wrong result"}
    one = of_health(Probe(NVIDIA, health, None))
    assert one.level == "error" and "wrong result" in one.text


# What is shown.


shown = functools.partial(command.shown, show)


BAD = replace(
    AMD,
    arch="gfx1030",
    hardware_arch="gfx1031",
    rocm="7.2",
    environment={"PYTORCH_CUDA_ALLOC_CONF": BOTH, "HIP_GRAPH_ENABLED": "1"},
)


@pytest.mark.parametrize("width", [60, 80])
def test_prose_fits_the_terminal_and_links_are_not_cut(width):
    out = shown(diagnose(BAD), width=width)
    for line in out.splitlines():
        assert len(line) <= width or re.fullmatch(r"\s*(https://\S+|\S+)", line), line
    for one in diagnose(BAD).findings:
        assert all(source in out for source in one.sources)
    assert BOTH in "".join(out.split()) and "…" not in out and "\x1b" not in out


def test_the_verdict_comes_first_then_the_machine():
    lines = shown(diagnose(BAD)).splitlines()
    assert re.match(r"device +AMD Instinct MI300X \(gfx1030, really gfx1031\)", lines[2])
    assert "nothing was run there" in shown(diagnose(BAD))
    found = [one.level for one in diagnose(BAD).findings]
    assert (found.count("error"), found.count("warning")) == (1, 6)
    assert lines[0] == "1 error and 6 warnings."


@pytest.mark.parametrize("platform", [AMD, NVIDIA])
def test_driver_runtime_torch_triton_and_bindings_are_shown(platform):
    out = shown(diagnose(platform))
    for value in (platform.driver, platform.rocm or platform.cuda, platform.torch, platform.triton):
        assert f" {value}" in out
    assert (
        f"-bindings-hip {platform.bindings}" in out or f"cuda-bindings {platform.bindings}" in out
    )


def test_a_terminal_gets_colours():
    coloured = shown(diagnose(BAD), force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == shown(diagnose(BAD))


# The command.


def doctor(*args):
    return gfxgraph_command("doctor", *args)


def test_json_has_a_fixed_shape(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(BAD.to_dict()))
    result = doctor("--platform", path, "--json")
    report = json.loads(result.stdout)
    assert list(report) == ["schema", "status", "here", "platform", "health", "findings"]
    assert (report["schema"], report["status"], report["here"]) == (1, "error", False)
    assert report["health"] is None and Platform.from_dict(report["platform"]) == BAD
    for one in report["findings"]:
        assert list(one) == ["check", "level", "text", "remedy", "sources", "certain", "id"]
        assert one["level"] in ("error", "warning", "info", "ok")
        assert one["check"] in (*CHECKS, "health")
    assert result.exit_code == 2
    # What it wrote is what it takes.
    path.write_text(result.stdout)
    assert json.loads(doctor("--platform", path, "--json").stdout) == report


def test_a_graph_that_failed_on_the_other_machine_is_still_said_to_have_failed(tmp_path):
    path = tmp_path / "p.json"
    failed = Probe(NVIDIA, HEALTH | {"ok": False, "details": "a wrong result"}, None)
    path.write_text(json.dumps(diagnose(None, failed).to_dict()))
    result = doctor("--platform", path)
    assert result.exit_code == 2 and "error health: A small graph does not work" in result.stdout
    path.write_text(doctor("--platform", path, "--json").stdout)
    assert doctor("--platform", path).stdout == result.stdout


@pytest.mark.parametrize("one", [3, {}, {"check": "health"}, {"check": "health", "level": "bad"}])
def test_a_finding_that_doctor_did_not_write_is_refused(tmp_path, one):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"platform": NVIDIA.to_dict(), "findings": [one]}))
    result = doctor("--platform", path)
    assert result.exit_code == 2 and "are not as gfxgraph doctor" in result.stderr


def test_a_machine_that_could_not_be_asked_is_no_platform(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps(diagnose(None, child("raise OSError('no driver')")).to_dict()))
    result = doctor("--platform", path)
    assert result.exit_code == 2 and not result.stdout
    assert "doctor could not query that machine" in result.stderr


@pytest.mark.long
def test_python_m_gfxgraph_is_the_command(device):
    done = python("-m", "gfxgraph", "doctor", "--json")
    report = json.loads(done.stdout)
    assert report["here"] and report["health"]["ok"] and not done.stderr
    assert done.returncode == ("ok", "warning", "error").index(report["status"])
    assert report["platform"]["torch"]


def test_a_platform_that_cannot_be_read_is_status_2_with_nothing_on_standard_output(tmp_path):
    result = doctor("--platform", tmp_path / "none.json")
    assert result.exit_code == 2 and not result.stdout and "Error: " in result.stderr
