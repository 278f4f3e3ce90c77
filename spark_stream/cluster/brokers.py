"""The brokers of a store: where each is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_stream.cluster.store import MetadataStore

BROKERS: Final = "brokers/"


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as the others know it."""

    id: str
    address: str
    incarnation: str = ""
    release: str = ""


class Brokers:
    """The registry."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, broker_id: str) -> Broker | None:
        """The broker, or None."""
        record = self._store.get(BROKERS + broker_id)
        if record is None:
            return None
        value = record.value
        return Broker(broker_id, value["address"], value["incarnation"], value["release"])

    def register(self, broker: Broker) -> None:
        """Puts the broker's record in the place of an earlier one."""
        value = {
            "address": broker.address,
            "incarnation": broker.incarnation,
            "release": broker.release,
        }
        while True:
            record = self._store.get(BROKERS + broker.id)
            version = 0 if record is None else record.version
            if self._store.put(BROKERS + broker.id, value, version) is not None:
                return
