"""A metadata store in etcd.

**Keys.** Records lie under ``/NAME/records/``, their keys in UTF-8, their values as JSON, so that
``etcdctl get --prefix /NAME/`` shows them. A record's version is its ``mod_revision``, and a
compare-and-set is a transaction with one compare.

**The head.** Every transaction that changes records also puts ``/NAME/head``, with a value of its
own. So one small read tells at which revision the last change was, and the head's history tells who
made the change of a revision.

**Unknown outcomes.** A transaction that was not answered may be done, or may be done later. It is
looked for: if a record that it was to change has the revision of a head with this transaction's
value, it is done, and the revision before it tells which of its compares held. If a record that it
was to change is still as it was, it is not done, and it is sent again: should both arrive, the
second finds another version. Otherwise others have changed all of the records since, and nobody can
tell: the call fails.

**Changes.** A watch follows all keys. Who asks what has changed reads the head, and waits until the
watch has come so far. The last changes are kept; who asks for older ones, or after a compaction,
gets all records.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from spark_stream.cluster.stores.etcd_client import (
    EtcdClient,
    EtcdCompacted,
    EtcdWatch,
    Json,
    decoded,
    encoded,
)
from spark_stream.cluster.stores.store import (
    Changes,
    Delete,
    Put,
    StoreRecord,
    check_distinct,
    end_of,
)
from spark_stream.errors import MetadataRefused, MetadataUnavailable, StorageFailure

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 100
"""Changes in one transaction; etcd takes 128 operations, and 1.5 MiB."""
_BYTES_AT_ONCE: Final = 1 << 20
_KEPT: Final = 10_000
"""Changes that a store remembers for those who ask for them."""
_PAUSE_S: Final = 0.1
_RANGE: Final = "/v3/kv/range"
_TXN: Final = "/v3/kv/txn"


class _Change(Struct, frozen=True):
    """A compare-and-set. ``text``: the value as JSON; None deletes."""

    key: str
    text: str | None
    expected: int

    @property
    def size(self) -> int:
        return len(self.key) + len(self.text or "")


class EtcdStore:
    """The records of one isolog cluster, ``name``, in an etcd cluster; from any thread."""

    def __init__(self, client: EtcdClient, name: str) -> None:
        """Take the client, which is closed with the store."""
        self._client = client
        self._head = f"/{name}/head".encode()
        self._records = f"/{name}/records/"
        self._feed = _Feed(client, f"/{name}/", self._records)

    def get(self, key: str) -> StoreRecord | None:
        """Return the record, or None."""
        found = self._client.read(_RANGE, {"key": self._encoded(key)}).get("kvs", [])
        return self._record(found[0]) if found else None

    def list(self, prefix: str) -> Sequence[StoreRecord]:
        """Return all records whose keys start with ``prefix``, in the order of their keys."""
        return self._range(prefix)[1]

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        """Write if the record's version is ``expected``; return the new version, or None."""
        return self._apply([_Change(key, _text(value), expected)])[0]

    def delete(self, key: str, expected: int) -> bool:
        """Delete if the record's version is ``expected``."""
        return expected != 0 and self._apply([_Change(key, None, expected)])[0] is not None

    def put_many(self, puts: Sequence[Put]) -> Sequence[int | None]:
        """Put many records, a hundred at a time."""
        check_distinct(puts)
        changes = [_Change(each.key, _text(each.value), each.expected) for each in puts]
        return [done for chunk in _chunks(changes) for done in self._apply(chunk)]

    def delete_many(self, deletes: Sequence[Delete]) -> Sequence[bool]:
        """Delete many records, a hundred at a time."""
        check_distinct(deletes)
        # Version 0 says that there is no record, so that one is left out.
        changes = [_Change(each.key, None, each.expected) for each in deletes if each.expected]
        done = [done for chunk in _chunks(changes) for done in self._apply(chunk)]
        deleted = {each.key for each, at in zip(changes, done, strict=True) if at is not None}
        return [each.key in deleted for each in deletes]

    def changes(self, since: int, prefixes: Sequence[str] = ("",)) -> Changes:
        """Return what changed after the revision ``since``, of keys with one of these prefixes."""
        answer = self._client.read(_RANGE, {"key": encoded(self._head)})
        now = int(answer["header"]["revision"])
        head = int(answer["kvs"][0]["mod_revision"]) if answer.get("kvs") else 0
        if head <= since <= now and since:
            return Changes(since, {}, complete=False)
        meant = tuple(prefixes)
        found = None if since == 0 or since > now else self._feed.between(since, head)
        if found is not None:
            kept = {key: record for key, record in found.items() if key.startswith(meant)}
            return Changes(head, kept, complete=False)
        self._feed.start(now)
        revision, records = self._range("")
        every = {each.key: each for each in records if each.key.startswith(meant)}
        return Changes(revision, every, complete=True)

    def close(self) -> None:
        """Close the store and its client."""
        self._client.close()
        self._feed.close()

    # -- reading ----------------------------------------------------------------------------------

    def _encoded(self, key: str) -> str:
        return encoded((self._records + key).encode())

    def _record(self, found: Mapping[str, str]) -> StoreRecord:
        key = decoded(found["key"]).decode().removeprefix(self._records)
        return StoreRecord(key, json.loads(decoded(found.get("value"))), int(found["mod_revision"]))

    def _range(self, prefix: str) -> tuple[int, Sequence[StoreRecord]]:
        """Return the records with a prefix, and the revision at which they are so."""
        end = end_of(self._records + prefix)
        assert end is not None
        asked = {"key": self._encoded(prefix), "range_end": encoded(end.encode())}
        answer = self._client.read(_RANGE, asked)
        found = [self._record(each) for each in answer.get("kvs", [])]
        return int(answer["header"]["revision"]), found

    # -- writing ----------------------------------------------------------------------------------

    def _apply(self, changes: Sequence[_Change]) -> Sequence[int | None]:
        """Apply changes in one transaction; return the revision of each, None if it was not made.

        Raises:
            StorageFailure: it may be made or not.
        """
        mark = secrets.token_hex(8)
        asked = self._transaction(changes, mark)
        until = time.monotonic() + 3 * self._client.timeout_s
        while True:
            try:
                answer = self._client.write(_TXN, asked)
                return self._outcome(changes, answer)
            except MetadataUnavailable:
                if time.monotonic() >= until:
                    raise
                found = self._found(changes, mark)
                if found is not None:
                    return found

    def _transaction(self, changes: Sequence[_Change], mark: str) -> Json:
        head = {"request_put": {"key": encoded(self._head), "value": encoded(mark.encode())}}
        steps = [self._step(each) for each in changes]
        if len(steps) == 1:  # the head stays where it is if nothing is changed
            compare, operation = steps[0]
            return {"compare": [compare], "success": [operation, head]}
        nested = [
            {"request_txn": {"compare": [compare], "success": [operation]}}
            for compare, operation in steps
        ]
        return {"success": [*nested, head]}

    def _step(self, change: _Change) -> tuple[Json, Json]:
        key = self._encoded(change.key)
        compare = {"key": key, "target": "MOD", "mod_revision": str(change.expected)}
        if change.text is None:
            return compare, {"request_delete_range": {"key": key}}
        return compare, {"request_put": {"key": key, "value": encoded(change.text.encode())}}

    @staticmethod
    def _outcome(changes: Sequence[_Change], answer: Json) -> Sequence[int | None]:
        revision = int(answer["header"]["revision"])
        if len(changes) == 1:
            return [revision if answer.get("succeeded") else None]
        nested = [each["response_txn"] for each in answer["responses"][: len(changes)]]
        return [revision if each.get("succeeded") else None for each in nested]

    def _found(self, changes: Sequence[_Change], mark: str) -> Sequence[int | None] | None:
        """Look whether a transaction is done; None if it is not, and can be sent again.

        Raises:
            StorageFailure: nobody can tell.
        """
        found = self._versions(changes)
        head = _version(self._client.read(_RANGE, {"key": encoded(self._head)}))
        for revision in {head, *found} - {0}:
            if self._mark_of(revision) == mark:
                before = self._versions(changes, revision - 1)
                pairs = zip(changes, before, strict=True)
                return [revision if at == each.expected else None for each, at in pairs]
        if any(at == each.expected for each, at in zip(changes, found, strict=True)):
            return None
        raise StorageFailure(
            "etcd has not answered a change of metadata, and the records have changed since: it may"
            " be done or not",
            hint="Try again.",
        )

    def _versions(self, changes: Sequence[_Change], revision: int = 0) -> Sequence[int]:
        """Return the versions of the records that are to be changed; 0: those of now."""
        at = {"revision": str(revision)} if revision else {}
        reads = [{"request_range": {"key": self._encoded(each.key)} | at} for each in changes]
        answer = self._client.read(_TXN, {"success": reads})
        return [_version(each["response_range"]) for each in answer["responses"]]

    def _mark_of(self, revision: int) -> str:
        """Return the mark of the transaction that made a revision; empty if it is not known."""
        asked = {"key": encoded(self._head), "revision": str(revision)}
        with suppress(MetadataRefused):  # such as a compaction
            for each in self._client.read(_RANGE, asked).get("kvs", []):
                if int(each["mod_revision"]) == revision:
                    return decoded(each.get("value")).decode()
        return ""


class _Feed:
    """Follows a cluster's keys, and remembers its last changes. One thread, once it is started."""

    def __init__(self, client: EtcdClient, prefix: str, records: str) -> None:
        self._client = client
        self._start = prefix.encode()
        end = end_of(prefix)
        assert end is not None
        self._end = end.encode()
        self._records = records
        self._changed = threading.Condition()  # guards what follows
        self._thread: threading.Thread | None = None
        self._watch: EtcdWatch | None = None
        self._from = 0  # changes after this revision are known,
        self._seen = 0  # up to this one
        self._kept: deque[tuple[int, str, StoreRecord | None]] = deque()
        self._closed = False

    def start(self, revision: int) -> None:
        """Follow the changes after a revision, unless that goes on already."""
        with self._changed:
            if self._thread is not None or self._closed:
                return
            self._from = self._seen = revision
            self._thread = threading.Thread(target=self._run, name="isolog-etcd", daemon=True)
            self._thread.start()

    def between(self, since: int, until: int) -> dict[str, StoreRecord | None] | None:
        """Return the last states of what changed after ``since``; wait until it is all known.

        None if not all of it is known.

        Raises:
            MetadataUnavailable: the watch does not come so far.
        """
        patience_s = self._client.timeout_s
        with self._changed:
            if self._thread is None or since < self._from:
                return None
            for _ in range(3):
                if self._changed.wait_for(lambda: self._seen >= until or self._closed, patience_s):
                    break
                if self._watch is not None:  # its member may be behind: follow another one
                    self._watch.end()
            if self._seen < until:
                raise MetadataUnavailable(f"a watch of etcd has not come to revision {until}")
            if since < self._from:
                return None
            return {key: record for at, key, record in self._kept if since < at <= until}

    def close(self) -> None:
        """Follow no more."""
        with self._changed:
            self._closed = True
            if self._watch is not None:
                self._watch.end()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._client.timeout_s)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._follow()
            except EtcdCompacted:
                self._begin_anew()
            except StorageFailure as error:
                logger.info("%s", error.message)
            except Exception:
                logger.exception("following etcd")
            with self._changed:
                self._changed.wait_for(lambda: self._closed, _PAUSE_S)

    def _follow(self) -> None:
        watch = self._client.watch(self._start, self._end, self._seen)
        with self._changed:
            self._watch = watch
            if self._closed:
                watch.end()
        try:
            for answer in watch.answers():
                self._take(answer)
        finally:
            with self._changed:
                self._watch = None
            watch.close()

    def _take(self, answer: Json) -> None:
        events = answer.get("events", [])
        with self._changed:
            for each in events:
                self._keep(each)
                self._seen = int(each["kv"]["mod_revision"])
            while len(self._kept) > _KEPT:
                self._from = self._kept.popleft()[0]
            while self._kept and self._kept[0][0] <= self._from:
                self._kept.popleft()  # the rest of a revision that is known in part
            self._changed.notify_all()

    def _keep(self, event: Json) -> None:
        found = event["kv"]
        key = decoded(found["key"]).decode()
        if not key.startswith(self._records):
            return
        key, revision = key.removeprefix(self._records), int(found["mod_revision"])
        record = None
        if event.get("type") != "DELETE":
            record = StoreRecord(key, json.loads(decoded(found.get("value"))), revision)
        self._kept.append((revision, key, record))

    def _begin_anew(self) -> None:
        """Forget what is known: what came after it is not known any more."""
        answer = self._client.read(_RANGE, {"key": encoded(self._start)})
        with self._changed:
            self._from = self._seen = int(answer["header"]["revision"])
            self._kept.clear()
            self._changed.notify_all()


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _version(answer: Mapping[str, Any]) -> int:
    found = answer.get("kvs", [])
    return int(found[0]["mod_revision"]) if found else 0


def _chunks(changes: Sequence[_Change]) -> Iterator[Sequence[_Change]]:
    chunk: list[_Change] = []
    size = 0
    for each in changes:
        if chunk and (len(chunk) == _AT_ONCE or size + each.size > _BYTES_AT_ONCE):
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += each.size
    if chunk:
        yield chunk
