"""The place of the log: addresses of brokers, or a directory, and the meaning of a ``path``.

A relative ``path`` is relative to the working directory of Spark's driver, as for Spark's own file
sources. Python has to find that directory: Spark starts its planners and tasks in others, with
Spark Connect in a folder that it deletes with the session. So the planner makes a path absolute
once, from the working directory of the JVM that started it. Tasks get it absolute (decision 23).

A log in a folder that Spark deletes would be lost silently. Such a path is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.client.connecting.access import OPEN, Access, access_of, bootstrap_of_profile
from spark_stream.datasource.spark.workers import driver_jvm, in_a_worker
from spark_stream.directories import local_directory
from spark_stream.errors import InvalidOption
from spark_stream.operating_system import boot_id
from spark_stream.wire.limits import REQUEST_TIMEOUT_S

_UUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_DELETED: Final = re.compile(
    rf"(userFiles|spark|blockmgr|artifacts|executor)-{_UUID}"  # a session's files
    r"|container_(e\d+_)?\d+_\d+_\d+_\d+"  # a YARN container
    r"|(driver|app)-\d{14}-\d{4}"  # what a worker of a standalone cluster runs
)
"""The names of folders that Spark, or its cluster manager, deletes after use."""

_WHERE: Final = (
    "Give .option(\"path\", \"data/\"), or in SQL WITH (path '…', topic '…'). Spark does not pass"
    " a table's OPTIONS on to CREATE TABLE … AS SELECT (use CREATE TABLE t USING isolog OPTIONS"
    " (…), then INSERT INTO t SELECT …), nor to a table with declared columns (leave the columns"
    " out), nor to an INSERT of columns with just the table's names."
)

_POD: Final = Path("/opt/spark/work-dir")
"""The working directory of Spark's image. In Kubernetes it is lost with its pod."""


class Place(Struct, frozen=True):
    """The place of the log: addresses of brokers, or a directory.

    ``host`` is the host with the directory, and ``cluster_id`` the log that the query was planned
    with. A task fails on another host, and if the log there has another cluster id (``session``).
    ``timeout_s`` limits a call to a broker, with its retries. ``access`` has the TLS files and the
    credential. ``rack``: the common rack of all readers, or None. ``brokers``: the addresses that
    the driver has received, for tasks that start when no broker at ``bootstrap`` answers.
    """

    bootstrap: str | None = None
    path: str | None = None
    host: str | None = None
    cluster_id: str | None = None
    timeout_s: float = REQUEST_TIMEOUT_S
    access: Access = OPEN
    rack: str | None = None
    brokers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The option for the place, with its value."""
        return f"path {self.path}" if self.bootstrap is None else f"bootstrap {self.bootstrap}"


def place_of(options: Mapping[str, str], *, names_topic: bool) -> tuple[Place, str | None]:
    """Return the place, and the topic if ``load``, ``save`` or ``start`` was given one."""
    place, topic = _place_and_topic(options, names_topic=names_topic)
    return replace(place, access=access_of(options)), topic


def _place_and_topic(options: Mapping[str, str], *, names_topic: bool) -> tuple[Place, str | None]:
    """Return the place, and the topic if ``load``, ``save`` or ``start`` was given one.

    Spark passes the argument of ``load`` on as the option ``path``, and refuses both together. So a
    ``path`` is a topic if ``bootstrap``, the environment or a profile sets the place, and no option
    names a topic. Otherwise it is a directory.
    """
    bootstrap, path = options.get("bootstrap"), options.get("path")
    if bootstrap is not None:
        if path is not None and names_topic:
            raise InvalidOption(
                f"bootstrap and path ({path!r}) are both set: give only one of them",
                option="path",
            )
        return Place(bootstrap=bootstrap), path
    default = _default_place(options)
    if path is not None and default is not None and not names_topic:
        return default, path
    if path is not None:
        return directory(path), None
    if default is not None:
        return default, None
    raise InvalidOption(
        "no log is given: set bootstrap (host:port) or path (a directory)",
        option="bootstrap",
        hint=_WHERE,
    )


def _default_place(options: Mapping[str, str]) -> Place | None:
    """Return the place in ISOLOG_BOOTSTRAP, ISOLOG_PATH or a profile, as the command line does."""
    if options.get("profile") and (named := bootstrap_of_profile(options)):
        return Place(bootstrap=named)
    bootstrap, path = os.environ.get("ISOLOG_BOOTSTRAP"), os.environ.get("ISOLOG_PATH")
    if bootstrap:
        return Place(bootstrap=bootstrap)
    if path:
        return directory(path)
    named = bootstrap_of_profile(options)
    return None if named is None else Place(bootstrap=named)


def directory(path: str) -> Place:
    """Return the place of a directory of this host.

    Raises:
        InvalidOption: The path is no directory of this machine, or lies in a folder that Spark
            deletes.
    """
    given = local_directory(path)
    if given.is_absolute():
        found = Path(os.path.abspath(given))
    else:
        base = driver_directory()
        if base == _POD and "KUBERNETES_SERVICE_HOST" in os.environ:
            raise _deleted(path, base)
        found = Path(os.path.abspath(base / given))
    for each in (found, found.resolve()):
        for folder in (each, *each.parents):
            if _DELETED.fullmatch(folder.name):
                raise _deleted(path, folder)
    return Place(path=str(found), host=boot_id())


def _deleted(path: str, folder: Path) -> InvalidOption:
    return InvalidOption(
        f"path {path!r} is in {folder}, which is deleted with Spark's session, job or container",
        option="path",
        hint="Give an absolute path outside of it, or bootstrap (host:port) of a broker.",
    )


def driver_directory() -> Path:
    """Return the working directory of Spark's driver: that of the JVM that started this planner.

    Outside of Spark's Python processes it is that of this process.

    Raises:
        InvalidOption: The directory cannot be determined.
    """
    if not in_a_worker():
        return Path.cwd()
    try:
        jvm = driver_jvm()
        if jvm is not None:
            return Path(jvm.cwd())
    except psutil.Error as error:
        raise _unknown(f"the system does not report its processes ({error})") from error
    raise _unknown("no JVM is among the parents of this process")


def _unknown(why: str) -> InvalidOption:
    return InvalidOption(
        "path is relative to the working directory of Spark's driver, which cannot be"
        f" determined: {why}",
        option="path",
        hint="Give an absolute path, or bootstrap (host:port) of a broker.",
    )
