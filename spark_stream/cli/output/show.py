"""Topics and brokers, for people as tables and for programs as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from spark_stream.cli.options import Listing, counted
from spark_stream.cli.output.show_replicas import show_replicas
from spark_stream.cli.texts import as_json, cell
from spark_stream.schema.types import field_type_name
from spark_stream.sql.ddl import schema_text
from spark_stream.wire.cluster_messages import BrokerStatus
from spark_stream.wire.topic_messages import TopicDescription

_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"))
_WIDTH_MAX: Final = 10_000


def show_names(names: list[str], shape: Listing) -> None:
    """Print names of topics: one a line, or a JSON array."""
    if shape is Listing.JSON:
        print(json.dumps(names))
        return
    for name in names:
        print(name)


def show_topic(topic: TopicDescription, shape: Listing, screen: Console | None = None) -> None:
    """Print a topic with its columns, its settings and its partitions."""
    if shape is Listing.JSON:
        print(json.dumps(_topic_facts(topic), indent=2))
        return
    screen = screen or console()
    records = record_count(topic)
    size = _sum_known(each.size for each in topic.partitions)
    sums = f"records {'unknown' if records is None else records}  size {size_text(size, 'unknown')}"
    screen.print(f"[bold]{cell(topic.name)}[/bold]  {sums}")
    altered = counted(topic.schema_version, "time")
    schema = f"  schema altered {altered}" if topic.schema_version else ""
    screen.print(f"id {topic.id}  replication factor {topic.replication_factor}{schema}")
    screen.print(_columns_table(topic))
    screen.print(_partitions_table(topic))
    show_replicas(topic, screen)
    screen.print()
    if topic.warning is not None:
        screen.print(f"warning: {cell(topic.warning)}")
    waiting = [each for each in topic.partitions if each.high_watermark is None and not each.error]
    for each in waiting:
        screen.print(f"partition {each.partition}: its new leader does not know HW and LSO yet")
    for each in topic.partitions:
        if each.error is not None:
            screen.print(f"partition {each.partition}: {cell(str(each.error))}", soft_wrap=True)
    screen.print(_config_table(topic))


def record_count(topic: TopicDescription) -> int | None:
    """Return how many records the topic has; None if a partition does not answer."""
    ends = _sum_known(each.log_end_offset for each in topic.partitions)
    starts = _sum_known(each.log_start_offset for each in topic.partitions)
    return None if ends is None or starts is None else ends - starts


def _sum_known(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the numbers is not known."""
    found = list(numbers)
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def show_status(status: BrokerStatus, shape: Listing) -> None:
    """Print the status that a broker reports."""
    facts = as_json(status)
    if shape is Listing.JSON:
        print(json.dumps(facts, indent=2))
        return
    facts["memory"] = size_text(status.memory)
    facts["uptime"] = f"{facts.pop('uptime_s'):.0f} s"
    checked_ms = facts.pop("checked_ms")
    facts["last check of the files"] = (
        "not yet" if checked_ms is None else str(datetime.fromtimestamp(checked_ms // 1000, UTC))
    )
    facts["damaged replicas"] = (
        ", ".join(f"{name} from offset {offset}" for name, offset in facts.pop("damaged").items())
        or "none"
    )
    facts["refused writes"] = (
        ", ".join(f"{name}: {code}" for name, code in facts.pop("refused").items()) or "none"
    )
    facts["principals"] = ", ".join(
        f"{name} {counted(use.connections, 'connection')}"
        for name, use in status.principals.items()
    )
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), cell(str(value)))
    console().print(table)


def console() -> Console:
    """Return a console on standard output, for tables."""
    # In a pipe or a file a table is as wide as it needs to be: only a terminal has a width.
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_MAX)


def size_text(size: int | None, unknown: str = "-") -> str:
    """Return a number of bytes in a few characters."""
    if size is None:
        return unknown
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def _columns_table(topic: TopicDescription) -> Table:
    table = Table("column")
    table.add_column("type", overflow="fold")
    table.add_column("nullable")
    for field in topic.schema:
        table.add_row(cell(field.name), cell(field_type_name(field)), _yes(field.nullable))
    return table


def _partitions_table(topic: TopicDescription) -> Table:
    """Return a table of where each partition begins and ends, for every isolation level."""
    # Without lines between them, four offsets of ten digits fit into 80 columns.
    table = Table("partition", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for number in (
        "log start",
        "log end\n(LEO)",
        "high\nwatermark\n(HW)",
        "last\nstable\n(LSO)",
        "open transactions",
        "size",
    ):
        table.add_column(number, justify="right", overflow="fold")
    for each in topic.partitions:
        numbers = (
            each.log_start_offset,
            each.log_end_offset,
            each.high_watermark,
            each.last_stable_offset,
            each.open_transactions,
        )
        table.add_row(
            str(each.partition),
            *("-" if number is None else str(number) for number in numbers),
            size_text(each.size),
        )
    return table


def _config_table(topic: TopicDescription) -> Table:
    table = Table("setting", "value")
    for name, value in topic.config.items():
        table.add_row(cell(name), cell(value))
    return table


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _topic_facts(topic: TopicDescription) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id,
        "schema": schema_text(topic.schema),
        "columns": [
            {
                "name": field.name,
                "type": field_type_name(field),
                "arrow": str(field.type),
                "nullable": field.nullable,
            }
            for field in topic.schema
        ],
        "schema_version": topic.schema_version,
        "replication_factor": topic.replication_factor,
        "warning": topic.warning,
        "config": dict(topic.config),
        "partitions": as_json(topic.partitions),
    }
