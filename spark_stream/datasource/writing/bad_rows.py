"""Which rows of a DataFrame do not fit their topic: by masks over whole columns.

The sink finds here what the topic's leader would refuse, before it sends it. The leader stays the
judge: what it refuses all the same (the topic was altered a moment ago) fails the task, and the
next attempt knows the topic as it is then.

A message names the column and the problem, and never a value. So all rows of a batch that have the
same problem in the same column share one message.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from msgspec import Struct

from spark_stream.datasource.writing.routing import (
    PARTITION_COLUMN,
    as_stored,
    topic_schema_of,
)
from spark_stream.schema.not_null import null_rows
from spark_stream.schema.record_sizes import bytes_at_most, record_sizes
from spark_stream.schema.schemas import is_default
from spark_stream.schema.type_names import type_name
from spark_stream.wire.topic_messages import TopicDescription

_DAYS_MAX: Final = 106_751_991
"""The most days before or after 1970 that a timestamp in microseconds can have."""
_DAY_NS: Final = 86_400 * 10**9
_UTF8: Final = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]"
    r"|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|\xf4[\x80-\x8f][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3})*\z"
)
"""Bytes that are UTF-8. Arrow matches binary values byte by byte."""


class BadRowReason(StrEnum):
    """Why a row cannot be written."""

    NO_TOPIC = "NO_TOPIC"
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
    UNKNOWN_PARTITION = "UNKNOWN_PARTITION"
    NULL_VALUE = "NULL_VALUE"
    INVALID_VALUE = "INVALID_VALUE"
    RECORD_TOO_LARGE = "RECORD_TOO_LARGE"


class BadRows(Struct, frozen=True):
    """Rows of a DataFrame that do not fit the topic that they are for, for one reason."""

    topic: str | None
    reason: BadRowReason
    message: str
    rows: pa.RecordBatch


Found = tuple[npt.NDArray[np.integer], BadRowReason, str]
"""Rows, by their places in a batch, and what is wrong with them."""


def sort_out(
    batch: pa.RecordBatch, known: TopicDescription, *, by_column: bool
) -> tuple[pa.RecordBatch, list[BadRows]]:
    """Split rows into those that the topic takes, in their order, and those that it does not.

    The columns as such must fit (``routing.check_fits``). ``by_column``: rows name their topic.
    """
    bad: list[BadRows] = []
    for find in _RULES:
        taken = np.zeros(batch.num_rows, bool)
        for places, reason, message in find(batch, known, by_column):
            places = np.unique(places[~taken[places]])
            taken[places] = True
            if len(places):
                rows = batch.take(pa.array(places))
                bad.append(BadRows(known.name, reason, message, rows))
        if taken.any():
            batch = batch.filter(pa.array(~taken))
    return batch, bad


def _without_partition(
    batch: pa.RecordBatch, known: TopicDescription, by_column: bool
) -> Iterator[Found]:
    if not is_default(known.schema) or PARTITION_COLUMN not in batch.schema.names:
        return
    column, count = batch.column(PARTITION_COLUMN), len(known.partitions)
    wrong = pc.fill_null(pc.or_(pc.less(column, 0), pc.greater_equal(column, count)), False)
    if pc.any(wrong).as_py():
        message = f"topic {known.name!r} has partitions 0 to {count - 1}"
        yield _places(wrong), BadRowReason.UNKNOWN_PARTITION, message


def _with_nulls(batch: pa.RecordBatch, known: TopicDescription, by_column: bool) -> Iterator[Found]:
    for field in () if is_default(known.schema) else known.schema:
        if field.name in batch.schema.names:
            for places, path in null_rows(batch.column(field.name), field, field.name):
                yield places, BadRowReason.NULL_VALUE, f"column {path!r} takes no nulls"


def _with_invalid_values(
    batch: pa.RecordBatch, known: TopicDescription, by_column: bool
) -> Iterator[Found]:
    for field in topic_schema_of(batch.schema, known.schema, by_column=by_column):
        if field.name in known.schema.names:  # not Kafka's column partition
            want = known.schema.field(field.name).type
            for places, path, problem in _invalid(batch.column(field.name), want, field.name):
                message = f"column {path!r} has {problem}"
                yield places, BadRowReason.INVALID_VALUE, message


def _invalid(
    array: pa.Array, want: pa.DataType, path: str
) -> Iterator[tuple[npt.NDArray[np.integer], str, str]]:
    """Yield the rows with values that do not fit ``want``, by the path to them and the problem.

    ``want``: a type to which the array's type widens. Values in the fields of a struct that is
    null count, because the leader validates them.
    """
    have = array.type
    if pt.is_null(have):
        return
    if pt.is_struct(have):
        for place, field in enumerate(have):  # a topic may have more fields, at the end
            inner = want.field(place).type
            yield from _invalid(array.field(place), inner, f"{path}.{field.name}")
    elif pt.is_nested(have):
        ends = array.offsets.to_numpy()
        for values, inner, name in _items(array, want):
            values = values.slice(ends[0], ends[-1] - ends[0])
            for places, where, problem in _invalid(values, inner, f"{path}.{name}"):
                yield np.searchsorted(ends, ends[0] + places, side="right") - 1, where, problem
    else:
        for mask, problem in _misfits(array, want):
            if pc.any(mask).as_py():
                yield _places(pc.fill_null(mask, False)), path, problem


def _items(array: pa.Array, want: pa.DataType) -> list[tuple[pa.Array, pa.DataType, str]]:
    """Return the values within lists or maps, with the topic's type and Spark's name for them."""
    if pt.is_map(array.type):
        return [(array.keys, want.key_type, "key"), (array.items, want.item_type, "value")]
    return [(array.values, want.value_type, "element")]


def _misfits(array: pa.Array, want: pa.DataType) -> Iterator[tuple[pa.BooleanArray, str]]:
    """Yield a mask of the values that do not fit ``want``, and the problem."""
    have = array.type
    if pt.is_date(have) and pt.is_timestamp(want):
        days = array.cast(pa.int32())
        problem = f"a date that is out of range for {type_name(want)}"
        yield pc.or_(pc.less(days, -_DAYS_MAX), pc.greater(days, _DAYS_MAX)), problem
    elif pt.is_binary(want) or _valid(array):  # text may become bytes
        return
    elif pt.is_string(have) or pt.is_large_string(have):
        as_bytes = pa.binary() if pt.is_string(have) else pa.large_binary()
        is_text = pc.match_substring_regex(array.view(as_bytes), _UTF8)
        yield pc.invert(is_text), "text that is not UTF-8"
    elif pt.is_decimal(have):
        most = pa.scalar(Decimal(f"{'9' * have.precision}E{-have.scale}"), have)
        least = pa.scalar(-most.as_py(), have)
        problem = f"a number with more digits than {type_name(have)}"
        yield pc.or_(pc.less(array, least), pc.greater(array, most)), problem
    elif pt.is_time64(have):
        times = array.cast(pa.int64())
        yield pc.or_(pc.less(times, 0), pc.greater_equal(times, _DAY_NS)), "a time out of range"


def _valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _too_large(batch: pa.RecordBatch, known: TopicDescription, by_column: bool) -> Iterator[Found]:
    limit = int(known.config["max.record.bytes"])
    stored = as_stored(batch, known, by_column=by_column)
    if bytes_at_most(stored) > limit:
        message = f"the record is larger than max.record.bytes of the topic, {limit}"
        places = np.flatnonzero(record_sizes(stored) > limit)
        yield places, BadRowReason.RECORD_TOO_LARGE, message


def _places(mask: pa.BooleanArray) -> npt.NDArray[np.integer]:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


_RULES: Final = (_without_partition, _with_nulls, _with_invalid_values, _too_large)
