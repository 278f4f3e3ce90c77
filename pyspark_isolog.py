"""Registers `format("isolog")` in Spark without a call of `spark.dataSource.register`.

Spark imports every top-level module whose name starts with `pyspark_`, and registers its class
`DefaultSource` under the `name()` of the class. Users do not need to import this module.

An import error of this module would hide all Python data sources, and Spark would report only
`DATA_SOURCE_NOT_FOUND`. If a module is missing or PySpark is too old, a source is therefore
registered that raises an error with the remedy.
"""

import os
import platform
import re
import socket
import sys

import pyspark
from pyspark.sql.datasource import DataSource

NEEDED = (4, 0)
"""The oldest PySpark with Python data sources for streams."""


class LackingSource(DataSource):
    """The `format("isolog")` of an incomplete environment. It raises an error with the remedy."""

    problem = ""

    @classmethod
    def name(cls) -> str:
        return "isolog"

    def __init__(self, options: dict[str, str]) -> None:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # so that the first line is the error
        raise ImportError(
            f"isolog: Spark plans its queries on {socket.gethostname()} in {sys.executable} (Python"
            f" {platform.python_version()}), {self.problem}"
        )


def problem_of(error: ImportError) -> str:
    """Return the end of a sentence about the Python of Spark's planner, with the remedy."""
    if tuple(int(part) for part in re.findall(r"[0-9]+", pyspark.__version__)[:2]) < NEEDED:
        oldest = ".".join(map(str, NEEDED))
        return (
            f"where isolog needs PySpark {oldest} or newer; this is {pyspark.__version__}. Install"
            f" it (pip install 'pyspark>={oldest},<5'), and"
            f" run the job with Spark {oldest} or newer."
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
