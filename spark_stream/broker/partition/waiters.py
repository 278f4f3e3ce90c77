"""Who waits for a partition: appends and reads, and threads that want its lock.

Appends wait for their acknowledgements, reads for something to see. The partition's core
(``consistency.partition.replica``) gives each waiter a number; its effects list the waiters to
release. :class:`Callers` has the caller of each number. All of it runs under the partition's lock.

Whoever appends holds the lock while the disk takes the bytes. A thread that serves a follower, for
all partitions of its stream, must not wait for that. So it queues its work at the lock: the thread
does it itself if the lock is free; otherwise the holder does it right after releasing the lock.

Why no work is forgotten: work is queued before its owner tries the lock, and a holder looks for
work after it has released the lock. So if a release and a new piece of work cross, one of the two
threads sees the work.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVarTuple

from msgspec import Struct

from spark_stream.consistency.ids import Offset
from spark_stream.consistency.partition.admission import Flaw
from spark_stream.consistency.partition.effects import Abandon, Answer, Disown, Effects, Wake
from spark_stream.errors import IsologError, NotLeader, UnknownOutcome
from spark_stream.loggers import logger_of
from spark_stream.storage.format.log_format import Prepared

logger = logger_of(__name__)

Ts = TypeVarTuple("Ts")
WakeUp = Callable[[], None]
Work = Callable[..., tuple[WakeUp, ...]]
"""Runs under a partition's lock; returns what to call after its release."""


def wake_all(woken: Iterable[WakeUp]) -> None:
    """Wake those who wait, without the partition's lock; one that fails keeps no other waiting."""
    for wake in woken:
        try:
            wake()
        except Exception:
            logger.exception("what waits for a partition could not be woken")


class PartitionLock:
    """A lock that one thread must not take twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: deque[tuple[Work, tuple[object, ...]]] = deque()

    def acquire(self, timeout: float = -1) -> bool:
        """Wait ``timeout`` seconds at most, without limit if negative.

        Return whether the lock was taken.
        """
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release it, then do the work that was left meanwhile."""
        self._lock.release()
        if self._left:
            self._work_off()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def do_soon(self, work: Callable[[*Ts], tuple[WakeUp, ...]], *args: *Ts) -> None:
        """Call ``work(*args)`` under the lock, now or when its holder releases it. Never wait.

        The calls are made in their order. Their errors are logged: their owner may be gone.
        """
        self._left.append((work, args))
        self._work_off()

    def _work_off(self) -> None:
        while self._left and self._lock.acquire(blocking=False):
            woken: tuple[WakeUp, ...] = ()
            try:
                while self._left:
                    woken += _do(*self._left.popleft())
            finally:
                self._lock.release()
            wake_all(woken)


def _do(work: Work, args: tuple[object, ...]) -> tuple[WakeUp, ...]:
    try:
        return work(*args)
    except Exception:
        logger.exception("work left to the holder of a partition's lock failed")
        return ()


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


class Acknowledgement:
    """A handle on an append that is not yet replicated as far as its isolation requires."""

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self._settled = threading.Event()
        self._failure: IsologError | None = None
        self._heard: tuple[Callable[..., None], tuple[object, ...]] | None = None

    def settle(self, failure: IsologError | None = None) -> WakeUp:
        """Note that the append is safe, or never will be; return what to call without any lock."""
        self._failure = failure
        self._settled.set()
        return self._call

    def when_settled(self, heard: Callable[[*Ts], None], *args: *Ts) -> None:
        """Call ``heard(*args)`` when the append is settled (now if it is), perhaps twice."""
        self._heard = heard, args
        if self._settled.is_set():
            heard(*args)

    def _call(self) -> None:
        if self._heard is not None:
            heard, args = self._heard
            heard(*args)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the append is safe.

        Return False after the timeout; raise if it will never be safe.
        """
        settled = self._settled.wait(timeout_s)
        if self._failure is not None:
            raise self._failure
        return settled


class Callers:
    """Those who wait for one partition; ``partition`` is its name in errors."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._numbers = itertools.count()
        self._appends: dict[int, Acknowledgement] = {}
        self._reads: dict[int, WakeUp] = {}

    @property
    def reads(self) -> int:
        """How many reads wait."""
        return len(self._reads)

    def new_number(self) -> int:
        """Return a number that no other caller has."""
        return next(self._numbers)

    def add_append(self, number: int) -> Acknowledgement:
        """Let an append wait under this number. Return what it waits for."""
        acknowledgement = self._appends[number] = Acknowledgement(number)
        return acknowledgement

    def add_read(self, number: int, wake: WakeUp) -> None:
        """Let a read wait under this number until it is woken."""
        self._reads[number] = wake

    def remove(self, number: int) -> None:
        """Remove the caller of this number: it does not wait any more."""
        self._appends.pop(number, None)
        self._reads.pop(number, None)

    def carry_out(self, effects: Effects) -> tuple[WakeUp, ...]:
        """Settle appends as the effects say.

        Return what to call when the lock is free: appends are acknowledged, then reads woken.
        """
        settled: list[WakeUp] = []
        woken: list[WakeUp] = []
        for effect in effects:
            if isinstance(effect, Wake):
                woken += [self._reads.pop(number) for number in effect.waiters]
            elif isinstance(effect, Answer):
                settled += [self._appends.pop(number).settle() for number in effect.tickets]
            elif isinstance(effect, Disown):
                for number in effect.tickets:
                    cut = UnknownOutcome(f"{self._partition}: a new leader cut the records off")
                    settled.append(self._appends.pop(number).settle(cut))
            elif isinstance(effect, Abandon):
                for number in effect.tickets:
                    settled.append(self._appends.pop(number).settle(self._abandoned()))
        return (*settled, *woken)

    def end_all(self, failure: IsologError) -> tuple[WakeUp, ...]:
        """Let all appends fail and all reads end; return what to call when the lock is free."""
        others_lead = isinstance(failure, NotLeader)
        settled = [
            each.settle(self._abandoned() if others_lead else failure.again())
            for each in self._appends.values()
        ]
        woken = (*settled, *self._reads.values())
        self._appends.clear()
        self._reads.clear()
        return woken

    def _abandoned(self) -> NotLeader:
        """Return the error of an append that is in the log; another leader will acknowledge it."""
        return NotLeader(f"{self._partition}: another broker leads now", leader="", appended=True)
