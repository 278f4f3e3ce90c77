"""A table's options: separated from Spark's, stored with the columns, shared by both sides."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from isolog.errors import InvalidOption
from spark_stream.datasource.options import sink_options, sink_part, source_options, source_part
from spark_stream.datasource.options.catalog_tables import (
    TableOptions,
    options_of_columns,
    table_options,
)
from spark_stream.datasource.spark.place import Place

SCHEMA = StructType([StructField("n", LongType()), StructField("m", LongType())])
CREATED = {
    "provider": "isolog",
    "owner": "me",
    "location": "data",
    "path": "data",
    "subscribe": "t",
    "option.subscribe": "t",
    "isolation": "read_atomic",
    "option.isolation": "read_atomic",
    "delta.property": "of somebody",
}


def commented(comment: str) -> StructType:
    return StructType([StructField("n", LongType(), True, {"comment": comment})])


def test_only_the_tables_own_options_are_kept() -> None:
    table = table_options(CREATED)
    assert table is not None
    assert table.given == {
        "path": "data",
        "subscribe": "t",
        "topic": "t",
        "isolation": "read_atomic",
    }
    assert table_options({"path": "data", "subscribe": "t"}) is None


def test_the_options_are_kept_with_the_columns_under_an_absolute_path() -> None:
    table = table_options(CREATED)
    assert table is not None
    kept = table.at(Place(path="/there/data")).kept_in(SCHEMA)
    assert [field.name for field in kept] == ["n", "m"]
    found = options_of_columns({}, kept)
    assert found == TableOptions({**table.given, "path": "/there/data"})


@pytest.mark.parametrize("name", ["password", "token", "PassWord"])
def test_a_table_keeps_no_secret(name: str) -> None:
    """Spark shows a table's options, and isolog keeps them in a comment."""
    with pytest.raises(InvalidOption, match="catalog shows them") as caught:
        table_options(CREATED | {name: "hush", f"option.{name}": "hush"})
    assert "hush" not in str(caught.value)


def test_options_with_a_place_take_precedence_over_the_columns_of_a_table() -> None:
    kept = TableOptions({"path": "/data", "topic": "t"}).kept_in(SCHEMA)
    for own in ({"path": "/x"}, {"bootstrap": "h:1"}, {"topic": "x"}, {"Subscribe": "x"}):
        assert options_of_columns(own, kept) is None
    assert options_of_columns({"isolation": "read_committed"}, kept) is not None
    assert options_of_columns({}, SCHEMA) is None
    assert options_of_columns({}, commented("isolog is fine")) is None


def test_handwritten_comment_works_for_declared_columns() -> None:
    comment = 'isolog {"path": "/data", "topic": "t", "createTopic": true}'
    found = options_of_columns({}, commented(comment))
    assert found is not None
    assert found.given == {
        "path": "/data",
        "topic": "t",
        "subscribe": "t",
        "createtopic": "true",
    }
    with pytest.raises(InvalidOption, match="comment of column 'n'"):
        options_of_columns({}, commented("isolog {path: /data}"))


def test_source_and_sink_use_their_own_options() -> None:
    given = {
        "path": "/data",
        "subscribe": "a,b",
        "topic": "t",
        "isolation": "read_atomic",
        "maxoffsetspertrigger": "7",
        "endingoffsets": "latest",
        "createtopic": "true",
        "sinkid": "s",
    }
    batch = source_options(source_part(given, streaming=False), streaming=False)
    assert batch.selection.names == ("a", "b")
    assert (batch.isolation, batch.limits.any) == ("read_atomic", False)
    stream = source_options(source_part(given, streaming=True), streaming=True)
    assert stream.limits.max_offsets == 7
    job = sink_options(sink_part(given, streaming=False), streaming=False)
    assert (job.topic, job.isolation, job.sink_id) == ("t", "read_committed", None)
    assert sink_options(sink_part(given, streaming=True)).sink_id == "s"


@pytest.mark.parametrize(
    ("name", "text"), [("subscribePattern", "orders-.*"), ("assign", '{"orders": [0]}')]
)
def test_a_table_may_read_by_pattern_or_partition_and_write_to_its_topic(
    name: str, text: str
) -> None:
    table = table_options({**CREATED, f"option.{name}": text, "option.topic": "orders"})
    assert table is not None
    given = {each: value for each, value in table.given.items() if each != "subscribe"}
    kept = options_of_columns({}, TableOptions(given).kept_in(SCHEMA))
    assert kept is not None
    assert source_options(source_part(kept.given)).selection.option == name
    assert sink_options(sink_part(kept.given, streaming=False)).topic == "orders"
    assert options_of_columns({name.upper(): text}, SCHEMA) is None


@pytest.mark.parametrize("name", ["nosuch", "kafka.acks"])
def test_an_option_of_neither_side_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        source_part({"path": "/data", "subscribe": "t", name: "x"})
