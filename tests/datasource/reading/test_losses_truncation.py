"""Truncated records are detected by the leader epoch, even if the log has grown since."""

from __future__ import annotations

import json
import logging

import pytest

import isolog
from isolog.errors import DataLoss
from spark_stream.consistency.entries import ENTRY_SIZE
from tests.brokers import append_entries, truncate_log
from tests.datasource.sources import Query, batch_read
from tests.support import NUMBERS, BrokerProcess, native, numbers

EARLIER = {
    "test_truncated_log_is_reported_with_partition_range_and_epochs",
}


def epoch(broker: BrokerProcess, topic: str) -> int:
    with broker.connect() as log:
        return log.describe(topic).partitions[0].leader_epoch


@pytest.fixture
def made(broker: BrokerProcess, topic: str) -> str:
    with broker.connect() as log:
        log.create_topic(topic, partitions=2, schema=NUMBERS)
    append_entries(broker, topic, 0, 100)
    return topic


@native  # without a boot id each kill counts as a power cut
def test_epoch_continues_until_the_log_differs_from_its_last_state(broker, topic):
    """After a crash of the process alone the logs are complete: the kernel has every write."""
    with broker.connect() as log:
        log.create_topic(topic, schema=NUMBERS)
    seen = [epoch(broker, topic)]
    for stop in (broker.terminate, broker.kill, broker.terminate, broker.kill):
        stop()
        broker.start()
        seen.append(epoch(broker, topic))
    assert seen == [0, 0, 0, 0, 0]
    append_entries(broker, topic, 0, 5)
    assert broker.terminate() == 0
    (entries,) = broker.directory.glob("topics/*/*/0/*.entries")
    entries.write_bytes(entries.read_bytes()[: 3 * ENTRY_SIZE])
    broker.start()  # a clean stop, but the log is not as it was left
    assert epoch(broker, topic) == 1


@pytest.mark.rule("the reaction of a query to lost records", "datasource/reading/losses.py")
@pytest.mark.parametrize("grown", [30, 90])
def test_truncated_log_is_reported_with_partition_range_and_epochs(broker, made, grown):
    query = Query(broker.address, made)
    assert query.batch() == list(range(100))
    truncate_log(broker, 60)
    append_entries(broker, made, 1000, grown)
    with pytest.raises(DataLoss) as caught:
        query.batch()
    said = caught.value.message
    assert f"{made}/0" in said
    assert "offsets 60 to 99 were truncated" in said
    assert "under leader epoch 0" in said
    assert f"in epoch 1 and ends at {60 + grown}" in said
    assert caught.value.details["partition"] == 0


@pytest.mark.quick("90-40", "90-41")
@pytest.mark.parametrize(("grown", "limit"), [(90, 40), (40, None), (90, 41)])
def test_truncated_log_is_read_if_the_next_end_equals_the_start(broker, topic, grown, limit):
    with broker.connect() as log:
        log.create_topic(topic, schema=NUMBERS)
    append_entries(broker, topic, 0, 100)
    query = Query(broker.address, topic, failOnDataLoss=False)
    assert query.batch() == list(range(100))
    truncate_log(broker, 60)
    append_entries(broker, topic, 1000, grown)
    limits = {} if limit is None else {"maxOffsetsPerTrigger": limit}
    query = Query(broker.address, topic, failOnDataLoss=False, at=query.at, **limits)
    found = []
    while batch := query.batch():
        found += batch
    assert found == list(range(1000, 1000 + grown))


@pytest.mark.quick("90")
@pytest.mark.parametrize("grown", [0, 90])
def test_without_fail_on_data_loss_all_later_records_are_read(broker, made, grown, caplog):
    query = Query(broker.address, made, failOnDataLoss=False)
    assert query.batch() == list(range(100))
    truncate_log(broker, 60)
    append_entries(broker, made, 1000, grown)
    append_entries(broker, made, 2000, 3, partition=1)
    with caplog.at_level(logging.WARNING):
        assert query.batch() == [*range(1000, 1000 + grown), 2000, 2001, 2002]
    told = [each.message for each in caplog.records if "were truncated" in each.message]
    assert len(told) == 1
    assert "offsets 60 to 99" in told[0]
    assert query.batch() == []
    append_entries(broker, made, 3000, 5)
    assert query.batch() == list(range(3000, 3005))


def test_limits_count_from_the_truncation(broker, made):
    query = Query(broker.address, made, failOnDataLoss=False, maxOffsetsPerTrigger=25)
    for first in range(0, 100, 25):
        assert query.batch() == list(range(first, first + 25))
    truncate_log(broker, 60)
    append_entries(broker, made, 1000, 90)
    found = [query.batch() for _ in range(5)]
    assert [len(each) for each in found] == [25, 25, 25, 15, 0]
    assert [number for each in found for number in each] == list(range(1000, 1090))


@pytest.mark.quick("True")
@pytest.mark.parametrize("fail", [True, False])
def test_planned_batch_is_read_after_a_truncation(broker, made, fail):
    """Its end is in Spark's checkpoint, and the offsets have other records now."""
    query = Query(broker.address, made, failOnDataLoss=fail)
    end = query.planned()
    truncate_log(broker, 60)
    append_entries(broker, made, 1000, 90)
    query.start()
    if fail:
        with pytest.raises(DataLoss, match=r"60 to 99 were (cut off|truncated)"):
            query.read(end)
        return
    assert query.read(end) == list(range(60))
    assert query.batch() == list(range(1000, 1090))


@pytest.mark.quick("True")
@pytest.mark.parametrize("fail", [True, False])
def test_task_does_not_read_other_records_after_a_truncation(broker, made, fail):
    query = Query(broker.address, made, failOnDataLoss=fail)
    (partition,) = query.reader.partitions(query.at, query.planned())
    truncate_log(broker, 60)
    append_entries(broker, made, 1000, 90)
    batches = query.reader.read(partition)
    if fail:
        with pytest.raises(DataLoss, match="offsets 60 to 99 were truncated"):
            list(batches)
        return
    assert [n for batch in batches for n in batch.column("n").to_pylist()] == list(range(60))


@native  # without a boot id each kill counts as a power cut
def test_log_without_losses_is_read_after_a_kill(broker, made):
    """Its epoch continues too: the kernel has every write."""
    query = Query(broker.address, made)
    assert query.batch() == list(range(100))
    for first in (100, 110):
        broker.kill()
        broker.start()
        query = Query(broker.address, made, at=query.at)
        append_entries(broker, made, first, 10)
        assert query.batch() == list(range(first, first + 10))
    assert query.at[made]["partitions"]["0"] == {"offset": 120, "epoch": 0}


def test_older_copy_of_the_log_is_detected_by_its_epoch(broker, made):
    query = Query(broker.address, made)
    query.batch()
    query.at[made]["partitions"]["0"]["epoch"] = 5
    with pytest.raises(DataLoss, match="an older copy"):
        query.batch()


@pytest.mark.quick("True")
@pytest.mark.parametrize("fail", [True, False])
def test_progress_as_a_start_keeps_its_epoch(broker, made, fail):
    first = Query(broker.address, made, maxOffsetsPerTrigger=80)
    first.batch()
    text = json.dumps(first.at)
    given = {"startingOffsets": text, "failOnDataLoss": fail}
    assert Query(broker.address, made, **given).batch() == list(range(80, 100))
    assert batch_read(broker.address, made, **given) == list(range(80, 100))
    truncate_log(broker, 60)
    append_entries(broker, made, 1000, 50)
    if fail:
        with pytest.raises(DataLoss, match="offsets 60 to 79 were truncated"):
            Query(broker.address, made, **given).batch()
        with pytest.raises(DataLoss, match="offsets 60 to 79 were truncated"):
            batch_read(broker.address, made, **given)
    else:
        assert Query(broker.address, made, **given).batch() == list(range(1000, 1050))
        assert batch_read(broker.address, made, **given) == list(range(1000, 1050))


@pytest.mark.parametrize("fail", [True, False])
def test_progress_is_no_start_in_a_topic_created_again(log, shared, topic, fail):
    log.create_topic(topic, schema=NUMBERS)
    _fill(log, topic, 0, 10)
    query = Query(shared.address, topic)
    query.batch()
    log.delete_topic(topic)
    log.create_topic(topic, schema=NUMBERS)
    _fill(log, topic, 100, 20)
    given = {"startingOffsets": json.dumps(query.at), "failOnDataLoss": fail}
    if fail:
        with pytest.raises(DataLoss, match="was deleted and created again"):
            Query(shared.address, topic, **given)
    else:
        assert Query(shared.address, topic, **given).batch() == list(range(100, 120))


def _fill(log: isolog.Log, topic: str, first: int, count: int) -> None:
    with log.producer() as producer:
        producer.append(topic, numbers(first, count))
