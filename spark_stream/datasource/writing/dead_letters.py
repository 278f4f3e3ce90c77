"""Dead letters: what is written, in the place of a row that does not fit its topic.

A dead letter is a record of a typed topic with the columns of ``DEAD_LETTERS``. A task writes it
under the same branch as its other rows: it becomes visible with them, or never.

Nothing of a bad row fails a query. Its JSON is cut where it is longer than ``ROW_BYTES_MAX``, or
than the topic of dead letters takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from spark_stream.client.topics import TopicsClient
from spark_stream.client.writing.batches import fitted_to
from spark_stream.client.writing.producer import Producer
from spark_stream.datasource.writing.bad_rows import BadRows
from spark_stream.errors import InvalidOption, SchemaMismatch, TopicExists, UnknownTopic
from spark_stream.schema.record_sizes import bytes_at_most, record_sizes
from spark_stream.schema.schemas import empty_batch
from spark_stream.schema.texts import json_lines
from spark_stream.schema.type_names import column_text
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
"""The columns of a topic of dead letters; ``docs/spark/write.md`` describes them."""

ROW_BYTES_MAX: Final = 1 << 20
"""A row's JSON is cut behind so many bytes."""

RECORD_BYTES_MIN: Final = 8 << 10
"""What a topic of dead letters must take: all columns but the row, and something of that.

The nulls in further columns of the topic come on top, because they may have a fixed size.
"""

_OTHERS_BYTES: Final = 4 << 10  # all columns but the row: texts are cut to _TEXT_BYTES_MAX
_TEXT_BYTES_MAX: Final = 1 << 10
_RENDERED_BYTES_MAX: Final = 64 << 20  # a row that is larger is not made JSON of, only to be cut
_AT_ONCE_ROWS: Final = 4096
_AT_ONCE_BYTES: Final = 16 << 20


class LetterOrigin(Struct, frozen=True):
    """Which task of which micro-batch has rows that do not fit; None where that is not known."""

    sink: str | None = None
    batch: int | None = None
    task: int | None = None


class DeadLetterWriter:
    """Writes dead letters with a task's producer. It asks for their topic at the first one."""

    def __init__(
        self, producer: Producer, topics: TopicsClient, topic: str, origin: LetterOrigin
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._topic = topic
        self._origin = origin
        self._known: TopicDescription | None = None
        self.counts: Counter[str] = Counter()
        """How many letters were written, by reason."""

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
    """Return the JSON of each row; nothing of a row that is too large for that."""
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
    """Return how long a row's JSON may be in this topic."""
    others = _OTHERS_BYTES + _further_bytes(known)
    return max(0, min(ROW_BYTES_MAX, int(known.config["max.record.bytes"]) - others))


def _further(known: TopicDescription) -> list[pa.Field]:
    """Return the topic's columns that letters do not have, and that take nulls."""
    return [each for each in known.schema if each.nullable and each.name not in DEAD_LETTERS.names]


def _further_bytes(known: TopicDescription) -> int:
    """Return the bytes of these columns in a letter, where a null may have a fixed size."""
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
    """Check that the topic takes dead letters; make it if it is missing and that is allowed.

    Raises:
        UnknownTopic: it is missing.
        InvalidOption: it has other columns, or takes too small records only.
    """
    try:
        known = topics.describe(name)
    except UnknownTopic as error:
        if not create:
            raise UnknownTopic(
                f"option deadLetterTopic: {error.message}",
                hint=f"Make it, with the columns {_columns()}; createTopic=true does that, too.",
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
