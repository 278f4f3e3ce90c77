"""One connection a process and place, made after the fork.

Spark's Python workers are forked and used again. A process that has used gRPC must not fork, and a
forked child must not use its parent's connections: so connections are remembered by process id.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from spark_stream.client.connection import Connection
from spark_stream.client.topics import TopicsClient
from spark_stream.client.transactions import TransactionsClient
from spark_stream.datasource.options import Place


@dataclass(frozen=True, slots=True)
class Session:
    """What this process uses to speak to a log."""

    connection: Connection
    topics: TopicsClient
    transactions: TransactionsClient


_lock = threading.Lock()
_sessions: dict[tuple[int, Place], Session] = {}


def session(place: Place) -> Session:
    """This process's session with the log at ``place``."""
    key = (os.getpid(), place)
    with _lock:
        found = _sessions.get(key)
        if found is None:
            path = None if place.path is None else Path(place.path)
            connection = Connection(place.bootstrap, path)
            found = _sessions[key] = Session(
                connection, TopicsClient(connection), TransactionsClient(connection)
            )
        return found
