"""Standard streams that are full or closed, and a progress bar on a terminal after a second."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from spark_stream.cli import terminal as progress
from tests.cli.conftest import COMMAND, TIMEOUT_S
from tests.support import eventually


def ran(served: Any, redirection: str, *arguments: str) -> tuple[int, str]:
    """Run a command with the redirections of a shell. Return its exit code and its errors."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"ISOLOG_BOOTSTRAP": served.bootstrap},
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def topic(served):
    served.log.create_topic("streams")
    with served.log.producer() as producer:
        producer.send("streams", b"hello")
    return "streams"


@pytest.mark.quick("command0->/dev/full-No space left on device", "command1->&--it is closed")
@pytest.mark.parametrize(
    ("redirection", "problem"),
    [(">/dev/full", "No space left on device"), (">&-", "it is closed")],
)
@pytest.mark.parametrize("command", [["consume", "streams"], ["topic", "describe", "streams"]])
def test_full_or_closed_stdout_is_an_error_of_one_line(
    served, topic, redirection, problem, command
):
    assert ran(served, redirection, *command) == (1, f"error: standard output: {problem}\n")


def test_produce_runs_with_a_closed_stdout(served, topic):
    assert ran(served, ">&-", "produce", topic) == (0, f"0 records to {topic}\n")


def test_closed_stdin_is_an_error(served, topic):
    code, errors = ran(served, "<&-", "produce", topic)
    assert code == 1
    assert "error: standard input cannot be read" in errors
    assert "Traceback" not in errors


def test_closed_stderr_does_not_redirect_messages_to_stdout(served, topic):
    assert ran(served, "2>&-", "produce", topic) == (0, "")


class Screen:
    """A terminal, with the text that was written to it."""

    def __init__(self) -> None:
        self._seen = b""
        self.master, self.slave = pty.openpty()

    def text(self) -> str:
        """All text since the start."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                self._seen += os.read(self.master, 65_536)
            except OSError:  # all writers have closed it
                break
        return self._seen.decode(errors="replace")

    @contextmanager
    def as_errors(self) -> Iterator[None]:
        """Make it standard error of this process within the block."""
        before = sys.stderr
        with open(self.slave, "w", closefd=False) as stream:
            sys.stderr = stream
            try:
                yield
            finally:
                sys.stderr = before


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    found = Screen()
    yield found
    os.close(found.master)
    os.close(found.slave)


def test_commands_longer_than_a_second_show_a_bar_on_a_terminal(served, screen):
    served.log.create_topic("typed-in")
    # A bar without a known end consists of colours only.
    in_colour = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        [*COMMAND, "produce", "typed-in"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=screen.slave,
        env=in_colour | {"ISOLOG_BOOTSTRAP": served.bootstrap},
    ) as writer:
        assert writer.stdin is not None
        stdin = writer.stdin

        def written_and_shown() -> bool:
            stdin.write(b"a line\n")
            stdin.flush()
            return "to typed-in" in screen.text()

        eventually(written_and_shown, TIMEOUT_S)
        stdin.close()
        assert writer.wait(TIMEOUT_S) == 0
    assert "━" in screen.text()
    count = served.log.describe("typed-in").partitions[0].log_end_offset
    assert screen.text().rstrip().endswith(f"{count} records to typed-in")


def test_consume_to_a_pipe_shows_a_bar_on_the_terminal(served, call, screen, monkeypatch):
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    served.log.create_topic("shown")
    with served.log.producer() as producer:
        producer.append("shown", pa.record_batch({"value": [b"x"] * 5}))
    with screen.as_errors():
        done = call("consume", "shown", "--to", "latest", "--bootstrap", served.bootstrap)
    assert (done.code, done.out) == (0, "x\n" * 5)
    assert "from shown" in screen.text()
    assert "5 records" in screen.text()


def test_quick_commands_show_no_bar(served, call, screen, tmp_path):
    served.log.create_topic("quick")
    (tmp_path / "a.txt").write_text("a\nb\n")
    command = ("produce", "quick", "--file", str(tmp_path / "a.txt"))
    with screen.as_errors():
        assert call(*command, "--bootstrap", served.bootstrap).code == 0
    assert screen.text() == "2 records to quick\r\n"


def test_stderr_in_a_pipe_gets_no_bar(served, call, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    served.log.create_topic("piped")
    (tmp_path / "a.txt").write_text("a\nb\n")
    command = ("produce", "piped", "--file", str(tmp_path / "a.txt"))
    assert call(*command, "--bootstrap", served.bootstrap).err == "2 records to piped\n"
    done = call("consume", "piped", "--to", "latest", "--bootstrap", served.bootstrap)
    assert (done.out, done.err) == ("a\nb\n", "")
