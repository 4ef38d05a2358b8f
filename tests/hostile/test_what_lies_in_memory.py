"""Changes that leave what a replay compares in memory nearly as it was.

Each case is a function and changes. The next words, objects and tensors come to lie where the last
ones lay: at the same address, with the same length, in the same class. After each change the graph
answers as eager execution does, whether the compiled part compares the words, or NumPy.
"""

import gc
import types

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.graph import words

CASES = {}
QUICK = "strides_of_a_weight", "a_list_of_one_length", "an_object_at_one_address", "a_cell"


@pytest.fixture(params=["compiled", pytest.param("numpy", marks=pytest.mark.long)])
def compared_by(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(words, "Words", None)
    elif words.Words is None:
        pytest.skip("there is no compiled part")


def case(fn):
    marks = () if fn.__name__ in QUICK else pytest.mark.long
    CASES[fn.__name__] = pytest.param(fn, marks=marks, id=fn.__name__)
    return fn


@case
def strides_of_a_weight():
    w = torch.arange(64.0)[:8]
    bits = w.view(torch.int32)
    return lambda x: x * w, [
        lambda: w.as_strided_((8,), (2,)),
        lambda: w.as_strided_((8,), (0,)),
        lambda: w.as_strided_((8,), (1,), 3),
        lambda: setattr(w, "data", bits),
        lambda: torch.utils.swap_tensors(w, torch.ones(8)),
    ]


@case
def a_storage():
    w = torch.arange(8.0)

    def freed():
        w.untyped_storage().resize_(0)
        others = [torch.full((8,), 77.0) for _ in range(50)]
        w.untyped_storage().resize_(32)
        w.copy_(others[0])

    def grown():
        w.untyped_storage().resize_(100_000)
        w.fill_(9)

    return lambda x: x * w, [freed, grown, freed]


@case
def a_list_of_one_length():
    held = [1.0, [2.0], (3.0,)]

    def grown(n):
        held.extend(float(i) for i in range(n))
        del held[1:-2]

    def f(x):
        return x * held[0] + len(held) + sum(v[0] if type(v) is not float else v for v in held)

    return f, [lambda: grown(1000), lambda: grown(3), lambda: held.__setitem__(1, (4.0,))]


@case
def an_object_at_one_address():
    class Item:
        def __init__(self, k):
            self.k = k

    holder, count = types.SimpleNamespace(item=Item(1.0)), [1.0]

    def again():
        count[0] += 1
        at = id(holder.item)
        del holder.item
        items = (Item(count[0]) for _ in range(100))
        holder.item = next((item for item in items if id(item) == at), None) or Item(count[0])

    return lambda x: x * holder.item.k, [again] * 3


@case
def a_class_at_one_address():
    item, count = type("Item", (), {"k": 1.0})(), [1.0]

    def again():
        count[0] += 1
        item.__class__ = type("Other", (), {})
        gc.collect()
        item.__class__ = type("Item", (), {"k": count[0]})

    return lambda x: x * item.k, [again] * 3


@case
def a_cell():
    k = 2.0

    def scaled(x):
        return x * k

    def f(x):
        try:
            return scaled(x)
        except NameError:
            return x * 100

    (cell,) = scaled.__closure__

    def emptied():
        del cell.cell_contents

    return f, [emptied, lambda: setattr(cell, "cell_contents", torch.ones(8))]


@case
def slots():
    class Item:
        __slots__ = ("k",)

    item = Item()
    item.k = 2.0
    return lambda x: x * getattr(item, "k", 10.0), [
        lambda: delattr(item, "k"),
        lambda: setattr(item, "k", 1.0),
        lambda: setattr(Item, "k", 4.0),
    ]


@case
def a_descriptor():
    class Number:
        def __get__(self, item, cls=None):
            return 2.0

    class Item:
        k = Number()

    item = Item()
    return lambda x: x * item.k, [
        lambda: vars(item).update(k=7.0),
        lambda: setattr(Number, "__set__", lambda self, item, value: None),
        lambda: setattr(Item, "__getattribute__", lambda self, name: 6.0),
    ]


@case
def one_of_many_modules():
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)]).requires_grad_(False)
    double = type("Double", (nn.Linear,), {"forward": lambda self, x: x * 2})
    return model, [
        lambda: torch.utils.swap_tensors(model[19].weight, nn.Parameter(torch.eye(8))),
        lambda: model[9].weight.set_(torch.eye(8).t()),
        lambda: setattr(model[4], "__class__", double),
        lambda: vars(model[3]).update(_parameters=dict(weight=torch.eye(8), bias=None)),
    ]


@pytest.mark.usefixtures("compared_by")
@pytest.mark.parametrize("case", CASES.values())
def test_a_change_is_noticed(case):
    fn, changes = case()
    graphed = gfxgraph.graphed(fn)
    with torch.no_grad():
        for change in (lambda: None, *changes):
            change()
            for call in range(3):
                x = torch.arange(8.0) + call
                assert torch.equal(graphed(x), fn(x))
    assert graphed.stats().replays
