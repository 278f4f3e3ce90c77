"""Versions that expired while a worker was paused, step by step."""

from __future__ import annotations

import pytest

from spark_stream.errors import LakeStopped, LakeUnavailable
from spark_stream.lake import steps
from spark_stream.lake.delta.actions import Action, Txn
from spark_stream.lake.delta.table import Table
from spark_stream.lake.versions import catch_up, put
from spark_stream.steps import Step, run_script

LAST = 12


def actions(version: int, of: str = "real") -> list[Action]:
    return [Action(txn=Txn(of, version))]


class Location:
    """The versions of one table, and the checkpoint at its floor. The first step may fail."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.files = {version: actions(version) for version in range(floor, LAST + 1)}
        self.fails: type[Step[object]] | None = None
        self.has_checkpoint = True

    def carry_out(self, step: Step[object]) -> object:
        if self.fails is not None and isinstance(step, self.fails):
            self.fails = None
            raise LakeUnavailable("no answer")
        match step:
            case steps.ReadVersion(_, version):
                return self.files.get(version)
            case steps.PutVersion(_, version, content):
                return self.files.setdefault(version, content) is content
            case steps.ReadFloor():
                return self.floor
            case steps.ReadCheckpoint(_, version) if version == self.floor and self.has_checkpoint:
                table = Table("t")
                table.restore(self.floor, actions(self.floor))
                return table
        return None


def state(version: int) -> Table:
    """Return the state of a worker that was paused at a version."""
    table = Table("t")
    table.restore(version, actions(version))
    return table


@pytest.mark.parametrize("version", range(LAST))
def test_a_paused_worker_continues_from_the_checkpoint(version: int) -> None:
    table = state(version)
    run_script(catch_up(table), Location(floor=8).carry_out)
    assert (table.version, table.txns["real"].version) == (LAST, LAST)


@pytest.mark.parametrize("version", range(LAST))
def test_a_put_below_the_floor_is_not_a_part_of_the_table(version: int) -> None:
    table, location = state(version), Location(floor=8)
    run_script(put(table, actions(version + 1, "late")), location.carry_out)
    assert (table.version, "late" in table.txns) == (LAST, False)


@pytest.mark.parametrize("fails", [steps.ReadFloor, steps.ReadCheckpoint])
def test_versions_of_late_puts_do_not_count_after_an_error(fails: type[Step[object]]) -> None:
    """The places up to the floor are full, so the state has the last version after the error."""
    table, location = state(3), Location(floor=8)
    location.files |= {version: actions(version, "late") for version in range(4, 8)}
    location.fails = fails
    with pytest.raises(LakeUnavailable):
        run_script(catch_up(table), location.carry_out)
    run_script(catch_up(table), location.carry_out)
    assert (table.version, "late" in table.txns) == (LAST, False)


def test_a_floor_without_its_checkpoint_stops() -> None:
    location = Location(floor=8)
    location.has_checkpoint = False
    with pytest.raises(LakeStopped, match="the checkpoint 8 of the table t was removed"):
        run_script(catch_up(state(3)), location.carry_out)
