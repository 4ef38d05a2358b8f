"""``load_recipes``: capture what the last start has used, before the first request."""

from __future__ import annotations

import gc
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

from ..call.entry import Entry
from ..call.identity import environment
from ..errors import ArgumentError, GfxGraphError, one_line
from ..graph.locks import turn_to_capture
from ..interpose.interrupts import interrupt_in
from ..stats import log
from ..tables import in_bytes, progress_bar
from . import file
from .arguments import Unsuitable, bytes_needed, free_bytes, made, modes_now, recipe_of, under
from .identity import Live, live
from .report import RecipeReport, RecipeRow
from .save import names_of, path_of

__all__ = ["load_recipes"]


@dataclass
class _Job:
    """A recipe, its callable here, and why it cannot be used."""

    function: file.Function
    recipe: file.Recipe
    live: Live | None
    reason: str


def load_recipes(
    path: str | os.PathLike[str],
    *,
    seconds: float | None = None,
    max_bytes: int | None = None,
    progress: bool = True,
) -> RecipeReport:
    """Capture the kinds of calls that :func:`save_recipes` wrote down, the most used ones first.

    Call it when the model and its graphed functions exist, before the first request. Each recipe
    runs its function a few times on made arguments (floats 0.5, integers 0, masks that let
    everything count) and captures it. All that the function writes, draws or changes meanwhile is
    taken back.

    A graph made so answers no call before it was compared with one: the first real call of its kind
    runs the function for its caller, and the graph is replayed beside it. Where both differ, or the
    call takes another path, the graph is dropped, and the call is captured like any first call. So
    is each call that no recipe was captured for.

    A recipe is skipped, and the report says why, where a version of torch, Python, gfxgraph or the
    driver, the device, the code of the function, the shapes of its parameters or its options are
    others than when it was saved.

    Args:
        path: of the file. If there is none, as at the very first start, nothing is captured, and
            ``reason`` of the report says so.
        seconds: no capture begins after so many. One that has begun is finished. Default: no limit.
        max_bytes: device memory that the graphs may take. Default: as much as
            ``GFXGRAPH_VRAM_CAP`` allows.
        progress: show a progress bar, where stderr is a terminal. Default ``True``.

    Returns:
        A report with a row for each recipe. Printed, it is a table.

    Raises:
        ArgumentError: an argument is none of these.
        RecipeError: the file cannot be read, or is no file of recipes.
    """
    target, start = path_of(path, "load_recipes"), time.perf_counter()
    _check("seconds", seconds, (int, float))
    _check("max_bytes", max_bytes, (int,))
    if not isinstance(progress, bool):
        raise ArgumentError(f"load_recipes(progress={progress!r}): expected True or False.")
    found = file.read(target)
    if found is None:
        return RecipeReport(str(target), reason=f"there is no file {target}")
    jobs = _jobs(found)
    budget = _Budget(start, seconds, max_bytes)
    rows: list[RecipeRow] = []
    kept = {id(job.live.dispatcher): job.live.dispatcher.entries for job in jobs if job.live}
    for entries in kept.values():
        entries.keep_after = entries.tick()
    try:
        with progress_bar(len(jobs), progress) as show:
            for job in jobs:
                show("capturing recipes", len(rows))
                rows.append(_captured(job, budget))
            show("capturing recipes", len(rows))
    finally:
        for entries in kept.values():
            entries.keep_after = float("inf")
    report = RecipeReport(str(target), rows, seconds=time.perf_counter() - start)
    for row in report.skipped:
        log(
            logging.INFO,
            "recipe_skipped",
            function=row.function,
            key=row.key,
            because=row.reason,
        )
    log(
        logging.INFO,
        "recipes_loaded",
        path=report.path,
        captured=len(report.captured),
        skipped=len(report.skipped),
        seconds=round(report.seconds, 3),
    )
    return report


def _check(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if value is None:
        return
    if type(value) not in kinds or not 0 <= value < float("inf"):
        what = "a whole number of bytes" if name == "max_bytes" else "a number of seconds"
        raise ArgumentError(f"load_recipes({name}={value!r}): expected {what} from 0, or None.")


def _jobs(found: file.File) -> list[_Job]:
    """All recipes, the most used ones first, each with its callable."""
    here = environment()
    names = sorted(here.keys() | found.environment.keys())
    others = [
        f"{name} was {found.environment.get(name, 'not known')[:60]}, and is "
        f"{here.get(name, 'not known')}"
        for name in names
        if here.get(name) != found.environment.get(name)
    ]
    gc.collect()  # what nobody can call any more takes no part
    known = {} if others else _by_name(function.name for function in found.functions)
    jobs = []
    for function in found.functions:
        one = known.get((function.name, function.number))
        reason = "; ".join(others) or _what_changed(function, one)
        jobs += [
            _Job(function, recipe, None if reason else one, reason) for recipe in function.recipes
        ]
    return sorted(jobs, key=lambda job: -job.recipe.replays)


def _by_name(names: Any) -> dict[tuple[str, int], Live]:
    return {(one.name, one.number): one for one in live(names)}


def _what_changed(function: file.Function, one: Live | None) -> str:
    if one is None:
        which = f" number {function.number + 1}" if function.number else ""
        return (
            f"there is no{which} graphed callable {function.name[:200]} here (yet): call "
            "load_recipes() after it was made"
        )
    code, parameters, options = one.facts()
    if code != function.code:
        return "the code of the function, or of a class of its modules, has changed"
    if parameters != function.parameters:
        return "the parameters have other names, shapes or dtypes"
    for name in sorted(options.keys() | function.options.keys()):
        now, then = options.get(name), function.options.get(name)
        if now != then:
            return f"the option {name[:60]} was {str(then)[:100]}, and is {str(now)[:100]}"
    return ""


@dataclass
class _Budget:
    """What captures may take, and have taken."""

    start: float
    seconds: float | None
    max_bytes: int | None
    used: int = 0

    def refuses(self, recipe: file.Recipe) -> str:
        """Why a recipe does not fit; empty: it does."""
        if self.seconds is not None and time.perf_counter() - self.start >= self.seconds:
            return f"the budget of {self.seconds:g} seconds is spent"
        needed = bytes_needed(recipe)
        for device, number in needed.items():
            if number > free_bytes(device) // 4:  # static inputs and copies take as much again
                return f"its arguments take {in_bytes(number)}, which are not free"
        needs = max(recipe.bytes, sum(needed.values()))
        if self.max_bytes is not None and self.used + needs > self.max_bytes:
            return f"it does not fit into the budget of {in_bytes(self.max_bytes)}"
        return ""


def _captured(job: _Job, budget: _Budget) -> RecipeRow:
    """Capture a recipe, where that can be."""
    start, recipe, size, reason = time.perf_counter(), job.recipe, 0, job.reason
    if job.live is not None:
        try:
            reason = budget.refuses(recipe)
            if not reason:
                size = _capture(job, job.live, budget)
        except Unsuitable as error:
            reason = str(error)
        except Exception as error:  # whatever the function raises for arguments that are made
            interrupt = interrupt_in(error)
            if interrupt is not None:
                raise interrupt from interrupt.__cause__
            reason = str(error) if isinstance(error, GfxGraphError) else one_line(error)
    return RecipeRow(
        job.function.name,
        recipe.key,
        "skipped" if reason else "captured",
        reason,
        recipe.replays,
        time.perf_counter() - start,
        size,
    )


def _capture(job: _Job, one: Live, budget: _Budget) -> int:
    """Make the graph; gives the bytes that it takes.

    Raises:
        Unsuitable: it cannot be made, or is not that of the recipe.
        Exception: see :meth:`~gfxgraph.call.dispatch.Dispatcher.prepare`.
    """
    dispatcher, recipe = one.dispatcher, job.recipe
    entries, layout = dispatcher.entries, dispatcher.strategy.layout
    if len(entries.all()) >= dispatcher.options.max_graphs:
        raise Unsuitable(f"there are max_graphs={dispatcher.options.max_graphs} graphs already")
    with turn_to_capture():
        before = entries.graphs()
        layout.asks_layout |= job.function.asks_layout
        layout.draws |= job.function.draws
        with under(recipe.modes):
            now = modes_now(one.fn)
            if now != recipe.modes:
                raise Unsuitable(f"modes of torch are {now.others}, were {recipe.modes.others}")
            args, kwargs = made(recipe)
            error = dispatcher.prepare(one.fn, args, kwargs, unproven=True)
        try:
            if error is not None:
                raise error
        finally:
            error = None  # its traceback holds this frame, and the tensors of the capture
        new = [(key, e) for key, e in entries.graphs().items() if before.get(key) is not e]
    for key, entry in new:
        reason = _not_as_saved(one, key, entry, recipe)
        size = entry.row().private_bytes
        if not reason and budget.max_bytes is not None and budget.used + size > budget.max_bytes:
            reason = f"it does not fit into the budget of {in_bytes(budget.max_bytes)}"
        if reason:
            dispatcher.release(key)
            raise Unsuitable(reason)
        budget.used += size
        return size
    raise Unsuitable("it gives no graph")


def _not_as_saved(one: Live, key: Any, entry: Entry, recipe: file.Recipe) -> str:
    """Why calls of the recipe would not find this graph; empty: they do."""
    found = recipe_of(key, entry, names_of(one, key))
    for name in ("arguments", "tensors", "modes"):
        if getattr(found, name) != getattr(recipe, name):
            return f"what was captured is for other {name} than those that were saved"
    return ""
