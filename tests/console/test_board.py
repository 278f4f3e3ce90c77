"""Parts of the board that depend on several answers, with a fake clock."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_stream.client.leaders import PartitionSeen
from spark_stream.client.trends import WINDOW_S, LagTrend
from spark_stream.console.board import LiveBoard
from spark_stream.console.client import ConsoleClient
from spark_stream.wire.topic_messages import OpenExtent, PartitionFacts, PartitionOffset


class Readers:
    """A reader of one record per second, while two are written per second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.state = "catching_up"
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        self.board = LiveBoard(cast("ConsoleClient", self))

    def consumers(self) -> dict[str, Any]:
        """Return the reader as the brokers describe it."""
        place = {"topic": "orders", "topic_id": "id", "partition": 0}
        place |= {"offset": 5 + int(self.now), "lag": 10 + int(self.now), "held_back": 0}
        reader = {"name": "a", "kind": "query", "state": self.state, "partitions": [place]}
        return {"consumers": [reader], "sinks": []}

    def trends(self, seconds: float) -> set[LagTrend]:
        """Poll every two seconds, and return the shown trends."""
        end, found = self.now + seconds, set()
        while self.now < end:
            self.now += 2.0
            found.add(self.board._consumers()["consumers"][0]["trend"])
        return found


def test_a_reader_falls_behind_after_minutes_of_growing_lag(monkeypatch):
    readers = Readers(monkeypatch)
    assert readers.trends(100) == {LagTrend.UNKNOWN}
    assert LagTrend.GROWS in readers.trends(WINDOW_S)


@pytest.mark.parametrize("state", ["empty", "stopped", "gone"])
def test_lag_growth_between_two_runs_is_not_a_trend(monkeypatch, state):
    readers = Readers(monkeypatch)
    readers.state = state
    assert readers.trends(2 * WINDOW_S) == {LagTrend.UNKNOWN}
    readers.state = "catching_up"
    assert readers.trends(60) == {LagTrend.UNKNOWN}


@pytest.mark.parametrize("kind", ["metadata_away", "metadata_lost"])
def test_lag_growth_during_a_store_outage_is_not_a_trend(monkeypatch, kind):
    readers = Readers(monkeypatch)
    readers.board._values["cluster"] = {"problems": [{"kind": kind}]}
    assert readers.trends(2 * WINDOW_S) == {LagTrend.UNKNOWN}
    readers.board._values["cluster"] = {"problems": []}
    assert readers.trends(60) == {LagTrend.UNKNOWN}


class OpenTransactions:
    """A reader that waits for transaction 7. ``listed``: those in the list of transactions."""

    def __init__(self) -> None:
        self.board = LiveBoard(cast("ConsoleClient", self))
        facts = PartitionFacts(
            high_watermark=9,
            last_stable_offset=5,
            size=0,
            followers={},
            epochs=[],
            open=[OpenExtent(transaction=7, first_offset=5)],
        )
        found = PartitionOffset(
            offset=9, log_start_offset=0, log_end_offset=9, epoch=0, facts=facts
        )
        self.board._partitions = {"orders": {0: PartitionSeen("1", 0.0, "id", found)}}

    def consumers(self) -> dict[str, Any]:
        """Return the reader as the brokers describe it."""
        place = {"topic": "orders", "topic_id": "id", "partition": 0, "offset": 5}
        place |= {"lag": 4, "held_back": 4}
        reader = {"name": "a", "kind": "query", "state": "waiting_at_lso", "partitions": [place]}
        return {"consumers": [reader], "sinks": []}

    def unlisted_since_ms(self, *listed: int) -> int | None:
        """Return the time since which the list lacks the transaction."""
        self.board._values["transactions"] = [
            {"number": each, "transactional_id": f"id-{each}"} for each in listed
        ]
        (reader,) = self.board._consumers()["consumers"]
        (transaction,) = reader["waits_for"]
        return cast("int | None", transaction["unlisted_since_ms"])


def test_transaction_is_unlisted_since_the_first_list_without_it():
    looks = OpenTransactions()
    first = looks.unlisted_since_ms()
    assert first is not None
    assert looks.unlisted_since_ms() == first
    assert looks.unlisted_since_ms(7) is None
    again = looks.unlisted_since_ms(6)
    assert again is not None
    assert again >= first
