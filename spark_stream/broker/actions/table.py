"""What runs an action, and who may ask for it: a row for each name in ``wire.actions``.

To add an action, add it there, here with its function (in a neighbouring module) and the permission
that it needs, and to the table in ``docs/flight.md``. Tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct

from spark_stream.access.rules import Operation
from spark_stream.broker.access.audit import ADMINISTRATIVE, CREDENTIALS, DONE, named_in
from spark_stream.broker.access.needs import (
    Needs,
    anybody,
    commit,
    described,
    join,
    on_cluster,
    on_consumer,
    on_topic,
    on_topics,
    on_transaction,
    positions,
)
from spark_stream.broker.actions import access, cluster, consumers, mapped, topics
from spark_stream.broker.actions import transactions as acts
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.errors import InvalidRequest, IsologError, PermissionDenied
from spark_stream.wire.access_messages import CreatedToken
from spark_stream.wire.actions import ACTIONS
from spark_stream.wire.messages import Message

READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
ALTER, DELETE, DESCRIBE = Operation.ALTER, Operation.DELETE, Operation.DESCRIBE
ADMIN = Operation.ADMIN


class Row(Struct, frozen=True):
    """What runs an action, and what its caller needs a permission for."""

    handler: Callable[[BrokerContext, Any], Message]
    needs: Needs


TABLE: Final[Mapping[str, Row]] = {
    "create-topic": Row(topics.create_topic, on_topic(CREATE)),
    "alter-topic": Row(topics.alter_topic, on_topic(ALTER)),
    "delete-topic": Row(topics.delete_topic, on_topic(DELETE)),
    "trim-topic": Row(topics.trim_topic, on_topic(DELETE)),
    "describe-topic": Row(topics.describe_topic, on_topic(DESCRIBE)),
    "list-topics": Row(topics.list_topics, described),
    "list-offsets": Row(topics.list_offsets, described),
    "find-leaders": Row(topics.find_leaders, on_topic(DESCRIBE)),
    "list-brokers": Row(cluster.list_brokers, anybody),
    "locate-entries": Row(mapped.locate_entries, on_topic(READ)),
    "describe-cluster": Row(cluster.describe_cluster, on_cluster(DESCRIBE)),
    "move-replicas": Row(cluster.move_replicas, on_cluster(ADMIN)),
    "cancel-moves": Row(cluster.cancel_moves, on_cluster(ADMIN)),
    "elect-preferred": Row(cluster.elect_preferred, on_cluster(ADMIN)),
    "decommission": Row(cluster.decommission, on_cluster(ADMIN)),
    "recommission": Row(cluster.recommission, on_cluster(ADMIN)),
    "restore-metadata": Row(cluster.restore_metadata, on_cluster(ADMIN)),
    "status": Row(cluster.status, described),
    "new-producer": Row(acts.new_producer, anybody),
    "init-transactions": Row(acts.init_transactions, on_transaction(WRITE)),
    "begin-transaction": Row(acts.begin_transaction, on_transaction(WRITE)),
    "open-branch": Row(acts.open_branch, on_transaction(WRITE)),
    "renew-batch": Row(acts.renew_batch, on_transaction(WRITE)),
    "drop-branch": Row(acts.drop_branch, on_transaction(WRITE)),
    "settle-batch": Row(acts.settle_batch, on_transaction(WRITE)),
    "stop-run": Row(acts.stop_run, anybody),
    "list-sinks": Row(acts.list_sinks, described),
    "delete-sink": Row(acts.delete_sink, on_transaction(DELETE)),
    "renew-transaction": Row(acts.renew_transaction, on_transaction(WRITE)),
    "commit-transaction": Row(acts.commit_transaction, commit),
    "abort-transaction": Row(acts.abort_transaction, on_transaction(WRITE)),
    "list-transactions": Row(acts.list_transactions, described),
    "describe-transaction": Row(acts.describe_transaction, on_transaction(DESCRIBE)),
    "kill-transaction": Row(acts.kill_transaction, on_transaction(DELETE)),
    "take-consumer": Row(consumers.take_consumer, on_consumer(READ)),
    "check-consumer": Row(consumers.check_consumer, on_consumer(READ)),
    "consumer-position": Row(consumers.consumer_position, on_consumer(DESCRIBE)),
    "commit-position": Row(consumers.commit_position, positions),
    "join-group": Row(consumers.join_group, join),
    "group-heartbeat": Row(consumers.group_heartbeat, on_consumer(READ)),
    "leave-group": Row(consumers.leave_group, on_consumer(READ)),
    "take-partitions": Row(consumers.take_partitions, on_consumer(READ)),
    "pin-start": Row(consumers.pin_start, on_consumer(READ)),
    "record-progress": Row(consumers.record_progress, on_consumer(READ)),
    "reader-heartbeat": Row(consumers.reader_heartbeat, on_consumer(READ)),
    "list-consumers": Row(consumers.list_consumers, described),
    "delete-consumer": Row(consumers.delete_consumer, on_consumer(DELETE)),
    "atomic-cut": Row(acts.atomic_cut, on_topics(READ)),
    "put-user": Row(access.put_user, on_cluster(ADMIN)),
    "delete-user": Row(access.delete_user, on_cluster(ADMIN)),
    "list-users": Row(access.list_users, on_cluster(ADMIN)),
    "open-session": Row(access.open_session, anybody),
    "create-token": Row(access.create_token, anybody),
    "list-tokens": Row(access.list_tokens, described),
    "revoke-token": Row(access.revoke_token, anybody),
    "add-rule": Row(access.add_rule, on_cluster(ADMIN)),
    "remove-rule": Row(access.remove_rule, on_cluster(ADMIN)),
    "list-rules": Row(access.list_rules, on_cluster(ADMIN)),
    "check-access": Row(access.check_access, on_cluster(ADMIN)),
    "set-quota": Row(access.set_quota, on_cluster(ADMIN)),
    "remove-quota": Row(access.remove_quota, on_cluster(ADMIN)),
    "list-quotas": Row(access.list_quotas, on_cluster(ADMIN)),
}


def run_action(context: BrokerContext, name: str, body: bytes) -> Message:
    """Run an action for the context's caller.

    Raises:
        InvalidRequest: there is none of this name, or its body is wrong.
        Unauthenticated, PermissionDenied, UnknownTopic: as ``Authorizer.check``.
        Others: what the action raises.
    """
    if name not in ACTIONS:
        raise InvalidRequest(f"there is no action {name!r}; there are {', '.join(ACTIONS)}")
    row, asked = TABLE[name], ACTIONS[name].request.from_bytes(body)
    with context.host.counts.actions[name].time(), context.without_guesses():
        needs = row.needs(asked)
        context.authorizer.check(context.caller, needs)
        is_noted = any(operation in ADMINISTRATIVE for operation, _ in needs) or name in CREDENTIALS
        with _written_down(context, name, asked, always=is_noted) as about:
            answer = row.handler(context, asked)
            if isinstance(answer, CreatedToken):
                about.append(named_in(answer))
            return answer


@contextmanager
def _written_down(
    context: BrokerContext, name: str, asked: Message, *, always: bool
) -> Iterator[list[str]]:
    """Note what becomes of an action, or only that it was refused; yield what it is about."""
    outcome, caller, about = "failed", context.caller, [named_in(asked)]
    try:
        yield about
        outcome = DONE
    except IsologError as error:
        outcome = error.code
        raise
    finally:
        if always or outcome == PermissionDenied.code:
            on = " ".join(filter(None, about))
            context.authorizer.audit.note(caller, caller.address, name, on, outcome)
