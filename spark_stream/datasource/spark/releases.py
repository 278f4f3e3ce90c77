"""The interfaces of Spark's releases, as capabilities. No other module compares releases.

| interface | 4.0 | 4.1 | 4.2 | 4.3 |
|---|---|---|---|---|
| ``latestOffset(start, limit)``, ``SupportsTriggerAvailableNow`` | no | no | yes | yes |
| a streaming writer for Arrow batches, ``pushFilters``, ``TimeType`` | no | yes | yes | yes |

A release that lacks an interface has a stand-in here, so that classes derive from the same names on
each release:

* Without a start and a limit Spark calls ``latestOffset()``. After a restart it first calls
  ``partitions`` with the latest offset of its checkpoint as start and as end. So this offset, and
  later the answer of ``latestOffset()``, is the start of the next micro-batch.
  ``Trigger.AvailableNow`` runs one micro-batch. This is the last one of the checkpoint if it was
  not committed, and otherwise one from a single call of ``latestOffset()``.
* Spark 4.0 passes Arrow batches to each writer that is a ``DataSourceArrowWriter``. So a streaming
  writer that also derives from ``DataSourceArrowWriter`` gets Arrow batches instead of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyspark
import pyspark.sql.types as st
from pyspark.sql import datasource

from spark_stream.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import TimeType
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:

        class ReadLimit:
            """A limit of a micro-batch."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """At most ``max_rows`` rows."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """A source whose end is fixed before the first micro-batch."""

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
        from pyspark.sql.types import TimeType
    except ImportError:

        class DataSourceStreamArrowWriter(
            datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
        ):
            """A streaming writer for Arrow batches."""

        class TimeType(st.DataType):
            """The time of a day."""

            def __init__(self, precision: int = 6) -> None:
                raise lacks("the type time", "4.1")


__all__ = [
    "PUSHES_FILTERS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "TimeType",
    "lacks",
]

PUSHES_FILTERS: Final = hasattr(datasource.DataSourceReader, "pushFilters")
"""Whether Spark passes the filters of a batch query to its reader."""


def lacks(what: str, needed: str) -> Unsupported:
    """Return the error for a capability that this PySpark lacks."""
    return Unsupported(
        f"{what} needs PySpark {needed} or newer; this is {pyspark.__version__}",
        hint="docs/spark/cluster.md lists the features of each release.",
    )
