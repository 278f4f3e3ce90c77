"""Which of Spark's Python workers this process is.

Spark makes a data source, its readers and its writers anew in each kind of worker, and tells them
nothing of what for. But each kind of worker runs a module of its own, and does nothing else.
"""

from __future__ import annotations

import sys
from typing import Final

PUSHES_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""Asks a batch reader for the filters that it takes."""
COMMITS: Final = "pyspark.sql.worker.python_streaming_sink_runner"
"""Commits or aborts a micro-batch that was planned, and written, elsewhere."""


def is_worker(module: str) -> bool:
    """Return whether this process is a worker that runs the module."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return module in sys.modules or (main is not None and main.name == module)
