"""Rounds of housekeeping: all of few partitions; of many those at work, and the others in turn."""

from __future__ import annotations

from spark_stream.broker.housekeeping import AT_ONCE, Member, Rounds


def members(count: int, ends: dict[int, int] | None = None) -> list[Member]:
    return [(n, (ends or {}).get(n, 0)) for n in range(count)]


def test_few_partitions_are_all_looked_after_in_every_round():
    rounds = Rounds()
    for second in range(0, 100, 7):
        assert rounds.due(members(AT_ONCE), second) == list(range(AT_ONCE))


def test_an_idle_broker_with_many_partitions_touches_a_bounded_number_and_forgets_none():
    rounds = Rounds()
    rounds.due(members(4_000), 0)  # the first round sees them all for the first time
    touched: set[int] = set()
    for second in range(100, 120):
        due = rounds.due(members(4_000), second)
        assert len(due) == AT_ONCE
        touched |= set(due)
    assert touched == set(range(4_000))


def test_a_partition_at_work_is_looked_after_in_every_round_for_a_while():
    rounds = Rounds(at_once=1)
    rounds.due(members(1_000), 0)
    assert 777 in rounds.due(members(1_000, {777: 5}), 100)
    for second in range(101, 105):
        assert 777 in rounds.due(members(1_000, {777: 5}), second)
    assert 777 not in rounds.due(members(1_000, {777: 5}), 106)


def test_partitions_that_are_gone_are_forgotten():
    rounds = Rounds(at_once=1)
    rounds.due(members(10), 0)
    assert rounds.due([], 100) == []
    assert rounds.due(members(10), 101) == list(range(10))  # another topic's: seen as new
