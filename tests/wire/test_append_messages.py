"""What is written down by hand is what the messages themselves make of the same values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.producers import EPOCH_MAX, SEQUENCE_MAX, Stamp
from spark_stream.wire.append_messages import ack_bytes, envelope_bytes
from spark_stream.wire.messages import INT64_MAX, Ack, Envelope, StampFacts


def stamp_of(facts: StampFacts) -> Stamp:
    transaction = NO_TRANSACTION if facts.transaction is None else facts.transaction
    return Stamp(facts.producer_id, facts.epoch, facts.sequence, transaction)


longs = st.integers(0, INT64_MAX)
stamps = st.builds(
    StampFacts,
    producer_id=longs,
    epoch=st.integers(0, EPOCH_MAX),
    sequence=st.integers(0, SEQUENCE_MAX),
    transaction=st.none() | longs,
)


@given(longs, st.integers(0, (1 << 31) - 1), st.none() | stamps, st.none() | longs)
def test_an_envelope(number, partition, stamp, epoch):
    mine = stamp and stamp_of(stamp)
    found = envelope_bytes(number, partition, mine, epoch)
    same = Envelope(number=number, partition=partition, stamp=stamp, leader_epoch=epoch)
    assert found == same.to_bytes()
    assert Envelope.from_bytes(found) == same


@given(longs, longs, longs, longs, st.booleans(), longs, longs)
def test_an_acknowledgement(number, partition, offset, count, duplicate, partitions, epoch):
    found = ack_bytes(
        number,
        partition,
        offset,
        count,
        duplicate=duplicate,
        partitions=partitions,
        leader_epoch=epoch,
    )
    same = Ack(
        number=number,
        partition=partition,
        offset=offset,
        count=count,
        duplicate=duplicate,
        partitions=partitions,
        leader_epoch=epoch,
    )
    assert found == same.to_bytes()
