"""What ``check`` says of code as people write it is what a capture on a GPU was measured to do."""

from __future__ import annotations

import json

import pytest
import torch

from gfxgraph.errors import DeviceError
from tests.cases import capture_cases as cases
from tests.helpers.devices import LACKS_DRIVER
from tests.helpers.paths import RESULTS
from tests.helpers.sampled import sampled

MEASURED = json.loads((RESULTS / "cases.json").read_text("utf-8"))["cases"]


def test_there_are_many_more_cases_than_the_facts_list():
    assert len(MEASURED) > 150 and set(MEASURED) == set(cases.CASES)


# Measured with torch 2.11. From this version on torch does it without a copy or a read.
CAPTURES_FROM = {"assign_scalar_element": "2.15", "combinations": "2.14"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sampled(cases.CASES, 4))
def test_verdict_and_line_are_as_measured(name):
    if name == "scripted" and LACKS_DRIVER:
        pytest.skip("torch.jit would load the driver to compile it")
    try:
        report = cases.check_case(name)
    except DeviceError as error:  # autograd asks for an accelerator, which a CPU build denies
        assert name == "autograd_inside" and not torch.backends.cuda.is_built(), error
        return
    if name in CAPTURES_FROM and torch.__version__ >= CAPTURES_FROM[name]:
        assert report["verdict"] == "captures"
        return
    verdict, line = cases.agreement(cases.CASES[name], MEASURED[name], report)
    assert verdict in ("yes", "stricter") and line != "NOT NAMED", report
