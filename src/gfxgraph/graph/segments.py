"""A call as a tree of graphs, for functions whose course depends on data.

A :class:`Segment` is one graph, and how the host goes on after it: it reads a value, or runs an
operation that no graph can hold, and what comes out names the next segment. A function without
such points is a tree of one segment.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch as dispatch_stack

from ..device.operators import is_view
from ..errors import CaptureError
from ..interpose.source import Source, users_line
from ..record.effects import tensors_in
from ..record.interceptor import Interceptor, Point
from ..record.recorder import Event, Same
from .native import NativeGraph

__all__ = ["Segment", "Step", "Tracer", "run"]


class Segment:
    """One graph of a call, and how the call goes on.

    Attributes:
        graph: the graph; ``None``: there was no work for the device.
        step: what the host does after it; ``None``: the function returned.
        children: outcome of the step -> the next segment.
        bound: tensors that hold what the step before gave, filled in before the graph runs;
            ``None`` for one that is an argument of the step itself.
        result: what the step before gave to the function, made of those.
        outputs: the tensors that the function returned; of a last segment.
        spec: their tree, for the caller's use.
        build: makes the result of the call, for the caller's use.
    """

    def __init__(self, bound: list[torch.Tensor | None], result: Any) -> None:
        self.graph: NativeGraph | None = None
        self.launch: Callable[[], None] | None = None
        self.step: Step | None = None
        self.children: dict[Any, Segment] = {}
        self.bound = bound
        self.result = result
        self.outputs: list[torch.Tensor] | None = None
        self.spec: Any = None
        self.build: Callable[[], Any] | None = None
        # What a capture of another path needs to go the same way up to the step.
        self.done: list[_Done] = []
        self.folded: list[Event] = []

    def everything(self) -> Iterator[Segment]:
        """This segment and all after it."""
        todo = [self]
        while todo:
            segment = todo.pop()
            yield segment
            todo += segment.children.values()

    def paths(self) -> int:
        """How many ways lead through the tree."""
        return sum(segment.step is None for segment in self.everything())

    def decides(self) -> bool:
        """Whether the host only ever decides between yes and no, as ``if`` and ``while`` do."""
        return all(
            len(segment.children) <= 1 or all(key[0] is bool for key in segment.children)
            for segment in self.everything()
        )

    def reset(self) -> None:
        """Release all graphs from here on; nothing leads on from here any more."""
        for segment in list(self.everything()):
            if segment.graph is not None:
                segment.graph.reset()
            segment.graph = segment.launch = segment.step = segment.build = None
            segment.children = {}

    def register(self, graph: NativeGraph) -> None:
        """Take ``graph``, whose capture has ended."""
        self.graph, self.launch = graph, graph.launch


@dataclass
class Step:
    """What the host does between two graphs.

    Attributes:
        point: what it is.
        where: the user's line.
        func: called with
        args: these, and
        kwargs: these. Their tensors are the fixed ones of the segments before.
        ambient: enters what was in force around the call, such as autocast.
    """

    point: Point
    where: Source
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ambient: Callable[[], Any] | None

    def run(self) -> Any:
        """What comes out now."""
        if self.ambient is None:
            return self.func(*self.args, **self.kwargs)
        with self.ambient():
            return self.func(*self.args, **self.kwargs)


def run(segment: Segment, new: Graft | None = None) -> Segment | None:
    """Run a call; the caller has copied the inputs.

    Args:
        segment: the first segment.
        new: a branch that is no part of the tree yet.

    Returns:
        The last segment; ``None``: the data takes a way that was not captured.
    """
    while True:
        if segment.launch is not None:
            segment.launch()
        step = segment.step
        if step is None:
            return segment
        result = step.run()
        key = outcome(result)
        following = segment.children.get(key)
        if following is None:
            if new is None or segment is not new.parent or key != new.key:
                return None
            following = new.child
        segment = following
        if segment.bound:
            _bind(segment.bound, result)


def outcome(result: Any) -> Any:
    """What tells one outcome of a step from another: values, and shapes of tensors."""
    if result is None or type(result) in (bool, int):
        return type(result), result
    leaves, spec = pytree.tree_flatten(result)
    return (spec, *map(_outcome_of_leaf, leaves))


def _outcome_of_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    if type(leaf).__module__ == "numpy":
        return type(leaf), str(leaf.dtype), leaf.shape, leaf.tobytes()
    if isinstance(leaf, float):
        return float, repr(leaf)
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), id(leaf)
    return type(leaf), leaf


def _bind(bound: list[torch.Tensor | None], result: Any) -> None:
    fresh = (leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))
    with torch.no_grad():
        for fixed, tensor in zip(bound, fresh, strict=True):
            if fixed is not None:
                fixed.copy_(tensor)


class _Lost:
    """A tensor that nobody used any more when its segment ended."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage: Any = StorageWeakRef(tensor.untyped_storage())
        self._offset = tensor.storage_offset()
        self._make = functools.partial(
            torch.empty_strided,
            tensor.shape,
            tensor.stride(),
            dtype=tensor.dtype,
            device=tensor.device,
        )

    def found(self) -> torch.Tensor | _Lost:
        """A tensor on its memory, if that is still in use."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        self._storage = None
        if storage is None:
            return self
        tensor = torch.empty(0, dtype=self._make.keywords["dtype"], device=storage.device)
        return tensor.set_(storage, self._offset, *self._make.args)

    def again(self) -> torch.Tensor:
        """A tensor like it, with nothing in it."""
        return self._make()


@dataclass
class _Done:
    """An operation of a segment: enough to go through it again without running it."""

    func: Any
    spec: Any
    leaves: list[Any]

    @classmethod
    def of(cls, func: Any, given: list[torch.Tensor], result: Any) -> _Done:
        """The operation ``func``, which has just been captured."""
        leaves, spec = pytree.tree_flatten(result)
        for n, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                same = next((p for p, t in enumerate(given) if t is leaf), None)
                leaves[n] = _Lost(leaf) if same is None else Same(same)
        return cls(func, spec, leaves)

    def freeze(self) -> None:
        """Hold on to what is still in use."""
        self.leaves = [leaf.found() if isinstance(leaf, _Lost) else leaf for leaf in self.leaves]

    def again(self, given: list[torch.Tensor]) -> Any:
        """What it returned."""

        def restore(leaf: Any) -> Any:
            if isinstance(leaf, Same):
                return given[leaf.position]
            if isinstance(leaf, _Lost):
                return leaf.again()
            return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf

        return pytree.tree_unflatten(list(map(restore, self.leaves)), self.spec)


@dataclass
class Failure:
    """The operation at which a capture failed first.

    Attributes:
        func: the operator.
        where: the user's line.
    """

    func: Any
    where: Source


@dataclass
class Graft:
    """A new branch of a tree, and where it belongs: put there when it is known to be right."""

    parent: Segment
    key: Any
    child: Segment

    def attach(self) -> None:
        """Make it part of the tree; the caller holds LOCK."""
        self.parent.children[self.key] = self.child


class Tracer(Interceptor):
    """Captures a function as segments, following a recording of the same call.

    Args:
        events: the points of the recording, in order.
        begin: begins a capture.
        root: the tree so far, whose shared part is gone through without running anything.
        options: see :class:`Interceptor`.

    Attributes:
        graft: where the new part belongs; ``None``: it is a tree of its own.
        first: the first segment that is new.
        failure: the operation at which the capture failed.
    """

    def __init__(
        self,
        device_type: str,
        inputs: Iterable[torch.Tensor],
        events: list[Event],
        begin: Callable[[], NativeGraph],
        root: Segment | None = None,
        **options: Any,
    ) -> None:
        # Without a break there is one path: nobody goes through it again, and all is as it was.
        self._branches = any(not event.folds for event in events)
        super().__init__(device_type, inputs, follows=self._branches, **options)
        self._events = events
        self._next = 0
        self._begin = begin
        self._graph: NativeGraph | None = None
        self._shared = root  # the segment that is gone through again
        self._position = self._folds = 0
        self._segment = root or Segment([], None)
        self.root = self._segment
        self.graft: Graft | None = None
        self.failure: Failure | None = None

    @property
    def new(self) -> Segment:
        """The first segment that is new."""
        return self.root if self.graft is None else self.graft.child

    def start(self) -> None:
        """Begin the capture; before :meth:`watching`, whose modes have to be on top."""
        if self._shared is None:
            self._graph = self._begin()

    def finish(self, outputs: list[torch.Tensor]) -> Segment:
        """End the capture.

        Returns:
            The last segment.
        """
        if self._next < len(self._events):
            self._diverged(f"it ended before {self._events[self._next].point.what}")
        if self._shared is not None:
            raise CaptureError("the path is there already", transient=True)
        self._end()
        self._segment.outputs = outputs
        return self._segment

    def abandon(self) -> None:
        """Release what was captured."""
        if self._graph is not None:
            self._graph.reset()
        if self._shared is None:
            self.new.reset()

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Capture an operation, or go through it again."""
        if isinstance(func, OpOverload) and (is_view(func) or torch.Tag.inplace_view in func.tags):
            return func(*args, **kwargs)
        given = list(tensors_in((args, kwargs))) if self._branches else []
        if self._shared is not None:
            if self._position == len(self._shared.done):
                self._diverged(f"it went on with {func}")
            done = self._shared.done[self._position]
            if done.func is not func:
                self._diverged(f"it had {func} where {done.func} was")
            self._position += 1
            return done.again(given)
        try:
            result = func(*args, **kwargs)
        except Exception:
            if self.failure is None:
                self.failure = Failure(func, users_line())
            raise
        if self._branches:
            self._segment.done.append(_Done.of(func, given, result))
        return result

    def event(
        self, point: Point, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Put in what came out in the recording; where it may be another, end the segment."""
        if self._next == len(self._events):
            self._diverged(f"it went on with {point.what}")
        event = self._events[self._next]
        if (event.point.rule, event.point.what) != (point.rule, point.what):
            self._diverged(f"it met {point.what} where {event.point.what} was")
        self._next += 1
        if event.folds:
            if event.is_of_the_host and not event.was_given(args, kwargs):
                self._diverged(f"another value came to {point.what}")
            return self._fold(event, point)
        return self._break(event, func, args, kwargs)

    def _fold(self, event: Event, point: Point) -> Any:
        folded = self._segment.folded
        if self._shared is None:
            folded.append(event)
        elif self._folds == len(folded) or not folded[self._folds].same_outcome(event):
            self._diverged(f"{point.what} gave something else")
        self._folds += 1

        def copy(value: Any) -> Any:
            # A copy, since the function may write to it: each replay starts from the constant.
            if isinstance(value, torch.Tensor):
                if self.handling and value.device.type == self.device_type:
                    return self.operation(torch.ops.aten.clone.default, (value,), {})
                return value.clone()  # of the device: through our dispatch mode
            return value.copy() if type(value).__module__ == "numpy" else value

        return pytree.tree_map(copy, event.result)

    def _break(
        self, event: Event, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = list(tensors_in((args, kwargs)))
        if event.point.kind == "read" and isinstance(func, OpOverload):
            func = _READ[func._schema.name]

        def fixed(value: Any) -> Any:
            return value.detach() if isinstance(value, torch.Tensor) else value

        with dispatch_stack._disable_current_modes():
            key = _expected(event, given)
            if self._shared is not None:
                self._end_shared(event)
                following = self._shared.children.get(key)
                if following is not None:
                    self._shared = self._segment = following
                    self._position = self._folds = 0
                    return _handed_out(following.result, given)
                child = self._child(event)
                self.graft = Graft(self._shared, key, child)
                self._shared = None
            else:
                self._end()
                held_args, held_kwargs = pytree.tree_map(fixed, (args, kwargs))
                self._segment.step = Step(
                    event.point, event.where, func, held_args, held_kwargs, _ambient(event.point)
                )
                child = self._child(event)
                self._segment.children[key] = child
        self._segment = child
        # On a GPU torch fills in the generator's state, which is no operation of the function's;
        # the emulated device puts modes of its own.
        with nullcontext() if self.emulated else dispatch_stack._disable_current_modes():
            self._graph = self._begin()
        self.to_top()
        return _handed_out(child.result, given)

    def _child(self, event: Event) -> Segment:
        leaves = pytree.tree_leaves(event.result)
        bound = [
            leaf if isinstance(leaf, torch.Tensor) else None
            for leaf in leaves
            if isinstance(leaf, (torch.Tensor, Same))
        ]
        return Segment(bound, event.result)

    def _end_shared(self, event: Event) -> None:
        shared = self._shared
        assert shared is not None
        if shared.step is None or self._position < len(shared.done):
            self._diverged(f"it met {event.point.what} too early")
        elif shared.step.point.what != event.point.what:
            self._diverged(f"it met {event.point.what} where {shared.step.point.what} was")

    def _end(self) -> None:
        graph, self._graph = self._graph, None
        assert graph is not None
        segment = self._segment
        if _ends_empty(graph):
            graph.reset()
        else:
            segment.register(graph)
        with dispatch_stack._disable_current_modes(), torch._C.DisableTorchFunction():
            for done in segment.done:
                done.freeze()

    def _diverged(self, how: str) -> None:
        raise CaptureError(
            f"the function took another way in its capture than in the run before: {how} "
            f"({users_line()}). What it does has to depend on its arguments alone."
        )


def _expected(event: Event, given: list[torch.Tensor]) -> Any:
    """The outcome of the recorded result."""
    return outcome(_handed_out(event.result, given))


def _handed_out(result: Any, given: list[torch.Tensor]) -> Any:
    """A result as the function gets it: arguments themselves, and aliases of fixed tensors."""

    def hand_out(value: Any) -> Any:
        if isinstance(value, Same):
            return given[value.position]
        return value.detach() if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(hand_out, result)


_READ: dict[str, Callable[..., Any]] = {
    "aten::_local_scalar_dense": torch.Tensor.item,
    "aten::equal": torch.equal,
}


def _ambient(point: Point) -> Callable[[], Any] | None:
    """Enters what is in force now; only a function of the user's cares."""
    if point.rule != "no-graph":
        return None
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for kind in ("cpu", "cuda")
    ]

    @contextmanager
    def enter() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            for kind, dtype, enabled in casts:
                if enabled != torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            yield

    return enter


def _ends_empty(graph: NativeGraph) -> bool:
    """End the capture; whether there was nothing in it, which torch says in a warning."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        graph.capture_end()
    empty = False
    for warning in heard:
        if "graph is empty" in str(warning.message).lower():
            empty = True
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return empty
