"""Members of a consumer group: the core is the real client's, one task sends heartbeats, one works.

Each actor has some members, one after the other. The last one stays, so that at the end of the run
the group has to settle: each partition is assigned to one running member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from isolog.errors import ConsumerFenced, IsologError
from spark_stream.client.groups import MembershipCore
from spark_stream.cluster.consumers import CONSUMERS, SESSIONS, group_of, member_of
from spark_stream.consistency import groups as rules
from spark_stream.consistency.groups import Assigned, GroupMember, KnownTopic, Place
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf, Transaction
from spark_stream.scripts import groups
from spark_stream.scripts.steps import Script
from spark_stream.scripts.transactions import positions
from spark_stream.wire.transaction_messages import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    InitTransactions,
)
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clients.asking import Session
from tests.simulation.clients.transactions import TIMEOUT_MS, commit
from tests.simulation.form import GROUP, SESSION_MS
from tests.simulation.network import NoAnswer
from tests.simulation.schedule import Body
from tests.simulation.store import MemoryStore
from tests.simulation.world import World

_BEAT_S: Final = 0.8
_TOPICS: Final = ("topic-0", "topic-1")


def read_in_group(world: World, name: str) -> Body:
    """The members of one consumer, one after the other."""
    session = Session(world, name)
    in_transactions = session.chance.random() < 0.5
    for life in range(session.chance.randint(1, 3)):
        member = SimulatedMember(session, f"{name}_{life}", in_transactions=in_transactions)
        yield from session.pause(2.0)
        yield from member.live()
        if session.chance.random() < 0.4:
            yield from member.leave()
        member.is_over = True
    last = SimulatedMember(session, f"{name}_stays", in_transactions=in_transactions)
    world.schedule.start(f"{name} stays", last.live(for_ever=True))
    world.rests.append(lambda: last.is_at_rest(world))


class SimulatedMember:
    """One member, from its start to its end. It joins again when it was removed."""

    def __init__(self, session: Session, member: str, *, in_transactions: bool) -> None:
        self._session = session
        self._name = member
        self._in_transactions = in_transactions
        self._joined = 0
        self._after = -1
        """The number of its last transaction."""
        self._topics = tuple(
            sorted(session.chance.sample(_TOPICS, session.chance.randint(1, len(_TOPICS))))
        )
        self.core = MembershipCore(f"{member}_0")
        self._at: dict[Place, int] = {}
        """The next position of its reads."""
        self._stored: dict[Place, int] = {}
        """The last stored position in its answers."""
        self.is_over = False

    def live(self, *, for_ever: bool = False) -> Body:
        """Works for a while. A separate task sends its heartbeats."""
        chance, world = self._session.chance, self._session.world
        try:
            if self._in_transactions:
                yield from self._take_id()
            yield from self._join()
            world.schedule.start(f"{self._name} beats", self._beat_on())
            rounds = 1_000_000 if for_ever else chance.randint(2, 12)
            for _ in range(rounds):
                if chance.random() < 0.06 and not world.calm:  # its thread stands still
                    yield chance.random() * SESSION_MS / 500
                yield _BEAT_S * (0.5 + chance.random())
                yield from self._work()
        except (IsologError, NoAnswer) as error:
            world.tell(f"{self._name}: ends: {error}")
            self.is_over = True
            if for_ever:  # somebody starts it once more
                again = SimulatedMember(
                    self._session, f"{self._name}_", in_transactions=self._in_transactions
                )
                yield from self._session.pause(2.0)
                world.schedule.start(f"{self._name}_", again.live(for_ever=True))
                world.rests.append(lambda: again.is_at_rest(world))

    def leave(self) -> Body:
        """Leaves the group, in order."""
        member = self.core.member
        self._session.world.notice("leaving", member)
        self.is_over = True
        try:
            yield from self._session.run("leave", lambda at: groups.leave(GROUP, member))
        except (IsologError, NoAnswer):
            return

    def is_at_rest(self, world: World) -> bool:
        """Whether it reads exactly its assigned partitions, and the group is at its target."""
        if self.is_over:
            return True
        record = MemoryStore(world.records).get(CONSUMERS + GROUP)
        group = None if record is None else group_of(record.value)
        if group is None:
            return False
        member = group.member(self.core.member)
        there = {each.name: KnownTopic(each.id, each.partitions) for each in world.topics()}
        topics = {
            name: there[name] for each in group.members for name in each.topics if name in there
        }
        alive = {member_of(each) for each in world.records.kept if each.startswith(SESSIONS)}
        told = rules.answer(group, topics, self.core.member)
        return (
            member is not None
            and told is not None
            and not told.revoked
            and {(GROUP, each.id) for each in group.members} == alive
            and rules.settle(group, topics) == group
            and self.core.reads.keys() == {each.place for each in member.assigned}
            and all(self._at[each] == self._stored[each] for each in self.core.reads)
        )

    # -- its heartbeats ----------------------------------------------------------------------------

    def _join(self) -> Body:
        self._joined += 1
        self.core = MembershipCore(f"{self._name}_{self._joined}")
        self._at.clear()
        self._stored.clear()
        core = self.core
        asked = GroupMember(core.member, self._topics, SESSION_MS, Isolation.READ_UNCOMMITTED)
        told = yield from self._session.run("join", lambda at: groups.join(GROUP, asked))
        core.on_answer(told.epoch, told.assigned, told.revoked)

    def _beat_on(self) -> Body:
        """Heartbeats while it runs. Those of a removed member end without a call."""
        chance, clock = self._session.chance, self._session.world.clock
        renewed = clock.monotonic()
        while not self.is_over:
            yield _BEAT_S * (0.5 + chance.random())
            if chance.random() < 0.05 and not self._session.world.calm:
                yield (0.5 + chance.random()) * SESSION_MS / 500  # the other task may not see that
            core, now = self.core, clock.monotonic()
            renew = now - renewed > SESSION_MS / 3_000
            released = core.released
            self._session.world.notice("releasing", core.member, released)
            if renew:
                renewed = now
            beat = partial(_beat, core.member, released, renew)
            if released:
                self._may_come_again("beat", beat)
            try:
                told = yield from self._session.run("beat", beat)
            except ConsumerFenced:
                if core is self.core:
                    self._is_fenced = True
                continue
            except (IsologError, NoAnswer):
                continue
            if core is self.core:
                core.on_answer(told.epoch, told.assigned, told.revoked)

    _is_fenced = False

    # -- its work ----------------------------------------------------------------------------------

    def _work(self) -> Body:
        if self._is_fenced:
            self._is_fenced = False
            yield from self._join()
        if self.core.has_changes:
            yield from self._apply()
        chance = self._session.chance
        places = () if self._session.world.calm else tuple(self.core.reads)
        for place in places:
            if chance.random() < 0.6:
                self._process(place)
        if chance.random() < 0.6:
            yield from self._store(dict(self.core.reads))

    def _process(self, place: Place) -> None:
        start = self._at[place]
        self._at[place] += self._session.chance.randint(1, 3)
        self._session.world.notice(
            "processed", self.core.member, self.core.reads[place], start, self._at[place]
        )

    def _apply(self) -> Body:
        core = self.core
        change = core.changes()
        core.give_up(change.lost)
        if change.revoked:
            yield from self._store({each.place: each for each in change.revoked})
            core.release(change.revoked)
        if not change.added:
            return
        try:
            found, _ = yield from self._session.run(
                "take",
                lambda at: groups.take_partitions(
                    at.transactions.consumers, GROUP, core.member, change.added
                ),
            )
        except ConsumerFenced:
            return  # the next answer has the present assignment
        core.take(change.added)
        stored = {(each.topic_id, each.partition): each.offset for each in found}
        for each in change.added:
            self._at[each.place] = self._stored[each.place] = stored.get(each.place, 0)
            self._session.world.notice("taken", core.member, each, self._at[each.place])

    def _store(self, places: Mapping[Place, Assigned]) -> Body:
        """Store where it is, or go back to where it was if it may not."""
        moved = tuple(
            PositionOf(GROUP, each.topic, each.topic_id, each.partition, self._at[place])
            for place, each in sorted(places.items())
            if self._at[place] > self._stored[place]
        )
        if not moved:
            return
        owners = {GROUP: str(self.core.owner)}
        try:
            if self._in_transactions:
                yield from self._commit(moved, owners)
            else:
                self._session.world.notice("stored", moved)
                store = partial(_store, moved, owners)
                self._may_come_again("store positions", store)
                yield from self._session.run("store positions", store)
        except ConsumerFenced:
            for each in moved:
                place = (each.topic_id, each.partition)
                self._at[place] = self._stored[place]
            return
        for each in moved:
            self._stored[each.topic_id, each.partition] = each.offset

    def _may_come_again(self, what: str, script: Callable[[SimulatedBroker], Script[Any]]) -> None:
        """The call is now and then on its way twice, and arrives late the second time."""
        session = self._session
        if session.chance.random() < 0.2:
            session.world.start_client(f"{self._name} late", self._come_again(what, script))

    def _come_again(self, what: str, script: Callable[[SimulatedBroker], Script[Any]]) -> Body:
        yield self._session.chance.random() * SESSION_MS / 500
        try:
            yield from self._session.run(what, script)
        except (IsologError, NoAnswer):
            return

    # -- transactions ------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return f"{self._session.name}'s"

    def _take_id(self) -> Body:
        yield from self._session.run(
            "take over",
            lambda at: at.transactions.decisions.take_over(
                InitTransactions(
                    transactional_id=self._id, instance=self._name, timeout_ms=2 * TIMEOUT_MS
                ),
            ),
        )

    def _commit(self, moved: tuple[PositionOf, ...], owners: Mapping[str, str]) -> Body:
        session = self._session
        begun: Transaction = yield from session.run(
            "begin",
            lambda at: at.transactions.decisions.begin(
                BeginTransaction(transactional_id=self._id, instance=self._name, after=self._after),
            ),
        )
        self._after = begun.number
        starts = {
            (each.topic_id, each.partition): self._stored[each.topic_id, each.partition]
            for each in moved
        }
        own = {"transactional_id": self._id, "instance": self._name, "number": begun.number}
        asked = CommitTransaction.of(
            **own, branches=[begun.producer_id], positions=moved, owners=owners
        )
        session.world.notice("asked", asked)
        session.world.notice("group_asked", self.core.member, begun.number, starts)
        if session.chance.random() < 0.2:
            yield from session.pause(3.0)
        try:
            yield from commit(session, asked)
        except ConsumerFenced:
            ended = AbortTransaction.of(**own)
            yield from session.run("abort", lambda at: at.transactions.decisions.abort(ended))
            raise


def _beat(
    member: str, released: Sequence[Assigned], renew: bool, _: SimulatedBroker
) -> Script[rules.MemberAnswer]:
    return groups.beat(GROUP, member, released, renew=renew)


def _store(
    moved: Sequence[PositionOf], owners: Mapping[str, str], _: SimulatedBroker
) -> Script[None]:
    return positions.store_positions(moved, owners)
