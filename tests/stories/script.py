"""The form of a story: lines that begin with ``#`` are for readers, the others are commands.

The outcome of a command is below it, indented.
"""

from __future__ import annotations

from pathlib import Path

from tests.stories.commands import Story

STORIES = Path(__file__).parent
INDENT = "    "


def with_outcomes(text: str) -> str:
    """Return the story with the present outcomes of its commands."""
    story = Story()
    told: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        told.append(line.rstrip())
        if line.strip() and not line.startswith("#"):
            told += [INDENT + answer for answer in story.do(line)]
    return "\n".join(told).rstrip() + "\n"
