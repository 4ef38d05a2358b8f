"""Captures a call as a tree of graphs, following a recording of it."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.utils import _python_dispatch as dispatch_stack

from ..device.operators import is_view
from ..errors import CaptureError
from ..interpose.source import Source, users_line
from ..record.effects import storage_key, tensors_in
from ..record.exchanges import Progress
from ..record.handed import Hands, Origin, is_size
from ..record.interceptor import Interceptor, Point
from ..record.journal import perform
from ..record.recorder import Event, Same
from .native import NativeGraph
from .segments import Done, Graft, Segment, Step, outcome, places_of
from .static_objects import StaticObjects

__all__ = ["Tracer", "ends_empty"]


class Tracer(Interceptor):
    """Captures a function as segments, following a recording of the same call.

    Args:
        events: the points of the recording, in order.
        begin: begins the capture of a graph. It takes whether graphs that came before it in here
            use the pool.
        objects: the containers that the function is given.
        root: the tree so far, whose shared part is gone through without running anything.
        decisions: see :class:`~gfxgraph.record.recorder.Recording`.
        options: see :class:`Interceptor`.

    Attributes:
        graft: where the new part belongs; ``None``: it is a tree of its own.
        first: the first segment that is new.
        failure: the operator at which the capture failed first, and the user's line.
    """

    def __init__(
        self,
        device_type: str,
        inputs: Iterable[torch.Tensor],
        events: list[Event],
        begin: Callable[[bool], NativeGraph],
        objects: StaticObjects,
        root: Segment | None = None,
        decisions: Iterable[str] = (),
        **options: Any,
    ) -> None:
        inputs = list(inputs)
        self._decisions = iter(decisions)
        #: Whether a body of a conditional node is being captured.
        self.inside_body = False
        # Without a break there is one path: nobody goes through it again, and all is as it was.
        self._branches = any(not event.folds for event in events)
        super().__init__(device_type, inputs, follows=self._branches, **options)
        self._static_inputs, self._objects = inputs, objects
        #: Storage keys of the static inputs that were written since the last break.
        self._wrote: set[int] = set()
        #: Tensors that functions of the user's were given, each with its fixed alias.
        self._fixed: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        #: By storage key, those of whose memory functions of the user's were given copies, and the
        #: call has not used it since.
        self._copied: dict[int, list[tuple[Hands, int]]] = {}
        #: The segments after calls of functions of the user's.
        self._given: list[Segment] = []
        self._events = events
        self._next = 0
        self._begin = begin
        self._graph: NativeGraph | None = None
        self._shared = root  # the segment that is gone through again
        self._position = self._folds = 0
        self._segment = root or Segment([], None)
        self.root = self._segment
        self.graft: Graft | None = None
        self.failure: tuple[Any, Source] | None = None

    @property
    def goes_through_again(self) -> bool:
        """Whether what the function does now was captured before, and nothing is captured."""
        return self._shared is not None

    def host_decides(self) -> bool:
        """Whether the host decides the next ``cond``, ``switch`` or ``while_loop``."""
        reason = next(self._decisions, None)
        if reason is None:
            self._diverged("it went on with a decision")
        return bool(reason)

    @contextmanager
    def in_body(self) -> Iterator[None]:
        """Capture a conditional node inside, and those in its bodies."""
        before, self.inside_body = self.inside_body, True
        try:
            yield
        finally:
            self.inside_body = before

    @property
    def new(self) -> Segment:
        """The first segment that is new."""
        return self.root if self.graft is None else self.graft.child

    def start(self) -> None:
        """Begin the capture; before :meth:`watching`, whose modes have to be on top."""
        if self._shared is None:
            self._graph = self._begin(self._uses_pool())

    def finish(self, outputs: list[torch.Tensor]) -> Segment:
        """End the capture.

        Returns:
            The last segment.
        """
        if self._next < len(self._events):
            self._diverged(f"it ended before {self._events[self._next].point.what}")
        if self._shared is not None:
            raise CaptureError(
                "the call took another path than its recording, which took one that is captured: "
                "the data that it decides by has changed since",
                transient=True,
            )
        self._end()
        self._segment.outputs = outputs
        self._needs(outputs)
        keys = set(map(storage_key, outputs))
        self._segment.returned = [
            (call, n)
            for call, segment in enumerate(self._given)
            for n, fixed in enumerate(segment.bound)
            if fixed is not None and storage_key(fixed) in keys
        ]
        return self._segment

    def _uses_pool(self) -> bool:
        return any(segment.graph for segment in self.new.everything())

    def abandon(self) -> None:
        """Release what was captured."""
        if self._graph is not None:
            self._graph.reset()
        if self._shared is None:
            self.new.reset()

    def operation(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
    ) -> Any:
        """Capture an operation, or go through it again."""
        self._needs(tensors)
        if isinstance(func, OpOverload) and (is_view(func) or torch.Tag.inplace_view in func.tags):
            return func(*args, **kwargs)
        if self._shared is not None:
            if self._position == len(self._shared.done):
                self._diverged(f"it went on with {func}")
            done = self._shared.done[self._position]
            if done.func is not func:
                self._diverged(f"it had {func} where {done.func} was")
            self._position += 1
            return done.again(tensors)
        try:
            result = func(*args, **kwargs)
        except Exception:
            if self.failure is None:
                self.failure = func, users_line()
            raise
        if self._branches:
            self._segment.done.append(Done.of(func, tensors, result))
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
            return self._fold(event, point, list(tensors_in(args, kwargs)))
        return self._break(event, func, args, kwargs)

    def _fold(self, event: Event, point: Point, given: list[torch.Tensor]) -> Any:
        folded = self._segment.folded
        if self._shared is None:
            folded.append(event)
        elif self._folds == len(folded) or not folded[self._folds].same_outcome(event):
            self._diverged(f"{point.what} gave something else")
        self._folds += 1

        def copy(value: Any) -> Any:
            if isinstance(value, Same):
                return given[value.position]
            # A copy, since the function may write to it: each replay starts from the constant.
            if isinstance(value, torch.Tensor):
                if self.handling and value.device.type == self.device_type:
                    return self.operation(torch.ops.aten.clone.default, (value,), {}, (value,))
                return value.clone()  # of the device: through our dispatch mode
            return value.copy() if type(value).__module__ == "numpy" else value

        return pytree.tree_map(copy, event.result, is_leaf=is_size)

    def _break(
        self, event: Event, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = list(tensors_in(args, kwargs))
        if event.point.kind == "read" and isinstance(func, OpOverload):
            func = _READ[func._schema.name]

        with dispatch_stack._disable_current_modes():
            with self.unseen():  # to look where they lie exposes them to no kernel
                key = outcome(_handed_out(event.result, given), places_of(given))
            if self._shared is not None:
                self._end_shared(event)
                assert self._shared.step is not None
                self._note_copied(self._shared.step)
                following = self._shared.children.get(key)
                if following is not None:
                    self._shared = self._segment = following
                    self._position = self._folds = 0
                    self._note_given(event, following)
                    return _handed_out(following.result, given)
                child = self._child(event)
                self.graft = Graft(self._shared, key, child)
                self._shared = None
            else:
                self._end()
                with self.unseen():
                    (fixed_args, fixed_kwargs), hands = self._fix((args, kwargs), event)
                if isinstance(func, functools.partial) and func.func is perform:
                    if isinstance(event.result, Progress):  # what it is to give in each replay
                        hands.progress["progress"] = event.result
                    func = functools.partial(perform, func.args[0], hands)
                self._segment.step = Step(
                    event.point, event.where, func, fixed_args, fixed_kwargs, _ambient(event.point)
                )
                self._note_copied(self._segment.step)
                if event.point.rule != "collective":  # that runs on the static inputs themselves
                    self._wrote.clear()
                child = self._child(event)
                self._segment.children[key] = child
        self._segment = child
        self._note_given(event, child)
        # On a GPU torch fills in the generator's state, which is no operation of the function's;
        # the emulated device puts modes of its own.
        with nullcontext() if self.emulated else dispatch_stack._disable_current_modes():
            self._graph = self._begin(self._uses_pool())
        self.to_top()
        return _handed_out(child.result, given)

    def _note_given(self, event: Event, segment: Segment) -> None:
        if event.point.rule == "no-graph":
            self._given.append(segment)

    def wrote(self, tensor: torch.Tensor) -> None:
        """Note it."""
        self._wrote.add(self.name(tensor))

    def met(self, rule: str, what: str, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Note what an unknown kernel may use."""
        tensors = list(tensors)
        self._wrote.update(map(self.name, tensors))
        self._needs(tensors)

    def _needs(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note that the call uses these after functions of the user's were given copies."""
        if self._copied:
            for tensor in tensors:
                for hands, fixed in self._copied.pop(self.name(tensor), ()):
                    hands.needed.add(fixed)

    def _note_copied(self, step: Step) -> None:
        """Note what a function of the user's gets copies of."""
        fixed = list(tensors_in(step.args, step.kwargs))
        with self.unseen():
            self._needs(fixed)
            if not isinstance(step.func, functools.partial) or step.func.func is not perform:
                return
            if step.point.rule == "collective":  # it gets the tensors themselves
                return
            hands = step.func.args[1]
            for tensor in fixed:
                if id(tensor) not in hands.origins:
                    self._copied.setdefault(self.name(tensor), []).append((hands, id(tensor)))

    def _fix(self, tree: Any, event: Event) -> tuple[Any, Hands]:
        """The arguments of a step, and what they stand for."""
        ways = self._objects.ways
        of_input = {self.name(static): static for static in self._static_inputs}
        written = [static for key, static in of_input.items() if key in self._wrote]
        hands = Hands(written=written)

        def fix(tensor: torch.Tensor) -> torch.Tensor:
            known = self._fixed.get(id(tensor))
            if known is not None and known[0]() is tensor:
                fixed = known[1]
            else:
                fixed = tensor.detach()
                self._fixed[id(tensor)] = weakref.ref(tensor), fixed
            static = next((s for s in self._static_inputs if s is tensor), None)
            if static is not None:
                origin = Origin("input", static)
            elif self.name(tensor) in of_input:
                origin = Origin("view", of_input[self.name(tensor)])
            elif any(tensor is other for other in event.there):
                origin = Origin("outside", tensor)
            elif self.is_outside(tensor):
                origin = Origin("alias", fixed)
            else:
                return fixed
            hands.origins[id(fixed)] = origin
            return fixed

        def is_leaf(node: Any) -> bool:
            return id(node) in ways or is_size(node)

        nodes, spec = pytree.tree_flatten(tree, is_leaf=is_leaf)
        for n, node in enumerate(nodes):
            nodes[n] = pytree.tree_map_only(torch.Tensor, fix, node, is_leaf=is_size)
            if id(node) in ways:
                hands.origins[id(nodes[n])] = Origin("container", ways[id(node)])
        return pytree.tree_unflatten(nodes, spec), hands

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
        if ends_empty(graph):
            graph.reset()
        else:
            segment.graph, segment.launch = graph, graph.launch
        with dispatch_stack._disable_current_modes(), torch._C.DisableTorchFunction():
            for done in segment.done:
                done.freeze()

    def _diverged(self, how: str) -> None:
        raise CaptureError(
            f"the function took another way in its capture than in the run before: {how} "
            f"({users_line()}). What it does has to depend on its arguments alone."
        )


def _handed_out(result: Any, given: list[torch.Tensor]) -> Any:
    """A result as the function gets it: arguments themselves, and aliases of fixed tensors."""

    def hand_out(value: Any) -> Any:
        if isinstance(value, Same):
            return given[value.position]
        return value.detach() if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(hand_out, result, is_leaf=is_size)


_READ: dict[str, Callable[..., Any]] = {
    "aten::_local_scalar_dense": torch.Tensor.item,
    "aten::equal": torch.equal,
}


def _ambient(point: Point) -> Callable[[], Any] | None:
    """Enters what is in force now; only a function of the user's cares."""
    if point.rule not in ("collective", "no-graph"):
        return None
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for kind in ("cpu", "cuda")
    ]

    def is_in_force() -> bool:
        return (
            inference == torch.is_inference_mode_enabled()
            and grad == torch.is_grad_enabled()
            and not any(enabled != torch.is_autocast_enabled(kind) for kind, _, enabled in casts)
        )

    @contextmanager
    def enter() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(grad))
            for kind, dtype, enabled in casts:
                if enabled != torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            yield

    return lambda: nullcontext() if is_in_force() else enter()


def ends_empty(graph: NativeGraph) -> bool:
    """End the capture; whether there was nothing in it, which torch says in a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.capture_end()
    empty = False
    for warning in caught:
        if "graph is empty" in str(warning.message).lower():
            empty = True
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return empty
