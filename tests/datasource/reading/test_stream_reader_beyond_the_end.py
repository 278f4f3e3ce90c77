"""Offsets above the log's end: each case has a specific and true message."""

from __future__ import annotations

import json
import logging

import pytest

import isolog
from isolog.errors import DataLoss, InvalidOption, InvalidRequest, OffsetOutOfRange
from tests.datasource.sources import Query, batch_read
from tests.support import NUMBERS, numbers

LEVELS = ("read_uncommitted", "read_committed", "read_atomic")


@pytest.fixture
def ten(log: isolog.Log, topic: str) -> str:
    """A topic with the records 0 to 9."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 10))
    return topic


def at(topic: str, offset: int) -> str:
    return json.dumps({topic: {"0": offset}})


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_batch_read_above_the_log_end_is_refused(shared, ten, option, isolation):
    with pytest.raises(OffsetOutOfRange) as caught:
        batch_read(shared.address, ten, isolation=isolation, **{option: at(ten, 25)})
    assert caught.value.message == (
        f"{option}: {ten}/0: offset 25 is above the log's end, which is 10"
    )
    assert "from 0 to 10" in caught.value.hint


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_without_fail_on_data_loss_a_batch_read_ends_at_the_log_end(shared, ten, option, caplog):
    with caplog.at_level(logging.WARNING):
        found = batch_read(shared.address, ten, failOnDataLoss=False, **{option: at(ten, 25)})
    assert found == ([] if option == "startingOffsets" else list(range(10)))
    assert f"{option}: {ten}/0: offset 25 is above the log's end, which is 10" in caplog.text


def test_log_end_itself_is_a_valid_offset(shared, ten):
    assert batch_read(shared.address, ten, endingOffsets=at(ten, 10)) == list(range(10))
    assert batch_read(shared.address, ten, startingOffsets=at(ten, 10)) == []
    assert Query(shared.address, ten, startingOffsets=at(ten, 10)).batch() == []


def test_error_of_a_new_query_does_not_mention_truncation(shared, ten):
    with pytest.raises(OffsetOutOfRange, match=r"startingOffsets: .*25 is above") as caught:
        Query(shared.address, ten, startingOffsets=at(ten, 25))
    assert "truncated" not in str(caught.value)


def test_without_fail_on_data_loss_a_new_query_begins_at_the_log_end(shared, log, ten):
    """Its start moves, so it is in the checkpoint before the first record is read."""
    query = Query(shared.address, ten, failOnDataLoss=False, startingOffsets=at(ten, 25))
    assert query.batch() == []
    with log.producer() as producer:
        producer.append(ten, numbers(10, 5))
    query.start()
    assert query.batch() == [10, 11, 12, 13, 14]


def test_a_checkpoint_above_the_end_is_a_loss(shared, ten):
    query = Query(shared.address, ten)
    query.batch()
    query.at[ten]["partitions"]["0"]["offset"] = 25
    with pytest.raises(DataLoss, match=r"read up to offset 25 .* offsets 10 to 24 were truncated"):
        query.batch()


def test_record_that_is_not_visible_yet_is_not_above_the_end(shared, log, ten):
    with log.producer(transactional_id=ten) as producer:
        producer.begin_transaction()
        producer.append(ten, numbers(10, 5)).result()
        given = {"isolation": "read_committed"}
        assert batch_read(shared.address, ten, endingOffsets=at(ten, 15), **given) == [*range(10)]
        query = Query(shared.address, ten, startingOffsets=at(ten, 15), **given)
        assert query.batch() == []
        producer.commit_transaction()
    assert query.batch() == []


@pytest.mark.parametrize("value", [None, [1, 2], "t", {"t": [3]}])
def test_checkpoint_of_another_format_is_refused(shared, ten, value):
    with pytest.raises(InvalidRequest, match="the checkpoint's offset is not isolog's"):
        Query(shared.address, ten, at=value).read(value)


def test_invalid_progress_is_refused_with_its_option(shared, ten):
    for text in (
        json.dumps({ten: {"id": "x", "partitions": {"0": {"epoch": 3}}}}),
        json.dumps({ten: {"id": "x", "partitions": 3}}),
        json.dumps({ten: {"id": "x", "partitions": {"0": {"offset": -3, "epoch": 0}}}}),
        json.dumps({ten: {"id": "x", "partitions": {"0": {"offset": 3, "epoch": 2**63}}}}),
        json.dumps({ten: {"0": 1e999}}),
        json.dumps({"other": {"id": "x", "partitions": {"0": {"offset": 3, "epoch": 0}}}}),
    ):
        with pytest.raises(InvalidOption, match="startingOffsets"):
            Query(shared.address, ten, startingOffsets=text)
