"""Each Kafka option that isolog lacks is refused with its remedy."""

from __future__ import annotations

import pytest

from isolog.errors import InvalidOption
from spark_stream.datasource.options import sink_options, source_options


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("kafka.bootstrap.servers", "use bootstrap"),
        ("Kafka.Bootstrap.Servers", "use bootstrap"),
        ("kafka.isolation.level", "use isolation"),
        ("kafka.group.id", "in no consumer group"),
        ("groupIdPrefix", "in no consumer group"),
        ("kafka.auto.offset.reset", "use startingOffsets"),
        ("kafka.sasl.jaas.config", "user and password, or token"),
        ("kafka.ssl.truststore.location", "tls.ca"),
        ("kafka.max.poll.records", "no option is needed"),
        ("kafkaConsumer.pollTimeoutMs", "use brokerTimeout"),
        ("fetchOffset.numRetries", "no option is needed"),
    ],
)
def test_an_option_of_kafkas_source_gets_a_hint(option: str, hint: str) -> None:
    given = {"bootstrap": "h:1", "subscribe": "t", option: "x"}
    with pytest.raises(InvalidOption, match=f"(?i){option}") as caught:
        source_options(given)
    assert "Kafka connector" in caught.value.message
    assert hint in caught.value.message


def test_all_options_of_kafka_are_in_one_error() -> None:
    given = {
        "bootstrap": "h:1",
        "subscribe": "t",
        "kafka.bootstrap.servers": "h:9092",
        "isolation": "no level",
        "kafka.group.id": "g",
        "groupidprefix": "p",
    }
    with pytest.raises(InvalidOption) as caught:
        source_options(given)
    for name in ("kafka.bootstrap.servers", "kafka.group.id", "groupIdPrefix"):
        assert f"'{name}': " in caught.value.message
    assert caught.value.message.startswith("3 options of Spark's Kafka connector")


def test_error_spells_an_option_as_kafka_does_in_any_letter_case() -> None:
    with pytest.raises(InvalidOption, match="option 'groupIdPrefix' is one of") as caught:
        source_options({"bootstrap": "h:1", "subscribe": "t", "groupidprefix": "x"})
    assert caught.value.details["option"] == "groupIdPrefix"


@pytest.mark.parametrize("name", ["subscribe", "subscribePattern", "assign"])
def test_option_of_the_other_side_is_refused_with_its_counterpart(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"option '{name}' is not for a sink") as caught:
        sink_options({"bootstrap": "h:1", name: "t"})
    assert "option topic" in caught.value.hint
    with pytest.raises(InvalidOption, match="option 'topic' is not for a source") as caught:
        source_options({"bootstrap": "h:1", "topic": "t"})
    assert "subscribe" in caught.value.hint


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("kafka.bootstrap.servers", "use bootstrap"),
        ("kafka.acks", "use isolation"),
        ("kafka.transactional.id", "use sinkId"),
        ("kafka.linger.ms", "no option is needed"),
    ],
)
def test_an_option_of_kafkas_sink_gets_a_hint(option: str, hint: str) -> None:
    with pytest.raises(InvalidOption, match="Kafka connector") as caught:
        sink_options({"bootstrap": "h:1", "topic": "t", option: "x"})
    assert hint in caught.value.message
