"""The decisions of a reader, in any order of events: each record once, and exact losses."""

from __future__ import annotations

import logging
import random

import pytest

from isolog.errors import (
    BrokerUnavailable,
    DataLoss,
    IsologError,
    NotLeader,
    OffsetEvicted,
    RequestTimeout,
)
from spark_stream.client.reading.core import (
    FOLLOWER_PAUSE_S,
    RETRY_PAUSE_S,
    NextFetch,
    PauseUntil,
    RangeCore,
)
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def no_warnings(caplog):
    caplog.set_level(logging.ERROR)


class Leader:
    """A log with changes, truncations and evictions. A lineage names a snapshot of it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.records: list[int] = []  # the value of each offset. Each value is written once
        self.start = 0
        self.written = 0
        self.snapshots: list[list[int]] = []
        self.losses: list[int] = []

    def happen(self, uncut: int) -> None:
        """Change the log at random, without a truncation below ``uncut``."""
        what = self.chance.random()
        if what < 0.6:
            for _ in range(self.chance.randrange(6)):
                self.records.append(self.written)
                self.written += 1
        elif what < 0.75:
            least = max(self.start, uncut, len(self.records) - 4)
            del self.records[self.chance.randint(least, max(least, len(self.records))) :]
        elif what < 0.85:
            self.start = self.chance.randint(self.start, len(self.records))

    def lineage(self, offset: int) -> Lineage:
        self.snapshots.append(self.records[:offset])
        return ((len(self.snapshots) - 1, offset),)

    def check(self, fetch: NextFetch) -> None:
        if fetch.lineage != NO_LINEAGE:
            seen = self.snapshots[fetch.lineage[0][0]]
            same = [a == b for a, b in zip(seen, self.records, strict=False)]
            left = same.index(False) if False in same else len(same)
            if left < fetch.start:
                self.losses.append(left)
                raise DataLoss("cut off", left=left)
        if fetch.start < self.start:
            self.losses.append(self.start)
            raise OffsetEvicted("gone", log_start_offset=self.start)
        assert fetch.start <= len(self.records)


class Reader:
    """A shell that carries out the core's decisions, with a leader instead of a network."""

    def __init__(self, leader: Leader, core: RangeCore) -> None:
        self.leader, self.core = leader, core
        self.now = 0.0
        self.kept: dict[int, int] = {}
        self.losses: list[int] = []
        self.answered = False

    def step(self) -> bool:
        """Do one step. Return whether there are more."""
        step = self.core.next(self.now)
        if step is None:
            return False
        if isinstance(step, PauseUntil):
            assert step.moment > self.now
            self.now = step.moment
            return True
        if step.may_use_follower:
            self.ask_follower(step)
            return True
        try:
            self.fetch(step)
        except IsologError as error:
            left = self.core.on_failed(error, self.now)
            if left is not None:
                self.losses.append(left)
                self.kept = {at: value for at, value in self.kept.items() if at < left}
        else:
            self.core.on_ended()
            self.answered = True
        return True

    def ask_follower(self, step: NextFetch) -> None:
        """Fetch from a follower: it delivers some of the leader's records, or any error."""
        self.core.at_follower = True
        leader, chance = self.leader, self.leader.chance
        losses = list(leader.losses)
        try:
            if chance.random() < 0.3:
                raise chance.choice(
                    (NotLeader("no"), DataLoss("cut", left=0), BrokerUnavailable(""))
                )
            leader.check(step)
            bound = len(leader.records) if self.core.end is None else self.core.end
            upto = chance.randint(step.start, max(step.start, min(bound, len(leader.records))))
            for offset in range(step.start, upto):
                assert offset not in self.kept
                self.kept[offset] = leader.records[offset]
            self.core.on_received(upto, leader.lineage(upto), upto - step.start, 3, self.now)
            if chance.random() < 0.1:
                raise BrokerUnavailable("the stream is lost")
        except IsologError as error:
            leader.losses[:] = losses  # a loss at a follower is ignored
            assert self.core.on_failed(error, self.now) is None  # noqa: PT017 -- no loss
            self.now += chance.choice((0.0, FOLLOWER_PAUSE_S))
        else:
            self.core.on_ended()

    def fetch(self, step: NextFetch) -> None:
        leader, chance = self.leader, self.leader.chance
        assert (step.start, step.lineage) == (self.core.position, self.core.lineage)
        if chance.random() < 0.2:
            raise BrokerUnavailable("no broker") if chance.random() < 0.5 else NotLeader("moved")
        leader.check(step)
        position, known = step.start, list(leader.records)
        bound = len(known) if self.core.end is None else min(self.core.end, len(known))
        while position < bound:
            upto = min(bound, position + chance.randint(1, 4))
            for offset in range(position, upto):
                assert offset not in self.kept
                self.kept[offset] = known[offset]
            snapshot = leader.lineage(upto)
            assert self.core.on_received(upto, snapshot, upto - position, None, self.now)
            position = upto
            if chance.random() < 0.1:
                raise BrokerUnavailable("the stream is lost")
        self.core.on_received(position, leader.lineage(position), 0, 3, self.now)


@pytest.mark.rule(
    "a reader's position, retries and timeout",
    "client/reading/core.py",
)
@pytest.mark.parametrize(
    "block", [*range(4), *(pytest.param(n, marks=pytest.mark.full) for n in range(4, 20))]
)
def test_remaining_records_are_read_once_with_losses_in_any_order_of_events(block):
    for seed in range(100 * block, 100 * block + 100):
        chance = random.Random(seed)
        leader = Leader(chance)
        read = RangeCore(
            0, None, patience_s=PATIENCE_S, fail_on_loss=False, may_use_followers=seed % 2 == 1
        )
        reader = Reader(leader, read)
        for _ in range(60):
            unknown = reader.core.lineage == NO_LINEAGE  # then a truncation cannot be detected
            leader.happen(reader.core.position if unknown else 0)
            if chance.random() < 0.7:
                reader.step()
        reader.answered = False
        while not (reader.answered and reader.core.position == len(leader.records)):
            reader.step()
        left = range(leader.start, len(leader.records))
        read = {at: value for at, value in reader.kept.items() if at >= leader.start}
        assert read == {at: leader.records[at] for at in left}
        assert reader.losses == leader.losses


@pytest.mark.parametrize("seed", range(50))
def test_a_bounded_range_ends_at_its_end_or_at_a_bound_that_does_not_move(seed):
    chance = random.Random(seed)
    leader = Leader(chance)
    leader.records = list(range(30))
    start, end = sorted((chance.randint(0, 30), chance.randint(0, 40)))
    reader = Reader(
        leader, RangeCore(start, end, patience_s=PATIENCE_S, may_use_followers=seed % 2 == 1)
    )
    while reader.step():
        pass
    assert reader.kept == {at: at for at in range(start, min(end, 30))}


def core(**options: object) -> RangeCore:
    return RangeCore(**({"start": 5, "end": 9, "patience_s": PATIENCE_S} | options))


def test_retriable_errors_are_retried_until_the_patience_ends():
    tried = core()
    for now in (1.0, 10.0, 1 + PATIENCE_S - 0.1):
        assert tried.next(now) == NextFetch(5, NO_LINEAGE)
        assert tried.on_failed(BrokerUnavailable("no broker"), now) is None
        assert tried.next(now) == PauseUntil(now + RETRY_PAUSE_S)
    with pytest.raises(BrokerUnavailable):
        tried.on_failed(BrokerUnavailable("no broker"), 1 + PATIENCE_S)


def test_each_answer_restarts_the_time_for_retries():
    tried = core(end=None)
    for now in range(0, 300, 20):
        tried.next(now)
        tried.on_received(5, ((0, 5),), 0, None, now)
        assert tried.on_failed(BrokerUnavailable("no broker"), now + 10) is None


def test_a_bounded_read_is_not_retried_after_a_timeout():
    tried = core()
    tried.next(0)
    with pytest.raises(RequestTimeout):
        tried.on_failed(RequestTimeout("silent"), PATIENCE_S)
    following = core(end=None)
    following.next(0)
    assert following.on_failed(RequestTimeout("silent"), PATIENCE_S) is None


def test_a_loss_is_an_error_or_moves_the_position():
    with pytest.raises(DataLoss):
        core().on_failed(DataLoss("cut", left=3), 0)
    tried = core(lineage=((1, 5),), fail_on_loss=False)
    assert tried.on_failed(DataLoss("cut", left=3), 0) == 3
    assert tried.next(0) == NextFetch(3, NO_LINEAGE)


def test_an_empty_range_is_fetched_once_if_it_has_checks():
    assert core(start=9).next(0) is None
    tried = core(start=9, checks=True)
    assert tried.next(0) == NextFetch(9, NO_LINEAGE)
    tried.on_ended()
    assert tried.next(0) is None


def test_a_batch_without_rows_is_delivered_if_it_has_news():
    tried = core(end=None)
    tried.next(0)
    assert not tried.on_received(5, ((0, 5),), 0, None, 0)
    assert tried.on_received(5, ((0, 5),), 0, 3, 0)
    assert not tried.on_received(5, ((0, 5),), 0, 3, 0)
    assert tried.on_received(7, ((0, 7),), 0, 3, 0)


def ask_follower(tried: RangeCore, now: float) -> None:
    assert tried.next(now) == NextFetch(tried.position, tried.lineage, may_use_follower=True)
    tried.at_follower = True


def ask_leader(tried: RangeCore, now: float) -> None:
    assert tried.next(now) == NextFetch(tried.position, tried.lineage)


def test_after_a_failed_follower_fetches_go_to_the_leader_for_a_while():
    tried = core(may_use_followers=True)
    for error in (BrokerUnavailable("dead"), DataLoss("cut", left=3), OffsetEvicted("gone")):
        now = tried._leader_until
        ask_follower(tried, now)
        assert tried.on_failed(error, now) is None
        ask_leader(tried, now)
        tried.on_received(tried.position + 1, ((0, tried.position + 1),), 1, None, now)
        tried.on_ended()
        ask_leader(tried, now + FOLLOWER_PAUSE_S - 1)


def test_records_that_a_follower_lacks_are_fetched_from_the_leader():
    tried = core(may_use_followers=True)
    ask_follower(tried, 0)
    tried.on_received(7, ((0, 7),), 2, None, 0)
    tried.on_ended()
    ask_follower(tried, 0)
    tried.on_ended()  # it delivered no records
    ask_leader(tried, 0)
    tried.on_received(8, ((0, 8),), 1, None, 0)
    tried.on_ended()
    ask_leader(tried, 0)


def test_without_news_of_a_follower_the_next_fetch_goes_to_the_leader():
    tried = core(end=None, may_use_followers=True)
    for _ in range(3):
        ask_follower(tried, 0)
        tried.on_ended()
        ask_leader(tried, 0)
        tried.on_ended()


def test_answers_of_followers_do_not_renew_the_patience_for_the_leader():
    tried = core(end=None, may_use_followers=True)
    ask_follower(tried, 0)
    tried.on_received(5, ((0, 5),), 0, None, 0)
    tried.on_ended()
    for now in (0, 20):
        ask_leader(tried, now)
        assert tried.on_failed(BrokerUnavailable("no leader"), now) is None
    ask_leader(tried, PATIENCE_S)
    with pytest.raises(BrokerUnavailable):
        tried.on_failed(BrokerUnavailable("no leader"), PATIENCE_S)
