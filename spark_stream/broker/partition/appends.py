"""Appends to one partition: inspect and encode without the lock, judge and append under it.

Order of steps: the core judges the batch, the log takes it, the core applies its entry and
publishes the new bounds, the append is acknowledged, and then the reads that it satisfies are
woken.

Time: what ages (entries, producers) goes by the steady clock; only the timestamps of records are
the wall clock's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVarTuple

import pyarrow as pa
from msgspec.structs import replace

from spark_stream.broker.partition.inspection import inspected, refusal
from spark_stream.broker.partition.outcomes import (
    Acknowledgement,
    Appended,
    Candidate,
    Taken,
    WakeUp,
    unknown_outcome,
)
from spark_stream.broker.partition.state import PartitionState
from spark_stream.consistency.ids import NO_TRANSACTION, Offset
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.effects import Effects
from spark_stream.consistency.partition.producers import (
    IDLE_AGE,
    NOBODY,
    PRODUCERS_MAX,
    Duplicate,
    RefusedBatch,
    Stamp,
    Wrong,
    following,
)
from spark_stream.errors import (
    BrokerBusy,
    DiskFull,
    InvalidTransaction,
    IsologError,
    NotEnoughReplicas,
    OutOfOrderSequence,
    ProducerFenced,
    StorageFailure,
)
from spark_stream.storage.format.log_format import Prepared

Ts = TypeVarTuple("Ts")


class Appends:
    """Appends of producers to one partition, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def prepare(self, batch: pa.RecordBatch, stamp: Stamp | None) -> Candidate:
        """Inspect and encode a message: all of it, or the records before its first bad one.

        In a transaction it is all or nothing.

        Raises:
            BatchTooLarge, InvalidRecord: nothing of the message can be taken.
        """
        log_format = self._state.log.format
        verdict = inspected(batch, log_format.required, log_format.settings.max_record_bytes)
        kept = verdict.kept
        if _in_transaction(stamp) and verdict.flaw is not None:
            kept = 0
        prepared = None
        if kept:
            good = batch if kept == batch.num_rows else batch.slice(0, kept)
            prepared = log_format.prepare(log_format.conformed(good), self._state.clock.wall_us())
        return Candidate(prepared, verdict.flaw)

    def take(
        self,
        candidate: Candidate,
        stamp: Stamp | None,
        isolation: Isolation,
        patience_s: float = -1,
    ) -> Taken | None:
        """Judge and append a message. A batch that is in the log already is not appended again.

        Return None, with nothing done, if the lock was not free within ``patience_s`` (negative: no
        limit).

        Raises:
            DiskFull, StorageFailure: nothing was kept. The detail ``others_in_sync`` is true if the
                partition has other in-sync replicas, so that one of them may lead soon.
            ProducerFenced, OutOfOrderSequence, InvalidTransaction: the stamp does not fit.
            NotLeader, NotEnoughReplicas: it cannot be appended here, or not now.
            BrokerStopping, UnknownTopic: the partition is closed.
        """
        state = self._state
        if not state.lock.acquire(timeout=patience_s):
            return None
        try:
            state.check_takes()
            if not state.core.has_enough_replicas(stamp, isolation):
                raise self._too_few_replicas()
            done, effects = self._judge_and_append(candidate.prepared, stamp)
            pending = None
            if done.count:
                last = done.offset + done.count - 1
                pending = self._acknowledgement(stamp, isolation, last)
            woken = state.carry_out(effects)
        finally:
            state.lock.release()
        if candidate.flaw is not None:
            kept = 0 if candidate.prepared is None else candidate.prepared.records
            limit, within = state.log.format.settings.max_record_bytes, _in_transaction(stamp)
            error = refusal(candidate.flaw, kept, done.offset, limit, in_transaction=within)
            done = replace(done, refused=error)
        return Taken(done, pending, woken)

    def await_acknowledgement(self, taken: Taken, timeout_s: float | None) -> None:
        """Wait until the append is as safe as it asked to be.

        Raises:
            UnknownOutcome: it is not so in time; the records stay, and may still become so.
            BrokerStopping, UnknownTopic, NotLeader: the partition was closed meanwhile.
        """
        state, pending, done = self._state, taken.pending, taken.appended
        if pending is None or pending.wait(timeout_s):
            return
        state.lock.do_soon(self._give_up, pending.ticket)  # others may hold it for long
        raise unknown_outcome(done, state.topic, state.number, "were not replicated in time")

    def _give_up(self, ticket: int) -> tuple[WakeUp, ...]:
        self._state.core.give_up(ticket)
        self._state.callers.remove(ticket)
        return ()

    def call_when_free(self, wake: Callable[[*Ts], None], *args: *Ts) -> None:
        """Call ``wake(*args)`` once no other thread holds the partition. Never wait."""
        self._state.lock.do_soon(_woken, partial(wake, *args))

    def _judge_and_append(
        self, prepared: Prepared | None, stamp: Stamp | None
    ) -> tuple[Appended, Effects]:
        """Judge and append a batch, or None for a message with no good record.

        The caller holds the lock.
        """
        state, core, now = self._state, self._state.core, self._state.clock.steady_us()
        end = core.bounds_state.log_end
        records = 0 if prepared is None else prepared.records
        if stamp is not None:
            if not core.make_room(stamp.producer_id, now):
                raise self._too_many_producers()
            verdict = core.judge(stamp, records)
            if isinstance(verdict, Duplicate):
                if not self._is_stored(verdict, prepared):
                    expected = following(core.producers[stamp.producer_id].last_sequence)
                    raise _of_stamp(state.name, stamp, RefusedBatch(Wrong.OTHER_BATCH, expected))
                return Appended(verdict.offset, verdict.count, duplicate=True), []
            if isinstance(verdict, RefusedBatch):
                if prepared is None:  # its own error says more
                    return Appended(end.offset, 0), []
                raise _of_stamp(state.name, stamp, verdict)
        if prepared is None:
            if stamp is not None:
                core.use_up(stamp, now)
            return Appended(end.offset, 0), []
        writer = stamp or NOBODY
        try:
            with state.fitness:
                state.log.append(prepared, core.leader_epoch, now, writer)
        except (DiskFull, StorageFailure) as error:
            progress = core.progress
            error.details["others_in_sync"] = progress is not None and len(progress.record.isr) > 1
            raise
        entry = prepared.entry_at(end, core.leader_epoch, now, writer)
        effects = core.apply(entry)
        state.sessions.give_batch(entry, prepared.message)
        state.traffic.appended.add(1, records, prepared.message.size)
        return Appended(end.offset, records), effects

    def _is_stored(self, stored: Duplicate, prepared: Prepared | None) -> bool:
        """Return whether the log has the records of a batch, perhaps in another encoding.

        The topic's schema or compression may have changed since the first time.
        """
        if prepared is None:
            return False
        if prepared.crc == stored.crc:
            return True
        state = self._state
        try:
            chunks = list(state.log.read(stored.offset, Offset(stored.offset + stored.count)))
        except IsologError:  # retention has removed the batch, or it is damaged
            return False
        rows = pa.Table.from_batches([each.batch for each in chunks]).combine_chunks()
        (batch,) = rows.to_batches()
        return state.log.format.prepare(batch, prepared.timestamp).crc == prepared.crc

    def _acknowledgement(
        self, stamp: Stamp | None, isolation: Isolation, last_offset: int
    ) -> Acknowledgement | None:
        ticket = self._state.callers.new_number()
        if self._state.core.acknowledge(ticket, stamp, isolation, last_offset):
            return None
        return self._state.callers.add_append(ticket)

    def _too_many_producers(self) -> BrokerBusy:
        return BrokerBusy(
            f"{self._state.name}: no room for a new producer: {PRODUCERS_MAX} others have written"
            f" in the last {IDLE_AGE // 60_000_000} minutes",
            topic=self._state.topic,
            partition=self._state.number,
            hint="Use one producer for many batches.",
        )

    def _too_few_replicas(self) -> NotEnoughReplicas:
        state, progress = self._state, self._state.core.progress
        members = () if progress is None else progress.record.isr
        needed = state.log.format.settings.min_insync_replicas
        return NotEnoughReplicas(
            f"{state.name}: the ISR is only {', '.join(each.broker for each in members)}, and"
            f" min.insync.replicas is {needed}; nothing was appended",
            topic=state.topic,
            partition=state.number,
        )


def _woken(wake: WakeUp) -> tuple[WakeUp, ...]:
    return (wake,)


def _in_transaction(stamp: Stamp | None) -> bool:
    return stamp is not None and stamp.transaction != NO_TRANSACTION


def _of_stamp(partition: str, stamp: Stamp, refused: RefusedBatch) -> IsologError:
    """Return the error for a batch that is refused because of its producer, epoch or sequence."""
    where = f"{partition}: producer {stamp.producer_id}"
    if refused.wrong is Wrong.FENCED:
        return ProducerFenced(f"{where}: epoch {stamp.epoch} is over, a higher one was seen")
    if refused.wrong is Wrong.ENDED:
        return InvalidTransaction(f"{where}: its transaction of epoch {stamp.epoch} has ended")
    if refused.wrong is Wrong.OUTSIDE:
        return InvalidTransaction(f"{where} has a transaction open and writes outside of it")
    if refused.wrong is Wrong.ANOTHER:
        return InvalidTransaction(f"{where} has another transaction open, or wrote outside of any")
    reasons = {
        Wrong.GAP: "a batch before it is missing",
        Wrong.TOO_OLD: "it is too old to tell whether it was appended",
        Wrong.OTHER_BATCH: "that sequence was another batch's",
    }
    return OutOfOrderSequence(
        f"{where}: sequence {stamp.sequence} instead of {refused.expected}:"
        f" {reasons[refused.wrong]}",
        sequence=stamp.sequence,
        expected=refused.expected,
    )
