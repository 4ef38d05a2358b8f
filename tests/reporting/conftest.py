"""Files as the commands write them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.measure.activity import Activity
from gfxgraph.measure.report import BenchReport, WayReport
from gfxgraph.measure.timing import Interval, Percentiles
from gfxgraph.measure.traffic import TrafficReport


def prints(x):
    print("<script>alert(1)</script>")
    return x * 2


def times(us: float) -> Percentiles:
    return Percentiles(us, us * 1.5, us * 2)


@pytest.fixture(scope="session")
def bench() -> BenchReport:
    """That of a GPU."""
    eager = WayReport(
        "eager",
        "ok",
        host_us=times(2400),
        end_to_end_us=times(2432),
        speedup=Interval(1.0, 1.0, 1.0),
        activity=Activity(430.0, 430.0, 144, 144, {"a kernel": 73.0}),
        idle=0.82,
        calls=600,
    )
    graph = WayReport(
        "graph",
        "ok",
        host_us=times(60),
        end_to_end_us=times(541),
        speedup=Interval(4.49, 4.45, 4.53),
        activity=Activity(430.0, 430.0, 144, 1, {"a kernel": 73.0}),
        idle=0.2,
        held_bytes=6 * 2**20,
        calls=600,
    )
    wrong = WayReport("compile", "differs", "its result is off by 0.5")
    many = (TrafficReport("buckets", "ok", "sizes 1, 8", 0.3, times(80), None, 2, 0.1, 0.25),)
    return BenchReport(
        name="act",
        arguments=("x=float32[1, 64]",),
        device="NVIDIA H200",
        emulated=False,
        torch="2.11.0+cu130",
        gfxgraph="0.1.0",
        seconds=10.0,
        changes_state=False,
        ways=(eager, graph, wrong),
        traffic=many,
    )


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of ``written``."""
    return Path(shutil.copytree(written, tmp_path / "in"))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, bench: BenchReport) -> Path:
    """Files as they are written, under names that say nothing."""
    x = torch.ones(3, 2)
    folder = tmp_path_factory.mktemp("in")
    bench.to_json(folder / "1.json")
    found = {
        "2": gfxgraph.check(prints, x).to_dict(),
        "3": [
            {
                "rule": "sync",
                "severity": "error",
                "title": "waits",
                "what": "torch.cuda.synchronize()",
                "file": "policy.py",
                "cell": None,
                "line": 7,
                "column": 5,
                "source": "torch.cuda.synchronize()",
                "why": "A capture forbids it.",
                "remedy": "Leave it out.",
            }
        ],
        "4": gfxgraph.stats(),
    }
    for name, data in found.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    graph = gfxgraph.graphed(lambda x: x.relu() * 2, buckets=[4, 8])
    with torch.no_grad():
        for rows in (3, 3, 3, 7, 7, 7):
            graph(torch.ones(rows, 2))
    graph.stats().to_json(folder / "5.json")
    return folder
