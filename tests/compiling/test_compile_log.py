"""The log of what torch compiled: what it says, and that compiling does not notice it."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import threading

import pytest
import torch
from rich.console import Console
from torch._dynamo.output_graph import OutputGraph

import gfxgraph

_COMPILERS = [c for c in (os.environ.get("CXX"), "c++", "g++", "clang++") if c]
needs_inductor = pytest.mark.skipif(
    not torch.cuda.is_available() and not any(map(shutil.which, _COMPILERS)),
    reason="Inductor needs a C++ compiler on the CPU",
)
_names = itertools.count()


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


def chain(x, y):
    return (x.relu() + y).relu() * 2


def broken(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos() + 1


def line_after(function, lines):
    return function.__code__.co_firstlineno + lines


def test_a_compilation_says_what_went_in_and_where_it_comes_from():
    with gfxgraph.compile_log() as log:
        torch.compile(chain, backend="aot_eager")(torch.ones(2), torch.ones(2))
    (one,) = log.compilations
    assert one.id == "0/0" and one.backend == "aot_eager"
    assert (one.file, one.function, one.line) == (__file__, "chain", line_after(chain, 0))
    assert one.operations == {"relu": 2, "add": 1, "mul": 1}
    assert one.nodes == 7  # two inputs, four operations, the output
    assert 0 < one.seconds == log.seconds
    assert one.kernels is None and one.cached is None and one.error is None


def test_recompilations_have_ids_of_their_own():
    compiled = torch.compile(chain, backend="eager", dynamic=False)
    with gfxgraph.compile_log() as log:
        for rows in (2, 3, 2, 4):
            compiled(torch.ones(rows), torch.ones(rows))
    assert [c.id for c in log.compilations] == ["0/0", "0/1", "0/2"]


def test_each_region_of_a_function_that_breaks_is_one():
    with gfxgraph.compile_log() as log:
        torch.compile(broken, backend="eager")(torch.ones(2))
    first, second = log.compilations
    assert first.operations == {"sin": 1} and second.operations == {"cos": 1, "add": 1}
    assert first.function == second.function == "broken"
    assert (first.line, second.line) == (line_after(broken, 0), line_after(broken, 2))


def test_modules_are_counted_by_what_they_do():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with gfxgraph.compile_log() as log:
        torch.compile(module, backend="eager")(torch.ones(1, 2))
    assert sum(log.compilations[0].operations.values()) == 2


def test_one_of_torchs_own_functions_is_where_the_user_called_it():
    compiled = torch.compile(torch.nn.Sequential(torch.nn.ReLU()), backend="eager")

    def caller():
        return compiled(torch.ones(2))

    with gfxgraph.compile_log() as log:
        caller()
    (one,) = log.compilations
    assert (one.file, one.function, one.line) == (__file__, "caller", line_after(caller, 1))


def test_compilations_of_all_threads_are_logged_and_none_is_lost():
    def new_function():
        scope = {}
        exec(f"def of_thread_{next(_names)}(x):\n    return x + 1\n", scope)
        return next(v for k, v in scope.items() if k.startswith("of_thread"))

    functions = [new_function() for _ in range(6)]
    with gfxgraph.compile_log() as log:
        threads = [
            threading.Thread(target=torch.compile(f, backend="eager"), args=(torch.ones(2),))
            for f in functions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {c.function for c in log.compilations} == {f.__name__ for f in functions}


def test_logs_inside_of_each_other_each_have_what_was_compiled_in_their_block():
    compiled = torch.compile(chain, backend="eager", dynamic=False)
    with gfxgraph.compile_log() as outer:
        compiled(torch.ones(2), torch.ones(2))
        with gfxgraph.compile_log() as inner:
            compiled(torch.ones(3), torch.ones(3))
    assert [c.id for c in outer.compilations] == ["0/0", "0/1"]
    assert [c.id for c in inner.compilations] == ["0/1"]


def test_after_the_block_nothing_of_it_is_left_in_torch():
    own = OutputGraph.call_user_compiler
    with gfxgraph.compile_log() as outer:
        with pytest.raises(KeyError), gfxgraph.compile_log():
            raise KeyError
        assert OutputGraph.call_user_compiler is not own
    assert OutputGraph.call_user_compiler is own
    torch.compile(chain, backend="eager")(torch.ones(2), torch.ones(2))
    assert outer.compilations == ()


def test_a_backend_that_fails_is_logged_with_its_error_which_still_arrives():
    def failing(module, inputs):
        raise ValueError("no compiler")

    with gfxgraph.compile_log() as log, pytest.raises(Exception, match="no compiler"):
        torch.compile(chain, backend=failing)(torch.ones(2), torch.ones(2))
    assert log.compilations[0].backend == "failing"
    assert "no compiler" in log.compilations[0].error


def test_what_a_graph_holds_is_logged_as_of_its_backend(device):
    def wave(x):
        return torch.sin(x) + 1

    with gfxgraph.compile_log() as log:
        gfxgraph.graphed(wave, compile={"backend": "aot_eager"})(torch.ones(3, device=device))
    (one,) = log.compilations
    assert (one.backend, one.function) == ("aot_eager", "wave")


def test_it_is_json_and_a_table(tmp_path):
    with gfxgraph.compile_log() as log:
        torch.compile(broken, backend="aot_eager")(torch.ones(2))
    data = json.loads(log.to_json(tmp_path / "log.json"))
    assert data == json.loads((tmp_path / "log.json").read_text())
    assert data["torch"] == torch.__version__ and data["seconds"] == log.seconds
    assert [c["function"] for c in data["compilations"]] == ["broken", "broken"]
    console = Console(width=250)
    with console.capture() as text:
        console.print(log)
    assert "2 compiled in" in text.get()
    assert f"broken ({__file__}:{line_after(broken, 2)})" in text.get()
    assert "2 compiled in" in str(log) and "1 sin" in str(log) and "\x1b" not in str(log)


# --- Inductor -------------------------------------------------------------------------------------


@needs_inductor
def test_inductors_kernels_are_counted(device):
    x = torch.randn(64, device=device)
    with gfxgraph.compile_log() as log:
        result = torch.compile(chain)(x, x)
    (one,) = log.compilations
    assert one.backend == "inductor" and one.kernels == 1 and one.cached is not None
    torch.testing.assert_close(result, chain(x, x))


@pytest.fixture
def layers(device):
    """A module that was never compiled before on this machine, and a call of it with backward."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)).to(
        device
    )
    constant = random.SystemRandom().random()

    def loss(x):
        return (module(x) * constant).sum()

    return loss, torch.randn(2, 4, device=device)


@pytest.mark.long
@needs_inductor
def test_the_backward_graph_is_a_compilation_of_its_own(layers):
    loss, x = layers
    with gfxgraph.compile_log() as log:
        torch.compile(loss)(x).backward()
    forward, backward = log.compilations
    assert not forward.backward and backward.backward
    assert backward.id == forward.id and backward.backend == "inductor"
    assert (backward.function, backward.file, backward.line) == (
        ("loss", __file__, line_after(loss, 0))
    )
    assert backward.operations["mm.default"] >= 2 and backward.nodes > 4
    assert backward.kernels > 0 and backward.cached is False and backward.seconds > 0
    assert log.seconds == forward.seconds + backward.seconds


@needs_inductor
def test_kernels_are_those_of_each_graph_whether_or_not_a_cache_has_them(layers):
    loss, x = layers
    kernels = []
    for cached in (False, True):
        torch._dynamo.reset()
        with gfxgraph.compile_log() as log:
            torch.compile(loss)(x).backward()
        assert [(c.backward, c.cached) for c in log.compilations] == [
            (False, cached),
            (True, cached),
        ]
        kernels.append([c.kernels for c in log.compilations])
    assert kernels[0] == kernels[1] and all(kernels[0])
    assert log.compilations[1].seconds == 0 and log.compilations[1].nodes == 0


@needs_inductor
def test_a_backward_graph_is_also_seen_where_the_forward_graph_was_compiled_before(layers):
    loss, x = layers
    result = torch.compile(loss)(x)
    with gfxgraph.compile_log() as log:
        result.backward()
    (one,) = log.compilations
    assert one.backward and one.kernels > 0 and one.file == ""
    console = Console(width=250)
    with console.capture() as text:
        console.print(log)
    assert "backward of place not known" in text.get()


@needs_inductor
def test_after_the_block_inductor_is_as_it_was(device):
    from torch._inductor import compile_fx, output_code

    own = compile_fx._compile_fx_inner, output_code.CompiledFxGraph.post_compile
    with gfxgraph.compile_log():
        torch.compile(chain)(torch.ones(2, device=device), torch.ones(2, device=device))
        assert compile_fx._compile_fx_inner is not own[0]
    assert own == (compile_fx._compile_fx_inner, output_code.CompiledFxGraph.post_compile)


@needs_inductor
def test_the_cache_has_for_a_logged_compilation_what_it_has_for_another(device):
    scope = {}
    constant = random.SystemRandom().random()  # never compiled before on this machine
    exec(f"def fresh(x):\n    return (x.relu() + {constant}).sin() * 2\n", scope)
    fresh, x = scope["fresh"], torch.randn(8, device=device)
    plain = torch.compile(fresh)(x)
    torch._dynamo.reset()
    with gfxgraph.compile_log() as log:
        logged = torch.compile(fresh)(x)
    assert [(c.cached, c.kernels) for c in log.compilations] == [(True, 1)]
    assert torch.equal(logged, plain)
