"""The bytes of the two messages that every appended batch has, written down without their objects.

They are what :class:`Envelope` and :class:`Ack` make of the same values. An append of one row
spends a good part of its time on what is the same for any batch, and to check and print an object
takes longer than the text does.
"""

from __future__ import annotations

from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.producers import Stamp


def envelope_bytes(
    number: int, partition: int, stamp: Stamp | None, leader_epoch: int | None
) -> bytes:
    """An ``Envelope`` of valid values."""
    text = f'{{"number":{number},"partition":{partition}'
    if stamp is not None:
        text += (
            f',"stamp":{{"producer_id":{stamp.producer_id},"epoch":{stamp.epoch}'
            f',"sequence":{stamp.sequence}'
        )
        within = stamp.transaction != NO_TRANSACTION
        text += f',"transaction":{stamp.transaction}}}' if within else "}"
    if leader_epoch is not None:
        text += f',"leader_epoch":{leader_epoch}'
    return f"{text}}}".encode()


def ack_bytes(
    number: int,
    partition: int,
    offset: int,
    count: int,
    *,
    duplicate: bool,
    partitions: int,
    leader_epoch: int,
) -> bytes:
    """The ``Ack`` of a batch that is appended as a whole."""
    known = "true" if duplicate else "false"
    return (
        f'{{"number":{number},"partition":{partition},"offset":{offset},"count":{count}'
        f',"duplicate":{known},"partitions":{partitions},"leader_epoch":{leader_epoch}}}'
    ).encode()
