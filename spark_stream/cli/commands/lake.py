"""``isolog lake``: create, list, status, run, versions, clean, drop."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from spark_stream.cli.options import (
    Bootstrap,
    Listing,
    LogPath,
    Output,
    Yes,
    completed,
    confirm,
    counted,
    listening_at,
    log,
    note,
    position_of,
    seconds_of,
)
from spark_stream.cli.output.texts import ago, cell, console, duration, size_text, wall_ms
from spark_stream.consistency.lakes import FILE_BYTES_DEFAULT, FRESHNESS_MS_DEFAULT
from spark_stream.errors import InvalidOption

if TYPE_CHECKING:
    from spark_stream.consistency.lakes import LakeDescription
    from spark_stream.lake.steps import Cut
    from spark_stream.lake_worker.status import TopicStatus

app = typer.Typer(help="Copy topics into Delta tables.", no_args_is_help=True)

LakeName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the lake.",
        show_default=False,
        autocompletion=completed(lambda log: [each.name for each in log.lakes()]),
    ),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the lake.")],
    topics: Annotated[
        str, typer.Option(metavar="TOPIC,TOPIC", help="The topics, separated by commas.")
    ],
    location: Annotated[
        str, typer.Option(metavar="DIR", help="Folder of the tables. It contains one per topic.")
    ],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    freshness: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1, help="Time between two versions of the tables."),
    ] = FRESHNESS_MS_DEFAULT // 1_000,
    file_bytes: Annotated[
        int, typer.Option(metavar="BYTES", help="Size up to which adjacent files are merged.")
    ] = FILE_BYTES_DEFAULT,
    iceberg: Annotated[
        str | None,
        typer.Option(
            metavar="CATALOG",
            help="Catalog of pyiceberg where the tables are also Iceberg tables, or"
            " CATALOG.NAMESPACE.",
            show_default=False,
        ),
    ] = None,
    version_retention: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Time for which versions can be read, such as 12h or 90d. Default: 30d.",
            show_default=False,
        ),
    ] = None,
    file_retention: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Time for which files that a merge replaced stay. Default: 7d.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Check the location and the packages of this machine first.")
    ] = True,
) -> None:
    """Create a lake of topics. `isolog lake run` writes its tables.

    \b
    isolog lake create shop --topics orders,audit --location lake/ --path data/
    """
    version_s = seconds_of("--version-retention", version_retention)
    file_s = seconds_of("--file-retention", file_retention)
    with log(bootstrap, path) as opened:
        made = opened.create_lake(
            name,
            _names(topics),
            location,
            freshness=freshness,
            file_bytes=file_bytes,
            iceberg=iceberg,
            version_retention=version_s,
            file_retention=file_s,
            check=check,
        )
    note(f"created lake {made.name} at {made.location}")


@app.command()
def alter(
    name: LakeName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    topics: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC,TOPIC",
            help="All topics that the lake is to have, separated by commas.",
            show_default=False,
        ),
    ] = None,
    freshness: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Time between two versions of the tables.",
            show_default=False,
        ),
    ] = None,
    file_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            help="Size up to which adjacent files are merged.",
            show_default=False,
        ),
    ] = None,
    location: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="New folder of the tables, after they were copied there without a worker.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Look for tables of others in the place of added tables.")
    ] = True,
) -> None:
    """Alter a lake. Its worker follows in its next round.

    The tables of removed topics stay. Readers of such a topic do not find the records any more that
    only its table has.

    \b
    isolog lake alter shop --topics orders,audit,returns --path data/
    isolog lake alter shop --freshness 5 --path data/
    isolog lake alter shop --location /mnt/tables --path data/
    """
    if all(each is None for each in (topics, freshness, file_bytes, location)):
        raise typer.BadParameter("Give --topics, --freshness, --file-bytes or --location.")
    with log(bootstrap, path) as opened:
        names = None if topics is None else _names(topics)
        altered = opened.alter_lake(
            name,
            topics=names,
            freshness=freshness,
            file_bytes=file_bytes,
            location=location,
            check=check,
        )
    moved = f": its tables are at {altered.location}" if location is not None else ""
    note(f"altered lake {altered.name}{moved}")


def _names(given: str) -> list[str]:
    return [each.strip() for each in given.split(",") if each.strip()]


@app.command("list")
def list_(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List the lakes, and whether their workers report.

    \b
    isolog lake list --path data/
    """
    from spark_stream.lake_worker.status import worker_of

    with log(bootstrap, path) as opened:
        found = opened.lakes()
    if output is Listing.JSON:
        rows = [
            {
                "name": each.name,
                "id": each.id,
                "location": each.location,
                "topics": [topic.name for topic in each.topics],
                "freshness_ms": each.freshness_ms,
                "file_bytes": each.file_bytes,
                "created_ms": each.created_ms,
                "recorded_ms": each.recorded_ms,
                "worker": worker_of(each, wall_ms()),
                "iceberg": each.iceberg,
                "version_retention_ms": each.version_retention_ms,
                "file_retention_ms": each.file_retention_ms,
                "omitted": each.omitted,
                "stopped": each.stopped,
                "stopped_hint": each.stopped_hint,
            }
            for each in found
        ]
        print(json.dumps(rows, indent=2))
        return
    table = Table("name", "topics", "location", "freshness", "worker", "last report")
    for each in found:
        table.add_row(
            cell(each.name),
            cell(", ".join(topic.name for topic in each.topics)),
            cell(each.location),
            duration(each.freshness_ms / 1_000),
            worker_of(each, wall_ms()),
            ago(each.recorded_ms, wall_ms()),
        )
    console().print(table)
    for each in found:
        if each.stopped:
            note(_stop_of(each))


@app.command()
def status(
    name: LakeName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    output: Output = Listing.TABLE,
) -> None:
    """Show the tables of a lake, and the records that they lack.

    The lag counts offsets up to the last stable offset, so also those of aborted records.
    Exit code 3 if a person has to decide. Exit code 4 if the tables lack records, and no worker has
    reported in the last 5 minutes plus twice the freshness.

    \b
    isolog lake status shop --path data/
    isolog lake status shop --output json | jq .state
    """
    from spark_stream.lake_worker.status import LakeState, state_of, topics_of, worker_of

    with log(bootstrap, path) as opened:
        lake = opened.describe_lake(name)
        found = list(topics_of(opened, lake))
    state, worker = state_of(lake, found, wall_ms()), worker_of(lake, wall_ms())
    if output is Listing.JSON:
        facts = {
            "lake": lake.name,
            "location": lake.location,
            "state": state,
            "worker": worker,
            "stopped": lake.stopped,
            "stopped_hint": lake.stopped_hint,
            "recorded_ms": lake.recorded_ms,
            "omitted": lake.omitted,
            "topics": [_facts_of(each) for each in found],
        }
        print(json.dumps(facts, indent=2))
    else:
        _show_tables(found)
        console().print(
            f"{state}. Worker: {worker}, last report {ago(lake.recorded_ms, wall_ms())}"
        )
    for each in found:
        if each.problem is not None:
            note(f"{each.topic}: {each.problem.message} ({each.problem.hint})")
    if lake.stopped:
        note(_stop_of(lake))
    if lake.omitted:
        note(f"{counted(lake.omitted, 'topic')} not shown: you may not describe all of the lake")
    if state is LakeState.NO_WORKER:
        note(f"no worker reports: start one with `isolog lake run {lake.name}`")
    if code := {LakeState.UNKNOWN: 1, LakeState.STOPPED: 3, LakeState.NO_WORKER: 4}.get(state):
        raise typer.Exit(code)


def _facts_of(topic: TopicStatus) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "version": topic.version,
        "records": topic.records,
        "files": topic.files,
        "bytes": topic.size,
        "lag": topic.lag,
        "iceberg_version": topic.iceberg,
        "problem": topic.problem and topic.problem.message,
        "hint": topic.problem and topic.problem.hint,
    }


def _show_tables(found: Sequence[TopicStatus]) -> None:
    table = Table("topic")
    columns = ["version", "records", "files", "size", "lag"]
    if any(each.iceberg is not None for each in found):
        columns.append("iceberg")
    for column in columns:
        table.add_column(column, justify="right")
    for each in found:
        row = [
            cell(each.topic),
            str(each.version) if each.version >= 0 else "-",
            str(each.records),
            str(each.files),
            size_text(each.size),
            "-" if each.lag is None else str(each.lag),
            "-" if each.iceberg is None else str(each.iceberg),
        ]
        table.add_row(*row[: 1 + len(columns)])
    console().print(table)


def _stop_of(lake: LakeDescription) -> str:
    hint = f" ({lake.stopped_hint})" if lake.stopped_hint else ""
    return f"the worker of lake {lake.name} stopped: {lake.stopped}{hint}"


@app.command()
def run(
    name: LakeName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    once: Annotated[
        bool, typer.Option("--once", help="Copy the records that are committed now, and end.")
    ] = False,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of metrics and health.",
            show_default=False,
        ),
    ] = None,
    output: Output = Listing.TABLE,
) -> None:
    """Write the tables of a lake, until the command is interrupted or the lake is dropped.

    Several workers of one lake do no harm. A worker that was killed continues from the tables.
    With --once it prints the tables at its end.

    \b
    isolog lake run shop --path data/ --once
    """
    from spark_stream.lake_worker.counts import serve_counts
    from spark_stream.lake_worker.status import topics_of
    from spark_stream.lake_worker.worker import LakeWorker
    from spark_stream.wire.addresses import joined

    if metrics_listen and once:
        raise InvalidOption(
            "--metrics-listen needs a worker that continues to run",
            hint="Leave out --once.",
            option="--metrics-listen",
        )
    with ExitStack() as ended:
        opened = ended.enter_context(log(bootstrap, path))
        worker = LakeWorker(opened, name)
        if metrics_listen:
            bound = listening_at(metrics_listen, "--metrics-listen")
            ended.callback(bound.close)
            ended.callback(serve_counts(bound, worker.counts))
            host, port = bound.getsockname()[:2]
            note(f"metrics and health are shown at http://{joined(host, port)}/")
        if once:
            worker.run_once()
            tables = list(topics_of(opened, opened.describe_lake(name)))
            if output is Listing.JSON:
                print(json.dumps([_facts_of(each) for each in tables], indent=2))
            else:
                _show_tables(tables)
            return
        received: list[int] = []

        def receive(number: int, _: object) -> None:
            if received:
                raise KeyboardInterrupt  # the second one ends a round that hangs
            received.append(number)

        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, receive)

        def wait(seconds: float) -> bool:
            end = time.monotonic() + seconds
            while not received and (left := end - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))
            return bool(received)

        note(f"isolog lake ready {name}")
        worker.run(wait)


@app.command()
def versions(
    name: LakeName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only the last cut: latest, or the last one at or before a time"
            " (2024-05-01T12:30:00Z) or an age (1h).",
            show_default=False,
        ),
    ] = None,
    output: Output = Listing.TABLE,
) -> None:
    """List the cuts of a lake, with the version of each table. They divide no transaction.

    Exit code 1 if there is no cut for --at.

    \b
    isolog lake versions shop --path data/
    isolog lake versions shop --path data/ --at 1h
    """
    from spark_stream.lake_worker.status import cuts_of

    until = "latest" if at is None else position_of("--at", at, ["latest"], takes_offsets=False)
    limit_ms = until.timestamp() * 1_000 if isinstance(until, datetime) else math.inf
    found: list[Cut] = []
    first = None
    with log(bootstrap, path) as opened:
        for first in cuts_of(opened.describe_lake(name)):
            if first.time_ms <= limit_ms:
                found.append(first)
                if at is not None:
                    break
    shown = [(each, _moment_of(each)) for each in reversed(found)]
    if output is Listing.JSON:
        rows = [
            {
                "cut": each.number,
                "time": recorded.isoformat(),
                "versions": {of.topic: of.version for of in each.entries},
            }
            for each, recorded in shown
        ]
        print(json.dumps(rows, indent=2))
    elif shown:
        table = Table("cut", "time", "versions")
        for each, recorded in shown:
            at_text = recorded.isoformat(timespec="milliseconds")
            of_tables = ", ".join(sorted(f"{of.topic}@{of.version}" for of in each.entries))
            table.add_row(str(each.number), at_text, cell(of_tables))
        console().print(table)
    if not shown:
        begin = "" if first is None else f" at or before {at}: the first is of {_moment_of(first)}"
        note(f"lake {name} has no cut{begin}")
        if at is not None:
            raise typer.Exit(1)


def _moment_of(cut: Cut) -> datetime:
    return datetime.fromtimestamp(cut.time_ms / 1_000, UTC)


@app.command()
def clean(
    name: LakeName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Yes = False,
) -> None:
    """Remove files older than a day that no version of a table has.

    Workers that were killed leave such files.

    \b
    isolog lake clean shop --path data/ --yes
    """
    from spark_stream.lake_worker.status import orphans_of, remove_files

    with log(bootstrap, path) as opened:
        lake = opened.describe_lake(name)
    found = orphans_of(lake, wall_ms())
    if found:
        total = size_text(sum(each.size for each in found))
        confirm(
            yes, f"Remove {counted(len(found), 'file')} ({total}) of lake {name}?", "remove them"
        )
        remove_files(lake, found)
    note(f"removed {counted(len(found), 'file')} of lake {name}")


@app.command()
def drop(
    name: LakeName,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    yes: Yes = False,
) -> None:
    """Drop a lake. Its tables stay, and its worker ends. A new lake cannot continue these tables.

    Readers of a topic do not find the records any more that only the dropped tables have.

    \b
    isolog lake drop shop --path data/ --yes
    """
    with log(bootstrap, path) as opened:
        found = opened.describe_lake(name)
        question = (
            f"Drop lake {name}? Its tables stay at {found.location}. No new lake continues them."
            " Readers of the topics do not find the records any more that only the tables have."
        )
        confirm(yes, question, "drop it")
        opened.drop_lake(name)
    note(f"dropped lake {name}")
