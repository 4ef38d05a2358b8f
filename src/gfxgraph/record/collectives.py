"""Sees collectives of ``torch.distributed`` before they are issued.

A run of ours that issues a collective takes part in one that the other ranks may never begin. From
then on their collectives pair up with the wrong ones, or wait for ever. So we observe the caller's
own run, and a run of ours raises before anything is sent.

Python issues collectives through methods of a process group or operators of torch. Both are
replaced while a thread is observed, and only for that thread. Collectives that C++ issues by itself
reach the operators under a dispatch mode, which a recorded run has.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import distributed as dist

from ..errors import CaptureError
from ..forking import new_lock
from ..interpose.patch import intercept
from ..interpose.source import Source, users_line
from .explain import explain

__all__ = [
    "Issued",
    "known",
    "noticed",
    "observe",
    "raise_if_known",
    "refused",
    "release_with_groups",
]

_METHODS = frozenset(
    (
        "_allgather_base",
        "_reduce_scatter_base",
        "_start_coalescing",
        "all_gather_single",
        "all_gather_single_coalesced",
        "all_to_all_single",
        "allgather",
        "allgather_coalesced",
        "allgather_into_tensor_coalesced",
        "allreduce",
        "allreduce_coalesced",
        "allreduce_sparse",
        "alltoall",
        "alltoall_base",
        "barrier",
        "broadcast",
        "gather",
        "merge_remote_group",
        "monitored_barrier",
        "recv",
        "recv_anysource",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_single_coalesced",
        "reduce_scatter_tensor_coalesced",
        "scatter",
        "send",
        "split_group",
    )
)
_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "symm_mem")
# These send nothing.
_LOCAL = frozenset(
    (
        "_c10d_functional::wait_tensor",
        "c10d::check_for_nan",
        "symm_mem::_async_input_mm",
        "symm_mem::memset32_",
    )
)
# The functions that users call; messages name these instead of what they call.
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed._functional_collectives")


@dataclass(frozen=True)
class Collective:
    """A collective in a group of several ranks.

    Attributes:
        name: the function or the operator.
        ranks: how many are in its group.
        where: the user's line.
    """

    name: str
    ranks: int
    where: Source

    def error(self) -> CaptureError:
        """The error that says why its function cannot be captured."""
        return explain("collective", f"{self.name} in a group of {self.ranks} ranks", self.where)


@dataclass(eq=False)  # two runs may issue the same
class Issued:
    """The collectives of a thread while it was observed.

    Attributes:
        refuses: whether to refuse a collective in a group of several ranks now.
        found: these collectives, in order.
        groups: names of the groups of all collectives.
        stopped: the first that was refused.
    """

    refuses: Callable[[], bool] = lambda: False
    found: list[Collective] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    stopped: Collective | None = None


class _Local(threading.local):
    def __init__(self) -> None:
        self.observers: list[Issued] = []
        self.known: Issued | None = None
        self.replaced = ExitStack()


_local = _Local()


@contextmanager
def noticed() -> Iterator[Issued]:
    """Observe the collectives of this thread."""
    issued = Issued()
    several = _is_initialized() and dist.get_world_size() > 1
    with _observing(issued) if several else nullcontext():
        yield issued


@contextmanager
def refused(when: Callable[[], bool] = lambda: True) -> Iterator[Issued]:
    """Let no collective of this thread reach other ranks.

    Args:
        when: whether to refuse now.

    Raises:
        CaptureError: it was about to issue one; raised also if the function caught the first error.
    """
    issued = Issued(when)
    if not _is_initialized():
        yield issued
        return
    with _observing(issued):
        coalescing = _c10d()._world.pg_coalesce_state
        before = set(coalescing)
        try:
            yield issued
        finally:
            if issued.stopped is not None:
                # Or the group would keep for later what is issued from now on.
                for group in coalescing.keys() - before:
                    del coalescing[group]
    if issued.stopped is not None:
        raise issued.stopped.error()


@contextmanager
def known(issued: Issued) -> Iterator[None]:
    """Remember the collectives of a run: further runs of the same function would issue them too."""
    before, _local.known = _local.known, issued
    try:
        yield
    finally:
        _local.known = before


def raise_if_known() -> None:
    """Raise if an earlier run of the function issued a collective.

    Raises:
        CaptureError: it issued a collective.
    """
    issued = _local.known
    if issued is not None and issued.found:
        raise issued.found[0].error()


def observe(issued: Issued) -> Callable[[], None]:
    """Observe the collectives of this thread until the returned function is called."""
    stack = ExitStack()
    if _is_initialized():
        stack.enter_context(_observing(issued))
    return stack.close


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _issue(name: str, ranks: int, group: str) -> None:
    """Handle a collective that this thread is about to issue.

    Raises:
        CaptureError: it may not.
    """
    observers = _local.observers
    if not observers:
        return
    collective = None
    if ranks > 1:
        collective = Collective(_name_of_the_users(name), ranks, users_line())
    stops = False
    for issued in observers:
        issued.groups.add(group)
        if collective is not None:
            issued.found.append(collective)
            if issued.refuses():
                issued.stopped, stops = issued.stopped or collective, True
    if collective is not None and stops:
        raise collective.error()


def _name_of_the_users(name: str) -> str:
    """``all_gather_object`` where the user called that."""
    frame: FrameType | None = sys._getframe(2)
    found = name
    while frame is not None:
        code = frame.f_code
        if frame.f_globals.get("__name__") in _MODULES and not code.co_name.startswith(("_", "<")):
            found = code.co_name
        frame = frame.f_back
    return found


# Replacements while a thread is observed.


@contextmanager
def _observing(issued: Issued) -> Iterator[None]:
    observers = _local.observers
    observers.append(issued)
    try:
        if len(observers) == 1:
            _replace_all()
        yield
    finally:
        observers.remove(issued)
        if not observers:
            _local.replaced.close()


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


def _replace_all() -> None:
    c10d = _c10d()
    classes = {dist.ProcessGroup, torch._C._distributed_c10d.Backend}
    for group in list(c10d._world.pg_map):  # groups that are written in Python
        classes.update(c for c in type(group).__mro__ if issubclass(c, tuple(classes)))
    for cls in classes:
        for name in _METHODS & vars(cls).keys():
            _replace(cls, name, name, _of_method)
    for op in _operators():
        _replace(op, "_op", op.__name__.partition(".")[0], _of_operator)
    _replace(c10d, "_new_process_group_helper", "new_group", _of_all)


def _replace(
    owner: Any, name: str, collective: str, group_of: Callable[..., tuple[int, str]]
) -> None:
    """Issue ``collective`` before each call; ``group_of`` gives size and name of its group."""

    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        _issue(collective, *group_of(*args, **kwargs))
        return original(*args, **kwargs)

    _local.replaced.enter_context(intercept(owner, name, call))


def _of_method(group: Any, *args: Any, **kwargs: Any) -> tuple[int, str]:
    return group.size(), _name_of(group)


def _of_all(*args: Any, **kwargs: Any) -> tuple[int, str]:
    return dist.get_world_size(), ""


def _of_operator(*args: Any, **kwargs: Any) -> tuple[int, str]:
    c10d = _c10d()
    for arg in (*args, *kwargs.values()):
        try:
            if isinstance(arg, str):
                group = c10d._resolve_process_group(arg)
            elif isinstance(arg, torch.ScriptObject):
                group = dist.ProcessGroup.unbox(arg)
            else:
                continue
        except (RuntimeError, KeyError, TypeError, ValueError):  # another string, or object
            continue
        return _of_method(group)
    return _of_all()


def _name_of(group: Any) -> str:
    """Its name; empty where it has none."""
    try:
        return str(group.group_name)
    except (AttributeError, RuntimeError):  # a backend; a group made without torch's functions
        return ""


@functools.cache
def _operators() -> list[Any]:
    """The operators that send something to other ranks."""
    found: list[Any] = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        if space not in _NAMESPACES or name.partition(".")[0] in _LOCAL:
            continue
        packet = getattr(getattr(torch.ops, space), rest.partition(".")[0])
        found += [packet, *(getattr(packet, overload) for overload in packet.overloads())]
    return [op for op in dict.fromkeys(found) if "_op" in vars(op)]


# Release before a group is destroyed.

_lock = new_lock()
_holders: list[tuple[weakref.WeakMethod[Callable[[], None]], frozenset[str]]] = []


def release_with_groups(release: Callable[[], None], groups: Iterable[str]) -> None:
    """Call the method ``release`` before one of ``groups`` is shut down.

    NCCL waits for graphs that hold its work: ``destroy_process_group()`` would not end.
    """
    with _lock:
        _holders[:] = [held for held in _holders if held[0]() is not None]
        _holders.append((weakref.WeakMethod(release), frozenset(groups)))
        for name in ("shutdown", "abort"):
            method = getattr(dist.ProcessGroup, name, None)
            if method is not None and not hasattr(method, "__gfxgraph_releases__"):
                setattr(dist.ProcessGroup, name, _releasing(method))


def _releasing(original: Any) -> Any:
    @functools.wraps(original)
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        name = _name_of(group)
        with _lock:
            due = [held for held in _holders if name in held[1] or "" in held[1] or not name]
            _holders[:] = [held for held in _holders if held not in due]
        for held, _ in due:
            release = held()
            if release is not None:
                release()
        return original(group, *args, **kwargs)

    method.__gfxgraph_releases__ = True  # type: ignore[attr-defined]
    return method
