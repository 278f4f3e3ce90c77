"""``isolog transactions``: list, describe, abort. ``isolog sinks``: list, delete.

An open transaction holds back readers under read_committed at its first record in each partition.
It *hangs* if it has exceeded its timeout, or a limit that the operator gives.

The last committed batch of a sink is stored under the sink's id. The id comes from the streaming
query, or from the option ``sinkId``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from spark_stream.cli.options import (
    Bootstrap,
    Listing,
    LogPath,
    Output,
    Yes,
    completed,
    confirm,
    log,
    note,
)
from spark_stream.cli.output.texts import (
    ago,
    as_json,
    cell,
    console,
    duration,
    joined_runs,
    wall_ms,
)
from spark_stream.errors import IsologError

if TYPE_CHECKING:
    from spark_stream.client.log import Log
    from spark_stream.wire.topic_messages import PartitionDescription
    from spark_stream.wire.transaction_messages import (
        SinkDescription,
        TransactionDescription,
        TransactionPartition,
    )

_UNDECIDED: Final = "open"
_BEGUN_NEVER: Final = -1
_WIDE: Final = 100
_ID_WIDTH: Final = 24
_NUMBERS: Final = ("number", "producer", "epoch")


class AgedTransaction(Struct, frozen=True):
    """A transaction with its age by this machine's clock.

    ``age_s`` is None before the first transaction of the id. ``left_s`` is the time to the
    deadline, negative after it, and None unless the transaction is open.
    """

    facts: TransactionDescription
    age_s: float | None
    left_s: float | None
    hangs: bool

    @classmethod
    def of(cls, facts: TransactionDescription, now_ms: int, hangs_after_s: float | None) -> Self:
        """Return the transaction at ``now_ms``. ``hangs_after_s`` None means its timeout."""
        from spark_stream.wire.transaction_messages import UNFINISHED

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
    """The last stable offset of a partition, which bounds read_committed, and its log end."""

    last_stable_offset: int
    log_end_offset: int


def show_transactions(
    found: list[AgedTransaction], shape: Listing, out: Console | None = None
) -> None:
    """Print all transactions, one per line, and mark hanging transactions."""
    if shape is Listing.JSON:
        print(json.dumps([each.as_json() for each in found], indent=2))
        return
    out = out or console()
    wide = out.width >= _WIDE  # a narrow screen still shows the whole id, which `abort` needs
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
            cell(partitions_text(facts.partitions)),
            *([cell(facts.principal) or "-"] if is_known else ()),
            *([cell(facts.query_name) or "-"] if is_named else ()),
        )
    out.print(table)


def show_transaction(
    found: AgedTransaction, ends: Mapping[tuple[str, int], ReadableRange], shape: Listing
) -> None:
    """Print one transaction with all fields. ``ends``: known offsets by topic and partition."""
    if shape is Listing.JSON:
        shown = found.as_json()
        for place in shown["partitions"]:
            offsets = ends.get((place["topic"], place["partition"]))
            place["last_stable_offset"] = None if offsets is None else offsets.last_stable_offset
            place["log_end_offset"] = None if offsets is None else offsets.log_end_offset
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
        ("sink query", cell(facts.query) or "-"),
        *([("query name", cell(facts.query_name))] if facts.query_name else []),
        ("last committed batch", _or_dash(facts.committed_batch)),
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
        offsets = ends.get((each.topic, each.partition))
        table.add_row(
            cell(each.topic),
            str(each.partition),
            "-" if each.first_offset is None else str(each.first_offset),
            "-" if offsets is None else str(offsets.last_stable_offset),
            "-" if offsets is None else str(offsets.log_end_offset),
            "-" if each.held_back is None else str(each.held_back),
        )
    return table


def partitions_text(partitions: Iterable[TransactionPartition]) -> str:
    """Format topics with their partitions: ``copies 0, flights 0-3,7``."""
    ordered = sorted(partitions, key=_place)
    return ", ".join(
        f"{topic} {joined_runs([each.partition for each in group], '-', ',')}"
        for topic, group in groupby(ordered, key=attrgetter("topic"))
    )


def _place(partition: TransactionPartition) -> tuple[str, int]:
    return partition.topic, partition.partition


def _state(found: AgedTransaction) -> str:
    return f"[bold red]{found.facts.state} (hangs)[/]" if found.hangs else found.facts.state


def _or_dash(value: int) -> str:
    return "-" if value < 0 else str(value)


app = typer.Typer(no_args_is_help=True, help="List, describe and abort transactions.")


class ShownState(StrEnum):
    """The states of a transactional id."""

    EMPTY = "empty"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


TransactionalId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The transactional id.",
        show_default=False,
        autocompletion=completed(
            lambda log: (each.transactional_id for each in log.transactions())
        ),
    ),
]


@app.command("list")
def list_transactions(
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    state: Annotated[
        ShownState | None, typer.Option(help="Only transactions in this state.", show_default=False)
    ] = None,
    hanging: Annotated[bool, typer.Option("--hanging", help="Only hanging transactions.")] = False,
    longer_than: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="A transaction that is older hangs. Default: the timeout of each transaction.",
            show_default=False,
        ),
    ] = None,
    output: Output = Listing.TABLE,
) -> None:
    """List all transactional ids with their current or last transaction.

    \b
    isolog transactions list --state open
    isolog transactions list --hanging --longer-than 60
    isolog transactions list --hanging --output json | jq '.[].age_s'
    """
    with log(bootstrap, path) as opened:
        found = _aged(opened.transactions(), longer_than)
    if state is not None:
        found = [each for each in found if each.facts.state == state]
    if hanging:
        found = [each for each in found if each.hangs]
    show_transactions(found, output)


@app.command()
def describe(
    transactional_id: TransactionalId,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    output: Output = Listing.TABLE,
) -> None:
    """Show the transaction of an id, its producer, and the records that it holds back.

    \b
    isolog transactions describe loader-1 --path data/
    """
    with log(bootstrap, path) as opened:
        facts = opened.describe_transaction(transactional_id)
        ends = _readable(opened, facts)
    show_transaction(_aged([facts], None)[0], ends, output)


@app.command()
def abort(
    transactional_id: TransactionalId,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Yes = False,
) -> None:
    """Abort the open transaction of an id, and fence its producer.

    Readers under read_committed continue immediately, and never see its records. The next call of
    the producer fails.

    \b
    isolog transactions abort loader-1 --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        facts = opened.describe_transaction(transactional_id)
        if facts.state in (ShownState.ABORTING, ShownState.ABORTED):
            note(f"transaction {facts.number} of {transactional_id} was already aborted")
            return
        where = partitions_text(facts.partitions)
        if facts.state == ShownState.OPEN:  # the broker refuses any other, and changes nothing
            what = f"transaction {facts.number} of {transactional_id}"
            wrote = f"which has written to: {where}" if where else "which has not written yet"
            confirm(yes, f"Abort {what}, {wrote}?", "abort it")
        ended = opened.abort_transaction(transactional_id)
    [aged] = _aged([ended], None)
    age = "" if aged.age_s is None else f", begun {duration(aged.age_s)} ago"
    where = partitions_text(ended.partitions) or where  # a finished transaction has no partitions
    wrote = f"; it had written to: {where}" if where else ""
    note(f"aborted transaction {ended.number} of {transactional_id}{age}{wrote}")


def _aged(
    found: list[TransactionDescription], hangs_after_s: float | None
) -> list[AgedTransaction]:
    now_ms = wall_ms()
    return [AgedTransaction.of(each, now_ms, hangs_after_s) for each in found]


def _readable(opened: Log, facts: TransactionDescription) -> dict[tuple[str, int], ReadableRange]:
    """Return the offsets of the partitions that answer."""
    known: dict[tuple[str, int], PartitionDescription] = {}
    for topic in sorted({each.topic for each in facts.partitions}):
        try:
            described = opened.describe(topic).partitions
        except IsologError:  # deleted or unavailable: show the transaction without its offsets
            continue
        known |= {(topic, each.partition): each for each in described}
    return {
        place: ReadableRange(each.last_stable_offset, each.log_end_offset)
        for place, each in known.items()
        if each.last_stable_offset is not None and each.log_end_offset is not None
    }


sinks = typer.Typer(no_args_is_help=True, help="List and delete the sinks of queries.")

SinkId = Annotated[
    str,
    typer.Argument(metavar="ID", help="Id of the sink, from `list`.", show_default=False),
]


@sinks.command("list")
def list_sinks(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List all sinks with their query and their last committed batch.

    \b
    isolog sinks list --path data/
    isolog sinks list --output json | jq '.[] | select(.state == "expired") | .transactional_id'
    """
    with log(bootstrap, path) as opened:
        found = opened.sinks()
    if output is Listing.JSON:
        print(json.dumps(as_json(found), indent=2))
        return
    now_ms = wall_ms()
    table = Table()
    table.add_column("sink id", overflow="fold")
    table.add_column("query", overflow="fold")
    table.add_column("state")
    table.add_column("last batch", justify="right")
    table.add_column("last used", justify="right")
    for each in found:
        table.add_row(
            cell(each.transactional_id),
            cell(each.query_name or each.query),
            each.state,
            _last_batch(each),
            ago(each.last_used_ms, now_ms),
        )
    console().print(table)


@sinks.command()
def delete(
    sink_id: SinkId, bootstrap: Bootstrap = None, path: LogPath = None, yes: Yes = False
) -> None:
    """Delete a sink. Another query may then use its id.

    The record of its last committed batch is deleted too. If the query of the sink starts again and
    retries that batch, the batch is written twice.

    \b
    isolog sinks delete sink/departures --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        for each in opened.sinks():
            if each.transactional_id == sink_id:  # the broker refuses an unknown id
                what = f"sink {sink_id} of query {each.query}, last batch {_last_batch(each)}"
                confirm(yes, f"Delete {what}?", "delete it")
        opened.delete_sink(sink_id)
    note(f"deleted sink {sink_id}")


def _last_batch(sink: SinkDescription) -> str:
    return "-" if sink.committed_batch < 0 else str(sink.committed_batch)
