"""Each message of gfxgraph has a section of docs/troubleshooting.md."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.errors import CaptureError, MemoryCapError
from gfxgraph.record.rules import RULES
from gfxgraph.troubleshooting import SECTIONS, section_of
from tests.docs.test_links import anchors
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCE = Path(gfxgraph.__file__).parent
CLASSES = {"CaptureError", "CaptureForbidden", "CompileError", "DeadTensorError", "DeviceError"}
CLASSES |= {"MemoryCapError", "MissingPackageError", "ServerError", "TorchVersionError"}
CLASSES |= {"VerificationError", "NotWorthIt"}
# So many letters of a message that stand in the source; the rest is filled in when it is raised.
KNOWN = 20


def literal(node: ast.expr) -> str:
    """What of a message stands in the source, with a gap where something is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return "X"


@functools.cache
def messages() -> dict[str, str]:
    """Where a message stands -> what of it stands there."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                text = literal(node.args[0])
                if name in CLASSES and len(re.findall(r"[a-z]", text)) >= KNOWN:
                    found[f"{path.relative_to(SOURCE)}:{node.lineno}"] = text
    return found


def test_every_section_is_a_heading():
    assert SECTIONS.keys() <= anchors(PAGE)


def test_every_message_has_a_section():
    assert len(messages()) > 150
    assert [(where, text) for where, text in messages().items() if not section_of(text)] == []


def test_every_section_has_a_message():
    found = set(map(section_of, messages().values()))
    # Messages that are put together elsewhere: of rules, of several calls, of functions of torch.
    assert SECTIONS.keys() - found <= {"a-line-of-your-code", "threads", "arguments", "results"}


@pytest.mark.parametrize(
    ("fn", "section"),
    [
        (lambda x: print(x.shape), "a-line-of-your-code"),
        (lambda x: x * torch.ones_like(x, requires_grad=True), "requires-grad"),
        (lambda x: object(), "results"),
    ],
)
def test_the_log_names_the_section(device, fn, section, caplog):
    gfxgraph.graphed(fn)(torch.ones(2, device=device))
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "fallback"]
    assert record.fields["see"] == f"troubleshooting.md#{section}", record.fields


def test_an_error_names_its_rule_or_its_section():
    assert MemoryCapError("no room for its graph: it would").see == "troubleshooting.md#memory"
    error = CaptureError("the function prints")
    error.rule = "print"
    assert error.see == "rules.md#print" and RULES["print"]
    assert CaptureError("xyz").see == ""


def test_a_reason_that_differs_each_time_is_explained_too(device):
    power = gfxgraph.graphed(lambda x, n: x * n)
    with torch.no_grad():
        for n in range(20):
            power(torch.ones(2, device=device), n)
    (reason,) = power.stats().fallbacks
    assert section_of(reason) == "every-call-is-of-a-new-kind"
