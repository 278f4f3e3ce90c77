"""The registry of brokers: who belongs to the cluster, and where each listens.

A record says nothing of whether its broker is alive: that is what leases are for (``leases``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_stream.cluster.store import MetadataStore

BROKERS: Final = "brokers/"


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker as the others know it.

    ``id`` is its directory's and stays; ``incarnation`` is made anew with every start.
    """

    id: str
    address: str
    incarnation: str
    release: str


class Brokers:
    """The brokers of a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def all(self) -> list[RegisteredBroker]:
        """Every broker, by id."""
        found = self._store.list(BROKERS)
        return [decode(each.key.removeprefix(BROKERS), each.value) for each in found]

    def get(self, broker_id: str) -> RegisteredBroker | None:
        """The broker, or None."""
        record = self._store.get(BROKERS + broker_id)
        return None if record is None else decode(broker_id, record.value)

    def register(self, broker: RegisteredBroker) -> None:
        """Puts the broker in the place of its earlier incarnation."""
        key = BROKERS + broker.id
        while True:
            record = self._store.get(key)
            version = 0 if record is None else record.version
            if self._store.put(key, encode(broker), version) is not None:
                return

    def leave(self, broker_id: str, incarnation: str) -> None:
        """Removes the broker, unless a later incarnation has registered."""
        while True:
            record = self._store.get(BROKERS + broker_id)
            if record is None or decode(broker_id, record.value).incarnation != incarnation:
                return
            if self._store.delete(record.key, record.version):
                return


def encode(broker: RegisteredBroker) -> dict[str, Any]:
    """What the store holds of a broker."""
    return {
        "address": broker.address,
        "incarnation": broker.incarnation,
        "release": broker.release,
    }


def decode(broker_id: str, value: Mapping[str, Any]) -> RegisteredBroker:
    """The broker that a record's value holds."""
    return RegisteredBroker(
        id=broker_id,
        address=str(value["address"]),
        incarnation=str(value["incarnation"]),
        release=str(value["release"]),
    )
