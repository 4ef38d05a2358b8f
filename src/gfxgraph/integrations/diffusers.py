"""Pipelines of ``diffusers``: the denoiser as a graph for each step, or the loop as one graph."""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..call.graphed import Graphed, GraphedStats, graphed
from ..errors import ArgumentError
from ..interpose.patch import Undoable

__all__ = ["DenoiseLoop", "GraphedComponents", "denoise_loop", "use_graphs"]

# The modules that a pipeline calls in each step, by their names in diffusers.
_DENOISERS = ("unet", "transformer", "transformer_2", "prior", "controlnet")


def use_graphs(pipe: Any, *components: str, **options: Any) -> GraphedComponents:
    """Let a pipeline run its denoiser from graphs: one graph, replayed in each step.

    ``pipe(...)`` is called as before. The scheduler stays in Python, where it counts its steps;
    the timestep and the prompt embeddings are inputs of the graph, and the guidance scale is
    applied after it. Each image size, each number of images, and guidance on or off has its own
    graph. After ``pipe.to(...)``, and when a LoRA is loaded, fused or switched, the graph is
    captured again.

    >>> use_graphs(pipe)                       # for good
    >>> with use_graphs(pipe, "unet", "vae.decoder") as graphs:
    ...     image = pipe("a cat").images[0]
    ...     graphs.stats()["unet"].replays

    Args:
        pipe: the pipeline, or any object whose attributes are the components.
        components: which of its modules, with dots for a module inside of one. Default: those of
            ``unet``, ``transformer``, ``transformer_2``, ``prior`` and ``controlnet`` that it has.
        options: of :func:`~gfxgraph.graphed`, for all components; ``max_graphs`` is how many
            sizes to keep.

    Returns:
        An object to undo it, which is also a context manager that undoes it at its end.

    Raises:
        ArgumentError: a component is missing or no module, or its ``forward`` was replaced or
            compiled before: by hooks that offload or cache, or by an earlier call.
    """
    names = components or tuple(name for name in _DENOISERS if _module(pipe, name) is not None)
    if not names:
        raise ArgumentError(
            f"use_graphs({type(pipe).__name__}): it has none of {', '.join(_DENOISERS)}. Name the "
            'component to graph: use_graphs(pipe, "decoder").'
        )
    modules = {name: _module(pipe, name) for name in names}
    for name, module in modules.items():
        reason = _unfit(module)
        if reason is not None:
            raise ArgumentError(f"use_graphs({type(pipe).__name__}, {name!r}): {reason}")
    return GraphedComponents(modules, options)


class GraphedComponents(Undoable):
    """Modules whose ``forward`` runs from graphs; made by :func:`use_graphs`."""

    def __init__(self, modules: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._graphs = {n: graphed(m.forward, **options) for n, m in modules.items()}
        self._forwards = {n: _forward(m, self._graphs[n]) for n, m in modules.items()}
        self._modules = dict(modules)
        for name, module in modules.items():
            module.forward = self._forwards[name]

    def stats(self) -> dict[str, GraphedStats]:
        """The counts of each component; see :class:`~gfxgraph.GraphedStats`."""
        return {name: graph.stats() for name, graph in self._graphs.items()}

    def undo(self) -> None:
        """Give the components their own ``forward`` back, and release the graphs.

        Raises:
            ArgumentError: something has replaced a ``forward`` since; undo that first.
        """
        for name, module in self._modules.items():
            if vars(module).get("forward") is not self._forwards[name]:
                raise ArgumentError(
                    f"undo(): the forward of {name!r} was replaced after use_graphs(). Remove its "
                    "replacement (hooks that offload or cache) first."
                )
        for module in self._modules.values():
            del module.forward
        for graph in self._graphs.values():
            graph.reset()
        self._modules.clear()


Predict = Callable[..., Tensor]
"""``predict(denoiser, latents, timestep, **conditions)``: returns the input of
``scheduler.step``."""


def denoise_loop(
    pipe: Any,
    num_inference_steps: int,
    *,
    predict: Predict | None = None,
    schedule: Mapping[str, Any] | None = None,
    step: Mapping[str, Any] | None = None,
    **options: Any,
) -> DenoiseLoop:
    """The whole denoising loop of a pipeline, with its scheduler, as one graph.

    >>> loop = denoise_loop(pipe, 20)
    >>> latents = loop(noise, guidance_scale=7.5, encoder_hidden_states=embeddings)

    The loop is that of the text-to-image pipelines: guidance, prediction, ``scheduler.step``.
    This call sets the timesteps once. Each run begins with a copy of the scheduler in that state,
    so its Python state (step index, outputs of earlier steps) starts anew each time, and the
    pipeline's own scheduler does not change. If no graph can hold the scheduler's work, the loop
    runs eagerly and says why, as with :func:`~gfxgraph.graphed`.

    Args:
        pipe: the pipeline, or ``(denoiser, scheduler)``. Move it to its device before.
        num_inference_steps: steps of the loop.
        predict: ``predict(denoiser, latents, timestep, **conditions)`` calls the denoiser and
            returns the input of ``scheduler.step``. Default: as in the pipelines for
            ``UNet2DModel``, ``UNet2DConditionModel``, ``DiTTransformer2DModel``,
            ``SD3Transformer2DModel`` and ``FluxTransformer2DModel``.
        schedule: further arguments of ``scheduler.set_timesteps``, such as ``sigmas`` and ``mu``.
        step: further arguments of ``scheduler.step``, such as ``eta`` or a ``generator``.
        options: of :func:`~gfxgraph.graphed`.

    Returns:
        A callable of latents, guidance scale and conditions.

    Raises:
        ArgumentError: the pipeline has no denoiser or several, its class is not known and there is
            no ``predict``, or the scheduler's ``step`` has another signature.
    """
    denoiser, scheduler = pipe if isinstance(pipe, tuple) else _parts(pipe)
    step = step or {}
    try:
        inspect.signature(scheduler.step).bind(None, None, None, return_dict=False, **step)
    except (AttributeError, TypeError) as error:
        raise ArgumentError(
            f"denoise_loop(): {type(scheduler).__name__}.step(output, timestep, latents, ...) "
            f"cannot be called: {error}. Write its loop and use gfxgraph.graphed()."
        ) from error
    if predict is None:
        classes = [cls.__name__ for cls in type(denoiser).__mro__]
        predict = next((_PREDICT[name] for name in classes if name in _PREDICT), None)
    if predict is None:
        raise ArgumentError(
            f"denoise_loop(): how to call a {type(denoiser).__name__} is not known (some scale the "
            "timestep, some predict a variance). Pass predict=lambda denoiser, latents, timestep, "
            "**conditions: ..., as in its pipeline."
        )
    scheduler = copy.deepcopy(scheduler)
    device = next(denoiser.parameters()).device
    scheduler.set_timesteps(num_inference_steps, device=device, **(schedule or {}))
    return DenoiseLoop(denoiser, scheduler, predict, step, options)


class DenoiseLoop:
    """A denoising loop that is one graph; made by :func:`denoise_loop`."""

    def __init__(
        self,
        denoiser: Any,
        scheduler: Any,
        predict: Predict,
        step: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        # It belongs to the package of ``predict`` and is a method of the denoiser, so that the
        # guard watches the weights and variables that these two reach.
        @functools.wraps(predict, assigned=["__module__"], updated=[])
        def denoise(denoiser: Any, latents: Tensor, scale: Tensor | None, **given: Any) -> Tensor:
            own = _as_set(scheduler)
            scale_input = getattr(own, "scale_model_input", lambda latents, t: latents)
            latents = latents * getattr(own, "init_noise_sigma", 1.0)
            for t in own.timesteps:
                batch = latents if scale is None else torch.cat([latents, latents])
                output = predict(denoiser, scale_input(batch, t), t, **given)
                if scale is not None:
                    output = _guided(output, scale)
                latents = own.step(output, t, latents, return_dict=False, **step)[0]
            return latents

        self._graph: Graphed[..., Any] = graphed(types.MethodType(denoise, denoiser), **options)

    @torch.no_grad()
    def __call__(
        self, latents: Tensor, guidance_scale: float | Tensor | None = None, **conditions: Any
    ) -> Tensor:
        """Denoise ``latents``.

        Args:
            latents: normal noise, as drawn; it is scaled as the scheduler wants it.
            guidance_scale: of classifier-free guidance, an input of the graph: a number, or a
                tensor that broadcasts over the latents. The denoiser then gets the batch twice, and
                ``conditions`` need twice the batch, the unconditional half first.
                Default: none.
            conditions: further arguments of the denoiser's ``forward``, such as
                ``encoder_hidden_states``; all tensors are inputs of the graph.

        Returns:
            The latents after the last step.
        """
        return self._call(self._graph, latents, guidance_scale, conditions)

    @torch.no_grad()
    def eager(
        self, latents: Tensor, guidance_scale: float | Tensor | None = None, **conditions: Any
    ) -> Tensor:
        """The same without a graph."""
        return self._call(self._graph.__wrapped__, latents, guidance_scale, conditions)

    def stats(self) -> GraphedStats:
        """The counts of the loop; see :class:`~gfxgraph.GraphedStats`."""
        return self._graph.stats()

    def reset(self) -> None:
        """Release all graphs and forget all reasons."""
        self._graph.reset()

    @staticmethod
    def _call(
        run: Any, latents: Tensor, scale: float | Tensor | None, conditions: dict[str, Any]
    ) -> Tensor:
        if isinstance(scale, (int, float)):
            exact = torch.promote_types(latents.dtype, torch.float32)
            scale = torch.full((), scale, dtype=exact, device=latents.device)
        denoised: Tensor = run(latents, scale, **conditions)
        return denoised


def _parts(pipe: Any) -> tuple[Any, Any]:
    found = [name for name in _DENOISERS if _module(pipe, name) is not None]
    if len(found) != 1 or not hasattr(pipe, "scheduler"):
        raise ArgumentError(
            f"denoise_loop({type(pipe).__name__}): expected a scheduler and one of "
            f"{', '.join(_DENOISERS)}, found {' and '.join(found) or 'none'}. Pass (denoiser, "
            "scheduler), and predict= if several modules make the prediction."
        )
    return getattr(pipe, found[0]), pipe.scheduler


def _module(pipe: Any, name: str) -> torch.nn.Module | None:
    try:
        found = attrgetter(name)(pipe)
    except AttributeError:
        return None
    return found if isinstance(found, torch.nn.Module) else None


def _unfit(module: torch.nn.Module | None) -> str | None:
    """Why the ``forward`` of a component cannot be replaced."""
    if module is None:
        return "there is no module of that name."
    if "forward" in vars(module):
        return (
            "its forward was replaced before: by use_graphs() (undo() that first), by hooks that "
            "offload or cache (a graph needs weights that stay where they are), or by "
            "torch.compile (compile parts of it instead: compile_repeated_blocks())."
        )
    if module._compiled_call_impl is not None:
        return "after compile() it bypasses its forward. Compile parts: compile_repeated_blocks()."
    return None


def _forward(module: torch.nn.Module, graph: Graphed[..., Any]) -> Callable[..., Any]:
    """The ``forward`` of a module that has graphs."""
    own: Any = type(module).forward
    names = list(inspect.signature(module.forward).parameters)
    place = names.index("timestep") if "timestep" in names else -1

    @functools.wraps(own)
    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not module:  # a deep copy, with weights of its own
            return own(self, *args, **kwargs)
        # With a number as timestep, each step would need its own graph.
        if 0 <= place < len(args):
            args = (*args[:place], _as_tensor(args[place]), *args[place + 1 :])
        elif "timestep" in kwargs:
            kwargs["timestep"] = _as_tensor(kwargs["timestep"])
        return graph(*args, **kwargs)

    return types.MethodType(forward, module)


def _as_tensor(timestep: Any) -> Any:
    """The timestep as the tensor that diffusers would make of it."""
    if type(timestep) not in (int, float):
        return timestep
    return torch.tensor(timestep, dtype=torch.int64 if type(timestep) is int else torch.float64)


def _as_set(scheduler: Any) -> Any:
    """A copy of ``scheduler`` for one run."""
    own = copy.copy(scheduler)
    for name, value in vars(scheduler).items():
        if isinstance(value, (list, dict, set)):
            vars(own)[name] = copy.copy(value)
    return own


def _guided(output: Tensor, scale: Tensor) -> Tensor:
    """Classifier-free guidance, rounded as with a Python number for ``scale``."""
    without, given = output.chunk(2)
    apart = given - without
    exact = torch.promote_types(apart.dtype, torch.float32)
    return without + (scale.to(exact) * apart.to(exact)).to(apart.dtype)


def _predict(denoiser: Any, latents: Tensor, t: Tensor, **conditions: Any) -> Tensor:
    timestep = t.expand(latents.shape[0])
    output: Tensor = denoiser(latents, timestep=timestep, return_dict=False, **conditions)[0]
    return output


def _predict_dit(denoiser: Any, latents: Tensor, t: Tensor, **conditions: Any) -> Tensor:
    # After the channels of the latents comes a learned variance, which its pipeline drops.
    return _predict(denoiser, latents, t, **conditions)[:, : latents.shape[1]]


def _predict_flux(denoiser: Any, latents: Tensor, t: Tensor, **conditions: Any) -> Tensor:
    return _predict(denoiser, latents, t.to(latents.dtype) / 1000, **conditions)


_PREDICT: dict[str, Predict] = {
    "UNet2DModel": _predict,
    "UNet2DConditionModel": _predict,
    "DiTTransformer2DModel": _predict_dit,
    "SD3Transformer2DModel": _predict,
    "FluxTransformer2DModel": _predict_flux,
}
