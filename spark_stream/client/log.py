"""``connect()`` and the log that it returns, with topics, producers, consumers and reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Never, Self, overload

import pyarrow as pa
from msgspec import Struct

from spark_stream.client.administration import (
    checked_broker,
    describe_transaction,
    inspect_cluster,
    kill_transaction,
    list_transactions,
)
from spark_stream.client.connecting.access import access_of, bootstrap_of_profile
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.consumers import ConsumersClient, MovedPosition
from spark_stream.client.lake_tables import (
    AUTO,
    NEVER,
    ONLY,
    LakeTables,
    check_one_cut,
    checked_choice,
)
from spark_stream.client.lakes import FILE_BYTES_DEFAULT, FRESHNESS_S_DEFAULT, LakesClient
from spark_stream.client.options import known_options, level, refuse_unknown
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.consumer import Consumer
from spark_stream.client.reading.group_reader import PROCESSING_S, SESSION_S, GroupOptions, OnChange
from spark_stream.client.reading.ranges import of_partitions, read_table, table_spans, topic_spans
from spark_stream.client.topics import Place, TopicsClient, checked_topic, resolve
from spark_stream.client.writing.producer import Producer
from spark_stream.client.writing.transactional import TransactionalProducer
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.lakes import LakeDescription
from spark_stream.directories import local_directory
from spark_stream.errors import InvalidOption
from spark_stream.sql.ddl import parse_altered, parse_schema
from spark_stream.transport.lifetime import ProcessBound
from spark_stream.wire.cluster_messages import (
    BrokerStatus,
    CancelMoves,
    ClusterDescription,
    Decommission,
    ElectPreferred,
    GetStatus,
    MoveReplicas,
    Recommission,
)
from spark_stream.wire.consumer_messages import ConsumerDescription
from spark_stream.wire.limits import REQUEST_TIMEOUT_S
from spark_stream.wire.topic_messages import TopicDescription
from spark_stream.wire.transaction_messages import (
    DeleteSink,
    ListSinks,
    SinkDescription,
    TransactionDescription,
)


def connect(
    bootstrap: str | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    timeout: float = REQUEST_TIMEOUT_S,
    idle_seconds: float | None = None,
    create: bool = True,
    tls: bool | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    profile: str | os.PathLike[str] | None = None,
    rack: str | None = None,
    **unknown: Never,
) -> Log:
    """Connect to a log, by the address of any broker or by the path of a directory.

    With ``path`` the broker of the directory is started in the background when it is needed. It
    stops after ``idle_seconds`` without use. Options that are omitted come from the environment
    (ISOLOG_TLS, ISOLOG_TLS_CA, ISOLOG_USER, ISOLOG_TOKEN_FILE, ...), and then from the profile.

    Args:
        bootstrap: Addresses of brokers, ``"host:port"`` or ``"host:port,host:port"``.
        path: A local directory. ``file:`` URIs and ``~`` are resolved. Other schemes and variables
            are refused.
        timeout: Seconds for each call, with its retries.
        idle_seconds: Only with ``path``: seconds without use after which the broker stops, by
            default ISOLOG_IDLE_SECONDS or 300.
        create: Only with ``path``: create a log if the directory is missing or empty.
        tls: Whether to use TLS. Without ``tls_ca`` the system's authorities are trusted.
        tls_ca: The PEM file of the authority that issued the brokers' certificates.
        tls_cert: The PEM file of a client certificate.
        tls_key: The PEM file of its key.
        user: The name of a user, with ``password``.
        password: The password of the user.
        token: A token, in place of user and password.
        token_file: A file with a token, which is read again for each connection.
        profile: A file with any of these options and ``bootstrap``, by default ISOLOG_PROFILE.
        rack: The rack of this process, by default ISOLOG_RACK. Reads under ``read_replicated`` and
            above use an in-sync replica in the same rack.
        unknown: Any other keyword is refused, with the name of the nearest option.

    Returns:
        The connection. Close it, or use it as a context manager.

    Raises:
        InvalidOption: Neither or both of ``bootstrap`` and ``path`` are given, an address is not
            valid, or an option is unknown.
        Unauthenticated: The broker refuses the credential, or requires one.
        TlsFailed: The broker and the client do not agree on TLS. The message has the reason.
        UnknownLog: ``create`` is false, and there is no log at ``path``.
        BrokerUnavailable: No broker answers. With ``path`` the message has the reason why its
            broker did not start.

    Examples:
        >>> with isolog.connect(path="first-log") as log:
        ...     log.topics()
        []
    """
    refuse_unknown("isolog.connect", unknown, known_options(connect))
    folder = None if path is None else local_directory(path).absolute()
    files = {
        "tls.ca": tls_ca,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "tokenFile": token_file,
        "profile": profile,
    }
    paths = {name: None if each is None else os.fspath(each) for name, each in files.items()}
    given = {"tls": tls, "user": user, "password": password, "token": token, **paths}
    access = access_of(given)
    if bootstrap is None and path is None:
        bootstrap = bootstrap_of_profile(given)
    return open_log(
        ClusterConnection(
            bootstrap, folder, timeout, idle_seconds, create=create, access=access, rack=rack
        )
    )


def open_log(connection: ClusterConnection) -> Log:
    """Return the log of a connection, once a broker has answered. Raise as :func:`connect`."""
    log = Log(connection)
    try:
        log.status()
    except BaseException:
        log.close()
        raise
    return log


class Log(ProcessBound):
    """A connection to a log, for any thread. Use it as a context manager, or call :meth:`close`.

    :func:`connect` returns it. All clients of a process with the same credential share one network
    connection to each broker.

    Examples:
        >>> topic = log.create_topic("greetings")
        >>> with log.producer() as producer:
        ...     written = producer.send("greetings", b"hello").result()
        >>> written.offset
        0
        >>> log.read("greetings", columns=["value"]).to_pylist()
        [{'value': b'hello'}]
    """

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._topics = TopicsClient(connection)
        self._lakes = LakesClient(connection, self._topics)
        self._tables = LakeTables(connection, self._topics)
        self._consumers = ConsumersClient(connection, self._topics, self._tables)

    # -- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        schema: pa.Schema | str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        if_not_exists: bool = False,
        assignment: Sequence[Sequence[str | int]] | None = None,
    ) -> TopicDescription:
        """Create a topic.

        Args:
            name: 1 to 200 letters, digits, ``.``, ``_`` and ``-``. Not with a ``.`` first.
            partitions: The number of partitions, by default 1.
            replication_factor: The number of replicas. It fails if fewer brokers are alive. By
                default the cluster decides (``default_replication_factor``): three replicas if
                there are three brokers, or fewer while one of them is dead.
            schema: The columns: an Arrow schema, or a text as in Spark (``"id bigint, name
                string"``). By default the columns of Spark's Kafka source.
            config: Settings of the topic, such as ``{"retention.ms": 86_400_000}``.
            if_not_exists: Return an existing topic with this name. Its settings do not change.
            assignment: For each partition the ids of its brokers, the preferred leader first. It
                replaces ``partitions`` and ``replication_factor``. By default replicas are spread
                over brokers and racks.

        Returns:
            The topic. Its ``warning`` is set if it has fewer replicas than usual because of dead
                brokers, one replica in a cluster of several brokers, or ``local.retention.*``
                without a lake.

        Raises:
            TopicExists: The topic exists. With ``if_not_exists``: its schema or its
                ``partition.by`` differs, or it has fewer partitions.
            InvalidTopic: The name is not valid.
            InvalidConfig: A setting is unknown, or its value is not allowed.
            UnsupportedType: A topic cannot store a column of this type.
            SchemaMismatch: The schema is not valid.
            InvalidAssignment: There are fewer brokers than replicas, or the assignment names an
                unknown broker, or a broker twice.

        Examples:
            >>> topic = log.create_topic("rides", partitions=2, schema="id bigint, city string")
            >>> topic.schema.names, len(topic.partitions)
            (['id', 'city'], 2)
        """
        return self._topics.create(
            name,
            partitions,
            replication_factor,
            _schema(schema),
            dict(config or {}),
            if_not_exists=if_not_exists,
            assignment=assignment,
        )

    def alter_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        assignment: Sequence[Sequence[str | int]] | None = None,
        schema: pa.Schema | str | None = None,
    ) -> TopicDescription:
        """Add partitions, change settings, or extend the schema of a topic.

        Running queries, producers and consumers continue, and use the new partitions. Existing
        records stay in their partitions. With more partitions, new records of a key may go to
        another partition.

        Args:
            name: The name of the topic.
            partitions: The new number of partitions.
            config: The settings to change. The others stay as they are.
            assignment: For each new partition the ids of its brokers, the preferred leader first.
            schema: All columns, as an Arrow schema or a text. New columns come last and accept
                nulls. Types may become wider, and NOT NULL may be dropped. Existing records are
                read in the new schema.

        Returns:
            The altered topic.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidTopic: There are more partitions already.
            InvalidConfig: A setting is unknown, or its value is not allowed.
            InvalidOption: There is nothing to change.
            SchemaMismatch: The topic cannot have this schema. The message has the column and the
                reason.
            UnsupportedType: A topic cannot store a column of this type.

        Examples:
            >>> topic = log.create_topic("trips", schema="id bigint")
            >>> log.alter_topic("trips", schema="id bigint, city string").added
            ('city',)
        """
        if partitions is None and not config and schema is None:
            raise InvalidOption("nothing to change: give partitions, config, schema, or several")
        columns = parse_altered(schema) if isinstance(schema, str) else schema
        return self._topics.alter(name, partitions, dict(config or {}), assignment, columns)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._topics.names()

    def describe(self, topic: str) -> TopicDescription:
        """Return a topic with its partitions, each as its leader reports it.

        Raises:
            UnknownTopic: There is no such topic, or the caller may not describe it.
        """
        return self._topics.describe(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records.

        Raises:
            UnknownTopic: There is no such topic.
        """
        self._topics.delete(topic)

    def trim(
        self, topic: str, before: Place | TrimPlan, *, partitions: Sequence[int] | None = None
    ) -> dict[int, int]:
        """Delete records: move the log start of each partition up to ``before``.

        Readers below the log start get OffsetEvicted with the first remaining offset. The log start
        applies to all replicas and after each failover, and never moves back. A partition whose log
        start is above ``before`` does not change. Brokers delete the segments without remaining
        records soon after.

        Args:
            topic: The name of the topic.
            before: An offset for all partitions, ``{partition: offset}`` for some, a datetime
                (records before the first one at or after it are deleted), or ``"latest"`` (all
                records are deleted). A plan of :meth:`plan_trim` applies only to the topic that it
                was created for, not to a later one with its name.
            partitions: Only these partitions. Not with a plan.

        Returns:
            The new log start of each partition.

        Raises:
            UnknownTopic, UnknownPartition: There is no such topic or partition.
            OffsetOutOfRange: ``before`` is above the last stable offset of a partition: records
                there are not replicated yet, or belong to an open transaction. No partition is
                trimmed. A datetime or ``"latest"`` trims at most to the last stable offset.

        Examples:
            >>> topic = log.create_topic("visits")
            >>> with log.producer() as producer:
            ...     futures = [producer.send("visits", "a visit") for _ in range(10)]
            >>> log.trim("visits", before=4)
            {0: 4}
            >>> log.read("visits").num_rows
            6
        """
        if isinstance(before, TrimPlan):
            if partitions is not None:
                raise InvalidOption(
                    "partitions cannot be given with a plan", hint="Give partitions to plan_trim()."
                )
            return self._topics.trim(topic, before.topic_id, before.before)
        topic_id, offsets = self._trim_offsets(topic, before, partitions)
        return self._topics.trim(topic, topic_id, offsets)

    def plan_trim(
        self, topic: str, before: Place, *, partitions: Sequence[int] | None = None
    ) -> TrimPlan:
        """Check a :meth:`trim` with these arguments, and return its offsets. Delete no records.

        It needs the same permission, and raises the same errors.
        """
        topic_id, offsets = self._trim_offsets(topic, before, partitions)
        starts = self._topics.trim(topic, topic_id, offsets, dry_run=True)
        return TrimPlan(topic_id, starts, offsets)

    def _trim_offsets(
        self, topic: str, before: Place, partitions: Sequence[int] | None
    ) -> tuple[str, dict[int, int]]:
        """Return the id of the topic, and the offset to trim below in each partition."""
        known = self._topics.describe(topic)
        found = resolve(self._topics, topic, before, Isolation.READ_COMMITTED, "earliest")
        chosen = before if partitions is None and isinstance(before, Mapping) else partitions
        return known.id, found if chosen is None else of_partitions(topic, found, chosen)

    # -- the cluster ----------------------------------------------------------------------------

    def cluster(self) -> ClusterDescription:
        """Return the cluster with its brokers and its present problems."""
        return inspect_cluster(self._connection)[0]

    def move_replicas(self, topic: str, partitions: Mapping[int, Sequence[str | int]]) -> None:
        """Start to move partitions to other brokers.

        Old replicas are removed when all new ones are in sync. :meth:`describe` shows the progress.

        Args:
            topic: The name of the topic.
            partitions: For each partition to move the ids of its new brokers, the preferred leader
                first.

        Raises:
            UnknownTopic: There is no such topic. Nothing is moved.
            UnknownPartition: The topic has no such partition. Nothing is moved.
            InvalidAssignment: A broker is unknown, or named twice. Nothing is moved.
        """
        moves = {number: [str(each) for each in brokers] for number, brokers in partitions.items()}
        self._connection.call(MoveReplicas.of(topic=checked_topic(topic), partitions=moves))

    def cancel_moves(self, topic: str) -> None:
        """Cancel all moves of the topic's partitions that are in progress.

        Raises:
            UnknownTopic: There is no such topic.
        """
        self._connection.call(CancelMoves(topic=checked_topic(topic)))

    def elect_preferred_leaders(self, topic: str | None = None) -> int:
        """Elect the first replica of each partition as its leader, if it is in sync.

        Args:
            topic: The name of a topic, by default all topics.

        Returns:
            The number of partitions with a new leader.
        """
        request = ElectPreferred(topic=None if topic is None else checked_topic(topic))
        return self._connection.call(request).elected

    def decommission(self, broker: str | int) -> None:
        """Remove a broker from the cluster: its replicas move to others, and then it leaves.

        Args:
            broker: The id of the broker.

        Raises:
            UnknownBroker: There is no broker with this id.
            InvalidRequest: The broker is the only one that can keep replicas.
        """
        self._connection.call(Decommission(broker=checked_broker(broker)))

    def recommission(self, broker: str | int) -> None:
        """Cancel a decommission. Moves that have started continue.

        Args:
            broker: The id of the broker.

        Raises:
            UnknownBroker: There is no broker with this id, or it has left.
        """
        self._connection.call(Recommission(broker=checked_broker(broker)))

    def status(self) -> BrokerStatus:
        """Return the status that the broker reports."""
        return self._connection.call(GetStatus())

    # -- transactions ---------------------------------------------------------------------------

    def transactions(self) -> list[TransactionDescription]:
        """Return all transactional ids, sorted, with their present or last transaction."""
        return list_transactions(self._connection)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return a transactional id with its present or last transaction.

        Raises:
            UnknownTransaction: There is no such id.
        """
        return describe_transaction(self._connection, transactional_id)

    def abort_transaction(self, transactional_id: str) -> TransactionDescription:
        """Abort an open transaction of any producer. Its later writes and its commit fail.

        Returns:
            The aborted transaction.

        Raises:
            UnknownTransaction: There is no such id.
            InvalidTransaction: The id has no open transaction.
        """
        return kill_transaction(self._connection, transactional_id)

    def sinks(self) -> list[SinkDescription]:
        """Return the sinks of streaming queries, and of batch writes with a ``sinkId``, by id."""
        return self._connection.call(ListSinks()).sinks

    def delete_sink(self, transactional_id: str) -> None:
        """Delete a sink and the record of its last committed batch. Its id is then free.

        If its query writes that batch again, the log contains the rows twice.

        Raises:
            UnknownTransaction: There is no such sink.
            InvalidTransaction: A batch is in progress.
        """
        self._connection.call(DeleteSink.of(transactional_id=transactional_id))

    # -- consumers ------------------------------------------------------------------------------

    def consumers(self) -> list[ConsumerDescription]:
        """Return all named consumers, groups and named queries, with their positions and lags."""
        return self._consumers.all()

    def describe_consumer(self, name: str) -> list[ConsumerDescription]:
        """Return the consumer, group or query with this name. A query and a client may share it.

        Raises:
            UnknownConsumer: There is none with this name.
        """
        return self._consumers.describe(name)

    def delete_consumer(self, name: str) -> None:
        """Delete a name with its positions, and with the first start and progress of a query.

        Raises:
            UnknownConsumer: There is no consumer or query with this name.
        """
        self._consumers.delete(name)

    def reset_consumer(
        self,
        name: str,
        to: Place,
        *,
        topics: str | Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        isolation: str = "read_uncommitted",
        dry_run: bool = False,
    ) -> list[MovedPosition]:
        """Move the stored positions of a named consumer or a group.

        A running consumer with this name is fenced. All members of a group must be closed before.

        Args:
            name: The name of the consumer or the group.
            to: ``"earliest"``, ``"latest"``, an offset, ``{partition: offset}``, or a datetime (in
                UTC if it has no zone). An offset outside of a partition becomes its start or its
                end.
            topics: The topics, by default those with a stored position.
            partitions: Only these partitions of each topic.
            isolation: The isolation level of ``"latest"``.
            dry_run: Return the positions, and store nothing.

        Returns:
            The positions before and after the reset.

        Raises:
            UnknownConsumer: No position is stored under the name, and ``topics`` is not given.
            InvalidRequest: The group has members, or the name is that of a query.
            ConsumerFenced: A consumer took the name over, or joined the group, during the reset.
            InvalidOption: The position or the isolation level is not valid.
            UnknownTopic: There is no such topic.
            UnknownPartition: A topic has no such partition.

        Examples:
            >>> topic = log.create_topic("bills")
            >>> with log.producer() as producer:
            ...     futures = [producer.send("bills", "a bill") for _ in range(3)]
            >>> with log.consumer("bills", name="billing") as consumer:
            ...     read = list(consumer.records(until="latest"))
            ...     consumer.commit()
            >>> [(moved.before, moved.after) for moved in log.reset_consumer("billing", "earliest")]
            [(3, 0)]
        """
        names = [topics] if isinstance(topics, str) else topics
        chosen = level(isolation)
        return self._consumers.reset(name, to, names, partitions, chosen, dry_run=dry_run)

    # -- lakes ----------------------------------------------------------------------------------

    def create_lake(
        self,
        name: str,
        topics: str | Sequence[str],
        location: str | os.PathLike[str],
        *,
        freshness: float = FRESHNESS_S_DEFAULT,
        file_bytes: int = FILE_BYTES_DEFAULT,
        iceberg: str | None = None,
        version_retention: float | None = None,
        file_retention: float | None = None,
        check: bool = True,
    ) -> LakeDescription:
        """Create a lake: Delta tables with the committed records of topics.

        A worker writes the tables: ``isolog lake run``.

        Args:
            name: The name of the lake.
            topics: The topics. The table of a topic is the folder of its name in the location.
            location: A folder, or the URL of one in an object store (``"s3://bucket/folder"``).
                Keys are not part of it. The worker takes them from its environment.
            freshness: Seconds between two versions of the tables, at least 1.
            file_bytes: The size of a large file. Smaller adjacent files are merged.
            iceberg: A catalog of pyiceberg's configuration, where the tables are also Iceberg
                tables (``"CATALOG"``, or ``"CATALOG.NAMESPACE"``). The namespace is the lake's name
                by default.
            version_retention: Seconds for which versions can be read, at least 60. None for 30
                days. It is the property ``delta.logRetentionDuration`` of each table.
            file_retention: Seconds for which files that a merge replaced stay, at least 60. None
                for 7 days. It is the property ``delta.deletedFileRetentionDuration``.
            check: Write a file into the location first, and look for the files of brokers and the
                tables of others. It needs the keys of an object store in this process too. With
                False, faults of the location are errors of the worker.

        Returns:
            The lake.

        Raises:
            LakeExists: Another lake has the name.
            UnknownTopic: There is no such topic.
            UnsupportedType: Delta has no type for a column.
            SchemaMismatch: Delta does not accept a column's name.
            InvalidRequest: A setting is out of its range, or the location has keys.
            InvalidOption: ``iceberg`` is no name of a catalog, or its package is missing. Or the
                location overlaps that of another lake, or the directory of a log.
            LakeUnavailable: The location refused a file.
            LakeStopped: The location is in a table, or has tables of others.

        Examples:
            >>> topic = log.create_topic("trades", schema="id bigint, price double")
            >>> log.create_lake("finance", "trades", "lake-of-trades").topics[0].name
            'trades'
        """
        return self._lakes.create(
            name,
            topics,
            location,
            freshness,
            file_bytes,
            iceberg,
            version_retention=version_retention,
            file_retention=file_retention,
            check=check,
        )

    def lakes(self) -> list[LakeDescription]:
        """Return all lakes, sorted, with the offsets that their workers have recorded."""
        return self._lakes.all()

    def describe_lake(self, name: str) -> LakeDescription:
        """Return a lake.

        Raises:
            UnknownLake: There is none with this name.
        """
        return self._lakes.describe(name)

    def alter_lake(
        self,
        name: str,
        *,
        topics: str | Sequence[str] | None = None,
        freshness: float | None = None,
        file_bytes: int | None = None,
        location: str | os.PathLike[str] | None = None,
        check: bool = True,
    ) -> LakeDescription:
        """Alter a lake. Its worker follows in its next round.

        Args:
            name: The name of the lake.
            topics: All topics that the lake is to have. A topic that is added again continues in
                its table. The table of a removed topic stays, but readers of the topic do not find
                the records any more that only this table has.
            freshness: Seconds between two versions of the tables, at least 1.
            file_bytes: The size of a large file. Smaller adjacent files are merged.
            location: The new folder of the tables, or its URL. Stop the worker and copy the tables
                there first. The copies must have all files, and all records that the worker has
                copied.
            check: Look for tables of others in the place of added tables.

        Returns:
            The lake.

        Raises:
            UnknownLake: There is none with this name.
            UnknownTopic: There is no such topic.
            UnsupportedType: Delta has no type for a column.
            SchemaMismatch: Delta does not accept a column's name.
            InvalidRequest: A setting is out of its range, or ``topics`` is empty.
            InvalidOption: ``location`` overlaps that of another lake, or the directory of a log.
            Unsupported: The lake has Iceberg tables, which cannot be moved.
            LakeIncomplete: The tables at ``location`` lack files or records.
            LakeUnavailable: The location did not answer.
            LakeStopped: The place of an added table has a table of others.

        Examples:
            >>> for name in ("bids", "asks"):
            ...     topic = log.create_topic(name, schema="id bigint")
            >>> lake = log.create_lake("market", "bids", "lake-of-bids")
            >>> altered = log.alter_lake("market", topics=["bids", "asks"], freshness=5)
            >>> [each.name for each in altered.topics], altered.freshness_ms
            (['asks', 'bids'], 5000)
        """
        return self._lakes.alter(name, topics, freshness, file_bytes, location, check=check)

    def drop_lake(self, name: str) -> None:
        """Drop a lake. Its tables stay. Local retention waits for the other lakes of a topic only.

        Readers of a topic do not find the records any more that only the dropped tables have.

        Raises:
            UnknownLake: There is none with this name.
        """
        self._lakes.drop(name)

    # -- records --------------------------------------------------------------------------------

    @overload
    def producer(
        self, *, isolation: str = ..., transactional_id: None = None, **settings: Any
    ) -> Producer: ...

    @overload
    def producer(
        self, *, isolation: str = ..., transactional_id: str, **settings: Any
    ) -> TransactionalProducer: ...

    def producer(
        self,
        *,
        isolation: str = "read_uncommitted",
        transactional_id: str | None = None,
        **settings: Any,
    ) -> Producer:
        """Create a producer.

        Args:
            isolation: ``"read_uncommitted"`` or ``"read_committed"``, as for :class:`Producer`.
            transactional_id: The id of the producer's transactions. With it the producer is a
                :class:`TransactionalProducer`.
            settings: The other settings of :class:`Producer` or :class:`TransactionalProducer`.

        Raises:
            InvalidOption: A setting is unknown, or its value is not allowed.

        Examples:
            >>> topic = log.create_topic("events")
            >>> with log.producer(isolation="read_committed", linger_ms=5) as producer:
            ...     first = producer.send("events", "one", key="a")
            ...     second = producer.send("events", "two", key="a")
            >>> first.result().offset, second.result().offset
            (0, 1)
        """
        known = known_options(Producer, TransactionalProducer)
        refuse_unknown("log.producer", settings.keys() - known, known - {"branch"})
        if transactional_id is None:
            if "transaction_timeout_ms" in settings:
                raise InvalidOption(
                    "transaction_timeout_ms is for a producer of transactions",
                    hint="Give transactional_id= as well.",
                    option="transaction_timeout_ms",
                )
            return Producer(self._connection, self._topics, isolation=isolation, **settings)
        return TransactionalProducer(
            self._connection,
            self._topics,
            isolation=isolation,
            transactional_id=transactional_id,
            **settings,
        )

    def consumer(
        self,
        topics: str | list[str] | re.Pattern[str],
        *,
        partitions: Iterable[int] | None = None,
        isolation: str = "read_uncommitted",
        start: Place = "earliest",
        name: str | None = None,
        columns: list[str] | None = None,
        metadata: bool = False,
        headers: bool = False,
        on_loss: str = "fail",
        filter: str | None = None,
        group: str | None = None,
        session_timeout: float = SESSION_S,
        processing_timeout: float = PROCESSING_S,
        auto_commit: bool = True,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
        lake: str = AUTO,
        **unknown: Never,
    ) -> Consumer:
        """Create a consumer of one or more topics.

        Args:
            topics: A name, a list of names, or a compiled pattern (``re.compile("orders-.*")``)
                that matches whole names. Topics that match and are created later are read from
                their first record.
            partitions: Only these partitions of each named topic.
            isolation: ``"read_uncommitted"``, ``"read_replicated"``, ``"read_committed"`` or
                ``"read_atomic"``.
            start: ``"earliest"``, ``"latest"``, an offset, ``{partition: offset}``, or a datetime
                (in UTC if it has no zone). A group uses it for partitions without a stored
                position.
            name: The name under which positions are stored. The consumer continues at the stored
                position, and a consumer that had the name is fenced.
            columns: Only these columns, in batches.
            metadata: Add ``_topic``, ``_partition``, ``_offset`` and ``_timestamp`` to batches.
            headers: Add the column ``headers`` to batches of a topic with Kafka's columns.
            on_loss: ``"fail"``, or ``"continue"`` with a warning, if unread records were removed.
            filter: A predicate in Spark's SQL. The leader skips other records.
            group: The name of a consumer group. Its members share the partitions.
            session_timeout: Seconds without a heartbeat after which a group removes a member.
            processing_timeout: Seconds without a request for records after which a member leaves.
            auto_commit: Store the group's positions every five seconds and before a partition moves
                to another member. Otherwise only ``commit()`` and transactions store them.
            on_assigned: A function that gets ``[(topic, partition), ...]`` after an assignment.
            on_revoked: The same before partitions are revoked.
            lake: ``"auto"``: read records that retention has removed from the table of a lake of
                the topic, if one has them. The table has committed records only. ``"never"``: read
                from the log only.
            unknown: Any other keyword is refused, with the name of the nearest option.

        Raises:
            InvalidOption: An option is unknown, or its value is not allowed.
            UnknownTopic: There is no such topic.
            UnknownPartition: A topic has no such partition.
            SchemaMismatch: A topic has no such column.
            InvalidFilter: The filter does not fit the columns of the topic.

        Examples:
            >>> topic = log.create_topic("orders", schema="id bigint, price double")
            >>> with log.producer() as producer:
            ...     rows = pa.table({"id": [1, 2], "price": [5.0, 7.5]})
            ...     written = producer.append("orders", rows)
            >>> with log.consumer("orders", filter="price > 6") as consumer:
            ...     [batch.to_pylist() for batch in consumer.batches(until="latest")]
            [[{'id': 2, 'price': 7.5}]]
        """
        refuse_unknown("log.consumer", unknown, known_options(Log.consumer))
        tables = self._tables if checked_choice(lake, AUTO, NEVER) == AUTO else None
        group_options = None
        if group is not None:
            group_options = GroupOptions(
                group, session_timeout, processing_timeout, auto_commit, on_assigned, on_revoked
            )
        return Consumer(
            self._connection,
            self._topics,
            topics,
            partitions=partitions,
            isolation=isolation,
            start=start,
            columns=columns,
            metadata=metadata,
            headers=headers,
            name=name,
            on_loss=on_loss,
            filter=filter,
            group=group_options,
            tables=tables,
        )

    # One topic gives a table, a list of topics a dict of tables: overloads would give a type
    # checker, but would repeat eight parameters three times.
    def read(
        self,
        topics: str | list[str],
        *,
        start: Place = "earliest",
        end: Place = "latest",
        isolation: str = "read_uncommitted",
        columns: list[str] | None = None,
        filter: str | None = None,
        metadata: bool = False,
        headers: bool = False,
        partitions: Sequence[int] | None = None,
        lake: str = AUTO,
    ) -> Any:
        """Read the visible records of a range as an Arrow table.

        Rows of a partition are in the order of their offsets, one partition after the other.

        Args:
            topics: The name of a topic, or a list of names.
            start: ``"earliest"``, ``"latest"``, an offset, ``{partition: offset}``, or a datetime
                (in UTC if it has no zone).
            end: The same, exclusive. ``"latest"`` is the bound of the isolation level at the time
                of the call.
            isolation: ``"read_uncommitted"``, ``"read_replicated"``, ``"read_committed"`` or
                ``"read_atomic"``. Under ``"read_atomic"`` all topics are read up to one cut, at or
                below ``end``, so that each transaction is contained as a whole or not at all.
            columns: Only these columns.
            filter: A predicate in Spark's SQL. Leaders return only matching records.
            metadata: Add ``_topic``, ``_partition``, ``_offset`` and ``_timestamp``.
            headers: Add the column ``headers`` for a topic with Kafka's columns.
            partitions: Only these partitions of each topic.
            lake: ``"auto"``: read records that retention has removed from the table of a lake of
                the topic, if one has them. The table has committed records only. ``"never"``: read
                from the log only. ``"only"``: read from the table only, up to its present end.

        Returns:
            A ``pyarrow.Table`` with the columns of the topic. For a list of topics: a dict of
                tables.

        Raises:
            UnknownTopic: There is no such topic.
            UnknownPartition: A topic has no such partition.
            OffsetEvicted: Records of the range were removed. A read from ``"earliest"`` starts at
                the first remaining record instead.
            LakeIncomplete: A table that has records of the range is missing, or an older copy.
            OffsetOutOfRange: An offset is above the end of the log.
            SchemaMismatch: The topic has no such column.
            InvalidFilter: The filter does not fit the columns of the topic.

        Examples:
            >>> topic = log.create_topic("numbers", schema="n bigint")
            >>> with log.producer() as producer:
            ...     written = producer.append("numbers", pa.table({"n": [1, 2, 3]}))
            >>> table = log.read("numbers", filter="n > 1", metadata=True)
            >>> table.select(["n", "_offset"]).to_pylist()
            [{'n': 2, '_offset': 1}, {'n': 3, '_offset': 2}]
        """
        chosen = level(isolation)
        names = [topics] if isinstance(topics, str) else list(topics)
        choice = checked_choice(lake, AUTO, NEVER, ONLY)
        lakes = None if choice == NEVER else self._tables
        if choice == ONLY:
            check_one_cut(names, chosen)
            spans = table_spans(self._topics, self._tables, names, start, end, partitions)
        else:
            spans = topic_spans(
                self._connection,
                self._topics,
                names,
                start,
                end,
                chosen,
                partitions=partitions,
                tables=lakes,
            )
        tables = {}
        for name in names:
            span = spans[name]
            view = View.of(
                name,
                span.topic.schema,
                columns,
                metadata=metadata,
                headers=headers,
                filter=filter,
            )
            tables[name] = read_table(
                self._topics.router, view, span, chosen, lakes, in_table=choice == ONLY
            )
        return tables[topics] if isinstance(topics, str) else tables

    # -- the connection -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Abort the open transactions of this log's producers, then close the connection.

        The broker of a ``path`` continues until it is idle.
        """
        self._connection.close()


def _schema(given: pa.Schema | str | None) -> pa.Schema | None:
    return parse_schema(given) if isinstance(given, str) else given


class TrimPlan(Struct, frozen=True):
    """A planned trim of a topic's partitions. :meth:`Log.trim` carries it out."""

    topic_id: str
    log_starts: Mapping[int, int]
    before: Mapping[int, int]

    @property
    def records(self) -> int:
        """The number of offsets that readers lose."""
        return sum(max(0, at - self.log_starts[number]) for number, at in self.before.items())
