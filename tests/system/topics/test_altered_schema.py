"""Topics with a schema altered during use: old and new records, writers and readers."""

from __future__ import annotations

import itertools
import threading
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from isolog.errors import InvalidTopic, SchemaMismatch, TopicExists
from spark_stream.client.reading import fetching
from tests.broker.stamped import Appender
from tests.support import eventually, native

FIRST = pa.schema([pa.field("id", pa.int32(), nullable=False), ("x", pa.int16())])
SECOND = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("x", pa.float64()), ("name", pa.string())]
)


def records(schema: pa.Schema, first: int, rows: int) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    values = {
        "id": list(numbers),
        "x": [n % 100 for n in numbers],
        "name": [f"name {n}" for n in numbers],
    }
    return pa.record_batch(
        [pa.array(values[each.name], each.type) for each in schema], schema=schema
    )


def ids(table: pa.Table) -> list[int]:
    return table.column("id").to_pylist()


def structs(*, added: bool) -> pa.Schema:
    """Return a schema of a struct, a list of structs and a map to structs.

    ``added``: the struct has a wider field and a new one.
    """
    fields = [("a", pa.int64() if added else pa.int32())] + ([("b", pa.string())] if added else [])
    kind = pa.struct(fields)
    nested = [("one", kind), ("many", pa.list_(kind)), ("named", pa.map_(pa.string(), kind))]
    return pa.schema([("id", pa.int32()), *nested])


def nested_row(number: int, **more: object) -> dict[str, object]:
    item = {"a": number, **more}
    return {"id": number, "one": item, "many": [item, None], "named": [("k", item)]}


def test_field_is_added_to_a_struct_at_any_nesting(log, topic):
    before, after = structs(added=False), structs(added=True)
    log.create_topic(topic, schema=before)
    old_rows, new_rows = [nested_row(n) for n in range(3)], [nested_row(3, b="x")]
    nulls = {"id": 9, "one": None, "many": None, "named": None}
    with log.producer() as older, log.consumer(topic) as reader:
        older.append(topic, pa.RecordBatch.from_pylist([*old_rows, nulls], before)).result(20)
        assert len(list(reader.batches(until="latest"))) == 1
        log.alter_topic(topic, schema=after)
        older.append(topic, pa.RecordBatch.from_pylist([nested_row(5)], before)).result(20)
        with log.producer() as newer:
            newer.append(topic, pa.RecordBatch.from_pylist(new_rows, after)).result(20)
            newer.append(topic, pa.RecordBatch.from_pylist([nested_row(6)], before)).result(20)
        seen = pa.Table.from_batches(list(reader.batches(until="latest")))
    # The reader keeps the schema of its start.
    assert seen.to_pylist() == [nested_row(5), nested_row(3), nested_row(6)]
    found = log.read(topic)
    assert found.schema == after
    expected = [nested_row(n, b=None) for n in range(3)]
    more = [nested_row(5, b=None), nested_row(3, b="x"), nested_row(6, b=None)]
    assert found.to_pylist() == [*expected, nulls, *more]


def test_old_records_are_read_in_the_new_schema(log, topic):
    log.create_topic(topic, schema=FIRST)
    with log.producer() as producer:
        producer.append(topic, records(FIRST, 0, 3))
    altered = log.alter_topic(topic, schema=SECOND)
    assert altered.schema == SECOND
    assert (altered.schema_version, altered.added) == (1, ("name",))
    assert log.describe(topic) == altered
    with log.producer() as producer:
        producer.append(topic, records(SECOND, 3, 2))
    expected = [
        *({"id": n, "x": float(n), "name": None} for n in range(3)),
        *({"id": n, "x": float(n), "name": f"name {n}"} for n in (3, 4)),
    ]
    found = log.read(topic)
    assert found.schema == SECOND
    assert found.to_pylist() == expected
    assert log.read(topic, columns=["name"]).column("name").to_pylist() == [
        each["name"] for each in expected
    ]
    assert ids(log.read(topic, filter="name IS NULL AND x > 0.5")) == [1, 2]
    assert ids(log.read(topic, filter="name = 'name 4' OR id = 0")) == [0, 4]
    assert ids(log.read(topic, columns=["id", "_offset"], start={0: 2})) == [2, 3, 4]


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (pa.schema([("id", pa.int64()), ("name", pa.string())]), SchemaMismatch, "'x' (smallint)"),
        (pa.schema([("id", pa.int16()), ("x", pa.int16())]), SchemaMismatch, "'id' from int to"),
        (FIRST, SchemaMismatch, "has this schema already"),
    ],
)
def test_refused_alteration_names_the_column_and_the_reason(log, topic, asked, error, said):
    made = log.create_topic(topic, schema=FIRST)
    with pytest.raises(error) as caught:
        log.alter_topic(topic, partitions=3, schema=asked)
    assert said in caught.value.message
    assert log.describe(topic) == made


def test_number_of_schemas_of_a_topic_is_bounded(log, topic):
    """Each schema widens the last column by a digit or adds a column, so that all are small."""
    schema = pa.schema([("c0", pa.decimal128(1))])
    log.create_topic(topic, schema=schema)
    for n in range(1, 256):
        column, digits = divmod(n, 38)
        field = pa.field(f"c{column}", pa.decimal128(digits + 1))
        schema = schema.set(column, field) if digits else schema.append(field)
        log.alter_topic(topic, schema=schema)
    with pytest.raises(InvalidTopic, match="already had 256 schemas"):
        log.alter_topic(topic, schema=schema.append(pa.field("more", pa.int8())))
    with log.producer() as producer:
        producer.append(topic, pa.record_batch({"c0": pa.array([7], pa.decimal128(1))}))
        row = {name: Decimal(number) for number, name in enumerate(schema.names)}
        producer.append(topic, pa.RecordBatch.from_pylist([row], schema))
    assert log.read(topic, columns=["c0", "c6"]).to_pylist() == [
        {"c0": Decimal(7), "c6": None},
        {"c0": Decimal(0), "c6": Decimal(6)},
    ]


def test_producer_of_the_old_schema_continues_and_fetches_the_new_one_on_demand(broker, topic):
    with broker.connect() as log, broker.connect() as other:
        log.create_topic(topic, schema=FIRST, partitions=2)
        with log.producer() as producer:
            producer.append(topic, records(FIRST, 0, 2), 0).result()
            other.alter_topic(topic, schema=SECOND)
            assert producer.append(topic, records(FIRST, 2, 2), 0).result().offset == 2
            written = [
                producer.append(topic, records(schema, n, 1), n % 2)
                for n, schema in zip(range(4, 204), itertools.cycle([FIRST, FIRST, SECOND]))
            ]
            producer.flush()
            offsets = [each.result().offset for each in written]
            assert offsets[::2] == list(range(4, 104))  # without duplicates, in order
            assert offsets[1::2] == list(range(100))
            more = records(FIRST, 0, 1).append_column("nobody", pa.array([1]))
            with pytest.raises(SchemaMismatch, match="'nobody'"):
                producer.append(topic, more).result()
            with pytest.raises(SchemaMismatch, match="'x'"):  # a column of the first schema
                producer.append(topic, records(FIRST, 0, 1).select(["id"])).result()
        found = log.read(topic)
        assert sorted(ids(found)) == list(range(204))
        named = found.filter(pc.is_valid(found.column("name")))
        assert sorted(ids(named)) == list(range(6, 204, 3))


def test_alterations_under_load_lose_and_duplicate_no_record(broker, topic):
    with broker.connect() as log, broker.connect() as other:
        log.create_topic(topic, schema=FIRST)
        done = threading.Event()

        def alter() -> None:
            schema = FIRST
            for n in range(8):
                schema = schema.append(pa.field(f"c{n}", pa.string()))
                other.alter_topic(topic, schema=schema)
                first = log.describe(topic)  # caches the new schema in this client
                assert first.schema_version == n + 1
            done.set()

        altering = threading.Thread(target=alter)
        with log.producer() as producer:
            altering.start()
            written = []
            while not done.is_set() or len(written) < 1000:
                written.append(producer.append(topic, records(FIRST, len(written), 3)))
            producer.flush()
        altering.join()
        assert [each.result().offset for each in written] == [3 * n for n in range(len(written))]
        expected = [n + k for n in range(len(written)) for k in range(3)]
        assert ids(log.read(topic)) == expected


def append_and_fail(producer, topic: str) -> None:
    producer.append(topic, records(SECOND, 6, 2)).result()
    raise ZeroDivisionError


def test_a_transaction_continues_after_its_topic_is_altered(broker, topic):
    with broker.connect() as log, broker.connect() as other:
        log.create_topic(topic, schema=FIRST)
        with log.producer(transactional_id="over") as producer:
            with producer.transaction():
                producer.append(topic, records(FIRST, 0, 2))
                other.alter_topic(topic, schema=SECOND)
                producer.append(topic, records(SECOND, 2, 2))
                producer.append(topic, records(FIRST, 4, 2))
            with pytest.raises(ZeroDivisionError), producer.transaction():
                append_and_fail(producer, topic)
        assert ids(log.read(topic, isolation="read_committed")) == list(range(6))
        assert ids(log.read(topic)) == list(range(8))


@pytest.mark.rule("the schema of a reader after an alteration", "batches.py")
def test_reader_of_the_old_schema_continues_until_a_value_does_not_fit(broker, topic):
    with broker.connect() as log, broker.connect() as other:
        log.create_topic(topic, schema=FIRST)
        consumer = log.consumer(topic, start="earliest")
        batches = consumer.batches()
        with other.producer() as producer:
            producer.append(topic, records(FIRST, 0, 2)).result()
            assert next(batches).column("id").to_pylist() == [0, 1]
            other.alter_topic(topic, schema=SECOND)
            producer.append(topic, records(SECOND, 2, 2)).result()
            found = next(batches)
            assert (found.schema, found.column("id").to_pylist()) == (FIRST, [2, 3])
            wide = pa.record_batch([[1 << 40], [0.5], ["wide"]], schema=SECOND)
            producer.append(topic, wide).result()
            with pytest.raises(SchemaMismatch, match="'id': the value 1099511627776") as caught:
                next(batches)
            assert "Restart" in caught.value.hint
        consumer.close()
        with log.consumer(topic, start={0: 4}, columns=["id"]) as anew:
            assert next(anew.batches()).column("id").to_pylist() == [1 << 40]


@pytest.mark.quick("mapped-zstd", "sent-none")
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    "maps", [pytest.param(True, id="mapped", marks=native), pytest.param(False, id="sent")]
)
def test_reader_of_mapped_files_converts_old_records(log, topic, compression, maps, monkeypatch):
    log.create_topic(topic, schema=FIRST, config={"compression": compression})
    rows = 400_000
    with log.producer() as producer:
        for first in range(0, rows, 100_000):
            producer.append(topic, records(FIRST, first, 100_000))
    log.alter_topic(topic, schema=SECOND)
    with log.producer() as producer:
        producer.append(topic, records(SECOND, rows, 100_000))
    mapped = []
    real = fetching.MappedFile.pieces

    def pieces(file, facts, columns):
        mapped.append(file.schema)
        return real(file, facts, columns)

    monkeypatch.setattr(fetching.MappedFile, "pieces", pieces)
    if not maps:
        monkeypatch.setattr(fetching.LEADERS, "machine", lambda address: None)
    found = log.read(topic)
    assert found.schema == SECOND
    assert ids(found) == list(range(rows + 100_000))
    assert found.column("name").null_count == rows
    assert log.read(topic, columns=["name"]).column("name").null_count == rows
    assert {len(schema) for schema in mapped} == ({2, 3} if maps else set())


@pytest.mark.rule(
    "the schemas of writers after an alteration",
    "broker/serving/append_stream.py",
    "client/writing/batches.py",
)
def test_streams_of_both_schemas_may_append_after_an_alteration(broker, topic):
    with broker.connect() as log, broker.channel() as channel:
        log.create_topic(topic, schema=FIRST)
        loose = pa.schema([each.with_nullable(True) for each in FIRST])  # as sent by most clients
        old = Appender(channel, topic, schema=loose)
        assert "error" not in old.append(0, records(loose, 0, 2))
        log.alter_topic(topic, schema=SECOND)
        assert "error" not in old.append(0, records(loose, 2, 2))
        new = Appender(channel, topic, schema=SECOND)
        assert "error" not in new.append(0, records(SECOND, 4, 2))
        late = Appender(channel, topic, schema=loose)
        assert "error" not in late.append(0, records(loose, 6, 1))
        nulls = pa.record_batch(
            [pa.array([7, None], pa.int32()), pa.nulls(2, pa.int16())], schema=loose
        )
        assert "takes no nulls" in late.append(0, nulls)["error"]["message"]
        assert ids(log.read(topic)) == list(range(8))
    broker.kill()
    broker.start()
    with broker.connect() as log:
        assert ids(log.read(topic)) == list(range(8))
        assert log.describe(topic).schema == SECOND


def test_of_conflicting_concurrent_alterations_one_succeeds(broker, topic):
    with broker.connect() as log:
        log.create_topic(topic, schema=FIRST)
    errors: list[Exception] = []

    def alter(n: int) -> None:
        with broker.connect() as mine:
            try:
                mine.alter_topic(topic, schema=FIRST.append(pa.field(f"c{n}", pa.string())))
            except (SchemaMismatch, InvalidTopic) as error:
                errors.append(error)

    threads = [threading.Thread(target=alter, args=(n,)) for n in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with broker.connect() as log:
        found = eventually(lambda: log.describe(topic))
        assert (found.schema_version, len(found.added)) == (1, 1)
    assert len(errors) == 5


def test_create_if_not_exists_accepts_an_altered_topic(log, topic):
    log.create_topic(topic, schema=FIRST, if_not_exists=True)
    log.alter_topic(topic, schema=SECOND)
    for schema in (FIRST, SECOND):
        assert log.create_topic(topic, schema=schema, if_not_exists=True).schema == SECOND
    with pytest.raises(TopicExists, match=r"'name' .* is missing"):
        log.create_topic(topic, schema=FIRST.append(pa.field("y", pa.int8())), if_not_exists=True)
