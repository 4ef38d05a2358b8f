"""Several ranks decide together; here they are threads with one store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed as dist

from gfxgraph.call.agreement import Agreement

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


def decided(words, rounds=1, patience=0.2, details=()):
    """The verdict of each rank that says something, in the last of some rounds."""
    store = dist.HashStore()

    def of_rank(rank):
        agreement = Agreement("f", range(len(words)), rank, store, patience)
        if words[rank] is None:
            return None
        detail = details[rank] if details else ()
        return [agreement.decide(words[rank], detail) for _ in range(rounds)][-1]

    with ThreadPoolExecutor(len(words)) as threads:
        found = list(threads.map(of_rank, range(len(words))))
    return [verdict for verdict in found if verdict is not None], store


def one_verdict(words, **options):
    found, _ = decided(words, **options)
    assert len(set(found)) == 1, "no rank learns another verdict"
    return found[0]


def test_all_say_the_same():
    assert one_verdict(["replays", "replays", "replays"], patience=20).agreed


def test_one_says_something_else():
    verdict = one_verdict(["replays", "runs eagerly", "replays"], patience=20)
    assert not verdict.agreed and not verdict.silent and not verdict.alike
    assert "rank 1 runs eagerly" in verdict.why and "replays" in verdict.why


def test_two_differ_in_how():
    details = [["sum of 4", "end"], ["sum of 8", "end"]]
    verdict = one_verdict(["recorded:a", "recorded:b"], patience=20, details=details)
    assert verdict.alike and not verdict.agreed
    signs = {line[1:]: line[0] for line in verdict.why.splitlines() if line[1:].startswith("sum")}
    assert set(signs) == {"sum of 4", "sum of 8"} and set(signs.values()) == {"-", "+"}


def test_one_is_silent():
    verdict = one_verdict(["replays", None, "replays"])
    assert verdict.silent and verdict.why == "rank 1 gave no answer in 0.2 s"


def test_who_comes_too_late_learns_what_was_decided():
    _, store = decided(["replays", None])
    late = Agreement("f", range(2), 1, store, 20).decide("replays")
    assert late.silent and late.why == "rank 1 gave no answer in 0.2 s"


def test_rounds_leave_nothing_behind():
    found, store = decided(["replays"] * 2, rounds=5, patience=20)
    assert all(verdict.agreed for verdict in found)
    assert store.num_keys() <= 5  # of the newest round


def test_a_store_that_is_gone_is_a_silent_verdict():
    class Gone(dist.Store):
        pass

    verdict = Agreement("f", range(2), 0, Gone(), 0.2).decide("replays")
    assert verdict.silent and "rank 0 cannot reach the store" in verdict.why
