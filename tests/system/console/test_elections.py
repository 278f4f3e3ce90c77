"""Elections of preferred leaders by the console, while the preferred broker dies or returns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from isolog.testing import LocalCluster
from spark_stream.client.connecting.access import OPEN
from spark_stream.console.actions import ElectPreferred
from spark_stream.console.client import ConsoleClient
from spark_stream.console.plans import PendingPlans, PlanChanged
from spark_stream.console.sessions import LogLocation
from spark_stream.errors import IsologError
from tests.support import NUMBERS, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CONF = {"lease_seconds": 2.0, "leader_balance_seconds": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, conf=CONF) as found:
        yield found


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[ConsoleClient]:
    with contextlib.closing(LogLocation(cluster.bootstrap, None, OPEN).connect(OPEN)) as found:
        yield found


def leader_away(cluster: LocalCluster, topic: str) -> None:
    """Create a topic that broker 1 should lead, and that another broker leads."""
    with cluster.connect(timeout=60) as log:
        log.create_topic(topic, schema=NUMBERS, assignment=[["1", "2", "3"]])
        cluster.kill(1)
        eventually(lambda: log.describe(topic).partitions[0].leader in ("2", "3"), 60)
        cluster.restart(1)
        eventually(lambda: set(log.describe(topic).partitions[0].isr) == {"1", "2", "3"}, 60)


def _dead(client: ConsoleClient) -> list[str]:
    return [each["id"] for each in client.cluster()["brokers"] if not each["alive"]]


def test_election_moves_the_leaders_of_the_plan_once(cluster, client):
    leader_away(cluster, "moved")
    plans = PendingPlans()
    first, second = (plans.make(client, ElectPreferred("moved")) for _ in range(2))
    assert [row[:2] for row in first["rows"]] == [("moved", 0)]
    assert plans.apply(client, first["token"]) == "Changed the leader of 1 partition."
    with pytest.raises(PlanChanged) as changed:
        plans.apply(client, second["token"])
    assert changed.value.plan["button"] == ""
    eventually(lambda: cluster.leader("moved") == 1)


def test_preferred_broker_that_dies_during_the_election_leaves_a_leader(cluster, client):
    """The election is applied, refused, or of unknown outcome. Afterwards it can be repeated."""
    leader_away(cluster, "crashed")
    plans = PendingPlans()
    planned = plans.make(client, ElectPreferred("crashed"))
    assert planned["button"]

    def elect() -> str:
        try:
            return plans.apply(client, planned["token"])
        except (IsologError, PlanChanged) as error:
            return str(error)

    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(elect)
        cluster.kill(1)
        assert outcome.result()
    with cluster.connect(timeout=60) as log:
        eventually(lambda: log.describe("crashed").partitions[0].leader in ("2", "3"), 60)
        eventually(lambda: "1" in _dead(client), 60)
        while_dead = plans.make(client, ElectPreferred("crashed"))
        assert (while_dead["button"], while_dead["rows"]) == ("", ())
        assert "1 preferred leader cannot lead" in while_dead["effect"]
        cluster.restart(1)
        eventually(lambda: set(log.describe("crashed").partitions[0].isr) == {"1", "2", "3"}, 60)
        with pytest.raises(PlanChanged) as changed:
            plans.apply(client, while_dead["token"])
        assert plans.apply(client, changed.value.plan["token"])
        eventually(lambda: cluster.leader("crashed") == 1)
