"""The records with a prefix, in memory: a look costs only what has changed since the last one."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Sequence

from spark_stream.cluster.stores.store import MetadataStore, StoreRecord


class FollowedRecords:
    """All records whose keys start with a prefix. Any thread may look."""

    def __init__(self, store: MetadataStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._lock = threading.Lock()
        self._revision = 0
        self._records: dict[str, StoreRecord] = {}
        self._keys: list[str] = []  # in their order

    def look(self, prefix: str = "") -> Sequence[StoreRecord]:
        """Return those with this prefix in the order of their keys, as they were a moment ago.

        With a metadata store on another host that costs no request.
        """
        with self._lock:
            changes = self._store.changes(self._revision, (self._prefix,), fresh=False)
            for key, record in changes.since(self._records).items():
                if record is None:
                    if self._records.pop(key, None) is not None:
                        del self._keys[bisect_left(self._keys, key)]
                else:
                    if key not in self._records:
                        insort(self._keys, key)
                    self._records[key] = record
            self._revision = changes.revision
            found = []
            for at in range(bisect_left(self._keys, prefix), len(self._keys)):
                if not self._keys[at].startswith(prefix):
                    break
                found.append(self._records[self._keys[at]])
            return found
