"""When a leader hands its partition to the preferred leader."""

from __future__ import annotations

from spark_stream.consistency.control.handover import (
    AT_ONCE_MAX,
    Settling,
    after_look,
    due_handovers,
)


def test_a_preferred_leader_waits_for_the_settle_time_and_not_longer():
    known = after_look({}, {"t/0": "epoch 1"}, 100)
    known = after_look(known, {"t/0": "epoch 1"}, 150)
    assert known == {"t/0": Settling("epoch 1", 100)}
    assert due_handovers(known, 60, 159) == []
    assert due_handovers(known, 60, 160) == ["t/0"]


def test_a_break_begins_the_settle_time_anew():
    known = after_look({}, {"t/0": "epoch 1"}, 100)
    known = after_look(known, {}, 110)
    known = after_look(known, {"t/0": "epoch 1"}, 120)
    assert known == {"t/0": Settling("epoch 1", 120)}


def test_another_start_or_leader_begins_the_settle_time_anew():
    known = after_look({}, {"t/0": "epoch 1", "t/1": "epoch 1"}, 100)
    known = after_look(known, {"t/0": "epoch 2", "t/1": "epoch 1"}, 120)
    assert known == {"t/0": Settling("epoch 2", 120), "t/1": Settling("epoch 1", 100)}


def test_a_broker_that_comes_and_goes_gets_nothing_back_until_it_stays():
    known: dict[str, Settling] = {}
    for start in range(10):
        for now in range(start * 100, start * 100 + 55, 5):
            known = after_look(known, {"t/0": start}, now)
            assert due_handovers(known, 60, now) == []
    for now in range(955, 961, 5):
        known = after_look(known, {"t/0": 9}, now)
    assert due_handovers(known, 60, 960) == ["t/0"]


def test_a_bounded_number_is_handed_over_at_once_the_longest_waiting_first():
    late = {f"late/{number}": 1 for number in range(AT_ONCE_MAX)}
    early = {f"early/{number}": 1 for number in range(10)}
    known = after_look(after_look({}, early, 100), late | early, 110)
    found = due_handovers(known, 60, 200)
    assert len(found) == AT_ONCE_MAX
    assert found[:10] == list(early)
