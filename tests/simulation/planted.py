"""All bugs that are planted (``planted_bugs``), by their names."""

from __future__ import annotations

from tests.simulation.planted_bugs import (
    deciding,
    epochs,
    fetches,
    files,
    groups,
    near,
    outages,
    partitions,
    producers,
    replicas,
    streams,
)
from tests.simulation.planted_bugs.planting import BUGS, FAULTS_OF, seeds_for

__all__ = [
    "BUGS",
    "FAULTS_OF",
    "deciding",
    "epochs",
    "fetches",
    "files",
    "groups",
    "near",
    "outages",
    "partitions",
    "producers",
    "replicas",
    "seeds_for",
    "streams",
]
