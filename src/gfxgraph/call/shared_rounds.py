"""Rounds of ranks on one host, in memory that they share; what they are about: ``agreement.py``.

A round over the store takes some requests, and each of them a trip through a socket. Here it takes
a rank some microseconds to say its word, and the others learn of it as soon as they look.

The memory is a file without a name, which the others open as one of the process that has made it
(Linux). It is written under a lock of the file, which the kernel takes back from a process that
ends. So each round has one verdict, whoever comes last, gives up or dies. It is read without the
lock: a verdict does not change.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["MOST_RANKS", "SharedRounds", "host", "new_file"]

Outcome = Literal["agreed", "different", "silent"]
_OUTCOMES: tuple[Outcome, ...] = ("agreed", "different", "silent")

MOST_RANKS = 64
"""So many ranks fit into a number with a bit for each."""

# All ranks take part in a round that is agreed on, and after eight differences in a row there are
# no more rounds; so no rank is that many behind.
_ROUNDS = 64
# Of each round: its number, what was said first, who has spoken, the verdict (0: none yet).
_NUMBER, _WORD, _SPOKEN, _VERDICT = _CELLS = range(4)
# In front of them is what tells the file from others.
_MARK = 64
_BYTES = _MARK + _ROUNDS * len(_CELLS) * 8

# Seconds: so long a rank looks without a pause, and so long at most are the pauses after that.
_EAGER, _PAUSE = 5e-4, 1e-3


def host() -> str:
    """Name this host and its boot: all its processes give the same, other hosts another."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text().strip() if boot.exists() else ''}"


def new_file() -> tuple[BinaryIO, str, str] | None:
    """Make the file for some ranks; one of them does.

    Returns:
        The file, to be open until the others have opened it; its path for them, and its mark.
        ``None``: there can be none.
    """
    if fcntl is None or not hasattr(os, "memfd_create"):
        return None
    try:
        file = open(os.memfd_create("gfxgraph-ranks"), "r+b", buffering=0)  # noqa: SIM115
    except OSError:
        return None
    mark = secrets.token_hex(_MARK // 2)
    file.write(mark.encode() + bytes(_BYTES - _MARK))
    return file, f"/proc/{os.getpid()}/fd/{file.fileno()}", mark


class SharedRounds:
    """Rounds of some ranks. All have to begin the same rounds in the same order.

    Args:
        path: the file, from :func:`new_file`.
        mark: the same. Where processes are numbered otherwise, that may be a path of another file.
        position: which of the ranks this one is.
        size: how many there are, at most :data:`MOST_RANKS`.

    Raises:
        OSError: this process cannot use it.
    """

    def __init__(self, path: str, mark: str, position: int, size: int) -> None:
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 - as long as this object
        if self._file.read(_MARK) != mark.encode():
            raise FileNotFoundError(path)
        self._cells = memoryview(mmap.mmap(self._file.fileno(), _BYTES))[_MARK:].cast("Q")
        self._bit, self._all = 1 << position, (1 << size) - 1

    def decide(self, number: int, word: str, patience: float) -> tuple[Outcome, list[int]]:
        """Say ``word`` in round ``number``, and wait for the verdict.

        Args:
            number: of the round.
            word: what this rank says.
            patience: seconds to wait for the others.

        Returns:
            The verdict, and the positions of those that have not spoken, if it is that.
        """
        cells, at = self._cells, number % _ROUNDS * len(_CELLS)
        verdict, start = at + _VERDICT, time.monotonic()
        end = start + patience
        try:
            with self._locked(end):
                self._speak(at, number, word)
            while not cells[verdict]:
                waited = time.monotonic() - start
                if waited >= patience:
                    with self._locked(end + 1):
                        cells[verdict] = cells[verdict] or 1 + _OUTCOMES.index("silent")
                else:
                    time.sleep(min(waited / 8, _PAUSE) if waited > _EAGER else 0)
        except TimeoutError:
            return "silent", []
        missing = ~cells[at + _SPOKEN] & self._all
        outcome = _OUTCOMES[cells[verdict] - 1]
        return outcome, [n for n in range(MOST_RANKS) if missing >> n & 1]

    def _speak(self, at: int, number: int, word: str) -> None:
        cells, said = self._cells, _digest(word)
        if cells[at + _NUMBER] != number:  # the first; its verdict is the last to be seen
            cells[at + _WORD], cells[at + _SPOKEN], cells[at + _VERDICT] = said, 0, 0
            cells[at + _NUMBER] = number
        if cells[at + _VERDICT]:
            return
        cells[at + _SPOKEN] |= self._bit
        if cells[at + _WORD] != said:
            cells[at + _VERDICT] = 1 + _OUTCOMES.index("different")
        elif cells[at + _SPOKEN] == self._all:
            cells[at + _VERDICT] = 1 + _OUTCOMES.index("agreed")

    @contextmanager
    def _locked(self, end: float) -> Iterator[None]:
        """Inside, no other rank writes.

        Raises:
            TimeoutError: one does so for too long: its process was stopped in the middle.
        """
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError from None
                time.sleep(0)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _digest(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
