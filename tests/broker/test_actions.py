"""Every action of the one table has a function that takes and gives what the table says."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from spark_stream.broker.actions import HANDLERS
from spark_stream.broker.here import Here
from spark_stream.wire.actions import ACTIONS
from tests.support import BrokerProcess


def test_every_action_has_a_function():
    assert set(HANDLERS) == set(ACTIONS)


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_takes_and_answers_what_the_table_says(name):
    hints = list(get_type_hints(HANDLERS[name]).values())
    assert hints == [Here, ACTIONS[name].request, ACTIONS[name].answer]


def test_a_broker_lists_the_actions_of_the_table(shared: BrokerProcess):
    with shared.flight() as flight:
        listed = {each.type: each.description for each in flight.list_actions()}
    assert listed == {name: str(action) for name, action in ACTIONS.items()}
    assert listed["commit-transaction"] == "CommitTransaction → TransactionFacts"
