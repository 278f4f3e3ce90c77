"""The turn to read a connection, in random orders of its loop and of threads that wait."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from spark_stream.protocol import Event, Received
from spark_stream.transport.reading_turn import ReadingTurn
from tests.examples import examples

LOOP_ONLY = 0
"""The stream whose events only the loop may handle."""
THREADS = (1, 2, 3)


def event(stream: int, number: int) -> Event:
    return Received(stream, b"%d" % number, b"", False)


@dataclass
class World:
    """A socket, its loop and threads that each wait for one answer, step by step."""

    turn: ReadingTurn = field(default_factory=ReadingTurn)
    sent: list[Event] = field(default_factory=list)
    socket: deque[Event] = field(default_factory=deque)
    handled: list[Event] = field(default_factory=list)
    waiting: dict[int, bool] = field(default_factory=dict)
    """The waiting threads: whether they are in a wait for the socket."""

    def send(self, stream: int) -> None:
        self.sent.append(event(stream, len(self.sent)))
        self.socket.append(self.sent[-1])

    def receive(self, thread: int | None) -> None:
        """Receive one event or all, on a thread or on the loop (None)."""
        while self.socket and self.turn.may_receive:
            found = self.socket.popleft()
            if thread is not None and found.stream == LOOP_ONLY:
                self.turn.pass_on([found])
                return
            self.handle([found])

    def handle(self, events: list[Event]) -> None:
        for each in events:
            self.handled.append(each)
            if isinstance(each, Received):
                self.waiting.pop(each.stream, None)  # settles the answer of a thread

    def steps(self) -> list[tuple[str, int]]:
        """Return the steps that are possible now. Without one, all waits would last forever."""
        found = []
        if not self.turn.may_receive:
            found.append(("take passed", 0))
        if self.socket and self.turn.is_loops:
            found.append(("loop reads", 0))
        for thread in THREADS:
            is_done = thread not in self.waiting or not self.turn.has(thread)
            if self.turn.waiting == thread and is_done:
                found.append(("leave", thread))
            elif self.socket and self.turn.has(thread):
                found.append(("thread reads", thread))
        return found

    def do(self, step: str, thread: int) -> None:
        match step:
            case "take passed":
                self.handle(self.turn.take_passed())
            case "loop reads":
                self.receive(None)
            case "thread reads":
                self.receive(thread)
            case "leave":
                self.turn.leave()
                self.waiting.pop(thread, None)  # it waits in another way, or is done


@pytest.mark.rule("the reader of a connection", "transport/reading_turn.py", "transport/channel.py")
def test_events_are_handled_in_order_and_no_wait_lasts_forever() -> None:
    for seed in range(examples(2000)):
        chance = random.Random(seed)
        world = World()
        for _ in range(chance.randrange(5, 60)):
            choice = chance.random()
            thread = chance.choice(THREADS)
            if choice < 0.3:
                world.send(chance.choice((LOOP_ONLY, *THREADS)))
            elif choice < 0.5:
                world.waiting.setdefault(thread, True)
                if world.turn.waiting is None:
                    assert world.turn.take(thread) is world.turn.may_receive
                elif chance.random() < 0.5:  # a signal handler may wait within its own wait
                    assert not world.turn.take(thread)
            elif choice < 0.55:
                world.turn.revoke()
            elif steps := world.steps():
                world.do(*chance.choice(steps))
            assert world.handled == world.sent[: len(world.handled)], seed
        for thread in THREADS:
            world.send(thread)
        while steps := world.steps():
            world.do(*chance.choice(steps))
        assert world.handled == world.sent, seed
        assert world.turn.is_loops, seed
        assert world.turn.waiting is None, seed


def test_a_second_thread_gets_no_turn_until_the_first_leaves() -> None:
    turn = ReadingTurn()
    assert turn.take(1)
    assert not turn.take(2)
    assert turn.has(1)
    turn.leave()
    assert turn.take(2)


def test_a_wait_within_a_wait_of_the_same_thread_gives_the_turn_to_the_loop() -> None:
    turn = ReadingTurn()
    assert turn.take(1)
    assert not turn.take(1)
    assert turn.is_loops
    assert turn.waiting == 1


def test_no_thread_takes_the_turn_before_the_loop_has_the_passed_events() -> None:
    turn = ReadingTurn()
    assert turn.take(1)
    turn.pass_on([event(0, 0)])
    turn.leave()
    assert not turn.is_loops
    assert not turn.take(2)
    assert turn.take_passed() == [event(0, 0)]
    assert turn.is_loops
    assert turn.take(2)
