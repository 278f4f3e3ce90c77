"""The records of all benches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa

KEY_BYTES: Final = 10
VALUE_BYTES: Final = 100

TYPED: Final = pa.schema(
    [
        *((f"count_{number}", pa.int64()) for number in range(5)),
        *((f"code_{number}", pa.int32()) for number in range(4)),
        *((f"amount_{number}", pa.float64()) for number in range(5)),
        *((f"name_{number}", pa.string()) for number in range(3)),
        *((f"flag_{number}", pa.bool_()) for number in range(2)),
        ("moment", pa.timestamp("us", "UTC")),
    ]
)
"""20 columns of the usual types."""

_DDL: Final = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.float64(): "double",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.timestamp("us", "UTC"): "timestamp",
}

TYPED_DDL: Final = ", ".join(f"{field.name} {_DDL[field.type]}" for field in TYPED)
THREE_DDL: Final = "count_0 bigint, amount_0 double, name_0 string"
"""Three of the 20 columns."""

SCHEMAS: Final = {
    "value": "value binary",
    "keyed": "key binary, value binary",
    "kafka": (
        "key binary, value binary, topic string, partition int, offset bigint,"
        " timestamp timestamp, timestampType int"
    ),
    "typed": TYPED_DDL,
}
"""Spark's schema of each kind of batch."""


def values(rows: int, size: int = VALUE_BYTES) -> pa.Array:
    """Binary values of one size that no compression could shrink."""
    data = np.random.default_rng(7).bytes(rows * size)
    offsets = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def keys(rows: int) -> pa.Array:
    """A key for each row, all different."""
    return pa.array([b"%0*d" % (KEY_BYTES, number) for number in range(rows)], pa.binary())


def batch_of(columns: str, rows: int) -> pa.RecordBatch:
    """A batch with the columns of ``SCHEMAS[columns]``."""
    if columns == "value":
        return pa.record_batch({"value": values(rows)})
    if columns == "keyed":
        return pa.record_batch({"key": keys(rows), "value": values(rows)})
    if columns == "typed":
        return _typed(rows)
    moments = pa.array(np.arange(rows), pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch(
        {
            "key": keys(rows),
            "value": values(rows),
            "topic": pa.repeat(pa.scalar("bench"), rows),
            "partition": pa.array(np.zeros(rows, np.int32)),
            "offset": pa.array(np.arange(rows)),
            "timestamp": moments,
            "timestampType": pa.array(np.zeros(rows, np.int32)),
        }
    )


def _typed(rows: int) -> pa.RecordBatch:
    chance = np.random.default_rng(7)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made = {
        pa.int64(): lambda: pa.array(chance.integers(0, 10**9, rows)),
        pa.int32(): lambda: pa.array(chance.integers(0, 1000, rows, np.int32)),
        pa.float64(): lambda: pa.array((chance.random(rows) * 1000).round(2)),
        pa.string(): lambda: pa.array([f"name {each}" for each in chance.integers(0, 10**4, rows)]),
        pa.bool_(): lambda: pa.array(chance.random(rows) < 0.5),
        pa.timestamp("us", "UTC"): lambda: pa.array(
            np.arange(rows) * 1000 + int(start.timestamp() * 1e6)
        ).cast(pa.timestamp("us", "UTC")),
    }
    return pa.record_batch([made[field.type]() for field in TYPED], schema=TYPED)
