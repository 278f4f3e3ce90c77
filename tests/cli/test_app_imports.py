"""Imports of help, completion and ``import isolog``. Users wait for them at each command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark_stream.cli.app import COMMANDS, loaded

HEAVY = {
    "cryptography",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "sqlglot",
    "sqlite3",
    "ssl",
    "starlette",
    "uvicorn",
}  # not pydantic: typer checks the options of a command with it
CLIENT = {"spark_stream.client", "spark_stream.wire.messages", "spark_stream.broker"}
BASE = {"asyncio", "importlib.metadata", "msgspec", "rich", "typer"}
REPORT = """
import atexit, os, sys
os._exit = sys.exit
atexit.register(lambda: print("\\n" + " ".join(sys.modules)))
"""
COMPLETED = ("to", "topic des", "topic describe --", "consume --", "log dump --", "user add --")


def modules(program: str, *arguments: str, **variables: str) -> set[str]:
    """Return the modules that a program has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT + program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )
    return set(done.stdout.splitlines()[-1].split())


COMMAND = "from spark_stream.cli import main; main()"
EACH = """
from contextlib import suppress
from spark_stream.cli import main
for line in sys.argv[1:]:
    name, is_variable, value = line.partition("=")
    if is_variable:
        os.environ[name] = value
    sys.argv = ["isolog", *([] if is_variable else line.split())]
    with suppress(SystemExit):
        main()
"""
"""Commands, or values of a variable, one after the other."""


def test_import_of_isolog_imports_no_other_package() -> None:
    found = modules("import isolog; dir(isolog)")
    assert "isolog" in found
    assert found & (HEAVY | CLIENT | BASE) == set()


def test_first_use_of_a_name_imports_the_client() -> None:
    assert {"pyarrow", "spark_stream.client.log"} <= modules("import isolog; isolog.connect")


@pytest.mark.parametrize("arguments", ["--help", "--version", ""])
def test_help_and_version_import_no_command(arguments: str) -> None:
    found = modules(COMMAND, *arguments.split())
    assert "spark_stream.cli.app" in found
    assert found & (HEAVY | CLIENT) == set()
    assert not any(each.startswith("spark_stream.cli.commands.") for each in found)


def test_help_of_each_command_imports_neither_arrow_nor_the_client() -> None:
    """One process prints them all, so a module that any of them imports is found."""
    found = modules(EACH, *(f"{name} --help" for name in COMMANDS))
    assert {f"spark_stream.cli.{place.partition(':')[0]}" for place, _ in COMMANDS.values()} < found
    assert found & (HEAVY | CLIENT) == set()


def test_completion_of_commands_and_options_imports_neither() -> None:
    asked = [f"_TYPER_COMPLETE_ARGS=isolog {line}" for line in COMPLETED]
    found = modules(EACH, *asked, _ISOLOG_COMPLETE="complete_zsh")
    assert "typer" in found
    assert found & (HEAVY | CLIENT) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_list_of_commands_has_the_first_paragraph_of_each_help(name: str) -> None:
    command = loaded(name)
    first = " ".join(command.help.partition("\n\n")[0].split())
    assert COMMANDS[name][1] == first
