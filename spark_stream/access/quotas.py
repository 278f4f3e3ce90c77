"""How much a principal may use of each broker."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from spark_stream.structs import Struct

RATE_MIN: Final = 1 << 10
RATE_MAX: Final = 1 << 50
Rate = Annotated[int, Meta(ge=RATE_MIN, le=RATE_MAX)]
"""Bytes per second."""


class Quota(Struct, omit_defaults=False):
    """The limits of a principal at each broker; None: no limit."""

    write_bytes_per_s: Rate | None = None
    read_bytes_per_s: Rate | None = None
    connections: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
