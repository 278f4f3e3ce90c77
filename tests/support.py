"""Broker processes for tests, a deadline for conditions, and plain calls of the protocol."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil
import pyarrow as pa
import pytest

import isolog
from spark_stream.errors import BY_CODE, from_wire
from spark_stream.operating_system import PORTABLE, is_running
from spark_stream.testing.local_cluster import LocalBroker
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import CallFailed
from spark_stream.wire.messages import ACT, FETCH
from spark_stream.wire.topic_messages import PartitionOffsets

CALL_S = 20.0


def eventually(check: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Return the first true value of ``check``. Fail if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {timeout_s:g} s: {check}")
        time.sleep(0.005)


def free_port() -> int:
    """Return a port that was just free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def open_files(pid: int | str = "self") -> dict[int, str]:
    """Return the target of each descriptor of a process, on Linux.

    A descriptor that is closed during this call may be missing.
    """
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(number)] = os.readlink(f"/proc/{pid}/fd/{number}")
    return found


class BrokerProcess(LocalBroker):
    """A broker on a directory until the end of the ``with`` block. ``conf``: in TOML."""

    def __init__(
        self,
        directory: Path,
        listen: str = "127.0.0.1:0",
        *,
        conf: str = "",
        idle_seconds: float | None = None,
    ) -> None:
        super().__init__(1, directory, tomllib.loads(conf))
        self.listen = listen
        self._idle = [] if idle_seconds is None else ["--idle-seconds", str(idle_seconds)]

    def flags(self) -> list[str]:
        return ["--listen", self.listen, *self._idle]

    def start(self) -> Self:
        """Start the broker and wait until it serves. Raise the error of a failed start."""
        self.spawn()
        self.await_ready()
        return self

    def kill(self) -> None:
        """Kill the process (SIGKILL), and wait for its exit."""
        self.end(signal.SIGKILL)

    def terminate(self, timeout_s: float = 60.0) -> int:
        """Stop the process (SIGTERM), and return its exit code."""
        self.end(signal.SIGTERM, timeout_s)
        return self.wait()

    def restart(self) -> Self:
        """Start another process on the same directory, at the same address."""
        self.end(signal.SIGTERM, 60.0)
        self.listen = self.address or self.listen
        return self.start()

    def restart_in_a_new_epoch(self) -> Self:
        """Kill the process, and start it on a directory without the file of its last run.

        It then cannot vouch for its logs, and leads in the next epoch.
        """
        self.kill()
        (self.directory / "broker.run").unlink()
        return self.restart()

    def connect(self, **options: Any) -> isolog.Log:
        return isolog.connect(self.address, **options)

    def channel(self) -> Channel:
        """Return a connection for plain calls."""
        return Channel(self.address)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)


def alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not."""
    try:
        return is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def end_process(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process, which may have ended already, and wait for its exit."""
    try:
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, number)
    except ProcessLookupError:
        return
    eventually(lambda: not alive(pid))


# -- plain calls ----------------------------------------------------------------------------------


class Channel(ClientChannel):
    """A connection to one broker, without the routes and retries of the client."""

    def __init__(self, address: str) -> None:
        super().__init__(address, timeout_s=CALL_S)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Raise the error of a failed call, and check its code, message and hint."""
    try:
        yield
    except CallFailed as failed:
        value = msgspec.msgpack.decode(failed.error)
        assert value["code"] in BY_CODE, value
        assert value["message"], value
        assert value["hint"], value
        raise from_wire(value) from None


def act(channel: ClientChannel, name: str, **body: Any) -> dict[str, Any]:
    """Return the answer of an action."""
    with typed_errors():
        answer = channel.call(ACT, name.encode(), json.dumps(body).encode(), CALL_S)
    return dict(json.loads(bytes(answer.body)))


def listed(channel: ClientChannel, topic: str, **asked: Any) -> PartitionOffsets:
    """Return the answer of ``list-offsets`` for one topic, or raise the topic's error."""
    found = act(channel, "list-offsets", topics=[{"topic": topic, **asked}])
    for error in found["unknown"].values():
        raise from_wire(error)
    return PartitionOffsets.from_bytes(json.dumps(found["topics"][topic]).encode())


class Fetching:
    """An iterator over the batches of a fetch, each with its facts."""

    def __init__(self, channel: ClientChannel, *ranges: Any, body: bytes | None = None) -> None:
        request = json.dumps({"ranges": ranges}).encode() if body is None else body
        self._stream = channel.open(FETCH, b"", request, end=True, timeout_s=CALL_S)
        self._schema: pa.Schema | None = None

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, dict[str, Any]]]:
        return self

    def __next__(self) -> tuple[pa.RecordBatch, dict[str, Any]]:
        with typed_errors():
            if self._schema is None:
                first = self._stream.receive(CALL_S)
                assert first is not None
                self._schema = pa.ipc.read_schema(pa.py_buffer(first.body))
            frame = self._stream.receive(CALL_S)
        if frame is None:
            raise StopIteration
        facts = json.loads(bytes(frame.header))
        if not frame.body:
            return pa.RecordBatch.from_pylist([], self._schema), facts
        source = pa.BufferReader(pa.py_buffer(frame.body))
        batches = [
            pa.ipc.read_record_batch(source, self._schema) for _ in range(facts.pop("messages", 1))
        ]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches), facts

    def cancel(self) -> None:
        """Cancel the fetch."""
        self._stream.cancel()


def range_of(topic: str, partition: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a range of a fetch."""
    return {"topic": topic, "partition": partition, **fields}


def fetched(channel: ClientChannel, topic: str, partition: int = 0, **fields: Any) -> Any:
    """Return all batches of a fetch of one range, and the facts of its last message."""
    *batches, (last, end) = Fetching(channel, range_of(topic, partition, **fields))
    assert last.num_rows == 0
    assert end["kind"] == "end"
    return batches, end


# -- records --------------------------------------------------------------------------------------


def values(*items: bytes | str | None) -> pa.RecordBatch:
    """Return a batch for a default-schema topic."""
    raw = [item.encode() if isinstance(item, str) else item for item in items]
    return pa.record_batch({"value": pa.array(raw, pa.binary())})


def numbers(first: int, count: int) -> pa.RecordBatch:
    """Return a batch of the typed schema ``NUMBERS``."""
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


NUMBERS = pa.schema([("n", pa.int64())])

native = pytest.mark.skipif(PORTABLE, reason="its subject is a call of Linux without a fallback")
"""The mark of tests that ``ISOLOG_PORTABLE=1`` skips."""

needs_epoll = pytest.mark.skipif(
    PORTABLE or not hasattr(select, "epoll"), reason="threads read for the loop with epoll only"
)


def note_threads(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str
) -> list[threading.Thread]:
    """Return a list to which each call of a method adds its thread."""
    real, threads = getattr(kind, method), list[threading.Thread]()

    def noted(*args: object) -> object:
        threads.append(threading.current_thread())
        return real(*args)

    monkeypatch.setattr(kind, method, noted)
    return threads


# -- fixtures of all tests ------------------------------------------------------------------------

_topics = itertools.count()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that tests must not stop, block or slow down."""
    with BrokerProcess(tmp_path_factory.mktemp("shared") / "log") as found:
        yield found


@pytest.fixture
def log(shared: BrokerProcess) -> Iterator[isolog.Log]:
    """A client of the shared broker."""
    with shared.connect() as found:
        yield found


@pytest.fixture
def channel(shared: BrokerProcess) -> Iterator[Channel]:
    """A connection to the shared broker, for plain calls."""
    with shared.channel() as found:
        yield found


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_topics)}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of one test, for any use."""
    with BrokerProcess(tmp_path / "log") as found:
        yield found
