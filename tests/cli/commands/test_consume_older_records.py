"""``isolog consume`` of records that only the table of a lake has."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Call, Served
from tests.lake.local_lake import LocalLake


@pytest.fixture(scope="module")
def older(served: Served, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A topic with 40 records in each of two partitions, one per second. The log has 10 of them."""
    served.log.create_topic("older", partitions=2)
    with served.log.producer() as producer:
        for number in range(2):
            for second in range(40):
                moment = datetime(2024, 5, 1, 0, 0, second, tzinfo=UTC)
                producer.send(
                    "older", f"{number}-{second}", partition=number, timestamp=moment
                ).result(60)
    LocalLake(served.log, ["older"], tmp_path_factory.mktemp("lake")).run()
    served.log.trim("older", {0: 30, 1: 40})
    return "older"


@pytest.fixture
def here(served: Served, call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    return call


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        ([], 0, 40),
        (["--from", "3"], 3, 40),
        (["--from", "3", "--to", "9"], 3, 9),
        (["--from", "-15"], 25, 40),
        (["--from", "-99"], 0, 40),
        (["--from", "2024-05-01T00:00:07Z"], 7, 40),
        (["--from", "2024-05-01T00:00:07Z", "--to", "2024-05-01T00:00:35Z"], 7, 35),
        (["--from", "35", "--to", "latest"], 35, 40),
        (["--from", "latest"], 40, 40),
    ],
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed", "read_atomic"])
def test_ranges(here, older, options, first, end, isolation):
    found = here("consume", older, *options, "--isolation", isolation)
    assert (found.code, found.err) == (0, "")
    assert found.out.split() == [f"{p}-{at}" for p in range(2) for at in range(first, end)]


def test_the_topic_shows_the_offsets_of_its_tables(here, older, served):
    found = json.loads(here("topic", "describe", older, "--output", "json").out)
    recorded_ms = served.log.describe_lake(f"of-{older}").recorded_ms
    assert found["lakes"] == [{"name": f"of-{older}", "recorded_ms": recorded_ms}]
    [table] = found["tables"]
    assert (table["lake"], table["problem"]) == (f"of-{older}", None)
    assert table["offsets"] == {"0": [0, 40], "1": [0, 40]}
    shown = here("topic", "describe", older).out
    assert "records 10  " in shown
    assert "older records in tables 70" in shown
    assert re.search(rf"lake of-{older}: last report of its worker [0-9.]+ \w+ .*ago", shown)
    assert re.search(rf"of-{older} +│ +1 │ +0 │ +40", shown)
    location = Path(served.log.describe_lake(f"of-{older}").location)
    away = location.rename(location.with_name("away"))
    location.write_text("a file")
    try:
        shown = here("topic", "describe", older)
        assert (shown.code, f"lake of-{older}: [LAKE_UNAVAILABLE]" in shown.out) == (0, True)
    finally:
        location.unlink()
        away.rename(location)


def test_columns_filters_and_counts(here, older):
    found = here("consume", older, "--filter", "offset > 27", "--format", "{partition} {offset}")
    expected = [f"{p} {at}" for p in range(2) for at in range(28, 40)]
    assert found.out.splitlines() == expected
    found = here("consume", older, "--partition", "1", "-n", "3", "--from", "5")
    assert found.out.split() == ["1-5", "1-6", "1-7"]


def test_follow_continues_in_the_log(served: Served, older: str, tmp_path: Path):
    done = served.start("consume", older, "--follow", "--from", "20", "-n", "41")
    with served.log.producer() as producer:
        producer.send(older, "new", partition=1).result(60)
    try:
        out, err = done.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        done.kill()
        raise
    assert (done.returncode, err) == (0, b"")
    expected = [f"{p}-{at}" for p in range(2) for at in range(20, 40)] + ["new"]
    assert sorted(out.decode().split()) == sorted(expected)


def test_records_that_neither_has_are_an_error(here, served):
    """The message of a lost range names the first record that is left."""
    served.log.create_topic("gone")
    with served.log.producer() as producer:
        for number in range(10):
            producer.send("gone", str(number)).result(60)
    served.log.trim("gone", 5)
    found = here("consume", "gone", "--from", "2")
    assert found.code == 1
    assert "5" in found.err
    assert here("consume", "gone").out.split() == list("56789")


@pytest.fixture(scope="module")
def uneven(served: Served) -> str:
    """A topic with 10, 3 and 10 records. The first 5 of partition 2 are removed."""
    served.log.create_topic("uneven", partitions=3)
    with served.log.producer() as producer:
        for number, count in enumerate((10, 3, 10)):
            for at in range(count):
                producer.send("uneven", f"{number}-{at}", partition=number).result(60)
    served.log.trim("uneven", {2: 5})
    return "uneven"


@pytest.mark.parametrize("follow", [[], ["--follow"]])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--from", "4"], "offset 4 is above the end of partition 1 (3)"),
        (["--from", "11"], "offset 11 is above the end of partition 0 (10), 1 (3), 2 (10)"),
        (["--from", "2"], "offset 2 is below the first record of partition 2 (5)"),
    ],
)
def test_an_offset_that_a_partition_lacks_is_refused_before_output(
    here: Call, uneven: str, options: list[str], reason: str, follow: list[str]
):
    found = here("consume", uneven, *options, *follow)
    assert (found.code, found.out) == (1, "")
    assert reason in found.err
    assert "--partition" in found.err


def test_an_offset_applies_to_each_chosen_partition(here: Call, uneven: str):
    found = here("consume", uneven, "--from", "7", "--partition", "0", "--partition", "2")
    assert found.out.split() == [f"{p}-{at}" for p in (0, 2) for at in range(7, 10)]
    assert here("consume", uneven, "--from", "3", "--partition", "1").out == ""
