"""Pieces: tensors and storages as objects of Python, and where code may read them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.simulate.pieces import PIECES, REFUSED, captured, piece


class _Loaded(nn.Parameter):
    """As the parameters of servers, which know how to load themselves."""

    def __new__(cls, data: torch.Tensor, loader: str) -> Any:
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: torch.Tensor, loader: str) -> None:
        self.loader = loader

    def load(self, value: torch.Tensor) -> str:
        self.data.copy_(value)
        return self.loader


class _Own(torch.Tensor):
    def twice(self) -> Any:
        return self * 2


def _vector(size: int = 3) -> torch.Tensor:
    return torch.arange(float(size), device="cuda")


@piece()
def class_of_a_parameter() -> Any:
    held = _Loaded(torch.zeros(3, device="cuda"), "rows")
    how = held.load(_vector())
    kinds = isinstance(held, _Loaded), isinstance(held, nn.Parameter), held.is_cuda
    return (kinds, how, held * 1), ((True, True, True), "rows", _vector())


@piece()
def class_of_a_parameter_that_is_moved() -> Any:
    module = nn.Module()
    module.weight = _Loaded(torch.zeros(3), "columns")
    module.cuda().half()
    there = isinstance(module.weight, _Loaded), module.weight.load(_vector()), module.weight.is_cuda
    module.cpu()
    back = isinstance(module.weight, _Loaded), module.weight.loader, module.weight.float()
    return (there, back), ((True, "columns", True), (True, "columns", _vector().cpu()))


@piece()
def class_of_a_tensor() -> Any:
    own = _vector().as_subclass(_Own)
    again = own + 1
    return (type(again.twice()).__name__, again.twice().as_subclass(torch.Tensor)), (
        "_Own",
        (_vector() + 1) * 2,
    )


@piece()
def parameters_in_a_capture() -> Any:
    held = _Loaded(_vector(), "rows")
    return captured(lambda x: x * held, _vector())


@piece()
def lazy_parameters() -> Any:
    found = []
    for make in (lambda: nn.LazyLinear(2).cuda(), lambda: nn.LazyLinear(2, device="cuda")):
        layer = make()
        assert nn.parameter.is_lazy(layer.weight)
        layer(torch.ones(1, 3, device="cuda"))
        kinds = type(layer) is nn.Linear, isinstance(layer.weight, nn.Parameter)
        lazy = nn.parameter.is_lazy(layer.weight)
        found.append((*kinds, lazy, layer.weight.is_cuda, tuple(layer.weight.shape)))
    return found, [(True, True, False, True, (2, 3))] * 2


@piece()
def shallow_and_deep_copies() -> Any:
    x = _vector(4)
    same, (whole, part) = copy.copy(x), copy.deepcopy((x, x[1:3]))
    part.fill_(9)
    same[0] = 5
    got = x, whole, same.data_ptr() == x.data_ptr()
    return got, (same, torch.tensor([0.0, 9, 9, 3], device="cuda"), True)


@piece()
def deep_copy_in_a_capture() -> Any:
    return captured(lambda x: copy.deepcopy(x), _vector())


@piece()
def tensor_of_numbers_of_the_device() -> Any:
    x = _vector().double()
    made = torch.tensor([x[1], x[2]]), torch.Tensor([x[1]]), torch.tensor([[x[1]]], device="cuda")
    two, one = torch.tensor([1.0, 2.0]), torch.ones(1, 1)
    return made, (two.double(), one[0], one.double().cuda())


@piece()
def tensor_of_nothing() -> Any:
    return torch.tensor([[], []], device="cuda"), torch.zeros(2, 0, device="cuda")


def _host() -> torch.Tensor:
    return torch.arange(3.0)


def _index() -> torch.Tensor:
    return torch.tensor([0, 2], device="cuda")


for _name, _function in {
    "host_by_index_of_the_device": lambda: _host()[_index()],
    "host_by_mask_of_the_device": lambda: _host()[_vector() > 0],
    "host_gets_values_of_the_device": lambda: _host().index_put_((_index().cpu(),), _vector(2)),
    "device_gets_values_of_the_host": lambda: _vector().index_put_((_index(),), torch.ones(2)),
    "attention_of_two_types": lambda: F.scaled_dot_product_attention(
        *(_vector(4).view(1, 2, 2).to(d) for d in (torch.half, torch.float, torch.half))
    ),
    "storage_of_the_device_for_the_host": lambda: torch.empty(0).set_(_vector().untyped_storage()),
}.items():
    PIECES[_name] = _function, "RuntimeError"


@piece()
def host_is_written_by_index_of_the_device() -> Any:
    host = _host()
    host[_index()] = 7.0
    host[_vector() == 1] = 8.0
    return host, torch.tensor([7.0, 8.0, 7.0])


@piece()
def attention_and_recurrence_in_autocast() -> Any:
    x = torch.randn(2, 4, 8, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        found = [F.scaled_dot_product_attention(x, x, x).dtype]
        for layer in (nn.LSTM, nn.GRU, nn.RNN):
            found.append(layer(8, 4).cuda()(x)[0].dtype)
        found.append(nn.GRUCell(8, 4).cuda()(x[0]).dtype)
    return found, [torch.float16] * 5


@piece()
def numpy_by_force() -> Any:
    return _vector().numpy(force=True).tolist(), [0.0, 1.0, 2.0]


def _file(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@piece()
def files_are_loaded_to_the_device() -> Any:
    places: list[Any] = ["cuda", torch.device("cuda", 0), {"cpu": "cuda:0"}, lambda s, _: s.cuda()]
    saved = {"rows": [torch.ones(2)], "layer": nn.Linear(2, 2)}
    found = []
    for place in places:
        loaded = torch.load(_file(saved), map_location=place, weights_only=False)
        weight = loaded["layer"].weight
        found.append((loaded["rows"][0], isinstance(weight, nn.Parameter), weight.is_cuda))
    return found, [(torch.ones(2, device="cuda"), True, True)] * 4


@piece("RuntimeError")
def file_for_a_device_that_is_not_there() -> Any:
    torch.load(_file(torch.ones(2)), map_location={"cpu": "cuda:63"})


@piece()
def storages_of_the_device() -> Any:
    x = _vector(2)
    storage = x.untyped_storage()
    made = torch.UntypedStorage(8, device="cuda").copy_(storage)
    there = storage.device, storage.is_cuda, x.storage().is_cuda, made.device.type, len(storage)
    again = torch.empty(0, device="cuda").set_(made, 0, (2,))
    want = torch.device("cuda", 0), True, True, "cuda", 8
    return (there, again, storage.cpu().device.type, x.storage()[1]), (want, x, "cpu", 1.0)


def _reads(name: str, read: Callable[[torch.Tensor], Any], end: str = "RuntimeError") -> None:
    PIECES[name] = lambda: captured(lambda x: (x + 1, read(x))[0], _vector()), end


_reads("saved_in_a_capture", lambda x: torch.save(x, io.BytesIO()))
_reads("pickled_in_a_capture", lambda x: pickle.dumps(x))
_reads("storage_to_the_host_in_a_capture", lambda x: x.untyped_storage().cpu())
_reads("storage_to_a_list_in_a_capture", lambda x: x.untyped_storage().tolist(), REFUSED)
_reads("number_of_a_storage_in_a_capture", lambda x: x.untyped_storage()[0], REFUSED)
_reads("numpy_by_force_in_a_capture", lambda x: x.numpy(force=True))
_reads("tensor_of_numbers_in_a_capture", lambda x: torch.tensor([x[0]]), REFUSED)
