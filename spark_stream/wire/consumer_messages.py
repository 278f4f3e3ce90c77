"""The calls about consumers' names: those of queries, of clients and of groups."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from spark_stream.access.rules import (
    Operation,
    described,
    on_consumer,
    to_join_group,
    to_store_positions,
)
from spark_stream.consistency.groups import Assigned, MemberAnswer
from spark_stream.consistency.isolation import Isolation, ReaderEnding, ReaderState, state_of
from spark_stream.consistency.transactions.transactions import PositionOf, ReadPosition
from spark_stream.structs import Name, OffsetField
from spark_stream.wire.limits import SESSION_MS_MAX, SESSION_MS_MIN
from spark_stream.wire.messages import Call, Description, Message

READ, DELETE, DESCRIBE = Operation.READ, Operation.DELETE, Operation.DESCRIBE

TextField = Annotated[str, Meta(max_length=1 << 20)]
StartField = Annotated[str, Meta(max_length=1 << 24)]
"""A start has some 50 characters a partition, and a name for each topic."""
MemberId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
"""Made by the client: no two members that ever were have the same."""


class PinnedStart(Message):
    """The first start of the query of the name: offsets, options, and time.

    ``start`` is None without a pinned start. If ``selection`` differs from the query's, the name is
    that of another query. Topics that the caller may not describe are left out of ``start``. A
    ``selection`` or ``starting`` with such a topic is empty.
    """

    selection: str
    starting: str
    start: str | None = None
    started_ms: int | None = None


class PinStart(Call[PinnedStart], name="pin-start", needs=on_consumer(READ)):
    """Take a query's name for a run, and return the query's first start.

    ``start``: the start of the query, as its source writes it. It is pinned if the name has none
    yet. Without it the call only reads. The instance owns the name from then on, unless the
    selection differs.
    """

    consumer: Name
    instance: Name
    selection: TextField
    isolation: Isolation
    starting: TextField = ""
    start: StartField | None = None


class RecordProgress(Call[None], name="record-progress", needs=on_consumer(READ)):
    """Store the progress of a query's run.

    CONSUMER_FENCED if another run has the name, unless ``claim`` is set: then this run takes the
    name over.
    """

    consumer: Name
    instance: Name
    selection: TextField
    isolation: Isolation
    positions: list[ReadPosition]
    claim: bool = False


class JoinGroup(Call[MemberAnswer], name="join-group", needs=to_join_group):
    """Add a member to a group, or change the topics that it reads.

    ``member``: 1 to 64 letters, digits, ``_`` and ``-``, new for each member. Without a heartbeat
    that renews its session it is removed after ``session_ms``.
    """

    consumer: Name
    member: MemberId
    topics: list[Name]
    session_ms: Annotated[int, Meta(ge=SESSION_MS_MIN, le=SESSION_MS_MAX)]
    isolation: Isolation


class GroupHeartbeat(Call[MemberAnswer], name="group-heartbeat", needs=on_consumer(READ)):
    """Read the present assignment of a member. Fail with CONSUMER_FENCED if it was removed.

    ``released``: the partitions that were revoked, and whose positions are stored. ``renew``:
    restart the time of the session.
    """

    consumer: Name
    member: MemberId
    released: list[Assigned] = []
    renew: bool = False


class LeaveGroup(Call[None], name="leave-group", needs=on_consumer(READ)):
    """Remove a member from its group. Other members take over its partitions.

    ``hangs``: its program no longer requests records, or has failed.
    """

    consumer: Name
    member: MemberId
    hangs: bool = False


class ReaderHeartbeat(Call[None], name="reader-heartbeat", needs=on_consumer(READ)):
    """Record that the reader of a name is alive, or that it has ended.

    A reader without a heartbeat for ``session_ms`` is lost. CONSUMER_FENCED if another reader has
    the name. ``instance``: the run of a query, a consumer, or a member of a group (only if it is
    idle: its session is renewed by ``group-heartbeat``). ``idle_ms``: the time since its program
    last requested records. ``claim``: the first heartbeat of this instance.
    """

    consumer: Name
    kind: Literal["query", "client", "group"]
    instance: Name
    session_ms: Annotated[int, Meta(ge=SESSION_MS_MIN, le=SESSION_MS_MAX)]
    isolation: Isolation
    idle_ms: OffsetField = 0
    ending: ReaderEnding = ReaderEnding.NONE
    claim: bool = False


class TakenPartitions(Message):
    """The positions of a member in partitions. ``added``: read these from their first record.

    A partition that is in neither begins at the member's configured start.
    """

    positions: list[PositionOf]
    added: list[Assigned]


class TakePartitions(Call[TakenPartitions], name="take-partitions", needs=on_consumer(READ)):
    """Read the positions of partitions that were assigned to a member.

    Call it before the first fetch.
    """

    consumer: Name
    member: MemberId
    assigned: list[Assigned]


class ConsumedPartition(Description):
    """The position of a named consumer, a group or a query in a partition.

    ``end``: the log end under read_uncommitted or an unknown level, else the high watermark. None
    if the topic was deleted, or its leader did not answer. ``held_back``: the records below it that
    the level does not return yet, because of an open transaction. The client adds both from the
    answers of the leaders. ``member``: the member of the group with the partition, or None.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    end: int | None = None
    member: str | None = None
    held_back: int = 0

    @property
    def lag(self) -> int | None:
        """The records up to ``end`` that are left to read."""
        return None if self.end is None else max(0, self.end - self.offset)


class DescribedMember(Description):
    """A member of a group. ``topics``: those that the caller may describe."""

    id: str
    topics: tuple[str, ...]
    isolation: Isolation
    session_ms: int
    principal: str
    partitions: int
    """The number of assigned partitions."""


class GroupDescription(Description):
    """A consumer group. ``epoch``: rises with each change of its members and their topics."""

    epoch: int
    members: tuple[DescribedMember, ...]


class ConsumerDescription(Description):
    """A consumer's name on record. ``kind``: ``query`` (Spark's) or ``client``.

    ``group``: its members, if it is the name of a consumer group.

    Of a query: its ``isolation``, the topics of its ``selection``, the option and the time of its
    first start (``starting``, ``started_ms``), and the time of its last progress (``recorded_ms``).
    Times are in ms since the epoch. ``principal``: the owner of the name, empty without
    authentication. ``ending``: how the last run ended, or the last member of a group left.
    ``idle_ms``: since it last requested records. ``lost_member``: the last member of a group that
    was removed because its session expired, at ``lost_ms``. ``selection`` or ``starting`` is None
    if it names a topic that the caller may not describe.
    """

    name: str
    kind: Literal["query", "client"]
    isolation: Isolation | None = None
    selection: str | None = None
    starting: str | None = None
    started_ms: int | None = None
    recorded_ms: int | None = None
    principal: str = ""
    partitions: tuple[ConsumedPartition, ...] = ()
    group: GroupDescription | None = None
    ending: ReaderEnding = ReaderEnding.NONE
    idle_ms: int = 0
    lost_member: str = ""
    lost_ms: int | None = None

    @property
    def owned_by(self) -> Literal["query", "client", "group"]:
        """The kind, for people: a group differs from a single client."""
        return self.kind if self.group is None else "group"

    @property
    def lag(self) -> int | None:
        """The records that are left to read, of the partitions with a known end."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None

    @property
    def held_back(self) -> int:
        """The records of the lag that its level does not return yet."""
        return sum(each.held_back for each in self.partitions)

    @property
    def state(self) -> ReaderState:
        """The present state of the reader. See ``consistency.isolation``."""
        members = None if self.group is None else len(self.group.members)
        readable = (self.lag or 0) - self.held_back
        return state_of(self.ending, members, self.idle_ms / 1000, readable, self.held_back)


class ConsumerDescriptions(Message):
    """All consumers' names on record, by name."""

    consumers: list[ConsumerDescription]


class ListConsumers(Call[ConsumerDescriptions], name="list-consumers", needs=described):
    """List the consumers' names that the caller may describe."""


# -- positions of named consumers ------------------------------------------------------------------


class Positions(Message):
    """The stored positions of named consumers."""

    positions: list[PositionOf]


class CheckConsumer(Call[None], name="check-consumer", needs=on_consumer(READ)):
    """Check that an instance owns a consumer's name: CONSUMER_FENCED if it does not."""

    consumer: Name
    instance: Name


class TakeConsumer(Call[Positions], name="take-consumer", needs=on_consumer(READ)):
    """Take over a consumer's name for an instance, and return the stored positions.

    The previous owner is fenced.

    ``keeps_group``: for a reset. The name stays that of its group, and the earlier owner is fenced.
    """

    consumer: Name
    instance: Name
    keeps_group: bool = False


class GetPosition(Call[Positions], name="consumer-position", needs=on_consumer(DESCRIBE)):
    """Read the stored positions of a named consumer."""

    consumer: Name


class CommitPosition(Call[None], name="commit-position", needs=to_store_positions):
    """Store positions of consumers.

    ``owners``: by name, the instance that must own the name. A member of a group gives
    ``MEMBER@EPOCH.TURN``: the latest epoch that it received, and how often it has moved back.
    UNKNOWN_TOPIC if a topic was deleted: the positions in the other topics are stored.
    """

    positions: list[PositionOf]
    owners: dict[Name, Name] = {}


class DeleteConsumer(Call[None], name="delete-consumer", needs=on_consumer(DELETE)):
    """Delete all records under a consumer's name."""

    consumer: Name
