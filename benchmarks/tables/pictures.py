"""The pictures of the README and of the docs: docs/assets/*.svg, each for light and for dark.

``check`` is what the command prints of the first function of docs/your-model.md. ``timeline`` and
``gains`` show results. The others are drawings.
"""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.terminal_theme import MONOKAI

import gfxgraph
from benchmarks.lib.report import RESULTS, ROOT
from gfxgraph.analyze.view import show

FOLDER = ROOT / "docs" / "assets"


class Theme(NamedTuple):
    """Colours."""

    name: str
    back: str
    text: str
    quiet: str
    line: str
    busy: str
    host: str
    other: str


THEMES = (
    Theme("light", "#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#00796b", "#c2410c", "#1d4ed8"),
    Theme("dark", "#1e2129", "#e6edf3", "#9198a1", "#3d444d", "#4db6ac", "#fb923c", "#93c5fd"),
)
WIDTH = 760


def made() -> dict[str, str]:
    """File -> its text, of the results as they are; without ``check``."""
    drawings: dict[str, Callable[[Theme], str]] = {
        "eager-and-graph": timeline,
        "gains": gains,
        "two-calls": two_calls,
        "fold-or-branch": fold_or_branch,
    }
    return {
        f"{name}-{theme.name}.svg": draw(theme)
        for name, draw in drawings.items()
        for theme in THEMES
    }


def write() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in (made() | of_check()).items():
        (FOLDER / name).write_text(text, encoding="utf-8")


# ---- elements


def svg(height: float, title: str, parts: Sequence[str], theme: Theme) -> str:
    """A picture on a card of the theme's colour, so that it can stand on any page."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}"'
            ' role="img" font-family="system-ui, -apple-system, Segoe UI, sans-serif"'
            ' font-size="14">',
            f"<title>{escape(title)}</title>",
            box(0, 0, WIDTH, height, theme.back, 8),
            *parts,
            "</svg>\n",
        ]
    )


def box(
    x: float, y: float, w: float, h: float, fill: str, round_: float = 0, line: str = ""
) -> str:
    """A rectangle."""
    more = f' rx="{round_:g}"' * bool(round_) + f' stroke="{line}"' * bool(line)
    return f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}"{more}/>'


def words(
    x: float,
    y: float,
    what: str,
    fill: str,
    anchor: str = "start",
    bold: bool = False,
    size: int = 14,
) -> str:
    """A line of text."""
    more = ' font-weight="600"' * bold + f' font-size="{size}"' * (size != 14)
    where = f'x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}"'
    return f"<text {where}{more}>{escape(what)}</text>"


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    """A line with a head, to the right or downwards."""
    if y1 == y2:
        head = f"M{x2 - 7:g},{y2 - 4:g} L{x2:g},{y2:g} L{x2 - 7:g},{y2 + 4:g}"
    else:
        head = f"M{x2 - 4:g},{y2 - 7:g} L{x2:g},{y2:g} L{x2 + 4:g},{y2 - 7:g}"
    return (
        f'<path d="M{x1:g},{y1:g} L{x2:g},{y2:g} {head}" fill="none" stroke="{colour}"'
        ' stroke-width="1.5"/>'
    )


# ---- pictures of results


def timeline(theme: Theme) -> str:
    """What the device does in a call, as benchmarks/results/trace.json has it."""
    report = json.loads((RESULTS / "trace.json").read_text(encoding="utf-8"))["runs"][0]["report"]
    ways = {way["name"]: way for way in report["ways"]}
    longest = max(way["traced_us"] for way in ways.values())
    left, right = 24.0, WIDTH - 24.0
    scale = (right - left) / longest
    parts = []
    for n, (name, way) in enumerate(ways.items()):
        y = 30 + 92 * n
        p50, launches = way["end_to_end_us"]["p50"], way["launches"]
        parts += [
            words(left, y, f"{name}: {p50:,.0f} µs a call", theme.text, bold=True),
            words(
                right,
                y,
                f"{launches:,.0f} launches, device idle {way['idle']:.0%}",
                theme.quiet,
                "end",
            ),
            box(left, y + 12, way["traced_us"] * scale, 34, theme.line, 2),
        ]
        for one in way["timeline"]:
            width = max(one["us"] * scale, 0.6)
            parts.append(
                box(
                    round(left + one["start_us"] * scale, 1),
                    y + 12,
                    round(width, 1),
                    34,
                    theme.busy,
                )
            )
    parts += [
        words(
            left,
            210,
            f"One call of 12 transformer blocks on an {report['device'].removeprefix('NVIDIA ')}. "
            "Coloured: the device works. Grey: it waits.",
            theme.quiet,
            size=13,
        ),
        words(
            left,
            228,
            "Traced, which slows eager down; the times above were taken without a profiler.",
            theme.quiet,
            size=13,
        ),
    ]
    return svg(244, "What the device does in one call, eagerly and as a graph", parts, theme)


def bars() -> list[tuple[str, float]]:
    """What was measured, and how many times as fast as eager execution a graph was."""

    def read(name: str) -> Any:
        return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))

    policies, decode, diffusion = read("policies"), read("decode"), read("diffusion")
    decoded = decode["batch 1, bfloat16"]["graphs against"]["eager, dynamic cache"]
    unet = diffusion["models"]["UNet of Stable Diffusion 1.5, bfloat16"]
    compiled = read("compiled")["models"]["transformer"]["ways"]
    blocks = {run["model"]: run["report"] for run in read("bench")["runs"]}
    wide = next(report for model, report in blocks.items() if "8192" in model)
    of_wide = next(way for way in wide["ways"] if way["name"] == "graph")["speedup"]["median"]
    pi0 = policies["pi0"]
    return [
        ("robot policy pi0, 4.0 B", pi0["eager ms"] / pi0["graph ms"]),
        (
            "12-layer transformer",
            compiled["eager"]["end_to_end_us"] / compiled["graph"]["end_to_end_us"],
        ),
        ("Llama 1.1 B, a token", decoded),
        ("Stable Diffusion 1.5, 20 steps", unet["one graph"]["times faster"]),
        ("4 layers of 8192, 8192 rows", of_wide),
    ]


def gains(theme: Theme) -> str:
    """How many times as fast as eager a graph is."""
    rows = bars()
    left, right = 250.0, WIDTH - 70.0
    scale = (right - left) / max(value for _, value in rows)
    parts = []
    for n, (name, value) in enumerate(rows):
        y = 20 + 34 * n
        parts += [
            words(left - 12, y + 16, name, theme.text, "end"),
            box(left, y, round(value * scale, 1), 22, theme.busy, 2),
            words(
                round(left + value * scale + 8, 1), y + 16, f"{value:.2f}", theme.text, bold=True
            ),
        ]
    bottom = 20 + 34 * len(rows)
    parts += [
        f'<path d="M{left + scale:g},12 V{bottom:g}" stroke="{theme.quiet}"'
        ' stroke-dasharray="3 3"/>',
        words(left + scale, bottom + 16, "eager = 1", theme.quiet, "middle", size=13),
        words(WIDTH - 24, bottom + 16, "times as fast, one H200", theme.quiet, "end", size=13),
    ]
    return svg(bottom + 34, "How many times as fast as eager execution a graph is", parts, theme)


# ---- drawings


def _row(y: float, head: str, steps: Sequence[tuple[str, str]], theme: Theme) -> Iterator[str]:
    """Boxes with two lines each, and arrows between them."""
    yield words(24, y - 12, head, theme.text, bold=True)
    gap = 18.0
    width = (WIDTH - 48 - gap * (len(steps) - 1)) / len(steps)
    for n, (first, second) in enumerate(steps):
        x = 24 + n * (width + gap)
        yield box(x, y, width, 52, theme.back, 6, theme.busy)
        yield words(x + width / 2, y + 22, first, theme.text, "middle", bold=True, size=13)
        yield words(x + width / 2, y + 40, second, theme.quiet, "middle", size=12)
        if n:
            yield arrow(x - gap, y + 26, x, y + 26, theme.quiet)


def two_calls(theme: Theme) -> str:
    """A new kind of call, and a known one."""
    first = [
        ("run eagerly", "for the caller"),
        ("record", "what it does"),
        ("capture", "the launches"),
        ("compare", "with eager"),
        ("put back", "and keep"),
    ]
    later = [
        ("match", "the arguments"),
        ("copy in", "to the inputs"),
        ("guard", "is all as it was?"),
        ("launch", "once"),
        ("copy out", "the results"),
    ]
    parts = [
        *_row(40, "A new kind of call", first, theme),
        *_row(140, "A known kind of call", later, theme),
    ]
    return svg(214, "What happens in a new and in a known kind of call", parts, theme)


def fold_or_branch(theme: Theme) -> str:
    """Values that do not depend on the inputs, and those that do."""
    parts = [
        words(24, 30, "Does not depend on the inputs: folded", theme.text, bold=True),
        words(24, 52, "t = torch.tensor(1.0); while t > 0.05: ...", theme.quiet, size=13),
        box(400, 20, 336, 40, theme.back, 6, theme.busy),
        words(568, 45, "one graph, the value is a constant of it", theme.text, "middle", size=13),
        arrow(330, 40, 400, 40, theme.quiet),
        words(24, 112, "Depends on them: a branch point", theme.text, bold=True),
        words(24, 134, "if x.sum() > 0: ...", theme.quiet, size=13),
        box(300, 102, 100, 40, theme.back, 6, theme.busy),
        words(350, 127, "graph 1", theme.text, "middle", size=13),
        arrow(400, 122, 440, 122, theme.quiet),
        box(440, 102, 130, 40, theme.back, 20, theme.host),
        words(505, 127, "host reads", theme.text, "middle", size=13),
        arrow(570, 112, 636, 112, theme.quiet),
        arrow(570, 132, 636, 132, theme.quiet),
        words(603, 106, "True", theme.quiet, "middle", size=12),
        words(603, 152, "False", theme.quiet, "middle", size=12),
        box(636, 84, 100, 34, theme.back, 6, theme.busy),
        words(686, 106, "graph 2", theme.text, "middle", size=13),
        box(636, 128, 100, 34, theme.back, 6, theme.busy),
        words(686, 150, "graph 3", theme.text, "middle", size=13),
    ]
    return svg(180, "Values are folded, or decide which graph comes next", parts, theme)


# ---- a real check

COMMAND = 'gfxgraph check my_policy:policy.act "float32[1,32]" "float32[1,7]"'
SOURCE = re.compile(r'```python title="my_policy.py"\n(.*?)```', re.DOTALL)


def of_check() -> dict[str, str]:
    """What ``gfxgraph check`` prints, as a terminal shows it."""
    page = (ROOT / "docs" / "your-model.md").read_text(encoding="utf-8")
    source = SOURCE.search(page)
    assert source is not None, "docs/your-model.md begins with a file my_policy.py"
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("my_policy.py").write_text(source[1], encoding="utf-8")
            policy = runpy.run_path("my_policy.py")["policy"]
            report = gfxgraph.check(policy.act, torch.randn(1, 32), torch.randn(1, 7))
        finally:
            os.chdir(before)
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True)
    console.print(f"$ {COMMAND}", highlight=False)
    show(report, console)
    drawn = console.export_svg(title="gfxgraph check", theme=MONOKAI, unique_id="check")
    return {"check.svg": re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)}
