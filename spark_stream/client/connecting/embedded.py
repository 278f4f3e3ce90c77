"""The broker of a directory: found if it runs, started in the background otherwise.

One broker is started, however many processes try at the same time, because each first locks
``start.lock``. A running broker holds a lock on ``broker.lock``. The kernel releases it when the
broker exits, even after ``kill -9``.

The broker is a new interpreter, because a process with threads must not fork, and it runs in a
separate session. It is not a child of the client: a shell starts it and exits.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import selectors
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from spark_stream.errors import (
    BrokerUnavailable,
    DirectoryInUse,
    InvalidConfig,
    InvalidOption,
    NotALogDirectory,
    StorageFailure,
    UnknownLog,
    from_wire,
)
from spark_stream.operating_system import UNIX_SOCKETS, check_can_lock, lock, unlock
from spark_stream.wire.allocator import MEMORY_BYTES_DEFAULT, allocator_settings
from spark_stream.wire.limits import FORMAT_VERSION, SOCKET_PATH_MAX

IDLE_SECONDS: Final = 300.0
_START_SECONDS: Final = 60.0
_END_S: Final = 1.0  # the threads of a killed broker keep its lock for a moment
_POLL_S: Final = 0.02
# A retry does not help against these errors.
_LASTING_ERRORS: Final = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}
_READY: Final = "isolog broker ready "


def known_address(directory: Path) -> str | None:
    """Return the address that the directory's broker recorded. The broker may have exited."""
    address = _facts(directory).get("address")
    return None if address is None else str(address)


def _facts(directory: Path) -> Mapping[str, Any]:
    """Return the facts that the directory's broker recorded. The broker may have exited."""
    try:
        return dict(json.loads((directory / "broker.json").read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def recorded_cluster_id(directory: Path) -> str | None:
    """Return the cluster id of the log in the directory. None if no log can be read."""
    try:
        return str(json.loads((directory / "isolog.json").read_text())["cluster_id"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def ensure_broker(
    directory: Path, idle_seconds: float | None = None, *, create: bool = True
) -> str:
    """Return the address of the directory's broker, after starting one if needed.

    With ``create=False`` a directory without a log, or a missing one, is not changed.

    Raises:
        UnknownLog: The directory has no log, and ``create`` is False.
        NotALogDirectory, UnsupportedFormat, …: The broker cannot start for this reason.
        BrokerUnavailable: The broker did not start in time. The hint names its log file.
        InvalidConfig: No broker runs on this system.
    """
    check_can_lock()
    directory = Path(os.path.realpath(directory))
    deadline = time.monotonic() + _START_SECONDS
    try:
        check_ours(directory)
        if not create and not holds_log(directory):
            raise UnknownLog(f"there is no log at {directory}", path=str(directory))
        if not _readable(directory):
            return _start(directory, deadline, idle_seconds, os.devnull)  # raises the reason
        _make(directory)
        with _turn(directory, deadline):
            began = time.monotonic()
            while lock_held(directory):
                address = live_address(directory)
                if address is not None:
                    return address
                if time.monotonic() > began + _END_S:
                    _check_not_moved(directory)
                if (
                    time.monotonic() > deadline
                ):  # a broker holds the lock but has not recorded its address
                    raise _not_up(directory)
                time.sleep(_POLL_S)
            return _start(directory, deadline, idle_seconds, directory / "broker.log")
    except (NotADirectoryError, FileExistsError) as error:
        raise NotALogDirectory(f"{directory} is not a directory", path=str(directory)) from error
    except OSError as error:
        if error.errno in _LASTING_ERRORS:
            raise InvalidOption(f"path {directory}: {error.strerror}", option="path") from error
        raise StorageFailure(f"{directory}: {error.strerror or error}") from error


def _make(directory: Path) -> None:
    """Create the directory. A file system such as ``/proc`` refuses new ones."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise InvalidOption(
            f"path {directory}: its file system does not allow new directories", option="path"
        ) from error


def live_address(directory: Path) -> str | None:
    """Return the address of the directory's running broker, or None.

    The recorded address of a broker that exited is ignored: another process may use its port.
    """
    address = known_address(directory)
    if address is None or not lock_held(directory) or not answers(address):
        return None
    return address


def _check_not_moved(directory: Path) -> None:
    """Check that the broker that holds the directory's lock serves it at this path.

    Raises:
        DirectoryInUse: The directory was moved while its broker was running.
    """
    facts = _facts(directory)
    served, pid = facts.get("directory"), facts.get("pid")
    if served is None or served == str(directory) or not lock_held(directory):
        return
    raise DirectoryInUse(
        f"process {pid} serves {directory} as {served}: the directory was moved while its broker"
        " ran",
        path=str(directory),
        hint=f"End process {pid} (kill {pid}), then open the directory again.",
    )


def check_ours(directory: Path) -> None:
    """Refuse a directory with files of other programs, before any file is written there."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise NotALogDirectory(f"{directory} is not a directory", path=str(directory))
    # A background broker that failed to start leaves its output.
    names = {entry.name for entry in directory.iterdir()} - {"broker.log"}
    if names and "isolog.json" not in names and not names & {"start.lock", "broker.lock"}:
        raise NotALogDirectory(
            f"{directory} is not empty and was not made by isolog", path=str(directory)
        )


def holds_log(directory: Path) -> bool:
    """Return whether the directory has a log, or a broker is creating one."""
    return (directory / "isolog.json").exists() or lock_held(directory)


def _readable(directory: Path) -> bool:
    """Return whether this release can open the log. If not, no file is written there."""
    description = directory / "isolog.json"
    if not description.exists():
        return True
    try:
        facts = json.loads(description.read_text())
        return bool(facts["format"] == "isolog" and facts["version"] == FORMAT_VERSION)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


@contextmanager
def _turn(directory: Path, deadline: float) -> Iterator[None]:
    """Hold ``start.lock``, so that one process at a time finds or starts the broker."""
    descriptor = os.open(directory / "start.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not lock(descriptor):
            if time.monotonic() > deadline:
                raise _not_up(directory)
            time.sleep(_POLL_S)
        yield
    finally:
        _unlock(descriptor)


def lock_held(directory: Path) -> bool:
    """Return whether a broker holds the directory's lock.

    The check itself holds a shared lock for an instant if no broker does.
    """
    try:
        descriptor = os.open(directory / "broker.lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not lock(descriptor, shared=True)
    finally:
        _unlock(descriptor)


def _unlock(descriptor: int) -> None:
    """Release a file's lock and close the file, of which a forked child may hold a copy."""
    unlock(descriptor)
    os.close(descriptor)


def answers(address: str) -> bool:
    """Return whether a process accepts connections at the address."""
    try:
        if address.startswith("unix:"):
            with socket.socket(UNIX_SOCKETS) as probe:
                probe.settimeout(1.0)
                probe.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except (OSError, ValueError):
        return False
    return True


def broker_command(directory: Path, *flags: str) -> list[str]:
    """Return the command that starts a broker process for the directory."""
    return [sys.executable, "-m", "spark_stream.broker", "--dir", str(directory), *flags]


def broker_environment() -> dict[str, str]:
    """Return the environment of a broker process, with this package's path and memory settings."""
    package_home = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join(filter(None, (package_home, os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": paths} | allocator_settings(MEMORY_BYTES_DEFAULT)


def _start(
    directory: Path, deadline: float, idle_seconds: float | None, log_file: str | Path
) -> str:
    idle = _idle_seconds() if idle_seconds is None else idle_seconds
    flags = ["--listen", f"unix:{socket_path(directory)}", "--idle-seconds", str(idle)]
    command = broker_command(directory, *flags)
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        with subprocess.Popen(
            ["/bin/sh", "-c", '"$@" </dev/null &', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env=broker_environment(),
            start_new_session=True,
        ) as shell:
            shell.wait()
            assert shell.stdout is not None
            line = _first_line(shell.stdout.fileno(), deadline)
    finally:
        os.close(log)
    if line.startswith(_READY):
        return line.removeprefix(_READY)
    try:
        raise from_wire(json.loads(line)["error"])
    except (ValueError, KeyError, TypeError):
        raise _not_up(directory) from None


def _idle_seconds() -> float:
    value = os.environ.get("ISOLOG_IDLE_SECONDS", IDLE_SECONDS)
    try:
        return float(value)
    except ValueError:
        raise InvalidConfig(
            f"ISOLOG_IDLE_SECONDS takes a number of seconds, not {value!r}", setting="idle_seconds"
        ) from None


def _first_line(descriptor: int, deadline: float) -> str:
    """Return the broker's first line of output. Empty if it exited or printed none in time."""
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while b"\n" not in data and selector.select(max(0.0, deadline - time.monotonic())):
            part = os.read(descriptor, 65536)
            if not part:
                break
            data += part
    return data.partition(b"\n")[0].decode()


def socket_path(directory: Path) -> Path:
    """Return a path for the broker's socket, in a private folder, short enough for the system."""
    near = directory / "run" / "broker.sock"
    if len(os.fsencode(near)) <= SOCKET_PATH_MAX:
        return near
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:24]
    private = Path(tempfile.gettempdir()) / f"isolog-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    seen = private.lstat()
    if seen.st_uid != os.getuid() or not stat.S_ISDIR(seen.st_mode) or seen.st_mode & 0o077:
        raise StorageFailure(
            f"{private} is not a folder that only you can open",
            hint="Remove it, or choose a directory for the log with a shorter path.",
        )
    return private / f"{name}.sock"


def _not_up(directory: Path) -> BrokerUnavailable:
    pid = _facts(directory).get("pid") if lock_held(directory) else None
    holder = "" if pid is None else f"; process {pid} holds its lock"
    return BrokerUnavailable(
        f"the broker of {directory} did not start in {_START_SECONDS:g} s{holder}",
        hint=f"Its log file is {directory / 'broker.log'}.",
    )
