"""Every story has the recorded outcomes, and begins with the property that it guards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.script import INDENT, STORIES, with_outcomes

TEXTS = sorted(STORIES.glob("*.txt"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_outcomes_are_the_recorded_ones(path: Path) -> None:
    assert with_outcomes(path.read_text()) == path.read_text()


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_story_begins_with_its_name_and_its_property(path: Path) -> None:
    name, empty, guards, *_ = path.read_text().splitlines()
    assert name.startswith("# ")
    assert name.endswith(".")
    assert empty == "#"
    assert guards.startswith("# Guards: ")


def test_there_are_stories() -> None:
    assert len(TEXTS) >= 8


def test_wrong_outcome_is_detected() -> None:
    story = "brokers 3\n" + INDENT + "leader 2, epoch 0, in sync 0 1 2\n"
    assert with_outcomes(story) == story.replace("leader 2", "leader 0")


def test_unknown_command_is_refused() -> None:
    with pytest.raises(AssertionError, match="no such command: explode 1"):
        with_outcomes("brokers 3\nexplode 1\n")
