"""The instructions of a producer's core to its shell; see ``core``."""

from __future__ import annotations

import msgspec

from spark_stream.client.connecting.routes import Route
from spark_stream.client.writing.lanes import Outgoing, Settlement
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.errors import IsologError
from spark_stream.wire.topic_messages import TopicDescription


class OpenStream(msgspec.Struct, frozen=True):
    """Open a stream of appends; answer with ``stream_opened`` or ``stream_lost``."""

    stream: int
    route: Route
    topic: TopicDescription
    transactional_id: str | None


class SendBatch(msgspec.Struct, frozen=True):
    """Send a batch on an open stream; forget it if the stream ends."""

    stream: int
    batch: Outgoing
    number: int
    stamp: Stamp | None
    leader_epoch: int | None


class EndStream(msgspec.Struct, frozen=True):
    """Send no more on a stream, and ignore what it still delivers."""

    stream: int


class BreakStream(msgspec.Struct, frozen=True):
    """Cancel a stream at once."""

    stream: int


class SettleBatch(msgspec.Struct, frozen=True):
    """Settle a batch and those that were joined with it."""

    batch: Outgoing
    settlement: Settlement


class AskLeaders(msgspec.Struct, frozen=True):
    """Find the leaders; answer with ``leaders_found`` or ``leaders_failed``."""

    topic: TopicDescription
    partitions: tuple[int, ...]


class AskIdentity(msgspec.Struct, frozen=True):
    """Get an identity to write under; answer with ``on_identified`` or ``on_identity_failed``."""


class DoubtRoute(msgspec.Struct, frozen=True):
    """Doubt a route: its broker refused what it got as the leader of a partition, or was lost."""

    route: Route
    error: IsologError


class NoteTopic(msgspec.Struct, frozen=True):
    """Note the topic's changed number of partitions; None means that the topic is gone."""

    topic: TopicDescription
    partitions: int | None


class WakeAt(msgspec.Struct, frozen=True):
    """Call ``tick`` at this time, instead of the time in the previous instruction."""

    at: float


class AllSettled(msgspec.Struct, frozen=True):
    """Everything is settled, and every stream has ended."""


Instruction = (
    SendBatch
    | OpenStream
    | EndStream
    | BreakStream
    | AskLeaders
    | AskIdentity
    | DoubtRoute
    | WakeAt
)
Outcome = SettleBatch | NoteTopic | AllSettled
