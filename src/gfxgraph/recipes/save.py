"""``save_recipes``: write down which calls a service answers from graphs."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from ..call.arguments import named_arguments
from ..call.entries import is_aside
from ..call.entry import Entry, Refusal
from ..call.identity import environment
from ..errors import ArgumentError
from ..stats import log
from . import file
from .arguments import Unsuitable, recipe_of
from .identity import Live, live
from .report import RecipeReport, RecipeRow

__all__ = ["names_of", "path_of", "save_recipes"]


def save_recipes(path: str | os.PathLike[str]) -> RecipeReport:
    """Write down the kinds of calls that this process answers from graphs, for its next start.

    The file holds no data of any tensor. It holds the structure of the arguments with shapes and
    dtypes, and their plain values: numbers, texts, names of options. It is replaced as a whole, so
    that several processes may write to the same path; the last one counts. Safe while other threads
    call.

    Left out, with the reason in the report: calls whose arguments are no plain data (an object of a
    class, a cache), or share memory; graphs that store what calls write in Python, that call
    ``no_graph`` functions, that hold collectives, or that pad for buckets and do more than compute;
    and kinds of calls that run eagerly.

    Args:
        path: of the file, in a directory that exists. A link of that name is replaced by the file;
            the permissions of a file stay.

    Returns:
        A report with a row for each kind of call. Printed, it is a table.

    Raises:
        ArgumentError: ``path`` is no path.
        RecipeError: the file cannot be written.
    """
    target, start = path_of(path, "save_recipes"), time.perf_counter()
    rows: list[RecipeRow] = []
    functions = [_function(one, rows) for one in live() if one.dispatcher.has_calls]
    found = file.File(
        file.FORMAT, file.VERSION, environment(), [one for one in functions if one.recipes]
    )
    file.write(target, found)
    report = RecipeReport(str(target), rows, seconds=time.perf_counter() - start)
    log(
        logging.INFO,
        "recipes_saved",
        path=report.path,
        saved=len(report.saved),
        skipped=len(report.skipped),
    )
    return report


def path_of(path: Any, who: str) -> Path:
    """The path that an argument means.

    Raises:
        ArgumentError: it means none.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        text = b""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ArgumentError(f"{who}({path!r}): expected the path of a file, as str or Path.")
    return Path(text)


def _function(one: Live, rows: list[RecipeRow]) -> file.Function:
    dispatcher = one.dispatcher
    code, parameters, options = one.facts()
    recipes = []
    for key, entry in dispatcher.entries.graphs().items():
        if is_aside(key):  # of the same kind as another, which holds now
            continue
        try:
            recipe = _recipe(one, key, entry)
        except Unsuitable as error:
            rows.append(RecipeRow(one.name, entry.key, "skipped", str(error), entry.replays))
            continue
        recipes.append(recipe)
        row = RecipeRow(one.name, recipe.key, "saved", replays=recipe.replays, bytes=recipe.bytes)
        rows.append(row)
    rows += [
        RecipeRow(one.name, refusal.key, "skipped", f"it runs eagerly: {refusal.reason}")
        for refusal in dispatcher.entries.all()
        if isinstance(refusal, Refusal)
    ]
    if dispatcher.is_lifted:
        stored = ", ".join(dispatcher.stats().stored[:3])
        why = f"its calls write in Python ({stored}), so they are captured after a real one"
        rows.append(RecipeRow(one.name, "all calls", "skipped", why))
    layout = dispatcher.strategy.layout
    return file.Function(
        name=one.name,
        number=one.number,
        code=code,
        parameters=parameters,
        options=options,
        asks_layout=layout.asks_layout,
        draws=layout.draws,
        recipes=recipes,
    )


def _recipe(one: Live, key: Any, entry: Entry) -> file.Recipe:
    captured = entry.captured
    if captured is None:
        raise Unsuitable("it was released meanwhile")
    steps = [segment.step for segment in captured.root.everything() if segment.step]
    if any(step.point.rule == "no-graph" for step in steps):
        raise Unsuitable("it calls no_graph functions, which only calls may do")
    if captured.groups or any(step.point.rule == "collective" for step in steps):
        raise Unsuitable("it takes part in collectives, which only calls may do")
    writes = captured.written or captured.saved or captured.regions
    draws = captured.draws_random_numbers or captured.saves_generator or captured.generators
    if one.dispatcher.strategy.layout.is_padded and (writes or draws):
        raise Unsuitable("it pads for buckets, and writes or draws")
    return recipe_of(key, entry, names_of(one, key))


def names_of(one: Live, key: Any) -> list[str]:
    """For each tensor of the calls of a key, what it is called."""
    return [name for name, const in named_arguments(one.fn, key[0]) if const is None]
