"""docs/format.md describes the files on the disk exactly."""

from __future__ import annotations

import json
import re

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

from spark_stream.batches import crc32c
from spark_stream.consistency.entries import CRC_SPAN, ENTRY, ENTRY_SIZE, Kind
from spark_stream.storage.disk.directory import FORMAT_VERSION, open_directory
from spark_stream.storage.format.codec import END_OF_STREAM
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression
from tests.conftest import ROOT
from tests.storage import logs
from tests.storage.logs import FACTS, NOW, append_next, everything, format_of, segment_path

PAGE = (ROOT / "docs" / "format.md").read_text()


def rows_of_table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = PAGE.split(heading, 1)[1]
    lines = re.search(r"(?:^ *\|.*\n)+", section, re.MULTILINE).group().splitlines()
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def example() -> dict:
    """The names that the page's Python example defines."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict = {}
    exec(compile(code, "docs/format.md", "exec"), names)
    return names


@pytest.fixture(params=Compression)
def log(request, tmp_path) -> PartitionLog:
    """Two segments: a closed one with three batches, and the active one with one batch."""
    log = PartitionLog.open(tmp_path, format_of(compression=request.param))
    for rows in (3, 1, 100):
        append_next(log, rows)
    log.roll()
    append_next(log, 5)
    return log


def test_layout_of_an_entry_matches_the_page():
    names = {"int64": "<i8", "int32": "<i4", "int16": "<i2", "uint32": "<u4", "uint8": "|u1"}
    page = {
        name.strip("`"): (int(byte), names[kind])
        for byte, name, kind, _ in rows_of_table("## `.entries`: the table")
    }
    code = {name: (field[1], field[0].str) for name, field in ENTRY.fields.items()}
    assert page == code
    assert f"rows of {ENTRY_SIZE} bytes" in PAGE
    assert f"bytes 0 to {CRC_SPAN - 1} of this entry" in PAGE


def test_kinds_match_the_page():
    assert ", ".join(f"{kind.value} {kind.name.lower()}" for kind in Kind) in PAGE


def test_checksum_matches_the_page():
    assert f"{crc32c(b'123456789'):08x}" == "e3069283"
    assert "`e3069283`" in PAGE


def test_version_matches_the_page(tmp_path):
    assert f"format version {FORMAT_VERSION}." in PAGE
    open_directory(tmp_path)
    facts = json.loads((tmp_path / "isolog.json").read_text())
    line = re.search(r"^isolog\.json +(\{.*\})$", PAGE, re.MULTILINE).group(1)
    told = json.loads(line)
    ids = {"cluster_id": "", "broker_id": ""}
    assert told | ids == facts | ids
    assert all(re.fullmatch("[0-9a-f]{32}", facts[name]) for name in ids)


def test_example_of_the_page_reads_every_record(log, example):
    closed = example["read_all"](log.directory, 0)
    active = example["read_all"](log.directory, 104)
    assert closed.column("offset").to_pylist() == closed.column("id").to_pylist() == [*range(104)]
    together = pa.concat_tables([closed, active]).drop(["offset"])
    assert together.cast(logs.SCHEMA).equals(everything(log))


def test_example_of_the_page_finds_one_record(log, example):
    rows = everything(log).to_pylist()
    for offset in (0, 2, 3, 4, 57, 103):
        assert example["read_one"](log.directory, 0, offset) == rows[offset]
    assert example["read_one"](log.directory, 104, 106) == rows[106]
    assert example["ENTRY"] == ENTRY


def test_files_match_the_page(log):
    names = sorted(path.name for path in log.directory.iterdir())
    pairs = [f"{base:020d}.{kind}" for base in (0, 104) for kind in ("arrow", "entries")]
    assert names == [*pairs, "flushed"]


def test_mark_of_fsyncs_matches_the_page(log):
    """The roll forced the entries before it: three entries with 104 records."""
    data = (log.directory / "flushed").read_bytes()
    fields = [(int(byte), name, kind) for byte, name, kind, _ in rows_of_table("## `flushed`")]
    sizes = {"int64": 8, "uint32": 4}
    told = {
        name.strip("`"): int.from_bytes(data[byte : byte + sizes[kind]], "little")
        for byte, name, kind in fields
    }
    assert told.pop("crc") == google_crc32c.value(data[:20])
    assert told == {"entry_index": 3, "offset": 104, "state": 0}
    assert len(data) == 24


def test_only_a_closed_segment_ends_with_arrows_mark(log):
    assert bytes.fromhex("ff ff ff ff 00 00 00 00") == END_OF_STREAM
    assert segment_path(log, 0, "arrow").read_bytes().endswith(END_OF_STREAM)
    assert not segment_path(log, 104, "arrow").read_bytes().endswith(END_OF_STREAM)


@pytest.mark.rule(
    "the bytes of a segment's files", "storage/segment/segment.py", "storage/format/codec.py"
)
def test_messages_are_aligned_adjacent_and_at_their_positions(log):
    for base in (0, 104):
        data = segment_path(log, base, "arrow").read_bytes()
        table = np.fromfile(segment_path(log, base, "entries"), ENTRY)
        position = int.from_bytes(data[4:8], "little") + 8  # a schema message has no body
        for row in table:
            assert (int(row["position"]), int(row["length"]) % 8, position % 8) == (position, 0, 0)
            message = data[position : position + int(row["length"])]
            assert message[:4] == b"\xff\xff\xff\xff"
            assert google_crc32c.value(message) == row["data_crc"]
            assert google_crc32c.value(row.tobytes()[:84]) == row["entry_crc"]
            position += int(row["length"])
        assert data[position:] == (END_OF_STREAM if base == 0 else b"")


def test_entry_has_the_facts_of_its_append(log):
    (row,) = np.fromfile(segment_path(log, 104, "entries"), ENTRY)
    told = {name: int(row[name]) for name in ENTRY.names}
    for name in ("position", "length", "data_crc", "entry_crc"):
        told.pop(name)
    assert told == {
        "entry_index": 3,
        "base_offset": 104,
        "producer_id": -1,
        "transaction": -1,
        "timestamp": NOW,
        "appended": NOW,
        "count": 5,
        "leader_epoch": 0,
        "base_sequence": -1,
        "producer_epoch": -1,
        "kind": 0,
        "schema": 0,
    }


def test_facts_of_the_schema_message_match_the_page(log):
    with pa.ipc.open_stream(segment_path(log, 104, "arrow")) as reader:
        facts = {key.decode(): value.decode() for key, value in reader.schema.metadata.items()}
    told = [
        name for keys, _ in rows_of_table("One **schema message**") for name in keys.split(", ")
    ]
    assert {name.strip("`") for name in told} - set(facts) == {"isolog.topic_id"}  # the broker's
    check = facts.pop("isolog.crc")
    assert facts == dict(FACTS) | {"isolog.base_offset": "104", "isolog.base_entry": "3"}
    path = segment_path(log, 104, "arrow")
    message = path.read_bytes()[: int(log.segments[-1].table[0]["position"])]
    blank = message.replace(check.encode(), b"00000000")
    assert check == f"{google_crc32c.value(blank):08x}"


def test_metadata_of_a_topics_schema_is_kept(tmp_path):
    schema = pa.schema([pa.field("a", pa.int8(), metadata={"unit": "m"})], metadata={"by": "me"})
    log_format = logs.LogFormat(schema, facts=FACTS)
    log = PartitionLog.open(tmp_path, log_format)
    log.append(log_format.prepare(pa.record_batch([pa.array([1], pa.int8())], schema), NOW), 0, NOW)
    with pa.ipc.open_stream(segment_path(log, 0, "arrow")) as reader:
        assert reader.schema.metadata[b"by"] == b"me"
        assert reader.schema.field("a").metadata == {b"unit": b"m"}
    assert logs.reopened(log).cuts == ()
