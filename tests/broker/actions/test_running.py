"""A broker says what actions it has; ``tests/wire`` checks their handlers."""

from __future__ import annotations

from spark_stream.wire.calls import CALLS
from tests.support import BrokerProcess


def test_a_broker_lists_the_actions_of_the_table(shared: BrokerProcess):
    with shared.flight() as flight:
        listed = {each.type: each.description for each in flight.list_actions()}
    assert listed == {name: call.signature() for name, call in CALLS.items()}
    assert listed["commit-transaction"] == "CommitTransaction → TransactionDescription"
