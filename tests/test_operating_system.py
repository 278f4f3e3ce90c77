"""Each fallback of a system's call, beside the call that it replaces."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from spark_stream import operating_system
from spark_stream.errors import InvalidConfig
from spark_stream.operating_system import (
    FolderWatch,
    boot_id,
    drop_pages,
    end,
    generation_of,
    is_running,
    keepalive,
    last_hole,
    lock,
    own_memory,
    peer_has_closed,
    raise_open_files_limit,
    reader_has_closed,
    unlock,
)
from tests.support import eventually

PORTABLE = operating_system.PORTABLE
BOTH = [pytest.param(False, id="native"), pytest.param(True, id="portable")]


@pytest.fixture(params=BOTH)
def portable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the calls of Linux are hidden from functions that look them up at each use."""
    monkeypatch.setattr(operating_system, "PORTABLE", request.param)
    return bool(request.param)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """The descriptor of an empty file."""
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


# -- durability ------------------------------------------------------------------------------------


class Forces:
    """The modules ``os`` and ``fcntl`` of a system. They record fsyncs, and the first one fails."""

    def __init__(self, *calls: str, failure: int | None = None) -> None:
        self.done: list[str] = []
        self._failure = failure
        for name in calls:
            setattr(self, name, lambda _, name=name: self._force(name))
        self.F_FULLFSYNC: int | None = 51 if "fcntl" in calls else None
        if "fcntl" in calls:
            self.fcntl = lambda _, command: self._force(f"fcntl {command}")

    def _force(self, name: str) -> None:
        self.done.append(name)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise OSError(failure, os.strerror(failure))


def test_linux_forces_content_with_fdatasync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating_system, "PORTABLE", False)
    assert operating_system._syncs(os, None) == (os.fsync, os.fdatasync)


def test_a_system_without_fdatasync_forces_content_with_fsync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operating_system, "PORTABLE", True)
    assert operating_system._syncs(os, None) == (os.fsync, os.fsync)
    monkeypatch.setattr(operating_system, "PORTABLE", False)
    posix = SimpleNamespace(fsync=os.fsync)
    assert operating_system._syncs(posix, None) == (os.fsync, os.fsync)


@pytest.mark.rule("what an fsync reaches on macOS", "operating_system.py")
def test_a_system_with_f_fullfsync_always_forces_with_it() -> None:
    system = Forces("fsync", "fdatasync", "fcntl")
    for force in operating_system._syncs(system, system):
        force(0)
    assert system.done == ["fcntl 51", "fcntl 51"]


@pytest.mark.parametrize("failure", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_without_f_fullfsync_gets_an_fsync(failure: int) -> None:
    system = Forces("fsync", "fcntl", failure=failure)
    operating_system._syncs(system, system)[1](0)
    assert system.done == ["fcntl 51", "fsync"]


@pytest.mark.parametrize("failure", [errno.EIO, errno.ENOSPC])
def test_a_failed_f_fullfsync_is_not_repeated(failure: int) -> None:
    system = Forces("fsync", "fcntl", failure=failure)
    with pytest.raises(OSError, match=os.strerror(failure)):
        operating_system._syncs(system, system)[1](0)
    assert system.done == ["fcntl 51"]


# -- files -----------------------------------------------------------------------------------------

WRITES = [operating_system.write_parts, operating_system._write_joined]
READS = [operating_system.read_into, operating_system._read_copied]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
def test_parts_are_written_and_read_at_a_position(file: int, write: Any, read: Any) -> None:
    assert write(file, [b"one", memoryview(b"two"), b""], 4096) == 6
    room = memoryview(mmap.mmap(-1, 4096))
    assert read(file, [room], 4096) == 6
    assert bytes(room[:7]) == b"onetwo\0"
    assert read(file, [room[1:3]], 4097) == 2
    assert bytes(room[:4]) == b"onet"
    assert read(file, [room], 8192) == 0


def test_pages_are_dropped_if_the_system_can(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr(operating_system, "_advise", lambda *given: calls.append(given))
    drop_pages(file, 0, 10)
    assert calls == [(file, 0, 10, os.POSIX_FADV_DONTNEED)]
    monkeypatch.setattr(operating_system, "_advise", None)
    drop_pages(file, 0, 10)
    assert len(calls) == 1


def test_no_request_of_linux_is_sent_to_another_kernel(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating_system, "_HAS_IOCTLS_OF_LINUX", False)
    monkeypatch.setattr(operating_system, "_fcntl", SimpleNamespace())  # without ioctl
    assert generation_of(file) == 0
    created = SimpleNamespace(st_birthtime=1.5)
    monkeypatch.setattr(operating_system, "os", SimpleNamespace(fstat=lambda _: created))
    assert generation_of(file) == 1_500_000


def test_a_hole_at_the_end_is_found_if_the_system_reports_it(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.pwrite(file, bytes(range(256)) * 16, 0)
    os.ftruncate(file, 1 << 20)
    monkeypatch.setattr(operating_system, "_SEEK_DATA", os.SEEK_DATA)
    assert last_hole(file, 1 << 20) == 4096
    monkeypatch.setattr(operating_system, "_SEEK_DATA", None)
    assert last_hole(file, 1 << 20) == 1 << 20


def test_a_lock_is_exclusive_or_shared(tmp_path: Path) -> None:
    one, two = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert lock(one)
    assert not lock(two)
    assert not lock(two, shared=True)
    assert lock(one, shared=True, waits=True)
    assert lock(two, shared=True)
    assert not lock(two)
    unlock(one)
    assert lock(two)
    os.close(one)
    os.close(two)


def test_a_system_without_locks_refuses_brokers_in_one_line(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating_system, "_fcntl", None)
    with pytest.raises(InvalidConfig, match="cannot run a broker") as refused:
        lock(file)
    assert "WSL" in refused.value.hint


def test_the_limit_of_open_files_is_raised_to_that_of_macos_if_the_hard_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"soft": 256}

    def set_limit(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits["soft"] = wanted[0]

    system = SimpleNamespace(
        RLIMIT_NOFILE=8, getrlimit=lambda _: (limits["soft"], 2**63 - 1), setrlimit=set_limit
    )
    monkeypatch.setattr(operating_system, "_resource", system)
    raise_open_files_limit()
    assert operating_system.open_files_limit() == 10_240


def test_the_limit_of_open_files_is_raised_to_the_hard_limit() -> None:
    program = (
        "import resource; from spark_stream.operating_system import *;"
        " from spark_stream import operating_system as system;"
        " _, hard = resource.getrlimit(resource.RLIMIT_NOFILE);"
        " resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard));"
        " system.raise_open_files_limit(); print(system.open_files_limit() == hard)"
    )
    assert run_python(program) == "True"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == operating_system.open_files_limit()


# -- machine and memory ----------------------------------------------------------------------------


class Library:
    """The C library of macOS: its ``sysctlbyname``, with the variables of the kernel."""

    def __init__(self, **variables: bytes) -> None:
        self._variables = variables

    def sysctlbyname(self, name: bytes, content: Any, size: Any, _: None, __: Any) -> int:
        found = self._variables.get(name.decode().replace(".", "_"))
        if found is None:
            return -1
        ctypes.memmove(content, found + b"\0", len(found) + 1)
        size._obj.value = len(found) + 1
        return 0


def test_a_boot_id_is_read_from_the_file_of_linux(tmp_path: Path) -> None:
    assert boot_id(tmp_path / "missing") is None
    (tmp_path / "empty").write_text("\n")
    assert boot_id(tmp_path / "empty") is None
    (tmp_path / "noise").write_bytes(b"\xff\xfe")
    assert boot_id(tmp_path / "noise") is None
    (tmp_path / "boot").write_text("5f3c\n")
    assert boot_id(tmp_path / "boot") == "5f3c"
    assert boot_id() == boot_id()


def test_a_boot_id_is_read_from_the_kernel_of_macos(tmp_path: Path) -> None:
    library = Library(kern_bootsessionuuid=b"0F3C-11")
    assert boot_id(tmp_path / "missing", library) == "0F3C-11"
    assert boot_id(tmp_path / "missing", Library()) is None


def test_linux_has_a_boot_id_that_is_hidden_in_the_portable_mode(portable: bool) -> None:
    assert (boot_id() is None) is portable


def test_own_memory_leaves_out_mapped_files_on_linux(tmp_path: Path, portable: bool) -> None:
    mine = psutil.Process()
    before = own_memory(mine)
    path = tmp_path / "mapped"
    path.write_bytes(bytes(64 << 20))
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0  # each page is resident now
        # Not from the heap, which may have as much free memory from earlier tests.
        with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
            for _ in range(32):
                held.write(bytes(1 << 20))
            grown = own_memory(mine) - before
    assert grown > 24 << 20
    assert (grown < 56 << 20) is not portable


def test_glibc_is_called_only_where_it_is(portable: bool) -> None:
    assert (operating_system._of_libc("malloc_trim") is None) is portable
    operating_system.trim_heap()
    operating_system.keep_free_memory()


# -- sockets and processes -------------------------------------------------------------------------


def test_dead_peers_are_detected_in_seconds(portable: bool) -> None:
    with socket.socket() as sock:
        for option in keepalive(idle_s=2, interval_s=1, count=3):
            sock.setsockopt(*option)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 1
        idle = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert (idle == 2) is not portable


def test_macos_has_another_name_for_the_time_until_the_first_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operating_system, "PORTABLE", True)
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", 0x10, raising=False)
    assert (socket.IPPROTO_TCP, 0x10, 2) in keepalive(idle_s=2, interval_s=1, count=3)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets."""
    one, two = socket.socketpair()
    with one, two:
        yield one, two


@pytest.mark.parametrize("send", [operating_system.send_parts, operating_system._send_joined])
def test_parts_are_sent_in_order(pair: tuple[socket.socket, socket.socket], send: Any) -> None:
    assert send(pair[0], [b"one", memoryview(b"two")]) == 6
    assert pair[1].recv(10) == b"onetwo"


def test_a_closed_peer_is_detected_and_an_idle_one_is_not(
    pair: tuple[socket.socket, socket.socket], portable: bool
) -> None:
    mine, theirs = pair
    assert not peer_has_closed(mine)
    theirs.send(b"unread")
    assert not peer_has_closed(mine)
    theirs.close()
    assert peer_has_closed(mine) is not portable  # unread data hides it
    mine.recv(10)
    assert peer_has_closed(mine)


@pytest.mark.timeout(20)
def test_a_look_at_an_idle_peer_does_not_block_without_msg_dontwait(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows lacks the flag, and the sockets of PySpark's workers block."""
    monkeypatch.setattr(operating_system, "_native", lambda module, name: None)
    monkeypatch.delattr(socket, "MSG_DONTWAIT")
    pair[0].settimeout(1)
    assert not peer_has_closed(pair[0])


def test_a_closed_reader_of_a_pipe_is_detected() -> None:
    read, write = os.pipe()
    assert not reader_has_closed(write)
    os.close(read)
    assert reader_has_closed(write)
    os.close(write)


def test_a_process_ends_by_sigterm_and_a_zombie_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = psutil.Process(child.pid)
    assert is_running(process)
    end(process)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(process)  # it is a zombie
    assert child.wait() == -signal.SIGTERM
    assert not is_running(process)
    end(process)


FIRST_THREAD_ENDS = """
import ctypes, sys, threading
print(flush=True)
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="exit of a thread, by its number")
def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    """Linux reports it as a zombie when its first thread has ended."""
    number = {"x86_64": 60}.get(os.uname().machine, 93)
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_THREAD_ENDS, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        process = psutil.Process(child.pid)
        child.stdout.readline()
        eventually(lambda: process.status() == psutil.STATUS_ZOMBIE)
        assert child.poll() is None
        assert is_running(process)
        child.kill()
        child.wait()
        assert not is_running(process)


# -- the mode --------------------------------------------------------------------------------------

MODE = """
import os, selectors
from spark_stream import operating_system as system
print(system.PORTABLE, system.sync_data is os.fsync, system.write_parts is system._write_joined,
      system.read_into is system._read_copied, system.send_parts is system._send_joined,
      system.DIRECT == 0, system._advise is None,
      not system._HAS_IOCTLS_OF_LINUX, system.boot_id() is None,
      isinstance(system.new_selector(), selectors.PollSelector))
"""


def run_python(program: str, **variables: str) -> str:
    """Return the output of a program in a new interpreter."""
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def test_a_variable_hides_each_call_of_linux() -> None:
    assert set(run_python(MODE, ISOLOG_PORTABLE="1").split()) == {"True"}
    assert set(run_python(MODE, ISOLOG_PORTABLE="").split()) == {"False"}


def test_epoll_is_used_where_it_is(portable: bool) -> None:
    with operating_system.new_selector() as selector:
        assert isinstance(selector, selectors.EpollSelector) is not portable
        assert operating_system.follows_changes(selector) is not portable


def test_a_wait_for_sockets_returns_those_with_data(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert operating_system.wait_for_any(pair, 0) == set()
    pair[0].send(b"x")
    assert operating_system.wait_for_any(pair, 60) == {pair[1].fileno()}
    pair[1].close()
    with pytest.raises(ValueError, match="descriptor"):
        operating_system.wait_for_any(pair, 0)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[FolderWatch]:
    found = FolderWatch(tmp_path, "store")
    found.wait(60)  # it starts the watch
    yield found
    found.close()


def waited_s(watch: FolderWatch, timeout_s: float) -> float:
    before = time.monotonic()
    watch.wait(timeout_s)
    return time.monotonic() - before


@pytest.mark.skipif(PORTABLE, reason="only Linux reports changes")
def test_a_wait_ends_with_a_change_of_a_file_with_the_prefix(
    watch: FolderWatch, tmp_path: Path
) -> None:
    """A write, a new name, a move and a deletion are changes. Each ends one wait."""
    log = tmp_path / "store-wal"
    with log.open("ab", buffering=0) as file:
        watch.wait(60)
        file.write(b"x")
        watch.wait(60)
    watch.wait(60)  # the close
    log.rename(tmp_path / "other")
    watch.wait(60)
    (tmp_path / "other").rename(log)
    watch.wait(60)
    log.unlink()
    watch.wait(60)
    (tmp_path / "another").touch()
    assert waited_s(watch, 0.2) >= 0.2


@pytest.mark.skipif(PORTABLE, reason="only Linux reports changes")
def test_a_wait_for_a_removed_folder_becomes_a_poll(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    watch = FolderWatch(folder, "store")
    watch.wait(60)
    folder.rmdir()
    for _ in range(3):
        watch.wait(60)
    watch.close()


@pytest.mark.parametrize("is_native", [True, False])
def test_a_wake_ends_all_waits(
    tmp_path: Path, is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system reports no changes."""
    if not is_native:
        monkeypatch.setattr(operating_system, "_of_libc", lambda _: None)
    watch = FolderWatch(tmp_path, "store")
    waiting = threading.Thread(target=watch.wait, args=(60,))
    waiting.start()
    watch.wake()
    waiting.join()
    watch.wait(60)
    watch.close()


def test_a_wait_without_inotify_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating_system, "_of_libc", lambda _: lambda *_: -1)
    watch = FolderWatch(tmp_path, "store")
    for _ in range(3):
        watch.wait(60)
    watch.close()
