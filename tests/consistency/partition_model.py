"""A whole partition in memory: its replicas' cores, their logs, the record, messages under way.

Everything that a broker's shell does is here in its simplest form. The rules are the production
code. The next event is chosen from outside (``choose``), one small step at a time: so messages and
compare-and-sets are late or lost, brokers die, lose unsynced entries, and come back. After each
step :meth:`Cluster.check` has the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import LogEnd, Unchanged
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.entries import Entry, Kind
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation
from spark_stream.consistency.partition.effects import Effects, ProposeIsr
from spark_stream.consistency.partition.progress import IsrSettings
from spark_stream.consistency.replication import follower
from spark_stream.consistency.replication.follower import (
    Agreement,
    LeaderAnswer,
    Refusal,
    StartOver,
    Truncate,
)
from tests.consistency.partition_parts import Acked, Follow, Frame, Link, Log, Process, Write

Choose = Callable[[Sequence[Any]], Any]

LAG_MAX = 640


class Cluster:
    """``brokers`` brokers with one partition on the first ``factor`` of them."""

    def __init__(
        self, brokers: int, factor: int, min_insync: int, choose: Choose, *, moves: bool = False
    ) -> None:
        self.choose = choose
        self.moves = moves
        self.min_insync = min_insync
        self.brokers = [BrokerId(str(number)) for number in range(brokers)]
        self.logs = {broker: Log() for broker in self.brokers}
        self.generations = dict.fromkeys(self.brokers, Generation("1"))
        self.running: dict[BrokerId, Process] = {}
        self.alive: dict[BrokerId, Generation] = {}
        self.registered: dict[BrokerId, Generation] = {}
        self.links: dict[BrokerId, Link] = {}
        self.writes: list[Write] = []
        self.now = 0
        self.content = 0
        self.committed: dict[int, tuple[int, int]] = {}
        self.led: dict[int, Process] = {}
        self.holes: dict[BrokerId, EntryIndex] = {}
        """The detected damaged entry of each broker's log."""
        self.lost = False
        self.seen_epoch, self.seen_hw = 0, 0
        self.version = 1
        for broker in self.brokers:
            self.registered[broker] = self.alive[broker] = self.generations[broker]
        created = election.create(self.brokers[:factor], self.alive)
        assert created is not None
        self.record = created
        for broker in self.brokers:
            self.start(broker)

    # -- processes --------------------------------------------------------------------------------

    def start(self, broker: BrokerId) -> None:
        """Logs open, then the generation is registered, then it sees the record."""
        log = self.logs[broker]
        self.registered[broker] = self.alive[broker] = self.generations[broker]
        process = Process(Member(broker, self.generations[broker]), log)
        process.core.configure(IsrSettings(self.min_insync, LAG_MAX), self.now)
        self.running[broker] = process
        self.see(process)

    def kill(self, process: Process) -> None:
        """The process ends, and its machine keeps its writes."""
        del self.running[process.me.broker]
        for broker, link in list(self.links.items()):
            if process in (link.taker, link.leader):
                self.cut(broker)

    def lose_power(self, process: Process) -> None:
        """Unsynced entries may be lost: the broker cannot vouch for its log any more."""
        self.kill(process)
        log, broker = process.log, process.me.broker
        low = max(log.forced, log.start.entry)
        log.cut(self.choose(range(low, log.end.entry + 1)))
        self.generations[broker] = Generation(str(int(self.generations[broker]) + 1))

    def cut(self, broker: BrokerId) -> None:
        """The connection that this follower opened ends, with all messages under way."""
        link = self.links.pop(broker)
        if link.session is not None and link.leader in self.running.values():
            self.obey(link.leader, link.leader.core.follower_left(link.session, self.now))

    def see(self, process: Process) -> None:
        """The process reads the present record and the live brokers."""
        process.alive = dict(self.alive)
        record, core = self.record, process.core
        if process.found_epoch is None:
            process.found_epoch = record.leader_epoch
        process.record, process.version = record, self.version
        if election.leads(record, process.me):
            if core.progress is not None and core.leader_epoch == record.leader_epoch:
                self.obey(process, core.isr_changed(record, self.version, self.now))
                self.obey(process, core.tick(self.now))
            elif self.may_lead(process):
                self.lead(process)
        elif core.progress is not None or record.leader_epoch > core.leader_epoch:
            core.follow(record.leader_epoch)

    def may_lead(self, process: Process) -> bool:
        """A process leads no epoch that an earlier process of its broker may have led."""
        assert process.found_epoch is not None
        if self.record.leader_epoch > process.found_epoch:
            return True
        if process.found_epoch not in self.led:
            return True  # its first leader
        resumed = election.resume(self.record, process.me)
        if isinstance(resumed, Unchanged):
            return True
        self.writes.append(Write(self.version, resumed))
        return False

    def lead(self, process: Process) -> None:
        record, core = self.record, process.core
        epoch = record.leader_epoch
        leader = self.led.setdefault(epoch, process)
        single = record.replicas == (process.me.broker,)
        assert leader is process or single, f"two processes lead epoch {epoch}"
        for index, entry in self.committed.items():
            if index >= process.log.start.entry:
                have = process.log.since(index)
                same = have and (have[0].leader_epoch, have[0].data_crc) == entry
                assert same, f"the leader of epoch {epoch} lacks committed entry {index}"
        self.obey(process, core.lead_replicas(process.me, record, self.version, self.now))

    def obey(self, process: Process, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                progress = process.core.progress
                assert progress is not None
                epoch = process.core.leader_epoch
                changed = election.propose_isr(progress.record, process.me, epoch, effect.members)
                assert isinstance(changed, PartitionRecord), changed
                self.writes.append(Write(effect.version, changed, process))

    # -- the record -------------------------------------------------------------------------------

    def land(self, write: Write, *, answered: bool) -> None:
        """A compare-and-set arrives at the store. Its answer may be lost."""
        self.writes.remove(write)
        taken = write.version == self.version
        if taken:
            if write.loses_records:
                whole = [m for m in self.record.isr if self.generations[m.broker] == m.generation]
                assert not whole, f"records are given up that {whole} would bring back"
            self.record, self.version = write.record, self.version + 1
            if write.loses_records:
                self.forget()
        process = write.process
        if process is None or not answered or process not in self.running.values():
            return
        if taken:
            effects = process.core.isr_changed(self.record, self.version, self.now)
        else:
            effects = process.core.isr_refused(write.version, self.record, self.version, self.now)
        self.obey(process, effects)

    def forget(self) -> None:
        """Records were lost, with an error: the new leader's log is the committed one."""
        log = self.logs[self.record.leader or ""]
        for index, entry in list(self.committed.items()):
            if index >= log.start.entry:
                have = log.since(index)
                if not have or (have[0].leader_epoch, have[0].data_crc) != entry:
                    del self.committed[index]
        self.lost = True
        self.seen_hw = 0

    def control(self) -> None:
        """The controller, or an operator, reads the record and proposes a change."""
        record = self.record
        wanted: list[election.Outcome] = [
            election.elect(record, self.alive),
            election.prefer(record, self.alive),
        ]
        for process in self.running.values():
            wanted.append(election.leave_isr(record, process.me))
            wanted.append(election.resign(record, process.me, self.alive))
        if self.moves:
            size = self.choose(range(1, len(self.brokers) + 1))
            shift = self.choose(range(len(self.brokers)))
            target = [*self.brokers[shift:], *self.brokers[:shift]][:size]
            wanted.append(election.begin_move(record, target))
            wanted += [election.finish_move(record, self.alive)] * 3
            wanted.append(election.cancel_move(record, self.alive))
        possible = [each for each in wanted if isinstance(each, PartitionRecord)]
        if possible:
            self.writes.append(Write(self.version, self.choose(possible)))

    def elect(self) -> None:
        """The election by a controller without a live leader."""
        elected = election.elect(self.record, self.alive)
        if isinstance(elected, PartitionRecord):
            self.writes.append(Write(self.version, elected))

    def elect_longest(self) -> None:
        candidates = {}
        for broker, process in self.running.items():
            if self.alive.get(broker) == process.me.generation:
                last = process.core.epochs.last
                candidates[broker] = LogEnd(
                    process.me.generation, -1 if last is None else last, process.log.end.entry
                )
        elected = election.elect_longest(self.record, candidates, self.registered)
        if isinstance(elected, PartitionRecord):
            self.writes.append(Write(self.version, elected, loses_records=True))

    # -- appends and replication ------------------------------------------------------------------

    def append(self, process: Process, count: int) -> None:
        """A client's batch of ``count`` records. 0: a marker."""
        self.content += 1
        end = process.log.end
        entry = Entry(
            end.entry,
            end.offset,
            self.now,
            self.now,
            count,
            process.core.leader_epoch,
            self.content,
            Kind.DATA if count else Kind.COMMIT,
        )
        process.log.entries.append(entry)
        process.core.apply(entry)

    def connect(self, process: Process) -> None:
        """A follower starts a session at the leader on its last record."""
        broker = process.me.broker
        if broker in self.links:
            self.cut(broker)
        leader = self.running.get((process.record and process.record.leader) or BrokerId("nobody"))
        if leader is None or leader is process or process.leads:
            return
        link = self.links[broker] = Link(process, leader)
        history = process.core.history()
        if broker in self.holes:
            history = history.below(self.holes[broker])
        link.up.append(Follow(process.core.leader_epoch, history))

    def push(self, link: Link, count: int) -> None:
        """The leader sends some entries, or only its high watermark."""
        core = link.leader.core
        progress = core.progress
        if progress is None or link.session not in {number for number, *_ in progress.sessions()}:
            return
        if link.next_entry < link.leader.log.start.entry:
            return self.cut(link.taker.me.broker)  # evicted in the meantime: it starts again
        entries = tuple(link.leader.log.since(link.next_entry)[:count])
        entries = self.readable(link.leader, entries)
        high = core.bounds_state.high_watermark.entry
        link.down.append(Frame(core.leader_epoch, link.next_entry, entries, high))
        link.next_entry += len(entries)

    def readable(self, leader: Process, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Those before the first damaged one."""
        hole = self.holes.get(leader.me.broker)
        return tuple(each for each in entries if hole is None or each.entry_index < hole)

    def deliver_up(self, link: Link) -> None:
        message, core = link.up.popleft(), link.leader.core
        if isinstance(message, Follow):
            agreed, effects = core.follower_started(
                link.taker.me, message.epoch, message.history, self.now
            )
            if isinstance(agreed, Refusal):
                self.links.pop(link.taker.me.broker)
            else:
                link.session, link.next_entry = agreed.session, agreed.agreement.entry
                link.down.append(agreed)
        else:
            assert link.session is not None
            effects = core.follower_acked(link.session, message.entry, self.now)
        self.obey(link.leader, effects)

    def deliver_down(self, link: Link) -> None:
        message, taker = link.down.popleft(), link.taker
        if isinstance(message, LeaderAnswer):
            if not self.prepare(taker, message.agreement):
                return self.cut(taker.me.broker)
        else:
            epoch, end = taker.core.leader_epoch, taker.log.end.entry
            verdict = follower.judge_frame(
                epoch, end, message.epoch, message.first, len(message.entries)
            )
            if isinstance(verdict, Refusal):
                return self.cut(taker.me.broker)
            entries = [replace(each) for each in message.entries[verdict.skip :]]
            anew = follower.diverged(taker.log.end, entries[0].base_offset) if entries else None
            if anew is not None:
                assert self.lost, f"two logs of one partition differ in offsets: {anew}"
                self.begin_anew(taker, anew)
                return self.cut(taker.me.broker)
            taker.log.entries += entries
            taker.core.append_replicated(entries, message.high_watermark)
        link.up.append(Acked(taker.log.end.entry))

    def prepare(self, taker: Process, agreed: Agreement) -> bool:
        """The follower makes its log a prefix of its leader's. False: the answer is too old."""
        hole = self.holes.get(taker.me.broker)
        plan = follower.preparation(taker.core.bounds_state, agreed, hole)
        if isinstance(plan, Refusal):
            return False
        log = taker.log
        if isinstance(plan, Truncate):
            assert self.lost or plan.lost_from is None, f"committed entries are cut: {plan}"
            log.cut(plan.entry)
            lost = plan.lost_from is not None
            taker.core.truncate(log.tables(), log.end, self.now, lost=lost)
            taker.checked = min(taker.checked, log.end.entry)
        elif isinstance(plan, StartOver):
            assert self.lost or plan.lost_from is None, f"committed entries are gone: {plan}"
            # A crash on the way would leave a member of the ISR with a part of its log.
            empty = log.start == log.end
            assert self.lost or empty or taker.me not in self.record.isr, f"in sync: {plan}"
            self.begin_anew(taker, plan)
        if hole is not None and log.end.entry <= hole:
            del self.holes[taker.me.broker]
        taker.core.learn_high_watermark(agreed.high_watermark)
        return True

    def begin_anew(self, taker: Process, plan: StartOver) -> None:
        log = taker.log
        log.entries.clear()
        log.start, log.forced = plan.at, plan.at.entry
        taker.core.reset(plan.at, self.now)
        taker.checked = plan.at.entry

    def evict(self, process: Process) -> None:
        """Retention removes entries below the last stable offset."""
        high = process.core.bounds_state.high_watermark.entry
        if high > process.log.start.entry:
            upto = self.choose(range(process.log.start.entry + 1, high + 1))
            process.core.evict(process.log.boundary_of(EntryIndex(upto)))
            process.log.evict(process.core.bounds_state.log_start)

    def read(self, process: Process) -> None:
        """A reader requests the bound. It ignores epochs older than one that it has seen."""
        core = process.core
        if not process.leads or core.leader_epoch < self.seen_epoch or not core.hw_known:
            return
        high = core.bounds_state.high_watermark.entry
        assert high >= self.seen_hw, f"the high watermark went back: {self.seen_hw} to {high}"
        self.seen_epoch, self.seen_hw = core.leader_epoch, high

    # -- invariants -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError with the violated invariant."""
        self.check_record()
        for process in self.running.values():
            self.check_committed(process)
            state = process.core.bounds_state
            assert (state.log_start, state.log_end) == (process.log.start, process.log.end)

    def check_record(self) -> None:
        record = self.record
        brokers = [each.broker for each in record.isr]
        assert brokers
        assert record.leader in brokers
        assert len(set(brokers)) == len(brokers)
        assert set(brokers) <= set(record.replicas)
        assert len(set(record.replicas)) == len(record.replicas)
        assert {*record.adding, *record.removing} <= set(record.replicas)

    def check_committed(self, process: Process) -> None:
        """Below the high watermark all replicas hold the same, for ever."""
        progress, high = process.core.progress, process.core.bounds_state.high_watermark.entry
        if high > process.checked and progress is not None:
            needed = min(self.min_insync, len(progress.record.replicas))
            enough = len(progress.record.isr) >= needed
            assert enough, "the high watermark moved while too few replicas were in sync"
        for index in range(max(process.checked, process.log.start.entry), high):
            entry = process.log.at(index)
            known = self.committed.setdefault(index, (entry.leader_epoch, entry.data_crc))
            same = known == (entry.leader_epoch, entry.data_crc)
            assert same, f"{process.me} has another entry {index} than the one that was committed"
        process.checked = max(high, process.log.start.entry)

    def check_same(self) -> None:
        """Logs that hold an entry of one index and epoch hold the same up to there."""
        logs = list(self.logs.values())
        for place, one in enumerate(logs):
            for other in logs[place + 1 :]:
                low = max(one.start.entry, other.start.entry)
                high = min(one.end.entry, other.end.entry)
                for index in range(high - 1, low - 1, -1):
                    if one.at(index).leader_epoch == other.at(index).leader_epoch:
                        count = index - low + 1
                        assert one.since(low)[:count] == other.since(low)[:count]
                        break

    def heal(self) -> None:
        """No more trouble: in a while all replicas are in sync, and hold and show the same."""
        for broker in self.brokers:
            if broker not in self.running:
                self.start(broker)
            self.registered[broker] = self.alive[broker] = self.generations[broker]
        for _ in range(60):
            self.now += LAG_MAX // 8
            self.elect()
            self.elect_longest()
            self.writes += [
                Write(self.version, each)
                for each in (election.finish_move(self.record, self.alive),)
                if isinstance(each, PartitionRecord)
            ]
            while self.writes:
                self.land(self.writes[0], answered=True)
                self.check()
            for process in list(self.running.values()):
                self.see(process)
                link = self.links.get(process.me.broker)
                if link is None or not self.is_live(link):
                    self.connect(process)
                self.check()
            for link in list(self.links.values()):
                self.run_down(link)
            if self.settled():
                break
        assert self.settled(), f"it never settles: {self.record}"
        self.check_same()

    def is_live(self, link: Link) -> bool:
        """Whether the connection is to the present leader, which takes what it brings."""
        progress = link.leader.core.progress
        if progress is None or self.running.get(self.record.leader or "nobody") is not link.leader:
            return False
        return link.session in {number for number, *_ in progress.sessions()}

    def run_down(self, link: Link) -> None:
        """All messages under way on a connection arrive, and the leader sends its entries."""
        broker = link.taker.me.broker
        for _ in range(3):
            while self.links.get(broker) is link and (link.up or link.down):
                (self.deliver_up if link.up else self.deliver_down)(link)
                self.check()
            if self.links.get(broker) is link:
                self.push(link, 1000)

    def settled(self) -> bool:
        record = self.record
        leader = self.running[record.leader or BrokerId("nobody")]
        present = {Member(broker, self.generations[broker]) for broker in record.replicas}
        if not leader.leads or set(record.isr) != present or record.removing:
            return False
        end = leader.log.end
        logs = [self.logs[broker] for broker in record.replicas]
        high = leader.core.bounds_state.high_watermark
        return leader.core.hw_known and high == end and all(each.end == end for each in logs)
