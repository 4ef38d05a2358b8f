"""Pieces: the device itself, its older names, and what works on it beside graphs."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.simulate.pieces import PIECES, captured, piece

_ABSENT = 63

for _name, _function, _end in (
    ("properties", lambda: torch.cuda.get_device_properties(_ABSENT), "AssertionError"),
    ("name", lambda: torch.cuda.get_device_name(_ABSENT), "AssertionError"),
    ("peer", lambda: torch.cuda.can_device_access_peer(0, _ABSENT), "AssertionError"),
    ("free_memory", lambda: torch.cuda.mem_get_info(_ABSENT), "RuntimeError"),
    ("allocated_memory", lambda: torch.cuda.memory_allocated(_ABSENT), "RuntimeError"),
    ("peak_of_memory", lambda: torch.cuda.reset_peak_memory_stats(_ABSENT), "RuntimeError"),
    ("context", lambda: torch.cuda.device(_ABSENT).__enter__(), "RuntimeError"),
    ("set", lambda: torch.cuda.set_device(_ABSENT), "RuntimeError"),
    ("synchronize", lambda: torch.cuda.synchronize(_ABSENT), "RuntimeError"),
    ("stream", lambda: torch.cuda.Stream(_ABSENT), "RuntimeError"),
    ("current_stream", lambda: torch.cuda.current_stream(_ABSENT), "RuntimeError"),
    ("accelerator", lambda: torch.accelerator.set_device_index(_ABSENT), "RuntimeError"),
    ("properties_of_the_cpu", lambda: torch.cuda.get_device_properties("cpu"), "ValueError"),
):
    PIECES[f"absent_device_{_name}"] = _function, _end


@piece()
def classes_of_streams_and_events() -> Any:
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    found = isinstance(stream, torch.Stream), isinstance(event, torch.Event)
    own = isinstance(stream, torch.cuda.Stream), isinstance(event, torch.cuda.Event)
    return (*found, *own, isinstance(stream, torch.cuda.Event)), (True, True, True, True, False)


for _name, _function in {
    "pickled_stream": lambda: pickle.dumps(torch.cuda.Stream()),
    "pickled_event": lambda: pickle.dumps(torch.cuda.Event()),
    "type_of_the_device_for_the_host": lambda: torch.cuda.FloatTensor(torch.ones(2)),
}.items():
    PIECES[_name] = _function, "TypeError"


@piece()
def types_of_the_device() -> Any:
    host, floats = torch.ones(2), torch.cuda.FloatTensor
    moved = host.type("torch.cuda.HalfTensor"), host.type(torch.cuda.LongTensor)
    known = [isinstance(t, floats) for t in (host, host.cuda(), host.cuda().half())]
    got = floats([1.0, 1.0]), *moved, known, tuple(floats(2, 3).shape), floats.dtype
    want = torch.ones(2, device="cuda")
    return got, (want, want.half(), want.long(), [False, True, False], (2, 3), torch.float32)


@piece()
def default_type_of_the_device() -> Any:
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        return [torch.zeros(2).device.type, torch.tensor([1.0]).device.type], ["cuda"] * 2
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")


@piece("OutOfMemoryError")
def more_memory_than_there_is() -> Any:
    torch.empty(1 << 42, device="cuda")


@piece()
def streams_write_parts_of_a_tensor() -> Any:
    side = torch.cuda.Stream()

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(3, 6, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out[:, :3].copy_(x)
        out[:, 3:].copy_(x * 2)
        torch.cuda.current_stream().wait_stream(side)
        return out

    return captured(function, torch.randn(3, 3, device="cuda"))


@piece()
def compiled_without_breaks() -> Any:
    twice = torch.compile(lambda x: x * 2, fullgraph=True, backend="eager")
    x = torch.ones(2, device="cuda")
    return twice(x), x + x


@piece("RuntimeError")
def lengths_on_the_device() -> Any:
    x, lengths = torch.ones(2, 5, 3, device="cuda"), torch.tensor([5, 3], device="cuda")
    nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)


@piece()
def loss_of_sequences() -> Any:
    scores = torch.randn(5, 1, 3).log_softmax(2)
    targets, lengths = torch.tensor([[1, 2]]), (torch.tensor([5]), torch.tensor([2]))
    got = F.ctc_loss(scores.cuda(), targets.cuda(), *lengths)
    return got, F.ctc_loss(scores, targets, *lengths).cuda()


@piece()
def memory_shared_by_dlpack() -> Any:
    x = torch.zeros(3, device="cuda")
    torch.from_dlpack(x).add_(1)
    return x, torch.ones(3, device="cuda")


@piece()
def names_of_the_device() -> Any:
    named = torch.device(0), torch.device(3), torch.accelerator.current_accelerator()
    module = torch.get_device_module() is torch.cuda
    return (*map(str, named), module), ("cuda:0", "cuda:3", "cuda", True)


@torch.library.custom_op("gfxgraph_tests::of_cpu", mutates_args=(), device_types="cpu")
def _of_cpu(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@piece("NotImplementedError")
def operator_of_the_cpu() -> Any:
    _of_cpu(torch.ones(2, device="cuda"))


@piece()
def default_allocator() -> Any:
    return torch.cuda.get_allocator_backend() in ("native", "cudaMallocAsync"), True
