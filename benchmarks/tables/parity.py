"""docs/parity.md: which capabilities of CUDA graphs there are, on which machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.lib.report import RESULTS, ROOT
from benchmarks.tables.markdown import table
from gfxgraph.probing.capabilities import Capability, capabilities, groups, sources

PAGE = ROOT / "docs" / "parity.md"
GPU, EMULATED = RESULTS / "parity.json", RESULTS / "parity_emulated.json"

HEAD = """# Capabilities of CUDA graphs: `parity`

<!-- Made by benchmarks/tables/parity.py. -->

`gfxgraph parity` says which capabilities of CUDA graphs a machine has. It proves each by a small
program that compares values, such as the result of a replay on new input.

```sh
gfxgraph parity                       # this machine
gfxgraph parity --only driver         # one group: driver, capture, torch or gfxgraph
gfxgraph parity --json --out parity.json
```

```python
report = gfxgraph.parity()
print(report.verdict)
print(report["conditional_while"].state)
```

| state | meaning |
| --- | --- |
| works | a probe that ran now has proved it |
| bridged | it does not work here; a probe has proved that gfxgraph gives the same another way |
| absent | neither; the row says why, and what to do |
| not probed | it cannot be told here: a package is missing, or no probe exists for this driver |

Probes run in other processes. A process ends with the first probe that fails, crashes or hangs
(`--timeout`, 120 s), and a new one goes on; a probe that failed after others runs again alone. So
a probe that fails costs no row but its own. A probe that compares nothing counts as failed.

The CUDA driver is asked with `cuda-bindings`; without it the rows of the driver are not probed. On
AMD the rows of PyTorch and gfxgraph run. Of the driver's rows a function that HIP's runtime lacks
makes a row absent or bridged, and the others are not probed.

**Exit status**: 0 if nothing is absent, 1 if something is, 2 for a wrong option, with nothing on
standard output.

**JSON**, schema `gfxgraph.parity/1`: `verdict`, `counts` (state -> rows), `machine`, `versions`,
and `rows`, each with `id`, `group`, `name`, `does` (what a program can do), `state`, `saw` (what
the probe saw), `how` (of a bridge), `why`, `instead`, `seconds`, `read` (what is known of CUDA and
ROCm: `since`, `functions`, `note`, `sources`) and `issues` (ids of [known issues](doctor.md)).
"""

COLUMNS = ("capability", "what a program can do", "H200", "emulated device", "CUDA", "ROCm")


def made() -> str:
    """The page of the results and of the table of capabilities as they are."""
    gpu, emulated = (json.loads(path.read_text(encoding="utf-8")) for path in (GPU, EMULATED))
    return "\n".join([HEAD, *_page(gpu, emulated)]) + "\n"


def _page(gpu: dict[str, Any], emulated: dict[str, Any]) -> Iterator[str]:
    yield "## What was found"
    yield ""
    for run in (gpu, emulated):
        name = "the emulated device" if run["device"] == "emulated" else run["device"]
        yield f"- {name}, torch {run['torch']}: {run['report']['verdict']}."
    yield ""
    yield (
        "*CUDA* and *ROCm*: since which version, **read in sources or reported by users, "
        "not run**. "
        "*any*: PyTorch gives it. *none*: no version has it. No AMD GPU was available."
    )
    here, there = ({row["id"]: row for row in run["report"]["rows"]} for run in (gpu, emulated))
    for group, heading in groups().items():
        rows = [one for one in capabilities() if one.group == group]
        facts = any(one.facts for one in rows)
        yield ""
        yield f"### {heading}"
        yield ""
        yield from table(
            COLUMNS if facts else COLUMNS[:4],
            (_cells(one, here[one.id]["state"], there[one.id]["state"], facts) for one in rows),
        )
    yield ""
    yield "## How gfxgraph bridges"
    yield ""
    yield "Proved on the emulated device, for each row that is *bridged* there."
    yield ""
    yield from table(
        ("capability", "how", "the probe saw"),
        (
            (one.name, one.bridge.how, there[one.id]["saw"])
            for one in capabilities()
            if one.bridge and there[one.id]["state"] == "bridged"
        ),
    )
    yield ""
    yield "## What else is known of ROCm"
    yield ""
    yield "Read or reported, as the sources below say; not run."
    yield ""
    yield from table(
        ("capability", "note", "sources", "known issues"),
        (
            (one.name, fact.note, ", ".join(fact.sources), ", ".join(one.issues))
            for one in capabilities()
            if (fact := one.facts.get("rocm"))
            and (one.issues or (fact.note and one.group != "torch"))
        ),
    )
    yield ""
    yield "## Sources"
    yield ""
    yield from table(
        ("name", "source", "how"),
        ((name, f"[{one.title}]({one.url})", one.how) for name, one in sources().items()),
    )


def _cells(one: Capability, gpu: str, emulated: str, facts: bool) -> tuple[str, ...]:
    since = (one.facts[v].since or "none" if v in one.facts else "" for v in ("cuda", "rocm"))
    return (one.name, one.does, gpu, emulated, *(since if facts else ()))
