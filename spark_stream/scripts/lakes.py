"""Creation of lakes, recorded progress, and removal. Each is one compare-and-set of a record."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from msgspec.structs import replace

from spark_stream.cluster.lakes import LAKES, decode, encode
from spark_stream.consistency.lakes import LakeDescription, LakeTopic, advanced
from spark_stream.directories import APART_HINT, overlap
from spark_stream.errors import InvalidRequest, LakeExists, UnknownLake
from spark_stream.scripts.steps import DeleteRecord, FindTopic, Get, ListRecords, PutRecord, Script


def create(lake: LakeDescription) -> Script[LakeDescription]:
    """Create a lake. Return the one that an earlier attempt with the same id created.

    Raises:
        LakeExists: Another lake has the name.
        UnknownTopic: There is no such topic.
        InvalidRequest: A location has keys or overlaps that of another lake, or a topic's name
            cannot name a table.
    """
    _check(lake)
    yield from _check_apart(lake)
    topics = []
    for each in lake.topics:
        found = yield from FindTopic(each.name)
        topics.append(LakeTopic(each.name, found.id))
    key = LAKES + lake.name
    made = replace(lake, topics=tuple(topics))
    while not (yield from PutRecord(key, encode(made), 0)):
        record = yield from Get(key)
        if record is None:
            continue
        made = decode(record.value)
        if made.id != lake.id:
            raise LakeExists(f"there is a lake {lake.name!r} already", lake=lake.name)
        break
    yield from _check_apart(lake)  # again, because of concurrent creations
    return made


def _check_apart(lake: LakeDescription) -> Script[None]:
    """Check that no other lake has an overlapping location. Otherwise remove this lake's record.

    The caller may not be allowed to describe the other lake, so its name is not in the error.

    Raises:
        InvalidRequest: One of the locations is in the other.
    """
    for record in (yield from ListRecords(LAKES)):
        other = decode(record.value)
        relation = overlap(lake.location, other.location) if other.name != lake.name else None
        if relation is not None:
            with suppress(UnknownLake):
                yield from drop(lake.name, lake.id)
            raise InvalidRequest(
                f"{lake.location} {relation} the location of another lake",
                hint=APART_HINT,
                lake=lake.name,
            )


def _check(lake: LakeDescription) -> None:
    names = [each.name for each in lake.topics]
    if not names:
        raise InvalidRequest(
            f"the lake {lake.name!r} has no topics", hint="Name one or more topics.", lake=lake.name
        )
    if twice := [each for each in names if names.count(each) > 1]:
        raise InvalidRequest(
            f"the lake {lake.name!r} has the topic {twice[0]!r} twice",
            hint="Name each topic once.",
            lake=lake.name,
        )
    hidden = [each for each in names if each.startswith("_")]
    if hidden:
        raise InvalidRequest(
            f"the topic {hidden[0]!r} cannot have a table: programs hide folders that begin with _",
            hint="Copy its records into a topic with another name.",
            topic=hidden[0],
        )
    url = urlsplit(lake.location)
    is_folder = not url.scheme and lake.location.startswith("/")
    if not is_folder and not url.scheme:
        raise InvalidRequest(
            f"{lake.location!r} is no location", hint="Give an absolute folder or a URL."
        )
    if "@" in url.netloc or url.query:
        raise InvalidRequest(
            "a lake's location has no keys, because others can read it",
            hint="Give the keys to the worker, in its environment.",
            lake=lake.name,
        )


def record_progress(
    name: str,
    lake_id: str,
    offsets: Mapping[str, Mapping[int, int]],
    now_ms: int,
    stopped: str = "",
    stopped_hint: str = "",
) -> Script[None]:
    """Record the offsets that a worker has read back from the tables, by topic id.

    ``stopped``: the reason why the worker stopped, with its remedy.

    Raises:
        UnknownLake: There is no lake with this name and id.
    """
    while True:
        record = yield from Get(LAKES + name)
        lake = None if record is None else decode(record.value)
        if record is None or lake is None or lake.id != lake_id:
            raise unknown(name)
        after = encode(advanced(lake, offsets, now_ms, stopped, stopped_hint))
        if (yield from PutRecord(LAKES + name, after, record.version)):
            return


def drop(name: str, lake_id: str) -> Script[None]:
    """Remove the lake's record. Its tables stay.

    Raises:
        UnknownLake: There is no lake with this name and id.
    """
    while True:
        record = yield from Get(LAKES + name)
        if record is None or decode(record.value).id != lake_id:
            raise unknown(name)
        if (yield from DeleteRecord(LAKES + name, record.version)):
            return


def unknown(name: str) -> UnknownLake:
    """Return the error for a lake that does not exist."""
    return UnknownLake(f"there is no lake {name!r}", lake=name)
