"""The copy of the driver, compiled and with ctypes, on a function that copies here."""

import ctypes
import threading
import time

import pytest
import torch
from torch.utils import _pytree as pytree

import gfxgraph
from gfxgraph.device import gpu
from gfxgraph.device.emulated import EmulatedDevice

DRIVER = """
#include <string.h>
#include <unistd.h>

static unsigned long long seen;

int copy(unsigned long long to, unsigned long long at, size_t size, void *stream)
{
    seen = (unsigned long long)stream;
    if (seen == 666)
        return 700;
    if (seen == 5)
        usleep(200000);
    memcpy((void *)to, (void *)at, size);
    return 0;
}

unsigned long long stream(void) { return seen; }
"""


@pytest.fixture(scope="module")
def driver(compiled):
    library = compiled(DRIVER)
    library.stream.restype = ctypes.c_uint64
    return library


@pytest.fixture(autouse=True, params=["compiled", "ctypes"])
def copied_by(request, monkeypatch):
    if request.param == "ctypes":
        monkeypatch.setattr(gpu, "Copy", None)
    elif gpu.Copy is None:
        pytest.skip("there is no compiled part")


def test_it_copies_so_many_bytes_on_the_stream(driver):
    source, target = torch.arange(8), torch.zeros(8, dtype=torch.int64)
    copy = gpu.copy_with(driver.copy, 5 * 8)
    for stream in (0, 7, 0x7FFF_1234_5678_9ABC):
        target.zero_()
        assert copy(target.data_ptr(), source.data_ptr(), stream) == 0
        assert target.tolist() == [0, 1, 2, 3, 4, 0, 0, 0] and driver.stream() == stream


def test_what_the_driver_says_is_given(driver):
    target = torch.zeros(2)
    assert gpu.copy_with(driver.copy, 8)(target.data_ptr(), target.data_ptr(), 666) == 700


def test_other_threads_run_while_the_driver_waits(driver):
    target, turns = torch.zeros(2), []
    copy, source = gpu.copy_with(driver.copy, 8), torch.ones(2)
    waiting = threading.Thread(target=copy, args=(target.data_ptr(), source.data_ptr(), 5))
    waiting.start()
    while waiting.is_alive():
        turns.append(time.sleep(0.001))
    assert len(turns) > 10


@pytest.mark.parametrize(
    "wrong",
    [(), (1,), (1, 2), (1, 2, 3, 4), ("x", 1, 0), (1, 1, None), (1, -1, 0), (1, 1 << 64, 0)],
)
def test_wrong_arguments_are_errors_and_copy_nothing(driver, wrong):
    if gpu.Copy is None:
        pytest.skip("ctypes has errors of its own")
    target = torch.zeros(2)
    with pytest.raises((TypeError, OverflowError)):
        gpu.copy_with(driver.copy, 8)(*wrong)
    assert target.tolist() == [0, 0]


def test_without_a_function_there_is_no_copy():
    if gpu.Copy is None:
        pytest.skip("ctypes looks functions up itself")
    with pytest.raises(ValueError, match="the address of a function"):
        gpu.Copy(0, 8)


RESULTS = {
    "one": lambda x: x * 2 + 1,
    "columns": lambda x: (x * 2 + 1).t(),
    "channels last": lambda x: (x * 2).view(1, 2, 4, 4).to(memory_format=torch.channels_last),
    "every other": lambda x: (x * 2 + 1)[::2],
    "expanded": lambda x: (x[:1] * 2).expand(4, 8),
    "conjugated": lambda x: torch.complex(x, x + 1).conj(),
    "negated": lambda x: torch._neg_view(x * 3),
    "halves of one": lambda x: (x * 2).chunk(2),
    "of other dtypes": lambda x: (x > 3, (x * 2).half(), x.double(), x.to(torch.int8)),
    "empty": lambda x: (x * 2)[:0],
    "a number": lambda x: x.sum(),
    "inference": lambda x: in_inference_mode(x),
    "an argument": lambda x: (x, x + 1),
}


def in_inference_mode(x):
    with torch.inference_mode():
        return x * 2


@pytest.fixture
def device_that_copies(driver, monkeypatch):
    """The emulated device with a copy of its own: how many were begun, and whether it refuses."""
    seen = {"begun": 0, "refuses": False}

    def copy_bytes(self, index, size):
        copy = gpu.copy_with(driver.copy, size)

        def begin(to, at, stream):
            seen["begun"] += 1
            return copy(to, at, 666 if seen["refuses"] else 7)

        return begin

    monkeypatch.setattr(EmulatedDevice, "copy_bytes", copy_bytes)
    return seen


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("name", RESULTS)
def test_results_that_the_device_copies_are_those_of_eager(name, refuses, mode, device_that_copies):
    fn, device = RESULTS[name], gfxgraph.device_type()
    graph, kept = gfxgraph.graphed(fn), []
    device_that_copies["refuses"] = refuses
    with mode():
        for n in range(5):
            x = torch.arange(32.0, device=device).view(4, 8) + n
            got, expected = pytree.tree_leaves(graph(x)), pytree.tree_leaves(fn(x.clone()))
            kept.append((got, expected))
        for got, expected in kept:  # no later call has changed them
            for one, other in zip(got, expected, strict=True):
                assert torch.equal(one.resolve_neg(), other.resolve_neg())
                assert (one.stride(), one.dtype) == (other.stride(), other.dtype)
                assert one.is_inference() == other.is_inference()
                assert one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()
    places = [one.data_ptr() for got, _ in kept for one in got if one.numel()]
    assert len(set(places)) == len(places)
    assert graph.stats().replays == 4 and device_that_copies["begun"]


@pytest.mark.parametrize("grad", [False, True])
def test_a_result_that_the_device_copies_can_be_used_as_any_other(grad, device_that_copies):
    device = gfxgraph.device_type()
    graph, x = gfxgraph.graphed(lambda x: x * 2), torch.ones(3, device=device)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            result = graph(x)
    assert device_that_copies["begun"] and result._version == 0 and result.is_leaf
    result.requires_grad_(True)
    (result * 3).sum().backward()
    assert result.grad.tolist() == [3, 3, 3]
    assert result.detach().add_(1).tolist() == [3, 3, 3] and graph(x).tolist() == [2, 2, 2]


@pytest.mark.gpu
def test_a_replay_copies_its_input_on_the_stream_of_the_call(device):
    x = torch.randn(64, 64, device=device)
    graph = gfxgraph.graphed(lambda x: x @ x + 1)
    stream = torch.cuda.Stream()
    for n in range(20):
        with torch.cuda.stream(stream if n % 2 else torch.cuda.default_stream()):
            given = x * n
            torch.testing.assert_close(graph(given), given @ given + 1)
        torch.cuda.synchronize()
    assert graph.stats().replays >= 18


@pytest.mark.gpu
@pytest.mark.parametrize("name", RESULTS)
@torch.no_grad()
def test_a_replay_copies_its_results_on_the_stream_of_the_call(name, device):
    fn = RESULTS[name]
    graph, stream, kept = gfxgraph.graphed(fn), torch.cuda.Stream(), []
    for n in range(20):
        with torch.cuda.stream(stream if n % 2 else torch.cuda.default_stream()):
            x = torch.arange(32.0, device=device).view(4, 8) + n
            kept.append((x, graph(x)))
        torch.cuda.synchronize()
    assert graph.stats().replays >= 18
    for x, got in kept:
        torch.testing.assert_close(got, fn(x))
