"""Left-overs of topics that do not exist: announced beforehand, removed by the brokers with files.

The announcement (``cluster.topics``) is on record before anything is made or deleted. So a
crash between any two steps leaves the topic, or an announcement that says what to remove.

Order of steps in a removal: each broker removes its files, then takes itself off the announcement;
when nobody is left on it, the partition records go, and then the announcement. If the maker of a
topic is taken for dead, the topic is first put on record as cleared: then it never comes to exist.

A maker that is taken for dead may only have stalled, and may go on with any step: it makes folders
again, or the topic's record, and dies before it learns that the topic was cleared. So the
announcement stays, and all brokers remove what they find, until that maker has started again or
left the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from msgspec.structs import replace

from spark_stream.cluster.partitions import PARTITIONS
from spark_stream.cluster.stores.store import Delete, StoreRecord
from spark_stream.cluster.topics import (
    REMOVED,
    TOPICS,
    LeftOver,
    Topic,
    decode,
    decode_left_over,
    encode_left_over,
)
from spark_stream.consistency.ids import BrokerId
from spark_stream.errors import IsologError
from spark_stream.scripts.steps import (
    DeleteMany,
    DeleteRecord,
    Get,
    ListRecords,
    PutRecord,
    RemoveFiles,
    Script,
)


def announce_making(topic: Topic, brokers: Iterable[BrokerId], maker: BrokerId) -> Script[None]:
    """Record that the broker ``maker`` makes the topic, and which brokers may get its files."""
    left = LeftOver(topic, tuple(sorted(brokers)), maker)
    yield from PutRecord(REMOVED + topic.id, encode_left_over(left), 0)


def announce_removal(
    topic: Topic, brokers: Iterable[BrokerId], *, cleared: bool = False
) -> Script[int]:
    """Record that the topic is being removed, and which brokers may have its files.

    Return the announcement's version. It is always new, so that the delete fails at a broker that
    saw the topic and is about to delete the announcement.

    ``cleared``: the topic is to be removed even if its record exists.
    """
    while True:
        record = yield from Get(REMOVED + topic.id)
        known = LeftOver(topic, ()) if record is None else decode_left_over(record)
        named = tuple(sorted({*known.brokers, *brokers}))
        # No maker: whoever sees the topic comes after all that its maker makes of it.
        left = LeftOver(topic, named, None, cleared or known.cleared)
        expected = 0 if record is None else record.version
        value = encode_left_over(left)
        version = yield from PutRecord(REMOVED + topic.id, value, expected)
        if version is not None:
            return version


def forget_making(topic: Topic) -> Script[bool]:
    """Remove the announcement of a topic now made; False if the topic was taken as a left-over."""
    record = yield from Get(REMOVED + topic.id)
    if record is None or decode_left_over(record).maker is None:
        return False
    return (yield from DeleteRecord(record.key, record.version))


def forget_adding(topic: Topic, version: int) -> Script[None]:
    """Remove the announcement of new partitions, now made, unless it was changed since."""
    record = yield from Get(REMOVED + topic.id)
    if record is not None and not decode_left_over(record).cleared:
        yield from DeleteRecord(record.key, version)


def left_overs(*, fresh: bool = True) -> Script[list[StoreRecord]]:
    """Return all announcements; ``fresh``: as ``ListRecords``."""
    return list((yield from ListRecords(REMOVED, fresh)))


def makers(record: StoreRecord) -> tuple[BrokerId, ...]:
    """Return the broker that makes the announced topic, or may go on making it, if there is one."""
    left = decode_left_over(record)
    maker = left.stalled if left.maker is None else left.maker
    return () if maker is None else (maker,)


def brokers_of(record: StoreRecord) -> tuple[BrokerId, ...]:
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
    """Do this broker's part for an announcement; return whether that part is done.

    ``gone``: the brokers that are not expected to go on with what they were making; this broker is
    one of them if it has just started. ``lost``: brokers that have left the cluster.

    Raises:
        StorageFailure: some files are left; try again.
    """
    left = decode_left_over(record)
    if left.maker is not None and left.maker not in gone:
        return False
    live = yield from Get(TOPICS + left.topic.name)
    if live is not None and decode(live).id == left.topic.id:
        if left.maker in (broker, *lost):  # another maker may only have stalled, and looks for it
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
    """Return whether the maker's process is certainly over, which it knows once it has restarted.

    Others only know that the maker does not renew its lease.
    """
    return (maker == broker and maker in gone) or maker in lost


def _cleared(record: StoreRecord, left: LeftOver) -> Script[StoreRecord | None]:
    """Record, before files are removed, that the topic is never made; None if that fails."""
    value = encode_left_over(replace(left, cleared=True))
    version = yield from PutRecord(record.key, value, record.version)
    return None if version is None else StoreRecord(record.key, value, version)


def _take_off(record: StoreRecord, rest: LeftOver) -> Script[bool]:
    """Replace the announcement by ``rest``, or delete it if ``rest`` names no broker."""
    if not (yield from PutRecord(record.key, encode_left_over(rest), record.version)):
        return False  # another broker took itself off meanwhile: the next look goes on
    if rest.brokers:
        return True
    # A leader that does not know of the deletion yet may change a record after it was listed.
    while found := (yield from ListRecords(f"{PARTITIONS}{rest.topic.id}/")):
        yield from DeleteMany([Delete(each.key, each.version) for each in found])
    now = yield from Get(record.key)
    if now is not None and not decode_left_over(now).brokers:
        yield from DeleteRecord(now.key, now.version)
    return True


def remove_own(topic: Topic, broker: BrokerId) -> Script[None]:
    """Remove this broker's files of a topic just deleted; if that fails, it is done later."""
    with suppress(IsologError):
        record = yield from Get(REMOVED + topic.id)
        if record is not None:
            yield from remove_left_over(record, broker, ())


def discard(topic: Topic, brokers: Iterable[BrokerId], broker: BrokerId) -> Script[None]:
    """Remove what exists of a topic that could not be made; the rest stays announced."""
    with suppress(IsologError):
        yield from announce_removal(topic, brokers, cleared=True)
        yield from remove_own(topic, broker)
