"""Which brokers send records to the readers of this process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import isolog
from spark_stream.client.reading.loop import Feed
from tests.support import eventually


def watch_sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The bytes that each broker sends from now on."""
    found: Counter[str] = Counter()
    receive = Feed._receive

    def noted(self: Feed, call: Any, frame: Any) -> None:
        found[call.sendings[0].broker[0]] += frame.size
        receive(self, call, frame)

    monkeypatch.setattr(Feed, "_receive", noted)
    return found


def eventually_near(
    log: isolog.Log, topic: str, isolation: str, expected: list[int], sent: Counter[str]
) -> None:
    """Wait until the follower has heard that all of it is visible: then the leader sends nothing.

    Before that the reader gets the rest from the leader.
    """

    def is_near() -> bool:
        sent.clear()
        assert log.read(topic, isolation=isolation).column("n").to_pylist() == expected
        return set(sent) == {"2"}

    eventually(is_near)
