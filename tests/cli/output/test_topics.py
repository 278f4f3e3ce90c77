"""Topics on a screen of 80 columns: every number whole, every title there."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from isolog.errors import LeaderUnavailable
from spark_stream.cli.commands.topic import delete_question
from spark_stream.cli.commands.transactions import Aged, show_transactions
from spark_stream.cli.options import Listing
from spark_stream.cli.output.topics import show_topic
from spark_stream.sql.ddl import parse_schema
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription
from spark_stream.wire.transaction_messages import TransactionDescription

A, B, C = (name + "0123456789abcdef" * 2 for name in "abc")


def partition(number: int, leader: str, epoch: int, *others: str) -> PartitionDescription:
    """Only the first of the others is in sync; the last is behind."""
    end = 1_234_567_890
    return PartitionDescription(
        number,
        leader,
        epoch,
        (leader, *others),
        (leader, *others[:1]),
        1_000_000_000,
        end,
        end - 1,
        end - 2,
        10**12,
        3,
        {other: place * 7 for place, other in enumerate(others)},
    )


def test_a_topic_can_be_read_at_80_columns():
    topic = TopicDescription(
        "flights",
        "0123456789abcdef" * 2,
        parse_schema("id bigint, s struct<a:array<map<string,timestamp>>,b:decimal(38,10),c:int>"),
        {"retention.ms": "604800000"},
        tuple(partition(number, A, 7, *((B, C) if number == 3 else ())) for number in range(5)),
    )
    out = io.StringIO()
    show_topic(topic, Listing.TABLE, Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines if A not in line) <= 80
    assert "…" not in out.getvalue()
    [row] = [line for line in lines if line.startswith("2 ") and "GiB" in line]
    end = 1_234_567_890
    numbers = ["1000000000", str(end), str(end - 1), str(end - 2)]
    assert row.split() == ["2", *numbers, "3", "931.3", "GiB"]
    for word in (
        "LEO",
        "HW",
        "LSO",
        "0 to 2, 4",
        "retention.ms",
        "open",
        f"leader of 0 to 2, 4: {A}, epoch 7\nleader of 3: {A}, epoch 7\n",
        f"  replicas {A}, {B}, {C}; in sync (ISR): {A}, {B}\n",
        f"  behind the leader: {C} by 7 entries\n",
    ):
        assert word in out.getvalue()


def test_a_transaction_shows_its_whole_id_at_80_columns():
    name = "query/0123456789abcdef0123456789abcdef/of-a-sink"
    facts = TransactionDescription(
        name, "open", 12, 34, 0, "i" * 32, "", (), (), 900_000, 1_000_000, 1_900_000
    )
    out = io.StringIO()
    aged = Aged.of(facts, 1_060_000, None)
    show_transactions([aged], Listing.TABLE, Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    cells = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert "".join(cells) == name
    assert "open" in out.getvalue()


def away() -> TopicDescription:
    """Describe a topic of two partitions, one of which has no leader."""
    error = LeaderUnavailable("nobody leads it")
    unknown = PartitionDescription(1, None, 1, (A,), (A,), *[None] * 6, error=error)
    return TopicDescription("t", "id", parse_schema("id bigint"), {}, (partition(0, A, 7), unknown))


@pytest.mark.parametrize("shape", list(Listing))
def test_no_number_is_shown_of_a_partition_that_cannot_be_asked(shape, capsys):
    out = io.StringIO()
    show_topic(away(), shape, Console(file=out, width=200))
    if shape is Listing.JSON:
        facts = json.loads(capsys.readouterr().out)["partitions"][1]
        names = ("log_start_offset", "log_end_offset", "size", "open_transactions")
        assert [facts[name] for name in names] == [None] * 4
    else:
        assert "records unknown  size unknown" in out.getvalue()
        assert re.search(r"^\s*1" + r"\s+-" * 6 + r"\s*$", out.getvalue(), re.MULTILINE)


def test_who_deletes_a_topic_is_asked_with_its_number_of_records_only_where_it_is_known():
    assert delete_question(away()) == "Delete topic t? The number of its records is unknown."
    known = TopicDescription("t", "id", parse_schema("id bigint"), {}, (partition(0, A, 7),))
    assert delete_question(known) == "Delete topic t with its 234567890 records?"
