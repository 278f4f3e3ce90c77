"""Transactions that are decided, finished and swept."""

from __future__ import annotations

from typing import Any

from spark_stream.broker.scripting import driver
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.transactions import Numbers
from spark_stream.consistency.control import election
from spark_stream.consistency.partition import producers, replica
from spark_stream.consistency.partition.open_transactions import Joins
from spark_stream.consistency.transactions import transactions as rules
from spark_stream.consistency.transactions.transactions import State
from spark_stream.scripts.steps import PutRecord, WriteMarkers, together
from spark_stream.scripts.transactions import deciding, finishing, records
from spark_stream.scripts.transactions.deciding import Decisions
from spark_stream.scripts.transactions.finishing import Finisher
from tests.simulation.planted_bugs.planting import Patch, bug, no_steps

# -- deciding and finishing ------------------------------------------------------------------------


@bug
def partitions_are_not_sealed(patch: Patch) -> None:
    def skip(decided: Any) -> Any:
        return list((yield from records.read_places(decided.number))), None

    patch.setattr(finishing, "seal_partitions", skip)


@bug
def a_join_is_not_judged_once_it_is_on_record(patch: Patch) -> None:
    def join(
        self: Any, transactional_id: Any, number: Any, producer_id: Any, epoch: Any, *at: Any
    ) -> Any:
        begin = yield from self.check_joins(transactional_id, number, producer_id, epoch)
        yield from records.record_joins(transactional_id, number, at, begin)

    patch.setattr(Decisions, "join", join)


@bug
def a_lost_beginning_is_not_noticed(patch: Patch) -> None:
    original = records.record_joins

    def record(transactional_id: Any, number: Any, places: Any, begin: Any = None) -> Any:
        recorded, _ = yield from original(transactional_id, number, places, begin)
        return recorded, begin is not None

    patch.setattr(records, "record_joins", record)


@bug
def any_number_begins_a_transaction(patch: Patch) -> None:
    original = deciding.rules.begun_if_reserved

    def begun(transaction: Any, number: int, coordinator: str, now_ms: int) -> Any:
        taken = rules.replace(transaction, reserved=max(number, transaction.number))
        return original(taken, number, coordinator, now_ms)

    patch.setattr(deciding.rules, "begun_if_reserved", begun)


@bug
def joins_are_removed_before_the_end_is_on_record(patch: Patch) -> None:
    patch.setattr(records, "DECIDED", frozenset())


@bug
def a_seal_lets_pending_joins_live(patch: Patch) -> None:
    def seal(self: Joins, transaction: int) -> None:
        found = self._transactions.get(transaction)
        if found is not None:
            found.confirmed.clear()

    patch.setattr(Joins, "seal", seal)


@bug
def batches_need_no_confirmed_join(patch: Patch) -> None:
    patch.setattr(
        replica.Replica,
        "judge",
        lambda self, stamp, records: producers.judge(
            self.producers.get(stamp.producer_id), stamp, records
        ),
    )


@bug
def markers_come_before_the_decision(patch: Patch) -> None:
    original = Decisions.commit

    def early(self: Decisions, asked: Any) -> Any:
        found = yield from records.read(asked.transactional_id)
        if found is not None and (found.number, found.state) == (asked.number, State.OPEN):
            yield from together(
                WriteMarkers(at, asked.number, asked.branches)
                for at in (yield from records.read_places(found.number))
            )
        return (yield from original(self, asked))

    patch.setattr(Decisions, "commit", early)


@bug
def a_commit_takes_all_branches(patch: Patch) -> None:
    original = finishing.write_markers

    def take_all(decided: Any, places: Any) -> Any:
        writers = (decided.producer_id, *decided.branches, *decided.dropped)
        everybody = tuple(each for each in writers if each >= 0)
        return (yield from original(rules.replace(decided, taken=everybody), places))

    patch.setattr(finishing, "write_markers", take_all)


@bug
def a_transaction_is_finished_before_its_markers(patch: Patch) -> None:
    original = Finisher.finish

    def hasty(self: Finisher, decided: Any) -> Any:
        yield from self.record_finish(decided)
        return (yield from original(self, decided))

    patch.setattr(Finisher, "finish", hasty)


@bug
def what_others_decided_counts_as_finished(patch: Patch) -> None:
    patch.setattr(Finisher, "holds", lambda self, found: True)
    patch.setattr(Finisher, "_forget", lambda self, recorded: None)


@bug
def a_lost_race_is_not_noticed(patch: Patch) -> None:
    def put(key: str, value: Any, expected: int) -> Any:
        yield PutRecord(key, value, expected)
        return True

    patch.setattr(records, "PutRecord", put)


@bug
def numbers_are_not_above_the_last(patch: Patch) -> None:
    original = Numbers.take
    patch.setattr(Numbers, "take", lambda self, above=-1: original(self))
    patch.setattr(
        deciding,
        "allot",
        _allot_anything,
    )
    patch.setattr(rules, "begun", _begun_anyhow(rules.begun))


def _allot_anything(found: Any, spare: Any, *, producer_id: bool = True) -> Any:
    number = yield from deciding.TakeNumber(deciding.Numbering.TRANSACTIONS)
    producer = spare.producer_id
    if producer_id and producer < 0:
        producer = yield from deciding.TakeNumber(deciding.Numbering.PRODUCERS)
    return rules.Allotted(number, producer, spare.coordinator)


def _begun_anyhow(original: Any) -> Any:
    def begun(transaction: Any, allotted: Any, now_ms: int) -> Any:
        before = rules.replace(transaction, number=-1)
        return original(before, allotted, now_ms)

    return begun


@bug
def a_commit_does_not_force(patch: Patch) -> None:
    patch.setattr(deciding, "force_partitions", no_steps)


@bug
def markers_of_a_commit_are_not_forced(patch: Patch) -> None:
    patch.setattr(
        driver,
        "_mark",
        lambda at, step: at.transactions.end(step.transaction, frozenset(step.taken).__contains__),
    )


@bug
def the_record_does_not_name_the_partition(patch: Patch) -> None:
    patch.setattr(Decisions, "join", no_steps)


# -- by itself -------------------------------------------------------------------------------------


@bug
def a_sweep_ignores_timeouts(patch: Patch) -> None:
    patch.setattr(finishing.Watch, "unchanged_s", lambda self, record, now_s: 1e9)


@bug
def a_sweep_ignores_leases(patch: Patch) -> None:
    patch.setattr(Leases, "alive", lambda self, broker_id, incarnation=None: False)


@bug
def a_start_aborts_what_is_open(patch: Patch) -> None:
    def restore(open_parts: Any) -> Any:
        for at, number in open_parts:
            yield WriteMarkers(at, number, ())
        return []

    patch.setattr(finishing, "restore_markers", restore)


@bug
def a_leader_epoch_is_used_again(patch: Patch) -> None:
    def led_by(record: Any, leader: Any, isr: Any) -> Any:
        return rules.replace(record, leader=leader, isr=isr)

    patch.setattr(election, "_led_by", led_by)
