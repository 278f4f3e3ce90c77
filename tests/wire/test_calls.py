"""The classes of calls: required parts, and use by the broker and the client."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

from spark_stream.access.rules import anybody
from spark_stream.broker.actions import running
from spark_stream.broker.actions.context import HANDLERS, BrokerContext
from spark_stream.wire.calls import CALLS
from spark_stream.wire.messages import Call, CallType
from tests.house.test_layers import PACKAGE


@pytest.mark.rule("a call without a permission cannot be defined", "wire/messages.py")
@pytest.mark.parametrize("given", [{"name": "x"}, {"needs": anybody}, {}])
def test_a_call_without_needs_or_name_cannot_be_defined(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="DoX: a call has a name, needs and an answer"):
        CallType("DoX", (Call,), {"__orig_bases__": (Call[None],)}, **given)


def test_a_call_without_an_answer_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="a call has a name, needs and an answer"):

        class DoX(Call, name="x", needs=anybody):  # type: ignore[type-arg]
            """Fail."""


def test_the_table_has_every_class_under_its_own_name() -> None:
    found = Call.__subclasses__()
    assert all(each.__doc__ for each in found)
    assert {each.__name__: each for each in found} == {
        each.__name__: each for each in CALLS.values()
    }
    assert len(found) == len(CALLS)


@pytest.mark.rule("each call has one handler, with its request and its answer", "wire/messages.py")
def test_the_broker_has_a_handler_for_each_call() -> None:
    assert running.MODULES
    found = {call: list(get_type_hints(handler).values()) for call, handler in HANDLERS.items()}
    assert found == {call: [BrokerContext, call, call.answer] for call in CALLS.values()}


def classes_made() -> Iterator[str]:
    """The names of the classes of which the parts above the client make objects."""
    parts = ("client", "datasource", "console", "cli")
    for path in (path for part in parts for path in (PACKAGE / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                made = node.func
                if isinstance(made, ast.Attribute) and made.attr == "of":
                    made = made.value
                if isinstance(made, ast.Name):
                    yield made.id


def test_each_call_is_sent_by_the_product() -> None:
    assert {call.__name__ for call in CALLS.values()} - set(classes_made()) == set()
