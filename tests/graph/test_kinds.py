"""Words of many tensors say what torch's own guards say of them, which are asked of few."""

import array
import functools
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gfxgraph
from gfxgraph.graph import words
from gfxgraph.graph.tensor_check import python_tensor_check, tensor_check

guards = pytest.importorskip("torch._C._dynamo.guards")

pytestmark = pytest.mark.skipif(
    words.Kinds is None or words._layout() is None,
    reason="there is no compiled part, or this Python or this torch keeps its objects elsewhere",
)

FEW = 3  # the first of each set of dispatch keys (one is conjugated), and what autograd knows


def made():
    tensors = [torch.zeros(4, 4) for _ in range(7)]
    tensors += [torch.zeros(()), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(1, 2, 3, 4, 5)]
    weights = (nn.Parameter(torch.zeros(4, 4), requires_grad) for requires_grad in (True, False))
    return [*tensors, torch.zeros(4, dtype=torch.complex64).conj(), *weights]


def by_torch(tensors, asked=None):
    check = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    if asked is None:
        return check

    def counted(*given):
        asked.append(len(given))
        return check(*given)

    return counted


def compared():
    """The question under test, how many tensors torch was asked of, and torch's own answer."""
    tensors, asked = made(), []
    check = words.question_of_kinds(tensors, functools.partial(by_torch, asked=asked))
    assert check is not None
    return check, asked, by_torch(tensors)


class Sub(torch.Tensor):
    pass


def view_of_what_requires_grad():
    base = torch.zeros(5, 4)
    view = base[1:]
    base.requires_grad_(True)
    return view


def inference_tensor():
    with torch.inference_mode():
        return torch.zeros(4, 4)


CHANGES = {
    "dtype": lambda t: t.to(torch.int32),
    "complex": lambda t: t.to(torch.complex64),
    "device": lambda t: torch.empty(4, 4, device="meta"),
    "shape": lambda t: torch.zeros(4, 5),
    "shape of as many elements": lambda t: torch.zeros(2, 8),
    "resize_": lambda t: t.resize_(3, 4),
    "rank": lambda t: torch.zeros(16),
    "no dimension": lambda t: torch.zeros(()),
    "six dimensions": lambda t: torch.zeros(4, 4, 1, 1, 1, 1),
    "strides": lambda t: t.t(),
    "expanded": lambda t: torch.zeros(4).expand(4, 4),
    "requires_grad": lambda t: t.requires_grad_(True),
    "computed with grad": lambda t: t * torch.ones(4, 4, requires_grad=True),
    "in-place with grad": lambda t: t.mul_(torch.ones(4, 4, requires_grad=True)),
    "view of what requires grad": lambda t: view_of_what_requires_grad(),
    "negated": lambda t: torch._neg_view(t),
    "parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "subclass": lambda t: t.as_subclass(Sub),
    "sparse": lambda t: t.to_sparse(),
    "functional": lambda t: torch._to_functional_tensor(t),
    "inference": lambda t: inference_tensor(),
    "number": lambda t: 3,
    "nothing": lambda t: None,
    "class": lambda t: torch.Tensor,
    # Of another kind in memory, but not in what it says.
    "view": lambda t: torch.zeros(5, 4)[1:],
    "once required grad": lambda t: t.requires_grad_(True).requires_grad_(False),
    "detached": lambda t: torch.ones(4, 4, requires_grad=True).mul(2).detach(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("grad", [True, False])
def test_a_tensor_of_another_kind_is_noticed_where_torch_notices_it(change, at, grad):
    check, _, wanted = compared()
    found = made()
    found[at] = CHANGES[change](found[at])
    with torch.set_grad_enabled(grad):
        assert check(*found) is wanted(*found)
    same = ("view", "once required grad", "detached")
    assert wanted(*found) is (change in same)


def test_tensors_of_the_same_kinds_are_known_and_torch_is_asked_of_few():
    check, asked, _ = compared()
    found = made()
    found[0] = torch.cat([torch.ones(2, 4), torch.ones(2, 4)]).mul_(2)
    found[3] = torch.ones(4, 4).detach()
    counts = [sys.getrefcount(tensor) for tensor in found]
    for _ in range(10):
        assert check(*found) is True
    assert asked == [FEW] * 10
    assert counts == [sys.getrefcount(tensor) for tensor in found]


@pytest.mark.parametrize("fill", [0, 0x55, 0xFF])
def test_what_was_in_memory_before_a_tensor_makes_no_other_kind(fill):
    check, asked, _ = compared()
    for twin in words._twins(torch.zeros(4, 4), fill):
        found = made()
        found[1] = twin
        assert check(*found) is True
    assert set(asked) == {FEW}


def test_a_tensor_that_lived_on_without_its_object_in_python_is_known():
    check, asked, _ = compared()
    holder, found = nn.Linear(1, 1, bias=False), made()
    holder.weight.grad, number = found[2].resize_(1, 1), id(found[2])
    found[2] = None  # the tensor of C++ holds that of Python now
    found[2] = holder.weight.grad.resize_(4, 4)
    assert id(found[2]) == number
    assert check(*found) is True and asked == [FEW]


def test_flags_and_types_of_other_tensors_are_noticed_too():
    check, _, wanted = compared()
    for at, other in (
        (10, torch.zeros(4, dtype=torch.complex64)),
        (11, torch.zeros(4, 4, requires_grad=True)),
        (11, nn.Parameter(torch.zeros(4, 4), False)),
        (12, torch.zeros(4, 4)),
        (12, nn.Parameter(torch.zeros(4, 4))),
    ):
        found = made()
        found[at] = other
        assert check(*found) is wanted(*found) is False


def test_one_tensor_twice_is_noticed():
    check, _, wanted = compared()
    for first, second in ((0, 1), (0, 6), (5, 6)):
        found = made()
        found[second] = found[first]
        assert check(*found) is wanted(*found) is False


def test_another_number_of_tensors_raises_what_torch_raises():
    check, _, wanted = compared()
    for given in (made()[:-1], [*made(), torch.zeros(1)], []):
        raised = []
        for asked in (check, wanted):
            try:
                raised.append(asked(*given))
            except Exception as error:
                raised.append((type(error), str(error)))
        assert raised[0] == raised[1]


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MODES = {
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "dispatch mode": Mode,
    "no grad": torch.no_grad,
}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_noticed_where_torch_notices_it(mode):
    check, _, wanted = compared()
    found = made()
    with MODES[mode]():
        assert check(*found) is wanted(*found) is (mode == "no grad")
    assert check(*found) is True


def test_the_tensors_of_transforms_and_traces_are_noticed():
    check, _, wanted = compared()
    found, answers = made(), []

    def inside(x):
        for at in (0, 5):
            other = [*found]
            other[at] = x
            answers.append((check(*other), wanted(*other)))
        answers.append((check(*found), wanted(*found)))
        return x + 1

    torch.vmap(inside)(torch.zeros(2, 4, 4))
    torch.func.grad(lambda x: inside(x).sum())(torch.zeros(4, 4))
    torch.jit.trace(inside, torch.zeros(4, 4), check_trace=False)
    assert len(answers) == 9 and set(answers) == {(False, False)}


@pytest.mark.parametrize(
    "tensors",
    [
        made()[:3],
        [torch.zeros(4, requires_grad=True) for _ in range(8)],
        [torch.zeros(5)[1:] for _ in range(8)],
    ],
    ids=["few", "that require grad", "views"],
)
def test_torch_is_asked_of_all_where_that_is_quicker(tensors):
    asked = []
    check = words.question_of_kinds(tensors, functools.partial(by_torch, asked=asked))
    assert check(*tensors) is True and asked == [len(tensors)]


@pytest.mark.parametrize(
    "unknown",
    [torch.zeros(1, 1, 1, 1, 1, 1), torch.zeros(2).to_sparse()],
    ids=["six dimensions", "sparse"],
)
def test_torch_is_asked_also_of_a_tensor_whose_words_are_unknown(unknown):
    tensors, asked = [*made(), unknown], []
    check = words.question_of_kinds(tensors, functools.partial(by_torch, asked=asked))
    assert check(*tensors) is True and asked == [FEW + 1]
    assert check(*tensors[:-1], torch.zeros(1, 1, 1, 1, 1, 2)) is False


def test_of_a_subclass_all_is_asked_of_torch():
    tensors = [*made(), torch.zeros(2).as_subclass(Sub)]
    assert words.question_of_kinds(tensors, by_torch) is None
    assert tensor_check(tensors)(*tensors)


@pytest.mark.parametrize("missing", ["compiled part", "layout", "guards of torch"])
def test_the_answer_is_the_same_without_the_parts_that_make_it_quick(missing, monkeypatch):
    if missing == "compiled part":
        monkeypatch.setattr(words, "Kinds", None)
    elif missing == "layout":
        monkeypatch.setattr(words, "_layout", lambda: None)
    check = (python_tensor_check if missing == "guards of torch" else tensor_check)(made())
    assert check(*made())
    for change in ("dtype", "shape", "strides", "requires_grad", "negated", "subclass", "view"):
        found = made()
        found[3] = CHANGES[change](found[3])
        assert check(*found) is (change == "view")


def test_the_compiled_part_refuses_what_are_no_kinds():
    def words_of(*numbers):
        return array.array("Q", numbers).tobytes()

    one = words_of(id(torch.Tensor), 0, 1)
    for heads, parts in ((one, b""), (one, words_of(1)), (one[:-8], b""), (b"", words_of(1, 2, 0))):
        with pytest.raises(ValueError, match="parts"):
            words.Kinds(16, 168, 0, heads, parts, bool, bool)
    with pytest.raises(TypeError):
        words.Kinds(inner=16)
    assert words.Kinds(16, 168, 0, b"", b"", lambda: True, bool).check()


@torch.no_grad()
@pytest.mark.parametrize("change", ["dtype", "shape", "strides", "negated", "view"])
def test_a_call_with_another_kind_of_tensor_gives_what_eager_gives(change):
    device = gfxgraph.device_type()

    def fn(*tensors):
        return sum(n * tensor.sum() for n, tensor in enumerate(tensors))

    def given(with_change=None):
        tensors = [torch.full((4, 4), float(n)) for n in range(6)]
        if with_change is not None:
            tensors[4] = CHANGES[with_change](tensors[4]) + 1
        return [tensor.to(device) for tensor in tensors]

    graph = gfxgraph.graphed(fn)
    graph(*given()), graph(*given())
    before = graph.stats().replays
    assert graph(*given()) == fn(*given()) and graph.stats().replays == before + 1
    assert graph(*given(change)) == fn(*given(change))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("count", [1, 5, 9])
@pytest.mark.parametrize("missing", [None, "compiled part", "guards of torch"])
def test_a_nested_tensor_is_another_kind_and_the_process_goes_on(count, missing, monkeypatch):
    if missing == "compiled part":
        monkeypatch.setattr(words, "Kinds", None)
    check = python_tensor_check if missing == "guards of torch" else tensor_check
    tensors = [torch.zeros(4, 4) for _ in range(count)]
    nested, sparse = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), torch.eye(4)
    asked = check(tensors)
    for other in (nested, sparse.to_sparse()):
        assert asked(*tensors) is True
        assert asked(*tensors[:-1], other) is False
    assert check([*tensors, torch.zeros(1, 1, 1, 1, 1, 1)])(*tensors, nested) is False


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("count", [1, 5])
def test_a_call_with_a_nested_tensor_gives_what_eager_gives(count):
    graphed = gfxgraph.graphed(lambda *tensors: [tensor * 2 for tensor in tensors])
    tensors = [torch.ones(2, 3, device=gfxgraph.device_type()) for _ in range(count)]
    for _ in range(2):
        graphed(*tensors)
    nested = torch.nested.nested_tensor([tensors[0][0], tensors[0][1, :2]])
    for _ in range(2):
        *_, result = graphed(*tensors[:-1], nested)
        assert result.is_nested
        assert [part.tolist() for part in result.unbind()] == [[2] * 3, [2] * 2]
