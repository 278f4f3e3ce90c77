"""One batch of a stream of appends. Only access to its transaction's record needs a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolog.errors import InternalError, NotLeader, RequestTimeout
from spark_stream.broker.host.hosted_topic import HostedTopic
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.scripting.coordinator import StreamJoins
from spark_stream.broker.serving.append_batch import Append, AttemptResult, StreamFacts
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.transactions import events as rules
from spark_stream.consistency.transactions.transactions import Allotted
from spark_stream.environment import SystemClock
from spark_stream.scripts.transactions.deciding import Decisions
from spark_stream.scripts.transactions.finishing import Finisher
from spark_stream.scripts.transactions.records import as_judge, change
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import LogSettings
from spark_stream.wire.stream_messages import Acknowledged, AppendTo, Envelope, ack_from_bytes
from tests.scripts.on_store import OnStore
from tests.scripts.world import here
from tests.simulation.clock import VirtualClock
from tests.simulation.store import MemoryRecords, MemoryStore
from tests.support import NUMBERS, numbers

NUMBER, PRODUCER = 1, 2


class Setting:
    """A partition, and a store with an open transaction of the transactional id ``x``."""

    def __init__(self, directory: Path) -> None:
        log = PartitionLog.open(directory, LogFormat(NUMBERS))
        self.partition = Partition("t", "id", 0, log, 10**15, SystemClock())
        self.hosted = HostedTopic(
            Topic("t", "id", NUMBERS, 1, {}), LogSettings(), NotLeader, {0: self.partition}
        )
        self.clock = VirtualClock()
        self.brokers = OnStore(MemoryStore(MemoryRecords()))
        self.run = self.brokers.run
        self.run(change("x", as_judge(lambda found: rules.init(found, "me", 60_000, 0))))
        allotted = Allotted(NUMBER, PRODUCER)
        self.run(change("x", as_judge(lambda found: rules.begin(found, "me", -1, allotted, 0))))

    def open_stream(self, transactional_id: str | None = "x") -> StreamFacts:
        request = AppendTo(topic="t", isolation=Isolation.READ_UNCOMMITTED, timeout_ms=1_000)
        joins = StreamJoins(Decisions(Finisher(), here), transactional_id)
        return StreamFacts(request, self.clock, joins)

    def new_append(self, stream: StreamFacts, stamp: Stamp | None = None) -> Append:
        return Append(stream, self.hosted, Envelope(partition=0, stamp=stamp), numbers(0, 3))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def stamp(sequence: int) -> Stamp:
    return Stamp(PRODUCER, 0, sequence, NUMBER)


def try_once(append: Append) -> AttemptResult:
    """Run the steps that need no script. Return the result."""
    tried = append.prepare()
    return append.take() if tried is AttemptResult.READY else tried


def offset_of(append: Append) -> int:
    answer = ack_from_bytes(append.answer)
    assert isinstance(answer, Acknowledged)
    return answer.offset


def test_batches_outside_transactions_are_appended_by_one_call(setting):
    stream = setting.open_stream(None)
    appends = [setting.new_append(stream) for _ in range(2)]
    assert [try_once(each) for each in appends] == [AttemptResult.ANSWERED] * 2
    assert [offset_of(each) for each in appends] == [0, 3]


def test_only_first_batch_of_a_transaction_in_a_partition_needs_a_script(setting):
    stream = setting.open_stream()
    first = setting.new_append(stream, stamp(0))
    assert first.prepare() is AttemptResult.UNJOINED
    assert setting.run(first.join()) is AttemptResult.READY
    assert first.take() is AttemptResult.ANSWERED
    setting.brokers.steps.clear()
    second = setting.new_append(stream, stamp(1))
    assert try_once(second) is AttemptResult.ANSWERED
    assert (offset_of(first), offset_of(second)) == (0, 3)
    assert setting.brokers.steps == []


def test_partitions_of_a_group_join_append_their_first_batches_without_a_script(setting):
    stream = setting.open_stream()
    setting.run(stream.joins.join_together([setting.partition], stamp(0)))
    assert try_once(setting.new_append(stream, stamp(0))) is AttemptResult.ANSWERED


def test_each_stream_must_prove_ownership_of_its_transaction(setting):
    """The join by another stream's batch does not prove the identity of this stream's client."""
    setting.run(setting.open_stream().joins.join_together([setting.partition], stamp(0)))
    other = setting.new_append(setting.open_stream("y"), stamp(0))
    assert try_once(other) is AttemptResult.UNJOINED
    assert setting.run(other.join()) is AttemptResult.ANSWERED
    assert setting.partition.bounds().log_end_offset == 0
    own = setting.new_append(setting.open_stream(), stamp(0))
    assert own.prepare() is AttemptResult.UNJOINED
    assert setting.run(own.join()) is AttemptResult.READY
    assert own.take() is AttemptResult.ANSWERED


def test_refusal_of_a_batch_of_an_aborted_transaction_has_the_reason_of_its_record(setting):
    stream = setting.open_stream()
    setting.run(stream.joins.join_together([setting.partition], stamp(0)))
    setting.run(change("x", as_judge(lambda found: rules.kill(found, NUMBER))))
    assert (
        try_once(setting.new_append(stream, stamp(0))) is AttemptResult.ANSWERED
    )  # the partition is not sealed yet
    later = setting.new_append(stream, stamp(1))
    assert later.prepare() is AttemptResult.READY
    setting.partition.transactions.end(NUMBER, lambda _: False)
    assert later.take() is AttemptResult.REFUSED
    assert setting.run(later.explain()) is AttemptResult.ANSWERED
    error = ack_from_bytes(later.answer).error
    assert "an operator aborted it" in error.message


def test_held_partition_takes_the_batch_after_its_release(setting):
    append = setting.new_append(setting.open_stream(None))
    with setting.partition._state.lock:
        assert try_once(append) is AttemptResult.HELD
        assert append.held is setting.partition
    assert try_once(append) is AttemptResult.ANSWERED


def test_join_of_a_held_partition_opens_no_join(setting):
    append = setting.new_append(setting.open_stream(), stamp(0))
    assert try_once(append) is AttemptResult.UNJOINED
    with setting.partition._state.lock:
        assert setting.run(append.join()) is AttemptResult.HELD
    assert len(setting.partition.core.joins) == 0


def test_batch_that_is_tried_after_its_timeout_is_refused(setting):
    append = setting.new_append(setting.open_stream(None))
    setting.clock.move_to(1.5)
    assert try_once(append) is AttemptResult.ANSWERED
    assert isinstance(ack_from_bytes(append.answer).error, RequestTimeout)
    assert setting.partition.bounds().log_end_offset == 0


def test_batch_in_a_transaction_needs_a_transactional_id(setting):
    append = setting.new_append(setting.open_stream(None), stamp(0))
    assert try_once(append) is AttemptResult.UNJOINED
    assert setting.run(append.join()) is AttemptResult.ANSWERED
    assert "transactional_id" in ack_from_bytes(append.answer).error.message


def test_unexpected_error_of_an_attempt_is_answered(setting, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(setting.partition.appends, "take", fail)
    append = setting.new_append(setting.open_stream(None))
    assert try_once(append) is AttemptResult.ANSWERED
    assert isinstance(ack_from_bytes(append.answer).error, InternalError)
