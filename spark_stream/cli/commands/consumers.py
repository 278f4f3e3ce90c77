"""``isolog consumers``: list, describe, reset, delete.

The metadata store has an entry for each name of a consumer: the position of a named client
consumer, the positions and members of a consumer group, or the first offsets and the progress of a
Spark query with the option ``consumer``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from spark_stream.cli.options import (
    Bootstrap,
    Isolation,
    Listing,
    LogPath,
    Output,
    Yes,
    completed,
    confirm,
    counted,
    log,
    note,
    position_of,
)
from spark_stream.cli.output.texts import ago, as_json, cell, console, duration, state_text, wall_ms
from spark_stream.errors import InvalidOption

if TYPE_CHECKING:
    from spark_stream.client.consumers import MovedPosition
    from spark_stream.wire.consumer_messages import ConsumerDescription, GroupDescription


def show_consumers(found: Sequence[ConsumerDescription], now_ms: int, shape: Listing) -> None:
    """Print all consumers, one per line."""
    if shape is Listing.JSON:
        print(json.dumps([_as_json(each) for each in found], indent=2))
        return
    table = Table()
    table.add_column("name", overflow="fold")
    table.add_column("kind")
    table.add_column("state")
    table.add_column("isolation", overflow="fold")
    table.add_column("topics", overflow="fold")
    table.add_column("lag", justify="right")
    table.add_column("held back", justify="right")
    table.add_column("last recorded", justify="right")
    is_known = any(each.principal for each in found)
    if is_known:
        table.add_column("principal", overflow="fold")
    for each in found:
        topics = dict.fromkeys(at.topic for at in each.partitions)
        table.add_row(
            cell(each.name),
            each.owned_by,
            state_text(each.state),
            each.isolation or "-",
            cell(", ".join(topics) or each.selection or "-"),
            _number(each.lag),
            _number(each.held_back or None),
            ago(each.recorded_ms, now_ms),
            *([cell(each.principal) or "-"] if is_known else ()),
        )
    console().print(table)


def show_consumer(found: Sequence[ConsumerDescription], now_ms: int, shape: Listing) -> None:
    """Print the entries of one name: of a query, of a client or group, or of both."""
    if shape is Listing.JSON:
        print(json.dumps([_as_json(each) for each in found], indent=2))
        return
    for each in found:
        facts = Table(show_header=False)
        rows: list[tuple[str, str]] = [("name", each.name), ("kind", each.owned_by)]
        rows.append(("state", state_text(each.state)))
        if each.kind == "query":
            rows += [
                ("isolation", each.isolation or "-"),
                ("reads", each.selection or "-"),
                ("first started", ago(each.started_ms, now_ms)),
                ("started by", each.starting or "-"),
                ("last recorded", ago(each.recorded_ms, now_ms)),
            ]
        rows += [("principal", each.principal)] if each.principal else []
        rows += [("lag", _number(each.lag)), ("held back", _number(each.held_back or None))]
        if each.lost_ms is not None:
            rows.append(("last lost member", f"{each.lost_member}, {ago(each.lost_ms, now_ms)}"))
        for name, value in rows:
            facts.add_row(name, cell(value))
        console().print(facts)
        if each.group is not None:
            console().print(_members(each.group))
        if each.partitions:
            console().print(_partitions(each))


def _members(group: GroupDescription) -> Table:
    table = Table("member", "topics", "isolation", "principal")
    for name in ("session", "partitions"):
        table.add_column(name, justify="right")
    for each in group.members:
        table.add_row(
            each.id,
            cell(", ".join(each.topics)),
            each.isolation,
            cell(each.principal) or "-",
            duration(each.session_ms / 1000),
            str(each.partitions),
        )
    return table


def _partitions(consumer: ConsumerDescription) -> Table:
    table = Table("topic")
    for name in ("partition", "offset", "end", "lag", "held back"):
        table.add_column(name, justify="right")
    if consumer.group is not None:
        table.add_column("member")
    for each in consumer.partitions:
        end = "unknown" if each.end is None else str(each.end)
        table.add_row(
            cell(each.topic),
            str(each.partition),
            str(each.offset),
            end,
            _number(each.lag),
            _number(each.held_back or None),
            *([] if consumer.group is None else [each.member or "-"]),
        )
    return table


def show_moved(moved: Sequence[MovedPosition], shape: Listing) -> None:
    """Print the positions before and after a reset, one partition per line."""
    if shape is Listing.JSON:
        rows = [
            {"topic": at.topic, "partition": at.partition, "from": at.before, "to": at.after}
            for at in moved
        ]
        print(json.dumps(rows, indent=2))
        return
    table = Table("topic")
    for name in ("partition", "from", "to"):
        table.add_column(name, justify="right")
    for at in moved:
        table.add_row(cell(at.topic), str(at.partition), _number(at.before), str(at.after))
    console().print(table)


def _as_json(found: ConsumerDescription) -> dict[str, Any]:
    shown: dict[str, Any] = as_json(found) | {
        "state": found.state,
        "lag": found.lag,
        "held_back": found.held_back,
    }
    for place, each in zip(shown["partitions"], found.partitions, strict=True):
        place["lag"] = each.lag
    return shown


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumers.")

ConsumerName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the consumer.",
        show_default=False,
        autocompletion=completed(lambda log: {each.name for each in log.consumers()}),
    ),
]


@app.command("list")
def list_consumers(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List consumers: named clients, groups, and Spark queries with the option "consumer".

    \b
    isolog consumers list --path data/
    isolog consumers list --output json | jq '.[] | select(.lag > 1000) | .name'
    """
    with log(bootstrap, path) as opened:
        found = opened.consumers()
    show_consumers(found, wall_ms(), output)


@app.command()
def describe(
    name: ConsumerName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    output: Output = Listing.TABLE,
) -> None:
    """Show the position and the lag of a consumer in each partition, and the members of a group.

    Under read_uncommitted the lag is the distance to the log end, else to the high watermark. It
    includes records that an open transaction holds back.

    \b
    isolog consumers describe departures --path data/
    """
    with log(bootstrap, path) as opened:
        found = opened.describe_consumer(name)
    show_consumer(found, wall_ms(), output)


@app.command()
def reset(
    name: ConsumerName,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="earliest, latest, an offset, a time (2024-05-01T12:30:00Z, UTC without a zone),"
            " or an age (90s, 30m, 1h, 2d).",
            show_default=False,
        ),
    ],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Only this topic. Repeatable. Default: all topics with a stored position.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Only this partition. Repeatable."),
    ] = None,
    isolation: Isolation = "read_uncommitted",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the new positions.")
    ] = False,
    output: Output = Listing.TABLE,
) -> None:
    """Set the position of a named client consumer or a group, where its next consumer starts.

    Close the members of a group first. A running consumer of the name gets an error. An offset
    outside of a partition is replaced by its first offset or its end.

    \b
    isolog consumers reset billing --to earliest --path data/ --dry-run
    isolog consumers reset billing --to 2024-05-01T12:30:00Z --path data/
    isolog consumers reset billing --to 120 --topic orders --partition 3 --path data/
    """
    position = position_of("--to", to)
    if isinstance(position, int) and position < 0:
        raise InvalidOption(
            f"--to takes earliest, latest, an offset or a time, not {to!r}",
            hint="An offset is at least 0.",
            option="--to",
        )
    with log(bootstrap, path) as opened:
        moved = opened.reset_consumer(
            name,
            position,
            topics=topic,
            partitions=partition,
            isolation=isolation,
            dry_run=dry_run,
        )
    show_moved(moved, output)
    if dry_run:
        note("dry run: no position changed")


@app.command()
def delete(
    name: ConsumerName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Yes = False,
) -> None:
    """Delete the entry of a name: a query's start, or the positions of a client or a group.

    A query that later starts under the name with a new checkpoint starts at the offsets of its
    options. A running query continues, and is listed again after its next records. A running client
    consumer loses its name and gets an error. The running members of a group rejoin it.

    \b
    isolog consumers delete departures --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        what = " and ".join(map(_entry, opened.describe_consumer(name)))
        confirm(yes, f"Delete, for consumer {name}, {what}?", "delete it")
        opened.delete_consumer(name)
    note(f"deleted consumer {name}")


def _entry(consumer: ConsumerDescription) -> str:
    if consumer.kind == "query":
        return "the first offsets and the progress of a query"
    if consumer.group is not None:
        return f"the positions of a group with {counted(len(consumer.group.members), 'member')}"
    return "the positions of a client"
