"""The values that the console makes of answers of brokers."""

from __future__ import annotations

from typing import cast

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.leaders import PartitionSeen
from spark_stream.console.asking import Asking, BrokerAnswers, partition_shown
from spark_stream.wire.offset_messages import OpenExtent, PartitionFacts, PartitionOffset


def test_a_partition_shows_records_held_back_up_to_the_high_watermark():
    open_ = [OpenExtent(transaction=7, first_offset=10), OpenExtent(transaction=8, first_offset=20)]
    facts = PartitionFacts(
        high_watermark=40, last_stable_offset=10, size=0, followers={}, epochs=[], open=open_
    )
    found = PartitionOffset(
        offset=100, epoch=1, log_start_offset=0, log_end_offset=100, facts=facts
    )
    shown = partition_shown(0, PartitionSeen("1", 0.0, "id", found), {})
    assert [(each["transaction"], each["held_back"]) for each in shown["open"]] == [(7, 30), (8, 0)]


def test_unanswered_requests_of_an_earlier_process_of_a_broker_do_not_count():
    asking = Asking(cast("ClusterConnection", None))
    asking.note_process("1", 40.0, 41.0)
    for action in ("status", "list-offsets"):
        asking.answers.add(("1", action), 1.0, None)
        asking.answers.add(("2", action), 1.0, None)
    asking.note_process("1", 38.0, 40.5)  # the answer was slow
    assert asking.answers_of("1").unanswered == 2
    asking.note_process("1", 40.6, 41.5)  # it started after that
    assert asking.answers_of("1") == BrokerAnswers(0, 0, None)
    assert asking.answers_of("2").unanswered == 2
