"""docs/kafka.md has every option of Spark's Kafka connector, and the code's behaviour for it."""

from __future__ import annotations

import pytest

from spark_stream.datasource.options.names import KAFKAS, KafkaOption, kafka_row
from spark_stream.datasource.options.table import OPTIONS
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "kafka.md"

# The options of the connector of Spark 4.2, beside `kafka.*`: the constants of its class
# KafkaSourceProvider.
CONNECTOR = (
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    "topic",
)

# Of Kafka's clients: the most common settings.
CLIENTS = (
    "kafka.acks",
    "kafka.auto.offset.reset",
    "kafka.bootstrap.servers",
    "kafka.compression.type",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.sasl.jaas.config",
    "kafka.security.protocol",
    "kafka.ssl.truststore.location",
    "kafka.transactional.id",
)


def test_every_option_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert all(f"| `{each.name}` |" in page for each in KAFKAS)


@pytest.mark.parametrize("name", [*CONNECTOR, *CLIENTS])
def test_every_option_of_the_connector_has_its_own_row(name: str) -> None:
    row = next(each for each in KAFKAS if each.covers(name))
    assert row.name != "kafka.*"
    assert row.ours or row.remedy


def test_options_shared_with_kafka_are_on_the_page() -> None:
    both = {each.name for each in OPTIONS} & set(CONNECTOR)
    assert len(both) >= 15
    assert both == {each.name for each in KAFKAS if each.name in each.ours}


@pytest.mark.parametrize("row", KAFKAS, ids=lambda row: row.name)
def test_replacements_are_options_of_isolog(row: KafkaOption) -> None:
    assert set(row.ours) <= {each.name for each in OPTIONS}
    assert row.side in ("source", "sink", "both")


@pytest.mark.parametrize("row", KAFKAS, ids=lambda row: row.name)
def test_missing_option_is_refused_with_the_text_of_its_row(row: KafkaOption) -> None:
    """No row comes after a family of options that includes it."""
    name = row.name.replace("*", "something")
    ours = row.name in row.ours
    assert kafka_row(name) == (None if ours else row)
    assert ours or row.remedy
