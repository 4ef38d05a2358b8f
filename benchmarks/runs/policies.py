"""Full-size LeRobot policies with random weights: a chunk of actions, eagerly and from a graph.

``PYTHONPATH=src python3 -m benchmarks.runs.policies [pi0 pi05] [--out FILE] [--compile]``, where
LeRobot is installed. ``--compile``: also compiled, alone and in a graph, which takes minutes; with
``--settings coordinate_descent_tuning ...`` in a graph only, with these settings of Inductor.
Nothing is fetched: policies are made from their configurations. What the file says of other
policies stays there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

import gfxgraph
from benchmarks.lib.report import about, arguments, shortened, write
from benchmarks.lib.timing import milliseconds, timed
from gfxgraph.integrations.lerobot import use_graphs

DEVICE = gfxgraph.device_type()
CAMERAS, TOKENS = 3, 48


def make(name: str) -> Any:
    """A policy of that name, in half precision where it says so, with random weights."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    images = {
        f"observation.images.camera{n}": PolicyFeature(type=FeatureType.VISUAL, shape=(3, 224, 224))
        for n in range(CAMERAS)
    }
    state = {"observation.state": PolicyFeature(type=FeatureType.STATE, shape=(14,))}
    folder = f"lerobot.policies.{name}"
    config_class = getattr(
        importlib.import_module(f"{folder}.configuration_{name}"), f"{name.upper()}Config"
    )
    policy_class = getattr(
        importlib.import_module(f"{folder}.modeling_{name}"), f"{name.upper()}Policy"
    )
    config = config_class(
        input_features={**images, **state},
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(14,))},
        device=DEVICE,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return policy_class(config).to(DEVICE).eval()


def observed(seed: int) -> dict[str, torch.Tensor]:
    """What a robot sees, and the tokens of what it is told."""
    random = torch.Generator().manual_seed(seed)
    batch = {
        f"observation.images.camera{n}": torch.rand(1, 3, 224, 224, generator=random)
        for n in range(CAMERAS)
    }
    batch["observation.state"] = torch.randn(1, 14, generator=random)
    batch["observation.language.tokens"] = torch.randint(2, 20_000, (1, TOKENS), generator=random)
    batch["observation.language.attention_mask"] = torch.ones(1, TOKENS, dtype=torch.bool)
    return {key: value.to(DEVICE) for key, value in batch.items()}


@torch.inference_mode()
def compiled(policy: Any, times: int, settings: list[str]) -> dict[str, Any]:
    """Code of ``torch.compile`` in our graph; without ``settings`` of Inductor also alone."""
    calls = [observed(seed) for seed in range(4)]

    def chunk(n: int) -> torch.Tensor:
        torch.manual_seed(n)
        return policy.predict_action_chunk(dict(calls[n])).clone()

    def way() -> dict[str, Any]:
        _, first_s = timed(lambda: chunk(0))
        chunk(1)
        differences = [float((chunk(n) - expected[n]).abs().max()) for n in range(4)]
        taken = milliseconds(lambda: chunk(0), times)
        return {
            "ms": taken,
            "first call s": round(first_s, 2),
            "largest difference": max(differences),
        }

    expected = [chunk(n) for n in range(4)]
    found: dict[str, Any] = {"largest magnitude": max(float(t.abs().max()) for t in expected)}
    how: Any = {"options": dict.fromkeys(settings, True)} if settings else True
    named = ", ".join(["compile + graph", *settings])
    with use_graphs(policy, compile=how) as graphs:
        found[named] = way()
        stats = graphs.stats()
        found[named] |= {
            "compile s": round(stats.compile_s, 2),
            "not compiled": [shortened(r) for r in stats.not_compiled.values()],
            "why eager": [shortened(r) for r in stats.fallbacks],
        }
    if settings:
        return found
    model, name = policy.model, "sample_actions"
    # Inductor's random numbers would be others than those of eager execution.
    vars(model)[name] = torch.compile(
        getattr(model, name), dynamic=False, options={"fallback_random": True}
    )
    found["torch.compile alone, its cache warm"] = way()
    del vars(model)[name]
    return found


@torch.inference_mode()
def measured(policy: Any, times: int) -> dict[str, Any]:
    """Eager, the graph through the policy, and the replay alone."""
    calls = [observed(seed) for seed in range(4)]

    def chunk(n: int) -> torch.Tensor:
        torch.manual_seed(n)  # the noise is drawn inside
        return policy.predict_action_chunk(dict(calls[n])).clone()

    expected = [chunk(n) for n in range(4)]
    eager = milliseconds(lambda: chunk(0), times)
    with use_graphs(policy) as graphs:
        first, first_s = timed(lambda: chunk(0))
        got = [chunk(n) for n in range(4)]
        graph = milliseconds(lambda: chunk(0), times)
        stats = graphs.stats()
        alone = by_hand = 0.0
        if stats.graphs:
            (entry,) = graphs._graph._dispatcher.entries.all()
            alone = milliseconds(entry.captured.root.launch, times)
            ours = vars(policy.model)["sample_actions"]
            hand = written_by_hand(graphs._graph, entry.captured)
            vars(policy.model)["sample_actions"], quick = hand, vars(policy).pop("eval")
            by_hand = milliseconds(lambda: chunk(0), times)
            vars(policy.model)["sample_actions"], vars(policy)["eval"] = ours, quick
            # As warm as that one was, which ran after it.
            graph = milliseconds(lambda: chunk(0), times)
    return {
        "parameters": sum(p.numel() for p in policy.parameters()),
        "eager ms": eager,
        "graph ms": graph,
        "by hand ms": by_hand,
        "replay alone ms": alone,
        "graph / by hand": round(graph / by_hand, 4) if by_hand else None,
        "graph / replay alone": round(graph / alone, 4) if alone else None,
        "first call s": round(first_s, 2),
        "bit-identical": all(map(torch.equal, [first, *got], [expected[0], *expected])),
        "largest difference": max(
            float((a - b).abs().max()) for a, b in zip(got, expected, strict=True)
        ),
        "graphs": stats.captures,
        "replays": stats.replays,
        "why eager": [shortened(r) for r in stats.fallbacks],
        "pool MiB": round(stats.pool_bytes / 2**20),
    }


def written_by_hand(graphs: Any, captured: Any) -> Callable[..., torch.Tensor]:
    """What one would write around the same graph: copy the arguments in, replay, clone."""
    (output,) = captured.last.outputs

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not static_inputs:
            static_inputs.extend(pytree.tree_leaves(graphs.static_inputs(*args, **kwargs)))
        for static, value in zip(static_inputs, pytree.tree_leaves((args, kwargs)), strict=True):
            if isinstance(value, torch.Tensor):
                static.copy_(value)
        captured.root.launch()
        return output.clone()

    static_inputs: list[Any] = []
    return call


def main() -> None:
    """The command."""
    parser = arguments(__doc__, "policies.json")
    parser.add_argument("policies", nargs="*", default=["pi0", "pi05"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--settings", nargs="+", default=[], help="of Inductor, to switch on")
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # the image encoder is in single precision
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    # Each policy has a commit of its own.
    found |= about("policies", "", "lerobot", "transformers")
    for name in options.policies:
        policy = make(name)
        found[name] = {"commit": options.commit, **measured(policy, options.times)}
        if options.compile:
            ways = compiled(policy, options.times, options.settings)
            found[name]["compiled"] = {"commit": options.commit, **ways}
        print(name, json.dumps(found[name], indent=1), flush=True)
        write(options.out, found)


if __name__ == "__main__":
    main()
