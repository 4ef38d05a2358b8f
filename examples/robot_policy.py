"""A robot's control loop: the policy's own method replays a graph.

``GraphedPolicy`` is the flow-matching policy of ``flow_matching.py`` with one line more: its
``sample_actions`` is decorated. Whoever calls the policy calls it as before, and images, state and
noise are copied straight into the static inputs of one graph that holds the vision encoder, the
prefix and all steps of the integration. Policies of LeRobot need no line at all:
``gfxgraph.integrations.lerobot.use_graphs(policy)``.

Run it with ``python examples/robot_policy.py``. The weights are random, from a fixed seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from flow_matching import FlowPolicy, observation
from torch import Tensor

import gfxgraph


class GraphedPolicy(FlowPolicy):
    """The policy, with its actions from a graph."""

    sample_actions = gfxgraph.graphed(FlowPolicy.sample_actions)


def episode(policy: FlowPolicy, chunks: int, executed: int = 8) -> tuple[Tensor, float]:
    """Act in chunks, and count the time until each chunk is there.

    Args:
        policy: the policy.
        chunks: how often it is asked.
        executed: actions of a chunk that the robot executes before it looks again.

    Returns:
        All actions [chunks x executed, action], and milliseconds for a chunk, the fastest.
    """
    done, fastest = [], float("inf")
    for n in range(chunks):
        images, state, noise = observation(policy, seed=n)
        _wait()
        start = time.perf_counter()
        actions = policy.sample_actions(images, state, noise)
        _wait()
        fastest = min(fastest, time.perf_counter() - start)
        done.append(actions[0, :executed])
    return torch.cat(done), 1000 * fastest


def _wait() -> None:
    if gfxgraph.device_type() == "cuda":
        torch.cuda.synchronize()


def make(policy_class: Callable[[], FlowPolicy]) -> FlowPolicy:
    """A policy with random weights, the same each time."""
    torch.manual_seed(0)
    return policy_class().eval().to(gfxgraph.device_type())


def main(chunks: int = 6) -> float:
    """Compare an episode of the two; gives the largest difference of an action."""
    eager, graph = make(FlowPolicy), make(GraphedPolicy)
    expected, eager_ms = episode(eager, chunks)
    actions, graph_ms = episode(graph, chunks)
    stats = graph.sample_actions.stats()
    difference = float((expected - actions).abs().max())
    print(f"{len(actions)} actions, largest difference {difference:.3g}")
    print(f"a chunk takes {eager_ms:.2f} ms eagerly, {graph_ms:.2f} ms from the graph")
    print(f"{stats.captures} graph, {stats.replays} replays, {stats.eager_calls} eager call")
    return difference


if __name__ == "__main__":
    main()
