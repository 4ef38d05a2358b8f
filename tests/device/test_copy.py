"""The copy of the driver, compiled and with ctypes, on a function that copies here."""

import ctypes
import subprocess
import threading
import time

import pytest
import torch

import gfxgraph
from gfxgraph.device import gpu

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
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    command = ["cc", "-shared", "-fPIC", folder / "driver.c", "-o", folder / "driver.so"]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    library = ctypes.CDLL(str(folder / "driver.so"))
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
    copy = gpu.copy_with(driver.copy, target.data_ptr(), 5 * 8)
    for stream in (0, 7, 0x7FFF_1234_5678_9ABC):
        target.zero_()
        assert copy(source.data_ptr(), stream) == 0
        assert target.tolist() == [0, 1, 2, 3, 4, 0, 0, 0] and driver.stream() == stream


def test_what_the_driver_says_is_given(driver):
    target = torch.zeros(2)
    assert gpu.copy_with(driver.copy, target.data_ptr(), 8)(target.data_ptr(), 666) == 700


def test_other_threads_run_while_the_driver_waits(driver):
    target, turns = torch.zeros(2), []
    copy = gpu.copy_with(driver.copy, target.data_ptr(), 8)
    waiting = threading.Thread(target=copy, args=(torch.ones(2).data_ptr(), 5))
    waiting.start()
    while waiting.is_alive():
        turns.append(time.sleep(0.001))
    assert len(turns) > 10


@pytest.mark.parametrize("wrong", [(), (1,), (1, 2, 3), ("x", 0), (1, None), (-1, 0), (1 << 64, 0)])
def test_wrong_arguments_are_errors_and_copy_nothing(driver, wrong):
    if gpu.Copy is None:
        pytest.skip("ctypes has errors of its own")
    target = torch.zeros(2)
    with pytest.raises((TypeError, OverflowError)):
        gpu.copy_with(driver.copy, target.data_ptr(), 8)(*wrong)
    assert target.tolist() == [0, 0]


def test_without_a_function_there_is_no_copy():
    if gpu.Copy is None:
        pytest.skip("ctypes looks functions up itself")
    with pytest.raises(ValueError, match="the address of a function"):
        gpu.Copy(0, 8, 8)


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
