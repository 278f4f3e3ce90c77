"""``python -m bench``: everything, or parts; a table on standard output, JSON in bench/results."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import spark_stream as isolog
from bench import native_bench, transactions_bench, waiting_bench
from bench.results import Results

PARTS = ("native", "waiting", "transactions", "spark", "memory")


def main() -> None:
    """Runs the parts asked for against an embedded broker in a temporary directory."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them")
    parser.add_argument("--dir", type=Path, help="where the logs go (default: a temporary place)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of Spark measurements")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each native rate")
    parser.add_argument("--gibibytes", type=float, default=10.0, help="of log, for the memory")
    parser.add_argument("--transactions", type=int, default=1_000_000, help="of a history")
    given = parser.parse_args()
    parts = set(given.parts or PARTS)
    if not parts <= set(PARTS):
        parser.error(f"the parts are {', '.join(PARTS)}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    results = Results()
    with tempfile.TemporaryDirectory(dir=given.dir, prefix="isolog-bench-") as folder:
        place = Path(folder)
        with isolog.connect(path=place / "log") as log:
            try:
                if "native" in parts:
                    native_bench.run(log, results, given.seconds)
                if "waiting" in parts:
                    waiting_bench.run(log, results)
                if "transactions" in parts:
                    transactions_bench.run(log, results, given.seconds, given.transactions)
                if "spark" in parts:
                    from bench.spark_bench import Bench, session

                    spark = session()
                    Bench(spark, place, results).run(log, given.rounds)
                    spark.stop()
                if "memory" in parts:
                    native_bench.memory(log, results, given.gibibytes)
            finally:
                os.kill(log.status().pid, signal.SIGTERM)
    path = results.write(Path(__file__).parent / "results")
    results.show()
    print(f"also in {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
