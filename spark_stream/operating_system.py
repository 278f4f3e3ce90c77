"""The calls that not every operating system has, each with its fallback.

A capability decides, never the name of the system. With ``ISOLOG_PORTABLE=1`` each call has the
fallback of another POSIX system, so that tests on Linux run the path of macOS. The table of them is
``docs/reference/portability.md``. ``tests/house/test_operating_system.py`` rejects such calls in
other modules.

On the path of an append these names are the functions of the system: a wrapper would cost a call.
Windows has clients only. It has no file locks, which protect the directory of a broker.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from spark_stream.errors import InvalidConfig

if TYPE_CHECKING:
    import psutil

PORTABLE: Final = os.environ.get("ISOLOG_PORTABLE") == "1"
"""Whether the fallbacks are in use, as on a POSIX system without the calls of Linux."""


def optional(name: str) -> ModuleType | None:
    """Import a module that Windows lacks."""
    try:
        return import_module(name)
    except ImportError:
        return None


_fcntl: Final = optional("fcntl")
_resource: Final = optional("resource")


def _native(module: object, name: str) -> Any:
    """Return a part of a module, or None where it is missing or hidden."""
    return None if PORTABLE else getattr(module, name, None)


# -- durability ------------------------------------------------------------------------------------

_UNSUPPORTED: Final = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}


def _syncs(system: Any, control: Any) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Return the fsync of content and metadata, and the fsync of the content alone.

    ``system``: the module ``os``. ``control``: the module ``fcntl``, or None.
    """
    command = getattr(control, "F_FULLFSYNC", None)
    if command is None:
        return system.fsync, _native(system, "fdatasync") or system.fsync

    def force(descriptor: int) -> None:
        """Empty the cache of the disk too. Decision 206 has the reason."""
        try:
            control.fcntl(descriptor, command)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:  # a failed fsync is final (decision 30)
                raise
            system.fsync(descriptor)  # some network file systems have no other

    return force, force


sync, sync_data = _syncs(os, _fcntl)


# -- files -----------------------------------------------------------------------------------------

DIRECT: Final[int] = _native(os, "O_DIRECT") or 0
"""The flag of ``os.open`` for reads from the disk itself, or 0."""


def _write_joined(descriptor: int, parts: Sequence[Any], position: int) -> int:
    return os.pwrite(descriptor, b"".join(parts), position)


def _read_copied(descriptor: int, views: Sequence[memoryview], position: int) -> int:
    found = os.pread(descriptor, len(views[0]), position)
    views[0][: len(found)] = found
    return len(found)


write_parts: Final[Callable[[int, Sequence[Any], int], int]] = (
    _native(os, "pwritev") or _write_joined
)
"""Write the parts one after the other at a position. Return the number of written bytes."""

read_into: Final[Callable[[int, Sequence[memoryview], int], int]] = (
    _native(os, "preadv") or _read_copied
)
"""Read into the views from a position. Return the number of bytes, which may be smaller."""

_advise: Final = _native(os, "posix_fadvise")
_DONTNEED: Final = getattr(os, "POSIX_FADV_DONTNEED", 0)


def drop_pages(descriptor: int, position: int, length: int) -> None:
    """Drop the pages of these bytes from memory, or start to write them to the disk.

    Without the call the next fsync writes them, and the system drops them when it needs memory.
    """
    if _advise is not None:
        _advise(descriptor, position, length, _DONTNEED)


_GET_GENERATION: Final = 0x80087601  # FS_IOC_GETVERSION
_HAS_IOCTLS_OF_LINUX: Final = _native(_fcntl, "F_NOTIFY") is not None


def generation_of(descriptor: int) -> int:
    """Return the generation number of the file's inode, or its creation time on macOS, or 0.

    A deleted file's inode is soon used for another file, perhaps for a copy of the first. The
    generation counts these uses, and a copy has a later creation time.
    """
    if _fcntl is None or not _HAS_IOCTLS_OF_LINUX:
        return int(getattr(os.fstat(descriptor), "st_birthtime", 0) * 1_000_000)
    try:
        found = _fcntl.ioctl(descriptor, _GET_GENERATION, bytes(8))
    except OSError:  # not all file systems have it
        return 0
    return int.from_bytes(found[:4], sys.byteorder)


_SEEK_DATA: Final[int | None] = getattr(os, "SEEK_DATA", None)  # macOS has it


def last_hole(descriptor: int, size: int) -> int:
    """Return the start of the hole at the end of a file, or its size without one.

    A system that reports no holes has none.
    """
    if _SEEK_DATA is None:
        return size
    end = 0
    while end < size:
        try:
            end = os.lseek(descriptor, os.lseek(descriptor, end, _SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data follows
                return end
            raise
    return size


def check_can_lock() -> None:
    """Check that this system can run brokers, which lock the files of their directories.

    Raises:
        InvalidConfig: The system has no file locks, as Windows.
    """
    if _fcntl is None:
        raise InvalidConfig(
            "this system cannot run a broker, because it has no file locks",
            hint="On Windows run isolog in WSL, or connect to a broker by its address (bootstrap).",
        )


def lock(descriptor: int, *, shared: bool = False, waits: bool = False) -> bool:
    """Lock an open file (flock). Return whether the caller has got the lock.

    The kernel releases it when the last process with this open file ends.
    """
    check_can_lock()
    assert _fcntl is not None
    how = _fcntl.LOCK_SH if shared else _fcntl.LOCK_EX
    try:
        _fcntl.flock(descriptor, how if waits else how | _fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release the lock of an open file."""
    assert _fcntl is not None
    _fcntl.flock(descriptor, _fcntl.LOCK_UN)


_OPEN_FILES_OF_MACOS: Final = 10_240
"""The most open files of a process that macOS accepts as a limit, even if it reports no limit."""


def open_files_limit() -> int:
    """Return the number of files that this process may open."""
    if _resource is None:
        return sys.maxsize
    return int(_resource.getrlimit(_resource.RLIMIT_NOFILE)[0])


def raise_open_files_limit() -> None:
    """Raise the limit of open files as far as the system permits."""
    if _resource is None:
        return
    soft, hard = _resource.getrlimit(_resource.RLIMIT_NOFILE)
    for limit in (hard, _OPEN_FILES_OF_MACOS):
        try:
            if limit != soft:
                _resource.setrlimit(_resource.RLIMIT_NOFILE, (limit, hard))
        except (ValueError, OSError):
            continue
        return


# -- machine and memory ----------------------------------------------------------------------------

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BOOT_ID_OF_DARWIN: Final = b"kern.bootsessionuuid"


def boot_id(file: Path = _BOOT_ID, library: Any = None) -> str | None:
    """Return an id of the current boot of this machine, or None.

    Linux has it in a file, and macOS in a variable of its kernel. ``library``: the C library, by
    default that of this process.
    """
    if PORTABLE and file is _BOOT_ID:
        return None
    try:
        return file.read_text("ascii").strip() or None
    except (OSError, ValueError):
        return _kernel_variable(_BOOT_ID_OF_DARWIN, library)


def _kernel_variable(name: bytes, library: Any) -> str | None:
    import ctypes  # slow to import

    try:
        read = (library or ctypes.CDLL(None)).sysctlbyname
    except (AttributeError, OSError, TypeError):  # CDLL(None) fails on Windows
        return None
    content = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(content))
    missing = read(name, content, ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if missing else content.value.decode("ascii", "replace") or None


def _of_libc(name: str) -> Any:
    """Return a function of glibc, or None."""
    if PORTABLE:
        return None
    import ctypes  # slow to import

    try:
        return getattr(ctypes.CDLL(None), name, None)
    except TypeError:  # on Windows
        return None


_M_TRIM_THRESHOLD: Final = -1  # mallopt(3): the free memory at the end of a heap
_M_TOP_PAD: Final = -2  # the surplus when a heap grows
_M_MMAP_THRESHOLD: Final = -3  # larger blocks are never in a heap
_KEPT: Final = ((_M_TRIM_THRESHOLD, 64 << 20), (_M_TOP_PAD, 1 << 20), (_M_MMAP_THRESHOLD, 32 << 20))


@cache
def keep_free_memory() -> None:
    """Make glibc keep the memory of messages from one to the next. Other systems ignore this.

    Spark's workers read into buffers in glibc's heap. When a large one is freed, glibc returns its
    memory to the system, and requests it again for the next: that is half of the cost of receiving
    a message. These bounds are the highest that glibc sets itself.
    """
    mallopt = _of_libc("mallopt")
    if mallopt is not None:
        for setting, size in _KEPT:
            mallopt(setting, size)


def trim_heap() -> None:
    """Return the free memory of glibc's heap to the system. Other systems do it themselves."""
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)


def own_memory(process: psutil.Process) -> int:
    """Return the resident bytes of a process (RSS), on Linux without those that a file backs."""
    seen = process.memory_info()
    return int(seen.rss - (_native(seen, "shared") or 0))


# -- changes of files ------------------------------------------------------------------------------

# inotify(7). The events of a write, of other times, of a close after a write, and of a name that
# appears or goes.
_CHANGED: Final = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200
_LOST: Final = 0x4000  # too many events waited
_UNWATCHED: Final = 0x8000  # the folder was removed
_EVENT: Final = struct.Struct("iIII")
_POLL_S: Final = 0.025


class FolderWatch:
    """A wait for changes of the files in a folder whose names have a prefix.

    The first wait starts the watch and returns immediately: earlier changes are not reported.
    Without inotify, each wait ends after 25 ms at most. Changes by memory maps are not reported.
    One thread waits. Any thread may wake it.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, os.fsencode(prefix)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._has_begun = False
        self._events: int | None = None

    def wait(self, timeout_s: float) -> None:
        """Return after a change since the last wait, a wake, or this time.

        It may return earlier. After :meth:`wake` it returns immediately.
        """
        if not self._has_begun:
            self._has_begun, self._events = True, _inotify(self._folder)
            return
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if self._events is None:
                wait_for_any([self._reader], min(left_s, _POLL_S))
                return
            ready = wait_for_any([self._reader, self._events], left_s)
            if not ready or self._reader in ready:
                return
            if self._has_changed():
                return

    def _has_changed(self) -> bool:
        """Read all events. Return whether one is of a watched file."""
        assert self._events is not None
        content, at, changed = os.read(self._events, 1 << 16), 0, False
        while at < len(content):
            _, mask, _, length = _EVENT.unpack_from(content, at)
            at += _EVENT.size + length
            changed |= content[at - length : at].startswith(self._prefix)
            changed |= bool(mask & _LOST)
            if mask & _UNWATCHED:
                os.close(self._events)
                self._events = None
                return True
        return changed

    def wake(self) -> None:
        """End the present wait, and all later ones."""
        with suppress(BlockingIOError):
            os.write(self._writer, b"0")

    def close(self) -> None:
        """Close the descriptors. No thread may wait."""
        for each in (self._reader, self._writer, self._events):
            if each is not None:
                os.close(each)


def _inotify(folder: Path) -> int | None:
    """Return a descriptor with the events of the folder's files.

    None without inotify or a free watch.
    """
    begin, watch = _of_libc("inotify_init1"), _of_libc("inotify_add_watch")
    if begin is None or watch is None:
        return None
    descriptor: int = begin(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:  # the user has no more of them
        return None
    if watch(descriptor, os.fsencode(folder), _CHANGED) < 0:
        os.close(descriptor)
        return None
    return descriptor


# -- sockets and processes -------------------------------------------------------------------------


def keepalive(idle_s: int, interval_s: int, count: int) -> list[tuple[int, int, int]]:
    """Return the socket options that detect a dead peer, in the arguments of ``setsockopt``.

    macOS has another name for the time until the first probe. A system without one of the options
    uses its own time, which may be hours.
    """
    idle = _native(socket, "TCP_KEEPIDLE") or getattr(socket, "TCP_KEEPALIVE", None)
    options = (
        (idle, idle_s),
        (getattr(socket, "TCP_KEEPINTVL", None), interval_s),
        (getattr(socket, "TCP_KEEPCNT", None), count),
    )
    known = [(socket.IPPROTO_TCP, name, value) for name, value in options if name is not None]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


UNIX_SOCKETS: Final[int] = getattr(socket, "AF_UNIX", -1)
"""The family of Unix sockets, -1 without them."""


DONT_WAIT: Final[int | None] = _native(socket, "MSG_DONTWAIT")
"""The flag of a send that does not wait, on a socket that does. None without it."""


def _send_joined(sock: socket.socket, parts: Sequence[Any]) -> int:
    return sock.send(b"".join(parts))


send_parts: Final[Callable[[socket.socket, Sequence[Any]], int]] = (
    _native(socket.socket, "sendmsg") or _send_joined
)
"""Send the parts one after the other. Return the number of sent bytes."""


def new_selector() -> selectors.BaseSelector:
    """Return the system's best selector, or only poll or select with ``ISOLOG_PORTABLE``."""
    return _selector_without_a_descriptor() if PORTABLE else selectors.DefaultSelector()


def _selector_without_a_descriptor() -> selectors.BaseSelector:
    kind: type[selectors.BaseSelector] = getattr(
        selectors, "PollSelector", selectors.SelectSelector
    )  # Windows lacks poll
    return kind()


def follows_changes(selector: selectors.BaseSelector) -> bool:
    """Return whether other threads may register sockets while one waits. Only epoll permits it."""
    kind = getattr(selectors, "EpollSelector", None)
    return kind is not None and isinstance(selector, kind)


def wait_for_any(files: Sequence[socket.socket | int], timeout_s: float) -> set[int]:
    """Return the descriptors that are readable, closed or failed, once there is one.

    The set is empty after the timeout. Windows lacks this call.

    Raises:
        ValueError: A socket was closed before.
    """
    import select

    poll = select.poll()
    for each in files:
        poll.register(each, select.POLLIN)
    ready = poll.poll(None if timeout_s == math.inf else math.ceil(timeout_s * 1000))
    return {descriptor for descriptor, _ in ready}


def peer_has_closed(sock: socket.socket) -> bool:
    """Return whether the peer has closed its side of a connection.

    Without ``POLLRDHUP`` unread data hides it.
    """
    import select

    hang_up = _native(select, "POLLRDHUP")
    if hang_up is not None:
        poll = select.poll()
        poll.register(sock, hang_up)  # POLLHUP and POLLERR always count
        return bool(poll.poll(0))
    try:
        with _selector_without_a_descriptor() as selector:
            selector.register(sock, selectors.EVENT_READ)
            return bool(selector.select(0)) and not sock.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def reader_has_closed(descriptor: int) -> bool:
    """Return whether the reader of a pipe has closed its end. False on Windows."""
    import select

    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    gone = select.POLLERR | select.POLLHUP  # Linux reports the first, and macOS the second
    return any(event & gone for _, event in poll.poll(0))


def is_running(process: psutil.Process) -> bool:
    """Return whether the process runs. A zombie has ended, even before its parent waits for it.

    A zombie with several threads has not: its first thread has ended, and others still hold files.
    """
    import psutil  # slow to import

    try:
        if not process.is_running():
            return False
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def end(process: psutil.Process) -> None:
    """Send SIGTERM to the process if it runs, and never to a later process of the same id."""
    import psutil  # slow to import

    with suppress(psutil.NoSuchProcess):
        process.terminate()


def call_in_child(act: Callable[[], None]) -> None:
    """Register a function for each child that is forked from this process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=act)


HANG_UP: Final[signal.Signals] = getattr(signal, "SIGHUP", signal.SIGTERM)
"""The signal of a closed terminal, or SIGTERM where it is missing."""
