"""A walking policy that indexes with Python lists becomes one graph.

Code for robots is full of lists: the simulator numbers the joints in another order than the robot,
the mirrored robot swaps left and right, and observations are normalised with constants from a
configuration file. On a GPU, ``x[:, [3, 4, 5]]`` and ``torch.tensor([...], device=x.device)`` copy
the list from the host in each call, which a capture refuses. gfxgraph folds them: the copy is made
once and becomes part of the graph.

Run it with ``python examples/list_indexing.py``. The weights are random, from a fixed seed.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from side_by_side import Findings, side_by_side
from torch import Tensor, nn

import gfxgraph

# Twelve joints: a hip, a thigh and a knee for each leg. The robot goes leg by leg (front left,
# front right, rear left, rear right), the simulator in which the policy was trained joint by joint.
TO_SIMULATOR = [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]
TO_ROBOT = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
MIRRORED = [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]
HIPS = [0, 3, 6, 9]
SIDEWAYS_AND_TURN = [1, 2]

POSE = [0.1, 0.8, -1.5, -0.1, 0.8, -1.5, 0.1, 1.0, -1.5, -0.1, 1.0, -1.5]
POSITION_SCALE = [1.0, 1.0, 1.0]  # hip, thigh, knee
VELOCITY_SCALE = [0.05, 0.05, 0.04]
ACTION_SCALE = [0.125, 0.25, 0.25]


class WalkingPolicy(nn.Module):
    """Joint positions, joint velocities and a command to the joint positions to go to."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        sizes = [12 + 12 + 3, width, width, width, 12]
        layers = [nn.Sequential(nn.Linear(a, b), nn.ELU()) for a, b in pairwise(sizes[:-1])]
        self.net = nn.Sequential(*layers, nn.Linear(width, 12))

    def forward(self, position: Tensor, velocity: Tensor, command: Tensor) -> Tensor:
        """The mean of what the policy says and what it says to the mirrored robot.

        Args:
            position: [robot, joint], in the order of the robot.
            velocity: [robot, joint].
            command: [robot, 3]: forwards, sideways, turn.
        """
        here = self.act(position, velocity, command)
        there = command.clone()
        there[:, SIDEWAYS_AND_TURN] *= -1
        other = self.act(self.mirror(position), self.mirror(velocity), there)
        return (here + self.mirror(other)) / 2

    def mirror(self, joints: Tensor) -> Tensor:
        """Left and right swapped; hips then turn the other way."""
        joints = joints[:, MIRRORED]
        joints[:, HIPS] = -joints[:, HIPS]
        return joints

    def act(self, position: Tensor, velocity: Tensor, command: Tensor) -> Tensor:
        """What the net says, from and to the order and the units of the robot."""
        pose = torch.tensor(POSE, device=position.device)
        position = (position - pose) * torch.tensor(POSITION_SCALE * 4, device=position.device)
        velocity = velocity * torch.tensor(VELOCITY_SCALE * 4, device=velocity.device)
        seen = [position[:, TO_SIMULATOR], velocity[:, TO_SIMULATOR], command]
        action = self.net(torch.cat(seen, dim=1))[:, TO_ROBOT]
        return pose + action * torch.tensor(ACTION_SCALE * 4, device=action.device)


def make_policy(device: str) -> WalkingPolicy:
    """The policy with random weights, the same each time."""
    torch.manual_seed(0)
    return WalkingPolicy().eval().requires_grad_(False).to(device)


def observation(device: str, seed: int, robots: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments for one call."""
    random = torch.Generator().manual_seed(seed)
    near = torch.tensor(POSE) + 0.2 * torch.randn(robots, 12, generator=random)
    velocity = 3 * torch.randn(robots, 12, generator=random)
    command = torch.randn(robots, 3, generator=random)
    return near.to(device), velocity.to(device), command.to(device)


def main() -> Findings:
    """Five observations of 32 robots."""
    device = gfxgraph.device_type()
    policy = make_policy(device)
    return side_by_side(policy.forward, [observation(device, seed) for seed in range(5)])


if __name__ == "__main__":
    main()
