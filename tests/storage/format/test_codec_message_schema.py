"""A damaged schema message of the last segment is repaired, and never used."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream import batches
from spark_stream.batches import crc32c
from spark_stream.storage.log.log import PartitionLog
from tests.examples import examples
from tests.storage import logs
from tests.storage.logs import append_next, flip, format_of, segment_path
from tests.storage.recoveries import (
    copied,
    holds_exactly,
    open_again,
    opened_or_refused,
    sample_log,
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> PartitionLog:
    return sample_log(tmp_path_factory.mktemp("sample"))


@settings(max_examples=examples(80))
@given(st.data())
def test_flipped_bit_in_the_schema_message_is_repaired_without_loss(sample, data):
    """isolog does not need that message, but polars does, so it is rewritten."""
    header = int(sample.segments[-1].table[0]["position"])
    with logs.folder() as folder:
        log = copied(sample, folder)
        path = segment_path(log, 10, "arrow")
        whole = path.read_bytes()
        flip(path, data.draw(st.integers(0, header - 1)), data.draw(st.integers(0, 7)))
        log = open_again(log)
        assert path.read_bytes() == whole or log.cuts == ()
        with pa.ipc.open_stream(path) as reader:
            assert reader.schema.equals(logs.SCHEMA)
            assert reader.read_all().num_rows == 14
        assert holds_exactly(log, 24)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.text("01ab.", min_size=1), st.text("012ab", max_size=9), max_size=4))
def test_checksum_covers_texts_equal_to_itself(metadata):
    """One of eight checksums, so that the topic's metadata often has that of the message."""
    copies = {f"copy{number}": f"{number:08x}" for number in range(8)}
    schema = pa.schema([("id", pa.int64())], metadata | copies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "crc32c", lambda data: crc32c(data) % 8)
        message = batches.with_facts(schema, {"isolog.topic": "t"})
        assert batches.facts_of(pa.py_buffer(message)) == {"isolog.topic": "t"}


@pytest.mark.parametrize("checksum", [{}, {"isolog.crc": ""}, {"isolog.crc": "0"}])
def test_schema_message_without_a_checksum_is_rejected(checksum):
    schema = pa.schema([("id", pa.int64())], {"isolog.topic": "t", **checksum})
    assert batches.facts_of(schema.serialize()) is None


def emptied(folder: Path) -> PartitionLog:
    """A closed log after full retention: its next entry is the 25th, its next offset 50."""
    log = PartitionLog.open(folder, format_of(retention_ms=100))
    for _ in range(25):
        append_next(log, rows=2)
    log.housekeep(logs.NOW + 10**6, log.end.offset)
    assert log.start == log.end
    log.close()
    return log


def goes_on_where_it_was_or_is_refused(log: PartitionLog) -> str:
    path = segment_path(log, 50, "arrow")
    again, error = opened_or_refused(log)
    if again is None:
        assert str(path) in str(error)
        return "refused"
    assert (again.end.entry, again.end.offset) == (25, 50)
    append_next(again)
    assert pa.ipc.open_stream(path).read_all().num_rows == 10
    again.close()
    return "went on"


@settings(max_examples=examples(40))
@given(st.data())
def test_flipped_bit_never_moves_the_end_of_an_empty_log(data):
    """After retention, only the schema message has the first entry's index. It has a checksum."""
    with logs.folder() as folder:
        log = emptied(folder)
        path = segment_path(log, 50, "arrow")
        position = data.draw(st.integers(0, path.stat().st_size - 1))
        flip(path, position, data.draw(st.integers(0, 7)))
        goes_on_where_it_was_or_is_refused(log)


def test_flipped_digit_of_the_first_entrys_index_is_detected(tmp_path):
    log = emptied(tmp_path)
    path = segment_path(log, 50, "arrow")
    whole = path.read_bytes()
    digits = [at for at in range(len(whole)) if whole[at : at + 2] == b"25"]
    outcomes = set()
    for position in digits:
        flip(path, position, 0)
        outcomes.add(goes_on_where_it_was_or_is_refused(log))
        path.write_bytes(whole)
        segment_path(log, 50, "entries").write_bytes(b"")
    assert "refused" in outcomes
