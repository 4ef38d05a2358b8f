"""Odd callables and odd arguments: either a graph, or a reason that a user understands."""

from __future__ import annotations

import collections
import contextvars
import functools
import inspect
import operator
import re

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import nn

import gfxgraph
from gfxgraph.errors import ArgumentError, CaptureError, DeviceError

# What a user cannot do anything with.
INTERNAL = re.compile(
    r"KeyError|_parameters|incompatible function arguments|too many nested|SyntaxError|"
    r"RecursionError|maximum recursion|AttributeError|<gfxgraph>|Traceback"
)


class Slots:
    __slots__ = ("__weakref__", "weight")

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return x + self.weight

    def scaled(self, x):
        return x * self.weight


class Named(collections.namedtuple("Named", "weight")):
    def added(self, x):
        return x + self.weight


class Plain:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return x * self.weight

    @staticmethod
    def static(x):
        return x + 1

    @classmethod
    def of_the_class(cls, x):
        return x + 2


def scripted(x):
    return x * 2 + 1


def linear(x):
    return nn.Linear(4, 4).to(x.device).eval()


def exported(x):
    return torch.export.export(linear(x), (x,)).module()


# Each makes a callable for an argument of shape (3, 4).
CAPTURED = {
    "a traced function": lambda x: torch.jit.trace(scripted, x),
    "a scripted function": lambda x: torch.jit.script(scripted),
    "a partial of a function of torch": lambda x: functools.partial(torch.add, other=1.0, alpha=2),
    "a partial of a partial": lambda x: functools.partial(functools.partial(torch.clamp), min=0),
    "a function of torch": lambda x: torch.sin,
    "a functional": lambda x: F.gelu,
    "a functional written in C": lambda x: functools.partial(F.linear, weight=x.new_ones(2, 4)),
    "a method of Tensor": lambda x: torch.Tensor.sin,
    "a bound method of a tensor": lambda x: x.add,
    "an operator": lambda x: torch.ops.aten.sin.default,
    "an operator with overloads": lambda x: torch.ops.aten.sin,
    "a builtin": lambda x: abs,
    "operator.neg": lambda x: operator.neg,
    "a methodcaller": lambda x: operator.methodcaller("sin"),
    "an itemgetter": lambda x: operator.itemgetter(0),
    "an object with slots": lambda x: Slots(x.new_ones(4)),
    "a method of an object with slots": lambda x: Slots(x.new_ones(4)).scaled,
    "a method of a namedtuple": lambda x: Named(x.new_ones(4)).added,
    "an object": lambda x: Plain(x.new_ones(4)),
    "a static method": lambda x: Plain.static,
    "a class method": lambda x: Plain.of_the_class,
    "a compiled function": lambda x: torch.compile(scripted, backend="eager"),
    "a compiled module": lambda x: torch.compile(linear(x), backend="eager"),
    "an exported module": exported,
    "a symbolic trace": lambda x: torch.fx.symbolic_trace(linear(x)),
    "a lambda without source": lambda x: eval("lambda x: x + 1"),
    "a lambda without source that branches": lambda x: eval(
        "lambda x: x + 1 if x.sum() > 0 else x - 1"
    ),
    "vmap": lambda x: torch.vmap(torch.sin),
    "a function under no_grad": lambda x: torch.no_grad()(scripted),
    "functional_call": lambda x: functools.partial(torch.func.functional_call, linear(x), {}),
    "a lazy module": lambda x: nn.LazyLinear(4).to(x.device),
    "a module with weight norm": lambda x: nn.utils.parametrizations.weight_norm(linear(x)),
}


def equal(one, other):
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(torch.allclose(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("name", CAPTURED)
@torch.no_grad()
def test_what_can_be_called_becomes_a_graph(device, name):
    given = torch.randn(5, 3, 4, device=device)
    fn = CAPTURED[name](given[0])
    graph = gfxgraph.graphed(fn)
    for x in given:
        assert equal(graph(x), fn(x))
    stats = graph.stats()
    if device == "cuda" and name in ("a traced function", "a scripted function"):
        # There a fuser makes the result, of which torch's dispatcher knows nothing.
        assert all("a library outside of torch" in reason for reason in stats.fallbacks)
    else:
        assert stats.replays >= 3 and not stats.fallbacks


# ---- TorchScript


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x * self.n


def holding(module):
    return lambda x: module(x) + 1


SCRIPTED = {
    "a traced module": lambda x: torch.jit.trace(linear(x), x),
    "a scripted module": lambda x: torch.jit.script(linear(x)),
    "a frozen module": lambda x: torch.jit.freeze(torch.jit.script(linear(x))),
    "a method of one": lambda x: torch.jit.script(linear(x)).forward,
    "a function that calls one": lambda x: holding(torch.jit.trace(linear(x), x)),
    "a module that has one": lambda x: nn.Sequential(linear(x), torch.jit.script(linear(x))),
    "a partial with one": lambda x: functools.partial(
        lambda net, x: net(x), torch.jit.script(linear(x))
    ),
}


@pytest.mark.parametrize("name", SCRIPTED)
@torch.no_grad()
def test_a_module_of_torchscript_runs_eagerly_and_says_so(device, name):
    given = torch.randn(5, 3, 4, device=device)
    fn = SCRIPTED[name](given[0])
    graph = gfxgraph.graphed(fn)
    for x in given:
        assert torch.equal(graph(x), fn(x))
    (reason,) = graph.stats().fallbacks
    assert "a TorchScript module is called" in reason and "Graph the module" in reason
    assert not INTERNAL.search(reason)


@torch.no_grad()
def test_the_state_of_a_scripted_module_advances_as_in_eager(device):
    x = torch.ones(3, device=device)
    graph = gfxgraph.graphed(torch.jit.script(Counts()))
    assert [graph(x)[0].item() for _ in range(5)] == [1, 2, 3, 4, 5]
    changed = torch.jit.script(linear(torch.ones(3, 4, device=device)))
    graph, x = gfxgraph.graphed(changed), torch.ones(3, 4, device=device)
    for _ in range(3):
        graph(x)
    changed.bias = nn.Parameter(torch.full((4,), 7.0, device=device))
    assert torch.equal(graph(x), changed(x))


@pytest.mark.parametrize("name", SCRIPTED)
def test_check_says_the_same_of_torchscript(name):
    x = torch.randn(3, 4)
    report = gfxgraph.check(SCRIPTED[name](x), x)
    assert [hazard.rule for hazard in report.hazards] == ["torchscript"]
    assert "runs eagerly because a TorchScript module is called" in str(report)


# ---- caches of functools


@functools.cache
def table(n):
    return torch.arange(float(n))


@functools.lru_cache
def memoized(x):
    return x * 2


class Memoizes:
    @functools.lru_cache  # noqa: B019
    def doubled(self, x):
        return x * 2

    def __call__(self, x):
        return self.doubled(x) + 1


MEMOS = {
    "the function itself": memoized,
    "a helper": lambda x: memoized(x) + 1,
    "a method": Memoizes(),
    "a cache with a limit": functools.lru_cache(maxsize=2)(lambda x: x * 3),
}


@pytest.mark.parametrize("name", MEMOS)
@torch.no_grad()
def test_a_cache_of_tensors_never_gives_the_result_of_another_call(device, name):
    graph = gfxgraph.graphed(MEMOS[name])
    for _ in range(5):
        x = torch.randn(3, 4, device=device)
        assert torch.equal(graph(x), MEMOS[name](x))
    (reason,) = graph.stats().fallbacks
    assert "keeps results by the very tensors" in reason


@torch.no_grad()
def test_a_cache_of_numbers_is_no_reason(device):
    def fn(x):
        return x + table(x.shape[-1]).to(x.device)

    table.cache_clear()
    for graph in (gfxgraph.graphed(fn), gfxgraph.ShapeBucketPool(fn, [2, 4])):
        for rows in (1, 2, 3, 1, 2, 3):
            x = torch.randn(rows, 5, device=device)
            assert torch.equal(graph(x), fn(x))
        assert graph.stats().replays >= 3 and not graph.stats().fallbacks


# ---- structures that are nested deep


def nested(item, depth):
    for _ in range(depth):
        item = [item]
    return item


def innermost(item):
    while isinstance(item, list):
        item = item[0]
    return item


@pytest.mark.parametrize("depth", [90, 250, 1500])
@pytest.mark.parametrize("what", ["argument", "result"])
@torch.no_grad()
def test_what_is_nested_too_deep_is_said_to_be(device, what, depth):
    x = torch.ones(3, device=device)
    if what == "argument":
        fn, given = (lambda tree: innermost(tree) + 1), nested(x, depth)
    else:
        fn, given = (lambda x: nested(x + 1, depth)), x
    graph = gfxgraph.graphed(fn)
    for _ in range(5):
        assert torch.equal(innermost(graph(given)), x + 1)
    stats = graph.stats()
    if depth < 100:
        assert stats.replays == 4
    else:
        (reason,) = stats.fallbacks
        assert "nested in more than 100 containers" in reason and not INTERNAL.search(reason)
    report = gfxgraph.check(fn, nested(torch.ones(3), depth) if what == "argument" else x.cpu())
    assert (report.verdict == "eager") == (depth > 100)


# ---- what gives no result


def generator(x):
    yield x


async def coroutine(x):
    return x


async def async_generator(x):
    yield x


class CallsGenerator:
    def __call__(self, x):
        yield x


class CallsCoroutine:
    async def __call__(self, x):
        return x


class Forwards(nn.Module):
    def forward(self, x):
        yield x


@pytest.mark.parametrize(
    ("fn", "name", "kind"),
    [
        (generator, "generator", "a generator function"),
        (coroutine, "coroutine", "an async function"),
        (async_generator, "async_generator", "an async generator function"),
        (functools.partial(generator), "partial", "a generator function"),
        (functools.partial(coroutine), "partial", "an async function"),
        (CallsGenerator(), "CallsGenerator", "a generator function"),
        (CallsCoroutine(), "CallsCoroutine", "an async function"),
        (Forwards(), "Forwards", "a generator function"),
        (CallsGenerator().__call__, "CallsGenerator.__call__", "a generator function"),
    ],
)
def test_what_gives_no_result_is_refused_by_its_name(fn, name, kind):
    with pytest.raises(ArgumentError, match=f"; {name} is {kind}. Give it the function that"):
        gfxgraph.graphed(fn)


@pytest.mark.parametrize("what", [nn.ReLU, 3, "relu", torch.ones(3)])
def test_what_cannot_be_called_is_refused(what):
    with pytest.raises(ArgumentError, match="takes a function, a module or a method, not"):
        gfxgraph.graphed(what)


@torch.no_grad()
def test_an_exported_program_says_what_eager_says(device):
    x = torch.ones(3, 4, device=device)
    program = torch.export.export(linear(x), (x,))
    with pytest.raises(RuntimeError, match="module\\(\\)"):
        gfxgraph.graphed(program)(x)


RESULTS = {
    "a generator": (lambda x: (part for part in x), "generator"),
    "a dict with an object": (lambda x: {"x": x + 1, "other": object()}, "object"),
    "an iterator": (lambda x: iter([x]), "iterator"),
    "a NumPy array": (lambda x: x.cpu().numpy(), "ndarray"),
}


@pytest.mark.parametrize("name", RESULTS)
@torch.no_grad()
def test_a_result_that_is_no_tensor_is_named(device, name):
    fn, kind = RESULTS[name]
    graph = gfxgraph.graphed(fn)
    for _ in range(3):
        graph(torch.ones(3, device=device))
    (reason,) = graph.stats().fallbacks
    assert "result" in reason and kind in reason and not INTERNAL.search(reason)


def transposes(x):
    return x.t_() * 2


def conjugates(x):
    x.requires_grad_(True)
    return x * 2


class Toggles(nn.Module):
    def forward(self, x):
        self.train(not self.training)
        return x * 2 if self.training else x * 3


class Stops:
    calls, done = 0, False

    def __call__(self, x):
        if self.done:
            return None
        self.calls += 1
        self.done = self.calls >= 3
        return x * 2


MOVED = {
    "shape": (lambda: transposes, "changes the shape of a tensor in place"),
    "flag": (lambda: conjugates, "changes the layout or a flag of a tensor in place"),
    "mode of the module": (Toggles, r"calls train\(\) or eval\(\) on the graphed module"),
    "number of tensors": (Stops, "second run differs from first: 0 outputs, not 1"),
}


@pytest.mark.parametrize("name", MOVED)
@torch.no_grad()
def test_what_a_call_changes_of_its_own_kind_is_named(device, name):
    make, words = MOVED[name]
    function, graph = make(), gfxgraph.graphed(make())
    for n in range(6):
        x = torch.full((3, 4), float(n), device=device)
        expected, got = function(x.clone()), graph(x.clone())
        assert (expected is None and got is None) or torch.equal(expected, got)
    assert any(re.search(words, reason) for reason in graph.stats().fallbacks)


@torch.no_grad()
def test_the_reason_is_the_error_where_errors_are_asked_for(device):
    x = torch.ones(3, 4, device=device)
    with pytest.raises(CaptureError, match="a TorchScript module is called") as caught:
        gfxgraph.graphed(torch.jit.script(linear(x)), fallback="raise")(x)
    assert caught.value.rule == "torchscript"


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="of a CPU build")
def test_check_says_where_it_cannot_judge():
    with pytest.raises(DeviceError, match="autograd of a CPU build"):
        gfxgraph.check(torch.func.grad(lambda x: x.sin().sum()), torch.ones(3))


_GROWN: list[torch.Tensor] = []
_grows: dict[str, list[int]] = {}


def _appends(x):
    y = x + 1
    _GROWN.append(y)  # here
    return y


def _sets_a_default(x):
    _grows.setdefault("n", []).append(1)  # here
    return x * 2


class _Notes(nn.Module):
    def __init__(self):
        super().__init__()
        self.notes: dict[tuple[str, int], int] = {}

    def forward(self, x):
        self.notes["call", len(self.notes)] = 1  # here
        return x * 3


class _Items:
    def __init__(self, kept):
        self.kept = kept


def _keeps_in_a_set():
    held = _Items(set())

    def keeps(x):
        held.kept.add(len(held.kept))  # here
        return x * 4

    return keeps


@pytest.mark.parametrize(
    "make", [lambda: _appends, lambda: _sets_a_default, _Notes, _keeps_in_a_set]
)
@torch.no_grad()
def test_what_cannot_be_stored_again_is_named_with_the_line_that_stores_it(device, make):
    fn = make()
    lines, start = inspect.getsourcelines(fn.forward if isinstance(fn, nn.Module) else fn)
    here = [start + n for n, line in enumerate(lines) if line.endswith("# here\n")]
    graph = gfxgraph.graphed(fn)
    for _ in range(3):
        graph(torch.ones(2, device=device))
    (reason,) = graph.stats().fallbacks
    assert f"({', '.join(f'test_reasons.py:{line}' for line in here)})" in reason


def _scaled_by_a_stack(held):
    def fn(x):
        held.append(2.0)
        y = x * len(held)
        held.append(3.0)
        y = y * held[-1] * held[0] * sum(held)
        held.pop(), held.pop()
        return y

    return fn


def _counted_in_a_set(held):
    def fn(x):
        held.add(9.0)
        y = x * len(held)
        held.discard(9.0)
        return y

    return fn


def _noted_in_a_dict(held):
    def fn(x):
        held["b"] = 9.0
        y = x * len(held) * sum(held.values())
        del held["b"]
        return y

    return fn


def _added_to_a_list(held):
    def fn(x):
        nonlocal held
        held += [9.0]
        y = x * sum(held)
        del held[-1]
        return y

    return fn


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "held", "more"),
    [
        (_scaled_by_a_stack, [1.0], lambda held: held.append(5.0)),
        (_scaled_by_a_stack, collections.deque([1.0]), lambda held: held.appendleft(5.0)),
        (_counted_in_a_set, {1.0}, lambda held: held.add(5.0)),
        (_noted_in_a_dict, {"a": 1.0}, lambda held: held.update(c=5.0)),
        (_added_to_a_list, [1.0], lambda held: held.append(5.0)),
    ],
)
def test_what_a_call_puts_into_a_container_and_takes_out_again_is_no_reason(
    device, make, held, more
):
    fn, x = make(held), torch.ones(3, device=device)
    graph = gfxgraph.graphed(fn)
    for n in range(6):
        if n == 3:
            more(held)
        assert torch.equal(graph(x), fn(x))
    assert graph.stats().replays == 4 and not graph.stats().fallbacks


class Cached:
    @functools.lru_cache  # noqa: B019
    def scale(self):
        return 2.0


@torch.no_grad()
def test_a_cache_of_objects_that_each_call_makes_is_named_with_the_line(device):
    graph = gfxgraph.graphed(lambda x: x * Cached().scale())
    graph(torch.ones(3, device=device))
    (reason,) = graph.stats().fallbacks
    assert "scale() (read in test_reasons.py:" in reason and "objects" in reason


@torch.no_grad()
def test_a_context_variable_that_changes_all_the_time_is_to_be_passed(device):
    variable = contextvars.ContextVar("scale")

    @gfxgraph.graphed
    def graph(x):
        return x * variable.get()

    x = torch.ones(3, device=device)
    for n in range(20):
        variable.set(n)
        assert torch.equal(graph(x), x * n)
    (reason,) = graph.stats().fallbacks
    assert "variable (read in test_reasons.py:" in reason and "object" not in reason


class Remembers:
    def __call__(self, x):
        y = x * 2 if getattr(self, "last", None) is None else x + self.last
        self.last = x * 3
        return y


@torch.no_grad()
def test_a_place_that_is_empty_is_said_to_be_in_the_key(device):
    model, x = Remembers(), torch.ones(3, device=device)
    graph = gfxgraph.graphed(model)
    for n in range(8):
        if n % 4 == 0:
            model.__dict__.pop("last", None)
        graph(x)
    assert "float32[3], <absent>" in {row.key for row in graph.stats().graphs}


def _picks(x, n):
    return x[n] * 2


def _tries(x, n):
    try:
        return x[n] * 2
    except IndexError:
        return x * 3


@torch.no_grad()
@pytest.mark.parametrize("fallback", ["eager", "raise"])
@pytest.mark.parametrize("fn", [_picks, _tries])
def test_an_operator_that_raises_in_a_replay_raises_its_own_error(device, fn, fallback):
    if torch.device(device).type != "cpu":
        pytest.skip("a kernel of a GPU cannot raise")
    graph = gfxgraph.graphed(fn, fallback=fallback)
    x = torch.ones(3)
    for _ in range(3):
        graph(x, torch.tensor([0, 1]))
    kind = IndexError if fn is _picks else CaptureError
    if fn is _tries and fallback == "eager":
        assert torch.equal(graph(x, torch.tensor([0, 7])), x * 3)
    else:
        with pytest.raises(kind):
            graph(x, torch.tensor([0, 7]))
    assert graph.stats().fallbacks == {
        "its graph could not be used: an operator raised IndexError, on the emulated device": 1
    }


@torch.no_grad()
def test_one_hot_with_classes_is_a_graph(device):
    graph = gfxgraph.graphed(lambda labels: F.one_hot(labels, 5) * 2)
    for n in range(4):
        labels = torch.tensor([n, 0, 4], device=device)
        assert torch.equal(graph(labels), F.one_hot(labels, 5) * 2)
    assert graph.stats().replays == 3
    if torch.device(device).type == "cpu":  # a GPU gives no error that could be caught
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            graph(torch.tensor([1, 2, 7]))


@torch.no_grad()
def test_a_call_that_no_graph_can_answer_says_the_one_reason(device):
    def fn(x, state):
        state["n"] += 1
        return x + 1

    graph = gfxgraph.graphed(fn)
    for n in (1, 2, 3, 2.5):
        graph(torch.ones(3, device=device), {"n": n})
    assert list(graph.stats().fallbacks) == [
        "its graph could not be used: an argument holds no whole number where calls count"
    ]
