"""The key of a call: calls with equal keys can share one graph; and which calls can have one."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ..device import current_device
from ..errors import ArgumentError
from ..graph import raw
from ..record.effects import storage_key
from .held import Held
from .replay import Condition
from .signature import TOO_DEEP, Arguments, Const, Spec, constants, flatten
from .static_inputs import alignment, first_of_each, overlaps_itself, shares_memory, static_strides
from .suitable import unsuitable

__all__ = [
    "MODES_LEFT",
    "SEEN_BY_CHECK",
    "Call",
    "conditions",
    "describe_key",
    "key_of",
    "no_graph_now",
    "taken_apart",
    "unsuitable_for_graph",
    "what_moved",
    "without_sizes",
]


@dataclass
class Call:
    """A call: the function, its arguments, and what these are made of.

    Attributes:
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        leaves: the tensors among the arguments.
        spec: the rest of them.
        held: what the containers among them hold before it runs, where that is known.
        stirred: names of the sets that it has changed, as nobody can put back.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[torch.Tensor] = field(default_factory=list)
    spec: Spec = ()
    held: Held | None = None
    stirred: Sequence[str] = ()

    @property
    def given(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The function and its arguments."""
        return self.fn, self.args, self.kwargs

    def run(self) -> Any:
        """Call the function with the arguments."""
        return self.fn(*self.args, **self.kwargs)


def _root_module(fn: Any) -> torch.nn.Module | None:
    while raw.is_a(fn, functools.partial):
        fn = fn.func
    owner: Any = fn.__self__ if type(fn) is types.MethodType else fn
    scripted = raw.is_a(owner, torch.jit.ScriptModule)  # its flag is in C++, or frozen
    return owner if raw.is_a(owner, torch.nn.Module) and not scripted else None


SEEN_BY_CHECK = (
    torch.is_autocast_enabled,
    torch._C._len_torch_dispatch_stack,
    torch._C._functorch.peek_interpreter_stack,
    vars(forward_ad),  # their copies refuse dual tensors
)


def _exception() -> BaseException | None:
    return sys.exc_info()[1]


# The error in whose `except` block the call is made; from Python 3.11 on there is a function in C.
_error_handled: Callable[[], BaseException | None] = getattr(sys, "exception", _exception)


def conditions(fn: Any) -> list[Condition]:
    """Conditions, beside the arguments, that all calls of one kind share; true now."""
    device_type = current_device().type
    found: list[Condition] = [
        (torch.is_grad_enabled, "", torch.is_grad_enabled()),
        (torch.is_inference_mode_enabled, "", torch.is_inference_mode_enabled()),
        (torch.is_autocast_enabled, device_type, torch.is_autocast_enabled(device_type)),
        (torch._C._len_torch_dispatch_stack, "", 0),
        (torch._C._functorch.peek_interpreter_stack, "", None),
        (vars(forward_ad), "_current_level", -1),
        (_error_handled, "", None),
        # set_default_device() and the like are function modes
        (torch._C._len_torch_function_stack, "", torch._C._len_torch_function_stack()),
        (torch.get_default_dtype, "", torch.get_default_dtype()),
    ]
    if torch._C._len_torch_function_stack():
        found.append((_default_devices, "", _default_devices()))
    if torch.is_autocast_enabled(device_type):
        found.append((torch.get_autocast_dtype, device_type, torch.get_autocast_dtype(device_type)))
    module = _root_module(fn)
    if module is not None:
        found.append((vars(module), "training", module.training))
    return found


def key_of(
    fn: Any,
    leaves: Sequence[torch.Tensor],
    spec: Spec,
    asks_layout: bool = False,
    draws: bool = False,
) -> Any:
    """The key of a call: calls with equal keys can share one graph.

    With ``asks_layout`` that includes all strides; without, the slices of buffers of any size have
    one key with contiguous tensors. With ``draws`` it includes how tensors are aligned.
    """
    # Outside of inference mode nobody may write to an inference tensor, or differentiate with it.
    restricts = not torch.is_inference_mode_enabled()
    storages = [storage_key(leaf) if leaf.numel() else None for leaf in leaves]
    shared = tuple(map(storages.index, storages)) if shares_memory(leaves) else None
    # The function may ask whether two arguments are one, also of tensors without elements.
    twice = first_of_each(leaves) if len(set(map(id, leaves))) < len(leaves) else None
    return (
        spec,
        tuple(
            (
                leaf.shape,
                leaf.dtype,
                leaf.device,
                static_strides(leaf, asks_layout),
                alignment(leaf) if draws else 0,
                overlaps_itself(leaf),
                leaf.requires_grad,
                leaf.is_conj(),
                leaf.is_neg(),
                type(leaf),
                restricts and leaf.is_inference(),
            )
            for leaf in leaves
        ),
        (shared, twice) if shared or twice else None,
        tuple(Const(value) for _, _, value in conditions(fn)),
    )


def without_sizes(key: Any) -> Any:
    """The part of a key that has nothing to do with sizes, nor with how tensors lie in memory."""
    spec, tensors, shared, conditions = key
    kinds = ((len(shape), *kind[:2], *kind[5:]) for shape, *kind in tensors)
    return spec, tuple(kinds), shared, conditions


MODES_LEFT = (
    "the function leaves a mode or a default of torch changed, or calls train() or eval() on the "
    "graphed module. Do that outside of the function."
)
"""Why a call has no graph after which the next call is of another kind."""


def what_moved(before: Any, now: Any) -> str:
    """Why a call has no graph whose key is another after it has run.

    Args:
        before: its key when it was called.
        now: its key now.
    """
    shapes, shapes_now = ([tensor[0] for tensor in key[1]] for key in (before, now))
    if shapes != shapes_now:
        return "argument: the function changes the shape of a tensor in place"
    if before[-1] == now[-1]:
        return "argument: the function changes the layout or a flag of a tensor in place"
    return MODES_LEFT


def no_graph_now() -> str | None:
    """Why no call can use a graph right now, whatever its arguments."""
    if current_device().is_capturing():
        return "called while another graph is captured: its work went into that graph"
    if torch._C._len_torch_dispatch_stack():
        modes = _get_current_dispatch_mode_stack()
        told = (getattr(mode, "no_graph_because", None) for mode in modes)
        found = next((reason for reason in told if reason is not None), None)
        return found or "called under a TorchDispatchMode, which a replay would pass by"
    if torch._C._len_torch_function_stack() and _default_devices() is None:
        return "called under a TorchFunctionMode, which a replay would pass by"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return (
            "called inside a torch.func transform (vmap, grad, jvp), which a replay would pass by"
        )
    if vars(forward_ad)["_current_level"] >= 0:
        return "called inside forward-mode AD, for which a replay computes nothing"
    if _error_handled() is not None:
        # Nobody sees all reads: each error that is raised inside has it as its __context__.
        return (
            "called while an error is handled (in an except block), which the function may read; "
            "call it after that block"
        )
    if torch._C._get_tracing_state() is not None:
        return "called while torch.jit.trace records, which a replay would pass by"
    return None


def _default_devices() -> str | None:
    """The devices that ``with torch.device()`` and ``set_default_device`` ask for.

    The same object for the same devices; ``None`` where another function mode is active.
    """
    count = torch._C._len_torch_function_stack()
    modes = [torch._C._get_function_stack_at(n) for n in range(count)]
    if any(type(mode) is not DeviceContext for mode in modes):
        return None
    return sys.intern(",".join(str(mode.device) for mode in modes))


def taken_apart(
    args: tuple[Any, ...], kwargs: dict[str, Any], classes: Collection[type] = ()
) -> tuple[list[torch.Tensor], Spec, str | None]:
    """The tensors and the spec of a call, and why no graph can take it.

    ``classes`` are those whose objects are taken apart; others are compared by identity.
    """
    try:
        leaves, spec = flatten((args, kwargs), Arguments(classes))
        hash(spec)
        return leaves, spec, unsuitable_for_graph(leaves, "argument")
    except (ArgumentError, AttributeError, RecursionError, TypeError) as error:
        too_deep = isinstance(error, RecursionError)
        return [], (), f"argument: {TOO_DEEP if too_deep else error}"


def unsuitable_for_graph(leaves: Sequence[torch.Tensor], what: str) -> str | None:
    """Why these tensors cannot be inputs or outputs of a graph."""
    for leaf in leaves:
        reason = unsuitable(leaf)
        if reason is not None:
            return f"{what}: {reason}"
    device = current_device().type
    strange = {leaf.device for leaf in leaves if leaf.device.type not in ("cpu", device)}
    if strange:
        return f"{what}: is on {strange.pop()}, which holds no data that a graph on {device} reads"
    devices = sorted({str(leaf.device) for leaf in leaves if leaf.device.type == device})
    if len(devices) > 1:
        return f"{what}s: are on several devices ({', '.join(devices)}); a graph runs on one"
    return None


def describe_key(leaves: Sequence[torch.Tensor], spec: Spec) -> str:
    """Shapes and dtypes of the tensors of a call, and its other arguments, for people to read."""
    tensors = [
        f"{str(leaf.dtype).removeprefix('torch.')}[{','.join(map(str, leaf.shape))}]"
        for leaf in leaves
    ]
    return ", ".join([*tensors, *(repr(const) for const in constants(spec))])
