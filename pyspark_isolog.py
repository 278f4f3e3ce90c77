"""Makes `format("isolog")` known to Spark, with no `spark.dataSource.register` call.

Spark imports every top-level module whose name starts with `pyspark_` and registers the data source
that it finds there as `DefaultSource`, under that class's own `name()`. This module is here for its
name alone: users have no need to import it.

An error while it is imported would hide all data sources of Python from Spark, and itself from the
user: Spark says `DATA_SOURCE_NOT_FOUND`. So if a module is missing, or PySpark is too old, a source
is registered that raises an error with the remedy.
"""

import os
import platform
import re
import socket
import sys

import pyspark
from pyspark.sql.datasource import DataSource

NEEDED = (4, 2)
"""The oldest PySpark with the streaming interfaces that isolog uses."""


class LackingSource(DataSource):
    """The `format("isolog")` of a Python that lacks a module: an error with the remedy."""

    problem = ""

    @classmethod
    def name(cls) -> str:
        return "isolog"

    def __init__(self, options: dict[str, str]) -> None:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the first line is then the one that helps
        raise ImportError(
            f"isolog: Spark plans its queries on {socket.gethostname()} in {sys.executable} (Python"
            f" {platform.python_version()}), {self.problem}"
        )


def problem_of(error: ImportError) -> str:
    """Return the rest of a sentence about the planners' Python, and the remedy."""
    if tuple(int(part) for part in re.findall(r"[0-9]+", pyspark.__version__)[:2]) < NEEDED:
        oldest = ".".join(map(str, NEEDED))
        return (
            f"which has PySpark {pyspark.__version__}, and isolog needs PySpark {oldest} or newer."
            f" Install it (pip install 'isolog[spark]'), and run the job with Spark {oldest} or"
            " newer."
        )
    return (
        f"which lacks {error.name or error}. Set PYSPARK_PYTHON, where the job is submitted, to a"
        ' Python that has isolog and its dependencies. See "On a cluster" in docs/spark/cluster.md.'
    )


DefaultSource: type[DataSource] = LackingSource
try:
    from spark_stream.datasource import IsologDataSource
except ImportError as error:
    LackingSource.problem = problem_of(error)
else:
    DefaultSource = IsologDataSource

__all__ = ["DefaultSource"]
