"""What a ``no_graph`` function is given in a replay: the objects of the call, where it gets such.

In a capture the function is given tensors on the fixed memory of the graphs, and containers that
were made for the capture. Of each of them :class:`Hands` knows what it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.utils._pytree as pytree

from .effects import storage_key

__all__ = ["Caller", "Hands", "Origin", "hand_out", "is_size"]


class Origin(NamedTuple):
    """What a tensor or a container stands for that a function was given in a capture.

    Attributes:
        kind: ``"input"``: the argument whose static input it is; ``"view"``: a view of that;
            ``"outside"``: a tensor that was there before; ``"alias"``: made anew on the memory of
            one; ``"container"``: one of the call.
        what: the static input, the tensor outside, or the way to the container.
    """

    kind: Literal["input", "view", "outside", "alias", "container"]
    what: Any


@dataclass
class Hands:
    """What a function was given in a capture.

    Attributes:
        origins: by the number of the tensor or the container; of what is not here it gets copies.
        written: the static inputs that the graph before it writes to.
        needed: numbers of the tensors without an origin whose memory the call uses afterwards.
        plain: its arguments, if they are :class:`Plain`; ``None``: not known yet.
        progress: a keyword argument for an exchange that goes on.
        exchanged: the tensors that an exchange is given, and of these by number those that it
            writes to; ``None``: not known yet.
        undefined: in the recorded run, by number the tensors that nobody has written to yet. What
            lies in their memory differs from run to run, and is nothing that a function may rely
            on.
    """

    origins: dict[int, Origin] = field(default_factory=dict)
    written: Sequence[torch.Tensor] = ()
    needed: set[int] = field(default_factory=set)
    plain: Plain | Literal[False] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    exchanged: tuple[list[torch.Tensor], dict[int, torch.Tensor]] | None = None
    undefined: frozenset[int] = frozenset()

    def plain_arguments(self, args: Any, kwargs: Any) -> Plain | Literal[False]:
        """The arguments, the same in all calls, if they are :class:`Plain`."""
        if self.plain is None:
            leaves = (*args, *kwargs.values())
            is_plain = not self.origins and all(map(_is_plain, leaves))
            self.plain = is_plain and Plain(args, kwargs)
        return self.plain


class Plain:
    """Arguments that are tensors which get copies, and numbers and the like: no containers.

    Args:
        args: the positional ones.
        kwargs: the keyword arguments.

    Attributes:
        fixed: the tensors of the capture, in order.
        extents: of each, how far its memory reaches before and after its first element, in bytes.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._args, self._kwargs = args, kwargs
        leaves = (*args, *kwargs.values())
        self.fixed = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._where = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._leaves = list(leaves)
        keys = list(map(storage_key, self.fixed))
        distinct = {id(tensor): key for tensor, key in zip(self.fixed, keys, strict=True)}
        shared = list(distinct.values())
        #: All the memory of tensors that share it, by its key.
        self._memory = {
            key: torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
                tensor.untyped_storage()
            )
            for tensor, key in zip(self.fixed, keys, strict=True)
            if shared.count(key) > 1
        }
        self._keys = [key if key in self._memory else None for key in keys]
        self.extents = []
        for tensor in self.fixed:
            before = tensor.storage_offset() * tensor.element_size()
            self.extents.append((before, tensor.untyped_storage().nbytes() - before))

    def copies(self, caller: Caller) -> list[torch.Tensor]:
        """A copy of each tensor, one for all of a call, see :func:`hand_out`."""
        known = caller.copies
        memory: dict[int, Any] = {}
        made: list[torch.Tensor] = []
        for tensor, key in zip(self.fixed, self._keys, strict=True):
            copy = known.get(id(tensor))
            if copy is None:
                if key is None:
                    copy = tensor.clone()
                else:
                    if key not in memory:
                        memory[key] = self._memory[key].clone().untyped_storage()
                    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                    copy.set_(memory[key], tensor.storage_offset(), tensor.shape, tensor.stride())
                known[id(tensor)] = copy
            elif all(copy is not other for other in made):
                copy.copy_(tensor)
            made.append(copy)
        return made

    def filled(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other tensors."""
        leaves = self._leaves.copy()
        for n, tensor in zip(self._where, tensors, strict=True):
            leaves[n] = tensor
        end = len(self._args)
        return tuple(leaves[:end]), dict(zip(self._kwargs, leaves[end:], strict=True))


_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device})


def _is_plain(leaf: Any) -> bool:
    if type(leaf) is not torch.Tensor:
        return type(leaf) in _PLAIN
    is_strided = leaf.layout is torch.strided and not leaf.is_meta
    return is_strided and not (leaf.is_conj() or leaf.is_neg())


class Caller(Protocol):
    """The arguments of the call that a replay answers."""

    def find(self, origin: Origin, fixed: Any) -> Any:
        """What ``fixed`` stands for; ``None``: a copy will do."""

    def write_back(self, written: Sequence[torch.Tensor]) -> None:
        """Let the arguments hold what their static inputs hold."""

    def read_again(
        self, given: Sequence[torch.Tensor] | None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Let the static inputs hold what their arguments hold.

        Args:
            given: the tensors that the function was given; ``None``: perhaps all.

        Returns:
            The arguments that have changed, and what they hold.
        """

    def fixed(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The static input of an argument."""

    @property
    def copies(self) -> dict[int, torch.Tensor]:
        """The copies that functions were given so far, by the number of the fixed tensor."""


def hand_out(
    tree: Any, hands: Hands, caller: Caller
) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The arguments of a call in place of those of a capture.

    Returns:
        These, and each tensor among them with the fixed one, without those in containers.
    """
    found: dict[int, Any] = {}
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def is_found(node: Any) -> bool:
        if is_size(node):
            return True
        origin = hands.origins.get(id(node))
        if origin is not None and id(node) not in found:
            found[id(node)] = caller.find(origin, node)
        return found.get(id(node)) is not None

    nodes, spec = pytree.tree_flatten(tree, is_leaf=is_found)
    fixed = {id(node): node for node in nodes if isinstance(node, torch.Tensor)}
    others = [node for number, node in fixed.items() if found.get(number) is None]
    found |= {id(node): own for node, own in zip(others, _copies(others, caller), strict=True)}
    pairs = [(found[number], node) for number, node in fixed.items()]
    own = [node if found.get(id(node)) is None else found[id(node)] for node in nodes]
    return pytree.tree_unflatten(own, spec), pairs


def is_size(node: Any) -> bool:
    """Whether it is a ``torch.Size``, of which pytrees would make a tuple."""
    return type(node) is torch.Size


def _copies(fixed: list[torch.Tensor], caller: Caller) -> list[torch.Tensor]:
    """A copy of each, one for all of a call: what shares memory shares memory again.

    The function may keep its arguments, and the next replay overwrites the fixed ones.
    """
    keys = list(map(storage_key, fixed))
    memory: dict[int, torch.UntypedStorage] = {}
    for tensor, key in zip(fixed, keys, strict=True):
        known = caller.copies.get(id(tensor))
        if known is not None:
            known.copy_(tensor)
        elif keys.count(key) == 1 or tensor.is_conj() or tensor.is_neg():
            caller.copies[id(tensor)] = tensor.clone()
        else:
            if key not in memory:
                memory[key] = tensor.untyped_storage().clone()
            made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            made.set_(memory[key], tensor.storage_offset(), tensor.shape, tensor.stride())
            caller.copies[id(tensor)] = made
    return [caller.copies[id(tensor)] for tensor in fixed]
