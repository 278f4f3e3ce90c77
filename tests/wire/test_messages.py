"""Control messages that leave something out come back as they were."""

from __future__ import annotations

from spark_stream.wire.messages import PartitionFacts


def test_a_partition_that_nobody_leads_travels():
    facts = PartitionFacts(
        partition=0,
        leader=None,
        leader_epoch=3,
        replicas=["a"],
        isr=["a"],
        log_start_offset=0,
        log_end_offset=0,
        high_watermark=0,
        last_stable_offset=0,
        size=0,
    )
    assert PartitionFacts.from_bytes(facts.to_bytes()) == facts
