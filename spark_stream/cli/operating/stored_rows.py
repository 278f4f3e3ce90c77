"""Segments, entries and records of a log's files as batches of Arrow."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_stream.cli.options import Listing, Shape, counted, note
from spark_stream.cli.output.formats import Writer, writer_of
from spark_stream.errors import IsologError
from spark_stream.schema.schemas import TIMESTAMP_TYPE, is_default
from spark_stream.storage.offline.checks import damaged_entries
from spark_stream.storage.offline.files import STATES, LogFiles, SegmentView, array_of

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


class BatchWriter:
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


def segment_row(files: LogFiles, view: SegmentView, check: bool) -> tuple[pa.RecordBatch, bool]:
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


def entry_rows(files: LogFiles, view: SegmentView, start: int, end: int) -> pa.RecordBatch:
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


def write_records(
    files: LogFiles, view: SegmentView, start: int, end: int, out: BatchWriter
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
