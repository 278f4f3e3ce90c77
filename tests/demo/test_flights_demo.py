"""The demo, end to end through spark-submit, on a part of the year, and its remains."""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path

import polars as pl
import psutil
import pyarrow.parquet as pq
import pytest

from isolog.testing import LocalCluster
from tests.conftest import ROOT, stop_broker
from tests.demo.conftest import Shell

pytestmark = pytest.mark.full

JANUARY, FEBRUARY = 27_004, 24_951
WRONG_LOAD = 5_000


def segments(log: Path) -> list[Path]:
    return sorted(log.glob("topics/flights/*/*/*.arrow"))


def failed_attempt(said: str) -> int:
    """The number of rows that the failed attempt of a micro-batch left in the log."""
    found = re.search(r"fails, as planned; ([\d,]+) rows of it were in", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))


def brokers_of(log: Path) -> list[psutil.Process]:
    """The brokers that serve this directory, or one in it."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(word.startswith(str(log)) for word in process.info["cmdline"] or [])
    ]


def check_frames(frames: list[pl.DataFrame], every: int) -> None:
    """The files alone have the same content, without broker and isolog."""
    assert sum(frame.height for frame in frames) == every
    flights = pl.concat(frames)
    assert flights.schema["dep_delay"] == pl.Int32
    assert flights.schema["time_hour"] == pl.Datetime("us", "UTC")
    assert flights.filter(pl.col("carrier") == "ZZ").height == WRONG_LOAD


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_second_run_in_the_folder_starts_afresh(tmp_path: Path, shell: Shell) -> None:
    output = tmp_path / "demo-output"

    said = shell.demo(tmp_path, "--months", "1")
    killed = re.search(r"kill +broker (\d) gets kill -9 in the middle of a micro-batch", said)
    assert killed, said
    assert re.search(r"kill +\d\.\d s later brokers? .* in its place; both jobs go on", said), said
    assert f"start  {JANUARY:,} flights in 4 files; the log: 3 brokers of its own" in said
    assert re.search(rf"back +broker {killed[1]} was started again; .* all replicas are in", said)
    assert f"Records in: {JANUARY:,}. Records out: {JANUARY:,}. They agree." in said
    assert "backlog       0" in said
    weeks = [pq.read_metadata(each).num_rows for each in sorted((output / "input").iterdir())]
    left = failed_attempt(said)
    assert left in weeks[2:4]
    every = JANUARY + left + WRONG_LOAD
    counts = {"read_uncommitted": every, "read_replicated": every}
    counts |= {"read_committed": JANUARY, "read_atomic": JANUARY}
    for level, count in counts.items():
        assert re.search(rf"^ *{level} .* {count:,} +{count:,} *$", said, re.MULTILINE), said
    assert "All as predicted." in said
    assert "Traceback" not in said
    assert not brokers_of(output / "log")

    for number in (1, 2, 3):  # including the one that was killed
        replica = segments(output / "log" / f"broker-{number}")
        assert {segment.parent.name for segment in replica} == {"0", "1", "2", "3"}
        check_frames([pl.read_ipc_stream(segment) for segment in replica], every)
    first = segments(output / "log" / "broker-1")[0]
    assert str(first.relative_to(tmp_path)) in said

    # The chart is a picture of a fair size.
    png = (output / "delays.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert width > 1500
    assert height > 800

    # Spark's checkpoint has the log's own offsets.
    logged = sorted((output / "checkpoints/read/offsets").glob("[0-9]*"), key=lambda f: int(f.name))
    last = json.loads(logged[-1].read_text().splitlines()[-1])["flights"]
    with (
        LocalCluster(3, cuttable=False, folder=output / "log") as cluster,
        cluster.connect() as log,
    ):
        topic = log.describe("flights")
        january = log.read("flights", columns=["dep_time"], isolation="read_committed")
        ended = {each.state for each in log.transactions()}
    assert january["dep_time"].null_count == 521  # the cancelled ones
    assert ended == {"committed", "aborted"}
    assert last["id"] == topic.id
    assert {int(number): at["offset"] for number, at in last["partitions"].items()} == {
        each.partition: each.log_end_offset for each in topic.partitions
    }

    # The next run starts afresh, with one broker and without a kill, and has the same result.
    options = ["--brokers", "1", "--months", "2", "--isolation", "read_uncommitted"]
    said = shell.demo(tmp_path, *options)
    assert "kill -9" not in said
    both, taken_back = JANUARY + FEBRUARY, failed_attempt(said) + WRONG_LOAD
    every = both + taken_back
    sums = f"Records in: {both:,} and {taken_back:,} taken back. Records out: {every:,}."
    assert f"{sums} They agree." in said
    check_frames([pl.read_ipc_stream(segment) for segment in segments(output / "log")], every)
    assert not brokers_of(output / "log")
    stop_broker(output / "log")


@pytest.mark.full
def test_the_secure_demo_counts_all_records_and_logs_no_password(
    tmp_path: Path, shell: Shell
) -> None:
    said = shell.demo(tmp_path, "--months", "1", "--secure", "--console")
    assert re.search(r"^console +http://127\.0\.0\.1:\d+$", said, re.MULTILINE), said
    assert "Log in with the user and the password in" in said
    assert "gets kill -9" in said
    assert f"Records in: {JANUARY:,}. Records out: {JANUARY:,}. They agree." in said
    log = tmp_path / "demo-output" / "log"
    password = re.search('password = "(.*)"', (log / "profile.toml").read_text())
    assert password is not None
    told = [*log.rglob("*.log"), *log.rglob("*.stderr"), *log.parent.rglob("checkpoints/**/*")]
    for file in told:
        assert file.is_dir() or password[1].encode() not in file.read_bytes(), file


@pytest.mark.full  # without Spark: tests/system/lakes/test_foreign_readers.py
@pytest.mark.timeout(600)
def test_the_demo_with_a_lake_has_the_same_counts_in_table_and_log(
    tmp_path: Path, shell: Shell
) -> None:
    said = shell.demo(tmp_path, "--months", "1", "--lake")
    readers = ["log", "DuckDB", "polars", "Spark"]
    readers += [f"{name}, two thirds of the log removed" for name in ("isolog sql", "Spark")]
    miles = set()
    for reader in readers:
        found = re.search(rf"^ *{reader} +{JANUARY:,} +([\d,]+) *$", said, re.MULTILINE)
        assert found, f"{reader}: {said}"
        miles.add(found[1])
    assert len(miles) == 1
    assert "gets kill -9" in said
    assert not brokers_of(tmp_path / "demo-output")
    assert (tmp_path / "demo-output" / "lake" / "flights" / "_delta_log").is_dir()


@pytest.mark.timeout(60)
def test_brokers_of_a_killed_run_are_stopped(tmp_path: Path) -> None:
    import flights_brokers

    assert not flights_brokers.stop_brokers(tmp_path / "log")
    left = LocalCluster(2, cuttable=False, folder=tmp_path / "log")
    try:
        assert len(brokers_of(tmp_path / "log")) == 2
        assert flights_brokers.stop_brokers(tmp_path / "log")
        assert not any(broker.alive for broker in left.brokers.values())
    finally:
        left.close()


def test_folder_with_other_files_is_refused_unchanged(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "log").mkdir()
    precious = tmp_path / "log" / "precious.txt"
    precious.write_text("mine")
    command = [sys.executable, ROOT / "examples" / "flights_demo.py", "--output", tmp_path]
    said = shell.run(command, tmp_path, code=1)
    assert f"{tmp_path} holds other files" in said
    assert precious.read_text() == "mine"


def test_differing_counts_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    import flights_report

    records = flights_report.Records(flights=10, failed_attempt=3, aborted_load=4)
    levels = {"read_uncommitted": 17, "read_committed": 10}
    assert flights_report.show_levels(records, levels)
    assert not flights_report.show_levels(records, levels | {"read_atomic": 13})
    assert "Not as predicted." in capsys.readouterr().out

    counts = {"wrote": 10, "stored": {0: 9, 1: 8}, "read": 10, "table": 10}
    assert flights_report.show_counts("read_committed", records, **counts, batch=10)
    assert not flights_report.show_counts("read_committed", records, **counts, batch=11)
    assert "The counts differ." in capsys.readouterr().out
    seen = counts | {"read": 17, "table": 17}
    assert flights_report.show_counts("read_replicated", records, **seen, batch=17)


def test_data_are_those_of_the_package(tmp_path: Path) -> None:
    import flights_data
    import pyarrow.dataset as ds

    flights = flights_data.flights()
    assert flights.num_rows == 336_776
    assert flights.schema.equals(flights_data.FLIGHTS)
    assert flights["dep_time"].null_count == 8_255
    assert flights_data.airlines().num_rows == 16
    weeks = flights_data.write_weeks(flights_data.flights(1), tmp_path / "input")
    assert len(weeks) == 4
    assert sum(weeks) == JANUARY
    files = sorted((tmp_path / "input").iterdir(), key=lambda file: file.stat().st_mtime)
    assert [pq.read_metadata(file).num_rows for file in files] == weeks
    written = ds.dataset(tmp_path / "input")
    assert written.count_rows() == JANUARY
    assert written.schema.equals(flights_data.FLIGHTS)
