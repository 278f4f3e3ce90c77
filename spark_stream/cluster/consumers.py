"""Named consumers, groups, and the queries that have a name, as records of the metadata store.

A consumer's record has the positions from which it continues, and the owner of its name: an
instance, or a group with its members. ``scripts.transactions.positions`` and ``scripts.groups``
change them. Each member of a group has a session record as well, which changes with its heartbeats.

A named reader has a session record beside the record of its name, with its heartbeats and
its end. A group has one for its members' last end. Brokers of the previous release do not
read these records.

A query's record has the query's first start, and the progress of its present run.
``scripts.readers`` changes them. Only the query's source can interpret the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from spark_stream.consistency.groups import Group
from spark_stream.consistency.isolation import Isolation, ReaderEnding
from spark_stream.consistency.transactions.transactions import PositionOf, ReadPosition
from spark_stream.structs import Positional, learn_types

CONSUMERS: Final = "consumers/"
QUERIES: Final = "queries/"
SESSIONS: Final = "sessions/"
READERS: Final = "readers/"


def encode_positions(positions: Iterable[PositionOf]) -> list[dict[str, Any]]:
    """Encode positions for the store."""
    return [msgspec.to_builtins(each) for each in positions]


def decode_positions(values: Iterable[Mapping[str, Any]]) -> list[PositionOf]:
    """Decode the positions in a record's value."""
    return msgspec.convert(list(values), list[PositionOf])


def group_of(value: Mapping[str, Any]) -> Group | None:
    """Return the group in the value of a consumer's record, or None if it has no group."""
    return msgspec.convert(value["group"], Group) if "group" in value else None


def with_group(value: Mapping[str, Any], group: Group) -> dict[str, Any]:
    """Return the value with this group, which owns the name from then on."""
    kept = {key: each for key, each in value.items() if key not in ("instance", "principal")}
    return {**kept, "group": msgspec.to_builtins(group)}


class MemberSession(Positional):
    """A member's session, which lasts for this time after each change of the record."""

    session_ms: int
    heartbeats: int = 0


def session_of(group: str, member: str) -> str:
    """Return the key of a member's session."""
    return f"{SESSIONS}{group}/{member}"


def member_of(key: str) -> tuple[str, str]:
    """Return the group and the member of a session's key."""
    group, _, member = key.removeprefix(SESSIONS).rpartition("/")
    return group, member


def encode_session(session: MemberSession) -> dict[str, Any]:
    """Encode the record's value."""
    value: dict[str, Any] = msgspec.to_builtins(session)
    return value


def decode_session(value: Mapping[str, Any]) -> MemberSession:
    """Decode the session in a record's value."""
    return msgspec.convert(value, MemberSession)


class ReaderSession(Positional):
    """The session of a name's latest reader, which lasts for this time after each heartbeat.

    ``instance``: the run of a query, a consumer, or a member of a group. ``idle_ms``: the time
    since its program last requested records, at its last heartbeat. The record of a group has no
    heartbeats: its members' sessions have them. ``lost_member``: the last member of a group whose
    session expired. ``lost_ms``: the time of its removal, in ms since the epoch.
    """

    instance: str
    session_ms: int
    isolation: Isolation | None = None
    idle_ms: int = 0
    ending: ReaderEnding = ReaderEnding.NONE
    heartbeats: int = 0
    lost_member: str = ""
    lost_ms: int | None = None


def reader_key(kind: str, name: str) -> str:
    """Return the key of the session of a name's reader: a query, a client or a group."""
    return f"{READERS}{kind}/{name}"


def reader_of(key: str) -> tuple[str, str]:
    """Return the kind and the name of a reader's key."""
    kind, _, name = key.removeprefix(READERS).partition("/")
    return kind, name


def encode_reader(session: ReaderSession) -> dict[str, Any]:
    """Encode the record's value."""
    value: dict[str, Any] = msgspec.to_builtins(session)
    return value


def decode_reader(value: Mapping[str, Any]) -> ReaderSession:
    """Decode the session in a record's value."""
    return msgspec.convert(value, ReaderSession)


class Query(Positional):
    """A named query. ``instance`` is its latest run, the only one that may record progress.

    ``selection``: its topics. ``starting``: the option for its start. ``start``: the resolved
    start, or None if it is not pinned. ``principal``: the principal that runs it, or empty at a
    broker without authentication. Times are in ms since the epoch.
    """

    instance: str
    selection: str
    isolation: Isolation
    starting: str = ""
    start: str | None = None
    started_ms: int | None = None
    recorded_ms: int | None = None
    positions: tuple[ReadPosition, ...] = ()
    principal: str = ""


def encode_query(query: Query) -> dict[str, Any]:
    """Encode the record's value."""
    value: dict[str, Any] = msgspec.to_builtins(query)
    return value


def decode_query(value: Mapping[str, Any]) -> Query:
    """Decode the query in a record's value."""
    return msgspec.convert(value, Query)


learn_types(list[PositionOf])
learn_types(Query)
learn_types(MemberSession)
learn_types(ReaderSession)
