"""Leases of brokers in etcd: a key for each broker, which is changed by compare-and-set.

etcd's own leases are not used: a member that was deposed still answers their keepalives, and still
revokes them (etcd#15247, etcd#12528). A key that is seen to change needs a quorum for each change.

**The lock of an id** is a second key, which names the owner of the id: a directory, a boot of a
machine, and a start of the broker. It is replaced only by a broker that has watched both keys of
the id for a lease's duration without seeing a change, or that has the same directory open: then the
earlier process has ended. Every renewal of a lease checks that its broker still holds the lock.
Until a broker takes its lease, the lock renews itself.

**Reads.** A watch reports renewals, so the detection of a live broker costs no request. Only a
linearizable read is evidence that a broker is dead: a watch may be late.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from spark_stream.cluster.stores.etcd_client import (
    RANGE,
    TXN,
    EtcdClient,
    EtcdFeed,
    Json,
    decoded,
    encoded,
    is_at,
)
from spark_stream.cluster.stores.etcd_losses import LossKey
from spark_stream.cluster.stores.leases import DURATION_S, Renewal, id_in_use
from spark_stream.cluster.stores.store import end_of
from spark_stream.environment import Clock, Machine
from spark_stream.errors import DirectoryInUse, StorageFailure
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

_ATTEMPTS: Final = 3
_LOOKS: Final = 6  # at another broker's keys, in a lease's duration


class EtcdLeases:
    """The board of one isolog cluster, ``name``, in an etcd cluster."""

    def __init__(
        self,
        client: EtcdClient,
        name: str,
        clock: Clock,
        machine: Machine,
        duration_s: float,
    ) -> None:
        """Take the client, which is closed with the board. ``duration_s``: of the own lease."""
        self._client = client
        self._loss = LossKey(client, name)
        self._ids = f"/{name}/board/ids/"
        self._leases = f"/{name}/board/leases/"
        self._machine = machine
        self._duration_s = duration_s
        end = end_of(self._leases)
        assert end is not None
        self._feed = EtcdFeed(client, self._leases.encode(), end.encode())
        self._known = _KnownRenewals(self._leases, clock)
        self._locks: dict[str, EtcdIdLock] = {}

    def lock_id(self, broker_id: str, directory: Path) -> EtcdIdLock:
        self._client.history.broker = broker_id
        lock = EtcdIdLock(
            self._client,
            self._loss,
            (self._ids + broker_id, self._leases + broker_id),
            directory,
            self._machine.boot_id(),
            self._duration_s,
        )
        if not lock.take():
            raise id_in_use(broker_id, directory)
        self._locks[broker_id] = lock
        return lock

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> EtcdLease:
        """Take the broker's place.

        Raises:
            DirectoryInUse: another process has taken the broker's id.
        """
        lock = self._locks.get(broker_id)
        has_id = None if lock is None else lock.compare
        shown = Renewal(incarnation, 0, duration_s)
        try:
            lease = EtcdLease(self._client, self._loss, self._leases + broker_id, shown, has_id)
        except LeaseTaken:
            if lock is not None and not lock.exists():
                raise DirectoryInUse(
                    f"broker {broker_id} has lost its id: the metadata was restored or migrated"
                    " while this broker was paused or cut off from etcd",
                    path=str(lock.directory),
                    hint="Start the broker again.",
                ) from None
            raise id_in_use(broker_id, lock.directory if lock else Path()) from None
        if lock is not None:
            lock.stop_renewing()
        return lease

    def read(self, broker_id: str) -> Renewal | None:
        lasting = self._known.lasting(broker_id)
        if lasting is not None:
            return lasting
        answer = self._client.read(RANGE, {"key": encoded((self._leases + broker_id).encode())})
        revision = int(answer["header"]["revision"])
        self._feed.start(revision, self._known)
        found = answer.get("kvs", [])
        if not found:
            return self._known.note(broker_id, revision, None)
        return self._known.note(broker_id, _at(found[0]), _renewal(found[0]))

    def running(self) -> list[str]:
        """Return the ids of brokers that renew their leases, and remove the locks of all others.

        It takes the duration of the longest lease, if there are locks. A broker that was only
        paused, or cut off, cannot renew its lease afterwards, and ends.
        """
        before = self._keys()
        ids = [key.removeprefix(self._ids) for key in before if key.startswith(self._ids)]
        if not ids:
            return []
        shown = [_duration_in(each) for each in before.values()]
        time.sleep(max(self._duration_s, *shown) * (1 + 1 / _LOOKS))
        after, alive = self._keys(), []
        for each in ids:
            keys = (self._ids + each, self._leases + each)
            has_changed = any(_at(before.get(key)) != _at(after.get(key)) for key in keys)
            if has_changed or not self._take_away(*keys, before):
                alive.append(each)
            else:
                logger.warning(
                    "broker %s did not shut down cleanly, and has not renewed its lease: if its"
                    " process is only paused, the broker ends when the process continues",
                    each,
                )
        return sorted(alive)

    def _take_away(self, key: str, lease_key: str, found: Mapping[str, Json]) -> bool:
        """Delete the lock of an id if it and the lease are as they were found."""
        compares = [
            is_at(encoded(each.encode()), _at(found.get(each))) for each in (key, lease_key)
        ]
        operation = {"request_delete_range": {"key": encoded(key.encode())}}
        answer = self._client.write(TXN, {"compare": compares, "success": [operation]})
        return bool(answer.get("succeeded"))

    def close(self) -> None:
        self._client.close()
        self._feed.close()

    def _keys(self) -> dict[str, Json]:
        """Return all keys of the board."""
        end = end_of(self._leases) or ""
        asked = {"key": encoded(self._ids.encode()), "range_end": encoded(end.encode())}
        found = self._client.read(RANGE, asked).get("kvs", [])
        return {decoded(each["key"]).decode(): each for each in found}


class EtcdIdLock:
    """The lock of a broker's id: a key with a value that only this process has."""

    def __init__(
        self,
        client: EtcdClient,
        loss: LossKey,
        keys: tuple[str, str],
        directory: Path,
        boot_id: str | None,
        duration_s: float,
    ) -> None:
        """Take nothing yet. ``keys``: of the lock and of the lease."""
        self.directory = directory
        self._client = client
        self._loss = loss
        self._key, self._lease_key = keys
        start = secrets.token_hex(8)
        self._place = f"{boot_id or start} {_identity(directory)} "
        self._value = f"{self._place}{start} {duration_s}"
        self._pause_s = duration_s / _LOOKS
        self._duration_s = duration_s
        self._renewing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def compare(self) -> Json:
        """A comparison of a transaction of etcd that holds while this process has the lock."""
        key = encoded(self._key.encode())
        return {"key": key, "target": "VALUE", "value": encoded(self._value.encode())}

    def take(self) -> bool:
        """Take the lock, within a lease's duration. Return False if another process has it."""
        found, lease = self._found(), self._lease_found()
        if found is not None and not decoded(found.get("value")).decode().startswith(self._place):
            lasts_s = max(self._duration_s, _duration_in(found), _duration_in(lease))
            until = time.monotonic() + lasts_s * (1 + 1 / _LOOKS)
            while time.monotonic() < until:
                time.sleep(self._pause_s)
                now, lease_now = self._found(), self._lease_found()
                if now is None:
                    break  # it has been released
                if (_at(now), _at(lease_now)) != (_at(found), _at(lease)):
                    return False
            else:
                logger.warning("the former holder of this broker's id has not renewed its lease")
            found, lease = now, lease_now
        if not self._put(_at(found), [is_at(encoded(self._lease_key.encode()), _at(lease))]):
            return False
        self._thread = threading.Thread(target=self._renew, name="isolog-id", daemon=True)
        self._thread.start()
        return True

    def exists(self) -> bool:
        """Return whether any process has the id."""
        return self._found() is not None

    def stop_renewing(self) -> None:
        """Stop renewing the lock: the renewals of the lease take its place."""
        self._renewing.set()

    def release(self) -> None:
        self._renewing.set()
        if self._thread is not None:
            self._thread.join(self._client.timeout_s)
        operation = {"request_delete_range": {"key": encoded(self._key.encode())}}
        self._client.write(TXN, {"compare": [self.compare], "success": [operation]})

    def _renew(self) -> None:
        while not self._renewing.wait(self._pause_s):
            try:
                found = self._found()
                mine = found is not None and decoded(found["value"]).decode() == self._value
                if not mine or not self._put(_at(found)):
                    logger.error("another process has taken this broker's id")
                    return
            except StorageFailure as error:
                logger.warning("cannot renew the lock of the broker's id: %s", error.message)

    def _put(self, version: int, conditions: Sequence[Json] = ()) -> bool:
        """Write the value if the key has this version, or if that has been done already."""
        key = encoded(self._key.encode())
        put = {"request_put": {"key": key, "value": encoded(self._value.encode())}}
        compares = [is_at(encoded(self._key.encode()), version), *conditions, self._loss.absent]
        asked = {"compare": compares, "success": [put], "failure": [self._loss.read]}
        answer = self._client.write_again(TXN, asked)
        if answer.get("succeeded"):
            return True
        self._loss.check(answer["responses"][0])
        found = self._found()
        return found is not None and decoded(found.get("value")).decode() == self._value

    def _found(self) -> Json | None:
        return _read(self._client, self._key)

    def _lease_found(self) -> Json | None:
        return _read(self._client, self._lease_key)


class LeaseTaken(Exception):
    """Another process has the broker's lease."""


class EtcdLease:
    """One incarnation's key, as long as no other incarnation has taken it."""

    def __init__(
        self,
        client: EtcdClient,
        loss: LossKey,
        key: str,
        shown: Renewal,
        has_id: Json | None = None,
    ) -> None:
        """``has_id``: the condition of each renewal. It fails once another process has the id."""
        self._client = client
        self._loss = loss
        self._key = key
        self._shown = shown
        self._conditions = [] if has_id is None else [has_id]
        self._version = self._taken()

    def write(self, count: int) -> bool:
        while True:
            version = self._changed(self._operation(count), self._version)
            if version is not None:
                self._version = version
                return True
            # An earlier write that was not answered may have been done: then the key is still ours.
            found = _read(self._client, self._key)
            if found is None or _renewal(found).incarnation != self._shown.incarnation:
                return False
            if self._conditions and _at(found) == self._version:
                return False  # another process has the id
            self._version = _at(found)

    def clear(self) -> None:
        found = _read(self._client, self._key)
        if found is not None and _renewal(found).incarnation == self._shown.incarnation:
            key = {"key": encoded(self._key.encode())}
            self._changed({"request_delete_range": key}, _at(found))

    def close(self) -> None:
        pass

    def _taken(self) -> int:
        """Take the key from an earlier incarnation, and return its version.

        Raises:
            LeaseTaken: another process has the id, or takes the key again and again.
        """
        for _ in range(_ATTEMPTS):
            before = _at(_read(self._client, self._key))
            version = self._changed(self._operation(0), before)
            if version is not None:
                return version
            found = _read(self._client, self._key)
            if found is not None and _at(found) != before and _renewal(found) == self._shown:
                return _at(found)  # it was done, and its answer was lost
        raise LeaseTaken

    def _operation(self, count: int) -> Json:
        shown = {
            "incarnation": self._shown.incarnation,
            "count": count,
            "duration_s": self._shown.duration_s,
        }
        value = encoded(json.dumps(shown).encode())
        return {"request_put": {"key": encoded(self._key.encode()), "value": value}}

    def _changed(self, operation: Json, version: int) -> int | None:
        """Change the key if it has this version and the id is held. Return the new one, or None."""
        key = encoded(self._key.encode())
        compares = [is_at(key, version), *self._conditions, self._loss.absent]
        asked = {"compare": compares, "success": [operation], "failure": [self._loss.read]}
        answer = self._client.write_again(TXN, asked)
        if answer.get("succeeded"):
            return int(answer["header"]["revision"])
        self._loss.check(answer["responses"][0])
        return None


class _KnownLease(Struct, frozen=True):
    """A lease's key at a revision. ``renewal`` is None if it was removed. ``at``: first known."""

    revision: int
    renewal: Renewal | None
    at: float


class _KnownRenewals:
    """The renewals from reads and a watch, in the order of revisions. From any thread."""

    def __init__(self, prefix: str, clock: Clock) -> None:
        self._prefix = prefix
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _KnownLease] = {}

    def lasting(self, broker_id: str) -> Renewal | None:
        """Return a renewal that cannot have expired yet, or None."""
        known = self._known.get(broker_id)
        if known is None or known.renewal is None:
            return None
        lasts = self._clock.monotonic() < known.at + known.renewal.duration_s
        return known.renewal if lasts else None

    def note(self, broker_id: str, revision: int, renewal: Renewal | None) -> Renewal | None:
        """Record the value of a key at a revision. Return its newest renewal."""
        with self._lock:
            known = self._known.get(broker_id)
            if known is None or known.revision < revision:
                known = _KnownLease(revision, renewal, self._clock.monotonic())
                self._known[broker_id] = known
            return known.renewal

    def take(self, events: Sequence[Json]) -> None:
        for each in events:
            broker_id = decoded(each["kv"]["key"]).decode().removeprefix(self._prefix)
            renewal = None if each.get("type") == "DELETE" else _renewal(each["kv"])
            self.note(broker_id, int(each["kv"]["mod_revision"]), renewal)

    def forget(self, revision: int) -> None:
        """Do nothing: old renewals are still evidence that brokers were alive."""


def _identity(directory: Path) -> str:
    """Return the identity of a directory, which a copy on the same machine does not have."""
    found = directory.stat()
    return f"{found.st_dev} {found.st_ino}"


def _read(client: EtcdClient, key: str) -> dict[str, Any] | None:
    """Return the present value of a key, by a linearizable read."""
    found = client.read(RANGE, {"key": encoded(key.encode())}).get("kvs", [])
    return found[0] if found else None


def _duration_in(found: Json | None) -> float:
    """Return the duration of the lease, or of the lock of an id, in a key."""
    if found is None:
        return 0.0
    text = decoded(found.get("value")).decode("utf-8", "replace")
    if text.startswith("{"):
        return _renewal(found).duration_s
    with suppress(ValueError):
        return float(text.rpartition(" ")[2])
    return DURATION_S


def _at(found: Json | None) -> int:
    """Return a key's version, or 0 if there is no such key."""
    return 0 if found is None else int(found["mod_revision"])


def _renewal(found: Json) -> Renewal:
    try:
        shown = json.loads(decoded(found.get("value")))
        return Renewal(shown["incarnation"], int(shown["count"]), float(shown["duration_s"]))
    except (ValueError, KeyError, TypeError):
        # Somebody has tampered with the key: it is nobody's lease, and is not renewed.
        return Renewal("", 0, DURATION_S)
