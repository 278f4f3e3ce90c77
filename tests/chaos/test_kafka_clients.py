"""Delivery reports of Kafka's clients."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import Message

from tests.chaos.kafka_clients import settle
from tests.chaos.workers import Delivered, Sent


@pytest.mark.parametrize(
    ("report", "offset"),
    [(Message(topic="k", partition=0, offset=7), 7), (Message(topic="k", partition=0), None)],
    ids=["with an offset", "without"],
)
def test_a_report_is_an_acknowledgement_with_and_without_offset(
    report: Message, offset: int | None
) -> None:
    future: Future[Delivered] = Future()
    sent = Sent(0, 1, ("k", 0), future, called=0)
    settle(future, None, report)
    assert sent.told() == ("ok", offset)
