"""Topics: creation, description, list, deletion, and errors for invalid requests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import isolog
from isolog.errors import (
    InvalidAssignment,
    InvalidConfig,
    InvalidOption,
    InvalidRequest,
    InvalidTopic,
    IsologError,
    SchemaMismatch,
    TopicExists,
    UnknownTopic,
    UnsupportedType,
)
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.link import BrokerLink
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.wire.messages import Call, Message
from spark_stream.wire.topic_messages import AlterTopic, DeleteTopic
from tests.support import NUMBERS, numbers


def test_a_topic_is_described_as_it_was_created(log, topic):
    made = log.create_topic(topic, partitions=3, schema=NUMBERS, config={"segment.bytes": 1 << 20})
    found = log.describe(topic)
    assert found == made
    assert (found.name, found.schema) == (topic, NUMBERS)
    assert found.config["segment.bytes"] == "1048576"
    assert found.config["compression"] == "none"
    assert [each.partition for each in found.partitions] == [0, 1, 2]
    for each in found.partitions:
        assert each.error is None
        assert each.leader_epoch == 0
        assert each.replicas == each.isr == (each.leader,)
        assert each.log_start_offset == each.log_end_offset == 0
        assert each.high_watermark == each.last_stable_offset == 0


def test_topic_bounds_include_written_records(log, topic):
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 7), partition=1)
    zero, one = log.describe(topic).partitions
    assert zero.log_end_offset == 0
    assert one.log_end_offset == one.high_watermark == one.last_stable_offset == 7
    assert one.size > zero.size


def test_without_a_schema_a_topic_has_kafkas_columns(log, topic):
    assert log.create_topic(topic).schema.equals(DEFAULT_SCHEMA)


def test_descriptions_cannot_be_changed(log, topic):
    found = log.create_topic(topic)
    with pytest.raises(AttributeError):
        found.name = "other"
    with pytest.raises(AttributeError):
        found.partitions[0].leader = "other"


def test_topics_are_listed_by_name_without_deleted_ones(log, topic):
    names = [f"{topic}-{letter}" for letter in "cab"]
    for name in names:
        log.create_topic(name)
    assert [name for name in log.topics() if name.startswith(f"{topic}-")] == sorted(names)
    log.delete_topic(f"{topic}-b")
    assert f"{topic}-b" not in log.topics()
    with pytest.raises(UnknownTopic, match=f"{topic}-b"):
        log.describe(f"{topic}-b")
    with pytest.raises(UnknownTopic, match=f"{topic}-b"):
        log.delete_topic(f"{topic}-b")


def test_a_recreated_topic_has_another_id_and_no_records(log, topic):
    first = log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 3))
    log.delete_topic(topic)
    second = log.create_topic(topic, schema=NUMBERS)
    assert second.id != first.id
    assert second.partitions[0].log_end_offset == 0
    assert log.read(topic).num_rows == 0


class Requests:
    """The requests that delete or alter topics. ``before`` is called before each of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Callable[[], object]] = []
        self.before: Callable[[Message], object] = lambda _: None
        self._call = ClusterConnection.call

        def pass_on(*asked: Any, **more: Any) -> Any:
            return self.pass_on(*asked, **more)

        monkeypatch.setattr(ClusterConnection, "call", pass_on)

    def pass_on(
        self, connection: ClusterConnection, call: Call[Any], *rest: Any, **more: Any
    ) -> Any:
        if isinstance(call, (AlterTopic, DeleteTopic)):
            self.sent.append(partial(self._call, connection, call, *rest, **more))
            self.before(call)
        return self._call(connection, call, *rest, **more)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


def test_a_late_delete_request_does_not_delete_a_recreated_topic(log, topic, requests):
    """A broker that hung runs it after the client retried it at another broker."""
    log.create_topic(topic)
    log.delete_topic(topic)
    later = log.create_topic(topic)
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        requests.sent[0]()
    assert log.describe(topic).id == later.id


def test_a_late_alter_request_does_not_alter_a_recreated_topic(log, topic, requests):
    log.create_topic(topic)
    log.alter_topic(topic, 2)
    log.delete_topic(topic)
    later = log.create_topic(topic)
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        requests.sent[0]()
    assert log.describe(topic) == later


def test_a_retried_delete_of_a_deleted_topic_succeeds(log, topic, requests):
    log.create_topic(topic)
    requests.before = lambda _: requests.sent[0]()
    log.delete_topic(topic)
    assert topic not in log.topics()


def test_a_broker_without_topic_ids_alters_and_deletes_by_name(log, topic, monkeypatch):
    """Such a broker is of the previous release."""
    answered = BrokerLink.call

    def passed(link: BrokerLink, call: Call[Any], *rest: Any) -> Any:
        if isinstance(call, (AlterTopic, DeleteTopic)) and b"topic_id" in call.to_bytes():
            raise InvalidRequest(
                f"{type(call).__name__}: topic_id: unknown field", field="topic_id"
            )
        return answered(link, call, *rest)

    log.create_topic(topic)
    monkeypatch.setattr(BrokerLink, "call", passed)
    assert len(log.alter_topic(topic, 2).partitions) == 2
    log.delete_topic(topic)
    assert topic not in log.topics()


def test_a_second_topic_with_a_name_is_refused_and_the_first_is_unchanged(log, topic):
    first = log.create_topic(topic, schema=NUMBERS)
    with pytest.raises(TopicExists, match=topic):
        log.create_topic(topic, partitions=5)
    assert log.describe(topic) == first


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "../x",
        "a b",
        "ü",
        "x" * 201,
        "x" * 300,
        "a\nb",
        "a\0b",
        "\ud800",
    ],
)
def test_a_topic_name_that_cannot_be_a_folder_is_refused(log, name):
    before = log.topics()
    with pytest.raises(InvalidTopic):
        log.create_topic(name)
    for call in (log.describe, log.delete_topic, log.read):
        with pytest.raises((UnknownTopic, InvalidTopic)):
            call(name)
    assert log.topics() == before


def struct_of(levels: int) -> pa.DataType:
    kind = pa.int32()
    for _ in range(levels):
        kind = pa.struct([("f", kind)])
    return kind


REFUSED = [
    ({"schema": pa.schema([])}, SchemaMismatch, "column"),
    ({"schema": pa.schema([("a", pa.int64()), ("A", pa.int64())])}, SchemaMismatch, "'a' and 'A'"),
    ({"schema": pa.schema([("", pa.int64())])}, SchemaMismatch, "no name"),
    ({"schema": pa.schema([("_offset", pa.int64())])}, SchemaMismatch, "_offset"),
    (
        {"schema": pa.schema([("u", pa.sparse_union([pa.field("a", pa.int8())]))])},
        UnsupportedType,
        "'u'",
    ),
    ({"schema": pa.schema([("d", pa.decimal256(50, 2))])}, UnsupportedType, "'d'"),
    ({"schema": pa.schema([("s", pa.struct([("v", pa.uuid())]))])}, UnsupportedType, r"'s\.v'"),
    (
        {"schema": pa.schema([("s", struct_of(64))])},
        UnsupportedType,
        "'s': .* 64 levels deep, and 63",
    ),
    (
        {"schema": pa.schema([("s", struct_of(300))])},
        UnsupportedType,
        "'s': .* 300 levels deep, and 63",
    ),
    ({"schema": ["id"]}, InvalidOption, r"schema takes a pyarrow\.Schema or a text, not a list"),
    ({"schema": "id strange"}, InvalidOption, "strange"),
    ({"config": {"segment.byte": 1}}, InvalidConfig, r"did you mean 'segment\.bytes'"),
    ({"config": {"segment.bytes": 1}}, InvalidConfig, r"segment\.bytes takes"),
    ({"config": {"segment.bytes": "many"}}, InvalidConfig, "whole number"),
    ({"config": {"flush": "always"}}, InvalidConfig, r"none \| interval \| batch"),
    ({"config": {"compression": "gzip"}}, InvalidConfig, r"none \| lz4 \| zstd"),
    *(({"partitions": count}, InvalidTopic, "partitions") for count in (0, -1, 10_001, 1 << 70)),
    *(({"partitions": wrong}, IsologError, "partitions") for wrong in ("3", 1.5)),
    ({"replication_factor": 3}, InvalidAssignment, "replication factor of 3"),
    *(
        ({"assignment": wrong}, InvalidAssignment, "a list with the brokers of each partition")
        for wrong in ({0: ["1"]}, ["1"], "1")
    ),
]


@pytest.mark.parametrize(("asked", "error", "named"), REFUSED)
def test_an_invalid_topic_is_refused_and_not_created(log, topic, asked, error, named):
    with pytest.raises(error, match=named):
        log.create_topic(topic, **asked)
    assert topic not in log.topics()


def create_dry(log, topic, partitions=1, replication_factor=None, config=None):
    return log._topics.create(
        topic, partitions, replication_factor, None, config or {}, dry_run=True
    )


def test_a_dry_run_returns_a_topic_that_it_does_not_create(log, topic):
    config = {"retention.ms": "5000"}
    planned = create_dry(log, topic, partitions=3, config=config)
    assert topic not in log.topics()
    made = log.create_topic(topic, partitions=3, config=config)
    for name in ("config", "schema", "overrides", "replication_factor", "warning"):
        assert getattr(planned, name) == getattr(made, name)
    for before, after in zip(planned.partitions, made.partitions, strict=True):
        assert (before.partition, before.replicas) == (after.partition, after.replicas)
    with pytest.raises(TopicExists, match=topic):
        create_dry(log, topic)
    other = f"{topic}-other"
    for wrong, error in (
        ({"partitions": 0}, InvalidTopic),
        ({"replication_factor": 9}, InvalidAssignment),
        ({"config": {"retention.ms": "soon"}}, InvalidConfig),
    ):
        with pytest.raises(error):
            create_dry(log, other, **wrong)


def test_types_that_spark_lacks_are_converted_in_a_new_topic(log, topic):
    asked = pa.schema([("at", pa.timestamp("ns")), ("name", pa.large_string())])
    made = log.create_topic(topic, schema=asked)
    assert made.schema == pa.schema([("at", pa.timestamp("us")), ("name", pa.string())])
    assert log.create_topic(topic, schema=asked, if_not_exists=True).id == made.id
    more = log.alter_topic(topic, schema=made.schema.append(pa.field("n", pa.uint64())))
    assert more.schema.field("n").type == pa.decimal128(20, 0)
    frame = pd.DataFrame({"at": pd.to_datetime(["2024-01-01"]), "name": ["a"], "n": [2**64 - 1]})
    with log.producer() as producer:
        producer.append(topic, frame.astype({"n": "uint64"}))
        fine = pd.DataFrame({"at": pd.to_datetime([1], unit="ns"), "name": ["a"]})
        with pytest.raises(SchemaMismatch, match=r"column 'at': .*not every value fits"):
            producer.append(topic, fine).result(20)
    (row,) = log.read(topic).to_pylist()
    assert row == {"at": datetime(2024, 1, 1), "name": "a", "n": 2**64 - 1}


def test_broker_status_has_its_facts(shared, log):
    status = log.status()
    assert (status.pid, status.address) == (shared.pid, shared.address)
    assert status.directory == str(shared.directory)
    assert status.memory > 0
    assert isolog.__version__ == status.version


def test_if_not_exists_accepts_a_topic_that_is_as_requested(log, topic):
    made = log.create_topic(topic, 3, schema=NUMBERS, if_not_exists=True)
    assert log.create_topic(topic, 3, schema=NUMBERS, if_not_exists=True).id == made.id
    config = {"retention.ms": 1000}  # of a new topic: an existing one keeps its settings
    found = log.create_topic(topic, schema=NUMBERS, config=config, if_not_exists=True)
    assert (found.id, len(found.partitions), found.config) == (made.id, 3, made.config)
    with pytest.raises(TopicExists):
        log.create_topic(topic, 3, schema=NUMBERS)


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        ({"partitions": 8, "schema": NUMBERS}, "it has 1 partition, not 8"),
        ({"schema": pa.schema([("n", pa.string())])}, "column 'n': expected bigint, got string"),
        ({"schema": pa.schema([*NUMBERS, ("m", pa.int8())])}, "column 'm'"),
        ({"schema": pa.schema([pa.field("n", pa.int64(), False)])}, "takes no nulls here"),
        ({}, "column 'n'"),
    ],
)
def test_if_not_exists_refuses_another_topic_with_the_difference(log, topic, asked, difference):
    log.create_topic(topic, schema=NUMBERS)
    with pytest.raises(TopicExists, match=difference):
        log.create_topic(topic, **asked, if_not_exists=True)


def test_if_not_exists_accepts_a_topic_with_more_partitions(log, topic):
    """A program that creates its topic at every start works after `alter_topic`."""
    log.create_topic(topic, 2, if_not_exists=True)
    log.alter_topic(topic, partitions=5)
    assert len(log.create_topic(topic, 2, if_not_exists=True).partitions) == 5


def test_the_error_of_an_unknown_topic_suggests_the_nearest_name(log, topic):
    name = f"departures-of-{topic}"
    log.create_topic(name)
    asked = name.replace("departures", "departuers")
    calls = (
        lambda: log.describe(asked),
        lambda: log.delete_topic(asked),
        lambda: log.alter_topic(asked, partitions=2),
        lambda: log.read(asked),
        lambda: log._topics.offsets(asked),  # as Spark requests
    )
    for call in calls:
        with pytest.raises(UnknownTopic) as caught:
            call()
        assert caught.value.message == f"there is no topic '{asked}'; did you mean '{name}'?"
        assert caught.value.details == {"topic": asked}
        assert "`isolog topic list` shows" in caught.value.hint


def test_the_error_of_an_unknown_topic_without_a_near_name_has_no_suggestion(log):
    with pytest.raises(UnknownTopic) as caught:
        log.describe("0123456789")
    assert caught.value.message == "there is no topic '0123456789'"


def test_many_clients_create_one_topic_concurrently(log, topic):
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda _: log.create_topic(topic, 2, if_not_exists=True).id, range(16))
        assert len(set(made)) == 1


def test_a_topic_is_created_and_altered_with_a_schema_as_text(log, topic):
    made = log.create_topic(topic, schema="id bigint not null, name string")
    assert made.schema.equals(
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    )
    altered = log.alter_topic(topic, schema="id bigint, name string, x double")
    assert altered.schema.names == ["id", "name", "x"]
