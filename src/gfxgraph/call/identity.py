"""Identifies a function across processes: its code, its parameters, and what it runs on."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from ..device import current_device
from ..graph import raw
from ..graph.lift import Lifting
from ..graph.lookups import STAND_INS
from ..interpose.codes import address

__all__ = ["FUNCTIONS", "code_of", "environment", "parameters_of", "plain", "surroundings_of"]

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def plain(fn: Any) -> Any:
    """The function, module or object that is called in the end."""
    *_, last = _unwrapped(fn)
    return last


def _unwrapped(fn: Any) -> Iterator[Any]:
    """A callable, and one after the other what it stands for."""
    while True:
        yield fn
        if type(fn) is types.MethodType:
            fn = fn.__func__
        elif raw.is_a(fn, functools.partial):
            fn = fn.func
        elif address(type(fn)) in STAND_INS or raw.is_a(fn, Lifting):
            fn = fn.__wrapped__
        else:
            return


def code_of(fn: Any) -> str:
    """A digest of the bytecode of a function, and of the classes of the modules that it is of."""
    digest = hashlib.sha256()
    target = plain(fn)
    if type(target) is types.FunctionType:
        _add_function(digest, target)
    classes = {type(module) for module in _modules(fn)}
    if type(target) not in FUNCTIONS:
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
    member = plain(member)
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
    owner: Any = fn.__self__ if type(fn) is types.MethodType else plain(fn)
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


def surroundings_of(fn: Any) -> str:
    """A digest of the modules and tensors among the variables and attributes of a function."""
    digest = hashlib.sha256()
    for item in _in_reach(fn):
        if raw.is_a(item, torch.Tensor):
            digest.update(f"{tuple(item.shape)} {item.dtype} {item.device.type}".encode())
        for owner in _with_owners(item):
            if raw.is_a(owner, torch.nn.Module):
                digest.update(f"{code_of(owner)} {parameters_of(owner)}".encode())
    return digest.hexdigest()


def _in_reach(fn: Any) -> Iterator[Any]:
    """Its object, its variables, and the attributes of those that are plain objects."""
    found = list(_with_owners(fn))
    target = plain(fn)
    if type(target) is types.FunctionType:
        for cell in target.__closure__ or ():
            with suppress(ValueError):  # it is empty
                found.append(cell.cell_contents)
        found += [target.__globals__.get(name) for name in target.__code__.co_names]
    for item in found:
        yield item
        if not raw.is_a(item, *_NOT_PLAIN):
            yield from (raw.attributes(item) or {}).values()


_NOT_PLAIN = (*FUNCTIONS, types.MethodType, types.ModuleType, type, torch.nn.Module, torch.Tensor)


def _with_owners(fn: Any) -> Iterator[Any]:
    """A callable, what it stands for, and the objects whose methods these are."""
    for one in _unwrapped(fn):
        yield one.__self__ if type(one) is types.MethodType else one


def environment(index: int = 0) -> dict[str, str]:
    """The versions and the device that graphs depend on; ``index``: of the device."""
    facts = current_device().facts(index)
    return {
        "gfxgraph": sys.modules["gfxgraph"].__version__,
        "torch": facts.torch,
        "python": platform.python_version(),
        "device": facts.name,
        "architecture": facts.arch,
        "driver": str(facts.driver),
        "runtime": str(facts.runtime),
    }
