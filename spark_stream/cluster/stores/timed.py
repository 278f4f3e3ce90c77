"""A metadata store that counts how long its calls take, and how many fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

from spark_stream.cluster.stores.store import (
    Changes,
    Delete,
    DurableStore,
    Put,
    StoreRecord,
)
from spark_stream.counting import Histogram, NamedCounts
from spark_stream.errors import IsologError, MetadataLost, MetadataRefused, StorageFailure


class TimedStore:
    """Calls ``store``, and counts. Reads that may be a little old ask nobody, and do not count."""

    def __init__(
        self, store: DurableStore, reads: Histogram, writes: Histogram, errors: NamedCounts
    ) -> None:
        """``errors``: by ``read`` and ``write``."""
        self._store = store
        self._reads = reads
        self._writes = writes
        self._errors = errors
        self.write_failure: StorageFailure | None = None
        """The error of the last change, if the store did not take it; None otherwise."""
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
        with self._reading(counts=fresh):
            return self._store.get(key, fresh=fresh)

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
        with self._reading(counts=fresh):
            return self._store.changes(since, prefixes, fresh=fresh, known=known)

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

    def _reading(self, *, counts: bool = True) -> AbstractContextManager[None]:
        return self._timed("read", self._reads) if counts else nullcontext()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._timed("write", self._writes):
                yield
        except MetadataRefused:
            raise  # the fault of this change, not of the store
        except StorageFailure as error:
            self.write_failure = error
            raise
        self.write_failure = None

    @contextmanager
    def _timed(self, kind: str, histogram: Histogram) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
        except IsologError:
            self._errors.add(kind)
            raise
        finally:
            histogram.observe(perf_counter() - began)
