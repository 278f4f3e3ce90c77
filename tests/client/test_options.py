"""Unknown keyword arguments are refused with the option to use instead."""

from __future__ import annotations

from contextlib import closing

import pytest

import isolog
from isolog.errors import InvalidOption, InvalidTransaction
from spark_stream.client.connecting.connection import ClusterConnection


@pytest.fixture
def unconnected():
    """A log without a broker: invalid options are refused before the first call."""
    with closing(isolog.Log(ClusterConnection("127.0.0.1:1"))) as log:
        yield log


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"acks": "all"}, "Use isolation=: read_committed"),
        ({"bootstrap_servers": "h:1"}, "isolog.connect("),
        ({"batch_size": 1}, "Use batch_bytes="),
        ({"nonsense": 1}, "It takes batch_bytes, buffer_bytes, isolation, linger_ms, timeout_ms"),
        ({"transaction_timeout_ms": 1000}, "Give transactional_id="),
    ],
)
def test_a_producer_names_the_replacement_of_a_kafka_setting(unconnected, settings, hint):
    (name,) = settings
    with pytest.raises(InvalidOption, match=name) as refused:
        unconnected.producer(**settings)
    assert hint in refused.value.hint
    assert refused.value.details == {"option": name}


def test_a_misspelled_option_is_refused_with_the_nearest_name(unconnected):
    with pytest.raises(InvalidOption, match=r"'transaction_id' .is 'transactional_id' meant"):
        unconnected.producer(transaction_id="q")
    with pytest.raises(InvalidOption, match=r"'boostrap' .is 'bootstrap' meant"):
        isolog.connect(boostrap="h:1")


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"auto_offset_reset": "earliest"}, "Use start="),
        ({"auto.offset.reset": "earliest"}, "Use start="),
        ({"bootstrap_servers": "h:1"}, "isolog.connect("),
        ({"group_id": "g"}, "Use group=."),
        ({"nonsense": 1}, "It takes auto_commit, columns, filter,"),
    ],
)
def test_a_consumer_names_the_replacement_of_a_kafka_option(unconnected, settings, hint):
    with pytest.raises(InvalidOption, match=next(iter(settings))) as refused:
        unconnected.consumer("t", **settings)
    assert hint in refused.value.hint


def test_connect_names_the_replacement_of_bootstrap_servers():
    with pytest.raises(InvalidOption, match="bootstrap_servers") as refused:
        isolog.connect(bootstrap_servers="h:1")
    assert refused.value.hint == "Use bootstrap=."


def test_a_setting_of_the_wrong_type_is_refused_by_name(unconnected):
    with pytest.raises(InvalidOption, match=r"transaction_timeout_ms takes .* not '60s'"):
        unconnected.producer(transactional_id="q", transaction_timeout_ms="60s")
    with pytest.raises(InvalidOption, match=r"timeout_ms takes .* not '5s'"):
        unconnected.producer(timeout_ms="5s")


@pytest.mark.parametrize(
    "call", ["transaction", "begin_transaction", "commit_transaction", "abort_transaction"]
)
def test_transactions_without_a_transactional_id_fail_with_the_remedy(unconnected, call):
    with unconnected.producer() as producer:
        with pytest.raises(InvalidTransaction, match=rf"{call}\(\)") as refused:
            getattr(producer, call)()
        assert "log.producer(transactional_id=...)" in refused.value.hint
