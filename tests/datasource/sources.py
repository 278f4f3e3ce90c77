"""The readers of a query without Spark, called in Spark's order."""

from __future__ import annotations

import json
from typing import Any

from spark_stream.datasource.options import source_options
from spark_stream.datasource.reading.reader import IsologReader
from spark_stream.datasource.reading.stream_reader import IsologStreamReader
from spark_stream.datasource.spark.types import to_spark
from tests.support import NUMBERS

IS_ASSISTED = True
"""Whether a query passes its start and a limit, as Spark 4.2 and newer do."""


class Query:
    """A streaming query over ``bigint`` numbers; ``at`` is what its checkpoint has."""

    def __init__(self, address: str, topics: str | None, at: Any = None, **options: Any) -> None:
        self.at = at
        given = _given(address, topics, options)
        self._given = {name: str(value) for name, value in given.items()}
        self.start()

    def start(self) -> None:
        """The query starts, or starts again from its checkpoint."""
        options = source_options(self._given, streaming=True)
        self.reader = IsologStreamReader(options, to_spark(NUMBERS))
        if self.at is None:
            self.at = self.reader.initialOffset()
        elif not IS_ASSISTED:
            assert self.reader.partitions(self.at, self.at) == []

    def planned(self) -> Any:
        """Plan the next micro-batch, and return its end, which Spark stores before it reads."""
        if IS_ASSISTED:
            end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        else:
            end = self.reader.latestOffset()
        return json.loads(json.dumps(end))

    def read(self, end: Any) -> list[int]:
        """The numbers of a micro-batch, which ends the checkpoint's present one."""
        partitions = self.reader.partitions(self.at, end)
        found = [
            number
            for partition in partitions
            for batch in self.reader.read(partition)
            for number in batch.column("n").to_pylist()
        ]
        self.at = end
        return found

    def batch(self) -> list[int]:
        """The next micro-batch."""
        return self.read(self.planned())


def _given(address: str, topics: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a query. Without ``topics``, they select the topics themselves."""
    subscribed = {} if topics is None else {"subscribe": topics}
    return {"bootstrap": address, **subscribed, **options}


def batch_read(address: str, topics: str | None, **options: Any) -> list[int]:
    """Return the numbers that a batch query reads."""
    given = _given(address, topics, options)
    chosen = source_options({name: str(value) for name, value in given.items()}, streaming=False)
    reader = IsologReader(chosen, to_spark(NUMBERS))
    return [
        number
        for partition in reader.partitions() or [None]  # as Spark 4.0 does
        for batch in reader.read(partition)
        for number in batch.column("n").to_pylist()
    ]
