"""Metadata for Kafka clients: the gateway is the only broker, and leads all partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_stream.client.log import Log
from spark_stream.errors import IsologError
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.connection import SERVED, KafkaRequest
from spark_stream.kafka.messages.schemas import load_schema
from spark_stream.kafka.reading import check_columns
from spark_stream.kafka.refusals import KafkaCode, Refusal, code_of

NODE: Final = 0
"""The broker id of the gateway."""

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
    """Return the fields of the answer about topics. Topics with other columns are not listed."""
    log, asked = call.log, call.fields["topics"]
    if asked is None or (not asked and call.request.version < _FIRST_WITH_NULL):
        found = [_topic(log, name) for name in log.topics()]
        topics = [each for each in found if "error_code" not in each]
    else:
        topics = [_topic(log, each["name"]) for each in asked]
    node = {"node_id": NODE, "host": call.address.host, "port": call.address.port}
    return {
        "brokers": [node],
        "cluster_id": call.user.cluster_id,
        "controller_id": NODE,
        "topics": topics,
    }


def _topic(log: Log, name: str) -> Mapping[str, Any]:
    try:
        topic = log.describe(name)
        check_columns(topic)
    except (IsologError, Refusal) as error:
        return {"name": name, "error_code": int(code_of(error))}
    return {
        "name": name,
        "partitions": [
            {
                "partition_index": each.partition,
                "leader_id": NODE,
                "leader_epoch": -1,
                "replica_nodes": [NODE],
                "isr_nodes": [NODE],
            }
            for each in topic.partitions
        ],
    }
