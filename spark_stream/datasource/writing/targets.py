"""The topics that rows go to: found, or made, and checked against the DataFrame's columns."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.datasource.options import SinkOptions
from spark_stream.datasource.options.checking import TOPIC_SETTING
from spark_stream.datasource.spark.session import session
from spark_stream.datasource.writing.bad_rows import BadRowReason
from spark_stream.datasource.writing.routing import check_fits, topic_schema
from spark_stream.errors import (
    InvalidAssignment,
    InvalidConfig,
    InvalidOption,
    InvalidRecord,
    InvalidTopic,
    IsologError,
    SchemaMismatch,
    TopicExists,
    UnknownTopic,
    UnsupportedType,
)
from spark_stream.loggers import logger_of
from spark_stream.schema.keys import PARTITION_BY, key_columns, path_of, path_text
from spark_stream.wire.topic_messages import TopicDescription

logger = logger_of(__name__)


class Seen(Struct, frozen=True):
    """What a topic was when it was planned: a process that knows the same need not ask again."""

    topic_id: str
    schema_version: int
    partitions: int
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, known: TopicDescription) -> Seen:
        """Take what is needed of a description."""
        return cls(known.id, known.schema_version, len(known.partitions), known.partition_by)


class Targets:
    """The topics that a task's rows go to, each looked up once."""

    def __init__(self, options: SinkOptions, arrow: pa.Schema, seen: Seen | None) -> None:
        self._options = options
        self._arrow = arrow
        self._seen = seen
        self._found: dict[str | None, TopicDescription | IsologError] = {}

    def find(self, name: str | None) -> TopicDescription | IsologError:
        """Return the topic, or why it takes no row; None: rows that name no topic."""
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


_REASONS: Final[dict[type[IsologError], BadRowReason]] = {
    InvalidRecord: BadRowReason.NO_TOPIC,
    InvalidTopic: BadRowReason.UNKNOWN_TOPIC,
    UnknownTopic: BadRowReason.UNKNOWN_TOPIC,
    SchemaMismatch: BadRowReason.SCHEMA_MISMATCH,
}


def reason_of(error: IsologError) -> BadRowReason:
    """Return why rows for a topic that :meth:`Targets.find` refuses cannot be written."""
    return _REASONS[type(error)]


def find_topic(
    options: SinkOptions, name: str, arrow: pa.Schema, seen: Seen | None = None
) -> TopicDescription:
    """Return a topic that the DataFrame fits; make it if it is missing and that is allowed.

    ``seen``: what the driver found. A process that knows the same does not ask again, unless rows
    are compared with the topic's settings, which that does not tell.
    """
    topics = session(options.place).topics
    by_column = options.topic is None
    try:
        asks = seen is None or options.dead_letter_topic is not None
        known = topics.describe(name) if asks else topics.known(name)
        if seen not in (None, Seen.of(known)):  # it may have been made anew, or altered
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
            config[PARTITION_BY] = ",".join(spelled(options.partition_by, schema))
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
        asked = spelled(options.partition_by or (), known.schema)
        key_columns(known.schema, known.partition_by, asked)
    except (SchemaMismatch, UnsupportedType) as error:
        raise InvalidOption(
            f"option 'partitionBy': topic {name!r}: {error.message}",
            hint=error.hint,
            **error.details | {"option": "partitionBy", "topic": name},
        ) from None
    return known


def _check_settings(options: SinkOptions, known: TopicDescription) -> None:
    """Refuse unknown settings; those of a topic that exists are not changed."""
    for name, _ in options.topic_config:
        if name not in known.config:
            near = difflib.get_close_matches(name, known.config, n=1)
            guess = f"did you mean 'topic.{near[0]}'?" if near else "no topic has it"
            option = f"topic.{name}"
            raise InvalidOption(f"unknown option {option!r}; {guess}", option=option)


def spelled(asked: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Return the names as the schema has them: to Spark, names in another case are the same."""
    paths = ((name, path_of(schema, name, folded=True)) for name in asked)
    return tuple(name if path is None else path_text(path) for name, path in paths)


def _of_option(error: InvalidConfig | InvalidAssignment) -> InvalidOption:
    """Return the error about a new topic as one that names the option which asked for it."""
    setting = error.details.get("setting")
    option = f"{TOPIC_SETTING}{setting}"
    if isinstance(error, InvalidAssignment):
        option = "replicationFactor"
    elif setting == PARTITION_BY:
        option = "partitionBy"
    return InvalidOption(f"option {option!r}: {error.message}", option=option, hint=error.hint)


def tell_what_stays(known: TopicDescription, options: SinkOptions) -> None:
    """Warn once in a process that an existing topic keeps settings that the options set."""
    asked = {
        f"{TOPIC_SETTING}{name}": (known.config[name], wanted)
        for name, wanted in options.topic_config
    }
    if options.partitions is not None:
        asked["partitions"] = (str(len(known.partitions)), str(options.partitions))
    for option, (present, wanted) in asked.items():
        if present != wanted:
            _warn_once(
                f"topic {known.name!r} is there already and keeps {present} for {option}={wanted};"
                " isolog topic alter changes it"
            )


@lru_cache(maxsize=1024)
def _warn_once(message: str) -> None:
    logger.warning("%s", message)
