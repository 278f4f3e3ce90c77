"""Print each version of Delta tables in a folder, as Spark with delta-spark reads it.

A program for another PySpark than that of the tests: ``python foreign_spark.py FOLDER VERSIONS``.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(folder: str, versions: list[int]) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars.packages", "io.delta:delta-spark_4.2_2.13:4.4.0")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    found = {}
    for version in versions:
        frame = spark.read.format("delta").option("versionAsOf", version).load(folder)
        ordered = frame.orderBy("_partition", "_offset")
        found[version] = [json.loads(each) for each in ordered.toJSON().collect()]
    print("\n" + json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
