"""Registers `format("isolog")` in Spark without a call of `spark.dataSource.register`.

Spark imports every top-level module whose name starts with `pyspark_`, and registers its class
`DefaultSource` under the `name()` of the class. Users do not need to import this module.

An import error of this module would hide all Python data sources, and Spark would report only
`DATA_SOURCE_NOT_FOUND`. If a module is missing, a source is therefore registered that raises an
error with the remedy. PySpark before 4.0 has no Python data sources. There, the import fails.
"""

import os
import platform
import socket
import sys

import pyspark

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    raise ImportError(
        f"isolog needs PySpark 4.0 or newer; this is {pyspark.__version__}. Install it"
        " (pip install 'pyspark>=4.0,<5'), and run the job with Spark 4.0 or newer."
    ) from None


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
