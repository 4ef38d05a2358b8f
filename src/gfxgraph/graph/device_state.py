"""Memory and random generators, and the way back to what they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..device import generator_state
from ..record.effects import overwrite
from ..record.storages import is_whole

__all__ = ["DeviceState"]


@dataclass(frozen=True)
class DeviceState:
    """What a run on the device may change. Used under ``torch.no_grad()``.

    Attributes:
        regions: memory.
        generators: random generators.
    """

    regions: Sequence[torch.Tensor]
    generators: Sequence[torch.Generator]

    def now(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Copies of the regions, and the states of the generators."""
        return [r.clone() for r in self.regions], [generator_state(g) for g in self.generators]

    def put_back(self, values: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> None:
        """Put back what :meth:`now` gave."""
        for region, value in zip(reversed(self.regions), reversed(values), strict=True):
            if is_whole(region):  # what was freed meanwhile holds nothing
                overwrite(region, value)
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
