"""The commands of an operator on three brokers, one of which stops and returns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isolog.testing import LocalCluster
from tests.cli.conftest import Call
from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with LocalCluster(3, conf={"lease_seconds": 1.0}, cuttable=False) as made:
        monkeypatch.setenv("ISOLOG_BOOTSTRAP", made.bootstrap)
        yield made


def rows(text: str, title: str) -> list[list[str]]:
    """Return the rows of the table with this title as words."""
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(title)) + 2
    end = next(at for at in range(first, len(lines)) if not re.match(r"\d", lines[at]))
    return [lines[at].split() for at in range(first, end)]


def partition_of(call: Call, *, holds: Callable[[Any], bool]) -> Any:
    """Wait for an expected description of partition 0, and return it."""
    found: list[Any] = []

    def look() -> bool:
        described = call("topic", "describe", "flights", "--output", "json")
        found[:] = [json.loads(described.out)["partitions"][0]]
        return holds(found[0])

    eventually(look, 30)
    return found[0]


def test_replicas_are_shown_while_a_broker_stops_and_returns(
    cluster: LocalCluster, call: Call
) -> None:
    made = ["--replication-factor", "3", "--config", "min.insync.replicas=3"]
    assert call("topic", "create", "flights", *made).code == 0
    first = partition_of(call, holds=lambda found: len(found["isr"]) == 3)
    assert first["replicas"] == first["isr"]
    away = first["replicas"][2]

    assert call("cluster", "status").code == 0
    cluster.stop(int(away))
    partition_of(call, holds=lambda found: away not in found["isr"])
    text = call("topic", "describe", "flights").out
    replicas, isr = ", ".join(first["replicas"]), ", ".join(first["replicas"][:2])
    [row] = rows(text, "partition  leader")
    assert " ".join(row) == f"0 {first['leader']} 0 {replicas} {isr} {away} not in sync"
    assert "partition 0: fewer in-sync replicas than min.insync.replicas=3\n" in text
    facts = call("cluster", "status", "--output", "json")
    assert facts.code == 1
    kinds = [each["kind"] for each in json.loads(facts.out)["problems"]]
    assert kinds == ["dead_broker", "below_min_isr", "under_replicated"]
    shown = call("cluster", "status")
    assert shown.code == 1
    status = shown.out
    assert "brokers 2 of 3 alive" in status
    assert "partitions with replicas that are not in sync: 1" in status
    [dead] = [row for row in rows(status, "broker  address") if row[0] == away]
    assert dead[2:] == ["dead", "0", "1", "0"]

    cluster.restart(int(away))
    partition_of(call, holds=lambda found: len(found["isr"]) == 3 and found["lag"].get(away) == 0)
    assert "fewer in-sync" not in call("topic", "describe", "flights").out


def test_topics_have_three_replicas_by_default_and_a_warning_for_one(
    cluster: LocalCluster, call: Call, tmp_path: Path
) -> None:
    def replicas(topic: str) -> int:
        return len(
            json.loads(call("topic", "describe", topic, "--output", "json").out)["partitions"][0][
                "replicas"
            ]
        )

    assert call("topic", "create", "three").err == "created topic three: 1 partition\n"
    (tmp_path / "new.csv").write_text("a\n1\n")
    made = call("produce", "produced", "--file", str(tmp_path / "new.csv"), "--create")
    assert made.code == 0
    assert "warning" not in made.err
    assert [replicas("three"), replicas("produced")] == [3, 3]

    made = call("topic", "create", "one", "--replication-factor", "1")
    warning = "warning: topic 'one' has one replica of each partition, on a cluster of 3 brokers"
    assert (made.code, made.out) == (0, "")
    assert warning in made.err
    assert warning in " ".join(call("topic", "describe", "one").out.split())
    assert replicas("one") == 1


def test_new_topics_have_the_configured_replication_factor() -> None:
    conf = {"default_replication_factor": 1}
    with LocalCluster(2, conf=conf, cuttable=False) as made, made.connect() as log:
        found = log.create_topic("t")
        assert (found.replication_factor, len(found.partitions[0].replicas)) == (1, 1)
        assert found.warning is not None
        assert log.create_topic("u", replication_factor=2).warning is None


def test_decommission_needs_a_confirmation(cluster: LocalCluster, call: Call) -> None:
    assert call("topic", "create", "flights", "--assignment", "3,1").code == 0
    asked = call("cluster", "decommission", "3")
    assert asked.code == 2
    assert (
        "confirmation needs a terminal: Move 1 replica of broker 3 to other brokers?" in asked.err
    )
    assert call("cluster", "decommission", "9", "--yes").code == 1
    assert call("cluster", "recommission", "9").code == 1
    assert call("cluster", "recommission", "3").err.endswith("broker 3 stays in the cluster\n")

    assert call("cluster", "decommission", "3", "--yes").code == 0
    found = partition_of(call, holds=lambda found: "3" not in found["replicas"])
    assert sorted(found["replicas"]) == sorted(found["isr"]) == ["1", "2"]
    eventually(lambda: len(rows(call("cluster", "status").out, "broker  address")) == 2, 30)
