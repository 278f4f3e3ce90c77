"""The context of calls: the parts of a broker that they act on, and their handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from msgspec import Struct

from spark_stream.access.callers import NOBODY, Caller
from spark_stream.access.rules import THE_CLUSTER, Operation, Resource, ResourceKind
from spark_stream.broker.access.authorizer import Authorizer
from spark_stream.broker.access.quotas import Quotas
from spark_stream.broker.host.host import Host
from spark_stream.broker.node.members import Members, Observer
from spark_stream.broker.node.scrubbing import Scrub
from spark_stream.broker.scripting.coordinator import TransactionCoordinator
from spark_stream.broker.scripting.topics import TopicAdmin
from spark_stream.cluster.stores.store import TimedStore
from spark_stream.environment import Clock
from spark_stream.errors import PermissionDenied, UnknownTopic
from spark_stream.scripts.groups import Leaves
from spark_stream.wire.messages import A, Call

C = TypeVar("C", bound=Call[Any])


class BrokerFacts(Struct, frozen=True):
    """Facts about the broker for its callers. ``started``: on its monotonic clock.

    ``flight``: the address at which it serves Flight, or empty.
    """

    address: str
    directory: str
    cluster_id: str
    started: float
    flight: str = ""


class BrokerContext(Struct, frozen=True):
    """The parts of this broker that handlers use, and the caller."""

    host: Host
    topics: TopicAdmin
    transactions: TransactionCoordinator
    members: Members
    leaves: Leaves
    observer: Observer
    facts: BrokerFacts
    clock: Clock
    scrub: Scrub
    store: TimedStore
    authorizer: Authorizer
    quotas: Quotas
    caller: Caller = NOBODY

    def may_describe(self, kind: ResourceKind, name: str) -> bool:
        """Return whether the caller may describe a resource."""
        return self.may(Operation.DESCRIBE, kind, name)

    def may(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        """Return whether the caller may do something with a resource."""
        return self.authorizer.may(self.caller, operation, Resource(kind, name))

    def topic_names(self, operation: Operation) -> list[str]:
        """Return the names of the topics with which the caller may do something."""
        return [name for name in self.host.names() if self.may(operation, ResourceKind.TOPIC, name)]

    @property
    def known_principal(self) -> str:
        """The caller's principal, or empty without authentication."""
        return self.caller.principal if self.authorizer.requires_authentication else ""

    def check_has_rules(self) -> None:
        """Check that some rule allows the caller anything at all.

        Raises:
            PermissionDenied: No rule does, so a credential would have no use.
        """
        if not self.authorizer.has_rules(self.caller):
            raise PermissionDenied(
                f"no rule allows {self.caller.principal!r} anything",
                hint="An administrator can add a rule: isolog acl allow.",
            )

    @property
    def is_administrator(self) -> bool:
        """Whether the caller may change the cluster."""
        return self.authorizer.may(self.caller, Operation.ADMIN, THE_CLUSTER)

    @contextmanager
    def without_guesses(self) -> Iterator[None]:
        """Remove the names of other topics from an error about an unknown topic.

        The error stays as it is without authentication, and for a superuser.
        """
        try:
            yield
        except UnknownTopic as error:
            if not self.authorizer.requires_authentication or self.caller.is_super:
                raise
            name = error.details.get("topic")
            text = "there is no such topic" if name is None else f"there is no topic {name!r}"
            raise UnknownTopic(text, **error.details) from None


HANDLERS: Final[dict[type[Call[Any]], Callable[[BrokerContext, Any], Struct | None]]] = {}
"""The function that carries out each call."""


def handles(
    call: type[Call[A]],
) -> Callable[[Callable[[BrokerContext, C], A]], Callable[[BrokerContext, C], A]]:
    """Register a function as the handler of a call. mypy compares the types of their answers."""

    def register(handler: Callable[[BrokerContext, C], A]) -> Callable[[BrokerContext, C], A]:
        HANDLERS[call] = handler
        return handler

    return register
