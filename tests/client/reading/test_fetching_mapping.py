"""Mapped reads: the same records as over the connection, or a fallback to the connection."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isolog
from isolog.errors import DamagedSegment
from spark_stream.client.reading import fetching
from spark_stream.client.reading.columns import offsets_of, runs_of
from spark_stream.client.reading.fetching import CannotMap, MappingLeaders
from tests.examples import examples
from tests.near_reads import unmapped, watch_mapped
from tests.support import BrokerProcess, native

ROWS = pa.schema([("n", pa.int64()), ("filler", pa.binary())])
_names = itertools.count()


def rows(first: int, count: int, size: int = 100) -> pa.RecordBatch:
    filler = pa.array([os.urandom(size)] * count, pa.binary())
    return pa.record_batch([pa.array(range(first, first + count), pa.int64()), filler], ROWS)


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return watch_mapped(monkeypatch)


parts = st.lists(
    st.tuples(
        st.sampled_from([1, 7, 500, 4_000]),  # records
        st.sampled_from([1, 20, 200]),  # batches of them
        st.sampled_from(["outside", "committed", "aborted"]),
    ),
    min_size=1,
    max_size=5,
)


@native  # it maps files
@pytest.mark.rule("checks of mapped segment files", "client/reading/fetching.py")
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    parts=parts,
    config=st.fixed_dictionaries(
        {
            "compression": st.sampled_from(["none", "zstd"]),
            "segment.bytes": st.sampled_from(["1048576", "1073741824"]),
        }
    ),
    isolation=st.sampled_from(["read_uncommitted", "read_committed"]),
    columns=st.sampled_from([None, ["n"], ["filler", "n"], ["_timestamp", "n"], ["_offset"]]),
    edges=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_mapped_reads_return_the_records_of_the_connection(
    shared, log, mapped, parts, config, isolation, columns, edges
):
    topic = f"mapped-{next(_names)}"
    log.create_topic(topic, schema=ROWS, config=config)
    first = 0
    for count, batches, how in parts:
        batches = min(batches, 20_000 // count)
        made = [rows(first + count * n, count) for n in range(batches)]
        first += count * batches
        if how == "outside":
            with log.producer() as producer:
                for batch in made:
                    producer.append(topic, batch, partition=0)
            continue
        with log.producer(transactional_id=topic) as producer:
            producer.begin_transaction()
            for batch in made:
                producer.append(topic, batch, partition=0)
            producer.flush()
            (producer.commit_transaction if how == "committed" else producer.abort_transaction)()
    start, end = sorted(int(first * edge) for edge in edges)

    def read() -> pa.Table:
        return log.read(topic, start=start, end=end, isolation=isolation, columns=columns)

    before = len(mapped)
    found = read()
    assert found.equals(unmapped(read))
    if (
        isolation == "read_uncommitted"
        and found.num_rows > 10_000
        and config["compression"] == "none"
    ):
        assert len(mapped) > before


@pytest.fixture
def topic(log: isolog.Log) -> str:
    """A topic of 40,000 records in several segments."""
    name = f"mapped-{next(_names)}"
    log.create_topic(name, schema=ROWS, config={"segment.bytes": "1048576"})
    with log.producer() as producer:
        for first in range(0, 40_000, 4_000):
            producer.append(name, rows(first, 4_000), partition=0)
    return name


def numbers(table: pa.Table) -> list[int]:
    return table.column("n").to_pylist()


@native  # it maps files
def test_segment_files_are_mapped(log, topic, mapped):
    assert numbers(log.read(topic)) == list(range(40_000))
    directory = Path(log.status().directory)
    assert len(set(mapped)) > 3
    assert all(directory in Path(path).parents for path in mapped)


def test_few_records_are_sent_over_the_connection(log, topic, mapped):
    assert numbers(log.read(topic, start=100, end=200)) == list(range(100, 200))
    assert mapped == []


def test_filtered_reads_are_not_mapped(log, topic, mapped):
    assert numbers(log.read(topic, filter="n >= 39990")) == list(range(39_990, 40_000))
    assert mapped == []


def test_a_broker_setting_disables_mapped_reads(tmp_path, mapped):
    with (
        BrokerProcess(tmp_path / "log", conf="mapped_reads = false\n") as broker,
        broker.connect() as log,
    ):
        log.create_topic("t", schema=ROWS)
        with log.producer() as producer:
            producer.append("t", rows(0, 10_000), partition=0)
        assert numbers(log.read("t")) == list(range(10_000))
    assert mapped == []


def gone(path: Path) -> None:
    """Remove a file at this moment."""
    raise FileNotFoundError(2, "No such file or directory")


def replaced(path: Path) -> None:
    """Replace a file by another one with the same bytes."""
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


@native  # it maps files
@pytest.mark.parametrize("strike", [gone, replaced])
def test_records_of_a_removed_file_are_fetched(log, topic, mapped, monkeypatch, strike):
    """It is removed or replaced between the leader's answer and the mapping."""
    opened, struck = os.open, []

    def striking(path, flags, *more, **named):
        if str(path).endswith(".arrow") and len(struck) < 1 and len(mapped) > 2:
            struck.append(path)
            strike(Path(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(fetching.os, "open", striking)
    assert numbers(log.read(topic)) == list(range(40_000))
    assert struck


@native  # it maps files
def test_unreadable_files_are_tried_once_a_minute(log, topic, mapped, monkeypatch):
    tried = []

    def refused(path, flags, *more, **named):
        tried.append(path)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(fetching.os, "open", refused)
    for _ in range(3):
        assert numbers(log.read(topic)) == list(range(40_000))
    assert len(tried) == 1


def test_bytes_with_another_checksum_are_never_delivered(log, topic, mapped, monkeypatch):
    """The checksum of the first batch distinguishes a file with the same name, inode and header."""
    monkeypatch.setattr(fetching, "crc_of_parts", lambda data, parts: 0)
    assert numbers(log.read(topic)) == list(range(40_000))


@native  # it maps files
@pytest.mark.parametrize("way", ["mapped", "over the connection"])
@pytest.mark.parametrize("place", [0, -1], ids=["closed", "active"])
def test_bytes_that_change_later_are_reported_and_never_delivered(log, topic, mapped, way, place):
    def read(**asked: int) -> list[int]:
        def call() -> pa.Table:
            return log.read(topic, **asked)

        return numbers(call() if way == "mapped" else unmapped(call))

    assert read() == list(range(40_000))
    folder = Path(log.status().directory) / "topics" / topic
    file = sorted(folder.glob("*/0/*.arrow"))[place]
    data = bytearray(file.read_bytes())
    data[-1_000] ^= 0x04
    with file.open("r+b") as opened:  # the same file, which both sides have mapped
        opened.write(data)
    with pytest.raises(DamagedSegment) as caught:
        read()
    first, behind = caught.value.details["first"], caught.value.details["next"]
    assert read(end=first) == list(range(first))
    assert read(start=behind) == list(range(behind, 40_000))
    if way == "mapped":
        assert mapped


@native  # it maps files
def test_mapped_records_stay_valid_after_the_topic_was_deleted(log, topic, mapped):
    with log.consumer(topic, start="earliest") as consumer:
        batches = consumer.batches(until="latest")
        held = [next(batches), next(batches)]
        log.delete_topic(topic)
        gc.collect()
        found = [n for batch in held for n in batch.column("n").to_pylist()]
        assert found == list(range(len(found)))
    assert mapped


class Moments:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_mapping_is_tried_again_after_a_minute():
    clock = Moments()
    leaders = MappingLeaders(clock)
    assert leaders.machine("a") == fetching.this_machine()
    leaders.on_failed("a", CannotMap("gone"))
    assert leaders.machine("a") == fetching.this_machine()
    leaders.on_failed("a", CannotMap("not allowed", lasting=True))
    assert leaders.machine("a") is None
    assert leaders.machine("b") == fetching.this_machine()
    clock.now = 61
    assert leaders.machine("a") == fetching.this_machine()


@given(st.lists(st.integers(0, 50), unique=True, min_size=1).map(sorted))
def test_runs_of_offsets_expand_to_the_offsets(offsets):
    found = runs_of(pa.array(offsets).to_numpy())
    assert offsets_of(len(offsets), offsets[0], found).tolist() == offsets
    assert all(b[0] > a[0] + a[1] for a, b in itertools.pairwise(found))
