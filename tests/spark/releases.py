"""Marks of tests about features that some releases of Spark lack (docs/spark/cluster.md)."""

from __future__ import annotations

from importlib.util import find_spec

import pyspark.sql.types as st
import pytest
from pyspark.sql import datasource

from spark_stream.datasource.spark import releases
from tests.kafka_jars import ABSENT, jars_of

PASSES_LIMITS = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
"""Whether Spark passes a start and a limit to a source, and ``Trigger.AvailableNow``."""

passes_limits = pytest.mark.skipif(
    not PASSES_LIMITS, reason="this PySpark passes no limit and no trigger to a source"
)
plans_alone = pytest.mark.skipif(
    PASSES_LIMITS, reason="this PySpark passes the start of a micro-batch to a source"
)
pushes_filters = pytest.mark.skipif(
    not releases.PUSHES_FILTERS, reason="this PySpark pushes no filters to a source in Python"
)
RUNS = 1 if PASSES_LIMITS else 3
"""The runs with ``Trigger.AvailableNow`` until all records are read, and the end is stored.

Without limits the first may repeat a micro-batch, the second reads the rest, and the third stores
the end of the second.
"""

JSON_HAS_TIME = PASSES_LIMITS
"""Whether Spark's ``to_json`` and ``from_json`` have the type time."""

has_time = pytest.mark.skipif(not hasattr(st, "TimeType"), reason="this PySpark has no type time")
has_pipelines = pytest.mark.skipif(
    find_spec("pyspark.pipelines") is None, reason="this PySpark has no declarative pipelines"
)

HAS_KAFKA = PASSES_LIMITS and bool(jars_of("connector"))
"""Whether the shared session has Spark's Kafka connector, the jar of Spark 4.2."""

has_kafka = pytest.mark.skipif(not HAS_KAFKA, reason=f"{ABSENT}, with PySpark 4.2 or newer")
