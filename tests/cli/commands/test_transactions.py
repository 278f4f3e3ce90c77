"""``isolog transactions`` and ``sinks``, ``produce --transactional``, and ``topic describe``."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from spark_stream import errors
from spark_stream.cli.commands.transactions import AgedTransaction, partitions_text
from spark_stream.cli.output.texts import duration
from spark_stream.client.writing.producer import Producer
from spark_stream.sql.ddl import parse_schema
from spark_stream.wire.transaction_messages import (
    AbortTransaction,
    CommitTransaction,
    OpenBranch,
    TransactionDescription,
    TransactionPartition,
)
from tests.cli.commands.test_produce import ROWS, SCHEMA, ended, files
from tests.cli.conftest import TIMEOUT_S, Call, Served


@pytest.fixture
def here(served, call, monkeypatch) -> Call:
    """Commands in this process with the address of the broker."""
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    return call


@contextmanager
def writing(
    served: Served, transactional_id: str, topic: str, records: int = 2
) -> Iterator[Producer]:
    """A producer whose transaction stays open, with records in partition 0 (acknowledged)."""
    producer = served.log.producer(transactional_id=transactional_id)
    try:
        producer.begin_transaction()
        for number in range(records):
            producer.send(topic, f"{transactional_id} {number}", partition=0)
        producer.flush()
        yield producer
    finally:
        with suppress(errors.IsologError):
            producer.abort_transaction()
        with suppress(errors.IsologError):
            producer.close()


def listed(here: Call, *arguments: str) -> dict[str, dict[str, object]]:
    """Return the output of ``transactions list`` by transactional id."""
    shown = here("transactions", "list", *arguments, "--output", "json")
    assert (shown.code, shown.err) == (0, "")
    return {each["transactional_id"]: each for each in json.loads(shown.out)}


# -- transactions ----------------------------------------------------------------------------------


def test_list_shows_open_and_finished_transactions(served, here):
    served.log.create_topic("listing", partitions=3)
    with served.log.producer(transactional_id="done") as producer, producer.transaction():
        producer.send("listing", "x", partition=1)
    with writing(served, "at-it", "listing"):
        every = listed(here)
        assert {"done", "at-it"} <= set(every)
        assert every["done"]["state"] == "committed"
        assert every["done"]["deadline_in_s"] is None
        assert every["at-it"]["state"] == "open"
        assert every["at-it"]["hangs"] is False
        assert 0 <= every["at-it"]["age_s"] < 60
        assert 0 < every["at-it"]["deadline_in_s"] <= every["at-it"]["timeout_ms"] / 1000
        assert every["at-it"]["number"] > every["done"]["number"]
        [place] = every["at-it"]["partitions"]
        assert (place["topic"], place["partition"]) == ("listing", 0)

        assert set(listed(here, "--state", "open")) == {"at-it"}
        assert "at-it" not in listed(here, "--state", "committed")
        table = here("transactions", "list").out
        for word in ("at-it", "open", "listing 0", "committed", "deadline in"):
            assert word in table
    assert listed(here)["at-it"]["state"] == "aborted"
    assert here("transactions", "list", "--state", "over").code == 2


def test_hanging_transactions_are_found_and_marked(served, here):
    served.log.create_topic("hanging")
    with writing(served, "stuck", "hanging"):
        assert "stuck" not in listed(here, "--hanging")  # it has time left
        assert "stuck" not in listed(here, "--hanging", "--longer-than", "3600")
        time.sleep(0.02)
        found = listed(here, "--hanging", "--longer-than", "0.01")
        assert set(found) == {"stuck"}
        assert found["stuck"]["hangs"] is True
        marked = here("transactions", "list", "--longer-than", "0.01").out
        [line] = [line for line in marked.splitlines() if "stuck" in line]
        assert "open (hangs)" in line
        assert "hangs" not in here("transactions", "list").out


def test_describe_shows_the_partitions_of_a_transaction(served, here):
    served.log.create_topic("described")
    with served.log.producer() as producer:
        for number in range(3):
            producer.send("described", f"{number}")
    with writing(served, "seen", "described", records=4):
        shown = here("transactions", "describe", "seen", "--output", "json")
        facts = json.loads(shown.out)
        assert facts["state"] == "open"
        assert facts["committed_batch"] == -1
        assert facts["producer_id"] >= 0
        [place] = facts["partitions"]
        assert place == {
            "topic": "described",
            "partition": 0,
            "first_offset": 3,
            "held_back": 4,
            "last_stable_offset": 3,
            "log_end_offset": 7,
        }
        table = here("transactions", "describe", "seen").out
        for word in ("seen", "open", "timeout", "held back", "described"):
            assert word in table

        partition = json.loads(here("topic", "describe", "described", "-o", "json").out)
        assert partition["partitions"][0]["open_transactions"] == 1
        assert partition["partitions"][0]["last_stable_offset"] == 3
    assert served.log.describe("described").partitions[0].open_transactions == 0

    served.log.delete_topic("described")  # the other fields are still shown
    gone = here("transactions", "describe", "seen")
    assert gone.code == 0, gone.err


def test_abort_releases_readers_and_fences_the_producer(served, here):
    served.log.create_topic("freed")
    with writing(served, "killed", "freed") as producer:
        with served.log.producer() as other:
            other.send("freed", "after").result()
        assert here("consume", "freed", "--isolation", "read_committed").out == ""
        done = here("transactions", "abort", "killed", "--yes")
        assert (done.code, done.out) == (0, "")
        assert "aborted transaction" in done.err
        assert "killed" in done.err
        assert "; it had written to: freed 0\n" in done.err
        again = here("transactions", "abort", "killed", "--yes")
        assert (again.code, again.out) == (0, "")
        assert re.fullmatch(r"transaction \d+ of killed was already aborted\n", again.err)
        assert here("consume", "freed", "--isolation", "read_committed").out == "after\n"
        assert here("consume", "freed").out == "killed 0\nkilled 1\nafter\n"
        with pytest.raises((errors.ProducerFenced, errors.TransactionAborted)):
            producer.commit_transaction()
    assert here("consume", "freed", "--isolation", "read_committed").out == "after\n"


def test_abort_of_a_transaction_without_records_lists_no_partitions(served, here):
    served.log.create_topic("unused")
    with writing(served, "idle", "unused", records=0):
        asked = here("transactions", "abort", "idle")
        assert "of idle, which has not written yet?" in asked.err
        done = here("transactions", "abort", "idle", "--yes")
        assert re.fullmatch(r"aborted transaction \d+ of idle, begun [^;]* ago\n", done.err)


def test_abort_needs_a_confirmation(served, here):
    served.log.create_topic("asked")
    with writing(served, "unsure", "asked") as producer:
        refused = here("transactions", "abort", "unsure")
        assert (refused.code, refused.out) == (2, "")
        number = listed(here)["unsure"]["number"]
        asked = f"Abort transaction {number} of unsure, which has written to: asked 0?"
        assert f"confirmation needs a terminal: {asked}" in refused.err
        assert "--yes" in refused.err
        producer.commit_transaction()
    assert here("consume", "asked", "--isolation", "read_committed").out == "unsure 0\nunsure 1\n"


@pytest.mark.parametrize("command", ["describe", "abort"])
def test_an_unknown_id_is_refused(here, command):
    refused = here("transactions", command, "never-heard-of")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: ")
    assert refused.err.count("\n") == 1
    assert "never-heard-of" in refused.err


def test_finished_transactions_cannot_be_aborted(served, here):
    served.log.create_topic("over")
    with served.log.producer(transactional_id="ended") as producer, producer.transaction():
        producer.send("over", "x")
    refused = here("transactions", "abort", "ended")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: ")
    assert "committed" in refused.err
    assert here("consume", "over", "--isolation", "read_committed").out == "x\n"


# -- produce --transactional -----------------------------------------------------------------------


def test_produce_commits_at_the_end_of_every_format(served, here, tmp_path):
    served.log.create_topic("whole", schema=parse_schema(SCHEMA))
    for file in files(tmp_path):
        sent = here("produce", "whole", "--file", str(file), "--transactional")
        assert (sent.code, sent.out) == (0, "")
        assert sent.err == "3 records to whole, in one transaction\n"
    out = here("consume", "whole", "-o", "json", "--isolation", "read_committed").out
    assert [json.loads(line) for line in out.splitlines()] == 4 * ROWS
    made = [each for name, each in listed(here).items() if name.startswith("produce/")]
    assert [each["state"] for each in made] == ["committed"] * 4


def test_produce_runs_again_with_the_same_transactional_id(served, here):
    served.log.create_topic("named")
    for text in ("a\nb\n", ""):
        sent = served.run(
            "produce", "named", "--transactional", "--transactional-id", "loader", stdin=text
        )
        assert sent.code == 0, sent.err
    assert here("consume", "named", "--isolation", "read_atomic").out == "a\nb\n"
    assert "loader" in listed(here)


def test_produce_aborts_on_bad_input(served, here):
    """The good records of the first block are already in the log, but stay invisible."""
    served.log.create_topic("bad", schema=parse_schema("id bigint"))
    command = ("produce", "bad", "--format", "json", "--transactional", "--transactional-id", "b")
    with served.start(*command) as writer:
        assert writer.stdin is not None
        writer.stdin.write(b'{"id": 1}\n{"id": 2}\n')
        writer.stdin.flush()
        wait_for(served, "bad", 2)
        writer.stdin.write(b'{"id": "x"}\n')
        code, said = ended(writer)
    assert code == 1
    summary, error = said.splitlines()
    assert summary == "0 records to bad: the transaction was not committed"
    assert error.startswith("error: ")
    assert "column 'id'" in error
    assert served.log.read("bad").num_rows == 2
    assert served.log.read("bad", isolation="read_committed").num_rows == 0
    assert listed(here)["b"]["state"] == "aborted"


def test_produce_is_aborted_after_its_timeout(served, here):
    served.log.create_topic("slow")
    command = ("produce", "slow", "--transactional", "--transaction-timeout", "1")
    with served.start(*command, "--transactional-id", "slow") as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"one\n")
        writer.stdin.flush()
        wait_for(served, "slow", 1)
        deadline = time.monotonic() + TIMEOUT_S
        while listed(here)["slow"]["state"] != "aborted":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        code, said = ended(writer)
    assert code == 1
    assert "not committed" in said
    assert here("consume", "slow", "--isolation", "read_committed").out == ""


@pytest.mark.quick("15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_produce_aborts_on_a_signal(served, here, number):
    name = f"stopped-{number.name}"
    served.log.create_topic(name)
    command = ("produce", name, "--transactional", "--transactional-id", name)
    with served.start(*command) as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"one\ntwo\n")
        writer.stdin.flush()
        wait_for(served, name, 2)
        assert listed(here)[name]["state"] == "open"
        writer.send_signal(number)
        assert writer.wait(TIMEOUT_S) != 0
        assert b"not committed" in writer.stderr.read()
    assert listed(here)[name]["state"] == "aborted"
    assert here("consume", name, "--isolation", "read_committed").out == ""
    [partition] = served.log.describe(name).partitions
    assert partition.last_stable_offset == partition.log_end_offset == 2


def wait_for(served: Served, topic: str, records: int) -> None:
    """Wait until the topic's first partition has this many records."""
    deadline = time.monotonic() + TIMEOUT_S
    while served.log.describe(topic).partitions[0].log_end_offset < records:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- output ----------------------------------------------------------------------------------------


def described(
    state: str, *partitions: TransactionPartition, **facts: int
) -> TransactionDescription:
    numbers = {"number": 7, "began_ms": 1_000, "deadline_ms": 61_000} | facts
    return TransactionDescription(
        transactional_id="a", state=state, producer_id=1, epoch=2, query="",
        branches=(), partitions=partitions, timeout_ms=60_000, committed_batch=-1, **numbers,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "now_ms", "longer_than", "hangs"),
    [
        ("open", 61_000, None, False),
        ("open", 61_001, None, True),
        ("committing", 61_001, None, True),  # decided but not finished
        ("committed", 61_001, None, False),
        ("open", 3_000, 2.0, False),
        ("open", 3_001, 2.0, True),
        ("aborted", 99_000, 2.0, False),
    ],
)
def test_transactions_hang_after_their_timeout_or_the_given_limit(
    state, now_ms, longer_than, hangs
):
    assert AgedTransaction.of(described(state), now_ms, longer_than).hangs is hangs


def test_an_id_without_a_transaction_has_no_age():
    aged = AgedTransaction.of(
        described("empty", number=-1, began_ms=0, deadline_ms=0), 99_000, None
    )
    assert (aged.age_s, aged.left_s, aged.hangs) == (None, None, False)


def test_consecutive_partitions_are_joined():
    found = [TransactionPartition("b", n, None) for n in (7, 0, 2, 1)]
    assert partitions_text([*found, TransactionPartition("a", 3, 5)]) == "a 3, b 0-2,7"
    assert partitions_text([]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (250, "4 min 10 s"),
        (-7500, "-2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_are_formatted_with_their_units(seconds, text):
    assert duration(seconds) == text


def test_sink_is_listed_and_deleted_after_a_confirmation(served: Served, here: Call):
    call = served.log._connection.call
    name, query = "sink/copies", "the query"
    asked = OpenBranch.of(transactional_id=name, query=query, instance="run", batch=4)
    branch = call(asked)
    own = {"transactional_id": name, "instance": "run", "number": branch.number}
    call(CommitTransaction.of(**own, branches=[branch.producer_id], batch=4))

    shown = here("sinks", "list", "--output", "json")
    assert (shown.code, shown.err) == (0, "")
    [sink] = json.loads(shown.out)
    assert sink.pop("last_used_ms") > 0
    assert sink == {
        "transactional_id": name,
        "query": query,
        "state": "committed",
        "committed_batch": 4,
        "query_name": "",
    }
    table = here("sinks", "list").out
    for word in (name, query, "committed", "4", "ago"):
        assert word in table

    refused = here("sinks", "delete", name)
    assert (refused.code, refused.out) == (2, "")
    assert (
        "confirmation needs a terminal: Delete sink sink/copies of query the query" in refused.err
    )
    assert here("sinks", "delete", name, "--yes").err == f"deleted sink {name}\n"
    assert json.loads(here("sinks", "list", "--output", "json").out) == []
    missing = here("sinks", "delete", name)
    assert missing.code == 1
    assert "there is no sink 'sink/copies'" in missing.err


def test_query_names_are_shown_in_all_lists(served: Served, here: Call):
    call = served.log._connection.call
    name = "sink/named"
    asked = OpenBranch(
        transactional_id=name, query="an id", instance="run", batch=4, query_name="nightly"
    )
    branch = call(asked)
    assert "nightly" in here("sinks", "list").out
    assert "nightly" in here("transactions", "list", "--state", "open").out
    assert "nightly" in here("transactions", "describe", name).out
    call(AbortTransaction(transactional_id=name, instance="run", number=branch.number))
    assert here("sinks", "delete", name, "--yes").code == 0
