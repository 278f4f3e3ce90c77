"""Runs with faults that no seed draws: bytes that change on a disk, a disk that takes no writes."""

from __future__ import annotations

import pytest

from spark_stream.broker.node.handover import Withdrawals
from spark_stream.storage.log.damage import CutSegments
from spark_stream.storage.segment import segment
from tests.simulation.form import Form
from tests.simulation.planted_bugs.planting import no_steps
from tests.simulation.runs import ACTORS, run
from tests.simulation.world import World

CLIENTS = ("transactions-0", "plain-1", "reader-2", "reader-3", "cutter-4")
SEEDS = range(12)


def form(seed: int) -> Form:
    """Three brokers. Two bytes of their logs may change."""
    return Form(seed, 3, 1, (*CLIENTS, "changed-byte-5", "changed-byte-6"))


@pytest.mark.full  # one byte: test_simulator.py runs each actor alone
def test_invariants_hold_after_any_changed_byte():
    changed = 0
    for seed in SEEDS:
        world = World(form(seed), tells=True)
        world.begin(ACTORS)
        world.run()
        changed += any("a byte changes" in line for line in world.story or ())
    assert changed > len(SEEDS) // 2


def changed_bytes(seed: int) -> Form:
    """Three brokers, each of whose copies of one partition is damaged in another entry."""
    return Form(seed, 3, 1, (*CLIENTS, "changed-bytes-5"))


def test_no_record_is_lost_if_each_disk_has_damage_in_another_entry():
    taken = 0
    for seed in SEEDS:
        world = World(changed_bytes(seed), tells=True)
        world.begin(ACTORS)
        world.run()
        taken += sum("a byte changes" in line for line in world.story or ())
    assert taken > len(SEEDS)


def test_a_log_that_drops_its_truncated_part_at_damage_is_found(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(CutSegments, "keep", lambda *_: None)
    assert any(run(changed_bytes(seed)).finding for seed in range(100))  # the first found ends it


def test_a_read_that_checks_nothing_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segment, "first_broken_batch", lambda rows, *_: len(rows))
    assert any(run(form(seed)).finding for seed in range(100))  # the first found ends it


def dead_disk(seed: int) -> Form:
    """Three brokers, one of whose disks takes no writes after a while."""
    return Form(seed, 3, 1, ("transactions-0", "plain-1", "plain-2", "dead-disk-3"))


@pytest.mark.full  # the tests below find leaders that do not
def test_a_leader_on_a_read_only_disk_hands_over():
    """The invariant ``ALeaderThatCannotWriteHandsOver`` makes a leader that stays a finding."""
    findings = [run(dead_disk(seed)).finding for seed in SEEDS]
    assert not any(findings), findings


def test_a_leader_that_stays_on_a_read_only_disk_is_found(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(Withdrawals, "checking", no_steps)
    found = [run(dead_disk(seed)).finding for seed in SEEDS]
    assert {each.broken for each in found if each} == {"ALeaderThatCannotWriteHandsOver"}
