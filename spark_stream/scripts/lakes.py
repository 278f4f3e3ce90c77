"""Creation and alteration of lakes, recorded progress, and removal. Each is a compare-and-set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from msgspec.structs import replace

from spark_stream.cluster.lakes import LAKES, decode, encode
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.consistency.lakes import LakeDescription, LakeTopic, advanced
from spark_stream.directories import APART_HINT, has_keys, overlap
from spark_stream.errors import InvalidRequest, LakeExists, LakeUnavailable, UnknownLake
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
    key = LAKES + lake.name
    made = replace(lake, topics=(yield from _found([each.name for each in lake.topics])))
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


def alter(
    name: str,
    lake_id: str,
    topics: Sequence[str] | None,
    freshness_ms: int | None,
    file_bytes: int | None,
    location: str | None = None,
    copied: Mapping[str, Mapping[int, int]] | None = None,
) -> Script[LakeDescription]:
    """Alter a lake, and return it. None leaves a field as it is.

    A topic that stays keeps its offsets. A deleted one stays only if ``topics`` is None.
    ``copied``: by topic id, the offsets that the tables at the new ``location`` have. The check
    against the recorded ones and the new location are one write. The worker of the earlier location
    records nothing after it (:func:`record_progress`).

    Raises:
        UnknownLake: There is no lake with this name and id.
        UnknownTopic, InvalidRequest: As for :func:`create`.
    """
    while True:
        record, lake = yield from _named(name, lake_id)
        if location is not None:
            lake = replace(lake, location=location)
            _check_copied(lake, copied or {})
            others = yield from ListRecords(LAKES)
            relation = relation_to_others(lake, (decode(each.value) for each in others))
            if relation is not None:
                raise _overlapping(lake, relation)
        if topics is not None:
            have = {(each.name, each.id): each for each in lake.topics}
            wanted = yield from _found(topics)
            wanted = tuple(have.get((each.name, each.id), each) for each in wanted)
            lake = replace(lake, topics=wanted)
        lake = replace(
            lake,
            freshness_ms=lake.freshness_ms if freshness_ms is None else freshness_ms,
            file_bytes=lake.file_bytes if file_bytes is None else file_bytes,
        )
        _check(lake)
        if (yield from PutRecord(record.key, encode(lake), record.version)):
            return lake


def _found(topics: Iterable[str]) -> Script[tuple[LakeTopic, ...]]:
    """Return the topics of these names, sorted, with their ids."""
    found = []
    for each in sorted(topics):
        topic = yield from FindTopic(each)
        found.append(LakeTopic(each, topic.id))
    return tuple(found)


def _named(name: str, lake_id: str) -> Script[tuple[StoreRecord, LakeDescription]]:
    """Return the record of a lake. Raise UnknownLake without one of this name and id."""
    record = yield from Get(LAKES + name)
    lake = None if record is None else decode(record.value)
    if record is None or lake is None or lake.id != lake_id:
        raise unknown(name)
    return record, lake


def _check_apart(lake: LakeDescription) -> Script[None]:
    """Check that no other lake has an overlapping location. Otherwise remove this lake's record.

    The caller may not be allowed to describe the other lake, so its name is not in the error.

    Raises:
        InvalidRequest: One of the locations is in the other.
    """
    others = yield from ListRecords(LAKES)
    relation = relation_to_others(lake, (decode(each.value) for each in others))
    if relation is not None:
        with suppress(UnknownLake):
            yield from drop(lake.name, lake.id)
        raise _overlapping(lake, relation)


def _overlapping(lake: LakeDescription, relation: str) -> InvalidRequest:
    return InvalidRequest(
        f"{lake.location} {relation} the location of another lake",
        hint=APART_HINT,
        lake=lake.name,
    )


def _check_copied(lake: LakeDescription, copied: Mapping[str, Mapping[int, int]]) -> None:
    for topic in lake.topics:
        have = copied.get(topic.id, {})
        if any(have.get(partition, 0) < at for partition, at in topic.tiered.items()):
            raise InvalidRequest(
                f"the tables at {lake.location} lack records that the worker has copied",
                hint="Stop the worker, copy the tables again, and alter the lake again.",
                lake=lake.name,
            )


def relation_to_others(lake: LakeDescription, others: Iterable[LakeDescription]) -> str | None:
    """Return the relation to the first other lake with an overlapping location, or None.

    Two concurrent creations that both crash before their second check leave such lakes.
    """
    found = (overlap(lake.location, each.location) for each in others if each.name != lake.name)
    return next((each for each in found if each is not None), None)


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
    if has_keys(lake.location):
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
    location: str = "",
) -> Script[None]:
    """Record the offsets that a worker has read back from the tables, by topic id.

    ``stopped``: the reason why the worker stopped, with its remedy. ``location``: of the tables.

    Raises:
        UnknownLake: There is no lake with this name and id.
        LakeUnavailable: The lake was moved to another location.
    """
    while True:
        record, lake = yield from _named(name, lake_id)
        if location and location != lake.location:
            raise LakeUnavailable(
                f"the lake {name!r} was moved to {lake.location}",
                hint="The worker continues there.",
                lake=name,
            )
        after = encode(advanced(lake, offsets, now_ms, stopped, stopped_hint))
        if (yield from PutRecord(record.key, after, record.version)):
            return


def drop(name: str, lake_id: str) -> Script[None]:
    """Remove the lake's record. Its tables stay.

    Raises:
        UnknownLake: There is no lake with this name and id.
    """
    while True:
        record, _ = yield from _named(name, lake_id)
        if (yield from DeleteRecord(record.key, record.version)):
            return


def unknown(name: str) -> UnknownLake:
    """Return the error for a lake that does not exist."""
    return UnknownLake(f"there is no lake {name!r}", lake=name)
