"""The assignment of replicas to brokers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.control.assignment import (
    Load,
    Misassigned,
    Misfit,
    assign,
    load_of,
    misassigned,
    replace_broker,
)

FLAT = {str(number): None for number in range(5)}


def counts(load: Load, brokers) -> tuple[list[int], list[int]]:
    return [load.replicas[each] for each in brokers], [load.leaders[each] for each in brokers]


@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 30))
def test_without_racks_replicas_and_leaders_differ_by_one_at_most(brokers, factor, partitions):
    racks = {str(number): None for number in range(brokers)}
    load = Load()
    assignment = assign(partitions, min(factor, brokers), racks, load)
    assert misassigned(assignment, racks) is None
    assert len(assignment) == partitions
    for numbers in counts(load, racks):
        assert max(numbers) - min(numbers) <= 1
    again = load_of(assignment)
    assert (again.replicas, again.leaders) == (load.replicas, load.leaders)


@pytest.mark.rule("the assignment of replicas to brokers", "consistency/control/assignment.py")
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=7),
    st.integers(1, 4),
    st.integers(1, 20),
    st.lists(st.integers(0, 6), max_size=9),
)
def test_replicas_are_in_as_many_racks_as_there_are(racks, factor, partitions, before):
    """For any existing load of the brokers."""
    known = {str(broker): str(rack) for broker, rack in enumerate(racks)}
    load = load_of([[str(each)] for each in before])
    factor = min(factor, len(known))
    assignment = assign(partitions, factor, known, load)
    for replicas in assignment:
        assert len(set(replicas)) == factor
        used = Counter(known[broker] for broker in replicas)
        assert len(used) == min(factor, len(set(racks)))


def test_equal_racks_are_loaded_evenly():
    racks = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "c1": "c", "c2": "c"}
    load = Load()
    assign(24, 3, racks, load)
    assert counts(load, racks) == ([12] * 6, [4] * 6)


def test_brokers_with_fewer_replicas_are_filled_first():
    load = load_of([("0", "1"), ("1", "0"), ("0", "1"), ("1", "0")])
    assignment = assign(4, 2, {"0": None, "1": None, "2": None, "3": None}, load)
    assert all(set(replicas) == {"2", "3"} for replicas in assignment)
    assert [load.leaders[each] for each in "0123"] == [2, 2, 2, 2]


def test_partitions_of_a_dead_leader_are_spread_over_brokers():
    assignment = assign(20, 3, FLAT, Load())
    heirs = Counter(replicas[1] for replicas in assignment if replicas[0] == "0")
    assert len(heirs) >= 3


@pytest.mark.parametrize("partitions", [0, -1])
def test_no_partitions_are_refused(partitions):
    assert assign(partitions, 1, FLAT, Load()).why is Misfit.NO_PARTITIONS


@pytest.mark.parametrize(
    ("factor", "why", "names"),
    [
        (0, Misfit.NO_REPLICAS, "0"),
        (6, Misfit.TOO_MANY_REPLICAS, "there are 5 (0, 1, 2, 3, 4)"),
    ],
)
def test_an_impossible_replication_factor_is_refused(factor, why, names):
    load = Load()
    refused = assign(3, factor, FLAT, load)
    assert refused.why is why
    assert names in refused.message
    assert load == Load()


@pytest.mark.parametrize(
    ("assignment", "why", "partition", "broker", "names"),
    [
        ([], Misfit.NO_PARTITIONS, None, None, "no partition"),
        ([["1"], []], Misfit.NO_REPLICAS, 1, None, "partition 1"),
        ([["1", "2"], ["1"]], Misfit.DIFFERENT_LENGTHS, 1, None, "partitions 0 and 1 differ"),
        ([["1", "9"]], Misfit.UNKNOWN_BROKER, 0, "9", "there are 0, 1, 2, 3, 4"),
        ([["1", "2"], ["3", "3"]], Misfit.REPEATED_BROKER, 1, "3", "'3' twice"),
    ],
)
def test_an_impossible_manual_assignment_is_refused_with_its_fault(
    assignment, why, partition, broker, names
):
    refused = misassigned(assignment, FLAT)
    assert refused is not None
    assert (refused.why, refused.partition, refused.broker) == (why, partition, broker)
    assert names in refused.message


def test_faults_of_added_partitions_name_their_numbers():
    refused = misassigned([["1"], ["7"]], FLAT, first_partition=4)
    assert refused is not None
    assert refused.partition == 5


@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 12))
def test_a_leaving_broker_is_replaced_everywhere(brokers, factor, partitions):
    racks = {str(number): None for number in range(brokers)}
    factor = min(factor, brokers - 1)
    load = Load()
    assignment = assign(partitions, factor, racks, load)
    replaced = [
        replace_broker(replicas, "0", racks, load) if "0" in replicas else replicas
        for replicas in assignment
    ]
    others = [each for each in racks if each != "0"]
    assert misassigned(replaced, others) is None
    assert load.replicas["0"] == load.leaders["0"] == 0
    assert load.replicas == load_of(replaced).replicas
    assert all(
        (one == other) == (one != "0")
        for before, after in zip(assignment, replaced, strict=True)
        for one, other in zip(before, after, strict=True)
    )


def test_a_leaving_broker_without_a_possible_replacement_is_refused():
    refused = replace_broker(("0", "1"), "0", {"0": None, "1": None}, Load())
    assert isinstance(refused, Misassigned)
    assert "'0'" in refused.message
