"""Who is alive: who holds a lease in the very incarnation that is registered."""

from __future__ import annotations

from spark_stream.broker.members import Members
from spark_stream.cluster.brokers import Brokers, RegisteredBroker
from spark_stream.cluster.leases import Leases
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.ids import Generation
from spark_stream.testing.simulation.leases import MemoryBoard
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore
from tests.clocks import FakeClock


def test_a_broker_is_alive_in_a_generation_only_while_the_lease_is_of_that_start():
    store, board = MemoryStore(MemoryRecords()), MemoryBoard()
    view = ClusterView(store)
    members = Members(view, Leases(board, FakeClock()))

    def start(incarnation: str, generation: str) -> None:
        known = RegisteredBroker("b", "address", incarnation, "1", Generation(generation))
        Brokers(store).register(known)
        board.take_place("b", incarnation, 10.0)

    assert members.alive() == {}
    start("first", "g1")
    assert members.alive() == {}, "it is not seen that it is registered"
    view.refresh()
    assert members.alive() == {"b": "g1"}
    start("second", "g2")
    assert members.alive() == {}, "the lease is of a start of which nothing is known here"
    assert members.takers() == {}
    view.refresh()
    assert members.alive() == {"b": "g2"}
