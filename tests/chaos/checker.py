"""Checks the log's guarantees, from the results of writers and readers.

Each violation has a kind and a sentence. The history has two kinds of rows:

* a *write*: one record of a producer, with its outcome: ``acknowledged`` (outside a transaction),
  ``committed``, ``aborted``, or ``unknown`` (without an answer).
* a *read*: one record that a reader received, in the order of its reads, and its snapshot (the
  number of the read_atomic read, or -1 for readers that follow the log).

(writer, number) identifies a record. ``number`` rises with every record of a writer, so within a
partition a writer's numbers must rise too. The checks use whole frames, not rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

WRITE: Final = ["writer", "number", "topic", "partition", "transaction", "outcome"]
READ: Final = ["reader", "level", "snapshot", "topic", "partition", "offset", "writer", "number"]
DROPS_ABORTED: Final = ("read_committed", "read_atomic")


@dataclass(frozen=True)
class Violation:
    """A violation: its kind, its reader, and the first records that show it."""

    kind: str
    reader: str
    shown: str
    count: int

    def __str__(self) -> str:
        return f"{self.kind} ({self.reader}): {self.count} records, first:\n{self.shown}"


def check(
    writes: pd.DataFrame,
    reads: pd.DataFrame,
    finals: set[str],
    fickle: frozenset[str] = frozenset(),
) -> list[Violation]:
    """Return every violation. ``finals``: the readers that read everything after the last write.

    ``fickle``: readers that may have seen records that a failover removed, read_uncommitted ones
    that followed a log with replicas. They must not see records that were never written, or were
    written elsewhere. They have no other guarantee.
    """
    known = reads.merge(
        writes, on=["writer", "number"], how="left", suffixes=("", "_written"), indicator=True
    )
    found: list[Violation] = []
    for reader, seen in known.groupby("reader", sort=True):
        level = str(seen["level"].iloc[0])
        problems = {
            "invented": seen[seen["_merge"] == "left_only"],
            "misplaced": _misplaced(seen),
            "duplicated": seen[seen.duplicated(["snapshot", "writer", "number"], keep="first")],
            "reordered": _reordered(seen),
        }
        if reader in fickle:
            problems = {kind: problems[kind] for kind in ("invented", "misplaced")}
        if level in DROPS_ABORTED:
            problems["aborted"] = seen[seen["outcome"] == "aborted"]
        if level == "read_atomic":
            problems["fractured"] = _fractured(seen, writes)
        if reader in finals:
            problems["lost"] = _lost(seen, writes)
        found += [
            Violation(kind, str(reader), rows.head(3).to_string(), len(rows))
            for kind, rows in problems.items()
            if len(rows)
        ]
    return found + _changed(reads[~reads["reader"].isin(fickle)])


def _misplaced(seen: pd.DataFrame) -> pd.DataFrame:
    """Records in another partition than that of their send."""
    both = seen[seen["_merge"] == "both"]
    there = (both["topic"] == both["topic_written"]) & (
        both["partition"] == both["partition_written"]
    )
    return both[~there]


def _reordered(seen: pd.DataFrame) -> pd.DataFrame:
    """Records after a later one of their writer, or at an offset that does not rise."""
    place = ["snapshot", "topic", "partition"]
    offsets = seen.groupby(place, sort=False)["offset"].diff() <= 0
    numbers = seen.groupby([*place, "writer"], sort=False)["number"].diff() < 0
    return seen[offsets | numbers]


def _fractured(seen: pd.DataFrame, writes: pd.DataFrame) -> pd.DataFrame:
    """Records of transactions of which a snapshot has only a part."""
    inside = seen[seen["transaction"] >= 0].drop_duplicates(["snapshot", "writer", "number"])
    whole = writes[writes["transaction"] >= 0].groupby("transaction").size()
    held = inside.groupby(["snapshot", "transaction"])["number"].transform("size")
    return inside[held != inside["transaction"].map(whole)]


def _lost(seen: pd.DataFrame, writes: pd.DataFrame) -> pd.DataFrame:
    """Acknowledged or committed records that a final reader did not see."""
    promised = writes[writes["outcome"].isin(["acknowledged", "committed"])]
    merged = promised.merge(
        seen[["writer", "number"]].drop_duplicates(),
        on=["writer", "number"],
        how="left",
        indicator="seen",
    )
    return merged[merged["seen"] == "left_only"]


def _changed(reads: pd.DataFrame) -> list[Violation]:
    """Offsets at which readers saw different records.

    Aborted records keep their offsets too, so the check compares readers of all levels.
    """
    place = ["topic", "partition", "offset"]
    distinct = reads.drop_duplicates([*place, "writer", "number"])
    rows = distinct[distinct.duplicated(place, keep=False)].sort_values(place)
    return [Violation("changed", "all", rows.head(4).to_string(), len(rows))] if len(rows) else []
