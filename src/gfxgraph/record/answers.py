"""What torch tells Python code about tensors, with their sizes kept back.

Which way Python code goes depends on what it reads, and on what torch tells it. Where two runs are
told the same, and what they read is the same, they go the same way. Calls of two sizes are told two
sizes. So here a size is a stand-in, which torch takes as it takes an ``int``: code can hand it to
``view()`` or add one to it, and has learned nothing. Once it compares the size, counts to it or
prints it, what comes out is an answer like any other.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..device.overrides import HiddenFunctionMode
from .effects import Unexpected
from .questions import BESIDE_LOOK

__all__ = ["Answers", "Size"]

# What of ours calls the function, and asks for itself.
_CALLING = f"{__name__.partition('.')[0]}.call."
_SIZES = frozenset(
    (
        vars(torch._C.TensorBase)["shape"].__get__,
        *(torch.Tensor.size, torch.Tensor.numel, torch.Tensor.nelement, torch.numel),
    )
)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (
    *(int, float, bool, complex, str, bytes, type(None), type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_GROUPS = (tuple, list, torch.Size)


class Answers(HiddenFunctionMode):
    """Notes what torch tells the code inside.

    Args:
        expected: the answers that are to come. Before code gets another one, the run ends by
            :class:`Unexpected`. Default: whatever comes.

    Attributes:
        told: each call of torch and what it gave, and what else was told of a size. No tensors.
        are_all: whether these are all answers. Not so if a call raised an error, took or gave what
            is not known here, or may have run code that asks by itself.
        of_sizes: how many of them tell something of a size.
    """

    def __init__(self, expected: list[Any] | None = None) -> None:
        super().__init__()
        self._expected = expected
        self.told: list[Any] = []
        self.are_all = not _has_kernels_in_python()
        self.of_sizes = self._modes = 0

    @property
    def are_expected(self) -> bool:
        """Whether it is known which answers are to come."""
        return self._expected is not None

    @property
    def were_told(self) -> bool:
        """Whether those that were expected have come, and nothing else."""
        return self.are_all and self.told == self._expected

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith(_CALLING):
            return func(*args, **(kwargs or {}))
        tensors: list[torch.Tensor] = []
        given = self._given(args, tensors)
        named = {name: self._given(value, tensors) for name, value in (kwargs or {}).items()}
        is_between = torch._C._len_torch_dispatch_stack() != self._modes  # a mode of the program's
        if is_between or func in BESIDE_LOOK or not _is_of_torch(func):
            self.give_up()
        try:
            result = func(*given, **named)
        except BaseException:
            self.give_up()  # of the error, the text tells sizes
            raise
        if func in _SIZES:
            result, answer = self._kept_back(result), None
        else:
            answer = self._answer(result, tensors)
        self._note((func, answer))
        return result

    def _note(self, answer: Any) -> None:
        expected, at = self._expected, len(self.told)
        self.told.append(answer)
        if expected is not None and (at >= len(expected) or expected[at] != answer):
            self.give_up()

    def __enter__(self) -> Answers:
        self._modes = torch._C._len_torch_dispatch_stack()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def give_up(self) -> None:
        """Code learns something that is not told here, or another answer than was expected."""
        self.are_all = False
        if self._expected is not None:
            raise Unexpected("torch tells the function something else for this size")

    def tell(self, answer: Any) -> Any:
        """Code learns ``answer``, which depends on a size."""
        self.of_sizes += 1
        self._note(answer)
        return answer

    def _given(self, item: Any, tensors: list[torch.Tensor]) -> Any:
        """What torch is to be given for ``item``: sizes for stand-ins."""
        kind = type(item)
        if kind is Size:
            return item._value
        if kind in _TENSORS:
            tensors.append(item)
            return item
        if kind in _GROUPS:
            return kind([self._given(part, tensors) for part in item])
        if kind is slice:
            ends = item.start, item.stop, item.step
            return slice(*(self._given(end, tensors) for end in ends))
        if kind is dict:
            return {name: self._given(part, tensors) for name, part in item.items()}
        if kind not in _PLAIN:
            self.give_up()
        return item

    def _kept_back(self, sizes: Any) -> Any:
        if type(sizes) is int:
            return Size(sizes, self)
        kept: list[Any] = [Size(size, self) for size in sizes]
        return torch.Size(kept)

    def _answer(self, result: Any, tensors: list[torch.Tensor]) -> Any:
        """What code can learn from ``result`` without asking further."""
        kind = type(result)
        if kind in _TENSORS:
            return next((n for n, tensor in enumerate(tensors) if tensor is result), -1)
        if kind in _GROUPS or isinstance(result, tuple):
            return kind, [self._answer(part, tensors) for part in result]
        if kind not in _PLAIN:
            self.give_up()
        return kind, result if kind in _PLAIN else None


_IN_C = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.ClassMethodDescriptorType),
)


def _is_of_torch(func: Any) -> bool:
    """Whether no code of the program runs in ``func``, given nothing that can be called."""
    if isinstance(func, types.FunctionType):
        name = str(func.__globals__.get("__name__", ""))
        return name.partition(".")[0] == "torch"
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        whole: Any = func if isinstance(func, torch._ops.OpOverloadPacket) else func.overloadpacket
        is_own = str(whole._qualified_op_name).startswith("aten::")
        return is_own and not _has_kernels_in_python()
    return isinstance(func, _IN_C)


def _kernels_in_python() -> frozenset[str]:
    known: Iterable[str] = getattr(torch.library, "_impls", ())
    return frozenset(name for name in known if name.startswith("aten/"))


_OF_TORCHS = _kernels_in_python()


def _has_kernels_in_python() -> bool:
    """Whether the program has given an operator of torch's own a kernel in Python."""
    return any(not name.endswith("/Meta") for name in _kernels_in_python() - _OF_TORCHS)


class Size(torch.SymInt):
    """Stands for a size. For code that asks, it is an ``int``; torch takes it for one."""

    __slots__ = ("_answers", "_value")
    #: Who asks for its type is told another one than in other runs.
    _stands_in = True

    def __init__(self, value: int, answers: Answers) -> None:
        self._value, self._answers = value, answers

    __class__ = property(lambda self: int)

    def give_up(self) -> None:
        """Code asks what only an ``int`` answers."""
        self._answers.give_up()

    def __deepcopy__(self, memo: Any) -> Size:
        return self

    def __copy__(self) -> Size:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (self._answers.tell(self._value),)


def _computed(compute: Callable[..., Any], is_reflected: bool = False) -> Any:
    """A method that gives another size, where both numbers are whole ones."""

    def method(size: Size, *others: Any) -> Any:
        if any(isinstance(other, torch.Tensor) for other in others):
            return NotImplemented  # the tensor computes
        values = [size._value, *(o._value if type(o) is Size else o for o in others)]
        if is_reflected:
            values.reverse()
        if any(type(value) not in (int, bool) for value in values):
            return _told(compute, is_reflected)(size, *others)
        try:
            return Size(compute(*values), size._answers)
        except ArithmeticError:
            size.give_up()
            raise

    return method


def _told(compute: Callable[..., Any], is_reflected: bool = False) -> Any:
    """A method by which code learns the number itself."""

    def method(size: Size, *others: Any) -> Any:
        if any(isinstance(other, torch.Tensor) for other in others):
            return NotImplemented
        values = [size._answers.tell(size._value)]
        values += [o._answers.tell(o._value) if type(o) is Size else o for o in others]
        if is_reflected:
            values.reverse()
        return compute(*values)

    return method


def _compared(compare: Callable[..., Any]) -> Any:
    """A method by which code learns how two numbers compare."""

    def method(size: Size, *others: Any) -> Any:
        if any(isinstance(other, torch.Tensor) for other in others):
            return NotImplemented
        values = [o._value if type(o) is Size else o for o in others]
        if any(type(value) not in (int, bool, float) for value in values):
            return _told(compare)(size, *others)
        return size._answers.tell(compare(size._value, *values))

    return method


def _attribute(name: str) -> Any:
    return property(lambda size: getattr(size._answers.tell(size._value), name))


def _of_tracing(size: Size) -> Any:
    """What a number has that torch traces, and an ``int`` has not."""
    size.give_up()
    raise AttributeError("a size that is kept back")


_TOLD = "truediv and or xor lshift rshift"


def _complete() -> None:
    """Give :class:`Size` all that an ``int`` has."""
    computed = ("add", "sub", "mul", "floordiv", "mod")
    told = {name: getattr(operator, f"__{name}__") for name in _TOLD.split()}
    told |= {"divmod": divmod, "pow": pow}
    methods: dict[str, Any] = {}
    for name in dir(int):
        plain = name.strip("_")
        if not name.startswith("__"):
            methods[name] = _attribute(name)
        elif plain in ("lt", "le", "eq", "ne", "gt", "ge"):
            methods[name] = _compared(getattr(operator, plain))
        elif plain == "bool":
            methods[name] = _compared(bool)
        elif plain in computed:
            methods[name] = _computed(getattr(operator, plain))
        elif plain.startswith("r") and plain[1:] in computed:
            methods[name] = _computed(getattr(operator, plain[1:]), is_reflected=True)
        elif plain in told:
            methods[name] = _told(told[plain])
        elif plain.startswith("r") and plain[1:] in told:
            methods[name] = _told(told[plain[1:]], is_reflected=True)
        elif plain in ("neg", "pos", "abs"):
            methods[name] = _computed(getattr(operator, plain))
        elif name not in vars(object) or plain in ("hash", "repr", "str", "format", "sizeof"):
            methods[name] = _told(getattr(int, name))
    for name in ("node", *vars(torch.SymInt)):
        if not hasattr(int, name) and name not in ("__dict__", "__weakref__", "__module__"):
            methods[name] = property(_of_tracing)
    for name, method in methods.items():
        if name not in vars(Size):
            setattr(Size, name, method)


_complete()
