"""The environment variables: what they take, and what is said when they hold something else."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gfxgraph
from gfxgraph.errors import SettingError
from gfxgraph.settings import Settings, from_environment


def test_an_empty_environment_gives_the_defaults():
    assert from_environment({}) == Settings()
    assert Settings().vram_cap == 0.80 and Settings().mode == "off"


def test_every_variable_is_read():
    assert from_environment(
        {
            "GFXGRAPH": "Validate",
            "GFXGRAPH_VRAM_CAP": "0.5",
            "HGB_LOG_LEVEL": "debug",
            "SGLANG_RDNA2_KERNELS": "1",
            "SGLANG_DISABLE_GFXGRAPH": "1",
            "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
            "GFXGRAPH_VALIDATE_EVERY": "7",
        }
    ) == Settings("validate", 0.5, logging.DEBUG, True, True, "10.3.0", 7)


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("GFXGRAPH", "yes", "'debug', 'validate'"),
        ("GFXGRAPH_VRAM_CAP", "80%", "0.0 to 1.0"),
        ("GFXGRAPH_VRAM_CAP", "1.5", "0.0 to 1.0"),
        ("GFXGRAPH_VRAM_CAP", "nan", "0.0 to 1.0"),
        ("HGB_LOG_LEVEL", "loud", "'warn', 'error'"),
        ("SGLANG_RDNA2_KERNELS", "on", "'1'"),
        ("SGLANG_DISABLE_GFXGRAPH", "true", "'1'"),
        ("HSA_OVERRIDE_GFX_VERSION", "gfx1030", "'10.3.0'"),
    ],
)
def test_a_malformed_value_is_an_error_that_names_the_variable(name, value, takes):
    with pytest.raises(SettingError, match=name) as error:
        from_environment({name: value})
    assert repr(value) in str(error.value) and takes in str(error.value)


@pytest.mark.parametrize(
    ("environment", "imported"),
    [({"GFXGRAPH_VRAM_CAP": "80%"}, True), ({"GFXGRAPH": "yes"}, False)],
)
def test_importing_asks_for_the_switch_alone(environment, imported):
    child = subprocess.run(
        [sys.executable, "-c", "import gfxgraph"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (child.returncode == 0) == imported
    assert imported or "SettingError: GFXGRAPH='yes'" in child.stderr


MALFORMED = [
    {"GFXGRAPH": "bogus"},
    {"GFXGRAPH": "1", "HGB_LOG_LEVEL": "xx"},
]


def command(*args, how=("-m", "gfxgraph"), **environment):
    return subprocess.run(
        [sys.executable, *how, *args],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("environment", MALFORMED)
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
    source = str(Path(gfxgraph.__file__).parents[1])
    done = command("env", how=[script], GFXGRAPH="bogus", PYTHONPATH=source)
    assert done.returncode == 2 and done.stderr.startswith("Error: GFXGRAPH='bogus'")


def test_run_refuses_a_setting_that_the_program_could_not_be_enabled_with(tmp_path):
    script = tmp_path / "x.py"
    script.write_text("print('it ran')")
    done = command("run", script, GFXGRAPH_VRAM_CAP="80%")
    assert done.returncode == 2 and done.stderr.startswith("Error: GFXGRAPH_VRAM_CAP='80%'")
    assert command("run", script, GFXGRAPH_VRAM_CAP="80%", GFXGRAPH="0").stdout == "it ran\n"
