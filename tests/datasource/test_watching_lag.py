"""The lag of a query, from its progress."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from isolog.spark import LagListener
from spark_stream.datasource.values.offsets import TopicOffsets, to_json
from spark_stream.datasource.watching import PartitionLag, lags

places = st.dictionaries(st.integers(0, 9), st.integers(0, 1 << 40), max_size=5)


def source(end, latest, topic_id="id", latest_id="id"):
    return {
        "endOffset": to_json({"t": TopicOffsets(topic_id, end, {})}, "c"),
        "latestOffset": to_json({"t": TopicOffsets(latest_id, latest, {})}, "c"),
    }


@pytest.mark.rule("the lag of a query", "datasource/watching.py")
@given(places, places, st.booleans(), st.booleans())
def test_lag_counts_readable_records_that_were_not_read(end, latest, anew, as_text):
    """A partition that the query has not read, and a topic created again, count from 0."""
    told = source(end, latest, topic_id="before" if anew else "id")
    if as_text:
        told = {name: json.dumps(value) for name, value in told.items()}
    found = lags({"sources": [told]})
    assert [(each.topic, each.partition, each.latest) for each in found] == [
        ("t", number, latest[number]) for number in sorted(latest)
    ]
    for each in found:
        read = 0 if anew else end.get(each.partition, 0)
        assert each.records == max(0, latest[each.partition] - read)


def test_records_of_an_open_transaction_are_lag_that_is_held_back():
    told = source({0: 4}, {0: 4, 1: 5})
    held = TopicOffsets("id", {0: 4, 1: 5}, {}, {0: 15})
    told["latestOffset"] = json.loads(json.dumps(to_json({"t": held}, "c")))
    first, second = lags({"sources": [told]})
    assert (first.records, first.held_back, first.readable) == (15, 15, 0)
    assert (second.records, second.held_back, second.readable) == (5, 0, 5)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"endOffset": None, "latestOffset": None},
        {"endOffset": {"topic": {"0": 5}}, "latestOffset": {"topic": {"0": 9}}},  # Kafka's
        {"endOffset": "5", "latestOffset": "null"},
        {"endOffset": "{", "latestOffset": "{"},
        {"endOffset": {"logOffset": 3}, "latestOffset": None},
    ],
)
def test_other_sources_are_left_out(other):
    mine = source({0: 1}, {0: 3})
    assert lags({"sources": [other, mine]}) == [PartitionLag("t", 0, 1, 3)]


class Moments:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def progress(run="r1", name="q", batch=0, rows=10, **places):
    told = {
        "id": "the id",
        "runId": run,
        "name": name,
        "batchId": batch,
        "batchDuration": 1500,
        "numInputRows": rows,
        "sources": [source(**places)],
    }
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(told)))


def ended(run="r1"):
    return SimpleNamespace(runId=run)


def test_lag_is_logged_at_most_once_per_interval(caplog):
    clock = Moments()
    listener = LagListener(log_every_s=10, monotonic=clock)
    with caplog.at_level(logging.INFO):
        listener.onQueryProgress(progress(end={0: 1, 1: 5}, latest={0: 1001, 1: 5}))
        clock.now = 9
        listener.onQueryProgress(progress(batch=1, end={0: 1001, 1: 5}, latest={0: 1001, 1: 5}))
        clock.now = 10
        listener.onQueryProgress(progress(batch=2, end={0: 1001, 1: 5}, latest={0: 1001, 1: 5}))
    assert caplog.messages == [
        "query q: batch 0, 1,000 records behind (t/0: 1,000)",
        "query q: batch 2, 0 records behind",
    ]


def test_gauges_of_an_ended_query_are_removed_and_its_counters_stay():
    registry = CollectorRegistry()
    listener = LagListener(registry=registry)

    def value(name, partition="0"):
        return registry.get_sample_value(name, {"query": "q", "topic": "t", "partition": partition})

    listener.onQueryProgress(progress(end={0: 1, 1: 0}, latest={0: 5, 1: 2}))
    assert value("isolog_query_lag_records") == 4
    assert value("isolog_query_lag_records", "1") == 2
    listener.onQueryProgress(progress(end={0: 5}, latest={0: 5}))
    assert value("isolog_query_lag_records") == 0
    assert value("isolog_query_offset") == value("isolog_query_latest_offset") == 5
    assert value("isolog_query_lag_records", "1") is None
    assert registry.get_sample_value("isolog_query_input_rows_total", {"query": "q"}) == 20
    assert registry.get_sample_value("isolog_query_batches_total", {"query": "q"}) == 2
    assert registry.get_sample_value("isolog_query_batch_seconds", {"query": "q"}) == 1.5
    listener.onQueryProgress(progress(run="r2", end={0: 5}, latest={0: 9}))
    listener.onQueryTerminated(ended("r1"))  # the event of the end of a run is late
    assert value("isolog_query_lag_records") == 4
    assert listener.lags() == {"q": [PartitionLag("t", 0, 5, 9)]}
    listener.onQueryTerminated(ended("r2"))
    assert value("isolog_query_lag_records") is None
    assert registry.get_sample_value("isolog_query_input_rows_total", {"query": "q"}) == 30
    assert listener.lags() == {}
