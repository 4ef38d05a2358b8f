"""Functions of other libraries as operators, and the report of the graph breaks without that."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gfxgraph
from gfxgraph.errors import ArgumentError

_numbers = itertools.count()


@pytest.fixture
def name():
    """A name that no operator has yet: operators live as long as the process."""
    return f"gfxgraph_test::op_{next(_numbers)}"


def vendor_silu(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """As Dynamo meets a compiled extension: it cannot look inside."""
    array = x.detach().cpu().numpy()
    return torch.from_numpy(array / (1 + np.exp(-array)) * np.float32(scale)).to(x.device)


def expected(x, scale=1.0):
    return torch.nn.functional.silu(x) * scale


def test_a_vendor_function_compiles_without_a_graph_break(name):
    op = gfxgraph.vendor_op(vendor_silu, name=name)
    x = torch.randn(4, 8)

    def model(x):
        return op(x.relu(), 2.0) + 1

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected(x.relu(), 2.0) + 1)
    torch.testing.assert_close(op(x), expected(x))
    assert gfxgraph.graph_breaks(model, x).breaks == ()


def test_a_vendor_function_is_part_of_a_graph(name, device):
    def vendor(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    op = gfxgraph.vendor_op(vendor, name=name)
    model = gfxgraph.graphed(lambda x: op(x.relu(), 3.0) + 1)
    for x in torch.randn(3, 8, device=device):
        assert torch.equal(model(x), x.relu() * 3 + 1)
    assert model.stats().replays == 2 and not model.stats().fallbacks


def test_torchs_own_check_of_operators_passes(name):
    op = gfxgraph.vendor_op(vendor_silu, name=name)
    torch.library.opcheck(op, (torch.randn(3, 4), 0.5))


def test_a_fake_that_is_given_is_used(name):
    def rows(x: torch.Tensor, count: int) -> torch.Tensor:
        return torch.from_numpy(x.numpy()[:count].copy())

    op = gfxgraph.vendor_op(
        rows, name=name, fake=lambda x, count: x.new_empty((count, *x.shape[1:]))
    )
    compiled = torch.compile(lambda x: op(x, 2) * 2, backend="aot_eager", fullgraph=True)
    x = torch.randn(5, 3)
    assert torch.equal(compiled(x), x[:2] * 2)


def test_arguments_that_it_writes_to_are_named(name):
    def fill(out: torch.Tensor, value: float) -> None:
        out.numpy()[:] = value

    op = gfxgraph.vendor_op(fill, name=name, mutates=["out"])

    @torch.compile(backend="aot_eager", fullgraph=True)
    def model(x):
        out = torch.empty_like(x)
        op(out, 3.0)
        return out + x

    assert model(torch.ones(2)).tolist() == [4, 4]


def writes(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + 1


def test_a_write_that_is_not_declared_is_an_error_that_names_the_argument(name):
    op = gfxgraph.vendor_op(writes, name=name)
    message = rf"{name} wrote to its argument 'x'.*mutates=\['x'\]"
    compiled = torch.compile(lambda x: op(x) + 1, backend="aot_eager")
    for call in (op, compiled, torch.no_grad()(op), torch.no_grad()(compiled)):
        with pytest.raises(ArgumentError, match=message):
            call(torch.ones(2))


def test_a_second_write_that_is_not_declared_is_an_error(name):
    def both(x: list[torch.Tensor], out: torch.Tensor) -> None:
        out.copy_(x[0])
        x[0].zero_()

    op = gfxgraph.vendor_op(both, name=name, mutates="out")
    with pytest.raises(ArgumentError, match=r"'x'.*mutates=\['out', 'x'\]"):
        op([torch.ones(2)], torch.ones(2))


def test_writes_that_are_declared_also_to_a_view_of_another_argument_are_none(name):
    def fill(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * 2)

    op = gfxgraph.vendor_op(fill, name=name, mutates=["out"])
    both = torch.ones(2, 3)
    op(both[0], both[1])
    assert both.tolist() == [[1, 1, 1], [2, 2, 2]]
    with torch.inference_mode():
        op(torch.ones(2), torch.ones(2))


def test_a_function_that_returns_and_writes_nothing_is_an_error(name):
    calls = []

    def log_it(x: torch.Tensor) -> None:
        calls.append(x)

    with pytest.raises(ArgumentError, match=r"returns nothing and writes nothing.*mutates="):
        gfxgraph.vendor_op(log_it, name=name)


def test_optional_and_keyword_arguments_and_lists_of_results(name):
    def parts(
        x: torch.Tensor, bias: torch.Tensor | None = None, *, by: int = 2
    ) -> list[torch.Tensor]:
        whole = x if bias is None else x + bias
        return [part.clone() for part in whole.chunk(by)]

    def fake(x, bias=None, *, by=2):
        return [torch.empty_like(part) for part in x.chunk(by)]

    op = gfxgraph.vendor_op(parts, name=name, fake=fake)
    first, second = torch.compile(
        lambda x: op(x, bias=torch.ones(1), by=2), backend="aot_eager", fullgraph=True
    )(torch.zeros(4))
    assert first.tolist() == second.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("result", "came"),
    [
        (lambda x: x[:1].clone(), r"\[1, 4\]"),
        (lambda x: x.double(), "float64"),
        (lambda x: x.t().contiguous().t(), r"strides \[1, 3\]"),
        (lambda x: x.to("meta"), "on meta"),
    ],
)
def test_an_inferred_fake_that_is_wrong_is_an_error_that_says_what_came(name, result, came):
    def vendor(x: torch.Tensor) -> torch.Tensor:
        return result(x)

    op = gfxgraph.vendor_op(vendor, name=name)
    message = rf"{name} returned .*{came}.*taken to return torch.float32\[3, 4\].*fake="
    with pytest.raises(ArgumentError, match=message):
        op(torch.randn(3, 4))
    with pytest.raises(ArgumentError, match="fake="):
        torch.compile(lambda x: op(x) + 1, backend="aot_eager")(torch.randn(3, 4))


def test_an_inferred_fake_that_is_right_once_is_looked_at_again(name):
    def first_two_rows(x: torch.Tensor) -> torch.Tensor:
        return x[:2].clone()

    op = gfxgraph.vendor_op(first_two_rows, name=name)
    op(torch.ones(2, 4))
    with pytest.raises(ArgumentError, match=r"returned .*\[2, 4\].*\[3, 4\]"):
        op(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("hint", "returned", "message"),
    [
        (int, torch.ones(2), "returned Tensor, .* say int"),
        (torch.Tensor, 3, "returned int, .* say Tensor"),
        (list[torch.Tensor], torch.ones(2), r"returned Tensor, .* say List\[Tensor\]"),
        (tuple[torch.Tensor, int], torch.ones(2), "returned Tensor, .* say Tensor, int"),
        (tuple[torch.Tensor, int], (torch.ones(2),), "returned tuple of Tensor, .* say Tensor"),
        (tuple[torch.Tensor, int], (3, 3), "returned tuple of int, int, .* say Tensor, int"),
    ],
)
def test_a_result_that_is_not_what_the_hints_say_is_an_error_of_ours(name, hint, returned, message):
    def vendor(x: torch.Tensor):
        return returned

    vendor.__annotations__["return"] = hint
    op = gfxgraph.vendor_op(vendor, name=name, fake=lambda x: returned)
    with pytest.raises(ArgumentError, match=rf"{name} {message}"):
        op(torch.ones(2))


def test_numbers_are_results(name):
    def vendor(x: torch.Tensor) -> tuple[int, float]:
        return np.int64(3), 2

    assert gfxgraph.vendor_op(vendor, name=name, fake=lambda x: (3, 2.0))(torch.ones(1)) == (3, 2)


def test_that_a_fake_was_inferred_is_logged(name, caplog):
    caplog.set_level(logging.WARNING, "gfxgraph")
    gfxgraph.vendor_op(vendor_silu, name=name)
    (line,) = caplog.records
    assert line.event == "fake_inferred" and line.fields["result"] == "empty_like(x)"


def test_where_none_can_be_inferred_a_fake_is_asked_for(name):
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.clone(), x.clone()

    def made(size: int) -> torch.Tensor:
        return torch.zeros(size)

    for function in (two, made):
        with pytest.raises(ArgumentError, match=r"cannot be inferred.*fake="):
            gfxgraph.vendor_op(function, name=name)


@pytest.mark.parametrize(
    "result", [lambda x: x, lambda x: x[:1], lambda x: x.t()], ids=["itself", "view", "transposed"]
)
def test_a_result_that_is_its_argument_is_an_error_that_names_it(name, result):
    def vendor(x: torch.Tensor) -> torch.Tensor:
        return result(x)

    op = gfxgraph.vendor_op(vendor, name=name)
    with pytest.raises(ArgumentError, match=r"shares memory with its argument 'x'.*clone"):
        op(torch.randn(3, 3))


def test_two_results_that_are_one_are_an_error(name):
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clone()
        return y, y

    op = gfxgraph.vendor_op(twice, name=name, fake=lambda x: (x.clone(), x.clone()))
    with pytest.raises(ArgumentError, match="another result"):
        op(torch.ones(2))


@pytest.mark.parametrize("wrong", ["attention", "a.b::c", "::c", "a::", "a::b::c", ""])
def test_a_name_needs_a_namespace(wrong):
    with pytest.raises(ArgumentError, match="expected 'namespace::name', such as 'vendor::vend"):
        gfxgraph.vendor_op(vendor_silu, name=wrong)


def test_without_hints_it_says_which_is_missing_and_what_to_do(name):
    def vendor(x, scale: float):
        return x * scale

    with pytest.raises(ArgumentError, match=r"Parameter x must have a type.*schema="):
        gfxgraph.vendor_op(vendor, name=name)
    op = gfxgraph.vendor_op(vendor, name=name, schema="(Tensor x, float scale) -> Tensor")
    assert op(torch.ones(2), 3.0).tolist() == [3, 3]


def test_a_function_whose_hints_cannot_be_read_and_a_schema_that_is_none(name):
    def vendor(x: Unheard) -> torch.Tensor:  # noqa: F821
        return x

    with pytest.raises(ArgumentError, match="Unheard"):
        gfxgraph.vendor_op(vendor, name=name)
    with pytest.raises(ArgumentError, match="schema"):
        gfxgraph.vendor_op(vendor, name=name, schema="Tensor to Tensor")
    with pytest.raises(ArgumentError, match="function, not int"):
        gfxgraph.vendor_op(3, name=name)


@pytest.mark.parametrize("schema", [None, "(Tensor x, float scale) -> Tensor"])
@pytest.mark.parametrize("wrong", [["other"], "scale", "unknown", [3]])
def test_mutates_has_to_name_tensor_arguments(name, wrong, schema):
    unknown = repr(wrong if isinstance(wrong, str) else str(wrong[0]))
    message = rf"mutates= names {unknown}, but can name only its tensor arguments: 'x'"
    with pytest.raises(ArgumentError, match=message):
        gfxgraph.vendor_op(vendor_silu, name=name, mutates=wrong, schema=schema)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mutates": 3}, r"mutates=3.*names of arguments"),
        ({"mutates": [["x"]]}, "names of arguments"),
        ({"schema": 3}, "schema '3'"),
        ({"name": 3}, r"name=3.*expected 'namespace::name'"),
        ({"fake": 3}, "expected a function, not int"),
    ],
)
def test_arguments_of_another_kind_are_errors_of_ours(name, wrong, message):
    with pytest.raises(ArgumentError, match=message):
        gfxgraph.vendor_op(vendor_silu, **{"name": name, **wrong})


@pytest.mark.parametrize("before", ["double", "vendor::double"])
def test_a_schema_may_begin_with_a_name(name, before):
    op = gfxgraph.vendor_op(lambda x: x * 2, name=name, schema=f"{before}(Tensor x) -> Tensor")
    assert op(torch.ones(1)).tolist() == [2]


def test_a_schema_that_marks_what_is_written_is_enough(name):
    def fill(x, out):
        out.copy_(x)

    with pytest.raises(ArgumentError, match=r"mutates=\['x'\] but the schema .* marks \['out'\]"):
        gfxgraph.vendor_op(fill, name=name, schema="(Tensor x, Tensor(a!) out) -> ()", mutates="x")
    op = gfxgraph.vendor_op(fill, name=name, schema="(Tensor x, Tensor(a!) out) -> ()")
    out = torch.zeros(2)
    torch.compile(lambda x: op(x, out), backend="aot_eager", fullgraph=True)(torch.ones(2))
    assert out.tolist() == [1, 1]


def test_a_function_with_arguments_filled_in_has_the_hints_of_the_function(name):
    op = gfxgraph.vendor_op(functools.partial(vendor_silu, scale=2.0), name=name)
    x = torch.randn(3)
    torch.testing.assert_close(op(x), expected(x, 2.0))


def test_the_same_again_is_the_first_and_something_else_is_an_error(name):
    op = gfxgraph.vendor_op(vendor_silu, name=name)
    assert gfxgraph.vendor_op(vendor_silu, name=name) is op

    def another(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(ArgumentError, match=r"before with fn=.*vendor_silu.*another"):
        gfxgraph.vendor_op(another, name=name)
    with pytest.raises(ArgumentError, match="fake="):
        gfxgraph.vendor_op(vendor_silu, name=name, fake=lambda x, scale=1.0: x)


def test_an_operator_of_others_is_not_replaced():
    with pytest.raises(ArgumentError, match=r"aten::silu.*not ours"):
        gfxgraph.vendor_op(vendor_silu, name="aten::silu")


def test_what_the_vendor_function_raises_arrives_as_it_is(name):
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("no kernel for gfx1030")

    op = gfxgraph.vendor_op(failing, name=name)
    with pytest.raises(KeyError, match="gfx1030"):
        op(torch.ones(1))


# --- graph_breaks ---------------------------------------------------------------------------------


def helper(x):
    print("a break", end="")
    return x * 2


def broken(x):
    y = x.view(-1).relu()
    y = helper(y)
    return y.sin() + y.cos()


def in_a_loop(x):
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x


def line_of(function, text):
    lines = Path(function.__code__.co_filename).read_text(encoding="utf-8").splitlines()
    start = function.__code__.co_firstlineno
    return next(n for n in range(start, len(lines)) if text in lines[n - 1])


def test_a_break_is_reported_with_its_line_its_reason_and_what_the_regions_hold():
    report = gfxgraph.graph_breaks(broken, torch.ones(2, 2))
    (one,) = report.breaks
    assert one.file == __file__ and one.line == line_of(helper, "print(")
    assert one.function == "helper" and "print(" in one.source
    assert "print" in one.reason + one.explanation
    assert [r.launches for r in report.regions] == [1, 1, 3]
    assert [r.operations for r in report.regions] == [2, 1, 3]
    assert report.launches == 5 and report.outside == 0 and report.skipped == 0


class Branching(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return x.sin()


def test_a_branch_on_data_is_one_break_that_is_explained_however_often_it_is_met():
    x = torch.ones(2)
    for model in (Branching(), torch.nn.Sequential(Branching(), Branching())):
        report = gfxgraph.graph_breaks(model, x)
        (one,) = report.breaks
        assert one.line == line_of(Branching.forward, "if x.sum()")
        assert one.reason == "Data-dependent branching" and "`if x.sum() > 0:`" in one.explanation
        assert any("torch.cond" in hint for hint in one.hints)
        assert one.explanation in str(report)


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 makes a generator without running its frame"
)
def test_a_break_without_a_place_says_that_it_is_not_known():
    def made_one_by_one(x):
        yield x + 1

    report = gfxgraph.graph_breaks(made_one_by_one, torch.ones(2))
    assert report.breaks[0].file == "" and "break: place not known\n" in str(report)


def test_a_function_without_breaks_is_one_region():
    def clean(x, *, scale):
        return x.relu() * scale

    report = gfxgraph.graph_breaks(clean, torch.ones(2), scale=3)
    assert report.breaks == () and len(report.regions) == 1 and report.outside == 0
    assert "clean: 0 graph breaks, 1 region" in str(report)


def test_a_function_that_is_given_up_as_a_whole_is_reported_with_the_reason():
    report = gfxgraph.graph_breaks(in_a_loop, torch.ones(2))
    (one,) = report.breaks
    assert report.skipped == 1 and one.line == line_of(in_a_loop, "graph_break()")
    assert report.outside == report.launches == 2
    assert "1 function not compiled at all" in str(report)


def test_a_helper_that_is_given_up_is_counted_beside_what_is_compiled():
    def outer(x):
        return in_a_loop(x * 2) + 1

    report = gfxgraph.graph_breaks(outer, torch.ones(2))
    assert report.skipped == 1 and len(report.regions) == 2


def test_what_stays_outside_of_the_regions_is_counted():
    def positive(x):
        if x.sum().item() > 0:  # the read
            return torch.nonzero(x) + 1  # and nonzero are done eagerly
        return x

    report = gfxgraph.graph_breaks(positive, torch.ones(2))
    assert report.launches == 4 and [r.launches for r in report.regions] == [1, 1]
    assert report.outside == 2 and len(report.breaks) == 2


def test_a_region_that_runs_more_than_once_is_one_region():
    def caller(x):
        for _ in range(3):
            x = helper(x)
            torch._dynamo.graph_break()
        return x

    report = gfxgraph.graph_breaks(caller, torch.ones(2))
    assert [(r.calls, r.launches) for r in report.regions] == [(3, 1)]
    assert report.launches == 3 and report.outside == 0


def test_the_region_of_one_of_torchs_own_modules_is_where_it_was_called():
    def caller():
        return gfxgraph.graph_breaks(torch.nn.Sequential(torch.nn.ReLU()), torch.ones(2))

    (region,) = caller().regions
    assert (region.file, region.function) == (__file__, "caller")
    assert region.line == line_of(caller, "graph_breaks(")


def test_the_report_is_text_and_json(tmp_path):
    report = gfxgraph.graph_breaks(broken, torch.ones(2, 2))
    text = str(report)
    assert f"{__file__}:{line_of(helper, 'print(')}" in text
    assert "1 graph break, 3 regions; of 5 launches of the eager call, 0 in no region" in text
    data = json.loads(report.to_json(tmp_path / "breaks.json"))
    assert data == json.loads((tmp_path / "breaks.json").read_text())
    assert data["breaks"][0]["function"] == "helper" and data["outside"] == 0
    assert [r["launches"] for r in data["regions"]] == [1, 1, 3]


def test_what_cannot_be_called_or_is_compiled_is_an_error():
    with pytest.raises(ArgumentError, match="function or a module, not Tensor"):
        gfxgraph.graph_breaks(torch.ones(1), torch.ones(1))
    itself = torch.nn.Linear(1, 1)
    itself.compile()
    for compiled in (
        torch.compile(broken),
        torch.compile(torch.nn.Linear(1, 1)),
        itself,
        gfxgraph.graphed(torch.compile(broken)),
    ):
        with pytest.raises(ArgumentError, match="compiled already"):
            gfxgraph.graph_breaks(compiled, torch.ones(1))


def test_what_graphed_was_given_is_looked_at_and_not_the_graph():
    class Model(torch.nn.Module):
        def forward(self, x):
            return broken(x)

        @gfxgraph.graphed
        def method(self, x):
            return broken(x)

    expected = gfxgraph.graph_breaks(broken, torch.ones(2, 2)).breaks
    for model in (
        gfxgraph.graphed(broken),
        gfxgraph.graphed(Model()),
        gfxgraph.graphed(Model(), compile=True),
        gfxgraph.compile(Model()),
        Model().method,
    ):
        report = gfxgraph.graph_breaks(model, torch.ones(2, 2))
        assert report.breaks == expected and report.launches == 5


def test_what_the_function_raises_arrives_and_leaves_nothing_behind():
    def failing(x):
        raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        gfxgraph.graph_breaks(failing, torch.ones(1))
    assert gfxgraph.graph_breaks(broken, torch.ones(1)).regions
