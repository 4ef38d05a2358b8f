"""``parity``: runs the probe of each capability, and of its bridge where it is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..device import machine_and_versions
from ..errors import ArgumentError
from .capabilities import Capability, capabilities, groups
from .child import Job, Outcome, run
from .report import ParityReport, Row

__all__ = ["parity"]

_LONGEST = 86_400  # a day


def parity(
    only: str | Sequence[str] | None = None,
    *,
    timeout: float = 120.0,
    progress: Callable[[int, int], None] | None = None,
) -> ParityReport:
    """Find out which capabilities of CUDA graphs this machine has.

    Each is proved by a small program that compares values, in another process: one that crashes or
    hangs costs its row only. Where a capability is missing, the way is probed in which gfxgraph
    gives the same. Takes about half a minute without a GPU, and about a minute with one.

    >>> report = gfxgraph.parity()
    >>> print(report)
    >>> report["conditional_while"].state
    'works'

    Args:
        only: a group, or several: ``"driver"``, ``"capture"``, ``"torch"``, ``"gfxgraph"``.
            Default all.
        timeout: seconds after which a probe counts as hanging, up to a day. Default 120.
        progress: is called with how many rows are done, and of how many.

    Returns:
        A report with a row for each capability. Printed, it is a table.

    Raises:
        ArgumentError: an argument is none of these.
    """
    wanted = _groups(only)
    if type(timeout) not in (int, float) or not 0 < timeout <= _LONGEST:
        raise ArgumentError(
            f"parity(timeout={timeout!r}): expected seconds, a number above 0, up to {_LONGEST}."
        )
    rows = [one for one in capabilities() if one.group in wanted]
    done = set[str]()

    def tell(key: str) -> None:
        done.add(key)
        if progress is not None:
            progress(len(done), len(rows))

    native = run((_job(one, one.id) for one in rows), timeout=timeout, progress=tell)
    missing = [one for one in rows if native[one.id].kind not in ("works", "unprobed")]
    bridged = run(
        (_job(one, one.bridge.probe) for one in missing if one.bridge),
        timeout=timeout,
        progress=tell,
    )
    return _report([_row(one, native[one.id], bridged.get(one.id)) for one in rows])


def _groups(only: str | Sequence[str] | None) -> list[str]:
    known = list(groups())
    if only is None:
        return known
    if not isinstance(only, (str, list, tuple)):
        raise ArgumentError(f"parity(only={only!r}): expected a list of {', '.join(known)}.")
    wanted = [only] if isinstance(only, str) else list(only)
    for name in wanted:
        if name not in known:
            raise ArgumentError(f"parity(only={name!r}): expected {', '.join(known)}.")
    if not wanted:
        raise ArgumentError(f"parity(only=[]): expected some of {', '.join(known)}.")
    return wanted


def _job(one: Capability, probe: str) -> Job:
    functions = one.facts["rocm"].functions if "rocm" in one.facts else ()
    return Job(one.id, probe, functions)


def _row(one: Capability, native: Outcome, bridge: Outcome | None) -> Row:
    seconds = round(native.seconds + (bridge.seconds if bridge else 0.0), 3)
    why = "" if native.kind == "works" else _reason(native)
    if native.kind == "works":
        return Row(one, "works", native.text, seconds=seconds)
    if native.kind == "unprobed":
        return Row(one, "not probed", why=why, seconds=seconds)
    if bridge is not None and bridge.kind == "works":
        return Row(one, "bridged", bridge.text, why, seconds)
    if bridge is not None:
        why = f"{why}; nor does the way of gfxgraph work: {_reason(bridge)}"
    return Row(one, "absent", why=why, seconds=seconds)


def _reason(outcome: Outcome) -> str:
    heads = {"wrong": "wrong values: ", "error": "it fails: "}
    return heads.get(outcome.kind, "") + outcome.text.rstrip(".")


def _report(rows: list[Row]) -> ParityReport:
    machine, versions = machine_and_versions()
    return ParityReport(
        tuple(rows),
        machine=machine,
        versions=versions,
    )
