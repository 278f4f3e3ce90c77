"""Lakes as records of the metadata store, under ``lakes/<name>``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from spark_stream.consistency.lakes import LakeDescription

LAKES: Final = "lakes/"


def encode(lake: LakeDescription) -> dict[str, Any]:
    """Encode the record's value."""
    value: dict[str, Any] = msgspec.to_builtins(lake, str_keys=True)
    return value


def decode(value: Mapping[str, Any]) -> LakeDescription:
    """Decode the lake in a record's value."""
    return msgspec.convert(value, LakeDescription, strict=False)
