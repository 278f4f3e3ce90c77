"""A query may declare a column NOT NULL only if the topic does so as well.

Spark trusts a reader's schema: it drops ``is null`` from a query over a NOT NULL column, and reads
memory that a null does not have.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import SchemaMismatch


def check_nullability(topic: str, stored: pa.Schema, wanted: pa.Schema) -> None:
    """Raise SchemaMismatch for a column that is NOT NULL to the query and nullable in the topic.

    ``stored`` has the columns of ``wanted``, in types that fit.
    """
    for field in wanted:
        for path in _promised(field.name, stored.field(field.name), field):
            raise SchemaMismatch(
                f"column {path!r} is NOT NULL in the query's schema, and may be null in topic"
                f" {topic!r}",
                hint="Leave NOT NULL out of the schema; `where … is not null` drops the nulls.",
                column=path,
            )


def _promised(path: str, stored: pa.Field, wanted: pa.Field) -> Iterator[str]:
    """Yield this field and those within it, if declared NOT NULL though they may be null."""
    if stored.nullable and not wanted.nullable:
        yield path
    if pt.is_map(stored.type) and pt.is_map(wanted.type):
        yield from _promised(f"{path}.key", stored.type.key_field, wanted.type.key_field)
        yield from _promised(f"{path}.value", stored.type.item_field, wanted.type.item_field)
    elif pt.is_struct(stored.type) and pt.is_struct(wanted.type):
        for inner in wanted.type:
            yield from _promised(f"{path}.{inner.name}", stored.type.field(inner.name), inner)
    elif _is_list(stored.type) and _is_list(wanted.type):
        yield from _promised(f"{path}.element", stored.type.value_field, wanted.type.value_field)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_fixed_size_list(kind))
