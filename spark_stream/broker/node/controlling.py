"""The controller: a broker elects leaders for partitions without a live one, and finishes moves.

Each round checks whether a broker died or started, or a record changed. If not, the round costs
next to nothing. Failed work is retried, though less often: a partition may be without a leader
until a broker starts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from spark_stream.broker.host.host import Host
from spark_stream.broker.node.members import Members
from spark_stream.broker.node.pending import PendingPartitions
from spark_stream.cluster.brokers import BrokerState, ControllerSeat
from spark_stream.cluster.partitions import StoredPartition
from spark_stream.consistency.control.assignment import load_of
from spark_stream.consistency.control.election import Alive
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.loggers import logger_of
from spark_stream.scripts import partition_records
from spark_stream.scripts.partition_records import (
    Changed,
    Placed,
    elect_leaders,
    finish_moves,
)
from spark_stream.scripts.steps import Script

logger = logger_of(__name__)

ROUND_S: Final = 0.1
"""The pause between two rounds, and so the delay until a leader's death is detected."""
MOVES_S: Final = 0.3
"""The pause between two checks whether a move can be finished."""
_NAMED: Final = 3  # the number of partitions that a line of the log names
_RESTS: Final = 10  # rounds until failed work is retried


class Controlling:
    """The work of one incarnation of a broker as the controller, and its election as controller."""

    def __init__(self, host: Host, members: Members, seat: ControllerSeat) -> None:
        self._host = host
        self._members = members
        self._seat = seat
        self._pending = PendingPartitions(host.view)
        self._seen: tuple[int, Alive] | None = None  # after a round that changed nothing
        self._rests: int | None = None  # rounds until the next, or None if there is no work
        self._complaint = ""

    def rounds(self) -> Script[None]:
        """Run one round, step by step. ``Members.check_alive`` begins it."""
        now = self._host.view.now
        held = now.controller
        if not self._seat.holds(held):
            self._seen = None
            self._pending.end()
            if held is not None and self._lives(held.broker, held.incarnation):
                return
            taken = self._seat.take(self._lives)
            if taken is None:
                return
            logger.info("this broker is the controller, in term %d", taken.term)
        self._pending.begin()
        if self._seen == (now.revision, self._members.checked) and self._may_rest():
            return
        alive = self._members.alive()
        due = list(self._placed(self._pending.without_leader(alive)))
        log_changes((yield from elect_leaders(due, alive, self._members.registered())))
        leaving = [each.id for each in now.brokers.values() if each.state is BrokerState.LEAVING]
        for broker in leaving:
            yield from self._send_away(BrokerId(broker))
        changed = self._host.view.now.revision != now.revision
        self._seen = None if changed else (now.revision, alive)
        self._rests = _RESTS if due or leaving else None

    def finishing(self) -> Script[None]:
        """Finish the moves that can be finished, if this broker is the controller.

        Brokers first force their files, which may take long. So this runs beside the rounds.
        """
        if not self._seat.holds(self._host.view.now.controller):
            return
        moving = list(self._placed(self._pending.moving()))
        log_changes((yield from finish_moves(moving, self._members.alive())))

    def _may_rest(self) -> bool:
        """Return whether to skip this round, if there was no change since the last one."""
        if self._rests is not None:
            self._rests -= 1
        return self._rests is None or self._rests > 0

    def _send_away(self, broker: BrokerId) -> Script[None]:
        """Move the replicas of a decommissioned broker away, or remove a broker without any."""
        now = self._host.view.now
        stored = {
            each.stored.id: each.stored
            for numbers in now.partitions.values()
            for each in self._placed(numbers.values())
        }
        if not any(broker in each.record.replicas for each in stored.values()):
            if (
                yield from partition_records.remove_broker(
                    broker, lives=self._members.is_alive(broker)
                )
            ):
                logger.info("removed decommissioned broker %s: it has no replicas", broker)
            return
        load = load_of(each.record.replicas for each in stored.values())
        takers = self._members.takers(self._members.alive())
        if (yield from partition_records.move_away(stored, broker, takers, load)):
            self._complain(broker)

    def _complain(self, broker: BrokerId) -> None:
        if broker != self._complaint:
            self._complaint = broker
            logger.warning(
                "broker %s is being decommissioned, but no other broker can take some of its"
                " replicas",
                broker,
            )

    def _lives(self, broker: BrokerId, incarnation: str) -> bool:
        known = self._members.get(broker)
        return (
            known is not None
            and known.incarnation == incarnation
            and self._members.is_alive(broker)
        )

    def _placed(self, partitions: Iterable[StoredPartition]) -> Iterator[Placed]:
        """Yield those of existing topics."""
        now = self._host.view.now
        unclean: dict[str, bool] = {}
        for stored in partitions:
            topic = now.topic(stored.id.topic_id)
            if topic is None or stored.id.number >= topic.partitions:
                continue
            if topic.id not in unclean:
                settings = self._host.settings_of(topic)
                unclean[topic.id] = settings.unclean_leader_election
            at = Joined(topic.name, topic.id, stored.id.number)
            yield Placed(at, stored, unclean[topic.id])


def log_changes(changes: Sequence[Changed]) -> None:
    """Log changes of one round: one line for each cause, with counts, and details at level DEBUG.

    The death of one broker may change thousands of partitions.
    """
    risky = [each for each in changes if each.risky]
    same: list[Changed] = []
    moved: list[Changed] = []
    elected: dict[BrokerId | None, list[Changed]] = {}
    for each in changes:
        before, after = each.before, each.after
        if each.risky:
            continue
        if after.leader != before.leader:
            elected.setdefault(before.leader, []).append(each)
        else:
            (moved if after.leader_epoch == before.leader_epoch else same).append(each)
    if risky:
        logger.error(
            "unclean election for %s: no in-sync replica has all records, so the replica with the"
            " longest log leads (%s); committed records may be lost",
            _names(risky),
            _leaders(risky),
        )
    for former, those in elected.items():
        earlier = "no leader" if former is None else f"broker {former}"
        logger.info("new leaders of %s: %s, after %s", _names(those), _leaders(those), earlier)
    if same:
        logger.info("leaders of %s re-elected in a new epoch: %s", _names(same), _leaders(same))
    if moved:
        brokers = _counted(broker for each in moved for broker in each.after.replicas)
        logger.info("replicas of %s moved; they are on %s", _names(moved), brokers)
    for each in changes:
        logger.debug(
            "%s/%d: broker %s leads in epoch %d, after %s; its replicas are on %s",
            each.at.topic,
            each.at.partition,
            each.after.leader,
            each.after.leader_epoch,
            each.before.leader,
            ", ".join(each.after.replicas),
        )


def _names(changes: Sequence[Changed]) -> str:
    names = ", ".join(f"{each.at.topic}/{each.at.partition}" for each in changes[:_NAMED])
    others = len(changes) - _NAMED
    return f"{len(changes)} partitions ({names}, and {others} more)" if others > 0 else names


def _leaders(changes: Sequence[Changed]) -> str:
    return _counted(str(each.after.leader) for each in changes)


def _counted(brokers: Iterable[str]) -> str:
    counts = sorted(Counter(brokers).items())
    return ", ".join(f"broker {broker} ({count})" for broker, count in counts)
