"""Consumer groups: the reader of a partition, and the owner of a position."""

from __future__ import annotations

from typing import Any

from spark_stream.consistency import groups as rules
from spark_stream.scripts import groups
from spark_stream.scripts.transactions import positions
from spark_stream.scripts.transactions.deciding import Consumers
from spark_stream.scripts.transactions.finishing import Finisher
from tests.simulation.planted_bugs.planting import Patch, bug_in_groups


@bug_in_groups
def a_partition_is_assigned_before_it_is_released(patch: Patch) -> None:
    original = rules.settle

    def settle(group: Any, topics: Any) -> Any:
        wanted = rules.target(group, topics)
        members = tuple(
            rules.replace(
                each, assigned=tuple(at for at in each.assigned if at.place in wanted[each.id])
            )
            for each in group.members
        )
        return original(rules.replace(group, members=members), topics)

    patch.setattr(rules, "settle", settle)


@bug_in_groups
def a_partition_keeps_its_epoch_when_it_moves(patch: Patch) -> None:
    original = rules.settle

    def settle(group: Any, topics: Any) -> Any:
        after = original(group, topics)
        if after is group:
            return group
        members = tuple(
            rules.replace(each, assigned=tuple(rules.replace(at, epoch=1) for at in each.assigned))
            for each in after.members
        )
        return rules.replace(after, members=members)

    patch.setattr(rules, "settle", settle)


@bug_in_groups
def any_member_may_store_any_position(patch: Patch) -> None:
    patch.setattr(rules, "may_store", lambda group, owner, moved: True)
    patch.setattr(rules, "store", lambda group, owner, moved, known: (group, list(moved)))


@bug_in_groups
def a_commit_ignores_who_reads_the_partition_now(patch: Patch) -> None:
    def check(owners: Any, _: Any = ()) -> Any:
        yield from ()

    patch.setattr(positions, "check_owners", check)
    patch.setattr("spark_stream.scripts.transactions.deciding.check_owners", check)


@bug_in_groups
def a_late_position_is_stored(patch: Patch) -> None:
    patch.setattr(rules, "store", lambda group, owner, moved, known: (group, list(moved)))


@bug_in_groups
def a_member_begins_before_a_decided_transaction_is_finished(patch: Patch) -> None:
    class Hasty(Consumers):
        def take_over(self, consumer: str, concerns: Any) -> Any:
            return (yield from positions.read_positions(consumer))

    original = groups.take_partitions

    def hasty(consumers: Consumers, *asked: Any) -> Any:
        return original(Hasty(Finisher()), *asked)

    patch.setattr(groups, "take_partitions", hasty)


@bug_in_groups
def nobody_looks_at_sessions(patch: Patch) -> None:
    def look(*_: Any) -> Any:
        yield from ()
        return []

    patch.setattr(groups, "end_sessions", look)
    patch.setattr(groups, "_without_session", lambda name, group: look(name, group))


@bug_in_groups
def an_earlier_release_takes_a_later_assignment(patch: Patch) -> None:
    original = rules.release

    def release(group: Any, member_id: str, released: Any) -> Any:
        member = group.member(member_id)
        now = {at.place: at for at in (() if member is None else member.assigned)}
        places = [now[each.place] for each in released if each.place in now]
        return original(group, member_id, places)

    patch.setattr(rules, "release", release)
