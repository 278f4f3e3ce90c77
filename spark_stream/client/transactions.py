"""Transactional ids as operators see them, with the answers of the partitions' leaders."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.leaders import Partitions, held_back, see_partitions
from spark_stream.errors import InvalidRequest, UnknownTransaction
from spark_stream.wire.transaction_messages import (
    UNFINISHED,
    DescribeTransaction,
    KillTransaction,
    ListTransactions,
    TransactionDescription,
    TransactionPartition,
)


def list_transactions(connection: ClusterConnection) -> list[TransactionDescription]:
    """Return all transactional ids with their present or last transaction."""
    return _with_places(connection, connection.call(ListTransactions()).transactions)


def describe_transaction(
    connection: ClusterConnection, transactional_id: str
) -> TransactionDescription:
    """Return one transactional id with its transaction, or raise UnknownTransaction."""
    try:
        asked = DescribeTransaction.of(transactional_id=transactional_id)
    except InvalidRequest:
        raise UnknownTransaction(f"there is no transactional id {transactional_id!r}") from None
    return _with_places(connection, [connection.call(asked)])[0]


def kill_transaction(
    connection: ClusterConnection, transactional_id: str, number: int | None = None
) -> TransactionDescription:
    """Abort the open transaction, whoever owns it: its writes and commit fail.

    ``number``: only the transaction of this number, and no later one.

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
    """Add what the leaders of the partitions of unfinished transactions answer."""
    unfinished = [each for each in found if each.state in UNFINISHED]
    names = {at.topic for each in unfinished for at in each.partitions}
    seen = see_partitions(connection, sorted(names))
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
