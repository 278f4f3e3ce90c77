"""20 typed columns: isolog has columns, Kafka has JSON, which Spark parses (``from_json``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.kafka.reads import contenders
from bench.kafka.turns import Turns
from bench.kafka.world import World, to_noop
from bench.records import THREE_DDL, TYPED, TYPED_DDL

SHARE = 4
"""JSON is slow: this many times fewer rows than elsewhere."""


def run(world: World, turns: Turns) -> None:
    """Batch reads to ``noop`` of three columns, and of all."""
    rows = world.rows // SHARE
    topic = world.topic(schema=TYPED)
    world.fill(topic, "typed", rows)

    for name, ddl in (("3 of 20 typed columns", THREE_DDL), ("20 typed columns", TYPED_DDL)):
        _read(world, turns, topic, rows, name, ddl)
    world.delete(topic)


def _read(world: World, turns: Turns, topic: str, rows: int, name: str, ddl: str) -> None:
    def parsed(options: Mapping[str, str]) -> DataFrame:
        text = F.col("value").cast("string")
        frame = world.read_kafka(topic, **options).load()
        return frame.select(F.from_json(text, ddl).alias("row")).select("row.*")

    def columns(way: str) -> DataFrame:
        return world.read_ours(topic, way).schema(ddl).load()

    _check([parsed({}), *map(columns, world.ways)], rows)
    readers = contenders(
        world,
        lambda frame: rows / to_noop(frame),
        lambda: world.ceiling("typed", rows).schema(ddl).load(),
        parsed,
        columns,
    )
    note = "Kafka: JSON, from_json"
    turns.take("typed", f"batch read of {name}", "rows/s", readers, rows=rows, note=note)


def _check(frames: Sequence[DataFrame], rows: int) -> None:
    """Check that all readers get the same rows, so that none is fast by skipping rows."""
    amount = F.round(F.sum("amount_0"), 1)
    sums = {frame.agg(F.count("name_0"), F.sum("count_0"), amount).first() for frame in frames}
    assert len(sums) == 1, sums
    assert sums.pop()[0] == rows
