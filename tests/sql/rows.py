"""Rows with a column of every type that filters compare, nulls, and edge values."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

NAN = float("nan")
INF = float("inf")


def _struct(p, q):
    return None if p is None and q is None else {"p": p, "q": q}


SPARKS_TYPES = pa.record_batch(
    {
        "i8": pa.array([1, -128, 127, 0, None, 5], pa.int8()),
        "i32": pa.array([1, -(2**31), 2**31 - 1, 16777217, None, 5], pa.int32()),
        "i64": pa.array([1, -(2**63), 2**63 - 1, 2**53 + 1, None, 5], pa.int64()),
        "f32": pa.array([0.1, NAN, -0.0, 16777216.0, None, 1.5], pa.float32()),
        "f64": pa.array([0.1, NAN, -0.0, INF, None, 1.5], pa.float64()),
        "dec": pa.array(
            [Decimal(x) if x else None for x in ("1.50", "-2.25", "99999999.99", "0.00", "", "5")],
            pa.decimal128(10, 2),
        ),
        "s": pa.array(["ab", "a%b", "é\nz", "", None, "10"]),
        "raw": pa.array([b"ab", b"a%b", "é\nz".encode(), b"", None, b"10"]),
        "day": pa.array([0, 19675, -719162, 2932896, None, 1], pa.int32()).cast(pa.date32()),
        "ts": pa.array(
            [0, 1_700_000_000_000_000, -1, 253402300799999999, None, 86_400_000_000],
            pa.timestamp("us", "UTC"),
        ),
        "ntz": pa.array(
            [0, 1_700_000_000_000_000, 1, -62135596800000000, None, -5], pa.timestamp("us")
        ),
        "flag": pa.array([True, False, True, False, None, True]),
        "st": pa.array(
            [_struct(1, "x"), _struct(2, None), _struct(None, "y"), None, None, _struct(5, "ab")],
            pa.struct([pa.field("p", pa.int64()), pa.field("q", pa.string())]),
        ),
    }
)
