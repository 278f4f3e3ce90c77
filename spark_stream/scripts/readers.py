"""Sessions of named readers: heartbeats renew them, an end is on record, brokers end the others.

The latest instance of a name has the session. A heartbeat of an earlier one is refused, and a late
heartbeat after the end of the same instance changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from spark_stream.cluster.consumers import (
    READERS,
    ReaderSession,
    decode_reader,
    encode_reader,
    reader_key,
    reader_of,
)
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.consistency.isolation import ReaderEnding
from spark_stream.errors import ConsumerFenced
from spark_stream.scripts.steps import DeleteRecord, Get, ListRecords, PutRecord, Script

SESSIONS_S: Final = 1.0
"""How long a broker pauses between two looks at all sessions."""
_GAP_S: Final = 3 * SESSIONS_S

GROUP: Final = "group"
"""The kind of a group's record: its members have sessions of their own."""


class SessionWatch:
    """For how long this broker has seen each session unchanged, by its own monotonic clock.

    Time in which it could not look does not count: neither could heartbeats be recorded then.
    """

    def __init__(self, session_ms: Callable[[StoreRecord], int]) -> None:
        self._session_ms = session_ms
        self._ages: dict[str, tuple[int, float]] = {}
        self._looked_at: float | None = None

    def find_over(
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


def note_heartbeat(
    kind: str, name: str, session: ReaderSession, *, claim: bool = False
) -> Script[None]:
    """Renew the session of a name's reader, or record its end.

    ``claim``: the instance becomes the name's latest one.

    Raises:
        ConsumerFenced: a later instance has the name.
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


def note_lost_member(name: str, member_id: str, now_ms: int) -> Script[None]:
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


def forget_reader(kind: str, name: str) -> Script[None]:
    """Remove the session of a name's reader."""
    while (record := (yield from Get(reader_key(kind, name)))) is not None:
        yield from DeleteRecord(record.key, record.version)


def end_readers(watch: SessionWatch, now: Callable[[], float]) -> Script[list[str]]:
    """Record that readers are lost whose sessions expired; return the texts to log."""
    asked_s = now()
    records = yield from ListRecords(READERS, fresh=False)
    running = [
        each
        for each in records
        if reader_of(each.key)[0] != GROUP and decode_reader(each.value).ending is ReaderEnding.NONE
    ]
    ended = []
    for each in watch.find_over(running, asked_s, now()):
        lost = structs.replace(decode_reader(each.value), ending=ReaderEnding.LOST)
        if (yield from PutRecord(each.key, encode_reader(lost), each.version)):
            kind, name = reader_of(each.key)
            ended.append(f"{kind} {name!r}")
    return ended


def session_ms_of(record: StoreRecord) -> int:
    """Return the duration of the session in a reader's record."""
    return decode_reader(record.value).session_ms
