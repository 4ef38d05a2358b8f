"""Functions as people write them, and what a capture of each does, against ``gfxgraph.check``.

``benchmarks.runs.cases`` measures on a GPU what plain ``torch.cuda.graph`` does with each case, and
compares that with what ``gfxgraph.check`` says of it. The verdict ``captures`` must mean that the
capture after the warm-up was right, any other that it failed or was wrong; and where it failed or
was wrong, a hazard has to name the line that is marked here with ``# <-- rule-id``.
"""

from __future__ import annotations

import functools
import inspect
import math
import random
import re
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

MARK = re.compile(r"#\s*<--\s*([a-z|-]+)")

Inputs = Callable[[int], tuple[Any, ...]]
Maker = Callable[[torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A function as people write it.

    Attributes:
        name: of the case.
        build: gives, for a device, the function, a function that gives its arguments for a seed,
            and, where there is some, one that gives its Python state.
        source: the object that has the marked lines.
        strict: why ``check`` may say less than ``captures`` although a plain capture is right.
    """

    name: str
    build: Callable[[str], tuple[Any, ...]]
    source: Any
    strict: str = ""

    def marks(self) -> dict[int, set[str]]:
        """The rules that are expected, by line."""
        lines, first = inspect.getsourcelines(self.source)
        found = ((first + n, MARK.search(line)) for n, line in enumerate(lines))
        return {n: set(match[1].split("|")) for n, match in found if match}


CASES: dict[str, Case] = {}


def inputs(device: str, *makers: Maker | Any) -> Inputs:
    """The arguments for a seed: each maker is given a generator, anything else is passed on."""

    def arguments(seed: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(m(generator).to(device) if callable(m) else m for m in makers)

    return arguments


def normal(*shape: int) -> Maker:
    return lambda g: torch.randn(shape, generator=g)


def integers(high: int, *shape: int) -> Maker:
    return lambda g: torch.randint(high, shape, generator=g)


def positive_definite(n: int) -> Maker:
    def make(g: torch.Generator) -> torch.Tensor:
        a = torch.randn(n, n, generator=g)
        return a @ a.mT + n * torch.eye(n)

    return make


X = normal(4, 8)


def function(*makers: Maker | Any, strict: str = "") -> Callable[[Any], Any]:
    """Register a function that needs nothing but its arguments."""

    def register(fn: Any) -> Any:
        _add(
            Case(
                fn.__name__,
                lambda device: (fn, inputs(device, *makers)),
                inspect.unwrap(fn),
                strict,
            )
        )
        return fn

    return register


def built(strict: str = "") -> Callable[[Any], Any]:
    """Register a builder: given the device, it returns the function and its inputs."""

    def register(build: Any) -> Any:
        _add(Case(build.__name__, build, build, strict))
        return build

    return register


def _add(case: Case) -> None:
    assert case.name not in CASES, case.name
    CASES[case.name] = case


# --- reading the device ---------------------------------------------------------------------------


@function(X)
def item(x):
    scale = x.abs().max().item()  # <-- host-read
    return x * scale


@function(X)
def if_tensor(x):
    if x.sum() > 0:  # <-- host-read
        return x * 2
    return x - 1


@function(X)
def while_tensor(x):
    while x.abs().max() > 0.5:  # <-- host-read
        x = x * 0.5
    return x


@built()
def while_constant_tensor(device):
    """The time of a flow policy: on the device, but the same in every call."""

    def f(x):
        t = torch.ones((), device=x.device)
        dt = torch.full((), -0.25, device=x.device)
        while t >= -dt / 2:  # <-- host-read
            x = x + dt * x.tanh()
            t = t + dt
        return x

    return f, inputs(device, X)


@function(X)
def print_tensor(x):
    print(x.sum())  # <-- print|host-read
    return x * 2


@function(X)
def f_string(x):
    text = f"{x.mean():.3f}"  # <-- host-read
    return x * len(text)


@function(X)
def to_cpu_method(x):
    y = x.cpu()  # <-- host-read|host-compute
    return y * 2


@function(X)
def type_float_tensor(x):
    return x.type(torch.FloatTensor)  # <-- host-read|host-compute


@function(X)
def tolist(x):
    values = x[0].tolist()  # <-- host-read
    return x * values[0]


@function(X)
def to_numpy(x):
    values = x.cpu().numpy()  # <-- host-read|host-compute
    return x * float(values.max())


@function(X)
def int_of_argmax(x):
    best = int(x[0].argmax())  # <-- host-read
    return x[:, best]


@function(X)
def assert_tensor(x):
    assert (x.abs() < 100).all(), "out of range"  # <-- host-read
    return x.sqrt()


@function(X)
def isnan_any(x):
    if x.isnan().any():  # <-- host-read
        raise ValueError("NaN")
    return x * 2


@function(X)
def allclose(x):
    if torch.allclose(x, x * 1.0):  # <-- host-read|hidden-sync
        return x + 1
    return x


@function(X)
def equal(x):
    if torch.equal(x, x * 1.0):  # <-- host-read|hidden-sync
        return x + 1
    return x


@function(X, integers(4))
def range_of_tensor(x, n):
    for _ in range(n):  # <-- host-read
        x = x * 1.5
    return x


@function(X, integers(4))
def slice_to_tensor(x, n):
    return x[:n]  # <-- host-read


@function(X, integers(4))
def index_with_0_dim_tensor(x, n):
    return x[n]  # <-- host-read


@function(X, integers(9))
def arange_to_tensor(x, n):
    return torch.arange(n, device=x.device)  # <-- host-read


@function(X)
def linspace_to_tensor(x):
    return torch.linspace(0.0, x.max(), 5, device=x.device)  # <-- host-read|hidden-sync


@function(X, integers(3, 4))
def one_hot_without_classes(x, labels):
    return F.one_hot(labels)  # <-- host-read|data-dependent-shape


@function(X)
def early_exit(x):
    for _ in range(8):
        update = x.tanh() * 0.5
        x = x - update
        if update.norm() < 1e-3:  # <-- host-read
            break
    return x


@function(X)
def python_max_of_tensors(x):
    return max(x[0, 0], x[0, 1]) * x  # <-- host-read


@function(X)
def tensor_in_list(x):
    first = x[0, 0]
    return x * (2.0 if first in [0.0, 1.0] else 3.0)  # <-- host-read


@function(X)
def math_of_tensor(x):
    return x * math.sqrt(x.abs().sum())  # <-- host-read


@function(X)
def clip_norm(x):
    norm = float(x.norm())  # <-- host-read
    return x * min(1.0, 1.0 / norm)


# --- shapes that depend on data -------------------------------------------------------------------


@function(X)
def nonzero(x):
    return (x > 0).nonzero()  # <-- data-dependent-shape


@function(X)
def mask_index(x):
    return x[x > 0]  # <-- data-dependent-shape


@function(X)
def masked_select(x):
    return x.masked_select(x > 0).sum()  # <-- data-dependent-shape


@function(X)
def where_one_argument(x):
    rows, _ = torch.where(x > 0)  # <-- data-dependent-shape
    return x[rows]


@function(integers(5, 16))
def unique(labels):
    return torch.unique(labels)  # <-- data-dependent-shape


@function(integers(5, 16))
def unique_consecutive(labels):
    return torch.unique_consecutive(labels)  # <-- data-dependent-shape


@function(X, integers(3, 4))
def repeat_interleave(x, n):
    return x.repeat_interleave(n, dim=0)  # <-- data-dependent-shape


@function(X, lambda g: torch.tensor([1, 0, 2, 1]))
def repeat_interleave_output_size(x, n):
    return x.repeat_interleave(n, dim=0, output_size=4)


@function(normal(5))
def combinations(x):
    return torch.combinations(x)  # <-- data-dependent-shape


@function(X, integers(2, 8))
def mask_assignment_of_tensor(x, keep):
    y = x.clone()
    y[:, keep.bool()] = x[:, :1]  # <-- data-dependent-shape
    return y


@function(integers(5, 16))
def bincount(labels):
    return torch.bincount(labels)  # <-- data-dependent-shape|hidden-sync


@function(integers(5, 16))
def bincount_minlength(labels):
    return torch.bincount(labels, minlength=5)  # <-- data-dependent-shape|hidden-sync


@function(X, integers(3, 4))
def split_by_sizes_on_the_device(x, n):
    parts = torch.split(x, [n[0].clamp(max=3), 4 - n[0].clamp(max=3)])  # <-- host-read
    return parts[0].sum() + parts[1].mean()


@function(normal(16, 8), integers(4, 16))
def moe_by_nonzero(x, expert):
    out = torch.zeros_like(x)
    for e in range(4):
        rows = (expert == e).nonzero().squeeze(-1)  # <-- data-dependent-shape
        out.index_add_(0, rows, x[rows] * (e + 1))
    return out


@function(normal(16, 8), integers(4, 16))
def moe_by_masks(x, expert):
    out = torch.zeros_like(x)
    for e in range(4):
        out = out + torch.where((expert == e).unsqueeze(-1), x * (e + 1), 0.0)
    return out


@function(normal(12, 4), normal(12))
def greedy_nms(boxes, scores):
    order = scores.argsort(descending=True)
    kept = []
    while order.numel() > 0:
        kept.append(order[0])
        distance = (boxes[order[1:]] - boxes[order[:1]]).abs().sum(-1)
        order = order[1:][distance > 4.0]  # <-- data-dependent-shape
    return torch.stack(kept)


@function(X)
def nested_tensor(x):
    parts = torch.nested.as_nested_tensor([x[:1], x[1:]])  # <-- host-constant|hidden-sync|raises
    return parts.to_padded_tensor(0.0)


# --- data of the host -----------------------------------------------------------------------------


@function(X)
def tensor_of_list(x):
    return x * torch.tensor([1.0, 2.0] * 4, device=x.device)  # <-- host-constant


@function(X)
def tensor_of_scalar(x):
    return x * torch.tensor(2.0, device=x.device)  # <-- host-constant


@function(X)
def new_tensor(x):
    return x + x.new_tensor([0.5] * 8)  # <-- host-constant


@function(X)
def as_tensor_of_numpy(x):
    table = np.arange(8, dtype=np.float32)
    return x + torch.as_tensor(table, device=x.device)  # <-- host-constant


@function(X)
def from_numpy_to_device(x):
    table = torch.from_numpy(np.ones(8, dtype=np.float32))
    return x + table.to(x.device)  # <-- host-constant


@function(X)
def zeros_to_device(x):
    return x + torch.zeros(8).to(x.device)  # <-- host-constant


@built()
def table_of_the_host(device):
    table = torch.randn(8)

    def f(x):
        return x + table.to(x.device)  # <-- host-constant

    return f, inputs(device, X)


@built()
def buffer_left_on_the_host(device):
    mean = torch.zeros(8)

    def f(x):
        return x - mean.to(x)  # <-- host-constant

    return f, inputs(device, X)


@function(X)
def cpu_index_tensor(x):
    rows = torch.tensor([0, 2])
    return x[rows]  # <-- host-constant


@function(X)
def list_index(x):
    return x[[0, 2]]  # <-- host-constant


@function(X)
def numpy_index(x):
    return x[np.array([0, 2])]  # <-- host-constant


@function(X)
def scalar_tensor_of_the_host_as_operand(x):
    return x * torch.tensor(2.0)


@function(X)
def where_with_scalar_tensor_of_the_host(x):
    return torch.where(x > 0, x, torch.tensor(0.0))  # <-- host-constant


@function(X)
def assign_scalar_element(x):
    y = x.clone()
    y[0, 0] = 1.0  # <-- host-constant
    return y


@function(X)
def assign_row(x):
    y = x.clone()
    y[0] = 1.0
    return y


@function(X)
def assign_list(x):
    y = x.clone()
    y[0, :2] = torch.tensor([1.0, 2.0])  # <-- host-constant
    return y


@built(strict="there is no pinned memory on a machine without a GPU")
def pinned_copy(device):
    table = torch.randn(8)
    if device == "cuda":
        table = table.pin_memory()

    def f(x):
        return x + table.to(x.device, non_blocking=True)  # <-- host-constant

    return f, inputs(device, X)


@function(X, strict="what is made in the call is folded, so that nobody has to keep it")
def pin_and_copy(x):
    staged = torch.ones(8).pin_memory()
    return x + staged.to(x.device, non_blocking=True)  # <-- host-constant


@function(X, strict="the result is a tensor of the host")
def to_cpu_non_blocking(x):
    return (x * 2).to("cpu", non_blocking=True)  # <-- host-read|host-compute


@built()
def made_on_first_call_from_the_host(device):
    """A cache of host data: it is copied once, by the first warm-up."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.tensor([0.1] * 8, device=x.device)
            return x + self.table

    return Positions(), inputs(device, X)


# --- operators that wait --------------------------------------------------------------------------


@function(positive_definite(6))
def linalg_inv(a):
    return torch.linalg.inv(a)  # <-- hidden-sync


@function(positive_definite(6), normal(6, 2))
def linalg_solve(a, b):
    return torch.linalg.solve(a, b)  # <-- hidden-sync


@function(positive_definite(6))
def linalg_svd(a):
    return torch.linalg.svd(a).S  # <-- hidden-sync|forbidden-call


@function(positive_definite(6))
def linalg_eigh(a):
    return torch.linalg.eigh(a).eigenvalues  # <-- hidden-sync|forbidden-call


@function(positive_definite(6))
def linalg_cholesky(a):
    return torch.linalg.cholesky(a)  # <-- hidden-sync


@function(positive_definite(6))
def linalg_pinv(a):
    return torch.linalg.pinv(a)  # <-- hidden-sync|forbidden-call


@function(positive_definite(6))
def linalg_matrix_exp(a):
    return torch.linalg.matrix_exp(a * 0.01)  # <-- hidden-sync|forbidden-call


@function(positive_definite(6))
def linalg_inv_ex(a):
    return torch.linalg.inv_ex(a).inverse


@function(positive_definite(6))
def linalg_cholesky_ex(a):
    return torch.linalg.cholesky_ex(a).L


@function(positive_definite(6))
def linalg_det(a):
    return torch.linalg.det(a)


@function(positive_definite(6))
def linalg_qr(a):
    return torch.linalg.qr(a).R.abs()


@function(positive_definite(6))
def linalg_norm(a):
    return torch.linalg.norm(a)


@function(X)
def histc(x):
    return torch.histc(x, bins=4)  # <-- hidden-sync


@function(X)
def histc_with_limits(x):
    return torch.histc(x, bins=4, min=-3, max=3)


@built()
def ctc_loss(device):
    targets = torch.tensor([[1, 2], [1, 3]], device=device)

    def f(x):
        logits = x.log_softmax(2)
        n = (10, 10)
        return F.ctc_loss(logits, targets, n, (2, 2))  # <-- host-read|data-dependent-shape|raises

    return f, inputs(device, normal(10, 2, 5))


@function(X)
def normal_with_tensors(x):
    return torch.normal(x, x.abs())  # <-- hidden-sync|host-read


@function(X)
def cuda_synchronize(x):
    y = x * 2
    torch.cuda.synchronize()  # <-- synchronize
    return y


@function(X)
def stream_synchronize(x):
    y = x * 2
    torch.cuda.current_stream().synchronize()  # <-- synchronize
    return y


@function(X)
def event_synchronize(x):
    y = x * 2
    event = torch.cuda.Event()
    event.record()
    event.synchronize()  # <-- synchronize
    return y


@function(X)
def event_query(x):
    event = torch.cuda.Event()
    event.record()
    if event.query():  # <-- query
        return x * 2
    return x * 2


@function(X)
def event_record(x):
    event = torch.cuda.Event()
    event.record()
    return x * 2


@function(X)
def empty_cache(x):
    torch.cuda.empty_cache()
    return x * 2


# --- streams and threads --------------------------------------------------------------------------


@built()
def side_stream_not_forked(device):
    side = torch.cuda.Stream() if device == "cuda" else None

    def f(x):
        with torch.cuda.stream(side or torch.cuda.Stream()):
            y = x * 2  # <-- side-stream
        return y

    return f, inputs(device, X)


@built()
def side_stream_not_joined(device):
    side = torch.cuda.Stream() if device == "cuda" else None

    def f(x):
        stream = side or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # <-- side-stream
        with torch.cuda.stream(stream):
            y = x * 2
        return y

    return f, inputs(device, X)


@built()
def side_stream_joined(device):
    side = torch.cuda.Stream() if device == "cuda" else None

    def f(x):
        stream = side or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = x * 2
        torch.cuda.current_stream().wait_stream(stream)
        return y + 1

    return f, inputs(device, X)


@built()
def default_stream(device):
    state = torch.zeros(4, 8, device=device)

    def f(x):
        with torch.cuda.stream(torch.cuda.default_stream()):
            state.add_(1.0)  # <-- default-stream
        return x + 1

    # The work is not in the graph: the state stays behind.
    return f, inputs(device, X), lambda: state.sum().item()


@function(X)
def allocation_in_a_thread(x):
    made = []
    size = 64 << 20
    worker = threading.Thread(
        target=lambda: made.append(torch.empty(size, device=x.device))  # <-- thread
    )
    worker.start()  # <-- thread
    worker.join()
    return x * 2


@function(X)
def large_allocation(x):
    scratch = torch.empty(64 << 20, device=x.device)
    scratch[:32] = x.flatten()
    return scratch[:32] * 2


# --- random numbers -------------------------------------------------------------------------------


@function(X)
def manual_seed(x):
    torch.manual_seed(0)  # <-- seed
    return x + torch.randn_like(x)


@function(X, strict="the state is read once, at capture")
def get_rng_state(x):
    torch.cuda.get_rng_state()  # <-- seed
    return x * 2


@function(X)
def generator_in_the_call(x):
    generator = torch.Generator(device=x.device).manual_seed(0)  # <-- generator|seed
    return x + torch.randn(x.shape, generator=generator, device=x.device)


@function(X)
def randn(x):
    return x + torch.randn(4, 8, device=x.device)


@function(X)
def dropout(x):
    return F.dropout(x, 0.5)


@function(X)
def multinomial(x):
    return torch.multinomial(x.softmax(-1), 2)


@function(X)
def gumbel_softmax(x):
    return F.gumbel_softmax(x, tau=0.5, hard=True)


@function(X)
def bernoulli(x):
    return torch.bernoulli(x.sigmoid())


@function(X)
def randperm(x):
    return x[torch.randperm(4, device=x.device)]


@function(X)
def randn_on_the_host(x):
    return x + torch.randn(8).to(x.device)  # <-- host-constant


@function(X)
def python_random(x):
    return x * random.random()  # <-- python-random


@function(X)
def numpy_random(x):
    return x * float(np.random.rand())  # <-- python-random


# --- Python does something ------------------------------------------------------------------------


@function(X)
def print_text(x):
    print("called")  # <-- print
    return x * 2


@built()
def counter(device):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1  # <-- stored-counter
            return x * 2

    model = Model()
    return model, inputs(device, X), lambda: model.calls


@built()
def cache_by_python_position(device):
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(16, 8))
            self.position = 0

        def forward(self, x):
            self.keys[self.position] = x[0]
            self.position += 1  # <-- python-state
            return self.keys.sum(0)

    return Cache().to(device), inputs(device, X)


@built()
def cache_by_device_position(device):
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(16, 8))
            self.register_buffer("position", torch.zeros(1, dtype=torch.long))

        def forward(self, x):
            self.keys.index_copy_(0, self.position, x[:1])
            self.position.add_(1)
            return self.keys.sum(0)

    return Cache().to(device), inputs(device, X)


@built()
def growing_cache(device):
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys = None

        def forward(self, x):
            keys = x if self.keys is None else torch.cat([self.keys, x])
            self.keys = keys  # <-- python-state
            return keys.sum(0)

    return Cache(), inputs(device, X)


@built()
def history_in_a_list(device):
    history = []

    def f(x):
        y = x * 2
        history.append(y.sum())  # <-- python-state
        return y / len(history)

    return f, inputs(device, X)


@built()
def index_of_the_step(device):
    """A scheduler of diffusers: a counter in Python picks the coefficient."""

    class Scheduler(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sigmas", torch.linspace(1, 0, 20))
            self.step_index = 0

        def forward(self, x):
            sigma = self.sigmas[self.step_index]
            self.step_index += 1  # <-- python-state
            return x * sigma

    return Scheduler().to(device), inputs(device, X)


@built()
def mask_made_on_first_call(device):
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = None

        def forward(self, x):
            if self.mask is None:
                self.mask = torch.ones(4, 8, device=x.device).tril()
            return x * self.mask

    return Causal(), inputs(device, X)


@function(X, strict="a replay cannot make a Python object anew")
def returns_an_object(x):
    return types.SimpleNamespace(value=x * 2)  # <-- result


@built(strict="a graph does not record for autograd")
def autograd_inside(device):
    weight = nn.Parameter(torch.ones(8, device=device))

    def f(x):
        with torch.enable_grad():
            loss = (x * weight).square().sum()
        (gradient,) = torch.autograd.grad(loss, weight)  # <-- autograd|raises
        return gradient

    return f, inputs(device, X)


@built(strict="it would have to be compiled before")
def compiled_inside(device):
    inner = torch.compile(lambda x: x.sin() + x.cos())

    def f(x):
        return inner(x)

    return f, inputs(device, X)


@function(X)
def numpy_computation(x):
    y = np.sqrt(np.abs(x.cpu().numpy()))  # <-- host-read|host-compute
    return torch.from_numpy(y).to(x.device)


# --- libraries ------------------------------------------------------------------------------------


@function(normal(4, 64))
def fft(x):
    return torch.fft.rfft(x).abs()


@function(normal(2, 256))
def stft(x):
    window = torch.hann_window(64, device=x.device)
    return torch.stft(x, 64, window=window, return_complex=True).abs()


@function(normal(2, 3, 16, 16), normal(4, 3, 3, 3))
def conv2d(x, w):
    return F.conv2d(x, w)


@function(normal(8, 16), normal(16, 8))
def autocast_matmul(a, b):
    with torch.autocast(a.device.type, dtype=torch.bfloat16):
        return a @ b


@function(normal(2, 4, 8, 16), normal(2, 4, 8, 16), normal(2, 4, 8, 16))
def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@built()
def linear(device):
    return nn.Linear(8, 16).to(device), inputs(device, X)


@built()
def lstm(device):
    return nn.LSTM(8, 16, batch_first=True).to(device).eval(), inputs(device, normal(2, 5, 8))


@built()
def gru_cell_loop(device):
    cell = nn.GRUCell(8, 16).to(device)

    def f(x):
        state = x.new_zeros(x.shape[0], 16)
        for step in x.unbind(1):
            state = cell(step, state)
        return state

    return f, inputs(device, normal(2, 5, 8))


@built()
def packed_sequence(device):
    rnn = nn.GRU(8, 16, batch_first=True).to(device).eval()

    def f(x):
        lengths = torch.tensor([5, 3])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return rnn(packed)[1]

    return f, inputs(device, normal(2, 5, 8))


@built()
def packed_sequence_unsorted(device):
    rnn = nn.GRU(8, 16, batch_first=True).to(device).eval()

    def f(x):
        lengths = torch.tensor([3, 5])
        packed = nn.utils.rnn.pack_padded_sequence(  # <-- host-constant
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return rnn(packed)[1]

    return f, inputs(device, normal(2, 5, 8))


@built()
def attention_with_mask(device):
    attention = nn.MultiheadAttention(16, 4, batch_first=True).to(device).eval()
    mask = torch.ones(6, 6, dtype=torch.bool, device=device).triu(1)

    def f(x):
        return attention(x, x, x, attn_mask=mask, need_weights=False)[0]

    return f, inputs(device, normal(2, 6, 16))


@built()
def encoder_layer(device):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).to(device).eval()
    return layer, inputs(device, normal(2, 6, 16))


@built()
def encoder_with_padding_mask(device):
    """The fast path of the encoder makes a nested tensor of what is not padding."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).to(device).eval()
    padding = torch.zeros(2, 6, dtype=torch.bool, device=device)
    padding[1, 4:] = True

    def f(x):
        return encoder(x, src_key_padding_mask=padding)  # <-- hidden-sync|host-read

    return f, inputs(device, normal(2, 6, 16))


@built()
def batch_norm_training(device):
    return nn.BatchNorm1d(8).to(device).train(), inputs(device, X)


@function(normal(2, 3, 8, 8))
def interpolate(x):
    return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


@function(normal(2, 3, 8, 8), normal(2, 4, 4, 2))
def grid_sample(x, grid):
    return F.grid_sample(x, grid.tanh(), align_corners=False)


@function(normal(6, 4), normal(5, 4))
def cdist(a, b):
    return torch.cdist(a, b)


@function(normal(2, 4, 8), normal(2, 8, 3))
def einsum(a, b):
    return torch.einsum("bij,bjk->bik", a, b)


@built()
def custom_autograd_function(device):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return lambda x: Square.apply(x) + 1, inputs(device, X)


@built()
def custom_operator(device):
    @torch.library.custom_op("capture_cases::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    @scaled.register_fake
    def _(x, factor):
        return torch.empty_like(x)

    return lambda x: scaled(x, 3.0), inputs(device, X)


@built()
def custom_operator_that_reads(device):
    @torch.library.custom_op("capture_cases::normalised", mutates_args=())
    def normalised(x: torch.Tensor) -> torch.Tensor:
        return x / x.abs().max().item()  # <-- host-read|hidden-sync

    def f(x):
        return normalised(x)  # <-- host-read|hidden-sync

    return f, inputs(device, X)


@built()
def scripted(device):
    @torch.jit.script
    def inner(x):
        return x.relu() * 2

    return lambda x: inner(x) + 1, inputs(device, X)


# --- what captures --------------------------------------------------------------------------------


@function(X)
def full(x):
    return x * torch.full((8,), 2.0, device=x.device)


@function(X)
def masked_assignment_of_number(x):
    y = x.clone()
    y[y < 0] = 0.0
    return y


@function(X)
def masked_fill(x):
    return x.masked_fill(x < 0, float("-inf")).softmax(-1)


@function(X)
def where_three_arguments(x):
    return torch.where(x > 0, x, x * 0.1)


@function(X, normal(32))
def masked_scatter(x, values):
    return x.masked_scatter(x > 0, values)


@function(X)
def sort(x):
    return x.sort(dim=-1)


@function(X)
def topk(x):
    return x.topk(3)


@function(X, integers(4, 3))
def index_by_device_tensor(x, rows):
    return x[rows]


@function(X, integers(4, 2), normal(2, 8))
def index_put(x, rows, values):
    return x.index_put((rows,), values, accumulate=True)


@function(X, integers(4, 6), normal(6, 8))
def index_add(x, rows, values):
    return x.index_add(0, rows, values)


@function(X, integers(4, 6, 8), normal(6, 8))
def scatter_reduce(x, index, values):
    return x.scatter_reduce(0, index, values, reduce="amax")


@function(X)
def cumsum(x):
    return x.cumsum(-1)


@function(X)
def quantile(x):
    return x.quantile(0.5, dim=-1)


@function(X)
def median(x):
    return x.median(dim=-1).values


@function(X)
def median_of_all(x):
    return x.median()


@function(integers(3, 4, 8))
def mode(x):
    return x.mode(dim=-1).values


@function(X)
def kthvalue(x):
    return x.kthvalue(2, dim=-1).values


@function(X, normal(5))
def searchsorted(x, values):
    return torch.searchsorted(x.sort(-1).values[0], values)


@built()
def bucketize(device):
    borders = torch.linspace(-2, 2, 9, device=device)
    return lambda x: torch.bucketize(x, borders), inputs(device, X)


@function(integers(5, 4))
def one_hot_with_classes(labels):
    return F.one_hot(labels, 5)


@function(X)
def rows_of_tensor(x):
    total = x.new_zeros(8)
    for row in x:
        total = total + row * len(x)
    return total


@function(X, integers(8, 4))
def cross_entropy(x, labels):
    return F.cross_entropy(x, labels)


@function(X)
def write_to_the_argument(x):
    x.add_(1.0)
    return x * 2


@built()
def write_to_a_buffer(device):
    total = torch.zeros(8, device=device)

    def f(x):
        total.add_(x[0])
        return total * 2

    return f, inputs(device, X)


@function(X)
@torch.no_grad()
def no_grad_decorator(x):
    return x.exp()


@function(X)
@torch.inference_mode()
def inference_mode_decorator(x):
    return F.linear(x, x).relu()


@built()
def rotary_embedding(device):
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            angles = torch.outer(torch.arange(32.0), 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))
            self.register_buffer("cos", angles.cos().repeat(1, 2))
            self.register_buffer("sin", angles.sin().repeat(1, 2))

        def forward(self, x, positions):
            cos, sin = self.cos[positions], self.sin[positions]
            left, right = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-right, left], dim=-1) * sin

    return Rotary().to(device), inputs(device, X, integers(32, 4))


@function(normal(2, 3, 10), normal(2, 3))
def beam_search_step(logits, scores):
    total = scores.unsqueeze(-1) + logits.log_softmax(-1)
    best, flat = total.flatten(1).topk(3)
    beams = torch.div(flat, 10, rounding_mode="floor")
    return best, flat % 10, logits.gather(1, beams.unsqueeze(-1).expand(-1, -1, 10))


@built()
def greedy_decoding_until_end(device):
    torch.manual_seed(0)
    table = torch.randn(16, 16, device=device)

    def f(tokens):
        for _ in range(6):
            following = table[tokens[:, -1]].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, following], dim=1)
            if (following == 0).all():  # <-- host-read
                break
        return tokens

    return f, inputs(device, integers(16, 2, 1))


@built()
def diffusion_with_device_timesteps(device):
    timesteps = torch.linspace(1.0, 0.1, 5, device=device)

    def f(x):
        for t in timesteps:
            x = x - 0.1 * x.tanh() * t
        return x

    return f, inputs(device, X)


@built()
def diffusion_that_asks_for_the_last_step(device):
    timesteps = torch.arange(4, -1, -1, device=device)

    def f(x):
        for t in timesteps:
            x = x - 0.1 * x.tanh()
            if t > 0:  # <-- host-read
                x = x + 0.01 * torch.randn_like(x)
        return x

    return f, inputs(device, X)


@built()
def diffusion_with_python_timesteps(device):
    betas = torch.linspace(0.1, 0.2, 5, device=device)

    def f(x):
        for t in range(4, -1, -1):
            x = x * (1 - betas[t]).sqrt() - 0.1 * x.tanh()
        return x

    return f, inputs(device, X)


@function(normal(8, 4))
def pad_sequence(x):
    return nn.utils.rnn.pad_sequence([x[:3], x[3:]], batch_first=True)


@function(X)
def shapes_in_python(x):
    rows, columns = x.shape
    mask = torch.arange(columns, device=x.device) < columns // 2
    return (x * mask).view(rows * 2, -1)


@function(X)
def tensor_split_by_python_list(x):
    return torch.tensor_split(x, [1, 3])[1]


@function(X)
def tensor_split_by_host_tensor(x):
    return torch.tensor_split(x, torch.tensor([1, 3]))[1]


@function(X)
def clamp_by_tensors(x):
    return x.clamp(min=x.mean(), max=x.max() * 0.5)


@function(X, lambda g: torch.rand((), generator=g))
def factor_in_a_0_dim_tensor(x, factor):
    return x * factor + factor


@function(integers(10, 4, 3), normal(10, 8))
def embedding_bag(tokens, table):
    return F.embedding_bag(tokens, table)


@functools.lru_cache
def _window(size: int) -> torch.Tensor:
    return torch.hann_window(size)


@function(X)
def cached_host_table(x):
    return x * _window(8).to(x.device)  # <-- host-constant


# --- against check --------------------------------------------------------------------------------


def check_case(name: str) -> dict[str, Any]:
    """What ``gfxgraph.check`` says of a case, on this machine."""
    import gfxgraph

    with torch.no_grad():
        fn, arguments_of, *_ = CASES[name].build("cpu")
        return gfxgraph.check(fn, *arguments_of(0)).to_dict()


def agreement(case: Case, measured: dict[str, Any], report: dict[str, Any]) -> tuple[str, str]:
    """Whether verdict and measurement agree, and whether the marked line is named."""
    right = measured["warm"]["outcome"] == "captures"
    # A capture by hand stores nothing in Python; the report says so.
    stores = any(hazard["rule"].startswith("stored-") for hazard in report["hazards"])
    says = report["verdict"] == "captures" and not stores
    if says == right:
        verdict = "yes"
    else:
        verdict = "stricter" if right and case.strict and report["verdict"] != "raises" else "NO"
    marks = case.marks()
    if says or not marks or (right and verdict != "stricter"):
        return verdict, ""
    here = Path(__file__).name
    for hazard in report["hazards"]:
        named = Path(hazard["file"] or "").name == here
        if named and hazard["rule"] in marks.get(hazard["line"], ()):
            return verdict, "named"
    return verdict, "NOT NAMED"
