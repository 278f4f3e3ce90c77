"""The transactions of Kafka's producers, in the memory of a gateway."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, field

from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.transaction_messages import Branch

_KNOWN_MAX: Final = 10_000


class KafkaTransaction(Struct, eq=False):
    """The latest transaction of a producer, in the memory of a gateway.

    ``branch``: the identity of its writes while it is open. ``is_own``: this gateway began it.
    ``successor``: the answer to the producer that has taken other sequences.
    """

    transactional_id: str
    producer_id: int
    branch: Branch | None = None
    is_own: bool = False
    positions: dict[tuple[str, str, int], PositionOf] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    successor: dict[str, int] | None = None
    lock: Any = field(default_factory=lambda: new_lock(is_brief=False))

    @property
    def own(self) -> dict[str, str]:
        """The id and the instance that owns it, for calls."""
        instance = instance_of(self.producer_id)
        return {"transactional_id": self.transactional_id, "instance": instance}

    def open(self, branch: Branch, *, is_own: bool) -> None:
        """Record an open transaction."""
        if self.branch is not None and self.branch.number != branch.number:
            self._clear()
        self.branch, self.is_own = branch, is_own

    def end(self) -> None:
        """Record the end of the transaction."""
        self._clear()
        self.branch, self.is_own = None, False

    def _clear(self) -> None:
        self.positions.clear()
        self.owners.clear()


def instance_of(producer_id: int) -> str:
    """Return the instance that owns a transactional id, by Kafka's producer id."""
    return f"kafka-{producer_id}"


class Transactions:
    """The transactions whose requests come through this gateway. Thread-safe."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._known: dict[tuple[str, int], KafkaTransaction] = {}

    def of(self, transactional_id: str, producer_id: int) -> KafkaTransaction:
        """Return the latest transaction of a producer."""
        key = transactional_id, producer_id
        with self._lock:
            known = self._known.pop(key, None) or KafkaTransaction(transactional_id, producer_id)
            self._known[key] = known
            if len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]  # the one that was unused for longest
            return known

    def forget(self, transactional_id: str, producer_id: int) -> None:
        """Remove the transaction of a producer, which was refused."""
        with self._lock:
            self._known.pop((transactional_id, producer_id), None)
