"""The environment variables: what they take, and what is said when they hold something else."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

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
        }
    ) == Settings("validate", 0.5, logging.DEBUG, True, True, "10.3.0")


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
