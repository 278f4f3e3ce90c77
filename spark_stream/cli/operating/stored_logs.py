"""``isolog log``: dump, verify. Both read the files of a log without a broker, read-only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_stream.cli.options import Listing, Output, counted, note
from spark_stream.cli.output.texts import as_json, cell, console
from spark_stream.cli.terminal import standard_output
from spark_stream.errors import InvalidOption, StorageFailure
from spark_stream.structs import INT64_MAX

if TYPE_CHECKING:
    from spark_stream.storage.offline.checks import CheckedLog
    from spark_stream.storage.offline.files import LogFiles

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Directory of a broker, or of a topic or a partition in it, or a copy of these.",
        exists=True,
        file_okay=False,
        show_default=False,
    ),
]
Partitions = Annotated[
    list[int] | None, typer.Option(metavar="N", min=0, help="Only this partition. Repeatable.")
]

app = typer.Typer(no_args_is_help=True, help="Inspect the files of a log, without a broker.")


@app.command()
def dump(
    directory: Directory,
    entries: Annotated[
        bool, typer.Option("--entries", help="Show each entry: a batch, or a transaction marker.")
    ] = False,
    records: Annotated[bool, typer.Option("--records", help="Show each record.")] = False,
    start: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="First offset to show.")
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="OFFSET", min=0, help="End offset, exclusive.", show_default=False
        ),
    ] = None,
    partition: Partitions = None,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Check the batches of the segments."),
    ] = True,
    output: Output = Listing.TABLE,
) -> None:
    """Show the segments of a log, or with an option its entries or records.

    The command does not change files. A broker may be running: then the entries at the start of the
    command are shown. Aborted and unreplicated records are shown too. Exit code 1 if a file is
    damaged: `isolog log verify` prints the remedy.

    \b
    isolog log dump data/
    isolog log dump data/topics/flights --entries --partition 0 --from 5000
    isolog log dump data/ --records --output json | jq ._state
    """
    from spark_stream.cli.operating.stored_rows import (
        BatchWriter,
        entry_rows,
        segment_row,
        write_records,
    )

    if entries and records:
        raise InvalidOption("--entries and --records exclude each other", hint="Give one of them.")
    last = INT64_MAX if end is None else end
    sound = True
    with standard_output() as sink:
        lines = BatchWriter(sink, output)
        for files in _logs(directory, partition):
            for error in files.missing:
                note(f"damaged: {error.message}")
                sound = False
            for view in files.segments:
                whole = view.found.good == len(view.found.table)  # else its end is unknown
                ends_before = whole and view.segment.end.offset < start
                if ends_before or view.segment.first.offset >= last:
                    continue
                if records:
                    sound &= write_records(files, view, start, last, lines)
                elif entries:
                    shown = entry_rows(files, view, start, last)
                    sound &= bool(view.intact.all())
                    lines.write(shown)
                else:
                    shown, intact = segment_row(files, view, check)
                    sound &= intact
                    lines.write(shown)
        lines.close()
    if not sound:
        raise typer.Exit(1)


@app.command()
def verify(
    directory: Directory, partition: Partitions = None, output: Output = Listing.TABLE
) -> None:
    """Check all checksums of logs, the order of their entries, and the effects of opening them.

    All batches are read from the disk, past the page cache where the file system supports that. The
    command does not change files, and a broker may be running. Exit code 1 if a file is damaged or
    unreadable. An unfinished write, such as after a crash, is not damage.

    \b
    isolog log verify data/
    isolog log verify backup/topics/flights --output json | jq .findings
    """
    from spark_stream.storage.offline.checks import check_log

    damaged = checked = unreadable = 0
    any_in_use = False
    for path, in_use in _paths(directory, partition):
        try:
            found = check_log(path, in_use=in_use)
        except StorageFailure as error:
            unreadable += 1
            note(f"failed to check {path}: {error.message}")
            continue
        any_in_use |= in_use
        checked += 1
        damaged += found.damaged
        if output is Listing.JSON:
            print(json.dumps(as_json(found) | {"damaged": found.damaged, "in_use": in_use}))
        else:
            _show(found)
        sys.stdout.flush()
    if output is Listing.TABLE:
        rest = f", {unreadable} unreadable" if unreadable else ""
        print(f"{counted(checked, 'partition')} checked, {damaged} damaged{rest}")
        if any_in_use:
            note("a broker is running: its unfinished writes were not checked")
    if damaged or unreadable:
        raise typer.Exit(1)


def _show(found: CheckedLog) -> None:
    screen = console()
    name = found.topic or found.path
    number = "" if found.partition is None else f"/{found.partition}"
    counts = ", ".join(
        (
            counted(found.segments, "segment"),
            counted(found.entries, "entry"),
            f"offsets {found.start} to {found.end}",
            f"{found.bytes} bytes",
        )
    )
    verdict = "DAMAGED" if found.damaged else "ok"
    screen.print(f"{cell(f'{name}{number}')}: {verdict}  ({counts})", soft_wrap=True)
    for each in found.findings:
        place = "" if each.position is None else f" at byte {each.position}"
        offset = "" if each.offset is None else f", offset {each.offset}"
        screen.print(f"  {cell(each.file)}{place}{offset}: {cell(each.problem)}", soft_wrap=True)
        screen.print(f"    {cell(each.remedy)}", soft_wrap=True)
    for change in found.changes:
        screen.print(f"  when a broker opens the log, {cell(change)}", soft_wrap=True)


def _paths(directory: Path, partitions: list[int] | None) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the logs. The flag is set if the broker is running, or may be."""
    from spark_stream.client.connecting.embedded import lock_held
    from spark_stream.storage.offline.files import broker_directory, find_logs

    wanted = None if not partitions else {str(each) for each in partitions}
    known: dict[Path | None, bool] = {None: False}
    for path in find_logs(directory):
        if wanted is not None and path.name not in wanted:
            continue
        owner = broker_directory(path)
        if owner not in known:
            try:
                known[owner] = owner is not None and lock_held(owner)
            except OSError:  # the lock of another user
                known[owner] = True
        yield path, known[owner]


def _logs(directory: Path, partitions: list[int] | None) -> Iterator[LogFiles]:
    from spark_stream.storage.offline.files import look_at

    for path, in_use in _paths(directory, partitions):
        yield look_at(path, in_use=in_use)
