"""The record of this broker: its address, and the generation of its logs.

The generation is decided when the logs are open (``cluster.generations``). If an fsync fails later,
the broker can no longer vouch for that log: the system may have dropped unwritten bytes. So the
broker records the failure, then registers with a new generation. It is then in no ISR until its
logs have been compared with their leaders'. If no other replica is in sync, it continues to lead in
a new epoch. A damaged batch has the same effect if another replica has the batch:
``consistency.control.handover`` decides, and :class:`DamagedReplicas` collects the facts for it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from spark_stream.broker.host.host import Host
from spark_stream.broker.node.controlling import log_changes
from spark_stream.broker.node.members import Members
from spark_stream.broker.partition.partition import Partition
from spark_stream.cluster.brokers import Brokers, RegisteredBroker
from spark_stream.cluster.generations import Doubt, FoundLogs, GenerationRecords
from spark_stream.cluster.partitions import PartitionId
from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.consistency.control.handover import Verdict, judge
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import EntryIndex, Generation
from spark_stream.environment import Ids, Machine
from spark_stream.loggers import logger_of
from spark_stream.scripts.partition_records import Changed, resume
from spark_stream.scripts.steps import Script
from spark_stream.storage.log.damage import DAMAGE_FOUND

logger = logger_of(__name__)


class Runs(Protocol):
    """The record in a broker's directory of the run that uses it."""

    def recorded_run(self) -> str | None:
        """Return the run that last used the directory."""

    def record_run(self, run: str) -> None:
        """Record this run as the directory's user, with an fsync."""

    def forget_run(self) -> None:
        """Remove the recorded run, so that a power cut does not restore it."""


class Registration:
    """The registration of one incarnation of a broker."""

    def __init__(
        self,
        store: MetadataStore,
        host: Host,
        members: Members,
        ids: Ids,
        machine: Machine,
        runs: Runs,
    ) -> None:
        self._store = store
        self._host = host
        self._ids = ids
        self._machine = machine
        self._runs = runs
        self._generations = GenerationRecords(store, host.broker_id)
        self._run = ""
        self._failed: set[str] = set()
        self._damaged = DamagedReplicas(host, members)
        self._registered: RegisteredBroker | None = None

    @property
    def me(self) -> Member:
        """This broker as a member of ISRs."""
        generation = self._host.generation
        assert generation is not None
        return Member(self._host.broker_id, generation)

    def decide_generation(self) -> None:
        """Decide the generation of the logs, which are open."""
        self._run = self._ids.new_id()
        found = FoundLogs(
            self._runs.recorded_run(),
            self._host.ends(),
            not self._host.doubts,
            self._machine.boot_id(),
        )
        generation, reason = self._generations.begin(found, self._run, self._ids.new_id)
        self._runs.record_run(self._run)
        if reason is not None and reason is not Doubt.NEW:
            logger.error(
                "this broker cannot vouch for its logs (%s): it is in no ISR until its logs have"
                " been compared with those of their leaders",
                "; ".join((reason.value, *self._host.doubts)),
            )
        self._host.generation = generation

    def register(self, broker: RegisteredBroker) -> None:
        """Register the broker with its generation."""
        self._registered = replace(broker, generation=self.me.generation)
        Brokers(self._store).register(self._registered)

    def repeat(self) -> None:
        """Register the broker again as it is, to check that the store takes changes."""
        if self._registered is not None:
            Brokers(self._store).register(self._registered)

    def leading_again(self, earlier: Member | None = None) -> Script[list[Changed]]:
        """Keep the leadership of partitions that no other broker can lead, in new epochs.

        Return the changes. ``earlier``: as ``resume``.
        """
        placed, end_of = self._host.placed(), self._host.log_end
        changed = yield from resume(placed, self.me, end_of, earlier)
        log_changes(changed)
        return changed

    def checking(self) -> Script[None]:
        """Check for logs with failed fsyncs or damaged batches. To be run often."""
        if self._registered is None:
            return
        failed = {each.name for each in self._host.troubled() if each.log.failed is not None}
        if not failed <= self._failed:
            self._generations.force_failed(self._run)
            names = ", ".join(sorted(failed - self._failed))
            self._begin_generation(f"an fsync failed ({names})")
            yield from self.leading_again()
            self._failed = failed
        if self._damaged.need_to_leave(self.me):
            before = self.me
            names = ", ".join(self._damaged.left_replicas)
            self._begin_generation(f"batches are damaged ({names})")
            yield from self.leading_again(before)

    def _begin_generation(self, reason: str) -> None:
        """Register with a new generation: from then on this broker is in no ISR."""
        assert self._registered is not None
        generation = Generation(self._ids.new_id())
        logger.error(
            "new generation of the logs, because %s: this broker is in no ISR until its logs have"
            " been compared with those of their leaders",
            reason,
        )
        self._generations.begin_generation(self._run, generation)
        self._registered = replace(self._registered, generation=generation)
        Brokers(self._store).register(self._registered)
        self._host.change_generation(generation)

    def end(self) -> None:
        """Shut down cleanly: vouch for the logs, which are forced and closed."""
        self._generations.end(self._run, self._host.ends())


class DamagedReplicas:
    """The damaged replicas of one broker, for one thread."""

    def __init__(self, host: Host, members: Members) -> None:
        self._host = host
        self._members = members
        self._left: dict[str, EntryIndex] = {}
        self._reported: dict[str, tuple[EntryIndex, Verdict]] = {}

    @property
    def left_replicas(self) -> list[str]:
        """The replicas that were damaged when this broker last left the ISRs, and still are."""
        return sorted(self._left)

    def need_to_leave(self, me: Member) -> bool:
        """Return whether to begin a new generation, so that damaged replicas leave their ISRs.

        This is called often, and costs next to nothing until a log has had damage.
        """
        if not DAMAGE_FOUND.is_set():
            return False
        damaged = {
            each: hole for each in self._host.open_replicas() if (hole := each.log.hole) is not None
        }
        holes = {each.name: hole for each, hole in damaged.items()}
        self._left = {name: hole for name, hole in self._left.items() if holes.get(name) == hole}
        self._reported = {
            name: reported for name, reported in self._reported.items() if name in holes
        }
        verdicts = [self._verdict(each, hole, me) for each, hole in damaged.items()]
        if Verdict.LEAVE not in verdicts:
            return False
        self._left = holes
        return True

    def _verdict(self, partition: Partition, hole: EntryIndex, me: Member) -> Verdict | None:
        """Decide on a damaged replica. Return None if it heals, or has no record."""
        record = self._record(partition)
        heals = self._left.get(partition.name) == hole
        if record is None or (heals and record.member(me.broker) != me):
            return None
        others = (self._record(each) for each in self._host.open_replicas())
        records = (each for each in others if each is not None)
        verdict = judge(record, records, me, self._members.alive())
        if self._reported.get(partition.name) != (hole, verdict):
            self._reported[partition.name] = (hole, verdict)
            self._report(partition, hole, verdict)
        return verdict

    def _record(self, partition: Partition) -> PartitionRecord | None:
        stored = self._host.view_of(PartitionId(partition.topic_id, partition.number))
        return None if stored is None else stored.record

    def _report(self, partition: Partition, hole: EntryIndex, verdict: Verdict) -> None:
        if verdict is Verdict.LEAVE:
            remedy = "they are fetched from the leader, because another in-sync replica has them"
        elif verdict is Verdict.WAIT:
            remedy = (
                "another in-sync replica has them, so this broker leaves the ISRs once none of its"
                " partitions would lose its last live member"
            )
        else:
            remedy = (
                "no other in-sync replica is alive, so the log is not truncated, and reads of the"
                " damaged records fail"
            )
        logger.error("damaged entries in %s from entry %d on; %s", partition.name, hole, remedy)
