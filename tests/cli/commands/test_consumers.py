"""``isolog consumers``: list, describe, reset and delete of client consumers and queries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_stream.cli.commands.consumers import show_consumer
from spark_stream.cli.options import Listing
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import ReadPosition
from spark_stream.wire.consumer_messages import (
    ConsumerDescription,
    GroupDescription,
    PinStart,
    RecordProgress,
)
from tests.cli.conftest import Call, Served


@pytest.fixture
def here(served: Served, call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Commands in this process with the address of the broker."""
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    return call


@pytest.fixture
def readers(served: Served) -> str:
    """A topic with 5 records, a client consumer that has read all, and a query that has read 2."""
    topic = "watched"
    if topic in served.log.topics():
        served.log.delete_topic(topic)
    made = served.log.create_topic(topic)
    with served.log.producer() as producer:
        for number in range(5):
            producer.send(topic, str(number))
    with served.log.consumer(topic, name="the client") as consumer:
        list(consumer.records(until="latest"))
        consumer.commit()
    call = served.log._connection.call
    run: dict[str, Any] = {
        "consumer": "the query",
        "instance": "i",
        "selection": f"subscribe {topic}",
    }
    run["isolation"] = Isolation.READ_COMMITTED
    call(PinStart.of(**run, starting="startingOffsets=latest", start="{}"))
    position = ReadPosition(topic=topic, topic_id=made.id, partition=0, offset=2)
    call(RecordProgress.of(**run, positions=[position]))
    return topic


def test_list_shows_positions_and_lag_of_each_reader(here, served, readers):
    shown = here("consumers", "list", "--output", "json")
    assert (shown.code, shown.err) == (0, "")
    found = {each["name"]: each for each in json.loads(shown.out)}
    topic_id = served.log.describe(readers).id
    place = {"topic": readers, "topic_id": topic_id, "partition": 0, "end": 5, "member": None}
    place["held_back"] = 0
    assert found["the client"]["partitions"] == [{**place, "offset": 5, "lag": 0}]
    query = found["the query"]
    assert query["partitions"] == [{**place, "offset": 2, "lag": 3}]
    assert (query["kind"], query["isolation"], query["lag"]) == ("query", "read_committed", 3)
    table = here("consumers", "list").out
    for word in ("the client", "client", "the query", "read_committed", readers, "ago"):
        assert word in table


def test_describe_shows_the_start_and_topics_of_a_query(here, readers):
    shown = here("consumers", "describe", "the query")
    assert (shown.code, shown.err) == (0, "")
    for word in (f"subscribe {readers}", "startingOffsets=latest", "read_committed", readers):
        assert word in shown.out
    unknown = here("consumers", "describe", "nobody")
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err.startswith(
        "error: there is no consumer, group or query 'nobody' (`isolog consumer"
    )


def test_describe_shows_a_deleted_topic_without_lag(here, served, readers):
    served.log.delete_topic(readers)
    assert "unknown" in here("consumers", "describe", "the query").out
    [found] = json.loads(here("consumers", "describe", "the query", "-o", "json").out)
    assert found["lag"] is None


def test_a_group_is_shown_with_its_members(here, served, readers):
    with served.log.consumer(readers, group="the group", isolation="read_committed") as member:
        list(member.records(until="latest"))
        member.commit()
        shown = here("consumers", "list").out
        assert "group" in shown
        [found] = json.loads(here("consumers", "describe", "the group", "-o", "json").out)
        [one] = found["group"]["members"]
        assert (one["topics"], one["partitions"]) == ([readers], 1)
        assert found["partitions"][0]["member"] == one["id"]
        described = here("consumers", "describe", "the group").out
        for word in ("the group", one["id"], "45 s", "read_committed"):
            assert word in described
        refused = here("consumers", "delete", "the group")
        assert "the positions of a group with 1 member" in refused.err
    assert here("consumers", "delete", "the group", "--yes").code == 0


def test_delete_needs_a_confirmation(here, readers):
    refused = here("consumers", "delete", "the query")
    assert (refused.code, refused.out) == (2, "")
    assert "the first offsets and the progress of a query" in refused.err
    assert "Give --yes" in refused.err
    gone = here("consumers", "delete", "the query", "--yes")
    assert (gone.code, gone.err) == (0, "deleted consumer the query\n")
    assert here("consumers", "delete", "the query", "--yes").code == 1
    names = {each["name"] for each in json.loads(here("consumers", "list", "-o", "json").out)}
    assert "the query" not in names
    assert "the client" in names


def test_reset_prints_a_dry_run_and_then_moves_the_position(here, served, readers):
    def reset(*options: str) -> Any:
        return here("consumers", "reset", "the client", "--topic", readers, *options)

    plan = reset("--to", "earliest", "--dry-run")
    assert (plan.code, plan.err) == (0, "dry run: no position changed\n")
    for word in ("topic", "partition", "from", "to", readers, "5", "0"):
        assert word in plan.out
    assert _position(served, "the client") == 5
    done = reset("--to", "earliest")
    assert (done.code, done.out, done.err) == (0, plan.out, "")
    assert _position(served, "the client") == 0
    done = reset("--to", "3", "--partition", "0", "-o", "json")
    assert json.loads(done.out) == [{"topic": readers, "partition": 0, "from": 0, "to": 3}]
    assert _position(served, "the client") == 3
    reset("--to", "1d")
    assert _position(served, "the client") == 0
    reset("--to", "2999-01-01")
    assert _position(served, "the client") == 5


def _position(served: Served, name: str) -> int:
    [found] = served.log.describe_consumer(name)
    return found.partitions[0].offset


@pytest.mark.parametrize("to", ["-3", "yesterday", ""])
def test_reset_to_an_invalid_position_is_refused(here, readers, to):
    shown = here("consumers", "reset", "the client", f"--to={to}")
    assert (shown.code, shown.out) == (2, "")
    assert "earliest, latest, an offset or a time" in shown.err


def test_reset_of_a_query_is_refused_with_a_hint(here, readers):
    shown = here("consumers", "reset", "the query", "--to", "earliest")
    assert shown.code == 1
    assert "Spark query" in shown.err


def test_the_last_lost_member_of_a_group_is_shown(capsys):
    group = GroupDescription(epoch=3, members=())
    lost = ConsumerDescription(
        name="billing", kind="client", group=group, lost_member="m1", lost_ms=60_000
    )
    show_consumer([lost], 180_000, Listing.TABLE)
    (line,) = (each for each in capsys.readouterr().out.splitlines() if "lost member" in each)
    assert "m1, 2 min ago" in line
