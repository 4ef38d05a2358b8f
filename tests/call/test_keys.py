"""Two calls share a graph only where the function cannot tell them apart."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import linecache
import math
import types
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

import gfxgraph
from gfxgraph.call.key import Call
from gfxgraph.call.replay import builder, matcher
from gfxgraph.call.signature import flatten
from gfxgraph.graph.tensor_check import python_tensor_check, tensor_check
from gfxgraph.record.effects import UndoLog
from gfxgraph.record.recorder import Recorder
from tests.helpers.sampled import sampled

ROUNDS = 3


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return fn(*args)
    except (RuntimeError, AttributeError) as error:
        return type(error)


def described(tree: Any) -> Any:
    """All that a caller can see of a result, but for addresses."""
    leaves, spec = _pytree.tree_flatten(tree)
    return spec, [
        (x.cpu().resolve_conj().tolist(), x.dtype, x.shape, x.stride(), x.is_conj())
        if isinstance(x, torch.Tensor)
        else (type(x), repr(x))
        for x in leaves
    ]


def as_in_eager(fn: Callable[..., Any], *calls: Callable[[], tuple[Any, ...]]) -> Any:
    """Make each call several times, in turn; the graphed function, which gave what ``fn`` gives."""
    graph = gfxgraph.graphed(fn)
    with torch.no_grad():
        for _ in range(ROUNDS):
            for call in calls:
                assert described(outcome(graph, call())) == described(outcome(fn, call()))
    return graph


def with_values(device: str, *values: Any) -> list[Callable[[], tuple[Any, ...]]]:
    x = torch.arange(12.0, device=device).reshape(3, 4)
    return [lambda v=v: (x.clone(), v) for v in values]


# ---- values


class Number(enum.IntEnum):
    ONE = 1


class Letter(str, enum.Enum):
    A = "a"


class Liar:
    """Says that it equals everything."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


ALIKE = {
    "ones": (1, True, 1.0, Number.ONE, np.int64(1), np.float64(1), np.float32(1), 1 + 0j),
    "zeros": (0.0, -0.0, 0, False, np.float64(-0.0), np.float32(-0.0), np.float32(0.0)),
    "not a number": (math.nan, -math.nan, math.inf, np.float32("nan")),
    "complex zeros": (0j, -0j, complex(0, -0.0), complex(1, -0.0), complex(1, 0.0)),
    "strings": ("a", Letter.A, b"a"),
    "slices": (slice(1), slice(True), slice(1.0), slice(0.0), slice(-0.0), slice(Number.ONE)),
    "ranges": (range(0), range(2, 2), range(0, 4, 2), range(0, 3, 2)),
    "sizes": (torch.Size([1, 2]), (1, 2), [1, 2]),
}


@pytest.mark.parametrize("name", ALIKE)
def test_values_that_are_equal_and_no_twins_have_graphs_of_their_own(device, name):
    def show(x, value):
        end = value.stop if isinstance(value, (slice, range)) else None
        return x * 1, type(value).__name__, repr(value), repr(end)

    graph = as_in_eager(show, *with_values(device, *ALIKE[name]))
    stats = graph.stats()
    assert stats.captures == len(ALIKE[name]) and not stats.fallbacks
    assert stats.replays == len(ALIKE[name]) * (ROUNDS - 1)


@pytest.mark.parametrize("cls", sampled([list, tuple], 2))
@pytest.mark.parametrize("name", ["ones", "zeros", "not a number", "strings"])
def test_so_do_long_lists_that_hold_them(device, name, cls):
    def show(x, values):
        return x * len(values), [(type(value).__name__, repr(value)) for value in values]

    long = [cls([*range(40), value, 2.5, None, "z"]) for value in ALIKE[name]]
    shorter, longer = cls(range(40)), cls([*range(40), ALIKE[name][0]])
    graph = as_in_eager(show, *with_values(device, *long, shorter, longer))
    stats = graph.stats()
    assert stats.captures == len(ALIKE[name]) + 2 and stats.replays


def test_a_long_list_in_a_result_is_the_callers_own(device):
    def numbered(x, values):
        return x * 2, [*values, 1], (*values, 1)

    graph, values = gfxgraph.graphed(numbered), list(range(100))
    with torch.no_grad():
        for _ in range(3):
            _, found, fixed = graph(torch.ones(3, device=device), values)
            assert found == [*values, 1] and fixed == (*values, 1)
            found.clear()
    assert graph.stats().replays == 2


def test_a_tensor_in_a_slice_is_an_argument_like_any_other(device):
    x = torch.arange(4.0, device=device)
    as_in_eager(lambda s: x[s], *(lambda n=n: ((slice(torch.tensor(n), None)),) for n in (0, 1, 2)))


def with_attribute(made: Any, value: Any) -> Any:
    if value is not None:
        made.factor = value
    return made


class Int(int):
    pass


class Text(str):
    pass


@pytest.mark.parametrize("cls", [Int, Text])
def test_a_value_that_may_hold_more_than_itself_runs_eagerly(device, cls):
    values = [with_attribute(cls(1), factor) for factor in (2, 3)]
    graph = as_in_eager(lambda x, v: x * v.factor, *with_values(device, *values))
    assert graph.stats().captures == 0 and "more than its value" in str(graph.stats().fallbacks)


def test_objects_are_told_apart_by_identity(device):
    as_in_eager(lambda x, o: x * o.factor, *with_values(device, Liar(2), Liar(3)))


# ---- containers


@pytest.mark.parametrize("keys", [(1, True, Number.ONE), ("a", Letter.A), (0, False)])
def test_equal_keys_of_a_dict_are_different_keys_of_a_graph(device, keys):
    def f(x, d):
        return [(type(key).__name__, value * 2) for key, value in d.items()]

    graph = as_in_eager(
        f, *with_values(device, *({key: torch.ones(2, device=device)} for key in keys))
    )
    assert graph.stats().captures == len(keys)


def test_the_order_of_a_dict_is_part_of_the_key(device):
    one, two = torch.ones(2, device=device), torch.zeros(2, device=device)
    orders = ({"a": one, "b": two}, {"b": two, "a": one})
    as_in_eager(lambda x, d: next(iter(d.values())) + 1, *with_values(device, *orders))


class Pair(NamedTuple):
    x: torch.Tensor


class PairWithMore(Pair):
    pass


class Data(collections.UserDict):
    pass


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    limit: ClassVar[int] = 4
    scale: int = 1
    late: int = dataclasses.field(init=False, default=3)

    def __eq__(self, other: object) -> bool:
        return True


KINDS_WITH_ATTRIBUTES: dict[str, Callable[[torch.Tensor], Any]] = {
    "namedtuple": PairWithMore,
    "ordered dict": lambda x: collections.OrderedDict(x=x),
    "user dict": lambda x: Data(x=x),
    "dataclass": Batch,
    "namespace": lambda x: types.SimpleNamespace(x=x),
    "tensor": lambda x: x,
}


@pytest.mark.parametrize("kind", KINDS_WITH_ATTRIBUTES)
def test_attributes_beside_what_a_container_holds_are_seen(device, kind):
    make = KINDS_WITH_ATTRIBUTES[kind]

    def f(item):
        x = item["x"] if isinstance(item, (dict, Data)) else getattr(item, "x", item)
        return x * getattr(item, "factor", 1)

    def call(factor):
        return lambda: (with_attribute(make(torch.ones(3, device=device)), factor),)

    as_in_eager(f, *map(call, (2, 3) if kind == "tensor" else (None, 2, 3)))


def test_dataclasses_are_told_apart_by_their_fields_whatever_they_say(device):
    x = torch.ones(3, device=device)
    calls = [lambda s=s: (Batch(x.clone(), s),) for s in (1, True, 2, 1.0)]
    graph = as_in_eager(lambda b: (b.x * b.scale * b.late, type(b.scale).__name__), *calls)
    assert graph.stats().captures == 4 and not graph.stats().fallbacks


def test_what_a_user_dict_holds_beside_its_items_is_missed_and_not_made_up(device):
    calls = [
        lambda v=v: (with_attribute(Data(x=torch.ones(2, device=device)), [v]),) for v in (2, 3)
    ]
    graph = as_in_eager(lambda d: d["x"] * d.factor[0], *calls)
    assert graph.stats().captures == 0 and "factor" in str(graph.stats().fallbacks)


def test_what_a_tokenizer_leaves_in_its_result_is_in_nobodys_way(device):
    calls = [
        lambda: (with_attribute(Data(x=torch.ones(2, device=device)), object()),) for _ in range(12)
    ]
    graph = as_in_eager(lambda d: d["x"] * 2, *calls)
    assert graph.stats().captures == 1 and graph.stats().replays == 35


class Registered:
    def __init__(self, x: torch.Tensor, context: Any) -> None:
        self.x, self.context = x, context


_pytree.register_pytree_node(
    Registered, lambda r: ([r.x], [r.context]), lambda xs, context: Registered(xs[0], context[0])
)


def test_contexts_of_registered_classes_are_compared_by_us(device):
    x = torch.ones(3, device=device)
    contexts = (1, True, 1.0, "a", (1,), (True,), None)
    calls = [lambda c=c: (Registered(x.clone(), c),) for c in contexts]
    graph = as_in_eager(lambda r: (r.x * 2, repr(r.context)), *calls)
    assert graph.stats().captures == len(contexts)
    liars = Liar(2), Liar(3)
    as_in_eager(lambda r: r.x * r.context.factor, *(lambda v=v: (Registered(x, v),) for v in liars))


# ---- how tensors lie in memory


def layouts(device: str) -> dict[str, torch.Tensor]:
    base = torch.arange(48.0, device=device).reshape(6, 8)
    return {
        "contiguous": base[:3, :4].clone(),
        "rows": base[:3, :4],
        "rows elsewhere": base[3:, 4:],
        "offset": base.view(-1)[5:17].view(3, 4),
        "transposed": base[:4, :3].clone().t(),
        "transposed rows": base[:4, :3].t(),
        "expanded": base[:3, :1].expand(3, 4),
        "expanded rows": base[:1, :4].expand(3, 4),
        "steps": base[::2, ::2],
        "windows": base.view(-1)[:6].unfold(0, 4, 1),
        "wider": torch.arange(60.0, device=device).reshape(6, 10)[:3, :4],
    }


ASKS = {
    "stride()": lambda x: x * x.stride(0),
    "stride() as a result": lambda x: (x * 1, x.stride()),
    "is_contiguous()": lambda x: x * 2 if x.is_contiguous() else x * 3,
    "is_contiguous() of a view": lambda x: x[1:] * 2 if x[1:].is_contiguous() else x[1:] * 3,
    "contiguous() is": lambda x: x * 2 if x.contiguous() is x else x * 5,
    "storage_offset()": lambda x: x * (1 + x.storage_offset()),
    "as_strided()": lambda x: x.as_strided((2, 2), (1, 1)) * 1,
    "as_strided() from the start": lambda x: x.as_strided((2, 2), (1, 1), 0) * 1,
    "view()": lambda x: x.view(-1) * 2,
    "view_as()": lambda x: x.view_as(x.new_zeros(12)) * 2,
    "the storage": lambda x: x * x.untyped_storage().nbytes(),
    "_base": lambda x: x * (1 if x._base is None else 2),
    "the argument": lambda x: x,
    "a view of it": lambda x: x[1:],
    "a copy": lambda x: (x.clone(), torch.empty_like(x).fill_(1), x + x.new_zeros(3, 4)),
    "reshape()": lambda x: x.reshape(-1) * 2,
    "matmul": lambda x: x @ x.new_ones(4, 2),
    "a slice of a result": lambda x: (x * 2)[:, :2],
    "an expanded result": lambda x: (x * 2)[:, None, :2].expand(3, 5, 2),
    "windows of a result": lambda x: (x * 2).reshape(-1).unfold(0, 4, 1),
    "a transposed result": lambda x: (x * 2).t(),
}


@pytest.mark.parametrize("name", sampled(ASKS, 3, of_long=5))
@pytest.mark.parametrize("first", ["contiguous", "rows", "expanded"])
def test_a_function_that_can_tell_layouts_apart_sees_that_of_its_argument(device, name, first):
    order = sorted(layouts(device), key=lambda layout: layout != first)
    graph = as_in_eager(ASKS[name], *(lambda n=n: (layouts(device)[n],) for n in order))
    assert graph.stats().replays or "argument" in str(graph.stats().fallbacks)


def test_one_graph_serves_slices_at_any_offset_of_buffers_of_any_width(device):
    graph = gfxgraph.graphed(lambda x: x.reshape(-1) * 2)
    for width in range(5, 9):
        base = torch.randn(6, width, device=device)
        for row in range(3):
            part = base[row : row + 3, 1:5]
            torch.testing.assert_close(graph(part), part.reshape(-1) * 2)
    assert graph.stats().captures == 1 and graph.stats().replays == 11


def test_a_loop_over_a_buffer_is_one_graph_where_strides_are_asked(device):
    graph = gfxgraph.graphed(lambda x: x * x.stride(0))
    base = torch.randn(32, 8, device=device)
    for start in range(8):
        part = base[start : start + 4, :3]
        torch.testing.assert_close(graph(part), part * 8)
    assert graph.stats().captures == 1 and graph.stats().replays == 7


@pytest.mark.parametrize("name", ["contiguous", "rows", "transposed rows", "steps"])
def test_a_write_to_a_part_of_a_buffer_reaches_that_part_alone(device, name):
    def accumulate(x):
        x += 1
        return x * 2

    graph = gfxgraph.graphed(accumulate)
    for n in range(4):
        ours, theirs = layouts(device)[name] + n, layouts(device)[name] + n
        part, other = layouts(device)[name], layouts(device)[name]
        buffer = part if part._base is None else part._base
        expected = other if other._base is None else other._base
        part.copy_(ours)
        other.copy_(theirs)
        assert described(graph(part)) == described(accumulate(other))
        assert torch.equal(buffer, expected)
    assert graph.stats().captures == 1 and graph.stats().replays == 3


def test_a_write_to_a_copy_of_a_slice_is_none_to_the_slice(device):
    def f(x):
        return x.flatten().add_(1)

    graph = gfxgraph.graphed(f)
    for name in ("rows", "contiguous", "rows", "contiguous"):
        ours, theirs = layouts(device)[name], layouts(device)[name]
        assert torch.equal(graph(ours), f(theirs)) and torch.equal(ours, theirs)


def test_writes_to_expanded_arguments_are_left_to_eager(device):
    def f(x):
        x[0].add_(1)
        return x * 2

    call = lambda: (torch.zeros(1, 4, device=device).expand(3, 4),)  # noqa: E731
    assert "share memory" in str(as_in_eager(f, call).stats().fallbacks)


def test_a_slice_of_a_huge_buffer_takes_no_huge_static_input(device):
    base = torch.zeros(3, 1 << 26, dtype=torch.int8, device=device)
    graph = as_in_eager(lambda x: x * x.stride(0), lambda: (base.expand(3, 1 << 26)[:, :2],))
    assert graph.stats().captures == 1  # 128 MiB
    wide = torch.zeros(3, 1 << 28, dtype=torch.int8, device=device)
    graph = as_in_eager(lambda x: x * x.stride(0), lambda: (wide[:, :2],))
    assert "contiguous()" in str(graph.stats().fallbacks)


# ---- tensors


def test_the_same_tensor_twice_is_one_object_to_the_function(device):
    x = torch.ones(3, device=device)
    calls = [(x, x), (x, x.clone()), (x, x.view_as(x))]
    graph = as_in_eager(lambda a, b: a * 2 if a is b else a * 3, *(lambda c=c: c for c in calls))
    assert graph.stats().captures == 2 and graph.stats().replays == 7
    triples = [(x, x + 1, x), (x, x, x + 1), (x, x + 1, x + 2), (x, x, x)]
    as_in_eager(lambda a, b, c: a * 2 if a is c else b * 3, *(lambda t=t: t for t in triples))


def test_the_python_check_of_tensors_asks_what_that_of_torch_asks():
    x, y = torch.ones(3), torch.ones(3)
    z = torch.ones(3, dtype=torch.cfloat)
    for check in (tensor_check([x, y]), python_tensor_check([x, y])):
        assert check(x, y) and not check(x, x) and not check(x, torch.ones(6)[::2])
    for check in (tensor_check([z]), python_tensor_check([z])):
        assert check(z) and not check(z.conj())
        assert not torch.vmap(lambda v, check=check: v * check(z))(x).any()


@pytest.mark.parametrize("view", ["conj", "imag"])
def test_lazy_conjugates_and_negatives_stay_lazy(device, view):
    z = torch.randn(3, dtype=torch.complex64, device=device)
    calls = [(z,), (z.conj(),)] if view == "conj" else [(z.imag,), (z.conj().imag,)]
    graph = as_in_eager(
        lambda x: (x * 1, x.is_conj(), x.is_neg(), x.conj(), x.resolve_conj()),
        *(lambda c=c: c for c in calls),
    )
    assert graph.stats().captures == 2 and not graph.stats().fallbacks


@pytest.mark.parametrize("grad", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_an_argument_that_requires_grad_says_so(device, grad):
    def f(x):
        return x.detach() * (2 if x.requires_grad else 3)

    graph = gfxgraph.graphed(f)
    x = torch.ones(3, device=device)
    with grad():
        for argument in (x, x.clone().requires_grad_(), x, x.clone().requires_grad_()) * 2:
            assert torch.equal(graph(argument), f(argument))
    assert graph.stats().captures == 2 and not graph.stats().fallbacks


# ---- what is around


class Scale(TorchFunctionMode):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.Tensor.mul else result


def test_function_modes_see_every_call(device):
    graph = gfxgraph.graphed(lambda x: x * 2)
    x = torch.ones(3, device=device)
    for _ in range(ROUNDS):
        assert graph(x).tolist() == [2, 2, 2]
        for factor in (2, 3):
            with Scale(factor):
                assert graph(x).tolist() == [2 * factor] * 3
    assert graph.stats().fallbacks == {
        "called under a TorchFunctionMode, which a replay would pass by": 2 * ROUNDS
    }
    assert graph.stats().replays == ROUNDS - 1


def test_default_devices_are_told_apart_by_what_they_are(device):
    graph = gfxgraph.graphed(lambda x: x * torch.ones(3, 1, device=x.device))
    x = torch.ones(3, 3, device=device)
    for _ in range(ROUNDS):
        with torch.device(device):
            graph(x)
        graph(x)
    assert graph.stats().captures == 2 and graph.stats().replays == 2 * (ROUNDS - 1)


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("part", ["encoder", "layer", "attention"])
def test_transformers_take_the_way_that_they_take_in_eager(device, part, grad):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2).to(device).eval()
    attention = nn.MultiheadAttention(16, 2, batch_first=True).to(device).eval()
    functions = {
        "encoder": lambda x, mask: encoder(x, src_key_padding_mask=mask),
        "layer": lambda x, mask: encoder.layers[0](x, src_key_padding_mask=mask),
        "attention": lambda x, mask: attention(x, x, x, key_padding_mask=mask)[0],
    }
    x = torch.randn(3, 5, 16, device=device)
    none = torch.zeros(3, 5, dtype=torch.bool, device=device)
    some, all_alike = none.clone(), none.clone()
    some[1, 3:] = some[2, 4] = True
    all_alike[:, 4] = True
    graph = gfxgraph.graphed(functions[part])
    with grad():
        for mask in (none, none, some, all_alike, none):
            torch.testing.assert_close(
                graph(x, mask), functions[part](x, mask), rtol=1e-4, atol=1e-5
            )
    if part == "encoder":
        assert "nested tensor" in str(graph.stats().fallbacks)


def test_a_graph_of_the_emulated_device_holds_the_fast_path():
    before = torch.overrides.has_torch_function
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad():
        report = gfxgraph.check(layer, torch.randn(3, 5, 16))
    assert report.operations < 5 and torch.overrides.has_torch_function is before


def test_a_user_who_overrides_functions_is_still_seen_by_fast_paths(device):
    class Sub(torch.Tensor):
        pass

    x = torch.ones(3, device=device)
    recorder = Recorder(device, [x], UndoLog(), keep_values=False)
    with recorder.watching():
        assert not torch.overrides.has_torch_function((x,))
        assert torch.overrides.has_torch_function((x.as_subclass(Sub),))
        with torch.device(device):
            assert torch.overrides.has_torch_function((x,))


def test_a_model_that_fails_on_its_way_in_a_capture_is_named_so(device):
    def f(x):
        capturing = False
        with contextlib.suppress(AttributeError, RuntimeError):  # a torch without CUDA
            capturing = torch.cuda.is_current_stream_capturing()
        return x @ x if capturing else x * 2

    graph = as_in_eager(f, lambda: (torch.ones(2, 3, device=device),))
    assert "is_current_stream_capturing() and takes another way" in str(graph.stats().fallbacks)


# ---- what it costs


def test_recognising_a_call_of_tensors_takes_a_fixed_number_of_questions():
    x = torch.ones(3)
    layout = gfxgraph.graphed(lambda a: a)._dispatcher.strategy.layout
    call = Call(lambda a: a, (x,), {}, *flatten(((x,), {})))
    asked = [c for c in layout.recogniser(call).args[2]]
    assert [getattr(c[0], "__name__", c[0]).lstrip("_") for c in asked] == [
        "is_grad_enabled",
        "is_inference_mode_enabled",
        "exception",
        "len_torch_function_stack",
        "get_default_dtype",
    ]


@pytest.mark.parametrize(
    "args",
    [
        ({"a": torch.ones(2), 1: [slice(1, None)], False: range(3)},),
        (Batch(torch.ones(2)), Pair(torch.ones(2)), Data(x=torch.ones(2))),
        (types.SimpleNamespace(x=torch.ones(2)), Registered(torch.ones(2), ["a", (1,)])),
    ],
)
def test_what_is_built_from_a_spec_has_that_spec(args):
    leaves, spec = flatten((args, {}))
    again, spec_again = flatten(builder(spec, leaves)())
    assert spec_again == spec and hash(spec_again) == hash(spec)
    assert all(a is b for a, b in zip(again, leaves, strict=True))
    found = matcher(
        spec,
        tensor_check(leaves),
        [],
        range(len(leaves)),
        (),
        False,
        lambda fn, a, k, leaves: leaves,
    )
    assert all(a is b for a, b in zip(found(None, args, {}), leaves, strict=True))


@torch.no_grad()
def test_random_numbers_for_arguments_anywhere_in_memory_are_those_of_eager(device):
    def fn(x):
        return nn.functional.dropout(x, 0.5) + 1

    buffer = torch.arange(64.0, device=device)
    calls = [buffer[at : at + 17] for at in (0, 0, 1, 1, 8, 3, 1, 16)]
    calls += [buffer.view(8, 8)[:, :3]] * 2
    graph = gfxgraph.graphed(fn)
    for seed, x in enumerate(calls):
        results = []
        for run in (fn, graph):
            torch.manual_seed(seed)
            results.append(run(x))
        assert torch.equal(*results)
    # at 0, 8 and 16; at 1; at 3; of rows
    assert (graph.stats().captures, graph.stats().fallbacks) == (4, {})
    assert graph.stats().replays == 6


@torch.no_grad()
def test_how_arguments_lie_in_memory_is_no_key_where_nothing_is_drawn(device):
    buffer = torch.arange(64.0, device=device)
    graph = gfxgraph.graphed(lambda x: x * 2 + 1)
    for at in (0, 1, 2, 3, 8):
        assert torch.equal(graph(buffer[at : at + 17]), buffer[at : at + 17] * 2 + 1)
    assert graph.stats().captures == 1


def test_a_debugger_steps_into_what_is_generated():
    build = builder(flatten({"x": torch.ones(1)})[1], [torch.ones(1).clone])
    code = build.__code__
    assert linecache.getlines(code.co_filename)[code.co_firstlineno - 1].startswith("def build()")
    linecache.checkcache()
    assert linecache.getline(code.co_filename, 1)
