"""The environment variables: what they take, and what is said when they hold something else."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys

import pytest

from gfxgraph import settings
from gfxgraph.errors import SettingError
from gfxgraph.settings import Settings, from_environment
from tests.helpers.paths import ROOT
from tests.helpers.processes import python
from tests.helpers.sampled import sampled


def test_an_empty_environment_gives_the_defaults():
    assert from_environment({}) == Settings()
    assert Settings().vram_cap == 0.80 and Settings().mode == "off"


def test_every_variable_has_a_row_on_its_page():
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    read = re.findall(r"^``([A-Z_]+)``  ", settings.__doc__, re.MULTILINE)
    assert len(read) > 10 and set(read) <= set(re.findall(r"^\| `([A-Z_]+)`", page, re.MULTILINE))


def test_every_variable_is_read():
    assert from_environment(
        {
            "GFXGRAPH": "Validate",
            "GFXGRAPH_VRAM_CAP": "0.5",
            "HGB_LOG_LEVEL": "debug",
            "HGB_LOG_FORMAT": "json",
            "SGLANG_RDNA2_KERNELS": "1",
            "SGLANG_DISABLE_GFXGRAPH": "1",
            "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
            "GFXGRAPH_VALIDATE_EVERY": "7",
            "GFXGRAPH_EMULATE": "1",
            "GFXGRAPH_LAZY": " 2.5",
            "GFXGRAPH_RELEASE_BELOW": "512",
        }
    ) == Settings("validate", 0.5, logging.DEBUG, True, True, "10.3.0", 7, "json", True, 2.5, 512.0)


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("GFXGRAPH", "yes", "'debug', 'validate'"),
        ("GFXGRAPH_VRAM_CAP", "80%", "0.0 to 1.0"),
        ("GFXGRAPH_VRAM_CAP", "1.5", "0.0 to 1.0"),
        ("GFXGRAPH_VRAM_CAP", "nan", "0.0 to 1.0"),
        ("HGB_LOG_LEVEL", "loud", "'warn', 'warning', 'error'"),
        ("HGB_LOG_FORMAT", "xml", "'text', 'json'"),
        ("SGLANG_RDNA2_KERNELS", "on", "'1'"),
        ("GFXGRAPH_EMULATE", "cuda", "'1'"),
        ("GFXGRAPH_TRACEBACK", "long", "'full'"),
        ("GFXGRAPH_LAZY", "0", "seconds, a number above 0"),
        ("GFXGRAPH_LAZY", "inf", "seconds, a number above 0"),
        ("GFXGRAPH_RELEASE_BELOW", "2 GB", "MiB, a number above 0"),
        ("GFXGRAPH_RELEASE_BELOW", "nan", "MiB, a number above 0"),
        ("SGLANG_DISABLE_GFXGRAPH", "true", "'1'"),
        ("HSA_OVERRIDE_GFX_VERSION", "gfx1030", "'10.3.0'"),
    ],
)
def test_a_malformed_value_is_an_error_that_names_the_variable(name, value, takes):
    with pytest.raises(SettingError, match=name) as error:
        from_environment({name: value})
    assert repr(value) in str(error.value) and takes in str(error.value)


NUMBERS = ("VRAM_CAP", "VALIDATE_EVERY", "LAZY", "RELEASE_BELOW")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", ["1_000", "+1", "-1", "nan", "inf", "1e999", "\u0661", "0x1", "true"]
)
def test_all_numbers_are_read_alike(name, value):
    with pytest.raises(SettingError, match=f"GFXGRAPH_{name}="):
        from_environment({f"GFXGRAPH_{name}": value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_number_is_one_that_is_not_set(name, value):
    assert from_environment({f"GFXGRAPH_{name}": value}) == Settings()


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_have_blanks_around_it(name):
    read = from_environment({f"GFXGRAPH_{name}": " 1 "})
    assert getattr(read, name.lower()) == 1


@pytest.mark.parametrize(
    ("environment", "imported"),
    [({"GFXGRAPH_VRAM_CAP": "80%"}, True), ({"GFXGRAPH": "yes"}, False)],
)
def test_importing_asks_for_the_switch_alone(environment, imported):
    child = python("-c", "import gfxgraph", **environment)
    assert (child.returncode == 0) == imported
    assert imported or "SettingError: GFXGRAPH='yes'" in child.stderr


MALFORMED = [
    {"GFXGRAPH": "bogus"},
    {"GFXGRAPH": "1", "HGB_LOG_LEVEL": "xx"},
]


def command(*args, **environment):
    return python("-m", "gfxgraph", *args, **environment)


@pytest.mark.parametrize("environment", sampled(MALFORMED, 3))
def test_doctor_reports_a_malformed_setting_as_an_error(environment):
    done = command("doctor", "--json", **environment)
    report = json.loads(done.stdout)
    (one,) = [one for one in report["findings"] if one["check"] == "settings"]
    assert one["level"] == "error" and list(environment)[-1] in one["text"]
    assert report["platform"]["environment"] == environment
    assert done.returncode == 2 and not done.stderr


@pytest.mark.parametrize("environment", MALFORMED)
@pytest.mark.parametrize("args", [["env"], ["run", "x.py"]])
def test_other_commands_say_a_malformed_setting_in_a_line(args, environment):
    done = command(*args, **environment)
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ") and list(environment)[-1] in line
    assert done.returncode == 2 and not done.stdout


def test_the_installed_command_does_so_too(tmp_path):
    script = tmp_path / "gfxgraph"
    script.write_text("from gfxgraph.cli import app\napp()\n")  # as pip writes it
    done = python(script, "env", GFXGRAPH="bogus")
    assert done.returncode == 2 and done.stderr.startswith("Error: GFXGRAPH='bogus'")


@pytest.mark.long
def test_run_refuses_a_setting_that_the_program_could_not_be_enabled_with(tmp_path):
    script = tmp_path / "x.py"
    script.write_text("print('it ran')")
    done = command("run", script, GFXGRAPH_VRAM_CAP="80%")
    assert done.returncode == 2 and done.stderr.startswith("Error: GFXGRAPH_VRAM_CAP='80%'")
    assert command("run", script, GFXGRAPH_VRAM_CAP="80%", GFXGRAPH="0").stdout == "it ran\n"


# ---- the log level without enable()

FALLS_BACK = """\
import torch, gfxgraph
graph = gfxgraph.graphed(lambda x: (print(end=''), x.cpu().numpy())[1])
graph(torch.ones(2)), graph(torch.ones(2))
"""


def stderr_of(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={k: v for k, v in os.environ.items() if k != "HGB_LOG_LEVEL"} | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.long
def test_the_log_level_of_the_environment_holds_without_enable():
    assert "fallback function=" in stderr_of(FALLS_BACK)
    assert "gfxgraph WARNING fallback" in stderr_of(FALLS_BACK, HGB_LOG_LEVEL="warn")
    log = stderr_of(FALLS_BACK, HGB_LOG_LEVEL="warning")
    assert "gfxgraph WARNING fallback" in log and "HGB_LOG_LEVEL" not in log
    assert stderr_of(FALLS_BACK, HGB_LOG_LEVEL="error") == ""
    replays = "import torch, gfxgraph; gfxgraph.graphed(torch.sin)(torch.ones(2))"
    assert stderr_of(replays) == ""
    assert "gfxgraph DEBUG capture_begin" in stderr_of(replays, HGB_LOG_LEVEL="debug")


@pytest.mark.long
def test_what_the_program_sets_up_later_gets_the_log_once():
    later = "import logging, gfxgraph\nlogging.basicConfig(format='mine %(message)s')\n"
    log = stderr_of(f"{later}{FALLS_BACK}", HGB_LOG_LEVEL="warn")
    assert log.count("fallback function=") == 1 and log.startswith("mine fallback")
    enabled = f"import gfxgraph; gfxgraph.enable()\n{later}{FALLS_BACK}"
    log = stderr_of(enabled, HGB_LOG_LEVEL="warn")
    assert log.count("fallback function=") == 1 and log.startswith("mine fallback")


def test_a_malformed_log_level_is_said_in_the_log():
    log = stderr_of(FALLS_BACK, HGB_LOG_LEVEL="loud")
    assert log.count("HGB_LOG_LEVEL='loud': this variable takes") >= 1


def test_an_empty_variable_is_one_that_is_not_set():
    names = ("GFXGRAPH", "HGB_LOG_LEVEL", "HGB_LOG_FORMAT", "SGLANG_RDNA2_KERNELS")
    assert from_environment(dict.fromkeys(names, " ")) == Settings()
