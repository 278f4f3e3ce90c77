"""PySpark's daemon of workers, with the workers' module before each traceback.

Spark starts it instead of ``pyspark.daemon`` with the setting ``spark.python.daemon.module``.
"""

from __future__ import annotations

import sys
import traceback

from pyspark import daemon


def main() -> None:
    """Run the daemon."""
    print_exc = traceback.print_exc

    def labelled() -> None:
        print(f"worker of {sys.argv[1]}:", file=sys.stderr)
        print_exc()

    traceback.print_exc = labelled
    daemon.manager()


if __name__ == "__main__":
    main()
