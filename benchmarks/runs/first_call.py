"""How long the first call of a full-size policy takes, and which of its parts; and that of a second
kind of calls, with a shorter instruction.

``PYTHONPATH=src python3 -m benchmarks.runs.first_call [pi0 pi05] [--times N] [--out FILE]``, where
LeRobot is installed. For a comparison run another tree in the same way (``PYTHONPATH=other/src:.``)
in turn: hosts differ, and so does one host from minute to minute. The host time of eager execution
says how fast it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import gfxgraph
from benchmarks.lib.report import about, arguments, write
from benchmarks.lib.timing import timed
from benchmarks.runs.policies import make, observed
from gfxgraph.graph import capture, session
from gfxgraph.integrations.lerobot import use_graphs


def taken(parts: dict[str, float], owner: Any, name: str) -> None:
    """Add up in ``parts`` the seconds that a function of ours takes."""
    whole: Callable[..., Any] = getattr(owner, name)

    def measured(*args: Any, **options: Any) -> Any:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        try:
            return whole(*args, **options)
        finally:
            torch.cuda.synchronize()
            parts[name] = round(parts.get(name, 0.0) + time.perf_counter() - begin, 2)

    setattr(owner, name, measured)


@torch.inference_mode()
def main() -> None:
    parser = arguments(__doc__, "first_call.json")
    parser.add_argument("policies", nargs="*", default=["pi0"])
    parser.add_argument("--times", type=int, default=2)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    parts: dict[str, float] = {}
    for owner, name in (
        (capture, "warm_up"),
        (session.CaptureSession, "record"),
        (session.CaptureSession, "trace"),
    ):
        taken(parts, owner, name)
    rows: list[dict[str, Any]] = []
    found = {**about("first_call", options.commit, "lerobot", "transformers"), "rows": rows}
    for name in options.policies:
        policy, batch = make(name), observed(0)
        shorter = {
            key: value[:, :-8] if key.startswith("observation.language") else value
            for key, value in batch.items()
        }

        def chunk(policy: Any = policy, batch: Any = batch) -> torch.Tensor:
            torch.manual_seed(0)
            return policy.predict_action_chunk(dict(batch)).clone()

        for _ in range(3):
            expected, eager_s = timed(chunk)
            of_shorter = chunk(batch=shorter)
        for _ in range(options.times):
            parts.clear()
            with use_graphs(policy) as graphs:
                given, first_s = timed(chunk)
                of_first = dict(parts)
                equal = torch.equal(given, expected) and torch.equal(chunk(), expected)
                given, second_s = timed(chunk, batch=shorter)
                equal &= torch.equal(given, of_shorter)
                equal &= torch.equal(chunk(batch=shorter), of_shorter)
                rows.append(
                    {
                        "policy": name,
                        "eager s": round(eager_s, 3),
                        "first call s": round(first_s, 2),
                        **of_first,
                        "second kind s": round(second_s, 2),
                        "bit-identical": equal,
                        "replays": graphs.stats().replays,
                    }
                )
            print(rows[-1], flush=True)
            write(options.out, found)


if __name__ == "__main__":
    assert gfxgraph.device_type() == "cuda", "a first call is measured on a GPU"
    main()
