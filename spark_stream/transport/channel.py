"""A socket and the protocol core of its side: the shell that both clients and brokers use.

The loop receives, or in its place a thread that waits for an answer (``reading_turn``). Any thread
sends: it writes as much as the socket takes without blocking, so that a small frame needs no other
thread. The loop writes the rest.

Locks, in the order in which they are taken: ``_handling`` is held while bytes are received and
their events are handled, so events are handled one after the other and in their order. ``_lock``
guards the core and the socket's writing side.

Receive buffers are reused (:class:`BufferPool`).
"""

from __future__ import annotations

import atexit
import errno
import itertools
import math
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import get_ident
from typing import Final, TypeAlias, TypeVar, TypeVarTuple

import numpy as np
import numpy.typing as npt

from spark_stream.loggers import logger_of
from spark_stream.operating_system import UNIX_SOCKETS, send_parts, wait_for_any
from spark_stream.protocol import Bytes, Connection, Event, Lost
from spark_stream.transport.lifetime import (
    check_not_inside,
    in_child,
    new_lock,
    present_lifetime,
)
from spark_stream.transport.loop import READ, WRITE, Loop, WakeUp
from spark_stream.transport.reading_turn import ReadingTurn
from spark_stream.transport.signals import DeferredSignals

logger = logger_of(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
UNSENT_BYTES_MAX: Final = 8 << 20
"""While more bytes than this are unsent, streams send no data."""

UNREAD_ABOVE: Final = 2 * UNSENT_BYTES_MAX
"""While more are unsent, a server stops reading: answers that a peer does not read use memory."""

_LINGER_S: Final = 1.0
"""The time that the peer has to close its side after the end of a connection."""

_SCRATCH: Final = 256 << 10
_READ_AT_ONCE: Final = 4 << 20  # before the loop serves its other sockets
_CALLS_AT_ONCE: Final = 16  # of the core: each takes a bounded number of frames
_BUFFERS_AT_ONCE: Final = 64
_DISCARDED_AT_ONCE: Final = 16
_SPARE_MAX: Final = 16
"""The most unused wake-ups of the process."""
_FEW: Final = 4
_FEW_OF_TLS: Final = 2  # each is a separate record, and a call
_TLS_AT_ONCE: Final = 256 << 10  # per hold of the lock, so that others get it
_SMALL_BYTES: Final = 4096
_PART_BYTES: Final = 256  # the memory of an unsent part beside its bytes
_SSL_WAITS: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
Array: TypeAlias = npt.NDArray[np.uint8]
KEPT_BYTES_MAX: Final = 64 << 20
"""The maximum size of the buffers that a process keeps, in use or not."""

_POLL_MAX_S: Final = 3600.0
_UNREFERENCED: Final = 2  # by the list, and by the argument of getrefcount


class _Share:
    """The part of a turn of the loop that one connection may use.

    It bounds the bytes, the frames (a call of the core takes ``FRAMES_AT_ONCE``) and the time, so
    that small frames of one connection delay neither the others nor the timers.
    """

    def __init__(self, share_s: float) -> None:
        self._bytes = _READ_AT_ONCE
        self._calls = _CALLS_AT_ONCE
        self._deadline = time.monotonic() + share_s

    def take(self, count: int) -> None:
        """Count a call of the core with so many bytes."""
        self._bytes -= count
        self._calls -= 1

    @property
    def is_used_up(self) -> bool:
        """Whether the rest has to wait for the next turn. The first call is always allowed."""
        if self._calls == _CALLS_AT_ONCE:
            return False
        return self._bytes <= 0 or self._calls <= 0 or time.monotonic() > self._deadline


class SocketChannel:
    """A connected socket that speaks the protocol. ``handle`` gets the events.

    ``drained`` is called on the loop's thread when data may be sent again after :attr:`is_clogged`.
    ``pauses``: read nothing while more than ``UNREAD_ABOVE`` bytes are unsent. Set it on one side
    only: if both paused, both would wait forever. ``handles_anywhere``: whether ``handle`` may get
    an event on another thread than the loop's.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        connection: Connection,
        handle: Callable[[Event], None],
        drained: Callable[[], None] | None = None,
        *,
        pauses: bool = False,
        handles_anywhere: Callable[[Event], bool] | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._connection = connection
        self._handle = handle
        self._drained = drained
        self._pauses = pauses
        self._handles_anywhere = handles_anywhere
        self._handling = new_lock()
        self._lock = new_lock()
        self._turn = ReadingTurn()
        self._wake_up: WakeUp | None = None  # of the thread that waits
        self._lifetime = present_lifetime()
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._holds = False
        self._wants_write = False
        self._reads_soon = False  # on the loop's thread
        self._over = False
        self.failure: OSError | None = None
        """The error of the socket that ended the connection, if one did."""
        self._tls = isinstance(sock, ssl.SSLSocket)
        sock.setblocking(False)
        if sock.family != UNIX_SOCKETS:
            with suppress(OSError):  # macOS refuses it once the peer has closed the connection
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.call_soon(self._start)

    @property
    def version(self) -> int:
        """The version of the protocol that both sides speak."""
        return self._connection.version

    @property
    def lost(self) -> Lost | None:
        """The reason why the connection ended, or None while it is open."""
        with self._lock:
            return self._connection.lost

    @property
    def was_refused(self) -> bool:
        """Whether this side has ended the connection because of the peer."""
        return self._connection.was_refused

    @property
    def open_streams(self) -> int:
        """The number of open streams."""
        with self._lock:
            return self._connection.open_streams

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not accepted yet."""
        return self._unsent_bytes

    @property
    def is_clogged(self) -> bool:
        """Whether so much is unsent that streams should wait (backpressure).

        Read it within :meth:`command`: then ``drained`` is called after every True. Without the
        lock, a thread that is about to write might make room between the reading and the wait.
        """
        return self._unsent_bytes > UNSENT_BYTES_MAX

    def command(self, act: Callable[[Connection, *Ts], T], *args: *Ts, more: bool = False) -> T:
        """Call the core, and send its output.

        ``more``: another command is about to follow. The output is sent with that command's, or
        within a second.

        Raises:
            ForkedClient: The connection belongs to the parent of this process.
            ReentrantCall: The caller has interrupted a command of the same thread.
        """
        check_not_inside(self._lock)
        if self._lifetime.is_parents:
            raise self._lifetime.refusal()
        with self._lock:
            result = act(self._connection, *args)
            if not (more or self._holds):
                self._flush()
        return result

    def flush(self) -> None:
        """Send the output that waits for more. During a hold, do nothing."""
        self.command(_change_nothing)

    def hold(self) -> None:
        """Defer the output of commands until any thread calls :meth:`release`.

        Received data and ticks still send it, within a second.
        """
        self._holds = True

    def release(self) -> None:
        """Send the output that waits."""
        self._holds = False
        self.flush()

    def command_soon(self, act: Callable[[Connection, *Ts], object], *args: *Ts) -> None:
        """Have the loop's thread call the core. Takes no lock, so a finalizer may call this."""
        self._loop.call_soon(self.command, act, *args)

    def end(self, message: str) -> None:
        """Close the connection: its streams end, and unsent bytes are dropped."""
        self._loop.call_soon(self._lose, message)

    def refuse(self, code: str, message: str) -> None:
        """Close the connection, and send the reason to the peer."""
        self._loop.call_soon(self._refuse, code, message)

    # -- on a thread that waits -----------------------------------------------------------------

    def read_until(
        self, is_done: Callable[[], bool], timeout_s: float | None = None
    ) -> float | None:
        """Read on the calling thread, in place of the loop, until ``is_done`` returns True.

        Return earlier after the timeout, or if the loop has to read. Then the caller waits in
        another way, for the rest of the timeout, which is returned. A thread that changes the
        result of ``is_done`` calls :meth:`wake` afterwards. On the main thread, signal handlers run
        while it waits, and not while it handles events.
        """
        if self._handles_anywhere is None or not self._loop.can_lend:
            return timeout_s
        if self._lifetime.is_parents:
            return timeout_s
        if timeout_s is None:
            self._read_before(math.inf, is_done)
            return None
        deadline = time.monotonic() + timeout_s
        self._read_before(deadline, is_done)
        return max(0.0, deadline - time.monotonic())

    def _read_before(self, deadline: float, is_done: Callable[[], bool]) -> None:
        thread, mine = get_ident(), None
        with DeferredSignals() as signals:
            with self._lock:
                if not self._over and self._turn.take(thread):
                    try:
                        mine = self._wake_up = _WAKE_UPS.take()
                    except OSError:
                        self._turn.leave()  # the loop needs no descriptor
                self._watch()
            try:
                while mine is not None and self._turn.has(thread) and not is_done():
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return
                    signals.open()
                    is_readable = wait_readable(self._sock, mine, left_s)
                    signals.shut()
                    if is_readable and self._turn.has(thread):
                        with self._handling:
                            self._receive(is_loop=False)
            finally:
                signals.shut()
                if mine is not None:
                    with self._lock:
                        self._wake_up = None
                        self._turn.leave()
                        self._watch()
                    _WAKE_UPS.give_back(mine)

    def wake(self) -> None:
        """Make a thread in :meth:`read_until` check whether it is done."""
        wake_up = self._wake_up
        if wake_up is not None and self._turn.waiting != get_ident():
            wake_up.wake()

    # -- on the loop's thread -------------------------------------------------------------------

    def _refuse(self, code: str, message: str) -> None:
        with self._handling:
            with self._lock:
                events = self._connection.refuse(code, message)
                self._flush()
            self._hand_on(events)

    def _start(self) -> None:
        if self._over:
            return
        with self._lock:
            self._watch()
            self._flush()
        self._tick()

    def _tick(self) -> None:
        if self._over:
            return
        with self._handling:
            with self._lock:
                self._turn.revoke()
                self._watch()
                events = self._connection.tick(time.monotonic())
                self._flush()
            self._hand_on(events)
        if not self._over:
            self._loop.call_later(self._connection.tick_s, self._tick)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            with self._lock:
                was_clogged, was_paused, unsent = (
                    self.is_clogged,
                    self._is_paused,
                    self._unsent_bytes,
                )
                self._write()
                if was_paused and self._unsent_bytes < unsent:
                    self._connection.on_heard(time.monotonic())  # the peer receives, so it is alive
                    self._watch()
            if was_clogged and not self.is_clogged and self._drained is not None:
                with self._handling:
                    self._drained()
        has_ended = not events  # while a thread has the turn
        may_read = events & READ or has_ended or self._tls or self._connection.has_more
        if may_read and not self._reads_soon:
            self._read()

    def _read(self) -> None:
        with self._handling:
            self._receive(is_loop=True)

    def _read_rest(self) -> None:
        self._reads_soon = False
        self._read()

    def _watch_again(self) -> None:
        with self._lock:
            self._watch()

    def _take_passed(self) -> None:
        """Handle the events that another thread has received, and go on reading."""
        with self._handling:
            self._hand_on([])
            with self._lock:
                self._watch()
            self._read()

    # -- on the loop's thread, or on one that waits, with the lock of handling -------------------

    def _receive(self, *, is_loop: bool) -> None:
        """Take one turn's share of the received data."""
        share, is_empty = _Share(self._loop.share_s), False
        while not self._over and not self._is_paused and self._turn.may_receive:
            if share.is_used_up:
                # What the core or OpenSSL holds makes no socket readable.
                if self._connection.has_more or (self._tls and not is_empty):
                    self._reads_soon = True
                    self._loop.call_soon(self._read_rest)
                return
            target, into, count = self._connection.target, _scratch(), 0
            if not self._connection.has_more:
                if is_empty:
                    return  # the socket has no more
                into = into if target is None else target
                try:
                    if self._tls:
                        count, is_empty = self._decrypt(into)
                    else:
                        count = self._sock.recv_into(into)
                        is_empty = target is None and count < into.nbytes
                except (BlockingIOError, InterruptedError, *_SSL_WAITS):
                    return
                except OSError as error:
                    self.failure = error
                    self._lose_by_loop(_reason(error), is_loop=is_loop)
                    return
                if count == 0:
                    self._lose_by_loop("the peer closed the connection", is_loop=is_loop)
                    return
            try:
                events = self._received(into[:count] if target is None else None, count)
            except Exception as error:  # such as no memory: the rest of the stream is useless
                logger.exception("received data could not be processed")
                message = f"received data could not be processed: {error}"
                self._lose_by_loop(message, is_loop=is_loop)
                return
            if not is_loop and not self._all_anywhere(events):
                with self._lock:
                    self._turn.pass_on(events)
                    self._watch()
                self._loop.call_soon(self._take_passed)
                return
            self._hand_on(events)
            share.take(count)
        if self._is_paused:
            with self._lock:
                self._watch()

    def _lose_by_loop(self, message: str, *, is_loop: bool) -> None:
        """Lose the connection on the loop's thread, now or soon."""
        if is_loop:
            self._lose(message)
            return
        with self._lock:
            self._turn.revoke()
            self._watch()
        self._loop.call_soon(self._lose, message)

    def _all_anywhere(self, events: list[Event]) -> bool:
        assert self._handles_anywhere is not None
        return all(map(self._handles_anywhere, events))

    def _decrypt(self, into: memoryview) -> tuple[int, bool]:
        """Receive the available bytes. OpenSSL returns one record of 16 KiB with each call.

        Return the number of bytes, and whether the socket is empty. Raise as ``recv_into`` does.
        """
        count, most = 0, min(into.nbytes, _TLS_AT_ONCE)
        with self._lock:  # OpenSSL takes one call at a time
            while count < most:
                try:
                    received = self._sock.recv_into(into[count:most])
                except OSError as error:  # after the bytes before it
                    if not count:
                        raise
                    return count, isinstance(error, _SSL_WAITS)
                if not received:
                    break
                count += received
        return count, False

    def _received(self, data: memoryview | None, count: int) -> list[Event]:
        """Pass received bytes to the core. Without ``data`` they are in its target."""
        now = time.monotonic()
        with self._lock:
            if data is None:
                events = self._connection.on_filled(count, now)
            else:
                events = self._connection.receive(data, now)
            self._flush()
            return events

    def _hand_on(self, events: list[Event]) -> None:
        """Handle events, after those that were passed to the loop."""
        if not self._turn.may_receive:
            with self._lock:
                events = self._turn.take_passed() + events
        for event in events:
            if isinstance(event, Lost):
                self._close()
            try:
                self._handle(event)
            except Exception:  # of one stream: the others continue
                logger.exception("event of a connection could not be handled: %r", event)

    def _lose(self, message: str) -> None:
        with self._handling:
            with self._lock:
                events = self._connection.closed_by_peer(message)
            self._hand_on(events)

    def _close(self) -> None:
        with self._lock:
            if self._over:
                return
            self._flush()
            self._over = True
            self._unsent.clear()
            self._unsent_bytes = 0
            self._turn.revoke()
        self.wake()
        # Closing a socket that has unread bytes resets the connection, and the peer loses what it
        # has not read yet: the reason, and the last answers.
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self._loop.watch(self._sock, READ, self._discard)
        self._loop.call_later(_LINGER_S, self._release)

    def _discard(self, _: int) -> None:
        """Read and drop bytes until the peer closes its side."""
        try:
            for _ in range(_DISCARDED_AT_ONCE):
                if not self._sock.recv_into(_scratch()):
                    break
            else:
                return
        except (BlockingIOError, InterruptedError, *_SSL_WAITS):
            return
        except OSError:
            pass
        self._release()

    def _release(self) -> None:
        self._loop.forget(self._sock)
        self._sock.close()

    # -- with the lock --------------------------------------------------------------------------

    def _flush(self) -> None:
        output = self._connection.output()
        if self._over or not output:
            return
        for part in _joined(output, _FEW_OF_TLS if self._tls else _FEW):
            view = memoryview(part).cast("B")
            self._unsent.append(view)
            self._unsent_bytes += view.nbytes
        if not self._wants_write:
            self._write()

    def _write(self) -> None:
        """Write as much as the socket takes. Watch for room if that is not all."""
        while self._unsent:
            try:
                count = self._send_some()
            except (BlockingIOError, InterruptedError, *_SSL_WAITS):
                break
            except OSError as error:
                self.failure = self.failure or error
                self._unsent.clear()
                self._unsent_bytes = 0
                self._loop.call_soon(self._lose, _reason(error))
                break
            self._unsent_bytes -= count
            while count:
                first = self._unsent[0]
                if count < first.nbytes:
                    self._unsent[0] = first[count:]
                    break
                count -= first.nbytes
                self._unsent.popleft()
        wants = bool(self._unsent)
        if wants is not self._wants_write:
            self._wants_write = wants
            self._loop.call_soon(self._watch_again)

    def _send_some(self) -> int:
        if self._tls:  # after a partial write, OpenSSL requires the same bytes again
            return self._sock.send(self._unsent[0][:_TLS_AT_ONCE])
        if len(self._unsent) == 1:
            return self._sock.send(self._unsent[0])
        buffers = [
            self._unsent[number] for number in range(min(len(self._unsent), _BUFFERS_AT_ONCE))
        ]
        return send_parts(self._sock, buffers)

    @property
    def _is_paused(self) -> bool:
        parts = len(self._unsent)
        return self._pauses and self._unsent_bytes + _PART_BYTES * parts > UNREAD_ABOVE

    def _watch(self) -> None:
        """Watch the socket for the work of the loop. For any thread, if the turn changed."""
        if self._over:
            return
        writes = WRITE if self._wants_write else 0
        if self._turn.is_loops:
            self._loop.watch(self._sock, (0 if self._is_paused else READ) | writes, self._ready)
        else:
            self._loop.lend(self._sock, writes, self._ready)


def _change_nothing(_: Connection) -> None:
    """Do nothing: a command also sends the pending output."""


def _joined(parts: list[Bytes], few: int) -> Iterator[Bytes]:
    """Yield the parts, with small consecutive ones joined. One read may cause thousands."""
    if len(parts) < few:
        yield from parts
        return
    for is_small, group in itertools.groupby(parts, _is_small):
        if is_small:
            yield b"".join(group)
        else:
            yield from group


def _is_small(part: Bytes) -> bool:
    return memoryview(part).nbytes <= _SMALL_BYTES


_scratches = threading.local()


def _scratch() -> memoryview:
    """Return this thread's buffer for small frames."""
    found: memoryview | None = getattr(_scratches, "view", None)
    if found is None:
        found = _scratches.view = memoryview(bytearray(_SCRATCH))
    return found


def _reason(error: OSError) -> str:
    if error.errno in (errno.EPIPE, errno.ECONNRESET):
        return "the peer closed the connection"
    return str(error)


class WakeUps:
    """The wake-ups of threads that read in place of the loop, for repeated use.

    A wake-up has two descriptors. There are as many as threads that read at the same time.
    """

    def __init__(self) -> None:
        self._spare: deque[WakeUp] = deque()

    def take(self) -> WakeUp:
        """Return a wake-up that no thread uses.

        Raises:
            OSError: The process has no free descriptor.
        """
        try:
            return self._spare.pop()
        except IndexError:
            return WakeUp()

    def give_back(self, wake_up: WakeUp) -> None:
        """Keep a wake-up for the next thread. A late call of ``wake`` does no harm there."""
        if len(self._spare) < _SPARE_MAX:
            self._spare.append(wake_up)
        else:
            wake_up.close()

    def close(self) -> None:
        """Close the wake-ups that no thread uses. In a forked child, only its copies of them."""
        while self._spare:
            self._spare.pop().close()


_WAKE_UPS: Final = WakeUps()
in_child(_WAKE_UPS.close)
atexit.register(_WAKE_UPS.close)


class ChannelWaits:
    """The waits of threads for answers on a connection, which one of them may read."""

    def __init__(self) -> None:
        self.channel: SocketChannel | None = None
        """The connection of the next answers. None before the first request."""
        self._read: list[SocketChannel] = []

    def read_until(self, is_done: Callable[[], bool], timeout: float | None) -> float | None:
        """Read until ``is_done`` returns True, or the loop has to read. Return the time left.

        A thread that changes the result of ``is_done`` calls :meth:`wake` afterwards.
        """
        channel = self.channel
        if channel is None:
            return timeout
        try:
            self._read.append(channel)  # before the first call of is_done
            return channel.read_until(is_done, timeout)
        finally:
            if channel in self._read:  # a signal handler may come first
                self._read.remove(channel)

    def wake(self) -> None:
        """Wake the threads in :meth:`read_until`."""
        for each in tuple(self._read):
            each.wake()


def wait_readable(sock: socket.socket, wake_up: WakeUp, timeout_s: float) -> bool:
    """Wait until the socket is readable, or another thread wakes this one, or for the timeout.

    Return whether the socket is readable.
    """
    try:
        ready = wait_for_any([sock, wake_up.reading], min(timeout_s, _POLL_MAX_S))
    except ValueError:  # the loop has closed it
        return False
    woken = wake_up.reading.fileno()
    if woken in ready:
        wake_up.drain()
    return bool(ready - {woken})


class BufferPool:
    """Receive buffers that are used again. For any thread.

    A fresh buffer of a MiB costs the kernel more than the bytes that are received into it: each of
    its pages is found, cleared and mapped. So a buffer is kept, and returned again when its bytes
    are no longer referenced by a memoryview or an Arrow array.
    """

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._lock = new_lock()
        self._kept_bytes_max = kept_bytes_max
        self._buffers: dict[int, list[Array]] = {}  # by size, in use or not
        self._bytes = 0

    def allocate(self, size: int) -> memoryview:
        """Return a writable buffer of ``size`` bytes, with arbitrary content."""
        rounded = 1 << (size - 1).bit_length() if size > 1 else 1
        if size <= rounded // 4 * 3:
            rounded = rounded // 4 * 3
        with self._lock:
            kept = self._buffers.setdefault(rounded, [])
            for number in range(len(kept)):
                if sys.getrefcount(kept[number]) == _UNREFERENCED:
                    return kept[number][:size].data
            buffer = np.empty(rounded, np.uint8)  # takes no memory before bytes arrive
            if self._bytes + rounded <= self._kept_bytes_max or self._trim(rounded):
                kept.append(buffer)
                self._bytes += rounded
            return buffer[:size].data

    def _trim(self, wanted: int) -> bool:
        """Drop unused buffers to make room for ``wanted`` bytes. Return whether there is room."""
        for size, kept in self._buffers.items():
            for number in reversed(range(len(kept))):
                if self._bytes + wanted <= self._kept_bytes_max:
                    return True
                if sys.getrefcount(kept[number]) == _UNREFERENCED:
                    del kept[number]
                    self._bytes -= size
        return self._bytes + wanted <= self._kept_bytes_max
