"""Who a callable is, over processes: its name, its code, its parameters, its options."""

from __future__ import annotations

import functools
import gc
import hashlib
import platform
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ..call.branches import ConditionalGraph
from ..call.buckets.pool import ShapeBucketPool
from ..call.dispatch import Dispatcher, owners
from ..call.graphed import Graphed, bound_to
from ..call.options import Options
from ..device import current_device
from ..errors import ArgumentError
from ..graph import raw
from ..interpose.source import name_of

__all__ = ["Live", "code_of", "environment", "live", "options_of", "parameters_of"]


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
    target = _plain(fn)
    holder = target if type(target) in _FUNCTIONS else type(target)
    module = raw.module_of(holder) if isinstance(holder, type) else holder.__module__
    return f"{module}:{name_of(target)}"


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def _plain(fn: Any) -> Any:
    """The function, module or object that is called in the end."""
    while True:
        if type(fn) is types.MethodType:
            fn = fn.__func__
        elif raw.is_a(fn, functools.partial):
            fn = fn.func
        elif type(fn) is Graphed:
            fn = fn.__wrapped__
        else:
            return fn


def code_of(fn: Any) -> str:
    """A digest of the bytecode of a function, and of the classes of the modules that it is of."""
    digest = hashlib.sha256()
    target = _plain(fn)
    if type(target) is types.FunctionType:
        _add_function(digest, target)
    classes = {type(module) for module in _modules(fn)}
    if type(target) not in _FUNCTIONS:
        classes.add(type(target))
    if type(fn) is types.MethodType:
        classes.add(fn.__self__ if isinstance(fn.__self__, type) else type(fn.__self__))
    bases = {base for cls in classes for base in raw.mro(cls)}
    for cls in sorted(bases, key=_class_name):
        if _class_name(cls).partition(".")[0] in _OTHERS:
            continue
        digest.update(_class_name(cls).encode())
        for name, member in sorted(raw.namespace(cls).items()):
            for function in _functions_of(member):
                digest.update(name.encode())
                _add_function(digest, function)
    return digest.hexdigest()


# Their versions are compared.
_OTHERS = ("builtins", "torch", "gfxgraph")


def _class_name(cls: type) -> str:
    return f"{raw.module_of(cls)}.{raw.name_of(cls)}"


def _functions_of(member: Any) -> Iterator[types.FunctionType]:
    if type(member) is property:
        for part in (member.fget, member.fset):
            yield from _functions_of(part)
        return
    if type(member) in (staticmethod, classmethod):
        member = member.__func__
    member = _plain(member)
    if type(member) is types.FunctionType:
        yield member


def _add_function(digest: Any, function: types.FunctionType) -> None:
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    digest.update(repr([_constant(value) for value in defaults]).encode())
    digest.update(_digest(function.__code__))


@functools.lru_cache(maxsize=4096)
def _digest(code: types.CodeType) -> bytes:
    return hashlib.sha256(_constant(code).encode()).digest()


def _constant(value: Any) -> str:
    """A constant of code as text that is the same in each process."""
    if isinstance(value, types.CodeType):
        names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount
        parts = (value.co_name, value.co_code.hex(), names, counts, value.co_flags)
        return repr((parts, [_constant(const) for const in value.co_consts]))
    if type(value) is tuple:
        return repr([_constant(item) for item in value])
    if type(value) is frozenset:  # in an order of each process
        return repr(sorted(map(_constant, value)))
    if type(value) in (type(None), bool, int, float, complex, str, bytes, type(...)):
        return f"{type(value).__name__} {value:x}" if type(value) is int else repr(value)
    return type(value).__qualname__


def _modules(fn: Any) -> Iterator[torch.nn.Module]:
    owner: Any = fn.__self__ if type(fn) is types.MethodType else _plain(fn)
    if raw.is_a(owner, torch.nn.Module):
        yield from torch.nn.Module.modules(owner)


def parameters_of(fn: Any) -> str:
    """A digest of the names, shapes and dtypes of the parameters and buffers."""
    digest = hashlib.sha256()
    for number, module in enumerate(_modules(fn)):
        for own in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers):
            for name, tensor in own(module, recurse=False):
                lazy = torch.nn.parameter.is_lazy(tensor)
                what = "" if lazy else (tuple(tensor.shape), tensor.dtype, tensor.device.type)
                digest.update(f"{number} {name} {what}".encode())
    return digest.hexdigest()


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


def environment() -> dict[str, str]:
    """The versions and the device that graphs depend on."""
    facts = current_device().facts(0)
    return {
        "gfxgraph": sys.modules["gfxgraph"].__version__,
        "torch": facts.torch,
        "python": platform.python_version(),
        "device": facts.name,
        "architecture": facts.arch,
        "driver": str(facts.driver),
        "runtime": str(facts.runtime),
    }
