"""A text file as a list of passages of a useful size."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import GfxGraphError

__all__ = ["DEFAULT_TEXT", "InputError", "passages", "read_text"]

DEFAULT_TEXT = Path(__file__).with_name("data") / "alice.txt"
"""The public-domain text that comes with the package (see ``data/README.md``)."""

SHORT = 300  # characters; a passage below this takes in the next paragraph
LONG = 1000  # characters; a paragraph above this is cut, about 230 tokens of English

_BLANK_LINES = re.compile(r"\n\s*\n")
_SENTENCE_END = re.compile(r"[.!?]['\")\]]*\s")
_WORD = re.compile(r"\w")


class InputError(GfxGraphError, ValueError):
    """A text or a query that cannot be used."""


def read_text(path: Path) -> str:
    """Read ``path`` as UTF-8, or raise an :class:`InputError` that names the problem."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{str(path)!r} is not UTF-8 text: byte 0x{data[error.start]:02x} at offset "
            f"{error.start}. Convert it to UTF-8 first."
        ) from error
    if not text.strip():
        what = f"{len(data)} bytes of blank space" if data else "no bytes"
        raise InputError(f"{str(path)!r} is empty ({what}); the demo needs a text to embed.")
    return text


def passages(text: str) -> list[str]:
    """Split ``text`` at blank lines; merge tiny parts and cut huge ones.

    No passage is empty or longer than 1,000 characters. Paragraphs without a letter or a digit
    (rows of asterisks) are left out.
    """
    merged: list[str] = []
    for paragraph in _BLANK_LINES.split(text):
        if not _WORD.search(paragraph):
            continue
        for piece in _cut(" ".join(paragraph.split())):
            if merged and len(merged[-1]) < SHORT and len(merged[-1]) + len(piece) < LONG:
                merged[-1] += " " + piece
            else:
                merged.append(piece)
    return merged


def _cut(paragraph: str) -> list[str]:
    pieces = []
    while len(paragraph) > LONG:
        at = _cutting_point(paragraph[:LONG])
        pieces.append(paragraph[:at].strip())
        paragraph = paragraph[at:].strip()
    return [*pieces, paragraph] if paragraph else pieces


def _cutting_point(head: str) -> int:
    """The end of the last sentence, else of the last word, else all of it."""
    ends = [match.end() for match in _SENTENCE_END.finditer(head)]
    return ends[-1] if ends else head.rfind(" ") + 1 or len(head)
