"""Runs of queries whose driver has given a batch up, as records of the metadata store."""

from __future__ import annotations

from typing import Final

from spark_stream.cluster.store import MetadataStore

STOPPED: Final = "stopped/"
STOPPED_KEPT_MS: Final = 24 * 3_600_000


class StoppedRuns:
    """The latest plan that each driver has given up, for as long as a task of it may still come."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def planned(self, run: str) -> int:
        """The time up to which the run's plans are given up; -1: none is."""
        record = self._store.get(STOPPED + run)
        return -1 if record is None else int(record.value["planned"])

    def stop(self, run: str, planned: int, now_ms: int) -> None:
        """Gives up what the run planned until then. Forgets runs that nobody asks for any more."""
        for old in self._store.list(STOPPED):
            if now_ms - int(old.value["at_ms"]) > STOPPED_KEPT_MS:
                self._store.delete(old.key, old.version)
        while planned > self.planned(run):
            record = self._store.get(STOPPED + run)
            version = 0 if record is None else record.version
            self._store.put(STOPPED + run, {"planned": planned, "at_ms": now_ms}, version)
