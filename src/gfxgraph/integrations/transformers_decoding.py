"""The graphs of a language model: a prompt, a step, and the cache that both write."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

from ..call.graphed import Graphed, graphed
from ..device import current_device, index_of
from ..graph.control_flow import while_loop

__all__ = ["MOST_ENDS", "Decoder", "Layer", "Sampling", "Session", "as_for_decoding"]

MOST_ENDS = 32
"""End tokens that a graph has room for."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, as the arguments of ``model.generate``."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float

    @property
    def way(self) -> tuple[bool, bool, bool]:
        """The kind of computation, which needs its own graph; the numbers are tensors."""
        drawn = self.do_sample
        return drawn, drawn and self.top_k > 0, drawn and self.top_p < 1

    def arguments(self) -> dict[str, Any]:
        """Those that count."""
        return {**vars(self), "do_sample": True} if self.do_sample else {"do_sample": False}


class Layer(StaticLayer):  # type: ignore[misc]
    """Keys and values of a layer at fixed addresses; a tensor that all layers share says where to
    write.

    Layers with a sliding window use it too: their mask says which keys they see. The classes of
    transformers keep a window of keys and its position as a number, which a graph would freeze.
    """

    def __init__(self, length: int, slot: Tensor) -> None:
        super().__init__(max_cache_len=length)
        self.slot = slot

    def get_seq_length(self) -> Tensor:
        """The slot that the next token takes; not known to the host."""
        return self.slot

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write at the slots from the current one on, and return all keys and values."""
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


class Decoder:
    """The tensors that the graphs of a batch size read and write, and the captured functions."""

    def __init__(self, model: Any, batch: int, length: int) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=model.device)

        self.accepts = frozenset(inspect.signature(model.forward).parameters)
        self.slot = zeros()  # where in the cache the next token goes
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        self.cache.layers = [Layer(length, self.slot) for _ in self.cache.layers]
        self.mask = zeros(batch, length)
        self.last = zeros(1)  # the last token of the prompt
        self.start = zeros(batch, 1)  # the position of the first new token
        self.position = zeros(batch, 1)
        self.token = zeros(batch, 1)
        self.running = zeros(batch, dtype=torch.bool)  # rows that have not ended
        self.goes_on = zeros(dtype=torch.bool)  # whether there is such a row
        self.written = zeros(batch, length)
        self.count = zeros(1)  # of tokens written
        self.length = zeros()  # of the longest row
        self.left = zeros()  # how many tokens a loop may add to the first one
        self.ends = zeros(MOST_ENDS)
        self.pad = zeros()
        self.temperature = zeros(dtype=torch.float32)
        self.top_k = zeros(batch, 1)
        self.top_p = zeros(dtype=torch.float32)

    def prefill(self, model: Any, ids: Tensor, positions: Tensor) -> Tensor:
        """Run the prompt, padded on the right; returns the logits of its last token."""
        self.slot.zero_()
        logits = self._forward(model, ids, positions, self.last)
        self.start.copy_(positions.index_select(1, self.last) + 1)
        return logits

    def begin(self) -> None:
        """Go to the end of the prompt."""
        self.slot.copy_(self.last[0] + 1)
        self.position.copy_(self.start)
        self.running.fill_(True)
        self.goes_on.fill_(True)
        self.count.zero_()
        self.length.zero_()

    def step(self, model: Any, drawn: bool, k: bool, p: bool) -> Tensor:
        """Choose the next token without the host; returns the logits that decided."""
        logits = self._forward(model, self.token, self.position, None)
        self.slot.add_(1)
        self.position.add_(1)
        self.write(logits, drawn, k, p)
        return logits

    def tokens(self, model: Any, logits: Tensor) -> Tensor:
        """Choose the first token by the logits of the prompt, then all others, without the host.

        Whatever ran before, it begins at the end of the prompt: a capture runs it several times,
        and there is no room behind the text.

        Returns:
            How many more there might have been; 0 if all rows have ended.
        """

        def turn(left: Tensor) -> tuple[Tensor]:
            self.step(model, False, False, False)
            return (left.sub_(1).mul_(self.goes_on),)

        self.begin()
        self.write(logits, False, False, False)
        (left,) = while_loop(lambda left: left, turn, self.left * self.goes_on)
        result: Tensor = left
        return result

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
            **{name: value for name, value in arguments.items() if name in self.accepts},
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
        self.length.add_(self.goes_on)
        self.running.logical_and_((token[:, None] != self.ends).all(-1))
        torch.any(self.running, out=self.goes_on)
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
        # As torch.multinomial draws one of each row, without its check of the probabilities.
        probabilities = scores.softmax(-1)
        return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(-1)


class Session:
    """One batch size: its decoder, its graphs, and the kinds of calls that they may answer."""

    def __init__(
        self, model: Any, decoder: Decoder, buckets: list[int], check_every: int, compile: Any
    ) -> None:
        # The model is a variable of these functions: guards do not look into objects of gfxgraph,
        # and a rebound weight must be noticed.
        def prefill(ids: Tensor, positions: Tensor) -> Tensor:
            return decoder.prefill(model, ids, positions)

        def step(drawn: bool, k: bool, p: bool) -> Tensor:
            return decoder.step(model, drawn, k, p)

        def tokens(logits: Tensor) -> Tensor:
            return decoder.tokens(model, logits)

        for function in (prefill, step, tokens):
            function.__qualname__ = f"{type(model).__name__}.{function.__name__}"
        self.model = model
        self.decoder = decoder
        self.buckets = buckets
        self.check_every = check_every
        self.known: dict[Any, str | None] = {}
        #: Why no loop makes the most likely tokens; :meth:`try_loop` finds out.
        self.no_loop: str | None = None
        self.long_prompts = 0
        self.prefill: Graphed[..., Any] = graphed(prefill, outputs="view", max_graphs=64)
        # A step must not wait for the host: if it would, its line becomes the reason for a
        # fallback.
        self.step: Graphed[..., Any] = graphed(
            step, outputs="view", branching="off", compile=compile
        )
        # The same holds for a loop, which has a graph only where the device decides when it ends.
        self.tokens: Graphed[..., Any] = graphed(tokens, outputs="view", branching="off")

    def bucket(self, length: int) -> int | None:
        """The length that a prompt of ``length`` is padded to."""
        return next((bucket for bucket in self.buckets if bucket >= length), None)

    def prepare(
        self,
        ids: Tensor,
        mask: Tensor,
        max_new_tokens: int,
        sampling: Sampling,
        ends: Sequence[int],
        pad: int,
    ) -> None:
        """Write what the prompt and the tokens after it need."""
        decoder = self.decoder
        decoder.cache.reset()  # a masked place counts nothing, but 0 times NaN would be NaN
        decoder.mask.fill_(1)
        decoder.mask[:, : ids.shape[1]] = mask
        decoder.last.fill_(ids.shape[1] - 1)
        decoder.left.fill_(max_new_tokens - 1)
        no_token = [-1] * (MOST_ENDS - len(ends))
        decoder.ends.copy_(torch.tensor([*ends, *no_token]))
        decoder.pad.fill_(pad)
        decoder.temperature.fill_(sampling.temperature)
        decoder.top_k.fill_(sampling.top_k)
        decoder.top_p.fill_(sampling.top_p)

    def prompt(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Run the prompt; returns the logits of its last token."""
        length, bucket = ids.shape[1], self.bucket(ids.shape[1])
        positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
        logits: Tensor
        if bucket is None:
            self.long_prompts += 1
            logits = self.decoder.prefill(self.model, ids, positions)
        else:
            more = (0, bucket - length)
            logits = self.prefill(F.pad(ids, more), F.pad(positions, more))
        return logits

    def first(self, ids: Tensor, mask: Tensor, sampling: Sampling) -> Tensor:
        """Make the first token of a text that has no end; returns the logits that decided."""
        self.prepare(ids, mask, 1, sampling, [], 0)
        logits = self.prompt(ids, mask)
        self.decoder.begin()
        self.decoder.write(logits, *sampling.way)
        return logits

    def try_step(self, sampling: Sampling) -> str | None:
        """Make the graph of a token; returns why there is none."""
        for place in (self.decoder.slot, self.decoder.position):
            place.zero_()  # a capture runs it several times: there is room for that
        with as_for_decoding(self.model):
            self.step(*sampling.way)
        return next(iter(self.step.stats().refused.values()), None)

    def try_loop(self, ids: Tensor, mask: Tensor, turns: int) -> None:
        """Make the graph of all tokens, unless the device cannot decide when they end.

        Args:
            ids: a prompt.
            mask: 0 at its padding, else 1.
            turns: for which the cache has room; at least 1.
        """
        device = current_device()
        why = device.no_conditionals(index_of(device, [ids]))
        if why:
            self.no_loop = f"whole=True: the device cannot decide when a text ends: {why}"
            return
        self.prepare(ids, mask, turns + 1, Sampling(False, 1.0, 0, 1.0), [], 0)
        logits = self.prompt(ids, mask)
        with as_for_decoding(self.model):
            self.tokens(logits)
        refused = next(iter(self.tokens.stats().refused.values()), None)
        self.no_loop = refused and f"whole=True: {refused}"

    def run(
        self,
        ids: Tensor,
        mask: Tensor,
        max_new_tokens: int,
        sampling: Sampling,
        ends: Sequence[int],
        pad: int,
        whole: bool,
    ) -> Tensor:
        """All new tokens.

        Args:
            ids: the prompt.
            mask: 0 at its padding, else 1.
            max_new_tokens: at most.
            sampling: how to choose them.
            ends: tokens that end a row.
            pad: the token after the end of a row.
            whole: from one replay, or from one for each token.
        """
        self.prepare(ids, mask, max_new_tokens, sampling, ends, pad)
        logits, decoder = self.prompt(ids, mask), self.decoder
        with as_for_decoding(self.model):
            if whole:
                self.tokens(logits)
            else:
                decoder.begin()
                decoder.write(logits, *sampling.way)
                for n in range(1, max_new_tokens):
                    if ends and n % self.check_every == 0 and not decoder.goes_on:
                        break
                    self.step(*sampling.way)
        length = int(decoder.length) if ends else max_new_tokens
        return decoder.written[:, :length].clone()


def as_for_decoding(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Set what ``generate`` sets on a model while it decodes: the way to compute experts."""
    switch = getattr(model, "_optimize_model_for_decode", contextlib.nullcontext)
    manager: contextlib.AbstractContextManager[Any] = switch()
    return manager
