"""``HGB_LOG_FORMAT=json``: each line of the log is a JSON object."""

from __future__ import annotations

import io
import json
import logging
from datetime import datetime

import pytest
import torch

import gfxgraph
from gfxgraph.stats import JsonLines, log
from tests.helpers.processes import python

FALLS_BACK = """
import torch, gfxgraph
graph = gfxgraph.graphed(lambda x: x.cpu().numpy())
graph(torch.ones(2)), graph(torch.ones(2))
"""


def stderr_of(code, **environment):
    done = python("-c", code, **{"HGB_LOG_LEVEL": "", "HGB_LOG_FORMAT": ""} | environment)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.fixture
def lines():
    """A stream that gets the log, as a handler of the program's own would print it."""
    stream, logger = io.StringIO(), logging.getLogger("gfxgraph")
    handler, level = logging.StreamHandler(stream), logger.level
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line, parse_constant=pytest.fail) for line in stream_lines(stream)]
    logger.removeHandler(handler)
    logger.setLevel(level)


def stream_lines(stream):
    return stream.getvalue().splitlines()


def test_each_line_is_an_object_with_time_level_event_and_fields():
    found = list(map(json.loads, stderr_of(FALLS_BACK, HGB_LOG_FORMAT="json")))
    assert [line["event"] for line in found] == ["fallback"]
    (line,) = found
    assert line.keys() == {"time", "level", "event", "fields"} and line["level"] == "WARNING"
    assert line["fields"]["ran"] == "eager" and line["fields"]["function"] == "<lambda>"
    assert datetime.fromisoformat(line["time"]).utcoffset().total_seconds() == 0


@pytest.mark.long
def test_the_level_counts_as_well():
    assert stderr_of(FALLS_BACK, HGB_LOG_FORMAT="json", HGB_LOG_LEVEL="error") == []
    captures = "import torch, gfxgraph; gfxgraph.graphed(torch.sin)(torch.ones(2))"
    found = stderr_of(captures, HGB_LOG_FORMAT="JSON", HGB_LOG_LEVEL="debug")
    assert len(found) > 1 and all(json.loads(line)["event"] for line in found)


def test_text_is_the_default():
    for value in ("", "text"):
        (line,) = stderr_of(FALLS_BACK, HGB_LOG_FORMAT=value, HGB_LOG_LEVEL="warn")
        assert "gfxgraph WARNING fallback function=" in line


def test_a_malformed_level_is_said_in_a_line_of_json():
    (line, *_) = stderr_of(FALLS_BACK, HGB_LOG_FORMAT="json", HGB_LOG_LEVEL="loud")
    assert "HGB_LOG_LEVEL='loud'" in json.loads(line)["fields"]["message"]


@pytest.mark.long
def test_a_malformed_format_is_said_in_the_log_and_enable_raises_it():
    (line, *_) = stderr_of(FALLS_BACK, HGB_LOG_FORMAT="xml")
    assert "HGB_LOG_FORMAT='xml': this variable takes 'text', 'json'" in line
    done = python("-c", "import gfxgraph; gfxgraph.enable()", HGB_LOG_FORMAT="xml")
    assert "SettingError: HGB_LOG_FORMAT='xml'" in done.stderr


class Hostile:
    def __str__(self):
        raise ValueError("no")

    __repr__ = __str__


def cycle():
    made = []
    made.append(made)
    return made


def deep():
    made = []
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (torch.float32, "torch.float32"),
        ({1}, "{1}"),
        (float("nan"), "nan"),
        ([float("inf"), 1], "[inf, 1]"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ({1: 2}, {"1": 2}),
        ((1, None, True), [1, None, True]),
        (cycle(), "[[...]]"),
        (Hostile(), "str() of a Hostile raises ValueError"),
        ([Hostile()], ["str() of a Hostile raises ValueError"]),
        ({(1,): Hostile()}, "str() of a dict raises ValueError"),
        ('two\nlines "quoted" \ud800', 'two\nlines "quoted" \ud800'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_hold_becomes_a_string(lines, value, written):
    log(logging.INFO, "happened", value=value, other=1)
    (line,) = lines()
    assert line["fields"] == {"value": written, "other": 1}


def test_a_value_that_is_too_deep_becomes_a_string(lines):
    log(logging.INFO, "happened", value=deep())
    (line,) = lines()
    assert "RecursionError" in line["fields"]["value"]


def test_exceptions_are_part_of_the_line(lines):
    logger = logging.getLogger("gfxgraph")
    try:
        raise ValueError("because\nof that")
    except ValueError:
        logger.exception("it %s", "failed")
    (line,) = lines()
    assert line["event"] == "message" and line["fields"] == {"message": "it failed"}
    assert line["level"] == "ERROR" and "ValueError: because\nof that" in line["exception"]


def test_a_handler_of_the_program_can_use_it(lines, device):
    graph = gfxgraph.graphed(lambda x: x * 2)
    with torch.no_grad():
        for _ in range(3):
            graph(torch.ones(2, device=device))
    assert {"capture_begin", "capture_end"} <= {line["event"] for line in lines()}
