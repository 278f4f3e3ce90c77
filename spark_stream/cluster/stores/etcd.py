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

**Changes.** A watch follows all records, and the last changes are kept. A caller that needs all
that was changed before its call pays for one read, of the head, and waits until the watch has come
so far. A caller that asks for older changes, or after a compaction, gets all records.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from spark_stream.cluster.stores.etcd_client import (
    EtcdClient,
    Json,
    decoded,
    encoded,
)
from spark_stream.cluster.stores.etcd_feed import EtcdFeed
from spark_stream.cluster.stores.store import (
    Changes,
    Delete,
    Put,
    StoreRecord,
    check_distinct,
    end_of,
)
from spark_stream.errors import InvalidRequest, MetadataRefused, MetadataUnavailable, StorageFailure

_AT_ONCE: Final = 100
"""Changes in one transaction; etcd takes 128 operations, and 1.5 MiB."""
_BYTES_AT_ONCE: Final = 1 << 20
_KEPT: Final = 10_000
"""Changes that a store remembers for those who ask for them."""
_LIST_S: Final = 300.0
"""How often all records are read, in case a watch has missed something."""
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
        end = end_of(self._records)
        assert end is not None
        self._feed = EtcdFeed(client, self._head, end.encode())
        self._known = _LastChanges(self._records)
        self._listed_at = time.monotonic()

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

    def changes(
        self, since: int, prefixes: Sequence[str] = ("",), *, fresh: bool = True
    ) -> Changes:
        """Return what changed after the revision ``since``, of keys with one of these prefixes.

        ``fresh`` costs one read of etcd. Without it etcd is asked only now and then: for all
        records, in case a watch has missed something (etcd#18089).
        """
        meant = tuple(prefixes)
        heard = self._heard(since, fresh=fresh) if since else None
        if heard is not None:
            revision, found = heard
            kept = {key: record for key, record in found.items() if key.startswith(meant)}
            return Changes(revision, kept, complete=False)
        revision, records = self._range("")
        self._listed_at = time.monotonic()
        self._feed.start(revision, self._known)
        every = {each.key: each for each in records if each.key.startswith(meant)}
        return Changes(revision, every, complete=True)

    def _heard(
        self, since: int, *, fresh: bool
    ) -> tuple[int, Mapping[str, StoreRecord | None]] | None:
        """Return what the watch has told after a revision, and up to which; None: not all of it."""
        head = 0
        if fresh:
            answer = self._client.read(_RANGE, {"key": encoded(self._head)})
            head = _version(answer)
            if since > int(answer["header"]["revision"]):
                return None  # another etcd, or one that was restored
            if head <= since:
                return since, {}
        elif time.monotonic() - self._listed_at > _LIST_S:
            return None
        if not self._feed.is_started:
            return None
        with self._feed.changed:
            self._feed.wait_for(head)
            found = self._known.after(since)
            return None if found is None else (max(since, self._feed.seen), found)

    @property
    def lost(self) -> None:
        """None: no file can be lost."""

    def write_back(self) -> None:
        """Refuse: there is no file."""
        raise InvalidRequest(
            "the metadata store is in etcd: there is no file to write back",
            hint="`isolog cluster restore FILE` restores a backup into it.",
        )

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


class _LastChanges:
    """The last changes of records that a feed has told of."""

    def __init__(self, records: str) -> None:
        """Begin with nothing. ``records``: what the records' keys in etcd start with."""
        self._records = records
        self._kept: deque[tuple[int, str, StoreRecord | None]] = deque()
        self.start = 0
        """Changes after this revision are known."""

    def take(self, events: Sequence[Json]) -> None:
        for each in events:
            self._keep(each)
        while len(self._kept) > _KEPT:
            self.start = self._kept.popleft()[0]
        while self._kept and self._kept[0][0] <= self.start:
            self._kept.popleft()  # the rest of a revision that is known in part

    def forget(self, revision: int) -> None:
        self.start = revision
        self._kept.clear()

    def after(self, since: int) -> dict[str, StoreRecord | None] | None:
        """Return the last states of what has changed; None if not all of it is known."""
        if since < self.start:
            return None
        return {key: record for at, key, record in self._kept if at > since}

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
