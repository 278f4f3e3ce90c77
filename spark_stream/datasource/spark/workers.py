"""Spark's Python workers: the host, the JVM and the kind of this one, and the form of its errors.

Spark creates a data source, its readers and its writers again in each kind of worker, and does not
pass the kind. But each kind of worker runs a separate module, and has no other task.

The useful line of an error has to come first, with no traceback before it. Spark puts the traceback
of a Python worker into its own message, thousands of characters before the line with the problem. A
variable in the worker's environment turns that off. Spark reads it when an exception ends the
worker's work, and the worker exits after that. So the variable is set when one of our errors leaves
our code. It hides no other traceback, and a defect in our code keeps its traceback.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

import psutil
from pyspark.sql.datasource import DataSourceStreamReader

from spark_stream.errors import InternalError, IsologError
from spark_stream.operating_system import peer_has_closed

_OF_WORKERS: Final = {
    "SPARK_PYTHON_RUNTIME",
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYTHON_WORKER_FACTORY_SOCK_DIR",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
}
"""Variables that Spark sets for its Python processes, planners and tasks alike.

4.0 and 4.1 lack the first one. With ``spark.python.unix.domain.socket.enabled`` there is no second
one. Then daemons have the third one, and other processes the last one.
"""

PUSHES_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The worker that passes filters to a batch reader, which returns those that it does not take."""

COMMITS: Final = "pyspark.sql.worker.python_streaming_sink_runner"
"""The worker that commits or aborts a micro-batch, which others planned and wrote."""

READS_STREAMS: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The worker that plans the micro-batches of one source of a streaming query, while it runs."""

HIDES: Final = "SPARK_HIDE_TRACEBACK"


def driver_jvm() -> psutil.Process | None:
    """Find the JVM that started this planner or task, directly or not, or None if there is none.

    Raises:
        psutil.Error: the system does not report the processes.
    """
    for process in psutil.Process().parents():
        if process.name().startswith("java"):
            return process
    return None


def visible_jvm() -> psutil.Process | None:
    """Find the JVM as :func:`driver_jvm` does. Return None if the system does not report it."""
    try:
        return driver_jvm()
    except psutil.Error:
        return None


def is_worker(module: str) -> bool:
    """Return whether this process is a worker that runs the module."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return module in sys.modules or (main is not None and main.name == module)


P = ParamSpec("P")
R = TypeVar("R")


def in_a_worker() -> bool:
    """Return whether this is a Python process of Spark, such as a planner or a task."""
    return not _OF_WORKERS.isdisjoint(os.environ)


@contextmanager
def _plain() -> Iterator[None]:
    try:
        yield
    except InternalError:
        raise
    except IsologError:
        if in_a_worker():
            os.environ[HIDES] = "1"
        raise


def with_spark_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method that Spark calls, so that Spark shows our errors from it in one line."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def iterated(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                with _plain():
                    yield from method(*args, **kwargs)
            except GeneratorExit:
                end_abandoned_worker()
                raise

        return iterated  # type: ignore[return-value]

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with _plain():
            return method(*args, **kwargs)

    return called


def end_abandoned_worker() -> None:
    """End this worker if Spark has closed its socket, as a query with a limit does.

    Otherwise the worker's last flush fails, and PySpark prints a traceback of a BrokenPipeError
    for a query that succeeded. PySpark has dropped the iterator of the rows before this flush. A
    worker whose socket is open has an error to report, and continues.
    """
    socket = _socket_of_worker(sys._getframe())
    if socket is not None and peer_has_closed(socket):
        os._exit(0)


def _socket_of_worker(frame: FrameType | None) -> Any:
    """Return the socket of PySpark's daemon for this worker, or None outside of a worker."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "worker" and Path(code.co_filename).name == "daemon.py":
            return frame.f_locals.get("sock")
        frame = frame.f_back
    return None


class RefusedStream(DataSourceStreamReader):
    """Replaces a stream reader that could not be made, and raises its error on every call.

    If ``streamReader`` itself raised, PySpark would fail because it has no reader, and show that
    error instead of ours.
    """

    def __init__(self, error: IsologError) -> None:
        self._error = error

    @with_spark_errors
    def getDefaultReadLimit(self) -> Any:
        raise self._error

    @with_spark_errors
    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    @with_spark_errors
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        raise self._error

    @with_spark_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        raise self._error

    def read(self, partition: Any) -> Any:
        raise self._error
