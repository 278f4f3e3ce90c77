"""The replicas that a broker has, and the lookup of those that it leads.

The replicas and leaders of partitions are on record (``cluster.partitions``). The broker sees the
records (``cluster.view``) and follows them: it opens and closes logs, and its partitions lead or
follow. The logs are opened at its start, so that damage is detected then.

Order of a start: the logs open, and no partition leads or follows. The broker decides whether it
can vouch for its logs (``cluster.generations``). Then :meth:`Host.begin` is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from spark_stream.broker.counts import BrokerCounts
from spark_stream.broker.host.contact import StoreContact
from spark_stream.broker.host.hosted_topic import (
    FollowerLinks,
    HostedTopic,
    NoLinks,
    TopicFolders,
    format_of,
)
from spark_stream.broker.host.upkeep import Upkeep
from spark_stream.broker.partition.partition import CloseReason, Partition
from spark_stream.broker.partition.replication import FollowerSession
from spark_stream.broker.partition.sessions import MemoryRoom
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.generations import Ends
from spark_stream.cluster.partitions import PartitionId, StoredPartition
from spark_stream.cluster.topics import Topic, check_id, unknown, unknown_partition
from spark_stream.cluster.view import ClusterView, News
from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import LogEnd
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.entries import MADE_UP, greatest_numbers
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.lakes import tiered
from spark_stream.consistency.partition.effects import ProposeIsr, ProposeRecord
from spark_stream.consistency.partition.progress import GenerationOf
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import may_answer
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerStopping,
    IsologError,
    LeaderUnavailable,
    MetadataLost,
    MetadataUnavailable,
    NotLeader,
    UnknownTopic,
)
from spark_stream.loggers import logger_of
from spark_stream.scripts.partition_records import Placed
from spark_stream.storage.disk.directory import LogDirectory
from spark_stream.storage.disk.disk import HOST_DISK
from spark_stream.storage.log.high_watermarks import CommittedMarks
from spark_stream.storage.logs import FileLogs
from spark_stream.storage.settings import LogSettings, parse_settings

logger = logger_of(__name__)


def _ignore(*_: object) -> None:
    """Do nothing: the default of a callback."""


class Host:
    """The replicas of one broker, for any thread. One thread at a time runs :meth:`refresh`."""

    def __init__(
        self,
        directory: LogDirectory,
        view: ClusterView,
        settings: CoreSettings,
        clock: Clock,
        *,
        logs: FileLogs | None = None,
        losing: Callable[[], None] = _ignore,
        proposed: Callable[[Partition, ProposeIsr | ProposeRecord], None] = _ignore,
        generation_of: GenerationOf = _ignore,
        marks: CommittedMarks | None = None,
        promises: Callable[[], bool] = bool,
        counts: BrokerCounts | None = None,
    ) -> None:
        """Open the replicas that the view assigns to this broker.

        ``logs``: the opener of logs, by default of files of this host. ``losing``: as for
        :class:`~spark_stream.storage.logs.FileLogs`. ``proposed`` and ``generation_of``: as for
        :class:`~spark_stream.broker.partition.partition.Partition`. ``marks``: the store of high
        watermarks. ``promises`` returns whether this broker has promised a leader not to lead, for
        a time. ``counts``: the broker's counts.
        """
        self._directory = directory
        self.view = view
        self._settings = settings
        self._clock = clock
        counts = counts or BrokerCounts()
        if logs is None:
            logs = FileLogs(HOST_DISK.counting(counts.forces), losing=losing)
        self._folders = TopicFolders(directory, logs, losing)
        self._links: FollowerLinks = NoLinks()
        self._proposed = proposed
        self._generation_of = generation_of
        self._recent_room = MemoryRoom(settings.recent_bytes)
        self.counts = counts
        self.upkeep = Upkeep(clock, marks or CommittedMarks(directory.path), self._tiered)
        self._applying = threading.RLock()
        self._refreshes_begun = self._refreshed = 0
        self._failed_refresh: tuple[int, IsologError] | None = None
        self._unsettled: set[str] = set()
        """Names of topics that failed in the last round, or have a replica that will lead later."""
        self._promises = promises
        self._stopping = False
        self.generation: Generation | None = None
        """The generation of this broker's logs, or None before it is decided."""
        self._has_begun = False
        self.contact = StoreContact(self.broker_id, clock, self.refresh, self._others_are_cut_off)
        self.guesses = True
        """Whether the error about an unknown topic may name a similar one, for any caller."""
        self._hosted: dict[str, HostedTopic] = {}
        self._some_trouble = threading.Event()
        self._looking_for_trouble = threading.Lock()
        view.refresh()
        self._reconcile(view.now.topics.values())

    @property
    def broker_id(self) -> BrokerId:
        return BrokerId(self._directory.broker_id)

    @property
    def recent_bytes(self) -> int:
        """The memory that keeps batches for followers."""
        return self._recent_room.bytes_kept

    @property
    def doubts(self) -> list[str]:
        """The losses for which the broker cannot vouch for its logs."""
        return self._folders.doubts

    # -- looking up --------------------------------------------------------------------------------

    def topics(self) -> list[HostedTopic]:
        """Return the topics of which this broker has a replica, by name."""
        hosted = dict(self._hosted)
        return [hosted[name] for name in sorted(hosted)]

    def names(self) -> list[str]:
        """Return the names of all topics, led by this broker or not."""
        return sorted(self.view.now.topics)

    def topic(self, name: str, topic_id: str | None = None) -> HostedTopic:
        """Return the topic with this broker's replicas, which may be none.

        Raises:
            UnknownTopic: There is no such topic, or ``topic_id`` is that of an earlier one.
        """
        hosted = self._hosted.get(name)
        if hosted is not None and topic_id in (None, hosted.topic.id):
            return hosted
        topic = self.find(name, topic_id)
        hosted = self._hosted.get(name)
        if hosted is not None and hosted.topic.id == topic.id:
            return hosted
        return HostedTopic(topic, self.settings_of(topic), self._elsewhere)

    def find(self, name: str, topic_id: str | None = None) -> Topic:
        """Return the topic's record in this broker's view. Raise UnknownTopic as :meth:`topic`."""
        topic = self.view.now.topics.get(name)
        if topic is None or topic_id not in (None, topic.id):
            self.refresh()  # it may have been made a moment ago, by another broker
            topic = self.view.now.topics.get(name)
        if topic is None:
            raise unknown(name, self.view.now.topics if self.guesses else ())
        check_id(topic, topic_id)
        return topic

    def settings_of(self, topic: Topic) -> LogSettings:
        """Return the topic's settings, with this broker's defaults for those it does not set."""
        hosted = self._hosted.get(topic.name)
        if hosted is not None and hosted.topic is topic:
            return hosted.settings
        return parse_settings(topic.config, self._settings.topic_defaults)

    def open_replica(self, at: Joined) -> Partition:
        """Return this broker's replica, whoever leads.

        Raises:
            LeaderUnavailable: This broker has no replica of it that is open.
        """
        found = self.replica(at)
        if found is None:
            raise LeaderUnavailable(
                f"{at.topic}/{at.partition}: broker {self.broker_id} has no replica that is open",
                topic=at.topic,
                partition=at.partition,
            )
        return found

    def log_end(self, at: Joined) -> LogEnd | None:
        """Return the end of the sound part of this broker's open replica, or None."""
        generation, found = self.generation, self.replica(at)
        if found is None or generation is None:
            return None
        last_epoch, end = found.following.sound_end()
        return LogEnd(generation, last_epoch, end)

    def replica(self, at: Joined) -> Partition | None:
        """Return this broker's replica, leading or not, or None if it is not open."""
        hosted = self._hosted.get(at.topic)
        if hosted is None or hosted.topic.id != at.topic_id:
            return None
        found = hosted.replicas.get(at.partition)
        return found if isinstance(found, Partition) else None

    def record(self, topic: Topic, number: int) -> PartitionRecord | None:
        """Return the partition's record as this broker sees it."""
        found = self.view_of(PartitionId(topic.id, number))
        return None if found is None else found.record

    def view_of(self, partition: PartitionId) -> StoredPartition | None:
        """Return the partition's record, with its version, as this broker sees it."""
        return self.view.now.partition(partition)

    def check_in_sync(self, partition: Partition) -> None:
        """Check that this follower may answer readers (``consistency.replication.follower``).

        Raises:
            NotLeader, LeaderUnavailable: The follower may not. The error names the leader.
        """
        stored = self.view_of(PartitionId(partition.topic_id, partition.number))
        if stored is not None and self.generation is not None and self.contact.serves():
            me = Member(self.broker_id, self.generation)
            if may_answer(stored.record, me, partition.leader_epoch):
                return
        hosted = self.topic(partition.topic, partition.topic_id)
        raise self._elsewhere(hosted.topic, partition.number)

    def _elsewhere(self, topic: Topic, number: int) -> IsologError:
        """Return the error of a partition that this broker does not lead, with its leader."""
        if number >= topic.partitions:
            self.refresh()  # it may have been added a moment ago, by another broker
            if number >= self.partitions_now(topic):
                return unknown_partition(topic, number)
        record = self.record(topic, number)
        where = f"{topic.name}/{number}"
        if record is None or record.leader in (None, self.broker_id):
            return LeaderUnavailable(
                f"{where} has no leader at the moment", topic=topic.name, partition=number
            )
        leader = self.view.now.brokers.get(record.leader)
        address = "" if leader is None else leader.address
        return NotLeader(
            f"{where} is led by broker {record.leader} at {address or 'an unknown address'}",
            topic=topic.name,
            partition=number,
            leader=record.leader,
            address=address,
            epoch=int(record.leader_epoch),
        )

    def led(self, topic_id: str, number: int) -> Partition:
        """Return the partition of the topic with this id, which this broker leads.

        Raises:
            UnknownTopic: No topic has this id.
            NotLeader, LeaderUnavailable, UnknownPartition: as :meth:`HostedTopic.partition`.
        """
        topic = self.view.now.topic(topic_id)
        if topic is None:
            raise UnknownTopic(f"there is no topic with the id {topic_id}", topic_id=topic_id)
        return self.topic(topic.name, topic_id).partition(number)

    def start_session(
        self,
        follower: BrokerId,
        generation: Generation,
        key: PartitionId,
        epoch: LeaderEpoch,
        history: EpochHistory,
        notify: Callable[[bool], None],
    ) -> FollowerSession:
        """Begin a follower's session with a partition that this broker leads.

        Raises:
            IsologError: as :meth:`led` and ``Followers.start_session``.
        """
        followers = self.led(key.topic_id, key.number).followers
        return followers.start_session(Member(follower, generation), epoch, history, notify)

    def partitions_now(self, topic: Topic) -> int:
        """Return the topic's number of partitions, or its last one if it was deleted."""
        now = self.view.now.topics.get(topic.name)
        return topic.partitions if now is None or now.id != topic.id else now.partitions

    def greatest_numbers(self) -> tuple[int, int]:
        """Return the greatest producer id and transaction number in all logs, -1 for none."""
        used = [greatest_numbers(each.log.tables()) for each in self.open_replicas()]
        producers = max((producer for producer, _ in used), default=-1)
        return producers, max((transaction for _, transaction in used), default=-1)

    def greatest_producer(self) -> int:
        """Return the greatest allocated producer id that a partition remembers, -1 for none."""
        known = (each for replica in self.open_replicas() for each in list(replica.core.producers))
        return max((each for each in known if each < MADE_UP), default=-1)

    # -- following the records ---------------------------------------------------------------------

    def begin(self, serves: Callable[[], bool], links: FollowerLinks | None = None) -> None:
        """Start to lead and follow, as the partitions' records require.

        ``serves`` returns whether this broker's lease lasts. While it does not, a partition is led
        only by promises of its followers (``consistency.replication.promises``).
        ``links``: the streams from leaders. Without them this broker follows no other.
        """
        with self._applying:
            self._has_begun, self.contact.serves = True, serves
            self._links = self._links if links is None else links
            self._remove_strays()
            self._assign(self.open_replicas())

    def change_generation(self, generation: Generation) -> None:
        """Set the generation of this broker's logs."""
        with self._applying:
            self.generation = generation
            for partition in self.open_replicas():
                self._links.unfollow(partition.id)
                partition.role.rest(partition.leader_epoch)
            self._assign(self.open_replicas())

    def troubled(self) -> list[Partition]:
        """Return the replicas whose logs refuse writes, at no cost while there are none."""
        with self._looking_for_trouble:
            if not self._some_trouble.is_set():
                return []
            self._some_trouble.clear()
            found = [each for each in self.open_replicas() if each.fitness.trouble is not None]
            if found:
                self._some_trouble.set()
            return found

    def led_numbers(self) -> dict[str, frozenset[int]]:
        """Return the partitions that this broker leads at this moment: numbers by topic id."""
        led = ((each.topic.id, each.led()) for each in self.topics())
        return {
            topic_id: frozenset(one.number for one in found) for topic_id, found in led if found
        }

    def placed(self) -> list[Placed]:
        """Return the partitions of which this broker has a replica, with their records."""
        found = []
        for hosted in self.topics():
            for partition in hosted.open_partitions():
                stored = self.view_of(PartitionId(partition.topic_id, partition.number))
                if stored is not None:
                    at = Joined(partition.topic, partition.topic_id, partition.number)
                    found.append(Placed(at, stored))
        return found

    def tick_all(self) -> None:
        """Check the in-sync replicas after brokers started or died, even without a lease."""
        for partition in self.open_replicas():
            partition.role.tick()

    def refresh(self) -> None:
        """Read all changes that were made before this call, and act on them: a barrier.

        With a metadata store on another host this costs a request, which concurrent callers share,
        also its failure.
        So no append, fetch or cut may need it.
        """
        asked_after = self._refreshes_begun
        with self._applying:
            if self._refreshed > asked_after:
                return
            failed = self._failed_refresh
            if failed is not None and failed[0] > asked_after:
                raise failed[1].again()
            try:
                self._apply(fresh=True)
            except (MetadataUnavailable, MetadataLost) as error:
                self._failed_refresh = self._refreshes_begun, error
                raise

    def _others_are_cut_off(self) -> bool:
        """Return whether a promise shows that other brokers are cut off from the store too.

        This broker has given one, or leads by those of its followers after its lease expired.
        """
        return self._promises() or any(each.leads for each in self.open_replicas())

    @property
    def is_settled(self) -> bool:
        """Whether all topics have the state that the store has for them."""
        return not self._unsettled

    def follow_store(self, *, known: bool = False) -> None:
        """Act on changes that the store has announced. To be called again and again.

        ``known``: act at least on all that this broker has read from the store or written to it.
        """
        with self._applying:
            self._apply(fresh=False, known=known)

    def _apply(self, *, fresh: bool, known: bool = False) -> None:
        if self._stopping:
            return
        if fresh:
            self._refreshes_begun += 1
        number = self._refreshes_begun
        news = self.view.refresh(fresh=fresh, known=known)
        if news or self._unsettled:
            self._close_gone()
            self._reconcile(self._topics_of(news))
        if news.lakes:
            self._note_tiered()
        if fresh:
            self._refreshed = max(self._refreshed, number)

    def _tiered(self, topic_id: str, partition: int) -> int:
        return tiered(self.view.now.lakes.values(), topic_id, partition) or 0

    def _note_tiered(self) -> None:
        """Visit the partitions whose segments a table may have released."""
        for each in self.open_replicas():
            if each.log.format.settings.needs_table:
                self.upkeep.note(each)

    def _topics_of(self, news: News) -> list[Topic]:
        """Return the topics that changed."""
        now = self.view.now
        names = set(news.topics)
        names |= {now.names.get(each.topic_id, "") for each in news.partitions}
        self._unsettled &= now.topics.keys()
        names |= self._unsettled
        return [now.topics[name] for name in sorted(names) if name in now.topics]

    def _reconcile(self, topics: Iterable[Topic]) -> None:
        """Open and close replicas of these topics, and give the open ones their roles.

        A failing topic does not delay others. The next call retries it.

        Raises: the error of the first that failed.
        """
        errors: list[IsologError] = []
        for topic in topics:
            self._unsettled.discard(topic.name)
            try:
                self._reconcile_topic(topic)
            except IsologError as error:
                self._unsettled.add(topic.name)
                errors.append(error)
        self.upkeep.note_settings(each.settings for each in self._hosted.values())
        if errors:
            raise errors[0]

    def _reconcile_topic(self, topic: Topic) -> None:
        hosted = self._hosted.get(topic.name)
        wanted = set(self._numbers_here(topic))
        if hosted is None and not wanted:
            return
        settings = parse_settings(topic.config, self._settings.topic_defaults)
        replicas = {} if hosted is None else hosted.replicas
        gone = sorted(replicas.keys() - wanted)
        for number in gone:
            if self.record(topic, number) is not None:  # a missing record proves no move
                self._remove_replica(topic, number, replicas.pop(number))
        if gone and not wanted:
            self._forget_unused_folder(topic)
        if added := sorted(wanted - replicas.keys()):
            self._open_replicas(topic, settings, added, replicas)
        fresh = HostedTopic(topic, settings, self._elsewhere, replicas)
        if hosted is not None:  # logs first: a caller that sees the topic may write to them
            for partition in hosted.open_partitions():
                partition.configure(format_of(topic, settings, partition.number))
        self._hosted[topic.name] = fresh
        if hosted is not None and hosted.topic is not topic:  # new partitions, or columns
            for partition in hosted.open_partitions():
                partition.wake_reads()
        self._assign(fresh.open_partitions())

    def _numbers_here(self, topic: Topic) -> Iterator[int]:
        for number in range(topic.partitions):
            record = self.record(topic, number)
            if record is not None and self.broker_id in (*record.replicas, *record.removing):
                yield number

    def _forget_unused_folder(self, topic: Topic) -> None:
        """Allow the loss of the topic's folder, which has no replica. A missing record may be one.

        It looks at all partitions, so call it once for a topic.
        """
        if all(self.record(topic, number) for number in range(topic.partitions)):
            self._folders.forget(topic)

    def _assign(self, partitions: Iterable[Partition]) -> None:
        """Make each partition lead or follow, as its record says."""
        generation = self.generation
        if generation is None or not self._has_begun:
            return
        for partition in partitions:
            found = self.view_of(PartitionId(partition.topic_id, partition.number))
            if found is None:
                continue
            record = found.record
            me = Member(self.broker_id, generation)
            partition.role.trim(record.trimmed)
            partition.following.force_before_reports(
                is_moving=bool(record.adding or record.removing)
            )
            if election.leads(record, me):
                self._links.unfollow(partition.id)
                if self._links.may_lead_at(partition.id) > self._clock.monotonic():
                    partition.role.rest(record.leader_epoch)
                    self._unsettled.add(partition.topic)
                else:
                    partition.role.lead(me, record, found.version, self.contact.serves)
            elif record.leader in (None, self.broker_id):
                self._links.unfollow(partition.id)
                partition.role.rest(record.leader_epoch)
            elif partition.log.failed is None and partition.role.follow(record.leader_epoch):
                self._links.follow(record.leader, partition.followed(generation, self.refresh))

    def _close_gone(self) -> None:
        for name, hosted in list(self._hosted.items()):
            now = self.view.now.topics.get(name)
            if now is not None and now.id == hosted.topic.id:
                continue
            del self._hosted[name]
            # Files are removed only if the deletion is announced: the record may just be missing.
            deleted = self.view.is_deletion_announced(hosted.topic.id)
            closing = CloseReason.TOPIC_DELETED if deleted else CloseReason.TOPIC_MISSING
            for partition in hosted.open_partitions():
                self._close_for_good(partition, closing)
            for number in hosted.replicas:
                self.upkeep.forget(hosted.topic.id, number)

    def _close_for_good(self, partition: Partition, closing: CloseReason) -> None:
        """Close a partition that this broker no longer has. A failure does not stop it."""
        self._links.unfollow(partition.id)
        try:
            partition.close(closing)
        except IsologError as error:
            logger.warning("cannot fsync %s before its close: %s", partition.name, error)
        self.counts.traffic.close(partition.topic, partition.number)

    def _remove_strays(self) -> None:
        """Remove the files of replicas that moved to other brokers while this one was down."""
        topics = self.view.now.topics.values()
        self.upkeep.keep_topics({each.id for each in topics})
        for topic in topics:
            here = set(self._numbers_here(topic))
            if not here:
                self._forget_unused_folder(topic)
            if not self._folders.has(topic):
                continue
            for number in range(topic.partitions):
                if number not in here and self.record(topic, number) is not None:
                    self._remove_rest(topic, number)

    def _remove_replica(self, topic: Topic, number: int, replica: Partition | IsologError) -> None:
        """Close this broker's replica of the partition and remove its files."""
        if isinstance(replica, Partition):
            self._close_for_good(replica, CloseReason.MOVED)
        self._remove_rest(topic, number)

    def _remove_rest(self, topic: Topic, number: int) -> None:
        self.upkeep.forget(topic.id, number)
        self._folders.remove_replica(topic, number)

    def remove_files(self, topic: Topic) -> None:
        """Remove the folder of a deleted topic.

        Its open partitions are closed first: an append would make the folder again.

        Raises:
            StorageFailure: Some of its files may be left.
        """
        with self._applying:
            self.refresh()
            self._folders.remove(topic)

    def make_folder(self, name: str, topic_id: str) -> None:
        """Make the folder of a topic, which may not be on record yet.

        Raises:
            DamagedSegment, DiskFull, StorageFailure: as ``TopicFolders.make``.
            BrokerStopping: The broker is shutting down.
        """
        if self._stopping:
            raise BrokerStopping("the broker is shutting down")
        self._make_folder(name, topic_id, self.view.now.topic(topic_id))

    def _make_folder(self, name: str, topic_id: str, topic: Topic | None) -> None:
        """Make the topic's folder. ``topic``: None if it is not on record."""
        numbers = self._numbers_here(topic) if topic else ()
        known = [at for each in numbers if topic and (at := self.record(topic, each))]
        self._folders.make(name, topic_id, known, starts=not self._has_begun)

    def _open_replicas(
        self,
        topic: Topic,
        settings: LogSettings,
        numbers: Sequence[int],
        replicas: dict[int, Partition | IsologError],
    ) -> None:
        missing: IsologError | None = None
        try:
            self._make_folder(topic.name, topic.id, topic)
        except IsologError as error:
            missing = error
        for number in numbers:
            try:
                if missing is not None:
                    raise missing.again()
                replicas[number] = self._open(topic, settings, number)
            except IsologError as error:
                logger.error("cannot open the log of %s/%d: %s", topic.name, number, error)
                replicas[number] = error

    def _open(self, topic: Topic, settings: LogSettings, number: int) -> Partition:
        log = self._folders.open_log(topic, settings, number, self.record(topic, number))
        partition = Partition(
            topic.name,
            topic.id,
            number,
            log,
            int(self._settings.producer_expiry_seconds * 1_000_000),
            self._clock,
            alone=False,
            moved=self.upkeep.note,
            proposed=self._proposed,
            generation_of=self._generation_of,
            recent_room=self._recent_room,
            on_trouble=self._some_trouble.set,
            traffic=self.counts.traffic.open(topic.name, number),
        )
        self.upkeep.take(partition)
        return partition

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> bool:
        """End all waits and appends, then flush and close every log.

        Return whether all of that succeeded.
        """
        with self._applying:
            self._stopping = True
            found = self.open_replicas()
            for partition in found:
                self._links.unfollow(partition.id)
        self.upkeep.remember(found)
        in_order = True
        for partition in found:
            try:
                partition.close()
            except IsologError:
                in_order = False
                logger.exception("closing %s/%d failed", partition.topic, partition.number)
        return in_order

    def ends(self) -> Ends:
        """Return the ends of all logs."""
        return dict(each for hosted in self._hosted.values() for each in hosted.ends())

    def is_altered(self, topic: Topic) -> bool:
        """Return whether the topic was altered since. A deleted one was not."""
        hosted = self._hosted.get(topic.name)
        if hosted is None or hosted.topic.id != topic.id:
            return False
        return hosted.topic is not topic

    def wake_refused(self) -> None:
        """Wake the pending reads that this broker may not answer, because its lease expired."""
        for each in self.open_replicas():
            each.wake_refused()

    def open_replicas(self) -> list[Partition]:
        """Return all open replicas, whichever broker leads them."""
        return [each for hosted in list(self._hosted.values()) for each in hosted.open_partitions()]
