"""The bench against Kafka: its jars are checked, its turns are fair, its page has its results."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from bench.charts import shows
from bench.kafka import jars, page
from bench.kafka.chart import charted
from bench.kafka.turns import CEILING, ISOLOG, KAFKA, TUNED, Turns, contenders, gain, rotated
from bench.records import SCHEMAS, THREE_DDL, TYPED, batch_of

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FACTS = json.loads((DOCS / "benchmarks.json").read_text())


# -- the page --------------------------------------------------------------------------------------


def test_page_matches_its_results() -> None:
    assert (DOCS / "benchmarks.md").read_text() == page.rendered(FACTS), "run `make docs`"


def test_chart_matches_the_page() -> None:
    assert shows(DOCS / "benchmarks.svg", charted(FACTS["measures"]))


def test_another_figure_changes_page_and_chart(tmp_path: Path) -> None:
    changed = json.loads(json.dumps(FACTS))
    first = next(each for each in changed["measures"] if each["part"] == "read")
    first["median"][KAFKA] = 123_456_789.0
    page.write(changed, tmp_path)
    text = (tmp_path / "benchmarks.md").read_text()
    assert "123,456,789" in text
    assert text != (DOCS / "benchmarks.md").read_text()
    assert shows(tmp_path / "benchmarks.svg", charted(changed["measures"]))
    assert json.loads((tmp_path / "benchmarks.json").read_text()) == changed


@pytest.mark.parametrize("part", ["read", "write", "typed", "small", "latency", "clients"])
def test_page_is_of_a_run_with_all_parts(part: str) -> None:
    measured = [each for each in FACTS["measures"] if each["part"] == part]
    assert measured
    for each in measured:
        assert {KAFKA, ISOLOG} <= set(each["median"])
        assert {len(figures) for figures in each["turns"].values()} == {FACTS["settings"]["turns"]}


def test_commands_of_the_page_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = (DOCS / "benchmarks.md").read_text()
    assert set(re.findall(r"make ([a-z-]+)", text)) == {"bench-kafka"}
    for setting in re.findall(r"make bench-kafka ([A-Z_]+)=", text):
        assert f"$({setting})" in makefile or f"$(if $({setting})" in makefile


# -- turns -----------------------------------------------------------------------------------------


def test_each_contender_is_measured_in_each_turn() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return float(len(order))

    names = ("a", "b", "c")
    turns = Turns(3)
    turns.take("read", "x", "rows/s", {each: lambda each=each: run(each) for each in names}, rows=9)
    assert "".join(order) == "abc" + "abc" + "bac" + "cab"  # the first turn warms up
    (measured,) = turns.measured
    assert measured["turns"] == {"a": [4, 8, 11], "b": [5, 7, 12], "c": [6, 9, 10]}
    assert measured["median"] == {"a": 8, "b": 7, "c": 9}
    assert set(measured["processor_seconds_per_million_rows"]) == set(names)


def test_order_of_contenders_is_balanced() -> None:
    names = "abcde"
    orders = [rotated(names, turn) for turn in range(5)]
    assert {order[0] for order in orders} == set(names)
    for name in names:
        before = {order[order.index(name) - 1] for order in orders if order[0] != name}
        assert len(before) >= 2


@pytest.mark.parametrize(("unit", "expected"), [("rows/s", 2.0), ("ms", 0.5)])
def test_gain_is_computed_per_turn(unit: str, expected: float) -> None:
    """In the second turn, the machine was ten times slower for both."""
    turns = Turns(3)
    found = {ISOLOG: [200.0, 20.0, 240.0], KAFKA: [100.0, 10.0, 60.0]}
    turns.add("read", "x", unit, found)
    assert gain(turns.measured[0], ISOLOG, KAFKA) == expected
    assert gain(turns.measured[0], ISOLOG, TUNED) is None


def test_unknown_contenders_come_last() -> None:
    measured = [{"median": {"another way": 1, ISOLOG: 2}}, {"median": {CEILING: 3}}]
    assert contenders(measured) == [CEILING, ISOLOG, "another way"]


# -- downloads -------------------------------------------------------------------------------


def test_checksums_match_the_resolved_versions() -> None:
    wanted = jars.checksums(jars.CHECKSUMS.read_text())
    ivy = (jars.CHECKSUMS.parent / "ivy.xml").read_text()
    roots = re.findall(r'name="([^"]+)" rev="([^"]+)" conf="([a-z]+)', ivy)
    assert len(roots) == 9
    for name, revision, part in roots:
        assert f"{part}/{name}-{revision}.jar" in wanted
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in wanted.values())


def test_changed_or_extra_jar_is_found(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    wanted = {}
    for name in ("a", "b", "c"):
        path = tmp_path / "broker" / f"{name}.jar"
        path.write_bytes(name.encode())
        wanted[f"broker/{name}.jar"] = hashlib.sha256(name.encode()).hexdigest()
    assert jars.differences(tmp_path, wanted) == []
    (tmp_path / "broker" / "a.jar").write_bytes(b"another")
    (tmp_path / "broker" / "b.jar").unlink()
    (tmp_path / "broker" / "d.jar").write_bytes(b"d")
    assert jars.differences(tmp_path, wanted) == ["broker/a.jar", "broker/b.jar", "broker/d.jar"]


@pytest.mark.slow
def test_failed_download_is_reported_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv(jars.REPOSITORY, (tmp_path / "mirror").as_uri())
    with pytest.raises(jars.WrongJars, match=r"(?s)kafka_2\.13;.*not found"):
        jars.fetched(tmp_path / "cache")
    assert not (tmp_path / "cache" / "jars").exists()


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", SCHEMAS)
def test_batch_matches_the_schema_for_spark(columns: str) -> None:
    names = [each.split()[0] for each in SCHEMAS[columns].split(", ")]
    batch = batch_of(columns, 7)
    assert batch.schema.names == names
    assert batch.num_rows == 7
    batch.validate(full=True)


def test_three_columns_are_a_part_of_the_twenty() -> None:
    assert len(TYPED) == 20
    assert set(THREE_DDL.split(", ")) < set(SCHEMAS["typed"].split(", "))
