"""Changes each place that guards watch, puts it back, and tells who noticed.

No code of the program runs for that: values are exchanged through the methods of classes in C, and
:mod:`~gfxgraph.graph.raw` reads them. What is put in the place of a function or of a container is
a copy that does the same, since other threads may meet it.
"""

from __future__ import annotations

import builtins
import functools
import math
import secrets
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.autograd.graph import increment_version
from torch.utils.hooks import RemovableHandle

from ..graph import raw
from ..graph.containers import Container, Slots, item_at, put_at
from ..graph.guard import Guard
from ..graph.locks import LOCK, no_garbage_collection
from ..graph.places import (
    Attributes,
    Content,
    Item,
    Length,
    Live,
    Parts,
    Place,
    TypeOf,
)
from ..graph.torch_settings import SETTINGS

__all__ = [
    "Change",
    "ChangedPlaces",
    "Kept",
    "can_be_made",
    "change_each",
    "value_change",
    "with_values",
]

MISSING: Any = raw.MISSING
# Dicts of more items are not put in another order.
_MAX_REORDERED = 1 << 16
_VALUES = (bool, int, float, str)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_BUILTINS = vars(builtins)


class Change(NamedTuple):
    """One change of one place.

    Attributes:
        name: the place, with the line that read it.
        do: makes the change. It may raise: then the place cannot be changed in this way.
        undo: puts back what was there when this was made, whether or not the change was made.
        is_named: whether the place itself knows now that it changed.
    """

    name: str
    do: Callable[[], object]
    undo: Callable[[], object]
    is_named: Callable[[], object] = lambda: None


@dataclass
class ChangedPlaces:
    """The outcome of the changes.

    Attributes:
        changed: how many places were changed.
        noticed: how many of these changes were noticed.
        unchanged: how many places were not changed: nobody can, or there was no time.
        unnoticed: names of places whose change their own guard did not notice.
        stuck: names of places that were put back, where the guard still sees a change.
    """

    changed: int = 0
    noticed: int = 0
    unchanged: int = 0
    unnoticed: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


def change_each(guards: Sequence[Guard], others: Iterable[Place], seconds: float) -> ChangedPlaces:
    """Change each place for a moment, one after the other, and ask the guards.

    Args:
        guards: those of the graphs, which hold.
        others: places that they may or may not watch: only whether one notices is counted.
        seconds: how long this may take, about.
    """
    found = ChangedPlaces()
    places: dict[Any, tuple[Callable[[], list[Change]], list[Guard]]] = {}
    for guard in guards:
        for identity, make in _watched(guard).items():
            places.setdefault(identity, (make, []))[1].append(guard)
    for place in others:
        places.setdefault(place.identity, (functools.partial(_of_place, place), []))
    # If time runs out, some of each kind were changed.
    until = monotonic() + seconds
    for number, (make, own) in enumerate(_mixed(list(places.values()))):
        if monotonic() > until:
            found.unchanged += len(places) - number
            break
        try:
            changes = make()
        except Exception:  # torch refuses to tell of what is there
            changes = []
        asked = [_is_noticed(change, own or guards, bool(own), found) for change in changes]
        tried = [is_seen for is_seen in asked if is_seen is not None]
        if not own and not any(tried):
            continue  # no graph is said to watch it
        found.changed += bool(tried)
        found.unchanged += not tried
        found.noticed += bool(tried) and all(tried)
        if tried and not all(tried):
            found.unnoticed.append(changes[asked.index(False)].name)
    return found


def _is_noticed(
    change: Change, guards: Sequence[Guard], is_own: bool, found: ChangedPlaces
) -> bool | None:
    """Whether they notice the change; ``None``: it cannot be made."""
    seen: bool | None = None
    # No replay sees the change. A collection may run finalizers of the program.
    with LOCK, no_garbage_collection():
        for guard in guards:
            _asked(guard)  # from now on it may rely on dicts that are watched
        try:
            if _is_done(change):
                seen = _is_seen(change, guards, is_own)
        finally:
            change.undo()
        still = any(_asked(guard) and guard.changes() for guard in guards)
    if still and seen is not None:
        found.stuck.append(change.name)
    return seen


def _is_done(change: Change) -> bool:
    try:
        change.do()
    except Exception:  # C code refuses it
        return False
    return True


def _is_seen(change: Change, guards: Sequence[Guard], is_own: bool) -> bool | None:
    try:
        if is_own:
            # What a place knows is among what its guard names; a model has thousands of them.
            return all(_asked(g) and bool(change.is_named() or g.changes()) for g in guards)
        return any(_asked(guard) and bool(guard.changes()) for guard in guards)
    except Exception:  # what was exchanged is of use to torch, which the guard asks
        return None


def _asked(guard: Guard) -> bool:
    """Whether a replay would find that something may have changed."""
    memory = guard.memory_holds
    return not guard.places_hold() or (memory is not None and not memory())


def _mixed(items: list[Any]) -> Iterator[Any]:
    """All of them, such that any number of the first ones are from everywhere."""
    step = next((n for n in (97, 89, 83, 79) if len(items) % n), 1)
    return (items[n * step % len(items)] for n in range(len(items)))


def _watched(guard: Guard) -> dict[Any, Callable[[], list[Change]]]:
    """All that a guard watches; each with what makes its changes."""
    found: dict[Any, Callable[[], list[Change]]] = {}
    for identity, place in guard.places().items():
        if not (isinstance(place, Content) and Ellipsis in place.container.lifted):
            found[identity] = functools.partial(_of_place, place)
    for name, tensor in guard.watched_memory():
        found["memory", id(tensor)] = functools.partial(_of_memory, name, tensor)
    for tensor in guard.watched_values().values():
        found["version", id(tensor)] = functools.partial(_of_version, tensor)
    for tensor, name, _ in guard.watched_held():
        found["held", id(tensor), name] = functools.partial(_of_held, tensor, name)
    for name in guard.settings:
        found["setting", name] = functools.partial(_of_setting, name)
    for hooks in guard.no_hooks:
        found["hooks", id(hooks.item)] = functools.partial(_of_hooks, hooks)
    return found


# ---- places


def _of_place(place: Place) -> list[Change]:
    """The changes of a place; none where nobody can change it from here."""
    found: list[Change] = []
    match place:
        case Item():
            found = _of_item(place, place.container, place.key, place.path)
        case Content():
            found = _of_content(place)
        case Length():
            found = _one_more(place, place.owner)
        case TypeOf():
            found = _of_type(place)
        case Parts():
            found = _of_parts(place)
        case Live():
            found = _of_live(place)
        case Attributes():
            found = _of_attributes(place)
    return found


def _of_item(place: Place, container: Any, key: Any, path: str) -> list[Change]:
    put = _putter(container, key)
    if put is None:
        return []
    before = item_at(container, key)
    if container is _BUILTINS and type(before) is not types.BuiltinFunctionType:
        return []  # what runs here needs it
    return [_exchange(place, path, put, before)]


def _exchange(place: Place, path: str, put: Callable[[Any], object], before: Any) -> Change:
    """The change that puts another value where ``before`` is."""
    return Change(
        place.described(path),
        lambda: put(_other(before)),
        lambda: put(before),
        place.changes,
    )


def _putter(container: Any, key: Any) -> Callable[[Any], object] | None:
    """Puts a value there, through C code alone; ``None``: that is not possible."""
    if type(container) is Slots:
        slot = raw.slots(container.item).get(key)
        return None if slot is None else functools.partial(_put_in_slot, slot, container.item)
    if raw.is_a(container, type):
        # A class in C cannot be changed, and a metaclass may have a descriptor of that name. After
        # another `__new__`, a class refuses arguments for ever, also where that is put back.
        if not raw.is_mutable(container) or key == "__new__" or not _is_free(container, key):
            return None
    elif raw.is_a(container, dict):
        if not raw.is_scalar(key) or raw.class_with(container) is not None:
            return None
    elif raw.is_a(container, list):
        if not -list.__len__(container) <= key < list.__len__(container):
            return None
    elif type(container) is not types.CellType:
        return None
    return functools.partial(put_at, container, key)


def _is_free(cls: type, key: str) -> bool:
    """Whether setting ``key`` in ``cls`` asks no descriptor of a metaclass."""
    for meta in raw.mro(type(cls)):
        found = raw.namespace(meta).get(key, MISSING)
        if found is not MISSING:
            return not any("__set__" in raw.namespace(base) for base in raw.mro(type(found)))
    return True


def _put_in_slot(slot: Any, item: Any, value: Any) -> None:
    if value is not MISSING:
        slot.__set__(item, value)
    elif item_at(Slots(item, {"": slot}), "") is not MISSING:
        slot.__delete__(item)


def _of_live(place: Live) -> list[Change]:
    put, before = place.write, place.read()
    if put is None:
        return []

    def put_back() -> None:
        if place.read() is not before:
            put(before)

    return [_exchange(place, place.path, put, before)._replace(undo=put_back)]


def _of_content(place: Content) -> list[Change]:
    container = place.container
    item = container.item
    if container.names is not None or type(item) in (types.CellType, Slots):
        keys = container.names if container.names is not None else [k for k, _ in container.held]
        return [c for key in list(keys)[:1] for c in _of_item(place, item, key, place.name(key))]
    found = _one_more(place, item)
    last = next((key for key, _ in reversed(container.held) if not container.is_ours(key)), None)
    if last is not None and raw.is_a(item, dict, list, type) and not container.is_lifted(last):
        found += _of_item(place, item, last, place.name(last))
    return found + _in_another_order(place, item, container)


def _in_another_order(place: Place, item: Any, container: Container) -> list[Change]:
    keys = [key for key, _ in container.held]
    usable = raw.has_plain_keys(container.held) and not any(map(container.is_ours, keys))
    if not usable or not 2 <= len(keys) <= _MAX_REORDERED or not raw.is_a(item, OrderedDict):
        return []
    move, first = OrderedDict.move_to_end, keys[0]

    def undo() -> None:
        if next(OrderedDict.__iter__(item)) is not first:
            move(item, first, last=False)

    return [Change(place.described(place.path), lambda: move(item, first), undo, place.changes)]


def _one_more(place: Place, item: Any) -> list[Change]:
    """The change that puts one thing more into a container."""
    more = object()
    do: Callable[[], object]
    undo: Callable[[], object]
    cls = item if raw.is_a(item, type) else None
    if raw.is_a(item, dict):
        cls = raw.class_with(item)
    if cls is not None or raw.is_a(item, dict):
        # No key in there can have its hash, except by chance: it would be asked whether it is it.
        key = f"gfxgraph_{secrets.token_hex(8)}"
        put = _putter(item if cls is None else cls, key)
        if put is None:
            return []
        do, undo = functools.partial(put, more), functools.partial(put, MISSING)
    elif raw.is_a(item, set):
        do, undo = (
            functools.partial(set.add, item, more),
            functools.partial(set.discard, item, more),
        )
    elif raw.is_a(item, list, deque):
        base: Any = list if raw.is_a(item, list) else deque
        length = base.__len__(item)
        if base is deque and deque.maxlen.__get__(item) == length:  # it would lose the first one
            if not length:
                return []
            first = deque.__getitem__(item, 0)
            do = functools.partial(deque.__setitem__, item, 0, more)
            undo = functools.partial(deque.__setitem__, item, 0, first)
        else:
            do = functools.partial(base.append, item, more)

            def undo() -> None:
                if base.__len__(item) > length:
                    base.pop(item)
    else:
        return []
    return [Change(place.described(place.path), do, undo, place.changes)]


def _of_type(place: TypeOf) -> list[Change]:
    item = place.item()
    if item is None or raw.is_a(item, threading.local):
        return []
    found = []
    cls, put = type(item), object.__dict__["__class__"].__set__
    other = _class_like(item)
    if other is not None:
        found.append(
            Change(
                place.described(place.path),
                lambda: put(item, other),
                lambda: None if type(item) is cls else put(item, cls),
                place.changes,
            )
        )
    own = raw.attributes(item)
    slot = _slot_of_attributes(cls)
    is_module = raw.is_a(item, types.ModuleType)  # it keeps its dict
    if (
        own is not None
        and slot is not None
        and not is_module
        and raw.has_plain_keys([*own.items()])
    ):
        found.append(
            Change(
                place.described(place.path),
                lambda: slot.__set__(item, dict(own)),
                lambda: None if slot.__get__(item) is own else slot.__set__(item, own),
                place.changes,
            )
        )
    return found


def _slot_of_attributes(cls: type) -> Any:
    """The descriptor of ``__dict__``; ``None``: it is not the usual one."""
    for base in raw.mro(cls):
        slot = raw.namespace(base).get("__dict__")
        if slot is not None:
            return slot if type(slot) is types.GetSetDescriptorType else None
    return None


def _class_like(item: Any) -> type | None:
    """A class that ``item`` could have; ``None``: there is none. No metaclass is asked."""
    cls = type(item)
    base = next((base for base in raw.mro(cls) if not raw.is_mutable(base)), object)
    space: dict[str, Any] = {}
    if raw.attributes(item) is None:
        space["__slots__"] = tuple(sorted(slot.__name__ for slot in raw.slots(item).values()))
    try:
        return type("Other", (base,), space)
    except (TypeError, RuntimeError):  # of torch: there are to be no others
        return None


def _of_parts(place: Parts) -> list[Change]:
    function = place.function
    if not raw.is_a(function, types.FunctionType):  # what functools.partial binds
        return []
    own = raw.namespace(types.FunctionType)
    found = []
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        part = own[name]
        before = part.__get__(function)
        found.append(
            Change(
                place.described(f"{place.path}.{name}"),
                functools.partial(_put_part, part, function, before),
                functools.partial(_put_back_part, part, function, before),
                place.changes,
            )
        )
    return found


def _put_part(part: Any, function: Any, before: Any) -> None:
    other: Any
    if type(before) is types.CodeType:
        other = before.replace()
    elif type(before) is tuple:
        other = (*before, None)[:-1] or None
    else:
        other = dict(before or {}) if part.__name__ == "__kwdefaults__" else ()
    part.__set__(function, other)


def _put_back_part(part: Any, function: Any, before: Any) -> None:
    if part.__get__(function) is not before:
        part.__set__(function, before)


def _of_attributes(place: Attributes) -> list[Change]:
    tensor = place.tensor
    if not place.is_plain:
        return []
    name = f"{place.path}.shape"
    return _of_data(place.described(name), tensor, lambda data: data.unsqueeze(0), place.changes)


# ---- what guards watch beside places


def _of_memory(name: str, tensor: torch.Tensor) -> list[Change]:
    if type(tensor) not in _TENSORS or tensor.layout is not torch.strided or not tensor.numel():
        return []
    return _of_data(name, tensor, torch.empty_like, lambda: None)


def _of_data(
    name: str,
    tensor: torch.Tensor,
    change: Callable[[torch.Tensor], torch.Tensor],
    is_named: Callable[[], object],
) -> list[Change]:
    """The change of where a tensor lies, or how; it stays the same object."""
    with torch._C.DisableTorchFunction():
        data = tensor.detach()

    def put(other: torch.Tensor) -> None:
        with torch._C.DisableTorchFunction():
            tensor.data = other

    return [Change(name, lambda: put(change(data)), lambda: put(data), is_named)]


def _of_version(tensor: torch.Tensor) -> list[Change]:
    kept: list[Any] = []

    def do() -> None:
        keeps = _unsafe_preserve_version_counter(tensor)
        keeps.__enter__()
        kept.append(keeps)
        increment_version(tensor)

    def undo() -> None:
        while kept:
            kept.pop().__exit__(None, None, None)

    return [Change("the values of a tensor that the graph takes for constant", do, undo)]


def _of_held(tensor: torch.Tensor, name: str) -> list[Change]:
    slot = torch._C.TensorBase.__dict__.get(name)
    if name != "grad" or slot is None or type(tensor) not in _TENSORS:
        return []

    def put(value: Any) -> None:
        with torch._C.DisableTorchFunction():
            slot.__set__(tensor, value)

    with torch._C.DisableTorchFunction():
        before = slot.__get__(tensor)
        other = torch.zeros_like(tensor) if before is None else None
    return [Change(f"a tensor's {name}", lambda: put(other), lambda: put(before))]


def _of_setting(name: str) -> list[Change]:
    setting = next((setting for setting in SETTINGS if setting.name == name), None)
    if setting is None:
        return []
    read, write = setting.read, setting.write
    if name == "torch.use_deterministic_algorithms":  # torch's own loads its compiler
        write = _set_deterministic
    before, precisions = read(), _precisions()
    if before is None:
        return []

    def undo() -> None:
        if read() != before:
            write(before)
        for place, value in precisions.items():  # which the older flags set as well
            if _precisions()[place] != value:
                torch._C._set_fp32_precision_setter(*place, value)

    return [Change(name, lambda: write(_other_setting(before)), undo)]


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(value[0], warn_only=value[1])


def _precisions() -> dict[tuple[str, str], str]:
    getter: Any = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None or not hasattr(torch._C, "_set_fp32_precision_setter"):
        return {}
    pairs = ((kind, op) for kind in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn"))
    return {pair: getter(*pair) for pair in pairs}


def _other_setting(value: Any) -> Any:
    if type(value) is tuple:
        return (not value[0], *value[1:])
    if value in ("highest", "high", "medium"):
        return "high" if value == "highest" else "highest"
    return not value


def _of_hooks(hooks: Container) -> list[Change]:
    """A hook as torch registers one, but in a dict of hooks that is not called meanwhile."""
    kept: list[int] = []

    def do() -> None:
        handle = RemovableHandle(hooks.item)
        kept.append(handle.id)
        put_at(hooks.item, handle.id, _no_hook)

    def undo() -> None:
        for key in kept:
            put_at(hooks.item, key, MISSING)

    return [Change(hooks.path, do, undo, hooks.changes)]


def _no_hook(*args: object) -> None:
    """Does nothing."""


# ---- values


def _is_value(value: object) -> bool:
    """Whether both sides can be called with another value of the kind of ``value``."""
    return raw.is_scalar(value) and raw.is_a(value, *_VALUES)


def _is_weight(value: object) -> bool:
    """The same for a tensor."""
    if type(value) not in _TENSORS:
        return False
    tensor: Any = value
    plain = tensor.layout is torch.strided and not tensor.is_inference()
    return bool(plain and tensor.is_floating_point() and tensor.numel())


def with_values(places: Iterable[Place]) -> list[Place]:
    """The places that hold a plain value or a weight; the first ones are of all kinds."""
    by_kind: dict[type, list[Place]] = {}
    for place in {place.identity: place for place in places}.values():
        if isinstance(place, (Item, Live)):
            value = place.read()
            if _is_value(value) or _is_weight(value):
                by_kind.setdefault(type(value), []).append(place)
    rows = [list(_mixed(row)) for row in by_kind.values()]
    longest = max(map(len, rows), default=0)
    return [row[n] for n in range(longest) for row in rows if n < len(row)]


def value_change(place: Place) -> Change | None:
    """The change of a plain value or a weight, to one with a meaning; ``None``: it has none."""
    changes = _of_place(place)
    if not changes or not isinstance(place, (Item, Live)):
        return None
    value = place.read()
    if not _is_weight(value):
        return changes[0]
    put = _putter(place.container, place.key) if isinstance(place, Item) else place.write
    if put is None:
        return None
    return changes[0]._replace(do=functools.partial(_put_weight, put, value))


class Kept:
    """Snapshots of the containers in which places lie, to put back after calls.

    With another value a function may take a way on which it stores what is not known yet.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._containers: dict[int, Container] = {}
        for place in places:
            if isinstance(place, (Item, Content, Length)):
                item = place.owner if isinstance(place, Length) else place.container
                item = item.item if type(item) is Container else item
                self._containers.setdefault(id(item), Container("", item, _names_kept(item)))

    def put_back(self) -> None:
        """Let each hold what it held."""
        for container in self._containers.values():
            container.restore()


def _names_kept(item: Any) -> tuple[str, ...] | None:
    """Those to put back; ``None``: all. What a module gets, an import may have put there."""
    is_module = type(item) is dict and "__builtins__" in item
    return tuple(item) if is_module else None


def can_be_made(change: Change) -> bool:
    """Whether C code does not refuse it."""
    with LOCK:
        try:
            return _is_done(change)
        finally:
            change.undo()


def _put_weight(put: Callable[[Any], object], tensor: torch.Tensor) -> None:
    """Each time anew: a function may write to it."""
    with torch.no_grad():
        other = tensor.detach() * 0.75 + 0.05
    is_parameter = type(tensor) is torch.nn.Parameter
    put(torch.nn.Parameter(other, tensor.requires_grad) if is_parameter else other)


def _other(value: Any) -> Any:
    """Another object: of a plain value one that is not equal, else one that does the same."""
    kind = type(value)
    if kind is bool:
        return not value
    if kind is int or kind is complex:
        return value + 1
    if kind is float:
        return value * 1.5 + 0.25 if math.isfinite(value) else 0.25
    if kind is str:
        return f"{value}_"
    if kind is bytes:
        return value + b"_"
    return _copy(value)


def _copy(value: Any) -> Any:
    """Another object that does the same, if there is such."""
    kind: Any = type(value)
    if kind is types.FunctionType:
        parts = value.__code__, value.__globals__, value.__name__, value.__defaults__
        function = types.FunctionType(*parts, value.__closure__)
        function.__kwdefaults__ = value.__kwdefaults__
        function.__dict__.update(value.__dict__)
        return function
    if kind is types.BuiltinFunctionType:
        return functools.partial(value)
    if kind is staticmethod or kind is classmethod:
        return kind(value.__func__)
    if kind is property:
        return property(value.fget, value.fset, value.fdel)
    if kind is list or (kind is dict and raw.has_plain_keys(list(value.items()))):
        return kind(value)
    if kind in _TENSORS:
        with torch._C.DisableTorchFunction():
            return value.detach()
    if kind is types.ModuleType:
        module = types.ModuleType("other")
        module.__dict__.update(value.__dict__)
        return module
    return object()
