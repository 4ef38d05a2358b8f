"""A decoder that stops when the text is at its end becomes a chain of graphs, a step each.

``generate`` is written as one writes it: fill the key-value cache with the prompt, then token after
token, and ``break`` once every row has met the end token. The ``if`` reads the device, and what it
reads depends on the prompt, so this cannot be one graph. gfxgraph ends a graph at the ``if``, lets
the host read what the code reads, and goes on with the graph of the next step or with that of the
end.

What is graphed is the whole of ``generate``, because that is where the stop condition is. A path
is the list of values read: False, False, ..., True. So there are only as many paths as there are
lengths that a text can have, at most ``max_new_tokens`` and one for a text that is cut off; a
function has up to 64. Paths share their steps, so a new length adds only its end. The first call
of each length runs eagerly and captures, which pays where lengths come again.

Run it with ``python examples/decoder.py``. The weights are random, from a fixed seed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from side_by_side import Findings, side_by_side
from torch import Tensor, nn

import gfxgraph

VOCABULARY = 48
END = 0
END_BIAS = 0.9


class Layer(nn.Module):
    """A transformer layer with a key-value cache of fixed size."""

    def __init__(self, width: int, heads: int, rows: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        cache = torch.zeros(2, rows, heads, length, width // heads)
        self.register_buffer("cache", cache, persistent=False)

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """The tokens ``x`` at ``position``; ``mask`` says which places of the cache each sees."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        self.cache[0].index_copy_(2, position, k)
        self.cache[1].index_copy_(2, position, v)
        y = F.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A language model without a language."""

    def __init__(
        self, width: int = 64, heads: int = 4, layers: int = 3, rows: int = 2, length: int = 40
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads, rows, length) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        """Logits of the token that follows the last of ``ids`` [row, token]."""
        places = torch.arange(self.place.num_embeddings, device=ids.device)
        mask = places <= position[:, None]
        x = self.token(ids) + self.place(position)
        for layer in self.layers:
            x = layer(x, position, mask)
        return self.head(self.norm(x[:, -1]))

    @torch.no_grad()
    def generate(
        self, prompt: Tensor, max_new_tokens: int = 16, temperature: float = 0.0
    ) -> Tensor:
        """The tokens that follow ``prompt`` [row, token], up to the end of the longest row.

        Args:
            prompt: token ids.
            max_new_tokens: where to stop at the latest.
            temperature: 0: take the most likely token; above, draw one.
        """
        position = torch.arange(prompt.shape[1], device=prompt.device)
        ended = torch.zeros(prompt.shape[0], dtype=torch.bool, device=prompt.device)
        ids, written = prompt, []
        for _ in range(max_new_tokens):
            logits = self(ids, position)
            if temperature > 0:
                likely = torch.softmax(logits / temperature, dim=-1)
                next_token = torch.multinomial(likely, 1)[:, 0]
            else:
                next_token = logits.argmax(dim=-1)
            next_token = torch.where(ended, END, next_token)
            written.append(next_token)
            ended |= next_token == END
            if ended.all():
                break
            ids, position = next_token[:, None], position[-1:] + 1
        return torch.stack(written, dim=1)


def make_decoder(device: str) -> Decoder:
    """The decoder with random weights, the same each time."""
    torch.manual_seed(8)
    decoder = Decoder().eval()
    decoder.head.bias.data[END] += END_BIAS  # or its texts would hardly ever come to an end
    return decoder.to(device)


def prompts(device: str, count: int = 12) -> list[Tensor]:
    """Prompts of two rows and six tokens."""
    random = torch.Generator().manual_seed(2)
    return [torch.randint(1, VOCABULARY, (2, 6), generator=random).to(device) for _ in range(count)]


def main() -> list[Findings]:
    """The most likely tokens, then tokens that are drawn; each twice, to replay what was new."""
    device = gfxgraph.device_type()
    decoder = make_decoder(device)
    found = []
    for temperature in (0.0, 0.7):
        print(f"Temperature {temperature:g}:")
        calls = [(prompt, 16, temperature) for prompt in prompts(device)]
        found.append(side_by_side(decoder.generate, calls, times=2))
        print(f"tokens in the texts: {[shape[1] for shape in found[-1].shapes]}")
    return found


if __name__ == "__main__":
    main()
