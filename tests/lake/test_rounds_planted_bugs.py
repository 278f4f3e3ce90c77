"""Bugs that are planted in the scripts of a lake, each in one line, and found by the simulation."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from spark_stream.errors import LakeStopped
from spark_stream.lake import cleaning, expiry, merging, retention, rounds, versions
from tests.lake.test_rounds import simulate

SEEDS = 100
FIRST_SEEDS = {
    "versions_of_late_puts_count_as_read_before_they_expired": 260,
    "recent_cuts_expire": 385,
}
"""The first seed of the search for a rare bug."""

BUGS = [
    pytest.param(
        rounds,
        "        if have != {partition: change.starts[partition] for partition in ends}:\n"
        "            return False\n",
        "",
        id="a_commit_ignores_where_the_table_ends",
    ),
    pytest.param(
        rounds,
        "if all(at is not None and at >= ends[partition] for",
        "if any(at is not None and at >= ends[partition] for",
        id="one_committed_partition_counts_as_all",
    ),
    pytest.param(
        rounds,
        "        if any(table.offset(topic_id, p) != at for p, at in cut[name].items()):\n"
        "            return False\n",
        "",
        id="a_cut_is_recorded_for_tables_beyond_it",
    ),
    pytest.param(
        rounds,
        "topic_id, table.moved_at, cut",
        "topic_id, table.moved_at - 1, cut",
        id="a_cut_names_the_version_before",
    ),
    pytest.param(
        rounds,
        "for p, at in ends.items() if at != have[p]}",
        "for p, at in [*ends.items()][:1]}",
        id="a_commit_moves_one_partition_only",
    ),
    pytest.param(
        rounds,
        "log_start if (at := starts[name][p]) is None else at",
        "log_start",
        id="files_start_at_the_log_start",
    ),
    pytest.param(
        rounds,
        "{p: (first, ends[p]) for",
        "{p: (first, ends[p] + 1) for",
        id="files_have_a_record_beyond_the_cut",
    ),
    pytest.param(
        rounds,
        "        actions += [Action(add=each) for each in change.files]\n",
        "        actions += [Action(add=each) for each in change.files[:1]]\n",
        id="a_commit_drops_the_files_of_a_partition",
    ),
    pytest.param(
        rounds,
        "        actions += _schema_change(table, table_schema(topic.name, topic.schema))\n",
        "",
        id="a_new_column_is_not_in_the_tables_schema",
    ),
    pytest.param(
        rounds,
        "topic.schema_version for",
        "topic.schema_version + 1 for",
        id="records_lose_a_column_that_was_added_before_the_cut",
    ),
    pytest.param(
        rounds,
        "cuts.number(lake.application) + 1",
        "cuts.number(lake.application) + 2",
        id="a_number_of_a_cut_is_skipped",
    ),
    pytest.param(
        rounds,
        "    if any(name not in cut or "
        "cut[name].keys() != lower[name].keys() for name in topics):\n"
        "        return False  # a topic got columns or partitions, or was deleted\n",
        "    cut = {n: {p: cut[n][p] for p in lower[n]} for n in topics}\n",
        id="a_partition_that_was_added_meanwhile_is_ignored",
    ),
    pytest.param(
        merging,
        "        if any(table.files.get(each.path) != each for each in group):\n"
        "            return 0\n",
        "",
        id="a_merge_adds_files_that_another_one_merged",
    ),
    pytest.param(
        merging,
        "actions.append(Action(remove=removed))",
        "actions += [Action(remove=removed)] * (each is not group[0])",
        id="a_merge_keeps_a_file_that_it_merged",
    ),
    pytest.param(
        versions,
        "        if table.checked + 1 >= floor:\n",
        "        if True:\n",
        id="a_paused_worker_fills_the_place_of_an_expired_version",
    ),
    pytest.param(
        versions,
        "        if table.checked + 1 >= floor:\n",
        "        if table.version + 1 >= floor:\n",
        id="versions_of_late_puts_count_as_read_before_they_expired",
    ),
    pytest.param(
        merging,
        "fits = found.partition == partition and size",
        "fits = size",
        id="a_merge_has_files_of_several_partitions",
    ),
    pytest.param(
        rounds,
        "first_application(topic.id, partition), log_start, now_ms",
        "first_application(topic.id, partition), 0, now_ms",
        id="a_table_begins_with_records_that_retention_removed_before",
    ),
    pytest.param(
        rounds,
        "        if all(at is not None and at >= want[key] for",
        "        if any(at is not None and at >= want[key] for",
        id="one_recorded_partition_counts_as_the_cut",
    ),
    pytest.param(
        expiry,
        "possible_floors(files, limit_ms):",
        "possible_floors(files, now_ms):",
        id="recent_versions_expire",
    ),
    pytest.param(
        expiry,
        "[path for _, path in old]",
        "[path for _, path in old[::-1]]",
        id="the_latest_versions_expire_first",
    ),
    pytest.param(
        expiry,
        "        if (each.deletion_timestamp or 0) < limit_ms and",
        "        if",
        id="files_expire_while_recent_versions_have_them",
    ),
    pytest.param(
        retention,
        "first_application(topic.id, partition), at, now_ms",
        "first_application(topic.name, partition), at, now_ms",
        id="retention_moves_the_first_offset_of_another_topic",
    ),
    pytest.param(
        retention,
        "at < min(oldest_ms, last)]",
        "at < oldest_ms]",
        id="all_cuts_of_an_idle_lake_expire",
    ),
    pytest.param(
        expiry,
        "        yield from PutFloor(table.at, version)\n",
        "",
        id="versions_expire_before_the_floor_is_recorded",
    ),
    pytest.param(
        expiry,
        "            continue  # another program's\n",
        "            pass\n",
        id="versions_expire_below_the_checkpoint_of_another_program",
    ),
    pytest.param(
        expiry,
        "for each in files if each.version < version)",
        "for each in files if each.version <= version)",
        id="the_checkpoint_at_the_floor_expires",
    ),
    pytest.param(
        expiry,
        "        for each in table.removed.values()\n"
        "        if (each.deletion_timestamp or 0) < limit_ms and",
        "        for each in [*table.removed.values(), *table.files.values()]\n        if",
        id="files_of_the_last_version_expire",
    ),
    pytest.param(
        retention,
        "firsts[partition] = max(firsts.get(partition, 0), last + 1)",
        "firsts[partition] = max(firsts.get(partition, 0), last)",
        id="the_first_offset_is_that_of_a_removed_record",
    ),
    pytest.param(
        retention,
        "        return 0 if len(gone) < len(paths) else len(paths)\n",
        "            paths = [path for path in paths if path in table.files]\n",
        id="retention_continues_with_the_files_that_a_merge_left",
    ),
    pytest.param(
        retention,
        "        if len(below) == len(found):\n",
        "        if True:\n",
        id="retention_removes_a_file_between_others",
    ),
    pytest.param(
        retention,
        "*_not_append_only(table), *txns]",
        "*_not_append_only(table)]",
        id="retention_does_not_move_the_first_offset",
    ),
    pytest.param(
        retention,
        "at < min(oldest_ms, last)]",
        "at <= last]",
        id="recent_cuts_expire",
    ),
    pytest.param(
        cleaning,
        "        if now_ms - each.modified_ms > age_ms\n",
        "        if True\n",
        id="orphans_of_any_age_are_removed",
    ),
    pytest.param(
        cleaning,
        "        paths = table.files.keys() | table.removed.keys()\n",
        "        paths = set(table.removed)\n",
        id="files_of_the_checkpoint_at_the_floor_count_as_orphans",
    ),
    pytest.param(
        cleaning,
        "for file in (each.add, each.remove)]",
        "for file in (each.remove,)]",
        id="files_of_the_latest_versions_count_as_orphans",
    ),
]


@pytest.mark.parametrize(("module", "line", "planted"), BUGS)
def test_the_simulation_finds(
    module: ModuleType,
    line: str,
    planted: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    source = inspect.getsource(module)
    assert source.count(line) == 1, "the planted line is not in the source"
    for name, value in vars(module).copy().items():
        monkeypatch.setattr(module, name, value)  # so that the originals come back
    exec(compile(source.replace(line, planted), module.__file__ or "", "exec"), vars(module))
    for importer in (expiry, merging, retention, rounds):
        for name in {"catch_up", "put"} & vars(importer).keys():
            monkeypatch.setattr(importer, name, getattr(versions, name))
    first = FIRST_SEEDS.get(request.node.callspec.id, 0)
    for seed in range(first, first + SEEDS):
        try:
            simulate(seed, workers=1 + seed % 3)
        except (AssertionError, AttributeError, KeyError, LakeStopped):
            return
    pytest.fail(f"{SEEDS} runs did not find it")
