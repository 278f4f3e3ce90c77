"""The table of all options: attributes of sources and sinks, parsers, and rows of the reference."""

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
    """The queries that an option is for."""

    BATCH_SOURCE = auto()
    STREAM_SOURCE = auto()
    BATCH_SINK = auto()
    STREAM_SINK = auto()
    SOURCE = BATCH_SOURCE | STREAM_SOURCE
    SINK = BATCH_SINK | STREAM_SINK
    ALL = SOURCE | SINK


NO_USE: Final = Use(0)
T = TypeVar("T")


class ParsedOptions(Struct, frozen=True, kw_only=True):
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
    """An option. As an attribute of :class:`ParsedOptions` it is the option's value, or None.

    ``default`` is the text that is parsed if the option is left out. The docs show ``shown``
    instead, if it is set. ``in_table``: the uses in which the option takes effect as an option of
    a SQL table. None: the same as ``uses``. NO_USE: a table must not have it.
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
        """The uses of the option if a table has it."""
        return self.uses if self.in_table is None else self.in_table

    def __get__(self, given: ParsedOptions, owner: type[ParsedOptions]) -> T | None:
        return given.values.get(self.name)


class Defaulted(Option[T], frozen=True):
    """An option with a default."""

    def __get__(self, given: ParsedOptions, owner: type[ParsedOptions]) -> T:
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
        "addresses of brokers, `host:port[,host:port…]`: any brokers of the cluster. Without "
        "`bootstrap` and `path`, the driver's environment variable `ISOLOG_BOOTSTRAP` or "
        "`ISOLOG_PATH` is used",
    )
    path = text(
        "path",
        Use.ALL,
        "in place of `bootstrap`: a local directory with the log. Its broker is started when "
        "needed",
    )


class CommonOptions(ParsedOptions, frozen=True):
    """The options of each query that are values of its reader or writer."""

    broker_timeout_s = Defaulted(
        "brokerTimeout",
        Use.ALL,
        "the longest wait, before the query fails, for brokers that do not answer, for a leader, "
        "and for the end of a transaction that a planned batch needs: `30s`, `10m`",
        values.timeout_s,
        "2m",
    )


class DeclaredSourceOptions(CommonOptions, frozen=True):
    """The options of a source."""

    subscribe = Option(
        "subscribe",
        Use.SOURCE,
        "the topics, separated by commas. A query needs exactly one of `subscribe`, "
        "`subscribePattern` and `assign`",
        values.topic_names,
    )
    subscribe_pattern = Option(
        "subscribePattern",
        Use.SOURCE,
        "a regular expression (Python's `re`) for the whole names of topics. It also selects "
        "topics that are created while the query runs",
        values.pattern,
    )
    assign = Option(
        "assign",
        Use.SOURCE,
        'the partitions to read, by topic: `{"a":[0,2]}`',
        values.assigned,
    )
    isolation = Defaulted(
        "isolation",
        Use.SOURCE,
        "the isolation level, which sets the visible records: `read_uncommitted`, "
        "`read_replicated`, `read_committed`, `read_atomic`",
        values.reading_level,
        "read_uncommitted",
    )
    starting_offsets = Defaulted(
        "startingOffsets",
        Use.SOURCE,
        'the start of a new query: `earliest`, `latest`, `{"a":{"0":23,"1":-2}}` (-2 earliest, -1'
        " latest), or a streaming offset from a query's progress. A batch query cannot start at "
        "`latest`",
        offsets,
        "earliest",
    )
    starting_timestamp = Option(
        "startingTimestamp",
        Use.SOURCE,
        "the start as a time: in each partition, the first record at or after it. Milliseconds "
        "since 1970 (negative before), or ISO 8601, in UTC if it names no zone. Takes precedence "
        "over `startingOffsetsByTimestamp` and `startingOffsets`",
        moment,
    )
    starting_offsets_by_timestamp = Option(
        "startingOffsetsByTimestamp",
        Use.SOURCE,
        'the start as a time, by topic and partition: `{"a":{"0":1700000000000}}`. Takes '
        "precedence over `startingOffsets`",
        moments,
    )
    ending_offsets = Defaulted(
        "endingOffsets",
        Use.BATCH_SOURCE,
        "the end of the query: as `startingOffsets`, but not `earliest`",
        offsets,
        "latest",
    )
    ending_timestamp = Option(
        "endingTimestamp",
        Use.BATCH_SOURCE,
        "the end as a time: in each partition, before the first record at or after it. Takes "
        "precedence over `endingOffsetsByTimestamp` and `endingOffsets`",
        moment,
    )
    ending_offsets_by_timestamp = Option(
        "endingOffsetsByTimestamp",
        Use.BATCH_SOURCE,
        "the end as a time, by topic and partition. Takes precedence over `endingOffsets`",
        moments,
    )
    consumer = Option(
        "consumer",
        Use.SOURCE,
        "a name for the query. The metadata store keeps the first start of the query under it, "
        "and the progress of a stream (`isolog consumers`)",
        values.consumer_name,
    )
    max_offsets_per_trigger = Option(
        "maxOffsetsPerTrigger",
        Use.STREAM_SOURCE,
        "the maximum number of records of a micro-batch. Partitions share it in proportion to "
        "their backlogs",
        values.positive,
    )
    max_bytes_per_trigger = Option(
        "maxBytesPerTrigger",
        Use.STREAM_SOURCE,
        "the maximum size of a micro-batch, in stored bytes. A single record that is larger is "
        "read alone",
        values.positive,
    )
    min_offsets_per_trigger = Option(
        "minOffsetsPerTrigger",
        Use.STREAM_SOURCE,
        "the minimum number of records of a micro-batch: the query waits for them. With "
        "`Trigger.AvailableNow` it does not wait",
        values.positive,
    )
    max_trigger_delay_s = Defaulted(
        "maxTriggerDelay",
        Use.STREAM_SOURCE,
        "the longest wait for `minOffsetsPerTrigger`, from the first pending record: `500ms`, "
        "`30s`, `15m`, `2h`, `1d`",
        values.duration_s,
        f"{MAX_DELAY_DEFAULT_S // 60:.0f}m",
    )
    min_partitions = Option(
        "minPartitions",
        Use.SOURCE,
        "the minimum number of Spark tasks: ranges are split in proportion to their sizes. "
        "Without it, ranges of few records share tasks",
        values.positive,
    )
    max_records_per_partition = Option(
        "maxRecordsPerPartition",
        Use.SOURCE,
        "the maximum number of records of a Spark task",
        values.positive,
    )
    fail_on_data_loss = Defaulted(
        "failOnDataLoss",
        Use.SOURCE,
        "if records of the range were lost: fail (`true`), or log a warning and continue (`false`)",
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
        "a predicate in Spark's SQL. The leader sends only the records for which it is true "
        "([syntax and effects](../spark/read.md#filters))",
        values.predicate,
    )
    push_filters = Defaulted(
        "pushFilters",
        Use.BATCH_SOURCE,
        "push Spark's own filters to the leader, if Spark's setting for that is on. Only for a "
        "DataFrame that [one query reads once](../spark/read.md#filters)",
        values.boolean,
        "false",
    )
    lake = Defaulted(
        "lake",
        Use.SOURCE,
        "the source of records that retention has removed from the log: "
        "[a table of the topic](../spark/read.md#records-that-retention-has-removed) if a lake has "
        "one (`auto`), or none (`never`). With `only`, all records are read from the table",
        values.lake,
        "auto",
    )
    mapped_reads = Defaulted(
        "mappedReads",
        Use.SOURCE,
        "read large ranges [from the log's own files](../spark/read.md#reads-next-to-the-data) if"
        " a task runs on the machine of a replica",
        values.boolean,
        "true",
    )
    rack = Option(
        "rack",
        Use.SOURCE,
        "the rack of all tasks: under `read_replicated` and above, they read from an in-sync "
        "replica [in the same rack](../spark/read.md#reads-in-the-same-rack). By default each "
        "task uses the variable `ISOLOG_RACK` of its executor",
        values.rack,
        shown="`ISOLOG_RACK`",
    )


class DeclaredSinkOptions(CommonOptions, frozen=True):
    """The options of a sink."""

    topic = Option(
        "topic",
        Use.SINK,
        "the target topic. The option takes precedence over the column",
        values.stripped,
        shown="column `topic`",
    )
    isolation = Defaulted(
        "isolation",
        Use.SINK,
        "the acknowledgement of a write: by the leader alone (`read_uncommitted`), or by all "
        "in-sync replicas (`read_committed`)",
        values.writing_level,
        "read_committed",
        shown="`read_committed` when transactional, else `read_uncommitted`",
        in_table=NO_USE,
    )
    transactional = Defaulted(
        "transactional",
        Use.SINK,
        "`true`: each micro-batch (or batch job) is written exactly once, all or nothing. "
        "`false`: at least once",
        values.boolean,
        "true",
    )
    sink_id = Option(
        "sinkId",
        Use.SINK,
        "the identity of the sink, under which its last committed batch is recorded. Required "
        "with `batchId`",
        values.sink_id,
        shown="the query's id, from `checkpointLocation`",
        in_table=Use.STREAM_SINK,
    )
    batch_id = Option(
        "batchId",
        Use.BATCH_SINK,
        "with `sinkId`: the number of the batch. Replays of a batch write it once (for "
        "`foreachBatch`)",
        values.batch_id,
        in_table=NO_USE,
    )
    replays = Defaulted(
        "differentReplay",
        Use.SINK,
        "if a replayed batch has other rows than were committed: `fail`, `ignoreFloats` (fail "
        "unless only floating-point values differ), or `keep` the committed rows. In a batch "
        "write it needs `batchId`",
        values.replays,
        "fail",
        in_table=Use.STREAM_SINK,
    )
    transaction_timeout_ms = Defaulted(
        "transactionTimeout",
        Use.SINK,
        "the time from the last renewal of a transaction by the query's Python workers to its "
        "abort, from `1s` to `1d`. The transaction of a killed driver blocks readers of committed"
        " records for this long",
        values.transaction_timeout_ms,
        f"{values.TRANSACTION_TIMEOUT_MS // 60_000}m",
    )
    on_bad_record = Defaulted(
        "onBadRecord",
        Use.SINK,
        "for rows that do not fit their topic: `fail`, or `deadLetter`, which writes them to "
        "`deadLetterTopic`, with the reason, [in the same "
        "transaction](../spark/write.md#dead-letters)",
        values.bad_record,
        "fail",
    )
    dead_letter_topic = Option(
        "deadLetterTopic",
        Use.SINK,
        "with `onBadRecord` = `deadLetter`: the topic for rows that do not fit. It must exist, or"
        " `createTopic` must be set",
        values.topic_name,
    )
    create_topic = Defaulted(
        "createTopic",
        Use.SINK,
        "create a missing topic with the DataFrame's columns, and a missing log",
        values.boolean,
        "false",
    )
    partitions = Option(
        "partitions",
        Use.SINK,
        "with `createTopic`: the number of partitions of the new topic",
        values.positive,
        shown="1",
    )
    partition_by = Option(
        "partitionBy",
        Use.SINK,
        "columns of a typed topic, or fields (`user.id`), separated by commas. Rows with equal "
        "values in them go to one partition, in order ([placement of rows](../placement.md)). "
        "With `createTopic` it becomes the new topic's `partition.by`",
        values.column_names,
        shown="the topic's `partition.by`",
    )
    replication_factor = Option(
        "replicationFactor",
        Use.SINK,
        "with `createTopic`: the number of replicas of each partition. By default three if there "
        "are three brokers",
        values.positive,
        shown="the cluster's",
    )
    topic_setting = text(
        "topic.<setting>",
        Use.SINK,
        "with `createTopic`: a [setting](settings.md#settings-of-a-topic) of the new topic, such "
        "as `topic.retention.ms`",
        shown="the broker's",
    )
    checkpoint = text(
        "checkpointLocation",
        Use.SINK,
        "Spark's own option, which Spark passes on: the query's id is in the checkpoint",
    )
    query_name = Defaulted(
        "queryName",
        Use.SINK,
        "Spark's own option: the name of a streaming query. A batch write accepts it too. `isolog"
        " transactions` and the console show it beside the transaction",
        values.query_name,
        "",
        shown="-",
    )


class AccessOptions:
    """The options of a connection and its credentials."""

    user = text("user", Use.ALL, "the user name, with `password`")
    password = text("password", Use.ALL, "the user's password. Spark hides it in plans and logs")
    token = text("token", Use.ALL, "a token, in place of user and password. Spark hides it")
    token_file = text(
        "tokenFile",
        Use.ALL,
        "the path of a file with a token, which is read again for each connection. The driver and"
        " the executors need the file",
    )
    profile = text(
        "profile",
        Use.ALL,
        "a file with `bootstrap`, a credential and `tls.*`. Options take precedence over it, and so"
        " do environment variables, except `ISOLOG_BOOTSTRAP` and `ISOLOG_PATH`. The driver reads"
        " the credential again for each connection",
    )
    tls = Option(
        "tls",
        Use.ALL,
        "`true`: connect with TLS. Without `tls.ca` the system's authorities are trusted",
        values.boolean,
        shown="`true` with any `tls.*`, else `false`",
    )
    tls_ca = text(
        "tls.ca",
        Use.ALL,
        "the PEM file of the authority that issued the brokers' certificates. The driver and the "
        "executors need the file",
    )
    tls_cert = text(
        "tls.cert",
        Use.ALL,
        "the PEM file of a client certificate. The driver and the executors need the file",
    )
    tls_key = text(
        "tls.key",
        Use.ALL,
        "the PEM file of the certificate's key, if the key is not in the same file",
    )


OPTIONS: Final = tuple(
    row
    for group in (
        LogOptions,
        DeclaredSourceOptions,
        CommonOptions,
        DeclaredSinkOptions,
        AccessOptions,
    )
    for row in rows_of(group)
)


@cache
def options_for(side: Use) -> Mapping[str, Option[Any]]:
    """Return the options that a query of this side may have, by name."""
    return {each.name: each for each in OPTIONS if each.uses & side}
