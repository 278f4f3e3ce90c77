"""``isolog bench`` reads all written records, and deletes its topic at the end."""

from __future__ import annotations

import json
import signal

import pytest

from spark_stream.cli.operating.load import LoadPlan, LoadSchedule
from spark_stream.consistency.isolation import Isolation
from tests.cli.conftest import Call, Served
from tests.support import eventually


@pytest.fixture
def here(served: Served, call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    return call


def plan(**changed) -> LoadPlan:
    wanted = {"records": None, "seconds": None, "rate": None} | changed
    return LoadPlan(
        topic="t",
        record_bytes=10,
        batch_rows=10,
        producers=1,
        consumers=1,
        isolation=Isolation.READ_COMMITTED,
        **wanted,
    )


def test_producers_share_the_records():
    schedule = LoadSchedule(plan(records=25))
    assert [schedule.take()[0] for _ in range(4)] == [10, 10, 5, 0]


def test_load_ends_after_its_time_and_keeps_its_rate():
    now = [100.0]
    schedule = LoadSchedule(plan(seconds=5.0, rate=20.0), lambda: now[0])
    assert schedule.take() == (10, 0.0)
    assert schedule.take() == (10, 0.5)
    now[0] = 103.0
    assert schedule.take() == (10, 0.0)
    now[0] = 105.0
    assert schedule.take() == (0, 0.0)


def test_no_batch_is_written_after_the_time():
    schedule = LoadSchedule(plan(seconds=5.0, rate=1.0))
    assert schedule.take() == (10, 0.0)
    assert schedule.take() == (0, 0.0)  # it is due only after ten seconds


def test_bench_reads_all_written_records(here, served):
    before = served.log.topics()
    shown = here(
        *("bench", "--records", "2500", "--batch-rows", "100", "--producers", "2"),
        *("--consumers", "2", "--partitions", "3", "--isolation", "read_committed"),
        *("--transactions", "4", "--output", "json"),
    )
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    assert found["written"]["records"] == found["read"]["records"] == 2500
    assert found["transactions"] >= 7
    for name in ("acknowledgement_ms", "commit_ms", "end_to_end_ms"):
        each = found[name]
        assert 0 < each["p50"] <= each["p90"] <= each["p99"] <= each["p99.9"] <= each["max"]
    assert served.log.topics() == before


def test_bench_keeps_the_records_of_a_given_topic(here, served):
    served.log.create_topic("loaded", partitions=2)
    shown = here("bench", "--topic", "loaded", "--records", "300", "--consumers", "0")
    assert shown.code == 0, shown.err
    assert "written  300 records" in shown.out
    assert "end to end" not in shown.out
    assert served.log.read("loaded").num_rows == 300


# `make test` has the load that ends by itself. The signal needs a separate process.
@pytest.mark.full
def test_ctrl_c_prints_the_results_so_far(served):
    before = served.log.topics()
    running = served.start("bench", "--seconds", "600", "--rate", "2000", "--output", "json")
    made = eventually(lambda: set(served.log.topics()) - set(before))
    (topic,) = made
    eventually(lambda: served.log.read(topic).num_rows > 0)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    found = json.loads(out)
    assert found["read"]["records"] == found["written"]["records"] > 0
    assert served.log.topics() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--records", "5", "--seconds", "5"), "--records and --seconds exclude each other"),
        (("--topic", "t", "--partitions", "2"), "--partitions and --replication-factor"),
        (("--record-bytes", "1000000", "--batch-rows", "1000"), "are more than a batch may have"),
        (("--consumers", "9", "--partitions", "2"), "9 consumers cannot share 2 partitions"),
    ],
)
def test_invalid_usage_is_refused(here, served, arguments, message):
    before = served.log.topics()
    refused = here("bench", *arguments)
    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err
    assert served.log.topics() == before


def test_a_typed_topic_is_refused(here, served):
    served.log.create_topic("with-columns", schema="id bigint")
    refused = here("bench", "--topic", "with-columns")
    assert refused.code == 2
    assert "is typed" in refused.err
