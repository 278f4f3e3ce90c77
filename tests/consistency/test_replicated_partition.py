"""A whole partition of several replicas, in any order of events; and mistakes that this finds.

The partition in memory (``partition_model``) runs the production rules. It is checked after each
small step, and in the end, when all trouble is over, all replicas must be in sync and the same.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.consistency.partition_model import Cluster
from tests.consistency.partition_steps import WEIGHTS, run

RUNS = 300


@pytest.mark.parametrize("part", range(4))
def test_runs_with_crashes_and_lost_messages_lose_nothing_that_was_committed(part):
    """``run(seed)`` repeats a run."""
    for seed in range(part * RUNS, (part + 1) * RUNS):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"run({seed}) of partition_steps finds it") from error


class PartitionMachine(RuleBasedStateMachine):
    """The same steps, chosen by Hypothesis, which makes what it finds short."""

    @initialize(
        brokers=st.integers(1, 4),
        factor=st.integers(1, 3),
        least=st.integers(1, 2),
        moves=st.booleans(),
    )
    def begin(self, brokers: int, factor: int, least: int, moves: bool):
        self.cluster = Cluster(
            brokers, min(factor, brokers), least, lambda options: options[0], moves=moves
        )

    @rule(step=st.sampled_from(list(WEIGHTS)), data=st.data())
    def do(self, step, data):
        self.cluster.choose = lambda options: data.draw(st.sampled_from(options))
        step(self.cluster)

    @invariant()
    def everything_holds(self):
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self):
        if hasattr(self, "cluster"):
            self.cluster.check_same()
            self.cluster.heal()


TestPartition = PartitionMachine.TestCase
TestPartition.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
