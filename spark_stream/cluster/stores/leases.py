"""Leases: the evidence that brokers are alive, without a shared clock.

A broker renews its lease by a change of its entry on a board. Others see the change, and measure
its age by their own clocks. The entry also has the lease's duration, so brokers may have different
settings.

Invariant: when a lease expires for an observer, it had expired before by the holder's own clock,
and the holder's next renewal fails. Or the holder has released the lease. Or the holder's process
has ended, so that it cannot act on a lease at all. (As long as their clocks run equally fast: a
broker steps down a little earlier.) It holds because each side errs on the safe side:

* the holder counts from the moment before it wrote a renewal,
* an observer counts from the moment after it first read that renewal, up to the moment before it
  read that there is no later one.

A board that can detect the end of a process removes its lease immediately. A paused process keeps
its lease until it expires.

An observer that looks for the first time grants the lease its full time from then on.

A holder whose lease expired once may not act on it again (:meth:`Lease.may_serve`), though it can
renew it: others may have taken its place. It steps down, takes a new lease, and reads the others'
records before it serves.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.environment import Clock
from spark_stream.errors import DirectoryInUse, StorageFailure

DURATION_S: Final = 3.0
"""The duration of a lease without a renewal, unless it is configured."""
_RENEWALS: Final = 6  # in a lease's duration: it outlives five of them that come late
_MARGIN: Final = 0.1  # of a lease's duration: how much earlier its holder ceases to serve


class Renewal(Struct, frozen=True):
    """A lease on a board: its holder's incarnation, its number of renewals, and its duration."""

    incarnation: str
    count: int
    duration_s: float


class LeasePlace(Protocol):
    """One broker's place on a board. All calls may raise ``StorageFailure``."""

    def write(self, count: int) -> bool:
        """Write the count. False, with nothing written, if another incarnation has the place."""

    def clear(self) -> None:
        """Remove the lease, unless another incarnation has the place."""

    def close(self) -> None:
        """Close open files. The lease stays as it is shown."""


class IdLock(Protocol):
    """A lock that makes this process the only broker of its id, until :meth:`release`."""

    def release(self) -> None:
        """Release the id, so that another process can take it."""


class Board(Protocol):
    """A board of leases, which all brokers read. Its calls may raise ``StorageFailure``."""

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> LeasePlace:
        """Take the broker's place, with count 0. Writes of earlier incarnations are ignored."""

    def read(self, broker_id: str) -> Renewal | None:
        """Read the broker's place, or None if it is empty, or the broker's process has ended."""


class SharedBoard(Board, Protocol):
    """A board of several processes, on which one of them can lock the id of a broker.

    A copied directory has the id of the broker that it was copied from, and so may a broker on
    another host. Both would lead the same partitions, each in its own files. So a broker locks its
    id before it opens its logs.
    """

    def lock_id(self, broker_id: str, directory: Path) -> IdLock:
        """Lock the id of the broker that has this directory open.

        Raises:
            DirectoryInUse: another process is the broker of this id.
        """

    def running(self) -> list[str]:
        """Return the ids of live brokers.

        In etcd the locks of all others, even paused ones, are removed.
        """

    def close(self) -> None:
        """Close the board's files or connections."""


def id_in_use(broker_id: str, directory: Path) -> DirectoryInUse:
    """Return the error that another process is the broker of this id."""
    return DirectoryInUse(
        f"broker {broker_id} of this store runs already, in another directory than {directory}: one"
        " is a copy of the other, or both were given the same id",
        path=str(directory),
        hint="Start another broker of the store in an empty directory, with an id of its own.",
    )


class Lease:
    """One incarnation's lease, which it holds from construction for as long as it renews it."""

    def __init__(
        self,
        board: Board,
        broker_id: str,
        incarnation: str,
        clock: Clock,
        duration_s: float,
        after: Lease | None = None,
    ) -> None:
        """``after``: the incarnation's expired lease. Observers can tell the new lease from it."""
        self._clock = clock
        self._duration = duration_s
        self._count = 0
        self._was_over = False
        self._renewed_at = clock.monotonic()
        self._place = board.take_place(broker_id, incarnation, duration_s)
        if after is not None:
            after._place.close()
            self._count = after._count + 1
            self._was_over = not self._place.write(self._count)

    def renew(self) -> bool:
        """Renew the lease. Return False if it had expired, or another incarnation took its place.

        Others may have acted on that: the broker has to step down. A lease that expired once stays
        expired, also if the broker's reaction fails and is retried.
        """
        if self._was_over:
            return False
        started = self._clock.monotonic()
        in_time = started < self._renewed_at + self._duration
        if not in_time:
            self._was_over = True  # before the new time is set, because other threads read both
        self._count += 1
        if not self._place.write(self._count):
            self._was_over = True
            return False
        self._renewed_at = started
        return in_time

    def left_s(self) -> float:
        """Return the time until the lease expires, 0 or less if it has expired."""
        return self._renewed_at + self._duration - self._clock.monotonic()

    def may_serve(self) -> bool:
        """Return whether the broker may act on the lease: it never ended and will not end soon."""
        # In this order: a late renewal sets the flag before it moves the time.
        return self.left_s() > self._duration * _MARGIN and not self._was_over

    def release(self) -> None:
        """End the lease immediately for all observers. The broker has stopped serving before."""
        self._was_over = True
        self._place.clear()


class Sighting(Struct, frozen=True):
    """An observer's latest sight of a lease.

    The lease lasts from ``first_read_at`` on, by the observer's clock. This time moves forward if
    the observer could not read the board. ``changed_at`` is the moment of the first read.
    """

    renewal: Renewal
    first_read_at: float
    changed_at: float


def note(before: Sighting | None, shown: Renewal | None, read_at: float) -> Sighting | None:
    """Return an observer's sighting after a read that ended no later than ``read_at``."""
    if shown is None:
        return None
    if before is not None and before.renewal == shown:
        return before
    return Sighting(shown, read_at, read_at)


def time_left(sighting: Sighting, asked_at: float) -> float:
    """Return the time until the lease expires. ``asked_at``: not after the last read."""
    return sighting.first_read_at + sighting.renewal.duration_s - asked_at


class Leases:
    """All leases of a board, as one broker sees them. From any thread."""

    def __init__(self, board: Board, clock: Clock, duration_s: float) -> None:
        """``duration_s``: the duration of this broker's own lease."""
        self._board = board
        self._clock = clock
        self.duration_s = duration_s
        self._lock = threading.Lock()
        self._looking: dict[str, threading.Lock] = {}
        self._seen: dict[str, Sighting] = {}
        self._blind_since: float | None = None  # while no read succeeds
        self._own: Lease | None = None

    def hold(self, broker_id: str, incarnation: str, after: Lease | None = None) -> Lease:
        """Take the broker's own lease, replacing its earlier incarnation's, or ``after``."""
        self._own = Lease(self._board, broker_id, incarnation, self._clock, self.duration_s, after)
        return self._own

    def is_overdue(self) -> bool:
        """Return whether more than half of the own lease has passed since it was renewed."""
        return self._own is not None and self._own.left_s() < self.duration_s / 2

    @property
    def pause_s(self) -> float:
        """The pause between two renewals of the own lease."""
        return self.duration_s / _RENEWALS

    def alive(self, broker_id: str) -> bool:
        """Return whether the broker has a lease that may not have expired."""
        return self.left_s(broker_id) > 0

    def is_renewed(self, broker_id: str, incarnation: str) -> bool:
        """Return whether this observer saw the incarnation's lease change within its duration.

        This reads nothing. A lease that is not renewed may still last (:meth:`alive`).
        """
        seen = self._seen.get(broker_id)
        if seen is None or seen.renewal.incarnation != incarnation:
            return False
        return self._clock.monotonic() < seen.changed_at + seen.renewal.duration_s

    def holder(self, broker_id: str) -> str | None:
        """Return the incarnation of the broker whose lease may still hold, or None."""
        if self.left_s(broker_id) <= 0:
            return None
        seen = self._seen.get(broker_id)
        return None if seen is None else seen.renewal.incarnation

    def left_s(self, broker_id: str) -> float:
        """Return the least time until the broker's lease expires without a renewal."""
        with self._lock:
            looking = self._looking.setdefault(broker_id, threading.Lock())
        with looking:  # a board on another host may take long to answer for one of them
            asked_at = self._clock.monotonic()
            shown = self._read(broker_id, asked_at)
            seen = note(self._seen.get(broker_id), shown, self._clock.monotonic())
            if seen is None:
                self._seen.pop(broker_id, None)
                return 0.0
            self._seen[broker_id] = seen
            return max(0.0, time_left(seen, asked_at))

    def _read(self, broker_id: str, now: float) -> Renewal | None:
        """Read the broker's place. StorageFailure if the board cannot be read.

        After a read outage, or if the own lease has nearly expired, every lease counts as valid for
        at least half of its duration: other brokers were probably cut off from the board too, and
        renew their leases in a moment.
        """
        try:
            shown = self._board.read(broker_id)
        except StorageFailure:
            with self._lock:
                if self._blind_since is None:
                    self._blind_since = now
            raise
        with self._lock:
            since, self._blind_since = self._blind_since or now, None
            is_blind = self._clock.monotonic() - since > self.duration_s / _RENEWALS
            is_behind = self._own is not None and self._own.left_s() < self.duration_s / 3
            if is_blind or is_behind:
                least = self._clock.monotonic() - self.duration_s / 2
                for other, seen in list(self._seen.items()):
                    self._seen[other] = replace(seen, first_read_at=max(seen.first_read_at, least))
        return shown
