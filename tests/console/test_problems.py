"""The problems that the console shows, without a clock or a broker."""

from __future__ import annotations

from typing import Any

import pytest

from spark_stream.client.trends import LagTrend
from spark_stream.consistency.isolation import ReaderState
from spark_stream.console.problems import ConsoleProblem, FirstSeen, Severity, judge
from spark_stream.lake_worker.status import WorkerState

NOW_MS = 1_800_000_000_000
GIB = 2**30


def broker(name: str, **more: Any) -> dict[str, Any]:
    """Return a broker without problems."""
    status = {
        "disk_free": 60 * GIB,
        "disk_total": 100 * GIB,
        "refused": {},
        "damaged": {},
    } | more.pop("status", {})
    found = {
        "id": name,
        "alive": True,
        "status": status,
        "answers": {"asked": 30, "unanswered": 0, "median_s": 0.004},
        "full_in_s": None,
        "fills_bytes_per_s": 2_100_000,
        "on_disk": [{"topic": "audit", "size": GIB, "bytes_per_s": 2_000_000}],
        "led": [],
    }
    return found | more


def answers(asked: int, unanswered: int, median_s: float | None) -> dict[str, Any]:
    return {"asked": asked, "unanswered": unanswered, "median_s": median_s}


def transaction(age_s: float, **more: Any) -> dict[str, Any]:
    place = {"topic": "orders", "partition": 2, "first_offset": 5, "held_back": 1200}
    found = {
        "transactional_id": "nightly-import",
        "number": 7,
        "state": "open",
        "began_ms": NOW_MS - int(age_s * 1000),
        "places": [place],
        "held_back": 1200,
    }
    return found | more


def reader(name: str, state: str, **more: Any) -> dict[str, Any]:
    found = {"name": name, "kind": "query", "lag": 40, "state": state, "trend": "steady"}
    found["waits_for"] = []
    return found | more


def unlisted(age_s: int) -> dict[str, Any]:
    """Return an open transaction that has been missing in the list for this time."""
    return {
        "number": 7,
        "transactional_id": None,
        "unlisted_since_ms": NOW_MS - 1000 * age_s,
    }


def judged(
    brokers: list[dict[str, Any]] | None = None,
    problems: list[dict[str, Any]] | None = None,
    transactions: list[dict[str, Any]] | None = None,
    consumers: list[dict[str, Any]] | None = None,
) -> list[ConsoleProblem]:
    parts = {
        "cluster": {"problems": problems or [], "brokers": brokers or []},
        "transactions": transactions or [],
        "consumers": {"consumers": consumers or [], "sinks": []},
    }
    return judge(parts, NOW_MS)


def texts_of(found: list[ConsoleProblem]) -> list[str]:
    return [f"{each.severity.value}: {each.message}" for each in found]


def lake(name: str, worker: WorkerState, *lags: int | None) -> dict[str, Any]:
    partitions = [{"lag": each} for each in lags]
    asked = {"stopped": "its location was restored", "stopped_hint": "Drop the lake."}
    stop = asked if worker is WorkerState.STOPPED else {"stopped": "", "stopped_hint": ""}
    return {"name": name, "worker": worker, "topics": [{"partitions": partitions}], **stop}


def test_lakes_with_a_question_or_without_a_needed_worker_are_problems() -> None:
    """A lake whose worker runs at times has no problem while its tables are complete."""
    lakes = [
        lake("fine", WorkerState.REPORTING, 5, None),
        lake("complete", WorkerState.ABSENT, 0, None),
        lake("behind", WorkerState.ABSENT, 3, None, 4),
        lake("asks", WorkerState.STOPPED, 3),
    ]
    found = judge({"lakes": lakes}, NOW_MS)
    assert texts_of(found) == [
        "warning: lake behind has no worker, and its tables lack 7 records",
        "bad: the worker of lake asks stopped: its location was restored",
    ]
    assert [each.hint for each in found] == [
        "Start its worker: isolog lake run behind",
        "Drop the lake.",
    ]
    assert [each.href for each in found] == ["/lakes/behind", "/lakes/asks"]


@pytest.mark.rule("the problems that the console shows", "console/problems.py")
def test_normal_states_are_no_problems():
    """Scheduled jobs between two runs, closed groups and slow readers are normal."""
    calm = [
        reader("a", state, trend=trend, waits_for=[])
        for state in ReaderState
        for trend in LagTrend
        if state not in (ReaderState.STALLED, ReaderState.GONE)
        and (state, trend) != (ReaderState.CATCHING_UP, LagTrend.GROWS)
    ]
    assert judged([broker("1"), broker("2")], [], [transaction(30)], calm) == []
    assert judge({}, NOW_MS) == []


def test_causes_come_before_their_effects():
    found = judged(
        [broker("1", status={"disk_free": 0}), broker("3", answers=answers(30, 30, None))],
        [
            {"kind": kind, "message": kind, "count": 1, "names": []}
            for kind in ("metadata_lost", "dead_broker", "no_leader", "under_replicated")
        ],
        [transaction(900)],
        [reader("a", "stalled")],
    )
    order = ["metadata_lost", "dead_broker", "no_answer 3", "no_leader", "under_repl", "disk 1"]
    assert [each.key[: len(start)] for each, start in zip(found, order, strict=False)] == order
    assert [each.key.split()[0] for each in found[6:]] == ["holds", "stalled"]


@pytest.mark.rule("the place of a problem below its cause", "console/problems.py")
def test_effects_are_below_their_causes():
    """A dead broker explains its partitions, and they the readers. Others are no effects of it."""
    reads = [{"topic": "orders", "partition": 2, "lag": 1}]
    found = judged(
        [broker("1", status={"disk_free": 0}), broker("2", alive=False)],
        [
            {"kind": kind, "message": kind, "count": 1, "names": names}
            for kind, names in (
                ("dead_broker", ["2"]),
                ("no_leader", ["orders/2"]),
                ("under_replicated", ["audit/0"]),
            )
        ],
        [transaction(900, state="committing"), transaction(400, transactional_id="b", number=8)],
        [reader("a", "stalled", partitions=reads), reader("c", "stalled")],
    )
    kinds = {each.key: each.key.split()[0] for each in found} | {"": ""}
    assert [(each.key.split()[0], kinds[each.cause]) for each in found] == [
        ("dead_broker", ""),
        ("no_leader", "dead_broker"),
        ("holds", "no_leader"),
        ("stalled", "no_leader"),
        ("under_replicated", "dead_broker"),
        ("disk", ""),
        ("holds", ""),
        ("stalled", ""),
    ]


def test_full_disk_explains_its_partitions():
    found = judged(
        [broker("1", status={"disk_free": 0, "refused": {"audit/0": "DISK_FULL"}})],
        [
            {"kind": "below_min_isr", "message": "m", "count": 1, "names": ["audit/0"]},
            {"kind": "under_replicated", "message": "m", "count": 1, "names": ["other/0"]},
        ],
    )
    causes = {each.key.split()[0]: each.cause for each in found}
    assert causes["below_min_isr"] == "refused DISK_FULL 1"
    assert causes["under_replicated"] == ""


def test_causes_are_listed_before_worse_effects():
    found = judged(
        [broker("1", full_in_s=2 * 3600.0)],
        [{"kind": "no_leader", "message": "m", "count": 1, "names": []}],
        [transaction(100)],
        [reader("slow", "catching_up", trend="grows"), reader("a", "stalled")],
    )
    assert [(each.key.split()[0], each.severity.value) for each in found] == [
        ("disk", "warning"),
        ("no_leader", "bad"),
        ("holds", "warning"),
        ("stalled", "bad"),
        ("behind", "warning"),
    ]


@pytest.mark.parametrize("kind", ["metadata_away", "metadata_lost"])
def test_readers_do_not_fall_behind_during_a_store_outage(kind):
    problems = [{"kind": kind, "message": "m", "count": 1, "names": []}]
    readers = [reader("slow", "catching_up", trend="grows"), reader("a", "stalled")]
    found = judged([], problems, consumers=readers)
    assert [each.key.split()[0] for each in found] == [kind, "stalled"]


def test_a_full_disk_is_listed_once():
    full = broker(
        "1",
        status={"disk_free": 0, "disk_total": GIB, "refused": {"t/0": "DISK_FULL"}, "damaged": {}},
    )
    problem = {"kind": "refused_writes", "message": "m", "count": 1, "names": ["t/0"]}
    (found,) = judged([full], [problem])
    assert found.message.startswith("the disk of broker 1 is full: 1 replica refuses writes")


@pytest.mark.parametrize("kind", ["metadata_away", "metadata_lost"])
def test_hint_to_start_a_broker_needs_a_working_store(kind):
    problems = [
        {"kind": each, "message": each, "count": 1, "names": []} for each in (kind, "no_leader")
    ]
    hints = {each.key.strip(): each.hint for each in judged(problems=problems)}
    assert (
        hints["no_leader"] == "A leader is elected when the metadata store accepts changes again."
    )
    (alone,) = judged(problems=problems[1:])
    assert alone.hint.startswith("Start a broker")


def test_problems_of_brokers_have_hints():
    dead = {"kind": "dead_broker", "message": "broker 2 is dead", "count": 1, "names": ["2"]}
    lacks = {"kind": "under_replicated", "message": "m", "count": 1, "names": ["orders/2"]}
    first, second = judged(problems=[dead, lacks])
    assert first.hint.endswith("isolog cluster decommission 2")
    assert "If its process hangs, stop it first, by kill -9 if necessary." in first.hint
    assert (first.places, second.places) == ((), ("orders/2",))


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (
            answers(30, 0, 0.4),
            [0.004, 0.006],
            ["bad: broker 2 is slow: its response time is 0.4 s"],
        ),
        (answers(3, 0, 0.4), [0.004, 0.006], []),  # too early
        (answers(30, 0, 0.1), [0.004, 0.006], []),  # too fast to matter
        (answers(30, 0, 0.4), [0.3, 0.2], []),  # all are slow, maybe because of this machine
        (answers(30, 0, 0.4), [], []),
        (answers(30, 0, 1.4), [], ["bad: broker 2 is slow"]),
        (answers(30, 1, 0.004), [0.004], []),
        (
            answers(30, 12, 0.9),
            [0.004],
            ["bad: broker 2 is alive, and does not answer 12 of 30 requests in time"],
        ),
    ],
)
def test_broker_is_slow_relative_to_the_others(own, others, expected):
    brokers = [broker("2", answers=own)]
    brokers += [broker(f"o{n}", answers=answers(30, 0, each)) for n, each in enumerate(others)]
    found = texts_of(judged(brokers))
    assert len(found) == len(expected)
    assert all(each.startswith(start) for each, start in zip(found, expected, strict=True))


def test_silent_live_broker_is_a_problem_and_dead_brokers_are_not_repeated():
    gone = {"status": None, "answers": answers(30, 30, None)}
    assert texts_of(judged([broker("2") | gone])) == ["bad: broker 2 is alive, and does not answer"]
    assert judged([broker("2") | gone | {"alive": False}]) == []


@pytest.mark.parametrize("kind", ["metadata_away", "metadata_lost"])
def test_hint_to_stop_a_broker_needs_a_working_store(kind):
    silent = broker("2") | {"status": None, "answers": answers(30, 30, None)}
    assert "Stop it" in judged([silent])[0].hint
    away = {"kind": kind, "message": "the store does not answer", "count": 1, "names": []}
    found = judge({"cluster": {"problems": [away], "brokers": [silent]}}, 0)
    assert [each.key for each in found] == [f"{kind} ", "no_answer 2"]
    assert all("Stop it" not in each.hint for each in found)


@pytest.mark.parametrize(
    ("full_in_s", "free", "expected"),
    [
        (None, 60, None),
        (10 * 3600.0, 60, None),
        (2 * 3600.0, 60, "warning: the disk of broker 3 will be full in about 2 h"),
        (700.0, 60, "bad: the disk of broker 3 will be full in about 12 min"),
        (30.0, 60, "bad: the disk of broker 3 will be full in less than a minute"),
        (None, 8, "bad: the disk of broker 3 is 92% full"),
        (2 * 3600.0, 8, "bad: the disk of broker 3 will be full in about 2 h"),
    ],
)
def test_filling_disk_is_a_problem_before_it_is_full(full_in_s, free, expected):
    found = judged([broker("3", full_in_s=full_in_s, status={"disk_free": free * GIB})])
    if expected is None:
        assert found == []
    else:
        (one,) = found
        assert texts_of(found)[0].startswith(expected)
        assert one.message.endswith("audit grows fastest on it")
        assert "retention.bytes" in one.hint


@pytest.mark.parametrize(
    ("topics", "fills", "expected"),
    [
        ([987], 2_000_000, ", and other programs than isolog fill it"),
        ([1_100_000], 2_000_000, ", and t0 grows fastest on it"),
        ([700_000, 600_000, 0], 2_000_000, ", and t0 and t1 grow fastest on it"),
        ([987], 0, ""),
        ([0], 0, ""),
        ([], 2_000_000, ", and other programs than isolog fill it"),
    ],
)
def test_topics_that_cause_most_of_the_growth_of_a_disk_are_named(topics, fills, expected):
    on_disk = [
        {"topic": f"t{number}", "size": GIB, "bytes_per_s": each}
        for number, each in enumerate(topics)
    ]
    filling = broker("3", full_in_s=1200.0, on_disk=on_disk, fills_bytes_per_s=fills)
    (found,) = judged([filling])
    assert found.message == (
        f"the disk of broker 3 will be full in about 20 min at its present growth{expected}"
    )


def test_full_disk_is_one_line_with_its_cause():
    refused = dict.fromkeys(("audit/0", "clicks/1", "clicks/2"), "DISK_FULL")
    status = {"refused": refused, "disk_free": 0}
    (led,) = judged([broker("3", status=status, led=["clicks/1"], full_in_s=0.0)])
    assert led.message == (
        "the disk of broker 3 is full: 3 replicas refuse writes, and it leads clicks/1, and"
        " audit grows fastest on it"
    )
    assert led.places == ("clicks/1", "audit/0", "clicks/2")
    (followed,) = judged([broker("3", status=status)])
    assert followed.message == (
        "the disk of broker 3 is full: 3 replicas refuse writes, and audit grows fastest on it"
    )
    assert (followed.key, followed.hint) == (led.key, led.hint)
    (one,) = judged([broker("3", status={"refused": {"a/0": "STORAGE_FAILURE"}})])
    assert one.href == "/topics/a/0"
    assert "fails (STORAGE_FAILURE)" in one.message
    assert "Replace the disk" in one.hint


def test_hint_differs_if_other_programs_fill_the_disk():
    status = {"refused": {"a/0": "DISK_FULL"}, "disk_free": 0}
    full, filling = (
        judged([broker("3", on_disk=[], **each)])[0].hint
        for each in ({"status": status}, {"full_in_s": 600.0})
    )
    for hint in (full, filling):
        assert hint.startswith("Stop the program that fills it")
        assert "retention" not in hint


def test_blocking_transaction_is_listed_with_its_waiting_readers():
    assert judged(transactions=[transaction(900, held_back=0)]) == []
    (one,) = judged(transactions=[transaction(100)])
    assert one.severity is Severity.WARNING
    waits = {"waits_for": [{"number": 7, "transactional_id": "nightly-import"}]}
    (one,) = judged(
        transactions=[transaction(900)],
        consumers=[reader(name, "waiting_at_lso", **waits) for name in ("fraud-check", "billing")],
    )
    assert one.severity is Severity.BAD
    assert one.message == (
        "transaction nightly-import is open, and holds back 1,200 records of orders/2"
        " (billing and fraud-check wait for it)"
    )
    assert one.hint.endswith("isolog transactions abort nightly-import")
    assert one.since_ms == NOW_MS - 900_000
    (one,) = judged(transactions=[transaction(900, held_back=1)])
    assert "holds back 1 record of orders/2" in one.message
    (one,) = judged(transactions=[transaction(900, state="committing")])
    assert "abort" not in one.hint


def test_problems_of_readers_are_sorted_by_severity():
    found = judged(
        consumers=[
            reader("slow", "catching_up", trend="grows"),
            reader("dash boards", "stalled"),
            reader("nightly", "gone"),
            reader("x", "waiting_at_lso", waits_for=[unlisted(60)]),
        ]
    )
    assert texts_of(found) == [
        "bad: query dash boards is stalled, 40 records behind",
        "bad: query nightly ended without being closed, or hangs, 40 records behind",
        "warning: query slow is falling behind: writes are faster than its reads, and it is"
        " 40 records behind",
        "warning: query x waits for a transaction that you have no permission to see",
    ]
    assert found[0].href == "/consumers/dash%20boards"
    (one,) = judged(consumers=[reader("slow", "stalled", lag=1)])
    assert one.message == "query slow is stalled, 1 record behind"


@pytest.mark.parametrize(("age_s", "is_shown"), [(0, False), (20, False), (60, True)])
def test_transaction_is_hidden_after_a_minute_without_it_in_the_lists(age_s, is_shown):
    """The partitions are read before or after the list, so a new transaction is in one of them."""
    waits = reader("x", "waiting_at_lso", waits_for=[unlisted(age_s)])
    assert bool(judged(consumers=[waits])) is is_shown


def test_lost_member_of_a_group_is_shown_for_an_hour():
    def found(state: str, age_s: int) -> list[str]:
        lost_ms = NOW_MS - 1_000 * age_s
        more = {"group": {"members": []}, "lost_member": "m1", "lost_ms": lost_ms}
        return texts_of(judged(consumers=[reader("billing", state, kind="client", **more)]))

    assert found("running", 180) == ["warning: group billing lost member m1 about 3 min ago"]
    assert found("running", 3_600) == []
    assert found("gone", 180) == [
        "bad: group billing ended without being closed, or hangs, 40 records behind"
    ]


@pytest.mark.parametrize(
    ("state", "members", "expected"),
    [
        ("running", [{"id": "m2"}], "The current members read its partitions."),
        ("empty", [], "The group has no members now"),
    ],
)
def test_the_hint_of_a_lost_member_names_the_readers_of_its_partitions(state, members, expected):
    more = {"group": {"members": members}, "lost_member": "m1", "lost_ms": NOW_MS}
    (one,) = judged(consumers=[reader("billing", state, kind="client", **more)])
    assert expected in one.hint
    assert "other members" not in one.hint


def test_problem_keeps_the_time_of_its_first_observation():
    seen = FirstSeen()
    one = ConsoleProblem("disk 1", Severity.BAD, "full in 5 min")
    assert seen.stamp([one], 1000)[0].since_ms == 1000
    assert seen.stamp([], 6_000) == []
    again = ConsoleProblem("disk 1", Severity.BAD, "full in 4 min")
    assert seen.stamp([again], 11_000)[0].since_ms == 1000
    assert seen.stamp([], 22_000) == []
    assert seen.stamp([again], 40_000)[0].since_ms == 40_000


def test_problem_of_an_earlier_console_keeps_its_start() -> None:
    seen = FirstSeen()
    seen.restore({"dead 2": 1_000}, 500_000)
    assert seen.stamp([], 502_000) == []
    problem = ConsoleProblem("dead 2", Severity.BAD, "broker 2 is dead")
    assert seen.stamp([problem], 530_000)[0].since_ms == 1_000
    other = ConsoleProblem("dead 3", Severity.BAD, "broker 3 is dead")
    assert seen.stamp([other], 530_000)[0].since_ms == 530_000
