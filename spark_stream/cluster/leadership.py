"""In which leader epoch a broker leads its partitions: one record of the metadata store.

Invariant: offsets that were given in one epoch are never given to other records in the same epoch.
So a broker begins a new epoch unless it knows that its logs are as it left them: it had ended
cleanly, and every log still ends where it ended then.

Order of writes: the record says that an epoch is in use before anything is appended in it, and that
it was left in order only after the logs are closed. A crash in between leaves it in use.
"""

from __future__ import annotations

from typing import Final

from spark_stream.cluster.store import MetadataStore
from spark_stream.consistency.ids import LeaderEpoch

_KEY: Final = "leadership"


class Leadership:
    """The leader epoch of a store's one broker."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def begin(self, ends: str, last: LeaderEpoch | None) -> LeaderEpoch:
        """The epoch to lead in from now on.

        ``ends`` is any text that tells where all logs end, ``last`` the greatest epoch in them
        (None: they have no entry).
        """
        while True:
            record = self._store.get(_KEY)
            known = -1 if record is None else int(record.value["epoch"])
            in_order = record is not None and record.value["ends"] == ends and known >= (last or 0)
            if in_order or (record is None and last is None):
                epoch = max(known, 0)
            else:
                epoch = max(known, -1 if last is None else last) + 1
            value = {"epoch": epoch, "ends": None}
            version = 0 if record is None else record.version
            if self._store.put(_KEY, value, version) is not None:
                return LeaderEpoch(epoch)

    def leave(self, epoch: LeaderEpoch, ends: str) -> None:
        """The logs are closed, and end where ``ends`` says. Does nothing if the epoch is over."""
        record = self._store.get(_KEY)
        if record is not None and record.value == {"epoch": epoch, "ends": None}:
            self._store.put(_KEY, {"epoch": epoch, "ends": ends}, record.version)
