"""The one table of actions, against the broker that runs them and the client that asks for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import get_type_hints

import pytest

from spark_stream.broker.actions.context import BrokerContext
from spark_stream.broker.actions.table import TABLE
from spark_stream.wire.actions import ACTIONS
from tests.test_layers import PACKAGE


def calls_of_the_client() -> Iterator[tuple[str, str]]:
    """(action, name of the class that its answer is read as) of every call in ``client/``."""
    for path in (PACKAGE / "client").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "act" and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value, ast.unparse(node.args[2])


@pytest.mark.rule("which actions there are, and their messages", "wire/actions.py")
def test_the_broker_takes_and_answers_the_messages_of_the_table() -> None:
    found = {name: list(get_type_hints(row.handler).values()) for name, row in TABLE.items()}
    assert found == {
        name: [BrokerContext, action.request, action.answer] for name, action in ACTIONS.items()
    }


@pytest.mark.rule("which actions there are, and their messages", "wire/actions.py")
def test_the_client_asks_and_reads_the_messages_of_the_table() -> None:
    asked = dict(calls_of_the_client())
    assert asked == {name: action.answer.__name__ for name, action in ACTIONS.items()}
