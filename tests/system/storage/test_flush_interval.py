"""A topic with flush=interval is on the disk after ``flush.ms``, however seldom housekeeping is."""

from __future__ import annotations

from pathlib import Path

from spark_stream.storage.disk.fsyncs import MARK_SIZE
from tests.support import NUMBERS, BrokerProcess, eventually, numbers


def forced(broker: BrokerProcess, topic: str) -> int:
    """Below which offset the topic's one partition is on the disk, as its mark says."""
    marks: list[Path] = list((broker.directory / "topics" / topic).glob("*/0/flushed"))
    raw = marks[0].read_bytes() if marks else b""
    return int.from_bytes(raw[8:16], "little") if len(raw) == MARK_SIZE else 0


def test_flush_ms_far_below_the_housekeepers_pause_is_kept(tmp_path: Path) -> None:
    """The housekeeper comes once an hour here: it is not what flushes."""
    broker = BrokerProcess(tmp_path / "log", conf="housekeeping_seconds = 3600\n").start()
    try:
        with broker.connect() as log:
            log.create_topic("t", schema=NUMBERS, config={"flush": "interval", "flush.ms": 20})
            log.create_topic("never", schema=NUMBERS, config={"flush": "none"})
            with log.producer() as producer:
                for start in (0, 100):
                    producer.append("t", numbers(start, 100)).result()
                    eventually(lambda end=start + 100: forced(broker, "t") == end)
                producer.append("never", numbers(0, 5)).result()
                log.alter_topic("never", config={"flush": "interval", "flush.ms": 20})
                eventually(lambda: forced(broker, "never") == 5)
    finally:
        broker.kill()
