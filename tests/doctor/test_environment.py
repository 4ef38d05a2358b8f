"""What ``gfxgraph env`` recommends where, that shells take it, and what has no effect."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch

from gfxgraph.device import platform as platforms
from gfxgraph.device.platform import Platform, read_platform, this_platform
from gfxgraph.doctor import environment
from gfxgraph.doctor.environment import Variable, recommended, remarks, script
from gfxgraph.errors import ArgumentError
from tests.helpers.command import gfxgraph_command

MI355 = Platform("amd", arch="gfx950", rocm="7.2.4", torch="2.10.0")
RX6700 = Platform(
    "amd",
    arch="gfx1031",
    hardware_arch="gfx1031",
    rocm="7.2.1",
    torch="2.9.1",
    built_for=("gfx1030", "gfx1100"),
)
H200 = Platform("nvidia", arch="sm_90", cuda="13.0", torch="2.11.0+cu130")
NONE = Platform("emulated", arch="x86_64", torch="2.13.0+cpu")
SEGMENTS = "DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING"


def with_set(platform, **variables):
    return replace(platform, environment=variables)


def values(platform):
    return {one.name: one.value for one in recommended(platform)}


# What is recommended.


def test_rocm_7_2_4_needs_segment_scheduling_off():
    (one,) = recommended(MI355)
    assert (one.name, one.value, one.certain, one.set_to) == (SEGMENTS, "0", True, None)
    assert "several threads" in one.reason and one.source.endswith("rocm-systems/issues/6888")
    assert values(replace(MI355, rocm="7.2.3")) == values(replace(MI355, rocm="7.14")) == {}


def test_where_only_7_2_is_known_it_is_perhaps_needed():
    (one,) = recommended(replace(MI355, rocm="7.2"))
    assert not one.certain
    assert "Perhaps needed" in script(replace(MI355, rocm="7.2"))


def test_gfx1031_is_taken_for_gfx1030_where_torch_has_code_for_that_alone():
    assert values(RX6700) == {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    assert values(replace(RX6700, built_for=("gfx1030", "gfx1031"))) == {}
    assert values(replace(RX6700, rocm="7.14.0")) == {}
    assert values(replace(RX6700, built_for=())) == {}
    assert values(replace(RX6700, arch="gfx1030")) == values(RX6700)  # the override is in force
    assert values(replace(RX6700, arch="gfx1030", hardware_arch="gfx1030")) == {}


@pytest.mark.parametrize("platform", [H200, NONE])
def test_without_an_amd_gpu_nothing_is_to_be_set_and_that_is_said(platform):
    assert recommended(platform) == []
    assert script(platform).startswith("# Nothing to set")


# What has no effect.


@pytest.mark.parametrize("name", ["HIP_CACHE_ENABLED", "HIP_GRAPH_ENABLED"])
@pytest.mark.parametrize("platform", [MI355, H200, NONE])
def test_a_variable_that_nothing_reads_is_named(name, platform):
    (one,) = remarks(with_set(platform, **{name: "1"}))
    assert one.name == name and "Nothing reads it" in one.text


def test_the_architectures_of_a_build_have_no_effect_on_a_wheel():
    (one,) = remarks(with_set(MI355, PYTORCH_ROCM_ARCH="gfx950"))
    assert "installed wheel" in one.text


def test_serialized_kernels_are_not_serialized_in_a_replay():
    (one,) = remarks(with_set(MI355, AMD_SERIALIZE_KERNEL="3"))
    assert "replay" in one.text
    assert remarks(with_set(MI355, AMD_SERIALIZE_KERNEL="0")) == []


def test_variables_of_rocm_have_no_effect_on_nvidia():
    set_to = {SEGMENTS: "0", "PYTORCH_HIP_ALLOC_CONF": "backend:native", "HIP_LAUNCH_BLOCKING": "1"}
    assert {one.name for one in remarks(with_set(H200, **set_to))} == set(set_to)
    assert remarks(with_set(MI355, **set_to)) == []


@pytest.mark.parametrize("entries", [{"rocm": "7.2"}, {"device_files": ("/dev/kfd",)}])
def test_they_may_have_one_where_torch_cannot_use_its_amd_gpu(entries):
    platform = replace(NONE, **entries)
    assert remarks(with_set(platform, HSA_OVERRIDE_GFX_VERSION="11.0.0")) == []
    assert remarks(with_set(NONE, HSA_OVERRIDE_GFX_VERSION="11.0.0")) != []


def test_a_variable_that_is_set_to_nothing_is_not_set():
    assert remarks(with_set(MI355, HIP_GRAPH_ENABLED="")) == []


# Lines for shells.

ODD = 'it\'s $HOME; \\ `x` "y" # z'


def odd(monkeypatch):
    one = Variable("GFXGRAPH_TEST", ODD, "Two\nlines: $(exit 3)", "https://x", True, "a\nb")
    monkeypatch.setattr(environment, "recommended", lambda platform: [one])


@pytest.mark.parametrize(
    ("shell", "command"),
    [
        ("sh", ["sh", "-euc"]),
        ("sh", ["bash", "-euc"]),
        ("sh", ["zsh", "-euc"]),
        ("fish", ["fish", "-c"]),
        ("powershell", ["pwsh", "-Command"]),
    ],
)
def test_a_shell_gets_the_very_value(shell, command, monkeypatch):
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} here")
    odd(monkeypatch)
    lines = script(MI355, shell)
    show = "\nprintenv GFXGRAPH_TEST"
    done = subprocess.run([*command, lines + show], capture_output=True, text=True, timeout=30)
    assert done.stdout == f"{ODD}\n" and done.returncode == 0, done.stderr


def test_fish_and_powershell_have_their_own_quotes(monkeypatch):
    odd(monkeypatch)
    assert (
        script(MI355, "fish")
        .splitlines()[-1]
        .startswith("set -gx GFXGRAPH_TEST 'it\\'s $HOME; \\\\ `x` \"y\" # z'  # Two")
    )
    assert (
        script(MI355, "powershell")
        .splitlines()[-1]
        .startswith("$env:GFXGRAPH_TEST = 'it''s $HOME; \\ `x` \"y\" # z'  # Two")
    )


def test_each_line_sets_a_variable_or_is_a_comment():
    platform = with_set(MI355, HIP_GRAPH_ENABLED="1\n2", **{SEGMENTS: "1"})
    replaces, line, remark = script(platform).splitlines()
    assert replaces.startswith(f"# replaces {SEGMENTS}='1'")
    assert line.startswith(f"export {SEGMENTS}=0  # ") and line.endswith("/6888")
    assert remark.startswith("# HIP_GRAPH_ENABLED is set to '1\\n2'.")


# The command.


def env(*args):
    return gfxgraph_command("env", *args)


@pytest.fixture
def mi355(tmp_path):
    path = tmp_path / "mi355.json"
    path.write_text(json.dumps(with_set(MI355, HIP_GRAPH_ENABLED="1").to_dict()))
    return path


def test_the_command_prints_lines_or_json(mi355):
    assert env("--platform", mi355).stdout.startswith(f"export {SEGMENTS}=0  # ")
    assert f"set -gx {SEGMENTS} '0'" in env("--platform", mi355, "--shell", "fish").stdout
    report = json.loads(env("--platform", mi355, "--json").stdout)
    assert report.keys() == {"schema", "recommended", "no_effect"} and report["schema"] == 1
    (one,), (other,) = report["recommended"], report["no_effect"]
    assert one.keys() == {"name", "value", "reason", "source", "certain", "set_to"}
    assert other.keys() == {"name", "value", "text", "source"}


def test_an_unknown_shell_is_refused():
    result = env("--shell", "tcsh")
    assert result.exit_code == 2 and "sh, fish, powershell" in result.stderr


# Platforms.


def test_a_platform_comes_back_from_its_json(tmp_path):
    path = tmp_path / "p.json"
    platform = with_set(RX6700, GFXGRAPH="1")
    path.write_text(json.dumps(platform.to_dict()))
    assert read_platform(path) == platform
    path.write_text(json.dumps({"findings": [], "platform": platform.to_dict()}))
    assert read_platform(path) == platform


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[1]", "not list"),
        ("{}", "needs a vendor: nvidia, amd, emulated"),
        ('{"vendor": "intel"}', "expected one of nvidia"),
        ('{"vendor": "amd", "rocmm": "7"}', "no entry 'rocmm'"),
        ('{"vendor": "amd", "rocm": 7.2}', "rocm of a platform is 7.2, expected a string, or null"),
        ('{"vendor": "amd", "arch": null}', "expected a string"),
        ('{"vendor": "amd", "arch": "MI300X"}', "is 'MI300X', expected an architecture, such as"),
        ('{"vendor": "nvidia", "arch": "gfx942"}', "such as 'sm_90'"),
        ('{"vendor": "emulated", "hardware_arch": "RX 7900"}', "such as 'gfx942'"),
        ('{"vendor": "amd", "memory_free": -1}', "a number of bytes"),
        ('{"vendor": "amd", "memory_free": true}', "a number of bytes"),
        ('{"vendor": "amd", "built_for": "gfx1030"}', "a list of strings"),
        ('{"vendor": "amd", "environment": {"A": 1}}', "an object of strings"),
        ('{"vendor": ["amd"]}', "expected one of nvidia"),
    ],
)
def test_a_malformed_platform_is_refused_with_what_it_takes(tmp_path, text, problem):
    path = tmp_path / "p.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ArgumentError, match=problem):
        read_platform(path)
    result = env("--platform", path)
    assert result.exit_code == 2 and problem in " ".join(result.stderr.split())


def test_an_architecture_is_read_without_its_features():
    given = {"vendor": "amd", "arch": "gfx942:sramecc+:xnack-", "hardware_arch": "gfx942"}
    assert Platform.from_dict(given) == Platform("amd", arch="gfx942", hardware_arch="gfx942")


def test_this_platform_holds_only_the_variables_that_matter(device):
    found = this_platform({"GFXGRAPH": "1", "A_SECRET": "x"})
    assert found.environment == {"GFXGRAPH": "1"}
    assert found.torch == torch.__version__ and found.memory_total


def test_the_hardware_is_what_the_kernel_says(tmp_path):
    def node(number, version):
        folder = tmp_path / "sys/class/kfd/kfd/topology/nodes" / str(number)
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"simd_count 80\ngfx_target_version {version}\n")

    assert platforms._hardware_arch(tmp_path) is None
    node(0, 0)  # a CPU
    assert platforms._hardware_arch(tmp_path) is None
    node(1, 100301)
    assert platforms._hardware_arch(tmp_path) == "gfx1031"
    node(2, 100301)
    assert platforms._hardware_arch(tmp_path) == "gfx1031"
    node(3, 90010)
    assert platforms._hardware_arch(tmp_path) is None  # which of them is device 0?


@pytest.mark.parametrize(
    ("number", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110001, "gfx1101")]
)
def test_numbers_of_the_kernel_become_names(tmp_path, number, name):
    folder = tmp_path / "sys/class/kfd/kfd/topology/nodes/0"
    folder.mkdir(parents=True)
    (folder / "properties").write_text(f"gfx_target_version {number}\n")
    assert platforms._hardware_arch(tmp_path) == name


@pytest.mark.parametrize(
    ("hip", "torch_version", "rocm", "system", "found"),
    [
        (None, "2.13.0+cpu", None, None, ""),
        ("7.2.26015-fc0010cf6a", "2.10.0", None, None, "7.2"),
        ("7.2.26015-fc0010cf6a", "2.10.0+rocm7.2.4", None, None, "7.2.4"),
        ("7.14.60850", "2.12.0", "7.14.0", None, "7.14.0"),
        ("7.2.26015", "2.10.0+rocm7.2", None, "7.2.4-93\n", "7.2.4"),
        ("7.2.26015", "2.10.0+rocm7.2", None, "6.4.1-83\n", "7.2"),  # not what torch uses
        ("7.2.26015", "2.10.0+rocm6.4.1", None, None, "7.2"),
    ],
)
def test_rocm_is_told_as_precisely_as_something_says(
    hip, torch_version, rocm, system, found, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "rocm", rocm, raising=False)
    monkeypatch.setattr(torch, "__version__", torch_version)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch/__init__.py"))
    monkeypatch.setattr(platforms, "_installed", lambda *names: "")
    if system:
        (tmp_path / "opt/rocm/.info").mkdir(parents=True)
        (tmp_path / "opt/rocm/.info/version").write_text(system)
    assert platforms._rocm_version(tmp_path) == found
