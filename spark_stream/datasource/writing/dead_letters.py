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

import pyarrow as pa
from msgspec import Struct

from spark_stream.client.topics import TopicsClient
from spark_stream.client.writing.batches import fitted_to
from spark_stream.client.writing.producer import Producer
from spark_stream.datasource.writing.bad_rows import BadRows
from spark_stream.errors import InvalidOption, SchemaMismatch, TopicExists, UnknownTopic
from spark_stream.schema.record_sizes import record_sizes
from spark_stream.schema.schemas import empty_batch
from spark_stream.schema.texts import json_lines
from spark_stream.schema.type_names import column_text
from spark_stream.wire.messages import TopicDescription

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
"""The columns of a topic of dead letters; ``docs/spark.md`` says what they mean."""

ROW_BYTES_MAX: Final = 1 << 20
"""A row's JSON is cut behind so many bytes."""

RECORD_BYTES_MIN: Final = 8 << 10
"""What a topic of dead letters must take: all columns but the row, and something of that."""

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
        self._row_bytes_max = 0
        self.counts: Counter[str] = Counter()
        """How many letters were written, by reason."""

    def write(self, bad: BadRows) -> None:
        """Write a letter for each of the rows."""
        if not self._row_bytes_max:
            known = self._topics.describe(self._topic)
            self._row_bytes_max = row_bytes_max(known)
        for letters in letters_of(bad, self._origin, self._row_bytes_max):
            self._producer.append(self._topic, letters)
        self.counts[bad.reason.value] += bad.rows.num_rows


def letters_of(bad: BadRows, origin: LetterOrigin, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of the rows' letters, in their order. ``limit``: the bytes of a row's JSON."""
    topic = None if bad.topic is None else _short(bad.topic)
    message = _short(bad.message)
    for rows in _portions(bad.rows):
        shown = [_cut(each, limit) for each in _rendered(rows)]
        values: dict[str, list[object]] = {
            "reason": [bad.reason.value] * len(shown),
            "message": [message] * len(shown),
            "topic": [topic] * len(shown),
            "sink": [origin.sink] * len(shown),
            "batch": [origin.batch] * len(shown),
            "task": [origin.task] * len(shown),
            "row": [text for text, _ in shown],
            "truncated": [not text or cut for text, cut in shown],
        }
        columns = [pa.array(values[field.name], field.type) for field in DEAD_LETTERS]
        yield pa.RecordBatch.from_arrays(columns, schema=DEAD_LETTERS)


def _portions(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows, so that the JSON of a portion is one Arrow array."""
    sizes = record_sizes(rows)
    start = held = 0
    for place, size in enumerate(sizes.tolist()):
        if place - start == _AT_ONCE_ROWS or (held + size > _AT_ONCE_BYTES and place > start):
            yield rows.slice(start, place - start)
            start, held = place, 0
        held += size
    yield rows.slice(start)


def _rendered(rows: pa.RecordBatch) -> list[bytes]:
    """Return the JSON of each row; nothing of a row that is too large for that."""
    if rows.num_rows == 1 and record_sizes(rows)[0] > _RENDERED_BYTES_MAX:
        return [b""]
    found: list[bytes] = json_lines(rows, utf8=False).cast(pa.binary()).to_pylist()
    return found


def _cut(text: bytes, limit: int) -> tuple[str, bool]:
    """Return at most so many bytes of the text, and whether there were more.

    Bytes that are not UTF-8 are replaced.
    """
    whole = text.decode(errors="replace").encode()
    return whole[:limit].decode(errors="ignore"), len(whole) > limit


def _short(text: str) -> str:
    return _cut(text.encode(errors="replace"), _TEXT_BYTES_MAX)[0]


def row_bytes_max(known: TopicDescription) -> int:
    """Return how long a row's JSON may be in this topic."""
    return min(ROW_BYTES_MAX, int(known.config["max.record.bytes"]) - _OTHERS_BYTES)


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
        fitted_to(empty_batch(DEAD_LETTERS), known)
    except SchemaMismatch as error:
        raise _unsuitable(name, error.message, f"It needs the columns {_columns()}.") from None
    if int(known.config["max.record.bytes"]) < RECORD_BYTES_MIN:
        problem = f"topic {name!r} takes records of {known.config['max.record.bytes']} bytes"
        raise _unsuitable(
            name, problem, f"Raise its max.record.bytes to {RECORD_BYTES_MIN} or more."
        )


def _columns() -> str:
    return ", ".join(column_text(field, " ") for field in DEAD_LETTERS)


def _unsuitable(name: str, problem: str, hint: str) -> InvalidOption:
    return InvalidOption(
        f"option deadLetterTopic: {problem}", hint=hint, option="deadLetterTopic", topic=name
    )
