"""docs/figures.md: what a call costs, between its two ``figures`` marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.lib.report import RESULTS, ROOT
from benchmarks.tables.markdown import table

PAGE = ROOT / "docs" / "figures.md"
BEGIN, END = "<!-- figures: benchmarks/tables/figures.py -->", "<!-- end of figures -->"


def figures(results: Path) -> str:
    """Markdown of all that the results hold."""
    host: dict[str, Any] = json.loads((results / "host_time.json").read_text())
    demo: dict[str, Any] = json.loads((results / "demo.json").read_text())
    cases: dict[str, Any] = host["cases"]
    ways = list(next(iter(cases.values()))["times"])
    lines = [
        f"{host['device']}, CUDA {host['runtime']}, torch {host['torch']}, Python {host['python']};"
        " median microseconds until the call returns / until the device is done:",
        "",
    ]
    rows = (
        (name, *(_times(case["times"].get(way)) for way in ways)) for name, case in cases.items()
    )
    lines += table(("", *ways), rows)
    lines += ["", "Graphed, as a multiple of the same by hand (results that are the caller's own):"]
    kinds = {"until the call returns": "host", "until the device is done": "end_to_end"}
    kinds |= {"a call among 50 that nobody waits for": "back_to_back"}
    ratio = "graphed own / by hand own"
    rows = (
        (name, *(_ratio(case.get(f"{kind}_ratios", {}).get(ratio)) for kind in kinds.values()))
        for name, case in cases.items()
    )
    lines += ["", *table(("", *kinds), rows)]
    report = demo["report"]
    timing = report["timing"]
    facts = report["device"]
    alone, added = host["import"]["torch_s"], host["import"]["added_s"]
    lines += [
        "",
        f"Importing torch took {alone:.2f} s, importing torch and gfxgraph {alone + added:.2f} s"
        " (medians of 4).",
        "",
        f"The demo on {facts['name']}: {report['passages']} passages,"
        f" {timing['rows']} rows of {timing['tokens']} tokens in {timing['eager_ms']:.2f} ms eager"
        f" and, padded to {timing['bucket'][0]} x {timing['bucket'][1]},"
        f" {timing['graph_ms']:.2f} ms as a graph ({timing['ratio']:.2f} times); graph and"
        f" eager differ by at most {report['difference']['max']:.2g}; {report['captures']} graphs,"
        f" {report['replays']} replays, {sum(report['fallbacks'].values())} fallbacks;"
        f" {report['padding']['share']:.1%} of the tokens computed were padding.",
    ]
    buckets, compiled = (
        json.loads((results / name).read_text()) for name in ("buckets.json", "compiled.json")
    )
    return "\n".join([*lines, "", *of_buckets(buckets), "", *of_compiled(compiled)])


def _times(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['host_us']:.1f} / {found['end_to_end_us']:.1f}"


def _ratio(found: float | None) -> str:
    return "" if found is None else f"{found:.2f}"


def of_buckets(found: dict[str, Any]) -> list[str]:
    """Markdown of what benchmarks.runs.buckets found."""
    call, threads, pairs = found["padded call, host us"], found["threads"], found["encoder"]
    lines = [
        f"Buckets on {found['device']}: a call of 5 rows of a 2-layer MLP, padded to 8, returns"
        f" after {call['pool, zeros']:.1f} us; by hand (pad, copy, replay, clone)"
        f" {call['by hand']:.1f}, the published gfxGRAPH {call['published gfxGRAPH']:.1f}, eager"
        f" {call['eager']:.1f}. {pairs['pairs']:,} random (batch, length) pairs over the MiniLM"
        f" encoder: {pairs['wrong']} wrong, largest error {pairs['largest error']:.1g}."
        f" {threads['calls']:,} calls of {threads['threads']} threads: {threads['wrong']} wrong.",
        "",
    ]
    head = (
        "batches of 1 to 256 in 16 buckets",
        "memory, of the largest alone",
        "time to capture, of a bare loop of `torch.cuda.graph`",
        "without verification",
    )
    ratios = ("memory ratio", "capture ratio", "capture ratio, verify=False")
    rows = found["16 buckets"].items()
    lines += table(head, ((name, *(f"{row[key]:.2f}" for key in ratios)) for name, row in rows))
    return lines


_WAYS = {
    "eager": "eager",
    "torch.compile default": "compiled",
    "torch.compile reduce-overhead": "reduce-overhead",
    "torch.compile max-autotune": "max-autotune",
    "graph": "graph",
    "compile + graph": "compiled, in a graph",
}


def of_compiled(found: dict[str, Any]) -> list[str]:
    """Markdown of what benchmarks.runs.compiled found."""

    def cell(row: dict[str, Any] | None) -> str:
        if row is None or "end_to_end_us" not in row:
            return "-"
        plain = "compiled" in row and row.get("not compiled")
        return f"{row['end_to_end_us']:,.0f}" + " (not compiled)" * bool(plain)

    lines = [
        f"Compiled code on {found['device']}, microseconds of a call until the device is done:",
        "",
    ]
    rows = (
        (name.replace("_", " "), *(cell(model["ways"].get(way)) for way in _WAYS))
        for name, model in found["models"].items()
    )
    return [*lines, *table(("", *_WAYS.values()), rows)]


def made() -> str:
    """The page with the figures of the results as they are."""
    return page(PAGE.read_text(encoding="utf-8"))


def page(text: str) -> str:
    """``text`` with these figures."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{figures(RESULTS)}\n{END}{after}"
