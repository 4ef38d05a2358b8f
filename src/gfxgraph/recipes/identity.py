"""Who a callable is, over processes: its name, its code, its parameters, its options."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..call.branches import ConditionalGraph
from ..call.buckets.pool import ShapeBucketPool
from ..call.dispatch import Dispatcher, owners
from ..call.graphed import Graphed, bound_to
from ..call.identity import FUNCTIONS, code_of, parameters_of, plain
from ..call.options import Options
from ..errors import ArgumentError
from ..graph import raw
from ..interpose.source import name_of

__all__ = ["Live", "live", "options_of"]


@dataclass
class Live:
    """A callable of this process.

    Attributes:
        name: its module and its qualified name.
        number: which one of that name it is, in the order in which they were made.
        fn: what is called.
        dispatcher: answers its calls.
    """

    name: str
    number: int
    fn: Callable[..., Any]
    dispatcher: Dispatcher

    def facts(self) -> tuple[str, str, dict[str, str]]:
        """What must not change: its code, its parameters, its options."""
        return code_of(self.fn), parameters_of(self.fn), options_of(self.dispatcher.options)


def live(methods: Iterable[str] = ()) -> list[Live]:
    """The graphed callables that are alive, in the order in which they were made.

    Args:
        methods: names of graphed methods, of which each instance that is alive gets a dispatcher of
            its own, as its first call would give it one. Default: only those that have one.
    """
    found = [(_fn_of(dispatcher, owner), dispatcher) for dispatcher, owner in owners()]
    wanted = set(methods)
    graphed = {
        id(owner): owner
        for _, owner in owners()
        if type(owner) is Graphed and _full_name(owner.__wrapped__) in wanted
    }
    if graphed:
        known = {id(dispatcher) for _, dispatcher in found}
        for method, instance in _instances(graphed):
            with suppress(ArgumentError):  # nowhere to keep graphs: its first call says so
                bound = bound_to(method, instance)
                found += [bound] if id(bound[1]) not in known else []
    counts: dict[str, int] = {}
    result = []
    for fn, dispatcher in found:
        if fn is None:
            continue
        name = _full_name(fn)
        result.append(Live(name, counts.get(name, 0), fn, dispatcher))
        counts[name] = counts.get(name, 0) + 1
    return result


def _instances(graphed: dict[int, Any]) -> Iterator[tuple[Any, Any]]:
    """The instances that are alive of the classes with these methods, each with its method."""
    for cls in _classes():
        members = [m for base in raw.mro(cls) for m in [*raw.namespace(base).values()]]
        methods = [member for member in members if id(member) in graphed]
        # Not by gc.get_objects(): Python cannot go on with a tuple that another thread is filling,
        # if meanwhile somebody else refers to it.
        for instance in gc.get_referrers(cls) if methods else ():
            if type(instance) is cls and raw.attributes(instance) is not None:
                yield from ((method, instance) for method in methods)


def _classes() -> list[type]:
    """All classes of the process."""
    found: dict[int, type] = {}
    todo: list[type] = [object]
    while todo:
        cls = todo.pop()
        if id(cls) not in found:
            found[id(cls)] = cls
            todo += type.__subclasses__(cls)
    return list(found.values())


def _fn_of(dispatcher: Dispatcher, owner: Any) -> Callable[..., Any] | None:
    """What a dispatcher is called with; ``None``: nobody calls it, or with several functions."""
    if dispatcher.method is not None:
        fn: Callable[..., Any] = dispatcher.method.__wrapped__.__get__(owner)
        return fn
    if type(owner) is Graphed:
        return owner.__wrapped__
    if isinstance(owner, ConditionalGraph):
        return owner.function_of(dispatcher)
    return owner.model_fn if isinstance(owner, ShapeBucketPool) else None


def _full_name(fn: Any) -> str:
    target = plain(fn)
    holder = target if type(target) in FUNCTIONS else type(target)
    module = raw.module_of(holder) if isinstance(holder, type) else holder.__module__
    return f"{module}:{name_of(target)}"


def options_of(options: Options) -> dict[str, str]:
    """The options of a callable, as text."""
    found = {name: repr(value) for name, value in vars(options).items()}
    for name in ("buckets", "compile", "given_to"):
        del found[name]
    buckets, compiled = options.buckets, options.compile
    if buckets is not None:
        found |= {f"buckets.{name}": repr(value) for name, value in vars(buckets).items()}
    if compiled is not None:
        found["compile.measure"] = repr(compiled.measure)
        for name, value in compiled.arguments.items():  # a backend may be a function
            found[f"compile.{name}"] = name_of(value) if callable(value) else repr(value)
    return {name[:200]: text[:2000] for name, text in found.items()}
