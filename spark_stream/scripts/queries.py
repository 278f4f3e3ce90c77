"""What the store knows of queries by their consumer names: where each first started, and is now.

**A start is pinned once.** Every later run under the name, with the same selection, gets that
start, until the name is forgotten. So two runs that begin at the same time agree on one start.

**Only the latest run reports progress.** It takes the name over, and later reports of an earlier
run are refused. Otherwise the earlier run is not hindered: it reads on by its own checkpoint.
"""

from __future__ import annotations

from typing import Final

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
    group_of,
    reader_of,
)
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.consistency.groups import Group
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import ConsumerFenced, UnknownConsumer
from spark_stream.scripts.readers import GROUP, forget_reader
from spark_stream.scripts.steps import DeleteRecord, Get, ListRecords, PutRecord, Script


class Named(Struct, frozen=True):
    """All that the store knows under consumers' names: by name, the positions or the query.

    ``owners``: the principals of the clients that have the names, where they are known. ``groups``:
    of those names that groups have. ``readers``: by kind (query, client or group) and name, the
    session of the present owner, if it has had one.
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
    """Return the query's record; pin the query's start if it has one and none is pinned yet.

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
    """Record how far a run has come. ``claim``: the run also takes the name over.

    Raises:
        ConsumerFenced: another run has the name.
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
    """Return what is recorded under all names; without ``fresh`` as it was a moment ago."""
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


def forget_name(name: str) -> Script[None]:
    """Remove everything the store has under a consumer's name.

    Raises:
        UnknownConsumer: the store has nothing under this name.
    """
    query = yield from _removed(QUERIES + name)
    client = yield from _removed(CONSUMERS + name)
    for kind in ("query", "client", GROUP):
        yield from forget_reader(kind, name)
    if not (query or client):
        raise UnknownConsumer(
            f"nothing is known of a consumer {name!r}", consumer=name, already_done=True
        )


def _removed(key: str) -> Script[bool]:
    """Remove the record; return whether there was one."""
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
