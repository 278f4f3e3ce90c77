"""All bugs that are planted (``planted_bugs``), by their names."""

from __future__ import annotations

from tests.testing.planted_bugs import (
    deciding,
    epochs,
    fetches,
    files,
    near,
    outages,
    partitions,
    producers,
    replicas,
    streams,
)
from tests.testing.planted_bugs.planting import BUGS, IN_FILES

__all__ = [
    "BUGS",
    "IN_FILES",
    "deciding",
    "epochs",
    "fetches",
    "files",
    "near",
    "outages",
    "partitions",
    "producers",
    "replicas",
    "streams",
]
