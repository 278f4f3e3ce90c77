"""The rows of a DataFrame that do not fit their topic, and the dead letters in their place.

The sink finds the rows that the topic's leader would refuse before it sends them, by masks over
whole columns. The leader has the last word: if it refuses a row that passed (the topic was altered
a moment ago), the task fails, and its next attempt reads the topic's present schema.

A message names the column and the problem, and never a value. So all rows of a batch that have the
same problem in the same column share one message.

A dead letter is a record of a typed topic with the columns of ``DEAD_LETTERS``. A task writes it
under the same branch as its other rows: it becomes visible with them, or never. No content of a bad
row fails a query. Its JSON is cut if it is longer than ``ROW_BYTES_MAX``, or than the topic of dead
letters allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from msgspec import Struct

from spark_stream.client.topics import TopicsClient
from spark_stream.client.writing.batches import fitted_to
from spark_stream.client.writing.producer import Producer
from spark_stream.datasource.writing.routing import (
    PARTITION_COLUMN,
    BadRowReason,
    to_stored,
    topic_schema_of,
)
from spark_stream.errors import InvalidOption, SchemaMismatch, TopicExists, UnknownTopic
from spark_stream.schema.schemas import empty_batch, is_default
from spark_stream.schema.texts import json_lines
from spark_stream.schema.types import column_text, type_name
from spark_stream.schema.values import bytes_at_most, null_rows, record_sizes
from spark_stream.wire.topic_messages import TopicDescription

DEAD_LETTERS: Final = pa.schema(
    [
        pa.field("reason", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("sink", pa.string()),
        pa.field("batch", pa.int64()),
        pa.field("task", pa.int32()),
        pa.field("row", pa.string(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
    ]
)
"""The columns of a topic of dead letters (``docs/spark/write.md`` describes them)."""

ROW_BYTES_MAX: Final = 1 << 20
"""A row's JSON is cut after so many bytes."""

RECORD_BYTES_MIN: Final = 8 << 10
"""The bytes of a dead letter that its topic must take: all columns but the row, and a part of it.

The nulls in further columns of the topic come on top, because they may have a fixed size.
"""

_OTHERS_BYTES: Final = 4 << 10  # all columns but the row: texts are cut to _TEXT_BYTES_MAX
_TEXT_BYTES_MAX: Final = 1 << 10
_RENDERED_BYTES_MAX: Final = 64 << 20  # a larger row is not converted to JSON
_AT_ONCE_ROWS: Final = 4096
_AT_ONCE_BYTES: Final = 16 << 20
_DAYS_MAX: Final = 106_751_991
"""The most days before or after 1970 that a timestamp in microseconds can have."""

_DAY_NS: Final = 86_400 * 10**9

_UTF8: Final = (
    r"\A(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]"
    r"|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|\xf4[\x80-\x8f][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3})*\z"
)
"""Bytes that are UTF-8. Arrow matches binary values byte by byte."""


class BadRows(Struct, frozen=True):
    """Rows of a DataFrame that do not fit the topic that they are for, for one reason."""

    topic: str | None
    reason: BadRowReason
    message: str
    rows: pa.RecordBatch


Finding = tuple[npt.NDArray[np.integer], BadRowReason, str]
"""Rows, by their places in a batch, the reason, and the problem in words."""


def split_rows(
    batch: pa.RecordBatch, known: TopicDescription, *, by_column: bool
) -> tuple[pa.RecordBatch, list[BadRows]]:
    """Split rows into those that the topic takes, in their order, and the bad ones.

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
) -> Iterator[Finding]:
    if not is_default(known.schema) or PARTITION_COLUMN not in batch.schema.names:
        return
    column, count = batch.column(PARTITION_COLUMN), len(known.partitions)
    wrong = pc.fill_null(pc.or_(pc.less(column, 0), pc.greater_equal(column, count)), False)
    if pc.any(wrong).as_py():
        message = f"topic {known.name!r} has partitions 0 to {count - 1}"
        yield _places(wrong), BadRowReason.UNKNOWN_PARTITION, message


def _with_nulls(
    batch: pa.RecordBatch, known: TopicDescription, by_column: bool
) -> Iterator[Finding]:
    for field in () if is_default(known.schema) else known.schema:
        if field.name in batch.schema.names:
            for places, path in null_rows(batch.column(field.name), field, field.name):
                yield places, BadRowReason.NULL_VALUE, f"column {path!r} takes no nulls"


def _with_invalid_values(
    batch: pa.RecordBatch, known: TopicDescription, by_column: bool
) -> Iterator[Finding]:
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


def _too_large(
    batch: pa.RecordBatch, known: TopicDescription, by_column: bool
) -> Iterator[Finding]:
    limit = int(known.config["max.record.bytes"])
    stored = to_stored(batch, known, by_column=by_column)
    if bytes_at_most(stored) > limit:
        message = f"the record is larger than max.record.bytes of the topic, {limit}"
        places = np.flatnonzero(record_sizes(stored) > limit)
        yield places, BadRowReason.RECORD_TOO_LARGE, message


def _places(mask: pa.BooleanArray) -> npt.NDArray[np.integer]:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


_RULES: Final = (_without_partition, _with_nulls, _with_invalid_values, _too_large)


class LetterOrigin(Struct, frozen=True):
    """The task and the micro-batch of bad rows. None: unknown."""

    sink: str | None = None
    batch: int | None = None
    task: int | None = None


class DeadLetterWriter:
    """The writer of dead letters, by a task's producer. The first one looks up their topic."""

    def __init__(
        self, producer: Producer, topics: TopicsClient, topic: str, origin: LetterOrigin
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._topic = topic
        self._origin = origin
        self._known: TopicDescription | None = None
        self.counts: Counter[str] = Counter()
        """The number of letters, by reason."""

    def write(self, bad: BadRows) -> None:
        """Write a letter for each of the rows."""
        known = self._known = self._known or self._topics.describe(self._topic)
        for letters in letters_of(bad, self._origin, row_bytes_max(known)):
            self._producer.append(self._topic, _completed(letters, known))
        self.counts[bad.reason.value] += bad.rows.num_rows


def letters_of(bad: BadRows, origin: LetterOrigin, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows' letters, in their order. ``limit``: the bytes of a row's JSON."""
    shared = {
        "reason": bad.reason.value,
        "message": _short(bad.message),
        "topic": None if bad.topic is None else _short(bad.topic),
        "sink": origin.sink,
        "batch": origin.batch,
        "task": origin.task,
    }
    for rows in _portions(bad.rows):
        texts, is_cut = _cut(_rendered(rows), limit)
        columns = [
            pa.repeat(pa.scalar(shared[field.name], field.type), rows.num_rows)
            for field in DEAD_LETTERS
            if field.name in shared
        ]
        truncated = pc.or_(is_cut, pc.equal(pc.binary_length(texts), 0))
        yield pa.RecordBatch.from_arrays([*columns, texts, truncated], schema=DEAD_LETTERS)


def _portions(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows, so that the JSON of a portion is one Arrow array."""
    ends = np.cumsum(record_sizes(rows))
    start = held = 0
    while start < rows.num_rows:
        stop = int(np.searchsorted(ends, held + _AT_ONCE_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + _AT_ONCE_ROWS)
        yield rows.slice(start, stop - start)
        start, held = stop, int(ends[stop - 1])


def _rendered(rows: pa.RecordBatch) -> pa.StringArray:
    """Return the JSON of each row, but an empty text for a row that is too large for that."""
    if rows.num_rows == 1 and record_sizes(rows)[0] > _RENDERED_BYTES_MAX:
        return pa.array([""], pa.string())
    return json_lines(rows, utf8=False, intervals=True)


def _cut(texts: pa.StringArray, limit: int) -> tuple[pa.StringArray, pa.BooleanArray]:
    """Return at most so many bytes of each text, and a mask of the texts that had more.

    Bytes that are not UTF-8 are replaced. The texts have no line breaks.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        texts = _decoded(texts, "replace")
    is_long = pc.greater(pc.binary_length(texts), limit)
    if pc.any(is_long).as_py():
        texts = _decoded(pc.binary_slice(texts.view(pa.binary()), 0, limit), "ignore")
    return texts, is_long


def _decoded(texts: pa.Array, errors: str) -> pa.StringArray:
    """Decode all texts in one call, by joining them to lines."""
    lists = pa.ListArray.from_arrays([0, len(texts)], texts.view(pa.binary()))
    lines = pc.binary_join(lists, b"\n")[0].as_py().decode(errors=errors)
    return pa.array(lines.split("\n"), pa.string())


def _short(text: str) -> str:
    cut = text.encode(errors="replace")[:_TEXT_BYTES_MAX]
    return cut.decode(errors="ignore")


def row_bytes_max(known: TopicDescription) -> int:
    """Return the maximum length of a row's JSON in this topic."""
    others = _OTHERS_BYTES + _further_bytes(known)
    return max(0, min(ROW_BYTES_MAX, int(known.config["max.record.bytes"]) - others))


def _further(known: TopicDescription) -> list[pa.Field]:
    """Return the topic's columns that letters do not have, and that take nulls."""
    return [each for each in known.schema if each.nullable and each.name not in DEAD_LETTERS.names]


def _further_bytes(known: TopicDescription) -> int:
    """Return the bytes of these columns in a letter. A null may have a fixed size."""
    fields = _further(known)
    arrays = [pa.nulls(1, each.type) for each in fields]
    return bytes_at_most(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))


def _completed(letters: pa.RecordBatch, known: TopicDescription) -> pa.RecordBatch:
    """Add nulls in the topic's further columns."""
    for field in _further(known):
        letters = letters.append_column(field, pa.nulls(letters.num_rows, field.type))
    return letters


def check_topic(
    topics: TopicsClient, name: str, *, create: bool, replication_factor: int | None
) -> None:
    """Check that the topic takes dead letters. Create a missing one if ``create`` is set.

    Raises:
        UnknownTopic: The topic is missing.
        InvalidOption: The topic has other columns, or its limit for records is too small.
    """
    try:
        known = topics.describe(name)
    except UnknownTopic as error:
        if not create:
            raise UnknownTopic(
                f"option deadLetterTopic: {error.message}",
                hint=f"Create it with the columns {_columns()}, or set createTopic=true.",
                **error.details,
            ) from None
        try:
            known = topics.create(name, 1, replication_factor, DEAD_LETTERS, {})
        except TopicExists:  # another query was faster
            known = topics.describe(name)
    try:
        fitted_to(_completed(empty_batch(DEAD_LETTERS), known), known)
    except SchemaMismatch as error:
        hint = f"It needs the columns {_columns()}. Other columns must take nulls."
        raise _unsuitable(name, error.message, hint) from None
    needed = RECORD_BYTES_MIN + _further_bytes(known)
    if int(known.config["max.record.bytes"]) < needed:
        problem = f"topic {name!r} takes records of {known.config['max.record.bytes']} bytes"
        raise _unsuitable(name, problem, f"Raise its max.record.bytes to {needed} or more.")


def _columns() -> str:
    return ", ".join(column_text(field, " ") for field in DEAD_LETTERS)


def _unsuitable(name: str, problem: str, hint: str) -> InvalidOption:
    return InvalidOption(
        f"option deadLetterTopic: {problem}", hint=hint, option="deadLetterTopic", topic=name
    )
