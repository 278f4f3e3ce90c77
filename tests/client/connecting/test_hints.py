"""Requests to brokers of an earlier release, which refuse fields that they do not have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_stream.client.connecting.link import BrokerLink
from spark_stream.errors import InvalidRequest
from spark_stream.wire.messages import Message
from tests.support import BrokerProcess, values


def test_a_reader_with_a_rack_reads_from_brokers_that_have_no_racks(
    shared: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, sent = BrokerLink.act, []

    def act(link: BrokerLink, name: str, body: Message, *rest: Any) -> Message:
        if name == "find-leaders":
            fields = json.loads(body.to_bytes())
            sent.append(sorted(fields.keys() & {"rack", "machine"}))
            for field in sent[-1]:
                what = f"FindLeaders: {field}: Object contains unknown field `{field}`"
                raise InvalidRequest(what, field=field)
        return answered(link, name, body, *rest)

    with shared.connect() as log:
        log.create_topic(topic)
        with log.producer() as producer:
            producer.append(topic, values("a", "b"), partition=0).result(30)
    monkeypatch.setattr(BrokerLink, "act", act)
    monkeypatch.setenv("ISOLOG_RACK", "here")
    with shared.connect() as log:
        assert log.read(topic, isolation="read_committed")["value"].to_pylist() == [b"a", b"b"]
    assert sent == [["machine", "rack"], ["rack"], []]
