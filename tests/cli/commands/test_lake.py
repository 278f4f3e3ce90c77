"""``isolog lake``: create, list, status, run, versions, clean, drop."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_stream.lake.expiry import (
    DAY_MS,
    FILE_RETENTION,
    FILE_RETENTION_MS,
    LOG_RETENTION,
    LOG_RETENTION_MS,
)
from tests.broker.metrics.scraping import page, scraped
from tests.cli.conftest import Call, Served
from tests.lake_worker.lake_tables import rows_of
from tests.support import eventually


@pytest.fixture
def here(served: Served, call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Commands in this process with the address of the broker."""
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    return call


@pytest.fixture
def lake(here: Call, served: Served, tmp_path: Path):
    """The location of the lake ``l`` over a topic with 3 records."""
    served.log.create_topic("of-lake", schema="n bigint")
    with served.log.producer() as producer:
        producer.append("of-lake", pa.table({"n": [1, 2, 3]})).result(60)
    root = tmp_path / "tables"
    made = here(
        "lake", "create", "l", "--topics", "of-lake", "--location", str(root), "--freshness", "1"
    )
    assert (made.code, made.err) == (0, f"created lake l at {root}\n")
    yield root
    if "l" in [each.name for each in served.log.lakes()]:
        served.log.drop_lake("l")
    served.log.delete_topic("of-lake")


def test_a_lake_is_altered(here, lake, served):
    served.log.create_topic("more-of-lake", schema="n bigint")
    altered = here(
        "lake",
        "alter",
        "l",
        "--topics",
        "of-lake,more-of-lake",
        "--freshness",
        "3",
    )
    assert (altered.code, altered.err) == (0, "altered lake l\n")
    found = served.log.describe_lake("l")
    assert [each.name for each in found.topics] == ["more-of-lake", "of-lake"]
    assert found.freshness_ms == 3_000
    assert here("lake", "alter", "l", "--topics", "of-lake").code == 0
    assert here("lake", "alter", "l").code == 2
    served.log.delete_topic("more-of-lake")


def test_a_lake_is_created_listed_and_dropped(here, lake):
    (listed,) = json.loads(here("lake", "list", "--output", "json").out)
    assert (listed["name"], listed["topics"], listed["freshness_ms"]) == ("l", ["of-lake"], 1000)
    assert "of-lake" in here("lake", "list").out
    refused = here("lake", "create", "l", "--topics", "of-lake", "--location", str(lake))
    assert refused.code == 1
    assert "there is a lake 'l' already" in refused.err
    assert here("lake", "drop", "l", "--yes").err == "dropped lake l\n"
    assert here("lake", "list", "--output", "json").out == "[]\n"
    assert here("lake", "status", "l").code == 1


def test_status_shows_the_lag_and_versions_show_cuts(here, lake, served):
    shown = here("lake", "status", "l", "--output", "json")
    before = json.loads(shown.out)
    (table,) = before["topics"]
    assert (table["version"], table["records"], table["lag"]) == (-1, 0, 3)
    assert (shown.code, before["state"], before["recorded_ms"]) == (4, "no worker", None)
    assert before["worker"] == "absent"
    assert "Worker: absent, last report -" in here("lake", "status", "l").out
    (listed,) = json.loads(here("lake", "list", "--output", "json").out)
    assert (listed["name"], listed["worker"]) == ("l", "absent")
    assert "isolog lake run l" in shown.err
    ended = here("lake", "run", "l", "--once", "--output", "json")
    assert ended.code == 0
    shown = here("lake", "status", "l", "--output", "json")
    after = json.loads(shown.out)
    (table,) = after["topics"]
    assert (table["lag"], table["records"], table["files"]) == (0, 3, 1)
    assert (table["problem"], table["hint"]) == (None, None)
    assert (shown.code, after["state"], after["omitted"]) == (0, "up to date", 0)
    assert after["worker"] == "reporting"
    assert "up to date. Worker: reporting, last report " in here("lake", "status", "l").out
    assert "reporting" in here("lake", "list").out
    assert json.loads(ended.out) == after["topics"]
    for command in (("status", "l"), ("run", "l", "--once")):
        words = here("lake", *command).out.split()
        assert words[words.index("of-lake") :][:7:2] == ["of-lake", "1", "3", "1"]
    assert rows_of(lake, "of-lake")["n"].to_pylist() == [1, 2, 3]
    with served.log.producer() as producer:
        producer.append("of-lake", pa.table({"n": [4]})).result(60)
    between = time.time()
    time.sleep(0.01)
    here("lake", "run", "l", "--once")
    cuts = json.loads(here("lake", "versions", "l", "--output", "json").out)
    assert [each["cut"] for each in cuts] == [0, 1]
    counts = [rows_of(lake, "of-lake", each["versions"]["of-lake"]).num_rows for each in cuts]
    assert counts == [3, 4]
    moment = (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between)) + f".{int(between % 1 * 1e3):03}"
    )
    at = here("lake", "versions", "l", "--at", moment, "--output", "json")
    assert [each["cut"] for each in json.loads(at.out)] == [0]
    assert "of-lake@" in here("lake", "versions", "l").out
    last = here("lake", "versions", "l", "--at", "latest", "--output", "json")
    assert [each["cut"] for each in json.loads(last.out)] == [1]
    before = here("lake", "versions", "l", "--at", "2024-05-01")
    assert (before.code, before.out) == (1, "")
    assert (
        f"no cut at or before 2024-05-01: the first is of {cuts[0]['time'][:19]}".replace("T", " ")
        in before.err
    )
    before = here("lake", "versions", "l", "--at", "2024-05-01", "--output", "json")
    assert (before.code, json.loads(before.out)) == (1, [])


@pytest.mark.parametrize("text", ["earliest", "3", "-3", "soon"])
def test_versions_takes_latest_or_a_time(here, text):
    refused = here("lake", "versions", "l", "--at", text)
    assert refused.code == 2
    assert f"--at takes latest or a time, not {text!r}" in refused.err


def test_a_lake_is_moved(here, lake, tmp_path):
    here("lake", "run", "l", "--once")
    refused = here("lake", "alter", "l", "--location", str(tmp_path / "new"))
    assert (refused.code, "is missing" in refused.err) == (1, True)
    shutil.copytree(lake, tmp_path / "new")
    moved = here("lake", "alter", "l", "--location", str(tmp_path / "new"))
    assert (moved.code, moved.err) == (0, f"altered lake l: its tables are at {tmp_path}/new\n")
    shutil.rmtree(lake)
    assert here("lake", "run", "l", "--once").code == 0
    assert rows_of(tmp_path / "new", "of-lake")["n"].to_pylist() == [1, 2, 3]


def test_versions_without_a_cut_says_so(here, lake):
    shown = here("lake", "versions", "l")
    assert (shown.code, shown.out, shown.err) == (0, "", "lake l has no cut\n")
    assert here("lake", "versions", "l", "--at", "latest").code == 1


def test_status_fails_if_a_person_has_to_decide(here, lake, served):
    here("lake", "run", "l", "--once")
    with served.log.producer() as producer:
        producer.append("of-lake", pa.table({"n": [4]})).result(60)
    for each in (lake / "of-lake" / "_delta_log").glob("*1.json"):
        each.write_text("no actions")
    shown = here("lake", "status", "l")
    assert shown.code == 3
    assert "cannot be read" in shown.err
    stopped = here("lake", "run", "l", "--once")
    assert stopped.code == 1
    assert "version 1 of the table of-lake cannot be read" in stopped.err


def test_status_shows_why_the_worker_stopped(here, lake, served, tmp_path):
    """The table alone looks like an earlier version of itself."""
    here("lake", "run", "l", "--once")
    older = shutil.copytree(lake / "of-lake", tmp_path / "older")
    with served.log.producer() as producer:
        producer.append("of-lake", pa.table({"n": [4]})).result(60)
    here("lake", "run", "l", "--once")
    newer = shutil.move(lake / "of-lake", tmp_path / "newer")
    shutil.copytree(older, lake / "of-lake")
    assert here("lake", "run", "l", "--once").code == 1
    shown = here("lake", "status", "l", "--output", "json")
    assert (shown.code, "an older copy of it was restored" in shown.err) == (3, True)
    assert "(Restore the newer copy, or create a lake at another location.)" in shown.err
    facts = json.loads(shown.out)
    assert facts["state"] == "stopped"
    assert "an older copy of it was restored" in facts["stopped"]
    assert facts["stopped_hint"].startswith("Restore the newer copy")
    shutil.rmtree(lake / "of-lake")
    shutil.move(newer, lake / "of-lake")
    assert here("lake", "run", "l", "--once").code == 0
    assert here("lake", "status", "l").code == 0


def test_a_running_worker_shows_its_metrics(here, lake, served, tmp_path):
    command = [sys.executable, "-m", "isolog", "lake", "run", "l"]
    listen = ["--metrics-listen", "127.0.0.1:0"]
    env = os.environ | {"ISOLOG_BOOTSTRAP": served.bootstrap}
    with (tmp_path / "said").open("wb") as errors:
        worker = subprocess.Popen([*command, *listen], stderr=errors, env=env)
    try:
        said = eventually(
            lambda: re.search("shown at http://(.*)/", (tmp_path / "said").read_text())
        )
        eventually(lambda: page(said[1], "/health/ready")[0] == 200)
        found = scraped(said[1], "/metrics")
        assert found("isolog_lake_worker_written_records_total", lake="l") == 3
        assert found("isolog_lake_worker_lag_records", lake="l") == 0
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
    refused = here("lake", "run", "l", "--once", *listen)
    assert (refused.code, "--once" in refused.err) == (2, True)


def test_metrics_need_a_host_and_a_port(here, lake, tmp_path):
    kept = tmp_path / "file"
    kept.write_text("kept")
    refused = here("lake", "run", "l", "--metrics-listen", f"unix:{kept}")
    assert (refused.code, "Give HOST:PORT" in refused.err) == (2, True)
    assert kept.read_text() == "kept"


def test_the_list_shows_the_reason_of_a_stop(here, lake, served):
    stopped = json.loads(here("lake", "list", "--output", "json").out)[0]["stopped"]
    assert stopped == ""
    lake_id = served.log.describe_lake("l").id
    served.log._lakes.record_progress("l", lake_id, {}, "it was restored", "Create another.")
    shown = here("lake", "list")
    assert "the worker of lake l stopped: it was restored (Create another.)" in shown.err


def test_durations_of_a_lake_are_properties_of_its_tables(here, served, tmp_path):
    served.log.create_topic("short", schema="n bigint")
    ages = ["--version-retention", "2d", "--file-retention", "90m"]
    create = ["lake", "create", "s", "--topics", "short", "--location", str(tmp_path)]
    for bad, code in (("2", 2), ("1s", 1)):
        refused = here(*create, "--file-retention", bad)
        assert (refused.code, "retention" in refused.err) == (code, True)
    assert here(*create, *ages).code == 0
    (listed,) = json.loads(here("lake", "list", "--output", "json").out)
    assert (listed["version_retention_ms"], listed["file_retention_ms"]) == (2 * DAY_MS, 5_400_000)
    assert here("lake", "run", "s", "--once").code == 0
    for name in ("short", "_cuts"):
        properties = DeltaTable(tmp_path / name).metadata().configuration
        assert properties[LOG_RETENTION] == "interval 2 days"
        assert properties[FILE_RETENTION] == "interval 90 minutes"
    served.log.drop_lake("s")
    served.log.delete_topic("short")


def test_the_help_has_the_defaults_of_durations(here):
    shown = " ".join(here("lake", "create", "--help").out.replace("│", " ").split())
    assert f"Default: {LOG_RETENTION_MS // DAY_MS}d" in shown
    assert f"Default: {FILE_RETENTION_MS // DAY_MS}d" in shown


def test_clean_removes_only_old_files_that_no_version_has(here, lake):
    here("lake", "run", "l", "--once")
    kept = sorted((lake / "of-lake").glob("*.parquet"))
    old, young = (
        kept[0].with_name(re.sub("[0-9a-f]{16}[.]", f"{n:016x}.", kept[0].name)) for n in (1, 2)
    )
    for each in (old, young):
        each.write_bytes(b"of a killed worker")
    two_days_ago = time.time() - 2 * 86_400
    for each in (old, *kept):
        os.utime(each, (two_days_ago, two_days_ago))
    assert here("lake", "clean", "l").code == 2  # a terminal is needed
    assert here("lake", "clean", "l", "--yes").err == "removed 1 file of lake l\n"
    assert not old.exists()
    assert young.exists()
    assert sorted((lake / "of-lake").glob("*.parquet")) == sorted([*kept, young])


def test_status_shows_the_version_of_the_iceberg_tables(here, served, tmp_path, monkeypatch):
    catalogs = pytest.importorskip("pyiceberg.catalog")
    uri = f"sqlite:///{tmp_path}/catalog.db"
    monkeypatch.setattr(catalogs._ENV_CONFIG, "config", {"catalog": {"lakes": {"uri": uri}}})
    served.log.create_topic("mirrored", schema="n bigint")
    root, other = str(tmp_path / "tables"), str(tmp_path / "other")
    here("lake", "create", "m", "--topics", "mirrored", "--location", root, "--iceberg", "lakes")
    assert json.loads(here("lake", "list", "--output", "json").out)[0]["iceberg"] == "lakes"
    assert here("lake", "run", "m", "--once").code == 0
    (found,) = json.loads(here("lake", "status", "m", "--output", "json").out)["topics"]
    assert found["iceberg_version"] == found["version"]
    assert "iceberg" in here("lake", "status", "m").out
    assert here("lake", "clean", "m", "--yes").err == "removed 0 files of lake m\n"
    catalogs.load_catalog("lakes").drop_table("m.mirrored")
    (found,) = json.loads(here("lake", "status", "m", "--output", "json").out)["topics"]
    assert found["iceberg_version"] == -1
    refused = here(
        "lake", "create", "n", "--topics", "mirrored", "--location", other, "--iceberg", uri
    )
    assert "is no name of an Iceberg catalog" in refused.err
    served.log.drop_lake("m")
    served.log.delete_topic("mirrored")
