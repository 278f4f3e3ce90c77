"""Errors as users see them: one traceback, without bytes of the protocol."""

from __future__ import annotations

import ast
import asyncio
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import isolog
from isolog import aio
from isolog.errors import IsologError
from spark_stream.cli.app import execute
from spark_stream.datasource import IsologDataSource
from spark_stream.transport.streams import CallFailed
from tests.house.test_layers import PACKAGE
from tests.support import BrokerProcess, free_port

SLOW = pytest.mark.slow  # uses a broker


def send(log: isolog.Log, topic: str) -> None:
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, "v")
        log.delete_topic(topic)
        producer.send(topic, "v").result()


def fenced(log: isolog.Log, topic: str) -> None:
    with log.producer(transactional_id=topic) as first, log.producer(transactional_id=topic):
        first.begin_transaction()


def read_above_the_end(log: isolog.Log, topic: str) -> None:
    log.create_topic(topic)
    next(log.consumer(topic, start=9).records())


CALLS: dict[str, Callable[[isolog.Log, str], Any]] = {
    "describe": lambda log, topic: log.describe(topic),
    "delete": lambda log, topic: log.delete_topic(topic),
    "create": lambda log, topic: log.create_topic("no/name"),
    "consumer": lambda log, topic: log.consumer(topic),
    "kill": lambda log, topic: log.abort_transaction(topic),
    "name": lambda log, topic: log.delete_consumer(topic),
    "send": send,
    "fenced": fenced,
    "read": read_above_the_end,
    "nobody": lambda log, topic: isolog.connect(f"127.0.0.1:{free_port()}", timeout=0.1),
}


def check_text(error: BaseException) -> None:
    """Check the text that Python prints for an error."""
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback (most recent call last)") == 1, shown
    check_no_bytes(str(error))


def check_no_bytes(text: str) -> None:
    assert "b'" not in text
    assert 'b"' not in text
    assert "\\x" not in text


@SLOW
@pytest.mark.parametrize("call", CALLS)
def test_error_of_the_client_has_one_traceback(log, topic, call):
    with pytest.raises(IsologError) as caught:
        CALLS[call](log, topic)
    check_text(caught.value)


@SLOW
def test_error_of_the_asyncio_client_has_one_traceback(shared, topic):
    async def body() -> None:
        async with aio.connect(shared.address) as log:
            await log.describe(topic)

    with pytest.raises(IsologError) as caught:
        asyncio.run(body())
    check_text(caught.value)


@SLOW
def test_error_of_a_query_has_one_traceback(shared: BrokerProcess, topic: str) -> None:
    source = IsologDataSource({"bootstrap": shared.address, "subscribe": topic})
    with pytest.raises(IsologError) as caught:
        source.schema()
    check_text(caught.value)
    sink = IsologDataSource({"bootstrap": shared.address, "topic": topic})
    with pytest.raises(IsologError) as caught:
        sink.writer(StructType(), False)
    check_text(caught.value)


@SLOW
def test_error_of_a_command_is_one_line(shared, topic, capfd):
    assert execute(["topic", "describe", topic, "--bootstrap", shared.address]) == 1
    _, text = capfd.readouterr()
    assert text.count("\n") == 1
    check_no_bytes(text)


def test_failed_call_prints_no_bytes():
    check_no_bytes(f"{CallFailed(bytes(range(256)))!r}")


def handlers_of_the_transport() -> Iterator[tuple[Path, ast.Raise]]:
    """Return each ``raise`` in a handler of an exception of a stream."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler) or node.type is None:
                continue
            caught = ast.unparse(node.type)
            if any(each in caught for each in ("TRANSPORT_ERRORS", "CallFailed", "ConnectionLost")):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Raise) and inner.exc is not None:
                        yield path, inner


def test_stream_errors_are_never_chained():
    found = list(handlers_of_the_transport())
    assert len(found) >= 5
    assert [
        f"{path.relative_to(PACKAGE)}:{each.lineno}"
        for path, each in found
        if not (isinstance(each.cause, ast.Constant) and each.cause.value is None)
    ] == []
