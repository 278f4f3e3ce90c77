"""Where the log is: addresses of brokers, or a directory; and what a ``path`` means.

A relative ``path`` is one in the working directory of Spark's driver, as for Spark's own file
sources. Python has to look for that directory: Spark starts its planners and tasks in others, with
Spark Connect in a folder that it deletes with the session. So a path is made absolute once, by
whoever plans, from the working directory of the JVM that started the planner. Tasks get it absolute
(decision 23).

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
from spark_stream.datasource.spark.workers import IN_A_WORKER, driver_jvm, this_host
from spark_stream.directories import local_directory
from spark_stream.errors import InvalidOption
from spark_stream.wire.limits import REQUEST_TIMEOUT_S

_UUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_DELETED: Final = re.compile(
    rf"(userFiles|spark|blockmgr|artifacts|executor)-{_UUID}"  # a session's files
    r"|container_(e\d+_)?\d+_\d+_\d+_\d+"  # a YARN container
    r"|(driver|app)-\d{14}-\d{4}"  # what a worker of a standalone cluster runs
)
"""The names of folders that Spark, or its cluster manager, deletes with what ran in them."""

_WHERE: Final = (
    "Give .option(\"path\", \"data/\"), or in SQL WITH (path '…', topic '…'). Spark does not pass"
    " a table's OPTIONS on to CREATE TABLE … AS SELECT (use CREATE TABLE t USING isolog OPTIONS"
    " (…), then INSERT INTO t SELECT …), nor to a table with declared columns (leave the columns"
    " out), nor to an INSERT of columns with just the table's names."
)

_POD: Final = Path("/opt/spark/work-dir")
"""Where Spark's image runs; in Kubernetes it ends with its pod."""


class Place(Struct, frozen=True):
    """Where the log is: addresses of brokers, or a directory.

    ``host`` is the host that a directory is on, ``cluster_id`` the log that the query was planned
    with. Both travel to the tasks, which refuse another host, and another log (``session``).
    ``timeout_s`` is how long a call, with its retries, waits for a broker there; ``access`` is how
    to connect. ``rack``: that of the readers, if it is one for all of them. ``brokers``: the
    addresses that the driver has received, for tasks that start when ``bootstrap`` is dead.
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
        """The option that names it, with its value."""
        return f"path {self.path}" if self.bootstrap is None else f"bootstrap {self.bootstrap}"


def place_of(options: Mapping[str, str], *, names_topic: bool) -> tuple[Place, str | None]:
    """Return where the log is, and the topic if ``load``, ``save`` or ``start`` was given one."""
    place, topic = _place_and_topic(options, names_topic=names_topic)
    return replace(place, access=access_of(options)), topic


def _place_and_topic(options: Mapping[str, str], *, names_topic: bool) -> tuple[Place, str | None]:
    """Return where the log is, and the topic if ``load``, ``save`` or ``start`` was given one.

    Spark hands the argument of ``load`` on as the option ``path``, and lets nobody give both. So a
    ``path`` beside ``bootstrap``, or where the environment says where the log is, is a topic; else
    it is a directory.
    """
    bootstrap, path = options.get("bootstrap"), options.get("path")
    if bootstrap is not None:
        if path is not None and names_topic:
            raise InvalidOption(
                f"bootstrap and path ({path!r}): a log is at one place; give one of the two",
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
        "where is the log? Give bootstrap (host:port) or path (a directory)",
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
        InvalidOption: it is no directory of this machine, or lies in a folder that Spark deletes.
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
    return Place(path=str(found), host=this_host())


def _deleted(path: str, folder: Path) -> InvalidOption:
    return InvalidOption(
        f"path {path!r} would be a log in {folder}, which is deleted when Spark is done with it",
        option="path",
        hint="Give an absolute path outside of it, or bootstrap (host:port) of a broker.",
    )


def driver_directory() -> Path:
    """Return the working directory of Spark's driver: of the JVM that started this planner.

    Outside of Spark's Python processes it is this process's own.

    Raises:
        InvalidOption: it cannot be found out.
    """
    if IN_A_WORKER not in os.environ:
        return Path.cwd()
    try:
        jvm = driver_jvm()
        if jvm is not None:
            return Path(jvm.cwd())
    except psutil.Error as error:
        raise _unknown(f"the system does not tell ({error})") from error
    raise _unknown("no JVM is among the processes that started this one")


def _unknown(why: str) -> InvalidOption:
    return InvalidOption(
        "path is relative to the working directory of Spark's driver, and that cannot be found"
        f" out: {why}",
        option="path",
        hint="Give an absolute path, or bootstrap (host:port) of a broker.",
    )
