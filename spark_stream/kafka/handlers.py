"""The handlers of requests, by the name of the request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from spark_stream.kafka.administration.cluster import describe_cluster, describe_log_dirs
from spark_stream.kafka.administration.configurations import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
)
from spark_stream.kafka.administration.topics import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
)
from spark_stream.kafka.calls import Answer, Handler, KafkaCall
from spark_stream.kafka.groups import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)
from spark_stream.kafka.metadata import metadata
from spark_stream.kafka.reading import list_offsets
from spark_stream.kafka.refusals import KafkaCode
from spark_stream.kafka.transactions import (
    add_offsets,
    add_partitions,
    describe_transactions,
    end,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
)
from spark_stream.kafka.writing import produce

_WAIT_MS_MAX: Final = 60_000


def _fetch(call: KafkaCall) -> Answer:
    if call.fields["session_id"]:
        # Sessions are optional. A client continues without one after this code.
        return {"error_code": int(KafkaCode.FETCH_SESSION_ID_NOT_FOUND)}
    wait_ms = min(max(call.fields["max_wait_ms"], 0), _WAIT_MS_MAX)
    return call.reads.fetch(call.fields, time.monotonic() + wait_ms / 1_000)


HANDLERS: Final[Mapping[str, Handler]] = {
    "Metadata": metadata,
    "ListOffsets": lambda call: list_offsets(call.log, call.fields),
    "Fetch": _fetch,
    "Produce": produce,
    "InitProducerId": init_producer_id,
    "AddPartitionsToTxn": add_partitions,
    "AddOffsetsToTxn": add_offsets,
    "TxnOffsetCommit": txn_offset_commit,
    "EndTxn": end,
    "ListTransactions": list_transactions,
    "DescribeTransactions": describe_transactions,
    "FindCoordinator": find_coordinator,
    "JoinGroup": join_group,
    "SyncGroup": sync_group,
    "Heartbeat": heartbeat,
    "LeaveGroup": leave_group,
    "OffsetCommit": offset_commit,
    "OffsetFetch": offset_fetch,
    "ListGroups": list_groups,
    "DescribeGroups": describe_groups,
    "DeleteGroups": delete_groups,
    "CreateTopics": create_topics,
    "DeleteTopics": delete_topics,
    "CreatePartitions": create_partitions,
    "DeleteRecords": delete_records,
    "DescribeConfigs": describe_configs,
    "AlterConfigs": alter_configs,
    "IncrementalAlterConfigs": incremental_alter_configs,
    "DescribeCluster": describe_cluster,
    "DescribeLogDirs": describe_log_dirs,
}
