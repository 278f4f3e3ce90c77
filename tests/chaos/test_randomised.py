"""Random writers, readers at all four levels and kill -9, then a check of all results.

A failure prints its seed. ``ISOLOG_CHAOS_SEED`` runs it again (but not the order of threads).
``ISOLOG_CHAOS_SECONDS`` sets a longer run.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.chaos.checker import check
from tests.chaos.workers import (
    SCHEMA,
    TOPICS,
    Notes,
    Worker,
    following_reader,
    plain_writer,
    snapshot_reader,
    transactional_writer,
)
from tests.support import BrokerProcess

pytestmark = [pytest.mark.full, pytest.mark.chaos, pytest.mark.timeout(300)]

LEVELS = ("read_uncommitted", "read_replicated", "read_committed", "read_atomic")
SECONDS = float(os.environ.get("ISOLOG_CHAOS_SECONDS", "12"))
KILLS = 2


def test_random_run_has_no_violation(tmp_path: Path) -> None:
    seed = int(os.environ.get("ISOLOG_CHAOS_SEED", random.randrange(1 << 32)))
    print(f"ISOLOG_CHAOS_SEED={seed}")
    notes, kills = run(tmp_path, seed)
    writes, reads = pd.concat(notes.writes), pd.concat(notes.reads)
    assert notes.surprises == []
    assert kills >= KILLS
    assert set(reads["level"]) == set(LEVELS)
    finals = {f"final-{level}" for level in LEVELS} | {f"follow-{level}" for level in LEVELS}
    assert finals <= set(reads["reader"])
    problems = check(writes, reads, finals)
    assert not problems, "\n".join([f"seed {seed}", *map(str, problems)])


def run(folder: Path, seed: int) -> tuple[Notes, int]:
    """The whole history: the recorded results, and the number of kills."""
    notes, stop, end = Notes(), threading.Event(), threading.Event()
    chance = random.Random(seed)
    with BrokerProcess(folder / "log") as broker:
        with broker.connect() as log:
            for name, partitions in TOPICS.items():
                log.create_topic(name, partitions, schema=SCHEMA, config={"segment.bytes": 65_536})

        def worker(name: str, task) -> Worker:
            return Worker(name, seed, notes, stop, task)

        writers = [
            *(worker(f"plain-{n}", plain_writer(broker.connect)) for n in range(2)),
            *(worker(f"loader-{n}", transactional_writer(broker.connect)) for n in range(3)),
        ]
        snapshots = worker("snapshots", snapshot_reader(broker.connect, "read_atomic"))
        followers = [
            worker(f"follow-{level}", following_reader(broker.connect, level, end))
            for level in LEVELS
        ]
        everybody = [*writers, snapshots, *followers]
        for each in everybody:
            each.start()
        kills, until = 0, time.monotonic() + SECONDS
        while time.monotonic() < until or kills < KILLS or not notes.enough:
            time.sleep(0.3 + chance.random() * 2.0)
            broker.kill()
            broker.restart()
            kills += 1
        stop.set()
        for each in (*writers, snapshots):
            each.join(120)
        end.set()
        for each in followers:
            each.join(120)
        assert not [each.name for each in everybody if each.is_alive()]
        with broker.connect() as log:
            for level in LEVELS:
                called = time.monotonic_ns()
                for table in log.read(list(TOPICS), isolation=level, metadata=True).values():
                    notes.read(f"final-{level}", level, 0, table, called)
    return notes, kills
