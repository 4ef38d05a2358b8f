"""What takes part in a collective, as a call that a journal can repeat.

An :class:`Exchange` is one function of ``torch.distributed`` that sends something to other ranks:
a method of a process group, or an operator. It runs once in each call of the user's, between two
graphs, on the very memory of these. Runs of ours repeat what came out of it in the caller's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import distributed as dist
from torch._ops import OpOverload

from ..device.operators import written_tensors
from ..errors import CaptureError
from ..interpose.source import Source
from .effects import tensors_in
from .explain import explain
from .missing import name_the_missing

__all__ = [
    "DONE",
    "Collective",
    "Exchange",
    "Progress",
    "TakesPart",
    "goes_on",
    "is_sending",
    "joined",
    "sending",
]

_WORK: Any = dist.Work if dist.is_available() else object
# These write to none of their arguments; all other methods write to the first.
_WRITE_NOTHING = frozenset(
    ("_end_coalescing", "_start_coalescing", "barrier", "monitored_barrier", "send")
)


class _Local(threading.local):
    sends = False


_local = _Local()


@contextmanager
def sending() -> Iterator[None]:
    """What this thread calls inside is part of an exchange."""
    before, _local.sends = _local.sends, True
    try:
        yield
    finally:
        _local.sends = before


def is_sending() -> bool:
    """Whether this thread is in an exchange: what it calls there is part of that."""
    return _local.sends


@dataclass(frozen=True)
class Collective:
    """A collective in a group of several ranks.

    Attributes:
        name: the function or the operator.
        ranks: how many are in its group.
        where: the user's line.
        group: the name of its group.
        tensors: shape and dtype of each tensor that it is given.
        why: more about why its function is not captured, if that is known.
    """

    name: str
    ranks: int
    where: Source
    group: str = ""
    tensors: tuple[tuple[tuple[int, ...], str], ...] = ()
    why: str = ""

    def error(self) -> CaptureError:
        """The error that says why its function cannot be captured."""
        of_ranks = f" in a group of {self.ranks} ranks" if self.ranks else ""
        what = f"{self.name}{of_ranks}"
        return explain("collective", what, self.where, self.why)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be equal on all ranks, besides the group. Lines of code may differ."""
        return self.name, self.tensors

    def __str__(self) -> str:
        given = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in self.tensors)
        return f"{self.name}({given}) in group {self.group or '?'} of {self.ranks} ranks"


class TakesPart(Protocol):
    """An exchange, or what stands for one."""

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """See :class:`Exchange`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take part."""


@dataclass(frozen=True)
class Exchange:
    """A function that takes part in a collective. Two with the same name are equal.

    Attributes:
        name: the method, the operator, or what is waited for.
        call: the function.
        op: the operator that it is, if it is one.
        parts: those that it sends together, see :func:`joined`.
        group: the name of its group, if that is known.
    """

    name: str
    call: Callable[..., Any] = field(compare=False)
    op: OpOverload | None = field(default=None, compare=False)
    parts: tuple[Exchange, ...] = field(default=(), compare=False)
    group: str = field(default="", compare=False)
    #: Asked before something is sent; it may raise. Set by whoever looks at what threads do.
    about_to_send: ClassVar[Callable[[Exchange], None]] = staticmethod(lambda exchange: None)

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments that it writes to."""
        if self.parts:
            each = zip(self.parts, args[0], strict=True)
            return [tensor for part, given in each for tensor in part.written(*given)]
        if self.op is not None:
            return list(written_tensors(self.op, tuple(args), kwargs))
        if self.name in _WRITE_NOTHING:
            return []
        # The first one is the group. By name anything may come.
        return list(tensors_in(args[1:2], kwargs))

    def __call__(self, *args: Any, progress: Progress | None = None, **kwargs: Any) -> Any:
        """Take part, and wait for the result where the function would do so at once.

        Args:
            args: the arguments.
            progress: what to return for work that goes on. Default: a new one.
            kwargs: further arguments.

        Raises:
            RuntimeError: as torch does; it is told which ranks are missing.
        """
        Exchange.about_to_send(self)
        try:
            return self._taken_part(args, progress, kwargs)
        except RuntimeError as error:
            if self.group:
                name_the_missing(error, self.name, self.group)
            raise

    def _taken_part(
        self, args: tuple[Any, ...], progress: Progress | None, kwargs: dict[str, Any]
    ) -> Any:
        with sending():
            result = self.call(*args, **kwargs)
            if isinstance(result, _WORK):
                if not goes_on(args, kwargs):
                    result.wait()
                    return DONE
                progress = Progress(self.name, self.group) if progress is None else progress
                progress.begin(result)
                return progress
            if self.op is not None:
                for tensor in tensors_in(result):
                    torch.ops._c10d_functional.wait_tensor(tensor)
            return result


def joined(name: str, parts: Sequence[Exchange]) -> Exchange:
    """An exchange that sends several together.

    Args:
        name: its name.
        parts: the exchanges. It takes a list with a pair of arguments and keyword arguments for
            each, and gives what the last one gives.
    """

    def call(given: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
        result = None
        for part, (args, kwargs) in zip(parts, given, strict=True):
            result = part.call(*args, **kwargs)
        return result

    return Exchange(name, call, parts=tuple(parts), group=parts[0].group)


def goes_on(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the caller does not wait at once; if torch does not say, it may not."""
    said = [getattr(value, "asyncOp", None) for value in (*args, *kwargs.values())]
    return not any(value is False for value in said)


class _Done(_WORK):  # type: ignore[misc]
    """Work that nobody has to wait for."""

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


DONE: Any = _Done()
"""What stands for the work of an exchange that has waited already."""


class Progress(_WORK):  # type: ignore[misc]
    """Stands for work that goes on until :meth:`wait`.

    Of the runs of one call, and of all replays of it, each gets the same object: so the outcome of
    the exchange is the same one in each.

    Args:
        name: of the exchange.
        group: the name of its group, if that is known.
    """

    # Both are set by whoever looks at what threads do.
    #: Runs an exchange.
    route: Callable[[Exchange, tuple[Any, ...]], Any] = staticmethod(lambda fn, args: fn(*args))
    #: Hears that the work is asked for more than its end.
    asked: Callable[[str], None] = staticmethod(lambda what: None)

    def __init__(self, name: str, group: str = "") -> None:
        super().__init__()
        self.name, self.group = name, group
        self.work: Any = None
        self.is_open = False
        self._settle: list[Callable[[], None]] = []

    def begin(self, work: Any) -> None:
        """It stands for ``work`` now."""
        self.work, self.is_open = work, True
        self._settle.clear()

    def when_done(self, settle: Callable[[], None]) -> None:
        """Call ``settle`` when the work has been waited for."""
        self._settle.append(settle)

    def now(self, *args: Any) -> Any:
        """Wait."""
        if self.work is None:
            return True
        result = self.work.wait(*args)
        settle, self._settle = self._settle, []
        self.is_open = False
        for act in settle:
            act()
        return result

    def wait(self, *args: Any) -> Any:
        """Wait, between two graphs."""
        return Progress.route(Exchange(f"the end of {self.name}", self.now, group=self.group), args)

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def again(self, own: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> Progress:
        """The same for a run that goes on with the work that is under way, if it is.

        Args:
            own: the tensors that the work writes to.
            given: those of that run, for which they stand.
        """
        progress = Progress(self.name, self.group)
        if self.is_open:
            progress.begin(self.work)

            def settle() -> None:
                with torch.no_grad():
                    for tensor, value in zip(given, own, strict=True):
                        tensor.copy_(value)

            progress.when_done(settle)
        return progress


def _pass_on(name: str) -> Callable[..., Any]:
    def method(self: Progress, *args: Any, **kwargs: Any) -> Any:
        Progress.asked(f"Work.{name}() of {self.name}")
        return getattr(self.work, name)(*args, **kwargs)

    return method


def _asks() -> list[str]:
    """The methods of torch's class that say more of work than that it is done."""
    names = {name for name, value in vars(_WORK).items() if callable(value)}
    return [name for name in names - vars(Progress).keys() if not name.startswith("_")]


for _name in _asks() if _WORK is not object else ():
    setattr(Progress, _name, functools.wraps(getattr(_WORK, _name))(_pass_on(_name)))
