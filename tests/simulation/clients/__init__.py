"""Clients of a simulated run. Each is a body that ends by itself, whatever brokers do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.simulation.clients import (
    consumers,
    members,
    operators,
    producers,
    readers,
    sinks,
    transactions,
)
from tests.simulation.schedule import Body
from tests.simulation.world import World

CLIENTS: Final[Mapping[str, Callable[[World, str], Body]]] = {
    "transactions": transactions.write_in_transactions,
    "plain": producers.write_plainly,
    "sink": sinks.write_batches,
    "reader": readers.read_partitions,
    "cutter": readers.read_cuts,
    "consumer": consumers.move_on,
    "member": members.read_in_group,
    "operator": operators.meddle,
    "topics": operators.make_and_delete_topics,
    "mover": operators.move_replicas,
    "trimmer": operators.trim_partitions,
}
"""By the kinds of ``form.CLIENTS`` and ``form.GROUP_CLIENTS``, and the members of a group."""
