"""One broker without threads, sockets or a process: its parts, wired once.

The process, the simulator and the tests give it a store, a clock, a disk and a network, and drive
its scripts: by threads, by a schedule, or by plain calls.

Order of a start. Each step relies on those before it:

 1. The constructor opens the logs.
 2. ``registration.decide_generation`` decides the generation of the logs. Numbers that the logs
    use are never given out again.
 3. ``registration.register`` puts the broker on record.
 4. :meth:`BrokerCore.take_lease`: after this the others consider the broker alive.
 5. :meth:`BrokerCore.beginning`: it leads and follows. Only then may :meth:`BrokerCore.control`
    and the other repeated tasks run.
 6. :meth:`BrokerCore.recovering` finishes the work that the previous process left.

Order of an end: others lead (:meth:`BrokerCore.leaving`), the logs are closed (``host.close``), the
broker vouches for them if all of that succeeded (``registration.end``), and the lease ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from spark_stream.broker.counts import BrokerCounts
from spark_stream.broker.host.host import Host
from spark_stream.broker.host.hosted_topic import FollowerLinks
from spark_stream.broker.host.proposals import Proposals
from spark_stream.broker.node.controlling import Controlling
from spark_stream.broker.node.handover import Balance, Withdrawals, handing_over
from spark_stream.broker.node.members import LeaseKeeper, Members, Observer
from spark_stream.broker.node.registration import Registration, Runs
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.replication.promises import Promises
from spark_stream.broker.scripting.coordinator import TransactionCoordinator
from spark_stream.broker.scripting.driver import Driver, Peers, StepTable
from spark_stream.broker.scripting.topics import TopicAdmin
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.brokers import ControllerSeat
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.partition.effects import ProposeIsr, ProposeRecord
from spark_stream.environment import Clock, Ids, Machine
from spark_stream.loggers import logger_of
from spark_stream.scripts import groups, readers
from spark_stream.scripts.partition_records import Changed
from spark_stream.scripts.steps import Script
from spark_stream.storage.disk.descriptors import SpareFiles
from spark_stream.storage.disk.directory import LogDirectory, PromiseFile
from spark_stream.storage.log.high_watermarks import CommittedMarks
from spark_stream.storage.logs import FileLogs

logger = logger_of(__name__)


class BrokerDisk(Struct, frozen=True):
    """A broker's directory, and the opening of the files in it."""

    directory: LogDirectory
    runs: Runs
    logs: FileLogs | None = None
    """By default the files of this host."""
    marks: CommittedMarks | None = None
    """The store of high watermarks, by default in the directory."""
    promises: PromiseFile | None = None
    """The store of promises, by default in the directory."""
    spare_files: int = 0
    """The number of files that are kept open in reserve."""


class BrokerNetwork(Protocol):
    """A broker's connections to its peers."""

    def peers(self, core: BrokerCore) -> Peers:
        """Return the runner of steps on other brokers. The constructor calls this once."""

    def links(self, core: BrokerCore) -> FollowerLinks:
        """Return the streams from leaders. This is called once, before the broker follows any."""


class BrokerCore:
    """The parts of one broker. Start and end it in the order of the module's docstring."""

    def __init__(
        self,
        store: MetadataStore,
        leases: Leases,
        clock: Clock,
        ids: Ids,
        machine: Machine,
        disk: BrokerDisk,
        network: BrokerNetwork,
        settings: CoreSettings,
        on_proposal: Callable[[], None] = lambda: None,
        counts: BrokerCounts | None = None,
    ) -> None:
        """Open the logs.

        ``on_proposal`` is called when there is work for ``proposals.putting``, under a partition's
        lock. ``counts``: the broker's counts.
        """
        self.store = store
        self.leases = leases
        self._network = network
        promises = disk.promises or PromiseFile(disk.directory.path)
        self.promising = Promises(promises, clock, leases.is_overdue)
        """The promises to leaders, for the streams from them."""
        view = ClusterView(store)
        self.members = members = Members(view, leases)
        self.proposals = Proposals()

        def note(partition: Partition, proposal: ProposeIsr | ProposeRecord) -> None:
            self.proposals.note(partition, proposal)
            on_proposal()

        self.host = host = Host(
            disk.directory,
            view,
            settings,
            clock,
            logs=disk.logs,
            losing=disk.runs.forget_run,
            proposed=note,
            generation_of=members.generation_of,
            marks=disk.marks,
            promises=self.promising.is_bound,
            counts=counts,
        )
        self.observer = Observer(host, members, leases, clock)
        self.registration = Registration(store, host, members, ids, machine, disk.runs)
        self.table = StepTable(store, host)
        self.driver = Driver(self.table, network.peers(self))
        self.topics = TopicAdmin(self.driver, host, members, settings, ids)
        self.transactions = TransactionCoordinator(
            self.driver, host, clock, host.broker_id, leases, settings.transactions
        )
        self.withdrawals = Withdrawals(host, members, clock, SpareFiles(disk.spare_files))
        self.balance = Balance(host, members, clock, settings.leader_balance_seconds)
        self.leaves = groups.Leaves()
        self._sessions = readers.SessionWatch(groups.session_ms_of)
        self._readers = readers.SessionWatch(readers.session_ms_of)
        self._clock = clock
        self.lease_keeper: LeaseKeeper
        self.controlling: Controlling

    def take_lease(self, incarnation: str) -> None:
        """Take the broker's lease, and prepare to be the controller."""
        host = self.host
        self.lease_keeper = LeaseKeeper(self.leases, host.broker_id, incarnation, host.refresh)
        self.observer.lease_keeper = self.lease_keeper
        seat = ControllerSeat(self.store, host.broker_id, incarnation)
        self.controlling = Controlling(host, self.members, seat)

    def beginning(self) -> Script[list[Changed]]:
        """Begin to lead and follow. Return the changes that were needed to lead again."""
        self.host.refresh()
        self.members.check_alive()
        changed = yield from self.registration.leading_again()
        self.host.begin(self.lease_keeper.serves, self._network.links(self))
        return changed

    def recovering(self) -> Script[None]:
        """Remove left-overs of topics, and finish decided transactions."""
        yield from self.topics.removing_left_overs(starts=True)
        yield from self.transactions.recovering()

    def promise_to_ask_s(self) -> float | None:
        """Return the time for which followers should promise not to lead, or None."""
        return self.leases.duration_s if self.leases.is_overdue() else None

    def control(self) -> Script[None]:
        """Check which brokers are alive, and act on that, as a replica and as the controller."""
        if self.members.check_alive():
            self.host.tick_all()
        yield from self.registration.checking()
        self.promising.remove_expired()
        self.host.upkeep.tick_due()
        yield from self.controlling.rounds()

    def ending_sessions(self) -> Script[None]:
        """Remove members of groups whose heartbeats stopped, and record that readers are lost.

        While the lease cannot be renewed, no heartbeat can be recorded, so this time does not
        count. (A full store still answers reads, and would show old heartbeats.)
        """
        if self.leases.is_overdue():
            return
        for group, member_id, error in (yield from self.leaves.retry()):
            logger.warning(
                "cannot remove member %s of group %r; its session will expire: %s",
                member_id,
                group,
                error,
            )
        for each in (yield from readers.end_readers(self._readers, self._clock.monotonic)):
            logger.warning("the session of %s expired without a heartbeat", each)
        now_ms = self._clock.wall_us() // 1000
        ended = yield from groups.end_sessions(self._sessions, self._clock.monotonic, now_ms)
        for group, member_id in ended:
            self.host.counts.lost_members.add(group)
            logger.warning(
                "removed member %s of group %r: its session expired without a heartbeat",
                member_id,
                group,
            )

    def leaving(self) -> Script[int]:
        """Hand over to other brokers. Return the number of partitions that they took."""
        return handing_over(self.host, self.members)
