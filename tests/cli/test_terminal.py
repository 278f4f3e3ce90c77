"""Standard output full or closed, standard input closed: one line, and exit code 1."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, TIMEOUT_S


def ran(served: Any, redirection: str, *arguments: str) -> tuple[int, str]:
    """Runs a command with its streams as a shell redirects them; its exit code and errors."""
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


@pytest.mark.parametrize(
    ("redirection", "problem"),
    [(">/dev/full", "No space left on device"), (">&-", "it is closed")],
)
@pytest.mark.parametrize("command", [["consume", "streams"], ["topic", "describe", "streams"]])
def test_an_output_that_takes_nothing_is_an_error_of_one_line(
    served, topic, redirection, problem, command
):
    assert ran(served, redirection, *command) == (1, f"error: standard output: {problem}\n")


def test_an_output_that_is_not_needed_may_be_closed(served, topic):
    assert ran(served, ">&-", "produce", topic) == (0, f"0 records to {topic}\n")


def test_a_closed_input_is_an_error(served, topic):
    code, errors = ran(served, "<&-", "produce", topic)
    assert code == 1
    assert "error: standard input cannot be read" in errors
    assert "Traceback" not in errors


def test_with_standard_error_closed_nothing_strays_into_the_data(served, topic):
    assert ran(served, "2>&-", "produce", topic) == (0, "")
