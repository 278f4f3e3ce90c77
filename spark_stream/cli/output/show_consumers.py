"""Consumers by name, for people as tables and for programs as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from spark_stream.cli.options import Listing
from spark_stream.cli.output.show import console
from spark_stream.cli.output.show_transactions import duration
from spark_stream.cli.texts import as_json
from spark_stream.wire.consumer_messages import ConsumerDescription


def show_consumers(found: Sequence[ConsumerDescription], now_ms: int, shape: Listing) -> None:
    """Print all consumers, one a line."""
    if shape is Listing.JSON:
        print(json.dumps([_as_json(each) for each in found], indent=2))
        return
    table = Table()
    table.add_column("name", overflow="fold")
    table.add_column("kind")
    table.add_column("isolation", overflow="fold")
    table.add_column("topics", overflow="fold")
    table.add_column("lag", justify="right")
    table.add_column("last recorded", justify="right")
    for each in found:
        topics = dict.fromkeys(at.topic for at in each.partitions)
        table.add_row(
            escape(each.name),
            each.kind,
            each.isolation or "-",
            escape(", ".join(topics) or each.selection or "-"),
            _number(each.lag),
            _ago(each.recorded_ms, now_ms),
        )
    console().print(table)


def show_consumer(found: Sequence[ConsumerDescription], now_ms: int, shape: Listing) -> None:
    """Print what is stored under one name: of a query, of a client, or of both."""
    if shape is Listing.JSON:
        print(json.dumps([_as_json(each) for each in found], indent=2))
        return
    for each in found:
        facts = Table(show_header=False)
        rows: list[tuple[str, str]] = [("name", each.name), ("kind", each.kind)]
        if each.kind == "query":
            rows += [
                ("isolation", each.isolation or "-"),
                ("reads", each.selection or "-"),
                ("first started", _ago(each.started_ms, now_ms)),
                ("started by", each.starting or "-"),
                ("last recorded", _ago(each.recorded_ms, now_ms)),
            ]
        rows.append(("lag", _number(each.lag)))
        for name, value in rows:
            facts.add_row(name, escape(value))
        console().print(facts)
        if each.partitions:
            console().print(_partitions(each))


def _partitions(consumer: ConsumerDescription) -> Table:
    table = Table("topic")
    for name in ("partition", "offset", "end", "lag"):
        table.add_column(name, justify="right")
    for each in consumer.partitions:
        end = "topic is gone" if each.end is None else str(each.end)
        table.add_row(
            escape(each.topic), str(each.partition), str(each.offset), end, _number(each.lag)
        )
    return table


def _as_json(found: ConsumerDescription) -> dict[str, Any]:
    shown: dict[str, Any] = as_json(found) | {"lag": found.lag}
    for place, each in zip(shown["partitions"], found.partitions, strict=True):
        place["lag"] = each.lag
    return shown


def _ago(moment_ms: int | None, now_ms: int) -> str:
    if moment_ms is None:
        return "-"
    return f"{duration(max(0.0, (now_ms - moment_ms) / 1000))} ago"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
