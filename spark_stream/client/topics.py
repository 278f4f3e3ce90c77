"""Topics: requests, the client's cache of them, and the offsets of places such as "earliest"."""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from numbers import Integral
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from msgspec.structs import replace

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.router import Router
from spark_stream.client.leaders import look_up_offsets
from spark_stream.client.values import to_microseconds
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.replication.epochs import Lineage
from spark_stream.errors import (
    InvalidAssignment,
    InvalidOption,
    InvalidRequest,
    InvalidTopic,
    TopicExists,
    UnknownTopic,
)
from spark_stream.schema.evolution import evolves
from spark_stream.schema.keys import PARTITION_BY, same_columns, split_names
from spark_stream.schema.schemas import (
    DEFAULT_SCHEMA,
    mismatch,
    stored_schema,
)
from spark_stream.schema.types import check_levels
from spark_stream.structs import INT64_MAX
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.messages import EARLIEST, LATEST
from spark_stream.wire.topic_messages import (
    AlterTopic,
    AskedTopic,
    AtomicCut,
    CreateTopic,
    CutTopic,
    DeleteTopic,
    DescribeTopic,
    ListedOffsets,
    ListOffsets,
    ListTopics,
    PartitionOffsets,
    TopicDescription,
    TrimTopic,
)

Place = str | int | Mapping[int, int] | datetime
"""``"earliest"``, ``"latest"``, an offset for all partitions, ``{partition: offset}``, a moment.

A moment is a datetime, which is in UTC if it has no zone. A number is always an offset: -2 means
earliest and -1 latest. Partitions that a mapping omits get the default.
"""

Key = tuple[str, int]
"""Topic and partition."""

Target = str | datetime | Mapping[Key, int] | Mapping[Key, datetime] | Mapping[Key, int | datetime]
"""The argument of a seek: a name, a moment, or an offset or a moment for each partition."""


class TopicOutline(NamedTuple):
    """The name of a topic, its id and its number of partitions."""

    name: str
    id: str
    partitions: int


_OUTLINES_MAX: Final = 100
"""The most topics in a request for outlines. The answer has 0.3 to 1.2 KiB for each partition."""

_TRIES: Final = 5
_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}
_TAKEN: Final = "earliest | latest, an offset, {partition: offset} or a datetime"


def _check_schema(schema: pa.Schema | None) -> None:
    """Check a schema for errors that a request cannot carry: a wrong type, or deep nesting."""
    if schema is not None and not isinstance(schema, pa.Schema):
        raise InvalidOption(
            f"schema takes a pyarrow.Schema or a text, not a {type(schema).__name__}",
            option="schema",
            hint='Such as pa.schema([("id", pa.int64()), ("name", pa.string())]), or "id bigint".',
        )
    for field in schema or ():
        check_levels(field)


def matches(pattern: str | re.Pattern[str], topic: str) -> bool:
    """Return whether a pattern matches the whole name of a topic."""
    return re.fullmatch(pattern, topic) is not None


class TopicsClient:
    """The topics of a log, with a cache of descriptions, from which :meth:`known` answers."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self.router = Router(connection)
        """The routes to the leaders of the topics' partitions."""
        self._lock = new_lock()
        self._known: dict[str, TopicDescription] = {}

    def drop_if_grown(self, known: TopicDescription, partitions: int) -> None:
        """Drop a topic from the cache if its number of partitions has changed."""
        with self._lock:
            found = self._known.get(known.name)
            if found is not None and found.id == known.id and len(found.partitions) != partitions:
                del self._known[known.name]

    def names(self, *, readable: bool = False) -> list[str]:
        """Return the names of the topics that the caller may describe, or may read."""
        return self._connection.call(ListTopics(readable=readable)).topics

    def outlines(self) -> list[TopicOutline]:
        """Return the topics that the caller may describe, with few requests for all of them."""
        found: dict[str, PartitionOffsets] = {}
        asked = [AskedTopic(topic=name, facts=True) for name in self.names()]
        for at in range(0, len(asked), _OUTLINES_MAX):
            request = ListOffsets(topics=asked[at : at + _OUTLINES_MAX])
            found |= self._connection.call(request).topics
        return [
            TopicOutline(name, each.topic_id, len(each.partitions) + len(each.elsewhere))
            for name, each in found.items()
        ]

    def describe(self, topic: str) -> TopicDescription:
        return self._remember(self._connection.call(DescribeTopic(topic=checked_topic(topic))))

    def known(self, topic: str) -> TopicDescription:
        """Return the cached topic, which may have been altered since, or describe it.

        Its id stays the same. Call :meth:`describe` before refusing a request because of another
        field. A producer's next answer has the new number of partitions.
        """
        found = self._known.get(topic)
        return found if found is not None else self.describe(topic)

    def is_known(self, topic: str) -> bool:
        """Return whether :meth:`known` returns without a request."""
        return topic in self._known

    def drop(self, topic: str) -> None:
        """Drop the topic from the cache, after an answer that shows that it is outdated."""
        with self._lock:
            self._known.pop(topic, None)

    def create(
        self,
        topic: str,
        partitions: int | None,
        replication_factor: int | None,
        schema: pa.Schema | None,
        config: dict[str, Any],
        *,
        if_not_exists: bool = False,
        assignment: Sequence[Sequence[str | int]] | None = None,
        dry_run: bool = False,
    ) -> TopicDescription:
        """Create a topic. With ``if_not_exists`` accept an existing one that is as requested.

        ``dry_run``: only check the request, and return the topic that it would create.
        """
        _check_schema(schema)
        _check_agree(partitions, replication_factor, assignment)
        request = CreateTopic.of(
            topic=checked_topic(topic),
            partitions=1 if partitions is None else partitions,
            replication_factor=replication_factor,
            schema_ipc=schema,
            config={name: str(value) for name, value in config.items()},
            assignment=_assigned(assignment),
            token=secrets.token_hex(16),
            dry_run=dry_run,
        )
        if dry_run:
            return self._connection.call(request)
        for _ in range(_TRIES):
            try:
                return self._remember(self._connection.call(request))
            except TopicExists:
                if not if_not_exists:
                    raise
            try:
                found = self.describe(topic)
            except UnknownTopic:
                continue  # deleted in between
            wanted = DEFAULT_SCHEMA if schema is None else stored_schema(schema)
            _check_as_requested(found, partitions, wanted)
            _check_key_as_requested(found, config)
            return found
        raise TopicExists(
            f"topic {topic!r} is repeatedly created and deleted by other clients",
            topic=topic,
            hint="Try again later.",
        )

    def alter(
        self,
        topic: str,
        partitions: int | None,
        config: dict[str, Any],
        assignment: Sequence[Sequence[str | int]] | None = None,
        schema: pa.Schema | None = None,
        topic_id: str | None = None,
        *,
        reset: Iterable[str] = (),
        dry_run: bool = False,
    ) -> TopicDescription:
        """Alter the topic with this id, by default the present one of the name.

        A broker that hung may run the request late. It alters no later topic of the name.
        ``reset``: the settings that get their defaults again. ``dry_run``: only check the request.

        Raises:
            UnknownTopic: There is no such topic, or it was deleted and created again.
        """
        _check_schema(schema)
        request = AlterTopic.of(
            topic=checked_topic(topic),
            topic_id=topic_id or self._id_of(topic),
            partitions=partitions,
            config={name: str(value) for name, value in config.items()},
            assignment=_assigned(assignment),
            schema_ipc=schema,
            reset=list(reset),
            dry_run=dry_run,
        )
        rest = replace(request, schema=None)  # for a retry after an attempt that set the schema
        return self._remember(self._connection.call(request, instead=rest))

    def delete(self, topic: str) -> None:
        """Delete the topic that has this name at the time of the call.

        The request may be repeated, and a broker that hung may run it late. The topic's id prevents
        the deletion of a later topic with the name.

        Raises:
            UnknownTopic: There is no such topic, or it was deleted and created again during the
                call.
        """
        self.drop(topic)
        checked_topic(topic)
        request = DeleteTopic(topic=topic, topic_id=self._id_of(topic))
        try:
            self._connection.call(request)
        except UnknownTopic as error:
            if "topic_id" in error.details:  # there is a later one
                raise

    def trim(
        self, topic: str, topic_id: str, before: Mapping[int, int], *, dry_run: bool = False
    ) -> dict[int, int]:
        """Move the log start of each partition to its offset, and return the new log starts.

        ``dry_run``: only check the offsets, and return the present log starts.
        """
        request = TrimTopic.of(topic=topic, topic_id=topic_id, before=dict(before), dry_run=dry_run)
        return self._connection.call(request).log_starts

    def _id_of(self, topic: str) -> str:
        """Return the topic's id in the metadata store, without a call to a leader."""
        found = self.look_up([AskedTopic(topic=topic, partitions=[])], names=True)
        if topic not in found.topics:
            raise found.unknown[topic]
        return found.topics[topic].topic_id

    def offsets(
        self,
        topic: str,
        *,
        at: int = -1,
        timestamp_us: int | None = None,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        partitions: list[int] | None = None,
        lineages: Mapping[int, Iterable[Lineage]] | None = None,
        ranges: Mapping[int, tuple[int, int]] | None = None,
    ) -> PartitionOffsets:
        """Return the offset of a place in each partition. See :class:`AskedTopic`."""
        request = AskedTopic.of(
            topic=topic,
            partitions=partitions,
            at=at,
            timestamp=timestamp_us,
            isolation=isolation,
            lineages={number: list(each) for number, each in (lineages or {}).items()},
            ranges=dict(ranges or {}),
        )
        found = self.look_up([request])
        for error in found.unknown.values():
            raise error
        return found.topics[topic]

    def look_up(self, requested: Sequence[AskedTopic], *, names: bool = False) -> ListedOffsets:
        """Look up offsets of several topics in one call. ``names``: add all topics' names."""
        return look_up_offsets(self._connection, self.router, requested, names=names)

    def _remember(self, topic: TopicDescription) -> TopicDescription:
        with self._lock:
            self._known[topic.name] = topic
        return topic


def _check_as_requested(found: TopicDescription, partitions: int | None, schema: pa.Schema) -> None:
    """Raise TopicExists, with the difference, if the topic is not as requested.

    An earlier schema of an altered topic is accepted, because its writers still use it.
    """
    altered = found.schema_version > 0 and evolves(schema, found.schema)
    wrong = None if altered else mismatch(found.schema, schema)
    difference = None if wrong is None else wrong.message
    for field in schema if wrong is None and not altered else ():
        if field.nullable != found.schema.field(field.name).nullable:
            takes, requested = ("takes no", "takes") if field.nullable else ("takes", "takes no")
            difference = f"column {field.name!r} {takes} nulls there, and {requested} nulls here"
    count = len(found.partitions)
    if partitions is not None and partitions > count:  # it may have grown since its creation
        difference = f"it has {count} partition{'s' if count > 1 else ''}, not {partitions}"
    if difference is not None:
        raise TopicExists(
            f"topic {found.name!r} exists and differs: {difference}",
            topic=found.name,
            hint="Use its settings, alter the topic, or choose another name.",
        )


def _check_key_as_requested(found: TopicDescription, config: Mapping[str, Any]) -> None:
    """Raise TopicExists if the topic has another ``partition.by`` than requested."""
    requested = split_names(str(config.get(PARTITION_BY, "")))
    if requested and not same_columns(found.schema, requested, found.partition_by):
        present = ",".join(found.partition_by)
        raise TopicExists(
            f"topic {found.name!r} exists and differs: its {PARTITION_BY} is"
            f" {present!r}, not {','.join(requested)!r}",
            topic=found.name,
            hint="Use its setting, or choose another name.",
        )


def checked_topic(topic: str) -> str:
    """Return the topic, a text of 1 to 255 characters that can be encoded. Or raise InvalidTopic.

    A broker also checks the characters (``cluster.topics.check_name``).
    """
    try:
        DescribeTopic.of(topic=topic)
        topic.encode()  # half of a surrogate pair has no UTF-8
        return topic
    except (InvalidRequest, UnicodeEncodeError):
        raise InvalidTopic(f"{topic!r} is not a topic name", topic=ascii(topic)) from None


def _assigned(assignment: Sequence[Sequence[str | int]] | None) -> list[list[str]] | None:
    """Return an assignment in the form of a request, with each broker id as a text."""
    if assignment is None:
        return None
    return [[str(broker) for broker in brokers] for brokers in assignment]


def _check_agree(
    partitions: int | None, replicas: int | None, assignment: Sequence[Sequence[str | int]] | None
) -> None:
    """Raise InvalidAssignment if it is malformed, or its counts are not the requested ones."""
    if assignment is None:
        return
    if isinstance(assignment, str) or not all(
        isinstance(each, Sequence) and not isinstance(each, str) for each in assignment
    ):
        raise InvalidAssignment(
            f"an assignment is a list with the brokers of each partition, not {assignment!r}",
            hint="Give as many lists of broker ids as there are partitions: [['1', '2'], …].",
        )
    for what, requested, assigned in (
        ("partitions", partitions, len(assignment)),
        ("replicas", replicas, len(next(iter(assignment), ()))),
    ):
        if requested not in (None, assigned):
            raise InvalidAssignment(
                f"the assignment's number of {what} is {assigned}, and {requested} was requested",
                hint="Leave the number out, or assign as many.",
            )


class Places(Protocol):
    """The offsets of places that may be below the log start (``client.lake_tables``)."""

    def resolve(
        self, name: str, place: Place, isolation: Isolation, default: str, /
    ) -> dict[int, int]:
        """Return the offset of a place in each partition."""
        ...


def resolve_with_lineages(
    topics: TopicsClient,
    topic: str,
    place: Place,
    isolation: Isolation,
    older: Places | None = None,
) -> tuple[dict[int, int], dict[int, Lineage]]:
    """Return the offset of ``place`` in each partition, and their lineages.

    The lineage of an offset that a user names is unknown, and so is that of an offset in a table.
    ``older``: for places below the log start.
    """
    if isinstance(place, str) and place in _NAMED:
        found = topics.offsets(topic, at=_NAMED[place], isolation=isolation)
        offsets = found.offsets
        if older is not None:
            offsets = older.resolve(topic, place, isolation, "earliest")
        same = {n: each for n, each in found.lineages.items() if offsets[n] == found.offsets[n]}
        return offsets, same
    if older is not None:
        return older.resolve(topic, place, isolation, "earliest"), {}
    return resolve(topics, topic, place, isolation, "earliest"), {}


def resolve(
    topics: TopicsClient, topic: str, place: Place, isolation: Isolation, default: str
) -> dict[int, int]:
    """Return the offset of ``place`` in each partition of the topic.

    A moment means the first record at or after it, or the isolation's bound without one.
    """
    if isinstance(place, datetime):
        moment = to_microseconds(place)
        return topics.offsets(topic, timestamp_us=moment, isolation=isolation).offsets
    if isinstance(place, str):
        if place not in _NAMED:
            raise InvalidOption(f"a place is {_TAKEN}, not {place!r}")
        return topics.offsets(topic, at=_NAMED[place], isolation=isolation).offsets
    count = len(topics.describe(topic).partitions)
    if isinstance(place, Mapping):
        requested = {number: place.get(number, _NAMED[default]) for number in range(count)}
        for number in place:
            if number not in requested:
                raise InvalidOption(
                    f"topic {topic!r} has partitions 0 to {count - 1}, not {number!r}"
                )
    else:
        requested = dict.fromkeys(range(count), place)
    for offset in requested.values():
        if isinstance(offset, Integral) and offset > INT64_MAX:
            raise InvalidOption(f"an offset is {INT64_MAX} at most, not {offset}")
        if not isinstance(offset, Integral) or isinstance(offset, bool):
            raise InvalidOption(f"a place is {_TAKEN}, not {offset!r}")
    return named_resolved(topics, topic, requested, isolation)


def named_resolved(
    topics: TopicsClient, topic: str, requested: Mapping[int, int], isolation: Isolation
) -> dict[int, int]:
    """Return the mapping with -2 (earliest) and -1 (latest) replaced by offsets."""
    found = {int(number): int(offset) for number, offset in requested.items()}
    for name in (EARLIEST, LATEST):
        numbers = [number for number, offset in found.items() if offset == name]
        if numbers:
            at = topics.offsets(topic, at=name, isolation=isolation, partitions=numbers)
            found.update(at.offsets)
    if any(offset < 0 for offset in found.values()):
        raise InvalidOption(
            f"an offset is at least 0 (or -2 earliest, -1 latest): {dict(requested)}"
        )
    return found


def offsets_of(
    topics: TopicsClient,
    places: Mapping[Key, int | datetime],
    isolation: Isolation,
    older: Places | None = None,
) -> dict[Key, int]:
    """Return the offset of each partition, after a look-up of the moments among the places.

    ``older``: for moments below the log start.
    """
    moments: dict[tuple[str, datetime], list[int]] = defaultdict(list)
    found = {}
    for (topic, number), place in places.items():
        if isinstance(place, datetime):
            moments[topic, place].append(number)
        else:
            found[topic, number] = int(place)
    for (topic, moment), numbers in moments.items():
        at, _ = resolve_with_lineages(topics, topic, moment, isolation, older)
        found.update({(topic, number): at[number] for number in numbers})
    return found


def cut_of(
    connection: ClusterConnection,
    ids: Mapping[str, str],
    lower: Mapping[Key, int] | None = None,
    upper: Mapping[Key, int] | None = None,
) -> dict[Key, int]:
    """Return a cut through all partitions of the topics (name → id), between these offsets."""
    topics = [
        CutTopic(topic=name, topic_id=topic_id, lower=_of(name, lower), upper=_of(name, upper))
        for name, topic_id in ids.items()
    ]
    found = connection.call(AtomicCut(topics=topics)).offsets
    return {(name, number): offset for name in ids for number, offset in found[name].items()}


def _of(name: str, offsets: Mapping[Key, int] | None) -> dict[int, int]:
    return {number: offset for (topic, number), offset in (offsets or {}).items() if topic == name}
