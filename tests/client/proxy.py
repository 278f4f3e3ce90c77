"""A TCP relay between a client and its broker that can drop requests and answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self


class Proxy:
    """A relay from ``address`` to a broker, until the end of the ``with`` block."""

    def __init__(self, target: str) -> None:
        self.turn_to(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._answers = threading.Event()
        self._answers.set()
        self._flows = threading.Event()
        self._flows.set()
        self._rate = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def turn_to(self, target: str) -> None:
        """Relay new connections to this address."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def lose_answers(self) -> None:
        """Drop answers. Requests still arrive."""
        self._answers.clear()

    def pause(self) -> None:
        """Drop requests and answers, without an error for either side."""
        self._flows.clear()

    def slow_down(self, bytes_a_second: int) -> None:
        """Limit the bytes of each direction of a connection."""
        self._rate = bytes_a_second

    def cut(self) -> None:
        """Close all connections. New ones work."""
        with self._lock:
            found, self._open = self._open, []
            self._answers.set()
            self._flows.set()
        for each in found:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, broker]
            for source, sink, answers in ((client, broker, False), (broker, client, True)):
                threading.Thread(
                    target=self._relay, args=(source, sink, answers), daemon=True
                ).start()

    def _relay(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and not self._answers.is_set():
                    continue
                self._flows.wait()
                if self._rate:
                    time.sleep(len(data) / self._rate)
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        self.cut()
