"""The controller: the broker that elects leaders while it lives. One record says who it is.

A broker replaces a controller whose lease, or whose incarnation, is over. Nothing depends on there
being only one controller: each decision is a compare-and-set on the record that it changes, so a
controller that does not know yet that it was replaced does no harm. The controller's record only
keeps brokers from all trying the same at once.

The term rises with each new controller. It tells them apart in the brokers' logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.consistency.ids import BrokerId
from spark_stream.structs import Positional, learn_types

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
        """Make this broker the controller unless there is one; None if another broker is."""
        record = self._store.get(CONTROLLER)
        held = None if record is None else decode(record.value)
        following = successor(held, self._broker, self._incarnation, alive)
        if following is None:
            return held if self.holds(held) else None
        version = 0 if record is None else record.version
        done = self._store.put(CONTROLLER, encode(following), version)
        return None if done is None else following


def encode(controller: Controller) -> dict[str, Any]:
    """Return what the store holds of the controller."""
    value: dict[str, Any] = msgspec.to_builtins(controller)
    return value


def decode(value: Mapping[str, Any]) -> Controller:
    """Return the controller that the record's value names."""
    return msgspec.convert(value, Controller)


learn_types(Controller)
