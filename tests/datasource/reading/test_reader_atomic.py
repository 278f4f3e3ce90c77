"""read_atomic holds within a source of two topics, and not over two sources."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

import isolog
from spark_stream.client.topics import TopicsClient
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.values.offsets import LogState, Offsets
from tests.datasource.sources import Query, batch_read
from tests.support import NUMBERS, numbers

ATOMIC = {"isolation": "read_atomic"}


@pytest.fixture
def pair(log: isolog.Log, topic: str) -> tuple[str, str]:
    names = f"{topic}-a", f"{topic}-b"
    for name in names:
        log.create_topic(name, partitions=2, schema=NUMBERS)
    return names


def both(producer, pair: tuple[str, str], number: int) -> None:
    """One transaction: ``2 * number`` goes to one topic, the odd number after it to the other."""
    with producer.transaction():
        for place, name in enumerate(pair):
            producer.append(name, numbers(2 * number + place, 1), partition=number % 2)


def test_one_source_of_two_topics_never_splits_a_transaction(shared, log, pair):
    """Micro-batches and batch reads run beside a writer, and each has whole pairs."""
    done = threading.Event()

    def write() -> None:
        with shared.connect() as other, other.producer(transactional_id=pair[0]) as producer:
            for number in range(60):
                both(producer, pair, number)
        done.set()

    writer = threading.Thread(target=write)
    query = Query(shared.address, ",".join(pair), maxOffsetsPerTrigger=7, **ATOMIC)
    writer.start()
    seen, reads = [], 0
    while not done.is_set() or query.planned() != query.at:
        found = query.batch()
        assert sorted(found) == sorted(number ^ 1 for number in found), found
        seen += found
        whole = batch_read(shared.address, ",".join(pair), **ATOMIC)
        assert sorted(whole) == sorted(number ^ 1 for number in whole)
        reads += bool(whole)
    writer.join()
    assert sorted(seen) == list(range(120))
    assert reads > 1


def test_first_transaction_between_look_up_and_cut_is_no_loss(
    shared, log, pair, monkeypatch: pytest.MonkeyPatch
):
    """A cut is never above the looked-up log ends, because offsets have the lineages of these."""
    request_cut = Planner._cut

    def write_before_the_cut(self, topics, **options):
        if not written:
            written.append(True)
            both(producer, pair, 0)
        return request_cut(self, topics, **options)

    written: list[bool] = []
    with log.producer(transactional_id=pair[0]) as producer:
        query = Query(shared.address, ",".join(pair), **ATOMIC)
        monkeypatch.setattr(Planner, "_cut", write_before_the_cut)
        assert sorted(query.batch() + query.batch()) == [0, 1]


@pytest.mark.parametrize("selection", ["subscribePattern", "subscribe"])
def test_a_new_topic_of_a_query_never_splits_a_transaction(
    shared, log, topic: str, monkeypatch: pytest.MonkeyPatch, selection: str
):
    """The topics are listed before the ends of the transaction's other topic are looked up.

    At that time the second topic is deleted, and it is then created again.
    """
    first, second = f"{topic}-a", f"{topic}-b"
    log.create_topic(first, schema=NUMBERS)
    log.create_topic(second, schema=NUMBERS)
    selected = f"{topic}-." if selection == "subscribePattern" else f"{first},{second}"
    options = {selection: selected, "failOnDataLoss": False}
    query = Query(shared.address, None, **options, **ATOMIC)
    log.delete_topic(second)
    look_up, created = TopicsClient.look_up, list[str]()

    def create_after_the_list(self, asked, *, names=False):
        before = look_up(self, asked, names=names)
        if not created:
            created.append(second)
            log.create_topic(second, schema=NUMBERS)
            both(producer, (first, second), 0)
            later = look_up(self, asked[:1]).topics  # of the first topic
            return replace(before, topics=later)
        return before

    with log.producer(transactional_id=topic) as producer:
        monkeypatch.setattr(TopicsClient, "look_up", create_after_the_list)
        assert sorted(query.batch()) == [0, 1]


def around_the_last_look_up(
    patch: pytest.MonkeyPatch, before: Callable[[], object], after: Callable[[], object] = list
) -> None:
    """Call these before and after the look-up that follows the resolution of start and end."""
    look_up = Planner.latest

    def latest(self: Planner, *seen: Offsets, **options: Any) -> LogState:
        if "reading" not in options:  # it resolves the start or the end
            return look_up(self, *seen, **options)
        patch.undo()
        before()
        found = look_up(self, *seen, **options)
        after()
        return found

    patch.setattr(Planner, "latest", latest)


@contextmanager
def open_transaction(log: isolog.Log, topic: str) -> Iterator[isolog.Producer]:
    """Make the first topic of a pattern with 0 to 3. The 2 is of an open transaction."""
    first = f"{topic}-a"
    log.create_topic(first, schema=NUMBERS)
    with log.producer(transactional_id=topic) as producer, log.producer() as plain:
        plain.append(first, numbers(0, 2)).result(60)
        producer.begin_transaction()
        producer.append(first, numbers(2, 1)).result(60)
        plain.append(first, numbers(3, 1)).result(60)
        yield producer


def read_with_own_end(address: str, topic: str, **options: object) -> list[int]:
    """Read the topics of a pattern, and four offsets of the first one."""
    ending = json.dumps({f"{topic}-a": {"0": 4}})
    selected = {"subscribePattern": f"{topic}-.", "endingOffsets": ending}
    return batch_read(address, None, **selected, **options, **ATOMIC)


@pytest.mark.parametrize("addition", ["partition", "topic"])
@pytest.mark.parametrize("start", [0, 3])
def test_an_addition_before_the_end_of_a_batch_never_splits_a_transaction(
    shared, log, topic: str, monkeypatch: pytest.MonkeyPatch, addition: str, start: int
):
    """The end of the batch is named, and lacks the addition.

    A transaction that begins before the start may be split.
    """
    first, second = f"{topic}-a", f"{topic}-b"
    with open_transaction(log, topic) as producer:

        def add() -> None:
            if addition == "partition":
                log.alter_topic(first, partitions=2)
                producer.append(first, numbers(4, 1), partition=1)
            else:
                log.create_topic(second, schema=NUMBERS)
                producer.append(second, numbers(4, 1))
            producer.commit_transaction()

        around_the_last_look_up(monkeypatch, add)
        starting = json.dumps({first: {"0": start}})
        found = read_with_own_end(shared.address, topic, startingOffsets=starting)
    assert found == ([3] if start else [0, 1])


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("is_created_again", [True, False])
def test_a_topic_deleted_before_the_cut_fails_no_batch(
    shared, log, topic: str, monkeypatch: pytest.MonkeyPatch, is_new: bool, is_created_again: bool
):
    first, second = f"{topic}-a", f"{topic}-b"
    log.create_topic(first, schema=NUMBERS)
    create = partial(log.create_topic, second, schema=NUMBERS)
    with log.producer() as plain:
        plain.append(first, numbers(0, 4)).result(60)
    if not is_new:
        create()

    def delete() -> None:
        log.delete_topic(second)
        if is_created_again:
            create()

    around_the_last_look_up(monkeypatch, create if is_new else list, delete)
    assert read_with_own_end(shared.address, topic, failOnDataLoss=is_new) == [0, 1, 2, 3]


@pytest.mark.parametrize(("partitions", "later"), [(1, 1), (2, 1), (1, 2)])
def test_a_topic_created_again_before_the_end_never_splits_a_transaction(
    shared, log, topic: str, monkeypatch: pytest.MonkeyPatch, partitions: int, later: int
):
    """The end of the batch has offsets of the deleted topic."""
    second = f"{topic}-b"
    log.create_topic(second, schema=NUMBERS, partitions=partitions)
    with log.producer() as plain:
        for number in range(partitions):
            plain.append(second, numbers(100, 3), partition=number).result(60)
    with open_transaction(log, topic) as producer:

        def create_again() -> None:
            log.delete_topic(second)
            log.create_topic(second, schema=NUMBERS, partitions=later)
            producer.append(second, numbers(4, 1), partition=0).result(60)
            producer.commit_transaction()

        around_the_last_look_up(monkeypatch, create_again)
        found = read_with_own_end(shared.address, topic, failOnDataLoss=False)
    assert found == [0, 1]


def test_two_sources_of_one_query_may_split_one_over_their_micro_batches(shared, log, pair):
    """The limit in ``docs/spark/read.md``. Spark plans each source by itself, in sequence."""
    one, two = (Query(shared.address, name, **ATOMIC) for name in pair)
    end = one.planned()
    with log.producer(transactional_id=pair[0]) as producer:
        both(producer, pair, 0)
    first_batch = one.read(end) + two.batch()
    assert first_batch == [1], "half of the transaction"
    assert one.batch() + two.batch() == [0], "the other half comes with the next micro-batch"
