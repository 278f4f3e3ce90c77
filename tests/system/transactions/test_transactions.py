"""Transactions at the broker, by plain calls: decided once, and visible as a whole or never."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolog.errors import (
    ForeignBranch,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    SinkInUse,
    StaleBatch,
    TransactionAborted,
    UnknownTopic,
    UnknownTransaction,
)
from tests.broker.stamped import Appender, Owner, bounds, refused, seen
from tests.support import NUMBERS, BrokerProcess, act, eventually, fetched, listed

COMMITTED = "read_committed"
LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")


@pytest.fixture
def t(log, topic) -> str:
    log.create_topic(topic, 2, schema=NUMBERS)
    return topic


def table(channel, topic, partition=0) -> dict[str, list[int]]:
    return {level: seen(channel, topic, level, partition) for level in LEVELS}


# -- isolation levels -----------------------------------------------------------------------------


def test_open_transaction_is_visible_to_two_levels_and_blocks_the_others(channel, t):
    Appender(channel, t).put(1, 1, act(channel, "new-producer")["producer_id"], 0)
    owner = Owner(channel).begin()
    owner.put(t, 2, 2)
    Appender(channel, t).put(4, 1, act(channel, "new-producer")["producer_id"], 0)
    assert table(channel, t) == dict(zip(LEVELS, [[1, 2, 3, 4]] * 2 + [[1]] * 2, strict=True))
    assert bounds(channel, t) == (1, 4, 4)
    owner.commit()
    assert table(channel, t) == {level: [1, 2, 3, 4] for level in LEVELS}
    assert bounds(channel, t) == (4, 4, 4)


def test_leader_returns_the_transaction_state_of_each_record(channel, t):
    """The states are aborted, committed, open, and committed behind an open transaction."""
    gone = Owner(channel).begin()
    gone.put(t, 1, 2)
    gone.abort()
    done = Owner(channel).begin()
    done.put(t, 3, 1)
    done.commit()
    owner = Owner(channel).begin()
    owner.put(t, 4, 2)
    Appender(channel, t).put(6, 1, act(channel, "new-producer")["producer_id"], 0)
    answer = listed(channel, t, states={"0": [1, 9]}, facts=True)
    one, other = answer.partitions[0], answer.partitions[1]
    assert [(each.first, each.end, each.state, each.transaction) for each in one.states] == [
        (1, 2, "aborted", gone.number),
        (2, 3, "committed", done.number),
        (3, 5, "open", owner.number),
        (5, 6, "committed", None),
    ]
    assert one.facts is not None
    assert (one.facts.last_stable_offset, one.facts.high_watermark) == (3, 6)
    assert [(each.transaction, each.first_offset) for each in one.facts.open] == [(owner.number, 3)]
    assert one.facts.size > 0
    assert (other.states, other.facts.open, other.facts.size) == ((), [], 0)
    owner.abort()
    assert listed(channel, t, states={"0": [3, 5]}).partitions[0].states[0].state == "aborted"


def test_states_of_too_many_records_are_refused(channel, t):
    with pytest.raises(IsologError, match="at most 10000"):
        listed(channel, t, states={"0": [0, 10_001]})


@pytest.mark.rule(
    "aborted records are never sent to readers of committed ones", "storage/log/reading.py"
)
def test_aborted_records_are_not_sent_to_read_committed(channel, t):
    owner = Owner(channel).begin()
    owner.put(t, 2, 2)
    Appender(channel, t).put(4, 1, act(channel, "new-producer")["producer_id"], 0)
    owner.abort()
    assert table(channel, t) == dict(zip(LEVELS, [[2, 3, 4]] * 2 + [[4]] * 2, strict=True))
    batches, end = fetched(channel, t, isolation=COMMITTED, columns=["_offset", "n"])
    assert batches[0][0].to_pydict() == {"_offset": [2], "n": [4]}
    assert end["next"] == 3


def test_range_of_aborted_records_returns_its_next_offset_immediately(channel, t):
    owner = Owner(channel).begin()
    owner.put(t, 1, 50)
    owner.abort()
    for level in LEVELS[2:]:
        batches, end = fetched(channel, t, isolation=level, wait_ms=20_000)
        assert (batches, end["next"]) == ([], 50)
        batches, end = fetched(channel, t, isolation=level, start=10, end=20, wait_ms=20_000)
        assert (batches, end["next"]) == ([], 20)


def test_rows_around_aborted_records_have_their_offsets(channel, t):
    plain = act(channel, "new-producer")["producer_id"]
    stream = Appender(channel, t)
    owner = Owner(channel)
    for n in range(6):
        stream.put(10 * n, 1, plain, n)
        owner.begin().put(t, 10 * n + 1, 1)
        owner.abort()
    batches, end = fetched(channel, t, isolation=COMMITTED, columns=["_offset", "n"])
    found = [row for batch, _ in batches for row in zip(*batch.to_pydict().values(), strict=True)]
    assert found == [(2 * n, 10 * n) for n in range(6)]
    assert end["next"] == 12
    (_, facts), *others = batches
    if not others:
        assert facts["spans"] == [[2 * n, 1] for n in range(6)]
    batches, end = fetched(channel, t, isolation=COMMITTED, max_records=2)
    assert sum(batch.num_rows for batch, _ in batches) == 2
    assert end["next"] in (3, 4)


def test_latest_offset_depends_on_the_isolation_level(channel, t):
    owner = Owner(channel).begin()
    owner.put(t, 1, 5)
    found = {level: listed(channel, t, isolation=level).offsets[0] for level in LEVELS}
    assert found == dict(zip(LEVELS, (5, 5, 0, 0), strict=True))
    at = {level: listed(channel, t, timestamp=0, isolation=level).offsets[0] for level in LEVELS}
    assert at == dict.fromkeys(LEVELS, 0)
    owner.commit()
    assert listed(channel, t, isolation=COMMITTED).offsets[0] == 5


# -- over partitions and topics -------------------------------------------------------------------


def test_transaction_spans_partitions_and_topics(channel, log, t):
    log.create_topic(f"{t}-too", schema=NUMBERS)
    owner = Owner(channel).begin()
    owner.put(t, 1, 1, partition=0)
    owner.put(t, 2, 1, partition=1)
    owner.put(f"{t}-too", 3, 1)
    places = [(t, 0), (t, 1), (f"{t}-too", 0)]
    assert [seen(channel, name, COMMITTED, number) for name, number in places] == [[], [], []]
    facts = owner.described()
    assert [(each["topic"], each["partition"]) for each in facts["partitions"]] == places
    owner.commit()
    assert [seen(channel, name, COMMITTED, number) for name, number in places] == [[1], [2], [3]]


def test_transaction_without_a_write_creates_no_file(broker: BrokerProcess, tmp_path: Path):
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
    with broker.channel() as channel:
        Owner(channel).begin().commit()
        Owner(channel).begin().abort()
        assert bounds(channel, "t") == (0, 0, 0)
    assert list((tmp_path / "log" / "topics").glob("*/*/*")) == []


def test_transaction_with_a_deleted_topic_can_be_aborted(channel, log, t):
    log.create_topic(f"{t}-gone", schema=NUMBERS)
    owner = Owner(channel).begin()
    owner.put(t, 1, 1)
    owner.put(f"{t}-gone", 2, 1)
    log.delete_topic(f"{t}-gone")
    refusal = refused(owner.commit)
    assert isinstance(refusal, UnknownTopic)
    assert f"{t}-gone" in refusal.message
    assert owner.abort()["state"] == "aborted"
    assert bounds(channel, t) == (1, 1, 1)
    assert seen(channel, t, COMMITTED) == []


@pytest.mark.rule("the branches of a commit", "consistency/transactions/events.py")
def test_branch_missing_in_the_commit_is_aborted(channel, t):
    who = {"transactional_id": f"sink-{t}", "query": "q", "instance": "run", "batch": 0}
    one, two = (act(channel, "open-branch", **who) for _ in range(2))
    stream = Appender(channel, t, f"sink-{t}")
    for branch, number in ((one, 1), (two, 2), (one, 3)):
        stream.put(number, 1, branch["producer_id"], number // 3, transaction=branch["number"])
    owner = {"transactional_id": f"sink-{t}", "instance": "run", "number": one["number"]}
    error = refused(
        lambda: act(channel, "commit-transaction", **owner, branches=[one["producer_id"], 10**9])
    )
    assert isinstance(error, ForeignBranch)
    assert seen(channel, t, COMMITTED) == []
    act(channel, "commit-transaction", **owner, branches=[one["producer_id"]], batch=0)
    assert seen(channel, t, COMMITTED) == [1, 3]
    assert act(channel, "open-branch", **who)["committed"] is True
    refusals = {
        SinkInUse: who | {"query": "another"},
        StaleBatch: who | {"batch": 0},
    }
    act(channel, "open-branch", **who | {"batch": 1})
    assert isinstance(
        refused(lambda: act(channel, "open-branch", **refusals[SinkInUse])), SinkInUse
    )
    assert act(channel, "open-branch", **who)["committed"] is True


# -- fencing and timeouts -------------------------------------------------------------------------


def test_new_instance_fences_the_old_one_and_aborts_its_transaction(channel, t):
    old = Owner(channel).begin()
    old.put(t, 1, 1)
    new = Owner(channel, old.name)
    assert old.described()["state"] == "aborted"
    assert isinstance(refused(old.commit), ProducerFenced)
    assert isinstance(refused(old.abort), ProducerFenced)
    assert isinstance(refused(old.begin), ProducerFenced)
    stream = Appender(channel, t, old.name)
    late = stream.refused(2, 1, old.producer, 1, epoch=old.epoch, transaction=old.number)
    assert isinstance(late, ProducerFenced)
    elsewhere = stream.refused(
        2, 1, old.producer, 0, epoch=old.epoch, transaction=old.number, partition=1
    )
    assert isinstance(elsewhere, ProducerFenced)
    new.begin().put(t, 3, 1)
    new.commit()
    assert seen(channel, t, COMMITTED) == [3]
    assert seen(channel, t, "read_uncommitted") == [1, 3]


@pytest.mark.rule(
    "the expiry of a transaction",
    "consistency/transactions/events.py",
    "scripts/transactions/finishing.py",
)
def test_expired_transaction_is_aborted_and_its_owner_refused(channel, t):
    owner = Owner(channel, timeout_ms=2_000).begin()
    owner.put(t, 1, 1)
    eventually(lambda: owner.described()["state"] == "aborted")
    assert bounds(channel, t) == (1, 1, 1)
    error = refused(owner.commit)
    assert isinstance(error, TransactionAborted)
    assert "2000 ms" in str(error)
    stream = Appender(channel, t, owner.name)
    for partition in (0, 1):
        late = stream.refused(
            2,
            1,
            owner.producer,
            1 - partition,
            epoch=owner.epoch,
            transaction=owner.number,
            partition=partition,
        )
        assert isinstance(late, TransactionAborted)
    owner.begin().put(t, 5, 1)
    owner.commit()
    assert seen(channel, t, COMMITTED) == [5]


def test_idle_transactional_id_does_not_expire_early(channel, t):
    owner = Owner(channel)
    others = [Owner(channel, timeout_ms=1).begin() for _ in range(2)]
    for other in others:  # both are expired by separate scans of all transactions
        eventually(lambda other=other: other.described()["state"] == "aborted")
    owner.begin().put(t, 1, 1)
    owner.commit()
    assert seen(channel, t, COMMITTED) == [1]


def test_renewal_extends_the_deadline_of_a_transaction(channel, t):
    owner = Owner(channel, timeout_ms=60_000).begin()
    before = owner.described()["deadline_ms"]
    eventually(
        lambda: (
            act(channel, "renew-transaction", **owner.who, number=owner.number)["deadline_ms"]
            > before
        )
    )


# -- repeated, late and invalid calls -------------------------------------------------------------


def test_repeated_decision_gets_the_same_answer_and_the_opposite_is_refused(channel, t):
    owner = Owner(channel).begin()
    owner.put(t, 1, 1)
    assert owner.commit() == owner.commit()
    assert isinstance(refused(owner.abort), InvalidTransaction)
    owner.begin().put(t, 2, 1)
    assert owner.abort() == owner.abort()
    assert isinstance(refused(owner.commit), InvalidTransaction)
    assert seen(channel, t, COMMITTED) == [1]


def test_delayed_request_has_no_effect_on_a_later_transaction(channel, t):
    owner = Owner(channel).begin()
    owner.put(t, 1, 1)
    first = (owner.producer, owner.epoch, owner.number)
    owner.commit()
    owner.begin().put(t, 2, 1)
    producer, epoch, number = first
    stream = Appender(channel, t, owner.name)
    for sequence, partition in ((0, 0), (1, 0), (0, 1)):
        late = stream.put(
            9, 1, producer, sequence, epoch=epoch, transaction=number, partition=partition
        )
        assert "error" in late
    for call in ("commit-transaction", "abort-transaction"):
        more = {"branches": [producer]} if call.startswith("commit") else {}
        error = refused(
            lambda call=call, more=more: act(channel, call, **owner.who, number=number, **more)
        )
        assert isinstance(error, InvalidTransaction)
    error = refused(lambda: act(channel, "begin-transaction", **owner.who, after=-1))
    assert isinstance(error, InvalidTransaction)
    owner.commit()
    assert seen(channel, t, "read_uncommitted") == [1, 2]
    assert seen(channel, t, COMMITTED) == [1, 2]


def test_commit_of_an_unknown_transaction_is_refused(channel):
    owner = Owner(channel).begin()
    unknown = refused(lambda: owner.commit(number=owner.number + 1_000))
    assert isinstance(unknown, UnknownTransaction)
    nobody = refused(
        lambda: act(
            channel,
            "commit-transaction",
            transactional_id="nobody",
            instance="i",
            number=1,
            branches=[],
        )
    )
    assert isinstance(nobody, UnknownTransaction)
    assert "nobody" in str(nobody)


def test_batch_of_a_transaction_needs_its_owner(channel, t):
    owner = Owner(channel).begin()
    stream = Appender(channel, t)
    error = stream.refused(1, 1, owner.producer, 0, transaction=owner.number)
    assert error.code == "INVALID_REQUEST"
    stranger = Appender(channel, t, owner.name)
    error = stranger.refused(1, 1, 10**9, 0, transaction=owner.number)
    assert isinstance(error, ForeignBranch)
    assert bounds(channel, t) == (0, 0, 0)


def test_message_with_a_bad_record_stores_no_record_in_a_transaction(channel, log, topic):
    log.create_topic(topic, schema=NUMBERS, config={"max.record.bytes": 4})
    owner = Owner(channel).begin()
    ack = owner.put(topic, 1, 2)
    assert (ack["count"], ack["error"]["code"]) == (0, "RECORD_TOO_LARGE")
    assert "no record of the message is kept" in ack["error"]["message"]
    assert bounds(channel, topic) == (0, 0, 0)
    owner.abort()


@pytest.mark.rule(
    "no batch joins a transaction after its decision",
    "consistency/transactions/events.py",
    "consistency/partition/open_transactions.py",
)
def test_delayed_batch_is_refused_after_the_decision(channel, t):
    """Every partition refuses the transaction before the first marker is written."""
    owner = Owner(channel).begin()
    owner.put(t, 1, 1)
    owner.put(t, 2, 1, partition=1)
    owner.commit()
    stream = Appender(channel, t, owner.name)
    for partition in (0, 1):
        late = stream.refused(
            3,
            1,
            owner.producer,
            1,
            epoch=owner.epoch,
            transaction=owner.number,
            partition=partition,
        )
        assert isinstance(late, InvalidTransaction)
    assert seen(channel, t, "read_uncommitted") == [1]


def test_invalid_offsets_are_refused_in_a_cut(channel, t):
    for wrong in ({"lower": {"0": -7}}, {"upper": {"0": 1 << 63}}, {"upper": {"-1": 3}}):
        error = refused(
            lambda wrong=wrong: act(channel, "atomic-cut", topics=[{"topic": t, **wrong}])
        )
        assert error.code == "INVALID_REQUEST"


# -- operators ------------------------------------------------------------------------------------


def test_operators_list_describe_and_abort_transactions(channel, t):
    owner = Owner(channel).begin()
    owner.put(t, 1, 3, partition=1)
    listed = act(channel, "list-transactions")["transactions"]
    (mine,) = [each for each in listed if each["transactional_id"] == owner.name]
    assert (mine["state"], mine["number"]) == ("open", owner.number)
    place = {"topic": t, "partition": 1, "first_offset": 0, "held_back": None}
    assert mine["partitions"] == [place]
    described = act(channel, "describe-topic", topic=t)["partitions"]
    assert [each["open_transactions"] for each in described] == [0, 1]
    killed = act(channel, "kill-transaction", transactional_id=owner.name)
    assert killed["state"] == "aborted"
    assert isinstance(refused(owner.commit), TransactionAborted)
    again = refused(lambda: act(channel, "kill-transaction", transactional_id=owner.name))
    assert isinstance(again, InvalidTransaction)
    unknown = refused(lambda: act(channel, "kill-transaction", transactional_id="nobody"))
    assert isinstance(unknown, UnknownTransaction)
