"""The records with a prefix, in memory: a look costs only what has changed since the last one."""

from __future__ import annotations

import threading
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

    def look(self) -> Sequence[StoreRecord]:
        """Return the records in the order of their keys, as they were a moment ago.

        With a metadata store on another host that costs no request.
        """
        with self._lock:
            changes = self._store.changes(self._revision, (self._prefix,), fresh=False)
            for key, record in changes.since(self._records).items():
                if record is None:
                    self._records.pop(key, None)
                else:
                    self._records[key] = record
            self._revision = changes.revision
            return [self._records[key] for key in sorted(self._records)]
