"""Messages between clients and brokers: lost, late, delivered twice, or with a late answer.

Between two sides of a split no message arrives, and long connections (``connections``) break or
are held up.

A call is a task of the called broker, and dies with it. Then its caller gets the error of a broken
connection, and the outcome of the call is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from msgspec import Struct

from isolog.errors import IsologError
from tests.simulation.schedule import NOW, Body, Schedule, Signal, Within

CALL_S: Final = 10.0
CLIENTS: Final = "clients"
"""All clients are in one place."""
_SLOW_S: Final = 1.5
_HELD: Final = 0.3  # how often a split only holds up what lasts
_LATE_S: Final = 15.0  # so some late answers come after their caller's timeout


class NoAnswer(Exception):
    """The outcome of the call is unknown."""


class Asked(Protocol):
    """A broker that takes calls."""

    broker_id: str

    @property
    def owner(self) -> str:
        """The owner of its tasks."""

    @property
    def serves(self) -> bool:
        """Whether it takes calls."""

    @property
    def calls(self) -> dict[Call, None]:
        """The calls under way, which end with it."""


class Breakable(Protocol):
    """Something that lasts between two brokers."""

    is_held: bool
    """Whether messages are dropped without a signal to either end."""

    def break_off(self) -> None:
        """Messages under way are lost."""


class Call:
    """One call, until it is answered."""

    def __init__(self, schedule: Schedule) -> None:
        self.answered = Signal(schedule)
        self._result: Any = None
        self._error: Exception | None = NoAnswer("nothing came back")

    def answer(self, result: Any) -> None:
        self._result, self._error = result, None
        self.answered.give()

    def fail(self, error: Exception) -> None:
        self._error = error
        self.answered.give()

    def result(self) -> Any:
        """The answer. Raises the error, or NoAnswer."""
        if self._error is not None:
            raise self._error
        return self._result


class Trouble(Struct):
    """The chances of faults of a message, each between 0 and 1."""

    lost: float = 0.0
    late: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0


class Network:
    """Between all clients and brokers of a run."""

    def __init__(self, schedule: Schedule, chance: Random) -> None:
        self.trouble = Trouble()
        self.slow: set[str] = set()
        """Brokers with slow connections."""
        self.connections: dict[Breakable, tuple[str, str]] = {}
        """The lasting connections between two brokers."""
        self._splits: list[frozenset[str]] = []
        self._schedule = schedule
        self._chance = chance

    # -- splits ------------------------------------------------------------------------------------

    def split(self, one: str, other: str) -> frozenset[str]:
        """Keep these two from reaching each other, until :meth:`heal`."""
        pair = frozenset((one, other))
        self._splits.append(pair)
        for each, ends in list(self.connections.items()):
            if pair == frozenset(ends):
                if self._chance.random() < _HELD:
                    each.is_held = True
                else:
                    each.break_off()
        return pair

    def heal(self, pair: frozenset[str]) -> None:
        """They can reach each other again, as far as this split is concerned."""
        if pair in self._splits:
            self._splits.remove(pair)
        self._let_go()

    def heal_all(self) -> None:
        """All brokers can reach each other, without delays."""
        self._splits.clear()
        self.slow.clear()
        self._let_go()

    def _let_go(self) -> None:
        for each, (one, other) in self.connections.items():
            each.is_held = each.is_held and not self.connects(one, other)

    def connects(self, one: str, other: str) -> bool:
        """Whether the two can reach each other."""
        return not self._splits or frozenset((one, other)) not in self._splits

    def carry(self, on: Breakable, receiver: str) -> Body:
        """Bytes are on their way on something that lasts: they come late, or are lost with it."""
        if self._happens(self.trouble.lost / 4):
            on.break_off()
        elif receiver in self.slow or self._happens(self.trouble.late):
            yield self._chance.random() * _SLOW_S

    # -- calls -------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        to: Asked,
        ask: Callable[[], Body],
        timeout_s: float = CALL_S,
        *,
        by: str = CLIENTS,
    ) -> Body:
        """A body that returns what the broker answers.

        Raises:
            IsologError: what the broker answers.
            NoAnswer: the call was carried out, or not, or will be.
        """
        yield NOW
        if not to.serves:
            raise NoAnswer(f"broker {to.broker_id} takes no calls")
        call = Call(self._schedule)
        if self.connects(by, to.broker_id) and not self._happens(self.trouble.lost):
            self._deliver(name, call, to, ask)
        if self._happens(self.trouble.repeated):
            self._deliver(f"{name} once more", Call(self._schedule), to, ask)
        if self._happens(self.trouble.answer_lost):
            call = Call(self._schedule)
        yield Within(call.answered, timeout_s)
        if not self.connects(by, to.broker_id):
            raise NoAnswer("the answer did not arrive")
        return call.result()

    def _deliver(self, name: str, call: Call, to: Asked, ask: Callable[[], Body]) -> None:
        late_s = self._chance.random() * _LATE_S if self._happens(self.trouble.late) else 0.0
        to.calls[call] = None
        self._schedule.start(name, self._serve(call, to, ask, late_s), to.owner)

    def _serve(self, call: Call, to: Asked, ask: Callable[[], Body], late_s: float) -> Body:
        if late_s:
            yield late_s
        try:
            result = yield from ask()
        except (IsologError, NoAnswer) as error:
            call.fail(error)
        else:
            call.answer(result)
        to.calls.pop(call, None)

    def _happens(self, likelihood: float) -> bool:
        return likelihood > 0 and self._chance.random() < likelihood
