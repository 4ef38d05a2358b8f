"""The report of ``inspect``: in order, as branches, compared, drawn, and as a page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

import gfxgraph
from gfxgraph.device.nodes import Node
from gfxgraph.errors import ArgumentError
from gfxgraph.inspecting.model import graph_of
from gfxgraph.inspecting.report import InspectReport
from gfxgraph.interpose.source import Source
from tests.helpers.command import gfxgraph_command, importable

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
HERE = Source(__file__, 1, "act")  # the docstring of this file


def kernel(*after, name=ADD, grid=1):
    return Node("kernel", name, after, {"grid": [grid, 1, 1]})


def graph(*nodes, lines=None, name="act(float32[4])", note=""):
    return graph_of(name, nodes, lines or [HERE] * len(nodes), note)


def report(*graphs, name="act"):
    return InspectReport(name, "a GPU", False, "2.11.0", "0.1.0", graphs)


DIAMOND = (
    kernel(),
    kernel(0),
    Node("memcpy", "", (0,), {"bytes": 4096, "from": "host", "to": "device"}),
    Node("host", "", (1, 2), {}),
)


def test_counts_branches_and_the_longest_chain():
    found = graph(*DIAMOND, lines=[HERE, HERE, Source(), HERE])
    assert found.types == {"kernel": 2, "memcpy": 1, "host": 1}
    assert (found.branches, found.depth) == (2, 3)
    assert [node.branch for node in found] == [0, 0, 1, 0]
    assert found.before["0"] == ("1", "2") and found["3"].after == ("1", "2")
    assert found.kernels == {ADD: 2} and found.lines == {f"{__file__}:1": 3}
    assert [node.id for node in found.of_type("memcpy", "host")] == ["2", "3"]
    with pytest.raises(KeyError):
        found["4"]


def test_a_branch_that_was_joined_is_free_for_another():
    fork = [kernel(), kernel(0), kernel(0), kernel(1, 2), kernel(3), kernel(3), kernel(4, 5)]
    assert [node.branch for node in graph(*fork)] == [0, 0, 1, 0, 0, 1, 0]
    loose = [kernel(), kernel(), kernel(0), kernel(1)]
    assert [node.branch for node in graph(*loose)] == [0, 1, 0, 1]


def test_nodes_come_after_those_that_they_wait_for_whatever_the_driver_lists():
    found = graph(kernel(2), kernel(), kernel(1))
    assert [node.id for node in found] == ["1", "2", "0"] and found.depth == 3


def test_nodes_of_a_child_graph_follow_the_node_that_holds_it():
    inner = Node("child graph", "", (), {}, (kernel(), kernel(0)))
    found = graph(kernel(), Node("child graph", "", (0,), {}, (inner, kernel())), kernel(1))
    assert {node.id: node.after for node in found} == {
        "0": (),
        "1": ("0",),
        "1.0": ("1",),
        "1.0.0": ("1.0",),
        "1.0.1": ("1.0.0",),
        "1.1": ("1",),
        "2": ("1",),
    }
    assert {node.line for node in found} == {1}


def test_titles_leave_out_what_all_kernels_have():
    found = graph(kernel(), kernel(name="triton_poi_fused_add_0"), Node("memset", "", (), {}))
    assert [node.title for node in found] == [
        "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3ul> >",
        "triton_poi_fused_add_0",
        "memset",
    ]


def test_a_graph_prints_in_lines_of_a_terminal():
    for count in (0, 4, 41, 3000):
        lines = [HERE, Source(f"/{'long/' * 40}name.py", 123456, "f")] * count
        nodes = [kernel(*((n - 1,) if n else ())) for n in range(2 * count)]
        text = str(report(graph(*nodes, lines=lines, note="After it the host goes on.")))
        assert max(map(len, text.splitlines())) <= 100
        assert f"{2 * count} nodes" in text
        assert ("more: to_html()" in text) == (2 * count > 40)


# Differences.


def differences(before, after):
    (found,) = report(graph(*before)).diff(report(graph(*after))).graphs
    return found


def test_equal_graphs_do_not_differ():
    found = differences(DIAMOND, DIAMOND)
    assert not found.differs and found.same == 4
    assert str(found) == "4 nodes the same, 0 changed, 0 came, 0 went"


def test_nodes_that_came_and_went_are_found_and_what_follows_is_the_same():
    longer = [kernel(), Node("memset", "", (0,), {"bytes": 4}), kernel(1), kernel(2)]
    shorter = [kernel(), kernel(0), kernel(1)]
    came, went = differences(shorter, longer), differences(longer, shorter)
    assert [node.type for node in came.came] == ["memset"] and not came.went
    assert [node.type for node in went.went] == ["memset"] and not went.came
    assert came.same == went.same == 3 and not came.changed and not went.changed


def test_a_kernel_of_the_same_line_with_another_name_or_size_has_changed():
    found = differences(
        [kernel(), kernel(0), kernel(1)], [kernel(grid=9), kernel(0, name="gelu"), kernel(1)]
    )
    assert [one.changes for one in found.changed] == [
        {"grid": ([1, 1, 1], [9, 1, 1])},
        {"name": (ADD, "gelu")},
    ]
    assert found.same == 1 and "name: void at::native" in str(found)


def test_sizes_of_copies_are_compared():
    one, two = ([Node("memcpy", "", (), {"bytes": size})] for size in (4, 8))
    assert differences(one, two).changed[0].changes == {"bytes": (4, 8)}


def test_other_dependencies_are_a_change():
    in_turn = [kernel(), kernel(0), kernel(1)]
    side_by_side = [kernel(), kernel(0), kernel(0)]
    (changed,) = differences(in_turn, side_by_side).changed
    assert changed.changes == {"waits for": (["1"], ["0"])}


def test_lines_are_matched_by_their_text_when_numbers_have_moved(tmp_path):
    found = []
    for folder, text in (("old", "y = x + 1\n"), ("new", "\n\ny = x + 1\n")):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "act.py"
        path.write_text(text)
        line = text.splitlines().index("y = x + 1") + 1
        found.append(report(graph(kernel(), lines=[Source(str(path), line, "act")])))
    assert not found[0].diff(found[1]).differs


def test_a_line_that_was_edited_keeps_the_nodes_that_it_still_makes(tmp_path):
    found = []
    for number, text in enumerate(("return y.relu() + 1\n", "return (y.relu() + 2).neg()\n")):
        path = tmp_path / str(number) / "act.py"
        path.parent.mkdir()
        path.write_text(text)
        nodes = [kernel(name="relu"), kernel(0, name="add"), kernel(1, name="neg")]
        lines = [Source(str(path), 1, "act")] * 3
        found.append(report(graph(*nodes[: 2 + number], lines=lines[: 2 + number])))
    (found,) = found[0].diff(found[1]).graphs
    assert [node.name for node in found.came] == ["neg"] and not found.went
    line = ("act.py:1 return y.relu() + 1", "act.py:1 return (y.relu() + 2).neg()")
    assert [one.changes for one in found.changed] == [{"line": line}] * 2


def test_a_graph_that_only_one_report_has_came_or_went():
    one, two = report(graph(*DIAMOND)), report(graph(*DIAMOND), graph(kernel(), name="more"))
    came, went = one.diff(two), two.diff(one)
    assert [len(g.came) for g in came.graphs] == [0, 1] and came.differs
    assert [len(g.went) for g in went.graphs] == [0, 1] and "more" in str(went)
    assert json.dumps(came.to_dict())
    with pytest.raises(ArgumentError, match="report of another inspect"):
        one.diff(3)


@pytest.mark.long
def test_long_graphs_of_like_nodes_are_compared_too():
    many = [kernel(*((n - 1,) if n else ()), grid=n % 7) for n in range(3000)]
    other = [*many[:1500], Node("memset", "", (1499,), {}), *many[1500:]]
    found = differences(many, other)
    assert [node.type for node in found.came] == ["memset"] and not found.went
    names = [["a", "b", "b"][n % 3] for n in range(5000)]
    one = [kernel(name=name) for name in names]
    two = [kernel(name=name) for name in ["b", *names[1:2500], "c", *names[2501:-1], "a"]]
    found = differences(one, two)
    assert not found.came and not found.went and len(found.changed) == 3


# JSON, drawings, the page.


def test_json_gives_the_report_back(tmp_path):
    one = report(graph(*DIAMOND, note="a note"), graph())
    assert json.loads(one.to_json(tmp_path / "graph.json"))["schema"] == "gfxgraph.inspect/1"
    assert InspectReport.from_json(tmp_path / "graph.json") == one


def damaged(change):
    data = report(graph(*DIAMOND)).to_dict()
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        damaged(lambda data: data.pop("graphs")),
        damaged(lambda data: data.update(graphs=3)),
        damaged(lambda data: data.update(name=None)),
        damaged(lambda data: data["graphs"][0]["nodes"][1].update(after=["7"])),
        damaged(lambda data: data["graphs"][0]["nodes"][1].update(after=["1"])),
        damaged(lambda data: data["graphs"][0]["nodes"][1].update(branch=-1)),
        damaged(lambda data: data["graphs"][0]["nodes"][1].update(branch="0")),
        damaged(lambda data: data["graphs"][0]["nodes"][1].update(name=None)),
        damaged(lambda data: data["graphs"][0]["nodes"][1].pop("details")),
    ],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, text):
    path = tmp_path / "graph.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"graph\.json"):
        InspectReport.from_json(path)


@pytest.mark.parametrize("method", ["to_json", "to_dot", "to_svg", "to_html"])
def test_each_form_is_given_and_written_or_the_path_is_named(tmp_path, method):
    one = report(graph(*DIAMOND))
    path = tmp_path / "file"
    text = getattr(one, method)(path)
    assert path.read_text(encoding="utf-8").rstrip("\n") == text.rstrip("\n")
    for bad in (tmp_path / "none" / "file", tmp_path, "a\0b", 3.5):
        with pytest.raises(ArgumentError, match=f"{method}.*cannot be written"):
            getattr(one, method)(bad)


HOSTILE = 'a"b\\n\n<script>alert("1")</script>&amp;]]><!-- {{data}} {{name}} \x01 \N{SNOWMAN}'


def hostile():
    return report(
        graph(kernel(name=HOSTILE), Node(HOSTILE, "", (0,), {HOSTILE: HOSTILE}), name=HOSTILE),
        name=HOSTILE,
    )


def test_names_that_utf_8_cannot_encode_are_written(tmp_path):
    one = report(graph(kernel(name="\ud800"), name="\udfff"))
    for method in ("to_json", "to_dot", "to_svg", "to_html"):
        getattr(one, method)(tmp_path / method)
        assert (tmp_path / method).read_text(encoding="utf-8")
    assert InspectReport.from_json(tmp_path / "to_json") == one


def test_dot_has_a_node_and_an_edge_for_each_whatever_names_hold():
    text = report(graph(*DIAMOND)).to_dot()
    assert text.count(" -> ") == 4 and text.count("tooltip") == 4
    quoted = re.sub(r'"(\\.|[^"\\])*"', "Q", hostile().to_dot())
    assert '"' not in quoted and "script" not in quoted
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=hostile().to_dot().encode(), check=True, timeout=60)


@pytest.mark.parametrize("graphviz", [True, False])
def test_svg_is_xml_with_all_nodes(monkeypatch, graphviz):
    if not graphviz:
        monkeypatch.setattr(shutil, "which", lambda program: None)
    elif shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    for one in (report(graph(*DIAMOND)), hostile(), report()):
        root = ElementTree.fromstring(one.to_svg())
        shapes = [e for e in root.iter() if e.tag.endswith(("circle", "}g"))]
        assert root.tag.endswith("svg") and len(shapes) >= sum(map(len, one))
        assert not any(e.tag.endswith("script") for e in root.iter())


def test_an_image_is_drawn_without_graphviz_where_that_fails(monkeypatch, tmp_path):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "circle" in report(graph(*DIAMOND)).to_svg()


class Page(HTMLParser):
    """The tags of a page, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


@pytest.mark.parametrize("make", [lambda: report(graph(*DIAMOND)), hostile, report])
def test_the_page_holds_all_nodes_and_loads_nothing(make):
    one = make()
    text = one.to_html()
    page = Page(text)
    data = json.loads(page.scripts[0])
    shown = [[node["id"] for node in g["nodes"]] for g in data["graphs"]]
    assert shown == [[node.id for node in g] for g in one]
    assert [g["name"] for g in data["graphs"]] == [g.name for g in one]
    assert len(page.scripts) == 2  # the data and the code: no name has made another
    loading = {"src", "href", "action", "data", "poster", "srcset"}
    assert not any(loading & attributes.keys() for _, attributes in page.tags)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert "default-src 'none'" in text
    labelled = [tag for tag, _ in page.tags if tag in ("label", "input", "select")]
    assert labelled.count("label") == labelled.count("input") + labelled.count("select")


def test_the_code_of_the_page_is_valid(tmp_path):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    path = tmp_path / "page.js"
    path.write_text(Page(report(graph(*DIAMOND)).to_html()).scripts[1])
    subprocess.run(["node", "--check", path], check=True, timeout=60)


# The command.

POLICY = """
import torch

def act(x):
    y = x * 2
    return y.relu()

def other(x):
    y = x * 2
    return torch.nn.functional.gelu(y) + 1

def reads(x):
    return torch.nonzero(x)

def fails(x):
    raise ValueError("no such thing")

def example():
    return (torch.ones(3),)
"""


@pytest.fixture
def policy(tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch, "inspected_policy", POLICY)
    monkeypatch.setattr("gfxgraph.graph.native.NativeGraph.keeps_nodes", False)
    return tmp_path


def run(*args):
    return gfxgraph_command("inspect", *args)


def test_the_command_shows_the_nodes_and_their_lines(policy):
    result = run("inspected_policy:act", "float32[4]")
    assert result.exit_code == 0 and "act(float32[4])" in result.stdout
    assert "inspected_policy.py:5" in result.stdout and "inspected_policy.py:6" in result.stdout


def test_the_command_writes_files_and_compares_with_an_older_one(policy):
    files = [arg for end in ("json", "html", "svg", "dot") for arg in ("--out", f"act.{end}")]
    assert run("inspected_policy:act", "--make", "inspected_policy:example", *files).exit_code == 0
    assert {path.suffix for path in policy.glob("act.*")} == {".json", ".html", ".svg", ".dot"}
    result = run("inspected_policy:other", "float32[3]", "--compare", "act.json")
    assert result.exit_code == 0 and "Since act.json" in result.stdout and "\n+ " in result.stdout
    result = run("inspected_policy:act", "float32[3]", "--json")
    assert json.loads(result.stdout)["schema"] == "gfxgraph.inspect/1"


def test_the_command_writes_to_the_folder_that_it_was_called_in(policy, monkeypatch):
    text = f"import os\nos.chdir('/')\n{POLICY}"
    importable(policy, monkeypatch, "policy_that_moves", text)
    assert run("policy_that_moves:act", "float32[3]", "--out", "moved.json").exit_code == 0
    assert (policy / "moved.json").is_file()


def test_the_command_shows_what_it_could_not_write(policy, monkeypatch):
    text = f"import os, pathlib\npathlib.Path('gone/a.json').parent.rmdir()\n{POLICY}"
    importable(policy, monkeypatch, "policy_without_folder", text)
    (policy / "gone").mkdir()
    result = run("policy_without_folder:act", "float32[3]", "--out", "gone/a.json")
    assert result.exit_code == 2 and "act(float32[3])" in result.stdout
    assert "cannot be written" in result.stderr


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["inspected_policy:act"], 2, "arguments do not fit"),
        (["inspected_policy:none", "float32[3]"], 2, "cannot be loaded"),
        (["inspected_policy:fails", "float32[3]"], 2, "ValueError: no such thing"),
        (["inspected_policy:act", "float32[3]", "--make", "a:b"], 2, "not both"),
        (["inspected_policy:act", "float32[3]", "--out", "a.png"], 2, "ends in .html"),
        (["inspected_policy:act", "float32[3]", "--out", "no/a.html"], 2, "cannot be written"),
        (["inspected_policy:act", "float32[3]", "--compare", "no.json"], 2, "no.json"),
        (["inspected_policy:reads", "float32[3]"], 3, "no graph"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(policy, args, status, words):
    result = run(*args)
    assert result.exit_code == status and words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 or gfxgraph.device_type() == "cuda"
