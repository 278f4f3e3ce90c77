"""Requests of administration clients for tests, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from tests.kafka.clients import (
    WAIT_S,
)

SETTINGS = {
    "retention.ms": "86400000",
    "max.message.bytes": "1000",
    "compression.type": "uncompressed",
    "unclean.leader.election.enable": "true",
    "cleanup.policy": "delete",
    "flush": "batch",
}


def codes(futures: Mapping[Any, Any]) -> list[tuple[int, str]]:
    """The error codes and messages of the answers, in the order of the request."""
    found = []
    for each in futures.values():
        error = each.exception(WAIT_S)
        found.append((0, "") if error is None else (error.args[0].code(), error.args[0].str()))
    return found


def refused(futures: Mapping[Any, Any]) -> tuple[int, str]:
    [found] = codes(futures)
    return found


def settings_of(client: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    [future] = client.describe_configs([resource]).values()
    found: dict[str, ConfigEntry] = future.result(WAIT_S)
    return found


def of_topic(name: str, **settings: tuple[AlterConfigOpType, str | None]) -> ConfigResource:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=operation)
        for key, (operation, value) in settings.items()
    ]
    return ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)


SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
