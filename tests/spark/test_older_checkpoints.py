"""Checkpoints that earlier releases wrote are read, and their queries go on where they stood.

``checkpoints/`` has what two of them left of a query over two partitions with ten records each, in
two micro-batches of 12 and 8 records. Only ids were made placeholders: the topic here is another.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

import spark_stream as isolog
from tests.spark.conftest import Queries
from tests.spark.test_stream_source import NUMBERS, add

KEPT = Path(__file__).parent / "checkpoints"


def restored(release: str, to: Path, topic: str, log: isolog.Log) -> None:
    """The checkpoint, as the release would have written it over this topic."""
    shutil.copytree(KEPT / release, to)
    ids = {"TOPIC-ID": log.describe(topic).id, "CLUSTER-ID": log.status().cluster_id}
    for path in (to / "offsets").iterdir():
        text = path.read_text().replace('"numbers"', f'"{topic}"')
        for placeholder, found in ids.items():
            text = text.replace(placeholder, found)
        path.write_text(text)


@pytest.mark.parametrize("release", sorted(each.name for each in KEPT.iterdir()))
@pytest.mark.parametrize("committed", [True, False], ids=["done", "planned"])
def test_a_checkpoint_of_an_earlier_release_goes_on(
    queries: Queries, log: isolog.Log, topic: str, tmp_path: Path, release: str, committed: bool
) -> None:
    """After its last micro-batch, or with that one, which was planned and not committed."""
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    for partition in range(2):
        add(log, topic, range(10 * partition, 10 * partition + 10), partition)
    restored(release, tmp_path / "checkpoint", topic, log)
    if not committed:
        (tmp_path / "checkpoint" / "commits" / "1").unlink()
    add(log, topic, range(20, 25), 1)
    batches: dict[int, list[int]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        batches[number] = sorted(row.n for row in batch.collect())

    query = queries.stream(topic).writeStream.foreachBatch(keep).trigger(availableNow=True)
    started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert started.awaitTermination(90)
    again = {} if committed else {1: [6, 7, 8, 9, 16, 17, 18, 19]}
    assert batches == {**again, 2: list(range(20, 25))}
