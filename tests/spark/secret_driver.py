"""A driver that uses a log with a password, a token and a profile, in every way and with failures.

It prints all output that a user may print: plans, errors with their traces, and Spark's UI.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import urllib.request
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

PLACE, CHECKPOINTS = sys.argv[1], sys.argv[2]
PASSWORD, TOKEN, PROFILE = (os.environ.pop(name) for name in ("A_PASSWORD", "A_TOKEN", "A_PROFILE"))
WAYS: dict[str, dict[str, str]] = {
    "password": {"bootstrap": PLACE, "user": "alice", "password": PASSWORD},
    "token": {"bootstrap": PLACE, "token": TOKEN},
    "profile": {"profile": PROFILE},
}


def tried(what: str, act: Callable[[], object]) -> None:
    try:
        act()
        print("done:", what, flush=True)
    except Exception:
        print("failed:", what, flush=True)
        traceback.print_exc()


def use(spark: SparkSession, name: str, options: Mapping[str, str]) -> None:
    rows = spark.range(20).selectExpr("cast(id as string) value")

    def read() -> DataFrame:
        return spark.read.format("isolog").options(**options, subscribe="t").load()

    def write() -> None:
        rows.write.format("isolog").mode("append").options(**options, topic="t").save()

    def stream() -> None:
        found = spark.readStream.format("isolog").options(**options, subscribe="t").load()
        query = (
            found.select("value")
            .writeStream.format("isolog")
            .options(**options, topic="u", checkpointLocation=f"{CHECKPOINTS}/{name}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        print(query.explain(True), query.lastProgress)

    def table() -> None:
        if name != "profile":
            return  # Spark logs the text of a statement, and a catalog keeps its OPTIONS
        said = ", ".join(f"`{key}` '{value}'" for key, value in options.items())
        spark.sql(f"CREATE TABLE t_{name} USING isolog OPTIONS ({said}, subscribe 't')")
        spark.sql(f"SELECT count(*) FROM t_{name}").show()
        spark.sql(f"DESCRIBE EXTENDED t_{name}").show(100, truncate=False)
        spark.sql(f"SHOW CREATE TABLE t_{name}").show(truncate=False)

    def forbidden() -> None:
        rows.write.format("isolog").mode("append").options(**options, topic="other").save()

    def misspelt() -> None:
        spark.read.format("isolog").options(**options, subscribe="t", isolaton="x").load()

    tried(f"{name} write", write)
    tried(f"{name} read", lambda: (read().explain(True), read().collect()))
    tried(f"{name} stream", stream)
    tried(f"{name} table", table)
    tried(f"{name} forbidden", forbidden)
    tried(f"{name} misspelt", misspelt)


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    for name, options in WAYS.items():
        use(spark, name, options)
    wrong = {"bootstrap": PLACE, "user": "alice", "password": PASSWORD + "?"}
    tried("wrong password", lambda: spark.read.format("isolog").options(**wrong).load())
    base = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
    for page in ("environment", "sql?details=true&length=1000", "jobs", "stages"):
        with urllib.request.urlopen(f"{base}/{page}") as answer:
            print(json.dumps(json.load(answer)))
    spark.stop()


main()
