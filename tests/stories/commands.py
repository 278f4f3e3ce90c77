"""The commands of a story, and the partition that they drive.

| command | effect |
|---|---|
| ``brokers N [min.insync.replicas=M]`` | a partition with a replica on each of N brokers |
| ``append A B [to BROKER] [with read_committed] [in T] [from P]`` | a client appends batches |
| ``repeat A …`` | as ``append``: a producer retries its last batch |
| ``time out A`` | the leader's wait for the high watermark ends at the timeout of A's producer |
| ``commit T``, ``abort T`` | the leader writes the marker, but no commit after a failed write |
| ``replicate`` | connections are made, and all messages under way arrive |
| ``fsync BROKER`` | all that the broker has written is on its disk |
| ``checkpoint BROKER`` | it stores the end of the committed entries, and reads it at its start |
| ``resign BROKER [to A B]`` | its log refuses writes, and only these replicas accept them |
| ``stall BROKER``, ``resume BROKER`` | no message gets to it or from it, and later all do again |
| ``kill BROKER`` | its process ends, its writes stay, and its lease expires |
| ``lease of BROKER ends`` | the other brokers count it as dead |
| ``lose power of BROKER`` | as ``kill``, and writes without an fsync are lost |
| ``wipe BROKER`` | as ``kill``, and its disk is empty |
| ``start BROKER`` | it starts again |
| ``damage A at BROKER`` | bytes of a batch change on its disk, without detection |
| ``scrub BROKER`` | it checks its log, and reacts to damage |
| ``elect``, ``elect longest``, ``elect unclean`` | the controller elects a leader |
| ``elect preferred`` | the first replica becomes the leader, if it is in sync |
| ``wait N s`` | time passes, and each broker that is not stalled reads the clock |
| ``clock BROKER`` | this broker reads the clock, and its proposals reach the metadata store |
| ``read`` | the records that a reader of each isolation level gets from the leader |
| ``read on`` | a reader of ``read_uncommitted`` continues, with its lineage |
| ``state`` | the partition's record and all replicas |

A log is shown as its batches, each epoch's after its number. ``|`` is the high watermark. ``x(T)``
is a batch in transaction T. ``+T`` and ``-T`` are markers of its commit and its abort. Every batch
has one record, so offsets count batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_stream.client.writing.promises import Failures
from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import LogEnd, Unchanged
from spark_stream.consistency.control.handover import Verdict, judge
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.entries import Entry, Kind
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.isolation import DROPS_ABORTED, Isolation, upper_bound
from spark_stream.consistency.partition.effects import Abandon, Answer, Disown, Effect, Effects
from spark_stream.consistency.partition.producers import NOBODY, Duplicate, RefusedBatch, Stamp
from spark_stream.consistency.partition.progress import IsrSettings
from spark_stream.consistency.replication.epochs import (
    NO_LINEAGE,
    lineage_of,
    lost_above,
    surviving,
)
from tests.consistency.partition_model import Cluster
from tests.consistency.partition_parts import Link, Process, Write
from tests.stories.clients import Sent

LAG_MAX_S: Final = 10
_S: Final = 1_000_000
_RISKY: Final = ("longest", "unclean")
_LEVELS: Final = (Isolation.READ_UNCOMMITTED, Isolation.READ_REPLICATED, Isolation.READ_COMMITTED)


class _Partition(Cluster):
    """The partition in memory, with the answers of its leaders to appends."""

    def __init__(self, brokers: int, min_insync: int) -> None:
        self.answers: list[tuple[Effect, int]] = []
        self.changed: dict[BrokerId, EntryIndex] = {}
        self.marks: dict[BrokerId, tuple[EntryIndex, LeaderEpoch]] = {}
        super().__init__(brokers, brokers, min_insync, lambda options: options[0])

    def readable(self, leader: Process, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Check the entries of a read, so that the leader detects damaged ones."""
        broker = leader.me.broker
        if self.changed.get(broker) in {each.entry_index for each in entries}:
            self.holes[broker] = self.changed.pop(broker)
        return super().readable(leader, entries)

    def start(self, broker: BrokerId) -> None:
        super().start(broker)
        core = self.running[broker].core
        if broker in self.marks:
            core.recall(*self.marks[broker])
        core.configure(IsrSettings(self.min_insync, LAG_MAX_S * _S), self.now)

    def obey(self, process: Process, effects: Effects) -> None:
        super().obey(process, effects)
        for effect in effects:
            if isinstance(effect, Answer | Disown | Abandon):
                self.answers += [(effect, each) for each in effect.tickets]


@dataclass
class Story:
    """The state of a story. :meth:`do` carries out the next command."""

    def __post_init__(self) -> None:
        self.stalled: set[BrokerId] = set()
        self.names: dict[int, str] = {}
        self.waiting: dict[int, Sent] = {}
        self.failures: defaultdict[str | None, Failures] = defaultdict(Failures)
        self.transactions: dict[str, int] = {}
        self.producers: dict[str, tuple[int, int]] = {}
        self.lineage = NO_LINEAGE
        self.got: list[str] = []
        self._partition: _Partition | None = None

    @property
    def partition(self) -> _Partition:
        assert self._partition is not None, "a story begins with: brokers N"
        return self._partition

    def do(self, command: str) -> list[str]:
        """Carry out the command, and return its outcome in lines."""
        words = command.split()
        act = getattr(self, f"_do_{words[0]}", None)
        assert act is not None, f"no such command: {command}"
        lines: list[str] = list(act(words[1:]))
        partition = self.partition
        partition.check()
        for effect, ticket in partition.answers:
            sent = self.waiting.pop(ticket)
            answered = isinstance(effect, Answer)
            lines.append(sent.acknowledge() if answered else sent.give_up("another broker leads"))
        partition.answers.clear()
        return lines

    # -- clients ----------------------------------------------------------------------------------

    def _do_append(self, words: list[str]) -> Iterator[str]:
        names, named = _named(words, "to", "with", "in", "from")
        process = self._leader(named.get("to"))
        level = Isolation(named.get("with", Isolation.READ_UNCOMMITTED))
        for name in names:
            yield from self._append(process, name, level, named)

    def _append(
        self, process: Process, name: str, level: Isolation, named: dict[str, str]
    ) -> Iterator[str]:
        core, transaction = process.core, named.get("in")
        stamp = self._stamp(process, transaction, named.get("from"))
        if not core.has_enough_replicas(stamp, level):
            yield f"{name}: refused: too few replicas are in sync"
            return
        if stamp is not None:
            judged = core.judge(stamp, 1)
            assert not isinstance(judged, RefusedBatch | Duplicate), judged
        entry = self._entry(process, Kind.DATA, stamp or NOBODY)
        self.names[entry.data_crc] = name if transaction is None else f"{name}({transaction})"
        process.log.entries.append(entry)
        self.partition.obey(process, core.apply(entry))
        sent = Sent(name, entry.base_offset, self.failures[transaction])
        yield self._answer(process, sent, stamp, level, entry)

    def _answer(
        self, process: Process, sent: Sent, stamp: Stamp | None, level: Isolation, entry: Entry
    ) -> str:
        """Return the producer's answer about a batch that is in the leader's log."""
        if process.core.acknowledge(entry.data_crc, stamp, level, entry.base_offset):
            return sent.acknowledge()
        self.waiting[entry.data_crc] = sent
        return f"{sent.name}: waits for the high watermark, offset {entry.base_offset}"

    def _stamp(self, process: Process, transaction: str | None, producer: str | None) -> Any:
        """Return the stamp of the producer's next batch, or None for a client without stamps."""
        if transaction is None and producer is None:
            return None
        name = producer or f"producer of {transaction}"
        number, sequence = self.producers.get(name, (len(self.producers) + 1, -1))
        self.producers[name] = (number, sequence + 1)
        if transaction is None:
            return Stamp(number, 0, sequence + 1)
        known = self.transactions.setdefault(transaction, len(self.transactions) + 1)
        if (known, number) not in process.core.joins:  # a promise of this leader's epoch
            assert process.core.joins.confirm(process.core.joins.open(known, number))
        return Stamp(number, 0, sequence + 1, known)

    def _do_repeat(self, words: list[str]) -> Iterator[str]:
        [name], named = _named(words, "to", "with", "in", "from")
        process = self._leader(named.get("to"))
        level = Isolation(named.get("with", Isolation.READ_UNCOMMITTED))
        transaction, producer = named.get("in"), named.get("from")
        known = producer or f"producer of {transaction}"
        number, sequence = self.producers[known]
        self.producers[known] = (number, sequence - 1)
        stamp = self._stamp(process, transaction, producer)
        judged = process.core.judge(stamp, 1)
        if not isinstance(judged, Duplicate):
            self.producers[known] = (number, sequence - 1)
            yield from self._append(process, name, level, named)
            return
        yield f"{name}: broker {process.me.broker} already has it"
        found = next(
            each
            for each in process.log.entries
            if each.base_offset == judged.offset and each.kind is Kind.DATA
        )
        sent = Sent(name, found.base_offset, self.failures[transaction])
        yield self._answer(process, sent, stamp, level, found)

    def _do_time(self, words: list[str]) -> Iterator[str]:
        _, name = words
        ticket = next(ticket for ticket, sent in self.waiting.items() if sent.name == name)
        self._leader(None).core.give_up(ticket)
        yield self.waiting.pop(ticket).give_up("were not replicated in time")

    def _do_commit(self, words: list[str]) -> Iterator[str]:
        failure = self.failures[words[0]].first
        if failure is None:
            yield from self._end(words[0], Kind.COMMIT)
        else:
            yield f"{words[0]} is not committed: a write failed with {failure.code}"

    def _do_abort(self, words: list[str]) -> Iterator[str]:
        return self._end(words[0], Kind.ABORT)

    def _end(self, transaction: str, kind: Kind) -> Iterator[str]:
        process, number = self._leader(None), self.transactions[transaction]
        process.core.joins.seal(number)
        for producer, part in process.core.undecided.parts(number):
            entry = self._entry(process, kind, Stamp(producer, part.epoch, -1, number))
            self.names[entry.data_crc] = f"{'+' if kind is Kind.COMMIT else '-'}{transaction}"
            process.log.entries.append(entry)
            self.partition.obey(process, process.core.apply(entry))
            yield f"broker {process.me.broker} writes the marker"

    def _entry(self, process: Process, kind: Kind, stamp: Stamp) -> Entry:
        self.partition.content += 1
        end, now = process.log.end, self.partition.now
        return Entry(
            end.entry,
            end.offset,
            now,
            now,
            1 if kind is Kind.DATA else 0,
            process.core.leader_epoch,
            self.partition.content,
            kind,
            stamp.producer_id,
            stamp.epoch,
            stamp.sequence,
            stamp.transaction,
        )

    def _do_read(self, words: list[str]) -> Iterator[str]:
        if words == ["on"]:
            yield from self._read_on()
            return
        process = self._leader(words[1] if words else None)
        aborted = {
            (each.transaction, each.producer_id)
            for each in process.log.entries
            if each.kind is Kind.ABORT
        }
        for level in _LEVELS:
            if level is not Isolation.READ_UNCOMMITTED and not process.core.hw_known:
                yield f"{level:<17} retries: the new leader has not computed this bound yet"
                continue
            bound = upper_bound(process.core.bounds_state.bounds(), level)
            entries = tuple(each for each in process.log.entries if each.base_offset < bound)
            if len(self.partition.readable(process, entries)) < len(entries):
                yield f"{level:<17} retries: the leader finds a damaged batch"
                continue
            seen = [
                self.names[each.data_crc]
                for each in process.log.entries
                if each.kind is Kind.DATA
                and each.base_offset < bound
                and not (level in DROPS_ABORTED and (each.transaction, each.producer_id) in aborted)
            ]
            yield f"{level:<17} {' '.join(seen) or 'no record'}"

    def _read_on(self) -> Iterator[str]:
        core = self._leader(None).core
        state, at = core.bounds_state, len(self.got)
        if self.lineage:
            held = surviving(self.lineage, core.epochs, state.log_start.offset, state.log_end)
            left = lost_above(at, self.lineage, held)
            if left is not None:
                yield f"truncated: {' '.join(self.got[left:])}, from offset {left} on"
                del self.got[left:]
        entries = self._leader(None).log.entries
        there = [self.names[each.data_crc] for each in entries if each.kind is Kind.DATA]
        new, self.got = there[len(self.got) :], there
        end = state.log_end.offset
        self.lineage = lineage_of(core.epochs, end, state.high_watermark.offset)
        told = ", ".join(f"epoch {epoch} up to {upto}" for epoch, upto in self.lineage)
        yield f"{' '.join(new) or 'no record'}, up to offset {end} ({told})"

    # -- brokers ----------------------------------------------------------------------------------

    def _do_brokers(self, words: list[str]) -> Iterator[str]:
        count, *settings = words
        least = dict(each.split("=") for each in settings).get("min.insync.replicas", "1")
        self._partition = _Partition(int(count), int(least))
        list(self._do_replicate([]))
        yield self._record()

    def _do_replicate(self, words: list[str]) -> Iterator[str]:
        partition = self.partition
        before = {broker: list(log.entries) for broker, log in partition.logs.items()}
        record = partition.record
        for _ in range(6):
            for process in self._reachable():
                link = partition.links.get(process.me.broker)
                if link is None or not partition.is_live(link):
                    partition.connect(process)
            for link in list(partition.links.values()):
                if self._whole(link):
                    partition.run_down(link)
            self._land()
        for broker, had in before.items():
            yield from self._change(broker, had)
        if partition.record != record:
            yield self._record()

    def _change(self, broker: BrokerId, had: Sequence[Entry]) -> Iterator[str]:
        """Yield the entries that a replica has truncated and appended."""
        has = self.partition.logs[broker].entries
        same = 0
        while same < min(len(had), len(has)) and had[same].data_crc == has[same].data_crc:
            same += 1
        steps = [("truncates", had[same:]), ("appends", has[same:])]
        did = [f"{verb} {self._shown(entries)}" for verb, entries in steps if entries]
        if did:
            yield f"broker {broker} {', and '.join(did)}"

    def _do_fsync(self, words: list[str]) -> Iterator[str]:
        log = self.partition.logs[BrokerId(words[0])]
        log.forced = log.end.entry
        return iter(())

    def _do_checkpoint(self, words: list[str]) -> Iterator[str]:
        broker = BrokerId(words[0])
        mark = self.partition.running[broker].core.committed()
        assert mark is not None, f"broker {broker} has no committed entry"
        self.partition.marks[broker] = mark
        yield f"broker {broker} stores: entries below {mark[0]}, the last of epoch {mark[1]}"

    def _do_resign(self, words: list[str]) -> Iterator[str]:
        partition, (broker, *able) = self.partition, words
        heirs = [BrokerId(each) for each in able if each != "to"]
        me = partition.running[BrokerId(broker)].me
        outcome = election.resign(partition.record, me, partition.alive, heirs)
        if isinstance(outcome, Unchanged):
            yield f"broker {broker} keeps leading: {outcome.why}"
            return
        yield from self._take(outcome, "")

    def _do_stall(self, words: list[str]) -> Iterator[str]:
        self.stalled.add(BrokerId(words[0]))
        return iter(())

    def _do_resume(self, words: list[str]) -> Iterator[str]:
        self.stalled.discard(BrokerId(words[0]))
        return self._spread()

    def _do_kill(self, words: list[str]) -> Iterator[str]:
        return self._away(words[0], self.partition.kill)

    def _do_lose(self, words: list[str]) -> Iterator[str]:
        broker = words[-1]
        had = list(self.partition.logs[BrokerId(broker)].entries)
        yield from self._away(broker, self.partition.lose_power)
        yield from self._change(BrokerId(broker), had)

    def _do_wipe(self, words: list[str]) -> Iterator[str]:
        partition, broker = self.partition, BrokerId(words[0])
        yield from self._away(broker, partition.kill)
        log = partition.logs[broker]
        log.entries.clear()
        log.forced = 0
        partition.generations[broker] = Generation(str(int(partition.generations[broker]) + 1))

    def _away(self, broker: str, end: Callable[[Process], None]) -> Iterator[str]:
        process = self.partition.running[BrokerId(broker)]
        yield from self._leave_open(process)
        end(process)
        yield from self._do_lease(["of", broker])

    def _do_lease(self, words: list[str]) -> Iterator[str]:
        self.partition.alive.pop(BrokerId(words[1]), None)
        return self._spread()

    def _do_start(self, words: list[str]) -> Iterator[str]:
        broker = BrokerId(words[0])
        self.partition.start(broker)
        return self._spread()

    def _do_damage(self, words: list[str]) -> Iterator[str]:
        name, _, broker = words
        log = self.partition.logs[BrokerId(broker)]
        entry = next(each for each in log.entries if self.names[each.data_crc] == name)
        self.partition.changed[BrokerId(broker)] = entry.entry_index
        return iter(())

    def _do_scrub(self, words: list[str]) -> Iterator[str]:
        partition, broker = self.partition, BrokerId(words[0])
        process, record = partition.running[broker], partition.record
        partition.readable(process, tuple(process.log.entries))
        hole = partition.holes.get(broker)
        if hole is None:
            yield f"broker {broker} finds no damage"
            return
        name = self.names[process.log.at(hole).data_crc]
        verdict = judge(record, [record], process.me, partition.alive)
        yield f"broker {broker} finds {name} damaged: {verdict.value}"
        if verdict is Verdict.LEAVE:
            yield from self._leave_open(process)
            partition.kill(process)
            partition.generations[broker] = Generation(str(int(process.me.generation) + 1))
            partition.start(broker)
            yield from self._spread()

    def _do_elect(self, words: list[str]) -> Iterator[str]:
        partition, how = self.partition, "".join(words)
        if how == "preferred":
            outcome = election.prefer(partition.record, partition.alive)
        elif how:
            candidates = {
                each.me.broker: LogEnd(
                    each.me.generation,
                    -1 if each.core.epochs.last is None else each.core.epochs.last,
                    each.log.end.entry,
                )
                for each in partition.running.values()
                if partition.alive.get(each.me.broker) == each.me.generation
            }
            outcome = election.elect_longest(
                partition.record, candidates, partition.registered, unclean=how == "unclean"
            )
        else:
            outcome = election.elect(partition.record, partition.alive)
        if isinstance(outcome, Unchanged):
            yield f"no leader is elected: {outcome.why}"
            return
        yield from self._take(outcome, how)

    def _take(self, record: PartitionRecord, how: str) -> Iterator[str]:
        partition = self.partition
        write = Write(partition.version, record, loses_records=how == "longest")
        partition.writes.append(write)
        partition.land(write, answered=True)
        if how == "unclean":
            partition.forget()  # the unclean election accepts these losses
        yield f"{self._record()}{'; records may be lost' if how in _RISKY else ''}"
        yield from self._spread()

    def _do_wait(self, words: list[str]) -> Iterator[str]:
        partition = self.partition
        partition.now += int(words[0]) * _S
        record = partition.record
        for process in self._reachable():
            partition.obey(process, process.core.tick(partition.now))
        self._land()
        if partition.record != record:
            yield self._record()

    def _do_clock(self, words: list[str]) -> Iterator[str]:
        partition = self.partition
        process = partition.running[BrokerId(words[0])]
        partition.obey(process, process.core.tick(partition.now))
        for write in list(partition.writes):
            isr = " ".join(each.broker for each in write.record.isr)
            taken = write.version == partition.version
            partition.land(write, answered=True)
            outcome = "" if taken else ": refused, because the record has changed"
            yield f"broker {process.me.broker} proposes in sync {isr}{outcome}"

    def _spread(self) -> Iterator[str]:
        """Pass the record, and the live brokers, to all reachable brokers."""
        partition = self.partition
        record = partition.record
        for process in self._reachable():
            led = process.leads
            partition.see(process)
            if led and not process.leads:
                yield f"broker {process.me.broker} stops leading"
                yield from self._leave_open(process)
        self._land()
        if partition.record != record:
            yield self._record()

    def _leave_open(self, process: Process) -> Iterator[str]:
        """End the pending appends at this leader without an answer."""
        epoch = process.log.entries[-1].leader_epoch if process.log.entries else None
        for entry in process.log.entries:
            if entry.leader_epoch == epoch and entry.data_crc in self.waiting:
                yield f"{self.waiting.pop(entry.data_crc).name}: outcome unknown"

    def _land(self) -> None:
        """Land every compare-and-set under way, and pass its outcome to all brokers."""
        partition = self.partition
        while partition.writes:
            partition.land(partition.writes[0], answered=True)
            for process in self._reachable():
                partition.see(process)

    def _reachable(self) -> list[Process]:
        running = self.partition.running
        return [
            running[each]
            for each in self.partition.brokers
            if each in running.keys() - self.stalled
        ]

    def _whole(self, link: Link) -> bool:
        return not {link.taker.me.broker, link.leader.me.broker} & self.stalled

    def _leader(self, broker: str | None) -> Process:
        found = self.partition.running[BrokerId(broker or self.partition.record.leader or "nobody")]
        assert found.leads, f"broker {found.me.broker} does not lead"
        return found

    # -- output --------------------------------------------------------------------------------

    def _do_state(self, words: list[str]) -> Iterator[str]:
        yield self._record()
        for broker in self.partition.brokers:
            process = self.partition.running.get(broker)
            role = "down" if process is None else "leads" if process.leads else "follows"
            if broker in self.stalled:
                role += ", stalled"
            high = None if process is None else process.core.bounds_state.high_watermark.entry
            entries = self.partition.logs[broker].entries
            yield f"broker {broker}  {role:<16}  {self._shown(entries, high)}".rstrip()

    def _record(self) -> str:
        record = self.partition.record
        isr = " ".join(each.broker for each in record.isr)
        return f"leader {record.leader}, epoch {record.leader_epoch}, in sync {isr}"

    def _shown(self, entries: Sequence[Entry], high: EntryIndex | None = None) -> str:
        words: list[str] = []
        epoch = None
        for entry in entries:
            if entry.entry_index == high:
                words.append("|")
            if entry.leader_epoch != epoch:
                epoch = entry.leader_epoch
                words.append(f"{epoch}:")
            words.append(self.names[entry.data_crc])
        if high is not None and high == (entries[-1].entry_index + 1 if entries else 0):
            words.append("|")
        return " ".join(words)


def _named(words: Sequence[str], *prepositions: str) -> tuple[list[str], dict[str, str]]:
    """Split ``a b to 1`` into the words before the first preposition, and the word after each."""
    first = min((at for at, word in enumerate(words) if word in prepositions), default=len(words))
    pairs = list(words[first:])
    assert not len(pairs) % 2, f"something is missing in: {' '.join(words)}"
    return list(words[:first]), dict(zip(pairs[::2], pairs[1::2], strict=True))
