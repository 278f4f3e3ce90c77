"""Flights from one topic into a table, and the late ones from there into another topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def flights() -> DataFrame:
    """All flights, as a table of Spark's."""
    source = {"subscribe": "flights", "isolation": "read_committed"}
    return spark.readStream.format("isolog").options(**source).load()


dp.create_sink(
    "late_flights",
    "isolog",
    {"topic": "late_flights", "createTopic": "true", "sinkId": "pipeline/late_flights"},
)


@dp.append_flow(target="late_flights")
def late() -> DataFrame:
    """Flights that left more than a quarter of an hour late."""
    return spark.readStream.table("flights").where("delay > 15")
