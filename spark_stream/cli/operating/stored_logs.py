"""``isolog log``: dump, verify. Both read the files of a log without a broker, read-only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import typer

from spark_stream.cli.options import Listing, Output, counted, note
from spark_stream.cli.output.formats import Shape, Writer, writer_of
from spark_stream.cli.output.texts import as_json, cell, console
from spark_stream.cli.terminal import standard_output
from spark_stream.client.connecting.embedded import lock_held
from spark_stream.errors import InvalidOption, IsologError, StorageFailure
from spark_stream.schema.schemas import TIMESTAMP_TYPE, is_default
from spark_stream.storage.offline.checks import CheckedLog, check_log, damaged_entries
from spark_stream.storage.offline.files import (
    STATES,
    LogFiles,
    SegmentView,
    array_of,
    broker_directory,
    find_logs,
    look_at,
)
from spark_stream.structs import INT64_MAX

_KINDS: Final = ("data", "commit", "abort")
_NUMBERS: Final = {
    "entry_index": pa.int64(),
    "base_offset": pa.int64(),
    "count": pa.uint32(),
    "leader_epoch": pa.int32(),
    "producer_id": pa.int64(),
    "producer_epoch": pa.int16(),
    "base_sequence": pa.int32(),
    "transaction": pa.int64(),
    "timestamp": TIMESTAMP_TYPE,
    "appended": TIMESTAMP_TYPE,
    "position": pa.int64(),
    "length": pa.int64(),
    "schema": pa.uint8(),
}
_NONE_IF_NEGATIVE: Final = ("producer_id", "producer_epoch", "base_sequence", "transaction")

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
    if entries and records:
        raise InvalidOption("--entries and --records exclude each other", hint="Give one of them.")
    last = INT64_MAX if end is None else end
    sound = True
    with standard_output() as sink:
        lines = _BatchWriter(sink, output)
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
                    sound &= _dump_records(files, view, start, last, lines)
                elif entries:
                    shown = _entries(files, view, start, last)
                    sound &= bool(view.intact.all())
                    lines.write(shown)
                else:
                    shown, intact = _segment(files, view, check)
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
    for path, in_use in _paths(directory, partitions):
        yield look_at(path, in_use=in_use)


class _BatchWriter:
    """A writer of batches of any schema. Each schema starts a new table."""

    def __init__(self, sink: Any, output: Listing) -> None:
        self._sink = sink
        self._shape = Shape.JSON if output is Listing.JSON else Shape.TABLE
        self._schema: pa.Schema | None = None
        self._writer: Writer | None = None

    def write(self, batch: pa.RecordBatch, *, utf8: bool = False) -> None:
        """Write a batch. ``utf8``: show binary columns as text where they are UTF-8."""
        if self._writer is None or not batch.schema.equals(self._schema):
            self._schema = batch.schema
            self._writer = writer_of(self._shape, self._sink, batch.schema, utf8=utf8)
        self._writer.write(batch)
        self._sink.flush()

    def close(self) -> None:
        """Write the end of the output."""
        if self._writer is not None:
            self._writer.close()


def _batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _place(files: LogFiles, rows: int) -> dict[str, pa.Array]:
    """Return the columns with the topic and the partition."""
    return {
        "topic": pa.repeat(pa.scalar(files.topic, pa.string()), rows),
        "partition": pa.repeat(pa.scalar(files.partition, pa.int32()), rows),
    }


def _segment(files: LogFiles, view: SegmentView, check: bool) -> tuple[pa.RecordBatch, bool]:
    """Return a segment as a row, and whether the checks found no damage."""
    found, kept = view.found, view.found.kept
    problems = []
    if not view.header_intact:
        problems.append("schema message")
    bad = len(damaged_entries(view.segment, files)) if check else 0
    if bad:
        problems.append(counted(bad, "entry"))
    if len(found.table) > found.good:
        problems.append(f"entries from {found.first.entry + found.good} on are invalid")
    moments = {
        name: pa.array([int(at) if len(kept) else None], TIMESTAMP_TYPE)
        for name, at in (
            ("first_appended", kept[0]["appended"] if len(kept) else 0),
            ("last_appended", kept[-1]["appended"] if len(kept) else 0),
        )
    }
    numbers = {
        "base_offset": int(found.first.offset),
        "end_offset": int(found.end.offset),
        "base_entry": int(found.first.entry),
        "entries": len(found.table),
        "bytes": found.data_size + found.raw.size,
    }
    unchecked = "ok" if check else "not checked"
    row = {
        **_place(files, 1),
        **{name: pa.array([value], pa.int64()) for name, value in numbers.items()},
        **moments,
        "state": pa.array(["closed" if view.closed else "last"]),
        "checksums": pa.array([", ".join(problems) or unchecked]),
    }
    return _batch(row), not problems


def _entries(files: LogFiles, view: SegmentView, start: int, end: int) -> pa.RecordBatch:
    table = view.found.table
    ends = table["base_offset"] + table["count"]
    # A marker has no offset. It is shown with the record before it, if there is one.
    firsts = np.maximum(table["base_offset"] - (table["count"] == 0), 0)
    shown = np.flatnonzero((np.maximum(ends, firsts + 1) > start) & (firsts < end))
    rows, intact = table[shown], view.intact[shown]
    states = np.zeros(len(table), np.uint8)
    states[: len(view.states)] = view.states
    columns = _place(files, len(rows))
    columns["segment"] = pa.repeat(pa.scalar(view.found.name.base_offset, pa.int64()), len(rows))
    for name, kind in _NUMBERS.items():
        column = array_of(rows[name], kind)
        if name in _NONE_IF_NEGATIVE:
            absent = pa.array((rows[name] < 0).tolist(), pa.bool_())
            column = pa.compute.if_else(absent, pa.scalar(None, kind), column)
        columns[name] = column
    columns["kind"] = _named(np.minimum(rows["kind"], len(_KINDS)), (*_KINDS, "unknown"))
    columns["state"] = _named(states[shown], STATES)
    columns["checksum"] = _named(intact.astype(np.uint8), ("damaged", "ok"))
    return _batch(columns)


def _named(places: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    return pa.array(names, pa.string()).take(array_of(places.astype(np.int64), pa.int64()))


def _dump_records(
    files: LogFiles, view: SegmentView, start: int, end: int, out: _BatchWriter
) -> bool:
    """Write the records of a segment. Return whether all of them are undamaged."""
    sound = len(view.found.table) == view.found.good
    if not sound:
        note(
            f"damaged: {view.found.name.entries}: the entries from"
            f" {view.found.first.entry + view.found.good} on are invalid"
        )
    if view.schema is None and view.found.good:
        note(f"{view.found.name.arrow}: the schema of its records is unknown")
        return False
    for each in view.records(start, end):
        if isinstance(each, IsologError):
            note(f"damaged: {each.message}")
            sound = False
            continue
        offsets = each.offsets()
        columns = {
            "_partition": pa.repeat(pa.scalar(files.partition, pa.int32()), len(offsets)),
            "_offset": array_of(offsets, pa.int64()),
            "_state": _named(view.states_at(offsets), STATES),
        }
        columns |= dict(zip(each.batch.schema.names, each.batch.columns, strict=True))
        out.write(_batch(columns), utf8=is_default(each.batch.schema))
    return sound
