"""The broker process of a directory: start it in the background, find it, end it.

The lock that a broker holds tells whether it runs, never ``broker.json`` alone: that file survives
a ``kill -9``, and its process id may belong to another process by then.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from spark_stream.client.connecting.embedded import (
    broker_command,
    broker_environment,
    check_ours,
    lock_held,
)
from spark_stream.errors import BrokerUnavailable, RequestTimeout, StorageFailure, from_wire

READY: Final = "isolog broker ready "
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
_POLL_S: Final = 0.02


class Running(Struct, frozen=True):
    """A broker that holds a directory; ``address`` is None until it serves."""

    pid: int | None = None
    address: str | None = None


def running(directory: Path) -> Running | None:
    """Return the broker of the directory; None if none runs."""
    try:
        if not lock_held(directory):
            return None
    except OSError as error:
        raise StorageFailure(f"{directory}: {error.strerror}") from None
    try:
        facts = json.loads((directory / "broker.json").read_text())
        return Running(int(facts["pid"]), str(facts["address"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Running()


def start(directory: Path, flags: list[str], variables: Mapping[str, str]) -> str:
    """Start a broker in a session of its own, and return its ready line.

    The broker is a new interpreter: this process has threads, so it must not fork. The broker's
    output goes to ``broker.log`` in its directory.

    Raises:
        IsologError: the reason why it did not start.
    """
    directory = directory.absolute()
    check_ours(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(directory / "broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise StorageFailure(
            f"{directory}: {error.strerror}",
            hint="The broker must be allowed to make the directory, and to write to it.",
        ) from None
    try:
        process = subprocess.Popen(
            broker_command(directory, *flags),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={**broker_environment(), **variables},
            start_new_session=True,
        )
    finally:
        os.close(log)
    assert process.stdout is not None
    line = ""
    with process.stdout as said:
        if select.select([said], [], [], _START_SECONDS)[0]:
            line = said.readline().decode().strip()
    if line.startswith(READY):
        return line
    _await_end(process)
    with suppress(ValueError, KeyError, TypeError):
        raise from_wire(json.loads(line)["error"])
    raise BrokerUnavailable(
        f"the broker of {directory} did not come up",
        hint=f"Look into {directory / 'broker.log'}.",
    )


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a broker that could not start; kill it if it neither serves nor ends."""
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def stop(directory: Path, timeout_s: float) -> int:
    """End the directory's broker cleanly, wait until it has exited, and return its process id.

    Raises:
        BrokerUnavailable: none runs, or it is out of reach (on another host, in a container).
        RequestTimeout: it did not end in time; it may still do so.
    """
    deadline = time.monotonic() + timeout_s
    found = running(directory)
    while found is not None and found.pid is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # it holds the lock but does not serve yet
        found = running(directory)
    if found is None:
        raise BrokerUnavailable(f"no broker serves {directory}", hint="There is nothing to stop.")
    handle = None if found.pid is None else _handle(found.pid, directory)
    if handle is None or found.pid is None:
        raise BrokerUnavailable(
            f"a broker serves {directory}, but it is not a process that can be signalled from here",
            hint="Stop it on its own host, in its container, or as its user.",
        )
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        left = max(0.0, deadline - time.monotonic())
        if not select.select([handle], [], [], left)[0]:  # readable once the process has ended
            raise RequestTimeout(
                f"the broker of {directory} (process {found.pid}) did not stop in {timeout_s:g} s",
                hint="Allow more --timeout, or end it by `kill -9`: nothing acknowledged is lost.",
            )
    finally:
        os.close(handle)
    return found.pid


def _handle(pid: int, directory: Path) -> int | None:
    """Return a pidfd of the process if it has the directory's lock file open, else None.

    The pidfd comes first: from then on the process id cannot be reused for another process.
    """
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        lock = (directory / "broker.lock").stat()
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), lock):
                    return handle
    except OSError:
        pass  # another user's process
    os.close(handle)
    return None
