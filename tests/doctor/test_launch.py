"""``gfxgraph run`` runs a program as ``python`` does, with gfxgraph enabled and variables set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from gfxgraph.device.platform import Platform
from gfxgraph.doctor import launch
from gfxgraph.doctor.environment import recommended
from gfxgraph.doctor.launch import environment_of, prepared, start
from gfxgraph.errors import DeviceError
from tests.helpers.command import gfxgraph_command
from tests.helpers.paths import SOURCE
from tests.helpers.sampled import sampled

SEGMENTS = "DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING"
MI355 = Platform("amd", arch="gfx950", rocm="7.2.4")

# What a program sees of how it was started; all of it, but "enabled", is as with python.
SCRIPT = """\
import atexit, json, os, sys
def report(**more):
    main = sys.modules["__main__"]
    print(json.dumps({
        "argv": sys.argv, "name": __name__, "path": sys.path[0],
        "is_main": main.__dict__ is globals(), "spec": getattr(__spec__, "name", None),
        "optimize": sys.flags.optimize, "dev": sys.flags.dev_mode, **more,
    }))
atexit.register(report, at="exit")
gfxgraph = sys.modules.get("gfxgraph")
enabled = gfxgraph is not None and gfxgraph.is_enabled()
report(file=__file__, stdin=sys.stdin.read(), enabled=enabled)
sys.exit(7)
"""


def python(*args, flags=(), **options):
    command = [sys.executable, *flags, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


def started(capfd, target, *args, module=False):
    """Status and output of a program in a child, without a command line in between."""
    environ = os.environ | {"GFXGRAPH": "1"}
    with pytest.raises(SystemExit) as ended:
        start(str(target), args, environ, module=module, replace=False)
    return ended.value.code, *capfd.readouterr()


@pytest.mark.long
def test_a_script_sees_what_it_sees_under_python_but_gfxgraph_is_enabled(tmp_path, device):
    folder = tmp_path / "where it is"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (tmp_path / "link.py").symlink_to(folder / "script.py")
    (tmp_path / "torch").mkdir()  # a checkout of torch, which is not to be imported
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('the wrong torch')")
    args = ("link.py", "--help", "-x", "a b", "--", "-m")
    options = {"cwd": tmp_path, "input": "from the terminal\n", "flags": ("-O", "-X", "dev")}
    plain = python(*args, **options)
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "gfxgraph").write_text("from gfxgraph.cli import app\napp()\n")  # as pip writes it
    ours = python(
        bin / "gfxgraph", "run", *args, env=os.environ | {"PYTHONPATH": SOURCE}, **options
    )
    assert plain.returncode == ours.returncode == 7, ours.stderr
    expected = [json.loads(line) for line in plain.stdout.splitlines()]
    found = [json.loads(line) for line in ours.stdout.splitlines()]
    assert (expected[0].pop("enabled"), found[0].pop("enabled")) == (False, True)
    assert found == expected
    assert found[0]["argv"] == list(args) and found[0]["path"] == str(folder)
    assert found[0]["optimize"] == 1 and found[0]["dev"]


def test_a_module_sees_what_it_sees_under_python(tmp_path, monkeypatch, capfd):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "tool.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    plain = python("-m", "package.tool", "--verbose", stdin=subprocess.DEVNULL)
    monkeypatch.setattr(sys, "stdin", subprocess.DEVNULL)
    status, out, _ = started(capfd, "package.tool", "--verbose", module=True)
    assert status == plain.returncode == 7
    expected, found = (json.loads(text.splitlines()[0]) for text in (plain.stdout, out))
    assert (expected.pop("enabled"), found.pop("enabled")) == (False, True)
    assert found == expected and found["spec"] == "package.tool"


def test_an_error_has_the_traceback_and_the_status_of_python(tmp_path, capfd):
    script = tmp_path / "fails.py"
    script.write_text("def f():\n    return 1 / 0\n\nf()\n")
    plain = python(script)
    status, out, err = started(capfd, script)
    assert (status, out, err) == (plain.returncode, plain.stdout, plain.stderr)
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize(
    ("init", "tool"),
    [
        ("", "def f():\n    return 1 / 0\nf()\n"),
        pytest.param("raise ValueError('cfg broken')", "", marks=pytest.mark.long),
        ("import a_missing_package", ""),
        pytest.param("import broken.missing", "", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", sampled(["broken", "broken.tool"], 2))
def test_an_error_in_a_module_or_its_package_is_that_of_python(
    init, tool, name, tmp_path, monkeypatch, capfd
):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text(init)
    for file in ("__main__.py", "tool.py"):
        (tmp_path / "broken" / file).write_text(tool)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    plain = python("-m", name)
    status, _, err = started(capfd, name, module=True)
    expected = plain.stderr.splitlines()
    assert status == plain.returncode == 1 and err.splitlines()[-1] == expected[-1]
    users = next(at for at, line in enumerate(expected) if str(tmp_path) in line)
    assert err.splitlines() == [expected[0], *expected[users:]]


@pytest.mark.long
def test_a_folder_with_a_main_file_runs(tmp_path, capfd):
    (tmp_path / "__main__.py").write_text("import helper; raise SystemExit(helper.status)")
    (tmp_path / "helper.py").write_text("status = 5")
    assert started(capfd, tmp_path)[0] == 5


def installed_command(folder, monkeypatch, function):
    """A package with the command ``greet``, as pip leaves it."""
    info = folder / "greeter-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[console_scripts]\ngreet = greeter:cli.main\n")
    (folder / "greeter.py").write_text(
        f"import json, sys, gfxgraph\nclass cli:\n    @staticmethod\n    def main():\n{function}"
    )
    (folder / "bin").mkdir()
    script = folder / "bin" / "greet"
    script.write_text("#!/bin/sh\nexit 99\n")
    script.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{SOURCE}")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    return script


@pytest.mark.long
def test_a_command_of_an_installed_package_runs_with_gfxgraph_enabled(tmp_path, monkeypatch, capfd):
    script = installed_command(
        tmp_path / "site",
        monkeypatch,
        "        print(json.dumps([sys.argv, sys.path[0], gfxgraph.is_enabled()]))\n"
        "        return 3\n",
    )
    folder = tmp_path / "work"
    (folder / "greet").mkdir(parents=True)  # a checkout, which is no program
    monkeypatch.chdir(folder)
    launch.refuse("greet", False)
    status, out, _ = started(capfd, "greet", "serve", "--port", "1")
    assert status == 3
    assert json.loads(out) == [[str(script), "serve", "--port", "1"], str(script.parent), True]
    (folder / "greet" / "__main__.py").write_text("raise SystemExit(4)")  # now it is one
    assert started(capfd, "greet")[0] == 4


@pytest.mark.long
def test_an_error_in_a_command_begins_in_the_command(tmp_path, monkeypatch, capfd):
    installed_command(tmp_path, monkeypatch, "        return 1 / 0\n")
    status, _, err = started(capfd, "greet")
    assert status == 1 and "ZeroDivisionError" in err and "launch.py" not in err


@pytest.mark.long
def test_it_is_the_same_process_and_ctrl_c_ends_it(tmp_path):
    script = tmp_path / "waits.py"
    script.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    command = [sys.executable, "-m", "gfxgraph", "run", "--", str(script)]
    # A shell that runs the tests in its background ignores SIGINT, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    lines = err.decode().splitlines()
    assert lines[0].startswith("Traceback") and str(script) in lines[1]
    assert lines[-1] == "KeyboardInterrupt" and "launch.py" not in err.decode()


@pytest.mark.long
def test_an_interrupt_is_not_forgotten_where_an_exit_handler_runs_code(tmp_path):
    script = tmp_path / "ends.py"
    script.write_text(
        "import atexit\natexit.register(lambda: exec('print(1)'))\nraise KeyboardInterrupt\n"
    )
    command = [sys.executable, "-m", "gfxgraph", "run", "--", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stdout == "1\n"
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


# The environment.


def test_what_is_set_is_never_overridden():
    variables = recommended(MI355)
    assert environment_of(variables, {"A": "1"}) == {"A": "1", "GFXGRAPH": "1", SEGMENTS: "0"}
    for own in ({SEGMENTS: "2", "GFXGRAPH": "debug"}, {SEGMENTS: "", "GFXGRAPH": ""}):
        assert environment_of(variables, own) == own


def on_mi355(monkeypatch):
    monkeypatch.setattr(
        launch, "this_platform", lambda environ: replace(MI355, environment=environ)
    )


def test_what_is_set_is_said_on_standard_error(monkeypatch, capsys):
    on_mi355(monkeypatch)
    assert prepared({}) == {"GFXGRAPH": "1", SEGMENTS: "0"}
    said = capsys.readouterr()
    assert said.err.startswith(f"gfxgraph run: {SEGMENTS}=0 (https://") and not said.out
    assert prepared({SEGMENTS: "0"})[SEGMENTS] == "0"
    assert not capsys.readouterr().err


def test_what_is_left_at_another_value_is_said(monkeypatch, capsys):
    on_mi355(monkeypatch)
    assert prepared({SEGMENTS: "1"})[SEGMENTS] == "1"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gfxgraph run: {SEGMENTS} is set to '1'; recommended is 0 (https://")


def test_what_is_set_to_no_effect_is_said(monkeypatch, capsys):
    on_mi355(monkeypatch)
    prepared({SEGMENTS: "0", "HIP_GRAPH_ENABLED": "1"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gfxgraph run: HIP_GRAPH_ENABLED is set to '1'. Nothing reads it")


def test_where_the_device_does_not_answer_the_program_runs_nevertheless(monkeypatch, capsys):
    def silent(environ):
        raise DeviceError("GPU 0 does not answer: it is away.")

    monkeypatch.setattr(launch, "this_platform", silent)
    assert prepared({}) == {"GFXGRAPH": "1"}
    assert "GPU 0 does not answer" in capsys.readouterr().err


# What cannot be run.


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([], "Missing argument"),
        (["-m"], "Missing argument"),
        (["nothing.py"], "There is no file 'nothing.py'."),
        (["."], "is a directory without a __main__.py"),
        (["--unknown", "x.py"], "No such option"),
    ],
)
def test_what_cannot_be_run_is_explained_and_told_by_status_2(args, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = gfxgraph_command("run", *args)
    assert result.exit_code == 2 and problem in result.stderr and not result.stdout


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module", "No module named 'no_such_module'"),
        pytest.param(
            "no_such_module.tool", "No module named 'no_such_module'", marks=pytest.mark.long
        ),
        pytest.param(
            "xml.no_such_module", "No module named 'xml.no_such_module'", marks=pytest.mark.long
        ),
        ("this.tool", "trying to find 'this.tool'"),
        pytest.param("xml", "No module named 'xml.__main__'", marks=pytest.mark.long),
        pytest.param(".json", "relative", marks=pytest.mark.long),
    ],
)
def test_a_module_that_is_not_there_is_told_by_status_2(name, problem, capfd):
    status, _, err = started(capfd, name, module=True)
    (line,) = err.splitlines()
    assert status == 2 and line.startswith("Error: ") and problem in line


@pytest.mark.parametrize(
    ("target", "hint"), [("my_package.tool", True), ("nope.py", False), ("no/such file", False)]
)
def test_a_module_is_suggested_only_for_the_name_of_one(target, hint):
    result = gfxgraph_command("run", target)
    assert ("run -m" in result.stderr) == hint and "There is no file" in result.stderr
