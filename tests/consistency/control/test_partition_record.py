"""Brokers and leaders in views: evidence of life counts, and a lease that may last does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_stream.consistency.control.partition_record import Evidence, is_led
from spark_stream.consistency.ids import BrokerId

A, B = BrokerId("a"), BrokerId("b")


@pytest.mark.rule(
    "live brokers and partitions with a leader, in every view",
    "consistency/control/partition_record.py",
)
@pytest.mark.parametrize(
    ("evidence", "alive", "leads"),
    [
        (Evidence(renews=True), True, True),
        (Evidence(renews=True, led={}), True, True),
        (Evidence(renews=False, led={"t": frozenset([0])}), True, True),
        (Evidence(renews=False, led={"t": frozenset([1]), "u": frozenset([0])}), True, False),
        (Evidence(renews=False, led={}), True, False),
        (Evidence(renews=False), False, False),
    ],
)
def test_a_broker_without_a_renewed_lease_leads_only_what_it_lists(
    evidence: Evidence, alive: bool, leads: bool
):
    seen: Mapping[BrokerId, Evidence] = {A: evidence, B: Evidence(renews=True)}
    assert evidence.is_alive == alive
    assert is_led(A, "t", 0, seen) == leads


def test_a_partition_has_no_leader_without_one_on_record_or_with_an_unknown_one():
    seen = {A: Evidence(renews=True)}
    assert not is_led(None, "t", 0, seen)
    assert not is_led(B, "t", 0, seen)
