"""Says which ranks are missing where a collective between two graphs fails.

Such graphs need no agreement, so nobody knows of a rank that stalls or is gone before a collective
fails, or its time is over. Then each rank that has met the error says so in torch's store, looks
for a moment who else does, and names the others. Who meets it last names those alone who never do.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from ..stats import log

__all__ = ["name_the_missing"]

# Seconds. Ranks that wait for the same one mostly meet the error at about the same time.
_GRACE = 1.0


def name_the_missing(error: Exception, what: str, group_name: str) -> None:
    """Log which ranks of a group have not met an error, and note it at the error (Python 3.11).

    Args:
        error: what a collective has raised.
        what: the collective.
        group_name: the name of its group.
    """
    ranks: list[int] = []
    try:
        c10d: Any = dist.distributed_c10d
        group = c10d._resolve_process_group(group_name)
        ranks = dist.get_process_group_ranks(group)
        missing = _missing(group, ranks)
    except RuntimeError as no_store:  # the rank that has it is gone
        who = f"nobody knows which rank is missing, since the store is gone: {no_store}"
    else:
        who = "all of them failed in it"
        if missing:
            who = f"not failed in it so far (gone, stalled, or still waiting): {missing}"
    note = f"{what} of ranks {ranks}, {who.splitlines()[0]}"
    log(logging.WARNING, "collective_failed", collective=note)
    add_note = getattr(error, "add_note", None)
    if add_note is not None:
        add_note(f"gfxgraph: {note}")


def _missing(group: Any, ranks: list[int]) -> list[int]:
    c10d: Any = dist.distributed_c10d
    store = c10d._get_default_store()
    name = f"gfxgraph/failed/{group.group_name}/{group._get_sequence_number_for_group()}"
    store.set(f"{name}/{dist.get_rank()}", "")
    try:
        store.wait([f"{name}/{rank}" for rank in ranks], timedelta(seconds=_GRACE))
    except RuntimeError:
        return [rank for rank in ranks if not store.check([f"{name}/{rank}"])]
    return []
