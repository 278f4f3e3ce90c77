"""Lakes in the console: lag by the brokers, tables and cuts by the location, and hidden topics."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

import isolog
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.console.client import ConsoleClient
from spark_stream.console.lakes import lakes_of, tables_of
from tests.console.test_app_api import console_of
from tests.secure_brokers import PASSWORD, admin, as_, asking
from tests.support import BrokerProcess

__all__ = ["admin", "asking"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
SCHEMA = pa.schema([("n", pa.int64())])


def append(log: isolog.Log, topic: str, count: int) -> None:
    with log.producer() as producer:
        producer.append(topic, pa.table({"n": range(count)}, schema=SCHEMA)).result(60)


def listed(broker: BrokerProcess) -> list[dict[str, Any]]:
    with closing(ConsoleClient(ClusterConnection(broker.address))) as client:
        return lakes_of(client.log, client.partitions())


def test_lag_tables_and_cuts_of_a_lake(broker: BrokerProcess, tmp_path):
    with isolog.connect(broker.address) as log, console_of(broker) as console:
        log.create_topic("t", schema=SCHEMA)
        append(log, "t", 10)
        made = log.create_lake("shop", "t", tmp_path)
        isolog.LakeWorker(log, "shop").run_once()
        append(log, "t", 7)
        found = console.get("/api/lake", params={"lake": "shop"}).json()
        (table,) = found["tables"]
        assert (table["topic"], table["files"], table["problem"]) == ("t", 1, None)
        assert table["size"] > 0
        (cut,) = found["cuts"]
        assert cut["versions"] == {"t": table["version"]}
        missing = console.get("/api/lake", params={"lake": "none"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "UNKNOWN_LAKE")
        (lake,) = listed(broker)
        assert (lake["name"], lake["stopped"], lake["location"]) == ("shop", "", str(tmp_path))
        assert lake["worker"] == "reporting"
        ((place,),) = [each["partitions"] for each in lake["topics"]]
        assert (place["recorded"], place["last_stable"], place["lag"]) == (10, 17, 7)
        log._lakes.record_progress("shop", made.id, {}, "it was restored")
        log.delete_topic("t")
        (lake,) = listed(broker)
        assert (lake["stopped"], lake["topics"][0]["partitions"]) == ("it was restored", [])
        assert lake["worker"] == "stopped"


def test_location_out_of_reach_is_an_answer(broker: BrokerProcess, tmp_path):
    (tmp_path / "file").touch()
    with isolog.connect(broker.address) as log, console_of(broker) as console:
        log.create_topic("t", schema=SCHEMA)
        log.create_lake("shop", "t", tmp_path / "file", check=False)
        answer = console.get("/api/lake", params={"lake": "shop"})
        assert answer.json()["error"]["code"] == "LAKE_UNAVAILABLE"
        assert answer.status_code == 503
        assert [each["name"] for each in listed(broker)] == ["shop"]


def test_hidden_topics_of_a_lake_are_in_no_table_and_cut(asking, admin, tmp_path):
    alice = "alice"
    admin.add_user(alice, PASSWORD)
    with as_(asking, "root") as log:
        for name in ("a-seen", "b-hidden"):
            log.create_topic(name, schema=SCHEMA)
            append(log, name, 3)
        log.create_lake("a-both", ["a-seen", "b-hidden"], tmp_path)
        isolog.LakeWorker(log, "a-both").run_once()
        admin.add_rule("allow", alice, "describe", "lake:a-both")
        admin.add_rule("allow", alice, "read", "topic:a-seen")
        with as_(asking, alice) as seen:
            shown = tables_of(seen, "a-both")
        assert [each["topic"] for each in shown["tables"]] == ["a-seen"]
        assert [list(each["versions"]) for each in shown["cuts"]] == [["a-seen"]]
        log.drop_lake("a-both")
