"""The brokers of a cluster: their registry, the controller, and the cluster's identity and secret.

A broker's record is no evidence that the broker is alive. Leases are (``stores.leases``).

**The controller** is the broker that elects leaders. One record names it. A broker replaces a
controller whose lease expired, or whose incarnation ended. No rule relies on a single controller:
each decision is a compare-and-set on the record that it changes, so a controller that was replaced
and has not read that yet does no harm. The controller's record only keeps brokers from all trying
the same changes. The term rises with each new controller, and identifies the controller in the
brokers' logs.

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
"""The generation of a broker before it has decided about the generation of its logs."""


class BrokerState(StrEnum):
    """The state of a broker: only active ones get replicas."""

    ACTIVE = "active"
    LEAVING = "leaving"
    """It was decommissioned: its replicas move to other brokers, and then it is removed."""


class RegisteredBroker(Struct, frozen=True):
    """The registration of a broker.

    ``id``: the id of its directory, which never changes. ``incarnation``: new with every start.
    ``generation``: the generation of its logs (``generations``).
    ``rack``: its rack, or None if it is not configured.
    ``boot_id``: the boot id of its machine, if readers there may map its files.
    ``peer_address``: its address for other brokers, or empty if it does not serve them separately.
    ``flight``: its address for Flight, or empty if it does not serve Flight.
    ``begins_reserved``: a write begins a transaction with a reserved number. The previous release
    lacks this.
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
    begins_reserved: bool = False


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
    ``known`` has its earlier incarnation, perhaps with an old generation. It does not count as
    alive: elected in that generation, it could lack acknowledged records.
    ``holder``: returns the incarnation of a broker that holds its lease.
    """
    return {
        broker: each.generation
        for broker, each in known.items()
        if holder(broker) == each.incarnation
    }


def encode(broker: RegisteredBroker) -> dict[str, Any]:
    """Encode a broker for the store."""
    value: dict[str, Any] = msgspec.to_builtins(broker)
    del value["id"]  # it is in the key
    return value


def decode(broker_id: str, value: Mapping[str, Any]) -> RegisteredBroker:
    """Decode the broker in a record's value."""
    return msgspec.convert({"id": broker_id, **value}, RegisteredBroker)


CONTROLLER: Final = "controller"


class Controller(Positional, frozen=True):
    """One broker's time as the controller: it ends with the broker's incarnation at the latest."""

    broker: BrokerId
    incarnation: str
    term: int


Alive = Callable[[BrokerId, str], bool]
"""Returns whether a broker is alive in this incarnation."""


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
    """Encode the controller for the store."""
    value: dict[str, Any] = msgspec.to_builtins(controller)
    return value


def decode_controller(value: Mapping[str, Any]) -> Controller:
    """Decode the controller in a record's value."""
    return msgspec.convert(value, Controller)


CLUSTER: Final = "cluster"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """A key that only the brokers of a cluster have. They send proofs by it, never the key."""

    _key: bytes = field(repr=False)

    def prove(self, *facts: str) -> str:
        """Return a proof that its maker has the key and states these facts."""
        text = json.dumps(facts).encode()  # unambiguous for facts with any characters
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

    ``known`` is the id in a broker's directory, or None for a new directory.

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
