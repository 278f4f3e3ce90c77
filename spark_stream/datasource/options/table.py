"""Every option once: attributes of sources and sinks, their parsing, and the table in the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Flag, auto
from functools import cache
from typing import Any, Final, Generic, Self, TypeVar

from msgspec import Struct

from spark_stream.datasource.options import values
from spark_stream.datasource.options.values import moment, moments, offsets
from spark_stream.datasource.values.limits import MAX_DELAY_DEFAULT_S


class Use(Flag):
    """Whom an option is for."""

    BATCH_SOURCE = auto()
    STREAM_SOURCE = auto()
    BATCH_SINK = auto()
    STREAM_SINK = auto()
    SOURCE = BATCH_SOURCE | STREAM_SOURCE
    SINK = BATCH_SINK | STREAM_SINK
    ALL = SOURCE | SINK


NOBODY: Final = Use(0)
T = TypeVar("T")


class Given(Struct, frozen=True, kw_only=True):
    """The values of the options that a query gave, by name."""

    values: Mapping[str, Any] = {}

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Parse the texts of this class's options."""
        rows = [row for each in cls.__mro__ for row in rows_of(each) if row.name in texts]
        return cls(values={row.name: row.parse(row.name, texts[row.name]) for row in rows})

    def __contains__(self, name: str) -> bool:
        return name in self.values


class Option(Struct, Generic[T], frozen=True):
    """An option. As an attribute of :class:`Given` it is the option's value, or None.

    ``default`` is the text that counts if the option is left out; the docs show ``shown`` instead,
    if it is set. ``in_table`` says for whom the option counts if a table has it: None means as
    ``uses`` says, NOBODY that a table cannot have it.
    """

    name: str
    uses: Use
    meaning: str
    parse: Callable[[str, str], T]
    default: str | None = None
    shown: str | None = None
    in_table: Use | None = None

    @property
    def uses_in_table(self) -> Use:
        """For whom the option counts as one of a table's."""
        return self.uses if self.in_table is None else self.in_table

    def __get__(self, given: Given, owner: type[Given]) -> T | None:
        return given.values.get(self.name)


class Defaulted(Option[T], frozen=True):
    """An option with a default."""

    def __get__(self, given: Given, owner: type[Given]) -> T:
        if self.name not in given.values:
            assert self.default is not None
            return self.parse(self.name, self.default)
        found: T = given.values[self.name]
        return found


def text(name: str, uses: Use, meaning: str, shown: str | None = None) -> Option[str]:
    """Return an option whose value is its text."""
    return Option(name, uses, meaning, values.as_given, shown=shown)


def rows_of(group: type) -> list[Option[Any]]:
    """Return the options that the class itself declares."""
    return [each for each in vars(group).values() if isinstance(each, Option)]


class LogOptions:
    """The options that name the log."""

    bootstrap = text(
        "bootstrap",
        Use.ALL,
        "`host:port[,host:port…]` of any brokers; without this and `path` the driver's variable"
        " `ISOLOG_BOOTSTRAP`, or `ISOLOG_PATH`, says where the log is",
    )
    path = text(
        "path",
        Use.ALL,
        "instead of `bootstrap`: a local directory; its broker is started when needed",
    )


class GivenToBoth(Given, frozen=True):
    """The options of each query that are values of its reader or writer."""

    broker_timeout_s = Defaulted(
        "brokerTimeout",
        Use.ALL,
        "how long the query waits for brokers that do not answer, for a leader, and for a"
        " transaction that a planned batch needs to end, before it fails: `30s`, `10m`",
        values.timeout_s,
        "2m",
    )


class GivenToSource(GivenToBoth, frozen=True):
    """The options of a source."""

    subscribe = Option(
        "subscribe",
        Use.SOURCE,
        "the topics, with commas between; one of this, `subscribePattern` and `assign` is needed",
        values.topic_names,
    )
    subscribe_pattern = Option(
        "subscribePattern",
        Use.SOURCE,
        "a regular expression (Python's `re`): all topics whose whole name it matches, those that"
        " are made while the query runs included",
        values.pattern,
    )
    assign = Option(
        "assign",
        Use.SOURCE,
        'these partitions and no others: `{"a":[0,2]}`',
        values.assigned,
    )
    isolation = Defaulted(
        "isolation",
        Use.SOURCE,
        "which records are seen: `read_uncommitted`, `read_replicated`, `read_committed`,"
        " `read_atomic`",
        values.reading_level,
        "read_uncommitted",
    )
    starting_offsets = Defaulted(
        "startingOffsets",
        Use.SOURCE,
        'where a new query begins: `earliest`, `latest`, `{"a":{"0":23,"1":-2}}` (-2 earliest, -1'
        " latest), or a streaming offset as a query's progress shows it; a batch query cannot"
        " start at `latest`",
        offsets,
        "earliest",
    )
    starting_timestamp = Option(
        "startingTimestamp",
        Use.SOURCE,
        "the first record at or after it, in each partition; milliseconds since 1970 (negative"
        " before), or ISO 8601, in UTC where it names no zone; wins over"
        " `startingOffsetsByTimestamp` and `startingOffsets`",
        moment,
    )
    starting_offsets_by_timestamp = Option(
        "startingOffsetsByTimestamp",
        Use.SOURCE,
        'the same by topic and partition: `{"a":{"0":1700000000000}}`; wins over `startingOffsets`',
        moments,
    )
    ending_offsets = Defaulted(
        "endingOffsets",
        Use.BATCH_SOURCE,
        "where the query ends: as `startingOffsets`, but for `earliest`",
        offsets,
        "latest",
    )
    ending_timestamp = Option(
        "endingTimestamp",
        Use.BATCH_SOURCE,
        "the query ends before the first record at or after it; wins over"
        " `endingOffsetsByTimestamp` and `endingOffsets`",
        moment,
    )
    ending_offsets_by_timestamp = Option(
        "endingOffsetsByTimestamp",
        Use.BATCH_SOURCE,
        "the same by topic and partition; wins over `endingOffsets`",
        moments,
    )
    consumer = Option(
        "consumer",
        Use.SOURCE,
        "a name under which the store pins where the query first started, and shows how far a"
        " stream has come (`isolog consumers`)",
        values.consumer_name,
    )
    max_offsets_per_trigger = Option(
        "maxOffsetsPerTrigger",
        Use.STREAM_SOURCE,
        "the most records that a micro-batch takes, shared out over the partitions by backlog",
        values.positive,
    )
    max_bytes_per_trigger = Option(
        "maxBytesPerTrigger",
        Use.STREAM_SOURCE,
        "the most bytes, as they are stored, that a micro-batch takes; a record that is larger"
        " alone is taken alone",
        values.positive,
    )
    min_offsets_per_trigger = Option(
        "minOffsetsPerTrigger",
        Use.STREAM_SOURCE,
        "wait for so many records before a micro-batch begins; all that there is when the query"
        " runs with `Trigger.AvailableNow`",
        values.positive,
    )
    max_trigger_delay_s = Defaulted(
        "maxTriggerDelay",
        Use.STREAM_SOURCE,
        "wait for `minOffsetsPerTrigger` no longer than this from the first record that waits:"
        " `500ms`, `30s`, `15m`, `2h`, `1d`",
        values.duration_s,
        f"{MAX_DELAY_DEFAULT_S // 60:.0f}m",
    )
    min_partitions = Option(
        "minPartitions",
        Use.SOURCE,
        "split ranges into so many Spark tasks at least, in proportion to their sizes; without it"
        " ranges of few records share tasks",
        values.positive,
    )
    max_records_per_partition = Option(
        "maxRecordsPerPartition",
        Use.SOURCE,
        "the most records of a Spark task",
        values.positive,
    )
    fail_on_data_loss = Defaulted(
        "failOnDataLoss",
        Use.SOURCE,
        "fail, or warn and go on, when records in the range are gone",
        values.boolean,
        "true",
    )
    include_headers = Defaulted(
        "includeHeaders",
        Use.SOURCE,
        "add the column `headers` (default-schema topics)",
        values.boolean,
        "false",
    )
    include_metadata = Defaulted(
        "includeMetadata",
        Use.SOURCE,
        "add `_topic`, `_partition`, `_offset`, `_timestamp` (typed topics)",
        values.boolean,
        "false",
    )
    filter = Option(
        "filter",
        Use.SOURCE,
        "only the records for which this predicate, in Spark's SQL, is true: the leader looks at"
        " the others, and [what it takes](../spark/read.md#filters)",
        values.predicate,
    )
    push_filters = Defaulted(
        "pushFilters",
        Use.BATCH_SOURCE,
        "let Spark push its filters to the leader, where its setting is on; only for a DataFrame"
        " that [one query reads once](../spark/read.md#filters)",
        values.boolean,
        "false",
    )
    mapped_reads = Defaulted(
        "mappedReads",
        Use.SOURCE,
        "read large ranges [from the log's own files](../spark/read.md#reads-next-to-the-data),"
        " where a task runs on the machine of a replica",
        values.boolean,
        "true",
    )
    rack = Option(
        "rack",
        Use.SOURCE,
        "the rack that all tasks run in: under `read_replicated` and above they read from an"
        " in-sync replica [in it](../spark/read.md#reads-in-the-same-rack); by default what"
        " `ISOLOG_RACK` says where a task runs",
        values.rack,
        shown="`ISOLOG_RACK`",
    )


class GivenToSink(GivenToBoth, frozen=True):
    """The options of a sink."""

    topic = Option(
        "topic",
        Use.SINK,
        "where to write; the option wins over the column",
        values.stripped,
        shown="column `topic`",
    )
    isolation = Defaulted(
        "isolation",
        Use.SINK,
        "when the leader acknowledges: `read_uncommitted`, `read_committed`",
        values.writing_level,
        "read_committed",
        shown="`read_committed` when transactional, else `read_uncommitted`",
        in_table=NOBODY,
    )
    transactional = Defaulted(
        "transactional",
        Use.SINK,
        "each micro-batch (or batch job) exactly once and all or nothing; `false`: at least once",
        values.boolean,
        "true",
    )
    sink_id = Option(
        "sinkId",
        Use.SINK,
        "the identity under which committed batches are remembered; needed with `batchId`",
        values.sink_id,
        shown="the query's id, from `checkpointLocation`",
        in_table=Use.STREAM_SINK,
    )
    batch_id = Option(
        "batchId",
        Use.BATCH_SINK,
        "with `sinkId`: this batch is written once, whatever is replayed (for `foreachBatch`)",
        values.batch_id,
        in_table=NOBODY,
    )
    replays = Defaulted(
        "differentReplay",
        Use.SINK,
        "what to do with a replayed batch that has other rows than were committed: `fail`;"
        " `ignoreFloats`: fail unless only floating-point values differ; or `keep` the committed"
        " ones; in a batch write, for `batchId`",
        values.replays,
        "fail",
        in_table=Use.STREAM_SINK,
    )
    transaction_timeout_ms = Defaulted(
        "transactionTimeout",
        Use.SINK,
        "how long after the last renewal by the query's Python workers its transaction is aborted,"
        " from `1s` to `1d`: for so long a killed driver holds back readers of committed records",
        values.transaction_timeout_ms,
        f"{values.TRANSACTION_TIMEOUT_MS // 60_000}m",
    )
    on_bad_record = Defaulted(
        "onBadRecord",
        Use.SINK,
        "what to do with rows that do not fit their topic: `fail`, or `deadLetter`: write them to"
        " `deadLetterTopic`, with the reason,"
        " [in the same transaction](../spark/write.md#dead-letters)",
        values.bad_record,
        "fail",
    )
    dead_letter_topic = Option(
        "deadLetterTopic",
        Use.SINK,
        "with `onBadRecord` = `deadLetter`: the topic for rows that do not fit; it must exist,"
        " unless there is `createTopic`",
        values.topic_name,
    )
    create_topic = Defaulted(
        "createTopic",
        Use.SINK,
        "make a missing topic, and a missing log, with the DataFrame's columns",
        values.boolean,
        "false",
    )
    partitions = Option(
        "partitions",
        Use.SINK,
        "with `createTopic`: how many partitions the new topic has",
        values.positive,
        shown="1",
    )
    partition_by = Option(
        "partitionBy",
        Use.SINK,
        "columns of a typed topic, or fields (`user.id`), with commas between: rows with equal"
        " values in them go to one partition, in order ([how rows are placed](../placement.md));"
        " with `createTopic` it becomes the new topic's `partition.by`",
        values.column_names,
        shown="the topic's `partition.by`",
    )
    replication_factor = Option(
        "replicationFactor",
        Use.SINK,
        "with `createTopic`: how many replicas each partition has; by default three where there"
        " are three brokers",
        values.positive,
        shown="the cluster's",
    )
    topic_setting = text(
        "topic.<setting>",
        Use.SINK,
        "with `createTopic`: a [setting](settings.md#settings-of-a-topic) of the new topic, as"
        " `topic.retention.ms`",
        shown="the broker's",
    )
    checkpoint = text(
        "checkpointLocation",
        Use.SINK,
        "Spark's own, which it hands on: the query's id is there",
    )
    query_name = Defaulted(
        "queryName",
        Use.SINK,
        "Spark's own name of a streaming query; a batch write takes it too: it stands beside the"
        " transaction in `isolog transactions` and on the console",
        values.query_name,
        "",
        shown="-",
    )


class AccessOptions:
    """The options of a connection and its credentials."""

    user = text("user", Use.ALL, "who calls, with `password`")
    password = text("password", Use.ALL, "the user's password; Spark hides it in plans and logs")
    token = text("token", Use.ALL, "a token, in the place of user and password; Spark hides it")
    token_file = text(
        "tokenFile",
        Use.ALL,
        "the file of a token, read again for each connection; a path that the driver and the"
        " executors have",
    )
    profile = text(
        "profile",
        Use.ALL,
        "a file with `bootstrap`, a credential and `tls.*`, for what is not given here or in the"
        " environment; the credential is read again for each connection of the driver",
    )
    tls = Option(
        "tls",
        Use.ALL,
        "`true`: with TLS, and the system's authorities are trusted if there is no `tls.ca`",
        values.boolean,
        shown="`true` with any `tls.*`, else `false`",
    )
    tls_ca = text(
        "tls.ca",
        Use.ALL,
        "the PEM file of the authority that issued the brokers' certificates; a path that the"
        " driver and the executors have",
    )
    tls_cert = text("tls.cert", Use.ALL, "the PEM file of a client certificate, likewise")
    tls_key = text("tls.key", Use.ALL, "the PEM file of its key, if that is not in the same file")


OPTIONS: Final = tuple(
    row
    for group in (LogOptions, GivenToSource, GivenToBoth, GivenToSink, AccessOptions)
    for row in rows_of(group)
)


@cache
def options_for(side: Use) -> Mapping[str, Option[Any]]:
    """Return the options that a query of this side may have, by name."""
    return {each.name: each for each in OPTIONS if each.uses & side}
