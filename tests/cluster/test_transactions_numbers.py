"""Numbers that nobody else gets: on every store, from many sides at once."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.cluster.transactions import Numbers
from tests.simulation.store import MemoryRecords, MemoryStore


@pytest.mark.rule(
    "no producer id and no transaction number is given out twice", "cluster/transactions.py"
)
def test_no_number_is_given_out_twice(another):
    makers = [Numbers(another(), "numbers/x", block=7) for _ in range(3)]
    taken: list[int] = []

    def take(maker: Numbers) -> None:
        taken.extend(maker.take() for _ in range(50))

    threads = [threading.Thread(target=take, args=(maker,)) for maker in makers for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == len(taken) == 300


def test_numbers_go_on_after_a_restart(another):
    first = [Numbers(another(), "n").take() for _ in range(3)]
    assert first == sorted(set(first))


def test_a_number_above_another_brokers_rises_and_skips_what_is_left(another):
    one, two = (Numbers(another(), "n", block=10) for _ in range(2))
    assert [one.take(), two.take()] == [0, 10]
    assert one.take(above=10) > 10
    assert one.take(above=3) > 11, "the lower numbers of its block are given up"
    assert two.take() == 11


def test_a_number_far_above_all_blocks_moves_all_that_come(another):
    one, two = (Numbers(another(), "n", block=10) for _ in range(2))
    assert one.take(above=1_000_000) == 1_000_001
    assert two.take() == 1_000_011


def test_a_store_that_forgot_what_it_gave_out_is_told(another):
    one = Numbers(another(), "n", block=10)
    assert one.take() == 0
    assert not one.pass_over(9), "the store knows of the whole block"
    assert one.take() == 1
    assert one.pass_over(5_000)
    assert not one.pass_over(5_000)
    assert one.take() == 5_001
    assert Numbers(another(), "n", block=10).take() > 5_001


def test_block_begins_above_the_numbers_in_the_logs(another):
    used = [-1]
    one = Numbers(another(), "n", block=2, used=lambda: used[0])
    assert one.take() == 0
    used[0] = 7_000  # the store was replaced by an older one
    assert [one.take(), one.take(), one.take()] == [1, 7_001, 7_002]
    assert Numbers(another(), "n", block=2).take() == 7_003


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=60),
)
def test_the_numbers_of_one_id_rise_whichever_broker_hands_them_out(block, draws):
    """Three brokers draw for four ids, and now and then start anew; no number comes twice."""
    records = MemoryRecords()
    brokers = [Numbers(MemoryStore(records), "n", block) for _ in range(3)]
    last = dict.fromkeys(range(4), -1)
    taken = set()
    for broker, name, restarts in draws:
        if restarts:
            brokers[broker] = Numbers(MemoryStore(records), "n", block)
        number = brokers[broker].take(above=last[name])
        assert number > last[name]
        assert number not in taken
        taken.add(number)
        last[name] = number
