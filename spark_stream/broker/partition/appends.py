"""Appends to one partition: inspect and encode without the lock, judge and append under it.

Order of steps: the core judges the batch (a duplicate is not appended again), the log appends it,
the core applies its entry and publishes the new bounds, the append is acknowledged, and then the
reads that it satisfies are woken.

Inspection finds the bad records of a whole batch with vectorised checks, never row by row. A batch
comes from the wire, so its buffers are not trusted before Arrow has validated them.

Time: the age of entries and producers is measured by the steady clock. Only the timestamps of
records come from the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVarTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec.structs import replace

from spark_stream.broker.partition.state import PartitionState
from spark_stream.broker.partition.waiters import (
    Acknowledgement,
    Appended,
    AppendResult,
    Candidate,
    WakeUp,
    unknown_outcome,
)
from spark_stream.consistency.ids import NO_TRANSACTION, Offset
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.admission import (
    Admission,
    Flaw,
    Reason,
    admit,
    first_too_large,
)
from spark_stream.consistency.partition.effects import Effects
from spark_stream.consistency.partition.producers import (
    IDLE_AGE,
    NOBODY,
    PRODUCERS_MAX,
    Duplicate,
    RefusalReason,
    RefusedBatch,
    Stamp,
    following,
)
from spark_stream.errors import (
    BatchTooLarge,
    BrokerBusy,
    DiskFull,
    InvalidRecord,
    InvalidTransaction,
    IsologError,
    NotEnoughReplicas,
    OutOfOrderSequence,
    ProducerFenced,
    RecordTooLarge,
    StorageFailure,
)
from spark_stream.schema.values import bytes_at_most, first_null, record_sizes, same_values
from spark_stream.wire.limits import BATCH_BYTES_MAX

# A flag counts as a byte and is stored as a bit.
_COUNTED_PER_STORED_MAX: Final = 8

Ts = TypeVarTuple("Ts")


class Appends:
    """Appends of producers to one partition, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def prepare(self, batch: pa.RecordBatch, stamp: Stamp | None) -> Candidate:
        """Inspect and encode a message, or the records before its first bad one.

        In a transaction, a message with a bad record is dropped as a whole.

        Raises:
            BatchTooLarge, InvalidRecord: the message is bad as a whole.
        """
        log_format = self._state.log.format
        verdict = inspected(batch, log_format.required, log_format.settings.max_record_bytes)
        kept = verdict.kept
        if _in_transaction(stamp) and verdict.flaw is not None:
            kept = 0
        prepared, rows, nbytes = None, None, 0
        if kept:
            rows = batch if kept == batch.num_rows else batch.slice(0, kept)
            prepared = log_format.prepare(log_format.conformed(rows), self._state.clock.wall_us())
            nbytes = prepared.message.size if log_format.codec.is_plain else rows.nbytes
        return Candidate(prepared, rows, verdict.flaw, nbytes)

    def take(
        self,
        candidate: Candidate,
        stamp: Stamp | None,
        isolation: Isolation,
        patience_s: float = -1,
    ) -> AppendResult | None:
        """Check and append a message. A duplicate is acknowledged but not appended again.

        Return None, without any effect, if the lock is not free within ``patience_s`` (negative: no
        limit).

        Raises:
            DiskFull, StorageFailure: no record was stored. The detail ``others_in_sync`` is true if
                the partition has other in-sync replicas, so that one of them may lead soon.
            ProducerFenced, OutOfOrderSequence, InvalidTransaction: the stamp does not fit.
            NotLeader, NotEnoughReplicas: this replica cannot append, or cannot append now.
            BrokerStopping, UnknownTopic: the partition is closed.
        """
        state = self._state
        if not state.lock.acquire(timeout=patience_s):
            return None
        try:
            state.check_takes()
            if not state.core.has_enough_replicas(stamp, isolation):
                raise self._too_few_replicas()
            done, effects = self._judge_and_append(candidate, stamp)
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
        return AppendResult(done, pending, woken)

    def await_acknowledgement(self, taken: AppendResult, timeout_s: float | None) -> None:
        """Wait for the append's acknowledgement.

        Raises:
            UnknownOutcome: the timeout passed. The records stay in the log and may still be
                replicated.
            BrokerStopping, UnknownTopic, NotLeader: the partition was closed during the wait.
        """
        state, pending, done = self._state, taken.pending, taken.appended
        if pending is None or pending.wait(timeout_s):
            return
        state.lock.run_soon(self._give_up, pending.ticket)  # the lock may be held for long
        raise unknown_outcome(done, state.topic, state.number, "were not replicated in time")

    def _give_up(self, ticket: int) -> tuple[WakeUp, ...]:
        self._state.core.give_up(ticket)
        self._state.waiters.remove(ticket)
        return ()

    def notify_when_free(self, wake: Callable[[*Ts], None], *args: *Ts) -> None:
        """Call ``wake(*args)`` once no other thread holds the partition's lock. Never block."""
        self._state.lock.run_soon(_woken, partial(wake, *args))

    def _judge_and_append(
        self, candidate: Candidate, stamp: Stamp | None
    ) -> tuple[Appended, Effects]:
        """Judge and append a message, under the lock."""
        state, core, now = self._state, self._state.core, self._state.clock.steady_us()
        prepared = candidate.prepared
        end = core.bounds_state.log_end
        records = 0 if prepared is None else prepared.records
        if stamp is not None:
            if not core.make_room(stamp.producer_id, now):
                raise self._too_many_producers()
            verdict = core.judge(stamp, records)
            if isinstance(verdict, Duplicate):
                if not self._is_stored(verdict, candidate):
                    expected = following(core.producers[stamp.producer_id].last_sequence)
                    raise _of_stamp(
                        state.name, stamp, RefusedBatch(RefusalReason.OTHER_BATCH, expected)
                    )
                return Appended(verdict.offset, verdict.count, duplicate=True), []
            if isinstance(verdict, RefusedBatch):
                if prepared is None:  # the error of its bad record is more useful
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
        state.sessions.add_batch(entry, prepared.message)
        state.traffic.appended.add(1, records, prepared.message.size)
        return Appended(end.offset, records), effects

    def _is_stored(self, stored: Duplicate, candidate: Candidate) -> bool:
        """Return whether the log has the records of a message, perhaps in another encoding.

        The topic's schema or compression may have changed after the first append, and once more
        after the encoding of this message. So the values of both are compared in the present
        schema.
        """
        log = self._state.log
        if candidate.prepared is None or candidate.rows is None:
            return False
        if candidate.prepared.crc == stored.crc:
            return True
        try:
            chunks = list(log.read(stored.offset, Offset(stored.offset + stored.count)))
        except IsologError:  # retention has removed the batch, or it is damaged
            return False
        (before,) = (
            pa.Table.from_batches([each.batch for each in chunks]).combine_chunks().to_batches()
        )
        rows = log.format.conformed(candidate.rows)
        return before.num_rows == rows.num_rows and all(
            map(same_values, before.columns, rows.columns)
        )

    def _acknowledgement(
        self, stamp: Stamp | None, isolation: Isolation, last_offset: int
    ) -> Acknowledgement | None:
        ticket = self._state.waiters.new_number()
        if self._state.core.acknowledge(ticket, stamp, isolation, last_offset):
            return None
        return self._state.waiters.add_append(ticket)

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
            f"{state.name}: the ISR has {len(members)} of the {needed} members that"
            f" min.insync.replicas requires ({', '.join(each.broker for each in members)});"
            " no record was appended",
            topic=state.topic,
            partition=state.number,
        )


def _woken(wake: WakeUp) -> tuple[WakeUp, ...]:
    return (wake,)


def _in_transaction(stamp: Stamp | None) -> bool:
    return stamp is not None and stamp.transaction != NO_TRANSACTION


def _of_stamp(partition: str, stamp: Stamp, refused: RefusedBatch) -> IsologError:
    """Return the error for a batch with a wrong producer, epoch or sequence."""
    where = f"{partition}: producer {stamp.producer_id}"
    if refused.reason is RefusalReason.FENCED:
        return ProducerFenced(f"{where}: epoch {stamp.epoch} is fenced by a higher epoch")
    if refused.reason is RefusalReason.ENDED:
        return InvalidTransaction(f"{where}: its transaction of epoch {stamp.epoch} has ended")
    if refused.reason is RefusalReason.OUTSIDE:
        return InvalidTransaction(f"{where} has an open transaction and writes outside of it")
    if refused.reason is RefusalReason.ANOTHER:
        return InvalidTransaction(f"{where} has another open transaction, or wrote outside of any")
    reasons = {
        RefusalReason.GAP: "an earlier batch is missing",
        RefusalReason.TOO_OLD: "the batch is too old to be recognised as a duplicate",
        RefusalReason.OTHER_BATCH: "the sequence belongs to another batch",
    }
    return OutOfOrderSequence(
        f"{where}: sequence {stamp.sequence} instead of {refused.expected}:"
        f" {reasons[refused.reason]}",
        sequence=stamp.sequence,
        expected=refused.expected,
    )


def inspected(
    batch: pa.RecordBatch, required: tuple[pa.Field, ...], record_bytes_max: int
) -> Admission:
    """Inspect a batch that has the topic's columns. Return the admitted rows and the first flaw.

    ``required`` are the columns that are not nullable or have a nested field that is not.

    Raises:
        InvalidRecord: the buffers do not hold such a batch.
        BatchTooLarge: the batch has more bytes or rows than a message may have.
    """
    is_valid = _valid(batch)
    if not is_valid:
        try:
            batch.validate()
        except pa.ArrowInvalid as error:
            raise InvalidRecord(f"the batch is not valid Arrow: {error}") from None
    try:
        size = pa.ipc.get_record_batch_size(batch)
    except pa.ArrowException as error:  # 2^31 rows without a value need no bytes
        raise BatchTooLarge(f"the batch cannot be stored: {error}") from None
    if size > BATCH_BYTES_MAX:
        raise BatchTooLarge(f"a batch has at most {BATCH_BYTES_MAX} bytes, not {size}")
    flaws: list[Flaw] = []
    rows = batch.num_rows
    invalid = None if is_valid else _first_invalid(batch)
    if invalid is not None:
        if invalid.row >= rows:
            raise InvalidRecord(f"column {invalid.column!r} has invalid values beyond its rows")
        flaws.append(invalid)
        batch = batch.slice(0, invalid.row)
    for field in required:
        column = batch.column(field.name)
        if not (column.null_count or pt.is_nested(field.type)):
            continue
        null = first_null(column, field, field.name)
        flaws += [Flaw(null[0], Reason.NULL_VALUE, column=null[1])] if null else []
    # Most batches are so small that none of their records can be too large.
    if size * _COUNTED_PER_STORED_MAX > record_bytes_max < bytes_at_most(batch):
        found = first_too_large(record_sizes(batch), record_bytes_max)
        flaws += [found] if found else []
    return admit(rows, flaws)


def refusal(
    flaw: Flaw,
    kept: int,
    offset: int | None,
    record_bytes_max: int,
    *,
    in_transaction: bool = False,
) -> IsologError:
    """Return the error for a flaw, with the number and the offsets of the records before it."""
    where = f"record {flaw.row} of the message"
    tail, hint = _remains(kept, offset, in_transaction)
    details: dict[str, Any] = {"kept": kept, "offset": offset if kept else None, "record": flaw.row}
    if flaw.reason is Reason.TOO_LARGE:
        return RecordTooLarge(
            f"{where} has {flaw.size} bytes, the topic's max.record.bytes is"
            f" {record_bytes_max}{tail}",
            **details,
        )
    if flaw.reason is Reason.NULL_VALUE:
        return InvalidRecord(
            f"{where} has no value in column {flaw.column!r}, which takes no nulls{tail}",
            hint=hint,
            column=flaw.column,
            **details,
        )
    return InvalidRecord(
        f"{where} has a value in column {flaw.column!r} that its type does not allow{tail}",
        hint=hint,
        column=flaw.column,
        **details,
    )


def _remains(kept: int, offset: int | None, in_transaction: bool) -> tuple[str, str | None]:
    """Describe the stored part of a refused message. Return it with a hint (None: the default)."""
    if in_transaction:
        return (
            "; no record of the message is kept, because it is part of a transaction",
            "Abort the transaction, correct or drop the record, and write everything again.",
        )
    if not kept:
        return "; no record of the message is kept", None
    stays = "record before it is" if kept == 1 else "records before it are"
    at = f", at offset{'s' if kept > 1 else ''} {offset}"
    at += f" to {offset + kept - 1}" if offset is not None and kept > 1 else ""
    hint = "Correct or drop the record. The records before it in its message are kept."
    return f"; the {kept} {stays} kept{at if offset is not None else ''}", hint


def _first_invalid(batch: pa.RecordBatch) -> Flaw | None:
    """Find the first row with a value that its type does not allow (text that is not UTF-8)."""
    flaws = [
        Flaw(row, Reason.INVALID_TEXT, column=name)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if (row := _first_invalid_row(column)) is not None
    ]
    return min(flaws, key=attrgetter("row"), default=None)


def _first_invalid_row(array: pa.Array) -> int | None:
    """Find the first invalid row of an array, ignoring values that no row refers to.

    Arrow validates the children of a list as a whole, even for a slice of the list. So the search
    descends to the arrays without children.
    """
    if _valid(array):
        return None
    kind = array.type
    if pt.is_struct(kind):
        rows = [_first_invalid_row(array.field(index)) for index in range(kind.num_fields)]
        return min((row for row in rows if row is not None), default=None)
    if pt.is_fixed_size_list(kind):
        width = kind.list_size
        row = _first_invalid_row(array.values.slice(array.offset * width, len(array) * width))
        return None if row is None else row // width
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_map(kind):
        return _first_invalid_list(array)
    low, high = 0, len(array) - 1  # rows below low are valid, the slice to high + 1 is not
    while low < high:
        middle = (low + high) // 2
        if _valid(array.slice(low, middle - low + 1)):
            low = middle + 1
        else:
            high = middle
    return low


def _first_invalid_list(array: pa.Array) -> int | None:
    children = array.values
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    starts, ends = offsets[:-1], offsets[1:]
    jumps = np.flatnonzero((starts < 0) | (ends < starts) | (ends > len(children)))
    sound = int(jumps[0]) if len(jumps) else len(array)
    first = int(offsets[0]) if sound else 0
    child = (
        _first_invalid_row(children.slice(first, int(offsets[sound]) - first)) if sound else None
    )
    if child is not None:
        return int(np.searchsorted(starts[:sound], first + child, side="right")) - 1
    return sound if sound < len(array) else None


def _valid(data: pa.RecordBatch | pa.Array) -> bool:
    try:
        data.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
