"""The simulator finds bugs: each that is planted is found within twice the runs of ``make test``.

Most are found within a few dozen, the rarest once in a thousand or so: there a change of anything
that draws may move the first finding beyond two thousand.
"""

from __future__ import annotations

from itertools import chain

import pytest

from spark_stream.testing.simulation.runs import find
from tests.testing.planted import BUGS, IN_FILES
from tests.testing.test_simulator import RUNS

# Where the rarest were found when last looked: tried first, so that they take no minutes. Whoever
# changes what a run draws may have to look again: then all runs are tried, and it takes longer.
# The last two may take thousands of runs: tests of their rules find them at once, in
# tests/broker/test_fetches_and_epochs.py and tests/broker/test_replaced_leaders.py.
FOUND = {
    "a_cut_is_where_each_partition_is_stable": 51,
    "readers_of_what_is_replicated_see_the_rest": 412,
    "what_moves_is_not_forced": 142,
    "a_duplicate_is_acknowledged_at_once": 568,
    "who_is_being_added_is_not_waited_for": 20291,
    "a_force_that_failed_is_believed": 1066,
    "a_follower_far_behind_begins_anew_at_the_end": 249,
    "a_follower_takes_frames_of_any_epoch": 20750,
    "a_new_leader_ends_ranges_at_a_bound_that_it_does_not_know": 282,
    "markers_are_looked_for_in_any_epoch": 1466,
}


@pytest.mark.rule(
    "how a batch of a transaction gets into a partition",
    "broker/appends/joining.py",
    "broker/appends/batch.py",
)
@pytest.mark.rule("what holds in every simulated run", "testing/simulation/invariants/__init__.py")
@pytest.mark.slow
@pytest.mark.timeout(1200)  # for one of the rarest whose seed above is not true any more
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    BUGS[name](monkeypatch)
    seeds = chain([FOUND[name]] if name in FOUND else [], range(2 * RUNS))
    _, finding = find(seeds, disk_only=name in IN_FILES)
    assert finding is not None, f"{2 * RUNS} runs do not notice that {name.replace('_', ' ')}"
    assert not isinstance(finding.error, TypeError), "the plant itself is broken: its signature"
