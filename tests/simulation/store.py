"""A metadata store in memory. It does what every store does, without a file and without waiting.

Its records are a separate object: brokers that open stores on the same records share them, and the
records outlive a broker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from threading import Lock
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from isolog.errors import MetadataUnavailable, StorageFailure
from spark_stream.cluster.stores.leases import Renewal
from spark_stream.cluster.stores.store import Changes, Delete, Put, StoreRecord, check_distinct
from tests.simulation.leases import MemoryBoard, MemoryPlace

_DONE: Final = 0.3  # how often a change is done of which only the answer is lost
_DONE_LATE: Final = 0.2
_BEHIND: Final = 0.2  # the share of looks at which a watch lacks some changes

Done = TypeVar("Done")


class MemoryRecords(Struct):
    """The records of the store: key → (value as JSON, version), and the last version.

    ``deleted``: key → the revision of the last deletion of its record. Deletions up to the
    revision ``forgotten`` are not kept: :meth:`forget_deleted` drops them.
    ``changes`` gets every change, for the observer: key, value before, value after (None: no such
    record).
    """

    kept: dict[str, tuple[str, int]] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    last_version: int = 0
    forgotten: int = 0
    changes: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    past: list[tuple[str, str | None]] = field(default_factory=list)
    """The change of each revision from 1 on: a put (key, value) or a deletion (key, None)."""
    changing: Lock = field(default_factory=Lock)

    def forget_deleted(self) -> None:
        """Drop all deletions, as a store does in time: later requests of earlier changes read all
        records."""
        with self.changing:
            self.deleted.clear()
            self.forgotten = self.last_version


class MemoryStore:
    """One broker's way to the records."""

    def __init__(self, records: MemoryRecords) -> None:
        self._records = records
        self._closed = False
        self._sees: int | None = None

    def get(self, key: str, *, fresh: bool = True) -> StoreRecord | None:
        self._check_open()
        kept = self._records.kept.get(key)
        return None if kept is None else _record(key, kept)

    def list(self, prefix: str) -> Sequence[StoreRecord]:
        self._check_open()
        with self._records.changing:
            found = [each for each in self._records.kept.items() if each[0].startswith(prefix)]
        return [_record(key, kept) for key, kept in sorted(found)]

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        text = json.dumps(value, separators=(",", ":"))
        self._check_open()
        with self._records.changing:
            if self._version(key) != expected:
                return None
            self._records.last_version += 1
            self._note(key, text)
            self._records.deleted.pop(key, None)
            self._records.kept[key] = (text, self._records.last_version)
            return self._records.last_version

    def delete(self, key: str, expected: int) -> bool:
        self._check_open()
        with self._records.changing:
            if expected == 0 or self._version(key) != expected:
                return False
            self._records.last_version += 1
            self._note(key, None)
            self._records.deleted[key] = self._records.last_version
            del self._records.kept[key]
            return True

    def put_many(self, puts: Sequence[Put]) -> Sequence[int | None]:
        """One put after the other: a broker that may end within a put may also end between two of
        them."""
        check_distinct(puts)
        json.dumps([each.value for each in puts])  # if one of them is no JSON, no change is made
        return [self.put(*each) for each in puts]

    def delete_many(self, deletes: Sequence[Delete]) -> Sequence[bool]:
        check_distinct(deletes)
        return [self.delete(*each) for each in deletes]

    def changes(
        self,
        since: int,
        prefixes: Sequence[str] = ("",),
        *,
        fresh: bool = True,
        known: bool = False,
    ) -> Changes:
        self._check_open()
        meant = tuple(prefixes)
        if self._sees is not None:
            return self._changes_then(since, max(since, self._sees), meant)
        with self._records.changing:
            complete = since == 0 or not (
                self._records.forgotten <= since <= self._records.last_version
            )
            found = {
                key: _record(key, kept)
                for key, kept in self._records.kept.items()
                if key.startswith(meant) and (complete or kept[1] > since)
            }
            gone = {
                key: None
                for key, revision in self._records.deleted.items()
                if key.startswith(meant) and revision > since and not complete
            }
            return Changes(self._records.last_version, {**found, **gone}, complete)

    @contextmanager
    def as_of(self, revision: int | None) -> Iterator[None]:
        """Make :meth:`changes` return an earlier revision within the block, or None: the newest."""
        self._sees = revision
        try:
            yield
        finally:
            self._sees = None

    def _changes_then(self, since: int, upto: int, meant: tuple[str, ...]) -> Changes:
        """As :meth:`changes` would have answered at this revision."""
        with self._records.changing:
            changed: dict[str, StoreRecord | None] = {}
            for revision, (key, text) in enumerate(self._records.past[:upto], 1):
                if revision > since and key.startswith(meant):
                    changed[key] = None if text is None else _record(key, (text, revision))
            if since == 0:
                changed = {key: each for key, each in changed.items() if each is not None}
            return Changes(upto, changed, since == 0)

    def close(self) -> None:
        self._closed = True

    def _note(self, key: str, after: str | None) -> None:
        before = self._records.kept.get(key)
        self._records.changes.append((key, None if before is None else before[0], after))
        self._records.past.append((key, after))

    def _version(self, key: str) -> int:
        return self._records.kept[key][1] if key in self._records.kept else 0

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFailure("the metadata store in memory: it is closed")


class MortalStore(MemoryStore):
    """A broker's connection to the store. Its process may end in a call, and it may be cut off."""

    def __init__(self, records: MemoryRecords, before: Callable[[], None], outage: Outage) -> None:
        super().__init__(records)
        self._before = before
        self._outage = outage
        self._seen = 0  # the revision that the watch, or a barrier, has come to
        self._known = 0  # the greatest version that was written or returned

    def get(self, key: str, *, fresh: bool = True) -> StoreRecord | None:
        if not fresh:
            self._watch()
            return self._then(key, self._seen)
        self._outage.check()
        found = super().get(key)
        self._know(0 if found is None else found.version)
        return found

    def _watch(self) -> None:
        """Receive some more changes from the watch."""
        self._seen = self._outage.seen_upto(self._seen, self._records.last_version)

    def _know(self, version: int) -> None:
        self._known = max(self._known, version)

    def _then(self, key: str, upto: int) -> StoreRecord | None:
        """The record as it was at a revision."""
        with self._records.changing:
            for revision in range(upto, 0, -1):
                changed, text = self._records.past[revision - 1]
                if changed == key:
                    return None if text is None else _record(key, (text, revision))
        return None

    def list(self, prefix: str) -> Sequence[StoreRecord]:
        self._outage.check()
        found = super().list(prefix)
        self._know(max((each.version for each in found), default=0))
        return found

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        self._before()
        made = self._outage.change(lambda: super(MortalStore, self).put(key, value, expected))
        self._know(made or 0)
        return made

    def delete(self, key: str, expected: int) -> bool:
        self._before()
        return self._outage.change(lambda: super(MortalStore, self).delete(key, expected))

    def changes(
        self,
        since: int,
        prefixes: Sequence[str] = ("",),
        *,
        fresh: bool = True,
        known: bool = False,
    ) -> Changes:
        if not fresh and since:
            self._watch()
            if known and self._known > self._seen:
                self._outage.check()  # the watch does not come so far
                self._seen = self._known
            return self._changes_then(since, max(since, self._seen), tuple(prefixes))
        self._outage.check()
        found = super().changes(since, prefixes)
        self._seen = max(self._seen, found.revision) if self._sees is None else self._seen
        return found


class Outage:
    """The connection of one broker to the store, and the outcome of its changes without one.

    A change may be committed, and only its answer be lost. It may also be committed late, but not
    after another change by the broker: a store fences changes with an unknown outcome.
    """

    def __init__(self, chance: Random) -> None:
        self.is_away = False
        self.ends = False
        """Whether changes that were late are being done."""
        self._chance = chance
        self._late: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Cut the broker off."""
        self.is_away = True

    def end(self, look: Callable[[], None]) -> None:
        """Reconnect the broker to the store. Late changes are committed before that, or never.

        ``look`` reads the broker's changes.
        """
        late, self._late = self._late, []
        self.ends = True
        for each in late:
            each()
        look()
        self.ends = self.is_away = False

    def seen_upto(self, seen: int, last: int) -> int:
        """Return the revision up to which a watch has reported changes, at least ``seen``."""
        if self.is_away:
            return seen
        return self._chance.randint(seen, last) if self._chance.random() < _BEHIND else last

    def check(self) -> None:
        """Raise MetadataUnavailable while the broker is cut off."""
        if self.is_away:
            raise MetadataUnavailable("the metadata store in memory: it does not answer")

    def change(self, change: Callable[[], Done]) -> Done:
        """Return the result of the change, or raise MetadataUnavailable, with or without the
        change."""
        if not self.is_away:
            return change()
        self._late.clear()
        fate = self._chance.random()
        if fate < _DONE:
            change()
        elif fate < _DONE + _DONE_LATE:
            self._late.append(change)
        raise MetadataUnavailable("the metadata store in memory: it has not answered")


class OutageBoard:
    """A board of leases as a broker sees it that may be cut off."""

    def __init__(self, board: MemoryBoard, outage: Outage) -> None:
        self._board = board
        self._outage = outage

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> OutagePlace:
        self._outage.check()
        return OutagePlace(self._board.take_place(broker_id, incarnation, duration_s), self._outage)

    def read(self, broker_id: str) -> Renewal | None:
        self._outage.check()
        return self._board.read(broker_id)


class OutagePlace:
    """A place on such a board."""

    def __init__(self, place: MemoryPlace, outage: Outage) -> None:
        self._place = place
        self._outage = outage

    def write(self, count: int) -> bool:
        return self._outage.change(lambda: self._place.write(count))

    def clear(self) -> None:
        self._outage.change(self._place.clear)

    def close(self) -> None:
        pass


def _record(key: str, kept: tuple[str, int]) -> StoreRecord:
    text, version = kept
    return StoreRecord(key, json.loads(text), version)
