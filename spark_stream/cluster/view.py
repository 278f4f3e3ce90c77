"""The cluster as a broker sees it: topics, partitions and brokers, in memory.

The view follows the store: :meth:`ClusterView.refresh` reads the changes and applies them. A thread
of the broker calls it repeatedly, and so do callers that need their own change in the view. The
view may be old by one refresh. So no decision relies on the view alone: a decision is a
compare-and-set that expects the version in the view.

Readers take ``now``, a snapshot that never changes, without waiting. A refresh copies only the
tables with changes. :class:`FollowedRecords` has the records of other prefixes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from spark_stream.access.rules import Quota, Rule, RuleSet
from spark_stream.cluster import access, brokers, lakes, partitions, topics
from spark_stream.cluster.access import QUOTAS, RULES, TOKENS, USERS, AccessRecords
from spark_stream.cluster.brokers import BROKERS, CONTROLLER, Controller, RegisteredBroker
from spark_stream.cluster.lakes import LAKES
from spark_stream.cluster.partitions import PARTITIONS, PartitionId, StoredPartition
from spark_stream.cluster.stores.store import Changes, MetadataStore, StoreRecord
from spark_stream.cluster.topics import REMOVED, TOPICS, Topic
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.lakes import LakeDescription
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

_K = TypeVar("_K")
_V = TypeVar("_V")

PREFIXES: Final = (TOPICS, PARTITIONS, BROKERS, CONTROLLER, USERS, TOKENS, RULES, QUOTAS, LAKES)
PAUSE_S: Final = 0.025
"""The least pause between two refreshes."""


class Snapshot(Struct, frozen=True):
    """The cluster at one revision of the store."""

    revision: int = 0
    topics: Mapping[str, Topic] = field(default_factory=dict)
    """By name."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of topics, by their ids."""
    partitions: Mapping[str, Mapping[int, StoredPartition]] = field(default_factory=dict)
    """By topic id, and number. Includes those of topics that are being created or deleted."""
    brokers: Mapping[BrokerId, RegisteredBroker] = field(default_factory=dict)
    controller: Controller | None = None
    access: AccessRecords = field(default_factory=AccessRecords)
    lakes: Mapping[str, LakeDescription] = field(default_factory=dict)
    """By name."""

    def topic(self, topic_id: str) -> Topic | None:
        """Return the topic of this id, or None."""
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, partition: PartitionId) -> StoredPartition | None:
        """Return the partition's record, or None."""
        return self.partitions.get(partition.topic_id, {}).get(partition.number)


class News(Struct, frozen=True):
    """The changes that a refresh found: created, changed and deleted objects."""

    topics: frozenset[str] = frozenset()
    """By name."""
    partitions: frozenset[PartitionId] = frozenset()
    brokers: frozenset[BrokerId] = frozenset()
    controller: bool = False
    access: bool = False
    lakes: frozenset[str] = frozenset()
    """By name."""

    def __bool__(self) -> bool:
        known = self.topics or self.partitions or self.brokers
        return bool(known or self.controller or self.access or self.lakes)


NO_NEWS: Final = News()

Listener = Callable[[News, Snapshot], None]


class ClusterView:
    """One broker's view. Any thread may refresh it, and any may read ``now``."""

    def __init__(self, store: MetadataStore) -> None:
        """Start with an empty view. The first refresh fills it."""
        self._store = store
        self._lock = threading.Lock()
        self._revision = 0
        self._versions: dict[str, int] = {}
        self._listeners: list[Listener] = []
        self.now = Snapshot()

    def subscribe(self, listener: Listener) -> None:
        """Call the listener after each refresh that finds a change, in the order of refreshes.

        It is called in the thread that refreshes, so it must be quick, and must not refresh.
        """
        with self._lock:
            self._listeners.append(listener)

    def refresh(self, *, fresh: bool = True, known: bool = False) -> News:
        """Read the changes of the store, and return them.

        ``fresh``, ``known``: as ``MetadataStore.changes``.

        Raises:
            StorageFailure: the store could not be read. The view is as it was before.
        """
        with self._lock:
            changes = self._store.changes(self._revision, PREFIXES, fresh=fresh, known=known)
            changed = self._really_changed(changes)
            self._revision = changes.revision
            if not changed:
                return NO_NEWS
            update = _Update(self.now)
            for key, record in changed.items():
                update.take(key, record)
            self.now = update.snapshot(changes.revision)
            news = update.news()
            for listener in self._listeners:
                _call(listener, news, self.now)
            return news

    def is_deletion_announced(self, topic_id: str) -> bool:
        """Return whether the deletion is on record. False if the store is unavailable."""
        try:
            return self._store.get(REMOVED + topic_id) is not None
        except IsologError:
            logger.warning("the deletion of topic %s cannot be checked", topic_id, exc_info=True)
            return False

    def _really_changed(self, changes: Changes) -> dict[str, StoreRecord | None]:
        """Return the changes that this view has not applied yet."""
        changed: dict[str, StoreRecord | None] = {}
        for key, record in changes.since(self._versions).items():
            version = None if record is None else record.version
            if self._versions.get(key) != version:
                changed[key] = record
        for key, record in changed.items():
            if record is None:
                self._versions.pop(key)
            else:
                self._versions[key] = record.version
        return changed


class _Update:
    """A snapshot under construction. It shares unchanged tables with the one before."""

    def __init__(self, before: Snapshot) -> None:
        self._before = before
        self._topics: dict[str, Topic | None] = {}
        self._partitions: dict[str, dict[int, StoredPartition | None]] = defaultdict(dict)
        self._brokers: dict[BrokerId, RegisteredBroker | None] = {}
        self._controllers: list[Controller | None] = []
        self._users: dict[str, access.User | None] = {}
        self._tokens: dict[str, access.Token | None] = {}
        self._rules: dict[str, Rule | None] = {}
        self._quotas: dict[str, Quota | None] = {}
        self._lakes: dict[str, LakeDescription | None] = {}

    def take(self, key: str, record: StoreRecord | None) -> None:
        """Apply a record, or its deletion (None). An unreadable one changes nothing.

        A later release may have written it, and this broker has other partitions to look after.
        """
        try:
            self._take(key, record)
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.exception("the record %s of the metadata store cannot be read", key)

    def _take(self, key: str, record: StoreRecord | None) -> None:
        if key.startswith(PARTITIONS):
            partition = partitions.id_of(key)
            seen = None if record is None else partitions.decode(record)
            self._partitions[partition.topic_id][partition.number] = seen
        elif key.startswith(TOPICS):
            name = key.removeprefix(TOPICS)
            self._topics[name] = None if record is None else self._topic(name, record)
        elif key.startswith(BROKERS):
            broker_id = BrokerId(key.removeprefix(BROKERS))
            broker = None if record is None else brokers.decode(broker_id, record.value)
            self._brokers[broker_id] = broker
        elif key == CONTROLLER:
            held = None if record is None else brokers.decode_controller(record.value)
            self._controllers.append(held)
        elif key.startswith(USERS):
            user = None if record is None else access.decode_user(record.value)
            self._users[key.removeprefix(USERS)] = user
        elif key.startswith(TOKENS):
            token = None if record is None else access.decode_token(record.value)
            self._tokens[key.removeprefix(TOKENS)] = token
        elif key.startswith(RULES):
            rule = None if record is None else access.decode_rule(record.value)
            self._rules[key.removeprefix(RULES)] = rule
        elif key.startswith(QUOTAS):
            quota = None if record is None else access.decode_quota(record.value)
            self._quotas[key.removeprefix(QUOTAS)] = quota
        elif key.startswith(LAKES):
            lake = None if record is None else lakes.decode(record.value)
            self._lakes[key.removeprefix(LAKES)] = lake

    def _topic(self, name: str, record: StoreRecord) -> Topic:
        """Return the topic, as the same object if its record was only written again."""
        known = self._before.topics.get(name)
        if known is not None and topics.encode(known) == record.value:
            return known
        return topics.decode(record)

    def snapshot(self, revision: int) -> Snapshot:
        """Return the earlier snapshot with all changes applied."""
        after = replace(self._before, revision=revision)
        if self._topics:
            named = _changed(self._before.topics, self._topics)
            names = {topic.id: name for name, topic in named.items()}
            after = replace(after, topics=named, names=names)
        if self._partitions:
            numbered = {
                topic_id: _changed(self._before.partitions.get(topic_id, {}), changes) or None
                for topic_id, changes in self._partitions.items()
            }
            after = replace(after, partitions=_changed(self._before.partitions, numbered))
        if self._brokers:
            after = replace(after, brokers=_changed(self._before.brokers, self._brokers))
        if self._controllers:
            after = replace(after, controller=self._controllers[-1])
        if self._has_access:
            after = replace(after, access=self._access(self._before.access))
        if self._lakes:
            after = replace(after, lakes=_changed(self._before.lakes, self._lakes))
        return after

    @property
    def _has_access(self) -> bool:
        return bool(self._users or self._tokens or self._rules or self._quotas)

    def _access(self, before: AccessRecords) -> AccessRecords:
        rules = _changed(before.rules, self._rules)
        return AccessRecords(
            _changed(before.users, self._users),
            _changed(before.tokens, self._tokens),
            rules,
            RuleSet(rules.values()) if self._rules else before.rule_set,
            _changed(before.quotas, self._quotas),
        )

    def news(self) -> News:
        """Return the applied changes."""
        return News(
            topics=frozenset(self._topics),
            partitions=frozenset(
                PartitionId(topic_id, number)
                for topic_id, changes in self._partitions.items()
                for number in changes
            ),
            brokers=frozenset(self._brokers),
            controller=bool(self._controllers),
            access=self._has_access,
            lakes=frozenset(self._lakes),
        )


def _changed(before: Mapping[_K, _V], changes: Mapping[_K, _V | None]) -> dict[_K, _V]:
    after = dict(before)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


def _call(listener: Callable[..., Any], news: News, now: Snapshot) -> None:
    try:
        listener(news, now)
    except Exception:  # the other listeners must still be called
        logger.exception("a listener of the cluster's view failed")


class FollowedRecords:
    """All records whose keys start with a prefix, in memory. Any thread may look.

    The cost of a look depends on the changes since the last one.
    """

    def __init__(self, store: MetadataStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._lock = threading.Lock()
        self._revision = 0
        self._records: dict[str, StoreRecord] = {}
        self._keys: list[str] = []  # in their order

    def look(self, prefix: str = "") -> Sequence[StoreRecord]:
        """Return those with this prefix in the order of their keys, as they were a moment ago.

        With a metadata store on another host that costs no request.
        """
        with self._lock:
            changes = self._store.changes(self._revision, (self._prefix,), fresh=False)
            for key, record in changes.since(self._records).items():
                if record is None:
                    if self._records.pop(key, None) is not None:
                        del self._keys[bisect_left(self._keys, key)]
                else:
                    if key not in self._records:
                        insort(self._keys, key)
                    self._records[key] = record
            self._revision = changes.revision
            found = []
            for at in range(bisect_left(self._keys, prefix), len(self._keys)):
                if not self._keys[at].startswith(prefix):
                    break
                found.append(self._records[self._keys[at]])
            return found
