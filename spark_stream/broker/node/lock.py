"""One broker per directory, and how clients on the host find it.

The lock is the kernel's (flock): it cannot outlive its process, so ``kill -9`` leaves nothing to
clean up. It is on ``broker.lock``; ``broker.json`` says where its holder listens, and counts only
while the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Final

import psutil

from spark_stream.errors import DirectoryInUse, StorageFailure

_TRIES: Final = 10
_PAUSE_S: Final = 0.02


class DirectoryLock:
    """The lock of a directory, held from construction to :meth:`release`.

    Raises:
        DirectoryInUse: another process holds it.
    """

    def __init__(self, directory: Path) -> None:
        self._facts = directory / "broker.json"
        path = directory / "broker.lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFailure(f"{path}: {error.strerror}", path=str(path)) from error
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # A client that checks whether a broker is alive holds the lock for an instant.
                time.sleep(_PAUSE_S)
            else:
                self._facts.unlink(missing_ok=True)  # of a broker that was killed
                return
        os.close(self._descriptor)
        raise self._in_use(directory)

    def _in_use(self, directory: Path) -> DirectoryInUse:
        """Return the error that names the process that holds the lock."""
        text, path = f"another broker serves {directory}", str(directory)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
            pid = int(json.loads(self._facts.read_text())["pid"])
            text += f": process {pid}"
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                return DirectoryInUse(
                    f"{text}, which a signal has stopped",
                    hint=f"Continue it (kill -CONT {pid}), or end it (kill -9 {pid}).",
                    path=path,
                )
        return DirectoryInUse(text, path=path)

    def publish(self, facts: dict[str, Any]) -> None:
        """Write ``broker.json`` in one step."""
        fresh = self._facts.with_suffix(".json.new")
        fresh.write_text(json.dumps(facts) + "\n")
        fresh.chmod(0o600)
        os.replace(fresh, self._facts)

    def release(self) -> None:
        """Remove the address, then release the lock."""
        self._facts.unlink(missing_ok=True)
        os.close(self._descriptor)
