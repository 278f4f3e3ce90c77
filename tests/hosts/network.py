"""Network namespaces that stand for hosts, joined by a switch that can cut, delay and lose frames.

The process of the test is the last host. It reaches the others through the same switch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any, Final, Self

from spark_stream.testing.local_cluster import ProcessPlace
from tests.conftest import ROOT

_IP: Final = "ip"


def can_make_hosts() -> bool:
    """Return whether this process may make network namespaces, and has the tools."""
    if os.geteuid() != 0:
        return False
    name = f"isolog-{os.getpid()}"
    try:
        made = subprocess.run([_IP, "netns", "add", name], capture_output=True, check=False)
        if made.returncode == 0:
            _ip("netns", "del", name)
    except OSError:
        return False
    return made.returncode == 0


class Network:
    """``count`` hosts, with the numbers 1 to ``count``, and this process, with ``count + 1``."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.me = count + 1
        self._undo = ExitStack()
        self._net = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        tag = f"{os.getpid() % 100_000}"
        self._spaces = {number: f"isolog-{tag}-{number}" for number in range(1, count + 1)}
        try:
            devices = [
                self._join(number, f"il{tag}p{number}", f"il{tag}h{number}")
                for number in range(1, self.me + 1)
            ]
            self._switch = subprocess.Popen(
                [sys.executable, "-m", "tests.hosts.switch", *devices],
                stdin=subprocess.PIPE,
                cwd=ROOT,
            )
            self._undo.callback(self._end_switch)
        except BaseException:
            self.close()
            raise

    def _join(self, number: int, port: str, device: str) -> str:
        """Make a host with a device. Return the device of the switch at the other end."""
        _ip("link", "add", port, "type", "veth", "peer", "name", device)
        self._undo.callback(_ip, "link", "del", port, check=False)
        hardware = f"02:00:00:00:00:{number:02x}"
        where: list[str] = []
        if number != self.me:
            space = self._spaces[number]
            _ip("netns", "add", space)
            self._undo.callback(_ip, "netns", "del", space, check=False)
            _ip("link", "set", device, "netns", space)
            where = ["-n", space]
            _ip(*where, "link", "set", "lo", "up")
        _ip(*where, "link", "set", device, "address", hardware)
        _ip(*where, "addr", "add", f"{self.address(number)}/24", "dev", device)
        _ip(*where, "link", "set", device, "up")
        _ip("link", "set", port, "up")
        return port

    def address(self, number: int) -> str:
        """Return the address of a host."""
        return f"{self._net}.{number}"

    def place(self, number: int) -> ProcessPlace:
        """Return the place of a host's processes."""
        return ProcessPlace(self.address(number), (_IP, "netns", "exec", self._spaces[number]))

    def set_way(self, source: int, target: int, **way: Any) -> None:
        """Set the faults of frames in one direction: ``cut``, ``delay_s``, ``loss``."""
        assert self._switch.stdin is not None
        line = json.dumps({"from": source, "to": target, **way}) + "\n"
        self._switch.stdin.write(line.encode())
        self._switch.stdin.flush()

    def heal(self) -> None:
        """Remove all faults of frames."""
        for source in range(1, self.me + 1):
            for target in range(1, self.me + 1):
                self.set_way(source, target)

    def close(self) -> None:
        """Remove the hosts, whose processes must have ended."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_switch(self) -> None:
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        self._switch.kill()
        self._switch.wait()


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run([_IP, *arguments], check=check, capture_output=True)
