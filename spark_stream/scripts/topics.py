"""A topic's files and its record: nothing is promised that is not there, nothing stays that is not.

The record in the store decides whether a topic exists, and in which form. Files are made before
the record says so, and removed after it is gone. Files that may come to have no topic are announced
first in a record of their own (``removed/<topic id>``): the broker that made them removes them at
its next start, unless the topic lives. So a crash between any two steps leaves the old topic or the
new, and no orphan.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from spark_stream.cluster.store import Record
from spark_stream.cluster.topics import REMOVED, TOPICS, Topic, decode, encode, unknown
from spark_stream.errors import InvalidTopic, IsologError, TopicExists
from spark_stream.scripts.steps import (
    MakeFiles,
    RemoveFiles,
    Script,
    Serve,
    StopServing,
    delete,
    get,
    list_records,
    put,
)


def create_topic(topic: Topic) -> Script[None]:
    """Makes the topic's files, then its record; on any error nothing is left of it.

    Raises:
        TopicExists: there is one of this name.
    """
    if (yield from get(TOPICS + topic.name)) is not None:
        raise _exists(topic)
    yield from announce_files(topic)
    try:
        yield MakeFiles(topic)
        if not (yield from put(TOPICS + topic.name, encode(topic), 0)):
            raise _exists(topic)
    except IsologError:
        yield from remove_files(topic)
        raise
    yield Serve(topic)
    yield from forget_files(topic.id)


def alter_topic(name: str, change: Callable[[Topic], Topic]) -> Script[Topic]:
    """Gives the topic the form that ``change`` makes of it; on any error it stays as it was.

    New partitions are made before the record changes. A crash in between leaves empty folders of
    partitions that the topic does not have, which the next attempt clears away.

    Raises:
        UnknownTopic: there is no such topic.
        InvalidTopic: somebody else changed it meanwhile; and what ``change`` raises.
    """
    record = yield from find_record(name)
    old = decode(record)
    new = change(old)
    grows = new.partitions > old.partitions
    try:
        if grows:
            yield MakeFiles(new, old.partitions)
        if not (yield from put(record.key, encode(new), record.version)):
            raise InvalidTopic(
                f"topic {name!r} was changed by somebody else at the same time",
                topic=name,
                hint="Look at it with `isolog topic describe`, then try again.",
            )
    except IsologError:
        if grows:
            with suppress(IsologError):  # the next attempt clears away what is left
                yield RemoveFiles(new, old.partitions)
        raise
    yield Serve(new)
    return new


def delete_topic(name: str) -> Script[None]:
    """Deletes the topic's record, then its files.

    Raises:
        UnknownTopic: there is no such topic.
    """
    while True:
        record = yield from find_record(name)
        topic = decode(record)
        yield from announce_files(topic)
        if (yield from delete(record.key, record.version)):
            break
    yield StopServing(topic)
    yield from remove_files(topic)


def remove_left_over(record: Record) -> Script[bool]:
    """Removes what a crash left of a topic (``record``: of its files); False if the topic lives."""
    topic = decode(record)
    live = yield from get(TOPICS + topic.name)
    if live is not None and decode(live).id == topic.id:
        yield from forget_files(topic.id)
        return False
    yield from remove_files(topic)
    return True


def left_overs() -> Script[list[Record]]:
    """The records of files that may have no topic."""
    return list((yield from list_records(REMOVED)))


def announce_files(topic: Topic) -> Script[None]:
    """Puts on record that there may be files of this topic id, before they are made or removed."""
    key = REMOVED + topic.id
    record = yield from get(key)
    if record is None:
        yield from put(key, encode(topic), 0)


def remove_files(topic: Topic) -> Script[None]:
    """Removes the topic's files; what cannot be removed now is removed at the next start."""
    try:
        yield RemoveFiles(topic)
    except IsologError:
        return
    yield from forget_files(topic.id)


def forget_files(topic_id: str) -> Script[None]:
    """Deletes that announcement: no files of this id are left, or its topic lives."""
    record = yield from get(REMOVED + topic_id)
    if record is not None:
        yield from delete(record.key, record.version)


def find_record(name: str) -> Script[Record]:
    """The topic's record, or UnknownTopic."""
    record = yield from get(TOPICS + name)
    if record is None:
        raise unknown(name)
    return record


def _exists(topic: Topic) -> TopicExists:
    return TopicExists(f"there is a topic {topic.name!r} already", topic=topic.name)
