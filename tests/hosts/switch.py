"""A network switch in user space: ``python -m tests.hosts.switch DEVICE…``.

It passes frames between network devices, by the last byte of their hardware addresses (1 for the
first device). Commands come as JSON lines on standard input: ``{"from": 1, "to": 2, "cut": true,
"delay_s": 0.2, "loss": 0.05}`` sets the faults of frames in this direction. So one direction can be
cut without the other, and no kernel module is needed.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

_EVERY_PROTOCOL: Final = 0x0003
_SOL_PACKET: Final = 263
_VNET_HEADER: Final = 15  # frames carry the state of their checksum and of their segments
_VNET_BYTES: Final = 10
_FRAME_MAX: Final = 1 << 17
_HELD_MAX: Final = 20_000


@dataclass(frozen=True)
class Way:
    """The faults of frames from one device to another."""

    cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0


class Switch:
    """Pass frames until the end of standard input."""

    def __init__(self, devices: list[str]) -> None:
        self._ports: dict[int, socket.socket] = {}
        self._ways: dict[tuple[int, int], Way] = {}
        self._held: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._chance = random.Random(0)
        self._selector = selectors.DefaultSelector()
        for number, device in enumerate(devices, 1):
            port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
            port.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
            port.bind((device, 0))
            port.setblocking(False)
            self._ports[number] = port
            self._selector.register(port, selectors.EVENT_READ, number)
        self._selector.register(sys.stdin, selectors.EVENT_READ, 0)
        self._commands = b""

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(self._pause_s()):
                if key.data == 0:
                    if not self._obey():
                        return
                else:
                    self._receive(key.data)
            self._release()

    def _pause_s(self) -> float | None:
        return max(0.0, self._held[0][0] - time.monotonic()) if self._held else None

    def _obey(self) -> bool:
        read = os.read(sys.stdin.fileno(), 1 << 16)
        *lines, self._commands = (self._commands + read).split(b"\n")
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            way = said.pop("from"), said.pop("to")
            self._ways[way] = Way(**said)
        return bool(read)

    def _receive(self, source: int) -> None:
        for _ in range(64):
            try:
                frame, address = self._ports[source].recvfrom(_FRAME_MAX)
            except BlockingIOError:
                return
            if address[2] == socket.PACKET_OUTGOING:
                continue
            to = frame[_VNET_BYTES : _VNET_BYTES + 6]
            targets = self._ports if to[0] & 1 else (to[5],)
            for target in targets:
                if target != source and target in self._ports:
                    self._pass_on(source, target, frame)

    def _pass_on(self, source: int, target: int, frame: bytes) -> None:
        way = self._ways.get((source, target), Way())
        if way.cut or (way.loss and self._chance.random() < way.loss):
            return
        if way.delay_s:
            if len(self._held) < _HELD_MAX:
                due = time.monotonic() + way.delay_s
                heapq.heappush(self._held, (due, next(self._order), target, frame))
            return
        self._send(target, frame)

    def _release(self) -> None:
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            _, _, target, frame = heapq.heappop(self._held)
            self._send(target, frame)

    def _send(self, target: int, frame: bytes) -> None:
        try:
            self._ports[target].send(frame)
        except OSError:
            return  # a full queue, or a device that is down: the frame is lost


if __name__ == "__main__":
    Switch(sys.argv[1:]).run()
