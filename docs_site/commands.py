"""The commands of ``isolog``, from the declarations that its ``--help`` prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import typer

from docs_site.cells import row, table
from spark_stream.cli.app import COMMANDS, app, loaded

_EXAMPLES: Final = "\b\n"


def rendered() -> str:
    """Render every command: a section with its effect, examples, arguments and options."""
    root = typer.main.get_command(app)
    parts = ["## Options of every command", "Give them before the command.", _parameters(root)]
    for name in COMMANDS:
        for words, command in _leaves(loaded(name), ("isolog", name)):
            parts.append(f"## `{' '.join(words)}`")
            parts += _paragraphs(command.help or "")
            parts.append(_parameters(command))
    return "\n\n".join(filter(None, parts))


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
        return
    for name, each in below.items():
        if not each.hidden:
            yield from _leaves(each, (*words, name))


def _paragraphs(text: str) -> Iterator[str]:
    r"""Return a help text as Markdown. A paragraph that starts with ``\b`` has examples."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(_EXAMPLES):
            yield f"```sh\n{paragraph.removeprefix(_EXAMPLES).strip()}\n```"
        else:
            yield textwrap.fill(_plain(paragraph), 100, break_on_hyphens=False)


def _parameters(command: Any) -> str:
    rows = [
        row(_name(each), _default(each), _plain(each.help or ""))
        for each in command.params
        if not each.hidden
    ]
    return table("argument or option", "default", "meaning", rows=rows) if rows else ""


def _name(parameter: Any) -> str:
    value = parameter.metavar or ""
    if not parameter.opts[0].startswith("-"):
        return f"`{value or parameter.opts[0].upper()}`"
    choices = _choices(parameter)
    shown = "|".join(choices) if choices else value
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return f"`{names} {shown}`" if shown else f"`{names}`"


def _choices(parameter: Any) -> list[str]:
    kind = parameter.type_descriptor.annotation
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    return [str(each.value) for each in kind] if is_enum else []


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or value == [] or callable(value):
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return f"`{getattr(value, 'value', value)}`"


def _plain(text: str) -> str:
    """Return one line without the marks of rich, in which Markdown finds no HTML."""
    line = " ".join(text.split())
    line = re.sub(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)\]", "", line)
    return line.replace("<", "&lt;").replace("*", r"\*")
