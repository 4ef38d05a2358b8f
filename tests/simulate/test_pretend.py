"""Code that says device="cuda" runs with no device, and what is host and what is device is told."""

from __future__ import annotations

import copy
import functools
import threading
import time
import types
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.cuda import current_device, is_current_stream_capturing, synchronize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.errors import DeviceError
from gfxgraph.interpose.cuda_calls import listening
from gfxgraph.record.effects import storage_key
from gfxgraph.simulate.tensor import SimulatedTensor
from gfxgraph.simulate.world import SimulatedCuda
from tests.helpers.processes import printed
from tests.helpers.threads import on_threads

MODES = {
    "grad": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


class Seen(list[tuple[str, str, Any]]):
    """What an observer was told."""

    def __call__(self, *event: Any) -> None:
        self.append(event)  # type: ignore[arg-type]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self]


class Operations(TorchDispatchMode):
    """The operators that reach a dispatch mode above."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch._C._dispatch_has_kernel_for_dispatch_key(func._name, "CompositeImplicitAutograd"):
            with self:  # in inference mode they arrive whole
                return func.decompose(*args, **(kwargs or {}))
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """The functions of torch that reach a function mode above."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.called.append(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


@pytest.fixture
def world():
    with SimulatedCuda() as world:
        yield world


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    def plain(value: Any) -> Any:
        return value.inside if isinstance(value, SimulatedTensor) else value

    actual, expected = torch.utils._pytree.tree_map(plain, (actual, expected))
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def in_step(tensor: torch.Tensor) -> bool:
    """Whether a tensor says of itself what is true of its data."""
    assert isinstance(tensor, SimulatedTensor)
    return all(
        getattr(tensor, name)() == getattr(tensor.inside, name)()
        for name in ("size", "stride", "storage_offset")
    )


# Tensors on the device


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, device="cuda"),
        lambda: torch.zeros(3, device="cuda:0"),
        lambda: torch.zeros(3, device=0),
        lambda: torch.zeros(3, device=torch.device("cuda")),
        lambda: torch.tensor([0.0, 0, 0], device="cuda"),
        lambda: torch.as_tensor([0.0, 0, 0], device="cuda"),
        lambda: torch.zeros(3).cuda(),
        lambda: torch.zeros(3).cuda(0),
        lambda: torch.zeros(3).to("cuda"),
        lambda: torch.zeros(3).to(0),
        lambda: torch.zeros(3).to(torch.zeros(1, device="cuda")),
        lambda: torch.zeros(1, device="cuda").new_zeros(3),
        lambda: torch.zeros_like(torch.ones(3), device="cuda"),
        lambda: torch.arange(3.0, device="cuda") * 0,
    ],
)
def test_what_is_made_on_the_device_says_so(world, mode, make):
    with mode():
        x = make()
    assert type(x) is SimulatedTensor
    assert x.is_cuda and x.device == torch.device("cuda:0") and x.get_device() == 0
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.cpu().tolist() == [0, 0, 0]


def test_the_default_device_may_be_the_pretended_one(world):
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda and torch.tensor([1.0]).is_cuda


def test_what_is_made_on_the_host_stays_there(world):
    x = torch.ones(2, device="cuda")
    for host in (torch.ones(2), torch.tensor([1.0]), x.cpu(), torch.zeros_like(x, device="cpu")):
        assert type(host) is torch.Tensor and host.device.type == "cpu"


def test_moving_to_where_it_is_gives_the_same_object(world, mode):
    with mode():
        x = torch.ones(3, device="cuda")
        assert x.to("cuda") is x and x.to("cuda:0") is x and x.to(0) is x and x.cuda() is x
        assert torch.as_tensor(x, device="cuda") is x and x.contiguous() is x


def test_host_and_device_do_not_mix(world, mode):
    with mode():
        x = torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            x + torch.ones(3)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            torch.cat([x, torch.ones(3)])
        assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a number, in a tensor


def test_copies_go_both_ways(world, mode):
    with mode():
        x, host = torch.arange(3.0, device="cuda"), torch.zeros(3)
        assert host.copy_(x) is host and host.tolist() == [0, 1, 2]
        assert x.copy_(host + 1) is x and x.tolist() == [1, 2, 3]


def test_numpy_is_refused_as_on_cuda(world):
    numpy = pytest.importorskip("numpy")
    x = torch.ones(2, device="cuda")
    for call in (x.numpy, lambda: numpy.asarray(x)):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            call()
    assert x.cpu().numpy().tolist() == [1, 1]


@pytest.mark.parametrize(
    ("read", "value", "operator"),
    [
        (lambda x: x[1].item(), 2.5, "_local_scalar_dense"),
        (lambda x: float(x[1]), 2.5, "_local_scalar_dense"),
        (lambda x: int(x[1]), 2, "_local_scalar_dense"),
        (lambda x: bool(x[0] > 0), True, "_local_scalar_dense"),
        (lambda x: f"{x[1]:.2f}", "2.50", "_local_scalar_dense"),
        (lambda x: x.tolist(), [1.0, 2.5], "_to_copy"),
        (lambda x: x.cpu().tolist(), [1.0, 2.5], "_to_copy"),
        (lambda x: torch.equal(x, x.clone()), True, "equal"),
        (lambda x: [float(v) for v in x], [1.0, 2.5], "_local_scalar_dense"),
    ],
)
def test_reads_give_the_value_and_reach_a_mode_above(world, mode, read, value, operator):
    with mode():
        x = torch.tensor([1.0, 2.5], device="cuda")
        with Operations() as operations:
            assert read(x) == value
    assert operator in operations.names


def test_printing_shows_the_values_and_reaches_a_function_mode_above(world, mode):
    with mode(), Functions() as functions:
        x = torch.tensor([1.0, 2.5], device="cuda")
        text = repr(x)
    assert text == "tensor([1.0000, 2.5000], device='cuda:0')" == str(x)
    assert torch.Tensor.__repr__ in functions.called


def test_it_can_be_printed_outside_too():
    with SimulatedCuda():
        x = torch.ones(2, device="cuda")
    assert repr(x) == "tensor([1., 1.], device='cuda:0')"


# Memory


def test_views_share_memory(world, mode):
    with mode():
        x = torch.zeros(2, 3, device="cuda")
        views = [x[1], x.view(6), x.t(), x.detach(), x.data, x.expand(2, 2, 3), x.unsqueeze(0)]
        assert {storage_key(v) for v in views} == {storage_key(x)}
        assert all(map(in_step, views))
        x[1].fill_(5)
        assert x.tolist() == [[0, 0, 0], [5, 5, 5]]
        for other in (x.clone(), x + 0, x.contiguous().clone(), torch.zeros(2, 3, device="cuda")):
            assert storage_key(other) != storage_key(x)
        assert storage_key(x[0]) == x.untyped_storage()._cdata
        assert x[1].data_ptr() == x.data_ptr() + 3 * x.element_size()


def test_what_is_written_in_place_stays_the_same_object(world, mode):
    with mode():
        x = torch.arange(3.0, device="cuda")
        assert x.add_(1) is x and x.mul_(2) is x and x.tolist() == [2, 4, 6]
        x += 1
        x[0] = 0
        assert x.tolist() == [0, 5, 7]
        out = torch.empty(3, device="cuda")
        assert torch.add(x, 1, out=out) is out and out.tolist() == [1, 6, 8]
        torch._foreach_add_([x, out], 1.0)
        assert x.tolist() == [1, 6, 8] and out.tolist() == [2, 7, 9]


def test_an_out_tensor_is_resized(world, mode):
    with mode():
        x, out = torch.ones(3, device="cuda"), torch.empty(0, device="cuda")
        assert torch.add(x, 1, out=out) is out
        assert out.tolist() == [2, 2, 2] and in_step(out)


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda x: x.t_(), (3, 2)),
        (lambda x: x.transpose_(0, 1), (3, 2)),
        (lambda x: x.unsqueeze_(0), (1, 2, 3)),
        (lambda x: x.unsqueeze_(0).squeeze_(), (2, 3)),
        (lambda x: x.resize_(1, 2), (1, 2)),
        (lambda x: x.resize_(4, 4), (4, 4)),
        (lambda x: x.resize_as_(torch.ones(2, device="cuda")), (2,)),
        (lambda x: x.set_(torch.ones(4, device="cuda")), (4,)),
        (lambda x: x.set_(torch.ones(4, device="cuda").untyped_storage(), 0, (2,), (1,)), (2,)),
        (lambda x: x.as_strided_((3,), (2,)), (3,)),
        (lambda x: x.swapdims_(0, 1), (3, 2)),
    ],
)
def test_a_change_of_shape_in_place_is_known_everywhere(world, mode, change, shape):
    with mode():
        x = torch.arange(6.0, device="cuda").view(2, 3).clone()
        change(x)
        assert tuple(x.shape) == shape and in_step(x)
        (x + 1).sum().item()


def test_data_can_be_replaced(world, mode):
    with mode():
        x, y = torch.ones(3, device="cuda"), torch.zeros(2, device="cuda")
        x.data = y
        assert in_step(x) and storage_key(x) == storage_key(y)
        y.add_(1)
        assert x.tolist() == [1, 1]


def test_parameters_and_copies_of_them_stay_parameters(world):
    x = nn.Parameter(torch.ones(3, device="cuda"))
    assert isinstance(x, nn.Parameter) and x.requires_grad and x.is_cuda
    twin = copy.deepcopy(x)
    assert isinstance(twin, nn.Parameter) and twin.requires_grad and in_step(twin)
    assert storage_key(twin) != storage_key(x)
    assert x.requires_grad_(False) is x


# Operations


OPERATIONS = {
    "index with a list": lambda x: x[:, [0, 2]],
    "index with a host tensor": lambda x: x[torch.tensor([1, 0])],
    "index with a mask": lambda x: x[x > 0],
    "index with a mask of the host": lambda x: x[torch.tensor([True, False, True, True])],
    "write by index": lambda x: x.clone().index_put_((torch.tensor([0, 1]),), x[0]),
    "write by mask": lambda x: x.clone().masked_fill_(x > 0, 2.0),
    "nonzero": lambda x: (x > 0).nonzero(),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "where, a number in a tensor": lambda x: torch.where(x > 0, x, torch.tensor(7.0)),
    "unique": lambda x: x.round().unique(),
    "sort": lambda x: x.sort(dim=1),
    "topk": lambda x: x.topk(2),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "matmul": lambda x: x @ x.t(),
    "fft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2),
    "complex": lambda x: torch.view_as_real(torch.complex(x, x).conj() * 1j),
    "stft": lambda x: torch.stft(
        x.flatten(), 8, window=torch.hann_window(8, device=x.device), return_complex=True
    ),
    "inverse": lambda x: torch.linalg.inv(x @ x.t() + 10 * torch.eye(4, device=x.device)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.t() + 10 * torch.eye(4, device=x.device)),
    "cumsum": lambda x: x.cumsum(0),
    "softmax": lambda x: F.softmax(x, dim=-1, dtype=torch.float64),
    "layer norm": lambda x: F.layer_norm(x, (8,)),
    "rms norm": lambda x: F.rms_norm(x, (8,)),
    "group norm": lambda x: F.group_norm(x[None], 2),
    "one hot": lambda x: F.one_hot(torch.arange(3, device=x.device), 5),
    "embedding": lambda x: F.embedding(torch.tensor([1, 0], device=x.device), x),
    "embedding bag": lambda x: F.embedding_bag(torch.tensor([[1, 0]], device=x.device), x),
    "convolution": lambda x: F.conv1d(x[None], torch.ones(2, 4, 3, device=x.device)),
    "pooling": lambda x: F.max_pool1d(x, 2),
    "interpolation": lambda x: F.interpolate(x[None], scale_factor=2.0, mode="linear"),
    "grid sample": lambda x: F.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2, device=x.device), align_corners=True
    ),
    "attention": lambda x: F.scaled_dot_product_attention(
        x.view(1, 2, 4, 4), x.view(1, 2, 4, 4), x.view(1, 2, 4, 4), is_causal=True
    ),
    "attention with a mask": lambda x: F.scaled_dot_product_attention(
        x.view(1, 2, 4, 4), x.view(1, 2, 4, 4), x.view(1, 2, 4, 4), torch.eye(4, device=x.device)
    ),
    "attention with a mask of truths": lambda x: F.scaled_dot_product_attention(
        x.view(1, 2, 4, 4), x.view(1, 2, 4, 4), x.view(1, 2, 4, 4), x.view(2, 4, 4) > 0
    ),
    "grouped attention": lambda x: F.scaled_dot_product_attention(
        x.view(1, 4, 2, 4), x.view(1, 4, 2, 4)[:, :2], x.view(1, 4, 2, 4)[:, :2], enable_gqa=True
    ),
    "scatter": lambda x: torch.zeros_like(x).scatter_add_(
        0, torch.zeros(4, 8, dtype=torch.int64, device=x.device), x
    ),
    "split": lambda x: x.split([1, 3]),
    "foreach": lambda x: torch._foreach_mul([x, x], 2.0),
    "repeat interleave": lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 1]).to(x.device), 0),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)),
    "new tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "type of another": lambda x: x.type_as(torch.ones(1, dtype=torch.float64, device=x.device)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_those_of_the_cpu_and_on_the_device(world, mode, name):
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    with mode():
        expected = OPERATIONS[name](x)
        actual = OPERATIONS[name](x.cuda())
    leaves = torch.utils._pytree.tree_leaves(actual)
    assert all(leaf.is_cuda and in_step(leaf) for leaf in leaves)
    assert_same(actual, expected)


MODULES = {
    "convolution": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 8, 8)),
    "LSTM": (lambda: nn.LSTM(3, 4, 2, bidirectional=True), (5, 2, 3)),
    "GRU": (lambda: nn.GRU(3, 4, 2, batch_first=True), (5, 2, 3)),
    "RNN": (lambda: nn.RNN(3, 4), (5, 2, 3)),
    "LSTM cell": (lambda: nn.LSTMCell(3, 4), (2, 3)),
    "GRU cell": (lambda: nn.GRUCell(3, 4, bias=False), (2, 3)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True), (2, 4, 8)),
}


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_modules_compute_what_they_compute_on_the_cpu(mode, name, training):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module, x = make().train(training), torch.randn(shape)
    with mode():
        torch.manual_seed(1)
        expected = copy.deepcopy(module)(x)
        with SimulatedCuda() as world:
            world.adopt(module)
            torch.manual_seed(1)
            assert_same(module(world.wrap(x)), expected)
            torch.manual_seed(1)
            assert_same(copy.deepcopy(module).cuda()(x.cuda()), expected)


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
def test_a_module_made_inside_can_be_moved(world, mode):
    for module in (
        nn.Linear(3, 2).cuda(),
        nn.Linear(3, 2).to("cuda"),
        nn.Linear(3, 2, device="cuda"),
    ):
        assert isinstance(module.weight, nn.Parameter) and module.weight.is_cuda
        with mode():
            assert module(torch.ones(3, device="cuda")).is_cuda


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
def test_packed_sequences_keep_their_lengths_on_the_host(world, mode):
    x = torch.randn(5, 2, 3)
    with mode():
        packed = nn.utils.rnn.pack_padded_sequence(x.cuda(), torch.tensor([5, 3]))
        assert packed.data.is_cuda and not packed.batch_sizes.is_cuda
        padded, lengths = nn.utils.rnn.pad_packed_sequence(nn.LSTM(3, 4).cuda()(packed)[0])
    assert padded.is_cuda and not lengths.is_cuda and lengths.tolist() == [5, 3]


def test_autocast_of_cuda_takes_effect(world, mode):
    x = torch.randn(2, 2, device="cuda")
    with mode():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (x @ x).dtype is torch.bfloat16
            assert F.softmax((x @ x), dim=0).dtype is torch.float32
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        with torch.amp.autocast("cuda", dtype=torch.float16), Operations() as operations:
            assert F.linear(x, x).dtype is torch.float16
    assert "_to_copy" in operations.names


def test_half_precision_is_cast_in_softmax_as_on_cuda(world):
    x = torch.randn(3, device="cuda").half()
    for function in (F.softmax, F.log_softmax):
        assert_same(function(x, -1, dtype=torch.float32), function(x.inside.float(), -1))


def test_autograd_records_but_nothing_more(world):
    x = torch.ones(3, device="cuda", requires_grad=True)
    assert (x * 2).sum().requires_grad
    with torch.no_grad():
        assert not (x * 2).requires_grad


def test_a_kernel_that_only_cuda_has_gives_zeros_of_its_shape():
    with torch.library._scoped_library("gfxgraph_pretend", "FRAGMENT") as library:
        library.define("only_cuda(Tensor x) -> (Tensor, Tensor)")
        library.impl("only_cuda", lambda x: (x + 1, x), "CUDA")
        seen = Seen()
        with SimulatedCuda(seen):
            x = torch.ones(2, 3, device="cuda")
            with pytest.raises(DeviceError, match=r"only_cuda.* has no kernel for the CPU"):
                torch.ops.gfxgraph_pretend.only_cuda(x)
            library.impl("only_cuda", lambda x: (x.new_empty(x.shape[::-1]), x[0] + 1), "Meta")
            a, b = torch.ops.gfxgraph_pretend.only_cuda(x)
            assert a.is_cuda and a.shape == (3, 2) and b.tolist() == [0, 0, 0]
    assert seen.kinds == ["assumed"] and "only_cuda" in seen[0][1]


def test_an_ordinary_error_of_an_operator_is_its_own(world):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.ones(2, 2, device="cuda") @ torch.ones(3, 3, device="cuda")


# Pinned memory


def test_pinned_memory_says_that_it_is_pinned(world, mode):
    with mode():
        assert not torch.ones(2).is_pinned()
        for pinned in (torch.ones(2).pin_memory(), torch.empty(2, pin_memory=True)):
            assert pinned.is_pinned() and pinned[1:].is_pinned() and not pinned.is_cuda
            assert pinned.pin_memory() is pinned
        assert torch.ones(2).pin_memory().to("cuda", non_blocking=True).tolist() == [1, 1]
        with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            torch.ones(2, device="cuda").pin_memory()


# Random numbers


def test_random_numbers_come_from_the_generator_of_the_cpu_which_is_put_back(mode):
    torch.manual_seed(3)
    with mode():
        expected = (torch.rand(2), torch.randn(2), F.dropout(torch.ones(8)), torch.randperm(4))
        torch.manual_seed(3)
        before = torch.get_rng_state()
        with SimulatedCuda():
            assert_same(torch.rand(2, device="cuda"), expected[0])
            assert_same(torch.randn(2, device="cuda"), expected[1])
            assert F.dropout(torch.ones(8, device="cuda")).is_cuda
            torch.cuda.manual_seed(3)
            assert_same(torch.rand(2, device="cuda"), expected[0])
            state = torch.cuda.get_rng_state()
            again = torch.rand(2, device="cuda")
            torch.cuda.set_rng_state(state)
            assert_same(torch.rand(2, device="cuda"), again)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_of_the_device_is_usable_there_and_only_there():
    seen = Seen()
    with SimulatedCuda(seen):
        generator = torch.Generator(device="cuda")
        assert generator.device.type == "cuda" and isinstance(generator, torch.Generator)
        assert generator.manual_seed(1) is generator
        with pytest.raises(TypeError):  # as torch itself
            generator.manual_seed(seed=1)
        host = torch.Generator().manual_seed(1)
        assert not isinstance(host.device, str) and host.device.type == "cpu"
        numbers = torch.randn(3, device="cuda", generator=generator)
        assert_same(numbers, torch.randn(3, generator=host))
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
            torch.randn(3, generator=generator)
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
            torch.randn(3, device="cuda", generator=host)
    assert seen.kinds == ["generator", "seed"]


# What the device answers


def test_torch_cuda_answers_as_with_one_gpu(world):
    assert torch.cuda.is_available() and torch.cuda.is_initialized()
    assert torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert isinstance(torch.cuda.get_device_name(), str)
    assert torch.cuda.get_device_capability() == (9, 0)
    properties = torch.cuda.get_device_properties(0)
    assert properties.multi_processor_count > 0 and properties.total_memory > 2**30
    assert (properties.major, properties.minor) == (9, 0) and properties.name
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
    assert torch.cuda.is_bf16_supported()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_device(0)
    with torch.cuda.device(0), torch.cuda.nvtx.range("a part"):
        assert torch.zeros(2, device=torch.cuda.current_device()).is_cuda
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator().type == "cuda"


@pytest.mark.parametrize("capturing", [True, False])
def test_it_says_whether_it_captures(capturing):
    with SimulatedCuda(capturing=capturing):
        assert torch.cuda.is_current_stream_capturing() is capturing
        assert is_current_stream_capturing() is capturing  # imported by name


def test_names_that_were_imported_earlier_work(world):
    assert current_device() == 0


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("synchronize", lambda: torch.cuda.synchronize()),
        ("synchronize", lambda: synchronize()),  # imported by name
        ("synchronize", lambda: torch.cuda.current_stream().synchronize()),
        ("synchronize", lambda: torch.cuda.Event().synchronize()),
        ("synchronize", lambda: torch.accelerator.synchronize()),
        ("query", lambda: torch.cuda.current_stream().query()),
        ("query", lambda: torch.cuda.Event().query()),
        ("query", lambda: torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event())),
    ],
)
def test_waiting_for_the_device_and_asking_it_are_told(kind, call):
    seen = Seen()
    with SimulatedCuda(seen):
        call()
    assert seen.kinds == [kind]


@pytest.mark.parametrize(
    "seed",
    [
        lambda: torch.manual_seed(0),
        lambda: torch.random.manual_seed(0),
        lambda: torch.seed(),
        lambda: torch.cuda.manual_seed(0),
        lambda: torch.cuda.manual_seed_all(0),
        lambda: torch.cuda.seed(),
        lambda: torch.set_rng_state(torch.get_rng_state()),
        lambda: torch.cuda.set_rng_state(torch.cuda.get_rng_state()),
    ],
)
def test_seeding_is_told(seed):
    seen = Seen()
    with SimulatedCuda(seen):
        seed()
    assert set(seen.kinds) == {"seed"}  # reading the state is told, too


def test_streams_that_fork_and_join_are_told():
    seen = Seen()
    with SimulatedCuda(seen) as world:
        first = world.current_stream
        assert first == torch.cuda.current_stream() != torch.cuda.default_stream()
        side = torch.cuda.Stream()
        assert isinstance(side, torch.cuda.Stream) and side not in (first, torch.cuda.Stream())
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert world.current_stream is side is torch.cuda.current_stream()
            x = torch.ones(2, device="cuda")
            x.record_stream(side)
            done = side.record_event()
        first.wait_event(done)
        event = torch.cuda.Event()
        event.record()
        event.wait(side)
        with side:
            pass
        assert world.current_stream == first
    assert [(kind, detail) for kind, _, detail in seen] == [
        ("fork", (side, first)),
        ("stream", side),
        ("stream", first),
        ("join", (first, side)),
        ("join", (side, first)),
        ("stream", side),
        ("stream", first),
    ]


def test_entering_the_default_stream_is_told_and_leaving_it_is_not():
    seen = Seen()
    with SimulatedCuda(seen) as world, torch.cuda.stream(torch.cuda.default_stream()):
        assert world.current_stream == torch.cuda.default_stream()
        assert world.current_stream.cuda_stream == 0
    assert seen.kinds == ["default-stream", "stream", "stream"]


def test_a_function_that_captures_itself_is_told_and_runs_eagerly():
    seen = Seen()
    with SimulatedCuda(seen):
        x = torch.zeros(2, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.add_(1)
        graph.replay()
        assert x.tolist() == [1, 1]
        torch.cuda.make_graphed_callables(torch.sin, (x,))
    assert seen.kinds == ["capture"] * 3


# Arguments and what a function reaches


def test_wrapping_keeps_containers_objects_and_memory():
    base = torch.arange(6.0)
    tree = {"a": base, "b": [base[2:4], 3, base], "c": (torch.ones(1, requires_grad=True), None)}
    with SimulatedCuda() as world:
        wrapped = world.wrap(tree)
        assert list(wrapped) == ["a", "b", "c"] and type(wrapped["c"]) is tuple
        assert wrapped["b"][2] is wrapped["a"] is world.wrap(base) is world.wrap(wrapped["a"])
        assert storage_key(wrapped["b"][0]) == storage_key(wrapped["a"])
        assert wrapped["c"][0].requires_grad and not wrapped["a"].requires_grad
        wrapped["b"][0].zero_()
        assert wrapped["a"].tolist() == [0, 1, 0, 0, 4, 5]
    assert base.tolist() == [0, 1, 2, 3, 4, 5]  # what the run wrote is taken back


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("nothing", None)
        self.scale = torch.tensor([2.0])
        self.caches = [(torch.zeros(1), torch.zeros(1))]
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.head.weight is self.embedding.weight and self.head.weight.is_cuda
        assert self.steps.is_cuda and self.scale.is_cuda and self.caches[0][1].is_cuda
        self.steps += 1
        self.calls += 1
        self.caches.append((x, x))
        self.mask = torch.ones(4, device="cuda")
        return self.head(self.embedding(x) * self.mask) * self.scale


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_is_as_before_also_after_an_error(mode, fails):
    module = Tied()
    with torch.no_grad():
        expected = module.head(module.embedding(torch.tensor([1, 2]))) * 2
    held = {id(m): {**vars(m)} for m in module.modules()}
    state = dict(module.state_dict(keep_vars=True))
    caches = list(module.caches)
    with (
        pytest.raises(ZeroDivisionError) if fails else nullcontext(),
        SimulatedCuda() as world,
        mode(),
    ):
        world.adopt(module.forward)
        assert_same(module(world.wrap(torch.tensor([1, 2]))), expected)
        assert module.steps.item() == 1
        if fails:
            raise ZeroDivisionError
    for part in module.modules():
        assert {**vars(part)} == held[id(part)] and list(vars(part)) == list(held[id(part)])
    now = module.state_dict(keep_vars=True)
    assert list(now) == list(state) and all(now[name] is state[name] for name in state)
    assert type(module.head.weight) is nn.Parameter
    assert module.head.weight is module.embedding.weight
    assert module.steps.item() == 0 and module.calls == 0 and len(module.caches) == 1
    assert module.caches[0] is caches[0]


TABLE = torch.arange(3.0)


def test_tensors_in_closures_globals_defaults_and_objects_are_found():
    closed = torch.ones(3)
    holder = types.SimpleNamespace(deep={"list": [torch.ones(3)]}, kept=torch.ones(3))
    unbound: Any

    class Slots:
        __slots__ = ("missing", "tensor")
        shared = torch.ones(3)

        def __init__(self) -> None:
            self.tensor = torch.ones(3)

    slots = Slots()
    attributes = [holder.deep["list"][0], holder.kept, slots.tensor, Slots.shared]

    def helper(x):
        return x + TABLE

    def function(first, x, default=torch.ones(3), *, named=torch.ones(3)):  # noqa: B008
        nonlocal unbound
        unbound = x
        for tensor in (first, closed, default, named, slots.tensor, Slots.shared, holder.kept):
            assert tensor.is_cuda
            x = x + tensor
        return helper(x + holder.deep["list"][0])

    first = torch.ones(3)
    partial = functools.partial(function, first)
    defaults = function.__defaults__
    arguments = partial.args
    with SimulatedCuda() as world:
        world.adopt(partial, slots)
        assert partial(world.wrap(torch.zeros(3))).tolist() == [8, 9, 10]
    assert partial.args is arguments and arguments[0] is first and type(first) is torch.Tensor
    assert function.__defaults__ is defaults and type(TABLE) is torch.Tensor
    assert type(closed) is torch.Tensor and type(function.__kwdefaults__["named"]) is torch.Tensor
    now = [holder.deep["list"][0], holder.kept, slots.tensor, Slots.shared]
    assert all(a is b for a, b in zip(now, attributes, strict=True))
    with pytest.raises(NameError):
        unbound  # noqa: B018


def on_host(option: Any, weight: torch.Tensor, argument: torch.Tensor) -> bool:
    module = nn.Module()
    module.weight = nn.Parameter(weight, requires_grad=False)
    module.table = torch.ones(2)
    with SimulatedCuda(host_tensors=option) as world:
        world.wrap(argument)
        world.adopt(module)
        assert module.weight.is_cuda
        return not module.table.is_cuda


def test_plain_host_tensors_are_moved_where_nothing_else_is_said_to_be_on_a_device():
    cpu, meta = torch.ones(2), torch.ones(2, device="meta")
    assert not on_host(None, cpu, cpu)
    assert on_host(None, meta, cpu)
    assert on_host(None, cpu, meta)
    assert on_host("host", cpu, cpu)
    assert not on_host("device", meta, meta)


def test_subclasses_made_of_tensors_are_wrapped_part_by_part():
    from torch.testing._internal.two_tensor import TwoTensor

    with SimulatedCuda() as world:
        pair = world.wrap(TwoTensor(torch.ones(2), torch.zeros(2)))
        assert type(pair) is TwoTensor and pair.is_cuda
        assert type((pair + 1).b) is SimulatedTensor


# Weights without values


def test_meta_weights_give_shapes_and_made_up_values_are_told(mode):
    seen = Seen()
    module = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU()).to("meta")
    with SimulatedCuda(seen) as world, mode():
        world.adopt(module)
        x = world.wrap(torch.randn(3, 4))
        out = module(x)
        assert out.is_cuda and not out.is_meta and out.shape == (3, 6) and out.inside.is_meta
        assert seen == []
        assert out.sum().item() == 1.0 and out.argmax().item() == 1 and bool((out > 0).any())
        assert out.cpu().tolist() == [[1.0] * 6] * 3
        host = torch.zeros(3, 6)
        assert host.copy_(out).tolist() == [[1.0] * 6] * 3
        assert seen.kinds == ["assumed"] * 5
        assert "shape" not in repr(x) and "cuda:0" in repr(out)
        assert x.sum().item() != 1  # known


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.nonzero(), (12, 2)),
        (lambda x: x[x > 0], (12,)),
        (lambda x: x[(x > 0).any(1)], (2, 6)),
        (lambda x: x[torch.tensor([True, False, True, True], device="cuda")], (3, 6)),
        (lambda x: x.masked_select(x > 0), (12,)),
        (lambda x: torch.where(x > 0)[0], (12,)),
        (lambda x: x.unique(), (2,)),
        (lambda x: x.flatten().bincount(), None),
        (lambda x: x[:1, :1].nonzero(), (1, 2)),
    ],
)
def test_shapes_that_depend_on_unknown_data_are_made_up(mode, function, shape):
    seen = Seen()
    with SimulatedCuda(seen) as world, mode():
        x = world.wrap(torch.empty(4, 6, device="meta"))
        if shape is None:
            out = function(x.long())
        else:
            out = function(x)
            assert tuple(out.shape) == shape
        assert out.is_cuda and out.inside.is_meta
        (out + 1).sum()


def test_what_unknown_data_is_written_to_is_unknown(mode):
    seen = Seen()
    with SimulatedCuda(seen) as world, mode():
        unknown = world.wrap(torch.empty(3, device="meta"))
        flags = torch.zeros(2, 3, device="cuda")
        row = flags[1]
        row.copy_(unknown)
        assert flags.sum().inside.is_meta and flags.shape == (2, 3)
        assert flags.view(6).max().item() == 1.0
    assert seen.kinds == ["assumed"]


def test_an_operator_without_a_meta_kernel_gives_its_shape():
    with torch.library._scoped_library("gfxgraph_pretend", "FRAGMENT") as library:
        library.define("only_cpu(Tensor x) -> Tensor")
        library.impl("only_cpu", lambda x: x.t() + 1, "CPU")
        with SimulatedCuda() as world:
            out = torch.ops.gfxgraph_pretend.only_cpu(world.wrap(torch.empty(2, 3, device="meta")))
            assert out.shape == (3, 2) and out.inside.is_meta
            with pytest.raises(DeviceError, match="too large to make up"):
                torch.ops.gfxgraph_pretend.only_cpu(
                    world.wrap(torch.empty(5000, 5000, device="meta"))
                )


# Whole models


def encoder() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=99,
    )
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    ids = torch.randint(0, 99, (2, 7))
    return transformers.BertModel(config), {"input_ids": ids, "attention_mask": mask}


def llama(attention: str = "sdpa", **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 99,
    }
    config = transformers.LlamaConfig(**{**sizes, **options}, attn_implementation=attention)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    "which",
    [
        "encoder",
        "llama sdpa",
        "llama eager",
    ],
)
def test_models_give_what_they_give_on_the_cpu(mode, which):
    torch.manual_seed(0)
    if which == "encoder":
        model, inputs = encoder()
        model.eval()
    else:
        model, inputs = llama(which.split()[1]), {"input_ids": torch.randint(0, 99, (2, 7))}
    with mode():
        expected = model(**inputs)[0]
        with SimulatedCuda() as world:
            world.adopt(model)
            actual = model(**world.wrap(inputs))[0]
    assert actual.is_cuda
    assert_same(actual, expected)


def test_text_is_generated_as_on_the_cpu():
    torch.manual_seed(0)
    model, ids = llama(), torch.randint(0, 99, (1, 5))
    expected = model.generate(ids, max_new_tokens=4, do_sample=False)
    with SimulatedCuda() as world:
        world.adopt(model.generate)
        actual = model.generate(world.wrap(ids), max_new_tokens=4, do_sample=False)
    assert_same(actual, expected)


def test_a_large_model_without_weights_runs_in_little_memory_and_time():
    resource = pytest.importorskip("resource")
    start, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.device("meta"):
        model = llama(
            hidden_size=3072,
            intermediate_size=8192,
            num_hidden_layers=28,
            num_attention_heads=24,
            num_key_value_heads=8,
            vocab_size=128256,
        )
    assert sum(p.numel() for p in model.parameters()) > 3.5e9
    with SimulatedCuda() as world, torch.inference_mode():
        world.adopt(model)
        logits = model(world.wrap(torch.arange(16)[None])).logits
    assert logits.shape == (1, 16, 128256) and logits.is_cuda
    assert time.perf_counter() - start < 60
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert kibibytes < 4 << 20


# Nothing stays behind


def global_state() -> dict[Any, Any]:
    owners = (
        torch,
        torch._C,
        torch.random,
        torch.cuda,
        torch.cuda.graphs,
        torch.cuda.memory,
        torch.cuda.nvtx,
        torch.cuda.random,
        torch.cuda.Stream,
        torch.cuda.Event,
        torch.cuda.CUDAGraph,
        torch.cuda.graph,
        torch.accelerator,
        torch.nn.functional,
    )
    state: dict[Any, Any] = {
        # Modules appear there when they are first imported.
        o.__name__: {k: v for k, v in vars(o).items() if not isinstance(v, types.ModuleType)}
        for o in owners
    }
    state["lift"] = torch._C._only_lift_cpu_tensors()
    state["modes"] = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    state["fake"] = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return state


@pytest.mark.parametrize("fails", [False, True])
def test_no_global_state_is_left_behind(fails):
    before = global_state()
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), SimulatedCuda():
        assert global_state() != before
        torch.cuda.Stream().synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            if fails:
                raise ZeroDivisionError
    with listening(Seen()):
        pass
    assert global_state() == before


def test_another_thread_is_on_the_machine_as_it_is():
    answers = []

    def other() -> None:
        answers.append(torch.cuda.is_available())
        answers.append(torch.nn.functional.relu(torch.ones(1)).device.type)
        answers.append(isinstance(torch.Generator(), torch.Generator))
        torch.manual_seed(0)

    before, seen = torch.cuda.is_available(), Seen()
    with SimulatedCuda(seen):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert torch.cuda.is_available()
    assert answers == [before, "cpu", True] and seen == []


def test_the_first_to_pretend_may_be_a_thread_that_ends():
    code = """
import threading, torch
from gfxgraph.simulate.world import SimulatedCuda

def pretend():
    with SimulatedCuda():
        x = torch.ones(3).to(torch.device("cuda"))
        devices.append(str((x + torch.ones(3, device="cuda")).device))

devices = []
for _ in range(3):
    thread = threading.Thread(target=pretend)
    thread.start()
    thread.join()
pretend()
print(devices)
"""
    assert printed(code) == str(["cuda:0"] * 4)


def test_two_threads_can_pretend_at_the_same_time():
    before, barrier, results = global_state(), threading.Barrier(2, timeout=30), []

    def pretend(value: float) -> None:
        with SimulatedCuda() as world:
            barrier.wait()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                barrier.wait()
                results.append(world.current_stream is side)
                results.append(torch.full((2,), value, device="cuda").sum().item() == 2 * value)
                barrier.wait()

    on_threads(pretend, (1.0, 2.0))
    assert results == [True] * 4 and global_state() == before


def test_pretending_twice_on_one_thread_is_refused(world):
    with pytest.raises(DeviceError, match="already entered on this thread"), SimulatedCuda():
        pass
    assert torch.zeros(1, device="cuda").is_cuda


def test_it_can_be_entered_again():
    world = SimulatedCuda()
    for _ in range(2):
        with world:
            assert torch.zeros(1, device="cuda").is_cuda


def test_modes_entered_earlier_or_later_see_the_operations():
    with Operations() as outer, SimulatedCuda(), Operations() as inner:
        torch.zeros(2, device="cuda").add_(1)
    assert outer.names == inner.names == ["zeros", "add_"]


# Listening without pretending


def test_listening_tells_and_calls_the_original():
    seen = Seen()
    with listening(seen):
        torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(2), expected)
    assert seen == [("seed", "torch.manual_seed()", (5,))]


def test_what_the_observer_drops_is_not_called():
    before = torch.get_rng_state()
    with listening(lambda kind, what, detail: True):
        torch.manual_seed(5)
        assert torch.cuda.synchronize() is None  # would fail with no device
    assert torch.equal(torch.get_rng_state(), before)


def test_listening_can_say_that_it_captures():
    with listening(Seen(), answer_capturing=True):
        assert torch.cuda.is_current_stream_capturing() and is_current_stream_capturing()
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(_is_capturing()))
        thread.start()
        thread.join()
    assert answers == [False]


def _is_capturing() -> bool:
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # a CPU build
        return False
