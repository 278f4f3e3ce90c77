"""Every story goes as it is told, and opens with what it guards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.script import INDENT, STORIES, told_anew

TEXTS = sorted(STORIES.glob("*.txt"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_it_goes_as_it_is_told(path: Path) -> None:
    assert told_anew(path.read_text()) == path.read_text()


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_it_opens_with_its_name_and_with_what_it_guards(path: Path) -> None:
    name, empty, guards, *_ = path.read_text().splitlines()
    assert name.startswith("# ")
    assert name.endswith(".")
    assert empty == "#"
    assert guards.startswith("# Guards: ")


def test_there_are_stories() -> None:
    assert len(TEXTS) >= 8


def test_an_answer_that_is_not_the_rules_is_noticed() -> None:
    story = "brokers 3\n" + INDENT + "leader 2, epoch 0, in sync 0 1 2\n"
    assert told_anew(story) == story.replace("leader 2", "leader 0")


def test_a_word_that_is_no_command_is_refused() -> None:
    with pytest.raises(AssertionError, match="no such command: explode 1"):
        told_anew("brokers 3\nexplode 1\n")
