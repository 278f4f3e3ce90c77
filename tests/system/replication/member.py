"""A process that is a member of a group, and writes its processed values to a file.

python -m tests.system.replication.member ADDRESS TOPIC GROUP SESSION_S FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

import isolog


def read(address: str, topic: str, group: str, session_s: str, file: str) -> None:
    """Read until the process is killed, or until a record with the value ``end``."""
    with (
        Path(file).open("a") as out,
        isolog.connect(address) as log,
        log.consumer(topic, group=group, session_timeout=float(session_s)) as consumer,
    ):
        print("member", flush=True)
        for record in consumer.records():
            if record.value == b"end":
                return
            out.write(f"{record.value.decode()}\n")
            out.flush()


if __name__ == "__main__":
    read(*sys.argv[1:])
