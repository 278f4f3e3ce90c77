"""The registry of brokers."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from isolog.errors import WrongCluster
from spark_stream.cluster.brokers import (
    CLUSTER,
    Brokers,
    BrokerState,
    ClusterSecret,
    Controller,
    ControllerSeat,
    RegisteredBroker,
    alive,
    cluster_identity,
    decode,
    encode,
    successor,
)
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.environment import SystemClock, SystemIds
from tests.simulation.leases import MemoryBoard

ONE = RegisteredBroker("b1", "127.0.0.1:9092", "start-1", "0.1.0")
TWO = RegisteredBroker("b2", "unix:/somewhere/socket", "start-7", "0.2.0")


@pytest.fixture
def brokers(store) -> Brokers:
    return Brokers(store)


def test_brokers_are_found_with_the_registered_fields(brokers):
    assert brokers.all() == []
    assert brokers.get("b1") is None
    brokers.register(TWO)
    brokers.register(ONE)
    assert brokers.all() == [ONE, TWO]
    assert brokers.get("b2") == TWO


def test_a_later_incarnation_takes_the_place_of_the_earlier_one(brokers):
    brokers.register(ONE)
    later = replace(ONE, address="127.0.0.1:9999", incarnation="start-2")
    brokers.register(later)
    assert brokers.all() == [later]


def test_an_incarnation_unregisters_only_itself(brokers):
    brokers.register(ONE)
    brokers.register(TWO)
    brokers.register(replace(TWO, incarnation="start-8"))
    brokers.leave("b1", "start-1")
    brokers.leave("b2", "start-7")
    brokers.leave("b3", "start-1")
    assert [each.incarnation for each in brokers.all()] == ["start-8"]


def test_a_broker_is_registered_with_its_generation_and_rack(brokers):
    made = replace(ONE, generation=Generation("g7"), rack="cellar")
    assert brokers.register(made) == made
    assert brokers.get("b1") == made
    assert decode("b1", encode(made)) == made


def test_a_leaving_broker_is_still_leaving_after_a_restart(brokers):
    brokers.register(ONE)
    leaving = replace(ONE, state=BrokerState.LEAVING)
    assert brokers.mark("b1", BrokerState.LEAVING) == leaving
    later = replace(ONE, incarnation="start-2")
    assert brokers.register(later) == replace(later, state=BrokerState.LEAVING)
    assert brokers.mark("b1", BrokerState.ACTIVE) == later
    assert brokers.mark("b3", BrokerState.LEAVING) is None
    assert brokers.get("b3") is None


def test_a_mark_and_a_start_at_the_same_time_are_both_kept(store, another):
    """The start reads, then somebody marks the broker, then the start writes."""
    marking = Brokers(another())
    marking.register(ONE)

    class MarksInBetween:
        def __getattr__(self, name):
            return getattr(store, name)

        def put(self, *arguments):
            if marking.get("b1").state is BrokerState.ACTIVE:
                marking.mark("b1", BrokerState.LEAVING)
            return store.put(*arguments)

    later = replace(ONE, incarnation="start-2")
    assert Brokers(MarksInBetween()).register(later).state is BrokerState.LEAVING
    assert marking.get("b1") == replace(later, state=BrokerState.LEAVING)


def test_a_restarted_broker_is_not_alive_in_its_earlier_generation(store, brokers):
    """Its new lease is visible before its new record. Elected as it was, it would lose records."""
    board = MemoryBoard()
    leases, view = Leases(board, SystemClock(), 3.0), ClusterView(store)
    first = replace(ONE, generation=Generation("g1"))
    brokers.register(first)
    lease = leases.hold("b1", first.incarnation)
    view.refresh()
    assert alive(view.now.brokers, leases.holder) == {BrokerId("b1"): "g1"}
    lease.release()
    later = replace(ONE, incarnation="start-2", generation=Generation("g2"))
    brokers.register(later)
    leases.hold("b1", later.incarnation)
    assert alive(view.now.brokers, leases.holder) == {}, "the view is a moment old"
    view.refresh()
    assert alive(view.now.brokers, leases.holder) == {BrokerId("b1"): "g2"}


B1, B2 = BrokerId("b1"), BrokerId("b2")


def nobody_lives(broker: BrokerId, incarnation: str) -> bool:
    return False


def all_live(broker: BrokerId, incarnation: str) -> bool:
    return True


def test_the_first_candidate_is_the_controller_until_its_lease_expires(store):
    one, two = ControllerSeat(store, B1, "s1"), ControllerSeat(store, B2, "s1")
    first = one.take(all_live)
    assert first == Controller(B1, "s1", 0)
    assert two.take(all_live) is None
    assert one.take(nobody_lives) == first, "its own seat it just keeps"
    assert one.holds(first)
    assert not two.holds(first)
    second = two.take(nobody_lives)
    assert second == Controller(B2, "s1", 1)
    assert one.take(all_live) is None
    assert not one.holds(second)


def test_an_earlier_incarnation_is_not_the_controller(store):
    """The broker lives, but not the process that was the controller."""
    ControllerSeat(store, B1, "s1").take(all_live)
    later = ControllerSeat(store, B1, "s2")
    lives = {(B1, "s2")}
    assert later.take(lambda *who: who in lives) == Controller(B1, "s2", 1)
    assert not ControllerSeat(store, B1, "s1").holds(Controller(B1, "s2", 1))


def test_one_of_two_concurrent_candidates_becomes_the_controller(store, another):
    ControllerSeat(store, BrokerId("b0"), "s").take(all_live)
    two = ControllerSeat(another(), B2, "s")
    taken = []

    def while_the_other_is_quicker(broker: BrokerId, incarnation: str) -> bool:
        if not taken:
            taken.append(two.take(nobody_lives))
        return False

    assert ControllerSeat(store, B1, "s").take(while_the_other_is_quicker) is None
    assert taken == [Controller(B2, "s", 1)]


@pytest.mark.rule("the controller of a cluster", "cluster/brokers.py")
@given(st.lists(st.tuples(st.sampled_from([B1, B2]), st.sampled_from("st"), st.booleans())))
def test_a_term_has_one_controller_and_terms_rise(attempts):
    held: Controller | None = None
    terms: dict[int, tuple[str, str]] = {}
    for broker, incarnation, holder_lives in attempts:
        following = successor(held, broker, incarnation, lambda *_, lives=holder_lives: lives)
        if following is not None:
            assert held is None or not holder_lives
            assert held is None or following.term == held.term + 1
            held = following
            assert terms.setdefault(held.term, (broker, incarnation)) == (broker, incarnation)
        assert held is not None


IDS = SystemIds()


def cluster_id(store, ids, known):
    return cluster_identity(store, ids, known)[0]


def test_a_new_store_gets_an_id_and_keeps_it(store):
    made = cluster_id(store, IDS, None)
    assert len(made) == 32
    assert cluster_id(store, IDS, None) == made
    assert cluster_id(store, IDS, made) == made


def test_a_store_without_an_id_takes_that_of_an_existing_directory(store):
    """As after a first start that ended before it created its store: its clients have that id."""
    assert cluster_id(store, IDS, "known") == "known"
    assert cluster_id(store, IDS, None) == "known"


@pytest.mark.rule("the cluster of a directory", "cluster/brokers.py")
def test_a_directory_of_another_cluster_is_refused_with_both_ids(store):
    cluster_id(store, IDS, "ours")
    with pytest.raises(WrongCluster, match="cluster theirs, the metadata store to cluster ours"):
        cluster_id(store, IDS, "theirs")
    assert cluster_id(store, IDS, None) == "ours"


def test_brokers_that_start_together_get_one_cluster_id(another):
    stores = [another() for _ in range(4)]
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(cluster_id(each, IDS, None)))
        for each in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_cluster_has_one_secret_of_32_bytes_which_is_not_shown(store, another):
    _, secret = cluster_identity(store, IDS, None)
    key = store.get(CLUSTER).value["secret"]
    assert len(bytes.fromhex(key)) == 32
    assert cluster_identity(another(), IDS, None)[1] == secret
    assert secret == ClusterSecret(bytes.fromhex(key))
    assert key not in f"{secret!r} {secret}"


def test_a_proof_is_of_one_key_and_of_its_facts():
    secret = ClusterSecret(b"k" * 32)
    proof = secret.prove("call", "1", "2")
    assert secret.has_proven(proof, "call", "1", "2")
    for facts in (("call", "2", "1"), ("call", "1"), ("call", "12"), ('call", "1', "2")):
        assert not secret.has_proven(proof, *facts)
    for wrong in ("", proof[:-1], proof.upper(), "\N{SNOWMAN}"):
        assert not secret.has_proven(wrong, "call", "1", "2")
    assert not ClusterSecret(b"l" * 32).has_proven(proof, "call", "1", "2")
