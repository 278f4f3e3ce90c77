"""A process uses only the log that its query was planned with, on the planner's host."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.types import LongType, StructField, StructType

import isolog
from isolog.errors import InvalidOption, UnknownLog, UnknownTopic, WrongCluster
from spark_stream.datasource.options import sink_options, source_options
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.reading.reader import RangeReader
from spark_stream.datasource.reading.stream_reader import IsologStreamReader
from spark_stream.datasource.spark import session as sessions
from spark_stream.datasource.spark.place import Place, directory
from spark_stream.datasource.spark.session import check_one_log, locate, session
from spark_stream.datasource.values.offsets import Range
from spark_stream.datasource.writing.task import TaskResult, TaskWriter
from spark_stream.datasource.writing.writer import IsologStreamWriter
from tests.conftest import stop_broker
from tests.support import BrokerProcess, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NUMBERS = pa.schema([("n", pa.int64())])
SCHEMA = StructType([StructField("n", LongType())])


def make_log(path: Path) -> Place:
    """A log with a topic ``t`` of three rows."""
    with isolog.connect(path=path) as log:
        log.create_topic("t", schema=NUMBERS)
        with log.producer() as producer:
            producer.append("t", pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())}))
    return directory(str(path))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """Two independent logs, as two hosts could have at one path."""
    folder = tmp_path_factory.mktemp("logs")
    paths = [folder / "a", folder / "b"]
    yield make_log(paths[0]), make_log(paths[1])
    for path in paths:
        stop_broker(path)


def options(place: Place) -> dict[str, str]:
    return {"path": str(place.path)}


def test_place_for_tasks_has_the_cluster_id(logs: tuple[Place, Place]) -> None:
    found = [locate(each) for each in logs]
    assert len({each.cluster_id for each in found}) == 2
    assert session(found[0]).cluster_id == found[0].cluster_id


def test_task_uses_the_brokers_that_its_driver_found(shared: BrokerProcess) -> None:
    """The brokers of ``bootstrap`` died after the query was planned."""
    found = locate(Place(bootstrap=shared.address))
    assert found.brokers == (shared.address,)
    dead = f"127.0.0.1:{free_port()}"
    of_task = session(replace(found, bootstrap=dead, timeout_s=30.0))
    assert of_task.cluster_id == found.cluster_id


def test_a_task_that_finds_another_log_reads_nothing(logs: tuple[Place, Place]) -> None:
    here, other = logs
    planned = Planner.of(source_options({**options(here), "subscribe": "t"}))
    topic_id = planned.describe()["t"].id
    elsewhere = replace(planned.options.place, path=other.path)
    reader = RangeReader(replace(planned.options, place=elsewhere), SCHEMA)
    with pytest.raises(WrongCluster, match="another log"):
        next(reader.read((Range("t", topic_id, 0, 0, 3),)))
    reader = RangeReader(planned.options, SCHEMA)
    assert sum(batch.num_rows for batch in reader.read((Range("t", topic_id, 0, 0, 3),))) == 3


def test_a_task_that_finds_another_log_writes_nothing(logs: tuple[Place, Place]) -> None:
    here, other = logs
    given = {**options(here), "topic": "t", "transactional": "false"}
    writer = TaskWriter(sink_options(given), SCHEMA).prepare()
    elsewhere = replace(writer.options.place, path=other.path)
    stray = replace(writer, options=replace(writer.options, place=elsewhere))
    with pytest.raises(WrongCluster):
        stray.write(iter([pa.record_batch({"n": pa.array([4], pa.int64())})]))
    for each in logs:
        with isolog.connect(path=str(each.path)) as log:
            assert log.read("t").num_rows == 3


def test_a_commit_of_tasks_of_another_log_commits_nothing(logs: tuple[Place, Place]) -> None:
    here, other = (locate(each) for each in logs)
    writer = IsologStreamWriter(sink_options({**options(logs[0]), "topic": "t"}), SCHEMA)
    mine, stray = TaskResult(cluster_id=here.cluster_id), TaskResult(cluster_id=other.cluster_id)
    writer.commit([mine, None, TaskResult()], 0)
    with pytest.raises(WrongCluster, match=f"{other.cluster_id}.*{here.cluster_id}"):
        writer.commit([mine, stray], 0)
    check_one_log(session(here), [None, here.cluster_id])


def test_failed_abort_does_not_hide_the_first_error(
    logs: tuple[Place, Place], caplog: pytest.LogCaptureFixture
) -> None:
    writer = IsologStreamWriter(sink_options({**options(logs[0]), "topic": "t"}), SCHEMA)
    gone = replace(writer._task.options.place, host="another-boot-id")
    writer._task = replace(writer._task, options=replace(writer._task.options, place=gone))
    writer.abort([None], 0)
    assert "cannot abort the written rows" in caplog.text


def test_checkpoint_of_another_log_is_not_reported_as_a_deleted_topic(
    logs: tuple[Place, Place],
) -> None:
    readers = [
        IsologStreamReader(source_options({**options(each), "subscribe": "t"}), SCHEMA)
        for each in logs
    ]
    start = readers[0].initialOffset()
    end = readers[0].latestOffset(start, readers[0].getDefaultReadLimit())
    cluster_id = session(locate(logs[0])).cluster_id
    assert start["t"]["cluster"] == end["t"]["cluster"] == cluster_id
    assert len(readers[0].partitions(start, end)) == 1
    with pytest.raises(WrongCluster, match="the checkpoint: topic 't' belongs to the log"):
        readers[1].latestOffset(end, readers[1].getDefaultReadLimit())
    with pytest.raises(WrongCluster):
        readers[1].partitions(start, end)
    for place, said in zip(
        logs, (None, "startingOffsets: topic 't' belongs to the log"), strict=True
    ):
        given = {**options(place), "subscribe": "t", "startingOffsets": json.dumps(end)}
        reader = IsologStreamReader(source_options(given), SCHEMA)
        if said is None:
            assert reader.initialOffset() == end
        else:
            with pytest.raises(WrongCluster, match=said):
                reader.initialOffset()


def test_a_sinks_checkpoint_belongs_to_one_log(logs: tuple[Place, Place], tmp_path: Path) -> None:
    def sink(place: Place, checkpoint: str) -> IsologStreamWriter:
        given = {**options(place), "topic": "t", "checkpointLocation": checkpoint}
        return IsologStreamWriter(sink_options(given), SCHEMA)

    checkpoint = tmp_path / "checkpoint"
    sink(logs[0], str(checkpoint))  # Spark has not created it, so it cannot have a note
    assert not checkpoint.exists()
    checkpoint.mkdir()
    for text in (str(checkpoint), f"file:{checkpoint}", f"file://{checkpoint}"):
        sink(logs[0], text)
        with pytest.raises(WrongCluster, match="is of a query that writes to the log"):
            sink(logs[1], text)
    assert [each.name for each in checkpoint.iterdir()] == ["isolog.json"]
    (checkpoint / "isolog.json").write_text("{")
    sink(logs[1], str(checkpoint))
    sink(logs[0], "hdfs://somewhere/checkpoint")
    with isolog.connect(path=str(logs[1].path)) as log:
        assert log.read("t").num_rows == 3


def test_a_task_on_another_host_refuses_a_directory_with_the_remedy(
    logs: tuple[Place, Place],
) -> None:
    elsewhere = replace(locate(logs[0]), host="another-boot-id")
    with pytest.raises(InvalidOption, match="runs on another host") as caught:
        session(elsewhere)
    assert "--listen" in caught.value.hint
    assert "bootstrap" in caught.value.hint


@pytest.mark.parametrize("in_worker", [False, True])
def test_only_workers_of_spark_freeze_objects(
    in_worker: bool, logs: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(sessions, "freeze_survivors", lambda: frozen.append(True))
    monkeypatch.setattr(sessions, "_sessions", {})
    if in_worker:
        monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    session(logs[0])
    assert frozen == [True] * in_worker


def test_reading_a_wrong_path_creates_no_log(tmp_path: Path) -> None:
    typo = tmp_path / "dta"
    given = source_options({"path": str(typo), "subscribe": "t"})
    for plan in (Planner.of, lambda options: IsologStreamReader(options, SCHEMA)):
        with pytest.raises(UnknownLog, match=f"there is no log at {typo}") as caught:
            plan(given)
        assert "createTopic=true" in caught.value.hint
    assert not typo.exists()


def test_sink_creates_a_log_only_with_create_topic(log_dir: Path) -> None:
    given = {"path": str(log_dir), "topic": "t"}
    with pytest.raises(UnknownLog, match="there is no log"):
        TaskWriter(sink_options(given), SCHEMA).prepare()
    assert not log_dir.exists()
    made = TaskWriter(sink_options({**given, "createTopic": "true"}), SCHEMA).prepare()
    assert made.options.place.cluster_id is not None
    with pytest.raises(UnknownTopic):
        TaskWriter(sink_options({**given, "topic": "other"}), SCHEMA).prepare()


def test_new_queries_find_a_log_that_was_created_again(log_dir: Path) -> None:
    """A planner's process is reused with its connections, but plans with the present log."""
    place = make_log(log_dir)
    before = locate(place)
    stop_broker(log_dir)
    shutil.rmtree(log_dir)
    with pytest.raises(UnknownLog):
        locate(place)
    make_log(log_dir)
    after = locate(place)
    assert before.cluster_id != after.cluster_id
    with pytest.raises(WrongCluster):
        session(before).topics.describe("t")
