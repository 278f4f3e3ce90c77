"""Habits of prose that make readers read a sentence twice, counted per 1,000 words.

Counted are docstrings, comments, messages of logs and errors, names of tests, and the paragraphs of
Markdown. Code blocks, tables, headings and quoted literals are left out. Each limit is kept by
well-known projects of this field (dask.distributed, PyIceberg, litestar, aiokafka).

Usage: ``python -m tests.house.prose [--worst N] PATH...``
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MESSAGE_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}
QUOTED = re.compile(
    r"``[^`]*``|`[^`]*`|:\w+:`[^`]*`|\"[^\"\n]{0,80}\"|'[^'\n]{0,40}'(?!\w)|https?://\S+"
)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Habit:
    """A pattern of prose, and its limit per 1,000 words."""

    limit: float
    advice: str
    pattern: re.Pattern[str]


HABITS = {
    "clause": Habit(
        1.0,
        "write a noun, not a clause: 'the pending followers', not 'what it waits for'",
        re.compile(
            r"\b(what|who|whoever|whatever)\s+(?!if\b|to\b|kind\b|is new\b)(?:\w+\s+){0,3}?"
            r"(is|are|was|were|has|have|had|may|can|must|does|did|comes?|goes|went|waits?|needs?"
            r"|asks?|reads?|writes?|says?|becomes?|became|happens?|happened|lies|stands|follows"
            r"|failed|takes?|gives?)\b",
            re.IGNORECASE,
        ),
    ),
    "person": Habit(
        4.5,
        "software sends, returns, reads, stores, checks: it does not tell, ask, know or learn",
        re.compile(
            r"\b(tells?|told|asks?|asked|knows?|known|learns?|learned|hears?|heard|forgets?"
            r"|forgotten|says?|said|believes?|notices?|finds out|found out|wants?|lives?|dies"
            r"|died)\b",
            re.IGNORECASE,
        ),
    ),
    "chain": Habit(3.0, "write a full stop, not a semicolon", re.compile(r";(?=\s)")),
    "nobody": Habit(
        0.5,
        "name the subject: not 'nobody', 'nothing' or 'none'",
        re.compile(
            r"\b(nobody|no one|nothing|none)\s+(is|are|was|has|have|may|can|waits?|reads?|needs?"
            r"|knows?|else|goes|comes|asks?)\b",
            re.IGNORECASE,
        ),
    ),
    "adverb": Habit(
        0.5,
        "leave out 'anew', 'for good', 'by now', 'meanwhile', 'at once', 'of its own'",
        re.compile(
            r"\b(anew|for good|by now|meanwhile|at once|of (?:its|their|his) own|all the same"
            r"|from now on|as yet|so far as)\b",
            re.IGNORECASE,
        ),
    ),
    "state": Habit(
        0.4,
        "write the event: 'the lease expired', not 'the lease is over'",
        re.compile(
            r"\b(is|are|was|were|be|been)\s+(away|over|gone|there|up|out|through)\b(?=[\s.,:;)])",
            re.IGNORECASE,
        ),
    ),
    "note": Habit(
        1.5,
        "begin with a verb of action: not 'Note that', 'Let X do', 'Return what/how/where'",
        re.compile(
            r"(?:^|\. )(Note that|Let \w+|Take note|Note\b|Return (?:what|how|where|when|who"
            r"|which)\b)"
        ),
    ),
}


@dataclass(frozen=True)
class Sentence:
    """A sentence with at least one of the habits."""

    file: Path
    line: int
    habits: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: [{', '.join(self.habits)}] {self.text[:200]}"


@dataclass
class Count:
    """Words and habits of some files."""

    words: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    sentences: list[Sentence] = field(default_factory=list)

    def rate(self, habit: str) -> float:
        """Return the occurrences of a habit per 1,000 words."""
        return 1000 * self.hits[habit] / max(self.words, 1)

    def worst(self, number: int) -> list[Sentence]:
        """Return the sentences with the most habits, and of these the longest first."""
        return sorted(self.sentences, key=lambda each: (-len(each.habits), -len(each.text)))[
            :number
        ]


def count(files: Iterable[Path]) -> Count:
    """Count the habits in files of Python and Markdown."""
    found = Count()
    for file in files:
        source = file.read_text()
        texts = _of_python(source) if file.suffix == ".py" else _of_markdown(source)
        for line, text in texts:
            plain = " ".join(QUOTED.sub("X", text).split())
            found.words += len(plain.split())
            for name, habit in HABITS.items():
                found.hits[name] += len(habit.pattern.findall(plain))
            for sentence in SENTENCE_END.split(plain):
                names = tuple(
                    name for name, each in HABITS.items() if each.pattern.search(sentence)
                )
                if names:
                    found.sentences.append(Sentence(file, line, names, sentence))
    return found


def _of_python(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
            case ast.FunctionDef(name=name) if name.startswith("test_"):
                yield node.lineno, name.removeprefix("test_").replace("_", " ")
            case ast.Call(func=ast.Attribute(attr=attribute)) if attribute in MESSAGE_CALLS:
                yield from _literals(node.args[:1])
            case ast.Raise(exc=ast.Call(args=args, keywords=keywords)):
                yield from _literals([*args, *(each.value for each in keywords)])
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|!|%%)", token.string):
            yield token.start[0], token.string.lstrip("# ")


def _literals(values: Iterable[ast.expr]) -> Iterator[tuple[int, str]]:
    for value in values:
        match value:
            case ast.Constant(value=str(text)):
                yield value.lineno, text
            case ast.JoinedStr(values=parts):
                yield (
                    value.lineno,
                    "".join(
                        part.value
                        if isinstance(part, ast.Constant) and isinstance(part.value, str)
                        else "X"
                        for part in parts
                    ),
                )


def _of_markdown(source: str) -> Iterator[tuple[int, str]]:
    fenced, start, lines = False, 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
        elif fenced or stripped.startswith(("|", "<", "[", "#")):
            continue
        elif stripped:
            start = start or number
            lines.append(stripped)
        elif lines:
            yield start, " ".join(lines)
            start, lines = 0, []


def files_below(path: Path) -> list[Path]:
    """Return the Python and Markdown files of a folder and its folders, or the file itself."""
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if file.suffix in (".py", ".md") and not file.is_symlink() and file.is_file()
    )


def main() -> None:
    """Print a row for each path, and the worst sentences of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--worst", type=int, default=0, metavar="N")
    options = parser.parse_args()
    print(f"{'per 1,000 words':40}{'words':>8}" + "".join(f"{name:>9}" for name in HABITS))
    for path in options.paths:
        found = count(files_below(path))
        rates = "".join(
            f"{found.rate(name):8.1f}{'*' if found.rate(name) > habit.limit else ' '}"
            for name, habit in HABITS.items()
        )
        print(f"{str(path)[-39:]:40}{found.words:8}{rates}")
        print(*found.worst(options.worst), sep="\n", end="\n" if options.worst else "")


if __name__ == "__main__":
    main()
