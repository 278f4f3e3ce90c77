"""In which leader epoch a broker leads its partitions: a record of the store for each broker.

Invariant: offsets that were given in one epoch are never given to other records in the same epoch
of the same partition. So a broker begins a new epoch unless it knows that its logs are as it left
them: it had ended cleanly, and every log still ends where it ended then. A partition has one broker
that leads it for good, so the epochs of two brokers have nothing to do with each other.

Order of writes: the record says that an epoch is in use before anything is appended in it, and that
it was left in order only after the logs are closed. A crash in between leaves it in use.
"""

from __future__ import annotations

from spark_stream.cluster.adoption import LEADERSHIP, ONLY_BROKER
from spark_stream.cluster.store import MetadataStore, Record
from spark_stream.consistency.ids import LeaderEpoch


class Leadership:
    """The leader epoch of one broker.

    ``holds_store``: the store is in the broker's own directory. So this broker used the store when
    a store had only one broker, and its epoch goes on from that one's record.
    """

    def __init__(self, store: MetadataStore, broker_id: str, *, holds_store: bool) -> None:
        self._store = store
        self._key = LEADERSHIP + broker_id
        self._takes_over = holds_store

    def begin(self, ends: str, last: LeaderEpoch | None) -> LeaderEpoch:
        """The epoch to lead in from now on.

        ``ends`` is any text that tells where all logs end, ``last`` the greatest epoch in them
        (None: they have no entry).
        """
        while True:
            own = self._store.get(self._key)
            earlier = self._store.get(ONLY_BROKER) if self._takes_over else None
            epoch = _next_epoch(own or earlier, ends, last)
            value = {"epoch": epoch, "ends": None}
            if self._store.put(self._key, value, 0 if own is None else own.version) is None:
                continue
            if earlier is not None:  # its epoch is in use now, so it cannot be begun again
                self._store.delete(earlier.key, earlier.version)
            return epoch

    def were_changed(self, ends: str) -> bool:
        """Whether the logs had been closed in order, and ended elsewhere than they do now."""
        record = self._store.get(self._key)
        return record is not None and record.value["ends"] not in (None, ends)

    def leave(self, epoch: LeaderEpoch, ends: str) -> None:
        """The logs are closed, and end where ``ends`` says. Does nothing if the epoch is over."""
        record = self._store.get(self._key)
        if record is not None and record.value == {"epoch": epoch, "ends": None}:
            self._store.put(self._key, {"epoch": epoch, "ends": ends}, record.version)


def _next_epoch(record: Record | None, ends: str, last: LeaderEpoch | None) -> LeaderEpoch:
    known = -1 if record is None else int(record.value["epoch"])
    in_order = record is not None and record.value["ends"] == ends and known >= (last or 0)
    if in_order or (record is None and last is None):
        return LeaderEpoch(max(known, 0))
    return LeaderEpoch(max(known, -1 if last is None else last) + 1)
