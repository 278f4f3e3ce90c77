"""Calls of operators: the cluster and its problems, transactions, users and permissions.

Topics are in ``topics``, consumers' positions in ``consumers``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import structs
from msgspec.structs import replace

from spark_stream.access.rules import Quota
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.leaders import Partitions, call_each, describe_partitions, held_back
from spark_stream.errors import (
    InvalidRequest,
    IsologError,
    MetadataLost,
    UnknownBroker,
    UnknownTransaction,
)
from spark_stream.wire.access_messages import (
    AddRule,
    CheckAccess,
    CreatedToken,
    CreateToken,
    Decision,
    DeleteUser,
    GrantText,
    ListQuotas,
    ListRules,
    ListTokens,
    ListUsers,
    OpenSession,
    PutUser,
    RemoveQuota,
    RemoveRule,
    RevokeToken,
    RuleText,
    SetQuota,
    TokenDescription,
)
from spark_stream.wire.cluster_messages import (
    BrokerStatus,
    ClusterDescription,
    Decommission,
    DescribeCluster,
    GetStatus,
    Problem,
    ProblemKind,
    RestoreMetadata,
)
from spark_stream.wire.transaction_messages import (
    UNFINISHED,
    DescribeTransaction,
    KillTransaction,
    ListTransactions,
    TransactionDescription,
    TransactionPartition,
)

_TAKEN_S: Final = 10.0  # brokers check many times a second
_TAKEN_PAUSE_S: Final = 0.1
_NAMES_MAX: Final = 20
_OF_PARTITIONS: Final = (
    ProblemKind.NO_LEADER,
    ProblemKind.BELOW_MIN_ISR,
    ProblemKind.UNDER_REPLICATED,
)
"""The problems of partitions that a disk may cause."""


def inspect_cluster(
    connection: ClusterConnection,
) -> tuple[ClusterDescription, dict[str, BrokerStatus]]:
    """Return the cluster with all its problems, and the status of each broker that answers."""
    found = connection.call(DescribeCluster())
    links = {each.id: each.address for each in found.brokers if each.alive}
    statuses = call_each(connection, links, GetStatus())
    return with_refusals(found, statuses), statuses


def restore_metadata(connection: ClusterConnection) -> None:
    """Restore a deleted metadata store that brokers have open. Wait until all of them use it.

    Raises:
        InvalidRequest: The store is intact, or another file is in its place.
        MetadataLost: Running brokers do not use the restored store.
    """
    connection.call(RestoreMetadata())
    deadline = time.monotonic() + _TAKEN_S
    while reasons := _without_store(connection):
        if time.monotonic() > deadline:
            raise MetadataLost(
                "a broker has restored the metadata store, but others do not use it: "
                + "; ".join(f"broker {each}: {why}" for each, why in reasons.items()),
                hint="See their log files. Start brokers again that have stopped.",
            )
        time.sleep(_TAKEN_PAUSE_S)


def _without_store(connection: ClusterConnection) -> dict[str, str]:
    """Return the running brokers that refuse changes or do not answer, each with its reason."""
    reasons = {}
    for broker in connection.call(DescribeCluster()).brokers:
        if not broker.alive:
            continue
        link = connection.to(broker.id, broker.address)
        try:
            facts = link.call(DescribeCluster(), _TAKEN_S)
        except IsologError as error:
            reasons[broker.id] = error.message
            continue
        for problem in facts.problems:
            if problem.kind == ProblemKind.METADATA_LOST:
                reasons[broker.id] = problem.message
    return reasons


def disk_fault(broker: str, code: str, replicas: int) -> str:
    """Return the text for a broker's disk fault, by the error code of its refused writes."""
    fault = "is full" if code == "DISK_FULL" else f"fails ({code})"
    what = "1 replica refuses" if replicas == 1 else f"{replicas} replicas refuse"
    return f"the disk of broker {broker} {fault}: {what} writes"


def with_refusals(
    cluster: ClusterDescription, statuses: Mapping[str, BrokerStatus]
) -> ClusterDescription:
    """Return the cluster with a problem for each disk that refuses writes, before its effects."""
    disks = []
    for broker, status in sorted(statuses.items()):
        for code in sorted(set(status.refused.values())):
            places = sorted(place for place, each in status.refused.items() if each == code)
            text = disk_fault(broker, code, len(places))
            named = tuple(places[:_NAMES_MAX])
            disks.append(Problem(ProblemKind.REFUSED_WRITES, text, len(places), named))
    causes = [each for each in cluster.problems if each.kind not in _OF_PARTITIONS]
    effects = [each for each in cluster.problems if each.kind in _OF_PARTITIONS]
    return replace(cluster, problems=(*causes, *disks, *effects)) if disks else cluster


def checked_broker(broker: str | int) -> str:
    """Return the id of a broker, or raise UnknownBroker if no broker can have it."""
    try:
        return Decommission.of(broker=str(broker)).broker
    except InvalidRequest:
        raise UnknownBroker(f"there is no broker {str(broker)!r}") from None


def list_transactions(connection: ClusterConnection) -> list[TransactionDescription]:
    """Return all transactional ids with their present or last transaction."""
    return _with_places(connection, connection.call(ListTransactions()).transactions)


def describe_transaction(
    connection: ClusterConnection, transactional_id: str
) -> TransactionDescription:
    """Return one transactional id with its transaction, or raise UnknownTransaction."""
    try:
        request = DescribeTransaction.of(transactional_id=transactional_id)
    except InvalidRequest:
        raise UnknownTransaction(f"there is no transactional id {transactional_id!r}") from None
    return _with_places(connection, [connection.call(request)])[0]


def kill_transaction(
    connection: ClusterConnection, transactional_id: str, number: int | None = None
) -> TransactionDescription:
    """Abort an open transaction of any producer. Its later writes and its commit fail.

    ``number``: only the transaction with this number, not a later one.

    Raises:
        UnknownTransaction: There is no such id.
        InvalidTransaction: No transaction is open.
    """
    if number is None:
        number = describe_transaction(connection, transactional_id).number
    return connection.call(
        KillTransaction(transactional_id=transactional_id, number=None if number < 0 else number)
    )


def _with_places(
    connection: ClusterConnection, found: Sequence[TransactionDescription]
) -> list[TransactionDescription]:
    """Add first offsets and held-back records of unfinished transactions, from the leaders."""
    unfinished = [each for each in found if each.state in UNFINISHED]
    names = {at.topic for each in unfinished for at in each.partitions}
    seen = describe_partitions(connection, sorted(names))
    return [
        structs.replace(
            each, partitions=tuple(_placed(at, each.number, seen) for at in each.partitions)
        )
        for each in found
    ]


def _placed(at: TransactionPartition, number: int, seen: Partitions) -> TransactionPartition:
    partition = seen.get(at.topic, {}).get(at.partition)
    if partition is None or (facts := partition.found.facts) is None:
        return at
    firsts = {each.transaction: each.first_offset for each in facts.open}
    return structs.replace(
        at,
        first_offset=firsts.get(number, at.first_offset),
        held_back=held_back(facts).get(number, 0),
    )


class AccessClient:
    """Users, tokens, rules and quotas of a cluster. A forbidden call raises PermissionDenied.

    A change takes effect on every broker within a second, also for open streams.
    """

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection

    def add_user(self, name: str, password: str) -> None:
        """Add a user, or raise UserExists."""
        self._put_user(name, password, is_new=True)

    def change_password(self, name: str, password: str) -> None:
        """Change a user's password, and end the sessions of the old password."""
        self._put_user(name, password, is_new=False)

    def _put_user(self, name: str, password: str, *, is_new: bool) -> None:
        request_id = secrets.token_hex(8)
        self._connection.call(
            PutUser.of(name=name, password=password, is_new=is_new, request_id=request_id)
        )

    def remove_user(self, name: str) -> None:
        """Remove a user, or raise InvalidRequest if there is no user with this name."""
        self._connection.call(DeleteUser.of(name=name))

    def users(self) -> list[str]:
        """Return the names of all users."""
        return self._connection.call(ListUsers()).users

    def create_token(
        self,
        principal: str | None = None,
        lifetime_s: float | None = None,
        grants: Iterable[tuple[str, str]] | None = None,
        *,
        sliding: bool = False,
    ) -> CreatedToken:
        """Create a token for ``principal``, by default for the caller.

        ``grants``: the permissions of the token, as (operation or ``all``, resource), by default
        those of its principal. ``lifetime_s``: seconds until it expires, by default never.
        ``sliding``: the lifetime restarts with each use.
        """
        return self._connection.call(
            CreateToken.of(
                principal=principal,
                lifetime_ms=None if lifetime_s is None else int(lifetime_s * 1000),
                grants=None if grants is None else _texts(grants),
                sliding=sliding,
            )
        )

    def open_session(self, grants: Iterable[tuple[str, str]], lifetime_s: float) -> str:
        """Return a session token for the caller, which brokers do not store.

        It has these grants and expires after ``lifetime_s`` seconds. It ends earlier if the
        password changes, or the token that it was created with is revoked.
        """
        request = OpenSession(grants=_texts(grants), lifetime_ms=int(lifetime_s * 1000))
        answer = self._connection.call(request)
        assert answer.session is not None
        return answer.session

    def tokens(self) -> list[TokenDescription]:
        """Return all tokens, or only those of the caller if it may not see others."""
        return self._connection.call(ListTokens()).tokens

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token by its id."""
        self._connection.call(RevokeToken.of(id=token_id))

    def add_rule(self, effect: str, principal: str, operation: str, resource: str) -> None:
        """Add a rule, unless it already exists."""
        request = AddRule.of(
            effect=effect, principal=principal, operation=operation, resource=resource
        )
        self._connection.call(request)

    def remove_rule(self, effect: str, principal: str, operation: str, resource: str) -> None:
        """Remove a rule, or raise InvalidRequest if it does not exist."""
        request = RemoveRule.of(
            effect=effect, principal=principal, operation=operation, resource=resource
        )
        self._connection.call(request)

    def rules(self) -> list[RuleText]:
        """Return all rules, by principal and resource."""
        return self._connection.call(ListRules()).rules

    def set_quota(
        self,
        principal: str,
        write_bytes_per_s: int | None = None,
        read_bytes_per_s: int | None = None,
        connections: int | None = None,
    ) -> None:
        """Set a principal's quota at each broker.

        None means no limit. ``*`` is the default for principals without a quota.
        """
        quota = {
            "write_bytes_per_s": write_bytes_per_s,
            "read_bytes_per_s": read_bytes_per_s,
            "connections": connections,
        }
        self._connection.call(SetQuota.of(principal=principal, quota=quota))

    def remove_quota(self, principal: str) -> None:
        """Remove a principal's quota, or raise InvalidRequest if it has none."""
        self._connection.call(RemoveQuota.of(principal=principal))

    def quotas(self) -> dict[str, Quota]:
        """Return all quotas, by principal."""
        return self._connection.call(ListQuotas()).quotas

    def check(self, principal: str, operation: str, resource: str) -> Decision:
        """Return whether the principal has this permission, and the rules that apply."""
        request = CheckAccess.of(principal=principal, operation=operation, resource=resource)
        return self._connection.call(request)


def _texts(grants: Iterable[tuple[str, str]]) -> list[GrantText]:
    return [GrantText(operation=operation, resource=resource) for operation, resource in grants]
