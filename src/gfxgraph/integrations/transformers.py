"""Language models of transformers: ``generate`` whose prompt and whose every token are graphs.

>>> generate = Generator(model, max_length=512)
>>> generate(ids, mask, max_new_tokens=64)  # the tokens of model.generate, a replay for each
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationMixin, StaticCache
from transformers.cache_utils import StaticLayer, StaticSlidingWindowLayer

from ..call.graphed import Graphed, graphed
from ..errors import ArgumentError, CaptureError, VerificationError
from ..graph.compare import Tolerance, difference
from ..stats import tally

__all__ = ["Generator", "GeneratorStats"]

_VERIFIED_TOKENS = 4
_SMALLEST_BUCKET = 16
_MOST_ENDS = 32
_MASKED_BY_TENSOR = ("eager", "sdpa")
# A prompt that is padded adds up in another order, through all layers; wrong masks or positions
# make a difference of the size of the logits.
_BY_DTYPE = {torch.float16: 5e-2, torch.bfloat16: 1e-1}
# What a generation config may say without our `generate` doing something else for it.
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
# Where a model has its own of these, its decoding is another.
_GENERATION = (
    "prepare_inputs_for_generation",
    "generate",
    "_sample",
    "_update_model_kwargs_for_generation",
)
# These override `prepare_inputs_for_generation` only to compute their cache anew where a text
# passes the length they were trained for.
_RECOMPUTING = {"phi3", "phimoe"}
_DIFFERENT = "the logits are not those of model.generate"


@dataclass(frozen=True)
class GeneratorStats:
    """What a :class:`Generator` has done.

    Attributes:
        calls: calls of ``generate``.
        captures: graphs captured, of prompts and of steps.
        prefill_replays: prompts answered by a replay.
        decode_replays: tokens answered by a replay, one for each.
        eager_runs: prompts and tokens that ran eagerly: the first of each kind, and fallbacks.
        fallbacks: reason -> how often: calls that ``model.generate`` answered, and prompts and
            tokens for which there is no graph.
    """

    calls: int
    captures: int
    prefill_replays: int
    decode_replays: int
    eager_runs: int
    fallbacks: dict[str, int]


class Generator:
    """Generates text as ``model.generate`` does, from graphs.

    A prompt is padded to a bucket and runs as one graph; each token after it is one replay of
    another, which needs nothing of the host: the cache, its position, the choice of the token and
    the end of each row are in the graph. The graphs of a batch size share a key-value cache of
    ``max_length`` tokens, which is kept from call to call, until :meth:`reset`.

    The first call of each kind is compared with ``model.generate``. A model for which graphs would
    not give what it gives is answered by ``model.generate``: logged once for each reason and
    counted in :meth:`stats`.

    Args:
        model: a causal language model of transformers, in evaluation mode for repeatable results.
        max_length: tokens that a row can have, prompt and new ones together.
        prefill_buckets: lengths that prompts are padded to, ascending. Default: powers of two from
            16, and ``max_length``. A longer prompt runs eagerly, as all do with ``()``.
        compile: compile the step of a token with ``torch.compile`` before it becomes a graph: fewer
            and larger kernels, after a first call that takes a minute. Its logits are rounded
            otherwise than those of ``model.generate``, as with all that Inductor makes. Default
            ``False``.
        check_every: after how many tokens the host asks whether all rows have ended. What was
            generated past the end is cut off, so the result does not depend on it. Default 8.
        verify: compare logits with those of ``model.generate`` in the first call of each kind:
            ``True`` (default) with a tolerance by dtype, a number as the tolerance relative to the
            largest magnitude, ``False``: do not.
        fallback: ``"eager"`` (default): call ``model.generate`` where graphs cannot; ``"raise"``
            the reason.

    Raises:
        ArgumentError: ``model`` cannot generate, or an option holds what it does not take.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_length: int,
        prefill_buckets: Sequence[int] | None = None,
        compile: bool = False,
        check_every: int = 8,
        verify: Tolerance = True,
        fallback: Literal["eager", "raise"] = "eager",
    ) -> None:
        if not (isinstance(model, torch.nn.Module) and isinstance(model, GenerationMixin)):
            raise ArgumentError(
                f"Generator() takes a language model of transformers, not {type(model).__name__}."
            )
        _whole_number("max_length", max_length)
        _whole_number("check_every", check_every)
        if not isinstance(compile, bool):
            raise ArgumentError(f"compile={compile!r}: expected True or False.")
        if fallback not in ("eager", "raise"):
            raise ArgumentError(f"fallback={fallback!r}: expected 'eager' or 'raise'.")
        if not isinstance(verify, (bool, int, float)) or verify < 0:
            raise ArgumentError(f"verify={verify!r}: expected True, False or a tolerance from 0.")
        self.model: Any = model
        self.max_length = max_length
        self.buckets = _checked_buckets(prefill_buckets, max_length)
        self.compile = compile
        self.check_every = check_every
        self.verify = verify
        self.fallback = fallback
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Release all graphs and caches, and forget all counts and reasons."""
        with self._lock:
            self._sessions: dict[Any, _Session] = {}
            self._reason: str | None = None
            self._calls = 0
            self._fallbacks: Counter[str] = Counter()

    def stats(self) -> GeneratorStats:
        """What was done since this was made or reset."""
        sessions = list(self._sessions.values())
        prefills = [session.prefill.stats() for session in sessions]
        steps = [session.step.stats() for session in sessions]
        fallbacks = self._fallbacks.copy()
        for one in prefills + steps:
            fallbacks.update(one.fallbacks)
        long = sum(session.long_prompts for session in sessions)
        return GeneratorStats(
            calls=self._calls,
            captures=sum(one.captures for one in prefills + steps),
            prefill_replays=sum(one.replays for one in prefills),
            decode_replays=sum(one.replays for one in steps),
            eager_runs=long + sum(one.eager_calls for one in prefills + steps),
            fallbacks=dict(fallbacks),
        )

    @torch.inference_mode(False)  # or its tensors could be used in no other mode
    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int,
        do_sample: bool | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        seed: int | None = None,
        **unsupported: Any,
    ) -> Tensor:
        """The prompt and what follows it, as ``model.generate`` returns them.

        Where an argument is ``None``, ``model.generation_config`` decides, and where that says
        nothing, the default of ``model.generate``.

        Args:
            input_ids: token ids [row, token], shorter prompts padded on the left.
            attention_mask: 0 at the padding, else 1. Default: 0 where there is a pad token, unless
                it is also an end token.
            max_new_tokens: how many tokens to generate at most.
            do_sample: draw tokens; default: take the most likely one.
            temperature: divides the logits. Default 1.
            top_k: draw from so many of the likeliest tokens; 0: from all. Default 50.
            top_p: draw from the likeliest tokens that together have this probability. Default 1.
            eos_token_id: a row ends with this token, or one of these; ``-1``: none does.
            pad_token_id: what follows the end of a row. Default: the first end token.
            seed: of what is drawn; the default generator is as before when the call returns.
                Default: draw from the default generator.
            **unsupported: any other argument of ``model.generate`` is refused.

        Returns:
            Token ids [row, token], on the device of the model.

        Raises:
            ArgumentError: an argument that is not supported, or a text that could become longer
                than ``max_length``.
            CaptureError: graphs cannot do it, with ``fallback="raise"``.
        """
        if unsupported:
            known = inspect.signature(Generator.generate).parameters
            takes = ", ".join(name for name in known if name not in ("self", "unsupported"))
            raise ArgumentError(
                f"generate({', '.join(sorted(unsupported))}=): not supported by graphs; expected "
                f"{takes}. Call model.generate."
            )
        ids, mask = self._checked_prompt(input_ids, attention_mask, max_new_tokens)
        config = self.model.generation_config
        if do_sample is None:
            do_sample = bool(config.do_sample)
        sampling = _sampling(config, do_sample, temperature, top_k, top_p)
        ends = _token_ids("eos_token_id", _first(eos_token_id, config.eos_token_id, ()))
        pad = _first(pad_token_id, config.pad_token_id)
        _token_ids("pad_token_id", _first(pad, 0))
        if mask is None:
            mask = torch.ones_like(ids) if pad is None or pad in ends else ids.ne(pad).long()
        if pad is None:
            pad = ends[0] if ends else 0

        with self._lock, torch.random.fork_rng(_devices(ids), enabled=seed is not None):
            self._calls += 1
            reason = self._not_understood() or self._verified(ids, mask, sampling)
            if seed is not None:
                torch.manual_seed(seed)
            if reason is None:
                session = self._sessions[self._key(ids)]
                new = session.run(ids, mask, max_new_tokens, sampling, ends, pad)
                return torch.cat([ids, new], dim=1)
            self._refuse(reason)
            result: Tensor = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                eos_token_id=ends or None,
                pad_token_id=pad,
                **sampling.arguments(),
            )
            return result

    __call__ = generate

    def _checked_prompt(
        self, ids: Tensor, mask: Tensor | None, new_tokens: int
    ) -> tuple[Tensor, Tensor | None]:
        _whole_number("max_new_tokens", new_tokens)
        if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.dtype != torch.int64:
            got = (ids.dtype, tuple(ids.shape)) if isinstance(ids, Tensor) else type(ids).__name__
            raise ArgumentError(f"input_ids: expected int64 token ids [row, token], got {got}.")
        if not ids.numel():
            raise ArgumentError(f"input_ids of shape {tuple(ids.shape)}: the prompt is empty.")
        if ids.shape[1] + new_tokens > self.max_length:
            raise ArgumentError(
                f"a prompt of {ids.shape[1]} tokens and max_new_tokens={new_tokens} make "
                f"{ids.shape[1] + new_tokens}, but the cache holds max_length={self.max_length}. "
                "Make a Generator with a larger max_length, or cut the prompt."
            )
        if mask is not None and mask.shape != ids.shape:
            raise ArgumentError(
                f"attention_mask has the shape {tuple(mask.shape)}, input_ids {tuple(ids.shape)}: "
                "expected the same."
            )
        device = self.model.device
        return ids.to(device), None if mask is None else mask.to(device, torch.int64)

    # Whether graphs give what `model.generate` gives.

    def _key(self, ids: Tensor) -> Any:
        kind = ids.device.type
        autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        return len(ids), ids.device, self.model.dtype, autocast

    def _not_understood(self) -> str | None:
        if not self._sessions and self._reason is None:
            self._reason = _why_not(self.model, self.max_length)
        return self._reason or _not_done(self.model.generation_config)

    def _verified(self, ids: Tensor, mask: Tensor, sampling: _Sampling) -> str | None:
        """Why graphs cannot answer such a call, found out the first time."""
        key = self._key(ids)
        if key not in self._sessions:
            decoder = _Decoder(self.model, len(ids), self.max_length)
            self._sessions[key] = _Session(self, decoder)
        session = self._sessions[key]
        kind = session.bucket(ids.shape[1]), bool(mask.all()), sampling.way
        if kind not in session.known:
            with torch.random.fork_rng(_devices(ids)):
                expected = () if self.verify is False else self._expected(ids, mask)
                try:
                    session.known[kind] = self._compared(session, ids, mask, sampling, expected)
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:
                    said = f"{type(error).__name__}: {error}"
                    session.known[kind] = f"with a cache of fixed size its forward raised {said}"
        return session.known[kind]

    def _compared(
        self,
        session: _Session,
        ids: Tensor,
        mask: Tensor,
        sampling: _Sampling,
        expected: Iterable[tuple[Tensor, Tensor]],
    ) -> str | None:
        """Make the graphs for such a call, and compare what they give."""
        session.begin(ids, mask, sampling, [], 0)
        got = session.first(ids, mask, sampling)
        with _as_for_decoding(self.model):
            for n, (logits, token) in enumerate(expected):
                tolerance = self.verify
                if tolerance is True:
                    tolerance = _BY_DTYPE.get(got.dtype, True)
                # Both in the dtype of the model: those of generate() are in float32.
                different = difference(got, logits.to(got.dtype), tolerance)
                if different:
                    tally.add("validation_failures")
                    return f"{_DIFFERENT} of token {n}: {different}"
                session.decoder.token.copy_(token)
                got = session.step(*sampling.way)
            session.step(*sampling.way)
        return next(iter(session.step.stats().refused.values()), None)

    def _expected(self, ids: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Logits and tokens as ``model.generate`` has them."""
        result = self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=min(_VERIFIED_TOKENS, self.max_length - ids.shape[1]),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = result.sequences[:, ids.shape[1] :]
        return list(zip(result.logits, tokens.split(1, dim=1), strict=True))

    def _refuse(self, reason: str) -> None:
        if self.fallback == "raise":
            raise (VerificationError if reason.startswith(_DIFFERENT) else CaptureError)(reason)
        self._fallbacks[reason] += 1
        tally.fallback(f"Generator({type(self.model).__name__})", reason)


@dataclass(frozen=True)
class _Sampling:
    """How tokens are chosen."""

    drawn: bool
    temperature: float
    top_k: int
    top_p: float

    @property
    def way(self) -> tuple[bool, bool, bool]:
        """What is computed at all: a graph for each; the numbers are tensors."""
        return self.drawn, self.drawn and self.top_k > 0, self.drawn and self.top_p < 1

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``model.generate``."""
        if not self.drawn:
            return {"do_sample": False}
        return {
            "do_sample": True,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }


class _Layer(StaticLayer):  # type: ignore[misc]
    """Keys and values of a layer at fixed addresses; where to write is a tensor of all layers.

    Layers with a sliding window have this too: their mask says which keys they see. Those of
    transformers keep a window of keys and its place as a number, which a graph would repeat.
    """

    def __init__(self, length: int, slot: Tensor) -> None:
        super().__init__(max_cache_len=length)
        self.slot = slot

    def get_seq_length(self) -> Tensor:
        """The slot that the next token takes; not known to the host."""
        return self.slot

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write at the slots from the current one on, and give all that is there."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        count = keys.shape[-2]
        at = self.slot.view(1)  # of a single token without a kernel more, in each layer
        if count > 1:
            at = torch.arange(count, device=keys.device) + at
        # Under autocast the two differ.
        self.keys.index_copy_(2, at, keys.to(self.keys.dtype))
        self.values.index_copy_(2, at, values.to(self.values.dtype))
        return self.keys, self.values


class _Decoder:
    """What the graphs of a batch size read and write, and the two functions that they hold."""

    def __init__(self, model: Any, batch: int, length: int) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=model.device)

        self.accepts = frozenset(inspect.signature(model.forward).parameters)
        self.slot = zeros()  # where in the cache the next token goes
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        self.cache.layers = [_Layer(length, self.slot) for _ in self.cache.layers]
        self.mask = zeros(batch, length)
        self.last = zeros(1)  # the last token of the prompt
        self.position = zeros(batch, 1)
        self.token = zeros(batch, 1)
        self.running = zeros(batch, dtype=torch.bool)  # rows that have not ended
        self.written = zeros(batch, length)
        self.count = zeros(1)  # of tokens written
        self.length = zeros()  # of the longest row
        self.ends = zeros(_MOST_ENDS)
        self.pad = zeros()
        self.temperature = zeros(dtype=torch.float32)
        self.top_k = zeros(batch, 1)
        self.top_p = zeros(dtype=torch.float32)

    def prefill(self, model: Any, ids: Tensor, positions: Tensor) -> Tensor:
        """The prompt, padded on the right; gives the logits of its last token."""
        self.slot.zero_()
        logits = self._forward(model, ids, positions, self.last)
        self.slot.copy_(self.last[0] + 1)
        self.position.copy_(positions.index_select(1, self.last) + 1)
        return logits

    def step(self, model: Any, drawn: bool, k: bool, p: bool) -> Tensor:
        """The next token, with nothing from the host; gives the logits it was chosen by."""
        logits = self._forward(model, self.token, self.position, None)
        self.slot.add_(1)
        self.position.add_(1)
        self.write(logits, drawn, k, p)
        return logits

    def _forward(self, model: Any, ids: Tensor, positions: Tensor, last: Tensor | None) -> Tensor:
        arguments = {
            "position_ids": positions,
            "cache_position": torch.arange(ids.shape[1], device=ids.device) + self.slot,
            "logits_to_keep": 1 if last is None else last,
        }
        out = model(
            input_ids=ids,
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
            **{name: arguments[name] for name in arguments.keys() & self.accepts},
        )
        logits: Tensor = out.logits
        if last is not None and logits.shape[1] > 1:
            logits = logits.index_select(1, last)
        return logits[:, -1]

    def write(self, logits: Tensor, drawn: bool, k: bool, p: bool) -> None:
        """Choose a token for each row that has not ended."""
        scores = logits.float()
        token = self._drawn(scores, k, p) if drawn else scores.argmax(-1)
        token = torch.where(self.running, token, self.pad)
        self.written.index_copy_(1, self.count, token[:, None])
        self.count.add_(1)
        self.length.add_(self.running.any())
        self.running.logical_and_((token[:, None] != self.ends).all(-1))
        self.token.copy_(token[:, None])

    def _drawn(self, scores: Tensor, k: bool, p: bool) -> Tensor:
        scores = scores / self.temperature
        if k or p:
            ascending, order = scores.sort(dim=-1)
            if k:
                least = ascending.gather(-1, (scores.shape[-1] - self.top_k).clamp(min=0))
                scores = scores.masked_fill(scores < least, -torch.inf)
                ascending = ascending.masked_fill(ascending < least, -torch.inf)
            if p:
                unlikely = ascending.softmax(-1).cumsum(-1) <= 1 - self.top_p
                unlikely[:, -1] = False
                scores = scores.masked_fill(
                    torch.empty_like(unlikely).scatter_(-1, order, unlikely), -torch.inf
                )
        # As torch.multinomial draws one of each row, without its look at the probabilities.
        probabilities = scores.softmax(-1)
        return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(-1)


class _Session:
    """One batch size: its decoder, the graphs of it, and which calls they answer rightly."""

    def __init__(self, of: Generator, decoder: _Decoder) -> None:
        model = of.model
        run = torch.compile(decoder.step, dynamic=False) if of.compile else decoder.step

        # The model is a variable of these functions, since what they reach through an object of
        # gfxgraph is not watched, and a weight that is rebound must be met.
        def prefill(ids: Tensor, positions: Tensor) -> Tensor:
            return decoder.prefill(model, ids, positions)

        def step(drawn: bool, k: bool, p: bool) -> Tensor:
            return run(model, drawn, k, p)

        for function in (prefill, step):
            function.__qualname__ = f"{type(model).__name__}.{function.__name__}"
        self.model = model
        self.decoder = decoder
        self.buckets = of.buckets
        self.check_every = of.check_every
        self.known: dict[Any, str | None] = {}
        self.long_prompts = 0
        self.prefill: Graphed[Any] = graphed(prefill, outputs="view", max_graphs=64)
        # A step must not wait for the host: where one would, its line is the reason not to.
        self.step: Graphed[Any] = graphed(step, outputs="view", branching="off")

    def bucket(self, length: int) -> int | None:
        """The length that a prompt of ``length`` is padded to."""
        return next((bucket for bucket in self.buckets if bucket >= length), None)

    def begin(
        self, ids: Tensor, mask: Tensor, sampling: _Sampling, ends: Sequence[int], pad: int
    ) -> None:
        """Write what the graphs read."""
        decoder = self.decoder
        decoder.cache.reset()  # a masked place counts nothing, but 0 times NaN would be NaN
        decoder.mask.fill_(1)
        decoder.mask[:, : ids.shape[1]] = mask
        decoder.last.fill_(ids.shape[1] - 1)
        decoder.running.fill_(True)
        decoder.count.zero_()
        decoder.length.zero_()
        no_token = [-1] * (_MOST_ENDS - len(ends))
        decoder.ends.copy_(torch.tensor([*ends, *no_token]))
        decoder.pad.fill_(pad)
        decoder.temperature.fill_(sampling.temperature)
        decoder.top_k.fill_(sampling.top_k)
        decoder.top_p.fill_(sampling.top_p)

    def first(self, ids: Tensor, mask: Tensor, sampling: _Sampling) -> Tensor:
        """Run the prompt and choose the first token; gives the logits it was chosen by."""
        length, bucket = ids.shape[1], self.bucket(ids.shape[1])
        positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
        logits: Tensor
        if bucket is None:
            self.long_prompts += 1
            logits = self.decoder.prefill(self.model, ids, positions)
        else:
            more = (0, bucket - length)
            logits = self.prefill(F.pad(ids, more), F.pad(positions, more))
        self.decoder.write(logits, *sampling.way)
        return logits

    def run(
        self,
        ids: Tensor,
        mask: Tensor,
        max_new_tokens: int,
        sampling: _Sampling,
        ends: Sequence[int],
        pad: int,
    ) -> Tensor:
        """All new tokens."""
        self.begin(ids, mask, sampling, ends, pad)
        self.first(ids, mask, sampling)
        decoder = self.decoder
        with _as_for_decoding(self.model):
            for n in range(1, max_new_tokens):
                if ends and n % self.check_every == 0 and not decoder.running.any():
                    break
                self.step(*sampling.way)
        length = int(decoder.length) if ends else max_new_tokens
        return decoder.written[:, :length].clone()


def _why_not(model: Any, length: int) -> str | None:
    """Why the graphs of this model would not give what ``model.generate`` gives."""
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
                f"{type(model).__name__}.{name} is its own: what it does between two tokens would "
                "not be done"
            )
    if recomputes and limit is not None and length > limit:
        return (
            f"it computes its cache anew where a text passes {limit} tokens; with "
            f"max_length={limit} or less graphs can answer"
        )
    kinds = {type(layer) for layer in StaticCache(config=config, max_cache_len=length).layers}
    others = kinds - {StaticLayer, StaticSlidingWindowLayer}
    if others:
        names = ", ".join(sorted(kind.__name__ for kind in others))
        return f"its cache has layers of the kind {names}, expected keys and values alone"
    if any("dynamic" in rope for rope in _rope_types(model)):
        return "its RoPE is dynamic: Python computes the frequencies anew as a text grows"
    return None


def _not_done(config: Any) -> str | None:
    """What a generation config asks for beyond what the graphs do."""
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
    return f"the generation config asks for {', '.join(extra)}, which the graphs do not do"


def _rope_types(model: Any) -> Iterator[str]:
    for module in model.modules():
        found = getattr(module, "rope_type", ())
        yield from [found] if isinstance(found, str) else dict(found).values()


def _devices(ids: Tensor) -> list[torch.device]:
    """Those with generators of their own."""
    return [ids.device] if ids.device.type == "cuda" else []


def _as_for_decoding(model: Any) -> contextlib.AbstractContextManager[Any]:
    """What ``generate`` sets on a model while it decodes: the way experts are computed."""
    switch = getattr(model, "_optimize_model_for_decode", contextlib.nullcontext)
    manager: contextlib.AbstractContextManager[Any] = switch()
    return manager


def _sampling(
    config: Any,
    drawn: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
) -> _Sampling:
    sampling = _Sampling(
        drawn,
        _first(temperature, config.temperature, 1.0),
        _first(top_k, config.top_k, 50),
        _first(top_p, config.top_p, 1.0),
    )
    for name, takes, fits in (
        ("temperature", "a number above 0", sampling.temperature > 0),
        ("top_k", "a whole number from 0", sampling.top_k >= 0 and sampling.top_k % 1 == 0),
        ("top_p", "a number above 0, up to 1", 0 < sampling.top_p <= 1),
    ):
        if not fits:
            raise ArgumentError(f"{name}={getattr(sampling, name)!r}: expected {takes}.")
    return sampling


def _token_ids(name: str, value: Any) -> list[int]:
    ids = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in ids):
        raise ArgumentError(f"{name}={value!r}: expected a token id or several.")
    if len(ids) > _MOST_ENDS:
        raise ArgumentError(f"{name} has {len(ids)} token ids, at most {_MOST_ENDS} are taken.")
    return ids


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _whole_number(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"{name}={value!r}: expected a whole number from 1.")


def _checked_buckets(buckets: Sequence[int] | None, length: int) -> list[int]:
    if buckets is None:
        powers = []
        size = _SMALLEST_BUCKET
        while size < length:
            powers.append(size)
            size *= 2
        return [*powers, length]
    for bucket in buckets:
        _whole_number("prefill_buckets", bucket)
    if list(buckets) != sorted(set(buckets)) or (buckets and buckets[-1] > length):
        raise ArgumentError(
            f"prefill_buckets={list(buckets)}: expected ascending lengths up to "
            f"max_length={length}."
        )
    return list(buckets)
