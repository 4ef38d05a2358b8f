"""Python state that a function reaches: what it rebinds, and what a graph must watch.

A graph replays device work only. An attribute that the function rebinds in each call
(``self.position += 1``, ``self.cache = torch.cat(...)``) would stay what it was at capture, so such
a function may not become a graph; and what the *caller* rebinds later (a weight, a submodule, a
number of steps, a global) makes the graph stale.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import copy
import dataclasses
import functools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from ..interpose.codes import address, arguments_of, per_code
from ..interpose.dynamo import is_installed
from ..interpose.source import CLOSED, global_names
from ..record.effects import storage_key
from ..record.journal import Place as Changed
from . import raw
from .containers import Additions, Container, Slots
from .executed import executed_now
from .guard import REGISTRIES, Guard
from .in_c import Entries, is_array
from .lift import lift_among
from .listening import is_closed
from .locks import no_garbage_collection
from .lookups import package_of
from .one_shots import STREAM, inner, is_entropy, is_one_shot
from .places import Attributes, Content, Item, Length, Place
from .reads import Reads
from .saved_state import held_in_c, is_stateful
from .stores import Stores
from .torch_settings import Settings

__all__ = ["PythonState"]

# A walk over what a function reaches ends here: enough for a model of thousands of modules.
_MAX_OBJECTS = 200_000
# A longer container is data, not structure: neither walked nor watched.
_MAX_ITEMS = 4096
# A search for generators ends sooner: it looks into classes and modules as well.
_MAX_SEARCHED = 50_000
_LEAVES = (
    int,
    float,
    str,
    bytes,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
)
# Most of what a model holds: no names are made for it. Classes by their address, since a metaclass
# may have a hash of its own.
_PLAIN = frozenset(map(address, (*_LEAVES, bool)))
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module())) - {"training"}
# Their attributes are in C++.
_SCRIPTED = (torch.jit.ScriptModule, torch._C.ScriptMethod)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS: dict[str, Any] = {
    name: raw.namespace(torch._C.TensorBase)[name].__get__
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
}
_GRAD, _IS_LEAF = (raw.namespace(torch._C.TensorBase)[name].__get__ for name in ("grad", "is_leaf"))
_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
_OPEN_CLASSES = (
    torch.nn.Module,
    torch.quasirandom.SobolEngine,  # counts what it has drawn
    types.SimpleNamespace,
    argparse.Namespace,
    raw.C_DATA,
)
# Closed ones that keep what they have found, and which no replay enters: what is on then is asked.
_OF_THE_RUN = (torch.autocast, torch.autograd.profiler.record_function)
# What stands in a class and is no state of it.
_MEMBERS = (
    types.FunctionType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    classmethod,
    staticmethod,
    property,
)
# Modules of Python whose objects are containers in Python.
_CONTAINERS = frozenset(
    {
        "_thread",
        "_weakrefset",
        "collections",
        "multiprocessing.heap",
        "multiprocessing.shared_memory",
        "multiprocessing.sharedctypes",
        "queue",
        "threading",
        "weakref",
    }
)
# And those whose objects hold one that they give to whoever asks.
_HOLDERS = frozenset({"asyncio.futures", "concurrent.futures._base", "contextlib", "functools"})
# Four levels of attention: a graph watches the object; it is compared and put back; the same, but
# only executed code leads to it; it is only searched for generators and iterators.
_WATCHED, _COMPARED, _EXECUTED, _SEARCHED = range(4)
_OURS = __name__.partition(".")[0]
# What of ours makes and replays graphs; the other rooms hold functions that are graphed.
_MACHINERY = tuple(
    f"{_OURS}.{room}"
    for room in (
        "bridge.",
        "call.",
        "compiling.",
        "device.",
        "forking",
        "graph.",
        "interpose.",
        "record.",
        "simulate.",
        "stats",
    )
)


class PythonState:
    """The containers that ``roots`` reach, each with a shallow copy of what it holds now.

    Args:
        roots: name -> object: the function and the objects among its arguments. What the caller's
            own run has executed beside that (:func:`~gfxgraph.graph.executed.executed_now`) is
            compared and put back as well.
        search: look for generators and iterators further away than for anything else.
        stores: where runs were seen to store something. What another thread has changed is then
            no change, and is not put back. Default: every change is one.
        like: an earlier state, which knows what was executed. Default: the caller's own run alone
            tells that.

    Attributes:
        stores: the argument.
        stateful: paths and objects that a run may advance without rebinding anything: random
            generators, iterators, buffers. The search for these goes further than for anything
            else: into classes, modules, and globals of functions of other packages.
        closed: paths, and the attributes of objects whose code nobody looks at; and the containers
            among these.
    """

    def __init__(
        self,
        roots: dict[str, object],
        search: bool = True,
        stores: Stores | None = None,
        like: PythonState | None = None,
    ) -> None:
        self.stores = stores
        self.stateful: list[tuple[str, Any]] = []
        self._lift = lift_among(list(roots.values()))
        #: Where there is TorchScript, whose state cannot be looked at.
        self.scripted: list[str] = []
        self.closed: list[tuple[str, Any]] = []
        self._caches: list[Entries] = []
        self._containers: list[Container] = []
        #: Path, tensor, an alias of what it was, and whether it required grad.
        self._tensors: dict[int, tuple[str, torch.Tensor, torch.Tensor, bool]] = {}
        #: Of other layouts and classes: only their memory is looked at.
        self._other_tensors: dict[int, tuple[str, torch.Tensor]] = {}
        self._open_packages = {
            package for root in roots.values() for package in _packages(root)
        } - CLOSED
        executed = executed_now()
        known: Any = executed.spaces if executed else like._executed if like else {}
        packages: Any = executed.packages if executed else like._executed_packages if like else ()
        self._executed: dict[types.CodeType, dict[str, Any]] = known
        self._executed_packages: Collection[str] = packages
        self._executed_names = set().union(*map(global_names, list(self._executed)))
        run = executed.roots() if executed and roots else []
        self._todo: tuple[list[tuple[str, Any]], ...] = (list(roots.items()), [], run, [])
        self._seen: set[int] = set()
        self._opened: set[tuple[int, int]] = set()  # classes of objects, at which level
        self._classes: dict[int, tuple[dict[str, Any], bool, type]] = {}
        self._names: set[str] = set()
        #: Of attributes that code binds, of whatever object.
        self._bound: set[str] = set()
        self._unnamed: dict[str, list[tuple[int, tuple[str, Any]]]] = {}
        if roots:
            for code, space in list(self._executed.items()):
                self._open_code(code, space, _EXECUTED)
        with no_garbage_collection():  # the many small objects made here would start some
            self._walk(_SEARCHED if search else _EXECUTED)
        self._classes.clear()
        used = self._names & vars(builtins).keys()
        self._note_one_shots((name, vars(builtins)[name]) for name in used)

    @property
    def generators(self) -> list[torch.Generator]:
        """The random-number generators of torch that were met."""
        return [item for _, item in self.stateful if raw.is_a(item, torch._C.Generator)]

    def changes(self, registries: bool = True) -> list[str]:
        """Names of what was rebound, added, removed or given other memory since.

        Args:
            registries: look also at the children of modules, of which there are many and whose
                registrations a guard counts.
        """
        containers = [c for c in self._containers if registries or not c.counted]
        found = [c.name(key) for c in containers for key in self._changes_of(c)]
        return [*found, *self._changed_tensors()]

    def stirred(self) -> list[str]:
        """Names of the sets that are not as they were. The order of one cannot be put back."""
        sets = (c for c in self._containers if raw.is_a(c.item, set))
        return [container.path for container in sets if self._changes_of(container)]

    def changed_items(self) -> list[tuple[Container, Any]] | None:
        """What :meth:`changes` names, as containers and keys; ``None``: tensors are among it."""
        if any(True for _ in self._changed_tensors()):
            return None
        return list(self._changed())

    def _changed(self) -> Iterator[tuple[Container, Any]]:
        return ((c, key) for c in self._containers for key in self._changes_of(c))

    def _changes_of(self, container: Container) -> list[Any]:
        keys = container.changes()
        return keys if not keys or self.stores is None else self.stores.own(container, keys)

    def changed_places(self) -> list[Changed]:
        """What :meth:`changes` names, with the object that holds it, and the key in there."""
        found: list[Changed] = [(c.name(key), c.owner, key) for c, key in self._changed()]
        moved = {name.rpartition(".")[0]: name for name in self._changed_tensors()}
        for path, tensor, *_ in self._tensors.values():
            if path in moved:
                found.append((moved[path], tensor, None))
        return found

    def reaches(self, item: Any, key: Any) -> bool:
        """Whether ``key`` of a container, or all of a tensor or a buffer, is part of this."""
        if address(item) in self._tensors or any(item is other for _, other in self.stateful):
            return True
        return any(
            container.owner is item and (container.names is None or key in container.names)
            for container in self._containers
        )

    def _changed_tensors(self) -> Iterator[str]:
        for path, tensor, alias, required_grad in self._own_tensors():
            if _lies_elsewhere(tensor, alias):
                yield f"{path}.data"
            if tensor.requires_grad != required_grad:
                yield f"{path}.requires_grad"

    def _own_tensors(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, bool]]:
        """Those that no other thread may have changed."""
        if self.stores is None or not self.stores.decide:
            yield from self._tensors.values()
            return
        for found in self._tensors.values():
            if self.stores.touch_tensor(found[1]):
                yield found

    def replaced(self, guarded: bool = True, given: Collection[int] = ()) -> list[str]:
        """Names of what holds something else since, or went; not of what came, which a cache does.

        Args:
            guarded: also where a guard of a graph would notice.
            given: numbers of containers that are arguments, of which a graph watches none.
        """
        found = []
        for container in self._containers:
            if id(container.item) in given:
                continue
            # A guard looks up keys; of these it sees no content, or no order.
            is_guarded = container.guarded and not raw.is_a(container.item, set, deque, OrderedDict)
            if guarded or not is_guarded:
                changes = self._changes_of(container) if not container.counted else []
                held = {raw.token(key) for key, _ in container.held} if changes else ()
                found += [container.name(key) for key in changes if raw.token(key) in held]
        return [*found, *self._changed_tensors()]

    def addresses(self) -> set[int]:
        """Where objects are that were met, and that this keeps alive."""
        found = {address(tensor) for _, tensor in self.tensors()}
        for container in self._containers:
            found.add(address(container.owner))
            found.update(address(value) for _, value in container.held)
        return found

    def again(self) -> PythonState | None:
        """A snapshot of now, for other runs; ``None``: not all that it would hold is as it was."""
        now, executed = copy.copy(self), executed_now()
        now.stores = None  # whoever has changed something
        if now.changes() or (executed and not executed.spaces.keys() <= self._executed.keys()):
            return None
        now.stores = Stores()
        now._caches = [Entries(entries.path, entries.cached) for entries in self._caches]
        return now

    def unguarded_now(self) -> PythonState:
        """A new snapshot of the containers that no guard watches."""
        state = PythonState({}, stores=self.stores)
        state._containers = [
            dataclasses.replace(container)
            for container in self._containers
            if not container.guarded
        ]
        return state

    def changed(self) -> dict[str, Any]:
        """Name -> value of now, for what was rebound or added since."""
        found: dict[str, Any] = {}
        for container in self._containers:
            keys = self._changes_of(container)
            now = {raw.token(key): value for key, value in container.read()} if keys else {}
            for key in keys:
                if raw.token(key) in now:
                    found[container.name(key)] = now[raw.token(key)]
        return found

    def narrow(self, names: Collection[str]) -> None:
        """Look only at the containers of what has these names."""
        self._tensors.clear()
        self._containers = [
            c for c in self._containers if any(c.name(key) in names for key in self._changes_of(c))
        ]

    def missed(self) -> list[tuple[str, Any]]:
        """Caches of ``functools`` that have computed something since, with their names."""
        return [(f"{c.path}()", c.cached) for c in self._caches if c.has_missed()]

    def take_out_of_caches(self) -> None:
        """Take out of caches of ``functools`` what runs with other arguments have put there.

        The next call with such arguments computes it anew, from what there is then.
        """
        for entries in self._caches:
            entries.take_out_new()

    def recorded(self) -> list[str]:
        """Names of tensors into which autograd has recorded an operation."""
        return [path for path, tensor, *_ in self._tensors.values() if tensor.grad_fn is not None]

    def names(self) -> dict[int, str]:
        """Names of the tensors that were met, by storage."""
        return {storage_key(alias): path for path, _, alias, _ in self._tensors.values()}

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Names and tensors that were met; variables of two functions may have one name."""
        return [(path, tensor) for path, tensor, *_ in self._tensors.values()]

    def all_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Those, their gradients, and tensors of other layouts and classes that were met."""
        grads = [(f"{path}.grad", _GRAD(t)) for path, t in self.tensors() if _IS_LEAF(t)]
        found = [(path, grad) for path, grad in grads if grad is not None]
        return [*self.tensors(), *found, *self._other_tensors.values()]

    def restore(self) -> None:
        """Put back what it was, but for what another thread has changed."""
        for container in self._containers:
            keys = self._changes_of(container)
            held = self.stores.without_run(container) if keys and self.stores else None
            container.restore(keys, held)
        self.take_out_of_caches()
        for _, tensor, alias, required_grad in self._own_tensors():
            if _lies_elsewhere(tensor, alias):
                tensor.data = alias
            if tensor.requires_grad != required_grad and tensor.is_leaf:
                tensor.requires_grad_(required_grad)

    def guard(
        self,
        outside: dict[int, torch.Tensor],
        folded: dict[int, torch.Tensor],
        reads: Reads,
        held: Collection[tuple[torch.Tensor, str, Any]],
        settings: Settings,
        leaves: Collection[torch.Tensor],
        earlier: Guard | None = None,
    ) -> Guard:
        """A guard for a graph: it sees when something changes that the graph relies on.

        Args:
            outside: the tensors that the graph reads from outside, by storage.
            folded: those of them whose values the graph takes for constant.
            reads: what the executed code has read.
            held: tensors from outside, with the name and the value of what they hold.
            settings: of torch, which it depends on.
            leaves: tensors from outside that its backward passes reach.
            earlier: the guard of the paths that this one joins.
        """
        no_hooks = [c for c in self._containers if c.counted == "hooks"]
        hooks: dict[int, Any] = {address(c.item): c for c in no_hooks} | reads.no_hooks
        places = list(reads.places.values())
        if earlier is not None:
            hooks |= {address(c.item): c for c in earlier.no_hooks}
            settings = settings | earlier.settings
            places += earlier.places().values()
        moving = () if self._lift is None else self._lift.dicts
        # A tensor that the graph reads, and nobody saw how it was reached, may be in any of them.
        seen = {storage_key(place.tensor) for place in places if isinstance(place, Attributes)}
        used = seen | outside.keys()
        unseen = self._read_unseen()
        children = [
            c if id(c) in unseen else _without_unused(c, used)
            for c in self._containers
            if c.counted == "children"
        ]
        guard = Guard(outside, children, list(hooks.values()), settings, moving)

        def watch(place: Place) -> None:
            read = reads.places.get(place.identity)
            if read is not None:
                place.where = read.where
            guard.watch(place)

        for container in self._containers:
            if not container.guarded or raw.is_a(container.item, set, deque):
                continue  # queues and sets of the caller; no graph reads them by key
            if Ellipsis in container.lifted:
                continue
            is_unseen = container.counted is not None or id(container) in unseen
            if is_unseen and not raw.has_plain_keys(container.held):
                watch(Content(container.path, container))
                continue
            for key, value in container.held:
                if container.is_lifted(key) or not raw.is_scalar(key):
                    continue
                if raw.is_a(value, torch.Tensor):
                    is_used = type(value) in _TENSORS and storage_key(value) in outside
                    if is_used and (is_unseen or storage_key(value) not in seen):
                        watch(Item(container.name(key), container.item, key, value))
                elif is_unseen and not container.counted and not container.is_ours(key, value):
                    watch(Item(container.name(key), container.item, key, value))
            if is_unseen and container.has_length:
                watch(Length(container.path, container.item))
        for place in places:
            guard.watch(place)
        for path, tensor, alias, _ in self._tensors.values():  # also those in tuples and defaults
            if storage_key(alias) in outside:
                guard.watch_memory(path, tensor)
        names = self.names()
        for key, tensor in folded.items():
            guard.watch_values(key, names.get(key, "a tensor from outside"), tensor)
        for tensor, name, value in (*held, *self._gradients(outside, leaves)):
            path = names.get(storage_key(tensor), "a tensor from outside")
            guard.watch_held(path, tensor, name, value)
            if value is not None:
                guard.watch_memory(f"{path}.{name}", value)
        for leaf in leaves:
            guard.watch_hooks(names.get(storage_key(leaf), "a tensor from outside"), leaf)
        guard.complete()
        return guard

    def _gradients(
        self, outside: dict[int, torch.Tensor], leaves: Collection[torch.Tensor]
    ) -> list[tuple[torch.Tensor, str, torch.Tensor]]:
        """Gradients to which a graph adds, with their tensors: autograd asks for them in C++."""
        holders = {id(t): t for t in (*(t for _, t in self.tensors()), *outside.values(), *leaves)}
        grads = ((t, _GRAD(t)) for t in holders.values() if t.requires_grad and _IS_LEAF(t))
        return [(t, "grad", g) for t, g in grads if g is not None and storage_key(g) in outside]

    def _read_unseen(self) -> set[int]:
        """Numbers of the containers that code which nobody looks at may read: the attributes of
        objects whose classes have such code, and the containers among them."""
        by_item: dict[int, list[Container]] = {}
        for container in self._containers:
            by_item.setdefault(address(container.item), []).append(container)
        todo = [c for c in self._containers if c.unseen]
        found: set[int] = set()
        for container in todo:  # which grows meanwhile
            if id(container) in found:
                continue
            found.add(id(container))
            parts = [value for _, value in container.held]
            for value in parts:  # which grows, too
                if type(value) is tuple:
                    parts += value
                inside = by_item.get(address(value))
                if inside is not None:
                    todo += inside
        return found

    def _walk(self, last: int) -> None:
        seen = self._seen
        while len(seen) < _MAX_OBJECTS:
            level = 0
            while level <= last and not self._todo[level]:
                level += 1
            if level > last or (level == _SEARCHED and len(seen) > _MAX_SEARCHED):
                break
            path, item = self._todo[level].pop()
            if address(type(item)) in _PLAIN:
                continue
            if raw.is_a(item, torch.Tensor):
                is_known = type(item) in _TENSORS and (  # a subclass may notice questions
                    item.layout is torch.strided and not item.is_nested
                )
                if not is_known and level < _SEARCHED:
                    self._other_tensors.setdefault(address(item), (path, item))
                elif level < _SEARCHED and address(item) not in self._tensors:
                    self._tensors[address(item)] = path, item, item.detach(), item.requires_grad
                    own = raw.attributes(item)
                    if own:
                        self._follow(Container(path, own), _COMPARED)
                    elif own is not None:
                        self._add(path, own)
                    for name, get in _HOOKS_OF_TENSORS.items():
                        hooks = get(item)
                        if hooks:
                            self._follow(Container(f"{path}.{name}", hooks), _COMPARED)
            elif address(item) not in seen and not raw.is_a(item, *_LEAVES):
                seen.add(address(item))
                self._todo[level].extend(self._open(path, item, level))

    def _keep(self, container: Container, level: int) -> Iterator[tuple[str, Any]]:
        container.guarded = level == _WATCHED
        if self._lift is not None:
            container.lifted = self._lift.keys_in(container.item)
        if level < _SEARCHED:
            self._containers.append(container)
        for key, value in container.held:
            if address(type(value)) in _PLAIN or (type(key) is str and is_installed(key, value)):
                continue
            yield container.name(key), value

    def _add(self, path: str, item: Any) -> None:
        """Keep what comes to be among the attributes of an object, a class or a module."""
        self._containers.append(Additions(path, item, self._bound, guarded=False))

    def _follow(self, container: Container, level: int) -> None:
        """Keep ``container``, and go through what it holds later."""
        self._todo[level].extend(self._keep(container, level))

    def _open(self, path: str, item: Any, level: int) -> Iterator[tuple[str, Any]]:
        kind = type(item)
        # What these hold in C is only a part of what they hold.
        is_part = raw.is_a(item, BaseException, defaultdict)
        if is_part and level < _SEARCHED:
            self.stateful.append((path, item))
            yield from ((path, part) for part in held_in_c(item))
        if level < _SEARCHED and raw.is_a(item, functools._lru_cache_wrapper):
            self._caches.append(Entries(path, item))
            yield path, item.__wrapped__
            yield from ((f"{path}()", result) for result in _results(item))
        elif level < _SEARCHED and raw.is_a(item, *_SCRIPTED):
            self.scripted.append(path)
        elif level == _EXECUTED and raw.is_a(item, STREAM):
            self._seen.discard(address(item))  # of a logger or a progress bar, most likely
        elif is_stateful(item, near=level < _SEARCHED) and not is_part:
            self.stateful.append((path, item))
            yield from ((path, part) for part in (*inner(item), *held_in_c(item)))
            if package_of(kind) not in CLOSED:
                self._open_attributes(path, item, max(level, _COMPARED))
            elif is_array(item):  # such as the mask of one
                if level < _SEARCHED:
                    self._note_closed(path, item)
                own = raw.attributes(item) or {}
                yield from ((f"{path}.{name}", part) for name, part in own.items())
        elif kind is types.ModuleType:
            self._open_module(path, item, level)
        elif raw.is_a(item, type):
            self._open_class(path, item, level)
        elif package_of(kind) == _OURS:
            # Our own objects change with every call; what matters is the function inside.
            yield path, (raw.attributes(item) or {}).get("__wrapped__")
        elif kind is types.MethodType:
            yield from ((path, item.__func__), (path, item.__self__))
        elif raw.is_a(item, types.BuiltinMethodType, types.MethodWrapperType):
            yield from ((path, part) for part in inner(item))
        elif raw.is_a(item, functools.partial):
            own = raw.namespace(functools.partial)
            yield from ((path, own[part].__get__(item)) for part in ("func", "args", "keywords"))
        elif kind is types.FunctionType:
            # What runs in each call may change what it likes.
            if "__gfxgraph_no_graph__" not in item.__dict__:
                yield from self._open_function(path, item, level)
        elif kind is staticmethod or kind is classmethod:
            yield path, item.__func__
        elif kind is property:
            yield from ((path, part) for part in (item.fget, item.fset))
        elif raw.is_a(item, dict, list, deque, set):
            if raw.length(item) <= _MAX_ITEMS:
                yield from self._keep(Container(path, item), level)
            self._open_attributes(path, item, max(level, _COMPARED))
        elif raw.is_a(item, tuple, frozenset):
            base: Any = tuple if raw.is_a(item, tuple) else frozenset
            if base.__len__(item) <= _MAX_ITEMS:
                yield from ((f"{path}[{n}]", v) for n, v in enumerate(base.__iter__(item)))
        elif package_of(kind) in CLOSED and not raw.is_a(item, *_OPEN_CLASSES):
            # A lock, a logger, a stream; but queues and the like are containers.
            is_of_libraries = package_of(kind) in ("numpy", "torch")
            if level < _SEARCHED and is_of_libraries and is_closed(raw.module_of(kind)):
                self._note_closed(path, item)
                own = raw.attributes(item) or {}
                yield from ((f"{path}.{n}", part) for n, part in own.items() if is_array(part))
            yield from ((path, part) for part in held_in_c(item))
            if raw.module_of(kind) in _CONTAINERS:
                self._open_attributes(path, item, max(level, _COMPARED))
            elif _holds_what_it_gives(item):
                self._open_attributes(path, item, _SEARCHED)
        else:
            yield from self._open_object(path, item, level)

    def _note_closed(self, path: str, item: Any) -> None:
        own = raw.attributes(item)
        # An operator keeps the overloads that it was asked for.
        is_operator = raw.module_of(type(item)) == torch._ops.__name__
        if own and not is_operator and not raw.is_a(item, *_OF_THE_RUN):
            self.closed.append((path, own))
            for name, part in own.items():
                if raw.is_a(part, dict, list, deque, set) and raw.length(part) <= _MAX_ITEMS:
                    self.closed.append((f"{path}.{name}", part))

    def _open_module(self, path: str, module: types.ModuleType, level: int) -> None:
        if _is_ours(module.__name__):
            return
        if module.__name__.partition(".")[0] in CLOSED:
            used = (self._names | self._executed_names) & module.__dict__.keys()
            self._note_one_shots((f"{path}.{name}", module.__dict__[name]) for name in used)
        else:
            if level < _SEARCHED and self._executed:
                self._open_members(path, module)
            self._open_space(path, module.__dict__, _SEARCHED)

    def _open_class(self, path: str, cls: Any, level: int) -> None:
        package, space = package_of(cls), raw.namespace(cls)
        if package in CLOSED or _is_ours(raw.module_of(cls)):
            return
        near = package in self._open_packages or package in self._executed_packages
        if near and type(cls) is not type:
            self._todo[_SEARCHED].append((f"type({raw.name_of(cls)})", type(cls)))
        self._open_space(path, space, _COMPARED if near else _SEARCHED)
        for name, member in list(space.items()):
            function = _function(member)
            if function is not None and function.__code__ in self._executed:
                self._todo[_EXECUTED].append((f"{path}.{name}", function))
        self._add(raw.name_of(cls), cls)
        if not near:
            return
        # What a call binds there.
        own = tuple(
            name
            for name, value in space.items()
            if not name.startswith("__") and not raw.is_a(value, *_MEMBERS)
        )
        self._follow(Container(raw.name_of(cls), cls, own), _COMPARED)
        members = tuple(n for n in space if n not in own and not n.startswith("__"))
        if level < _SEARCHED and members:  # a method may be bound anew
            methods = Container(raw.name_of(cls), cls, members, guarded=False)
            if self._lift is not None:
                methods.lifted = self._lift.keys_in(cls)
            self._containers.append(methods)

    def _open_attributes(self, path: str, item: Any, level: int) -> None:
        """The attributes of what is no plain object, and is not watched."""
        attributes = raw.attributes(item)
        if attributes:
            self._follow(Container(path, attributes), level)
        self._open_slots(path, item, level)

    def _open_slots(self, path: str, item: Any, level: int) -> None:
        slots, _, _ = self._of_class(item)
        if slots:
            self._follow(Container(path, Slots(item, slots)), level)

    def _of_class(self, item: Any) -> tuple[dict[str, Any], bool, type]:
        """The slots of objects like ``item``, and whether code of theirs is not looked at."""
        cls = type(item)
        known = self._classes.get(address(cls))
        if known is None:
            unseen = any(map(_has_closed_code, raw.classes(item)))
            known = self._classes[address(cls)] = raw.slots(item), unseen, cls
        return known

    def _open_object(self, path: str, item: Any, level: int) -> Iterator[tuple[str, Any]]:
        attributes = raw.attributes(item)
        _, unseen, _ = self._of_class(item)
        if attributes is not None and raw.is_a(item, torch.nn.Module):
            for registry in REGISTRIES:
                shrinks = registry == "_modules" and raw.is_a(item, *_LISTS)
                # model.fc.weight, not model._modules['fc']._parameters['weight']
                yield from self._keep(
                    Container(path, attributes[registry], None, "children", shrinks, unseen=unseen),
                    level,
                )
            for hooks in _HOOKS:
                found = attributes[hooks]
                yield from self._keep(
                    Container(f"{path}.{hooks}", found, None, None if found else "hooks"), level
                )
            own = tuple(name for name in attributes if name not in _MODULE_ATTRIBUTES)
            yield from self._keep(Container(path, attributes, own, unseen=unseen), level)
            if level < _SEARCHED:
                self._add(path, attributes)
        elif attributes is not None:
            yield from self._keep(Container(path, attributes, unseen=unseen), level)
        self._open_slots(path, item, max(level, _COMPARED))
        for cls in raw.classes(item):
            if (address(cls), level) in self._opened:
                continue  # by another object
            self._opened.add((address(cls), level))
            space = raw.namespace(cls)
            if package_of(cls) in self._open_packages:
                numbers = tuple(
                    name
                    for name, value in space.items()
                    if raw.is_a(value, int, float, complex, torch.Tensor)
                    and not name.startswith("__")
                )
                yield from self._keep(Container(raw.name_of(cls), cls, numbers), level)
                for name in ("forward", "__call__"):
                    yield path, space.get(name)
                for name, member in space.items():
                    if raw.is_a(member, functools._lru_cache_wrapper):
                        yield f"{path}.{name}", member
            near = package_of(cls) in self._executed_packages
            self._todo[_EXECUTED if near else _SEARCHED].append((raw.name_of(cls), cls))

    def _open_space(self, path: str, space: Any, level: int) -> None:
        """Of a class or a module what code names, methods too; its containers at ``level``."""
        for name, value in list(space.items()):
            if type(name) is str and not raw.is_a(value, *_LEAVES):
                own = level if raw.is_a(value, list, dict, set, deque) else _SEARCHED
                found = (f"{path}.{name}", value)
                if name in self._names or name in ("forward", "__call__"):
                    self._todo[own].append(found)
                else:
                    self._unnamed.setdefault(name, []).append((own, found))

    def _open_members(self, path: str, module: types.ModuleType) -> None:
        """The variables of a module that executed code may have bound or written to."""
        own = tuple(
            name
            for name, value in list(module.__dict__.items())
            if name in self._executed_names
            and not raw.is_a(value, types.ModuleType, type, *_MEMBERS)
        )
        self._follow(Container(path, module.__dict__, own), _COMPARED)
        self._add(path, module.__dict__)

    def _open_function(self, path: str, function: Any, level: int) -> Iterator[tuple[str, Any]]:
        package, code = str(function.__module__).partition(".")[0], function.__code__
        has_run = code in self._executed
        if package in CLOSED and not has_run:
            return
        if level < _SEARCHED and function.__dict__:
            self._todo[level].append((path, function.__dict__))
        elif level < _SEARCHED:
            self._add(path, function.__dict__)
        if package not in self._open_packages or package in CLOSED:
            level = max(level, _EXECUTED) if has_run else _SEARCHED
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._follow(Container(name, cell), level)
        if _is_ours(str(function.__module__)):
            return  # only what it holds may be the program's
        self._open_code(code, function.__globals__, level)
        parts = (function.__defaults__, function.__kwdefaults__)
        self._todo[level].extend((path, part) for part in parts if part)
        yield from ()

    def _open_code(self, code: types.CodeType, space: dict[str, Any], level: int) -> None:
        """The global variables that code names."""
        names, has_run = global_names(code), code in self._executed
        for name in names - self._names:
            for near, found in self._unnamed.pop(name, ()):
                self._todo[near].append(found)
        self._names |= names
        self._bound |= _bound(code)
        further = _EXECUTED if has_run else _SEARCHED
        if has_run:  # what it imports itself
            imported = ((name, sys.modules.get(name)) for name in code.co_names)
            self._todo[_EXECUTED].extend((n, m) for n, m in imported if type(m) is types.ModuleType)
        for name in names & space.keys():
            value = space[name]
            if type(value) is types.ModuleType:
                self._todo[further].append((name, value))
                if level < _SEARCHED:
                    used = (
                        (f"{name}.{n}", value.__dict__[n]) for n in names & value.__dict__.keys()
                    )
                    self.stateful.extend(found for found in used if is_entropy(found[1]))
            elif raw.is_a(value, type):
                self._todo[level if is_entropy(value) else further].append((name, value))
        stored = _stored(code)
        if level == _SEARCHED and stored:  # but what it binds it changes
            self._follow(Container(str(space.get("__name__")), space, tuple(stored)), _COMPARED)
        own = tuple(
            name
            for name in sorted(names)
            if (name in space or name in stored)
            and not raw.is_a(space.get(name), types.ModuleType, type)
        )
        if own:
            self._follow(Container("", space, own), level)

    def _note_one_shots(self, found: Iterable[tuple[str, Any]]) -> None:
        """Note iterators among variables of modules that are not walked."""
        self.stateful.extend(
            (path, item)
            for path, item in found
            if is_one_shot(item) and not is_entropy(item) and not raw.is_a(item, STREAM)
        )


def _results(cache: Any) -> list[Any]:
    """The results that a cache of ``functools`` holds, without its own dicts, which grow."""
    parts = [part for part in held_in_c(cache) if part is not cache.__dict__]
    links = [part for part in parts if _is_of_links(part)]
    if links:  # a bounded cache: it refers to its results itself
        return [part for part in parts if part is not links[0]]
    return [v for p in parts for v in (list(p.values()) if type(p) is dict else (p,))]


def _is_of_links(part: Any) -> bool:
    """Whether ``part`` is the dict of a bounded cache, whose values are links of a list in C."""
    first = next(iter(part.values()), None) if type(part) is dict else None
    return raw.name_of(type(first)).endswith("_lru_list_elem")


def _holds_what_it_gives(item: Any) -> bool:
    """Whether an object of Python's own classes keeps one of the program's that it gives."""
    if raw.module_of(type(item)) in _HOLDERS:
        # That generator serves once.
        return not raw.is_a(item, contextlib._GeneratorContextManagerBase)
    return any("__next__" in raw.namespace(cls) for cls in raw.classes(item))


def _lies_elsewhere(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    return (
        tensor.data_ptr() != before.data_ptr()
        or tensor.shape != before.shape
        or tensor.stride() != before.stride()
    )


def _is_ours(module: str) -> bool:
    """Whether what is in a module is no state of the function's, but of gfxgraph."""
    return module == _OURS or module.startswith(_MACHINERY)


def _function(member: Any) -> types.FunctionType | None:
    """The function behind what stands in a class."""
    if type(member) is property:
        member = member.fget
    elif type(member) is staticmethod or type(member) is classmethod:
        member = member.__func__
    return member if type(member) is types.FunctionType else None


def _without_unused(registry: Container, used: Collection[int]) -> Container:
    """The children of a module, but for parameters and buffers that the function does not use."""
    unused = {
        raw.token(key)
        for key, value in registry.held
        if raw.is_a(value, torch.Tensor) and storage_key(value) not in used
    }
    found = copy.copy(registry)
    found.lifted = registry.lifted | unused
    return found


def _has_closed_code(cls: type) -> bool:
    """Whether methods of ``cls`` are in Python, and their code is not looked at."""
    kinds = types.FunctionType, property
    return is_closed(raw.module_of(cls)) and any(
        raw.is_a(member, *kinds) for member in raw.namespace(cls).values()
    )


def _packages(root: Any) -> Iterator[str]:
    """The packages whose code ``root`` is of."""
    if type(root) is types.FunctionType:
        yield str(root.__module__).partition(".")[0]
    elif type(root) is types.MethodType:
        yield from (*_packages(root.__func__), *_packages(root.__self__))
    elif raw.is_a(root, functools.partial):
        yield from _packages(raw.namespace(functools.partial)["func"].__get__(root))
    elif raw.is_a(root, type):
        yield package_of(root)
    else:
        yield package_of(type(root))
        wrapped = raw.attributes(root) or {}
        if package_of(type(root)) == _OURS and "__wrapped__" in wrapped:
            yield from _packages(wrapped["__wrapped__"])


@per_code
def _stored(code: types.CodeType) -> frozenset[str]:
    """The global names that a function and the functions in it bind."""
    inner = (_stored(const) for const in code.co_consts if type(const) is types.CodeType)
    own = (code.co_names[at] for at in arguments_of("STORE_GLOBAL", code))
    return frozenset(own).union(*inner)


@per_code
def _bound(code: types.CodeType) -> frozenset[str]:
    """The names of attributes that a function and the functions in it bind or may bind."""
    inner = (_bound(const) for const in code.co_consts if type(const) is types.CodeType)
    own = {code.co_names[at] for at in arguments_of("STORE_ATTR", code)}
    if any(name in ("setattr", "__setattr__") for name in code.co_names):
        own.update(const for const in code.co_consts if type(const) is str)
    return frozenset(own).union(*inner)
