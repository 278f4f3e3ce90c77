"""The sink's options: required and excluded combinations."""

from __future__ import annotations

import pytest

from isolog.errors import InvalidOption
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.options.values import SINK_ID_LENGTH_MAX
from spark_stream.datasource.values.content import Replays

PLACE = {"path": "x", "topic": "t"}


def test_sink_writes_exactly_once_by_default() -> None:
    options = sink_options(PLACE)
    assert options.transactional
    assert options.isolation == "read_committed"
    assert options.sink_id is None


def test_without_transactions_the_leader_alone_acknowledges() -> None:
    options = sink_options({**PLACE, "transactional": "FALSE"})
    assert not options.transactional
    assert options.isolation == "read_uncommitted"


@pytest.mark.parametrize("transactional", ["true", "false"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_given_isolation_replaces_the_default(transactional: str, isolation: str) -> None:
    given = {**PLACE, "transactional": transactional, "isolation": isolation}
    assert sink_options(given).isolation == isolation


def test_a_sink_id_is_kept_without_the_blanks_around_it() -> None:
    assert sink_options({**PLACE, "sinkid": " orders "}).sink_id == "orders"


@pytest.mark.parametrize("text", ["", "  ", "x" * (SINK_ID_LENGTH_MAX + 1)])
def test_a_sink_id_has_to_be_a_name(text: str) -> None:
    with pytest.raises(InvalidOption, match="sinkId takes a text of 1 to"):
        sink_options({**PLACE, "sinkId": text})


def test_a_sink_id_is_for_transactions() -> None:
    with pytest.raises(InvalidOption, match="sinkId needs transactional=true"):
        sink_options({**PLACE, "sinkId": "orders", "transactional": "false"})


def test_transaction_timeout_is_two_minutes_by_default_and_for_transactions() -> None:
    assert sink_options(PLACE).transaction_timeout_ms == 120_000
    assert sink_options({**PLACE, "transactionTimeout": "5m"}).transaction_timeout_ms == 300_000
    for text in ("0s", "25h", "soon"):
        with pytest.raises(InvalidOption, match="transactionTimeout takes a time"):
            sink_options({**PLACE, "transactionTimeout": text})
    with pytest.raises(InvalidOption, match="transactionTimeout needs transactional=true"):
        sink_options({**PLACE, "transactionTimeout": "5m", "transactional": "false"})


def test_the_name_of_a_query_is_cut_to_the_length_of_its_field() -> None:
    assert sink_options({**PLACE, "queryName": "x" * 300}).query_name == "x" * 255
    assert sink_options({**PLACE, "queryName": "nightly"}, streaming=False).query_name == "nightly"


def test_a_numbered_batch_needs_both_options() -> None:
    both = {**PLACE, "sinkId": "orders", "BatchId": " 7 "}
    options = sink_options(both, streaming=False)
    assert (options.sink_id, options.batch_id) == ("orders", 7)
    with pytest.raises(InvalidOption, match="sinkId without batchId"):
        sink_options({**PLACE, "sinkId": "orders"}, streaming=False)
    with pytest.raises(InvalidOption, match="batchId without sinkId"):
        sink_options({**PLACE, "batchId": "7"}, streaming=False)


def test_a_streaming_query_has_its_own_batch_ids() -> None:
    with pytest.raises(InvalidOption, match="batchId is for a batch write"):
        sink_options({**PLACE, "sinkId": "orders", "batchId": "7"})


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        *((text, "from 0 on, not") for text in ("", "-1", "1.5", "seven", "\u0661")),
        (str(1 << 63), "from 0 to 9223372036854775807, not"),
    ],
)
def test_a_batch_id_is_a_number(text: str, taken: str) -> None:
    with pytest.raises(InvalidOption, match=f"batchId takes a whole number {taken}"):
        sink_options({**PLACE, "sinkId": "orders", "batchId": text}, streaming=False)


def test_different_replay_is_refused_by_default() -> None:
    assert sink_options(PLACE).replays is Replays.FAIL
    for text, meant in (("fail", Replays.FAIL), ("IgnoreFloats", Replays.IGNORE_FLOATS)):
        assert sink_options({**PLACE, "differentReplay": text}).replays is meant
    assert sink_options({**PLACE, "differentreplay": "Keep"}).replays is Replays.KEEP
    with pytest.raises(InvalidOption, match=r"differentReplay takes fail \| ignoreFloats \| keep"):
        sink_options({**PLACE, "differentReplay": "drop"})
    with pytest.raises(InvalidOption, match="differentReplay is for a streaming query"):
        sink_options({**PLACE, "differentReplay": "keep"}, streaming=False)


def test_a_topic_that_is_made_gets_its_settings() -> None:
    given = {**PLACE, "createTopic": "true", "Topic.Retention.ms": "1000", "topic.flush": "batch"}
    assert dict(sink_options(given).topic_config) == {"retention.ms": "1000", "flush": "batch"}


def test_topic_settings_need_create_topic() -> None:
    with pytest.raises(InvalidOption, match=r"topic\.retention\.ms needs createTopic=true"):
        sink_options({**PLACE, "topic.retention.ms": "1000"})


def test_a_setting_of_a_topic_is_not_taken_for_another_option() -> None:
    with pytest.raises(InvalidOption, match=r"'topic.retention.ms'") as raised:
        sink_options({**PLACE, "retention.ms": "1000"})
    assert "partitions" not in str(raised.value)
    with pytest.raises(InvalidOption, match="did you mean 'transactional'"):
        sink_options({**PLACE, "transactionl": "true"})
