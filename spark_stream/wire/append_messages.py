"""What a stream of appends carries: its opening, the header of each batch, and the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from spark_stream.access.rules import Need, Operation, on_topic, on_transaction
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.errors import IsologError
from spark_stream.structs import INT64_MAX, Name, OffsetField, PartitionField
from spark_stream.wire.messages import Message, TransactionalId, decoded, decoder


class AppendTo(Message):
    """The opening of a stream of appends to one topic.

    Batches in a transaction need its ``transactional_id``.
    """

    topic: Name
    transactional_id: TransactionalId | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    topic_id: str | None = None

    def needs(self) -> Sequence[Need]:
        """Return the permissions of the caller: for the topic, and for the transaction."""
        needs = on_topic(Operation.WRITE)(self)
        if self.transactional_id is None:
            return needs
        return [*needs, *on_transaction(Operation.WRITE)(self)]


class Envelope(Message):
    """The partition and the number of a batch. The acknowledgement has the same ``number``.

    Without a ``stamp`` the batch has no producer: sent twice, it is in the log twice.
    ``leader_epoch``: the leader epoch in the writer's cache.
    """

    number: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    partition: PartitionField
    stamp: Stamp | None = None
    leader_epoch: OffsetField | None = None


class Acknowledged(Message, tag_field="kind", tag="acknowledged"):
    """A batch is in the log as a whole: its first offset, and how many records it has.

    ``duplicate``: an earlier attempt stored it, at this offset. ``partitions``: the topic's present
    number of partitions. ``leader_epoch``: in which the leader answered.
    """

    number: int
    partition: int
    offset: OffsetField
    count: OffsetField
    partitions: int
    leader_epoch: int
    duplicate: bool


class BatchRefused(Message, tag_field="kind", tag="refused"):
    """A batch is not in the log, or only its first ``count`` records, from ``offset`` on.

    The other fields are as in :class:`Acknowledged`, where they are known.
    """

    number: int
    partition: int
    error: IsologError
    count: OffsetField
    offset: OffsetField | None = None
    partitions: int | None = None
    leader_epoch: int | None = None
    duplicate: bool = False


Ack = Acknowledged | BatchRefused
"""The answer to a batch."""


_ACKS: Final = decoder(Ack)


def ack_from_bytes(data: bytes) -> Ack:
    """Return the answer to a batch, or raise InvalidRequest as :meth:`Message.from_bytes`."""
    found: Ack = decoded(data, _ACKS, "Ack")
    return found
