"""Samples of the board for the history of a day."""

from __future__ import annotations

from typing import Any, cast

from spark_stream.console.board import LiveBoard, sample_of_parts
from spark_stream.console.client import ConsoleClient
from spark_stream.console.history import STEP_MS, History, HistorySample

NOW = 1_000_000

BROKERS = [
    {"alive": True, "replicas": 4, "in_sync": 4, "leaders": 3},
    {"alive": False, "replicas": 4, "in_sync": 1, "leaders": 0},
]
PARTS: dict[str, Any] = {
    "cluster": {"brokers": BROKERS, "partitions": 5},
    "topics": {"topics": [{"records_per_s": 2.5}, {"records_per_s": 1.5}]},
    "consumers": {"consumers": [{"lag": 7}, {"lag": None}]},
    "transactions": [
        {"state": "open", "began_ms": NOW - 9_000},
        {"state": "committed", "began_ms": NOW - 90_000},
    ],
    "lakes": [],
    "problems": {"found": [{"key": "dead 2", "since_ms": 5}]},
}


def test_sample_has_the_figures_of_all_parts() -> None:
    wanted = HistorySample(NOW, 1, 3, 2, 4.0, 7, 9.0, {"dead 2": 5})
    assert sample_of_parts(PARTS, (), NOW) == wanted


def test_figures_of_failed_parts_are_unknown() -> None:
    wanted = HistorySample(NOW, problems={"dead 2": 5})
    failed = ("cluster", "topics", "consumers", "transactions")
    assert sample_of_parts(PARTS, failed, NOW) == wanted


def board_with(history: History, *, is_sampler: bool) -> LiveBoard:
    board = LiveBoard(cast("ConsoleClient", None), history, is_sampler=is_sampler)
    board._values |= PARTS
    return board


def alive(board: LiveBoard) -> list[int]:
    return [each for each in board._values["history"]["figures"]["alive"] if each is not None]


def test_another_board_shows_the_samples_of_the_sampler() -> None:
    history = History()
    sampler, other = (board_with(history, is_sampler=each) for each in (True, False))
    assert not other._note_history(NOW)  # it takes none itself
    assert sampler._note_history(NOW)
    assert other._note_history(NOW)
    assert not other._note_history(NOW + 1)
    assert alive(other) == [1]
    assert len(list(history.samples(NOW))) == 1


def test_user_without_permission_to_describe_the_cluster_gets_no_samples() -> None:
    history = History()
    sampler, other = (board_with(history, is_sampler=each) for each in (True, False))
    assert sampler._note_history(NOW)
    del other._values["cluster"]
    other._errors["cluster"] = "'alice' may not describe cluster"
    assert not other._note_history(NOW)
    assert "history" not in other._values


def test_permission_that_was_revoked_ends_the_samples_of_a_user() -> None:
    history = History()
    sampler, other = (board_with(history, is_sampler=each) for each in (True, False))
    assert sampler._note_history(NOW)
    assert other._note_history(NOW)
    other._errors["cluster"] = "'alice' may not describe cluster"
    assert sampler._note_history(NOW + STEP_MS)
    assert not other._note_history(NOW + STEP_MS)


def test_parts_without_permission_do_not_prevent_samples() -> None:
    history = History()
    board = board_with(history, is_sampler=True)
    del board._values["cluster"]
    board._errors["cluster"] = "'alice' may not describe cluster"
    assert board._note_history(NOW)
    [sample] = history.samples(NOW)
    assert (sample.alive, sample.lag) == (None, 7)
