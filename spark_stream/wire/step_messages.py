"""What brokers ask of each other: steps of scripts on partitions that the other one leads.

Where transactions lie in a partition travels beside the JSON: for every answer that ``has_extents``
a further result of the action holds the bytes of the little-endian int64 columns transaction,
producer id, first and last offset, one column after the other.
"""

from __future__ import annotations

from typing import Literal

from spark_stream.consistency.isolation import Bounds
from spark_stream.errors import IsologError
from spark_stream.structs import Name, OffsetField, PartitionField
from spark_stream.wire.messages import Message

StepKind = Literal[
    "seal",
    "write-markers",
    "is-replicated",
    "drop-branch",
    "force",
    "read-bounds",
    "read-extents",
    "describe",
    "make-folder",
    "read-log-end",
    "force-replica",
    "probe-replica",
]


class StepFacts(Message):
    """A step on one partition; which of the other fields it has depends on its kind."""

    kind: StepKind
    topic: Name
    topic_id: str
    partition: PartitionField = 0
    transaction: OffsetField | None = None
    producer_id: OffsetField | None = None
    entry: OffsetField | None = None
    leader_epoch: OffsetField | None = None
    least_epoch: OffsetField = 0
    taken: tuple[OffsetField, ...] = ()


class RunSteps(Message):
    """Steps of ``caller``, a broker, for another one: all are refused if ``proof`` is wrong.

    ``nonce``: made for this call; the answers' proof covers it.
    """

    caller: str
    proof: str
    nonce: str
    steps: list[StepFacts]


class MarkedFacts(Message):
    """Where a log ended when the markers were in it, and whether all of that is replicated."""

    end: OffsetField
    leader_epoch: OffsetField
    replicated: bool


class LogEndFacts(Message):
    """The end of a replica's log: its broker's generation, its last epoch (-1: no entry)."""

    generation: str
    last_epoch: int
    entries: OffsetField


class DescribedFacts(Message):
    """A partition as its leader sees it."""

    leader_epoch: OffsetField
    log_end: OffsetField
    size: OffsetField
    open_transactions: OffsetField
    followers: dict[str, OffsetField]
    hw_known: bool


class StepAnswer(Message):
    """What came of a step: an error, or what was asked for."""

    error: IsologError | None = None
    bounds: Bounds | None = None
    has_extents: bool = False
    done: bool | None = None
    marked: MarkedFacts | None = None
    log_end: LogEndFacts | None = None
    described: DescribedFacts | None = None


class StepAnswers(Message):
    """The answers, in the order of the steps; ``proof``: a broker of the cluster gives them."""

    proof: str
    answers: list[StepAnswer]
