"""Entries as they are stored: what one replica of a partition gives to another.

Two replicas are the same where their entries are, without ``position`` and ``entry_crc``: those two
say where a batch lies in a replica's own files. The checksum ``data_crc`` in an entry stands for
the batch's bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa

from spark_stream.consistency.entries import Table


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Consecutive entries of a log: their rows, and the bytes of all their batches in a row.

    ``position`` and ``entry_crc`` of the rows are those of the log that gave them.
    """

    rows: Table
    data: pa.Buffer


def digest(tables: Iterable[Table]) -> str:
    """What the entries of these tables have in common with the same entries of another replica.

    It does not matter how the entries are parted into tables. 32 hexadecimal digits.
    """
    found = blake2b(digest_size=16)
    for table in tables:
        rows = table.copy()
        rows["position"] = rows["entry_crc"] = 0
        found.update(rows.tobytes())
    return found.hexdigest()
