"""The permissions that a request needs: functions of the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spark_stream.access.rules import THE_CLUSTER, Need, Operation, Resource, ResourceKind

Needs = Callable[[Any], Sequence[Need]]
"""A function of a request. It returns the permissions that the caller needs."""


def on_topic(operation: Operation) -> Needs:
    """Need this for the request's ``topic``."""
    return lambda asked: [(operation, Resource(ResourceKind.TOPIC, asked.topic))]


def on_topics(operation: Operation) -> Needs:
    """Need this for the topic of each of the request's ``topics``."""
    return lambda asked: [
        (operation, Resource(ResourceKind.TOPIC, each.topic)) for each in asked.topics
    ]


def on_transaction(operation: Operation) -> Needs:
    """Need this for the request's ``transactional_id``."""
    return lambda asked: [(operation, Resource(ResourceKind.TRANSACTION, asked.transactional_id))]


def on_consumer(operation: Operation) -> Needs:
    """Need this for the request's ``consumer``."""
    return lambda asked: [(operation, Resource(ResourceKind.CONSUMER, asked.consumer))]


def on_cluster(operation: Operation) -> Needs:
    """Need this for the cluster."""
    return lambda asked: [(operation, THE_CLUSTER)]


def positions(asked: Any) -> Sequence[Need]:
    """Need to read as each consumer whose position is stored, and to read its topic."""
    names = {each.consumer for each in asked.positions} | asked.owners.keys()
    topics = {each.topic for each in asked.positions}
    return [
        *((Operation.READ, Resource(ResourceKind.CONSUMER, name)) for name in sorted(names)),
        *((Operation.READ, Resource(ResourceKind.TOPIC, name)) for name in sorted(topics)),
    ]


def join(asked: Any) -> Sequence[Need]:
    """Need to read as the group, and to read the topics."""
    names = sorted(set(asked.topics))
    return [
        *on_consumer(Operation.READ)(asked),
        *((Operation.READ, Resource(ResourceKind.TOPIC, name)) for name in names),
    ]


def commit(asked: Any) -> Sequence[Need]:
    """Need to write in the transaction, and to read as its consumers."""
    return [*on_transaction(Operation.WRITE)(asked), *positions(asked)]


def anybody(asked: Any) -> Sequence[Need]:
    """Need only a known caller. No rule protects the answer."""
    return ()


def described(asked: Any) -> Sequence[Need]:
    """Need no permission. The handler's answer has only resources that the caller may describe."""
    return ()
