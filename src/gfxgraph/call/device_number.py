"""A number whose value lies on the device, and which behaves as a Python number does."""

from __future__ import annotations

import dis
import operator
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.torch_version import TorchVersion

from ..errors import CaptureError
from ..interpose.patch import intercept

__all__ = ["LARGEST", "DeviceNumber", "on_device", "taken_by_constructors"]

LARGEST: dict[type, float] = {float: 2.0**15, int: 2**26}
"""Up to here a number can be on the device: what is computed of it does not overflow unnoticed."""

# Up to here whole numbers, and their quotients, are those of Python in 64 bits.
_EXACT = 2**53
_DTYPES = {float: torch.float64, int: torch.int64}
# What operators compute in, where that is not the dtype itself (``at::OpMathType``).
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_KNOWN = (*_FLOATS, torch.int32, torch.int64, torch.bool)


def on_device(value: float, device: torch.device) -> torch.Tensor:
    """A tensor without dimensions that holds a number as Python does, in 64 bits."""
    return torch.full((), value, dtype=_DTYPES[type(value)], device=device)


class DeviceNumber:
    """Stands for a float or an int whose value lies on the device.

    With other numbers it computes in 64 bits, as Python does. With a tensor it gives, bit for bit,
    what torch gives for that tensor and the number. Where that is not known, or Python needs the
    value (``if``, ``range``, ``math``, a size, a text), it is read from the device like ``item()``.

    Args:
        tensor: it, in float64 or int64.
        bound: no value of it has a larger magnitude.
    """

    __slots__ = ("_bound", "_known", "_tensor", "_type")
    #: Who asks for its type is refused: that would be another than in eager execution.
    _stands_in = True
    # NumPy leaves what is to be computed to us: a float has no dtype there.
    __array_ufunc__ = None

    def __init__(self, tensor: torch.Tensor, bound: float | None = None) -> None:
        self._tensor = tensor
        self._type: type = float if tensor.dtype == torch.float64 else int
        self._bound = LARGEST[self._type] if bound is None else bound
        self._known: Any = None

    # isinstance(scale, float) asks for this.
    __class__ = property(lambda self: self._type)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the device where that is known to be the same; else with the value."""
        compute, given = _COMPUTED.get(func), dict(kwargs or {})
        operands = [given.pop(name) for name in ("input", "other") if name in given]
        result = NotImplemented if compute is None else compute(*args, *operands, **given)
        if result is not NotImplemented:
            return result
        return func(*_values(args), **_values(kwargs or {}))

    def _read(self) -> Any:
        """The value, which the host waits for, once in a run.

        Functions of torch ask for an index whenever they look at their arguments, and that may be
        more often in a capture than in the run before.
        """
        if self._known is None:
            self._known = self.value_on_host()
        return self._known

    def value_on_host(self) -> Any:
        """The value of now, which a ``no_graph`` function is given in each replay."""
        return self._tensor.item()

    def __complex__(self) -> complex:
        return complex(self._read())

    def _to(self, dtype: torch.dtype) -> torch.Tensor:
        return self._tensor.to(dtype)

    def _fits(self, dtype: torch.dtype) -> bool:
        if dtype == torch.bool:
            return False
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        return self._bound <= info.max

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read(), name)  # is_integer(), real ...

    def __reduce__(self) -> Any:
        return self._type, (self._read(),)

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    # With numbers.

    def __bool__(self) -> bool:
        return bool(self._tensor != 0)

    def __hash__(self) -> int:
        # It would stay there, and be another number in the next call.
        raise CaptureError(
            "a number that is an input (inputs=) is used as the key of a dict, a set or a cache"
        )

    def __neg__(self) -> Any:
        return DeviceNumber(-self._tensor, self._bound)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return DeviceNumber(self._tensor.abs(), self._bound)

    def __add__(self, other: Any) -> Any:
        return _with_number(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _with_number(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return _with_number(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _with_number(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return _with_number(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _with_number(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _with_number(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _with_number(operator.truediv, other, self)


def _with_number(compute: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """A sum, difference, product or quotient of two numbers, one of them on the device."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return NotImplemented  # which the tensor does
    if not _is_operator(sys._getframe(2)):  # sum() of numbers rounds only once
        return compute(*_values((one, other)))
    known = next(n for n in (one, other) if type(n) is DeviceNumber)
    numbers = [_as_device_number(n, known._tensor.device) for n in (one, other)]
    if None in numbers:
        return compute(*_values((one, other)))
    a, b = numbers
    if compute is operator.truediv:
        if bool(b._tensor == 0) if type(other) is DeviceNumber else other == 0:
            raise ZeroDivisionError("division by zero")
        if max(a._bound, b._bound) > _EXACT and {a._type, b._type} != {float}:
            return compute(*_values((one, other)))
        return DeviceNumber(a._to(torch.float64) / b._to(torch.float64), float("inf"))
    bound = a._bound * b._bound if compute is operator.mul else a._bound + b._bound
    dtype = torch.float64 if float in (a._type, b._type) else torch.int64
    if (dtype == torch.int64 and bound > _EXACT) or bound != bound:
        return compute(*_values((one, other)))
    return DeviceNumber(compute(a._to(dtype), b._to(dtype)), bound)


def _is_operator(frame: types.FrameType) -> bool:
    """Whether the instruction that ``frame`` runs is an operator, and no call."""
    opcode = frame.f_code.co_code[frame.f_lasti]
    return dis.opname[opcode].startswith(("BINARY_", "INPLACE_"))


def _as_device_number(number: Any, device: torch.device) -> Any:
    if type(number) is DeviceNumber:
        return number
    if type(number) not in _DTYPES or (type(number) is int and abs(number) > _EXACT):
        return None
    # Not a tensor of the host: torch multiplies by the reciprocal of such a divisor.
    return DeviceNumber(on_device(number, device), abs(number))


def _values(item: Any) -> Any:
    """``item`` with the values of the numbers on the device."""
    if type(item) is DeviceNumber:
        return item._read()
    if type(item) in (list, tuple):
        return type(item)(map(_values, item))
    if type(item) is dict:
        return {key: _values(value) for key, value in item.items()}
    return item


def _compared(name: str) -> Callable[[DeviceNumber, Any], Any]:
    """A comparison: its outcome is read, and not the value."""
    compute = getattr(operator, name)

    def compare(self: DeviceNumber, other: Any) -> Any:
        if isinstance(other, torch.Tensor) or type(other) in _NEVER_EQUAL:
            return NotImplemented
        number = _as_device_number(other, self._tensor.device)
        if number is None:
            return compute(self._read(), other)
        dtype = torch.float64 if float in (self._type, number._type) else torch.int64
        return bool(compute(self._to(dtype), number._to(dtype)))

    return compare


_NEVER_EQUAL = (type(None), str, bytes, list, tuple, dict)


def _reading(name: str) -> Callable[..., Any]:
    """A method of float or int, for which Python needs the value."""

    def read(self: DeviceNumber, *others: Any) -> Any:
        method = getattr(self._type, name, None)
        if method is None:
            raise TypeError(f"'{self._type.__name__}' object has no {name}")
        return method(self._read(), *_values(others))

    return read


def _operation(compute: Callable[[Any, Any], Any], is_reflected: bool) -> Callable[..., Any]:
    """An operator of two numbers, for which Python needs the value."""

    def read(self: DeviceNumber, other: Any, *modulus: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        pair = (_values(other), self._read()) if is_reflected else (self._read(), _values(other))
        return compute(*pair, *modulus)

    return read


for _name in ("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"):
    setattr(DeviceNumber, _name, _compared(_name))
for _name in (
    *("__str__", "__repr__", "__format__"),
    *("__float__", "__int__", "__index__"),
    *("__trunc__", "__floor__", "__ceil__", "__round__", "__invert__"),
):
    setattr(DeviceNumber, _name, _reading(_name))
for _name, _compute in (
    *(("pow", pow), ("divmod", divmod), ("floordiv", operator.floordiv), ("mod", operator.mod)),
    *(("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)),
    *(("lshift", operator.lshift), ("rshift", operator.rshift)),
):
    setattr(DeviceNumber, f"__{_name}__", _operation(_compute, is_reflected=False))
    setattr(DeviceNumber, f"__r{_name}__", _operation(_compute, is_reflected=True))


# With tensors: what torch computes for a tensor and a number.

_COMPUTED: dict[Any, Callable[..., Any]] = {}


def _computes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that computes these functions of torch and methods of tensors."""

    def note(compute: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            for owner in (torch, torch.Tensor):
                if hasattr(owner, name):
                    _COMPUTED[getattr(owner, name)] = compute
        return compute

    return note


def _dtype_of(tensor: Any, number: Any) -> torch.dtype | None:
    """The dtype of what the two give; ``None``: what torch does is not known here."""
    if (
        not isinstance(tensor, torch.Tensor)
        or type(number) is not DeviceNumber
        or tensor.device != number._tensor.device
        or tensor.dtype not in _KNOWN
    ):
        return None
    return torch.result_type(tensor, 1.0 if number._type is float else 1)


def _calculated(
    compute: Callable[..., Any], tensor: Any, number: Any, rounds_first: bool = True
) -> Any:
    """``compute`` of the two, rounded as operators do."""
    dtype = _dtype_of(tensor, number)
    if dtype is None or not (dtype.is_floating_point or number._fits(dtype)):
        return NotImplemented
    wide = _WIDE.get(dtype, dtype)
    # On the host a number that is added, or multiplied by a tensor, is rounded first (seen with
    # torch 2.11 and 2.13).
    value = number._to(dtype if rounds_first and tensor.is_cpu else wide)
    return compute(tensor.to(wide), value.to(wide)).to(dtype)


def _sorted(one: Any, other: Any) -> tuple[Any, Any]:
    """The tensor, then the number."""
    return (other, one) if type(one) is DeviceNumber else (one, other)


@_computes("add", "__add__", "__radd__")
def _add(one: Any, other: Any, **options: Any) -> Any:
    return NotImplemented if options else _calculated(torch.add, *_sorted(one, other))


@_computes("mul", "multiply", "__mul__", "__rmul__")
def _mul(one: Any, other: Any, **options: Any) -> Any:
    if options:
        return NotImplemented
    is_first = type(one) is DeviceNumber  # torch.mul(scale, x)
    return _calculated(torch.mul, *_sorted(one, other), rounds_first=is_first)


@_computes("sub", "subtract", "__sub__")
def _sub(tensor: Any, number: Any, **options: Any) -> Any:
    return NotImplemented if options else _calculated(torch.sub, tensor, number)


@_computes("rsub", "__rsub__")
def _rsub(tensor: Any, number: Any, **options: Any) -> Any:
    if options:
        return NotImplemented
    return _calculated(lambda a, b: torch.sub(b, a), tensor, number)


@_computes("div", "divide", "true_divide", "__truediv__", "__div__")
def _div(tensor: Any, number: Any, **options: Any) -> Any:
    dtype = _dtype_of(tensor, number)
    if dtype is None or options:
        return NotImplemented
    if not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    wide = _WIDE.get(dtype, dtype)
    if tensor.is_cuda:  # which multiplies by the reciprocal of a number (BinaryDivTrueKernel.cu)
        inverse = number._to(torch.float64).reciprocal()  # taken of the double (seen with 2.11)
        return (tensor.to(wide) * inverse.to(wide)).to(dtype)
    return (tensor.to(wide) / number._to(wide)).to(dtype)


@_computes("__rtruediv__", "__rdiv__")
def _rdiv(tensor: Any, number: Any) -> Any:
    if _dtype_of(tensor, number) is None:
        return NotImplemented
    return tensor.reciprocal() * number


def _in_place(compute: Callable[..., Any]) -> Callable[..., Any]:
    def write(tensor: Any, number: Any, **options: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return NotImplemented
        result = compute(tensor, number, **options)
        if result is NotImplemented or result.dtype != tensor.dtype:
            return NotImplemented
        return tensor.copy_(result)

    return write


_computes("add_", "__iadd__")(_in_place(_add))
_computes("mul_", "multiply_", "__imul__")(_in_place(_mul))
_computes("sub_", "subtract_", "__isub__")(_in_place(_sub))
_computes("div_", "divide_", "true_divide_", "__itruediv__", "__idiv__")(_in_place(_div))


def _comparing(compare: Callable[..., Any], reflected: Callable[..., Any]) -> Callable[..., Any]:
    def compute(one: Any, other: Any, **options: Any) -> Any:
        tensor, number = _sorted(one, other)
        dtype = _dtype_of(tensor, number)
        if dtype is None or options or not number._fits(dtype):
            return NotImplemented
        known = compare if tensor is one else reflected
        return known(tensor.to(dtype), number._to(dtype))

    return compute


for _name, _other in (("lt", "gt"), ("le", "ge"), ("eq", "eq"), ("ne", "ne")):
    for _ours, _theirs in {(_name, _other), (_other, _name)}:
        _function = _comparing(getattr(torch, _ours), getattr(torch, _theirs))
        _computes(_ours, f"__{_ours}__")(_function)


def _where(condition: Any, one: Any = None, other: Any = None, **options: Any) -> Any:
    if type(condition) is DeviceNumber:
        return NotImplemented
    dtype = _dtype_of(*_sorted(one, other))
    if dtype is None or options:
        return NotImplemented
    made = [n._to(dtype) if type(n) is DeviceNumber else n.to(dtype) for n in (one, other)]
    return torch.where(condition, *made)


_COMPUTED[torch.where] = _where
_COMPUTED[torch.Tensor.where] = lambda tensor, condition, other: _where(condition, tensor, other)


def _as_value(tensor: Any, number: Any) -> Any:
    """A number as what elements of ``tensor`` are set to."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        return NotImplemented
    dtype = _dtype_of(tensor, number)
    return NotImplemented if dtype is None or not number._fits(dtype) else number._to(dtype)


@_computes("masked_fill")
def _masked_fill(tensor: Any, mask: Any, value: Any) -> Any:
    value = _as_value(tensor, value)
    return value if value is NotImplemented else tensor.masked_fill(mask, value)


@_computes("masked_fill_")
def _masked_fill_(tensor: Any, mask: Any, value: Any) -> Any:
    value = _as_value(tensor, value)
    return value if value is NotImplemented else tensor.masked_fill_(mask, value)


@_computes("fill_")
def _fill_(tensor: Any, value: Any) -> Any:
    value = _as_value(tensor, value)
    return value if value is NotImplemented else tensor.fill_(value)


@_computes("__setitem__")
def _set_item(tensor: Any, index: Any, value: Any) -> Any:
    value = _as_value(tensor, value)
    if value is not NotImplemented:
        tensor[_values(index)] = value
        value = None
    return value


@_computes("full_like")
def _full_like(tensor: Any, fill_value: Any, **options: Any) -> Any:
    value = NotImplemented if options else _as_value(tensor, fill_value)
    return value if value is NotImplemented else torch.empty_like(tensor).copy_(value)


@_computes("new_full")
def _new_full(tensor: Any, size: Any, fill_value: Any, **options: Any) -> Any:
    value = NotImplemented if options else _as_value(tensor, fill_value)
    return value if value is NotImplemented else tensor.new_empty(_values(size)).copy_(value)


@_computes("full")
def _full(
    size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, **options: Any
) -> Any:
    number = fill_value
    if options or type(number) is not DeviceNumber:
        return NotImplemented
    if dtype is None:
        dtype = torch.get_default_dtype() if number._type is float else torch.int64
    made = torch.empty(_values(size), dtype=dtype, device=device)
    if made.device != number._tensor.device or dtype not in _KNOWN or not number._fits(dtype):
        return NotImplemented
    return made.copy_(number._tensor)


@contextmanager
def taken_by_constructors() -> Iterator[None]:
    """Let the functions that make tensors of numbers take those on the device."""
    with ExitStack() as intercepted:
        for owner, name, take in _CONSTRUCTORS:
            intercepted.enter_context(intercept(owner, name, take))
        yield


def _taking_numbers(func: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for ``func``, a function of torch that takes only plain numbers."""

    def take(make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if DeviceNumber in map(type, (*args, *options.values())):
            return DeviceNumber.__torch_function__(func, (), args, options)
        return make(*args, **options)

    return take


def _tensor(make: Callable[..., Any], data: Any = (), *args: Any, **options: Any) -> Any:
    """``torch.tensor(scale)``, ``torch.tensor([scale, 1.0])``."""
    items = data if type(data) in (list, tuple) else (data,)
    if DeviceNumber not in map(type, items) or not {*map(type, items)} <= {DeviceNumber, *_DTYPES}:
        return make(_values(data), *args, **options)
    types = {item._type if type(item) is DeviceNumber else type(item) for item in items}
    sample = make([max(types, key=(int, float).index)(0)] * len(items), *args, **options)
    for n, item in enumerate(items):
        value = _as_value(sample, item) if type(item) is DeviceNumber else item
        sample[n] = _values(item) if value is NotImplemented else value
    return sample if items is data else sample[0]


_CONSTRUCTORS: list[tuple[Any, str, Callable[..., Any]]] = [
    (torch, "tensor", _tensor),
    (torch, "as_tensor", _tensor),
]
# These take plain numbers alone there, and so does Tensor.new_full(), which cannot be replaced.
if torch.__version__ < TorchVersion("2.9"):
    _CONSTRUCTORS += [
        (torch, f.__name__, _taking_numbers(f)) for f in (torch.full, torch.full_like)
    ]
