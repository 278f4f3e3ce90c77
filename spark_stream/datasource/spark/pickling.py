"""The pickling of the objects that Spark sends to its workers: the source, readers, writers.

A worker may lack modules. If its Python has no isolog, unpickling an object would fail with a
traceback that names a module and no remedy. So the pickle contains the code of a function that
needs only Python. The function looks for the modules, and raises an error with the remedy if one is
missing. Otherwise it makes the reader or writer.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from pyspark import cloudpickle

NEEDED: Final = (
    "pyarrow",
    "numpy",
    "msgspec",
    "pydantic",
    "pydantic_settings",
    "psutil",
    "google_crc32c",
    "sqlglot",
    "spark_stream",
)
"""The modules that a task imports."""


class WorkerPickled:
    """An object that a worker unpickles, or refuses with our error if it lacks a module.

    ``pickled_attributes``: the attributes of its copies, by default all.
    """

    pickled_attributes: tuple[str, ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        names = self.__dict__ if self.pickled_attributes is None else self.pickled_attributes
        state = {name: self.__dict__[name] for name in names}
        return unpickled, (_pickled((type(self), state)), NEEDED)


def unpickled(made: bytes, needed: tuple[str, ...]) -> Any:
    """Unpickle an object. Raise ModuleNotFoundError with a remedy if this Python lacks a module.

    It is pickled by value, so it imports all that it uses by itself.
    """
    import importlib.util
    import os
    import platform
    import socket
    import sys as system

    names = {"spark_stream": "isolog"}
    is_checked = "spark_stream.datasource.spark.pickling" in system.modules  # by an earlier object
    lacks = [] if is_checked else [each for each in needed if not importlib.util.find_spec(each)]
    if lacks:
        missing = ", ".join(names.get(each, each) for each in lacks)
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # the first line is then the one that helps
        raise ModuleNotFoundError(
            f"isolog: a Python worker of Spark on {socket.gethostname()} runs {system.executable}"
            f" (Python {platform.python_version()}), which lacks {missing}. Set"
            " PYSPARK_PYTHON, where the job is submitted, to a Python that has isolog and all that"
            " it needs on every host, or send isolog along with spark-submit (--archives,"
            ' --py-files); see "On a cluster" in docs/spark/cluster.md.'
        )
    from pyspark import cloudpickle as pickles

    kind, state = pickles.loads(made)
    found = kind.__new__(kind)
    found.__dict__.update(state)
    return found


_pickled: Any = cloudpickle.dumps
_by_value: Any = cloudpickle.register_pickle_by_value
_by_value(sys.modules[__name__])
