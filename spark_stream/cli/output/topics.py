"""Topics as tables for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from spark_stream.cli.options import Listing, counted
from spark_stream.cli.output.texts import (
    ago,
    as_json,
    cell,
    console,
    joined_runs,
    plain_table,
    size_text,
    wall_ms,
)
from spark_stream.schema.types import field_type_name
from spark_stream.sql.ddl import schema_text
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription

if TYPE_CHECKING:
    from spark_stream.lake_worker.status import TopicTable

_LEAST_IN_SYNC: Final = "min.insync.replicas"
_WIDTH: Final = 80
_TITLES: Final = ("partition", "leader", "epoch", "replicas", "in sync (ISR)", "lag")


def show_names(names: list[str], shape: Listing) -> None:
    """Print names of topics, one per line or as a JSON array."""
    if shape is Listing.JSON:
        print(json.dumps(names))
        return
    for name in names:
        print(name)


def show_topic(
    topic: TopicDescription,
    shape: Listing,
    screen: Console | None = None,
    *,
    tables: Sequence[TopicTable] = (),
) -> None:
    """Print a topic with its columns, its settings and its partitions.

    ``tables``: those with records that its log has lost.
    """
    if shape is Listing.JSON:
        print(json.dumps(_topic_facts(topic, tables), indent=2))
        return
    screen = screen or console()
    records = record_count(topic)
    size = _sum_known(each.size for each in topic.partitions)
    sums = f"records {'unknown' if records is None else records}  size {size_text(size, 'unknown')}"
    if older := _older_count(topic, tables):
        sums += f"  older records in tables {older}"
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
        screen.print(
            f"partition {each.partition}: the new leader has not determined HW and LSO yet"
        )
    for each in topic.partitions:
        if each.error is not None:
            screen.print(f"partition {each.partition}: {cell(str(each.error))}", soft_wrap=True)
    for lake in topic.lakes:
        report = ago(lake.recorded_ms, wall_ms())
        screen.print(f"lake {cell(lake.name)}: last report of its worker {report}", soft_wrap=True)
    if any(each.offsets for each in tables):
        screen.print(_tables_table(tables))
    for of in tables:
        if of.problem is not None:
            screen.print(f"lake {cell(of.lake)}: {cell(str(of.problem))}", soft_wrap=True)
    screen.print(_config_table(topic))


def _older_count(topic: TopicDescription, tables: Sequence[TopicTable]) -> int:
    """Return the number of offsets below the log start that a table has."""
    return sum(
        max(
            (
                min(have.end, each.log_start_offset or 0) - have.first
                for of in tables
                if (have := of.offsets.get(each.partition)) is not None
                and have.first < (each.log_start_offset or 0)
            ),
            default=0,
        )
        for each in topic.partitions
    )


def _tables_table(tables: Sequence[TopicTable]) -> Table:
    table = Table("lake")
    for column in ("partition", "from offset", "to offset"):
        table.add_column(column, justify="right")
    for of in tables:
        for partition, have in sorted(of.offsets.items()):
            table.add_row(cell(of.lake), str(partition), str(have.first), str(have.end))
    return table


def record_count(topic: TopicDescription) -> int | None:
    """Return the number of records in the topic. None if a partition does not answer."""
    ends = _sum_known(each.log_end_offset for each in topic.partitions)
    starts = _sum_known(each.log_start_offset for each in topic.partitions)
    return None if ends is None or starts is None else ends - starts


def _sum_known(numbers: Iterable[int | None]) -> int | None:
    """Return the sum. None if one of the numbers is unknown."""
    found = list(numbers)
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None


def _columns_table(topic: TopicDescription) -> Table:
    table = Table("column")
    table.add_column("type", overflow="fold")
    table.add_column("nullable")
    for field in topic.schema:
        table.add_row(cell(field.name), cell(field_type_name(field)), _yes(field.nullable))
    return table


def _partitions_table(topic: TopicDescription) -> Table:
    """Return a table with the bounds of each partition, for every isolation level."""
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


def _topic_facts(topic: TopicDescription, tables: Sequence[TopicTable]) -> dict[str, Any]:
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
        "lakes": [{"name": each.name, "recorded_ms": each.recorded_ms} for each in topic.lakes],
        "tables": [
            {
                "lake": of.lake,
                "location": of.location,
                "offsets": {
                    str(partition): [have.first, have.end]
                    for partition, have in sorted(of.offsets.items())
                },
                "problem": of.problem and of.problem.message,
                "hint": of.problem and of.problem.hint,
            }
            for of in tables
        ],
    }


class _Row(NamedTuple):
    """A row of the table. Partitions with equal texts share a row."""

    leader: str
    epoch: str
    replicas: str
    isr: str
    lag: str


def show_replicas(topic: TopicDescription, screen: Console) -> None:
    """Print a table, or lines if broker ids are too long for a table. Then print any problems."""
    rows: dict[_Row, list[int]] = {}
    for each in topic.partitions:
        rows.setdefault(_row(each), []).append(each.partition)
    table = [(joined_runs(partitions), *row) for row, partitions in rows.items()]
    widths = [max(len(cell) for cell in column) for column in zip(_TITLES, *table, strict=True)]
    if sum(widths) + 2 * len(widths) <= _WIDTH:
        screen.print(_table(table))
    else:
        for row, partitions in rows.items():
            for line in _lines(row, joined_runs(partitions)):
                screen.print(cell(line), soft_wrap=True)
    for line in (*_moves(topic), *_problems(topic)):
        screen.print(cell(line), soft_wrap=True)


def _row(partition: PartitionDescription) -> _Row:
    return _Row(
        partition.leader or "none",
        str(partition.leader_epoch),
        ", ".join(partition.replicas),
        ", ".join(partition.isr),
        ", ".join(_behind(partition)),
    )


def _behind(partition: PartitionDescription) -> Iterator[str]:
    """Yield the followers that lack entries, according to the leader."""
    if partition.error is not None:
        return
    for broker in partition.replicas:
        if broker == partition.leader:
            continue
        lag = partition.lag.get(broker)
        if lag is None:
            is_in_sync = broker in partition.isr
            yield f"{broker} not connected" if is_in_sync else f"{broker} not in sync"
        elif lag:
            yield f"{broker} by {'1 entry' if lag == 1 else f'{lag} entries'}"


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = plain_table(*_TITLES)
    for row in rows:
        table.add_row(*map(cell, row))
    return table


def _lines(row: _Row, partitions: str) -> Iterator[str]:
    yield f"leader of {partitions}: {row.leader}, epoch {row.epoch}"
    if row.replicas != row.leader:
        yield f"  replicas {row.replicas}; in sync (ISR): {row.isr}"
    if row.lag:
        yield f"  behind the leader: {row.lag}"


def _moves(topic: TopicDescription) -> Iterator[str]:
    """Yield lines about moves in progress."""
    moves: dict[tuple[str, str], list[int]] = {}
    for each in topic.partitions:
        if each.adding or each.removing:
            comes = (broker for broker in each.adding if broker not in each.removing)
            brings, takes = ", ".join(comes), ", ".join(each.removing)
            moves.setdefault((brings, takes), []).append(each.partition)
    for (brings, takes), numbers in moves.items():
        which = "partition" if len(numbers) == 1 else "partitions"
        way = (f" from {takes}" if takes else "") + (f" to {brings}" if brings else "")
        yield f"{which} {joined_runs(numbers)}: moving{way}"


def _problems(topic: TopicDescription) -> Iterator[str]:
    """Yield the effects of missing in-sync replicas on readers and producers."""
    least = int(topic.config.get(_LEAST_IN_SYNC, "1"))
    few = [
        each.partition
        for each in topic.partitions
        if len(each.isr) < min(least, len(each.replicas))
    ]
    if few:
        which = "partition" if len(few) == 1 else "partitions"
        yield f"{which} {joined_runs(few)}: fewer in-sync replicas than {_LEAST_IN_SYNC}={least}"
        yield "  the high watermark does not advance, and producers with read_committed are refused"
