"""The registry of brokers: who belongs to the cluster, and where each listens.

A record says nothing of whether its broker is alive: that is what leases are for (``leases``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.structs import learn_types

BROKERS: Final = "brokers/"
NO_GENERATION: Final = Generation("")
"""The generation of a broker that has not yet decided in which one its logs are."""


class BrokerState(StrEnum):
    """Whether a broker is to get replicas."""

    ACTIVE = "active"
    LEAVING = "leaving"
    """It was decommissioned: it gives its replicas away, and is then removed."""


class RegisteredBroker(Struct, frozen=True):
    """A broker as the others know it.

    ``id`` is its directory's and stays; ``incarnation`` is made anew with every start.
    ``generation`` is that of its logs (``generations``).
    ``rack``: its rack, or None if none was configured.
    ``boot_id``: that of its machine, if readers there may map its files.
    ``peer_address``: where it serves other brokers; empty if it has no such door.
    ``flight``: the address at which it serves Flight; empty if it does not.
    """

    id: str
    address: str
    incarnation: str
    release: str
    generation: Generation = NO_GENERATION
    rack: str | None = None
    state: BrokerState = BrokerState.ACTIVE
    boot_id: str | None = None
    peer_address: str = ""
    flight: str = ""


class Brokers:
    """The brokers of a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def all(self) -> list[RegisteredBroker]:
        """Return every broker, by id."""
        found = self._store.list(BROKERS)
        return [decode(each.key.removeprefix(BROKERS), each.value) for each in found]

    def get(self, broker_id: str) -> RegisteredBroker | None:
        """Return the broker, or None."""
        record = self._store.get(BROKERS + broker_id)
        return None if record is None else decode(broker_id, record.value)

    def register(self, broker: RegisteredBroker) -> RegisteredBroker:
        """Register the broker in place of its earlier incarnation, and return the registration.

        A leaving broker stays so: its restart does not cancel the decommission.
        """
        key = BROKERS + broker.id
        while True:
            record = self._store.get(key)
            version, state = 0, broker.state
            if record is not None:
                version, state = record.version, decode(broker.id, record.value).state
            registered = replace(broker, state=state)
            if self._store.put(key, encode(registered), version) is not None:
                return registered

    def mark(self, broker_id: str, state: BrokerState) -> RegisteredBroker | None:
        """Set the broker's state; None if it is not registered."""
        while True:
            record = self._store.get(BROKERS + broker_id)
            if record is None:
                return None
            marked = replace(decode(broker_id, record.value), state=state)
            if self._store.put(record.key, encode(marked), record.version) is not None:
                return marked

    def leave(self, broker_id: str, incarnation: str) -> None:
        """Remove the broker, unless a later incarnation has registered."""
        while True:
            record = self._store.get(BROKERS + broker_id)
            if record is None or decode(broker_id, record.value).incarnation != incarnation:
                return
            if self._store.delete(record.key, record.version):
                return


def alive(
    known: Mapping[BrokerId, RegisteredBroker], holder: Callable[[str], str | None]
) -> dict[BrokerId, Generation]:
    """Return the brokers whose registered incarnation holds the lease, with their generations.

    ``known`` may be older than the leases. A restarted broker may hold its lease already, while
    ``known`` has its earlier incarnation, with a generation that may be over. It does not count as
    alive: elected in that generation, it could lack acknowledged records.
    ``holder``: which incarnation of a broker holds its lease.
    """
    return {
        broker: each.generation
        for broker, each in known.items()
        if holder(broker) == each.incarnation
    }


def encode(broker: RegisteredBroker) -> dict[str, Any]:
    """Return what the store holds of a broker."""
    value: dict[str, Any] = msgspec.to_builtins(broker)
    del value["id"]  # it is in the key
    return value


def decode(broker_id: str, value: Mapping[str, Any]) -> RegisteredBroker:
    """Return the broker that a record's value holds."""
    return msgspec.convert({"id": broker_id, **value}, RegisteredBroker)


learn_types(RegisteredBroker)
