"""What an editor knows of a graphed function: its arguments and its result."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import gfxgraph

SNIPPET = """
    import torch

    import gfxgraph

    x = torch.ones(2)

    @gfxgraph.graphed
    def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor

    @gfxgraph.graphed(warmup=2, buckets=[1, 4])
    def listed(x: torch.Tensor) -> list[torch.Tensor]:
        return [x]

    class Policy:
        @gfxgraph.graphed
        def act(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"x": x * mask}

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x

    reveal_type(scaled)
    reveal_type(scaled(x, factor=3.0))
    reveal_type(listed(x))
    reveal_type(Policy().act)
    reveal_type(Policy.act)
    reveal_type(Policy().act.stats())
    reveal_type(gfxgraph.graphed(Net())(x, mask=x))
    reveal_type(gfxgraph.compile(plain, mode="default")(x))
    scaled("x")
    Policy().act(1)
    gfxgraph.graphed(Net())(x)
    gfxgraph.graphed(plain, warmup="often")
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_editor_knows_the_arguments_and_the_result(tmp_path, monkeypatch):
    mypy = pytest.importorskip("mypy.api")
    path = tmp_path / "snippet.py"
    path.write_text(textwrap.dedent(SNIPPET), encoding="utf-8")
    monkeypatch.setenv("MYPYPATH", str(Path(gfxgraph.__file__).parents[1]))
    said, trouble, _ = mypy.run(
        ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", str(path)]
    )
    assert not trouble
    lines = [
        line.partition(" ")[2].strip() for line in said.replace("torch._tensor.", "").splitlines()
    ]
    revealed = [line.partition('"')[2].rstrip('"') for line in lines if "Revealed type" in line]
    assert revealed == [
        "gfxgraph.call.graphed.Graphed[[x: Tensor, factor: float =], Tensor]",
        "Tensor",
        "list[Tensor]",
        "gfxgraph.call.graphed._BoundGraphed[[x: Tensor], Tensor]",
        "gfxgraph.call.graphed.Graphed[[self: snippet.Policy, x: Tensor], Tensor]",
        "gfxgraph.call.stats.GraphedStats",
        "dict[str, Tensor]",
        "Tensor",
    ]
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    assert [error.rpartition("[")[2] for error in errors] == [
        "arg-type]",
        "arg-type]",
        "call-arg]",
        "call-overload]",
    ]
