"""Several ranks decide together; here they are threads with one store."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed as dist

from gfxgraph.call.agreement import Agreement

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


@pytest.fixture(params=[0, 3], ids=["in_the_store", "in_memory"])
def before(request):
    """So many rounds are agreed on before; after two, ranks of one host share memory."""
    if request.param and not hasattr(os, "memfd_create"):
        pytest.skip("needs Linux")
    return request.param


def decided(words, before=0, rounds=1, patience=0.2, details=(), late=()):
    """The verdict of each rank that says something, in the last of some rounds.

    ``None`` says nothing. The ranks of ``late`` come when all others know the verdict.
    """
    store = dist.HashStore()
    agreements = [Agreement("f", range(len(words)), r, store, 20) for r in range(len(words))]
    others = threading.Barrier(len(words))

    def of_rank(rank):
        agreement = agreements[rank]
        for _ in range(before):
            assert agreement.decide("captures").agreed
        agreement._patience = patience
        others.wait()
        if words[rank] is None:
            return None
        if rank in late:
            time.sleep(3 * patience)
        detail = details[rank] if details else ()
        return [agreement.decide(words[rank], detail) for _ in range(rounds)][-1]

    with ThreadPoolExecutor(len(words)) as threads:
        found = list(threads.map(of_rank, range(len(words))))
    assert not before or all(agreement._shared for agreement in agreements)
    return [verdict for verdict in found if verdict is not None], store


def one_verdict(words, *before, **options):
    found, _ = decided(words, *before, **options)
    assert len(set(found)) == 1, "no rank learns another verdict"
    return found[0]


def test_all_say_the_same(before):
    assert one_verdict(["replays", "replays", "replays"], before, patience=20).agreed


def test_one_says_something_else(before):
    verdict = one_verdict(["replays", "runs eagerly", "replays"], before, patience=20)
    assert not verdict.agreed and not verdict.silent and not verdict.alike
    assert "rank 1 runs eagerly" in verdict.why and "replays" in verdict.why


def test_two_differ_in_how(before):
    details = [["sum of 4", "end"], ["sum of 8", "end"]]
    verdict = one_verdict(["recorded:a", "recorded:b"], before, patience=20, details=details)
    assert verdict.alike and not verdict.agreed
    signs = {line[1:]: line[0] for line in verdict.why.splitlines() if line[1:].startswith("sum")}
    assert set(signs) == {"sum of 4", "sum of 8"} and set(signs.values()) == {"-", "+"}


def test_one_is_silent(before):
    verdict = one_verdict(["replays", None, "replays"], before)
    assert verdict.silent and verdict.why == "rank 1 gave no answer in 0.2 s"


def test_who_comes_too_late_learns_what_was_decided(before):
    verdict = one_verdict(["replays", "replays"], before, late=[1])
    assert verdict.silent and verdict.why == "rank 1 gave no answer in 0.2 s"


def test_rounds_leave_nothing_behind(before):
    found, store = decided(["replays"] * 2, before, rounds=5, patience=20)
    assert all(verdict.agreed for verdict in found)
    assert store.num_keys() == 0


def test_ranks_may_differ_again_and_again(before):
    details = [["sum of 4"], ["sum of 8"]]
    words = ["recorded:a", "recorded:b"]
    verdict = one_verdict(words, before, rounds=9, patience=20, details=details)
    assert verdict.alike and "-sum of" in verdict.why


def test_a_store_that_is_gone_is_a_silent_verdict():
    class Gone(dist.Store):
        pass

    verdict = Agreement("f", range(2), 0, Gone(), 0.2).decide("replays")
    assert verdict.silent and "rank 0 cannot reach the store" in verdict.why
