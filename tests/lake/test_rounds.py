"""Rounds of several workers over one location, with faults, in every order that a seed gives."""

from __future__ import annotations

import pytest

from spark_stream.errors import LakeStopped
from spark_stream.lake.cuts import CUTS
from spark_stream.lake.rounds import run_round
from spark_stream.lake.versions import confirm
from tests.lake.lake_world import TOPICS, Faults, LakeWorld

RUNS = 150


def simulate(seed: int, *, events: int = 2400, workers: int = 2) -> LakeWorld:
    """Interleave writers, workers and faults. Check each version, and the end."""
    world = LakeWorld(seed, workers)
    world.put_hook = lambda table: world.check_table(table) if table in TOPICS else None
    draw = world.random
    if seed % 7 == 6:
        world.log.start_above_zero()
    for _ in range(events):
        kind = draw.random()
        world.clock += kind < 0.3
        world.log.clock = world.clock
        world.step_cleaning()
        if kind < 0.75:
            world.step(draw.randrange(workers))
        elif kind < 0.82:
            if len(world.log.open_ones()) < 2:
                world.log.begin()
        elif kind < 0.88 and world.log.open_ones():
            place = draw.choice(sorted(world.log.ends))
            world.log.append(draw.choice(world.log.open_ones()), place, draw.randrange(1, 4))
        elif kind < 0.97 and world.log.open_ones():
            number = draw.choice(world.log.open_ones())
            world.log.transactions[number].outcome = draw.choice(("committed", "aborted"))
        elif kind < 0.975:
            world.put_late()
        elif kind < 0.985:
            world.compact(draw.choice(TOPICS))
        elif kind < 0.99:
            name = draw.choice(TOPICS)
            world.log.ends.setdefault((name, len([t for t, _ in world.log.ends if t == name])), 0)
        elif kind < 0.992:
            world.log.columns[draw.choice(TOPICS)] += 1
        elif kind < 0.994 and seed % 2:
            world.log.retention_ms = 150
        elif kind < 0.997:
            world.remove_local_records()
        elif kind < 0.9975 and seed % 5 == 0:
            world.delete_or_create(draw.choice(TOPICS))
    world.finish()
    world.check_cuts()
    return world


@pytest.mark.parametrize("seed", range(RUNS))
def test_each_committed_record_is_in_its_table_once(seed: int) -> None:
    simulate(seed, workers=1 + seed % 3)


def test_schedules_reach_cuts_conflicts_and_outdated_rounds() -> None:
    worlds = [simulate(seed, workers=2) for seed in range(30)]
    assert sum(len(world.cuts) for world in worlds) > 100
    assert sum(world.outdated for world in worlds) > 10
    assert sum(world.merged for world in worlds) > 10
    assert sum(world.orphans for world in worlds) > 100


def test_a_restored_table_stops_the_worker() -> None:
    stopped = 0
    for seed in range(40):
        world = LakeWorld(seed, 2, Faults(0, 0, 0, 0, 0))
        for number in range(4):
            world.log.begin()
            world.log.append(number, ("orders", 0), 2)
            world.log.append(number, ("audit", 0), 1)
            world.log.transactions[number].outcome = "committed"
            world.run(0, steps=30)
        if "orders" not in world.versions or not world.restore("orders"):
            continue
        with pytest.raises(LakeStopped, match="restored an older version"):
            world.run(1, steps=60)
        stopped += 1
    assert stopped > 10


def settled_world() -> LakeWorld:
    """Return a world whose tables have six transactions, each in a separate version."""
    world = LakeWorld(0, 2, Faults(0, 0, 0, 0, 0))
    for number in range(6):
        world.log.begin()
        world.log.append(number, ("orders", 0), 2)
        world.log.append(number, ("audit", 0), 1)
        world.log.transactions[number].outcome = "committed"
        world.finish()
    return world


def test_an_older_copy_of_a_table_stops_the_worker() -> None:
    world = settled_world()
    world.copy_back("orders", len(world.versions["orders"]) - 2)
    with pytest.raises(LakeStopped, match="an older copy of it was restored"):
        world.finish()


def world_with_recorded_offsets() -> LakeWorld:
    world = settled_world()
    world.tiered = {("orders", 0): 12, ("orders", 1): 0, ("audit", 0): 6}
    return world


def test_an_older_copy_below_the_log_start_is_no_fault_of_retention() -> None:
    world = world_with_recorded_offsets()
    world.remove_local_records()
    for name in (*TOPICS, CUTS):
        world.copy_back(name, len(world.versions[name]) - 2)
    with pytest.raises(LakeStopped, match=r"recorded offset \((12|6)\): an older copy"):
        world.finish()


@pytest.mark.parametrize("lost", [(*TOPICS, CUTS), ("orders",), (CUTS,)])
def test_a_location_without_the_recorded_tables_stops_a_new_worker(lost: tuple[str, ...]) -> None:
    world = world_with_recorded_offsets()
    for name in lost:
        world.copy_back(name, 0)
    with pytest.raises(LakeStopped, match="is not in the location of the lake") as error:
        world.finish()
    assert "Mount or restore the location" in str(error.value)
    assert not any(world.versions[name] for name in lost)


def test_a_table_that_disappears_stops_a_running_worker() -> None:
    world = settled_world()
    lake = world._new_lake()
    for _ in world._drive(run_round(lake)):
        pass
    for name in (*TOPICS, CUTS):
        world.copy_back(name, 0)
    with pytest.raises(LakeStopped, match="was there before"):
        for _ in world._drive(run_round(lake)):
            pass


def test_no_offset_is_recorded_beyond_files_that_were_removed() -> None:
    world = settled_world()
    table = world.table("orders")
    for _ in world._drive(confirm(table)):
        pass
    world.log.begin()
    world.log.append(6, ("orders", 0), 5)
    world.finish()
    changed = world.table("orders")
    world.deleted |= changed.files.keys() - table.files.keys()
    for version in range(table.version + 1, changed.version + 1):
        table.apply(version, world.versions["orders"][version])
    with pytest.raises(LakeStopped, match="has files that were removed"):
        for _ in world._drive(confirm(table)):
            pass


@pytest.mark.parametrize("is_created_again", [False, True])
def test_the_other_tables_continue_after_a_topic_was_deleted(is_created_again: bool) -> None:
    world = settled_world()
    version = world.table("audit").version
    world.log.delete("audit")
    if is_created_again:
        world.log.create_again("audit")
    world.log.begin()
    world.log.append(6, ("orders", 0), 5)
    world.finish()
    assert world.table("orders").offset("orders-1", 0) == 17
    assert world.table("audit").version == version
    world.check_cuts()


def test_a_lake_without_topics_stops() -> None:
    world = settled_world()
    for name in TOPICS:
        world.log.delete(name)
    with pytest.raises(LakeStopped, match="all topics of the lake were deleted"):
        world.finish()


def test_records_that_retention_removed_stop_the_worker() -> None:
    world = settled_world()
    world.log.begin()
    world.log.append(6, ("orders", 0), 5)
    world.log.log_starts["orders", 0] = 14
    with pytest.raises(LakeStopped, match="retention removed records"):
        world.finish()


def test_a_cut_below_the_table_stops_the_worker() -> None:
    world = settled_world()
    world.log.ends["orders", 0] -= 1
    with pytest.raises(LakeStopped, match="lost committed records"):
        world.finish()
