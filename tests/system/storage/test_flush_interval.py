"""A topic with flush=interval is flushed after ``flush.ms``, independent of housekeeping."""

from __future__ import annotations

from pathlib import Path

from spark_stream.storage.disk.fsyncs import MARK_SIZE
from tests.support import NUMBERS, BrokerProcess, eventually, numbers


def flushed_end(broker: BrokerProcess, topic: str) -> int:
    """Return the end of the flushed offsets of the single partition, from its mark."""
    marks: list[Path] = list((broker.directory / "topics" / topic).glob("*/0/flushed"))
    raw = marks[0].read_bytes() if marks else b""
    return int.from_bytes(raw[8:16], "little") if len(raw) == MARK_SIZE else 0


def test_flush_ms_is_independent_of_the_housekeeping_interval(tmp_path: Path) -> None:
    """Housekeeping runs once an hour here, so it does not flush."""
    broker = BrokerProcess(tmp_path / "log", conf="housekeeping_seconds = 3600\n").start()
    try:
        with broker.connect() as log:
            log.create_topic("t", schema=NUMBERS, config={"flush": "interval", "flush.ms": 20})
            log.create_topic("never", schema=NUMBERS, config={"flush": "none"})
            with log.producer() as producer:
                for start in (0, 100):
                    producer.append("t", numbers(start, 100)).result()
                    eventually(lambda end=start + 100: flushed_end(broker, "t") == end)
                producer.append("never", numbers(0, 5)).result()
                log.alter_topic("never", config={"flush": "interval", "flush.ms": 20})
                eventually(lambda: flushed_end(broker, "never") == 5)
    finally:
        broker.kill()
