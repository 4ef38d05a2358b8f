"""``docs/rules.md``: the rules of ``gfxgraph check`` and ``gfxgraph lint``, from their catalogues.

``python -m gfxgraph.analyze.rules_page`` writes it, in the root of the repository.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..record.rules import RULES, Effect, Rule
from .lint_rules import LINT_RULES, LintRule

__all__ = ["page"]

_EFFECTS: dict[Effect, str] = {
    "captures": "captures unmodified",
    "folds": "captures by folding",
    "branches": "captures by branching",
    "eager": "stays eager",
}
_HEAD = """\
# Rules

<!-- Made by python -m gfxgraph.analyze.rules_page. -->

`gfxgraph check` runs a function as on a GPU and reports what matters in a graph. `gfxgraph lint`
reads source and runs nothing. The worst rule that a function meets decides what happens to it:

- It **captures unmodified**: it becomes one graph.
- It **captures by folding**: a value that every call shares becomes a constant of the graph.
- It **captures by branching**: it becomes several graphs, with host code in between. If Python
  acts on a floating-point number that depends on the inputs, it **takes a new path for each new
  value**, and will not replay.
- It **stays eager**: it runs without a graph, and its `stats()` give the reason.

Data also depends on the inputs if it depends on random numbers, or on outside tensors that change
from call to call.

The examples of `gfxgraph check` are called as `f(x)`, with a float tensor of shape (4, 8) on the
device.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join((_HEAD, *_check(), *_lint()))


def _check() -> Iterator[str]:
    yield "## Rules of `gfxgraph check`\n"
    yield "| Rule | What the code does | The function | If the data depends on the inputs |"
    yield "|---|---|---|---|"
    for rule in RULES.values():
        effects = f"{_EFFECTS[rule.effect]} | {_EFFECTS[rule.tainted]}"
        yield f"| [{rule.id}](#{rule.id}) | {rule.title} | {effects} |"
    for rule in RULES.values():
        effect = f"The function {_EFFECTS[rule.effect]}"
        if rule.tainted != rule.effect:
            effect += f"; where the data depends on the inputs, it {_EFFECTS[rule.tainted]}"
        yield from _section(rule, effect)


def _lint() -> Iterator[str]:
    yield "\n## Rules of `gfxgraph lint`\n"
    yield "| Rule | What the code does | Severity |"
    yield "|---|---|---|"
    for rule in LINT_RULES.values():
        yield f"| [{rule.id}](#{rule.id}) | {rule.title} | {rule.severity} |"
    for rule in LINT_RULES.values():
        yield from _section(rule, f"Severity: {rule.severity}")


def _section(rule: Rule | LintRule, effect: str) -> Iterator[str]:
    yield f"\n### {rule.id}\n"
    first, _, rest = rule.title.partition(" ")
    yield f"**{first.capitalize() if first.isalpha() else first} {rest}.** {effect}.\n"
    yield f"{rule.why}\n"
    yield f"Remedy: {rule.remedy}"
    for name, source in (("Before", rule.bad), ("After", rule.good)):
        if source:
            yield f"\n{name}:\n\n```python\n{source.rstrip()}\n```"


if __name__ == "__main__":
    Path("docs/rules.md").write_text(f"{page()}\n", encoding="utf-8")
