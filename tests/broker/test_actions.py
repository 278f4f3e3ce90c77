"""A broker says what actions it has; ``tests/wire`` holds the table against their functions."""

from __future__ import annotations

from spark_stream.wire.actions import ACTIONS
from tests.support import BrokerProcess


def test_a_broker_lists_the_actions_of_the_table(shared: BrokerProcess):
    with shared.flight() as flight:
        listed = {each.type: each.description for each in flight.list_actions()}
    assert listed == {name: str(action) for name, action in ACTIONS.items()}
    assert listed["commit-transaction"] == "CommitTransaction → TransactionDescription"
