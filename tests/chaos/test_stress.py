"""The process lives, whatever becomes of its connections: an abort inside gRPC would end it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.full, pytest.mark.chaos, pytest.mark.timeout(200)]


def test_a_process_lives_through_cuts_and_restarts_and_gets_all_back():
    """Producers, transactions, consumers, long polls, reads: see ``stress``; a short run of it."""
    program = [sys.executable, "-m", "tests.chaos.stress", "--seconds", "12"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"[1-9]\d* cuts, [1-9]\d* restarts, [1-9]\d* pauses", done.stdout), done.stdout
