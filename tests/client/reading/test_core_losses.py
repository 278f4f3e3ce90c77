"""Consumers and removed records: truncated after they were read, or evicted before."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator

import pytest

import isolog
from isolog.errors import DataLoss, InvalidOption, OffsetEvicted
from tests.brokers import append_entries, truncate_log
from tests.support import NUMBERS, BrokerProcess, eventually, native, numbers

pytestmark = pytest.mark.slow


@pytest.fixture
def log(broker: BrokerProcess) -> Iterator[isolog.Log]:
    """A client that survives restarts of the broker. Topic ``t`` has the numbers 0 to 99."""
    with broker.connect() as found:
        found.create_topic("t", schema=NUMBERS)
        append_entries(broker, "t", 0, 100)
        yield found


def read_on(consumer: isolog.Consumer) -> list[int]:
    batches = consumer.batches(until="latest")
    return [number for batch in batches for number in batch.column("n").to_pylist()]


@pytest.mark.quick("30")
@pytest.mark.rule("a Python consumer and removed records (`on_loss`)", "client/reading/core.py")
@pytest.mark.parametrize("grown", [0, 30, 90])
def test_truncated_records_are_reported_in_a_log_that_grew_again(broker, log, grown):
    with log.consumer("t") as consumer:
        assert read_on(consumer) == list(range(100))
        truncate_log(broker, 60)
        append_entries(broker, "t", 1000, grown)
        with pytest.raises(DataLoss, match="t/0: offsets 60 to 99 were truncated") as caught:
            read_on(consumer)
        assert caught.value.details["left"] == 60
        assert "on_loss='continue'" in caught.value.hint
        assert consumer.position() == {("t", 0): 100}  # its position has not moved
        consumer.seek({("t", 0): 60})  # its user has handled the error
        assert read_on(consumer) == list(range(1000, 1000 + grown))


@pytest.mark.quick("30")
@pytest.mark.parametrize("grown", [0, 30, 90])
def test_on_loss_continue_reads_all_later_records(broker, log, grown, caplog):
    with log.consumer("t", on_loss="continue") as consumer:
        assert read_on(consumer) == list(range(100))
        truncate_log(broker, 60)
        append_entries(broker, "t", 1000, grown)
        with caplog.at_level(logging.WARNING):
            assert read_on(consumer) == list(range(1000, 1000 + grown))
        assert consumer.position() == {("t", 0): 60 + grown}
        assert read_on(consumer) == []
        told = [each.message for each in caplog.records if "were truncated" in each.message]
        assert len(told) == 1


def test_a_waiting_consumer_detects_truncated_records(broker, log, caplog):
    found: list[int] = []
    with log.consumer("t", on_loss="continue") as consumer:

        def follow() -> None:
            for batch in consumer.batches():
                found.extend(batch.column("n").to_pylist())

        follower = threading.Thread(target=follow)
        follower.start()
        eventually(lambda: len(found) == 100)
        truncate_log(broker, 60)
        append_entries(broker, "t", 1000, 5)
        eventually(lambda: found[100:] == list(range(1000, 1005)))
        consumer.close()
        follower.join(20)
        assert not follower.is_alive()


def test_a_consumer_at_its_start_detects_truncated_records(broker, log):
    """It began at the end, and other records were written there later."""
    with log.consumer("t", start="latest") as consumer:
        truncate_log(broker, 60)
        append_entries(broker, "t", 1000, 90)
        with pytest.raises(DataLoss, match="offsets 60 to 99 were truncated"):
            read_on(consumer)


def test_a_failover_without_truncation_is_no_loss(broker, log):
    with log.consumer("t") as consumer:
        batches = consumer.batches()
        found = next(batches).column("n").to_pylist()
        batches.close()
        assert found
        broker.kill()
        broker.restart()  # in a new epoch, with all records
        append_entries(broker, "t", 100, 10)
        assert found + read_on(consumer) == list(range(110))


@pytest.mark.quick("kill")
@native  # it takes the generation of an inode
@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_a_restored_backup_is_a_loss_of_later_records(broker, log, tmp_path, end):
    """The metadata store is of that time too. Only the files show that they are copies."""
    backup = tmp_path / "backup"
    with log.consumer("t") as consumer:
        getattr(broker, end)()
        shutil.copytree(broker.directory, backup)
        broker.restart()
        append_entries(broker, "t", 100, 50)
        assert read_on(consumer) == list(range(150))
        getattr(broker, end)()
        shutil.rmtree(broker.directory)
        shutil.copytree(backup, broker.directory)
        broker.restart()
        append_entries(broker, "t", 1000, 90)
        with pytest.raises(DataLoss, match="t/0: offsets 100 to 149 were truncated"):
            read_on(consumer)


@native  # without a boot id a kill costs the epoch
def test_a_moved_log_is_no_loss(broker, log):
    """The same files under another name. The epoch continues, and no loss is reported."""
    with log.consumer("t") as consumer:
        assert len(read_on(consumer)) == 100
        broker.kill()
        elsewhere = broker.directory.with_name("elsewhere")
        broker.directory.rename(elsewhere)
        with BrokerProcess(elsewhere, broker.address) as moved:
            append_entries(moved, "t", 100, 1)
            assert read_on(consumer) == [100]
            assert "cannot vouch" not in moved.log_text()


@pytest.mark.quick("3")
@pytest.mark.parametrize("grown", [0, 3])
def test_a_truncated_bound_ends_a_read_until_latest(broker, log, grown):
    """There are more batches than are prefetched. The log is truncated after the first one."""
    count = 1 << 19
    log.create_topic("big", schema=NUMBERS)
    with log.producer() as producer:
        for number in range(12):
            producer.append("big", numbers(number * count, count), 0)
    with log.consumer("big") as consumer:
        batches = consumer.batches(until="latest")
        rows = next(batches).num_rows
        truncate_log(broker, 9, topic="big")
        append_entries(broker, "big", 0, grown)
        watchdog = threading.Timer(30, consumer.close)
        watchdog.start()
        assert rows + sum(batch.num_rows for batch in batches) == 9 * count + grown
        assert watchdog.is_alive(), "it went on until the consumer was closed"
        watchdog.cancel()
        watchdog.join()
        assert consumer.position() == {("big", 0): 9 * count + grown}


def test_a_named_consumer_detects_truncation_between_its_runs(broker, log):
    with log.consumer("t", name="reader") as consumer:
        assert read_on(consumer) == list(range(100))
        consumer.commit()
    truncate_log(broker, 60)
    append_entries(broker, "t", 1000, 90)
    with log.consumer("t", name="reader") as consumer:
        assert consumer.position() == {("t", 0): 100}
        with pytest.raises(DataLoss, match="offsets 60 to 99 were truncated"):
            read_on(consumer)
    with log.consumer("t", name="reader", on_loss="continue") as consumer:
        assert read_on(consumer) == list(range(1000, 1090))
        consumer.commit()
    with log.consumer("t", name="reader") as consumer:
        assert read_on(consumer) == []


def test_evicted_records_fail_or_are_skipped(tmp_path):
    with (
        BrokerProcess(tmp_path / "log", conf="housekeeping_seconds = 0.05\n") as broker,
        broker.connect() as log,
    ):
        log.create_topic("t", schema=NUMBERS, config={"segment.entries": 16})
        append_entries(broker, "t", 0, 100)
        with log.consumer("t") as failing, log.consumer("t", on_loss="continue") as going_on:
            log.alter_topic("t", config={"retention.bytes": 1})
            eventually(lambda: log.describe("t").partitions[0].log_start_offset)
            with pytest.raises(OffsetEvicted):
                read_on(failing)
            found = read_on(going_on)
            assert 0 < len(found) < 100
            assert found == list(range(100 - len(found), 100))


def test_an_invalid_on_loss_is_refused(log):
    with pytest.raises(InvalidOption, match="on_loss takes fail"):
        log.consumer("t", on_loss="panic")
