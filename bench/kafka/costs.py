"""The size of the same records on the disk, and the memory of their writes and reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psutil
import pyarrow as pa

from bench.kafka.turns import CEILING, ISOLOG, KAFKA, Turns
from bench.kafka.world import World, to_noop
from bench.kafka.writes import cached_rows
from bench.records import TYPED

CODECS: Final = ("none", "lz4", "zstd")
_PAUSE_S: Final = 0.05


def disk(world: World, turns: Turns) -> None:
    """Bytes a record of keyed values, and of 20 columns, without and with compression."""
    rows = world.rows // 4
    _on_disk(world, turns, "keyed", f"{rows:,} rows of 10 + 100 random bytes", None, rows)
    _on_disk(world, turns, "typed", f"{rows:,} rows of 20 columns", TYPED, rows)


def _on_disk(
    world: World, turns: Turns, columns: str, what: str, schema: pa.Schema | None, rows: int
) -> None:
    for codec in CODECS:
        topic = f"disk-{columns}-{codec}"
        world.kafka.create_topic(
            topic, 2, {"compression.type": codec.replace("none", "uncompressed")}
        )
        for each in world.ways.values():
            each.create_topic(topic, 2, {"compression": codec}, schema)
        world.fill(topic, columns, rows)
        turns.add(
            "disk",
            f"on the disk: {what}, compression {codec}",
            "MiB",
            {
                KAFKA: [world.kafka.bytes_of(topic) / 2**20],
                ISOLOG: [world.ours.bytes_of(topic) / 2**20],
            },
            note="Kafka: JSON" if schema else "",
        )
        world.delete(topic)


def memory(world: World, turns: Turns, renewed: Callable[[World], World]) -> None:
    """The greatest memory of brokers and of Spark's Python workers during writes and reads.

    ``renewed`` gives the world another Spark session, so that no worker has memory of the previous
    measurement.
    """
    found = {}
    for name in (CEILING, KAFKA, ISOLOG):
        world = renewed(world)
        topic = world.topic()
        bootstrap = world.ours.bootstrap
        format, options = {
            CEILING: ("ceiling", {}),
            KAFKA: ("kafka", world.kafka_options(topic=topic)),
            ISOLOG: ("isolog", {"bootstrap": bootstrap, "topic": topic}),
        }[name]
        with cached_rows(world) as frame:
            writer = frame.write.format(format).mode("append").options(**options)
            found[name] = _watched(world, name, writer.save)
        world.delete(topic)
    _tell(turns, "write of cached rows", found)
    topic = world.topic()
    world.fill(topic)
    found = {}
    for name in (CEILING, KAFKA, *world.ways):
        world = renewed(world)
        reader = {
            CEILING: world.ceiling("kafka"),
            KAFKA: world.read_kafka(topic),
            **{way: world.read_ours(topic, way) for way in world.ways},
        }[name]
        frame = reader.load()
        found[name] = _watched(world, name, lambda frame=frame: to_noop(frame))
    _tell(turns, "batch read", found)
    world.delete(topic)


@dataclass(frozen=True)
class _Most:
    """MiB of the broker, if one was used, and of Spark's Python workers together."""

    broker: float | None
    workers: float


def _watched(world: World, name: str, run: Callable[[], object]) -> _Most:
    brokers = {KAFKA: world.kafka, CEILING: None, **world.ways}
    broker = brokers[name]
    with (
        _most(lambda: _private([broker.process] if broker else [])) as by_broker,
        _most(lambda: _private(_workers())) as by_workers,
    ):
        run()
    return _Most(by_broker[0] / 2**20 if broker else None, by_workers[0] / 2**20)


def _tell(turns: Turns, what: str, found: Mapping[str, _Most]) -> None:
    brokers = {name: [each.broker] for name, each in found.items() if each.broker is not None}
    note = "its own, files that it has mapped left out"
    turns.add("memory", f"broker, {what}", "MiB", brokers, note=note)
    workers = {name: [each.workers] for name, each in found.items()}
    note = "Kafka's connector has none: it works in Spark's JVM"
    turns.add("memory", f"Spark's Python workers, {what}", "MiB", workers, note=note)


@contextmanager
def _most(measure: Callable[[], int]) -> Iterator[list[int]]:
    """The greatest of many measurements during the block."""
    most, over = [measure()], threading.Event()

    def watch() -> None:
        while not over.wait(_PAUSE_S):
            most[0] = max(most[0], measure())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        over.set()
        watching.join()


def _workers() -> list[psutil.Process]:
    """Spark's Python workers, and the daemon that forks them."""
    found = []
    for each in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in each.cmdline():
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found


def _private(processes: Iterable[psutil.Process]) -> int:
    total = 0
    for each in processes:
        try:
            facts = each.memory_info()
        except psutil.NoSuchProcess:
            continue
        total += facts.rss - facts.shared
    return total
