"""A query reads the log's own files, unless an option turns that off."""

from __future__ import annotations

import psutil
import pytest

from tests.datasource.sources import batch_read
from tests.near_reads import watch_mapped
from tests.support import NUMBERS, native, numbers


@pytest.fixture
def large(log, topic):
    """A topic whose range is worth mapping: a million bytes in some segments."""
    log.create_topic(topic, schema=NUMBERS, config={"segment.bytes": "262144"})
    with log.producer() as producer:
        for first in range(0, 120_000, 10_000):
            producer.append(topic, numbers(first, 10_000)).result()
    return topic


@native  # it maps files
@pytest.mark.parametrize("maps", [True, False])
def test_mapped_reads_option_turns_mapping_on_and_off(shared, large, monkeypatch, maps):
    mapped = watch_mapped(monkeypatch)
    assert batch_read(shared.address, large, mappedReads=maps) == list(range(120_000))
    assert bool(mapped) == maps


@native  # it maps files
def test_retained_batches_keep_no_descriptor_open(log, large, monkeypatch):
    """A client may keep the records of more segments than it may have files open."""
    mapped = watch_mapped(monkeypatch)
    me = psutil.Process()
    held = log.read(large)
    assert len(set(mapped)) > 2
    assert not {each.path for each in me.open_files()} & set(mapped)
    assert held.column("n").to_pylist() == list(range(120_000))
