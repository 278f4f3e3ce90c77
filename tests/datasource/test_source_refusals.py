"""The refusals of a query and of a write, without Spark: each option and column by its name.

``tests/spark/test_batch_source.py`` and ``tests/spark/test_sink.py`` prove that Spark shows them:
the first of each table in ``make test``, all of them in ``make test-all``.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import isolog
from spark_stream.datasource import IsologDataSource
from spark_stream.datasource.spark.types import to_spark
from tests.support import NUMBERS, BrokerProcess

READS = [
    ({"isolaton": "read_committed"}, "did you mean 'isolation'"),
    ({"isolation": "read_commited"}, "read_uncommitted | read_replicated"),
    ({"startingOffsets": "first"}, "startingOffsets takes earliest | latest"),
    ({"startingOffsets": "latest"}, "cannot start at latest"),
    ({"endingOffsets": "earliest"}, "cannot end at earliest"),
    ({"maxOffsetsPerTrigger": "10"}, "not for a batch query"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp takes milliseconds since 1970"),
    ({"subscribePattern": "a.*"}, "subscribe, subscribePattern: a query has only one"),
    ({"endingTimestamp": "2024-02-30"}, "endingTimestamp takes milliseconds since 1970"),
    ({"consumer": " "}, "consumer takes a text of 1 to 255 characters"),
    ({"token": ""}, "token takes a text"),
    ({"includeHeaders": "true"}, "typed topic has no headers"),
]
WRITES = [
    ({"transactional": "maybe"}, "transactional takes true | false"),
    ({"isolation": "read_atomic"}, "isolation takes read_uncommitted | read_committed"),
    ({"partitions": "3"}, "partitions needs createTopic=true"),
    ({"createTopic": "true", "partitions": "0"}, "partitions takes a whole number from 1"),
    ({"createTopics": "true"}, "did you mean 'createTopic'"),
    ({"failOnDataLoss": "true"}, "'failOnDataLoss' is not for a sink"),
    ({"sinkId": "x"}, "sinkId without batchId"),
    ({"transactionTimeout": "500ms"}, "transactionTimeout takes a time from 1s to 1d"),
]
TEXT, INT, LONG = pa.string(), pa.int32(), pa.int64()
# Options, columns, and the message.
MISFITS = [
    (
        "select cast(id as string) as n from range(3)",
        {"n": TEXT},
        "column 'n': expected bigint, got string",
    ),
    ("select id as m from range(3)", {"m": LONG}, "column 'n' (bigint) is missing"),
    (
        "select id as n, 1 as extra from range(3)",
        {"n": LONG, "extra": INT},
        "column 'extra' (int) is not one of",
    ),
]
NOT_KAFKAS = [
    ("select 1 as value", {"value": INT}, "column 'value': expected binary or string, got int"),
    ("select 'k' as key", {"key": TEXT}, "column 'value' (binary or string) is missing"),
    (
        "select 'v' as value, 'x' as other",
        {"value": TEXT, "other": TEXT},
        "column 'other' is not one that",
    ),
    (
        "select 'v' as value, 'x' as partition",
        {"value": TEXT, "partition": TEXT},
        "column 'partition': expected int",
    ),
    (
        "select 'v' as value, array('x') as headers",
        {"value": TEXT, "headers": pa.list_(TEXT)},
        "column 'headers': expected array<struct",
    ),
]


def source(shared: BrokerProcess, **options: str) -> IsologDataSource:
    return IsologDataSource({"bootstrap": shared.address, **options})


def columns(**types: pa.DataType) -> StructType:
    return to_spark(pa.schema(types))


@pytest.mark.parametrize(("options", "message"), READS)
def test_invalid_option_of_a_read_has_a_specific_message(
    shared: BrokerProcess, log: isolog.Log, topic: str, options: dict[str, str], message: str
) -> None:
    log.create_topic(topic, schema=NUMBERS)
    asked = source(shared, subscribe=topic, **options)
    with pytest.raises(Exception, match=r"INVALID_OPTION|UNSUPPORTED") as caught:
        asked.reader(asked.schema())
    assert message in str(caught.value)


@pytest.mark.parametrize(("options", "message"), WRITES)
def test_invalid_option_of_a_write_has_a_specific_message(
    shared: BrokerProcess, topic: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=r"INVALID_OPTION|UNSUPPORTED") as caught:
        source(shared, topic=topic, **options).writer(columns(n=LONG), False)
    assert message in str(caught.value)


@pytest.mark.parametrize("schema", [NUMBERS, None], ids=["typed", "Kafka's"])
def test_dataframe_that_does_not_fit_is_refused_by_column(
    shared: BrokerProcess, log: isolog.Log, topic: str, schema: pa.Schema | None
) -> None:
    log.create_topic(topic, schema=schema)
    for _, types, message in MISFITS if schema else NOT_KAFKAS:
        with pytest.raises(Exception, match="SCHEMA_MISMATCH") as caught:
            source(shared, topic=topic).writer(columns(**types), False)
        assert message in str(caught.value)
