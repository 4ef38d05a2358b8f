"""Policies of LeRobot: ``select_action`` and ``predict_action_chunk`` from one graph.

It knows the policies of LeRobot 0.6.1.
"""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..call.graphed import Graphed, GraphedStats, graphed
from ..errors import ArgumentError
from ..interpose.patch import Undoable

__all__ = ["GraphedPolicy", "use_graphs"]

# The method with all device work for a chunk of actions, by the policy's name: image and language
# prefix with its cache, and all denoise steps.
_METHODS = {
    "act": "model.forward",
    "diffusion": "diffusion.generate_actions",
    "pi0": "model.sample_actions",
    "pi05": "model.sample_actions",
    "smolvla": "model.sample_actions",
}


def use_graphs(policy: Any, method: str | None = None, **options: Any) -> GraphedPolicy:
    """Let a policy of LeRobot compute its chunks of actions from a graph, without changes to its
    code.

    ``policy.select_action(batch)`` and ``policy.predict_action_chunk(batch)`` are called as before.
    Images, state and language are copied into the static inputs of one graph, which holds the
    prefix and all denoise steps; the noise is drawn inside, from the same generator as in eager
    execution, or passed. Each batch size, each length of the language, each ``num_steps`` and each
    set of options of a call (``inference_delay``) has its own graph, also with real-time chunking:
    with it, a small pi0 of LeRobot 0.6.1 equalled eager execution, under ``torch.no_grad()`` on the
    emulated device.

    >>> use_graphs(policy)                    # for good
    >>> with use_graphs(policy) as graphs:
    ...     action = policy.select_action(batch)
    ...     graphs.stats().replays

    Args:
        policy: an ``act``, ``diffusion``, ``pi0``, ``pi05`` or ``smolvla`` policy; with ``method``
            any object.
        method: the method to graph, with dots, such as ``"model.sample_actions"``. Default: the one
            that the policy's ``name`` is known for.
        options: of :func:`~gfxgraph.graphed`.

    Returns:
        An object to undo it, which is also a context manager that undoes it at its end.

    Raises:
        ArgumentError: the policy is not known and ``method`` is not given, it has no such method,
            or the method runs from a graph already.
    """
    kind = type(policy).__name__
    if method is None:
        method = _METHODS.get(str(getattr(policy, "name", "")))
        if method is None:
            raise ArgumentError(
                f"use_graphs({kind}): expected a policy named {', '.join(sorted(_METHODS))}. For "
                "another policy name the method that computes the actions: "
                'method="model.sample_actions".'
            )
    *path, name = method.split(".")
    try:
        owner = functools.reduce(getattr, path, policy)
        found = getattr(owner, name)
    except AttributeError as error:
        raise ArgumentError(
            f"use_graphs({kind}): it has no {method}. If this is another version of LeRobot, name "
            "the method that computes the actions with method=."
        ) from error
    if isinstance(vars(owner).get(name), Graphed):
        raise ArgumentError(f"use_graphs({kind}): {method} runs from a graph already.")
    _warn_of_versions()
    return GraphedPolicy(policy, owner, name, found, options)


class GraphedPolicy(Undoable):
    """A policy whose actions come from a graph; made by :func:`use_graphs`."""

    def __init__(
        self,
        policy: Any,
        owner: Any,
        name: str,
        method: Callable[..., Any],
        options: dict[str, Any],
    ) -> None:
        self._policy, self._owner, self._name = policy, owner, name
        self._before = vars(owner).get(name)  # a compiled one, as a rule there is none
        self._graph: Graphed[..., Any] = graphed(_with_scheduler_kept(owner, method), **options)
        vars(owner)[name] = self._graph
        self._eval = functools.partial(_eval, policy)
        if isinstance(policy, torch.nn.Module):
            vars(policy).setdefault("eval", self._eval)

    def stats(self) -> GraphedStats:
        """The counts of captures and replays; see :class:`~gfxgraph.GraphedStats`."""
        return self._graph.stats()

    def undo(self) -> None:
        """Give the policy its own method back, and release the graphs.

        Raises:
            ArgumentError: something has replaced the method since; undo that first.
        """
        if vars(self._owner).get(self._name) is not self._graph:
            raise ArgumentError(
                f"undo(): {self._name} was replaced after use_graphs(), or undo() was called."
            )
        if self._before is None:
            del vars(self._owner)[self._name]
        else:
            vars(self._owner)[self._name] = self._before
        if getattr(self._policy, "eval", None) is self._eval:
            del vars(self._policy)["eval"]
        self._graph.reset()


def _eval(policy: torch.nn.Module) -> torch.nn.Module:
    """``policy.eval()``, which the policies call for each chunk: 1.6 ms of a pi0 on a CPU.

    It sets an attribute of each module; checking whether anything is to be set takes 0.2 ms.
    """
    todo = [policy]
    while todo:
        attributes = vars(todo.pop())
        if attributes["training"]:
            return type(policy).eval(policy)
        todo += (child for child in attributes["_modules"].values() if child is not None)
    return policy


def _with_scheduler_kept(owner: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """``method``, leaving no trace in the scheduler of a diffusion policy.

    The scheduler sets the same timesteps in each call, and may count its steps: Python state that a
    replay would not change. We restore it after each call, so no call depends on the one before.
    """
    scheduler = getattr(owner, "noise_scheduler", None)
    if scheduler is None:
        return method

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = dict(vars(scheduler))
        try:
            return method(*args, **kwargs)
        finally:
            vars(scheduler).clear()
            vars(scheduler).update(before)

    return call


def _warn_of_versions() -> None:
    """LeRobot 0.6 with transformers 5.6 or newer fails in pi0 and pi05, on ``cache_position``."""
    try:
        from packaging.requirements import Requirement

        wanted = map(Requirement, importlib.metadata.requires("lerobot") or ())
        installed = importlib.metadata.version("transformers")
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return  # nothing is known of them
    for requirement in wanted:
        if requirement.name == "transformers" and installed not in requirement.specifier:
            warnings.warn(
                f"this LeRobot asks for transformers{requirement.specifier}, and {installed} is "
                "installed: pi0 and pi05 fail there on an argument cache_position. Install the "
                "version that it asks for.",
                stacklevel=3,
            )
            return
