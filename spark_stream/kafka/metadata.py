"""Metadata for Kafka clients: the gateways are the brokers, and lead all partitions."""

from __future__ import annotations

from typing import Final

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
    is_all = asked is None or (not asked and call.request.version < _FIRST_WITH_NULL)
    names = call.log.topics() if is_all else [each["name"] for each in asked]
    topics = in_parallel(lambda name: _topic(call, name), names, _CALLS_MAX)
    if is_all:  # one of them may have been deleted since
        topics = [each for each in topics if "error_code" not in each]
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


def _topic(call: KafkaCall, name: str) -> Answer:
    try:
        topic = call.log.describe(name)
    except (IsologError, Refusal) as error:
        return {"name": name, "error_code": int(code_of(error))}
    leaders = [call.gateways.leader(name, each.partition).node_id for each in topic.partitions]
    return {
        "name": name,
        "partitions": [
            {
                "partition_index": each.partition,
                "leader_id": leader,
                "leader_epoch": -1,
                "replica_nodes": [leader],
                "isr_nodes": [leader],
            }
            for each, leader in zip(topic.partitions, leaders, strict=True)
        ],
    }
