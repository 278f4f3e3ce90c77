"""Generations of brokers' logs: the evidence that the logs are complete at a start.

An in-sync replica is a broker in a *generation* of its logs. A broker keeps its generation for as
long as it can vouch that every log holds all entries that it ever acknowledged. If it cannot, it
begins a new generation. It is then in sync in no partition until its logs have been compared with
their leaders' (``consistency.control.partition_record``).

Invariant: all entries that a broker acknowledged in a generation are in its logs for as long as the
broker has this generation. It vouches for that at its start if there is no contrary evidence, and

* its last run shut down cleanly, with an fsync of all logs, and every log that it had then, and
still
  has, has the same end as then, or
* only its process was lost. The machine was not restarted since, so the kernel has kept every
  write, with or without an fsync.

Contrary evidence: a log was truncated below its synced end, a log is damaged or missing, or an
fsync had failed, after which the kernel may have dropped unwritten data. And the directory must be
the one that the broker used last. So each start writes the name of its *run* into the record and
into the directory: an empty directory has no name, and a copy of an earlier run has another one. A
copy of everything, the record included, has different files, and is detected by them. Only a
snapshot of a whole volume is the same as the original.

Order of a start: all logs are open. The record gets the generation, the run, and no end. Then the
directory gets the run. Then the broker registers with the generation, and takes its lease. It can
be elected only then. A crash between the record and the directory leaves them with different runs,
whichever is written first, so it costs only a generation. Order of an end: the broker ceases to
serve, all logs are synced and closed, and then the record gets their ends.

A broker whose fsync fails writes that into the record before any other action, since it may be
killed before its next start. A broker that finds a log damaged while it runs writes its next
generation there in the same way (``consistency.control.handover``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.structs import Positional, learn_types

GENERATIONS: Final = "generations/"

Ends = Mapping[str, int]
"""The last entry of each log, by the name of its partition, or -1 for a log that does not open."""


class LastRun(Positional, frozen=True):
    """The record of a broker's last run.

    ``ends``: the ends of all logs, or None if the run did not shut down cleanly.
    ``boot``: the machine's boot in which the run took place, or None if unknown.
    """

    generation: Generation
    run: str
    ends: Ends | None
    boot: str | None
    force_failed: bool = False


class FoundLogs(Struct, frozen=True):
    """The evidence that a broker has when it starts and has opened its logs.

    ``run``: the run that the directory names, if any. ``intact``: no log is missing, damaged, or
    truncated below its synced end. ``boot``: the machine's boot, or None if unknown.
    """

    run: str | None
    ends: Ends
    intact: bool
    boot: str | None


class Doubt(StrEnum):
    """The reason why a broker cannot vouch for its logs."""

    NEW = "the broker starts for the first time"
    OTHER_DIRECTORY = "the directory is not the one that the broker used last: it is new, or a copy"
    FORCE_FAILED = "an fsync of its disk had failed"
    DAMAGED = "a log is missing or damaged, or lost synced entries"
    MOVED_ENDS = "the logs have other ends than after the last run"
    MACHINE_ENDED = "the broker did not shut down cleanly, and its machine was restarted"


def doubt(left: LastRun | None, found: FoundLogs) -> Doubt | None:
    """Return the reason why the broker cannot vouch for its logs, or None if it can."""
    if left is None:
        return Doubt.NEW
    if left.run != found.run:
        return Doubt.OTHER_DIRECTORY
    if left.force_failed:
        return Doubt.FORCE_FAILED
    if not found.intact:
        return Doubt.DAMAGED
    if left.ends is not None:
        # Replicas may have been added or removed since: their logs are no evidence.
        moved = any(left.ends.get(name, end) != end for name, end in found.ends.items())
        return Doubt.MOVED_ENDS if moved else None
    same_boot = left.boot is not None and left.boot == found.boot
    return None if same_boot else Doubt.MACHINE_ENDED


class GenerationRecords:
    """One broker's record, through its starts and ends."""

    def __init__(self, store: MetadataStore, broker_id: BrokerId) -> None:
        self._store = store
        self._key = GENERATIONS + broker_id

    def begin(
        self, found: FoundLogs, run: str, new_generation: Callable[[], str]
    ) -> tuple[Generation, Doubt | None]:
        """Record the start. Return the generation, and the reason if it is a new one.

        ``run`` is a name that no other start has. The caller must then write it into the directory
        before the broker registers.
        """
        while True:
            record = self._store.get(self._key)
            left = None if record is None else decode(record.value)
            reason = doubt(left, found)
            if left is None or reason is not None:
                generation = Generation(new_generation())
            else:
                generation = left.generation
            begun = LastRun(generation, run, None, found.boot)
            version = 0 if record is None else record.version
            if self._store.put(self._key, encode(begun), version) is not None:
                return generation, reason

    def end(self, run: str, ends: Ends) -> None:
        """Record a clean shutdown: all logs are synced and closed, with these ends."""
        self._change(run, ends=ends)

    def force_failed(self, run: str) -> None:
        """Record that an fsync has failed, so this run's writes may be missing."""
        self._change(run, force_failed=True)

    def begin_generation(self, run: str, generation: Generation) -> None:
        """Begin another generation of the logs during the run."""
        self._change(run, generation=generation)

    def _change(self, run: str, **fields: Any) -> None:
        """Set fields of the record, unless a later run has begun."""
        while True:
            record = self._store.get(self._key)
            left = None if record is None else decode(record.value)
            if record is None or left is None or left.run != run:
                return
            if (
                self._store.put(self._key, encode(replace(left, **fields)), record.version)
                is not None
            ):
                return


def encode(left: LastRun) -> dict[str, Any]:
    """Encode a broker's last run for the store."""
    value: dict[str, Any] = msgspec.to_builtins(left)
    return value


def decode(value: Mapping[str, Any]) -> LastRun:
    """Decode the last run in a record's value."""
    return msgspec.convert(value, LastRun)


learn_types(LastRun)
