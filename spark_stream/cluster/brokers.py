"""The brokers of a cluster: their registry, the controller, and the cluster's identity and secret.

A broker's record says nothing of whether the broker is alive: that is what leases are for
(``stores.leases``).

**The controller** is the broker that elects leaders while it lives. One record names it. A broker
replaces a controller whose lease, or whose incarnation, is over. Nothing depends on there being
only one controller: each decision is a compare-and-set on the record that it changes, so a
controller that was replaced and has not seen that yet does no harm. The controller's record only
keeps brokers from all trying the same at once. The term rises with each new controller. It tells
controllers apart in the brokers' logs.

**The identity** of the cluster is one record, made once and never changed. It also holds the
cluster's secret, by which its brokers recognise one another. The record never leaves the brokers:
no message and no log line has the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.environment import Ids
from spark_stream.errors import WrongCluster
from spark_stream.structs import Positional, learn_types

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

    ``id`` is its directory's and stays. ``incarnation`` is made anew with every start.
    ``generation`` is that of its logs (``generations``).
    ``rack``: its rack, or None if none was configured.
    ``boot_id``: that of its machine, if readers there may map its files.
    ``peer_address``: where it serves other brokers, or empty if it has no such door.
    ``flight``: the address at which it serves Flight, or empty if it does not.
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
        """Set the broker's state, or None if it is not registered."""
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


CONTROLLER: Final = "controller"


class Controller(Positional, frozen=True):
    """One broker's time as the controller: it ends with the broker's incarnation at the latest."""

    broker: BrokerId
    incarnation: str
    term: int


Alive = Callable[[BrokerId, str], bool]
"""Whether a broker is alive in this very incarnation."""


def successor(
    held: Controller | None, broker: BrokerId, incarnation: str, alive: Alive
) -> Controller | None:
    """Return the record that makes the broker controller, or None if there is a controller."""
    if held is None:
        return Controller(broker, incarnation, 0)
    is_mine = (held.broker, held.incarnation) == (broker, incarnation)
    if is_mine or alive(held.broker, held.incarnation):
        return None
    return Controller(broker, incarnation, held.term + 1)


class ControllerSeat:
    """The controller's record, as one incarnation of a broker uses it."""

    def __init__(self, store: MetadataStore, broker: BrokerId, incarnation: str) -> None:
        self._store = store
        self._broker = broker
        self._incarnation = incarnation

    def holds(self, held: Controller | None) -> bool:
        """Return whether the record names this incarnation of this broker."""
        mine = (self._broker, self._incarnation)
        return held is not None and (held.broker, held.incarnation) == mine

    def take(self, alive: Alive) -> Controller | None:
        """Make this broker the controller unless there is one, or None if another broker is."""
        record = self._store.get(CONTROLLER)
        held = None if record is None else decode_controller(record.value)
        following = successor(held, self._broker, self._incarnation, alive)
        if following is None:
            return held if self.holds(held) else None
        version = 0 if record is None else record.version
        done = self._store.put(CONTROLLER, encode_controller(following), version)
        return None if done is None else following


def encode_controller(controller: Controller) -> dict[str, Any]:
    """Return what the store holds of the controller."""
    value: dict[str, Any] = msgspec.to_builtins(controller)
    return value


def decode_controller(value: Mapping[str, Any]) -> Controller:
    """Return the controller that the record's value names."""
    return msgspec.convert(value, Controller)


CLUSTER: Final = "cluster"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """A key that only the brokers of a cluster have. What travels are proofs made with it."""

    _key: bytes = field(repr=False)

    def prove(self, *facts: str) -> str:
        """Return a proof that its maker has the key and states these facts."""
        text = json.dumps(facts).encode()  # unambiguous, whatever characters the facts have
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def key_for(self, purpose: str) -> bytes:
        """Return a key for this purpose alone."""
        return hmac.new(self._key, f"key for {purpose}".encode(), hashlib.sha256).digest()

    def has_proven(self, proof: str, *facts: str) -> bool:
        """Return whether :meth:`prove` made the proof, with this key, of these facts."""
        return hmac.compare_digest(proof.encode(), self.prove(*facts).encode())


def cluster_identity(
    store: MetadataStore, ids: Ids, known: str | None
) -> tuple[str, ClusterSecret]:
    """Return the id and the secret of the store's cluster. A store without them gets them.

    ``known`` is the id in a broker's directory. None for a new directory.

    Raises:
        WrongCluster: the directory belongs to another cluster.
    """
    record = store.get(CLUSTER)
    while record is None:
        made = {"id": known or ids.new_id(), "secret": secrets.token_hex(_SECRET_BYTES)}
        store.put(CLUSTER, made, expected=0)
        record = store.get(CLUSTER)  # another broker may have been first
    found = str(record.value["id"])
    if known is not None and known != found:
        raise WrongCluster(
            f"this directory belongs to cluster {known}, the metadata store to cluster {found}",
            hint="Give the broker the metadata store of its own cluster, or an empty directory.",
            directory=known,
            store=found,
        )
    return found, ClusterSecret(bytes.fromhex(str(record.value["secret"])))


learn_types(RegisteredBroker)
learn_types(Controller)
