"""Streams of appends at a simulated broker: the core that ships, with tasks for threads.

``broker.serving.append_core`` has the rules, ``broker.serving.append_batch`` the scripts of a
batch. This stands for ``broker.serving.append_stream``: each step of a script is an event.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from isolog.errors import IsologError
from spark_stream.broker.partition.waiters import wake_all
from spark_stream.broker.serving.append_batch import Append, AttemptResult, StreamFacts, group_joins
from spark_stream.broker.serving.append_core import AppendStreamCore, BatchPlace
from spark_stream.protocol import Credited, Received, StreamOpened, StreamOver
from spark_stream.scripts.steps import Script
from spark_stream.transport.streams import Stream, StreamEvent, error_bytes
from spark_stream.wire.stream_messages import Ack, Acknowledged, AppendTo, Envelope, ack_from_bytes
from tests.simulation.schedule import NOW, Body, Schedule

_Place: TypeAlias = BatchPlace[Append]


_FINISH_EVENTS: Final = 3
"""Events of other tasks may come between a settlement and its answer."""


class AppendHost(Protocol):
    """The broker that appends."""

    def new_facts(self, asked: AppendTo) -> StreamFacts:
        """Return the shared state of one stream's appends."""

    def new_append(self, facts: StreamFacts, envelope: Envelope, batch: pa.RecordBatch) -> Append:
        """Return the append of a batch. Raises UnknownTopic."""

    def run(self, script: Script[Any]) -> Body:
        """A body that returns what the script returns."""

    def may_stand_still(self) -> Body:
        """A body in which a thread stands still, now and then."""

    def answers(self, batch: pa.RecordBatch, ack: Ack) -> None:
        """Record the answer of a batch."""


class SimulatedAppends:
    """One stream of appends."""

    def __init__(
        self,
        broker: AppendHost,
        schedule: Schedule,
        owner: str,
        opened: StreamOpened,
        stream: Stream,
    ) -> None:
        self._broker = broker
        self._schedule = schedule
        self._owner = owner
        self._stream = stream
        self._facts = broker.new_facts(AppendTo.from_bytes(bytes(opened.header)))
        self._schema = pa.ipc.read_schema(pa.py_buffer(opened.body))
        self._core: AppendStreamCore[Received, Append] = AppendStreamCore()
        self._is_gone = self._is_over = False
        self._timer_at: float | None = None
        self._batches: dict[_Place, pa.RecordBatch] = {}  # those without an answer
        stream.handle = self._handle
        self._start(self._take_frames())

    def _start(self, body: Body) -> None:
        self._schedule.start("appends", body, self._owner)

    def _handle(self, event: StreamEvent) -> None:
        match event:
            case Received():
                if event.header or not event.end:
                    self._core.receive(event)
                if event.end:
                    self._core.end()
            case Credited():
                pass
            case _:
                self._is_gone = True
                self._core.end()
        self._go_on()

    def _go_on(self) -> None:
        core, stream = self._core, self._stream
        try:
            while core.outbox and (self._is_gone or stream.send(core.outbox[0])):
                core.on_sent()
        except StreamOver:  # its end is reported next
            self._is_gone = True
            core.on_sent(len(core.outbox))
        if core.begin_taking():
            self._start(self._take_frames())
        if core.is_over and not self._is_over:
            self._is_over = True
            if core.failure is not None:
                stream.fail(error_bytes(core.failure))
            elif not self._is_gone:
                with suppress(StreamOver):  # the connection was lost with the client's end
                    stream.send(b"", end=True)

    def _take_frames(self) -> Body:
        yield NOW
        core = self._core
        while (frame := core.next_frame()) is not None:
            self._stream.grant_credit(frame.size)
            batch = pa.ipc.read_record_batch(pa.py_buffer(frame.body), self._schema)
            envelope = Envelope.from_bytes(bytes(frame.header))
            try:
                append = self._broker.new_append(self._facts, envelope, batch)
            except IsologError as error:
                core.fail(error)
                core.next_frame()
                break
            place = core.add(envelope.partition, append, append.deadline)
            self._batches[place] = batch
            yield from self._try(place)
        self._go_on()

    def _try(self, place: _Place) -> Body:
        core, append = self._core, place.work
        joins = append.to_join is not None
        waits = core.has_queue(place.partition) or joins or append.is_cold
        if not waits and (yield from self._attempt(place)):
            return
        if not core.queue(place, append.size):
            return
        if not joins:
            self._start(self._append_queue(place.partition))
        elif core.join(place):
            self._start(self._join_all())

    def _attempt(self, place: _Place) -> Body:
        append, broker = place.work, self._broker
        tried = append.prepare()
        if tried is AttemptResult.UNJOINED:
            tried = yield from broker.run(append.join())
        if tried is AttemptResult.READY:
            yield NOW
            tried = append.take()
            if tried is not AttemptResult.REFUSED:
                yield from broker.may_stand_still()
        if tried is AttemptResult.REFUSED:
            tried = yield from broker.run(append.explain())
        if tried is AttemptResult.ANSWERED:
            self._answer(place)
        wake_all(append.take_woken())
        if append.pending is not None:
            self._core.wait(place)
            self._set_timer()
            append.pending.when_settled(self._settle, place)
        return tried is not AttemptResult.HELD

    def _append_queue(self, partition: int) -> Body:
        yield NOW
        place: _Place | None = self._core.first(partition)
        while place is not None:
            if not (yield from self._attempt(place)):
                wait = self._core.hold(place)
                self._set_timer()
                place.work.held.appends.notify_when_free(self._resume, partition, wait)
                return
            place = self._core.pop_first(place)
            self._go_on()

    def _resume(self, partition: int, wait: int) -> None:
        if self._core.resume(partition, wait):
            self._start(self._append_queue(partition))

    def _join_all(self) -> Body:
        yield NOW
        while group := self._core.next_group():
            for stamp, partitions in group_joins([each.work for each in group]):
                with suppress(IsologError):  # the appends have the reason
                    yield from self._broker.run(self._facts.joins.join_together(partitions, stamp))
            for place in group:
                if (yield from self._attempt(place)):
                    is_last = self._core.pop_first(place) is None
                    self._go_on()
                    if is_last:
                        continue
                self._start(self._append_queue(place.partition))
        self._go_on()

    def _settle(self, place: _Place) -> None:
        if self._core.settle(place):
            self._start(self._finish(place))

    def _finish(self, place: _Place) -> Body:
        for _ in range(_FINISH_EVENTS):
            yield NOW
        place.work.finish()
        if isinstance(ack_from_bytes(place.work.answer), Acknowledged):  # a refusal ends the wait
            yield from self._broker.may_stand_still()
        self._answer(place)

    def _set_timer(self) -> None:
        at = self._core.next_deadline()
        if at is not None and (self._timer_at is None or self._timer_at > at):
            self._timer_at = at
            self._start(self._wait_until(at))

    def _wait_until(self, at: float) -> Body:
        now = self._schedule.clock.monotonic
        yield max(0.0, at - now())
        if at != self._timer_at:
            return
        self._timer_at = None
        for place in self._core.expire(now()):
            if place.work.pending is not None:
                self._start(self._finish(place))
            else:
                self._start(self._append_queue(place.partition))
        self._set_timer()

    def _answer(self, place: _Place) -> None:
        answer = place.work.answer
        self._broker.answers(self._batches.pop(place), ack_from_bytes(answer))
        self._core.answer(place, answer)
        self._go_on()
