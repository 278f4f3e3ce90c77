"""The faults of a run. Each is a body, which ends at the end of all faults, or before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.simulation.faults import between, leaders, machines
from tests.simulation.schedule import Body
from tests.simulation.world import World

FAULTS: Final[Mapping[str, Callable[[World, str], Body]]] = {
    "crash": machines.crash,
    "power-cut": machines.cut_power,
    "sudden-end": machines.end_within_a_step,
    "pause": machines.pause,
    "failed-force": machines.fail_a_force,
    "full-disk": machines.fill_a_disk,
    "restart": machines.restart,
    "wipe": machines.wipe,
    "blackout": machines.black_out,
    "bad-network": between.trouble_the_network,
    "split": between.split,
    "slow-follower": between.slow_down,
    "store-outage": between.cut_off_the_store,
    "lost-race": between.win_races,
    "clock-step": between.step_the_clock,
    "lone-leader": leaders.leave_a_leader_alone,
    "changed-byte": machines.change_a_byte,
    "changed-bytes": machines.change_a_byte_on_each,
    "dead-disk": machines.ruin_a_disk,
}
"""By the kinds of ``form.FAULTS`` and ``form.NAMED_FAULTS``."""
