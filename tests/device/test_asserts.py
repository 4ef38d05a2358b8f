"""Our runs never give a kernel values for which it would stop the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gfxgraph
from gfxgraph.device.asserts import OutOfRange, require_taken
from gfxgraph.errors import ArgumentError

ops = torch.ops.aten
X, ROWS = torch.arange(12.0).view(4, 3), torch.tensor([0, 3])

# An operator, arguments that it takes, arguments that it does not take, keyword arguments.
ASKED: dict[str, tuple[Any, ...]] = {
    "gather": (ops.gather.default, (X, 1, torch.tensor([[2]])), (X, 1, torch.tensor([[-1]]))),
    "scatter_": (
        ops.scatter_.src,
        (X, 0, torch.tensor([[3]]), X[:1, :1]),
        (X, 0, torch.tensor([[4]]), X[:1, :1]),
    ),
    "index_select": (ops.index_select.default, (X, 0, ROWS), (X, 1, ROWS)),
    "index_add": (ops.index_add.default, (X, 0, ROWS, X[:2]), (X, 0, ROWS + 1, X[:2])),
    "index_fill": (ops.index_fill.int_Scalar, (X, 0, -ROWS, 1), (X, 0, ROWS + 2, 1)),
    "index": (ops.index.Tensor, (X, [None, ROWS - 3]), (X, [None, ROWS])),
    "index by a mask": (ops.index.Tensor, (X, [X > 2, None]), (X, [X[:, 0] > 2, ROWS])),
    "index_put_": (
        ops.index_put_.default,
        (X, [ROWS], torch.tensor(1.0)),
        (X, [ROWS - 5], torch.tensor(1.0)),
    ),
    "take": (ops.take.default, (X, ROWS - 12), (X, ROWS + 9)),
    "put_": (ops.put_.default, (X, ROWS, X[0, :2]), (X, ROWS - 13, X[0, :2])),
    "embedding": (ops.embedding.default, (X, ROWS), (X, -ROWS)),
    "embedding_bag": (
        ops._embedding_bag.default,
        (X, ROWS, torch.tensor([0, 1])),
        (X, ROWS, torch.tensor([1, 0])),
    ),
    "nll_loss": (
        ops.nll_loss_forward.default,
        (X, torch.tensor([0, 2, -100, 1]), None, 0, -100),
        (X, torch.tensor([0, 3, -100, 1]), None, 0, -100),
    ),
    "binary_cross_entropy": (
        ops.binary_cross_entropy.default,
        (X / 11, X / 11),
        (X / 10, X / 11),
    ),
    "multinomial": (ops.multinomial.default, (X, 1), (X * 0, 1)),
    "multinomial of NaN": (ops.multinomial.default, (X, 1), (X * float("nan"), 1)),
    "bernoulli": (ops.bernoulli.Tensor, (X, X / 11), (X, X)),
    "_assert_async": (ops._assert_async.default, (X[3, 0],), (X[0, 0],)),
    "masked_scatter": (ops.masked_scatter.default, (X, X > 2, X), (X, X > 2, X[:2])),
    "max_unpool2d": (
        ops.max_unpool2d.default,
        (X[None, :2, :2], torch.tensor([[[0, 1], [2, 8]]]), [3, 3]),
        (X[None, :2, :2], torch.tensor([[[0, 1], [2, 9]]]), [3, 3]),
    ),
    "repeat_interleave": (ops.repeat_interleave.Tensor, (ROWS,), (-ROWS,)),
    "repeat_interleave to a size": (
        ops.repeat_interleave.Tensor,
        (ROWS,),
        (ROWS + 1,),
        {"output_size": 3},
    ),
    "lu_unpack": (ops.lu_unpack.default, (X, ROWS + 1), (X, ROWS)),
    "segment_reduce": (
        ops.segment_reduce.default,
        (X, "sum"),
        (X[:2], "sum"),
        {"lengths": ROWS},
    ),
    "a loss of one row": (
        ops.multi_margin_loss.default,
        (X[0], torch.tensor(2)),
        (X[0], torch.tensor(3)),
    ),
    "offsets of attention": (
        ops._flash_attention_forward.default,
        (X[..., None], X[..., None], X[..., None], ROWS, ROWS),
        (X[..., None], X[..., None], X[..., None], ROWS, ROWS.flip(0)),
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_value_out_of_range_is_an_error_before_the_kernel_runs(name):
    op, taken, refused, *kwargs = ASKED[name]
    named = kwargs[0] if kwargs else {}
    require_taken(op, taken, named)
    with pytest.raises(OutOfRange, match=r"takes those from"):
        require_taken(op, refused, named)


def test_an_operator_of_which_nothing_is_known_is_let_through():
    require_taken(ops.add.Tensor, (X, X), {})
    require_taken(torch.cond, (), {})


table = torch.arange(1000.0)


@torch.library.custom_op("gfxgraph_asserts::looked_up", mutates_args=())
def looked_up(scores: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    return scores[(times * 999).long()].clone()


@looked_up.register_fake
def _(scores: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    return scores.new_empty(times.shape)


def share(n: int, device: str) -> torch.Tensor:
    return torch.linspace(0, 1, n, device=device)


# Of each: the function of a table of 1,000 numbers and of shares from 0 to 1.
BY_VALUE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a schedule, by the time": lambda scores, t: scores[(t * 999).long()],
    "gather": lambda scores, t: scores.gather(0, (t * 999).long()),
    "index_select": lambda scores, t: scores.index_select(0, (t * 999).long()),
    "embedding": lambda scores, t: F.embedding((t * 999).long(), scores[:, None]),
    "take": lambda scores, t: scores.take((t * 999).long()),
    "an operator in Python": lambda scores, t: looked_up(scores, t),
    "a loss of shares": lambda scores, t: F.binary_cross_entropy(t, 1 - t, reduction="none"),
    "a loss of classes": lambda scores, t: F.nll_loss(
        scores.expand(len(t), 1000), (t * 999).long(), reduction="none"
    ),
    "added at a place": lambda scores, t: torch.zeros(len(t), 4, device=t.device).scatter_add(
        1, (t * 3).long()[:, None], t[:, None]
    ),
    "one before a place": lambda scores, t: scores.gather(0, (t * 999 + 1).long() - 1),
    "an assertion": lambda scores, t: (torch._assert_async((t >= 0).all()), t * 2)[1],
}


@pytest.mark.parametrize("form", ["buckets", "a pool", "exact"])
@pytest.mark.parametrize("name", BY_VALUE)
@torch.no_grad()
def test_a_function_that_looks_up_what_it_is_given_leaves_the_device_well(device, name, form):
    fn, scores = BY_VALUE[name], table.to(device)

    def of_times(t: torch.Tensor) -> torch.Tensor:
        return fn(scores, t)

    if form == "exact":
        fast = gfxgraph.graphed(of_times)
    elif form == "buckets":
        fast = gfxgraph.graphed(of_times, buckets={"rows": [4, 8]}, dims={"t": {0: "rows"}})
    else:
        fast = gfxgraph.ShapeBucketPool(of_times, [4, 8])
    for n in (3, 3, 3, 7, 5, 8, 1):
        times = share(n, device)
        assert torch.equal(fast(times), of_times(times))
    assert float((scores + 1).sum()) == 500500.0  # the device goes on


@pytest.mark.long
@pytest.mark.parametrize("name", BY_VALUE)
def test_verify_leaves_the_device_well(device, name):
    fn, scores = BY_VALUE[name], table.to(device)
    for times in (share(5, device), torch.ones(1, device=device)):
        try:
            assert gfxgraph.verify(lambda t: fn(scores, t), times).verdict == "equal"
        except ArgumentError as error:  # a time above 1
            assert "takes those from" in str(error) and len(times) == 1
    assert float((scores + 1).sum()) == 500500.0
