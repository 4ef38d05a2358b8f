"""``verify``: compares a graph with eager over many inputs, seeds and replays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from ..call.graphed import Graphed, graphed
from ..call.signature import Const
from ..call.suitable import check_function, describe
from ..device import current_device
from ..device.asserts import OutOfRange
from ..errors import ArgumentError, CaptureError
from ..interpose.signatures import require_fit
from ..interpose.source import name_of
from ..record.collectives import refused
from .bench import Bench, Function
from .candidate import Candidate
from .inputs import Inputs
from .report import VerifyReport, VerifyResult

__all__ = ["MAX_SEED", "verify"]

# Each run adds to it, and torch takes 64 bits.
MAX_SEED = 1 << 63


def verify(
    fn: Function,
    /,
    *args: Any,
    candidate: Function | None = None,
    inputs: Iterable[tuple[Any, ...]] | None = None,
    runs: int | None = None,
    threshold: float | None = None,
    compiled: bool = False,
    views: bool = False,
    seed: int = 0,
    kwargs: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Compare a graph of ``fn`` with eager execution, and find out why it differs.

    It calls both with the given arguments and with fresh values of the same kind, each under its
    own seed, in two rounds: a candidate may capture in the first and replays in the second. It
    compares results and their structure, the arguments after each call, and tensors and Python
    values that ``fn`` changes outside. If something differs, experiments look for the reason: they
    change one argument, one weight or the seed, and see whether the candidate reacts as eager does.
    If nothing differs, they see whether it would follow a later change of a weight.

    Then each place that the candidate's graphs watch is changed, one after the other, and put back
    at once: the graphs have to notice. No code of ``fn`` runs for that. With some other values and
    weights both are called as well. Other threads should not run ``fn`` eagerly meanwhile.

    Everything runs under ``torch.no_grad()``. Afterwards the random generators, tensors and Python
    state that ``fn`` reaches are as before, except for attributes that a first call adds to a
    module.

    Args:
        fn: the function, module or method. For a graphed one, eager is the function inside.
        *args: its arguments, with at least one tensor (here or in ``kwargs``).
        candidate: what to compare with eager: any callable that takes the same arguments, such as
            a wrapper around a graph of your own. Default: ``fn`` if it is graphed, else
            ``gfxgraph.graphed(fn)``.
        inputs: more positional arguments, a tuple for each further run. Default: made from
            ``args``: noise with the mean, the deviation and the range of each floating-point
            tensor, rolled integers and booleans.
        runs: how many inputs, the ones given included. Default 4, or as many as there are. With 1,
            a later call that overwrites a result goes unnoticed.
        threshold: the relative error allowed for all floating-point dtypes. Default: 0.01 for
            16-bit ones, 1e-4 for float32, 1e-9 for float64. Everything else has to be equal.
        compiled: compare ``torch.compile(fn)`` with eager too. Default ``False``.
        views: whether a result may be overwritten by the next call. Default ``False``, but for a
            graphed function what it was made with.
        seed: of the first run; each run adds 1. Default 0.
        kwargs: keyword arguments of ``fn``, the same in all runs.

    Returns:
        The report: ``report.ok``, ``report.graph.first``, ``report.graph.causes``,
        ``report.graph.places``; printed, it is a text.

    Raises:
        ArgumentError: an argument is not of the kind that is taken, or an argument made from it is
            out of range for an operator.
        CaptureError: ``fn`` issues a collective in a group of several ranks; nothing was sent.
        Exception: any error of ``fn`` itself. Errors of the candidate are reported.
    """
    check_function(fn, "verify(fn)")
    _check_kinds(inputs, kwargs, compiled=compiled, views=views)
    if candidate is not None:
        check_function(candidate, "verify(candidate=)")
    _check_numbers(runs, threshold, seed)
    if inputs is not None and runs is not None:
        raise ArgumentError("verify(inputs=, runs=): give the inputs or how many to make.")
    made = None
    if candidate is None:
        candidate = fn if _is_graphed(fn) else (made := graphed(fn))
    views = views or (isinstance(candidate, Graphed) and candidate._options.outputs == "view")
    eager = fn
    while _is_graphed(eager):
        eager = eager.__wrapped__  # type: ignore[attr-defined]
    name = name_of(eager)
    require_fit(eager, args, kwargs or {}, f"verify({name})")
    with _named(f"verify({name})"):
        first = Inputs.of(args, kwargs or {})
    if not first.leaves:
        raise ArgumentError(
            f"verify({name}): there is no tensor among the arguments; give those of a usual call."
        )
    if any(leaf.is_meta for leaf in first.leaves):
        raise ArgumentError(f"verify({name}): tensors on the meta device have no values.")
    if inputs is None:
        rest = [first.fresh(seed + n) for n in range(1, 4 if runs is None else runs)]
    else:
        more = [_checked_inputs(given, tuple) for given in inputs]
        for given in more:
            require_fit(eager, given, kwargs or {}, f"verify({name}, inputs=)")
        with _named(f"verify({name}, inputs=)"):
            rest = [Inputs.of(given, kwargs or {}) for given in more]
    with torch.no_grad():
        bench = Bench(eager, name, [first, *rest], seed, threshold)
        # The other ranks may not verify the same, or call less often.
        with bench.all_put_back(), refused():
            called = "The graph" if _is_graphed(candidate) else name_of(candidate)
            try:
                bench.prepare()
            except OutOfRange as error:
                if inputs is not None:
                    raise
                raise ArgumentError(
                    f"verify({name}): with arguments made from those given, the function cannot "
                    f"run: {error}. Give further arguments of usual calls: verify(inputs=[...])."
                ) from error
            except CaptureError as error:  # and nobody could put back what it would do
                if error.rule == "collective" or not _is_graphed(candidate):
                    raise
                of_graph = VerifyResult.refused(called, str(error))
            else:
                of_graph = Candidate(bench, candidate, called, views).result()
            if made is not None:
                made.reset()
            of_compiled = _compiled(bench, eager) if compiled else None
    device = str(first.leaves[0].device)
    if current_device().kind == "emulated":
        device += " (emulated graphs)"
    return VerifyReport(name, device, torch.__version__, len(rest) + 1, seed, of_graph, of_compiled)


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{what}: an argument cannot be copied: {error}") from error


def _check_kinds(inputs: Any, kwargs: Any, **flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"verify({name}={Const(value)!r}): expected True or False.")
    if inputs is not None:
        _checked_inputs(inputs, Iterable)
    known = kwargs is None or isinstance(kwargs, Mapping)
    if not known or not all(isinstance(name, str) for name in kwargs or ()):
        raise ArgumentError(
            f"verify(kwargs={Const(kwargs)!r}): expected keyword arguments, a dict from their "
            "names."
        )


def _check_numbers(runs: Any, threshold: Any, seed: Any) -> None:
    def whole(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    finite = number and 0 <= threshold < float("inf")
    for name, value, fits, takes in (
        ("runs", runs, runs is None or (whole(runs) and runs >= 1), "a whole number from 1"),
        ("threshold", threshold, threshold is None or finite, "a finite number from 0"),
        ("seed", seed, whole(seed) and 0 <= seed < MAX_SEED, "a whole number from 0, below 2**63"),
    ):
        if not fits:
            raise ArgumentError(f"verify({name}={Const(value)!r}): expected {takes}.")


def _checked_inputs(given: Any, kind: type) -> Any:
    if not isinstance(given, kind):
        raise ArgumentError(
            f"verify(inputs=): expected a tuple of arguments for each run, not {describe(given)}."
        )
    return given


def _compiled(bench: Bench, fn: Function) -> VerifyResult:
    @cache
    def function() -> Function:
        # Draw as eager does; Inductor's own random numbers differ.
        return torch.compile(fn, options={"fallback_random": True})

    def call(*args: Any, **kwargs: Any) -> Any:  # so that a compile error is raised by a call
        return function()(*args, **kwargs)

    return Candidate(bench, call, "torch.compile", views=True).result()


def _is_graphed(fn: Any) -> bool:
    return type(fn).__module__ == Graphed.__module__
