"""What is done between two steps of an engine: late captures, and releases under pressure.

The engines' modules call :func:`between_steps` on the thread that runs the steps, before a step
prepares its inputs. So the engine's static inputs are free, and no graph is in use.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ..device import current_device, index_of
from ..stats import log
from .graphs import EngineGraphs

__all__ = ["BETWEEN", "Between", "between_steps"]

_EVERY = 1.0  # seconds between two looks at the free memory
_GRACE = 1000  # steps in which a batch may use what was captured for one


@dataclass
class Between:
    """What this process was asked to do between steps.

    Attributes:
        lazy: seconds for captures after the start; 0: all sizes are captured at start.
        release_below: bytes of free memory below which unused graphs are released; 0: never.
        spent: how many seconds late captures have taken.
        look_at: when to look at the free memory next.
    """

    lazy: float = 0.0
    release_below: float = 0.0
    spent: float = 0.0
    look_at: float = 0.0

    @property
    def is_asked_for(self) -> bool:
        """Whether there is anything to do between steps."""
        return bool(self.lazy or self.release_below)

    @property
    def captures(self) -> bool:
        """Whether sizes may be captured after the start."""
        return self.spent < self.lazy

    def release_no_more(self, why: str) -> None:
        """Release nothing from now on; say so."""
        self.release_below = 0.0
        log(logging.WARNING, "not_released", because=why)


BETWEEN = Between()


def between_steps(owner: Any) -> None:
    """Capture one size that a batch has needed; release unused graphs if memory is short.

    Args:
        owner: the object of the engine that holds the graphs; see :meth:`EngineGraphs.of`.
    """
    graphs = EngineGraphs.known(owner)
    if graphs is not None:
        graphs.steps += 1
        if graphs.wanted:
            _capture(graphs)
    if BETWEEN.release_below and monotonic() >= BETWEEN.look_at:
        BETWEEN.look_at = monotonic() + _EVERY
        _release()


def _capture(graphs: EngineGraphs) -> None:
    began = monotonic()
    try:
        graphs.capture_wanted()
    finally:
        BETWEEN.spent += monotonic() - began
        if not BETWEEN.captures:
            why = f"the {BETWEEN.lazy:g} seconds of GFXGRAPH_LAZY are spent"
            left = sum(each.stop_waiting(why) for each in EngineGraphs.all())
            log(logging.WARNING, "lazy_budget_spent", because=why, without_graph=left)


def _release() -> None:
    device = current_device()
    used, total = device.memory(index_of(device))
    free = total - used
    if free < BETWEEN.release_below:
        gone = [size for each in EngineGraphs.all() for size in each.release_unused(_GRACE)]
        if gone:
            names = {"sizes": len(gone), "free_mib": free >> 20}
            log(logging.WARNING, "released", **names, below_mib=int(BETWEEN.release_below) >> 20)
