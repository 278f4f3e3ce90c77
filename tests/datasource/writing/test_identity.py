"""A sink never writes under a guessed identity."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from isolog.errors import Unsupported
from spark_stream.datasource.writing.identity import (
    BATCH,
    QUERY,
    RUN,
    BranchIdentity,
    batch_identity,
    job_identity,
    task_identity,
)

QUERY_ID, RUN_ID = str(uuid.uuid4()), str(uuid.uuid4())
SET = {QUERY: QUERY_ID, RUN: RUN_ID, BATCH: "7"}


class Context:
    """A task's context with these local properties."""

    def __init__(self, properties: dict[str, str | None]) -> None:
        self._properties = properties

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get(key)


def told(**_: Any) -> Any:
    return Context(SET)


def test_the_query_id_of_the_checkpoint_names_the_transactions() -> None:
    found = task_identity(None, told())
    assert found == BranchIdentity(f"query/{QUERY_ID}", query=QUERY_ID, instance=RUN_ID, batch=7)


def test_a_sink_id_names_them_instead_and_belongs_to_the_query() -> None:
    found = task_identity("orders", told())
    assert found == BranchIdentity("sink/orders", query=QUERY_ID, instance=RUN_ID, batch=7)


@pytest.mark.parametrize("key", [QUERY, RUN, BATCH])
@pytest.mark.parametrize("value", [None, "", "nothing of ours", "-1", "\u0661"])
def test_invalid_local_property_is_named(key: str, value: str | None) -> None:
    with pytest.raises(Unsupported) as caught:
        task_identity(None, Context({**SET, key: value}))  # type: ignore[arg-type]
    assert repr(key) in str(caught.value)
    assert caught.value.details == {"property": key}


def test_outside_a_task_there_is_no_identity() -> None:
    with pytest.raises(Unsupported, match="is not set"):
        task_identity("orders", None)


def test_every_batch_write_has_a_new_identity() -> None:
    one, other = job_identity(), job_identity()
    assert one.transactional_id != other.transactional_id
    assert one.transactional_id.startswith("job/")
    assert one.query == one.instance == one.transactional_id
    assert one.batch == 0
    assert not one.remembered


def test_every_attempt_at_a_numbered_batch_is_a_new_run() -> None:
    one, again = batch_identity("orders", 7), batch_identity("orders", 7)
    assert one.transactional_id == again.transactional_id == "sink/orders"
    assert one.query == again.query
    assert one.instance != again.instance
    assert (one.batch, one.remembered, one.streaming) == (7, True, False)
    assert task_identity("orders", told()).streaming
