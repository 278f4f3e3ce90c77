"""Damaged files: a typed error for damaged records, without an effect on others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from isolog.errors import DamagedSegment
from tests.support import NUMBERS, BrokerProcess, numbers


def segments(broker: BrokerProcess, topic: str, partition: int = 0) -> list[Path]:
    return sorted((broker.directory / "topics" / topic).glob(f"*/{partition}/*.arrow"))


@pytest.fixture
def rolled(broker: BrokerProcess) -> BrokerProcess:
    """A stopped broker with a topic of several segments in partition 0, and one in partition 1."""
    with broker.connect() as log:
        log.create_topic("t", 2, schema=NUMBERS, config={"segment.bytes": 65_536})
        with log.producer() as producer:
            for start in range(0, 40_000, 4_000):
                producer.append("t", numbers(start, 4_000), partition=0).result(20)
            producer.append("t", numbers(0, 10), partition=1)
    broker.terminate()
    assert len(segments(broker, "t")) > 3
    return broker


def flip_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_damage_in_an_older_segment_affects_only_its_records(rolled: BrokerProcess) -> None:
    damaged, following = segments(rolled, "t")[1:3]
    first, after = int(damaged.stem), int(following.stem)
    flip_byte(damaged, damaged.stat().st_size // 2)
    rolled.start()
    with rolled.connect() as log:
        with pytest.raises(DamagedSegment) as caught:
            log.read("t")
        error = caught.value
        assert str(damaged) in error.message
        assert first <= error.details["first"] < error.details["next"] <= after
        assert log.read("t", start={0: after, 1: 0})["n"].to_pylist()[-1] == 9
        assert log.read("t", start={0: 0, 1: 10}, end={0: first, 1: 10}).num_rows == first
        with log.producer() as producer:
            assert producer.append("t", numbers(0, 1), partition=0).result().offset == 40_000


@pytest.mark.full  # tests/storage/log/test_recovery_torn_tail.py
def test_log_is_cut_at_a_damaged_entry_file_and_logs_one_line(
    rolled: BrokerProcess,
) -> None:
    damaged, following = segments(rolled, "t")[1:3]
    entries = damaged.with_suffix(".entries")
    kept = following.read_bytes()
    flip_byte(entries, entries.stat().st_size - 1)
    rolled.start()
    with rolled.connect() as log:
        end = log.describe("t").partitions[0].log_end_offset
        assert int(damaged.stem) <= end < int(following.stem)
        assert log.read("t", end={0: end, 1: 0})["n"].to_pylist() == list(range(end))
        with log.producer() as producer:
            assert producer.append("t", numbers(0, 1), partition=0).result().offset == end
        assert log.describe("t").partitions[1].log_end_offset == 10
    aside = damaged.parent / "cut" / "1"
    assert (aside / following.name).read_bytes() == kept
    (line,) = [line for line in rolled.log_text().splitlines() if "recovered" in line]
    assert " ERROR " in line
    for part in ("t/0:", f"ends at offset {end};", f"{40_000 - end} records", str(aside)):
        assert part in line


@pytest.mark.full  # one process: tests/storage/log/test_recovery_holes.py
def test_partition_with_a_missing_entry_file_does_not_open(
    rolled: BrokerProcess,
) -> None:
    segments(rolled, "t")[-1].with_suffix(".entries").unlink()
    rolled.start()
    with rolled.connect() as log:
        broken, sound = log.describe("t").partitions
        assert isinstance(broken.error, DamagedSegment)
        assert "is missing" in broken.error.message
        assert sound.error is None
        with log.producer() as producer:
            assert producer.append("t", numbers(10, 5), partition=1).result().offset == 10
            refused = producer.append("t", numbers(0, 1), partition=0)
            assert isinstance(refused.exception(), DamagedSegment)
            producer.flush()  # the error was already read from the future
        with pytest.raises(DamagedSegment):
            log.read("t")


def test_torn_tail_is_cut_and_logged_in_one_line(rolled: BrokerProcess) -> None:
    last = segments(rolled, "t")[-1]
    with last.open("ab") as file:
        file.write(b"\xff\xff\xff\xff torn")
    rolled.start()
    with rolled.connect() as log:
        assert log.describe("t").partitions[0].log_end_offset == 40_000
        assert log.read("t")["n"].to_pylist()[:40_000] == list(range(40_000))
    (line,) = [line for line in rolled.log_text().splitlines() if "recovered" in line]
    assert str(last) in line
    assert "0 records" in line
    with pa.ipc.open_stream(last) as reader:  # a valid IPC stream again
        assert sum(batch.num_rows for batch in reader) > 0
