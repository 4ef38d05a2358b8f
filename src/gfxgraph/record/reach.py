"""Follows through one run, operation by operation, which elements the data of padding reaches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from ..device.asserts import taken
from ..device.operators import (
    is_composite,
    is_view,
    may_write,
    outside_of_modes,
    run_composite,
    written_tensors,
)
from ..device.overrides import UnwrappedDispatchMode
from ..interpose.interrupts import interrupt_in
from ..interpose.source import users_line
from .effects import StorageNames, asked, replaced_tensors, tensors_in
from .numbers import makes

__all__ = ["Reach", "Weight"]

# Operators in which an element that does not depend on data (a mask) decides whether data passes.
_GATES = re.compile(r"(where|masked_fill|mul|add|sub|(logical|bitwise)_(and|or))_?")
# Arguments of operators that hold data; integers in others may be indices.
_INDICES = frozenset(["index", "indices"])
_DATA = frozenset(["self", "other", "input", "tensors", "src", "source", "values", "mat1", "mat2"])
# Largest difference between two runs of one kernel, relative to the largest magnitude: sums in no
# fixed order.
_NOISE_IN_EPS = {torch.float32: 64, torch.float64: 64, torch.complex64: 64, torch.complex128: 64}


# A number that is added to scores so that nothing is left of them.
_LARGE = 1e3


class Weight(NamedTuple):
    """A tensor from outside.

    Attributes:
        tensor: the tensor.
        is_zero: whether all of it is zero. It may not be once it is loaded or trained.
        shuts_out: whether some of its values keep others from having an effect, such as zeros.
    """

    tensor: torch.Tensor
    is_zero: bool
    shuts_out: bool


class Reach(UnwrappedDispatchMode):
    """Follows which elements depend on data that was marked.

    For each storage that such data reached there is a mask with an element for each of its
    elements. A view has the mask of its storage, and so has a write in place. An operator that
    works element by element passes the marks of its arguments on. Any other operator is tried: it
    runs twice more with other values in the marked elements, and the elements that come out
    differently are marked. So no operator needs a rule of its own, but for those that take an
    index: a marked index marks what it leads to. Where an operator cannot be tried, all its results
    are marked.

    Args:
        weights: what is known of tensors from outside, by id. Runs between which nobody writes to
            them share it.
        explains: remember where data was mixed. It takes longer.
        along: the size of a padded dimension along which a mask says what counts, so that marked
            data may reach all of it. Default: there is no such dimension.

    Attributes:
        gates: by storage: tensors from outside whose values keep marked data away from elements,
            such as a mask. Others in their place might not.
        written_outside: the place of the first write of marked data to memory from outside; "": it
            is not known.
        misled: where an index of the data may lead to the padding, or behind it.
    """

    supports_higher_order_operators = True

    def __init__(
        self, weights: dict[int, Weight], explains: bool, along: int | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights, self._explains, self._along = weights, explains, along
        self._name = StorageNames()
        # Storage -> which of its elements are marked, of which there is one at least.
        self._masks: dict[int, torch.Tensor] = {}
        self._data: set[int] = set()  # storages that depend on an argument at all
        # Storages that depend on arguments, but on none that carries a size: those of another call
        # may hold anything.
        self._static: set[int] = set()
        self._made: set[int] = set()  # in this run
        self._by_masks: set[int] = set()  # storages that depend on a trusted argument
        self._from_zero: set[int] = set()  # storages without a negative value
        # Storage that holds no data -> the tensors from outside that it was computed from.
        self._roots: dict[int, dict[int, torch.Tensor]] = {}
        self.gates: dict[int, torch.Tensor] = {}
        self._mixed: dict[int, str] = {}  # storage -> where its data was mixed
        self._last: dict[int, str] = {}  # storage -> what computed it
        self._kept: list[torch.Tensor] = []
        self.written_outside: str | None = None
        self.misled: str | None = None

    def mark(
        self, tensor: torch.Tensor, marked: torch.Tensor | None, is_static: bool = False
    ) -> None:
        """Add an argument that holds data.

        Args:
            tensor: the argument.
            marked: which of its elements to follow, in its shape; ``None``: none.
            is_static: it carries no size.
        """
        key = self._name(tensor)
        self._data.add(key)
        self._kept.append(tensor)
        if is_static:
            self._static.add(key)
        if marked is not None:
            self._set(tensor, marked)

    def trust(self, tensor: torch.Tensor) -> None:
        """Add an argument that says what of the padding counts: a mask."""
        self._made.add(self._name(tensor))
        self._by_masks.add(self._name(tensor))
        self._kept.append(tensor)

    def reached(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Which elements of ``tensor`` are reached, in its shape; ``None``: none."""
        mask = self._masks.get(self._name(tensor))
        if mask is None:
            return None
        if mask.numel() != _elements(tensor):  # seen as another dtype
            return torch.ones(tensor.shape, dtype=torch.bool, device=mask.device)
        here = mask.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if here.numel() == mask.numel() and tensor.is_contiguous():
            return here  # all of the mask, which is nowhere empty
        return here if bool(here.any()) else None

    def place(self, tensor: torch.Tensor) -> str:
        """Which operation let the marked data reach ``tensor``, and the user's line."""
        key = self._name(tensor)
        return self._mixed.get(key) or self._last.get(key) or "the argument itself"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, is_op = kwargs or {}, isinstance(func, OpOverload)
        if is_op and is_composite(func):
            return run_composite(func, args, kwargs, self)
        given = tensors_in(args, kwargs)
        if is_op and makes(func) and not may_write(func):
            given = []  # of which only sizes and dtypes count
        names = {self._name(t) for t in given}
        written = list(written_tensors(func, args, kwargs)) if is_op and may_write(func) else []
        trials, result = _Trials(None, None), None
        shows = is_op and is_view(func)  # the marks of a view are those of its storage
        if shows:
            result = func(*args, **kwargs)
            if names.issuperset(map(self._name, tensors_in(result))):
                return result
        with outside_of_modes():
            masks = {id(t): m for t in given if (m := self.reached(t)) is not None}
        at = _SORTED.get(func._schema.name) if is_op else None
        decides, counts_back = at is not None and id(args[at]) in masks, False
        if is_op and id(args[0] if args else None) in masks:
            with outside_of_modes():
                leads_behind = self._counts_past_padding(func, args, masks[id(args[0])])
                counts_back = self._counts_back(func, args, masks[id(args[0])])
            decides |= leads_behind
            if self.misled is None and (leads_behind or counts_back):
                how = _COUNTS_BACK if counts_back else ", whose index may lead behind the padding,"
                self.misled = f"{func}{how} at {users_line()}"
        pointwise = is_op and _is_pointwise(func) and not self._is_gated(func, given, masks)
        decides |= counts_back
        pointwise = pointwise and not decides
        if masks and is_op and not (pointwise or shows or decides):
            with outside_of_modes():
                trials = self._trials(_Call(func, args, kwargs, written, masks), given)
        if not shows:
            result = func(*args, **kwargs)
        results = tensors_in(result)
        fresh = [t for t in results if self._name(t) not in names]
        with outside_of_modes():
            op = _Ran(func, given, masks, written, fresh, [*results, *written], counts_back)
            self._note_signs(op, args, kwargs)
            if masks:
                passes = is_op and _is_pointwise(func)  # where no values keep marks away
                self._note_gates(op, trials, passes and not pointwise)
            self._follow(op, trials.tried, pointwise)
        return result

    def _trials(self, call: _Call, given: list[torch.Tensor]) -> _Trials:
        """Try an operator that is given these tensors."""
        masks = call.masks
        zeros = [t for t in given if self._is_outside(t) and self._known(t).is_zero]
        bases = {id(t): torch.ones_like(t) for t in zeros}
        hidden = [t for t in given if self._hides(t, masks.get(id(t)))]
        dense = {id(t): _dense(t, masks.get(id(t)), n) for n, t in enumerate(hidden)}
        static = [t for t in given if id(t) not in masks and self._name(t) in self._static]
        tried = _tried(call, bases | dense, static) if dense else None
        if tried is None:
            tried = _tried(call, bases, static)
        shut = [t for t in given if id(t) not in bases and self._shuts_out(t)]
        opened = _tried(call, bases, [*static, *shut]) if tried and shut else None
        return _Trials(tried, opened)

    def _note_gates(self, op: _Ran, trials: _Trials, is_gated: bool) -> None:
        """Note whose values have kept marked data away here.

        ``is_gated``: with other values the operator passes all marks on, element by element.
        """
        # What was computed may depend on the size, and an index reads any row.
        fixed = [t for t in op.given if self._name(t) not in self._data]
        roots = self._roots_of([t for t in fixed if not self._is_outside(t) or _is_index(t)])
        rest, positions = self._roots_of(fixed), range(len(op.results))
        if rest.keys() - roots.keys() and trials.tried and (is_gated or trials.opened):
            kept = [op.mask(n, trials.tried) for n in positions]
            if is_gated:
                whole = [_together(op.masks.values(), op.results[n]) for n in positions]
            else:
                whole = [op.mask(n, trials.opened) for n in positions]
            if any(bool((w & ~k).any()) for w, k in zip(whole, kept, strict=True)):
                roots |= rest
        self.gates |= roots

    def _is_outside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is no data, and was there before the run."""
        key = self._name(tensor)
        return key not in self._made and key not in self._data

    def _known(self, tensor: torch.Tensor) -> Weight:
        """The facts about a tensor from outside."""
        known = self._weights.get(id(tensor))
        if known is None:
            is_zero = _is_float(tensor) and not bool(tensor.any())
            shuts_out = not _is_float(tensor) or is_zero or bool(_is_shut(tensor).any())
            known = self._weights[id(tensor)] = Weight(tensor, is_zero, shuts_out)
        return known

    def _shuts_out(self, tensor: torch.Tensor) -> bool:
        """Whether other values of a tensor that is no data might let more through."""
        if self._is_outside(tensor):
            return self._known(tensor).shuts_out
        is_fixed = self._name(tensor) not in self._data and bool(self._roots_of([tensor]))
        return is_fixed and (not _is_float(tensor) or bool(_is_shut(tensor).any()))

    def _roots_of(self, tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
        """The tensors from outside that these are, or were computed from."""
        roots: dict[int, torch.Tensor] = {}
        for tensor in tensors:
            key = self._name(tensor)
            if key not in self._data:
                roots |= self._roots.get(key, {}) if key in self._made else {key: tensor}
        return roots

    def _follow(self, op: _Ran, tried: list[_Tried] | None, pointwise: bool) -> None:
        """Mark what came out of an operation."""
        self._made.update(map(self._name, op.fresh))
        given = set(map(self._name, op.given))
        made = set(map(self._name, (*op.fresh, *op.written)))
        if not self._by_masks.isdisjoint(given):
            self._by_masks |= made
        if not self._data.isdisjoint(given):
            carries_size = not self._static.issuperset(self._data & given)
            self._data |= made
            (self._static.difference_update if carries_size else self._static.update)(made)
        else:
            self._roots |= dict.fromkeys(made, self._roots_of(op.given))
        if not op.masks:
            for t in op.written:
                if self._name(t) in self._masks:
                    self._set(t, torch.zeros(t.shape, dtype=torch.bool, device=t.device))
            return
        for n, out in enumerate(op.results):
            key = self._name(out)
            if key not in made:
                continue
            mask = _together(op.masks.values(), out) if pointwise else op.mask(n, tried)
            if key not in self._masks and not bool(mask.any()):
                continue
            self._set(out, mask)
            if self._explains:
                self._remember(op, out, mask, pointwise or tried is not None)
            elif key not in self._made and self.written_outside is None:
                self.written_outside = ""

    def _remember(self, op: _Ran, out: torch.Tensor, mask: torch.Tensor, is_known: bool) -> None:
        """Remember the operation that brought marked data to ``out``, for the message."""
        key = self._name(out)
        found = [self._mixed[k] for t in op.given if (k := self._name(t)) in self._mixed]
        how = "" if is_known else ", which cannot be tried with other data,"
        how = _COUNTS_BACK if op.counts_back else how
        here = "" if found else f"{op.func}{how} at {users_line()}"
        whole = any(bool(mask.all()) for mask in op.masks.values())
        if found or (not whole and bool(mask.all())):
            self._mixed[key] = found[0] if found else here
        elif here:
            self._last[key] = here
        if key not in self._made and self.written_outside is None:
            self.written_outside = self.place(out)

    def _is_gated(
        self, func: OpOverload, given: list[torch.Tensor], masks: dict[int, torch.Tensor]
    ) -> bool:
        """Whether an argument that does not depend on data decides which data passes."""
        clean = [t for t in given if id(t) not in masks and t.dim()]
        fixed = [t for t in clean if self._name(t) not in self._data]
        decides = [t for t in clean if t.dtype is torch.bool and self._name(t) in self._data]
        return (
            _GATES.fullmatch(func._schema.name.split("::")[1]) is not None
            and bool(fixed)
            and not decides
        )

    def _counts_past_padding(self, func: OpOverload, args: Any, mask: torch.Tensor) -> bool:
        """Whether indices of the data may lead behind the padding: to ``cat([x, last])[index]``.

        Without padding such an index is a smaller one.
        """
        name = func._schema.name
        dims: Iterable[int] = ()
        if name in ("aten::gather", "aten::index_select"):
            dims, indices = [args[1]], [args[2]]
        elif name == "aten::index":
            dims, indices = [n for n, t in enumerate(args[1]) if t is not None], args[1]
        elif name in ("aten::embedding", "aten::take"):
            dims, indices = [0], [args[1]]
            mask = mask.reshape(-1) if name == "aten::take" else mask
        if not dims or not any(t is not None and self._varies(t) for t in indices):
            return False
        along = (mask.movedim(dim, 0) for dim in dims if mask.dim())
        return any(bool((m[:-1] & ~m[1:]).any()) for m in along)

    def _counts_back(self, func: OpOverload, args: Any, mask: torch.Tensor) -> bool:
        """Whether indices of the data may be negative, which count back from the end of padding."""
        name = func._schema.name.removesuffix("_")
        if name in _AT_PLACES:
            indices = [(n, t) for n, t in enumerate(args[1]) if t is not None]
        elif name == "aten::index_fill":
            indices = [(args[1], args[2])]
        elif name in ("aten::take", "aten::put"):
            indices, mask = [(0, args[1])], mask.reshape(-1)
        else:
            return False
        for dim, index in indices:
            if _is_index(index) and self._varies(index) and mask.dim():
                along = mask.movedim(dim, 0)
                is_padded = len(along) == self._along and bool(along.all())
                is_padded = is_padded or bool((~along[:-1] & along[1:]).any())
                if is_padded and not self._is_from_zero(index):
                    return True
        return False

    def _varies(self, tensor: torch.Tensor) -> bool:
        """Whether another call may give other values here: by its data, or by its masks."""
        key = self._name(tensor)
        return key in self._data or key in self._by_masks

    def _is_from_zero(self, tensor: torch.Tensor) -> bool:
        """Whether no value of a tensor is ever negative."""
        if tensor.dtype in (torch.bool, torch.uint8) or self._name(tensor) in self._from_zero:
            return True
        if self._varies(tensor) or tensor.is_complex():
            return False
        self.gates |= self._roots_of([tensor])  # as long as it holds what it holds
        return bool((tensor >= 0).all())

    def _note_signs(self, op: _Ran, args: Any, kwargs: dict[str, Any]) -> None:
        """Note which results are never negative, as far as indices are made of them."""
        self._from_zero.difference_update(map(self._name, (*op.fresh, *op.written)))
        if not op.fresh or not isinstance(op.func, OpOverload):
            return
        name = op.func._schema.name.partition("::")[2]
        values = [t for t in op.given if t.dtype is not torch.bool]
        if name in _LOOK_UP:  # the sign of an index is no question of what it finds
            values = values[:1]
        # Of floats those of the data alone: nobody is to read all weights, or to watch them.
        is_of_data = len(values) == 1 and self._name(values[0]) in self._data
        if not (is_of_data or all(map(_is_index, op.fresh))):
            return
        numbers = [a for a in (*args[1:], *kwargs.values()) if type(a) in (int, float)]
        if name in ("clamp", "clamp_min"):
            low = args[1] if len(args) > 1 else kwargs.get("min")
            is_from_zero = isinstance(low, (int, float)) and min(low, *numbers) >= 0
        elif name == "remainder":
            is_from_zero = bool(numbers) and numbers[0] > 0
        elif name in ("add", "mul", "div", "floor_divide"):
            is_from_zero = min(numbers, default=0) >= 0 and all(map(self._is_from_zero, values))
        elif name in _KEEP_SIGNS:
            is_from_zero = all(map(self._is_from_zero, values))
        else:
            is_from_zero = name in _FROM_ZERO
        if is_from_zero:
            self._from_zero.update(map(self._name, op.fresh))
        elif name in _WITH_PLACES and len(op.fresh) > 1:
            self._from_zero.add(self._name(op.fresh[1]))

    def _hides(self, tensor: torch.Tensor, mask: torch.Tensor | None) -> bool:
        """Whether data has one value where it is not marked: a sum that it is multiplied with, say,
        shows nothing of the marked elements if that is zero."""
        if self._name(tensor) not in self._data or not _is_float(tensor):
            return False
        clean = tensor.reshape(-1) if mask is None else tensor[~mask]
        if not clean.numel():
            return False
        is_one = bool((clean == clean[0]).all())
        return is_one and (clean.numel() > 1 or not bool(clean[0]))

    def _set(self, tensor: torch.Tensor, marked: torch.Tensor) -> None:
        key = self._name(tensor)
        mask = self._masks.get(key)
        is_new = mask is None
        if mask is None:
            for old in self._name.freed(self._masks):
                del self._masks[old]
            count = _elements(tensor)
            mask = torch.zeros(count, dtype=torch.bool, device=tensor.device)
            self._masks[key] = mask
        if mask.numel() != _elements(tensor):
            mask.fill_(True)
            return
        view = tensor.size(), tensor.stride(), tensor.storage_offset()
        if torch._debug_has_internal_overlap(tensor) == 0:
            mask.as_strided(*view).copy_(marked)
        else:  # where elements share a place, one that is marked decides
            here = torch.arange(mask.numel(), device=mask.device).as_strided(*view)
            mask[here] = False
            mask[here[marked]] = True
        if not is_new and not bool(mask.any()):
            del self._masks[key]


@cache
def _is_pointwise(op: OpOverload) -> bool:
    # Those named here only lack the tag; thresholds may lie beyond what is tried.
    return torch.Tag.pointwise in op.tags or op._schema.name in _UNTAGGED


_UNTAGGED = frozenset({"aten::_to_copy", "aten::copy_", "aten::bucketize", "aten::searchsorted"})
# Where the sorted numbers are among the arguments, of which each decides for all.
_SORTED = {"aten::bucketize": 1, "aten::searchsorted": 0}


def _elements(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def _together(masks: Iterable[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """The elements of ``out`` that any of these reaches, element by element."""
    found: torch.Tensor | None = None
    for mask in masks:
        try:
            here = mask.to(out.device).expand(out.shape)
        except RuntimeError:  # not broadcast
            return torch.ones(out.shape, dtype=torch.bool, device=out.device)
        found = here if found is None else found | here
    assert found is not None
    return found


@dataclass
class _Tried:
    """The results with other values in the marked elements.

    Attributes:
        others: of each trial.
        before: the results with the values of the run; ``None``: those of the run itself.
        led_to: elements of the first result that marked indices lead to, which are not tried.
    """

    others: list[list[torch.Tensor]]
    before: list[torch.Tensor] | None
    led_to: torch.Tensor | None


class _Trials(NamedTuple):
    """The trials of an operator.

    Attributes:
        tried: with the values that the run has; ``None``: none, or it cannot be tried.
        opened: with others for tensors from outside that keep data away, if there are such.
    """

    tried: list[_Tried] | None
    opened: list[_Tried] | None


@dataclass
class _Ran:
    """An operation that has run.

    Attributes:
        func: the operator.
        given: the tensors that it took.
        masks: id of one of them -> its marked elements.
        written: those of them that it may have written.
        fresh: tensors of the result on memory that none of ``given`` is on.
        results: the tensors of the result, and ``written``.
        counts_back: whether an index that is given may be negative, and so lead to the padding.
    """

    func: Any
    given: list[torch.Tensor]
    masks: dict[int, torch.Tensor]
    written: list[torch.Tensor]
    fresh: list[torch.Tensor]
    results: list[torch.Tensor]
    counts_back: bool

    def mask(self, n: int, tried: list[_Tried] | None) -> torch.Tensor:
        """The elements of the n-th result that depend on the marked ones."""
        out = self.results[n]
        found = torch.zeros(out.shape, dtype=torch.bool, device=out.device)
        for one in tried or ():
            if any(len(other) != len(self.results) for other in one.others):
                return ~found
            before = out if one.before is None else one.before[n]
            found |= _changed(before, [other[n] for other in one.others])
            is_first = n == 0 or n >= len(self.results) - len(self.written)
            if one.led_to is not None and is_first:
                found |= one.led_to.expand(out.shape)
        return found if tried else ~found


class _Call(NamedTuple):
    """A call of an operator, of which ``written`` are the arguments that it may write, and
    ``masks`` the marked elements of those that have some, by id."""

    func: OpOverload
    args: Any
    kwargs: Any
    written: list[torch.Tensor]
    masks: dict[int, torch.Tensor]


def _tried(
    call: _Call, bases: dict[int, torch.Tensor], anything: list[torch.Tensor]
) -> list[_Tried] | None:
    """Run an operator with other values in the marked elements.

    Args:
        call: what is run.
        bases: by id: what to take for a tensor. Default: itself.
        anything: tensors that may hold anything else, too: such as masks, open or not.

    Returns:
        The results; ``None``: the operator cannot be tried.
    """
    ways = (True, False) if any(t.dtype is torch.bool for t in anything) else (True,)
    found: list[_Tried] = []
    for way in ways:
        one = _tried_once(call, bases | {id(t): _opened(t, way) for t in anything})
        if one is None:
            return None
        found.append(one)
    return found


def _tried_once(call: _Call, bases: dict[int, torch.Tensor]) -> _Tried | None:
    func, args, kwargs, written, masks = call
    if "c10d" in func.namespace:  # other ranks would wait for it
        return None
    names = (argument.name for argument in func._schema.arguments)
    named = [*zip(names, args, strict=False), *kwargs.items()]
    given = [(name, t) for name, value in named for t in tensors_in((value,))]
    led_to, ranges = _led_to(call), taken(func, args, kwargs)
    tried = [(name, t) for name, t in given if led_to is None or name not in _INDICES]
    tried = [(name, t) for name, t in tried if id(t) in masks]
    if any(id(t) in ranges and _is_index(t) for _, t in tried):
        # Whatever an index leads to, it is to be another thing than elsewhere.
        floats = [t for _, t in given if _is_float(t)]
        bases = bases | {id(t): _dense(t, masks.get(id(t)), n) for n, t in enumerate(floats)}
    others: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, tensor in tried:
        is_data = func.namespace == "aten" and name in _DATA
        base, within = bases.get(id(tensor), tensor), ranges.get(id(tensor))
        two = _others(base, masks[id(tensor)], is_data, len(others), within)
        if two is None:
            return None
        others[id(tensor)] = two
    found: list[list[torch.Tensor]] = []
    for trial in (0, 1, None) if bases else (0, 1):
        made = bases | {id(t): bases.get(id(t), t).clone() for t in written}
        if trial is not None:
            # A trial writes to what it is given: each has values of its own.
            made |= {key: two[trial] for key, two in others.items()}
        try:
            result = asked(func, replaced_tensors(args, made), replaced_tensors(kwargs, made))
        except Exception as error:  # other values may be none that it takes
            if interrupt_in(error):
                raise
            return None
        found.append([*tensors_in(result), *(made[id(t)] for t in written)])
    return _Tried(found[:2], found[2] if bases else None, led_to)


def _led_to(call: _Call) -> torch.Tensor | None:
    """Which elements of the result marked indices lead to, in a shape that can be expanded to its
    own; ``None``: none, or nobody can tell.

    No trial shows it where the same lies at several places, as it does in this run perhaps.
    """
    (_, _, name), args = call.func._schema.name.partition("::"), call.args
    name = name.removesuffix("_")
    if call.func.namespace != "aten" or name not in _LED:
        return None
    if name in ("index", "_unsafe_index"):
        return _taken_from(args[1], call.masks, args[0].dim())
    if name in _PUT:
        return _put_to(args[1], call.masks, args[0].shape)
    has_dim = name not in ("embedding", "take", "put") and name not in _BAGS
    here = call.masks.get(id(args[2 if has_dim else 1]))
    if here is None or name in ("gather", "take"):
        return here
    if name == "embedding":
        return here.unsqueeze(-1)
    if name in _BAGS:
        bags = _bags_of(here, args[2])
        return (bags[:-1] if len(args) > 7 and args[7] else bags).unsqueeze(-1)
    dim = args[1] % max(1, args[0].dim()) if has_dim else 0
    if name == "index_select":
        return here.view(-1, *[1] * (args[0].dim() - dim - 1))
    if not name.startswith("scatter") or here.dim() != args[0].dim() or not here.dim():
        return here.any()  # at any place
    found = torch.zeros(args[0].shape, dtype=torch.bool, device=here.device)
    corner = [slice(size) for size in here.shape]
    corner[dim] = slice(None)
    found[tuple(corner)] = here.any(dim, keepdim=True)
    return found


def _taken_from(
    indices: list[torch.Tensor | None], masks: dict[int, torch.Tensor], dims: int
) -> torch.Tensor | None:
    """See :func:`_led_to`: what is read in a tensor of so many dimensions."""
    places = [at for at, index in enumerate(indices) if index is not None]
    here = _marked_places(indices, masks)
    if here is None:
        return None
    # Dimensions of the indices come first if there are others between them.
    is_block = places[-1] - places[0] == len(places) - 1
    after = dims - len(places) - (places[0] if is_block else 0)
    return here.view(*here.shape, *[1] * after)


def _put_to(
    indices: list[torch.Tensor | None], masks: dict[int, torch.Tensor], shape: torch.Size
) -> torch.Tensor | None:
    """See :func:`_led_to`: what is written in a tensor of this shape."""
    here = _marked_places(indices, masks)
    if here is None:
        return None
    found = torch.zeros(shape, dtype=torch.bool, device=here.device)
    where = [
        slice(None) if index is None or id(index) in masks else index.expand(here.shape)[here]
        for index in indices
    ]
    found[tuple(where)] = True
    return found


def _marked_places(
    indices: list[torch.Tensor | None], masks: dict[int, torch.Tensor]
) -> torch.Tensor | None:
    """Which places are marked of those that these lead to, in the shape of all indices together."""
    given = [index for index in indices if index is not None]
    found = [masks[id(index)] for index in given if id(index) in masks]
    if not found or not all(map(_is_index, given)):
        return None
    shape = torch.broadcast_shapes(*(index.shape for index in given))
    return torch.stack([mask.expand(shape) for mask in found]).any(0)


def _bags_of(marked: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Which results of ``embedding_bag`` have a marked index."""
    places = torch.arange(marked.numel(), device=marked.device)
    bags = torch.searchsorted(offsets.to(marked.device).long(), places, right=True) - 1
    found = torch.zeros(offsets.numel(), dtype=torch.bool, device=marked.device)
    found[bags[marked]] = True
    return found


_PUT = frozenset(("index_put", "_index_put_impl", "_unsafe_index_put"))
_AT_PLACES = frozenset(f"aten::{name}" for name in ("index", "_unsafe_index", *_PUT))
_COUNTS_BACK = (
    ", whose index may be negative, which counts back from the end of the padding (if it never is, "
    "say so with index.clamp(min=0)),"
)
# Operators whose results are never negative; those whose results are not if what they take is not;
# and those that give places as a second result.
_FROM_ZERO = frozenset(
    (
        *("abs", "argmax", "argmin", "argsort", "bucketize", "count_nonzero", "exp", "relu"),
        *("searchsorted", "sigmoid", "_softmax"),
    )
)
_LOOK_UP = frozenset(("embedding", "gather", "index", "index_select", "take"))
_BAGS = frozenset(("_embedding_bag", "_embedding_bag_forward_only"))
_LED = (
    _LOOK_UP
    | _BAGS
    | _PUT
    | frozenset(
        (
            *("_unsafe_index", "put", "scatter", "scatter_add", "scatter_reduce"),
            *("index_add", "index_copy", "index_fill", "index_reduce"),
        )
    )
)
_KEEP_SIGNS = _LOOK_UP | frozenset(
    (
        *("_to_copy", "amax", "amin", "cat", "ceil", "clone", "cumsum", "flip", "floor", "maximum"),
        *("mean", "minimum", "prod", "repeat", "roll", "round", "stack", "sum", "trunc", "where"),
    )
)
_WITH_PLACES = frozenset(("sort", "topk", "max", "min", "median", "kthvalue", "mode", "cummax"))


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_index(tensor: torch.Tensor) -> bool:
    return not _is_float(tensor) and tensor.dtype is not torch.bool


def _is_shut(tensor: torch.Tensor) -> torch.Tensor:
    """Elements that let nothing through by which they are multiplied, or to which they are added
    before an exponential function."""
    return (tensor == 0) | ~(tensor.abs() < _LARGE)


def _opened(tensor: torch.Tensor, way: bool) -> torch.Tensor:
    """Values in the place of these that shut nothing out; indices stay as they are.

    ``way``: what lets all through where they are ``bool``, which is no question of these alone.
    """
    if tensor.dtype is torch.bool:
        return torch.full_like(tensor, way)
    if not _is_float(tensor):
        return tensor
    return torch.where(_is_shut(tensor), _pattern(tensor, 0).to(tensor.dtype), tensor)


def _dense(tensor: torch.Tensor, mask: torch.Tensor | None, n: int) -> torch.Tensor:
    """``tensor`` with other values where ``mask`` is not, none of them zero."""
    made = (_pattern(tensor, n) + 0.5).to(tensor.dtype)
    return made if mask is None else torch.where(mask, tensor, made)


def _others(
    tensor: torch.Tensor,
    mask: torch.Tensor,
    is_data: bool,
    n: int,
    within: tuple[float, float] | None,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Twice ``tensor`` with other values where ``mask`` is; ``None``: there are no others.

    ``n``: how many tensors have got some. No two get the same, whose difference shows nothing.
    ``within``: the smallest and the largest index that may be taken, if that is known.
    """
    if tensor.dtype is torch.bool:
        return tensor ^ mask, tensor ^ mask
    is_whole = not _is_float(tensor)
    if is_whole and not is_data:
        if within is None or within[1] == math.inf:
            # They may be indices, so stay within the values that occur.
            low, high = (int(v) for v in torch.aminmax(tensor))
        else:
            low, high = max(0, int(within[0])), int(within[1])
        if low >= high:
            return None
        steps = _pattern(tensor, n).sub_(1).mul_(high - low).to(tensor.dtype)
        count = high - low + 1
        made = (tensor - low + 1) % count + low, (tensor - low + 1 + steps) % count + low
    else:
        largest = _largest(tensor).double()
        if not is_whole:
            largest.clamp_(max=torch.finfo(tensor.dtype).max / 32)
        other = (8 * largest + 1) * _pattern(tensor, n)
        # Some become zero: then counts and casts to ``bool`` show them.
        made = other, torch.where(_pattern(tensor, n + 1) < 1.5, -other, torch.zeros_like(other))
        if is_whole:
            limits = torch.iinfo(tensor.dtype)
            made = tuple(o.clamp(limits.min / 2, limits.max / 2) for o in made)  # type: ignore[assignment]
    one, two = (torch.where(mask, other.to(tensor.dtype), tensor) for other in made)
    return one, two


def _pattern(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """Numbers from 1 to 2 in its shape, no two neighbours alike; for each ``n`` others."""
    places = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32)
    return places.add_(0.37 * n).mul_(0.618).remainder_(1).add_(1).view(tensor.shape)


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """The largest magnitude that is a number."""
    return torch.nan_to_num(tensor.abs(), nan=0.0, posinf=0.0, neginf=0.0).amax()


def _changed(one: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    """Which elements differ in any of ``others``."""
    if any(other.shape != one.shape or other.dtype != one.dtype for other in others):
        return torch.ones(one.shape, dtype=torch.bool, device=one.device)
    same = torch.ones(one.shape, dtype=torch.bool, device=one.device)
    if not one.numel():
        return ~same
    if not _is_float(one):
        for other in others:
            same &= one == other
        return ~same
    wide = torch.complex128 if one.is_complex() else torch.float64
    noise = _NOISE_IN_EPS.get(one.dtype, 2) * torch.finfo(one.dtype).eps
    # Numbers that stand for minus infinity say nothing of how exact the others are.
    sizes = one.abs().double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    allowed = noise * torch.maximum(sizes, torch.where(sizes < _LARGE, sizes, 0).amax())
    exact, is_nan = one.to(wide), one != one
    for other in others:
        near = (exact - other.to(wide)).abs() <= allowed
        same &= near.logical_or_(one == other).logical_or_(is_nan & (other != other))
    return ~same
