"""Quotas by the command line, and what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from tests.asking import PASSWORD, asking_broker, client_of
from tests.cli.conftest import Call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


def test_quotas_are_set_listed_and_removed_and_the_status_shows_whom_they_delayed(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISOLOG_USER", "root")
    monkeypatch.setenv("ISOLOG_PASSWORD", PASSWORD)
    with asking_broker(tmp_path, 'id = "1"\n') as broker, client_of(broker) as admin:
        monkeypatch.setenv("ISOLOG_BOOTSTRAP", broker.address)
        limits = ["--write", "8KiB/s", "--read", "10MiB", "--connections", "5"]
        assert call("quota", "set", "alice", *limits).code == 0
        assert call("quota", "set", "*", "--read", "3000B/s").code == 0
        listed = json.loads(call("quota", "list", "--output", "json").out)
        assert listed["alice"] == {
            "write_bytes_per_s": 8192,
            "read_bytes_per_s": 10 << 20,
            "connections": 5,
        }
        text = call("quota", "list").out
        for word in ("8KiB/s", "10MiB/s", "3000B/s"):
            assert word in text
        for bad in ("10", "10MB/s", "-1MiB/s", "fast"):
            refused = call("quota", "set", "alice", "--write", bad)
            assert refused.code == 2
            assert "--write takes a rate" in refused.err
        assert "delayed" not in call("cluster", "status").out

        admin.add_user("alice", PASSWORD)
        admin.add_rule("allow", "alice", "all", "topic:*")
        record = pa.record_batch({"value": pa.array([bytes(8192)], pa.binary())})
        with isolog.connect(broker.address, user="alice", password=PASSWORD) as alice:
            alice.create_topic("t")
            for _ in range(3):  # a stream begins when what was written before is paid for
                with alice.producer() as producer:
                    producer.append("t", record).result(30)
            shown = call("cluster", "status").out
            assert "the quota of alice has delayed it at broker 1: writes " in shown
            principals = json.loads(call("cluster", "status", "--output", "json").out)["principals"]
            assert principals["1"]["alice"]["connections"] == 1
            assert principals["1"]["alice"]["write_delayed_s"] > 0
        assert call("quota", "remove", "alice").code == 0
        assert call("quota", "remove", "alice").code == 1
