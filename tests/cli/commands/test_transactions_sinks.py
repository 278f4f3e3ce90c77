"""``isolog sinks``: what is there, and how it is forgotten."""

from __future__ import annotations

import json

import pytest

from spark_stream.wire.transaction_messages import AbortTransaction, CommitTransaction, OpenBranch
from tests.cli.conftest import Call, Served


@pytest.fixture
def here(served: Served, call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Commands within this process, pointed at the broker."""
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", served.bootstrap)
    return call


def test_a_sink_is_listed_and_deleted_once_the_user_has_said_yes(served: Served, here: Call):
    call = served.log._connection.call
    name, query = "sink/copies", "the query"
    asked = OpenBranch.of(transactional_id=name, query=query, instance="run", batch=4)
    branch = call(asked)
    own = {"transactional_id": name, "instance": "run", "number": branch.number}
    call(CommitTransaction.of(**own, branches=[branch.producer_id], batch=4))

    shown = here("sinks", "list", "--output", "json")
    assert (shown.code, shown.err) == (0, "")
    [sink] = json.loads(shown.out)
    assert sink.pop("last_used_ms") > 0
    assert sink == {
        "transactional_id": name,
        "query": query,
        "state": "committed",
        "committed_batch": 4,
        "query_name": "",
    }
    table = here("sinks", "list").out
    for word in (name, query, "committed", "4", "ago"):
        assert word in table

    refused = here("sinks", "delete", name)
    assert (refused.code, refused.out) == (2, "")
    assert "no terminal to ask on: Forget sink sink/copies of query the query" in refused.err
    assert here("sinks", "delete", name, "--yes").err == f"deleted sink {name}\n"
    assert json.loads(here("sinks", "list", "--output", "json").out) == []
    missing = here("sinks", "delete", name)
    assert missing.code == 1
    assert "there is no sink 'sink/copies'" in missing.err


def test_the_name_of_a_query_is_shown_in_all_lists(served: Served, here: Call):
    call = served.log._connection.call
    name = "sink/named"
    asked = OpenBranch(
        transactional_id=name, query="an id", instance="run", batch=4, query_name="nightly"
    )
    branch = call(asked)
    assert "nightly" in here("sinks", "list").out
    assert "nightly" in here("transactions", "list", "--state", "open").out
    assert "nightly" in here("transactions", "describe", name).out
    call(AbortTransaction(transactional_id=name, instance="run", number=branch.number))
    assert here("sinks", "delete", name, "--yes").code == 0
