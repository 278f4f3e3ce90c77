"""Entries as they are stored: what one replica of a partition gives to another.

Two replicas are the same where their entries are, apart from ``position`` and ``entry_crc``, which
depend on where a batch lies in a replica's own files. The checksum ``data_crc`` in an entry stands
for the batch's bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.batches import crc32c
from spark_stream.consistency.entries import (
    CRC_SPAN,
    Entry,
    Kind,
    Table,
    lone_entry,
    valid_prefix,
)
from spark_stream.consistency.replication.leader import Boundary
from spark_stream.errors import DamagedEntries
from spark_stream.storage.format.codec import first_broken_batch, intact_entries, sealed

_COLUMNS: Final = Entry.__struct_fields__
_KINDS: Final = tuple(Kind)


class StoredEntries(Struct, frozen=True):
    """Consecutive entries of a log: their rows, and the bytes of all their batches in a row.

    ``position`` and ``entry_crc`` of the rows are those of the log that they come from.
    """

    rows: Table
    data: pa.Buffer


def digest(tables: Iterable[Table]) -> str:
    """Hash those parts of the entries that are the same in all replicas: 32 hexadecimal digits.

    How the entries are divided into tables does not matter.
    """
    found = blake2b(digest_size=16)
    for table in tables:
        rows = table.copy()
        rows["position"] = rows["entry_crc"] = 0
        found.update(rows.tobytes())
    return found.hexdigest()


def checked_lone_entry(rows: Table, data: pa.Buffer, end: Boundary, epoch: int) -> Entry | None:
    """Return the only entry if :func:`check_entries` would accept it, else None.

    None means: there are several entries, or the only one is refused and :func:`check_entries` says
    why.
    """
    if len(rows) != 1:
        return None
    row = rows.tobytes()
    found = lone_entry(row[:CRC_SPAN], end.entry, end.offset, epoch)
    if found is None or sealed(row[:CRC_SPAN]) != row:
        return None
    entry, length = found
    sound = data.size == length and (not length or crc32c(data) == entry.data_crc)
    return entry if sound else None


def check_entries(rows: Table, data: pa.Buffer, end: Boundary, epoch: int, place: str) -> None:
    """Check that these entries may be appended to a log that ends at ``end``, in this epoch.

    Both checksums of each entry are computed. ``place`` names the log in messages.

    Raises:
        ValueError: the entries are sound, but do not follow the log's end.
        DamagedEntries: some entries are not sound; the message names the first.
    """
    good = intact_entries(rows)
    first, last = rows[0], rows[-1]
    if good:
        at, under = (int(first["entry_index"]), int(first["base_offset"])), first["leader_epoch"]
        if at != (end.entry, end.offset) or under < epoch:
            raise ValueError(
                f"{place} ends at {end} in epoch {epoch}; the new entries start at entry {at[0]}"
                f" with offset {at[1]}, in epoch {under}"
            )
    start = int(first["position"])
    good = valid_prefix(rows[:good], int(end.entry), int(end.offset), start)
    good = first_broken_batch(rows[:good], data, start)
    if good < len(rows):
        raise DamagedEntries(
            f"{place}: entry {end.entry + good} came damaged", entry=end.entry + good
        )
    length = int(last["position"] + last["length"]) - start
    if data.size != length:
        raise DamagedEntries(
            f"{place}: got {data.size} bytes for entries of {length} bytes", entry=int(end.entry)
        )


def entries_of(rows: Table) -> list[Entry]:
    """Convert the rows to entries without a position in a file."""
    columns = [
        [_KINDS[kind] for kind in rows[name].tolist()] if name == "kind" else rows[name].tolist()
        for name in _COLUMNS
    ]
    return [Entry(*values) for values in zip(*columns, strict=True)]
