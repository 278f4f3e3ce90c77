"""Filters: parse the text once, then bind it to a partition of a topic."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Final

import pyarrow as pa

from spark_stream.errors import InvalidFilter
from spark_stream.schema.schemas import OFFSET, PARTITION, TIMESTAMP, TOPIC, is_default
from spark_stream.sql.binding import Columns, bind
from spark_stream.sql.predicates import Field, RowFilter
from spark_stream.sql.tree import Literal, LiteralKind, Predicate
from spark_stream.wire.limits import FILTER_CHARACTERS_MAX

_REMEMBERED: Final = 256
_KAFKAS_NAMES: Final = {OFFSET: "offset", TOPIC: "topic", PARTITION: "partition"}


@lru_cache(_REMEMBERED)
def parsed(text: str) -> Predicate:
    """Parse a filter's text; results are cached.

    Raises:
        InvalidFilter: the text is not SQL, or SQL that a filter does not support.
    """
    if len(text) > FILTER_CHARACTERS_MAX:
        raise InvalidFilter(
            f"filter: it has {len(text)} characters; {FILTER_CHARACTERS_MAX} are the most",
            option="filter",
        )
    if not text.strip():
        raise InvalidFilter(
            "filter: it is empty",
            option="filter",
            hint='Give a condition, as "delay > 60", or leave the option out.',
        )
    from spark_stream.sql.grammar import predicate  # slow: only once there is a text to read

    return predicate(text)


def columns_of(topic: str, schema: pa.Schema, partition: int) -> Columns:
    """Return what a filter may name: all columns that a reader sees, stored or not."""
    columns: dict[str, Field | Literal] = {
        field.name: Field(field.name, field.type) for field in schema
    }
    default = is_default(schema)
    made: dict[pa.Field, Field | Literal] = {
        OFFSET: Field(OFFSET.name, OFFSET.type),
        TOPIC: Literal(LiteralKind.STRING, topic, repr(topic)),
        PARTITION: Literal(LiteralKind.WHOLE, Fraction(partition), str(partition)),
    }
    if default:
        columns["timestampType"] = Literal(LiteralKind.WHOLE, Fraction(0), "0")
        return columns | {_KAFKAS_NAMES[each]: found for each, found in made.items()}
    columns |= {each.name: found for each, found in made.items()}
    columns[TIMESTAMP.name] = Field(TIMESTAMP.name, TIMESTAMP.type)
    return columns


@lru_cache(_REMEMBERED)
def row_filter(text: str, topic: str, schema: pa.Schema, partition: int = 0) -> RowFilter:
    """Return the filter for one partition of a topic of this schema.

    Raises:
        InvalidFilter: as :func:`parsed`; or it names a column that the topic lacks, or compares
            one with a value of another type.
    """
    return bind(parsed(text), columns_of(topic, schema, partition), topic)
