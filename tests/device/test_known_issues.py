"""Each known issue is found on the platforms it was reported for, and on no neighbour of them."""

from __future__ import annotations

import pytest

from gfxgraph.device.known_issues import Range, issues_of, known_issues, within
from gfxgraph.device.platform import Platform
from tests.helpers.paths import ROOT

FOLDERS = ("src", "tests", "docs", "benchmarks", "examples", "requirements")
FULL = {"rocm": "7.14.0", "torch": "2.11.0", "triton": "3.5.1", "vllm": ""}


def found(vendor="amd", **entries):
    """id -> whether it is certain."""
    platform = Platform(vendor, **(FULL | entries))
    return {match.issue.id: not match.unknown for match in issues_of(platform)}


# id: a platform that has it, and such that differ in one thing and do not.
WHERE = {
    "pt#155684": (
        {"arch": "gfx1030", "rocm": "7.13.9"},
        [{"rocm": "7.14.0"}, {"rocm": "10.1"}, {"vendor": "nvidia"}],
    ),
    "pt#155720": (
        {"arch": "gfx942", "rocm": "6.4.1"},
        [{"rocm": "7.2.0"}, {"rocm": "6.2.4"}, {"arch": "gfx90a"}],
    ),
    "hip#3876": (
        {"arch": "gfx942", "rocm": "7.2.0"},
        [{"rocm": "7.2.1"}, {"rocm": "6.4.3"}, {"vendor": "nvidia"}],
    ),
    "pt#131782": ({"arch": "gfx1100"}, [{"vendor": "emulated"}]),
    "TheRock#4476": ({"arch": "gfx1100"}, [{"vendor": "nvidia"}]),
    "pt#193668": (
        {"arch": "gfx1031", "rocm": "7.2.4"},
        [{"arch": "gfx1030"}, {"rocm": "7.14.0"}, {"vendor": "nvidia"}],
    ),
    "llama-cpp-turboquant#297": ({"arch": "gfx1030"}, [{"arch": "gfx1031"}, {"arch": "gfx1100"}]),
    "clr#279": (
        {"arch": "gfx942", "rocm": "7.2.3"},
        [{"rocm": "7.1.1"}, {"rocm": "7.2.4"}, {"rocm": "7.13"}, {"arch": "gfx950"}],
    ),
    "hip#3887": ({"arch": "gfx1201"}, [{"arch": "gfx1200"}, {"arch": "gfx1100"}]),
    "hip#3902": (
        {"arch": "gfx950", "rocm": "7.2.4"},
        [{"rocm": "7.1.1"}, {"rocm": "7.3"}, {"arch": "gfx942"}],
    ),
    "rs#6888": (
        {"arch": "gfx950", "rocm": "7.2.4"},
        [{"rocm": "7.2.3"}, {"rocm": "7.3.0"}, {"rocm": "7.13"}, {"vendor": "nvidia"}],
    ),
    "rs#10021": (
        {"arch": "gfx1100", "rocm": "7.14.60850"},
        [{"rocm": "6.4.3"}, {"rocm": "7.15"}, {"arch": "gfx1101"}],
    ),
    "pt#184265": (
        {"arch": "gfx950", "rocm": "7.0.0"},
        [{"rocm": "6.4.4"}, {"rocm": "8.0"}, {"arch": "gfx942"}],
    ),
    "legacy-rocm-build#6603": (
        {"arch": "gfx1201", "rocm": "7.14.0"},
        [{"rocm": "7.13.0"}, {"arch": "gfx1030"}],
    ),
    "vllm#35485": ({"arch": "gfx1151"}, [{"arch": "gfx1030"}, {"arch": "gfx1250"}]),
    "pt#187715": (
        {"arch": "gfx942", "rocm": "7.0.2", "torch": "2.10.0+rocm7.0"},
        [{"rocm": "7.1.0"}, {"torch": "2.11.0"}, {"torch": "2.9.1"}, {"arch": "gfx90a"}],
    ),
    "vllm#13418": (
        {"arch": "gfx90a", "vllm": "0.7.3"},
        [{"vllm": "0.8.0"}, {"vllm": ""}, {"vendor": "nvidia"}],
    ),
    "warp#1957": (
        {"arch": "gfx942", "rocm": "7.2.0"},
        [{"rocm": "7.1.1"}, {"rocm": "7.3"}, {"arch": "gfx1100"}],
    ),
    "triton-rdna2": (
        {"arch": "gfx1031", "triton": "3.9.0"},
        [{"triton": "3.8.1"}, {"triton": ""}, {"arch": "gfx1100"}],
    ),
}
NEIGHBOURS = [(id, there, other) for id, (there, others) in WHERE.items() for other in others]


def test_every_issue_of_the_file_has_a_case_here():
    assert [issue.id for issue in known_issues()] == list(WHERE)


@pytest.mark.parametrize("id", WHERE)
def test_an_issue_is_found_where_it_was_reported(id):
    assert found(**WHERE[id][0])[id] is True


@pytest.mark.parametrize(
    ("id", "there", "other"), NEIGHBOURS, ids=[f"{id}-{o}" for id, _, o in NEIGHBOURS]
)
def test_it_is_not_found_next_to_it(id, there, other):
    assert id not in found(**(there | other))


def test_an_issue_for_two_architectures_is_found_on_both():
    assert "legacy-rocm-build#6603" in found(arch="gfx1100")
    for stepping in range(7):  # RDNA2
        assert "triton-rdna2" in found(arch=f"gfx103{stepping}", triton="3.9.0")
    assert "vllm#35485" in found(arch="gfx1201")
    assert "pt#131782" in found("nvidia", arch="sm_90")


def test_an_emulated_device_has_no_issues_of_a_gpu():
    assert found("emulated", arch="x86_64") == {}


def test_a_version_that_is_known_in_part_leaves_it_open():
    open_ones = found(arch="gfx942", rocm="7.2")
    assert {id for id, certain in open_ones.items() if not certain} == {
        "hip#3876",
        "clr#279",
        "rs#6888",
    }
    assert open_ones["warp#1957"] and open_ones["pt#155684"]


def test_the_build_number_of_hip_is_no_patch_level():
    assert found(arch="gfx942", rocm="7.2.26015-fc0010cf6a") == found(arch="gfx942", rocm="7.2")


def test_the_symptom_comes_first():
    for issue in known_issues():
        assert not issue.symptom.startswith("Replays give the right results"), issue.id
    (one,) = [issue for issue in known_issues() if issue.id == "pt#193668"]
    assert one.symptom.startswith("The process may abort")


def test_no_file_names_the_host_of_a_package_registry():
    # In parts, so that this file does not either.
    registries = [("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org")]
    registries += [("download", "pytorch", "org"), ("registry", "npmjs", "org"), ("crates", "io")]
    found = []
    tops = [*ROOT.glob("*.*"), ROOT / "Makefile", *ROOT.glob(".ci/*")]
    for path in (*tops, *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))):
        if path.is_file() and "__pycache__" not in path.parts:
            text = path.read_bytes()
            found += [(path, host) for host in registries if ".".join(host).encode() in text]
    assert found == []


def test_what_is_not_known_at_all_is_named():
    (match,) = [m for m in issues_of(Platform("amd", rocm="7.2.4")) if m.issue.id == "hip#3902"]
    assert match.unknown == ("the architecture is not known (affected: gfx950)",)
    (match,) = [m for m in issues_of(Platform("amd", arch="gfx950")) if m.issue.id == "hip#3902"]
    assert match.unknown == ("the version of ROCm is not known (affected: from 7.2 before 7.3)",)


def test_under_an_override_both_architectures_count():
    ids = found(arch="gfx1030", hardware_arch="gfx1031", rocm="7.2.4")
    assert {"pt#193668", "llama-cpp-turboquant#297"} <= ids.keys()


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("7.1.9", False),
        ("7.2.0", True),
        ("7.2.3", True),
        ("7.2.4", False),
        ("7.2", None),
        ("7", None),
        ("7.3", False),
        ("10.1", False),
        ("6.4.43482-0f2d60242", False),
        ("7.2.1+git", True),
        ("", None),
    ],
)
def test_a_range_holds_its_start_and_not_its_end(version, inside):
    assert within(version, Range("7.2.0", "7.2.4")) is inside


def test_a_range_may_be_open():
    assert within("9", Range("7.14")) and not within("7.13", Range("7.14"))
    assert within("6.4", Range(before="7")) and within("7.2", Range())
    assert str(Range("7", "8")) == "from 7 before 8" and str(Range()) == "all"


def test_a_workaround_promises_nothing_that_a_report_denies():
    workarounds = {issue.id: issue.workaround for issue in known_issues()}
    assert "reported not to prevent it" in workarounds["hip#3876"]
    assert "gfxgraph.guard_rng()" in workarounds["pt#131782"]


def test_each_issue_says_what_happens_what_to_do_and_where_it_is_from():
    for issue in known_issues():
        assert issue.symptom.endswith(".") and issue.workaround.endswith(".")
        assert issue.links and all(link.startswith("https://") for link in issue.links)
        assert issue.severity in ("error", "warning", "info")
        assert set(issue.vendors) <= {"amd", "nvidia"} and issue.vendors
        assert set(issue.versions) <= {"rocm", "torch", "triton", "vllm"}
