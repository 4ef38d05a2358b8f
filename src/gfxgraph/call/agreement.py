"""Several ranks decide together, on the host and in bounded time.

A *round* is one decision. Each rank says a word in it. If all say the same one, the verdict is yes;
if two differ, or a rank is silent for too long, it is no. The verdict is a single key of torch's
store, which the first that knows it writes: so no rank reads another verdict than the others, also
where one of them gives up waiting at the very moment in which the last one answers.

Ranks of one host find that out in the first two rounds, and hold the others in memory that they
share (``shared_rounds.py``), which takes microseconds. Where they differ there, they say more of it
in the store.

Nothing here is a collective of torch: a rank that is gone, or never comes, costs the others the
time that they wait for it, and no more.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from .shared_rounds import MOST_RANKS, SharedRounds, host, new_file

__all__ = ["Agreement", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """What all ranks have decided.

    Attributes:
        agreed: whether all said the same.
        why: why not; it names a rank.
        silent: whether a rank gave no answer in time, or the store is gone.
        alike: whether two ranks did the same, and differed in how.
    """

    agreed: bool
    why: str = ""
    silent: bool = False
    alike: bool = False


class Agreement:
    """Rounds of some ranks about one thing. All have to begin the same rounds in the same order.

    Args:
        name: of what the rounds are about, the same on all ranks.
        ranks: the global ranks that take part.
        rank: this one.
        store: torch's store, which all of them reach.
        patience: seconds to wait for the others in a round.

    Attributes:
        ranks: see above.
        rounds: how many have begun.
    """

    def __init__(
        self, name: str, ranks: Sequence[int], rank: int, store: Any, patience: float
    ) -> None:
        prefixed: Any = vars(dist)["PrefixStore"]  # not among the names that it exports
        self._store = prefixed(f"gfxgraph/{name}", store)
        self.ranks, self._rank, self._patience = list(ranks), rank, patience
        self.rounds = 0
        #: Rounds that have left something in the store.
        self._stored: list[int] = []
        self._shared: SharedRounds | None = None
        self._steps = self._share()

    def decide(self, word: str, detail: Sequence[str] = ()) -> Verdict:
        """Say ``word`` in the next round, and learn the verdict.

        Args:
            word: a short text.
            detail: lines that explain it, and may differ. Of words that differ only behind a colon
                the verdict shows how their lines differ.
        """
        self.rounds = number = self.rounds + 1
        try:
            if number == 1:
                next(self._steps)
            if self._shared is None:
                verdict = self._decided(number, word, detail)
            else:
                verdict = self._decided_in_memory(self._shared, number, word, detail)
            if verdict.agreed:
                self._forget_before(number)
                next(self._steps, None)
            return verdict
        except RuntimeError as error:  # also all that torch raises of a store
            why = f"rank {self._rank} cannot reach the store of the process group: {error}"
            return Verdict(False, why.partition("\n")[0], silent=True)

    def _decided(self, number: int, word: str, detail: Sequence[str]) -> Verdict:
        store = self._store
        self._stored.append(number)
        mine = json.dumps([self._rank, word, list(detail)])
        store.set(f"{number}/{self._rank}", "")
        first = json.loads(store.compare_set(f"{number}/word", "", mine))
        if first[1] != word:
            return self._verdict(number, self._difference(first, word, detail))
        if store.add(f"{number}/count", 1) == len(self.ranks):
            return self._verdict(number, Verdict(True))
        try:
            store.wait([f"{number}/verdict"], timedelta(seconds=self._patience))
        except RuntimeError:
            missing = [r for r in self.ranks if not store.check([f"{number}/{r}"])]
            return self._verdict(number, self._silence(missing))
        return self._verdict(number, Verdict(False))

    def _decided_in_memory(
        self, shared: SharedRounds, number: int, word: str, detail: Sequence[str]
    ) -> Verdict:
        outcome, missing = shared.decide(number, word, self._patience)
        if outcome == "agreed":
            return _AGREED
        if outcome == "silent":
            return self._silence([self.ranks[position] for position in missing])
        return self._decided(number, word, detail)

    def _silence(self, missing: Sequence[int]) -> Verdict:
        who = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
        who = who if missing else "a rank that was stopped in the middle of it"
        return Verdict(False, f"{who} gave no answer in {self._patience:g} s", silent=True)

    def _share(self) -> Iterator[None]:
        """Go over to memory that all ranks share, if they are on one host.

        Of each step the others know once a round after it was agreed on.
        """
        store, ranks = self._store, self.ranks
        is_first = self._rank == ranks[0]
        file = new_file() if is_first and 1 < len(ranks) <= MOST_RANKS else None
        store.set(f"host/{self._rank}", json.dumps([host(), file and file[1:]]))
        yield
        said = [json.loads(store.get(f"host/{rank}")) for rank in ranks]
        shared = None
        if said[0][1] and all(its_host == said[0][0] for its_host, _ in said):
            path, mark = said[0][1]
            with contextlib.suppress(OSError):  # processes that do not see each other
                shared = SharedRounds(path, mark, ranks.index(self._rank), len(ranks))
        store.set(f"shares/{self._rank}", str(shared is not None))
        yield
        if all(store.get(f"shares/{rank}") == b"True" for rank in ranks):
            self._shared = shared
        yield
        if is_first:
            for name in (f"{what}/{rank}" for what in ("host", "shares") for rank in ranks):
                store.delete_key(name)

    def _verdict(self, number: int, proposed: Verdict) -> Verdict:
        """The verdict of a round; ``proposed`` becomes it, if there is none."""
        text = json.dumps([proposed.agreed, proposed.why, proposed.silent, proposed.alike])
        return Verdict(*json.loads(self._store.compare_set(f"{number}/verdict", "", text)))

    def _difference(self, first: list[Any], word: str, detail: Sequence[str]) -> Verdict:
        other, its_word, its_detail = first
        if its_word.partition(":")[0] == word.partition(":")[0]:
            names = f"rank {other}", f"rank {self._rank}"
            lines = difflib.unified_diff(its_detail, list(detail), *names, lineterm="")
            why = "\n".join([f"{names[1]} differs from {names[0]}:", *lines])
            return Verdict(False, why, alike=True)
        ours, theirs = _said(self._rank, word, detail), _said(other, its_word, its_detail)
        return Verdict(False, f"{ours}; {theirs}")

    def _forget_before(self, number: int) -> None:
        """All ranks are past the rounds before this one: nobody reads them any more."""
        if not self._stored:
            return
        past = [n for n in self._stored if n < number]
        self._stored = [n for n in self._stored if n >= number]
        if self._rank == self.ranks[0]:
            for n in past:
                for name in ("word", "count", "verdict", *map(str, self.ranks)):
                    self._store.delete_key(f"{n}/{name}")


_AGREED = Verdict(True)


def _said(rank: int, word: str, detail: Sequence[str]) -> str:
    what = word.partition(":")[0]
    return f"rank {rank} {what}" + (f" ({detail[0]})" if detail else "")
