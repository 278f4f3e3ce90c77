"""A console in a process that prints its address."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

READY = "isolog console ready "
START_S = 60.0


@contextlib.contextmanager
def started_console(folder: Path, *arguments: str) -> Iterator[str]:
    """Start a console on a free port, and yield its address. SIGINT ends it within seconds."""
    command = [sys.executable, "-m", "isolog", "console", "--listen", "127.0.0.1:0"]
    with (folder / "console.stderr").open("w") as errors:
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "ISOLOG_BOOTSTRAP"},
        )
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    source = process.stdout
    threading.Thread(target=lambda: lines.put(source.readline()), daemon=True).start()
    try:
        line = lines.get(timeout=START_S).strip()
        assert line.startswith(READY), (line, (folder / "console.stderr").read_text())
        yield line.removeprefix(READY)
        process.send_signal(signal.SIGINT)
        process.wait(20)
        said = (folder / "console.stderr").read_text()
        assert "Traceback" not in said, said
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(20)
        source.close()
