"""The audit log: a JSON line for each refusal, and for each act of an administrator.

A line has ``at`` (ISO 8601, UTC), ``principal``, ``from``, ``action``, ``on`` (a resource, or the
names in a request) and ``outcome``: ``done``, or the code of the error. ``omitted``: the number of
lines about refusals that were left out before it. It never has a secret: of a request only the
fields in ``_NAMED`` are written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from spark_stream.access.callers import Caller
from spark_stream.access.rules import Operation
from spark_stream.environment import Clock
from spark_stream.errors import StorageFailure
from spark_stream.loggers import logger_of

logger = logger_of(__name__)

FILE_BYTES: Final = 16 << 20
"""The size at which the next file begins."""
FILES_KEPT: Final = 5
_STRANGERS_S: Final = 20
_KNOWN_S: Final = 20
"""The lines a second about refusals and about callers' own credentials.

One limit is for all unknown callers together, and one for each known caller, so that they do not
push the others out.
"""
CREDENTIALS: Final = frozenset({"create-token", "revoke-token", "open-session"})
"""Calls on a caller's own credentials, which need no permission, and are logged."""
DONE: Final = "done"
_TEXT_MAX: Final = 300
ADMINISTRATIVE: Final = frozenset(
    {Operation.CREATE, Operation.ALTER, Operation.DELETE, Operation.ADMIN}
)
"""Operations that are logged when they succeed. Others are logged only if they are refused."""
_NAMED: Final = (
    "topic",
    "name",
    "id",
    "broker",
    "principal",
    "effect",
    "operation",
    "resource",
    "transactional_id",
    "consumer",
    "lake",
)


class _AuditFile(RotatingFileHandler):
    """The file. Errors of the disk are logged in one line, once while the reason lasts."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
        self._problem = (
            ""  # of the last line, and of the present one; guarded by the handler's lock
        )
        self._problem_now = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        self._problem_now = ""
        super().emit(record)
        self._problem = self._problem_now

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (as logging calls it)
        """Log the reason why the present line cannot be written."""
        error = sys.exc_info()[1]
        self._problem_now = getattr(error, "strerror", None) or repr(error)
        if self._problem_now != self._problem:
            logger.error("cannot write the audit log %s: %s", self.baseFilename, self._problem_now)

    def close(self) -> None:
        """Close the file, even if the disk does not take the last lines."""
        with contextlib.suppress(OSError):
            super().close()


class Audit:
    """The audit log of a broker, for any thread. Without a path it writes no line."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        """Open the file.

        Raises:
            StorageFailure: The file cannot be opened.
        """
        self._clock = clock
        self._lock = threading.Lock()  # guards the next two
        self._second = 0  # by the clock
        self._lines: Counter[str | None] = Counter()  # about refusals in it, by principal
        self._omitted = 0
        try:
            self._file = None if path is None else _AuditFile(path)
        except OSError as error:
            raise StorageFailure(
                f"{path}: {error.strerror}",
                hint="With `authentication` a broker writes its audit log to this file.",
            ) from None

    def note(self, caller: Caller | None, address: str, action: str, on: str, outcome: str) -> None:
        """Write a line. If the disk refuses it, the call continues."""
        who = None if caller is None else caller.principal
        is_anybodys = outcome != DONE or action in CREDENTIALS
        if self._file is None or (is_anybodys and self._is_too_much(who)):
            return
        moment = datetime.fromtimestamp(self._clock.wall_us() / 1e6, UTC)
        noted: dict[str, object] = {
            "at": moment.isoformat(timespec="milliseconds"),
            "principal": None if who is None else who[:_TEXT_MAX],
            "from": address,
            "action": action[:_TEXT_MAX],
            "on": on[:_TEXT_MAX],
            "outcome": outcome,
        }
        with self._lock:
            omitted, self._omitted = self._omitted, 0
        if omitted:
            noted["omitted"] = omitted
        line = json.dumps(noted)
        self._file.handle(logging.LogRecord("audit", logging.INFO, "", 0, line, (), None))

    def _is_too_much(self, who: str | None) -> bool:
        """Count a line about a refusal. Return whether it has to be left out."""
        second = int(self._clock.monotonic())
        with self._lock:
            if second != self._second:
                self._second = second
                self._lines.clear()
            self._lines[who] += 1
            is_too_much = self._lines[who] > (_STRANGERS_S if who is None else _KNOWN_S)
            self._omitted += is_too_much
        return is_too_much

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def named_in(asked: Any) -> str:
    """Return the names in a request, without anything that may be secret."""
    found = {
        name: value
        for name in _NAMED
        if isinstance(value := getattr(asked, name, None), str) and value
    }
    return " ".join(f"{name}={value}" for name, value in found.items())
