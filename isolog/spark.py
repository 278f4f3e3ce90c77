"""Progress and lag of streaming queries. Needs PySpark."""

from __future__ import annotations

from spark_stream.extras import install_hint

try:
    from spark_stream.datasource.watching import LagListener, progress_bar
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] != "pyspark":
        raise
    try:
        from pyspark import __version__ as version
    except ImportError:
        this = "this Python has none"
    else:
        this = f"this is {version}"
    raise ImportError(
        f"isolog needs PySpark 4.0 or newer; {this}. {install_hint('spark')}",
        name=error.name,
    ) from None

__all__ = ["LagListener", "progress_bar"]
