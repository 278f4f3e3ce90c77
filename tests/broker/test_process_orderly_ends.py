"""A broker that gets SIGTERM at any time shuts down cleanly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spark_stream.wire.allocator import MEMORY_BYTES_DEFAULT, allocator_settings


def test_a_broker_that_gets_sigterm_when_ready_shuts_down_cleanly(tmp_path: Path):
    """Its ready line is printed once it serves. From then on SIGTERM loses no record."""
    program = (
        "import builtins, os, signal, sys\n"
        "from spark_stream.broker import process\n"
        "def say(*words, **options):\n"
        "    builtins.print(*words, **options)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "process.print = say\n"
        "from spark_stream.broker.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "--dir", str(tmp_path / "log"), "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | allocator_settings(MEMORY_BYTES_DEFAULT),
    )
    assert (ended.returncode, "broker stopped" in ended.stderr) == (0, True), ended.stderr
