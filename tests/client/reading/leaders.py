"""Leaders without a network. Their answers and the order of these are random."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isolog.errors import NotLeader
from spark_stream.client.connecting.routes import Route
from spark_stream.client.reading import loop as fetcher
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.core import AheadLimits
from spark_stream.client.reading.fetching import Source
from spark_stream.client.reading.loop import WantedRange
from spark_stream.consistency.isolation import Isolation
from spark_stream.protocol import Cancelled, Lost, Received
from spark_stream.protocol.connection import ConnectionLimits
from spark_stream.transport.streams import failure_of
from spark_stream.wire.stream_messages import ChunkFacts, EndFacts, FailureFacts, Fetch
from tests.support import NUMBERS, numbers

Rank = Callable[[str], int]

PAD = 1_000
"""The size of a frame, from which the number of frames of a call follows."""


def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a call to about four frames ahead, and the budget to three calls."""
    monkeypatch.setattr(fetcher, "CLIENT_LIMITS", ConnectionLimits(credit=PAD))
    monkeypatch.setattr(fetcher, "TOGETHER", AheadLimits(total=12 * PAD, call=4 * PAD))


class _Stream:
    """A call to a leader: the frames of its answer, which are sent while there is credit."""

    def __init__(self, network: Leaders, leader: str, frames: list[Any], credit: int) -> None:
        self._network = network
        self.leader = leader
        self.frames = frames
        self.credit = credit
        self.granted = credit
        self.over: Any = None
        self.handle: Any = None

    @property
    def held(self) -> int:
        """The bytes that were sent and not consumed."""
        return self.granted - self.credit

    @property
    def may_send(self) -> bool:
        frame = self.frames[0] if self.frames else None
        return frame is not None and (self.credit > 0 or not isinstance(frame, Received))

    def grant_credit(self, size: int) -> None:
        with self._network.changed:
            if self.over is None:
                self.credit += size
                self._network.overdrawn |= self.credit > self.granted
                self._network.changed.notify_all()

    def cancel(self) -> None:
        with self._network.changed:
            self.frames = []
            self.over = self.over or Cancelled(0)
            self.credit = self.granted


class Leaders:
    """Leaders of the partitions of topic ``t``. The leader of partition n is ``leaders[n % len]``.

    A thread sends the answers, frame by frame. It selects a random call among those whose leader
    has the lowest ``rank`` and that may send. So no test depends on time.
    """

    def __init__(
        self,
        seed: int,
        rows: list[int],
        *,
        leaders: int = 3,
        rank: Rank = lambda leader: 0,
        failures: float = 0.0,
        awaited_calls: int = 1,
    ) -> None:
        """``rows``: of each partition. ``failures``: the probability of a failed range or call.

        ``awaited_calls``: the number of calls before the first answer.
        """
        self.chance = random.Random(seed)
        self.rows = rows
        self.rank = rank
        self.leaders = [chr(ord("a") + n) for n in range(leaders)]
        self.failures = failures
        self.changed = threading.Condition()
        self.streams: list[_Stream] = []
        self.held_max = 0  # the columns of ranges that are read together
        self.frame_max = 0
        self.overdrawn = False
        self.sent: list[str] = []
        self.calls: list[int] = []
        self._awaited_calls = awaited_calls
        self._is_over = False
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Leaders:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self.changed:
            self._is_over = True
            self.changed.notify_all()
        self._thread.join()

    def wanted(self) -> list[WantedRange]:
        """Ranges with all records of all partitions."""
        view = View.of("t", NUMBERS)
        level = Isolation.READ_UNCOMMITTED
        return [
            WantedRange(Source(self, view, "id", n, level), 0, rows)  # type: ignore[arg-type]
            for n, rows in enumerate(self.rows)
        ]

    # -- methods of a router ----------------------------------------------------------------------

    timeout_s = 30.0

    def check_open(self) -> None:
        pass

    def known(self, topic: str, topic_id: str, partition: int) -> Route:
        leader = self.leaders[partition % len(self.leaders)]
        return Route(topic, topic_id, partition, leader, leader, 1)

    def was_looked_up(self, topic: str, topic_id: str) -> bool:
        return True

    def claim_look_up(self, topic: str, topic_id: str) -> bool:
        return False

    def near(self, route: Route) -> None:
        return None

    def on_failed(self, *failed: object) -> None:
        pass

    def on_answer(self, *answered: object) -> None:
        pass

    def link_to(self, broker_id: str, address: str) -> Any:
        channel = SimpleNamespace(
            address=address, open_with=lambda *asked, **more: self._open(address, *asked, **more)
        )
        shared = SimpleNamespace(
            channel=channel, failure_of=lambda error: failure_of(error, address)
        )
        return SimpleNamespace(address=address, present=lambda: shared)

    # -- methods of a leader ---------------------------------------------------------------------

    def _open(
        self, leader: str, begin: Any, method: Any, header: bytes, body: bytes, **more: Any
    ) -> None:
        asked = Fetch.from_bytes(body).ranges
        credit = more["credit"] + fetcher.CLIENT_LIMITS.credit
        with self.changed:
            self.calls.append(len(asked))
            frames = self._answer(asked)
            stream = _Stream(self, leader, frames, credit)
            stream.handle = begin(stream)
            self.streams.append(stream)
            self.changed.notify_all()

    def _answer(self, asked: list[Any]) -> list[Any]:
        frames: list[Any] = [self._frame(b"", NUMBERS.serialize())]
        for place, each in enumerate(asked):
            position = each.start
            end = min(each.end, self.rows[each.partition])
            fails = len(asked) > 1 and self.chance.random() < self.failures
            while position < end and not (fails and self.chance.random() < 0.5):
                upto = min(end, position + self.chance.randint(1, 4))
                facts = ChunkFacts(base=position, next=upto, lineage=(), range=place)
                rows = numbers(1000 * each.partition + position, upto - position)
                body = rows.serialize().to_pybytes() + bytes(PAD)
                frames.append(self._frame(facts.to_bytes(), body))
                position = upto
            if fails:
                error = FailureFacts(range=place, error=NotLeader("moved"))
                frames.append(self._frame(error.to_bytes(), b""))
            elif position < each.end or len(asked) == 1:
                last = EndFacts(
                    next=position, partitions=1, leader_epoch=1, lineage=(), range=place
                )
                frames.append(self._frame(last.to_bytes(), b""))
        if len(asked) > 1 and self.chance.random() < self.failures:
            del frames[self.chance.randrange(len(frames)) :]
            return [*frames, Lost("LOST", "the connection is lost")]
        return [*frames, Received(0, b"", b"", end=True)]

    def _frame(self, header: bytes, body: Any) -> Received:
        return Received(0, header, memoryview(body), end=False)

    def _send(self) -> None:
        while True:
            with self.changed:
                ready = self._ready()
                while not ready and not self._is_over:
                    self.changed.wait()
                    ready = self._ready()
                if self._is_over:
                    return
                stream = self.chance.choice(ready)
                frame = stream.frames.pop(0)
                if isinstance(frame, Received) and not frame.end:
                    stream.credit -= frame.size
                    self.sent.append(stream.leader)
                    self.frame_max = max(self.frame_max, frame.size)
                held = sum(each.held for each in self.streams if each.granted < fetcher.CREDIT)
                self.held_max = max(self.held_max, held)
            stream.handle(frame)

    @property
    def is_stuck(self) -> bool:
        """Whether no leader may send before the consumer takes items."""
        with self.changed:
            return bool(self.sent) and not self._ready()

    def _ready(self) -> list[_Stream]:
        if len(self.calls) < self._awaited_calls:
            return []
        found = [each for each in self.streams if each.may_send]
        least = min((self.rank(each.leader) for each in found), default=0)
        return [each for each in found if self.rank(each.leader) == least]
