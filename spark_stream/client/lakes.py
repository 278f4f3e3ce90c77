"""Requests about lakes."""

from __future__ import annotations

import os
import posixpath
import re
import secrets
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.lake_tables import open_table
from spark_stream.client.topics import TopicsClient, checked_topic
from spark_stream.consistency.lakes import (
    FILE_BYTES_DEFAULT,
    FRESHNESS_MS_DEFAULT,
    ICEBERG_NAME,
    STOPPED_MAX,
    LakeDescription,
    TopicLake,
)
from spark_stream.directories import local_directory
from spark_stream.errors import InvalidOption, UnknownLake, Unsupported
from spark_stream.extras import install_hint
from spark_stream.lake.delta.schema import table_schema
from spark_stream.lake.storage.locations import (
    check_apart,
    check_location,
    check_tables,
    no_folder_on_error,
)
from spark_stream.lake.storage.stores import open_store
from spark_stream.wire.lake_messages import (
    AlterLake,
    CreateLake,
    DescribeLake,
    DropLake,
    ListLakes,
    RecordLakeProgress,
)

FRESHNESS_S_DEFAULT: Final = FRESHNESS_MS_DEFAULT / 1_000
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class LakesClient:
    """The lakes of a log."""

    def __init__(self, connection: ClusterConnection, topics: TopicsClient) -> None:
        self._connection = connection
        self._topics = topics

    def create(
        self,
        name: str,
        topics: str | Sequence[str],
        location: str | os.PathLike[str],
        freshness: float,
        file_bytes: int,
        iceberg: str | None = None,
        *,
        version_retention: float | None = None,
        file_retention: float | None = None,
        check: bool = True,
    ) -> LakeDescription:
        """Create a lake, if each topic can have a Delta table.

        ``check``: whether the location and the packages of this process are checked.
        """
        if iceberg is not None and not re.fullmatch(ICEBERG_NAME, iceberg):
            raise InvalidOption(
                f"{iceberg!r} is no name of an Iceberg catalog",
                hint="Give CATALOG or CATALOG.NAMESPACE. The address and the keys of the catalog"
                " are in the worker's environment, or in its ~/.pyiceberg.yaml.",
                option="iceberg",
            )
        ids = self._ids(topics)
        place = _location(location)
        if iceberg is not None and (bad := sorted(set("?#%").intersection(place))):
            raise InvalidOption(
                f"the location of a lake with Iceberg tables has no {bad[0]!r}: {place}",
                hint="Choose another folder. Iceberg takes the paths of files for addresses.",
                option="location",
            )
        others = {each.name: each.location for each in self.all()}
        request = CreateLake.of(
            lake=name,
            lake_id=secrets.token_hex(8),
            topics=_listed(topics),
            location=place,
            freshness_ms=round(1_000 * freshness),
            file_bytes=file_bytes,
            iceberg=iceberg,
            version_retention_ms=_milliseconds(version_retention),
            file_retention_ms=_milliseconds(file_retention),
        )
        with no_folder_on_error(place):
            if name not in others:  # else the broker refuses the name
                check_apart(place, others)
                if check and ids:
                    _check_iceberg(iceberg)
                    check_location(place, self._connection.cluster_id or "", ids)
            return self._connection.call(request)

    def alter(
        self,
        name: str,
        topics: str | Sequence[str] | None,
        freshness: float | None,
        file_bytes: int | None,
        location: str | os.PathLike[str] | None = None,
        *,
        check: bool = True,
    ) -> LakeDescription:
        """Alter a lake, if each topic can have a Delta table.

        ``location``: of copied tables. ``check``: whether the tables of added topics are checked.
        """
        found = self.describe(name)
        place = found.location if location is None else _location(location)
        copied = None if location is None else self._copied(found, place)
        if topics is not None:
            known = {each.name: each.id for each in found.topics}
            ids = self._ids(topics)
            if check:
                added = {each: of for each, of in ids.items() if known.get(each) != of}
                store = open_store(place)
                check_tables(store, self._connection.cluster_id or "", added, found.id)
        request = AlterLake.of(
            lake=name,
            lake_id=found.id,
            topics=None if topics is None else _listed(topics),
            freshness_ms=_milliseconds(freshness),
            file_bytes=file_bytes,
            location=None if location is None else place,
            copied=copied,
        )
        return self._connection.call(request)

    def _copied(self, lake: LakeDescription, place: str) -> dict[str, dict[int, int]]:
        """Check the copies of a lake's tables at another location. Return their offsets."""
        if lake.iceberg is not None:
            raise Unsupported(
                "the tables of a lake with Iceberg tables cannot be moved: a catalog has the paths"
                " of their files",
                hint="Create a second lake at the new location, and drop this one.",
            )
        if lake.omitted:
            raise InvalidOption(
                f"you may not describe all topics of the lake {lake.name!r}", option="location"
            )
        check_apart(place, {each.name: each.location for each in self.all() if each.id != lake.id})
        cluster = self._connection.cluster_id or ""
        copied = {}
        with no_folder_on_error(place):
            ids = {each.name: each.id for each in lake.topics}
            check_location(place, cluster, ids, lake.id)
            for topic in lake.topics:
                opened = open_table(TopicLake(lake.name, lake.id, place, topic.tiered), topic.name)
                opened.check_copied(topic.id)
                opened.check_files()
                copied[topic.id] = opened.table.offsets(topic.id)
        return copied

    def _ids(self, topics: str | Sequence[str]) -> dict[str, str]:
        """Return the ids of topics by name, after a check that each can have a Delta table."""
        ids = {}
        for each in _listed(topics):
            topic = self._topics.describe(checked_topic(each))
            table_schema(each, topic.schema)
            ids[each] = topic.id
        return ids

    def all(self) -> list[LakeDescription]:
        """Return the lakes that the caller may describe, by name."""
        return self._connection.call(ListLakes()).lakes

    def describe(self, name: str) -> LakeDescription:
        """Return a lake."""
        return self._connection.call(DescribeLake.of(lake=name))

    def drop(self, name: str) -> None:
        """Drop the lake that has this name at the time of the call."""
        found = self.describe(name)
        try:
            self._connection.call(DropLake.of(lake=name, lake_id=found.id))
        except UnknownLake:
            return  # an earlier attempt of this call removed it

    def record_progress(
        self,
        name: str,
        lake_id: str,
        offsets: Mapping[str, Mapping[int, int]],
        stopped: str = "",
        stopped_hint: str = "",
        *,
        location: str = "",
    ) -> None:
        """Record the offsets that were read back from the tables, by topic id.

        ``location``: of the tables. ``stopped``: the reason of the worker's stop, with its remedy.
        """
        request = RecordLakeProgress.of(
            lake=name,
            lake_id=lake_id,
            location=location,
            tiered={each: dict(found) for each, found in offsets.items()},
            stopped=stopped[:STOPPED_MAX],
            stopped_hint=stopped_hint[:STOPPED_MAX],
        )
        self._connection.call(request)


def _listed(topics: str | Sequence[str]) -> list[str]:
    return [topics] if isinstance(topics, str) else list(topics)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(1_000 * seconds)


def _check_iceberg(catalog: str | None) -> None:
    if catalog is not None and find_spec("pyiceberg") is None:
        raise InvalidOption(
            "Iceberg tables need the package pyiceberg",
            hint=f"{install_hint('iceberg')} Without it here, only the worker can check the"
            " catalog and the location: --no-check, or check=False.",
            option="iceberg",
        )


def _location(given: str | os.PathLike[str]) -> str:
    """Return a location in its plain form: a URL, or an absolute folder."""
    text = os.fspath(given)
    if _URL.match(text) and not text.lower().startswith("file:"):
        url = urlsplit(text)
        path = posixpath.normpath(f"/{url.path.strip('/')}").rstrip("/")
        return url._replace(path=path).geturl()
    try:
        parts = local_directory(text, "location", None).absolute().parts
        # A link before a parent is followed, as the operating system does. Other links stay.
        parent = max((n for n, each in enumerate(parts, 1) if each == ".."), default=0)
        return str(Path(*parts[:parent]).resolve().joinpath(*parts[parent:]))
    except InvalidOption as error:
        raise InvalidOption(
            error.message, hint="Give a folder, or a URL such as s3://BUCKET/FOLDER."
        ) from None


__all__ = ["FILE_BYTES_DEFAULT", "FRESHNESS_S_DEFAULT", "LakesClient"]
