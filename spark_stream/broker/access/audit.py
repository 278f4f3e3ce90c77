"""The audit log: a JSON line for each refusal, and for each act of an administrator.

A line has ``at`` (ISO 8601, UTC), ``principal``, ``from``, ``action``, ``on`` (a resource, or what
a request names) and ``outcome``: ``done``, or the code of the error. It never has a secret: of a
request only the fields in ``_NAMED`` are written.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from spark_stream.access.callers import Caller
from spark_stream.access.rules import Operation
from spark_stream.environment import Clock

logger = logging.getLogger(__name__)

FILE_BYTES: Final = 16 << 20
"""After so many bytes the next file begins."""
FILES_KEPT: Final = 5
ADMINISTRATIVE: Final = frozenset(
    {Operation.CREATE, Operation.ALTER, Operation.DELETE, Operation.ADMIN}
)
"""Operations that are written down when they are done; others only when they are refused."""
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
)


class Audit:
    """The audit log of a broker; for any thread. Without a path it writes nothing."""

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._clock = clock
        self._file: RotatingFileHandler | None = None
        if path is not None:
            self._file = RotatingFileHandler(
                path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8"
            )

    def note(self, caller: Caller | None, address: str, action: str, on: str, outcome: str) -> None:
        """Write a line; if the disk refuses it, the call goes on."""
        if self._file is None:
            return
        moment = datetime.fromtimestamp(self._clock.wall_us() / 1e6, UTC)
        line = json.dumps(
            {
                "at": moment.isoformat(timespec="milliseconds"),
                "principal": None if caller is None else caller.principal,
                "from": address,
                "action": action,
                "on": on,
                "outcome": outcome,
            }
        )
        self._file.handle(logging.LogRecord("audit", logging.INFO, "", 0, line, (), None))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def named_in(asked: Any) -> str:
    """Return what a request names, without anything that may be secret."""
    found = {
        name: value
        for name in _NAMED
        if isinstance(value := getattr(asked, name, None), str) and value
    }
    return " ".join(f"{name}={value}" for name, value in found.items())
