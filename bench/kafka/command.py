"""``python -m bench kafka``: measures, writes the results as JSON, and the page on request."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil
from pyspark.sql import SparkSession

from bench.kafka import clients, costs, jars, page, reads, small, typed, writes
from bench.kafka.broker import HEAP, KafkaBroker
from bench.kafka.ours import IsologBroker
from bench.kafka.tuning import TUNED_SINK, TUNED_SOURCE
from bench.kafka.turns import Figures, Turns
from bench.kafka.world import PARTITIONS, World
from bench.spark_bench import session

PARTS: Final = ("read", "write", "typed", "small", "clients", "disk", "memory", "many")
_RESULTS: Final = Path(__file__).parent.parent / "results"


def main(arguments: Sequence[str]) -> None:
    """Measure the given parts. The figures of each part are written at its end."""
    given = _parsed(arguments)
    facts, began = _facts(given), time.monotonic()
    _RESULTS.mkdir(parents=True, exist_ok=True)
    path = _RESULTS / f"kafka-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    for measured in _measured([each for each in PARTS if each in (given.parts or PARTS)], given):
        facts["minutes"] = round((time.monotonic() - began) / 60, 1)
        facts["measures"] = measured
        path.write_text(json.dumps(facts, indent=1) + "\n")
    print(page.table(facts))
    print(f"also in {path}", file=sys.stderr)
    if given.page:
        page.write(facts)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench kafka", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the large measurements")
    parser.add_argument("--turns", type=int, default=5, help="how often everyone is measured")
    parser.add_argument("--batches", type=int, default=40, help="micro-batches of a small query")
    parser.add_argument("--rounds", type=int, default=2_000, help="records of a latency")
    parser.add_argument("--quick", action="store_true", help="little of all of that: some minutes")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.* from the run")
    parser.add_argument("--shared", action="store_true", help="state that the machine was shared")
    parser.add_argument("--dir", type=Path, help="directory of the logs (default: a temporary one)")
    given = parser.parse_args(arguments)
    if not set(given.parts) <= set(PARTS):
        parser.error(f"the parts are {', '.join(PARTS)}")
    if given.page and given.parts:
        parser.error("the page has all parts: leave the parts out, or --page")
    if given.quick:
        given.rows, given.turns, given.batches, given.rounds = 200_000, 2, 20, 200
    return given


def _measured(parts: Sequence[str], given: argparse.Namespace) -> Iterator[list[Figures]]:
    """All figures so far, after each part."""
    found = jars.fetched(jars.default_cache())
    turns = Turns(given.turns)
    with tempfile.TemporaryDirectory(dir=given.dir, prefix="isolog-bench-") as folder:
        place = Path(folder)
        with (
            KafkaBroker(found["broker"], place / "kafka") as kafka,
            IsologBroker(place / "isolog") as ours,
            IsologBroker(place / "flight", mapped_reads=False) as by_flight,
        ):
            world = World(session(found["connector"]), kafka, ours, by_flight, place, given.rows)

            def renewed(before: World) -> World:
                before.spark.stop()
                return replace(before, spark=session(found["connector"]))

            run = {
                "read": lambda: reads.run(world, turns),
                "write": lambda: writes.run(world, turns),
                "typed": lambda: typed.run(world, turns),
                "small": lambda: small.run(world, turns, given.batches),
                "clients": lambda: clients.run(world, turns, given.rounds),
                "disk": lambda: costs.disk(world, turns),
                "memory": lambda: costs.memory(world, turns, renewed),  # ends the world's session
                # Last, because brokers keep memory of many connections.
                "many": lambda: clients.many(world, turns),
            }
            try:
                for part in parts:
                    run[part]()
                    yield turns.measured
            finally:
                last = SparkSession.getActiveSession()
                if last is not None:
                    last.stop()


def _facts(given: argparse.Namespace) -> dict[str, Any]:
    """Time, place, versions and settings of the measurement."""
    names = ("pyspark", "pyarrow", "confluent-kafka", "isolog")
    jar_names = jars.checksums(jars.CHECKSUMS.read_text())
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30),
            "system": platform.system(),
            "architecture": platform.machine(),
            "shared": given.shared,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in names},
            "kafka broker": _version_of("broker/kafka_2.13-", jar_names),
            "spark-sql-kafka-0-10": _version_of("connector/spark-sql-kafka-0-10_2.13-", jar_names),
            "kafka-clients of the connector": _version_of("connector/kafka-clients-", jar_names),
        },
        "settings": {
            "rows": given.rows,
            "turns": given.turns,
            "batches": given.batches,
            "rounds": given.rounds,
            "partitions": PARTITIONS,
            "tuned source": TUNED_SOURCE,
            "tuned sink": TUNED_SINK,
            "heap of the kafka broker": " ".join(HEAP),
        },
    }


def _version_of(prefix: str, names: dict[str, str]) -> str:
    return next(
        name.removeprefix(prefix).removesuffix(".jar") for name in names if name.startswith(prefix)
    )
