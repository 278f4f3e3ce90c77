"""A broker that kills itself (-9) at a chosen point, once. These points exist only here.

``python -m tests.faults POINT MARKER --dir …`` runs a broker in which the first call to reach the
point, while the file MARKER exists, removes the file and ends the process as ``kill -9`` would.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_stream.broker import __main__ as broker
from spark_stream.broker.actions import transactions as transaction_actions
from spark_stream.broker.partition.appends import Appends
from spark_stream.broker.partition.transactions import PartitionTransactions
from spark_stream.scripts.transactions import finishing
from spark_stream.scripts.transactions.finishing import Finisher
from tests.support import BrokerProcess

POINTS = {
    "joined": (Appends, "take", "before"),
    "appended": (Appends, "take", "after"),
    "decided": (finishing, "seal_partitions", "before"),
    "half marked": (PartitionTransactions, "end", "after"),
    "marked": (finishing, "store_decided", "before"),
    "positions stored": (Finisher, "record_finish", "before"),
    "finished": (transaction_actions, "_facts", "before"),
}


def arm(point: str, marker: Path) -> None:
    owner, name, when = POINTS[point]
    real: Callable[..., Any] = getattr(owner, name)

    def die() -> None:
        try:
            marker.unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def faulty(*args: Any, **named: Any) -> Any:
        if when == "before":
            die()
        result = real(*args, **named)
        if when == "after":
            die()
        return result

    setattr(owner, name, faulty)


class FaultyBroker(BrokerProcess):
    """A broker with a fault point, which kills it once after :meth:`arm`."""

    def __init__(self, directory: Path, point: str, **options: Any) -> None:
        super().__init__(directory, **options)
        self.marker = directory.with_name(directory.name + ".fault")
        self.module = ("tests.faults", point, str(self.marker))

    def arm(self) -> None:
        self.marker.touch()

    @property
    def died(self) -> bool:
        return not self.marker.exists() and not self.alive


if __name__ == "__main__":
    arm(sys.argv[1], Path(sys.argv[2]))
    del sys.argv[1:3]
    sys.exit(broker.main())
