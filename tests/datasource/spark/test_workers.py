"""Workers of Spark whose rows are not needed end without a traceback. Others continue."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from spark_stream.datasource.spark.workers import with_spark_errors

# As PySpark's daemon does it: the rows are dropped, and then the socket is flushed.
DAEMON = """
def worker(sock, rows):
    next(rows)
    del rows
    events.append("flush")
"""


@with_spark_errors
def rows() -> Iterator[int]:
    yield from range(10)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, sparks = socket.socketpair()
    with mine, sparks:
        yield mine, sparks


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of a worker, in this process."""
    found: list[str] = []
    monkeypatch.setattr(os, "_exit", lambda code: found.append(f"exit {code}"))
    return found


def run_worker(mine: socket.socket, file: str, events: list[str]) -> None:
    """Run a worker with this socket, whose code is in a file of this name."""
    names: dict[str, Any] = {"events": events}
    exec(compile(DAEMON, f"/pyspark/{file}", "exec"), names)
    names["worker"](mine, rows())


def test_a_worker_ends_before_its_flush_if_spark_has_closed_the_socket(pair, events):
    mine, sparks = pair
    sparks.close()
    run_worker(mine, "daemon.py", events)
    assert events == ["exit 0", "flush"]


def test_a_worker_that_can_report_an_error_does_so(pair, events):
    mine, sparks = pair
    sparks.send(b"more")  # unread data does not mean a closed socket
    run_worker(mine, "daemon.py", events)
    assert events == ["flush"]


def test_a_process_that_is_no_worker_of_spark_continues(pair, events):
    mine, sparks = pair
    sparks.close()
    run_worker(mine, "other.py", events)
    assert events == ["flush"]
