"""Conditions under which a graph may be replayed, checked before every replay."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar, TypeAlias

import torch
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from ..device import current_device
from ..errors import DeadTensorError
from ..forking import new_lock
from ..interpose.codes import address
from ..record.effects import storage_key
from . import raw
from .containers import Container
from .memory import SameBytes
from .places import Attributes, Bind, Content, Item, Place, TypeOf, Whereabouts
from .tensor_check import tensor_check
from .torch_settings import Settings
from .watched import SameVersions, Unchanged, watcher
from .words import FEW, SameWords, Word, versions

__all__ = ["Guard"]

REGISTRIES = ("_parameters", "_buffers", "_modules")
"""The attributes of a module that hold its parameters, buffers and children, by name."""


_Asking: TypeAlias = Callable[[], "list[Word] | None"]

# What a question raises where a thing is gone, or another thread changes it.
_GONE = (LookupError, ValueError, RuntimeError)

# Asking whether a watched dict has changed takes as long as asking ten places.
_WORTH_WATCHING = 12


class _Registrations:
    """Counts registrations of children, parameters and buffers in the modules that graphs use.

    As long as it and torch's own count of hooks stand still, no module got or lost a child by
    ordinary means, so a guard need not look at each of a model's thousand modules in each call.

    Attributes:
        count: how many there were.
        watched: ids of the registries that count, and how many guards watch each. Other modules
            come and go: each slice of a ``ModuleList`` is one.
    """

    count = 0
    watched: ClassVar[Counter[int]] = Counter()
    lock = new_lock()


def _count(module: torch.nn.Module, name: str, value: object) -> None:
    if torch.compiler.is_compiling():  # or the code that Dynamo makes would depend on our count
        return
    attributes = vars(module)
    if any(address(attributes.get(registry)) in _Registrations.watched for registry in REGISTRIES):
        _Registrations.count += 1


torch_module.register_module_module_registration_hook(_count)
torch_module.register_module_parameter_registration_hook(_count)
torch_module.register_module_buffer_registration_hook(_count)


class _Modules:
    """The children and hooks of modules, checked only after a registration in the process."""

    def __init__(self, children: Sequence[Container], no_hooks: Sequence[Container]) -> None:
        self.children, self.no_hooks = children, no_hooks
        self._hooks = [snapshot.item for snapshot in no_hooks]
        self._watched = [address(snapshot.item) for snapshot in children]
        with _Registrations.lock:
            _Registrations.watched.update(self._watched)
        self.registrations = _Registrations.count
        self.next_hook = RemovableHandle.next_id

    def __del__(self) -> None:
        watched = _Registrations.watched
        with _Registrations.lock:
            for registry in self._watched:
                watched[registry] -= 1
                if not watched[registry]:
                    del watched[registry]

    def has_same_children(self) -> bool:
        """Whether no module has other children; asked after a registration."""
        count = _Registrations.count
        if any(snapshot.changes() for snapshot in self.children):
            return False
        self.registrations = count
        return True

    def has_no_hooks(self) -> bool:
        """Whether no module got a hook; asked after a registration of one."""
        count = RemovableHandle.next_id
        if any(self._hooks):
            return False
        self.next_hook = count
        return True


class Guard:
    """Watches memory and places, on the path of every replayed call.

    The questions are compiled into one expression each, some 30 to 80 ns a term.

    Args:
        outside: storage key -> a tensor on it, for all that the graph reads from outside. Holding
            them keeps their memory.
        children: registries of modules as they were at the capture, looked at only after a
            registration.
        no_hooks: hooks of modules that had none, looked at only when there are new hooks.
        settings: of torch, which the graph depends on.
        moving: numbers of dicts that replays write to, so that watching them is of no use.

    Attributes:
        no_hooks, settings: see above.
        memory_holds: whether the memory of all watched tensors is there; ``None``: there are none.
        places_hold: whether all watched places hold what they held, and tensors are in their
            memory; for calls in the modes of torch of the capture, which the key of a call says.
        words: of these places what lies in memory, where it takes long to compare; ``None``: it
            does not. A thread of ours can do that while a graph is launched.
        rest_holds: the same as ``places_hold``, where all ``words`` are the same.
        told: what torch answers at every size, as :class:`Answers` notes it. Empty: the answers
            differ, or are not known. ``None``: no run has noted them yet.
        graphs: how many graphs of other sizes this watches as well.
    """

    def __init__(
        self,
        outside: dict[int, torch.Tensor],
        children: Sequence[Container],
        no_hooks: Sequence[Container],
        settings: Settings,
        moving: Collection[int] = (),
    ) -> None:
        self._moving = moving
        self._places: dict[Any, Place] = {}
        self._tensors: dict[Any, Attributes] = {}
        self._memory: dict[int, tuple[str, torch.Tensor, int]] = {}
        self._lying: list[Whereabouts] = []
        self._values: list[tuple[int, str, torch.Tensor, int, SameBytes]] = []
        self._versions: list[tuple[str, torch.Tensor, int]] = []
        self._held: list[tuple[str, torch.Tensor, str, object]] = []
        self._hooked: list[tuple[str, torch.Tensor, list[int], list[Any]]] = []
        self._unplaced = dict(outside)
        self.settings = settings
        self.no_hooks = no_hooks
        self._modules = _Modules(children, no_hooks)
        self.memory_holds: Callable[[], bool] | None = None
        self.places_hold: Callable[[], bool] = lambda: True
        self.words: SameWords | None = None
        self.rest_holds = self.places_hold
        self._modes_hold: Callable[[], bool] = lambda: True
        self.told: list[Any] | None = None
        self.graphs = 0

    def watch(self, place: Place) -> None:
        """Watch that ``place`` holds what it holds."""
        if isinstance(place, Attributes) and place.is_plain:
            self._tensors.setdefault(place.identity, place)
            return
        self._places.setdefault(place.identity, place)
        if isinstance(place, Item) and raw.is_a(place.value, torch.Tensor):
            self.watch_memory(place.path, place.value)

    def watch_memory(self, name: str, tensor: torch.Tensor) -> None:
        """Watch that ``tensor`` stays where it is."""
        self._unplaced.pop(storage_key(tensor), None)
        self._memory.setdefault(address(tensor), (name, tensor, tensor.data_ptr()))

    def watch_values(self, key: int, name: str, tensor: torch.Tensor) -> None:
        """Watch that ``tensor``, whose storage has the key ``key``, holds what it holds."""
        self._values.append((key, name, tensor, tensor._version, SameBytes(name, tensor)))

    def watch_versions(self, tensors: Iterable[torch.Tensor]) -> None:
        """Watch also that nobody writes to these, as far as their versions tell.

        It may be called after :meth:`complete`. Tensors of inference mode have no version.
        """
        names = {storage_key(tensor): name for name, tensor, _ in self._memory.values()}
        known = {address(tensor) for _, tensor, _ in self._versions}
        new = [
            (names.get(storage_key(tensor), "a tensor from outside"), tensor, tensor._version)
            for tensor in tensors
            if not tensor.is_inference() and address(tensor) not in known
        ]
        if not new:
            return
        self._versions += new
        for name in ("places_hold", "rest_holds"):
            bind = Bind({})
            terms = [f"{bind(t)}._version == {version}" for _, t, version in new]
            terms.append(f"{bind(getattr(self, name))}()")
            setattr(self, name, _predicate(terms, bind.names))

    def watch_held(self, path: str, tensor: torch.Tensor, name: str, value: object) -> None:
        """Watch that the attribute ``name`` of ``tensor`` stays ``value``: its gradient, say."""
        self._held.append((path, tensor, name, value))

    def watch_hooks(self, path: str, leaf: torch.Tensor) -> None:
        """Watch that autograd finds the hooks at ``leaf`` that are there now, and no others."""
        hooks = _hooks_of(leaf)
        self._hooked.append((path, leaf, list(map(address, hooks)), hooks))

    def places(self) -> dict[Any, Place]:
        """Identity -> each place that is watched."""
        return self._places | self._tensors

    def watched_memory(self) -> list[tuple[str, torch.Tensor]]:
        """Names and tensors, of those that are to stay where they are."""
        return [(name, tensor) for name, tensor, _ in self._memory.values()]

    def watched_held(self) -> list[tuple[torch.Tensor, str, object]]:
        """Tensors, and what is watched of what they hold."""
        return [(tensor, name, value) for _, tensor, name, value in self._held]

    def watched_hooks(self) -> list[torch.Tensor]:
        """The leaves whose hooks are watched."""
        return [leaf for _, leaf, *_ in self._hooked]

    def watched_values(self) -> dict[int, torch.Tensor]:
        """Storage key -> tensor, of those whose values are to stay."""
        return {key: tensor for key, _, tensor, *_ in self._values}

    def complete(self) -> None:
        """Nothing more is to be watched, except memory that no container holds."""
        for tensor in list(self._unplaced.values()):
            self.watch_memory(f"a tensor of shape {tuple(tensor.shape)}", tensor)
        if self._memory or any(values.waits for *_, values in self._values):
            self.memory_holds = self._asking_for_memory()
        self._compile_places()

    def holds(self) -> bool:
        """Whether all is as it was, or equal; asks for the modes of torch, too."""
        memory_holds = not self.memory_holds or self.memory_holds()
        if memory_holds and self.places_hold() and self._modes_hold():
            return True
        return not self.changes()

    def changes(self) -> list[str]:
        """Names of what was rebound or moved; not a scalar that is equal to the old one."""
        found: dict[str, None] = {}
        for place in (*self._places.values(), *self._tensors.values()):
            found |= dict.fromkeys(map(place.described, place.changes()))
        for snapshot in (*self._modules.children, *self._modules.no_hooks):
            found |= dict.fromkeys(map(snapshot.name, snapshot.changes()))
        for name, tensor, at in self._memory.values():
            if tensor.data_ptr() != at:
                found[name] = None
        for _, name, tensor, version, values in self._values:
            if tensor._version != version or not values.hold():
                found[f"the values of {name}"] = None
        for name, tensor, version in self._versions:
            if tensor._version != version:
                found[f"the values of {name}"] = None
        for name, (getter, value) in self.settings.items():
            if _now(getter) != value:
                found[name] = None
        for path, tensor, name, value in self._held:
            if getattr(tensor, name) is not value:
                found[f"{path}.{name}"] = None
        for path, leaf, hooks, _ in self._hooked:
            if list(map(address, _hooks_of(leaf))) != hooks:
                found[f"the hooks of {path}"] = None
        return list(found)

    def may_hold_again(self) -> bool:
        """Whether only settings and plain values have changed: what the graph reads is in use."""
        found = {name for name, (get, value) in self.settings.items() if _now(get) != value}
        for place in self._places.values():
            if isinstance(place, Item) and (
                raw.is_scalar(place.value) or place.value is place.MISSING
            ):
                found.update(map(place.described, place.changes()))
        return found.issuperset(self.changes())

    def check_alive(self) -> None:
        """Raise if the memory of a watched tensor was freed, so that nothing can be read there.

        Not where another tensor has taken its place meanwhile, as in a model that is sharded again.

        Raises:
            DeadTensorError: a storage was resized to nothing, as offloading does.
        """
        dead = [
            name
            for name, tensor, address in self._memory.values()
            if address and tensor.numel() and not tensor.untyped_storage().nbytes()
        ]
        if dead:
            places = (*self._places.values(), *self._tensors.values())
            bound_anew = {name for place in places for name in place.changes()}
            dead = [name for name in dead if name not in bound_anew]
        if dead:
            raise DeadTensorError(
                f"the graph reads {', '.join(dead[:5])}, whose memory was freed (storage resized "
                "to 0 bytes). Load the data back before the call."
            )

    def _asking_for_memory(self) -> Callable[[], bool]:
        """Asks whether all memory is there, which has to be known before a launch.

        Where the words of a storage say so, it is asked with the places whether its tensor still
        lies in there: a launch onto memory that is there does no harm.
        """
        bind = Bind({})
        lying = [Whereabouts(*known) for known in self._memory.values()]
        of_each = {place: place.words_of_storage() for place in lying}
        found = {place: words for place, words in of_each.items() if words is not None}
        if len(found) < FEW:
            found = {}
        terms = [place.term(bind) for place in lying if place not in found]
        terms += [f"{bind(values.hold)}()" for *_, values in self._values if values.waits]
        if found:
            self._lying = list(found)
            read = [place.words_of_storage for place in found]
            same = SameWords(list(chain(*found.values())), _all_words(read), _asked(self._lying))
            terms.insert(0, f"({bind(same)}.same() or {bind(same)}.hold())")
        return _predicate(terms, bind.names)

    def _compile_places(self) -> None:
        names: dict[str, Any] = {
            "modules": self._modules,
            "registrations": _Registrations,
            "hooks": RemovableHandle,
        }
        bind = Bind(names)
        terms = [
            "(registrations.count == modules.registrations or modules.has_same_children())",
            "(hooks.next_id == modules.next_hook or modules.has_no_hooks())",
        ]
        # Last those that ask about objects which the others hold anyhow.
        of_last = TypeOf, Whereabouts
        ordered = sorted(
            [*self._places.values(), *self._lying], key=lambda place: isinstance(place, of_last)
        )
        held = {address(place.value) for place in ordered if isinstance(place, Item)}
        contents = (place.held for place in ordered if isinstance(place, Content))
        held |= {address(value) for _, value in chain(*contents)}
        for place in ordered:
            if isinstance(place, TypeOf) and address(place.item()) in held:
                place.keep()
        spaces = {place: place.inside for place in ordered}
        inside = {
            place: item
            for place, item in spaces.items()
            if item is not None and dict.__len__(item) and address(item) not in self._moving
        }
        term = _unless_changed(inside, bind) if len(inside) >= _WORTH_WATCHING else None
        if term is not None:
            terms.append(term)
            ordered = [place for place in ordered if place not in inside]
        words, asked, tensors, compared = _in_words(ordered, list(self._tensors.values()))
        words_same = [] if words is None else [f"({bind(words)}.same() or {bind(words)}.hold())"]
        terms += [*words_same, *(place.term(bind) for place in asked)]
        if tensors:
            names["are_like"], names["tensors"] = tensor_check(tensors), tensors
            terms.append("are_like(*tensors)")
        if compared:
            self._modes_hold = functools.partial(tensor_check(compared), *compared)
        terms += [f"{bind(t)}._version == {version}" for _, _, t, version, _ in self._values]
        # Before the launch, where it waits: after it, it would wait for the graph.
        terms += [f"{bind(v.hold)}()" for *_, v in self._values if not v.waits]
        for getter, value in self.settings.values():
            same = "is" if type(value) is bool else "=="
            terms.append(f"{bind(getter)}() {same} {bind(value)}")
        terms += [f"{bind(t)}.{name} is {bind(value)}" for _, t, name, value in self._held]
        for _, leaf, hooks, _ in self._hooked:
            t = bind(leaf)
            same = f"list(map({bind(address)}, {bind(_hooks_of)}({t}))) == {bind(hooks)}"
            none = f"not ({t}._backward_hooks or {t}._post_accumulate_grad_hooks)"
            terms.append(same if hooks else none)
        self.places_hold = _predicate(terms, names)
        if words is not None and words.takes_long:
            self.words = words
            rest = [term for term in terms if term not in words_same]
            self.rest_holds = _predicate(rest, names)


def _hooks_of(leaf: torch.Tensor) -> list[Any]:
    """The hooks of ``leaf``: those before its gradient is accumulated, and those after."""
    of_leaf: Any = leaf
    before, after = of_leaf._backward_hooks, of_leaf._post_accumulate_grad_hooks
    return [*(before or {}).values(), None, *(after or {}).values()] if before or after else []


def _in_words(
    places: list[Place], tensors: list[Attributes]
) -> tuple[SameWords | None, list[Place], list[torch.Tensor], list[torch.Tensor]]:
    """The words to compare, and the places and tensors that have to be asked.

    Last a tensor whose words are compared, if there is one, and one that requires grad, if any
    does. Its words do not tell of the modes of torch, which are asked together with a tensor. The
    key of a call says those for the device; so another tensor is asked for the host.
    """
    of_each = {place: place.words() for place in (*places, *tensors)}
    known = [place for place, words in of_each.items() if words is not None]
    if len(known) < FEW:
        return None, places, [place.tensor for place in tensors], []

    def asked() -> bool:
        try:
            return all(place.holds() for place in known)
        except _GONE:
            return False

    found = [word for words in of_each.values() for word in words or ()]
    left = [place.tensor for place in tensors if of_each[place] is None]
    compared = [place.tensor for place in tensors if of_each[place] is not None]
    compared.sort(key=lambda tensor: not tensor.requires_grad)
    left += [tensor for tensor in compared if tensor.device.type != current_device().type][:1]
    same = SameWords(found, _all_words([place.words for place in known]), asked)
    return same, [place for place in places if of_each[place] is None], left, compared[:1]


def _all_words(asking: Sequence[_Asking]) -> Callable[[], list[Word] | None]:
    """A function that gives what each of ``asking`` gives; ``None``: one of them gives none."""

    def words() -> list[Word] | None:
        found: list[Word] = []
        for ask in asking:
            part = ask()
            if part is None:
                return None
            found += part
        return found

    return words


def _unless_changed(inside: dict[Place, Any], bind: Bind) -> str | None:
    """A term for all places inside of dicts that are watched: they are asked after a change.

    ``None``: this Python does not tell of changes.
    """
    of_each: dict[int, list[Place]] = {}
    for place, item in inside.items():
        of_each.setdefault(address(item), []).append(place)
    dicts = [inside[places[0]] for places in of_each.values()]
    by, numbers = watcher(), versions(dicts)
    if by is not None:
        asked = list(map(_asked, of_each.values()))
        name = bind(Unchanged(by, list(zip(dicts, asked, strict=True))))
        return f"({name}.same() or {name}.holds())"
    if numbers is not None:
        name = bind(SameVersions(_asked(list(inside)), numbers, dicts))
        return f"({bind(numbers)}() == {name}.then or {name}.holds())"
    return None


def _asked(places: Sequence[Place]) -> Callable[[], bool]:
    """Asks all ``places``; compiled once it is asked again, since most are asked only once."""
    compiled: Callable[[], bool] | None = None
    asked_before = False

    def holds() -> bool:
        nonlocal compiled, asked_before
        if compiled is None and asked_before:
            bind = Bind({})
            compiled = _predicate([place.term(bind) for place in places], bind.names)
        if compiled is not None:
            return compiled()
        asked_before = True
        try:
            return all(place.holds() for place in places)
        except _GONE:
            return False

    return holds


def _predicate(terms: list[str], names: dict[str, Any]) -> Callable[[], bool]:
    """A function that says whether all ``terms`` hold; what is gone does not hold."""
    text = f"""def holds():
    try:
        return {" and ".join(terms)}
    except GONE:
        return False
"""
    names["GONE"] = _GONE
    exec(compile(text, "<gfxgraph>", "exec"), names)
    return names.pop("holds")  # type: ignore[no-any-return]


def _now(getter: Callable[[], Any]) -> Any:
    try:
        return getter()
    except RuntimeError:  # the newer way to set it was used since
        return Item.MISSING
