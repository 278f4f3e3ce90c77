"""The bench: its turns against an earlier commit, the comparison of figures, and the curves."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from bench import growth_bench, growth_chart
from bench.against import Comparison, compare
from bench.charts import shows
from bench.results import Figure
from bench.turns import Bench
from bench.where_bench import calls_of, costs_between, described, thread_costs

pytestmark = pytest.mark.full

HOME = Path(__file__).parents[2]
PRINTS = """
import sys
from bench.results import Measure, Results
from bench.turns import MeasuredBench

told = MeasuredBench()
results = Results(told.tell)
print("what Spark's JVM prints is no figure")
told.begin()
for number in range(3):
    open("log.txt", "a").write(f"{sys.argv[1]} {number}\\n")
    results.add(f"figure {number}", "ms", measured=float(number))
if "fails" in sys.argv:
    raise SystemExit(3)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree whose bench records its times of measurement."""
    shutil.copytree(HOME / "bench", tmp_path / "bench")
    (tmp_path / "bench" / "__main__.py").write_text(PRINTS)
    return tmp_path


def test_only_one_bench_measures_at_a_time(tree):
    log = tree / "log.txt"
    with Bench(tree, tree, "one", []) as one, Bench(tree, tree, "two", []) as two:
        assert not log.exists()  # both wait for their first turn
        for number in range(3):
            for bench in (one, two):
                figure = bench.next_figure()
                assert figure is not None
                assert (figure["name"], figure["measured"]) == (f"figure {number}", number)
        assert (one.next_figure(), two.next_figure()) == (None, None)
        assert one.works
        assert two.works
    wanted = [f"{name} {number}" for number in range(3) for name in ("one", "two")]
    assert log.read_text().splitlines() == wanted


def test_failed_bench_reports_its_error(tree):
    with Bench(tree, tree, "one", ["fails"]) as bench:
        while bench.next_figure() is not None:
            assert bench.works
        assert not bench.works


def test_bench_without_a_reader_stops(tree):
    with Bench(tree, tree, "one", []) as bench:
        assert bench.next_figure() is not None
    assert (tree / "log.txt").read_text().splitlines() == ["one 0"]


def figure(name: str, unit: str, measured: float) -> Figure:
    return {"name": name, "unit": unit, "measured": measured}


def test_gain_above_1_is_better_in_any_unit():
    pairs = [
        (figure("append", "rows/s", 100.0 * n), figure("append", "rows/s", 200.0 * n))
        for n in (1, 2, 3)
    ]
    pairs += [(figure("p50", "ms", 1.0), figure("p50", "ms", 4.0))]
    assert compare(pairs) == [
        Comparison(
            "append", "rows/s", old=200.0, new=400.0, gain=2.0, gain_least=2.0, gain_most=2.0
        ),
        Comparison("p50", "ms", old=1.0, new=4.0, gain=0.25, gain_least=0.25, gain_most=0.25),
    ]


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((1.0, 1.0, 0.9), ""),
        ((0.98, 0.98, 0.98), ""),
        ((0.9, 0.8, 0.7), "fell"),
        ((0.9, 0.8, 1.0), "fell, within the spread"),
    ],
)
def test_figure_has_fallen_if_it_lost_more_than_3_percent(gains, verdict):
    pairs = [(figure("append", "rows/s", 1.0), figure("append", "rows/s", gain)) for gain in gains]
    assert [each.verdict for each in compare(pairs)] == [verdict]


def test_switches_are_counted_by_thread():
    begin, end = threading.Event(), threading.Event()

    def wait() -> None:
        for _ in range(20):
            time.sleep(0.001)
        begin.set()
        end.wait()

    waiting = threading.Thread(target=wait, name="waits")
    before = thread_costs(os.getpid())
    waiting.start()
    begin.wait()
    used = costs_between(before, thread_costs(os.getpid()))
    end.set()
    waiting.join()
    (costs,) = [each for (_, name), each in used.items() if name == "waits"]
    assert 20 <= costs.switches < 40
    assert "waits 2." in described({(1, "waits"): costs}, 10)


def test_system_calls_are_read_from_the_summary_of_strace():
    summary = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000120           1       120           futex
 40.00    0.000080           2        40         7 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.000200                   160         7 total
"""
    assert calls_of(summary) == {"futex": 120, "recvfrom": 40}


def test_the_curves_are_those_of_their_results() -> None:
    facts = json.loads(growth_chart.FACTS.read_text())["measures"]
    drawn = growth_chart.FACTS.with_suffix(".svg").read_text()
    assert shows(growth_chart.FACTS.with_suffix(".svg"), facts)
    found = growth_chart.curves(facts)
    assert [size for size, *_ in found["partitions"]["append"]] == list(growth_bench.PARTITIONS)
    assert all(dimension in drawn for dimension in found)
