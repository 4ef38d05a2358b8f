"""The file of recipes: one from elsewhere can do nothing but be refused."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading

import pytest
import torch

import gfxgraph
from gfxgraph.errors import RecipeError
from tests.helpers.models import rows
from tests.helpers.processes import printed
from tests.helpers.sampled import sampled

pytestmark = pytest.mark.usefixtures("no_grad", "one_thread")


def scaled(x, scale=2.0, *, options=None):
    return x * scale


@pytest.fixture
def path(tmp_path):
    return tmp_path / "recipes.json"


@pytest.fixture
def service():
    return gfxgraph.graphed(scaled)


@pytest.fixture
def written(device, path, service):
    """A file as we write it, as data to change."""
    for _ in range(2):
        service(rows(device, 2), 3, options=[{"a": 1}])
    gfxgraph.save_recipes(path)
    service.reset()
    return json.loads(path.read_text())


def put(data, place, value):
    *way, last = place
    for part in way:
        data = data[part]
    if value is KeyError:
        del data[last]
    else:
        data[last] = value


RECIPE = ("functions", 0, "recipes", 0)
TENSOR = (*RECIPE, "tensors", 0)

REFUSED = [
    (("format",), "other"),
    (("version",), 2),
    (("version",), 10**400),
    (("version",), True),
    (("version",), 1.0),
    (("environment",), []),
    (("environment", "torch"), 1),
    (("more",), 1),
    (("functions",), KeyError),
    (("functions",), {}),
    (("functions",), [1] * 10_001),
    (("functions", 0, "name"), None),
    (("functions", 0, "name"), "a" * 100_001),
    (("functions", 0, "number"), -1),
    (("functions", 0, "number"), 2**64),
    (("functions", 0, "draws"), 1),
    (("functions", 0, "options", "warmup"), 2),
    ((*RECIPE, "replays"), 1.5),
    ((*RECIPE, "replays"), "1"),
    ((*RECIPE, "launch_us"), -0.5),
    ((*RECIPE, "modes", "grad"), "yes"),
    ((*RECIPE, "modes", "more"), 1),
    ((*TENSOR, "shape"), [-1]),
    ((*TENSOR, "shape"), [2.0]),
    ((*TENSOR, "shape"), [True]),
    ((*TENSOR, "shape"), [2**63]),
    ((*TENSOR, "shape"), None),
    ((*TENSOR, "strides"), [-1, 1]),
    ((*TENSOR, "dtype"), ["float32"]),
]


@pytest.mark.parametrize("field", sampled(REFUSED, 3, of_long=5), ids=range(len(REFUSED)))
def test_a_field_that_is_none_of_ours_refuses_the_whole_file(path, service, written, field):
    put(written, *field)
    path.write_text(json.dumps(written))
    with pytest.raises(RecipeError, match=r"no file of recipes|has version .* expected 1"):
        gfxgraph.load_recipes(path)
    assert not service.stats().captures


SKIPPED = [
    ((*TENSOR, "shape"), [2**40, 2**20], "which are not free"),
    ((*TENSOR, "shape"), [2**62, 2**62], "which are not free"),
    ((*TENSOR, "shape"), [0] * 65, "more than 64 dimensions"),
    ((*TENSOR, "strides"), [2**50, 1], "which are not free"),
    ((*TENSOR, "strides"), [1], "as many strides"),
    ((*TENSOR, "dtype"), "os.system", "no dtype"),
    ((*TENSOR, "dtype"), "nn", "no dtype"),
    ((*TENSOR, "device"), "meta", "not here"),
    ((*TENSOR, "device"), "cuda:99", "not here"),
    ((*TENSOR, "device"), "/etc/passwd", "no device"),
    ((*RECIPE, "tensors"), [], "more tensors"),
    ((*RECIPE, "arguments"), ["tensor"], "no tuple and dict"),
    ((*RECIPE, "arguments"), None, "no tree"),
    ((*RECIPE, "arguments"), ["value", "eval", "1"], "no value"),
    ((*RECIPE, "arguments"), ["value", "int", "zz"], "cannot be made"),
    ((*RECIPE, "arguments"), ["value", "int", "0x" + "f" * 20_000], "characters"),
    ((*RECIPE, "arguments"), ["import", ["os"]], "'import'"),
    ((*RECIPE, "arguments"), ["dict", [[]], [["tensor"]]], "wrong keys"),
    ((*RECIPE, "arguments"), ["dict", ["a", "a"], [["value", "bool", "True"]] * 2], "wrong keys"),
    ((*RECIPE, "arguments"), ["slice", [["tensor"]]], "'slice'"),
    ((*RECIPE, "arguments"), [["tuple"], []], "no tree"),
    ((*RECIPE, "arguments"), {"tensor": 1}, "no tree"),
    ((*RECIPE, "modes", "autocast"), "float7", "no dtype"),
    ((*RECIPE, "modes", "others"), ["1"], "modes of torch"),
]


@pytest.mark.parametrize("field", sampled(SKIPPED, 3, of_long=5), ids=range(len(SKIPPED)))
def test_a_recipe_that_cannot_be_made_is_skipped_with_the_reason(path, service, written, field):
    place, value, reason = field
    put(written, place, value)
    path.write_text(json.dumps(written))
    report = gfxgraph.load_recipes(path)
    assert len(report.skipped) == 1, report
    assert reason in report.skipped[0].reason
    assert not service.stats().captures


TEXTS = {
    "empty": b"",
    "no JSON": b"recipes",
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "no UTF-8": b'{"format": "\xff"}',
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "NaN": b'{"format": "gfxgraph recipes", "version": NaN}',
    "Infinity": b'{"format": "gfxgraph recipes", "version": 1, "a": -Infinity}',
    "a huge float": b'{"format": "gfxgraph recipes", "version": 1e999}',
    "a name twice": b'{"format": "gfxgraph recipes", "format": "gfxgraph recipes"}',
    "a huge number": b'{"format": "gfxgraph recipes", "version": ' + b"9" * 10_000 + b"}",
    "large": b" " * (16 << 20) + b"{}",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_that_is_no_file_of_ours_is_refused(path, text):
    path.write_bytes(text)
    with pytest.raises(RecipeError):
        gfxgraph.load_recipes(path)


def test_a_file_that_was_cut_anywhere_is_refused(path, written):
    text = path.read_bytes().rstrip()
    for end in range(1, len(text), 97):
        path.write_bytes(text[:end])
        with pytest.raises(RecipeError):
            gfxgraph.load_recipes(path)


def test_a_tree_that_is_too_deep_is_skipped(path, service, written):
    tree = ["tensor"]
    for _ in range(200):
        tree = ["list", [tree]]
    put(written, (*RECIPE, "arguments"), tree)
    path.write_text(json.dumps(written))
    assert "no tree" in gfxgraph.load_recipes(path).skipped[0].reason


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    for call in (gfxgraph.load_recipes, gfxgraph.save_recipes):
        with pytest.raises(RecipeError):
            call(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RecipeError, match="no file"):
        gfxgraph.load_recipes(pipe)


def test_a_directory_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(RecipeError, match="a directory that exists"):
        gfxgraph.save_recipes(tmp_path / "no" / "recipes.json")


def test_a_link_is_replaced_and_what_it_leads_to_stays(path, tmp_path, written):
    target = tmp_path / "precious"
    target.write_text("mine")
    path.unlink()
    path.symlink_to(target)
    gfxgraph.save_recipes(path)
    assert target.read_text() == "mine"
    assert not path.is_symlink()
    assert gfxgraph.load_recipes(path).reason == ""


def test_the_permissions_of_a_file_stay(path, written):
    path.chmod(0o640)
    gfxgraph.save_recipes(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_nothing_else_is_left_in_the_directory(path, written, tmp_path):
    gfxgraph.save_recipes(path)
    with pytest.raises(RecipeError):
        gfxgraph.save_recipes(tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == [path]


def test_many_writers_leave_a_whole_file(path, written, device, service):
    service(rows(device, 2))
    threads = [threading.Thread(target=gfxgraph.save_recipes, args=(path,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gfxgraph.load_recipes(path).rows


def test_a_file_imports_nothing(path, written):
    put(written, ("functions", 0, "name"), "this:d")
    path.write_text(json.dumps(written))
    assert "there is no graphed callable" in gfxgraph.load_recipes(path).skipped[0].reason
    assert "this" not in sys.modules


def test_the_file_holds_no_data_of_tensors(path, device, service):
    service(torch.full((2,), 1234.5, device=device))
    gfxgraph.save_recipes(path)
    assert "1234.5" not in path.read_text() and (1234.5).hex() not in path.read_text()


PROCESS = """
import sys, torch, gfxgraph
@gfxgraph.graphed
def step(x, kinds=frozenset()):
    return x * 2 if kinds is not None and "a" in {"a", "b", "c"} else x
with torch.no_grad():
    if sys.argv[1] == "save":
        for _ in range(3):
            step(torch.ones(3, device=gfxgraph.device_type()))
        gfxgraph.save_recipes(sys.argv[2])
    else:
        print(len(gfxgraph.load_recipes(sys.argv[2]).captured))
        step(torch.ones(3, device=gfxgraph.device_type()))
        print(gfxgraph.stats()["capture_count"])
"""


@pytest.mark.long
def test_another_process_captures_what_one_has_saved(path, tmp_path):
    script = tmp_path / "service.py"
    script.write_text(PROCESS)
    run = "import runpy, sys; sys.argv = {}; runpy.run_path(sys.argv[0], run_name='service')"
    for what, seed, expected in (("save", "1", ""), ("load", "2", "1\n1")):
        argv = [str(script), what, str(path)]
        assert printed(run.format(argv), PYTHONHASHSEED=seed) == expected
