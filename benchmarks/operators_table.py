"""Makes the table behind ``capture_behaviour``, and its page, of the results of operators.py.

``PYTHONPATH=src python3 benchmarks/operators_table.py operators.jsonl.gz`` makes ``operators.json``
from the measured samples, says how well it predicts the held-out ones, and writes
``docs/operators.md``. Without results it writes the page from ``operators.json``; ``--compare``
only compares. Predictions are made from the recorded ATen trace of the eager run on the GPU: its
calls are read back with tensors that have a device, a dtype and a shape, and no data.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gfxgraph.device import operator_table as table

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src/gfxgraph/device/operators.json"
PAGE = ROOT / "docs/operators.md"
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
    "normal.Tensor_Tensor normal.float_Tensor"
)


def tensor(device: str, dtype: str, shape: list[int]) -> torch.Tensor:
    """One without data; meta stands for the GPU."""
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


@cache
def parse(text: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
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
    return func, args, kwargs


def read(path: Path) -> list[dict[str, Any]]:
    """The results."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def usable(result: dict[str, Any], split: str) -> bool:
    """Whether a result says something about its operator.

    Where op_db's wrapper seeds the generator inside of the call, that fails, not the operator.
    """
    known = result["kind"] == "sample" and result.get("outcome") in FAILED + TAKEN
    return known and result["split"] == split and not seeds(result)


def seeds(result: dict[str, Any]) -> bool:
    """Whether the capture failed because op_db set the seed in it."""
    return "set_current_seed" in result.get("error", "")


def make(results: list[dict[str, Any]], source: str) -> dict[str, Any]:
    """The table, from the measured samples."""
    failed: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        if not usable(result, "measured"):
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
        "command": f"python3 benchmarks/operators.py --out {source}",
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
                    wrong += count * (call is None or condition(call[1], call[2]) != expected)
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
        if call and table.capture_behaviour(*call) in FAILED:
            return False
    return None if None in calls else True


def compare(results: list[dict[str, Any]]) -> dict[str, Any]:
    """How often the table is right about the held-out samples."""
    right, unread, wrong = 0, 0, Counter[str]()
    for result in results:
        if usable(result, "held out"):
            predicted, captures = predict(result), result["outcome"] in TAKEN
            unread += predicted is None
            if (predicted is not False) == captures:
                right += 1
            else:
                wrong[f"{result['op']} {'captures' if captures else 'does not capture'}"] += 1
    total = right + wrong.total()
    percent = round(100 * right / total, 2)
    return {
        "samples": total,
        "right": right,
        "percent": percent,
        "not read back": unread,
        "wrong": dict(wrong.most_common()),
    }


def page(data: dict[str, Any]) -> str:
    """The page."""
    a = data["agreement"]
    counts = ", ".join(f"{n} {what}" for what, n in data["counts"].items())
    lines = [
        "# Operators in a capture",
        "",
        "<!-- Made by benchmarks/operators_table.py. -->",
        "",
        f"What a CUDA stream capture does with the samples of PyTorch's operator database "
        f"(`op_db`), in float32 and int64, at most 40 of each: measured on one {data['device']}, "
        f"torch {data['torch']}, {data['date']}, with `{data['command']}`.",
        "",
        f"{sum(data['counts'].values())} samples: {counts}. Split by a hash: "
        + ", ".join(f"{n} {what}" for what, n in data["splits"].items())
        + ". Only the measured ones made the table that `gfxgraph.check` uses.",
        "",
        f"**Agreement: {a['percent']} %** ({a['right']} of {a['samples']} held-out samples, "
        "captures or does not). It is for predictions from the ATen trace recorded in the eager "
        "run on the GPU, not for a run of the sample on a CPU, whose trace may differ. Samples "
        "that did not run and those where `op_db` itself calls `torch.manual_seed` inside of the "
        "capture are not part of it; one that replays with other results, or after a warm-up, "
        "counts as captured. "
        f"The trace of {a['not read back']} samples could not be read back in full. Wrong: "
        + ("; ".join(f"{k} ({n})" for k, n in a["wrong"].items()) or "none")
        + ".",
        "",
        "## Variants that do not simply capture",
        "",
        "| Variant | What happens | dtype | ATen operator | Condition | Samples |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in data["variants"].items():
        for what, dtype, op, n in rows:
            if what != "captures":
                when = ", ".join(c for _, c in data["operators"].get(op, ()))
                lines.append(f"| `{name}` | {what} | {dtype} | {op} | {when} | {n} |")
    lines += ["", "## Variants of which every sample captures", ""]
    lines += [", ".join(f"`{n}`" for n in data["others"]) + ".", ""]
    return "\n".join(lines)


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
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--compare", action="store_true", help="write nothing")
    options = parser.parse_args()
    if options.results:
        results = read(options.results)
        if not options.compare:
            data = make(results, options.results.name)
            store(data)
        agreement = compare(results)
        print(json.dumps(agreement, indent=1))
        if options.compare:
            return
        store({**data, "agreement": agreement})
    PAGE.write_text(page(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
