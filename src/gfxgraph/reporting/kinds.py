"""The kinds of files, and who reads them. A kind more is a line in :data:`KINDS`.

A file is recognised by what it says of itself: by its schema (``"gfxgraph.bench/1"``), or by its
keys where the command that wrote it gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from .bench import read_bench
from .compiled import read_breaks, read_compile_log, read_recipes
from .experiments import read_experiment
from .facts import facts_of
from .findings import read_check, read_lint, read_verify
from .machines import read_doctor, read_env, read_parity
from .memory import read_demo, read_graphed, read_process
from .parts import Part
from .results import read_results, read_versions
from .timelines import read_inspect, read_trace

__all__ = ["KINDS", "Kind", "Unknown", "parts_of", "unwrapped"]

Reader: TypeAlias = Callable[[Any, Mapping[str, str]], list[Part]]
"""Makes parts of a file and of what is known of its origin: ``{"file": ...}``."""


class Unknown(Exception):
    """A file is of no kind that this version reads; the message says why."""


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        name: of its schema without the version, or of the command.
        version: the newest version of the schema that ``read`` knows.
        keys: what a file has that gives no such name; for a list what its first entry has.
        read: makes parts of it.
        in_list: whether it is a list.
    """

    name: str
    version: int
    keys: frozenset[str]
    read: Reader
    in_list: bool = False


def _keys(words: str) -> frozenset[str]:
    return frozenset(words.split())


KINDS: tuple[Kind, ...] = (
    Kind("gfxgraph.bench", 1, _keys("verdict ways traffic"), read_bench),
    Kind("gfxgraph.check", 1, _keys("verdict in_words hazards operations"), read_check),
    Kind("gfxgraph.verify", 1, _keys("verdict graph compiled runs seed"), read_verify),
    Kind("gfxgraph.trace", 1, _keys("verdict ways operators operations"), read_trace),
    Kind("gfxgraph.inspect", 1, _keys("name device emulated graphs"), read_inspect),
    Kind("gfxgraph.experiment", 1, _keys("question conclusion holds rows"), read_experiment),
    Kind("gfxgraph.doctor", 1, _keys("status platform findings health"), read_doctor),
    Kind("gfxgraph.parity", 1, _keys("verdict counts rows machine"), read_parity),
    Kind("gfxgraph.env", 1, _keys("recommended no_effect"), read_env),
    Kind("gfxgraph.stats", 1, _keys("captures replays eager_calls graphs pool_bytes refused"),
         read_graphed),
    Kind("gfxgraph.process", 1, _keys("capture_count replay_count fallback_count"), read_process),
    Kind("gfxgraph.compile_log", 1, _keys("torch seconds compilations"), read_compile_log),
    Kind("gfxgraph.graph_breaks", 1, _keys("regions breaks skipped launches outside"), read_breaks),
    Kind("gfxgraph.recipes", 1, _keys("format version environment functions"), read_recipes),
    Kind("gfxgraph.demo", 1, _keys("passages padding timing graphs"), read_demo),
    Kind("gfxgraph.lint", 1, _keys("rule severity file line why remedy"), read_lint, in_list=True),
    Kind("versions", 1, _keys("torch python passed failed"), read_versions, in_list=True),
    *(
        Kind("results", 1, _keys(words), read_results)
        for words in ("command torch", "command commit", "command commits", "command runs",
                      "about cases")
    ),
)  # fmt: skip
"""The first that fits reads a file."""


def unwrapped(data: Any, known: Mapping[str, str]) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """The reports in a file: where each is in it, what it says, and what is known of its origin.

    A wrapper gives a report its command and its commit; the key ``runs`` may hold several.

    Args:
        data: what the file holds.
        known: what is known of it: ``{"file": its name}``.
    """
    if isinstance(data, dict) and "schema" not in data:
        facts = facts_of({k: v for k, v in data.items() if k != "runs"}, known)
        runs = data["runs"] if isinstance(data.get("runs"), list) else []
        if _is_report(data.get("report")):
            yield "", data["report"], facts
            return
        if any(_is_wrapper(run) or _has_schema(run) for run in runs):
            for number, run in enumerate(runs, 1):
                report = run["report"] if _is_wrapper(run) else run
                of_run = facts_of(run, facts) if _is_wrapper(run) else facts
                if _is_wrapper(run) and isinstance(run.get("model"), str):
                    of_run["model"] = run["model"]
                yield f", run {number}", report, of_run
            return
    if isinstance(data, list) and any(_has_schema(one) for one in data):
        for number, report in enumerate(data, 1):  # of all experiments
            yield f", entry {number}", report, dict(known)
        return
    yield "", data, dict(known)


def parts_of(data: Any, known: Mapping[str, str]) -> list[Part]:
    """The parts of a report.

    Args:
        data: the report.
        known: what is known of its origin.

    Raises:
        Unknown: it is of no kind that this version reads, or damaged.
    """
    kind = _kind(data)
    try:
        return kind.read(data, known)
    except RecursionError as error:
        raise Unknown("JSON that is nested too deeply") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{error} is missing" if type(error) is KeyError else str(error)
        raise Unknown(f"of a known kind, but damaged: {what}") from error


def _is_wrapper(data: Any) -> bool:
    return isinstance(data, dict) and _is_report(data.get("report"))


def _has_schema(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("schema"), str)


def _is_report(data: Any) -> bool:
    return isinstance(data, dict) and (
        "schema" in data or any(kind.keys <= data.keys() for kind in KINDS)
    )


def _kind(data: Any) -> Kind:
    if data == []:
        raise Unknown("an empty list, which does not say what it is; lint writes one if it finds "
                      "nothing")  # fmt: skip
    in_list = isinstance(data, list)
    head = data[0] if in_list else data
    if not isinstance(head, dict):
        raise Unknown(f"JSON of another program: {'a list of ' * in_list}{_word(head)}")
    if "traceEvents" in head:
        raise Unknown("the events of a trace, for ui.perfetto.dev; give what trace --out writes")
    schema = head.get("schema")
    if isinstance(schema, str):
        name, _, version = schema.rpartition("/")
        for kind in KINDS:
            if kind.name == name:
                _require_known(version, kind.version, schema)
                return kind
        if name.startswith("gfxgraph."):
            raise Unknown(
                f"its schema is {schema!r:.60}, which this version of gfxgraph does not read"
            )
        raise Unknown(f"JSON of another program: its schema is {schema!r:.60}")
    for kind in KINDS:
        if kind.in_list == in_list and kind.keys <= head.keys():
            if schema is not None:
                _require_known(str(schema), kind.version, f"{kind.name}, schema {schema}")
            return kind
    names = ", ".join(sorted(map(str, head))[:6])
    raise Unknown(
        f"JSON of another program: {'a list of ' * in_list}objects with {names or 'nothing':.200}"
    )


def _require_known(version: str, newest: int, schema: str) -> None:
    number = int(version) if version.isdecimal() and len(version) < 10 else 0
    if number > newest:
        raise Unknown(
            f"it was written by a newer gfxgraph ({schema}; this one reads up to {newest}): "
            "update gfxgraph"
        )
    if number < 1:
        raise Unknown(f"its schema {schema!r:.60} has no version that this gfxgraph reads")


def _word(value: Any) -> str:
    words = {str: "text", list: "lists", bool: "true or false", type(None): "null"}
    return words.get(type(value), "numbers")
