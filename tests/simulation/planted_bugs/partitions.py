"""The records that a partition accepts, and those that readers and consumers get."""

from __future__ import annotations

from typing import Any

from spark_stream.broker.partition.state import PartitionState
from spark_stream.broker.partition.waiters import Appended
from spark_stream.broker.serving import append_batch as append
from spark_stream.broker.serving import fetching
from spark_stream.consistency.partition import producers
from spark_stream.consistency.partition.producers import Accepted, Duplicate
from spark_stream.consistency.replication import bounds as transitions
from spark_stream.consistency.transactions.transactions import State
from spark_stream.scripts import readers
from spark_stream.scripts.transactions import deciding, finishing, positions
from spark_stream.scripts.transactions.deciding import Decisions
from spark_stream.scripts.transactions.finishing import Finisher
from tests.simulation.planted_bugs.planting import Patch, bug, no_steps

# -- partitions ------------------------------------------------------------------------------------


@bug
def a_batch_is_answered_before_it_is_appended(patch: Patch) -> None:
    take, take_woken = append.Append.take, append.Append.take_woken

    def answer(self: Any) -> Any:
        self._later = self._candidate
        end = self._target.core.bounds_state.log_end.offset
        return self._acknowledge(Appended(end, self._batch.num_rows), self._target.leader_epoch)

    def append_it(self: Any) -> Any:
        self._candidate = getattr(self, "_later", None)
        if self._candidate is not None:
            take(self)
        woken, self._taken = take_woken(self), None
        return woken

    patch.setattr(append.Append, "take", answer)
    patch.setattr(append.Append, "take_woken", append_it)


@bug
def a_duplicate_is_appended(patch: Patch) -> None:
    original = producers.judge

    def judge(state: Any, stamp: Any, count: int) -> Any:
        found = original(state, stamp, count)
        return Accepted() if isinstance(found, Duplicate) else found

    patch.setattr(producers, "judge", judge)


@bug
def a_duplicate_is_answered_with_the_end(patch: Patch) -> None:
    original = append.Append._acknowledge

    def acknowledge(self: Any, done: Appended, epoch: int) -> Any:
        if done.duplicate:
            end = self._hosted.partition(self.partition).bounds().log_end_offset
            done = Appended(end, done.count, duplicate=True)
        return original(self, done, epoch)

    patch.setattr(append.Append, "_acknowledge", acknowledge)


@bug
def the_last_stable_offset_ignores_what_is_open(patch: Patch) -> None:
    patch.setattr(transitions, "undecided_from", lambda state, offset: state)


@bug
def nobody_is_woken(patch: Patch) -> None:
    original = PartitionState.carry_out

    def forget(self: PartitionState, effects: Any) -> Any:
        original(self, effects)
        return ()

    patch.setattr(PartitionState, "carry_out", forget)


# -- readers and consumers -------------------------------------------------------------------------


@bug
def aborted_records_travel(patch: Patch) -> None:
    patch.setattr(fetching, "DROPS_ABORTED", frozenset())


@bug
def a_cut_is_where_each_partition_is_stable(patch: Patch) -> None:
    patch.setattr(readers, "greatest_cut", lambda bounds, spans: list(bounds))
    patch.setattr(readers, "next_cut", lambda lower, upper, bounds, spans: list(bounds))


@bug
def positions_move_before_the_decision(patch: Patch) -> None:
    original = Decisions.commit

    def early(self: Decisions, asked: Any) -> Any:
        yield from positions.store_positions(asked.positions, {})
        return (yield from original(self, asked))

    patch.setattr(Decisions, "commit", early)


@bug
def positions_are_stored_after_the_finish(patch: Patch) -> None:
    def finish(self: Finisher, decided: Any) -> Any:
        places, _ = yield from finishing.seal_partitions(decided)
        yield from finishing.write_markers(decided, places)
        done = yield from self.record_finish(decided)
        if decided.state is State.COMMITTING:
            yield from positions.store_positions(decided.positions, {})
        return done

    patch.setattr(Finisher, "finish", finish)


@bug
def a_new_owner_withdraws_nothing(patch: Patch) -> None:
    patch.setattr(deciding, "withdraw_announcement", no_steps)
