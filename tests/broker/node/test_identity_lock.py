"""The lock of a broker's directory names the process that holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isolog.errors import DirectoryInUse
from spark_stream.broker.node.identity import DirectoryLock


def test_the_error_names_the_remedy_if_the_holder_is_stopped(tmp_path: Path) -> None:
    """A stopped process ends only by SIGKILL, so `isolog broker stop` would wait in vain."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as holder:
        lock = DirectoryLock(tmp_path)
        lock.publish({"pid": holder.pid})
        with pytest.raises(DirectoryInUse, match=f"process {holder.pid} \\(") as running:
            DirectoryLock(tmp_path)
        assert running.value.hint == DirectoryInUse.hint
        holder.send_signal(signal.SIGSTOP)
        os.waitpid(holder.pid, os.WUNTRACED)
        with pytest.raises(DirectoryInUse, match="which a signal has stopped") as stopped:
            DirectoryLock(tmp_path)
        assert f"kill -9 {holder.pid}" in str(stopped.value.hint)
        lock.release()
        holder.kill()
