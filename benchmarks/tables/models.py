"""docs/models.md: whether graphs of models give what eager execution gives, and how fast.

A section for each file of results that is there: models.json, policies.json, decode.json,
diffusion.json, compiled.json.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib.report import RESULTS, ROOT, shortened
from benchmarks.runs.models import TRANSFORMERS
from benchmarks.tables.markdown import code, table

PAGE = ROOT / "docs" / "models.md"
KINDS = {
    "tokens": "text",
    "both": "text to text",
    "image": "images",
    "sound": "sound",
    "spectrum": "sound to text",
}
HEAD = """# Models, from graphs and eagerly

<!-- Made by benchmarks/tables/models.py. -->

Code of libraries as it is, with random weights, on one GPU. Times are medians until the device is
done. *Equal* compares what graphs give with what eager execution gives for the same inputs:
*bit for bit*, or the largest difference of any number.
"""


def made() -> str:
    """The page of the results as they are."""
    return page(RESULTS)


def page(results: Path) -> str:
    """Markdown of all results in a folder."""
    sections: dict[str, Callable[[dict[str, Any]], Iterable[str]]] = {
        "models.json": of_models,
        "policies.json": of_policies,
        "decode.json": of_decoding,
        "diffusion.json": of_diffusion,
        "compiled.json": of_compiling,
    }
    lines = [HEAD]
    for name, section in sections.items():
        file = results / name
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            lines += [*section(found), "", measured_with(found), ""]
    return "\n".join(lines)


def measured_with(found: dict[str, Any]) -> str:
    """Where and how, a sentence."""
    versions = [f"{n} {found[n]}" for n in LIBRARIES if n in found]
    commit = f" at {found['commit']}" if found.get("commit") else ""
    return f"{found['device']}, {', '.join(versions)}; `{found['command']}`{commit}."


LIBRARIES = ("torch", "timm", "transformers", "lerobot", "diffusers")


def equal(difference: float, differs: str = "") -> str:
    """Whether a graph gives what eager execution gives."""
    if differs:
        return f"no: {differs}"
    return f"to {difference:.1g}" if difference else "bit for bit"


def of_models(found: dict[str, Any]) -> Iterator[str]:
    """A table for each library."""
    rows: dict[str, dict[str, Any]] = found["models"]
    for library, title in (("timm", "timm"), ("transformers", "transformers, a single forward")):
        of = {n.partition(" ")[2]: r for n, r in rows.items() if n.startswith(f"{library} ")}
        if not of:
            continue
        yield from (f"## {title}", "", summary(of), "")
        yield from table(
            ("model", "of", "equal", "eager, ms", "graph, ms", "times faster", "notes"),
            (
                (name, kind_of(library, name), *judged(row), "; ".join(notes(row)))
                for name, row in of.items()
            ),
        )
        yield ""
    yield "An image model gets 2 images, a text model 2 texts of 16 tokens; those of transformers"
    yield "have 2 small layers. What was folded, and where the host takes over, is under notes."


def kind_of(library: str, name: str) -> str:
    """What a model takes."""
    return "images" if library == "timm" else KINDS[TRANSFORMERS[name][2]]


def ratio(row: dict[str, Any]) -> float:
    """How many times faster the graph is."""
    return float(row["eager ms"] / row["graph ms"])


def times(faster: float | None) -> str | None:
    """A ratio as text."""
    return None if faster is None else f"{faster:.2f}"


def judged(row: dict[str, Any]) -> tuple[Any, ...]:
    """Equality and times of a model."""
    if "error" in row:
        return (f"not run: {code(row['error'])}", None, None, None)
    return (
        equal(row["largest difference"], row["differs"]),
        row["eager ms"],
        row["graph ms"],
        times(ratio(row)),
    )


def notes(row: dict[str, Any]) -> Iterator[str]:
    """Why calls ran eagerly, what was folded, and where the host takes over."""
    for reason in row.get("why eager", ()):
        yield f"eager: {code(shortened(reason))}"
    for line in row.get("folded or between graphs", ()):
        yield code(shortened(line))
    if "note" in row:
        yield f"{row['note']}, at {row['commit']}"


def summary(rows: dict[str, dict[str, Any]]) -> str:
    """How many are equal and how much faster, in a sentence."""
    ran = {name: row for name, row in rows.items() if "error" not in row}
    replayed = {name: row for name, row in ran.items() if row["replays"]}
    same = sum(not row["differs"] for row in ran.values())
    exact = sum(not row["differs"] and not row["largest difference"] for row in ran.values())
    slower = [name for name, row in ran.items() if ratio(row) < 1]
    return (
        f"{len(rows)} models: {same} equal to eager, {exact} of them bit for bit; {len(replayed)}"
        f" replayed, {statistics.median(map(ratio, ran.values())):.2f} times faster in the median."
        f" Slower than eager: {', '.join(slower) or 'none'}."
    )


POLICY_COLUMNS = (
    "policy",
    "parameters",
    "equal",
    "eager, ms",
    "graph, ms",
    "times faster",
    "by hand, ms",
    "replay alone, ms",
    "first call, s",
    "pool, MiB",
    "measured at",
    "notes",
)
POLICY_WAYS = ("eager", "torch.compile alone, its cache warm", "graph", "compile + graph")
WITH_SETTINGS = "compile + graph, "


def of_policies(found: dict[str, Any]) -> Iterator[str]:
    """LeRobot's policies."""
    yield from ("## LeRobot, full-size policies", "")
    yield from table(
        POLICY_COLUMNS,
        (
            (
                name,
                row["parameters"],
                equal(row["largest difference"]),
                row["eager ms"],
                row["graph ms"],
                times(ratio(row)),
                row["by hand ms"],
                row["replay alone ms"],
                row["first call s"],
                row["pool MiB"],
                row.get("commit"),
                "; ".join(notes(row)),
            )
            for name, row in found.items()
            if isinstance(row, dict)
        ),
    )
    yield ""
    yield "A chunk of actions from three cameras, state and 48 tokens; prefix and all denoise steps"
    yield "are one graph, in half precision. *By hand*: arguments copied in, the same graph"
    yield "replayed, its output cloned, in the same place of the policy."
    for name, row in found.items():
        if isinstance(row, dict) and "compiled" in row:
            yield from ("", *of_compiled_policy(name, row))


def of_compiled_policy(name: str, row: dict[str, Any]) -> Iterator[str]:
    """A policy compiled, alone and in a graph."""
    ways: dict[str, Any] = row["compiled"]
    largest = ways["largest magnitude"]
    plain = {
        "eager": {"ms": row["eager ms"]},
        "graph": {"ms": row["graph ms"], "first call s": row["first call s"]},
    }
    yield from table(
        (name, "a chunk, ms", "first call, s", f"largest difference, of {largest:.3g}", "notes"),
        (
            (
                way,
                found["ms"],
                found.get("first call s"),
                found.get("largest difference", 0.0),
                "; ".join(notes(found)),
            )
            for way in (*POLICY_WAYS, *(name for name in ways if name.startswith(WITH_SETTINGS)))
            for found in [(plain | ways).get(way)]
            if found
        ),
    )
    yield ""
    yield "*torch.compile alone* ran after *compile + graph* in one process: its first call found"
    yield "kernels in Inductor's cache."
    if ways.get("commit", row.get("commit")) != row.get("commit"):
        yield f"The first four were measured at {ways['commit']}."


DECODING = """\
The most likely token is taken each time. *Compiled* is what transformers does for a static cache,
graphs are those of `gfxgraph.integrations.transformers.Generator`. The others ran in a process that
did not import gfxgraph."""
TOKENS = """\
In bfloat16 the two most likely of 32,000 random logits are often as near as rounding is, and where
another one is chosen the texts part. *Roundings from the most likely*: how far the logit of a
chosen token lies below the largest at most, in an eager forward of the whole text, in units of the
last place."""
DECODE_COLUMNS = (
    "way",
    "tokens/s",
    "graphs are, times faster",
    "first call, s",
    "a step, ms",
    "its replay alone, ms",
    "its host time, ms",
    "roundings from the most likely",
)


def of_decoding(found: dict[str, Any]) -> Iterator[str]:
    """Tokens per second, and whether they are the same."""
    parts = {name: part for name, part in found.items() if isinstance(part, dict)}
    yield from ("## Decoding", "")
    yield f"{found['model']}; {found['prompt']} tokens of prompt, {found['new tokens']} new ones."
    yield DECODING
    for name, part in parts.items():
        if not part["ways"]:
            continue
        yield from ("", f"### {name}", "")
        yield from table(
            DECODE_COLUMNS,
            (
                (way, f"failed: {code(row['error'])}", *[None] * 6)
                if "error" in row
                else (
                    way,
                    row["tokens/s"],
                    times(part["graphs against"].get(way)),
                    row["first call s"],
                    row["ms a step"],
                    row.get("replay alone, ms a step"),
                    row.get("host, ms a step"),
                    row.get("roundings from the most likely"),
                )
                for way, row in part["ways"].items()
            ),
        )
    yield from ("", "### The same tokens", "")
    yield from table(
        ("", "compared", "equal", "of", "the first that is not"),
        (
            (name, pair, row["equal"], row["of"], "" if row["first"] is None else row["first"])
            for name, part in parts.items()
            for pair, row in part["tokens"].items()
        ),
    )
    yield ""
    yield TOKENS


def of_diffusion(found: dict[str, Any]) -> Iterator[str]:
    """Milliseconds for an image."""
    yield from ("## Diffusion", "")
    yield from table(
        ("model", "way", "ms an image", "times faster", "equal", "first call, s", "notes"),
        (
            (
                name,
                way,
                row["ms an image"],
                times(row.get("times faster")),
                equal(row["largest difference"]) if "largest difference" in row else None,
                row["first call s"],
                "; ".join(notes(row)),
            )
            for name, ways in found["models"].items()
            for way, row in ways.items()
            if isinstance(row, dict)
        ),
    )
    steps = sorted({ways["steps"] for ways in found["models"].values()})
    yield ""
    yield "Stable Diffusion's pipeline with guidance, to latents, in"
    yield f"{' or '.join(map(str, steps))} steps; equal to eager is meant of the latents."


COMPILE_COLUMNS = (
    "model",
    "way",
    "until the device is done, us",
    "host, us",
    "first 3 calls, s",
    "differs by at most",
    "notes",
)


def of_compiling(found: dict[str, Any]) -> Iterator[str]:
    """torch.compile, graphs, and both."""
    yield from ("## torch.compile and graphs", "")
    yield from table(
        COMPILE_COLUMNS,
        (
            (
                name,
                way,
                row.get("end_to_end_us"),
                row.get("host_us"),
                row.get("first 3 calls s"),
                row.get("largest difference"),
                "; ".join(notes_of_compiling(row)),
            )
            for name, part in found["models"].items()
            for way, row in part["ways"].items()
        ),
    )


def notes_of_compiling(row: dict[str, Any]) -> Iterator[str]:
    """What failed, and why something was not compiled or ran eagerly."""
    if "error" in row:
        yield f"failed: {code(shortened(row['error']))}"
    for reason in row.get("not compiled", ()):
        yield f"not compiled: {code(shortened(reason))}"
    yield from notes(row)
