"""Pending appends and reads of a partition, and the work that is queued at its lock.

Appends wait for their acknowledgements, and reads for new records. In the partition's core
(``consistency.partition.replica``) each waiter is a number, and the core's effects list the numbers
to release. :class:`PartitionWaiters` maps the numbers to callbacks, under the partition's lock.

An appending thread holds the lock during its write to the disk. A thread that serves a follower
serves all partitions of its stream, so it must not wait for that write. It queues its work at the
lock. If the lock is free, it does the work itself. Otherwise the holder does it after the release.

No work is lost: a thread queues its work before it tries the lock, and a holder checks the queue
after the release. So if a release and new work cross, one of the two threads finds the work.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVarTuple

import pyarrow as pa
from msgspec import Struct

from spark_stream.consistency.ids import Offset
from spark_stream.consistency.partition.admission import Flaw
from spark_stream.consistency.partition.effects import Abandon, Answer, Disown, Effects, Wake
from spark_stream.errors import IsologError, NotLeader, UnknownOutcome
from spark_stream.loggers import logger_of
from spark_stream.storage.format.log_format import PreparedBatch

logger = logger_of(__name__)

Ts = TypeVarTuple("Ts")
WakeUp = Callable[[], None]
Work = Callable[..., tuple[WakeUp, ...]]
"""Runs under a partition's lock and returns the callbacks to run after its release."""


def wake_all(woken: Iterable[WakeUp]) -> None:
    """Call these callbacks, without the partition's lock. If one fails, the rest still run."""
    for wake in woken:
        try:
            wake()
        except Exception:
            logger.exception("the callback of a pending append or read failed")


class PartitionLock:
    """The lock of a partition, with a queue of work for its holder. It is not reentrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queued: deque[tuple[Work, tuple[object, ...]]] = deque()

    def acquire(self, timeout: float = -1) -> bool:
        """Acquire the lock within ``timeout`` seconds (negative: no limit).

        Return False after the timeout.
        """
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock, then do the work that was queued while it was held."""
        self._lock.release()
        if self._queued:
            self._run_queued()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def run_soon(self, work: Callable[[*Ts], tuple[WakeUp, ...]], *args: *Ts) -> None:
        """Call ``work(*args)`` under the lock, now or when its holder releases it. Never block.

        The calls are made in the order of this method's calls. Their errors are logged.
        """
        self._queued.append((work, args))
        self._run_queued()

    def _run_queued(self) -> None:
        while self._queued and self._lock.acquire(blocking=False):
            woken: tuple[WakeUp, ...] = ()
            try:
                while self._queued:
                    woken += _do(*self._queued.popleft())
            finally:
                self._lock.release()
            wake_all(woken)


def _do(work: Work, args: tuple[object, ...]) -> tuple[WakeUp, ...]:
    try:
        return work(*args)
    except Exception:
        logger.exception("queued work on a partition failed")
        return ()


class Appended(Struct, frozen=True):
    """The result of an append: ``count`` records from ``offset`` on are in the log.

    ``refused`` is the error of the first bad record, if there is one. Then ``count`` is the number
    of records before it. ``duplicate``: an earlier append has stored the records.
    """

    offset: Offset
    count: int
    refused: IsologError | None = None
    duplicate: bool = False


def unknown_outcome(done: Appended, topic: str, partition: int, why: str) -> UnknownOutcome:
    """Return the error for records that are in this leader's log and perhaps in no other.

    The error has no ``kept``, because none of the records is acknowledged.
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
    """An inspected and encoded message. The rest of its append needs the partition's lock.

    ``prepared`` and ``rows`` are None if every record of the message is dropped. ``rows`` are the
    admitted records, in the schema of their stream. ``nbytes``: their size without compression.
    """

    prepared: PreparedBatch | None
    rows: pa.RecordBatch | None
    flaw: Flaw | None
    nbytes: int = 0


class AppendResult(Struct):
    """The outcome of a checked message: appended, a duplicate, or without a good record.

    Without a ``pending`` acknowledgement it can be acknowledged now. ``woken`` has the callbacks of
    the reads that it satisfies. An acknowledgement on another connection comes before them.
    """

    appended: Appended
    pending: Acknowledgement | None = None
    woken: tuple[WakeUp, ...] = ()

    def take_woken(self) -> tuple[WakeUp, ...]:
        """Remove and return the callbacks of the reads to wake."""
        woken, self.woken = self.woken, ()
        return woken


class Acknowledgement:
    """The pending acknowledgement of an append that its isolation level makes wait."""

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self._settled = threading.Event()
        self._failure: IsologError | None = None
        self._callback: tuple[Callable[..., None], tuple[object, ...]] | None = None

    def settle(self, failure: IsologError | None = None) -> WakeUp:
        """Record success, or the failure. Return the callback, to be run without any lock."""
        self._failure = failure
        self._settled.set()
        return self._call

    def when_settled(self, callback: Callable[[*Ts], None], *args: *Ts) -> None:
        """Call ``callback(*args)`` when the append is settled, or now. It may be called twice."""
        self._callback = callback, args
        if self._settled.is_set():
            callback(*args)

    def _call(self) -> None:
        if self._callback is not None:
            callback, args = self._callback
            callback(*args)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the acknowledgement. Return False after the timeout.

        Raises:
            IsologError: the append has failed.
        """
        settled = self._settled.wait(timeout_s)
        if self._failure is not None:
            raise self._failure
        return settled


class PartitionWaiters:
    """The pending appends and reads of one partition. ``partition`` is its name in errors."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._numbers = itertools.count()
        self._appends: dict[int, Acknowledgement] = {}
        self._reads: dict[int, WakeUp] = {}

    def new_number(self) -> int:
        """Return an unused number."""
        return next(self._numbers)

    def add_append(self, number: int) -> Acknowledgement:
        """Register a pending append under this number. Return its acknowledgement."""
        acknowledgement = self._appends[number] = Acknowledgement(number)
        return acknowledgement

    def add_read(self, number: int, wake: WakeUp) -> None:
        """Register a pending read under this number."""
        self._reads[number] = wake

    def remove(self, number: int) -> None:
        """Remove the waiter of this number, if there is one."""
        self._appends.pop(number, None)
        self._reads.pop(number, None)

    def carry_out(self, effects: Effects) -> tuple[WakeUp, ...]:
        """Settle appends by the effects.

        Return the callbacks to run after the lock's release: those of appends, then of reads.
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
                    cut = UnknownOutcome(f"{self._partition}: a new leader truncated the records")
                    settled.append(self._appends.pop(number).settle(cut))
            elif isinstance(effect, Abandon):
                for number in effect.tickets:
                    settled.append(self._appends.pop(number).settle(self._abandoned()))
        return (*settled, *woken)

    def take_reads(self) -> dict[int, WakeUp]:
        """Remove all pending reads. Return their callbacks by number, to be run unlocked."""
        taken, self._reads = self._reads, {}
        return taken

    def end_all(self, failure: IsologError) -> tuple[WakeUp, ...]:
        """End all waits, appends with this failure. Return the callbacks to run unlocked."""
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
        """Return the error of an append in the log that only the next leader can acknowledge."""
        return NotLeader(f"{self._partition}: another broker leads now", leader="", appended=True)
