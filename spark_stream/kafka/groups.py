"""Groups of Kafka's consumers. They are isolog's groups: the brokers assign the partitions.

A member of a group of isolog may be a Kafka client. The generation of a member is the group's epoch
at its last join. So positions of an earlier generation are refused, as those of any late member.
No member becomes the leader, as with Kafka's new groups (KIP-848). A rebalance has no barrier.
After a change of its assignment, a member gets the order to join again as the answer to a
heartbeat. The join releases the partitions that it no longer owns. The brokers have all state, so
each request may come through another gateway.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from spark_stream.consistency.groups import Assigned, MemberAnswer, Owner, Place
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import (
    ConsumerFenced,
    InvalidRequest,
    IsologError,
    UnknownConsumer,
    UnknownTopic,
)
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.messages.reading import read_message
from spark_stream.kafka.messages.schemas import load_schema
from spark_stream.kafka.messages.writing import write_message
from spark_stream.kafka.reading import numbers_by_topic, topic_of
from spark_stream.kafka.refusals import (
    KafkaCode,
    LateGeneration,
    MalformedRequest,
    Refusal,
    code_of,
)
from spark_stream.wire.consumer_messages import (
    CommitPosition,
    ConsumerDescription,
    DeleteConsumer,
    GetPosition,
    GroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    ListConsumers,
    TakePartitions,
)
from spark_stream.wire.limits import SESSION_MS_MAX, SESSION_MS_MIN

CONSUMER: Final = "consumer"
"""The type of groups that are served. Others, such as those of Connect, assign other things."""

_MEMBER: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CLIENT_ID_MAX: Final = 24
_FIRST_WITH_TWO_STEPS: Final = 4
"""The version of JoinGroup in which a new member first gets its id."""

_FIRST_WITH_KEYS: Final = 4
"""The version of FindCoordinator with several keys."""

_KEY_TYPES: Final = (0, 1)  # groups and transactions
_NO_GENERATION: Final = -1
_COMMITS: Final = 3
"""The most attempts to store positions, while their topics are deleted and created again."""


def group_code(error: Exception) -> KafkaCode:
    """Return the error code for an error in a request about groups."""
    match error:
        case Refusal():
            return error.code
        case ConsumerFenced():
            return KafkaCode.UNKNOWN_MEMBER_ID
        case UnknownConsumer():
            return KafkaCode.GROUP_ID_NOT_FOUND
        case InvalidRequest():
            return KafkaCode.INVALID_GROUP_ID
        case IsologError() if error.retriable:
            return KafkaCode.COORDINATOR_NOT_AVAILABLE  # the client finds one, and tries again
        case _:
            return code_of(error)


def _failed(code: KafkaCode, **fields: Any) -> Answer:
    return {"error_code": int(code), **fields}


# -- coordinators ----------------------------------------------------------------------------------


def find_coordinator(call: KafkaCall) -> Answer:
    """Return the fields of the answer about the coordinator of groups or transactions."""
    if call.fields["key_type"] not in _KEY_TYPES:
        found = _failed(KafkaCode.INVALID_REQUEST, node_id=-1, host="", port=-1)
    else:
        at = call.gateways.coordinator
        found = {"node_id": at.node_id, "host": at.host, "port": at.port}
    if call.request.version < _FIRST_WITH_KEYS:
        return found
    return {"coordinators": [{"key": key, **found} for key in call.fields["coordinator_keys"]]}


# -- members ---------------------------------------------------------------------------------------


def join_group(call: KafkaCall) -> Answer:
    """Add a member, or begin the next generation of one."""
    fields, member = call.fields, call.fields["member_id"]
    if fields["protocol_type"] != CONSUMER or not fields["protocols"]:
        return _failed(KafkaCode.INCONSISTENT_GROUP_PROTOCOL)
    if not SESSION_MS_MIN <= fields["session_timeout_ms"] <= SESSION_MS_MAX:
        return _failed(KafkaCode.INVALID_SESSION_TIMEOUT)
    if not member:
        member = _new_member(call.request.client_id)
        if call.request.version >= _FIRST_WITH_TWO_STEPS:
            # Without this step, a member whose answer is lost would keep partitions for a session.
            return _failed(KafkaCode.MEMBER_ID_REQUIRED, member_id=member)
    if not _MEMBER.fullmatch(member):
        return _failed(KafkaCode.UNKNOWN_MEMBER_ID, member_id=member)
    protocol = fields["protocols"][0]
    topics, owned = _subscription(protocol["metadata"])
    try:
        request = JoinGroup.of(
            consumer=fields["group_id"],
            member=member,
            topics=topics,
            session_ms=fields["session_timeout_ms"],
            isolation=Isolation.READ_COMMITTED,
        )
        found = call.log._connection.call(request)
        released = [each for each in found.revoked if (each.topic, each.partition) not in owned]
        if released:
            found = _beat(call, member, released=released)
    except IsologError as error:
        return _failed(group_code(error), member_id=member)
    key = fields["group_id"], member
    call.members.on_joined(key, fields["session_timeout_ms"] / 1_000)
    return {
        "generation_id": found.epoch,
        "protocol_type": CONSUMER,
        "protocol_name": protocol["name"],
        "leader": "",
        "member_id": member,
    }


def sync_group(call: KafkaCall) -> Answer:
    """Return the fields of the answer with a member's assignment in its generation."""
    generation, member = call.fields["generation_id"], call.fields["member_id"]
    try:
        found = _beat(call, member)
        if generation > found.epoch:
            return _failed(KafkaCode.ILLEGAL_GENERATION)
        assigned = _readable(found, generation)
        if assigned:  # a transaction may have decided on a position, and not stored it yet
            call.log._connection.call(
                TakePartitions.of(
                    consumer=call.fields["group_id"], member=member, assigned=assigned
                )
            )
    except IsologError as error:
        return _failed(group_code(error))
    return {"assignment": _assignment((each.topic, each.partition) for each in assigned)}


def heartbeat(call: KafkaCall) -> Answer:
    """Renew the session of a member. After a change of its assignment it has to join again."""
    generation, member = call.fields["generation_id"], call.fields["member_id"]
    key = call.fields["group_id"], member
    renew = call.members.is_due(key)
    try:
        found = _beat(call, member, renew=renew)
    except IsologError as error:
        return _failed(group_code(error))
    if renew:
        call.members.on_renewed(key)
    if generation > found.epoch:
        return _failed(KafkaCode.ILLEGAL_GENERATION)
    if found.revoked or any(each.epoch > generation for each in found.assigned):
        return _failed(KafkaCode.REBALANCE_IN_PROGRESS)
    return {}


def leave_group(call: KafkaCall) -> Answer:
    """Remove a member. Other members take over its partitions."""
    group, member = call.fields["group_id"], call.fields["member_id"]
    try:
        call.log._connection.call(LeaveGroup.of(consumer=group, member=member))
    except IsologError as error:
        return _failed(group_code(error))
    call.members.forget((group, member))
    return {}


def _new_member(client_id: str) -> str:
    """Return a new id that names the client to people."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "-", client_id)[:_CLIENT_ID_MAX]
    return f"{readable or 'kafka'}-{uuid.uuid4().hex}"


def _beat(
    call: KafkaCall, member: str, *, released: Collection[Assigned] = (), renew: bool = False
) -> MemberAnswer:
    request = GroupHeartbeat.of(
        consumer=call.fields["group_id"], member=member, released=list(released), renew=renew
    )
    return call.log._connection.call(request)


def _readable(found: MemberAnswer, generation: int) -> list[Assigned]:
    """Return the partitions that a member reads in its generation."""
    revoked = {each.place for each in found.revoked}
    return [
        each for each in found.assigned if each.epoch <= generation and each.place not in revoked
    ]


def _subscription(metadata: bytes) -> tuple[list[str], set[tuple[str, int]]]:
    """Return the topics of a subscription, and the partitions that its member still reads."""
    data = memoryview(metadata)
    if len(data) < 2:
        raise MalformedRequest("a subscription has no version")
    schema = load_schema("ConsumerProtocolSubscription")
    version = min(int.from_bytes(data[:2]), schema.versions.last)
    found = read_message(schema, version, data[2:])
    owned = {
        (each["topic"], number)
        for each in found["owned_partitions"]
        for number in each["partitions"]
    }
    return sorted(set(found["topics"])), owned


def _assignment(assigned: Iterable[tuple[str, int]]) -> bytes:
    """Return the assignment of a member, as its client reads it."""
    values = {
        "assigned_partitions": [
            {"topic": topic, "partitions": numbers}
            for topic, numbers in numbers_by_topic(sorted(assigned)).items()
        ]
    }
    return b"\0\0" + b"".join(write_message(load_schema("ConsumerProtocolAssignment"), 0, values))


# -- positions -------------------------------------------------------------------------------------


def offset_commit(call: KafkaCall) -> Answer:
    """Store positions of a group, for a member or, without members, for any client."""
    group, member = call.fields["group_id"], call.fields["member_id"]
    generation = call.fields["generation_id_or_member_epoch"]
    for left in reversed(range(_COMMITS)):
        positions, codes = positions_in(call, group, call.fields["topics"])
        try:
            owners = owners_of(call, group, member, generation)
            call.log._connection.call(CommitPosition.of(positions=positions, owners=owners))
            break
        except (IsologError, Refusal) as error:
            if isinstance(error, UnknownTopic) and left:  # it was deleted, and may exist again
                call.log._topics.drop(error.details["topic"])
                continue
            code = _commit_code(call, error, member)
            codes |= {(each.topic, each.partition): code for each in positions}
            break
    return committed(call.fields["topics"], codes)


def positions_in(
    call: KafkaCall, group: str, topics: Iterable[Mapping[str, Any]]
) -> tuple[list[PositionOf], dict[Place, KafkaCode]]:
    """Return the positions in a request, and the error codes of those in unknown topics."""
    found: list[PositionOf] = []
    codes: dict[Place, KafkaCode] = {}
    for topic in topics:
        name = topic["name"]
        for each in topic["partitions"]:
            place = name, each["partition_index"]
            try:
                topic_id = topic_of(call.log, *place).id
            except IsologError as error:
                codes[place] = code_of(error)
                continue
            if each["committed_offset"] < 0:
                codes[place] = KafkaCode.OFFSET_OUT_OF_RANGE
                continue
            found.append(PositionOf(group, name, topic_id, place[1], each["committed_offset"]))
    return found, codes


def owners_of(call: KafkaCall, group: str, member: str, generation: int) -> dict[str, str]:
    """Return the member as the owner of its positions, or no owner for a client without a group.

    Each commit has the next turn, so it replaces the stored positions also if it moves back.

    Raises:
        ConsumerFenced: The group has no such member.
        LateGeneration: The group has not reached this generation.
    """
    if not member and generation == _NO_GENERATION:
        return {}
    answer = _beat(call, member)
    if generation > answer.epoch:
        raise LateGeneration(f"the group has no generation {generation} yet")
    stored = max((each.turn for each in answer.assigned), default=0)
    turn = call.members.next_turn((group, member), stored)
    return {group: str(Owner(member, max(0, generation), turn))}


def committed(topics: Iterable[Mapping[str, Any]], codes: Mapping[Place, KafkaCode]) -> Answer:
    """Return the fields of the answer to a commit of positions."""
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _failed(
                        codes.get((topic["name"], each["partition_index"]), KafkaCode.NONE),
                        partition_index=each["partition_index"],
                    )
                    for each in topic["partitions"]
                ],
            }
            for topic in topics
        ]
    }


def _commit_code(call: KafkaCall, error: IsologError | Refusal, member: str) -> KafkaCode:
    """Return the error code for a commit that failed: a member may be late, or removed."""
    if isinstance(error, InvalidRequest):
        return KafkaCode.UNKNOWN_MEMBER_ID  # the group has members
    if not isinstance(error, ConsumerFenced):
        return group_code(error)
    try:
        _beat(call, member)
    except IsologError as refused:
        return group_code(refused)
    return KafkaCode.ILLEGAL_GENERATION


def offset_fetch(call: KafkaCall) -> Answer:
    """Return the fields of the answer with the stored positions of a group."""
    asked = call.fields["topics"]
    try:
        found = call.log._connection.call(GetPosition.of(consumer=call.fields["group_id"]))
        offsets = {
            (each.topic, each.partition): each.offset
            for each in found.positions
            if _is_present(call, each)
        }
    except IsologError as error:
        code = group_code(error)
        topics = [
            _fetched(each["name"], dict.fromkeys(each["partition_indexes"], -1), code)
            for each in asked or ()
        ]
        return _failed(code, topics=topics)
    if asked is None:
        numbers = numbers_by_topic(sorted(offsets))
    else:
        numbers = {each["name"]: each["partition_indexes"] for each in asked}
    return {
        "topics": [
            _fetched(name, {number: offsets.get((name, number), -1) for number in of_topic})
            for name, of_topic in numbers.items()
        ]
    }


def _is_present(call: KafkaCall, position: PositionOf) -> bool:
    """Return whether the topic of a position exists, and was not created again since."""
    try:
        return call.log._topics.known(position.topic).id == position.topic_id
    except UnknownTopic:
        return False


def _fetched(name: str, offsets: Mapping[int, int], code: KafkaCode = KafkaCode.NONE) -> Answer:
    return {
        "name": name,
        "partitions": [
            _failed(code, partition_index=number, committed_offset=offset, metadata="")
            for number, offset in offsets.items()
        ],
    }


# -- operators -------------------------------------------------------------------------------------


def list_groups(call: KafkaCall) -> Answer:
    """Return the fields of the answer with all groups that the user may describe."""
    wanted = call.fields["states_filter"]
    found = [
        {"group_id": each.name, "protocol_type": CONSUMER, "group_state": _state(each)}
        for each in _consumers(call).values()
    ]
    return {"groups": [each for each in found if not wanted or each["group_state"] in wanted]}


def describe_groups(call: KafkaCall) -> Answer:
    """Return the fields of the answer about groups. A group without a record is dead."""
    known = _consumers(call)
    return {
        "groups": [
            _without_record(call, name)
            if name not in known
            else {
                "group_id": name,
                "group_state": _state(known[name]),
                "protocol_type": CONSUMER,
                "members": _members(known[name]),
            }
            for name in call.fields["groups"]
        ]
    }


def _without_record(call: KafkaCall, name: str) -> Answer:
    """Return the description of a group that does not exist, or that the user may not describe."""
    try:
        call.log._connection.call(GetPosition.of(consumer=name))
    except IsologError as error:
        return _failed(group_code(error), group_id=name)
    return {"group_id": name, "group_state": "Dead"}


def delete_groups(call: KafkaCall) -> Answer:
    """Delete groups without members, with their positions."""
    known = _consumers(call)
    results = []
    for name in call.fields["groups_names"]:
        code = KafkaCode.NONE
        if name in known and _state(known[name]) != "Empty":
            code = KafkaCode.NON_EMPTY_GROUP
        else:
            try:
                call.log._connection.call(DeleteConsumer.of(consumer=name))
            except IsologError as error:
                code = group_code(error)
        results.append(_failed(code, group_id=name))
    return {"results": results}


def _consumers(call: KafkaCall) -> dict[str, ConsumerDescription]:
    """Return the groups and the named consumers. The queries of Spark have no group."""
    found = call.log._connection.call(ListConsumers()).consumers
    return {each.name: each for each in found if each.kind == "client"}


def _state(consumer: ConsumerDescription) -> str:
    return "Stable" if consumer.group is not None and consumer.group.members else "Empty"


def _members(consumer: ConsumerDescription) -> list[Answer]:
    members = () if consumer.group is None else consumer.group.members
    return [
        {
            "member_id": each.id,
            "client_id": each.id.rpartition("-")[0] or each.id,
            "member_assignment": _assignment(
                (at.topic, at.partition) for at in consumer.partitions if at.member == each.id
            ),
        }
        for each in members
    ]
