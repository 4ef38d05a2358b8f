"""The figures of README.md, which stand between its two ``figures`` marks."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.lib.report import RESULTS, ROOT

PAGE = ROOT / "README.md"
BEGIN, END = "<!-- figures: benchmarks/tables/readme.py -->", "<!-- end of figures -->"


def figures() -> str:
    """Markdown of what the README says of the results."""
    policies, decode, diffusion, models = map(_read, ("policies", "decode", "diffusion", "models"))
    pi0, unet = policies["pi0"], diffusion["models"]["UNet of Stable Diffusion 1.5, bfloat16"]
    loop, tokens = unet["one graph"], decode["batch 1, bfloat16"]["ways"]
    single = [row for row in models["models"].values() if "error" not in row]
    exact = sum(not row["largest difference"] and not row["differs"] for row in single)
    equal = sum(not row["differs"] for row in single)
    before, after = (tokens[way]["tokens/s"] for way in ("eager, dynamic cache", "graphs"))
    return (
        f"One {policies['device']}, eager and from graphs: a chunk of actions of `pi0`, full size,"
        f" {pi0['eager ms']:.0f} and {pi0['graph ms']:.0f} ms;\nLlama with 1.1 B parameters,"
        f" batch 1, {before:.0f} and {after:.0f} tokens/s; 20 steps of Stable Diffusion 1.5"
        f" {unet['eager']['ms an image']:.0f} and {loop['ms an image']:.0f} ms.\nOf"
        f" {len(single)} models of timm and transformers, {equal} equal eager, {exact} of them bit"
        " for bit."
    )


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def made() -> str:
    """The README with the figures of the results as they are."""
    return page(PAGE.read_text(encoding="utf-8"))


def page(text: str) -> str:
    """``text`` with these figures."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{figures()}\n{END}{after}"
