"""Our errors as Spark shows them: the useful line first, with no traceback before it.

Spark puts the traceback of a Python worker into its own message, thousands of characters before the
line that says what is wrong. A variable in the worker's environment turns that off. Spark reads it
when an exception ends the worker's work; the worker then exits. So the variable is set when one of
our errors leaves our code: it hides no other traceback, and a defect in our code keeps its own.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader

from spark_stream.datasource.spark.place import IN_A_WORKER
from spark_stream.errors import InternalError, IsologError

HIDES: Final = "SPARK_HIDE_TRACEBACK"

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def _plain() -> Iterator[None]:
    try:
        yield
    except InternalError:
        raise
    except IsologError:
        if IN_A_WORKER in os.environ:
            os.environ[HIDES] = "1"
        raise


def with_spark_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method that Spark calls, so that Spark shows our errors from it in one line."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def iterated(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            with _plain():
                yield from method(*args, **kwargs)

        return iterated  # type: ignore[return-value]

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with _plain():
            return method(*args, **kwargs)

    return called


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
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        raise self._error

    @with_spark_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        raise self._error

    def read(self, partition: Any) -> Any:
        raise self._error
