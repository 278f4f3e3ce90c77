"""The seam to the metadata store. Every change is one compare-and-set on one record's version.

A record is a key, a JSON object and a version. The store counts its changes: that is its revision.
A record's version is the revision of its last change, so it is positive and never repeats. Version
0 means "there is no such record".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct

from spark_stream.counting import Histogram, NamedCounts
from spark_stream.errors import IsologError, MetadataLost, MetadataRefused, StorageFailure

FORM: Final = 1
"""The form of all records, and of the tables or keys that hold them.

It rises with each release whose records the release before it would misread.
"""


class StoreRecord(Struct, frozen=True):
    """A record as it was when it was read."""

    key: str
    value: Mapping[str, Any]
    version: int


class Put(NamedTuple):
    """A compare-and-set: writes if the record's version is ``expected`` (0: there is none)."""

    key: str
    value: Mapping[str, Any]
    expected: int


class Delete(NamedTuple):
    """Deletes the record if its version is ``expected``."""

    key: str
    expected: int


class Changes(Struct, frozen=True):
    """The changes of a store's records since an earlier revision.

    ``changed`` has the last state of each key that changed, or None if the record was deleted.
    ``complete``: the store does not have all deletions since then, so ``changed`` has all records,
    and a key that is not in it has no record.
    """

    revision: int
    changed: Mapping[str, StoreRecord | None]
    complete: bool

    def since(self, known: Iterable[str]) -> dict[str, StoreRecord | None]:
        """Return the changes for a caller that has records with these keys.

        Keys that a complete answer lacks were deleted.
        """
        gone = set(known) - self.changed.keys() if self.complete else ()
        return {**dict.fromkeys(gone), **self.changed}


class MetadataStore(Protocol):
    """A store of records, for any thread. All calls may raise ``StorageFailure``.

    A key is text. Keys are in the order of their code points, which is that of their UTF-8 bytes.
    """

    def get(self, key: str, *, fresh: bool = True) -> StoreRecord | None:
        """Return the record, or None. Without ``fresh`` as it was a moment ago, which is cheap."""

    def list(self, prefix: str) -> Sequence[StoreRecord]:
        """Return all records whose keys start with ``prefix``, in the order of their keys."""

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        """Write if the record's version is ``expected`` (0: it must not exist).

        Return the new version. None, with nothing changed, if the version was another.
        """

    def delete(self, key: str, expected: int) -> bool:
        """Delete if the record's version is ``expected``. False, with nothing changed, if not."""

    def put_many(self, puts: Sequence[Put]) -> Sequence[int | None]:
        """Put many records together. Each is a separate compare-and-set with the result of ``put``.

        They cost about as much as one, because they are made durable together. If the call fails,
        or its process dies, some of them may be done. ``ValueError`` if two have the same key.
        """

    def delete_many(self, deletes: Sequence[Delete]) -> Sequence[bool]:
        """Delete many records in one go, as :meth:`put_many`."""

    def changes(
        self,
        since: int,
        prefixes: Sequence[str] = ("",),
        *,
        fresh: bool = True,
        known: bool = False,
    ) -> Changes:
        """Return the changes after the revision ``since``, of keys with one of these prefixes.

        Since 0: every record. A caller that always passes the revision of its last result misses no
        lasting change. With ``fresh`` the answer has everything that was changed before
        the call: on many hosts that costs a request. Without it the answer may be a little behind,
        and is cheap. With ``known`` it is no older than what this store has written or returned.
        """

    def close(self) -> None:
        """Close the store."""


class DurableStore(MetadataStore, Protocol):
    """A store that outlives its processes, with the operations of operators."""

    @property
    def lost(self) -> MetadataLost | None:
        """The reason why changes are refused (the store was replaced, or lost changes), or None."""

    @property
    def mark(self) -> str | None:
        """The newest state that was read, as a text for the next opening. Files have none."""

    def await_change(self, timeout_s: float) -> None:
        """Wait until records may have changed since the last wait, or for this time.

        It may return earlier, without a change. Only one thread may wait.
        """

    def stop_waiting(self) -> None:
        """End the present wait, and all later ones."""

    def replace_identity(self) -> None:
        """Mark the records as others: all of them were replaced while no broker ran."""

    def write_back(self) -> None:
        """Write the open copy to its path, from which a file was deleted.

        Raises:
            InvalidRequest: the file was not deleted, or there is another file.
        """


def check_distinct(changes: Sequence[Put] | Sequence[Delete]) -> None:
    """Raise ValueError if two changes that go together are of the same key."""
    if len({each.key for each in changes}) < len(changes):
        raise ValueError("two changes of one key in one call")


_GREATEST: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)  # code points that no text may hold


def end_of(prefix: str) -> str | None:
    """Return the least text above all that start with ``prefix``, or None if there is no such text.

    So a key starts with the prefix if ``prefix <= key < end_of(prefix)``.
    """
    kept = prefix.rstrip(chr(_GREATEST))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


class TimedStore:
    """A metadata store that counts how long its calls take, and how many fail.

    Reads that may be a little old send no request, and do not count.
    """

    def __init__(
        self, store: DurableStore, reads: Histogram, writes: Histogram, errors: NamedCounts
    ) -> None:
        """``errors``: the failures, under the names ``read`` and ``write``."""
        self._store = store
        self._reads = reads
        self._writes = writes
        self._errors = errors
        self.write_failure: StorageFailure | None = None
        """The error of the last change, if the store did not take it. None otherwise."""
        self.await_change = store.await_change
        self.stop_waiting = store.stop_waiting
        self.write_back = store.write_back
        self.replace_identity = store.replace_identity
        self.close = store.close

    @property
    def mark(self) -> str | None:
        return self._store.mark

    @property
    def lost(self) -> MetadataLost | None:
        return self._store.lost

    def get(self, key: str, *, fresh: bool = True) -> StoreRecord | None:
        if not fresh:
            return self._store.get(key, fresh=False)
        with self._reading():
            return self._store.get(key)

    def list(self, prefix: str) -> Sequence[StoreRecord]:
        with self._reading():
            return self._store.list(prefix)

    def changes(
        self,
        since: int,
        prefixes: Sequence[str] = ("",),
        *,
        fresh: bool = True,
        known: bool = False,
    ) -> Changes:
        if not fresh:
            return self._store.changes(since, prefixes, fresh=False, known=known)
        with self._reading():
            return self._store.changes(since, prefixes, known=known)

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        with self._writing():
            return self._store.put(key, value, expected)

    def delete(self, key: str, expected: int) -> bool:
        with self._writing():
            return self._store.delete(key, expected)

    def put_many(self, puts: Sequence[Put]) -> Sequence[int | None]:
        with self._writing():
            return self._store.put_many(puts)

    def delete_many(self, deletes: Sequence[Delete]) -> Sequence[bool]:
        with self._writing():
            return self._store.delete_many(deletes)

    def _reading(self) -> _TimedCall:
        return _TimedCall("read", self._reads, self._errors)

    def _writing(self) -> _TimedWrite:
        return _TimedWrite(self)


class _TimedCall:
    """A call of a store: its duration, and its failure if it has one."""

    def __init__(self, kind: str, histogram: Histogram, errors: NamedCounts) -> None:
        self._kind = kind
        self._histogram = histogram
        self._errors = errors

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, IsologError):
            self._errors.add(self._kind)
        self._histogram.observe(perf_counter() - self._began)


class _TimedWrite(_TimedCall):
    """A change of a store, which keeps the error if the store takes no changes."""

    def __init__(self, store: TimedStore) -> None:
        super().__init__("write", store._writes, store._errors)
        self._store = store

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if error is None:
            self._store.write_failure = None
        elif isinstance(error, StorageFailure) and not isinstance(error, MetadataRefused):
            self._store.write_failure = error  # a refusal is the fault of the change
