"""The entries of a log, from an index on."""

from __future__ import annotations

from spark_stream.consistency.entries import Entry, Kind
from spark_stream.storage.log.log import PartitionLog

_COLUMNS = Entry.__struct_fields__


def entries_from(log: PartitionLog, index: int) -> list[Entry]:
    """The log's entries from this index on, oldest first."""
    found: list[Entry] = []
    for table in log.tables():
        if len(table) and int(table["entry_index"][-1]) >= index:
            for row in table[table["entry_index"] >= index]:
                values = {name: int(row[name]) for name in _COLUMNS}
                values["kind"] = Kind(values["kind"])
                found.append(Entry(**values))  # type: ignore[arg-type]
    return found
