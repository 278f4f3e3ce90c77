"""The table of cuts: a row for each topic of a recorded cut, with the version of its table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from spark_stream.lake.steps import Cut, CutEntry

CUTS: Final = "_cuts"
"""The name of the table. No topic has it: names of topics begin with no underscore."""
CUT: Final = "cut"
"""The column of a cut's number."""
CUT_TIME: Final = "time"
"""The column of a cut's time."""

CUTS_SCHEMA: Final = pa.schema(
    [
        pa.field(CUT, pa.int64()),
        pa.field(CUT_TIME, pa.timestamp("us", "UTC")),
        pa.field("topic", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("offsets", pa.map_(pa.int32(), pa.int64())),
    ]
)
"""``version``: that of the topic's table. ``offsets``: the end of each partition in it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of_cut(cut: Cut) -> pa.RecordBatch:
    """Return the rows of a cut, by :data:`CUTS_SCHEMA`."""
    columns = zip(
        *(
            (
                cut.number,
                cut.time_ms * 1_000,
                each.topic,
                each.topic_id,
                each.version,
                list(each.offsets.items()),
            )
            for each in cut.entries
        ),
        strict=True,
    )
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, CUTS_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CUTS_SCHEMA)


def cuts_in(files: Iterable[pa.Table]) -> list[Cut]:
    """Return the cuts of files of the table, the last one first."""
    found: dict[int, Cut] = {}
    for file in files:
        for row in file.to_pylist():
            number, time = row[CUT], row[CUT_TIME]
            cut = found.setdefault(number, Cut(number, _milliseconds(time), []))
            offsets: dict[int, int] = dict(row["offsets"])
            cut.entries.append(CutEntry(row["topic"], row["topic_id"], row["version"], offsets))
    return [found[number] for number in sorted(found, reverse=True)]


def _milliseconds(time: Any) -> int:
    found: int = (time - _EPOCH) // timedelta(milliseconds=1)
    return found
