"""Named readers: their sessions, the starts and progress of queries, and cuts for read_atomic.

**Sessions.** Heartbeats renew them, an end is on record, and brokers end the others. The latest
instance of a name has the session. A heartbeat of an earlier one is refused, and a late heartbeat
after the end of the same instance changes nothing.

**A query's start is pinned once.** Every later run under the name, with the same selection, gets
that start, until the name is deleted. So two runs that begin at the same time agree on one start.

**Only the latest run reports progress.** It takes the name over, and later reports of an earlier
run are refused. Otherwise the earlier run is not hindered: it continues by its own checkpoint.

**A cut** is the end of a read_atomic query, in all partitions of all its topics. The bounds of all
partitions are read first, and only then the extents of transactions: a transaction with a record
below some bound was decided before that, so all its records are in the logs by then. That is true
of the logs of present leaders. So once the bounds are known, the leaders then on record return the
extents. A replaced leader that has not seen its replacement may lack a part of a transaction. Its
bounds are only too low, which does no harm. The view then has all partitions of these topics
in which the transactions wrote. If some were not in the first list, the search starts again with
the present list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from msgspec import Struct, structs

from spark_stream.cluster.consumers import (
    CONSUMERS,
    QUERIES,
    READERS,
    Query,
    ReaderSession,
    decode_positions,
    decode_query,
    decode_reader,
    encode_query,
    encode_reader,
    group_of,
    reader_key,
    reader_of,
)
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.cluster.topics import Topic, unknown_partition
from spark_stream.consistency.groups import Group
from spark_stream.consistency.isolation import Isolation, ReaderEnding
from spark_stream.consistency.partition.atomic_cuts import greatest_cut, next_cut
from spark_stream.consistency.transactions.transactions import Joined, PositionOf
from spark_stream.errors import ConsumerFenced, IsologError, UnknownConsumer
from spark_stream.scripts.steps import (
    DeleteRecord,
    FindTopic,
    Get,
    ListRecords,
    PutRecord,
    Refresh,
    Script,
    read_bounds,
    read_extents,
)
from spark_stream.wire.topic_messages import CutTopic

SESSIONS_S: Final = 1.0
"""The pause between two checks of all sessions at a broker."""
_GAP_S: Final = 3 * SESSIONS_S

GROUP: Final = "group"
"""The kind of a group's record: its members have their own sessions."""


class SessionWatch:
    """The time for which this broker has seen each session unchanged, by its monotonic clock.

    Time in which it could not read the sessions does not count: no heartbeat could be recorded
    then.
    """

    def __init__(self, session_ms: Callable[[StoreRecord], int]) -> None:
        self._session_ms = session_ms
        self._ages: dict[str, tuple[int, float]] = {}
        self._looked_at: float | None = None

    def find_expired(
        self, sessions: Sequence[StoreRecord], asked_s: float, answered_s: float
    ) -> list[StoreRecord]:
        """Return the expired sessions. The times: before and after the read of the records."""
        passed = 0.0 if self._looked_at is None else asked_s - self._looked_at
        passed = passed if passed <= _GAP_S else 0.0
        self._looked_at = answered_s
        ages = {}
        for each in sessions:
            version, age = self._ages.get(each.key, (0, 0.0))
            ages[each.key] = each.version, age + passed if version == each.version else 0.0
        self._ages = ages
        return [each for each in sessions if 1_000 * ages[each.key][1] > self._session_ms(each)]


def record_heartbeat(
    kind: str, name: str, session: ReaderSession, *, claim: bool = False
) -> Script[None]:
    """Renew the session of a name's reader, or record its end.

    ``claim``: the instance becomes the name's latest one.

    Raises:
        ConsumerFenced: A later instance has the name.
    """
    key = reader_key(kind, name)
    while True:
        record = yield from Get(key)
        before = None if record is None else decode_reader(record.value)
        if before is not None and not claim:
            if before.instance != session.instance:
                raise ConsumerFenced(
                    f"another reader has taken over the name {name!r}", consumer=name
                )
            if before.ending is ReaderEnding.CLEAN:
                return
        beats = 0 if before is None else before.heartbeats + 1
        after = structs.replace(session, heartbeats=beats)
        if before is not None:
            after = structs.replace(after, lost_member=before.lost_member, lost_ms=before.lost_ms)
        value = encode_reader(after)
        if (yield from PutRecord(key, value, 0 if record is None else record.version)):
            return


def record_lost_member(name: str, member_id: str, now_ms: int) -> Script[None]:
    """Record on a group's session that the session of this member expired."""
    key = reader_key(GROUP, name)
    while True:
        record = yield from Get(key)
        before = ReaderSession("", 0) if record is None else decode_reader(record.value)
        after = structs.replace(before, lost_member=member_id, lost_ms=now_ms)
        version = 0 if record is None else record.version
        if (yield from PutRecord(key, encode_reader(after), version)):
            return


def end_fenced(kind: str, name: str, instance: str) -> Script[None]:
    """Record that the reader of a name has stopped, under the instance that fenced it.

    Its isolation level stays. A name without a session gets none.
    """
    while (record := (yield from Get(reader_key(kind, name)))) is not None:
        session = decode_reader(record.value)
        ended = structs.replace(session, instance=instance, ending=ReaderEnding.CLEAN)
        if (yield from PutRecord(record.key, encode_reader(ended), record.version)):
            return


def delete_reader(kind: str, name: str) -> Script[None]:
    """Remove the session of a name's reader."""
    while (record := (yield from Get(reader_key(kind, name)))) is not None:
        yield from DeleteRecord(record.key, record.version)


def end_readers(watch: SessionWatch, now: Callable[[], float]) -> Script[list[str]]:
    """Record that readers with expired sessions are lost. Return the texts to log."""
    asked_s = now()
    records = yield from ListRecords(READERS, fresh=False)
    running = [
        each
        for each in records
        if reader_of(each.key)[0] != GROUP and decode_reader(each.value).ending is ReaderEnding.NONE
    ]
    ended = []
    for each in watch.find_expired(running, asked_s, now()):
        lost = structs.replace(decode_reader(each.value), ending=ReaderEnding.LOST)
        if (yield from PutRecord(each.key, encode_reader(lost), each.version)):
            kind, name = reader_of(each.key)
            ended.append(f"{kind} {name!r}")
    return ended


def session_ms_of(record: StoreRecord) -> int:
    """Return the duration of the session in a reader's record."""
    return decode_reader(record.value).session_ms


class Named(Struct, frozen=True):
    """All records under consumers' names: by name, the positions or the query.

    ``owners``: the principals of the clients that have the names, where they are known. ``groups``:
    by name. ``readers``: by kind (query, client or group) and name, the session of the present
    owner, if it has had one.
    """

    consumers: dict[str, list[PositionOf]]
    queries: dict[str, Query]
    owners: dict[str, str]
    groups: dict[str, Group]
    readers: dict[tuple[str, str], ReaderSession]

    def kind(self, name: str) -> str:
        """Return the kind of a consumer's name: a client or a group."""
        return GROUP if name in self.groups else "client"

    def session(self, kind: str, name: str) -> ReaderSession:
        """Return the session of a reader. It is empty if the client sends no heartbeats."""
        return self.readers.get((kind, name), _NO_SESSION)

    def isolation(self, name: str) -> Isolation | None:
        """Return the isolation level of a consumer's name, or None if it is unknown."""
        group = self.groups.get(name)
        if group is not None and group.members:
            return group.isolation
        return self.session(self.kind(name), name).isolation

    def idle_ms(self, name: str) -> int:
        """Return the idle time of a consumer's name. It is 0 if its member has left the group."""
        group = self.groups.get(name)
        session = self.session(self.kind(name), name)
        is_known = group is None or group.member(session.instance) is not None
        return session.idle_ms if is_known else 0


_NO_SESSION: Final = ReaderSession("", 0)


def pin_start(name: str, query: Query, now_ms: int) -> Script[Query | None]:
    """Return the query's record. Pin the query's start if it has one and none is pinned yet.

    The query's run takes the name over. A record of another selection stays as it is. Return None
    if there is no record, and the query has no start.
    """
    while True:
        record, before = yield from _read(name)
        if before is not None and before.selection != query.selection:
            return before
        after = (
            query
            if before is None
            else structs.replace(
                before,
                instance=query.instance,
                isolation=query.isolation,
                principal=query.principal,
            )
        )
        if after.start is None:
            if query.start is None:
                return before
            after = structs.replace(after, start=query.start, starting=query.starting)
        if after.started_ms is None:
            after = structs.replace(after, started_ms=now_ms)
        if (yield from _write(name, after, record)):
            return after


def record_progress(name: str, query: Query, now_ms: int, *, claim: bool) -> Script[None]:
    """Record the progress of a run. ``claim``: the run also takes the name over.

    Raises:
        ConsumerFenced: Another run has the name.
    """
    while True:
        record, before = yield from _read(name)
        if before is None:
            after = query
        elif before.instance != query.instance and not claim:
            raise ConsumerFenced(
                f"another run of a query has taken over the name {name!r}", consumer=name
            )
        else:
            after = structs.replace(
                before,
                instance=query.instance,
                selection=query.selection,
                isolation=query.isolation,
                positions=query.positions,
                principal=query.principal,
            )
        if (yield from _write(name, structs.replace(after, recorded_ms=now_ms), record)):
            return


def read_named(*, fresh: bool = True) -> Script[Named]:
    """Return the records under all names. Without ``fresh``: as they were a moment ago."""
    consumers = yield from ListRecords(CONSUMERS, fresh=fresh)
    queries = yield from ListRecords(QUERIES, fresh=fresh)
    sessions = yield from ListRecords(READERS, fresh=fresh)
    readers = {reader_of(each.key): decode_reader(each.value) for each in sessions}
    owners = {("client", each.key.removeprefix(CONSUMERS)): each for each in consumers}
    owners |= {("query", each.key.removeprefix(QUERIES)): each for each in queries}
    return Named(
        {
            each.key.removeprefix(CONSUMERS): decode_positions(each.value["positions"])
            for each in consumers
        },
        {each.key.removeprefix(QUERIES): decode_query(each.value) for each in queries},
        {each.key.removeprefix(CONSUMERS): each.value.get("principal", "") for each in consumers},
        {
            each.key.removeprefix(CONSUMERS): group
            for each in consumers
            if (group := group_of(each.value)) is not None
        },
        {
            key: session
            for key, session in readers.items()
            if key[0] == GROUP
            or (key in owners and owners[key].value.get("instance") == session.instance)
        },
    )


def delete_name(name: str) -> Script[None]:
    """Remove all records under a consumer's name.

    Raises:
        UnknownConsumer: The store has no record under this name.
    """
    query = yield from _removed(QUERIES + name)
    client = yield from _removed(CONSUMERS + name)
    for kind in ("query", "client", GROUP):
        yield from delete_reader(kind, name)
    if not (query or client):
        raise UnknownConsumer(f"there is no consumer {name!r}", consumer=name, already_done=True)


def _removed(key: str) -> Script[bool]:
    """Remove the record. Return whether there was one."""
    there = False
    while True:
        record = yield from Get(key)
        if record is None:
            return there
        there = True
        if (yield from DeleteRecord(key, record.version)):
            return True


def _read(name: str) -> Script[tuple[StoreRecord | None, Query | None]]:
    record = yield from Get(QUERIES + name)
    return record, None if record is None else decode_query(record.value)


def _write(name: str, query: Query, over: StoreRecord | None) -> Script[bool]:
    version = 0 if over is None else over.version
    put = PutRecord(QUERIES + name, encode_query(query), version)
    return (yield from put) is not None


T = TypeVar("T")


def find_cut(topics: Sequence[CutTopic]) -> Script[dict[str, dict[int, int]]]:
    """Find the cut, by topic and partition, as in ``consistency.partition.atomic_cuts``.

    Raises:
        UnknownTopic, UnknownPartition: A topic or a partition does not exist. The error names it.
        LeaderUnavailable: A partition's leader was not reached.
    """
    where = yield from _partitions(topics)
    while True:
        seen = [_answer(each) for each in (yield from read_bounds(where))]
        spans = [_answer(each) for each in (yield from read_extents(where))]  # refreshes the view
        before, where = where, (yield from _partitions(topics))
        if where == before:
            break
    asked = {each.topic: each for each in topics}
    bounds = [int(each.last_stable_offset) for each in seen]
    upper = [
        asked[at.topic].upper.get(at.partition, bound)
        for at, bound in zip(where, bounds, strict=True)
    ]
    if any(each.lower for each in topics):
        lower = [
            asked[at.topic].lower.get(at.partition, int(bound.log_start_offset))
            for at, bound in zip(where, seen, strict=True)
        ]
        found = next_cut(lower, upper, bounds, spans)
    else:
        found = greatest_cut([min(pair) for pair in zip(upper, bounds, strict=True)], spans)
    offsets: dict[str, dict[int, int]] = {each.topic: {} for each in topics}
    for at, offset in zip(where, found, strict=True):
        offsets[at.topic][at.partition] = int(offset)
    return offsets


def _partitions(topics: Sequence[CutTopic]) -> Script[list[Joined]]:
    """Return all partitions of the topics in this broker's view."""
    found = []
    for each in topics:
        topic = yield from FindTopic(each.topic, each.topic_id)
        if _lacking(topic, each) is not None:
            yield Refresh()  # it may have been added a moment ago, by another broker
            topic = yield from FindTopic(each.topic, each.topic_id)
            if (number := _lacking(topic, each)) is not None:
                raise unknown_partition(topic, number)
        found += [Joined(topic.name, topic.id, number) for number in range(topic.partitions)]
    return found


def _lacking(topic: Topic, asked: CutTopic) -> int | None:
    """Return a requested partition that the topic does not have, or None."""
    named = (*asked.lower, *asked.upper)
    return next((each for each in named if not 0 <= each < topic.partitions), None)


def _answer(answer: T | IsologError) -> T:
    if isinstance(answer, IsologError):
        raise answer
    return answer
