"""The routing of a sink's rows to topics and partitions, for whole batches.

A sink looks up each topic, or creates it, and checks that the DataFrame's columns fit it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from msgspec import Struct

from spark_stream.client.writing.batches import completed, fitted_to
from spark_stream.client.writing.partitioner import split
from spark_stream.datasource.options import SinkOptions
from spark_stream.datasource.options.names import TOPIC_SETTING
from spark_stream.datasource.spark.session import session
from spark_stream.errors import (
    InvalidAssignment,
    InvalidConfig,
    InvalidOption,
    InvalidRecord,
    InvalidTopic,
    IsologError,
    SchemaMismatch,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
    UnsupportedType,
)
from spark_stream.loggers import logger_of
from spark_stream.schema.keys import PARTITION_BY, key_columns, path_of, path_text
from spark_stream.schema.schemas import (
    DEFAULT_SCHEMA,
    HEADERS_TYPE,
    empty_batch,
    fitted,
    is_default,
    of_topic,
)
from spark_stream.schema.types import type_name
from spark_stream.wire.topic_messages import TopicDescription

logger = logger_of(__name__)

TOPIC_COLUMN: Final = "topic"
PARTITION_COLUMN: Final = "partition"
_ROUTING: Final = (TOPIC_COLUMN, PARTITION_COLUMN)
_READ: Final = ("offset", "timestampType")  # the source adds them, if a topic has Kafka's columns


class BadRowReason(StrEnum):
    """The reason why a row cannot be written."""

    NO_TOPIC = "NO_TOPIC"
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
    UNKNOWN_PARTITION = "UNKNOWN_PARTITION"
    NULL_VALUE = "NULL_VALUE"
    INVALID_VALUE = "INVALID_VALUE"
    RECORD_TOO_LARGE = "RECORD_TOO_LARGE"


_REASONS: Final[dict[type[IsologError], BadRowReason]] = {
    InvalidRecord: BadRowReason.NO_TOPIC,
    InvalidTopic: BadRowReason.UNKNOWN_TOPIC,
    UnknownTopic: BadRowReason.UNKNOWN_TOPIC,
    SchemaMismatch: BadRowReason.SCHEMA_MISMATCH,
}

_DEFAULT_TAKES: Final = {
    "key": "binary or string",
    "value": "binary or string",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
    "partition": "int",
}


def looks_default(schema: pa.Schema) -> bool:
    """Return whether a DataFrame has only Kafka's columns, and a value of text or binary."""
    names = {*DEFAULT_SCHEMA.names, *_ROUTING}
    if "value" not in schema.names or not set(schema.names) <= names:
        return False
    return _is_bytes(schema.field("value").type)


def topic_schema(schema: pa.Schema, *, by_column: bool) -> pa.Schema:
    """Return the schema of a new topic for this DataFrame. ``by_column``: its topic column routes.

    Raises:
        SchemaMismatch: The columns are those of records that were read. A topic with these would
            look in Spark like one with Kafka's columns, without being one.
    """
    if looks_default(schema):
        return DEFAULT_SCHEMA
    if "value" in schema.names and set(_READ) <= set(schema.names):
        raise SchemaMismatch(
            f"columns {', '.join(map(repr, _READ))} are metadata columns that the isolog source"
            " adds; a new topic cannot have them",
            column=_READ[0],
            hint="Drop them, or select the new topic's columns, such as 'key' and 'value'.",
        )
    return pa.schema([field for field in schema if not (by_column and field.name == TOPIC_COLUMN)])


def check_routing(schema: pa.Schema, topic: str | None) -> None:
    """Raise SchemaMismatch if there is neither a topic nor a text column with its name."""
    if topic is not None:
        return
    if TOPIC_COLUMN not in schema.names:
        raise SchemaMismatch(
            "no topic is given: there is neither the option topic nor a column 'topic'",
            column=TOPIC_COLUMN,
            hint="Give .option('topic', name), or a string column 'topic'.",
        )
    kind = schema.field(TOPIC_COLUMN).type
    if not pt.is_string(kind):
        raise SchemaMismatch(
            f"column 'topic': expected string, got {type_name(kind)}",
            column=TOPIC_COLUMN,
            expected="string",
            got=str(kind),
        )


def check_fits(schema: pa.Schema, known: TopicDescription, *, by_column: bool) -> None:
    """Raise SchemaMismatch (column, expected, got) if the DataFrame does not fit the topic."""
    wanted = topic_schema_of(schema, known.schema, by_column=by_column)
    if is_default(known.schema):
        with of_topic(known.name):
            _check_default(wanted)
        return
    fitted_to(empty_batch(wanted), known)


def topic_schema_of(schema: pa.Schema, stored: pa.Schema, *, by_column: bool) -> pa.Schema:
    """Return the DataFrame's columns that are for the topic itself."""
    if is_default(stored) or (by_column and TOPIC_COLUMN not in stored.names):
        return pa.schema([field for field in schema if field.name != TOPIC_COLUMN])
    return schema


def _check_default(schema: pa.Schema) -> None:
    if "value" not in schema.names:
        raise SchemaMismatch("column 'value' (binary or string) is missing", column="value")
    for field in schema:
        expected = _DEFAULT_TAKES.get(field.name)
        if expected is None:
            raise SchemaMismatch(
                f"column {field.name!r} is not one that a topic with Kafka's columns takes"
                f" ({', '.join(_DEFAULT_TAKES)}, topic)",
                column=field.name,
                hint="Select only these columns, and put others into the value (to_json, to_avro),"
                " or use a typed topic.",
            )
        if not _DEFAULT_FITS[field.name](field.type):
            raise SchemaMismatch(
                f"column {field.name!r}: expected {expected}, got {type_name(field.type)}",
                column=field.name,
                expected=expected,
                got=str(field.type),
            )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_string(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if not pt.is_list(kind) or not pt.is_struct(kind.value_type):
        return False
    item = kind.value_type
    names = [item.field(index).name for index in range(item.num_fields)]
    return (
        names == ["key", "value"]
        and pt.is_string(item.field(0).type)
        and _is_bytes(item.field(1).type)
    )


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) and kind.tz is not None)


def _is_partition(kind: pa.DataType) -> bool:
    return kind in (pa.int32(), pa.int16(), pa.int8())


_DEFAULT_FITS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "key": _is_bytes,
    "value": _is_bytes,
    "headers": _is_headers,
    "timestamp": _is_instant,
    "partition": _is_partition,
}


class RoutedRows(Struct, frozen=True):
    """Rows for one topic. ``partition`` is None if their keys, or the turn, decide."""

    topic: str
    partition: int | None
    batch: pa.RecordBatch


def by_topic(
    batch: pa.RecordBatch, topic: str | None
) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the rows by topic: that of the option, or of the column ``topic``, which may be None.

    A name that is not UTF-8 has surrogates, so that it is refused as the name of a topic.
    """
    if topic is not None:
        yield topic, batch
        return
    names = batch.column(TOPIC_COLUMN).cast(pa.binary()).dictionary_encode()
    places = pc.fill_null(names.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    for place, rows, _ in split(batch, places):
        name = None if place < 0 else names.dictionary[place].as_py()
        yield (None if name is None else name.decode(errors="surrogateescape")), rows


def route(
    topic: str, stored: pa.Schema, batch: pa.RecordBatch, partitions: int, *, by_column: bool
) -> Iterator[RoutedRows]:
    """Yield one topic's rows with its stored columns, by partition if rows name one.

    Raises:
        UnknownPartition: The column ``partition`` names one that the topic does not have.
    """
    fields = topic_schema_of(batch.schema, stored, by_column=by_column)
    batch = batch.select(fields.names)
    if not is_default(stored):
        yield RoutedRows(topic, None, batch)
        return
    places = batch.column(PARTITION_COLUMN) if PARTITION_COLUMN in fields.names else None
    batch = _stored(batch)
    if places is None or places.null_count == len(places):
        yield RoutedRows(topic, None, batch)
        return
    numbers = places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    for place, rows, _ in split(batch, numbers):
        if place >= partitions or (place < 0 and not places.null_count) or place < -1:
            raise UnknownPartition(
                f"topic {topic!r} has partitions 0 to {partitions - 1}, not {place}",
                topic=topic,
                partition=place,
            )
        yield RoutedRows(topic, None if place < 0 else place, rows)


def to_stored(batch: pa.RecordBatch, known: TopicDescription, *, by_column: bool) -> pa.RecordBatch:
    """Return one topic's rows as they are stored there.

    Raises:
        SchemaMismatch: a value, or a column, does not fit the topic.
    """
    fields = topic_schema_of(batch.schema, known.schema, by_column=by_column)
    batch = batch.select(fields.names)
    if not is_default(known.schema):
        return fitted_to(batch, known)
    with of_topic(known.name):
        return fitted(completed(_stored(batch)), known.schema)


def _stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert text to bytes, and headers to the type that they are stored in."""
    names = [name for name in batch.schema.names if name != PARTITION_COLUMN]
    arrays = []
    for name in names:
        column = batch.column(name)
        if name in ("key", "value") and pt.is_string(column.type):
            column = column.cast(pa.binary())
        elif name == "headers":
            column = column.cast(HEADERS_TYPE)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=names)


class PlannedTopic(Struct, frozen=True):
    """The planned version of a topic. A process with the same version does not look it up."""

    topic_id: str
    schema_version: int
    partitions: int
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, known: TopicDescription) -> PlannedTopic:
        """Return the version in a description."""
        return cls(known.id, known.schema_version, len(known.partitions), known.partition_by)


class Targets:
    """The topics that a task's rows go to, each looked up once."""

    def __init__(self, options: SinkOptions, arrow: pa.Schema, seen: PlannedTopic | None) -> None:
        self._options = options
        self._arrow = arrow
        self._seen = seen
        self._found: dict[str | None, TopicDescription | IsologError] = {}

    def find(self, name: str | None) -> TopicDescription | IsologError:
        """Return the topic, or the reason why it takes no row. None: rows that name no topic."""
        if name not in self._found:
            try:
                self._found[name] = self._find(name)
            except tuple(_REASONS) as error:
                self._found[name] = error
        return self._found[name]

    def _find(self, name: str | None) -> TopicDescription:
        if name is None:
            raise InvalidRecord("a row has no topic: its column 'topic' is null")
        if name == self._options.dead_letter_topic:
            raise SchemaMismatch(f"topic {name!r} is for dead letters only")
        return find_topic(self._options, name, self._arrow, self._seen)


def reason_of(error: IsologError) -> BadRowReason:
    """Return the reason for rows of a topic that :meth:`Targets.find` refuses."""
    return _REASONS[type(error)]


def find_topic(
    options: SinkOptions, name: str, arrow: pa.Schema, seen: PlannedTopic | None = None
) -> TopicDescription:
    """Return a topic that the DataFrame fits. Create a missing one if that is allowed.

    ``seen``: the version that the driver found. A process with the same version does not look the
    topic up again, unless rows are compared with the topic's settings, which the version does not
    cover.
    """
    topics = session(options.place).topics
    by_column = options.topic is None
    try:
        asks = seen is None or options.dead_letter_topic is not None
        known = topics.describe(name) if asks else topics.known(name)
        if seen not in (None, PlannedTopic.of(known)):  # it may have been created again, or altered
            known = topics.describe(name)
        _check_settings(options, known)
    except UnknownTopic as error:
        if not options.create_topic:
            raise UnknownTopic(
                error.message,
                hint=f"{error.hint[:-1]}, and so does the option createTopic=true.",
                **error.details,
            ) from None
        schema = topic_schema(arrow, by_column=by_column)
        config = dict(options.topic_config)
        if options.partition_by:
            config[PARTITION_BY] = ",".join(spell(options.partition_by, schema))
        try:
            known = topics.create(
                name,
                options.partitions or 1,
                options.replication_factor,
                schema,
                config,
            )
            if known.warning is not None:
                logger.warning("%s (option replicationFactor)", known.warning)
        except (InvalidConfig, InvalidAssignment) as error:
            raise _of_option(error) from None
        except TopicExists:  # another task was faster
            known = topics.describe(name)
    check_fits(arrow, known, by_column=by_column)
    try:
        asked = spell(options.partition_by or (), known.schema)
        key_columns(known.schema, known.partition_by, asked)
    except (SchemaMismatch, UnsupportedType) as error:
        raise InvalidOption(
            f"option 'partitionBy': topic {name!r}: {error.message}",
            hint=error.hint,
            **error.details | {"option": "partitionBy", "topic": name},
        ) from None
    return known


def _check_settings(options: SinkOptions, known: TopicDescription) -> None:
    """Refuse unknown settings. Those of an existing topic are not changed."""
    for name, _ in options.topic_config:
        if name not in known.config:
            near = difflib.get_close_matches(name, known.config, n=1)
            guess = f"did you mean 'topic.{near[0]}'?" if near else "no topic has it"
            option = f"topic.{name}"
            raise InvalidOption(f"unknown option {option!r}; {guess}", option=option)


def spell(asked: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Return the names in the schema's spelling, because Spark ignores the case of names."""
    paths = ((name, path_of(schema, name, folded=True)) for name in asked)
    return tuple(name if path is None else path_text(path) for name, path in paths)


def _of_option(error: InvalidConfig | InvalidAssignment) -> InvalidOption:
    """Return an error about a new topic as the error of its option."""
    setting = error.details.get("setting")
    option = f"{TOPIC_SETTING}{setting}"
    if isinstance(error, InvalidAssignment):
        option = "replicationFactor"
    elif setting == PARTITION_BY:
        option = "partitionBy"
    return InvalidOption(f"option {option!r}: {error.message}", option=option, hint=error.hint)


def warn_of_kept_settings(known: TopicDescription, options: SinkOptions) -> None:
    """Warn once in a process that an existing topic keeps settings that the options set."""
    asked = {
        f"{TOPIC_SETTING}{name}": (known.config[name], wanted)
        for name, wanted in options.topic_config
    }
    if options.partitions is not None:
        asked["partitions"] = (str(len(known.partitions)), str(options.partitions))
    for option, (present, wanted) in asked.items():
        if present != wanted:
            _warn_of_kept_setting(known.name, option, present, wanted)


@lru_cache(maxsize=1024)
def _warn_of_kept_setting(topic: str, option: str, present: str, wanted: str) -> None:
    logger.warning(
        "topic %r already exists and keeps %s, not %s=%s; change it with isolog topic alter",
        topic,
        present,
        option,
        wanted,
    )
