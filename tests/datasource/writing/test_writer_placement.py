"""A typed topic's key: client, sink and command line place a row alike, in order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import isolog
from isolog.errors import InvalidConfig, InvalidOption, SchemaMismatch, TopicExists
from spark_stream.cli.app import execute
from spark_stream.client.writing.partitioner import partitions_by
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.writing.writer import IsologWriter
from tests.support import BrokerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int64())])
KEYS = {"id": ("id",), "name": ("name",), "id,name": ("id", "name")}


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    """Few ids and names, some of them null, and a running number."""
    numbers = range(first, first + count)
    ids = [None if n % 11 == 0 else n % 7 for n in numbers]
    names = [None if n % 5 == 0 else f"name-{n % 3}" for n in numbers]
    return pa.record_batch([ids, names, list(numbers)], schema=SCHEMA)


def sink(broker: BrokerProcess, topic: str, **more: str) -> IsologWriter:
    given = {"bootstrap": broker.address, "topic": topic, **more}
    return IsologWriter(sink_options(given, streaming=False), to_spark(SCHEMA))


def write_by(
    way: str, shared: BrokerProcess, log: isolog.Log, topic: str, folder: Path, key: str
) -> None:
    """Write rows in two batches, with ``key`` where it is not empty."""
    batches = [rows(150), rows(150, 150)]
    if way == "client":
        with log.producer() as producer:
            for batch in batches:
                producer.append(topic, batch, key=key.split(",") if key else None)
    elif way == "sink":
        writer = sink(shared, topic, **({"partitionBy": key} if key else {}))
        writer.commit([writer.write(iter(batches))])
    else:
        file = folder / "rows.parquet"
        pq.write_table(pa.Table.from_batches(batches), file)
        by = ["--partition-by", key] if key else []
        command = ["produce", topic, "--bootstrap", shared.address, "--file", str(file), *by]
        assert execute(command) == 0


def check_placed(log: isolog.Log, topic: str, columns: tuple[str, ...]) -> None:
    table = log.read(topic, metadata=True, isolation="read_committed")
    assert sorted(table["n"].to_pylist()) == list(range(300))
    (batch,) = table.combine_chunks().to_batches()
    count = len(log.describe(topic).partitions)
    expected = partitions_by(batch, columns, count, keyless=-1)
    for place, partition in zip(expected.tolist(), batch["_partition"].to_pylist(), strict=True):
        assert place in (-1, partition)
    assert len(set(expected.tolist())) > 2
    for partition in range(count):  # appended by one writer: each partition has its order
        numbers = table.filter(pc.equal(table["_partition"], partition))["n"].to_pylist()
        assert numbers == sorted(numbers)


@pytest.mark.quick("by the topic", "id,name-by both")
@pytest.mark.rule("the key columns of a typed topic, and their types", "schema/keys.py")
@pytest.mark.parametrize("way", ["client", "sink", "command line"])
@pytest.mark.parametrize("named", ["by the topic", "by the writer", "by both"])
@pytest.mark.parametrize("key", KEYS)
def test_every_writer_places_a_row_by_its_key_and_keeps_the_order(
    shared: BrokerProcess,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    way: str,
    named: str,
    key: str,
) -> None:
    config = {} if named == "by the writer" else {"partition.by": key}
    log.create_topic(topic, 5, schema=SCHEMA, config=config)
    write_by(way, shared, log, topic, tmp_path, "" if named == "by the topic" else key)
    check_placed(log, topic, KEYS[key])


def test_a_text_column_and_a_topic_with_kafkas_columns_agree(log: isolog.Log, topic: str) -> None:
    names = [f"key-{n}" for n in range(50)]
    kafkas = f"{topic}-kafkas"
    log.create_topic(topic, 7, schema=SCHEMA, config={"partition.by": "name"})
    log.create_topic(kafkas, 7)
    with log.producer() as producer:
        for n, name in enumerate(names):
            batch = pa.record_batch([[n], [name], [n]], schema=SCHEMA)
            typed = producer.append(topic, batch)
            assert typed.result(20).partition == (
                producer.send(kafkas, b"v", key=name).result(20).partition
            )
    log.delete_topic(kafkas)


def test_named_partition_takes_precedence_over_the_key(log: isolog.Log, topic: str) -> None:
    log.create_topic(topic, 5, schema=SCHEMA, config={"partition.by": "id"})
    with log.producer() as producer:
        assert producer.append(topic, rows(9), partition=3, key="id").result(20).partition == 3
        assert producer.append(topic, rows(9), 2).result(20).parts == ()


@pytest.mark.parametrize("way", ["client", "sink", "command line"])
def test_writer_that_contradicts_the_topic_is_refused_before_it_writes(
    shared: BrokerProcess,
    log: isolog.Log,
    topic: str,
    way: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.create_topic(topic, 5, schema=SCHEMA, config={"partition.by": "id"})
    problem = "partitioned by 'id', not by 'name'"
    if way == "client":
        with log.producer() as producer, pytest.raises(SchemaMismatch, match=problem):
            producer.append(topic, rows(5), key="name").result(20)
    elif way == "sink":
        with pytest.raises(InvalidOption, match=problem) as caught:
            sink(shared, topic, partitionBy="name")
        assert caught.value.details["option"] == "partitionBy"
        assert "the topic's partition.by are used" in caught.value.hint
    else:
        command = ["produce", topic, "--bootstrap", shared.address, "--format", "json"]
        assert execute([*command, "--partition-by", "name"]) == 1
        assert problem in capsys.readouterr().err
    assert log.read(topic).num_rows == 0


def test_topic_created_by_the_sink_keeps_the_key_for_every_writer(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    """Spark ignores the case of column names, and so does the key."""
    writer = sink(shared, topic, partitionBy="Id", createTopic="true", partitions="5")
    writer.commit([writer.write(iter([rows(300)]))])
    assert log.describe(topic).config["partition.by"] == "id"
    assert log.describe(topic).partition_by == ("id",)
    check_placed(log, topic, ("id",))


def test_the_option_and_the_setting_of_a_new_topic_have_to_agree() -> None:
    given = {"path": "x", "topic": "t", "createTopic": "true", "topic.partition.by": "a, b"}
    assert sink_options(given).partition_by == ("a", "b")
    assert sink_options({**given, "partitionBy": "a,b"}).partition_by == ("a", "b")
    with pytest.raises(
        InvalidOption, match=r"partitionBy is 'a' and topic\.partition\.by is 'a, b'"
    ):
        sink_options({**given, "partitionBy": "a"})
    with pytest.raises(InvalidOption, match="partitionBy is empty"):
        sink_options({"path": "x", "topic": "t", "partitionBy": " "})


NESTED = SCHEMA.append(pa.field("tags", pa.list_(pa.string())))


@pytest.mark.parametrize(
    ("schema", "columns", "column"),
    [
        (SCHEMA, "idd", "idd"),
        (SCHEMA, "id,id", "id"),
        (SCHEMA, "id,", ""),
        (NESTED, "id,tags", "tags"),
        (None, "value", "value"),
    ],
)
def test_invalid_key_is_refused_when_the_topic_is_created(
    shared: BrokerProcess,
    log: isolog.Log,
    topic: str,
    schema: pa.Schema | None,
    columns: str,
    column: str,
) -> None:
    with pytest.raises(InvalidConfig, match=r"partition\.by: ") as caught:
        log.create_topic(topic, schema=schema, config={"partition.by": columns})
    assert (caught.value.details["setting"], caught.value.details["column"]) == (
        "partition.by",
        column,
    )
    assert topic not in log.topics()
    if schema is SCHEMA:
        with pytest.raises(InvalidOption, match="option 'partitionBy'"):
            sink(shared, topic, partitionBy=columns, createTopic="true")
        assert topic not in log.topics()


def test_the_key_of_a_topic_never_changes(log: isolog.Log, topic: str) -> None:
    before = log.create_topic(topic, 2, schema=SCHEMA, config={"partition.by": "id"})
    for other in ("name", "id,name", ""):
        with pytest.raises(InvalidConfig, match="cannot change"):
            log.alter_topic(topic, config={"partition.by": other})
    assert log.describe(topic) == before
    log.alter_topic(topic, config={"partition.by": "id", "segment.ms": 5000})
    config = {"partition.by": "name"}
    with pytest.raises(TopicExists, match=r"its partition\.by is 'id', not 'name'"):
        log.create_topic(topic, 2, schema=SCHEMA, config=config, if_not_exists=True)


def test_key_column_is_widened_only_if_equal_values_stay_together(
    log: isolog.Log, topic: str
) -> None:
    narrow = pa.schema([("id", pa.int32())])
    log.create_topic(topic, 3, schema=narrow, config={"partition.by": "id"})
    with pytest.raises(SchemaMismatch, match="column 'id' from int to double"):
        log.alter_topic(topic, schema=pa.schema([("id", pa.float64())]))
    log.alter_topic(topic, schema=pa.schema([("id", pa.int64())]))
    with log.producer() as producer:
        old = producer.append(topic, pa.record_batch([[7]], schema=narrow)).result(20)
        new = producer.append(topic, pa.record_batch({"id": [7]})).result(20)
    assert old.partition == new.partition


# -- fields of structs -----------------------------------------------------------------------------

USERS = pa.schema(
    [
        ("user", pa.struct([("id", pa.int64()), ("zip", pa.string())])),
        ("a.b", pa.string()),
        SCHEMA[2],
    ]
)


def users(count: int) -> pa.RecordBatch:
    """Some rows have no user, and some users have no id."""
    found = [
        None if n % 11 == 0 else {"id": None if n % 5 == 0 else n % 7, "zip": f"zip-{n % 3}"}
        for n in range(count)
    ]
    dotted = [f"dotted-{n % 9}" for n in range(count)]
    return pa.record_batch([found, dotted, list(range(count))], schema=USERS)


@pytest.mark.quick("True-user.zip,a.b", "False-user.id")
@pytest.mark.parametrize("way", ["client", "sink", "command line"])
@pytest.mark.parametrize("key", ["user.id", "user.zip,a.b", "`a.b`"])
@pytest.mark.parametrize("by_topic", [True, False])
def test_fields_of_structs_place_rows_alike_in_client_sink_and_command_line(
    shared: BrokerProcess,
    log: isolog.Log,
    topic: str,
    tmp_path: Path,
    way: str,
    key: str,
    by_topic: bool,
) -> None:
    config = {"partition.by": key} if by_topic else {}
    log.create_topic(topic, 5, schema=USERS, config=config)
    batch, names = users(300), key.split(",")
    if way == "client":
        with log.producer() as producer:
            producer.append(topic, batch, key=None if by_topic else names).result()
    elif way == "sink":
        options = {"bootstrap": shared.address, "topic": topic}
        options |= {} if by_topic else {"partitionBy": key.upper()}
        writer = IsologWriter(sink_options(options, streaming=False), to_spark(USERS))
        writer.commit([writer.write(iter([batch]))])
    else:
        file = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_batches([batch]), file)
        by = [] if by_topic else ["--partition-by", key]
        command = ["produce", topic, "--bootstrap", shared.address, "--file", str(file), *by]
        assert execute(command) == 0
    table = log.read(topic, metadata=True, isolation="read_committed")
    (found,) = table.combine_chunks().to_batches()
    assert sorted(found["n"].to_pylist()) == list(range(300))
    expected = partitions_by(found, names, 5, keyless=-1).tolist()
    assert len(set(expected)) > 2
    for place, partition in zip(expected, found["_partition"].to_pylist(), strict=True):
        assert place in (-1, partition)


def test_topic_create_takes_the_key_and_the_sink_stores_it_as_the_schema_spells_it(
    shared: BrokerProcess, log: isolog.Log, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create = ["topic", "create", topic, "--bootstrap", shared.address]
    create += ["--schema", "user struct<id:bigint>, n int", "--partition-by"]
    assert execute([*create, "user.nobody"]) == 1
    assert "column 'user.nobody' is not one of the topic's" in capsys.readouterr().err
    assert execute([*create, "user.id", "--config", "partition.by=n"]) == 2
    assert execute([*create, "user.id"]) == 0
    assert log.describe(topic).partition_by == ("user.id",)
    again = log.create_topic(
        topic,
        schema="user struct<id:bigint>, n int",
        config={"partition.by": "`user`.id"},
        if_not_exists=True,
    )
    assert again.partition_by == ("user.id",)
    made = f"{topic}-made"
    options = {"bootstrap": shared.address, "topic": made, "createTopic": "true"}
    options["partitionBy"] = "USER.Id,`A.B`"
    IsologWriter(sink_options(options, streaming=False), to_spark(USERS))
    assert log.describe(made).config["partition.by"] == "user.id,a.b"
