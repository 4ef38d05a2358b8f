"""Remembers facts about code objects."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

__all__ = ["address", "arguments_of", "per_code"]

_T = TypeVar("_T")
_MAX_CODES = 16384

address: Callable[[object], int] = object.__hash__
"""A number that is one object's as long as it lives.

In place of :func:`id`, which tells the audit hooks of the process: with that of ``filelock``, which
comes with ``transformers`` and ``diffusers``, it takes eight times as long.
"""


def per_code(fact: Callable[[CodeType], _T]) -> Callable[[CodeType], _T]:
    """Remember what ``fact`` gives for a code object.

    By the object itself: to hash or to compare code goes through all of its instructions, which
    takes 4 µs for a large function.
    """
    known: dict[int, tuple[CodeType, Any]] = {}

    @functools.wraps(fact)
    def remembered(code: CodeType) -> _T:
        found = known.get(address(code))
        if found is None:
            if len(known) >= _MAX_CODES:
                known.clear()
            found = known[address(code)] = code, fact(code)  # alive, so the number stays its own
        return found[1]

    return remembered


def arguments_of(name: str, code: CodeType) -> Iterator[int]:
    """The argument of each instruction of that name in ``code``.

    Without :mod:`dis`, which takes at least sixty times as long, and tells much more.
    """
    words, opcode = code.co_code, dis.opmap[name]
    opcodes, numbers = words[::2], words[1::2]
    at = opcodes.find(opcode)
    while at >= 0:
        found, before = numbers[at], at
        while before and opcodes[before - 1] == dis.EXTENDED_ARG:
            before -= 1
            found |= numbers[before] << 8 * (at - before)
        yield found
        at = opcodes.find(opcode, at + 1)
