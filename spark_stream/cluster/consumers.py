"""Named consumers as records of the metadata store: their key, and what a record holds.

A record has the positions where the consumer goes on, and the instance that owns its name.
``scripts/positions`` changes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.structs import learn_types

CONSUMERS: Final = "consumers/"


def encode_positions(positions: Iterable[PositionOf]) -> list[dict[str, Any]]:
    """Encode positions for the store."""
    return [msgspec.to_builtins(each) for each in positions]


def decode_positions(values: Iterable[Mapping[str, Any]]) -> list[PositionOf]:
    """Decode the positions in a record's value."""
    return msgspec.convert(list(values), list[PositionOf])


learn_types(list[PositionOf])
