"""Three brokers, one of which is killed: the series of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import isolog
from isolog.testing import LocalCluster
from tests.broker.metrics.scraping import page, scraped
from tests.support import NUMBERS, eventually, numbers


@pytest.mark.full  # test_changes.py has the counts without processes
def test_a_killed_broker_leaves_partitions_under_replicated_until_it_is_back(
    tmp_path: Path,
) -> None:
    conf = {"metrics_listen": "127.0.0.1:0", "topic": {"replica.lag.time.max.ms": 1000}}
    with LocalCluster(3, conf=conf, folder=tmp_path) as cluster:

        def address(number: int) -> str:
            facts = json.loads((cluster.brokers[number].directory / "broker.json").read_text())
            return str(facts["metrics_address"])

        def seen(number: int, name: str, **labels: str) -> float:
            return scraped(address(number), "/metrics")(name, **labels)

        with isolog.connect(cluster.bootstrap) as log:
            log.create_topic("t", partitions=3, replication_factor=3, schema=NUMBERS)
            with log.producer(isolation="read_committed") as producer:
                producer.append("t", numbers(0, 5), partition=0)
            eventually(lambda: sum(seen(each, "isolog_leaders") for each in cluster.brokers) == 3)
            assert sum(seen(each, "isolog_append_records_total") for each in cluster.brokers) == 5
            copied = sum(seen(each, "isolog_replicate_records_total") for each in cluster.brokers)
            assert copied == 10
            cluster.kill(1)
            for each in (2, 3):
                eventually(lambda each=each: seen(each, "isolog_partitions_under_replicated") == 3)
                eventually(lambda each=each: seen(each, "isolog_brokers_alive") == 2)
                assert page(address(each), "/health/ready")[0] == 200
            eventually(lambda: sum(seen(each, "isolog_leaders") for each in (2, 3)) == 3)
            assert seen(2, "isolog_partitions_without_leader") == 0
            won = sum(seen(each, "isolog_elections_total", kind="clean") for each in (2, 3))
            assert won == 1
            assert sum(seen(each, "isolog_controller") for each in (2, 3)) == 1
            cluster.restart(1)
            eventually(lambda: seen(2, "isolog_partitions_under_replicated") == 0)
