"""In which leader epoch a broker starts: a new one, unless its logs are as it left them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.cluster.leadership import Leadership
from spark_stream.consistency.ids import LeaderEpoch
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore


@pytest.fixture
def leadership(store) -> Leadership:
    return Leadership(store, "b1", holds_store=False)


def test_a_new_log_begins_in_epoch_0(leadership):
    assert leadership.begin("empty", None) == 0


def test_after_a_clean_end_the_epoch_goes_on(leadership):
    epoch = leadership.begin("empty", None)
    leadership.leave(epoch, "ten")
    assert leadership.begin("ten", epoch) == 0


def test_after_an_unclean_end_a_new_epoch_begins(leadership):
    leadership.begin("empty", None)
    assert leadership.begin("empty", None) == 1
    assert leadership.begin("empty", None) == 2


def test_logs_that_do_not_end_where_they_were_left_begin_a_new_epoch(leadership):
    epoch = leadership.begin("empty", None)
    leadership.leave(epoch, "ten")
    assert leadership.begin("nine", epoch) == 1


def test_an_end_is_used_once(leadership):
    """A broker that dies before it has appended anything has not left its logs in order."""
    epoch = leadership.begin("empty", None)
    leadership.leave(epoch, "ten")
    assert leadership.begin("ten", epoch) == 0
    assert leadership.begin("ten", epoch) == 1


def test_logs_of_a_release_without_epochs_begin_a_new_one(leadership):
    assert leadership.begin("some", 0) == 1


def test_an_epoch_is_never_below_one_that_the_logs_have(leadership):
    leadership.leave(leadership.begin("empty", None), "ten")
    assert leadership.begin("ten", 7) == 8


def test_an_epoch_that_is_over_cannot_be_left(leadership):
    old = leadership.begin("empty", None)
    new = leadership.begin("empty", None)
    leadership.leave(old, "ten")
    assert leadership.begin("ten", new) == 2


# -- several brokers on one store ----------------------------------------------------------------


def test_each_broker_has_epochs_of_its_own(store):
    one, two = (Leadership(store, each, holds_store=False) for each in ("b1", "b2"))
    assert [one.begin("empty", None), two.begin("empty", None)] == [0, 0]
    one.leave(LeaderEpoch(0), "ten")
    assert two.begin("empty", None) == 1, "two was not left in order"
    assert one.begin("ten", LeaderEpoch(0)) == 0, "and that is not one's affair"


def earlier_release(store, ends: str | None) -> None:
    """The record of a release whose stores had one broker, without an id."""
    assert store.put("leadership", {"epoch": 0, "ends": ends}, 0)


def test_the_broker_that_holds_an_older_store_goes_on_where_it_was(store):
    earlier_release(store, ends="ten")
    assert Leadership(store, "b2", holds_store=False).begin("empty", None) == 0
    holder = Leadership(store, "b1", holds_store=True)
    assert holder.begin("ten", LeaderEpoch(0)) == 0
    assert store.get("leadership") is None
    assert holder.begin("ten", LeaderEpoch(0)) == 1, "an end is used once, the older one too"


def test_an_older_store_that_was_not_left_in_order_begins_a_new_epoch(store):
    earlier_release(store, ends=None)
    assert Leadership(store, "b1", holds_store=True).begin("empty", None) == 1


def test_a_death_in_the_middle_of_the_takeover_uses_no_epoch_twice(store):
    """The older record is still there: its end must not be believed again."""
    earlier_release(store, ends="ten")
    record = store.get("leadership")
    holder = Leadership(store, "b1", holds_store=True)
    assert holder.begin("ten", LeaderEpoch(0)) == 0
    store.put("leadership", record.value, 0)
    assert holder.begin("ten", LeaderEpoch(0)) == 1
    assert store.get("leadership") is None


class LogsOfABroker:
    """What one broker has appended: (epoch, offset) → record; offsets may be lost in a crash."""

    def __init__(self, leadership: Leadership, given: dict[tuple[int, int], int]) -> None:
        self.leadership = leadership
        self.entries: list[tuple[int, int]] = []  # (epoch, record)
        self.given = given
        self.epoch = LeaderEpoch(-1)

    def start(self) -> None:
        last = LeaderEpoch(self.entries[-1][0]) if self.entries else None
        self.epoch = self.leadership.begin(str(len(self.entries)), last)

    def append(self, record: int) -> None:
        self.entries.append((self.epoch, record))
        known = self.given.setdefault((self.epoch, len(self.entries) - 1), record)
        assert known == record, "an offset was given twice in one epoch"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.sampled_from(["append", "stop", "crash"]), st.integers(0, 3)
        ),
        max_size=40,
    )
)
def test_no_broker_gives_an_offset_twice_in_an_epoch(events):
    """Two brokers with logs of their own, which stop, crash and lose what was not flushed."""
    store = MemoryStore(MemoryRecords())
    logs = [
        LogsOfABroker(Leadership(store, f"b{number}", holds_store=False), {}) for number in range(2)
    ]
    for each in logs:
        each.start()
    for number, (who, what, lost) in enumerate(events):
        log = logs[who]
        if what == "append":
            log.append(number)
            continue
        if what == "stop":
            log.leadership.leave(log.epoch, str(len(log.entries)))
        else:
            del log.entries[max(len(log.entries) - lost, 0) :]
        log.start()
