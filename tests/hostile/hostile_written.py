"""Functions that write to Python state which is not reached by walking from them.

Each gives the function, and a function that shows the state.
"""

from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import os
import queue
import random
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

Made = tuple[Callable[..., Any], Callable[[], Any]]
WRITTEN: dict[str, Callable[[], Made]] = {}
SETTINGS: dict[str, Callable[[], Made]] = {}


def written(make: Callable[[], Made]) -> Callable[[], Made]:
    WRITTEN[make.__name__] = make
    return make


def setting(make: Callable[[], Made]) -> Callable[[], Made]:
    SETTINGS[make.__name__] = make
    return make


class Ticks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def tick(self) -> None:
        self.n += 1

    def forward(self, x):
        self.tick()
        return x * self.n


# ---- hooks


@written
def a_forward_hook_collects() -> Made:
    kept: list[Any] = []
    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    model[0].register_forward_hook(lambda module, args, out: kept.append(out.clone()))
    return model, lambda: kept


@written
def a_forward_hook_counts() -> Made:
    counts = {"n": 0}

    def hook(module, args, out):
        counts["n"] += 1

    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    model[1].register_forward_hook(hook)
    return model, lambda: counts


@written
def a_pre_hook_scales_by_its_count() -> Made:
    counts = [0]

    def hook(module, args):
        counts[0] += 1
        return (args[0] * counts[0],)

    model = nn.Sequential(nn.ReLU(), nn.Tanh())
    model[0].register_forward_pre_hook(hook)
    return model, lambda: counts


@written
def a_method_of_an_object_is_the_hook() -> Made:
    class Statistics:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def hook(self, module, args, out):
            self.sizes.append(out.numel())

    statistics = Statistics()
    model = nn.Sequential(nn.ReLU())
    model[0].register_forward_hook(statistics.hook)
    return model, lambda: statistics.sizes


@written
def a_hook_draws_from_a_generator_of_python() -> Made:
    numbers = random.Random(3)
    model = nn.Sequential(nn.ReLU())
    model[0].register_forward_hook(lambda module, args, out: out * numbers.random())
    return model, numbers.getstate


@written
def a_parametrization_counts() -> Made:
    calls: list[int] = []

    class Counts(nn.Module):
        def forward(self, weight):
            calls.append(1)
            return weight * len(calls)

    model = nn.Linear(3, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    parametrize.register_parametrization(model, "weight", Counts(), unsafe=True)
    return model, lambda: calls


# ---- methods, properties, descriptors


@written
def a_method_of_a_child_counts() -> Made:
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Ticks()

        def forward(self, x):
            return self.child(x)

    model = Parent()
    return model, lambda: model.child.n


@written
def a_method_of_a_method_of_an_object_counts() -> Made:
    class Inner:
        __slots__ = ("n",)

        def __init__(self) -> None:
            self.n = 0

        def tick(self) -> None:
            self.n += 1

    class Outer:
        def __init__(self) -> None:
            self.inner = Inner()

        def run(self, x):
            self.inner.tick()
            return x * self.inner.n

    outer = Outer()
    return (lambda x: outer.run(x)), lambda: outer.inner.n


@written
def a_property_appends() -> Made:
    calls: list[int] = []

    class Model(nn.Module):
        @property
        def scale(self) -> float:
            calls.append(1)
            return 2.0

        def forward(self, x):
            return x * self.scale

    return Model(), lambda: calls


@written
def a_property_counts_on_its_object() -> Made:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.box = [0]

        @property
        def scale(self) -> int:
            self.box[0] += 1
            return self.box[0]

        def forward(self, x):
            return x * self.scale

    model = Model()
    return model, lambda: model.box


@written
def a_property_draws() -> Made:
    numbers = random.Random(3)

    class Model(nn.Module):
        @property
        def scale(self) -> float:
            return numbers.random()

        def forward(self, x):
            return x * self.scale

    return Model(), numbers.getstate


@written
def a_descriptor_counts() -> Made:
    class Counted:
        n = 0

        def __get__(self, instance: Any, owner: Any = None) -> int:
            self.n += 1
            return self.n

    class Model(nn.Module):
        scale = Counted()

        def forward(self, x):
            return x * self.scale

    return Model(), lambda: Model.__dict__["scale"].n


@written
def a_missing_attribute_is_counted() -> Made:
    asked: list[str] = []

    class Config:
        def __getattr__(self, name: str) -> float:
            asked.append(name)
            return float(len(asked))

    config = Config()
    return (lambda x: x * config.scale), lambda: asked


@written
def an_index_is_counted() -> Made:
    asked: list[int] = []

    class Table:
        def __getitem__(self, index: int) -> float:
            asked.append(index)
            return float(len(asked))

    table = Table()
    return (lambda x: x * table[0]), lambda: asked


@written
def a_callable_object_remembers() -> Made:
    class Inner:
        def __init__(self) -> None:
            self.calls: list[int] = []

        def __call__(self, x):
            self.calls.append(1)
            return x * len(self.calls)

    class Outer:
        def __init__(self) -> None:
            self.inner = Inner()

        def run(self, x):
            return self.inner(x)

    outer = Outer()
    return (lambda x: outer.run(x)), lambda: outer.inner.calls


@written
def a_static_method_counts() -> Made:
    calls: list[int] = []

    class Scale:
        @staticmethod
        def by(x):
            calls.append(1)
            return x * len(calls)

    return (lambda x: Scale.by(x)), lambda: calls


@written
def a_class_method_counts() -> Made:
    class Scale:
        calls: list[int] = []  # noqa: RUF012

        @classmethod
        def by(cls, x):
            cls.calls.append(1)
            return x * len(cls.calls)

    return (lambda x: Scale.by(x)), lambda: Scale.calls


@written
def a_number_of_the_class_of_a_child_counts() -> Made:
    class Child(nn.Module):
        n = 0

        def forward(self, x):
            type(self).n += 1
            return x * Child.n

    return nn.Sequential(Child()), lambda: Child.n


@written
def a_dict_of_the_class_of_a_child_grows() -> Made:
    class Child(nn.Module):
        calls: dict[int, int] = {}  # noqa: RUF012

        def forward(self, x):
            self.calls[len(self.calls)] = 1
            return x * len(self.calls)

    return nn.Sequential(Child()), lambda: Child.calls


@written
def a_method_of_a_base_class_appends() -> Made:
    class Base(nn.Module):
        calls: list[int] = []  # noqa: RUF012

        def forward(self, x):
            Base.calls.append(1)
            return x * len(Base.calls)

    class Model(Base):
        def forward(self, x):
            return super().forward(x)

    return Model(), lambda: Base.calls


# ---- helpers


@written
def a_helper_of_a_method_appends() -> Made:
    calls: list[int] = []

    def helper(x):
        calls.append(1)
        return x * len(calls)

    class Owner:
        def run(self, x):
            return helper(x)

    owner = Owner()
    return (lambda x: owner.run(x)), lambda: calls


@written
def a_helper_counts_in_a_variable() -> Made:
    n = 0

    def helper(x):
        nonlocal n
        n += 1
        return x * n

    class Owner:
        def run(self, x):
            return helper(x)

    owner = Owner()
    return (lambda x: owner.run(x)), lambda: n


@written
def a_decorator_counts_calls() -> Made:
    calls = [0]

    def counted(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            calls[0] += 1
            return fn(*args)

        return wrapper

    scale = counted(lambda x: x * calls[0])
    return (lambda x: scale(x)), lambda: calls


@written
def a_wrapped_function_of_torch_counts() -> Made:
    calls = [0]

    @functools.wraps(torch.relu)
    def relu(x):
        calls[0] += 1
        return torch.relu(x) * calls[0]

    class Owner:
        def run(self, x):
            return relu(x)

    owner = Owner()
    return (lambda x: owner.run(x)), lambda: calls


@written
def a_default_of_a_helper_grows() -> Made:
    def helper(x, calls=[]):  # noqa: B006
        calls.append(1)
        return x * len(calls)

    space = types.SimpleNamespace(helper=helper)
    defaults: Any = helper.__defaults__
    return (lambda x: space.helper(x)), lambda: defaults[0]


@written
def an_attribute_of_a_helper_counts() -> Made:
    def helper(x):
        helper.n = getattr(helper, "n", 0) + 1  # type: ignore[attr-defined]
        return x * helper.n  # type: ignore[attr-defined]

    class Owner:
        def run(self, x):
            return helper(x)

    owner = Owner()
    return (lambda x: owner.run(x)), lambda: getattr(helper, "n", 0)


@written
def a_partial_holds_the_list() -> Made:
    calls: list[int] = []

    def scaled(kept, x):
        kept.append(1)
        return x * len(kept)

    bound = functools.partial(scaled, calls)
    return (lambda x: bound(x)), lambda: calls


@written
def a_context_manager_appends() -> Made:
    calls: list[int] = []

    class Noted:
        def __enter__(self) -> None:
            calls.append(1)

        def __exit__(self, *error: object) -> None:
            calls.append(2)

    def fn(x):
        with Noted():
            return x * len(calls)

    return fn, lambda: calls


@written
def a_generator_that_is_a_context_manager_appends() -> Made:
    calls: list[int] = []

    @contextlib.contextmanager
    def noted():
        calls.append(1)
        yield
        calls.append(2)

    def fn(x):
        with noted():
            return x * len(calls)

    return fn, lambda: calls


@written
def an_autograd_function_counts() -> Made:
    calls: list[int] = []

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            calls.append(1)
            return x * len(calls)

    return (lambda x: Scale.apply(x)), lambda: calls


@written
def a_tensor_subclass_counts() -> Made:
    calls: list[int] = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(1)
            return super().__torch_function__(func, types, args, kwargs or {})

    weight = torch.ones(3).as_subclass(Counted)
    return (lambda x: (x.cpu() * weight).as_subclass(torch.Tensor)), lambda: calls


@written
def a_function_mode_counts() -> Made:
    class Counted(TorchFunctionMode):
        n = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.n += 1
            return func(*args, **(kwargs or {}))

    mode = Counted()

    def fn(x):
        with mode:
            return x * 2 + 1

    return fn, lambda: mode.n


# ---- containers and objects of Python


@dataclasses.dataclass
class Position:
    n: int = 0


@written
def a_dataclass_behind_an_object_counts() -> Made:
    position = Position()

    class Owner:
        def __init__(self) -> None:
            self.position = position

        def step(self) -> None:
            self.position.n += 1

    owner = Owner()

    def fn(x):
        owner.step()
        return x * position.n

    return fn, lambda: position.n


@written
def a_counter_counts() -> Made:
    counter: collections.Counter[str] = collections.Counter()

    def fn(x):
        counter["calls"] += 1
        return x * counter["calls"]

    return fn, lambda: dict(counter)


@written
def an_ordered_dict_turns() -> Made:
    order = collections.OrderedDict((n, n) for n in range(3))

    def fn(x):
        order.move_to_end(next(iter(order)))
        return x * (1 + next(iter(order)))

    return fn, lambda: list(order)


@written
def a_weak_key_dictionary_grows() -> Made:
    class Key:
        pass

    keys = [Key() for _ in range(32)]
    known: Any = weakref.WeakKeyDictionary()

    def fn(x):
        known[keys[len(known)]] = 1
        return x * len(known)

    return fn, lambda: len(known)


@written
def what_a_weak_reference_leads_to_counts() -> Made:
    class Target:
        n = 0

    target = Target()
    reference = weakref.ref(target)

    def fn(x):
        reference().n += 1  # type: ignore[union-attr]
        return x * reference().n  # type: ignore[union-attr]

    return fn, lambda: target.n


@written
def an_attribute_of_a_tensor_counts() -> Made:
    weight: Any = torch.ones(3)
    weight.n = 0

    def fn(x):
        weight.n += 1
        return x * weight.n

    return fn, lambda: weight.n


def _module(**contents: Any) -> Any:
    module = types.ModuleType("hostile_written_module")
    vars(module).update(contents)
    return module


@written
def a_number_of_a_module_counts() -> Made:
    module = _module(n=0)

    def fn(x):
        module.n += 1
        return x * module.n

    return fn, lambda: module.n


@written
def a_list_of_a_module_grows() -> Made:
    module = _module(calls=[])

    def fn(x):
        module.calls.append(1)
        return x * len(module.calls)

    return fn, lambda: module.calls


@written
def a_queue_fills() -> Made:
    tasks: Any = queue.SimpleQueue()

    def fn(x):
        tasks.put(1)
        return x * tasks.qsize()

    return fn, lambda: tasks.qsize()


@written
def a_semaphore_is_taken() -> Made:
    slots = threading.Semaphore(100)

    def fn(x):
        slots.acquire()
        return x * 2

    return fn, lambda: slots._value


@written
def an_event_is_set_and_cleared() -> Made:
    event = threading.Event()

    def fn(x):
        if event.is_set():
            event.clear()
            return x * 2
        event.set()
        return x * 3

    return fn, lambda: event.is_set()


@written
def an_iterator_behind_a_method_advances() -> Made:
    numbers = iter(range(100))

    class Owner:
        def run(self, x):
            return x * next(numbers)

    owner = Owner()
    return (lambda x: owner.run(x)), numbers.__length_hint__


@written
def a_hash_is_fed() -> Made:
    digest = hashlib.sha256()

    def fn(x):
        digest.update(b"a")
        return x * digest.digest()[0]

    return fn, lambda: digest.hexdigest()


@written
def a_hash_is_fed_and_not_read() -> Made:
    digest = hashlib.blake2b()

    def fn(x):
        digest.update(b"a")
        return x * 2

    return fn, lambda: digest.hexdigest()


# ---- buffers


def _buffer(made: Any, read: Callable[[Any], Any] = bytes) -> Made:
    def fn(x):
        made[0] += 1
        return x * int(made[0])

    return fn, lambda: read(made)


@written
def a_byte_array_counts() -> Made:
    return _buffer(bytearray(2))


@written
def a_view_of_bytes_counts() -> Made:
    return _buffer(memoryview(bytearray(2)))


@written
def an_array_of_python_counts() -> Made:
    return _buffer(array.array("i", [0, 0]))


@written
def an_array_of_numpy_counts() -> Made:
    return _buffer(numpy.zeros(2))


@written
def an_array_of_c_counts() -> Made:
    return _buffer((ctypes.c_int * 2)())


@written
def a_record_of_c_counts() -> Made:
    class Header(ctypes.Structure):
        _fields_ = (("count", ctypes.c_int), ("sizes", ctypes.c_short * 3))

    header = Header()

    def fn(x):
        header.count += 1
        header.sizes[1] += 2
        return x * header.count

    return fn, lambda: bytes(header)


@written
def an_object_of_c_is_replaced() -> Made:
    kept = ctypes.py_object([])

    def fn(x):
        kept.value = [*kept.value, 1]
        return x * 2

    return fn, lambda: len(kept.value) > 0


@written
def a_released_view_is_in_reach() -> Made:
    view = memoryview(bytearray(2))
    view.release()
    return (lambda x: x * (2 if view else 3)), lambda: None


@written
def a_number_of_c_counts() -> Made:
    number = ctypes.c_int(0)

    def fn(x):
        number.value += 1
        return x * number.value

    return fn, lambda: number.value


# ---- tensors that only another way through the function writes to


@written
def a_list_decides_which_tensor_is_written() -> Made:
    calls: list[int] = []
    totals = [torch.zeros(3) for _ in range(4)]

    def fn(x):
        calls.append(1)
        totals[len(calls) % 4].add_(1)
        return x * 2

    return fn, lambda: totals


@written
def a_number_decides_whether_a_tensor_is_written() -> Made:
    state = types.SimpleNamespace(calls=0, total=torch.zeros(3))

    def fn(x):
        state.calls += 1
        if state.calls % 3 == 0:
            state.total.add_(x.cpu().sum())
        return x * 2

    return fn, lambda: state


@written
def an_attribute_of_a_function_beside_counts() -> Made:
    space: dict[str, Any] = {"__name__": "elsewhere.part"}
    source = """
def make():
    def other(): pass
    other.n = 0
    def count(): other.n += 1
    return count, lambda: other.n
"""
    exec(source, space)  # a module of another package
    count, look = space["make"]()

    def fn(x):
        count()
        return x * 2

    return fn, look


@written
def methods_of_a_class_change_places() -> Made:
    class Two:
        def a(self) -> float:
            return 1.0

        def b(self) -> float:
            return 2.0

    two = Two()

    def fn(x):
        y = x * 3
        Two.a, Two.b = Two.b, Two.a  # type: ignore[method-assign]
        return y

    return fn, lambda: (two.a(), two.b())


@written
def an_array_that_somebody_looks_at_counts() -> Made:
    numbers = array.array("d", [0.0])
    view = memoryview(numbers)

    def fn(x):
        view[0] = numbers[0] + 1
        return x * 2

    return fn, lambda: numbers[0]


@written
def a_square_matrix_is_transposed() -> Made:
    matrix = torch.arange(16.0).view(4, 4)

    def fn(x):
        y = x * 2
        matrix.t_()
        return y

    return fn, lambda: (matrix, matrix.stride())


# ---- the same value in each run of one kind, and another one in calls of another kind


@written
def an_attribute_says_which_way_the_data_took() -> Made:
    class Model(nn.Module):
        last: Any = None

        def forward(self, x):
            if x.sum() > 0:
                self.last = "positive"
                return x * 2
            self.last = "negative"
            return x - 1

    model = Model()
    return model, lambda: model.last


@written
def one_way_writes_what_another_reads() -> Made:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 1.0

        def forward(self, x):
            total = x.sum()
            if total > 0.5:
                self.scale = 2.0
                return x + 1
            if total < -0.5:
                self.scale = 3.0
                return x - 1
            return x * self.scale

    model = Model()
    return model, lambda: model.scale


@written
def a_number_that_was_read_is_kept() -> Made:
    class Model(nn.Module):
        token: Any = None

        def forward(self, x):
            self.token = int(x.argmax())
            return x * 2

    model = Model()
    return model, lambda: model.token


@written
def a_slot_says_which_way_the_data_took() -> Made:
    class State:
        __slots__ = ("way",)

    state = State()
    state.way = 0

    def fn(x):
        state.way = 1 if x.sum() > 0 else 2
        return x * state.way

    return fn, lambda: state.way


@written
def a_helper_keeps_which_way_the_data_took() -> Made:
    kept: dict[str, Any] = {"way": None}

    class Helper:
        def note(self, way: str) -> None:
            kept["way"] = way

    helper = Helper()

    def fn(x):
        if x.sum() > 0:
            helper.note("positive")
            return x * 2
        helper.note("negative")
        return x - 1

    return fn, lambda: kept


# ---- settings, of which the process has but one


def _toggles(read: Callable[[], Any], write: Callable[[Any], None], values: Any) -> Made:
    write(values[0])

    def fn(x):
        first = read() == values[0]
        write(values[1] if first else values[0])
        return x * (2 if first else 3)

    return fn, read


@written
def a_tensor_requires_grad_by_turns() -> Made:
    weight = torch.ones(3)
    return _toggles(lambda: weight.requires_grad, weight.requires_grad_, (False, True))


@setting
def the_default_dtype_changes_by_turns() -> Made:
    values = (torch.float32, torch.float64)
    return _toggles(torch.get_default_dtype, torch.set_default_dtype, values)


@setting
def deterministic_algorithms_change_by_turns() -> Made:
    return _toggles(
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        (False, True),
    )


@setting
def tf32_changes_by_turns() -> Made:
    def write(value: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32 = value

    return _toggles(lambda: torch.backends.cuda.matmul.allow_tf32, write, (False, True))


@setting
def benchmarking_changes_by_turns() -> Made:
    def write(value: bool) -> None:
        torch.backends.cudnn.benchmark = value

    return _toggles(lambda: torch.backends.cudnn.benchmark, write, (False, True))


@setting
def attention_kernels_change_by_turns() -> Made:
    cuda = torch.backends.cuda
    return _toggles(cuda.flash_sdp_enabled, cuda.enable_flash_sdp, (True, False))


@setting
def the_environment_counts() -> Made:
    os.environ.pop("HOSTILE_CALLS", None)

    def fn(x):
        os.environ["HOSTILE_CALLS"] = str(int(os.environ.get("HOSTILE_CALLS", "0")) + 1)
        return x * int(os.environ["HOSTILE_CALLS"])

    return fn, lambda: os.environ.get("HOSTILE_CALLS")


@contextlib.contextmanager
def settings_kept():
    """Puts back what the functions above change in the process."""
    matmul, cudnn, cuda = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.cuda
    tf32, benchmark, flash = matmul.allow_tf32, cudnn.benchmark, cuda.flash_sdp_enabled()
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.benchmark = tf32, benchmark
        cuda.enable_flash_sdp(flash)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic)
        os.environ.pop("HOSTILE_CALLS", None)
