"""``gfxgraph check`` takes what a function takes, and its reports can be read."""

from __future__ import annotations

import _thread
import functools
import json
import re
import signal
import sys

import pytest
import torch

import gfxgraph
from gfxgraph.analyze.targets import arguments
from gfxgraph.analyze.view import show
from gfxgraph.errors import ArgumentError
from tests.helpers import command
from tests.helpers.command import gfxgraph_command, importable

MODULE = """\
import torch
from torch import nn

print("loaded")

def clean(x):
    return torch.relu(x)

def folding(x):
    return x[[0, 2]] + x[[1, 3]]

def branching(x):
    return x * 2 if x.sum() > 0 else x

def by_a_number(x):
    return x * float(x.sum())

def eager(x):
    torch.cuda.current_stream().query()
    print("a text that is much longer than a line of a terminal is wide, and is not to be cut: end")
    return x

def scaled(x, *, scale, mask=None):
    return x * scale if mask is None else x * scale * mask

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)

def make_net():
    return Net()

def make_nothing():
    raise RuntimeError("no weights here")

def one_argument():
    return (torch.ones(4, 8),)

def args_and_kwargs():
    return (torch.ones(4, 8),), {"scale": 2.0}

def a_tensor():
    return torch.ones(4, 8)
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch, "check_subject", MODULE)
    monkeypatch.delitem(sys.modules, "check_broken", raising=False)
    return tmp_path


def run(target, *args):
    target = target if ":" in target else f"check_subject:{target}"
    return gfxgraph_command("check", target, *args)


def verdict(target, *args):
    result = run(target, *args, "--json")
    assert result.exit_code in (0, 1, 3), result.output
    report = json.loads(result.stdout)
    assert not [h for h in report["hazards"] if h["rule"] == "raises"], report
    return report["verdict"]


def argument(spec):
    (value,), kwargs = arguments([spec])
    assert not kwargs
    return value


# What it takes.


@pytest.mark.parametrize(
    ("spec", "dtype", "shape"),
    [
        ("float32[4,8]", torch.float32, (4, 8)),
        ("float16[4, 8]", torch.float16, (4, 8)),
        ("int64[1,16]", torch.int64, (1, 16)),
        ("bool[3]", torch.bool, (3,)),
        ("complex64[2]", torch.complex64, (2,)),
        ("float8_e4m3fn[2,2]", torch.float8_e4m3fn, (2, 2)),
        ("float32[]", torch.float32, ()),
        ("float32[0,8]", torch.float32, (0, 8)),
    ],
)
def test_a_tensor_is_a_dtype_and_a_shape(spec, dtype, shape):
    tensor = argument(spec)
    assert (tensor.dtype, tensor.shape, tensor.device.type) == (dtype, shape, "cpu")


def test_integers_are_in_the_range_that_is_given_and_else_0_and_1():
    ids = argument("int64[4096]:50")
    assert ids.min() == 0 and ids.max() == 49
    assert set(argument("int32[64]").tolist()) == {0, 1}
    assert argument("uint8[4096]:256").max() > 127


def test_meta_is_a_shape_without_data():
    tensor = argument("float16[4,8]:meta")
    assert tensor.is_meta and tensor.dtype == torch.float16 and tensor.shape == (4, 8)
    assert verdict("clean", "float16[4,8]:meta") == "captures"


@pytest.mark.parametrize(
    ("spec", "value"),
    [("3", 3), ("-1", -1), ("0.5", 0.5), ("1e-3", 1e-3), ("true", True), ("False", False)],
)
def test_a_number_or_a_truth_is_itself(spec, value):
    assert argument(spec) == value and type(argument(spec)) is type(value)


def test_none_is_none():
    assert argument("none") is None


def test_a_name_makes_a_keyword_argument():
    args, kwargs = arguments(["float32[4,8]", "scale=0.5", "mask=bool[4,8]"])
    assert len(args) == 1 and kwargs["scale"] == 0.5 and kwargs["mask"].dtype == torch.bool
    assert verdict("scaled", "float32[4,8]", "scale=0.5", "mask=bool[4,8]") == "captures"


def test_a_negative_number_comes_after_two_dashes():
    assert run("clean", "--", "-1").exit_code == 1  # relu(-1) raises


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("float33[4]", "no dtype 'float33'"),
        ("Tensor[4]", "no dtype"),
        ("float32[4,,8]", "expected a tensor"),
        ("float32[4,-1]", "expected a tensor"),
        ("float32", "expected a tensor"),
        ("", "expected a tensor"),
        ("int64[4]:many", "expected a tensor"),
        ("int64[4]:0", "from 1 to"),
        ("uint8[4]:257", "from 1 to 256"),
        ("float32[4]:3", "only integers"),
        ("bool[4]:2", "only integers"),
        ("qint8[4]", "cannot be made"),
        ("float32[99999999999999999999]", "cannot be made"),
        ("2x=3", "name=spec"),
        ("x=", "expected a tensor"),
    ],
)
def test_a_malformed_argument_is_refused(spec, problem):
    with pytest.raises(ArgumentError, match=re.escape(problem)):
        arguments([spec])


def test_a_keyword_is_given_once():
    with pytest.raises(ArgumentError, match="a came twice"):
        arguments(["a=1", "a=2"])


def test_a_function_may_make_the_arguments():
    assert verdict("clean", "--make", "check_subject:one_argument") == "captures"
    assert verdict("scaled", "--make", "check_subject:args_and_kwargs") == "captures"


@pytest.mark.parametrize("target", ["make_net()", "Net()"])
def test_parentheses_call_what_makes_the_function(target):
    assert verdict(target, "float32[4,8]") == "captures"


def test_each_run_has_the_same_numbers(in_a_folder):
    (in_a_folder / "check_broken.py").write_text(
        "def f(x):\n    raise ValueError(str(x.sum().item()))\n"
    )
    first, second = (run("check_broken:f", "float32[64]", "--json").stdout for _ in range(2))
    assert first == second and json.loads(first)["hazards"][0]["rule"] == "raises"


def test_what_a_module_prints_when_it_is_loaded_is_not_on_standard_output():
    result = run("clean", "float32[4,8]")
    assert "loaded" not in result.stdout and "loaded" in result.stderr


X = "float32[4,8]"
RAISES = 1 + MODULE.splitlines().index('    raise RuntimeError("no weights here")')


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["check_subject"], "expected module:callable"),
        (["check_subject:"], "expected module:callable"),
        (["nowhere:f", X], "name its file, such as src/nowhere.py:f."),
        (["check_subject:nothing", X], "has no attribute 'nothing'"),
        (["check_subject:nn.pi", X], "has no attribute 'pi'"),
        (["check_subject:__name__", X], "is not callable"),
        (["check_subject:Net", X], "is a class"),
        (["check_subject:make_nothing()", X], f"no weights here (check_subject.py:{RAISES})"),
        (["check_subject:clean"], "missing a required argument: 'x'"),
        (["check_subject:clean", X, X], "too many"),
        (["check_subject:clean", X, "y=1"], "'y'"),
        (["check_subject:Net()", X, X], "too many"),
        (["check_subject:clean", "float33[4]"], "no dtype"),
        (["check_subject:clean", "--make", "check_subject:a_tensor"], "returned Tensor"),
        (["check_subject:clean", "--make", "check_subject:make_nothing"], "no weights here"),
        (["check_subject:clean", "--make", "check_subject:nothing"], "no attribute"),
        (["check_subject:clean", X, "--make", "check_subject:one_argument"], "not both"),
    ],
)
def test_bad_arguments_are_explained_and_told_by_status_2(args, problem):
    result = gfxgraph_command("check", *args)
    assert result.exit_code == 2, result.output
    assert result.stderr.strip().splitlines()[-1].startswith("Error: ")
    assert problem in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize("code", ["import nothing_there", "def f(:", "exit(0)", "1 / 0"])
def test_a_module_that_cannot_be_loaded_is_a_bad_argument(in_a_folder, code):
    (in_a_folder / "check_broken.py").write_text(code)
    result = run("check_broken:f")
    assert result.exit_code == 2 and "cannot be loaded" in result.stderr


def test_help_says_what_the_arguments_look_like():
    text = " ".join(gfxgraph_command("check", "--help").output.split())
    for word in ("float32[4,8]", ":32000", ":meta", "mask=bool[4,8]", "(args, kwargs)", "SARIF"):
        assert word in text


# What it shows.


@pytest.mark.parametrize(
    ("function", "headline", "status"),
    [
        ("clean", "clean: captures unmodified", 0),
        ("folding", "folding: captures by folding constants", 0),
        ("branching", "branching: captures as several graphs, with the host in between", 0),
        (
            "eager",
            "eager: runs eagerly because the host queries the device; the function prints",
            1,
        ),
    ],
)
def test_the_first_line_is_the_verdict_in_words(function, headline, status):
    result = run(function, "float32[4,8]")
    assert result.exit_code == status
    assert result.stdout.splitlines()[0] == headline


def test_a_new_path_for_each_new_value_is_a_verdict_with_a_status_of_its_own():
    for function, status in (("clean", 0), ("folding", 0), ("branching", 0), ("eager", 1)):
        assert run(function, "float32[4,8]").exit_code == status
    result = run("by_a_number", "float32[4,8]")
    assert result.exit_code == 3
    verdict = " ".join(result.stdout.partition("\n1 hazard")[0].split())
    assert verdict == (
        "by_a_number: takes a new path for each new value, and will not replay: "
        "Tensor.item() at check_subject.py:16"
    )
    report = json.loads(run("by_a_number", "float32[4,8]", "--json").stdout)
    assert report["verdict"] == "new-paths" and report["is_graph"] is False


def test_what_keeps_a_call_eager_comes_first_then_what_costs_then_notes():
    def fn(x):
        x = x * torch.tensor([1.0, 2.0, 3.0], device=x.device)  # folds
        if x.sum() > 0:
            print("positive")
        return x

    found = [(one.severity, one.rule) for one in gfxgraph.check(fn, torch.ones(3)).hazards]
    assert found == [("error", "print"), ("warning", "host-read"), ("note", "host-constant")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("print('mean', x.mean().item())", "Move it after the call"),
        ("logging.info('mean %s', x.mean().item())", "Move it after the call"),
        ("y = np.clip(x.cpu().numpy(), 0, 1)", "Do it in torch"),
        ("return x * 2 if x.sum() > 0 else x", "torch.where"),
        ("assert (x == x).all()", "before the calls"),
        ("return x.sum().item()", "let the caller read it"),
        ("return torch.zeros(int(x.abs().sum()), device=x.device)", "upper bound"),
    ],
)
def test_the_remedy_fits_the_line(in_a_folder, line, words):
    (in_a_folder / "check_broken.py").write_text(
        f"import logging\nimport numpy as np\nimport torch\n\ndef f(x):\n    {line}\n    return x\n"
    )
    hazards = json.loads(run("check_broken:f", "float32[4]", "--json").stdout)["hazards"]
    assert any(words in one["remedy"] for one in hazards), hazards


LAPTOP = """\
import torch
from torch import nn

assert torch.cuda.is_available()
offset = torch.ones(8, device="cuda")

class Net(nn.Module):
    def __init__(self, width=8, *, bias=True, name="a:b"):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=bias, device="cuda")
        self.stream = torch.cuda.Stream()
        self.generator = torch.Generator(device="cuda").manual_seed(3)

    def forward(self, x):
        return self.linear(x.to("cuda")) + offset

    def noisy(self, x):
        return x + torch.randn(4, 8, generator=self.generator, device="cuda")

    def aside(self, x):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            y = x * 2
        torch.cuda.current_stream().wait_stream(self.stream)
        return y

net = Net().to("cuda").half().float().eval()

def example():
    return (torch.randn(4, 8, device="cuda"),)
"""


@pytest.mark.parametrize(
    "target",
    [
        "laptop:net",
        "laptop:net.noisy",
        "laptop:net.aside",
        "laptop:Net()",
        "laptop:Net(8, bias=False)",
        "laptop:Net(width=8, name='a:b').forward",
        "laptop.py:net",
        "pack/inner/part.py:Net().noisy",
        "{}/laptop.py:Net(8).aside",
    ],
)
def test_a_target_loads_on_a_simulated_gpu(in_a_folder, monkeypatch, target):
    for name in ("laptop", "pack", "pack.inner", "pack.inner.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (in_a_folder / "laptop.py").write_text(LAPTOP)
    inner = in_a_folder / "pack" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("")
    (inner / "part.py").write_text("from . import deep\n" + LAPTOP)
    (inner / "deep.py").write_text("")
    make = target.partition(":")[0].format(in_a_folder) + ":example"
    assert verdict(target.format(in_a_folder), "--make", make) == "captures"
    assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    "target",
    [
        "check_subject:make_net()()()",
        "check_subject:Net(x for x in y)",
        "check_subject:Net(open('f'))",
        "check_subject:Net(**{'a': 1})",
        "check_subject:lambda x: x",
        "check_subject:clean + clean",
        "check_subject:[clean][0]",
        "check_subject:" + "a." * 5_000 + "b",
        "nowhere.py:f",
        ".py:f",
        "check_subject.py:",
        "check_subject.py:nothing",
    ],
)
def test_other_targets_are_refused_in_one_sentence(target):
    result = gfxgraph_command("check", target, "float32[4,8]")
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert result.stderr.strip().splitlines()[-1].startswith("Error: ")


def test_a_printed_report_is_the_text_of_the_command():
    def fn(x):
        return x * 2 if x.sum() > 0 else x

    fn.__qualname__ = "fn"
    report = gfxgraph.check(fn, torch.ones(3))
    text = str(report)
    assert text.startswith("fn: captures as several graphs, with the host in between\n")
    assert "warning host-read: Tensor.item()" in text and "Hazard(" not in text
    for word in ("  Why: ", "  Remedy: ", f"  {report.hazards[0].place}"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 100


def test_no_hazards_are_said_to_be_none():
    assert "No hazards in 1 operation." in run("clean", "float32[4,8]").stdout


def test_a_hazard_shows_its_rule_place_source_reason_and_remedy():
    lines = run("branching", "float32[4,8]").stdout.splitlines()
    start = lines.index("warning host-read: Tensor.item()")
    assert lines[start + 1] == "  check_subject.py:13"  # not the path from the root
    assert lines[start + 2] == "    return x * 2 if x.sum() > 0 else x"
    assert lines[start + 3].startswith("  Why: ")
    assert any(line.startswith("  Remedy: ") for line in lines[start:])


def test_a_rule_is_explained_once_and_then_referred_to():
    report = gfxgraph.check(lambda x: (x.cpu(), x.sum().item()), torch.ones(3))
    report.hazards = [*report.hazards, *report.hazards]
    text = shown(report)
    assert text.count("  Why: ") == 1
    assert text.count("as for host-read above") == len(report.hazards) - 1


shown = functools.partial(command.shown, show)


def test_prose_fits_80_columns_and_source_is_not_cut():
    out = run("eager", "float32[4,8]").stdout
    source = next(line for line in out.splitlines() if "a text that is much" in line)
    assert source.endswith('end")') and len(source) > 80
    assert all(len(line) <= 80 for line in out.splitlines() if line != source)
    assert "\x1b" not in out


def test_how_often_it_happened_is_shown_from_twice_on():
    def loops(x):
        for _ in range(3):
            x.sum().item()
        return x.mean().item()

    heads = [line for line in shown(gfxgraph.check(loops, torch.ones(3))).splitlines() if line]
    assert "warning host-read: Tensor.item(), 3 times" in heads
    assert "warning host-read: Tensor.item()" in heads


def test_a_terminal_gets_colours():
    report = gfxgraph.check(lambda x: x.cpu(), torch.ones(3))
    coloured = shown(report, force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == shown(report)


def test_what_looks_like_markup_is_shown_as_it_is():
    def fails(x):
        raise ValueError("[bold]not markup[/bold]")

    assert "[bold]not markup[/bold]" in shown(gfxgraph.check(fails, torch.ones(3)))


# In a notebook.


def test_html_says_the_verdict_and_has_a_row_for_each_hazard():
    report = gfxgraph.check(lambda x: x.cpu() if x.sum() > 0 else x, torch.ones(3))
    html = report._repr_html_()
    assert report.in_words in html
    assert html.count("<tr>") == 1 + len(report.hazards) > 1
    assert "src=" not in html and "href=" not in html and "<style" not in html


def test_html_without_hazards_has_no_table():
    html = gfxgraph.check(torch.relu, torch.ones(3))._repr_html_()
    assert "captures unmodified" in html and "No hazards" in html and "<table" not in html


def test_html_escapes_what_comes_from_the_code():
    def fails(x):
        raise ValueError("<script>'&\"</script>")

    html = gfxgraph.check(fails, torch.ones(3))._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;&#x27;&amp;" in html


LEAVES = """\
import sys

def says_so(x):
    raise SystemExit(0)

def calls(x):
    sys.exit()

def interrupts(x):
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize("name", ["says_so", "calls", "interrupts"])
@pytest.mark.parametrize(("task", "status"), [("check", 1), ("verify", 2)])
def test_a_function_that_leaves_the_program_has_raised(tmp_path, monkeypatch, name, task, status):
    importable(tmp_path, monkeypatch, "leaves_subject", LEAVES)
    result = gfxgraph_command(task, f"leaves_subject:{name}", "float32[2]")
    assert result.exit_code == status
    error = "KeyboardInterrupt" if name == "interrupts" else "SystemExit"
    assert error in result.output and "leaves_subject.py" in result.output


@torch.no_grad()
def test_an_interrupt_from_the_keyboard_ends_a_check():
    def waits(x):
        _thread.interrupt_main()
        return x

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            gfxgraph.check(waits, torch.ones(2))
    finally:
        signal.signal(signal.SIGINT, before)
