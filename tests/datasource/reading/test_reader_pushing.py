"""Filtered queries without Spark: offsets cover all records, and losses are still detected."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from isolog.errors import InvalidFilter, IsologError
from spark_stream.datasource.options import source_options
from spark_stream.datasource.reading.reader import IsologReader, PushingReader
from spark_stream.datasource.reading.stream_reader import IsologStreamReader
from spark_stream.datasource.source import IsologDataSource
from spark_stream.datasource.spark.types import to_spark
from tests.datasource.sources import Query, batch_read
from tests.support import NUMBERS, numbers


@pytest.fixture
def thousands(log, topic):
    """Two partitions of 5,000 numbers in five batches."""
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    with log.producer() as producer:
        for partition in range(2):
            for first in range(0, 5000, 1000):
                producer.append(topic, numbers(first, 1000), partition=partition)
    return topic


def test_batch_without_matches_is_complete(shared, thousands):
    assert batch_read(shared.address, thousands, filter="n < 0") == []
    assert batch_read(shared.address, thousands, filter="n = 4999") == [4999, 4999]
    assert batch_read(shared.address, thousands, filter="n = 0", minPartitions=8) == [0, 0]


def test_limits_count_records_before_the_filter(shared, thousands):
    query = Query(shared.address, thousands, filter="n = 4999", maxOffsetsPerTrigger=2500)
    assert [query.batch() for _ in range(4)] == [[], [], [], [4999, 4999]]
    assert query.planned() == query.at


def test_a_planned_batch_is_read_again_with_the_same_rows(shared, thousands):
    query = Query(shared.address, thousands, filter="n between 10 and 12")
    end = query.planned()
    at = query.at
    first = query.read(end)
    query.at = at
    query.start()
    assert query.read(end) == first == [10, 11, 12, 10, 11, 12]


def reader_of(address, topic, schema=NUMBERS, **options):
    given = {"bootstrap": address, "subscribe": topic, **options}
    shown = schema if isinstance(schema, StructType) else to_spark(schema)
    return PushingReader(source_options(given, streaming=False), shown)


def rows_of(reader):
    return [
        number
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for number in batch.column("n").to_pylist()
    ]


def test_pushed_filters_that_are_not_taken_are_returned_unchanged(shared, thousands):
    reader = reader_of(shared.address, thousands, filter="n > 3")
    taken = [
        spark.GreaterThan(("n",), 1),
        spark.Not(spark.EqualTo(("n",), 5)),
        spark.In(("n",), (4, 5, 6, 9000)),
        spark.IsNotNull(("n",)),
    ]
    left = [
        spark.EqualTo(("m",), 1),
        spark.EqualTo(("n",), "one"),
        spark.StringContains(("n",), "1"),
        spark.EqualTo(("n",), object()),
        spark.In(("n",), ()),
    ]
    assert [id(each) for each in reader.pushFilters([*taken, *left])] == list(map(id, left))
    assert rows_of(reader) == [4, 6, 4, 6]


def test_filter_is_checked_with_the_columns(shared, thousands):
    """They are computed when a query is loaded without ``.schema(...)``."""
    for text, told in (
        (
            "m = 1",
            f"no column 'm'; topic '{thousands}' has n bigint, _offset bigint, _topic string",
        ),
        ("_partitio = 1", r"is '_partition' meant\?.* _partition int,"),
        ("n = 'one'", r"column 'n' \(bigint\): 'one' is not a whole number"),
        (" ", "it is empty"),
    ):
        given = {"bootstrap": shared.address, "subscribe": thousands, "filter": text}
        with pytest.raises(InvalidFilter, match=told):
            IsologDataSource(given).schema()


def test_a_filter_that_fits_no_topic_is_refused_when_the_query_is_planned(shared, thousands):
    for text in ("m = 1", "n = 'one'", "n ="):
        with pytest.raises(IsologError, match="filter"):
            Query(shared.address, thousands, filter=text)
        with pytest.raises(IsologError, match="filter"):
            batch_read(shared.address, thousands, filter=text)


NAMES = pa.schema(
    [
        ("n", pa.int64()),
        ("name", pa.string()),
        ("deep", pa.struct([("name", pa.string()), ("n", pa.int64())])),
    ]
)
CASELESS = StringType("UTF8_LCASE")
PADDED = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
OTHER_PADDED = {"__CHAR_VARCHAR_TYPE_STRING": "struct<name:varchar(5),other:char(5),n:bigint>"}
PADDED_WITHIN = {"__CHAR_VARCHAR_TYPE_STRING": "struct<name:char(5),n:bigint>"}


def names_as(kind: DataType, **metadata: dict[str, str]) -> StructType:
    """The columns of NAMES, with texts of this type and metadata of the columns."""
    return StructType(
        [
            StructField("n", LongType()),
            StructField("name", kind, metadata=metadata.get("name")),
            StructField(
                "deep",
                StructType().add("name", kind).add("n", LongType()),
                True,
                metadata.get("deep"),
            ),
        ]
    )


@pytest.fixture
def names(log, topic):
    log.create_topic(topic, schema=NAMES)
    with log.producer() as producer:
        columns = [[1, 2], ["abc", "ABC"], [{"name": "abc", "n": 1}, {"name": "ABC", "n": 2}]]
        producer.append(topic, pa.record_batch(columns, schema=NAMES))
    return topic


COMPARING = [
    ("name = 'ABC'", "name"),
    ("n = 1 and NAME <> 'x'", "NAME"),
    ("n = 1 or not (name < 'x')", "name"),
    ("name between 'a' and 'b'", "name"),
    ("n = 1 or 'x' <=> name", "name"),
    ("name in ('ABC')", "name"),
    ("name like 'A%'", "name"),
    ("(startswith(name, 'A')) is true", "name"),
    ("name = deep.name", "name"),
    ("contains(Deep.Name, 'B')", "Deep.Name"),
]


@pytest.mark.rule(
    "the filters that compare texts differently from Spark", "datasource/spark/types.py"
)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (names_as(CASELESS), "string collate UTF8_LCASE"),
        (names_as(StringType(), name=PADDED, deep=PADDED_WITHIN), r"char\(5\)"),
    ],
    ids=["collated", "padded"],
)
def test_filter_on_text_that_spark_does_not_compare_by_bytes_is_refused(
    shared, names, shown, said, streaming
):
    """A leader compares bytes, so it would drop rows that ``.where`` keeps."""
    reader = IsologStreamReader if streaming else IsologReader
    for text, column in COMPARING:
        given = {"bootstrap": shared.address, "subscribe": names, "filter": text}
        with pytest.raises(InvalidFilter, match=f"column {column!r} is {said}") as caught:
            reader(source_options(given, streaming=streaming), shown)
        assert ".where(" in caught.value.hint
        assert caught.value.details["column"] == column


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (names_as(CASELESS), "name is not null and n = 1 and deep.name is not null and deep.n = 1"),
        (names_as(StringType(), name={"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}), "name = 'abc'"),
        (StructType().add("n", "long"), "name = 'abc'"),
        (names_as(StringType(), name=PADDED), "deep.name = 'abc'"),
        (names_as(StringType(), deep=OTHER_PADDED), "DEEP.Name = 'abc'"),
    ],
)
def test_filter_on_other_columns_of_such_a_query_is_applied(shared, names, shown, text):
    assert rows_of(reader_of(shared.address, names, shown, filter=text)) == [1]


def test_filter_on_a_padded_column_is_refused_if_the_query_leaves_the_column_out(
    shared, log, topic
):
    padded = pa.field("c", pa.string(), metadata={"isolog.type": "char(5)"})
    log.create_topic(topic, schema=pa.schema([pa.field("n", pa.int64()), padded]))
    given = {"bootstrap": shared.address, "subscribe": topic, "filter": "c = 'ab'"}
    with pytest.raises(InvalidFilter, match=r"column 'c' is char\(5\)"):
        IsologReader(source_options(given, streaming=False), StructType().add("n", "long"))


def test_comparisons_of_text_that_spark_pads_or_collates_are_left_to_spark(shared, names):
    comparisons = [
        spark.EqualTo(("name",), "abc"),
        spark.Not(spark.In(("name",), ("abc",))),
        spark.StringStartsWith(("deep", "name"), "a"),
    ]
    for shown in names_as(CASELESS), names_as(StringType(), name=PADDED, deep=PADDED_WITHIN):
        assert list(reader_of(shared.address, names, shown).pushFilters(comparisons)) == comparisons
    plain = reader_of(shared.address, names, names_as(StringType()))
    assert list(plain.pushFilters(comparisons)) == []
