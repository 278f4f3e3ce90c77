"""The gateways of a cluster: the tasks of each, and probes."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from spark_stream.kafka import gateway, peers
from spark_stream.kafka.peers import GatewayAddress, Gateways, probe
from tests.kafka.clients import asked, asked_at, connected, producer_at, sent, started_together
from tests.support import eventually

PLACES = [GatewayAddress(f"host-{number}", 9192) for number in range(3)]


def gateways(count: int, own: int = 0) -> Gateways:
    found = Gateways(PLACES[own], PLACES[:count])
    found.close()
    return found


def test_all_gateways_agree_on_leaders_and_the_coordinator():
    found = [gateways(3, own) for own in range(3)]
    assert len({each.coordinator for each in found}) == 1
    for number in range(100):
        assert len({each.leader("t", number) for each in found}) == 1
    assert len({each.node_id for each in found[0].listed}) == 3


def test_the_end_of_a_gateway_moves_only_its_own_partitions():
    before, after = gateways(3), gateways(2)
    moved = 0
    for number in range(3_000):
        leader = before.leader("t", number)
        if leader == PLACES[2]:
            moved += 1
        else:
            assert after.leader("t", number) == leader
    spread = Counter(before.leader("t", number) for number in range(3_000))
    assert moved == spread[PLACES[2]]
    assert all(800 < count < 1_200 for count in spread.values())


@pytest.mark.slow
def test_a_gateway_that_ends_leads_no_partition(shared, log, topic, monkeypatch):
    """The metadata has it for some time, and then no longer."""
    monkeypatch.setattr(peers, "PROBE_S", 0.05)
    log.create_topic(topic, partitions=8)
    with started_together(shared.address, 2) as found:
        first, second = found

        def leaders(address: str) -> set[str]:
            given = asked(address, "Metadata", 9, {"topics": [{"name": topic}]})
            places = {
                each["node_id"]: f"{each['host']}:{each['port']}" for each in given["brokers"]
            }
            assert set(places.values()) == {first, second}
            return {places[each["leader_id"]] for each in given["topics"][0]["partitions"]}

        assert leaders(first) == leaders(second) == {first, second}
        producer = producer_at(first, **{"enable.idempotence": True, "linger.ms": 0})
        rows = [{"value": b"%d" % n, "partition": n % 8} for n in range(800)]
        sent(producer, topic, rows[:400])
        found[second].close()
        sent(producer, topic, rows[400:])
        eventually(lambda: leaders(first) == {first})
        monkeypatch.setattr(peers, "KEPT_S", 0.0)
        [left] = asked(first, "Metadata", 9, {"topics": []})["brokers"]
        assert f"{left['host']}:{left['port']}" == first
        assert sorted(map(int, log.read(topic)["value"].to_pylist())) == list(range(800))


def test_a_probe_fails_without_an_answer(shared):
    with started_together(shared.address, 1) as found:
        [place] = map(GatewayAddress.parse, found)
        probe(place)
    with pytest.raises(ConnectionRefusedError):
        probe(place)


def test_a_gateway_without_free_connections_answers_probes(shared, monkeypatch):
    """Otherwise its clients would go to the other gateways, and occupy them too."""
    monkeypatch.setattr(gateway, "CONNECTIONS_MAX", 2)
    with started_together(shared.address, 1) as found, ExitStack() as ends:
        [address] = found
        for _ in range(2):
            asked_at(ends.enter_context(connected(address)), "ApiVersions", 0, {})
        probe(GatewayAddress.parse(address))
        with connected(address) as third:
            asked_at(third, "ApiVersions", 0, {})
            assert third.recv(1) == b""
        with pytest.raises(AssertionError, match="was closed"):
            asked(address, "ListGroups", 0, {})
    assert not found[address].counts.connections


def test_a_consumer_finds_its_coordinator_at_either_gateway(shared):
    with started_together(shared.address, 2) as found:
        nodes = set()
        for address in found:
            for kind in (0, 1):
                given = asked(
                    address, "FindCoordinator", 4, {"key_type": kind, "coordinator_keys": ["g"]}
                )
                [each] = given["coordinators"]
                assert (each["key"], each["error_code"]) == ("g", 0)
                nodes.add(each["node_id"])
        assert len(nodes) == 1
        given = asked(next(iter(found)), "FindCoordinator", 1, {"key": "g", "key_type": 9})
        assert given["error_code"] == 42
