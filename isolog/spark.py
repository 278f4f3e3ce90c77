"""Progress and lag of streaming queries. Needs PySpark."""

from __future__ import annotations

from spark_stream.datasource.watching.listener import LagListener
from spark_stream.datasource.watching.progress import progress_bar

__all__ = ["LagListener", "progress_bar"]
