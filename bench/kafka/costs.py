"""What the same records take on the disk, and what memory their writing and reading takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import psutil
import pyarrow as pa

from bench.kafka.reads import WAYS
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
        world.ours.create_topic(topic, 2, {"compression": codec}, schema)
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


def memory(world: World, turns: Turns) -> None:
    """The most that brokers, and Spark's Python workers, have while they are written and read."""
    topic = world.topic()
    ours = {"bootstrap": world.ours.bootstrap, "topic": topic}
    with cached_rows(world) as frame:

        def write(format: str, options: Mapping[str, str]) -> Callable[[], object]:
            return lambda: frame.write.format(format).mode("append").options(**options).save()

        _watched(
            world,
            turns,
            "write of cached rows",
            {
                CEILING: write("ceiling", {}),
                KAFKA: write("kafka", world.kafka_options(topic=topic)),
                ISOLOG: write("isolog", ours),
            },
        )
    _watched(
        world,
        turns,
        "batch read",
        {
            CEILING: lambda: to_noop(world.ceiling("kafka").load()),
            KAFKA: lambda: to_noop(world.read_kafka(topic).load()),
            **{
                way: lambda options=options: to_noop(world.read_ours(topic, **options).load())
                for way, options in WAYS.items()
            },
        },
    )
    world.delete(topic)


def _watched(
    world: World, turns: Turns, what: str, contenders: Mapping[str, Callable[[], object]]
) -> None:
    of_brokers, of_workers = {}, {}
    for name, run in contenders.items():
        broker = {KAFKA: world.kafka.process, CEILING: None}.get(name, world.ours.process)
        with (
            _most(lambda broker=broker: _private([broker] if broker else [])) as by_broker,
            _most(lambda: _private(_workers())) as by_workers,
        ):
            run()
        if broker:
            of_brokers[name] = [by_broker[0] / 2**20]
        of_workers[name] = [by_workers[0] / 2**20]
    note = "its own, files that it has mapped left out"
    turns.add("memory", f"broker, {what}", "MiB", of_brokers, note=note)
    turns.add("memory", f"Spark's Python workers, {what}", "MiB", of_workers, note=note)


@contextmanager
def _most(measure: Callable[[], int]) -> Iterator[list[int]]:
    """The greatest of what is measured many times while the block runs."""
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
