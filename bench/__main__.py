"""``python -m bench``: all parts, or some. A table is printed, JSON is written to bench/results."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import spark_stream as isolog
from bench import against, clock, turns
from bench.results import Results

PARTS = (
    "native",
    "where",
    "waiting",
    "clients",
    "transactions",
    "history",
    "growth",
    "replication",
    "cluster",
    "quotas",
    "access",
    "counting",
    "scale",
    "lake",
    "gateway",
    "spark",
    "memory",
)
SIZES = ("dir", "rounds", "seconds", "gibibytes", "rows", "transactions", "operations", "idle")


def main() -> None:
    """Measure the given parts, alone, in turns with another commit, or against Kafka."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if sys.argv[1:2] == ["kafka"]:
        from bench.kafka import command  # needs more packages than the rest

        command.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them")
    parser.add_argument("--dir", type=Path, help="directory of the logs (default: a temporary one)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of Spark measurements")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each native rate")
    parser.add_argument("--gibibytes", type=float, default=10.0, help="of log, for the memory")
    parser.add_argument("--rows", type=int, default=2_000_000, help="that a lake's worker copies")
    parser.add_argument("--transactions", type=int, default=1_000_000, help="of a history")
    parser.add_argument("--operations", type=int, default=5_000, help="whose costs are counted")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of an idle broker")
    parser.add_argument("--against", metavar="COMMIT", help="measure in turns with that commit")
    parser.add_argument("--pairs", type=int, default=5, help="how often, with --against")
    parser.add_argument(
        "--processor", action="store_true", help="by processor time, not the wall's"
    )
    parser.add_argument(turns.OPTION, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not set(given.parts) <= set(PARTS):
        parser.error(f"the parts are {', '.join(PARTS)}")
    parts = [part for part in PARTS if part in (given.parts or PARTS)]
    if given.in_turns:
        told = turns.MeasuredBench()
        _measure(parts, given, Results(told.tell), told.begin)
        return
    if given.against:
        options = [f"--{name}={getattr(given, name)}" for name in SIZES if getattr(given, name)]
        options += ["--processor"] if given.processor else []
        path = against.run(given.against, parts, options, given.pairs)
    else:
        results = Results()
        _measure(parts, given, results)
        path = results.write(Path(__file__).parent / "results")
        results.show()
    print(f"also in {path}", file=sys.stderr)


def _measure(
    parts: list[str],
    given: argparse.Namespace,
    results: Results,
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Run the parts against an embedded broker in a temporary directory."""
    with tempfile.TemporaryDirectory(dir=given.dir, prefix="isolog-bench-") as folder:
        place = Path(folder)
        with isolog.connect(path=place / "log") as log:
            begin()
            if given.processor:
                clock.count_processor_time(os.getpid(), log.status().pid)
            try:
                # Late, because each part imports modules that other commits may not have.
                if "native" in parts:
                    from bench import native_bench

                    native_bench.run(log, results, given.seconds, ceilings=not given.in_turns)
                if "where" in parts:
                    from bench import where_bench  # earlier commits have other calls of the sink

                    where_bench.run(log, place, results, given.operations)
                if "waiting" in parts:
                    from bench import waiting_bench

                    waiting_bench.run(log, results)
                if "clients" in parts:
                    from bench import clients_bench

                    clients_bench.run(log, results, given.seconds)
                if "transactions" in parts:
                    from bench import transactions_bench

                    transactions_bench.run(log, results, given.seconds)
                if "history" in parts:
                    from bench import history_bench

                    history_bench.run(results, given.transactions)
                if "growth" in parts:
                    from bench import growth_bench

                    growth_bench.run(place / "growth", results, given.idle)
                if "replication" in parts:
                    from bench import replication_bench  # needs the packages of the tests

                    replication_bench.run(place / "replication", results, given.idle)
                if "cluster" in parts:
                    from bench import cluster_bench  # earlier commits have no such clusters

                    cluster_bench.run(results, given.seconds, given.idle)
                if "quotas" in parts:
                    from bench import quota_bench  # needs the packages of the tests

                    quota_bench.run(place / "quotas", results)
                if "access" in parts:
                    from bench import access_bench  # earlier commits have no authentication

                    access_bench.run(place / "access", results, given.seconds)
                if "counting" in parts:
                    from bench import counting_bench  # earlier commits count nothing

                    counting_bench.run(results)
                if "scale" in parts:
                    from bench import scale_bench  # needs the packages of the tests

                    scale_bench.run(place / "scale", results)
                if "lake" in parts:
                    from bench import lake_bench  # earlier commits have no lakes

                    lake_bench.run(log, place / "lake", results, given.rows, given.seconds)
                    lake_bench.run_spark(log, place, results, given.rows, given.rounds)
                if "gateway" in parts:
                    from bench import gateway_bench  # earlier commits have no gateway

                    gateway_bench.run(log, place / "gateway", results, given.idle)
                if "spark" in parts:
                    from bench.spark_bench import Bench, session

                    spark = session()
                    Bench(spark, place, results).run(log, given.rounds)
                    spark.stop()
                if "memory" in parts:
                    from bench import native_bench

                    native_bench.memory(log, results, given.gibibytes)
            finally:
                os.kill(log.status().pid, signal.SIGTERM)


if __name__ == "__main__":
    main()
