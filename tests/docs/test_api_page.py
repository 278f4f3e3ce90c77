"""The overview of the public API states the forms of values that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from spark_stream.client.reading.columns import KAFKA_COLUMNS, shown_schema
from spark_stream.consistency.isolation import CONSUMER_LEVELS
from spark_stream.datasource.options.table import OPTIONS
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.values.offsets import TopicOffsets, to_json
from spark_stream.schema.schemas import DEFAULT_SCHEMA

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text()
FACE = PAGE.replace("\n", " ").replace("  ", " ")


@pytest.mark.rule('the options of `format("isolog")`', "datasource/options/table.py")
def test_reference_has_a_row_for_each_option() -> None:
    reference = (DOCS / "reference" / "options.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \|", reference, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert {each.name for each in OPTIONS} <= named


def test_overview_names_the_isolation_levels() -> None:
    (line,) = re.findall(r"`isolation` is (.*?) \(\[", FACE)
    assert re.findall(r"`(read_\w+)`", line) == list(CONSUMER_LEVELS)


def ddl(schema: pa.Schema) -> str:
    return ", ".join(
        f"{field.name} {field.dataType.simpleString()}" for field in to_spark(schema).fields
    )


def test_overview_has_the_columns_of_a_default_schema_topic() -> None:
    said = re.search(r"`(key binary, value binary, .*?)`", FACE)
    assert said is not None
    without, _, headers = said[1].partition(" [, ")
    assert ddl(KAFKA_COLUMNS) == without
    assert ddl(shown_schema(DEFAULT_SCHEMA, headers=True)) == f"{without}, {headers.rstrip(']')}"


def test_overview_has_the_metadata_columns() -> None:
    typed = pa.schema([("n", pa.int64())])
    added = shown_schema(typed, metadata=True).names[1:]
    assert f"add {', '.join(f'`{name}`' for name in added)}" in FACE


def test_overview_has_the_form_of_a_streaming_offset() -> None:
    said = re.search(r'`({"<topic>": .*?)`', FACE)
    assert said is not None
    offset = to_json(
        {"<topic>": TopicOffsets("<topic id>", {0: 42}, {0: ((3, 42),)})}, "a log's id"
    )
    assert offset["<topic>"].pop("cluster") == "a log's id"
    assert str(offset).replace("'", '"') == said[1]


def test_every_error_has_its_own_code_and_a_remedy() -> None:
    kinds = [
        kind
        for kind in vars(isolog.errors).values()
        if isinstance(kind, type) and issubclass(kind, isolog.errors.IsologError)
    ]
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(kind.hint and isinstance(kind.retriable, bool) for kind in kinds)
