"""Effects outside of torch: nine calls give nine effects, and the reason names the line."""

from __future__ import annotations

import builtins
import contextlib
import cProfile
import csv
import datetime
import functools
import gc
import io
import json
import logging
import operator
import os
import pathlib
import pickle
import pprint
import queue
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from logging import debug as log_debug
from logging import warning as log_warning

import pytest
import torch
import torch.utils._pytree as pytree

import gfxgraph
from gfxgraph.errors import CaptureError
from tests.helpers.processes import printed


@dataclass
class World:
    """What functions under test write to, and how many effects there were."""

    folder: pathlib.Path

    def __post_init__(self) -> None:
        self.files = contextlib.ExitStack()
        self.text = self._open("text", "w+", buffering=1)
        self.binary = self._open("binary", "wb+", buffering=0)
        self.lines = self._open("lines", "w+")
        self.lines.write("1\n" * 99)
        self.lines.seek(0)
        self.string, self.bytes = io.StringIO(), io.BytesIO()
        self.write = self.string.write
        self.queue: queue.Queue[int] = queue.Queue()
        self.simple: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.event = threading.Event()
        self.database = sqlite3.connect(self.folder / "database", isolation_level=None)
        self.database.execute("create table t (a)")
        self.near, self.far = socket.socketpair()
        self.far.setblocking(False)

    def _open(self, name: str, mode: str, buffering: int = -1):
        file = open(self.folder / name, mode, buffering)  # noqa: SIM115
        return self.files.enter_context(file)

    def size(self, name: str) -> int:
        path = self.folder / name
        return len(path.read_bytes()) if path.exists() else 0

    def received(self) -> int:
        try:
            return len(self.far.recv(1000, socket.MSG_PEEK))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self.files.close()
        for item in (self.database, self.near, self.far):
            item.close()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.close()


def saved(world):
    return len(list(world.folder.glob("saved*")))


def append(path, text):
    path.write_text((path.read_text() if path.exists() else "") + text)


@contextlib.contextmanager
def closing_note(world):
    try:
        yield
    finally:
        world.string.write("x")


def in_finally(w):
    try:
        w.string.write("x")
    finally:
        w.string.write("x")


def caught(w):
    try:
        w.queue.put(1)
    except BaseException:
        w.string.write("never")


def after_a_note(w):
    with closing_note(w):
        w.queue.put(1)


# name -> (what a call does, how many effects there are so far, effects in a call)
EFFECTS: dict[str, tuple[Callable[[World], object], Callable[[World], int], int]] = {
    "text file": (lambda w: w.text.write("x"), lambda w: w.text.tell(), 1),
    "lines to a file": (lambda w: w.text.writelines(["x", "y"]), lambda w: w.text.tell(), 2),
    "binary file": (lambda w: w.binary.write(b"x"), lambda w: w.size("binary"), 1),
    "os.write": (lambda w: os.write(w.binary.fileno(), b"x"), lambda w: w.size("binary"), 1),
    "write_text": (lambda w: append(w.folder / "p", "x"), lambda w: w.size("p"), 1),
    "io.FileIO": (
        lambda w: io.FileIO(w.folder / "raw", "a").write(b"x"),
        lambda w: w.size("raw"),
        1,
    ),
    "StringIO": (lambda w: w.string.write("x"), lambda w: len(w.string.getvalue()), 1),
    "bound method": (lambda w: w.write("x"), lambda w: len(w.string.getvalue()), 1),
    "unbound": (lambda w: io.StringIO.write(w.string, "x"), lambda w: w.string.tell(), 1),
    "arguments": (lambda w: w.string.write(*["x"]), lambda w: w.string.tell(), 1),
    "BytesIO": (lambda w: w.bytes.write(b"x"), lambda w: len(w.bytes.getvalue()), 1),
    "print to": (lambda w: print("x", file=w.string, end=""), lambda w: w.string.tell(), 1),
    "print by name": (
        lambda w: builtins.print(*["x"], **{"file": w.string, "end": ""}),
        lambda w: w.string.tell(),
        1,
    ),
    "csv": (lambda w: csv.writer(w.string).writerow("x"), lambda w: w.string.tell(), 3),
    "pickle": (lambda w: pickle.dump(1, w.bytes), lambda w: w.bytes.tell(), len(pickle.dumps(1))),
    "json": (lambda w: json.dump([], w.string), lambda w: w.string.tell(), 2),
    "torch.save": (
        lambda w: torch.save(1, w.folder / f"saved{saved(w)}"),
        saved,
        1,
    ),
    "queue": (lambda w: w.queue.put(1), lambda w: w.queue.qsize(), 1),
    "queue at once": (lambda w: w.queue.put_nowait(1), lambda w: w.queue.qsize(), 1),
    "simple queue": (lambda w: w.simple.put(1), lambda w: w.simple.qsize(), 1),
    "readline": (lambda w: w.lines.readline(), lambda w: w.lines.tell() // 2, 1),
    "sqlite": (
        lambda w: w.database.execute("insert into t values (1)"),
        lambda w: w.database.execute("select count(*) from t").fetchone()[0],
        1,
    ),
    "sqlite cursor": (
        lambda w: w.database.cursor().execute("insert into t values (1)"),
        lambda w: w.database.execute("select count(*) from t").fetchone()[0],
        1,
    ),
    "socket": (lambda w: w.near.send(b"x"), World.received, 1),
    "subprocess": (
        lambda w: subprocess.run(["sh", "-c", f"printf x >> {w.folder}/s"], check=True),
        lambda w: w.size("s"),
        1,
    ),
    "os.system": (
        lambda w: os.system(f"printf x >> {w.folder}/s"),
        lambda w: w.size("s"),
        1,
    ),
    "mkdir": (
        lambda w: os.mkdir(w.folder / uuid.uuid4().hex),
        lambda w: len(list(w.folder.iterdir())),
        1,
    ),
    "thread": (
        lambda w: (t := threading.Thread(target=w.write, args="x")).start() or t.join(),
        lambda w: w.string.tell(),
        1,
    ),
    "finally": (in_finally, lambda w: w.string.tell(), 2),
    "caught": (caught, lambda w: w.queue.qsize() + w.string.tell(), 1),
    "context manager": (after_a_note, lambda w: w.queue.qsize() + w.string.tell(), 2),
}


def doing(world, effect):
    def f(x):
        effect(world)  # here
        return x * 2 + 1

    return f


def line_of(text):
    lines = pathlib.Path(__file__).read_text().split("\n")
    return next(n for n, line in enumerate(lines, 1) if line.strip().startswith(text))


HERE = "effect(world)  # here"


@pytest.mark.parametrize("name", EFFECTS)
@torch.no_grad()
def test_nine_calls_have_nine_effects_and_the_right_results(world, device, name):
    effect, count, each = EFFECTS[name]
    fast = gfxgraph.graphed(doing(world, effect))
    before = count(world)
    for n in range(9):
        x = torch.full((3,), float(n), device=device)
        assert torch.equal(fast(x), x * 2 + 1)
        assert count(world) - before == each * (n + 1)
    (reason,) = fast.stats().fallbacks
    # A file or an iterator that the caller's own call has advanced is named itself.
    named = (
        pathlib.Path(__file__).name,
        "each call advances world.",
        "its code calls uuid.uuid4()",
    )
    assert any(name in reason for name in named)
    assert not fast.stats().graphs
    assert sys.getprofile() is None and sys.gettrace() is None


@pytest.mark.parametrize("name", EFFECTS)
def test_check_names_them_and_does_none(world, name):
    effect, count, _ = EFFECTS[name]
    before = count(world)
    report = gfxgraph.check(doing(world, effect), torch.ones(3))
    assert count(world) == before
    assert report.verdict == "eager"
    rules = {"side-effect", "outside-read", "print", "thread"}
    assert [h.line for h in report.hazards if h.rule in rules and h.file == __file__]


def test_effects_keep_their_order(world, device):
    calls = iter(range(99))

    def f(x):
        world.string.write(f"a{x.shape[0]}")
        world.string.write("b")
        return x + 1

    fast = gfxgraph.graphed(f)
    for _ in calls:
        if fast.stats().fallbacks and next(calls) > 9:
            break
        fast(torch.ones(3, device=device))
    text = world.string.getvalue()
    assert text == "a3b" * (len(text) // 3)


def test_the_reason_names_the_line_and_the_call(world, device):
    fast = gfxgraph.graphed(doing(world, lambda w: w.queue.put(1)), fallback="raise")
    with pytest.raises(CaptureError, match=r"queue\.Queue\.put\(\)") as caught:
        fast(torch.ones(3, device=device))
    assert caught.value.rule == "side-effect" and caught.value.file == __file__


READS = {
    "time": lambda w: time.time(),
    "perf_counter": lambda w: time.perf_counter(),
    "monotonic_ns": lambda w: time.monotonic_ns(),
    "now": lambda w: datetime.datetime.now(),
    "today": lambda w: datetime.date.today(),
    "uuid4": lambda w: uuid.uuid4(),
    "urandom": lambda w: os.urandom(4),
    "file": lambda w: (w.folder / "text").read_text(),
    "exists": lambda w: os.path.exists(w.folder),
    "listdir": lambda w: os.listdir(w.folder),
    "system random": lambda w: random.SystemRandom().random(),
}


@pytest.mark.parametrize("name", READS)
def test_what_is_read_outside_is_refused(world, device, name):
    f = doing(world, READS[name])
    fast = gfxgraph.graphed(f)
    for _ in range(3):
        fast(torch.ones(3, device=device))
    (reason,) = fast.stats().fallbacks
    told = (
        "the function reads a clock, a file or the system",
        "which gives something else each time",
    )
    assert any(part in reason for part in told)
    assert [h.rule for h in gfxgraph.check(f, torch.ones(3)).hazards] == ["outside-read"]


def made_inside(w):
    text = io.StringIO()
    text.write("a")
    with io.BytesIO() as data:
        data.write(b"b")
    numbers = queue.Queue()
    numbers.put(1)
    simple = queue.SimpleQueue()
    simple.put(2)
    return json.dumps([1]), pprint.pformat([1]), text.getvalue(), numbers.get(), simple.get()


def once(w):
    if not vars(w).get("told"):
        w.told = True
        log_warning("the first call only")
        print("the first call only")


def formats_an_error(w):
    try:
        raise ValueError
    except ValueError:
        return traceback.format_exc()


HARMLESS = {
    "made inside": made_inside,
    "sleep": lambda w: time.sleep(0),
    "record below the level": lambda w: log_debug("x"),
    "warning that was shown": lambda w: warnings.warn("shown once", stacklevel=1),
    "the first call only": once,
    "lock": lambda w: threading.Lock().acquire(),
    "import": lambda w: __import__("colorsys"),
    "an error as text": formats_an_error,
    "position": lambda w: (w.text.tell(), w.string.getvalue(), w.text.fileno(), w.text.flush()),
    "printing nothing": lambda w: str(w),
}


@pytest.mark.parametrize("name", HARMLESS)
@torch.no_grad()
def test_what_changes_nothing_outside_has_a_graph(world, device, name):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        fast = gfxgraph.graphed(doing(world, HARMLESS[name]))
        for _ in range(4):
            fast(torch.ones(3, device=device))
    assert not fast.stats().fallbacks and fast.stats().replays == 3


@torch.no_grad()
def test_a_file_that_the_first_call_advances_costs_one_more_call(world, device):
    """Nobody knows yet whether the second one advances it, too."""

    def once(w):
        if not vars(w).get("told"):
            w.told = True
            w.text.write("the first call only")

    fast = gfxgraph.graphed(doing(world, once))
    for _ in range(4):
        fast(torch.ones(3, device=device))
    (reason,) = fast.stats().fallbacks
    assert "each call advances" in reason and fast.stats().replays == 2


@pytest.mark.parametrize("action", ["always", "default"])
def test_a_warning_is_an_effect_where_it_is_shown(device, action):
    def f(x):
        warnings.warn("careful", stacklevel=1)
        return x + 1

    fast = gfxgraph.graphed(f)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)
        for _ in range(9):
            fast(torch.ones(3, device=device))
    assert len([w for w in shown if str(w.message) == "careful"]) == (
        9 if action == "always" else 1
    )
    assert bool(fast.stats().fallbacks) == (action == "always")


def test_a_warning_that_a_run_of_ours_left_out_is_shown_later(device):
    texts = iter(range(99))

    def f(x):
        warnings.warn(f"text {len(seen)}", stacklevel=1)
        seen.append(next(texts))
        return x + 1

    seen: list[int] = []
    fast = gfxgraph.graphed(f)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(9):
            fast(torch.ones(3, device=device))
    assert [str(w.message) for w in shown if "text" in str(w.message)] == [
        f"text {n}" for n in range(9)
    ]


@pytest.mark.parametrize("level", ["WARNING", "ERROR"])
def test_a_record_is_an_effect_where_a_handler_takes_it(device, level):
    logger, records = logging.Logger("of the user"), []
    handler = logging.Handler(level)
    handler.emit = records.append
    logger.addHandler(handler)

    def f(x):
        logger.warning("careful")
        return x + 1

    fast = gfxgraph.graphed(f)
    for _ in range(9):
        fast(torch.ones(3, device=device))
    assert len(records) == (9 if level == "WARNING" else 0)
    assert bool(fast.stats().fallbacks) == (level == "WARNING")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_standard_streams_are_seen(device, capsys, stream):
    def f(x):
        getattr(sys, stream).write("seen\n")
        return x + 1

    fast = gfxgraph.graphed(f)
    for _ in range(9):
        fast(torch.ones(3, device=device))
    fast_output = getattr(capsys.readouterr(), stream[3:])
    assert fast_output.count("seen\n") == 9 and fast.stats().fallbacks
    report = gfxgraph.check(f, torch.ones(3))
    assert {h.rule for h in report.hazards} == {"print" if stream == "stdout" else "side-effect"}
    assert "seen" not in "".join(capsys.readouterr())


def test_check_goes_on_where_an_effect_can_be_left_out(world, capsys):
    def f(x):
        print("first")
        sys.stderr.write("second\n")
        log_warning("third")
        world.queue.put(1)
        return x + 1

    report = gfxgraph.check(f, torch.ones(3))
    assert [h.what for h in report.hazards] == [
        "print()",
        "sys.stderr.write()",
        "a record of the logger 'root'",
        "queue.Queue.put()",
    ]
    assert world.queue.empty() and "".join(capsys.readouterr()) == ""


def test_a_pool_runs_such_a_function_eagerly(world, device):
    pool = gfxgraph.ShapeBucketPool(doing(world, lambda w: w.queue.put(1)), [4, 8])
    for n in (3, 4, 5, 6, 7, 8, 3, 4, 5):
        x = torch.rand(n, 2, device=device)
        assert torch.equal(pool(x), x * 2 + 1)
    assert world.queue.qsize() == 9
    assert pool.stats().replays == 0 and pool.stats().fallbacks


def test_capturing_a_pool_beforehand_has_no_effect(world, device):
    pool = gfxgraph.ShapeBucketPool(doing(world, lambda w: w.queue.put(1)), [4, 8])
    with contextlib.suppress(CaptureError):
        pool.capture(torch.rand(4, 2, device=device))
    ran = world.queue.qsize()
    assert ran <= 1  # the user's own
    x = torch.rand(3, 2, device=device)
    assert torch.equal(pool(x), x * 2 + 1) and world.queue.qsize() == ran + 1


def test_a_branch_with_effects_runs_eagerly_and_others_replay(world, device):
    graph = gfxgraph.ConditionalGraph()
    graph.add_branch("sends", doing(world, lambda w: w.queue.put(1)))
    graph.add_branch("computes", lambda x: x - 1)
    x = torch.rand(3, device=device)
    graph.capture(x)
    before = world.queue.qsize()
    assert before <= 1
    for _ in range(9):
        assert torch.equal(graph.run("sends", x), x * 2 + 1)
        assert torch.equal(graph.run("computes", x), x - 1)
    assert world.queue.qsize() == before + 9
    assert "queue.Queue.put()" in graph.failed_branches["sends"]
    assert "computes" not in graph.failed_branches


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_captured_block_with_effects_runs_its_function_again(world, device, dynamic):
    f = doing(world, lambda w: w.queue.put(1))
    graph = gfxgraph.BridgedCUDAGraph()
    static = torch.ones(4, 2, device=device)
    options = {"dynamic_shapes": True, "buckets": [4, 8]} if dynamic else {}
    with graph.capture(model_fn=f, **options):
        f(static)
    assert world.queue.qsize() == 1
    for n in range(2, 10):
        static.fill_(n)
        out = graph.replay(batch_size=4) if dynamic else graph.replay()
        out = graph.static_output if out is None else out
        assert torch.equal(out, static * 2 + 1)
        assert world.queue.qsize() == n


def test_what_the_block_does_beside_its_function_is_its_own_affair(world, device):
    def f(x):
        return x * 2

    graph = gfxgraph.BridgedCUDAGraph()
    static = torch.ones(4, device=device)
    with graph.capture(model_fn=f):
        world.queue.put(1)
        f(static)
    graph.replay()
    assert world.queue.qsize() == 1 and torch.equal(graph.static_output, static * 2)


def test_verify_says_that_it_is_no_graph(world, device):
    fast = gfxgraph.graphed(doing(world, lambda w: w.queue.put(1)))
    gfxgraph.verify(fast, torch.ones(3, device=device))
    assert not fast.stats().graphs
    assert any("queue.Queue.put()" in reason for reason in fast.stats().fallbacks)


def test_a_function_that_is_marked_may_have_effects(world, device):
    sent = []

    @gfxgraph.no_graph
    def send(x):
        world.queue.put(1)
        sent.append(float(x.sum()))
        return None

    def f(x):
        y = x * 2
        send(y)
        return y + 1

    fast = gfxgraph.graphed(f)
    for n in range(5):
        fast(torch.full((2,), float(n), device=device))
    assert fast.stats().graphs and sent[-1] == 16.0


def test_profilers_and_tracers_of_the_user_go_on(world, device):
    heard, traced = [], []

    def profiler(frame, event, arg):
        heard.append(event)

    def tracer(frame, event, arg):
        traced.append(event)

    fast = gfxgraph.graphed(doing(world, lambda w: w.queue.put(1)))
    sys.setprofile(profiler)
    sys.settrace(tracer)
    try:
        fast(torch.ones(3, device=device))
        after = sys.getprofile(), sys.gettrace()
    finally:
        sys.setprofile(None)
        sys.settrace(None)
    assert after == (profiler, tracer) and world.queue.qsize() == 1
    assert heard and traced and fast.stats().fallbacks


def test_a_profiler_in_c_goes_on(device):
    profile = cProfile.Profile()
    fast = gfxgraph.graphed(lambda x: x + 1)
    with profile:
        fast(torch.ones(3, device=device))
        sorted([3, 1, 2])
    assert any("sorted" in str(entry.code) for entry in profile.getstats())
    assert fast.stats().captures == 1


@pytest.mark.long
def test_what_the_garbage_collector_calls_is_not_the_functions_doing(world, device):
    event = world.event

    def reads_the_clock(phase, info):
        time.perf_counter()
        event.set()

    def f(x):
        gc.collect()
        return x + 1

    fast = gfxgraph.graphed(f)
    gc.callbacks.append(reads_the_clock)
    try:
        fast(torch.ones(3, device=device))
        fast(torch.ones(3, device=device))
    finally:
        gc.callbacks.remove(reads_the_clock)
    assert event.is_set() and not fast.stats().fallbacks


def test_effects_of_other_threads_are_their_own(world, device):
    stop, started = threading.Event(), threading.Event()
    put = 0

    def other():
        nonlocal put
        while not stop.is_set():
            world.queue.put(1)
            world.string.write("x")
            put += 1
            started.set()

    thread = threading.Thread(target=other)
    thread.start()
    started.wait()
    fast = gfxgraph.graphed(lambda x: x.sin())
    fast(torch.ones(3, device=device))
    fast(torch.ones(3, device=device))
    stop.set()
    thread.join()
    assert not fast.stats().fallbacks and fast.stats().replays == 1
    assert world.queue.qsize() == put == world.string.tell()


def test_a_replay_listens_to_nothing(device, monkeypatch):
    fast = gfxgraph.graphed(lambda x: x.sin())
    x = torch.ones(3, device=device)
    fast(x)

    def never(*args):
        raise AssertionError

    monkeypatch.setattr(sys, "setprofile", never)
    monkeypatch.setattr("gfxgraph.record.side_effects._SideEffects.__init__", never)
    assert torch.equal(fast(x), x.sin()) and fast.stats().replays == 1


def test_a_collection_while_we_begin_to_listen_is_not_the_functions_doing(device):
    """With these thresholds one begins at almost every allocation."""

    def reads_the_clock(phase, info):
        time.perf_counter()

    before = gc.get_threshold()
    gc.callbacks.append(reads_the_clock)
    gc.set_threshold(1, 1, 1)
    try:
        with torch.no_grad():
            fast = gfxgraph.graphed(lambda x: x * 2)
            for _ in range(3):
                fast(torch.ones(3, device=device))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(reads_the_clock)
    assert fast.stats().replays == 2 and not fast.stats().fallbacks


@pytest.mark.parametrize("made_by", ["python -c", "exec"])
def test_effects_of_code_without_a_file_are_seen(made_by):
    code = """
import dataclasses, threading, torch, gfxgraph

@dataclasses.dataclass
class Scale:
    by: float = 2.0

def printed(x):
    print("called")
    return x * Scale().by

def on_a_thread(x):
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return x * 2

def quiet(x):
    return x * Scale().by

x = torch.ones(2, device=gfxgraph.device_type())
for fn in (printed, on_a_thread, quiet):
    graph = gfxgraph.graphed(fn)
    for _ in range(4):
        graph(x)
    print(fn.__name__, graph.stats().replays, len(graph.stats().fallbacks))
"""
    said = printed(code if made_by == "python -c" else f"exec({code!r}, {{'__name__': 'made'}})")
    assert said.splitlines() == [*["called"] * 4, "printed 0 1", "on_a_thread 0 1", "quiet 3 0"]


def _through_map(x, file):
    return x * len(list(map(file.write, ["a"])))


def _through_partial(x, file):
    functools.partial(file.write, "a")()
    return x


def _through_print(x, file):
    functools.partial(print, "a", file=file, end="")()
    return x


def _through_methodcaller(x, file):
    operator.methodcaller("write", "a")(file)
    return x


def _through_pytree(x, file):
    pytree.tree_map(file.write, ["a"])
    return x


def _redirected(x, file):
    with contextlib.redirect_stdout(file):
        print("a", end="")
    return x


@pytest.mark.parametrize(
    "function",
    [
        _through_map,
        _through_partial,
        _through_print,
        _through_methodcaller,
        _through_pytree,
        _redirected,
    ],
)
@torch.no_grad()
def test_what_c_code_writes_for_the_function_is_written_once_a_call(device, tmp_path, function):
    path = tmp_path / "file"
    with path.open("w") as file:
        graph = gfxgraph.graphed(lambda x: function(x, file))
        for _ in range(3):
            graph(torch.ones(2, device=device))
    assert path.read_text() == "aaa"
    assert graph.stats().replays == 0
    assert len(graph.stats().fallbacks) == 1


@torch.no_grad()
def test_in_the_callback_of_a_profiler_nothing_is_captured(device, tmp_path):
    path = tmp_path / "file"
    x = torch.ones(2, device=device)
    with path.open("w") as file:

        def function(x):
            file.write("a")
            return x + 1

        graph = gfxgraph.graphed(function)
        before = sys.getprofile()

        def profile(frame, event, value):
            sys.setprofile(before)
            graph(x)

        for _ in range(3):
            sys.setprofile(profile)
            abs(-1)
            sys.setprofile(before)
    assert path.read_text() == "aaa"
