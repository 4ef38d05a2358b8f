"""The limits of graphs for language models, and checks of the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, takewhile
from typing import Any

from torch import Tensor
from transformers import GenerationMixin, StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

from ..errors import ArgumentError
from .transformers_decoding import MOST_ENDS, Sampling

__all__ = [
    "checked_buckets",
    "first_of",
    "not_done",
    "refuse_processors",
    "sampling_of",
    "token_id",
    "token_ids",
    "whole_number",
    "why_not",
]

_SMALLEST_BUCKET = 16
_MASKED_BY_TENSOR = ("eager", "sdpa")
# Entries of a generation config that our `generate` supports, or may ignore.
_UNDERSTOOD = {
    "bos_token_id",
    "cache_implementation",
    "do_sample",
    "eos_token_id",
    "max_length",
    "max_new_tokens",
    "pad_token_id",
    "temperature",
    "top_k",
    "top_p",
    "transformers_version",
    "use_cache",
}
# A model that overrides one of these decodes differently.
_GENERATION = (
    "prepare_inputs_for_generation",
    "generate",
    "_sample",
    "_update_model_kwargs_for_generation",
)
# These override `prepare_inputs_for_generation` only to recompute their cache where a text passes
# the length they were trained for.
_RECOMPUTING = {"phi3", "phimoe"}


def why_not(model: Any, length: int) -> str | None:
    """Why the graphs of this model would differ from ``model.generate``."""
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        return "it is an encoder-decoder, and only decoders are supported"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its weights are on several devices"
    if config._attn_implementation not in _MASKED_BY_TENSOR:
        return (
            f"its attention is {config._attn_implementation!r}, whose masks are not made on the "
            f"device; expected one of {_MASKED_BY_TENSOR} (model.set_attn_implementation)"
        )
    limit = getattr(config, "original_max_position_embeddings", None)
    recomputes = config.model_type in _RECOMPUTING
    for name in _GENERATION[recomputes:]:
        if getattr(type(model), name, None) is not getattr(GenerationMixin, name, None):
            return (
                f"{type(model).__name__} overrides {name}, which a graph would skip between two "
                "tokens"
            )
    if recomputes and limit is not None and length > limit:
        return (
            f"it recomputes its cache where a text passes {limit} tokens; with "
            f"max_length={limit} or less graphs can answer"
        )
    kinds = {type(layer) for layer in StaticCache(config=config, max_cache_len=length).layers}
    others = kinds - {StaticLayer, StaticSlidingWindowLayer}
    if others:
        names = ", ".join(sorted(kind.__name__ for kind in others))
        return f"its cache has layers of the kind {names}, expected keys and values alone"
    if any("dynamic" in rope for rope in _rope_types(model)):
        return "its RoPE is dynamic: Python recomputes the frequencies as a text grows"
    return None


def not_done(config: Any) -> str | None:
    """The options of a generation config that the graphs do not support."""
    neutral: dict[str, Any] = getattr(config, "_get_default_generation_params", dict)()
    extra = [
        f"{name}={value!r}"
        for name, value in sorted(config.to_diff_dict().items())
        if value and value != neutral.get(name) and name not in _UNDERSTOOD and name[0] != "_"
    ]
    if config.cache_implementation == "quantized":
        extra.append("cache_implementation='quantized'")
    if not extra:
        return None
    return f"the generation config asks for {', '.join(extra)}, which the graphs do not support"


def refuse_processors(processors: Any) -> None:
    """Raise where processors of logits are given.

    Each gets the text so far, whose length the host does not know while graphs make it, and runs in
    Python, which a replay does not.

    Raises:
        ArgumentError: there are some; the message has their names.
    """
    given = processors if isinstance(processors, Iterable) or processors is None else [processors]
    names = [type(one).__name__ for one in given or ()]
    if names:
        raise ArgumentError(
            f"generate(logits_processor=[{', '.join(names)}]): a processor gets the text so far, "
            "and graphs make a text whose length the host does not know. temperature, top_k and "
            "top_p are arguments of their own; for other processors call model.generate."
        )


def _rope_types(model: Any) -> Iterator[str]:
    for module in model.modules():
        found = getattr(module, "rope_type", ())
        yield from [found] if isinstance(found, str) else dict(found).values()


def sampling_of(
    config: Any,
    drawn: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
) -> Sampling:
    """How tokens are chosen: where an argument is ``None``, as the generation config says.

    Raises:
        ArgumentError: a number is out of its range.
    """
    sampling = Sampling(
        drawn,
        first_of(temperature, config.temperature, 1.0),
        first_of(top_k, config.top_k, 50),
        first_of(top_p, config.top_p, 1.0),
    )
    for name, takes, fits in (
        ("temperature", "a number above 0", sampling.temperature > 0),
        ("top_k", "a whole number from 0", sampling.top_k >= 0 and sampling.top_k % 1 == 0),
        ("top_p", "a number above 0, up to 1", 0 < sampling.top_p <= 1),
    ):
        if not fits:
            raise ArgumentError(f"{name}={getattr(sampling, name)!r}: expected {takes}.")
    return sampling


def token_ids(name: str, value: Any) -> list[int]:
    """One token id or several, as a list.

    Raises:
        ArgumentError: they are something else, or too many.
    """
    value = value.tolist() if isinstance(value, Tensor) else value
    ids = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        raise ArgumentError(f"{name}={value!r}: expected a token id or several.")
    if len(ids) > MOST_ENDS:
        raise ArgumentError(f"{name} has {len(ids)} token ids, at most {MOST_ENDS} are taken.")
    return ids


def token_id(name: str, value: Any) -> int:
    """One token id.

    Raises:
        ArgumentError: it is something else.
    """
    ids = token_ids(name, value)
    if len(ids) != 1:
        raise ArgumentError(f"{name}={value!r}: expected one token id.")
    return ids[0]


def first_of(*values: Any) -> Any:
    """The first that is not ``None``."""
    return next((value for value in values if value is not None), None)


def whole_number(name: str, value: Any) -> None:
    """Raise ``ArgumentError`` where ``value`` is no whole number from 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"{name}={value!r}: expected a whole number from 1.")


def checked_buckets(buckets: Sequence[int] | None, length: int) -> list[int]:
    """The lengths that prompts are padded to; by default powers of two and ``length``.

    Raises:
        ArgumentError: they do not ascend, or go beyond ``length``.
    """
    if buckets is None:
        powers = (_SMALLEST_BUCKET << n for n in count())
        return [*takewhile(lambda size: size < length, powers), length]
    for bucket in buckets:
        whole_number("prefill_buckets", bucket)
    if list(buckets) != sorted(set(buckets)) or (buckets and buckets[-1] > length):
        raise ArgumentError(
            f"prefill_buckets={list(buckets)}: expected ascending lengths up to "
            f"max_length={length}."
        )
    return list(buckets)
