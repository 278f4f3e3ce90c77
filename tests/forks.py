"""Brokers and commands as forks of one process with their modules: ``python -m tests.forks FD``.

The start of a broker process takes 1.5 s of processor time, mostly for imports, and that of a
command 1 s. The tests start hundreds of them. ``make test`` forks them, ``make test-all`` starts
each as a new process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from tempfile import TemporaryFile
from typing import IO, Any, TextIO

from spark_stream.wire.allocator import MEMORY_BYTES_DEFAULT, allocator_settings
from tests.examples import is_quick

MODULES = ("spark_stream.broker", "tests.faults")
COMMANDS = "isolog"
_REQUEST_BYTES = 1 << 17


# -- the test process ------------------------------------------------------------------------------


class Fork:
    """A forked broker, with the methods of ``subprocess.Popen`` that tests need."""

    def __init__(self, forks: Forks, pid: int, stdout: TextIO | None) -> None:
        self._forks = forks
        self.pid = pid
        self.stdout = stdout

    @property
    def returncode(self) -> int | None:
        return self._forks.ended.get(self.pid)

    def poll(self) -> int | None:
        self._forks.receive(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.returncode) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked broker", timeout or 0)
            self._forks.receive(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Forks:
    """The forking process, and the exit codes of its children."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self._begun: list[int] = []
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | allocator_settings(MEMORY_BYTES_DEFAULT),
                pass_fds=[theirs.fileno()],
            )

    def start(
        self, arguments: Sequence[str], stderr: IO[str], environment: Mapping[str, str]
    ) -> Fork:
        """Start ``python -m`` with these arguments, and a pipe as its standard output."""
        reading, writing = os.pipe()
        pid = self._begin(arguments, [writing, stderr.fileno()], environment)
        os.close(writing)
        return Fork(self, pid, os.fdopen(reading))

    def run(
        self, arguments: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``python -m`` with these arguments until its end."""
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            streams = [each.fileno() for each in (given, out, err)]
            fork = Fork(self, self._begin(arguments, streams, environment), None)
            try:
                code = fork.wait(timeout)
            finally:
                fork.kill()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())

    def _begin(
        self, arguments: Sequence[str], streams: Sequence[int], environment: Mapping[str, str]
    ) -> int:
        """Return the process id of a fork. Its last standard streams are these."""
        asked = {"arguments": arguments, "environment": dict(environment), "folder": os.getcwd()}
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], streams)
            while not self._begun:
                self._take()
            pid = self._begun.pop()
            self.ended.pop(pid, None)  # of an earlier process with this id
        return pid

    def receive(self, seconds: float) -> None:
        """Receive the messages of this time."""
        with self._lock, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while selector.select(seconds):
                self._take()
                seconds = 0

    def _take(self) -> None:
        message = self._socket.recv(_REQUEST_BYTES)
        assert message, "the process that forks brokers has ended"
        news = json.loads(message)
        if "code" in news:
            self.ended[news["pid"]] = news["code"]
        else:
            self._begun.append(news["pid"])


@cache
def forks() -> Forks:
    """Return the forking process of this test process."""
    return Forks()


def popen(
    command: Sequence[str], *, stderr: IO[str], env: Mapping[str, str], **more: Any
) -> subprocess.Popen[str] | Fork:
    """Start a process. In ``make test`` brokers of this checkout are forks."""
    if is_quick() and list(command[:2]) == [sys.executable, "-m"] and command[2] in MODULES:
        return forks().start(command[2:], stderr, env)
    return subprocess.Popen(command, stderr=stderr, env=env, **more)


def run_command(
    arguments: Sequence[str], *, stdin: bytes, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run ``isolog`` with these arguments. In ``make test`` it is a fork."""
    if is_quick():
        return forks().run([COMMANDS, *arguments], stdin, env, timeout)
    command = [sys.executable, "-m", COMMANDS, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env=env, timeout=timeout)


# -- the forking process ---------------------------------------------------------------------------


def serve(asking: socket.socket) -> str | None:
    """Fork on request. Return the module to run in the child, None at the end.

    The end is that of the tests' process, even by SIGKILL: then the brokers are killed.
    """
    alive: set[int] = set()
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(asking, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(asking, alive)
        if asking not in ready:
            continue
        message, passed, _, _ = socket.recv_fds(asking, _REQUEST_BYTES, 3)
        if not message:
            for each in alive:
                os.kill(each, signal.SIGKILL)
            return None
        asked = json.loads(message)
        if asked["arguments"][0] == COMMANDS:
            load_commands()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            selector.close()
            for end in (woken, wakes):
                os.close(end)
            asking.close()
            return _become(asked, passed)
        alive.add(pid)
        for each in passed:
            os.close(each)
        asking.send(json.dumps({"pid": pid}).encode())


@cache
def load_commands() -> None:
    """Load the modules of the commands at the first of them, for all later ones."""
    import spark_stream.cli

    found = pkgutil.walk_packages(spark_stream.cli.__path__, "spark_stream.cli.")
    for name in (*(each.name for each in found), "spark_stream.client.log", "sqlglot"):
        importlib.import_module(name)
    gc.freeze()


def _tell_ends(asking: socket.socket, alive: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        alive.discard(pid)
        ended = {"pid": pid, "code": os.waitstatus_to_exitcode(status)}
        asking.send(json.dumps(ended).encode())


def _become(asked: dict[str, object], passed: list[int]) -> str:
    """Turn the fork into a new process. Return the module to run."""
    for number, each in zip(range(3 - len(passed), 3), passed, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    os.chdir(str(asked["folder"]))
    arguments = list(asked["arguments"])  # type: ignore[call-overload]
    sys.argv = arguments
    sys.orig_argv = [sys.executable, "-m", *arguments]
    return arguments[0]


if __name__ == "__main__":
    importlib.import_module("spark_stream.broker.process")  # once, for all brokers
    gc.freeze()
    if (module := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        runpy.run_module(module, run_name="__main__")
