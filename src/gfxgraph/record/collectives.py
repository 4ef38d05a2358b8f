"""Sees collectives of ``torch.distributed`` before they are issued.

Each call of the user's issues each collective of the function once, in the order of the function,
whether a graph answers the call or not. So it never matters to other ranks what this one does. For
that, a run of ours must issue none: it repeats what came out in the caller's own run, which was
observed, and raises before it would send anything else.

Python issues collectives through methods of a process group or operators of torch. Both are
replaced while a thread is observed, and only for that thread. Collectives that C++ issues by itself
reach the operators under a dispatch mode, which a recorded run has.
"""

from __future__ import annotations

import atexit
import functools
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import distributed as dist
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..device import current_device
from ..errors import CaptureError
from ..forking import new_lock
from ..interpose.patch import intercept
from ..interpose.source import users_line
from .effects import tensors_in
from .exchanges import (
    DONE,
    Collective,
    Exchange,
    Progress,
    goes_on,
    is_sending,
    joined,
    sending,
)
from .interceptor import current_interceptor
from .journal import inside_no_graph, is_remembering, is_repeating, perform
from .recorder import Recorder

__all__ = [
    "Issued",
    "found_before",
    "held_in_graphs",
    "known",
    "noticed",
    "number_sent",
    "observe",
    "pretended",
    "raise_if_known",
    "refused",
    "release_with_groups",
    "together",
]

_METHODS = frozenset(
    (
        "_allgather_base",
        "_end_coalescing",
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
        "_c10d_functional::_wrap_tensor_autograd",
        "_c10d_functional::wait_tensor",
        "_dtensor::mesh_get_process_group",
        "c10d::check_for_nan",
        "symm_mem::_async_input_mm",
        "symm_mem::memset32_",
    )
)
# The functions that users call; messages name these instead of what they call.
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed._functional_collectives")


# No graph can be cut at these: they make groups, send objects that Python makes of tensors, or are
# issued by C++, which goes on with what it had before.
_WHOLE = frozenset(
    (
        "all_gather_object",
        "broadcast_object_list",
        "gather_object",
        "merge_remote_group",
        "new_group",
        "recv_object_list",
        "scatter_object_list",
        "send_object_list",
        "split_group",
    )
)
_WHOLE_SPACES = (
    "_c10d_functional::batch_p2p_ops",
    "_c10d_functional::irecv",
    "_c10d_functional::isend",
    "c10d::",
    "symm_mem::",
)
_UNCUT = (
    "No graph can be cut there: it makes a group, sends objects, or is issued by C++ or by an "
    "operator of c10d."
)
_OF_PYTHON = "No graph can be cut there: the group is written in Python."
_OF_NOBODY = (
    "This run is no call of the program's, so other ranks would not take part. Call the function "
    "first."
)


@dataclass(eq=False)  # two runs may issue the same
class Issued:
    """The collectives of a thread while it was observed.

    Attributes:
        refuses: whether to refuse a collective in a group of several ranks now.
        found: these collectives, in order.
        groups: names of the groups of all collectives.
        stopped: the first that was refused.
        whole: the first at which no graph can be cut.
    """

    refuses: Callable[[], bool] = lambda: False
    found: list[Collective] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    stopped: Collective | None = None
    whole: Collective | None = None


@dataclass(frozen=True)
class _Part:
    """One of several collectives that are sent together."""

    exchange: Exchange
    collective: Collective
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Local(threading.local):
    def __init__(self) -> None:
        self.observers: list[Issued] = []
        self.known: Issued | None = None
        #: What was issued since ``_start_coalescing()``, and is sent at its end.
        self.coalesced: list[_Part] | None = None
        self.replaced = ExitStack()
        self.holds = self.together = self.pretends = False


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


def found_before() -> Sequence[Collective]:
    """The collectives of the caller's own run, for a capture after it."""
    return () if _local.known is None else tuple(_local.known.found)


@contextmanager
def held_in_graphs(holds: bool) -> Iterator[None]:
    """Captures inside hold collectives, instead of being cut at them.

    Args:
        holds: whether that is so. ``False``: nothing changes.
    """
    before, _local.holds = _local.holds, _local.holds or holds
    try:
        yield
    finally:
        _local.holds = before


@contextmanager
def pretended() -> Iterator[None]:
    """Nothing is sent inside, and nothing is refused: tensors that would be filled stay as they
    are, and new ones hold zeros. Only runs under an interceptor pretend."""
    before, _local.pretends = _local.pretends, True
    try:
        yield
    finally:
        _local.pretends = before


@contextmanager
def together() -> Iterator[None]:
    """All ranks have agreed to send inside what the function sends."""
    before, _local.together = _local.together, True
    try:
        yield
    finally:
        _local.together = before


def raise_if_known(splits: bool, why: str = "") -> None:
    """Raise if an earlier run of the function issued a collective that keeps it from a graph.

    Args:
        splits: whether graphs may be cut at collectives.
        why: why not.

    Raises:
        CaptureError: it issued one.
    """
    issued = _local.known
    if issued is None or not issued.found:
        return
    if not splits:
        raise replace(issued.found[0], why=why).error()
    if issued.whole is not None:
        raise issued.whole.error()


def observe(issued: Issued) -> Callable[[], None]:
    """Observe the collectives of this thread until the returned function is called."""
    stack = ExitStack()
    if _is_initialized():
        stack.enter_context(_observing(issued))
    return stack.close


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _issue(
    exchange: Exchange,
    ranks: int,
    group: str,
    whole: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Handle a collective that this thread is about to issue.

    Raises:
        CaptureError: it may not.
    """
    observers = _local.observers
    tensors = tensors_in(args, kwargs)
    # With such tensors a compiler looks what the function does, or their class issues another one.
    if not observers or is_sending() or any(map(_is_stand_in, tensors)):
        return exchange.call(*args, **kwargs)
    for issued in observers:
        issued.groups.add(group)
    if ranks <= 1:
        return exchange.call(*args, **kwargs)
    given = tuple((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors)
    name = _name_of_the_users(exchange.name.rpartition("::")[2])
    collective = Collective(name, ranks, users_line(), group, given)
    for issued in observers:
        issued.found.append(collective)
    is_split = exchange.op is not None and _local.coalesced is not None
    if whole or is_split or name in _WHOLE or exchange.name.startswith(_WHOLE_SPACES):
        collective = replace(collective, why=whole or _UNCUT)
        for issued in observers:
            issued.whole = issued.whole or collective
        _stop(collective)
        for part in _taken():
            part.exchange.call(*part.args, **part.kwargs)
        return exchange.call(*args, **kwargs)
    part = _Part(exchange, collective, args, kwargs)
    if exchange.name == "_start_coalescing" and _is_followed():
        _local.coalesced = [part]
        return None
    if _local.coalesced is None:
        return _exchange(exchange, collective, args, kwargs)
    _local.coalesced.append(part)
    if exchange.name == "_end_coalescing":
        return _coalesced()
    return DONE if goes_on(args, kwargs) else None


def _is_followed() -> bool:
    """Whether exchanges of this thread are remembered, repeated or held now."""
    is_looked_at = _local.pretends and current_interceptor() is not None
    return is_repeating() or is_looked_at or (is_remembering() and not inside_no_graph())


def _taken() -> list[_Part]:
    """Take what was issued since ``_start_coalescing()``. The caller sends it."""
    parts, _local.coalesced = _local.coalesced, None
    return parts or []


def _coalesced() -> Any:
    """Send together what was issued since ``_start_coalescing()``.

    NCCL sends nothing before the end, so no run may look at what came out before that; hence it is
    a single exchange.
    """
    parts = _taken()
    inner = parts[1:-1]
    name = f"coalesced({', '.join(part.collective.name for part in inner)})"
    tensors = tuple(given for part in inner for given in part.collective.tensors)
    collective = replace(parts[-1].collective, name=name, tensors=tensors)
    calls = [(part.args, part.kwargs) for part in parts]
    return _exchange(joined(name, [part.exchange for part in parts]), collective, (calls,), {})


def _exchange(
    exchange: Exchange, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Take part, or repeat what came out.

    Raises:
        CaptureError: it may not, and nothing was sent.
    """
    interceptor = current_interceptor()
    # On a GPU a run that is recorded is told that it captures: what it called would be sent.
    captures = not isinstance(interceptor, Recorder) and current_device().is_capturing()
    if captures and _local.holds and is_repeating():
        return _hold(exchange, collective, args, kwargs)
    if _local.pretends and interceptor is not None:
        return interceptor.exchange(_Pretended(exchange), collective, args, kwargs, False)
    if not is_repeating():
        _stop(collective)
        if inside_no_graph() or not is_remembering():
            return exchange.call(*args, **kwargs)
    try:
        if interceptor is not None:
            return interceptor.exchange(exchange, collective, args, kwargs, _local.holds)
        return perform(exchange, None, *args, **kwargs)
    except CaptureError as error:  # the function may catch it
        for issued in _local.observers:
            if issued.refuses():
                issued.stopped = issued.stopped or replace(collective, why=str(error))
        raise


def _hold(
    exchange: Exchange, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Let the capture under way hold a collective.

    Raises:
        CaptureError: the emulated device cannot: what it replays has no work that goes on.
    """
    with _not_counted(collective.group):
        return _held(exchange, collective, args, kwargs)


def _held(
    exchange: Exchange, collective: Collective, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    device, interceptor = current_device(), current_interceptor()
    if device.kind != "emulated":
        # A method ends in operators of c10d, which are part of it.
        with ExitStack() as hidden:
            hidden.enter_context(sending())
            if interceptor is not None and exchange.op is None:
                hidden.enter_context(interceptor.unseen())
            return device.hold_call(exchange.call, exchange.op, args, kwargs)
    if exchange.op is None and goes_on(args, kwargs):
        why = "On the emulated device a graph holds no work that goes on (async_op, isend, irecv)."
        raise replace(collective, why=why).error()
    result = device.hold_call(exchange, exchange.op, args, kwargs)
    return DONE if exchange.op is None else result


#: How many collectives of a group captures have put into graphs.
_in_graphs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@contextmanager
def _not_counted(name: str) -> Iterator[None]:
    """Leave what the block issues out of ``number_sent()``: it goes into a graph."""
    group = _c10d()._resolve_process_group(name)
    before = group._get_sequence_number_for_group()
    try:
        yield
    finally:
        issued = group._get_sequence_number_for_group() - before
        _in_graphs[group] = _in_graphs.get(group, 0) + issued


def number_sent(group: Any) -> int:
    """How many collectives a group has sent: the same on all its ranks after the same call.

    Those that a capture has put into a graph do not count: not all ranks may have come so far.

    Raises:
        RuntimeError: the group does not count them.
    """
    return int(group._get_sequence_number_for_group()) - _in_graphs.get(group, 0)


@dataclass(frozen=True)
class _Pretended:
    """Stands for an exchange that sends nothing."""

    exchange: Exchange

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        return self.exchange.written(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        op = self.exchange.op
        if op is None:
            return DONE
        if self.written(args, kwargs):
            return args[0]

        def on_meta(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

        like = tensors_in(args, kwargs)[0]
        state = random.getstate()  # torch numbers such work with random numbers
        with sending():
            shapes = op(*pytree.tree_map_only(torch.Tensor, on_meta, args), **kwargs)
        random.setstate(state)

        def zeros(shape: torch.Tensor) -> torch.Tensor:
            return torch.zeros(shape.shape, dtype=shape.dtype, device=like.device)

        return pytree.tree_map_only(torch.Tensor, zeros, shapes)


def _stop(collective: Collective) -> None:
    """Raise if a collective may not be sent now.

    Raises:
        CaptureError: it may not.
    """
    stops = False
    for issued in () if _local.together else _local.observers:
        if issued.refuses():
            collective = collective if collective.why else replace(collective, why=_OF_NOBODY)
            issued.stopped, stops = issued.stopped or collective, True
    if stops:
        raise collective.error()


def _until(exchange: Exchange, args: tuple[Any, ...]) -> Any:
    """Wait for work that goes on."""
    if not _local.observers or is_sending():
        return exchange(*args)
    return _exchange(exchange, Collective(exchange.name, 0, users_line(), exchange.group), args, {})


def _asked(what: str) -> None:
    """Note that the function asks for more of some work than its end."""
    if _local.observers and not is_sending():
        why = "Of work that goes on, graphs know only its end: wait()."
        collective = Collective(what, 0, users_line(), why=why)
        for issued in _local.observers:
            issued.whole = issued.whole or collective
        _stop(collective)


def _about_to_send(exchange: Exchange) -> None:
    """A replay may be in the middle of a run that sends nothing.

    Raises:
        CaptureError: it is.
    """
    if _local.observers:
        _stop(Collective(exchange.name, 0, users_line()))


Progress.route, Progress.asked = staticmethod(_until), staticmethod(_asked)
Exchange.about_to_send = staticmethod(_about_to_send)


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
    coalesced, _local.coalesced = _local.coalesced, None
    try:
        if len(observers) == 1:
            _replace_all()
        yield
    finally:
        _local.coalesced = coalesced
        observers.remove(issued)
        if not observers:
            _local.replaced.close()


def _c10d() -> Any:
    return sys.modules["torch.distributed.distributed_c10d"]


def _replace_all() -> None:
    c10d = _c10d()
    of_torch = {dist.ProcessGroup, torch._C._distributed_c10d.Backend}
    classes = set(of_torch)
    for group in list(c10d._world.pg_map):  # groups that are written in Python
        classes.update(c for c in type(group).__mro__ if issubclass(c, tuple(of_torch)))
    for cls in classes:
        is_in_python = vars(torch._C._distributed_c10d).get(cls.__name__) is not cls
        for name in _METHODS & vars(cls).keys():
            whole = _OF_PYTHON if is_in_python else ""
            _replace(cls, name, Exchange(name, getattr(cls, name)), _of_method, whole)
    for op in _operators():
        _replace(op, "_op", _exchange_of(op), _of_operator)
    functional = sys.modules.get(_MODULES[1])
    if functional is not None and hasattr(functional, "_maybe_wrap_tensor"):
        claim = intercept(functional, "_maybe_wrap_tensor", _waited_for)
        _local.replaced.enter_context(claim)
    new_group = Exchange("new_group", c10d._new_process_group_helper)
    _replace(c10d, "_new_process_group_helper", new_group, _of_all)


def _waited_for(original: Any, tensor: torch.Tensor) -> Any:
    """A plain tensor in place of one that waits when it is used: nobody has to wait any more."""
    if is_remembering():
        return torch.ops._c10d_functional.wait_tensor(tensor)
    return original(tensor)


def _replace(
    owner: Any,
    name: str,
    exchange: Exchange,
    group_of: Callable[..., tuple[int, str]],
    whole: str = "",
) -> None:
    """Issue ``exchange`` in place of each call.

    Args:
        owner: a class, an operator, or a module.
        name: the attribute.
        exchange: what it does.
        group_of: gives size and name of its group.
        whole: why no graph can be cut there.
    """

    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        ranks, group = group_of(*args, **kwargs)
        own = replace(exchange, call=original, group=group)
        return _issue(own, ranks, group, whole, args, kwargs)

    _local.replaced.enter_context(intercept(owner, name, call))


def _is_stand_in(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return not is_plain and (
        isinstance(tensor, (FakeTensor, FunctionalTensor)) or is_traceable_wrapper_subclass(tensor)
    )


def _exchange_of(op: Any) -> Exchange:
    """The exchange that an operator, or all its overloads, is."""
    overload = op if isinstance(op, OpOverload) else getattr(op, op.overloads()[0])
    return Exchange(overload._schema.name, op, overload)


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

    NCCL waits for graphs that hold its work: ``destroy_process_group()`` would not end. Also called
    at the end of the program, where torch shuts the groups down that are left.
    """
    with _lock:
        if not _holders:
            atexit.unregister(_release_all)
            atexit.register(_release_all)  # the newest is called first
        _holders[:] = [held for held in _holders if held[0]() is not None]
        _holders.append((weakref.WeakMethod(release), frozenset(groups)))
        for name in ("shutdown", "abort"):
            method = getattr(dist.ProcessGroup, name, None)
            if method is not None and not hasattr(method, "__gfxgraph_releases__"):
                setattr(dist.ProcessGroup, name, _releasing(method))


def _release_all() -> None:
    with _lock:
        due, _holders[:] = list(_holders), []
    _release(due)


def _release(due: list[tuple[weakref.WeakMethod[Callable[[], None]], frozenset[str]]]) -> None:
    for held, _ in due:
        release = held()
        if release is not None:
            release()


def _releasing(original: Any) -> Any:
    @functools.wraps(original)
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        name = _name_of(group)
        with _lock:
            due = [held for held in _holders if name in held[1] or "" in held[1] or not name]
            _holders[:] = [held for held in _holders if held not in due]
        _release(due)
        return original(group, *args, **kwargs)

    method.__gfxgraph_releases__ = True  # type: ignore[attr-defined]
    return method
