"""The settings of topics under Kafka's names, for its administration clients.

A setting of isolog with the meaning of one of Kafka has its name, but for those of ``_NAMES``.
Topics also have the settings of ``_CONSTANTS``, which cannot change. The broker checks names and
values. The settings of a gateway are for reading only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Final

from spark_stream.errors import InvalidConfig, InvalidRequest, IsologError
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.connection import FRAME_MAX
from spark_stream.kafka.metadata import brokers
from spark_stream.kafka.reading import ANSWER_BYTES_MAX
from spark_stream.kafka.refusals import Refusal, error_fields
from spark_stream.schema.keys import PARTITION_BY
from spark_stream.wire.topic_messages import TopicDescription

_NAMES: Final = {
    "compression.type": "compression",
    "max.message.bytes": "max.record.bytes",
    "unclean.leader.election.enable": "unclean.leader.election",
}
_KAFKAS: Final = {ours: name for name, ours in _NAMES.items()}
_VALUES: Final = {("compression.type", "uncompressed"): "none"}
_KAFKAS_VALUES: Final = {(name, ours): value for (name, value), ours in _VALUES.items()}
_CONSTANTS: Final = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
_OF_GATEWAY: Final = {
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "fetch.max.bytes": str(ANSWER_BYTES_MAX),
    "num.partitions": "1",
    "socket.request.max.bytes": str(FRAME_MAX),
}

# The types of resources, the sources of settings, and the operations, by their numbers in requests.
_TOPIC: Final = 2
_BROKER: Final = 4
_OF_TOPIC: Final = 1
_DEFAULT: Final = 5
_SET: Final = 0
_DELETE: Final = 1

_RESOURCE: Final = ("resource_type", "resource_name")


def answer_each(
    items: Iterable[Answer], keys: Collection[str], act: Callable[[Answer], Answer]
) -> list[Answer]:
    """Carry out each item of a request. Return an answer for each, with its error if it fails.

    Args:
        items: The items.
        keys: The fields that identify an item. An item that is given twice fails.
        act: A function that carries out an item, and returns further fields of its answer.
    """
    grouped: dict[tuple[Any, ...], list[Answer]] = {}
    for item in items:
        grouped.setdefault(tuple(item[key] for key in keys), []).append(item)
    answers = []
    for values, given in grouped.items():
        found: Answer = {**dict(zip(keys, values, strict=True)), "error_message": None}
        try:
            if len(given) > 1:
                raise InvalidRequest(f"{values[-1]!r} is given {len(given)} times in the request")
            found |= act(given[0])
        except (IsologError, Refusal) as error:
            found |= error_fields(error)
        answers.append(found)
    return answers


def parse_settings(given: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return settings under isolog's names. The names and values may be Kafka's.

    Raises:
        InvalidConfig: A setting has no value or two, or another one than topics of isolog have.
    """
    found: dict[str, str] = {}
    for name, value in given:
        ours = _NAMES.get(name, name)
        if value is None:
            raise InvalidConfig(f"{name} has no value", setting=name)
        if ours in found:
            raise InvalidConfig(f"{ours} has two values", setting=ours)
        if name not in _CONSTANTS:
            found[ours] = _VALUES.get((name, value), value)
        elif value != _CONSTANTS[name]:
            raise InvalidConfig(
                f"{name} is {_CONSTANTS[name]} for all topics of isolog, not {value!r}",
                setting=name,
            )
    return found


def shown_settings(topic: TopicDescription) -> dict[str, Answer]:
    """Return the settings of a topic by Kafka's names, with the fields of an answer."""
    found = {name: _shown(name, value, read_only=True) for name, value in _CONSTANTS.items()}
    for ours, value in topic.config.items():
        if ours != PARTITION_BY:  # records of topics with Kafka's columns are placed by their keys
            name = _KAFKAS.get(ours, ours)
            source = _OF_TOPIC if ours in topic.overrides else _DEFAULT
            found[name] = _shown(name, _KAFKAS_VALUES.get((name, value), value), source)
    return found


def _shown(name: str, value: str, source: int = _DEFAULT, *, read_only: bool = False) -> Answer:
    return {"name": name, "value": value, "config_source": source, "read_only": read_only}


def describe_configs(call: KafkaCall) -> Answer:
    """Return the fields of the answer about the settings of topics and gateways."""
    describe = partial(_described, call)
    return {"results": answer_each(call.fields["resources"], _RESOURCE, describe)}


def _described(call: KafkaCall, item: Answer) -> Answer:
    kind, name = item["resource_type"], item["resource_name"]
    if kind == _TOPIC:
        known = shown_settings(call.log.describe(name))
    elif kind == _BROKER:
        known = _of_gateway(call, name)
    else:
        raise InvalidRequest(f"only topics and brokers have settings, not resource type {kind}")
    entries = [
        known[_KAFKAS.get(key, key)] | {"name": key}
        for key in item["configuration_keys"] or known
        if _KAFKAS.get(key, key) in known
    ]
    if call.fields["include_synonyms"]:
        for each in entries:
            own = {"name": each["name"], "value": each["value"], "source": each["config_source"]}
            each["synonyms"] = [own]
    return {"configs": entries}


def _of_gateway(call: KafkaCall, name: str) -> dict[str, Answer]:
    """Return the settings of a gateway, by its id. The name "" is for defaults that were changed.

    Raises:
        InvalidRequest: No gateway has this id.
    """
    if not name:
        return {}
    ids = [str(each["node_id"]) for each in brokers(call.gateways)]
    if name not in ids:
        raise InvalidRequest(f"no gateway has the id {name!r}, but {', '.join(ids)}")
    return {key: _shown(key, value, read_only=True) for key, value in _OF_GATEWAY.items()}


def incremental_alter_configs(call: KafkaCall) -> Answer:
    """Change settings of topics. Return the fields of the answer."""

    def alter(item: Answer) -> Answer:
        topic = _altered_topic(call, item)
        changes, reset = [], []
        for each in item["configs"]:
            name, operation = each["name"], each["config_operation"]
            if operation == _SET:
                changes.append((name, each["value"]))
            elif operation == _DELETE:
                reset.append(_NAMES.get(name, name))
            else:
                raise InvalidConfig(f"{name} has no list of values to change", setting=name)
        return _alter(call, topic, parse_settings(changes), reset)

    return {"responses": answer_each(call.fields["resources"], _RESOURCE, alter)}


def alter_configs(call: KafkaCall) -> Answer:
    """Replace the settings of topics. Return the fields of the answer."""

    def alter(item: Answer) -> Answer:
        topic = _altered_topic(call, item)
        changes = parse_settings((each["name"], each["value"]) for each in item["configs"])
        reset = [each for each in topic.overrides if each not in (*changes, PARTITION_BY)]
        return _alter(call, topic, changes, reset)

    return {"responses": answer_each(call.fields["resources"], _RESOURCE, alter)}


def _altered_topic(call: KafkaCall, item: Answer) -> TopicDescription:
    if item["resource_type"] != _TOPIC:
        raise InvalidRequest("only the settings of topics can be changed")
    return call.log.describe(item["resource_name"])


def _alter(
    call: KafkaCall, topic: TopicDescription, changes: dict[str, str], reset: Iterable[str]
) -> Answer:
    names = [each for each in reset if each not in _CONSTANTS]
    if changes or names:
        call.log._topics.alter(
            topic.name,
            None,
            changes,
            topic_id=topic.id,
            reset=names,
            dry_run=call.fields["validate_only"],
        )
    return {}
