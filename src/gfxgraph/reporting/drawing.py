"""Draws charts as SVG that stands within HTML."""

from __future__ import annotations

import json
import re

from ..errors import MissingPackageError
from .parts import Chart

__all__ = ["svg"]


def svg(chart: Chart) -> dict[int, str]:
    """Draw a chart; width -> an ``<svg>`` element for a page.

    Raises:
        MissingPackageError: Vega-Lite is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise MissingPackageError(
            "The report needs vl-convert-python: pip install vl-convert-python."
        ) from error
    drawn = {}
    for width, spec in chart.spec.items():
        # As text, since its numbers may be larger than an integer of 64 bits.
        text = str(vl_convert.vegalite_to_svg(json.dumps(spec)))
        drawn[width] = _TAG.sub(_leaner, text)
    return drawn


# What HTML does not need, and what the page's style says.
_NEEDLESS = re.compile(
    r' xmlns(:xlink)?="[^"]*"| (class|font-family|pointer-events|aria-[a-z]+|role)="[^"]*"'
    r'| opacity="1"|<path [^>]*(display="none"|d="M0,0h0v0h0Z")[^>]*/>'
)
_GEOMETRY = re.compile(r' (transform|d|x|y|x1|x2|y1|y2|width|height)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{2,}(e-?\d+)?")


_TAG = re.compile(r"<[^>]*>")


def _leaner(tag: re.Match[str]) -> str:
    return _GEOMETRY.sub(lambda found: _LONG.sub(_rounded, found[0]), _NEEDLESS.sub("", tag[0]))


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
