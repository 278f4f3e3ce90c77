"""Holds docs/api.md, the public face, against the code, as far as this release goes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from spark_stream.client.reading.columns import KAFKA_COLUMNS, shown_schema
from spark_stream.client.values import Record, Written
from spark_stream.consistency.isolation import CONSUMER_LEVELS
from spark_stream.datasource import options
from spark_stream.datasource.options.table import OPTIONS, Use, options_for
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.values.offsets import TopicOffsets, to_json
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
NOTE, _, FACE = PAGE.partition("\n---\n\n")


def option_rows() -> list[tuple[list[str], str, str, str]]:
    """(names, for whom, default, meaning) of each row of the table of options."""
    table = FACE.partition("| option | for |")[2].partition("\n\n")[0]
    rows = []
    for line in table.splitlines()[2:]:
        names, whom, default, meaning = (cell.strip() for cell in line.strip("| ").split(" | ", 3))
        rows.append((re.findall(r"`([^`]+)`", names), whom, default, meaning))
    return rows


@pytest.mark.rule('which options `format("isolog")` has', "datasource/options/table.py")
def test_every_option_of_the_page_is_known_to_the_code_and_no_other() -> None:
    named = {name for names, *_ in option_rows() for name in names}
    named |= {"partitions", "replicationFactor"}  # in the row of createTopic
    named |= set(re.findall(r"the option `(\w+)`", NOTE))  # more than the page has
    known = {each.name for each in OPTIONS}
    known -= {"checkpointLocation", "queryName", "topic.<setting>"}  # two of Spark's, a pattern
    assert known == named


@pytest.mark.parametrize("row", option_rows(), ids=lambda row: row[0][0])
def test_an_option_is_for_whom_the_page_says(row: tuple[list[str], str, str, str]) -> None:
    names, whom, *_ = row
    of_source, of_sink = options_for(Use.SOURCE), options_for(Use.SINK)
    for name in names:
        assert (name in of_source) == (whom == "both" or "source" in whom or name == "isolation")
        assert (name in of_sink) == (whom == "both" or "sink" in whom or name == "isolation")


def test_the_defaults_of_options_are_the_pages() -> None:
    source = options.source_options({"path": "x", "subscribe": "t"})
    sink = options.sink_options({"path": "x", "topic": "t"})
    shown = {
        "isolation": source.isolation,
        "startingOffsets": {-2: "earliest", -1: "latest"}[int(str(source.starting.place))],
        "endingOffsets": {-2: "earliest", -1: "latest"}[int(str(source.ending.place))],
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "includeHeaders": str(source.include_headers).lower(),
        "includeMetadata": str(source.include_metadata).lower(),
        "createTopic": str(sink.create_topic).lower(),
        "transactional": str(sink.transactional).lower(),
    }
    for names, whom, default, _ in option_rows():
        for name in names:
            if name in shown and not (name == "isolation" and whom == "sink"):
                assert f"`{shown[name]}`" == default, name
    once = options.sink_options({"path": "x", "topic": "t", "transactional": "false"})
    (row,) = (row for row in option_rows() if row[0] == ["isolation"] and row[1] == "sink")
    assert row[2] == f"`{sink.isolation}` when transactional, else `{once.isolation}`"
    assert not source.limits.any


def test_the_isolation_levels() -> None:
    row = next(row for row in option_rows() if row[0] == ["isolation"] and row[1] == "source")
    assert re.findall(r"`(read_\w+)`", row[3]) == list(CONSUMER_LEVELS)


def ddl(schema: pa.Schema) -> str:
    return ", ".join(
        f"{field.name} {field.dataType.simpleString()}" for field in to_spark(schema).fields
    )


def test_the_columns_of_a_default_schema_topic() -> None:
    said = re.search(r"`(key binary, value binary, .*?)`", FACE.replace("\n", " "))
    assert said is not None
    without, _, headers = said[1].partition(" [, ")
    assert ddl(KAFKA_COLUMNS) == without
    assert ddl(shown_schema(DEFAULT_SCHEMA, headers=True)) == f"{without}, {headers.rstrip(']')}"


def test_the_metadata_columns() -> None:
    typed = pa.schema([("n", pa.int64())])
    added = shown_schema(typed, metadata=True).names[1:]
    assert f"add {', '.join(f'`{name}`' for name in added)}" in FACE


def test_the_streaming_offset() -> None:
    said = re.search(r"Streaming offset, as Spark logs it: `(.*?)`", FACE)
    assert said is not None
    offset = to_json(
        {"<topic>": TopicOffsets("<topic id>", {0: 42}, {0: ((3, 42),)})}, "a log's id"
    )
    assert offset["<topic>"].pop("cluster") == "a log's id"  # which the note above the page adds
    assert str(offset).replace("'", '"') == said[1]


def test_connect_takes_an_address_or_a_path() -> None:
    parameters = inspect.signature(isolog.connect).parameters
    assert next(iter(parameters)) == "bootstrap"
    assert "path" in parameters


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (
            isolog.Log.create_topic,
            ["partitions", "replication_factor", "schema", "config", "if_not_exists"],
        ),
        (isolog.Log.producer, ["isolation", "transactional_id"]),
        (isolog.Log.consumer, ["isolation", "start", "name"]),
        (isolog.Log.read, ["start", "end", "isolation", "columns", "filter", "metadata"]),
        (isolog.Producer.send, ["key", "headers", "partition", "timestamp"]),
        (isolog.Producer.append, ["partition"]),
        (isolog.Consumer.records, ["until"]),
        (isolog.TransactionalProducer.transaction, []),
        (isolog.TransactionalProducer.begin_transaction, []),
        (isolog.TransactionalProducer.commit_transaction, []),
        (isolog.TransactionalProducer.abort_transaction, []),
        (isolog.TransactionalProducer.commit_position, []),
        (isolog.Log.topics, []),
        (isolog.Log.describe, []),
        (isolog.Log.delete_topic, []),
        (isolog.Producer.flush, []),
        (isolog.Consumer.batches, []),
        (isolog.Consumer.position, []),
        (isolog.Consumer.seek, []),
    ],
    ids=lambda value: getattr(value, "__qualname__", None),
)
def test_the_python_calls_have_the_pages_parameters(function: object, names: list[str]) -> None:
    method = function.__name__  # type: ignore[attr-defined]
    assert f".{method}(" in FACE or f"`{method}`" in FACE or method in FACE
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    for name in names:
        assert name in parameters, name
        assert f"{name}=" in FACE, name


def names_after(words: str) -> list[str]:
    """The comma-separated names in the code span that follows these words."""
    found = re.search(re.escape(words) + r"[^`]*`([^`]+)`", FACE)
    assert found is not None, words
    return [name.strip() for name in found[1].replace("\n", " ").split(",")]


def test_what_describe_returns() -> None:
    topic, partition = TopicDescription.__struct_fields__, PartitionDescription.__struct_fields__
    assert set(names_after("`describe(topic)`:")) <= set(topic)
    assert set(names_after("each of `partitions`:")) <= set(partition)


def test_what_a_write_and_a_record_have() -> None:
    written = Written.__struct_fields__
    assert {"topic", "partition", "offset", "count"} <= set(written)
    said = re.search(r"consumer\.records\(\): \.\.\. +# (.*)", FACE)
    assert said is not None
    assert said[1].split(", ") == list(Record._fields)


def test_the_errors_have_the_pages_names() -> None:
    said = FACE.partition("Errors derive from")[2].partition("…")[0]
    names = re.findall(r"`([A-Z]\w+)`", said)
    for name in names:
        assert issubclass(getattr(isolog.errors, name), isolog.errors.IsologError)
    for attribute in ("code", "retriable", "hint", "kept", "offset"):
        assert hasattr(isolog.errors.IsologError, attribute)


def test_every_error_has_a_code_of_its_own_and_says_what_to_do() -> None:
    kinds = [
        kind
        for kind in vars(isolog.errors).values()
        if isinstance(kind, type) and issubclass(kind, isolog.errors.IsologError)
    ]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(kind.hint and isinstance(kind.retriable, bool) for kind in kinds)
