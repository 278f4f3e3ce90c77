"""A topic's records: an existing topic has all its parts, and a deleted one leaves none.

The topic's record decides whether the topic exists, and in which form. The records of its
partitions are made before that record, and removed after it. The topic's folders are made before
its record too, at all brokers that get a replica. These brokers open their replicas once they see
the topic, and remove them once the topic is deleted.

**Left-overs.** An announcement (:class:`LeftOver`) is on record before anything is made or
deleted. So a crash between any two steps leaves the topic, or an announcement of what to remove.

Order of steps in a removal: each broker removes its files, then takes itself off the announcement.
When no broker is left on it, the partition records are removed, and then the announcement. If the
maker of a topic is taken for dead, the topic is first put on record as cleared: then it never comes
to exist.

A maker that is taken for dead may only have stalled, and may continue with any step: it makes
folders again, or the topic's record, and dies before it sees that the topic was cleared. So the
announcement stays, and all brokers remove what they find, until that maker has started again or
left the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from spark_stream.cluster.brokers import BROKERS
from spark_stream.cluster.partitions import PARTITIONS, PartitionId, decode_value, put_of
from spark_stream.cluster.stores.store import Delete, StoreRecord
from spark_stream.cluster.stores.store import Put as StorePut
from spark_stream.cluster.topics import (
    REMOVED,
    TOPICS,
    LeftOver,
    Topic,
    check_id,
    decode,
    decode_left_over,
    encode,
    encode_left_over,
    exists,
    unknown,
)
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import (
    InvalidTopic,
    IsologError,
    TopicExists,
)
from spark_stream.scripts.steps import (
    DeleteMany,
    DeleteRecord,
    Get,
    ListRecords,
    MakeFolder,
    Pause,
    PutMany,
    PutRecord,
    ReadBounds,
    Refresh,
    RemoveFiles,
    Script,
    together,
)

_PAUSE_S: Final = 0.05
_TRIES: Final = 100  # the maker of a topic waits at most five seconds for its leaders


def create_topic(topic: Topic, placed: Sequence[PartitionRecord], maker: BrokerId) -> Script[Topic]:
    """Make the topic's records, and wait until its leaders serve. An error leaves no part of it.

    ``placed`` has a record for each partition. Return the topic. If an earlier request with the
    same token has made it (and the answer was lost), return that topic.

    Raises:
        TopicExists: There is a topic of this name.
        DiskFull, StorageFailure: A leader has no room for it.
    """
    if (found := (yield from Get(TOPICS + topic.name))) is not None:
        return (yield from _made_before(topic, found))
    brokers = _brokers(placed)
    yield from announce_making(topic, brokers, maker)
    try:
        yield from _make_folders(topic, brokers)
        yield from PutMany(_puts(topic, 0, placed))
        if not (yield from PutRecord(TOPICS + topic.name, encode(topic), 0)):
            raise exists(topic.name)
        if not (yield from end_making(topic)):
            raise InvalidTopic(
                f"topic {topic.name!r}: the creation took so long that another broker removed it",
                topic=topic.name,
                hint="Try again.",
            )
    except IsologError as error:
        yield from discard(topic, brokers, maker)
        if isinstance(error, TopicExists):  # another client made it after the first look
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
        raise exists(topic.name)
    yield Refresh()
    yield from await_leaders(found, range(found.partitions))
    return found


def alter_topic(
    name: str,
    change: Callable[[Topic], Topic],
    place: Callable[[Topic, Topic], Sequence[PartitionRecord]],
) -> Script[Topic]:
    """Alter the topic by ``change``. After any error it stays as it was.

    ``place`` returns a record for each added partition. These are put before the topic's record
    changes. A crash in between leaves records of partitions that the topic does not have. These
    have no effect, and are overwritten later. A claim on the topic before that keeps others from
    overwriting records of partitions that the topic has by then. New folders at brokers are
    announced as possible left-overs, because the topic may be deleted at any moment.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidTopic: The topic was changed concurrently.

    Raises also the errors of ``change`` and ``place``.
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
        yield from end_adding(old, announced)
    else:
        yield from _put_altered(record, new)
    yield Refresh()
    yield from await_leaders(new, range(old.partitions, new.partitions))
    return new


def _claim(record: StoreRecord) -> Script[StoreRecord]:
    """Rewrite the topic's record unchanged, so that alterations based on older reads fail.

    As long as the claim is the latest version, no other request can make existing partition records
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
    """Delete the topic's record, and return the topic. Its brokers then remove their files.

    Raises:
        UnknownTopic: There is no such topic, or ``topic_id`` is that of an earlier one.
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

    A broker that was down while its replica moved still has files, without a record of that.
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
        f"topic {name!r} was changed concurrently",
        topic=name,
        changed_meanwhile=True,
        hint="Look at it with `isolog topic describe`, then try again.",
    )


def announce_making(topic: Topic, brokers: Iterable[BrokerId], maker: BrokerId) -> Script[None]:
    """Record the topic that ``maker`` will create, and the brokers that may get its files."""
    left = LeftOver(topic, tuple(sorted(brokers)), maker)
    yield from PutRecord(REMOVED + topic.id, encode_left_over(left), 0)


def announce_removal(
    topic: Topic, brokers: Iterable[BrokerId], *, cleared: bool = False
) -> Script[int]:
    """Record that the topic is being removed, and the brokers that may have its files.

    Return the announcement's version. It is always new, so that the delete fails at a broker that
    saw the topic and is about to delete the announcement.

    ``cleared``: the topic is to be removed even if its record exists.
    """
    while True:
        record = yield from Get(REMOVED + topic.id)
        known = LeftOver(topic, ()) if record is None else decode_left_over(record)
        named = tuple(sorted({*known.brokers, *brokers}))
        # No maker: a broker sees the topic only after its maker has made all of it.
        left = LeftOver(topic, named, None, cleared or known.cleared)
        expected = 0 if record is None else record.version
        value = encode_left_over(left)
        version = yield from PutRecord(REMOVED + topic.id, value, expected)
        if version is not None:
            return version


def end_making(topic: Topic) -> Script[bool]:
    """Remove the announcement of a topic that now exists. Return False if it has no maker.

    False also if it was removed or changed by another broker.
    """
    record = yield from Get(REMOVED + topic.id)
    if record is None or decode_left_over(record).maker is None:
        return False
    return (yield from DeleteRecord(record.key, record.version))


def end_adding(topic: Topic, version: int) -> Script[None]:
    """Remove the announcement of new partitions, now made, unless it was changed since."""
    record = yield from Get(REMOVED + topic.id)
    if record is not None and not decode_left_over(record).cleared:
        yield from DeleteRecord(record.key, version)


def left_overs(*, fresh: bool = True) -> Script[list[StoreRecord]]:
    """Return all announcements. ``fresh``: as ``ListRecords``."""
    return list((yield from ListRecords(REMOVED, fresh)))


def makers(record: StoreRecord) -> tuple[BrokerId, ...]:
    """Return the broker that makes the announced topic, or may continue to make it."""
    left = decode_left_over(record)
    maker = left.stalled if left.maker is None else left.maker
    return () if maker is None else (maker,)


def announced_brokers(record: StoreRecord) -> tuple[BrokerId, ...]:
    """Return the brokers that may have files of an announcement's topic."""
    return decode_left_over(record).brokers


def name_of(record: StoreRecord) -> str:
    """Return the name of an announcement's topic."""
    return decode_left_over(record).topic.name


def remove_left_over(
    record: StoreRecord,
    broker: BrokerId,
    gone: Collection[BrokerId],
    lost: Collection[BrokerId] = (),
) -> Script[bool]:
    """Do this broker's part for an announcement. Return whether that part is done.

    ``gone``: the brokers that are not expected to continue making their topics. This broker is
    one of them if it has just started. ``lost``: brokers that have left the cluster.

    Raises:
        StorageFailure: Some files are left. Try again.
    """
    left = decode_left_over(record)
    if left.maker is not None and left.maker not in gone:
        return False
    live = yield from Get(TOPICS + left.topic.name)
    if live is not None and decode(live).id == left.topic.id:
        if left.maker in (broker, *lost):  # another maker may only have stalled, and checks for it
            yield from DeleteRecord(record.key, record.version)
        if not left.cleared or not (yield from DeleteRecord(live.key, live.version)):
            return False
    if left.maker is not None:
        stalled = None if _has_ended(left.maker, broker, gone, lost) else left.maker
        taken = yield from _cleared(record, replace(left, maker=None, stalled=stalled))
        return taken is not None and (yield from remove_left_over(taken, broker, gone, lost))
    if left.stalled is not None:
        if not _has_ended(left.stalled, broker, gone, lost):
            yield RemoveFiles(left.topic)
            return False
        taken = yield from _cleared(record, replace(left, stalled=None))
        return taken is not None and (yield from remove_left_over(taken, broker, gone, lost))
    yield RemoveFiles(left.topic)  # even if not named: this broker may have got a replica by a move
    if left.brokers and not {broker, *lost} & set(left.brokers):
        return False
    others = tuple(each for each in left.brokers if each != broker and each not in lost)
    return (yield from _take_off(record, replace(left, brokers=others)))


def _has_ended(
    maker: BrokerId, broker: BrokerId, gone: Collection[BrokerId], lost: Collection[BrokerId]
) -> bool:
    """Return whether the maker's process has certainly ended: it has restarted, or left.

    Other brokers see only that the maker does not renew its lease.
    """
    return (maker == broker and maker in gone) or maker in lost


def _cleared(record: StoreRecord, left: LeftOver) -> Script[StoreRecord | None]:
    """Record, before files are removed, that the topic is never made. Return None on failure."""
    value = encode_left_over(replace(left, cleared=True))
    version = yield from PutRecord(record.key, value, record.version)
    return None if version is None else StoreRecord(record.key, value, version)


def _take_off(record: StoreRecord, rest: LeftOver) -> Script[bool]:
    """Replace the announcement by ``rest``, or delete it if ``rest`` names no broker."""
    if not (yield from PutRecord(record.key, encode_left_over(rest), record.version)):
        return False  # another broker took itself off: the next look continues
    if rest.brokers:
        return True
    # A leader that has not seen the deletion may change a record after it was listed.
    while found := (yield from ListRecords(f"{PARTITIONS}{rest.topic.id}/")):
        yield from DeleteMany([Delete(each.key, each.version) for each in found])
    now = yield from Get(record.key)
    if now is not None and not decode_left_over(now).brokers:
        yield from DeleteRecord(now.key, now.version)
    return True


def remove_own(topic: Topic, broker: BrokerId) -> Script[None]:
    """Remove this broker's files of a deleted topic. A later look retries a failure."""
    with suppress(IsologError):
        record = yield from Get(REMOVED + topic.id)
        if record is not None:
            yield from remove_left_over(record, broker, ())


def discard(topic: Topic, brokers: Iterable[BrokerId], broker: BrokerId) -> Script[None]:
    """Remove the parts of a topic that could not be made. The rest stays announced."""
    with suppress(IsologError):
        yield from announce_removal(topic, brokers, cleared=True)
        yield from remove_own(topic, broker)
