"""The names of gfxgraph: what dir() lists, what is looked up lazily and what type checkers see."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import gfxgraph
from tests.helpers.processes import printed


def seen_by_type_checkers():
    """Name -> module, from the ``TYPE_CHECKING`` block."""
    tree = ast.parse(Path(gfxgraph.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {alias.asname: node.module or alias.name for node in block.body for alias in node.names}


def test_dir_lists_every_public_name_before_any_is_used():
    code = "import gfxgraph; print(set(gfxgraph.__all__) - set(dir(gfxgraph)))"
    assert printed(code) == "set()"


def test_each_public_name_is_there():
    for name in gfxgraph.__all__:
        assert getattr(gfxgraph, name) is not None


def test_lazy_names_are_those_of_type_checkers_from_the_same_modules():
    assert seen_by_type_checkers() == gfxgraph._LAZY


def test_what_is_not_lazy_is_defined_here():
    here = set(gfxgraph.__all__) - gfxgraph._LAZY.keys()
    own = {name for name in here if inspect.isfunction(getattr(gfxgraph, name))}
    assert own == {"device_facts", "device_type", "stats"}
    assert here - own == {"Stats", "__version__", "errors", "settings"}
    assert gfxgraph._LAZY.keys() < set(gfxgraph.__all__)


def test_all_is_sorted_and_has_no_name_twice():
    assert gfxgraph.__all__ == sorted(set(gfxgraph.__all__))


@pytest.mark.parametrize("name", sorted(gfxgraph._LAZY.keys() - {"metrics"}))  # a module
def test_a_lazy_name_is_public_in_its_module_too(name):
    module = importlib.import_module(f"gfxgraph.{gfxgraph._LAZY[name]}")
    assert name in module.__all__


IMPORTS_ALL = """
import random, sys
import numpy, torch
numpy.random.seed(0), random.seed(0), torch.manual_seed(0)

def states():
    return random.getstate(), numpy.random.get_state()[2], torch.get_rng_state().tolist()

before = states()
import gfxgraph, gfxgraph.call.graphed
for name in gfxgraph.__all__:
    getattr(gfxgraph, name)
import gfxgraph.doctor.view, gfxgraph.demo.view, gfxgraph.analyze.view, gfxgraph.cli
graph = gfxgraph.graphed(lambda x: x * 2)
with torch.no_grad():
    for _ in range(3):
        graph(torch.ones(2))
print(gfxgraph.stats(), file=sys.stderr)
print(states() == before)
"""


@pytest.mark.long
def test_importing_and_using_us_draws_no_random_numbers():
    assert printed(IMPORTS_ALL).strip() == "True"
