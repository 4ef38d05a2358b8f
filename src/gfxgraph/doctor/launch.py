"""``gfxgraph run``: starts a program with the recommended variables set.

It replaces the process by a fresh Python. There :func:`main` imports gfxgraph, which enables itself
(``GFXGRAPH=1``), and then runs the program as ``python`` would: ``__main__``, ``sys.argv``,
``sys.path``, exit status, signals and standard streams are the program's own.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from .. import settings
from ..device.platform import this_platform
from ..errors import ArgumentError, DeviceError
from .environment import Variable, recommended, remarks, slowing

__all__ = ["environment_of", "main", "prepared", "refuse", "start"]

# Python puts '' first for -c: a folder torch/ in the current directory is not to be imported here.
_BOOTSTRAP = """\
import sys
sys.path[:1] = [one for one in sys.path[:1] if one]
root = sys.argv.pop(1)
if root not in sys.path: sys.path.append(root)
from gfxgraph.doctor.launch import main
main()
"""
_FLAG = re.compile(r"-[bBdEiIOPqRsSuv]+|-[XW].+")


def refuse(target: str, module: bool) -> None:
    """Refuse a script that cannot be run, before starting anything.

    Raises:
        ArgumentError: there is no such file or command, or it is a folder without ``__main__.py``.
    """
    path = Path(target)
    if module or _command(target) is not None:
        return  # the parents of a module would have to be imported; main says it
    if not path.exists():
        dotted = not target.endswith(".py") and all(map(str.isidentifier, target.split(".")))
        hint = f" For a module: gfxgraph run -m {target}" if dotted else ""
        raise ArgumentError(
            f"There is no file {target!r}, and no package installed here has a command of that "
            f"name.{hint}"
            if dotted
            else f"There is no file {target!r}."
        )
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise ArgumentError(
            f"{target!r} is a directory without a __main__.py: name the file to run."
        )
    if not os.access(path, os.R_OK):
        raise ArgumentError(f"{target!r} cannot be read: see its permissions.")


def _command(target: str) -> EntryPoint | None:
    """The command of an installed package with that name, unless a program here has it."""
    if Path(target).is_file() or (Path(target) / "__main__.py").is_file():
        return None
    return next(iter(entry_points(group="console_scripts", name=target)), None)


def environment_of(variables: Sequence[Variable], environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with ``GFXGRAPH=1`` and those of ``variables`` that it lacks.

    Variables that are set keep their values, even empty ones.
    """
    return {"GFXGRAPH": "1"} | {one.name: one.value for one in variables} | dict(environ)


def prepared(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` with the variables that this machine needs.

    It reports on standard error which variables it sets, which keep another value, and which have
    no effect.

    A device that does not answer needs nothing: the program itself will say why it cannot run.

    Raises:
        SettingError: a variable holds a value with which gfxgraph cannot be enabled.
    """
    try:
        platform = this_platform(environ)
    except DeviceError as error:
        variables, said = [], [str(error)]
    else:
        variables, said = recommended(platform), []
        for one in variables:
            if one.set_to is None:
                said.append(f"{one.name}={one.value} ({one.source})")
            elif one.set_to != one.value:
                now = f"{one.name} is set to {one.set_to!r}"
                said.append(f"{now}; recommended is {one.value} ({one.source})")
        said += map(str, remarks(platform) + slowing(platform))
    for line in said:
        print(f"gfxgraph run: {line}", file=sys.stderr)
    found = environment_of(variables, environ)
    if settings.mode(found) != "off":
        settings.from_environment(found)
    return found


def start(
    target: str,
    args: Sequence[str],
    environ: Mapping[str, str],
    *,
    module: bool = False,
    replace: bool = os.name == "posix",
) -> NoReturn:
    """Run a program and do not come back.

    Args:
        target: a script, a command of an installed package, or a module.
        args: its arguments.
        environ: its environment.
        module: whether ``target`` is a module.
        replace: replace this process; else start a new one, and exit with its status. Default:
            replace it where the system can (Windows cannot).
    """
    root = str(Path(__file__).parents[2])
    kind = "module" if module else "script" if _command(target) is None else "command"
    command = [sys.executable, *_own_flags(), "-c", _BOOTSTRAP, root, kind, target, *args]
    sys.stdout.flush()
    sys.stderr.flush()
    if replace:
        os.execve(sys.executable, command, dict(environ))
    raise SystemExit(subprocess.call(command, env=dict(environ)))


def main() -> None:
    """Run what ``sys.argv`` names: ``script``, ``command`` or ``module``, name, arguments."""
    atexit.register(_remember_the_interrupt)  # first, so that it runs after those of the program
    _, kind, target, *args = sys.argv
    sys.argv = [target, *args]
    try:
        if kind == "module":
            _prepend(os.getcwd())
            _run_module(target)
        elif kind == "command":
            _run_command(target)
        elif Path(target).is_file() and not _is_zip(target):
            # As Python does: the folder in which the file really is, not that of a link to it.
            _prepend(os.path.dirname(os.path.realpath(target)))
            _run_script(target)
        else:
            runpy.run_path(target, run_name="__main__")  # a folder or an archive
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            _interrupted.append(True)
        _begin_in_the_program(error)
        raise


_interrupted: list[bool] = []


def _remember_the_interrupt() -> None:
    """Let Python end by the signal, as it does after an interrupt.

    It forgets that one was unhandled when an exit handler compiles and runs code.
    """
    if _interrupted:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _run_script(target: str) -> None:
    # Not runpy.run_path: it would change sys.argv[0], and drop __main__ at the end of the script,
    # before threads and exit handlers are done with it.
    path = os.path.abspath(target)
    module = types.ModuleType("__main__")
    vars(module).update(
        __file__=path,
        __builtins__=builtins,
        __loader__=SourceFileLoader("__main__", path),
        __cached__=None,
    )
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(module))


def _run_command(name: str) -> None:
    """Run a command as the script that pip installs for it does."""
    command = _command(name)
    assert command is not None  # start() has seen it
    sys.argv[0] = shutil.which(name) or name
    if os.path.isabs(sys.argv[0]):
        _prepend(os.path.dirname(sys.argv[0]))
    sys.exit(command.load()())


def _run_module(name: str) -> None:
    found = _found(name)
    if found.submodule_search_locations is not None:
        _found(f"{name}.__main__")  # the module that runs for a package
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _found(name: str) -> ModuleSpec:
    """The module, after importing its parents; their errors are the program's own."""
    parent = "" if name.startswith(".") else name.rpartition(".")[0]
    try:
        if parent:
            __import__(parent)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{parent}.".startswith(f"{error.name}."):
            raise
        _no_module(str(error))
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        _no_module(str(error))
    return found or _no_module(f"No module named {name!r}")


def _no_module(problem: str) -> NoReturn:
    print(f"Error: {problem}.", file=sys.stderr)
    sys.exit(2)


def _begin_in_the_program(error: BaseException) -> None:
    """Show the traceback of ``error`` without the frames that called the program.

    It has to be raised all the same: Python ends a process by SIGINT for a KeyboardInterrupt that
    nothing catches, and every frame that it passes is added to its traceback.
    """
    trace, hook = error.__traceback__, sys.excepthook
    while trace and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        trace = trace.tb_next

    def show(kind: type[BaseException], value: BaseException, whole: TracebackType | None) -> None:
        if value is error:
            value, whole = value.with_traceback(trace), trace
        hook(kind, value, whole)

    sys.excepthook = show


def _prepend(folder: str) -> None:
    """Put ``folder`` first, as Python does unless -P or -I forbid it."""
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path.insert(0, folder)


def _is_zip(target: str) -> bool:
    with open(target, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _own_flags() -> list[str]:
    """The options of Python that this process was started with: ``-O``, ``-u``, ``-X dev``."""
    flags = []
    rest = iter(sys.orig_argv[1:])
    for one in rest:
        if one in ("-X", "-W"):
            flags += [one, next(rest, "")]
        elif _FLAG.fullmatch(one):
            flags.append(one)
        else:
            break
    return flags
