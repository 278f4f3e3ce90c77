"""Answers to a request that goes to all brokers."""

from __future__ import annotations

from typing import Any

import pytest

from isolog.errors import (
    BrokerUnavailable,
    IsologError,
    LeaderUnavailable,
    PermissionDenied,
    RequestTimeout,
)
from spark_stream.client.leaders import call_each
from spark_stream.wire.cluster_messages import GetStatus


class Refusing:
    """A connection whose brokers all raise the same error."""

    def __init__(self, error: IsologError) -> None:
        self.error = error

    def to(self, broker: str, address: str) -> Refusing:
        return self

    def call(self, *_: object) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [
        (LeaderUnavailable("a/0 has no leader at the moment"), True),
        (PermissionDenied("not for you"), True),
        (RequestTimeout("no answer"), False),
        (BrokerUnavailable("no connection"), False),
    ],
    ids=lambda each: each.code if isinstance(each, IsologError) else "",
)
def test_a_refused_call_counts_as_an_answer(error: IsologError, is_answer: bool) -> None:
    noted: list[tuple[str, bool]] = []
    connection: Any = Refusing(error)
    found = call_each(
        connection,
        {"1": "127.0.0.1:1"},
        GetStatus(),
        lambda broker, _, took_s: noted.append((broker, took_s is not None)),
    )
    assert (found, noted) == ({}, [("1", is_answer)])
