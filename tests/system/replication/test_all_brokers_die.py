"""All brokers are killed and one restarts: committed records are readable."""

from __future__ import annotations

import json

import pytest

from isolog.testing import LocalCluster
from spark_stream.storage.log.high_watermarks import NAME
from tests.support import NUMBERS, eventually, native, numbers

pytestmark = pytest.mark.slow  # starts three brokers


@pytest.mark.quick("read_committed")
@native  # without a boot id, a kill counts as a restart of the machine
@pytest.mark.parametrize("isolation", ["read_replicated", "read_committed"])
def test_committed_records_are_readable_below_min_insync_replicas(tmp_path, isolation):
    with LocalCluster(3, folder=tmp_path) as cluster:
        with cluster.connect() as log:
            config = {"min.insync.replicas": "2"}
            log.create_topic("t", 1, schema=NUMBERS, replication_factor=3, config=config)
            with log.producer(isolation="read_committed") as producer:
                producer.append("t", numbers(0, 100), partition=0).result(30)
            key = f"{log.describe('t').id}/0"
        marks = [path for path in tmp_path.rglob("*") if path.name == "isolog.json"]

        def are_marks_stored() -> bool:
            files = [each.with_name(NAME) for each in marks]
            texts = [each.read_text().splitlines()[1] for each in files if each.exists()]
            return [json.loads(each).get(key, [0])[0] for each in texts] == [1, 1, 1]

        eventually(are_marks_stored)
        for number in (1, 2, 3):
            cluster.pause(number)  # so that no broker removes a dead one from the ISR
        for number in (1, 2, 3):
            cluster.kill(number)
        cluster.restart(2)
        with cluster.connect() as log:
            eventually(lambda: log.describe("t").partitions[0].high_watermark == 100)
            table = log.read("t", isolation=isolation)
            assert table["n"].to_pylist() == list(range(100))
