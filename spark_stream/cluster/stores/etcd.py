"""A metadata store in etcd.

**Keys.** Records lie under ``/NAME/records/``, their keys in UTF-8, their values as JSON, so that
``etcdctl get --prefix /NAME/`` shows them. A record's version is its ``mod_revision``, and a
compare-and-set is a transaction with one compare.

**The head.** Every transaction that changes records also puts ``/NAME/head``, with a unique value.
So one small read returns the revision of the last change, and the head's history identifies the
transaction of each revision.

**Unknown outcomes.** A transaction without an answer may be committed, or may be committed later.
So the store first moves its fence, a key that each of its transactions compares: after that the
earlier transaction cannot commit any more. Then the store searches the history of the head for the
transaction's value. If it finds the value, the revision before it shows the compares that held. If
not, the transaction did not commit, and the store sends another one. If there were too many other
changes since, the outcome stays unknown: the call fails.

**The form.** ``/NAME/form`` is the format of the keys and records. The first store writes it.

**Lost changes.** ``/NAME/identity`` is a name that the records get when the first store opens, and
whenever all of them are replaced. A transaction also compares the head: it must not be older than
the newest head that this broker has read, and the key ``/NAME/lost`` must be absent.
``etcd_history`` has the rest.

**Changes.** A watch follows all records, and the last changes are kept. A caller that needs all
changes before its call pays for one read, of the head, and waits until the watch has reached that
revision. A request of older changes, or after a compaction, gets all records.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from spark_stream.cluster.stores.etcd_client import (
    RANGE,
    TXN,
    EtcdClient,
    EtcdFeed,
    Json,
    decoded,
    decoded_value,
    encoded,
    is_at,
)
from spark_stream.cluster.stores.etcd_losses import EtcdLosses
from spark_stream.cluster.stores.store import (
    FORM,
    Changes,
    Delete,
    Put,
    StoreRecord,
    check_distinct,
    end_of,
)
from spark_stream.errors import (
    InvalidRequest,
    MetadataLost,
    MetadataRefused,
    MetadataUnavailable,
    StorageFailure,
    UnsupportedFormat,
)
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

_AT_ONCE: Final = 100
"""Changes in one transaction. Etcd takes 128 operations, and 1.5 MiB."""
_BYTES_AT_ONCE: Final = 1 << 20
_KEPT: Final = 10_000
"""The number of changes that a store keeps."""
_HEADS: Final = 64
"""The number of transactions that are searched for one without an answer."""
_LIST_S: Final = 300.0
"""The pause between two reads of all records, in case a watch has missed a change."""


def check_form(client: EtcdClient, name: str) -> None:
    """Check that the records of a cluster have the format of this release. Write it in a new one.

    Raises:
        UnsupportedFormat: another release has changed the form.
        StorageFailure: etcd does not answer.
    """
    key = encoded(f"/{name}/form".encode())
    put = {"key": key, "value": encoded(str(FORM).encode())}
    asked = {
        "compare": [is_at(key, 0)],
        "success": [{"request_put": put}],
        "failure": [{"request_range": {"key": key}}],
    }
    answer = client.write_again(TXN, asked)
    if answer.get("succeeded"):
        return
    [found] = answer["responses"][0]["response_range"]["kvs"]
    form = decoded(found.get("value")).decode(errors="replace")
    if form != str(FORM):
        raise UnsupportedFormat(
            f"metadata store of cluster {name} in etcd has format {form}; this release reads {FORM}"
        )


class _Change(Struct, frozen=True):
    """A compare-and-set. ``text``: the value as JSON, or None to delete the record."""

    key: str
    text: str | None
    expected: int

    @property
    def size(self) -> int:
        return len(self.key) + len(self.text or "")

    def record(self, revision: int) -> StoreRecord | None:
        """Return the record that a change makes at a revision, or None."""
        return None if self.text is None else StoreRecord(self.key, json.loads(self.text), revision)


class EtcdStore:
    """The records of one isolog cluster, ``name``, in an etcd cluster. From any thread."""

    def __init__(self, client: EtcdClient, name: str, *, accepts_loss: bool = False) -> None:
        """Take the client, which is closed with the store.

        ``accepts_loss``: whether the records may be read and replaced in spite of the loss key.
        """
        self._client = client
        self._history = client.history
        self._head = f"/{name}/head".encode()
        self._losses = EtcdLosses(client, name, self._head, accepts_loss=accepts_loss)
        self._records = f"/{name}/records/"
        end = end_of(self._records)
        assert end is not None
        self._feed = EtcdFeed(client, self._head, end.encode(), self._losses.check)
        self._recent = _LastChanges(self._records, self._head.decode(), self._history.note_head)
        self._newest = 0  # the greatest version that this store has returned or written
        self._fence = _Fence(client, name)
        self._listed_at = self._compared_at = time.monotonic()
        self._silence_s = 6 * client.timeout_s

    def get(self, key: str, *, fresh: bool = True) -> StoreRecord | None:
        """Return the record, or None.

        Without ``fresh`` this sends a request only if the record is not in this store's cache.
        """
        if not fresh and self._feed.is_started:
            with self._feed.changed:
                known = self._recent.latest.get(key)
            if known is not None:
                return known.record
        answer = self._client.read(RANGE, {"key": self._encoded(key)})
        found = answer.get("kvs", [])
        record = self._record(found[0]) if found else None
        revision = int(answer["header"]["revision"])
        with self._feed.changed:
            self._newest = max(self._newest, _version(answer))
            # The feed updates only cached records. It may have passed a change of any other record.
            if key in self._recent.latest or self._feed.seen <= revision:
                self._recent.note(key, record, revision)
        return record

    def list(self, prefix: str) -> Sequence[StoreRecord]:
        """Return all records whose keys start with ``prefix``, in the order of their keys."""
        return self._range(prefix)[1]

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        """Write if the record's version is ``expected``. Return the new version, or None."""
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
        # Version 0 means "no record", so these deletes are left out.
        changes = [_Change(each.key, None, each.expected) for each in deletes if each.expected]
        done = [done for chunk in _chunks(changes) for done in self._apply(chunk)]
        deleted = {each.key for each, at in zip(changes, done, strict=True) if at is not None}
        return [each.key in deleted for each in deletes]

    def changes(
        self,
        since: int,
        prefixes: Sequence[str] = ("",),
        *,
        fresh: bool = True,
        known: bool = False,
    ) -> Changes:
        """Return the changes after the revision ``since``, of keys with one of these prefixes.

        ``fresh`` costs one read of etcd. Without it there are reads only now and then: of the head,
        in case the watch is silent, and of all records, in case it has missed a change
        (etcd#18089). ``known`` waits for the watch.
        """
        meant = tuple(prefixes)
        if self._history.lost is not None or self._history.is_suspect:
            self._feed.restart()
        self._history.check()
        now = time.monotonic()
        fresh = fresh or now - self._compared_at > self._silence_s
        heard = self._heard(since, fresh=fresh, known=known) if since else None
        if heard is not None:
            revision, found = heard
            kept = {key: record for key, record in found.items() if key.startswith(meant)}
            return Changes(revision, kept, complete=False)
        is_due = now - self._listed_at > _LIST_S
        revision, records = self._range("")
        self._feed.start(revision, self._recent)
        if is_due:  # other callers compare all records as well
            self._listed_at = now
            with self._feed.changed:
                self._recent.forget(max(revision, self._feed.seen))
        every = {each.key: each for each in records if each.key.startswith(meant)}
        return Changes(revision, every, complete=True)

    def _heard(
        self, since: int, *, fresh: bool, known: bool
    ) -> tuple[int, Mapping[str, StoreRecord | None]] | None:
        """Return the watch's changes after a revision, and their end. None: some are missing."""
        head = self._newest if known else 0
        if fresh:
            answer = self._read_head()
            self._compared_at = time.monotonic()
            head = max(head, _version(answer))
            if since > int(answer["header"]["revision"]):
                return None  # the caller has it from another store
        elif time.monotonic() - self._listed_at > _LIST_S:
            return None
        if not self._feed.is_started:
            return (since, {}) if (fresh or known) and head <= since else None
        with self._feed.changed:
            self._feed.wait_for(head)
            found = self._recent.after(since)
            return None if found is None else (max(since, self._feed.seen), found)

    def await_change(self, timeout_s: float) -> None:
        """Wait until the watch has a change since the last wait, or for this time."""
        self._feed.await_change(timeout_s)

    def stop_waiting(self) -> None:
        """End the present wait, and all later ones."""
        self._feed.stop_waiting()

    @property
    def lost(self) -> MetadataLost | None:
        """The reason why all calls fail, if etcd has lost changes."""
        return self._history.lost

    @property
    def mark(self) -> str:
        """The newest state that was read, for :meth:`compare` after a restart."""
        return msgspec.json.encode(self._history.known).decode()

    def compare(self, mark: str | None) -> None:
        """Compare the state with one that was read before a restart. To be called first.

        Raises:
            MetadataLost: Etcd has lost changes since.
        """
        self._losses.start(mark)
        self._read_head()

    def replace_identity(self) -> None:
        """Give the records another identity: all of them were replaced. Delete the loss key."""
        self._losses.replace_identity()

    def write_back(self) -> None:
        """Refuse: there is no file."""
        raise InvalidRequest(
            "the metadata store is in etcd: there is no file to write back",
            hint="`isolog cluster restore FILE` restores a backup into it.",
        )

    def close(self) -> None:
        """Close the store and its client."""
        self._fence.remove()
        self._client.close()
        self._feed.close()

    # -- reading ----------------------------------------------------------------------------------

    def _encoded(self, key: str) -> str:
        return encoded((self._records + key).encode())

    def _record(self, found: Mapping[str, str]) -> StoreRecord:
        return _record(decoded(found["key"]).decode().removeprefix(self._records), found)

    def _range(self, prefix: str) -> tuple[int, Sequence[StoreRecord]]:
        """Return the records with a prefix, and the revision at which they are so."""
        end = end_of(self._records + prefix)
        assert end is not None
        asked = {"key": self._encoded(prefix), "range_end": encoded(end.encode())}
        answer = self._client.read(RANGE, asked)
        found = [self._record(each) for each in answer.get("kvs", [])]
        with self._feed.changed:
            self._newest = max(self._newest, *(each.version for each in found), 0)
        return int(answer["header"]["revision"]), found

    # -- writing ----------------------------------------------------------------------------------

    def _apply(self, changes: Sequence[_Change]) -> Sequence[int | None]:
        """Apply changes in one transaction. Return the revision of each, None if it was not made.

        Raises:
            StorageFailure: The transaction may have been applied or not.
        """
        self._client.check_present()
        floor = self._history.known.revision or int(self._read_head()["header"]["revision"])
        until = time.monotonic() + 3 * self._client.timeout_s
        while True:
            mark, fence, head = secrets.token_hex(8), self._fence.version, self._history.known.head
            try:
                asked = self._transaction(changes, mark, fence, head)
                answer = self._client.write(TXN, asked)
            except MetadataUnavailable as error:
                if error.takes_no_changes or time.monotonic() >= until:
                    raise
                self._fence.move(until)
                made = self._made(changes, mark, floor)
                if made is None:
                    continue  # it is not done, and never will be
            else:
                if self._fence.has_moved(answer, fence):
                    continue
                self._check_head(answer, head, mark)
                made = self._outcome(changes, answer)
            self._note(changes, made)
            return made

    def _note(self, changes: Sequence[_Change], made: Sequence[int | None]) -> None:
        """Record the changes of this store."""
        with self._feed.changed:
            for each, revision in zip(changes, made, strict=True):
                if revision is None:
                    continue
                self._newest = max(self._newest, revision)
                if each.key in self._recent.latest:
                    self._recent.note(each.key, each.record(revision), revision)

    def _check_head(self, answer: Json, head: int, mark: str) -> None:
        """Check that a transaction found the last head or a later one, and no loss key.

        Raises:
            MetadataLost: The head is an earlier one, or there is a loss key.
        """
        if answer.get("succeeded"):
            self._history.note_head(int(answer["header"]["revision"]), mark)
        elif (found := _version(answer["responses"][1]["response_range"])) < head:
            raise self._history.lose(f"its last change has revision {found}, and was {head}")
        elif self._losses.key is not None:
            self._losses.key.check(answer["responses"][2])

    def _transaction(self, changes: Sequence[_Change], mark: str, fence: int, least: int) -> Json:
        """Build the transaction of the changes. ``least``: the least valid revision of the head."""
        head = {"request_put": {"key": encoded(self._head), "value": encoded(mark.encode())}}
        steps = [self._step(each) for each in changes]
        compares = [self._fence.compare(fence)]
        if self._losses.key is not None:
            compares.append(self._losses.key.absent)
        if least:
            compares.append(
                {
                    "key": encoded(self._head),
                    "target": "MOD",
                    "result": "GREATER",
                    "mod_revision": str(least - 1),
                }
            )
        if len(steps) == 1:  # without a change, the head does not move
            compare, operation = steps[0]
            compares.append(compare)
            operations = [operation]
        else:
            operations = [
                {"request_txn": {"compare": [compare], "success": [operation]}}
                for compare, operation in steps
            ]
        failure = [
            {"request_range": {"key": key}} for key in (self._fence.key, encoded(self._head))
        ]
        if self._losses.key is not None:
            failure.append(self._losses.key.read)
        return {"compare": compares, "success": [*operations, head], "failure": failure}

    def _step(self, change: _Change) -> tuple[Json, Json]:
        key = self._encoded(change.key)
        compare = is_at(key, change.expected)
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

    def _made(
        self, changes: Sequence[_Change], mark: str, floor: int
    ) -> Sequence[int | None] | None:
        """Return the changes of a transaction, or None if it did not commit.

        It cannot commit any more. The head's history is searched for its mark, back to the revision
        ``floor``, which is from before it was sent.

        Raises:
            StorageFailure: the outcome stays unknown.
        """
        revision = 0
        try:
            for _ in range(_HEADS):
                found = self._read_head(revision).get("kvs", [])
                at = int(found[0]["mod_revision"]) if found else 0
                if at <= floor:
                    return None
                if decoded_value(found[0]) == mark:
                    before = self._versions(changes, at - 1)
                    pairs = zip(changes, before, strict=True)
                    return [at if version == each.expected else None for each, version in pairs]
                revision = at - 1
        except MetadataRefused:  # the history was compacted away
            pass
        raise StorageFailure(
            "etcd has not answered a change of metadata, and many others followed: its outcome is"
            " unknown",
            hint="Try again.",
        )

    def _read_head(self, revision: int = 0) -> Json:
        at = {"revision": str(revision)} if revision else {}
        before = self._history.known.head
        answer = self._client.read(RANGE, {"key": encoded(self._head)} | at)
        if not revision:
            if (found := _version(answer)) < before:
                raise self._history.lose(f"its last change has revision {found}, and was {before}")
            if found:
                self._history.note_head(found, decoded_value(answer["kvs"][0]))
        return answer

    def _versions(self, changes: Sequence[_Change], revision: int) -> Sequence[int]:
        """Return the versions that the records to be changed had at a revision."""
        reads = [
            {"request_range": {"key": self._encoded(each.key), "revision": str(revision)}}
            for each in changes
        ]
        answer = self._client.read(TXN, {"success": reads})
        return [_version(each["response_range"]) for each in answer["responses"]]


class _Fence:
    """A key of one store, which each of its transactions compares: if it moves, they fail.

    So a transaction without an answer cannot commit once the key has moved. The key moves for the
    first time when a transaction gets no answer.
    """

    def __init__(self, client: EtcdClient, name: str) -> None:
        self._client = client
        self.key = encoded(f"/{name}/fences/{secrets.token_hex(8)}".encode())
        self.version = 0

    def compare(self, version: int) -> Json:
        """Return the comparison of a transaction that must not be done once the fence has moved."""
        return is_at(self.key, version)

    def move(self, until: float) -> None:
        """Move the fence. Try that until this moment.

        Raises:
            MetadataUnavailable: The fence may have moved or not.
        """
        while True:
            try:
                answer = self._client.write("/v3/kv/put", {"key": self.key, "value": ""})
            except MetadataUnavailable as error:
                if error.takes_no_changes or time.monotonic() >= until:
                    raise
            else:
                self.version = max(self.version, int(answer["header"]["revision"]))
                return

    def has_moved(self, answer: Json, version: int) -> bool:
        """Return whether a transaction was not done because the fence had moved."""
        if answer.get("succeeded"):
            return False
        found = _version(answer["responses"][0]["response_range"])
        self.version = found  # it may be lower: it was moved in an etcd that was replaced again
        return found != version

    def remove(self) -> None:
        """Remove the key, if there is one. The store is closed."""
        if self.version:
            with suppress(StorageFailure):
                self._client.write("/v3/kv/deleterange", {"key": self.key})


class _Latest(Struct, frozen=True):
    """The state of a record at a revision, or None if it did not exist."""

    revision: int
    record: StoreRecord | None


class _LastChanges:
    """The last changes of records from a feed, and the last states of some records."""

    def __init__(self, records: str, head: str, note_head: Callable[[int, str], None]) -> None:
        """Begin with nothing. ``records``: the prefix of the records' keys in etcd.

        ``note_head`` gets the revision and the value of each change of the key ``head``.
        """
        self._records = records
        self._head = head
        self._note_head = note_head
        self._kept: deque[tuple[int, str, StoreRecord | None]] = deque()
        self.start = 0
        """The object has all changes after this revision."""
        self.latest: dict[str, _Latest] = {}
        """The cache: the newest known state of records that this store has read one by one."""

    def take(self, events: Sequence[Json]) -> None:
        for each in events:
            self._keep(each)
        while len(self._kept) > _KEPT:
            self.start = self._kept.popleft()[0]
        while self._kept and self._kept[0][0] <= self.start:
            self._kept.popleft()  # the rest of an incomplete revision

    def forget(self, revision: int) -> None:
        self.start = revision
        self._kept.clear()
        self.latest.clear()

    def note(self, key: str, record: StoreRecord | None, revision: int) -> None:
        """Record the state of a record at a revision."""
        known = self.latest.pop(key, None)
        if known is None or known.revision < revision:
            known = _Latest(revision, record)
        self.latest[key] = known
        if len(self.latest) > _KEPT:
            del self.latest[next(iter(self.latest))]  # the one that was not noted for longest

    def after(self, since: int) -> dict[str, StoreRecord | None] | None:
        """Return the last states of the changed records, or None if some changes are missing."""
        if since < self.start:
            return None
        return {key: record for at, key, record in self._kept if at > since}

    def _keep(self, event: Json) -> None:
        found = event["kv"]
        key = decoded(found["key"]).decode()
        if key == self._head:
            self._note_head(int(found["mod_revision"]), decoded_value(found))
        if not key.startswith(self._records):
            return
        key, revision = key.removeprefix(self._records), int(found["mod_revision"])
        record = None
        if event.get("type") != "DELETE":
            record = _record(key, found)
        self._kept.append((revision, key, record))
        if key in self.latest:
            self.note(key, record, revision)


def _record(key: str, found: Mapping[str, str]) -> StoreRecord:
    """Return the record of a key of etcd.

    Raises:
        StorageFailure: the key's value is not a record's.
    """
    try:
        value = json.loads(decoded(found.get("value")))
    except ValueError:
        raise StorageFailure(
            f"the record {key!r} in etcd is not JSON: another program has written it",
            hint="Delete the key, or restore the metadata from a backup.",
        ) from None
    return StoreRecord(key, value, int(found["mod_revision"]))


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
