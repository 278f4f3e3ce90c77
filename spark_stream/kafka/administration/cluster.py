"""The gateways, and the sizes of partitions, for Kafka's administration clients."""

from __future__ import annotations

from typing import Any, Final

from spark_stream.client.leaders import describe_partitions
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.metadata import brokers
from spark_stream.kafka.refusals import KafkaCode

LOG_DIRECTORY: Final = "isolog"
"""The name of the directory with all partitions. Those of brokers are not sent to clients."""

_BROKERS: Final = 1


def describe_cluster(call: KafkaCall) -> Answer:
    """Return the fields of the answer about the gateways."""
    if call.fields["endpoint_type"] != _BROKERS:
        code = KafkaCode.MISMATCHED_ENDPOINT_TYPE
        return {"error_code": int(code), "error_message": "the gateway is no controller"}
    found = brokers(call.gateways)
    return {
        "cluster_id": call.user.cluster_id or "",
        "controller_id": call.gateways.coordinator.node_id,
        "brokers": [
            {"broker_id": each["node_id"], "host": each["host"], "port": each["port"]}
            for each in found
        ],
    }


def describe_log_dirs(call: KafkaCall) -> Answer:
    """Return the fields of the answer about the sizes of the partitions that this gateway leads.

    The sizes are those at the leaders in isolog. A partition whose leader does not answer is
    missing.
    """
    log, asked = call.log, call.fields["topics"]
    if asked is None:
        chosen: dict[str, Any] = dict.fromkeys(log.topics())
    else:
        chosen = {each["topic"]: each["partitions"] for each in asked}
    names = list(chosen)
    seen = describe_partitions(log._connection, names)
    topics = []
    for name in names:
        sizes = [
            {"partition_index": number, "partition_size": each.found.facts.size}
            for number, each in sorted(seen[name].items())
            if each.found.facts is not None
            and (chosen[name] is None or number in chosen[name])
            and call.gateways.leader(name, number) == call.gateways.own
        ]
        if sizes:
            topics.append({"name": name, "partitions": sizes})
    return {"results": [{"log_dir": LOG_DIRECTORY, "topics": topics}]}
