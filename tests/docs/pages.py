"""Runs the blocks of a page as its reader would: one after the other, in one folder.

``sh`` runs in bash, and the next block gets the exported variables. ``python`` runs in one
interpreter. A block of another language whose title is the name of a file becomes that file. A
block with the title "Output" has the output of the block before it. A block whose title begins with
"Not run by the tests:" is not run, and its title gives the reason.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import ROOT, stop_broker
from tests.demo.conftest import Shell
from tests.support import free_port

DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in (
        DOCS / "index.md",
        DOCS / "tutorial.md",
        *(DOCS / "how-to").glob("*.md"),
        *(DOCS / "concepts").glob("*.md"),
    )
)
NOT_RUN = "Not run by the tests: "

_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<mark>\w+) -->\n)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_PORT = re.compile(r"\b(?:9[0-2]9[2-5]|9465)\b")
# A JVM that several pages share has another working directory.
_FOLDER = re.compile(r'"((?:data|checkpoints|export)(?:/[^"]*)?)"')


class Block(NamedTuple):
    """A fence: its language, its title, its code, and the mark of a test that runs it elsewhere."""

    language: str
    title: str
    code: str
    mark: str | None

    @property
    def is_run(self) -> bool:
        """Whether this module runs the block. A fence without a language is a diagram."""
        is_code = bool(self.language or self.title)
        return is_code and self.mark is None and not self.title.startswith(NOT_RUN)


def blocks(name: str) -> Iterator[Block]:
    """All blocks of a page, by its path within ``docs/``."""
    for found in _BLOCK.finditer((DOCS / name).read_text()):
        yield Block(found["language"], found["title"] or "", found["code"], found["mark"])


def needs_spark(name: str) -> bool:
    return any("spark." in each.code for each in blocks(name) if each.is_run)


class Reader:
    """A reader of a page."""

    def __init__(self, folder: Path, shell: Shell, names: dict[str, Any] | None = None) -> None:
        """``names``: the names of the page's Python, such as ``spark``."""
        self._folder = folder
        self._environment = shell.environment
        self._names = names or {}
        self._ports: dict[str, str] = defaultdict(lambda: str(free_port()))
        self._exports = folder.with_name(f"{folder.name}.exports")
        folder.mkdir(exist_ok=True)
        for name in ("three-brokers", "secure-three-brokers"):
            shutil.copytree(ROOT / "conf" / name, folder / "conf" / name)
            for file in (folder / "conf" / name).iterdir():
                file.write_text(self._on_free_ports(file.read_text()))

    def follow(self, name: str) -> int:
        """Run the page. Return the number of blocks. An AssertionError shows a difference."""
        said, count = "", 0
        for block in blocks(name):
            if not block.is_run:
                continue
            count += 1
            code = self._on_free_ports(block.code)
            if block.language == "sh":
                said = self._bash(code)
            elif block.language == "python":
                said = self._python(code, name)
            elif block.title == "Output":
                assert lines(said) == lines(block.code), f"{name}: {said}"
            else:
                (self._folder / block.title).write_text(code)
        return count

    def _on_free_ports(self, text: str) -> str:
        return _PORT.sub(lambda found: self._ports[found[0]], text)

    def _bash(self, code: str) -> str:
        before = f". {self._exports}\n" if self._exports.exists() else ""
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", f"{before}{code}\nexport -p > {self._exports}"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{code}\nended with {done.returncode}:\n{done.stderr}"
        return done.stdout

    def _python(self, code: str, name: str) -> str:
        code = _FOLDER.sub(rf'"{self._folder}/\1"', code)
        with redirect_stdout(StringIO()) as said:
            exec(compile(code, f"docs/{name}", "exec"), self._names)
        return said.getvalue()

    def leave(self) -> None:
        """End all brokers that the page started."""
        for directory in (self._folder / "data", *self._folder.glob("isolog-data/broker-*")):
            stop_broker(directory)


def lines(text: str) -> list[str]:
    """The lines of an output that are not empty."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]
