"""The worker of a lake over a real broker: rows, offsets, schemas, partitions and errors."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import isolog
from isolog.errors import LakeIncomplete, LakeStopped, LakeUnavailable, UnknownLake
from spark_stream.cluster.lakes import LAKES, encode
from spark_stream.lake import steps
from spark_stream.lake.delta.actions import encoded, version_path
from spark_stream.lake.delta.table import first_actions
from spark_stream.lake.rounds import run_round
from spark_stream.lake.storage.stores import LocalStore
from spark_stream.lake_worker import driver
from spark_stream.lake_worker import worker as worker_module
from spark_stream.lake_worker.status import LakeState, cuts_of, state_of, topics_of
from spark_stream.lake_worker.worker import RoundResult
from spark_stream.steps import Step
from tests.brokers import broker_here
from tests.lake_worker.lake_tables import rows_of, table_of

NUMBERS = pa.schema([("n", pa.int32()), ("text", pa.string())])


@pytest.fixture
def log(broker):
    with isolog.connect(broker.address) as found:
        yield found


def numbers(first: int, count: int) -> pa.Table:
    values = range(first, first + count)
    return pa.table({"n": pa.array(values, pa.int32()), "text": [f"no. {n}" for n in values]})


def append(log: isolog.Log, topic: str, first: int, count: int, partition: int = 0) -> None:
    with log.producer() as producer:
        producer.append(topic, numbers(first, count), partition=partition).result(60)


def check(log: isolog.Log, root: Path, topic: str) -> pa.Table:
    """Check that the last version has the committed rows of the log, once, at their offsets."""
    in_log = log.read(topic, isolation="read_committed", metadata=True)
    in_table = rows_of(root, topic)
    for column in ("_partition", "_offset", "_timestamp", "n", "text"):
        assert in_table[column].to_pylist() == in_log[column].to_pylist(), column
    return in_table


def test_tables_have_the_committed_rows_at_their_offsets(log, tmp_path):
    log.create_topic("t", partitions=2, schema=NUMBERS)
    append(log, "t", 0, 100)
    append(log, "t", 100, 50, partition=1)
    producer = log.producer(transactional_id="x")
    with producer:
        producer.begin_transaction()
        producer.append("t", numbers(1000, 10), partition=0).result(60)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.append("t", numbers(2000, 10), partition=1).result(60)
        producer.commit_transaction()
    lake = log.create_lake("l", "t", tmp_path / "lake")
    isolog.LakeWorker(log, "l").run_once()
    rows = check(log, tmp_path / "lake", "t")
    assert rows.num_rows == 160
    assert rows.schema.field("n").type == pa.int64()  # the widest type
    bounds = log._topics.offsets("t", isolation="read_committed").offsets
    assert log.describe_lake("l").topics[0].tiered == bounds
    assert log.describe("t").lakes[0].location == lake.location


def test_a_topic_with_kafkas_columns_has_a_table(log, tmp_path):
    log.create_topic("k")
    with log.producer() as producer:
        producer.send("k", b"one", key="a", headers=[("h", b"1")]).result(60)
        producer.send("k", b"two").result(60)
    log.create_lake("l", "k", tmp_path)
    isolog.LakeWorker(log, "l").run_once()
    rows = rows_of(tmp_path, "k")
    assert rows["value"].to_pylist() == [b"one", b"two"]
    assert rows["key"].to_pylist() == [b"a", None]
    assert rows["_offset"].to_pylist() == [0, 1]
    assert rows["timestamp"].to_pylist() == rows["_timestamp"].to_pylist()
    assert rows["headers"].to_pylist()[0] == [{"key": "h", "value": b"1"}]


def test_a_cut_lists_versions_of_all_tables_that_divide_no_transaction(log, tmp_path):
    for name in ("a", "b"):
        log.create_topic(name, schema=NUMBERS)
    log.create_lake("l", ["a", "b"], tmp_path)
    worker = isolog.LakeWorker(log, "l")
    with log.producer(transactional_id="x") as producer:
        for at in range(5):
            producer.begin_transaction()
            for name in ("a", "b"):
                producer.append(name, numbers(at * 7, 7), partition=0).result(60)
            if at == 4:
                worker.run_once()  # the transaction is open
            producer.commit_transaction()
            worker.run_once()
    cuts: dict[int, dict[str, int]] = {}
    for row in _cuts(tmp_path):
        cuts.setdefault(row["cut"], {})[row["topic"]] = row["version"]
    assert len(cuts) >= 5
    for versions in cuts.values():
        counts = {name: rows_of(tmp_path, name, at).num_rows for name, at in versions.items()}
        assert counts["a"] == counts["b"]
        assert counts["a"] % 7 == 0


def _cuts(root: Path) -> list[dict[str, object]]:
    return [
        row
        for path in table_of(root, "_cuts").files
        for row in pq.read_table(root / "_cuts" / path).to_pylist()
    ]


def test_rounds_are_bounded_and_continue_without_a_pause(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    for at in range(20):
        append(log, "t", at * 100, 100)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l", round_bytes=4_000)
    results = [worker.round()]
    while results[-1].behind:
        results.append(worker.round())
    assert len(results) > 3
    assert check(log, tmp_path, "t").num_rows == 2_000


def test_a_single_run_ends_at_the_records_of_its_first_round(log, tmp_path, monkeypatch):
    """It does not follow the end of a busy topic."""
    log.create_topic("t", partitions=2, schema=NUMBERS)
    for at in range(20):
        append(log, "t", at * 100, 100)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l", round_bytes=4_000)
    real, results = worker.round, []

    def busy() -> RoundResult:
        results.append(real())
        append(log, "t", 2_000 * len(results), 2_000, partition=len(results) % 2)
        assert len(results) < 50
        return results[-1]

    with monkeypatch.context() as patched:
        patched.setattr(worker, "round", busy)
        worker.run_once()
    assert len(results) > 3
    assert rows_of(tmp_path, "t").num_rows == 2_000
    worker.run_once()
    assert check(log, tmp_path, "t").num_rows == 2_000 * (1 + len(results))


def note_effects(worker: isolog.LakeWorker, log: isolog.Log, monkeypatch) -> list[object]:
    """Return a list of the worker's steps, by their kind, and of its reports of offsets."""
    effects: list[object] = []
    carry_out, report = worker._driver._carry_out, log._lakes.record_progress

    def noted_step(step: Step[Any]) -> Any:
        effects.append(type(step))
        return carry_out(step)

    def noted_report(*args: Any, **kwargs: Any) -> None:
        effects.append("report")
        report(*args, **kwargs)

    monkeypatch.setattr(worker._driver, "_carry_out", noted_step)
    monkeypatch.setattr(log._lakes, "record_progress", noted_report)
    return effects


def test_merges_wait_for_new_records_and_for_the_report_of_offsets(log, tmp_path, monkeypatch):
    """A worker that stays behind merges in some rounds."""
    monkeypatch.setattr(worker_module, "_UNMERGED_ROUNDS_MAX", 6)
    log.create_topic("t", schema=NUMBERS)
    for at in range(40):
        append(log, "t", at * 100, 100)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l", round_bytes=4_000)
    effects, has_merged = note_effects(worker, log, monkeypatch), []
    while True:
        effects.clear()
        is_behind = worker.round().behind
        if steps.MergeFiles in effects:
            assert effects.index("report") < effects.index(steps.MergeFiles)
        if not is_behind:
            break
        has_merged.append(steps.MergeFiles in effects)
    assert len(has_merged) >= 6
    assert [at for at, each in enumerate(has_merged, 1) if each and at % 6] == []
    assert has_merged[5]
    while steps.MergeFiles not in effects:
        append(log, "t", 4_000, 10)
        assert not worker.round().behind
    check(log, tmp_path, "t")


def test_merges_of_a_round_are_bounded_and_the_next_round_continues(log, tmp_path):
    topics = ["a", "b", "c"]
    for name in topics:
        log.create_topic(name, schema=NUMBERS)
    log.create_lake("l", topics, tmp_path)
    worker = isolog.LakeWorker(log, "l")
    for at in range(4):
        if at == 3:
            size = max(
                file.size for each in topics for file in table_of(tmp_path, each).files.values()
            )
            log.alter_lake("l", file_bytes=6 * size)
        for name in topics:
            append(log, name, at * 10, 10)
        worker.round()
    assert [len(table_of(tmp_path, name).files) for name in topics] == [1, 1, 4]
    worker.round()
    assert [len(table_of(tmp_path, name).files) for name in topics] == [1, 1, 1]


def test_merges_without_a_commit_are_not_counted(log, tmp_path):
    """Another worker has merged the same files before."""
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker, other = isolog.LakeWorker(log, "l"), isolog.LakeWorker(log, "l")
    for at in range(4):
        append(log, "t", at * 10, 10)
        worker._check()
        worker._driver.run(run_round(worker._tables))
    merge = worker._driver._merge

    def late(*given: Any) -> Any:
        found = merge(*given)
        other.run_once()
        return found

    worker._driver._merge = late
    worker._merge()
    assert (worker.counts.merged_files, other.counts.merged_files) == (0, 4)
    assert len(table_of(tmp_path, "t").files) == 1


def test_offsets_of_removed_files_of_other_programs_are_dropped(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    for at in range(2):
        append(log, "t", at * 10, 10)
        worker.run_once()
    first, second = table_of(tmp_path, "t").files.values()
    for files in ([first, second], [second]):
        found = worker._driver._carry_out(steps.FindRanges("t", files))
        assert found == worker._driver._known_ranges["t"]
        assert found.keys() == {each.path for each in files}
    assert found[second.path] == {0: (10, 19)}


def test_partitions_and_columns_are_added_between_rounds(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 10)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    worker.run_once()
    log.alter_topic("t", partitions=2, schema=NUMBERS.append(pa.field("more", pa.float32())))
    append(log, "t", 10, 10, partition=1)
    with log.producer() as producer:
        rows = numbers(20, 10).append_column("more", pa.array([1.5] * 10, pa.float32()))
        producer.append("t", rows, partition=0).result(60)
    worker.run_once()
    rows = check(log, tmp_path, "t")
    assert rows["more"].to_pylist() == [None] * 10 + [1.5] * 10 + [None] * 10


def test_values_of_a_column_that_is_added_during_a_round_are_copied(log, tmp_path, monkeypatch):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    describe = worker._driver._describe
    described = []

    def before_an_alteration() -> dict[str, steps.TopicState]:
        found = describe()
        if not described:
            log.alter_topic("t", schema=NUMBERS.append(pa.field("more", pa.float32())))
            with log.producer() as producer:
                rows = numbers(0, 10).append_column("more", pa.array([1.5] * 10, pa.float32()))
                producer.append("t", rows).result(60)
        described.append(found)
        return found

    monkeypatch.setattr(worker._driver, "_describe", before_an_alteration)
    worker.run_once()
    assert check(log, tmp_path, "t")["more"].to_pylist() == [1.5] * 10
    assert len(described) > 1


def test_values_of_a_column_that_is_added_before_a_later_cut_are_copied(log, tmp_path, monkeypatch):
    """The cut is above the offsets that were looked up, because two transactions overlap."""
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    find_cut, cuts = driver.cut_of, list[object]()
    with (
        log.producer(transactional_id="one") as one,
        log.producer(transactional_id="two") as two,
        log.producer() as plain,
    ):

        def after_an_alteration(*given: Any, **options: Any) -> Any:
            if not cuts:
                log.alter_topic("t", schema=NUMBERS.append(pa.field("more", pa.float32())))
                rows = numbers(30, 10).append_column("more", pa.array([1.5] * 10, pa.float32()))
                plain.append("t", rows).result(60)
                two.append("t", numbers(40, 10)).result(60)
                two.commit_transaction()
            cuts.append(find_cut(*given, **options))
            return cuts[-1]

        one.begin_transaction()
        one.append("t", numbers(0, 10)).result(60)
        two.begin_transaction()
        two.append("t", numbers(10, 10)).result(60)
        one.append("t", numbers(20, 10)).result(60)
        one.commit_transaction()
        monkeypatch.setattr(driver, "cut_of", after_an_alteration)
        worker.run_once()
    assert cuts[0] == {("t", 0): 50}
    more = [None] * 30 + [1.5] * 10 + [None] * 10
    assert check(log, tmp_path, "t")["more"].to_pylist() == more


def test_small_files_are_merged(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    for at in range(9):
        append(log, "t", at * 10, 10)
        worker.run_once()
    files = table_of(tmp_path, "t").files
    assert len(files) < 5
    assert sum(path.startswith("merged-") for path in files) not in (0, len(files))
    assert len({str(pq.read_schema(tmp_path / "t" / path)) for path in files}) == 1
    assert check(log, tmp_path, "t").num_rows == 90


def test_a_dropped_lake_ends_its_worker_and_another_of_its_name_is_left_alone(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    waits = []

    def drop(seconds: float) -> bool:
        waits.append(seconds)
        log.drop_lake("l")
        log.create_lake("l", "t", tmp_path, check=False)
        return False

    worker.run(drop)
    assert len(waits) == 1
    with pytest.raises(UnknownLake):
        isolog.LakeWorker(log, "other")


def test_the_status_shows_a_missing_table_and_an_older_copy(log, tmp_path):
    """Without a run of the worker: readers fail too."""
    log.create_topic("t", schema=NUMBERS)
    root, older, newer = tmp_path / "lake", tmp_path / "older", tmp_path / "newer"
    log.create_lake("l", "t", root)
    append(log, "t", 0, 10)
    isolog.LakeWorker(log, "l").run_once()
    shutil.copytree(root, older)
    append(log, "t", 10, 10)
    isolog.LakeWorker(log, "l").run_once()
    lake = log.describe_lake("l")
    assert [each.problem for each in topics_of(log, lake)] == [None]
    for replace_by, fault in ((None, "is missing"), (older, "is an older copy")):
        root.rename(newer)
        if replace_by is not None:
            shutil.copytree(replace_by, root)
        (found,) = topics_of(log, lake)
        assert isinstance(found.problem, LakeIncomplete)
        assert fault in found.problem.message
        assert state_of(lake, [found], lake.recorded_ms) is LakeState.STOPPED
        if replace_by is None:
            with pytest.raises(LakeIncomplete, match="_cuts"):
                list(cuts_of(lake))
        shutil.rmtree(root, ignore_errors=True)
        newer.rename(root)


def test_a_round_is_repeated_if_another_worker_copied_records_that_are_removed(
    log, tmp_path, monkeypatch
):
    """As after a suspension. It is no loss, and no stop."""
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 10)
    log.create_lake("l", "t", tmp_path)
    late = isolog.LakeWorker(log, "l")
    written = late._driver._write_files

    def suspended(*given: Any) -> Any:
        monkeypatch.undo()
        isolog.LakeWorker(log, "l").run_once()
        log.trim("t", "latest")
        return written(*given)

    monkeypatch.setattr(late._driver, "_write_files", suspended)
    late.run_once()
    assert log.describe_lake("l").stopped == ""
    assert rows_of(tmp_path, "t").num_rows == 10


def test_a_topic_may_be_deleted_between_two_steps_of_a_cut(log, tmp_path, monkeypatch):
    for name in ("t", "u"):
        log.create_topic(name, schema=NUMBERS)
        append(log, name, 0, 10)
    log.create_lake("l", ["t", "u"], tmp_path)
    worker = isolog.LakeWorker(log, "l")
    limits = worker._driver._limits

    def deleted(*given: Any) -> Any:
        monkeypatch.undo()
        log.delete_topic("u")
        return limits(*given)

    monkeypatch.setattr(worker._driver, "_limits", deleted)
    worker.run_once()
    assert check(log, tmp_path, "t").num_rows == 10


def test_a_filter_of_pyarrow_on_booleans_finds_their_rows(log, tmp_path):
    """deltalake takes a column without bounds for one of nulls."""
    log.create_topic("t", schema=pa.schema([("ok", pa.bool_())]))
    with log.producer() as producer:
        producer.append("t", pa.table({"ok": [True, False, None]}), partition=0).result(60)
    log.create_lake("l", "t", tmp_path)
    isolog.LakeWorker(log, "l").run_once()
    table = deltalake.DeltaTable(tmp_path / "t")
    assert table.to_pyarrow_table(filters=[("ok", "=", True)]).num_rows == 1


def test_a_damaged_file_is_named_by_a_merge(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    for at in range(3):
        append(log, "t", at * 10, 10)
        worker.run_once()
    damaged = next(iter((tmp_path / "t").glob("*.parquet")))
    data = bytearray(damaged.read_bytes())
    data[4:200] = bytes(196)
    damaged.write_bytes(data)
    append(log, "t", 30, 10)
    with pytest.raises(LakeUnavailable, match=f"file {damaged.name} of the table t cannot"):
        worker.run_once()


def test_a_running_worker_follows_an_altered_lake(log, tmp_path):
    """A removed topic's table stays, and continues when the topic is added again."""
    for name in ("t", "u"):
        log.create_topic(name, schema=NUMBERS)
        append(log, name, 0, 10)
    log.create_lake("l", ["t", "u"], tmp_path)
    worker = isolog.LakeWorker(log, "l")
    worker.run_once()
    log.alter_lake("l", topics="u", freshness=2)
    for name in ("t", "u"):
        append(log, name, 10, 10)
    worker.run_once()
    assert worker.counts.freshness_s == 2
    assert rows_of(tmp_path, "t").num_rows == 10
    assert check(log, tmp_path, "u").num_rows == 20
    log.alter_lake("l", topics=["t", "u"])
    append(log, "u", 20, 10)
    for each in (worker, isolog.LakeWorker(log, "l")):
        each.run_once()
        assert check(log, tmp_path, "t").num_rows == 20
        assert check(log, tmp_path, "u").num_rows == 30


def test_a_deleted_topic_is_removed_from_a_lake_and_a_new_one_of_its_name_is_refused(log, tmp_path):
    for name in ("t", "u"):
        log.create_topic(name, schema=NUMBERS)
        append(log, name, 0, 10)
    log.create_lake("l", ["t", "u"], tmp_path)
    worker = isolog.LakeWorker(log, "l")
    worker.run_once()
    log.delete_topic("t")
    log.alter_lake("l", topics="u")
    worker.run_once()
    log.create_topic("t", schema=NUMBERS)
    with pytest.raises(LakeStopped, match="table t"):
        log.alter_lake("l", topics=["t", "u"])
    assert [each.name for each in log.describe_lake("l").topics] == ["u"]


def test_the_other_topics_continue_beside_one_that_was_created_again(log, tmp_path):
    for name in ("t", "u"):
        log.create_topic(name, schema=NUMBERS)
        append(log, name, 0, 10)
    log.create_lake("l", ["t", "u"], tmp_path)
    worker = isolog.LakeWorker(log, "l")
    worker.run_once()
    log.delete_topic("t")
    append(log, "u", 10, 10)
    worker.run_once()
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 100, 20)
    append(log, "u", 20, 10)
    for each in (worker, isolog.LakeWorker(log, "l")):
        each.run_once()
    assert rows_of(tmp_path, "t").num_rows == 10
    assert check(log, tmp_path, "u").num_rows == 30
    status = {each.topic: each for each in topics_of(log, log.describe_lake("l"))}
    assert "was deleted" in str(status["t"].problem)
    assert (status["t"].lag, status["u"].problem, status["u"].lag) == (None, None, 0)


def test_a_lake_whose_topics_were_all_deleted_stops(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    log.delete_topic("t")
    with pytest.raises(LakeStopped, match="all topics of the lake were deleted"):
        isolog.LakeWorker(log, "l").run()


def test_cuts_are_merged_and_listed(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    for at in range(9):
        append(log, "t", at * 10, 10)
        worker.run_once()
    assert len(table_of(tmp_path, "_cuts").files) < 5
    cuts = list(cuts_of(log.describe_lake("l")))
    assert [cut.number for cut in cuts] == list(reversed(range(len(cuts))))
    assert len(cuts) >= 9


def test_last_cuts_are_read_from_the_last_files(log, tmp_path, monkeypatch):
    log.create_topic("t", schema=NUMBERS)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    for at in range(9):
        append(log, "t", at * 10, 10)
        worker.run_once()
    opened = []
    open_read = LocalStore.open_read
    monkeypatch.setattr(
        LocalStore, "open_read", lambda self, path: opened.append(path) or open_read(self, path)
    )
    last = next(cuts_of(log.describe_lake("l")))
    assert len(table_of(tmp_path, "_cuts").files) > 1
    assert len([path for path in opened if path.startswith("_cuts/")]) == 1
    assert last.entries[0].offsets == {0: 90}


def test_a_worker_stops_at_a_folder_with_another_table(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    path = tmp_path / "t" / version_path(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(encoded(first_actions("t", pa.schema([("x", pa.int64())]), "id", {}, 0)))
    with pytest.raises(LakeStopped, match="another program"):
        log.create_lake("l", "t", tmp_path)
    log.create_lake("l", "t", tmp_path, check=False)
    with pytest.raises(LakeStopped, match="another program"):
        isolog.LakeWorker(log, "l").run()


def test_a_worker_stops_where_retention_was_faster(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 10)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    worker.run_once()
    append(log, "t", 10, 10)
    log.trim("t", 15)
    with pytest.raises(LakeStopped, match="retention removed records"):
        worker.run()


def test_a_location_that_refuses_is_reported_and_tried_again(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 10)
    place = tmp_path / "lake"
    place.write_text("a file, not a folder")
    with pytest.raises(LakeUnavailable, match="refused an operation: File exists"):
        log.create_lake("l", "t", place)
    log.create_lake("l", "t", place, check=False)
    worker = isolog.LakeWorker(log, "l")
    with pytest.raises(LakeUnavailable, match="refused an operation: Not a directory"):
        worker.run_once()
    waits = []

    def mend(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 1:
            place.unlink()
        return len(waits) == 2

    worker.run(mend)
    assert check(log, place, "t").num_rows == 10


def test_a_full_disk_is_reported_and_no_row_is_lost(log, tmp_path):
    """With a small file system in memory, which needs the rights of root."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        log.create_topic("t", schema=NUMBERS)
        log.create_lake("l", "t", place)
        worker = isolog.LakeWorker(log, "l")
        append(log, "t", 0, 10)
        worker.run_once()
        append(log, "t", 10, 100_000)
        for _ in range(2):
            with pytest.raises(LakeUnavailable, match="No space left on device"):
                worker.run_once()
        append(log, "t", 100_010, 10)
        assert rows_of(place, "t").num_rows == 10
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        worker.run_once()
        assert check(log, place, "t").num_rows == 100_020
        assert not list(place.rglob(".isolog-*"))
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("is_running", [False, True])
def test_an_unmounted_location_stops_the_worker_and_stays_empty(log, tmp_path, is_running):
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 100)
    log.create_lake("l", "t", tmp_path / "lake")
    worker = isolog.LakeWorker(log, "l")
    worker.run_once()
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    (tmp_path / "lake").mkdir()  # the place of the disk
    append(log, "t", 100, 10)
    if not is_running:
        worker = isolog.LakeWorker(log, "l")
    with pytest.raises(LakeStopped, match="is not in the location of the lake"):
        worker.run_once()
    assert log.describe_lake("l").topics[0].tiered == {0: 100}
    assert "is not in the location" in log.describe_lake("l").stopped
    assert not list((tmp_path / "lake").iterdir())
    (tmp_path / "lake").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "lake")
    isolog.LakeWorker(log, "l").run_once()
    assert check(log, tmp_path / "lake", "t").num_rows == 110
    assert log.describe_lake("l").stopped == ""


def test_aborted_records_are_no_lag_after_a_round(log, tmp_path):
    """The lag counts offsets, and the table's offset passes them without a row."""
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 10)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    worker.run_once()
    with log.producer(transactional_id="x") as producer:
        producer.begin_transaction()
        producer.append("t", numbers(10, 10), partition=0).result(60)
        producer.abort_transaction()
    lags = []
    for _ in range(2):
        lake = log.describe_lake("l")
        (found,) = topics_of(log, lake)
        lags.append((found.lag, state_of(lake, [found], lake.recorded_ms)))
        worker.run_once()
    assert lags[0][0] >= 10
    assert lags[1] == (0, LakeState.UP_TO_DATE)
    assert worker.counts.freshness.records == 0
    assert check(log, tmp_path, "t").num_rows == 10


def test_files_that_were_cleaned_up_before_their_version_are_not_relied_upon(log, tmp_path):
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 100)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    put = worker._driver._put

    def suspended_put(path: str, data: bytes) -> bool:
        for each in (tmp_path / "t").glob("*.parquet"):
            each.unlink()
        return put(path, data)

    worker._driver._put = suspended_put
    with pytest.raises(LakeStopped, match="has files that were removed"):
        worker.run_once()
    with pytest.raises(LakeStopped, match="has files that were removed"):
        isolog.LakeWorker(log, "l").run_once()
    assert not any(log.describe_lake("l").topics[0].tiered.values())


@pytest.mark.rule(
    "an offset is recorded after the files of its table were found with their sizes",
    "lake/versions.py",
)
@pytest.mark.parametrize("left", [0, 1_000])
def test_truncated_files_are_not_relied_upon(log, tmp_path, left):
    """As after a crash of the host of a file server."""
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 1_000)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    put = worker._driver._put

    def crash(path: str, data: bytes) -> bool:
        for each in (tmp_path / "t").glob("*.parquet"):
            assert each.stat().st_size >= left
            os.truncate(each, left)
        return put(path, data)

    worker._driver._put = crash
    for each in (worker, isolog.LakeWorker(log, "l")):
        with pytest.raises(LakeStopped, match="has files that were removed or truncated"):
            each.run_once()
    assert not any(log.describe_lake("l").topics[0].tiered.values())


def test_an_empty_version_stops_and_its_records_are_copied_again_without_it(log, tmp_path):
    """As after a crash of the host of a file server."""
    log.create_topic("t", schema=NUMBERS)
    append(log, "t", 0, 100)
    log.create_lake("l", "t", tmp_path)
    worker = isolog.LakeWorker(log, "l")
    put, version = worker._driver._put, f"t/{version_path(1)}"
    worker._driver._put = lambda path, data: put(path, b"" if path == version else data)
    for each in (worker, isolog.LakeWorker(log, "l")):
        with pytest.raises(LakeStopped, match="the file is empty") as at:
            each.run_once()
        assert f"delete {version_path(1)}" in at.value.hint
    assert not any(log.describe_lake("l").topics[0].tiered.values())
    (tmp_path / version).unlink()
    isolog.LakeWorker(log, "l").run_once()
    assert check(log, tmp_path, "t").num_rows == 100


def test_a_worker_of_a_lake_that_overlaps_another_stops(tmp_path):
    """Two creations that crashed left both. One of them is dropped."""
    with broker_here(tmp_path) as broker, isolog.connect(broker.address) as log:
        log.create_topic("t", schema=NUMBERS)
        append(log, "t", 0, 10)
        made = log.create_lake("l", "t", tmp_path / "lakes")
        other = replace(made, name="m", id="other", location=f"{tmp_path}/lakes/deep")
        assert broker.core.store.put(LAKES + "m", encode(other), 0)
        for name in ("l", "m"):
            with pytest.raises(LakeStopped, match="overlaps that of another lake"):
                isolog.LakeWorker(log, name).run_once()
        assert not list((tmp_path / "lakes").iterdir())
        assert "Drop one of both" in log.describe_lake("l").stopped_hint
        log.drop_lake("m")
        isolog.LakeWorker(log, "l").run_once()
        assert check(log, tmp_path / "lakes", "t").num_rows == 10


def test_a_lake_moves_with_its_tables(log, broker, tmp_path):
    """Records that only the tables have are read there. A running worker follows."""
    log.create_topic("t", partitions=2, schema=NUMBERS)
    append(log, "t", 0, 30)
    append(log, "t", 30, 10, partition=1)
    log.create_lake("l", "t", tmp_path / "old")
    worker = isolog.LakeWorker(log, "l")
    worker.run_once()
    whole = log.read("t", isolation="read_committed")
    log.trim("t", {0: 20})
    assert log.read("t") == whole
    older = shutil.copytree(tmp_path / "old", tmp_path / "older")
    append(log, "t", 40, 10)
    worker.run_once()
    with pytest.raises(LakeIncomplete, match="is an older copy"):
        log.alter_lake("l", location=older)
    with pytest.raises(LakeIncomplete, match="is missing"):
        log.alter_lake("l", location=tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
    new = shutil.copytree(tmp_path / "old", tmp_path / "new")
    (cut_short, *_) = sorted((new / "t").glob("*.parquet"))
    content = cut_short.read_bytes()
    cut_short.write_bytes(content[:-1])
    with pytest.raises(LakeIncomplete, match=f"1 files .* truncated at {new}.*{cut_short.name}"):
        log.alter_lake("l", location=new)
    assert log.describe_lake("l").location == str(tmp_path / "old")
    cut_short.write_bytes(content)
    assert log.alter_lake("l", location=f"{new}/").location == str(new)
    shutil.rmtree(tmp_path / "old")
    append(log, "t", 50, 10)
    worker.run_once()
    assert rows_of(new, "t").num_rows == 60
    assert sorted(log.read("t")["n"].to_pylist()) == list(range(60))
    assert not (tmp_path / "old").exists()
    with isolog.connect(broker.address) as other:
        assert other.read("t").num_rows == 60
