"""The code blocks of a page, and how each is run.

A page is read from its top, in a folder of its own. What a block is says its language:

- ``python``: run, all blocks of a page in one namespace, which has ``torch`` and ``gfxgraph``. With
  ``title="name.py"`` it is a file that later blocks use. Of ``print(...)  # -> text`` the text is
  compared.
- ``console``: each line that begins with ``$`` is a command; what it prints is compared.
- ``sh``: commands that are shown without their output. Those of gfxgraph are parsed by the command
  line itself, so that each option exists; of others the program has to be one that is known here.
- ``json``, ``yaml``, ``toml``, ``ini``: parsed. With ``title="name"`` it is a file too.
- ``text``: a picture, or a line of a log. With ``title="Output"`` it is what the python block
  before it printed, compared.

A comment ``<!-- python ... -->`` is run as well, and not shown. A comment ``<!-- numbers vary -->``
before a block says that its numbers, and the names of machines, are another run's.

``PYTHONPATH=src python -m tests.docs.blocks PAGE...`` writes what the commands print now.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import itertools
import json
import linecache
import logging
import os
import re
import runpy
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer.main
from typer.testing import CliRunner

import gfxgraph
from gfxgraph.cli import app
from gfxgraph.tables import WIDTH, fit
from tests.helpers.paths import ROOT

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$"
    r"|^<!-- (?P<hidden>python)\n(?P<code>.*?)^-->$"
    r"|^ *<!-- (?P<varies>numbers vary) -->$",
    re.MULTILINE | re.DOTALL,
)
_SNIPPET = re.compile(r'^--8<-- "([^"]+)"$', re.MULTILINE)
_TITLE = re.compile(r'title="([^"]+)"')
_PRINTS = re.compile(r"print\(.*\)  # -> (.*)$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"\w+=\S*")
# Programs that pages name, and that no test runs.
PROGRAMS = {"cd", "curl", "docker", "eval", "export", "git", "make", "nsys", "pip", "pre-commit"}
PROGRAMS |= {"pytest", "python", "python3", "rocminfo", "rocprofv3", "source", "torchrun", "vllm"}
COLUMNS = "80"
_TIMES = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        language: of the fence; empty: none.
        title: the file it is, empty where it is none.
        body: its text, without the indentation of the fence.
        line: of the page, from 1, on which the body begins.
        span: where its body lies in the text of the page.
        indent: before each line of it.
        varies: whether its numbers are another run's.
    """

    language: str
    title: str
    body: str
    line: int
    span: tuple[int, int]
    indent: str = ""
    varies: bool = False


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks of a page, from its top."""
    varies = False
    for found in _FENCE.finditer(text):
        if found["varies"]:
            varies = True
            continue
        part = "code" if found["hidden"] else "body"
        title = _TITLE.search(found["info"] or "")
        yield Block(
            found["hidden"] or found["language"],
            title[1] if title else "",
            _SNIPPET.sub(_included, textwrap.dedent(found[part])),
            text.count("\n", 0, found.start(part)) + 1,
            found.span(part),
            found["indent"] or "",
            varies,
        )
        varies = False


def _included(snippet: re.Match[str]) -> str:
    return (ROOT / snippet[1]).read_text(encoding="utf-8").rstrip("\n")


class Mismatch(AssertionError):
    """A block shows something else than it prints."""


class Reader:
    """Runs the blocks of one page, in the current folder.

    Args:
        name: of the page.
        compare: ``False``: only run, and keep what was printed in ``printed``.
    """

    def __init__(self, name: str, compare: bool = True) -> None:
        self.name = name
        self.compare = compare
        self.namespace: dict[str, Any] = {"__name__": "__main__", "torch": torch}
        self.namespace["gfxgraph"] = gfxgraph
        self.printed: dict[Block, str] = {}
        self._last = ""
        self._status = 0
        torch.manual_seed(0)

    def read(self, block: Block) -> None:
        """Run a block.

        Raises:
            Mismatch: it shows something else.
        """
        if block.title and block.language != "console" and block.language != "text":
            path = Path(block.title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            self._python(block)
        how = {"console": self._console, "sh": self._sh, "text": self._text, "json": self._json}
        how |= {"yaml": self._yaml, "toml": self._toml, "ini": self._ini}
        if block.language in how:
            how[block.language](block)
        elif block.language not in ("python", ""):
            raise Mismatch(f"{self.name}:{block.line}: no block is {block.language!r}")

    def _python(self, block: Block) -> None:
        # A file, since gfxgraph reads the source of functions; with the lines that the page has.
        source = "\n" * (block.line - 1) + block.body
        file = Path(f"{Path(self.name).stem}_{block.line}.py").resolve()
        file.write_text(source, encoding="utf-8")
        out = io.StringIO()
        fit(WIDTH)  # a command of this process may have found a narrower terminal
        with contextlib.redirect_stdout(out):
            exec(compile(source, str(file), "exec", dont_inherit=True), self.namespace)
        self._last = out.getvalue()
        lines = iter(self._last.splitlines())
        for expected in _PRINTS.findall(block.body):
            if self.compare and expected not in lines:
                raise Mismatch(f"{self.name}:{block.line}: {expected!r} not in {self._last!r}")

    def _console(self, block: Block) -> None:
        shown = []
        for command, _ in commands_of(block.body):
            out = self._run(command)
            shown += [f"$ {command}\n", out if out.endswith("\n") or not out else f"{out}\n"]
        self._finish(block, "".join(shown))

    def _text(self, block: Block) -> None:
        if block.title == "Output":
            self._finish(block, self._last)

    def _finish(self, block: Block, printed: str) -> None:
        printed = "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())
        self.printed[block] = printed
        if self.compare and masked(printed, block.varies) != masked(block.body, block.varies):
            raise Mismatch(
                f"{self.name}:{block.line} shows\n{block.body}\nand it prints\n{printed}\n"
                f"PYTHONPATH=src python -m tests.docs.blocks {self.name} writes that."
            )

    def _run(self, command: str) -> str:
        words = shlex.split(command, comments=True)
        given = dict(
            word.split("=", 1) for word in itertools.takewhile(_ASSIGNMENT.fullmatch, words)
        )
        name, *arguments = words[len(given) :]
        forget(Path.cwd())
        old = dict(os.environ)
        os.environ.update(given, COLUMNS=COLUMNS)
        log, root = logging.getLogger("gfxgraph"), logging.getLogger()
        handlers, level = (log.handlers[:], root.handlers[:]), log.level
        log.handlers[:], root.handlers[:] = [], []  # as in a process
        log.setLevel(logging.WARNING)
        try:
            if command == "echo $?":
                return f"{self._status}\n"
            if name == "cat":
                return "".join(Path(path).read_text(encoding="utf-8") for path in arguments)
            if name == "python" and arguments[0].endswith(".py"):
                out = io.StringIO()
                fit(WIDTH)
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                    runpy.run_path(arguments[0], run_name="__main__")
                return out.getvalue()
            if name != "gfxgraph":
                raise Mismatch(f"{self.name}: {name} cannot be run in a block: {command}")
            target = Path(">".join(arguments).rpartition(">>>")[2]) if ">" in arguments else None
            if target is not None:
                arguments = arguments[: arguments.index(">")]
            result = CliRunner().invoke(app, arguments)
            self._status = int(result.exit_code)
            if result.exception and not isinstance(result.exception, SystemExit):
                raise result.exception
            if target is not None:
                target.write_text(result.output, encoding="utf-8")
            return "" if target is not None else result.output
        finally:
            log.handlers[:], root.handlers[:] = handlers
            log.setLevel(level)
            os.environ.clear()
            os.environ.update(old)

    def _sh(self, block: Block) -> None:
        for line in block.body.replace("\\\n", " ").splitlines():
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            for words in _simple_commands(line):
                self._known(words, f"{self.name}:{block.line}: {line}")

    def _known(self, words: list[str], where: str) -> None:
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        if not words:
            return
        if words[:3] == ["python", "-m", "gfxgraph"] or words[:3] == ["python3", "-m", "gfxgraph"]:
            words = ["gfxgraph", *words[3:]]
        program = Path(words[0]).name
        if program == "make":
            known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            for target in (word for word in words[1:] if "=" not in word):
                if target not in known:
                    raise Mismatch(f"{where}: no such target")
        elif program == "gfxgraph":
            parse(words[1:], where)
        elif program not in PROGRAMS:
            raise Mismatch(f"{where}: what is {program}?")

    def _json(self, block: Block) -> None:
        json.loads(block.body)

    def _yaml(self, block: Block) -> None:
        import yaml

        yaml.safe_load(block.body)

    def _toml(self, block: Block) -> None:
        if sys.version_info >= (3, 11):
            import tomllib

            tomllib.loads(block.body)

    def _ini(self, block: Block) -> None:
        configparser.ConfigParser().read_string(block.body)


def forget(folder: Path) -> None:
    """Forget the modules that were imported from a folder, as another process would have none."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
    linecache.clearcache()


def commands_of(body: str) -> Iterator[tuple[str, str]]:
    """Each command of a console, and what is shown after it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def parse(arguments: list[str], where: str) -> None:
    """Let the command line parse these arguments, without doing anything.

    Raises:
        Mismatch: it refuses them.
    """
    command: Any = typer.main.get_command(app)
    while True:
        try:
            context = command.make_context(arguments[0] if arguments else "", [*arguments])
            if not hasattr(command, "commands"):
                return
            rest = [*getattr(context, "_protected_args", []), *context.args]
            _, command, arguments = command.resolve_command(context, rest)
        except Exception as error:  # of click: an option or a command that does not exist
            if type(error).__name__ == "Exit":  # --help
                return
            raise Mismatch(f"{where}: {error}") from error


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command of a line, without redirections."""
    lexer = shlex.shlex(re.sub(r'"\$\((.*?)\)"', r"; \1", line), posix=True, punctuation_chars=True)
    lexer.commenters = "#"
    words: list[str] = []
    tokens = iter(list(lexer))
    for token in tokens:
        if token in ("|", "&&", ";", "||", "&"):
            yield words
            words = []
        elif token in (">", ">>", "<"):
            next(tokens)
        else:
            words.append(token)
    yield words


def masked(text: str, varies: bool) -> str:
    """The text without what differs between machines, and between runs where it ``varies``."""
    text = re.sub(r"torch \d+\.\d+\S*", "torch #", text)
    text = re.sub(r"Python 3\.\d+(\.\d+)?", "Python #", text)
    if varies:
        text = re.sub(r"^.*(?=torch #)", "", text, flags=re.MULTILINE)
        text = _TIMES.sub("#", text)
    lines = (" ".join(line.split()) if varies else line.rstrip() for line in text.splitlines())
    return "\n".join(lines).strip()


def rewritten(text: str, name: str) -> str:
    """The page with what its blocks print now."""
    reader = Reader(name, compare=False)
    blocks = [*blocks_of(text)]
    for block in blocks:
        reader.read(block)
    for block in reversed(blocks):
        printed = reader.printed.get(block)
        if printed is None or masked(printed, block.varies) == masked(block.body, block.varies):
            continue
        begin, end = block.span
        text = text[:begin] + textwrap.indent(printed, block.indent) + text[end:]
    return text


def main() -> None:
    """The command."""
    here = Path.cwd()
    os.environ["COLUMNS"] = COLUMNS
    for name in sys.argv[1:]:
        path = here / name
        text = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            sys.path.insert(0, folder)
            made = rewritten(text, name)
            sys.path.remove(folder)
            forget(Path(folder))
            os.chdir(here)
        path.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
