"""The partitions that a member of a consumer group reads, and the positions that it stores.

All of it runs in the consumer's thread, between two records. So all earlier records are processed
then, and their position may be stored. If a member dies, its unprocessed records are delivered
again and not lost.

Without automatic commits a partition is released only when its position is stored. Otherwise the
next member could process records again that belong to an uncommitted transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.groups import Membership
from spark_stream.client.lake_tables import LakeTables
from spark_stream.client.reading.named_reader import check_name
from spark_stream.client.reading.subscription import Subscription
from spark_stream.client.topics import Key, Place, TopicsClient, resolve_with_lineages
from spark_stream.consistency.groups import Assigned
from spark_stream.consistency.isolation import Isolation, ReaderEnding
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import (
    ConsumerFenced,
    InvalidOption,
    InvalidRequest,
    IsologError,
    UnknownTopic,
)
from spark_stream.loggers import logger_of
from spark_stream.wire.consumer_messages import CommitPosition
from spark_stream.wire.limits import SESSION_MS_MAX, SESSION_MS_MIN

logger = logger_of(__name__)

SESSION_S: Final = 45.0
PROCESSING_S: Final = 300.0
COMMIT_S: Final = 5.0
"""The interval of automatic commits."""
_PAUSE_S: Final = 1.0
_TAKE_S: Final = 10.0
_STORE_S: Final = 3.0
"""The timeout of an automatic commit. Reading continues without a metadata store."""

OnChange = Callable[[list[Key]], object]
"""A user's function. It is called with partitions that were assigned, or are being revoked.

If the member was removed from the group, another member may already read revoked partitions.
"""


class GroupOptions(Struct, frozen=True):
    """A consumer's options as a member of a group."""

    group: str
    session_timeout: float = SESSION_S
    processing_timeout: float = PROCESSING_S
    auto_commit: bool = True
    on_assigned: OnChange | None = None
    on_revoked: OnChange | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        check_name(self.group, "group")
        least, most = SESSION_MS_MIN / 1_000, SESSION_MS_MAX / 1_000
        for option in ("session_timeout", "processing_timeout"):
            value = getattr(self, option)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value <= most:
                raise InvalidOption(
                    f"{option} takes {least:g} to {most:g} seconds, not {value!r}", option=option
                )


def check_options(name: str | None, partitions: Iterable[int] | None, isolation: Isolation) -> None:
    """Raise InvalidOption for an option that a member of a group cannot have."""
    for option, value, why in (
        ("name", name, "positions are stored under the group's name"),
        ("partitions", partitions, "the group assigns partitions to its members"),
    ):
        if value is not None:
            raise InvalidOption(f"{option}= cannot be used with group=: {why}", option=option)
    if isolation is Isolation.READ_ATOMIC:
        raise InvalidOption(
            "read_atomic cannot be used with group=: a cut is through all partitions, and each"
            " member of a group reads some of them",
            option="isolation",
            hint="Use read_committed, or one consumer that reads all partitions.",
        )


class GroupReader:
    """The partitions that a group has assigned to this consumer.

    ``position`` and ``lineages`` belong to the consumer. This class adds and removes their keys.
    """

    def __init__(
        self,
        options: GroupOptions,
        connection: ClusterConnection,
        topics: TopicsClient,
        subscription: Subscription,
        isolation: Isolation,
        start: Place,
        position: dict[Key, int],
        lineages: dict[Key, Lineage],
        tables: LakeTables | None = None,
    ) -> None:
        self.options = options
        self.committed: dict[Key, int] = {}
        """The stored position of each partition."""
        self.began: dict[Key, int] = {}
        """The first position of this consumer in each partition."""
        self._topics = topics
        self._connection = connection
        self._subscription = subscription
        self._isolation = isolation
        self._start = start
        self._tables = tables
        self._position = position
        self._lineages = lineages
        self._assigned: dict[Key, Assigned] = {}
        self._stored_at = time.monotonic()
        self._unclean_since: float | None = None
        self._wait_until = 0.0
        """The time before which a failed request is not retried. Reading continues."""
        self._has_lost_work = False
        self.membership = Membership(
            connection,
            options.group,
            isolation,
            options.session_timeout,
            options.processing_timeout,
        )
        self.membership.join(subscription.ids)

    # -- between two records ---------------------------------------------------------------------

    def needs_turn(self) -> bool:
        """Store positions if a commit is due. Return whether :meth:`apply` has something to do.

        All records that were delivered before are processed.
        """
        self.membership.record_activity()
        if self._is_time_to_store():
            self._store_quietly(self._position)
        return self._has_changes()

    def is_due(self) -> bool:
        """Return whether :meth:`needs_turn` would have something to do. Do nothing."""
        self.membership.record_activity()
        return self._is_time_to_store() or self._has_changes()

    def _is_time_to_store(self) -> bool:
        return self.options.auto_commit and time.monotonic() - self._stored_at > COMMIT_S

    def _has_changes(self) -> bool:
        if not self.membership.has_news:
            return False
        if self.membership.error is not None:
            return True
        if time.monotonic() < self._wait_until:
            return False
        if self.membership.is_fenced:
            return True
        change = self.membership.changes()
        can_release = any(self._is_clean(_key(each)) for each in change.revoked)
        return bool(change.lost or change.added) or can_release or self._is_stuck(change.revoked)

    def apply(self) -> None:
        """Give up lost and revoked partitions, and begin to read new ones.

        Raises:
            IsologError: The broker refuses that.
        """
        membership = self.membership
        if membership.error is not None:
            raise membership.error.again()
        if membership.is_fenced:
            logger.warning("the group %r has removed this consumer; rejoining", self._name)
            self._lose(list(self._assigned))
            try:
                membership.join(self._subscription.ids)
            except IsologError as error:
                self._wait_after(error)
                return
        change = membership.changes()
        if self._is_stuck(change.revoked):
            self._leave_stuck()
            return
        self._lose([_key(each) for each in change.lost])
        membership.give_up(change.lost)
        revoked = [each for each in change.revoked if self._is_clean(_key(each))]
        if revoked:
            keys = [_key(each) for each in revoked]
            self._call(self.options.on_revoked, keys)
            if self.options.auto_commit:
                self._store_quietly(keys)
            self._forget(keys)
            membership.release(revoked)
        if change.added:
            try:
                places = self._find_begin(change.added)
            except IsologError as error:
                self._wait_after(error)
                return
            self._begin(change.added, places)

    def receive_partitions(self) -> None:
        """Begin to read the assigned partitions before the first poll.

        Raises:
            InvalidRequest: The group has not assigned a partition yet.
            IsologError: The broker refuses that.
        """
        self.membership.record_activity()
        self.apply()
        if not self._assigned:
            raise InvalidRequest(
                f"no partition is assigned to this member of the group {self._name!r} yet",
                hint="Seek in a function that is given as on_assigned=, or poll first. To move the"
                " whole group, close its members and call log.reset_consumer().",
                consumer=self._name,
            )

    def _wait_after(self, error: IsologError) -> None:
        """Schedule a retry. Raise an error that is final."""
        if isinstance(error, ConsumerFenced):
            self.membership.beat_soon()  # its answer has the present assignment
        elif error.retriable:
            logger.warning("retrying a request to the group %r: %s", self._name, error)
        else:
            raise error
        self._wait_until = time.monotonic() + _PAUSE_S

    def _is_stuck(self, revoked: Sequence[Assigned]) -> bool:
        """Return whether a revoked partition has had unstored positions for too long."""
        if all(self._is_clean(_key(each)) for each in revoked):
            self._unclean_since = None
            return False
        now = time.monotonic()
        self._unclean_since = now if self._unclean_since is None else self._unclean_since
        return now - self._unclean_since > self.options.processing_timeout

    def _leave_stuck(self) -> None:
        logger.warning(
            "leaving the group %r: a position was not stored for %g s",
            self._name,
            self.options.processing_timeout,
        )
        self._unclean_since = None
        self.membership.leave()

    def _is_clean(self, key: Key) -> bool:
        return self.options.auto_commit or self._position.get(key) == self.committed.get(key)

    def _find_begin(self, added: list[Assigned]) -> dict[Key, tuple[int, Lineage, bool]]:
        """Return the first offset of each partition, its lineage, and whether it is stored."""
        for each in added:
            if self._subscription.ids.get(each.topic) != each.topic_id:
                raise UnknownTopic(f"topic {each.topic!r} was deleted and created again")
        taken = self.membership.first_offsets(added, _TAKE_S)
        places = {
            (each.topic, each.partition): (each.offset, each.lineage, True)
            for each in taken.positions
        }
        later = {_key(each) for each in taken.added}
        unknown = {_key(each) for each in added} - places.keys()
        for start, keys in (("earliest", unknown & later), (self._start, unknown - later)):
            for topic in {topic for topic, _ in keys}:
                offsets, known = resolve_with_lineages(
                    self._topics, topic, start, self._isolation, self._tables
                )
                for key in keys:
                    if key[0] == topic:
                        lineage = known.get(key[1], NO_LINEAGE)
                        places[key] = offsets[key[1]], lineage, False
        return places

    def _begin(
        self, added: list[Assigned], places: Mapping[Key, tuple[int, Lineage, bool]]
    ) -> None:
        self.membership.take(added)
        self._assigned.update({_key(each): each for each in added})
        for key, (offset, lineage, is_stored) in places.items():
            self._position[key], self._lineages[key] = offset, lineage
            self.began[key] = offset
            if is_stored:
                self.committed[key] = offset
        self._store_quietly(list(places))  # new ones too, so that the next member begins there
        self._call(self.options.on_assigned, list(places))

    def _lose(self, keys: list[Key]) -> None:
        """Give up partitions that may already belong to another member."""
        self._has_lost_work |= not all(map(self._is_clean, keys))
        if keys:
            self._call(self.options.on_revoked, keys)
            self._forget(keys)

    def _forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._position.pop(key, None)
            self._lineages.pop(key, None)
            self.committed.pop(key, None)
            self.began.pop(key, None)
            self._assigned.pop(key, None)

    def _call(self, function: OnChange | None, keys: list[Key]) -> None:
        if function is not None and keys:
            function(sorted(keys))

    # -- positions -------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.options.group

    @property
    def owner(self) -> dict[str, str]:
        """The owner that the group must have when positions are stored: ``{group: owner}``."""
        return {self._name: self.membership.owner}

    def places(self) -> list[PositionOf]:
        """Return the consumer's positions in the form in which they are stored.

        Raises:
            ConsumerFenced: Another member has a partition of which this one has processed records
                without storing their position.
        """
        if self._has_lost_work:
            self._has_lost_work = False
            raise ConsumerFenced(
                f"partitions of the group {self._name!r} were assigned to another member before"
                " their positions were stored",
                hint="Abort the transaction: another member processes their records.",
                consumer=self._name,
            )
        return self._places(self._position)

    def _places(self, keys: Iterable[Key]) -> list[PositionOf]:
        return [
            PositionOf(
                self._name,
                key[0],
                self._assigned[key].topic_id,
                key[1],
                self._position[key],
                self._lineages.get(key, ()),
            )
            for key in keys
        ]

    def store(self, places: list[PositionOf], timeout_s: float | None = None) -> None:
        """Store positions outside of transactions. Raise ConsumerFenced if this is not allowed."""
        if places:
            request = CommitPosition(positions=places, owners=self.owner)
            self._connection.call(request, timeout_s)
        self.record_stored(places)

    def record_stored(self, places: Iterable[PositionOf]) -> None:
        """Record that these positions are stored."""
        self._stored_at = time.monotonic()
        for each in places:
            if (each.topic, each.partition) in self._assigned:
                self.committed[each.topic, each.partition] = each.offset

    def _store_quietly(self, keys: Iterable[Key]) -> None:
        """Store positions that have moved. After a failure their records may be delivered again."""
        self._stored_at = time.monotonic()
        moved = [key for key in keys if self._position[key] != self.committed.get(key)]
        try:
            self.store(self._places(moved), _STORE_S)
        except ConsumerFenced:
            self.membership.beat_soon()
        except IsologError as error:
            logger.warning("cannot store positions of the group %r: %s", self._name, error)

    def close(self, handed_out: tuple[Key, int] | None, ending: ReaderEnding) -> None:
        """Store positions, and leave the group. ``handed_out``: the last delivered item's place.

        It may be unprocessed, so it is delivered again.
        """
        if handed_out is not None and handed_out[0] in self._position:
            self._position[handed_out[0]] = handed_out[1]
            self._lineages.pop(handed_out[0], None)
        self.membership.end()
        try:
            self._call(self.options.on_revoked, list(self._assigned))
            if self.options.auto_commit and not self.membership.is_fenced:
                self._store_quietly(list(self._assigned))
        finally:
            if not self.membership.is_fenced:
                self.membership.leave(hangs=ending is not ReaderEnding.CLEAN)


def _key(assigned: Assigned) -> Key:
    return assigned.topic, assigned.partition
