"""A topic's records: an existing topic has all its parts, and a deleted one leaves none.

The topic's record decides whether the topic exists, and in which form. The records of its
partitions are made before that record, and removed after it is gone. The topic's folders are made
before its record too, at all brokers that get a replica. These brokers open their replicas once
they see the topic, and remove them once it is gone. What a crash may leave is announced first
(``left_overs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from spark_stream.cluster.brokers import BROKERS
from spark_stream.cluster.partitions import PARTITIONS, PartitionId, decode_value, put_of
from spark_stream.cluster.stores.store import Put as StorePut
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.cluster.topics import TOPICS, Topic, check_id, decode, encode, unknown
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import (
    InvalidTopic,
    IsologError,
    TopicExists,
)
from spark_stream.scripts.left_overs import (
    announce_making,
    announce_removal,
    discard,
    forget_adding,
    forget_making,
)
from spark_stream.scripts.steps import (
    DeleteRecord,
    Get,
    ListRecords,
    MakeFolder,
    Pause,
    PutMany,
    PutRecord,
    ReadBounds,
    Refresh,
    Script,
    together,
)

_PAUSE_S: Final = 0.05
_TRIES: Final = 100  # the maker of a topic waits at most five seconds for its leaders


def create_topic(topic: Topic, placed: Sequence[PartitionRecord], maker: BrokerId) -> Script[Topic]:
    """Make the topic's records, and wait until its leaders serve; on an error nothing is left.

    ``placed`` has a record for each partition. Return the topic. If an earlier request with the
    same token has made it (and the answer was lost), return that topic.

    Raises:
        TopicExists: there is a topic of this name.
        DiskFull, StorageFailure: a leader has no room for it.
    """
    if (found := (yield from Get(TOPICS + topic.name))) is not None:
        return (yield from _made_before(topic, found))
    brokers = _brokers(placed)
    yield from announce_making(topic, brokers, maker)
    try:
        yield from _make_folders(topic, brokers)
        yield from PutMany(_puts(topic, 0, placed))
        if not (yield from PutRecord(TOPICS + topic.name, encode(topic), 0)):
            raise _exists(topic)
        if not (yield from forget_making(topic)):
            raise InvalidTopic(
                f"topic {topic.name!r}: its creation took so long that another broker removed it",
                topic=topic.name,
                hint="Try again.",
            )
    except IsologError as error:
        yield from discard(topic, brokers, maker)
        if isinstance(error, TopicExists):  # somebody made it after the first look
            found = yield from Get(TOPICS + topic.name)
            if found is not None:
                return (yield from _made_before(topic, found))
        raise
    yield Refresh()
    yield from await_leaders(topic, range(topic.partitions))
    return topic


def _made_before(topic: Topic, record: StoreRecord) -> Script[Topic]:
    """Return the topic on record if it has this topic's token, or raise TopicExists."""
    found = decode(record)
    if not topic.token or found.token != topic.token:
        raise _exists(topic)
    yield Refresh()
    yield from await_leaders(found, range(found.partitions))
    return found


def alter_topic(
    name: str,
    change: Callable[[Topic], Topic],
    place: Callable[[Topic, Topic], Sequence[PartitionRecord]],
) -> Script[Topic]:
    """Alter the topic by ``change``; after any error it stays as it was.

    ``place`` returns a record for each added partition. These are put before the topic's record
    changes. A crash in between leaves records of partitions that the topic does not have; these
    mean nothing, and are overwritten later. A claim on the topic before that keeps others from
    overwriting records of partitions that the topic has by then. New folders at brokers are
    announced as possible left-overs (``left_overs``), because the topic may be deleted at any
    moment.

    Raises:
        UnknownTopic: there is no such topic.
        InvalidTopic: somebody else changed the topic meanwhile.

    Raises also what ``change`` and ``place`` raise.
    """
    record = yield from find_record(name)
    old = decode(record)
    new = change(old)
    added = place(old, new) if new.partitions > old.partitions else ()
    if added:
        record = yield from _claim(record)
        announced = yield from announce_removal(old, _brokers(added))
        try:
            yield from _add_partitions(record, new, added)
            yield from _put_altered(record, new)
        except IsologError:
            yield from announce_removal(old, _brokers(added))
            raise
        yield from forget_adding(old, announced)
    else:
        yield from _put_altered(record, new)
    yield Refresh()
    yield from await_leaders(new, range(old.partitions, new.partitions))
    return new


def _claim(record: StoreRecord) -> Script[StoreRecord]:
    """Rewrite the topic's record unchanged, so that alterations based on older reads fail.

    As long as the claim is the latest version, nobody else can make existing partition records
    part of the topic.
    """
    version = yield from PutRecord(record.key, record.value, record.version)
    if version is None:
        raise _was_changed(decode(record).name)
    return StoreRecord(record.key, record.value, version)


def _add_partitions(
    claimed: StoreRecord, new: Topic, added: Sequence[PartitionRecord]
) -> Script[None]:
    yield from _make_folders(new, _brokers(added))
    known = yield from ListRecords(f"{PARTITIONS}{new.id}/")
    now = yield from Get(claimed.key)
    if now is None or now.version != claimed.version:
        raise _was_changed(new.name)
    versions = {each.key: each.version for each in known}
    first = new.partitions - len(added)
    written = yield from PutMany(_puts(new, first, added, versions))
    if None in written:
        raise _was_changed(new.name)


def _put_altered(record: StoreRecord, new: Topic) -> Script[None]:
    if not (yield from PutRecord(record.key, encode(new), record.version)):
        raise _was_changed(new.name)


def delete_topic(name: str, topic_id: str | None = None) -> Script[Topic]:
    """Delete the topic's record, and return the topic; its brokers then remove their files.

    Raises:
        UnknownTopic: there is no such topic, or ``topic_id`` is that of an earlier one.
    """
    while True:
        record = yield from find_record(name)
        topic = decode(record)
        check_id(topic, topic_id)
        brokers = yield from brokers_of(topic)
        yield from announce_removal(topic, brokers)
        if (yield from DeleteRecord(record.key, record.version)):
            break
    yield Refresh()
    return topic


def await_leaders(topic: Topic, partitions: Iterable[int]) -> Script[None]:
    """Wait a short time until the partitions have leaders that serve."""
    places = [Joined(topic.name, topic.id, number) for number in partitions]
    for _ in range(_TRIES):
        answers = yield from together(ReadBounds(at) for at in places)
        places = [
            at
            for at, answer in zip(places, answers, strict=True)
            if isinstance(answer, IsologError) and answer.retriable
        ]
        if not places:
            return
        yield Pause(_PAUSE_S)


def brokers_of(topic: Topic) -> Script[set[BrokerId]]:
    """Return the brokers that may have files of the topic: all registered, and all with replicas.

    A broker that was down while its replica moved still has files, and no record says so.
    """
    found = yield from ListRecords(f"{PARTITIONS}{topic.id}/")
    registered = yield from ListRecords(BROKERS)
    named = {BrokerId(each.key.removeprefix(BROKERS)) for each in registered}
    return named | _brokers(decode_value(each.value) for each in found)


def find_record(name: str) -> Script[StoreRecord]:
    """Return the topic's record, or raise UnknownTopic."""
    record = yield from Get(TOPICS + name)
    if record is None:
        others = yield from ListRecords(TOPICS)
        raise unknown(name, [each.key.removeprefix(TOPICS) for each in others])
    return record


def _brokers(records: Iterable[PartitionRecord]) -> set[BrokerId]:
    return {broker for each in records for broker in (*each.replicas, *each.removing)}


def _puts(
    topic: Topic,
    first: int,
    records: Sequence[PartitionRecord],
    versions: Mapping[str, int] | None = None,
) -> list[StorePut]:
    made = [
        put_of(PartitionId(topic.id, first + place), record, 0)
        for place, record in enumerate(records)
    ]
    known = versions or {}
    return [each._replace(expected=known.get(each.key, 0)) for each in made]


def _make_folders(topic: Topic, brokers: Iterable[BrokerId]) -> Script[None]:
    """Have each broker that gets a replica make the topic's folder."""
    asked = [MakeFolder(broker, topic.name, topic.id) for broker in sorted(brokers)]
    for answer in (yield from together(asked)):
        if isinstance(answer, IsologError):
            raise answer


def _was_changed(name: str) -> InvalidTopic:
    return InvalidTopic(
        f"topic {name!r} was changed by somebody else at the same time",
        topic=name,
        changed_meanwhile=True,
        hint="Look at it with `isolog topic describe`, then try again.",
    )


def _exists(topic: Topic) -> TopicExists:
    return TopicExists(f"there is a topic {topic.name!r} already", topic=topic.name)
