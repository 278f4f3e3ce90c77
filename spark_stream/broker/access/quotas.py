"""Quotas: the bytes that a principal may write and read per second, and its connections.

Each principal has a bucket for writes and one for reads. Bytes are charged when they have passed,
and time pays for them. A caller that is charged gets a *mark*, and may continue once the mark is
paid. So streams of one principal continue in the order in which they were charged, and a changed
limit applies immediately to those that wait.

This module never blocks. The owner of an embedded broker has no quota.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from spark_stream.access.callers import Caller, KnownBy
from spark_stream.access.rules import ANYBODY, Operation, Quota
from spark_stream.environment import Clock
from spark_stream.wire.cluster_messages import PrincipalUse

LOOK_S: Final = 0.5
"""The longest wait before the quota is read again: it may have changed."""
_BURST_S: Final = 1.0
"""A principal that was idle may use its bytes of this time in one burst."""
_HELD_PART: Final = 16
_HELD_BYTES_MIN: Final = 32 << 20
"""Two of the largest batches, however little memory the broker has."""
_NO_LIMIT: Final = Quota()


class Bucket:
    """The bytes that were charged to one principal, and those that time has paid.

    Both only grow. The paid bytes are ahead by the burst at most.
    """

    def __init__(self, rate: int, now: float) -> None:
        self._charged = 0
        self._paid = rate * _BURST_S
        self._at = now
        self.delayed_s = 0.0
        """The time in which a charge was unpaid."""

    def charge(self, nbytes: int, rate: int, now: float) -> int:
        """Charge bytes. Return the mark at which they are paid."""
        self._pay(rate, now)
        self._charged += nbytes
        return self._charged

    def seconds_left(self, mark: int, rate: int, now: float) -> float:
        """Return the time until the mark is paid."""
        self._pay(rate, now)
        return max(0.0, (mark - self._paid) / rate)

    def _pay(self, rate: int, now: float) -> None:
        passed_s, self._at = now - self._at, now
        owed = max(0.0, self._charged - self._paid)
        self.delayed_s += min(passed_s, owed / rate)
        self._paid = min(self._paid + passed_s * rate, self._charged + rate * _BURST_S)


class Quotas:
    """The quotas of one broker, for any thread. ``limits``: those on record, by principal.

    ``memory_bytes``: the broker's memory for batches. Batches that wait for one principal's quota
    may take a part of it.
    """

    def __init__(
        self,
        limits: Callable[[], Mapping[str, Quota]],
        clock: Clock,
        memory_bytes: int,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._held_bytes_max = max(memory_bytes // _HELD_PART, _HELD_BYTES_MIN)
        self._lock = threading.Lock()  # guards the rest
        self._buckets: dict[tuple[str, Operation], Bucket] = {}
        self._connections: Counter[str] = Counter()
        self._held: Counter[str] = Counter()  # bytes that wait for a quota

    def limit(self, caller: Caller) -> Quota:
        """Return the quota of a caller: its own, or otherwise that of ``*``."""
        limits = self._limits()
        if not limits or caller.source is KnownBy.SOCKET:
            return _NO_LIMIT
        return limits.get(caller.principal) or limits.get(ANYBODY, _NO_LIMIT)

    def charge(self, caller: Caller, operation: Operation, nbytes: int) -> int:
        """Charge bytes to a caller. Return the mark to wait for. ``operation``: read or write."""
        rate = self._rate(caller, operation)
        if rate is None:
            return 0
        with self._lock:
            bucket = self._bucket(caller.principal, operation, rate)
            return bucket.charge(nbytes, rate, self._clock.monotonic())

    def seconds_left(self, caller: Caller, operation: Operation, mark: int) -> float:
        """Return the caller's wait for a mark."""
        rate = self._rate(caller, operation)
        if rate is None:
            return 0.0
        with self._lock:
            bucket = self._bucket(caller.principal, operation, rate)
            return bucket.seconds_left(mark, rate, self._clock.monotonic())

    def _rate(self, caller: Caller, operation: Operation) -> int | None:
        limit = self.limit(caller)
        is_write = operation is Operation.WRITE
        return limit.write_bytes_per_s if is_write else limit.read_bytes_per_s

    def _bucket(self, principal: str, operation: Operation, rate: int) -> Bucket:
        key = principal, operation
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = Bucket(rate, self._clock.monotonic())
        return found

    def enter(self, caller: Caller) -> bool:
        """Count a connection of the caller, if it may have one more."""
        most = self.limit(caller).connections
        with self._lock:
            if most is not None and self._connections[caller.principal] >= most:
                return False
            self._connections[caller.principal] += 1
            return True

    def leave(self, caller: Caller) -> None:
        """Count one connection fewer."""
        with self._lock:
            self._connections[caller.principal] -= 1
            if not self._connections[caller.principal]:
                del self._connections[caller.principal]

    def hold(self, caller: Caller, nbytes: int) -> bool:
        """Count bytes that wait for the caller's quota. Return False if they are too many."""
        with self._lock:
            if self._held[caller.principal] + nbytes > self._held_bytes_max:
                return False
            self._held[caller.principal] += nbytes
            return True

    def release(self, caller: Caller, nbytes: int) -> None:
        """Subtract bytes that wait no longer."""
        with self._lock:
            self._held[caller.principal] -= nbytes
            if not self._held[caller.principal]:
                del self._held[caller.principal]

    @property
    def held_bytes(self) -> int:
        """The bytes that wait for a quota."""
        with self._lock:
            return self._held.total()

    def use(self) -> dict[str, PrincipalUse]:
        """Return the use of each principal that is connected or was delayed."""
        with self._lock:
            connections = self._connections.copy()
            delayed = {key: each.delayed_s for key, each in self._buckets.items() if each.delayed_s}
        return {
            name: PrincipalUse(
                connections=connections[name],
                write_delayed_s=delayed.get((name, Operation.WRITE), 0.0),
                read_delayed_s=delayed.get((name, Operation.READ), 0.0),
            )
            for name in sorted(connections.keys() | {name for name, _ in delayed})
        }


class Throttle:
    """The quota of one stream, for the caller's writes or reads."""

    def __init__(self, quotas: Quotas, caller: Caller, operation: Operation) -> None:
        self._quotas = quotas
        self._caller = caller
        self._operation = operation

    def charge(self, nbytes: int) -> int:
        """Charge bytes. Return the mark to wait for."""
        return self._quotas.charge(self._caller, self._operation, nbytes)

    def seconds_left(self, mark: int) -> float:
        """Return the seconds until the charge of this mark is paid."""
        return self._quotas.seconds_left(self._caller, self._operation, mark)
