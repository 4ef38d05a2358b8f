"""What a graphed function has compiled stays as the compiler has made it, for whoever calls it."""

from __future__ import annotations

import contextlib
import textwrap
import threading

import pytest
import torch
import torch._dynamo

import gfxgraph
from gfxgraph.interpose.dynamo import is_installed
from tests.helpers.processes import python
from tests.helpers.unseen import Unseen

pytestmark = pytest.mark.usefixtures("fresh_compiler")

STATE = {"factor": 2.0}


class Compiled:
    """A function that is compiled, and how often."""

    def __init__(self, function, **options):
        self._count = Unseen()
        self.call = torch.compile(function, backend=self._backend, **options)

    @property
    def count(self):
        return self._count.value

    def _backend(self, graph, inputs):
        self._count.value += 1
        return graph.forward


def factor(x):
    return torch.tanh(x) * STATE["factor"]


def in_two_regions(x):
    y = torch.tanh(x) * STATE["factor"]
    torch._dynamo.graph_break()
    return y * 2


@pytest.fixture(autouse=True)
def _factor_as_before():
    yield
    STATE["factor"] = 2.0


@pytest.mark.parametrize("function", [factor, in_two_regions])
@torch.no_grad()
def test_what_the_compiler_puts_among_global_variables_stays_there(function):
    compiled = torch.compile(function, backend="eager")
    graphed = gfxgraph.graphed(lambda x: compiled(x) + 1)
    for n in range(8):
        STATE["factor"] = 2.0 + n // 4
        for size in (2, 3, 4):
            x = torch.full((size,), float(n))
            assert torch.equal(graphed(x), function(x) + 1)
    assert not graphed.stats().fallbacks
    torch.set_autocast_cache_enabled(False)
    try:
        assert torch.equal(compiled(x), function(x))
    finally:
        torch.set_autocast_cache_enabled(True)
    assert torch.equal(compiled(x), function(x))


@torch.no_grad()
def test_what_our_runs_compile_stays_among_global_variables():
    # Beside another thread, and inside of autocast, our runs meet other guards: they compile.
    compiled = Compiled(in_two_regions)
    graphed = gfxgraph.graphed(lambda x: compiled.call(x) + sum(n == "STATE" for n in globals()))
    ends = threading.Event()
    other = threading.Thread(target=ends.wait)
    other.start()
    try:
        for n in range(6):
            if n == 3:
                STATE["factor"] = 3.0
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert torch.equal(graphed(torch.ones(3)), in_two_regions(torch.ones(3)) + 1)
    finally:
        ends.set()
        other.join()
    assert graphed.stats().replays, graphed.stats()
    assert compiled.count > 4  # else this proves nothing: two regions, and two factors
    for is_on in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=is_on):
            assert torch.equal(compiled.call(torch.ones(3)), in_two_regions(torch.ones(3)))


@pytest.mark.long
@pytest.mark.parametrize("shapes", [False, True], ids=["attribute", "batch"])
@torch.no_grad()
def test_a_variant_is_compiled_once_with_and_without_us(shapes):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.mode = torch.nn.Linear(4, 4), 0

        def forward(self, x):
            return torch.tanh(self.linear(x)) * (self.mode + 1)

    model = Model()
    compiled = Compiled(model, fullgraph=True, dynamic=False)
    graphed = gfxgraph.graphed(lambda x: compiled.call(x) + 1)
    for n in range(7):
        model.mode = 0 if shapes else n
        x = torch.ones(2 + n * shapes, 4)
        for _ in range(3):
            assert torch.allclose(graphed(x), model(x) + 1)
        assert compiled.count == n + 1
    assert graphed.stats().replays


@pytest.mark.parametrize("outer", [False, True], ids=["", "inside_autocast"])
@pytest.mark.parametrize("inner", [False, True], ids=["", "with_autocast"])
def test_autocast_around_and_in_a_graphed_function_compiles_nothing_again(outer, inner):
    def region(is_on):
        on = torch.autocast("cpu", dtype=torch.bfloat16)
        return on if is_on else contextlib.nullcontext()

    linear = torch.nn.Linear(4, 4)
    compiled = Compiled(linear, fullgraph=True)

    def function(x):
        with region(inner):
            return compiled.call(x) + linear(x)

    graphed = gfxgraph.graphed(function)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 4)
            with region(outer):
                result = graphed(x)
            with region(outer):
                assert torch.equal(result, function(x))
            linear.weight.mul_(1.5)  # a cast of it that was kept would be stale
    assert compiled.count == 1
    assert graphed.stats().replays
    assert torch.is_autocast_cache_enabled()


@torch.no_grad()
def test_a_backend_of_the_program_is_called_as_often_as_without_us():
    compiled = Compiled(factor)
    graphed = gfxgraph.graphed(lambda x: compiled.call(x))
    for _ in range(4):
        graphed(torch.ones(2))
    assert compiled.count == 1


@torch.no_grad()
def test_the_names_of_the_compiler_are_known():
    space: dict[str, object] = {"torch": torch, "__name__": __name__}
    source = """
        import warnings
        class Tensor(torch.Tensor):
            pass
        def broken(x):
            y = x * 2
            torch._dynamo.graph_break()
            return torch.nn.functional.relu(y)
        def of_class(x):
            return x.as_subclass(Tensor) * 2
        def repeated(x):
            for n in range(2):
                torch._dynamo.graph_break()
                x = x * n
            return x
        def printed(x):
            warnings.warn("a")
            return x * 2
        class Pair:
            def __init__(self, x):
                self.x = x
        def function(x):
            relu = torch.nn.functional.relu
            torch._dynamo.graph_break()
            return relu(x), [x * n for n in range(3)]
    """
    exec(textwrap.dedent(source), space)
    before = {*space}
    for name in ("broken", "of_class", "repeated", "function"):
        torch.compile(space[name], backend="eager")(torch.ones(2))
    new = {*space} - before - {"__warningregistry__"}
    assert new
    assert [name for name in new if not is_installed(name, space[name])] == []
    assert [name for name in before if is_installed(name, space[name])] == []


PROGRAM = """
    import torch, gfxgraph
    factor = {"of": 2.0}
    def function(x):
        return torch.tanh(x) * factor["of"]
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    graphed = gfxgraph.graphed(lambda x: compiled(x) + 1)
    with torch.no_grad():
        for n in range(8):
            factor["of"] = 2.0 + n // 4
            for size in (2, 3):
                assert torch.equal(graphed(torch.ones(size)), function(torch.ones(size)) + 1)
    print("done")
"""


@pytest.mark.long
def test_at_the_end_of_the_process_the_compiler_finds_what_it_has_installed():
    found = python("-c", textwrap.dedent(PROGRAM))
    assert "done" in found.stdout, found.stderr
    assert "Exception ignored" not in found.stderr
