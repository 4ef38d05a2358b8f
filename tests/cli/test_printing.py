"""What print() shows is readable, and a pipe that is closed changes no exit status."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.cli.common import _Pipe
from gfxgraph.tables import fields, table
from tests.helpers.sampled import sampled

LONG = "a reason that is longer than any line of a terminal is wide, word after word, " * 4


def lines(printed):
    """Its lines, all of them short enough and none of them a raw object."""
    found = str(printed).splitlines()
    assert max(map(len, found)) <= 100, printed
    assert not any(mark in str(printed) for mark in ("{'", "Stats(", "GraphRow(", "Hazard("))
    return found


@pytest.fixture
def busy_graph(device):
    """One that has replayed, was refused and thrashes."""

    def fn(x, scale):
        if scale == "print":
            print(end=LONG)
        return x * (2 if scale == "print" else scale)

    graph = gfxgraph.graphed(fn)
    x = torch.ones(2, device=device)
    with torch.no_grad():
        for scale in (1, 1, 1, "print", "print", *range(2, 30)):
            graph(x, scale)
    return graph


def test_the_statistics_of_a_graphed_function_are_a_table(busy_graph, capsys):
    stats = busy_graph.stats()
    capsys.readouterr()
    print(stats)
    shown = [line.split() for line in lines(capsys.readouterr().out.rstrip("\n"))]
    assert ["captures", str(stats.captures)] in shown and ["replays", "2"] in shown
    assert ["graph", "replays", "paths", "memory"] in shown
    assert ["float32[2],", "1", "2", "1"] in [row[:4] for row in shown]
    assert stats.fallbacks and stats.refused and stats.thrashing
    assert len(shown) > 10 and dataclasses.asdict(stats)["replays"] == 2


def test_the_statistics_of_the_process_are_a_line_for_each_key(busy_graph):
    stats = gfxgraph.stats()
    shown = lines(stats)
    assert {"capture_count", "fallback_count", "thrashing"} <= {
        line.split()[0] for line in shown[2:] if not line.startswith(" ")
    }
    assert "2 replays; " in shown[0] and not shown[1]  # the verdict
    assert isinstance(stats, dict) and stats["replay_count"] == 2
    assert json.loads(json.dumps(stats)) == stats and repr(stats).startswith("{'enabled_at'")
    assert stats.keys() == gfxgraph.Stats.__annotations__.keys()


def test_the_statistics_of_a_pool_say_what_was_padded(device):
    pool = gfxgraph.ShapeBucketPool(torch.sin, [4, 8])
    for rows in (1, 3, 5):
        pool(torch.ones(rows, 2, device=device))
    shown = lines(pool.stats())
    assert any(line.startswith("calls of batch") and "3: 1" in line for line in shown)
    assert any(line.startswith("padding") and line.endswith("43.8%") for line in shown)


def test_the_statistics_of_branches_are_a_table_each(device):
    graph = (
        gfxgraph.ConditionalGraph().add_branch("sine", torch.sin).add_branch("cosine", torch.cos)
    )
    graph.run("sine", torch.ones(2, device=device))
    shown = lines(graph.stats())
    assert [line for line in shown if line in ("sine:", "cosine:")] == ["sine:", "cosine:"]
    assert graph.stats() == {"sine": graph.stats()["sine"], "cosine": graph.stats()["cosine"]}


def test_the_health_is_a_line_for_each_key():
    health = gfxgraph.health_check()
    assert [line.split()[0] for line in lines(health) if line[0] != " "] == list(health)
    assert health["ok"] is True and repr(health).startswith("{'ok': True")


def test_nothing_is_said_to_be_nothing():
    assert fields([("a", []), ("bcd", 1.0)]) == ["a    none\nbcd  1.00"]


def test_a_cell_that_is_too_long_has_a_line_of_its_own():
    (text,) = table(("key", "replays"), [("k" * 150, 3), ("short", 4)])
    shown = text.splitlines()
    assert all(len(line) <= 100 for line in shown)
    assert shown[-2:] == ["       3", "short  4"]


# ---- how long a replay takes to launch


def test_the_mean_time_of_a_replay_is_a_number_for_graphed_functions(device):
    graph = gfxgraph.graphed(nn.Linear(4, 4).to(device))
    assert gfxgraph.stats()["avg_replay_us"] == 0.0
    with torch.no_grad():
        graph(torch.ones(2, 4, device=device))
    once = gfxgraph.stats()["avg_replay_us"]
    assert once > 0
    with torch.no_grad():
        for _ in range(5):
            graph(torch.ones(2, 4, device=device))
    assert gfxgraph.stats()["avg_replay_us"] == once  # calls are not timed
    graph.reset()
    assert gfxgraph.stats()["avg_replay_us"] == once  # of a graph that is gone too


def test_without_a_first_replay_there_is_no_time(device):
    graph = gfxgraph.graphed(torch.sin, verify=False)
    for _ in range(3):
        graph(torch.ones(2, device=device))
    assert gfxgraph.stats()["avg_replay_us"] == 0.0


# ---- pipes

MODULE = """\
def prints(x):
    print("said")
    return x

def clean(x):
    return x + 1
"""

COMMANDS = [
    (["check", "pipe_subject:prints", "float32[3]"], 1),
    (["check", "--help"], 0),
    (["lint", "."], 0),
    (["check", "pipe_subject:clean", "float32[3]", "--json"], 0),
    (["verify", "pipe_subject:prints", "float32[3]", "--require-graph"], 3),
    (["env"], 0),
    (["nonsense"], 2),
]


@pytest.mark.parametrize("case", sampled(COMMANDS, 4))
def test_a_pipe_that_is_closed_changes_no_exit_status(tmp_path, case):
    command, status = case
    (tmp_path / "pipe_subject.py").write_text(MODULE)
    with subprocess.Popen(
        [sys.executable, "-m", "gfxgraph", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"HGB_LOG_LEVEL": "error"},
    ) as process:
        process.stdout.close()  # as head does
        process.stdout = None
        _, errors = process.communicate(timeout=200)
    assert process.returncode == status, errors
    assert b"BrokenPipe" not in errors and b"Exception ignored" not in errors


def test_a_pipe_gets_all_as_long_as_somebody_reads():
    read_end, write_end = os.pipe()
    received = bytearray()

    def read():
        with open(read_end, "rb") as file:
            received.extend(file.read(100_000))

    reader = threading.Thread(target=read)
    reader.start()
    with open(write_end, "w") as file:
        stream = _Pipe.instead_of(file)
        for _ in range(1000):
            stream.write("0123456789" * 100)
        stream.flush()
        reader.join()
        assert stream.encoding == file.encoding
        stream.write("nobody reads this" * 10_000)
        stream.flush()
    assert bytes(received[:20]) == b"0123456789" * 2 and len(received) == 100_000


def test_a_stream_in_memory_stays_as_it_is():
    stream = io.StringIO()
    assert _Pipe.instead_of(stream) is stream
