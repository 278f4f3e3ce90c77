"""``connect()`` and what it returns: a log, with its topics, producers, consumers and reads."""

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
from spark_stream.client.options import known_options, level, refuse_unknown
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.consumer import Consumer
from spark_stream.client.reading.group_reader import PROCESSING_S, SESSION_S, GroupOptions, OnChange
from spark_stream.client.reading.ranges import of_partitions, read_table, topic_spans
from spark_stream.client.topics import Place, TopicsClient, checked_topic, resolve
from spark_stream.client.writing.producer import Producer
from spark_stream.client.writing.transactional import TransactionalProducer
from spark_stream.consistency.isolation import Isolation
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
    """Connect to a log: by any broker's ``host:port``, or by the ``path`` of a local directory.

    ``file:`` URIs and ``~`` are resolved in ``path``. Other schemes and variables are refused.
    With ``path`` the directory's broker is started in the background when it is needed, and ends
    after ``idle_seconds`` without use (default: the variable ISOLOG_IDLE_SECONDS, else 300).
    ``timeout`` (seconds) bounds every call with its retries. A missing directory becomes a new log,
    unless ``create`` is false.

    ``tls_ca``: the PEM file of the authority that issued the brokers' certificates; ``tls=True``
    trusts those of the system. ``tls_cert`` and ``tls_key``: a client certificate and its key.
    ``user`` and ``password``, a ``token``, or a ``token_file`` (read again for each connection) say
    who calls. Options that are left out come from ISOLOG_TLS, ISOLOG_TLS_CA, ISOLOG_TOKEN_FILE and
    so on, or else from the ``profile`` (or ISOLOG_PROFILE): a file with any of these options, and
    with ``bootstrap``.

    ``rack``: where this process runs, by default what ISOLOG_RACK says. Reads under
    ``read_replicated`` and above then ask an in-sync replica whose broker has the same rack.

    Raises:
        InvalidOption: neither or both of ``bootstrap`` and ``path`` are given, an address is not
            valid, or an option is unknown.
        Unauthenticated: the broker refuses the credential, or requires one.
        TlsFailed: the broker and the client do not agree on TLS; the message says why.
        UnknownLog: with ``create=False`` there is no log at ``path``.
        BrokerUnavailable: no broker answers. With ``path`` also the error that kept its broker from
            starting.
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
    log = Log(
        ClusterConnection(
            bootstrap, folder, timeout, idle_seconds, create=create, access=access, rack=rack
        )
    )
    try:
        log.status()
    except BaseException:
        log.close()
        raise
    return log


class Log(ProcessBound):
    """A connection to a log. Use it as a context manager, or call :meth:`close`."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._topics = TopicsClient(connection)
        self._consumers = ConsumersClient(connection, self._topics)

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
        """Create a topic: with one partition and Kafka's columns, unless the arguments differ.

        Without a ``replication_factor`` the cluster decides (``default_replication_factor``): three
        replicas if there are three brokers, or fewer while one of them is dead. A given number is
        strict. The answer's ``warning`` is set if a topic has fewer replicas than usual because of
        dead brokers, or one replica in a cluster of several brokers.

        Replicas are spread over the brokers and their racks. ``assignment`` places them by hand:
        for each partition the ids of its brokers, the preferred leader first; it also sets the
        number of partitions and of replicas.

        ``schema``: Arrow's, or a text as Spark writes it: ``"id bigint, name string"``.

        With ``if_not_exists`` an existing topic of this name is returned; its settings stay as they
        are, whatever ``config`` says. Only ``partition.by``, which cannot change, must be the one
        asked for.

        Raises:
            TopicExists: the topic exists; with ``if_not_exists``: its schema differs, or it has
                fewer partitions than were asked for (the message has the difference).
            InvalidTopic, InvalidConfig, SchemaMismatch, UnsupportedType: no topic is made.
            InvalidAssignment: there are fewer brokers than replicas, or the assignment names a
                broker that does not exist, or names one twice.
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
        """Give a topic more partitions, other settings, another schema; return the altered topic.

        ``assignment``: the brokers of each new partition, the preferred leader first.
        ``schema``: all columns as they are to be. New ones come last and take nulls; types may
        become wider ones, NOT NULL may go, and nothing else changes. Earlier records are read in
        the new schema; writers and readers of the old one continue.

        Settings that ``config`` does not name stay as they are. Existing records stay where they
        are: with more partitions, the next records of a key may go to another partition than the
        earlier ones. Running queries, producers and consumers continue, and begin to use the new
        partitions.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic, InvalidConfig, InvalidOption: fewer partitions than there are, a bad
                setting, or nothing to change; the topic stays as it was.
            SchemaMismatch, UnsupportedType: the topic cannot have that schema; the column and the
                reason are named, and the topic stays as it was.
        """
        if partitions is None and not config and schema is None:
            raise InvalidOption("nothing to change: give partitions, config, schema, or several")
        columns = parse_altered(schema) if isinstance(schema, str) else schema
        return self._topics.alter(name, partitions, dict(config or {}), assignment, columns)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._topics.names()

    def describe(self, topic: str) -> TopicDescription:
        """Return the topic as it is now, or raise UnknownTopic."""
        return self._topics.describe(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records, or raise UnknownTopic."""
        self._topics.delete(topic)

    def trim(
        self, topic: str, before: Place | TrimPlan, *, partitions: Sequence[int] | None = None
    ) -> dict[int, int]:
        """Move the log start of each partition up to ``before``, and return the new log starts.

        Readers below it get OffsetEvicted with the first remaining offset. The log start holds at
        all replicas and after each failover, and never moves back: a partition that starts above
        ``before`` stays as it is. Brokers remove the segments without other records soon after.

        Args:
            topic: The topic's name.
            before: An offset for each partition, ``{partition: offset}`` for some, a datetime (the
                records before the first one at or after it go), or ``"latest"`` (all go). A plan
                of :meth:`plan_trim` trims only the topic that it was made for, and no later one of
                the name.
            partitions: Only these partitions. Not with a plan.

        Raises:
            UnknownTopic, UnknownPartition: There is no such topic or partition.
            OffsetOutOfRange: ``before`` is above the last stable offset of a partition: records
                there are not replicated yet, or belong to an open transaction. No partition is
                trimmed. A datetime or ``"latest"`` trims at most to the last stable offset.
        """
        if isinstance(before, TrimPlan):
            if partitions is not None:
                raise InvalidOption("partitions is not for a plan", hint="Give it to plan_trim().")
            return self._topics.trim(topic, before.topic_id, before.before)
        topic_id, offsets = self._trim_offsets(topic, before, partitions)
        return self._topics.trim(topic, topic_id, offsets)

    def plan_trim(
        self, topic: str, before: Place, *, partitions: Sequence[int] | None = None
    ) -> TrimPlan:
        """Check a :meth:`trim` with these arguments, and return its offsets. Trim nothing.

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
        """Return the cluster with its brokers and its problems, as it is now."""
        return inspect_cluster(self._connection)[0]

    def move_replicas(self, topic: str, partitions: Mapping[int, Sequence[str | int]]) -> None:
        """Begin to move each partition to the brokers of these ids, the preferred leader first.

        Old replicas are removed once all new ones are in sync; :meth:`describe` shows the progress.

        Raises:
            UnknownTopic, UnknownPartition, InvalidAssignment: nothing is moved.
        """
        moves = {number: [str(each) for each in brokers] for number, brokers in partitions.items()}
        self._connection.call(MoveReplicas.of(topic=checked_topic(topic), partitions=moves))

    def cancel_moves(self, topic: str) -> None:
        """Cancel the moves of the topic's partitions that are under way, or raise UnknownTopic."""
        self._connection.call(CancelMoves(topic=checked_topic(topic)))

    def elect_preferred_leaders(self, topic: str | None = None) -> int:
        """Make the first replica of each partition lead, if it is in sync; return how many changed.

        ``topic`` None: all topics.
        """
        asked = ElectPreferred(topic=None if topic is None else checked_topic(topic))
        return self._connection.call(asked).elected

    def decommission(self, broker: str | int) -> None:
        """Take a broker out of the cluster: its replicas move away, then it is forgotten.

        Raises:
            UnknownBroker: there is no broker of this id.
            InvalidRequest: it is the only broker that can keep replicas.
        """
        self._connection.call(Decommission(broker=checked_broker(broker)))

    def recommission(self, broker: str | int) -> None:
        """Cancel a decommission. Moves that already started continue.

        Raises:
            UnknownBroker: there is no broker of this id, or it has left.
        """
        self._connection.call(Recommission(broker=checked_broker(broker)))

    def status(self) -> BrokerStatus:
        """Return the status that the broker reports."""
        return self._connection.call(GetStatus())

    # -- transactions ---------------------------------------------------------------------------

    def transactions(self) -> list[TransactionDescription]:
        """Return every transactional id with its present or last transaction, by id."""
        return list_transactions(self._connection)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return one transactional id with its transaction, or raise UnknownTransaction."""
        return describe_transaction(self._connection, transactional_id)

    def abort_transaction(self, transactional_id: str) -> TransactionDescription:
        """Abort an open transaction, whoever owns it: its owner's writes and commit then fail.

        Raises:
            UnknownTransaction: there is no such id.
            InvalidTransaction: its transaction is not open.
        """
        return kill_transaction(self._connection, transactional_id)

    def sinks(self) -> list[SinkDescription]:
        """Return the sinks of queries and of batch writes with a ``sinkId``, by id."""
        return self._connection.call(ListSinks()).sinks

    def delete_sink(self, transactional_id: str) -> None:
        """Forget a sink, with the last batch that it committed. Its id is free afterwards.

        If its query writes that batch again, the log has the rows twice.

        Raises:
            UnknownTransaction: there is no such sink.
            InvalidTransaction: a batch is being written.
        """
        self._connection.call(DeleteSink.of(transactional_id=transactional_id))

    # -- consumers ------------------------------------------------------------------------------

    def consumers(self) -> list[ConsumerDescription]:
        """Return all consumers' names, also of queries, with where each reads and what is left."""
        return self._consumers.all()

    def describe_consumer(self, name: str) -> list[ConsumerDescription]:
        """Return what is known under a name, which a query and a client may share.

        Raises:
            UnknownConsumer: nothing is known under it.
        """
        return self._consumers.describe(name)

    def delete_consumer(self, name: str) -> None:
        """Forget a name: its query's first start and progress, and its client's positions.

        Raises:
            UnknownConsumer: nothing is known under it.
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
        """Move the stored position of a named consumer or a group. Return the moved positions.

        ``to``: ``"earliest"``, ``"latest"`` (under the ``isolation``), an offset,
        ``{partition: offset}``, or a datetime, which is in UTC if it has no zone. An offset outside
        of a partition becomes its first offset or its end. ``topics``: by default those with a
        stored position. ``partitions``: only these of each topic. ``dry_run``: only return the
        positions.

        A running consumer of the name is fenced: it gets ConsumerFenced. All members of a group
        have to be closed.

        Raises:
            UnknownConsumer: no position is stored under the name, and no topic is named.
            InvalidRequest: the group has members, or the name is that of a query.
            ConsumerFenced: a consumer took the name over, or joined the group, during the reset.
            InvalidOption, UnknownTopic, UnknownPartition.
        """
        names = [topics] if isinstance(topics, str) else topics
        chosen = level(isolation)
        return self._consumers.reset(name, to, names, partitions, chosen, dry_run=dry_run)

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
        """Return a producer; ``settings`` are those of :class:`Producer`.

        With a ``transactional_id`` it is a :class:`TransactionalProducer`, whose settings have a
        ``transaction_timeout_ms`` (60,000) as well.

        Raises:
            InvalidOption: a setting has a value that it does not take, or is unknown.
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
        **unknown: Never,
    ) -> Consumer:
        """Return a consumer; ``columns``, ``metadata`` and ``headers`` are for its ``batches()``.

        ``topics``: a name, a list of names, or a compiled pattern (``re.compile("orders-.*")``),
        which selects every topic whose whole name it matches. A topic that is created later is read
        within seconds, from its first record on. A deleted topic, named or matched, ends the
        iteration with UnknownTopic. ``partitions``: only these of each named topic.

        ``start``: ``"earliest"``, ``"latest"``, an offset, ``{partition: offset}``, or a datetime,
        which is in UTC if it has no zone.

        ``filter``: only the records for which this predicate, in Spark's SQL, is true. The leader
        skips the others; the position moves past them.

        With a ``name`` it continues at the last position stored under that name. ``on_loss``
        (``fail`` or ``continue``): what to do when records are gone.

        With a ``group`` it shares the topics with the other members of the group: each partition is
        read by one of them, and continues where the group's last reader of it stored its position.
        A member is removed when its process was silent for ``session_timeout`` seconds, or asked
        for no record for ``processing_timeout``. ``auto_commit``: positions are stored every five
        seconds and before a partition is released; without it only by ``commit()`` and by
        transactions. ``on_assigned`` and ``on_revoked`` are called with ``[(topic, partition), …]``
        while the consumer is asked for records. ``start`` is where the group begins in partitions
        without a position. See ``docs/how-to/share-a-topic.md``.

        Raises:
            InvalidOption: an option has a value that it does not take, or is unknown.
            UnknownTopic, UnknownPartition, SchemaMismatch, InvalidFilter.
        """
        refuse_unknown("log.consumer", unknown, known_options(Log.consumer))
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
        )

    # One topic gives a table, a list of topics a dict of tables: overloads would tell a type
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
    ) -> Any:
        """Return the visible records of a range as one table; for a list of topics, a dict of them.

        Rows of a partition are in the order of their offsets, partitions one after another. ``end``
        is exclusive; ``latest`` is the bound of the isolation level at the time of the call.
        Under ``read_atomic`` all topics are read up to one cut, at or below ``end``: no transaction
        is seen in part. ``filter``: only the records for which this predicate, in Spark's SQL, is
        true; see ``docs/spark/read.md``. ``partitions``: only these of each topic. Records that
        retention removes meanwhile are missing from a read that starts at ``earliest``; any other
        read raises OffsetEvicted.
        """
        chosen = level(isolation)
        names = [topics] if isinstance(topics, str) else list(topics)
        spans = topic_spans(
            self._connection, self._topics, names, start, end, chosen, partitions=partitions
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
            tables[name] = read_table(self._topics.router, view, span, chosen)
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

        The broker of a ``path`` runs on until it is idle.
        """
        self._connection.close()


def _schema(given: pa.Schema | str | None) -> pa.Schema | None:
    return parse_schema(given) if isinstance(given, str) else given


class TrimPlan(Struct, frozen=True):
    """A trim of a topic's partitions: their log starts now, and the offsets to trim below."""

    topic_id: str
    log_starts: Mapping[int, int]
    before: Mapping[int, int]

    @property
    def records(self) -> int:
        """The number of offsets that readers lose."""
        return sum(max(0, at - self.log_starts[number]) for number, at in self.before.items())
