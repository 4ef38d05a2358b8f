"""A call as a tree of graphs, for functions whose course depends on data.

A :class:`Segment` is one graph, and how the host goes on after it: it reads a value, or runs an
operation that no graph can hold, and what comes out names the next segment. A function without
such points is a tree of one segment.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.multiprocessing.reductions import StorageWeakRef

from ..interpose.codes import address
from ..interpose.source import Source
from ..record.effects import tensors_in
from ..record.exchanges import DONE, Progress
from ..record.handed import is_size
from ..record.interceptor import Point
from ..record.recorder import Event, Same
from . import raw
from .native import NativeGraph

__all__ = ["Done", "Graft", "Segment", "Step", "outcome", "places_of", "run"]


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
        returned: of those among them that functions of the user's gave, the number of the call, and
            that among the tensors it gave.
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
        self.returned: list[tuple[int, int]] = []
        self.spec: Any = None
        self.build: Callable[[], Any] | None = None
        # What a capture of another path needs to go the same way up to the step.
        self.done: list[Done] = []
        self.folded: list[Event] = []

    def everything(self) -> Iterator[Segment]:
        """This segment and all after it."""
        todo = [self]
        while todo:
            segment = todo.pop()
            yield segment
            todo += segment.children.values()

    def widest(self) -> Segment:
        """The segment after which most ways part; the first one of those."""
        return max(self.everything(), key=lambda segment: len(segment.children))

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


@dataclass
class Step:
    """An action of the host between two graphs.

    Attributes:
        point: the kind of action.
        where: the user's line.
        func: the function to call.
        args: its arguments. Their tensors are the fixed ones of the segments before.
        kwargs: its keyword arguments.
        ambient: enters the modes in which the call was recorded, such as autocast.
    """

    point: Point
    where: Source
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ambient: Callable[[], Any] | None

    @functools.cached_property
    def places(self) -> list[int]:
        """Where the tensors among its arguments lie."""
        return places_of((self.args, self.kwargs))

    def run(self) -> Any:
        """Do it, and return the result."""
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
        key = outcome(result, step.places)
        following = segment.children.get(key)
        if following is None:
            if new is None or segment is not new.parent or key != new.key:
                return None
            following = new.child
        segment = following
        if segment.bound:
            _bind(segment.bound, result)


def outcome(result: Any, places: list[int]) -> Any:
    """The key of a step's outcome: values, and of tensors shapes, and which argument each is.

    Args:
        result: what the step gave.
        places: those of its arguments, see :func:`places_of`.
    """
    if result is None or result is DONE or type(result) in (bool, int):
        return type(result), result
    if isinstance(result, torch.Tensor):
        return torch.Tensor, _outcome_of_leaf(result), _index_in(places, result)
    leaves, spec = pytree.tree_flatten(result, is_leaf=is_size)
    found = spec, *map(_outcome_of_leaf, leaves)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return found
    same = tuple(map([*map(id, leaves)].index, map(id, leaves)))
    return (*found, *(_index_in(places, leaf) for leaf in leaves), same)


def places_of(given: Any) -> list[int]:
    """Where the tensors among the arguments of a step lie."""
    return list(map(_place_of, tensors_in(given)))


def _index_in(places: list[int], leaf: Any) -> int | None:
    """Which argument a tensor is: by its address, since a static input stands for it in a graph."""
    at = _place_of(leaf) if isinstance(leaf, torch.Tensor) else 0
    return places.index(at) if at and at in places else None


def _place_of(tensor: torch.Tensor) -> int:
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return tensor.data_ptr() if is_plain and tensor.layout is torch.strided else 0


def _outcome_of_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    if type(leaf).__module__ == "numpy":
        return type(leaf), str(leaf.dtype), leaf.shape, leaf.tobytes()
    if isinstance(leaf, (float, complex)):  # by bits: 0.0 is not -0.0, and there are many NaNs
        return type(leaf), struct.pack("dd", leaf.real, leaf.imag)
    if isinstance(leaf, Progress):  # each run has one of its own for the same work
        return type(leaf)
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), address(leaf)
    if type(leaf) in _BY_VALUE or raw.is_mutable(type(leaf)):
        return type(leaf), leaf
    return type(leaf), leaf, repr(leaf)  # equal ranges and decimals may differ in their parts


_BY_VALUE = frozenset((str, bytes, int, bool, type(None), torch.dtype, torch.device))


def _bind(bound: list[torch.Tensor | None], result: Any) -> None:
    is_one = isinstance(result, torch.Tensor)
    leaves = [result] if is_one else pytree.tree_leaves(result)
    fresh = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    with torch.no_grad():
        for fixed, tensor in zip(bound, fresh, strict=True):
            if fixed is not None:
                fixed.copy_(tensor)


@dataclass
class Graft:
    """A new branch of a tree, and where it belongs: put there when it is known to be right."""

    parent: Segment
    key: Any
    child: Segment

    def attach(self) -> None:
        """Make it part of the tree; the caller holds LOCK."""
        self.parent.children[self.key] = self.child


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
class Done:
    """An operation of a segment: enough to go through it again without running it."""

    func: Any
    spec: Any
    leaves: list[Any]

    @classmethod
    def of(cls, func: Any, given: Sequence[torch.Tensor], result: Any) -> Done:
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

    def again(self, given: Sequence[torch.Tensor]) -> Any:
        """The result of the operation, without running it."""

        def restore(leaf: Any) -> Any:
            if isinstance(leaf, Same):
                return given[leaf.position]
            if isinstance(leaf, _Lost):
                return leaf.again()
            return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf

        return pytree.tree_unflatten(list(map(restore, self.leaves)), self.spec)
