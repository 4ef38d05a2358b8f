"""Policies built as those of LeRobot: their own methods replay a graph, unmodified."""

from __future__ import annotations

import functools
import importlib.metadata
from collections import deque

import pytest
import torch
from flow_matching import FlowConfig, FlowPolicy
from torch import nn

import gfxgraph
from gfxgraph.errors import ArgumentError
from gfxgraph.integrations.lerobot import use_graphs

SMALL = FlowConfig(cameras=1, image_size=32, width=32, expert_width=32, heads=2, head_dim=16)


class Policy(nn.Module):
    """What a policy of LeRobot is around its model: a queue of actions, filled by chunks."""

    name = "pi0"

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.reset()

    def reset(self):
        self._action_queue = deque(maxlen=4)

    @torch.no_grad()
    def select_action(self, batch):
        self.eval()
        if len(self._action_queue) == 0:
            self._action_queue.extend(self.predict_action_chunk(batch)[:, :4].transpose(0, 1))
        return self._action_queue.popleft()

    @torch.no_grad()
    def predict_action_chunk(self, batch, **kwargs):
        self.eval()
        return self.model.sample_actions(batch["images"], batch["state"], **kwargs)


class CountingScheduler:
    """Sets its timesteps anew in each call, and counts its steps, as those of diffusers do."""

    def set_timesteps(self, count):
        self.timesteps = list(range(count, 0, -1))
        self.step_index = None

    def step(self, output, sample):
        self.step_index = 0 if self.step_index is None else self.step_index + 1
        return sample - output / self.timesteps[self.step_index]


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.unet = nn.Linear(14, 14)
        self.noise_scheduler = CountingScheduler()

    def generate_actions(self, batch, noise=None):
        sample = torch.randn_like(batch["state"]) if noise is None else noise
        self.noise_scheduler.set_timesteps(5)
        for _ in self.noise_scheduler.timesteps:
            sample = self.noise_scheduler.step(self.unet(sample) + batch["state"], sample)
        return sample[:, None].expand(-1, 8, -1)


class DiffusionPolicy(Policy):
    name = "diffusion"

    def __init__(self):
        super().__init__(None)
        self.diffusion = Diffusion()

    @torch.no_grad()
    def predict_action_chunk(self, batch, noise=None):
        return self.diffusion.generate_actions(batch, noise=noise)


def policy(device):
    torch.manual_seed(0)
    return Policy(FlowPolicy(SMALL)).to(device).eval()


def observed(device, seed, batch=1):
    random = torch.Generator().manual_seed(seed)
    return {
        "images": torch.rand(batch, 1, 3, 32, 32, generator=random).to(device),
        "state": torch.randn(batch, 14, generator=random).to(device),
    }


def actions(policy, device, count=10, batch=1):
    """What a robot would do in an episode; the noise is drawn inside."""
    torch.manual_seed(1)
    policy.reset()
    return torch.stack([policy.select_action(observed(device, n, batch)) for n in range(count)])


def test_the_policys_own_method_replays_a_graph(device):
    robot = policy(device)
    expected = actions(robot, device)
    with use_graphs(robot) as graphs:
        for _ in range(2):
            torch.testing.assert_close(actions(robot, device), expected, rtol=1e-4, atol=1e-5)
        stats = graphs.stats()
        assert stats.captures == 1 and stats.replays == 5 and not stats.fallbacks
    assert "sample_actions" not in vars(robot.model)
    assert torch.equal(actions(robot, device), expected)


@pytest.mark.long
def test_given_noise_and_other_batch_sizes_are_graphs_of_their_own(device):
    robot = policy(device)
    graphs = use_graphs(robot)
    for batch in (1, 2, 1, 2):
        given = observed(device, 3, batch)
        noise = torch.randn(batch, SMALL.horizon, SMALL.action_dim, device=device)
        expected = FlowPolicy.sample_actions(robot.model, given["images"], given["state"], noise)
        got = robot.predict_action_chunk(given, noise=noise)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert graphs.stats().captures == 2 and graphs.stats().replays == 2
    graphs.undo()


def test_a_scheduler_that_counts_its_steps_in_python_is_put_back_after_each_call(device):
    torch.manual_seed(0)
    robot = DiffusionPolicy().to(device).eval()
    expected = actions(robot, device)
    vars(robot.diffusion.noise_scheduler).clear()
    with use_graphs(robot) as graphs:
        for _ in range(2):
            torch.testing.assert_close(actions(robot, device), expected, rtol=1e-4, atol=1e-5)
        assert graphs.stats().captures == 1 and graphs.stats().replays == 5
    assert not vars(robot.diffusion.noise_scheduler)


def test_what_was_in_place_of_the_method_before_comes_back(device):
    robot = policy(device)
    robot.model.sample_actions = before = robot.model.sample_actions
    use_graphs(robot).undo()
    assert robot.model.sample_actions is before


@pytest.mark.long
def test_weights_that_are_loaded_later_are_used(device):
    robot, other = policy(device), Policy(FlowPolicy(SMALL)).to(device)
    expected = actions(other, device)
    with use_graphs(robot):
        actions(robot, device)
        robot.load_state_dict(other.state_dict())
        torch.testing.assert_close(actions(robot, device), expected, rtol=1e-4, atol=1e-5)


def test_what_is_no_known_policy_is_refused(device):
    robot = policy(device)
    with pytest.raises(ArgumentError, match=r"expected a policy named act, diffusion, pi0"):
        use_graphs(nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"it has no model\.act"):
        use_graphs(robot, method="model.act")
    graphs = use_graphs(robot)
    with pytest.raises(ArgumentError, match="runs from a graph already"):
        use_graphs(robot)
    graphs.undo()
    with pytest.raises(ArgumentError, match=r"undo\(\) was called"):
        graphs.undo()


def test_any_object_may_say_which_method_it_is(device):
    robot = policy(device)
    robot.name = "ours"
    with use_graphs(robot, method="model.sample_actions", outputs="own") as graphs:
        actions(robot, device)
        assert isinstance(graphs.stats(), gfxgraph.GraphedStats) and graphs.stats().captures == 1


def test_a_transformers_that_this_lerobot_does_not_take_is_told(device, monkeypatch):
    pytest.importorskip("packaging")
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda name: ['transformers<5.6.0,>=5.4.0; extra == "pi"', "torch>=2.7"],
    )
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.17.0")
    with pytest.warns(UserWarning, match=r"asks for transformers<5.6.0,>=5.4.0, and 5.17.0"):
        use_graphs(policy(device)).undo()


def test_undo_takes_its_own_eval_away_and_leaves_one_of_the_users(device):
    robot = policy(device)
    use_graphs(robot).undo()
    assert "eval" not in vars(robot)
    own = vars(robot)["eval"] = functools.partial(type(robot).eval, robot)
    use_graphs(robot).undo()
    assert vars(robot)["eval"] is own


def test_a_part_in_training_is_set_to_eval_for_a_chunk_as_without_graphs(device):
    robot = policy(device)
    with use_graphs(robot):
        assert robot.eval() is robot
        robot.model.train()
        robot.eval()
        assert not any(module.training for module in robot.modules())
