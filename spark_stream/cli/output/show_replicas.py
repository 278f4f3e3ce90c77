"""The leader of each partition of a topic, its replicas, and which of them are in sync."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from spark_stream.cli.texts import cell
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription

_LEAST_IN_SYNC: Final = "min.insync.replicas"
_WIDTH: Final = 80
_TITLES: Final = ("partition", "leader", "epoch", "replicas", "in sync (ISR)", "lag")


class _Row(NamedTuple):
    """A row of the table: partitions with the same texts share one."""

    leader: str
    epoch: str
    replicas: str
    isr: str
    lag: str


def show_replicas(topic: TopicDescription, screen: Console) -> None:
    """Print a table, or lines if broker ids are too long for one; then any problems."""
    rows: dict[_Row, list[int]] = {}
    for each in topic.partitions:
        rows.setdefault(_row(each), []).append(each.partition)
    table = [(drawn_together(partitions), *row) for row, partitions in rows.items()]
    widths = [max(len(cell) for cell in column) for column in zip(_TITLES, *table, strict=True)]
    if sum(widths) + 2 * len(widths) <= _WIDTH:
        screen.print(_table(table))
    else:
        for row, partitions in rows.items():
            for line in _lines(row, drawn_together(partitions)):
                screen.print(cell(line), soft_wrap=True)
    for line in (*_moves(topic), *_amiss(topic)):
        screen.print(cell(line), soft_wrap=True)


def drawn_together(numbers: list[int], to: str = " to ", between: str = ", ") -> str:
    """Write rising numbers with each run as its first and last: ``0 to 3, 7``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return between.join(str(run[0]) if len(run) == 1 else f"{run[0]}{to}{run[-1]}" for run in found)


def _row(partition: PartitionDescription) -> _Row:
    return _Row(
        partition.leader or "nobody",
        str(partition.leader_epoch),
        ", ".join(partition.replicas),
        ", ".join(partition.isr),
        ", ".join(_behind(partition)),
    )


def _behind(partition: PartitionDescription) -> Iterator[str]:
    """Yield the followers that lack entries, as far as the leader knows."""
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
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for title in _TITLES:
        table.add_column(title)
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
    """Yield lines about the moves that are under way."""
    moves: dict[tuple[str, str], list[int]] = {}
    for each in topic.partitions:
        if each.adding or each.removing:
            comes = (broker for broker in each.adding if broker not in each.removing)
            brings, takes = ", ".join(comes), ", ".join(each.removing)
            moves.setdefault((brings, takes), []).append(each.partition)
    for (brings, takes), numbers in moves.items():
        which = "partition" if len(numbers) == 1 else "partitions"
        way = (f" from {takes}" if takes else "") + (f" to {brings}" if brings else "")
        yield f"{which} {drawn_together(numbers)}: under way{way}"


def _amiss(topic: TopicDescription) -> Iterator[str]:
    """Yield how missing in-sync replicas affect readers and producers."""
    least = int(topic.config.get(_LEAST_IN_SYNC, "1"))
    few = [
        each.partition
        for each in topic.partitions
        if len(each.isr) < min(least, len(each.replicas))
    ]
    if few:
        which = "partition" if len(few) == 1 else "partitions"
        yield f"{which} {drawn_together(few)}: fewer in sync than {_LEAST_IN_SYNC}={least}"
        yield "  the high watermark stands, and producers that ask for read_committed are refused"
