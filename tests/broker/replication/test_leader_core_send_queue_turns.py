"""The turns of slots: no slot starves, and the bytes in flight stay within the limits."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.broker.replication.leader_core import SendQueue, Slot
from spark_stream.broker.replication.settings import BEHIND_SHARE, ReplicationSettings
from spark_stream.consistency.replication.follower import Agreement

MIB = 1 << 20


@dataclass
class Session:
    """The parts of a session that a turn reads."""

    agreement: Agreement = field(default_factory=lambda: Agreement(1, 0, 0))


def added(turns: SendQueue, number: int, *, is_behind: bool = False) -> Slot:
    slot = Slot(number, 1, Session(), is_behind=is_behind)
    turns.add(slot)
    return slot


def test_slots_take_turns_of_one_frame():
    turns = SendQueue(16 * MIB)
    slots = [added(turns, number) for number in range(3)]
    seen = []
    for _ in range(6):
        slot = turns.next_slot()
        seen.append(slot.number)
        turns.on_sent(slot, slot.next + 1, 100, is_behind=False)
        turns.on_change(slot)
    assert seen == [0, 1, 2, 0, 1, 2]
    assert not any(slot.is_behind for slot in slots)


def test_live_slot_waits_for_at_most_one_frame_of_slots_behind():
    turns = SendQueue(16 * MIB)
    for number in range(50):
        added(turns, number, is_behind=True)
    live = added(turns, 99)
    seen = [turns.next_slot() for _ in range(3)]
    assert live in seen[:2]


def test_live_slots_and_slots_behind_alternate():
    turns = SendQueue(16 * MIB)
    slots = [added(turns, number, is_behind=number < 2) for number in range(4)]
    seen = []
    for _ in range(8):
        slot = turns.next_slot()
        seen.append(slot.number < 2)
        turns.on_sent(slot, slot.next + 1, 100, is_behind=slot.number < 2)
        turns.on_change(slot)
        for each in slots:
            turns.on_acked(each, each.next)
    assert seen in ([True, False] * 4, [False, True] * 4)


def test_frame_is_in_flight_until_its_last_entry_is_acknowledged():
    turns = SendQueue(16 * MIB)
    slot = added(turns, 0)
    turns.on_sent(turns.next_slot(), 5, MIB, is_behind=False)
    turns.on_acked(slot, 4)
    assert turns.unacked_bytes == slot.unacked_bytes == MIB
    turns.on_acked(slot, 5)
    assert turns.unacked_bytes == slot.unacked_bytes == 0


def test_slots_behind_leave_room_for_live_slots():
    turns = SendQueue(16 * MIB)
    for number in range(50):
        added(turns, number, is_behind=True)
    while (slot := turns.next_slot()) is not None:
        turns.on_sent(slot, slot.next + 1, MIB, is_behind=True)
    assert turns.unacked_bytes == 16 * MIB // BEHIND_SHARE
    live = added(turns, 99)
    assert turns.next_slot() is live


def test_unacknowledged_slot_stops_and_no_other():
    turns = SendQueue(16 * MIB)
    silent, good = added(turns, 0), added(turns, 1)
    sent = {0: 0, 1: 0}
    for _ in range(100):
        slot = turns.next_slot()
        sent[slot.number] += 1
        turns.on_sent(slot, slot.next + 1, MIB, is_behind=False)
        for each in (silent, good):
            turns.on_change(each)
        if slot is good:
            turns.on_acked(good, good.next)
    assert sent[0] == 16 // BEHIND_SHARE
    turns.on_acked(silent, 2)
    assert silent in (turns.next_slot(), turns.next_slot())


def test_one_frame_of_any_size_is_allowed():
    turns = SendQueue(MIB)
    slot = added(turns, 0, is_behind=True)
    assert turns.next_slot() is slot
    turns.on_sent(slot, 1, 200 * MIB, is_behind=True)
    assert turns.next_slot() is None
    turns.on_acked(slot, 1)
    assert turns.next_slot() is slot


def test_bytes_in_flight_of_an_ended_slot_are_released():
    turns = SendQueue(MIB)
    slot = added(turns, 0, is_behind=True)
    turns.next_slot()
    turns.on_sent(slot, 1, 2 * MIB, is_behind=True)
    other = added(turns, 1)
    assert turns.next_slot() is None
    turns.remove(0)
    assert turns.next_slot() is other
    assert turns.unacked_bytes == 0
    turns.on_sent(slot, 2, 5, is_behind=False)  # sent after the slot ended
    assert turns.unacked_bytes == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["news", "turn", "ack", "end"]),
        st.integers(0, 4),
        st.integers(1, 3 * MIB),
        st.booleans(),
    ),
    max_size=200,
)


@pytest.mark.rule(
    "the order of followers at a leader, and the limit of bytes in flight",
    "broker/replication/leader_core.py",
)
@given(steps, st.integers(1, 8 * MIB))
def test_limits_hold_and_no_notification_is_lost(steps, window):
    turns = SendQueue(window)
    slots = {number: added(turns, number) for number in range(5)}
    pending = set(slots)  # slots with unsent entries
    for what, number, size, is_behind in steps:
        slot = slots.get(number)
        if what == "news" and slot is not None:
            turns.on_change(slot)
            pending.add(number)
        elif what == "turn":
            before = turns.unacked_bytes
            having = turns.next_slot()
            if having is None:
                continue
            assert before < window
            assert having.unacked_bytes < max(1, window // BEHIND_SHARE)
            pending.discard(having.number)
            turns.on_sent(having, having.next + 1, size, is_behind=is_behind)
            if is_behind:
                pending.add(having.number)
        elif what == "ack" and slot is not None:
            turns.on_acked(slot, max(0, slot.next - 1))
        elif what == "end" and slot is not None:
            turns.remove(number)
            del slots[number]
            pending.discard(number)
        assert turns.unacked_bytes == sum(
            size for each in slots.values() for _, size, _ in each.unacked
        )
    for _ in range(20):  # after all acknowledgements every pending slot has a turn
        for slot in slots.values():
            turns.on_acked(slot, slot.next)
        having = turns.next_slot()
        if having is not None:
            pending.discard(having.number)
            turns.on_sent(having, having.next + 1, 1, is_behind=False)
    assert not pending
    assert turns.next_slot() is None


def test_windows_of_all_streams_together_are_limited():
    settings = ReplicationSettings(stream_bytes=16 * MIB, follower_bytes=64 * MIB)
    assert [settings.window(streams) // MIB for streams in (0, 1, 4, 8, 64)] == [16, 16, 16, 8, 1]
