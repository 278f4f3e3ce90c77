"""Requests to brokers of an earlier release, which refuse unknown fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isolog.errors import InvalidRequest
from spark_stream.client.connecting.link import BrokerLink
from spark_stream.wire.messages import Call, Message
from spark_stream.wire.topic_messages import FindLeaders
from spark_stream.wire.transaction_messages import AbortTransaction, OpenBranch, SettleSinkBatch
from tests.support import BrokerProcess, native, values


@native  # it has no boot id
def test_a_reader_with_a_rack_reads_from_brokers_that_have_no_racks(
    shared: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, sent = BrokerLink.call, []

    def passed(link: BrokerLink, call: Call[Any], *rest: Any) -> Message:
        if isinstance(call, FindLeaders):
            fields = json.loads(call.to_bytes())
            sent.append(sorted(fields.keys() & {"rack", "machine"}))
            for field in sent[-1]:
                what = f"FindLeaders: {field}: Object contains unknown field `{field}`"
                raise InvalidRequest(what, field=field)
        return answered(link, call, *rest)

    with shared.connect() as log:
        log.create_topic(topic)
        with log.producer() as producer:
            producer.append(topic, values("a", "b"), partition=0).result(30)
    monkeypatch.setattr(BrokerLink, "call", passed)
    monkeypatch.setenv("ISOLOG_RACK", "here")
    with shared.connect() as log:
        assert log.read(topic, isolation="read_committed")["value"].to_pylist() == [b"a", b"b"]
    assert sent == [["machine", "rack"], ["rack"], []]


def test_a_sink_of_a_named_query_writes_to_brokers_that_store_no_names(
    shared: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = BrokerLink.call

    def passed(link: BrokerLink, call: Call[Any], *rest: Any) -> Message:
        if "query_name" in json.loads(call.to_bytes()):
            what = "OpenBranch: Object contains unknown field `query_name`"
            raise InvalidRequest(what, field="query_name")
        return answered(link, call, *rest)

    monkeypatch.setattr(BrokerLink, "call", passed)
    sink = f"sink/{topic}"
    asked = {"transactional_id": sink, "query": "an id", "instance": "run", "batch": 4}
    asked |= {"query_name": "nightly"}
    with shared.connect() as log:
        branch = log._connection.call(OpenBranch(**asked))
        assert log.describe_transaction(sink).query_name == ""
        log._connection.call(
            AbortTransaction(transactional_id=sink, instance="run", number=branch.number)
        )
        assert not log._connection.call(SettleSinkBatch(**asked)).committed
