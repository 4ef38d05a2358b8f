"""What a backward pass reaches: the leaves whose gradients it may set, and whose hooks it runs.

Autograd's engine binds ``leaf.grad`` in C++ where it was ``None``: no operation shows that.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from ..device.overrides import WithoutModes
from ..interpose.codes import address
from ..interpose.patch import intercept

__all__ = ["Gradients", "Reached", "backward_passes", "newest_node", "reached"]

_OF_TENSORS: Any = vars(torch._C.TensorBase)
_GRAD, _IS_LEAF = _OF_TENSORS["grad"], _OF_TENSORS["is_leaf"].__get__
_ENGINES = (torch.autograd, torch.autograd.graph)
_ACCUMULATES = "AccumulateGrad"


class Reached(NamedTuple):
    """What leads from the roots of a backward pass.

    Attributes:
        leaves: the tensors to whose gradients it may add.
        oldest: the number of the oldest node that some operation has recorded; -1: there is none.
    """

    leaves: list[torch.Tensor]
    oldest: int


def reached(roots: Iterable[Any]) -> Reached:
    """What a backward pass that begins at these tensors, or edges of the graph, may reach.

    No mode may see this, nor a subclass of ``Tensor``.
    """
    leaves: dict[int, torch.Tensor] = {}
    todo: list[Any] = []
    for root in roots:
        node = root.grad_fn if isinstance(root, torch.Tensor) else root.node
        if node is not None:
            todo.append(node)
        elif root.requires_grad:
            leaves[address(root)] = root
    seen: dict[int, Any] = {}  # which are kept, or another one may get the number of one
    oldest = -1
    while todo:
        node = todo.pop()
        if address(node) in seen:
            continue
        seen[address(node)] = node
        if type(node).__name__ == _ACCUMULATES:  # those of the program's classes end in Backward
            leaves[address(node.variable)] = node.variable
        else:
            number = node._sequence_nr()
            oldest = number if oldest < 0 else min(oldest, number)
            todo += [following for following, _ in node.next_functions if following is not None]
    return Reached(list(leaves.values()), oldest)


def newest_node() -> int:
    """A number that nodes have which operations of this thread record from now on, or more."""
    with WithoutModes(), torch.inference_mode(False), torch.enable_grad():
        node: Any = torch.empty((), requires_grad=True, device="cpu").view(1).grad_fn
    return int(node._sequence_nr())


def backward_passes(tell: Callable[[Any, bool], None]) -> ExitStack:
    """Let ``tell`` know of backward passes of this thread, before they run, until it is closed.

    Args:
        tell: takes the roots, and whether the pass is recorded itself. May raise to prevent it.
    """

    def handler(
        original: Callable[..., Any], roots: Any, grads: Any, keep: Any, create: Any, *more: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        tell(roots, bool(create))
        return original(roots, grads, keep, create, *more, **options)

    with ExitStack() as stack:
        for module in _ENGINES:
            stack.enter_context(intercept(module, "_engine_run_backward", handler))
        return stack.pop_all()


class _Held:
    """The ``.grad`` of a tensor, and where that lies in memory."""

    def __init__(self, leaf: torch.Tensor) -> None:
        self.grad: torch.Tensor | None = _GRAD.__get__(leaf)
        self._alias: torch.Tensor | None = None
        if type(self.grad) is torch.Tensor and self.grad.layout is torch.strided:
            self._alias = self.grad.detach()

    def is_of(self, leaf: torch.Tensor) -> bool:
        return _GRAD.__get__(leaf) is self.grad

    def restore(self, leaf: torch.Tensor) -> None:
        grad, alias = self.grad, self._alias
        if grad is not None and alias is not None and not grad.is_set_to(alias):
            grad.data = alias
        if not self.is_of(leaf):
            _GRAD.__set__(leaf, grad)


class Gradients:
    """Leaves that runs may reach, each with the ``.grad`` that it had before them.

    The value of that is memory from outside as any other: :class:`~gfxgraph.record.effects.UndoLog`
    restores it.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[torch.Tensor, _Held]] = {}
        #: Of the run that goes on. A leaf that it has made is gone at its end.
        self._met: dict[int, tuple[weakref.ref[torch.Tensor], _Held]] = {}

    def keep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember what these have, if they are leaves."""
        for tensor in tensors:
            if tensor.requires_grad and _IS_LEAF(tensor):
                self._found.setdefault(address(tensor), (tensor, _Held(tensor)))

    def meet(self, leaf: torch.Tensor) -> None:
        """The run reaches ``leaf``, which it may have made itself."""
        known = self._met.get(address(leaf))
        if known is None or known[0]() is not leaf:
            self._met[address(leaf)] = weakref.ref(leaf), _Held(leaf)

    def settle(self) -> list[torch.Tensor]:
        """The run is over; gives the leaves that it has reached and that are still there."""
        left = [(leaf, held) for ref, held in self._met.values() if (leaf := ref()) is not None]
        self._met.clear()
        for leaf, held in left:
            self._found.setdefault(address(leaf), (leaf, held))
        return [leaf for leaf, _ in left]

    def changed(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Those that have another ``.grad`` now, with what it was."""
        return [(leaf, held.grad) for leaf, held in self._found.values() if not held.is_of(leaf)]

    def restore(self) -> None:
        """Put back what they had."""
        for leaf, held in self._found.values():
            held.restore(leaf)
