"""What the rules refuse of a request, as the errors that users get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_stream.consistency.producers import Refused, Stamp, Wrong
from spark_stream.errors import (
    InvalidTransaction,
    IsologError,
    LeaderEpochFenced,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownLeaderEpoch,
)

if TYPE_CHECKING:
    from spark_stream.broker.partition import Partition


def check_leader_epoch(partition: Partition, known: int | None) -> None:
    """Refuses a client that knows the partition's leader in another epoch; None: it knows none.

    Raises:
        LeaderEpochFenced: the client's epoch is over.
        UnknownLeaderEpoch: it is newer: this broker may be a leader that was replaced.
    """
    present = int(partition.leader_epoch)
    if known is None or known == present:
        return
    kind = LeaderEpochFenced if known < present else UnknownLeaderEpoch
    raise kind(
        f"{partition.topic}/{partition.number}: the leader epoch is {present} here, not {known}",
        topic=partition.topic,
        partition=partition.number,
        leader_epoch=present,
    )


def of_stamp(partition: Partition, stamp: Stamp, refused: Refused) -> IsologError:
    """The error for a batch that a partition refuses because of who sent it, and when."""
    where = f"{partition.topic}/{partition.number}: producer {stamp.producer_id}"
    if refused.wrong is Wrong.FENCED:
        return ProducerFenced(f"{where}: epoch {stamp.epoch} is over, a higher one was seen")
    if refused.wrong is Wrong.ENDED:
        return InvalidTransaction(f"{where}: its transaction of epoch {stamp.epoch} has ended")
    if refused.wrong is Wrong.OUTSIDE:
        return InvalidTransaction(f"{where} has a transaction open and writes outside of it")
    if refused.wrong is Wrong.ANOTHER:
        return InvalidTransaction(f"{where} has another transaction open, or wrote outside of any")
    reasons = {
        Wrong.GAP: "a batch before it is missing",
        Wrong.TOO_OLD: "it is too old to tell whether it was appended",
        Wrong.OTHER_BATCH: "that sequence was another batch's",
    }
    return OutOfOrderSequence(
        f"{where}: sequence {stamp.sequence} instead of {refused.expected}:"
        f" {reasons[refused.wrong]}",
        sequence=stamp.sequence,
        expected=refused.expected,
    )
