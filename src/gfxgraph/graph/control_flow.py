"""``cond``, ``switch`` and ``while_loop``: control flow that depends on data.

In a capture they become conditional nodes, so that the device decides. Elsewhere the host reads the
value and decides, with the same results: what comes out lies in memory of its own, whichever
branch gave it, and shares none with the arguments.

Python runs each function once in a capture, however often the device runs it. So a recording looks
at them first (:func:`_trial`): what reads on the host, draws random numbers or changes something in
Python is decided by the host, in several graphs.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree

from ..device import PoolHandle, current_device, index_of
from ..device.base import Body, Decision
from ..device.operators import draws_in, is_composite, run_composite
from ..device.overrides import UnwrappedDispatchMode, WithoutModes, are_spread
from ..errors import ArgumentError, CaptureError, GfxGraphError, let_go, one_line
from ..interpose.interrupts import interrupt_in
from ..interpose.opaque import opaque
from ..interpose.patch import intercept
from ..record.effects import storage_key
from ..record.explain import some
from ..record.interceptor import current_interceptor, is_looked_away_from
from ..record.recorder import Recorder
from .host_state import HostState
from .locks import LOCK, is_inside_gfxgraph, no_garbage_collection
from .native import NativeGraph
from .state import PythonState
from .tracer import Tracer, ends_empty

__all__ = [
    "Choice",
    "Loop",
    "cond",
    "decide",
    "flag",
    "in_place_of_torchs",
    "is_on_device",
    "switch",
    "while_loop",
]


@opaque
def cond(
    pred: torch.Tensor | bool,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    *operands: Any,
) -> Any:
    """``true_fn(*operands)`` if ``pred`` is true, else ``false_fn(*operands)``.

    In a capture, one conditional node that the device decides at. Both functions are captured then,
    and have to give tensors of the same structure, shapes, dtypes and strides. The results lie in
    memory of their own.

    Args:
        pred: a tensor of one element, or a bool.
        true_fn: gives a tensor, or a tuple, list or dict of tensors. It may write to tensors.
        false_fn: gives the same.
        operands: the arguments of both. One tuple or list stands for the operands in it, as in
            ``torch.cond``.

    Raises:
        ArgumentError: ``pred`` is neither, what comes out is no tensor, or the two differ.
        CaptureError: in a capture by hand: this device has no conditional nodes, or no body of one
            can hold what a function does. A graphed function lets the host decide there.
    """
    operands = _unpacked(operands)
    _check_callable("cond: one of its functions", true_fn, false_fn)
    if isinstance(pred, bool):
        return _fresh("cond", (true_fn if pred else false_fn)(*operands))
    value = flag("cond: pred", pred)
    return decide(Choice("cond", "if", value, (true_fn, false_fn), operands))


@opaque
def switch(
    index: torch.Tensor | int, branches: Sequence[Callable[..., Any]], *operands: Any
) -> Any:
    """``branches[index](*operands)``; an index out of range picks the first or the last one.

    In a capture, a conditional node; see :func:`cond`.

    Args:
        index: an integer tensor of one element, or an int.
        branches: at least one function.
        operands: as for :func:`cond`.

    Raises:
        ArgumentError: ``index`` is neither, there is no branch, or as for :func:`cond`.
        CaptureError: as for :func:`cond`.
    """
    operands, branches = _unpacked(operands), tuple(branches)
    if not branches:
        raise ArgumentError("switch(branches=[]): expected at least one function.")
    _check_callable("switch: a branch", *branches)
    last = len(branches) - 1
    if isinstance(index, int):
        return _fresh("switch", branches[min(max(index, 0), last)](*operands))
    if not isinstance(index, torch.Tensor) or index.numel() != 1 or index.dtype not in _INTEGERS:
        raise ArgumentError(
            f"switch: index is {_described(index)}: expected an int, or an integer tensor of one "
            "element."
        )
    value = index.detach().reshape(()).clamp(0, last).to(torch.int32)
    return decide(Choice("switch", "switch", value, branches, operands))


@opaque
def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    *carry: Any,
    max_turns: int | None = None,
) -> tuple[Any, ...]:
    """``carry = body_fn(*carry)`` as long as ``cond_fn(*carry)`` is true; gives the last carry.

    In a capture, a conditional node: the device repeats the body without the host. Each turn gets
    the carry in the memory of the turn before, and in its strides.

    Args:
        cond_fn: gives a tensor of one element.
        body_fn: gives a new carry of the same structure, shapes, dtypes and devices. It may write
            to tensors, those of the carry among them.
        carry: tensors, or tuples, lists and dicts of tensors. They are copied first. One tuple or
            list stands for the carry in it, as in ``torch.while_loop``.
        max_turns: the loop ends after so many turns, whatever ``cond_fn`` says. At least 0.
            Default: never.

    Raises:
        ArgumentError: the carry holds what is no tensor, or changes; ``cond_fn`` gives something
            else; or ``max_turns`` is no such number.
        CaptureError: as for :func:`cond`.
    """
    if max_turns is not None and (type(max_turns) is not int or not 0 <= max_turns < 2**31):
        raise ArgumentError(
            f"while_loop(max_turns={max_turns!r}): expected None, or an int from 0 to 2**31 - 1."
        )
    _check_callable("while_loop: one of its functions", cond_fn, body_fn)
    given = _unpacked(carry)
    leaves, spec = pytree.tree_flatten(given)
    _check_tensors("while_loop: carry", leaves)
    result: tuple[Any, ...] = decide(Loop(cond_fn, body_fn, leaves, spec, max_turns))
    return result


class Choice:
    """One of several functions, by a value.

    Attributes:
        roots: what may reach state in Python that they change; by default, the functions.
    """

    roots: tuple[Callable[..., Any], ...]

    def __init__(
        self,
        name: str,
        kind: Any,
        value: torch.Tensor,
        functions: tuple[Callable[..., Any], ...],
        operands: tuple[Any, ...],
    ) -> None:
        self.name = name
        self.functions = self.roots = functions
        self._kind, self._value, self._operands = kind, value, operands

    def reads(self) -> list[torch.Tensor]:
        """What it is decided by."""
        return [self._value]

    def on_host(self, read: Callable[[torch.Tensor], int]) -> Any:
        """Decide on the host, which reads values so."""
        number = read(self._value)
        number = number if self._kind == "switch" else int(not number)
        return _fresh(self.name, self.functions[number](*self._operands))

    def on_device(self, add: _Add) -> Any:
        """Let the device decide."""
        results: list[torch.Tensor] = []
        specs: list[Any] = []
        looks: list[_Look] = []

        def body(function: Callable[..., Any]) -> None:
            leaves, spec = pytree.tree_flatten(function(*self._operands))
            _check_tensors(f"{self.name}: a result", leaves)
            _require_on_device(leaves)
            if not specs:
                specs.append(spec)
                looks.extend(map(_look, leaves))
                # In the memory of the graph, not of the body: a caller may get it.
                with add.outside():
                    results.extend(map(torch.empty_like, leaves))
            what = f"{self.name}: the results of its functions"
            _check_same(what, looks, specs[0], leaves, spec)
            _overwrite(results, leaves)

        add(Decision(self._kind, self._value), [_bound(body, f) for f in self.functions])
        return pytree.tree_unflatten(results, specs[0])


class Loop:
    """One function, again and again; see :class:`Choice`.

    Args:
        cond_fn: see :func:`while_loop`.
        body_fn: see there.
        leaves: the carry.
        spec: its tree.
        limit: how many turns it makes at most.
        asked: how many of the last leaves nobody but ``cond_fn`` reads. The device copies them to
            no place of their own, so of those the result is not the last one.
    """

    roots: tuple[Callable[..., Any], ...]

    name = "while_loop"

    def __init__(
        self,
        cond_fn: Callable[..., Any],
        body_fn: Callable[..., Any],
        leaves: list[torch.Tensor],
        spec: Any,
        limit: int | None,
        asked: int = 0,
    ) -> None:
        self.functions = self.roots = (cond_fn, body_fn)
        self._leaves, self._spec, self._limit = leaves, spec, limit
        self._kept = len(leaves) - asked

    def reads(self) -> list[torch.Tensor]:
        """What it is decided by."""
        return self._leaves

    def _goes_on(self, carry: list[torch.Tensor]) -> torch.Tensor:
        value = self.functions[0](*pytree.tree_unflatten(carry, self._spec))
        return flag("while_loop: what cond_fn gives", value)

    def _turn(self, carry: list[torch.Tensor]) -> list[torch.Tensor]:
        result = self.functions[1](*pytree.tree_unflatten(carry, self._spec))
        if not isinstance(result, (tuple, list)):
            result = (result,)
        leaves, spec = pytree.tree_flatten(tuple(result))
        _check_tensors("while_loop: what body_fn gives", leaves)
        looks = [_look(t)[:3] for t in carry]  # strides are put right
        what = "while_loop: the carry and what body_fn gives"
        _check_same(what, looks, self._spec, leaves, spec)
        return leaves

    def on_host(self, read: Callable[[torch.Tensor], int]) -> Any:
        """Decide on the host, which reads values so."""
        carry = [leaf.clone() for leaf in self._leaves]
        for turn in itertools.count():
            if turn == self._limit or not read(self._goes_on(carry)):
                return pytree.tree_unflatten(carry, self._spec)
            carry = [_as_was(old, new) for old, new in zip(carry, self._turn(carry), strict=True)]

    def on_device(self, add: _Add) -> Any:
        """Let the device decide."""
        _require_on_device(self._leaves)
        carry = [leaf.clone() for leaf in self._leaves]
        value = self._goes_on(carry)
        _require_on_device([value])

        def body() -> torch.Tensor:
            new = self._turn(carry)
            interceptor = current_interceptor()
            with nullcontext() if interceptor is None else interceptor.unseen():
                shared = set(map(storage_key, carry)) & set(map(storage_key, new))
                moves = [
                    t is not old and storage_key(t) in shared
                    for old, t in zip(carry, new, strict=True)
                ]
            # One of them may be where another is to go, as after a swap.
            new = [t.clone() if m else t for t, m in zip(new, moves, strict=True)]
            _overwrite(carry[: self._kept], new[: self._kept])
            value = self._goes_on([*carry[: self._kept], *new[self._kept :]])
            _require_on_device([value])
            return value

        add(Decision("while", value, self._limit), [body])
        return pytree.tree_unflatten(carry, self._spec)


class _Add:
    """Adds conditional nodes to the capture of this thread."""

    def __init__(self, index: int, tracer: Tracer | None = None) -> None:
        self._index, self._tracer = index, tracer
        self._stream = current_device().current_stream(index)

    def __call__(self, decision: Decision, bodies: Sequence[Body]) -> None:
        if self._tracer is not None and self._tracer.goes_through_again:
            for body in bodies:
                body()
            return
        # Outside, autocast would find casts of weights that only a body makes, which may not run.
        caches = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        device = current_device()
        # Nor may a body get the workspace of another graph's, or leave its own to one.
        device.clear_library_workspaces()
        graph = NativeGraph.capturing_here()
        pool = _pool_of_others(self._index) if graph is None else graph.pool_of_bodies()
        if not is_inside_gfxgraph():  # what a graphed function draws, a trial has found
            bodies = list(map(_without_draws, bodies))
        try:
            device.add_conditional(self._index, decision, bodies, pool)
        except BaseException as error:
            if graph is not None:
                graph.holds_part_of = one_line(error)
            raise
        finally:
            device.clear_library_workspaces()
            torch.set_autocast_cache_enabled(caches)

    def outside(self) -> Any:
        """Allocate as the code around the body does."""
        return current_device().set_stream(self._stream)


class _NoDraws(UnwrappedDispatchMode):
    """Refuses operators that draw random numbers.

    torch 2.11 captures them into a body, and each turn of a replay draws the same numbers then.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types and are_spread(types):
            return NotImplemented
        if is_composite(func):
            return run_composite(func, args, kwargs, self)
        if draws_in(func, args, kwargs):
            raise CaptureError(
                f"{func} draws random numbers, and no body of a conditional node can: each turn "
                "of a replay would draw the same. Draw them before, and give them to the body."
            )
        return func(*args, **kwargs)


def _without_draws(body: Body) -> Body:
    def run() -> torch.Tensor | None:
        with _NoDraws():  # type: ignore[no-untyped-call, unused-ignore]
            return body()

    return run


@cache
def _pool_of_others(index: int) -> PoolHandle:
    """The memory of bodies in graphs of torch's own class: nobody knows when these go."""
    return current_device().held_pool(index)


def decide(what: Choice | Loop, must: bool = False) -> Any:
    """Let the device decide where that can be, else the host.

    Args:
        what: what there is to decide.
        must: whether only the device may, while a call is recorded. Default ``False``.

    Raises:
        CaptureError: it cannot.
    """
    device, interceptor = current_device(), current_interceptor()
    reads = what.reads()
    if is_looked_away_from():  # the host has decided about what this is a part of
        return what.on_host(_read)
    if interceptor is None:
        if not (device.is_capturing() and any(map(is_on_device, reads))):
            return what.on_host(_read)
        index = index_of(device, reads)
        reason = device.no_conditionals(index)
        if reason:
            raise CaptureError(
                f"{what.name}() in a capture needs conditional nodes, and there are none: {reason}."
                " Decide on the host, between two graphs; gfxgraph.graphed() does that by itself."
            )
        return what.on_device(_Add(index))
    if not any(map(interceptor.on_device, reads)):
        return what.on_host(_read)
    index = index_of(device, reads)
    if isinstance(interceptor, Tracer):
        if not interceptor.inside_body and interceptor.host_decides():
            return what.on_host(_read)
        with interceptor.in_body():
            return what.on_device(_Add(index, interceptor))
    assert isinstance(interceptor, Recorder)
    if interceptor.is_on_trial:
        return what.on_device(_Add(index))
    if not interceptor.may_decide_on_device:  # a report of hazards: the device would decide
        return what.on_host(_quietly(interceptor))
    with interceptor.unseen():
        _loaded(index)
    reason = device.no_conditionals(index) or _trial(interceptor, what, index)
    if reason and must:
        raise CaptureError(reason)
    interceptor.decided(what.name, reason)
    if reason:
        return what.on_host(_read)
    with interceptor.quietly():
        result = what.on_host(_read)
    interceptor.varies(result)
    return result


def _trial(recorder: Recorder, what: Choice | Loop, index: int) -> str:
    """Why no body of a conditional node can hold what the functions do; empty: one can.

    They are captured into a graph that is thrown away, so that nothing runs that this call would
    not have run: a table may be shorter than the branch not taken believes.
    """
    roots: dict[str, object] = {
        f"function {n} of {what.name}()": f for n, f in enumerate(what.roots)
    }
    with recorder.unseen():
        before = PythonState(roots, search=False)
        host = HostState(current_device(), index, before.stateful)
        gradients = torch.is_grad_enabled()
    graph = NativeGraph()
    graph.is_trial = True
    handled = sys.exc_info()[1]
    try:
        host.one_shots.refuse("and would be captured on trial")
        with LOCK, no_garbage_collection(), recorder.on_trial(), _captured(graph, recorder, index):
            what.on_device(_Add(index))
    except ArgumentError as error:
        if isinstance(what, Loop):
            raise
        return str(error)  # branches that differ: the host may choose between them
    # Of the function's own: the host will meet it, if it takes this branch.
    except (Exception, SystemExit, GeneratorExit) as error:
        if interrupt_in(error):
            raise
        let_go(error, handled)
        return str(error) if isinstance(error, GfxGraphError) else one_line(error)
    finally:
        with recorder.unseen():
            graph.reset()
            changes = [*before.changes(), *host.moved()]
            before.restore()
            host.rewind()
            if torch.is_grad_enabled() != gradients:
                torch.set_grad_enabled(gradients)
                changes.append("torch.set_grad_enabled()")
            for name, memo in before.missed():  # it may hold a tensor that was never computed
                memo.cache_clear()
                changes.append(name)
    return f"it changes {some(changes)} in Python" if changes else ""


@contextmanager
def _captured(graph: NativeGraph, recorder: Recorder, index: int) -> Iterator[None]:
    """Capture into ``graph``, and go on recording."""
    # On a GPU torch fills in the generator's state, which is no operation of the function's; the
    # emulated device puts modes of its own.
    modes = nullcontext() if recorder.emulated else WithoutModes()
    with recorder.quietly(), modes:
        current_device().prepare_libraries(index)
        graph.capture_begin(capture_error_mode="thread_local")
    recorder.to_top()
    yield
    with recorder.quietly():
        ends_empty(graph)


def _quietly(recorder: Recorder) -> Callable[[torch.Tensor], int]:
    def read(value: torch.Tensor) -> int:
        with recorder.quietly():
            return _read(value)

    return read


def _read(value: torch.Tensor) -> int:
    return int(value.item())


def _unpacked(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(operands) == 1 and type(operands[0]) in (tuple, list):  # not a named tuple
        return tuple(operands[0])
    return operands


def _bound(body: Callable[[Any], None], function: Callable[..., Any]) -> Callable[[], None]:
    return lambda: body(function)


def _check_callable(what: str, *functions: Any) -> None:
    for function in functions:
        if not callable(function):
            raise ArgumentError(f"{what} is {_described(function)}: expected a function.")


def flag(what: str, value: Any) -> torch.Tensor:
    """Whether ``value`` is true, as a bool without dimensions; of a bool, in its own memory.

    Raises:
        ArgumentError: it is no tensor of one element.
    """
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ArgumentError(f"{what} is {_described(value)}: expected a tensor of one element.")
    scalar: torch.Tensor = value.detach().reshape(())
    return scalar if scalar.dtype is torch.bool else scalar != 0


def _check_tensors(what: str, leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise ArgumentError(
                f"{what} is {_described(leaf)}: expected tensors, also in tuples, lists and dicts. "
                "Make a tensor of it: torch.full((), value, device=...)."
            )


def _check_same(
    what: str, wanted: Sequence[_Look], wanted_spec: Any, leaves: list[torch.Tensor], spec: Any
) -> None:
    if spec != wanted_spec:
        raise ArgumentError(f"{what} differ in structure: {wanted_spec} and {spec}.")
    for n, (one, leaf) in enumerate(zip(wanted, leaves, strict=True)):
        other = _look(leaf)[: len(one)]
        if one != other:
            raise ArgumentError(
                f"{what} differ in tensor {n}: {_in_words(one)}, {_in_words(other)}."
            )


def _require_on_device(tensors: Sequence[torch.Tensor]) -> None:
    """Raise for a tensor of the host: what becomes of it in a turn, no graph would do again."""
    for tensor in tensors:
        if not is_on_device(tensor):
            raise CaptureError(
                f"a tensor of shape {tuple(tensor.shape)} on {tensor.device} takes part, and a "
                "conditional node decides and computes on the device alone."
            )


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether the tensor is on the device, as far as it can be told without a recording."""
    device = current_device()
    # Emulated, tensors of the host stand for those of a device, or are behind such.
    return device.kind == "emulated" or tensor.device.type == device.type


_Look: TypeAlias = "tuple[Any, ...]"


def _look(tensor: torch.Tensor) -> _Look:
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.stride()


def _in_words(look: _Look) -> str:
    shape, dtype, device, *strides = look
    text = f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"
    return f"{text} with strides {strides[0]}" if strides else text


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of dtype {value.dtype} and shape {tuple(value.shape)}"
    return f"{value!r:.60} ({type(value).__name__})"


def _fresh(name: str, result: Any) -> Any:
    """The result in memory of its own."""
    leaves, spec = pytree.tree_flatten(result)
    _check_tensors(f"{name}: a result", leaves)
    return pytree.tree_unflatten([leaf.clone() for leaf in leaves], spec)


def _as_was(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """``new`` in memory of its own, with the strides of ``old``."""
    copy = new.clone()
    return copy if copy.stride() == old.stride() else torch.empty_like(old).copy_(new)


def _overwrite(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy into ``targets``, none of which overlaps a source: one kernel for each dtype."""
    recorder = current_interceptor()
    groups: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for n, (target, source) in enumerate(zip(targets, sources, strict=True)):
        if torch.is_grad_enabled() and (source.requires_grad or target.requires_grad):
            raise CaptureError("autograd records what a function of a conditional node does.")
        if source is not target:
            key = target.dtype if target.dtype in _COPIED_TOGETHER else n
            groups.setdefault(key, []).append((target, source))
    with recorder.unprotected() if isinstance(recorder, Recorder) else nullcontext():
        for pairs in groups.values():
            if len(pairs) == 1:
                pairs[0][0].copy_(pairs[0][1])
            else:
                torch._foreach_copy_([to for to, _ in pairs], [source for _, source in pairs])


_COPIED_TOGETHER = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    }
)


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@contextmanager
def in_place_of_torchs() -> Iterator[None]:
    """Let ``torch.cond`` and ``torch.while_loop`` of this thread do what those here do.

    torch's own would compile the function, and read the value on the host. Inside, nothing may be
    compiled: Dynamo knows them by their identity.
    """
    with ExitStack() as stack:
        for name, handler in (("cond", _torchs_cond), ("while_loop", _torchs_while_loop)):
            owners = [torch, torch._higher_order_ops]
            owners += filter(None, [sys.modules.get(f"torch._higher_order_ops.{name}")])
            for owner in owners:
                if callable(getattr(owner, name, None)):
                    stack.enter_context(intercept(owner, name, handler))
        yield


def _torchs_cond(
    original: Callable[..., Any], pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()
) -> Any:
    if not isinstance(pred, (bool, torch.Tensor)):
        return original(pred, true_fn, false_fn, operands)
    return cond(pred, true_fn, false_fn, operands)


def _torchs_while_loop(
    original: Callable[..., Any], cond_fn: Any, body_fn: Any, carried_inputs: Any
) -> Any:
    leaves = pytree.tree_leaves(carried_inputs)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):  # it takes numbers as well
        return original(cond_fn, body_fn, carried_inputs)
    return while_loop(cond_fn, body_fn, carried_inputs)


@cache
def _loaded(index: int) -> None:
    """Import and compile what the first conditional node of the process needs.

    In a thread of its own: a trial is captured while a run is listened to, which would take what
    that reads and changes for what the run does.
    """
    # In 2.10 and 2.11 torch's guard of a device that is not there dies with the thread that was
    # the first to need it, and the process then dies of that.
    getattr(torch._C, "_ensureCUDADeviceGuardSet", lambda: None)()
    thread = threading.Thread(target=_load, args=(index,))
    thread.start()
    thread.join()


def _load(index: int) -> None:
    device = current_device()
    if device.kind != "emulated":
        device.no_conditionals(index)
        return
    graph = NativeGraph()
    graph.is_trial = True
    ones = torch.ones(1, device="cpu")
    graph.capture_begin()
    torch._foreach_copy_([ones], [ones.add(ones.sum())])
    ends_empty(graph)
    graph.reset()
