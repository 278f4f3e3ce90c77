"""One connection per process and place, made after the fork.

Spark's Python workers are forked and reused. A forked child must not use the connections of its
parent. So sessions are stored by process id.

A session uses only the log that the query was planned with. The planner writes the id of the log's
cluster, and the host of a directory, into the place for the tasks (:func:`locate`). A task on
another host, or one that finds another log there, fails before it reads or writes anything.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.client.administration import AccessClient
from spark_stream.client.connecting.access import Access
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.lake_tables import LakeTables
from spark_stream.client.topics import TopicsClient
from spark_stream.datasource.spark.place import Place
from spark_stream.datasource.spark.workers import in_a_worker
from spark_stream.errors import InvalidOption, UnknownLog, WrongCluster
from spark_stream.garbage import freeze_survivors
from spark_stream.operating_system import boot_id, call_in_child
from spark_stream.wire.cluster_messages import GetStatus


class Session(Struct, frozen=True):
    """The connection of this process to a log, with the client for topics, and their tables."""

    connection: ClusterConnection
    topics: TopicsClient
    tables: LakeTables
    cluster_id: str


_BRIEF_S: Final = 5.0
"""The limit of a call in the driver that Spark does not interrupt when it stops a query."""

_lock = threading.Lock()
call_in_child(_lock._at_fork_reinit)  # type: ignore[attr-defined]
_sessions: dict[tuple[int, Place], Session] = {}


def session(place: Place, *, create: bool = False) -> Session:
    """Return this process's session with the log at ``place``.

    With ``create`` a missing log is created.

    Raises:
        UnknownLog: There is no log, and ``create`` is false.
        WrongCluster: The log there is not the one of the place.
        InvalidOption: The place is a directory of another host.
    """
    key = (os.getpid(), place)
    with _lock:
        found = _sessions.get(key)
    if found is not None:
        return found
    made = _connected(place, create)
    if in_a_worker():
        freeze_survivors()  # PySpark makes a full collection after each task
    with _lock:
        return _sessions.setdefault(key, made)


def locate(
    place: Place, grants: Sequence[Grant] = (), *, create: bool = False, lasting: bool = False
) -> Place:
    """Return the place with the id of the log there, for the tasks of a query.

    If the place has a credential, tasks get a token in its place, for the ``grants`` only. It
    expires after twelve hours, or with ``lasting`` after twelve hours without use. Without
    ``grants`` there are no tasks.

    Raises: as :func:`session`.
    """
    key = (os.getpid(), place)
    with _lock:
        known = _sessions.get(key)
    if known is not None and not _still_there(known):
        with _lock:  # the place has another log, or none
            _sessions.pop(key, None)
    log_session = session(place, create=create)
    found = replace(
        place,
        cluster_id=log_session.cluster_id,
        brokers=tuple(sorted(log_session.connection.brokers)),
    )
    with _lock:
        _sessions.setdefault((os.getpid(), found), log_session)
    if not grants or not place.access.has_credential:
        return found
    token = _token_for(log_session, place.access, tuple(grants), lasting)
    return replace(found, access=Access(place.access.tls, token=token))


Grant = tuple[str, str]
"""An operation, and a resource."""

_TOKEN_S: Final = 12 * 3600.0
_TOKEN_NEW_S: Final = 3600.0  # for how long other plans of this process get the same token
_TokenKey = tuple[int, str, Access, tuple[Grant, ...], bool]
_tokens: dict[_TokenKey, tuple[str, float]] = {}


def _token_for(
    log_session: Session, access: Access, grants: tuple[Grant, ...], lasting: bool
) -> str:
    """Return a token for the tasks of a query."""
    key = (os.getpid(), log_session.cluster_id, access, grants, lasting)
    kept = _kept_token(key)
    if kept is not None:
        return kept
    client = AccessClient(log_session.connection)
    if lasting:
        token = client.create_token(None, _TOKEN_S, grants, sliding=True).token
    else:
        token = client.open_session(grants, _TOKEN_S)
    with _lock:
        _tokens[key] = token, time.monotonic() + _TOKEN_NEW_S
    return token


def _kept_token(key: _TokenKey) -> str | None:
    """Return the token of an earlier plan of this process, if it is new enough."""
    with _lock:
        token, until = _tokens.get(key, ("", 0.0))
    return token if time.monotonic() < until else None


def with_brief_timeout(place: Place) -> Place:
    """Return the place with a limit of a few seconds for each call."""
    return replace(place, timeout_s=min(place.timeout_s, _BRIEF_S))


def session_for_aborts(place: Place) -> Session:
    """Return a session with a limit of a few seconds for each call.

    An abort is best effort, because the transaction also times out. A query that stops must not
    wait again for a broker that hangs.

    Raises: as :func:`session`.
    """
    return session(with_brief_timeout(place))


def recall(place: Place, grants: Sequence[Grant], cluster_id: str | None) -> Place | None:
    """Return the place for the tasks of a streaming query whose log does not answer.

    ``cluster_id``: the id of the log on record. Without it, the id is that of this process's
    earlier session. If there was no session, or a necessary token is not in memory, return None.
    """
    with _lock:
        known = _sessions.get((os.getpid(), place))
    if known is not None:
        brokers = tuple(sorted(known.connection.brokers))
        place = replace(place, cluster_id=cluster_id or known.cluster_id, brokers=brokers)
    elif cluster_id is not None:
        place = replace(place, cluster_id=cluster_id)
    else:
        return None
    if not place.access.has_credential:
        return place
    assert place.cluster_id is not None
    token = _kept_token((os.getpid(), place.cluster_id, place.access, tuple(grants), True))
    return None if token is None else replace(place, access=Access(place.access.tls, token=token))


def _still_there(known: Session) -> bool:
    try:
        known.connection.call(GetStatus())
    except (WrongCluster, UnknownLog):
        return False
    return True


def check_one_log(log_session: Session, others: Iterable[str | None]) -> None:
    """Raise WrongCluster if tasks wrote to another log than that of this session."""
    for other in set(others) - {None, log_session.cluster_id}:
        raise WrongCluster(
            f"tasks of this query wrote to the log {other}, and its driver is at the log"
            f" {log_session.cluster_id}",
            hint="The batch was not committed. Give a path or bootstrap of one log on all hosts.",
            expected=log_session.cluster_id,
            found=other,
        )


def _connected(place: Place, create: bool) -> Session:
    _check_host(place)
    path = None if place.path is None else Path(place.path)
    connection = ClusterConnection(
        place.bootstrap,
        path,
        place.timeout_s,
        create=create,
        cluster_id=place.cluster_id,
        access=place.access,
        rack=place.rack,
        brokers=place.brokers,
    )
    try:
        connection.retry(lambda link, within_s: link.connect(within_s))
    except UnknownLog as error:
        raise UnknownLog(
            error.message,
            hint="Check the path. A sink with createTopic=true makes the log and its topic.",
            **error.details,
        ) from None
    topics = TopicsClient(connection)
    assert connection.cluster_id is not None
    return Session(connection, topics, LakeTables(connection, topics), connection.cluster_id)


def _check_host(place: Place) -> None:
    if place.path is None or place.host is None or place.host == boot_id():
        return
    raise InvalidOption(
        f"path {place.path} is a directory of the host of Spark's driver, and this task runs on"
        f" another host ({socket.gethostname()})",
        option="path",
        hint="Start a broker on the driver's host (isolog broker start --dir DIR --listen"
        " HOST:PORT), and give bootstrap=HOST:PORT instead of path.",
    )
