"""What a partition answers to an append, and what is still to be done for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVarTuple

from msgspec import Struct

from spark_stream.consistency.ids import Offset
from spark_stream.consistency.partition.admission import Flaw
from spark_stream.errors import IsologError, UnknownOutcome
from spark_stream.loggers import logger_of
from spark_stream.storage.log.log import Prepared

logger = logger_of(__name__)

Ts = TypeVarTuple("Ts")
WakeUp = Callable[[], None]


def wake_all(woken: Iterable[WakeUp]) -> None:
    """Wake those who wait, without the partition's lock; one that fails keeps no other waiting."""
    for wake in woken:
        try:
            wake()
        except Exception:
            logger.exception("what waits for a partition could not be woken")


class Appended(Struct, frozen=True):
    """What became of a message: ``count`` records from ``offset`` on are in the log.

    ``refused`` is the error for the first bad record, if there was one; ``count`` is the number of
    records before it. ``duplicate``: they were in the log already.
    """

    offset: Offset
    count: int
    refused: IsologError | None = None
    duplicate: bool = False


def unknown_outcome(done: Appended, topic: str, partition: int, why: str) -> UnknownOutcome:
    """Return the error for records that are in this leader's log and may be in no other.

    It has no ``kept``: none of them is acknowledged.
    """
    return UnknownOutcome(
        f"{topic}/{partition}: offsets {done.offset} to {done.offset + done.count - 1} are in the"
        f" leader's log and {why}",
        topic=topic,
        partition=partition,
        offset=int(done.offset),
        count=done.count,
    )


class Candidate(Struct):
    """A message that is inspected and encoded, so all that is left needs the partition's lock.

    ``prepared`` is None where none of its records is kept.
    """

    prepared: Prepared | None
    flaw: Flaw | None


class Acknowledgement:
    """A handle on an append that is not yet replicated as far as its isolation requires."""

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self._settled = threading.Event()
        self._failure: IsologError | None = None
        self._heard: WakeUp = lambda: None

    def settle(self, failure: IsologError | None = None) -> WakeUp:
        """Note that the append is safe, or never will be; return what to call without any lock."""
        self._failure = failure
        self._settled.set()
        return self._heard

    def when_settled(self, heard: Callable[[*Ts], None], *args: *Ts) -> None:
        """Call ``heard(*args)`` when the append is settled (now if it is), perhaps twice."""
        self._heard = partial(heard, *args)
        if self._settled.is_set():
            heard(*args)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the append is safe.

        Return False after the timeout; raise if it will never be safe.
        """
        settled = self._settled.wait(timeout_s)
        if self._failure is not None:
            raise self._failure
        return settled


class Taken(Struct):
    """A message that the partition has judged and appended.

    It is acknowledged at once if there is no ``pending`` acknowledgement to wait for. ``woken`` are
    the reads that it satisfies, to be woken after it has been acknowledged.
    """

    appended: Appended
    pending: Acknowledgement | None = None
    woken: tuple[WakeUp, ...] = ()

    def take_woken(self) -> tuple[WakeUp, ...]:
        """Return the reads to wake; a second call returns none."""
        woken, self.woken = self.woken, ()
        return woken


class OpenTransaction(Struct, frozen=True):
    """A producer's part of an open transaction in a partition."""

    transaction: int
    producer_id: int
    first_offset: Offset
