"""Makes `format("isolog")` known to Spark, with no `spark.dataSource.register` call.

Spark imports every top-level module whose name starts with `pyspark_` and registers the data source
that it finds there as `DefaultSource`, under that class's own `name()`. This module is here for its
name alone: users have no need to import it.

An error while it is imported would hide all data sources of Python from Spark, and itself from the
user: Spark says `DATA_SOURCE_NOT_FOUND`. So where a module is missing, what is registered says so.
"""

import os
import platform
import socket
import sys

from pyspark.sql.datasource import DataSource


class LackingSource(DataSource):
    """What `format("isolog")` is in a Python that lacks a module: an error that says what to do."""

    missing = ""

    @classmethod
    def name(cls) -> str:
        return "isolog"

    def __init__(self, options: dict[str, str]) -> None:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the first line is then the one that helps
        raise ModuleNotFoundError(
            f"isolog: Spark plans its queries on {socket.gethostname()} in {sys.executable} (Python"
            f" {platform.python_version()}), which lacks {self.missing}. Set PYSPARK_PYTHON, where"
            " the job is submitted, to a Python that has isolog and all that it needs; see"
            ' "On a cluster" in docs/spark.md.'
        )


DefaultSource: type[DataSource] = LackingSource
try:
    from spark_stream.datasource import IsologDataSource
except ModuleNotFoundError as error:
    LackingSource.missing = error.name or str(error)
else:
    DefaultSource = IsologDataSource

__all__ = ["DefaultSource"]
