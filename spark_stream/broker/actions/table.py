"""Who runs an action: a function for each name of the one table, ``wire.actions``.

To add an action, add it there, here with its function (in a neighbouring module), and to the table
in ``docs/flight.md``. Tests hold them against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_stream.broker.actions import cluster, consumers, mapped, topics
from spark_stream.broker.actions import transactions as acts
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.errors import InvalidRequest
from spark_stream.wire.actions import ACTIONS
from spark_stream.wire.messages import Message

HANDLERS: Final[Mapping[str, Callable[[BrokerContext, Any], Message]]] = {
    "create-topic": topics.create_topic,
    "alter-topic": topics.alter_topic,
    "delete-topic": topics.delete_topic,
    "describe-topic": topics.describe_topic,
    "list-topics": topics.list_topics,
    "list-offsets": topics.list_offsets,
    "find-leaders": topics.find_leaders,
    "list-brokers": cluster.list_brokers,
    "locate-entries": mapped.locate_entries,
    "describe-cluster": cluster.describe_cluster,
    "move-replicas": cluster.move_replicas,
    "cancel-moves": cluster.cancel_moves,
    "elect-preferred": cluster.elect_preferred,
    "decommission": cluster.decommission,
    "recommission": cluster.recommission,
    "restore-metadata": cluster.restore_metadata,
    "status": cluster.status,
    "new-producer": acts.new_producer,
    "init-transactions": acts.init_transactions,
    "begin-transaction": acts.begin_transaction,
    "open-branch": acts.open_branch,
    "renew-batch": acts.renew_batch,
    "drop-branch": acts.drop_branch,
    "settle-batch": acts.settle_batch,
    "stop-run": acts.stop_run,
    "list-sinks": acts.list_sinks,
    "delete-sink": acts.delete_sink,
    "renew-transaction": acts.renew_transaction,
    "commit-transaction": acts.commit_transaction,
    "abort-transaction": acts.abort_transaction,
    "list-transactions": acts.list_transactions,
    "describe-transaction": acts.describe_transaction,
    "kill-transaction": acts.kill_transaction,
    "take-consumer": consumers.take_consumer,
    "check-consumer": consumers.check_consumer,
    "consumer-position": consumers.consumer_position,
    "commit-position": consumers.commit_position,
    "pin-start": consumers.pin_start,
    "record-progress": consumers.record_progress,
    "list-consumers": consumers.list_consumers,
    "delete-consumer": consumers.delete_consumer,
    "atomic-cut": acts.atomic_cut,
}


def run_action(context: BrokerContext, name: str, body: bytes) -> Message:
    """Run an action. InvalidRequest if there is none of this name, or its body is wrong."""
    if name not in ACTIONS:
        raise InvalidRequest(f"there is no action {name!r}; there are {', '.join(ACTIONS)}")
    return HANDLERS[name](context, ACTIONS[name].request.from_bytes(body))
