"""What lies on the stack of a running frame is read, and it is what lies there."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import dis
import inspect
import sys
import types

import pytest
import torch

from gfxgraph.graph import reads
from gfxgraph.interpose.codes import arguments_of
from gfxgraph.interpose.frames import Stack, depths
from tests.hostile.hostile_python import CASES


def codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


@pytest.mark.parametrize("name", ["STORE_ATTR", "STORE_GLOBAL", "RAISE_VARARGS", "LOAD_CONST"])
def test_arguments_of_instructions_are_those_that_dis_tells(name):
    def counts(item):
        for n in range(1000):
            item.count = n

    counts(types.SimpleNamespace())  # Python writes other instructions in place of these
    many = "\n".join(f"item.a{n} = {n + 0.5}" for n in range(70_000))
    written = compile(many, "<many>", "exec")  # more names and constants than two bytes tell
    functions = [f for f in vars(inspect).values() if isinstance(f, types.FunctionType)]
    for code in (written, *(c for f in (counts, *functions) for c in codes(f.__code__))):
        told = [step.arg for step in dis.get_instructions(code) if step.opname == name]
        assert list(arguments_of(name, code)) == told, code


@pytest.mark.parametrize("module", [argparse, asyncio.base_events, dataclasses, inspect, torch.nn])
def test_no_more_lies_on_the_stack_than_the_compiler_has_counted(module):
    found = 0
    for name, other in list(sys.modules.items()):
        if name != module.__name__ and not name.startswith(f"{module.__name__}."):
            continue
        for value in list(vars(other).values()):
            functions = vars(value).values() if isinstance(value, type) else [value]
            for function in functions:
                if isinstance(function, types.FunctionType):
                    for code in codes(function.__code__):
                        counted = depths(code).values()
                        assert min(counted) >= 0 and max(counted) <= code.co_stacksize, code
                        found += 1
    assert found > 20


class Compared(reads.Reads):
    """Compares what an earlier step has made with what lies in its slot."""

    def __init__(self, *args):
        super().__init__(*args)
        self.compared = 0

    def _value(self, frame, operand):
        value = super()._value(frame, operand)
        if operand is not None and operand[0] == "made" and len(operand) == 3:
            there = self._stack.at(frame.frame, operand[2])
            if type(value) in (int, float, str, dict, list, type):
                is_number = type(value) in (int, float)  # some getters give a new one each time
                same = there == value if is_number else there is value
                assert same, (operand, there, value)
                self.compared += 1
        return value


@torch.no_grad()
def test_what_is_read_there_is_what_was_made():
    assert Stack().is_known
    compared = 0
    for make in CASES.values():
        fn, _ = make()
        x = torch.randn(2, 4)
        fn(x)
        seen = Compared({"fn": fn}, [x])
        with seen.recording():
            fn(x)
        assert not seen.failed
        compared += seen.compared
    assert compared > 150
