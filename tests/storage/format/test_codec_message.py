"""An encoded batch has the same bytes in one piece and in several."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest

from spark_stream.storage.disk import disk
from spark_stream.storage.disk.disk import OsDisk
from spark_stream.storage.format.codec import EncodedBatch, uncompressed

ROWS = 300_000


def batches() -> dict[str, pa.RecordBatch]:
    numbers = pa.array(range(ROWS), pa.int64())
    texts = pa.array([None if row % 7 == 0 else f"text {row}" * 3 for row in range(ROWS)])
    lists = pa.array([[row, None] if row % 3 else None for row in range(ROWS)])
    nested = pa.StructArray.from_arrays([numbers, texts], ["a", "b"])
    whole = pa.record_batch({"n": numbers, "t": texts, "l": lists, "s": nested})
    required = pa.schema([pa.field("n", pa.int64(), nullable=False)], {"some": "metadata"})
    return {
        "small": whole.slice(0, 10),
        "large": whole,
        "slice": whole.slice(3, ROWS - 10),
        "required": pa.record_batch([numbers], schema=required),
        "wide": pa.record_batch({f"c{each}": numbers.slice(0, 400) for each in range(800)}),
        "no columns that take room": pa.record_batch({"n": pa.nulls(ROWS)}),
    }


@pytest.mark.quick("small", "slice", "required")
@pytest.mark.slow
@pytest.mark.parametrize("name", batches())
def test_parts_equal_arrows_message_in_one_piece(name: str):
    batch = batches()[name]
    message = uncompressed(batch)
    expected = batch.serialize().to_pybytes()
    assert message.joined().to_pybytes() == expected
    assert message.size == len(expected)
    assert message.crc() == google_crc32c.value(expected)
    assert len(message.parts) == 1 or name in ("large", "slice", "required")


def test_large_values_are_not_copied():
    column = pa.array(range(ROWS), pa.int64())
    message = uncompressed(pa.record_batch({"n": column}))
    assert column.buffers()[1].address in {
        part.address for part in message.parts if isinstance(part, pa.Buffer)
    }


def test_message_of_one_part_is_not_copied():
    part = pa.py_buffer(b"some bytes")
    assert EncodedBatch.of(part).joined().address == part.address


def test_parts_are_written_whole_despite_short_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = disk.write_parts

    def reluctant(descriptor: int, views: list[memoryview], position: int) -> int:
        assert len(views) <= disk._PARTS_MAX
        few = [views[0], *(view[:2] for view in views[1:2])]
        return real(descriptor, few, position)

    monkeypatch.setattr(disk, "write_parts", reluctant)
    parts = [bytes([number % 256]) * (number % 4) for number in range(2_500)]
    file = OsDisk().create(tmp_path / "f")
    file.write(5, *parts)
    file.close()
    assert (tmp_path / "f").read_bytes()[5:] == b"".join(parts)
