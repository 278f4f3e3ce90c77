"""The decisions of a reader of many ranges, in any order of events. Each range has a log."""

from __future__ import annotations

import logging
import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from isolog.errors import BrokerUnavailable, IsologError, NotLeader, UnknownTopic
from spark_stream.client.reading.core import (
    AHEAD_ITEMS,
    RETRY_PAUSE_S,
    AheadLimits,
    FetchCore,
    NextFetch,
    RangeCore,
    RangeFetch,
    RangeMoved,
    RangeOver,
)
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from tests.client.reading.test_core_ranges import PATIENCE_S, Leader

SILENCE_S = 5.0
AHEAD_BYTES = 30
ITEM_BYTES = 10


@pytest.fixture(autouse=True)
def no_warnings(caplog):
    caplog.set_level(logging.ERROR)


@dataclass
class Given:
    """A queued item for the consumer: rows of a range, which end at ``following``."""

    number: int
    key: int
    rows: list[int]
    before: tuple[int, Lineage]
    following: int
    lineage: Lineage


@dataclass
class Call:
    """A call with a gradual answer, which may be silent, or arrive after the call was lost."""

    number: int
    fetches: list[RangeFetch]
    answer: deque = field(default_factory=deque)
    is_silent: bool = False


class Shell:
    """A shell with leaders instead of a network, and a consumer at random times."""

    def __init__(self, seed: int, ranges: int) -> None:
        self.chance = random.Random(seed)
        self.leaders = [Leader(self.chance) for _ in range(ranges)]
        self.ranges = {
            key: RangeCore(
                0, None, patience_s=1e9, fail_on_loss=False, may_use_followers=key % 2 == 1
            )
            for key in range(ranges)
        }
        self.core = FetchCore(
            self.ranges,
            silence_s=SILENCE_S,
            ahead_bytes=AHEAD_BYTES,
        )
        self.now = 0.0
        self.on_the_way: list[RangeFetch] = []
        self.calls: list[Call] = []
        self.queue: deque = deque()
        self.kept: list[dict[int, int]] = [{} for _ in range(ranges)]
        self.positions = [0] * ranges
        self.losses: list[list[int]] = [[] for _ in range(ranges)]
        self.went_back: set[int] = set()
        self.ended = [False] * ranges  # a call of it has ended

    def advance(self) -> None:
        fetches = self.core.next(self.now)
        self.pass_on()
        known = [*self.on_the_way, *(fetch for call in self.calls for fetch in call.fetches)]
        under_way = [fetch.key for fetch in known if self.is_asked(fetch)]
        for fetch in fetches:
            assert fetch.key not in under_way, "a range has two fetches"
            queued = [each for each in self.queue if self.is_given(each, fetch.key)]
            assert len(queued) < AHEAD_ITEMS
            assert ITEM_BYTES * len(queued) < AHEAD_BYTES + ITEM_BYTES
        self.on_the_way += fetches

    def is_asked(self, fetch: RangeFetch) -> bool:
        return self.core.position(fetch.number) is not None

    def is_given(self, item, key: int) -> bool:
        return item.key == key and self.core.is_current(key, item.number)

    def pass_on(self) -> None:
        self.queue += self.core.out
        self.core.out.clear()

    def uncut(self, key: int) -> int:
        """Return the offset below which a truncation could not be detected by the reader."""
        places = [(self.ranges[key].position, self.ranges[key].lineage)]
        queued = [each for each in self.queue if isinstance(each, Given) and each.key == key]
        places += [each.before for each in queued]
        unknown = [at for at, lineage in places if lineage == NO_LINEAGE]
        for call in self.calls:
            for act, *arguments in call.answer:
                if act in (self.core.on_failed, self.core.on_lost) and arguments[2].key == key:
                    unknown += arguments[3]  # it was truncated there, and the reader gets a report
        return max(unknown, default=0)

    # -- random events ------------------------------------------------------------------------

    def open(self) -> None:
        """Send fetches to their leader in calls of one or several, or fail them."""
        chance = self.chance
        if not self.on_the_way:
            return
        chance.shuffle(self.on_the_way)
        group = [self.on_the_way.pop() for _ in range(chance.randint(1, len(self.on_the_way)))]
        near = {fetch.number for fetch in group if fetch.may_use_follower and chance.random() < 0.7}
        if chance.random() < 0.1:
            for fetch in group:
                error = BrokerUnavailable("no broker")
                self.core.on_failed(fetch.number, error, self.now, at_follower=fetch.number in near)
            self.pass_on()
            return
        number = self.core.begin([fetch.number for fetch in group], self.now, follower_fetches=near)
        if number is None:
            assert not any(map(self.is_asked, group))
            return
        call = Call(number, group, is_silent=chance.random() < 0.05)
        for fetch in group:
            self.answer(call, fetch, near=fetch.number in near)
        call.answer.append((self.core.on_ended, call.number))
        self.calls.append(call)

    def answer(self, call: Call, fetch: RangeFetch, *, near: bool) -> None:
        leader, several = self.leaders[fetch.key], len(call.fetches) > 1
        losses = len(leader.losses)
        try:
            if self.chance.random() < 0.1:
                raise NotLeader("moved")
            leader.check(NextFetch(fetch.start, fetch.lineage))
        except IsologError as error:
            new = [] if near else leader.losses[losses:]
            del leader.losses[losses:]  # it counts after the reader's report
            act = self.core.on_failed if several else self.core.on_lost
            call.answer.append((act, fetch.number if several else call.number, error, fetch, new))
            return
        position, known = fetch.start, list(leader.records)
        while position < len(known) and self.chance.random() < 0.9:
            upto = min(len(known), position + self.chance.randint(1, 4))
            rows = known[position:upto]
            call.answer.append((self.receive, fetch, rows, upto, leader.lineage(upto)))
            position = upto
        call.answer.append((self.receive, fetch, [], position, leader.lineage(position)))

    def receive(self, fetch: RangeFetch, rows: list[int], upto: int, lineage: Lineage) -> None:
        before = self.core.position(fetch.number)
        partitions = None if rows else 3
        worth = self.core.on_received(
            fetch.number, upto, lineage, bool(rows), partitions, ITEM_BYTES, self.now
        )
        if before is None:
            assert not worth, "an item of an ended fetch is delivered"
        if worth:
            self.queue.append(Given(fetch.number, fetch.key, rows, before, upto, lineage))

    def hear(self) -> None:
        """Deliver the next part of an answer, or lose the call."""
        speaking = [call for call in self.calls if not call.is_silent]
        if not speaking:
            return
        call = self.chance.choice(speaking)
        if self.chance.random() < 0.05:
            self.core.on_lost(call.number, BrokerUnavailable("the stream is lost"), self.now)
            if self.chance.random() < 0.5:
                self.calls.remove(call)  # else its answer still arrives
            self.pass_on()
            return
        act, *arguments = call.answer.popleft()
        if act == self.core.on_ended:
            for fetch in call.fetches:
                self.ended[fetch.key] |= self.is_asked(fetch)
            self.core.on_ended(*arguments)
        elif act == self.receive:
            self.receive(*arguments)
        else:
            number, error, fetch, losses = arguments
            if self.is_asked(fetch):
                self.leaders[fetch.key].losses += losses
            act(number, error, self.now)
        self.pass_on()
        if not call.answer:
            self.calls.remove(call)

    def take(self) -> None:
        """Take the first queued item. Sometimes it cannot be decoded."""
        if not self.queue:
            return
        item = self.queue.popleft()
        key = item.key
        is_current = self.core.is_current(key, item.number)
        self.core.on_taken(key, item.number, ITEM_BYTES if isinstance(item, Given) else 0)
        if not is_current:
            return
        kept = self.kept[key]
        assert not isinstance(item, RangeOver)
        if isinstance(item, RangeMoved):
            self.losses[key].append(item.left)
            self.kept[key] = {at: value for at, value in kept.items() if at < item.left}
            self.positions[key] = item.left
            return
        assert item.before[0] == self.positions[key]
        rows, upto, lineage = item.rows, item.following, item.lineage
        cannot = bool(rows) and self.chance.random() < 0.05
        if cannot:  # some of them were decoded and delivered
            start, known = item.before
            if self.chance.random() < 0.5:
                rows = []
                upto, lineage = start, known
            self.went_back.add(key)
        for offset, value in enumerate(rows, item.before[0]):
            assert offset not in kept, "a duplicate record is delivered"
            kept[offset] = value
        self.positions[key] = upto
        if cannot:
            given_up = self.core.go_back(key, upto, lineage)
            if given_up is not None and self.chance.random() < 0.5:
                self.calls = [call for call in self.calls if call.number != given_up]

    def wait(self) -> None:
        """Advance the time until the core has something to do."""
        due = self.core.wake_at()
        if due is None:
            return
        self.now = max(self.now, due)
        for number in self.core.overdue(self.now):
            self.core.on_lost(number, BrokerUnavailable("silent"), self.now)
            self.pass_on()
            self.calls = [call for call in self.calls if call.number != number]

    def step(self) -> None:
        self.chance.choice([self.open, self.hear, self.hear, self.hear, self.take, self.take])()
        if self.chance.random() < 0.03:
            self.wait()
        self.advance()

    def has_read(self, key: int, end: int) -> bool:
        """Return whether the consumer has caught up, without pending records from before a cut."""
        return self.positions[key] == self.ranges[key].position == end

    def settle(self) -> None:
        """Run all pending events until all records are read."""
        for key, leader in enumerate(self.leaders):
            self.ended[key] = False
            while not (self.ended[key] and self.has_read(key, len(leader.records))):
                self.step()
                if (
                    not self.queue
                    and not self.on_the_way
                    and not any(not call.is_silent for call in self.calls)
                ):
                    self.wait()
                    self.advance()


@pytest.mark.rule(
    "concurrent fetches of a reader, and the limits of prefetching",
    "client/reading/core.py",
    "client/reading/loop.py",
)
@pytest.mark.parametrize(
    "block", [*range(4), *(pytest.param(n, marks=pytest.mark.full) for n in range(4, 20))]
)
def test_each_range_is_read_once_in_any_order_of_events(block):
    for seed in range(100 * block, 100 * block + 100):
        shell = Shell(seed, ranges=1 + seed % 4)
        shell.advance()
        for _ in range(80):
            key = shell.chance.randrange(len(shell.leaders))
            shell.leaders[key].happen(shell.uncut(key))
            for _ in range(3):
                shell.step()
        shell.settle()
        for key, leader in enumerate(shell.leaders):
            left = range(leader.start, len(leader.records))
            read = {at: v for at, v in shell.kept[key].items() if at >= leader.start}
            assert read == {at: leader.records[at] for at in left}, seed
            if key not in shell.went_back:  # else some losses are detected twice
                assert shell.losses[key] == leader.losses, seed


def two(**options) -> FetchCore:
    return FetchCore(
        {
            key: RangeCore(0, 10, patience_s=PATIENCE_S, checks=key == "b", **options)
            for key in ("a", "b")
        },
        silence_s=SILENCE_S,
        ahead_bytes=AHEAD_BYTES,
    )


def test_a_failed_range_does_not_affect_the_others():
    core = two()
    first, second = core.next(0.0)
    call = core.begin([first.number, second.number], 0.0)
    core.on_failed(first.number, UnknownTopic("gone"), 0.0)
    (over,) = core.out
    assert (over.key, over.error.code) == ("a", UnknownTopic("gone").code)
    assert core.on_received(second.number, 10, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    core.out.clear()
    core.on_ended(call)
    assert core.next(0.0) == []
    assert [(each.key, each.error) for each in core.out] == [("b", None)]


def test_a_range_is_retried_after_a_pause():
    core = two()
    first, second = core.next(0.0)
    core.on_failed(first.number, NotLeader("moved"), 0.0)
    assert core.next(0.0) == []
    assert core.wake_at() == RETRY_PAUSE_S
    (again,) = core.next(RETRY_PAUSE_S)
    assert (again.key, again.start) == ("a", 0)
    assert again.number > second.number


def test_a_call_is_not_overdue_while_its_items_wait_for_the_consumer():
    core = two()
    first, second = core.next(0.0)
    calls = [core.begin([fetch.number], 0.0) for fetch in (first, second)]
    assert core.on_received(second.number, 4, NO_LINEAGE, 1, None, ITEM_BYTES, 1.0)
    assert core.wake_at() == SILENCE_S
    assert core.overdue(SILENCE_S) == [calls[0]]
    core.on_lost(calls[0], BrokerUnavailable("silent"), SILENCE_S)
    assert core.overdue(SILENCE_S + 1.0) == []  # its consumer is slow
    core.on_taken("b", second.number, ITEM_BYTES)
    assert core.overdue(2 * SILENCE_S + 1.0) == [calls[1]]


def test_a_range_with_enough_items_is_not_fetched():
    core = two()
    first, _ = core.next(0.0)
    call = core.begin([first.number], 0.0)
    for upto in (1, 2, 3):
        assert core.on_received(first.number, upto, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    core.on_ended(call)
    assert core.next(0.0) == []
    core.on_taken("a", first.number, ITEM_BYTES)
    assert [(fetch.key, fetch.start) for fetch in core.next(0.0)] == [("a", 3)]


def test_an_ended_range_is_read_again_after_an_undeliverable_item():
    core = two()
    first, _ = core.next(0.0)
    call = core.begin([first.number], 0.0)
    assert core.on_received(first.number, 10, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    core.on_ended(call)
    assert core.next(0.0) == []
    (over,) = core.out
    assert core.go_back("a", 4, NO_LINEAGE) is None
    assert not core.is_current("a", over.number)
    (again,) = core.next(0.0)
    assert (again.key, again.start) == ("a", 4)
    assert core.is_current("a", again.number)


def test_a_range_that_was_given_up_delivers_no_items():
    core = two()
    first, second = core.next(0.0)
    call = core.begin([first.number, second.number], 0.0)
    for upto in (1, 2):
        assert core.on_received(first.number, upto, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    assert core.give_up("a") is None  # the other range continues in their call
    assert not core.is_current("a", first.number)
    assert not core.on_received(first.number, 3, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    assert core.on_received(second.number, 10, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    core.on_ended(call)
    assert core.next(0.0) == []
    assert [each.key for each in core.out] == ["b"]


def test_giving_up_the_last_range_of_a_call_cancels_the_call():
    core = two()
    fetches = core.next(0.0)
    call = core.begin([fetch.number for fetch in fetches], 0.0)
    assert [core.give_up(key) for key in ("a", "b")] == [None, call]
    assert core.wake_at() is None


def in_turn(*ends: int) -> FetchCore:
    """A core whose consumer takes one range after the other, with room for two calls."""
    return FetchCore(
        {key: RangeCore(0, end, patience_s=PATIENCE_S) for key, end in enumerate(ends)},
        silence_s=SILENCE_S,
        ahead_bytes=AHEAD_BYTES,
        budget=AheadLimits(total=2 * AHEAD_BYTES, call=AHEAD_BYTES),
    )


def test_the_first_range_ends_before_its_call_ends():
    core = in_turn(10, 10, 10)
    fetches = core.next(0.0)
    core.begin([fetch.number for fetch in fetches], 0.0)
    for fetch in fetches[:2]:
        assert core.on_received(fetch.number, 10, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    for key in (0, 1):
        core.first = key
        assert core.next(0.0) == []
        assert [each.key for each in core.out] == [*range(key + 1)]


def test_the_first_range_is_fetched_again_after_an_incomplete_answer():
    core = in_turn(10, 10)
    first, second = core.next(0.0)
    core.begin([first.number, second.number], 0.0)
    assert core.on_received(first.number, 4, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    assert core.next(0.0) == []
    for _ in range(2):  # the second one has no news, and is queued nevertheless
        received = core.on_received(
            first.number, 4, NO_LINEAGE, 0, 1, ITEM_BYTES, 0.0, is_last=True
        )
        assert received
    core.on_taken(0, first.number, ITEM_BYTES)
    (again,) = core.next(0.0)
    assert (again.key, again.start) == (0, 4)


def test_a_call_has_room_if_its_largest_answer_is_within_the_budget():
    core = in_turn(10, 10, 10)
    first, second, _ = core.next(0.0)
    assert core.has_room
    core.begin([first.number], 0.0)
    assert core.has_room
    call = core.begin([second.number], 0.0)
    assert not core.has_room
    assert core.on_received(second.number, 10, NO_LINEAGE, 1, None, ITEM_BYTES, 0.0)
    core.on_ended(call)
    assert not core.has_room  # it is held
    core.on_taken(1, second.number, ITEM_BYTES)
    assert core.has_room
