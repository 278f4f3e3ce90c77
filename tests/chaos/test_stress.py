"""The process survives faults of its connections. An abort inside gRPC would end it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.full, pytest.mark.chaos, pytest.mark.timeout(200)]


def test_process_survives_cuts_and_restarts_and_releases_its_resources():
    """A short run of ``stress``: producers, transactions, consumers, long polls and reads."""
    program = [sys.executable, "-m", "tests.chaos.stress", "--seconds", "12"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"[1-9]\d* cuts, [1-9]\d* restarts, [1-9]\d* pauses", done.stdout), done.stdout
