"""Consumer groups: members join, leave and are removed, and partitions are assigned (rebalance).

No broker coordinates a group: any broker carries out any of these scripts, and each change of a
group is one compare-and-set of its record (``consistency.groups`` has the rules). Topics are read
after the record, so that a broker with an old view does not undo another one's change.

Order of writes: a member's session is on record before the member, and is removed after it. So a
member without a session is one that a broker was about to remove, or was too late to add: the next
change removes it. A session without a member is removed by its age.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Concatenate, Final, ParamSpec

from spark_stream.cluster.consumers import (
    CONSUMERS,
    SESSIONS,
    MemberSession,
    ReaderSession,
    decode_session,
    encode_session,
    group_of,
    member_of,
    session_of,
    with_group,
)
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.consistency import groups
from spark_stream.consistency.groups import (
    Assigned,
    Group,
    GroupMember,
    KnownTopic,
    MemberAnswer,
    Topics,
)
from spark_stream.consistency.isolation import ReaderEnding
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import ConsumerFenced, IsologError, MetadataUnavailable, UnknownTopic
from spark_stream.scripts.readers import GROUP, SessionWatch, record_heartbeat, record_lost_member
from spark_stream.scripts.steps import (
    DeleteRecord,
    FindTopic,
    Get,
    ListRecords,
    PutRecord,
    Refresh,
    Script,
)
from spark_stream.scripts.transactions.deciding import Consumers

P = ParamSpec("P")
_UNRECORDED_MAX: Final = 10_000  # the sessions of more members expire


def join(name: str, member: GroupMember) -> Script[MemberAnswer]:
    """Add a member to a group, or change its topics."""
    yield from _renew(name, member.id, member.session_ms)
    record = yield from Get(CONSUMERS + name)
    before = None if record is None else (group_of(record.value) or Group()).member(member.id)
    found_later = () if before is None else set(member.topics) - set(before.topics)
    group, topics = yield from _change(name, found_later, groups.join, member)
    return _answer(name, group, topics, member.id)


def beat(
    name: str, member_id: str, released: Sequence[Assigned] = (), *, renew: bool = False
) -> Script[MemberAnswer]:
    """Return a member's assignment, after taking the released partitions from it.

    ``renew``: also renew its session. Mostly there is no work, and then no request is needed.

    Raises:
        ConsumerFenced: The id is no member's, or no longer.
    """
    if not (released or renew):
        answer = yield from _answer_if_settled(name, member_id)
        if answer is not None:
            return answer
    group, topics = yield from _change(name, (), groups.release, member_id, released)
    answer = _answer(name, group, topics, member_id)
    if renew:
        member = group.member(member_id)
        assert member is not None
        yield from _renew(name, member_id, member.session_ms)
    return answer


def leave(name: str, member_id: str, *, hangs: bool = False) -> Script[None]:
    """Remove a member. Other members take over its partitions.

    ``hangs``: its program no longer requests records, or has failed.
    """
    yield from _remove(name, member_id, ReaderEnding.LOST if hangs else ReaderEnding.CLEAN)
    session = yield from Get(session_of(name, member_id))
    if session is not None:
        yield from DeleteRecord(session.key, session.version)


class Leaves:
    """The leaves of members at one broker. Those that the store did not record are retried.

    The client has ended by then. Without the retry, other members would wait for the end of its
    session, and a group whose last member was closed would count as lost.
    """

    def __init__(self) -> None:
        self._unrecorded: dict[tuple[str, str], bool] = {}

    def leave(self, name: str, member_id: str, *, hangs: bool = False) -> Script[None]:
        """Remove a member. Other members take over its partitions. ``hangs``: as for :func:`leave`.

        Raises:
            MetadataUnavailable: The store takes no changes. :meth:`retry` removes the member later.
        """
        try:
            yield from leave(name, member_id, hangs=hangs)
        except MetadataUnavailable:
            if len(self._unrecorded) < _UNRECORDED_MAX:
                self._unrecorded[name, member_id] = hangs
            raise

    def retry(self) -> Script[list[tuple[str, str, IsologError]]]:
        """Remove the members with unrecorded leaves, unless they were removed since then.

        Return the group, the id and the error of each member that cannot be removed.

        Raises:
            MetadataUnavailable: The store takes no changes at the moment.
        """
        failed = []
        for (name, member_id), hangs in list(self._unrecorded.items()):
            try:
                yield from leave(name, member_id, hangs=hangs)
            except MetadataUnavailable:
                raise
            except IsologError as error:  # it must not delay the other leaves
                failed.append((name, member_id, error))
            del self._unrecorded[name, member_id]
        return failed


def take_partitions(
    consumers: Consumers, name: str, member_id: str, assigned: Iterable[Assigned]
) -> Script[tuple[list[PositionOf], Group]]:
    """Return a member's positions in partitions that were assigned to it, and the group.

    A partition without a position is missing. See ``transactions.deciding`` for the order.

    Raises:
        ConsumerFenced: One of them is no longer assigned to it.
    """
    wanted = {each.place: each.epoch for each in assigned}
    found = yield from consumers.take_over(name, wanted)
    record = yield from Get(CONSUMERS + name)
    group = Group() if record is None else group_of(record.value) or Group()
    member = group.member(member_id)
    mine = {} if member is None else {each.place: each.epoch for each in member.assigned}
    if not wanted.items() <= mine.items():
        raise _fenced(name)
    return [each for each in found if (each.topic_id, each.partition) in wanted], group


# -- expired sessions ------------------------------------------------------------------------------


def end_sessions(
    watch: SessionWatch, now: Callable[[], float], now_ms: int
) -> Script[list[tuple[str, str]]]:
    """Remove the members whose sessions expired. Return the group and the id of each.

    The loss is on record before the removal, so that each broker that continues the removal records
    it. ``now_ms``: the time, in ms since the epoch.
    """
    asked_s = now()
    sessions = yield from ListRecords(SESSIONS, fresh=False)
    ended = []
    for each in watch.find_expired(sessions, asked_s, now()):
        found = yield from Get(each.key)
        if found is None or found.version != each.version:
            continue
        group, member_id = member_of(each.key)
        record = yield from Get(CONSUMERS + group)
        before = None if record is None else group_of(record.value)
        if before is not None and before.member(member_id) is not None:
            yield from record_lost_member(group, member_id, now_ms)
        yield from _remove(group, member_id, ReaderEnding.LOST)
        if (yield from DeleteRecord(found.key, found.version)):
            ended.append((group, member_id))
    return ended


# -- records --------------------------------------------------------------------------------------


def _remove(name: str, member_id: str, ending: ReaderEnding) -> Script[None]:
    """Remove a member. If it was the last one, record its ending."""
    record = yield from Get(CONSUMERS + name)
    before = None if record is None else group_of(record.value)
    group, _ = yield from _change(name, (), groups.remove, member_id)
    if before is not None and before.members and not group.members:
        end = ReaderSession(member_id, 0, before.isolation, ending=ending)
        yield from record_heartbeat(GROUP, name, end, claim=True)


def _change(
    name: str,
    found_later: Collection[str],
    rule: Callable[Concatenate[Group, P], Group],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Script[tuple[Group, Topics]]:
    """Change a group by a rule, and assign all free partitions."""
    while True:
        record = yield from Get(CONSUMERS + name)
        value = {"positions": []} if record is None else record.value
        before = group_of(value)
        after = rule(before or Group(), *args, **kwargs)
        if before is None and not after.members:
            return after, {}  # the group does not exist
        for each in (yield from _without_session(name, before)):
            after = groups.remove(after, each)
        yield Refresh()  # after the record was read: see the module
        topics = yield from _read_topics(after)
        after = groups.settle(groups.note_topics(after, topics, found_later), topics)
        if after == before:
            return after, topics
        version = 0 if record is None else record.version
        if (yield from PutRecord(CONSUMERS + name, with_group(value, after), version)):
            return after, topics


def _without_session(name: str, group: Group | None) -> Script[list[str]]:
    """Return the members of a group, which was read before, without a session."""
    sessions = yield from ListRecords(session_of(name, ""))
    present = {each.key for each in sessions}
    members = () if group is None else group.members
    return [each.id for each in members if session_of(name, each.id) not in present]


def _answer_if_settled(name: str, member_id: str) -> Script[MemberAnswer | None]:
    """Return the answer for a member, or None if this broker must read or change the group."""
    record = yield from Get(CONSUMERS + name, fresh=False)
    group = None if record is None else group_of(record.value)
    if group is None:
        return None
    topics = yield from _read_topics(group)
    is_settled = groups.settle(groups.note_topics(group, topics), topics) == group
    return groups.answer(group, topics, member_id) if is_settled else None


def _read_topics(group: Group) -> Script[Topics]:
    topics = {}
    for name in sorted({name for member in group.members for name in member.topics}):
        try:
            found = yield from FindTopic(name)
        except UnknownTopic:
            continue  # it was deleted, or does not exist yet
        topics[name] = KnownTopic(found.id, found.partitions)
    return topics


def _renew(name: str, member_id: str, session_ms: int) -> Script[None]:
    key = session_of(name, member_id)
    while True:
        record = yield from Get(key)
        beats = 0 if record is None else decode_session(record.value).heartbeats + 1
        value = encode_session(MemberSession(session_ms, beats))
        if (yield from PutRecord(key, value, 0 if record is None else record.version)):
            return


def _answer(name: str, group: Group, topics: Topics, member_id: str) -> MemberAnswer:
    answer = groups.answer(group, topics, member_id)
    if answer is None:
        raise _fenced(name)
    return answer


def _fenced(name: str) -> ConsumerFenced:
    return ConsumerFenced(
        f"not a member of group {name!r}, or the partition is assigned to another member",
        hint="The session expired without a heartbeat, or the group was deleted.",
        consumer=name,
    )


def session_ms_of(record: StoreRecord) -> int:
    """Return the duration of the session in a member's record."""
    return decode_session(record.value).session_ms
