"""Queries under a consumer's name: one start for all runs, progress from the latest alone."""

from __future__ import annotations

import pytest
from msgspec import structs

from isolog.errors import ConsumerFenced, UnknownConsumer
from spark_stream.cluster.consumers import Query, decode_query, encode_query
from spark_stream.consistency.transactions.transactions import ReadPosition
from spark_stream.scripts.readers import delete_name, pin_start, read_named, record_progress
from spark_stream.scripts.transactions.positions import store_positions
from tests.scripts.on_store import OnStore
from tests.scripts.transactions.test_positions import position
from tests.simulation.store import MemoryRecords, MemoryStore

OLD = Query("old", "subscribe t", "read_committed", "startingOffsets=latest", "start of old")
NEW = structs.replace(OLD, instance="new", start="start of new")


@pytest.fixture
def on() -> OnStore:
    return OnStore(MemoryStore(MemoryRecords()))


def query(on: OnStore, name: str = "c") -> Query:
    return on.run(read_named()).queries[name]


def at(offset: int) -> tuple[ReadPosition, ...]:
    return (ReadPosition("t", "id", 0, offset),)


def test_a_query_is_read_as_it_was_written() -> None:
    full = structs.replace(OLD, started_ms=1, recorded_ms=2, positions=at(5))
    assert decode_query(encode_query(full)) == full


def test_a_query_without_a_start_pins_none(on):
    assert on.run(pin_start("c", structs.replace(OLD, start=None), 1)) is None
    assert on.run(read_named()).queries == {}


def test_a_start_is_pinned_once(on):
    assert on.run(pin_start("c", OLD, 1)) == structs.replace(OLD, started_ms=1)
    assert on.run(pin_start("c", NEW, 2)) == structs.replace(OLD, instance="new", started_ms=1)


@pytest.mark.rule(
    "the start of a query with a consumer's name, and its recorded progress",
    "scripts/readers.py",
    "datasource/reading/named_query.py",
)
def test_the_second_of_two_concurrent_pins_gets_the_firsts_start(on):
    late = on.start(pin_start("c", OLD, 1))
    late.advance()  # it has found no record
    on.run(pin_start("c", NEW, 2))
    assert late.end().start == "start of new"
    assert query(on).start == "start of new"


def test_another_selection_changes_nothing(on):
    on.run(pin_start("c", OLD, 1))
    assert (
        on.run(pin_start("c", structs.replace(NEW, selection="subscribe u"), 2)).selection
        == "subscribe t"
    )
    assert query(on) == structs.replace(OLD, started_ms=1)


def test_only_the_latest_run_reports_progress(on):
    on.run(pin_start("c", OLD, 1))
    late = on.start(record_progress("c", structs.replace(OLD, positions=at(5)), 2, claim=False))
    late.advance()  # it has read
    on.run(record_progress("c", structs.replace(NEW, positions=at(7)), 3, claim=True))
    with pytest.raises(ConsumerFenced, match="'c'"):
        late.end()
    found = query(on)
    assert (found.instance, found.positions, found.recorded_ms) == ("new", at(7), 3)
    assert (found.start, found.started_ms) == ("start of old", 1)


def test_progress_without_a_start_leaves_the_start_open(on):
    on.run(record_progress("c", structs.replace(OLD, start=None, positions=at(5)), 2, claim=True))
    assert on.run(pin_start("c", NEW, 3)).start == "start of new"
    assert query(on).positions == at(5)


def test_a_name_is_deleted_as_a_whole(on):
    on.run(pin_start("c", OLD, 1))
    on.run(pin_start("d", OLD, 1))
    on.run(store_positions([position(5)], {}))
    assert on.run(read_named()).consumers == {"c": [position(5)]}
    late = on.start(delete_name("c"))
    late.advance()  # it has read
    on.run(record_progress("c", structs.replace(OLD, positions=at(5)), 2, claim=True))
    late.end()
    found = on.run(read_named())
    assert (list(found.queries), found.consumers) == (["d"], {})
    with pytest.raises(UnknownConsumer, match="'c'"):
        on.run(delete_name("c"))
