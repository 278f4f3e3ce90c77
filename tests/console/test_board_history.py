"""Samples of the board for the history of a day."""

from __future__ import annotations

from typing import Any

from spark_stream.console.board import sample_of_parts
from spark_stream.console.history import HistorySample

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
    "problems": {"found": [{"key": "dead 2", "since_ms": 5}]},
}


def test_sample_has_the_figures_of_all_parts() -> None:
    wanted = HistorySample(NOW, 1, 3, 2, 4.0, 7, 9.0, {"dead 2": 5})
    assert sample_of_parts(PARTS, (), NOW) == wanted


def test_figures_of_failed_parts_are_unknown() -> None:
    wanted = HistorySample(NOW, problems={"dead 2": 5})
    failed = ("cluster", "topics", "consumers", "transactions")
    assert sample_of_parts(PARTS, failed, NOW) == wanted
