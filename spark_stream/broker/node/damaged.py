"""The damaged replicas of this broker, and whether it is to leave the ISRs for them.

``consistency.control.handover`` decides. This module collects the facts for it, and logs each
damage with its verdict once.
"""

from __future__ import annotations

from spark_stream.broker.host.host import Host
from spark_stream.broker.node.members import Members
from spark_stream.broker.partition.partition import Partition
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.control.handover import Verdict, judge
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import EntryIndex
from spark_stream.loggers import logger_of
from spark_stream.storage.log.damage import WAS_NOTED

logger = logger_of(__name__)


class DamagedReplicas:
    """The damaged replicas of one broker, for one thread."""

    def __init__(self, host: Host, members: Members) -> None:
        self._host = host
        self._members = members
        self._left: dict[str, EntryIndex] = {}
        self._said: dict[str, tuple[EntryIndex, Verdict]] = {}

    @property
    def left_replicas(self) -> list[str]:
        """The replicas that were damaged when this broker last left the ISRs, and still are."""
        return sorted(self._left)

    def need_to_leave(self, me: Member) -> bool:
        """Return whether to begin a new generation, so that damaged replicas leave their ISRs.

        Call it often: it costs nothing while no log has had damage.
        """
        if not WAS_NOTED.is_set():
            return False
        damaged = {
            each: hole for each in self._host.open_replicas() if (hole := each.log.hole) is not None
        }
        holes = {each.name: hole for each, hole in damaged.items()}
        self._left = {name: hole for name, hole in self._left.items() if holes.get(name) == hole}
        self._said = {name: said for name, said in self._said.items() if name in holes}
        verdicts = [self._verdict(each, hole, me) for each, hole in damaged.items()]
        if Verdict.LEAVE not in verdicts:
            return False
        self._left = holes
        return True

    def _verdict(self, partition: Partition, hole: EntryIndex, me: Member) -> Verdict | None:
        """Decide what to do about a replica; None if it heals, or there is no record of it."""
        record = self._record(partition)
        heals = self._left.get(partition.name) == hole
        if record is None or (heals and record.member(me.broker) != me):
            return None
        others = (self._record(each) for each in self._host.open_replicas())
        records = (each for each in others if each is not None)
        verdict = judge(record, records, me, self._members.alive())
        if self._said.get(partition.name) != (hole, verdict):
            self._said[partition.name] = (hole, verdict)
            self._tell(partition, hole, verdict)
        return verdict

    def _record(self, partition: Partition) -> PartitionRecord | None:
        stored = self._host.view_of(PartitionId(partition.topic_id, partition.number))
        return None if stored is None else stored.record

    def _tell(self, partition: Partition, hole: EntryIndex, verdict: Verdict) -> None:
        if verdict is Verdict.LEAVE:
            what = "another in-sync replica has them: they are fetched from the leader"
        elif verdict is Verdict.WAIT:
            what = (
                "another in-sync replica has them; this broker leaves the in-sync replicas once"
                " none of its partitions would lose its last living one"
            )
        else:
            what = (
                "no other in-sync replica lives: nothing is cut, and reads of damaged records fail"
            )
        logger.error("%s: entries from %d on are damaged; %s", partition.name, hole, what)
