"""How much a principal may use of each broker."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from spark_stream.structs import Struct

Rate = Annotated[int, Meta(ge=1024, le=1 << 50)]
"""Bytes per second."""


class Quota(Struct, omit_defaults=False):
    """The limits of a principal at each broker; None: no limit."""

    write_bytes_per_s: Rate | None = None
    read_bytes_per_s: Rate | None = None
    connections: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
