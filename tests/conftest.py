"""Fixtures. A test that takes ``device`` runs on the emulated device in CI and on a GPU there."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import gfxgraph
from gfxgraph import tables
from gfxgraph.graph import listening
from gfxgraph.interpose import interrupts, patch
from gfxgraph.stats import tally
from tests.helpers.devices import HAS_GPU

# Inductor's worker processes hang now and then when a process ends (torch 2.11, Python 3.12): it
# waits 300 s for them.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

MANY = 12
"""A test with more cases is left to ``make test-long`` in part."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a machine with a GPU, ``-m gpu`` also picks what runs on any device.

    Of a test with many cases ``make test`` runs one in three, ``make test-long`` the others.
    """
    for item in items:
        if HAS_GPU and "device" in getattr(item, "fixturenames", ()):
            item.add_marker("gpu")
        elif not HAS_GPU and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA or HIP device"))
    for cases in _cases(items).values():
        if len(cases) > MANY:
            for n, item in enumerate(cases):
                if n % 3:
                    item.add_marker("long")
    # The one that takes minutes begins first: at the end one process would wait for it.
    items.sort(key=lambda item: not _takes_minutes(item))


def _cases(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Of each test the cases that ``make test`` would run."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        name, is_case, _ = item.nodeid.partition("[")
        if is_case and not item.get_closest_marker("long"):
            found.setdefault(name, []).append(item)
    return found


def _takes_minutes(item: pytest.Item) -> bool:
    timeout = item.get_closest_marker("timeout")
    return timeout is not None and timeout.args[0] > 1000


@pytest.fixture
def device() -> str:
    """``"cuda"``, or ``"cpu"`` where the device is emulated."""
    return gfxgraph.device_type()


@pytest.fixture(autouse=True)
def fresh_counters() -> Iterator[None]:
    """Counters of the process start at zero, and nothing stays enabled or narrow."""
    tally.clear()
    os.environ.pop("COLUMNS", None)  # a module that a test imports may set it
    tables.fit(tables.WIDTH)
    torch.manual_seed(0)
    yield
    gfxgraph.disable()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """The next test starts without them: some effects are refused beside another thread."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        stays = type(thread).__module__.startswith(("tqdm.", "torch."))
        # Threads that Python has not started: those of autograd, which stay as well.
        if not stays and not isinstance(thread, threading._DummyThread):
            thread.join(timeout=10)
            assert not thread.is_alive(), f"{thread} goes on after the test"


@pytest.fixture(autouse=True)
def nothing_is_replaced() -> Iterator[None]:
    """What our runs put in the place of functions of torch and of Python is gone."""
    yield
    left = [
        f"{place.owner!r}.{place.name}"
        for place in list(patch._places.values())
        if getattr(place._local, "claims", None)
    ]
    assert not left, f"still replaced on this thread after the test: {left}"


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    """No run of ours is told any more of what Python does, and no handler has a stand-in."""
    yield
    left = [*listening._running.values(), *interrupts._replaced, *interrupts.waiting]
    for end in list(listening._running.values()):
        end()
    listening._running.clear()
    assert not left and not interrupts._blocks, f"still there after the test: {left}"


@pytest.fixture(autouse=HAS_GPU)
def no_stream_is_left() -> Iterator[None]:
    """What the next test starts on other threads would run beside it, not before or after it."""
    yield
    left, default = torch.cuda.current_stream(), torch.cuda.default_stream()
    torch.cuda.set_stream(default)
    assert left == default, "the current stream is another one after the test"


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Without gradients."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from more, and tests beside these would wait for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Nothing is compiled before the test, and nothing of it afterwards."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(autouse=True, scope="module")
def fresh_dynamo() -> Iterator[None]:
    """Dynamo forgets what the tests of a file have compiled.

    It stops to compile code that it has compiled too often in the process, such as that which
    stands for every module of torch.nn (``torch._dynamo.config.accumulated_recompile_limit``).
    """
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def compiled_loops(fresh_compiler: None) -> None:
    """Dynamo compiles a loop that a tensor ends; torch 2.13 gives it up on Python 3.14."""
    regions: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        regions.append(graph)
        return graph

    def loop(time: torch.Tensor) -> torch.Tensor:
        while time >= 0:
            time = time - 1
        return time

    torch.compile(loop, backend=backend, dynamic=False)(torch.ones(()))
    if not regions:
        pytest.skip("Dynamo compiles nothing of a loop that a tensor ends")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """A function that makes a library of a text in C."""

    def library(text: str) -> ctypes.CDLL:
        folder = tmp_path_factory.mktemp("driver")
        (folder / "driver.c").write_text(text)
        command = ["cc", "-shared", "-fPIC", folder / "driver.c", "-o", folder / "driver.so"]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            pytest.skip("there is no C compiler")
        return ctypes.CDLL(str(folder / "driver.so"))

    return library
