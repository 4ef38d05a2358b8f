"""The emulated device shows on any machine what a CUDA graph does and refuses on a GPU."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gfxgraph.device import generator_state
from gfxgraph.device.emulated import EmulatedDevice, EmulatedGraph
from gfxgraph.errors import ArgumentError, CaptureError, CaptureForbidden, DeviceError
from tests.helpers.threads import on_threads

DEVICE = EmulatedDevice()


def captured(function: Callable[..., Any], *args: Any, pool: Any = None) -> tuple[Any, Any]:
    graph = EmulatedGraph()
    graph.capture_begin(pool=pool)
    try:
        result = function(*args)
    except BaseException:
        graph.reset()
        raise
    graph.capture_end()
    return graph, result


def assert_same(actual: Any, expected: Any, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@contextmanager
def garbage_collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# What a graph is


@pytest.mark.parametrize(
    ("dtype", "poison"),
    [
        (torch.float32, float("nan")),
        (torch.bfloat16, float("nan")),
        (torch.float8_e4m3fn, float("nan")),
        (torch.complex64, complex("nan+nanj")),
        (torch.int64, torch.iinfo(torch.int64).min),
        (torch.int8, -128),
        (torch.uint8, 255),
        (torch.bool, True),
    ],
)
def test_outputs_are_poison_until_the_first_replay(dtype, poison):
    x = torch.zeros(3)
    graph, y = captured(lambda: x.to(dtype, copy=True))
    assert_same(y.to(torch.complex64), torch.full((3,), poison, dtype=dtype).to(torch.complex64))
    graph.replay()
    assert_same(y.to(torch.complex64), x.to(torch.complex64))


def test_python_does_not_run_again():
    calls = []
    x = torch.ones(2)

    def function():
        calls.append(1)
        return x + len(calls)

    graph, y = captured(function)
    graph.replay()
    graph.replay()
    assert len(calls) == 1
    assert_same(y, torch.full((2,), 2.0))


def test_inputs_and_outputs_keep_their_addresses():
    x = torch.randn(4, 4)
    graph, y = captured(lambda: x @ x)
    address = y.data_ptr()
    for _ in range(3):
        x.copy_(torch.randn(4, 4))
        graph.replay()
        assert_same(y, x @ x)
    assert y.data_ptr() == address


def test_writes_to_outside_tensors_happen_on_replay_only():
    total = torch.zeros(3)
    x = torch.ones(3)
    graph, _ = captured(lambda: total.add_(x))
    assert_same(total, torch.zeros(3))
    graph.replay()
    graph.replay()
    assert_same(total, torch.full((3,), 2.0))


def test_an_in_place_operation_returns_its_argument():
    x = torch.zeros(3)
    _, y = captured(lambda: x.add_(1))
    assert y is x


def test_a_graph_reads_the_address_not_the_name():
    weight = nn.Parameter(torch.ones(3))
    graph, y = captured(lambda: weight * 2)
    old = weight.data
    weight.data = torch.zeros(3)
    old.fill_(5)
    graph.replay()
    assert_same(y, torch.full((3,), 10.0))


def test_a_dtype_left_out_is_the_default_of_the_capture():
    graph, y = captured(lambda: torch.full((3,), 0.1).double())
    torch.set_default_dtype(torch.bfloat16)
    try:
        graph.replay()
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(y, torch.full((3,), 0.1, dtype=torch.float32).double())


def test_memory_that_no_operation_writes_keeps_what_the_last_replay_left():
    x = torch.ones(3)

    def function():
        memory = torch.empty(3)
        before = memory + 0
        memory.copy_(x)
        return before, memory

    graph, (before, _memory) = captured(function)
    graph.replay()
    assert before.isnan().all()
    graph.replay()
    assert_same(before, x)


def test_work_of_other_threads_is_not_recorded():
    x = torch.ones(3)
    elsewhere = []

    def function():
        worker = threading.Thread(target=lambda: elsewhere.append((x.add_(1), x.tolist())))
        worker.start()
        worker.join()
        return x * 2

    graph, y = captured(function)
    assert elsewhere[0][1] == [2.0, 2.0, 2.0]
    graph.replay()
    assert_same(x, torch.full((3,), 2.0))
    assert_same(y, torch.full((3,), 4.0))


# Equal to eager: any operations

ROWS, COLUMNS = 4, 6
Values = list[torch.Tensor]


def _in_place(t: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    # A tensor that overlaps itself cannot be written in place, in eager execution either.
    t = _unfolded(t)
    write(t)
    return t


def _unfolded(t: torch.Tensor) -> torch.Tensor:
    return t.clone() if 0 in t.stride() else t


OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, b: a + b.reshape(a.shape),
    "mix": lambda a, b: torch.lerp(a, b.reshape(a.shape), 0.25),
    "matmul": lambda a, b: torch.tanh(a @ a.mT @ a),
    "norm": lambda a, b: F.layer_norm(a, a.shape[-1:]),
    "softmax": lambda a, b: a.softmax(-1),
    "sort": lambda a, b: a.sort(dim=0).values,
    "gather": lambda a, b: a.gather(1, b.reshape(a.shape).argsort(1)),
    "mask": lambda a, b: torch.where(b.reshape(a.shape) > 0, a, 0.5),
    "cat": lambda a, b: torch.cat([a[2:] * 2, a[:2]]),
    "double": lambda a, b: a.double().sin().float(),
    "complex": lambda a, b: (
        torch.view_as_complex(a.reshape(-1, 2)).conj().imag.repeat(2).view(4, 6)
    ),
    # MKL as torch 2.8 has it takes no tensor that overlaps itself, in eager execution either.
    "spectrum": lambda a, b: torch.fft.irfft(torch.fft.rfft(_unfolded(a)), n=a.shape[-1]),
    "view": lambda a, b: a.t(),
    "reshape": lambda a, b: a.reshape(COLUMNS, ROWS),
    "expand": lambda a, b: a[:1].expand(a.shape),
    "strided": lambda a, b: a.contiguous().as_strided((ROWS, COLUMNS), (1, ROWS)),
    "foreach": lambda a, b: torch._foreach_tanh([a, b])[0],
    "out": lambda a, b: torch.add(a, 1.0, out=torch.empty(0)),
    "add_": lambda a, b: _in_place(a, lambda t: t.add_(b.sum() / 100)),
    "copy_": lambda a, b: _in_place(a, lambda t: t.copy_(b.reshape(t.shape).clone())),
    "set row": lambda a, b: _in_place(a, lambda t: t[1:3].mul_(0.5)),
    "set masked": lambda a, b: _in_place(a, lambda t: t.__setitem__(t > 1, 0.25)),
    "foreach_": lambda a, b: _in_place(a, lambda t: torch._foreach_mul_([t], 0.5)),
    "dropout": lambda a, b: F.dropout(a, 0.5),
    "noise": lambda a, b: a + torch.randn_like(b).reshape(a.shape),
    "uniform_": lambda a, b: _in_place(a, lambda t: t.uniform_(-1, 1)),
}
Program = list[tuple[str, int, int]]


def run_program(program: Program, inputs: Values) -> Values:
    """Apply ``program``; only the last few values stay alive, so that their memory is reused."""
    values = list(inputs)
    for name, first, second in program:
        values.append(OPERATIONS[name](values[first % len(values)], values[second % len(values)]))
        del values[:-4]
    return values


@pytest.mark.filterwarnings("ignore:The graph is empty")
@settings(max_examples=60, deadline=None)
@given(
    program=st.lists(
        st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 3), st.integers(0, 3)),
        min_size=1,
        max_size=15,
    ),
    mode=st.sampled_from([torch.no_grad, torch.inference_mode, torch.enable_grad]),
    seed=st.integers(0, 1000),
)
def test_any_sequence_of_operations_replays_as_eager(program, mode, seed):
    torch.manual_seed(seed)
    inputs = [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)]
    with mode():
        graph, outputs = captured(run_program, program, inputs)
    for replay in range(3):
        fresh = [torch.randn(ROWS, COLUMNS) for _ in inputs]
        for old, new in zip(inputs, fresh, strict=True):
            old.copy_(new)
        torch.manual_seed(seed + replay)
        expected = run_program(program, fresh)
        torch.manual_seed(seed + replay)
        graph.replay()
        assert_same([t.detach() for t in outputs], expected, 1e-5)
        assert_same(inputs, fresh, 1e-5)


def test_views_share_memory_with_what_they_view():
    x = torch.zeros(4, 3)

    def function():
        y = x + 0
        row = y[1]
        row.add_(7)
        return y, row, y.mT

    graph, (y, row, transposed) = captured(function)
    graph.replay()
    assert row.data_ptr() == y[1].data_ptr()
    assert_same(y[1], torch.full((3,), 7.0))
    assert_same(transposed, y.mT)


def test_conjugate_and_negative_views_keep_their_meaning():
    x = torch.tensor([1 + 2j, 3 - 4j])

    def function():
        y = (x * 1).conj()
        return y, y @ x, y.imag

    graph, outputs = captured(function)
    assert outputs[0].is_conj() and outputs[2].is_neg()
    graph.replay()
    assert_same(list(outputs), list(function()))


def test_an_out_tensor_of_another_size_is_resized():
    x, out = torch.ones(2, 3), torch.empty(0)
    graph, y = captured(lambda: torch.add(x, x, out=out))
    assert y is out and out.shape == (2, 3)
    graph.replay()
    assert_same(out, torch.full((2, 3), 2.0))


def test_resizing_a_tensor_keeps_it_writable():
    def function():
        return torch.empty(0).resize_(2, 3).fill_(3.0), torch.ones(8).resize_(4)

    graph, (grown, shrunk) = captured(function)
    graph.replay()
    assert_same(grown, torch.full((2, 3), 3.0))
    assert_same(shrunk, torch.ones(4))


def test_zero_sized_tensors_are_tensors():
    x = torch.empty(0, 3)
    graph, (y, total) = captured(lambda: (x * 2, x.sum()))
    graph.replay()
    assert y.shape == (0, 3)
    assert_same(total, torch.tensor(0.0))


def test_nn_batch_norm_updates_its_statistics_on_replay_only():
    module, twin = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    x = torch.randn(5, 3)
    graph, y = captured(module, x)
    assert_same(module.state_dict(), twin.state_dict())
    for _ in range(2):
        x.copy_(torch.randn(5, 3))
        graph.replay()
        assert_same(y, twin(x))
    assert_same(module.state_dict(), twin.state_dict())


# Equal to eager: models


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(self.layers(x), scale_factor=2.0, mode="bilinear").mean((2, 3))


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


MODELS = {
    "convolutions": (Convolutions, (2, 3, 8, 8)),
    "attention": (Attention, (2, 2, 5, 8)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "LSTM": (lambda: nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True), (2, 5, 8)),
    "GRU": (lambda: nn.GRU(8, 6, batch_first=True), (2, 5, 8)),
}
MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autograd": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_replays_as_eager(name, mode):
    build, shape = MODELS[name]
    model = build().eval()
    x = torch.randn(shape)
    tolerance = 1e-2 if mode == "autocast" else 1e-5
    with MODES[mode]():
        graph, output = captured(model, x)
    for _ in range(2):
        x.copy_(torch.randn(shape))
        graph.replay()
        with MODES[mode]():
            assert_same(_tensors(output), _tensors(model(x)), tolerance)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t.detach() for t in torch.utils._pytree.tree_leaves(tree)]


def test_a_transformers_model_replays_as_eager():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        # The eager one makes a host constant in some versions, and then fails on a GPU too.
        attn_implementation="sdpa",
    )
    model = transformers.BertModel(config).eval()
    ids, mask = torch.randint(50, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    with torch.inference_mode():
        graph, output = captured(lambda: model(input_ids=ids, attention_mask=mask))
        for padding in (0, 3):
            ids.copy_(torch.randint(50, (2, 7)))
            mask[1, 7 - padding :] = 0
            graph.replay()
            expected = model(input_ids=ids, attention_mask=mask)
            assert_same(output.pooler_output, expected.pooler_output, 1e-5)


def test_a_training_step_replays_as_eager():
    def build():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    (model, optimizer), (twin, twin_optimizer) = build(), build()
    x = torch.randn(5, 4)
    # The momentum buffers have to exist before the capture.
    assert_same(step(model, optimizer, x), step(twin, twin_optimizer, x))
    graph, loss = captured(step, model, optimizer, x)
    for _ in range(3):
        x.copy_(torch.randn(5, 4))
        graph.replay()
        assert_same(loss.detach(), step(twin, twin_optimizer, x).detach(), 1e-5)
    assert_same(model.state_dict(), twin.state_dict(), 1e-5)


@pytest.mark.parametrize(
    "around",
    [nullcontext, torch.no_grad, torch.enable_grad, torch.inference_mode, MODES["autocast"]],
)
@pytest.mark.parametrize("inside", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_replay_does_not_depend_on_the_mode_around_it(inside, around):
    weight = nn.Parameter(torch.randn(16, 16))
    counter = torch.zeros(1)
    with inside():
        graph, y = captured(lambda: (counter.add_(1), F.linear(weight, weight))[1])
    with around():
        graph.replay()
    assert_same(y.detach(), (weight @ weight.T).detach(), 1e-5)
    assert_same(counter, torch.ones(1))


def test_a_replay_is_invisible_to_modes():
    class Seen(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Seen.operations += 1
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    graph, y = captured(lambda: x * 3)
    with Seen():
        graph.replay()
    assert Seen.operations == 0
    assert_same(y, torch.full((2,), 3.0))


# Random numbers


def test_a_capture_consumes_no_random_numbers():
    before = torch.get_rng_state()
    captured(lambda: (torch.randn(3), F.dropout(torch.ones(9)), torch.randperm(5)))
    assert torch.equal(torch.get_rng_state(), before)


def test_each_replay_draws_what_eager_would_draw():
    def function():
        return (
            torch.randn(3),
            torch.rand(2, dtype=torch.float64),
            torch.bernoulli(torch.ones(4) / 2),
        )

    graph, outputs = captured(function)
    torch.manual_seed(7)
    expected = [function() for _ in range(3)]
    torch.manual_seed(7)
    for values in expected:
        graph.replay()
        assert_same(list(outputs), list(values))
    assert not torch.equal(expected[0][0], expected[1][0])


def test_a_generator_of_its_own_has_to_be_registered():
    generator = torch.Generator().manual_seed(1)

    def draw():
        return torch.randn(3, generator=generator)

    with pytest.raises(CaptureForbidden, match="register_generator_state"):
        captured(draw)
    graph = EmulatedGraph()
    graph.register_generator_state(generator)
    graph.capture_begin()
    y = draw()
    graph.capture_end()
    graph.replay()
    assert_same(y, torch.randn(3, generator=torch.Generator().manual_seed(1)))


# What is refused

SQUARE = torch.eye(3)
SPARSE = SQUARE.to_sparse()
VECTOR = torch.arange(3.0)
COUNTS = torch.tensor([1, 2, 0])


def _set_masked(value: Any) -> None:
    VECTOR[VECTOR > 1] = value


def _from_numpy() -> torch.Tensor:
    numpy = pytest.importorskip("numpy")
    return torch.from_numpy(numpy.ones(3))


def _asarray() -> Any:
    return pytest.importorskip("numpy").asarray(VECTOR)


class Subclass(torch.Tensor):
    pass


HOST_READS: dict[str, Callable[[], Any]] = {
    "item": lambda: VECTOR.sum().item(),
    "bool": lambda: bool(VECTOR.sum()),
    "float": lambda: float(VECTOR[0]),
    "int": lambda: int(COUNTS[0]),
    "index": lambda: range(COUNTS[0]),
    "branch": lambda: 1 if VECTOR.sum() > 0 else 2,
    "tolist": lambda: VECTOR.tolist(),
    "numpy": lambda: VECTOR.numpy(),
    "asarray": _asarray,
    "cpu": lambda: VECTOR.cpu(),
    "repr": lambda: repr(VECTOR),
    "print": lambda: print(VECTOR),
    "format": lambda: f"{VECTOR[0]:.2f}",
    "contains": lambda: 2.0 in VECTOR,
    "equal": lambda: torch.equal(VECTOR, VECTOR),
    "allclose": lambda: torch.allclose(VECTOR, VECTOR),
    "is_nonzero": lambda: torch.is_nonzero(VECTOR[0]),
    "into a host tensor": lambda: torch.tensor(0.0).copy_(VECTOR[0]),
}
DATA_DEPENDENT_SHAPES: dict[str, Callable[[], Any]] = {
    "nonzero": lambda: VECTOR.nonzero(),
    "where": lambda: torch.where(VECTOR > 0),
    "unique": lambda: VECTOR.unique(),
    "masked_select": lambda: VECTOR.masked_select(VECTOR > 0),
    "mask index": lambda: VECTOR[VECTOR > 0],
    "masked assignment of device data": lambda: _set_masked(VECTOR[0]),
    "repeat_interleave": lambda: VECTOR.repeat_interleave(COUNTS),
    "lstsq": lambda: torch.linalg.lstsq(SQUARE, SQUARE),
    "bincount": lambda: torch.bincount(COUNTS),
    "ctc_loss": lambda: F.ctc_loss(
        torch.zeros(5, 2, 3), torch.ones(2, 3).long(), COUNTS[:2] * 0 + 5, COUNTS[:2] * 0 + 3
    ),
}
HOST_COPIES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.tensor([1.0, 2.0]),
    "tensor to device": lambda: torch.tensor([1.0, 2.0], device=VECTOR.device),
    "scalar to device": lambda: torch.tensor(1.0, device=VECTOR.device),
    "scalar moved": lambda: torch.tensor(1.0).to(VECTOR.device),
    "scalar copied": lambda: VECTOR[0].copy_(torch.tensor(1.0)),
    "scalar in where": lambda: torch.where(VECTOR > 1, VECTOR, torch.tensor(0.0)),
    # From 2.15 on torch passes the number to a kernel that fills.
    **(
        {"scalar to one element": lambda: VECTOR.clone().__setitem__(0, 4.0)}
        if torch.__version__ < "2.15"
        else {}
    ),
    "host vector": lambda: VECTOR + torch.tensor(1.0).expand(3),
    "as_tensor": lambda: torch.as_tensor([1.0], device="cpu"),
    "asarray": lambda: torch.asarray([1.0]),
    "new_tensor": lambda: VECTOR.new_tensor(2.0),
    "from_numpy": _from_numpy,
    "list index": lambda: VECTOR[[0, 2]],
}
HIDDEN_SYNCHRONISATIONS: dict[str, Callable[[], Any]] = {
    "inv": lambda: torch.linalg.inv(SQUARE),
    "solve": lambda: torch.linalg.solve(SQUARE, SQUARE),
    "svd": lambda: torch.linalg.svd(SQUARE),
    "eigh": lambda: torch.linalg.eigh(SQUARE),
    "cholesky": lambda: torch.linalg.cholesky(SQUARE),
    "eig": lambda: torch.linalg.eig(SQUARE),
    "pinv": lambda: torch.linalg.pinv(SQUARE),
    "matrix_exp": lambda: torch.linalg.matrix_exp(SQUARE),
    "normal": lambda: torch.normal(VECTOR, VECTOR),
    "histc": lambda: torch.histc(VECTOR),
    "to_sparse": lambda: SQUARE.to_sparse(),
}
SYNCHRONISATIONS: dict[str, Callable[[], Any]] = {
    "cuda": lambda: torch.cuda.synchronize(),
    "cpu": lambda: torch.cpu.synchronize(),
    "accelerator": lambda: torch.accelerator.synchronize(),
    "device": lambda: DEVICE.synchronize(),
}
SEEDINGS: dict[str, Callable[[], Any]] = {
    "manual_seed": lambda: torch.manual_seed(1),
    "random.manual_seed": lambda: torch.random.manual_seed(1),
    "seed": lambda: torch.seed(),
    "set_rng_state": lambda: torch.set_rng_state(torch.get_rng_state()),
    "cuda": lambda: torch.cuda.manual_seed_all(1),
}
TENSOR_KINDS: dict[str, Callable[[], Any]] = {
    "Subclass": lambda: VECTOR.as_subclass(Subclass) + 1,
    "torch.sparse_coo": lambda: SPARSE + SPARSE,
    "nested": lambda: torch.nested.nested_tensor([VECTOR, VECTOR]),
    "device meta": lambda: torch.empty(3, device="meta") + 1,
}
REFUSED = [
    *(("on the host", name, call) for name, call in HOST_READS.items()),
    *(("shape of its result depends", name, call) for name, call in DATA_DEPENDENT_SHAPES.items()),
    *(("copies host data", name, call) for name, call in HOST_COPIES.items()),
    *(
        ("waits for the device inside", name, call)
        for name, call in HIDDEN_SYNCHRONISATIONS.items()
    ),
    *(("waits for the device", name, call) for name, call in SYNCHRONISATIONS.items()),
    *(("state of the device's generator", name, call) for name, call in SEEDINGS.items()),
    *((name, name, call) for name, call in TENSOR_KINDS.items()),
]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("reason", "call"),
    [pytest.param(reason, call, id=f"{reason}: {name}") for reason, name, call in REFUSED],
)
def test_what_cuda_refuses_is_refused_with_the_reason(reason, call):
    with pytest.raises(CaptureForbidden, match=reason):
        captured(call)
    graph, y = captured(lambda: VECTOR + 1)
    graph.replay()
    assert_same(y, VECTOR + 1)


def test_an_error_says_what_why_and_what_to_do():
    with pytest.raises(CaptureForbidden) as caught:
        captured(HOST_READS["item"])
    assert str(caught.value) == (
        "Tensor.item(), as in bool(), int(), float() and `if tensor:`, is not permitted while a "
        "graph is being captured: it reads device data on the host, which has to wait for the "
        "device. Keep the value in a tensor (torch.where, a mask), or read it outside of the "
        "capture."
    )


def test_a_refusal_is_of_the_class_that_a_gpu_raises():
    with pytest.raises(getattr(torch, "AcceleratorError", RuntimeError)):
        captured(HOST_READS["item"])


def test_a_host_scalar_is_a_constant():
    x = torch.ones(3)

    def function():
        scale = torch.tensor(2.0) + 1
        y = x * scale + float(scale)
        y[y > 8] = 0.0
        y[1:] = 4.0
        return y

    graph, y = captured(function)
    for value in (1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert_same(y, function())


def test_a_host_scalar_is_passed_by_value():
    x = torch.ones(3)

    def function():
        time, steps = torch.tensor(0.0), []
        while time < 1:
            steps.append(x + time)
            time += 0.5
        return steps

    graph, steps = captured(function)
    graph.replay()
    assert_same(steps, [x, x + 0.5])


def _assigned(index: Any, value: Any) -> torch.Tensor:
    tensor = SQUARE.clone()
    tensor[index] = value
    return tensor


PERMITTED: dict[str, Callable[[], Any]] = {
    "inv_ex": lambda: torch.linalg.inv_ex(SQUARE).inverse,
    "cholesky_ex": lambda: torch.linalg.cholesky_ex(SQUARE).L,
    "qr": lambda: torch.linalg.qr(SQUARE).R,
    "det": lambda: torch.linalg.det(SQUARE),
    "histc with limits": lambda: torch.histc(VECTOR, 4, 0.0, 4.0),
    "one_hot with classes": lambda: F.one_hot(COUNTS, 5),
    "nonzero_static": lambda: VECTOR.nonzero_static(size=2),
    "repeat_interleave with size": lambda: VECTOR.repeat_interleave(COUNTS, output_size=3),
    "multinomial": lambda: torch.multinomial(VECTOR, 2),
    "masked_scatter": lambda: VECTOR.masked_scatter(VECTOR > 0, VECTOR),
    "masked assignment of a number": lambda: _assigned(SQUARE > 0, 3.0),
    "masked assignment of a host scalar": lambda: _assigned(SQUARE > 0, torch.tensor(3.0)),
    "assignment of a number to a row": lambda: _assigned(1, 3.0),
    "assignment at device indices": lambda: _assigned(COUNTS, VECTOR),
    "fill with a host scalar": lambda: VECTOR.clone().fill_(torch.tensor(2.0)),
    "index by a host scalar": lambda: VECTOR[torch.tensor(1)] + 0,
    "no data": lambda: torch.tensor([]).sum() + VECTOR,
}


@pytest.mark.parametrize("name", PERMITTED)
def test_what_cuda_permits_is_permitted(name):
    graph, y = captured(PERMITTED[name])
    torch.manual_seed(3)
    graph.replay()
    torch.manual_seed(3)
    assert_same(y, PERMITTED[name]())


def test_copying_a_device_tensor_through_a_constructor_is_permitted():
    x = torch.ones(3)
    graph, outputs = captured(
        lambda: (torch.as_tensor(x, dtype=torch.float64), torch.asarray(x) + 1, x.to(x.device) * 2)
    )
    graph.replay()
    assert_same(list(outputs), [x.double(), x + 1, x * 2])


def test_a_swallowed_error_invalidates_the_capture():
    graph = EmulatedGraph()
    x = torch.ones(3)
    graph.capture_begin()
    with pytest.raises(CaptureForbidden, match="item"):
        x.sum().item()
    for later in (lambda: x + 1, lambda: x.view(3, 1), lambda: x.tolist()):
        with pytest.raises(CaptureForbidden, match=r"previous error during capture.*item"):
            later()
    with pytest.raises(CaptureForbidden, match="previous error during capture") as caught:
        graph.capture_end()
    assert "item" in str(caught.value.__cause__)
    assert not DEVICE.is_capturing()
    assert x.sum().item() == 3
    for use in (graph.replay, graph.pool):
        with pytest.raises(CaptureError):
            use()
    again, y = captured(lambda: x + 1)
    again.replay()
    assert_same(y, x + 1)


def test_an_ordinary_error_does_not_invalidate_the_capture():
    graph = EmulatedGraph()
    x = torch.ones(3)
    graph.capture_begin()
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        x + torch.zeros(2)
    assert not isinstance(caught.value, CaptureForbidden)
    y = x + 1
    graph.capture_end()
    graph.replay()
    assert_same(y, x + 1)


# Operators of others


@pytest.fixture
def library():
    library = torch.library.Library("emulated_test", "FRAGMENT")
    yield library
    library._destroy()


def test_an_operator_without_a_fake_implementation_is_tried_on_zeros(library):
    seen = []
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: (seen.append(x.tolist()), x * 2)[1], "CPU")
    x = torch.ones(2)
    graph, y = captured(torch.ops.emulated_test.double, x)
    assert seen == [[0.0, 0.0]]
    graph.replay()
    assert_same(y, x * 2)


def test_an_operator_that_fails_on_zeros_too_is_refused_by_name(library):
    def positive_only(x):
        if not (x > 0).all():
            raise ValueError("not positive")
        return x.log()

    library.define("positive_only(Tensor x) -> Tensor")
    library.impl("positive_only", positive_only, "CPU")
    with pytest.raises(CaptureForbidden, match=r"emulated_test\.positive_only.*not positive"):
        captured(torch.ops.emulated_test.positive_only, torch.ones(2))


def test_an_operator_without_tensors_runs_at_once():
    x = torch.ones(2)

    def function():
        with torch.profiler.record_function("here"):
            return x + 1

    graph, y = captured(function)
    graph.replay()
    assert_same(y, x + 1)


def test_a_compiled_function_is_recorded_operation_by_operation():
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    x = torch.ones(3)
    compiled(x)
    graph, y = captured(compiled, x)
    x.fill_(2)
    graph.replay()
    assert_same(y, x.sin() + 1)


# Memory


def test_a_long_chain_of_operations_reuses_its_blocks():
    handle = DEVICE.pool_handle()

    def chain(x):
        for _ in range(100):
            x = x + 1
        return x

    x = torch.zeros(1000)
    graph, y = captured(chain, x, pool=handle)
    assert DEVICE.pool_bytes(handle) <= 3 * 4096
    graph.replay()
    assert_same(y, torch.full((1000,), 100.0))


def test_a_block_is_held_by_any_view_of_it():
    handle = DEVICE.pool_handle()
    x = torch.zeros(1000)

    def function():
        part = (x + 1)[10:12]
        others = [x + 2, x + 3]
        return part, others

    graph, (part, others) = captured(function, pool=handle)
    assert DEVICE.pool_bytes(handle) == 3 * 4096
    graph.replay()
    assert_same(part, torch.ones(2))
    assert_same(others[1], x + 3)


def test_graphs_of_one_pool_overwrite_each_others_intermediates_and_dropped_outputs():
    handle = DEVICE.pool_handle()
    x = torch.zeros(100)
    first, (held, dropped) = captured(lambda: (x + 1, x + 2), pool=handle)
    address = dropped.data_ptr()
    del dropped
    bytes_before = DEVICE.pool_bytes(handle)
    second, other = captured(lambda: x + 3, pool=handle)
    assert other.data_ptr() == address
    assert DEVICE.pool_bytes(handle) == bytes_before
    second.replay()
    first.replay()
    assert_same(held, torch.full((100,), 1.0))
    assert_same(other, torch.full((100,), 2.0))


def test_a_graph_that_reads_anothers_dropped_output_reads_what_is_there_now():
    handle = DEVICE.pool_handle()
    x = torch.zeros(100)
    first, y = captured(lambda: x + 1, pool=handle)
    second, z = captured(torch.mul, y, 10, pool=handle)
    del y
    third, w = captured(lambda: x + 7, pool=handle)
    for graph in (first, third, second):
        graph.replay()
    assert_same(z, torch.full((100,), 70.0))
    assert_same(w, torch.full((100,), 7.0))


def test_graphs_with_pools_of_their_own_do_not_share():
    x = torch.zeros(100)
    first, y = captured(lambda: (x + 1) * 2)
    second, z = captured(lambda: (x + 5) * 2)
    assert first.pool() != second.pool()
    first.replay()
    second.replay()
    assert_same(y, torch.full((100,), 2.0))
    assert_same(z, torch.full((100,), 10.0))


def test_dropping_a_graph_frees_its_memory_at_once_but_not_a_held_output():
    handle = DEVICE.pool_handle()
    x = torch.zeros(100)
    with garbage_collector_off():
        graph, y = captured(lambda: x + 1, pool=handle)
        graph.replay()
        alive = weakref.ref(graph)
        del graph
        assert alive() is None
        assert DEVICE.pool_bytes(handle) == 0
        assert_same(y, torch.ones(100))


def test_a_graph_lets_go_of_outside_tensors_when_dropped():
    with garbage_collector_off():
        x = torch.zeros(100)
        storage = weakref.ref(x.untyped_storage())
        graph, _ = captured(lambda x: x + 1, x)
        del x
        assert storage() is not None
        del graph
        assert storage() is None


def test_reset_frees_and_lets_the_graph_capture_again():
    handle = DEVICE.pool_handle()
    x = torch.zeros(100)
    graph, _ = captured(lambda: x + 1, pool=handle)
    graph.reset()
    assert DEVICE.pool_bytes(handle) == 0
    with pytest.raises(CaptureError):
        graph.replay()
    graph.capture_begin()
    y = x + 2
    graph.capture_end()
    graph.replay()
    assert_same(y, x + 2)


def test_a_failed_capture_frees_its_memory_at_once():
    handle = DEVICE.pool_handle()
    x = torch.zeros(100)
    with garbage_collector_off():
        with pytest.raises(CaptureForbidden):
            captured(lambda: (x + 1).sum().item(), pool=handle)
        assert DEVICE.pool_bytes(handle) == 0


def test_a_pool_is_aligned_and_counts_its_blocks():
    handle = DEVICE.pool_handle()
    graph, outputs = captured(lambda: [torch.zeros(n) for n in (1, 128, 129)], pool=handle)
    assert graph.pool() == handle
    assert DEVICE.pool_bytes(handle) == 512 + 512 + 1024
    assert all(t.data_ptr() % 64 == 0 for t in outputs)


# The process around a capture


def is_capturing() -> Any:
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError as error:  # how a CPU build of torch answers
        return str(error)


def in_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_only_the_capturing_thread_hears_that_it_captures():
    before = is_capturing()
    assert before is not True
    graph = EmulatedGraph()
    graph.capture_begin()
    inside = is_capturing(), DEVICE.is_capturing()
    elsewhere = in_thread(is_capturing), in_thread(DEVICE.is_capturing)
    graph.reset()
    assert inside == (True, True)
    assert elsewhere == (before, False)
    assert (is_capturing(), DEVICE.is_capturing()) == (before, False)


def test_torchs_functions_are_put_back_after_the_last_capture():
    def functions():
        return [
            torch.manual_seed,
            torch.set_rng_state,
            torch.cpu.synchronize,
            torch.cuda.synchronize,
            torch.cuda.Stream.synchronize,
            torch.cuda.graphs._cuda_isCurrentStreamCapturing,
        ]

    before = functions()
    graph = EmulatedGraph()
    graph.capture_begin()
    in_thread(lambda: captured(lambda: torch.ones(2)))
    during = functions()
    assert in_thread(lambda: torch.manual_seed(5).initial_seed()) == 5
    graph.reset()
    assert all(a is not b for a, b in zip(before, during, strict=True))
    assert all(a is b for a, b in zip(before, functions(), strict=True))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("ending", ["capture_end", "reset", "dropped"])
def test_an_exception_in_the_region_leaves_the_thread_clean(error, ending):
    graph = EmulatedGraph()
    x = torch.ones(3)
    with pytest.raises(error):
        graph.capture_begin()
        try:
            x + 1
            raise error
        finally:
            if ending == "dropped":
                del graph
            else:
                getattr(graph, ending)()
    assert not DEVICE.is_capturing()
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    again, y = captured(lambda: x + 2)
    again.replay()
    assert_same(y, x + 2)


def test_a_graph_dropped_by_another_thread_leaves_this_one_able_to_capture():
    x = torch.ones(3)
    graphs = [EmulatedGraph()]
    graphs[0].capture_begin()
    in_thread(graphs.clear)
    assert not DEVICE.is_capturing()
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    graph, y = captured(lambda: x + 2)
    graph.replay()
    assert_same(y, x + 2)
    assert torch.overrides._get_current_function_mode() is None


def test_modes_of_others_survive_the_end_of_a_capture_below_them():
    class Functions(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Functions.seen += 1
            return func(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Operations.seen += 1
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    graph = EmulatedGraph()
    graph.capture_begin()
    with Functions(), Operations():
        y = x + 1
        graph.capture_end()
        assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    graph.replay()
    assert_same(y, x + 1)
    # Two additions, and tolist(), which is no operation.
    assert (Functions.seen, Operations.seen) == (3, 2)


def test_captures_that_end_inside_of_calls_leave_no_stack_of_modes():
    """torch takes a mode off for a call, and puts it back after the capture has ended."""
    graphs = [EmulatedGraph()]

    class Cuts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.neg.default:
                graphs[-1].capture_end()
                graphs.append(EmulatedGraph())
                graphs[-1].capture_begin()
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    graphs[-1].capture_begin()
    with Cuts():
        for _ in range(10):
            y = torch.neg(x + 1)
        depth = torch._C._len_torch_function_stack()
    graphs[-1].capture_end()
    assert depth <= 3
    for graph in graphs:
        graph.replay()
    assert torch.equal(y, torch.full((2,), -2.0))


def test_two_threads_capture_at_once():
    both_capture = threading.Barrier(2, timeout=30)
    results: dict[int, bool] = {}

    def work(number: int) -> None:
        model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6))
        x = torch.randn(4, 6)

        def function():
            both_capture.wait()
            y = model(x) * number
            both_capture.wait()
            return y

        with torch.no_grad():
            graph, y = captured(function)
            expected = []
            for _ in range(20):
                x.copy_(torch.randn(4, 6))
                graph.replay()
                expected.append(torch.equal(y, model(x) * number))
        results[number] = all(expected)

    on_threads(work, (1, 2))
    assert results == {1: True, 2: True}


def test_threads_share_a_pool_without_sharing_what_they_hold():
    handle = DEVICE.pool_handle()
    keep, _ = captured(lambda: torch.zeros(1), pool=handle)
    wrong: list[int] = []

    def work(number: int) -> None:
        x = torch.full((50,), float(number))
        for _ in range(10):
            graph, y = captured(lambda: x + 1, pool=handle)
            graph.replay()
            if not torch.equal(y, x + 1):
                wrong.append(number)

    on_threads(work, range(3))
    assert wrong == []
    keep.reset()


# The surface of torch.cuda.CUDAGraph


def _never_captured() -> EmulatedGraph:
    return EmulatedGraph()


def _captured() -> EmulatedGraph:
    return captured(lambda: torch.ones(2) + 1)[0]


@pytest.mark.parametrize(
    ("make", "use", "error", "message"),
    [
        (_never_captured, lambda g: g.replay(), RuntimeError, "preceding successful capture"),
        (_never_captured, lambda g: g.pool(), RuntimeError, "preceding successful capture"),
        (_never_captured, lambda g: g.instantiate(), RuntimeError, "preceding successful capture"),
        (_never_captured, lambda g: g.debug_dump("x"), RuntimeError, "preceding successful"),
        (_never_captured, lambda g: g.capture_end(), RuntimeError, r"preceding capture_begin"),
        (
            _never_captured,
            lambda g: g.capture_begin(capture_error_mode="strict"),
            RuntimeError,
            "'strict'.*'global', 'thread_local' or 'relaxed'",
        ),
        (_never_captured, lambda g: g.capture_begin(pool="mine"), ArgumentError, "'mine'"),
        (_captured, lambda g: g.capture_begin(), RuntimeError, "already holds a capture"),
        (_captured, lambda g: g.capture_end(), RuntimeError, "preceding capture_begin"),
        (_captured, lambda g: g.instantiate(), RuntimeError, "keep_graph=True"),
        (_captured, lambda g: g.raw_cuda_graph(), DeviceError, "no CUDA graph"),
        (_captured, lambda g: g.raw_cuda_graph_exec(), DeviceError, "no CUDA graph"),
    ],
)
def test_misuse_is_a_clear_error(make, use, error, message):
    graph = make()
    with pytest.raises(error, match=message):
        use(graph)
    assert not DEVICE.is_capturing()


def test_captures_do_not_nest():
    outer, inner, other = EmulatedGraph(), EmulatedGraph(), _captured()
    outer.capture_begin()
    with pytest.raises(CaptureError, match="underway"):
        other.replay()
    for graph in (inner, outer):
        with pytest.raises(CaptureError, match="underway"):
            graph.capture_begin()
    y = torch.ones(2) + 1
    outer.capture_end()
    outer.replay()
    assert_same(y, torch.full((2,), 2.0))


def test_a_capture_ends_on_the_thread_that_began_it():
    graph = EmulatedGraph()
    graph.capture_begin()

    def end():
        with pytest.raises(CaptureError, match="thread that began"):
            graph.capture_end()
        return True

    assert in_thread(end)
    y = torch.ones(2) + 1
    graph.capture_end()
    graph.replay()
    assert_same(y, torch.full((2,), 2.0))


def test_an_empty_graph_warns():
    graph = EmulatedGraph()
    graph.capture_begin()
    with pytest.warns(UserWarning, match="graph is empty"):
        graph.capture_end()
    graph.replay()


def test_a_kept_graph_may_be_instantiated():
    graph = EmulatedGraph(keep_graph=True)
    graph.capture_begin(capture_error_mode="relaxed")
    y = torch.ones(2) + 1
    graph.capture_end()
    graph.instantiate()
    graph.replay()
    assert_same(y, torch.full((2,), 2.0))


def test_a_dump_shows_operations_and_who_reads_whose_result(tmp_path):
    x = torch.ones(2)
    graph = EmulatedGraph()
    graph.enable_debug_mode()
    graph.capture_begin()
    a = x.sin()
    b = x.cos()
    _ = torch.mul(a, b)
    graph.capture_end()
    graph.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph")
    for expected in ("aten.sin", "aten.cos", "aten.mul", "n0 -> n2;", "n1 -> n2;"):
        assert expected in text
    assert "n0 -> n1;" not in text


def test_a_dump_without_debug_mode_warns(tmp_path):
    with pytest.warns(UserWarning, match="enable_debug_mode"):
        _captured().debug_dump(str(tmp_path / "graph.dot"))
    assert not (tmp_path / "graph.dot").exists()


# The device


def test_facts_are_those_of_this_machine():
    facts = DEVICE.facts()
    assert facts.vendor == "emulated"
    assert facts.name and facts.arch
    assert (facts.driver, facts.runtime) == (None, None)
    assert facts.torch == torch.__version__
    assert facts.memory_total >= facts.memory_free > 0


def test_pool_handles_differ_and_an_unused_one_holds_nothing():
    first, second = DEVICE.pool_handle(), DEVICE.pool_handle()
    assert first != second
    assert DEVICE.pool_bytes(first) == 0


def test_the_state_of_the_generator_can_be_put_back():
    generator = DEVICE.default_generator()
    state = generator_state(generator)
    before = torch.rand(3)
    generator.set_state(state)
    assert_same(torch.rand(3), before)


def test_streams_are_tokens_without_effect():
    stream = DEVICE.new_stream()
    assert stream != DEVICE.new_stream()
    with DEVICE.on_stream(stream), DEVICE.set_stream(stream):
        x = torch.ones(2) + 1
    DEVICE.wait_stream_id(0, DEVICE.stream_id())
    DEVICE.synchronize()
    assert DEVICE.current_stream() == 0
    assert x.tolist() == [2.0, 2.0]
