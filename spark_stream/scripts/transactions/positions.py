"""The records of consumers' names: the positions, and the owner, an instance or a group.

An owner is a text: a named consumer's instance, or a member of a group (``groups.Owner``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from spark_stream.cluster.consumers import (
    CONSUMERS,
    decode_positions,
    encode_positions,
    group_of,
    with_group,
)
from spark_stream.consistency import groups
from spark_stream.consistency.groups import Group, Owner
from spark_stream.consistency.transactions.transactions import PositionOf, State, Transaction
from spark_stream.errors import ConsumerFenced, InvalidRequest, UnknownTopic
from spark_stream.scripts.steps import FindTopic, Get, PutRecord, Refresh, Script
from spark_stream.scripts.transactions import records

Value = Mapping[str, Any]


def read_positions(consumer: str) -> Script[list[PositionOf]]:
    """Return the positions, by topic and partition, or an empty list."""
    record = yield from Get(CONSUMERS + consumer)
    return [] if record is None else decode_positions(record.value["positions"])


def take_name(
    consumer: str, instance: str, principal: str = "", *, keeps_group: bool = False
) -> Script[None]:
    """Give the principal's instance the name, and fence its earlier owner.

    ``keeps_group``: the name stays that of its group and of its principal, and only the earlier
    owner is fenced.

    Raises:
        InvalidRequest: The name is that of a group, which has members.
    """
    owner = {"instance": instance, "principal": principal}

    def take(value: Value) -> Script[Value]:
        yield from ()
        group = group_of(value)
        if group is not None and group.members:
            raise _group_in_use(consumer)
        if keeps_group:
            return {**value, "instance": instance}
        return {key: each for key, each in value.items() if key != "group"} | owner

    yield from _change(consumer, take)


def check_owners(owners: Mapping[str, str], positions: Sequence[PositionOf] = ()) -> Script[None]:
    """Raise ConsumerFenced if a name has another owner than in ``owners``.

    A member of a group must also have been assigned the partitions of ``positions``.
    """
    mine = _by_consumer(positions)
    for name, owner in owners.items():
        record = yield from Get(CONSUMERS + name)
        _check_owner(name, {} if record is None else record.value, owner, mine.get(name, ()))


def commit_positions(positions: Sequence[PositionOf], owners: Mapping[str, str]) -> Script[None]:
    """Store the positions in topics that exist, outside of any transaction.

    Raises:
        ConsumerFenced, InvalidRequest: as :func:`store_positions`. No position is stored.
        UnknownTopic: naming a topic that was deleted, or created again, before this call. The
            positions in the other topics are stored.
    """
    yield Refresh()
    present: set[tuple[str, str]] = set()
    for name in sorted({each.topic for each in positions}):
        with suppress(UnknownTopic):
            present.add((name, (yield from FindTopic(name)).id))
    kept = [each for each in positions if (each.topic, each.topic_id) in present]
    if kept:
        yield from store_positions(kept, owners)
    else:
        yield from check_owners(owners)
    for each in positions:
        if (each.topic, each.topic_id) not in present:
            raise UnknownTopic(
                f"topic {each.topic!r} was deleted, so the position of {each.consumer!r} in it is"
                " not stored",
                hint="Start the consumer again, with topics that exist.",
                topic=each.topic,
                topic_id=each.topic_id,
            )


def store_positions(positions: Sequence[PositionOf], owners: Mapping[str, str]) -> Script[None]:
    """Replace the stored positions, outside of any transaction.

    Late positions of a member of a group are left out: those that it has replaced by later ones.

    Raises:
        ConsumerFenced: A name has another owner than in ``owners``.
        InvalidRequest: ``owners`` lacks the owner of a name, and it is a group's.
    """
    for name, mine in _by_consumer(positions).items():
        yield from _store_for(name, mine, owners)


def _store_for(name: str, mine: list[PositionOf], owners: Mapping[str, str]) -> Script[None]:
    def merge(value: Value) -> Script[Value]:
        yield from ()
        if name in owners:
            _check_owner(name, value, owners[name], mine)
        group, owner = group_of(value), Owner.parse(owners.get(name, ""))
        if group is None or not group.members:
            return _merged(value, mine)
        if owner is None:
            raise _group_in_use(name)
        after, new = groups.store(group, owner, mine, decode_positions(value["positions"]))
        return _merged(with_group(value, after), new)

    yield from _change(name, merge)


def store_decided(decided: Transaction) -> Script[None]:
    """Replace the stored positions by those of a committed transaction.

    A late caller changes nothing. The order is: read the consumer's record, read the transaction's
    record, write the consumer's record. If the transaction is finished at the second step, nothing
    is written. If it finishes later, and a later transaction moves the position, then the
    compare-and-set of the third step fails.
    """

    for name, mine in _by_consumer(decided.positions).items():
        yield from _store_decided_for(name, mine, decided)


def _store_decided_for(name: str, mine: list[PositionOf], decided: Transaction) -> Script[None]:
    def merge(value: Value) -> Script[Value | None]:
        found = yield from records.read(decided.transactional_id)
        here = (decided.number, State.COMMITTING)
        if found is None or (found.number, found.state) != here:
            return None
        return _merged(value, mine)

    yield from _change(name, merge)


def _change(
    name: str, judge: Callable[[Value], Script[Value] | Script[Value | None]]
) -> Script[None]:
    """Replace the record by the judge's result, by compare-and-set, unless the result is None."""
    while True:
        record = yield from Get(CONSUMERS + name)
        value = yield from judge({"positions": []} if record is None else record.value)
        if value is None:
            return
        if (yield from PutRecord(CONSUMERS + name, value, 0 if record is None else record.version)):
            return


def _by_consumer(positions: Sequence[PositionOf]) -> dict[str, list[PositionOf]]:
    names = sorted({each.consumer for each in positions})
    return {name: [each for each in positions if each.consumer == name] for name in names}


def _merged(value: Value, mine: Sequence[PositionOf]) -> Value:
    known = decode_positions(value["positions"])
    merged = {(each.topic, each.partition): each for each in (*known, *mine)}
    return {**value, "positions": encode_positions(merged[place] for place in sorted(merged))}


def _check_owner(name: str, value: Value, owner: str, mine: Sequence[PositionOf]) -> None:
    member = Owner.parse(owner)
    if member is None:
        if value.get("instance") != owner:
            raise ConsumerFenced(
                f"another consumer has taken over the name {name!r}, or its position was reset",
                consumer=name,
            )
    elif not groups.may_store(group_of(value) or Group(), member, mine):
        raise ConsumerFenced(
            f"a partition is no longer assigned to this member of the group {name!r}",
            hint="The member's session expired, or it released the partition. Another member reads"
            " the partition.",
            consumer=name,
        )


def _group_in_use(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name!r} is a consumer group with members",
        hint="Join it with group=, or close its members. A killed member leaves when its session"
        " expires.",
        consumer=name,
    )
