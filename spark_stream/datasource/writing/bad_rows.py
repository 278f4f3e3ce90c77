"""Which rows of a DataFrame do not fit their topic: by masks over whole columns.

The sink finds here what the topic's leader would refuse, before it sends it. The leader stays the
judge: what it refuses all the same (the topic was altered a moment ago) fails the task, and the
next attempt knows the topic as it is then.

If Arrow refuses a whole column, as for text that is not UTF-8, the rows are halved until the bad
ones are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from spark_stream.datasource.writing.routing import PARTITION_COLUMN, as_stored
from spark_stream.errors import SchemaMismatch
from spark_stream.schema.not_null import null_rows
from spark_stream.schema.record_sizes import bytes_at_most, record_sizes
from spark_stream.schema.schemas import is_default
from spark_stream.wire.messages import TopicDescription


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
        taken: npt.NDArray[np.bool_] | None = None
        for places, reason, message in find(batch, known, by_column):
            if taken is None:
                taken = np.zeros(batch.num_rows, bool)
            places = np.unique(places[~taken[places]])
            taken[places] = True
            if len(places):
                rows = batch.take(pa.array(places))
                bad.append(BadRows(known.name, reason, message, rows))
        if taken is not None:
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
    def problem(rows: pa.RecordBatch) -> str | None:
        try:
            stored = as_stored(rows, known, by_column=by_column)
        except SchemaMismatch as error:
            return error.message
        return next(
            (_invalid(name) for name in stored.schema.names if not _valid(stored, name)), None
        )

    by_problem: dict[str, list[int]] = {}
    for place, message in _failing(batch, problem):
        by_problem.setdefault(message, []).append(place)
    for message, places in by_problem.items():
        yield np.array(places), BadRowReason.INVALID_VALUE, message


def _invalid(name: str) -> str:
    return f"column {name!r} has a value that its type does not allow"


def _valid(batch: pa.RecordBatch, name: str) -> bool:
    try:
        batch.column(name).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _failing(
    batch: pa.RecordBatch, problem: Callable[[pa.RecordBatch], str | None], first: int = 0
) -> Iterator[tuple[int, str]]:
    """Yield the places of the rows that have a problem by themselves, and the problem."""
    found = problem(batch)
    if found is None:
        return
    if batch.num_rows == 1:
        yield first, found
        return
    middle = batch.num_rows // 2
    for start, end in ((0, middle), (middle, batch.num_rows)):
        # A copy: Arrow validates the children of a slice of lists as a whole.
        half = batch.take(pa.array(np.arange(start, end)))
        yield from _failing(half, problem, first + start)


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
