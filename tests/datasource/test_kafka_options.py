"""A job that moves over from Kafka is told what to do with each option that isolog lacks."""

from __future__ import annotations

import pytest

from spark_stream.datasource.options import sink_options, source_options
from spark_stream.errors import InvalidOption


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("kafka.bootstrap.servers", "use bootstrap"),
        ("Kafka.Bootstrap.Servers", "use bootstrap"),
        ("kafka.isolation.level", "use isolation"),
        ("kafka.group.id", "no consumer groups"),
        ("groupIdPrefix", "no consumer groups"),
        ("kafka.auto.offset.reset", "use startingOffsets"),
        ("kafka.sasl.jaas.config", "neither TLS nor authentication"),
        ("kafka.ssl.truststore.location", "neither TLS nor authentication"),
        ("kafka.max.poll.records", "nothing is needed"),
        ("kafkaConsumer.pollTimeoutMs", "nothing is needed"),
        ("fetchOffset.numRetries", "nothing is needed"),
    ],
)
def test_an_option_of_kafkas_source_gets_a_hint(option: str, hint: str) -> None:
    given = {"bootstrap": "h:1", "subscribe": "t", option: "x"}
    with pytest.raises(InvalidOption, match=f"(?i){option}") as caught:
        source_options(given)
    assert "Kafka connector" in caught.value.message
    assert hint in caught.value.message


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("kafka.bootstrap.servers", "use bootstrap"),
        ("kafka.acks", "use isolation"),
        ("kafka.transactional.id", "use sinkId"),
        ("kafka.linger.ms", "nothing is needed"),
    ],
)
def test_an_option_of_kafkas_sink_gets_a_hint(option: str, hint: str) -> None:
    with pytest.raises(InvalidOption, match="Kafka connector") as caught:
        sink_options({"bootstrap": "h:1", "topic": "t", option: "x"})
    assert hint in caught.value.message
