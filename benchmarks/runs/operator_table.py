"""Makes the table behind ``capture_behaviour`` of what ``benchmarks.runs.operators`` found.

``PYTHONPATH=src python3 -m benchmarks.runs.operator_table operators.jsonl.gz`` makes
``operators.json`` from the samples, and says how well one made of the measured ones alone predicts
the held-out ones; ``python3 -m benchmarks.tables operators`` then makes the page. Predicted is
twice: from the ATen calls that were recorded on the GPU, read back with tensors that have a
device, dtype and shape but no data; and by ``gfxgraph.check``, which runs the same samples here.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

import gfxgraph
from benchmarks.lib.processes import one_line
from benchmarks.runs import operators
from benchmarks.tables.operators import DATA
from gfxgraph.device import operator_table as table
from gfxgraph.errors import DeviceError
from gfxgraph.simulate.tensor import SimulatedTensor
from gfxgraph.simulate.world import SimulatedCuda

FAILED = ("reads the device", "copies from the host", "fails")
TAKEN = ("captures", "needs warm-up", "replay differs")
TENSOR = re.compile(
    r"(cpu:)?\b(bool|u?int\d+|b?float\d+\w*|complex\d+)\[([\d, ]*)\]"
    r"( strides \[[\d, ]*\])?( (?:sparse|jagged)\w*)?"
)
# Below the dispatcher's modes an index that is a mask is counted with nonzero.
BY_RULE = (
    "_index_put_impl_.default _unsafe_index.Tensor _unsafe_index_put.default index.Tensor "
    "index_put.default index_put_.default"
)
# Known to read the device; no usable sample has them (op_db seeds inside, or composes them).
UNMEASURED = (
    "_linalg_eigvals.default _unique.default unique_dim_consecutive.default _ctc_loss.Tensor "
    "_ctc_loss.default normal.Tensor_Tensor normal.float_Tensor"
)


def tensor(device: str, dtype: str, shape: list[int]) -> torch.Tensor:
    """One without data; meta stands for the GPU."""
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


@cache
def parse(text: str) -> table.Call | None:
    """Operator and arguments of a recorded call; ``None`` if they cannot be read back."""
    name, _, rest = text.partition("(")
    names: dict[str, Any] = {k: v for k, v in vars(torch).items() if isinstance(v, torch.dtype)}
    names |= {"T": tensor, "torch": torch, "device": torch.device}
    names |= {"inf": float("inf"), "nan": float("nan"), "call": lambda *a, **k: (a, k)}
    code = TENSOR.sub(lambda m: f"T({'cpu' if m[1] else 'meta'!r},{m[2]!r},[{m[3]}])", rest)
    try:
        namespace, packet, overload = name.split(".")
        func = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        args, kwargs = eval(f"call({code}", names)  # our own results
    except Exception:
        return None
    return table.Call(func, args, kwargs)


def read(path: Path) -> list[dict[str, Any]]:
    """The results."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def usable(result: dict[str, Any], splits: Collection[str]) -> bool:
    """Whether a result says something about its operator.

    Where op_db's wrapper seeds the generator inside of the call, that fails, not the operator.
    """
    known = result["kind"] == "sample" and result.get("outcome") in FAILED + TAKEN
    return known and result["split"] in splits and not seeds(result)


def seeds(result: dict[str, Any]) -> bool:
    """Whether the capture failed because op_db set the seed in it."""
    return "set_current_seed" in result.get("error", "")


def make(results: list[dict[str, Any]], source: str, splits: Collection[str]) -> dict[str, Any]:
    """The table, from the samples of the ``splits``."""
    failed: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        if not usable(result, splits):
            continue
        if result["outcome"] in TAKEN:
            taken_calls = Counter(t for t in result["trace"])
            for text in taken_calls:
                taken[text.partition("(")[0]][text] += 1
        elif result["blame"]:
            blame = result["blame"]
            failed[blame["op"]][blame["call"], result["outcome"]] += 1
    entries: dict[str, list[tuple[str, str]]] = {}
    for name, calls in sorted(failed.items()):
        packet = "aten::" + name.split(".")[1]
        if packet not in table._COPIES:
            behaviour = Counter(b for (_, b), n in calls.items() for _ in range(n))
            condition = choose({c: n for (c, _), n in calls.items()}, taken[name])
            entries[name] = [(behaviour.most_common(1)[0][0], condition)]
    for name in BY_RULE.split():
        entries.setdefault("aten." + name, [("reads the device", "mask index")])
    unmeasured = [n for n in ("aten." + n for n in UNMEASURED.split()) if n not in taken]
    for name in unmeasured:
        entries.setdefault(name, [("reads the device", "")])
    for result in results:
        cold = result["kind"] == "cold" and result.get("warm") == "captures"
        if cold and result["cold"] != "captures" and result["blame"]:
            entries.setdefault(result["blame"]["op"], [("needs warm-up", "")])
    meta = results[0]
    counts = Counter(r.get("outcome", "?") for r in results if r["kind"] == "sample")
    variants: dict[str, Counter[tuple[str, str, str]]] = defaultdict(Counter)
    for result in results:
        if result["kind"] == "sample":
            op, what = (result.get("blame") or {}).get("op", ""), result["outcome"]
            if seeds(result):
                op, what = "torch.manual_seed", "op_db seeds inside"
            variants[result["op"]][what, result["dtype"], op] += 1
    return {
        **{key: meta[key] for key in ("device", "torch", "runtime", "date")},
        "command": f"PYTHONPATH=src python3 -m benchmarks.runs.operators --out {source}",
        "counts": dict(counts.most_common()),
        "splits": dict(Counter(r["split"] for r in results if r["kind"] == "sample")),
        "operators": dict(sorted(entries.items())),
        "by rule": [*("aten." + n for n in BY_RULE.split()), *unmeasured],
        "captured": sorted(set(taken) - set(entries)),
        "variants": {
            name: [[*key, n] for key, n in sorted(c.items())]
            for name, c in sorted(variants.items())
            if any(key[0] != "captures" for key in c)
        },
        "others": sorted(n for n, c in variants.items() if all(k[0] == "captures" for k in c)),
    }


def choose(failed: dict[str, int], taken: Counter[str]) -> str:
    """The condition that divides the calls best; none if it is as good."""
    taken = Counter({text: n for text, n in taken.items() if not on_host(text)})
    best, fewest = "", sum(taken.values())
    for name, condition in table.CONDITIONS.items():
        wrong = 0
        for calls, expected in ((failed, True), (taken, False)):
            for text, count in calls.items():
                call = parse(text)
                try:
                    wrong += count * (call is None or condition(call) != expected)
                except Exception:
                    wrong += count
        if wrong < fewest:
            best, fewest = name, wrong
    return best


def on_host(text: str) -> bool:
    """Whether all tensors of a call are on the host: the device has no part in it."""
    return all(m[1] for m in TENSOR.finditer(text)) and "cuda" not in text


def predict(result: dict[str, Any]) -> bool | None:
    """Whether the table says that a sample captures; ``None``: its trace cannot be read back."""
    calls = [parse(text) for text in result["trace"]]
    for call in calls:
        if call and table.capture_behaviour(call) in FAILED:
            return False
    return None if None in calls else True


def compare(
    results: list[dict[str, Any]], predict: Callable[[dict[str, Any]], bool | None]
) -> dict[str, Any]:
    """How often ``predict`` is right about the held-out samples; ``None``: it cannot tell."""
    right, unread, wrong = 0, Counter[str](), Counter[str]()
    for result in results:
        if usable(result, ("held out",)):
            predicted, captures = predict(result), result["outcome"] in TAKEN
            if predicted is None:
                unread[result["op"]] += 1
            elif predicted == captures:
                right += 1
            else:
                wrong[f"{result['op']} {'captures' if captures else 'does not capture'}"] += 1
    total = right + wrong.total()
    percent = round(100 * right / total, 2)
    return {
        "samples": total,
        "right": right,
        "percent": percent,
        "not compared": dict(unread.most_common()),
        "wrong": dict(wrong.most_common()),
    }


class Checked:
    """What ``gfxgraph.check`` says of a sample, made anew on the pretended device of a CPU."""

    def __init__(self) -> None:
        self._operators = {op.full_name: op for op in operators.operators()}
        self._samples = cache(self._made_samples)

    def __call__(self, result: dict[str, Any]) -> bool | None:
        """Whether the verdict is that it captures unmodified."""
        sample = self._samples(result["op"], result["dtype"]).get(result["index"])
        if sample is None or without_data(sample.text) != without_data(result["sample"]):
            return None
        op = self._operators[result["op"]]

        hidden = itertools.repeat(sample)  # from check(), so that host tensors stay there

        def call(leaves: list[Any]) -> Any:
            sample = next(hidden)
            first, args, kwargs = pytree.tree_unflatten(sample.leaves(leaves), sample.spec)
            return op(first, *args, **kwargs)

        try:
            report = gfxgraph.check(call, sample.device)
        except DeviceError:  # sparse tensors are not pretended
            return None
        if any(hazard.rule in ("argument", "raises") for hazard in report.hazards):
            return None  # such as a call without any tensor
        if result["outcome"] == "replay differs":
            return None  # data of the host, which is no argument of the call here
        return report.verdict == "captures"

    def _made_samples(self, name: str, dtype: str) -> dict[int, Sample]:
        with SimulatedCuda(), torch.no_grad():
            try:
                op = self._operators[name]
                made = operators.samples(op, operators.DTYPES[dtype], "cuda", seed=0)
            except Exception as error:  # another torch, or nothing that the CPU has
                print(f"{name}: {one_line(error)}")
                made = []
            return {n: Sample.of(sample) for n, sample in enumerate(made)}


PLACE = object()


@dataclass
class Sample:
    """A sample, apart from the world in which it was made.

    Attributes:
        text: what identifies it.
        spec: its structure.
        device: the tensors on the device; they are arguments.
        fixed: all leaves, with ``PLACE`` for those.
    """

    text: str
    spec: Any
    device: list[torch.Tensor]
    fixed: list[Any]

    @classmethod
    def of(cls, sample: Any) -> Sample:
        """``sample``, which is on the pretended device."""
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        device = [leaf.inside for leaf in leaves if isinstance(leaf, SimulatedTensor)]
        fixed = [PLACE if isinstance(leaf, SimulatedTensor) else leaf for leaf in leaves]
        return cls(operators.sample_text(sample, "cuda"), spec, device, fixed)

    def leaves(self, device: list[Any]) -> list[Any]:
        """The leaves with what the device tensors have become."""
        given = iter(device)
        return [next(given) if leaf is PLACE else leaf for leaf in self.fixed]


def without_data(text: str) -> str:
    """``text`` without the numbers that are drawn."""
    return re.sub(r"-?\d+\.\d{3,}", "?", text)


def store(data: dict[str, Any]) -> None:
    """Write the table, an operator a line."""
    parts = []
    for key, value in data.items():
        if key in ("operators", "variants"):
            rows = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
            parts.append(f" {json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n }")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    DATA.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    table._data.cache_clear()
    table._entries.cache_clear()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    results = read(options.results)
    # What the held-out samples are compared with knows the others only.
    store(make(results, options.results.name, ("measured",)))
    agreements = {"trace": compare(results, predict), "check": compare(results, Checked())}
    print(json.dumps(agreements, indent=1))
    everything = make(results, options.results.name, ("measured", "held out"))
    store({**everything, "checked with": torch.__version__, "agreement": agreements})


if __name__ == "__main__":
    main()
