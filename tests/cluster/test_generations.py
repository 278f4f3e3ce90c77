"""A broker vouches for its logs only if they hold all entries that it ever acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from spark_stream.cluster import generations as generations_module
from spark_stream.cluster.generations import (
    Doubt,
    FoundLogs,
    GenerationRecords,
    LastRun,
    decode,
    doubt,
    encode,
)
from spark_stream.consistency.ids import BrokerId, Generation
from tests.examples import examples
from tests.simulation.store import MemoryRecords, MemoryStore

TEN = {"t/0": 10, "t/1": 0}


def left(**changes) -> LastRun:
    facts = {"generation": Generation("g"), "run": "run-1", "ends": None, "boot": "boot-1"}
    return LastRun(**(facts | changes))


def found(**changes) -> FoundLogs:
    return FoundLogs(**({"run": "run-1", "ends": TEN, "intact": True, "boot": "boot-1"} | changes))


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (None, found(), Doubt.NEW),
        (left(), found(), None),
        (left(), found(run=None), Doubt.OTHER_DIRECTORY),
        (left(), found(run="run-0"), Doubt.OTHER_DIRECTORY),
        (left(), found(intact=False), Doubt.DAMAGED),
        (left(), found(boot="boot-2"), Doubt.MACHINE_ENDED),
        (left(), found(boot=None), Doubt.MACHINE_ENDED),
        (left(boot=None), found(boot=None), Doubt.MACHINE_ENDED),
        (left(force_failed=True), found(), Doubt.FORCE_FAILED),
        (left(ends=TEN), found(), None),
        (left(ends=TEN), found(boot="boot-2"), None),
        (left(ends=TEN, boot=None), found(boot=None), None),
        (left(ends=TEN), found(ends={"t/0": 9}), Doubt.MOVED_ENDS),
        (left(ends=TEN), found(ends={"t/0": 10}), None),  # the others were removed in the meantime
        (left(ends=TEN), found(ends={"t/0": 10, "u/0": 3}), None),  # another one came
        (left(ends=TEN), found(ends={"t/0": -1}), Doubt.MOVED_ENDS),
        (left(ends=TEN), found(run="run-0"), Doubt.OTHER_DIRECTORY),
        (left(ends=TEN), found(intact=False), Doubt.DAMAGED),
        (left(ends=TEN, force_failed=True), found(), Doubt.FORCE_FAILED),
    ],
)
def test_a_broker_vouches_by_the_table(before, now, reason):
    assert doubt(before, now) is reason


@given(
    st.builds(
        LastRun,
        generation=st.text(max_size=3).map(Generation),
        run=st.text(max_size=3),
        ends=st.none() | st.dictionaries(st.text(max_size=3), st.integers(-1, 3)),
        boot=st.none() | st.text(max_size=3),
        force_failed=st.booleans(),
    )
)
def test_the_codec_keeps_a_last_run(before):
    assert decode(encode(before)) == before


def names(prefix: str) -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"{prefix}{next(numbers)}"


@pytest.fixture
def generations(store) -> GenerationRecords:
    return GenerationRecords(store, BrokerId("b1"))


def test_a_broker_keeps_its_generation_over_a_kill_and_a_clean_shutdown(generations):
    fresh = names("g")
    assert generations.begin(found(run=None), "run-1", fresh) == ("g1", Doubt.NEW)
    assert generations.begin(found(run="run-1"), "run-2", fresh) == ("g1", None)
    generations.end("run-2", TEN)
    assert generations.begin(found(run="run-2", boot="boot-2"), "run-3", fresh) == ("g1", None)


def test_a_broker_whose_machine_ended_makes_a_new_generation(generations):
    fresh = names("g")
    generations.begin(found(run=None), "run-1", fresh)
    again = generations.begin(found(boot="boot-2"), "run-2", fresh)
    assert again == ("g2", Doubt.MACHINE_ENDED)
    assert generations.begin(found(run="run-2", boot="boot-2"), "run-3", fresh) == ("g2", None)


def test_a_clean_shutdown_counts_for_one_start(generations):
    fresh = names("g")
    generations.begin(found(run=None), "run-1", fresh)
    generations.end("run-1", TEN)
    assert generations.begin(found(), "run-2", fresh) == ("g1", None)
    later = found(run="run-2", boot="boot-2")
    assert generations.begin(later, "run-3", fresh) == ("g2", Doubt.MACHINE_ENDED)


def test_after_a_failed_fsync_no_start_vouches_until_a_new_generation(generations):
    fresh = names("g")
    generations.begin(found(run=None), "run-1", fresh)
    generations.force_failed("run-1")
    generations.end("run-1", TEN)
    assert generations.begin(found(), "run-2", fresh) == ("g2", Doubt.FORCE_FAILED)
    assert generations.begin(found(run="run-2"), "run-3", fresh) == ("g2", None)


def test_a_late_write_of_an_earlier_run_is_ignored(generations):
    fresh = names("g")
    generations.end("run-0", TEN)
    generations.begin(found(run=None), "run-1", fresh)
    generations.begin(found(), "run-2", fresh)
    generations.end("run-1", TEN)
    generations.force_failed("run-1")
    later = found(run="run-2", boot="boot-2")
    assert generations.begin(later, "run-3", fresh) == ("g2", Doubt.MACHINE_ENDED)


def test_a_broker_that_dies_between_its_record_and_its_directory_begins_a_new_generation(
    generations,
):
    fresh = names("g")
    generations.begin(found(run=None), "run-1", fresh)
    generations.begin(found(), "run-2", fresh)
    again = generations.begin(found(), "run-3", fresh)
    assert again == ("g2", Doubt.OTHER_DIRECTORY)


def test_each_broker_has_its_own_generation(store):
    fresh = names("g")
    one, two = (GenerationRecords(store, BrokerId(each)) for each in ("b1", "b2"))
    assert one.begin(found(run=None), "run-1", fresh)[0] == "g1"
    assert two.begin(found(run=None), "run-1", fresh)[0] == "g2"
    assert one.begin(found(), "run-2", fresh) == ("g1", None)


# -- the invariant, against a machine with any possible loss
# ----------------------------------------


class BrokerOnAMachine:
    """A broker with one log, of which a part is synced, and a directory that has the run.

    A kill keeps all that was written. A power cut keeps synced entries and any part of the rest. A
    failed fsync drops a part of the unsynced entries.
    """

    def __init__(self) -> None:
        self.generations = GenerationRecords(MemoryStore(MemoryRecords()), BrokerId("b1"))
        self.fresh = names("g")
        self.runs = names("run-")
        self.boot = 0
        self.log: list[int] = []
        self.forced = 0
        self.lost_forced = False
        self.directory: str | None = None
        self.backup: tuple[list[int], str | None] = ([], None)
        self.run = ""
        self.acknowledged: dict[Generation, list[int]] = {}
        self.kept = 0

    def start(self) -> None:
        seen = FoundLogs(
            self.directory,
            {"t/0": len(self.log)},
            intact=not self.lost_forced,
            boot=f"boot-{self.boot}",
        )
        self.run = self.runs()
        self.generation, reason = self.generations.begin(seen, self.run, self.fresh)
        self.kept += reason is None
        assert (reason is None) == (self.generation in self.acknowledged)
        held = self.acknowledged.setdefault(self.generation, list(self.log))
        assert self.log[: len(held)] == held, f"{self.generation} lacks what it acknowledged"
        self.lost_forced = False
        self.forced = min(self.forced, len(self.log))
        self.force_failed = False

    def name_directory(self) -> None:
        self.directory = self.run

    def append(self, entry: int) -> None:
        if not self.force_failed:
            self.log.append(entry)
            self.acknowledged[self.generation] = list(self.log)

    def force(self) -> None:
        if not self.force_failed:
            self.forced = len(self.log)

    def fail_force(self, lost: int) -> None:
        if not self.force_failed:
            self.force_failed = True
            self.generations.force_failed(self.run)
            del self.log[max(self.forced, len(self.log) - lost) :]

    def end(self) -> None:
        if not self.force_failed:
            self.force()
            self.generations.end(self.run, {"t/0": len(self.log)})

    def lose_power(self, lost: int) -> None:
        self.boot += 1
        del self.log[max(self.forced, len(self.log) - lost) :]

    def damage(self, lost: int) -> None:
        """The disk lies: synced entries are lost, which the log detects when it opens."""
        if lost and self.log:
            del self.log[max(0, len(self.log) - lost) :]
            self.lost_forced = True

    def cut(self, lost: int) -> None:
        """Somebody removes the last files of a broker that does not run: that leaves no trace."""
        del self.log[max(0, len(self.log) - lost) :]

    def save(self) -> None:
        self.backup = (list(self.log), self.directory)

    def restore(self) -> None:
        """Somebody puts a copy from an earlier run in the directory's place, or an empty one."""
        log, run = self.backup
        if run == self.run:
            return
        self.log, self.directory = list(log), run
        self.forced = len(log)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append"] * 4
            + ["force", "kill", "kill", "end", "power", "end and power", "damage", "save"]
            + ["restore", "fail", "die early", "end and cut"]
        ),
        st.integers(0, 3),
    ),
    max_size=40,
)


def check_generations(events: list[tuple[str, int]]) -> None:
    """Applies events to a broker, and checks the entries of its generation at each start."""
    broker = BrokerOnAMachine()
    broker.start()
    broker.name_directory()
    for number, (what, much) in enumerate(events):
        match what:
            case "append":
                broker.append(number)
                continue
            case "force":
                broker.force()
                continue
            case "save":
                broker.save()
                continue
            case "fail":
                broker.fail_force(much)
                continue
            case "end":
                broker.end()
            case "power":
                broker.lose_power(much)
            case "end and power":
                broker.end()
                broker.lose_power(much)
            case "damage":
                broker.damage(much)
            case "end and cut":
                broker.end()
                broker.cut(much)
            case "restore":
                broker.restore()
            case "die early":
                broker.start()
        broker.start()
        broker.name_directory()


@pytest.mark.rule(
    "generations: the right of a starting broker to vouch for its logs", "cluster/generations.py"
)
@settings(max_examples=examples(400))
@given(EVENTS)
def test_a_generation_has_all_that_was_acknowledged_in_it(events):
    check_generations(events)


def test_a_broker_that_only_loses_its_process_vouches_each_time():
    """The property above would hold for one that never vouches, too."""
    broker = BrokerOnAMachine()
    broker.start()
    broker.name_directory()
    for number in range(10):
        broker.append(number)
        if number % 2:
            broker.end()
            broker.lose_power(3)
        broker.start()
        broker.name_directory()
    assert broker.kept == 10


@pytest.mark.parametrize("ignored", ["run", "ends", "boot", "intact", "force_failed"])
def test_each_part_of_the_evidence_is_needed(ignored, monkeypatch):
    """A decision that ignores one of the facts breaks the invariant."""

    def careless(before: LastRun | None, now: FoundLogs) -> Doubt | None:
        if before is None:
            return doubt(before, now)
        facts = {
            "run": {"run": before.run},
            "ends": {"ends": before.ends or now.ends},
            "boot": {"boot": before.boot},
            "intact": {"intact": True},
        }.get(ignored, {})
        seen = {name: getattr(now, name) for name in ("run", "ends", "intact", "boot")}
        if ignored == "force_failed":
            before = LastRun(before.generation, before.run, before.ends, before.boot)
        return doubt(before, FoundLogs(**(seen | facts)))

    monkeypatch.setattr(generations_module, "doubt", careless)
    # Not ``examples``: the rarest takes more, and a search ends with the first that it finds.
    search = settings(max_examples=5_000, phases=[Phase.generate], database=None)
    with pytest.raises(AssertionError, match="lacks what it acknowledged"):
        search(given(EVENTS)(check_generations))()
