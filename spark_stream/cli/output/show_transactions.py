"""Transactions, for people as tables and for programs as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, Self

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from spark_stream.cli.options import Listing
from spark_stream.cli.output.show import console
from spark_stream.cli.output.show_replicas import drawn_together
from spark_stream.cli.texts import as_json, cell
from spark_stream.wire.transaction_messages import (
    UNFINISHED,
    TransactionDescription,
    TransactionPartition,
)

_UNDECIDED: Final = "open"
_BEGUN_NEVER: Final = -1
_WIDE: Final = 100
_ID_WIDTH: Final = 24
_NUMBERS: Final = ("number", "producer", "epoch")


class Aged(Struct, frozen=True):
    """A transaction at this moment, by this machine's clock.

    ``age_s`` is None before the first transaction. ``left_s`` is the time to the deadline: negative
    after it, and None unless the transaction is open.
    """

    facts: TransactionDescription
    age_s: float | None
    left_s: float | None
    hangs: bool

    @classmethod
    def of(cls, facts: TransactionDescription, now_ms: int, hangs_after_s: float | None) -> Self:
        """Make one; ``hangs_after_s`` None means its own timeout."""
        if facts.number == _BEGUN_NEVER:
            return cls(facts, None, None, False)
        age_s = max(0.0, (now_ms - facts.began_ms) / 1000)
        left_s = (facts.deadline_ms - now_ms) / 1000
        over = left_s < 0 if hangs_after_s is None else age_s > hangs_after_s
        return cls(
            facts,
            age_s,
            left_s if facts.state == _UNDECIDED else None,
            over and facts.state in UNFINISHED,
        )

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = as_json(self.facts)
        return shown | {
            "age_s": self.age_s,
            "deadline_in_s": self.left_s,
            "hangs": self.hangs,
        }


class ReadableRange(Struct, frozen=True):
    """The bound of readers under read_committed in a partition, and its end."""

    last_stable_offset: int
    log_end_offset: int


def show_transactions(found: list[Aged], shape: Listing, out: Console | None = None) -> None:
    """Print all transactions, one a line; those that hang are marked."""
    if shape is Listing.JSON:
        print(json.dumps([each.as_json() for each in found], indent=2))
        return
    out = out or console()
    wide = out.width >= _WIDE  # a narrow one still has room for the whole id, which `abort` needs
    table = Table()
    table.add_column("transactional id", overflow="fold", min_width=_ID_WIDTH)
    table.add_column("state", no_wrap=True)
    for name in (*(_NUMBERS if wide else ()), "age", "deadline in"):
        table.add_column(name, justify="right", no_wrap=wide)
    table.add_column("partitions", overflow="fold")
    is_known = any(each.facts.principal for each in found)
    if is_known:
        table.add_column("principal", overflow="fold")
    is_named = any(each.facts.query_name for each in found)
    if is_named:
        table.add_column("query name", overflow="fold")
    for each in found:
        facts = each.facts
        numbers = (facts.number, facts.producer_id, facts.epoch)
        table.add_row(
            cell(facts.transactional_id),
            _state(each),
            *(map(_or_dash, numbers) if wide else ()),
            "-" if each.age_s is None else duration(each.age_s),
            "-" if each.left_s is None else duration(each.left_s),
            cell(places(facts.partitions)),
            *([cell(facts.principal) or "-"] if is_known else ()),
            *([cell(facts.query_name) or "-"] if is_named else ()),
        )
    out.print(table)


def show_transaction(
    found: Aged, ends: Mapping[tuple[str, int], ReadableRange], shape: Listing
) -> None:
    """Print one transaction with all fields; ``ends`` by topic and partition, where it is known."""
    if shape is Listing.JSON:
        shown = found.as_json()
        for place in shown["partitions"]:
            there = ends.get((place["topic"], place["partition"]))
            place["last_stable_offset"] = None if there is None else there.last_stable_offset
            place["log_end_offset"] = None if there is None else there.log_end_offset
        print(json.dumps(shown, indent=2))
        return
    facts = found.facts
    table = Table(show_header=False)
    rows = (
        ("transactional id", cell(facts.transactional_id)),
        ("state", _state(found)),
        ("transaction", _or_dash(facts.number)),
        ("begun", "-" if found.age_s is None else f"{duration(found.age_s)} ago"),
        ("timeout", duration(facts.timeout_ms / 1000)),
        ("deadline in", "-" if found.left_s is None else duration(found.left_s)),
        ("producer id, epoch", f"{_or_dash(facts.producer_id)}, {_or_dash(facts.epoch)}"),
        ("branches", ", ".join(map(str, facts.branches)) or "-"),
        ("query of the sink", cell(facts.query) or "-"),
        *([("name of the query", cell(facts.query_name))] if facts.query_name else []),
        ("last committed batch of the sink", _or_dash(facts.committed_batch)),
        *([("principal", cell(facts.principal))] if facts.principal else []),
    )
    for name, value in rows:
        table.add_row(name, value)
    console().print(table)
    if facts.partitions:
        console().print(_partitions_table(facts.partitions, ends))


def _partitions_table(
    partitions: Iterable[TransactionPartition], ends: Mapping[tuple[str, int], ReadableRange]
) -> Table:
    table = Table("topic")
    for name in (
        "partition",
        "first offset",
        "last stable (LSO)",
        "log end (LEO)",
        "held back",
    ):
        table.add_column(name, justify="right")
    for each in sorted(partitions, key=_place):
        there = ends.get((each.topic, each.partition))
        table.add_row(
            cell(each.topic),
            str(each.partition),
            "-" if each.first_offset is None else str(each.first_offset),
            "-" if there is None else str(there.last_stable_offset),
            "-" if there is None else str(there.log_end_offset),
            "-" if each.held_back is None else str(each.held_back),
        )
    return table


def places(partitions: Iterable[TransactionPartition]) -> str:
    """List topics with their partitions: ``copies 0, flights 0-3,7``."""
    ordered = sorted(partitions, key=_place)
    return ", ".join(
        f"{topic} {drawn_together([each.partition for each in group], '-', ',')}"
        for topic, group in groupby(ordered, key=lambda each: each.topic)
    )


def _place(partition: TransactionPartition) -> tuple[str, int]:
    return partition.topic, partition.partition


def duration(seconds: float) -> str:
    """Write a duration in at most two units: ``0.3 s``, ``4 min 10 s``, ``-2 h 5 min``."""
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if round(seconds, 1) < 10:
        return f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    for size, name, part, of_part in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{sign}{whole // size} {name}" + (f" {rest} {of_part}" if rest else "")
    return f"{sign}{whole} s"


def _state(found: Aged) -> str:
    return f"[bold red]{found.facts.state} (hangs)[/]" if found.hangs else found.facts.state


def _or_dash(value: int) -> str:
    return "-" if value < 0 else str(value)
