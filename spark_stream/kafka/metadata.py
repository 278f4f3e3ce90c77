"""Metadata for Kafka clients: the gateways are the brokers, and lead all partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_stream.client.connecting.threads import in_parallel
from spark_stream.errors import IsologError
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.connection import SERVED, KafkaRequest
from spark_stream.kafka.messages.schemas import load_schema
from spark_stream.kafka.peers import Gateways
from spark_stream.kafka.refusals import KafkaCode, Refusal, code_of

_CALLS_MAX: Final = 8
"""The most descriptions of topics at the same time."""

_FIRST_WITH_NULL: Final = 1
"""The version in which null, and not an empty list, means all topics."""

_FIRST_BY_ID: Final = 12
"""The version in which a request may have an id and no name."""


def api_versions(request: KafkaRequest) -> Answer:
    """Return the fields of the answer about the supported requests.

    A client that sends a later version of this request gets the answer with an error code too, and
    sends an earlier version then.
    """
    keys = [
        {"api_key": load_schema(f"{name}Request").api_key, "min_version": each.first}
        | {"max_version": each.last}
        for name, each in SERVED.items()
    ]
    code = KafkaCode.NONE if request.unsupported is None else request.unsupported
    return {"error_code": int(code), "api_keys": keys}


def metadata(call: KafkaCall) -> Answer:
    """Return the fields of the answer about topics."""
    asked = call.fields["topics"]
    if asked is None or (not asked and call.request.version < _FIRST_WITH_NULL):
        topics = _all_topics(call)
    else:
        has_ids = any(each["name"] is None for each in asked)
        by_id = {each["topic_id"]: each for each in _all_topics(call)} if has_ids else {}
        topics = in_parallel(lambda each: _asked_topic(call, each, by_id), asked, _CALLS_MAX)
    return {
        "brokers": brokers(call.gateways),
        "cluster_id": call.user.cluster_id,
        "controller_id": call.gateways.coordinator.node_id,
        "topics": topics,
    }


def brokers(gateways: Gateways) -> list[Answer]:
    """Return the ids and the addresses of gateways, with the names of Metadata."""
    return [
        {"node_id": each.node_id, "host": each.host, "port": each.port} for each in gateways.listed
    ]


def _all_topics(call: KafkaCall) -> list[Answer]:
    return [_topic(call.gateways, *each) for each in call.log._topics.outlines()]


def _asked_topic(
    call: KafkaCall, asked: Mapping[str, Any], by_id: Mapping[bytes, Answer]
) -> Answer:
    name, topic_id = asked["name"], asked["topic_id"]
    if name is None:
        if call.request.version < _FIRST_BY_ID:
            return {"name": "", "error_code": int(KafkaCode.INVALID_REQUEST)}
        unknown = int(KafkaCode.UNKNOWN_TOPIC_ID)
        return by_id.get(topic_id, {"name": None, "topic_id": topic_id, "error_code": unknown})
    try:
        topic = call.log.describe(name)
    except (IsologError, Refusal) as error:
        return {"name": name, "error_code": int(code_of(error))}
    return _topic(call.gateways, name, topic.id, len(topic.partitions))


def _topic(gateways: Gateways, name: str, topic_id: str, partitions: int) -> Answer:
    """Return the fields about a topic.

    librdkafka takes at most four times the size of the whole answer for its own copy. Without the
    ids, and with short names, it refuses an answer about hundreds of topics.
    """
    leaders = [gateways.leader(name, each).node_id for each in range(partitions)]
    return {
        "name": name,
        "topic_id": bytes.fromhex(topic_id),
        "partitions": [
            {
                "partition_index": number,
                "leader_id": leader,
                "leader_epoch": -1,
                "replica_nodes": [leader],
                "isr_nodes": [leader],
            }
            for number, leader in enumerate(leaders)
        ],
    }
