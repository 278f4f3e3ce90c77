"""Transactions whose broker is killed, or whose answers are lost, stay atomic."""

from __future__ import annotations

import threading

import pytest

import isolog
from isolog.errors import (
    InvalidTransaction,
    IsologError,
)
from tests.client.proxy import Proxy
from tests.client.writing.seen import entries, found
from tests.faults import FaultyBroker
from tests.support import BrokerProcess, eventually, values

pytestmark = pytest.mark.slow  # each test uses a broker


def test_a_commit_waits_for_a_restarting_broker(broker):
    with broker.connect() as log:
        log.create_topic("t", partitions=2)
        with log.producer(transactional_id="loader") as producer:
            for turn in range(3):
                producer.begin_transaction()
                producer.append("t", values(str(4 * turn)), 0).result(20)
                broker.kill()
                waiting = producer.append("t", values(str(4 * turn + 1)), 0)
                broker.restart()
                producer.append("t", values(str(4 * turn + 2)), 1)
                producer.commit_transaction()
                assert waiting.result(0).offset == 2 * turn + 1
        assert found(log, "t") == [0, 1, 4, 5, 8, 9, 2, 6, 10]


def test_a_transaction_can_be_aborted_after_a_kill_of_the_broker(broker):
    with broker.connect() as log:
        log.create_topic("t")
        with log.producer(transactional_id="loader") as producer:
            producer.begin_transaction()
            producer.append("t", values("0")).result(20)
            broker.kill()
            broker.restart()
            producer.abort_transaction()
            with producer.transaction():
                producer.append("t", values("1"))
        assert found(log, "t") == [1]


def test_calls_of_a_transaction_are_retried_after_lost_answers(broker):
    """The answers to its writes and its commit are lost. A retried call gets the lost answer."""
    with broker.connect() as direct, Proxy(broker.address) as proxy:
        direct.create_topic("t")
        with (
            isolog.connect(proxy.address, timeout=5) as log,
            log.producer(transactional_id="loader") as producer,
        ):
            for turn in range(3):
                producer.begin_transaction()
                producer.append("t", values(str(3 * turn))).result(20)
                proxy.lose_answers()
                for row in (1, 2):
                    producer.append("t", values(str(3 * turn + row)))
                eventually(lambda turn=turn: entries(direct, "t") == 3 * turn + 3)
                proxy.cut()
                producer.flush()
                proxy.lose_answers()
                cutter = threading.Thread(
                    target=lambda turn=turn: (
                        eventually(lambda: len(found(direct, "t")) == 3 * turn + 3),
                        proxy.cut(),
                    )
                )
                cutter.start()
                producer.commit_transaction()
                cutter.join()
        assert found(direct, "t") == list(range(9))


def test_an_unanswered_commit_can_be_retried(broker):
    with broker.connect(timeout=1) as log:
        log.create_topic("t")
        with log.producer(transactional_id="loader") as producer:
            producer.begin_transaction()
            producer.append("t", values("0")).result(20)
            broker.kill()
            with pytest.raises(IsologError) as caught:
                producer.commit_transaction()
            assert caught.value.retriable
            broker.restart()
            producer.commit_transaction()
            with producer.transaction():
                producer.append("t", values("1"))
        assert found(log, "t") == [0, 1]


def test_after_an_unanswered_commit_writes_are_refused(broker):
    with broker.connect(timeout=1) as log:
        log.create_topic("t")
        with log.producer(transactional_id="loader") as producer:
            producer.begin_transaction()
            producer.append("t", values("0")).result(20)
            broker.kill()
            with pytest.raises(IsologError):
                producer.commit_transaction()
            for write in (producer.append, producer.send):
                with pytest.raises(InvalidTransaction, match="outcome of the commit"):
                    write("t", values("1") if write == producer.append else b"1")
            broker.restart()
            producer.commit_transaction()
        assert found(log, "t") == [0]


@pytest.mark.full  # one commit: the tests below
def test_a_committed_transaction_is_never_reported_as_aborted(tmp_path):
    """The commit is decided, and its answer and that of a later abort are lost."""
    with FaultyBroker(tmp_path / "log", "finished") as broker, broker.connect(timeout=1) as log:
        log.create_topic("t")
        with log.producer(transactional_id="loader") as producer:
            for end in ("commit again", "abort again"):
                producer.begin_transaction()
                producer.append("t", values("0")).result(20)
                broker.arm()
                with pytest.raises(IsologError) as caught:
                    producer.commit_transaction()
                assert caught.value.retriable
                with pytest.raises(IsologError) as caught:
                    producer.abort_transaction()
                assert caught.value.retriable
                broker.restart()
                if end == "commit again":
                    producer.commit_transaction()
                    continue
                with pytest.raises(InvalidTransaction, match="is committed"):
                    producer.abort_transaction()
            with producer.transaction():
                producer.append("t", values("1"))
        assert found(log, "t") == [0, 0, 1]


def test_an_exception_is_raised_although_no_broker_answers(broker, caplog):
    with broker.connect(timeout=1) as log:
        log.create_topic("t")
        with log.producer(transactional_id="loader", timeout_ms=1000) as producer:

            def fail() -> None:
                with producer.transaction():
                    producer.append("t", values("0")).result(20)
                    broker.kill()
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                fail()
            assert "cannot abort" in caplog.text
            broker.restart()
            with producer.transaction():
                producer.append("t", values("1"))
        assert found(log, "t") == [1]


def test_the_next_run_aborts_the_transaction_of_a_killed_process(broker: BrokerProcess):
    with broker.connect() as log:
        log.create_topic("t")
        left = log.producer(transactional_id="loader")
        left.begin_transaction()
        left.append("t", values("0")).result(20)
        broker.kill()
        broker.restart()
        with log.producer(transactional_id="loader") as producer, producer.transaction():
            producer.append("t", values("1"))
        assert found(log, "t") == [1]
        left.close()
