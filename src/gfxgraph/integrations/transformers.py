"""Language models of transformers: ``generate`` with a graph for the prompt and one for each token.

>>> generate = Generator(model, max_length=512)
>>> generate(ids, mask, max_new_tokens=64)  # the tokens of model.generate, a replay for each

With ``whole=True`` one replay makes all tokens after the prompt.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationMixin

from ..call.compiled import Compile
from ..errors import ArgumentError, CaptureError, VerificationError
from ..forking import new_lock
from ..graph.compare import Tolerance, difference
from ..stats import log, tally
from .transformers_decoding import Decoder, Sampling, Session, as_for_decoding
from .transformers_limits import (
    checked_buckets,
    first_of,
    not_done,
    refuse_processors,
    sampling_of,
    token_id,
    token_ids,
    whole_number,
    why_not,
)

__all__ = ["Generator", "GeneratorStats"]

_VERIFIED_TOKENS = 4
# A padded prompt sums in a different order in all layers, a small error; wrong masks or positions
# make a difference of the size of the logits. Those of generate() are in float32.
_BY_DTYPE = {torch.float16: 5e-2, torch.bfloat16: 1e-1, torch.float64: 1e-6}
_DRAWN = "whole=True: each turn of a loop on the device would draw the same random numbers"
_DIFFERENT = "the logits are not those of model.generate"


@dataclass(frozen=True)
class GeneratorStats:
    """The counts of a :class:`Generator`.

    Attributes:
        calls: calls of ``generate``.
        captures: graphs captured, of prompts, of steps and of whole texts.
        prefill_replays: prompts answered by a replay.
        decode_replays: tokens answered by a replay, one for each.
        whole_replays: texts answered by a replay, one for each; see ``whole`` of
            :class:`Generator`.
        eager_runs: prompts, tokens and texts that ran eagerly: the first of each kind, and
            fallbacks.
        fallbacks: reason -> how often: calls that ``model.generate`` answered, prompts, tokens and
            texts for which there is no graph, and, with ``whole=True``, calls that took a replay
            for each token.
    """

    calls: int
    captures: int
    prefill_replays: int
    decode_replays: int
    whole_replays: int
    eager_runs: int
    fallbacks: dict[str, int]


class Generator:
    """Generates text as ``model.generate`` does, from graphs.

    A prompt is padded to a bucket and runs as one graph. Each token after it is one replay of a
    second graph, which needs nothing from the host: it holds the cache, its position, the choice of
    the token and the end of each row. The graphs of a batch size share a key-value cache of
    ``max_length`` tokens, which is kept from call to call, until :meth:`reset`.

    The first call of each kind is compared with ``model.generate``. If graphs would not equal it,
    ``model.generate`` answers: logged once for each reason and counted in :meth:`stats`.

    Args:
        model: a causal language model of transformers, in evaluation mode for repeatable results.
        max_length: tokens that a row can have, prompt and new ones together.
        prefill_buckets: lengths that prompts are padded to, ascending. Default: powers of two from
            16, and ``max_length``. A longer prompt runs eagerly, as all do with ``()``.
        compile: compile the step of a token with ``torch.compile`` before it becomes a graph: fewer
            and larger kernels, after a first call that takes a minute. Inductor rounds differently,
            so its logits differ slightly from those of ``model.generate``. Takes what
            ``graphed(compile=)`` takes, such as ``"tuned"``. Default ``False``.
        check_every: after how many tokens the host asks whether all rows have ended. Tokens past
            the end are cut off, so the result does not depend on it. Default 8.
        whole: make all tokens after the prompt in one replay. The graph holds a loop, and the
            device decides when all rows have ended. Where it cannot, or where tokens are drawn,
            each token takes a replay: logged once for each reason and counted in :meth:`stats`.
            Not together with ``compile``. Default ``False``.
        verify: compare logits with those of ``model.generate`` in the first call of each kind:
            ``True`` (default) with a tolerance by dtype, a number as the tolerance relative to the
            largest magnitude, ``False``: do not.
        fallback: ``"eager"`` (default): call ``model.generate`` where graphs cannot, and take a
            replay for each token where ``whole`` cannot; ``"raise"`` the reason.

    Raises:
        ArgumentError: ``model`` cannot generate, or an option has a wrong value.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_length: int,
        prefill_buckets: Sequence[int] | None = None,
        compile: bool | str | Mapping[str, Any] = False,
        check_every: int = 8,
        whole: bool = False,
        verify: Tolerance = True,
        fallback: Literal["eager", "raise"] = "eager",
    ) -> None:
        if not (isinstance(model, torch.nn.Module) and isinstance(model, GenerationMixin)):
            raise ArgumentError(
                f"Generator() takes a language model of transformers, not {type(model).__name__}."
            )
        whole_number("max_length", max_length)
        whole_number("check_every", check_every)
        if not isinstance(whole, bool):
            raise ArgumentError(f"whole={whole!r}: expected True or False.")
        how = Compile.of(compile)
        if how is not None and whole:
            raise ArgumentError(
                "compile= with whole=True: a loop on the device holds the step as it is, not a "
                "compiled one. Choose one of the two."
            )
        if fallback not in ("eager", "raise"):
            raise ArgumentError(f"fallback={fallback!r}: expected 'eager' or 'raise'.")
        if not isinstance(verify, (bool, int, float)) or verify < 0:
            raise ArgumentError(f"verify={verify!r}: expected True, False or a tolerance from 0.")
        self.model: Any = model
        self.max_length = max_length
        self.buckets = checked_buckets(prefill_buckets, max_length)
        self.compile = how or False
        self.check_every = check_every
        self.whole = whole
        self.verify = verify
        self.fallback = fallback
        self._lock = new_lock()
        self.reset()

    def reset(self) -> None:
        """Release all graphs and caches, and forget all counts and reasons."""
        with self._lock:
            self._sessions: dict[Any, Session] = {}
            self._reason: str | None = None
            self._calls = 0
            self._fallbacks: Counter[str] = Counter()

    def stats(self) -> GeneratorStats:
        """The counts since creation or the last reset."""
        sessions = list(self._sessions.values())
        prefills = [session.prefill.stats() for session in sessions]
        steps = [session.step.stats() for session in sessions]
        texts = [session.tokens.stats() for session in sessions]
        fallbacks = self._fallbacks.copy()
        for one in prefills + steps:
            fallbacks.update(one.fallbacks)
        for session, one in zip(sessions, texts, strict=True):
            if session.no_loop is None:  # else each call has counted it
                fallbacks.update(one.fallbacks)
        long = sum(session.long_prompts for session in sessions)
        return GeneratorStats(
            calls=self._calls,
            captures=sum(one.captures for one in prefills + steps + texts),
            prefill_replays=sum(one.replays for one in prefills),
            decode_replays=sum(one.replays for one in steps),
            whole_replays=sum(one.replays for one in texts),
            eager_runs=long + sum(one.eager_calls for one in prefills + steps + texts),
            fallbacks=dict(fallbacks),
        )

    @torch.inference_mode(False)  # or its tensors could be used in inference mode only
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
        """The prompt and its continuation, as ``model.generate`` returns them.

        If an argument is ``None``, ``model.generation_config`` decides, else the default of
        ``model.generate``.

        Args:
            input_ids: token ids [row, token], shorter prompts padded on the left.
            attention_mask: 0 at the padding, else 1. Default: 0 where there is a pad token, unless
                it is also an end token.
            max_new_tokens: how many tokens to generate at most.
            do_sample: draw tokens; default: take the most likely one.
            temperature: divides the logits. Default 1.
            top_k: draw from this many of the likeliest tokens; 0: from all. Default 50.
            top_p: draw from the likeliest tokens that together have this probability. Default 1.
            eos_token_id: a row ends with this token, or one of these; ``-1``: none does.
            pad_token_id: the token after the end of a row. Default: the first end token.
            seed: seed of the draws; the call restores the default generator. Default: draw from the
                default generator.
            **unsupported: any other argument of ``model.generate`` is refused, such as a
                ``logits_processor`` that is not empty.

        Returns:
            Token ids [row, token], on the device of the model.

        Raises:
            ArgumentError: an argument that is not supported, or a text that could become longer
                than ``max_length``.
            CaptureError: graphs cannot do it, with ``fallback="raise"``.
        """
        refuse_processors(unsupported.pop("logits_processor", None))
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
        sampling = sampling_of(config, do_sample, temperature, top_k, top_p)
        ends = token_ids("eos_token_id", first_of(eos_token_id, config.eos_token_id, ()))
        pad = first_of(pad_token_id, config.pad_token_id)
        if pad is not None:
            pad = token_id("pad_token_id", pad)
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
                whole = self.whole and self._device_decides(session, sampling)
                new = session.run(ids, mask, max_new_tokens, sampling, ends, pad, whole)
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
        whole_number("max_new_tokens", new_tokens)
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

    # Comparing graphs with `model.generate`.

    def _key(self, ids: Tensor) -> Any:
        kind = ids.device.type
        autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        return len(ids), ids.device, self.model.dtype, autocast

    def _not_understood(self) -> str | None:
        if not self._sessions and self._reason is None:
            self._reason = why_not(self.model, self.max_length)
        return self._reason or not_done(self.model.generation_config)

    def _verified(self, ids: Tensor, mask: Tensor, sampling: Sampling) -> str | None:
        """Why graphs cannot answer such a call; determined at the first one."""
        key = self._key(ids)
        if key not in self._sessions:
            decoder = Decoder(self.model, len(ids), self.max_length)
            self._sessions[key] = Session(
                self.model, decoder, self.buckets, self.check_every, self.compile
            )
        session = self._sessions[key]
        # A text of one more token shows nothing of a step.
        several = self._compared_tokens(ids) > 1
        kind = session.bucket(ids.shape[1]), bool(mask.all()), sampling.way, several
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
        session: Session,
        ids: Tensor,
        mask: Tensor,
        sampling: Sampling,
        expected: Iterable[tuple[Tensor, Tensor]],
    ) -> str | None:
        """Make the graphs for such a call, and compare their results."""
        loops = self.whole and not sampling.do_sample
        # A loop has the step in its own graph, and may be the only one that needs it.
        step = partial(session.decoder.step, self.model) if loops else session.step
        got = session.first(ids, mask, sampling)
        with as_for_decoding(self.model):
            for n, (logits, token) in enumerate(expected):
                if n:
                    got = step(*sampling.way)
                tolerance = self.verify
                if tolerance is True:
                    tolerance = _BY_DTYPE.get(got.dtype, True)
                # Both in the dtype of the model.
                different = difference(got, logits.to(got.dtype), tolerance)
                if different:
                    tally.add("validation_failures")
                    return f"{_DIFFERENT} of token {n}: {different}"
                session.decoder.token.copy_(token)
        if loops:
            session.try_loop(ids, mask, min(2, self._compared_tokens(ids)))
            if session.no_loop is None:
                return None
        return session.try_step(sampling)

    def _compared_tokens(self, ids: Tensor) -> int:
        return min(_VERIFIED_TOKENS, self.max_length - ids.shape[1])

    def _expected(self, ids: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The logits and tokens of ``model.generate``."""
        result = self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=self._compared_tokens(ids),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = result.sequences[:, ids.shape[1] :]
        return list(zip(result.logits, tokens.split(1, dim=1), strict=True))

    def _device_decides(self, session: Session, sampling: Sampling) -> bool:
        """Whether a loop makes the tokens of such a call; the reason is counted where none does."""
        reason = _DRAWN if sampling.do_sample else session.no_loop
        if reason is None:
            return True
        if self.fallback == "raise":
            raise CaptureError(reason)
        if reason not in self._fallbacks:
            who = f"Generator({type(self.model).__name__})"
            log(logging.WARNING, "fallback", function=who, ran="a replay a token", reason=reason)
        self._fallbacks[reason] += 1
        return False

    def _refuse(self, reason: str) -> None:
        if self.fallback == "raise":
            raise (VerificationError if reason.startswith(_DIFFERENT) else CaptureError)(reason)
        self._fallbacks[reason] += 1
        tally.fallback(f"Generator({type(self.model).__name__})", reason)


def _devices(ids: Tensor) -> list[torch.device]:
    """Those with generators of their own."""
    return [ids.device] if ids.device.type == "cuda" else []
