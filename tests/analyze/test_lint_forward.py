"""``gfxgraph lint`` finds where an answer waits for the device, and leaves other code alone."""

from __future__ import annotations

import re

import pytest

from gfxgraph.analyze.lint import lint

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
import numpy as np

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("table", torch.zeros(4))
        self.cache = None

    def helper(self, y):
        return y.argmax().item()  # sync

"""

# Each line is found by the rule <comment>-in-forward, and the others by none.
FOUND = """\
    def forward(self, x, ids=None):
        y = self.lin(x)
        if y.any(): y = y + 1  # branch
        n = int(y.sum())  # sync
        i = y.nonzero()  # data-shape
        z = y[y > 0]  # data-shape
        u = torch.unique(y)  # data-shape
        v = torch.inverse(y)  # hidden-sync
        t = torch.tensor([1.0, 2.0], device=y.device)  # host-data
        w = y[[0, 2]]  # host-data
        e = torch.arange(4).to(ids.device)  # host-data
        h = torch.from_numpy(np.ones(3)).to(y)  # host-data
        while y.abs().max() > 1: y = y / 2  # branch
        for k in range(int(y.max().item())):  # sync
            y = y + k
        m = y.bool()
        y[m] = z  # data-shape
        y[m] = 0.0
        s = F.softmax(y, -1).tolist()  # sync
        r = torch.repeat_interleave(y, m.long())  # data-shape
        r = torch.repeat_interleave(y, m.long(), output_size=8)
        c = y if y.sum() > 0 else -y  # branch
        assert torch.isfinite(y).all()  # branch
        print(y)  # sync
        if torch.allclose(y, z): pass  # sync
        a = bool((y == 1).all())  # sync
        o = y.to("cpu")  # sync
        o = y.to("cpu", non_blocking=True)
        f = self.table.item()  # sync
        l = torch.linalg.svd(y)  # hidden-sync
        b = y[:y.max()]  # sync
        torch.cuda.current_stream().synchronize()  # sync
        p = y.masked_select(m)  # data-shape
        q = y.new_tensor([1, 2])  # host-data
        j = y[torch.arange(3)]  # host-data
        if not (y > 0).all() and n: return self.helper(y)  # branch
        return torch.where(y)  # data-shape

def predict(model, ids):
    with torch.no_grad():
        return model(ids.cuda()).argmax(-1).cpu()  # sync

def generate(model, ids: torch.Tensor):
    while True:
        token = model(ids).argmax(-1)
        ids = torch.cat([ids, token[:, None]], -1)
        if (ids[:, -1] == 2).all():  # branch
            return ids

class Agent:
    def __init__(self, net): self.net = net

    def __call__(self, obs: torch.Tensor):
        act = self.net(obs)
        if act.isnan().any():  # branch
            raise ValueError(act.max().item())
        return act.cpu()  # sync

    def predict(self, obs):
        return self.net(torch.as_tensor(obs, device="cuda")).cpu().numpy()  # sync
"""

QUIET = """\
    def forward(self, x: torch.Tensor, labels=None, mask=None, sizes: list[int] | None = None):
        y = self.lin(x)
        if self.training: print(y.mean().item())
        if labels is not None: correct = (y.argmax(-1) == labels).sum().item()
        if x.device.type == "mps" and y.isnan().any(): y = y.nan_to_num()
        if x.device.type == "cpu" or not x.is_cuda: y = y.cpu()
        if torch.jit.is_tracing(): n = int(y.shape[0]) + y.max().item()
        if y.shape[0] > 2 and x.dim() == 3 and y.numel() and x.is_contiguous(): y = y + 1
        if mask is not None: y = y.masked_fill(mask, 0.0)
        if y.isnan().any() if self.training else False: y = y + 1
        if self.cache is None: self.cache = torch.arange(8).to(x.device)
        loss_dict = {}
        loss_dict["l2_loss"] = y.mean().item()
        host = torch.zeros(3)
        if host.any() and int(host.sum()): host = host.numpy()
        like = torch.zeros_like(y) + torch.empty(4, device=x.device)
        new = y.new_zeros(3) + torch.full((3,), 0.5, device=x.device)
        lengths = sizes or [3, 4]
        if lengths[0] > 2: y = y[: lengths[0], 1:]
        if y.max() > 3:  # gfxgraph: ignore
            y = y + 1
        if not isinstance(x, torch.Tensor): x = torch.tensor(x, device="cuda")
        if y.shape != x.shape: raise ValueError(f"{y.sum().item()}")
        empty = torch.tensor([], device=x.device)
        if torch.cuda.is_current_stream_capturing(): pass
        elif y.isnan().any(): pass
        return torch.where(y > 0, y, like) + y[..., None].sum(-1)

class Loss(nn.Module):
    def forward(self, pred, target):
        if pred.isnan().any(): return pred.sum().item()

class Policy(nn.Module):
    def forward(self, batch):
        loss = self.model(batch)
        return loss, {"loss": loss.item(), "n": batch["x"].max().item()}

    def select_action(self, batch):
        return self.queue.popleft()

class OnnxBackend(Base):
    def forward(self, im: torch.Tensor):
        return self.session.run(None, {"x": im.cpu().numpy()})

class Tokenizer:
    def decode(self, ids: torch.Tensor) -> str:
        return self.text(ids.tolist())

def preprocess(image: torch.Tensor):
    return image / 255 if image.max() > 1 else image

class Trainer:
    def predict(self, loader):
        return [self.step(batch).item() for batch in loader]
"""


def found_in(tmp_path, text):
    (tmp_path / "one.py").write_text(HEAD + text)
    return {(one.line, one.rule.removesuffix("-in-forward")) for one in lint([tmp_path])}


def test_each_way_to_wait_is_found(tmp_path):
    lines = (HEAD + FOUND).splitlines()
    wanted = {
        (number, match[1])
        for number, line in enumerate(lines, 1)
        if (match := re.search(r"  # ([a-z-]+)$", line))
    }
    assert found_in(tmp_path, FOUND) == wanted and len(wanted) > 35


def test_training_other_devices_host_data_and_shapes_are_left_alone(tmp_path):
    assert found_in(tmp_path, QUIET) == set()


@pytest.mark.parametrize(
    ("source", "severity"),
    [
        ("class N(nn.Module):\n    def forward(self, x: torch.Tensor):\n        {}", "warning"),
        ("import gfxgraph\n@gfxgraph.graphed\ndef step(x: torch.Tensor):\n        {}", "warning"),
    ],
)
def test_what_cuts_a_graph_is_a_warning(tmp_path, source, severity):
    code = source.format("return float((x * 2).sum())")
    (tmp_path / "one.py").write_text(f"import torch\nfrom torch import nn\n\n{code}\n")
    found = [(one.rule, one.severity) for one in lint([tmp_path])]
    assert found == [("sync-in-forward", severity)]


def test_a_block_that_is_captured_knows_its_tensors(tmp_path):
    (tmp_path / "one.py").write_text(
        "import torch\n\ndef c(x, g, net):\n    net(x)\n    with torch.cuda.graph(g):\n"
        "        y = torch.zeros(3, device='cuda')\n        if y.any():\n            net(x)\n"
        "        x.item()\n        torch.cuda.synchronize()\n    g.replay()\n"
    )
    assert [(one.line, one.severity) for one in lint([tmp_path])] == [
        (7, "error"),
        (9, "warning"),
        (10, "error"),
    ]


@pytest.mark.parametrize("size", [1_500])
def test_what_is_nested_deep_ends(tmp_path, size):
    chain = ".relu()" * size
    (tmp_path / "one.py").write_text(
        f"import torch\n\ndef predict(x: torch.Tensor):\n    y = x{chain}\n    return y.item()\n"
    )
    assert {one.rule for one in lint([tmp_path])} <= {"sync-in-forward", "unreadable"}
