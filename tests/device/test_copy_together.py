"""Copies to several places in one launch: of a function that copies here, and of a GPU's kernel."""

import array
import ctypes
import random
import threading
import time

import pytest
import torch

import gfxgraph
from gfxgraph.device import current_device, gpu, gpu_copies
from gfxgraph.device.emulated import EmulatedDevice

LAUNCH = """
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    uint64_t to, at, size;
    uint32_t first, unused;
} Piece;

static uint64_t seen, launches;

int launch(void *kernel, unsigned x, unsigned y, unsigned z, unsigned by_x, unsigned by_y,
           unsigned by_z, unsigned shared, void *stream, void **given, void **more)
{
    const Piece *pieces = given[0];
    uint32_t count = *(uint32_t *)given[1];
    seen = (uint64_t)stream;
    launches++;
    if (kernel != (void *)9 || y * z * by_y * by_z != 1 || by_x != 256 || shared || more)
        return 1;
    if (seen == 666)
        return 700;
    if (seen == 5)
        usleep(200000);
    for (uint32_t block = 0; block < x; block++) {
        const Piece *piece = pieces;
        for (uint32_t n = 1; n < count && pieces[n].first <= block; n++)
            piece++;
        uint64_t from = (uint64_t)(block - piece->first) * 16384;
        uint64_t size = piece->size - from < 16384 ? piece->size - from : 16384;
        memcpy((char *)piece->to + from, (char *)piece->at + from, size);
    }
    return 0;
}

uint64_t stream(void) { return seen; }
uint64_t count(void) { return launches; }
"""
KERNEL = 9

pytestmark = pytest.mark.skipif(gpu_copies.Copies is None, reason="there is no compiled part")


@pytest.fixture(scope="module")
def driver(compiled):
    library = compiled(LAUNCH)
    library.stream.restype = library.count.restype = ctypes.c_uint64
    return library


@pytest.fixture
def address(driver):
    return ctypes.cast(driver.launch, ctypes.c_void_p).value


def copies(address, places, kernel=KERNEL):
    words = array.array("Q", [word for place in places for word in place])
    return gpu_copies.Copies(address, kernel, words.tobytes()).start


def bytes_of(size, fill=None):
    """Bytes that begin at a multiple of 16, with three more behind them."""
    memory = torch.zeros(size + 35, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 16 :][: size + 3]
    return memory if fill is None else memory.random_(generator=fill)


SIZES = (1, 3, 15, 16, 17, 31, 4096, 16383, 16384, 16385, 70001)


def random_sizes(seed, most=120):
    rng = random.Random(seed)
    return [rng.choice(SIZES) for _ in range(rng.randint(1, most))]


@pytest.mark.parametrize("seed", range(20))
def test_each_place_gets_its_bytes_and_no_others(seed, address):
    sizes, fill = random_sizes(seed), torch.Generator().manual_seed(seed)
    sources, targets = [bytes_of(n, fill) for n in sizes], list(map(bytes_of, sizes))
    start = copies(address, [(t.data_ptr(), n) for t, n in zip(targets, sizes, strict=True)])
    assert start(0, *(s.data_ptr() for s in sources)) == 0
    for source, target, size in zip(sources, targets, sizes, strict=True):
        assert torch.equal(target[:size], source[:size]) and not target[size:].any()


def test_it_is_launched_on_the_stream(driver, address):
    target, source = bytes_of(8), bytes_of(8)
    start = copies(address, [(target.data_ptr(), 8)])
    for stream in (0, 7, 0x7FFF_1234_5678_9ABC):
        assert start(stream, source.data_ptr()) == 0 and driver.stream() == stream
    assert start(666, source.data_ptr()) == 700


def test_what_begins_between_two_multiples_of_16_is_not_copied_unless_it_is_short(address):
    target, source = bytes_of(40), bytes_of(41, torch.Generator().manual_seed(0))
    assert copies(address, [(target.data_ptr(), 40)])(0, source.data_ptr() + 1) == -1
    assert not target.any()
    assert copies(address, [(target.data_ptr(), 15)])(0, source.data_ptr() + 1) == 0
    assert torch.equal(target[:15], source[1:16])


def test_other_threads_run_while_the_driver_waits(address):
    target, source, turns = bytes_of(8), bytes_of(8), []
    start = copies(address, [(target.data_ptr(), 8)])
    waiting = threading.Thread(target=start, args=(5, source.data_ptr()))
    waiting.start()
    while waiting.is_alive():
        turns.append(time.sleep(0.001))
    assert len(turns) > 10


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        (0,),
        (0, 16),
        (0, 16, 32, 48),
        ("x", 16, 32),
        (0, None, 32),
        (0, -16, 32),
        (0, 16, 1 << 64),
    ],
)
def test_wrong_arguments_are_errors_and_copy_nothing(wrong, driver, address):
    targets, before = [bytes_of(8), bytes_of(8)], driver.count()
    with pytest.raises((TypeError, OverflowError)):
        copies(address, [(t.data_ptr(), 8) for t in targets])(*wrong)
    assert driver.count() == before


@pytest.mark.parametrize(
    "places",
    [
        [],
        [(16, 8, 16)],
        [(16, 0)],
        [(24, 8)],
        [(16, 1 << 46)],
        [(16, 1 << 45)] * 2,
        [(16, 8)] * (gpu_copies.MOST_PLACES + 1),
    ],
)
def test_places_that_no_kernel_could_fill_are_errors(places, address):
    with pytest.raises(ValueError, match="1 to 120 pairs of words"):
        copies(address, places)


@pytest.mark.parametrize("wrong", [-1, 1 << 64, (1 << 70) + 16, None, 1.5])
def test_what_is_no_address_is_an_error(wrong, address):
    for launch, kernel in ((wrong, KERNEL), (address, wrong)):
        with pytest.raises((TypeError, OverflowError)):
            copies(launch, [(16, 8)], kernel)
    with pytest.raises((TypeError, OverflowError)):
        gpu.Copy(wrong, 8)
    with pytest.raises((TypeError, OverflowError)):
        gpu.Copy(address, wrong)


@pytest.mark.parametrize(("fails", "asks"), [(MemoryError, 2), (RuntimeError, 1)])
def test_a_driver_without_memory_is_asked_again_and_any_other_that_fails_is_not(
    fails, asks, monkeypatch
):
    asked = []

    def loaded(index):
        asked.append(index)
        if len(asked) == 1:
            raise fails("the driver")
        return 16, KERNEL

    monkeypatch.setattr(gpu_copies, "_loaded", loaded)
    monkeypatch.setattr(gpu_copies, "_kernels", {})
    found = [gpu_copies.copies_to(0, [(16, 8), (32, 8)]) for _ in range(3)]
    assert [bool(one) for one in found] == [False, asks == 2, asks == 2] and len(asked) == asks


def test_without_a_function_or_a_kernel_there_is_no_copy(address):
    for launch, kernel in ((0, KERNEL), (address, 0)):
        with pytest.raises(ValueError, match="the addresses of a function and a kernel"):
            copies(launch, [(16, 8)], kernel)


def test_a_device_says_where_it_has_no_such_copy(monkeypatch, address):
    monkeypatch.setattr(gpu_copies, "_kernel", lambda index: (address, KERNEL))
    places = [(16, 8), (32, 8)]
    assert gpu_copies.copies_to(0, places) is not None
    for none in ([], [(24, 8)], [(16, 0)], places * 61):
        assert gpu_copies.copies_to(0, none) is None
    monkeypatch.setattr(gpu_copies, "_kernel", lambda index: None)
    assert gpu_copies.copies_to(0, places) is None
    monkeypatch.setattr(gpu_copies, "_kernel", lambda index: (address, KERNEL))
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "hip", "7.0")
        assert gpu_copies.copies_to(0, places) is None
    monkeypatch.setattr(gpu_copies, "Copies", None)  # no compiled part
    assert gpu_copies.copies_to(0, places) is None


# A replay that copies its arguments so.


def arguments(n, device):
    """Of several dtypes; some are no multiples of 16 bytes, and one is empty."""
    return (
        torch.arange(12.0, device=device).view(3, 4) + n,
        torch.arange(5, device=device) * n,
        torch.tensor([n % 2 == 0, True, False], device=device),
        torch.full((2, 3, 3), n, dtype=torch.half, device=device),
        torch.tensor(float(n), dtype=torch.double, device=device),
        torch.empty(0, 4, device=device),
        torch.full((7,), n, dtype=torch.uint8, device=device),
    )


def dense(*given):
    return [x * 2 for x in given]


def every_other(given):
    """The same values, which lie apart."""
    apart = [x.new_zeros((*x.shape, 2)) for x in given]
    for into, x in zip(apart, given, strict=True):
        into[..., 0] = x
    return tuple(into[..., 0] for into in apart)


def between(given):
    """The same values, each behind one that does not matter."""
    return tuple(torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape) for x in given)


LIE = {"as they are": lambda given: given, "apart": every_other, "between": between}


@pytest.fixture
def device_that_copies(driver, address, monkeypatch):
    """The emulated device with a copy of its own."""
    if current_device().kind == "emulated":
        monkeypatch.setattr(gpu_copies, "_kernel", lambda index: (address, KERNEL))

        def copy_together(self, index, places):
            moved = gpu_copies.copies_to(index, places)
            return None if moved is None else lambda stream, *at: moved(driver.refuses, *at)

        driver.refuses = 7
        monkeypatch.setattr(EmulatedDevice, "copy_together", copy_together)
    return gfxgraph.device_type()


@pytest.mark.parametrize("way", LIE)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_replay_reads_the_arguments_of_its_call(way, mode, device_that_copies, driver):
    graph, device, lie = gfxgraph.graphed(dense), device_that_copies, LIE[way]
    before = driver.count()
    with mode():
        for n in range(6):
            given = lie(arguments(n, device))
            for got, expected in zip(graph(*given), dense(*given), strict=True):
                assert torch.equal(got, expected) and got.dtype == expected.dtype
    assert graph.stats().replays == 5
    if way == "as they are" and current_device().kind == "emulated":
        assert driver.count() - before >= 5


@pytest.mark.parametrize("way", LIE)
def test_one_key_takes_arguments_however_they_lie(way, device_that_copies):
    graph, device = gfxgraph.graphed(dense), device_that_copies
    with torch.no_grad():
        for n in range(9):
            lie = LIE[way] if n % 2 else LIE["as they are"]
            given = lie(arguments(n, device))
            for got, expected in zip(graph(*given), dense(*given), strict=True):
                assert torch.equal(got, expected)


def test_where_the_driver_refuses_torch_copies(device_that_copies, driver):
    if current_device().kind != "emulated":
        pytest.skip("the driver of a GPU does not refuse")
    graph = gfxgraph.graphed(dense)
    with torch.no_grad():
        for n in range(6):
            driver.refuses = 666 if n > 3 else 7
            given = arguments(n, device_that_copies)
            for got, expected in zip(graph(*given), dense(*given), strict=True):
                assert torch.equal(got, expected)
    assert graph.stats().replays == 5


def test_a_tangent_is_not_left_out(device_that_copies):
    graph, device = gfxgraph.graphed(lambda x, y: x * y), device_that_copies
    with torch.no_grad():
        x, y = torch.ones(3, device=device), torch.full((3,), 2.0, device=device)
        for _ in range(3):
            graph(x, y)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            result = torch.autograd.forward_ad.unpack_dual(graph(dual, y))
    assert result.tangent.tolist() == [2, 2, 2]


def test_arguments_that_want_gradients_beside_others_get_them(device_that_copies):
    graph, device = gfxgraph.graphed(lambda x, y, z: x * y + z), device_that_copies
    for n in range(4):
        x, y, z = (torch.full((3,), n + k, dtype=torch.float, device=device) for k in range(3))
        x.requires_grad_(True)
        got = graph(x, y, z)
        got.sum().backward()
        assert torch.equal(got, x * y + z) and torch.equal(x.grad, y)


LAZY = {
    "conjugated": lambda n, device: torch.full((n, 2), 1 + 2j, device=device).conj(),
    "negated": lambda n, device: torch._neg_view(torch.full((n, 2), 3.0, device=device)),
}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("what", LAZY)
def test_a_bucket_takes_what_is_conjugated_or_negated(what, alone, device_that_copies, monkeypatch):
    make, device = LAZY[what], device_that_copies
    if current_device().kind == "emulated":  # a single one is copied in another way

        def copy_bytes(self, index, size):
            def copy(to, at, stream):
                ctypes.memmove(to, at, size)
                return 0

            return copy

        monkeypatch.setattr(EmulatedDevice, "copy_bytes", copy_bytes)
    fn = lambda x, *more: [x.resolve_conj() * 2, *(m + 1 for m in more)]  # noqa: E731
    graph = gfxgraph.graphed(fn, buckets=[8, 16])
    with torch.no_grad():
        for n in (8, 5, 5, 6, 5, 6, 8, 5):
            given = make(n, device), *([] if alone else [torch.ones(n, 3, device=device)])
            for got, expected in zip(graph(*given), fn(*given), strict=True):
                assert torch.equal(got.resolve_neg(), expected.resolve_neg())
    assert graph.stats().replays >= 4


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(20))
def test_the_kernel_gives_each_place_its_bytes_and_no_others(seed, device):
    sizes = random_sizes(seed)
    sources = [torch.randint(256, (n,), dtype=torch.uint8, device=device) for n in sizes]
    targets = [torch.zeros(n + 64, dtype=torch.uint8, device=device) for n in sizes]
    places = [(t.data_ptr(), n) for t, n in zip(targets, sizes, strict=True)]
    start = gpu_copies.copies_to(0, places)
    assert start(torch.cuda.current_stream().cuda_stream, *(s.data_ptr() for s in sources)) == 0
    for source, target, size in zip(sources, targets, sizes, strict=True):
        assert torch.equal(target[:size], source) and not target[size:].any()


@pytest.mark.gpu
def test_a_replay_copies_its_arguments_on_the_stream_of_the_call(device):
    graph, stream = gfxgraph.graphed(dense), torch.cuda.Stream()
    with torch.no_grad():
        for n in range(20):
            with torch.cuda.stream(stream if n % 2 else torch.cuda.default_stream()):
                given = arguments(n, device)
                for got, expected in zip(graph(*given), dense(*given), strict=True):
                    assert torch.equal(got, expected)
            torch.cuda.synchronize()
    assert graph.stats().replays >= 18


@pytest.mark.gpu
def test_the_arguments_are_copied_in_one_launch(device):
    graph, given = gfxgraph.graphed(dense), arguments(3, device)
    with torch.no_grad():
        for _ in range(4):
            graph(*given)
        with torch.profiler.profile() as profile:
            graph(*given)
            torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert names.count("gfxgraph_copy") == 1
    assert not any("foreach_copy" in name for name in names)
