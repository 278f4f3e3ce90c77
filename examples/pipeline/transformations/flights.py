"""A topic of flights becomes a table, and a topic of late flights.

Topic ``flights`` has the columns ``carrier string, delay int``. ISOLOG_BOOTSTRAP or ISOLOG_PATH has
the place of the log.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession


def read_flights() -> DataFrame:
    options = {"subscribe": "flights", "isolation": "read_committed"}
    return SparkSession.active().readStream.format("isolog").options(**options).load()


@dp.table
def flights() -> DataFrame:
    """All flights, in a table of the catalog."""
    return read_flights()


# The sinkId stays the same if the pipeline gets a new checkpoint (--full-refresh): rows that are
# in the topic already are not written again, but the run fails.
# docs/spark/write.md describes the remedy.
dp.create_sink(
    "late_flights",
    "isolog",
    {"topic": "late_flights", "createTopic": "true", "sinkId": "pipeline late_flights"},
)


@dp.append_flow(target="late_flights")
def late() -> DataFrame:
    """Flights that were more than a quarter of an hour late."""
    return read_flights().where("delay > 15")
