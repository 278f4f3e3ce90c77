"""Scripts of two brokers in any order of steps, with crashes between any two: the invariants."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from isolog.errors import (
    ConsumerFenced,
    InvalidTransaction,
    IsologError,
    LeaderUnavailable,
    ProducerFenced,
    TransactionAborted,
    UnknownTopic,
)
from spark_stream.cluster.topics import TOPICS, Topic, encode
from spark_stream.cluster.transactions import join_of
from spark_stream.consistency.transactions.transactions import PositionOf, State
from spark_stream.scripts.steps import Force, Get, PartitionStep, Pause, Script, WriteMarkers
from spark_stream.scripts.topics import delete_topic
from spark_stream.scripts.transactions import positions
from spark_stream.scripts.transactions.deciding import Decisions
from spark_stream.scripts.transactions.finishing import Finisher
from spark_stream.scripts.transactions.records import delete_joins, read_all
from spark_stream.wire.transaction_messages import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    InitTransactions,
    OpenBranch,
    RenewTransaction,
)
from tests.examples import examples
from tests.scripts.world import INVARIANTS, Append, Running, World, here

A, B = "broker 0", "broker 1"
IDS = ("x", "y")


def watched() -> World:
    world = World()
    for invariant in INVARIANTS:
        invariant(world)
    return world


OWNER = {"instance": "me"}
Begun = tuple[int, int, int]


def committed(name: str, begun: Begun, **more: Any) -> CommitTransaction:
    return CommitTransaction(
        **OWNER, transactional_id=name, number=begun[0], branches=(begun[1],), **more
    )


def aborted(name: str, begun: Begun) -> AbortTransaction:
    return AbortTransaction(**OWNER, transactional_id=name, number=begun[0])


def renewed(name: str, begun: Begun) -> RenewTransaction:
    return RenewTransaction(**OWNER, transactional_id=name, number=begun[0])


def begin(world: World, broker: str, name: str, after: int = -1) -> tuple[int, int, int]:
    """Number, producer id and epoch of a new transaction of the instance ``me``."""
    scripts = world.brokers[broker]
    if after < 0:
        world.run(
            broker, scripts.decisions.take_over(InitTransactions(**OWNER, transactional_id=name))
        )
    asked = BeginTransaction(**OWNER, transactional_id=name, after=after)
    found = world.run(broker, scripts.decisions.begin(asked))
    return found.number, found.producer_id, found.epoch


def write(name: str, begun: tuple[int, int, int], place, value: int) -> Script[None]:
    """A batch comes to a partition: it joins, then it is appended."""
    number, producer_id, epoch = begun
    yield from Decisions(Finisher(), here).join(name, number, producer_id, epoch, place)
    yield Append(place, number, producer_id, value)


def following(ends: list[Running], begun: Begun) -> Begun:
    """The next transaction, if an answer to the end of this one has reserved its number."""
    for each in ends:
        answer = each.result
        if answer is not None and answer.number == begun[0] and answer.reserved >= 0:
            return answer.reserved, begun[1], begun[2] + 1
    return begun


def commit(world: World, broker: str, name: str, begun: tuple[int, int, int], **more) -> Running:
    asked = committed(name, begun, **more)
    scripts = world.brokers[broker]
    return world.start(broker, scripts.decisions.commit(asked), "commit")


def abort(world: World, broker: str, name: str, begun: tuple[int, int, int]) -> Running:
    script = world.brokers[broker].decisions.abort(aborted(name, begun))
    return world.start(broker, script, "abort")


def sweep(world: World, broker: str, now_s: float = 0.0) -> Script[None]:
    """Sweep every record, as its coordinator does."""
    found = world.brokers[broker]
    for record in (yield from read_all()):
        yield from found.sweeper.sweep_record(record, now_s, 0)


def settle(world: World) -> None:
    """Both brokers die, and their transactions are swept."""
    for broker in (A, B):
        world.crash(broker)
    world.run(A, sweep(world, A))
    for check in world.before_step:
        check(WriteMarkers(world.at(0), -7, ()))


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["step"] * 12
            + ["write", "write", "commit", "abort", "sweep", "crash", "begin", "go on", "go on"]
        ),
        st.integers(0, 50),
    ),
    min_size=10,
    max_size=90,
)


@pytest.mark.rule(
    "concurrent decisions of a transaction",
    "scripts/transactions/records.py",
    "scripts/transactions/deciding.py",
)
@settings(max_examples=examples(250), deadline=None)
@given(acts=ACTS)
def test_transactions_keep_their_invariants_in_any_interleaving(acts):
    """Two ids, three partitions, and two brokers that handle any call, and crash.

    The followers of one of the partitions are slow.
    """
    world = watched()
    world.partition(2).lags = True
    begun = {name: begin(world, (A, B)[n], name) for n, name in enumerate(IDS)}
    values = iter(range(10_000))
    ends: dict[str, list[Running]] = {name: [] for name in IDS}
    for act, choice in acts:
        broker = (A, B)[choice % 2]
        name = IDS[choice // 2 % 2]
        if act == "step" and world.running:
            world.advance(world.running[choice % len(world.running)])
        elif act == "write":
            place = world.at(choice % 3)
            world.start(broker, write(name, begun[name], place, next(values)), "write")
        elif act == "commit":
            ends[name].append(commit(world, broker, name, begun[name]))
        elif act == "abort":
            ends[name].append(abort(world, broker, name, begun[name]))
        elif act == "go on":
            begun[name] = following(ends[name], begun[name])
        elif act == "sweep":
            world.start(broker, sweep(world, broker), "sweep")
        elif act == "crash":
            world.crash(broker)
        elif act == "begin":
            try:
                begun[name] = begin(world, broker, name, begun[name][0])
            except IsologError:
                continue  # it is open still
    settle(world)
    for name in IDS:
        record = world.store.transaction(name)
        if record.state is State.OPEN:
            continue
        for at in world.store.places(record.number):
            assert not world.partitions[at].open_parts(record.number)


def test_a_commit_at_another_broker_marks_every_partition():
    world = watched()
    begun = begin(world, A, "x")
    for number in range(3):
        world.run((A, B)[number % 2], write("x", begun, world.at(number), number))
    asked = commit(world, B, "x", begun)
    while not asked.over:
        world.advance(asked)
    assert asked.result.state is State.COMMITTED
    assert [world.partitions[world.at(n)].visible() for n in range(3)] == [[0], [1], [2]]


@pytest.mark.rule(
    "the order of steps after the decision of a transaction", "scripts/transactions/finishing.py"
)
@pytest.mark.parametrize("steps", range(14))
def test_a_commit_that_stops_after_any_step_is_finished_by_another_broker(steps):
    """The repeated call gets the same answer."""
    world = watched()
    begun = begin(world, A, "x")
    for number in range(2):
        world.run(A, write("x", begun, world.at(number), number))
    asked = commit(world, A, "x", begun)
    for _ in range(steps):
        if not asked.over:
            world.advance(asked)
    world.crash(A)
    world.run(B, sweep(world, B))
    again = commit(world, B, "x", begun)
    while not again.over:
        world.advance(again)
    assert again.result.state is State.COMMITTED
    assert [world.partitions[world.at(n)].visible() for n in range(2)] == [[0], [1]]


def test_a_commit_returns_once_its_markers_are_replicated():
    world = watched()
    world.partition(1).lags = True
    begun = begin(world, A, "x")
    for number in range(2):
        world.run(A, write("x", begun, world.at(number), number))
    asked = commit(world, A, "x", begun)
    paused_s = 0.0
    while not asked.over:
        paused_s += asked.step.seconds if isinstance(asked.step, Pause) else 0.0
        world.advance(asked)
    assert asked.result.state is State.COMMITTED
    assert world.partition(1).replicated == world.partition(1).end
    assert 0 < paused_s < 0.01  # so few checks come first that no script waits long


def test_a_commit_with_unreplicated_markers_is_decided_but_not_finished():
    """The caller gets a retriable error. A sweep finishes it once the followers are back."""
    world = watched()
    world.partition(0).lags = True
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    stuck = world.partition(0)
    stuck.is_replicated = lambda entry: False  # type: ignore[method-assign]
    asked = commit(world, A, "x", begun)
    while not asked.over:
        world.advance(asked)
    assert isinstance(asked.error, LeaderUnavailable)
    assert asked.error.retriable
    assert world.store.transaction("x").state is State.COMMITTING
    del stuck.is_replicated
    again = commit(world, B, "x", begun)
    while not again.over:
        world.advance(again)
    assert (again.error, again.result.state) == (None, State.COMMITTED)


def test_numbers_rise_across_brokers():
    """Broker B has drawn a higher block, so the rest of A's block is dropped."""
    world = watched()
    begin(world, A, "y")
    first = begin(world, B, "x")
    done = commit(world, B, "x", first)
    while not done.over:
        world.advance(done)
    second = begin(world, A, "x", first[0])
    assert second[0] > first[0]


# -- a reserved number ----------------------------------------------------------------------------


def ended(world: World, broker: str, begun: Begun) -> Begun:
    """Commit, and return the next transaction, which no broker has on record yet."""
    asked = commit(world, broker, "x", begun)
    while not asked.over:
        world.advance(asked)
    after = following([asked], begun)
    assert after != begun
    return after


@pytest.mark.rule(
    "the beginning of a transaction by its first write", "scripts/transactions/deciding.py"
)
@pytest.mark.parametrize("first", range(8))
def test_two_leaders_may_begin_a_transaction_together(first: int):
    """Both writes are in it, whatever the order of their steps."""
    world = watched()
    after = ended(world, A, begin(world, A, "x"))
    one = world.start(A, write("x", after, world.at(0), 1))
    two = world.start(B, write("x", after, world.at(1), 2))
    for _ in range(first):
        if not one.over:
            world.advance(one)
    for each in (two, one):
        while not each.over:
            world.advance(each)
        assert each.error is None
    assert set(world.store.places(after[0])) == {world.at(0), world.at(1)}
    ended(world, B, after)
    assert [world.partition(n).visible() for n in range(2)] == [[1], [2]]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_without_a_write_ends_as_any_other(end: str):
    world = watched()
    after = ended(world, A, begin(world, A, "x"))
    asked = (commit if end == "commit" else abort)(world, B, "x", after)
    while not asked.over:
        world.advance(asked)
    assert asked.result.state is (State.COMMITTED if end == "commit" else State.ABORTED)
    late = world.start(A, write("x", after, world.at(0), 1))
    while not late.over:
        world.advance(late)
    assert isinstance(late.error, InvalidTransaction if end == "commit" else TransactionAborted)
    assert world.partition(0).batches == []


@pytest.mark.parametrize("steps", range(6))
def test_a_sweep_keeps_the_join_that_is_about_to_begin_a_transaction(steps: int):
    """etcd may put the join before the beginning."""
    world = watched()
    after = ended(world, A, begin(world, A, "x"))
    world.store.put_many([join_of("x", after[0], world.at(0))])
    late = world.start(A, write("x", after, world.at(0), 1))
    for _ in range(steps):
        if not late.over:
            world.advance(late)
    world.run(B, delete_joins([(after[0], "x")]))
    assert world.store.places(after[0]) == [world.at(0)]
    while not late.over:
        world.advance(late)
    ended(world, B, after)
    assert world.partition(0).visible() == [1]


def take_over(world: World, broker: str, instance: str) -> None:
    asked = InitTransactions(transactional_id="x", instance=instance)
    world.run(broker, world.brokers[broker].decisions.take_over(asked))


def test_a_new_owner_is_above_the_number_that_the_earlier_one_had_reserved():
    """The brokers have separate blocks of numbers. A number below would count as fenced."""
    world = watched()
    begin(world, B, "y")
    first = begin(world, A, "x")
    after = ended(world, B, first)
    take_over(world, A, "another")
    asked = BeginTransaction(transactional_id="x", instance="another")
    begun = world.run(A, world.brokers[A].decisions.begin(asked))
    assert begun.number > after[0]
    own = (begun.number, begun.producer_id, begun.epoch)
    world.run(A, write("x", own, world.at(0), 7))
    late = world.start(A, write("x", after, world.at(0), 8))
    while not late.over:
        world.advance(late)
    assert isinstance(late.error, ProducerFenced)
    end = CommitTransaction(
        transactional_id="x", instance="another", number=own[0], branches=(own[1],)
    )
    world.run(B, world.brokers[B].decisions.commit(end))
    assert world.partition(0).visible() == [7]


def test_joins_of_a_number_that_a_new_owner_cancels_are_removed():
    world = watched()
    after = ended(world, A, begin(world, A, "x"))
    world.store.put_many([join_of("x", after[0], world.at(0))])
    ended_numbers = [(after[0], "x")]
    assert world.run(B, delete_joins(ended_numbers)) == ended_numbers  # the next sweep, again
    take_over(world, B, "another")
    assert world.run(B, delete_joins(ended_numbers)) == []
    assert world.store.places(after[0]) == []


def test_a_sink_may_continue_the_id_of_a_producer():
    world = watched()
    ended(world, A, begin(world, A, "x"))
    for batch, broker in enumerate((A, B, A)):
        asked = OpenBranch(transactional_id="x", query="q", instance="run", batch=batch)
        found, producer_id = world.run(
            broker, world.brokers[broker].sinks.open_branch(asked, broker, 0)
        )
        world.run(broker, write("x", (found.number, producer_id, 0), world.at(0), batch))
        end = CommitTransaction(
            transactional_id="x",
            instance="run",
            number=found.number,
            branches=(producer_id,),
            batch=batch,
        )
        decided = world.run(broker, world.brokers[broker].decisions.commit(end))
        assert (decided.state, decided.reserved) == (State.COMMITTED, -1)
    assert world.partition(0).visible() == [0, 1, 2]


def test_no_number_is_reserved_while_a_broker_has_another_release():
    world = watched()
    begun = begin(world, A, "x")
    there = replace(here(), may_reserve=False)
    found = world.run(A, Decisions(Finisher(), lambda: there).commit(committed("x", begun)))
    assert found.reserved == -1


# -- a batch on its way ---------------------------------------------------------------------------


def test_a_batch_that_arrives_during_the_finish_is_refused():
    world = watched()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    late = world.start(B, write("x", begun, world.at(1), 2))
    while not isinstance(late.step, Append):
        world.advance(late)
    asked = commit(world, A, "x", begun)
    while not (asked.parts and isinstance(asked.parts[0], WriteMarkers)):
        world.advance(asked)
    world.advance(late)
    assert isinstance(late.error, InvalidTransaction)


# -- topics that are deleted -----------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and created again"])
def test_commit_fails_if_a_topic_was_deleted(again):
    world = watched()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    world.run(B, delete_topic("t"))
    if again:
        topic = Topic("t", "another id", pa.schema([]), 3, {})
        assert world.store.put(TOPICS + topic.name, encode(topic), 0)
    with pytest.raises(UnknownTopic, match="topic 't', which was deleted") as raised:
        world.run(A, Decisions(Finisher(), here).commit(committed("x", begun)))
    assert raised.value.details["topic"] == "t"
    assert world.store.transaction("x").state is State.OPEN
    world.run(A, Decisions(Finisher(), here).abort(aborted("x", begun)))
    assert world.partition(0).visible() == []


@pytest.mark.rule(
    "the commit of a transaction whose topic was deleted", "scripts/transactions/deciding.py"
)
@pytest.mark.parametrize("before", range(12))
@pytest.mark.parametrize("between", range(9))
def test_a_deletion_is_before_or_after_the_whole_commit(before, between):
    world = watched()
    begun = begin(world, A, "x")
    for number in range(2):
        world.run(A, write("x", begun, world.at(number), number))
    deletion = world.start(B, delete_topic("t"))
    for _ in range(between):
        if not deletion.over:
            world.advance(deletion)
    deleted_first = "topics/t" not in world.store.records
    asked = commit(world, A, "x", begun)
    for _ in range(before):
        if not asked.over:
            world.advance(asked)
    while not deletion.over:
        world.advance(deletion)
    while not asked.over:
        world.advance(asked)
    if isinstance(asked.error, UnknownTopic):
        assert world.store.transaction("x").state is State.OPEN
        assert not any(world.partition(number).visible() for number in range(2))
    else:
        assert not deleted_first
        assert asked.result.state is State.COMMITTED
        assert [world.partition(number).visible() for number in range(2)] == [[0], [1]]
    again = commit(world, B, "x", begun)
    while not again.over:
        world.advance(again)
    assert type(again.error) is type(asked.error)


# -- names of consumers ---------------------------------------------------------------------------

MOVE = PositionOf("c", "t", "id", 0, 7)


@pytest.mark.parametrize("before", range(14))
@pytest.mark.parametrize("between", range(5))
def test_a_position_read_by_the_new_owner_moves_for_no_other(before, between):
    """The new owner calls another broker, so no lock of one process can help."""
    world = watched()
    assert world.run(A, world.brokers[A].consumers.take("c", "old")) == []
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    asked = commit(world, A, "x", begun, positions=(MOVE,), owners={"c": "old"})
    taking = world.start(B, world.brokers[B].consumers.take("c", "new"))
    for _ in range(between):  # the new owner is under way when the commit continues
        if not taking.over:
            world.advance(taking)
    for _ in range(before):
        if not asked.over:
            world.advance(asked)
    while not taking.over:
        world.advance(taking)
    read = taking.result
    while not asked.over:
        world.advance(asked)
    after = world.run(B, world.brokers[B].consumers.read_settled("c"))
    assert after == read
    if isinstance(asked.error, ConsumerFenced):
        assert (read, world.store.transaction("x").state) == ([], State.OPEN)
    else:
        assert (asked.error, read) == (None, [MOVE])


@pytest.mark.parametrize("before", range(14))
def test_a_commit_with_other_positions_announces_them(before):
    """An earlier commit of other positions announced them, and its broker died."""
    world = watched()
    for name in ("c", "d"):
        world.run(A, world.brokers[A].consumers.take(name, "old"))
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    earlier = commit(world, A, "x", begun, positions=(MOVE,), owners={"c": "old"})
    while world.store.transaction("x").positions != (MOVE,):
        world.advance(earlier)
    world.crash(A)
    other = PositionOf("d", "t", "id", 0, 7)
    asked = commit(world, B, "x", begun, positions=(other,), owners={"d": "old"})
    for _ in range(before):
        if not asked.over:
            world.advance(asked)
    read = world.run(A, world.brokers[A].consumers.take("d", "new"))
    while not asked.over:
        world.advance(asked)
    assert world.run(A, world.brokers[A].consumers.read_settled("d")) == read
    if isinstance(asked.error, ConsumerFenced):
        assert (read, world.store.transaction("x").state) == ([], State.OPEN)
    else:
        assert (asked.error, read) == (None, [other])


def reset_position(consumers, place):
    """The two calls of a client's reset."""
    yield from consumers.take("c", "new", keeps_group=True)
    yield from positions.store_positions([place], {"c": "new"})


@pytest.mark.rule(
    "the position after a reset of a consumer's name", "scripts/transactions/deciding.py"
)
@pytest.mark.parametrize("before", range(14))
@pytest.mark.parametrize("between", range(6))
def test_no_commit_of_the_fenced_owner_undoes_a_reset(before, between):
    world = watched()
    world.run(A, world.brokers[A].consumers.take("c", "old"))
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    asked = commit(world, A, "x", begun, positions=(MOVE,), owners={"c": "old"})
    place = PositionOf("c", "t", "id", 0, 3)
    reset = world.start(B, reset_position(world.brokers[B].consumers, place))
    for _ in range(between):
        if not reset.over:
            world.advance(reset)
    for _ in range(before):
        if not asked.over:
            world.advance(asked)
    while not reset.over:
        world.advance(reset)
    while not asked.over:
        world.advance(asked)
    assert reset.error is None
    assert world.run(A, world.brokers[A].consumers.read_settled("c")) == [place]
    assert asked.error is None or isinstance(asked.error, ConsumerFenced)


def test_a_late_finisher_stores_no_old_position():
    """It pauses before its write. Others finish, and a later transaction stores a position."""
    world = watched()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    asked = commit(world, A, "x", begun, positions=(MOVE,))
    decided = world.store.transaction("x")
    while decided.state is not State.COMMITTING:
        world.advance(asked)
        decided = world.store.transaction("x")
    late = world.start(A, world.brokers[A].finisher.finish(decided))
    for _ in range(3):  # sealed, marked, and the consumer's record read
        world.advance(late)
    world.run(B, sweep(world, B))
    later = begin(world, B, "x", begun[0])
    further = PositionOf("c", "t", "id", 0, 9)
    done = commit(world, B, "x", later, positions=(further,))
    while not done.over:
        world.advance(done)
    while not late.over:
        world.advance(late)
    assert world.run(A, world.brokers[A].consumers.read_settled("c")) == [further]


def test_a_commit_finished_by_others_returns_its_own_transaction():
    """Two brokers get the call. The id's next transaction begins before the second one answers."""
    world = watched()
    begun = begin(world, A, "x")
    asked = commit(world, A, "x", begun, positions=(MOVE,))
    again = commit(world, B, "x", begun, positions=(MOVE,))
    while world.store.transaction("x").state is not State.COMMITTING:
        world.advance(asked)
    while not isinstance(again.step, Get) or again.step.key != "consumers/c":
        world.advance(again)
    while not asked.over:
        world.advance(asked)
    begin(world, A, "x", begun[0])
    while not again.over:
        world.advance(again)
    assert (again.error, again.result.number) == (None, begun[0])
    assert again.result.state is State.COMMITTED


def test_a_commit_forces_each_partition_once_despite_renewals():
    """Otherwise renewals that come faster than an fsync would prevent the decision for ever."""
    world = watched()
    begun = begin(world, A, "x")
    world.run(A, write("x", begun, world.at(0), 1))
    asked = commit(world, A, "x", begun)
    forces = 0
    for now_ms in range(1, 100):
        if asked.over:
            break
        step = asked.parts[0] if asked.parts else asked.step
        if isinstance(step, Force):
            forces += 1
            world.brokers[B].now_ms = now_ms
            world.run(B, world.brokers[B].decisions.renew(renewed("x", begun)))
        world.advance(asked)
    assert asked.result.state is State.COMMITTED
    assert forces == 1


def test_a_commit_takes_three_steps_at_each_partition():
    """Records are forced before the decision, and markers by the step that writes them."""
    world = watched()
    begun = begin(world, A, "x")
    for number in range(2):
        world.run(A, write("x", begun, world.at(number), number))
    asked = commit(world, A, "x", begun)
    taken: dict[int, list[str]] = {0: [], 1: []}
    while not asked.over:
        step = asked.parts[0] if asked.parts else asked.step
        if isinstance(step, PartitionStep):
            taken[step.at.partition].append(type(step).__name__)
        world.advance(asked)
    for steps in taken.values():
        assert steps == ["Force", "Seal", "WriteMarkers"]
