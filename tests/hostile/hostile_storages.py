"""Functions that reach past operations into memory: storages, addresses, arrays on it, gradients.

Each gives the function, and its state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy
import torch

from tests.hostile.hostile_twins import DEVICE, Made, Shown, t

STORAGES: dict[str, Callable[[], Made]] = {}
GRADIENTS: dict[str, Callable[[], Made]] = {}


def storage(make: Callable[[], Made]) -> Callable[[], Made]:
    STORAGES[make.__name__] = make
    return make


def gradient(make: Callable[[], Made]) -> Callable[[], Made]:
    GRADIENTS[make.__name__] = make
    return make


def bytes_of(tensor: torch.Tensor) -> Shown:
    return Shown(lambda: tensor.untyped_storage().nbytes())


# ---- memory is freed, and comes back


@storage
def an_outside_tensor_is_freed() -> Made:
    own = torch.ones(2, device=DEVICE)

    def fn(x):
        own.untyped_storage().resize_(0)
        return x * 2

    return fn, bytes_of(own)


@storage
def an_outside_tensor_is_freed_by_its_typed_storage() -> Made:
    own = torch.ones(2, device=DEVICE)

    def fn(x):
        own.storage().resize_(0)
        return x * 2

    return fn, bytes_of(own)


@storage
def a_storage_that_is_held_is_freed() -> Made:
    own = torch.ones(2, device=DEVICE)
    held = own.untyped_storage()

    def fn(x):
        held.resize_(0)
        return x * 2

    return fn, bytes_of(own)


@storage
def an_operator_frees_memory() -> Made:
    own = torch.ones(2, device=DEVICE)

    def fn(x):
        torch.ops.inductor.resize_storage_bytes_(own, 0)
        return x * 2

    return fn, bytes_of(own)


@storage
def an_argument_is_freed() -> Made:
    def fn(x):
        y = x * 2
        x.untyped_storage().resize_(0)
        return y

    return lambda x: fn(x.clone()), None


@storage
def memory_comes_for_the_call_and_goes_again() -> Made:
    own, shard = torch.zeros(4, 3, device=DEVICE), torch.ones(4, 3, device=DEVICE)
    own.untyped_storage().resize_(0)

    def fn(x):
        own.untyped_storage().resize_(48)
        own.copy_(shard)
        y = x * own
        own.untyped_storage().resize_(0)
        return y

    return fn, bytes_of(own)


@storage
def memory_of_the_call_is_freed() -> Made:
    def fn(x):
        y = x * 3
        z = y + 1
        y.untyped_storage().resize_(0)
        return z

    return fn, None


@storage
def an_outside_tensor_loses_its_memory() -> Made:
    own = torch.ones(2, device=DEVICE)

    def fn(x):
        own.set_()
        return x * 2

    return fn, own


@storage
def an_outside_tensor_gets_the_memory_of_another() -> Made:
    own, other = torch.ones(4, 3, device=DEVICE), torch.ones(4, 3, device=DEVICE) * 2

    def fn(x):
        own.set_(other)
        return x * own

    return fn, own


@storage
def an_outside_tensor_gets_the_data_of_another() -> Made:
    own, other = torch.ones(4, 3, device=DEVICE), torch.ones(4, 3, device=DEVICE) * 2

    def fn(x):
        own.data = other
        return x * 3

    return fn, own


@storage
def an_outside_tensor_gets_a_size() -> Made:
    own = torch.ones(4, device=DEVICE)

    def fn(x):
        own.resize_(2)
        return x * 2

    return fn, own


@storage
def tensors_are_swapped() -> Made:
    own = torch.ones(4, 3, device=DEVICE)

    def fn(x):
        torch.utils.swap_tensors(own, own + 1)
        return x * own

    return fn, own


# ---- memory is written or read where no operation shows it


@storage
def a_storage_is_filled() -> Made:
    own = torch.ones(4, 3, device=DEVICE)
    held = own.untyped_storage()

    def fn(x):
        held.fill_(0)
        return x + own

    return fn, own


@storage
def a_storage_is_copied_to() -> Made:
    own, other = torch.ones(4, 3, device=DEVICE), torch.ones(4, 3, device=DEVICE) * 2

    def fn(x):
        own.untyped_storage().copy_(other.untyped_storage())
        return x + own

    return fn, own


@storage
def bytes_of_a_storage_are_counted() -> Made:
    own = torch.zeros(4, device=DEVICE)

    def fn(x):
        return x + own.untyped_storage()[0] + own.untyped_storage().tolist()[1]

    return fn, own


@storage
def an_array_is_written() -> Made:
    own = torch.zeros(1)

    def fn(x):
        own.numpy()[0] += 1
        return x * 2

    return fn, own


@storage
def an_array_is_set_to_what_it_holds() -> Made:
    own = torch.zeros(1)

    def fn(x):
        numpy.asarray(own)[:] = 5
        return x * 2

    return fn, own


@storage
def an_array_is_written_by_torch() -> Made:
    own = torch.zeros(1)

    def fn(x):
        torch.asarray(own.numpy()).add_(1)
        return x * 2

    return fn, own


@storage
def an_array_is_written_as_a_tensor_of_its_own() -> Made:
    own = torch.zeros(1)

    def fn(x):
        torch.from_numpy(own.numpy()).add_(1)
        return x * 2

    return fn, own


@storage
def an_array_is_written_and_no_error_leaves() -> Made:
    own = torch.zeros(1)

    def fn(x):
        try:
            memoryview(own.numpy())[0] = float(own[0]) + 1
        except Exception:
            return x * 3
        return x * 2

    return fn, own


@storage
def the_address_of_an_array_is_written() -> Made:
    own = torch.zeros(1)

    def fn(x):
        ctypes.c_float.from_address(own.numpy().ctypes.data).value += 1
        return x * 2

    return fn, own


@storage
def an_address_is_written() -> Made:
    own = torch.zeros(1)

    def fn(x):
        ctypes.c_float.from_address(own.data_ptr()).value += 1
        return x * 2

    return fn, own


@storage
def an_address_is_set_to_what_it_holds() -> Made:
    own = torch.zeros(1)

    def fn(x):
        ctypes.c_float.from_address(own.data_ptr()).value = 5
        return x * 2

    return fn, own


@storage
def an_export_is_written() -> Made:
    own = torch.zeros(1)

    def fn(x):
        view = numpy.from_dlpack(own)
        ctypes.c_float.from_address(view.ctypes.data).value = 5
        return x * 2

    return fn, own


@storage
def the_times_of_writing_are_counted() -> Made:
    own = torch.zeros(1, device=DEVICE)
    return lambda x: x + own._version, own


@storage
def the_address_of_a_storage_is_written() -> Made:
    own = torch.zeros(1)

    def fn(x):
        ctypes.c_float.from_address(own.untyped_storage().data_ptr()).value = 5
        return x * 2

    return fn, own


# ---- gradients that the caller replaces


def _with_gradient() -> torch.nn.Parameter:
    own = torch.nn.Parameter(torch.ones(4, 3, device=DEVICE))
    own.grad = torch.ones(4, 3, device=DEVICE)
    return own


def replace_gradient(own: Any, n: int) -> None:
    if n == 3:
        own.grad = None
    elif n % 2 == 0:
        own.grad = t(n, 4, 3)
    elif own.grad is not None:
        own.grad.mul_(2)


@gradient
def the_gradient_is_a_factor() -> Made:
    own = _with_gradient()
    return lambda x: x if own.grad is None else x * own.grad, own


@gradient
def the_gradient_is_a_step() -> Made:
    own = _with_gradient()

    def fn(x):
        if own.grad is not None:
            torch._foreach_sub_([own.data], [own.grad])
        return x * own

    return fn, own


@gradient
def there_is_a_gradient() -> Made:
    own = _with_gradient()
    return lambda x: x * (2 if own.grad is None else 3), own
