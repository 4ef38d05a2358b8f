"""Remedies that fit the line of a hazard, where that of its rule speaks of the usual one."""

from __future__ import annotations

import re

__all__ = ["remedy"]

_HOST = {"data-dependent-shape", "host-compute", "host-constant", "host-read"}
_SAYS = {"host-compute", "host-read", "print", "side-effect"}
_LOGS = re.compile(
    r"\bprint\(|\blog(?:ger|ging)?\w*\.\w|\bwandb\.|\btqdm\b|add_scalar|\bwarnings\.warn|"
    r"set_postfix|\blog_\w+\(|\.log\("
)
_NUMPY = re.compile(r"\bnp\.|\bnumpy\b")

_AFTER = "Move it after the call: return what it shows, and log that there."
_IN_TORCH = (
    "Do it in torch, on the device: torch has the same functions (np.clip is torch.clamp, "
    "np.concatenate torch.cat). What needs NumPy comes after the call."
)
_BY_LINE = (
    (
        re.compile(r"^(?:el)?if\b|\bif\b.+\belse\b"),
        "Compute both and choose on the device: torch.where(condition, a, b); or let the device "
        "branch: gfxgraph.cond.",
    ),
    (
        re.compile(r"^while\b"),
        "Do a fixed number of rounds, or let the device decide: gfxgraph.while_loop.",
    ),
    (
        re.compile(r"^assert\b|\bcheck_?\w*\("),
        "Check it once, before the calls, or after them.",
    ),
    (
        re.compile(r"\brange\(|\b(?:zeros|ones|empty|full|arange)\("),
        "Pass the number as an argument, or take an upper bound and mask what is beyond it.",
    ),
    (
        re.compile(r"^return\b"),
        "Return the tensor, and let the caller read it after the call.",
    ),
)


def remedy(rule: str, what: str, line: str) -> str:
    """What to do about a hazard at a line; ``""``: what its rule says.

    Args:
        rule: id of the rule.
        what: the call, such as ``"Tensor.item()"``.
        line: the text of the line.
    """
    line = line.strip()
    if rule in _SAYS and _LOGS.search(line):
        return _AFTER
    if rule in _HOST and (_NUMPY.search(line) or "numpy" in what):
        return _IN_TORCH
    if rule == "host-read":
        return next((text for pattern, text in _BY_LINE if pattern.search(line)), "")
    return ""
