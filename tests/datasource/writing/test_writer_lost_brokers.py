"""The wait of a query for a broker that was killed or hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from isolog.errors import BrokerUnavailable, IsologError, WrongCluster
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.source import IsologDataSource
from spark_stream.datasource.spark import session
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.writing.identity import NOTE, BranchIdentity
from spark_stream.datasource.writing.writer import IsologStreamWriter
from spark_stream.wire.limits import REQUEST_TIMEOUT_S
from tests.datasource.sources import Query
from tests.support import NUMBERS, BrokerProcess, free_port, numbers


@pytest.mark.rule(
    "the time that a query waits for brokers",
    "datasource/spark/session.py",
    "datasource/spark/place.py",
)
def test_query_waits_for_its_broker_up_to_the_timeout(broker):
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
        with log.producer() as producer:
            producer.append("t", numbers(0, 3)).result()
    query = Query(broker.address, "t", brokerTimeout="1s")
    assert query.batch() == [0, 1, 2]
    broker.kill()
    begun = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        query.planned()
    assert 0.5 < time.monotonic() - begun < REQUEST_TIMEOUT_S


@pytest.mark.parametrize(("fault", "process"), [("pause", "this"), ("kill", "another")])
def test_the_plan_of_a_batch_leaves_the_wait_for_brokers_to_its_tasks(
    broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    process: str,
) -> None:
    """Spark interrupts tasks when it stops a query, and does not interrupt the planner."""
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
    given = {"bootstrap": broker.address, "topic": "t", "brokerTimeout": "10s"}
    options = sink_options({**given, "checkpointLocation": str(tmp_path)})

    def planned() -> IsologStreamWriter:
        return IsologStreamWriter(options, to_spark(NUMBERS))

    before = planned()._task.options.place
    monkeypatch.setattr(session, "_BRIEF_S", 0.2)
    if process == "another":
        monkeypatch.setattr(session, "_sessions", {})
    getattr(broker, fault)()
    writer = planned()
    assert writer._task.seen is None
    after = writer._task.options.place
    assert (after.cluster_id, after.timeout_s) == (before.cluster_id, 10.0)
    if fault == "pause":
        broker.resume()
    else:
        broker.restart()
    writer._task = replace(writer._task, identity=BranchIdentity("query/q", "q", "run", 1))
    writer.commit([writer.write(iter([numbers(0, 3)]))], 1)
    with broker.connect() as log:
        assert log.read("t", isolation="read_committed")["n"].to_pylist() == [0, 1, 2]


def test_the_first_plan_of_a_query_waits_for_its_log(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks would accept any log."""
    monkeypatch.setattr(session, "_BRIEF_S", 0.2)
    given = {"bootstrap": broker.address, "topic": "t", "brokerTimeout": "1s"}
    options = sink_options({**given, "checkpointLocation": str(tmp_path)})
    broker.pause()
    with pytest.raises(IsologError) as raised:
        IsologStreamWriter(options, to_spark(NUMBERS))
    assert raised.value.retriable
    (tmp_path / NOTE).write_text('{"cluster_id": "another"}')
    broker.resume()
    with pytest.raises(WrongCluster):
        IsologStreamWriter(options, to_spark(NUMBERS))


def test_restarted_query_whose_addresses_are_all_dead_fails_with_the_remedy():
    """Spark gets the columns of a source before it reads the checkpoint."""
    dead = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    given = {"bootstrap": dead, "subscribe": "t", "brokerTimeout": "1s"}
    with pytest.raises(BrokerUnavailable, match="their new addresses in bootstrap"):
        IsologDataSource(given).schema()
