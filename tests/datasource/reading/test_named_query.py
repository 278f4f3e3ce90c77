"""A query under a consumer's name: its pinned start, and its displayed progress."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
from typing import Any

import psutil
import pytest

import isolog
from isolog.errors import BrokerUnavailable, DataLoss, InvalidOption
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.consistency.isolation import ReaderEnding, ReaderState
from spark_stream.datasource.reading import named_query
from spark_stream.wire.consumer_messages import ConsumerDescription, PinStart, RecordProgress
from tests.conftest import ROOT
from tests.datasource.sources import Query, batch_read
from tests.support import NUMBERS, numbers


def fill(log: isolog.Log, topic: str, first: int, count: int, partition: int = 0) -> None:
    with log.producer() as producer:
        producer.append(topic, numbers(first, count), partition=partition)


@pytest.fixture
def ten(log: isolog.Log, topic: str) -> str:
    log.create_topic(topic, schema=NUMBERS)
    fill(log, topic, 0, 10)
    return topic


def seen(log: isolog.Log, name: str) -> ConsumerDescription:
    [found] = log.describe_consumer(name)
    return found


@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": "latest"},
        {"startingTimestamp": "2200-01-01"},
        {"startingOffsets": '{"T": {"0": -1}}'},
        {"startingOffsets": '{"T": {"0": 99}}', "failOnDataLoss": "false"},
    ],
    ids=lambda start: next(iter(start.values())),
)
def test_query_that_failed_in_its_first_batch_restarts_at_its_first_start(shared, log, ten, start):
    """With the same checkpoint or a new one, and without an empty first batch."""
    options = {name: text.replace("T", ten) for name, text in start.items()}
    options["consumer"] = ten
    query = Query(shared.address, ten, **options)
    first = query.at
    fill(log, ten, 10, 5)
    end = query.planned()
    assert end != first
    again = Query(shared.address, ten, **options)  # Spark requests the start again
    assert again.at == first
    assert again.read(end) == [10, 11, 12, 13, 14]
    fill(log, ten, 15, 5)
    new = Query(shared.address, ten, **options)  # with a new checkpoint
    assert new.batch() == list(range(10, 20))


def test_recorded_start_takes_precedence_over_options_with_a_warning(shared, log, ten, caplog):
    Query(shared.address, ten, consumer=ten, startingOffsets="latest")
    fill(log, ten, 10, 2)
    with caplog.at_level(logging.WARNING):
        assert Query(shared.address, ten, consumer=ten).batch() == [10, 11]
    assert (
        "recorded start (startingOffsets=latest) and ignores startingOffsets=earliest"
        in caplog.text
    )
    log.delete_consumer(ten)
    assert Query(shared.address, ten, consumer=ten).batch() == list(range(12))


def test_two_concurrent_runs_get_one_start(shared, log, ten):
    """Both look up the start and find none. The second to pin one gets that of the first."""
    one = Query(shared.address, ten, consumer=ten, startingOffsets="latest")
    log.delete_consumer(ten)
    pinned = []
    call = ClusterConnection.call

    def late(self: ClusterConnection, asked: Any, *more: Any, **options: Any) -> Any:
        answer = call(self, asked, *more, **options)
        if isinstance(asked, PinStart) and asked.start is None and not pinned:
            pinned.append(True)
            fill(log, ten, 10, 3)
            other.start()
            fill(log, ten, 13, 3)  # so that the other run alone would start elsewhere
        return answer

    other = Query(shared.address, ten, at={}, consumer=ten, startingOffsets="latest")
    other.at = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterConnection, "call", late)
        one.at = None
        one.start()
    assert one.at == other.at
    assert one.at[ten]["partitions"]["0"]["offset"] == 13


def test_consumer_name_belongs_to_one_selection(shared, log, ten):
    other = f"{ten}-other"
    log.create_topic(other, schema=NUMBERS)
    Query(shared.address, ten, consumer=ten)
    with pytest.raises(
        InvalidOption, match=f"reads subscribe {ten}, but this query reads"
    ) as caught:
        Query(shared.address, f"{other},{ten}", consumer=ten)
    assert f"isolog consumers delete {ten}" in str(caught.value.hint)
    for same in ({"assign": f'{{"{ten}": [0]}}'}, {"subscribePattern": ten}):
        with pytest.raises(InvalidOption, match="this query reads"):
            Query(shared.address, None, consumer=ten, **same)


def test_query_continues_from_its_checkpoint_with_another_selection_and_keeps_its_name(
    shared, log, ten
):
    query = Query(shared.address, ten, consumer=ten)
    assert query.batch() == list(range(10))
    log.create_topic(f"{ten}-b", schema=NUMBERS)
    fill(log, f"{ten}-b", 20, 2)
    query = Query(shared.address, None, at=query.at, consumer=ten, subscribePattern=f"{ten}.*")
    assert query.batch() == [20, 21]
    query.planned()
    assert seen(log, ten).selection == f"subscribePattern {ten}.*"


@pytest.mark.parametrize("fail", [True, False])
def test_topic_created_again_after_the_start_was_pinned(shared, log, ten, caplog, fail):
    options = {"consumer": ten, "startingOffsets": "latest", "failOnDataLoss": fail}
    Query(shared.address, ten, **options)
    before = log.describe(ten).id
    log.delete_topic(ten)
    log.create_topic(ten, schema=NUMBERS)
    fill(log, ten, 50, 2)
    now = log.describe(ten).id
    for read in (
        lambda: Query(shared.address, ten, **options).batch(),
        batch_of(shared, ten, fail),
    ):
        with caplog.at_level(logging.WARNING):
            if fail:
                with pytest.raises(DataLoss, match=f"its id was {before}, now it is {now}"):
                    read()
            else:
                assert read() == [50, 51]
                assert f"its id was {before}, now it is {now}" in caplog.text


def batch_of(shared: Any, topic: str, fail: bool) -> Any:
    return lambda: batch_read(shared.address, topic, consumer=topic, failOnDataLoss=fail)


def test_batch_query_begins_at_its_pinned_start(shared, log, ten):
    """A job with a moving start reads the same records, and later ones."""
    options = {"startingTimestamp": "2200-01-01", "consumer": ten}
    assert batch_read(shared.address, ten, **options) == []
    fill(log, ten, 10, 3)
    assert batch_read(shared.address, ten, **options) == [10, 11, 12]
    assert seen(log, ten).partitions == ()


# -- progress -------------------------------------------------------------------------------------


def test_progress_has_the_committed_offsets_and_the_lag_of_the_level(shared, log, ten):
    options = {"consumer": ten, "isolation": "read_committed", "maxOffsetsPerTrigger": 4}
    query = Query(shared.address, ten, **options)
    query.batch()
    found = seen(log, ten)
    assert [(at.offset, at.end, at.lag) for at in found.partitions] == [(0, 10, 10)]
    assert found.started_ms <= found.recorded_ms
    with log.producer(transactional_id=ten) as producer:
        producer.begin_transaction()
        producer.append(ten, numbers(10, 5))
        producer.flush()
        end = query.planned()
        found = seen(log, ten)
        assert [(at.offset, at.end, at.lag) for at in found.partitions] == [(4, 15, 11)]
        assert (found.kind, found.isolation, found.lag) == ("query", "read_committed", 11)
        assert found.held_back == 5
        producer.abort_transaction()
    query.reader.commit(query.read(end) and query.at)
    assert seen(log, ten).partitions[0].offset == 8


def test_a_later_run_takes_the_name_and_the_earlier_reads_on(shared, log, ten, caplog):
    one = Query(shared.address, ten, consumer=ten)
    one.batch()
    other = Query(shared.address, ten, at=one.at, consumer=ten)
    fill(log, ten, 10, 2)
    assert other.batch() == [10, 11]
    other.planned()
    with caplog.at_level(logging.WARNING):
        assert one.batch() == [10, 11]
        fill(log, ten, 12, 1)
        assert one.batch() == [12]
    assert caplog.text.count("another query has started under the name") == 1
    assert seen(log, ten).partitions[0].offset == 12


def test_failure_to_store_progress_is_logged_once_and_fails_no_query(
    shared, log, ten, caplog, monkeypatch
):
    query = Query(shared.address, ten, consumer=ten, maxOffsetsPerTrigger=3)
    asked = []

    call = ClusterConnection.call

    def lost(self: ClusterConnection, sent: Any, *more: Any, **options: Any) -> Any:
        if not isinstance(sent, RecordProgress):
            return call(self, sent, *more, **options)
        asked.append(1)
        raise BrokerUnavailable("nobody answers")

    monkeypatch.setattr(ClusterConnection, "call", lost)
    with caplog.at_level(logging.WARNING):
        assert [n for _ in range(4) for n in query.batch()] == list(range(10))
    assert caplog.text.count("could not be stored") == 1
    assert len(asked) == 1  # and no later micro-batch waits for it


def test_deleted_name_is_created_again_by_the_next_progress(shared, log, ten):
    query = Query(shared.address, ten, consumer=ten)
    query.batch()
    log.delete_consumer(ten)
    query.planned()
    found = seen(log, ten)
    assert (found.started_ms, found.partitions[0].offset) == (None, 10)
    fill(log, ten, 10, 1)
    assert Query(shared.address, ten, consumer=ten, startingOffsets="latest").batch() == []


def test_deleted_topic_has_neither_end_nor_lag(shared, log, ten):
    query = Query(shared.address, ten, consumer=ten)
    query.batch()
    query.planned()
    log.delete_topic(ten)
    [at] = seen(log, ten).partitions
    assert (at.offset, at.end, at.lag, seen(log, ten).lag) == (10, None, None, None)


def test_a_client_and_a_query_may_share_a_name(shared, log, ten):
    with log.consumer(ten, name=ten) as consumer:
        assert sum(len(each) for each in consumer.batches(until="latest")) == 10
        consumer.commit()
    query = Query(shared.address, ten, consumer=ten, startingOffsets="latest")
    query.planned()
    client, named = log.describe_consumer(ten)
    assert (client.kind, client.partitions[0].offset) == ("client", 10)
    assert client.isolation == "read_uncommitted"
    assert (named.kind, named.partitions[0].offset) == ("query", 10)
    assert [each.name for each in log.consumers() if each.name == ten] == [ten, ten]
    log.delete_consumer(ten)
    with pytest.raises(isolog.errors.UnknownConsumer, match=ten):
        log.describe_consumer(ten)
    with pytest.raises(isolog.errors.UnknownConsumer, match=ten):
        log.delete_consumer(ten)


@pytest.mark.parametrize("text", ["", "  ", "x" * 256])
def test_consumer_name_must_not_be_empty_or_too_long(shared, ten, text):
    with pytest.raises(InvalidOption, match="consumer takes a text of 1 to 255 characters"):
        Query(shared.address, ten, consumer=text)


RUN = """
import os, signal, sys, threading, time
from spark_stream.client.reading.named_reader import ReaderHeartbeats
from spark_stream.datasource.reading import named_query as naming
from tests.conftest import ROOT
from tests.datasource.sources import Query

EARLIER = {
    "test_query_that_failed_in_its_first_batch_restarts_at_its_first_start",
    "test_recorded_start_takes_precedence_over_options_with_a_warning",
}

naming.is_worker = lambda module: True
query = Query(sys.argv[1], sys.argv[2], consumer=sys.argv[2])
query.batch()
send = ReaderHeartbeats._send


def interrupted(self, *given):  # by the second SIGTERM that Spark sends, while the end is recorded
    if self._is_over:
        os.kill(os.getpid(), signal.SIGTERM)
    send(self, *given)


ReaderHeartbeats._send = interrupted
os.kill(os.getpid(), signal.SIGTERM) if sys.argv[3] == "terminated" else query.reader.stop()
"""


@pytest.mark.quick("terminated")
@pytest.mark.parametrize("ended", ["terminated", "stopped"])
def test_a_second_sigterm_does_not_lose_the_end_of_a_query(shared, log, ten, ended):
    command = [sys.executable, "-c", RUN, shared.address, ten, ended]
    subprocess.run(command, cwd=ROOT, timeout=60)
    assert seen(log, ten).state is ReaderState.STOPPED


@pytest.mark.parametrize(("looks", "state"), [(3, ReaderState.GONE), (None, ReaderState.STOPPED)])
def test_query_whose_jvm_is_dying_at_its_end_is_lost(shared, log, ten, monkeypatch, looks, state):
    """A killed JVM still runs for some moments after its sockets are closed."""
    query = Query(shared.address, ten, consumer=ten)
    query.batch()
    seen_running = itertools.count()
    monkeypatch.setattr(named_query, "_JVM_END_S", 0.1 if looks is None else 60.0)
    monkeypatch.setattr(
        named_query, "is_running", lambda jvm: looks is None or next(seen_running) < looks
    )
    query.reader._named._jvm = psutil.Process()
    query.reader.stop()
    assert seen(log, ten).state is state


def test_pinned_start_is_a_streaming_offset(shared, log, ten):
    query = Query(shared.address, ten, consumer=ten)
    assert json.loads(json.dumps(query.at))[ten]["cluster"] == log.status().cluster_id


def test_restarted_query_is_not_lost_while_it_repeats_its_last_batch(shared, log, ten):
    """Spark reads a planned batch again before it plans another one."""
    killed = Query(shared.address, ten, consumer=ten)
    first, end = killed.at, killed.planned()
    killed.reader._named._heartbeats.end(ReaderEnding.LOST)
    assert seen(log, ten).state is ReaderState.GONE
    restarted = Query(shared.address, ten, at=first, consumer=ten)
    restarted.reader.partitions(first, end)
    assert seen(log, ten).state is ReaderState.CATCHING_UP
