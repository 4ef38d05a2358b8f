"""How the help of commands is laid out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]

_TYPE = re.compile(r" <[^<>]*>$")  # typer's, such as "<str>": a word for programmers
_NARROW = 60  # from here down a text beside its name would be a few letters wide


class Command(TyperCommand):
    """A command whose help names what it takes in words, and fits a narrow terminal."""

    def get_help(self, ctx: Any) -> str:
        """The help, as wide as the terminal."""
        return super().get_help(_fitted(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the line ``Usage``."""
        pieces = [self.options_metavar] if self.options_metavar else []
        for param in self.get_params(ctx):
            if param.param_type_name == "argument" and not param.hidden:  # type: ignore[attr-defined]
                name = param.metavar or (param.name or "").upper()
                pieces.append(name if param.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if param.param_type_name == "argument" else "Options"
                sections[kind].append((_TYPE.sub("", record[0]), record[1]))
        for name, records in sections.items():
            _write(formatter, name, records)


class Group(TyperGroup):
    """The same for the command that holds the others."""

    def get_help(self, ctx: Any) -> str:
        """The help, as wide as the terminal."""
        return super().get_help(_fitted(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options and the commands."""
        records = [param.get_help_record(ctx) for param in self.get_params(ctx)]
        _write(formatter, "Options", [(_TYPE.sub("", one[0]), one[1]) for one in records if one])
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with the first sentence of its help."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: one for name, one in known.items() if one is not None and not one.hidden}
        room = 200 if formatter.width < _NARROW else formatter.width - 6 - max(map(len, shown))
        records = [(name, one.get_short_help_str(room)) for name, one in shown.items()]
        _write(formatter, "Commands", records)


def _fitted(ctx: Any) -> Any:
    # Left alone, no line is shorter than 50 columns.
    ctx.terminal_width = min(shutil.get_terminal_size().columns, 80) - 2
    return ctx


def _write(formatter: Any, section: str, records: Iterable[tuple[str, str]]) -> None:
    records = list(records)
    if not records:
        return
    with formatter.section(section):
        if formatter.width >= _NARROW:
            formatter.write_dl(records)
            return
        for name, text in records:
            formatter.write_text(name)
            with formatter.indentation():
                formatter.write_text(text)
