"""Whether a broker may vouch for its logs when it starts: a record for each broker.

An in-sync replica is a broker in a *generation* of its logs. A broker keeps its generation for as
long as it can vouch that every log holds all that it ever acknowledged. If it cannot, it begins a
new generation. It is then in sync nowhere until its logs have been compared with their leaders'
(``consistency.control.partition_record``).

Invariant: whatever a broker acknowledged in a generation is in its logs for as long as the broker
has this generation. It vouches for that at its start if nothing speaks against it, and

* its last run ended in order, with all logs forced to the disk, and every log that it had then, and
  still has, ends where it ended then. Or
* only its process was lost. The machine was not restarted since, so the kernel has kept every
  write, whether forced or not.

What speaks against it: a log was cut below what had been forced, a log is damaged or missing, or a
force had failed, after which the kernel may have dropped what it had not written. And the directory
must be the one that the broker used last. So each start writes the name of its *run* into the
record and into the directory: an empty directory has no name, and a copy of an earlier run has
another one. A copy of everything, the record included, has different files, which gives it away.
Only a snapshot of a whole volume cannot be told from the original.

Order of a start: all logs are open. The record gets the generation, the run, and no end. Then the
directory gets the run. Then the broker registers with the generation, and takes its lease. It can
be elected only then. A crash between the record and the directory leaves them with different runs,
whichever is written first, so it costs only a generation. Order of an end: the broker ceases to
serve, all logs are forced and closed, and then the record gets where they end.

A broker whose force fails writes that into the record at once, before anything else, since it may
be killed before its next start. A broker that finds a log damaged while it runs writes its next
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
"""After which entry each log ends, by the name of its partition. -1 for one that does not open."""


class LeftBehind(Positional, frozen=True):
    """What the record says of a broker's last run.

    ``ends``: where all logs ended, if the run ended in order, else None.
    ``boot``: the machine's boot in which the run took place, or None if that is not known.
    """

    generation: Generation
    run: str
    ends: Ends | None
    boot: str | None
    force_failed: bool = False


class FoundLogs(Struct, frozen=True):
    """What a broker finds when it starts and has opened its logs.

    ``run``: the run that the directory names, if any. ``intact``: no log is missing or damaged,
    and none was cut below what had been forced. ``boot``: the machine's boot, if it is known.
    """

    run: str | None
    ends: Ends
    intact: bool
    boot: str | None


class Doubt(StrEnum):
    """Why a broker cannot vouch for its logs."""

    NEW = "the broker starts for the first time"
    OTHER_DIRECTORY = "the directory is not the one that the broker used last: it is new, or a copy"
    FORCE_FAILED = "its disk had failed to force what was written"
    DAMAGED = "a log is missing or damaged, or lost what had been forced"
    MOVED_ENDS = "the logs do not end where the broker had left them"
    MACHINE_ENDED = "the broker did not end in order, and its machine was restarted"


def doubt(left: LeftBehind | None, found: FoundLogs) -> Doubt | None:
    """Return why the broker cannot vouch for its logs, or None if it can."""
    if left is None:
        return Doubt.NEW
    if left.run != found.run:
        return Doubt.OTHER_DIRECTORY
    if left.force_failed:
        return Doubt.FORCE_FAILED
    if not found.intact:
        return Doubt.DAMAGED
    if left.ends is not None:
        # Replicas may have been added or removed meanwhile: their logs prove nothing.
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
        """Record the start. Return the generation from now on, and the reason if it is a new one.

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
            begun = LeftBehind(generation, run, None, found.boot)
            version = 0 if record is None else record.version
            if self._store.put(self._key, encode(begun), version) is not None:
                return generation, reason

    def end(self, run: str, ends: Ends) -> None:
        """Record that the run ended in order: all logs are forced and closed, at these ends."""
        self._change(run, ends=ends)

    def force_failed(self, run: str) -> None:
        """Record that a force has failed, so this run's writes may be missing."""
        self._change(run, force_failed=True)

    def begin_generation(self, run: str, generation: Generation) -> None:
        """Begin another generation of the logs while the run goes on."""
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


def encode(left: LeftBehind) -> dict[str, Any]:
    """Return what the store holds."""
    value: dict[str, Any] = msgspec.to_builtins(left)
    return value


def decode(value: Mapping[str, Any]) -> LeftBehind:
    """Return what a record's value says."""
    return msgspec.convert(value, LeftBehind)


learn_types(LeftBehind)
