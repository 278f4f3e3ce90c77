"""The table of actions: what it says of an action is what the action's function takes and gives."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from spark_stream.broker.actions import ACTIONS
from spark_stream.broker.here import Here
from tests.support import BrokerProcess


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_takes_and_answers_what_the_table_says(name):
    action = ACTIONS[name]
    hints = get_type_hints(action.act)
    assert list(hints.values()) == [Here, action.takes, action.answers]


def test_a_broker_lists_the_actions_of_the_table(shared: BrokerProcess):
    with shared.flight() as flight:
        listed = {each.type: each.description for each in flight.list_actions()}
    assert listed == {name: action.description for name, action in ACTIONS.items()}
    assert listed["commit-transaction"] == "CommitTransaction → TransactionFacts"
