"""The cores of a leader and of a follower, connected by a random schedule."""

from __future__ import annotations

import random
from collections import deque

import pytest

from isolog.errors import (
    BrokerStopping,
    BrokerUnavailable,
    InvalidRequest,
    IsologError,
    Unauthenticated,
)
from spark_stream.broker.replication.follower_core import (
    Begin,
    Connect,
    FollowerStreamCore,
    HangUp,
    Job,
)
from spark_stream.broker.replication.leader_core import STREAM_END, LeaderStreamCore, Slot
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import Agreement
from spark_stream.consistency.replication.promises import MARGIN
from spark_stream.protocol import Bytes
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.wire.replication_messages import (
    Acked,
    Agreed,
    AskPromise,
    Beat,
    Bye,
    Follow,
    Frame,
    Promised,
    Room,
    Said,
    Unfollow,
    Welcome,
    unpack,
)
from tests.broker.replication.partitions import (
    Copy,
    LeadPartition,
    LeadPartitions,
    MemorySession,
)

SETTINGS = ReplicationSettings(beat_s=1.0, death_s=3.0, stream_bytes=4_000, frame_bytes=300)
KEYS = [PartitionId("t", number) for number in range(3)]


class Pair:
    """A leader and a follower with a random next event.

    A third replica of each partition acknowledges now and then, and stops at the end. So the high
    watermark advances and stays behind the log's end, independently of the follower.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.parts = {key: LeadPartition() for key in KEYS}
        self.led = LeadPartitions(self.parts)
        self.copies = {key: Copy(key) for key in KEYS}
        self.follower = FollowerStreamCore("1", SETTINGS.stream_bytes, SETTINGS, self.now)
        self.others = [self._follow_as_third(key) for key in KEYS]
        self.leader: LeaderStreamCore | None = None
        self.turn: tuple[Slot, StoredEntries | None, int, int] | None = None  # read, not sent
        self.to_follower: deque[tuple[Bytes, Bytes]] = deque()
        self.to_leader: deque[bytes] = deque()
        self.jobs: list[Job] = []
        self.agreed: dict[int, PartitionId] = {}
        self.most_unacked = 0

    def _follow_as_third(self, key: PartitionId) -> MemorySession:
        return self.led.start_session("3", "g", key, 1, EpochHistory(0, 0, ()), lambda _: None)

    def carry_out(self) -> None:
        for effect in self.follower.effects():
            match effect:
                case Job():
                    assert all(each.following is not effect.following for each in self.jobs)
                    self.jobs.append(effect)
                case Connect():
                    welcome = Welcome(1, "proof")
                    self.leader = LeaderStreamCore(effect.window_bytes, welcome, SETTINGS, self.now)
                case HangUp():
                    self.break_off()
                case bytes():
                    self.check_said(unpack(effect, b""))
                    self.to_leader.append(effect)

    def check_said(self, message: Said) -> None:
        if isinstance(message, Follow):
            assert message.slot not in self.agreed
            self.agreed[message.slot] = PartitionId(message.topic_id, message.partition)
        elif isinstance(message, Acked):
            ((number, entry),) = message.entries
            assert entry <= self.copies[self.agreed[number]].log.end

    def break_off(self) -> None:
        self.to_follower.clear()
        self.to_leader.clear()
        leader, self.leader, self.turn = self.leader, None, None
        for method, args in leader.close() if leader else ():
            method(*args)

    def step(self) -> bool:
        assert self.leader is not None
        if self.turn is not None:
            self.end_turn(*self.turn)
            return True
        leader, step = self.leader, self.leader.next_step(self.now)
        match step:
            case None:
                return False
            case bytes():
                self.to_follower.append((step, b""))
            case Follow():
                key = PartitionId(step.topic_id, step.partition)

                def news(is_urgent: bool, number: int = step.slot) -> None:
                    leader.on_change(number, self.now, is_urgent=is_urgent)

                try:
                    session = self.led.start_session(
                        "2", step.generation, key, step.leader_epoch, step.history, news
                    )
                except IsologError as error:
                    leader.refuse(step.slot, error)
                else:
                    if not leader.session_started(step.slot, step.leader_epoch, session):
                        session.close()
            case Slot():
                found = step.session.read_entries(step.next, SETTINGS.frame_bytes)
                self.turn = step, found, step.session.high_watermark, step.session.end
            case tuple():
                message = leader.high_watermarks([(s, s.session.high_watermark) for s in step])
                if message is not None:
                    self.to_follower.append((message, b""))
            case _:
                raise AssertionError(f"nobody ended the stream: {step}")
        return True

    def end_turn(self, slot: Slot, found: StoredEntries | None, high: int, end: int) -> None:
        """Send the entries that were read, perhaps after other events."""
        assert self.leader is not None
        self.turn = None
        sent = self.leader.frame(slot, found, high, end, self.now)
        if sent is not None:
            assert found is not None
            self.to_follower.append(sent)
            self.most_unacked = max(self.most_unacked, self.leader.unacked_bytes)

    def hear(self) -> None:
        if self.to_follower:
            header, body = self.to_follower.popleft()
            self.follower.on_received(unpack(header, body), lambda proof: None, self.now)
        elif self.to_leader and self.leader is not None:
            for method, args in self.leader.take(unpack(self.to_leader.popleft(), b""), self.now):
                method(*args)

    def work(self, *, well: bool) -> None:
        if self.jobs:
            job = self.jobs.pop(self.chance.randrange(len(self.jobs)))
            copy = job.following.partition
            if isinstance(job.what, Frame) and not well and self.chance.random() < 0.2:
                copy.damage = 1
            try:
                result = job.run()
            except IsologError as error:
                self.follower.on_failed(job, error, self.now)
            else:
                self.follower.on_done(job, result, self.now)

    def happen(self) -> None:
        """Run a random event, mostly progress."""
        chance = self.chance.random()
        key = self.chance.choice(KEYS)
        if chance < 0.1:
            self.parts[key].append(bytes(self.chance.choice((1, 100, 1000))))
        elif chance < 0.17:
            other = self.chance.choice(self.others)
            other.on_acked(self.chance.randint(other.acked_entry, other.end))
        elif chance < 0.19:
            self.follower.on_lost(BrokerUnavailable("a cut"), self.now)
        elif chance < 0.21:
            self.follower.unfollow(key)
        elif chance < 0.25:
            self.follower.follow(self.copies[key], self.now)
        elif chance < 0.32:
            self.now += self.chance.random()
            self.follower.tick(self.now)
        else:
            self.go_on(well=False)
        self.carry_out()

    def go_on(self, *, well: bool) -> None:
        (self.hear, lambda: self.work(well=well), lambda: self.leader and self.step())[
            self.chance.randrange(3)
        ]()

    def settle(self) -> None:
        """Follow all partitions and run without failures until no work is left."""
        for copy in self.copies.values():
            copy.damage = 0
            self.follower.follow(copy, self.now)
        for _ in range(60):
            self.now += 0.1
            self.follower.tick(self.now)
            for _ in range(60):
                self.carry_out()
                self.go_on(well=True)


@pytest.mark.quick("0", "200")
@pytest.mark.rule(
    "the validity of a follower's acknowledgements, and the end of an earlier stream",
    "broker/replication/follower_core.py",
    "broker/replication/leader_core.py",
)
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_replicas_converge_and_entries_are_acknowledged_only_after_their_append(first):
    for seed in range(first, first + 100):
        pair = Pair(seed)
        for _ in range(300):
            pair.happen()
        pair.settle()
        for key, part in pair.parts.items():
            copy = pair.copies[key]
            assert copy.log.digest() == part.log.digest(), seed
            assert copy.most_entered <= 1
            acked = [each.acked_entry for each in part.sessions.values()]
            assert len(acked) == 2
            assert max(acked) == part.log.end, seed
            assert part.high_watermark == copy.high_watermark == min(acked), seed
        assert pair.most_unacked <= SETTINGS.stream_bytes + 1_000 + SETTINGS.frame_bytes
        pair.follower.stop()
        pair.carry_out()
        assert all(list(part.sessions) == ["3"] for part in pair.parts.values()), seed


def follower(now: float = 0.0) -> FollowerStreamCore:
    core = FollowerStreamCore("1", 1_000, SETTINGS, now)
    core.follow(Copy(KEYS[0]), now)
    assert core.effects() == [Connect(1_000)]
    return core


def refuse(proof: str) -> None:
    raise Unauthenticated(proof)


def welcome(core: FollowerStreamCore) -> Job:
    """Welcome the follower. Return the first job of the partition's session."""
    core.on_received(Welcome(1, ""), lambda proof: None, 0.0)
    (job,) = core.effects()
    assert isinstance(job, Job)
    return job


@pytest.mark.parametrize("message", [Beat(), Agreed(0, 0, None, 0)])
def test_unproven_leader_receives_no_message_and_its_messages_are_refused(message):
    core = follower()
    with pytest.raises(InvalidRequest):
        core.on_received(message, refuse, 0.0)
    with pytest.raises(Unauthenticated):
        core.on_received(Welcome(1, "another's"), refuse, 0.0)
    assert core.effects() == []


@pytest.mark.parametrize("message", [Room(1), Unfollow(0), Acked(())])
def test_messages_of_followers_are_refused_from_a_leader(message):
    core = follower()
    welcome(core)
    with pytest.raises(InvalidRequest, match="must not send"):
        core.on_received(message, refuse, 0.0)


def test_results_of_jobs_of_an_earlier_stream_are_ignored():
    core = follower()
    job = welcome(core)
    core.on_lost(BrokerUnavailable("a cut"), 0.0)
    core.tick(10.0)
    assert core.effects() == [HangUp(), Connect(1_000)]
    core.on_received(Welcome(1, ""), lambda proof: None, 10.0)
    assert core.effects() == []  # not while the earlier job runs
    core.on_done(job, EpochHistory(0, 0, ()), 10.0)
    (again,) = core.effects()
    assert isinstance(again, Job)
    assert (again.what, again.slot) == (Begin(), job.slot + 1)


@pytest.mark.parametrize(("epoch", "has_agreed"), [(2, True), (1, False)])
def test_entries_of_another_epoch_or_before_agreement_end_their_session(epoch, has_agreed):
    core = follower()
    job = welcome(core)
    core.on_done(job, EpochHistory(0, 0, ()), 0.0)
    core.effects()
    if has_agreed:
        core.on_received(Agreed(job.slot, 0, None, 0), refuse, 0.0)
        (agreeing,) = core.effects()
        assert isinstance(agreeing, Job)
    part = LeadPartition()
    part.append(b"x")
    found = part.log.read(0, 1)
    core.on_received(Frame(job.slot, epoch, 0, 0, found.rows, found.data), refuse, 0.0)
    assert core.effects() == [Unfollow(job.slot).pack()]
    assert core.failures == 1


def test_pauses_before_sessions_and_streams_double():
    core, now, pauses = follower(), 0.0, []
    for _ in range(7):
        core.on_lost(BrokerUnavailable("no"), now)
        pauses.append(round(core.wake_at() - now, 2))
        now = core.wake_at()
        core.tick(now)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_follower_promises_only_on_the_stream_of_the_request():
    core, asked = follower(), AskPromise(1.0, 4.0)
    welcome(core)
    core.on_received(asked, refuse, 1.0)
    assert core.effects() == [asked]  # the shell decides whether to promise
    core.on_promised(asked)
    assert core.effects() == [Promised(1.0, 4.0).pack()]
    core.on_lost(BrokerUnavailable("no"), 1.5)
    core.effects()
    core.on_promised(asked)
    assert core.effects() == []


class Session:
    """A session over an empty log."""

    agreement = Agreement(1, 0, 0)
    end = high_watermark = 0
    closed = 0

    def __init__(self) -> None:
        self.promised: list[float] = []

    def on_promised(self, until: float) -> None:
        self.promised.append(until)

    def close(self) -> None:
        self.closed += 1


def leader(now: float = 0.0) -> LeaderStreamCore:
    core = LeaderStreamCore(1_000, Welcome(1, ""), SETTINGS, now)
    assert unpack(core.next_step(now), b"") == Welcome(1, "")
    return core


def test_promise_lasts_from_its_request_and_covers_the_sending_slots():
    now, session = 10.0, Session()
    core = leader(now)
    core.take(Follow(1, "t", 0, 1, "g", EpochHistory(0, 0, ())), now)
    asked_slot = core.next_step(now)
    assert isinstance(asked_slot, Follow)
    core.session_started(1, 1, session)
    core.take(Follow(2, "t", 1, 1, "g", EpochHistory(0, 0, ())), now)
    core.tick(now + 0.5, promise_s=4.0)
    agreed, asked = (unpack(core.next_step(now + 0.5), b"") for _ in range(2))
    assert isinstance(agreed, Agreed)
    assert asked == AskPromise(now + 0.5, 4.0)
    for method, args in core.take(Promised(asked.asked_at, asked.lasts_s), now + 2.0):
        method(*args)
    assert session.promised == [now + 0.5 + 4.0 * (1 - MARGIN)]  # slot 2 has no session yet
    core.take(Unfollow(1), now + 2.1)
    assert core.take(Promised(asked.asked_at, asked.lasts_s), now + 2.2) == []
    with pytest.raises(InvalidRequest, match="unsolicited promise"):
        core.take(Promised(now + 9.0, 4.0), now + 3.0)


def test_silent_follower_gets_heartbeats_then_times_out_but_not_on_a_late_tick():
    core = leader()
    for tenth in range(5, 30, 5):
        core.tick(tenth / 10)
    assert unpack(core.next_step(2.5), b"") == Beat()
    core.tick(60.0)  # this process was paused
    core.take(Beat(), 60.1)
    core.tick(60.5)
    for tenth in range(610, 635, 5):
        core.tick(tenth / 10)
    with pytest.raises(BrokerUnavailable, match="no heartbeat"):
        core.tick(63.5)


def test_bye_is_the_last_message_of_a_stream():
    core = leader()
    core.take(Follow(0, "t", 0, 1, "g", EpochHistory(0, 0, ())), 0.0)
    core.end()
    assert core.next_step(0.0) is not None  # Bye
    assert core.next_step(0.0) is STREAM_END
    assert core.next_step(0.0) is None
    assert not core.session_started(0, 1, Session())


def test_slot_that_ended_during_the_start_gets_no_session():
    core = leader()
    core.take(Follow(0, "t", 0, 1, "g", EpochHistory(0, 0, ())), 0.0)
    core.take(Unfollow(0), 0.0)
    assert not core.session_started(0, 1, Session())


def test_reused_slot_and_acknowledgement_of_unsent_entries_are_refused():
    core, session = leader(), Session()
    asked = Follow(0, "t", 0, 1, "g", EpochHistory(0, 0, ()))
    core.take(asked, 0.0)
    with pytest.raises(InvalidRequest, match="twice"):
        core.take(asked, 0.0)
    assert core.session_started(0, 1, session)
    with pytest.raises(InvalidRequest, match="before it was sent"):
        core.take(Acked(((0, 1),)), 0.0)
    for method, args in core.close():
        method(*args)
    assert session.closed == 1


def test_stream_is_reopened_after_the_shortest_pause_if_it_was_welcome():
    core = follower()
    welcome(core)
    with pytest.raises(BrokerStopping):
        core.on_received(Bye(), refuse, 1.0)
    core.on_lost(BrokerStopping("it stops"), 1.0)
    assert core.wake_at() == pytest.approx(1.05)
