"""The options of "Kafka, tuned"."""

from __future__ import annotations

from typing import Final

TUNED_SOURCE: Final = {
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""Kafka's source with larger fetches."""

TUNED_SINK: Final = {
    "kafka.linger.ms": "20",
    "kafka.batch.size": str(512 << 10),
    "kafka.buffer.memory": str(128 << 20),
}
"""Kafka's sink with larger batches. (Random values do not compress.)"""

TUNED_WAIT: Final = {"kafka.fetch.max.wait.ms": "10"}
"""For low-latency queries. Otherwise Kafka's consumers wait for 500 ms."""
